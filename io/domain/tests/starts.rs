//! Starts beside ends and sweeps: nobody takes away what another one is just being made in.

mod ground;

use domain::DomainId;
use ground::{Ground, ground};
use std::sync::atomic::{AtomicBool, Ordering};

/// Starts of each domain in the ordinary run, which takes some seconds.
const STARTS: u32 = 12;
/// Sets another number of starts.
const ASKED: &str = "TOMBOLO_STARTS";
/// Domains that start at the same time.
const DOMAINS: u32 = 2;

fn starts() -> u32 {
    std::env::var(ASKED).ok().and_then(|text| text.parse().ok()).unwrap_or(STARTS)
}

fn start_and_end(ground: &Ground, name: &str, round: u32) {
    let spec = ground.shell(name, "true");
    let created = domain::create(&ground.layout, &spec, &[])
        .unwrap_or_else(|error| panic!("{name}, start {round}: {error}"));
    if round.is_multiple_of(2) {
        created.abort().expect("abort");
    } else {
        created.start().expect("start").wait().expect("wait");
    }
    domain::remove(&ground.layout, "dc", name).expect("remove");
}

// The end of a domain removed the cgroups above it when they looked empty, in all hierarchies; in
// some of version 1 only the runtime makes directories, and copied `cpuset.mems` from one that was
// gone ("openat2 .../cpuset.mems: no such file or directory").
#[test]
fn domains_start_while_others_end_and_are_swept() {
    let Some(ground) = ground() else { return };
    let (ground, done, starts) = (&ground, &AtomicBool::new(false), starts());
    let names = || (0..DOMAINS).map(|number| format!("d{number}"));
    let kept: &Vec<_> = &names().map(|name| DomainId::new("dc", &name).expect("a name")).collect();
    std::thread::scope(|scope| {
        let ends = scope.spawn(move || {
            let mut ends = 0_u64;
            while !done.load(Ordering::Relaxed) {
                domain::remove(&ground.layout, "dc", "never").expect("the end of another domain");
                domain::sweep(&ground.layout, kept).expect("a sweep");
                ends += 1;
            }
            ends
        });
        let all: Vec<_> = names()
            .map(|name| {
                scope.spawn(move || (1..=starts).for_each(|round| start_and_end(ground, &name, round)))
            })
            .collect();
        let ended: Vec<_> = all.into_iter().map(|one| one.join()).collect();
        done.store(true, Ordering::Relaxed);
        let ends = ends.join().expect("the ends");
        for one in ended {
            one.expect("a start failed");
        }
        println!("{} starts beside {ends} ends", starts * DOMAINS);
        assert!(ends > u64::from(starts), "hardly any end: {ends}");
    });
}
