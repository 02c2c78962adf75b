//! A channel of ours, with everything on.

use super::super::meeting::Meeting;
use super::super::task::{Role, Task, Waiting};
use super::Transport;
use channel::{Config, End, Receiver, Sender, SpinPolicy};
use std::io;
use std::os::fd::OwnedFd;

/// One end.
#[derive(Debug)]
pub struct Tombolo {
    sender: Sender,
    receiver: Receiver,
    message: Vec<u8>,
    /// Asks again and again in place of waiting.
    polls: bool,
}

impl Tombolo {
    /// Makes the channel (the leader) or takes it (the follower).
    ///
    /// # Errors
    /// Those of the channel and of the meeting.
    pub fn open(
        meeting: &mut Meeting,
        task: &Task,
        spin: bool,
        ring_bytes: u32,
        batch_bytes: usize,
    ) -> io::Result<Self> {
        let mut this = match task.role {
            Role::Lead => Self::make(meeting, task.bytes, spin, ring_bytes)?.0,
            Role::Follow => Self::take(meeting, task.bytes, spin)?,
        };
        this.sender.set_batch_bytes(batch_bytes);
        Ok(this)
    }

    /// Makes the channel, gives one end away and opens the other. With it comes its region, to look
    /// at from outside.
    ///
    /// # Errors
    /// Those of the channel and of the meeting.
    pub fn make(
        meeting: &mut Meeting,
        bytes: usize,
        spin: bool,
        ring_bytes: u32,
    ) -> io::Result<(Self, OwnedFd)> {
        let config = Config { ring_bytes, ..Config::default() };
        let (here, there) = channel::pair(&config).map_err(io::Error::other)?;
        let descriptors = there.into_descriptors();
        meeting.give(b"end", &descriptors)?;
        // The second end has its region last.
        let [.., region] = descriptors;
        Ok((Self::of(here, bytes, spin)?, region))
    }

    /// Takes an end and opens it.
    ///
    /// # Errors
    /// Those of the channel and of the meeting.
    pub fn take(meeting: &mut Meeting, bytes: usize, spin: bool) -> io::Result<Self> {
        let (_, descriptors) = meeting.take(End::DESCRIPTORS)?;
        Self::of(End::from_descriptors(descriptors).map_err(io::Error::other)?, bytes, spin)
    }

    /// Opens an end.
    ///
    /// # Errors
    /// Those of the channel.
    pub fn of(end: End, bytes: usize, spin: bool) -> io::Result<Self> {
        let (mut sender, mut receiver) = end.open().map_err(io::Error::other)?;
        let policy = if spin { SpinPolicy::Adaptive } else { SpinPolicy::Never };
        sender.set_spin_policy(policy);
        receiver.set_spin_policy(policy);
        Ok(Self { sender, receiver, message: Vec::with_capacity(bytes), polls: false })
    }

    /// From now on it waits like this.
    pub fn wait_like(&mut self, waiting: Waiting) {
        let policy = if waiting == Waiting::Adaptive { SpinPolicy::Adaptive } else { SpinPolicy::Never };
        self.sender.set_spin_policy(policy);
        self.receiver.set_spin_policy(policy);
        self.polls = waiting == Waiting::Poll;
    }

    /// Its halves.
    pub fn halves(&mut self) -> (&mut Sender, &mut Receiver) {
        (&mut self.sender, &mut self.receiver)
    }
}

impl Transport for Tombolo {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.sender.send(message, None).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sender.flush().map_err(io::Error::other)
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        if self.polls {
            while self.receiver.try_receive(&mut self.message).map_err(io::Error::other)?.is_none() {
                std::hint::spin_loop();
            }
            return Ok(&self.message);
        }
        self.receiver.receive(&mut self.message, None).map_err(io::Error::other)?;
        Ok(&self.message)
    }
}
