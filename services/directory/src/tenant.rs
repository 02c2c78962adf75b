//! The state of one domain: its cache, its defaults, its quotas and counters.

use crate::cache::Cache;
use crate::failure::{FAILURES, Failure};
use crate::measure::Histogram;
use crate::settings::{Admitted, Overrides};
use crate::upstream::Standing;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;
use wire::directory::CacheMode;

/// Look-ups that one request may need at a time: A and AAAA. The bound on look-ups is so many times
/// the quota of requests, because a look-up may outlive the request that began it.
const LOOKUPS_PER_REQUEST: usize = 2;

/// Session numbers from here on are never taken over from a capsule, so that counting up from the
/// highest one never ends.
const MAX_WISHED_SESSION: u64 = 1 << 62;

/// The number of a domain, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u64);

/// The counters of a domain.
#[derive(Debug, Default)]
pub struct Counters {
    /// Requests that were questions.
    pub queries: u64,
    /// Answers that were remembered.
    pub hits: u64,
    /// Answers that were not; delayed ones included, because a domain must not be able to tell.
    pub misses: u64,
    /// Of the misses, those that another domain had brought in. Never shown to the domain.
    pub delayed: u64,
    /// Answers that were remembered and say that there is nothing.
    pub negative_hits: u64,
    failures: [u64; FAILURES],
    /// From the ring to the answer.
    pub latency: Histogram,
}

impl Counters {
    /// Counts a failure.
    pub fn failed(&mut self, failure: Failure) {
        if let Some(count) = self.failures.get_mut(failure as usize) {
            *count += 1;
        }
    }

    /// Failures that happened, by errno.
    fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Failure::ALL.into_iter().zip(self.failures).filter(|&(_, n)| n > 0).map(|(f, n)| (f.name(), n))
    }
}

/// One domain.
#[derive(Debug)]
pub struct Tenant {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub domain: String,
    /// The settings that its `ctl` made for new sessions.
    pub defaults: Overrides,
    /// Whether this server has been told the defaults, by a line or by a capsule: then it knows
    /// better than whoever kept a capsule of an earlier server.
    pub told: bool,
    /// Until when its defaults may yet be handed back by its frontend; `None`: they are what they
    /// are.
    pub settles: Option<Instant>,
    /// The answers that it remembers.
    pub cache: Cache,
    /// Its look-ups that are under way and may be joined, by question and terms.
    pub flights: HashMap<Box<[u8]>, u64>,
    /// Its channels.
    pub links: usize,
    /// Its open sessions.
    pub sessions: usize,
    /// Its requests that wait.
    pub waiting: usize,
    /// Its look-ups under way, those that nobody waits for any more included.
    pub lookups: usize,
    /// How the topology's upstreams stand with it.
    pub standing: Standing,
    /// The counters.
    pub counters: Counters,
    next_session: u64,
}

impl Tenant {
    /// A domain that has not asked anything yet, and whose defaults may be handed back until
    /// `settles`.
    pub fn new(dc: &str, domain: &str, admitted: &Admitted, settles: Option<Instant>) -> Self {
        Self {
            dc: dc.into(),
            domain: domain.into(),
            defaults: Overrides::default(),
            told: false,
            settles,
            cache: Cache::new(cache_entries(admitted)),
            flights: HashMap::new(),
            links: 0,
            sessions: 0,
            waiting: 0,
            lookups: 0,
            standing: Standing::default(),
            counters: Counters::default(),
            next_session: 1,
        }
    }

    /// Whether its answers are shared, delayed, with other domains.
    pub fn shares(&self, admitted: &Admitted) -> bool {
        let cache = &admitted.settings.cache;
        cache.mode == CacheMode::Shared && cache.share.contains(&self.domain)
    }

    /// A number that none of its sessions has: `wanted`, which an earlier backend had given, if it
    /// is free, else the next. Wishes come through the consumer: they must not use up the numbers.
    pub fn session_number(&mut self, wanted: Option<u64>, taken: impl Fn(u64) -> bool) -> u64 {
        let wish = wanted.filter(|&number| (1..MAX_WISHED_SESSION).contains(&number) && !taken(number));
        let number = wish.unwrap_or(self.next_session);
        self.next_session = self.next_session.max(number + 1);
        number
    }

    /// Whether one more request may wait.
    pub fn may_wait(&self, admitted: &Admitted) -> bool {
        self.waiting < admitted.settings.outstanding_per_domain as usize
    }

    /// Whether one more look-up may start.
    pub fn may_look_up(&self, admitted: &Admitted) -> bool {
        self.lookups < LOOKUPS_PER_REQUEST * admitted.settings.outstanding_per_domain as usize
    }

    /// The file `status`: `NAME VALUE` lines.
    pub fn status(&self) -> String {
        let counters = &self.counters;
        let mut text = String::with_capacity(512);
        for (name, value) in [
            ("queries", counters.queries),
            ("hits", counters.hits),
            ("negative_hits", counters.negative_hits),
            ("misses", counters.misses),
            ("sessions", self.sessions as u64),
            ("waiting", self.waiting as u64),
            ("cache_entries", self.cache.len() as u64),
            ("cache_bytes", self.cache.bytes() as u64),
            ("latency_p50_ns", counters.latency.percentile(50)),
            ("latency_p99_ns", counters.latency.percentile(99)),
        ]
        .into_iter()
        .chain(counters.failures())
        {
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }

    /// The state that the domain may see in the state tree.
    pub fn state(&self) -> Value {
        let counters = &self.counters;
        let failures: Map<_, _> = counters.failures().map(|(name, n)| (name.to_string(), n.into())).collect();
        json!({
            "queries": counters.queries,
            "hits": counters.hits,
            "negative_hits": counters.negative_hits,
            "misses": counters.misses,
            "failures": failures,
            "sessions": self.sessions,
            "waiting": self.waiting,
            "cache": { "entries": self.cache.len(), "bytes": self.cache.bytes() },
            "latency": counters.latency.state(),
        })
    }

    /// The state that the node's administrator may see: also what would tell one domain of another.
    pub fn full_state(&self) -> Value {
        let mut state = self.state();
        if let Value::Object(fields) = &mut state {
            fields.insert("dc".into(), self.dc.clone().into());
            fields.insert("domain".into(), self.domain.clone().into());
            fields.insert("delayed".into(), self.counters.delayed.into());
            fields.insert("lookups".into(), self.lookups.into());
        }
        state
    }
}

/// How many answers a domain's cache keeps under these settings.
pub fn cache_entries(admitted: &Admitted) -> usize {
    match admitted.settings.cache.mode {
        CacheMode::None => 0,
        CacheMode::Private | CacheMode::Shared => admitted.settings.cache.entries as usize,
    }
}
