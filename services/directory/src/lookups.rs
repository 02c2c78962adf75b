//! Look-ups under way: one per question and domain, joined by all of the domain's requests that ask
//! the same.
//!
//! A look-up is *fetching* from the upstreams; or, where domains share, it is *following* another
//! domain's fetch of the same question, or *held* until as much time has passed as the fetch took.
//! A follower and a held one get their answer when they would have got it from the upstream, so
//! that the time does not tell that another domain asked.

use crate::answer::Question;
use crate::cache::{Fetched, Hit};
use crate::failure::Failure;
use crate::measure::{Phase, Phases, nanoseconds};
use crate::name::Key;
use crate::service::Directory;
use crate::task::{Outcome, Terms};
use crate::tenant::TenantId;
use crate::upstream::{Audience, Fetch, Finished, MAX_PACKET_BYTES, Net, Protocol, Step};
use rustix::io::Errno;
use session::Context;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::directory::CacheMode;

/// Look-ups under way, all domains together: memory before quotas, which the domains' own come long
/// before.
const MAX_LOOKUPS: usize = 16 * 1024;
/// Times that one socket is read in one round of the loop, so that a flood does not starve the
/// others.
const MAX_ROUNDS_PER_SOCKET: u32 = 4;
/// The most that a timer's habit of being late is made up for.
const MAX_LATENESS: Duration = Duration::from_millis(1);
/// Share of a new sample in the running mean of lateness: one part in so many.
const LATENESS_WEIGHT: u32 = 8;

/// The waiter for a look-up: a request, and which of its two questions.
pub type Waiter = (u64, usize);

/// How far a look-up is.
#[derive(Debug)]
enum State {
    Fetching(Box<Fetch>),
    Following,
    Held(Box<Held>),
}

/// An answer that is there and may not be given yet.
#[derive(Debug)]
struct Held {
    due: Instant,
    outcome: Outcome,
    phases: Phases,
}

/// One look-up.
#[derive(Debug)]
struct Lookup {
    tenant: TenantId,
    key: Key,
    /// Under which the domain's other requests find it; `None`: it is not joined.
    flight: Option<Box<[u8]>>,
    /// Whether its answer may be remembered.
    cached: bool,
    /// The version of the service's settings that it began under: an answer of upstreams that are
    /// no more is not remembered.
    epoch: u64,
    started: Instant,
    budget: Duration,
    waiters: Vec<Waiter>,
    followers: Vec<u64>,
    timer: Option<Instant>,
    state: State,
}

/// All look-ups under way, and when each wants to be looked at.
#[derive(Debug, Default)]
pub struct Lookups {
    all: HashMap<u64, Lookup>,
    timers: BTreeSet<(Instant, u64)>,
    last: u64,
    /// How late timers have been lately; held answers are due so much earlier.
    lateness: Duration,
}

impl Lookups {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// When the next one wants to be looked at.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn set_timer(&mut self, id: u64, at: Instant) {
        let Some(lookup) = self.all.get_mut(&id) else { return };
        if lookup.timer == Some(at) {
            return;
        }
        if let Some(old) = lookup.timer.replace(at) {
            self.timers.remove(&(old, id));
        }
        self.timers.insert((at, id));
    }

    fn remove(&mut self, id: u64) -> Option<Lookup> {
        let lookup = self.all.remove(&id)?;
        if let Some(at) = lookup.timer {
            self.timers.remove(&(at, id));
        }
        Some(lookup)
    }

    fn hold(&mut self, id: u64, due: Instant, outcome: Outcome, phases: Phases) {
        if let Some(lookup) = self.all.get_mut(&id) {
            lookup.state = State::Held(Box::new(Held { due, outcome, phases }));
            let wake = due.checked_sub(self.lateness).unwrap_or(due);
            self.set_timer(id, wake);
        }
    }

    fn note_lateness(&mut self, late: Duration) {
        let sample = late.min(MAX_LATENESS);
        self.lateness = (self.lateness * (LATENESS_WEIGHT - 1) + sample) / LATENESS_WEIGHT;
    }
}

/// How a question stands after asking for it.
#[derive(Debug)]
pub enum Resolved {
    /// Answered at once.
    Now(Outcome),
    /// The waiter will hear from this look-up.
    Later(u64),
}

/// A look-up that has ended, for its waiters.
#[derive(Debug)]
pub struct Ended {
    /// The waiters.
    pub waiters: Vec<Waiter>,
    /// How it went.
    pub outcome: Outcome,
    /// Where the time went.
    pub phases: Phases,
}

/// The key of a flight: the question, and the terms that its end depends on.
fn flight_key(key: &Key, terms: &Terms) -> Box<[u8]> {
    [key.bytes(), &terms.timeout_ms.to_le_bytes(), &terms.retries.to_le_bytes()].concat().into()
}

impl Directory {
    /// The answer that the domain remembers, if it does.
    pub(crate) fn remembered(
        &mut self,
        tenant: TenantId,
        key: &Key,
        terms: &Terms,
        now: Instant,
    ) -> Option<Hit> {
        if terms.own {
            return None;
        }
        self.tenants.get_mut(&tenant)?.cache.get(key.bytes(), now)
    }

    /// Joins, follows, holds or begins a look-up.
    pub(crate) fn look_up(
        &mut self,
        ctx: &mut dyn Context,
        tenant_id: TenantId,
        question: Question,
        key: Key,
        terms: &Terms,
        waiter: Waiter,
    ) -> Resolved {
        let mode = self.admitted.settings.cache.mode;
        let joinable = !terms.own && mode != CacheMode::None;
        let flight = joinable.then(|| flight_key(&key, terms));
        let Some(tenant) = self.tenants.get_mut(&tenant_id) else {
            return Resolved::Now(Err(Failure::NotAllowed));
        };
        if let Some(&id) = flight.as_ref().and_then(|flight| tenant.flights.get(flight))
            && let Some(lookup) = self.lookups.all.get_mut(&id)
        {
            lookup.waiters.push(waiter);
            return Resolved::Later(id);
        }
        if !tenant.may_look_up(&self.admitted) {
            return Resolved::Now(Err(Failure::TooManyOutstanding));
        }
        let lookups = tenant.lookups;
        if !self.sockets.may_open(lookups, self.tenants.len()) {
            return Resolved::Now(Err(Failure::TooManyOutstanding));
        }
        if self.lookups.len() >= MAX_LOOKUPS {
            return Resolved::Now(Err(Failure::OutOfResources));
        }
        let id = self.lookups.next_id();
        let Some(tenant) = self.tenants.get_mut(&tenant_id) else {
            return Resolved::Now(Err(Failure::NotAllowed));
        };
        tenant.lookups += 1;
        if let Some(flight) = &flight {
            tenant.flights.insert(flight.clone(), id);
        }
        let shares = joinable && tenant.shares(&self.admitted);
        let lookup = Lookup {
            tenant: tenant_id,
            key,
            flight,
            cached: joinable,
            epoch: self.epoch,
            started: ctx.now(),
            budget: terms.budget(),
            waiters: vec![waiter],
            followers: Vec::new(),
            timer: None,
            state: State::Following,
        };
        self.lookups.all.insert(id, lookup);
        if shares && self.borrow(id) {
            return Resolved::Later(id);
        }
        self.fetch(ctx, (id, tenant_id), question, terms)
    }

    /// Begins to fetch. What fails at once (no way to any upstream) is answered at once.
    fn fetch(
        &mut self,
        ctx: &mut dyn Context,
        (id, tenant): (u64, TenantId),
        question: Question,
        terms: &Terms,
    ) -> Resolved {
        let timeout = Duration::from_millis(terms.timeout_ms.into());
        let mut fetch =
            Fetch::new(id, Arc::new(question), terms.upstreams.clone(), !terms.own, timeout, terms.retries);
        let step = fetch.start(&mut self.net(ctx, tenant));
        match step {
            Step::Waiting(until) => {
                if let Some(lookup) = self.lookups.all.get_mut(&id) {
                    lookup.state = State::Fetching(Box::new(fetch));
                }
                self.lookups.set_timer(id, until);
                Resolved::Later(id)
            }
            Step::Finished(finished) => {
                let ended = self.finish(ctx, id, finished);
                Resolved::Now(ended.map_or(Err(Failure::ServerFailure), |ended| ended.outcome))
            }
        }
    }

    /// Takes the answer, or the fetch under way, of a domain that shares with this one. Whether
    /// there was any.
    fn borrow(&mut self, id: u64) -> bool {
        let Some(lookup) = self.lookups.all.get(&id) else { return false };
        let (borrower, key, started) = (lookup.tenant, lookup.key.clone(), lookup.started);
        let (budget, flight) = (lookup.budget, lookup.flight.clone());
        let Some(dc) = self.tenants.get(&borrower).map(|tenant| tenant.dc.clone()) else { return false };
        let others = || {
            let mine = |&(other, tenant): &(&TenantId, &crate::tenant::Tenant)| {
                *other != borrower && tenant.dc == dc && tenant.shares(&self.admitted)
            };
            self.tenants.iter().filter(mine).map(|(_, tenant)| tenant)
        };
        if let Some(foreign) = others().find_map(|tenant| tenant.cache.peek(key.bytes(), started)) {
            let Fetched { latency, phases } = foreign.fetched;
            let hit = Hit { answer: foreign.answer, age_s: 0 };
            self.lookups.hold(id, started + latency.min(budget), Ok(hit), phases);
            return true;
        }
        let leaders = others().filter_map(|tenant| tenant.flights.get(flight.as_ref()?).copied());
        let fetching = |leader: &u64| {
            matches!(self.lookups.all.get(leader), Some(Lookup { state: State::Fetching(_), .. }))
        };
        let Some(leader) = leaders.collect::<Vec<_>>().into_iter().find(fetching) else { return false };
        if let Some(leader) = self.lookups.all.get_mut(&leader) {
            leader.followers.push(id);
        }
        true
    }

    /// A fetch has ended: remembers the answer, lets the followers wait out their time.
    fn finish(&mut self, ctx: &mut dyn Context, id: u64, finished: Finished) -> Option<Ended> {
        let lookup = self.lookups.remove(id)?;
        let latency = ctx.now().saturating_duration_since(lookup.started);
        let outcome = finished.outcome.map(|answer| Hit { answer: Arc::new(answer), age_s: 0 });
        for &follower in &lookup.followers {
            if let Some(started) = self.lookups.all.get(&follower).map(|follower| follower.started) {
                self.lookups.hold(follower, started + latency, outcome.clone(), finished.phases);
            }
        }
        let fetched = Fetched { latency, phases: finished.phases };
        Some(self.end(ctx.now(), (id, lookup), outcome, finished.phases, Some(fetched)))
    }

    /// A look-up has its outcome and the right to give it.
    fn end(
        &mut self,
        now: Instant,
        (id, lookup): (u64, Lookup),
        outcome: Outcome,
        phases: Phases,
        fetched: Option<Fetched>,
    ) -> Ended {
        if let Some(tenant) = self.tenants.get_mut(&lookup.tenant) {
            tenant.lookups = tenant.lookups.saturating_sub(1);
            // After other settings the same question may be under way again, to be joined under
            // this key.
            if let Some(flight) = &lookup.flight
                && tenant.flights.get(flight) == Some(&id)
            {
                tenant.flights.remove(flight);
            }
            if fetched.is_none() {
                tenant.counters.delayed += 1;
            }
            if lookup.cached
                && lookup.epoch == self.epoch
                && let Ok(hit) = &outcome
            {
                let lifetime = hit.answer.lifetime(&self.admitted.settings.cache);
                let fetched = fetched.filter(|_| tenant.shares(&self.admitted));
                tenant.cache.insert(lookup.key.bytes(), hit.answer.clone(), now, lifetime, fetched);
            }
        }
        Ended { waiters: lookup.waiters, outcome, phases }
    }

    /// Does `what` with a fetch, if it is one.
    fn with_fetch<T>(
        &mut self,
        ctx: &mut dyn Context,
        id: u64,
        what: impl FnOnce(&mut Fetch, &mut Net<'_>) -> T,
    ) -> Option<T> {
        let lookup = self.lookups.all.get_mut(&id)?;
        let State::Fetching(fetch) = &mut lookup.state else { return None };
        let mut net = Net {
            now: ctx.now(),
            ctx,
            sockets: &mut self.sockets,
            health: &mut self.health,
            standing: self.tenants.get_mut(&lookup.tenant).map(|tenant| &mut tenant.standing),
            query: &mut self.query,
            packet: &mut self.packet,
        };
        Some(what(fetch, &mut net))
    }

    /// The same with what brings it on; if that ends it, its end.
    fn step(
        &mut self,
        ctx: &mut dyn Context,
        id: u64,
        what: impl FnOnce(&mut Fetch, &mut Net<'_>) -> Step,
    ) -> Option<Ended> {
        let step = self.with_fetch(ctx, id, what)?;
        self.take_step(ctx, id, step)
    }

    fn take_step(&mut self, ctx: &mut dyn Context, id: u64, step: Step) -> Option<Ended> {
        match step {
            Step::Waiting(until) => {
                self.lookups.set_timer(id, until);
                None
            }
            Step::Finished(finished) => self.finish(ctx, id, finished),
        }
    }

    /// Something came to a socket, or it failed.
    pub(crate) fn socket_ready(&mut self, ctx: &mut dyn Context, token: u32) {
        let Some(audience) = self.sockets.audience(token) else { return };
        let Some(waiter) = audience.waiters().next() else { return self.sockets.retire_idle(ctx, token) };
        if audience.protocol == Protocol::Udp {
            return self.receive_datagrams(ctx, audience);
        }
        let ended = self.step(ctx, waiter.lookup, Fetch::stream_ready);
        self.resume(ctx, ended);
    }

    /// Takes what has come to a UDP socket, within bounds: the loop comes back for the rest.
    fn receive_datagrams(&mut self, ctx: &mut dyn Context, mut audience: Audience) {
        let mut buffer = std::mem::take(&mut self.datagrams);
        let half = MAX_PACKET_BYTES.min(buffer.len());
        let (first, second) = buffer.split_at_mut(half);
        for _ in 0..MAX_ROUNDS_PER_SOCKET {
            let waiting = audience.waiters().count();
            let came = match self.sockets.receive_datagrams(&audience, [&mut *first, &mut *second]) {
                Ok(came) => came,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => {
                    self.socket_broke(ctx, &audience, errno);
                    break;
                }
            };
            // Nobody goes on before all packets have been heard: whoever does may open sockets, and
            // ask anew.
            let heard = [&*first, &*second].into_iter().zip(&came);
            let heard = heard.map(|(room, &length)| room.get(..length).unwrap_or_default());
            let ended: Vec<_> = heard.filter_map(|packet| self.hear(ctx, &audience, packet)).collect();
            ended.into_iter().for_each(|ended| self.resume(ctx, Some(ended)));
            match self.sockets.audience(audience.token).filter(|now| now.waiters().next().is_some()) {
                Some(now) if came.len() == waiting && now.protocol == Protocol::Udp => audience = now,
                _ => break,
            }
        }
        self.datagrams = buffer;
    }

    /// Gives a packet to the look-up that has its id; what is no answer counts against the port,
    /// and so for everybody who waits there.
    fn hear(&mut self, ctx: &mut dyn Context, audience: &Audience, packet: &[u8]) -> Option<Ended> {
        let token = audience.token;
        if let Some(waiter) = audience.waiter_for(packet)
            && let Some(step) = self
                .with_fetch(ctx, waiter.lookup, |fetch, net| fetch.hear(net, token, waiter, packet))
                .flatten()
        {
            return self.take_step(ctx, waiter.lookup, step);
        }
        self.health.stray(audience.upstream);
        for waiter in audience.waiters() {
            self.with_fetch(ctx, waiter.lookup, |fetch, net| fetch.stray(net, token, waiter));
        }
        None
    }

    /// A socket failed, and with it the present attempts of all who wait on it.
    fn socket_broke(&mut self, ctx: &mut dyn Context, audience: &Audience, errno: Errno) {
        for waiter in audience.waiters() {
            let ended = self.step(ctx, waiter.lookup, |fetch, net| fetch.broke(net, errno));
            self.resume(ctx, ended);
        }
    }

    /// Sends the queries of one request that were held to leave together. What ended by that.
    pub(crate) fn send_together(&mut self, ctx: &mut dyn Context) -> Vec<Ended> {
        let sent = self.sockets.send_together();
        let ends = sent.into_iter().filter_map(|(lookup, result)| match result {
            Ok(()) => {
                self.with_fetch(ctx, lookup, |fetch, _| fetch.sent());
                None
            }
            Err(errno) => self.step(ctx, lookup, |fetch, net| fetch.broke(net, errno)),
        });
        ends.collect()
    }

    /// The next look-up whose time has come, if there is one; `Some(None)`: it goes on.
    pub(crate) fn lookup_expired(&mut self, ctx: &mut dyn Context) -> Option<Option<Ended>> {
        let now = ctx.now();
        let id = self.lookups.timers.first().filter(|&&(at, _)| at <= now).map(|&(_, id)| id)?;
        if let Some(at) = self.lookups.all.get_mut(&id).and_then(|lookup| lookup.timer.take()) {
            self.lookups.timers.remove(&(at, id));
        } else {
            self.lookups.timers.pop_first();
        }
        let held = matches!(self.lookups.all.get(&id), Some(Lookup { state: State::Held(_), .. }));
        Some(if held { self.release(now, id) } else { self.step(ctx, id, Fetch::expired) })
    }

    /// Lets a held answer go.
    fn release(&mut self, now: Instant, id: u64) -> Option<Ended> {
        let mut lookup = self.lookups.remove(id)?;
        let State::Held(held) = std::mem::replace(&mut lookup.state, State::Following) else { return None };
        let wake = held.due.checked_sub(self.lookups.lateness).unwrap_or(held.due);
        self.lookups.note_lateness(now.saturating_duration_since(wake));
        let waited = now.saturating_duration_since(lookup.started);
        self.phase_times.record(Phase::Delay, nanoseconds(waited));
        Some(self.end(now, (id, lookup), held.outcome, held.phases, None))
    }

    /// A request waits no more for a look-up. One whose answer would be remembered goes on without
    /// it: whether it was given up must not be seen in the cache by who follows it, nor by who asks
    /// again.
    pub(crate) fn forget_waiter(&mut self, ctx: &mut dyn Context, lookup: u64, task: u64) {
        let Some(entry) = self.lookups.all.get_mut(&lookup) else { return };
        entry.waiters.retain(|&(waiter, _)| waiter != task);
        if entry.waiters.is_empty() && !entry.cached {
            self.abort(ctx, lookup);
        }
    }

    fn abort(&mut self, ctx: &mut dyn Context, id: u64) {
        let Some(mut lookup) = self.lookups.remove(id) else { return };
        if let State::Fetching(fetch) = &mut lookup.state {
            fetch.abort(&mut self.net(ctx, lookup.tenant));
        }
        if let Some(tenant) = self.tenants.get_mut(&lookup.tenant) {
            tenant.lookups = tenant.lookups.saturating_sub(1);
        }
    }

    /// A domain is gone: ends its look-ups that no other domain follows.
    pub(crate) fn forget_tenant(&mut self, ctx: &mut dyn Context, tenant: TenantId) {
        let of_tenant = |lookup: &Lookup| lookup.tenant == tenant && lookup.followers.is_empty();
        let ids: Vec<u64> =
            self.lookups.all.iter().filter(|(_, lookup)| of_tenant(lookup)).map(|(&id, _)| id).collect();
        ids.into_iter().for_each(|id| self.abort(ctx, id));
    }

    fn net<'a>(&'a mut self, ctx: &'a mut dyn Context, tenant: TenantId) -> Net<'a> {
        Net {
            now: ctx.now(),
            ctx,
            sockets: &mut self.sockets,
            health: &mut self.health,
            standing: self.tenants.get_mut(&tenant).map(|tenant| &mut tenant.standing),
            query: &mut self.query,
            packet: &mut self.packet,
        }
    }
}
