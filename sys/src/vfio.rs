//! PCI devices that a program drives itself, by vfio: here as much of it as it takes to be
//! interrupted by one.
//!
//! The device must be bound to the driver `vfio-pci`, and its IOMMU group must hold nothing else.
//! No memory of ours is ever mapped for the device: it can reach none.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};

/// Numbers of the requests: `_IO(';', 100 + n)` of linux/vfio.h.
mod request {
    const fn number(n: libc::c_ulong) -> libc::c_ulong {
        (b';' as libc::c_ulong) << 8 | (100 + n)
    }
    pub(super) const GET_API_VERSION: libc::c_ulong = number(0);
    pub(super) const SET_IOMMU: libc::c_ulong = number(2);
    pub(super) const GROUP_GET_STATUS: libc::c_ulong = number(3);
    pub(super) const GROUP_SET_CONTAINER: libc::c_ulong = number(4);
    pub(super) const GROUP_GET_DEVICE_FD: libc::c_ulong = number(6);
    pub(super) const DEVICE_GET_REGION_INFO: libc::c_ulong = number(8);
    pub(super) const DEVICE_GET_IRQ_INFO: libc::c_ulong = number(9);
    pub(super) const DEVICE_SET_IRQS: libc::c_ulong = number(10);
}

const API_VERSION: libc::c_int = 0;
/// The kind of IOMMU that all x86 and ARM machines have.
const TYPE1_IOMMU: libc::c_ulong = 1;
/// All devices of the group are bound to vfio.
const GROUP_VIABLE: u32 = 1;
/// Index of a PCI device's configuration space.
const CONFIG_REGION: u32 = 7;
/// Index of a PCI device's MSI-X interrupts.
const MSIX: u32 = 2;
const IRQ_SET_DATA_EVENTFD: u32 = 1 << 2;
const IRQ_SET_ACTION_TRIGGER: u32 = 1 << 5;

/// Where the command word stands in configuration space.
const COMMAND: u64 = 4;
/// In the command word: the device answers at its memory, and may write to memory itself, which is
/// what an interrupt is.
const COMMAND_MEMORY_AND_MASTER: u16 = 0x2 | 0x4;

/// Most interrupts that [`Device::interrupt`] sets.
pub const INTERRUPTS_MAX: usize = 8;

#[repr(C)]
struct GroupStatus {
    argsz: u32,
    flags: u32,
}

#[repr(C)]
struct RegionInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    cap_offset: u32,
    size: u64,
    offset: u64,
}

#[repr(C)]
struct IrqInfo {
    argsz: u32,
    flags: u32,
    index: u32,
    count: u32,
}

#[repr(C)]
struct IrqSet {
    argsz: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    events: [i32; INTERRUPTS_MAX],
}

/// A device that this process holds. As long as it is held, it answers and interrupts.
#[derive(Debug)]
pub struct Device {
    device: OwnedFd,
    // Behind the device, which is closed first.
    _group: OwnedFd,
    _container: OwnedFd,
}

impl Device {
    /// Takes the device at `address` (such as `0000:01:00.0`), the only one of IOMMU group `group`,
    /// and switches on its memory and its interrupts.
    ///
    /// # Errors
    /// Those of opening `/dev/vfio/vfio` and `/dev/vfio/GROUP` (`NotFound`: the kernel has no vfio,
    /// or the device is not bound to it yet) and of their requests; `Unsupported`: another version
    /// of vfio, or a group that holds devices of other drivers.
    pub fn open(group: u32, address: &str) -> io::Result<Device> {
        let open = |path: &str| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let name = CString::new(address)?;
        let container = open("/dev/vfio/vfio")?;
        let unsupported = |text: &'static str| io::Error::new(io::ErrorKind::Unsupported, text);
        if plain(&container, request::GET_API_VERSION, 0)? != API_VERSION {
            return Err(unsupported("this kernel speaks another version of vfio"));
        }
        let group = open(&format!("/dev/vfio/{group}"))?;
        let mut status = GroupStatus { argsz: size_of::<GroupStatus>() as u32, flags: 0 };
        // SAFETY: GROUP_GET_STATUS reads and writes a `GroupStatus`, whose size stands in `argsz`.
        unsafe { structured(&group, request::GROUP_GET_STATUS, &mut status) }?;
        if status.flags & GROUP_VIABLE == 0 {
            return Err(unsupported("the device shares its IOMMU group with one that is not bound to vfio"));
        }
        let mut of: RawFd = container.as_raw_fd();
        // SAFETY: GROUP_SET_CONTAINER reads a C int, the descriptor of a container, which is open.
        unsafe { structured(&group, request::GROUP_SET_CONTAINER, &mut of) }?;
        plain(&container, request::SET_IOMMU, TYPE1_IOMMU)?;
        // SAFETY: GROUP_GET_DEVICE_FD reads a string that ends with a zero, which `name` is, and
        // returns a descriptor.
        let device =
            unsafe { libc::ioctl(group.as_raw_fd(), request::GROUP_GET_DEVICE_FD as _, name.as_ptr()) };
        // SAFETY: a descriptor that the kernel has just made for us, and that nobody else knows.
        let device = unsafe { OwnedFd::from_raw_fd(checked(device)?) };
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::CLOEXEC)?;
        let device = Device { device, _group: group, _container: container };
        device.switch_on()?;
        Ok(device)
    }

    fn switch_on(&self) -> io::Result<()> {
        let argsz = size_of::<RegionInfo>() as u32;
        let mut info =
            RegionInfo { argsz, flags: 0, index: CONFIG_REGION, cap_offset: 0, size: 0, offset: 0 };
        // SAFETY: DEVICE_GET_REGION_INFO reads and writes a `RegionInfo`, whose size stands in
        // `argsz`.
        unsafe { structured(&self.device, request::DEVICE_GET_REGION_INFO, &mut info) }?;
        let at = info.offset + COMMAND;
        let mut command = [0; 2];
        let read = rustix::io::pread(&self.device, &mut command, at)?;
        let command = u16::from_le_bytes(command) | COMMAND_MEMORY_AND_MASTER;
        let written = rustix::io::pwrite(&self.device, &command.to_le_bytes(), at)?;
        if (read, written) == (2, 2) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// How many MSI-X interrupts the device has.
    ///
    /// # Errors
    /// Those of the request.
    pub fn interrupts(&self) -> io::Result<usize> {
        let mut info = IrqInfo { argsz: size_of::<IrqInfo>() as u32, flags: 0, index: MSIX, count: 0 };
        // SAFETY: DEVICE_GET_IRQ_INFO reads and writes an `IrqInfo`, whose size stands in `argsz`.
        unsafe { structured(&self.device, request::DEVICE_GET_IRQ_INFO, &mut info) }?;
        Ok(info.count as usize)
    }

    /// From now on the device's MSI-X interrupts, from the first on, write these eventfds. The
    /// kernel holds on to them; the caller need not.
    ///
    /// # Errors
    /// Those of the request; `InvalidInput` for more than [`INTERRUPTS_MAX`], or none.
    pub fn interrupt(&self, events: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut set = IrqSet {
            argsz: size_of::<IrqSet>() as u32,
            flags: IRQ_SET_DATA_EVENTFD | IRQ_SET_ACTION_TRIGGER,
            index: MSIX,
            start: 0,
            count: u32::try_from(events.len()).unwrap_or(u32::MAX),
            events: [-1; INTERRUPTS_MAX],
        };
        let places = set.events.get_mut(..events.len()).filter(|places| !places.is_empty());
        for (place, event) in places.ok_or(io::ErrorKind::InvalidInput)?.iter_mut().zip(events) {
            *place = event.as_raw_fd();
        }
        // SAFETY: DEVICE_SET_IRQS reads an `IrqSet` with as many descriptors as `count` says; all
        // are open, and `argsz` is its size.
        unsafe { structured(&self.device, request::DEVICE_SET_IRQS, &mut set) }.map(drop)
    }
}

fn checked(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// A request whose argument is a number.
fn plain(descriptor: &OwnedFd, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the requests that come here take a number, or ignore it; the descriptor is open.
    checked(unsafe { libc::ioctl(descriptor.as_raw_fd(), request as _, argument) })
}

/// A request whose argument is a structure.
///
/// # Safety
/// `request` reads and writes a `T`, or nothing, at the address that it is given.
unsafe fn structured<T>(
    descriptor: impl AsFd,
    request: libc::c_ulong,
    argument: &mut T,
) -> io::Result<libc::c_int> {
    // SAFETY: the address is that of a `T` which lives as long as the call, and the caller vouches
    // for the request.
    checked(unsafe {
        libc::ioctl(descriptor.as_fd().as_raw_fd(), request as _, std::ptr::from_mut(argument))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_are_those_of_the_kernel() {
        // From linux/vfio.h, for a machine where `_IO` has no direction bits.
        assert_eq!(request::GET_API_VERSION, 0x3b64);
        assert_eq!(request::DEVICE_SET_IRQS, 0x3b6e);
        assert_eq!(size_of::<RegionInfo>(), 32);
        assert_eq!(size_of::<IrqSet>(), 20 + 4 * INTERRUPTS_MAX);
    }

    #[test]
    fn a_device_that_is_not_there_is_refused() {
        let refused = Device::open(u32::MAX, "0000:00:00.0").unwrap_err();
        assert!(refused.raw_os_error().is_some(), "{refused}");
        assert!(Device::open(0, "nul\0").is_err());
    }
}
