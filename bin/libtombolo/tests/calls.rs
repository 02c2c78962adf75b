//! Every call of the headers, from C programs: `calls.c` of channels, `endpoints.c` of endpoints,
//! `bound.c` of those that a daemon knows.

mod stage;

use stage::{Stage, daemon, run_all};

#[test]
fn c_programs_find_every_call_as_the_header_says() {
    run_all(&Stage::set(), "calls.c", 18, |_| {});
}

#[test]
fn c_programs_find_every_call_of_an_endpoint_as_its_header_says() {
    run_all(&Stage::set(), "endpoints.c", 19, |_| {});
}

#[test]
fn c_programs_find_each_other_by_way_of_the_daemon() {
    let stage = Stage::set();
    let daemon = daemon(&stage);
    run_all(&stage, "bound.c", 10, |command| {
        command.env("TOMBOLO_CONTROL", daemon.socket("a"));
    });
}
