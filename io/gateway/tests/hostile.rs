//! Brokers that talk nonsense, refuse, or want less than they are sent; and an engine that breaks.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

use gateway::{Broker, Connection, Engine, EngineError, GatewayError, Inward, Mqtt, Subscription, Told, run};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, mpsc};

/// CONNACK: no session, success, no properties.
const WELCOME: &[u8] = &[0x20, 3, 0, 0, 0];
/// SUBACK to the first packet: QoS 1.
const GRANTED: &[u8] = &[0x90, 4, 0, 1, 0, 1];

/// A broker that answers the packets of its first client in turn, each with some bytes: with none,
/// it ends the connection. Then it says what it is told to.
fn broker(answers: &[&[u8]]) -> (Mqtt, mpsc::Sender<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers: Vec<Vec<u8>> = answers.iter().map(|answer| answer.to_vec()).collect();
    let (more, said) = mpsc::channel::<Vec<u8>>();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut packet = [0; 4096];
        for answer in answers {
            if client.read(&mut packet).unwrap_or(0) == 0 || answer.is_empty() {
                return;
            }
            client.write_all(&answer).unwrap();
        }
        // Until the test is over.
        said.iter().for_each(|bytes| client.write_all(&bytes).unwrap());
    });
    let broker = Broker { host: "127.0.0.1".into(), port, client: "test".into(), login: None };
    (Mqtt::new(&broker), more)
}

fn wanted() -> [Subscription; 1] {
    [Subscription { filter: "a/#".into(), reliable: true }]
}

fn connect(answers: &[&[u8]]) -> Result<(Connection, mpsc::Sender<Vec<u8>>), EngineError> {
    let (mut engine, more) = broker(answers);
    engine.connect(&wanted()).map(|connection| (connection, more))
}

#[test]
fn who_talks_nonsense_or_refuses_is_an_error() {
    let refused: [&[&[u8]]; 11] = [
        &[b""],
        &[b"HTTP/1.1 400 Bad Request\r\n\r\n"],
        &[&[0xff; 64]],
        &[&[0x20, 0xff, 0xff, 0xff, 0x7f, 0, 0]],
        &[&[0x20, 3, 0, 0x87, 0]],
        &[&[0x30, 5, 0, 1, b'a', 0, b'x']],
        &[WELCOME, b""],
        &[WELCOME, &[0x90, 4, 0, 1, 0, 0x87]],
        &[WELCOME, &[0x90, 4, 0, 1, 0, 0]],
        &[WELCOME, &[0x90, 5, 0, 1, 0, 1, 1]],
        &[WELCOME, &[0x90, 3, 0, 1, 0]],
    ];
    for answers in refused {
        assert!(connect(answers).is_err(), "{answers:?}");
    }
    assert!(connect(&[WELCOME, GRANTED]).is_ok());
}

#[test]
fn what_nobody_wanted_ends_the_connection_or_is_for_nobody() {
    let after = |bytes: &[u8]| {
        let (mut connection, more) = connect(&[WELCOME, GRANTED]).unwrap();
        more.send(bytes.to_vec()).unwrap();
        connection.receiver.next()
    };
    // An acknowledgement of nothing, of QoS 1 and of QoS 2.
    for bytes in
        [&[0x40, 2, 0, 9][..], &[0x50, 2, 0, 9], &[0x70, 2, 0, 9], &[0x62, 2, 0, 9], &[0x40, 2, 0xff, 0xff]]
    {
        assert!(after(bytes).is_err(), "{bytes:?}");
    }
    // A message that is longer than was agreed upon.
    assert!(after(&[0x30, 0xff, 0xff, 0xff, 0x7f]).is_err());
    // Topics that nobody has subscribed to, with an alias that was never said, or no text.
    for bytes in [
        &[0x30, 5, 0, 1, b'b', 0, b'x'][..],
        &[0x30, 7, 0, 0, 3, 0x23, 0, 9, b'x'],
        &[0x30, 5, 0, 1, 0xff, 0, b'x'],
    ] {
        match after(bytes) {
            Ok(Told::Came(arrival)) => assert_eq!(arrival.subscription, usize::MAX, "{bytes:?}"),
            Ok(other) => panic!("{other:?}"),
            Err(_) => {}
        }
    }
    let Ok(Told::Came(arrival)) = after(&[0x30, 7, 0, 3, b'a', b'/', b'b', 0, b'x']) else { panic!() };
    assert_eq!((arrival.subscription, arrival.bytes.as_slice()), (0, &b"x"[..]));
}

#[test]
fn a_broker_says_how_long_messages_may_be() {
    let (connection, _broker) = connect(&[&[0x20, 8, 0, 0, 5, 0x27, 0, 0, 4, 0], GRANTED]).unwrap();
    assert_eq!(connection.longest, 1024 - 10);
    assert_eq!(connect(&[WELCOME, GRANTED]).unwrap().0.longest, usize::MAX);
}

struct Broken;

impl Engine for Broken {
    fn connect(&mut self, _: &[Subscription]) -> Result<Connection, EngineError> {
        panic!("a library is broken")
    }
}

#[test]
fn an_engine_that_breaks_ends_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("ctl"), "event 9\nhistory 9\nwait 0\n").unwrap();
    fs::write(folder.path().join("pub"), "").unwrap();
    let inward = Inward { filter: "a".into(), folder: folder.path().into() };
    let say: gateway::Say = Arc::new(|_| ());
    assert!(matches!(run(Box::new(Broken), &[], &[inward], &say), GatewayError::Thread(_)));
}
