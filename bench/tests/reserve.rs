//! The scenario of reservations for real, as short as it can be: that every part works or is noted,
//! not how fast.

use bench::reserve::{Plan, Reserve, measure};
use bench::{Scenario, report};

#[test]
fn every_part_works_or_is_noted_and_the_report_can_be_written() {
    let plan =
        Plan { launches: 1, decisions: 200, adaptations: 4, commits: 2, seconds: 1, periods: 10, changes: 2 };
    let results = measure(&plan, &mut |_| {});
    for note in &results.notes {
        println!("skipped: {note}");
    }
    let has = |id: &str| results.figures.iter().any(|figure| figure.name == id && figure.value.is_finite());
    let noted = |what: &str| results.notes.iter().any(|note| note.contains(what));
    for promise in Reserve.promises() {
        let part = if promise.id.starts_with("reserve.network") {
            "classes of a link"
        } else if promise.id.contains("table") {
            "no changes under table"
        } else {
            "promises of processors"
        };
        assert!(has(promise.id) || noted(part), "{} was neither measured nor noted", promise.id);
    }
    assert!(has("reserve.decide.200x200"), "decisions need nothing of the machine");
    let verdicts = Reserve.verdicts(&results);
    let environment = bench::environment::Environment::read(&[]);
    for write in [report::text, report::json] {
        let mut out = Vec::new();
        write(&mut out, &Reserve, &environment, &results, &verdicts).expect("a report");
        assert!(String::from_utf8_lossy(&out).contains("reserve.decide.200x200"));
    }
}
