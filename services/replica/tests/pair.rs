//! Two replicas with real engines, and a registry of the test's own: what is acknowledged, and
//! when.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

mod bed;

use bed::{Bed, EXTENT, is_there};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::replica::{Order, Part};

/// So long nothing comes that must not come: longer than everything that could bring it.
const NEVER: Duration = Duration::from_millis(700);

#[test]
fn what_is_acknowledged_is_on_both_disks() {
    let Some(bed) = Bed::start() else { return };
    bed.claim(0);
    let mut client = bed.client(0);
    client.write(0, &[7; 4096]).unwrap();
    client.write(3 * EXTENT - 512, &[8; 1024]).unwrap();
    for node in [0, 1] {
        assert!(is_there(&bed.image(node), 0, &[7; 4096]), "node {node}");
        assert!(is_there(&bed.image(node), 3 * EXTENT - 512, &[8; 1024]), "node {node}");
    }
    assert_eq!(client.read(3 * EXTENT - 512, 1024).unwrap(), [8; 1024]);
    assert_eq!(bed.record().current, ["a", "b"]);
    assert!(client.write(bed::BYTES, &[1; 512]).is_err(), "behind the end");
    assert!(client.read(bed::BYTES - 512, 1024).is_err(), "over the end");
    assert!(client.read(0, 512).is_ok(), "the client goes on");
}

#[test]
fn a_replica_that_hangs_is_struck_off_before_anything_else_is_acknowledged_and_resynced_when_it_is_back() {
    let Some(bed) = Bed::start() else { return };
    bed.claim(0);
    let mut client = bed.client(0);
    client.write(0, &[1; 512]).unwrap();
    bed.hang(1, true);
    bed.deaf(0, true);
    client.send_write(EXTENT, &[2; 512]);
    // The registry says nothing, so it is not known that b does not count.
    assert!(!client.is_answered(Duration::from_secs(4)), "acknowledged although b may count");
    assert_eq!(bed.record().current, ["a", "b"]);
    bed.deaf(0, false);
    client.answer().unwrap();
    assert_eq!(bed.record().current, ["a"], "struck off before the acknowledgement");
    client.write(2 * EXTENT, &[3; 512]).unwrap();
    bed.hang(1, false);
    bed.until("b counts again", || bed.record().current.len() == 2);
    for (extent, byte) in [(0, 1), (1, 2), (2, 3)] {
        assert!(is_there(&bed.image(1), extent * EXTENT, &[byte; 512]), "extent {extent}");
    }
    client.write(3 * EXTENT, &[4; 512]).unwrap();
    assert!(is_there(&bed.image(1), 3 * EXTENT, &[4; 512]));
}

#[test]
fn without_its_lease_a_primary_acknowledges_and_reads_nothing_and_goes_on_with_it() {
    let Some(bed) = Bed::start() else { return };
    bed.claim(0);
    let mut client = bed.client(0);
    client.write(0, &[1; 512]).unwrap();
    bed.order(0, &Order::Hold { until_ns: 0 });
    bed.until("it knows", || !bed.condition(0).holds);
    client.send_write(0, &[2; 512]);
    assert!(!client.is_answered(NEVER), "acknowledged without a lease");
    let mut other = bed.client(0);
    other.send_read(EXTENT, 512);
    assert!(!other.is_answered(NEVER), "read without a lease");
    bed.order(0, &Order::Hold { until_ns: u64::MAX });
    client.answer().unwrap();
    other.answer().unwrap();
}

#[test]
fn an_old_primary_that_believes_in_its_lease_gets_nothing_acknowledged_after_another_has_claimed() {
    let Some(bed) = Bed::start() else { return };
    bed.claim(0);
    let mut old = bed.client(0);
    old.write(0, &[1; 512]).unwrap();
    // Its daemon hears nothing more, and its clock lies.
    bed.deaf(0, true);
    bed.claim(1);
    old.send_write(0, &[2; 512]);
    let mut new = bed.client(1);
    assert_eq!(new.read(0, 512).unwrap(), [1; 512]);
    new.write(EXTENT, &[3; 512]).unwrap();
    assert!(!old.is_answered(Duration::from_secs(4)), "two primaries");
    assert!(is_there(&bed.image(1), 0, &[1; 512]), "the old one wrote over it");
    // It hears of the other view: its clients are cut off, and it is resynced.
    bed.deaf(0, false);
    assert!(old.answer().is_err(), "it says that it is done");
    bed.until("the old one counts again", || bed.record().current == ["a", "b"]);
    assert!(is_there(&bed.image(0), 0, &[1; 512]), "what was not acknowledged is still there");
    assert!(is_there(&bed.image(0), EXTENT, &[3; 512]));
    assert_eq!(bed.condition(0).part, Part::StandBy);
}

#[test]
fn an_engine_that_is_killed_is_asked_again_and_nobody_notices() {
    let Some(bed) = Bed::start() else { return };
    bed.claim(0);
    let mut client = bed.client(0);
    client.write(0, &[1; 512]).unwrap();
    for node in [0, 1] {
        bed.kill_engine(node);
        client.send_write(EXTENT, &[2 + node as u8; 512]);
        bed.start_engine(node);
        client.answer().unwrap();
    }
    assert_eq!(bed.record().current, ["a", "b"]);
    assert!(is_there(&bed.image(0), EXTENT, &[3; 512]) && is_there(&bed.image(1), EXTENT, &[3; 512]));
}

#[test]
fn garbage_and_strangers_get_nothing_and_stop_nobody() {
    let Some(bed) = Bed::start() else { return };
    bed.claim(0);
    let mut client = bed.client(0);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[0xff; 4096]] {
        let mut stranger = bed.raw(0);
        stranger.write_all(garbage).unwrap();
        let mut told = Vec::new();
        // It is told who serves, and cut off.
        let _reset = stranger.read_to_end(&mut told);
        assert!(told.len() <= 18, "{told:?}");
    }
    let mut greedy = bed.client(0);
    greedy.send(1, 0, u32::MAX, &[]);
    assert!(greedy.answer().is_err(), "a request of 4 GiB");
    let mut unknown = bed.client(0);
    unknown.send(77, 0, 512, &[]);
    assert!(unknown.answer().is_err());
    assert!(unknown.read(0, 512).is_ok(), "it may ask something else");
    // Between nodes: no certificate, then that of a node that is not the primary.
    let mut stranger = std::net::TcpStream::connect(bed.at(1)).unwrap();
    stranger.write_all(&[0; 64]).unwrap();
    let mut told = Vec::new();
    let _reset = stranger.read_to_end(&mut told);
    assert!(bed.greet_as("c", 1, 1).contains("of a"), "another node writes");
    assert!(bed.greet_as("a", 1, 7).contains("view 1"), "another view");
    client.write(0, &[5; 512]).unwrap();
    assert!(is_there(&bed.image(1), 0, &[5; 512]));
}

// Once eight connections that said nothing kept every other caller waiting for 3 s, and the next
// eight for as long again.
#[test]
fn strangers_that_say_nothing_keep_no_primary_waiting() {
    let Some(bed) = Bed::start() else { return };
    let mut held: Vec<_> = (0..64).map(|_| bed.stranger(1).unwrap()).collect();
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                held.rotate_left(1);
                // Each that comes has an earlier one cut off.
                held[0] = bed.stranger(1).unwrap();
            }
        });
        bed.claim(0);
        let written = bed.client(0).write(0, &[1; 512]);
        over.store(true, Ordering::Relaxed);
        written
    });
    written.unwrap();
    assert_eq!(bed.record().current, ["a", "b"], "b was struck off");
    assert!(is_there(&bed.image(1), 0, &[1; 512]));
}
