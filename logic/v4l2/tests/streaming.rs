//! Programs that use a camera as V4L2 says, and programs that do not.

use proptest::prelude::*;
use v4l2::{Answer, Areas, Call, Device, Due, Picture, Refusal, Session};
use wire::camera::Format;
use wire::v4l2::{BUFFERS_MAX, Fields, MEMORY_MMAP, TYPE_CAPTURE, at, ioctl, length};

const USUAL: Picture = Picture { format: Format::Yuyv, width: 48, height: 32 };
/// A frame of it, in whole pages.
const STRIDE: u32 = 4096;
const MS: u64 = 1_000_000;

fn device() -> Device {
    Device::pattern("front", USUAL, 30)
}

/// An open file, with what it needs.
struct Program {
    device: Device,
    areas: Areas,
    session: Session,
    now_ns: u64,
}

impl Program {
    fn new(memory: u64) -> Self {
        let device = device();
        Self { session: Session::new(&device), device, areas: Areas::new(memory), now_ns: 5 * MS }
    }

    fn ioctl(&mut self, number: u32, data: &[u8]) -> Result<Answer, Refusal> {
        let call = Call { number, data, now_ns: self.now_ns };
        self.session.ioctl(call, &self.device, Some(&mut self.areas))
    }

    fn done(&mut self, number: u32, data: &[u8]) -> Vec<u8> {
        match self.ioctl(number, data) {
            Ok(Answer::Done(data)) => data,
            other => panic!("{number:#x}: {other:?}"),
        }
    }

    fn request(&mut self, count: u32) -> u32 {
        self.done(ioctl::REQBUFS, &requested(count)).word(at::request_buffers::COUNT)
    }

    fn queue_all(&mut self, count: u32) {
        for index in 0..count {
            self.done(ioctl::QBUF, &buffer(index));
        }
    }

    fn begin(&mut self) {
        self.done(ioctl::STREAMON, &capture());
    }

    /// All frames that are due `ms` after the beginning.
    fn after(&mut self, ms: u64) -> Vec<Due> {
        self.now_ns = (5 + ms) * MS;
        std::iter::from_fn(|| self.session.take_due(self.now_ns)).collect()
    }

    /// The index and the sequence of the next filled buffer.
    fn dequeue(&mut self) -> Option<(u32, u32)> {
        match self.ioctl(ioctl::DQBUF, &buffer(0)).expect("no refusal") {
            Answer::Done(data) => Some((data.word(at::buffer::INDEX), data.word(at::buffer::SEQUENCE))),
            Answer::Later => None,
        }
    }
}

fn capture() -> Vec<u8> {
    TYPE_CAPTURE.to_ne_bytes().to_vec()
}

fn requested(count: u32) -> Vec<u8> {
    let mut data = vec![0; length::REQUEST_BUFFERS];
    data.put_word(at::request_buffers::COUNT, count);
    data.put_word(at::request_buffers::TYPE, TYPE_CAPTURE);
    data.put_word(at::request_buffers::MEMORY, MEMORY_MMAP);
    data
}

fn buffer(index: u32) -> Vec<u8> {
    let mut data = vec![0; length::BUFFER];
    data.put_word(at::buffer::INDEX, index);
    data.put_word(at::buffer::TYPE, TYPE_CAPTURE);
    data.put_word(at::buffer::MEMORY, MEMORY_MMAP);
    data
}

#[test]
fn frames_come_in_order_into_buffers_in_the_order_of_their_queueing() {
    let mut program = Program::new(1 << 20);
    assert_eq!(program.request(4), 4);
    program.queue_all(4);
    program.begin();
    let due: Vec<_> = program.after(70).iter().map(|due| (due.number, due.offset)).collect();
    assert_eq!(due, [(0, Some(0)), (1, Some(STRIDE)), (2, Some(2 * STRIDE))]);
    assert_eq!((program.dequeue(), program.dequeue()), (Some((0, 0)), Some((1, 1))));
    program.done(ioctl::QBUF, &buffer(1));
    assert_eq!(program.after(134).len(), 2);
    assert_eq!(
        (program.dequeue(), program.dequeue(), program.dequeue()),
        (Some((2, 2)), Some((3, 3)), Some((1, 4)))
    );
    assert_eq!((program.dequeue(), program.session.lost()), (None, 0));
}

#[test]
fn who_queues_nothing_loses_frames_and_is_told_how_many() {
    let mut program = Program::new(1 << 20);
    program.request(2);
    program.queue_all(1);
    program.begin();
    assert_eq!(program.after(1000).len(), 1);
    assert_eq!(program.session.lost(), 30);
    assert_eq!(program.dequeue(), Some((0, 0)));
    program.done(ioctl::QBUF, &buffer(1));
    assert_eq!(program.after(1034).len(), 1);
    assert_eq!(program.dequeue(), Some((1, 31)), "the gap shows");
}

#[test]
fn a_memory_that_has_room_for_less_gives_less() {
    let mut program = Program::new(8 * u64::from(STRIDE));
    assert_eq!(program.request(BUFFERS_MAX), 4, "others of the domain find a half");
    assert_eq!(program.request(0), 0);
    assert_eq!(program.request(3), 3);
    assert_eq!(Program::new(4096).request(32), 1);
    let mut none = Program::new(4095);
    assert_eq!(none.ioctl(ioctl::REQBUFS, &requested(1)), Err(Refusal::Memory));
    let call = Call { number: ioctl::REQBUFS, data: &requested(1), now_ns: 0 };
    assert_eq!(Session::new(&device()).ioctl(call, &device(), None), Err(Refusal::Invalid));
}

#[test]
fn what_is_out_of_turn_is_refused() {
    let mut program = Program::new(1 << 20);
    assert_eq!(program.ioctl(ioctl::STREAMON, &capture()), Err(Refusal::Invalid));
    assert_eq!(program.ioctl(ioctl::DQBUF, &buffer(0)), Err(Refusal::Invalid));
    assert_eq!(program.ioctl(ioctl::QBUF, &buffer(0)), Err(Refusal::Invalid));
    program.request(2);
    assert_eq!(program.ioctl(ioctl::QBUF, &buffer(2)), Err(Refusal::Invalid));
    program.queue_all(1);
    assert_eq!(program.ioctl(ioctl::QBUF, &buffer(0)), Err(Refusal::Invalid), "it is queued");
    let mut format = vec![0; length::FORMAT];
    format.put_word(0, TYPE_CAPTURE);
    assert_eq!(program.ioctl(ioctl::S_FMT, &format), Err(Refusal::Busy));
    program.begin();
    assert_eq!(program.ioctl(ioctl::REQBUFS, &requested(0)), Err(Refusal::Busy));
    assert_eq!(program.session.read(10, program.now_ns), Err(Refusal::Busy));
    assert_eq!(program.ioctl(0xc0de_5600, &[]), Err(Refusal::Unknown));
    assert_eq!(program.ioctl(ioctl::QBUF, &[0; 3]), Err(Refusal::Invalid));
}

#[test]
fn a_reader_gets_each_byte_of_a_frame_once() {
    let mut program = Program::new(0);
    let whole = USUAL.bytes();
    let now = program.now_ns;
    assert_eq!(program.session.read(1000, now), Ok((0, 0..1000)));
    assert_eq!(program.session.read(1 << 20, now), Ok((0, 1000..whole)));
    assert_eq!(program.session.read(1, now), Err(Refusal::NotYet));
    assert_eq!(program.after(40).len(), 1);
    assert_eq!(program.session.read(whole, program.now_ns), Ok((1, 0..whole)));
}

#[test]
fn a_successor_goes_on_and_counts_what_was_lost_meanwhile() {
    let mut program = Program::new(1 << 20);
    program.request(4);
    program.queue_all(4);
    program.begin();
    program.after(40);
    assert_eq!(program.dequeue(), Some((0, 0)));
    let capsule = program.session.capsule();
    // Another 8 frames are due before the successor comes.
    program.now_ns = 305 * MS;
    let mut areas = Areas::new(1 << 20);
    program.session = Session::restored(&capsule, &program.device, Some(&mut areas), program.now_ns).unwrap();
    assert_eq!(areas.take(STRIDE), Some(4 * STRIDE), "its buffers are where they were");
    assert_eq!(program.dequeue(), Some((1, 1)), "what was filled is whole");
    assert_eq!(program.session.lost(), 8);
    assert_eq!(program.after(334).first().map(|due| (due.number, due.offset)), Some((10, Some(2 * STRIDE))));
    assert_eq!(program.dequeue(), Some((2, 10)));
    let mut taken = Areas::new(1 << 20);
    taken.take(1);
    assert_eq!(
        Session::restored(&capsule, &program.device, Some(&mut taken), 0),
        None,
        "somebody else is there"
    );
}

proptest! {
    /// Every number and every size, in any order: no panic, no buffer of somebody else, no frame
    /// twice.
    #[test]
    fn no_ioctls_break_it(calls in prop::collection::vec(
        (0_usize..30, any::<u32>(), prop::collection::vec(0_u32..6, 60), 0_u64..200), 0..200)) {
        let mut program = Program::new(64 << 10);
        let mut other = Areas::new(0);
        std::mem::swap(&mut other, &mut program.areas);
        let mut areas = other;
        prop_assert!(areas.take_at(0, 4096));
        let mut last = None;
        for (which, raw, words, ms) in calls {
            let number = ioctl::ALL.get(which).copied().unwrap_or(raw);
            let bytes = (number >> 16 & 0x3fff) as usize;
            let mut data: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            data.resize(if raw % 50 == 0 { raw as usize % 300 } else { bytes }, 0);
            program.now_ns += ms * MS;
            let call = Call { number, data: &data, now_ns: program.now_ns };
            let answer = program.session.ioctl(call, &program.device, Some(&mut areas));
            if number == ioctl::STREAMON && answer.is_ok() && last.is_none() || number == ioctl::STREAMOFF && answer.is_ok() {
                last = None;
            }
            if let (ioctl::DQBUF, Ok(Answer::Done(data))) = (number, &answer) {
                let sequence = data.word(at::buffer::SEQUENCE);
                prop_assert!(last < Some(sequence), "{last:?} {sequence}");
                last = Some(sequence);
            }
            while let Some(due) = program.session.take_due(program.now_ns) {
                let area = program.session.area();
                let Some(offset) = due.offset else { break };
                prop_assert!(area.is_some_and(|area| area.contains(&offset) && area.start >= 4096 && area.end <= 64 << 10));
            }
            let capsule = program.session.capsule();
            let mut free = Areas::new(64 << 10);
            let restored = Session::restored(&capsule, &program.device, Some(&mut free), program.now_ns);
            prop_assert!(restored.is_some());
        }
    }

    #[test]
    fn no_capsule_breaks_it(capsule in prop::collection::vec(any::<u8>(), 0..200), flips in prop::collection::vec((any::<usize>(), any::<u8>()), 0..4)) {
        let mut program = Program::new(1 << 20);
        program.request(4);
        program.queue_all(3);
        program.begin();
        program.after(40);
        let mut near = program.session.capsule();
        for (at, byte) in flips {
            let at = at % near.len();
            near[at] = byte;
        }
        for capsule in [capsule, near] {
            let mut areas = Areas::new(1 << 20);
            if let Some(mut session) = Session::restored(&capsule, &program.device, Some(&mut areas), program.now_ns) {
                for _ in 0..100 {
                    let Some(due) = session.take_due(program.now_ns + 1000 * MS) else { break };
                    let Some(offset) = due.offset else { break };
                    prop_assert!(offset + STRIDE <= 1 << 20);
                }
            }
        }
    }
}
