//! Foreign programs: each end is a process that hears and says lines. The reference is
//! `docs/spec/bench-adapter.md`.

use crate::plan::{Cell, Loop};
use bench::BenchError;
use bench::channel::exchange::measured;
use bench::channel::task::{Role, Tale};
use bench::worker::Worker;
use statistics::open_loop::Sample;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Name and version of the protocol; an adapter says it first.
pub const PROTOCOL: &str = "ready tombolo-bench-1";
/// Samples that an adapter may report in one repetition.
const SAMPLES_MAX: usize = 1 << 20;
/// Longest word by which a follower is found.
const PLACE_BYTES_MAX: usize = 255;
/// Clocks of two processes are read at different instants; a report that is off by no more is
/// believed.
const TOLERANCE: Duration = Duration::from_millis(5);

/// The work of one repetition, for both ends.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Under which circumstances.
    pub cell: Cell,
    /// How long requests are due.
    pub window: Duration,
    /// Of schedule and payloads.
    pub seed: u64,
    /// The follower's address.
    pub address: IpAddr,
    /// A folder of this repetition alone.
    pub folder: &'a Path,
}

impl Asked<'_> {
    fn line(&self, role: Role, place: &str) -> String {
        let (role, place) = match role {
            Role::Lead => ("lead", format!(" place={place}")),
            Role::Follow => ("follow", String::new()),
        };
        let (pace, interval_ns) = match self.cell.pace {
            Loop::Closed => ("closed", 0),
            Loop::Periodic(interval_ns) => ("periodic", interval_ns),
            Loop::Poisson(interval_ns) => ("poisson", interval_ns),
        };
        format!(
            "task role={role} bytes={} work_ns={} loop={pace} interval_ns={interval_ns} window_ns={} seed={} address={} folder={}{place}",
            self.cell.payload,
            self.cell.work_ns,
            self.window.as_nanos(),
            self.seed,
            self.address,
            self.folder.display(),
        )
    }
}

/// Leads both through one repetition.
///
/// # Errors
/// Where one says what it should not, says nothing, or reports what can't be.
pub fn exchange(lead: &mut Worker, follow: &mut Worker, asked: &Asked<'_>) -> Result<[Tale; 2], BenchError> {
    follow.expect(PROTOCOL)?;
    follow.say(&asked.line(Role::Follow, ""))?;
    let said = follow.hear(Duration::ZERO)?;
    let place = said.strip_prefix("waiting ").filter(|place| is_place(place)).map(ToOwned::to_owned);
    let place = place.ok_or_else(|| follow.surprise(said, "`waiting` and where, a word without blanks,"))?;
    lead.expect(PROTOCOL)?;
    lead.say(&asked.line(Role::Lead, &place))?;
    lead.expect("primed")?;
    follow.expect("primed")?;
    follow.say("go")?;
    let begin = Instant::now();
    lead.say("go")?;
    let samples = report(lead, asked.window)?;
    let told = samples.check(begin.elapsed()).map_err(|why| lead.surprise(why, "a report that can be true"));
    let lead_tale = told?.tale();
    let follow_tale = report(follow, Duration::ZERO)?.tale();
    Ok([lead_tale, follow_tale])
}

fn is_place(place: &str) -> bool {
    !place.is_empty() && place.len() <= PLACE_BYTES_MAX && place.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The report of one end.
#[derive(Debug, Default)]
struct Report {
    samples: Vec<Sample>,
    unanswered: u64,
    wrong: u64,
    elapsed_ns: u64,
    processor_ns: u64,
}

/// `sample` lines, then `done` with its figures.
fn report(worker: &mut Worker, window: Duration) -> Result<Report, BenchError> {
    let mut report = Report::default();
    loop {
        let said = worker.hear(window)?;
        let taken = match said.split_once(' ') {
            Some(("sample", rest)) if report.samples.len() < SAMPLES_MAX => {
                sample(rest).map(|sample| report.samples.push(sample))
            }
            Some(("done", rest)) => match report.figures(rest) {
                Some(()) => return Ok(report),
                None => None,
            },
            _ => None,
        };
        if taken.is_none() {
            return Err(worker.surprise(said, "`sample` with two numbers, or `done` with its figures,"));
        }
    }
}

fn sample(text: &str) -> Option<Sample> {
    let (latency, uncorrected) = text.split_once(' ')?;
    Some(Sample { latency_ns: latency.parse().ok()?, uncorrected_ns: uncorrected.parse().ok()? })
}

impl Report {
    fn figures(&mut self, text: &str) -> Option<()> {
        for pair in text.split(' ') {
            let (name, value) = pair.split_once('=')?;
            let place = match name {
                "unanswered" => &mut self.unanswered,
                "wrong" => &mut self.wrong,
                "elapsed_ns" => &mut self.elapsed_ns,
                "processor_ns" => &mut self.processor_ns,
                _ => return None,
            };
            *place = value.parse().ok()?;
        }
        Some(())
    }

    /// Whether it can be true: requests went one after the other within the time that passed here.
    fn check(self, passed: Duration) -> Result<Self, String> {
        let together: u128 = self.samples.iter().map(|sample| u128::from(sample.uncorrected_ns)).sum();
        let most = (passed + TOLERANCE).as_nanos();
        if together > most || u128::from(self.elapsed_ns) > most {
            return Err(format!(
                "requests of {together} ns in {} ns, while {} ns passed",
                self.elapsed_ns,
                passed.as_nanos()
            ));
        }
        let impossible =
            |sample: &&Sample| sample.latency_ns < sample.uncorrected_ns || sample.uncorrected_ns == 0;
        if let Some(Sample { latency_ns, uncorrected_ns }) = self.samples.iter().find(impossible) {
            return Err(format!(
                "a sample of {latency_ns} ns since it was due and {uncorrected_ns} ns since it was sent"
            ));
        }
        Ok(self)
    }

    fn tale(&self) -> Tale {
        Tale {
            unanswered: self.unanswered,
            wrong: self.wrong,
            window_ns: self.elapsed_ns,
            processor_ns: self.processor_ns,
            ..measured(&self.samples)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Deployment;
    use std::process::Command;

    fn asked(folder: &Path) -> Asked<'_> {
        let cell = Cell { deployment: Deployment::Bare, payload: 64, work_ns: 0, pace: Loop::Poisson(1_000) };
        Asked {
            cell,
            window: Duration::from_millis(50),
            seed: 3,
            address: "127.0.0.1".parse().expect("an address"),
            folder,
        }
    }

    /// Both ends are shell scripts.
    fn with(lead: &str, follow: &str, patience: Duration) -> Result<[Tale; 2], BenchError> {
        let folder = tempfile::tempdir().expect("a folder");
        let start = |who: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let mut worker = Worker::start(who.into(), command, folder.path()).expect("it starts");
            worker.set_patience(patience);
            worker
        };
        let (mut lead, mut follow) = (start("lead", lead), start("follow", follow));
        exchange(&mut lead, &mut follow, &asked(folder.path()))
    }

    const FOLLOW: &str = "echo ready tombolo-bench-1; read t; echo waiting here; echo primed; read go; echo done wrong=0; read end";

    /// A leader that reports so.
    fn lead(report: &str) -> String {
        format!("echo ready tombolo-bench-1; read t; echo primed; read go; {report}; read end")
    }

    const PATIENT: Duration = Duration::from_secs(20);

    #[test]
    fn a_report_becomes_latencies() {
        let lead = lead(
            "sleep 0.05; echo sample 3000 2000; echo sample 9000 2000; echo done unanswered=1 wrong=0 elapsed_ns=40000000 processor_ns=7",
        );
        let [tale, _] = with(&lead, FOLLOW, PATIENT).expect("both work");
        assert_eq!((tale.operations, tale.unanswered, tale.processor_ns), (2, 1, 7));
        assert_eq!((tale.latencies.count(), tale.uncorrected.longest_ns().map(|ns| ns / 100)), (2, Some(20)));
    }

    #[test]
    fn adapters_that_lie_talk_nonsense_die_or_hang_are_named() {
        let cases = [
            ("echo sample 9000000000000 9000000000000; echo done elapsed_ns=1", "a report that can be true"),
            ("echo sample 1 2; echo done elapsed_ns=1", "a report that can be true"),
            ("echo done elapsed_ns=99000000000", "a report that can be true"),
            ("echo sample one two", "`sample` with two numbers"),
            ("echo done joy=1", "`done` with its figures"),
            ("echo 'no device' >&2; exit 1", "no device"),
        ];
        for (report, words) in cases {
            let said = with(&lead(report), FOLLOW, PATIENT).expect_err(report).to_string();
            assert!(said.contains(words) && said.contains("lead"), "{report}: {said}");
        }
        let said =
            with(&lead("true"), "echo ready tombolo-bench-2; read t", PATIENT).expect_err("old").to_string();
        assert!(said.contains("tombolo-bench-2") && said.contains("follow"), "{said}");
        let hangs = with(&lead("read never"), FOLLOW, Duration::from_millis(300)).expect_err("it hangs");
        assert!(hangs.to_string().contains("lead"), "{hangs}");
    }
}
