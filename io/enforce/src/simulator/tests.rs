use super::*;
use crate::plan::{Members, Vtm};

const MS: u64 = 1_000_000;

fn vtm(id: &str, budget_ms: u64, period_ms: u64, pids: &[u32]) -> Vtm {
    Vtm { members: Members::pids(pids), ..Vtm::new(id, budget_ms * MS, period_ms * MS) }
}

fn put(simulator: &mut Simulator, vtms: Vec<Vtm>) -> Committed {
    let prepared = simulator.prepare(&Plan::new(vtms)).unwrap();
    simulator.commit(&prepared).unwrap()
}

fn offered(simulator: &mut Simulator, id: &str) -> u64 {
    simulator.report().unwrap().vtms.iter().find(|vtm| vtm.id == id).map_or(0, |vtm| vtm.offered_ns)
}

#[test]
fn budgets_are_what_was_promised_before_and_after_a_change() {
    let mut simulator = Simulator::new(1, 0);
    put(&mut simulator, vec![vtm("gold", 24, 40, &[11, 12]), vtm("rest", 16, 40, &[13])]);
    simulator.advance(400 * MS).unwrap();
    assert_eq!((offered(&mut simulator, "gold"), offered(&mut simulator, "rest")), (240 * MS, 160 * MS));
    let changed = put(&mut simulator, vec![vtm("gold", 32, 40, &[11, 12]), vtm("rest", 8, 40, &[13])]);
    assert_eq!(changed.in_force_ns, 400 * MS);
    let effect = simulator.effect(Duration::from_millis(40)).unwrap();
    assert!(effect.after_ns.is_some_and(|ns| ns <= 40 * MS), "{effect:?}");
    simulator.advance(360 * MS).unwrap();
    assert_eq!(offered(&mut simulator, "gold"), 240 * MS + 320 * MS);
    simulator.roll_back().unwrap();
    simulator.advance(400 * MS).unwrap();
    assert_eq!(offered(&mut simulator, "gold"), 560 * MS + 240 * MS);
    assert!(matches!(simulator.roll_back(), Err(EnforceError::NothingToUndo)));
    Simulator::replay(simulator.recording(0).unwrap()).unwrap();
}

#[test]
fn a_recording_that_was_tampered_with_differs_at_a_step_that_is_named() {
    let mut simulator = Simulator::new(1, 0);
    put(&mut simulator, vec![vtm("one", 5, 20, &[11, 12]), vtm("other", 5, 40, &[13])]);
    simulator.advance(200 * MS).unwrap();
    let mut recording = simulator.recording(0).unwrap().clone();
    assert!(recording.whole && recording.steps.len() > 10);
    recording.replay().unwrap();
    recording.steps[5].decision.until_ns += 1;
    assert!(matches!(recording.replay(), Err(ReplayError::Differs { step: 5, .. })));
}

#[test]
fn who_comes_back_under_its_number_is_not_given_what_the_old_table_had_for_another() {
    let mut simulator = Simulator::new(1, 0);
    put(&mut simulator, vec![vtm("one", 10, 40, &[11]), vtm("two", 10, 40, &[12])]);
    simulator.advance(5 * MS).unwrap();
    // In the middle of somebody's slot: the newcomer waits for a quiet time.
    let changed = put(&mut simulator, vec![vtm("two", 10, 40, &[12]), vtm("three", 20, 40, &[13])]);
    assert_eq!(changed.in_force_ns, 20 * MS);
    simulator.advance(15 * MS).unwrap();
    assert_eq!((offered(&mut simulator, "two"), offered(&mut simulator, "three")), (10 * MS, 0));
    simulator.advance(40 * MS).unwrap();
    assert_eq!((offered(&mut simulator, "two"), offered(&mut simulator, "three")), (20 * MS, 20 * MS));
}

#[test]
fn a_plan_that_cannot_be_kept_changes_nothing() {
    let mut simulator = Simulator::new(1, 0);
    put(&mut simulator, vec![vtm("one", 20, 40, &[11])]);
    let full = Plan::new(vec![vtm("one", 20, 40, &[11]), vtm("two", 21, 40, &[12])]);
    assert!(matches!(simulator.prepare(&full), Err(EnforceError::Table { processor: 0, .. })));
    let nowhere = Plan::new(vec![Vtm { processor: 7, ..vtm("one", 20, 40, &[11]) }]);
    assert!(matches!(simulator.prepare(&nowhere), Err(EnforceError::NoProcessor { processor: 7, .. })));
    let old = simulator.prepare(&Plan::default()).unwrap();
    simulator.prepare(&Plan::new(vec![vtm("one", 20, 40, &[11])])).unwrap();
    assert!(matches!(simulator.commit(&old), Err(EnforceError::Stale)));
    simulator.advance(40 * MS).unwrap();
    assert_eq!(offered(&mut simulator, "one"), 20 * MS);
}

#[test]
fn switches_are_taken_from_nobodys_budget() {
    let mut simulator = Simulator::new(1, 100_000);
    put(&mut simulator, vec![vtm("one", 10, 40, &[11]), vtm("two", 10, 20, &[12])]);
    simulator.advance(400 * MS).unwrap();
    assert_eq!((offered(&mut simulator, "one"), offered(&mut simulator, "two")), (100 * MS, 200 * MS));
}
