//! Prints the median round trip of 64 bytes between two pinned threads (polled, spinning a while,
//! and blocked), and what a stream of messages reaches.
//!
//! A look at whether the channel is in the right range, not a benchmark: beside each figure it
//! prints what bounds it in the same run: the round trip of a bare cache line, that of two pipes,
//! the copying of memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use channel::{Config, ReceiveError, Receiver, Sender, SpinPolicy, pair};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MESSAGE_BYTES: usize = 64;
const WARM_UP: usize = 100;
/// Rounds of the bare line between two looks at the clock, which would otherwise be much of what is
/// measured.
const LINE_BATCH: u64 = 100;

#[derive(Clone, Copy, PartialEq)]
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
                // Back to back, the clock is read once per batch: it would be a good part of what
                // is measured.
                let sleeps = way == Way::Waiting(SpinPolicy::Never) || here == there || !pause.is_zero();
                let batch = if sleeps { 1 } else { LINE_BATCH };
                let start = Instant::now();
                for _ in 0..batch {
                    sender.send(&[round as u8; MESSAGE_BYTES], None)?;
                    take(&mut receiver, way, &mut message)?;
                }
                if round >= WARM_UP.min(rounds) {
                    samples.push(start.elapsed() / batch as u32);
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

/// Two pipes, as programs use them.
fn pipes(rounds: usize, here: u32, there: u32) -> Outcome<Duration> {
    let (ask_end, ask) = rustix::pipe::pipe()?;
    let (answer_end, answer) = rustix::pipe::pipe()?;
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || {
            on(there, || {
                let mut message = [0; MESSAGE_BYTES];
                while rustix::io::read(&ask_end, &mut message)? > 0 {
                    rustix::io::write(&answer, &message)?;
                }
                Ok(())
            })
        });
        let samples = on(here, || {
            let mut message = [0; MESSAGE_BYTES];
            let mut samples = Vec::with_capacity(rounds);
            for round in 0..2 * rounds {
                let start = Instant::now();
                rustix::io::write(&ask, &message)?;
                rustix::io::read(&answer_end, &mut message)?;
                if round >= rounds {
                    samples.push(start.elapsed());
                }
            }
            Ok(samples)
        });
        drop(ask);
        peer.join().map_err(|_| "the echoing thread has panicked")??;
        Ok(median(samples?))
    })
}

/// Seconds that it takes to bring `messages` of `bytes` each across.
fn stream(messages: u64, bytes: usize, batch_bytes: usize, here: u32, there: u32) -> Outcome<f64> {
    let (one, other) = pair(&Config { ring_bytes: 1 << 20, ..Config::default() })?;
    let (mut sender, _receiver) = one.open()?;
    let (_peer_sender, mut peer_receiver) = other.open()?;
    sender.set_batch_bytes(batch_bytes);
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || {
            on(there, || {
                let mut message = Vec::new();
                for _ in 0..messages + WARM_UP as u64 {
                    peer_receiver.receive(&mut message, None)?;
                }
                Ok(())
            })
        });
        let message = vec![1; bytes];
        let mut start = Instant::now();
        on(here, || {
            for number in 0..messages + WARM_UP as u64 {
                if number == WARM_UP as u64 {
                    start = Instant::now();
                }
                sender.send(&message, None)?;
            }
            Ok(sender.flush()?)
        })?;
        peer.join().map_err(|_| "the receiving thread has panicked")??;
        Ok(start.elapsed().as_secs_f64())
    })
}

/// Seconds that it takes to copy `times` as many bytes once, in a buffer of the processor's own.
fn copying(times: u64, bytes: usize, here: u32) -> Outcome<f64> {
    on(here, || {
        let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
        let start = Instant::now();
        for _ in 0..times {
            std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
        }
        Ok(start.elapsed().as_secs_f64())
    })
}

/// The cost of a message to one thread that sends and receives it: the instructions, without a line
/// that travels.
fn alone(here: u32) -> Outcome<Duration> {
    let (one, other) = pair(&Config::default())?;
    let (mut sender, _receiver) = one.open()?;
    let (_sender, mut receiver) = other.open()?;
    on(here, || {
        let (mut message, mut samples) = (Vec::new(), Vec::new());
        for _ in 0..2_000 {
            let start = Instant::now();
            for round in 0..LINE_BATCH {
                sender.send(&[round as u8; MESSAGE_BYTES], None)?;
                receiver.receive(&mut message, None)?;
            }
            samples.push(start.elapsed() / LINE_BATCH as u32);
        }
        Ok(median(samples))
    })
}

const STREAM_MESSAGES: u64 = 5_000_000;
const LARGE_BYTES: usize = 64 << 10;
const LARGE_MESSAGES: u64 = 40_000;
const BATCH_BYTES: usize = 4 << 10;

fn streams(here: u32, there: u32) -> Outcome {
    let millions = |seconds: f64| STREAM_MESSAGES as f64 / seconds / 1e6;
    let gib = |seconds: f64| (LARGE_MESSAGES as f64) * LARGE_BYTES as f64 / seconds / f64::from(1 << 30);
    println!("line             {:>9.3?}", line(200_000, here, there)?);
    let seconds = stream(STREAM_MESSAGES, MESSAGE_BYTES, 0, here, there)?;
    println!("stream           {:>9.2} million messages/s", millions(seconds));
    let seconds = stream(STREAM_MESSAGES, MESSAGE_BYTES, BATCH_BYTES, here, there)?;
    println!("  in batches     {:>9.2} million messages/s", millions(seconds));
    let seconds = stream(LARGE_MESSAGES, LARGE_BYTES, 0, here, there)?;
    println!("  of 64 KiB      {:>9.2} GiB/s", gib(seconds));
    println!("copying 64 KiB   {:>9.2} GiB/s", gib(copying(LARGE_MESSAGES, LARGE_BYTES, here)?));
    println!("line             {:>9.3?}", line(200_000, here, there)?);
    Ok(())
}

fn main() -> Outcome {
    let processors = sys::processor::allowed()?;
    let here = *processors.first().ok_or("no processor")?;
    let there = *processors.last().ok_or("no processor")?;
    println!("processors {here} and {there}, {MESSAGE_BYTES} bytes, medians of one way there and back");
    println!("sent, received   {:>9.3?}", alone(here)?);
    if here != there {
        println!("line             {:>9.3?}", line(200_000, here, there)?);
        println!("polled           {:>9.3?}", round_trip(Way::Polled, 4_000, here, there, Duration::ZERO)?);
        println!("line             {:>9.3?}", line(200_000, here, there)?);
        let adaptive = Way::Waiting(SpinPolicy::Adaptive);
        println!("spinning a while {:>9.3?}", round_trip(adaptive, 4_000, here, there, Duration::ZERO)?);
        let gap = Duration::from_micros(200);
        println!("  200 us between {:>9.3?}", round_trip(adaptive, 5_000, here, there, gap)?);
        streams(here, there)?;
        println!("pipes            {:>9.3?}", pipes(10_000, here, there)?);
    }
    let blocked = Way::Waiting(SpinPolicy::Never);
    println!("blocked          {:>9.3?}", round_trip(blocked, 20_000, here, there, Duration::ZERO)?);
    println!("pipes, one cpu   {:>9.3?}", pipes(20_000, here, here)?);
    println!("blocked, one cpu {:>9.3?}", round_trip(blocked, 20_000, here, here, Duration::ZERO)?);
    let adaptive = Way::Waiting(SpinPolicy::Adaptive);
    println!("adaptive, one cpu{:>9.3?}", round_trip(adaptive, 20_000, here, here, Duration::ZERO)?);
    Ok(())
}
