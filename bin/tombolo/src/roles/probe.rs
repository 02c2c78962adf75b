//! The probe: asks a service through its file, inside a domain, and measures each call. `tombolo trace` runs it.

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

/// What to measure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The file that takes the question, `/srv/dns/query`.
    pub file: PathBuf,
    /// The question.
    pub question: String,
    /// How often.
    pub repeat: u32,
}

/// What was measured; one JSON object on the standard output.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Probe {
    /// Each request, as the program saw it.
    pub calls: Vec<Calls>,
    /// The same requests, as the frontend and the backend saw them: objects of `/srv/self/trace`.
    pub traces: Vec<Value>,
    /// The last answer.
    pub answer: String,
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
    let mut probe = Probe::default();
    let mut left = order.repeat;
    while left > 0 {
        let batch = left.min(BATCH);
        for _ in 0..batch {
            let (calls, answer) = ask(&order.file, &order.question)?;
            probe.calls.push(calls);
            probe.answer = answer;
        }
        left -= batch;
        let seen =
            std::fs::read_to_string(trace).map_err(|e| format!("can't read {}: {e}", trace.display()))?;
        let lines: Vec<Value> = seen.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let own = lines.len().saturating_sub(batch as usize);
        probe.traces.extend(lines.into_iter().skip(own));
    }
    Ok(probe)
}

fn ask(path: &Path, question: &str) -> Result<(Calls, String), String> {
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
    // An errno is an answer, too: there is no such name, for one.
    let answer = read.map_or_else(|e| format!("{e}\n"), |_| String::from_utf8_lossy(&answer).into_owned());
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
