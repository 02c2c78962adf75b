//! The traffic through a machine: packets, ends of channels, executed commands. The daemon is the
//! test, QEMU and the guest are a fake.

use crate::harness::{DEADLINE, Place, order, readable};
use channel::{Config, End};
use machine::{Patience, Word};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use session::packet::{self, Packet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;
use sys::doorbell::Heard;
use wire::control::{Event, GuestState, Reply, Request};
use wire::guest::exec;

const TIMEOUT: Patience = Patience { pong_ms: 30_000, ping_every_ms: 200, qemu_ms: 30_000, off_ms: 30_000 };

/// A daemon of the test.
pub struct Daemon {
    listener: OwnedFd,
    /// The machine's own connection.
    machine: OwnedFd,
    /// The socket of the guest's program.
    member: OwnedFd,
}

impl Daemon {
    pub fn listen(place: &Place) -> OwnedFd {
        let (unfinished, path) = (place.path("unfinished"), place.path("control.sock"));
        let flags = SocketFlags::CLOEXEC;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&unfinished).unwrap()).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        std::fs::rename(unfinished, path).unwrap();
        listener
    }

    /// Waits for the machine alone.
    pub fn machine(listener: &OwnedFd) -> OwnedFd {
        assert!(readable(listener, Instant::now() + DEADLINE), "nobody comes");
        let socket =
            rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
        let Request::Machine { id, .. } = heard(&socket) else { panic!("somebody else") };
        packet::send(&socket, &Reply::Machine { id }, &[]).unwrap();
        socket
    }

    /// Waits for the machine and for the program: whichever comes first.
    fn meet(listener: OwnedFd) -> Self {
        let (mut machine, mut member) = (None, None);
        while machine.is_none() || member.is_none() {
            assert!(readable(&listener, Instant::now() + DEADLINE), "nobody comes");
            let socket =
                rustix::net::accept_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).unwrap();
            match heard(&socket) {
                Request::Machine { id, accel, qemu } => {
                    assert_eq!((id, accel.as_str(), qemu.as_str()), (1, "tcg", "7.2.0"));
                    packet::send(&socket, &Reply::Machine { id }, &[]).unwrap();
                    machine = Some(socket);
                }
                Request::About { id: 1 } => member = Some(socket),
                other => panic!("{other:?}"),
            }
        }
        Self { listener, machine: machine.unwrap(), member: member.unwrap() }
    }

    /// The machine's states, up to this one.
    fn until(&self, wanted: GuestState) {
        loop {
            match heard(&self.machine) {
                Request::Guest { state, .. } if state == wanted => return,
                Request::Guest { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// `end`: one for a guest, and the other.
    fn tell(&self, reply: &Reply, end: Option<(End, &End)>) {
        let descriptors: Vec<OwnedFd> = end.map_or(Vec::new(), |(end, other)| {
            end.into_descriptors().into_iter().chain([other.sight().unwrap()]).collect()
        });
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        packet::send(&self.member, reply, &borrowed).unwrap();
    }
}

pub fn heard(socket: &OwnedFd) -> Request {
    assert!(readable(socket, Instant::now() + DEADLINE), "nothing is said");
    let Packet { message, descriptors } = packet::receive(socket).unwrap();
    assert!(descriptors.is_empty());
    message
}

/// Has something executed in the guest, and gives what came back.
pub fn execute(directory: &Path, command: &str) -> Vec<Vec<u8>> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(directory.join("machine.sock")).unwrap()).unwrap();
    let options = serde_json::json!({
        "tty": false, "interactive": false, "environment": [], "user": null, "workdir": null, "command": [command],
    });
    sys::descriptors::send_with_descriptors(&socket, options.to_string().as_bytes(), &[]).unwrap();
    let mut packets = Vec::new();
    let mut space = vec![0; 65536];
    loop {
        assert!(readable(&socket, Instant::now() + DEADLINE), "no answer to {command}");
        match sys::descriptors::receive_with_descriptors(&socket, &mut space, 0) {
            Ok((length, _)) if length > 0 => packets.push(space[..length].to_vec()),
            _ => return packets,
        }
    }
}

fn apart() -> (End, End) {
    channel::pair(&Config { apart: true, ..Config::default() }).unwrap()
}

/// Waits until a doorbell hangs up.
fn wait_for_death(listener: &OwnedFd) {
    let until = Instant::now() + DEADLINE;
    while sys::doorbell::listen(listener).unwrap() != Heard::Death {
        assert!(readable(listener, until), "the other end does not go");
    }
}

#[test]
fn a_guest_has_services_channels_and_a_frontend_as_any_domain() {
    let place = Place::new();
    let listener = Daemon::listen(&place);
    let running = place.start(&order(&place.fake("guest"), &place.path("kernel")), TIMEOUT);
    let daemon = Daemon::meet(listener);
    daemon.until(GuestState::Started);
    // A frontend: two private sockets, of which packets go to the guest and back.
    let (frontend, its_frontend) = sys::descriptors::socket_pair().unwrap();
    let (_entrances, its_entrances) = sys::descriptors::socket_pair().unwrap();
    let event = Reply::Event(Event::Frontend { order: serde_json::json!({"a": 1}) });
    packet::send(&daemon.machine, &event, &[its_frontend.as_fd(), its_entrances.as_fd()]).unwrap();
    drop((its_frontend, its_entrances));
    daemon.until(GuestState::FrontendUp);
    assert_eq!(heard(&frontend), Request::Services { id: 7 });
    // A channel: the guest gets it as a device, and hears of its peer's death.
    let (ours, peer) = apart();
    daemon.tell(&Reply::Connected { id: 1, channel: 99, memory: false }, Some((ours, &peer)));
    daemon.tell(&Reply::About { id: 1, about: serde_json::json!("behind it") }, None);
    let [data, ..] = peer.into_descriptors();
    drop(data);
    // What can't be a device is refused in the place of the channel: the region is not of a power
    // of two.
    let (together, peer) = channel::pair(&Config::default()).unwrap();
    daemon.tell(&Reply::Connected { id: 3, channel: 100, memory: false }, Some((together, &peer)));
    // The guest has heard the refusal of its own words, and these three packets.
    for _ in 0..4 {
        assert!(matches!(heard(&daemon.member), Request::State { .. }));
    }
    let answers = execute(place.directory.path(), "id");
    let expected = [[&[exec::STDOUT], &b"id"[..]].concat(), [&[exec::ENDED], &b"{\"code\":5}"[..]].concat()];
    assert_eq!(answers, expected);
    execute(place.directory.path(), "poweroff");
    let ended = running.wait();
    assert_eq!((ended.word(), ended.code), (Word::Exited, 0));
    for line in [
        "data {\"reply\":\"refused\",\"id\":2,\"errno\":1,\"message\":\"only the machine process of a domain says this\"}",
        "entrances\nfrontend {\"a\":1} true\n",
        "data {\"reply\":\"connected\",\"id\":1,\"channel\":99} with channel 1 at 10.0/00.0 side 0\n",
        "data {\"reply\":\"about\",\"id\":1,\"about\":\"behind it\"}\n",
        "hangup 1\n",
        "data {\"reply\":\"refused\",\"id\":3,\"errno\":5,",
        "executed [\"id\"]\n",
    ] {
        assert!(ended.output.contains(line), "{line:?} is not in {}", ended.output);
    }
    let place_of = |text| ended.output.find(text).unwrap();
    assert!(place_of("channel 1 at") < place_of("behind it"), "in their order: {}", ended.output);
}

#[test]
fn the_peer_of_a_guest_hears_of_its_end() {
    let place = Place::new();
    let listener = Daemon::listen(&place);
    let running = place.start(&order(&place.fake("guest"), &place.path("kernel")), TIMEOUT);
    let daemon = Daemon::meet(listener);
    let (ours, peer) = apart();
    daemon.tell(&Reply::Connected { id: 1, channel: 99, memory: false }, Some((ours, &peer)));
    let [data, ..] = peer.into_descriptors();
    execute(place.directory.path(), "poweroff");
    wait_for_death(&data);
    assert_eq!(running.wait().word(), Word::Exited);
}

// With doorbells that were pipes, whoever spliced between one and something that makes him wait
// held the pipe's lock: the machine waited for it in the kernel, where no signal reaches, and could
// not even end.
#[test]
fn a_peer_that_splices_holds_up_no_machine() {
    let place = Place::new();
    let listener = Daemon::listen(&place);
    let running = place.start(&order(&place.fake("guest"), &place.path("kernel")), TIMEOUT);
    let daemon = Daemon::meet(listener);
    daemon.until(GuestState::Started);
    let (ours, hostile) = apart();
    daemon.tell(&Reply::Connected { id: 1, channel: 99, memory: false }, Some((ours, &hostile)));
    let (empty, fill) = rustix::pipe::pipe().unwrap();
    let (drain, full) = rustix::pipe::pipe().unwrap();
    let [data, ring_data, room, ring_room, _region] = hostile.into_descriptors();
    sys::doorbell::ring(&ring_data).unwrap();
    sys::doorbell::ring(&ring_room).unwrap();
    let held =
        [(&data, &full), (&room, &full), (&empty, &ring_data), (&empty, &ring_room)].map(|(from, into)| {
            let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
            rustix::io::ioctl_fionbio(&from, false).unwrap();
            rustix::io::ioctl_fionbio(&into, false).unwrap();
            std::thread::spawn(move || {
                rustix::pipe::splice(&from, None, &into, None, 1000, rustix::pipe::SpliceFlags::empty())
            })
        });
    // The guest is told of another's death, can be asked, and ends.
    let (theirs, other) = apart();
    daemon.tell(&Reply::Connected { id: 2, channel: 100, memory: false }, Some((theirs, &other)));
    drop(other);
    // The refusal of its own words, and these two packets.
    for _ in 0..3 {
        assert!(matches!(heard(&daemon.member), Request::State { .. }));
    }
    assert_eq!(execute(place.directory.path(), "id").len(), 2);
    execute(place.directory.path(), "poweroff");
    let ended = running.wait();
    assert_eq!(ended.word(), Word::Exited);
    assert!(ended.output.contains("hangup 2\n"), "{}", ended.output);
    drop((fill, drain));
    for thread in held {
        // Whether it was an error is the kernel's choice.
        let _ended = thread.join().unwrap();
    }
}

// A program of a guest that connects again after the daemon's death found a socket that took it and
// closed at once, and tried without end: now it waits in the machine.
#[test]
fn a_daemon_that_dies_is_waited_for() {
    let place = Place::new();
    let listener = Daemon::listen(&place);
    let running = place.start(&order(&place.fake("guest"), &place.path("kernel")), TIMEOUT);
    let daemon = Daemon::meet(listener);
    daemon.until(GuestState::Started);
    std::fs::remove_file(place.path("control.sock")).unwrap();
    drop(daemon);
    // The next one hears all that it has to know.
    let next = Daemon::meet(Daemon::listen(&place));
    next.until(GuestState::Started);
    assert!(!readable(&next.listener, Instant::now()), "once is enough");
    execute(place.directory.path(), "poweroff");
    let ended = running.wait();
    assert_eq!(ended.word(), Word::Exited);
    assert_eq!(ended.output.matches("the control socket was closed").count(), 1, "{}", ended.output);
}
