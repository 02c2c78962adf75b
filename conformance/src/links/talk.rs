//! Two users of a link who send each other numbered messages on several pairs, and hold what comes
//! against what was sent.

use super::stage::Side;
use super::{Done, Failure, ensure, within};
use link::{Event, Sent};
use std::collections::BTreeMap;
use wire::link::Pair;

/// The actions of both sides.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Pairs that each side opens.
    pub pairs: u32,
    /// Messages that each side sends on each of these.
    pub messages: u32,
    /// Their lengths, one after the other and from the start again.
    pub lengths: &'static [usize],
    /// Whether they can be made smaller.
    pub text: bool,
}

/// The observations of a side.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// How often the link came up again.
    pub resumed: u32,
    /// How often it was silent.
    pub silent: u32,
}

impl Plan {
    fn message(&self, pair: u32, index: u32) -> Vec<u8> {
        let place = usize::try_from(index).unwrap_or(0) % self.lengths.len();
        let mut message = Vec::from(index.to_le_bytes());
        message.extend_from_slice(&pair.to_le_bytes());
        let mut word = u64::from(index) << 32 | u64::from(pair) | 1 << 63;
        let end = message.len() + self.lengths[place];
        while message.len() < end {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            if self.text {
                message.extend_from_slice(if word >> 60 & 1 == 1 {
                    b"a link between two nodes "
                } else {
                    b"tombolo "
                });
            } else {
                message.extend_from_slice(&word.to_le_bytes());
            }
        }
        message.truncate(end);
        message
    }
}

#[derive(Default)]
struct Outward {
    number: u32,
    next: u32,
    full: bool,
}

/// Does one side's part.
///
/// # Errors
/// A message did not come, came twice, in another order, or as something else.
pub async fn talk(side: &mut Side, plan: Plan) -> Done<Seen> {
    let mut seen = Seen::default();
    let mut out: BTreeMap<Pair, Outward> = BTreeMap::new();
    let mut inward: BTreeMap<Pair, (u32, u32)> = BTreeMap::new();
    let expected = u64::from(plan.pairs) * u64::from(plan.messages);
    let (mut to_send, mut to_come) = (expected, expected);
    while side.handle.message_bytes_max().is_none() {
        side.up().await?;
    }
    for number in 0..plan.pairs {
        let pair = side.handle.open(&number.to_le_bytes()).map_err(Failure::during("open a pair"))?;
        out.insert(pair, Outward { number, ..Outward::default() });
    }
    while to_send > 0 || to_come > 0 {
        for (pair, outward) in &mut out {
            while !outward.full && outward.next < plan.messages {
                let message = plan.message(outward.number, outward.next);
                match side.handle.send(*pair, &message).map_err(Failure::during("send"))? {
                    Sent::Queued => {
                        outward.next += 1;
                        to_send -= 1;
                    }
                    Sent::Full => outward.full = true,
                }
            }
        }
        if to_send == 0 && to_come == 0 {
            break;
        }
        let event = within("what the other sends", side.events.next()).await;
        let status = || format!("{to_send} to send, {to_come} to come, {:?}", side.handle.status());
        let event = event.map_err(|error| Failure(format!("{error}; {}", status())))?;
        match event.ok_or_else(|| Failure("the driver has ended".into()))? {
            Event::Up { resumed, .. } => {
                ensure(resumed, || "the other side is another incarnation".into())?;
                seen.resumed += 1;
            }
            Event::Silent => seen.silent += 1,
            Event::Room(pair) => {
                if let Some(outward) = out.get_mut(&pair) {
                    outward.full = false;
                }
            }
            Event::Opened { pair, content } => {
                let number = content.try_into().map(u32::from_le_bytes);
                inward.insert(pair, (number.map_err(|_| Failure("an opening of 4 bytes".into()))?, 0));
            }
            Event::Messages { pair, messages } => {
                let known = inward.get_mut(&pair);
                let (number, index) = known.ok_or_else(|| Failure("a message of no pair".into()))?;
                for bytes in &messages {
                    let wanted = plan.message(*number, *index);
                    ensure(bytes == wanted, || {
                        let (wanted, found) = (wanted.len(), bytes.len());
                        format!("{pair}: message {index} of {wanted} bytes is another of {found}")
                    })?;
                    *index += 1;
                    to_come = to_come.checked_sub(1).ok_or_else(|| Failure("more than was sent".into()))?;
                    side.handle.consumed(pair, bytes.len());
                }
            }
            other => return Err(Failure(format!("{other:?} while all was well"))),
        }
    }
    Ok(seen)
}

/// Both sides do their parts, while `trouble` goes on for as long as they do.
///
/// # Errors
/// The check that did not hold.
pub async fn both(
    (near, far): (&mut Side, &mut Side),
    plan: Plan,
    trouble: impl Future<Output = Done>,
) -> Done<(Seen, Seen)> {
    let users = async { tokio::try_join!(talk(near, plan), talk(far, plan)) };
    tokio::pin!(users, trouble);
    tokio::select! {
        seen = &mut users => seen,
        troubled = &mut trouble => {
            troubled?;
            users.await
        }
    }
}
