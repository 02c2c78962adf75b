//! Where a service is mounted: the domain's programs connect, and a channel leads to the relay of
//! the server's domain.
//!
//! While there is no such channel, a program is refused as by a server that does not run: a TCP
//! socket is bound and does not listen.

use crate::counts::{Connected, Counts, Mounted as MountedCounts};
use crate::local::Local;
use crate::place::Listener;
use crate::pump::{Ends, Over, Pump};
use channel::End;
use mux::{Rate, Side};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use wire::socket::{Limits, Mounted};

/// How long a channel that was refused is not asked for again: the topology is about to change, or
/// the server's domain is.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// How long to wait before clients are let in again, where the process was out of descriptors or
/// memory.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// A service that this domain mounts.
pub(crate) struct Mount {
    pub(crate) mounted: Mounted,
    pub(crate) listener: Listener,
    pub(crate) counts: Arc<MountedCounts>,
}

impl Mount {
    /// Serves the place for as long as the process lives.
    pub(crate) fn run(self) {
        if let Err(why) = self.serve() {
            tracing::error!(service = self.mounted.service, why, "its place is no longer served");
        }
    }

    fn serve(&self) -> Result<(), String> {
        let bell =
            Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| format!("no event descriptor: {e}"))?);
        // One channel at a time: the next one is asked for when the last is over.
        let ((want, wanted), (give, ends)) = (sync_channel(1), sync_channel(1));
        let (name, ring) = (self.mounted.service.clone(), Arc::clone(&bell));
        crate::spawn("channels", move || find_channels(&name, &wanted, &give, &ring))?;
        loop {
            if want.send(()).is_err() {
                return Err("the thread that asks for channels has ended".into());
            }
            let Some(end) = self.next_channel(&ends, &bell)? else { return Ok(()) };
            if let Err(errno) = self.listener.open() {
                tracing::warn!(
                    service = self.mounted.service,
                    "nobody can connect to {}: {errno} (another program of the domain may have the place)",
                    self.mounted.at
                );
            }
            self.counts.up.store(true, Ordering::Relaxed);
            let over = self.pump(end);
            self.counts.up.store(false, Ordering::Relaxed);
            self.listener.close();
            match over {
                Over::Gone => tracing::debug!(service = self.mounted.service, "the server's relay is gone"),
                over => tracing::warn!(service = self.mounted.service, "its channel is closed: {over}"),
            }
        }
    }

    /// Waits for the next channel, and turns clients away meanwhile; `None`: there will be none.
    fn next_channel(&self, ends: &Receiver<End>, bell: &OwnedFd) -> Result<Option<End>, String> {
        loop {
            let waits = match self.listener.turn_away() {
                Some(listener) => {
                    poll(&mut [PollFd::new(bell, PollFlags::IN), PollFd::new(listener, PollFlags::IN)], None)
                }
                None => poll(&mut [PollFd::new(bell, PollFlags::IN)], None),
            };
            match waits {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(format!("can't wait for a channel: {errno}")),
            }
            let rung = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&NOW)).unwrap_or(0) > 0;
            if rung {
                let mut count = [0; 8];
                rustix::io::read(bell, &mut count)
                    .map_err(|errno| format!("an event descriptor: {errno}"))?;
                return Ok(ends.recv().ok());
            }
        }
    }

    fn pump(&self, end: End) -> Over {
        let clients = Clients::new(&self.listener, self.mounted.limits, &self.counts.counts);
        match Pump::new(end, clients, Some(self.listener.socket()), Arc::clone(&self.counts.counts)) {
            Ok(pump) => pump.run(),
            Err(over) => over,
        }
    }
}

const NOW: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };

/// Opens a channel each time that one is wanted, as long as it takes.
fn find_channels(service: &str, wanted: &Receiver<()>, give: &SyncSender<End>, bell: &OwnedFd) {
    while wanted.recv().is_ok() {
        let end = find_channel(service);
        if give.send(end).is_err() || rustix::io::write(bell, &1_u64.to_ne_bytes()).is_err() {
            return;
        }
    }
}

fn find_channel(service: &str) -> End {
    loop {
        match session::open_channel_at(crate::control_socket(), service, None) {
            Ok(end) => return end,
            Err(error) => {
                tracing::debug!(service, error = crate::said(&error), "no channel to the server's relay yet");
                // tidy(sleep): nothing tells when the answer would be another one.
                std::thread::sleep(REFUSED_PAUSE);
            }
        }
    }
}

/// Those who connect at a listening socket.
pub(crate) struct Clients<'m> {
    listener: &'m Listener,
    counts: &'m Arc<Counts>,
    limits: Limits,
    rate: Option<Rate>,
    since: Instant,
    /// Somebody may be at the door.
    knocked: bool,
}

impl<'m> Clients<'m> {
    pub(crate) fn new(listener: &'m Listener, limits: Limits, counts: &'m Arc<Counts>) -> Self {
        let rate = limits.connections_per_second;
        Self {
            listener,
            counts,
            limits,
            // A quarter of a second's at once: less than the server's side allows.
            rate: rate.map(|per_second| Rate::new(per_second, per_second / 4)),
            since: Instant::now(),
            // Somebody may have come before anybody looked.
            knocked: true,
        }
    }
}

impl Ends for Clients<'_> {
    const SIDE: Side = Side::Mount;

    fn connect(&mut self, _port: u16) -> Result<(Local, Vec<u8>, Connected), Errno> {
        // The mux lets the server's side open nothing.
        Err(Errno::OPNOTSUPP)
    }

    fn accept(&mut self, open: usize) -> Result<(Local, Connected), Option<Duration>> {
        let most = self.limits.connections_per_domain.min(self.limits.max_connections);
        // Whoever has no room stays where the kernel keeps clients of a server that is slow to
        // accept.
        if !self.knocked || u32::try_from(open).is_ok_and(|open| open >= most) {
            return Err(None);
        }
        let now = self.since.elapsed();
        let mut rate = self.rate;
        if let Some(rate) = &mut rate {
            rate.take(now).map_err(Some)?;
        }
        match Local::accept(self.listener.socket(), self.listener.is_tcp()) {
            Ok(Some(local)) => {
                self.rate = rate;
                Ok((local, self.counts.connected(None)))
            }
            Ok(None) => {
                self.knocked = false;
                Err(None)
            }
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Err(Some(EXHAUSTED_PAUSE)),
            // The socket does not listen: another program has the place.
            Err(Errno::INVAL) => {
                self.knocked = false;
                Err(None)
            }
            // Of one client that is gone again.
            Err(_) => Err(Some(Duration::ZERO)),
        }
    }

    fn knocked(&mut self) {
        self.knocked = true;
    }
}
