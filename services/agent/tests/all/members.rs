//! Members of the domain at the control socket, and ends of channels whose devices are files.

use crate::node::{Node, boot};
use channel::{Config, End as ChannelEnd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::{Control, ControlError};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use streams::Heard;
use wire::control::{self, EndpointAddress, EndpointPeer, EndpointRights, MAX_PACKET_BYTES, Reply, Request};
use wire::guest::{End, Event, Message, Purpose, VECTOR_DATA};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A guest with nothing in it but members.
fn guest() -> Node {
    let mut node = Node::booted(boot(&[]));
    assert_eq!(node.next(), Message::Event(Event::Started {}));
    node
}

/// A member that does something while the node goes on.
fn member<T: Send + 'static>(node: &Node, act: impl FnOnce(Control) -> T + Send + 'static) -> JoinHandle<T> {
    let path = node.socket();
    std::thread::spawn(move || act(Control::connect(&path).expect("the socket is there")))
}

fn request(node: &mut Node, stream: u32) -> Request {
    serde_json::from_slice(&node.data(stream)).expect("a request")
}

fn reply(node: &mut Node, stream: u32, reply: &Reply) {
    node.send(stream, &serde_json::to_vec(reply).expect("no test goes on without"));
}

#[test]
fn a_member_speaks_with_the_node_and_its_end_ends_the_stream() {
    let mut node = guest();
    let asked = member(&node, |mut control| control.about(soon()).unwrap());
    let stream = node.opened(&Purpose::Control {});
    let Request::About { id } = request(&mut node, stream) else { panic!("another request") };
    reply(&mut node, stream, &Reply::About { id, about: serde_json::json!({"domain": "edge"}) });
    assert_eq!(asked.join().unwrap()["domain"], "edge");
    node.closed(stream);
}

#[test]
fn the_nodes_close_hangs_up_on_a_member_after_its_last_packet() {
    let mut node = guest();
    let asked = member(&node, |mut control| {
        let first = control.about(soon()).unwrap();
        (first, control.about(soon()).unwrap_err())
    });
    let stream = node.opened(&Purpose::Control {});
    let Request::About { id } = request(&mut node, stream) else { panic!("another request") };
    reply(&mut node, stream, &Reply::About { id, about: serde_json::json!(1) });
    node.close(stream);
    let (first, second) = asked.join().unwrap();
    assert_eq!(first, 1);
    assert!(second.is_gone(), "{second}");
    node.closed(stream);
}

#[test]
fn a_packet_that_is_too_long_costs_itself_and_descriptors_cost_the_connection() {
    let mut node = guest();
    let socket = connect(&node.socket());
    rustix::net::send(&socket, &vec![b'x'; MAX_PACKET_BYTES + 1], rustix::net::SendFlags::empty()).unwrap();
    let mut bytes = vec![0; 4096];
    let (length, _) = sys::descriptors::receive_with_descriptors(&socket, &mut bytes, 1).unwrap();
    assert!(matches!(serde_json::from_slice(&bytes[..length]), Ok(Reply::Refused { id: 0, .. })));
    let stream = node.opened(&Purpose::Control {});
    let sent = sys::descriptors::send_with_descriptors(&socket, b"{}", &[socket.as_fd()]);
    if sent.is_ok() {
        node.closed(stream);
        let (length, _) = sys::descriptors::receive_with_descriptors(&socket, &mut bytes, 1).unwrap();
        assert_eq!(length, 0);
    }
}

fn connect(path: &Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("no test goes on without");
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("no test goes on without"))
        .expect("it works on a host");
    socket
}

/// A device of a channel in a sysfs of files: its region and its register are sealed memfds, which
/// links lead to.
struct Plugged {
    folder: PathBuf,
    region: OwnedFd,
    bell: OwnedFd,
    peer: ChannelEnd,
}

impl Plugged {
    fn new(node: &Node, vendor: &str) -> Self {
        let (ours, peer) = channel::pair(&Config::default()).expect("no test goes on without");
        let [region, ..] = ours.into_descriptors();
        let bell = sys::memfd::sealed("bell", 4096).expect("no test goes on without");
        let folder = node.folder().join("pci/devices/0000:00:1c.3/0000:05:00.0");
        fs::create_dir_all(&folder).expect("no test goes on without");
        for (name, text) in [("vendor", vendor), ("device", "0x1110\n"), ("enable", "0\n")] {
            fs::write(folder.join(name), text).expect("no test goes on without");
        }
        Self { folder, region, bell, peer }
    }

    /// The last that appears of a device.
    fn appear(&self) {
        for (name, memory) in [("resource0", &self.bell), ("resource2", &self.region)] {
            let link = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
            symlink(link, self.folder.join(name)).expect("no test goes on without");
        }
    }

    fn end(&self, side: u8) -> End {
        let bytes = rustix::fs::fstat(&self.region).expect("no test goes on without").st_size;
        End {
            channel: 7,
            device: "1c.3/00.0".into(),
            side,
            bytes: u64::try_from(bytes).expect("no test goes on without"),
        }
    }
}

fn connected(node: &mut Node) -> (u32, Vec<u8>) {
    let stream = node.opened(&Purpose::Control {});
    let Request::Connect { id, .. } = request(node, stream) else { panic!("another request") };
    (
        stream,
        serde_json::to_vec(&Reply::Connected { id, channel: 17, memory: false })
            .expect("no test goes on without"),
    )
}

fn find(node: &mut Node, wanted: &Message) {
    node.find(|heard| (*heard == Heard::Other(wanted.clone())).then_some(()));
}

fn polled(descriptor: impl AsFd, flags: PollFlags) -> PollFlags {
    let mut set = [PollFd::new(&descriptor, flags)];
    poll(&mut set, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).expect("no test goes on without");
    set[0].revents()
}

#[test]
fn an_end_waits_for_its_device_rings_hangs_up_and_is_released() {
    let mut node = guest();
    let plugged = Plugged::new(&node, "0x1af4\n");
    let asked = member(&node, |mut control| {
        let (channel, end) = control.connect_service("frames", "api", 0, soon()).unwrap();
        (channel, end)
    });
    let (stream, packet) = connected(&mut node);
    node.send_end(stream, plugged.end(0), &packet);
    // Meanwhile nothing else waits.
    find_pong(&mut node);
    plugged.appear();
    let (channel, end) = asked.join().unwrap();
    assert_eq!(channel, 17);
    assert_eq!(fs::read_to_string(plugged.folder.join("enable")).unwrap(), "1");
    let [_region, data, _room, _bell, life] = end.into_descriptors();
    node.say(&Message::Ring { channel: 7, vector: VECTOR_DATA });
    assert!(polled(&data, PollFlags::IN).contains(PollFlags::IN));
    node.say(&Message::Hangup { channel: 7 });
    assert!(polled(&life, PollFlags::IN).contains(PollFlags::HUP));
    // The last that has it in hand lets go.
    let map = sys::region::Region::map(&_region, 4096).unwrap();
    drop((_region, data, _room, _bell, life));
    find_pong(&mut node);
    drop(map);
    find(&mut node, &Message::Release { channel: 7 });
    drop(plugged.peer);
}

fn find_pong(node: &mut Node) {
    node.say(&Message::Ping([5; 8]));
    node.find(|heard| {
        assert!(!matches!(heard, Heard::Other(Message::Release { .. })), "released too early");
        (*heard == Heard::Other(Message::Pong([5; 8]))).then_some(())
    });
}

#[test]
fn a_member_that_dies_before_its_end_came_leaves_a_release() {
    let mut node = guest();
    let plugged = Plugged::new(&node, "0x1af4\n");
    let socket = connect(&node.socket());
    let question = b"{\"op\":\"connect\",\"id\":1,\"service\":\"a\",\"entrance\":\"api\"}";
    rustix::net::send(&socket, question, rustix::net::SendFlags::empty()).unwrap();
    let (stream, packet) = connected(&mut node);
    node.send_end(stream, plugged.end(1), &packet);
    drop(socket);
    find(&mut node, &Message::Release { channel: 7 });
    node.closed(stream);
}

#[test]
fn a_device_that_is_none_of_a_channel_is_refused_by_name() {
    let mut node = guest();
    let plugged = Plugged::new(&node, "0x8086\n");
    plugged.appear();
    let asked = member(&node, |mut control| control.connect_service("frames", "api", 0, soon()).unwrap_err());
    let (stream, packet) = connected(&mut node);
    node.send_end(stream, plugged.end(1), &packet);
    find(&mut node, &Message::Release { channel: 7 });
    let ControlError::Refused { errno, .. } = asked.join().unwrap() else { panic!("another error") };
    assert_eq!(errno, rustix::io::Errno::IO.raw_os_error());
}

/// A member that is an endpoint, or asks to be introduced to one: its stream.
fn asking(node: &mut Node, question: &[u8]) -> (OwnedFd, u32) {
    let socket = connect(&node.socket());
    rustix::net::send(&socket, question, rustix::net::SendFlags::empty()).expect("no test goes on without");
    let stream = node.opened(&Purpose::Control {});
    request(node, stream);
    (socket, stream)
}

fn peer() -> EndpointPeer {
    let address = EndpointAddress { slot: 3, generation: 1 };
    let rights = EndpointRights { send: true, ..EndpointRights::default() };
    EndpointPeer {
        address,
        name: "planner".into(),
        domain: "desk".into(),
        rights,
        continues: 0,
        backup: false,
    }
}

#[test]
fn endpoints_of_a_guest_get_their_ends_as_devices_and_a_device_that_fails_is_a_refusal() {
    let question = b"{\"op\":\"introduce\",\"id\":5,\"endpoint\":2,\"to\":{\"name\":\"planner\"}}";
    let asked = Reply::Introduced { id: 5, peer: peer(), channel: 17 };
    let told = Reply::Event(control::Event::Introduced { endpoint: 2, peer: peer(), channel: 17 });
    for packet in [asked.clone(), told] {
        let mut node = guest();
        let plugged = Plugged::new(&node, "0x1af4\n");
        let (socket, stream) = asking(&mut node, question);
        node.send_end(stream, plugged.end(1), &serde_json::to_vec(&packet).unwrap());
        plugged.appear();
        let mut bytes = vec![0; 4096];
        let (length, end) = sys::descriptors::receive_with_descriptors(&socket, &mut bytes, 8).unwrap();
        assert_eq!(serde_json::from_slice::<Reply>(&bytes[..length]).unwrap(), packet);
        assert_eq!(end.len(), ChannelEnd::DESCRIPTORS);
        drop(end);
        find(&mut node, &Message::Release { channel: 7 });
    }
    let mut node = guest();
    let plugged = Plugged::new(&node, "0x8086\n");
    plugged.appear();
    let (socket, stream) = asking(&mut node, question);
    node.send_end(stream, plugged.end(1), &serde_json::to_vec(&asked).unwrap());
    find(&mut node, &Message::Release { channel: 7 });
    let mut bytes = vec![0; 4096];
    let (length, _) = sys::descriptors::receive_with_descriptors(&socket, &mut bytes, 0).unwrap();
    let refused: Reply = serde_json::from_slice(&bytes[..length]).unwrap();
    assert!(matches!(refused, Reply::Refused { id: 5, .. }), "{refused:?}");
}

#[test]
fn an_end_for_a_member_that_is_gone_is_handed_back() {
    let mut node = guest();
    let plugged = Plugged::new(&node, "0x1af4\n");
    let socket = connect(&node.socket());
    let question = b"{\"op\":\"connect\",\"id\":1,\"service\":\"a\",\"entrance\":\"api\"}";
    rustix::net::send(&socket, question, rustix::net::SendFlags::empty()).unwrap();
    let (stream, packet) = connected(&mut node);
    drop(socket);
    // Its close is on the way; ours knows nothing of it yet.
    node.find(|heard| matches!(heard, Heard::Closed { stream: of, .. } if *of == stream).then_some(()));
    let end = plugged.end(0);
    for message in [Message::End { stream, end }, Message::Data { stream, bytes: packet }] {
        node.say(&message);
    }
    find(&mut node, &Message::Release { channel: 7 });
}

#[test]
fn a_member_that_does_not_read_keeps_nobody_waiting() {
    let mut node = guest();
    let deaf = connect(&node.socket());
    let stream = node.opened(&Purpose::Control {});
    while node.room(stream).is_some_and(|room| room > 8192) {
        node.send(stream, &[b'x'; 8192]);
    }
    let asked = member(&node, |mut control| control.about(soon()).unwrap());
    let other = node.opened(&Purpose::Control {});
    let Request::About { id } = request(&mut node, other) else { panic!("another request") };
    reply(&mut node, other, &Reply::About { id, about: serde_json::json!(2) });
    assert_eq!(asked.join().unwrap(), 2);
    find_pong(&mut node);
    drop(deaf);
    node.closed(stream);
}
