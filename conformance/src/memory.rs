//! The assumptions of the rings about the memory: that atomic accesses of the two ends are atomic
//! to each other, and that a fence at both ends lets one of them see the other. An emulator may
//! think that it need not see to either.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Instant;

use sys::region::Region;

use crate::hostile::look;
use crate::{Done, Party, TIMEOUT, ensure, open, receive, send};

/// Words of the header page that no end looks at, each in lines of its own.
const COUNTER: usize = 2048;
/// The places where each end stores, by its side.
const STORED: [usize; 2] = [2176, 2304];
/// How far each end is, by its side: two steps in each round.
const FINISHED: [usize; 2] = [2432, 2560];
/// The place where the end of side 1 says what it saw of the other's store.
const SEEN: usize = 2688;
/// Additions of each end.
const ADDITIONS: u64 = 50_000;
/// Rounds in which both store and look.
const ROUNDS: u64 = 1000;

/// Both ends count in one word.
pub(crate) fn counts(us: Box<dyn Party>) -> Done {
    let region = look(&*us)?;
    let (mut sender, mut receiver) = open(us)?;
    send(&mut sender, b"here")?;
    receive(&mut receiver)?;
    for _ in 0..ADDITIONS {
        add_one(&region);
    }
    send(&mut sender, b"done")?;
    receive(&mut receiver)?;
    let counted = region.load_u64(COUNTER, Acquire);
    // Neither lets go before both have looked.
    send(&mut sender, b"seen")?;
    receive(&mut receiver)?;
    ensure(counted == 2 * ADDITIONS, || {
        format!("{counted} of {} atomic additions: the two ends' accesses are not atomic", 2 * ADDITIONS)
    })
}

fn add_one(region: &Region) {
    let mut found = region.load_u64(COUNTER, Relaxed);
    loop {
        let stood = region.replace_u64(COUNTER, found, found + 1, SeqCst);
        if stood == found {
            return;
        }
        found = stood;
    }
}

/// Both ends store a word each, fence, and look at the other's: one of the two sees it.
pub(crate) fn fences(us: Box<dyn Party>) -> Done {
    let (region, side) = (look(&*us)?, us.side());
    let (mut sender, mut receiver) = open(us)?;
    send(&mut sender, b"here")?;
    receive(&mut receiver)?;
    let [(mine, theirs), (my_end, their_end)] =
        [STORED, FINISHED].map(|[zero, one]| if side == 0 { (zero, one) } else { (one, zero) });
    let mut missed = 0;
    for round in 1..=ROUNDS {
        region.store_u64(mine, round, Relaxed);
        fence(SeqCst);
        let seen = region.load_u64(theirs, Relaxed);
        if side == 1 {
            region.store_u64(SEEN, seen, Relaxed);
        }
        // Both have looked; then both have judged, and the next round begins.
        together(&region, (my_end, their_end), 2 * round - 1)?;
        let other = region.load_u64(SEEN, Relaxed);
        missed += u64::from(side == 0 && seen < round && other < round);
        together(&region, (my_end, their_end), 2 * round)?;
    }
    send(&mut sender, b"done")?;
    receive(&mut receiver)?;
    ensure(missed == 0, || format!("in {missed} of {ROUNDS} rounds neither end saw the other's store"))
}

/// Waits until both ends have come to `step`.
fn together(region: &Region, (mine, theirs): (usize, usize), step: u64) -> Done {
    region.store_u64(mine, step, Release);
    let mut until = None;
    while region.load_u64(theirs, Acquire) < step {
        // Whoever shares our processor gets it.
        std::thread::yield_now();
        let until = *until.get_or_insert_with(|| Instant::now() + TIMEOUT);
        ensure(Instant::now() < until, || format!("the other end stays behind at step {step}"))?;
    }
    Ok(())
}
