//! Domains that come and go leave nothing behind: not in the memory, descriptors and threads of any
//! process of ours, nor in its directories, nor in the kernel.

use e2e::{NameServer, Node, topology, wait};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Domains of one round, the one that hosts the service among them.
const OF_A_ROUND: usize = 10;
/// Rounds after which caches, pools and buffers are as large as they become.
const WARM_UP: usize = 8;
/// Domains in all, where nothing else is asked for.
const DOMAINS: usize = 300;
/// Asks for another number.
const VARIABLE: &str = "TOMBOLO_LEAK_DOMAINS";
/// By how much a process may have grown in the end, in KiB: pages of the allocator that are given
/// back late, of each thread that has been at work. The daemon was seen to grow by 1.4, 0.8 and 0.3
/// MiB in the first three hundred domains. 10,000 domains that leave 1 KiB each would be 10,000.
const GROWTH_KIB: u64 = 4_096;
/// The same in the long run. The daemon was seen to have 65.6 MiB after a hundred domains, 68.6
/// after 2,000, 70.1 after 6,000 and 70.4 after 10,000, as the threads that had been at work at the
/// same time grew from 18 to 25.
const GROWTH_KIB_OF_THE_LONG_RUN: u64 = 8_192;
/// From so many domains on, as in the long run, where no other test is at work, the kernel's own
/// memory is looked at.
const OF_THE_LONG_RUN: usize = 1_000;
/// Kinds of objects of the kernel that each domain needs some of, as /proc/slabinfo(5) names them.
/// It depends on the kernel which of them have a line of their own.
const SLABS: [&str; 18] = [
    "task_struct",
    "mm_struct",
    "files_cache",
    "sighand_cache",
    "signal_cache",
    "nsproxy",
    "mnt_cache",
    "net_namespace",
    "pid_namespace",
    "uts_namespace",
    "pid",
    "filp",
    "fuse_inode",
    "shmem_inode_cache",
    "sock_inode_cache",
    "kernfs_node_cache",
    "mem_cgroup",
    "task_group",
];
/// By how much the kernel's memory that can't be reclaimed may have grown in the end, in KiB.
const KERNEL_GROWTH_KIB: u64 = 48 * 1_024;

/// How many threads more there may be in the end. Those that block end when they have had nothing
/// to do for 10 s, and what the daemon does every few seconds goes to one after the other: on a
/// busy machine, where more of them began, it keeps more of them. A hundred domains that leave one
/// each would be a hundred.
const THREADS_MORE: usize = 4;
/// The same in the long run, beside which more of them begin at some time.
const THREADS_MORE_OF_THE_LONG_RUN: usize = 16;

/// The resources that a process holds.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    memory_kib: u64,
}

impl Held {
    fn of(pid: u32) -> Self {
        let count =
            |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).expect("it is there").count();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        Self { descriptors: count("fd"), threads: count("task"), memory_kib: number(&status, "VmRSS:") }
    }
}

/// The number behind a word at the beginning of a line.
fn number(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word)).expect("a line with it");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// A process of ours: its role and number.
type Role = (&'static str, u32);

/// Every process of ours of the node.
fn processes(node: &Node) -> BTreeMap<Role, Held> {
    let of_role =
        |role: &'static str| node.pids(role).into_iter().map(move |pid| ((role, pid), Held::of(pid)));
    ["daemon", "monitor", "frontend", "server", "relay"].into_iter().flat_map(of_role).collect()
}

fn files(node: &Node) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    for folder in [node.run_dir(), node.state_dir()] {
        list(&folder, &mut files);
    }
    files
}

/// The resources of which a process has more than before, in words; empty where there are none.
fn more(who: &Role, now: &Held, before: &Held, threads_more: usize) -> Vec<String> {
    [
        ("descriptors", now.descriptors, before.descriptors, before.descriptors),
        ("threads", now.threads, before.threads, before.threads + threads_more),
    ]
    .into_iter()
    .filter(|(_, now, _, most)| now > most)
    .map(|(what, now, before, _)| format!("{who:?}: {now} {what} where there were {before}"))
    .collect()
}

fn list(folder: &Path, files: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        files.insert(entry.path().display().to_string());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&entry.path(), files);
        }
    }
}

/// The kernel's own memory.
#[derive(Debug)]
struct Kernel {
    /// Objects in use, by kind.
    objects: BTreeMap<String, u64>,
    unreclaimable_kib: u64,
}

impl Kernel {
    /// The kernel's objects and memory, once caches are dropped.
    fn now() -> Self {
        std::fs::write("/proc/sys/vm/drop_caches", "2").expect("root may");
        let slabs = std::fs::read_to_string("/proc/slabinfo").unwrap_or_default();
        let of_line = |line: &str| {
            let mut words = line.split_whitespace();
            let (name, active) = (words.next()?, words.next()?.parse().ok()?);
            SLABS.contains(&name).then(|| (name.to_owned(), active))
        };
        let memory = std::fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
        Self {
            objects: slabs.lines().filter_map(of_line).collect(),
            unreclaimable_kib: number(&memory, "SUnreclaim:"),
        }
    }

    /// The objects that have grown since then, by more than a tenth of an object for each domain,
    /// and the memory that has.
    fn grown(&self, before: &Self, domains: usize) -> Vec<String> {
        let most = u64::try_from(domains / 10).expect("a number");
        let more = self.objects.iter().filter_map(|(name, now)| {
            let then = before.objects.get(name).copied().unwrap_or(0);
            (*now > then + most).then(|| format!("{name}: {then}, then {now}"))
        });
        let (then, now) = (before.unreclaimable_kib, self.unreclaimable_kib);
        let memory = (now > then + KERNEL_GROWTH_KIB)
            .then(|| format!("KiB that can't be reclaimed: {then}, then {now}"));
        more.chain(memory).collect()
    }
}

#[test]
fn domains_that_come_and_go_leave_nothing_behind() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    // Some that stay: their processes, too, have nothing of those that come and go.
    let stays = topology(server.port, &["stays"], "", "").replace("name = \"test\"", "name = \"stays\"");
    assert!(stays.contains("name = \"stays\""), "{stays}");
    node.up_ok(&stays);
    let clients: Vec<String> = (1..OF_A_ROUND).map(|number| format!("client{number}")).collect();
    let clients: Vec<&str> = clients.iter().map(String::as_str).collect();
    let file = topology(server.port, &clients, "", "") + "\n[endpoint.planner]\ndomain = \"client1\"\n";
    let domains = std::env::var(VARIABLE).map_or(DOMAINS, |text| text.parse().expect("a number of domains"));
    let (growth_kib, threads_more) = if domains >= OF_THE_LONG_RUN {
        (GROWTH_KIB_OF_THE_LONG_RUN, THREADS_MORE_OF_THE_LONG_RUN)
    } else {
        (GROWTH_KIB, THREADS_MORE)
    };
    let round = || {
        node.up_ok(&file);
        node.shell_ok("client1", "getent ahostsv4 host3.tombolo.example");
        node.shell_ok("stays", "getent ahostsv4 host3.tombolo.example");
        node.ok(&["down", "test"]);
    };
    (0..WARM_UP).for_each(|_| round());
    let (before, files_before, kernel) = (processes(&node), files(&node), Kernel::now());
    let roles: BTreeSet<&str> = before.keys().map(|(role, _)| *role).collect();
    assert!(roles.is_superset(&["daemon", "monitor", "frontend", "server"].into()), "{roles:?}");
    for number in 1..=domains.div_ceil(OF_A_ROUND) {
        round();
        if number % 10 == 0 {
            println!("{} domains: {:?}", number * OF_A_ROUND, processes(&node));
        }
    }
    // Threads that blocked for the last round end when they have had nothing to do for a while, and
    // what was taken apart is removed by then.
    let mut said = Vec::new();
    wait::until("nobody has more than before", || {
        let now = processes(&node);
        let none = Held { descriptors: 0, threads: 0, memory_kib: 0 };
        let mut all: Vec<String> = files(&node).difference(&files_before).cloned().collect();
        all.extend(
            now.iter().flat_map(|(who, now)| more(who, now, before.get(who).unwrap_or(&none), threads_more)),
        );
        all.extend(before.keys().filter(|who| !now.contains_key(who)).map(|who| format!("{who:?} has gone")));
        if all != said {
            println!("more than before: {all:?}");
            said.clone_from(&all);
        }
        all.is_empty()
    });
    for (who, now) in processes(&node) {
        let (first, last) = (before[&who].memory_kib, now.memory_kib);
        assert!(
            last <= first + growth_kib,
            "{who:?} had {first} KiB, and {last} KiB {domains} domains later"
        );
    }
    if domains >= OF_THE_LONG_RUN {
        assert!(!kernel.objects.is_empty(), "the kernel names none of {SLABS:?}");
        let mut grown = Vec::new();
        wait::until("the kernel has no more than before", || {
            grown = Kernel::now().grown(&kernel, domains);
            println!("{grown:?}");
            grown.is_empty()
        });
    }
}
