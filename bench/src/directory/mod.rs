//! Look-ups of names from 1 to 32 domains, through each entrance of the directory service, beside
//! domains that have a network and resolve by themselves. All ask the same dnsmasq for the same
//! names.
//!
//! Each worker asks as fast as it is answered, one question at a time, and stays on one processor
//! (domain 0 on the first, domain 1 on the second, ...). Everything else (frontends, the backend,
//! dnsmasq) runs where the scheduler puts it, in all arms alike.

pub mod guest;
pub mod naive;
pub mod place;
pub mod usage;
pub mod work;

use crate::core_line;
use crate::histogram::Latencies;
use crate::promise::{Promise, Relation, Verdict};
use crate::results::{Condition, Figure, Metric, Repetition, Results, rotated};
use crate::scenario::{Arguments, BenchError, Scenario};
use crate::worker::Worker;
use place::{PROGRAMS, Place, SUFFIX};
use std::collections::BTreeMap;
use std::time::Duration;
use sys::clock::clock_ns;
use work::{Tale, Task, Way};

/// Numbers of domains, and of short runs.
const DOMAINS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const QUICK_DOMAINS: [usize; 2] = [1, 8];
/// Fresh starts of everything.
const LAUNCHES: usize = 5;
const QUICK_LAUNCHES: usize = 1;
/// Rounds in each launch.
const ROUNDS: usize = 2;
/// The measured window of one repetition.
const WINDOW: Duration = Duration::from_millis(1_000);
const QUICK_WINDOW: Duration = Duration::from_millis(300);
/// Work before the window: schedulers and processors settle.
const WARM_UP: Duration = Duration::from_millis(150);
/// Between the word to begin and the beginning: the word has to reach every worker.
const LEAD: Duration = Duration::from_millis(40);
/// Different names: few enough for any cache, many enough that two workers seldom ask for the same
/// one at once.
const NAMES: usize = 64;
/// The figure behind `directory.memory.domain`.
const MEMORY: &str = "memory per further domain";

/// The modes of the cache that are compared.
const CACHES: [&str; 2] = ["none", "private"];

/// The arms of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    /// `/srv/dns/query`: write, read.
    Device,
    /// `getaddrinfo` with `libtombolo_preload.so`.
    Preload,
    /// `getaddrinfo` that asks the stub at 127.0.0.53.
    Stub,
    /// `getaddrinfo` of a domain with a network.
    Naive,
}

const ARMS: [Arm; 4] = [Arm::Device, Arm::Preload, Arm::Stub, Arm::Naive];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Preload => "preload",
            Self::Stub => "stub",
            Self::Naive => "naive",
        }
    }

    fn way(self) -> Way {
        match self {
            Self::Device => Way::Device("/srv/dns/query".into()),
            _ => Way::Library,
        }
    }

    fn start(self, place: &Place, number: usize) -> Result<Worker, BenchError> {
        if self == Self::Naive {
            let start = if place.has_guest() { naive::start_in_guest } else { naive::start };
            return start(place, number);
        }
        let library = if place.has_guest() { guest::LIBRARIES } else { PROGRAMS };
        let preload = format!("LD_PRELOAD={library}/libtombolo_preload.so");
        let options: &[&str] = if self == Self::Preload { &["-i", "-e", &preload] } else { &["-i"] };
        let mut command = place.exec(number, options);
        command.arg(format!("{PROGRAMS}/lookup-worker"));
        Worker::start(format!("{}/{number}", self.name()), command, place.folder())
    }
}

/// The promises; each compares with the naive arm under the same condition.
struct Comparison {
    promise: Promise,
    cache: &'static str,
    domains: usize,
    arm: Arm,
    metric: Metric,
}

const fn ratio(id: &'static str, about: &'static str, relation: Relation, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation, goal }
}

const NO_CACHE_P50: Promise = ratio(
    "directory.nocache.preload.p50.1",
    "no cache, one domain: p50 by preload, relative to naive",
    Relation::AtMost,
    1.0,
);
const NO_CACHE_RATE_8: Promise = ratio(
    "directory.nocache.preload.rate.8",
    "no cache, 8 domains: look-ups per second by preload, relative to naive",
    Relation::AtLeast,
    1.5,
);
const NO_CACHE_RATE_16: Promise = ratio(
    "directory.nocache.preload.rate.16",
    "no cache, 16 domains: look-ups per second by preload, relative to naive",
    Relation::AtLeast,
    1.5,
);
const NO_CACHE_RATE_32: Promise = ratio(
    "directory.nocache.preload.rate.32",
    "no cache, 32 domains: look-ups per second by preload, relative to naive",
    Relation::AtLeast,
    1.5,
);
const PRIVATE_P50: Promise = ratio(
    "directory.private.p50",
    "private cache, one domain: p50 by preload, relative to naive",
    Relation::AtMost,
    0.5,
);
const MEMORY_PER_DOMAIN: Promise = Promise {
    id: "directory.memory.domain",
    about: "memory of each further domain: its control group, its monitor, the daemon's growth",
    unit: "MiB",
    relation: Relation::AtMost,
    goal: 4.0,
};

const PROMISES: [Promise; 6] =
    [NO_CACHE_P50, NO_CACHE_RATE_8, NO_CACHE_RATE_16, NO_CACHE_RATE_32, PRIVATE_P50, MEMORY_PER_DOMAIN];

const COMPARISONS: [Comparison; 5] = [
    Comparison { promise: NO_CACHE_P50, cache: "none", domains: 1, arm: Arm::Preload, metric: Metric::P50 },
    Comparison {
        promise: NO_CACHE_RATE_8,
        cache: "none",
        domains: 8,
        arm: Arm::Preload,
        metric: Metric::Rate,
    },
    Comparison {
        promise: NO_CACHE_RATE_16,
        cache: "none",
        domains: 16,
        arm: Arm::Preload,
        metric: Metric::Rate,
    },
    Comparison {
        promise: NO_CACHE_RATE_32,
        cache: "none",
        domains: 32,
        arm: Arm::Preload,
        metric: Metric::Rate,
    },
    Comparison { promise: PRIVATE_P50, cache: "private", domains: 1, arm: Arm::Preload, metric: Metric::P50 },
];

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Directory;

impl Scenario for Directory {
    fn name(&self) -> &'static str {
        "directory"
    }

    fn about(&self) -> &'static str {
        "look-ups of names from many domains, by each entrance, beside domains that resolve by themselves"
    }

    fn promises(&self) -> &'static [Promise] {
        &PROMISES
    }

    fn base(&self, _: &Condition) -> &'static str {
        Arm::Naive.name()
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "bin/preload", "io/frontend", "io/entrance", "services/directory"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["dnsmasq", "--version"], &["runc", "--version"], &["ldd", "--version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let plan = Plan::new(arguments);
        let mut results = Results::default();
        for launch in 0..plan.launches {
            for cache in CACHES {
                progress(&format!(
                    "launch {} of {}, cache {cache}: starting the node",
                    launch + 1,
                    plan.launches
                ));
                let place = Place::make(&arguments.binary, None)?;
                let mut bench = Bench { plan: &plan, place, cache, launch, workers: BTreeMap::new() };
                bench.run(&mut results, progress)?;
                bench.place.end()?;
            }
        }
        Ok(results)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let naive = Arm::Naive.name();
        let compared = COMPARISONS.iter().filter_map(|comparison| {
            let condition = condition(comparison.cache, comparison.domains);
            let arm = comparison.arm.name();
            let estimate = results.ratio(&condition, arm, naive, comparison.metric)?;
            let samples = results.samples(&condition, arm) + results.samples(&condition, naive);
            Some(comparison.promise.judge(estimate, samples))
        });
        let measured = results.figures.iter().filter(|figure| figure.name == MEMORY).count() as u64;
        let memory = results.figure(MEMORY).map(|estimate| MEMORY_PER_DOMAIN.judge(estimate, measured));
        compared.chain(memory).collect()
    }
}

fn condition(cache: &str, domains: usize) -> Condition {
    Condition(vec![("cache", cache.to_owned()), ("domains", domains.to_string())])
}

/// The plan of a run.
#[derive(Debug)]
struct Plan {
    domains: Vec<usize>,
    launches: usize,
    rounds: usize,
    window: Duration,
    processors: Vec<u32>,
}

impl Plan {
    fn new(arguments: &Arguments) -> Self {
        let mut domains = match (arguments.domains.is_empty(), arguments.quick) {
            (false, _) => arguments.domains.clone(),
            (true, false) => DOMAINS.to_vec(),
            (true, true) => QUICK_DOMAINS.to_vec(),
        };
        domains.retain(|&count| count > 0);
        domains.sort_unstable();
        domains.dedup();
        Self {
            domains,
            launches: arguments
                .launches
                .unwrap_or(if arguments.quick { QUICK_LAUNCHES } else { LAUNCHES })
                .max(1),
            rounds: if arguments.quick { 1 } else { ROUNDS },
            window: if arguments.quick { QUICK_WINDOW } else { WINDOW },
            processors: sys::processor::allowed().unwrap_or_default(),
        }
    }

    fn most(&self) -> usize {
        self.domains.last().copied().unwrap_or(1)
    }
}

/// One launch with one mode of the cache.
struct Bench<'a> {
    plan: &'a Plan,
    // The workers end before the place does: fields are dropped in this order.
    workers: BTreeMap<(Arm, usize), Worker>,
    place: Place,
    cache: &'static str,
    launch: usize,
}

impl Bench<'_> {
    fn run(&mut self, results: &mut Results, progress: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        self.bring_up(results)?;
        self.measure(results, progress)
    }

    /// Measures once the domains are up.
    fn measure(&mut self, results: &mut Results, progress: &mut dyn FnMut(&str)) -> Result<(), BenchError> {
        for &domains in &self.plan.domains {
            progress(&format!(
                "launch {} of {}, cache {}, {domains} domains",
                self.launch + 1,
                self.plan.launches,
                self.cache
            ));
            self.start_workers(domains)?;
            for round in 0..self.plan.rounds {
                for arm in rotated(&ARMS, self.launch + round) {
                    results.repetitions.push(self.repeat(arm, domains, round)?);
                }
            }
        }
        self.workers.clear();
        self.place.down()
    }

    /// One domain first, then all: what the others add is the memory of a further domain.
    fn bring_up(&mut self, results: &mut Results) -> Result<(), BenchError> {
        self.place.up(1, self.cache)?;
        let most = self.plan.most();
        if most == 1 {
            return Ok(());
        }
        let one = usage::node_memory_bytes(&self.place);
        self.place.up(most, self.cache)?;
        // Once a launch is enough: the cache is empty then, whatever its mode.
        let one = one.filter(|_| self.cache == CACHES[0]);
        if let (Some(one), Some(all)) = (one, usage::node_memory_bytes(&self.place)) {
            let value = all.saturating_sub(one) as f64 / (most - 1) as f64 / f64::from(1 << 20);
            results.figures.push(Figure { name: MEMORY, unit: "MiB", launch: self.launch, value });
        }
        Ok(())
    }

    fn start_workers(&mut self, domains: usize) -> Result<(), BenchError> {
        let mut fresh = Vec::new();
        for key in ARMS.into_iter().flat_map(|arm| (0..domains).map(move |number| (arm, number))) {
            if !self.workers.contains_key(&key) {
                self.workers.insert(key, key.0.start(&self.place, key.1)?);
                fresh.push(key);
            }
        }
        for key in fresh {
            if let Some(worker) = self.workers.get_mut(&key) {
                worker.expect("ready")?;
            }
        }
        Ok(())
    }

    fn repeat(&mut self, arm: Arm, domains: usize, round: usize) -> Result<Repetition, BenchError> {
        self.prime(arm, domains, round)?;
        let before_ns = core_line::round_trip_ns();
        let processor_before = self.processor_ns(arm);
        let tales = self.work(arm, domains)?;
        let processor_after = self.processor_ns(arm);
        let after_ns = core_line::round_trip_ns();
        let others =
            processor_before.zip(processor_after).map(|(before, after)| after.saturating_sub(before));
        let mut latencies = Latencies::new();
        tales.iter().for_each(|tale| latencies.merge(&tale.latencies));
        Ok(Repetition {
            condition: condition(self.cache, domains),
            arm: arm.name().into(),
            launch: self.launch,
            round,
            state: core_line::state(before_ns, after_ns),
            processor_ns: others.map(|others| {
                processor_of_window(self.are_workers_apart(arm), others, &tales, latencies.count())
            }),
            operations: latencies.count(),
            bytes: 0,
            latencies,
            failures: tales.iter().map(|tale| tale.failures).sum(),
            window_s: self.plan.window.as_secs_f64(),
            guest_ns: None,
            switches: None,
            calls: None,
        })
    }

    /// Gives every worker its task and waits until all connections stand.
    fn prime(&mut self, arm: Arm, domains: usize, round: usize) -> Result<(), BenchError> {
        for number in 0..domains {
            let processors = &self.plan.processors;
            let task = Task {
                way: arm.way(),
                suffix: SUFFIX.into(),
                names: NAMES,
                processor: processors.get(number % processors.len().max(1)).copied().unwrap_or(0),
                warm_up_ns: WARM_UP.as_nanos() as u64,
                window_ns: self.plan.window.as_nanos() as u64,
                seed: (self.launch * self.plan.rounds + round) as u64 * 1_000 + number as u64,
            };
            self.with(arm, number, |worker| worker.give(&task))?;
        }
        (0..domains).try_for_each(|number| self.with(arm, number, |worker| worker.expect("primed")))
    }

    fn work(&mut self, arm: Arm, domains: usize) -> Result<Vec<Tale>, BenchError> {
        // A guest has a clock of its own.
        let begin_ns = match self.place.has_guest() {
            true => "now".to_owned(),
            false => (clock_ns() + LEAD.as_nanos() as u64).to_string(),
        };
        (0..domains).try_for_each(|number| self.with(arm, number, |worker| worker.say(&begin_ns)))?;
        let length = LEAD + WARM_UP + self.plan.window;
        (0..domains).map(|number| self.with(arm, number, |worker| worker.tale(length))).collect()
    }

    fn with<T>(
        &mut self,
        arm: Arm,
        number: usize,
        act: impl FnOnce(&mut Worker) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let none = || BenchError::Missing {
            what: format!("worker {}/{number}", arm.name()),
            how: "this is a bug; please report it",
        };
        act(self.workers.get_mut(&(arm, number)).ok_or_else(none)?)
    }

    /// Whether the workers are not in the control groups of the node's domains, as all workers in
    /// guests are.
    fn are_workers_apart(&self, arm: Arm) -> bool {
        arm == Arm::Naive && !self.place.has_guest()
    }

    /// Processor time of everything beside the workers themselves, where they are apart, or of
    /// everything.
    fn processor_ns(&self, arm: Arm) -> Option<u64> {
        if self.are_workers_apart(arm) {
            usage::name_server_processor_ns(&self.place)
        } else {
            usage::node_processor_ns(&self.place)
        }
    }
}

/// The share of the processor time that belongs to the `measured` look-ups of the window.
fn processor_of_window(workers_apart: bool, others_ns: u64, tales: &[Tale], measured: u64) -> u64 {
    let operations: u64 = tales.iter().map(|tale| tale.operations).sum();
    let workers: u64 = if workers_apart { tales.iter().map(|tale| tale.processor_ns).sum() } else { 0 };
    ((others_ns + workers) as f64 * measured as f64 / operations.max(1) as f64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_line::State;

    fn arguments(quick: bool, domains: &[usize]) -> Arguments {
        let domains = domains.to_vec();
        Arguments {
            scenario: "directory".into(),
            quick,
            choice: crate::choice::Choice::default(),
            domains,
            launches: None,
            json: false,
            record: None,
            binary: "/bin/false".into(),
        }
    }

    #[test]
    fn a_plan_is_sorted_and_without_doubles_and_zeros() {
        assert_eq!(Plan::new(&arguments(false, &[8, 1, 8, 0])).domains, [1, 8]);
        assert_eq!(Plan::new(&arguments(false, &[])).most(), 32);
        assert_eq!(Plan::new(&arguments(true, &[])).launches, 1);
    }

    fn repetition(cache: &str, domains: usize, arm: Arm, ns: u64, count: u64) -> Repetition {
        let mut latencies = Latencies::new();
        (0..count).for_each(|_| latencies.record(ns));
        Repetition {
            condition: condition(cache, domains),
            arm: arm.name().into(),
            launch: 0,
            round: 0,
            state: State::Near,
            latencies,
            operations: count,
            bytes: 0,
            failures: 0,
            window_s: 1.0,
            processor_ns: None,
            guest_ns: None,
            switches: None,
            calls: None,
        }
    }

    #[test]
    fn verdicts_speak_only_of_what_was_measured() {
        let results = Results {
            repetitions: vec![
                repetition("none", 8, Arm::Preload, 1_000, 160),
                repetition("none", 8, Arm::Naive, 2_000, 100),
                repetition("private", 1, Arm::Preload, 600, 100),
                repetition("private", 1, Arm::Naive, 1_000, 100),
            ],
            figures: vec![Figure { name: MEMORY, unit: "MiB", launch: 0, value: 3.0 }],
            notes: vec![],
        };
        let verdicts = Directory.verdicts(&results);
        let short: Vec<(&str, bool, u64)> =
            verdicts.iter().map(|found| (found.promise, found.holds, found.samples)).collect();
        assert_eq!(
            short,
            [
                ("directory.nocache.preload.rate.8", true, 260),
                ("directory.private.p50", false, 200),
                ("directory.memory.domain", true, 1),
            ]
        );
    }

    #[test]
    fn processor_time_is_shared_out_by_operations() {
        let tale = Tale {
            latencies: Latencies::new(),
            failures: 0,
            first_failure: None,
            operations: 10,
            processor_ns: 500,
        };
        assert_eq!(processor_of_window(true, 500, std::slice::from_ref(&tale), 5), 500);
        assert_eq!(processor_of_window(false, 500, &[tale], 5), 250);
    }
}
