//! `tombolo reserve` and `tombolo adapt`.

mod timeline;
mod watch;

use super::{client, wait};
use crate::cli::PlaceArgs;
use admin::reserve::{
    AdaptRequest, Adapted, Book, Change, DispatchedRow, JobRow, LinkSettings, MoveRequest, Named,
    NodeSettings, PolicyWord, Ran, RunRequest, VtmRow,
};
use clap::{Args, Subcommand};
use reserve::{Arrivals, Costs, Means, Percent, Policy, Rule, Scenario, Span, Stretch, Task};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use terminal::{Failure, bytes, print, print_json, print_table};
use topology::{
    DiskShare, Enforce, Job, JobPolicy, Name, NetworkClass, NetworkShare, Outside, ProcessorShare, Reserve,
    Who, nanos_text, parse_nanos, parse_rate, parse_size, rate_text,
};

/// Longest time that is simulated: what a person waits for.
const MAX_SIMULATION_NS: u64 = 600_000_000_000;
/// Most periods that are simulated on one processor: what a person waits for, too.
const MAX_SIMULATED: u64 = 10_000_000;
/// Exit codes of whoever becomes another command and can't (POSIX, `env`).
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;
/// The burst where none is named: as in a file.
const BURST_BYTES: u64 = 16 << 10;

#[derive(Debug, Subcommand)]
pub enum ReserveCommand {
    /// List what is promised
    #[command(after_help = "Examples:
  tombolo reserve ls
  tombolo reserve ls --tree       all resources, from machines down to processors
  tombolo reserve ls --json | jq '.vtms[] | {name, response_ns}'")]
    Ls {
        /// Show who stands on what
        #[arg(long)]
        tree: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one: what it is promised, what it has had, what is not guaranteed
    #[command(after_help = "Examples:
  tombolo reserve show player
  tombolo reserve show run/r1 --json")]
    Show {
        /// NAME, DC/NAME or run/NAME
        name: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Promise one something else; what is not said stays
    #[command(after_help = "Examples:
  tombolo reserve set player --budget 8ms
  tombolo reserve set player --budget 8ms --period 20ms --network 2mbit")]
    Set(SetArgs),
    /// The capacity of the node for reservations; without an option, show it
    #[command(after_help = "Examples:
  tombolo reserve node
  tombolo reserve node --processors 2-3 --policy earliest-deadline
  tombolo reserve node --link eth0=100mbit")]
    Node(NodeArgs),
    /// Say how all promises add up: who may take how long, what keeps them, and why
    Explain {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run all promises in virtual time, and say whether anybody would be late
    #[command(after_help = "Examples:
  tombolo reserve simulate
  tombolo reserve simulate --over 10s --json")]
    Simulate {
        /// How long
        #[arg(long, value_name = "TIME", default_value = "1s", value_parser = nanos, allow_hyphen_values = true)]
        over: u64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Watch what everybody is promised, uses and misses, and what adapts it: anew each second, on
    /// a terminal
    #[command(after_help = "Examples:
  tombolo reserve watch
  tombolo reserve watch --once --json")]
    Watch {
        /// Once, over one second
        #[arg(long)]
        once: bool,
        /// Print JSON, once
        #[arg(long)]
        json: bool,
    },
    /// Draw who ran when on which processor, with budgets, misses, and what was changed and why
    #[command(after_help = "Examples:
  tombolo reserve timeline -o timeline.svg
  tombolo reserve timeline -o timeline.svg --last 30s")]
    Timeline {
        /// The SVG file
        #[arg(short, long, value_name = "FILE")]
        output: std::path::PathBuf,
        /// How much of the past
        #[arg(long, value_name = "TIME", default_value = "120s", value_parser = nanos, allow_hyphen_values = true)]
        last: u64,
    },
    /// Hold all processes of one; its promise stays
    Suspend {
        /// NAME, DC/NAME or run/NAME
        name: String,
    },
    /// Let them go on
    Resume {
        /// NAME, DC/NAME or run/NAME
        name: String,
    },
    /// Run a command that is promised something, with all that it starts
    #[command(after_help = "Examples:
  tombolo reserve run --budget 5ms --period 20ms -- ffmpeg -i in.mkv out.mp4
  tombolo reserve run --name build --budget 50ms --period 100ms --memory 1GiB -- make
  tombolo reserve run --strict --budget 5ms --period 20ms -- ./control-loop
  tombolo reserve run --budget 8ms --period 20ms --policy rate-monotonic \\
      --job control=1ms/20ms,deadline=10ms --job 'log=4ms/80ms,thread=logger*' -- ./robot

The promise ends with the last of its processes. The exit code is the command's.")]
    Run(RunArgs),
}

/// The resources that may be promised.
#[derive(Debug, Clone, Default, Args)]
pub struct WhatArgs {
    /// Processor time in each period
    #[arg(long, value_name = "TIME", value_parser = nanos, allow_hyphen_values = true)]
    pub budget: Option<u64>,
    /// How often it is renewed
    #[arg(long, value_name = "TIME", value_parser = nanos, allow_hyphen_values = true)]
    pub period: Option<u64>,
    /// By when in each period it is had (default: its end)
    #[arg(long, value_name = "TIME", value_parser = nanos, allow_hyphen_values = true)]
    pub deadline: Option<u64>,
    /// Rate of the node's link, as 5mbit
    #[arg(long, value_name = "RATE", value_parser = rate, allow_hyphen_values = true)]
    pub network: Option<u64>,
    /// The class that says who gets first the rest of the link: gold, silver or best-effort
    #[arg(long, value_name = "CLASS", value_parser = class)]
    pub class: Option<NetworkClass>,
    /// Memory that is left to it
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub memory: Option<u64>,
    /// Disk, in bytes per second
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub io_bytes: Option<u64>,
    /// Disk, in operations per second
    #[arg(long, value_name = "COUNT", value_parser = count, allow_hyphen_values = true)]
    pub io_operations: Option<u64>,
    /// The order of its jobs in its time: round-robin, rate-monotonic, deadline-monotonic or
    /// earliest-deadline
    #[arg(long, value_name = "POLICY", value_parser = job_policy)]
    pub policy: Option<JobPolicy>,
    /// A job that is to be in time: NAME=BUDGET/PERIOD, and after commas deadline=TIME,
    /// process=PATTERN or thread=PATTERN (default: the process NAME)
    #[arg(long, value_name = "JOB", value_parser = job)]
    pub job: Vec<(String, Job)>,
    /// The mechanism that keeps the processor time: auto, bandwidth, table or deadline
    #[arg(long, value_name = "ENFORCEMENT", value_parser = enforcement)]
    pub enforce: Option<Enforce>,
    /// The processes' state when the budget is used up: held, idle (take what nobody wants) or fair
    #[arg(long, value_name = "WORD", value_parser = outside)]
    pub outside: Option<Outside>,
    /// Refuse where not all of it can be guaranteed
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// NAME, DC/NAME or run/NAME
    pub name: String,
    #[command(flatten)]
    pub what: WhatArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Its name, after `run/` (default: a number)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub what: WhatArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Debug, Args)]
pub struct NodeArgs {
    /// The processors that are for reservations, as 0-1,4
    #[arg(long, value_name = "LIST", value_parser = processors)]
    pub processors: Option<Processors>,
    /// The order of priorities: rate-monotonic, deadline-monotonic or earliest-deadline
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub policy: Option<PolicyWord>,
    /// The cost of one switch from one to another
    #[arg(long, value_name = "TIME", value_parser = nanos, allow_hyphen_values = true)]
    pub switch: Option<u64>,
    /// The link, and what it carries each way; none: there is none
    #[arg(long, value_name = "DEVICE=RATE", value_parser = link)]
    pub link: Option<LinkChoice>,
    /// The rate at which domains of this node may send to each other over its loopback interface;
    /// classes are kept there, too. none: they are not
    #[arg(long, value_name = "RATE", value_parser = between, allow_hyphen_values = true)]
    pub between: Option<RateChoice>,
    /// Memory for reservations
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub memory: Option<u64>,
    /// Disk for reservations, in bytes per second
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub io_bytes: Option<u64>,
    /// Disk for reservations, in operations per second
    #[arg(long, value_name = "COUNT", value_parser = count, allow_hyphen_values = true)]
    pub io_operations: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct AdaptArgs {
    /// The domain that gives: NAME, DC/NAME or run/NAME
    pub from: String,
    /// The domain that gets
    pub to: String,
    /// Processor time in each period of who gives; the other gets the same share of its own
    #[arg(long, value_name = "TIME", value_parser = nanos, allow_hyphen_values = true)]
    pub cpu: Option<u64>,
    /// Rate of the link
    #[arg(long, value_name = "RATE", value_parser = rate, allow_hyphen_values = true)]
    pub network: Option<u64>,
    /// Memory
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub memory: Option<u64>,
    /// Disk, in bytes per second
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub io_bytes: Option<u64>,
    /// Disk, in operations per second
    #[arg(long, value_name = "COUNT", value_parser = count, allow_hyphen_values = true)]
    pub io_operations: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A link, or none.
#[derive(Debug, Clone)]
pub struct LinkChoice(Option<LinkSettings>);

/// A rate, or none.
#[derive(Debug, Clone, Copy)]
pub struct RateChoice(Option<u64>);

/// A list of processors.
#[derive(Debug, Clone)]
pub struct Processors(Vec<usize>);

/// Nobody can be promised less than nothing, nor have something taken away by a minus sign.
fn not_negative(text: &str) -> Result<(), String> {
    let is_negative = text.trim_start().starts_with(['-', '\u{2212}']);
    let words =
        "it is less than nothing: say how much it is to have; `tombolo adapt` moves some of it to another";
    if is_negative { Err(words.into()) } else { Ok(()) }
}

pub(super) fn nanos(text: &str) -> Result<u64, String> {
    not_negative(text)?;
    let found = parse_nanos(text).ok_or("a whole number and its unit: 16ms, 5680us, 250000ns, 1s")?;
    if found == 0 { Err("0 is nothing; leave it out".into()) } else { Ok(found) }
}

pub(super) fn rate(text: &str) -> Result<u64, String> {
    not_negative(text)?;
    let found =
        parse_rate(text).ok_or("a whole number of bits per second and its unit: 800kbit, 5mbit, 1gbit")?;
    if found == 0 { Err("0 is nothing; leave it out".into()) } else { Ok(found) }
}

fn size(text: &str) -> Result<u64, String> {
    not_negative(text)?;
    parse_size(text).ok_or_else(|| "a whole number and its unit: 64MiB, 10MB, 2GiB".into())
}

fn count(text: &str) -> Result<u64, String> {
    not_negative(text)?;
    text.parse().map_err(|_| "a whole number".into())
}

fn class(text: &str) -> Result<NetworkClass, String> {
    let found = NetworkClass::ALL.into_iter().find(|class| class.as_str() == text);
    found.ok_or_else(|| "gold, silver or best-effort".into())
}

fn job_policy(text: &str) -> Result<JobPolicy, String> {
    let found = JobPolicy::ALL.into_iter().find(|word| word.as_str() == text);
    found.ok_or_else(|| "round-robin, rate-monotonic, deadline-monotonic or earliest-deadline".into())
}

fn job(text: &str) -> Result<(String, Job), String> {
    let form = || "NAME=BUDGET/PERIOD, as decode=4ms/40ms,process=ffmpeg*".to_owned();
    let (name, rest) = text.split_once('=').ok_or_else(form)?;
    Name::parse(name).map_err(|error| format!("{name:?} can't be a name: {error}"))?;
    let mut words = rest.split(',');
    let (budget, period) = words.next().and_then(|word| word.split_once('/')).ok_or_else(form)?;
    let (budget_ns, period_ns) = (nanos(budget)?, nanos(period)?);
    let mut job = Job { who: Who::Process(name.to_owned()), budget_ns, period_ns, deadline_ns: period_ns };
    for word in words {
        match word.split_once('=') {
            Some(("deadline", time)) => job.deadline_ns = nanos(time)?,
            Some(("process", pattern)) => job.who = Who::Process(pattern.to_owned()),
            Some(("thread", pattern)) => job.who = Who::Thread(pattern.to_owned()),
            _ => return Err(format!("{word:?} says nothing of a job; say deadline=, process= or thread=")),
        }
    }
    job.who.check()?;
    job.task().map_err(|error| error.to_string())?;
    Ok((name.to_owned(), job))
}

fn enforcement(text: &str) -> Result<Enforce, String> {
    let found = Enforce::ALL.into_iter().find(|word| word.as_str() == text);
    found.ok_or_else(|| "auto, bandwidth, table or deadline".into())
}

fn outside(text: &str) -> Result<Outside, String> {
    let found = Outside::ALL.into_iter().find(|word| word.as_str() == text);
    found.ok_or_else(|| "held, idle or fair".into())
}

fn policy(text: &str) -> Result<PolicyWord, String> {
    PolicyWord::parse(text).ok_or_else(|| "rate-monotonic, deadline-monotonic or earliest-deadline".into())
}

fn processors(text: &str) -> Result<Processors, String> {
    node::ranges(text).map(Processors).ok_or_else(|| "numbers and ranges, as 0-1,4".into())
}

fn link(text: &str) -> Result<LinkChoice, String> {
    if text == "none" {
        return Ok(LinkChoice(None));
    }
    let (device, carries) = text.split_once('=').ok_or("a device and its rate, as eth0=100mbit")?;
    Ok(LinkChoice(Some(LinkSettings { device: device.to_owned(), rate_bits: rate(carries)? })))
}

fn between(text: &str) -> Result<RateChoice, String> {
    if text == "none" { Ok(RateChoice(None)) } else { rate(text).map(|rate| RateChoice(Some(rate))) }
}

/// Runs one of its commands.
pub fn run(place: &PlaceArgs, command: &ReserveCommand) -> Result<(), Failure> {
    match command {
        ReserveCommand::Ls { tree, json } => list(place, *tree, *json),
        ReserveCommand::Show { name, json } => {
            let row: VtmRow = wait(client(place)?.get(&format!("reserve/show/{name}")))??;
            if *json { print_json(&row) } else { print(&shown(&row)) }
        }
        ReserveCommand::Set(arguments) => set(place, arguments),
        ReserveCommand::Node(arguments) => node_settings(place, arguments),
        ReserveCommand::Explain { json } => {
            let lines: Vec<String> = wait(client(place)?.get("reserve/explain"))??;
            if *json { print_json(&lines) } else { print(&(lines.join("\n") + "\n")) }
        }
        ReserveCommand::Simulate { over, json } => simulate(place, *over, *json),
        ReserveCommand::Watch { once, json } => watch::run(place, *once, *json),
        ReserveCommand::Timeline { output, last } => timeline::run(place, output, *last / 1_000_000),
        ReserveCommand::Suspend { name } => suspend(place, name, "suspend"),
        ReserveCommand::Resume { name } => suspend(place, name, "resume"),
        ReserveCommand::Run(arguments) => start(place, arguments),
    }
}

fn list(place: &PlaceArgs, tree: bool, json: bool) -> Result<(), Failure> {
    let book: Book = wait(client(place)?.get("reserve"))??;
    if json {
        return print_json(&book);
    }
    if tree {
        return print(&drawn(&book));
    }
    table(&book)
}

/// Prints the reservation table.
pub(super) fn table(book: &Book) -> Result<(), Failure> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    let cells: Vec<Vec<String>> = book
        .vtms
        .iter()
        .map(|row| {
            let state = match (row.suspended, row.in_force) {
                (true, _) => "suspended",
                (false, true) => "kept",
                (false, false) => "not there",
            };
            vec![
                row.name.clone(),
                state.to_owned(),
                or_dash(
                    row.reserve
                        .cpu
                        .map(|cpu| format!("{} / {}", nanos_text(cpu.budget_ns), nanos_text(cpu.period_ns))),
                ),
                or_dash(row.processor.map(|number| number.to_string())),
                or_dash(row.response_ns.map(|ns| Span(ns).to_string())),
                or_dash(
                    row.reserve
                        .network
                        .map(|share| format!("{} {}", rate_text(share.rate_bits), share.class.as_str())),
                ),
                or_dash(row.reserve.memory_bytes.map(bytes)),
                row.caveats.len().to_string(),
            ]
        })
        .collect();
    print_table(&["NAME", "STATE", "CPU", "ON", "AT WORST", "NETWORK", "MEMORY", "CAVEATS"], &cells)
}

/// All resources, each below those that stand on it.
fn drawn(book: &Book) -> String {
    let known: BTreeMap<u64, _> = book.resources.iter().map(|row| (row.id, row)).collect();
    let mut text = String::new();
    let mut waiting: Vec<(u64, usize)> =
        book.resources.iter().rev().filter(|row| row.kind == "machine").map(|row| (row.id, 0)).collect();
    while let Some((id, depth)) = waiting.pop() {
        let Some(row) = known.get(&id) else { continue };
        text += &format!("{}{} {}\n", "  ".repeat(depth), row.kind, row.name);
        waiting.extend(row.below.iter().rev().map(|below| (*below, depth + 1)));
    }
    if text.is_empty() { "nothing is promised\n".to_owned() } else { text }
}

fn shown(row: &VtmRow) -> String {
    let mut lines = vec![row.name.clone()];
    lines.extend(row.reserve.lines().into_iter().map(|line| format!("promised   {line}")));
    let state = match (row.suspended, row.in_force) {
        (true, _) => "suspended: its processes are held",
        (false, true) => "in force",
        (false, false) => "not in force: none of its processes is there",
    };
    lines.push(format!("state      {state}"));
    let because = row.kept_because.as_deref().unwrap_or_default();
    lines.extend(row.kept_by.as_ref().map(|how| format!("kept by    {how}: {because}")));
    lines.extend(row.processor.map(|number| format!("processor  {number}")));
    lines.extend(row.response_ns.map(|ns| format!("at worst   {} after its period began", Span(ns))));
    lines.extend(row.jobs.iter().map(JobRow::line));
    lines.extend(row.cpu_us.map(|us| format!("has had    {us} us of processor time")));
    if let Some(dispatched) = &row.dispatched {
        lines.extend(fares(row.kept_by.as_deref(), dispatched));
    }
    lines.extend(row.throttled_periods.map(|count| format!("wanted more in {count} periods")));
    lines.extend(row.memory_bytes.map(|count| format!("memory     {}", bytes(count))));
    lines.extend(row.memory_pressure_us.map(|us| format!("pressure   {us} us waited for memory")));
    lines.extend(row.network_sent_bytes.map(|count| format!("sent       {}", bytes(count))));
    lines.extend(row.network_received_bytes.map(|count| format!("received   {}", bytes(count))));
    lines.extend(row.network_between_bytes.map(|count| format!("to others  {} on this node", bytes(count))));
    lines.extend(row.caveats.iter().map(|caveat| format!("not guaranteed: {caveat}")));
    lines.join("\n") + "\n"
}

/// Returns its dispatcher's counters, in words.
fn fares(kept_by: Option<&str>, row: &DispatchedRow) -> Vec<String> {
    let mut lines = vec![
        format!("processes  {} with {} threads", row.jobs, row.threads),
        format!("set apart  {} us, of which and beside which {} us were used", row.offered_us, row.used_us),
    ];
    if kept_by == Some("table") {
        lines.push(format!(
            "slots      {}, {} of them late, the latest by {} us",
            row.slots, row.late_slots, row.worst_late_us
        ));
    }
    lines.extend(row.notes.iter().map(|note| format!("note       {note}")));
    lines
}

/// Returns the wanted reservation: the present one with the changes.
fn wanted(now: Option<Reserve>, what: &WhatArgs) -> Result<Reserve, Failure> {
    let mut reserve = now.unwrap_or_default();
    if what.budget.is_some() || what.period.is_some() || what.deadline.is_some() {
        let had = reserve.cpu;
        let need = |word: &str| Failure::misuse(format!("processor time needs --{word}"));
        let budget_ns = what.budget.or(had.map(|cpu| cpu.budget_ns)).ok_or_else(|| need("budget"))?;
        let period_ns = what.period.or(had.map(|cpu| cpu.period_ns)).ok_or_else(|| need("period"))?;
        let kept = had.filter(|cpu| cpu.deadline_ns != cpu.period_ns).map(|cpu| cpu.deadline_ns);
        let deadline_ns = what.deadline.or(kept).unwrap_or(period_ns);
        let share = ProcessorShare {
            budget_ns,
            period_ns,
            deadline_ns,
            processor: had.and_then(|cpu| cpu.processor),
        };
        share.task().map_err(|error| Failure::misuse(error.to_string()))?;
        reserve.cpu = Some(share);
    }
    if what.network.is_some() || what.class.is_some() {
        let had = reserve.network;
        let rate = what.network.or(had.map(|share| share.rate_bits));
        let rate_bits = rate.ok_or_else(|| Failure::misuse("a class of the network needs --network RATE"))?;
        let class = what.class.or(had.map(|share| share.class)).unwrap_or_default();
        let burst_bytes = had.map_or(BURST_BYTES, |share| share.burst_bytes);
        let ceiling_bits = had.and_then(|share| share.ceiling_bits).map(|bits| bits.max(rate_bits));
        reserve.network = Some(NetworkShare { rate_bits, ceiling_bits, burst_bytes, class });
    }
    reserve.memory_bytes = what.memory.or(reserve.memory_bytes);
    if what.io_bytes.is_some() || what.io_operations.is_some() {
        let had = reserve.io.unwrap_or(DiskShare { bytes: None, operations: None });
        reserve.io = Some(DiskShare {
            bytes: what.io_bytes.or(had.bytes),
            operations: what.io_operations.or(had.operations),
        });
    }
    reserve.strict |= what.strict;
    reserve.enforce = what.enforce.unwrap_or(reserve.enforce);
    reserve.outside = what.outside.unwrap_or(reserve.outside);
    reserve.policy = what.policy.unwrap_or(reserve.policy);
    if reserve.policy.is_round_robin() {
        reserve.jobs.clear();
    }
    if !what.job.is_empty() {
        reserve.jobs = what.job.iter().map(|(name, job)| (name.clone(), job.clone())).collect();
        if reserve.jobs.len() < what.job.len() {
            return Err(Failure::misuse("two jobs have one name"));
        }
    }
    reserve.check().map_err(|(why, help)| Failure::misuse(why).help(help))?;
    let has_any = reserve.cpu.is_some() || reserve.network.is_some() || reserve.io.is_some();
    if !has_any && reserve.memory_bytes.is_none() {
        return Err(Failure::misuse("nothing is asked for")
            .help("say what: --budget 5ms --period 20ms, --network 5mbit, --memory 64MiB, --io-bytes 10MB"));
    }
    Ok(reserve)
}

fn set(place: &PlaceArgs, arguments: &SetArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let row: VtmRow = wait(client.get(&format!("reserve/show/{}", arguments.name)))??;
    let reserve = wanted(Some(row.reserve), &arguments.what)?;
    let request = AdaptRequest { changes: vec![Change { name: row.name, reserve }] };
    let adapted: Adapted = wait(client.post("reserve/adapt", &request))??;
    tell(&adapted, arguments.json)
}

/// `tombolo adapt`.
pub fn adapt(place: &PlaceArgs, arguments: &AdaptArgs) -> Result<(), Failure> {
    let request = MoveRequest {
        from: arguments.from.clone(),
        to: arguments.to.clone(),
        cpu_ns: arguments.cpu.unwrap_or(0),
        network_bits: arguments.network.unwrap_or(0),
        memory_bytes: arguments.memory.unwrap_or(0),
        io_bytes: arguments.io_bytes.unwrap_or(0),
        io_operations: arguments.io_operations.unwrap_or(0),
    };
    let adapted: Adapted = wait(client(place)?.post("reserve/move", &request))??;
    tell(&adapted, arguments.json)
}

fn tell(adapted: &Adapted, json: bool) -> Result<(), Failure> {
    if json {
        return print_json(adapted);
    }
    let mut lines = adapted.steps.clone();
    if lines.is_empty() {
        lines.push("nothing to do".into());
    }
    let effect = adapted.effect_us.map_or_else(
        || "nobody of them wanted to run, so it has not been seen to take effect".to_owned(),
        |us| format!("in effect after {us} us"),
    );
    lines.push(format!(
        "decided in {} us, committed in {} us; {effect}",
        adapted.decide_us, adapted.commit_us
    ));
    lines.extend(adapted.caveats.iter().map(|caveat| format!("not guaranteed: {caveat}")));
    print(&(lines.join("\n") + "\n"))
}

fn node_settings(place: &PlaceArgs, arguments: &NodeArgs) -> Result<(), Failure> {
    let client = client(place)?;
    let now: NodeSettings = wait(client.get("reserve/node"))??;
    let wanted = NodeSettings {
        processors: arguments.processors.as_ref().map_or(now.processors.clone(), |list| list.0.clone()),
        policy: arguments.policy.unwrap_or(now.policy),
        switch_ns: arguments.switch.unwrap_or(now.switch_ns),
        link: arguments.link.clone().map_or(now.link.clone(), |choice| choice.0),
        between_bits: arguments.between.map_or(now.between_bits, |choice| choice.0),
        memory_bytes: arguments.memory.unwrap_or(now.memory_bytes),
        disk_bytes: arguments.io_bytes.unwrap_or(now.disk_bytes),
        disk_operations: arguments.io_operations.unwrap_or(now.disk_operations),
    };
    let node = if wanted == now { now } else { wait(client.post("reserve/node", &wanted))?? };
    if arguments.json {
        return print_json(&node);
    }
    let numbers: Vec<String> = node.processors.iter().map(ToString::to_string).collect();
    let link = node.link.as_ref().map_or_else(
        || "none; --link DEVICE=RATE says one".to_owned(),
        |link| format!("{}, {}", link.device, rate_text(link.rate_bits)),
    );
    let between = node.between_bits.map_or_else(|| "not kept; --between RATE keeps it".to_owned(), rate_text);
    print(&format!(
        "processors {}\npolicy     {}\nswitch     {}\nlink       {link}\nbetween    {between}\nmemory     {}\ndisk       {} a second, {} operations a second\n",
        numbers.join(", "),
        node.policy.as_str(),
        nanos_text(node.switch_ns),
        bytes(node.memory_bytes),
        bytes(node.disk_bytes),
        node.disk_operations
    ))
}

fn suspend(place: &PlaceArgs, name: &str, verb: &str) -> Result<(), Failure> {
    let row: VtmRow =
        wait(client(place)?.post(&format!("reserve/{verb}"), &Named { name: name.to_owned() }))??;
    print(&format!("{} is {}\n", row.name, if row.suspended { "suspended" } else { "running" }))
}

/// Runs what is promised on each processor in virtual time, everybody always wanting all of it.
fn simulate(place: &PlaceArgs, over_ns: u64, json: bool) -> Result<(), Failure> {
    if over_ns > MAX_SIMULATION_NS {
        return Err(Failure::misuse(format!("at most {} are simulated", nanos_text(MAX_SIMULATION_NS))));
    }
    let book: Book = wait(client(place)?.get("reserve"))??;
    let costs = Costs::new(book.node.switch_ns).map_err(|error| Failure::new(error.to_string()))?;
    let rule = Rule { policy: Policy::from(book.node.policy), costs };
    let mut on: BTreeMap<usize, Vec<(String, Task)>> = BTreeMap::new();
    for row in &book.vtms {
        if let (Some(processor), Some(Ok(task))) = (row.processor, row.reserve.cpu.map(|cpu| cpu.task())) {
            on.entry(processor).or_default().push((row.name.clone(), task));
        }
    }
    let mut results = Vec::new();
    for (processor, all) in &on {
        let tasks: Vec<Task> = all.iter().map(|(_, task)| *task).collect();
        let (periods, late) = simulated(rule, &tasks, *processor, over_ns)?;
        let mut row = serde_json::json!({ "processor": processor, "machines": all.len(), "periods": periods, "late": late });
        let on_table = |name: &String| book.table.as_ref().is_some_and(|table| table.vtms.contains(name));
        let tasks: Vec<Task> = all.iter().filter(|(name, _)| on_table(name)).map(|(_, task)| *task).collect();
        if let Some(table) = book.table.as_ref().filter(|_| !tasks.is_empty()) {
            // They come before all others, with what their switches cost.
            let costs = Costs::new(table.switch_ns).map_err(|error| Failure::new(error.to_string()))?;
            let (periods, late) = simulated(Rule { costs, ..rule }, &tasks, *processor, over_ns)?;
            row["table"] = serde_json::json!({
                "machines": tasks.len(), "periods": periods, "late": late, "switch_ns": table.switch_ns,
                "asked_ppm": Means::asked_ppm(&tasks), "most_ppm": table.most_ppm
            });
        }
        results.push(row);
    }
    if json {
        return print_json(&results);
    }
    if results.is_empty() {
        return print("nothing is promised of any processor\n");
    }
    let mut lines: Vec<String> = results.iter().flat_map(|row| simulated_lines(row, over_ns)).collect();
    let without = book.table.iter().flat_map(|table| &table.without);
    lines.extend(without.map(|(name, why)| format!("{name}: kept by bandwidth and not by table: {why}")));
    let without = book.deadline.iter().flat_map(|deadline| &deadline.without);
    lines.extend(without.map(|(name, why)| format!("{name}: kept by bandwidth and not by deadline: {why}")));
    print(&(lines.join("\n") + "\n"))
}

/// Periods of these tasks on a processor in that time, and how many of them are late.
fn simulated(rule: Rule, tasks: &[Task], processor: usize, over_ns: u64) -> Result<(u64, usize), Failure> {
    let periods: u64 = tasks.iter().map(|task| over_ns.div_ceil(task.period_ns())).sum();
    if periods > MAX_SIMULATED {
        let words = format!(
            "{periods} periods would be simulated on processor {processor}, and {MAX_SIMULATED} are the most"
        );
        return Err(Failure::misuse(words).help("give a shorter time: --over 1s"));
    }
    let scenario = Scenario {
        rule,
        tasks,
        arrivals: Arrivals::Together,
        given: Stretch::Whole,
        until_ns: over_ns,
        stop_when_late: false,
        record: false,
    };
    Ok((periods, scenario.run().late.len()))
}

/// Returns the outcome on one processor, in words.
fn simulated_lines(row: &serde_json::Value, over_ns: u64) -> Vec<String> {
    let number =
        |row: &serde_json::Value, key: &str| row.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let mut lines = vec![format!(
        "processor {}: {} periods of {} machines in {}, {} late",
        number(row, "processor"),
        number(row, "periods"),
        number(row, "machines"),
        nanos_text(over_ns),
        number(row, "late")
    )];
    lines.extend(row.get("table").map(|table| {
        format!(
            "  by its table: {} periods of {} machines, {} late; {} of at most {}, a switch is charged {}",
            number(table, "periods"),
            number(table, "machines"),
            number(table, "late"),
            Percent(number(table, "asked_ppm")),
            Percent(number(table, "most_ppm")),
            Span(number(table, "switch_ns"))
        )
    }));
    lines
}

/// Becomes the command, in a cgroup to which something is promised.
fn start(place: &PlaceArgs, arguments: &RunArgs) -> Result<(), Failure> {
    let Some((program, words)) = arguments.command.split_first() else {
        return Err(Failure::misuse("there is no command"));
    };
    let reserve = wanted(None, &arguments.what)?;
    let request = RunRequest { name: arguments.name.clone(), pid: std::process::id(), reserve };
    let ran: Ran = wait(client(place)?.post("reserve/run", &request))??;
    for caveat in &ran.caveats {
        eprintln!("warning: {}: not guaranteed: {caveat}", ran.name);
    }
    let error = Command::new(program).args(words).exec();
    // As `env` and `nice` say it: 127 where there is none, 126 where it is there and can't be run.
    let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    Err(Failure { code, ..Failure::new(format!("can't run {program}: {error}")) })
}
