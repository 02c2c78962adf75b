//! Prints the median round trip of 64 bytes between two pinned threads: polled, spinning a while, and blocked.
//!
//! A look at whether the channel is in the right range, not a benchmark: beside each figure it prints the round
//! trip of a bare cache line between the same processors in the same run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use channel::{Config, ReceiveError, Receiver, Sender, SpinPolicy, pair};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MESSAGE_BYTES: usize = 64;
const WARM_UP: usize = 2_000;
/// Rounds of the bare line between two looks at the clock, which would otherwise be much of what is measured.
const LINE_BATCH: u64 = 100;

#[derive(Clone, Copy)]
enum Way {
    Polled,
    Waiting(SpinPolicy),
}

fn take(receiver: &mut Receiver, way: Way, into: &mut Vec<u8>) -> Result<(), ReceiveError> {
    match way {
        Way::Polled => {
            while receiver.try_receive(into)?.is_none() {
                std::hint::spin_loop();
            }
        }
        Way::Waiting(_) => {
            receiver.receive(into, None)?;
        }
    }
    Ok(())
}

fn echo(mut sender: Sender, mut receiver: Receiver, way: Way) -> Outcome {
    let mut message = Vec::new();
    loop {
        match take(&mut receiver, way, &mut message) {
            Ok(()) => sender.send(&message, None)?,
            Err(ReceiveError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

fn on<T: Send>(processor: u32, work: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    sys::processor::pin(&[processor])?;
    work()
}

fn round_trip(way: Way, rounds: usize, here: u32, there: u32, pause: Duration) -> Outcome<Duration> {
    let (one, other) = pair(&Config::default())?;
    let (mut sender, mut receiver) = one.open()?;
    let (peer_sender, mut peer_receiver) = other.open()?;
    if let Way::Waiting(policy) = way {
        receiver.set_spin_policy(policy);
        peer_receiver.set_spin_policy(policy);
    }
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || on(there, || echo(peer_sender, peer_receiver, way)));
        let samples = on(here, || {
            let mut message = Vec::new();
            let mut samples = Vec::with_capacity(rounds);
            for round in 0..rounds + WARM_UP.min(rounds) {
                let start = Instant::now();
                sender.send(&[round as u8; MESSAGE_BYTES], None)?;
                take(&mut receiver, way, &mut message)?;
                if round >= WARM_UP.min(rounds) {
                    samples.push(start.elapsed());
                }
                let until = Instant::now() + pause;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            Ok(samples)
        });
        sender.close();
        peer.join().map_err(|_| "the echoing thread has panicked")??;
        Ok(median(samples?))
    })
}

/// The bare line: two threads hand one word to and fro.
fn line(rounds: u64, here: u32, there: u32) -> Outcome<Duration> {
    let word = AtomicU64::new(0);
    let wait_for = |value| {
        while word.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            on(there, || {
                for round in 0..rounds {
                    wait_for(2 * round + 1);
                    word.store(2 * round + 2, Ordering::Release);
                }
                Ok(())
            })
        });
        let samples = on(here, || {
            let mut samples = Vec::new();
            let mut start = Instant::now();
            for round in 0..rounds {
                word.store(2 * round + 1, Ordering::Release);
                wait_for(2 * round + 2);
                if round % LINE_BATCH == LINE_BATCH - 1 {
                    let now = Instant::now();
                    samples.push((now - start) / LINE_BATCH as u32);
                    start = now;
                }
            }
            Ok(samples)
        });
        peer.join().map_err(|_| "the other thread has panicked")??;
        Ok(median(samples?))
    })
}

fn stream(messages: u64, here: u32, there: u32) -> Outcome<f64> {
    let (one, other) = pair(&Config::default())?;
    let (mut sender, _receiver) = one.open()?;
    let (_peer_sender, mut peer_receiver) = other.open()?;
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || {
            on(there, || {
                let mut message = Vec::new();
                for _ in 0..messages {
                    peer_receiver.receive(&mut message, None)?;
                }
                Ok(())
            })
        });
        let start = Instant::now();
        on(here, || {
            for _ in 0..messages {
                sender.send(&[1; MESSAGE_BYTES], None)?;
            }
            Ok(())
        })?;
        peer.join().map_err(|_| "the receiving thread has panicked")??;
        Ok(messages as f64 / start.elapsed().as_secs_f64() / 1e6)
    })
}

fn main() -> Outcome {
    let processors = sys::processor::allowed()?;
    let here = *processors.first().ok_or("no processor")?;
    let there = *processors.last().ok_or("no processor")?;
    println!("processors {here} and {there}, {MESSAGE_BYTES} bytes, medians of one way there and back");
    if here != there {
        println!("line             {:>9.3?}", line(200_000, here, there)?);
        println!("polled           {:>9.3?}", round_trip(Way::Polled, 200_000, here, there, Duration::ZERO)?);
        println!("line             {:>9.3?}", line(200_000, here, there)?);
        let adaptive = Way::Waiting(SpinPolicy::Adaptive);
        println!("spinning a while {:>9.3?}", round_trip(adaptive, 200_000, here, there, Duration::ZERO)?);
        let gap = Duration::from_micros(200);
        println!("  200 us between {:>9.3?}", round_trip(adaptive, 5_000, here, there, gap)?);
        println!("stream           {:>9.2} million messages/s", stream(5_000_000, here, there)?);
    }
    let blocked = Way::Waiting(SpinPolicy::Never);
    println!("blocked          {:>9.3?}", round_trip(blocked, 20_000, here, there, Duration::ZERO)?);
    println!("blocked, one cpu {:>9.3?}", round_trip(blocked, 20_000, here, here, Duration::ZERO)?);
    let adaptive = Way::Waiting(SpinPolicy::Adaptive);
    println!("adaptive, one cpu{:>9.3?}", round_trip(adaptive, 20_000, here, here, Duration::ZERO)?);
    Ok(())
}
