//! The promises of every engine, shown with MQTT and Debian's mosquitto, and with an engine of a
//! few lines that has nothing of MQTT.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

mod memory;

use gateway::{Arrival, Broker, Connection, Engine, Message, Mqtt, Receiver, Subscription, Told, WINDOW};
use memory::Hub;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use wire::events::EVENT_BYTES_MAX;

/// Makes an engine whose session has this name.
type Make<'m> = &'m dyn Fn(&str) -> Box<dyn Engine>;

fn subscriptions(filter: &str) -> [Subscription; 1] {
    [Subscription { filter: filter.into(), reliable: true }]
}

fn send(connection: &Connection, topic: &str, bytes: &[u8], reliable: bool) {
    connection.sender.send(&Message { topic: topic.into(), bytes: bytes.into(), reliable }).unwrap();
}

fn came(receiver: &mut Box<dyn Receiver>) -> Arrival {
    loop {
        if let Told::Came(arrival) = receiver.next().unwrap() {
            return arrival;
        }
    }
}

/// Waits until so many messages are taken, and so many others have gone.
fn await_taken(connection: &mut Connection, mut taken: usize, mut gone: usize) {
    while taken + gone > 0 {
        match connection.receiver.next().unwrap() {
            Told::Taken => taken -= 1,
            Told::Gone => gone -= 1,
            other => panic!("{other:?}"),
        }
    }
}

fn messages_come_whole_and_in_order(make: Make<'_>) {
    let mut to = make("whole-to").connect(&subscriptions("whole/#")).unwrap();
    let mut from = make("whole-from").connect(&[]).unwrap();
    assert!(from.longest >= EVENT_BYTES_MAX + 64);
    for reliable in [true, false] {
        for number in 0..WINDOW {
            let bytes = vec![number as u8; [0, 1, 1000, EVENT_BYTES_MAX][number % 4]];
            send(&from, "whole/a", &bytes, reliable);
        }
        let sent = if reliable { (WINDOW, 0) } else { (0, WINDOW) };
        await_taken(&mut from, sent.0, sent.1);
        for number in 0..WINDOW {
            let arrival = came(&mut to.receiver);
            assert_eq!(arrival.subscription, 0);
            assert_eq!(arrival.bytes, vec![number as u8; [0, 1, 1000, EVENT_BYTES_MAX][number % 4]]);
            arrival.receipt.into_iter().for_each(|give| give());
        }
    }
}

fn what_has_no_receipt_comes_again(make: Make<'_>) {
    let mut from = make("again-from").connect(&[]).unwrap();
    let mut engine = make("again-to");
    let mut to = engine.connect(&subscriptions("again")).unwrap();
    (0..8).for_each(|number| send(&from, "again", &[number], true));
    await_taken(&mut from, 8, 0);
    for number in 0..8 {
        let arrival = came(&mut to.receiver);
        assert_eq!(arrival.bytes, [number]);
        if number < 3 {
            arrival.receipt.into_iter().for_each(|give| give());
        }
    }
    drop(to);
    let mut to = engine.connect(&subscriptions("again")).unwrap();
    // A receipt may have been lost with its connection.
    let first = came(&mut to.receiver).bytes[0];
    assert!(first <= 3, "{first} was the first to come again");
    for number in first + 1..8 {
        assert_eq!(came(&mut to.receiver).bytes, [number]);
    }
}

fn reliable_ones_wait_for_who_is_away(make: Make<'_>) {
    let mut engine = make("away-to");
    drop(engine.connect(&subscriptions("away")).unwrap());
    let mut from = make("away-from").connect(&[]).unwrap();
    (0..8).for_each(|number| send(&from, "away", &[number], true));
    await_taken(&mut from, 8, 0);
    let mut to = engine.connect(&subscriptions("away")).unwrap();
    (0..8).for_each(|number| assert_eq!(came(&mut to.receiver).bytes, [number]));
}

fn neither_own_messages_come_nor_those_of_others_topics(make: Make<'_>) {
    let mut both = make("own").connect(&subscriptions("own/a")).unwrap();
    let mut other = make("other").connect(&[]).unwrap();
    send(&both, "own/a", b"own", true);
    await_taken(&mut both, 1, 0);
    send(&other, "own/b", b"another's", true);
    send(&other, "own/a", b"wanted", true);
    await_taken(&mut other, 2, 0);
    assert_eq!(came(&mut both.receiver).bytes, b"wanted");
}

fn conforms(make: Make<'_>) {
    messages_come_whole_and_in_order(make);
    what_has_no_receipt_comes_again(make);
    reliable_ones_wait_for_who_is_away(make);
    neither_own_messages_come_nor_those_of_others_topics(make);
}

#[test]
fn an_engine_in_memory() {
    let hub = Arc::new(Hub::default());
    conforms(&|client| Box::new(memory::Memory::new(&hub, client)));
}

/// A broker of this test alone.
struct Mosquitto {
    child: Child,
    port: u16,
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the folder of packages that `make deps` has unpacked.
fn unpacked() -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let places = [target, Some(ours)].into_iter().flatten();
    places.map(|target| target.join("debian/mosquitto")).find(|folder| folder.join(".complete").exists())
}

impl Mosquitto {
    /// `None`, said, where there is none.
    fn start() -> Option<Self> {
        let Some(folder) = unpacked() else {
            println!("skipped: needs mosquitto; run `make deps`");
            return None;
        };
        let port = 1883;
        let config = tempfile::NamedTempFile::new().unwrap();
        let address = testing::etcd::own_address();
        let text = format!(
            "listener {port} {address}\nallow_anonymous true\nuser root\nlog_type none\nmax_queued_messages 0\n"
        );
        std::fs::write(config.path(), text).unwrap();
        let mut command = Command::new(folder.join("usr/sbin/mosquitto"));
        command.env("LD_LIBRARY_PATH", folder.join("usr/lib/x86_64-linux-gnu"));
        let child = command.arg("-c").arg(config.path()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut broker = Self { child: child.unwrap(), port };
        while TcpStream::connect((address, port)).is_err() {
            assert!(broker.child.try_wait().unwrap().is_none(), "mosquitto has ended");
            std::thread::yield_now();
        }
        Some(broker)
    }
}

#[test]
fn mqtt_with_mosquitto() {
    let Some(broker) = Mosquitto::start() else { return };
    conforms(&|client| {
        let host = testing::etcd::own_address().to_string();
        Box::new(Mqtt::new(&Broker { host, port: broker.port, client: client.into(), login: None }))
    });
}
