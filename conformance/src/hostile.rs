//! Peers that break the rules, in words of the region that are theirs and in others: whoever meets
//! one refuses, names the rule, and neither crashes nor waits.

use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use channel::{ReceiveError, SendError, Violation};
use sys::region::Region;
use wire::ring as layout;

use crate::closing::until_closed;
use crate::messages::mix;
use crate::{Doing as _, Done, Failure, Party, TIMEOUT, deadline, ensure, open, receive, send};

/// Words that are written anywhere.
const SCRIBBLES: u64 = 50_000;
/// How long a half stands them at a time.
const SHORT: Duration = Duration::from_millis(2);

/// Maps the region once more, or lets the scenario be skipped.
pub(crate) fn look(us: &dyn Party) -> Result<Region, Failure> {
    match us.look() {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Err(Failure::Skipped(error.to_string())),
        looked => looked.doing("map the region again"),
    }
}

fn ring_bytes(region: &Region) -> usize {
    region.load_u64(layout::OFFSET_RING_BYTES, Ordering::Relaxed) as usize
}

/// A record of no kind, behind one that is as it should be.
pub(crate) fn writes_nonsense(us: Box<dyn Party>) -> Done {
    let (region, side) = (look(&*us)?, us.side());
    let (mut sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"here", || "another message".into())?;
    send(&mut sender, b"")?;
    let at = layout::HEADER_BYTES + side * ring_bytes(&region) + layout::record_bytes(0);
    region.store_u64(at, layout::record_word(9, 0, layout::record_bytes(0) as u64), Ordering::Release);
    // Wakes who sleeps.
    receiver.close();
    until_closed(|| state(&region, side) != layout::END_OPEN)?;
    refused(&region, side)
}

fn state(region: &Region, side: usize) -> u64 {
    region.load_u64(layout::OFFSET_ENDS + (1 - side) * layout::END_STRIDE, Ordering::Acquire)
}

/// The state of the other end.
fn refused(region: &Region, side: usize) -> Done {
    let state = state(region, side);
    ensure(state == layout::END_REFUSED, || format!("the other end's state is {state}, not that it refused"))
}

pub(crate) fn refuses_nonsense(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    send(&mut sender, b"here")?;
    ensure(receive(&mut receiver)?.is_empty(), || "the first message was empty".into())?;
    let refused = receiver.receive(&mut Vec::new(), deadline());
    let named = matches!(refused, Err(ReceiveError::Corrupt(Violation::Kind { alleged: 9, .. })));
    ensure(named, || format!("a record of no kind: {refused:?}"))
}

/// Alleges to have consumed what was never produced.
pub(crate) fn consumes_nonsense(us: Box<dyn Party>) -> Done {
    let (region, side) = (look(&*us)?, us.side());
    let (mut sender, receiver) = open(us)?;
    let at = layout::OFFSET_CONTROLS + (1 - side) * layout::CONTROL_STRIDE + layout::CONTROL_CONSUMED;
    region.store_u64(at, !7, Ordering::Release);
    send(&mut sender, b"go")?;
    until_closed(|| receiver.is_closed())?;
    refused(&region, side)
}

pub(crate) fn refuses_to_send(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"go", || "another message".into())?;
    let longest = sender.max_message();
    let error = loop {
        if let Err(error) = sender.send(&vec![0; longest], deadline()) {
            break error;
        }
    };
    let named = matches!(error, SendError::Corrupt(Violation::Consumed { .. }));
    ensure(named, || format!("an index that is none: {error}"))
}

/// Writes everywhere, and rings all the while.
pub(crate) fn scribbles(us: Box<dyn Party>) -> Done {
    let region = look(&*us)?;
    let (mut sender, mut receiver) = open(us)?;
    ensure(receive(&mut receiver)? == b"here", || "another message".into())?;
    let words = region.len() as u64 / 8;
    for turn in 0..SCRIBBLES {
        // The header's controls, more often than not.
        let among = if turn % 4 == 0 { words } else { layout::HEADER_BYTES as u64 / 8 };
        let at = (mix(turn) % among) as usize * 8;
        let value = match turn % 3 {
            0 => mix(!turn),
            1 => mix(!turn) % 64,
            _ => layout::record_word(mix(turn) % 8, (mix(!turn) % 5000) as usize, mix(turn) % 65536 * 8),
        };
        region.store_u64(at, value, Ordering::Relaxed);
        // Whatever it says: our own half may have been spoilt by now.
        let _whatever = sender.try_send(b"x");
    }
    drop((sender, receiver));
    Ok(())
}

/// Sends and receives in spite of it, and comes back from each call in time.
pub(crate) fn stands_scribbles(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    send(&mut sender, b"here")?;
    let mut got = Vec::new();
    let until = Instant::now() + TIMEOUT;
    loop {
        ensure(Instant::now() < until, || "neither an end nor a refusal".into())?;
        let received = receiver.receive(&mut got, Some(Instant::now() + SHORT));
        let sent = sender.send(b"y", Some(Instant::now() + SHORT));
        let over = |timed_out: bool, failed: bool| failed && !timed_out;
        let received_over = over(matches!(received, Err(ReceiveError::TimedOut)), received.is_err());
        let sent_over = over(matches!(sent, Err(SendError::TimedOut)), sent.is_err());
        if received_over || sent_over {
            return Ok(());
        }
    }
}
