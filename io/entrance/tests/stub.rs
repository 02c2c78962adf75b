//! The stub as resolvers see it: with `dig` where it is installed, and by hand.

use entrance::{Entrance, Entrances, Handle};
use session::Control;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};
use testing::{FakeDaemon, FakeDirectory, ServerThread};

struct Stage {
    _folder: tempfile::TempDir,
    daemon: FakeDaemon,
    server: Option<ServerThread>,
    handle: Handle,
    address: SocketAddr,
}

impl Stage {
    fn set() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = FakeDaemon::start(folder.path(), &["server", "a"], vec![FakeDirectory::told()]);
        let (udp, tcp) = sockets();
        let address = udp.local_addr().expect("an address");
        let handle = entrance::run(Entrances { udp: Some(udp), tcp: Some(tcp), resolve: None });
        let mut stage =
            Self { _folder: folder, daemon, server: None, handle: handle.expect("running"), address };
        stage.start_server(false);
        stage
    }

    fn start_server(&mut self, mute: bool) {
        let make = move || if mute { FakeDirectory::mute() } else { FakeDirectory::default() };
        self.server = Some(ServerThread::start(&self.daemon, make));
        let mut control = Control::connect(&self.daemon.socket("a")).expect("connected");
        let soon = Instant::now() + Duration::from_secs(20);
        let (_, end) = control.connect_service("dns", "stub", 0, soon).expect("a channel");
        self.handle.connect(Entrance::Stub, end);
    }

    fn udp(&self) -> UdpSocket {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        socket.connect(self.address).expect("connected");
        socket
    }

    fn tcp(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        socket
    }

    /// Waits until the counter has reached `least`.
    fn reaches(&self, counter: &str, least: u64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.handle.state()[counter].as_u64() < Some(least) {
            assert!(Instant::now() < deadline, "{counter} stays below {least}: {}", self.handle.state());
            std::thread::yield_now();
        }
    }
}

/// A port that is free for both.
fn sockets() -> (UdpSocket, TcpListener) {
    loop {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        if let Ok(tcp) = TcpListener::bind(udp.local_addr().expect("an address")) {
            return (udp, tcp);
        }
    }
}

fn query(id: u16, name: &str) -> Vec<u8> {
    let [high, low] = id.to_be_bytes();
    let mut bytes = vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(&[0, 0, 1, 0, 1]);
    bytes
}

fn ask_udp(socket: &UdpSocket, query: &[u8]) -> Vec<u8> {
    socket.send(query).expect("sent");
    let mut answer = [0; 4096];
    let bytes = socket.recv(&mut answer).expect("an answer");
    answer[..bytes].to_vec()
}

fn send_tcp(socket: &mut TcpStream, query: &[u8]) {
    let length = (query.len() as u16).to_be_bytes();
    socket.write_all(&[&length, query].concat()).expect("sent");
}

fn read_tcp(socket: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 2];
    socket.read_exact(&mut length).expect("a length");
    let mut answer = vec![0; u16::from_be_bytes(length).into()];
    socket.read_exact(&mut answer).expect("an answer");
    answer
}

fn code(answer: &[u8]) -> u8 {
    answer[3] & 15
}

#[test]
fn dig_gets_its_answers_over_udp_and_tcp() {
    let stage = Stage::set();
    let dig = |arguments: &[&str]| {
        let port = stage.address.port().to_string();
        let output =
            Command::new("dig").args(["@127.0.0.1", "-p", &port, "+tries=1"]).args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Ok(short) = dig(&["+short", "host.example"]) else {
        println!("skipped: dig is not installed (apt-get install bind9-dnsutils)");
        return;
    };
    assert_eq!(short, "192.0.2.1\n");
    assert_eq!(dig(&["+short", "AAAA", "v6.example"]).expect("dig"), "2001:db8::6\n");
    assert_eq!(dig(&["+short", "+tcp", "v4.example"]).expect("dig"), "192.0.2.4\n");
    // Cut over UDP (no EDNS), whole when dig comes back over TCP.
    let many = dig(&["+noedns", "many.example"]).expect("dig");
    assert!(many.contains("Truncated, retrying in TCP mode") && many.contains("ANSWER: 40"), "{many}");
    assert!(dig(&["missing.example"]).expect("dig").contains("status: NXDOMAIN"));
    assert!(dig(&["failing.example"]).expect("dig").contains("status: SERVFAIL"));
    assert!(dig(&["+opcode=STATUS", "host.example"]).expect("dig").contains("status: NOTIMP"));
    let edns = dig(&["+bufsize=1232", "+ignore", "many.example"]).expect("dig");
    assert!(edns.contains("ANSWER: 40") && !edns.contains(" tc "), "{edns}");
}

#[test]
fn nonsense_is_ignored_or_refused_and_harms_nobody() {
    let stage = Stage::set();
    let socket = stage.udp();
    for ignored in [&b""[..], b"short", &[0xff; 12], &[0xff; 600]] {
        socket.send(ignored).expect("sent");
    }
    stage.reaches("ignored", 4);
    let mut two_questions = query(7, "host.example");
    two_questions[5] = 2;
    assert_eq!(code(&ask_udp(&socket, &two_questions)), 1);
    let answer = ask_udp(&socket, &query(8, "host.example"));
    assert_eq!((answer[1], code(&answer), answer[7]), (8, 0, 1));
}

#[test]
fn a_tcp_client_may_ask_ahead_and_in_pieces() {
    let stage = Stage::set();
    let mut socket = stage.tcp();
    let mut all = Vec::new();
    for id in 0..100 {
        let query = query(id, "host.example");
        all.extend_from_slice(&(query.len() as u16).to_be_bytes());
        all.extend_from_slice(&query);
    }
    for piece in all.chunks(33) {
        socket.write_all(piece).expect("sent");
    }
    let mut ids: Vec<u8> = (0..100).map(|_| read_tcp(&mut socket)[1]).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..100).collect::<Vec<u8>>());
    // A client that sends what is no query is cut off.
    send_tcp(&mut socket, b"no query");
    assert_eq!(socket.read(&mut [0; 1]).expect("the end"), 0);
}

#[test]
fn too_many_tcp_clients_are_sent_away_and_silent_ones_in_time() {
    let stage = Stage::set();
    let mut clients: Vec<TcpStream> = (0..entrance::MAX_CLIENTS + 3).map(|_| stage.tcp()).collect();
    stage.reaches("sent_away", 3);
    let last = clients.last_mut().expect("clients");
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0, "sent away");
    send_tcp(&mut clients[0], &query(1, "v4.example"));
    assert_eq!(code(&read_tcp(&mut clients[0])), 0);
    // Half a frame does not keep a client alive.
    clients[1].write_all(&[0]).expect("sent");
    let start = Instant::now();
    assert_eq!(clients[1].read(&mut [0; 1]).expect("the end"), 0);
    assert!(start.elapsed() <= entrance::IDLE_LIMIT + Duration::from_secs(2));
}

#[test]
fn a_dead_server_is_not_noticed_if_the_next_one_answers() {
    let mut stage = Stage::set();
    stage.server = None;
    stage.start_server(true);
    let (socket, mut stream) = (stage.udp(), stage.tcp());
    socket.send(&query(9, "host.example")).expect("sent");
    send_tcp(&mut stream, &query(10, "v4.example"));
    stage.reaches("pending", 2);
    stage.server = None;
    stage.start_server(false);
    let mut answer = [0; 512];
    let bytes = socket.recv(&mut answer).expect("an answer");
    assert_eq!((answer[1], code(&answer[..bytes])), (9, 0));
    assert_eq!(read_tcp(&mut stream)[1], 10);
}

#[test]
fn an_overloaded_stub_says_so() {
    let stage = Stage::set();
    let socket = stage.udp();
    for id in 0..entrance::MAX_PENDING as u16 {
        socket.send(&query(id, "silent.example")).expect("sent");
        // One at a time: the socket's buffer is not what is tested.
        stage.reaches("udp_queries", u64::from(id) + 1);
    }
    let refused = ask_udp(&socket, &query(9999, "silent.example"));
    assert_eq!((u16::from_be_bytes([refused[0], refused[1]]), code(&refused)), (9999, 2));
    stage.reaches("overloads", 1);
}

/// A query that takes up as much as one over UDP may.
fn long_query(id: u16, name: &str) -> Vec<u8> {
    let mut query = query(id, name);
    query.resize(4096, 0);
    query
}

/// Fills what may wait for the service with queries that are never answered.
fn fill(stage: &Stage) -> (UdpSocket, u64) {
    let socket = stage.udp();
    let most = (entrance::MAX_PENDING_BYTES / 4096) as u64;
    for id in 0..most {
        socket.send(&long_query(id as u16, "silent.example")).expect("sent");
        // One at a time: the socket's buffer is not what is tested.
        stage.reaches("pending", id + 1);
    }
    (socket, most)
}

/// A client filled the stub with queries that nobody answered, and then asked ahead over TCP: each
/// query that was refused was dealt with inside of the one before, until the stack was full and the
/// whole frontend ended.
#[test]
fn however_many_queries_are_refused_at_once_each_is_answered_and_the_stub_goes_on() {
    /// In one read of the stub's, with the shortest question there is: that for the root.
    const QUERIES: u16 = 215;
    let stage = Stage::set();
    let (_socket, _) = fill(&stage);
    let mut stream = stage.tcp();
    let mut all = Vec::new();
    for id in 0..4 * QUERIES {
        let [high, low] = id.to_be_bytes();
        all.extend_from_slice(&[0, 17, high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
    }
    stream.write_all(&all).expect("sent");
    for id in 0..4 * QUERIES {
        let answer = read_tcp(&mut stream);
        assert_eq!((&answer[..2], code(&answer)), (&id.to_be_bytes()[..], 2));
    }
    // And over UDP it is said as well.
    assert_eq!(code(&ask_udp(&stage.udp(), &query(1, "host.example"))), 2);
}

/// More queries waited for a server that died than the ring of the next one takes: the rest was
/// never asked, and its clients waited in vain.
#[test]
fn all_that_waits_is_asked_of_the_next_server_however_much_it_is() {
    let mut stage = Stage::set();
    stage.server = None;
    stage.start_server(true);
    let socket = stage.udp();
    let most = (entrance::MAX_PENDING_BYTES / 4096) as u64;
    for id in 0..most {
        socket.send(&long_query(id as u16, "host.example")).expect("sent");
        stage.reaches("pending", id + 1);
    }
    stage.server = None;
    stage.start_server(false);
    let mut answered = std::collections::BTreeSet::new();
    let mut answer = [0; 4096];
    while (answered.len() as u64) < most {
        let bytes = socket.recv(&mut answer).expect("an answer to each");
        assert_eq!(code(&answer[..bytes]), 0);
        answered.insert([answer[0], answer[1]]);
    }
}
