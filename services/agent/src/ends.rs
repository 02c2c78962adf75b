//! The ends of channels that members of this guest have.

use crate::device::{self, Device, Look, Made};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
use sys::eventfd::Eventfd;
use wire::guest::{End, MAX_CHANNELS};
use wire::ring::END_DESCRIPTORS;

/// How long a device may take from `END` to being usable.
pub(crate) const DEVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// Stack of a thread that waits for the release of a region, in bytes: it makes one system call.
const STACK_BYTES: usize = 64 * 1024;

/// Those of an end, in its order.
pub(crate) type Descriptors = [OwnedFd; END_DESCRIPTORS];

/// Why an end is not made.
#[derive(Debug)]
pub(crate) enum Unmade {
    /// Its device is not ready: what is missing.
    Yet(&'static str),
    /// It never will be: why.
    Ever(String),
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Ends {
    bus: PathBuf,
    interrupts: bool,
    /// Those that are made, by the numbers of their channels.
    made: BTreeMap<u32, Device>,
    /// Those whose devices are awaited, and whether the other end is gone already.
    announced: BTreeMap<u32, bool>,
    /// Numbers of channels that nobody here has any more.
    released: Receiver<u32>,
    release: Sender<u32>,
    /// Readable when there are some.
    pub rung: Arc<Eventfd>,
}

impl Ends {
    pub fn new(bus: &Path, interrupts: bool) -> io::Result<Self> {
        let (release, released) = mpsc::channel();
        Ok(Self {
            bus: bus.to_owned(),
            interrupts,
            made: BTreeMap::new(),
            announced: BTreeMap::new(),
            released,
            release,
            rung: Arc::new(Eventfd::new()?),
        })
    }

    /// The node announces an end; whether it may.
    pub fn announce(&mut self, end: &End) -> bool {
        let known = self.made.contains_key(&end.channel) || self.announced.contains_key(&end.channel);
        let full = self.made.len() + self.announced.len() >= MAX_CHANNELS;
        if !known && !full {
            self.announced.insert(end.channel, false);
        }
        !known && !full
    }

    /// Nobody waits for this end any more, and none was made.
    pub fn forget(&mut self, channel: u32) {
        self.announced.remove(&channel);
    }

    /// Whether some device is awaited.
    pub fn awaits(&self) -> bool {
        !self.announced.is_empty()
    }

    /// Makes an announced end, if its device is there: what is to be passed on. From then on its
    /// release is told, whether or not somebody gets it.
    pub fn make(&mut self, end: &End) -> Result<Descriptors, Unmade> {
        let found = device::look(&self.bus, end, self.interrupts);
        let Made { mut device, descriptors, region } = match found {
            Look::Ready(made) => *made,
            Look::Absent(what) => return Err(Unmade::Yet(what)),
            Look::Failed(why) => return Err(Unmade::Ever(why)),
        };
        self.watch(end.channel, &region)
            .map_err(|error| Unmade::Ever(format!("its release can't be awaited: {error}")))?;
        if self.announced.remove(&end.channel) == Some(true) {
            device.hang_up();
        }
        self.made.insert(end.channel, device);
        Ok(descriptors)
    }

    fn watch(&self, channel: u32, region: &Path) -> io::Result<()> {
        let (region, release, rung) = (region.to_owned(), self.release.clone(), Arc::clone(&self.rung));
        let wait = move || {
            if let Err(error) = device::await_release(&region) {
                // The device is gone before its time: so is who had it.
                tracing::warn!(channel, %error, "a channel's device vanished while it was in use");
            }
            // The agent is ending if nobody hears it.
            let _told = release.send(channel);
            rung.signal();
        };
        let name = format!("channel-{channel}");
        std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(wait).map(drop)
    }

    /// Channels that nobody here has any more; their devices are let go.
    pub fn take_released(&mut self) -> BTreeSet<u32> {
        self.rung.drain();
        let channels: BTreeSet<u32> = self.released.try_iter().collect();
        self.made.retain(|channel, _| !channels.contains(channel));
        channels
    }

    /// Nobody at the other end is left.
    pub fn hang_up(&mut self, channel: u32) {
        if let Some(device) = self.made.get_mut(&channel) {
            device.hang_up();
        } else if let Some(gone) = self.announced.get_mut(&channel) {
            *gone = true;
        }
    }

    /// The peer rings.
    pub fn ring(&self, channel: u32, vector: u8) {
        // One that was released meanwhile hears nothing.
        if let Some(device) = self.made.get(&channel) {
            device.ring(vector);
        }
    }
}
