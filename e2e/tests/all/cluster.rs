//! Several nodes as one: a distributed container that spans them, and what becomes of it when
//! nodes, links and etcd fail.

use crate::cluster_etcd::alive;
use e2e::cluster::{Bed, Host, Witness, now_ns};
use serde_json::Value;
use std::fmt::Write as _;
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine, beyond what is promised.
const TIMEOUT: Duration = Duration::from_secs(25);
/// Within what a lost node is noticed (the promise), in ns.
const NOTICE_NS: u64 = 3_000_000_000;
/// How often a busy machine may be too slow.
const TRIES: usize = 3;
/// The time that a busy machine adds to it.
const BUSY_NS: u64 = 6_000_000_000;

/// Nodes that have joined, with an etcd member on each.
fn cluster(count: usize, labels: &[&str]) -> Option<Bed> {
    let bed = Bed::with_etcd(count, count)?;
    bed.join_all(count, labels);
    Some(bed)
}

/// A domain that writes into the bed's folder that it lives; `more` are further lines of it.
fn witness(bed: &Bed, name: &str, more: &str) -> String {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
    let folder = bed.folder().display();
    format!(
        "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"python3\", \"/programs/witness.py\", \"/bed/{name}.lives\"]\n\
         mounts = [{{ source = \"{programs}\", target = \"/programs\" }}, {{ source = \"{folder}\", target = \"/bed\", read_only = false }}]\n{more}\n"
    )
}

fn lives(bed: &Bed, name: &str) -> Witness {
    Witness::new(bed.folder(), &format!("{name}.lives"))
}

fn roaming(more: &str) -> String {
    format!("restart = {{ policy = \"always\", backoff = \"50ms\", elsewhere = true }}\n{more}")
}

/// `domain → (node, state)`, as a node shows it.
fn ps(host: &Host) -> Vec<(String, String, String)> {
    let rows = host.json(&["ps"]);
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or("-").to_owned();
    let rows = rows.as_array().expect("a list").iter();
    rows.map(|row| (text(row, "domain"), text(row, "node"), text(row, "state"))).collect()
}

fn node_of(host: &Host, domain: &str) -> Option<String> {
    ps(host)
        .into_iter()
        .find(|(name, _, state)| name == domain && state == "running")
        .map(|(_, node, _)| node)
}

/// Ends everything by a node's word: one that has come back just now may not yet be let change
/// anything.
fn down_all(bed: Bed, index: usize) {
    bed.until("all is down", TIMEOUT, || bed.host(index).run(&["down", "--all"]).code == 0);
    bed.finish();
}

/// The node that runs a domain as soon as every node says the same of it: what one has seen another
/// may still have to hear.
fn settled(bed: &Bed, domain: &str) -> String {
    let mut found = None;
    bed.until(&format!("all nodes agree where {domain} runs"), TIMEOUT, || {
        let mut said = bed.hosts().iter().map(|host| node_of(host, domain));
        found = said.next().flatten();
        found.is_some() && said.all(|node| node == found)
    });
    found.expect("they agreed on one")
}

#[test]
fn three_nodes_are_one_wherever_one_looks() {
    let Some(bed) = cluster(3, &[]) else { return };
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    let mut text = "name = \"test\"\n".to_owned();
    for name in ["one", "two", "three"] {
        text += &witness(&bed, name, "node = \"spread\"");
    }
    text += &witness(&bed, "pinned", "node = \"gamma\"\nafter = [\"one\"]");
    let said = a.up_ok(&text);
    assert!(said.contains("on gamma"), "{said}");
    for host in bed.hosts() {
        let rows = ps(host);
        assert_eq!(rows.len(), 4, "{} shows {rows:?}", host.name());
        assert!(rows.iter().all(|(_, _, state)| state == "running"), "{} shows {rows:?}", host.name());
        let mut spread: Vec<&String> =
            rows.iter().filter(|(name, ..)| name != "pinned").map(|(_, node, _)| node).collect();
        spread.sort();
        assert_eq!(spread, ["alpha", "beta", "gamma"], "{} shows {rows:?}", host.name());
    }
    assert!(b.up_ok(&text).contains("nothing to do"));
    assert_eq!(c.ok(&["history", "test", "--show", "1"]), text);
    // What runs on gamma is reached from alpha.
    let run = a.run(&["exec", "pinned", "--", "sh", "-c", "echo from $(hostname); exit 7"]);
    assert_eq!((run.code, run.out.as_str()), (7, "from pinned\n"), "{run:?}");
    assert_eq!(a.ok(&["logs", "pinned"]), "up\n");
    assert!(a.json(&["inspect", "pinned"])["pid"].is_u64());
    let refused = a.up(&text.replace("node = \"gamma\"", "node = \"gama\""));
    assert!(
        refused.code == 1 && refused.err.contains("there is none; the nodes are: alpha, beta, gamma"),
        "{refused:?}"
    );
    c.ok(&["down", "test"]);
    for host in bed.hosts() {
        assert_eq!(ps(host), [], "{}", host.name());
    }
    bed.finish();
}

#[test]
fn what_a_dead_node_ran_is_started_elsewhere_and_not_given_back() {
    let Some(bed) = cluster(3, &[]) else { return };
    let text = "name = \"test\"\n".to_owned()
        + &witness(&bed, "roamer", &roaming(""))
        + &witness(&bed, "stays", "node = \"gamma\"\nrestart = { policy = \"always\" }");
    bed.host(0).up_ok(&text);
    let roamer = lives(&bed, "roamer");
    let first = node_of(bed.host(0), "roamer").expect("it runs");
    let (victim, other) =
        (bed.named(&first), bed.hosts().iter().find(|host| host.name() != first).expect("another"));
    victim.kill();
    let killed = now_ns();
    bed.until("the domain lives elsewhere", TIMEOUT, || roamer.lives_after(killed + 50_000_000));
    let began = roamer.lives().last().expect("a life").from_ns;
    println!("it lived again {} ms after its node was killed", (began - killed) / 1_000_000);
    assert!(began - killed < NOTICE_NS + BUSY_NS, "it took {} ms", (began - killed) / 1_000_000);
    bed.until("the others show it", TIMEOUT, || node_of(other, "roamer").is_some_and(|node| node != first));
    let second = node_of(other, "roamer").expect("it runs");
    // The node comes back: it takes part again, and does not run what another has.
    bed.come_back(victim, 3);
    bed.until("the node is back", TIMEOUT, || victim.run(&["ps"]).out.contains("roamer"));
    bed.until("what waited for its node runs", TIMEOUT, || node_of(other, "stays").is_some());
    assert_eq!(node_of(victim, "roamer"), Some(second));
    roamer.assert_never_two();
    lives(&bed, "stays").assert_never_two();
    down_all(bed, 1);
}

#[test]
fn a_node_that_is_cut_off_lets_go_before_another_takes_over() {
    let Some(bed) = cluster(3, &[]) else { return };
    let text = "name = \"test\"\n".to_owned() + &witness(&bed, "roamer", &roaming(""));
    bed.host(0).up_ok(&text);
    let roamer = lives(&bed, "roamer");
    for black_hole in [true, false] {
        let first = settled(&bed, "roamer");
        let cut_off = bed.named(&first);
        let at = now_ns();
        if black_hole {
            bed.switch().black_hole(cut_off.port())
        } else {
            bed.switch().cut(cut_off.port())
        }
        let before = roamer.lives().len();
        bed.until("another node has it", TIMEOUT, || roamer.lives().len() > before);
        roamer.assert_never_two();
        let began = roamer.lives().last().expect("a life").from_ns;
        println!("it lived again {} ms after its node was cut off", (began - at) / 1_000_000);
        let refused = cut_off.up("name = \"other\"\n[domain.x]\nkind = \"process\"\ncommand = [\"true\"]\n");
        assert_ne!(refused.code, 0, "a node that is cut off changed something: {refused:?}");
        bed.switch().heal(cut_off.port());
        bed.until("the node takes part again", TIMEOUT, || cut_off.up(&text).code == 0);
        assert_ne!(settled(&bed, "roamer"), first, "what moved stays where it is");
    }
    roamer.assert_never_two();
    down_all(bed, 1);
}

/// Kills the daemon that has the domain and starts the next one; whether the domain lived on. A
/// machine that is so busy that the start takes longer than a lease proves nothing.
fn keeps_its_domain_when_restarted(bed: &Bed, roamer: &Witness) -> bool {
    let host = bed.named(&settled(bed, "roamer"));
    let before = roamer.lives().len();
    let killed = now_ns();
    host.kill_role("daemon");
    bed.start_daemon(host);
    let took_ms = (now_ns() - killed) / 1_000_000;
    let later = now_ns() + NOTICE_NS * 2;
    bed.until("some time is over", TIMEOUT, || now_ns() > later);
    let lives = roamer.lives().len();
    println!("its daemon was away for {took_ms} ms; {before} lives before, {lives} now");
    lives == before
}

/// A daemon that is dead can't end anything; what may be started elsewhere must have ended by then
/// all the same.
#[test]
fn a_daemon_that_dies_on_a_node_that_lives_leaves_nothing_running_twice() {
    let Some(bed) = cluster(3, &[]) else { return };
    bed.host(0).up_ok(&("name = \"test\"\n".to_owned() + &witness(&bed, "roamer", &roaming(""))));
    let roamer = lives(&bed, "roamer");
    let first = settled(&bed, "roamer");
    let host = bed.named(&first);
    let before = roamer.lives().len();
    host.kill_role("daemon");
    bed.until("another node has it", TIMEOUT, || roamer.lives().len() > before);
    roamer.assert_never_two();
    // A daemon that is there again in time keeps it.
    bed.start_daemon(host);
    assert!(
        (0..TRIES).any(|_| keeps_its_domain_when_restarted(&bed, &roamer)),
        "{TRIES} times it was restarted although its daemon came back at once"
    );
    roamer.assert_never_two();
    down_all(bed, 1);
}

#[test]
fn a_drained_node_gives_away_what_may_move_and_keeps_the_rest() {
    let Some(bed) = cluster(3, &[]) else { return };
    let mut text = "name = \"test\"\n".to_owned() + &witness(&bed, "pinned", "node = \"beta\"");
    for name in ["one", "two", "three"] {
        let _ = write!(text, "{}", witness(&bed, name, "node = \"spread\""));
    }
    let a = bed.host(0);
    a.up_ok(&text);
    a.ok(&["node", "drain", "beta"]);
    let on_beta = |host: &Host| -> Vec<String> {
        ps(host).into_iter().filter(|(_, node, _)| node == "beta").map(|(name, ..)| name).collect()
    };
    bed.until("beta has only what names it", TIMEOUT, || {
        on_beta(a) == ["pinned"] && ps(a).iter().all(|(_, _, state)| state == "running")
    });
    for name in ["one", "two", "three", "pinned"] {
        lives(&bed, name).assert_never_two();
    }
    a.ok(&["node", "undrain", "beta"]);
    let more = text + &witness(&bed, "four", "");
    a.up_ok(&more);
    assert_eq!(
        node_of(a, "four").as_deref(),
        Some("beta"),
        "the emptiest node takes what is new: {:?}",
        ps(a)
    );
    down_all(bed, 2);
}

#[test]
fn five_nodes_lose_two_at_once_and_etcd_its_leader() {
    let Some(bed) = cluster(5, &[]) else { return };
    let names = ["one", "two", "three", "four", "five"];
    let mut text = "name = \"test\"\n".to_owned();
    for name in names {
        text += &witness(&bed, name, &roaming("node = \"spread\""));
    }
    bed.host(0).up_ok(&text);
    let leader = bed.etcd_leader(5);
    let second = (leader + 1) % 5;
    let dead = [bed.host(leader).name(), bed.host(second).name()];
    let of_dead = |node: &str| dead.contains(&node);
    let before: Vec<(&str, String)> =
        names.iter().map(|name| (*name, node_of(bed.host(0), name).expect("it runs"))).collect();
    let at = now_ns();
    bed.host(leader).kill();
    let leader_died = now_ns();
    bed.host(second).kill();
    let left = bed.host((leader + 2) % 5);
    bed.until("both are noticed", TIMEOUT, || alive(left) == 3);
    println!(
        "noticed {} ms after the leader's node was dead, as `node ls` says",
        (now_ns() - leader_died) / 1_000_000
    );
    bed.until("all live on what is left", TIMEOUT, || {
        names.iter().all(|name| lives(&bed, name).lives_after(at + 2 * NOTICE_NS))
    });
    // When the last life of a domain began, if that was after the kill.
    let anew =
        |name: &str| lives(&bed, name).lives().last().map(|life| life.from_ns).filter(|from| *from > at);
    let moved = before.iter().filter(|(_, node)| of_dead(node)).filter_map(|(name, _)| anew(name)).max();
    let for_nothing = before.iter().filter(|(name, node)| !of_dead(node) && anew(name).is_some()).count();
    println!(
        "all lived again {} ms after the kill; {for_nothing} domains of nodes that lived were started anew",
        (moved.expect("what the dead nodes ran was started anew") - at) / 1_000_000
    );
    let rows = ps(left);
    assert!(rows.iter().all(|(_, _, state)| state == "running"), "{rows:?}");
    for name in names {
        lives(&bed, name).assert_never_two();
    }
    bed.until("all is down", TIMEOUT, || left.run(&["down", "--all"]).code == 0);
    bed.finish();
}
