//! WebAssembly modules of subscribers: they filter and transform for those who hand them over, and
//! nobody else notices whatever they do.

use crate::events::{Program, UNTIL_STOPPED, await_subscribers, channel, lines_of, pid_of, start, topology};
use e2e::{Node, node, wait};
use std::path::PathBuf;

/// Writes a module, whose function `name` has this body, where node and domains find it.
fn module(node: &Node, file: &str, name: &str, body: &str) -> PathBuf {
    let results = if name == "filter" { "i32" } else { "i64" };
    let text = format!(
        "(module (memory (export \"memory\") 1) (func (export \"buffer\") (param i32) (result i32) i32.const 1024)
         (func (export \"{name}\") (param i32 i32) (result {results}) {body}))"
    );
    let path = node.folder().join(file);
    std::fs::write(&path, wat::parse_str(text).expect("it is a module")).expect("written");
    path
}

/// Lets events through that begin with this letter.
fn beginning_with(letter: char) -> String {
    format!("(i32.eq (i32.load8_u (local.get 0)) (i32.const {}))", letter as u32)
}

fn subscribe(node: &Node, domain: &str, module: &std::path::Path, count: &str) -> Program {
    let module = module.to_string_lossy();
    Program::run(
        node.command(&["events", "sub", "alarms", "--count", count, "--module", &module, "--domain", domain]),
    )
}

fn stats(node: &Node, domain: &str) -> String {
    node.shell_ok(domain, "cat /srv/events/alarms/stats")
}

#[test]
fn modules_filter_and_transform_for_who_hands_them_over() {
    let Some(node) = start() else { return };
    let filter = module(&node, "fire.wasm", "filter", &beginning_with('f'));
    let loud = module(
        &node,
        "loud.wasm",
        "transform",
        "(i32.store8 (local.get 0) (i32.sub (i32.load8_u (local.get 0)) (i32.const 32)))
         (i64.or (i64.shl (i64.extend_i32_u (local.get 0)) (i64.const 32)) (i64.extend_i32_u (local.get 1)))",
    );
    let fires = subscribe(&node, "panel", &filter, "2");
    let aloud = subscribe(&node, "attic", &loud, "3");
    let all = Program::shell(&node, "attic", &lines_of(3));
    await_subscribers(&node, "alarms", 3);
    wait::until("both modules are there", || stats(&node, "attic").matches("module sha256:").count() >= 2);
    node.shell_ok("sensor", "cd /srv/events/alarms; for e in fire storm flood; do echo $e > pub; done");
    assert_eq!(fires.end(), ["fire", "flood"]);
    assert_eq!(aloud.end(), ["Fire", "Storm", "Flood"]);
    assert_eq!(all.end(), ["fire", "storm", "flood"]);

    // By `cat`, and another one in its place between two events; and old events, when they are
    // asked for.
    let other = module(&node, "storm.wasm", "filter", &beginning_with('s'));
    let copy = |from: &PathBuf, to: &str| {
        let bytes = std::fs::read(from).expect("the module");
        let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
        node.shell_ok("panel", &format!("printf '{octal}' > /tmp/{to}"));
    };
    copy(&filter, "fire.wasm");
    copy(&other, "storm.wasm");
    let mut shell = Program::shell(
        &node,
        "panel",
        "exec 3<>/srv/events/alarms/sub; cat /tmp/fire.wasm >&3; read -r a <&3; echo $a; \
         cat /tmp/storm.wasm >&3; grep -c module /srv/events/alarms/stats; read -r a <&3; echo $a; \
         (echo 'replay all'; echo module; cat /tmp/storm.wasm) > /tmp/said; cat /tmp/said >&3; \
         read -r a <&3; echo $a; read -r a <&3; echo $a",
    );
    wait::until("the module is there", || stats(&node, "panel").contains("module sha256:"));
    node.shell_ok("sensor", "echo storm1 > /srv/events/alarms/pub; echo fire1 > /srv/events/alarms/pub");
    assert_eq!(shell.line(), "fire1");
    assert_eq!(shell.line(), "2", "its filter, and its subscription");
    node.shell_ok("sensor", "echo fire2 > /srv/events/alarms/pub; echo storm2 > /srv/events/alarms/pub");
    assert_eq!(shell.line(), "storm2");
    assert_eq!(shell.end(), ["storm", "storm1"]);
}

#[test]
fn modules_that_fail_or_mean_harm_cost_only_their_owner() {
    let Some(node) = start() else { return };
    let bodies = [
        ("trap.wasm", "unreachable", "it has trapped"),
        ("loop.wasm", "(loop br 0) i32.const 1", "it has used the fuel of one event"),
        ("bomb.wasm", "(drop (memory.grow (i32.const 9000))) i32.const 1", "bytes of memory"),
    ];
    let all = Program::shell(&node, "attic", "exec cat /srv/events/alarms/sub");
    await_subscribers(&node, "alarms", 1);
    for (file, body, why) in bodies {
        let path = module(&node, file, "filter", body);
        let path = path.to_string_lossy().into_owned();
        let child = node
            .command(&["events", "sub", "alarms", "--module", &path, "--domain", "panel"])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("tombolo starts");
        wait::until("its module is there", || stats(&node, "panel").contains("module sha256:"));
        node.shell_ok("sensor", &format!("echo {file} > /srv/events/alarms/pub"));
        let ended = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains("was switched off near event") && said.contains(why), "{file}: {said}");
        assert!(stats(&node, "panel").contains("refused the module was switched off"));
    }
    assert!(!stats(&node, "attic").contains("refused"), "only its owner is told");
    assert!(!stats(&node, "panel").contains("module sha256:"), "they are gone");

    // What can't be installed is refused with the reason.
    let long = node.folder().join("long.wasm");
    std::fs::write(&long, vec![0; 70_000]).expect("written");
    let text = node.folder().join("text.wasm");
    std::fs::write(&text, "no module").expect("written");
    let starts = module(&node, "start.wasm", "filter", "i32.const 1) (func $s (loop br 0)) (start $s");
    let huge = module(&node, "huge.wasm", "filter", "i32.const 1) (table 4000000000 funcref");
    for (path, why) in [
        (&long, "longer than the 64512 bytes"),
        (&text, "no valid WebAssembly module"),
        (&starts, "its start function has failed: it has used the fuel"),
        (&huge, "it can't begin with"),
    ] {
        let path = path.to_string_lossy();
        let run = node.run(&["events", "sub", "alarms", "--module", &path, "--domain", "panel"]);
        assert!(run.code == 2 && run.err.contains(why), "{path}: {run:?}");
    }

    // A domain has four modules at the most; the same one is one.
    let mut open = Vec::new();
    for n in [0, 1, 2, 3, 3] {
        let file = module(&node, &format!("m{n}.wasm"), "filter", &format!("i32.const {}", n + 5));
        open.push(subscribe(&node, "panel", &file, "1"));
        await_subscribers(&node, "alarms", open.len() as u64 + 1);
    }
    wait::until("all are there", || stats(&node, "panel").matches("since=").count() == 4);
    let fifth = module(&node, "m9.wasm", "filter", "i32.const 77").to_string_lossy().into_owned();
    let run = node.run(&["events", "sub", "alarms", "--module", &fifth, "--domain", "panel"]);
    assert!(run.code == 2 && run.err.contains("4 modules at the most"), "{run:?}");
    node.shell_ok("sensor", "echo last > /srv/events/alarms/pub");
    for program in open {
        assert_eq!(program.end(), ["last"]);
    }
    assert_eq!(node.shell_ok("attic", "cat /srv/events/alarms/last"), "last\n");
    let mut all = all;
    let seen: Vec<String> = (0..4).map(|_| all.line()).collect();
    assert_eq!(seen, ["trap.wasm", "loop.wasm", "bomb.wasm", "last"], "who has no module notices nothing");
    all.kill();
}

#[test]
fn a_module_goes_on_when_its_service_or_its_reader_is_killed() {
    let Some(node) = start() else { return };
    // Lets numbers through whose last digit is 0, and the end.
    let path = module(
        &node,
        "tens.wasm",
        "filter",
        "(i32.or (i32.eq (i32.load8_u (i32.add (local.get 0) (i32.sub (local.get 1) (i32.const 2)))) (i32.const 48))
                 (i32.eq (i32.load8_u (local.get 0)) (i32.const 101)))",
    );
    let bytes = std::fs::read(&path).expect("the module");
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut reader = Program::python(
        &node,
        "panel",
        &format!(
            r#"
import os
sub = os.open("/srv/events/control/sub", os.O_RDWR)
os.write(sub, b"overflow wait 5000\nmodule\n" + bytes.fromhex("{hex}"))
print("ready")
n = 0
while True:
    event = os.read(sub, 65536)
    if event == b"end\n": break
    assert event == b"%d\n" % n, (n, event)
    n += 10
print(n)
"#
        ),
    );
    assert_eq!(reader.line(), "ready");
    let publisher = Program::python(&node, "sensor", UNTIL_STOPPED);
    let next = || channel(&node, "control")["next"].as_u64().unwrap_or(0);
    for (domain, which) in [("bus", "pid"), ("panel", "frontend_pid"), ("bus", "pid")] {
        let seen = next();
        wait::until("events flow", || next() > seen + 100);
        node::kill(pid_of(&node, domain, which));
        let seen = next();
        wait::until("events flow again", || next() > seen + 100);
    }
    node.shell_ok("sensor", "touch /tmp/stop");
    let published = publisher.end();
    assert_eq!(reader.end(), published, "each once and in order");
}

/// The distributed container with filters in its file: what `panel` and `attic` are shown of
/// `alarms`. The modules are in `bus` at `/modules`.
fn with_given(node: &Node, given: &str) -> String {
    let mounts = format!("mounts = [{{ source = {:?}, target = \"/modules\" }}]", node.folder());
    topology(&format!("channels = {{ alarms = {{ subscribers = {{ {given} }} }} }}")).replacen(
        "kind = \"container\"\n",
        &format!("kind = \"container\"\n{mounts}\n"),
        1,
    )
}

#[test]
fn the_file_gives_a_domain_its_filter_and_the_domain_can_have_no_other() {
    let Some(node) = Node::start() else { return };
    module(&node, "fire.wasm", "filter", &beginning_with('f'));
    std::fs::write(node.folder().join("text.wasm"), "no module").expect("written");
    let empty = wat::parse_str("(module)").expect("it is a module");
    std::fs::write(node.folder().join("empty.wasm"), empty).expect("written");
    // What is wrong is said before anything is touched.
    for (given, why) in [
        ("panel = { filter = \"temperature >\" }", "at byte 13: a field or a value was expected"),
        ("panel = { module = \"/modules/text.wasm\" }", "does not begin as WebAssembly does"),
        ("panel = { module = \"/modules/empty.wasm\" }", "memory"),
        ("panel = { module = \"/modules/none.wasm\" }", "No such file"),
        ("sensor = { filter = \"a\" }", "`sensor` may not subscribe"),
    ] {
        let run = node.up(&with_given(&node, given));
        assert!(run.code != 0 && run.err.contains(why), "{given}: {run:?}");
    }

    let given = "panel = { filter = 'n > 2' }, attic = { module = \"/modules/fire.wasm\" }";
    node.up_ok(&with_given(&node, given));
    wait::until("the service is up", || node.shell("panel", "cat /srv/events/alarms/stats").code == 0);
    let high = Program::shell(&node, "panel", &lines_of(2));
    let fires = Program::shell(&node, "attic", &lines_of(2));
    await_subscribers(&node, "alarms", 2);
    let publish = |event: &str| node.shell_ok("sensor", &format!("echo '{event}' > /srv/events/alarms/pub"));
    for event in ["{\"n\": 1}", "fire", "{\"n\": 3}", "flood", "{\"n\": 4}"] {
        publish(event);
    }
    assert_eq!(high.end(), ["{\"n\": 3}", "{\"n\": 4}"]);
    assert_eq!(fires.end(), ["fire", "flood"]);

    // Old events, the newest one, and filters of its own show it nothing else.
    let replayed = "exec 3<>/srv/events/alarms/sub; echo 'replay all' >&3; read -r a <&3; echo $a; read -r a <&3; echo $a";
    assert_eq!(Program::shell(&node, "panel", replayed).end(), ["{\"n\": 3}", "{\"n\": 4}"]);
    assert_eq!(Program::shell(&node, "attic", replayed).end(), ["fire", "flood"]);
    assert_eq!(node.shell_ok("panel", "cat /srv/events/alarms/last"), "{\"n\": 4}\n");
    publish("{\"n\": 2}");
    assert_eq!(node.shell_ok("panel", "cat /srv/events/alarms/last"), "");
    assert_ne!(node.shell("attic", "cat /srv/events/alarms/last").code, 0, "a module is not asked for it");
    let fire = node.folder().join("fire.wasm").to_string_lossy().into_owned();
    for words in [["--filter", "true"], ["--module", &fire]] {
        let words = [&["events", "sub", "alarms", "--domain", "panel"][..], &words].concat();
        let run = node.run(&words);
        assert!(
            run.code == 2 && run.err.contains("gives this domain's subscriptions their filter"),
            "{run:?}"
        );
    }

    // Nor does whoever may manage the channel have its events read otherwise.
    let other = node.shell("sensor", "echo 'format cbor' > /srv/events/alarms/ctl");
    assert!(other.code != 0 && other.err.contains("not permitted"), "{other:?}");

    // Another file changes the filter of an open subscription, between two events; and its
    // service's death changes nothing.
    let mut open = Program::shell(&node, "panel", &lines_of(3));
    await_subscribers(&node, "alarms", 1);
    publish("{\"n\": 5}");
    assert_eq!(open.line(), "{\"n\": 5}");
    node.up_ok(&with_given(
        &node,
        "panel = { filter = 'n < 2' }, attic = { module = \"/modules/fire.wasm\" }",
    ));
    wait::until("the filter is there", || stats(&node, "panel").contains("filter=n < 2"));
    publish("{\"n\": 6}");
    publish("{\"n\": 0}");
    assert_eq!(open.line(), "{\"n\": 0}");
    node::kill(pid_of(&node, "bus", "pid"));
    publish("{\"n\": 7}");
    publish("{\"n\": 1}");
    assert_eq!(open.end(), ["{\"n\": 1}"]);
}
