//! One pair of endpoints: what stands in for the one that is on the other node says over the link what the endpoint here does, and does here
//! what the link says. It never waits for the endpoint: there is room for all that may come, so it is consumed at once.

use crate::carrier::Carrier;
use crate::mail::{Inbound, Mail, mail};
use crate::pump::{Counters, Ended, Pumped};
use crate::rings::Rings;
use channel::{End, OpenError};
use endpoint::{Address, Said, StandIn, Turn};
use link::Sent;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, mpsc};
use wire::control::EndpointAddress;
use wire::ipc::{HEADER_BYTES, Header, payload_bytes_max};
use wire::link::Pair;
use wire::proxy::{MAX_MESSAGE_BYTES, reason, word};

/// Bytes of a record in one message of the link.
const FRAGMENT_BYTES: usize = MAX_MESSAGE_BYTES as usize - 1;
/// How soon it looks again at an endpoint whose ring may be missed.
const BLIND: Duration = Duration::from_millis(5);
/// Messages of the link that are heard before the endpoint has its turn.
const HEARD_AT_ONCE: usize = 64;

/// Starts what stands in for the second of two endpoints, at the first. `ended` hears of its end.
///
/// # Errors
/// The end can't be opened.
pub(crate) fn start(
    carrier: Arc<dyn Carrier>,
    pair: Pair,
    (end, rings): (End, Rings),
    [local, remote]: [EndpointAddress; 2],
    ended: mpsc::UnboundedSender<(Pair, Ended)>,
) -> Result<Pumped, OpenError> {
    let stand_in = StandIn::open(end, address(local), address(remote))?;
    let (inbox, mail) = mail();
    let (room, counters) = (Arc::new(Notify::new()), Arc::new(Counters::default()));
    let mut standing = Standing {
        carrier,
        pair,
        stand_in,
        room: Arc::clone(&room),
        counters: Arc::clone(&counters),
        say: VecDeque::new(),
        fragments: VecDeque::new(),
        part: Vec::new(),
        blind: false,
    };
    tokio::spawn(async move {
        let mut mail = mail;
        let how = standing.run(&mut mail).await.unwrap_or_else(Ended::Broken);
        match &how {
            Ended::Closed => standing.carrier.close(pair, reason::ENDED),
            Ended::Broken(_) => standing.carrier.abandon(pair, reason::BROKEN),
        }
        // Nobody hears it where the proxy ends.
        let _nobody = ended.send((pair, how));
        // With it the proxy leaves the channel.
        let carrier = Arc::clone(&standing.carrier);
        drop((standing, mail));
        rings.give_back(&*carrier, pair).await;
    });
    Ok(Pumped { inbox, room, counters })
}

fn address(EndpointAddress { slot, generation }: EndpointAddress) -> Address {
    Address { slot, generation }
}

struct Standing {
    carrier: Arc<dyn Carrier>,
    pair: Pair,
    stand_in: StandIn,
    room: Arc<Notify>,
    counters: Arc<Counters>,
    /// The words that are to be said, and the messages of those that are being said.
    say: VecDeque<Said>,
    fragments: VecDeque<Vec<u8>>,
    /// The part of a record that has come.
    part: Vec<u8>,
    /// The endpoint may miss that it is to ring.
    blind: bool,
}

/// The outcome of sending.
#[derive(PartialEq, Eq)]
enum Told {
    All,
    /// There is no room on the link.
    Full,
    /// The pair is closed.
    Closed,
}

impl Standing {
    async fn run(&mut self, mail: &mut Mail) -> Result<Ended, String> {
        let bell =
            bell(&self.stand_in).map_err(|e| format!("the doorbell of an endpoint can't be watched: {e}"))?;
        let mut listens = false;
        loop {
            let mut heard = 0;
            while heard < HEARD_AT_ONCE
                && let Some(inbound) = mail.try_take()
            {
                heard += 1;
                if !self.hear(inbound)? {
                    return Ok(Ended::Closed);
                }
            }
            let told = self.tell();
            let turn = match told {
                Told::Closed => return Ok(Ended::Closed),
                Told::Full => Turn::Idle,
                Told::All => self.stand_in.turn(&mut self.say).map_err(|why| why.to_string())?,
            };
            if turn == Turn::Ended {
                return self.tell_the_rest(mail).await;
            }
            if heard > 0 || turn == Turn::More || told == Told::All && !self.say.is_empty() {
                tokio::task::yield_now().await;
                continue;
            }
            if told == Told::All && !std::mem::replace(&mut listens, true) {
                self.blind = self.stand_in.listen();
                continue;
            }
            let inbound = tokio::select! {
                inbound = mail.take() => Some(inbound),
                () = self.room.notified(), if told == Told::Full => None,
                rung = bell.readable(), if told == Told::All => {
                    // Cleared before what rang is taken off: a ring that comes after that makes it ready again.
                    rung.map_err(|e| format!("the doorbell of an endpoint can't be watched: {e}"))?.clear_ready();
                    self.stand_in.drain()?;
                    None
                }
                // tidy(sleep): an endpoint that may miss our sleep rings for nothing; so it is looked at again.
                () = tokio::time::sleep(BLIND), if self.blind => None,
            };
            if std::mem::take(&mut listens) {
                self.stand_in.stop_listening();
            }
            let goes_on = match inbound {
                Some(Some(inbound)) => self.hear(inbound)?,
                Some(None) => false,
                None => true,
            };
            if !goes_on {
                return Ok(Ended::Closed);
            }
        }
    }

    /// Sends what there is room for.
    fn tell(&mut self) -> Told {
        loop {
            while let Some(message) = self.fragments.front() {
                match self.carrier.send(self.pair, message) {
                    Ok(Sent::Queued) => drop(self.fragments.pop_front()),
                    Ok(Sent::Full) => return Told::Full,
                    Err(_) => return Told::Closed,
                }
            }
            let Some(said) = self.say.pop_front() else { return Told::All };
            if let Said::Record(_, payload) = &said {
                self.counters.out_messages.fetch_add(1, Relaxed);
                self.counters.out_bytes.fetch_add(payload.len() as u64, Relaxed);
            }
            self.fragments.extend(messages(&said));
        }
    }

    /// The endpoint has ended: the other node hears of all that it did before.
    async fn tell_the_rest(&mut self, mail: &mut Mail) -> Result<Ended, String> {
        while self.tell() == Told::Full {
            tokio::select! {
                () = self.room.notified() => {}
                inbound = mail.take() => match inbound {
                    // Nobody is there to hear it.
                    Some(Inbound::Messages(messages)) => {
                        self.carrier.consumed_all(self.pair, messages.count(), messages.bytes());
                    }
                    Some(Inbound::Recall) => {}
                    Some(Inbound::Closed) | None => break,
                },
            }
        }
        Ok(Ended::Closed)
    }

    /// False: nothing more comes.
    fn hear(&mut self, inbound: Inbound) -> Result<bool, String> {
        let Inbound::Messages(messages) = inbound else { return Ok(false) };
        self.carrier.consumed_all(self.pair, messages.count(), messages.bytes());
        for message in &messages {
            self.hear_message(message)?;
        }
        Ok(true)
    }

    fn hear_message(&mut self, message: &[u8]) -> Result<(), String> {
        let Some((first, content)) = message.split_first() else {
            return Err("a message without a word".into());
        };
        let said = match *first & !word::MORE {
            word::RECORD => match self.record(*first & word::MORE != 0, content)? {
                Some(said) => said,
                None => return Ok(()),
            },
            _ => number(*first, content)?,
        };
        self.stand_in.hear(said, &mut self.say).map_err(|why| why.to_string())
    }

    /// Puts a record together; `None`: it goes on.
    fn record(&mut self, goes_on: bool, content: &[u8]) -> Result<Option<Said>, String> {
        let length = self.part.len() + content.len();
        let most = HEADER_BYTES + payload_bytes_max(self.stand_in.ring_bytes());
        if length > most {
            return Err(format!("a record of {length} bytes or more, where {most} fit"));
        }
        self.part.extend_from_slice(content);
        if goes_on {
            return Ok(None);
        }
        let record = std::mem::take(&mut self.part);
        let (header, payload) =
            record.split_first_chunk::<HEADER_BYTES>().ok_or("a record that is shorter than its header")?;
        let header = Header::read(*header, record.len()).map_err(|why| why.to_string())?;
        self.counters.in_messages.fetch_add(1, Relaxed);
        self.counters.in_bytes.fetch_add(payload.len() as u64, Relaxed);
        Ok(Some(Said::Record(header, payload.to_vec())))
    }
}

/// The messages of the link that say it.
fn messages(said: &Said) -> Vec<Vec<u8>> {
    let (first, number) = match said {
        Said::Record(header, payload) => {
            let record = [&header.to_bytes()[..], payload].concat();
            let mut fragments: Vec<Vec<u8>> = record
                .chunks(FRAGMENT_BYTES)
                .map(|chunk| [&[word::RECORD | word::MORE][..], chunk].concat())
                .collect();
            if let Some(first) = fragments.last_mut().and_then(|last| last.first_mut()) {
                *first = word::RECORD;
            }
            return fragments;
        }
        Said::Taken(id) => (word::TAKEN, id),
        Said::Over(id) => (word::OVER, id),
        Said::Withdraw(id) => (word::WITHDRAW, id),
        Said::Received(bytes) => (word::RECEIVED, bytes),
        Said::Notices(bits) => (word::NOTICES, bits),
        Said::Path(path) => (word::PATH, path),
    };
    vec![[&[first][..], &number.to_le_bytes()].concat()]
}

/// Reads a message that says a number.
fn number(first: u8, content: &[u8]) -> Result<Said, String> {
    let number = content.try_into().map(u64::from_le_bytes);
    let number = number.map_err(|_| format!("word {first} with {} bytes", content.len()))?;
    Ok(match first {
        word::TAKEN => Said::Taken(number),
        word::OVER => Said::Over(number),
        word::WITHDRAW => Said::Withdraw(number),
        word::RECEIVED => Said::Received(number),
        word::NOTICES => Said::Notices(number),
        word::PATH => Said::Path(number),
        _ => return Err(format!("word {first} does not belong on a pair of endpoints")),
    })
}

/// Watches a doorbell: a duplicate of it, which stays open as long as it is watched.
fn bell(stand_in: &StandIn) -> io::Result<AsyncFd<OwnedFd>> {
    let doorbell = stand_in.doorbell().try_clone_to_owned()?;
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd` can do neither.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    AsyncFd::with_interest(doorbell, Interest::READABLE)
}
