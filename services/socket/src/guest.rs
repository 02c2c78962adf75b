//! Where the domain is a machine: the relay runs in the guest, where the daemon has no process, no
//! descriptor and no folder.
//!
//! The daemon executes a *speaker* there, as it executes any command in a guest. It starts the
//! relay or finds the one that runs, and is the daemon's word to it for as long as both live. The
//! relay outlives it, as it outlives daemons elsewhere.

use crate::OrderError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::Timespec;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use wire::socket::{Answer, Ask, Order, PACKET_BYTES_MAX};

/// Name of the relay's socket, beside the domain's control socket. Only the guest's root may
/// connect there.
const SOCKET: &str = "relay.sock";
/// Its name before the relay has its order.
const NEW_SOCKET: &str = "relay.new";
/// The mask with which nobody but its owner may connect to a socket.
const PRIVATE_UMASK: u32 = 0o177;
/// Speakers that may wait at the socket: the daemon has one, and one more for each question.
const BACKLOG: i32 = 16;
/// How long a relay that was told to end may take.
const END_TIMEOUT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Where the relay's own log goes: to the guest's console, and so to the log of its domain.
const CONSOLE: &str = "/dev/console";

/// Why a speaker can't do what the daemon says.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// Its standard input or output failed.
    #[error("the daemon that has this executed is lost")]
    Daemon(#[source] io::Error),
    /// It was not executed by a daemon.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The relay can't be started, asked or ended.
    #[error("can't {what}")]
    Relay {
        /// The operation that failed.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// There is no relay to be asked.
    #[error("no relay runs in this guest")]
    Nobody,
    /// The relay has ended.
    #[error("the relay has ended")]
    Ended,
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> GuestError {
    move |source| GuestError::Relay { what, source: source.into() }
}

/// Does what the one line at the standard input says: an [`Ask`] in JSON; the answer goes to the
/// standard output. After [`Ask::Start`] it stays until its standard input or the relay ends.
/// `folder`: where the guest's control socket is.
///
/// # Errors
/// [`GuestError`].
pub fn run_in_guest(folder: &Path) -> Result<(), GuestError> {
    let ask = read_ask()?;
    let at = folder.join(SOCKET);
    let running = connect(&at)?;
    match ask {
        Ask::Start(order) => {
            let relay = start(folder, running, order)?;
            stay(&relay)
        }
        Ask::End => running.map_or(Ok(()), |relay| end(&relay)),
        Ask::Order | Ask::State => tell(&question(&running.ok_or(GuestError::Nobody)?, &ask)?),
        Ask::StartInside(_) => Err(not_understood("the order is not for a guest".into())),
    }
}

fn not_understood(why: String) -> GuestError {
    OrderError::NotUnderstood(why).into()
}

fn read_ask() -> Result<Ask, GuestError> {
    let most = u64::try_from(PACKET_BYTES_MAX).unwrap_or(u64::MAX);
    let mut line = Vec::new();
    // Whoever stays looks at the descriptor itself: nothing but the end follows this line.
    let stdin = io::stdin().lock();
    stdin.take(most).read_until(b'\n', &mut line).map_err(GuestError::Daemon)?;
    serde_json::from_slice(&line).map_err(|error| not_understood(error.to_string()))
}

fn tell(answer: &Answer) -> Result<(), GuestError> {
    let mut line = serde_json::to_vec(answer).map_err(|e| GuestError::Daemon(e.into()))?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line).and_then(|()| stdout.flush()).map_err(GuestError::Daemon)
}

/// The relay with this order: the one that runs, if that is its order, else another one in its
/// place.
fn start(folder: &Path, running: Option<OwnedFd>, order: Order) -> Result<OwnedFd, GuestError> {
    if let Some(relay) = running {
        if question(&relay, &Ask::Order)? == Answer::Order(order.clone()) {
            tell(&Answer::Started)?;
            return Ok(relay);
        }
        end(&relay)?;
    }
    // Nobody may ask it before it has its order, so it is where it is looked for only after that.
    let (at, place) = (folder.join(NEW_SOCKET), folder.join(SOCKET));
    let listener = listen(&at)?;
    let name = format!("{}/{}", order.dc, order.domain);
    spawn(&name, listener)?;
    let relay = connect(&at)?.ok_or(GuestError::Ended)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(failed("open the folder of ours"))?;
    let packet = serde_json::to_vec(&Ask::StartInside(order)).map_err(failed("write the order"))?;
    sys::descriptors::send_with_descriptors(&relay, &packet, &[rustix::fd::AsFd::as_fd(&folder)])
        .map_err(failed("tell the relay what to do"))?;
    rustix::fs::rename(&at, &place).map_err(failed("put the relay's socket in its place"))?;
    let answer = answer(&relay)?;
    tell(&answer)?;
    if matches!(answer, Answer::Started) { Ok(relay) } else { Err(GuestError::Ended) }
}

/// Starts the relay in a process group of its own: it does not end with whoever started it.
fn spawn(name: &str, listener: OwnedFd) -> Result<(), GuestError> {
    let program = std::env::current_exe().map_err(failed("find the program"))?;
    let console = std::fs::File::options().append(true).open(CONSOLE);
    let log = console.map_or_else(|_| Stdio::null(), Stdio::from);
    #[allow(clippy::zombie_processes)] // whoever starts it ends before it does, and the agent reaps it
    let child = Command::new(program)
        .args(["relay", name])
        .env_clear()
        .stdin(Stdio::from(listener))
        .stdout(Stdio::null())
        .stderr(log)
        .current_dir("/")
        .process_group(0)
        .spawn()
        .map_err(failed("start the relay"))?;
    drop(child);
    Ok(())
}

/// Waits until the daemon or the relay is gone.
fn stay(relay: &OwnedFd) -> Result<(), GuestError> {
    let stdin = io::stdin();
    loop {
        let mut watched = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(relay, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failed("wait")(errno)),
        }
        let [daemon, relay] = watched.map(|it| !it.revents().is_empty());
        if relay {
            // It says nothing unasked.
            return Err(GuestError::Ended);
        }
        if daemon && rustix::io::read(&stdin, &mut [0; 64]).unwrap_or(0) == 0 {
            return Ok(());
        }
    }
}

/// Has a relay end, and waits for that.
fn end(relay: &OwnedFd) -> Result<(), GuestError> {
    say(relay, &Ask::End)?;
    let mut watched = [PollFd::new(relay, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(&mut watched, Some(&END_TIMEOUT))) {
        Ok(0) => Err(failed("end the relay that runs")(Errno::TIMEDOUT)),
        Ok(_) => Ok(()),
        Err(errno) => Err(failed("end the relay that runs")(errno)),
    }
}

fn question(relay: &OwnedFd, ask: &Ask) -> Result<Answer, GuestError> {
    say(relay, ask)?;
    answer(relay)
}

fn say(relay: &OwnedFd, ask: &Ask) -> Result<(), GuestError> {
    let packet = serde_json::to_vec(ask).map_err(failed("write a question"))?;
    sys::descriptors::send_with_descriptors(relay, &packet, &[]).map_err(failed("ask the relay"))
}

fn answer(relay: &OwnedFd) -> Result<Answer, GuestError> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let (length, _) = sys::descriptors::receive_with_descriptors(relay, &mut bytes, 0)
        .map_err(failed("hear the relay's answer"))?;
    if length == 0 {
        return Err(GuestError::Ended);
    }
    serde_json::from_slice(bytes.get(..length).unwrap_or_default()).map_err(failed("read the relay's answer"))
}

/// A connection to the relay that runs; `None`: none does.
fn connect(at: &Path) -> Result<Option<OwnedFd>, GuestError> {
    let socket = socket().map_err(failed("make a socket"))?;
    let address = SocketAddrUnix::new(at).map_err(failed("name the relay's socket"))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok(Some(socket)),
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(errno) => Err(failed("connect to the relay")(errno)),
    }
}

fn listen(at: &Path) -> Result<OwnedFd, GuestError> {
    match rustix::fs::unlink(at) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("remove the socket of the last relay")(errno)),
    }
    let socket = socket().map_err(failed("make a socket"))?;
    let address = SocketAddrUnix::new(at).map_err(failed("name the relay's socket"))?;
    let before = rustix::process::umask(Mode::from_raw_mode(PRIVATE_UMASK));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(before);
    bound.and_then(|()| rustix::net::listen(&socket, BACKLOG)).map_err(failed("listen for the relay"))?;
    Ok(socket)
}

fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}
