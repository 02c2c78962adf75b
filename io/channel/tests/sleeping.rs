//! How ends sleep: first on a futex, then on their doorbells; what wakes them; and when they spin
//! instead.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, ReceiveError, Receiver, SendError, Sender, SpinPolicy, pair};
use sys::region::Region;
use wire::ring as layout;

/// Long enough for a machine under load; what is tested is that none of it is needed.
const TIMEOUT: Duration = Duration::from_secs(20);

fn deadline() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn config(ring_bytes: u32) -> Config {
    Config { ring_bytes, ..Config::default() }
}

fn ends() -> ((Sender, Receiver), (Sender, Receiver)) {
    let (one, other) = pair(&config(4096)).unwrap();
    (one.open().unwrap(), other.open().unwrap())
}

/// Sends back what comes, until the channel closes.
fn echo(sender: &mut Sender, receiver: &mut Receiver) {
    let mut bytes = Vec::new();
    while receiver.receive(&mut bytes, deadline()).is_ok() {
        if sender.send(&bytes, deadline()).is_err() {
            return;
        }
    }
}

#[test]
fn answers_that_are_slept_for_come_through_futexes() {
    let ((mut sender, mut receiver), (mut peer_sender, mut peer_receiver)) = ends();
    receiver.set_spin_policy(SpinPolicy::Never);
    peer_receiver.set_spin_policy(SpinPolicy::Never);
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            echo(&mut peer_sender, &mut peer_receiver);
            peer_sender.counts()
        });
        let mut bytes = Vec::new();
        for number in 0..1000_u32 {
            sender.send(&number.to_le_bytes(), deadline()).unwrap();
            receiver.receive(&mut bytes, deadline()).unwrap();
            assert_eq!(bytes, number.to_le_bytes());
        }
        sender.close();
        let counts = receiver.counts();
        println!("{counts:?}");
        assert!(counts.futex_sleeps > 0 && peer.join().unwrap().futex_wakes > 0);
    });
}

#[test]
fn an_idle_end_sleeps_without_a_timer() {
    let ((mut sender, mut receiver), _peer) = ends();
    let at = Instant::now() + Duration::from_millis(60);
    assert!(matches!(receiver.receive(&mut Vec::new(), Some(at)), Err(ReceiveError::TimedOut)));
    let counts = receiver.counts();
    // poll(2) may end for a signal, and for nothing else.
    assert_eq!((counts.futex_sleeps, counts.futex_sleeps_in_vain), (1, 1), "{counts:?}");
    assert!((1..=3).contains(&counts.doorbell_sleeps), "{counts:?}");
    while sender.try_send(&[0; 100]).is_ok() {}
    let at = Instant::now() + Duration::from_millis(60);
    assert!(matches!(sender.send(&[0; 100], Some(at)), Err(SendError::TimedOut)));
    let counts = sender.counts();
    assert_eq!((counts.futex_sleeps, counts.futex_sleeps_in_vain), (1, 1), "{counts:?}");
    assert!((1..=3).contains(&counts.doorbell_sleeps), "{counts:?}");
}

/// Whether it sleeps on its futex, on its doorbell, or is just about to: a close wakes it, from
/// either side.
#[test]
fn a_close_wakes_every_kind_of_sleeper() {
    for round in 0..200_u64 {
        let ((mut sender, mut receiver), (_peer_sender, peer_receiver)) = ends();
        while sender.try_send(&[0; 100]).is_ok() {}
        let closer = if round % 2 == 0 { receiver.closer() } else { peer_receiver.closer() };
        thread::scope(|scope| {
            let start = Instant::now();
            scope.spawn(|| {
                let ended = receiver.receive(&mut Vec::new(), deadline());
                assert!(matches!(ended, Err(ReceiveError::Closed)), "{ended:?}");
            });
            scope.spawn(|| {
                let ended = sender.send(&[0; 100], deadline());
                assert!(matches!(ended, Err(SendError::Closed)), "{ended:?}");
            });
            // No event to wait for: the moment is meant to be any, from before the first sleep to
            // within the second.
            let moment = start + Duration::from_micros(round * 40);
            while Instant::now() < moment {
                thread::yield_now();
            }
            closer.close();
            drop(peer_receiver);
        });
    }
}

/// A peer that changes the words of sleepers, and wakes them for nothing, wins no time.
#[test]
fn meddling_with_a_sleepers_word_wins_no_time() {
    let (one, other) = pair(&config(4096)).unwrap();
    let descriptors = other.into_descriptors();
    let bytes = layout::region_bytes(4096) as usize;
    let region = Region::map(descriptors.last().unwrap(), bytes).unwrap();
    let (mut sender, mut receiver) = one.open().unwrap();
    while sender.try_send(&[0; 100]).is_ok() {}
    let control = |ring: usize, word| layout::OFFSET_CONTROLS + ring * layout::CONTROL_STRIDE + word;
    let words = [control(1, layout::CONTROL_SLEEPING), control(0, layout::CONTROL_WANTED)];
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for value in (0..8_u64).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                for word in words {
                    region.store_u64(word, value, Ordering::Relaxed);
                    region.wake(word);
                }
            }
        });
        for _ in 0..20 {
            let at = Instant::now() + Duration::from_millis(10);
            let received = receiver.receive(&mut Vec::new(), Some(at));
            assert!(matches!(received, Err(ReceiveError::TimedOut)), "{received:?}");
            let sent = sender.send(&[0; 100], Some(at + Duration::from_millis(10)));
            assert!(matches!(sent, Err(SendError::TimedOut)), "{sent:?}");
            assert!(Instant::now() < at + TIMEOUT);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// The end that answers is moved to our processor and away again while messages come and go: we
/// notice both, and nothing is lost.
#[test]
fn an_end_that_moves_is_noticed() {
    let processors = sys::processor::allowed().unwrap();
    let [here, .., there] = processors[..] else {
        println!("skipped: this program may use one processor only");
        return;
    };
    let ((mut sender, mut receiver), (mut peer_sender, mut peer_receiver)) = ends();
    let place = AtomicU32::new(there);
    thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let (mut bytes, mut now) = (Vec::new(), None);
            while peer_receiver.receive(&mut bytes, deadline()).is_ok() {
                let wanted = place.load(Ordering::Relaxed);
                if now != Some(wanted) {
                    sys::processor::pin(&[wanted]).unwrap();
                    now = Some(wanted);
                }
                if peer_sender.send(&bytes, deadline()).is_err() {
                    return;
                }
            }
        });
        sys::processor::pin(&[here]).unwrap();
        let (mut bytes, mut number) = (Vec::new(), 0_u64);
        for round in 0..6 {
            let apart = round % 2 == 0;
            place.store(if apart { there } else { here }, Ordering::Relaxed);
            let patience = Instant::now() + TIMEOUT;
            let mut rounds = 0;
            while receiver.is_peer_apart() != apart || rounds < 100 {
                sender.send(&number.to_le_bytes(), deadline()).unwrap();
                receiver.receive(&mut bytes, deadline()).unwrap();
                assert_eq!(bytes, number.to_le_bytes());
                assert!(Instant::now() < patience, "not noticed: apart is {apart}");
                (number, rounds) = (number + 1, rounds + 1);
            }
        }
        sender.close();
        peer.join().unwrap();
    });
}

#[test]
fn the_price_of_a_wake_is_carried_to_the_ends_and_kept_within_bounds() {
    for spin_ns in [channel::wake_price_ns(), Some(0), Some(1), Some(u32::MAX)] {
        let (one, other) = pair(&Config { spin_ns, ..config(4096) }).unwrap();
        let (mut sender, _receiver) = one.open().unwrap();
        let (_sender, mut receiver) = other.open().unwrap();
        sender.send(b"hello", deadline()).unwrap();
        let mut bytes = Vec::new();
        receiver.receive(&mut bytes, deadline()).unwrap();
        assert_eq!(bytes, b"hello");
        // Were four seconds believed, this would take them.
        let start = Instant::now();
        let at = start + Duration::from_millis(20);
        assert!(matches!(receiver.receive(&mut bytes, Some(at)), Err(ReceiveError::TimedOut)));
        assert!(receiver.counts().doorbell_sleeps > 0, "it slept instead of spinning until the deadline");
    }
}

/// An end that never spins slept for each answer, also where the peer could only give it once it
/// had the processor that both share: a sleep and a wake that a pipe's reader needs as well, and a
/// timer that it does not need.
#[test]
fn who_never_spins_gives_way_to_a_peer_on_its_processor() {
    let here = sys::processor::allowed().unwrap()[0];
    let ((mut sender, mut receiver), (mut peer_sender, mut peer_receiver)) = ends();
    receiver.set_spin_policy(SpinPolicy::Never);
    peer_receiver.set_spin_policy(SpinPolicy::Never);
    thread::scope(|scope| {
        let peer = scope.spawn(move || {
            sys::processor::pin(&[here]).unwrap();
            echo(&mut peer_sender, &mut peer_receiver);
            peer_receiver.counts()
        });
        sys::processor::pin(&[here]).unwrap();
        let mut bytes = Vec::new();
        for number in 0..500_u32 {
            sender.send(&number.to_le_bytes(), deadline()).unwrap();
            receiver.receive(&mut bytes, deadline()).unwrap();
            assert_eq!(bytes, number.to_le_bytes());
        }
        sender.close();
        let counts = receiver.counts();
        println!("{counts:?}");
        assert!(counts.ways > 0 && peer.join().unwrap().ways > 0, "{counts:?}");
    });
}

/// To a peer elsewhere no way has to be given, and who never spins sleeps at once.
#[test]
fn who_never_spins_sleeps_at_once_for_a_peer_on_another_processor() {
    let [here, .., there] = sys::processor::allowed().unwrap()[..] else {
        println!("skipped: this program may use one processor only");
        return;
    };
    let ((mut sender, mut receiver), (mut peer_sender, mut peer_receiver)) = ends();
    receiver.set_spin_policy(SpinPolicy::Never);
    thread::scope(|scope| {
        scope.spawn(move || {
            sys::processor::pin(&[there]).unwrap();
            echo(&mut peer_sender, &mut peer_receiver);
        });
        sys::processor::pin(&[here]).unwrap();
        let mut bytes = Vec::new();
        for number in 0..500_u32 {
            sender.send(&number.to_le_bytes(), deadline()).unwrap();
            receiver.receive(&mut bytes, deadline()).unwrap();
        }
        sender.close();
        let counts = receiver.counts();
        assert!(counts.ways == 0 && counts.futex_sleeps + counts.doorbell_sleeps > 0, "{counts:?}");
    });
}
