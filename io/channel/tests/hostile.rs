//! Ends whose peer does what it likes with everything it holds: the region, the doorbells, their
//! flags.
//!
//! The requirements: no panic, no call that takes longer than its deadline, and errors that name
//! the broken rule.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod traffic;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, ReceiveError, Receiver, SendError, Sender, Violation, pair};
use rustix::fs::OFlags;
use rustix::net::SendFlags;
use rustix::pipe::SpliceFlags;
use sys::region::Region;
use traffic::Random;
use wire::ring as layout;

const RING_BYTES: u32 = 4096;
/// The time by which a deadline may be missed, on a machine under load, before it counts as a hang.
const SLACK: Duration = Duration::from_secs(5);

/// The resources of a hostile peer: the second end, in pieces.
struct Hostile {
    region: Region,
    /// data, ring of the peer's data, room, ring of the peer's room
    doorbells: Vec<OwnedFd>,
    memory: OwnedFd,
}

fn honest_and_hostile() -> ((Sender, Receiver), Hostile) {
    let (one, other) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    let mut doorbells = Vec::from(other.into_descriptors());
    let memory = doorbells.pop().unwrap();
    let region = Region::map(&memory, layout::region_bytes(RING_BYTES) as usize).unwrap();
    (one.open().unwrap(), Hostile { region, doorbells, memory })
}

/// Ends the other thread of a test, also when a check of this one has failed.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Where our outward ring (index 0) or inward ring (index 1) has its control words.
fn control(ring: usize, word: usize) -> usize {
    layout::OFFSET_CONTROLS + ring * layout::CONTROL_STRIDE + word
}

fn data(ring: usize) -> usize {
    layout::HEADER_BYTES + ring * RING_BYTES as usize
}

impl Hostile {
    /// One act of malice: sometimes anything anywhere, sometimes almost right.
    fn scribble(&self, random: &mut Random, spare_states: bool) {
        let bytes = layout::region_bytes(RING_BYTES) as usize;
        match random.below(10) {
            0 => {
                let offset = random.below(bytes / 8) * 8;
                let states = layout::OFFSET_ENDS..layout::OFFSET_CONTROLS;
                if !(spare_states && states.contains(&offset)) {
                    self.region.store_u64(offset, random.next(), Ordering::Relaxed);
                }
            }
            1 => {
                // Through the file, from its ring's first byte to the region's end.
                let offset = data(1) + random.below(RING_BYTES as usize - 64);
                let noise: Vec<u8> = (0..64).map(|_| random.next() as u8).collect();
                rustix::io::pwrite(&self.memory, &noise, offset as u64).unwrap();
            }
            2 | 3 => {
                let position = random.below(64) * 8;
                let kind = random.below(7) as u64;
                let word = layout::record_word(kind, random.below(4096), position as u64);
                self.region.store_u64(data(1) + position, word, Ordering::Release);
            }
            4 => {
                let word = [layout::CONTROL_CONSUMED, layout::CONTROL_SLEEPING, layout::CONTROL_WANTED];
                let offset = control(random.below(2), word[random.below(word.len())]);
                self.region.store_u64(offset, (random.below(8192) * 8) as u64, Ordering::Relaxed);
            }
            5 => {
                let word =
                    [layout::CONTROL_PRODUCER_PROCESSOR, layout::CONTROL_UNFENCED, layout::CONTROL_BARRIER];
                let offset = control(random.below(2), word[random.below(word.len())]);
                self.region.store_u64(offset, random.next(), Ordering::Relaxed);
            }
            6 | 7 => {
                sys::doorbell::ring(&self.doorbells[1]).unwrap();
                sys::doorbell::ring(&self.doorbells[3]).unwrap();
            }
            _ => {
                let position = random.below(512) * 8;
                self.region.store_u64(data(1) + position, 0, Ordering::Relaxed);
            }
        }
    }
}

/// Sends and receives until the channel ends, each call with a deadline; returns what ended it.
fn exchange(sender: &mut Sender, receiver: &mut Receiver, until: Instant) -> Option<Violation> {
    let mut got = Vec::new();
    for turn in 0_usize.. {
        if Instant::now() >= until {
            return None;
        }
        let deadline = Instant::now() + Duration::from_micros(300);
        match sender.send(&[turn as u8; 200], Some(deadline)) {
            Ok(()) | Err(SendError::TimedOut) => {}
            Err(SendError::Closed) => return None,
            Err(SendError::Corrupt(violation)) => return Some(violation),
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline + SLACK, "a send hung");
        let deadline = Instant::now() + Duration::from_micros(300);
        match receiver.receive(&mut got, Some(deadline)) {
            Ok(length) => assert!(length <= receiver.max_message() && length == got.len()),
            Err(ReceiveError::TimedOut) => {}
            Err(ReceiveError::Closed) => return None,
            Err(ReceiveError::Corrupt(violation)) => return Some(violation),
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < deadline + SLACK, "a receive hung");
    }
    None
}

#[test]
fn scribbling_over_everything_ends_in_a_named_error() {
    let mut kinds = std::collections::BTreeSet::new();
    let seed = traffic::seed();
    for round in 0..400 {
        let ((mut sender, mut receiver), hostile) = honest_and_hostile();
        let done = AtomicBool::new(false);
        let mut its_random = Random::new(seed, round);
        let violation = thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    hostile.scribble(&mut its_random, round % 4 != 0);
                }
            });
            let _done = Done(&done);
            exchange(&mut sender, &mut receiver, Instant::now() + Duration::from_millis(20))
        });
        if let Some(violation) = violation {
            kinds.insert(format!("{violation:?}").split(' ').next().unwrap_or_default().to_owned());
            assert!(sender.is_closed() && receiver.is_closed(), "a broken rule closes the channel");
            let state = hostile.region.load_u64(layout::OFFSET_ENDS, Ordering::Relaxed);
            assert!(state == layout::END_REFUSED || round % 4 == 0, "the peer is told why: {state}");
        }
    }
    println!("violations seen: {kinds:?}");
    assert!(kinds.len() >= 3, "the scribbler is too tame: {kinds:?}");
}

/// A peer that is quick to ring and slow to send: each wait ends at its deadline.
#[test]
fn ringing_for_ever_wins_no_time() {
    let ((mut sender, mut receiver), hostile) = honest_and_hostile();
    while sender.try_send(&[0; 100]).is_ok() {}
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                sys::doorbell::ring(&hostile.doorbells[1]).unwrap();
                sys::doorbell::ring(&hostile.doorbells[3]).unwrap();
            }
        });
        let _done = Done(&done);
        for _ in 0..20 {
            let deadline = Instant::now() + Duration::from_millis(10);
            let received = receiver.receive(&mut Vec::new(), Some(deadline));
            assert!(matches!(received, Err(ReceiveError::TimedOut)), "{received:?}");
            let sent = sender.send(&[0; 100], Some(deadline + Duration::from_millis(10)));
            assert!(matches!(sent, Err(SendError::TimedOut)), "{sent:?}");
            assert!(Instant::now() < deadline + SLACK);
        }
    });
}

/// A message that shows and vanishes keeps a receiver turning, but not beyond its deadline.
#[test]
fn a_message_that_comes_and_goes_wins_no_time() {
    let ((_sender, mut receiver), hostile) = honest_and_hostile();
    let done = AtomicBool::new(false);
    let sleeping = control(1, layout::CONTROL_SLEEPING);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Shows something exactly when the receiver is about to sleep, and takes it back when
            // it looks.
            while !done.load(Ordering::Relaxed) {
                if hostile.region.load_u64(sleeping, Ordering::Relaxed) != 0 {
                    let word = layout::record_word(layout::RECORD_MESSAGE, 8, 0);
                    hostile.region.store_u64(data(1), word, Ordering::Relaxed);
                    sys::doorbell::ring(&hostile.doorbells[1]).unwrap();
                    hostile.region.store_u64(data(1), 0, Ordering::Relaxed);
                }
            }
        });
        let _done = Done(&done);
        for _ in 0..20 {
            let deadline = Instant::now() + Duration::from_millis(10);
            match receiver.receive(&mut Vec::new(), Some(deadline)) {
                Err(ReceiveError::TimedOut) => {}
                // It was quick enough to see one; the next record can't stand where the peer shows
                // it.
                Ok(8) => break,
                other => panic!("{other:?}"),
            }
            assert!(Instant::now() < deadline + SLACK);
        }
    });
}

/// An eventfd or a pipe end that both sides share could be filled and made blocking; ours can't be.
#[test]
fn full_and_blocking_doorbells_do_not_block_us() {
    let ((mut sender, mut receiver), hostile) = honest_and_hostile();
    for doorbell in &hostile.doorbells {
        rustix::fs::fcntl_setfl(doorbell, OFlags::empty()).unwrap();
    }
    // Fill the doorbells that we ring: the peer never hears.
    let sleeping = control(0, layout::CONTROL_SLEEPING);
    let consumed = control(0, layout::CONTROL_CONSUMED);
    let deadline = Instant::now() + SLACK;
    for sent in 1..=20_000_u64 {
        hostile.region.store_u64(sleeping, 1, Ordering::Relaxed);
        sender.try_send(b"").unwrap();
        hostile.region.store_u64(consumed, sent * 8, Ordering::Relaxed);
    }
    // Fill those that we hear, larger than they were made, with more than rings.
    rustix::net::sockopt::set_socket_send_buffer_size(&hostile.doorbells[1], 1 << 20).unwrap();
    while rustix::net::send(&hostile.doorbells[1], &[7; 4096], SendFlags::DONTWAIT).is_ok() {}
    let wait = Instant::now() + Duration::from_millis(10);
    let received = receiver.receive(&mut Vec::new(), Some(wait));
    assert!(matches!(received, Err(ReceiveError::TimedOut)), "{received:?}");
    sender.close();
    assert!(Instant::now() < deadline + SLACK);
}

/// With a doorbell that is a pipe it would: whoever splices from it or into it, or has it copied
/// from or to memory that makes him wait, holds its lock, and everybody else who rings or hears
/// waits in the kernel, where no deadline and no signal reach.
#[test]
fn a_peer_that_splices_its_doorbells_holds_up_nobody() {
    let ((mut sender, mut receiver), hostile) = honest_and_hostile();
    let (empty, fill) = rustix::pipe::pipe().unwrap();
    let (drain, full) = rustix::pipe::pipe().unwrap();
    let splice = |from: &OwnedFd, into: &OwnedFd| {
        let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
        rustix::fs::fcntl_setfl(&from, OFlags::empty()).unwrap();
        thread::spawn(move || rustix::pipe::splice(&from, None, &into, None, 1000, SpliceFlags::empty()))
    };
    let [hears, rings, hears_room, rings_room] = &hostile.doorbells[..] else { unreachable!() };
    let held =
        [splice(hears, &full), splice(&empty, rings), splice(hears_room, &full), splice(&empty, rings_room)];
    let deadline = Instant::now() + SLACK;
    let sleeping = control(0, layout::CONTROL_SLEEPING);
    for _ in 0..100 {
        hostile.region.store_u64(sleeping, 1, Ordering::Relaxed);
        sender.try_send(b"").unwrap();
        let wait = Instant::now() + Duration::from_millis(2);
        let received = receiver.receive(&mut Vec::new(), Some(wait));
        assert!(matches!(received, Err(ReceiveError::TimedOut)), "{received:?}");
    }
    sender.close();
    drop((sender, receiver, hostile));
    assert!(Instant::now() < deadline + SLACK);
    drop((fill, drain));
    for thread in held {
        // Whether it was an error is the kernel's choice.
        let _ended = thread.join().unwrap();
    }
}

/// Punching holes into the region frees its pages under us; they read as zero: nothing committed,
/// nothing consumed.
#[test]
fn holes_in_the_region_are_survived() {
    let ((mut sender, mut receiver), hostile) = honest_and_hostile();
    sender.send(&[1; 1000], None).unwrap();
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&hostile.memory, flags, 0, layout::region_bytes(RING_BYTES)).unwrap();
    sender.try_send(&[1; 1000]).unwrap();
    assert!(matches!(receiver.try_receive(&mut Vec::new()), Ok(None)));
}

#[test]
fn each_lie_about_the_rings_has_its_name() {
    let ((mut sender, _receiver), hostile) = honest_and_hostile();
    hostile.region.store_u64(control(0, layout::CONTROL_CONSUMED), 8, Ordering::Relaxed);
    let error = loop {
        if let Err(error) = sender.try_send(&[0; 100]) {
            break error;
        }
    };
    assert!(matches!(error, SendError::Full), "8 bytes are possible by then: {error}");
    hostile.region.store_u64(control(0, layout::CONTROL_CONSUMED), 1 << 40, Ordering::Relaxed);
    let error = sender.try_send(&[0; 100]).unwrap_err();
    assert!(matches!(error, SendError::Corrupt(Violation::Consumed { alleged, .. }) if alleged == 1 << 40));

    let ((mut sender, mut receiver), hostile) = honest_and_hostile();
    let word = layout::record_word(layout::RECORD_MESSAGE, 2041, 0);
    hostile.region.store_u64(data(1), word, Ordering::Relaxed);
    let error = receiver.try_receive(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, ReceiveError::Corrupt(Violation::Length { alleged: 2041, .. })), "{error}");
    assert!(matches!(receiver.try_receive(&mut Vec::new()), Err(ReceiveError::Closed)));
    assert!(matches!(sender.try_send(b""), Err(SendError::Closed)));
}
