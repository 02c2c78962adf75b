//! Domains that come and go leave nothing behind: not in the daemon's memory, descriptors and threads, nor in its directories.

use e2e::{NameServer, Node, topology, wait};
use std::collections::BTreeSet;
use std::path::Path;

/// Domains of one round, the one that hosts the service among them.
const OF_A_ROUND: usize = 10;
/// Rounds after which caches, pools and buffers are as large as they become.
const WARM_UP: usize = 8;
/// Domains in all, where nothing else is asked for.
const DOMAINS: usize = 100;
/// Asks for another number.
const VARIABLE: &str = "TOMBOLO_LEAK_DOMAINS";
/// By how much the daemon may have grown in the end, in KiB: pages of the allocator that are given back late. 10,000
/// domains that leave 1 KiB each would be 10,000.
const GROWTH_KIB: u64 = 2_048;

/// How many threads more there may be in the end. Those that block end when they have had nothing to do for 10 s, and what the daemon does every few
/// seconds goes to one after the other: on a busy machine, where more of them began, it keeps more of them. A hundred domains that leave one each would
/// be a hundred.
const THREADS_MORE: usize = 4;

/// The resources that a daemon holds.
struct Held {
    descriptors: usize,
    threads: usize,
    memory_kib: u64,
    files: BTreeSet<String>,
}

fn held(node: &Node) -> Held {
    let [daemon] = node.pids("daemon")[..] else { panic!("one daemon: {:?}", node.pids("daemon")) };
    let count = |what: &str| std::fs::read_dir(format!("/proc/{daemon}/{what}")).expect("its daemon").count();
    let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    let number: String = line.chars().filter(char::is_ascii_digit).collect();
    let mut files = BTreeSet::new();
    for folder in [node.run_dir(), node.state_dir()] {
        list(&folder, &mut files);
    }
    Held {
        descriptors: count("fd"),
        threads: count("task"),
        memory_kib: number.parse().expect("a number"),
        files,
    }
}

/// What there is more of than before; nothing, where there is no more.
fn more(now: &Held, before: &Held) -> String {
    let mut said: Vec<String> = now.files.difference(&before.files).cloned().collect();
    for (what, now, before, most) in [
        ("descriptors", now.descriptors, before.descriptors, before.descriptors),
        ("threads", now.threads, before.threads, before.threads + THREADS_MORE),
    ] {
        if now > most {
            said.push(format!("{now} {what} where there were {before}"));
        }
    }
    said.join(", ")
}

fn list(folder: &Path, files: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        files.insert(entry.path().display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), files);
        }
    }
}

#[test]
fn domains_that_come_and_go_leave_nothing_behind() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    let clients: Vec<String> = (1..OF_A_ROUND).map(|number| format!("client{number}")).collect();
    let clients: Vec<&str> = clients.iter().map(String::as_str).collect();
    let file = topology(server.port, &clients, "", "") + "\n[endpoint.planner]\ndomain = \"client1\"\n";
    let domains = std::env::var(VARIABLE).map_or(DOMAINS, |text| text.parse().expect("a number of domains"));
    let round = || {
        node.up_ok(&file);
        node.shell_ok("client1", "getent ahostsv4 host3.tombolo.example");
        node.ok(&["down", "test"]);
    };
    (0..WARM_UP).for_each(|_| round());
    let before = held(&node);
    for number in 1..=domains.div_ceil(OF_A_ROUND) {
        round();
        if number % 10 == 0 {
            let now = held(&node);
            println!(
                "{} domains: {} KiB, {} descriptors",
                number * OF_A_ROUND,
                now.memory_kib,
                now.descriptors
            );
        }
    }
    // Threads that blocked for the last round end when they have had nothing to do for a while, and what was taken apart is
    // removed by then.
    let mut said = String::new();
    wait::until("the daemon has no more than before", || {
        let more = more(&held(&node), &before);
        if more != said {
            println!("more than before: {more}");
            said.clone_from(&more);
        }
        more.is_empty()
    });
    let after = held(&node);
    let (first, last) = (before.memory_kib, after.memory_kib);
    assert!(last <= first + GROWTH_KIB, "the daemon had {first} KiB, and {last} KiB {domains} domains later");
}
