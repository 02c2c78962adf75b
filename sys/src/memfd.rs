//! Anonymous files that can be mapped by whoever holds a descriptor, and can't shrink under him.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{FileType, MemfdFlags, SealFlags};
use rustix::io::Errno;

/// The seals that a shared region must bear: nobody can make it shorter or longer, or lift the
/// seals.
pub const REGION_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The type of a memfd in huge pages, as statfs(2) says it.
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// The type of sysfs, where PCI devices show their memory, as statfs(2) says it.
const SYSFS_MAGIC: u64 = 0x6265_6572;

/// The unit of stat(2)'s block count.
const STAT_BLOCK_BYTES: u64 = 512;

/// Makes a zeroed memfd of `bytes` bytes with [`REGION_SEALS`]. `name` is for `/proc/PID/maps`
/// only.
///
/// # Errors
/// Those of memfd_create(2), ftruncate(2) and fcntl(2).
pub fn sealed(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    make(name, bytes, REGION_SEALS)
}

fn make(name: &str, bytes: u64, seals: SealFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Nobody executes a region, and some machines refuse memfds that could be. Kernels before 6.3
    // don't know the flag.
    let memory = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }?;
    rustix::fs::ftruncate(&memory, bytes)?;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    Ok(memory)
}

/// The use of a granted memory that its grantees may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// To be read.
    Read,
    /// To be read and written.
    Write,
}

impl Reach {
    /// The seals that such a memory bears.
    fn seals(self) -> SealFlags {
        match self {
            Reach::Read => REGION_SEALS.union(SealFlags::FUTURE_WRITE),
            Reach::Write => REGION_SEALS,
        }
    }
}

/// Makes a zeroed memfd of `bytes` bytes that keeps its size, and that can be sealed further, by
/// [`seal_for`].
///
/// # Errors
/// Those of memfd_create(2), ftruncate(2) and fcntl(2).
pub fn to_grant(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    make(name, bytes, SealFlags::SHRINK.union(SealFlags::GROW))
}

/// Seals a memory of [`to_grant`] for those it is granted to, and for good. To read: nobody can
/// write it but through what he has mapped before.
///
/// # Errors
/// Those of fcntl(2): `EPERM` where it was sealed for good before, `EINVAL` on kernels before 5.1.
pub fn seal_for(memory: impl AsFd, reach: Reach) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(memory, reach.seals())?)
}

/// The size of a memory of [`to_grant`], if it keeps its size; `None` if it lacks a seal (or is no
/// memfd at all).
///
/// # Errors
/// Those of fstat(2).
pub fn check_fixed(memory: impl AsFd) -> io::Result<Option<u64>> {
    let fixed = SealFlags::SHRINK.union(SealFlags::GROW);
    if !rustix::fs::fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(fixed)) {
        return Ok(None);
    }
    Ok(u64::try_from(rustix::fs::fstat(memory)?.st_size).ok())
}

/// The size of a memory that was granted, if it bears the seals of [`seal_for`]; `None` if it lacks
/// one (or is no memfd at all).
///
/// # Errors
/// Those of fstat(2).
pub fn check_granted(memory: impl AsFd, reach: Reach) -> io::Result<Option<u64>> {
    let bears = rustix::fs::fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(reach.seals()));
    if bears { check_sealed(memory) } else { Ok(None) }
}

/// Bytes of memory that have been taken for a memfd so far, by whoever wrote or read there first:
/// that one is charged for them.
///
/// # Errors
/// Those of fstat(2).
pub fn taken_bytes(memory: impl AsFd) -> io::Result<u64> {
    /// The unit of stat(2), whatever the size of a page.
    const BLOCK_BYTES: u64 = 512;
    let blocks = rustix::fs::fstat(memory)?.st_blocks;
    Ok(u64::try_from(blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES))
}

/// Gives the memory of a region of [`sealed`] back, whoever has it mapped: it reads as zeros from
/// now on, and whoever touches it is charged for it.
///
/// # Errors
/// Those of fallocate(2).
pub fn free(memory: impl AsFd) -> io::Result<()> {
    let bytes = u64::try_from(rustix::fs::fstat(&memory)?.st_size).unwrap_or(0);
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    if bytes > 0 { Ok(rustix::fs::fallocate(memory, hole, 0, bytes)?) } else { Ok(()) }
}

/// As [`sealed`], in the machine's default huge pages; `bytes` is rounded up to whole ones. It is
/// in the nature of huge pages that whoever maps this memfd can take pages out of it, and that the
/// next access to one kills with `SIGBUS` if none is free.
///
/// # Errors
/// As there, and `ENODEV`, `ENOSYS` or `EINVAL` when the kernel has no huge pages. Whether enough
/// are free shows when the memfd is mapped.
pub fn sealed_huge(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let memory = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }?;
    let page = huge_page_bytes(&memory)?.ok_or(Errno::NODEV)?;
    let rounded = bytes.checked_next_multiple_of(page).ok_or(Errno::FBIG)?;
    rustix::fs::ftruncate(&memory, rounded)?;
    rustix::fs::fcntl_add_seals(&memory, REGION_SEALS)?;
    Ok(memory)
}

/// Bytes of a memfd's huge pages; `None` if it has ordinary ones.
///
/// # Errors
/// Those of fstatfs(2).
pub fn huge_page_bytes(memory: impl AsFd) -> io::Result<Option<u64>> {
    let found = rustix::fs::fstatfs(memory)?;
    // The types of these fields differ between architectures; neither value needs more than 32
    // bits.
    let is_huge = (found.f_type as u64 & 0xffff_ffff) == HUGETLBFS_MAGIC;
    Ok(is_huge.then_some(found.f_bsize as u64))
}

/// Bytes of memory behind a memfd at present.
///
/// # Errors
/// Those of fstat(2).
pub fn resident_bytes(memory: impl AsFd) -> io::Result<u64> {
    let blocks = rustix::fs::fstat(memory)?.st_blocks;
    Ok(u64::try_from(blocks).unwrap_or(0) * STAT_BLOCK_BYTES)
}

/// The size of a memfd, if it bears [`REGION_SEALS`]; `None` if it lacks one (or is no memfd at
/// all).
///
/// # Errors
/// Those of fstat(2).
pub fn check_sealed(memory: impl AsFd) -> io::Result<Option<u64>> {
    let Ok(seals) = rustix::fs::fcntl_get_seals(&memory) else {
        return Ok(None);
    };
    if !seals.contains(REGION_SEALS) {
        return Ok(None);
    }
    let size = rustix::fs::fstat(&memory)?.st_size;
    Ok(u64::try_from(size).ok())
}

/// The size of a PCI device's memory that a descriptor of its file in sysfs stands for; `None` if
/// it is no file of sysfs. It stays as large while the device is there. **A device that is
/// unplugged while its memory is mapped leaves nothing behind the mapping: the next access kills
/// with `SIGBUS`.** So whoever unplugs waits until nobody has it mapped.
///
/// # Errors
/// Those of fstat(2) and fstatfs(2).
pub fn device_bytes(memory: impl AsFd) -> io::Result<Option<u64>> {
    let found = rustix::fs::fstatfs(&memory)?;
    if (found.f_type as u64 & 0xffff_ffff) != SYSFS_MAGIC || !is_file(&memory)? {
        return Ok(None);
    }
    Ok(u64::try_from(rustix::fs::fstat(&memory)?.st_size).ok())
}

/// Whether the descriptor is a regular file (a memfd is one).
///
/// # Errors
/// Those of fstat(2).
pub fn is_file(descriptor: impl AsFd) -> io::Result<bool> {
    let stat = rustix::fs::fstat(descriptor)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_memfd_keeps_its_size() {
        let memory = sealed("test", 4096).unwrap();
        assert_eq!(check_sealed(&memory).unwrap(), Some(4096));
        assert!(rustix::fs::ftruncate(&memory, 0).is_err());
        assert!(rustix::fs::ftruncate(&memory, 8192).is_err());
        assert!(is_file(&memory).unwrap());
    }

    #[test]
    fn memory_that_is_freed_is_nobodys_though_it_is_mapped() {
        let memory = sealed("test", 16384).unwrap();
        let region = crate::region::Region::map(&memory, 16384).unwrap();
        region.populate().unwrap();
        region.copy_in(5000, b"x");
        free(&memory).unwrap();
        assert_eq!(taken_bytes(&memory).unwrap(), 0);
        let mut byte = [7];
        region.copy_out(5000, &mut byte);
        assert_eq!(byte, [0]);
        assert_eq!(check_sealed(&memory).unwrap(), Some(16384));
    }

    #[test]
    fn a_granted_memory_is_written_by_those_who_could_before_alone() {
        use crate::region::Region;
        let memory = to_grant("test", 4096).unwrap();
        assert_eq!(check_granted(&memory, Reach::Read).unwrap(), None);
        assert_eq!(check_fixed(&memory).unwrap(), Some(4096));
        let owners = Region::map(&memory, 4096).unwrap();
        seal_for(&memory, Reach::Read).unwrap();
        assert_eq!(check_granted(&memory, Reach::Read).unwrap(), Some(4096));
        assert!(Region::map(&memory, 4096).is_err());
        assert!(rustix::io::pwrite(&memory, b"x", 0).is_err());
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&memory, hole, 0, 4096).is_err());
        owners.copy_in(0, b"y");
        let mut byte = [0];
        rustix::io::pread(&memory, &mut byte, 0).unwrap();
        assert_eq!(&byte, b"y");
        assert!(seal_for(&memory, Reach::Write).is_err());
    }

    #[test]
    fn one_that_was_granted_to_be_written_can_be_sealed_no_further() {
        let memory = to_grant("test", 4096).unwrap();
        seal_for(&memory, Reach::Write).unwrap();
        assert_eq!(check_granted(&memory, Reach::Write).unwrap(), Some(4096));
        assert_eq!(check_granted(&memory, Reach::Read).unwrap(), None);
        assert!(seal_for(&memory, Reach::Read).is_err());
        assert!(crate::region::Region::map(&memory, 4096).is_ok());
        assert!(rustix::fs::ftruncate(&memory, 0).is_err());
    }

    #[test]
    fn memory_is_taken_by_whoever_comes_first() {
        let memory = to_grant("test", 16384).unwrap();
        assert_eq!(taken_bytes(&memory).unwrap(), 0);
        let region = crate::region::Region::map(&memory, 16384).unwrap();
        region.copy_in(5000, b"x");
        assert_eq!(taken_bytes(&memory).unwrap(), 4096);
        region.populate().unwrap();
        assert_eq!(taken_bytes(&memory).unwrap(), 16384);
    }

    #[test]
    fn huge_pages_are_told_apart() {
        assert_eq!(huge_page_bytes(sealed("test", 4096).unwrap()).unwrap(), None);
        match sealed_huge("test", 4097) {
            Ok(memory) => {
                let page = huge_page_bytes(&memory).unwrap().unwrap();
                assert_eq!(check_sealed(&memory).unwrap(), Some(page));
            }
            Err(error) => println!("skipped: this kernel makes no memfd in huge pages: {error}"),
        }
    }

    #[test]
    fn the_memory_of_devices_is_told_apart() {
        assert_eq!(device_bytes(sealed("test", 4096).unwrap()).unwrap(), None);
        let flags = rustix::fs::OFlags::RDONLY;
        let file = rustix::fs::open("/sys/kernel/uevent_seqnum", flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(device_bytes(&file).unwrap(), Some(4096));
        let folder = rustix::fs::open("/sys/kernel", flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(device_bytes(&folder).unwrap(), None);
    }

    #[test]
    fn an_unsealed_one_is_told_apart() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("test", flags).unwrap();
        assert_eq!(check_sealed(&memory).unwrap(), None);
        let (pipe, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        assert_eq!(check_sealed(&pipe).unwrap(), None);
        assert!(!is_file(&pipe).unwrap());
    }
}
