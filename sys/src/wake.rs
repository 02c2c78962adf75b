//! The cost of waking a thread that sleeps on another processor.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Timespec;
use rustix::thread::futex;

/// Rounds of two wakes each; some 50 us a round on common machines.
const ROUNDS: u32 = 41;
/// Rounds that come first and do not count: threads start, pages are touched.
const WARM_UP: u32 = 8;
/// How long one thread waits for the other before it gives up: long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_millis(50);

/// The median price of a wake-up in ns: from the store of one thread to what another, which slept
/// for it on another processor, does next. `None`: this thread may use one processor only, or the
/// other was not woken in time.
///
/// # Errors
/// Those of sched_getaffinity(2), and that no thread can be made.
pub fn price_ns() -> io::Result<Option<u32>> {
    let allowed = crate::processor::allowed()?;
    let (Some(&one), Some(&other)) = (allowed.first(), allowed.last()) else { return Ok(None) };
    if one == other {
        return Ok(None);
    }
    // Two threads of their own, so that the caller stays where it is.
    let ball = &AtomicU32::new(0);
    let builder = || std::thread::Builder::new().name("tombolo-wake".to_owned());
    std::thread::scope(|scope| {
        let answers = builder().spawn_scoped(scope, move || play(ball, other, 0))?;
        let asks = builder().spawn_scoped(scope, move || play(ball, one, 1))?;
        let (asked, answered) = (asks.join(), answers.join());
        Ok(match (asked, answered) {
            (Ok(Some(price)), Ok(Some(_))) => Some(price),
            _ => None,
        })
    })
}

/// Passes the ball to and fro: the thread with `turn` 1 begins. Returns the median of half a round,
/// in ns.
fn play(ball: &AtomicU32, processor: u32, turn: u32) -> Option<u32> {
    crate::processor::pin(&[processor]).ok()?;
    let mut prices = Vec::with_capacity(ROUNDS as usize);
    for round in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        // Odd: thrown by the one that begins; even: by the other.
        let (mine, theirs) =
            if turn == 1 { (2 * round + 1, 2 * round + 2) } else { (2 * round + 2, 2 * round + 1) };
        if turn == 1 {
            throw(ball, mine);
            wait_for(ball, theirs)?;
        } else {
            wait_for(ball, theirs)?;
            throw(ball, mine);
        }
        if round >= WARM_UP {
            prices.push(u32::try_from(start.elapsed().as_nanos() / 2).unwrap_or(u32::MAX));
        }
    }
    prices.sort_unstable();
    prices.get(prices.len() / 2).copied()
}

fn throw(ball: &AtomicU32, number: u32) {
    ball.store(number, Ordering::Release);
    // Nobody sleeps yet: it will see the ball before it does.
    let _woken = futex::wake(ball, futex::Flags::PRIVATE, 1);
}

fn wait_for(ball: &AtomicU32, number: u32) -> Option<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let now = ball.load(Ordering::Acquire);
        if now == number {
            return Some(());
        }
        let left = deadline.checked_duration_since(Instant::now())?;
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
        // Whatever ends the sleep: the ball and the clock decide.
        let _ended = futex::wait(ball, futex::Flags::PRIVATE, now, Some(&timeout));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wake_has_a_price() {
        let before = crate::processor::allowed().unwrap();
        match super::price_ns().unwrap() {
            Some(price) => assert!(price > 0),
            None => println!("skipped: one processor, or one that has no time for us"),
        }
        assert_eq!(crate::processor::allowed().unwrap(), before, "the caller stays where it is");
    }
}
