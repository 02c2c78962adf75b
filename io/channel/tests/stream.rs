//! The view of two honest ends of a stream: every byte, once, in order; waits that end when they
//! should; and the end.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use channel::{
    Config, End, Mode, OpenError, ReceiveError, SendError, SpinPolicy, StreamReader, StreamWriter, Violation,
    pair,
};
use wire::ring as layout;

type Halves = (StreamWriter, StreamReader);

fn open(ring_bytes: u32) -> (Halves, Halves) {
    let (one, other) = pair(&Config { ring_bytes, mode: Mode::Stream, ..Config::default() }).unwrap();
    (one.open_stream().unwrap(), other.open_stream().unwrap())
}

/// For what should happen at once; long enough for a machine under load.
fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// Byte `at` of the stream that the tests send.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn bytes(from: u64, length: usize) -> Vec<u8> {
    (from..from + length as u64).map(byte).collect()
}

/// A generator of lengths that replays from its seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

/// Fills the channel until nothing more goes in; returns how many bytes went.
fn fill(writer: &mut StreamWriter) -> u64 {
    let mut sent = 0;
    loop {
        match writer.try_write(&bytes(sent, 700)) {
            Ok(written) => sent += written as u64,
            Err(SendError::Full) => return sent,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn both_directions_carry_bytes_without_seams() {
    let ((mut write_1, mut read_1), (mut write_2, mut read_2)) = open(4096);
    let mut into = [0; 100];
    write_1.write_all(b"to ").unwrap();
    write_1.write_all(b"two").unwrap();
    write_2.write_all(b"to one").unwrap();
    assert_eq!(read_2.read(&mut into).unwrap(), 6, "two records, one read");
    assert_eq!(&into[..6], b"to two");
    assert_eq!(read_1.read(&mut into[..2]).unwrap(), 2, "one record, two reads");
    assert_eq!(read_1.read(&mut into[2..]).unwrap(), 4);
    assert_eq!(&into[..6], b"to one");
    assert_eq!(read_1.try_read(&mut into).unwrap(), None);
}

#[test]
fn writes_and_reads_of_every_length_keep_the_order() {
    const BYTES: u64 = 20_000_000;
    for (ring_bytes, seed, longest) in [(4096, 7, 3000), (64 << 10, 8, 100_000), (256 << 10, 9, 300)] {
        let ((mut writer, _unused), (_quiet, mut reader)) = open(ring_bytes);
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut dice, mut sent) = (Dice(seed), 0);
                writer.set_batch_bytes(if ring_bytes == 256 << 10 { 8192 } else { 0 });
                while sent < BYTES {
                    let chunk = bytes(sent, dice.roll(longest));
                    assert_eq!(writer.write_with(&chunk, soon()).unwrap(), chunk.len());
                    sent += chunk.len() as u64;
                }
                writer.finish(soon()).unwrap();
                // Dropping it would close the channel; that is the other test's.
                while !writer.is_closed() {
                    thread::yield_now();
                }
            });
            let (mut dice, mut into, mut got) = (Dice(seed + 100), vec![0; longest], 0);
            loop {
                let length = 1 + dice.roll(longest - 1);
                let read = reader.read_with(&mut into[..length], soon()).unwrap();
                if read == 0 {
                    break;
                }
                assert!(
                    into[..read].iter().zip(got..).all(|(found, at)| *found == byte(at)),
                    "from byte {got}"
                );
                got += read as u64;
            }
            assert!(got >= BYTES && reader.is_finished(), "{got}");
            reader.close();
        });
    }
}

#[test]
fn a_reader_takes_one_byte_at_a_time() {
    const BYTES: u64 = 200_000;
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    writer.set_spin_policy(SpinPolicy::Never);
    reader.set_spin_policy(SpinPolicy::Never);
    let writing = thread::spawn(move || {
        assert_eq!(writer.write_with(&bytes(0, BYTES as usize), soon()).unwrap(), BYTES as usize);
    });
    let mut one = [0];
    for at in 0..BYTES {
        assert_eq!(reader.read_with(&mut one, soon()).unwrap(), 1);
        assert_eq!(one[0], byte(at), "byte {at}");
    }
    assert_eq!(reader.read_with(&mut one, soon()).unwrap(), 0);
    assert!(!reader.is_finished(), "dropped, not finished");
    writing.join().unwrap();
}

#[test]
fn a_writer_whose_reader_never_reads_times_out_and_has_said_how_much_went() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    let all = bytes(0, 100_000);
    let deadline = Instant::now() + Duration::from_millis(20);
    let went = writer.write_with(&all, Some(deadline)).unwrap();
    assert!(went > 0 && went < 4096, "{went}");
    assert!(Instant::now() >= deadline);
    let deadline = Instant::now() + Duration::from_millis(20);
    let error = writer.write_with(&all[went..], Some(deadline)).unwrap_err();
    assert!(matches!(error, SendError::TimedOut), "{error}");
    assert!(Instant::now() >= deadline);
    assert!(matches!(writer.try_write(&all[went..]), Err(SendError::Full)));
    // What was said to have gone is what comes, and not a byte more.
    let mut got = vec![0; 8192];
    assert_eq!(reader.try_read(&mut got).unwrap(), Some(went));
    assert_eq!(got[..went], all[..went]);
    assert_eq!(reader.try_read(&mut got).unwrap(), None);
    assert_eq!(writer.write_with(&all[went..went + 10], soon()).unwrap(), 10);
}

#[test]
fn an_end_that_finds_no_room_is_not_the_end() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    let mut sent = fill(&mut writer);
    while writer.try_write(&[byte(sent)]).is_ok() {
        sent += 1;
    }
    assert!(matches!(writer.try_finish(), Err(SendError::Full)));
    let deadline = Instant::now() + Duration::from_millis(20);
    assert!(matches!(writer.finish(Some(deadline)), Err(SendError::TimedOut)));
    let mut got = vec![0; 8192];
    assert_eq!(reader.try_read(&mut got).unwrap(), Some(sent as usize));
    assert_eq!(got[..sent as usize], bytes(0, sent as usize));
    assert_eq!(reader.try_read(&mut got).unwrap(), None);
    assert_eq!(writer.write(b"x").unwrap(), 1);
    writer.finish(soon()).unwrap();
    assert_eq!(reader.read(&mut got).unwrap(), 1);
    assert_eq!(reader.read(&mut got).unwrap(), 0);
}

#[test]
fn a_deadline_that_has_passed_still_takes_what_is_there() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    let now = Some(Instant::now());
    let mut into = [0; 8];
    assert!(matches!(reader.read_with(&mut into, now), Err(ReceiveError::TimedOut)));
    assert_eq!(writer.write_with(b"abc", now).unwrap(), 3);
    assert_eq!(reader.read_with(&mut into, now).unwrap(), 3);
}

#[test]
fn nothing_is_written_by_a_write_of_nothing() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    let mut into = [0; 8];
    for _ in 0..10_000 {
        assert_eq!(writer.write(b"").unwrap(), 0);
        assert_eq!(writer.try_write_vectored(&[IoSlice::new(b""), IoSlice::new(b"")]).unwrap(), 0);
    }
    assert_eq!(reader.try_read(&mut into).unwrap(), None, "no end of file by an empty write");
    assert_eq!(reader.read(&mut []).unwrap(), 0, "no wait for nothing");
    assert_eq!(reader.read_vectored(&mut [IoSliceMut::new(&mut [])]).unwrap(), 0);
    writer.write_all(b"x").unwrap();
    assert_eq!(reader.read(&mut into).unwrap(), 1);
}

#[test]
fn vectors_are_gathered_and_scattered() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    let (one, none, two, three) = (bytes(0, 5), Vec::new(), bytes(5, 1500), bytes(1505, 3));
    let parts = [&one, &none, &two, &three].map(|part| IoSlice::new(part));
    assert_eq!(writer.write_vectored(&parts).unwrap(), 1508);
    let (mut a, mut b, mut c) = (vec![0; 700], vec![], vec![0; 900]);
    let mut into = [&mut a, &mut b, &mut c].map(|part| IoSliceMut::new(part));
    assert_eq!(reader.read_vectored(&mut into).unwrap(), 1508);
    assert_eq!(a, bytes(0, 700));
    assert_eq!(c[..808], bytes(700, 808));
    assert_eq!(reader.try_read_vectored(&mut [IoSliceMut::new(&mut a)]).unwrap(), None);
}

#[test]
fn small_writes_are_held_until_they_are_many_or_flushed() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(64 << 10);
    let mut into = vec![0; 10_000];
    writer.set_batch_bytes(1000);
    for at in 0..9 {
        assert_eq!(writer.write(&bytes(at * 100, 100)).unwrap(), 100);
        assert_eq!(reader.try_read(&mut into).unwrap(), None);
    }
    assert_eq!(writer.write(&bytes(900, 150)).unwrap(), 150);
    assert_eq!(reader.try_read(&mut into).unwrap(), Some(1050));
    assert_eq!(into[..1050], bytes(0, 1050));
    writer.write_all(b"abc").unwrap();
    assert_eq!(reader.try_read(&mut into).unwrap(), None);
    writer.flush().unwrap();
    assert_eq!(reader.try_read(&mut into).unwrap(), Some(3));
    writer.flush().unwrap();
    assert_eq!(reader.try_read(&mut into).unwrap(), None, "nothing held, nothing sent");
    // A large write takes what is held with it.
    writer.write_all(b"abc").unwrap();
    writer.write_all(&[b'd'; 5000]).unwrap();
    assert_eq!(reader.try_read(&mut into).unwrap(), Some(5003));
    assert_eq!(&into[..4], b"abcd");
    // So does the end, and so does a drop.
    writer.write_all(b"last").unwrap();
    drop(writer);
    assert_eq!(reader.read(&mut into).unwrap(), 4);
    assert_eq!(reader.read(&mut into).unwrap(), 0);
}

#[test]
fn one_direction_ends_and_the_other_goes_on() {
    let ((mut write_1, mut read_1), (mut write_2, mut read_2)) = open(4096);
    write_1.set_batch_bytes(100);
    write_1.write_all(b"question").unwrap();
    write_1.finish(soon()).unwrap();
    write_1.finish(soon()).unwrap();
    assert_eq!(write_1.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut text = String::new();
    assert_eq!(read_2.read_to_string(&mut text).unwrap(), 8);
    assert!(read_2.is_finished() && !read_2.is_closed());
    assert!(!read_2.prepare_wait(), "the end is something");
    write_2.write_all(b"answer").unwrap();
    write_2.finish(soon()).unwrap();
    text.clear();
    assert_eq!(read_1.read_to_string(&mut text).unwrap(), 6);
    assert_eq!(text, "answer");
    assert_eq!(read_2.read(&mut [0; 4]).unwrap(), 0, "the end stays");
}

#[test]
fn a_close_drains_and_is_then_the_end_and_a_broken_pipe() {
    let ((mut writer, reader), (mut peer_writer, mut peer_reader)) = open(4096);
    writer.write_all(b"committed").unwrap();
    drop((writer, reader));
    let mut into = [0; 4];
    let mut all = Vec::new();
    loop {
        match peer_reader.read(&mut into).unwrap() {
            0 => break,
            read => all.extend_from_slice(&into[..read]),
        }
    }
    assert_eq!(all, b"committed");
    assert!(!peer_reader.is_finished());
    let error = peer_writer.write(b"x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert!(matches!(error.get_ref().unwrap().downcast_ref(), Some(SendError::Closed)), "{error:?}");
    assert!(matches!(peer_writer.try_write(b"x"), Err(SendError::Closed)));
}

#[test]
fn a_death_is_the_end_of_the_file_too() {
    let (one, other) = pair(&Config { ring_bytes: 4096, mode: Mode::Stream, ..Config::default() }).unwrap();
    let (mut writer, mut reader) = one.open_stream().unwrap();
    // Nobody ever opened the other end, and nobody can any more: as after a kill.
    drop(other);
    assert_eq!(reader.read_with(&mut [0; 4], soon()).unwrap(), 0);
    assert_eq!(writer.write(&[0; 100_000]).unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_close_from_elsewhere_wakes_both_halves() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    fill(&mut writer);
    let (close_writer, close_reader) = (writer.closer(), reader.closer());
    let ((mut idle_writer, mut idle_reader), _other) = open(4096);
    let close_idle = idle_reader.closer();
    thread::scope(|scope| {
        let writing = scope.spawn(move || (writer.write_with(&[1; 700], soon()), writer));
        let reading = scope.spawn(move || idle_reader.read_with(&mut [0; 4], soon()));
        close_writer.close();
        close_idle.close();
        let (written, _writer) = writing.join().unwrap();
        let error = written.unwrap_err();
        assert!(matches!(error, SendError::Closed), "{error}");
        assert_eq!(reading.join().unwrap().unwrap(), 0);
    });
    assert_eq!(idle_writer.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    close_reader.close();
    assert_eq!(reader.read(&mut [0; 4]).unwrap(), 0);
}

/// An event loop on both sides: descriptors, `prepare_wait`, and never a blocking call.
#[test]
fn event_loops_move_a_stream() {
    const BYTES: u64 = 3_000_000;
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    let wait = |watched: channel::Descriptors<'_>| {
        sys::doorbell::wait(watched.doorbell, watched.lifeline, Some(20_000_000_000)).unwrap();
    };
    let writing = thread::spawn(move || {
        let (mut dice, mut sent) = (Dice(5), 0);
        while sent < BYTES {
            let chunk = bytes(sent, 1 + dice.roll(4000));
            match writer.try_write(&chunk) {
                Ok(written) => sent += written as u64,
                Err(SendError::Full) => {
                    if writer.prepare_wait(chunk.len()).unwrap() {
                        wait(writer.descriptors());
                        writer.cancel_wait();
                        writer.drain_doorbell().unwrap();
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        sent
    });
    let (mut dice, mut into, mut got) = (Dice(6), vec![0; 5000], 0);
    loop {
        let length = 1 + dice.roll(4999);
        match reader.try_read(&mut into[..length]).unwrap() {
            Some(0) => break,
            Some(read) => {
                assert!(
                    into[..read].iter().zip(got..).all(|(found, at)| *found == byte(at)),
                    "from byte {got}"
                );
                got += read as u64;
            }
            None if reader.prepare_wait() => {
                wait(reader.descriptors());
                reader.cancel_wait();
                reader.drain_doorbell().unwrap();
            }
            None => {}
        }
    }
    assert_eq!(got, writing.join().unwrap());
}

#[test]
fn a_held_record_keeps_an_event_loop_awake() {
    let ((mut writer, _unused), (_quiet, mut reader)) = open(4096);
    writer.write_all(b"abc").unwrap();
    assert_eq!(reader.try_read(&mut [0; 2]).unwrap(), Some(2));
    assert!(!reader.prepare_wait(), "a byte is left");
    assert_eq!(reader.try_read(&mut [0; 2]).unwrap(), Some(1));
    assert!(reader.prepare_wait());
    reader.cancel_wait();
}

#[test]
fn the_mode_travels_with_the_region() {
    let (one, other) = pair(&Config { ring_bytes: 4096, mode: Mode::Stream, ..Config::default() }).unwrap();
    assert_eq!(one.mode().unwrap(), Mode::Stream);
    let other = End::from_descriptors(other.into_descriptors().into()).unwrap();
    assert_eq!(other.mode().unwrap(), Mode::Stream);
    drop(other.open_stream().unwrap());

    let (messages, _other) = pair(&Config::default()).unwrap();
    assert_eq!(messages.mode().unwrap(), Mode::Messages);
    let error = messages.open_stream().unwrap_err();
    assert!(matches!(error, OpenError::WrongMode { found: Mode::Messages, wanted: Mode::Stream }), "{error}");
}

#[test]
fn a_mode_that_does_not_exist_is_refused() {
    for found in [2, 1 << 32, u64::MAX] {
        let (one, _other) = pair(&Config::default()).unwrap();
        let descriptors = one.into_descriptors();
        rustix::io::pwrite(&descriptors[0], &found.to_le_bytes(), layout::OFFSET_MODE as u64).unwrap();
        let end = End::from_descriptors(descriptors.into()).unwrap();
        assert!(matches!(end.mode(), Err(OpenError::UnknownMode { found: named }) if named == found));
        let error = end.open().unwrap_err();
        assert!(matches!(error, OpenError::UnknownMode { found: named } if named == found), "{error}");
        assert!(error.to_string().ends_with("there are 0 (messages) and 1 (stream)"), "{error}");
    }
}

/// A peer that writes nonsense behind good bytes: those are read, and what follows is an error, not
/// an end of the file.
#[test]
fn a_stream_that_breaks_off_does_not_look_as_if_it_had_ended() {
    let (one, other) = pair(&Config { ring_bytes: 4096, mode: Mode::Stream, ..Config::default() }).unwrap();
    let hostile = one.into_descriptors();
    let (_writer, mut reader) = other.open_stream().unwrap();
    let put = |offset: usize, word: u64| {
        let offset = (layout::HEADER_BYTES + offset) as u64;
        rustix::io::pwrite(&hostile[0], &word.to_le_bytes(), offset).unwrap();
    };
    put(8, u64::from_le_bytes(*b"12345678"));
    put(16, layout::record_word(9, 8, 16));
    put(0, layout::record_word(layout::RECORD_MESSAGE, 8, 0));
    let mut into = [0; 100];
    assert_eq!(reader.read(&mut into).unwrap(), 8);
    assert_eq!(&into[..8], b"12345678");
    for _ in 0..2 {
        let error = reader.read_with(&mut into, soon()).unwrap_err();
        assert!(matches!(error, ReceiveError::Corrupt(Violation::Kind { .. })), "{error}");
    }
    assert_eq!(reader.read(&mut into).unwrap_err().kind(), ErrorKind::InvalidData);
}
