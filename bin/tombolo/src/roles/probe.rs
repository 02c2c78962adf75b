//! The probe: asks a service through its file, inside a domain, and measures each call. `tombolo
//! trace` runs it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The word that chooses this role.
pub const PROBE: &str = "internal-probe";
/// Where the frontend shows the traces of single requests.
const TRACE_FILE: &str = "/srv/self/trace";
/// Requests between two looks at the frontend's traces, of which it keeps the last 64.
const BATCH: u32 = 16;
/// Longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// The order to measure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The file that takes the question, `/srv/dns/query`.
    pub file: PathBuf,
    /// The question.
    pub question: String,
    /// How often.
    pub repeat: u32,
}

/// The measurement; one JSON object on the standard output.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Probe {
    /// Requests that nothing remembered was there for: the service had been told to forget before
    /// each.
    pub fresh: Arm,
    /// The same request again and again.
    pub again: Arm,
    /// Why the service could not be told to forget, if so: then only the first request may be
    /// fresh.
    pub not_flushed: Option<String>,
    /// The last answer.
    pub answer: String,
    /// The error that the last request was answered by, if so.
    #[serde(default)]
    pub failure: Option<String>,
}

/// Requests that were made under the same circumstances.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Arm {
    /// Each request, as the program saw it.
    pub calls: Vec<Calls>,
    /// The same requests, as the frontend and the backend saw them: objects of `/srv/self/trace`.
    pub traces: Vec<Value>,
}

/// One request: how long each call took, in ns.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Calls {
    /// open(2).
    pub open_ns: u64,
    /// write(2) of the question.
    pub write_ns: u64,
    /// read(2) until the end.
    pub read_ns: u64,
    /// close(2).
    pub close_ns: u64,
}

/// Does what the argument says.
pub fn run(mut arguments: std::env::ArgsOs) -> Result<(), String> {
    let order = arguments.next().and_then(|word| word.into_string().ok());
    let order: Order = order
        .and_then(|text| serde_json::from_str(&text).ok())
        .ok_or("this role is run by `tombolo trace`, not by hand")?;
    let trace = Path::new(TRACE_FILE);
    switch(trace, "on")?;
    let probe = measure(&order, trace);
    switch(trace, "off")?;
    let text = serde_json::to_string(&probe?).map_err(|e| e.to_string())?;
    println!("{text}");
    Ok(())
}

fn switch(trace: &Path, word: &str) -> Result<(), String> {
    std::fs::write(trace, format!("{word}\n")).map_err(|e| format!("can't write to {}: {e}", trace.display()))
}

fn measure(order: &Order, trace: &Path) -> Result<Probe, String> {
    let control = order.file.with_file_name("ctl");
    let mut probe = Probe::default();
    let flush = || std::fs::write(&control, "flush\n").map_err(|e| format!("{}: {e}", control.display()));
    probe.not_flushed = flush().err();
    let fresh = if probe.not_flushed.is_some() { 1 } else { order.repeat };
    let may = probe.not_flushed.is_none();
    let (arm, _) = run_arm(order, fresh, trace, || if may { flush() } else { Ok(()) })?;
    probe.fresh = arm;
    let (arm, answer) = run_arm(order, order.repeat, trace, || Ok(()))?;
    probe.again = arm;
    match answer {
        Ok(text) => probe.answer = text,
        Err(errno) => probe.failure = Some(errno),
    }
    Ok(probe)
}

/// Asks so often, each time after `before`; returns the last answer, too.
fn run_arm(
    order: &Order,
    repeat: u32,
    trace: &Path,
    mut before: impl FnMut() -> Result<(), String>,
) -> Result<(Arm, Answer), String> {
    let mut arm = Arm::default();
    let mut last = Ok(String::new());
    let mut left = repeat;
    while left > 0 {
        let batch = left.min(BATCH);
        for _ in 0..batch {
            before()?;
            let (calls, answer) = ask(&order.file, &order.question)?;
            arm.calls.push(calls);
            last = answer;
        }
        left -= batch;
        let seen =
            std::fs::read_to_string(trace).map_err(|e| format!("can't read {}: {e}", trace.display()))?;
        let lines = seen.lines().filter_map(|line| serde_json::from_str(line).ok());
        let asked: Vec<Value> = lines.filter(|line: &Value| line["file"] == "query").collect();
        let own = asked.len().saturating_sub(batch as usize);
        arm.traces.extend(asked.into_iter().skip(own));
    }
    Ok((arm, last))
}

/// A text, or the errno that stands for it: there is no such name, for one.
type Answer = Result<String, String>;

fn ask(path: &Path, question: &str) -> Result<(Calls, Answer), String> {
    let failed = |what: &str, e: std::io::Error| format!("can't {what} {}: {e}", path.display());
    let begun = Instant::now();
    let mut file = File::options().read(true).write(true).open(path).map_err(|e| failed("open", e))?;
    let opened = Instant::now();
    let line = format!("{question}\n");
    file.write_all(line.as_bytes()).map_err(|e| failed("write to", e))?;
    let written = Instant::now();
    let mut answer = Vec::new();
    let read = (&mut file).take(MAX_ANSWER_BYTES).read_to_end(&mut answer);
    let answered = Instant::now();
    let answer = read.map(|_| String::from_utf8_lossy(&answer).into_owned()).map_err(|e| e.to_string());
    drop(file);
    let closed = Instant::now();
    let ns = |from: Instant, to: Instant| u64::try_from((to - from).as_nanos()).unwrap_or(u64::MAX);
    let calls = Calls {
        open_ns: ns(begun, opened),
        write_ns: ns(opened, written),
        read_ns: ns(written, answered),
        close_ns: ns(answered, closed),
    };
    Ok((calls, answer))
}
