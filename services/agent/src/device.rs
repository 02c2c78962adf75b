//! A channel's end in a guest: the PCI device that the node plugged in, and the five descriptors
//! that are made of it (`docs/spec/ring.md`).

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use sys::eventfd::Eventfd;
use sys::vfio;
use wire::guest::{End, VECTOR_DATA};
use wire::ring::END_DESCRIPTORS;

/// The device: its maker, and what it is (`docs/specs/ivshmem-spec` of QEMU).
const VENDOR: &str = "0x1af4";
/// See [`VENDOR`].
const DEVICE: &str = "0x1110";
/// The driver that lets a program be interrupted.
const DRIVER: &str = "vfio-pci";
/// Interrupts of an end: *data* and *room*.
const INTERRUPTS: usize = 2;

/// A device that is an end of a channel. The kernel lets go of it when this is dropped.
#[derive(Debug)]
pub(crate) struct Device {
    data: Eventfd,
    room: Eventfd,
    /// The writing half of *life*: whoever has the end hears a hang-up when it is closed.
    life: Option<OwnedFd>,
    /// Keeps the device on and its interrupts coming.
    _held: Option<vfio::Device>,
}

/// The descriptors that are to be passed to a member, and those that are to be watched.
#[derive(Debug)]
pub(crate) struct Made {
    pub device: Device,
    /// In the order of an end; they are the member's once they are sent.
    pub descriptors: [OwnedFd; END_DESCRIPTORS],
    /// Where the region is, to be locked: see [`await_release`].
    pub region: PathBuf,
}

/// How far a device is.
#[derive(Debug)]
pub(crate) enum Look {
    /// Not there yet, or not ready: what is missing. Look again.
    Absent(&'static str),
    /// Ready.
    Ready(Box<Made>),
    /// It will never be.
    Failed(String),
}

/// Whether this kernel can have programs interrupted: it has vfio, and an IOMMU to go with it.
pub(crate) fn can_interrupt(bus: &Path) -> bool {
    let some = |path: &str| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    bus.join("drivers").join(DRIVER).exists()
        && Path::new("/dev/vfio/vfio").exists()
        && some("/sys/kernel/iommu_groups")
}

/// Looks for the device of an end, and takes it into use if it is there.
pub(crate) fn look(bus: &Path, end: &End, interrupts: bool) -> Look {
    match take(bus, end, interrupts) {
        Ok(made) => Look::Ready(Box::new(made)),
        Err(Missing::Yet(what)) => Look::Absent(what),
        Err(Missing::Ever(why)) => Look::Failed(format!("the device at {}: {why}", end.device)),
    }
}

/// Why a device can't be taken into use.
enum Missing {
    /// The kernel is not done with it yet: what is not there.
    Yet(&'static str),
    /// It will never be: why.
    Ever(String),
}

/// A result whose absence may be mended by waiting.
fn yet<T>(what: &'static str, result: io::Result<T>) -> Result<T, Missing> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Missing::Yet(what),
        _ => Missing::Ever(format!("{what}: {error}")),
    })
}

/// Where a device is: `1c.3/00.0`.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    port: String,
    behind: String,
}

impl Place {
    fn read(text: &str) -> Option<Self> {
        let (port, behind) = text.split_once('/')?;
        let good = |text: &str| {
            let bytes = text.as_bytes();
            let hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
            bytes.len() == 4
                && hex(bytes.first())
                && hex(bytes.get(1))
                && bytes.get(2) == Some(&b'.')
                && bytes.get(3).is_some_and(|digit| (b'0'..=b'7').contains(digit))
        };
        (good(port) && good(behind)).then(|| Self { port: port.to_owned(), behind: behind.to_owned() })
    }

    /// The device's folder in sysfs, which is in that of its port.
    fn find(&self, bus: &Path) -> Option<PathBuf> {
        let port = bus.join("devices").join(format!("0000:00:{}", self.port));
        let ending = format!(":{}", self.behind);
        let entries = fs::read_dir(port).ok()?.filter_map(Result::ok);
        let mut found = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("0000:") && name.ends_with(&ending) && name.len() == "0000:01:00.0".len()
        });
        found.next().map(|entry| entry.path())
    }
}

fn take(bus: &Path, end: &End, interrupts: bool) -> Result<Made, Missing> {
    let place =
        Place::read(&end.device).ok_or_else(|| Missing::Ever("that is no place of a device".into()))?;
    let folder = place.find(bus).ok_or(Missing::Yet("the device behind its port"))?;
    let text = |file: &str| yet("its number", fs::read_to_string(folder.join(file)));
    if (text("vendor")?.trim(), text("device")?.trim()) != (VENDOR, DEVICE) {
        return Err(Missing::Ever("it is none of a channel".into()));
    }
    // The last of its files to appear.
    let memory = folder.join("resource2");
    let region = yet("its memory", open(&memory))?;
    let bell = yet("its register", open(&folder.join("resource0")))?;
    let found = yet("its memory", rustix::fs::fstat(&region).map_err(io::Error::from))?.st_size;
    if u64::try_from(found).unwrap_or(0) < end.bytes {
        return Err(Missing::Ever(format!("its memory has {found} bytes, and the channel {}", end.bytes)));
    }
    let held = if interrupts {
        Some(hold(bus, &folder)?)
    } else {
        yet("its switch", fs::write(folder.join("enable"), "1"))?;
        None
    };
    let made = make(end, region, bell, held);
    made.map(|made| Made { region: memory, ..made }).map_err(|error| Missing::Ever(error.to_string()))
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Binds the device to the driver that programs can use, and takes it.
fn hold(bus: &Path, folder: &Path) -> Result<vfio::Device, Missing> {
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| Missing::Ever("its name is no text".into()))?;
    let is_bound = || link(folder, "driver").as_deref() == Some(DRIVER);
    if !is_bound() {
        yet("its driver", fs::write(folder.join("driver_override"), DRIVER))?;
        yet("its driver", fs::write(bus.join("drivers_probe"), name))?;
        if !is_bound() {
            return Err(Missing::Yet("its driver"));
        }
    }
    let group = link(folder, "iommu_group").and_then(|group| group.parse().ok());
    let group = group.ok_or(Missing::Yet("its IOMMU group"))?;
    let device = match vfio::Device::open(group, name) {
        // Bound a moment ago: its group does not count it yet.
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => {
            return Err(Missing::Yet("its place in its IOMMU group"));
        }
        // Its reset finds it, or the port above it, in use by the kernel for a moment.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(Missing::Yet("its device of vfio, which the kernel is busy with"));
        }
        opened => yet("its device of vfio", opened)?,
    };
    let count = yet("its interrupts", device.interrupts())?;
    if count < INTERRUPTS {
        return Err(Missing::Ever(format!("it has {count} interrupts, and an end {INTERRUPTS}")));
    }
    Ok(device)
}

/// The last component of what a link of the device's points to.
fn link(folder: &Path, name: &str) -> Option<String> {
    let target = fs::read_link(folder.join(name)).ok()?;
    target.file_name()?.to_str().map(str::to_owned)
}

fn make(end: &End, region: OwnedFd, bell: OwnedFd, held: Option<vfio::Device>) -> io::Result<Made> {
    let (data, room) = (Eventfd::new()?, Eventfd::new()?);
    if let Some(device) = &held {
        device.interrupt(&[data.as_fd(), room.as_fd()])?;
    }
    // Held by this open file for as long as anybody has it or a map of it: see `await_release`.
    rustix::fs::flock(&region, FlockOperation::NonBlockingLockExclusive)?;
    let (theirs, ours) = sys::doorbell::life()?;
    let copy = |event: &Eventfd| event.as_fd().try_clone_to_owned();
    let (data_copy, room_copy) = (copy(&data)?, copy(&room)?);
    let descriptors = if end.side == 0 {
        [region, data_copy, room_copy, bell, theirs]
    } else {
        [data_copy, room_copy, bell, theirs, region]
    };
    let device = Device { data, room, life: Some(ours), _held: held };
    Ok(Made { device, descriptors, region: PathBuf::new() })
}

impl Device {
    /// Nobody at the other end is left.
    pub fn hang_up(&mut self) {
        self.life = None;
    }

    /// The peer rings, and the device can't interrupt.
    pub fn ring(&self, vector: u8) {
        let event = if vector == VECTOR_DATA { &self.data } else { &self.room };
        // A full one is rung already. Whoever has it could have made it blocking; then it is left
        // alone as well.
        if can_write(event.as_fd()) {
            event.signal();
        }
    }
}

fn can_write(descriptor: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut set, Some(&now)).is_ok() && set[0].revents().contains(PollFlags::OUT)
}

/// Waits until nobody has the region any more that was passed on: neither a descriptor nor a map,
/// in whatever process.
///
/// The open file that was passed holds a lock; whoever gets it next knows that that file is gone.
/// Waiting takes a thread of its own, as locks can't be waited for otherwise.
pub(crate) fn await_release(region: &Path) -> io::Result<()> {
    let again = open(region)?;
    Ok(rustix::io::retry_on_intr(|| rustix::fs::flock(&again, FlockOperation::LockExclusive))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ports_and_devices_and_nothing_else() {
        let place = Place { port: "1c.3".into(), behind: "00.0".into() };
        assert_eq!(Place::read("1c.3/00.0"), Some(place));
        for bad in [
            "",
            "1c.3",
            "1c.3/",
            "1c.8/00.0",
            "1c.3/00.0/",
            "../../../x",
            "1c.3/00",
            "zz.3/00.0",
            "1c:3/00.0",
        ] {
            assert_eq!(Place::read(bad), None, "{bad}");
        }
    }
}
