//! One suite for every way of keeping promises of processors: what an [`Enforcer`] does, it does
//! whichever it is.
//!
//! Budgets are tiny and programs end by themselves: by the processor time that they may use, with
//! whoever started them, and when they are dropped.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use enforce::{
    EnforceError, Enforcer, Job, JobReport, Jobs, Kind, Members, Order, Outside, Plan, PlanError, Simulator,
    Vtm, VtmReport, Who,
};
use sys::schedule::Class;

/// Processor seconds after which the kernel ends a program of these tests.
const MAX_SECONDS: u64 = 10;
/// How many spans are measured, and how many of them have to be as promised: what else the machine
/// does may cost a span some of it, and a real loss costs each.
const SPANS: usize = 5;
/// See [`SPANS`].
const GOOD_SPANS: usize = 3;
/// How long the next slot may take: a hundred periods, on a machine that is busy.
const SLOT_TIMEOUT: Duration = Duration::from_secs(4);
/// The unit in which the kernel tells stolen time, in ns.
const TICK_NS: u64 = 10 * MS;
/// A millisecond, in ns.
pub const MS: u64 = 1_000_000;

/// Something that is tried: an enforcer, and how time passes for it.
pub trait Subject {
    /// It.
    fn enforcer(&mut self) -> &mut dyn Enforcer;
    /// So much time passes, in which it looks after its processes.
    fn pass(&mut self, span: Duration);
    /// A process that always wants to run.
    fn hog(&mut self) -> Hog;
    /// How far what is used may be from what was promised, in thousandths of the span; more is what
    /// the kind does not guarantee.
    fn tolerance(&self) -> u64;
    /// The time that a hypervisor has kept this machine's processors from it since its start, in
    /// ns; nothing where time is virtual.
    fn stolen_ns(&self) -> Option<u64> {
        None
    }
}

/// A program that always wants to run, or a number for the simulator.
#[derive(Debug)]
pub struct Hog {
    pid: u32,
    child: Option<Child>,
}

impl Hog {
    /// Starts one.
    ///
    /// # Panics
    /// If there is no shell.
    #[must_use]
    pub fn start(script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        sys::process::kill_with_parent(&mut command);
        sys::schedule::limit_processor_seconds(&mut command, MAX_SECONDS);
        let child = command.spawn().expect("a shell starts");
        Self { pid: child.id(), child: Some(child) }
    }

    /// One that spins.
    #[must_use]
    pub fn spin() -> Self {
        Self::start("while :; do :; done")
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends it now.
    pub fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            // One that has ended already is as it should be; one that is stopped or frozen dies
            // when it may run.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
        }
    }
}

/// The simulator, with virtual processes.
#[derive(Debug)]
pub struct Simulated {
    simulator: Simulator,
    next: u32,
}

impl Simulated {
    /// One with two processors, where a switch takes 20 us.
    #[must_use]
    pub fn new() -> Self {
        Self { simulator: Simulator::new(2, 20_000), next: 1_000 }
    }
}

impl Default for Simulated {
    fn default() -> Self {
        Self::new()
    }
}

impl Subject for Simulated {
    fn enforcer(&mut self) -> &mut dyn Enforcer {
        &mut self.simulator
    }
    fn pass(&mut self, span: Duration) {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.simulator.advance(span).expect("virtual time goes on");
    }
    fn hog(&mut self) -> Hog {
        self.next += 1;
        Hog { pid: self.next, child: None }
    }
    fn tolerance(&self) -> u64 {
        5
    }
}

/// A real one, on real processes.
pub struct Real {
    enforcer: Box<dyn Enforcer>,
    tolerance: u64,
}

impl Real {
    /// That one.
    #[must_use]
    pub fn new(enforcer: Box<dyn Enforcer>, tolerance: u64) -> Self {
        Self { enforcer, tolerance }
    }
}

impl Subject for Real {
    fn enforcer(&mut self) -> &mut dyn Enforcer {
        &mut *self.enforcer
    }
    fn pass(&mut self, span: Duration) {
        let step = Duration::from_millis(20);
        let end = std::time::Instant::now() + span;
        while let Some(left) = end.checked_duration_since(std::time::Instant::now()) {
            // tidy(sleep): that time passes is what is waited for
            std::thread::sleep(left.min(step));
            self.enforcer.scan().expect("a scan");
        }
    }
    fn stolen_ns(&self) -> Option<u64> {
        let text = std::fs::read_to_string("/proc/stat").expect("the kernel tells");
        let ticks =
            text.lines().next().and_then(|line| line.split_ascii_whitespace().nth(8)?.parse::<u64>().ok());
        Some(ticks.expect("stolen time is the ninth word") * TICK_NS)
    }
    fn hog(&mut self) -> Hog {
        Hog::spin()
    }
    fn tolerance(&self) -> u64 {
        self.tolerance
    }
}

fn vtm(id: &str, budget_ms: u64, period_ms: u64, hogs: &[&Hog], outside: Outside) -> Vtm {
    let pids: Vec<u32> = hogs.iter().map(|hog| hog.pid()).collect();
    let inside = Jobs::RoundRobin { turn_ns: 2 * MS };
    let base = Vtm::new(id, budget_ms * MS, period_ms * MS);
    Vtm { members: Members::pids(&pids), inside, outside, ..base }
}

fn put(subject: &mut dyn Subject, vtms: Vec<Vtm>) -> enforce::Committed {
    let plan = Plan::new(vtms);
    let prepared = subject.enforcer().prepare(&plan).expect("it can be kept");
    subject.enforcer().commit(&prepared).expect("it is put in force")
}

fn of(subject: &mut dyn Subject, id: &str) -> VtmReport {
    let report = subject.enforcer().report().expect("a report");
    report.vtms.into_iter().find(|vtm| vtm.id == id).unwrap_or_else(|| panic!("`{id}` is reported"))
}

fn near(what: &str, found: u64, wanted: u64, span_ms: u64, thousandths: u64) {
    let most = span_ms * MS * thousandths / 1_000;
    assert!(
        found.abs_diff(wanted) <= most,
        "{what}: {found} ns, and {wanted} ns within {most} ns were expected"
    );
}

/// The share that somebody is to have got at the end of a span.
struct Share<'a> {
    name: &'a str,
    wanted_ns: u64,
    /// How far from it is as good, in thousandths of the span.
    thousandths: u64,
}

/// At least [`GOOD_SPANS`] of [`SPANS`] spans give everybody the share that is promised; processor
/// time that a hypervisor took meanwhile may be missing. `read` says what each of `shares` has
/// used, in their order.
fn are_given(
    subject: &mut dyn Subject,
    span_ms: u64,
    shares: &[Share<'_>],
    read: impl Fn(&mut dyn Subject, &str) -> u64,
) {
    let mut bad: Vec<Vec<u64>> = Vec::new();
    for span in 1..=SPANS {
        let before: Vec<u64> = shares.iter().map(|share| read(subject, share.name)).collect();
        let stolen = subject.stolen_ns().unwrap_or(0);
        subject.pass(Duration::from_millis(span_ms));
        let used = shares.iter().zip(before).map(|(share, before)| read(subject, share.name) - before);
        let used: Vec<u64> = used.collect();
        let missing_ns = subject.stolen_ns().map_or(0, |now| now.saturating_sub(stolen) + TICK_NS);
        let is_near = |(share, used): (&Share<'_>, &u64)| {
            let tolerance = span_ms * MS * share.thousandths / 1_000;
            *used <= share.wanted_ns + tolerance && used + tolerance + missing_ns >= share.wanted_ns
        };
        if !shares.iter().zip(&used).all(is_near) {
            bad.push(used);
        }
        if span - bad.len() >= GOOD_SPANS {
            return;
        }
        if bad.len() > SPANS - GOOD_SPANS {
            break;
        }
    }
    let wanted: Vec<_> =
        shares.iter().map(|share| (share.name, share.wanted_ns, share.thousandths)).collect();
    panic!(
        "{wanted:?} (who, ns, thousandths of {span_ms} ms) were expected, and in {} spans used: {bad:?}",
        bad.len()
    );
}

/// The same for one machine.
fn is_given(subject: &mut dyn Subject, id: &str, wanted_ns: u64, span_ms: u64) {
    let thousandths = 2 * subject.tolerance();
    are_given(subject, span_ms, &[Share { name: id, wanted_ns, thousandths }], |subject, id| {
        of(subject, id).used_ns
    });
}

/// Held processes use their budget, and no more; a change gives the other, and going back the
/// first.
///
/// # Panics
/// If not.
pub fn budgets_are_kept_before_and_after_a_change(subject: &mut dyn Subject) {
    let (one, two) = (subject.hog(), subject.hog());
    let (first, second) = ((5, 40), (10, 40));
    put(subject, vec![vtm("one", 5, 40, &[&one], Outside::Held), vtm("two", 10, 40, &[&two], Outside::Held)]);
    let tolerance = subject.tolerance();
    for (one_ms, two_ms) in [(first.0, second.0), (second.0, first.0), (first.0, second.0)] {
        subject.pass(Duration::from_millis(100));
        let share = |name, ms: u64| Share { name, wanted_ns: 20 * ms * MS, thousandths: tolerance };
        are_given(subject, 800, &[share("one", one_ms), share("two", two_ms)], |subject, id| {
            of(subject, id).used_ns
        });
        if (one_ms, two_ms) == (5, 10) {
            let changed =
                vec![vtm("one", 10, 40, &[&one], Outside::Held), vtm("two", 5, 40, &[&two], Outside::Held)];
            if subject.enforcer().report().expect("a report").generation == 1 {
                let committed = put(subject, changed);
                assert_eq!(committed.generation, 2);
                let effect = subject.enforcer().effect(Duration::from_secs(2)).expect("it is seen");
                assert!(effect.after_ns.is_some_and(|ns| ns <= 500 * MS), "{effect:?}");
            }
        } else {
            subject.enforcer().roll_back().expect("it goes back");
            assert!(matches!(subject.enforcer().roll_back(), Err(EnforceError::NothingToUndo)));
        }
    }
    subject.enforcer().release().expect("all is given back");
}

/// A refused promise changes nothing for those who were promised something before.
///
/// # Panics
/// If not.
pub fn what_is_refused_changes_nothing(subject: &mut dyn Subject) {
    let one = subject.hog();
    put(subject, vec![vtm("one", 5, 40, &[&one], Outside::Held)]);
    let twice =
        Plan::new(vec![vtm("one", 5, 40, &[&one], Outside::Held), vtm("one", 5, 40, &[], Outside::Held)]);
    let shared =
        Plan::new(vec![vtm("one", 5, 40, &[&one], Outside::Held), vtm("two", 5, 40, &[&one], Outside::Held)]);
    for (plan, is_right) in [
        (
            twice,
            (|error| matches!(error, EnforceError::Plan(PlanError::Twice(_)))) as fn(&EnforceError) -> bool,
        ),
        (shared, |error| matches!(error, EnforceError::Plan(PlanError::Shared { .. }))),
        (Plan::new(vec![Vtm::new("x", 0, 10)]), |error| {
            matches!(error, EnforceError::Plan(PlanError::Task { .. }))
        }),
        (Plan::new(vec![Vtm::new("x", 11, 10)]), |error| {
            matches!(error, EnforceError::Plan(PlanError::Task { .. }))
        }),
        (Plan::new(vec![Vtm::new("x\ny", 1, 10)]), |error| {
            matches!(error, EnforceError::Plan(PlanError::Name(_)))
        }),
    ] {
        let error = subject.enforcer().prepare(&plan).expect_err("it is refused");
        assert!(is_right(&error), "{error}");
    }
    let escape = Vtm { members: Members::cgroup("../x"), ..Vtm::new("x", MS, 40 * MS) };
    assert!(matches!(
        subject.enforcer().prepare(&Plan::new(vec![escape])),
        Err(EnforceError::Plan(PlanError::Cgroup { .. }))
    ));
    let old = subject.enforcer().prepare(&Plan::default()).expect("it can be kept");
    let plan = Plan::new(vec![vtm("one", 5, 40, &[&one], Outside::Held)]);
    subject.enforcer().prepare(&plan).expect("it can be kept");
    assert!(matches!(subject.enforcer().commit(&old), Err(EnforceError::Stale)));
    subject.pass(Duration::from_millis(100));
    is_given(subject, "one", 50 * MS, 400);
    subject.enforcer().release().expect("all is given back");
}

/// Processes that a member starts are in its virtual task machine, and those that end are not; both
/// get nothing beyond the budget.
///
/// # Panics
/// If not.
pub fn forks_and_ends_are_seen(subject: &mut dyn Subject) {
    let mut parent = Hog::start("for i in 1 2 3; do (while :; do :; done) & done; wait");
    put(subject, vec![vtm("many", 8, 40, &[&parent], Outside::Held)]);
    subject.pass(Duration::from_millis(400));
    let before = of(subject, "many");
    assert_eq!((before.jobs, before.threads), (4, 4), "{before:?}");
    is_given(subject, "many", 80 * MS, 400);
    let children = enforce::members::descendants(parent.pid());
    assert_eq!(children.len(), 3);
    parent.end();
    for child in children {
        // They are the children of a child of ours that has ended, and their numbers are theirs as
        // long as nobody waits for them.
        sys::process::kill(child, rustix::process::Signal::KILL).expect("it is there");
    }
    subject.pass(Duration::from_millis(200));
    assert_eq!(of(subject, "many").jobs, 0);
    subject.enforcer().release().expect("all is given back");
}

/// A process that ends between the calls, or has ended and is not waited for yet, is nobody's to be
/// kept, and in nobody's way.
///
/// # Panics
/// If not.
pub fn who_vanishes_between_the_calls_is_in_nobodys_way(subject: &mut dyn Subject) {
    let (mut gone, zombie, stays) = (subject.hog(), subject.hog(), subject.hog());
    let all = || {
        vec![
            vtm("gone", 5, 40, &[&gone], Outside::Held),
            vtm("zombie", 5, 40, &[&zombie], Outside::Held),
            vtm("stays", 5, 40, &[&stays], Outside::Held),
        ]
    };
    let plan = Plan::new(all());
    let prepared = subject.enforcer().prepare(&plan).expect("it can be kept");
    gone.end();
    sys::process::kill(zombie.pid(), rustix::process::Signal::KILL).expect("it is there");
    subject.enforcer().commit(&prepared).expect("it is put in force");
    subject.pass(Duration::from_millis(200));
    assert_eq!((of(subject, "gone").jobs, of(subject, "zombie").jobs, of(subject, "stays").jobs), (0, 0, 1));
    is_given(subject, "stays", 50 * MS, 400);
    // Who was in it may be gone; who never was has to be there.
    let newcomer = Plan::new(vec![vtm("other", 5, 40, &[&zombie], Outside::Held)]);
    let error = subject.enforcer().prepare(&newcomer).expect_err("nobody is there");
    assert!(matches!(error, EnforceError::Gone { .. }), "{error}");
    subject.enforcer().release().expect("all is given back");
    assert!(runs(&stays));
}

/// Processes that come and go faster than anybody looks share the budget of who started them.
///
/// # Panics
/// If not.
pub fn forks_that_outrun_every_scan_get_nothing_beyond_the_budget(subject: &mut dyn Subject) {
    // Each lives for less than a scan's pause.
    let parent = Hog::start("while :; do (i=0; while [ $i -lt 300 ]; do i=$((i+1)); done); done");
    put(subject, vec![vtm("many", 8, 40, &[&parent], Outside::Held)]);
    subject.pass(Duration::from_millis(200));
    let before = with_its_children_ms(parent.pid());
    subject.pass(Duration::from_millis(1_000));
    let used_ms = with_its_children_ms(parent.pid()) - before;
    assert!((1..=300).contains(&used_ms), "{used_ms} ms, and 200 were promised and are the most");
    subject.enforcer().release().expect("all is given back");
}

/// Processor time of a process and of those whose end it has seen, in ms.
fn with_its_children_ms(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    let (_, rest) = text.rsplit_once(") ").expect("a name");
    let ticks: u64 = rest.split(' ').skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum();
    ticks * 10
}

/// Whatever was done to a process is undone: its class, its processors, its cgroups.
///
/// # Panics
/// If not.
pub fn who_is_given_back_is_as_before(subject: &mut dyn Subject) {
    for outside in [Outside::Held, Outside::Idle, Outside::Fair, Outside::Stopped] {
        if !outside.is_held() && subject.enforcer().kind() == Kind::Deadline {
            continue;
        }
        let hog = subject.hog();
        let before = state(hog.pid());
        put(subject, vec![vtm("one", 5, 40, &[&hog], outside)]);
        subject.pass(Duration::from_millis(120));
        subject.enforcer().release().expect("all is given back");
        assert_eq!(state(hog.pid()), before, "{outside:?}");
        assert!(runs(&hog), "{outside:?}");
    }
}

/// A virtual task machine that is left out of the next plan is as before, and the others are not
/// touched by that.
///
/// # Panics
/// If not.
pub fn who_is_expelled_is_as_before(subject: &mut dyn Subject) {
    let (one, two) = (subject.hog(), subject.hog());
    let before = state(one.pid());
    put(subject, vec![vtm("one", 5, 40, &[&one], Outside::Held), vtm("two", 5, 40, &[&two], Outside::Held)]);
    subject.pass(Duration::from_millis(100));
    put(subject, vec![vtm("two", 5, 40, &[&two], Outside::Held)]);
    subject.pass(Duration::from_millis(300));
    let now = state(one.pid());
    assert_eq!((before.0, &before.1), (now.0, &now.1));
    assert!(runs(&one));
    is_given(subject, "two", 50 * MS, 400);
    let report = subject.enforcer().report().expect("a report");
    assert_eq!(report.vtms.len(), 1);
    subject.enforcer().release().expect("all is given back");
    assert_eq!(state(one.pid()), before);
}

/// A process that somebody else stops stays stopped, until somebody else continues it; then it has
/// its budget again.
///
/// # Panics
/// If not.
pub fn who_is_stopped_by_somebody_else_stays_so(subject: &mut dyn Subject) {
    let one = subject.hog();
    put(subject, vec![vtm("one", 5, 40, &[&one], Outside::Held)]);
    subject.pass(Duration::from_millis(100));
    sys::process::kill(one.pid(), rustix::process::Signal::STOP).expect("it is there");
    subject.pass(Duration::from_millis(100));
    let before = of(subject, "one").used_ns;
    subject.pass(Duration::from_millis(300));
    assert_eq!(of(subject, "one").used_ns, before, "it is stopped");
    sys::process::kill(one.pid(), rustix::process::Signal::CONT).expect("it is there");
    subject.pass(Duration::from_millis(100));
    is_given(subject, "one", 50 * MS, 400);
    subject.enforcer().release().expect("all is given back");
}

/// A job with what it asks for, in ms: a process in whose command line its name stands.
fn job(name: &str, budget_ms: u64, period_ms: u64, deadline_ms: u64) -> Job {
    Job {
        name: name.to_owned(),
        who: Who::Process(format!("*job={name};*")),
        budget_ns: budget_ms * MS,
        period_ns: period_ms * MS,
        deadline_ns: deadline_ms * MS,
    }
}

/// A process that spins, and has a name that a job is found by.
fn spin_as(name: &str) -> Hog {
    Hog::start(&format!("job={name}; while :; do :; done"))
}

fn inside(subject: &mut dyn Subject, id: &str, name: &str) -> JobReport {
    let found = of(subject, id).inside.into_iter().find(|job| job.name == name);
    found.unwrap_or_else(|| panic!("job `{name}` of `{id}` is reported"))
}

/// Jobs that have ranks go before each other by them, and before whoever is no job; none of them
/// gets anything of another machine's time.
///
/// # Panics
/// If not.
pub fn jobs_go_before_each_other_by_rank(subject: &mut dyn Subject) {
    let (slow, fast, none, other) = (spin_as("slow"), spin_as("fast"), Hog::spin(), Hog::spin());
    let plan = |policy, fast_deadline_ms| {
        let jobs = vec![job("fast", 2, 40, fast_deadline_ms), job("slow", 4, 80, 38)];
        let base = vtm("many", 8, 40, &[&slow, &fast, &none], Outside::Held);
        vec![Vtm { inside: Jobs::By { policy, jobs }, ..base }, vtm("other", 8, 40, &[&other], Outside::Held)]
    };
    for (policy, fast_deadline_ms, first, second) in
        [(Order::RateMonotonic, 40, "fast", "slow"), (Order::DeadlineMonotonic, 40, "slow", "fast")]
    {
        put(subject, plan(policy, fast_deadline_ms));
        subject.pass(Duration::from_millis(200));
        // All of them want everything, so all of it is had by the first.
        let thousandths = 3 * subject.tolerance();
        let shares = [
            Share { name: first, wanted_ns: 160 * MS, thousandths },
            Share { name: second, wanted_ns: 0, thousandths: 25 },
            Share { name: "other", wanted_ns: 160 * MS, thousandths },
        ];
        are_given(subject, 800, &shares, |subject, name| match name {
            "other" => of(subject, "other").used_ns,
            job => inside(subject, "many", job).used_ns,
        });
        let (high, low) = (inside(subject, "many", first), inside(subject, "many", second));
        assert!(high.priority > low.priority && low.priority.is_some(), "{high:?} {low:?}");
        assert!(!high.late && high.response_ns.is_some_and(|ns| ns <= high.deadline_ns), "{high:?}");
        let class = |hog: &Hog| sys::schedule::class(hog.pid()).expect("it is there");
        // They have their ranks in their slots, and are ordinary processes in between.
        let expected = ["fast", "slow"].map(|name| inside_priority(&high, &low, name));
        let begun = std::time::Instant::now();
        let mut found = [None, None];
        while found.iter().any(Option::is_none) {
            assert!(begun.elapsed() < SLOT_TIMEOUT, "{found:?} in no slot: {high:?} {low:?}");
            subject.pass(Duration::from_millis(1));
            found = [&fast, &slow].map(|hog| priority(class(hog)));
        }
        assert_eq!(found, expected);
        assert!(priority(class(&none)) < low.priority);
    }
    subject.enforcer().release().expect("all is given back");
    for hog in [&slow, &fast, &none, &other] {
        assert!(sys::schedule::class(hog.pid()).is_ok_and(|class| !class.is_real_time()));
        assert!(runs(hog));
    }
}

fn inside_priority(one: &JobReport, other: &JobReport, name: &str) -> Option<u32> {
    if one.name == name { one.priority } else { other.priority }
}

fn priority(class: Class) -> Option<u32> {
    match class {
        Class::Fifo { priority } | Class::RoundRobin { priority } => Some(priority),
        _ => None,
    }
}

/// Jobs that go by deadlines have their own budgets in their own periods, and who is no job has
/// what they leave.
///
/// # Panics
/// If not.
pub fn jobs_by_deadline_have_budgets_of_their_own(subject: &mut dyn Subject) {
    let (slow, fast, none) = (spin_as("slow"), spin_as("fast"), Hog::spin());
    let jobs = vec![job("fast", 2, 20, 20), job("slow", 4, 80, 60)];
    let base = vtm("many", 8, 40, &[&slow, &fast, &none], Outside::Held);
    let all = Vtm { inside: Jobs::By { policy: Order::EarliestDeadline, jobs }, ..base };
    put(subject, vec![all.clone()]);
    subject.pass(Duration::from_millis(200));
    let tolerance = subject.tolerance();
    let shares = [
        Share { name: "fast", wanted_ns: 80 * MS, thousandths: tolerance },
        Share { name: "slow", wanted_ns: 40 * MS, thousandths: tolerance },
        Share { name: "many", wanted_ns: 160 * MS, thousandths: 2 * tolerance },
    ];
    are_given(subject, 800, &shares, |subject, name| match name {
        "many" => of(subject, "many").used_ns,
        job => inside(subject, "many", job).used_ns,
    });
    let ranks = Jobs::By { policy: Order::RateMonotonic, jobs: vec![job("fast", 2, 20, 20)] };
    let error = subject.enforcer().prepare(&Plan::new(vec![Vtm { inside: ranks, ..all }]));
    let error = error.expect_err("there are no ranks here").to_string();
    assert!(error.contains("rate-monotonic") && error.contains("take a table"), "{error}");
    subject.enforcer().release().expect("all is given back");
    assert!([&slow, &fast, &none].into_iter().all(runs));
}

/// Jobs that nobody is, and several processes that are one, are told; jobs that make no sense are
/// refused.
///
/// # Panics
/// If not.
pub fn jobs_that_nobody_is_are_told(subject: &mut dyn Subject, policy: Order) {
    let (one, two) = (spin_as("twice"), spin_as("twice"));
    let by =
        |jobs| Vtm { inside: Jobs::By { policy, jobs }, ..vtm("many", 8, 40, &[&one, &two], Outside::Held) };
    put(subject, vec![by(vec![job("twice", 2, 40, 40), job("gone", 2, 40, 40)])]);
    subject.pass(Duration::from_millis(100));
    let notes = of(subject, "many").notes.join("\n");
    assert!(notes.contains("nobody in it is job `gone` (process \"*job=gone;*\")"), "{notes}");
    assert!(notes.contains("2 processes are job `twice`"), "{notes}");
    let refused = subject.enforcer().prepare(&Plan::new(vec![by(Vec::new())]));
    assert!(matches!(refused, Err(EnforceError::Plan(PlanError::Jobs { .. }))), "{refused:?}");
    subject.enforcer().release().expect("all is given back");
}

/// In virtual time every job takes exactly what it asks for: it is in time if and only if the
/// two-level analysis says so, and by no more than that says.
///
/// # Panics
/// If not.
pub fn simulated_jobs_are_in_time_as_analysed() {
    let mut subject = Simulated::new();
    for (policy, is_late) in
        [(Order::RateMonotonic, true), (Order::DeadlineMonotonic, false), (Order::EarliestDeadline, false)]
    {
        let (hog, other) = (subject.hog(), subject.hog());
        // The slow one is due first.
        let jobs = vec![job("fast", 4, 40, 40), job("slow", 5, 80, 6)];
        let base = vtm("many", 12, 40, &[&hog], Outside::Held);
        put(
            &mut subject,
            vec![
                Vtm { inside: Jobs::By { policy, jobs }, ..base },
                vtm("other", 8, 80, &[&other], Outside::Held),
            ],
        );
        subject.pass(Duration::from_millis(1_600));
        let (fast, slow) = (inside(&mut subject, "many", "fast"), inside(&mut subject, "many", "slow"));
        assert_eq!((fast.late, slow.late), (false, is_late), "{policy:?} {fast:?} {slow:?}");
        near("fast", fast.used_ns, 160 * MS, 1_600, 5);
        near("slow", slow.used_ns, 100 * MS, 1_600, 5);
        let recording = subject.simulator.recording(0).expect("it is recorded");
        Simulator::replay(recording).expect("the same decisions");
        subject.enforcer().release().expect("all is given back");
        subject = Simulated::new();
    }
}

/// Many changes, one after the other: each is in force, and its time is told.
///
/// # Panics
/// If not.
pub fn changes_in_a_row_are_all_made(subject: &mut dyn Subject, count: u64) -> Vec<u64> {
    let (one, two) = (subject.hog(), subject.hog());
    let mut times_ns = Vec::new();
    for number in 1..=count {
        let (first, second) = if number % 2 == 0 { (6, 3) } else { (3, 6) };
        let committed = put(
            subject,
            vec![
                vtm("one", first, 40, &[&one], Outside::Held),
                vtm("two", second, 40, &[&two], Outside::Held),
            ],
        );
        assert_eq!(committed.generation, number);
        times_ns.push(committed.commit_ns);
    }
    subject.enforcer().release().expect("all is given back");
    times_ns.sort_unstable();
    times_ns
}

/// The class, the processors and the cgroups of a process.
///
/// # Panics
/// If it is gone.
#[must_use]
pub fn state(pid: u32) -> (Class, Vec<u32>, String) {
    let class = sys::schedule::class(pid).expect("it is there");
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it is there");
    (class, sys::schedule::affinity(pid).expect("it is there"), cgroups)
}

/// Whether a program that wants to run does.
///
/// # Panics
/// If it is gone.
#[must_use]
pub fn runs(hog: &Hog) -> bool {
    let used = || {
        let text = std::fs::read_to_string(format!("/proc/{}/schedstat", hog.pid())).expect("it is there");
        text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).expect("a number")
    };
    let before = used();
    let end = std::time::Instant::now() + Duration::from_secs(5);
    while used() == before {
        if std::time::Instant::now() > end {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
