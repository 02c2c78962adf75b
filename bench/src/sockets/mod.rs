//! Connections of programs that know nothing of us, through a socket service, beside TCP over `lo`,
//! TCP over veths and a bridge, a Unix socket, and forwarders in user mode: all in one run, one
//! after the other.

mod arms;
mod group;
mod stage;
pub mod work;

use crate::core_line;
use crate::promise::{Promise, Relation, Verdict};
use crate::report::{Column, column};
use crate::results::{Condition, Figure, Metric, Repetition, Results, rotated};
use crate::scenario::{Arguments, BenchError, Scenario};
use arms::{ARMS, Arm, Server};
use stage::Stage;
use std::time::Duration;
use work::{QUESTION_BYTES, Tale, Task, Work};

/// The scenario.
#[derive(Debug, Clone, Copy)]
pub struct Sockets;

/// Fresh starts of everything, and rounds in each.
const LAUNCHES: usize = 5;
const ROUNDS: usize = 2;
/// The measured window of one repetition.
const WINDOW: Duration = Duration::from_millis(500);
const QUICK_WINDOW: Duration = Duration::from_millis(150);
/// Work before the window.
const WARM_UP: Duration = Duration::from_millis(50);
/// Connections of redis-benchmark and of wrk.
const CLIENTS: &str = "50";
/// Requests of redis-benchmark.
const REDIS_REQUESTS: u64 = 20_000;
const QUICK_REDIS_REQUESTS: u64 = 4_000;
/// How long wrk asks: it takes whole seconds.
const WRK_S: u64 = 1;
/// How long another program may take: the slowest forwarder does a few thousand requests in a
/// second.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections that are held idle.
const IDLE: usize = 500;

/// Conditions.
const ROUND_TRIP: &str = "round trip 64 B";
const STREAM: &str = "stream 64 KiB";
const CONNECTIONS: &str = "connections";
const REDIS: &str = "redis GET, 50 clients";
const NGINX: &str = "nginx 64 B, 50 clients";

/// The kinds of work, as conditions, and the bytes of each operation.
const WORKS: [(&str, Work, u64); 4] = [
    (ROUND_TRIP, Work::RoundTrip, QUESTION_BYTES as u64),
    ("stream 64 B", Work::Stream(64), 64),
    (STREAM, Work::Stream(64 * 1024), 64 * 1024),
    (CONNECTIONS, Work::Connections, 0),
];

const COLUMNS: [Column; 5] = [
    column("per s", "per_s", Metric::Rate, 0).and_ratio(),
    column("GiB/s", "gib_per_s", Metric::Bandwidth, 3),
    column("p50 us", "p50_us", Metric::P50, 1),
    column("p99 us", "p99_us", Metric::P99, 1),
    column("cpu us", "processor_us", Metric::Processor, 2),
];

const fn promise(id: &'static str, about: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit: "x", relation: Relation::AtLeast, goal }
}

/// A promise compares a socket service with another arm by a rate.
const COMPARISONS: [(Promise, &str, Arm); 6] = [
    (
        promise("sockets.connections", "connections in a second, relative to TCP over loopback", 0.5),
        CONNECTIONS,
        Arm::Loopback,
    ),
    (promise("sockets.roundtrip.pasta", "round trips, relative to pasta", 1.0), ROUND_TRIP, Arm::Pasta),
    (promise("sockets.stream.64KiB.pasta", "a stream, relative to pasta", 1.0), STREAM, Arm::Pasta),
    (
        promise("sockets.connections.pasta", "connections in a second, relative to pasta", 1.0),
        CONNECTIONS,
        Arm::Pasta,
    ),
    (promise("sockets.redis.pasta", "requests of redis, relative to pasta", 1.0), REDIS, Arm::Pasta),
    (promise("sockets.nginx.pasta", "requests of nginx, relative to pasta", 1.0), NGINX, Arm::Pasta),
];
/// The memory of a connection at rest.
const IDLE_MEMORY: Promise = Promise {
    id: "sockets.idle.memory",
    about: "memory of an idle connection: both programs, both relays and the kernel's",
    unit: "KiB",
    relation: Relation::AtMost,
    goal: 64.0,
};
const PROMISES: [Promise; 7] = [
    COMPARISONS[0].0,
    COMPARISONS[1].0,
    COMPARISONS[2].0,
    COMPARISONS[3].0,
    COMPARISONS[4].0,
    COMPARISONS[5].0,
    IDLE_MEMORY,
];

fn condition(work: &str) -> Condition {
    Condition(vec![("work", work.to_owned())])
}

impl Scenario for Sockets {
    fn name(&self) -> &'static str {
        "sockets"
    }

    fn about(&self) -> &'static str {
        "connections of unmodified programs of two containers, beside TCP, Unix sockets and forwarders"
    }

    fn promises(&self) -> &'static [Promise] {
        &PROMISES
    }

    fn base(&self, _: &Condition) -> &'static str {
        Arm::Veth.name()
    }

    fn columns(&self, _: &Condition) -> &'static [Column] {
        &COLUMNS
    }

    fn rank(&self, _: &Condition, arm: &str) -> usize {
        ARMS.iter().rev().position(|known| known.name() == arm).unwrap_or(ARMS.len())
    }

    fn depends(&self) -> &'static [&'static str] {
        &["sys", "services/socket", "logic/mux", "io/channel", "logic/ring"]
    }

    fn peers(&self) -> &'static [&'static [&'static str]] {
        &[&["runc", "--version"]]
    }

    fn measure(&self, arguments: &Arguments, progress: &mut dyn FnMut(&str)) -> Result<Results, BenchError> {
        let quick = arguments.quick;
        let launches = arguments.launches.unwrap_or(if quick { 1 } else { LAUNCHES }).max(1);
        let mut results = Results::default();
        for launch in 0..launches {
            progress(&format!("launch {} of {launches}: starting everybody", launch + 1));
            let mut stage = Stage::make(&arguments.binary)?;
            for round in 0..if quick { 1 } else { ROUNDS } {
                progress(&format!("launch {} of {launches}, round {}", launch + 1, round + 1));
                let mut bench = Bench { stage: &mut stage, quick, launch, round };
                bench.round(&mut results)?;
            }
            idle(&mut stage, launch, &mut results)?;
            results.note(stage.notes());
            stage.end()?;
        }
        Ok(results)
    }

    fn verdicts(&self, results: &Results) -> Vec<Verdict> {
        let ours = Arm::Listener.name();
        let compared = COMPARISONS.iter().filter_map(|(promise, work, other)| {
            let condition = condition(work);
            let estimate = results.ratio(&condition, ours, other.name(), Metric::Rate)?;
            let samples = results.samples(&condition, ours) + results.samples(&condition, other.name());
            Some(promise.judge(estimate, samples))
        });
        let measured = results.figures.len() * IDLE;
        let idle = results.figure(IDLE_MEMORY.id).map(|it| IDLE_MEMORY.judge(it, measured as u64));
        compared.chain(idle).collect()
    }
}

/// Opens connections that then do nothing, and notes what each costs.
fn idle(stage: &mut Stage, launch: usize, results: &mut Results) -> Result<(), BenchError> {
    let Some(place) = stage.place(Arm::Listener, Server::Worker) else { return Ok(()) };
    let before = stage.memory_of_containers();
    let task = Task { place, work: Work::Hold(IDLE), warm_up_ns: 0, window_ns: 0 };
    let Some(client) = stage.client(Arm::Listener) else { return Ok(()) };
    client.give(&task)?;
    client.tale::<Tale>(PROGRAM_TIMEOUT)?;
    let (Some(before), Some(after)) = (before, stage.memory_of_containers()) else {
        results
            .note(vec!["the memory of idle connections was left out: the kernel does not count it".into()]);
        return Ok(());
    };
    let value = after.saturating_sub(before) as f64 / IDLE as f64 / 1024.0;
    results.figures.push(Figure { name: IDLE_MEMORY.id, unit: IDLE_MEMORY.unit, launch, value });
    Ok(())
}

/// One round of one launch.
struct Bench<'s> {
    stage: &'s mut Stage,
    quick: bool,
    launch: usize,
    round: usize,
}

/// The job of one repetition.
struct Job {
    name: &'static str,
    server: Server,
    work: Work,
    bytes: u64,
    patience: Duration,
}

impl Bench<'_> {
    fn round(&mut self, results: &mut Results) -> Result<(), BenchError> {
        for (name, work, bytes) in WORKS {
            for arm in self.arms() {
                let work = work.clone();
                let job =
                    Job { name, server: Server::Worker, work, bytes, patience: WARM_UP + self.window() };
                results.repetitions.extend(self.repetition(arm, &job)?);
            }
        }
        for (name, server) in [(REDIS, Server::Redis), (NGINX, Server::Nginx)] {
            for arm in self.arms() {
                let Some(place) = self.stage.place(arm, server) else { continue };
                let work = Work::Program(self.words(arm, server, &place));
                let job = Job { name, server, work, bytes: 0, patience: PROGRAM_TIMEOUT };
                results.repetitions.extend(self.repetition(arm, &job)?);
            }
        }
        Ok(())
    }

    fn arms(&self) -> Vec<Arm> {
        rotated(&ARMS, self.launch + self.round)
    }

    fn window(&self) -> Duration {
        if self.quick { QUICK_WINDOW } else { WINDOW }
    }

    fn requests(&self) -> u64 {
        if self.quick { QUICK_REDIS_REQUESTS } else { REDIS_REQUESTS }
    }

    /// The program that asks somebody else's server, with its words.
    fn words(&self, arm: Arm, server: Server, place: &str) -> Vec<String> {
        let at = place.trim_start_matches("tcp:");
        let words = if server == Server::Nginx {
            let program = self.stage.program(arm, "wrk", "usr/bin/wrk");
            vec![program, format!("-t1 -c{CLIENTS} -d{WRK_S}s http://{at}/")]
        } else {
            let to = match (place.strip_prefix("unix:"), at.rsplit_once(':')) {
                (Some(path), _) => format!("-s {path}"),
                (None, Some((host, port))) => format!("-h {host} -p {port}"),
                (None, None) => String::new(),
            };
            let program = self.stage.program(arm, "redis", "usr/bin/redis-benchmark");
            vec![program, format!("{to} -t get -n {} -c {CLIENTS} --csv", self.requests())]
        };
        words.iter().flat_map(|part| part.split(' ').map(str::to_owned)).collect()
    }

    fn repetition(&mut self, arm: Arm, job: &Job) -> Result<Option<Repetition>, BenchError> {
        let Some(place) = self.stage.place(arm, job.server) else { return Ok(None) };
        let task = Task {
            place,
            work: job.work.clone(),
            warm_up_ns: WARM_UP.as_nanos() as u64,
            window_ns: self.window().as_nanos() as u64,
        };
        let before_ns = core_line::round_trip_ns();
        let used_before = self.stage.processor_ns();
        let Some(client) = self.stage.client(arm) else { return Ok(None) };
        client.give(&task)?;
        let mut tale: Tale = client.tale(job.patience)?;
        let used = self.stage.processor_ns().zip(used_before).map(|(after, before)| after - before);
        if let Work::Program(_) = job.work {
            let rate = rate_of(&tale.said).ok_or_else(|| BenchError::Protocol {
                who: arm.name().into(),
                said: tale.said.clone(),
                expected: "a rate",
            })?;
            tale.operations = if job.server == Server::Redis {
                self.requests()
            } else {
                (rate * WRK_S as f64).round() as u64
            };
            tale.window_ns = (tale.operations as f64 / rate * 1e9) as u64;
        }
        let state = core_line::state(before_ns, core_line::round_trip_ns());
        Ok(Some(Repetition {
            condition: condition(job.name),
            arm: arm.name().into(),
            launch: self.launch,
            round: self.round,
            state,
            latencies: tale.latencies,
            operations: tale.operations,
            bytes: job.bytes,
            failures: 0,
            window_s: tale.window_ns as f64 / 1e9,
            // The warm-up is in the processor time, and so it is counted as a part of the window.
            processor_ns: used.map(|ns| match job.work {
                Work::RoundTrip | Work::Connections => {
                    of_window(ns, tale.window_ns, WARM_UP.as_nanos() as u64)
                }
                _ => ns,
            }),
            guest_ns: None,
            switches: None,
            calls: None,
        }))
    }
}

/// The part of a processor time that belongs to the window.
fn of_window(ns: u64, window_ns: u64, warm_up_ns: u64) -> u64 {
    (ns as f64 * window_ns as f64 / (window_ns + warm_up_ns) as f64) as u64
}

/// The figure of what redis-benchmark (`"GET","71428.57",...`) or wrk (`Requests/sec:  71428.57`)
/// prints.
fn rate_of(said: &str) -> Option<f64> {
    let of_line = |line: &str| {
        let figure = line.strip_prefix("\"GET\",\"").or_else(|| line.strip_prefix("Requests/sec:"))?;
        figure.split('"').next()?.trim().parse().ok()
    };
    said.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_off_what_other_programs_print() {
        assert_eq!(rate_of("\"test\",\"rps\"\n\"GET\",\"71428.57\",\"0.3\"\n"), Some(71428.57));
        assert_eq!(rate_of("Running 1s test\nRequests/sec:  50123.45\nTransfer/sec: 1MB\n"), Some(50123.45));
        assert_eq!(rate_of("Could not connect"), None);
    }

    #[test]
    fn processor_time_before_the_window_is_no_part_of_it() {
        assert_eq!(of_window(1_000, 900, 100), 900);
    }
}
