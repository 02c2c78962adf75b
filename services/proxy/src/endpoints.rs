//! One pair of endpoints: what stands in for the one that is on the other node says over the link
//! what the endpoint here does, and does here what the link says. It never waits for the endpoint:
//! there is room for all that may come, so it is consumed at once.

use crate::carrier::Carrier;
use crate::mail::{Inbound, Mail, mail};
use crate::pump::{Counters, Ended, Pumped};
use crate::rings::Rings;
use channel::{End, OpenError};
use endpoint::{Address, Hearing, Said, StandIn, Turn, messages};
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
use wire::link::Pair;
use wire::proxy::reason;

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
        hearing: Hearing::default(),
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
    /// The messages that the link brings, put together.
    hearing: Hearing,
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
                    // Cleared before what rang is taken off: a ring that comes after that makes it
                    // ready again.
                    rung.map_err(|e| format!("the doorbell of an endpoint can't be watched: {e}"))?.clear_ready();
                    self.stand_in.drain()?;
                    None
                }
                // tidy(sleep): an endpoint that may miss our sleep rings for nothing; so it is
                // looked at again.
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
        let Some(said) = self.hearing.hear(message, self.stand_in.ring_bytes())? else { return Ok(()) };
        if let Said::Record(_, payload) = &said {
            self.counters.in_messages.fetch_add(1, Relaxed);
            self.counters.in_bytes.fetch_add(payload.len() as u64, Relaxed);
        }
        self.stand_in.hear(said, &mut self.say).map_err(|why| why.to_string())
    }
}

/// Watches a doorbell: a duplicate of it, which stays open as long as it is watched.
fn bell(stand_in: &StandIn) -> io::Result<AsyncFd<OwnedFd>> {
    let doorbell = stand_in.doorbell().try_clone_to_owned()?;
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    AsyncFd::with_interest(doorbell, Interest::READABLE)
}
