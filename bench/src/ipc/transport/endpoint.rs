//! Endpoints, introduced by hand: the daemon would do the same, and then get out of the way.

use super::super::means::Tuning;
use crate::channel::meeting::Meeting;
use crate::channel::task::{Role, Task};
use crate::channel::transport::Transport;
use channel::{Config, End, SpinPolicy};
use endpoint::{Address, Asked, Content, Endpoint, From, Options, Rights};
use std::io;

/// The leader's address, and the follower's.
const ADDRESSES: [Address; 2] = [Address { slot: 1, generation: 1 }, Address { slot: 2, generation: 1 }];
/// The tag of a message: it means nothing.
const TAG: u32 = 0;

/// An endpoint with one peer.
#[derive(Debug)]
pub struct Couple {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The other worker's.
    pub peer: Address,
}

impl Couple {
    /// Brings the two together. A tuning without a size of buffers means rings as they are by
    /// default.
    ///
    /// # Errors
    /// Those of the channel, of the endpoint and of the meeting.
    pub fn open(meeting: &mut Meeting, role: Role, tuning: &Tuning, options: &Options) -> io::Result<Self> {
        let [lead, follow] = ADDRESSES;
        let (here, peer) = if role == Role::Lead { (lead, follow) } else { (follow, lead) };
        let end = match role {
            Role::Lead => {
                let mut config = Config::default();
                if tuning.buffer_bytes > 0 {
                    config.ring_bytes = tuning.buffer_bytes.try_into().map_err(io::Error::other)?;
                }
                let (here, there) = channel::pair(&config).map_err(io::Error::other)?;
                meeting.give(b"end", &there.into_descriptors())?;
                here
            }
            Role::Follow => {
                let (_, descriptors) = meeting.take(End::DESCRIPTORS)?;
                End::from_descriptors(descriptors).map_err(io::Error::other)?
            }
        };
        let mut endpoint = Endpoint::alone(here, options).map_err(io::Error::other)?;
        endpoint.introduce(peer, Rights::ALL, end).map_err(io::Error::other)?;
        Ok(Self { endpoint, peer })
    }
}

/// How endpoints wait and hold back.
pub fn options(spin: bool, batch_bytes: usize) -> Options {
    let spin = if spin { SpinPolicy::Adaptive } else { SpinPolicy::Never };
    Options { spin, batch_bytes, ..Options::default() }
}

/// Requests and replies: the leader asks, the follower answers.
#[derive(Debug)]
pub struct Requests {
    couple: Couple,
    role: Role,
    /// The leader's next question.
    question: Vec<u8>,
    /// The request that the follower is to answer.
    asked: Option<Asked>,
    message: Vec<u8>,
}

impl Requests {
    /// Brings the two together.
    ///
    /// # Errors
    /// Those of [`Couple::open`].
    pub fn open(meeting: &mut Meeting, task: &Task, tuning: &Tuning, spin: bool) -> io::Result<Self> {
        let couple = Couple::open(meeting, task.role, tuning, &options(spin, 0))?;
        let empty = || Vec::with_capacity(task.bytes);
        Ok(Self { couple, role: task.role, question: empty(), asked: None, message: empty() })
    }
}

impl Transport for Requests {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self.role {
            // A request waits for its reply: it goes when that is asked for.
            Role::Lead => {
                self.question.clear();
                self.question.extend_from_slice(message);
                Ok(())
            }
            Role::Follow => {
                let asked = self.asked.take().ok_or(io::ErrorKind::InvalidInput)?;
                self.couple.endpoint.reply(&asked, TAG, message).map_err(io::Error::other)
            }
        }
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let Couple { endpoint, peer } = &mut self.couple;
        match self.role {
            Role::Lead => {
                let takes = self.question.len();
                endpoint
                    .send_receive(*peer, TAG, &self.question, &mut self.message, takes, None)
                    .map_err(io::Error::other)?;
            }
            Role::Follow => {
                let received =
                    endpoint.receive(&From::Any, &mut self.message, None).map_err(io::Error::other)?;
                let Content::Request { asked, .. } = received.content else {
                    return Err(io::ErrorKind::InvalidData.into());
                };
                self.asked = Some(asked);
            }
        }
        Ok(&self.message)
    }
}

/// Messages that nobody answers.
#[derive(Debug)]
pub struct Mail {
    couple: Couple,
    /// Waits for each message until it is received.
    rendezvous: bool,
    message: Vec<u8>,
}

impl Mail {
    /// Brings the two together. Messages are held back up to so many bytes; without a number each
    /// is a rendezvous.
    ///
    /// # Errors
    /// Those of [`Couple::open`].
    pub fn open(
        meeting: &mut Meeting,
        task: &Task,
        tuning: &Tuning,
        batch_bytes: Option<usize>,
    ) -> io::Result<Self> {
        let options = options(true, batch_bytes.unwrap_or(0));
        let couple = Couple::open(meeting, task.role, tuning, &options)?;
        Ok(Self { couple, rendezvous: batch_bytes.is_none(), message: Vec::with_capacity(task.bytes) })
    }
}

impl Transport for Mail {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let Couple { endpoint, peer } = &mut self.couple;
        let sent = if self.rendezvous {
            endpoint.send(*peer, TAG, message, None)
        } else {
            endpoint.send_buffered(*peer, TAG, message, None)
        };
        sent.map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.couple.endpoint.flush().map_err(io::Error::other)
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let endpoint = &mut self.couple.endpoint;
        endpoint.receive(&From::Any, &mut self.message, None).map_err(io::Error::other)?;
        Ok(&self.message)
    }
}
