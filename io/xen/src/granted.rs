//! Memory that is granted to other domains. A page that a domain never unmaps stays granted until
//! that domain ends, and nothing tells which pages those are. So what was granted to a domain once
//! is granted to it by its next channels, and one domain never has more than a share of what this
//! one may grant.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use sys::region::Region;
use sys::xen::event::Port;
use sys::xen::grant::{Memory, Notice, PAGE_BYTES};
use wire::xen as layout;

use crate::runs::{Run, Runs};

/// Where the kernel says how many pages all programs of this domain may grant, and how many if it
/// does not.
const LIMIT_PATH: &str = "/sys/module/xen_gntalloc/parameters/limit";
const LIMIT: usize = 1024;

/// The pages that this process has granted, by the domain.
static GRANTED: Mutex<BTreeMap<u16, Granted>> = Mutex::new(BTreeMap::new());

/// The pages that one domain is granted.
#[derive(Debug, Default)]
struct Granted {
    /// `None`: nothing now.
    memory: Option<Memory>,
    runs: Runs,
    channels: Vec<Channel>,
    /// Pages that were given up when the kernel had none left. The domain may have them mapped.
    given_up: usize,
}

/// The memory of one channel: its directory, then its region.
#[derive(Debug)]
struct Channel {
    first: usize,
    directory: Region,
    /// Hung up on when this process has nothing of it mapped any more, but for the directory here.
    used: OwnedFd,
}

/// Memory for a channel, all zero.
#[derive(Debug)]
pub(crate) struct Given {
    pub region: Region,
    pub references: Vec<u32>,
    pub directory: Region,
    pub directory_reference: u32,
    pub notice: Noticed,
}

/// A notice of a channel's directory, which is to be forgotten when the channel is over.
#[derive(Debug)]
pub(crate) struct Noticed {
    opener: u16,
    page: usize,
}

/// Why there is no memory.
#[derive(Debug)]
pub(crate) enum Lack {
    /// The opener has so many pages, and would have more than its share.
    Share(usize),
    System(io::Error),
}

impl From<io::Error> for Lack {
    fn from(source: io::Error) -> Self {
        Self::System(source)
    }
}

/// Memory for a channel to `opener` with so many pages in its region. `life` rings when this
/// process ends.
pub(crate) fn give(opener: u16, pages: usize, life: &Port) -> Result<Given, Lack> {
    let mut all = GRANTED.lock().unwrap_or_else(PoisonError::into_inner);
    let share = share(limit());
    let granted = all.entry(opener).or_default();
    granted.take_back()?;
    let run = granted.runs.find(pages + 1);
    let has = granted.given_up + granted.runs.pages();
    if has + run.lacks > share {
        return Err(Lack::Share(has));
    }
    match granted.give(opener, run, life) {
        Err(error) if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => {
            all.values_mut().try_for_each(Granted::give_up)?;
            let granted = all.entry(opener).or_default();
            let run = granted.runs.find(pages + 1);
            let has = granted.given_up + granted.runs.pages();
            if has + run.lacks > share {
                return Err(Lack::Share(has));
            }
            Ok(granted.give(opener, run, life)?)
        }
        given => Ok(given?),
    }
}

impl Noticed {
    /// The channel is over: the kernel's notice would come only when this process ends.
    pub fn forget(&self) -> io::Result<()> {
        let all = GRANTED.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = all.get(&self.opener).and_then(|granted| granted.memory.as_ref());
        memory.map_or(Ok(()), |memory| memory.notify(self.page, None))
    }
}

/// Three quarters of the pages that may be granted: the largest channel, and half as much.
fn share(limit: usize) -> usize {
    limit / 4 * 3
}

/// How many pages all programs of this domain may grant.
fn limit() -> usize {
    let text = std::fs::read_to_string(LIMIT_PATH).unwrap_or_default();
    text.trim().parse().unwrap_or(LIMIT)
}

impl Granted {
    /// Takes back the memory of channels that are over, and of which the opener says that it has
    /// let go, or to which nobody came.
    fn take_back(&mut self) -> io::Result<()> {
        let mut kept = Vec::new();
        for channel in std::mem::take(&mut self.channels) {
            if channel.is_over()? {
                self.runs.give_back(channel.first);
            } else {
                kept.push(channel);
            }
        }
        self.channels = kept;
        Ok(())
    }

    /// Has the kernel take back what no channel has, where that is all.
    fn give_up(&mut self) -> io::Result<()> {
        self.take_back()?;
        if self.channels.is_empty() && self.memory.take().is_some() {
            self.given_up += std::mem::take(&mut self.runs).pages();
        }
        Ok(())
    }

    fn give(&mut self, opener: u16, run: Run, life: &Port) -> io::Result<Given> {
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(Memory::new(opener)?),
        };
        if run.lacks > 0 {
            memory.grow(run.lacks)?;
        }
        // From here on the pages are there, whatever fails.
        self.runs.take(run);
        let made = channel(memory, run, opener, life);
        match made {
            Ok((channel, given)) => {
                self.channels.push(channel);
                Ok(given)
            }
            Err(error) => {
                self.runs.give_back(run.first);
                Err(error)
            }
        }
    }
}

/// Maps a channel's memory, as if it were new.
fn channel(memory: &Memory, run: Run, opener: u16, life: &Port) -> io::Result<(Channel, Given)> {
    let (used, one) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let other = rustix::io::fcntl_dupfd_cloexec(&one, 0)?;
    let (page, first, pages) = (run.first, run.first + 1, run.pages - 1);
    let references = memory.references().get(first..first + pages).unwrap_or_default().to_vec();
    let directory_reference = memory.references().get(page).copied().ok_or(io::ErrorKind::InvalidData)?;
    let (kept, directory, region) = (memory.map(page, 1)?, memory.map(page, 1)?, memory.map(first, pages)?);
    for part in [&directory, &region] {
        (0..part.len()).step_by(PAGE_BYTES).for_each(|at| part.copy_in(at, &[0; PAGE_BYTES]));
    }
    memory.notify(page, Some(Notice { offset: layout::end(0) + layout::END_ALIVE, port: life }))?;
    let channel = Channel { first: page, directory: kept, used };
    let notice = Noticed { opener, page };
    let (region, directory) = (region.keeping(one), directory.keeping(other));
    Ok((channel, Given { region, references, directory, directory_reference, notice }))
}

impl Channel {
    fn is_over(&self) -> io::Result<bool> {
        let mut wait = [PollFd::from_borrowed_fd(self.used.as_fd(), PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_used = rustix::io::retry_on_intr(|| poll(&mut wait, Some(&at_once)))? == 0;
        let says = |word| self.directory.load_u64(layout::end(1) + word, Ordering::Acquire) != 0;
        let is_held = says(layout::END_CAME) && says(layout::END_ALIVE);
        Ok(!is_used && !is_held)
    }
}
