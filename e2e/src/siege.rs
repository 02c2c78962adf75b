//! The sides of a siege: attackers, whose attacks are lists in `programs/siege.py`, and a tenant
//! that measures what it does meanwhile.

use crate::Run;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The attackers' program.
pub const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/siege.py");
/// Seconds of a siege, where somebody asks for a longer one.
pub const SECONDS: &str = "TOMBOLO_SIEGE_SECONDS";

/// A siege's length: `ordinary`, or as was asked for, and whether that was so.
pub fn length(ordinary: Duration) -> (Duration, bool) {
    let asked = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok());
    (asked.map_or(ordinary, Duration::from_secs), asked.is_some())
}

/// Whether each attack of a list was begun, and how often.
pub fn begun(score: &Path) -> (String, bool) {
    let text = std::fs::read_to_string(score).unwrap_or_default();
    let all = !text.is_empty() && !text.contains(": 0");
    (text, all)
}

/// Kills a siege that runs outside of containers with all that it has started: its attacks have
/// sessions of their own.
pub fn end(siege: &mut std::process::Child) {
    // Parents first, so that none begins another round.
    processes(siege).into_iter().for_each(crate::node::kill);
}

/// A siege that runs outside of containers and all that it has started, parents first.
pub fn processes(siege: &std::process::Child) -> Vec<u32> {
    let (mut all, mut next) = (Vec::new(), vec![siege.id()]);
    while let Some(pid) = next.pop() {
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        next.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        all.push(pid);
    }
    all
}

/// A domain of the file that runs a list of attacks, whose score is in `folder`, which it sees as
/// `/score`.
pub fn attacker(name: &str, list: &str, folder: &Path, peer: &str, more: &str) -> String {
    let programs = Path::new(PROGRAM).parent().map_or_else(String::new, |at| at.display().to_string());
    format!(
        "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\n\
         command = [\"python3\", \"/programs/siege.py\", \"{list}\", \"/score/{list}\"]\n\
         restart = {{ policy = \"always\", backoff = \"50ms\" }}\n\
         mounts = [{{ source = \"{programs}\", target = \"/programs\", read_only = true }}, {{ source = \"{}\", target = \"/score\", read_only = false }}, {{ source = \"{peer}\", target = \"/channel-peer\" }}]\n\
         limits = {{ memory = \"256MiB\", pids = 200, cpu = 1 }}\n{more}\n",
        folder.display()
    )
}

/// The durations of one thing that a tenant does again and again.
#[derive(Debug, Default)]
pub struct Times(Vec<Duration>);

impl Times {
    /// Does it once.
    pub fn of<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let at = Instant::now();
        let done = act();
        self.0.push(at.elapsed());
        done
    }

    /// How many, and the p99 of them: the worst where there are fewer than a hundred.
    pub fn p99(&self) -> (usize, Duration) {
        let mut took = self.0.clone();
        took.sort();
        let worst = took.get((took.len() * 99 / 100).min(took.len().saturating_sub(1))).copied();
        (took.len(), worst.unwrap_or_default())
    }
}

/// One line that compares what was done under siege with the same in quiet.
pub fn compared(what: &str, quiet: &Times, besieged: &Times) -> String {
    let ((times, before), (again, under)) = (quiet.p99(), besieged.p99());
    let ratio = under.as_secs_f64() / before.as_secs_f64().max(f64::MIN_POSITIVE);
    format!(
        "{what}: {times} times, p99 {before:?}; under siege {again} times, {under:?}, {ratio:.1} times as long"
    )
}

/// Insists that a program has ended well and said this.
pub fn assert_said(run: &Run, words: &[&str]) {
    assert!(run.code == 0 && words.iter().all(|word| run.out.contains(word)), "{words:?} expected: {run:?}");
}

/// The attackers' program with one of its lists, not yet run.
pub fn siege(mut command: Command, list: &str, score: &Path, words: &[&str]) -> Command {
    command.arg(PROGRAM).arg(list).arg(score).args(words);
    command
}
