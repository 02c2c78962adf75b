//! A node on another kernel: a guest with cgroup version 2 alone and Linux 6.1, under runc and
//! under crun. One boot serves all these tests; each looks at what one check of
//! `programs/guest/start.sh` said, once for each runtime.

use e2e::guest::{Report, run};
use std::sync::OnceLock;

/// Under which the guest does everything once.
const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// The guest's report; booted by the test that comes first.
fn report() -> Option<&'static Report> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    match REPORT.get_or_init(run) {
        Ok(report) => Some(report),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn holds(check: &str) {
    holds_under(&RUNTIMES, check);
}

/// Checks that have nothing to do with a runtime are made under the first alone.
fn holds_once(check: &str) {
    holds_under(&RUNTIMES[..1], check);
}

fn holds_under(runtimes: &[&str], check: &str) {
    let Some(report) = report() else { return };
    for runtime in runtimes {
        let name = format!("{runtime}.{check}");
        match report.checks.get(&name) {
            Some(Ok(())) => {}
            Some(Err(why)) => panic!("{name}: {why}"),
            None => panic!("the guest never came to {name}; the last test of this file shows its console"),
        }
    }
}

#[test]
fn the_guest_has_cgroup_version_2_alone() {
    holds("version_two_alone");
}

#[test]
fn a_topology_comes_up_and_twice_changes_nothing() {
    holds("up");
    holds("up_again");
}

#[test]
fn each_runtime_is_the_one_that_is_installed() {
    holds("the_runtime");
}

#[test]
fn names_are_resolved_in_files_and_by_the_stub_and_a_missing_one_is_an_errno() {
    holds("names");
}

#[test]
fn exec_has_the_exit_codes_that_one_knows() {
    holds("exit_codes");
}

#[test]
fn what_runs_has_no_privileges_and_gains_none() {
    holds("isolation");
}

/// crun has no option for them, and once was given one: every `exec --user` of somebody with
/// further groups failed.
#[test]
fn exec_as_somebody_with_further_groups_works_or_says_what_it_leaves_out() {
    holds("groups");
}

#[test]
fn limits_are_in_the_kernels_files_and_change_while_a_domain_runs() {
    holds("limits_are_set");
    holds("limits_change");
}

#[test]
fn more_processes_than_allowed_are_refused() {
    holds("too_many_processes");
}

#[test]
fn more_memory_than_allowed_ends_the_domain_and_is_told_as_the_reason() {
    holds("out_of_memory");
}

#[test]
fn what_is_used_is_told() {
    holds("usage_is_told");
}

#[test]
fn the_backend_dies_under_an_open_descriptor() {
    holds("backend_dies");
}

/// Linux before 6.9 sends nothing again: what waits ends with `EIO`, and everything else goes on.
#[test]
fn the_frontend_dies_where_the_kernel_sends_nothing_again() {
    holds("frontend_dies");
}

#[test]
fn promises_of_processor_time_are_kept_by_quota_deadlines_and_table_and_taken_down() {
    holds_once("kept_by_quota");
    holds_once("kept_by_deadline");
    holds_once("kept_by_table");
}

#[test]
fn under_deadlines_nobody_takes_what_the_class_leaves() {
    holds_once("outside_by_deadline");
}

#[test]
fn a_dispatcher_and_a_daemon_die_and_nobody_stays_frozen() {
    holds_once("keepers_die");
}

#[test]
fn the_daemon_dies_and_the_next_one_adopts() {
    holds("daemon_dies");
}

#[test]
fn down_leaves_no_cgroup_no_mount_and_no_process() {
    holds("nothing_left");
}

/// The guest came to its end, and says nothing that no test asks for. Where something failed, its
/// console explains it.
#[test]
fn every_check_of_the_guest_is_made_and_has_a_test() {
    let Some(report) = report() else { return };
    let source = include_str!("guest.rs");
    let asked = |name: &str| {
        let check = name.split_once('.').map_or(name, |(_, check)| check);
        ["holds", "holds_once"].iter().any(|holds| source.contains(&format!("{holds}(\"{check}\")")))
    };
    let unasked: Vec<&String> = report.checks.keys().filter(|name| !asked(name)).collect();
    assert!(unasked.is_empty(), "no test asks for {unasked:?}");
    let failed: Vec<&String> =
        report.checks.iter().filter(|(_, result)| result.is_err()).map(|(name, _)| name).collect();
    assert!(
        report.done == Some(report.checks.len()) && failed.is_empty(),
        "the guest made {} checks, ended with {:?}, and failed {failed:?}\n--- its console\n{}",
        report.checks.len(),
        report.done,
        report.console
    );
}
