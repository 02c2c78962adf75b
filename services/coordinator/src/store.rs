//! The way to the daemon, which keeps the state: a thread that asks one thing at a time, and asks
//! again until it has an answer.

use rustix::net::{RecvFlags, SendFlags};
use session::Control;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use sys::eventfd::Eventfd;
use wire::coordination::{Ask, MAX_STATE_PACKET_BYTES, Tell};

/// How long the daemon may take to make a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the same is asked again: etcd chooses a leader within a second.
const PAUSE: Duration = Duration::from_millis(200);
/// At most so often it is logged that the state is out of reach.
const REMARK: Duration = Duration::from_secs(30);

/// A record as it is kept: its key (empty: the head's), the registry's revision, what it holds.
pub(crate) type Record = (String, u64, Vec<u8>);

/// The store's answer to an ask.
#[derive(Debug)]
pub(crate) enum Heard {
    /// All records.
    Loaded(Vec<Record>),
    /// The head has this revision.
    Committed(u64),
    /// Another server writes.
    Superseded,
    /// It will never be done, and why.
    Refused(String),
}

/// Where the state is kept. One thing is asked at a time.
pub(crate) trait Store {
    /// Readable when [`Store::heard`] has something.
    fn descriptor(&self) -> BorrowedFd<'_>;
    /// Asks. Never waits.
    fn ask(&mut self, ask: Ask);
    /// Returns the next answer, if one is there.
    fn heard(&mut self) -> Option<Heard>;
}

/// The node's daemon.
pub(crate) struct Daemon {
    asks: Sender<Ask>,
    shared: Arc<Shared>,
}

struct Shared {
    heard: Mutex<VecDeque<Heard>>,
    ready: Eventfd,
}

impl Daemon {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread, or no descriptor.
    pub(crate) fn start(control: &Path, service: &str) -> io::Result<Self> {
        let shared = Arc::new(Shared { heard: Mutex::default(), ready: Eventfd::new()? });
        let (asks, asked) = channel();
        let way =
            Way { control: control.to_owned(), service: service.to_owned(), socket: None, remarked: None };
        let tell = Arc::clone(&shared);
        std::thread::Builder::new().name("state".into()).spawn(move || way.run(&asked, &tell))?;
        Ok(Self { asks, shared })
    }
}

impl Store for Daemon {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.ready.as_fd()
    }

    fn ask(&mut self, ask: Ask) {
        if self.asks.send(ask).is_err() {
            tracing::error!("the thread that asks the daemon has ended");
        }
    }

    fn heard(&mut self) -> Option<Heard> {
        let mut heard = self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let first = heard.pop_front();
        if heard.is_empty() {
            self.shared.ready.drain();
        }
        first
    }
}

/// The thread's own.
struct Way {
    control: PathBuf,
    service: String,
    socket: Option<(Control, OwnedFd)>,
    remarked: Option<Instant>,
}

impl Way {
    /// Ends when nobody asks any more.
    fn run(mut self, asked: &Receiver<Ask>, tell: &Shared) {
        while let Ok(ask) = asked.recv() {
            let heard = self.ask(&ask);
            tell.heard.lock().unwrap_or_else(PoisonError::into_inner).push_back(heard);
            tell.ready.signal();
        }
    }

    /// Asks until there is an answer. A commit that is asked twice is made once.
    fn ask(&mut self, ask: &Ask) -> Heard {
        loop {
            match self.ask_once(ask) {
                Ok(heard) => return heard,
                Err(why) => self.remark(&why),
            }
            // tidy(sleep): nobody tells when a registry is back; a daemon that comes back is waited
            // for without it.
            std::thread::sleep(PAUSE);
        }
    }

    fn remark(&mut self, why: &str) {
        let now = Instant::now();
        if self.remarked.is_none_or(|last| now.duration_since(last) > REMARK) {
            self.remarked = Some(now);
            tracing::warn!(service = self.service, why, "its state is out of reach; it is asked again");
        }
    }

    fn ask_once(&mut self, ask: &Ask) -> Result<Heard, String> {
        let answer = self.connected().and_then(|socket| converse(&socket, ask).map_err(|e| e.to_string()));
        if answer.is_err() {
            self.socket = None;
        }
        match answer? {
            (records, Tell::Loaded) => Ok(Heard::Loaded(records)),
            (_, Tell::Committed(revision)) => Ok(Heard::Committed(revision)),
            (_, Tell::Superseded) => Ok(Heard::Superseded),
            (_, Tell::Failed { again: false, message }) => Ok(Heard::Refused(message)),
            (_, Tell::Failed { again: true, message }) => Err(message),
            (_, Tell::Record { .. }) => Err("a record came last".into()),
        }
    }

    /// The state connection; made where there is none, as soon as there is a daemon.
    fn connected(&mut self) -> Result<OwnedFd, String> {
        let again = |socket: &OwnedFd| socket.try_clone().map_err(|e| e.to_string());
        if let Some((_, socket)) = &self.socket {
            return again(socket);
        }
        let mut control = Control::connect_when_there(&self.control, None).map_err(|e| e.to_string())?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let socket = control.keep_state(&self.service, deadline).map_err(|e| e.to_string())?;
        let asked = again(&socket);
        self.socket = Some((control, socket));
        asked
    }
}

/// Asks, and waits for everything that answers it: records, and what came after them.
fn converse(socket: &OwnedFd, ask: &Ask) -> io::Result<(Vec<Record>, Tell)> {
    rustix::net::send(socket, &ask.encode(), SendFlags::NOSIGNAL)?;
    let mut records = Vec::new();
    let mut packet = vec![0; MAX_STATE_PACKET_BYTES];
    loop {
        let (_, length) =
            rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut packet[..], RecvFlags::empty()))?;
        let bytes = packet.get(..length).unwrap_or_default();
        if bytes.is_empty() {
            return Err(io::Error::other("the daemon has gone"));
        }
        match Tell::decode(bytes).map_err(io::Error::other)? {
            Tell::Record { key, revision, value } => records.push((key, revision, value)),
            other => return Ok((records, other)),
        }
    }
}
