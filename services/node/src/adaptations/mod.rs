//! Adaptations: what the file's `[adaptation.NAME]` watches, decides and moves, for as long as the
//! daemon lives.
//!
//! Monitors are read in turn, each as often as its file says; what they mean is
//! `logic/adaptation`'s to say, and every change goes through the book in one step. Nothing that
//! matters is kept here: budgets that were moved are the book's, and levels and pauses are in the
//! registry, so that the next daemon goes on from them.

mod act;
mod activator;
mod commands;
mod keep;
mod module;
mod monitor;
mod program;

use crate::base::{RegistryDebug, meant};
use crate::domains::Domains;
use crate::reservations::{Book, Held};
use act::Outcome;
use activator::Activator;
use adaptation::{Action, Adapter, Amounts, Selector};
use admin::adaptation::{ActivatorState, AdaptationChange, AdaptationRow, SetAdaptation, amounts_text};
use admin::{Code, Problem};
use monitor::{Reading, Source, Watch};
use program::{Heard, Program};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use topology::Adaptation;

pub(crate) use keep::follow;

/// Between two events that say that something can't be had: a load that swings would fill the list
/// of what happened.
const REFUSAL_PAUSE_MS: u64 = 10_000;

/// All adaptations of this node.
#[derive(Debug)]
pub(crate) struct Adaptations {
    book: Arc<Book>,
    domains: Arc<Domains>,
    registry: Arc<dyn RegistryDebug>,
    started: Instant,
    /// By distributed container and name.
    running: Mutex<BTreeMap<(String, String), Running>>,
    /// Somebody has set something: who waits for the next sample looks again.
    poked: Notify,
    /// Where programs that select are asked, as soon as somebody follows.
    runtime: OnceLock<Handle>,
}

/// One adaptation.
#[derive(Debug)]
struct Running {
    dc: String,
    adaptation: Adaptation,
    /// The domains of the same file that are adapted.
    adapted: BTreeSet<String>,
    adapter: Adapter,
    watch: Watch,
    /// The program that selects, where one does and was asked.
    program: Option<Program>,
    /// The command that is told what is in force, where there is one.
    activator: Option<Activator>,
    /// When its next figure is read.
    due_ms: u64,
    paused: bool,
    level: u32,
    state: &'static str,
    figure: Option<String>,
    why: String,
    refused: Option<String>,
    /// When a refusal, or what a dry run would do, was told last, and what.
    told: Option<(u64, String)>,
    last_change: Option<AdaptationChange>,
    changes: u64,
    refusals: u64,
}

/// Something that happened.
struct Happened {
    what: &'static str,
    why: String,
}

impl Running {
    fn new(dc: &str, adaptation: Adaptation, paused: bool, level: u32) -> Self {
        let level = level.min(adaptation.settings.levels.saturating_sub(1));
        Self {
            dc: dc.to_owned(),
            adaptation,
            adapted: BTreeSet::new(),
            adapter: Adapter::default(),
            watch: Watch::default(),
            program: None,
            activator: None,
            due_ms: 0,
            paused,
            level,
            state: "idle",
            figure: None,
            why: String::new(),
            refused: None,
            told: None,
            last_change: None,
            changes: 0,
            refusals: 0,
        }
    }

    /// Returns the name of the promise that moves.
    fn vtm(&self) -> String {
        format!("{}/{}", self.dc, self.adaptation.domain)
    }

    /// Takes one sample, and does what follows from it.
    fn sample(&mut self, book: &Book, now_ms: u64, frontend: Option<&Value>) -> Option<Happened> {
        let begun = Instant::now();
        let held = book.held(&self.vtm()).filter(|held| held.in_force);
        let Some(held) = held else {
            (self.state, self.figure, self.refused) = ("idle", None, None);
            "its domain does not run here".clone_into(&mut self.why);
            self.watch = Watch::default();
            return None;
        };
        let (every_ms, vtm) = (self.adaptation.every_ms, self.vtm());
        let monitor = &self.adaptation.monitor;
        let source = Source { monitor, vtm: &vtm, every_ms, now_ms, frontend, reserve: &held.now };
        let (reading, load) = self.watch.read(book, &source);
        if self.adaptation.settings.selector == Selector::Program {
            return self.sample_by_program(book, &held, now_ms, reading);
        }
        let figure = match reading {
            Reading::Same => return None,
            Reading::Figure(figure) => Some(figure),
            Reading::Nothing(why) => {
                self.why = why;
                None
            }
        };
        self.figure = figure.map(|figure| figure.to_string());
        self.state = match figure {
            _ if self.paused => "paused",
            None => "blind",
            Some(_) if self.adaptation.dry_run => "dry-run",
            Some(_) => "watching",
        };
        if self.paused {
            return None;
        }
        let has = act::amounts(&self.adaptation, &held.now, self.level);
        let home = act::amounts(&self.adaptation, &held.file, 0);
        let decision = self.adapter.decide(&self.adaptation.settings, now_ms, figure, load, has, home);
        if figure.is_some() || decision.action != Action::Keep {
            self.why.clone_from(&decision.why);
        }
        if figure.is_none_or(|figure| !self.adaptation.settings.selector.is_bad(figure)) {
            self.refused = None;
        }
        let outcome = match decision.action {
            Action::Keep => return None,
            Action::Grow(to) => self.get(book, &held, has, to, &decision.why),
            Action::Shrink(to) | Action::Return(to) => self.give(book, &held, has, to, &decision.why),
        };
        let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.conclude(now_ms, has, decision.action, outcome, &decision.why, took_us)
    }

    /// The same where a program selects: takes its answer to an earlier sample, and asks about this
    /// one. It is not waited for.
    fn sample_by_program(
        &mut self,
        book: &Book,
        held: &Held,
        now_ms: u64,
        reading: Reading,
    ) -> Option<Happened> {
        let begun = Instant::now();
        let (figure, silence) = match reading {
            Reading::Figure(figure) => (Some(figure), None),
            Reading::Same => (None, None),
            Reading::Nothing(why) => (None, Some(why)),
        };
        if figure.is_some() || silence.is_some() {
            self.figure = figure.map(|figure| figure.to_string());
        }
        if self.paused {
            self.state = "paused";
            return None;
        }
        let heard = self.program.as_ref().map_or(Heard::Nothing, Program::hear);
        // `Some(None)`: it should have said something, and has not.
        let wish = match (heard, silence) {
            (Heard::Wish(wish), _) => Some(Some(wish)),
            (Heard::Trouble(why), _) | (Heard::Nothing, Some(why)) => {
                self.why = why;
                Some(None)
            }
            (Heard::Nothing, None) => None,
        };
        self.state = match wish {
            Some(None) => "blind",
            _ if self.adaptation.dry_run => "dry-run",
            _ => "watching",
        };
        let happened = wish.and_then(|wish| self.follow_wish(book, held, now_ms, wish, begun));
        if let (Some(figure), Some(program), Some(held)) =
            (figure, &mut self.program, book.held(&format!("{}/{}", self.dc, self.adaptation.domain)))
        {
            let has = act::amounts(&self.adaptation, &held.now, self.level);
            let home = act::amounts(&self.adaptation, &held.file, 0);
            program.ask(&self.adaptation.settings, figure, has, home);
        }
        happened
    }

    fn follow_wish(
        &mut self,
        book: &Book,
        held: &Held,
        now_ms: u64,
        wish: Option<program::Wish>,
        begun: Instant,
    ) -> Option<Happened> {
        let has = act::amounts(&self.adaptation, &held.now, self.level);
        let home = act::amounts(&self.adaptation, &held.file, 0);
        let wish = wish.map(|wish| wish.from(has));
        let decision = self.adapter.take(&self.adaptation.settings, now_ms, wish, has, home);
        if wish.is_some() || decision.action != Action::Keep {
            self.why.clone_from(&decision.why);
        }
        let outcome = match decision.action {
            Action::Keep => {
                self.refused = None;
                return None;
            }
            Action::Grow(to) => self.get(book, held, has, to, &decision.why),
            Action::Shrink(to) | Action::Return(to) => self.give(book, held, has, to, &decision.why),
        };
        let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.conclude(now_ms, has, decision.action, outcome, &decision.why, took_us)
    }

    fn conclude(
        &mut self,
        now_ms: u64,
        has: Amounts,
        action: Action,
        outcome: Outcome,
        why: &str,
        took_us: u64,
    ) -> Option<Happened> {
        match outcome {
            Outcome::Changed { to, what, lacks } => {
                self.adapter.changed(now_ms, has, action);
                self.level = to.level;
                self.changes += 1;
                self.refusals += u64::from(lacks.is_some());
                let also = lacks.as_ref().map_or_else(String::new, |lacks| format!("; {lacks}"));
                self.refused = lacks;
                let why = format!("{}: {what}: {why}{also}", self.adaptation.name);
                self.last_change = Some(AdaptationChange { at_ms: unix_ms(), what: why.clone(), took_us });
                Some(Happened { what: "adapted", why })
            }
            Outcome::Would { what, lacks } => {
                self.adapter.refused();
                self.refused = lacks;
                let why = format!("{}: {what}: {why}", self.adaptation.name);
                let words = what;
                self.told_anew(now_ms, &words).then_some(Happened { what: "would-adapt", why })
            }
            Outcome::Refused(words) => {
                self.adapter.refused();
                self.refusals += 1;
                self.refused = Some(words.clone());
                let why = format!("{}: {words}: {why}", self.adaptation.name);
                self.told_anew(now_ms, &words).then_some(Happened { what: "not-adapted", why })
            }
        }
    }

    /// Whether this was not told a moment ago.
    fn told_anew(&mut self, now_ms: u64, words: &str) -> bool {
        let known = self.told.as_ref().filter(|(at_ms, _)| now_ms.saturating_sub(*at_ms) < REFUSAL_PAUSE_MS);
        if known.is_some_and(|(_, told)| told == words) {
            return false;
        }
        self.told = Some((now_ms, words.to_owned()));
        true
    }

    /// Tells its activator what is in force.
    fn activate(&mut self, book: &Book) {
        let held = book.held(&self.vtm()).filter(|held| held.in_force);
        let Some(activator) = &mut self.activator else { return };
        let Some(held) = held else {
            // Whoever runs next knows nothing of what was told.
            activator.forget();
            return;
        };
        let has = act::amounts(&self.adaptation, &held.now, self.level);
        let why = self.last_change.as_ref().map_or("it begins", |change| &change.what);
        activator.tell((self.adaptation.name.as_str(), self.adaptation.domain.as_str()), has, why);
    }

    fn row(&self, book: &Book) -> AdaptationRow {
        let held = book.held(&self.vtm());
        let of = |reserve: Option<&topology::Reserve>, level: u32| {
            reserve.map_or_else(Amounts::default, |reserve| act::amounts(&self.adaptation, reserve, level))
        };
        let settings = &self.adaptation.settings;
        let end = |end: fn(&adaptation::Range) -> u64, level: u32| Amounts {
            cpu_ns: settings.cpu.as_ref().map(end),
            network_bits: settings.network.as_ref().map(end),
            level,
        };
        AdaptationRow {
            name: format!("{}/{}", self.dc, self.adaptation.name),
            domain: self.vtm(),
            monitor: self.adaptation.monitor.to_string(),
            state: if self.paused { "paused" } else { self.state }.to_owned(),
            figure: self.figure.clone(),
            why: self.why.clone(),
            has: of(held.as_ref().map(|held| &held.now), self.level),
            file: of(held.as_ref().map(|held| &held.file), 0),
            least: end(|range| range.least, 0),
            most: end(|range| range.most, settings.levels.saturating_sub(1)),
            refused: self.refused.clone(),
            last_change: self.last_change.clone(),
            changes: self.changes,
            refusals: self.refusals,
            every_ms: self.adaptation.every_ms,
            priority: self.adaptation.priority,
            activator: self.activator.as_ref().map(|activator| {
                let activator::State { runs, trouble } = activator.state();
                ActivatorState { runs, trouble }
            }),
        }
    }
}

impl Adaptations {
    pub(crate) fn new(book: Arc<Book>, domains: Arc<Domains>, registry: Arc<dyn RegistryDebug>) -> Self {
        let (started, running, poked) = (Instant::now(), Mutex::default(), Notify::new());
        Self { book, domains, registry, started, running, poked, runtime: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the rows of all adaptations.
    pub(crate) fn rows(&self) -> Vec<AdaptationRow> {
        self.seen().values().map(|running| running.row(&self.book)).collect()
    }

    /// Returns the row of one adaptation.
    ///
    /// # Errors
    /// Where none, or several, are called so.
    pub(crate) fn row(&self, which: &str) -> Result<AdaptationRow, Problem> {
        let running = self.seen();
        let key = find(&running, which)?;
        running.get(&key).map(|running| running.row(&self.book)).ok_or_else(|| unknown(which))
    }

    /// Takes the samples that are due, who goes first before the others, and does what follows.
    fn step(&self, due: &[(String, String)], said: &BTreeMap<(String, String), Value>) {
        let mut running = self.lock();
        let mut order: Vec<&(String, String)> = due.iter().filter(|key| running.contains_key(*key)).collect();
        order.sort_by_key(|key| (Reverse(running.get(*key).map(|one| one.adaptation.priority)), *key));
        for key in order {
            let now_ms = self.now_ms();
            let Some(one) = running.get_mut(key) else { continue };
            one.due_ms = now_ms.saturating_add(one.adaptation.every_ms);
            if let (None, Some(runtime)) = (&one.program, self.runtime.get()) {
                one.program = Program::begin(runtime, &self.domains, key, &one.adaptation);
            }
            if let (Some(activator), None, false, Some(runtime)) =
                (&one.adaptation.activator, &one.activator, one.adaptation.dry_run, self.runtime.get())
            {
                one.activator = Some(Activator::begin(runtime, &self.domains, key, activator));
            }
            let (level, said) = (one.level, said.get(&(one.dc.clone(), one.adaptation.domain.to_string())));
            let happened = one.sample(&self.book, now_ms, said);
            if one.level != level {
                self.remember(one);
            }
            one.activate(&self.book);
            if let Some(Happened { what, why }) = happened {
                let (dc, domain) = (one.dc.clone(), one.adaptation.domain.to_string());
                self.domains.events.happened(&dc, Some(&domain), what, Some(why));
            }
        }
        self.say_levels(&running);
    }

    /// Pauses one, lets it go on, or sets by hand what it moves.
    ///
    /// # Errors
    /// Where there is none, it moves no such thing, or the node can't keep that.
    pub(crate) fn set(&self, request: &SetAdaptation) -> Result<AdaptationRow, Problem> {
        let mut running = self.seen();
        let key = find(&running, &request.name)?;
        let one = running.get_mut(&key).ok_or_else(|| unknown(&request.name))?;
        let by_hand = request.file
            || request.cpu_ns.is_some()
            || request.network_bits.is_some()
            || request.level.is_some();
        let what = if by_hand { self.set_by_hand(one, request)? } else { None };
        let paused = request.paused.unwrap_or(one.paused || by_hand);
        let happened = match (what, paused != one.paused) {
            (Some(what), _) => Some(("adapted", format!("{}: {what}: by hand", one.adaptation.name))),
            (None, true) if paused => {
                Some(("adaptation-paused", format!("{} is paused", one.adaptation.name)))
            }
            (None, true) => Some(("adaptation-resumed", format!("{} goes on", one.adaptation.name))),
            (None, false) => None,
        };
        one.paused = paused;
        one.state = if paused { "paused" } else { "watching" };
        (one.adapter, one.refused) = (Adapter::default(), None);
        self.remember(one);
        one.activate(&self.book);
        let row = one.row(&self.book);
        if let Some((what, why)) = happened {
            self.domains.events.happened(&key.0, Some(one.adaptation.domain.as_str()), what, Some(why));
        }
        self.say_levels(&running);
        drop(running);
        self.poked.notify_one();
        Ok(row)
    }

    /// Makes a change by hand, and returns it in words; `None`: it was so already.
    fn set_by_hand(&self, one: &mut Running, request: &SetAdaptation) -> Result<Option<String>, Problem> {
        let wrong = |why: String| Problem::new(Code::BadRequest, format!("{}: {why}", one.adaptation.name));
        let held = self.book.held(&one.vtm()).ok_or_else(|| {
            Problem::new(Code::NotRunning, format!("nothing is promised to {} on this node now", one.vtm()))
        })?;
        let settings = &one.adaptation.settings;
        let has = act::amounts(&one.adaptation, &held.now, one.level);
        let mut to = if request.file { act::amounts(&one.adaptation, &held.file, 0) } else { has };
        for (wanted, own, what) in [
            (request.cpu_ns, &mut to.cpu_ns, "budget of the processor"),
            (request.network_bits, &mut to.network_bits, "rate of the link"),
        ] {
            if wanted.is_some() && own.is_none() {
                return Err(wrong(format!("it moves no {what}; `tombolo reserve set` does")));
            }
            *own = wanted.or(*own);
        }
        if let Some(level) = request.level {
            if level >= settings.levels {
                let last = settings.levels.saturating_sub(1);
                return Err(wrong(format!("its program knows the levels 0 to {last}, and not {level}")));
            }
            to.level = level;
        }
        if to == has {
            return Ok(None);
        }
        let text = |amounts: &Amounts| amounts_text(amounts, settings.levels);
        let what = format!("{} to {}", text(&has), text(&to));
        if (to.cpu_ns, to.network_bits) != (has.cpu_ns, has.network_bits) {
            let reserve = act::with(&held.now, &to);
            let change = admin::reserve::Change { name: one.vtm(), reserve };
            let request = admin::reserve::AdaptRequest { changes: vec![change] };
            self.book.adapt_from(&[(one.vtm(), held.now)], &request, "by hand")?;
        }
        one.level = to.level;
        one.changes += 1;
        let words = format!("{}: {what}: by hand", one.adaptation.name);
        one.last_change = Some(AdaptationChange { at_ms: unix_ms(), what: words, took_us: 0 });
        Ok(Some(what))
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The key of whom a name means: `DC/NAME`, or `NAME` where that is one.
fn find(running: &BTreeMap<(String, String), Running>, which: &str) -> Result<(String, String), Problem> {
    let whole = |key: &(String, String)| format!("{}/{}", key.0, key.1);
    let found: Vec<&(String, String)> =
        running.keys().filter(|key| key.1 == which || whole(key) == which).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let names: Vec<String> = running.keys().map(whole).collect();
            Err(unknown(which).help(meant(which, &names, "adaptations")))
        }
        several => {
            let names: Vec<String> = several.iter().map(|key| whole(key)).collect();
            Err(Problem::new(Code::Ambiguous, format!("several adaptations are called {which:?}"))
                .help(format!("say which: {}", names.join(", "))))
        }
    }
}

fn unknown(which: &str) -> Problem {
    Problem::new(Code::UnknownAdaptation, format!("no adaptation is called {which:?}"))
}
