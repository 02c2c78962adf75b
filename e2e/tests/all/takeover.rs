//! Backups of endpoints: callers go on while the primary is killed, superseded, or loses its daemon, and each request is counted once.

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

// What the successor does not know of, it can't answer once: the caller is told, and nothing is done twice.
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

/// What the page calls a file: the words of a block whose head ends with its name.
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
