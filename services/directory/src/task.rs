//! One request on its way: which names it tries, what came back, what it says in the end.

use crate::answer::{Question, Verdict};
use crate::cache::Hit;
use crate::failure::Failure;
use crate::measure::Phases;
use crate::message::Asked;
use crate::query::Types;
use crate::render::Aged;
use crate::settings::{Effective, Format};
use crate::tenant::TenantId;
use hickory_proto::rr::Name;
use session::ReplyTo;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How a look-up went.
pub type Outcome = Result<Hit, Failure>;

/// How the caller wants the answer.
#[derive(Debug)]
pub enum Form {
    /// Lines on `query`.
    Lines(Format),
    /// `wire::directory::Addresses`.
    Addresses,
    /// `wire::directory::Names`.
    Names,
    /// A DNS message.
    Message(Box<Asked>),
}

/// Under which terms the upstreams are asked.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Time-out of one attempt, in ms.
    pub timeout_ms: u32,
    /// Repetitions after a time-out.
    pub retries: u32,
    /// The upstreams to ask.
    pub upstreams: Arc<[SocketAddr]>,
    /// Whether they are not the topology's: nothing is remembered, shared or joined then.
    pub own: bool,
}

impl Terms {
    /// The terms that the settings in force make.
    pub fn new(effective: &Effective<'_>) -> Self {
        Self {
            timeout_ms: effective.timeout_ms(),
            retries: effective.retries(),
            upstreams: effective.upstreams().clone(),
            own: effective.has_own_upstreams(),
        }
    }

    /// The longest that a look-up can take: each attempt may have to be repeated over TCP.
    pub fn budget(&self) -> Duration {
        let attempts = 2 * u64::from(self.retries + 1) * self.upstreams.len() as u64;
        Duration::from_millis(u64::from(self.timeout_ms) * attempts)
    }
}

/// One request on its way.
#[derive(Debug)]
pub struct Task {
    /// The request to answer.
    pub to: ReplyTo,
    /// For which domain.
    pub tenant: TenantId,
    /// How to answer.
    pub form: Form,
    /// Terms of its look-ups.
    pub terms: Terms,
    /// Where the time went.
    pub phases: Phases,
    /// Whether it counts among the domain's waiting requests.
    pub counted: bool,
    /// The look-up that each of its open questions waits for.
    pub pending: [Option<u64>; 2],
    types: Types,
    wishes: u8,
    candidates: Vec<Name>,
    at: usize,
    outcomes: [Option<Outcome>; 2],
    /// The failure to report if no candidate is found.
    soft: Option<Failure>,
}

/// The next step once all look-ups of a candidate are back.
#[derive(Debug)]
pub enum Conclusion {
    /// Try the next candidate.
    Next,
    /// Give these answers.
    Found,
    /// Say this.
    Failed(Failure),
}

impl Task {
    /// A request for `types` of the first of `candidates` that has any.
    pub fn new(
        to: ReplyTo,
        tenant: TenantId,
        form: Form,
        terms: Terms,
        candidates: Vec<Name>,
        types: Types,
    ) -> Self {
        let wishes = if let Form::Message(asked) = &form { asked.wishes() } else { 0 };
        Self {
            to,
            tenant,
            form,
            terms,
            phases: Phases::default(),
            counted: false,
            pending: [None, None],
            types,
            wishes,
            candidates,
            at: 0,
            outcomes: [None, None],
            soft: None,
        }
    }

    /// The questions of the present candidate that are still open, with their places.
    pub fn open_questions(&self) -> impl Iterator<Item = (usize, Question)> {
        let name = self.candidates.get(self.at);
        self.types.iter().enumerate().filter_map(move |(place, record_type)| {
            let open = self.outcomes.get(place).is_some_and(Option::is_none);
            let mut name = name.filter(|_| open)?.clone();
            name.set_fqdn(true);
            Some((place, Question { name, record_type, wishes: self.wishes }))
        })
    }

    /// Notes that a question waits for a look-up.
    pub fn wait(&mut self, place: usize, lookup: u64) {
        if let Some(slot) = self.pending.get_mut(place) {
            *slot = Some(lookup);
        }
    }

    /// Whether it waits for anything.
    pub fn waits(&self) -> bool {
        self.pending.iter().any(Option::is_some)
    }

    /// Notes how a look-up went.
    pub fn note(&mut self, place: usize, outcome: Outcome) {
        if let Some(slot) = self.pending.get_mut(place) {
            *slot = None;
        }
        if let Some(slot) = self.outcomes.get_mut(place) {
            *slot = Some(outcome);
        }
    }

    /// The answers that there are; for a message also negative ones, which carry their SOA.
    pub fn answers(&self) -> impl Iterator<Item = Aged<'_>> {
        let negative_too = matches!(self.form, Form::Message(_));
        self.outcomes.iter().flatten().filter_map(move |outcome| match outcome {
            Ok(hit) if negative_too || hit.answer.verdict == Verdict::Found => {
                Some(Aged { answer: &hit.answer, age_s: hit.age_s })
            }
            _ => None,
        })
    }

    /// Concludes from the look-ups of the present candidate.
    pub fn conclude(&mut self) -> Conclusion {
        if self.answers().next().is_some() {
            return Conclusion::Found;
        }
        let mut exists = false;
        for outcome in self.outcomes.iter_mut().filter_map(Option::take) {
            match outcome {
                Err(failure) => return Conclusion::Failed(failure),
                Ok(hit) => exists |= hit.answer.verdict == Verdict::NoData,
            }
        }
        let said = if exists { Failure::NoData } else { Failure::NoSuchName };
        let soft = if self.soft == Some(Failure::NoData) { Failure::NoData } else { said };
        self.soft = Some(soft);
        self.at += 1;
        if self.at < self.candidates.len() { Conclusion::Next } else { Conclusion::Failed(soft) }
    }
}

/// The names that are tried for one that was asked: with a dot in it or behind it, itself; else it
/// with each domain of the search list, and itself at last. One that gets too long is left out.
pub fn candidates(name: Name, search: &[Name]) -> Vec<Name> {
    if name.is_fqdn() || search.is_empty() || name.iter().len() > 1 {
        return vec![name];
    }
    let mut list: Vec<Name> =
        search.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
    list.push(name);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::{parse, text};

    #[test]
    fn only_a_name_without_a_dot_is_searched() {
        let search = [parse("a.example.").unwrap(), parse("b.example.").unwrap()];
        let tried =
            |name: &str| candidates(parse(name).unwrap(), &search).iter().map(text).collect::<Vec<_>>();
        assert_eq!(tried("host"), ["host.a.example.", "host.b.example.", "host."]);
        assert_eq!(tried("host."), ["host."]);
        assert_eq!(tried("host.c"), ["host.c."]);
        assert_eq!(tried("."), ["."]);
        let long = format!("{}x", "a".repeat(60));
        let tail = parse(&format!("{}.example.", vec!["b".repeat(60); 4].join("."))).unwrap();
        assert_eq!(candidates(parse(&long).unwrap(), &[tail]).len(), 1, "too long with the domain");
    }
}
