//! A promise is admitted as a whole, kept by the kernel, adapted in one step, and survives a
//! daemon.

use e2e::node::kill_and_wait;
use e2e::{Node, wait};
use serde_json::Value;
use std::path::Path;

const MS: u64 = 1_000_000;

/// Two domains that never rest, each with a promise on processor 0.
fn film(gold_ms: u64, rest_ms: u64) -> String {
    let domain = |name: &str, budget_ms: u64| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sh\", \"-c\", \"while :; do :; done\"]\n\
             stop = {{ timeout = \"0ms\" }}\n\
             reserve = {{ cpu = {{ budget = \"{budget_ms}ms\", period = \"40ms\", processor = 0 }}, memory = \"16MiB\" }}\n\n"
        )
    };
    format!("name = \"film\"\n\n{}{}", domain("gold", gold_ms), domain("rest", rest_ms))
}

fn show(node: &Node, name: &str) -> Value {
    node.json(&["reserve", "show", name])
}

fn budget(node: &Node, name: &str) -> u64 {
    show(node, name)["reserve"]["cpu"]["budget_ns"].as_u64().expect("a budget")
}

/// The quota that the kernel keeps, in µs; of version 1 or 2.
fn quota_us(node: &Node, name: &str) -> u64 {
    // As the daemon wrote it down: there may be none now.
    let top = std::fs::read_to_string(node.run_dir().join("cgroup")).expect("the cgroup");
    let top = top.trim();
    let read = |path: String| std::fs::read_to_string(path).ok();
    let one = ["cpu,cpuacct", "cpu"]
        .iter()
        .find_map(|mount| read(format!("/sys/fs/cgroup/{mount}/{top}/film/{name}/cpu.cfs_quota_us")));
    let text = one.or_else(|| read(format!("/sys/fs/cgroup/{top}/film/{name}/cpu.max"))).expect("a quota");
    text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

#[test]
fn promises_are_kept_by_the_kernel_adapted_in_one_step_and_adopted_by_the_next_daemon() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&film(24, 16));
    assert_eq!((quota_us(&node, "gold"), quota_us(&node, "rest")), (24_000, 16_000));
    // Whoever wants more than was promised is held back, period by period.
    wait::until("both are held back", || {
        ["gold", "rest"].iter().all(|name| number(&show(&node, name), "throttled_periods") > 2)
    });
    assert!(node.ok(&["reserve", "ls"]).contains("24ms / 40ms"));
    assert!(node.ok(&["reserve", "ls", "--tree"]).contains("machine film/gold"));
    let explained = node.ok(&["reserve", "explain"]);
    assert!(
        explained.contains("100.0000 % promised") && explained.contains("film/gold: 24ms in each 40ms"),
        "{explained}"
    );
    assert!(node.json(&["ps"]).to_string().contains("cpu 24ms in 40ms"));
    assert!(node.ok(&["reserve", "simulate"]).contains("0 late"));

    let moved = node.json(&["adapt", "rest", "gold", "--cpu", "8ms", "--memory", "4MiB"]);
    assert_eq!(number(&moved, "shrinking"), 1, "{moved}");
    let first = moved["steps"][0].as_str().expect("a step");
    assert!(
        first.starts_with("film/rest: cpu 16ms in 40ms to 8ms in 40ms"),
        "who gives comes first: {moved}"
    );
    // When it was in effect is looked for during a few periods, in which a busy machine may show
    // nothing.
    assert!(moved["commit_us"].is_u64() && moved.get("effect_us").is_some(), "{moved}");
    assert_eq!((quota_us(&node, "gold"), quota_us(&node, "rest")), (32_000, 8_000));

    // Refused as a whole: nothing has changed.
    let refused = node.run(&["reserve", "set", "gold", "--budget", "33ms"]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.err.contains("it would pass with a budget of 32 ms for `film/gold` instead of 33 ms"),
        "{}",
        refused.err
    );
    let refused = node.run(&["adapt", "rest", "gold", "--cpu", "9ms"]);
    assert!(refused.err.contains("film/rest has not so much processor time to give"), "{}", refused.err);
    assert_eq!((quota_us(&node, "gold"), quota_us(&node, "rest")), (32_000, 8_000));

    kill_and_wait(&node.pids("daemon"));
    assert_eq!(quota_us(&node, "gold"), 32_000, "the kernel goes on by itself");
    // The next daemon goes on from what was adapted, and `up` with the same file leaves that as it
    // is.
    node.up_ok(&film(24, 16));
    assert_eq!((budget(&node, "gold"), budget(&node, "rest")), (32 * MS, 8 * MS));
    assert_eq!(quota_us(&node, "gold"), 32_000);
    // Another file says something else.
    node.up_ok(&film(20, 20));
    assert_eq!(
        (budget(&node, "gold"), quota_us(&node, "gold"), quota_us(&node, "rest")),
        (20 * MS, 20_000, 20_000)
    );
    node.ok(&["down"]);
    assert!(node.json(&["reserve", "ls"])["vtms"].as_array().is_some_and(Vec::is_empty));
    node.finish();
}

#[test]
fn a_file_that_does_not_fit_starts_nothing_and_says_who_would_be_late() {
    let Some(node) = Node::start() else { return };
    let refused = node.up(&film(32, 16));
    assert_ne!(refused.code, 0);
    assert!(
        refused.err.contains("error[not-kept]") && refused.err.contains("would take 48 ms of its 40 ms"),
        "{}",
        refused.err
    );
    assert!(
        refused.err.contains("reserve = { cpu = { budget = \"16ms\""),
        "the line of the file: {}",
        refused.err
    );
    assert!(node.json(&["ps"]).as_array().is_some_and(Vec::is_empty));
    node.finish();
}

#[test]
fn any_command_can_be_promised_something_for_as_long_as_it_runs() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&film(8, 8));
    let asked = [
        "reserve",
        "run",
        "--name",
        "loop",
        "--budget",
        "5ms",
        "--period",
        "20ms",
        "--",
        "cat",
        "/proc/self/cgroup",
    ];
    let out = node.ok(&asked);
    assert!(out.contains("+run/loop"), "{out}");
    let gone = || node.json(&["reserve", "ls"])["vtms"].as_array().is_some_and(|all| all.len() == 2);
    wait::until("its promise has ended with it", gone);
    assert_eq!(
        node.run(&["reserve", "run", "--budget", "5ms", "--period", "20ms", "--", "sh", "-c", "exit 7"]).code,
        7
    );
    // What was started by it is in it, too, and the promise lasts as long as that.
    let mut long = node
        .command(&[
            "reserve",
            "run",
            "--name",
            "long",
            "--budget",
            "5ms",
            "--period",
            "20ms",
            "--",
            "sh",
            "-c",
            "cat & cat",
        ])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("tombolo starts");
    wait::until("it is promised something", || node.run(&["reserve", "show", "long"]).code == 0);
    let twice =
        node.run(&["reserve", "run", "--name", "long", "--budget", "1ms", "--period", "20ms", "--", "true"]);
    assert!(
        twice.code == 2 && twice.err.contains("there is a reservation run/long already"),
        "{}",
        twice.err
    );
    node.ok(&["adapt", "long", "gold", "--cpu", "1ms"]);
    assert_eq!((budget(&node, "long"), budget(&node, "gold")), (4 * MS, 10 * MS));
    kill_and_wait(&node.pids("daemon"));
    node.up_ok(&film(8, 8));
    assert_eq!(budget(&node, "long"), 4 * MS, "the next daemon knows it");
    drop(long.stdin.take());
    assert!(long.wait().expect("it ends").success());
    wait::until("its promise has ended with it", gone);
    node.ok(&["down"]);
    node.finish();
}

#[test]
fn who_is_suspended_does_not_run_and_keeps_the_promise() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&film(8, 8));
    assert!(node.ok(&["reserve", "suspend", "gold"]).contains("film/gold is suspended"));
    // What it has had stays the same while the other one goes on.
    let had = number(&show(&node, "gold"), "cpu_us");
    let other = number(&show(&node, "rest"), "cpu_us");
    wait::until("the other one goes on", || number(&show(&node, "rest"), "cpu_us") > other + 20_000);
    // What it ran on its way to the freezer may be counted after it has got there.
    let now = number(&show(&node, "gold"), "cpu_us");
    assert!(now - had < 1_000, "it is held, and ran {} us", now - had);
    assert_eq!(budget(&node, "gold"), 8 * MS);
    node.ok(&["reserve", "resume", "gold"]);
    wait::until("it goes on", || number(&show(&node, "gold"), "cpu_us") > now + 1_000);
    node.ok(&["reserve", "suspend", "rest"]);
    // Held or not, it is removed.
    node.ok(&["down"]);
    node.finish();
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&film(8, 8));
    let cases: [(&[&str], i32, &str); 19] = [
        (&["reserve", "show", "glod"], 1, "the reservations are: film/gold, film/rest"),
        (&["reserve", "set", "gold", "--budget", "0ms"], 2, "0 is nothing"),
        (
            &["reserve", "set", "gold", "--budget", "-5ms"],
            2,
            "it is less than nothing: say how much it is to have",
        ),
        (&["reserve", "set", "gold", "--network", "-5mbit"], 2, "it is less than nothing"),
        (
            &["reserve", "run", "--budget", "-5ms", "--period", "20ms", "--", "true"],
            2,
            "`tombolo adapt` moves some of it",
        ),
        (&["reserve", "set", "gold", "--budget", "5 fortnights"], 2, "a whole number and its unit"),
        (&["reserve", "set", "gold", "--budget", "50ms"], 2, "does not fit into a period"),
        (&["reserve", "set", "gold", "--budget", "99999999999999999999ns"], 2, "a whole number and its unit"),
        (&["reserve", "set", "gold", "--enforce", "fifo"], 2, "auto, bandwidth, table or deadline"),
        (&["reserve", "set", "gold", "--outside", "away"], 2, "held, idle or fair"),
        (&["reserve", "set", "gold"], 0, "nothing to do"),
        (&["adapt", "gold", "rest"], 2, "nothing is moved"),
        (&["adapt", "gold", "gold", "--cpu", "1ms"], 2, "can't give to itself"),
        (&["adapt", "gold", "rest", "--network", "1mbit"], 1, "has not so much of the network"),
        (
            &["reserve", "node", "--policy", "fifo"],
            2,
            "rate-monotonic, deadline-monotonic or earliest-deadline",
        ),
        (&["reserve", "node", "--processors", "127"], 1, "no processor 127"),
        (&["reserve", "run", "--budget", "5ms", "--", "true"], 2, "processor time needs --period"),
        // As `env` and `nice` say it.
        (
            &["reserve", "run", "--budget", "5ms", "--period", "20ms", "--", "/no/such/program"],
            127,
            "can't run /no/such/program: No such file",
        ),
        (
            &["reserve", "run", "--budget", "5ms", "--period", "20ms", "--", "/etc/passwd"],
            126,
            "can't run /etc/passwd: Permission denied",
        ),
    ];
    for (arguments, code, words) in cases {
        let run = node.run(arguments);
        assert_eq!(run.code, code, "{arguments:?}: {}{}", run.out, run.err);
        assert!(format!("{}{}", run.out, run.err).contains(words), "{arguments:?}: {}{}", run.out, run.err);
    }
    // Below what the kernel keeps: told, or refused where that was asked for.
    let short = ["--budget", "100us", "--period", "1ms", "--", "true"];
    let run = node.run(&[&["reserve", "run"][..], &short].concat());
    assert!(run.code == 0 && run.err.contains("not guaranteed: the budget comes within"), "{}", run.err);
    let run = node.run(&[&["reserve", "run", "--strict"][..], &short].concat());
    assert!(run.code == 1 && run.err.contains("its reservation is strict"), "{}", run.err);
    assert!(node.json(&["reserve", "ls"])["vtms"].as_array().is_some_and(|all| all.len() == 2));
    assert!(
        !Path::new("/sys/fs/cgroup/cpu/tombolo+run").exists() || node.run_dir() == Path::new("/run/tombolo")
    );
    node.ok(&["down"]);
    node.finish();
}

/// The kernel's setting of memory and of the disk for a domain: a file of either version of control
/// groups.
fn kept(node: &Node, name: &str, one: &str, two: &str) -> String {
    let top = std::fs::read_to_string(node.run_dir().join("cgroup")).expect("the cgroup");
    let top = top.trim();
    let controller = if one.starts_with("memory") { "memory" } else { "blkio" };
    let read = |path: String| std::fs::read_to_string(path).ok();
    let text = read(format!("/sys/fs/cgroup/{controller}/{top}/film/{name}/{one}"));
    text.or_else(|| read(format!("/sys/fs/cgroup/{top}/film/{name}/{two}"))).expect("a file of the kernel")
}

#[test]
fn memory_and_disk_move_with_the_processor_in_one_step_and_back_when_one_has_not_so_much() {
    let Some(node) = Node::start() else { return };
    let with_disk = film(8, 8).replace("memory = \"16MiB\"", "memory = \"16MiB\", io = { bytes = \"4MB\" }");
    node.up_ok(&with_disk);
    let soft = |name: &str| kept(&node, name, "memory.soft_limit_in_bytes", "memory.low").trim().to_owned();
    let disk = |name: &str| kept(&node, name, "blkio.throttle.write_bps_device", "io.max");
    // A state directory on no disk has none to throttle, which is told.
    let throttled = !show(&node, "gold")["caveats"].to_string().contains("the disk is not kept");
    assert_eq!((soft("gold"), soft("rest")), ((16 << 20).to_string(), (16 << 20).to_string()));
    let moved =
        node.json(&["adapt", "rest", "gold", "--cpu", "2ms", "--memory", "4MiB", "--io-bytes", "1MB"]);
    assert_eq!(number(&moved, "shrinking"), 1, "{moved}");
    assert_eq!((soft("gold"), soft("rest")), ((20 << 20).to_string(), (12 << 20).to_string()));
    if throttled {
        assert!(disk("gold").contains("5000000") && disk("rest").contains("3000000"), "{}", disk("gold"));
    }
    // Of the disk there is not so much: of the rest nothing moves, either.
    let refused =
        node.run(&["adapt", "rest", "gold", "--cpu", "1ms", "--memory", "1MiB", "--io-bytes", "9MB"]);
    assert!(refused.code == 1 && refused.err.contains("has not so much of the disk"), "{}", refused.err);
    assert_eq!((budget(&node, "gold"), soft("gold")), (10 * MS, (20 << 20).to_string()));
    // More than the node has.
    let refused = node.run(&["reserve", "set", "gold", "--memory", "1000TiB"]);
    assert!(refused.code == 1 && refused.err.contains("the node can't keep this"), "{}", refused.err);
    assert_eq!(soft("gold"), (20 << 20).to_string());
    assert!(
        node.ok(&["reserve", "show", "gold"]).contains("pressure   "),
        "how long it has waited for memory"
    );
    node.ok(&["down"]);
    node.finish();
}

/// The hierarchy of a controller, as the daemon alone sees it: writable, or not.
fn remount(daemon: u32, place: &str, option: &str) -> bool {
    let (pid, options) = (daemon.to_string(), format!("remount,bind,{option}"));
    let mut command = std::process::Command::new("nsenter");
    command.args(["--target", &pid, "--mount", "mount", "-o", &options, place]);
    command.status().is_ok_and(|status| status.success())
}

/// The story of it: the processor had been moved already when the kernel did not take what was to
/// be moved of the memory, or of the disk.
#[test]
fn an_adaptation_of_whose_parts_the_kernel_takes_all_but_one_changes_nothing() {
    let Some(node) = Node::start() else { return };
    let places = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/blkio"];
    if !places.iter().all(|place| Path::new(place).is_dir()) {
        println!("skipped: only version 1 of cgroups has a hierarchy for each part");
        return;
    }
    let file = node.folder().join("topology.toml");
    let text = film(8, 8).replace("memory = \"16MiB\"", "memory = \"16MiB\", io = { bytes = \"4MB\" }");
    std::fs::write(&file, text).expect("the topology is written");
    // A daemon with mounts of its own.
    let script =
        "for at in \"$0\" \"$1\"; do mount --bind \"$at\" \"$at\" || exit 99; done; shift; exec \"$@\"";
    let inner = node.command(&["up", &file.to_string_lossy()]);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).args(places);
    let up: e2e::node::Run =
        command.arg(inner.get_program()).args(inner.get_args()).output().expect("unshare starts").into();
    assert_eq!(up.code, 0, "{}{}", up.err, node.daemon_log());
    let daemon = node.pids("daemon").first().copied().expect("a daemon");
    let soft = |name: &str| kept(&node, name, "memory.soft_limit_in_bytes", "memory.low").trim().to_owned();
    let disk = |name: &str| kept(&node, name, "blkio.throttle.write_bps_device", "io.max");
    let all =
        || ["gold", "rest"].map(|name| (budget(&node, name), quota_us(&node, name), soft(name), disk(name)));
    let throttled = !show(&node, "gold")["caveats"].to_string().contains("the disk is not kept");
    let adapt = ["adapt", "rest", "gold", "--cpu", "2ms", "--memory", "4MiB", "--io-bytes", "1MB"];
    let before = all();
    for place in places.iter().take(if throttled { 2 } else { 1 }) {
        assert!(remount(daemon, place, "ro"), "{place} is read-only for the daemon");
        let refused = node.run(&adapt);
        assert!(
            refused.code == 1 && refused.err.contains("and all is as before"),
            "{place}: {}",
            refused.err
        );
        assert!(refused.err.contains("Read-only"), "{place}: {}", refused.err);
        assert_eq!(all(), before, "{place}");
        assert!(remount(daemon, place, "rw"), "{place} is writable again");
    }
    node.ok(&adapt);
    assert_eq!(
        (budget(&node, "gold"), quota_us(&node, "gold"), soft("gold")),
        (10 * MS, 10_000, (20 << 20).to_string())
    );
    node.ok(&["down"]);
    node.finish();
}

/// The order of a node is changed by the command line where all that is promised is kept by the
/// other one, too.
#[test]
fn another_policy_of_the_node_is_taken_where_all_is_kept_by_it_and_refused_by_name_where_not() {
    let Some(node) = Node::start() else { return };
    // 25 of 60 and 20 of 40 are 92 % of a processor; where the shorter period goes first, the
    // longer one takes 65.
    node.up_ok(&film(25, 20).replacen("period = \"40ms\"", "period = \"60ms\"", 1));
    let policy = || node.json(&["reserve", "node"])["policy"].as_str().expect("a policy").to_owned();
    assert_eq!(policy(), "earliest-deadline");
    node.ok(&["reserve", "node", "--policy", "earliest-deadline"]);
    let rows = || node.ok(&["reserve", "explain"]);
    assert!(rows().contains("policy earliest deadline first"), "{}", rows());
    let refused = node.run(&["reserve", "node", "--policy", "rate-monotonic"]);
    assert!(refused.code == 1 && refused.err.contains("`film/gold`"), "{}", refused.err);
    assert!(refused.err.contains("it would pass with"), "{}", refused.err);
    assert_eq!(policy(), "earliest-deadline", "nothing has changed");
    node.ok(&["reserve", "set", "gold", "--budget", "20ms"]);
    for (word, told) in [("rate-monotonic", "rate monotonic"), ("deadline-monotonic", "deadline monotonic")] {
        node.ok(&["reserve", "node", "--policy", word]);
        assert_eq!(policy(), word);
        assert!(rows().to_lowercase().replace('-', " ").contains(&format!("policy {told}")), "{}", rows());
        assert!(node.ok(&["reserve", "simulate"]).contains("0 late"));
    }
    node.ok(&["down"]);
    node.finish();
}
