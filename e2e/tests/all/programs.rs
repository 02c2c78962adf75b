//! Services of kind `program`: a program of one domain serves files, and shells of other domains
//! use them below `/srv`.

use e2e::{Node, node, wait};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// The program of the tests, on this machine.
const GAUGE: &str = env!("CARGO_BIN_EXE_gauge_program");
/// How often the program is killed.
const KILLS: u64 = 3;

/// A distributed container in which `gauge` serves, `hall` may do everything, and `attic` only
/// read.
fn topology(host: &str, unit: &str, hall: &str) -> String {
    let domain = |name: &str, rest: &str| format!("\n[domain.{name}]\n{rest}\n");
    let restart = "restart = { policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }";
    let sleep = "kind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\nservices = { thermometer = \"/srv/thermometer\" }";
    format!(
        "name = \"lab\"\n{}{}{}{}\n[service.thermometer]\nkind = \"program\"\ndomain = \"{host}\"\n\
         allow = [{{ domains = [\"hall\"], verbs = [{hall}] }}, {{ domains = [\"attic\"], verbs = [\"read\"] }}]\n\
         settings = {{ unit = \"{unit}\" }}\n",
        domain("gauge", &format!("kind = \"process\"\ncommand = [\"{GAUGE}\", \"thermometer\"]\n{restart}")),
        domain(
            "spare",
            &format!(
                "kind = \"container\"\nroot = \"host\"\ncommand = [\"/gauge\", \"thermometer\"]\n{restart}\n\
                 mounts = [{{ source = \"{GAUGE}\", target = \"/gauge\" }}]"
            )
        ),
        domain("hall", sleep),
        domain("attic", sleep),
    )
}

const ALL: &str = "\"read\", \"calibrate\"";

fn row(node: &Node) -> Value {
    let rows = node.json(&["service", "ls"]);
    let found = rows.as_array().expect("a list").iter().find(|row| row["service"] == "thermometer");
    found.expect("the service is listed").clone()
}

fn pid_of(node: &Node, domain: &str) -> u32 {
    let tree = node.json(&["inspect", &format!("dc/lab/domains/{domain}")]);
    tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs")
}

/// A node on which the program serves.
fn start() -> Option<Node> {
    let node = Node::start()?;
    node.up_ok(&topology("gauge", "celsius", ALL));
    wait::until("the program serves", || row(&node)["up"] == true);
    Some(node)
}

/// Waits until a shell of a domain reads this.
fn reads(node: &Node, domain: &str, expected: &str) {
    wait::until(&format!("{domain} reads {expected:?}"), || {
        node.shell(domain, "cat /srv/thermometer/reading").out.trim() == expected
    });
}

#[test]
fn a_program_serves_files_of_each_behaviour_to_whom_the_file_names() {
    let Some(node) = start() else { return };
    reads(&node, "hall", "20 celsius");
    reads(&node, "attic", "20 celsius");
    let asked =
        "exec 3<>/srv/thermometer/convert; echo 20 >&3; read a <&3; echo 100 >&3; read b <&3; echo $a $b";
    assert_eq!(node.shell_ok("attic", asked).trim(), "68 212");
    // What a request is refused with is the errno of the call.
    let wrong = node.shell("hall", "echo offset warm > /srv/thermometer/ctl");
    assert!(wrong.code != 0 && wrong.err.contains("Invalid argument"), "{wrong:?}");
    node.shell_ok("hall", "echo offset 3 > /srv/thermometer/ctl");
    assert_eq!(node.shell_ok("hall", "cat /srv/thermometer/ctl").trim(), "offset 3");
    reads(&node, "attic", "23 celsius");
    // Who has not the verb sees that the file is there, and nothing more.
    assert_eq!(node.shell_ok("attic", "stat -c %a /srv/thermometer/ctl").trim(), "0");
    let denied = node.shell("attic", "echo offset 9 > /srv/thermometer/ctl");
    assert!(denied.code != 0 && denied.err.contains("ermission denied"), "{denied:?}");
    reads(&node, "hall", "23 celsius");
    // Nobody else offers it, and it is seen wherever services are.
    wait::until("another domain's program is refused", || {
        node.ok(&["logs", "spare"]).contains("no service of a program, that domain spare could offer")
    });
    let row = row(&node);
    assert_eq!((&row["kind"], &row["domain"]), (&json!("program"), &json!("gauge")), "{row}");
    assert_eq!(row["consumers"], json!(["attic", "hall"]), "{row}");
    assert_eq!(row["server_pid"], json!(pid_of(&node, "gauge")), "{row}");
    let tree = node.json(&["service", "show", "thermometer"]);
    assert_eq!(tree["settings"], json!({ "unit": "celsius" }), "{tree}");
    assert_eq!(tree["channels"].as_array().map(Vec::len), Some(2), "{tree}");
}

#[test]
fn settings_verbs_and_the_host_change_under_a_program_that_serves() {
    let Some(node) = start() else { return };
    reads(&node, "hall", "20 celsius");
    let pid = pid_of(&node, "gauge");
    let said = node.up_ok(&topology("gauge", "kelvin", "\"read\""));
    assert!(said.contains("update service thermometer while it runs: `settings` changed"), "{said}");
    reads(&node, "hall", "20 kelvin");
    wait::until("the verb is gone", || {
        let denied = node.shell("hall", "echo offset 9 > /srv/thermometer/ctl");
        denied.code != 0 && denied.err.contains("ermission denied")
    });
    node.up_ok(&topology("gauge", "kelvin", ALL));
    wait::until("the verb is back", || node.shell("hall", "echo offset 1 > /srv/thermometer/ctl").code == 0);
    assert_eq!(pid_of(&node, "gauge"), pid, "the program was started anew");
    // Another domain's program takes over; the one before is told.
    node.up_ok(&topology("spare", "kelvin", ALL));
    reads(&node, "hall", "20 kelvin");
    wait::until("the program that served is told", || node.ok(&["logs", "gauge"]).contains("no longer"));
}

// A program is killed at any time: open files are for its successor, which is asked again what the
// dead one was.
#[test]
fn a_program_dies_under_open_files_and_its_successor_answers() {
    let Some(node) = start() else { return };
    for kill in 1..=KILLS {
        reads(&node, "hall", "20 celsius");
        node.shell_ok("hall", "echo hold > /srv/thermometer/ctl");
        let line = "exec 3<>/srv/thermometer/convert; echo 20 >&3; echo asked; read a <&3; echo got $a";
        let mut child = node
            .command(&["exec", "hall", "--", "sh", "-c", line])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tombolo starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        assert_eq!(lines.next().expect("a line").expect("read"), "asked");
        node::kill(pid_of(&node, "gauge"));
        assert_eq!(lines.next().expect("a line").expect("read"), "got 68");
        assert!(child.wait().expect("it ends").success());
        assert_eq!(row(&node)["generation"], kill + 1);
    }
    // And the daemon's death is nothing to either.
    node.kill_daemon();
    let said = node.up_ok(&topology("gauge", "celsius", ALL));
    assert!(said.contains("nothing to do"), "{said}");
    reads(&node, "attic", "20 celsius");
    wait::until("the program has offered again", || row(&node)["up"] == true);
    reads(&node, "hall", "20 celsius");
}

/// The service of `docs/services.md` and `examples/thermometer`, in Python, used as its README
/// says.
#[test]
fn the_example_in_python_serves_texts_streams_and_folders() {
    let Some(node) = Node::start() else { return };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/thermometer/topology.toml");
    node.ok(&["up", example]);
    let reads = |line: &str| {
        let run = node.shell("hall", line);
        run.code == 0 && !run.out.trim().is_empty()
    };
    wait::until("the thermometer serves", || reads("cat /srv/thermometer/reading"));
    node.shell_ok("hall", "echo offset 1.5 > /srv/thermometer/ctl");
    assert_eq!(node.shell_ok("hall", "cat /srv/thermometer/ctl").trim(), "offset 1.5");
    let asked = "exec 3<>/srv/thermometer/convert; echo 20 >&3; read x <&3; echo $x";
    assert_eq!(node.shell_ok("attic", asked).trim(), "68.0");
    // A stream comes by itself.
    let samples = node.shell_ok("attic", "head -n 3 /srv/thermometer/samples");
    assert_eq!(samples.lines().count(), 3, "{samples}");
    // A folder is shared by those who may see it, and changed by those who may change it.
    node.shell_ok(
        "hall",
        "cd /srv/thermometer/notes && mkdir week && echo calibrated > week/today && mv week/today week/now",
    );
    assert_eq!(
        node.shell_ok("attic", "cat /srv/thermometer/notes/week/now; ls /srv/thermometer/notes").trim(),
        "calibrated\nweek"
    );
    let denied = node
        .shell("attic", "echo no > /srv/thermometer/notes/week/now || rm /srv/thermometer/notes/week/now");
    assert!(denied.code != 0 && denied.err.contains("ermission denied"), "{denied:?}");
    node.ok(&["down", "thermometer"]);
}

/// The headers of the library.
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include");
/// A first service is written in so many lines.
const MAX_LINES: usize = 30;
/// The first service in Rust, which is the program of `examples/first_service`.
const FIRST: &str = env!("CARGO_BIN_EXE_first_service");

/// The first service of `docs/services.md` in Rust: the page and the example have the same text,
/// which is short, and it does what the page says.
#[test]
fn the_first_service_in_rust_is_short_and_does_what_the_page_says() {
    let page = include_str!("../../../docs/services.md");
    let example = include_str!("../../../examples/first_service/src/main.rs");
    let of_page = page.split_once("```rust main.rs\n").and_then(|(_, rest)| rest.split_once("```\n"));
    assert_eq!(of_page.expect("the page has it").0, example);
    assert!(example.lines().count() <= MAX_LINES, "{} lines", example.lines().count());
    let Some(node) = Node::start() else { return };
    // What the example builds stands beside it; here cargo has put it elsewhere.
    let topology = include_str!("../../../examples/first_service/topology.toml");
    let mount = "{ source = \"target/debug\", target = \"/app\" }";
    assert_eq!(topology.matches(mount).count(), 1);
    let built = format!("{{ source = \"{FIRST}\", target = \"/app/first_service\" }}");
    use_thermometer(&node, "first-service", &topology.replace(mount, &built));
}

/// The same in C.
#[test]
fn the_first_service_in_c_is_short_and_does_what_the_page_says() {
    let page = include_str!("../../../docs/services.md");
    let example = include_str!("../../../examples/first_service_c/thermometer.c");
    let of_page = page.split_once("```c thermometer.c\n").and_then(|(_, rest)| rest.split_once("```\n"));
    assert_eq!(of_page.expect("the page has it").0, example);
    assert!(example.lines().count() <= MAX_LINES, "{} lines", example.lines().count());
    let Some(node) = Node::start() else { return };
    let folder = node.folder().join("app");
    std::fs::create_dir(&folder).expect("a folder");
    let source = format!("{HEADERS}/../examples/first_service_c/thermometer.c");
    compile(&folder, &source, "thermometer", "-std=c99 -pedantic");
    let topology = include_str!("../../../examples/first_service_c/topology.toml");
    let mount = "{ source = \".\", target = \"/app\" }";
    assert_eq!(topology.matches(mount).count(), 1);
    let built = format!("{{ source = \"{}\", target = \"/app\" }}", folder.display());
    use_thermometer(&node, "first-service-c", &topology.replace(mount, &built));
}

/// Compiles a program for a domain, where the loader finds the library in `/run/tombolo`.
fn compile(folder: &std::path::Path, source: &str, name: &str, more: &str) {
    let library = node::binary().parent().expect("a folder").display().to_string();
    let line = format!(
        "cc -Wall -Wextra -Werror {more} -I {HEADERS} {source} -o {name} -L {library} -ltombolo -Wl,-rpath,/run/tombolo"
    );
    e2e::oci::script(folder, &line);
}

#[test]
fn a_service_in_c_is_asked_by_many_and_answers_from_any_thread() {
    let Some(node) = Node::start() else { return };
    let folder = node.folder().join("app");
    std::fs::create_dir(&folder).expect("a folder");
    compile(&folder, concat!(env!("CARGO_MANIFEST_DIR"), "/programs/desk.c"), "desk", "-std=gnu11 -pthread");
    node.up_ok(&format!(
        "name = \"office\"\n[domain.clerk]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"/app/desk\"]\n\
         mounts = [{{ source = \"{}\", target = \"/app\" }}]\nrestart = {{ policy = \"always\", backoff = \"50ms\" }}\n\
         [domain.hall]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
         services = {{ desk = \"/srv/desk\" }}\n\
         [service.desk]\nkind = \"program\"\ndomain = \"clerk\"\nallow = [{{ domains = [\"hall\"], verbs = [\"use\"] }}]\n",
        folder.display()
    ));
    wait::until("the desk serves", || {
        // It says what did not fail as it should.
        let said = node.run(&["logs", "clerk"]);
        assert!(!said.out.contains("and not"), "{said:?}");
        node.shell("hall", "cat /srv/desk/gone").out.trim() == "0"
    });
    let asked = "for i in $(seq 1 20); do (for j in $(seq 1 20); do exec 3<>/srv/desk/ask; echo $i-$j >&3; read x <&3; \
                 [ $(echo $x | rev) = $i-$j ] || echo wrong $x; done) & done; wait";
    assert_eq!(node.shell_ok("hall", asked).trim(), "");
    let told = "import fcntl; f = open('/srv/desk/ask', 'r+b', 0); b = bytearray(16); \
                fcntl.ioctl(f, (2 << 30) | (16 << 16) | (100 << 8) | 1, b); print(b.rstrip(b'\\0').decode())";
    assert_eq!(node.shell_ok("hall", &format!("python3 -c \"{told}\"")).trim(), "hall");
    // Who waits for good is killed, and the program hears of it.
    let killed = "for i in 1 2 3; do timeout -s KILL 0.3 sh -c 'exec 3<>/srv/desk/wait; echo x >&3; read y <&3'; done; true";
    node.shell_ok("hall", killed);
    wait::until("the program knows who has gone", || {
        node.shell_ok("hall", "cat /srv/desk/gone").trim() == "3"
    });
    let log = "exec 3</srv/desk/log; printf one > /srv/desk/log; timeout 20 head -c 3 <&3";
    assert_eq!(node.shell_ok("hall", log), "one");
    node.ok(&["down", "office"]);
}

/// Uses the first service of the page as the page does, and kills its program.
fn use_thermometer(node: &Node, dc: &str, topology: &str) {
    node.up_ok(topology);
    wait::until("the thermometer serves", || {
        node.shell("hall", "cat /srv/thermometer/reading").out.trim() == "20.0"
    });
    node.shell_ok("hall", "echo 21.5 > /srv/thermometer/ctl");
    assert_eq!(node.shell_ok("hall", "cat /srv/thermometer/reading").trim(), "21.5");
    assert_eq!(node.shell_ok("hall", "head -n 2 /srv/thermometer/samples").trim(), "21.5\n21.5");
    let warm = "open('/srv/thermometer/ctl', 'wb', 0).write(b'warm')";
    let refused = node.shell("hall", &format!("python3 -c \"{warm}\""));
    assert!(refused.code != 0 && refused.err.contains("[Errno 22]"), "{refused:?}");
    // Its program is killed, and the next one serves with a state of its own.
    let tree = node.json(&["inspect", &format!("dc/{dc}/domains/sensor")]);
    node::kill(tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs"));
    wait::until("the next program serves", || {
        node.shell("hall", "cat /srv/thermometer/reading").out.trim() == "20.0"
    });
    node.ok(&["down", dc]);
}

/// Uses what a skeleton serves, as its README says.
fn use_skeleton(node: &Node, folder: &std::path::Path, name: &str) {
    node.ok(&["up", folder.join("topology.toml").to_str().expect("UTF-8")]);
    wait::until("the skeleton serves", || {
        node.shell("user", &format!("cat /srv/{name}/value")).out.trim() == "0"
    });
    let asked =
        format!("cd /srv/{name}; exec 3<changes; echo 7 >ctl; sed -n 1p value; timeout 30 head -c 2 <&3");
    assert_eq!(node.shell_ok("user", &asked).trim(), "7\n7");
    let wrong = node.shell("user", &format!("echo seven > /srv/{name}/ctl"));
    assert!(wrong.code != 0 && wrong.err.contains("Invalid argument"), "{wrong:?}");
    node.ok(&["down", name]);
}

#[test]
fn a_skeleton_in_each_language_runs_and_overwrites_nothing() {
    let Some(node) = Node::start() else { return };
    let place = tempfile::tempdir().expect("a folder");
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let made = |name: &str| place.path().join(name);
    let new = |name: &str, more: &[&str]| {
        let folder = made(name);
        let arguments = ["service", "new", folder.to_str().expect("UTF-8")];
        node.run(&[&arguments[..], more].concat())
    };
    let python = new("first", &["--language", "python"]);
    assert_eq!(python.code, 0, "{python:?}");
    use_skeleton(&node, &made("first"), "first");
    let c = new("fourth", &["--language", "c"]);
    assert_eq!(c.code, 0, "{c:?}");
    let library = node::binary().parent().expect("a folder").display().to_string();
    let line = format!("make -s CFLAGS='-Wall -Wextra -Werror' CPPFLAGS=-I{HEADERS} LDFLAGS=-L{library}");
    e2e::oci::script(&made("fourth"), &line);
    use_skeleton(&node, &made("fourth"), "fourth");
    let rust = new("second", &["--language", "rust", "--sources", sources]);
    assert_eq!(rust.code, 0, "{rust:?}");
    // With the versions that are here already: nothing is fetched.
    std::fs::copy(format!("{sources}/Cargo.lock"), made("second").join("Cargo.lock")).expect("copied");
    let cargo = std::env::var("CARGO").expect("cargo runs the tests");
    let built = std::process::Command::new(cargo)
        .args(["build", "--offline"])
        .current_dir(made("second"))
        // The dependencies are there as this workspace has built them, where they are built alike.
        .env("CARGO_TARGET_DIR", node::target())
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .output()
        .expect("cargo starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let folder = made("second").join("target/debug");
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::copy(node::target().join("debug/second"), folder.join("second")).expect("the program");
    use_skeleton(&node, &made("second"), "second");
    for (name, more, words) in [
        ("first", &["--language", "python"][..], "is not empty; nothing was written"),
        ("first/service.py", &["--language", "python", "--name", "a"], "is no folder; nothing was written"),
        ("No Word", &["--language", "python"], "can't be the name of a service"),
        ("third", &["--language", "rust"], "say where Tombolo's sources are"),
        ("third", &["--language", "rust", "--sources", "/usr"], "/usr has no io/service/Cargo.toml"),
    ] {
        let refused = new(name, more);
        assert!(refused.code == 2 && refused.err.contains(words), "{refused:?}");
    }
    assert!(!made("third").exists() && !made("No Word").exists());
}

/// Ordinary tools read a stream, which looks like a regular file and has no offsets, as
/// `docs/services.md` says.
#[test]
fn ordinary_tools_read_streams_as_the_page_says() {
    let Some(node) = Node::start() else { return };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/thermometer/topology.toml");
    node.ok(&["up", example]);
    let stream = "/srv/thermometer/samples";
    wait::until("the thermometer serves", || node.shell("hall", &format!("head -n 1 {stream}")).code == 0);
    for quiet in [format!("sed 2q {stream}"), format!("cat {stream} | head -n 2")] {
        let read = node.shell("hall", &quiet);
        assert!(read.code == 0 && read.out.lines().count() == 2 && read.err.is_empty(), "{quiet}: {read:?}");
    }
    let head = node.shell("hall", &format!("head -n 2 {stream}"));
    assert!(head.code == 0 && head.out.lines().count() == 2, "{head:?}");
    assert!(head.err.contains("Illegal seek"), "{head:?}");
    // A time holds behind a pipe.
    let timed = format!("cat {stream} | bash -c 'read -t 20 line && echo got' ");
    assert_eq!(node.shell_ok("hall", &timed).trim(), "got");
    node.ok(&["down", "thermometer"]);
}

/// A service that is wrong on purpose: a function fails, one never answers, one fails at a wrong
/// line, and one ends the program.
const WRONG: &str = r#"
import asyncio
import os
from tombolo.service import Service

wrong = Service("wrong")

@wrong.text("fails", verb="use")
def fails(call):
    raise ValueError("a mistake")

@wrong.text("fine", verb="use")
def fine(call):
    return "fine\n"

@wrong.text("hangs", verb="use")
async def hangs(call):
    await asyncio.Event().wait()

@wrong.control("ctl", verb="use")
def ctl(call, line):
    float(line)

@wrong.session("zap", verb="use")
def zap(session, line):
    os._exit(1)

wrong.run()
"#;

/// Two services in one distributed container: a skeleton of ours, and the one that is wrong on
/// purpose.
fn checked(folder: &std::path::Path) -> String {
    let serves = |name: &str| {
        format!(
            "[domain.{name}-host]\nkind = \"container\"\ncommand = [\"python3\", \"/app/{name}.py\"]\n\
             environment = {{ PYTHONPATH = \"/run/tombolo/python\" }}\n\
             mounts = [{{ source = \"{}\", target = \"/app\" }}]\n\
             restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"200ms\" }}\n\
             [service.{name}]\nkind = \"program\"\ndomain = \"{name}-host\"\n\
             allow = [{{ domains = [\"hall\"], verbs = [\"use\", \"read\", \"set\"] }}]\n",
            folder.display()
        )
    };
    format!(
        "name = \"lab\"\n[domain.hall]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n\
         services = {{ right = \"/srv/right\", wrong = \"/srv/wrong\" }}\n{}{}",
        serves("right"),
        serves("wrong")
    )
}

#[test]
fn a_check_finds_nothing_in_a_good_service_and_names_what_is_wrong_in_another() {
    let Some(node) = Node::start() else { return };
    let place = tempfile::tempdir().expect("a folder");
    let skeleton = place.path().join("right");
    node.ok(&["service", "new", "--language", "python", skeleton.to_str().expect("UTF-8")]);
    std::fs::copy(skeleton.join("service.py"), place.path().join("right.py")).expect("copied");
    std::fs::write(place.path().join("wrong.py"), WRONG).expect("written");
    node.up_ok(&checked(place.path()));
    for file in ["right/value", "wrong/fine"] {
        wait::until("it serves", || node.shell("hall", &format!("cat /srv/{file}")).code == 0);
    }
    let report = node.json(&["service", "check", "right", "--write"]);
    assert_eq!(report["findings"], json!([]), "{report}");
    let behaviours: Vec<_> = report["files"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|file| (&file["name"], &file["behaviour"]))
        .collect();
    let expected = [("changes", "stream"), ("ctl", "control"), ("value", "text")];
    assert_eq!(behaviours.len(), expected.len(), "{report}");
    for ((name, behaviour), said) in expected.iter().zip(&behaviours) {
        assert!(said.0 == name && said.1 == behaviour, "{report}");
    }
    assert!(node.ok(&["service", "check", "right"]).contains("nothing was found"));
    // Without --write nothing ends the program.
    let read = node.run(&["service", "check", "wrong", "--json"]);
    assert_eq!(read.code, 1, "{read:?}");
    let found = |run: &e2e::Run, file: &str, words: &str| {
        let report: Value = serde_json::from_str(&run.out).expect("JSON");
        let findings = report["findings"].as_array().expect("a list").clone();
        let of_file = findings.iter().filter(|finding| finding["file"] == file);
        of_file
            .into_iter()
            .any(|finding| finding["found"].as_str().is_some_and(|found| found.contains(words)))
    };
    assert!(found(&read, "fails", "os error 5"), "{read:?}");
    assert!(found(&read, "hangs", "no answer within 5s"), "{read:?}");
    assert!(!found(&read, "fine", "") && !found(&read, "ctl", "") && !found(&read, "", ""), "{read:?}");
    let written = node.run(&["service", "check", "wrong", "--write", "--json"]);
    assert_eq!(written.code, 1, "{written:?}");
    assert!(found(&written, "ctl", "os error 5"), "{written:?}");
    assert!(found(&written, "zap", "") && found(&written, "", "another process serves"), "{written:?}");
    assert!(!found(&written, "fine", ""), "{written:?}");
    for (name, words) in [("none", "none"), ("right --domain right-host", "does not mount")] {
        let arguments: Vec<&str> = ["service", "check"].into_iter().chain(name.split(' ')).collect();
        let refused = node.run(&arguments);
        assert!(refused.code != 0 && refused.err.contains(words), "{refused:?}");
    }
    node.ok(&["down", "lab"]);
}
