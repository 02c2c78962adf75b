//! Native entrances of the directory service, for programs that do not open `/srv`: a DNS stub on
//! UDP and TCP, and the socket that libnss-resolve talks to. One thread in the frontend's process
//! serves them all, over links of their own to the service. The sockets are bound by the daemon,
//! inside the domain. Described in `docs/spec/entrances.md`.

mod backend;
mod dns;
mod resolve;
mod run;
mod stream;

pub use backend::{ANSWER_LIMIT, Entrance, MAX_PENDING, MAX_PENDING_BYTES};
pub use run::ACCEPT_PAUSE;
pub use stream::{IDLE_LIMIT, MAX_CLIENTS};

use channel::End;
use serde_json::{Value, json};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::Eventfd;

/// Stack of the loop's thread, in bytes: its frames are shallow, and a frontend is to be small.
const STACK_BYTES: usize = 128 * 1024;

/// Listening sockets, where there are any.
#[derive(Debug, Default)]
pub struct Entrances {
    /// Of the stub, bound to 127.0.0.53:53 inside the domain.
    pub udp: Option<UdpSocket>,
    /// Of the stub, the same address.
    pub tcp: Option<TcpListener>,
    /// The socket at `/run/systemd/resolve/io.systemd.Resolve` inside the domain.
    pub resolve: Option<UnixListener>,
}

#[derive(Debug)]
enum Command {
    Connect(Entrance, End),
    Stop,
}

/// Between the loop's thread and its handle.
#[derive(Debug)]
struct Shared {
    wake: Eventfd,
    commands: Mutex<Vec<Command>>,
    counters: Counters,
}

impl Shared {
    fn send(&self, command: Command) {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.wake.signal();
    }

    fn take(&self) -> Vec<Command> {
        std::mem::take(&mut *self.commands.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The counters of the entrances.
#[derive(Debug, Default)]
struct Counters {
    udp_queries: AtomicU64,
    tcp_queries: AtomicU64,
    resolve_calls: AtomicU64,
    answers: AtomicU64,
    failures: AtomicU64,
    ignored: AtomicU64,
    overloads: AtomicU64,
    sent_away: AtomicU64,
    accept_failures: AtomicU64,
    pending: AtomicU64,
}

impl Counters {
    fn add(&self, which: impl FnOnce(&Self) -> &AtomicU64) {
        which(self).fetch_add(1, Ordering::Relaxed);
    }
}

/// Running entrances. Dropped, they are closed.
#[derive(Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Is told of each answer: by which link it came, and how long after its question.
pub type Answered = Box<dyn Fn(Entrance, Duration) + Send>;

/// Starts the entrances. Until a link is given by [`Handle::connect`], queries wait.
///
/// # Errors
/// The kernel's error, where the sockets can't be watched or no thread starts.
pub fn run(entrances: Entrances) -> io::Result<Handle> {
    run_observed(entrances, Box::new(|_, _| {}))
}

/// As [`run`], telling `answered` of each answer, on the entrances' thread.
///
/// # Errors
/// As [`run`].
pub fn run_observed(entrances: Entrances, answered: Answered) -> io::Result<Handle> {
    let wake = Eventfd::new()?;
    let shared = Arc::new(Shared { wake, commands: Mutex::default(), counters: Counters::default() });
    let entrance_loop = run::Loop::new(entrances, Arc::clone(&shared), answered)?;
    let thread = std::thread::Builder::new()
        .name("entrances".into())
        .stack_size(STACK_BYTES)
        .spawn(move || entrance_loop.run())?;
    Ok(Handle { shared, thread: Some(thread) })
}

impl Handle {
    /// Gives an entrance a link to the service: the first one, or the next after its server's
    /// death. What has no answer yet is asked (again) by it.
    pub fn connect(&self, entrance: Entrance, end: End) {
        self.shared.send(Command::Connect(entrance, end));
    }

    /// Counters for the state tree.
    pub fn state(&self) -> Value {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        json!({
            "udp_queries": read(&counters.udp_queries),
            "tcp_queries": read(&counters.tcp_queries),
            "resolve_calls": read(&counters.resolve_calls),
            "answers": read(&counters.answers),
            "failures": read(&counters.failures),
            "ignored": read(&counters.ignored),
            "overloads": read(&counters.overloads),
            "sent_away": read(&counters.sent_away),
            "accept_failures": read(&counters.accept_failures),
            "pending": read(&counters.pending),
        })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.send(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the entrances have panicked");
        }
    }
}
