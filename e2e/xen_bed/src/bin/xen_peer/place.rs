//! Where a job can run: in dom0, or in a guest. It is started, heard and killed alike.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::link::{NAME, News, Order};
use crate::{Failure, agent};

/// How long a job may take for its next line: emulated processors, of which others may want the
/// time.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A job's message.
enum Said {
    Line(String),
    Ended(bool),
}

/// A domain.
#[derive(Clone)]
pub struct Place {
    /// Its number.
    pub domain: u16,
    guest: Option<Arc<Guest>>,
}

struct Guest {
    sender: Mutex<channel::Sender>,
    jobs: Arc<Mutex<HashMap<u64, mpsc::Sender<Said>>>>,
}

/// A job that was started; killed when dropped.
pub struct Job {
    name: String,
    said: Receiver<Said>,
    kill: Box<dyn Fn()>,
    ended: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// dom0 itself.
    pub fn here() -> Self {
        Self { domain: 0, guest: None }
    }

    /// The guest with this number, when its agent has come.
    pub fn guest(domain: u16) -> Result<Self, Failure> {
        let (sender, mut receiver) = xen::offer(domain, NAME, &channel::Config::default())?.open()?;
        let jobs: Arc<Mutex<HashMap<u64, mpsc::Sender<Said>>>> = Arc::default();
        let listeners = Arc::clone(&jobs);
        std::thread::spawn(move || {
            let mut message = Vec::new();
            // Ends with the guest; then its jobs have said all that they will.
            while receiver.receive(&mut message, None).is_ok() {
                match serde_json::from_slice(&message) {
                    Ok(News::Line { id, line }) => pass(&listeners, id, Said::Line(line)),
                    Ok(News::Ended { id, well }) => pass(&listeners, id, Said::Ended(well)),
                    Err(error) => println!("guest {domain} speaks nonsense: {error}"),
                }
                message.clear();
            }
            lock(&listeners).clear();
        });
        let guest = Guest { sender: Mutex::new(sender), jobs };
        Ok(Self { domain, guest: Some(Arc::new(guest)) })
    }

    /// Starts a job there.
    pub fn start(&self, arguments: &[&str]) -> Result<Job, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{} in {}", arguments.join(" "), self.domain);
        let arguments: Vec<String> = arguments.iter().map(|&word| word.to_owned()).collect();
        let (say, said) = mpsc::channel();
        let kill: Box<dyn Fn()> = match &self.guest {
            None => here(&arguments, say)?,
            Some(guest) => {
                lock(&guest.jobs).insert(id, say);
                guest.order(&Order::Start { id, arguments })?;
                let guest = Arc::clone(guest);
                Box::new(move || {
                    // A guest that is gone has killed it.
                    let _gone = guest.order(&Order::Kill { id });
                })
            }
        };
        Ok(Job { name, said, kill, ended: false })
    }

    /// Starts a job and waits for its first line.
    pub fn started(&self, arguments: &[&str], first: &str) -> Result<Job, Failure> {
        let mut job = self.start(arguments)?;
        job.says(first)?;
        Ok(job)
    }

    /// Runs a job to its end, which must be a good one; returns what it said.
    pub fn run(&self, arguments: &[&str]) -> Result<Vec<String>, Failure> {
        self.start(arguments)?.end()
    }
}

impl Guest {
    fn order(&self, order: &Order) -> Result<(), Failure> {
        let deadline = Instant::now() + TIMEOUT;
        Ok(lock(&self.sender).send(&serde_json::to_vec(order)?, Some(deadline))?)
    }
}

fn pass(listeners: &Mutex<HashMap<u64, mpsc::Sender<Said>>>, id: u64, said: Said) {
    let ended = matches!(said, Said::Ended(_));
    let mut listeners = lock(listeners);
    if let Some(listener) = listeners.get(&id) {
        // Whoever dropped its job does not listen.
        let _dropped = listener.send(said);
    }
    if ended {
        listeners.remove(&id);
    }
}

fn here(arguments: &[String], say: mpsc::Sender<Said>) -> Result<Box<dyn Fn()>, Failure> {
    let mut child = agent::start(arguments)?;
    let pid = Pid::from_child(&child);
    std::thread::spawn(move || {
        let output = child.stdout.take();
        for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).flatten() {
            let _dropped = say.send(Said::Line(line));
        }
        let well = child.wait().is_ok_and(|status| status.success());
        let _dropped = say.send(Said::Ended(well));
    });
    Ok(Box::new(move || {
        // It may be dead already.
        let _dead = kill_process(pid, Signal::KILL);
    }))
}

impl Job {
    fn next(&mut self) -> Result<Said, Failure> {
        match self.said.recv_timeout(TIMEOUT) {
            Ok(said) => {
                self.ended = matches!(said, Said::Ended(_));
                Ok(said)
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("{} says nothing for {} s", self.name, TIMEOUT.as_secs()).into())
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.ended = true;
                Err(format!("{} is gone with its domain", self.name).into())
            }
        }
    }

    /// Waits for its next line.
    pub fn line(&mut self) -> Result<String, Failure> {
        match self.next()? {
            Said::Line(line) if line.starts_with("failed: ") => Err(format!("{}: {line}", self.name).into()),
            Said::Line(line) => Ok(line),
            Said::Ended(well) => Err(format!("{} has ended (well: {well})", self.name).into()),
        }
    }

    /// Its next line must be this.
    pub fn says(&mut self, wanted: &str) -> Result<(), Failure> {
        let found = self.line()?;
        if found == wanted {
            return Ok(());
        }
        Err(format!("{} says {found:?}, not {wanted:?}", self.name).into())
    }

    /// Waits until it ends, which must be well; returns what it said before.
    pub fn end(mut self) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        loop {
            match self.next()? {
                Said::Line(line) => lines.push(line),
                Said::Ended(true) => return Ok(lines),
                Said::Ended(false) => {
                    return Err(format!("{} failed: {}", self.name, lines.join("; ")).into());
                }
            }
        }
    }

    /// Waits until it has ended, however.
    pub fn gone(mut self) -> Result<(), Failure> {
        while !matches!(self.next()?, Said::Ended(_)) {}
        Ok(())
    }

    /// Kills it.
    pub fn kill(&self) {
        (self.kill)();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}
