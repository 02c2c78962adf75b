//! Examples with numbers that can be checked by hand: the field's own, and what a refusal says.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use reserve::network::{Class, Link, on_wire_bits};
use reserve::{AdmitError, Costs, Policy, Proof, Response, Rule, Table, TableError, Task, inside};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

fn task(budget: u64, period: u64) -> Task {
    Task::new(budget, period).unwrap()
}

fn refusal(rule: Rule, tasks: &[Task], newcomer: usize) -> String {
    rule.admit(tasks, Some(newcomer)).unwrap_err().to_string()
}

/// 32 in 40 ms and 8 in 40 ms are the whole processor. A bound on utilisation (0.83 for two)
/// refuses that; the exact test does not, under any policy.
#[test]
fn a_full_processor_is_admitted() {
    let set = [task(32 * MS, 40 * MS), task(8 * MS, 40 * MS)];
    for policy in Policy::ALL {
        let rule = Rule::new(policy);
        assert_eq!(rule.miss(&set), Ok(None));
        assert_eq!(rule.admit(&set, None), Ok(Proof::Utilisation));
        let table = Table::build(rule, &set).unwrap();
        assert_eq!((table.cycle_ns(), table.slots().len()), (40 * MS, 2));
    }
    let responses = Rule::default().responses(&set).unwrap();
    assert_eq!(responses, [Response::Within(32 * MS), Response::Within(40 * MS)]);
}

/// Streams of 25 pictures a second, 5.68 ms each: four fit into 24 ms in 40, a fifth does not, and
/// into 32 ms it does.
#[test]
fn a_fifth_stream_needs_the_budget_of_five() {
    let stream = task(5_680 * US, 40 * MS);
    let supply = |gold: u64| {
        let set = [task(gold * MS, 40 * MS), task((40 - gold) * MS, 40 * MS)];
        Table::build(Rule::default(), &set).unwrap().supply(0)
    };
    for policy in Policy::ALL {
        let rule = Rule::new(policy);
        // Whenever a picture comes: behind the slot of 24 ms it waits 16 ms, and has what is left.
        assert!(inside::admit(rule, &[stream; 4], &supply(24), None).is_ok());
        assert!(inside::admit(rule, &[stream; 5], &supply(24), Some(4)).is_err());
        assert!(inside::admit(rule, &[stream; 5], &supply(32), None).is_ok());
        assert!(inside::admit(rule, &[stream; 6], &supply(32), None).is_err());
    }
    let responses = inside::responses(Rule::default(), &[stream; 5], &supply(32)).unwrap().unwrap();
    assert_eq!(responses.last(), Some(&Response::Within(8 * MS + 5 * 5_680 * US)));
    let error = inside::admit(Rule::default(), &[stream; 5], &supply(24), Some(4)).unwrap_err();
    let words = "reservation 5 would fall behind its 40 ms more and more (rate-monotonic); it would pass with a budget of 1.28 ms for reservation 5 \
                 instead of 5.68 ms";
    assert_eq!(error.to_string(), words);
}

/// Five streams of 1,214 kbit/s are 6,070: more than the 6 Mbit/s that were reserved for them, even
/// before headers.
#[test]
fn five_streams_are_more_than_six_megabits() {
    let link = Link { rate_bits: 10_000_000, queue_bytes: 100_000, packet_bytes: 1_514 };
    let class =
        |rate_bits: u64| Class { rate_bits, ceiling_bits: 10_000_000, burst_bytes: 10_000, precedence: 0 };
    let stream = on_wire_bits(1_214_000, 1_316, 54).unwrap();
    assert_eq!(5 * stream, 6_319_075);
    assert_eq!(link.admit(&[class(5 * stream), class(10_000_000 - 5 * stream)]), Ok(()));
    let error = link.admit(&[class(5 * stream), class(4_000_000)]).unwrap_err().to_string();
    assert!(error.ends_with("they would if one asked for 319075 bit/s less"), "{error}");
}

/// With 25 ms the third is done after 100 ms, just before both others come again; with a nanosecond
/// more it waits for them.
#[test]
fn a_refusal_names_who_when_and_what_would_help() {
    let set = [task(20 * MS, 50 * MS), task(35 * MS, 100 * MS), task(30 * MS, 150 * MS)];
    assert_eq!(
        refusal(Rule::default(), &set, 2),
        "reservation 3 would take 180 ms of its 150 ms (rate-monotonic); it would pass with a budget of 25 ms for reservation 3 instead of 30 ms, \
         or with a period of 180 ms for reservation 3 instead of 150 ms"
    );
    assert!(Rule::default().miss(&[set[0], set[1], task(25 * MS, 150 * MS)]).unwrap().is_none());
    assert!(Rule::default().miss(&[set[0], set[1], task(25 * MS + 1, 150 * MS)]).unwrap().is_some());
    let early = task(4, 10).with_deadline(4).unwrap();
    let other = task(4, 10).with_deadline(7).unwrap();
    assert_eq!(
        refusal(Rule::new(Policy::EarliestDeadline), &[early, other], 1),
        "reservation 2 would take 8 ns of its 7 ns (earliest deadline first): in 7 ns at worst, 8 ns of work fall due; \
         it would pass with a budget of 3 ns for reservation 2 instead of 4 ns"
    );
    assert_eq!(
        refusal(Rule::new(Policy::DeadlineMonotonic), &[early, early], 1),
        "reservation 2 would take 8 ns of its 4 ns (deadline-monotonic); nothing that reservation 2 could give up would help"
    );
}

/// A switch of 5 us makes a full processor too full, by four switches in each period.
#[test]
fn switches_are_paid_for() {
    let rule = Rule { policy: Policy::RateMonotonic, costs: Costs::new(5 * US).unwrap() };
    let set = |budget: u64| [task(32 * MS, 40 * MS), task(budget, 40 * MS)];
    let words = refusal(rule, &set(8 * MS), 1);
    assert!(words.contains("with a budget of 7.98 ms for reservation 2 instead of 8 ms"), "{words}");
    assert_eq!(rule.admit(&set(7_980 * US), None), Ok(Proof::ResponseTimes));
    let table = Table::build(rule, &set(7_980 * US)).unwrap();
    assert_eq!((table.supply(0).total_ns(), table.supply(1).total_ns()), (32 * MS, 7_980 * US));
}

#[test]
fn a_table_without_end_is_refused_with_periods_that_end() {
    let set = [task(MS, 40 * MS), task(MS, 40 * MS - 1), task(MS, 20 * MS), task(MS, 80 * MS + 1)];
    let error = Table::build(Rule::default(), &set).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a table that repeats would have more than 32768 releases, for these periods do not go with the shorter ones: reservation 2: 39.999999 ms, \
         reservation 4: 80.000001 ms. Periods that do, none longer: reservation 1: 39.999998 ms, reservation 2: 39.999998 ms, \
         reservation 3: 19.999999 ms, reservation 4: 79.999996 ms"
    );
    let TableError::Discord { discord, .. } = error else { panic!("{error}") };
    let better: Vec<Task> =
        set.iter().zip(discord.harmonic_ns).map(|(task, period)| task.with_period(period).unwrap()).collect();
    assert!(Table::build(Rule::default(), &better).is_ok());
    let late = Table::build(Rule::default(), &[task(1, 10).with_jitter(2).unwrap()]).unwrap_err();
    assert!(late.to_string().contains("give the jitter to the jobs inside it"), "{late}");
}

/// Periods that have nothing in common, and a processor with hardly any time left: the analysis
/// ends, and says no where it can't tell.
#[test]
fn what_would_take_for_ever_is_refused() {
    let set = [
        task(1, 2),
        task(499_999_999_988, 1_000_000_000_039).with_deadline(3_000_000_000_000).unwrap(),
        task(1, 3_600_000_000_000),
    ];
    for policy in Policy::ALL {
        match Rule::new(policy).admit(&set, None) {
            Ok(_) | Err(AdmitError::Refused(_) | AdmitError::Undecided(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let many = vec![task(1, 1_000_000); 1_025];
    assert_eq!(Rule::default().admit(&many, None), Err(AdmitError::TooMany(1_025)));
}
