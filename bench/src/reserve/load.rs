//! Promises of processors in the kernel: adaptations, what is delivered, and who misses, under
//! load.

use super::logic::{crowd, names, wish};
use super::{Plan, Put, p99, us};
use crate::control_group::processor_ns;
use crate::statistics::{median, quantile};
use crate::undo::Undo;
use domain::{Cgroups, Quota};
use reserve::model::Manager;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The promise while deliveries are counted: 16 ms in 40.
const DELIVERED: Quota = Quota { budget_us: 16_000, period_us: 40_000 };
/// The promise to the load that must not miss.
const TIMELY: Quota = Quota { budget_us: 2_000, period_us: 10_000 };
/// Its work in each period.
const WORK: Duration = Duration::from_millis(1);
/// Its period.
const PERIOD: Duration = Duration::from_millis(10);
/// A window in which it is counted what is delivered.
const WINDOW: Duration = Duration::from_secs(1);
/// Until loops of shells are under way.
const WARM_UP: Duration = Duration::from_millis(200);
/// Between two looks at the kernel's count of periods.
const LOOK: Duration = Duration::from_micros(100);
/// Longest wait for a period: some of them.
const TIMEOUT: Duration = Duration::from_millis(400);

/// A process that never rests, ended with this.
#[derive(Debug)]
struct Loop(Child);

impl Loop {
    /// Starts it; `first` sees its process before there is a second one, so that both are where the
    /// first was put.
    fn start(first: impl FnOnce(u32) -> Result<(), String>) -> Result<Self, String> {
        let mut command = Command::new("sh");
        // It ends by itself, too, should nobody be left to end it.
        command.args(["-c", "read -r go; exec timeout 120 sh -c 'while :; do :; done'"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut started = Self(command.spawn().map_err(|error| format!("no shell: {error}"))?);
        first(started.0.id())?;
        let mut gate = started.0.stdin.take().ok_or("a shell without an input")?;
        gate.write_all(b"go\n").map_err(|error| format!("the shell is gone: {error}"))?;
        Ok(started)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // `timeout` passes SIGTERM on; it may have ended by itself.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Whether it is installed.
pub(super) fn has_stress_ng() -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join("stress-ng").is_file()))
}

/// The load that wants every processor.
#[derive(Debug)]
enum Load {
    /// `stress-ng`, ended with this.
    StressNg(Child),
    /// Loops of shells.
    Loops(#[expect(dead_code, reason = "they are ended when it is dropped")] Vec<Loop>),
}

impl Load {
    fn start(processors: usize) -> Result<Self, String> {
        let mut command = Command::new("stress-ng");
        // It ends by itself, too, should nobody be left to end it.
        command.args(["--cpu", &(processors + 1).to_string(), "--timeout", "600", "--quiet"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        sys::process::kill_with_parent(&mut command);
        if let Ok(started) = command.spawn() {
            return Ok(Self::StressNg(started));
        }
        let loops = (0..=processors).map(|_| Loop::start(|_| Ok(())));
        Ok(Self::Loops(loops.collect::<Result<_, _>>()?))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Self::StressNg(child) = self {
            // It passes SIGTERM on to its own; it may have ended by itself.
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
    }
}

/// Cgroups of one launch; gone with this, or with this process.
struct Ground {
    cgroups: Cgroups,
    top: String,
    undo: Option<Undo>,
}

impl Ground {
    fn make(count: usize) -> Result<Self, String> {
        let cgroups = Cgroups::discover().map_err(|error| error.to_string())?;
        if !cgroups.offers("cpu") {
            return Err("this kernel has no control group for processors".into());
        }
        let top = format!("tombolo-bench-{}", std::process::id());
        let mut undo = Undo::start().map_err(|error| error.to_string())?;
        let line = format!(
            "find /sys/fs/cgroup -depth -type d -path '*/{top}*' -exec rmdir {{}} + 2>/dev/null; true"
        );
        undo.add(&["sh", "-c", &line]).map_err(|error| error.to_string())?;
        let ground = Self { cgroups, top, undo: Some(undo) };
        for name in names(count) {
            ground.cgroups.create(&ground.path(&name)).map_err(|error| error.to_string())?;
        }
        ground.cgroups.weigh(&ground.top, None).map_err(|error| error.to_string())?;
        Ok(ground)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.top)
    }

    fn promise(&self, name: &str, quota: Option<Quota>) -> Result<(), String> {
        self.cgroups.promise_cpu(&self.path(name), quota).map_err(|error| error.to_string())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // Loops are ended and reaped before; a group that is left is the list's to remove.
        let _ = self.cgroups.remove(&self.top);
        if let Some(undo) = self.undo.take() {
            let _ = undo.finish();
        }
    }
}

/// Measures adaptations, and then what is delivered and missed while every processor is wanted by
/// others.
pub(super) fn measure(plan: &Plan, put: &mut Put<'_>) -> Result<(), String> {
    for (count, name, middle) in [
        (1, "adapt 1, p99", "adapt 1, median"),
        (2, "reserve.adapt.2", "adapt 2, median"),
        (20, "reserve.adapt.20", "adapt 20, median"),
        (200, "reserve.adapt.200", "adapt 200, median"),
    ] {
        let times = adaptations(count, plan.adaptations)?;
        put(name, "us", p99(&times));
        put(middle, "us", median(&times).unwrap_or(0.0));
    }
    let ground = Ground::make(2)?;
    let processors = sys::processor::allowed().map_err(|error| error.to_string())?.len();
    let _hogs = Load::start(processors)?;
    delivered(&ground, plan, put)?;
    timely(&ground, plan, put)
}

/// Moves a tenth from the first to the last and back: admitted, then told to the kernel, who gives
/// first.
fn adaptations(count: usize, number: usize) -> Result<Vec<f64>, String> {
    let ground = Ground::make(count)?;
    let mut model = crowd(count).ok_or("they do not fit")?;
    let names = names(count);
    // Open, as the daemon has them, and told once.
    let mut files = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        let mut file = ground.cgroups.quota_file(&ground.path(name)).map_err(|error| error.to_string())?;
        if let Some(task) = wish(index, count, 10).and_then(|wish| wish.task) {
            file.set(Quota::of(task.budget_ns(), task.period_ns()).0).map_err(|error| error.to_string())?;
        }
        files.insert(name.clone(), file);
    }
    let mut times = Vec::new();
    for turn in 0..number {
        let (less, more) = if turn % 2 == 0 { (9, 11) } else { (10, 10) };
        let mut changes = Vec::new();
        for (index, tenths) in [(0, less), (count - 1, more)] {
            if let (Some(name), Some(wish)) = (names.get(index), wish(index, count, tenths)) {
                changes.push((name.as_str(), wish));
            }
        }
        changes.dedup_by_key(|(name, _)| *name);
        let begun = Instant::now();
        let adaptation = model.admit(&changes).map_err(|error| error.to_string())?;
        let boost = enforce::Boost::begin();
        for step in adaptation.transaction().steps() {
            let Some((_, task)) = step.to.processor else { continue };
            let quota = Quota::of(task.budget_ns(), task.period_ns()).0;
            let file = files.get_mut(&step.name).ok_or("a machine without a quota")?;
            file.set(quota).map_err(|error| error.to_string())?;
        }
        drop(boost);
        model.commit(adaptation).map_err(|error| error.to_string())?;
        times.push(us(begun.elapsed()));
    }
    Ok(times)
}

/// From when on it is counted what a cgroup has.
struct Window(Instant, u64);

impl Window {
    fn begin(path: &str) -> Self {
        Self(Instant::now(), processor_ns(path).unwrap_or(0))
    }

    /// How far what it has had since is from what was promised, in %.
    fn elapsed_off(&self, path: &str) -> f64 {
        let (length, after) = (self.0.elapsed(), processor_ns(path).unwrap_or(0));
        let promised = length.as_nanos() as f64 * DELIVERED.budget_us as f64 / DELIVERED.period_us as f64;
        (after.saturating_sub(self.1) as f64 / promised - 1.0).abs() * 100.0
    }
}

/// The time that a loop with a promise has over windows, and when a change of its budget is in
/// force.
fn delivered(ground: &Ground, plan: &Plan, put: &mut Put<'_>) -> Result<(), String> {
    let (name, path) = ("m000", ground.path("m000"));
    ground.promise(name, Some(DELIVERED))?;
    let _inside = Loop::start(|pid| ground.cgroups.join(&path, pid).map_err(|error| error.to_string()))?;
    // tidy(sleep): until the loops are under way.
    std::thread::sleep(WARM_UP);
    let mut off = Vec::new();
    let whole = Window::begin(&path);
    for _ in 0..plan.seconds {
        let window = Window::begin(&path);
        // tidy(sleep): so long it is counted.
        std::thread::sleep(WINDOW);
        off.push(window.elapsed_off(&path));
    }
    put("reserve.delivered.1s", "%", median(&off).unwrap_or(100.0));
    put("delivered over 1 s, worst", "%", quantile(&off, 1.0).unwrap_or(100.0));
    put("reserve.delivered.10s", "%", whole.elapsed_off(&path));
    let mut effects = Vec::new();
    for turn in 0..plan.changes {
        let budget_us = if turn % 2 == 0 { 12_000 } else { 16_000 };
        let before = ground.cgroups.quota_periods(&path).unwrap_or(0);
        let begun = Instant::now();
        ground.promise(name, Some(Quota { budget_us, ..DELIVERED }))?;
        while ground.cgroups.quota_periods(&path).is_some_and(|now| now <= before)
            && begun.elapsed() < TIMEOUT
        {
            // tidy(sleep): the kernel counts periods and has no event for a new one; bounded by
            // TIMEOUT.
            std::thread::sleep(LOOK);
        }
        effects.push(us(begun.elapsed()) / DELIVERED.period_us as f64);
    }
    put("reserve.effect.cpu", "x", p99(&effects));
    Ok(())
}

/// How many periods a load misses that works 1 ms in each 10: with a promise, and without.
fn timely(ground: &Ground, plan: &Plan, put: &mut Put<'_>) -> Result<(), String> {
    let tasks = tasks_file(&ground.path("m001"))
        .ok_or("threads can't be promised anything by themselves here (version 2)")?;
    put("missed without a promise", "%", misses(plan.periods.min(1_000), None)?);
    ground.promise("m001", Some(TIMELY))?;
    ground.cgroups.weigh(&ground.path("m001"), None).map_err(|error| error.to_string())?;
    put("reserve.misses", "%", misses(plan.periods, Some(tasks))?);
    Ok(())
}

/// Where a thread is put into a group of version 1.
fn tasks_file(path: &str) -> Option<PathBuf> {
    let places =
        ["cpu,cpuacct", "cpu"].map(|mount| PathBuf::from(format!("/sys/fs/cgroup/{mount}/{path}/tasks")));
    places.into_iter().find(|place| place.exists())
}

fn misses(periods: usize, tasks: Option<PathBuf>) -> Result<f64, String> {
    let worker = std::thread::spawn(move || -> Result<f64, String> {
        if let Some(tasks) = tasks {
            // 0 is the thread that writes.
            fs::write(&tasks, "0").map_err(|error| format!("{}: {error}", tasks.display()))?;
        }
        let begun = Instant::now();
        let mut missed = 0_usize;
        for period in 0..periods {
            let start = begun + PERIOD * u32::try_from(period).unwrap_or(u32::MAX);
            if let Some(rest) = start.checked_duration_since(Instant::now()) {
                // tidy(sleep): the load rests until its next period.
                std::thread::sleep(rest);
            }
            let used = sys::clock::thread_ns();
            while sys::clock::thread_ns().saturating_sub(used) < u64::try_from(WORK.as_nanos()).unwrap_or(0) {
                std::hint::spin_loop();
            }
            missed += usize::from(Instant::now() > start + PERIOD);
        }
        Ok(missed as f64 / periods.max(1) as f64 * 100.0)
    });
    worker.join().map_err(|_| "the load broke off".to_owned())?
}
