//! A daemon is killed while it writes: a file, an adaptation, the end of a distributed container.
//! The state that its successor finds in the registry was in force as a whole, or is to be; the
//! kernel comes to say the same, and nothing of what had begun is left.

use e2e::cluster::{Bed, Host};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Deaths. Each is at another moment of what it interrupts.
const DEATHS: usize = 24;
/// How long something may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(40);
/// The time that an adaptation moves.
const MOVED_MS: u64 = 2;

/// The two files that take turns: what each promises `gold`, of what both domains have together.
const FILES: [(&str, u64); 2] = [("red", 12), ("blue", 8)];
const BOTH_MS: u64 = 20;

/// Processor time and network for two domains that never rest, a table for a third one, and in one
/// of the files a fourth.
fn file(colour: &str, gold_ms: u64) -> String {
    let domain = |name: &str, promise: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\nstop = {{ timeout = \"0ms\" }}\n\
             command = [\"sh\", \"-c\", \"while :; do :; done # {colour}\"]\nreserve = {{ {promise} }}\n\n"
        )
    };
    let promise = |ms: u64| {
        format!(
            "cpu = {{ budget = \"{ms}ms\", period = \"40ms\", processor = 0 }}, network = {{ rate = \"{ms}mbit\", class = \"gold\" }}"
        )
    };
    let held = "cpu = { budget = \"6ms\", period = \"40ms\", processor = 0 }, enforce = \"table\"";
    let blue = if colour == "blue" { domain("more", "memory = \"8MiB\"") } else { String::new() };
    let domains = domain("gold", &promise(gold_ms)) + &domain("rest", &promise(BOTH_MS - gold_ms));
    format!("name = \"film\"\n\n{domains}{}{blue}", domain("held", held))
}

fn names(colour: &str) -> Vec<&'static str> {
    [&["gold", "held"][..], if colour == "blue" { &["more"] } else { &[] }, &["rest"]].concat()
}

/// The registry's word on what is up: the file's colour, and what `gold` is promised of both
/// resources; nothing, or a whole.
type Wanted = Option<(String, u64)>;

/// Something that is interrupted.
#[derive(Debug)]
enum Act {
    Up(&'static str, u64),
    Adapt { to_gold: bool },
    Down,
}

impl Act {
    /// The acts by turns; an adaptation where there is something to adapt.
    fn of(round: usize, before: &Wanted) -> Self {
        let up = |number: usize| {
            let (colour, gold_ms) = FILES[number % FILES.len()];
            Self::Up(colour, gold_ms)
        };
        match (round % 6, before) {
            (0, _) | (_, None) => up(0),
            (3, _) => up(1),
            (5, _) => Self::Down,
            (_, Some((_, gold_ms))) => Self::Adapt { to_gold: *gold_ms <= BOTH_MS / 2 },
        }
    }

    /// The state that is wanted after it.
    fn then(&self, before: &Wanted) -> Wanted {
        match (self, before) {
            // The same file again leaves what was adapted.
            (Self::Up(colour, _), Some((same, gold_ms))) if colour == same => Some((same.clone(), *gold_ms)),
            (Self::Up(colour, gold_ms), _) => Some(((*colour).to_owned(), *gold_ms)),
            (Self::Adapt { to_gold: true }, Some((colour, ms))) => Some((colour.clone(), ms + MOVED_MS)),
            (Self::Adapt { to_gold: false }, Some((colour, ms))) => Some((colour.clone(), ms - MOVED_MS)),
            (Self::Adapt { .. }, None) | (Self::Down, _) => None,
        }
    }

    /// Begins it.
    fn begin(&self, host: &Host) -> Child {
        let path = host.folder().join("film.toml");
        let path = path.to_string_lossy();
        if let Self::Up(colour, gold_ms) = self {
            std::fs::write(&*path, file(colour, *gold_ms)).expect("the file is written");
        }
        let amounts = [format!("{MOVED_MS}ms"), format!("{MOVED_MS}mbit")];
        let adapt = |from, to| vec!["adapt", from, to, "--cpu", &amounts[0], "--network", &amounts[1]];
        let words = match self {
            Self::Up(..) => vec!["up", &path],
            Self::Adapt { to_gold: true } => adapt("rest", "gold"),
            Self::Adapt { to_gold: false } => adapt("gold", "rest"),
            Self::Down => vec!["down", "film"],
        };
        let mut command = host.command(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("tombolo starts")
    }

    /// Has it done without a disturbance, and says how long that took.
    fn done(&self, host: &Host) -> Duration {
        let begun = Instant::now();
        let ended = self.begin(host).wait().expect("it ends");
        assert!(ended.success(), "{self:?}{}", host.daemon_log());
        begun.elapsed()
    }
}

/// How long each kind of act takes here, today: within that it is interrupted.
struct Spans {
    up: Duration,
    adapt: Duration,
    down: Duration,
}

impl Spans {
    fn measure(host: &Host) -> Self {
        let [(first, gold_ms), _] = FILES;
        Self {
            up: Act::Up(first, gold_ms).done(host),
            adapt: Act::Adapt { to_gold: false }.done(host),
            down: Act::Down.done(host),
        }
    }

    /// A moment of it, or shortly after.
    fn moment(&self, act: &Act) -> Duration {
        let span = match act {
            Act::Up(..) => self.up,
            Act::Adapt { .. } => self.adapt,
            Act::Down => self.down,
        };
        // No two runs have the same moments.
        span.mul_f64((sys::clock::clock_ns() / 7919 % 1100) as f64 / 1000.0)
    }
}

/// Begins it, has the daemon killed after `moment`, starts its successor, and says whether the act
/// was done all the same.
fn interrupted(bed: &Bed, host: &Host, act: &Act, moment: Duration) -> bool {
    let mut child = act.begin(host);
    // The moment is what the test is about: it must not depend on anything that the daemon says.
    std::thread::park_timeout(moment);
    host.kill_role("daemon");
    bed.start_daemon(host);
    child.wait().expect("it ends").success()
}

fn show(host: &Host, name: &str) -> Value {
    host.json(&["reserve", "show", name])
}

fn domains(host: &Host) -> Vec<Value> {
    host.json(&["ps"]).as_array().cloned().unwrap_or_default()
}

/// The colour of a domain's program.
fn colour(row: &Value) -> String {
    let words = row["command"].as_array().and_then(|words| words.last()).and_then(Value::as_str);
    words.and_then(|line| line.rsplit(' ').next()).unwrap_or_default().to_owned()
}

/// The state that is wanted now; half of something is a failure.
fn wanted(host: &Host) -> Wanted {
    let rows = domains(host);
    let colour = colour(rows.first()?);
    let mut found: Vec<&str> = rows.iter().filter_map(|row| row["domain"].as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, names(&colour), "the domains of another file: {rows:?}");
    assert!(rows.iter().all(|row| self::colour(row) == colour), "two files are in force: {rows:?}");
    let promised = |name: &str| {
        let reserve = show(host, name)["reserve"].clone();
        let number = |pointer: &str| reserve.pointer(pointer).and_then(Value::as_u64).expect("a promise");
        (number("/cpu/budget_ns") / 1_000_000, number("/network/rate_bits") / 1_000_000)
    };
    let (gold, rest) = (promised("gold"), promised("rest"));
    assert_eq!(gold.0 + rest.0, BOTH_MS, "half of an adaptation: {gold:?} {rest:?}");
    assert_eq!(
        (gold.0, rest.0),
        (gold.1, rest.1),
        "the processor's half of an adaptation: {gold:?} {rest:?}"
    );
    Some((colour, gold.0))
}

/// Waits until all is as it is wanted: what runs, what the kernel keeps, and that there is nothing
/// else.
fn is_whole(bed: &Bed, host: &Host, wanted: &Wanted) {
    bed.until("the kernel has the cgroups of what is wanted, and no others", TIMEOUT, || {
        cgroups(host) == wanted.as_ref().map_or(Vec::new(), |(colour, _)| owned(&names(colour)))
    });
    let Some((colour, gold_ms)) = wanted else {
        bed.until("no class is left", TIMEOUT, || left(host).is_empty());
        assert_eq!(host.json(&["reserve", "ls"])["vtms"], Value::Array(Vec::new()));
        return;
    };
    bed.until("all run", TIMEOUT, || domains(host).iter().all(|row| row["state"] == "running"));
    for (name, ms) in [("gold", *gold_ms), ("rest", BOTH_MS - gold_ms)] {
        bed.until("the kernel keeps the quotas", TIMEOUT, || quota_us(host, name) == Some(ms * 1000));
        let rate = format!("rate {ms}Mbit");
        bed.until("the kernel keeps the rates", TIMEOUT, || {
            said(host, "tc", &["class", "show", "dev", "eth0"]).contains(&rate)
        });
    }
    // Whoever keeps it by a table, and whoever by a quota: nobody is held for good.
    let used = |name: &str| {
        let rows = domains(host);
        rows.iter().find(|row| row["domain"] == name).and_then(|row| row["cpu_us"].as_u64()).unwrap_or(0)
    };
    for name in names(colour) {
        let before = used(name);
        bed.until("everybody runs on", TIMEOUT, || used(name) > before);
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn top(host: &Host) -> String {
    std::fs::read_to_string(host.run_dir().join("cgroup")).expect("the cgroup").trim().to_owned()
}

/// The control groups of this test's domains, whichever hierarchy they are in, but for those of
/// monitors.
fn cgroups(host: &Host) -> Vec<String> {
    let mounts =
        std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let folders =
        mounts.chain([PathBuf::from("/sys/fs/cgroup")]).map(|mount| mount.join(top(host)).join("film"));
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let groups = entries.filter(|entry| entry.path().is_dir());
    let mut found: Vec<String> =
        groups.map(|group| group.file_name().to_string_lossy().into_owned()).collect();
    found.retain(|name| !name.contains('+'));
    found.sort_unstable();
    found.dedup();
    found
}

/// The quota that the kernel keeps, in µs; of version 1 or 2.
fn quota_us(host: &Host, name: &str) -> Option<u64> {
    let top = top(host);
    let files = ["cpu,cpuacct", "cpu"]
        .map(|mount| format!("/sys/fs/cgroup/{mount}/{top}/film/{name}/cpu.cfs_quota_us"));
    let one = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
    let text =
        one.or_else(|| std::fs::read_to_string(format!("/sys/fs/cgroup/{top}/film/{name}/cpu.max")).ok())?;
    text.split_whitespace().next()?.parse().ok()
}

fn said(host: &Host, program: &str, arguments: &[&str]) -> String {
    let output = host.inside(Path::new(program)).args(arguments).output().expect("it starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The objects of ours that are left on the node's interfaces.
fn left(host: &Host) -> String {
    let all = said(host, "tc", &["qdisc", "show"]) + &said(host, "ip", &["link", "show"]);
    let ours = |line: &&str| ["7462", "clsact", "ifb", "tombolo"].iter().any(|word| line.contains(word));
    all.lines().filter(ours).collect::<Vec<_>>().join("\n")
}

#[test]
fn whenever_the_daemon_is_killed_its_successor_finds_what_was_before_or_all_of_what_was_asked() {
    let Some(bed) = Bed::start(1) else { return };
    let host = bed.host(0);
    bed.start_daemon(host);
    host.ok(&["reserve", "node", "--link", "eth0=100mbit"]);
    let spans = Spans::measure(host);
    let mut before: Wanted = None;
    let mut counts = [0; 2];
    for round in 0..DEATHS {
        let act = Act::of(round, &before);
        let moment = spans.moment(&act);
        let done = interrupted(&bed, host, &act, moment);
        let now = wanted(host);
        let then = act.then(&before);
        let what =
            format!("round {round}: {act:?} after {moment:?}, done: {done}; before {before:?}, now {now:?}");
        println!("{what}");
        assert!(now == then || (!done && now == before), "{what}{}", host.daemon_log());
        counts[usize::from(now == then && now != before)] += 1;
        is_whole(&bed, host, &now);
        before = now;
        if before.is_none() && round % 6 < 5 {
            // For the next ones there has to be something.
            let (first, gold_ms) = FILES[0];
            Act::Up(first, gold_ms).done(host);
            before = wanted(host);
        }
    }
    println!("not done, done: {counts:?}");
    host.ok(&["down", "--all"]);
    is_whole(&bed, host, &None);
    bed.finish();
}
