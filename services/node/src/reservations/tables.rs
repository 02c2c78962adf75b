//! The promises that dispatch tables and the kernel's deadline class can keep: admission knows the
//! cost of switches, how much of a processor slots can have, and the kernel's room for deadlines.

use super::{Entry, State, choice};
use admin::reserve::{Book as BookRow, DeadlineRow, TableRow};
use admin::{Code, Problem};
use enforce::{Kind, Vtm};
use reserve::node::Node;
use reserve::{DeadlineRoom, Means, Response, Rule, Task, Unkept};
use std::collections::{BTreeMap, BTreeSet};
use topology::{Asking, Enforce, Reserve, Tables};

/// Promises that are to become these.
pub(super) type Coming<'a> = BTreeMap<&'a str, &'a Reserve>;

/// The domains on a table or with deadlines, now or when their processes are there, and those
/// without that asked for one.
#[derive(Debug)]
pub(super) struct Tabled {
    pub(super) means: Means,
    /// Where somebody asks for deadlines.
    pub(super) room: Option<DeadlineRoom>,
    has: BTreeSet<String>,
    timed: BTreeSet<String>,
    pub(super) without: BTreeMap<String, String>,
    /// The enforcement that those without have asked for.
    by: BTreeMap<String, Kind>,
}

impl State {
    /// Returns the means of a table: as its dispatcher says, where there is one.
    pub(super) fn means(&self) -> Means {
        self.dispatchers.table_switch_ns().map_or_else(enforce::means, enforce::means_of)
    }

    /// Those for whom tables have no room on a node that promises this, where these promises become
    /// others. Nobody loses slots, or what is strict, to who comes.
    pub(super) fn without_room(&self, node: &Node, coming: &Coming) -> Vec<Unkept> {
        let known = self.entries.iter().filter(|(name, _)| !coming.contains_key(name.as_str()));
        let known = known.filter_map(|(name, entry)| {
            let is_there = self.told(name, &entry.now).is_some();
            // What keeps it is something else, and it does not ask again.
            let is_settled = entry.in_force && !is_there;
            let has = is_there || entry.now.strict;
            (!is_settled && entry.without.is_none()).then_some(Asking { name, reserve: &entry.now, has })
        });
        let coming = coming.iter().map(|(name, reserve)| {
            let told = self.told(name, reserve);
            let has = told.zip(reserve.cpu).is_some_and(|(vtm, cpu)| {
                (vtm.budget_ns, vtm.period_ns, vtm.deadline_ns)
                    == (cpu.budget_ns, cpu.period_ns, cpu.deadline_ns)
            });
            Asking { name, reserve, has }
        });
        topology::without_room(node, self.means(), || self.room(), known.chain(coming))
    }

    /// Returns the room of the kernel's deadline class beside our share.
    pub(super) fn room(&self) -> DeadlineRoom {
        let told = self.dispatchers.vtms(Kind::Deadline);
        enforce::deadline_room(told.filter_map(|vtm| vtm.members.cgroup.as_deref()))
    }

    /// Returns a domain as its dispatcher was told of it, where it has the enforcement that it asks
    /// for.
    fn told(&self, name: &str, reserve: &Reserve) -> Option<&Vtm> {
        self.dispatchers.vtm(choice::of(reserve).0, name)
    }

    /// Refuses what no table or deadline can keep of these, where that is strict.
    ///
    /// # Errors
    /// The domain, and the budget that would pass.
    pub(super) fn admit_tables(&self, node: &Node, coming: &Coming) -> Result<(), Problem> {
        let is_strict = |name: &str| {
            let known = || self.entries.get(name).map(|entry| &entry.now);
            coming.get(name).copied().or_else(known).is_some_and(|reserve| reserve.strict)
        };
        refuse(self.without_room(node, coming).iter().find(|unkept| is_strict(&unkept.name)))
    }

    /// The same of a change of those who are there: who has slots stays on its table, who has
    /// deadlines keeps them, or nothing is changed.
    ///
    /// # Errors
    /// As [`State::admit_tables`].
    pub(super) fn admit_tables_of_change(&self, node: &Node, coming: &Coming) -> Result<(), Problem> {
        let has = |name: &str| {
            [Kind::Table, Kind::Deadline].into_iter().any(|kind| self.dispatchers.vtm(kind, name).is_some())
        };
        let unkept = self.without_room(node, coming);
        refuse(unkept.iter().find(|unkept| has(&unkept.name)))?;
        self.admit_tables(node, coming)
    }

    /// Why a table or the deadline class has no room for one that is to be kept by it now.
    pub(super) fn why_not(&self, name: &str, entry: &Entry) -> Option<String> {
        let unkept = self.without_room(self.model.node(), &BTreeMap::from([(name, &entry.now)]));
        unkept.iter().find(|unkept| unkept.name == name).map(ToString::to_string)
    }

    /// Returns the domains on tables, and those that are not.
    pub(super) fn tabled(&self) -> Tabled {
        let unkept = self.without_room(self.model.node(), &BTreeMap::new());
        let mut without: BTreeMap<String, String> =
            unkept.iter().map(|unkept| (unkept.name.clone(), unkept.to_string())).collect();
        let (mut has, mut timed) = (BTreeSet::new(), BTreeSet::new());
        for (name, entry) in self.entries.iter().filter(|(_, entry)| entry.without.is_none()) {
            let all = match entry.now.kept_by().0 {
                Enforce::Table => &mut has,
                Enforce::Deadline => &mut timed,
                Enforce::Auto | Enforce::Bandwidth => continue,
            };
            let is_there = self.told(name, &entry.now).is_some();
            if entry.in_force && !is_there {
                without.insert(name.clone(), entry.because.clone());
            } else if !without.contains_key(name) {
                all.insert(name.clone());
            }
        }
        let means = self.means().at_least(self.model.node().capacity().rule.costs);
        let by: BTreeMap<String, Kind> = without
            .keys()
            .filter_map(|name| Some((name.clone(), choice::of(&self.entries.get(name)?.now).0)))
            .collect();
        // Looked at by whoever asks for it, and only where somebody has to do with it.
        let is_asked = !timed.is_empty() || by.values().any(|kind| *kind == Kind::Deadline);
        let room = is_asked.then(|| self.room());
        Tabled { means, room, has, timed, without, by }
    }
}

impl Tabled {
    /// Returns the domains on the table of a processor.
    pub(super) fn on<'n>(&self, node: &'n Node, number: usize) -> Vec<(&'n str, Task)> {
        node.on_processor(number).filter(|(name, _)| self.has.contains(*name)).collect()
    }

    /// How long those of a processor take at worst: whoever is on its table by that, and all others
    /// by all that is promised.
    pub(super) fn responses(&self, node: &Node, number: usize) -> BTreeMap<String, Response> {
        let rule = node.capacity().rule;
        let by_table = Rule { costs: self.means.costs, ..rule };
        let mut found = BTreeMap::new();
        for (rule, on) in [(rule, node.on_processor(number).collect()), (by_table, self.on(node, number))] {
            let (names, tasks): (Vec<&str>, Vec<Task>) = on.into_iter().unzip();
            let Ok(responses) = rule.responses(&tasks) else { continue };
            found.extend(names.into_iter().map(str::to_owned).zip(responses));
        }
        found
    }

    /// For whoever asks.
    pub(super) fn row(&self) -> TableRow {
        TableRow {
            switch_ns: self.means.costs.switch_ns(),
            most_ppm: self.means.most_ppm,
            vtms: self.has.iter().cloned().collect(),
            without: self.without_by(Kind::Table),
        }
    }

    /// Returns the row of the deadline class, where somebody has to do with it.
    pub(super) fn deadline_row(&self) -> Option<DeadlineRow> {
        self.room.map(|room| DeadlineRow {
            processors: room.processors,
            most_ppm: room.most_ppm,
            others_ppm: room.others_ppm,
            vtms: self.timed.iter().cloned().collect(),
            without: self.without_by(Kind::Deadline),
        })
    }

    fn without_by(&self, kind: Kind) -> BTreeMap<String, String> {
        let of = self.without.iter().filter(|(name, _)| self.by.get(*name) == Some(&kind));
        of.map(|(name, why)| (name.clone(), why.clone())).collect()
    }
}

/// Returns the tables for a file that is checked elsewhere than in the daemon: as the daemon tells
/// them, or as can be tried here. `is_own`: of the file itself.
pub(super) fn for_a_file(book: Option<&BookRow>, is_own: impl Fn(&str) -> bool) -> Tables {
    let said = book.and_then(|book| book.table.as_ref());
    let means = said.map_or_else(enforce::means, |table| enforce::means_of(table.switch_ns));
    // What somebody has by the daemon is its own to say; where nobody has any, all that there is
    // are others'.
    let room = book.and_then(|book| book.deadline.as_ref()).map_or_else(
        || enforce::deadline_room(std::iter::empty()),
        |row| DeadlineRoom { processors: row.processors, most_ppm: row.most_ppm, others_ppm: row.others_ppm },
    );
    let rows = book.map_or(&[][..], |book| book.vtms.as_slice());
    let others = rows.iter().filter(|row| !is_own(&row.name)).filter_map(|row| {
        let is_there = row.kept_by.as_deref() == Some(choice::of(&row.reserve).0.name());
        let is_settled = row.in_force && !is_there;
        (!is_settled).then(|| (row.name.clone(), row.reserve.clone(), is_there || row.reserve.strict))
    });
    Tables { means, room, others: others.collect() }
}

/// As [`for_a_file`], in the daemon.
pub(super) fn beside(state: &State, is_own: impl Fn(&str) -> bool) -> Tables {
    let others = state.entries.iter().filter(|(name, _)| !is_own(name)).filter_map(|(name, entry)| {
        let is_there = state.told(name, &entry.now).is_some();
        let is_settled = entry.in_force && !is_there;
        (!is_settled).then(|| (name.clone(), entry.now.clone(), is_there || entry.now.strict))
    });
    Tables { means: state.means(), room: state.room(), others: others.collect() }
}

fn refuse(unkept: Option<&Unkept>) -> Result<(), Problem> {
    let Some(unkept) = unkept else { return Ok(()) };
    let problem = Problem::new(Code::NotAdmitted, format!("the node can't keep this: {unkept}"));
    Err(problem.help(
        "`tombolo reserve explain` shows what tables and deadlines keep; `enforce = \"bandwidth\"` has a quota keep it",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::adapt::Adaptations;
    use super::super::dispatchers::Dispatchers;
    use super::super::network::Links;
    use super::super::written::Unwritten;
    use super::super::{empty_model, settings};
    use super::*;
    use admin::reserve::NodeSettings;
    use topology::ProcessorShare;

    /// A node with one processor that has promised nothing, and no dispatcher.
    fn state() -> State {
        let settings = NodeSettings { processors: vec![0], ..settings::found() };
        let model = empty_model(&settings).expect("a model");
        let dispatchers = Dispatchers::new("/nowhere".into(), "/nowhere/enforce".into(), "nobody".into());
        let (links, adaptations) = (Links::default(), Adaptations::default());
        let (entries, refused) = (BTreeMap::new(), BTreeMap::new());
        State {
            settings,
            model,
            entries,
            links,
            dispatchers,
            adaptations,
            unwritten: Unwritten::default(),
            refused,
            runs: 0,
        }
    }

    fn reserve(budget_ms: u64, enforce: Enforce, strict: bool) -> Reserve {
        let (budget_ns, period_ns) = (budget_ms * 1_000_000, 40_000_000);
        let cpu = ProcessorShare { budget_ns, period_ns, deadline_ns: period_ns, processor: None };
        Reserve { cpu: Some(cpu), enforce, strict, ..Reserve::default() }
    }

    fn promise(state: &mut State, name: &str, reserve: &Reserve) -> Result<(), String> {
        let (wish, team) = state.asked(reserve).expect("it makes sense");
        state.promise_one(name, reserve, wish, team).map_err(|problem| problem.message)?;
        state.entries.insert(name.to_owned(), Entry::new(None, reserve.clone(), name.to_owned()));
        Ok(())
    }

    #[test]
    fn more_than_a_table_can_have_is_refused_with_what_would_pass_where_it_is_strict() {
        let mut state = state();
        let why = promise(&mut state, "a/gold", &reserve(38, Enforce::Table, true)).expect_err("95 %");
        let words = "a table for `a/gold` would have 95 % of the processor, and 93 % are the most";
        assert!(why.contains(words), "{why}");
        assert!(
            why.contains("it would pass with a budget of 37.2 ms for `a/gold` instead of 38 ms"),
            "{why}"
        );
        assert!(state.model.node().promises().next().is_none(), "nothing is promised");
        // A quota can have it.
        promise(&mut state, "a/gold", &reserve(38, Enforce::Bandwidth, true)).expect("a quota has room");
    }

    #[test]
    fn who_is_not_strict_goes_without_a_table_and_that_is_told() {
        let mut state = state();
        promise(&mut state, "a/gold", &reserve(20, Enforce::Table, true)).expect("half of it");
        promise(&mut state, "a/late", &reserve(18, Enforce::Table, false)).expect("a quota has room");
        let late = state.entries["a/late"].clone();
        let why = state.why_not("a/late", &late).expect("95 % together");
        assert!(why.contains("a table for `a/gold`, `a/late` would have 95 %"), "{why}");
        assert!(why.contains("17.2 ms for `a/late` instead of 18 ms"), "{why}");
        let row = state.tabled().row();
        assert_eq!(row.vtms, ["a/gold"]);
        assert_eq!(row.without.get("a/late"), Some(&why));
        // Who comes later takes nothing from who is strict, though its name comes first.
        let why = promise(&mut state, "a/a", &reserve(2, Enforce::Table, true));
        why.expect("with it the table has 55 %");
        assert_eq!(state.tabled().row().vtms, ["a/a", "a/gold"]);
    }

    #[test]
    fn switches_of_a_table_are_charged_to_who_is_on_it_and_to_nobody_else() {
        let mut state = state();
        promise(&mut state, "a/gold", &reserve(20, Enforce::Table, false)).expect("half of it");
        promise(&mut state, "a/rest", &reserve(10, Enforce::Bandwidth, false)).expect("a quota has room");
        let (tabled, node) = (state.tabled(), state.model.node());
        let switch_ns = tabled.means.costs.switch_ns();
        assert!(switch_ns > 0, "a switch costs something on every machine");
        let responses = tabled.responses(node, 0);
        assert_eq!(responses["a/gold"], Response::Within(20_000_000 + 2 * switch_ns));
        assert_eq!(responses["a/rest"], Response::Within(30_000_000));
    }

    #[test]
    fn settings_with_dearer_switches_are_charged_to_tables_too() {
        let mut state = state();
        state.settings.switch_ns = 9_000_000;
        state.model = empty_model(&state.settings).expect("a model");
        promise(&mut state, "a/gold", &reserve(20, Enforce::Table, true)).expect("18 ms of switches");
        assert_eq!(state.tabled().means.costs.switch_ns(), 9_000_000);
    }
    #[test]
    fn more_deadlines_than_the_kernel_has_room_for_are_refused_with_what_would_pass_where_that_is_strict() {
        let mut state = state();
        let processors = state.room().processors;
        state.settings.processors = (0..processors).collect();
        state.model = empty_model(&state.settings).expect("a model");
        let mut without = 0;
        // A deadline on each processor, each nearly whole.
        for number in 0..processors {
            let name = format!("a/{number}");
            match promise(&mut state, &name, &reserve(38, Enforce::Deadline, true)) {
                Ok(()) => {}
                Err(why) => {
                    without += 1;
                    assert!(why.contains("and the kernel leaves its deadline class"), "{why}");
                    assert!(!state.entries.contains_key(&name));
                }
            }
        }
        assert!(without > 0, "{processors} of 95 % each are more than 90 % of each");
        // Who is not strict goes without, and that is told beside who has room.
        promise(&mut state, "a/plain", &reserve(38, Enforce::Deadline, false)).expect("a quota has room");
        let plain = state.entries["a/plain"].clone();
        let why = state.why_not("a/plain", &plain).expect("there is no room");
        assert!(why.contains("a budget of") && why.contains("for `a/plain` instead of 38 ms"), "{why}");
        let row = state.tabled().deadline_row().expect("somebody asks for deadlines");
        assert_eq!(row.without.keys().collect::<Vec<_>>(), ["a/plain"]);
        assert!(!row.vtms.is_empty() && state.tabled().row().without.is_empty());
    }
}
