//! The targets that a mount asks of a service's files, and whether they are kept.
//!
//! A file that has some has a histogram of the window that goes on and of the one before; a call or
//! a record is counted there and costs nothing else. Files without targets are not looked at.
//!
//! Of a file in folders that only the backend knows, the number is learnt when the parts of its
//! path are looked up, which the kernel does each time a program opens it.

use serde_json::{Value, json};
use wire::control::Target;
use wire::service::{Change, Kind, OWN_FOLDER, Operation};

use super::{Core, Purpose};
use crate::handle::Handle;
use crate::histogram::Histogram;
use crate::host::Host;
use crate::tree::{Node, Tree};

/// A window: long enough for a hundredth of a few hundred calls to be told.
pub(crate) const WINDOW_NS: u64 = 10_000_000_000;
/// Fewer answers in a window say nothing of the slowest hundredth of them.
pub(crate) const ANSWERS_LEAST: u64 = 20;
/// A rate is told of at least so much time.
const RATE_LEAST_NS: u64 = 1_000_000_000;

/// Answers and records of a time.
#[derive(Debug, Default)]
struct Window {
    answers: Histogram,
    records: u64,
    /// Answers that came after the deadline.
    late: u64,
    /// The longest time from one record to the next.
    gap_ns: u64,
}

/// A file of a service that has targets.
#[derive(Debug)]
struct Watched {
    service: usize,
    target: Target,
    /// The numbers of the nodes on its path, as far as they were looked up; of a file directly in
    /// the service's folder only where the backend knows it alone.
    nodes: Vec<Option<u32>>,
    begun_ns: u64,
    now: Box<Window>,
    before: Option<Box<Window>>,
    last_record_ns: Option<u64>,
    /// Since when somebody has it open, as far as it was looked at.
    open_since_ns: Option<u64>,
    /// Late answers, of all time.
    late: u64,
}

/// A file of a service: by its name in the export, or by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which<'a> {
    Name(&'a str),
    Node(u32),
}

impl Watched {
    fn new(service: usize, target: Target, now: u64) -> Self {
        let nodes = vec![None; target.file.split('/').count()];
        Self {
            service,
            target,
            nodes,
            begun_ns: now,
            now: Box::default(),
            before: None,
            last_record_ns: None,
            open_since_ns: None,
            late: 0,
        }
    }

    fn is(&self, which: Which<'_>) -> bool {
        match which {
            Which::Name(name) => self.target.file == name,
            Which::Node(number) => self.nodes.last() == Some(&Some(number)),
        }
    }

    /// A node was found by its name in a folder, which is the service's own or has this number.
    fn learn(&mut self, folder: Option<Which<'_>>, name: &[u8], number: u32) {
        let parts: Vec<&str> = self.target.file.split('/').collect();
        let of_name =
            (0..parts.len()).filter(|depth| parts.get(*depth).is_some_and(|part| part.as_bytes() == name));
        for depth in of_name {
            let is_below = match (depth.checked_sub(1), folder) {
                (None, folder) => folder.is_none(),
                (Some(0), Some(Which::Name(folder))) => parts.first() == Some(&folder),
                (Some(above), Some(Which::Node(folder))) => self.nodes.get(above) == Some(&Some(folder)),
                _ => false,
            };
            let known = self.nodes.get_mut(depth);
            if let Some(known) = known.filter(|known| is_below && **known != Some(number)) {
                *known = Some(number);
                // What is below another node is another one, too.
                self.nodes.iter_mut().skip(depth + 1).for_each(|below| *below = None);
            }
        }
    }

    fn turn(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.begun_ns);
        if elapsed < WINDOW_NS {
            return;
        }
        let ended = std::mem::take(&mut self.now);
        // A window after which nothing came for another one is of long ago.
        self.before = (elapsed < 2 * WINDOW_NS).then_some(ended);
        self.begun_ns = now;
    }
}

/// The files of the domain's services that have targets.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    watched: Vec<Watched>,
}

impl Targets {
    /// Takes the targets of all services, by their places in the tree. What was counted of a file
    /// whose targets are the same stays.
    pub(crate) fn set(&mut self, wanted: Vec<(usize, Target)>, now: u64) {
        let mut known = std::mem::take(&mut self.watched);
        let one = |(service, target): (usize, Target)| {
            let same = known.iter().position(|old| old.service == service && old.target == target);
            same.map(|at| known.swap_remove(at)).unwrap_or_else(|| Watched::new(service, target, now))
        };
        self.watched = wanted.into_iter().map(one).collect();
    }

    /// Whether some file of the service has targets.
    pub(crate) fn has(&self, service: usize) -> bool {
        self.watched.iter().any(|watched| watched.service == service)
    }

    fn of(&mut self, service: usize, file: Which<'_>, now: u64) -> Option<&mut Watched> {
        let mut all = self.watched.iter_mut();
        let watched = all.find(|one| one.service == service && one.is(file))?;
        watched.turn(now);
        Some(watched)
    }

    /// Counts an answer.
    pub(crate) fn answered(&mut self, (service, file): (usize, Which<'_>), asked: u64, now: u64) {
        let Some(watched) = self.of(service, file, now) else { return };
        let took = now.saturating_sub(asked);
        watched.now.answers.record(took);
        if watched.target.deadline_ns.is_some_and(|deadline| took > deadline) {
            watched.now.late += 1;
            watched.late += 1;
        }
    }

    /// Counts a record of a stream.
    pub(crate) fn record(&mut self, (service, file): (usize, Which<'_>), now: u64) {
        let Some(watched) = self.of(service, file, now) else { return };
        watched.now.records += 1;
        watched.open_since_ns.get_or_insert(now);
        if let Some(last) = watched.last_record_ns.replace(now) {
            watched.now.gap_ns = watched.now.gap_ns.max(now.saturating_sub(last));
        }
    }
}

/// How a file is used at the moment.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    open: bool,
    /// The age of the oldest call without an answer.
    waits_ns: Option<u64>,
}

impl Watched {
    /// A row for each target: what was asked and found, and whether it is kept; `null` where there
    /// is nothing to judge by.
    fn rows(&mut self, service: &str, used: Use, now: u64) -> Vec<Value> {
        self.turn(now);
        if used.open {
            self.open_since_ns.get_or_insert(now);
        } else {
            // Nobody takes records: the next one is no late one.
            (self.last_record_ns, self.open_since_ns) = (None, None);
        }
        let whole = self.before.as_ref().filter(|window| window.answers.count() >= ANSWERS_LEAST);
        let window = whole.unwrap_or(&self.now);
        let (count, p99_ns) = (window.answers.count(), window.answers.p99_ns());
        let mean_ns = window.answers.mean_ns();
        let waits_ns = used.waits_ns.unwrap_or(0);
        let late_now = |deadline: u64| waits_ns > deadline;
        let before = self.before.as_deref();
        let sum = |of: fn(&Window) -> u64| of(&self.now) + before.map_or(0, of);
        let row = |what: &str, asked: u64, found: Option<u64>, kept: Option<bool>| {
            json!({
                "service": service, "file": self.target.file, "what": what,
                "asked": asked, "found": found, "kept": kept,
                "answers": count, "mean_ns": mean_ns, "p99_ns": p99_ns, "late": self.late,
            })
        };
        let mut rows = Vec::new();
        if let Some(asked) = self.target.p99_ns {
            let found = (count >= ANSWERS_LEAST).then_some(p99_ns);
            rows.push(row("p99", asked, found, found.map(|found| found <= asked)));
        }
        if let Some(asked) = self.target.deadline_ns {
            let answers = sum(|window| window.answers.count());
            let longest = self.now.answers.max_ns().max(before.map_or(0, |window| window.answers.max_ns()));
            let found = longest.max(waits_ns);
            let is_known = answers > 0 || used.waits_ns.is_some();
            let kept = sum(|window| window.late) == 0 && !late_now(asked);
            rows.push(row("deadline", asked, is_known.then_some(found), is_known.then_some(kept)));
        }
        if let Some(asked) = self.target.rate {
            let elapsed = now.saturating_sub(self.begun_ns);
            let events = sum(|window| window.answers.count() + window.records);
            let windows = elapsed + if before.is_some() { WINDOW_NS } else { 0 };
            // Nobody counts records before somebody reads.
            let since = self.open_since_ns.filter(|_| self.last_record_ns.is_some());
            let time = since.map_or(windows, |since| windows.min(now.saturating_sub(since)));
            let found = (events * RATE_LEAST_NS).checked_div(time).filter(|_| time >= RATE_LEAST_NS);
            // Nobody is answered faster than he asks: too few are a fault where somebody waits.
            let wanted = used.waits_ns.is_some() || self.last_record_ns.is_some();
            let kept = found.map(|found| found >= u64::from(asked) || !wanted);
            rows.push(row("rate", asked.into(), found, kept));
        }
        if let Some(asked) = self.target.age_ns {
            let last = self.last_record_ns.or(self.open_since_ns);
            let found = last.map(|last| now.saturating_sub(last));
            let gap = sum_gap(&self.now, before);
            let found = found.map(|found| found.max(gap));
            rows.push(row("age", asked, found, found.map(|found| found <= asked)));
        }
        rows
    }
}

fn sum_gap(now: &Window, before: Option<&Window>) -> u64 {
    now.gap_ns.max(before.map_or(0, |window| window.gap_ns))
}

/// A file, as targets know it.
fn which(tree: &Tree, node: Node) -> Option<Which<'_>> {
    let Node::File(at, id) = node else { return None };
    let exported = tree.services.get(at)?.file(id).and_then(|file| file.name.as_deref());
    Some(exported.map_or(Which::Node(id), Which::Name))
}

impl<H: Host> Core<H> {
    /// Counts the answer to what was asked at `asked`.
    pub(super) fn aim_answered(&mut self, service: usize, slot: usize, asked: u64, purpose: Purpose) {
        // How long a lock is waited for is its holder's doing.
        let is_lock = matches!(purpose, Purpose::Lock(_) | Purpose::Claim);
        if is_lock || matches!(purpose, Purpose::Open) || !self.targets.has(service) {
            return;
        }
        let now = self.host.now();
        let Some(node) = self.handle(slot).map(|handle| handle.node) else { return };
        if let Some(file) = which(&self.tree, node) {
            self.targets.answered((service, file), asked, now);
        }
    }

    /// Counts a record of a stream.
    pub(super) fn aim_record(&mut self, service: usize, slot: usize) {
        if !self.targets.has(service) {
            return;
        }
        let now = self.host.now();
        let Some(node) = self.handle(slot).map(|handle| handle.node) else { return };
        if let Some(file) = which(&self.tree, node) {
            self.targets.record((service, file), now);
        }
    }

    /// A name was looked up in a folder that the backend knows, or given to a new file there.
    pub(super) fn aim_found(
        &mut self,
        service: usize,
        (kind, folder): (Kind, u32),
        payload: &[u8],
        number: u32,
    ) {
        if !self.targets.has(service) {
            return;
        }
        let name = match kind {
            Kind::Lookup => payload,
            Kind::Change => match Change::decode(payload) {
                Ok(Change { operation: Operation::Create | Operation::MakeFolder, name, .. }) => name,
                _ => return,
            },
            _ => return,
        };
        let folder = match which(&self.tree, Node::File(service, folder)) {
            Some(Which::Name(OWN_FOLDER)) => None,
            folder => folder,
        };
        for watched in self.targets.watched.iter_mut().filter(|watched| watched.service == service) {
            watched.learn(folder, name, number);
        }
    }

    /// Takes the targets that the daemon says.
    pub(super) fn aim(&mut self) {
        let present = self.tree.services.iter().enumerate().filter(|(_, service)| service.present);
        let wanted = present
            .flat_map(|(at, service)| service.mounted.targets.iter().map(move |target| (at, target.clone())));
        let wanted = wanted.collect();
        let now = self.host.now();
        self.targets.set(wanted, now);
    }

    /// All targets with what was found.
    pub(super) fn targets_json(&mut self) -> Value {
        let now = self.host.now();
        let mut targets = std::mem::take(&mut self.targets.watched);
        let mut rows = Vec::new();
        for watched in &mut targets {
            let Some(service) = self.tree.services.get(watched.service) else { continue };
            let used = self.use_of(watched, now);
            rows.extend(watched.rows(&service.mounted.name, used, now));
        }
        self.targets.watched = targets;
        Value::Array(rows)
    }

    fn use_of(&self, watched: &Watched, now: u64) -> Use {
        let at = watched.service;
        let is_of = |handle: &Handle| {
            handle.service() == Some(at)
                && which(&self.tree, handle.node).is_some_and(|file| watched.is(file))
        };
        let mut used = Use { open: self.handles.iter().flatten().any(&is_of), waits_ns: None };
        for pending in self.pending.values().filter(|pending| pending.service == at) {
            let handle = self.slot(pending.fh).and_then(|slot| self.handles.get(slot)?.as_ref());
            if handle.is_some_and(&is_of)
                && !matches!(pending.purpose, Purpose::Open | Purpose::Lock(_) | Purpose::Claim)
            {
                let waits = now.saturating_sub(pending.asked);
                used.waits_ns = used.waits_ns.max(Some(waits));
            }
        }
        used
    }

    /// The targets as a text, one a line.
    pub(super) fn targets_text(&mut self) -> String {
        let rows = self.targets_json();
        let rows = rows.as_array().map(Vec::as_slice).unwrap_or_default();
        let text =
            |row: &Value, key: &str| row.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let line = |row: &Value| {
            let what = text(row, "what");
            let number = |key: &str| row.get(key).and_then(Value::as_u64);
            let said = |value: Option<u64>| match (value, what.as_str()) {
                (None, _) => "-".to_owned(),
                (Some(value), "rate") => format!("{value}/s"),
                (Some(value), _) => format!("{}us", value / 1_000),
            };
            let state = match row.get("kept").and_then(Value::as_bool) {
                Some(true) => "kept",
                Some(false) => "missed",
                None => "unknown",
            };
            let (service, file) = (text(row, "service"), text(row, "file"));
            let (asked, found) = (said(number("asked")), said(number("found")));
            format!("{service} {file} {what} {asked} {found} {state}\n")
        };
        rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn watched(target: Target) -> Targets {
        let mut targets = Targets::default();
        targets.set(vec![(0, target)], 0);
        targets
    }

    fn state(targets: &mut Targets, used: Use, now: u64) -> (Option<u64>, Option<bool>) {
        let row = targets.watched[0].rows("gauge", used, now).remove(0);
        (row["found"].as_u64(), row["kept"].as_bool())
    }

    #[test]
    fn a_p99_is_judged_by_enough_answers_and_by_the_last_whole_window() {
        let mut targets = watched(Target { file: "ask".into(), p99_ns: Some(5 * MS), ..Target::default() });
        let used = Use { open: true, waits_ns: None };
        for number in 0..19 {
            targets.answered((0, Which::Name("ask")), number * MS, (number + 1) * MS);
        }
        assert_eq!(state(&mut targets, used, 20 * MS), (None, None), "19 answers");
        targets.answered((0, Which::Name("ask")), 0, MS);
        targets.answered((0, Which::Name("other")), 0, 900 * MS);
        targets.answered((1, Which::Name("ask")), 0, 900 * MS);
        let (found, kept) = state(&mut targets, used, 20 * MS);
        assert!(found.is_some_and(|found| found.abs_diff(MS) <= MS / 8), "{found:?}");
        assert_eq!(kept, Some(true));
        // The next window is slow, and counts when it is over.
        for _ in 0..50 {
            targets.answered((0, Which::Name("ask")), WINDOW_NS, WINDOW_NS + 8 * MS);
        }
        assert_eq!(state(&mut targets, used, WINDOW_NS + 9 * MS).1, Some(true), "the one before counts");
        assert_eq!(state(&mut targets, used, 2 * WINDOW_NS + 9 * MS).1, Some(false));
        assert_eq!(state(&mut targets, used, 9 * WINDOW_NS), (None, None), "long ago");
    }

    #[test]
    fn a_deadline_is_missed_by_one_answer_and_by_one_that_does_not_come() {
        let mut targets =
            watched(Target { file: "ask".into(), deadline_ns: Some(5 * MS), ..Target::default() });
        let idle = Use { open: true, waits_ns: None };
        assert_eq!(state(&mut targets, idle, MS), (None, None));
        targets.answered((0, Which::Name("ask")), 0, MS);
        assert_eq!(state(&mut targets, idle, MS), (Some(MS), Some(true)));
        let waits = Use { open: true, waits_ns: Some(6 * MS) };
        assert_eq!(state(&mut targets, waits, 7 * MS), (Some(6 * MS), Some(false)));
        targets.answered((0, Which::Name("ask")), 0, 9 * MS);
        assert_eq!(state(&mut targets, idle, 10 * MS), (Some(9 * MS), Some(false)));
        assert_eq!(state(&mut targets, idle, 4 * WINDOW_NS), (None, None), "it is forgotten in time");
    }

    #[test]
    fn records_have_a_rate_and_an_age_while_somebody_takes_them() {
        let mut targets =
            watched(Target { file: "samples".into(), age_ns: Some(200 * MS), ..Target::default() });
        let reads = Use { open: true, waits_ns: None };
        for number in 0..10 {
            targets.record((0, Which::Name("samples")), number * 100 * MS);
        }
        assert_eq!(state(&mut targets, reads, 950 * MS), (Some(100 * MS), Some(true)));
        assert_eq!(state(&mut targets, reads, 1_500 * MS), (Some(600 * MS), Some(false)));
        let nobody = Use::default();
        assert_eq!(state(&mut targets, nobody, 1_600 * MS), (None, None));
        let mut targets = watched(Target { file: "samples".into(), rate: Some(10), ..Target::default() });
        for number in 0..20 {
            targets.record((0, Which::Name("samples")), number * 50 * MS);
        }
        assert_eq!(state(&mut targets, reads, 1_000 * MS), (Some(20), Some(true)));
        assert_eq!(state(&mut targets, reads, 4_000 * MS), (Some(5), Some(false)));
        assert_eq!(state(&mut targets, nobody, 4_000 * MS), (Some(5), Some(true)), "nobody waits");
    }

    #[test]
    fn who_opens_late_or_hears_nothing_is_counted_from_the_opening() {
        let target = |file: &str| Target { file: file.into(), ..Target::default() };
        let (reads, nobody) = (Use { open: true, waits_ns: None }, Use::default());
        let mut targets = watched(Target { age_ns: Some(200 * MS), ..target("samples") });
        assert_eq!(state(&mut targets, nobody, 60_000 * MS), (None, None));
        assert_eq!(state(&mut targets, reads, 61_000 * MS), (Some(0), Some(true)));
        assert_eq!(state(&mut targets, reads, 61_300 * MS), (Some(300 * MS), Some(false)), "never a record");
        let mut targets = watched(Target { rate: Some(10), ..target("samples") });
        assert_eq!(state(&mut targets, nobody, 19_000 * MS), (Some(0), Some(true)));
        for number in 0..30 {
            targets.record((0, Which::Name("samples")), (19_100 + number * 50) * MS);
        }
        assert_eq!(state(&mut targets, reads, 20_600 * MS), (Some(20), Some(true)), "not of the time before");
    }

    #[test]
    fn what_was_counted_stays_where_the_targets_stay() {
        let target = Target { file: "ask".into(), deadline_ns: Some(MS), ..Target::default() };
        let mut targets = watched(target.clone());
        targets.answered((0, Which::Name("ask")), 0, 2 * MS);
        targets.set(vec![(0, target.clone())], 3 * MS);
        let used = Use { open: true, waits_ns: None };
        assert_eq!(state(&mut targets, used, 3 * MS).1, Some(false));
        targets.set(vec![(0, Target { deadline_ns: Some(4 * MS), ..target })], 3 * MS);
        assert_eq!(state(&mut targets, used, 3 * MS), (None, None));
    }

    #[test]
    fn a_file_in_folders_is_learnt_by_its_path() {
        let mut targets =
            watched(Target { file: "alarms/sub".into(), deadline_ns: Some(MS), ..Target::default() });
        let counted = |targets: &mut Targets, number: u32| {
            targets.answered((0, Which::Node(number)), 0, 2 * MS);
            targets.watched[0].late
        };
        let one = &mut targets.watched[0];
        one.learn(None, b"sub", 5);
        one.learn(Some(Which::Node(9)), b"sub", 5);
        one.learn(Some(Which::Node(7)), b"alarms", 6);
        assert_eq!(one.nodes, [None, None], "other files of that name");
        one.learn(None, b"alarms", 7);
        one.learn(Some(Which::Node(7)), b"sub", 8);
        assert_eq!((counted(&mut targets, 7), counted(&mut targets, 8)), (0, 1));
        // The folder was made anew: so is what is in it.
        targets.watched[0].learn(None, b"alarms", 9);
        assert_eq!(counted(&mut targets, 8), 1);
        targets.watched[0].learn(Some(Which::Node(9)), b"sub", 10);
        assert_eq!(counted(&mut targets, 10), 2);
        // In a folder that the export names.
        let mut targets =
            watched(Target { file: "logs/last".into(), deadline_ns: Some(MS), ..Target::default() });
        targets.watched[0].learn(Some(Which::Name("other")), b"last", 3);
        targets.watched[0].learn(Some(Which::Name("logs")), b"last", 4);
        assert_eq!((counted(&mut targets, 3), counted(&mut targets, 4)), (0, 1));
    }
}
