//! The socket at which the node asks something of the machine: to execute something in the guest.

use crate::order::SOCKET_FILE;
use crate::ports::CardOrder;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Deserialize;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use wire::guest::{ExecEnd, ExecOptions, exec};

/// Most askers that have not said yet what they want.
const MAX_ASKERS: usize = 16;
/// How long an asker may take to say what he wants, in ms.
const TIMEOUT_MS: u64 = 10_000;
/// Connections that the kernel keeps for us while we look elsewhere.
const BACKLOG: i32 = 16;
/// The exit code of `tombolo exec` where nothing could be tried.
const CODE_NOT_TRIED: i32 = 125;

/// A request.
#[derive(Debug)]
pub(crate) enum Ask {
    /// To execute something, the socket being its streams from now on.
    Exec(OwnedFd, ExecOptions),
    /// To plug a network card in, with this tap.
    Card(OwnedFd, CardOrder, OwnedFd),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CardAsk {
    network_card: CardOrder,
}

/// The socket, and who has come and not spoken.
#[derive(Debug)]
pub(crate) struct Asks {
    listener: OwnedFd,
    askers: Vec<(OwnedFd, u64)>,
}

impl Asks {
    /// Listens in the machine's directory.
    pub fn listen(directory: &Path) -> io::Result<Self> {
        let path = directory.join(SOCKET_FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
        rustix::fs::chmod(&path, Mode::RUSR | Mode::WUSR)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Self { listener, askers: Vec::new() })
    }

    /// The descriptors to poll for reading: the socket itself, unless enough are there, and those
    /// that have come.
    pub fn interest(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = (self.askers.len() < MAX_ASKERS).then(|| self.listener.as_fd());
        listener.into_iter().chain(self.askers.iter().map(|(socket, _)| socket.as_fd()))
    }

    /// When the first of them has been waited for long enough.
    pub fn deadline(&self) -> Option<u64> {
        self.askers.iter().map(|(_, since_ms)| since_ms + TIMEOUT_MS).min()
    }

    /// Takes in who has come and what they ask. `space` holds the longest packet.
    pub fn ready(&mut self, space: &mut [u8], now_ms: u64) -> Vec<Ask> {
        while self.askers.len() < MAX_ASKERS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => self.askers.push((socket, now_ms)),
                Err(Errno::INTR) => {}
                // None now; or one that has left again.
                Err(_) => break,
            }
        }
        let mut asks = Vec::new();
        for (socket, since_ms) in std::mem::take(&mut self.askers) {
            match sys::descriptors::receive_with_descriptors(&socket, space, 1) {
                Ok((0, _)) => {}
                Ok((length, descriptors)) => {
                    let said = space.get(..length).unwrap_or_default();
                    asks.extend(understand(socket, said, descriptors));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if now_ms < since_ms + TIMEOUT_MS {
                        self.askers.push((socket, since_ms));
                    }
                }
                Err(_) => {}
            }
        }
        asks
    }
}

fn understand(socket: OwnedFd, said: &[u8], mut descriptors: Vec<OwnedFd>) -> Option<Ask> {
    if let Ok(CardAsk { network_card }) = serde_json::from_slice(said) {
        let fault = network_card.fault();
        return match (fault, descriptors.pop()) {
            (None, Some(tap)) => Some(Ask::Card(socket, network_card, tap)),
            (fault, _) => {
                let why = fault.unwrap_or_else(|| "a network card needs the descriptor of a tap".to_owned());
                answer_card(&socket, Err(why));
                None
            }
        };
    }
    match serde_json::from_slice(said) {
        Ok(options) => Some(Ask::Exec(socket, options)),
        Err(error) => {
            refuse_exec(&socket, &format!("the machine does not understand what is to be executed: {error}"));
            None
        }
    }
}

/// Tells an asker that nothing was executed, and why.
pub(crate) fn refuse_exec(socket: &OwnedFd, why: &str) {
    let end = ExecEnd::Failed { error: why.to_owned(), code: CODE_NOT_TRIED };
    let mut packet = vec![exec::ENDED];
    packet.extend(serde_json::to_vec(&end).unwrap_or_default());
    tell(socket, &packet);
}

/// Tells an asker what has become of his network card.
pub(crate) fn answer_card(socket: &OwnedFd, result: Result<(), String>) {
    let packet = serde_json::json!({ "error": result.err() }).to_string();
    tell(socket, packet.as_bytes());
}

/// The first packet on a connection, and the last: there is room for it, or nobody who reads.
fn tell(socket: &OwnedFd, packet: &[u8]) {
    let _told = rustix::net::send(socket, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::connect;

    fn ask(
        asks: &mut Asks,
        directory: &Path,
        packet: &str,
        descriptors: &[BorrowedFd<'_>],
    ) -> (OwnedFd, Vec<Ask>) {
        let asker = connect(&directory.join(SOCKET_FILE)).unwrap();
        sys::descriptors::send_with_descriptors(&asker, packet.as_bytes(), descriptors).unwrap();
        let asked = asks.ready(&mut [0; 4096], 0);
        (asker, asked)
    }

    fn told(asker: &OwnedFd) -> String {
        let mut space = [0; 4096];
        let (length, _) = sys::descriptors::receive_with_descriptors(asker, &mut space, 0).unwrap();
        String::from_utf8_lossy(&space[..length]).into_owned()
    }

    #[test]
    fn what_is_asked_is_understood_or_refused_with_words() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        let mut asks = Asks::listen(here).unwrap();
        let exec = r#"{"tty":false,"interactive":true,"environment":[],"user":null,"workdir":null,"command":["id"]}"#;
        let (_asker, asked) = ask(&mut asks, here, exec, &[]);
        let [Ask::Exec(_, options)] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!(options.command, ["id"]);
        let card = r#"{"network_card":{"mac":"52:54:00:00:00:01"}}"#;
        let (spare, _other) = sys::descriptors::socket_pair().unwrap();
        let (_asker, asked) = ask(&mut asks, here, card, &[spare.as_fd()]);
        assert!(matches!(asked.as_slice(), [Ask::Card(..)]), "{asked:?}");
        let (asker, asked) = ask(&mut asks, here, card, &[]);
        assert!(asked.is_empty() && told(&asker).contains("needs the descriptor"));
        let (asker, asked) = ask(&mut asks, here, "{\"command\":1}", &[]);
        assert!(asked.is_empty());
        let told = told(&asker);
        assert!(told.starts_with('\u{5}') && told.contains("\"code\":125"), "{told}");
    }

    #[test]
    fn who_says_nothing_is_not_waited_for_forever() {
        let directory = tempfile::tempdir().unwrap();
        let mut asks = Asks::listen(directory.path()).unwrap();
        let silent: Vec<OwnedFd> =
            (0..MAX_ASKERS).map(|_| connect(&directory.path().join(SOCKET_FILE)).unwrap()).collect();
        assert!(asks.ready(&mut [0; 64], 5).is_empty());
        assert_eq!((asks.interest().count(), asks.deadline()), (MAX_ASKERS, Some(5 + TIMEOUT_MS)));
        asks.ready(&mut [0; 64], 5 + TIMEOUT_MS);
        assert_eq!((asks.interest().count(), asks.deadline()), (1, None));
        drop(silent);
    }
}
