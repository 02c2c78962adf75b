//! Domains without a promise beside one with a promise: the promise is kept, and the rest of the
//! machine goes on.

use e2e::{Node, wait};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One that is promised a fifth of processor 0, and one that is promised nothing; both never rest.
const FILE: &str = r#"name = "film"

[domain.gold]
kind = "container"
root = "host"
command = ["sh", "-c", "while :; do :; done"]
stop = { timeout = "0ms" }
reserve = { cpu = { budget = "8ms", period = "40ms", processor = 0 } }

[domain.mob]
kind = "container"
root = "host"
command = ["sh", "-c", "for i in 1 2 3 4 5; do (while :; do :; done) & done; wait"]
stop = { timeout = "0ms" }
"#;
/// How long is measured.
const SPAN: Duration = Duration::from_secs(5);

/// The processor time that a domain has had.
fn had(node: &Node, domain: &str) -> Duration {
    let top = fs::read_to_string(node.run_dir().join("cgroup")).expect("the cgroup");
    let path = format!("{}/film/{domain}", top.trim());
    let one = ["cpu,cpuacct", "cpuacct"].iter().find_map(|mount| {
        fs::read_to_string(Path::new("/sys/fs/cgroup").join(mount).join(&path).join("cpuacct.usage")).ok()
    });
    if let Some(ns) = one {
        return Duration::from_nanos(ns.trim().parse().expect("a number"));
    }
    let text = fs::read_to_string(format!("/sys/fs/cgroup/{path}/cpu.stat")).expect("its statistics");
    let us = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).expect("its usage");
    Duration::from_micros(us.trim().parse().expect("a number"))
}

/// Busy threads of this process, and the time that they get.
fn spin(threads: usize, how_long: Duration) -> Duration {
    let over = AtomicBool::new(false);
    let of_own = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::thread::scope(|scope| {
        let work = || {
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let used = of_own();
            Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or(0))
        };
        let spinning: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        // tidy(sleep): the time itself is what is measured.
        std::thread::sleep(how_long);
        over.store(true, Ordering::Relaxed);
        spinning.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    })
}

#[test]
fn who_is_promised_nothing_starves_nobody_beside_a_promise() {
    let Some(node) = Node::start() else { return };
    node.up_ok(FILE);
    wait::until("the mob works", || had(&node, "mob") > Duration::from_millis(200));
    // The daemon sees within a second who else wants a processor.
    let _seen = spin(2, Duration::from_secs(2));
    let (begin, before) = (Instant::now(), had(&node, "gold"));
    let rest = spin(2, SPAN);
    let (took, gold) = (begin.elapsed(), had(&node, "gold").saturating_sub(before));
    println!("in {took:?} the domain with a promise had {gold:?}, two threads beside all domains {rest:?}");
    assert!(gold * 5 >= took * 9 / 10, "a fifth was promised; it had {gold:?} of {took:?}");
    assert!(rest >= took * 2 / 5, "two threads of the machine had {rest:?} of twice {took:?}");
    // A person is answered, too.
    node.ok(&["reserve", "show", "gold"]);
    node.ok(&["down"]);
    node.finish();
}
