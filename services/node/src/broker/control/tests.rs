//! Control sockets, spoken to as any program may.

mod endpoints;

use super::*;
use crate::base::watched;
use crate::broker::MAX_ATTACHES_PER_DOMAIN;
use std::os::fd::BorrowedFd;
use tokio::io::unix::AsyncFd;
use wire::control::MAX_PACKET_BYTES;

#[test]
fn a_child_descends_from_its_parent_and_nobody_else() {
    let me = std::process::id();
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    assert!(descends(child.id(), me) && descends(me, me));
    assert!(!descends(me, child.id()) && !descends(0, 0) && !descends(me, 0));
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// A door of a domain that nobody started, and the folder that it is in.
fn door() -> (tempfile::TempDir, tokio::task::JoinHandle<io::Result<()>>) {
    door_to(Broker::new(crate::broker::make_channel))
}

fn door_to(broker: Broker) -> (tempfile::TempDir, tokio::task::JoinHandle<io::Result<()>>) {
    let folder = tempfile::tempdir().unwrap();
    let listener = listen(folder.path(), "control.sock", SocketType::SEQPACKET, 0o666).unwrap();
    let door = Door {
        dc: "shop".into(),
        domain: "web".into(),
        hosts: false,
        init: Arc::default(),
        broker,
        about: Arc::new(|identity| serde_json::json!({ "domain": identity.domain })),
    };
    (folder, tokio::spawn(accept_all(Arc::new(door), listener)))
}

fn connect(folder: &Path) -> AsyncFd<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(folder.join("control.sock")).unwrap()).unwrap();
    watched(socket, Interest::READABLE | Interest::WRITABLE).unwrap()
}

fn send(socket: &AsyncFd<OwnedFd>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    sys::descriptors::send_with_descriptors(socket.get_ref(), bytes, descriptors).unwrap();
}

/// The next reply; `None` at the end of the connection.
async fn reply(socket: &AsyncFd<OwnedFd>) -> Option<Reply> {
    loop {
        let mut ready = socket.readable().await.unwrap();
        match packet::receive::<Reply>(socket.get_ref()) {
            Ok(packet) => return Some(packet.message),
            Err(PacketError::NotReady) => ready.clear_ready(),
            Err(PacketError::Gone) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn garbage_is_refused_packet_by_packet_and_the_connection_goes_on() {
    let (folder, accepting) = door();
    let socket = connect(folder.path());
    let long = vec![b'x'; MAX_PACKET_BYTES + 1];
    let deep = b"[".repeat(60_000);
    let noise: [&[u8]; 7] =
        [b"\0", b"{", b"null", b"{\"op\":\"fly\",\"id\":1}", b"{\"op\":\"serve\"}", &long, &deep];
    for bytes in noise {
        send(&socket, bytes, &[]);
        let answer = reply(&socket).await;
        assert!(matches!(answer, Some(Reply::Refused { id: 0, .. })), "{bytes:.20?}: {answer:?}");
    }
    send(&socket, b"{\"op\":\"about\",\"id\":5}", &[]);
    let Some(Reply::About { id: 5, about }) = reply(&socket).await else { panic!("no answer") };
    assert_eq!(about["domain"], "web");
    accepting.abort();
}

#[tokio::test]
async fn descriptors_are_not_taken_and_cost_their_sender_the_packet_or_the_connection() {
    let (folder, accepting) = door();
    let socket = connect(folder.path());
    let gift = [socket.get_ref().as_fd()];
    let request = b"{\"op\":\"services\",\"id\":1}";
    match sys::descriptors::send_with_descriptors(socket.get_ref(), request, &gift) {
        // The kernel sees to it, and the connection goes on.
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            send(&socket, request, &[]);
            assert!(matches!(reply(&socket).await, Some(Reply::Services { id: 1, .. })));
        }
        Ok(()) => assert_eq!(reply(&socket).await, None),
    }
    let other = connect(folder.path());
    send(&other, request, &[]);
    assert!(matches!(reply(&other).await, Some(Reply::Services { id: 1, .. })));
    accepting.abort();
}

const FILE: &str = "name = \"shop\"\n[domain.resolver]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\n\
    [service.dns]\nkind = \"directory\"\ndomain = \"resolver\"\nallow = [{ domains = \"*\", verbs = [\"resolve\"] }]\n\
    [service.dns.settings]\nupstream = [\"127.0.0.1:5353\"]\n[domain.web]\nkind = \"container\"\nroot = \"host\"\n\
    command = [\"true\"]\nservices = { dns = \"/srv/dns\" }\n";

#[tokio::test]
async fn who_asks_for_more_channels_than_servers_take_waits_for_its_turn() {
    let broker = Broker::new(crate::broker::make_channel);
    let topology = topology::parse(FILE, "test.toml", Path::new("/")).unwrap_or_else(|e| panic!("{e}"));
    broker.set_topology("shop", Some(Arc::new(topology)));
    let server =
        Identity { dc: "shop".into(), domain: "resolver".into(), role: Role::Program, pid: 1, main: true };
    let (id, mut mail) = broker.join(server).unwrap();
    broker.request(id, Request::Serve { id: 1 }, None, |_| serde_json::Value::Null);
    mail.recv().await.unwrap();
    let (folder, accepting) = door_to(broker);
    let (first, second) = (connect(folder.path()), connect(folder.path()));
    let ask = b"{\"op\":\"connect\",\"id\":1,\"service\":\"dns\",\"entrance\":\"api\",\"ring_bytes\":4096}";
    for _ in 0..MAX_ATTACHES_PER_DOMAIN {
        send(&first, ask, &[]);
        assert!(matches!(reply(&first).await, Some(Reply::Connected { .. })));
    }
    send(&second, ask, &[]);
    assert!(tokio::time::timeout(ATTACH_TIMEOUT / 4, second.readable()).await.is_err(), "it did not wait");
    // The server takes one: the next turn.
    drop(mail.recv().await.unwrap());
    assert!(matches!(reply(&second).await, Some(Reply::Connected { .. })));
    // And in vain where it takes none.
    send(&second, ask, &[]);
    let answer = reply(&second).await;
    assert!(matches!(answer, Some(Reply::Refused { id: 1, .. })), "{answer:?}");
    accepting.abort();
}

const CHANNEL: &str = "name = \"shop\"\n[domain.web]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"true\"]\n\
    [service.link]\nkind = \"channel\"\ndomain = \"web\"\nallow = [{ domains = [\"web\"], verbs = [\"open\"] }]\n";
const OFFER: &[u8] = b"{\"op\":\"offer\",\"id\":9,\"service\":\"link\"}";

fn open_waiting(wait_ms: u32) -> Vec<u8> {
    format!("{{\"op\":\"connect\",\"id\":2,\"service\":\"link\",\"entrance\":\"api\",\"wait_ms\":{wait_ms}}}")
        .into_bytes()
}

/// A domain that offers a channel to itself.
fn channel_door() -> (Broker, tempfile::TempDir, tokio::task::JoinHandle<io::Result<()>>) {
    let broker = Broker::new(crate::broker::make_channel);
    let topology = topology::parse(CHANNEL, "test.toml", Path::new("/")).unwrap_or_else(|e| panic!("{e}"));
    broker.set_topology("shop", Some(Arc::new(topology)));
    let (folder, accepting) = door_to(broker.clone());
    (broker, folder, accepting)
}

#[tokio::test]
async fn who_opens_early_waits_for_the_offer_as_long_as_it_asked_to() {
    let (_broker, folder, accepting) = channel_door();
    let (early, offerer) = (connect(folder.path()), connect(folder.path()));
    send(&early, &open_waiting(20), &[]);
    let answer = reply(&early).await;
    let in_vain = Some(rustix::io::Errno::AGAIN.raw_os_error());
    let errno =
        answer.as_ref().and_then(|r| if let Reply::Refused { errno, .. } = r { Some(*errno) } else { None });
    assert_eq!(errno, in_vain, "{answer:?}");
    send(&early, &open_waiting(u32::MAX), &[]);
    // Nothing is answered before; that it waits is seen by the next packet, which is not answered
    // either.
    send(&early, b"{\"op\":\"services\",\"id\":4}", &[]);
    send(&offerer, OFFER, &[]);
    assert!(matches!(reply(&offerer).await, Some(Reply::Serving { id: 9, .. })));
    assert!(matches!(reply(&early).await, Some(Reply::Connected { id: 2, .. })));
    assert!(matches!(reply(&early).await, Some(Reply::Services { id: 4, .. })));
    assert!(matches!(reply(&offerer).await, Some(Reply::Event(wire::control::Event::Attach { .. }))));
    accepting.abort();
}

#[tokio::test]
async fn a_program_that_does_not_read_holds_up_only_those_who_open_its_channel() {
    let broker = Broker::new(crate::broker::make_channel);
    let channel = "[domain.camera]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"true\"]\n[service.link]\nkind = \"channel\"\n\
        domain = \"camera\"\nallow = [{ domains = [\"web\"], verbs = [\"open\"] }]\n";
    let topology = topology::parse(&format!("{FILE}{channel}"), "test.toml", Path::new("/"));
    broker.set_topology("shop", Some(Arc::new(topology.unwrap_or_else(|e| panic!("{e}")))));
    let program = |domain: &str| Identity {
        dc: "shop".into(),
        domain: domain.into(),
        role: Role::Program,
        pid: 1,
        main: true,
    };
    let (server, _servers_mail) = broker.join(program("resolver")).unwrap();
    broker.request(server, Request::Serve { id: 1 }, None, |_| serde_json::Value::Null);
    let (camera, _not_read) = broker.join(program("camera")).unwrap();
    let offer = Request::Offer { id: 1, service: "link".into(), stand_by: false, serving: false };
    broker.request(camera, offer, None, |_| serde_json::Value::Null);
    let (folder, accepting) = door_to(broker);
    let (first, second) = (connect(folder.path()), connect(folder.path()));
    for _ in 0..MAX_ATTACHES_PER_DOMAIN {
        send(&first, &open_waiting(0), &[]);
        assert!(matches!(reply(&first).await, Some(Reply::Connected { .. })));
    }
    // No turn is left there; elsewhere there is one.
    send(&first, &open_waiting(0), &[]);
    let dns = b"{\"op\":\"connect\",\"id\":1,\"service\":\"dns\",\"entrance\":\"api\"}";
    send(&second, dns, &[]);
    assert!(matches!(reply(&second).await, Some(Reply::Connected { .. })));
    let answer = reply(&first).await;
    assert!(matches!(answer, Some(Reply::Refused { id: 2, .. })), "{answer:?}");
    accepting.abort();
}

#[tokio::test]
async fn who_waits_and_hangs_up_is_forgotten_at_once() {
    let (broker, folder, accepting) = channel_door();
    let early = connect(folder.path());
    send(&early, b"{\"op\":\"about\",\"id\":1}", &[]);
    assert!(matches!(reply(&early).await, Some(Reply::About { .. })));
    send(&early, &open_waiting(MAX_WAIT_MS), &[]);
    let members = || broker.member_count("shop", "web");
    assert_eq!(members(), 1);
    drop(early);
    let patience = tokio::time::Instant::now() + Duration::from_secs(30);
    while members() > 0 {
        assert!(tokio::time::Instant::now() < patience, "it is waited for in vain");
        tokio::task::yield_now().await;
    }
    accepting.abort();
}

#[tokio::test]
async fn a_program_offers_right_after_the_one_before_has_ended() {
    let (_broker, folder, accepting) = channel_door();
    for _ in 0..50 {
        let (first, second) = (connect(folder.path()), connect(folder.path()));
        send(&first, OFFER, &[]);
        assert!(matches!(reply(&first).await, Some(Reply::Serving { .. })));
        drop(first);
        send(&second, OFFER, &[]);
        let answer = reply(&second).await;
        assert!(matches!(answer, Some(Reply::Serving { .. })), "{answer:?}");
    }
    accepting.abort();
}

#[tokio::test]
async fn a_connection_that_sends_nothing_else_is_closed_and_others_go_on() {
    let (folder, accepting) = door();
    let (noisy, quiet) = (connect(folder.path()), connect(folder.path()));
    for _ in 0..=MAX_GARBAGE {
        send(&noisy, b"?", &[]);
    }
    let mut refusals = 0;
    while reply(&noisy).await.is_some() {
        refusals += 1;
    }
    assert_eq!(refusals, MAX_GARBAGE);
    send(&quiet, b"{\"op\":\"services\",\"id\":1}", &[]);
    assert!(matches!(reply(&quiet).await, Some(Reply::Services { id: 1, .. })));
    accepting.abort();
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_a_hang_up_makes_room() {
    let (folder, accepting) = door();
    let mut members: Vec<_> = (0..MAX_MEMBERS_PER_DOMAIN).map(|_| connect(folder.path())).collect();
    let extra = connect(folder.path());
    let answer = reply(&extra).await;
    assert!(matches!(answer, Some(Reply::Refused { id: 0, .. })), "{answer:?}");
    assert_eq!(reply(&extra).await, None);
    members.pop();
    let next = connect(folder.path());
    send(&next, b"{\"op\":\"services\",\"id\":1}", &[]);
    assert!(matches!(reply(&next).await, Some(Reply::Services { .. })));
    accepting.abort();
}
