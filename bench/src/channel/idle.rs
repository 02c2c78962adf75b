//! Many channels on which nothing happens: what they cost while both ends sleep.

use super::task::{MORE, Means, Role, Tale, Task};
use super::transport::{Tombolo, Transport};
use super::work::{Talk, meet};
use crate::talk::say;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::fd::OwnedFd;

/// Descriptors of one open channel: those of its end, its lifeline, and the region once more, to
/// look at.
const DESCRIPTORS: u64 = channel::End::DESCRIPTORS as u64 + 2;
/// A block of stat(2).
const BLOCK_BYTES: u64 = 512;
/// Descriptors that a worker has beside its channels.
const OTHERS: u64 = 64;

/// Makes the channels, sends a message each way over each, goes to sleep on all of them at once,
/// and stays asleep until the next line of the conversation. `primed` is said before the last
/// sleep.
///
/// # Errors
/// Where something can't be made, and `Unsupported` for other means than ours.
pub fn run(task: &Task, channels: u32, talk: &mut Talk<'_>) -> io::Result<Tale> {
    let &Means::Tombolo { spin, ring_bytes, .. } = &task.means else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    allow_descriptors(u64::from(channels) * DESCRIPTORS + OTHERS)?;
    let mut meeting = meet(task, talk)?;
    let (mut all, mut regions) = (Vec::with_capacity(channels as usize), Vec::new());
    for _ in 0..channels {
        let mut one = match task.role {
            Role::Lead => {
                let (one, region) = Tombolo::make(&mut meeting, task.bytes, spin, ring_bytes)?;
                regions.push(region);
                one
            }
            Role::Follow => Tombolo::take(&mut meeting, task.bytes, spin)?,
        };
        match task.role {
            Role::Lead => {
                one.send(&vec![MORE; task.bytes])?;
                one.receive()?;
            }
            Role::Follow => {
                one.receive()?;
                one.send(&vec![MORE; task.bytes])?;
            }
        }
        all.push(one);
    }
    meeting.together(task.role)?;
    let _asleep: Vec<bool> = all.iter_mut().map(|one| one.halves().1.prepare_wait()).collect();
    say(talk.output, "primed")?;
    sleep(&mut all)?;
    crate::talk::next_line(talk.input)?;
    let resident_bytes = regions.iter().map(ring_bytes_resident).sum::<io::Result<u64>>()?;
    Ok(Tale { operations: u64::from(channels), resident_bytes, ..Tale::default() })
}

/// As an event loop does: one poll(2) on the doorbells of all, and on its other business, the
/// standard input.
fn sleep(all: &mut [Tombolo]) -> io::Result<()> {
    let input = io::stdin();
    let mut descriptors = vec![PollFd::new(&input, PollFlags::IN)];
    let of_one = all.iter_mut().map(|one| &*one.halves().1).map(channel::Receiver::descriptors);
    descriptors.extend(of_one.flat_map(|of_one| {
        [of_one.doorbell, of_one.lifeline].map(|each| PollFd::from_borrowed_fd(each, PollFlags::IN))
    }));
    rustix::io::retry_on_intr(|| poll(&mut descriptors, None))?;
    // Whatever rang: it is over. Nobody should have, and the leader's tale would show it as
    // processor time.
    Ok(())
}

/// How much of the two rings of a region has been touched: all pages but that of the header.
fn ring_bytes_resident(region: &OwnedFd) -> io::Result<u64> {
    let blocks = u64::try_from(rustix::fs::fstat(region)?.st_blocks).unwrap_or(0);
    Ok((blocks * BLOCK_BYTES).saturating_sub(wire::ring::HEADER_BYTES as u64))
}

fn allow_descriptors(count: u64) -> io::Result<()> {
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    if now.maximum.is_some_and(|maximum| maximum < count) && !rustix::process::geteuid().is_root() {
        let text = format!("it needs {count} open files: raise the limit (`ulimit -n {count}`)");
        return Err(io::Error::other(text));
    }
    let maximum = now.maximum.map(|maximum| maximum.max(count));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum })?)
}
