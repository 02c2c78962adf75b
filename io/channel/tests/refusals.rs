//! One broken end per rule, each with the error that a person gets.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::{AsFd, OwnedFd};

use channel::{Config, CreateError, End, OpenError, pair};
use rustix::fs::{MemfdFlags, SealFlags};
use wire::ring as layout;

const RING_BYTES: u32 = 4096;

fn descriptors() -> Vec<OwnedFd> {
    let (one, _) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    one.into_descriptors().into()
}

fn open(descriptors: Vec<OwnedFd>) -> Result<(), OpenError> {
    End::from_descriptors(descriptors)?.open().map(drop)
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&memory, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
    memory
}

/// An end whose header has `value` at `offset`.
fn with_header(offset: usize, value: u64) -> Vec<OwnedFd> {
    let descriptors = descriptors();
    rustix::io::pwrite(&descriptors[0], &value.to_le_bytes(), offset as u64).unwrap();
    descriptors
}

fn with_region(region: OwnedFd) -> Vec<OwnedFd> {
    let mut descriptors = descriptors();
    descriptors[0] = region;
    descriptors
}

#[test]
fn an_end_as_it_was_made_opens() {
    open(descriptors()).unwrap();
}

#[test]
fn a_size_that_is_not_allowed_is_not_made() {
    for ring_bytes in [0, 4095, 2048, 5000, 32 << 20, u32::MAX] {
        let error = pair(&Config { ring_bytes, ..Config::default() }).unwrap_err();
        assert!(
            matches!(error, CreateError::RingBytes { ring_bytes: named } if named == ring_bytes),
            "{error}"
        );
        assert!(error.to_string().contains("power of two from 4096 to 16777216"), "{error}");
    }
}

#[test]
fn a_wrong_number_of_descriptors() {
    for count in [0, 1, 4, 6] {
        let mut some = descriptors();
        some.truncate(count);
        if count == 6 {
            some.push(sys::doorbell::pair().unwrap().0);
        }
        let error = open(some).unwrap_err();
        assert!(matches!(error, OpenError::Count { got, expected: 5 } if got == count), "{error}");
    }
}

#[test]
fn descriptors_in_a_wrong_place() {
    for (one, other, index) in [(1, 2, 1), (3, 4, 3), (0, 2, 0)] {
        let mut swapped = descriptors();
        swapped.swap(one, other);
        let error = open(swapped).unwrap_err();
        assert!(matches!(error, OpenError::Descriptor { index: named, .. } if named == index), "{error}");
    }
    let mut two_regions = descriptors();
    two_regions[4] = two_regions[0].try_clone().unwrap();
    assert!(matches!(open(two_regions), Err(OpenError::Descriptor { index: 0, .. })));
    let blocking = descriptors();
    rustix::fs::fcntl_setfl(&blocking[1], rustix::fs::OFlags::empty()).unwrap();
    assert!(matches!(open(blocking), Err(OpenError::Descriptor { index: 1, .. })));
    let mut socket = descriptors();
    socket[2] = sys::descriptors::socket_pair().unwrap().0;
    assert!(matches!(open(socket), Err(OpenError::Descriptor { index: 2, .. })));
}

#[test]
fn the_second_end_with_its_descriptors_in_the_first_ones_order_is_refused() {
    let (_one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let mut rotated = Vec::from(other.into_descriptors());
    rotated.swap(0, 4);
    assert!(matches!(open(rotated), Err(OpenError::Descriptor { .. })));
}

#[test]
fn a_region_that_could_shrink() {
    let bytes = layout::region_bytes(RING_BYTES);
    for seals in [
        SealFlags::empty(),
        SealFlags::SHRINK | SealFlags::SEAL,
        SealFlags::GROW | SealFlags::SEAL,
        SealFlags::SHRINK | SealFlags::GROW,
    ] {
        let error = open(with_region(memfd(bytes, seals))).unwrap_err();
        assert!(matches!(error, OpenError::Unsealed), "{seals:?}: {error}");
    }
}

#[test]
fn a_region_of_a_size_that_no_channel_has() {
    for bytes in [0, 8, 4096, 12287, 12289, 12288 + 4096, (64 << 20) + 4096] {
        let error = open(with_region(memfd(bytes, sys::memfd::REGION_SEALS))).unwrap_err();
        assert!(
            matches!(error, OpenError::RegionBytes { bytes: named } if named == bytes),
            "{bytes}: {error}"
        );
    }
}

#[test]
fn a_header_that_is_not_ours() {
    let bytes = layout::region_bytes(RING_BYTES);
    let blank = memfd(bytes, sys::memfd::REGION_SEALS);
    assert!(matches!(open(with_region(blank)), Err(OpenError::Magic { found: 0 })));
    let error = open(with_header(layout::OFFSET_MAGIC, 7)).unwrap_err();
    assert!(matches!(error, OpenError::Magic { found: 7 }), "{error}");
    let error = open(with_header(layout::OFFSET_VERSION, layout::VERSION + 1)).unwrap_err();
    let (found, ours) = (layout::VERSION + 1, layout::VERSION);
    assert_eq!(error.to_string(), format!("the region has layout version {found}; this program speaks {ours}"));
    for (offset, field) in
        [(layout::OFFSET_RING_BYTES, "ring_bytes"), (layout::OFFSET_REGION_BYTES, "region_bytes")]
    {
        let error = open(with_header(offset, 1 << 40)).unwrap_err();
        assert!(matches!(error, OpenError::Size { field: named, .. } if named == field), "{error}");
    }
}

#[test]
fn an_end_is_opened_once() {
    let (one, _other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let original = one.into_descriptors();
    let copy: Vec<_> = original.iter().map(|fd| fd.as_fd().try_clone_to_owned().unwrap()).collect();
    let _opened = End::from_descriptors(original.into()).unwrap().open().unwrap();
    assert!(matches!(open(copy), Err(OpenError::Reopened { state: layout::END_OPEN })));
}
