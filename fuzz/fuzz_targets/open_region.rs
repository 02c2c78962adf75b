//! Descriptors and header words of every kind, before an end is opened. What must hold: no panic,
//! no access outside, and an error that names what really is wrong; an end that opens is as its
//! maker made it, as far as it matters.
#![cfg_attr(feature = "fuzzing", no_main)]

use std::os::fd::OwnedFd;

use channel::{End, Mode, OpenError};
use fuzz::script::Script;
use fuzz::stage::{self, Hand};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use std::sync::atomic::Ordering;
use wire::ring as layout;

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let mode = if script.flag() { Mode::Stream } else { Mode::Messages };
    let (end, _peer, hand) = stage::ends(usize::from(script.flag()), mode);
    let mut descriptors = Vec::from(end.into_descriptors());
    let place = if hand.side == 0 { 0 } else { 4 };
    match script.below(4) {
        0 => descriptors[place] = strange_region(&mut script),
        1 => shuffle(&mut descriptors, &mut script),
        _ => {}
    }
    for _ in 0..script.below(6) {
        let offset = match script.below(3) {
            0 => script.below(8) * 8,
            1 => layout::OFFSET_ENDS + script.below(2) * layout::END_STRIDE,
            _ => script.below(layout::HEADER_BYTES / 8) * 8,
        };
        hand.region.store_u64(offset, script.word(), Ordering::Relaxed);
    }
    let as_stream = script.flag();
    match End::from_descriptors(descriptors) {
        Ok(end) => open(end, as_stream, &hand),
        Err(error) => {
            assert!(matches!(error, OpenError::Count { .. } | OpenError::Descriptor { .. }), "{error}")
        }
    }
});

/// A region of any size with any seals, and any beginning.
fn strange_region(script: &mut Script<'_>) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("strange", flags).expect("a memfd");
    // Sizes near good ones; nothing is taken of the machine before it is touched.
    let rings = 2 << script.below(26);
    let bytes = layout::HEADER_BYTES as u64 + rings;
    let bytes = [bytes, bytes - 1, bytes + 8, rings, script.word() >> 38][script.below(5)];
    rustix::fs::ftruncate(&memory, bytes).expect("a size");
    let words = [layout::MAGIC, layout::VERSION, rings / 2, bytes, script.word()];
    for (index, word) in words.into_iter().enumerate().take(script.below(6)) {
        let _beyond_the_end = rustix::io::pwrite(&memory, &word.to_le_bytes(), index as u64 * 8);
    }
    let seals = SealFlags::from_bits_truncate(u32::from(script.byte()));
    let seals = if script.flag() { sys::memfd::REGION_SEALS } else { seals & !SealFlags::WRITE };
    let _refused = rustix::fs::fcntl_add_seals(&memory, seals);
    memory
}

fn shuffle(descriptors: &mut Vec<OwnedFd>, script: &mut Script<'_>) {
    for _ in 0..script.below(4) {
        let (one, other) = (script.below(descriptors.len()), script.below(descriptors.len()));
        match script.below(5) {
            0 => descriptors.swap(one, other),
            1 => descriptors[one] = descriptors[other].try_clone().expect("a descriptor"),
            2 => descriptors[one] = std::fs::File::open("/dev/null").expect("a file").into(),
            3 => rustix::fs::fcntl_setfl(&descriptors[one], OFlags::empty()).expect("a flag"),
            _ if descriptors.len() > 1 => drop(descriptors.remove(one)),
            _ => {}
        }
    }
}

fn open(end: End, as_stream: bool, hand: &Hand) {
    let side = hand.side;
    let header = |offset: usize| hand.region.load_u64(offset, Ordering::Relaxed);
    let state = header(layout::OFFSET_ENDS + side * layout::END_STRIDE);
    let _mode = end.mode();
    let opened = if as_stream {
        end.open_stream().map(|(mut writer, mut reader)| {
            let _written = writer.try_write(b"some bytes");
            let _read = reader.try_read(&mut [0; 16]);
        })
    } else {
        end.open().map(|(mut sender, mut receiver)| {
            let _sent = sender.try_send(b"some bytes");
            let _received = receiver.try_receive(&mut Vec::new());
        })
    };
    // What is said of the header can be compared with it only where the region is the hand's.
    match opened {
        Err(OpenError::Magic { found }) => assert_ne!(found, layout::MAGIC),
        Err(OpenError::Version { found }) => assert_ne!(found, layout::VERSION),
        Err(OpenError::Size { found, expected, .. }) => assert_ne!(found, expected),
        Err(OpenError::Reopened { state: found }) => assert_ne!(found, layout::END_UNOPENED),
        Err(OpenError::System { action, source }) => panic!("can't {action}: {source}"),
        Err(_) => {}
        Ok(()) => {
            let now = header(layout::OFFSET_ENDS + side * layout::END_STRIDE);
            // Ours if it has changed: then everything about it was right.
            if now != state {
                assert_eq!(state, layout::END_UNOPENED, "it was opened before");
                assert_eq!(header(layout::OFFSET_MAGIC), layout::MAGIC);
                assert_eq!(header(layout::OFFSET_VERSION), layout::VERSION);
                assert_eq!(header(layout::OFFSET_RING_BYTES), u64::from(stage::RING_BYTES));
                assert_eq!(header(layout::OFFSET_REGION_BYTES), layout::region_bytes(stage::RING_BYTES));
            }
        }
    }
}
