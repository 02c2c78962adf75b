//! A program with an open camera: ioctls of any number, size and content, in any order, and states
//! that come back changed. What must hold: no panic; frames go into the buffers of this file only;
//! numbers of frames only grow.
#![cfg_attr(feature = "fuzzing", no_main)]

use v4l2::{Answer, Areas, Call, Device, Picture, Session};
use wire::camera::Format;
use wire::v4l2::{Fields, at, ioctl};

/// Bytes of the memory that the domain has.
const MEMORY_BYTES: u64 = 256 << 10;
/// The first of them, which another file of the domain has.
const TAKEN_BYTES: u32 = 8192;
/// Calls of one input: more bring nothing new.
const MAX_CALLS: usize = 2048;

fuzz::target!(|bytes: &[u8]| {
    let usual = Picture { format: Format::Yuyv, width: 48, height: 32 };
    let device = Device::pattern("front", usual, 30);
    let mut areas = Areas::new(MEMORY_BYTES);
    assert!(areas.take_at(0, TAKEN_BYTES));
    let mut session = Session::new(&device);
    let (mut now_ns, mut last, mut rest) = (0_u64, None, bytes);
    for _ in 0..MAX_CALLS {
        let Some((&[which, step, length], tail)) = rest.split_first_chunk::<3>() else { return };
        now_ns += u64::from(step) * 10_000_000;
        let (data, tail) = tail.split_at(usize::from(length).min(tail.len()));
        rest = tail;
        if which == u8::MAX {
            // The next server's, with a state that the consumer may have changed.
            let capsule = if data.is_empty() { session.capsule() } else { data.to_vec() };
            let honest = data.is_empty();
            session.end(&mut areas);
            let next = Session::restored(&capsule, &device, Some(&mut areas), now_ns);
            assert!(next.is_some() || !honest, "its own state is refused");
            session = next.unwrap_or_else(|| Session::new(&device));
            last = if honest { last } else { None };
        } else {
            let number = ioctl::ALL.get(usize::from(which)).copied().unwrap_or_else(|| data.word(0));
            let mut sized = data.to_vec();
            if which < 128 {
                sized.resize((number >> 16 & 0x3fff) as usize, 0);
            }
            let answer = session.ioctl(Call { number, data: &sized, now_ns }, &device, Some(&mut areas));
            match (number, answer) {
                (ioctl::STREAMOFF, Ok(_)) => last = None,
                (ioctl::DQBUF, Ok(Answer::Done(data))) => {
                    let sequence = data.word(at::buffer::SEQUENCE);
                    assert!(last.is_none_or(|last| last < sequence), "frame {sequence} after {last:?}");
                    last = Some(sequence);
                }
                _ => {}
            }
        }
        while let Some(offset) = session.take_due(now_ns).and_then(|due| due.offset) {
            let area = session.area().expect("a buffer is in an area");
            let end = offset + session.picture().bytes();
            assert!(
                area.start >= TAKEN_BYTES && offset >= area.start && end <= area.end,
                "{offset} in {area:?}"
            );
            assert!(u64::from(area.end) <= MEMORY_BYTES);
        }
    }
});
