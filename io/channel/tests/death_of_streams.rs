//! Streams whose writer or reader dies by `kill -9` at random moments: every byte that was written
//! comes, in order, and then the end of the file, which is told from one that was meant; who writes
//! gets a broken pipe.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod other_process;
mod traffic;

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use channel::{Config, End, Mode, StreamReader, StreamWriter, pair};
use sys::region::Region;
use traffic::Random;

/// How many processes die.
const DEATHS: u64 = 300;
/// A prime, so that a piece out of place is seen.
const NOISE_BYTES: usize = 65_521;
const NOTES_BYTES: usize = 4096;
/// Where the child notes how many bytes are on their way, and how many are held back no more.
const BEGUN: usize = 0;
const SENT: usize = 8;

fn notes(memory: &OwnedFd) -> Region {
    Region::map(memory, NOTES_BYTES).unwrap()
}

/// The bytes of every stream, again and again.
fn noise() -> Vec<u8> {
    let mut random = Random::new(1, 1);
    (0..NOISE_BYTES).map(|_| random.next() as u8).collect()
}

/// Writes until the channel ends; what ended it must be the reader's death.
fn pour(writer: &mut StreamWriter, seed: u64, notes: Option<&Region>) {
    let (noise, mut random, mut at) = (noise(), Random::new(seed, 2), 0_usize);
    let note = |word, count: usize| {
        if let Some(notes) = notes {
            notes.store_u64(word, count as u64, Ordering::Release);
        }
    };
    loop {
        let start = at % NOISE_BYTES;
        let most = if random.one_in(8) { 20_000 } else { 300 };
        let bytes = &noise[start..(start + 1 + random.below(most)).min(NOISE_BYTES)];
        note(BEGUN, at + bytes.len());
        if random.one_in(20) {
            writer.set_batch_bytes(random.below(2) * random.below(3000));
        }
        let written = writer.write_all(bytes).and_then(|()| {
            at += bytes.len();
            if random.one_in(3) {
                writer.flush()?;
                note(SENT, at);
            }
            Ok(())
        });
        if let Err(error) = written {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            return;
        }
    }
}

/// Reads to the end of the file; returns how many bytes came.
fn drain(reader: &mut StreamReader, seed: u64) -> usize {
    let (noise, mut random, mut at) = (noise(), Random::new(seed, 3), 0_usize);
    let mut into = vec![0; 20_000];
    loop {
        let most = if random.one_in(4) { into.len() } else { 100 };
        let length = 1 + random.below(most);
        let count = reader.read(&mut into[..length]).unwrap();
        if count == 0 {
            assert!(!reader.is_finished(), "nobody finished this stream");
            return at;
        }
        for (index, byte) in into[..count].iter().enumerate() {
            assert_eq!(*byte, noise[(at + index) % NOISE_BYTES], "byte {}", at + index);
        }
        at += count;
    }
}

#[test]
#[ignore = "the other process of the test below, which starts it"]
fn child() {
    let Some(role) = other_process::role() else { return };
    let Some(mut descriptors) = other_process::receive(End::DESCRIPTORS + 1) else { return };
    let notes = notes(&descriptors.pop().unwrap());
    let (role, seed) = role.split_once(' ').unwrap();
    let seed = seed.parse().unwrap();
    let (mut writer, mut reader) = End::from_descriptors(descriptors).unwrap().open_stream().unwrap();
    match role {
        "writes" => pour(&mut writer, seed, Some(&notes)),
        "reads" => drop(drain(&mut reader, seed)),
        other => panic!("no role {other}"),
    }
}

fn die(role: &str, seed: u64) {
    let mut random = Random::new(seed, 1);
    let ring_bytes = [4 << 10, 64 << 10][random.below(2)];
    let (ours, theirs) = pair(&Config { ring_bytes, mode: Mode::Stream, ..Config::default() }).unwrap();
    let (mut writer, mut reader) = ours.open_stream().unwrap();
    let memory = sys::memfd::sealed("notes", NOTES_BYTES as u64).unwrap();
    let notes = notes(&memory);
    let mut other = other_process::start(&format!("{role} {seed}"));
    let mut descriptors = Vec::from(theirs.into_descriptors());
    descriptors.push(memory);
    other.pass(&descriptors.iter().map(AsFd::as_fd).collect::<Vec<_>>());
    drop(descriptors);
    let received = thread::scope(|scope| {
        // Both halves at once: one of them waits for what will never come.
        scope.spawn(|| pour(&mut writer, seed, None));
        let draining = scope.spawn(|| drain(&mut reader, seed));
        // No event to wait for: the moment is meant to be any, that of the start included.
        let moment = Instant::now() + Duration::from_micros(random.below(6000) as u64);
        while Instant::now() < moment {
            thread::yield_now();
        }
        other.child.kill().unwrap();
        draining.join().unwrap() as u64
    });
    let status = other.child.wait().unwrap();
    assert!(status.code().is_none(), "the child came to its own end: {status}");
    let (sent, begun) = (notes.load_u64(SENT, Ordering::Acquire), notes.load_u64(BEGUN, Ordering::Acquire));
    assert!((sent..=begun).contains(&received), "{received} bytes came; {sent} were sent, {begun} begun");
    assert_eq!(writer.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn what_was_written_comes_and_then_the_end_of_the_file() {
    let seed = traffic::seed();
    for number in 0..DEATHS {
        let role = if number % 3 == 0 { "reads" } else { "writes" };
        let died = std::panic::catch_unwind(|| die(role, Random::new(seed, number).next()));
        assert!(died.is_ok(), "death {number} of seed {seed:x}, which {role}");
    }
}
