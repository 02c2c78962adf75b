//! Changes of plans under each enforcement, with real processes that sleep: how long a commit
//! takes, when it has had effect, and what decisions of a real thread take.

use super::{Plan, Put, p99};
use crate::statistics::median;
use enforce::{Bandwidth, Config, Deadline, Enforcer, Kind, Members, Table, Vtm};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The period of every machine, in ns; long, so that two hundred of them and their switches fit.
const PERIOD_NS: u64 = 200_000_000;
/// The two budgets between which a machine goes back and forth, in ns.
const BUDGETS_NS: [u64; 2] = [150_000, 200_000];
/// So many machines take long to set up.
const MANY: usize = 200;
/// Fewer commits than these are no measurement.
const FEW: usize = 10;
/// A turn of a job, in ns: some of them in each slot.
const TURN_NS: u64 = 50_000;
/// How often decisions of a real thread are given time to be taken.
const DECIDING: Duration = Duration::from_secs(1);
/// Longest wait for an effect: some periods.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How many machines, and what the figures are called: of commits, and of effects.
type Row = (usize, &'static str, &'static str);

const TABLE: [Row; 4] = [
    (1, "table commit 1, p99", "table commit 1, median"),
    (2, "reserve.table.2", "table commit 2, median"),
    (20, "reserve.table.20", "table commit 20, median"),
    (200, "reserve.table.200", "table commit 200, median"),
];
const BANDWIDTH: [Row; 4] = [
    (1, "bandwidth commit 1, p99", "bandwidth commit 1, median"),
    (2, "bandwidth commit 2, p99", "bandwidth commit 2, median"),
    (20, "bandwidth commit 20, p99", "bandwidth commit 20, median"),
    (200, "bandwidth commit 200, p99", "bandwidth commit 200, median"),
];
const DEADLINE: [Row; 4] = [
    (1, "deadline commit 1, p99", "deadline commit 1, median"),
    (2, "deadline commit 2, p99", "deadline commit 2, median"),
    (20, "deadline commit 20, p99", "deadline commit 20, median"),
    (200, "deadline commit 200, p99", "deadline commit 200, median"),
];

/// A process that sleeps, ended with this.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Result<Self, String> {
        let mut command = Command::new("sleep");
        // It ends by itself, too, should nobody be left to end it.
        command.arg("120").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        sys::process::kill_with_parent(&mut command);
        command.spawn().map(Self).map_err(|error| format!("no sleep: {error}"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // It may have ended by itself; one that is frozen has been given back before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures all that this machine can; what it can't is told.
pub(super) fn measure(plan: &Plan, put: &mut Put<'_>) -> Vec<String> {
    let mut notes = tables(plan, put);
    for (kind, rows) in [(Kind::Bandwidth, BANDWIDTH), (Kind::Deadline, DEADLINE)] {
        notes.extend(changes(kind, rows, plan, put));
    }
    for (count, name, worst) in [
        (2, "decide 2x2, real processes", "decide 2x2, real processes, worst"),
        (20, "decide 20x20, real processes", "decide 20x20, real processes, worst"),
    ] {
        if let Err(why) = decisions(count, name, worst, put) {
            notes.push(format!("no decisions among {count} times {count} real processes: {why}"));
        }
    }
    notes
}

/// Changes of a table alone.
pub(super) fn tables(plan: &Plan, put: &mut Put<'_>) -> Vec<String> {
    changes(Kind::Table, TABLE, plan, put)
}

fn changes(kind: Kind, rows: [Row; 4], plan: &Plan, put: &mut Put<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    for row in rows {
        // Hundreds of cgroups take seconds to come and go: where it is only tried whether all
        // works, once is enough.
        if row.0 == MANY && kind != Kind::Table && plan.commits < FEW {
            continue;
        }
        if let Err(why) = commits(kind, row, plan, put) {
            notes.push(format!("no changes under {kind} among {}: {why}", row.0));
        }
    }
    notes
}

fn start(kind: Kind) -> Result<(Box<dyn Enforcer>, tempfile::TempDir), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let config = Config::new(folder.path(), format!("tombolo-bench-{}", std::process::id()));
    let enforcer: Box<dyn Enforcer> = match kind {
        Kind::Table => Box::new(Table::new(config).map_err(|error| error.to_string())?),
        Kind::Deadline => Box::new(Deadline::new(config).map_err(|error| error.to_string())?),
        _ => Box::new(Bandwidth::new(config).map_err(|error| error.to_string())?),
    };
    Ok((enforcer, folder))
}

/// How many times as long budgets and periods are: the kernel knows no quota below a millisecond
/// and no period above a second, and what is changed beyond that is no change for it.
fn stretch(kind: Kind) -> (u64, u64) {
    if kind == Kind::Bandwidth { (10, 5) } else { (1, 1) }
}

fn vtm(number: usize, sleepers: &[Sleeper], (budgets, periods): (u64, u64), budget_ns: u64) -> Vtm {
    let pids: Vec<u32> = sleepers.iter().map(|sleeper| sleeper.0.id()).collect();
    let inside = enforce::Jobs::RoundRobin { turn_ns: TURN_NS };
    let base = Vtm::new(format!("m{number:03}"), budget_ns * budgets, PERIOD_NS * periods);
    Vtm { members: Members::pids(&pids), inside, ..base }
}

fn put_in_force(enforcer: &mut dyn Enforcer, vtms: Vec<Vtm>) -> Result<u64, String> {
    let prepared = enforcer.prepare(&enforce::Plan::new(vtms)).map_err(|error| error.to_string())?;
    enforcer.commit(&prepared).map(|committed| committed.commit_ns).map_err(|error| error.to_string())
}

/// The last gets more and the first less, and back.
fn commits(kind: Kind, (count, name, middle): Row, plan: &Plan, put: &mut Put<'_>) -> Result<(), String> {
    let sleepers = (0..count).map(|_| Sleeper::start()).collect::<Result<Vec<_>, _>>()?;
    let (mut enforcer, _folder) = start(kind)?;
    let plan_of = |turn: usize| {
        let each = sleepers.chunks(1).enumerate().map(|(number, own)| {
            let is_last = number + 1 == count;
            let budget_ns = match (number, turn.is_multiple_of(2)) {
                (0, even) if !is_last => BUDGETS_NS[usize::from(even)],
                (_, even) if is_last => BUDGETS_NS[usize::from(!even)],
                _ => BUDGETS_NS[0],
            };
            vtm(number, own, stretch(kind), budget_ns)
        });
        each.collect::<Vec<_>>()
    };
    put_in_force(&mut *enforcer, plan_of(0))?;
    let (mut times, mut effects) = (Vec::new(), Vec::new());
    for turn in 1..=plan.commits {
        let took_ns = put_in_force(&mut *enforcer, plan_of(turn))?;
        times.push(took_ns as f64 / 1_000.0);
        if kind == Kind::Table && count == 2 && effects.len() < plan.changes {
            let effect = enforcer.effect(TIMEOUT).map_err(|error| error.to_string())?;
            effects.extend(effect.after_ns.map(|ns| ns as f64 / PERIOD_NS as f64));
        }
    }
    enforcer.release().map_err(|error| error.to_string())?;
    put(name, "us", p99(&times));
    put(middle, "us", median(&times).unwrap_or(0.0));
    if !effects.is_empty() {
        put("reserve.effect.table", "x", p99(&effects));
    }
    Ok(())
}

/// The time that the table's own thread takes to decide, among so many machines of so many
/// processes.
fn decisions(count: usize, name: &'static str, worst: &'static str, put: &mut Put<'_>) -> Result<(), String> {
    let sleepers = (0..count * count).map(|_| Sleeper::start()).collect::<Result<Vec<_>, _>>()?;
    let (mut enforcer, _folder) = start(Kind::Table)?;
    let vtms =
        sleepers.chunks(count).enumerate().map(|(number, own)| vtm(number, own, (1, 1), BUDGETS_NS[1]));
    put_in_force(&mut *enforcer, vtms.collect())?;
    // tidy(sleep): decisions are taken as time passes.
    std::thread::sleep(DECIDING);
    let report = enforcer.report().map_err(|error| error.to_string())?;
    enforcer.release().map_err(|error| error.to_string())?;
    put(name, "us", report.decision_p99_ns as f64 / 1_000.0);
    put(worst, "us", report.worst_decision_ns as f64 / 1_000.0);
    Ok(())
}
