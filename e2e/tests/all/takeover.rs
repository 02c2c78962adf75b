//! Backups of endpoints: callers go on while the primary is killed, superseded, or loses its
//! daemon, and each request is counted once.

use crate::endpoint_bed::{Program, SLEEP, endpoints, row};
use e2e::{Node, node, wait};
use std::fs;
use std::time::Duration;

/// The program of these tests, on this machine.
const PEER: &str = env!("CARGO_BIN_EXE_takeover_peer");
/// Where domains see it.
const INSIDE: &str = "/takeover-peer";
/// Callers in a loop.
const CALLERS: usize = 3;
/// How often the primary is killed.
const KILLS: usize = 4;
/// How long callers run between two kills.
const BETWEEN: Duration = Duration::from_millis(300);

fn topology() -> String {
    let domain = |name: &str| {
        format!(
            "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = {SLEEP}\n\
             mounts = [{{ source = \"{PEER}\", target = \"{INSIDE}\" }}]\n"
        )
    };
    let domains: String = ["one", "two", "desk"].into_iter().map(domain).collect();
    format!(
        "name = \"shop\"\n{domains}\n[endpoint.counter]\ndomain = \"one\"\nbackups = [\"one\", \"two\"]\n\
         allow = [{{ domains = [\"desk\"], verbs = [\"request\"] }}]\n"
    )
}

fn spawn(node: &Node, domain: &str, words: &[&str]) -> Program {
    Program::run(node.command(&[&["exec", "-i", domain, "--", INSIDE], words].concat()))
}

/// A node with a primary, and callers that ask it.
fn start() -> Option<(Node, Program)> {
    let node = Node::start()?;
    node.up_ok(&topology());
    let primary = spawn(&node, "one", &["count", "counter"]);
    primary.wait_for("bound ");
    Some((node, primary))
}

fn backup(node: &Node, domain: &str) -> Program {
    let backup = spawn(node, domain, &["back", "counter"]);
    backup.wait_for("is ready");
    backup
}

fn callers(node: &Node) -> Vec<Program> {
    let callers: Vec<Program> = (0..CALLERS)
        .map(|at| spawn(node, "desk", &["tally", "counter", &format!("caller{at}"), "/tmp/stop"]))
        .collect();
    callers.iter().for_each(|caller| drop(caller.wait_for("answered by ")));
    callers
}

/// Stops the callers: each had every request counted once.
fn stop(node: &Node, callers: Vec<Program>) {
    node.shell_ok("desk", "touch /tmp/stop");
    for mut caller in callers {
        println!("{}", caller.wait_for("0 errors, 0 duplicates"));
        caller.end();
    }
}

fn pid(node: &Node) -> u32 {
    row(node, "shop", "counter")["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("it is bound")
}

#[test]
fn callers_go_on_while_the_primary_is_killed_again_and_again() {
    let Some((node, _primary)) = start() else { return };
    let mut backups = vec![backup(&node, "two")];
    let callers = callers(&node);
    for kill in 0..KILLS {
        wait::pause(BETWEEN);
        node::kill(pid(&node));
        let taker = backups.last().expect("a backup").wait_for("took over ");
        println!("kill {kill}: {taker}");
        backups.push(backup(&node, if kill % 2 == 0 { "one" } else { "two" }));
    }
    wait::pause(BETWEEN);
    stop(&node, callers);
}

#[test]
fn of_two_backups_one_takes_over_and_the_other_stands_by_for_it() {
    let Some((node, _primary)) = start() else { return };
    let backups = [backup(&node, "one"), backup(&node, "two")];
    let callers = callers(&node);
    node::kill(pid(&node));
    wait::until("one has taken over", || {
        backups.iter().any(|b| b.lines().iter().any(|l| l.contains("took")))
    });
    let other = backups.iter().find(|b| !b.lines().iter().any(|l| l.contains("took"))).expect("another one");
    // It lost what it had, and was told everything anew.
    wait::until("the other one is ready again", || {
        other.lines().iter().filter(|line| line.starts_with("is ready")).count() == 2
    });
    node::kill(pid(&node));
    other.wait_for("took over ");
    stop(&node, callers);
}

#[test]
fn a_primary_that_still_runs_is_superseded_and_no_reply_of_it_counts() {
    let Some((node, primary)) = start() else { return };
    let mut taker = spawn(&node, "two", &["seize", "counter"]);
    taker.wait_for("is ready");
    let callers = callers(&node);
    let before = pid(&node);
    taker.say("now");
    taker.wait_for("took over ");
    let failed = primary.wait_for("failed: ");
    assert!(failed.contains("superseded"), "{failed}");
    assert_ne!(pid(&node), before);
    stop(&node, callers);
}

#[test]
fn the_daemon_dies_between_primary_and_backup_and_nobody_notices() {
    let Some((node, _primary)) = start() else { return };
    let backup = backup(&node, "two");
    let callers = callers(&node);
    let primary = pid(&node);
    node.kill_daemon();
    // Nobody is there to give the place to anybody: callers wait.
    node::kill(primary);
    node.up_ok(&topology());
    backup.wait_for("took over ");
    wait::until("it is bound", || row(&node, "shop", "counter")["bound"] == true);
    stop(&node, callers);
}

// The place goes from container to container while callers ask.
#[test]
fn callers_go_on_while_the_endpoint_moves_between_domains() {
    let Some((node, _primary)) = start() else { return };
    let mut roamer = spawn(&node, "two", &["roam", "counter"]);
    roamer.wait_for("is ready");
    node::kill(pid(&node));
    roamer.wait_for("took over ");
    let callers = callers(&node);
    for to in ["one", "two", "one", "two"] {
        let next = spawn(&node, to, &["roam", "counter"]);
        next.wait_for("is ready");
        wait::pause(BETWEEN);
        roamer.say(to);
        println!("{}", roamer.wait_for("moved to "));
        next.wait_for("took over ");
        roamer = next;
    }
    roamer.say("desk");
    let refused = roamer.wait_for("stays: ");
    assert!(refused.contains("no program of domain desk") && refused.contains("`backups`"), "{refused}");
    stop(&node, callers);
}

// The place goes from domain to domain by the administrator's word, while callers ask.
#[test]
fn callers_go_on_while_the_administrator_moves_the_endpoint() {
    let Some((node, _primary)) = start() else { return };
    let callers = callers(&node);
    let mut backups = Vec::new();
    for to in ["two", "one", "two", "one"] {
        backups.push(backup(&node, to));
        wait::pause(BETWEEN);
        println!("{}", node.ok(&["endpoint", "migrate", "counter", "--to", to]));
        backups.last().expect("a backup").wait_for("took over ");
    }
    stop(&node, callers);
}

/// Binds the name, is refused where nobody stands by, then moves to where somebody does, after a
/// start that it takes back.
const MOVER: &str = r#"
import errno, time, tombolo
me = tombolo.Endpoint("counter")
me.keep_state(b"word 41\n")
try:
    me.migrate("two")
except OSError as why:
    print("refused:", errno.errorcode[why.errno], flush=True)
while True:
    try:
        me.start_migration("two")
        break
    except OSError:
        time.sleep(0.01)
try:
    me.receive(timeout=0)
except OSError as why:
    print("moving:", errno.errorcode[why.errno], flush=True)
me.roll_back_migration()
me.migrate("two")
try:
    me.receive(timeout=20)
except OSError as why:
    print("ended:", errno.errorcode[why.errno], flush=True)
"#;

#[test]
fn a_program_in_python_moves_its_endpoint_and_hears_why_not() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&topology());
    let python = ["exec", "-i", "one", "--", "env", "PYTHONPATH=/run/tombolo/python", "python3", "-c"];
    let mover = Program::run(node.command(&[&python[..], &[MOVER]].concat()));
    assert!(mover.wait_for("refused: ").contains("ENODEV"));
    let unknown = node.run(&["endpoint", "migrate", "counter", "--to", "desk"]);
    assert!(unknown.code == 1 && unknown.err.contains("`backups`"), "{unknown:?}");
    let unknown = node.run(&["endpoint", "migrate", "countre", "--to", "two"]);
    assert!(unknown.code != 0 && unknown.err.contains("countre"), "{unknown:?}");
    let taker = spawn(&node, "two", &["back", "counter"]);
    assert!(mover.wait_for("moving: ").contains("EINPROGRESS"));
    taker.wait_for("took over ");
    assert!(mover.wait_for("ended: ").contains("ESHUTDOWN"));
    // The state has come along, and callers find the new place.
    let callers = callers(&node);
    stop(&node, callers);
}

/// Receives only after it was told something; then has a buffer, which can't move, and receives
/// again.
const BUSY: &str = r#"
import tombolo
me = tombolo.Endpoint("counter")
print("bound", flush=True)
input()
try:
    me.receive(timeout=0)
except BlockingIOError:
    print("stayed", flush=True)
kept = me.buffer(4096)
me.receive(timeout=60)
"#;

#[test]
fn an_endpoint_that_stays_says_why_and_an_order_is_taken_back() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&topology());
    let python = ["exec", "-i", "one", "--", "env", "PYTHONPATH=/run/tombolo/python", "python3", "-c"];
    let mut busy = Program::run(node.command(&[&python[..], &[BUSY]].concat()));
    busy.wait_for("bound");
    let _backup = spawn(&node, "two", &["back", "counter"]);
    wait::until("somebody stands by", || endpoints(&node, "shop").len() == 2);
    let migrate = ["endpoint", "migrate", "counter"];
    let late = node.run(&[&migrate[..], &["--to", "two", "--timeout", "100ms"]].concat());
    assert!(late.code == 1 && late.err.contains("has not received within 100ms"), "{late:?}");
    let told = node.ok(&[&migrate[..], &["--to", "two", "--no-wait", "--json"]].concat());
    assert!(told.contains("\"to\": \"two\"") && told.contains("\"before\""), "{told}");
    assert!(node.ok(&[&migrate[..], &["--roll-back"]].concat()).contains("stays where it is"));
    busy.say("");
    busy.wait_for("stayed");
    let refused = node.run(&[&migrate[..], &["--to", "two"]].concat());
    assert!(refused.code == 1 && refused.err.contains("has 1 buffers"), "{refused:?}");
}

#[test]
fn a_domain_that_the_file_does_not_name_backs_nothing() {
    let Some((node, _primary)) = start() else { return };
    let mut refused = spawn(&node, "desk", &["back", "counter"]);
    let said = refused.wait_for("failed: ");
    assert!(said.contains("`backups`") && said.contains("desk"), "{said}");
    refused.end();
    let mut unknown = spawn(&node, "two", &["back", "countre"]);
    let said = unknown.wait_for("failed: ");
    assert!(said.contains("counter"), "it names the one that was meant: {said}");
    unknown.end();
    assert_eq!(endpoints(&node, "shop").len(), 1);
}

// What the successor does not know of, it can't answer once: the caller is told, and nothing is
// done twice.
#[test]
fn a_request_that_nobody_can_know_of_is_not_sent_twice() {
    let Some((node, _primary)) = start() else { return };
    let callers = callers(&node);
    node::kill(pid(&node));
    // No backup: a program that begins anew.
    let again = spawn(&node, "one", &["count", "counter"]);
    again.wait_for("bound ");
    for caller in callers {
        let said = caller.wait_for("failed: ");
        let anew = said.contains("was counted as 1");
        assert!(anew || said.contains("it is not known whether it took effect"), "{said}");
    }
}

/// The page's text of a file: the words of a block whose head ends with its name.
fn page_file(name: &str) -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/movement.md");
    let page = fs::read_to_string(page).expect("the page");
    let mut blocks = page.split("\n```").skip(1).step_by(2);
    let found = blocks.find_map(|block| {
        let (head, text) = block.split_once('\n')?;
        head.ends_with(name).then(|| format!("{text}\n"))
    });
    found.unwrap_or_else(|| panic!("the page has no {name}"))
}

#[test]
fn the_programs_of_the_tour_count_on_while_they_are_killed() {
    let Some(node) = Node::start() else { return };
    let folder = node.folder().join("tour");
    fs::create_dir_all(folder.join("app")).expect("a folder");
    for program in ["counter.py", "ask.py"] {
        fs::write(folder.join("app").join(program), page_file(program)).expect("written");
    }
    let file = folder.join("counter.toml");
    fs::write(&file, page_file("counter.toml")).expect("written");
    node.ok(&["up", file.to_str().expect("its path is text")]);
    let bound = |node: &Node| row(node, "counting", "counter")["pid"].as_u64();
    wait::until("the counter is bound", || bound(&node).is_some());
    let asks = Program::run(node.command(&["exec", "-i", "desk", "--", "python3", "/app/ask.py"]));
    // The administrator moves it; its domain starts its program anew, which stands by from then on.
    wait::until("it has moved to the other domain", || {
        let moved = node.run(&["endpoint", "migrate", "counter", "--to", "two"]);
        moved.out.contains("moved to two") || moved.err.contains("is in domain two already")
    });
    for _ in 0..2 {
        // Both stand there again: the one that has the name, and the one that was started anew.
        wait::until("there is a backup", || {
            let peers = row(&node, "counting", "counter")["peers"].as_u64();
            peers.is_some_and(|peers| peers >= 2) || !asks.lines().is_empty()
        });
        wait::pause(BETWEEN);
        let before = bound(&node).expect("it is bound");
        node::kill(before.try_into().expect("a process"));
        wait::until("another one has the name", || bound(&node).is_some_and(|pid| pid != before));
    }
    let said = asks.wait_for("requests, longest pause ");
    assert!(said.starts_with("20000 requests"), "{said}");
    println!("{said}");
}
