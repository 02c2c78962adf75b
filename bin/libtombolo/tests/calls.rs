//! Every call of the headers, from C programs: `calls.c` of channels, `endpoints.c` of endpoints, `bound.c` of those that a daemon knows.

mod stage;

use session::testing::FakeDaemon;
use stage::{Stage, run_all};
use wire::control::EndpointRights;

#[test]
fn c_programs_find_every_call_as_the_header_says() {
    run_all(&Stage::set(), "calls.c", 18, |_| {});
}

#[test]
fn c_programs_find_every_call_of_an_endpoint_as_its_header_says() {
    run_all(&Stage::set(), "endpoints.c", 18, |_| {});
}

#[test]
fn c_programs_find_each_other_by_way_of_the_daemon() {
    let stage = Stage::set();
    let daemon = FakeDaemon::start(stage.folder(), &["a"], Vec::new());
    let names = ["planner", "motor", "camera", "wall", "copier"];
    daemon.names(&names);
    for name in names {
        daemon.rights("wall", name, EndpointRights::default());
        daemon.rights(name, "wall", EndpointRights::default());
    }
    run_all(&stage, "bound.c", 10, |command| {
        command.env("TOMBOLO_CONTROL", daemon.socket("a"));
    });
}
