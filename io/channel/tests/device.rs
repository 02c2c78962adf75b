//! Ends that are made of a device: which lists of descriptors make one, and what is said of those
//! that do not. Sealed memfds stand for the device's memory; that rings go to and fro is what
//! `conformance/` shows.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use channel::{
    Config, Doorbell, End, Mapped, Mode, OpenError, OpenOptions, ReceiveError, pair, write_header,
};
use rustix::event::EventfdFlags;
use rustix::pipe::PipeFlags;
use sys::eventfd::Eventfd;
use sys::region::Region;
use wire::ring as layout;

const CONFIG: Config = Config {
    ring_bytes: 4096,
    mode: Mode::Stream,
    huge_pages: channel::HugePages::No,
    spin_ns: None,
    apart: true,
};

fn event() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap()
}

fn registers(bytes: u64) -> OwnedFd {
    sys::memfd::sealed("registers", bytes).unwrap()
}

/// The region of end 0, and its peer, which must live.
fn region() -> (OwnedFd, End) {
    let (one, other) = pair(&CONFIG).unwrap();
    let [region, ..] = one.into_descriptors();
    (region, other)
}

/// The agent's part of a device: the writing half of its life, and its registers.
struct Kept {
    life: OwnedFd,
    registers: OwnedFd,
    _peer: End,
}

/// Descriptors of end 0, and what the agent keeps of them.
fn descriptors() -> (Vec<OwnedFd>, Kept) {
    let (region, peer) = region();
    let (life, keeps) = pipe();
    let bell = registers(4096);
    let registers = bell.as_fd().try_clone_to_owned().unwrap();
    (vec![region, event(), event(), bell, life], Kept { life: keeps, registers, _peer: peer })
}

fn index_of(error: &OpenError) -> Option<usize> {
    match error {
        OpenError::Descriptor { index, .. } => Some(*index),
        _ => None,
    }
}

/// Returns the number in the register.
fn rung(registers: &OwnedFd) -> u32 {
    let mut word = [0; 4];
    rustix::io::pread(registers, &mut word, layout::BELL_OFFSET as u64).unwrap();
    u32::from_le_bytes(word)
}

#[test]
fn either_end_can_be_a_device() {
    let (list, _kept) = descriptors();
    let end = End::from_descriptors(list).unwrap();
    assert_eq!(end.mode().unwrap(), Mode::Stream);
    let mut list = Vec::from(end.into_descriptors());
    list.rotate_left(1);
    let end = End::from_descriptors(list).unwrap();
    let mut list = Vec::from(end.into_descriptors());
    list.rotate_right(1);
    let all = OpenOptions { populate: true, huge_pages: true, lock: false };
    let (_writer, mut reader) = End::from_descriptors(list).unwrap().open_stream_with(&all).unwrap();
    assert_eq!(reader.try_read(&mut [0]).unwrap(), None);
}

#[test]
fn whoever_closes_rings_and_lets_go_of_everything() {
    let (list, kept) = descriptors();
    let is_over = || {
        let mut polled = [rustix::event::PollFd::new(&kept.life, rustix::event::PollFlags::empty())];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() > 0
    };
    let (sender, receiver) = End::from_descriptors(list).unwrap().open().unwrap();
    assert_eq!(rung(&kept.registers), 0);
    drop(sender);
    assert!([layout::BELL_DATA, layout::BELL_ROOM].contains(&rung(&kept.registers)));
    assert!(!is_over(), "one half is there, and with it the memory");
    drop(receiver);
    assert!(is_over());
}

#[test]
fn a_life_that_is_over_is_the_end() {
    for hangs_up in [true, false] {
        let (list, kept) = descriptors();
        let (_sender, mut receiver) = End::from_descriptors(list).unwrap().open().unwrap();
        assert!(!receiver.is_closed());
        let Kept { life, _peer, .. } = kept;
        let mut still = None;
        if hangs_up {
            drop(life);
        } else {
            rustix::io::write(&life, &[1]).unwrap();
            still = Some(life);
        }
        for _ in 0..2 {
            let ended = receiver.receive(&mut Vec::new(), None);
            assert!(matches!(ended, Err(ReceiveError::Closed)), "{ended:?}");
        }
        drop(still);
    }
}

#[test]
fn mixtures_are_refused_by_name() {
    let wrong: [(usize, fn() -> OwnedFd); 7] = [
        (2, || pipe().0),
        (2, || rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
        (3, event),
        (3, || pipe().0),
        (4, event),
        (4, || pipe().1),
        (4, || sys::doorbell::pair().unwrap().0),
    ];
    for (index, make) in wrong {
        let (mut list, _kept) = descriptors();
        list[index] = make();
        let error = End::from_descriptors(list).unwrap_err();
        assert_eq!(index_of(&error), Some(index), "{error}");
    }
    // An end of this host with one descriptor of a device.
    let (one, _other) = pair(&CONFIG).unwrap();
    let mut list = Vec::from(one.into_descriptors());
    list[3] = event();
    let error = End::from_descriptors(list).unwrap_err();
    assert_eq!(index_of(&error), Some(3), "{error}");
    // An eventfd that makes its reader wait is none, and so this is no device.
    let (mut list, _kept) = descriptors();
    list[1] = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(index_of(&End::from_descriptors(list).unwrap_err()), Some(1));
}

#[test]
fn memory_that_could_shrink_is_refused() {
    for index in [0, 3] {
        let (mut list, _kept) = descriptors();
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create("unsealed", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, 16384).unwrap();
        list[index] = unsealed;
        let error = End::from_descriptors(list).unwrap().open().unwrap_err();
        assert!(matches!(error, OpenError::Unsealed), "{index}: {error}");
    }
}

#[test]
fn too_few_registers_are_refused() {
    let (mut list, _kept) = descriptors();
    list[3] = registers(255);
    let error = End::from_descriptors(list).unwrap().open().unwrap_err();
    assert!(matches!(error, OpenError::BellBytes { bytes: 255 }), "{error}");
    assert!(error.to_string().contains("256 bytes of registers at least, not 255"), "{error}");
}

#[test]
fn a_device_of_a_stranger_is_refused() {
    let (list, _kept) = descriptors();
    let error = End::from_descriptors(list).unwrap().distrust_maker().open().unwrap_err();
    assert!(matches!(error, OpenError::StrangersDevice), "{error}");
}

#[test]
fn a_header_that_says_otherwise_makes_no_futexes() {
    let (list, kept) = descriptors();
    let region = Region::map(&list[0], layout::HEADER_BYTES).unwrap();
    region.store_u64(layout::OFFSET_APART, 0, Relaxed);
    let (_sender, mut receiver) = End::from_descriptors(list).unwrap().open().unwrap();
    drop(kept.life);
    let ended = receiver.receive(&mut Vec::new(), None);
    assert!(matches!(ended, Err(ReceiveError::Closed)), "{ended:?}");
    assert_eq!(receiver.counts().futex_sleeps, 0);
}

/// A doorbell for ends that somebody else has mapped.
#[derive(Debug)]
struct Event(Eventfd, Eventfd);

impl Doorbell for Event {
    fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
    fn listen(&self) -> std::io::Result<bool> {
        Ok(self.0.drain())
    }
    fn ring(&self) -> std::io::Result<()> {
        self.1.signal();
        Ok(())
    }
}

/// Two eventfds, crosswise, and the lives of two ends that end with the other's.
fn mapped() -> [Mapped<Event>; 2] {
    let memory = sys::memfd::sealed("region", channel::region_bytes(&CONFIG)).unwrap();
    let map = || Region::map(&memory, channel::region_bytes(&CONFIG).try_into().unwrap()).unwrap();
    write_header(&map(), &CONFIG).unwrap();
    let cross = || {
        let copy = |event: &OwnedFd| Eventfd::from(event.try_clone().unwrap());
        let (one, other) = (event(), event());
        [Event(copy(&one), copy(&other)), Event(copy(&other), copy(&one))]
    };
    let ([data_0, data_1], [room_0, room_1]) = (cross(), cross());
    let ((life_0, keeps_0), (life_1, keeps_1)) = (pipe(), pipe());
    // Each end's memory holds the other's life.
    [
        Mapped { side: 0, region: map().keeping(keeps_1), data: data_0, room: room_0, life: life_0 },
        Mapped { side: 1, region: map().keeping(keeps_0), data: data_1, room: room_1, life: life_1 },
    ]
}

#[test]
fn what_somebody_else_has_mapped_is_an_end_as_well() {
    let [one, other] = mapped();
    let (mut writer, _reader) = one.open_stream().unwrap();
    let (_writer, mut reader) = other.open_stream().unwrap();
    writer.write_with(b"hello", None).unwrap();
    writer.flush_with(None).unwrap();
    let mut got = [0; 5];
    assert_eq!(reader.read_with(&mut got, None).unwrap(), 5);
    assert_eq!(&got, b"hello");
    drop(writer);
    assert_eq!(reader.read_with(&mut got, None).unwrap(), 0);
}

#[test]
fn what_is_wrong_with_a_mapped_end_is_named() {
    let [one, other] = mapped();
    let error = Mapped { side: 2, ..one }.open().unwrap_err();
    assert!(matches!(error, OpenError::Side { side: 2 }), "{error}");
    let error = Mapped { life: event(), ..other }.open().unwrap_err();
    assert_eq!(index_of(&error), Some(0), "{error}");
    let [one, _other] = mapped();
    let short = Region::map(sys::memfd::sealed("short", 8192).unwrap(), 8192).unwrap();
    let error = Mapped { region: short, ..one }.open().unwrap_err();
    assert!(matches!(error, OpenError::RegionBytes { bytes: 8192 }), "{error}");
}

#[test]
fn a_header_goes_into_memory_of_its_size() {
    let region = |bytes: usize| Region::map(sys::memfd::sealed("r", bytes as u64).unwrap(), bytes).unwrap();
    assert!(write_header(&region(12288), &CONFIG).is_ok());
    assert!(write_header(&region(16384), &CONFIG).is_ok());
    for bytes in [4096, 8192, 20480, 32768] {
        let error = write_header(&region(bytes), &CONFIG).unwrap_err();
        assert!(matches!(error, channel::CreateError::Region(_)), "{bytes}: {error}");
    }
    let error = write_header(&region(16384), &Config { ring_bytes: 5000, ..CONFIG }).unwrap_err();
    assert!(matches!(error, channel::CreateError::RingBytes { ring_bytes: 5000 }), "{error}");
}
