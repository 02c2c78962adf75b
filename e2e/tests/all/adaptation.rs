//! Promises follow what programs deliver: within the file's bounds, in one step, even if a program
//! lies, stops or is killed.

use e2e::node::kill_and_wait;
use e2e::{Node, wait};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

const MS: u64 = 1_000_000;

/// A container that does what `command` says, and is promised so much of processor 0 in each 40 ms.
/// It sees the test's folder `ctl`.
fn domain(name: &str, budget_ms: u64, command: &str) -> String {
    format!(
        "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = {command}\nstop = {{ timeout = \"0ms\" }}\n\
         mounts = [{{ source = \"ctl\", target = \"/mnt\" }}]\n\
         reserve = {{ cpu = {{ budget = \"{budget_ms}ms\", period = \"40ms\", processor = 0 }} }}\n\n"
    )
}

/// A program whose figure is whatever the test's file of the domain's name says.
fn says(name: &str) -> String {
    let line = format!("while :; do cat /mnt/{name} > /srv/self/quality 2>/dev/null; sleep 0.05; done");
    format!("[\"sh\", \"-c\", \"{line}\"]")
}

const RESTS: &str = "[\"sleep\", \"infinity\"]";

/// One that does a frame in each 40 ms, which takes as long as the test's file says, drops what is
/// late, and says how much of its work it has missed.
const FRAMES: &str = r#"["python3", "-c", '''
import time
done, missed, period = 0, 0, 0.04
begin = told = time.monotonic()
while True:
    demand = float(open("/mnt/demand").read() or 0) / 1000
    used = time.process_time()
    while time.process_time() - used < demand:
        pass
    now = time.monotonic()
    late = int((now - begin) / period)
    done, missed = done + 1, missed + late
    begin += (late + 1) * period
    time.sleep(max(0, begin - time.monotonic()))
    if time.monotonic() - told > 0.4:
        with open("/srv/self/quality", "w") as quality:
            quality.write("%.3f" % (100 * missed / (done + missed)))
        done, missed, told = 0, 0, time.monotonic()
''']"#;

/// Rules for a figure that is bad above 5 and good below 1.
fn rules(of: &str, more: &str) -> String {
    format!(
        "[adaptation.{of}]\ndomain = \"{of}\"\nmonitor = \"quality\"\nevery = \"50ms\"\n\
         more = {{ above = 5, samples = 2 }}\nless = {{ below = 1, samples = 3 }}\npause = \"100ms\"\n\
         changes_per_minute = 600\n{more}\n\n"
    )
}

struct Bed {
    node: Node,
    ctl: PathBuf,
}

impl Bed {
    fn start() -> Option<Self> {
        let node = Node::start()?;
        let ctl = node.folder().join("ctl");
        fs::create_dir(&ctl).expect("a folder");
        Some(Self { node, ctl })
    }

    /// In one step: a reader sees the one or the other.
    fn say(&self, name: &str, text: &str) {
        let new = self.ctl.join("new");
        fs::write(&new, text).expect("written");
        fs::rename(new, self.ctl.join(name)).expect("renamed");
    }

    fn budget(&self, name: &str) -> u64 {
        let row = self.node.json(&["reserve", "show", name]);
        row["reserve"]["cpu"]["budget_ns"].as_u64().expect("a budget")
    }

    fn row(&self, name: &str) -> Value {
        self.node.json(&["adaptation", "show", name])
    }

    fn level(&self, name: &str) -> String {
        self.node.shell_ok(name, "cat /srv/self/level").trim().to_owned()
    }

    /// The quota that the kernel keeps, in us; of version 1 or 2.
    fn quota_us(&self, name: &str) -> u64 {
        let top = fs::read_to_string(self.node.run_dir().join("cgroup")).expect("the cgroup");
        let (top, read) = (top.trim(), |path: String| fs::read_to_string(path).ok());
        let one = ["cpu,cpuacct", "cpu"]
            .iter()
            .find_map(|mount| read(format!("/sys/fs/cgroup/{mount}/{top}/film/{name}/cpu.cfs_quota_us")));
        let text =
            one.or_else(|| read(format!("/sys/fs/cgroup/{top}/film/{name}/cpu.max"))).expect("a quota");
        text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
    }

    fn has_happened(&self, what: &str, why: &str) -> bool {
        let happened = self.node.ok(&["events", "--json"]);
        let events = happened.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let fits = |event: Value| {
            event["what"] == what && event["why"].as_str().is_some_and(|told| told.contains(why))
        };
        events.into_iter().any(fits)
    }
}

#[test]
fn a_program_that_misses_its_frames_gets_what_it_needs_and_returns_what_it_does_not() {
    let Some(bed) = Bed::start() else { return };
    bed.say("demand", "1");
    let adaptation = "[adaptation.gold]\ndomain = \"gold\"\nmonitor = \"quality\"\nevery = \"200ms\"\n\
         feedback = { target = 5, samples = 5 }\ncpu = { least = \"4ms\", most = \"24ms\" }\npause = \"500ms\"\n\
         from.rest = { cpu = \"12ms\" }\n";
    let file =
        format!("name = \"film\"\n{}{}{adaptation}", domain("gold", 6, FRAMES), domain("rest", 34, RESTS));
    bed.node.up_ok(&file);
    wait::until("a figure", || bed.row("gold")["figure"].is_string());

    bed.say("demand", "12");
    wait::until("it has what its frames take", || bed.budget("gold") >= 12 * MS);
    assert!(bed.budget("rest") <= 28 * MS, "the processor has no more than 40 ms in 40 ms");
    assert!(bed.quota_us("gold") >= 12_000 && bed.quota_us("rest") <= 28_000);
    assert!(bed.has_happened("adapted", "film/rest: cpu 34ms to"), "{}", bed.node.ok(&["events"]));

    bed.say("demand", "0.5");
    wait::until("it returns what it does not need", || bed.budget("gold") <= 6 * MS);
    wait::until("who gave has it back", || bed.budget("rest") == 34 * MS);
    let row = bed.row("gold");
    assert!(row["changes"].as_u64().is_some_and(|changes| changes >= 2), "{row}");
    let picture = bed.node.folder().join("timeline.svg");
    bed.node.ok(&["reserve", "timeline", "-o", picture.to_str().expect("a path")]);
    let picture = fs::read_to_string(picture).expect("a picture");
    let shown = ["<svg", "processor 0", "film/gold", "film/rest", "gold: the figure is", "</svg>"];
    assert!(shown.iter().all(|words| picture.contains(words)), "{picture}");
    let watched = bed.node.json(&["reserve", "watch"]);
    assert!(
        watched.as_array().is_some_and(|rows| rows.iter().any(|row| row["name"] == "film/rest")),
        "{watched}"
    );
    let listed = bed.node.ok(&["adaptation", "ls"]);
    assert!(listed.contains("film/gold") && listed.contains("quality"), "{listed}");
    bed.node.ok(&["down"]);
    assert_eq!(bed.node.json(&["adaptation", "ls"]), Value::Array(Vec::new()));
    bed.node.finish();
}

#[test]
fn a_monitor_that_lies_or_stops_moves_nothing_beyond_the_file_and_nothing_for_long() {
    let Some(bed) = Bed::start() else { return };
    bed.say("gold", "NaN");
    let moves = "cpu = { least = \"4ms\", most = \"12ms\", step = \"4ms\" }";
    let file = format!("name = \"film\"\n{}{}", domain("gold", 8, &says("gold")), rules("gold", moves));
    bed.node.up_ok(&file);
    wait::until("what is no figure is told", || {
        bed.row("gold")["why"].as_str().is_some_and(|why| why.contains("what is no figure"))
    });
    for lie in ["NaN", "1e308", "-1", "0x10", "9999999999999999999999", "garbage", "5; more=1"] {
        let written = bed.node.shell("gold", &format!("echo '{lie}' > /srv/self/quality"));
        assert_ne!(written.code, 0, "{lie} is no figure");
    }
    let garbage = "head -c 1000000 /dev/urandom > /srv/self/quality; dd if=/dev/zero of=/srv/self/quality bs=1M count=1";
    assert_ne!(bed.node.shell("gold", garbage).code, 0);
    assert_eq!((bed.budget("gold"), bed.row("gold")["state"].as_str()), (8 * MS, Some("blind")));

    // The worst figure that there is, ten thousand times.
    bed.say("gold", "1000000000");
    bed.node.shell_ok(
        "gold",
        "i=0; while [ $i -lt 10000 ]; do echo 1000000000; i=$((i+1)); done > /srv/self/quality",
    );
    wait::until("it has all that its file allows", || bed.budget("gold") == 12 * MS);
    wait::until("it is told that there is no more", || {
        bed.row("gold")["refused"].as_str().is_some_and(|why| why.contains("it has all that its file allows"))
    });
    assert_eq!(bed.quota_us("gold"), 12_000);

    // It says nothing any more: the file counts again.
    fs::remove_file(bed.ctl.join("gold")).expect("removed");
    wait::until("what was adapted is given back", || bed.budget("gold") == 8 * MS);
    assert!(bed.has_happened("adapted", "the file's values count again"));
    assert_eq!(bed.row("gold")["state"], "blind");
    bed.node.finish();
}

#[test]
fn what_is_not_there_is_refused_with_what_would_fit_and_quality_gives_way() {
    let Some(bed) = Bed::start() else { return };
    bed.say("gold", "50");
    let moves = "cpu = { least = \"8ms\", most = \"30ms\", step = \"10ms\" }\nlevels = 3";
    let [gold, rest] = [domain("gold", 10, &says("gold")), domain("rest", 24, RESTS)];
    bed.node.up_ok(&format!("name = \"film\"\n{gold}{rest}{}", rules("gold", moves)));
    // 6 ms are left.
    wait::until("it has what fits", || bed.budget("gold") > 15 * MS);
    wait::until("its quality gives way", || bed.level("gold") == "2");
    wait::until("what it may not have is told", || bed.row("gold")["refused"].is_string());
    let refused = bed.row("gold")["refused"].as_str().unwrap_or_default().to_owned();
    assert!(bed.budget("gold") <= 16 * MS && bed.budget("rest") == 24 * MS);
    assert!(refused.contains("it would pass with a budget of"), "{refused}");
    assert!(bed.has_happened("adapted", "is what fits"), "{}", bed.node.ok(&["events"]));

    // The next daemon knows the level.
    kill_and_wait(&bed.node.pids("daemon"));
    bed.node.up_ok(&format!("name = \"film\"\n{gold}{rest}{}", rules("gold", moves)));
    assert_eq!(bed.level("gold"), "2");
    bed.say("gold", "0");
    wait::until("quality comes back first, then the budget goes", || {
        bed.level("gold") == "0" && bed.budget("gold") == 8 * MS
    });
    bed.node.finish();
}

#[test]
fn of_two_that_want_the_same_processor_the_one_with_priority_has_it() {
    let Some(bed) = Bed::start() else { return };
    for name in ["gold", "silver"] {
        bed.say(name, "50");
    }
    let moves = "cpu = { least = \"4ms\", most = \"32ms\", step = \"4ms\" }";
    let takes = format!("{moves}\npriority = 1\nfrom.silver = {{ cpu = \"8ms\" }}");
    let domains = domain("gold", 8, &says("gold")) + &domain("silver", 8, &says("silver"));
    // Without an order they would take from each other for ever, so that is refused.
    let endless = format!("{moves}\nfrom.silver = {{ cpu = \"8ms\" }}");
    let refused = bed.node.up(&format!(
        "name = \"film\"\n{domains}{}{}",
        rules("gold", &endless),
        rules("silver", moves)
    ));
    assert!(
        refused.err.contains("`gold` would take from `silver` what `silver` would take back"),
        "{}",
        refused.err
    );
    bed.node.up_ok(&format!("name = \"film\"\n{domains}{}{}", rules("gold", &takes), rules("silver", moves)));
    wait::until("the first has all", || bed.budget("gold") == 32 * MS);
    assert_eq!(bed.budget("silver"), 8 * MS);
    wait::until("the second is told", || bed.row("silver")["refused"].is_string());
    assert_eq!((bed.quota_us("gold"), bed.quota_us("silver")), (32_000, 8_000));
    bed.say("gold", "0");
    wait::until("what the first leaves is the second's", || bed.budget("silver") > 16 * MS);
    // Both are told one after the other, so a step that comes between is seen in one of them alone.
    wait::until("they have what there is", || bed.budget("gold") + bed.budget("silver") <= 40 * MS);
    bed.node.finish();
}

#[test]
fn a_daemon_that_is_killed_leaves_the_old_budgets_or_the_new_ones() {
    let Some(bed) = Bed::start() else { return };
    bed.say("gold", "50");
    let moves = "cpu = { least = \"4ms\", most = \"36ms\", step = \"2ms\" }\nfrom.rest = { cpu = \"4ms\" }";
    let domains = domain("gold", 4, &says("gold")) + &domain("rest", 36, RESTS);
    let file = format!("name = \"film\"\n{domains}{}", rules("gold", moves));
    bed.node.up_ok(&file);
    for round in 0..4 {
        let before = bed.budget("gold");
        let goes_up = round % 2 == 0;
        bed.say("gold", if goes_up { "50" } else { "0" });
        wait::until("it is being adapted", || bed.budget("gold") != before);
        kill_and_wait(&bed.node.pids("daemon"));
        bed.node.up_ok(&file);
        // Both are looked at while nothing moves.
        bed.node.ok(&["adaptation", "pause", "gold"]);
        let (gold, rest) = (bed.budget("gold"), bed.budget("rest"));
        assert!(gold + rest <= 40 * MS && gold % (2 * MS) == 0, "round {round}: {gold} and {rest}");
        let kept = bed.quota_us("gold") + bed.quota_us("rest");
        assert!(kept <= 40_000, "round {round}: the kernel keeps {kept} us in 40 ms");
        bed.node.ok(&["adaptation", "resume", "gold"]);
    }
    bed.node.finish();
}

#[test]
fn a_dry_run_changes_nothing_and_a_hand_comes_before_all() {
    let Some(bed) = Bed::start() else { return };
    bed.say("gold", "50");
    let moves = "cpu = { least = \"4ms\", most = \"16ms\", step = \"4ms\" }\nlevels = 2";
    let file = |more: &str| {
        let of = rules("gold", &format!("{moves}\n{more}"));
        format!("name = \"film\"\n{}{of}", domain("gold", 8, &says("gold")))
    };
    bed.node.up_ok(&file("dry_run = true"));
    wait::until("it says what it would do", || {
        bed.has_happened("would-adapt", "cpu 8ms, level 0 to cpu 12ms, level 0")
    });
    assert_eq!((bed.budget("gold"), bed.row("gold")["changes"].as_u64()), (8 * MS, Some(0)));
    assert!(!bed.has_happened("adapted", ""));

    // Another file, while it runs: only the adaptation is another.
    assert!(bed.node.up_ok(&file("")).contains("adaptations"));
    wait::until("now it is done", || bed.budget("gold") == 16 * MS && bed.level("gold") == "1");
    let set = bed.node.json(&["adaptation", "set", "gold", "--cpu", "10ms", "--level", "0"]);
    assert_eq!((set["state"].as_str(), bed.budget("gold")), (Some("paused"), 10 * MS));
    let refused = bed.node.run(&["adaptation", "set", "gold", "--level", "2"]);
    assert!(refused.err.contains("its program knows the levels 0 to 1"), "{}", refused.err);
    let refused = bed.node.run(&["adaptation", "set", "gold", "--cpu", "41ms"]);
    assert_ne!(refused.code, 0);
    let refused = bed.node.run(&["adaptation", "pause", "glod"]);
    assert!(refused.err.contains("no adaptation is called \"glod\""), "{}", refused.err);

    // Paused it stays, whatever its figure says and whoever is the daemon.
    kill_and_wait(&bed.node.pids("daemon"));
    bed.node.up_ok(&file(""));
    wait::until("it is read", || bed.row("gold")["figure"] == "50");
    assert_eq!((bed.row("gold")["state"].as_str(), bed.budget("gold")), (Some("paused"), 10 * MS));
    bed.node.ok(&["adaptation", "resume", "gold"]);
    wait::until("it goes on", || bed.budget("gold") == 16 * MS);
    bed.node.finish();
}

/// A selector that does what the test's file `mode` says.
const CHOOSES: &str = r#"
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    mode = open("/mnt/mode").read().strip()
    if mode == "hang":
        os.fork()
        time.sleep(1000)
    if mode == "die":
        sys.exit(3)
    while mode == "flood":
        sys.stdout.write("x" * 65536)
    wish = {"sample": asked["sample"]}
    if mode == "most":
        wish.update(cpu_ns=10**18, level=99)
    if mode == "least":
        wish.update(cpu_ns=0, level=0)
    if mode == "nonsense":
        wish = "more!"
    print(json.dumps(wish), flush=True)
    if mode == "twice":
        print(json.dumps(wish), flush=True)
"#;

#[test]
fn a_selector_gets_what_it_wants_within_the_file_and_one_that_goes_wrong_stalls_nobody() {
    let Some(bed) = Bed::start() else { return };
    for (name, text) in [("gold", "1"), ("rest", "3"), ("mode", "most"), ("choose.py", CHOOSES)] {
        bed.say(name, text);
    }
    let chosen = "[adaptation.gold]\ndomain = \"gold\"\nmonitor = \"quality\"\nevery = \"100ms\"\npause = \"100ms\"\n\
         changes_per_minute = 600\nlevels = 3\ncpu = { least = \"4ms\", most = \"12ms\" }\n\
         selector = { command = [\"python3\", \"/mnt/choose.py\"], domain = \"brain\", timeout = \"3s\" }\n\n";
    let other = rules("rest", "cpu = { least = \"4ms\", most = \"8ms\", step = \"4ms\" }");
    let [gold, rest] = [domain("gold", 8, &says("gold")), domain("rest", 4, &says("rest"))];
    let brain = domain("brain", 4, RESTS);
    let file = format!("name = \"film\"\n{gold}{rest}{brain}{chosen}{other}");
    bed.node.up_ok(&file);
    wait::until("it has what it wants, as far as its file allows", || bed.budget("gold") == 12 * MS);
    wait::until("and the last level", || bed.level("gold") == "2");
    let obeys = || {
        bed.say("mode", "least");
        wait::until("the selector is asked again", || {
            bed.budget("gold") == 4 * MS && bed.level("gold") == "0"
        });
    };
    let goes_wrong = |mode: &str, words: &str| {
        bed.say("mode", mode);
        wait::until("that it goes wrong is told", || {
            let row = bed.row("gold");
            row["state"] == "blind" && row["why"].as_str().is_some_and(|why| why.contains(words))
        });
    };
    obeys();
    bed.say("mode", "hang");
    // Meanwhile others are adapted, and it by hand.
    bed.say("rest", "50");
    wait::until("who has rules has what it needs", || bed.budget("rest") == 8 * MS);
    bed.node.ok(&["adaptation", "set", "gold", "--cpu", "6ms"]);
    assert_eq!(bed.budget("gold"), 6 * MS);
    bed.node.ok(&["adaptation", "resume", "gold"]);
    goes_wrong("hang", "has not answered within");
    obeys();
    for (mode, words) in [
        ("die", "has ended (exit 3)"),
        ("flood", "more than 4096 bytes"),
        ("nonsense", "no answer"),
        ("twice", "says more than it is asked"),
    ] {
        goes_wrong(mode, words);
        obeys();
    }
    let running = || {
        let count = "grep -l 'choos[e]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l";
        bed.node.shell_ok("brain", count).trim().to_owned()
    };
    wait::until("what was ended is gone, with what it had started", || running() == "1");

    kill_and_wait(&bed.node.pids("daemon"));
    bed.node.up_ok(&file);
    bed.say("mode", "most");
    wait::until("the next daemon asks, too", || bed.budget("gold") == 12 * MS);
    wait::until("what the daemon left is gone", || running() == "1");
    bed.node.ok(&["down"]);
    bed.node.finish();
}

/// An activator that does what the test's file `mode` says, and writes down what it is told.
const RETUNES: &str = r#"
import json, os, sys, time
told = json.loads(sys.stdin.read())
mode = open("/mnt/mode").read().strip()
if mode == "fail":
    sys.exit("no room for \x1b[31mthat")
if mode == "hang":
    os.fork()
    time.sleep(1000)
with open("/out/told", "a") as out:
    out.write(json.dumps([told["was"] and told["was"]["level"], told["has"]["level"]]) + "\n")
"#;

#[test]
fn an_activator_is_told_what_is_in_force_in_the_end_whatever_goes_wrong() {
    let Some(bed) = Bed::start() else { return };
    for (name, text) in [("gold", "3"), ("mode", "well"), ("retune.py", RETUNES)] {
        bed.say(name, text);
    }
    let out = bed.node.folder().join("out");
    fs::create_dir(&out).expect("a folder");
    fs::set_permissions(&out, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a mode");
    let adaptation = rules(
        "gold",
        "levels = 3\nactivator = { command = [\"python3\", \"/mnt/retune.py\"], domain = \"brain\", timeout = \"3s\" }",
    );
    let brain = domain("brain", 4, RESTS).replacen(
        "target = \"/mnt\" }",
        "target = \"/mnt\" }, { source = \"out\", target = \"/out\", read_only = false }",
        1,
    );
    let file = format!("name = \"film\"\n{}{brain}{adaptation}", domain("gold", 8, &says("gold")));
    bed.node.up_ok(&file);
    let told = || -> Vec<String> {
        fs::read_to_string(out.join("told")).unwrap_or_default().lines().map(str::to_owned).collect()
    };
    let last = |wanted: &str| told().last().is_some_and(|line| line == wanted);
    wait::until("it is told what is so in the beginning", || last("[null, 0]"));
    bed.say("gold", "50");
    wait::until("and what has changed", || last("[1, 2]") || last("[0, 2]"));
    let row = bed.row("gold");
    assert!(row["activator"]["runs"].as_u64().is_some_and(|runs| runs >= 2), "{row}");

    let trouble = || bed.row("gold")["activator"]["trouble"].as_str().unwrap_or_default().to_owned();
    let goes_wrong = |mode: &str, level: &str, words: &str| {
        bed.say("mode", mode);
        // A change by hand pauses the rules.
        bed.node.ok(&["adaptation", "set", "gold", "--level", level]);
        wait::until("that it goes wrong is told", || trouble().contains(words));
        assert_eq!(bed.level("gold"), level, "what is in force does not wait for it");
        assert!(!told().last().is_some_and(|line| line.ends_with(&format!(", {level}]"))));
        bed.say("mode", "well");
        wait::until("it is run again until it is told", || {
            told().last().is_some_and(|line| line.ends_with(&format!(", {level}]"))) && trouble().is_empty()
        });
    };
    goes_wrong("fail", "1", "has failed (exit 1): no room for  [31mthat");
    goes_wrong("hang", "0", "has not ended within 3s");
    let running = || {
        let count = "grep -l 'retun[e]' /proc/[0-9]*/cmdline 2>/dev/null | wc -l";
        bed.node.shell_ok("brain", count).trim().to_owned()
    };
    wait::until("what hung is gone, with what it had started", || running() == "0");

    // A daemon that dies with a command under way has a successor that ends it, and tells anew.
    bed.say("mode", "hang");
    bed.node.ok(&["adaptation", "set", "gold", "--level", "2"]);
    wait::until("it is under way", || running() != "0");
    kill_and_wait(&bed.node.pids("daemon"));
    bed.say("mode", "well");
    bed.node.up_ok(&file);
    wait::until("the next daemon tells what is so", || last("[null, 2]"));
    wait::until("what the daemon left is gone", || running() == "0");
    bed.node.ok(&["down"]);
    bed.node.finish();
}

/// A module that wants the most while the figure is above 5, and the least otherwise; above 90 it
/// never ends.
const CHOOSES_BY_WORDS: &str = r#"(module
  (memory (export "memory") 1)
  (func (export "buffer") (param i32) (result i32) i32.const 1024)
  (func (export "transform") (param $at i32) (param i32) (result i64)
    (block (br_if 0 (i64.lt_u (i64.load offset=8 (local.get $at)) (i64.const 90000))) (loop (br 0)))
    (i64.or
      (i64.shl
        (i64.extend_i32_u (i32.add (local.get $at)
          (select (i32.const 88) (i32.const 64)
            (i64.gt_u (i64.load offset=8 (local.get $at)) (i64.const 5000)))))
        (i64.const 32))
      (i64.const 24))))"#;

#[test]
fn a_module_selects_within_the_file_and_one_that_fails_is_begun_anew() {
    let Some(bed) = Bed::start() else { return };
    bed.say("gold", "1");
    let module = bed.node.folder().join("choose.wasm");
    let file = format!(
        "name = \"film\"\n{}[adaptation.gold]\ndomain = \"gold\"\nmonitor = \"quality\"\nevery = \"100ms\"\n\
         pause = \"100ms\"\nchanges_per_minute = 600\nlevels = 3\ncpu = {{ least = \"4ms\", most = \"12ms\" }}\n\
         selector = {{ module = \"choose.wasm\" }}\n",
        domain("gold", 8, &says("gold"))
    );
    fs::write(&module, "(module)").expect("written");
    let refused = bed.node.up(&file);
    assert!(
        refused.code != 0 && refused.err.contains("does not begin as WebAssembly does"),
        "{}",
        refused.err
    );
    fs::write(&module, wat::parse_str(CHOOSES_BY_WORDS).expect("a module")).expect("written");
    bed.node.up_ok(&file);
    let has =
        |budget_ms: u64, level: &str| bed.budget("gold") == budget_ms * MS && bed.level("gold") == level;
    wait::until("it wants the least", || has(4, "0"));
    bed.say("gold", "50");
    wait::until("it wants the most", || has(12, "2"));
    bed.say("gold", "99");
    wait::until("that it never ends is told", || {
        let row = bed.row("gold");
        row["state"] == "blind" && row["why"].as_str().is_some_and(|why| why.contains("fuel"))
    });
    bed.say("gold", "1");
    wait::until("it is begun anew", || has(4, "0"));
    bed.node.ok(&["down"]);
    bed.node.finish();
}
