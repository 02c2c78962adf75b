//! The region of a channel: made, mapped, and its header checked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use sys::region::Region;
use wire::ring as layout;

use crate::kinds::{Material, Size};
use crate::{Config, CreateError, HugePages, Mode, OpenError, OpenOptions, Pages};

/// For `/proc/PID/maps`.
const NAME: &str = "tombolo-channel";

/// Words of the header that the maker writes.
type Header = [(usize, u64); 7];

/// The least cost of a wake-up, in ns, where a hypervisor stands between the two ends: an interrupt
/// of a guest takes some tens of us. It is the most that an end believes.
const APART_WAKE_NS: u32 = 50_000;

fn header(config: &Config) -> Header {
    let ring_bytes = config.ring_bytes;
    let spin_ns = if config.apart { APART_WAKE_NS } else { config.spin_ns.unwrap_or(0) };
    [
        (layout::OFFSET_MAGIC, layout::MAGIC),
        (layout::OFFSET_VERSION, layout::VERSION),
        (layout::OFFSET_RING_BYTES, u64::from(ring_bytes)),
        (layout::OFFSET_REGION_BYTES, layout::region_bytes(ring_bytes)),
        (layout::OFFSET_MODE, config.mode.word()),
        (layout::OFFSET_SPIN_NS, u64::from(spin_ns)),
        (layout::OFFSET_APART, u64::from(config.apart)),
    ]
}

pub(crate) fn make(config: &Config) -> Result<OwnedFd, CreateError> {
    let bytes = region_bytes(config);
    if config.huge_pages != HugePages::No {
        match make_huge(config, bytes) {
            Err(_) if config.huge_pages == HugePages::IfFree => {}
            Err(source) => return Err(CreateError::HugePages { bytes, source }),
            Ok(memory) => return Ok(memory),
        }
    }
    make_ordinary(config, bytes).map_err(|source| CreateError::region(bytes, source))
}

fn make_ordinary(config: &Config, bytes: u64) -> io::Result<OwnedFd> {
    let memory = sys::memfd::sealed(NAME, bytes)?;
    let mut page = [0_u8; layout::OFFSET_ENDS];
    for (offset, value) in header(config) {
        page[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }
    let written = rustix::io::pwrite(&memory, &page, 0)?;
    if written == page.len() { Ok(memory) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn make_huge(config: &Config, bytes: u64) -> io::Result<OwnedFd> {
    if config.apart {
        let text = "an end in a guest takes no region in huge pages";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let memory = sys::memfd::sealed_huge(NAME, bytes)?;
    let sealed = sys::memfd::check_sealed(&memory)?.unwrap_or(0);
    let pages = pages(&memory)?;
    if ring_bytes(sealed, pages) != Some(config.ring_bytes) {
        let text =
            "rings this small share one huge page, so that their size does not follow from the region's";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    // A mapping reserves the pages for the memfd, for as long as that lives; and such a memfd can't
    // be written otherwise.
    let length = usize::try_from(sealed).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let region = Region::map(&memory, length)?;
    region.populate()?;
    for (offset, value) in header(config) {
        region.store_u64(offset, value, Ordering::Relaxed);
    }
    Ok(memory)
}

pub(crate) fn pages(memory: impl AsFd) -> io::Result<Pages> {
    let huge = sys::memfd::huge_page_bytes(memory)?;
    Ok(huge.map_or(Pages::Ordinary, |bytes| Pages::Huge { bytes }))
}

/// The bytes of one ring in a region of `bytes`, if that has a size that regions have. Huge pages
/// round the size up, and so does a maker whose ends are apart: to a power of two.
fn ring_bytes(bytes: u64, pages: Pages) -> Option<u32> {
    let most = bytes.checked_sub(layout::HEADER_BYTES as u64)? / 2;
    let ring_bytes = u32::try_from(1_u64.checked_shl(most.checked_ilog2()?)?).ok()?;
    if !layout::is_ring_bytes(u64::from(ring_bytes)) {
        return None;
    }
    let needed = layout::region_bytes(ring_bytes);
    let sized = match pages {
        Pages::Ordinary => bytes == needed || bytes == layout::apart_region_bytes(ring_bytes),
        Pages::Huge { bytes: unit } => needed.checked_next_multiple_of(unit) == Some(bytes),
    };
    sized.then_some(ring_bytes)
}

/// The mode in the header, before the region is mapped.
pub(crate) fn mode(material: &dyn Material) -> Result<Mode, OpenError> {
    let word = material.word(layout::OFFSET_MODE)?;
    mode_of(word.ok_or(OpenError::RegionBytes { bytes: 0 })?)
}

fn mode_of(word: u64) -> Result<Mode, OpenError> {
    Mode::of_word(word).ok_or(OpenError::UnknownMode { found: word })
}

/// A region that was found to be a channel's.
#[derive(Debug)]
pub(crate) struct Checked {
    pub region: Region,
    pub ring_bytes: u32,
    pub mode: Mode,
    /// The header's allegation that the ends do not share a kernel.
    pub apart: bool,
}

/// Maps the region, sees to its pages, checks its header.
pub(crate) fn open(material: &dyn Material, options: &OpenOptions) -> Result<Checked, OpenError> {
    let Size { bytes, pages } = material.size()?;
    let in_pages = pages.unwrap_or(Pages::Ordinary);
    let ring_bytes = ring_bytes(bytes, in_pages).ok_or(OpenError::RegionBytes { bytes })?;
    if in_pages != Pages::Ordinary && !options.huge_pages {
        return Err(OpenError::HugePages);
    }
    // What a power of two has beyond that is nobody's.
    let mapped = if in_pages == Pages::Ordinary { layout::region_bytes(ring_bytes) } else { bytes };
    let length = usize::try_from(mapped).map_err(|_| OpenError::RegionBytes { bytes })?;
    let map = |source| OpenError::memory("map the region of a channel", mapped, source);
    let region = material.map(length).map_err(map)?;
    if let Some(pages) = pages {
        provide(&region, mapped, pages, options)?;
    }
    check_header(region, ring_bytes)
}

/// Checks the header of a region that somebody else has mapped, whole.
pub(crate) fn check_mapped(region: Region) -> Result<Checked, OpenError> {
    let bytes = region.len() as u64;
    let ring_bytes = ring_bytes(bytes, Pages::Ordinary).ok_or(OpenError::RegionBytes { bytes })?;
    check_header(region, ring_bytes)
}

/// Bytes of the memory that a channel of this configuration takes: for makers whose memory is no
/// memfd.
#[must_use]
pub fn region_bytes(config: &Config) -> u64 {
    if config.apart {
        layout::apart_region_bytes(config.ring_bytes)
    } else {
        layout::region_bytes(config.ring_bytes)
    }
}

/// Writes a channel's header into fresh memory (zeros) of [`region_bytes`], before anybody else has
/// it: for makers whose memory is no memfd. [`crate::pair`] does it by itself.
///
/// # Errors
/// [`CreateError::RingBytes`], [`CreateError::Region`] when the memory has another size.
pub fn write_header(region: &Region, config: &Config) -> Result<(), CreateError> {
    let ring_bytes = config.ring_bytes;
    if !layout::is_ring_bytes(u64::from(ring_bytes)) {
        return Err(CreateError::RingBytes { ring_bytes });
    }
    if self::ring_bytes(region.len() as u64, Pages::Ordinary) != Some(ring_bytes) {
        let text = format!("the memory has {} bytes, and not those of the rings", region.len());
        return Err(CreateError::Region(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    for (offset, value) in header(config) {
        region.store_u64(offset, value, Ordering::Relaxed);
    }
    Ok(())
}

fn provide(region: &Region, bytes: u64, pages: Pages, options: &OpenOptions) -> Result<(), OpenError> {
    if options.huge_pages && pages == Pages::Ordinary {
        // A hint: what the machine makes of it shows in its settings, and costs nothing where they
        // say no.
        let _preferred = region.prefer_huge_pages();
    }
    if options.lock {
        region.lock().map_err(|source| OpenError::lock(bytes, source))?;
    }
    // Huge pages that are not there yet would be found missing by a SIGBUS.
    if options.populate || pages != Pages::Ordinary {
        let action = "provide the memory of a channel's region beforehand (this needs Linux 5.14)";
        region.populate().map_err(|source| OpenError::memory(action, bytes, source))?;
    }
    Ok(())
}

/// The header must agree with the size. The peer may have scribbled over it before we came: then we
/// refuse. Each word is read once.
fn check_header(region: Region, ring_bytes: u32) -> Result<Checked, OpenError> {
    let word = |offset| region.load_u64(offset, Ordering::Relaxed);
    let found = word(layout::OFFSET_MAGIC);
    if found != layout::MAGIC {
        return Err(OpenError::Magic { found });
    }
    let found = word(layout::OFFSET_VERSION);
    if found != layout::VERSION {
        return Err(OpenError::Version { found });
    }
    for (field, offset, expected) in [
        ("ring_bytes", layout::OFFSET_RING_BYTES, u64::from(ring_bytes)),
        ("region_bytes", layout::OFFSET_REGION_BYTES, layout::region_bytes(ring_bytes)),
    ] {
        let found = word(offset);
        if found != expected {
            return Err(OpenError::Size { field, found, expected });
        }
    }
    let mode = mode_of(word(layout::OFFSET_MODE))?;
    // Once, and never again: whoever changes it gains nothing.
    let apart = word(layout::OFFSET_APART) != 0;
    Ok(Checked { region, ring_bytes, mode, apart })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may")]
mod tests {
    use super::*;

    const HUGE: Pages = Pages::Huge { bytes: 2 << 20 };

    #[test]
    fn the_size_of_the_rings_follows_from_that_of_the_region() {
        for shift in 12..=24 {
            assert_eq!(ring_bytes(4096 + (2 << shift), Pages::Ordinary), Some(1 << shift));
        }
        for bytes in [0, 1, 4096, 4096 + 4096, 4096 + 8193, 4096 + 6 * 4096, 4096 + (64 << 20), u64::MAX] {
            assert_eq!(ring_bytes(bytes, Pages::Ordinary), None, "{bytes}");
        }
    }

    #[test]
    fn ends_that_are_apart_have_regions_whose_size_is_a_power_of_two() {
        for shift in 12..=24 {
            let bytes = layout::apart_region_bytes(1 << shift);
            assert!(bytes.is_power_of_two());
            assert_eq!(ring_bytes(bytes, Pages::Ordinary), Some(1 << shift));
        }
        for bytes in [4096, 8192, 128 << 20, 1 << 63] {
            assert_eq!(ring_bytes(bytes, Pages::Ordinary), None, "{bytes}");
        }
    }

    #[test]
    fn huge_pages_round_the_region_up() {
        for (region_mib, ring_kib) in [(2, 512), (4, 1024), (6, 2048), (10, 4096), (18, 8192), (34, 16384)] {
            assert_eq!(ring_bytes(region_mib << 20, HUGE), Some(ring_kib << 10), "{region_mib} MiB");
            let needed = layout::region_bytes(ring_kib << 10).next_multiple_of(2 << 20);
            assert_eq!(needed, region_mib << 20);
        }
        for bytes in [0, 4096 + 8192, 8 << 20, 12 << 20, 66 << 20, (2 << 20) + 4096] {
            assert_eq!(ring_bytes(bytes, HUGE), None, "{bytes}");
        }
    }
}
