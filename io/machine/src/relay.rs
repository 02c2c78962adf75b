//! Packets between a socket of the node and a stream of the guest, each way, with their boundaries.

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::SendFlags;
use session::packet::MAX_PACKET_DESCRIPTORS;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::control::{Reply, Request};

/// The party at the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The daemon, for a program of the guest.
    Member,
    /// The daemon, for the guest's frontend or its entrances.
    Frontend,
    /// Somebody who has something executed in the guest.
    Exec,
}

/// The outcome of a read at the socket.
#[derive(Debug)]
pub(crate) enum Took {
    /// A packet with its descriptors.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Nothing now; or a packet that is none, and was dropped.
    Nothing,
    /// The end.
    Ended,
}

/// One socket and its stream.
#[derive(Debug)]
pub(crate) struct Relay {
    pub kind: Kind,
    /// None as long as a member waits for the daemon.
    socket: Option<OwnedFd>,
    /// The bytes of the guest that the socket has not taken. Bounded by the stream's window.
    waiting: VecDeque<Vec<u8>>,
    /// Whether the guest has closed its side: what waits still goes out.
    guest_closed: bool,
    /// Whether a packet is on hold: those behind it wait.
    on_hold: bool,
}

impl Relay {
    /// Over a connected, non-blocking `SOCK_SEQPACKET` socket.
    pub fn new(kind: Kind, socket: OwnedFd) -> Self {
        Self { socket: Some(socket), ..Self::awaiting(kind) }
    }

    /// For a socket that will come.
    pub fn awaiting(kind: Kind) -> Self {
        Self { kind, socket: None, waiting: VecDeque::new(), guest_closed: false, on_hold: false }
    }

    /// The socket has come.
    pub fn connected(&mut self, socket: OwnedFd) {
        self.socket = Some(socket);
    }

    /// Whether it waits for a socket.
    pub fn is_awaiting(&self) -> bool {
        self.socket.is_none()
    }

    /// Holds packets back, or no longer.
    pub fn hold(&mut self, hold: bool) {
        self.on_hold = hold;
    }

    /// Whether something of the guest has not been taken yet.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The descriptor to poll. None while there is nothing to do: a socket whose other side is gone
    /// is always ready.
    pub fn interest(&self, has_room: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, has_room && !self.on_hold && !self.guest_closed);
        wanted.set(PollFlags::OUT, !self.waiting.is_empty());
        self.socket.as_ref().filter(|_| !wanted.is_empty()).map(|socket| (socket.as_fd(), wanted))
    }

    /// Takes a packet, if one may be taken now. `space` holds the longest.
    pub fn take(&mut self, space: &mut [u8]) -> Took {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.on_hold && !self.guest_closed) else {
            return Took::Nothing;
        };
        match sys::descriptors::receive_with_descriptors(socket, space, MAX_PACKET_DESCRIPTORS) {
            Ok((0, _)) => Took::Ended,
            Ok((length, descriptors)) => {
                Took::Packet(space.get(..length).unwrap_or_default().to_vec(), descriptors)
            }
            // What is longer than packets are is gone, and so is what it brought.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::InvalidData) => {
                Took::Nothing
            }
            Err(_) => Took::Ended,
        }
    }

    /// A message of the guest.
    pub fn give(&mut self, message: Vec<u8>) {
        self.waiting.push_back(message);
    }

    /// The guest has closed its side.
    pub fn close(&mut self) {
        self.guest_closed = true;
    }

    /// Writes what the socket takes: the lengths of the messages that are through, and whether the
    /// relay is over.
    pub fn flush(&mut self) -> (Vec<usize>, bool) {
        let mut through = Vec::new();
        while let (Some(message), Some(socket)) = (self.waiting.front(), &self.socket) {
            // An empty packet would look like the end.
            if !message.is_empty() {
                match rustix::io::retry_on_intr(|| rustix::net::send(socket, message, SendFlags::NOSIGNAL)) {
                    Ok(_) => {}
                    Err(Errno::AGAIN) => return (through, false),
                    // Longer than this socket can ever take: as lost as at any socket.
                    Err(Errno::MSGSIZE) => {}
                    Err(_) => return (through, true),
                }
            }
            through.push(message.len());
            self.waiting.pop_front();
        }
        let over = self.guest_closed && (self.waiting.is_empty() || self.socket.is_none());
        (through, over)
    }
}

/// Whether a guest's packet says what only the machine process may say, and its number: who is at a
/// control socket is known by its process, and this process speaks for the guest's programs as
/// well.
pub(crate) fn is_the_machines(packet: &[u8]) -> Option<u64> {
    match serde_json::from_slice(packet) {
        Ok(Request::Machine { id, .. }) => Some(id),
        Ok(Request::Guest { .. }) => Some(0),
        _ => None,
    }
}

/// The refusal for a member in the place of a packet whose channel can't be: nothing, if it did not
/// ask for one.
pub(crate) fn refused_in_place_of(packet: &[u8], errno: Errno, message: &str) -> Option<Vec<u8>> {
    match serde_json::from_slice(packet) {
        Ok(Reply::Connected { id, .. } | Reply::Introduced { id, .. }) => Some(refused(id, errno, message)),
        _ => None,
    }
}

/// A refusal, as the daemon would say it.
pub(crate) fn refused(id: u64, errno: Errno, message: &str) -> Vec<u8> {
    let refused = Reply::Refused { id, errno: errno.raw_os_error(), message: message.to_owned() };
    // Numbers and texts: there is no way in which they can't be written.
    serde_json::to_vec(&refused).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay() -> (Relay, OwnedFd) {
        let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        (Relay::new(Kind::Member, ours), theirs)
    }

    fn wanted(relay: &Relay, has_room: bool) -> Option<PollFlags> {
        relay.interest(has_room).map(|(_, wanted)| wanted)
    }

    #[test]
    fn packets_keep_their_boundaries_and_descriptors() {
        let (mut relay, member) = relay();
        let mut space = [0; 64];
        assert!(matches!(relay.take(&mut space), Took::Nothing));
        sys::descriptors::send_with_descriptors(&member, b"one", &[member.as_fd()]).unwrap();
        let Took::Packet(packet, descriptors) = relay.take(&mut space) else { panic!("a packet") };
        assert_eq!((packet.as_slice(), descriptors.len()), (&b"one"[..], 1));
        [b"a".to_vec(), Vec::new(), b"b".to_vec()].into_iter().for_each(|message| relay.give(message));
        assert_eq!(wanted(&relay, false), Some(PollFlags::OUT));
        assert_eq!(relay.flush(), (vec![1, 0, 1], false));
        for expected in [b"a", b"b"] {
            let (length, _) = sys::descriptors::receive_with_descriptors(&member, &mut space, 0).unwrap();
            assert_eq!(&space[..length], expected);
        }
        drop((member, descriptors));
        assert!(matches!(relay.take(&mut space), Took::Ended));
    }

    #[test]
    fn nothing_is_polled_in_vain_and_nothing_is_taken_out_of_turn() {
        let (mut relay, member) = relay();
        assert_eq!(wanted(&relay, false), None);
        assert_eq!(wanted(&relay, true), Some(PollFlags::IN));
        relay.hold(true);
        sys::descriptors::send_with_descriptors(&member, b"later", &[]).unwrap();
        assert_eq!(wanted(&relay, true), None);
        assert!(matches!(relay.take(&mut [0; 64]), Took::Nothing));
        relay.hold(false);
        assert!(matches!(relay.take(&mut [0; 64]), Took::Packet(..)));
        relay.close();
        assert_eq!(wanted(&relay, true), None);
        assert_eq!(relay.flush(), (vec![], true));
    }

    #[test]
    fn what_waits_for_the_daemon_goes_out_when_it_is_there() {
        let mut relay = Relay::awaiting(Kind::Member);
        relay.give(b"early".to_vec());
        assert_eq!((wanted(&relay, true), relay.flush()), (None, (vec![], false)));
        let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
        relay.connected(ours);
        assert_eq!(relay.flush(), (vec![5], false));
        drop(theirs);
        relay.give(b"late".to_vec());
        assert_eq!(relay.flush(), (vec![], true));
        let mut gone = Relay::awaiting(Kind::Member);
        gone.give(b"never".to_vec());
        gone.close();
        assert!(gone.flush().1, "its member has left before the daemon came");
    }

    // The daemon knows the machine by its process, which sends the guest's packets as well.
    #[test]
    fn a_guest_can_not_speak_as_the_machine() {
        assert_eq!(is_the_machines(br#"{"op":"machine","id":4,"accel":"kvm","qemu":"9"}"#), Some(4));
        assert_eq!(is_the_machines(br#"{"op":"guest","state":"started"}"#), Some(0));
        assert_eq!(is_the_machines(br#"{"op":"services","id":1}"#), None);
        let connected = br#"{"reply":"connected","id":3,"channel":9}"#;
        let told = refused_in_place_of(connected, Errno::MFILE, "full").unwrap();
        let told: Reply = serde_json::from_slice(&told).unwrap();
        let refused = Reply::Refused { id: 3, errno: Errno::MFILE.raw_os_error(), message: "full".into() };
        assert_eq!(told, refused);
        let introduced = br#"{"reply":"introduced","id":4,"peer":{"address":{"slot":1,"generation":1},"domain":"desk","rights":{}},"channel":9}"#;
        let told = refused_in_place_of(introduced, Errno::MFILE, "full").unwrap();
        assert!(matches!(serde_json::from_slice(&told).unwrap(), Reply::Refused { id: 4, .. }));
        // Who did not ask is told nothing: the other end hears that nobody is here.
        let introduced = br#"{"reply":"event","event":"introduced","endpoint":2,"peer":{"address":{"slot":1,"generation":1},"domain":"desk","rights":{}},"channel":9}"#;
        assert_eq!(refused_in_place_of(introduced, Errno::MFILE, "full"), None);
        let attach = br#"{"reply":"event","event":"services","services":[]}"#;
        assert_eq!(refused_in_place_of(attach, Errno::MFILE, "full"), None);
    }
}
