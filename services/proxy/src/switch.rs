//! The fate of each pair: who asked for it, who has to accept it, and where its messages go.
//! Nothing here waits.
//!
//! The other node's word is an allegation: it is bounded here, and whether it may have what it asks
//! for, its daemon's colleague on this node decides. A pair that breaks a rule is ended; the link
//! is not.

use crate::carrier::Carrier;
use crate::domains::{BUDGET_BYTES, Domains, pair_bytes};
use crate::endpoints;
use crate::lender;
use crate::mail::Inbound;
use crate::pump::{self, Ended, Pumped};
use crate::rings::{NoRings, Rings};
use crate::shares::Shares;
use channel::End;
use link::{Event, Messages, OpenError, Sent, Share};
use rustix::io::Errno;
use serde_json::{Value, json};
use session::Memories;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc;
use wire::control::{EndpointAddress, GrantedBuffer};
use wire::link::Pair;
use wire::proxy::{
    MAX_NEWS_BYTES, MAX_PAIRS, MAX_REFUSAL_BYTES, MAX_WAITING_OPENS, News, Open, Order, Report, pair_number,
    reason, word,
};

/// News that may wait for the other node to take them: some for each of the services and endpoints
/// that a node may have.
const MAX_WAITING_NEWS: usize = 64 * 1024;
/// Pumps that may be there: as many as pairs, of either side, and as many that still deliver to
/// their ends what came before their pairs were over.
pub(crate) const MAX_PUMPS: usize = 4 * MAX_PAIRS as usize;

/// See the module.
#[derive(Debug)]
pub(crate) struct Switch {
    carrier: Arc<dyn Carrier>,
    pub(crate) pairs: BTreeMap<Pair, Kept>,
    /// Opens of the daemon that the other node has not answered.
    pub(crate) opens: HashMap<u64, Pair>,
    pub(crate) asked: usize,
    pub(crate) pumps: usize,
    news: VecDeque<News>,
    news_pair: Option<Pair>,
    shares: Shares,
    domains: Domains,
    ended: mpsc::UnboundedSender<(Pair, Ended)>,
    /// For the daemon, as far as there is one.
    pub(crate) reports: VecDeque<Report>,
    counts: Counts,
}

/// Since the start.
#[derive(Debug, Default)]
struct Counts {
    opened: u64,
    accepted: u64,
    refused: u64,
    broken: u64,
    /// Of pairs that are over.
    moved: [u64; 4],
}

/// The kind of a pair.
#[derive(Debug)]
pub(crate) enum Kept {
    /// Ours, for news.
    NewsOut,
    /// Theirs, for news.
    NewsIn,
    /// Ours; the other node has not answered.
    Opening {
        id: u64,
        end: End,
        rings: Rings,
        open: Open,
    },
    /// Theirs; our daemon has not answered.
    Asked {
        open: Open,
        /// To which domain of this node it belongs, once the daemon has said so.
        name: Option<String>,
    },
    Pumped {
        pumped: Pumped,
        open: Open,
        ours: bool,
    },
}

/// The link is of no more use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Over(pub(crate) String);

impl Switch {
    pub(crate) fn new(carrier: Arc<dyn Carrier>) -> (Self, mpsc::UnboundedReceiver<(Pair, Ended)>) {
        let (ended, ends) = mpsc::unbounded_channel();
        let domains = Domains::new(BUDGET_BYTES);
        let switch = Self {
            carrier,
            pairs: BTreeMap::new(),
            opens: HashMap::new(),
            asked: 0,
            pumps: 0,
            news: VecDeque::new(),
            news_pair: None,
            shares: Shares::new(domains.clone()),
            domains,
            ended,
            reports: VecDeque::new(),
            counts: Counts::default(),
        };
        (switch, ends)
    }

    /// Whether something would be lost with the link.
    pub(crate) fn has_pairs(&self) -> bool {
        self.pairs.values().any(|kept| !matches!(kept, Kept::NewsIn | Kept::NewsOut))
    }

    /// There is a daemon, perhaps another one than before: nobody waits for what that one asked,
    /// and this one has heard of nothing.
    pub(crate) fn daemon_came(&mut self) {
        for (_, pair) in std::mem::take(&mut self.opens) {
            self.drop_pair(pair, reason::CANCELLED);
        }
        self.reports.clear();
        let asked: Vec<_> = self
            .pairs
            .iter()
            .filter_map(|(pair, kept)| match kept {
                Kept::Asked { open, .. } => Some((*pair, open.clone())),
                _ => None,
            })
            .collect();
        let carries = self.pairs.values().filter_map(|kept| match kept {
            Kept::Pumped { open: Open::Endpoints { dc, from, name, domain, to, .. }, ours, .. } => {
                let dc = dc.clone();
                Some(match ours {
                    true => Report::Carries {
                        dc,
                        near: *from,
                        far: *to,
                        name: String::new(),
                        domain: String::new(),
                    },
                    false => Report::Carries {
                        dc,
                        near: *to,
                        far: *from,
                        name: name.clone(),
                        domain: domain.clone(),
                    },
                })
            }
            _ => None,
        });
        self.reports.extend(carries);
        for (pair, open) in asked {
            self.reports.push_back(Report::Asked { pair: number(pair), open });
        }
    }

    /// The link says something.
    ///
    /// # Errors
    /// [`Over`].
    pub(crate) fn hear(&mut self, event: Event) -> Result<(), Over> {
        match event {
            Event::Up { resumed, .. } => self.up(resumed),
            Event::Opened { pair, content } => {
                self.opened(pair, &content);
                Ok(())
            }
            Event::Messages { pair, messages } => {
                self.messages(pair, messages);
                Ok(())
            }
            Event::Room(pair) => self.room(pair),
            Event::Closed { pair, .. } => {
                self.closed(pair);
                Ok(())
            }
            Event::Silent => Ok(()),
            Event::Over(over) => Err(Over(over.to_string())),
        }
    }

    fn up(&mut self, resumed: bool) -> Result<(), Over> {
        if !resumed {
            self.news.clear();
            let content = encode(&Open::News {})?;
            let pair = self.carrier.open(&content).map_err(|e| Over(format!("no pair for news: {e}")))?;
            self.news_pair = Some(pair);
            self.pairs.insert(pair, Kept::NewsOut);
        }
        self.reports.push_back(Report::Up { resumed, transport: self.carrier.transport() });
        Ok(())
    }

    /// The other node opens a pair.
    fn opened(&mut self, pair: Pair, content: &[u8]) {
        let open = match serde_json::from_slice::<Open>(content) {
            Ok(open) => open,
            Err(error) => {
                return self.broken(pair, &format!("it opens a pair for what is not known: {error}"));
            }
        };
        if matches!(open, Open::News {}) {
            if self.pairs.values().any(|kept| matches!(kept, Kept::NewsIn)) {
                return self.broken(pair, "it opens a second pair for news");
            }
            self.pairs.insert(pair, Kept::NewsIn);
            return;
        }
        self.pairs.insert(pair, Kept::Asked { open: open.clone(), name: None });
        self.asked += 1;
        if self.asked > MAX_WAITING_OPENS || self.pumps >= MAX_PUMPS {
            return self.refuse(pair, Errno::AGAIN, "this node has too much to answer now; try again later");
        }
        self.reports.push_back(Report::Asked { pair: number(pair), open });
    }

    fn messages(&mut self, pair: Pair, mut messages: Messages) {
        // What one message says may decide what becomes of those behind it.
        while let Some(bytes) = messages.first() {
            match self.pairs.get(&pair) {
                Some(Kept::Pumped { pumped, .. }) => {
                    // A pump that has ended says so itself.
                    pumped.inbox.put(Inbound::Messages(messages));
                    return;
                }
                Some(Kept::NewsIn) => {
                    self.carrier.consumed(pair, bytes.len());
                    match news(bytes) {
                        Ok(news) => self.reports.push_back(Report::News { news }),
                        Err(why) => self.broken(pair, &why),
                    }
                }
                Some(Kept::Opening { .. }) => {
                    self.carrier.consumed(pair, bytes.len());
                    self.answered(pair, bytes);
                }
                Some(Kept::NewsOut | Kept::Asked { .. }) => {
                    self.broken(pair, "it sends before its pair is accepted, or where it is to listen");
                }
                // Of a pair that was ended here.
                None => return,
            }
            messages.pass();
        }
    }

    /// The other node has accepted a pair of ours, or not.
    fn answered(&mut self, pair: Pair, bytes: &[u8]) {
        let Some(Kept::Opening { id, end, rings, open }) = self.pairs.remove(&pair) else { return };
        self.opens.remove(&id);
        match bytes.split_first() {
            Some((&word::ACCEPTED, [])) => match self.pump(pair, (end, rings), open, true) {
                Ok(()) => {
                    self.counts.opened += 1;
                    self.reports.push_back(Report::Opened { id });
                }
                Err(message) => {
                    self.carrier.abandon(pair, reason::ENDED);
                    let errno = Errno::NOMEM.raw_os_error();
                    self.reports.push_back(Report::Refused { id, errno, message });
                }
            },
            Some((&word::REFUSED, why)) => {
                self.carrier.close(pair, reason::REFUSED);
                let (errno, message) = refusal(why);
                self.reports.push_back(Report::Refused { id, errno, message });
            }
            _ => {
                let errno = Errno::PROTO.raw_os_error();
                let message = "the other node answers what is no answer".to_owned();
                self.reports.push_back(Report::Refused { id, errno, message });
                self.broken(pair, "its answer is none");
            }
        }
    }

    fn pump(&mut self, pair: Pair, end: (End, Rings), open: Open, ours: bool) -> Result<(), String> {
        let (carrier, ended) = (Arc::clone(&self.carrier), self.ended.clone());
        let started = match open {
            Open::Endpoints { from, to, .. } => {
                let [local, remote] = if ours { [from, to] } else { [to, from] };
                endpoints::start(carrier, pair, end, [local, remote], ended)
            }
            Open::Channel { .. } | Open::Grant { .. } | Open::News {} => {
                pump::start(carrier, pair, end, ended)
            }
        };
        let pumped = started.map_err(|e| format!("a channel's end can't be opened: {e}"))?;
        self.pumps += 1;
        self.pairs.insert(pair, Kept::Pumped { pumped, open, ours });
        Ok(())
    }

    fn room(&mut self, pair: Pair) -> Result<(), Over> {
        match self.pairs.get(&pair) {
            Some(Kept::Pumped { pumped, .. }) => pumped.room.notify_one(),
            Some(Kept::NewsOut) => self.tell()?,
            _ => {}
        }
        Ok(())
    }

    fn closed(&mut self, pair: Pair) {
        match self.pairs.remove(&pair) {
            Some(Kept::Pumped { pumped, open, ours }) => {
                self.count(&pumped);
                pumped.inbox.put(Inbound::Closed);
                pumped.room.notify_one();
                self.parted(open, ours);
            }
            Some(Kept::Opening { id, .. }) => {
                self.opens.remove(&id);
                let errno = Errno::CONNRESET.raw_os_error();
                let message = "the other node, or its proxy, has just ended".to_owned();
                self.reports.push_back(Report::Refused { id, errno, message });
            }
            Some(Kept::Asked { .. }) => {
                self.asked -= 1;
                self.reports.push_back(Report::Withdrawn { pair: number(pair) });
            }
            Some(Kept::NewsOut) => self.news_pair = None,
            Some(Kept::NewsIn) | None => {}
        }
        // The other side has closed; so do we, or the pair would stay. What it sent before has come
        // out of the link already.
        self.carrier.close(pair, reason::ENDED);
    }

    /// Says of a pair of endpoints that it is over.
    fn parted(&mut self, open: Open, ours: bool) {
        if let Open::Endpoints { dc, from, to, .. } = open {
            let (near, far) = if ours { (from, to) } else { (to, from) };
            self.reports.push_back(Report::Parted { dc, near, far });
        }
    }

    fn count(&mut self, pumped: &Pumped) {
        let now = moved(pumped);
        for (sum, now) in self.counts.moved.iter_mut().zip(now) {
            *sum += now;
        }
    }

    /// A pump has ended.
    pub(crate) fn pump_ended(&mut self, pair: Pair, how: &Ended) {
        self.pumps -= 1;
        if let Ended::Broken(why) = how {
            self.counts.broken += 1;
            tracing::warn!(pair = number(pair), why, "a pair is ended");
        }
        if let Some(Kept::Pumped { pumped, .. }) = self.pairs.get(&pair) {
            // A later generation may be in this slot, but not this pair.
            let pumped_now = moved(pumped);
            for (sum, now) in self.counts.moved.iter_mut().zip(pumped_now) {
                *sum += now;
            }
            if let Some(Kept::Pumped { open, ours, .. }) = self.pairs.remove(&pair) {
                self.parted(open, ours);
            }
        }
    }

    /// The daemon says something.
    ///
    /// # Errors
    /// [`Over`].
    pub(crate) fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> Result<(), Over> {
        match order {
            Order::Open { id, open } => self.open(id, open, descriptors),
            Order::Cancel { id } => {
                if let Some(pair) = self.opens.remove(&id) {
                    self.drop_pair(pair, reason::CANCELLED);
                }
                Ok(())
            }
            Order::Accept { pair } => {
                self.accept(pair, descriptors);
                Ok(())
            }
            Order::Lend { pair, buffer } => {
                self.lend(pair, &buffer, descriptors);
                Ok(())
            }
            Order::Recall { dc, grant, endpoint } => {
                self.recall(&dc, grant, endpoint);
                Ok(())
            }
            Order::Refuse { pair, errno, message } => {
                if let Some(pair) = self.asked_pair(pair) {
                    self.refuse(pair, Errno::from_raw_os_error(errno), &message);
                }
                Ok(())
            }
            Order::News { news } => {
                if self.news.len() >= MAX_WAITING_NEWS {
                    return Err(Over(format!(
                        "the other node takes no news: {MAX_WAITING_NEWS} of them wait"
                    )));
                }
                self.news.push_back(news);
                self.tell()
            }
            Order::Whole { rate_bits } => {
                self.shares.begin(&*self.carrier, rate_bits);
                Ok(())
            }
            Order::Share { name, rate_bits, ceiling_bits, burst_bytes, precedence } => {
                let bytes = |bits: u64| bits.div_ceil(8);
                let (rate_bytes, ceiling_bytes) = (bytes(rate_bits), bytes(ceiling_bits));
                let share = Share { rate_bytes, ceiling_bytes, burst_bytes, precedence };
                self.shares.set(&*self.carrier, &name, (rate_bits > 0).then_some(share));
                Ok(())
            }
            Order::Belongs { pair, name: said } => {
                let pair = self.asked_pair(pair);
                if let Some(Kept::Asked { name, .. }) = pair.and_then(|pair| self.pairs.get_mut(&pair)) {
                    *name = Some(said);
                }
                Ok(())
            }
            Order::Part { dc, endpoints } => {
                self.part(&dc, endpoints);
                Ok(())
            }
            Order::Inspect { id } => {
                let state = self.state();
                self.reports.push_back(Report::State { id, state });
                Ok(())
            }
            Order::End { unless_used: true, .. } if self.has_pairs() => Ok(()),
            Order::End { why, .. } => Err(Over(why)),
            // Whoever has the link deals with them.
            Order::Configure(_) | Order::Trust {} => Ok(()),
        }
    }

    /// Ends the pair of two endpoints, as if both had ended.
    fn part(&mut self, dc: &str, [one, other]: [EndpointAddress; 2]) {
        let is_it = |kept: &Kept| match kept {
            Kept::Pumped { open: Open::Endpoints { dc: of, from, to, .. }, .. } => {
                of == dc && ((*from, *to) == (one, other) || (*from, *to) == (other, one))
            }
            _ => false,
        };
        let pairs: Vec<Pair> =
            self.pairs.iter().filter(|(_, kept)| is_it(kept)).map(|(pair, _)| *pair).collect();
        for pair in pairs {
            self.closed(pair);
        }
    }

    fn open(&mut self, id: u64, open: Open, descriptors: Vec<OwnedFd>) -> Result<(), Over> {
        let refused =
            |errno: Errno, message: String| Report::Refused { id, errno: errno.raw_os_error(), message };
        let rings = Rings::take(&descriptors, &self.domains, &belongs(&open));
        let end = rings.map_err(|error| (errno_of(&error), error.to_string())).and_then(|rings| {
            let end = End::from_descriptors(descriptors);
            let end = end.map_err(|error| (Errno::INVAL, format!("that is no channel's end: {error}")))?;
            Ok((end, rings))
        });
        let (end, rings) = match end {
            Ok(end) => end,
            Err((errno, why)) => {
                self.reports.push_back(refused(errno, why));
                return Ok(());
            }
        };
        if self.opens.len() >= MAX_WAITING_OPENS {
            let message = format!("{MAX_WAITING_OPENS} opens wait for the other node; try again later");
            self.reports.push_back(refused(Errno::AGAIN, message));
            return Ok(());
        }
        match self.carrier.open(&encode(&open)?) {
            Ok(pair) => {
                self.carrier.classify(pair, rings.member().class());
                self.opens.insert(id, pair);
                self.pairs.insert(pair, Kept::Opening { id, end, rings, open });
            }
            Err(OpenError::Many { most }) => {
                let message =
                    format!("{most} pairs are open to the other node, which are the most; close some");
                self.reports.push_back(refused(Errno::USERS, message));
            }
            Err(error) => {
                let message = format!("the other node can't be reached now: {error}");
                self.reports.push_back(refused(Errno::HOSTUNREACH, message));
            }
        }
        Ok(())
    }

    fn asked_pair(&self, number: u64) -> Option<Pair> {
        let (slot, generation) = (u32::try_from(number & u64::from(u32::MAX)).ok()?, (number >> 32) as u32);
        let pair = Pair { slot, generation };
        matches!(self.pairs.get(&pair), Some(Kept::Asked { .. })).then_some(pair)
    }

    fn accept(&mut self, number: u64, descriptors: Vec<OwnedFd>) {
        // One that was withdrawn meanwhile: its end is closed with these descriptors.
        let Some(pair) = self.asked_pair(number) else { return };
        let rings = match Rings::take(&descriptors, &self.domains, &self.asked_by(pair)) {
            Ok(rings) => rings,
            Err(error) => return self.refuse(pair, errno_of(&error), &error.to_string()),
        };
        let end = match End::from_descriptors(descriptors) {
            Ok(end) => end,
            Err(error) => return self.refuse(pair, Errno::NOMEM, &format!("no end of a channel: {error}")),
        };
        let Some(Kept::Asked { open, .. }) = self.pairs.remove(&pair) else { return };
        self.asked -= 1;
        self.carrier.classify(pair, rings.member().class());
        // A new pair has room for it.
        let told = self.carrier.send(pair, &[word::ACCEPTED]);
        if let Err(why) =
            told.map_err(|e| e.to_string()).and_then(|_| self.pump(pair, (end, rings), open, false))
        {
            tracing::warn!(
                pair = pair_number(pair.slot, pair.generation),
                why,
                "a pair that was accepted can't be served"
            );
            self.carrier.abandon(pair, reason::ENDED);
            return;
        }
        self.counts.accepted += 1;
    }

    /// The domain of this node to which a pair belongs that the other node asks for.
    fn asked_by(&self, pair: Pair) -> String {
        match self.pairs.get(&pair) {
            Some(Kept::Asked { name: Some(name), .. }) => name.clone(),
            Some(Kept::Asked { open, name: None }) => container(open).to_owned(),
            _ => String::new(),
        }
    }

    /// A pair is a loan of these memories.
    fn lend(&mut self, number: u64, buffer: &GrantedBuffer, descriptors: Vec<OwnedFd>) {
        // One that was withdrawn meanwhile.
        let Some(pair) = self.asked_pair(number) else { return };
        let Ok([data, states]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return self.refuse(pair, Errno::NOMEM, "a grant without its memories");
        };
        let memories = Memories { data, states };
        // Its memory is the owner's.
        let member = match self.domains.take(&self.asked_by(pair), pair_bytes(0)) {
            Ok(member) => member,
            Err(lacks) => return self.refuse(pair, Errno::NOSPC, &lacks.to_string()),
        };
        self.carrier.classify(pair, member.class());
        let (carrier, ended) = (Arc::clone(&self.carrier), self.ended.clone());
        // A new pair has room for it.
        let told = self.carrier.send(pair, &[word::ACCEPTED]).map_err(|error| error.to_string());
        let started = told.and_then(|_| lender::start(carrier, pair, (memories, buffer, member), ended));
        let Some(Kept::Asked { open, .. }) = self.pairs.remove(&pair) else { return };
        self.asked -= 1;
        match started {
            Ok(pumped) => {
                self.pumps += 1;
                self.counts.accepted += 1;
                self.pairs.insert(pair, Kept::Pumped { pumped, open, ours: false });
            }
            Err(why) => {
                tracing::warn!(pair = number, why, "what was granted can't be lent");
                self.carrier.abandon(pair, reason::ENDED);
            }
        }
    }

    /// Takes back a loan of a grant to an endpoint.
    fn recall(&self, dc: &str, number: u64, endpoint: EndpointAddress) {
        for kept in self.pairs.values() {
            if let Kept::Pumped { pumped, open: Open::Grant { dc: of, grant, from, .. }, ours: false } = kept
                && of == dc
                && (*grant, *from) == (number, endpoint)
            {
                // One that has ended says so itself.
                pumped.inbox.put(Inbound::Recall);
            }
        }
    }

    fn refuse(&mut self, pair: Pair, errno: Errno, message: &str) {
        self.counts.refused += 1;
        let cut = message.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_REFUSAL_BYTES).last();
        let message = if message.len() > MAX_REFUSAL_BYTES {
            message.get(..cut.unwrap_or(0)).unwrap_or_default()
        } else {
            message
        };
        let mut bytes = vec![word::REFUSED];
        bytes.extend_from_slice(&errno.raw_os_error().to_le_bytes());
        bytes.extend_from_slice(message.as_bytes());
        if let Err(error) = self.carrier.send(pair, &bytes) {
            tracing::debug!(pair = number(pair), %error, "nobody hears that it was refused");
        }
        if let Some(Kept::Asked { .. }) = self.pairs.remove(&pair) {
            self.asked -= 1;
        }
        self.carrier.close(pair, reason::REFUSED);
    }

    fn broken(&mut self, pair: Pair, why: &str) {
        self.counts.broken += 1;
        tracing::warn!(pair = number(pair), why, "the other proxy breaks a rule");
        self.drop_pair(pair, reason::BROKEN);
    }

    fn drop_pair(&mut self, pair: Pair, reason: u32) {
        match self.pairs.remove(&pair) {
            Some(Kept::Asked { .. }) => {
                self.asked -= 1;
                self.reports.push_back(Report::Withdrawn { pair: number(pair) });
            }
            Some(Kept::NewsOut) => self.news_pair = None,
            _ => {}
        }
        self.carrier.abandon(pair, reason);
    }

    /// Sends what there is room for of the news.
    fn tell(&mut self) -> Result<(), Over> {
        let Some(pair) = self.news_pair else { return Ok(()) };
        while let Some(news) = self.news.front() {
            let mut bytes = vec![word::NEWS];
            serde_json::to_writer(&mut bytes, news)
                .map_err(|e| Over(format!("news can't be written: {e}")))?;
            if bytes.len() > MAX_NEWS_BYTES {
                return Err(Over(format!("news of {} bytes", bytes.len())));
            }
            match self.carrier.send(pair, &bytes) {
                Ok(Sent::Queued) => drop(self.news.pop_front()),
                Ok(Sent::Full) => return Ok(()),
                Err(error) => return Err(Over(format!("news can't be sent: {error}"))),
            }
        }
        Ok(())
    }

    fn state(&self) -> Value {
        let mut sums = self.counts.moved;
        let mut pairs = Vec::new();
        for (pair, kept) in &self.pairs {
            let Kept::Pumped { pumped, open, ours } = kept else { continue };
            let now = moved(pumped);
            for (sum, now) in sums.iter_mut().zip(now) {
                *sum += now;
            }
            if pairs.len() < MAX_SHOWN_PAIRS {
                pairs.push(json!({
                    "pair": number(*pair), "ours": ours, "for": open, "out_messages": now[0],
                    "out_bytes": now[1], "in_messages": now[2], "in_bytes": now[3],
                }));
            }
        }
        let counts = &self.counts;
        json!({
            "link": self.carrier.state(), "shares": self.shares.state(),
            "memory": self.domains.state(), "transport": self.carrier.transport(),
            "pairs_open": self.pairs.values().filter(|kept| matches!(kept, Kept::Pumped { .. })).count(),
            "pairs": pairs, "opening": self.opens.len(), "asked": self.asked, "opened": counts.opened,
            "accepted": counts.accepted, "refused": counts.refused, "broken": counts.broken,
            "out_messages": sums[0], "out_bytes": sums[1], "in_messages": sums[2], "in_bytes": sums[3],
        })
    }
}

/// Pairs that a state names one by one: so many fit into a packet.
const MAX_SHOWN_PAIRS: usize = 64;

fn moved(pumped: &Pumped) -> [u64; 4] {
    let counters = &pumped.counters;
    [&counters.out_messages, &counters.out_bytes, &counters.in_messages, &counters.in_bytes]
        .map(|counter| counter.load(Relaxed))
}

fn number(pair: Pair) -> u64 {
    pair_number(pair.slot, pair.generation)
}

/// The domain of this node to which a pair belongs that it asks for, as reservations call it.
fn belongs(open: &Open) -> String {
    match open {
        Open::Channel { dc, domain, .. }
        | Open::Endpoints { dc, domain, .. }
        | Open::Grant { dc, domain, .. } => {
            format!("{dc}/{domain}")
        }
        Open::News {} => String::new(),
    }
}

/// The distributed container of a pair.
fn container(open: &Open) -> &str {
    match open {
        Open::Channel { dc, .. } | Open::Endpoints { dc, .. } | Open::Grant { dc, .. } => dc,
        Open::News {} => "",
    }
}

fn errno_of(error: &NoRings) -> Errno {
    match error {
        NoRings::Count { .. } => Errno::INVAL,
        NoRings::System(_) => Errno::NOMEM,
        NoRings::Lacks(_) => Errno::NOSPC,
    }
}

fn encode(open: &Open) -> Result<Vec<u8>, Over> {
    serde_json::to_vec(open).map_err(|e| Over(format!("what opens a pair can't be written: {e}")))
}

fn news(bytes: &[u8]) -> Result<News, String> {
    match bytes.split_first() {
        Some((&word::NEWS, text)) if bytes.len() <= MAX_NEWS_BYTES => {
            let news: News = serde_json::from_slice(text).map_err(|e| format!("its news are none: {e}"))?;
            if news.has_names() { Ok(news) } else { Err("its news have names that nobody can have".into()) }
        }
        _ => Err(format!("{} bytes that are no news", bytes.len())),
    }
}

/// The other node's words of refusal: an allegation, shown to a person and taken for no more than
/// an errno.
fn refusal(bytes: &[u8]) -> (i32, String) {
    let Some((errno, text)) = bytes.split_first_chunk() else {
        return (Errno::PROTO.raw_os_error(), "it was refused without a reason".into());
    };
    let errno = i32::from_le_bytes(*errno);
    let text = text.get(..text.len().min(MAX_REFUSAL_BYTES)).unwrap_or_default();
    let text: String = String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).collect();
    (if (1..4096).contains(&errno) { errno } else { Errno::PROTO.raw_os_error() }, text)
}
