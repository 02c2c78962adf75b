//! Channels between domains of a real Xen: one start of a machine with dom0 and two guests serves
//! all these tests; each looks at what one check of `xen_peer controller` said.

use std::path::Path;
use std::sync::OnceLock;

use xen_bed::{Report, What, run};

/// The machine's report; started by the test that comes first.
fn report() -> Option<&'static Report> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    let started = || {
        let peer = Path::new(env!("CARGO_BIN_EXE_xen_peer"));
        // target/PROFILE/xen_peer
        let target = peer.ancestors().nth(2).expect("cargo's target folder");
        run(What::Test, peer, target)
    };
    match REPORT.get_or_init(started) {
        Ok(report) => Some(report),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn holds(check: &str) {
    let Some(report) = report() else { return };
    match report.checks.get(check) {
        Some(Ok(())) => {}
        Some(Err(why)) => panic!("{check}: {why}"),
        None => panic!("the machine never came to {check}; the last test of this file shows its console"),
    }
}

#[test]
fn two_guests_talk() {
    holds("between_two_guests");
}

#[test]
fn dom0_and_a_guest_talk_whoever_offers() {
    holds("from_dom0_to_a_guest");
    holds("from_a_guest_to_dom0");
}

/// Once a program of a PVH guest opened what another of the same guest offered: what the offerer
/// had granted was gone, and read as ones.
#[test]
fn a_domain_is_refused_as_its_own_peer() {
    holds("no_domain_is_its_own_peer");
}

/// Near and far, offerer and opener, PVH and PV.
#[test]
fn all_that_channels_do_they_do_between_domains() {
    holds("the_suite_between_guests");
    holds("the_suite_with_dom0");
}

#[test]
fn an_opener_waits_for_the_offer() {
    holds("the_opener_comes_first");
}

#[test]
fn what_a_dead_offerer_left_is_not_opened_and_hinders_nobody() {
    holds("a_dead_offer_is_waited_out");
}

#[test]
fn closed_channels_leave_no_grant_no_port_and_no_entry() {
    holds("nothing_is_left_behind");
}

/// Once an opener that never unmapped what it was granted used up what the other domain may grant,
/// in 30 channels one after the other.
#[test]
fn an_opener_that_never_unmaps_uses_up_nothing_more() {
    holds("an_opener_that_never_unmaps");
    holds("an_opener_that_never_lets_go");
}

#[test]
fn what_honest_openers_had_is_granted_again() {
    holds("channels_of_all_sizes_one_after_the_other");
    holds("offers_that_nobody_opens");
}

#[test]
fn an_idle_channel_costs_no_processor_time() {
    holds("an_idle_channel_costs_nothing");
}

#[test]
fn a_peer_that_rings_all_the_time_delays_no_deadline() {
    holds("a_peer_that_rings_all_the_time");
}

#[test]
fn a_peer_that_writes_whatever_it_likes_is_refused() {
    holds("an_offerer_that_scribbles");
    holds("an_opener_that_scribbles");
}

#[test]
fn offers_that_break_a_rule_are_refused_by_name() {
    holds("offers_that_are_none");
}

#[test]
fn a_process_that_is_killed_wakes_whoever_waits() {
    holds("an_offerer_that_is_killed");
    holds("an_opener_that_is_killed");
}

#[test]
fn a_guest_that_is_destroyed_wakes_whoever_waits() {
    holds("a_guest_that_is_destroyed");
}

/// The machine came to its end, and says nothing that no test asks for. Where something failed, its
/// console explains it.
#[test]
fn every_check_is_made_and_has_a_test() {
    let Some(report) = report() else { return };
    let source = include_str!("xen.rs");
    let unasked: Vec<&String> =
        report.checks.keys().filter(|name| !source.contains(&format!("holds(\"{name}\")"))).collect();
    assert!(unasked.is_empty(), "no test asks for {unasked:?}");
    let failed: Vec<&String> =
        report.checks.iter().filter(|(_, result)| result.is_err()).map(|(name, _)| name).collect();
    assert!(
        report.done == Some(report.checks.len()) && failed.is_empty(),
        "{} checks were made, it ended with {:?}, and {failed:?} failed\n--- what it said\n{}\n--- its console\n{}",
        report.checks.len(),
        report.done,
        report.notes.join("\n"),
        report.console
    );
}
