//! Jobs inside a reservation: real periodic threads that are in time beside one that never rests,
//! by ranks in a table's slots and by the kernel's deadlines; refused where they can't be, and told
//! where nobody is one.

use e2e::{Node, wait};
use serde_json::Value;
use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;
use sys::schedule::Class;

const PERIODIC: &str = env!("CARGO_BIN_EXE_periodic");
/// How long all periods may take until they are seen, and how often that is tried on a machine with
/// other things to do.
const TIMEOUT: Duration = Duration::from_secs(60);
const TRIES: usize = 3;

fn show(node: &Node, name: &str) -> Value {
    node.json(&["reserve", "show", name])
}

fn job(row: &Value, name: &str) -> Value {
    let jobs = row["jobs"].as_array().expect("jobs");
    jobs.iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("no {name}: {row}")).clone()
}

/// The threads of a process by their names.
fn thread(pid: u32, name: &str) -> Option<u32> {
    fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().find_map(|entry| {
        let comm = fs::read_to_string(entry.path().join("comm")).ok()?;
        (comm.trim() == name).then(|| entry.file_name().to_str()?.parse().ok())?
    })
}

fn class(pid: u32, name: &str) -> Option<Class> {
    thread(pid, name).and_then(|thread| sys::schedule::class(thread).ok())
}

/// The results of the periodic threads: how many periods, and how many of them late.
fn results(text: &str) -> Vec<(String, u64, u64)> {
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        Some((name, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

struct Running {
    child: Child,
    pid: u32,
    said: std::path::PathBuf,
}

/// Starts the periodic program with a reservation that has two jobs, beside a thread that never
/// rests.
fn start(node: &Node, name: &str, policy: &str, work: &[&str]) -> Running {
    let said = node.folder().join(format!("{name}.said"));
    let mut command =
        node.command(&["reserve", "run", "--name", name, "--budget", "8ms", "--period", "20ms"]);
    command.args(["--policy", policy, "--job", "fast=2ms/20ms,thread=fast-*"]);
    command.args(["--job", "slow=4ms/40ms,thread=slow", "--", PERIODIC]).arg(&said).args(work);
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    // It becomes the program.
    let pid = child.id();
    Running { child, pid, said }
}

impl Running {
    fn has(&self, name: &str, is: impl Fn(Class) -> bool) -> bool {
        class(self.pid, name).is_some_and(&is)
    }

    /// Whether nearly all periods were in time; what was said.
    fn end(mut self) -> (bool, String) {
        wait::until_within("all periods are over", TIMEOUT, || self.said.exists());
        assert!(self.child.wait().expect("it ends").success());
        let text = fs::read_to_string(&self.said).expect("what it said");
        fs::remove_file(&self.said).expect("it is there");
        let all = results(&text);
        assert_eq!(all.len(), 2, "{text}");
        (all.iter().all(|(_, count, late)| late * 10 <= *count), text)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended already is as it should be.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Budgets are of the processor that they are computed on: what is asked for is a third more than
/// what is computed. There are as many periods as a busy daemon needs to find who is what.
const WORK: [&str; 3] = ["fast-1=1500/20000/20000/400", "slow=3000/40000/40000/200", "spin"];

/// A domain that wants nothing: its daemon is what is needed.
const QUIET: &str = "name = \"quiet\"\n\n[domain.one]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\nstop = { timeout = \"0ms\" }\n";

fn priority(class: Class) -> Option<u32> {
    match class {
        Class::RoundRobin { priority } => Some(priority),
        _ => None,
    }
}

#[test]
fn periodic_threads_are_in_time_by_their_ranks_beside_one_that_never_rests() {
    let Some(node) = Node::start() else { return };
    node.up_ok(QUIET);
    let mut said = Vec::new();
    for number in 0..TRIES {
        let name = format!("robot{number}");
        let running = start(&node, &name, "rate-monotonic", &WORK);
        wait::until("it is promised something", || node.run(&["reserve", "show", &name]).code == 0);
        let row = show(&node, &name);
        if row["kept_by"] != "table" {
            println!("skipped: {}", row["caveats"]);
            return;
        }
        wait::until("its threads are found", || job(&show(&node, &name), "slow")["threads"] == 1);
        let row = show(&node, &name);
        let (fast, slow) = (job(&row, "fast"), job(&row, "slow"));
        assert!(fast["priority"].as_u64() > slow["priority"].as_u64(), "{row}");
        assert!(fast["in_time"] == true && slow["in_time"] == true, "{row}");
        assert!(slow["response_ns"].as_u64().is_some_and(|ns| ns <= 40_000_000), "{row}");
        let as_told = |job: &Value| {
            let told = job["priority"].as_u64().and_then(|told| u32::try_from(told).ok());
            move |class: Class| told.is_some() && priority(class) == told
        };
        let (is_fast, is_slow) = (as_told(&fast), as_told(&slow));
        wait::until("they have their priorities", || {
            running.has("fast-1", is_fast) && running.has("slow", is_slow)
        });
        wait::until("who is no job comes after them", || {
            running.has("spin", |class| {
                priority(class).is_some_and(|own| {
                    Some(own) < slow["priority"].as_u64().and_then(|told| u32::try_from(told).ok())
                })
            })
        });
        let text = node.ok(&["reserve", "explain"]);
        assert!(text.contains("job fast: 2ms in 20ms, at worst after") && text.contains("in time"), "{text}");
        let (good, text) = running.end();
        if good {
            node.ok(&["down"]);
            node.finish();
            return;
        }
        said.push(text);
    }
    panic!("late in each of {TRIES} runs: {said:?}");
}

#[test]
fn periodic_threads_have_deadlines_of_their_own_where_they_go_by_them() {
    let Some(node) = Node::start() else { return };
    node.up_ok(QUIET);
    let mut said = Vec::new();
    for number in 0..TRIES {
        let name = format!("robot{number}");
        let running = start(&node, &name, "earliest-deadline", &WORK);
        wait::until("it is promised something", || node.run(&["reserve", "show", &name]).code == 0);
        let row = show(&node, &name);
        if row["kept_by"] != "deadline" {
            println!("skipped: {}", row["caveats"]);
            return;
        }
        let is = |budget_ms: u64, ms: u64| {
            move |class: Class| {
                matches!(class, Class::Deadline { runtime_ns, period_ns, .. }
                    if (runtime_ns, period_ns) == (budget_ms * 1_000_000, ms * 1_000_000))
            }
        };
        wait::until("each has its own budget", || {
            running.has("fast-1", is(2, 20)) && running.has("slow", is(4, 40))
        });
        let row = show(&node, &name);
        assert!(job(&row, "fast")["response_ns"].is_null() && job(&row, "fast")["in_time"] == true, "{row}");
        let (good, text) = running.end();
        if good {
            node.ok(&["down"]);
            node.finish();
            return;
        }
        said.push(text);
    }
    panic!("late in each of {TRIES} runs: {said:?}");
}

fn film(more: &str) -> String {
    format!(
        "name = \"film\"\n\n[domain.gold]\nkind = \"container\"\nroot = \"host\"\nstop = {{ timeout = \"0ms\" }}\n\
         command = [\"sh\", \"-c\", \"cat /dev/zero > /dev/null & sleep infinity\"]\n\
         [domain.gold.reserve]\ncpu = {{ budget = \"8ms\", period = \"40ms\", processor = 0 }}\n{more}\n"
    )
}

#[test]
fn jobs_of_a_file_are_refused_by_name_kept_by_rank_and_adapted() {
    let Some(node) = Node::start() else { return };
    for (more, words) in [
        (
            "policy = \"rate-monotonic\"\njobs.copy = { process = \"cat\", budget = \"8ms\", period = \"80ms\", deadline = \"30ms\" }",
            "inside `film/gold`: job `copy` would take",
        ),
        (
            "policy = \"shortest-first\"\njobs.copy = { process = \"cat\", budget = \"1ms\", period = \"40ms\" }",
            "shortest-first",
        ),
        ("policy = \"rate-monotonic\"", "rate-monotonic orders jobs, and none is named"),
        ("jobs.copy = { process = \"cat\", budget = \"1ms\", period = \"40ms\" }", "are not run in turn"),
        (
            "policy = \"rate-monotonic\"\nenforce = \"bandwidth\"\njobs.copy = { process = \"cat\", budget = \"1ms\", period = \"40ms\" }",
            "kept by `table`, not by `bandwidth`",
        ),
        (
            "policy = \"rate-monotonic\"\njobs.copy = { thread = \"a-name-that-is-too-long\", budget = \"1ms\", period = \"40ms\" }",
            "the kernel keeps 15 bytes",
        ),
    ] {
        let refused = node.up(&film(more));
        assert!(refused.code != 0 && refused.err.contains(words), "{more}: {}", refused.err);
    }
    let good = "policy = \"deadline-monotonic\"\njobs.copy = { process = \"cat\", budget = \"2ms\", period = \"40ms\" }\n\
                jobs.rest = { process = \"nobody-is-this\", budget = \"2ms\", period = \"80ms\" }";
    node.up_ok(&film(good));
    let row = show(&node, "gold");
    if row["kept_by"] != "table" {
        println!("skipped: {}", row["caveats"]);
        return;
    }
    wait::until("the job is found", || job(&show(&node, "gold"), "copy")["processes"] == 1);
    let text = node.ok(&["reserve", "show", "gold"]);
    assert!(text.contains("nobody in it is job `rest` (process \"nobody-is-this\")"), "{text}");
    assert!(
        text.contains("job copy: 2ms in 40ms, at worst after") && text.contains("nobody is it now"),
        "{text}"
    );
    let drawn = node.ok(&["reserve", "ls", "--tree"]);
    assert!(drawn.contains("job copy"), "{drawn}");
    let used = || job(&show(&node, "gold"), "copy")["used_us"].as_u64().unwrap_or(0);
    let before = used();
    wait::until("it has its time", || used() > before + 20_000);
    // Other jobs, without a restart of anything.
    node.ok(&["reserve", "set", "gold", "--job", "copy=4ms/40ms,process=cat"]);
    let rows = show(&node, "gold");
    assert!(rows["jobs"].as_array().is_some_and(|jobs| jobs.len() == 1), "{rows}");
    assert_eq!(job(&rows, "copy")["budget_ns"], 4_000_000);
    let refused = node.run(&["reserve", "set", "gold", "--job", "copy=9ms/40ms,process=cat"]);
    assert!(refused.code == 1 && refused.err.contains("job `copy`"), "{}", refused.err);
    // The next daemon knows them.
    node.kill_daemon();
    node.up_ok(&film(good));
    wait::until("the next daemon knows them", || {
        let run = node.run(&["reserve", "show", "gold", "--json"]);
        let row: Value = serde_json::from_str(&run.out).unwrap_or_default();
        row["jobs"][0]["budget_ns"] == 4_000_000 && row["jobs"][0]["processes"] == 1
    });
    node.ok(&["reserve", "set", "gold", "--policy", "round-robin", "--enforce", "bandwidth"]);
    assert_eq!(show(&node, "gold")["kept_by"], "bandwidth");
    node.ok(&["down"]);
    node.finish();
}
