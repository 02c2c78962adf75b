//! One broken end per rule, each with the error that a person gets.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

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
        // Of an end whose peer is gone the halves can't be told apart, and need not be.
        let (end, _peer) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
        let mut swapped = Vec::from(end.into_descriptors());
        swapped.swap(one, other);
        let error = open(swapped).unwrap_err();
        assert!(matches!(error, OpenError::Descriptor { index: named, .. } if named == index), "{error}");
    }
    let mut two_regions = descriptors();
    two_regions[4] = two_regions[0].try_clone().unwrap();
    assert!(matches!(open(two_regions), Err(OpenError::Descriptor { index: 0, .. })));
    let mut pipe = descriptors();
    pipe[1] = sys::doorbell::life().unwrap().0;
    assert!(matches!(open(pipe), Err(OpenError::Descriptor { index: 1, .. })));
    let mut socket = descriptors();
    let (of_another_kind, _peer) = sys::descriptors::socket_pair().unwrap();
    socket[2] = of_another_kind;
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
fn a_region_that_cant_be_written() {
    let bytes = layout::region_bytes(RING_BYTES);
    let good = sys::memfd::REGION_SEALS;
    let for_reading = |memory: OwnedFd| {
        let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
        OwnedFd::from(std::fs::File::open(path).unwrap())
    };
    for region in [
        memfd(bytes, good | SealFlags::WRITE),
        memfd(bytes, good | SealFlags::FUTURE_WRITE),
        for_reading(memfd(bytes, good)),
    ] {
        let error = open(with_region(region)).unwrap_err();
        assert!(matches!(error, OpenError::ReadOnly(_)), "{error}");
    }
}

#[test]
fn a_region_of_a_size_that_no_channel_has() {
    for bytes in [0, 8, 4096, 12287, 12289, 12288 + 12288, (64 << 20) + 4096] {
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
    assert_eq!(
        error.to_string(),
        format!("the region has layout version {found}; this program speaks {ours}")
    );
    for (offset, field) in
        [(layout::OFFSET_RING_BYTES, "ring_bytes"), (layout::OFFSET_REGION_BYTES, "region_bytes")]
    {
        let error = open(with_header(offset, 1 << 40)).unwrap_err();
        assert!(matches!(error, OpenError::Size { field: named, .. } if named == field), "{error}");
    }
}

#[test]
fn every_other_version_is_refused() {
    let versions = (0..64).map(|shift| 1_u64 << shift).chain([0, 2, 3, 7, 0x0100_0001, u64::MAX]);
    for version in versions.filter(|version| *version != layout::VERSION) {
        let error = open(with_header(layout::OFFSET_VERSION, version)).unwrap_err();
        assert!(matches!(error, OpenError::Version { found } if found == version), "{version}: {error}");
    }
}

/// Sizes that another region would have are as wrong as any: what counts is the size that was
/// sealed.
#[test]
fn every_other_size_in_the_header_is_refused() {
    let (rings, region) = (u64::from(RING_BYTES), layout::region_bytes(RING_BYTES));
    for (offset, field, right) in [
        (layout::OFFSET_RING_BYTES, "ring_bytes", rings),
        (layout::OFFSET_REGION_BYTES, "region_bytes", region),
    ] {
        let near = [right - 1, right + 1, right - 8, right + 8, 0, u64::MAX];
        let sizes = (0..64).flat_map(|shift| [1_u64 << shift, (1 << shift) + 4096]).chain(near);
        for size in sizes.filter(|size| *size != right) {
            let error = open(with_header(offset, size)).unwrap_err();
            assert!(
                matches!(error, OpenError::Size { field: named, found, expected } if named == field && found == size && expected == right),
                "{field} {size}: {error}"
            );
        }
    }
}

#[test]
fn a_header_off_its_place_is_refused() {
    let header: Vec<u8> = {
        let descriptors = descriptors();
        let mut header = vec![0; layout::OFFSET_ENDS];
        rustix::io::pread(&descriptors[0], &mut header, 0).unwrap();
        header
    };
    for shift in (1..=16).chain([64, 4096]) {
        let descriptors = descriptors();
        rustix::io::pwrite(&descriptors[0], &vec![0; header.len()], 0).unwrap();
        rustix::io::pwrite(&descriptors[0], &header, shift).unwrap();
        let error = open(descriptors).unwrap_err();
        assert!(matches!(error, OpenError::Magic { .. }), "{shift}: {error}");
    }
}

/// The region of small rings with the header of large ones, and regions that lack some bytes.
#[test]
fn a_region_shorter_than_it_claims_is_refused() {
    for claimed in [2 * RING_BYTES, 64 << 10, layout::RING_BYTES_MAX] {
        let (one, _) = pair(&Config { ring_bytes: claimed, ..Config::default() }).unwrap();
        let [theirs, ..] = one.into_descriptors();
        let mut header = vec![0; layout::OFFSET_ENDS];
        rustix::io::pread(&theirs, &mut header, 0).unwrap();
        let small = descriptors();
        rustix::io::pwrite(&small[0], &header, 0).unwrap();
        let error = open(small).unwrap_err();
        assert!(matches!(error, OpenError::Size { field: "ring_bytes", .. }), "{claimed}: {error}");

        let whole = layout::region_bytes(claimed);
        for missing in [1, 8, 4096, whole / 3] {
            let short = memfd(whole - missing, sys::memfd::REGION_SEALS);
            rustix::io::pwrite(&short, &header, 0).unwrap();
            let error = open(with_region(short)).unwrap_err();
            // What is left may be the size of a channel whose ends are apart; then the header gives
            // it away.
            let refused = match error {
                OpenError::RegionBytes { bytes } => bytes == whole - missing,
                OpenError::Size { field, .. } => field == "ring_bytes" && (whole - missing).is_power_of_two(),
                _ => false,
            };
            assert!(refused, "{claimed} less {missing}: {error}");
        }
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

/// Descriptors that are passed twice, in either order of opening; and both ends at one opener, who
/// is not told apart from two.
#[test]
fn whoever_opens_an_end_second_is_refused_and_harms_nobody() {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let mut opened = Vec::new();
    let ends = [one.into_descriptors(), other.into_descriptors()];
    for end in &ends {
        let copies = || end.iter().map(|fd| fd.as_fd().try_clone_to_owned().unwrap()).collect::<Vec<_>>();
        opened.push(End::from_descriptors(copies()).unwrap().open().unwrap());
        for _ in 0..3 {
            let error = open(copies()).unwrap_err();
            assert!(matches!(error, OpenError::Reopened { state: layout::END_OPEN }), "{error}");
        }
    }
    let [(sender_0, receiver_0), (sender_1, receiver_1)] = &mut opened[..] else { panic!("two ends") };
    let mut got = Vec::new();
    for (sender, receiver) in [(sender_0, receiver_1), (sender_1, receiver_0)] {
        sender.send(b"still here", None).unwrap();
        assert_eq!(receiver.try_receive(&mut got).unwrap(), Some(10));
        assert!(!sender.is_closed() && !receiver.is_closed());
    }
}

/// An end that was closed is not opened again with descriptors that were kept, and does not look
/// open by that to its peer.
#[test]
fn a_closed_end_stays_closed() {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let (sender, _receiver) = other.open().unwrap();
    let kept = one.into_descriptors();
    let copies = || kept.iter().map(|fd| fd.as_fd().try_clone_to_owned().unwrap()).collect::<Vec<_>>();
    drop(End::from_descriptors(copies()).unwrap().open().unwrap());
    for _ in 0..2 {
        assert!(sender.is_closed());
        let error = open(copies()).unwrap_err();
        assert!(matches!(error, OpenError::Reopened { state: layout::END_CLOSED }), "{error}");
    }
    assert!(sender.is_closed());
}
