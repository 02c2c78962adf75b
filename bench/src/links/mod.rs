//! Messages over a link between two nodes, beside raw sockets, gRPC and zenoh: round trips, streams
//! of one pair and of several that share the link, bulk. The nodes are two network namespaces,
//! joined by a veth. Links are always encrypted; the others say so where they are.
//!
//! A leader and a follower, processes of their own that are started afresh for each launch, make
//! what carries the messages anew for each repetition. A message's bytes count up: they get smaller
//! well.

pub mod copies;
pub mod means;
pub mod plan;
pub mod promises;
pub mod transport;

use crate::channel::stage::{FOLLOW_ADDRESS, Network, note};
use crate::channel::task::{Means as Chosen, Role, Tale, Task};
use crate::channel::{either, of_window, two_processors};
use crate::choice::Choice;
use crate::core_line;
use crate::ipc::stage::SWEEP;
use crate::machine::{check_files, finish, inside};
use crate::promise::{Promise, Verdict};
use crate::report::{COLUMNS, Column};
use crate::results::{Condition, Repetition, Results, rotated};
use crate::scenario::{Arguments, BenchError, Scenario};
use crate::undo::Undo;
use crate::worker::Worker;
use means::Means;
use plan::{Arm, CASES, Case, MTU, Plan};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use trust::Authority;

/// The worker with what is ours and the kernel's.
const OURS: &str = "link-worker";
/// The worker with what is other people's.
const PEERS: &str = "ipc-peer";
/// Ends whatever is in a network namespace: proxies outlive whoever started them.
const END_ALL: &str = "for process in /proc/[0-9]*; do \
    [ \"$(readlink \"$process/ns/net\" 2>/dev/null)\" = \"$1\" ] && kill -KILL \"${process#/proc/}\" 2>/dev/null; done; true";
/// The names of the two nodes.
const NODES: [&str; 2] = ["lead", "follow"];

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Link;

impl Scenario for Link {
    fn name(&self) -> &'static str {
        "link"
    }

    fn about(&self) -> &'static str {
        "messages over a link between two nodes: round trips, streams, bulk; beside raw TCP, TLS, gRPC and zenoh"
    }

    fn promises(&self) -> &'static [Promise] {
        &promises::PROMISES
    }

    fn base(&self, condition: &Condition) -> &'static str {
        match Case::of(condition) {
            Some(case) if case.arms().contains(&Arm::Tcp) => Arm::Tcp.name(),
            _ => Arm::Link.name(),
        }
    }

    fn rank(&self, condition: &Condition, arm: &str) -> usize {
        let arms = Case::of(condition).map_or(&[][..], Case::arms);
        arms.iter().position(|found| found.name() == arm).unwrap_or(arms.len())
    }

    fn columns(&self, condition: &Condition) -> &'static [Column] {
        Case::of(condition).map_or(&COLUMNS, Case::columns)
    }

    fn choices(&self) -> Option<Vec<(Condition, Vec<&'static str>)>> {
        let choices =
            CASES.iter().map(|case| (case.condition(), case.arms().iter().map(|arm| arm.name()).collect()));
        Some(choices.collect())
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "logic/lane", "logic/link", "io/transport", "services/proxy"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["ip", "-Version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let plan = if arguments.quick { Plan::quick() } else { Plan::full() };
        let launches = arguments.launches.unwrap_or(plan.launches).max(1);
        measure(&Plan { launches, ..plan }, &arguments.choice, &arguments.binary, progress)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        promises::verdicts(results)
    }
}

/// Runs a plan. The workers lie beside `binary`.
///
/// # Errors
/// As [`Scenario::measure`].
pub fn measure(
    plan: &Plan,
    choice: &Choice,
    binary: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Results, BenchError> {
    let mut results = Results::default();
    for launch in 0..plan.launches {
        let mut stage = Stage::make(binary, choice, &mut results.notes)?;
        for case in CASES.into_iter().filter(|case| choice.takes(&case.condition())) {
            progress(&format!("launch {} of {}, {}", launch + 1, plan.launches, case.condition()));
            let takes = |arm: &Arm| choice.takes_arm(arm.name()) && stage.has(case, *arm);
            let arms: Vec<Arm> = case.arms().iter().copied().filter(takes).collect();
            for round in 0..plan.rounds {
                for arm in rotated(&arms, launch + round) {
                    match stage.repeat(plan, case, arm, [launch, round]) {
                        Ok(repetition) => results.repetitions.push(repetition),
                        Err(error) => stage.excuse(case, arm, error, &mut results)?,
                    }
                }
            }
        }
        stage.end()?;
    }
    Ok(results)
}

/// The parties that are there to take part.
struct Has {
    /// Whether other people's middleware is there.
    peers: bool,
    /// The program whose role a proxy is.
    proxies: bool,
    /// TIPC from node to node.
    tipc: bool,
}

/// One launch.
struct Stage {
    // The workers end before what they live in does: fields are dropped in this order.
    /// With what is ours, and with what is other people's.
    teams: [Option<[Worker; 2]>; 2],
    network: Network,
    undo: Option<Undo>,
    binary: PathBuf,
    folder: PathBuf,
    has: Has,
    /// Of each node, where there are two: what is in a node shares it.
    processors: Option<[u32; 2]>,
    meetings: u32,
    mtu: u32,
}

impl Stage {
    fn make(binary: &Path, choice: &Choice, notes: &mut Vec<String>) -> Result<Self, BenchError> {
        check_files(binary, &[OURS])?;
        let (mut undo, folder) = Undo::with_folder()?;
        certify(&folder).map_err(BenchError::io("making certificates for two nodes"))?;
        let network = Network::make()?;
        for node in [&network.lead, &network.follow] {
            let namespace = apart(node.id()).map_err(BenchError::io("looking at a namespace"))?;
            let command = ["sh", "-c", END_ALL, "sh", &namespace];
            undo.add(&command).map_err(BenchError::io("noting what to clean up"))?;
        }
        let has_proxies = binary.with_file_name(copies::PROGRAM).is_file();
        if !has_proxies {
            note(notes, format!("no copies by a link: `{}` is not beside `{OURS}`", copies::PROGRAM));
        }
        let has_peers = binary.with_file_name(PEERS).is_file();
        if !has_peers {
            let [grpc, tls, zenoh] = [Arm::Grpc, Arm::GrpcTls, Arm::Zenoh].map(Arm::name);
            let what = format!("`{PEERS}` is not beside `{OURS}`: run `make bench-peers`");
            note(notes, format!("no arms `{grpc}`, `{tls}`, `{zenoh}`: {what}"));
        }
        let has_tipc = choice.takes_arm(Arm::Tipc.name()) && {
            let joined = network.join_by_tipc();
            if let Err(error) = &joined {
                note(notes, format!("no arm `{}`: {error}", Arm::Tipc.name()));
            }
            joined.is_ok()
        };
        let (undo, binary) = (Some(undo), binary.to_path_buf());
        let has = Has { peers: has_peers, proxies: has_proxies, tipc: has_tipc };
        let processors = two_processors().ok();
        Ok(Self {
            teams: [None, None],
            network,
            undo,
            binary,
            folder,
            has,
            processors,
            meetings: 0,
            mtu: MTU,
        })
    }

    fn has(&self, case: Case, arm: Arm) -> bool {
        let is_ours = matches!(arm.way(), means::Way::Link { .. });
        (self.has.peers || !arm.is_peer())
            && (self.has.tipc || arm != Arm::Tipc)
            && (self.has.proxies || !(is_ours && case.has_proxies()))
    }

    /// The two workers of an arm, which are ready.
    fn start(&self, arm: Arm) -> Result<[Worker; 2], BenchError> {
        let program = if arm.is_peer() { PEERS } else { OURS };
        let worker = |namespace: u32, name: &str| -> Result<Worker, BenchError> {
            let command: Command = inside(namespace, self.binary.with_file_name(program));
            let mut worker = Worker::start(format!("{program} ({name})"), command, &self.folder)?;
            worker.expect("ready")?;
            Ok(worker)
        };
        let [lead, follow] = NODES;
        Ok([worker(self.network.lead.id(), lead)?, worker(self.network.follow.id(), follow)?])
    }

    fn task(&self, plan: &Plan, case: Case, arm: Arm, role: Role) -> Result<Task, BenchError> {
        let [own, other] = if role == Role::Lead { NODES } else { [NODES[1], NODES[0]] };
        let address = FOLLOW_ADDRESS.parse().map_err(io_invalid)?;
        let means = Means {
            way: case.way(arm),
            pairs: case.pairs,
            address,
            identity: self.folder.join(own),
            peer: other.to_owned(),
            program: self.binary.with_file_name(copies::PROGRAM),
        };
        Ok(Task {
            role,
            means: Chosen::Link(means),
            work: case.work(plan.warm_up_ns, plan.window_ns),
            bytes: case.bytes,
            meeting: self.folder.join(format!("m{}", self.meetings)),
            processor: self.processors.map(|[lead, follow]| if role == Role::Lead { lead } else { follow }),
        })
    }

    fn repeat(
        &mut self,
        plan: &Plan,
        case: Case,
        arm: Arm,
        [launch, round]: [usize; 2],
    ) -> Result<Repetition, BenchError> {
        self.meetings += 1;
        if self.mtu != arm.mtu() {
            self.network.set_mtu(arm.mtu())?;
            self.mtu = arm.mtu();
        }
        let [lead_task, follow_task] =
            [self.task(plan, case, arm, Role::Lead)?, self.task(plan, case, arm, Role::Follow)?];
        let place = usize::from(arm.is_peer());
        if self.teams[place].is_none() {
            self.teams[place] = Some(self.start(arm)?);
        }
        let Some([lead, follow]) = &mut self.teams[place] else { return Err(io_invalid("no workers")) };
        follow.give(&follow_task)?;
        follow.expect("waiting")?;
        lead.give(&lead_task)?;
        either([lead.expect("primed"), follow.expect("primed")])?;
        let before_ns = core_line::round_trip_ns();
        follow.say("go")?;
        lead.say("go")?;
        let length = Duration::from_nanos(plan.warm_up_ns + plan.window_ns);
        let [lead, follow]: [Tale; 2] = either([lead.tale(length), follow.tale(Duration::ZERO)])?;
        let state = core_line::state(before_ns, core_line::round_trip_ns());
        Ok(Repetition {
            condition: case.condition(),
            arm: arm.name().into(),
            launch,
            round,
            state,
            operations: lead.operations,
            bytes: case.bytes as u64,
            failures: 0,
            window_s: lead.window_ns as f64 / 1e9,
            processor_ns: Some(of_window(&lead, lead.processor_ns + follow.processor_ns)),
            guest_ns: None,
            switches: Some(lead.switches + follow.switches),
            calls: None,
            latencies: lead.latencies,
        })
    }

    /// Excuses a failure of a foreign means: it may get stuck or die, is noted, and its workers
    /// start afresh. Ours and the kernel's may not.
    fn excuse(
        &mut self,
        case: Case,
        arm: Arm,
        error: BenchError,
        results: &mut Results,
    ) -> Result<(), BenchError> {
        self.teams[usize::from(arm.is_peer())] = None;
        if !arm.is_peer() || !matches!(error, BenchError::Protocol { .. }) {
            return Err(error);
        }
        note(&mut results.notes, format!("`{}` failed once, at {}: {error}", arm.name(), case.condition()));
        Ok(())
    }

    /// Cleans up; dropping does the same, and can't tell.
    fn end(mut self) -> Result<(), BenchError> {
        self.teams = [None, None];
        if self.has.peers {
            let mut sweep = Command::new(self.binary.with_file_name(PEERS));
            sweep.arg(SWEEP);
            finish(sweep)?;
        }
        let undo = self.undo.take();
        undo.map_or(Ok(()), Undo::finish).map_err(BenchError::io("cleaning up"))
    }
}

/// The network namespace of a process, which must not be ours.
fn apart(process: u32) -> std::io::Result<String> {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
    let namespace = of(&process.to_string())?;
    if namespace == of("self")? {
        return Err(std::io::Error::other("a node of the bench has no network of its own"));
    }
    Ok(namespace.to_string_lossy().into_owned())
}

fn io_invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> BenchError {
    BenchError::io("preparing a task")(std::io::Error::new(std::io::ErrorKind::InvalidInput, what))
}

/// A cluster of two nodes, and what they prove themselves with, in a folder each.
fn certify(folder: &Path) -> std::io::Result<()> {
    let now = SystemTime::now();
    let authority = Authority::new("bench", now).map_err(std::io::Error::other)?;
    for node in NODES {
        let identity = authority.identity(node, now).map_err(std::io::Error::other)?;
        let folder = folder.join(node);
        std::fs::create_dir(&folder)?;
        identity.store(&folder).map_err(std::io::Error::other)?;
    }
    Ok(())
}
