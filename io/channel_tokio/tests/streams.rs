//! Streams as tokio's readers and writers.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::thread;
use std::time::Duration;

use channel::{Config, End, Mode, OpenError, pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const TIMEOUT: Duration = Duration::from_secs(30);

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, work).await.expect("it hangs") })
}

fn ends() -> (End, End) {
    pair(&Config { ring_bytes: 4096, mode: Mode::Stream, ..Config::default() }).unwrap()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn a_stream_is_copied_by_what_tokio_has() {
    run(async {
        let (one, other) = ends();
        let (mut writer, mut back) = channel_tokio::open_stream(one).unwrap();
        let (mut echo_writer, mut echo_reader) = channel_tokio::open_stream(other).unwrap();
        let all = bytes(1_000_000);
        let echo = async {
            let copied = tokio::io::copy(&mut echo_reader, &mut echo_writer).await.unwrap();
            echo_writer.shutdown().await.unwrap();
            copied
        };
        let write = async {
            writer.write_all(&all).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let read = async { back.read_to_end(&mut got).await.unwrap() };
        let (copied, (), read) = tokio::join!(echo, write, read);
        assert_eq!((copied, read), (1_000_000, 1_000_000));
        assert_eq!(got, all);
        assert!(back.is_finished());
        assert_eq!(writer.write_all(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn the_other_end_need_not_know_tokio() {
    let (one, other) = ends();
    let thread = thread::spawn(move || {
        let (mut writer, mut reader) = other.open_stream().unwrap();
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        writer.write_all(&got).unwrap();
        writer.finish(None).unwrap();
        // The other reads before this end goes.
        let mut rest = [0];
        assert_eq!(reader.read(&mut rest).unwrap(), 0);
        while !writer.is_closed() {
            thread::yield_now();
        }
    });
    run(async {
        let (mut writer, mut reader) = channel_tokio::open_stream(one).unwrap();
        let all = bytes(300_000);
        writer.write_all(&all).await.unwrap();
        writer.shutdown().await.unwrap();
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, all);
    });
    thread.join().unwrap();
}

#[test]
fn lines_are_held_until_a_flush() {
    run(async {
        let (one, other) = ends();
        let (mut writer, _quiet) = channel_tokio::open_stream(one).unwrap();
        let (_unused, mut reader) = channel_tokio::open_stream(other).unwrap();
        writer.get_mut().set_batch_bytes(1000);
        writer.write_all(b"one\n").await.unwrap();
        writer.write_all(b"two\n").await.unwrap();
        let mut into = [0; 100];
        let early = tokio::time::timeout(Duration::from_millis(5), reader.read(&mut into));
        assert!(early.await.is_err());
        writer.flush().await.unwrap();
        assert_eq!(reader.read(&mut into).await.unwrap(), 8);
        assert_eq!(&into[..8], b"one\ntwo\n");
    });
}

#[test]
fn a_read_that_is_dropped_has_read_nothing() {
    const BYTES: usize = 100_000;
    let (one, other) = ends();
    let thread = thread::spawn(move || {
        let (mut writer, reader) = other.open_stream().unwrap();
        for chunk in bytes(BYTES).chunks(97) {
            writer.write_all(chunk).unwrap();
        }
        writer.finish(None).unwrap();
        while !reader.is_closed() {
            thread::yield_now();
        }
    });
    run(async {
        let (_writer, mut reader) = channel_tokio::open_stream(one).unwrap();
        let (mut got, mut into) = (Vec::new(), [0; 61]);
        loop {
            tokio::select! {
                biased;
                read = reader.read(&mut into) => match read.unwrap() {
                    0 => break,
                    read => got.extend_from_slice(&into[..read]),
                },
                () = tokio::task::yield_now() => {}
            }
        }
        assert_eq!(got, bytes(BYTES));
    });
    thread.join().unwrap();
}

#[test]
fn a_death_is_the_end_of_the_file_and_a_broken_pipe() {
    run(async {
        let (one, other) = ends();
        let (mut writer, mut reader) = channel_tokio::open_stream(one).unwrap();
        let mut other = Some(other);
        let mut into = [0; 10];
        let filling = async { while writer.write_all(&[1; 700]).await.is_ok() {} };
        let dying = async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            drop(other.take());
        };
        let (read, (), ()) = tokio::join!(reader.read(&mut into), filling, dying);
        assert_eq!(read.unwrap(), 0);
        assert!(!reader.is_finished());
        assert_eq!(writer.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_channel_of_messages_is_no_stream() {
    run(async {
        let (one, _other) = pair(&Config::default()).unwrap();
        let error = channel_tokio::open_stream(one).unwrap_err();
        assert!(matches!(error, OpenError::WrongMode { .. }), "{error}");
    });
}
