//! One pair: what comes out of a channel's end goes onto the link, and what the link brings goes
//! into the end. A task of its own, so a receiver that takes nothing stops its own pair: what the
//! link brought is not consumed, and the other side's credit ends.
//!
//! Records pass as they are, in fragments where they are long. An end that is closed, or whose
//! program is dead, is read to its end first; then the pair is closed. A pair that is closed is
//! delivered to its end first; then the end is closed. So what was committed before a death arrives
//! before it, as it does on one node.

use crate::carrier::Carrier;
use crate::mail::{Inbound, Inbox, Mail, mail};
use crate::rings::Rings;
use channel::{End, OpenError, Piece, ReceiveError, Receiver, SendError};
use channel_tokio::{AsyncReceiver, AsyncSender};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use wire::link::Pair;
use wire::proxy::{MAX_MESSAGE_BYTES, reason, word};

/// Bytes of a record in one message of the link.
const FRAGMENT_BYTES: usize = MAX_MESSAGE_BYTES as usize - 1;
/// How long after its start, and after the time before, a pump looks whether the receiver takes
/// longer messages than it said. It says so in its memory and does not ring; most say it at once.
const LIMIT_LOOKS: [Duration; 2] = [Duration::from_millis(1), Duration::from_secs(5)];
/// Records that go onto the link together, at most, and so many of their bytes: more of them would
/// share a look at the link that costs next to nothing by then.
const BATCH_RECORDS: usize = 64;
const BATCH_BYTES: usize = 32 * 1024;
/// Memory of records that is kept for later ones.
const SPARE_BYTES: usize = 2 * BATCH_BYTES;
/// Bytes of records that are put into a ring, or onto the link, before others have their turn.
const TURN_BYTES: usize = 256 * 1024;

/// The counters of a pair.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) out_messages: AtomicU64,
    pub(crate) out_bytes: AtomicU64,
    pub(crate) in_messages: AtomicU64,
    pub(crate) in_bytes: AtomicU64,
}

/// A pair as the rest of the proxy knows it.
#[derive(Debug)]
pub(crate) struct Pumped {
    /// Bounded by the pair's window.
    pub(crate) inbox: Inbox,
    /// There is room on the link again.
    pub(crate) room: Arc<Notify>,
    pub(crate) counters: Arc<Counters>,
}

/// How a pump ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// An end, or the pair, was closed.
    Closed,
    /// The other proxy broke a rule, or an end did.
    Broken(String),
}

/// Starts the pump of a pair. `ended` hears of its end.
///
/// # Errors
/// The end can't be opened.
pub(crate) fn start(
    carrier: Arc<dyn Carrier>,
    pair: Pair,
    (end, rings): (End, Rings),
    ended: mpsc::UnboundedSender<(Pair, Ended)>,
) -> Result<Pumped, OpenError> {
    let (sender, receiver) = channel_tokio::open(end)?;
    let (inbox, mail) = mail();
    let (room, counters) = (Arc::new(Notify::new()), Arc::new(Counters::default()));
    let side = Side { carrier, pair, room: Arc::clone(&room), counters: Arc::clone(&counters) };
    tokio::spawn(async move {
        let how = run(&side, sender, receiver, mail).await;
        match &how {
            Ended::Closed => side.carrier.close(pair, reason::ENDED),
            Ended::Broken(_) => side.carrier.abandon(pair, reason::BROKEN),
        }
        // Nobody hears it where the proxy ends.
        let _nobody = ended.send((pair, how));
        rings.give_back(&*side.carrier, pair).await;
    });
    Ok(Pumped { inbox, room, counters })
}

/// The state that both directions use.
#[derive(Debug)]
struct Side {
    carrier: Arc<dyn Carrier>,
    pair: Pair,
    room: Arc<Notify>,
    counters: Arc<Counters>,
}

/// How one direction ended.
enum Direction {
    /// The end is closed, and was read to its end.
    End,
    /// The pair is closed; inwards: and everything was delivered.
    Pair,
    /// The other side of the end is closed, so nothing can be delivered; what it committed may
    /// still be in its ring.
    Deaf,
    Broken(String),
}

async fn run(side: &Side, mut sender: AsyncSender, mut receiver: AsyncReceiver, mut mail: Mail) -> Ended {
    // How long the messages are that the other side's receiver puts together: said by the inward
    // half, offered by the outward one.
    let (limits, limit) = mpsc::unbounded_channel();
    let outward = outward(side, &mut receiver, limit);
    let inward = inward(side, &mut sender, &mut mail, &limits);
    tokio::pin!(outward, inward);
    let mut delivering = true;
    let mut reading = true;
    loop {
        tokio::select! {
            how = &mut outward, if reading => match how {
                Direction::Broken(why) => return Ended::Broken(why),
                // What comes is still delivered.
                Direction::Pair if delivering => reading = false,
                _ => return Ended::Closed,
            },
            how = &mut inward, if delivering => match how {
                Direction::Broken(why) => return Ended::Broken(why),
                // What was committed is still read.
                Direction::Deaf if reading => delivering = false,
                _ => return Ended::Closed,
            },
        }
    }
}

/// From the end to the link.
async fn outward(
    side: &Side,
    receiver: &mut AsyncReceiver,
    mut limit: mpsc::UnboundedReceiver<u64>,
) -> Direction {
    let mut records = Records::default();
    let mut taken = 0;
    loop {
        let first = tokio::select! {
            biased;
            said = limit.recv() => {
                let Some(said) = said else { return Direction::Pair };
                receiver.get_mut().set_message_limit(usize::try_from(said).unwrap_or(usize::MAX));
                continue;
            }
            piece = receiver.receive_record(records.first()) => piece,
        };
        let last = first.and_then(|piece| records.add_what_is_there(piece, receiver.get_mut()));
        side.counters.out_messages.fetch_add(records.taken.len() as u64, Relaxed);
        side.counters.out_bytes.fetch_add(records.bytes as u64, Relaxed);
        if !side.send_records(&records).await {
            return Direction::Pair;
        }
        match last {
            Ok(()) => {}
            Err(ReceiveError::Closed) => return Direction::End,
            Err(error) => return Direction::Broken(format!("a channel's end can't be read: {error}")),
        }
        taken += records.bytes;
        if taken > TURN_BYTES {
            taken = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Records that were taken together; their memory is used again.
#[derive(Debug, Default)]
struct Records {
    /// The word of each, and what it holds.
    taken: Vec<(u8, Vec<u8>)>,
    bytes: usize,
    /// Where the next one goes.
    place: Vec<u8>,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

impl Records {
    /// Forgets all; where the first is to go. Of memory for long records there is that of one.
    fn first(&mut self) -> &mut Vec<u8> {
        for (_, mut record) in self.taken.drain(..) {
            if record.capacity() > self.place.capacity() {
                std::mem::swap(&mut record, &mut self.place);
            }
            if self.spare_bytes + record.capacity() <= SPARE_BYTES {
                self.spare_bytes += record.capacity();
                self.spare.push(record);
            }
        }
        self.bytes = 0;
        &mut self.place
    }

    /// The first is there, and is this piece: takes those that are there behind it.
    ///
    /// # Errors
    /// Those of the channel's end; what was taken before stays.
    fn add_what_is_there(&mut self, piece: Piece, receiver: &mut Receiver) -> Result<(), ReceiveError> {
        let mut found = Some(piece);
        while let Some(piece) = found {
            let next = self.spare.pop().unwrap_or_default();
            self.spare_bytes -= next.capacity();
            let record = std::mem::replace(&mut self.place, next);
            self.bytes += record.len();
            self.taken.push((word_of(piece), record));
            if self.taken.len() == BATCH_RECORDS || self.bytes >= BATCH_BYTES {
                break;
            }
            found = receiver.try_receive_record(&mut self.place)?;
        }
        Ok(())
    }
}

/// A record as the messages of the link that it goes in: the word of each, and what it carries.
fn fragments((word, record): &(u8, Vec<u8>)) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = Some(record.as_slice());
    std::iter::from_fn(move || {
        let bytes = rest?;
        let (fragment, after) = bytes.split_at(bytes.len().min(FRAGMENT_BYTES));
        rest = Some(after).filter(|after| !after.is_empty());
        Some((word | if after.is_empty() { 0 } else { word::MORE }, fragment))
    })
}

impl Side {
    /// Sends records when there is room. Whether the pair is open.
    async fn send_records(&self, records: &Records) -> bool {
        let mut all = records.taken.iter().flat_map(fragments);
        loop {
            let (mut words, mut parts) = ([0; BATCH_RECORDS], [&[][..]; BATCH_RECORDS]);
            let mut count = 0;
            for ((word, part), (found, fragment)) in words.iter_mut().zip(&mut parts).zip(&mut all) {
                (*word, *part) = (found, fragment);
                count += 1;
            }
            if count == 0 {
                return true;
            }
            let mut messages = [[&[][..]; 2]; BATCH_RECORDS];
            for (message, (word, part)) in messages.iter_mut().zip(words.iter().zip(parts)) {
                *message = [std::slice::from_ref(word), part];
            }
            if !self.send_all(messages.get(..count).unwrap_or_default()).await {
                return false;
            }
        }
    }

    /// Sends messages when there is room. Whether the pair is open.
    async fn send_all(&self, mut messages: &[[&[u8]; 2]]) -> bool {
        while !messages.is_empty() {
            match self.carrier.send_all_parts(self.pair, messages) {
                // A permit stays from before, so no room is missed.
                Ok(0) => self.room.notified().await,
                Ok(queued) => messages = messages.get(queued..).unwrap_or_default(),
                Err(_) => return false,
            }
        }
        true
    }

    /// Sends one message when there is room. Whether the pair is open.
    async fn send(&self, parts: [&[u8]; 2]) -> bool {
        self.send_all(&[parts]).await
    }
}

/// From the link to the end.
async fn inward(
    side: &Side,
    sender: &mut AsyncSender,
    mail: &mut Mail,
    limits: &mpsc::UnboundedSender<u64>,
) -> Direction {
    let (most, mut told) = (sender.get_mut().max_message(), 0);
    let mut record: Vec<u8> = Vec::new();
    let mut look = LIMIT_LOOKS[0];
    loop {
        let alleged = sender.get_mut().alleged_message_limit();
        if alleged > told {
            told = alleged;
            if !side.send([&[word::LIMIT], &alleged.to_le_bytes()]).await {
                // What has come is delivered all the same.
                told = u64::MAX;
            }
        }
        let inbound = match tokio::time::timeout(look, mail.take()).await {
            Err(_elapsed) => {
                look = (look * 2).min(LIMIT_LOOKS[1]);
                continue;
            }
            Ok(inbound) => inbound,
        };
        let Some(Inbound::Messages(messages)) = inbound else { return Direction::Pair };
        for message in &messages {
            if let Err(direction) = deliver(side, sender, message, (&mut record, most), limits).await {
                return direction;
            }
        }
        // All at once: what the receiver does not take is some of the last pieces at most.
        side.carrier.consumed_all(side.pair, messages.count(), messages.bytes());
    }
}

/// One message of the link goes into the end. `record`: what has come of one that goes on, and how
/// long the longest may be.
async fn deliver(
    side: &Side,
    sender: &mut AsyncSender,
    message: &[u8],
    (record, most): (&mut Vec<u8>, usize),
    limits: &mpsc::UnboundedSender<u64>,
) -> Result<(), Direction> {
    let Some((first, content)) = message.split_first() else {
        return Err(Direction::Broken("a message without a word".into()));
    };
    if *first == word::LIMIT {
        let Ok(bytes) = content.try_into().map(u64::from_le_bytes) else {
            return Err(Direction::Broken("a limit that is no number".into()));
        };
        let _reading_no_more = limits.send(bytes);
        return Ok(());
    }
    let Some(piece) = piece_of(*first & !word::MORE) else {
        return Err(Direction::Broken(format!("word {first} does not belong on a channel")));
    };
    let length = record.len() + content.len();
    if length > most {
        return Err(Direction::Broken(format!(
            "a record of {length} bytes or more, and the ring takes {most}"
        )));
    }
    let whole = first & word::MORE == 0;
    let sent = if whole && record.is_empty() {
        put(side, sender, content, piece).await
    } else {
        record.extend_from_slice(content);
        if whole { put(side, sender, record, piece).await } else { Ok(()) }
    };
    match sent {
        Ok(()) if whole => record.clear(),
        Ok(()) => {}
        Err(SendError::Closed) => return Err(Direction::Deaf),
        Err(error) => return Err(Direction::Broken(format!("a channel's end can't be written: {error}"))),
    }
    Ok(())
}

async fn put(side: &Side, sender: &mut AsyncSender, bytes: &[u8], piece: Piece) -> Result<(), SendError> {
    sender.send_record(bytes, piece).await?;
    side.counters.in_messages.fetch_add(1, Relaxed);
    side.counters.in_bytes.fetch_add(bytes.len() as u64, Relaxed);
    Ok(())
}

fn word_of(piece: Piece) -> u8 {
    match piece {
        Piece::Whole => word::WHOLE,
        Piece::First => word::FIRST,
        Piece::Next => word::NEXT,
        Piece::Last => word::LAST,
    }
}

fn piece_of(first: u8) -> Option<Piece> {
    match first {
        word::WHOLE => Some(Piece::Whole),
        word::FIRST => Some(Piece::First),
        word::NEXT => Some(Piece::Next),
        word::LAST => Some(Piece::Last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of 64 buffers could grow to 32 KiB, one after the other.
    #[test]
    fn little_memory_is_kept_for_later_records() {
        let mut records = Records::default();
        for turn in 0..1000_usize {
            records.first().resize(BATCH_BYTES - turn, 7);
            for _ in 0..BATCH_RECORDS {
                let next = records.spare.pop().unwrap_or_default();
                records.spare_bytes -= next.capacity();
                let mut record = std::mem::replace(&mut records.place, next);
                record.resize(BATCH_BYTES / 2 + turn, 7);
                records.taken.push((word::WHOLE, record));
            }
            records.first();
            let kept: usize = records.spare.iter().map(Vec::capacity).sum();
            assert!(kept == records.spare_bytes && kept <= SPARE_BYTES, "{kept}");
        }
    }
}
