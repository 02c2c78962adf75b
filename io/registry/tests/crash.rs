//! A power cut, as far as a process can feel one: the writer is killed (`SIGKILL`) at whatever
//! instruction it is at, again and again. Every write that it had acknowledged must be there
//! afterwards, whole, and no claim may be won twice.

#![allow(clippy::unwrap_used)]

use registry::{Embedded, Expected, Registry};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const ROUNDS: u64 = 12;
const WRITER: &str = "TOMBOLO_TEST_REGISTRY_WRITER";

/// Not a test of its own: what the killed process runs.
#[test]
fn writer() {
    let Ok(path) = std::env::var(WRITER) else { return };
    let registry = Embedded::open(Path::new(&path)).unwrap();
    let start = registry.get("count").unwrap().map_or(0, |entry| number(&entry.value));
    let mut out = std::io::stdout();
    for n in start + 1.. {
        registry.put(&format!("value/{n}"), &n.to_le_bytes().repeat(40), Expected::Absent).unwrap();
        registry.put("count", &n.to_le_bytes(), Expected::Anything).unwrap();
        writeln!(out, "wrote {n}").unwrap();
    }
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.redb");
    let mut acknowledged = 0;
    for round in 0..ROUNDS {
        // Killed after a different number of writes each round, at no chosen instruction.
        acknowledged = acknowledged.max(write_and_kill(&path, 1 + round * 7 % 31));
        let registry = Embedded::open(&path).unwrap();
        let count = number(&registry.get("count").unwrap().unwrap().value);
        assert!(count >= acknowledged, "wrote {acknowledged}, found {count}");
        let values = registry.list("value/").unwrap();
        assert!(values.len() as u64 == count || values.len() as u64 == count + 1);
        for (key, entry) in values {
            let n: u64 = key.trim_start_matches("value/").parse().unwrap();
            assert_eq!(entry.value, n.to_le_bytes().repeat(40), "{key} is torn");
        }
        if registry.get(&format!("value/{}", count + 1)).unwrap().is_some() {
            registry.delete(&format!("value/{}", count + 1), Expected::Anything).unwrap();
        }
    }
    assert!(acknowledged >= ROUNDS, "the writer got nowhere");
}

fn write_and_kill(path: &Path, after: u64) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer", "--nocapture"])
        .env(WRITER, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = 0;
    let mut seen = 0;
    for line in lines.map_while(Result::ok) {
        if let Some(n) = line.strip_prefix("wrote ").and_then(|n| n.parse().ok()) {
            last = n;
            seen += 1;
        }
        if seen == after {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    last
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}
