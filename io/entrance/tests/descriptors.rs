//! A process of its own, because it has none left of what all its threads share: descriptors.

use entrance::{Entrance, Entrances};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use session::Control;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use testing::{FakeDaemon, FakeDirectory, ServerThread};

/// For the addresses of host.example, with its length in front.
const QUERY: &[u8] = b"\0\x1e\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x04host\x07example\0\0\x01\0\x01";
/// Numbers of descriptors that are taken in any process.
const STANDARD: u64 = 3;

fn ask(client: &mut TcpStream) {
    client.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    client.write_all(QUERY).expect("sent");
}

/// Without a descriptor for the next client, the loop tried again at once, and so on: a processor's
/// worth.
#[test]
fn without_descriptors_the_stub_pauses_and_then_goes_on() {
    const FAILURES: u32 = 4;
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = FakeDaemon::start(folder.path(), &["server", "a"], vec![FakeDirectory::told()]);
    let _server = ServerThread::start(&daemon, FakeDirectory::default);
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let address = tcp.local_addr().expect("an address");
    let handle = entrance::run(Entrances { udp: None, tcp: Some(tcp), resolve: None }).expect("running");
    let mut control = Control::connect(&daemon.socket("a")).expect("connected");
    let soon = Instant::now() + Duration::from_secs(20);
    let (_, end) = control.connect_service("dns", "stub", 0, soon).expect("a channel");
    handle.connect(Entrance::Stub, end);
    let mut first = TcpStream::connect(address).expect("connected");
    ask(&mut first);
    first.read_exact(&mut [0; 2]).expect("all is there");
    // Made before there are none left.
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(STANDARD), ..before }).expect("no more descriptors");
    let start = Instant::now();
    rustix::net::connect(&socket, &address).expect("connected");
    let mut second = TcpStream::from(socket);
    ask(&mut second);
    let failures = || handle.state()["accept_failures"].as_u64().unwrap_or(0);
    while failures() < u64::from(FAILURES) {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", handle.state());
        std::thread::yield_now();
    }
    assert!(start.elapsed() >= entrance::ACCEPT_PAUSE * (FAILURES - 1), "after {:?}", start.elapsed());
    setrlimit(Resource::Nofile, before).expect("as before");
    second.read_exact(&mut [0; 2]).expect("it is answered as soon as there is a descriptor");
}
