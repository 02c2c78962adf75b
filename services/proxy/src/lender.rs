//! One loan: what an endpoint of the other node asks of a buffer that was granted to it here. The
//! channel of that one is passed on by its own node's proxy; this one has the memory, as a grantee
//! on this node has it, and copies piece by piece: so a copy of any length holds one piece here,
//! and what is on its way is bounded by the window of its pair.

use crate::carrier::Carrier;
use crate::domains::Member;
use crate::mail::{Inbound, Mail, mail};
use crate::pump::{Counters, Ended, Pumped};
use crate::rings::until_sent;
use endpoint::Lender;
use link::{Messages, Sent};
use session::Memories;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{Notify, mpsc};
use wire::control::GrantedBuffer;
use wire::link::Pair;
use wire::proxy::{reason, word};

/// Pieces in a row before others have their turn.
const TURN_PIECES: u32 = 8;

/// Starts lending what a grant stands for. `ended` hears of its end.
///
/// # Errors
/// The memories can't be used.
pub(crate) fn start(
    carrier: Arc<dyn Carrier>,
    pair: Pair,
    (memories, buffer, member): (Memories, &GrantedBuffer, Member),
    ended: mpsc::UnboundedSender<(Pair, Ended)>,
) -> Result<Pumped, String> {
    let lender = Lender::open(&memories, buffer)?;
    is_taken(&memories)?;
    let (inbox, mail) = mail();
    let (room, counters) = (Arc::new(Notify::new()), Arc::new(Counters::default()));
    let mut loan = Loan {
        carrier,
        pair,
        lender,
        memories,
        member,
        room: Arc::clone(&room),
        counters: Arc::clone(&counters),
        message: Vec::new(),
        bytes: Vec::new(),
        unheard: VecDeque::new(),
        recalled: false,
    };
    tokio::spawn(async move {
        let how = loan.run(mail).await.map_or_else(Ended::Broken, |()| Ended::Closed);
        match &how {
            Ended::Closed => loan.carrier.close(pair, reason::ENDED),
            Ended::Broken(_) => loan.carrier.abandon(pair, reason::BROKEN),
        }
        // Nobody hears it where the proxy ends.
        let _nobody = ended.send((pair, how));
        let (carrier, member) = (Arc::clone(&loan.carrier), loan.member);
        drop((loan.lender, loan.memories));
        until_sent(&*carrier, pair).await;
        drop(member);
    });
    Ok(Pumped { inbox, room, counters })
}

/// Makes sure that the owner has all of the buffer's memory: of what nobody has touched yet this
/// proxy would be charged for what is copied from or to it, for as long as the owner keeps the
/// buffer. Owners touch it when they make it, and can give it back later.
fn is_taken(memories: &Memories) -> Result<(), String> {
    let look = |error: std::io::Error| format!("a granted buffer can't be looked at: {error}");
    let taken = sys::memfd::taken_bytes(&memories.data).map_err(look)?;
    let bytes = sys::memfd::check_fixed(&memories.data).map_err(look)?.unwrap_or(u64::MAX);
    if taken >= bytes {
        return Ok(());
    }
    Err(format!(
        "its owner has taken memory for {taken} of the {bytes} bytes of a granted buffer: it has to write all of it before"
    ))
}

struct Loan {
    carrier: Arc<dyn Carrier>,
    pair: Pair,
    lender: Lender,
    memories: Memories,
    member: Member,
    room: Arc<Notify>,
    counters: Arc<Counters>,
    /// The message that has to be sent next; empty: none.
    message: Vec<u8>,
    /// A piece, while it is copied.
    bytes: Vec<u8>,
    /// The messages that have come and were not heard: they are not consumed, so the pair's window
    /// bounds them.
    unheard: VecDeque<Messages>,
    /// The grant is over, or stands for another buffer.
    recalled: bool,
}

impl Loan {
    /// Lends until either side has enough of it.
    async fn run(&mut self, mut mail: Mail) -> Result<(), String> {
        let mut turn = 0;
        loop {
            while let Some(inbound) = mail.try_take() {
                if !self.take(inbound) {
                    return Ok(());
                }
            }
            if self.recalled {
                self.lender.recall();
            } else {
                is_taken(&self.memories)?;
                self.hear()?;
            }
            if self.message.is_empty() && !self.next() {
                if self.recalled {
                    return Ok(());
                }
                if !mail.take().await.is_some_and(|inbound| self.take(inbound)) {
                    return Ok(());
                }
                continue;
            }
            match self.carrier.send(self.pair, &self.message) {
                Ok(Sent::Queued) => {
                    self.counters.out_messages.fetch_add(1, Relaxed);
                    self.counters.out_bytes.fetch_add(self.message.len() as u64, Relaxed);
                    self.message.clear();
                    turn += 1;
                    if turn % TURN_PIECES == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                // Who takes nothing must not keep the memory of a grant that is over.
                Ok(Sent::Full) if self.recalled => return Ok(()),
                Ok(Sent::Full) => tokio::select! {
                    // A permit stays from before, so no room is missed.
                    () = self.room.notified() => {}
                    inbound = mail.take() => if !inbound.is_some_and(|inbound| self.take(inbound)) {
                        return Ok(());
                    },
                },
                Err(_closed) => return Ok(()),
            }
        }
    }

    /// False: nothing more comes.
    fn take(&mut self, inbound: Inbound) -> bool {
        match inbound {
            Inbound::Messages(messages) => self.unheard.push_back(messages),
            Inbound::Recall => self.recalled = true,
            Inbound::Closed => return false,
        }
        true
    }

    /// Hears what has come, as far as the lender listens.
    fn hear(&mut self) -> Result<(), String> {
        while self.lender.hears()
            && let Some(messages) = self.unheard.front_mut()
        {
            let Some(message) = messages.first() else {
                self.unheard.pop_front();
                continue;
            };
            self.carrier.consumed(self.pair, message.len());
            let record = match message.split_first() {
                Some((&word::WHOLE, record)) => record,
                // How long messages the grantee's end puts together: there are none.
                Some((&word::LIMIT, _)) => {
                    messages.pass();
                    continue;
                }
                _ => return Err("a record in pieces, where each fits a message".into()),
            };
            self.counters.in_messages.fetch_add(1, Relaxed);
            self.counters.in_bytes.fetch_add(record.len() as u64, Relaxed);
            self.lender.hear(record).map_err(|why| why.to_string())?;
            messages.pass();
        }
        Ok(())
    }

    /// Has the next thing that the lender says, if there is one.
    fn next(&mut self) -> bool {
        self.message.push(word::WHOLE);
        let said = self.lender.say(&mut self.message, &mut self.bytes);
        if !said {
            self.message.clear();
        }
        said
    }
}
