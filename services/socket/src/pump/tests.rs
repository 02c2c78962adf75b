//! Two relays over one channel, with real sockets at both ends: what programs see is what they see
//! of TCP.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use super::*;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicU32;
use std::thread::{self, JoinHandle};
use wire::socket::Place;

/// Far more than any step takes.
const TIMEOUT: Duration = Duration::from_secs(30);

struct ToServer {
    to: Place,
    counts: Arc<Counts>,
}

impl Ends for ToServer {
    const SIDE: Side = Side::Server;

    fn connect(&mut self, _port: u16) -> Result<(Local, Vec<u8>, Connected), Errno> {
        let total = Arc::new(AtomicU32::new(0));
        Ok((Local::connect(&self.to)?, Vec::new(), self.counts.connected(Some(&total))))
    }

    fn accept(&mut self, _open: usize) -> Result<(Local, Connected), Option<Duration>> {
        Err(None)
    }

    fn knocked(&mut self) {}
}

struct AtDoor {
    door: OwnedFd,
    knocked: bool,
    counts: Arc<Counts>,
}

impl Ends for AtDoor {
    const SIDE: Side = Side::Mount;

    fn connect(&mut self, _port: u16) -> Result<(Local, Vec<u8>, Connected), Errno> {
        unreachable!("the mux refuses it")
    }

    fn accept(&mut self, _open: usize) -> Result<(Local, Connected), Option<Duration>> {
        let found = if self.knocked { Local::accept(&self.door, true).unwrap() } else { None };
        self.knocked = found.is_some();
        found.map(|local| (local, self.counts.connected(None))).ok_or(None)
    }

    fn knocked(&mut self) {
        self.knocked = true;
    }
}

fn channel() -> (End, End) {
    channel::pair(&channel::Config { ring_bytes: wire::socket::RING_BYTES, ..Default::default() }).unwrap()
}

fn server_side(end: End, to: SocketAddr, counts: &Arc<Counts>) -> JoinHandle<Over> {
    let counts = Arc::clone(counts);
    thread::spawn(move || {
        let ends = ToServer { to: Place::Tcp(to), counts: Arc::clone(&counts) };
        Pump::new(end, ends, None, counts).unwrap().run()
    })
}

fn mount_side(end: End, door: &TcpListener, counts: &Arc<Counts>) -> JoinHandle<Over> {
    let (door, counts) = (OwnedFd::from(door.try_clone().unwrap()), Arc::clone(counts));
    thread::spawn(move || {
        let watched = door.try_clone().unwrap();
        let ends = AtDoor { door, knocked: true, counts: Arc::clone(&counts) };
        Pump::new(end, ends, Some(&watched), counts).unwrap().run()
    })
}

/// A server, and where its clients connect.
struct Bed {
    server: TcpListener,
    at: SocketAddr,
    counts: Arc<Counts>,
}

impl Bed {
    fn new() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        door.set_nonblocking(true).unwrap();
        let (one, other) = channel();
        let counts = Arc::new(Counts::default());
        // They end with the test.
        let _server_side = server_side(other, server.local_addr().unwrap(), &Arc::default());
        let _mount_side = mount_side(one, &door, &counts);
        Self { server, at: door.local_addr().unwrap(), counts }
    }

    fn client(&self) -> TcpStream {
        patient(TcpStream::connect(self.at).unwrap())
    }

    /// A client and the server's end of its connection.
    fn connection(&self) -> (TcpStream, TcpStream) {
        let client = self.client();
        (client, patient(self.server.accept().unwrap().0))
    }
}

fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Bytes that tell where they belong.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn bytes_go_both_ways_in_order_and_each_direction_ends_by_itself() {
    const BYTES: usize = 4 << 20;
    let bed = Bed::new();
    let (mut client, mut server) = bed.connection();
    let mut writer = client.try_clone().unwrap();
    let writing = thread::spawn(move || {
        // Pieces of all lengths, so that frames are cut anywhere.
        let (mut at, mut length) = (0, 1);
        while at < BYTES {
            let now = length.min(BYTES - at);
            writer.write_all(&pattern(at, now)).unwrap();
            (at, length) = (at + now, length % 70_000 * 2 + 1);
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let answering = thread::spawn(move || {
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        assert!(all == pattern(0, BYTES), "the bytes are others");
        // The other direction is still open.
        server.write_all(&all).unwrap();
    });
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert!(back == pattern(0, BYTES), "the bytes that came back are others");
    writing.join().unwrap();
    answering.join().unwrap();
    wait_until(|| bed.counts.open() == 0);
}

fn wait_until(mut holds: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "waited in vain");
        thread::park_timeout(Duration::from_millis(5));
    }
}

fn assert_reset(mut stream: &TcpStream) {
    let mut rest = Vec::new();
    let error = stream.read_to_end(&mut rest).expect_err("it did not end in order");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_reset_of_either_side_is_one_for_the_other() {
    let bed = Bed::new();
    for client_resets in [true, false] {
        let (client, server) = bed.connection();
        let (resets, hears) = if client_resets { (client, server) } else { (server, client) };
        (&resets).write_all(b"half an answer").unwrap();
        rustix::net::sockopt::set_socket_linger(&resets, Some(Duration::ZERO)).unwrap();
        drop(resets);
        assert_reset(&hears);
    }
}

#[test]
fn a_server_that_does_not_listen_is_told_at_once() {
    let bed = Bed::new();
    let Bed { server, at, counts } = bed;
    drop(server);
    let client = patient(TcpStream::connect(at).unwrap());
    assert_reset(&client);
    wait_until(|| counts.open() == 0);
}

#[test]
fn a_client_that_never_reads_stops_its_own_connection_and_no_other() {
    let bed = Bed::new();
    let (_never_reads, slow) = bed.connection();
    let sent = thread::spawn(move || {
        slow.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut sent = 0;
        while let Ok(more) = (&slow).write(&[0; 65_536]) {
            sent += more;
        }
        (sent, slow)
    });
    for _ in 0..200 {
        let (mut client, mut server) = bed.connection();
        client.write_all(b"ping").unwrap();
        let mut four = [0; 4];
        server.read_exact(&mut four).unwrap();
        server.write_all(b"pong").unwrap();
        client.read_exact(&mut four).unwrap();
        assert_eq!(&four, b"pong");
    }
    let (sent, _slow) = sent.join().unwrap();
    // What the kernel holds at both ends, a window, and no more.
    assert!(sent < 64 << 20, "{sent} bytes were taken for a client that never reads");
}

#[test]
fn the_end_of_either_relay_resets_what_goes_through_it() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    door.set_nonblocking(true).unwrap();
    let (one, other) = channel();
    let (sender, receiver) = other.open().unwrap();
    let mount = mount_side(one, &door, &Arc::default());
    let client = patient(TcpStream::connect(door.local_addr().unwrap()).unwrap());
    // Not before it was let in.
    (&client).write_all(b"request").unwrap();
    let mut receiver = receiver;
    for _ in 0..3 {
        receiver.wait(Some(std::time::Instant::now() + TIMEOUT)).unwrap();
        receiver.try_receive(&mut Vec::new()).unwrap();
    }
    drop((sender, receiver));
    assert_reset(&client);
    assert!(matches!(mount.join().unwrap(), Over::Gone));
    drop(server);
}

#[test]
fn a_peer_that_breaks_a_rule_loses_its_channel() {
    let hello = Frame::Hello { version: VERSION }.header();
    let data = |connection: u64, body: usize| {
        let mut frame = Frame::Data { connection }.header().to_vec();
        frame.resize(HEADER_BYTES + body, 0);
        frame
    };
    let opened = Frame::Open { connection: 1, port: 1 }.header();
    let cases: [(&str, Vec<Vec<u8>>); 4] = [
        ("too short", vec![b"hi".to_vec()]),
        ("no frame of kind", vec![vec![0x55; 16]]),
        ("greets", vec![opened.to_vec()]),
        ("never opened", vec![hello.to_vec(), data(7, 1)]),
    ];
    // It accepts nobody: what comes waits at the relay.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for (words, messages) in cases {
        let (one, other) = channel();
        let relay = server_side(other, server.local_addr().unwrap(), &Arc::default());
        let (mut sender, _receiver) = one.open().unwrap();
        for message in messages {
            // It may have hung up already.
            let _refused = sender.send(&message, Some(std::time::Instant::now() + TIMEOUT));
        }
        let over = relay.join().unwrap();
        assert!(matches!(&over, Over::Broken(why) if why.contains(words)), "{words}: {over}");
    }
}
