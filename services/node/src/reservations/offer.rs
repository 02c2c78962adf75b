//! The book towards a cluster: what this node has and has promised, for placement; and domains that
//! come and go one by one.

use super::{Book, Entry, State, settings};
use admin::reserve::{NodeSettings, PolicyWord};
use reserve::model::Manager;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tokio::sync::watch;
use topology::{Domain, Reserve};

/// A node's reservations as it publishes them, at `promises/NODE` of the cluster's registry.
/// `docs/spec/placement.md` describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The incarnation of its daemon.
    #[serde(default)]
    pub(crate) incarnation: u64,
    has: Has,
    #[serde(default)]
    domains: BTreeMap<String, Given>,
    #[serde(default)]
    others: BTreeMap<String, Given>,
    #[serde(default)]
    pub(crate) refused: BTreeMap<String, Refused>,
}

/// The node's capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Has {
    processors: usize,
    policy: PolicyWord,
    switch_ns: u64,
    link_bits: u64,
    memory_bytes: u64,
    disk_bytes: u64,
    disk_operations: u64,
}

/// The promise to one domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Given {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<Reserve>,
    now: Reserve,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    processor: Option<usize>,
}

/// The node's refusal of a domain that has tried it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refused {
    pub(crate) why: String,
    /// Of which revision of what is desired.
    pub(crate) revision: u64,
}

impl Offer {
    /// Returns the promises for placement; `revision_of`: which revision of a distributed container
    /// is desired. A refusal of another one is over.
    pub(crate) fn promises(&self, revision_of: impl Fn(&str) -> Option<u64>) -> placement::Promises {
        let given = |given: &BTreeMap<String, Given>| {
            let one = |(name, given): (&String, &Given)| {
                let Given { file, now, processor } = given.clone();
                (name.clone(), placement::Given { file, now, processor })
            };
            given.iter().map(one).collect()
        };
        let is_of_now = |name: &str, refused: &Refused| {
            name.split_once('/').and_then(|(dc, _)| revision_of(dc)) == Some(refused.revision)
        };
        let refused = self.refused.iter().filter(|(name, refused)| is_of_now(name, refused));
        placement::Promises {
            capacity: settings::arithmetic(&self.has.settings()).ok(),
            domains: given(&self.domains),
            others: given(&self.others),
            refused: refused.map(|(name, refused)| (name.clone(), refused.why.clone())).collect(),
        }
    }
}

impl Has {
    fn of(state: &State) -> Self {
        let (settings, link) = (&state.settings, state.model.node().capacity().link);
        Self {
            processors: settings.processors.len(),
            policy: settings.policy,
            switch_ns: settings.switch_ns,
            link_bits: link.rate_bits,
            memory_bytes: settings.memory_bytes,
            disk_bytes: settings.disk_bytes,
            disk_operations: settings.disk_operations,
        }
    }

    /// Settings of that size: which processors and which device they are is that node's.
    fn settings(&self) -> NodeSettings {
        let link = admin::reserve::LinkSettings { device: String::new(), rate_bits: self.link_bits };
        NodeSettings {
            processors: (0..self.processors.min(reserve::MAX_PROCESSORS)).collect(),
            policy: self.policy,
            switch_ns: self.switch_ns,
            link: (self.link_bits > 0).then_some(link),
            between_bits: None,
            memory_bytes: self.memory_bytes,
            disk_bytes: self.disk_bytes,
            disk_operations: self.disk_operations,
        }
    }
}

/// The state on which a refusal was based: where a part of it has gone, the decision may be another
/// one now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ground {
    settings: NodeSettings,
    link_is_kept: bool,
    in_force: BTreeMap<String, Reserve>,
}

impl Ground {
    /// Whether there may be room now, or means, that were not there.
    pub(crate) fn may_have_more(&self, before: &Self) -> bool {
        let has_less = |(name, reserve): (&String, &Reserve)| self.in_force.get(name) != Some(reserve);
        self.settings != before.settings
            || (self.link_is_kept && !before.link_is_kept)
            || before.in_force.iter().any(has_less)
    }
}

impl Book {
    /// Returns the offer that is published to the cluster; without refusals.
    pub(crate) fn offer(&self) -> Offer {
        let state = self.lock();
        let given = |domains: bool| {
            let entries = state.entries.iter().filter(|(_, entry)| entry.file.is_some() == domains);
            let promised =
                entries.filter_map(|(name, entry)| Some((name, entry, state.model.node().promise(name)?)));
            promised
                .map(|(name, entry, promise)| {
                    let processor = promise.processor.map(|(number, _)| number);
                    (name.clone(), Given { file: entry.file.clone(), now: entry.now.clone(), processor })
                })
                .collect()
        };
        Offer {
            incarnation: 0,
            has: Has::of(&state),
            domains: given(true),
            others: given(false),
            refused: BTreeMap::new(),
        }
    }

    /// Ticks when [`Book::offer`] may say something else, or somebody was refused.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the state on which refusals are based now.
    pub(crate) fn ground(&self) -> Ground {
        let state = self.lock();
        let kept = state.entries.iter().filter(|(_, entry)| entry.in_force && entry.without.is_none());
        Ground {
            settings: state.settings.clone(),
            link_is_kept: state.links.is_kept(),
            in_force: kept.map(|(name, entry)| (name.clone(), entry.now.clone())).collect(),
        }
    }

    /// Enters what one domain is promised, beside all that is promised already. One that is not
    /// `strict` is entered even where nothing can be promised to it: it runs without, and its entry
    /// says why.
    ///
    /// # Errors
    /// Why a strict one can't be promised it; it has no entry then.
    pub(crate) fn enter_one(&self, dc: &str, domain: &Domain, cgroup: &str) -> Result<(), String> {
        let name = format!("{dc}/{}", domain.name);
        let Some(reserve) = domain.reserve.clone() else {
            self.leave(&name);
            return Ok(());
        };
        let mut state = self.lock();
        let known = state.entries.get(&name).cloned();
        let mut entry = self.entry_of(&state, &name, reserve.clone(), cgroup);
        let is_known = known.as_ref().is_some_and(|known| known.file.as_ref() == Some(&reserve));
        if entry.without.is_none() && is_known {
            return Ok(());
        }
        let mut ask = |asked: &Reserve| -> Result<(), String> {
            let (wish, team) = state.asked(asked).map_err(|problem| problem.message)?;
            state.promise_one(&name, asked, wish, team).map_err(|problem| problem.message)
        };
        let mut admitted = ask(&entry.now);
        if admitted.is_err() && entry.now != reserve {
            // What was adapted once may be too much here: its file says what it is to have.
            entry.now.clone_from(&reserve);
            admitted = ask(&reserve);
        }
        entry.without = admitted.err();
        if let Some(why) = entry.without.clone() {
            if reserve.strict {
                self.drop_entry(&mut state, &name);
                self.refuse(&mut state, &name, &why);
                self.publish(&state);
                drop(state);
                self.write_down();
                return Err(why);
            }
            if known.as_ref().is_some_and(|known| known.without.is_some() && known.file == entry.file) {
                // As it was: nobody has to hear of it.
                state.entries.insert(name, entry);
                return Ok(());
            }
            tracing::warn!(name, why, "it runs without its promise");
            // What it was promised before is not what it is to have.
            let _nothing_was_promised = state.model.expel(&name);
        }
        state.refused.remove(&name);
        state.entries.insert(name.clone(), entry);
        state.unwritten.mark(&name);
        self.publish(&state);
        drop(state);
        self.write_down();
        Ok(())
    }

    /// Nothing is promised to this domain here any more.
    pub(crate) fn leave(&self, name: &str) {
        let mut state = self.lock();
        if state.entries.contains_key(name) {
            self.drop_entry(&mut state, name);
            self.publish(&state);
        }
        state.refused.remove(name);
        drop(state);
        self.write_down();
    }

    pub(super) fn refuse(&self, state: &mut State, name: &str, why: &str) {
        state.refused.insert(name.to_owned(), why.to_owned());
        self.has_changed();
    }

    pub(super) fn has_changed(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    fn drop_entry(&self, state: &mut State, name: &str) {
        let _nothing_was_promised = state.model.expel(name);
        self.let_go_of(state, name);
        if state.entries.is_empty() {
            self.actuator.stand_down();
        }
    }

    /// The domains that are entered, as `(DC, DOMAIN)`.
    pub(crate) fn domains(&self) -> Vec<(String, String)> {
        let state = self.lock();
        let of_files = state.entries.iter().filter(|(_, entry)| entry.file.is_some());
        let parts = of_files.filter_map(|(name, _)| name.split_once('/'));
        parts.map(|(dc, domain)| (dc.to_owned(), domain.to_owned())).collect()
    }

    /// Why one runs without its promise, if it does.
    pub(crate) fn without(&self, name: &str) -> Option<String> {
        let state = self.lock();
        let entry = state.entries.get(name)?;
        entry.without.as_ref().map(|why| without_words(why))
    }

    /// Why one was refused that is strict, since this was asked last.
    pub(crate) fn take_refusal(&self, name: &str) -> Option<String> {
        self.lock().refused.remove(name)
    }

    /// Whether one was refused that nobody has taken note of.
    pub(crate) fn has_refused(&self, name: &str) -> bool {
        self.lock().refused.contains_key(name)
    }
}

impl Entry {
    /// Returns the caveat of a domain that is promised nothing.
    pub(super) fn caveat(&self) -> Option<String> {
        self.without.as_ref().map(|why| without_words(why))
    }
}

fn without_words(why: &str) -> String {
    format!("it runs without its promise, which this node can't keep: {why}")
}
