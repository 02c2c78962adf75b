//! Queries that leave together: those of one request, A and AAAA, from one socket with one system
//! call.

use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, send, sendmmsg};
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use super::socket::MAX_WAITERS;

/// A query that is held.
#[derive(Debug)]
struct Held {
    token: u32,
    lookup: u64,
    bytes: Range<usize>,
}

/// Queries that are held back. Keeps its memory, so that a request allocates none.
#[derive(Debug, Default)]
pub struct Outbox {
    open: bool,
    held: Vec<Held>,
    bytes: Vec<u8>,
}

impl Outbox {
    /// Holds queries from now on.
    pub fn open(&mut self) {
        self.open = true;
    }

    /// The socket that all held queries are for, if there are any and it is one.
    pub fn only_token(&self) -> Option<u32> {
        let first = self.held.first()?.token;
        self.held.iter().all(|held| held.token == first).then_some(first)
    }

    /// Takes a query; false: none are held now.
    pub fn hold(&mut self, token: u32, lookup: u64, query: &[u8]) -> bool {
        if self.open {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(query);
            self.held.push(Held { token, lookup, bytes: start..self.bytes.len() });
        }
        self.open
    }

    /// Drops what is held for a socket that is no more.
    pub fn forget(&mut self, token: u32) {
        self.held.retain(|held| held.token != token);
    }

    /// Sends what is held, and holds no more. `socket` gives the descriptor of a token. How it
    /// went, for each look-up.
    pub fn send<'a>(
        &mut self,
        socket: impl Fn(u32) -> Option<BorrowedFd<'a>>,
    ) -> Vec<(u64, Result<(), Errno>)> {
        self.open = false;
        let mut sent = Vec::with_capacity(self.held.len());
        for group in self.held.chunk_by(|a, b| a.token == b.token) {
            let descriptor = group.first().and_then(|first| socket(first.token));
            let query = |held: &Held| self.bytes.get(held.bytes.clone()).unwrap_or_default();
            match (descriptor, group) {
                (None, group) => sent.extend(group.iter().map(|held| (held.lookup, Err(Errno::BADF)))),
                (Some(descriptor), [one, two]) => {
                    let results = send_two(descriptor, [query(one), query(two)]);
                    sent.extend([one.lookup, two.lookup].into_iter().zip(results));
                }
                (Some(descriptor), group) => {
                    sent.extend(group.iter().map(|held| (held.lookup, send_one(descriptor, query(held)))));
                }
            }
        }
        self.held.clear();
        self.bytes.clear();
        sent
    }
}

fn send_one(descriptor: BorrowedFd<'_>, query: &[u8]) -> Result<(), Errno> {
    send(descriptor, query, SendFlags::NOSIGNAL).map(drop)
}

/// Two queries with one call. The kernel says how many went, and of a failure only if it is the
/// first's; the rest go one by one, so that each has an error of its own.
fn send_two(descriptor: BorrowedFd<'_>, queries: [&[u8]; MAX_WAITERS]) -> [Result<(), Errno>; MAX_WAITERS] {
    let [one, two] = queries;
    let (parts_one, parts_two) = ([IoSlice::new(one)], [IoSlice::new(two)]);
    let mut no_control = [SendAncillaryBuffer::default(), SendAncillaryBuffer::default()];
    let [control_one, control_two] = &mut no_control;
    let mut messages = [MMsgHdr::new(&parts_one, control_one), MMsgHdr::new(&parts_two, control_two)];
    match sendmmsg(descriptor, &mut messages, SendFlags::NOSIGNAL) {
        Ok(2) => [Ok(()), Ok(())],
        Ok(1) => [Ok(()), send_one(descriptor, two)],
        Ok(_) => [send_one(descriptor, one), send_one(descriptor, two)],
        Err(errno) => [Err(errno), send_one(descriptor, two)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    fn pair() -> (UdpSocket, UdpSocket) {
        let (ours, theirs) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        ours.connect(theirs.local_addr().unwrap()).unwrap();
        (ours, theirs)
    }

    fn heard(socket: &UdpSocket) -> Vec<u8> {
        let mut packet = [0; 100];
        let came = socket.recv(&mut packet).unwrap();
        packet[..came].to_vec()
    }

    #[test]
    fn what_is_held_leaves_in_order_and_each_from_its_socket() {
        let ((a, a_end), (b, b_end)) = (pair(), pair());
        let mut outbox = Outbox::default();
        assert!(!outbox.hold(1, 10, b"at once"), "nothing is held before it is opened");
        outbox.open();
        assert_eq!(outbox.only_token(), None);
        for (token, lookup, query) in [(1, 10, &b"one"[..]), (1, 11, b"two"), (2, 12, b"three")] {
            assert!(outbox.hold(token, lookup, query));
        }
        assert_eq!(outbox.only_token(), None, "two sockets");
        let sent = outbox.send(|token| Some(if token == 1 { a.as_fd() } else { b.as_fd() }));
        assert_eq!(sent, [(10, Ok(())), (11, Ok(())), (12, Ok(()))]);
        assert_eq!([heard(&a_end), heard(&a_end), heard(&b_end)], [&b"one"[..], b"two", b"three"]);
        assert!(!outbox.hold(1, 13, b"at once"), "it is closed again");
    }

    #[test]
    fn each_look_up_has_an_error_of_its_own() {
        let (ours, theirs) = pair();
        drop(theirs);
        // Nobody listens: the refusal of the first packet is the error of whatever is sent next,
        // and only of that.
        ours.send(b"x").unwrap();
        let mut outbox = Outbox::default();
        outbox.open();
        outbox.hold(1, 10, b"one");
        outbox.hold(1, 11, b"two");
        assert_eq!(outbox.only_token(), Some(1));
        let sent = outbox.send(|_| Some(ours.as_fd()));
        assert_eq!(sent, [(10, Err(Errno::CONNREFUSED)), (11, Ok(()))]);
        outbox.open();
        outbox.hold(1, 10, b"one");
        outbox.hold(1, 11, b"two");
        outbox.forget(1);
        assert!(outbox.send(|_| None).is_empty());
        outbox.open();
        outbox.hold(7, 10, b"one");
        assert_eq!(outbox.send(|_| None), [(10, Err(Errno::BADF))]);
    }
}
