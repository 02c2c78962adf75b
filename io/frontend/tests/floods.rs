//! A backend that says more than anybody wants to know.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod bed;

use bed::{Bed, Wishes};

/// Look-ups at the other service.
const LOOKUPS: usize = 300;

#[test]
#[ignore = "the other process of every test here"]
fn the_frontend_process() {
    bed::be_the_frontend();
}

/// Each state takes the lock that all services of a domain have in common.
#[test]
fn a_server_that_floods_the_frontend_keeps_no_other_service_from_answering() {
    needs_fuse!();
    let bed = Bed::with(Wishes { up: false, ..Wishes::default() });
    bed.daemon.script(|script| script.floods = true);
    bed.daemon.say_up();
    bed.daemon.add_up("other");
    bed::until("both are there", || bed.sh("test -e dns/query && test -e other/query").status.success());
    let lookups = format!(
        "for n in $(seq {LOOKUPS}); do exec 3<>other/query; echo one >&3; cat <&3; exec 3>&-; done | grep -c one"
    );
    let begun = std::time::Instant::now();
    assert_eq!(bed.ok(&lookups), format!("{LOOKUPS}\n"));
    let quiet = begun.elapsed();
    let before = bed.daemon.backend(|state| state.flooded).expect("a backend");
    let begun = std::time::Instant::now();
    assert_eq!(bed.ok(&format!("exec 4<>dns/query; {lookups}")), format!("{LOOKUPS}\n"));
    let flooded = bed.daemon.backend(|state| state.flooded).expect("a backend") - before;
    println!("{LOOKUPS} look-ups: {quiet:?}; beside a flood of {flooded} states: {:?}", begun.elapsed());
    assert!(flooded > LOOKUPS as u64, "that was no flood");
}
