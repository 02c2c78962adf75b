//! rtnetlink(7): requests, dumps, and what comes back.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

pub(crate) const NLM_F_REQUEST: u16 = 0x1;
pub(crate) const NLM_F_ACK: u16 = 0x4;
/// The answer is for who asks; without it those of traffic control go to whoever listens, and
/// nobody else.
const NLM_F_ECHO: u16 = 0x8;
pub(crate) const NLM_F_REPLACE: u16 = 0x100;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Bytes of a message's header.
pub(crate) const HEADER_BYTES: usize = 16;
/// Bytes of one answer (the kernel's own size for those of a dump).
const ANSWER_BYTES: usize = 32_768;
/// Most answers of one dump that are read: more classes or filters than a link has.
const MAX_ANSWERS: usize = 4_096;
/// How long the kernel may take to answer: it answers at once.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A socket to the kernel, of the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self(socket))
    }

    /// Has something done.
    pub(crate) fn ask(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send(&message(kind, NLM_F_REQUEST | NLM_F_ACK | flags, body))?;
        let mut answer = vec![0_u8; ANSWER_BYTES];
        outcome(self.receive(&mut answer)?)
    }

    /// The body of the one message that answers.
    pub(crate) fn get(&self, kind: u16, body: &[u8]) -> io::Result<Vec<u8>> {
        self.send(&message(kind, NLM_F_REQUEST | NLM_F_ECHO, body))?;
        let mut answer = vec![0_u8; ANSWER_BYTES];
        let answer = self.receive(&mut answer)?;
        match next_message(answer) {
            Some((NLMSG_ERROR, ..)) => outcome(answer).map(|()| Vec::new()),
            Some((_, body, _)) => Ok(body.to_vec()),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The bodies of all messages of one kind that a dump has.
    pub(crate) fn dump(&self, kind: u16, body: &[u8], wanted: u16) -> io::Result<Vec<Vec<u8>>> {
        self.send(&message(kind, NLM_F_REQUEST | NLM_F_DUMP, body))?;
        let mut found = Vec::new();
        let mut answer = vec![0_u8; ANSWER_BYTES];
        for _ in 0..MAX_ANSWERS {
            let mut rest = self.receive(&mut answer)?;
            while let Some((kind, body, next)) = next_message(rest) {
                match kind {
                    NLMSG_DONE => return Ok(found),
                    NLMSG_ERROR => return outcome(rest).map(|()| found),
                    kind if kind == wanted => found.push(body.to_vec()),
                    _ => {}
                }
                rest = next;
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel lists things without end"))
    }

    fn send(&self, request: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.0, request, SendFlags::empty())?;
        Ok(())
    }

    fn receive<'a>(&self, answer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let (_, length) = rustix::net::recv(&self.0, &mut *answer, RecvFlags::empty())?;
        Ok(answer.get(..length).unwrap_or_default())
    }
}

pub(crate) fn attribute(body: &mut Vec<u8>, kind: u16, bytes: &[u8]) {
    let length = u16::try_from(4 + bytes.len()).unwrap_or(u16::MAX);
    body.extend_from_slice(&length.to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
}

pub(crate) fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(HEADER_BYTES + body.len());
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(body);
    message
}

/// The kernel's answer: an `NLMSG_ERROR` with 0 is success.
pub(crate) fn outcome(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).and_then(|b| b.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(16..20).and_then(|b| b.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, code) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The first message of an answer: its kind, its body, and what follows it.
fn next_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(four(bytes, 0)?).ok()?;
    let kind = two(bytes, 4)?;
    let body = bytes.get(HEADER_BYTES..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes of a body.
pub(crate) fn attributes(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut found = Vec::new();
    while let (Some(length), Some(kind)) = (two(bytes, 0), two(bytes, 2)) {
        let length = usize::from(length);
        let Some(value) = bytes.get(4..length) else { break };
        // The upper bits say that there are attributes inside.
        found.push((kind & 0x3fff, value));
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

/// An attribute that is text.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

pub(crate) fn two(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn four(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(crate) fn eight(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_success_an_errno_or_nonsense() {
        let answer = |kind: u16, code: i32| {
            let mut bytes = vec![0; 36];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes[16..20].copy_from_slice(&code.to_ne_bytes());
            outcome(&bytes)
        };
        assert!(answer(NLMSG_ERROR, 0).is_ok());
        assert_eq!(answer(NLMSG_ERROR, -1).unwrap_err().raw_os_error(), Some(1));
        assert!(answer(3, 0).is_err() && outcome(&[]).is_err());
    }

    #[test]
    fn nonsense_from_the_kernel_is_no_message_and_no_attribute() {
        assert!(next_message(&[]).is_none() && next_message(&[4, 0, 0, 0, 1, 0]).is_none());
        assert!(next_message(&[0xff; 16]).is_none());
        assert_eq!(attributes(&[0, 0, 1, 0]), []);
        assert_eq!(attributes(&[3, 0, 1, 0, 9]), []);
        assert_eq!(attributes(&[5, 0, 1, 0x80, 9]), [(1, &[9][..])]);
        assert_eq!(text(b"htb\0rest"), "htb");
    }
}
