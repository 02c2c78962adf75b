//! Long frames on a way that begins to cut: a lane finds out and says so, and takes nothing else
//! for that.
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "campaign/network.rs"]
#[allow(dead_code, reason = "the campaign has more use for it")]
mod network;

use lane::{Config, Lane};
use network::Paper;
use wire::lane::LONG_FRAME_BYTES;

/// Bytes that come through, whatever is in between.
const SURE_BYTES: usize = 1452;
/// A turn of both sides, in simulated µs.
const TURN_US: u64 = 50;

fn side(to: u64) -> (Lane, Paper) {
    let config = Config {
        station: to,
        lane: 0,
        frame_bytes: LONG_FRAME_BYTES,
        bundle_frames: 1,
        sure_bytes: SURE_BYTES,
    };
    let mut lane = Lane::new(config);
    lane.greet();
    (lane, Paper::new(3 - to))
}

struct Both {
    sides: [(Lane, Paper); 2],
    now_us: u64,
    came: usize,
}

impl Both {
    fn new() -> Self {
        Self { sides: [side(2), side(1)], now_us: 0, came: 0 }
    }

    /// Lets frames of at most so many bytes pass for so long; says when a side found that long ones
    /// are cut.
    fn pass(&mut self, most: usize, for_us: u64) -> Option<u64> {
        let begun = self.now_us;
        while self.now_us < begun + for_us {
            self.now_us += TURN_US;
            for place in 0..2 {
                self.turn(place, most);
            }
            if self.sides.iter().any(|(lane, _)| lane.is_cut()) {
                return Some(self.now_us - begun);
            }
        }
        None
    }

    fn turn(&mut self, place: usize, most: usize) {
        let (lane, paper) = &mut self.sides[place];
        let now_us = self.now_us;
        if lane.due_us().is_some_and(|due| due <= now_us) {
            lane.tick(now_us);
        }
        let (mut state, mut out) = (Vec::new(), Vec::new());
        if lane.state(now_us, paper, &mut state) {
            out.push(state);
        }
        let ready = lane.prepare(paper);
        out.extend(lane.ready().take(ready).map(<[u8]>::to_vec));
        lane.departed(now_us, ready);
        let (other, seals) = &mut self.sides[1 - place];
        for mut frame in out.into_iter().filter(|frame| frame.len() <= most) {
            let mut take = |bytes: &[u8]| {
                self.came += bytes.len();
                bytes.len()
            };
            other.hear(now_us, &mut frame, seals, &mut take).unwrap();
        }
    }
}

#[test]
fn a_way_that_begins_to_cut_is_found_out_within_two_seconds() {
    for answers in [true, false] {
        let mut both = Both::new();
        assert_eq!(both.pass(usize::MAX, 100_000), None);
        assert!(both.sides.iter().all(|(lane, _)| lane.has_exchanged()));
        let bytes = vec![7; 200_000];
        assert_eq!(both.sides[0].0.offer(&bytes), bytes.len());
        if answers {
            // The other side has long ones as well: neither gets anything but what it asks for.
            assert_eq!(both.sides[1].0.offer(&bytes), bytes.len());
        }
        let found = both.pass(SURE_BYTES, 10_000_000);
        assert!(found.is_some_and(|us| us < 2_000_000), "after {found:?} us");
    }
}

#[test]
fn short_frames_and_an_idle_lane_are_not_taken_for_that() {
    let mut both = Both::new();
    assert_eq!(both.pass(usize::MAX, 100_000), None);
    assert_eq!(both.sides[0].0.offer(&[7; 1000]), 1000);
    assert_eq!(both.pass(SURE_BYTES, 10_000_000), None);
    assert_eq!(both.came, 1000);
}

#[test]
fn a_way_that_takes_nothing_for_long_is_not_taken_for_that() {
    let mut both = Both::new();
    assert_eq!(both.pass(usize::MAX, 100_000), None);
    let bytes = vec![7; 200_000];
    assert_eq!(both.sides[0].0.offer(&bytes), bytes.len());
    assert_eq!(both.pass(0, 10_000_000), None);
    assert_eq!(both.pass(usize::MAX, 2_000_000), None);
    assert_eq!(both.came, bytes.len());
}

#[test]
fn where_little_is_to_be_held_frames_are_half_as_long() {
    let (mut lane, _) = side(1);
    let whole = lane.carried_bytes();
    lane.hold_little(true);
    assert!(lane.carried_bytes() <= 32 << 10 && 2 * lane.carried_bytes() > whole);
    assert!(lane.offer(&[0; 200_000]) <= 32 << 10, "what is held");
    lane.hold_little(false);
    assert_eq!(lane.carried_bytes(), whole);
}
