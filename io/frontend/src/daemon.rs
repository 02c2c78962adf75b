//! The thread that talks to the daemon and keeps the time.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use channel::End;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::packet::{self, Packet, PacketError};
use sys::eventfd::Eventfd;
use wire::control::{Reply, Request};

use crate::core::{NewLink, TICK_NS};
use crate::link::Link;
use crate::shared::Shared;

/// Requests that may wait for room in the control socket; the daemon answers far fewer at a time.
const QUEUED_MAX: usize = 256;

/// The messages on their way to the daemon.
pub(crate) struct Outbox {
    socket: OwnedFd,
    queue: Mutex<VecDeque<Request>>,
    alarm: Arc<Eventfd>,
}

impl Outbox {
    /// `socket`: the private control socket; it is made non-blocking.
    pub(crate) fn new(socket: OwnedFd, alarm: Arc<Eventfd>) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, queue: Mutex::default(), alarm })
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Request>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn send(&self, request: &Request) {
        let mut queue = self.queue();
        if queue.is_empty() {
            match packet::send(&self.socket, request, &[]) {
                Ok(()) => return,
                Err(PacketError::NotReady) => {}
                // The thread that listens hears of a daemon that is gone.
                Err(error) => return tracing::debug!(%error, "the daemon can't be asked"),
            }
        }
        if queue.len() < QUEUED_MAX {
            queue.push_back(request.clone());
            self.alarm.signal();
        } else {
            tracing::warn!("the daemon does not listen: a request is dropped");
        }
    }

    fn is_waiting(&self) -> bool {
        !self.queue().is_empty()
    }

    fn flush(&self) {
        let mut queue = self.queue();
        while let Some(request) = queue.front() {
            if let Err(PacketError::NotReady) = packet::send(&self.socket, request, &[]) {
                return;
            }
            queue.pop_front();
        }
    }
}

/// Listens until the process ends; after the daemon's death it goes on keeping the time.
pub(crate) fn run(shared: &Arc<Shared>, outbox: &Outbox, alarm: &Eventfd) {
    let mut there = true;
    let mut ticking = true;
    loop {
        let interest = if outbox.is_waiting() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let interest = if there { interest } else { PollFlags::empty() };
        let timeout = Timespec { tv_sec: 0, tv_nsec: TICK_NS.cast_signed() };
        {
            let mut set = [
                PollFd::from_borrowed_fd(alarm.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(outbox.socket.as_fd(), interest),
            ];
            // A socket that is hung up would be ready for ever.
            let set = if there { &mut set[..] } else { &mut set[..1] };
            if let Err(error) = rustix::io::retry_on_intr(|| poll(set, ticking.then_some(&timeout))) {
                tracing::error!(%error, "can't wait for the daemon");
                return;
            }
        }
        alarm.drain();
        if there {
            outbox.flush();
            there = listen(shared, outbox);
            if !there {
                tracing::warn!("the daemon is gone; what is open goes on");
                shared.with(|core| core.daemon_gone());
            }
        }
        ticking = shared.with(|core| core.tick());
    }
}

/// Takes all that the daemon has said; false when it is gone.
fn listen(shared: &Arc<Shared>, outbox: &Outbox) -> bool {
    loop {
        match packet::receive::<Reply>(&outbox.socket) {
            Ok(Packet { message, descriptors }) => {
                if let Some(new) = shared.with(|core| core.daemon_says(message)) {
                    connect(shared, new, descriptors);
                }
            }
            Err(PacketError::NotReady) => return true,
            Err(error) if error.is_about_one_packet() => {
                tracing::warn!(%error, "a packet of the daemon is dropped")
            }
            Err(_) => return false,
        }
    }
}

/// Takes a channel into use.
fn connect(shared: &Arc<Shared>, new: NewLink, descriptors: Vec<OwnedFd>) {
    let opened = End::from_descriptors(descriptors).and_then(session::open);
    let (caller, answers) = match opened {
        Ok(both) => both,
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the daemon's channel can't be used");
            return shared.with(|core| core.link_ended(new.service, new.epoch, true));
        }
    };
    // The lock is held while the receiver starts, so that its first message finds the link in its
    // place.
    let started = shared
        .with(|core| Link::start(caller, answers, new, shared).map(|link| core.host.link(new.service, link)));
    if let Err(error) = started {
        tracing::error!(%error, "can't start a thread for a link");
        shared.with(|core| core.link_ended(new.service, new.epoch, false));
    }
}
