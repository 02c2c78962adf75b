//! Endpoints when things die: programs, domains, the daemon; and when programs are stuck, flood, or
//! wait for each other.

use crate::endpoint_bed::{INSIDE, Program, SLEEP, assert_failed, domain, endpoints, peer, row, shop, start};
use e2e::{Node, node, wait};
use serde_json::{Value, json};
use std::time::Duration;

/// How often the daemon is killed under traffic.
const DAEMON_KILLS: usize = 3;
/// How often something is killed at random.
const KILLS: u64 = 40;
/// Longest time between two of these kills, in ms.
const PAUSE_MS: u64 = 60;

/// Random numbers that a seed gives (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) % bound
    }
}

#[test]
fn the_daemon_dies_under_traffic_and_every_endpoint_is_the_same_afterwards() {
    let Some((node, text)) = start("") else { return };
    let talking = Program::start(&node, "desk", &["talk", "planner", "/tmp/stop"]);
    let first = talking.wait_for("talking as ");
    let before = endpoints(&node, "shop");
    for _ in 0..DAEMON_KILLS {
        node.kill_daemon();
        let said = node.up_ok(&text);
        assert!(said.contains("nothing to do"), "the next daemon did not adopt what runs: {said}");
        // Both have told the new daemon by themselves who they are, and whom they know.
        wait::until("the endpoints are known again", || {
            let now = endpoints(&node, "shop");
            let who = |rows: &[Value]| -> Vec<Value> {
                rows.iter()
                    .map(|row| {
                        json!([row["endpoint"], row["address"], row["bound"], row["pid"], row["peers"]])
                    })
                    .collect()
            };
            who(&now) == who(&before)
        });
        // A newcomer reaches the planner by name, and has an address that nobody had before.
        let (code, said) = peer(&node, "desk", "ask planner 20");
        assert_eq!(code, 0, "{said}{}", node.daemon_log());
    }
    node.shell_ok("desk", "touch /tmp/stop");
    let last = talking.wait_for("stopped as ");
    assert_eq!(last.strip_prefix("stopped"), first.strip_prefix("talking"), "{:?}", talking.lines());
    assert_eq!(talking.lines().len(), 2, "a call failed meanwhile: {:?}", talking.lines());
}

#[test]
fn who_waits_for_a_name_is_served_also_when_the_daemon_dies_meanwhile() {
    let Some((node, text)) = start("") else { return };
    // Nobody is bound to `motor`.
    let mut asking = Program::spawn(&node, "desk", &["ask", "motor", "5"]);
    wait::until("it waits", || row(&node, "shop", "motor")["waiting"] == 1);
    node.kill_daemon();
    node.up_ok(&text);
    let _motor = Program::start(&node, "arm", &["serve", "motor"]);
    let said = asking.wait_for("answered 5 by ");
    assert!(said.starts_with("answered 5"), "{said}");
    asking.end();
}

/// Three domains whose programs call each other in every way; or do nothing.
fn mill(command: impl Fn(&str) -> String) -> String {
    let names = ["a", "b", "c"];
    let domains: String = names.iter().map(|name| domain(name, "container", &command(name))).collect();
    let endpoints: String = names
        .iter()
        .map(|name| {
            let others: Vec<&str> = names.into_iter().filter(|other| other != name).collect();
            format!(
                "\n[endpoint.{name}]\ndomain = \"{name}\"\n\
                 allow = [{{ endpoints = {others:?}, verbs = [\"send\", \"request\", \"notify\", \"relay\"] }}]\n"
            )
        })
        .collect();
    format!("name = \"mill\"\n{domains}{endpoints}")
}

fn milling(name: &str) -> String {
    format!("[\"{INSIDE}\", \"mill\", \"{name}\", \"{}\"]", name.len() + usize::from(name.as_bytes()[0]))
}

fn descriptors(node: &Node) -> usize {
    let pid = node.pids("daemon").first().copied().expect("a daemon");
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count()
}

fn used(node: &Node) -> Vec<(String, u64)> {
    let tree = node.json(&["endpoint", "show", "mill/a"]);
    let limits = tree["limits"].as_object().expect("limits").clone();
    limits.into_iter().map(|(key, of)| (key, of["used"].as_u64().expect("a number"))).collect()
}

// At every call, of every party: what a death leaves behind would add up here.
#[test]
fn kill_nine_at_random_moments_leaves_nothing() {
    let Some(node) = Node::start() else { return };
    let idle = mill(|_| SLEEP.to_owned());
    node.up_ok(&idle);
    let before = descriptors(&node);
    node.up_ok(&mill(milling));
    let mut random = Random(2026);
    for kill in 0..KILLS {
        wait::pause(Duration::from_millis(random.below(PAUSE_MS)));
        let rows = endpoints(&node, "mill");
        let bound: Vec<u32> = rows.iter().filter_map(|row| row["pid"].as_u64()?.try_into().ok()).collect();
        if kill % 10 == 9 {
            node.kill_daemon();
            node.up_ok(&mill(milling));
        } else if !bound.is_empty() {
            node::kill(bound[random.below(bound.len() as u64) as usize]);
        }
    }
    // They still find each other and talk.
    wait::until("all are bound again, and know each other", || {
        let rows = endpoints(&node, "mill");
        rows.iter().filter(|row| row["bound"] == true && row["peers"] == 2).count() == 3
    });
    node.up_ok(&idle);
    wait::until("nothing is counted any more", || used(&node).iter().all(|(_, used)| *used == 0));
    wait::until("the daemon holds no more descriptors than before", || descriptors(&node) <= before);
    for name in ["a", "b", "c"] {
        let log = node.ok(&["logs", name]);
        assert!(!log.contains("panicked") && !log.contains("failed: "), "{name}: {log}");
    }
}

#[test]
fn a_flood_of_one_does_not_stop_another() {
    let Some((node, text)) = start("") else { return };
    let text = text.replace(
        "verbs = [\"request\"] }]\n\n[endpoint.camera]",
        "verbs = [\"request\"] }, { domains = [\"arm\"], verbs = [\"send\"] }]\n\n[endpoint.camera]",
    );
    node.up_ok(&text);
    let flood = Program::start(&node, "arm", &["flood", "planner"]);
    flood.wait_for("flooding");
    // The planner prints a line for each message of the flood, and answers nevertheless.
    let (code, said) = peer(&node, "desk", "ask planner 100");
    assert!(code == 0 && said.starts_with("answered 100 "), "{said}");
    assert_eq!(flood.lines(), ["flooding"]);
}

#[test]
fn a_program_that_never_receives_costs_those_alone_who_call_it() {
    let Some((node, _)) = start("") else { return };
    let mut stuck = Program::start(&node, "arm", &["hold", "motor"]);
    let late = node.run(&["endpoint", "call", "motor", "hello", "--timeout", "300ms", "--domain", "desk"]);
    assert!(late.code == 1 && late.err.contains("in time"), "{late:?}");
    let (code, said) = peer(&node, "desk", "ask planner 50");
    assert_eq!(code, 0, "{said}");
    stuck.end();
}

#[test]
fn a_cycle_of_sends_over_three_domains_is_reported_and_not_suffered() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&mill(|_| SLEEP.to_owned()));
    let ring = [("a", "b"), ("b", "c"), ("c", "a")];
    let mut programs = ring.map(|(name, next)| Program::spawn(&node, name, &["cycle", name, next]));
    // One is told. Its message is withdrawn, so that the next one of the circle has nothing; the
    // others' are received.
    let ends: Vec<Vec<String>> = programs
        .iter()
        .map(|program| {
            program.wait_for("has ");
            program.lines()
        })
        .collect();
    let told: Vec<usize> = (0..3).filter(|at| ends[*at][0].contains("deadlock")).collect();
    assert_eq!(told.len(), 1, "{ends:?}");
    assert_eq!(ends.iter().filter(|lines| lines[0] == "received").count(), 2, "{ends:?}");
    let next = (told[0] + 1) % 3;
    assert!(ends[next][1].starts_with("has nothing"), "{ends:?}");
    programs.iter_mut().for_each(Program::end);
}

#[test]
fn down_in_the_midst_of_calls_ends_them_and_leaves_nothing() {
    let Some((node, text)) = start("") else { return };
    let talking = Program::start(&node, "desk", &["talk", "planner", "/tmp/stop"]);
    talking.wait_for("talking as ");
    node.ok(&["down", "shop"]);
    assert_eq!(node.json(&["endpoint", "ls"]), json!([]));
    // And up again: the names begin anew.
    node.up_ok(&text);
    let (code, said) = peer(&node, "desk", "ask planner 20");
    assert_eq!(code, 0, "{said}");
    node.up_ok(&shop("mall", SLEEP, ""));
    assert_failed(peer(&node, "mall/desk", "once planner request"), "not bound");
}
