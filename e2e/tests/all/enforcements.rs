//! The enforcement of processor time: a table, deadlines or a quota, as each file says; by
//! processes that may die at any moment, with nobody held or throttled after it.

use e2e::node::kill_and_wait;
use e2e::{Node, wait};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use sys::schedule::Class;

/// A domain that never rests, with a promise on processor 0 and more keys of it.
fn domain(name: &str, budget_ms: u64, more: &str) -> String {
    format!(
        "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sh\", \"-c\", \"while :; do :; done\"]\n\
         stop = {{ timeout = \"0ms\" }}\n\
         reserve = {{ cpu = {{ budget = \"{budget_ms}ms\", period = \"40ms\", processor = 0 }}{more} }}\n\n"
    )
}

fn film(domains: &[String]) -> String {
    format!("name = \"film\"\n\n{}", domains.concat())
}

const TABLE: &str = ", enforce = \"table\"";
const DEADLINE: &str = ", enforce = \"deadline\"";

fn show(node: &Node, name: &str) -> Value {
    node.json(&["reserve", "show", name])
}

fn number(row: &Value, pointer: &str) -> u64 {
    row.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

fn text<'v>(row: &'v Value, key: &str) -> &'v str {
    row[key].as_str().unwrap_or_default()
}

/// Whether this machine has what a table takes; where not, that was said.
fn has_a_table(node: &Node, name: &str) -> bool {
    let row = show(node, name);
    let is = text(&row, "kept_by") == "table";
    if !is {
        println!("skipped: {}", row["caveats"]);
    }
    is
}

fn top(node: &Node) -> String {
    fs::read_to_string(node.run_dir().join("cgroup")).expect("the cgroup").trim().to_owned()
}

/// Cgroups of this node's dispatchers that are there.
fn dispatchers_cgroups(node: &Node) -> Vec<PathBuf> {
    let prefix = format!("{}+", top(node));
    let mounts = fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten().map(|entry| entry.path());
    let mut found = Vec::new();
    for mount in mounts.chain([PathBuf::from("/sys/fs/cgroup")]) {
        let entries = fs::read_dir(mount).into_iter().flatten().flatten();
        let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        found.extend(ours.map(|entry| entry.path()));
    }
    found
}

/// The first process of a domain.
fn first(node: &Node, name: &str) -> u32 {
    let rows = node.json(&["ps"]);
    let row = rows.as_array().expect("rows").iter().find(|row| row["domain"] == name).expect("its row");
    u32::try_from(number(row, "/pid")).expect("a process")
}

fn used_ns(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("it is there");
    text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

/// Where a process is, but for the hierarchies that have nothing to do with it.
fn processor_cgroup(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it is there");
    let of_cpu = |line: &&str| {
        line.split(':')
            .nth(1)
            .is_some_and(|names| names.is_empty() || names.split(',').any(|name| name == "cpu"))
    };
    text.lines().filter(of_cpu).collect::<Vec<_>>().join(" ")
}

fn is_ordinary(pid: u32) -> bool {
    sys::schedule::class(pid).is_ok_and(|class| class == Class::Other { nice: 0 })
}

/// It runs, as an ordinary process, and nobody holds it.
fn is_free(what: &str, pid: u32) {
    wait::until(&format!("{what}: it is ordinary"), || is_ordinary(pid));
    let used = used_ns(pid);
    wait::until(&format!("{what}: it runs"), || used_ns(pid) > used + 30_000_000);
    assert!(is_ordinary(pid), "{what}: it stays so");
}

fn wait_for_slots(node: &Node, name: &str) {
    let row = show(node, name);
    let before = number(&row, "/dispatched/slots");
    wait::until("it has slots", || number(&show(node, name), "/dispatched/slots") > before);
}

#[test]
fn each_is_kept_by_what_its_file_says_and_explain_says_why() {
    let Some(node) = Node::start() else { return };
    let domains = [domain("gold", 8, TABLE), domain("rest", 6, ""), domain("late", 6, DEADLINE)];
    node.up_ok(&film(&domains));
    if !has_a_table(&node, "gold") {
        return;
    }
    assert_eq!(text(&show(&node, "rest"), "kept_by"), "bandwidth");
    assert_eq!(text(&show(&node, "late"), "kept_by"), "deadline", "{}", show(&node, "late"));
    let explained = node.ok(&["reserve", "explain"]);
    assert!(explained.contains("film/gold: kept by table, a real-time thread of ours"), "{explained}");
    assert!(explained.contains("film/rest: kept by bandwidth, the kernel's quota"), "{explained}");
    assert!(
        explained.contains("film/late: kept by deadline") && explained.contains("it was asked for"),
        "{explained}"
    );
    wait_for_slots(&node, "gold");
    let gold = first(&node, "gold");
    assert!(processor_cgroup(gold).contains("+table+jobs"), "{}", processor_cgroup(gold));
    assert!(matches!(sys::schedule::class(first(&node, "late")), Ok(Class::Deadline { .. })));
    // Whoever is counted on a processor is bound to it, but for deadlines, which the kernel gives
    // to nobody who is.
    let bound = |name: &str| sys::schedule::affinity(first(&node, name)).expect("its processors");
    let is_told = show(&node, "rest")["caveats"].to_string().contains("it is not bound to the processor");
    assert!(bound("rest") == [0] || is_told, "{:?}", bound("rest"));
    assert_eq!(bound("gold"), [0]);
    assert_eq!(bound("late"), sys::schedule::affinity(0).expect("ours"));
    // Commands can be run in it, though it is frozen most of the time.
    assert_eq!(node.shell_ok("gold", "echo here").trim(), "here");
    // What it has is what was set apart for it, give or take what a slot is late.
    let before = show(&node, "gold");
    wait::until("some slots", || {
        number(&show(&node, "gold"), "/dispatched/slots") > number(&before, "/dispatched/slots") + 10
    });
    let after = show(&node, "gold");
    let grown = |pointer: &str| number(&after, pointer) - number(&before, pointer);
    let (offered, used) = (grown("/dispatched/offered_us"), grown("/dispatched/used_us"));
    assert!(used < offered * 5 / 4 + 20_000, "used {used} us of {offered} us");
    assert!(number(&after, "/cpu_us") > 0 && node.ok(&["reserve", "show", "gold"]).contains("slots      "));

    // Held by the table's own thread, and its promise stays.
    node.ok(&["reserve", "suspend", "gold"]);
    let had = wait_until_it_rests(gold);
    let other = used_ns(first(&node, "rest"));
    wait::until("another one goes on", || used_ns(first(&node, "rest")) > other + 20_000_000);
    assert_eq!(used_ns(gold), had);
    node.ok(&["reserve", "resume", "gold"]);
    wait::until("it goes on", || used_ns(gold) > had);

    // From one enforcement to another, in one step.
    let moved = node.json(&["adapt", "gold", "rest", "--cpu", "4ms"]);
    assert_eq!(number(&moved, "/shrinking"), 1, "{moved}");
    // On a busy machine nobody of them may run for some periods.
    wait::until("a change is seen to have effect", || {
        let there = node.json(&["adapt", "gold", "rest", "--cpu", "1ms"]);
        node.ok(&["adapt", "rest", "gold", "--cpu", "1ms"]);
        there["effect_us"].is_u64()
    });
    assert_eq!(number(&show(&node, "gold"), "/reserve/cpu/budget_ns"), 4_000_000);
    // And kept by something else from now on.
    node.ok(&["reserve", "set", "gold", "--enforce", "bandwidth"]);
    assert_eq!(text(&show(&node, "gold"), "kept_by"), "bandwidth");
    is_free("under a quota", gold);
    assert!(!processor_cgroup(gold).contains("+table"), "{}", processor_cgroup(gold));
    // Who was bound to a processor is not while it has a deadline, and is again after it.
    for before in ["bandwidth", "table"] {
        node.ok(&["reserve", "set", "gold", "--enforce", before]);
        wait::until("it is bound", || bound("gold") == [0] || is_told);
        node.ok(&["reserve", "set", "gold", "--enforce", "deadline"]);
        assert_eq!(text(&show(&node, "gold"), "kept_by"), "deadline", "{}", show(&node, "gold"));
        assert!(matches!(sys::schedule::class(gold), Ok(Class::Deadline { .. })));
        assert_eq!(bound("gold"), sys::schedule::affinity(0).expect("ours"));
    }
    node.ok(&["reserve", "set", "gold", "--enforce", "table"]);
    wait_for_slots(&node, "gold");
    node.ok(&["down"]);
    assert_eq!(dispatchers_cgroups(&node), Vec::<PathBuf>::new());
    assert!(!node.run_dir().join("enforce").exists(), "nobody needs them any more");
    node.finish();
}

/// Its processor time when it does not grow any more.
fn wait_until_it_rests(pid: u32) -> u64 {
    let mut last = 0;
    wait::until("it is held", || {
        let before = std::mem::replace(&mut last, used_ns(pid));
        wait::pause(std::time::Duration::from_millis(100));
        before == last && used_ns(pid) == last
    });
    last
}

#[test]
fn whoever_dies_nobody_stays_held_and_the_promise_is_kept_again() {
    let Some(node) = Node::start() else { return };
    let file = film(&[domain("gold", 8, TABLE), domain("rest", 6, "")]);
    node.up_ok(&file);
    if !has_a_table(&node, "gold") {
        return;
    }
    wait_for_slots(&node, "gold");
    let gold = first(&node, "gold");
    let roles = ["internal-dispatcher", "internal-guardian", "daemon"];
    let (dispatcher, guardian, daemon) = (1, 2, 4);
    for (round, dead) in
        [dispatcher, daemon, dispatcher | daemon, dispatcher | guardian, guardian, 7].into_iter().enumerate()
    {
        // Somewhere in the table's cycle.
        let moment = sys::clock::clock_ns() / 7 % 80_000_000;
        wait::pause(std::time::Duration::from_nanos(moment));
        let pids: Vec<u32> = roles
            .iter()
            .enumerate()
            .filter(|(number, _)| dead & (1 << number) != 0)
            .flat_map(|(_, role)| node.pids(role))
            .collect();
        let before = node.pids("internal-dispatcher");
        kill_and_wait(&pids);
        let what = format!("round {round}, {dead:03b} dead after {moment} ns");
        if dead == dispatcher | daemon {
            // Nobody of ours is left but monitors and frontends.
            is_free(&what, gold);
        }
        if dead == daemon {
            assert_eq!(node.pids("internal-dispatcher"), before, "{what}: it outlives the daemon");
        }
        // Whoever asks starts the next daemon, which finds or starts a dispatcher.
        let kept = || {
            let shown = node.run(&["reserve", "show", "gold", "--json"]);
            let row: Value = serde_json::from_str(&shown.out).unwrap_or_default();
            text(&row, "kept_by") == "table" && row["dispatched"]["slots"].is_u64()
        };
        if dead & daemon != 0 {
            node.up_ok(&file);
        }
        wait::until(&format!("{what}: it is kept again"), kept);
        wait_for_slots(&node, "gold");
        assert_eq!(first(&node, "gold"), gold, "{what}: it was not restarted");
        if dead == daemon {
            assert_eq!(node.pids("internal-dispatcher"), before, "{what}: it was found again");
        }
    }
    // The kernel keeps a quota, whoever dies.
    assert!(number(&show(&node, "rest"), "/throttled_periods") > 0);
    node.ok(&["down"]);
    assert_eq!(dispatchers_cgroups(&node), Vec::<PathBuf>::new());
    node.finish();
}

#[test]
fn a_daemon_that_ends_in_order_leaves_the_table_in_force() {
    let Some(node) = Node::start() else { return };
    let file = film(&[domain("gold", 8, TABLE)]);
    node.up_ok(&file);
    if !has_a_table(&node, "gold") {
        return;
    }
    wait_for_slots(&node, "gold");
    let (dispatcher, gold) = (node.pids("internal-dispatcher"), first(&node, "gold"));
    let daemons = node.pids("daemon");
    daemons.iter().copied().for_each(e2e::node::terminate);
    wait::until("the daemon has ended", || node.pids("daemon").is_empty());
    assert!(processor_cgroup(gold).contains("+table+jobs"));
    let used = used_ns(gold);
    wait::until("its slots go on", || used_ns(gold) > used + 16_000_000);
    node.up_ok(&file);
    assert_eq!(node.pids("internal-dispatcher"), dispatcher);
    assert_eq!(text(&show(&node, "gold"), "kept_by"), "table");
    // What a process of any kind is promised goes the same way.
    let run = ["reserve", "run", "--budget", "4ms", "--period", "40ms", "--enforce", "table", "--"];
    let out = node.ok(&[&run[..], &["cat", "/proc/self/cgroup"]].concat());
    assert!(out.contains("+run/r1"), "{out}");
    node.ok(&["down"]);
    wait::until("nobody needs them any more", || dispatchers_cgroups(&node).is_empty());
    node.finish();
}

#[test]
fn what_a_table_or_deadlines_cannot_keep_is_kept_by_a_quota_and_said_or_refused_where_it_is_strict() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&film(&[domain("gold", 39, TABLE)]));
    let row = show(&node, "gold");
    assert_eq!(text(&row, "kept_by"), "bandwidth");
    let caveats = row["caveats"].to_string();
    assert!(caveats.contains("kept by bandwidth and not by table"), "{caveats}");
    // Who asks says the same: how much it is, and what would pass.
    let full = "a table for `film/gold` would have 97.5 % of the processor, and 93 % are the most";
    let passes = "it would pass with a budget of 37.2 ms for `film/gold` instead of 39 ms";
    for asked in ["explain", "simulate"] {
        let told = node.ok(&["reserve", asked]);
        assert!(told.contains(full) && told.contains(passes), "{asked}: {told}");
    }
    node.ok(&["down"]);
    let file = node.folder().join("topology.toml");
    let check = |node: &Node| node.run(&["check", &file.to_string_lossy()]);
    let checked = check(&node);
    assert_eq!(checked.code, 0, "{}", checked.err);
    assert!(
        checked.err.contains("warning: film/gold: kept by bandwidth and not by table"),
        "{}",
        checked.err
    );
    assert!(checked.err.contains(full) && checked.err.contains(passes), "{}", checked.err);
    // Deadlines are of the whole machine, and others may have some.
    for (budget_ms, more, words) in [
        (39, ", enforce = \"table\", strict = true", full),
        (8, ", enforce = \"deadline\", strict = true", "the deadline can't keep it"),
        (39, ", outside = \"idle\", strict = true", "a quota holds whoever has used its budget up"),
    ] {
        let refused = node.up(&film(&[domain("gold", budget_ms, more)]));
        assert_ne!(refused.code, 0, "{more}");
        assert!(refused.err.contains(words), "{more}: {}", refused.err);
        if words == full {
            let checked = check(&node);
            assert!(checked.code != 0 && checked.err.contains("error[not-kept]"), "{}", checked.err);
            for told in [&refused.err, &checked.err] {
                let unwrapped = told.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(unwrapped.contains(full) && unwrapped.contains(passes), "{told}");
            }
        }
        assert!(node.json(&["ps"]).as_array().is_some_and(Vec::is_empty));
    }
    assert_eq!(dispatchers_cgroups(&node), Vec::<PathBuf>::new());
    node.finish();
}

/// The file of the kernel that holds the quota of a cgroup, of version 1.
fn quota_file(node: &Node, path: &str) -> Option<PathBuf> {
    let places = ["cpu,cpuacct", "cpu"].map(|mount| {
        Path::new("/sys/fs/cgroup").join(mount).join(top(node)).join(path).join("cpu.cfs_quota_us")
    });
    places.into_iter().find(|place| place.exists())
}

#[test]
fn a_change_that_the_kernel_refuses_in_the_middle_leaves_all_as_it_was() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&film(&[domain("gold", 20, ""), domain("rest", 8, ""), domain("slow", 8, TABLE)]));
    let Some(above) = quota_file(&node, "film") else {
        println!("skipped: only version 1 of cgroups refuses a quota for what stands above it");
        return;
    };
    // From now on the kernel refuses whoever wants more than 22 ms in 40.
    fs::write(above.with_file_name("cpu.cfs_period_us"), "40000").expect("a period");
    fs::write(&above, "22000").expect("a quota");
    let quota = |name: &str| {
        let file = quota_file(&node, &format!("film/{name}")).expect("a quota");
        fs::read_to_string(file).expect("a quota").trim().to_owned()
    };
    let refused = node.run(&["adapt", "rest", "gold", "--cpu", "4ms"]);
    assert!(
        refused.err.contains("`film/gold` could not be adapted, and all is as before"),
        "{}",
        refused.err
    );
    assert_eq!((quota("gold"), quota("rest")), ("20000".into(), "8000".into()));
    let budget = |name: &str| number(&show(&node, name), "/reserve/cpu/budget_ns");
    assert_eq!((budget("gold"), budget("rest")), (20_000_000, 8_000_000));
    if has_a_table(&node, "slow") {
        // The table has given already when the quota is refused: it takes it back.
        let refused = node.run(&["adapt", "slow", "gold", "--cpu", "4ms"]);
        assert!(refused.err.contains("all is as before"), "{}", refused.err);
        assert_eq!((budget("gold"), budget("slow")), (20_000_000, 8_000_000));
        wait_for_slots(&node, "slow");
        let explained = node.json(&["inspect"])["reserve"]["adaptations"].clone();
        assert_eq!((number(&explained, "/made"), number(&explained, "/refused")), (0, 2), "{explained}");
    }
    // Nobody stands in the way any more.
    fs::write(&above, "-1").expect("no quota");
    node.ok(&["adapt", "rest", "gold", "--cpu", "4ms"]);
    assert_eq!((quota("gold"), quota("rest")), ("24000".into(), "4000".into()));
    // A cgroup that vanishes with its domain is nobody's to be told; the others are.
    kill_and_wait(&[first(&node, "rest")]);
    node.ok(&["down"]);
    node.finish();
}

#[test]
fn a_second_controller_of_a_quota_is_told_and_set_back() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&film(&[domain("gold", 8, "")]));
    let Some(file) = quota_file(&node, "film/gold") else {
        println!("skipped: the quota is looked for in cgroups of version 1 only");
        return;
    };
    fs::write(&file, "30000").expect("theirs");
    let told = || show(&node, "gold")["caveats"].to_string().contains("somebody else has set the quota");
    wait::until("it is told", told);
    let back = || fs::read_to_string(&file).is_ok_and(|text| text.trim() == "8000");
    wait::until("it is set back", back);
    // What we set ourselves is nobody else's.
    node.ok(&["reserve", "set", "gold", "--budget", "6ms"]);
    assert_eq!(fs::read_to_string(&file).expect("a quota").trim(), "6000");
    node.ok(&["down"]);
    node.finish();
}

/// Brings a file up; a daemon that is started for it has not this capability, nor has anything that
/// it starts.
fn up_without(node: &Node, capability: &str, text: &str) -> e2e::node::Run {
    let file = node.folder().join("topology.toml");
    fs::write(&file, text).expect("the topology is written");
    let inner = node.command(&["up", &file.to_string_lossy()]);
    let mut command = std::process::Command::new("setpriv");
    let without = format!("-{capability}");
    command.args(["--inh-caps", &without, "--bounding-set", &without, "--"]);
    command.arg(inner.get_program()).args(inner.get_args());
    command.output().expect("setpriv starts").into()
}

/// The story of it: a daemon that may not make anything real-time is no reason to promise nothing,
/// nor to promise what is not kept.
#[test]
fn without_the_right_to_real_time_what_is_not_guaranteed_is_said_and_what_is_strict_refused() {
    let Some(node) = Node::start() else { return };
    let up = |domains: &[String]| up_without(&node, "sys_nice", &film(domains));
    let first = up(&[domain("gold", 8, TABLE), domain("late", 6, DEADLINE)]);
    assert_eq!(first.code, 0, "{}{}", first.err, node.daemon_log());
    let (gold, late) = (show(&node, "gold"), show(&node, "late"));
    assert_eq!((text(&gold, "kept_by"), text(&late, "kept_by")), ("table", "bandwidth"));
    assert!(gold["caveats"].to_string().contains("no real-time class here"), "{gold}");
    assert!(late["caveats"].to_string().contains("kept by bandwidth and not by deadline"), "{late}");
    wait_for_slots(&node, "gold");
    node.ok(&["down"]);
    let strict = up(&[domain("gold", 8, ", enforce = \"table\", strict = true")]);
    assert!(strict.code != 0 && strict.err.contains("no real-time class here"), "{}", strict.err);
    node.finish();
}

/// The same of the network: nothing is made of the link, so nothing of it is kept, and that is said
/// with what is missing.
#[test]
fn without_the_right_to_the_network_what_is_not_guaranteed_is_said_and_what_is_strict_refused() {
    const NETWORK: &str = ", network = { rate = \"1mbit\" }";
    let Some(node) = Node::start() else { return };
    let talks = |network: &str, more: &str| {
        format!(
            "name = \"film\"\n\n[domain.talks]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\n\
             command = [\"sleep\", \"infinity\"]\nstop = {{ timeout = \"0ms\" }}\n\
             reserve = {{ cpu = {{ budget = \"4ms\", period = \"40ms\" }}{network}{more} }}\n"
        )
    };
    // The daemon that this starts is the one that all others ask.
    let first = up_without(&node, "net_admin", &talks("", ""));
    assert_eq!(first.code, 0, "{}{}", first.err, node.daemon_log());
    node.ok(&["down"]);
    node.ok(&["reserve", "node", "--link", "lo=10mbit"]);
    let up = node.up(&talks(NETWORK, ""));
    assert_eq!(up.code, 0, "{}{}", up.err, node.daemon_log());
    let row = show(&node, "talks");
    let caveats = row["caveats"].to_string();
    assert!(caveats.contains("the network is not kept: can't make classes on lo"), "{caveats}");
    assert!(caveats.contains("the daemon takes CAP_NET_ADMIN for that"), "{caveats}");
    let shown = node.ok(&["reserve", "show", "talks"]);
    assert_eq!(shown.matches("the network is not kept").count(), 1, "it is said once: {shown}");
    assert!(row["in_force"] == true && text(&row, "kept_by") == "bandwidth", "the rest of it is kept: {row}");
    node.ok(&["down"]);
    let strict = node.up(&talks(NETWORK, ", strict = true"));
    assert_ne!(strict.code, 0, "{}", strict.out);
    assert!(
        strict.err.contains("can't be kept whole") && strict.err.contains("CAP_NET_ADMIN"),
        "{}",
        strict.err
    );
    assert!(node.json(&["ps"]).as_array().is_some_and(Vec::is_empty));
    node.finish();
}

/// A domain that sleeps, with nearly all of a processor by deadlines.
fn nearly_all(processor: usize, more: &str) -> String {
    format!(
        "[domain.d{processor:03}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"1000\"]\n\
         stop = {{ timeout = \"0ms\" }}\n\
         reserve = {{ cpu = {{ budget = \"38ms\", period = \"40ms\", processor = {processor} }}{DEADLINE}{more} }}\n\n"
    )
}

/// The story of it: a file was admitted, and its last domain refused by the kernel when it was
/// about to start, with no word of how much there would have been.
#[test]
fn more_deadlines_than_the_kernel_has_are_known_before_anything_starts() {
    let Some(node) = Node::start() else { return };
    let count = std::thread::available_parallelism().expect("processors").get();
    let last = format!("d{:03}", count - 1);
    let file = |more: &str| film(&(0..count).map(|number| nearly_all(number, more)).collect::<Vec<_>>());
    node.up_ok(&file(""));
    let row = show(&node, &last);
    let words = [
        "deadlines for `film/d",
        "and the kernel leaves its deadline class",
        &format!("for `film/{last}` instead of 38 ms"),
    ];
    let has = |told: &str| {
        let unwrapped = told.split_whitespace().collect::<Vec<_>>().join(" ");
        words.iter().all(|words| unwrapped.contains(*words))
    };
    assert_eq!(text(&row, "kept_by"), "bandwidth", "{row}");
    assert!(has(&row["caveats"].to_string()), "{row}");
    assert!(row["caveats"].to_string().contains("kept by bandwidth and not by deadline"), "{row}");
    for asked in ["explain", "simulate"] {
        let told = node.ok(&["reserve", asked]);
        assert!(has(&told), "{asked}: {told}");
    }
    if count > 1 {
        assert_eq!(text(&show(&node, "d000"), "kept_by"), "deadline");
    }
    // Who runs beside them is told the same, and so is who sets it.
    let set = node.run(&["reserve", "set", &last, "--budget", "38ms", "--enforce", "deadline", "--strict"]);
    assert!(set.code != 0 && has(&set.err), "{}", set.err);
    node.ok(&["down"]);
    let checked = node.run(&["check", &node.folder().join("topology.toml").to_string_lossy()]);
    assert!(checked.code == 0 && has(&checked.err), "{}", checked.err);
    assert!(
        checked.err.contains(&format!("warning: film/{last}: kept by bandwidth and not by deadline")),
        "{}",
        checked.err
    );
    let refused = node.up(&file(", strict = true"));
    assert!(refused.code != 0 && has(&refused.err) && refused.err.contains("not-kept"), "{}", refused.err);
    assert!(node.json(&["ps"]).as_array().is_some_and(Vec::is_empty));
    // Who has deadlines and asks for more than there is keeps what it has.
    if (2..5).contains(&count) {
        node.up_ok(&file("").replace(
            &format!("38ms\", period = \"40ms\", processor = {}", count - 1),
            &format!("10ms\", period = \"40ms\", processor = {}", count - 1),
        ));
        assert_eq!(text(&show(&node, &last), "kept_by"), "deadline");
        let set = node.run(&["reserve", "set", &last, "--budget", "37ms"]);
        assert!(set.code != 0 && set.err.contains("leaves its deadline class"), "{}", set.err);
        let row = show(&node, &last);
        assert_eq!(
            (text(&row, "kept_by"), number(&row, "/reserve/cpu/budget_ns")),
            ("deadline", 10_000_000),
            "{row}"
        );
    }
    node.finish();
}

/// Runs the binary where each hierarchy of control groups is mounted read-only, and so does a
/// daemon that is started for it.
fn where_control_groups_are_read_only(node: &Node, arguments: &[&str]) -> e2e::node::Run {
    const SCRIPT: &str = "awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts | while read -r at; do \
         mount --bind \"$at\" \"$at\" && mount -o remount,bind,ro \"$at\" || exit 99; done; exec \"$@\"";
    let inner = node.command(arguments);
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    command.output().expect("unshare starts").into()
}

/// The story of it: a daemon in a container that may not write to its control groups refused to run
/// a command at all.
#[test]
fn where_control_groups_are_read_only_a_command_runs_without_a_promise_that_is_said_and_strict_is_refused() {
    let Some(node) = Node::start() else { return };
    let run = |more: &[&str]| {
        let first = ["reserve", "run", "--budget", "5ms", "--period", "40ms"];
        where_control_groups_are_read_only(&node, &[&first[..], more, &["--", "echo", "it", "ran"]].concat())
    };
    // The daemon that this starts is the one that all others ask; a domain has to be held together
    // by something.
    let file = node.folder().join("topology.toml");
    fs::write(&file, film(&[domain("gold", 8, "")])).expect("the topology is written");
    let up = where_control_groups_are_read_only(&node, &["up", &file.to_string_lossy()]);
    assert!(
        up.code != 0 && up.err.contains("cannot create cgroup") && up.err.contains("Read-only"),
        "{}",
        up.err
    );
    let plain = run(&[]);
    assert_eq!(plain.code, 0, "{}{}", plain.err, node.daemon_log());
    assert!(plain.out.contains("it ran"), "{}", plain.out);
    assert!(plain.err.contains("not guaranteed: nothing is promised to it"), "{}", plain.err);
    assert!(plain.err.contains("is read-only, and what keeps promises is written there"), "{}", plain.err);
    let strict = run(&["--strict"]);
    assert!(strict.code != 0 && !strict.out.contains("it ran"), "{}", strict.out);
    assert!(
        strict.err.contains("this is strict") && strict.err.contains("mount the control groups writable"),
        "{}",
        strict.err
    );
    assert!(node.json(&["reserve", "ls"])["vtms"].as_array().is_some_and(Vec::is_empty));
    node.finish();
}
