//! `tombolo bench run|report|compare|preset`: what is refused, what is printed, and with which code
//! it ends. Measuring for real has tests of its own in `bench/campaign`.

use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tombolo-bench"))
        .arg("bench")
        .args(arguments)
        .output()
        .expect("it starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_plan_that_is_wrong_is_refused_with_its_place_and_measures_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = folder.path().join("plan.toml");
    std::fs::write(&plan, "name = \"x\"\nsubjects = [\"tpc\"]\n").expect("written");
    let out = folder.path().join("out");
    let output = bench(&["run", &plan.to_string_lossy(), "--out", &out.to_string_lossy()]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("plan.toml:2:13") && said.contains("did you mean `tcp`?"), "{said}");
    assert!(!out.exists());
    let output = bench(&["run", "qick", "--out", &out.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(self::said(&output).contains("presets are quick, papers, full"));
}

#[test]
fn presets_are_printed_and_scenarios_are_still_listed() {
    let output = bench(&["preset", "quick"]);
    assert!(output.status.success() && said(&output).contains("name = \"quick\""));
    let all = said(&bench(&["preset"]));
    assert!(all.contains("papers") && all.contains("tombolo-channel") && all.contains("exec:NAME"), "{all}");
    assert!(said(&bench(&[])).contains("channel\n"));
    let unknown = bench(&["no-such-scenario"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said(&unknown).contains("directory"), "{}", said(&unknown));
}

const PLAN: &str = "name = \"gate\"\nsubjects = [\"tcp\", \"unix\"]\nlaunches = 8\n";

/// A directory of results in which `unix` takes so many us.
fn results(folder: &Path, unix_us: u64) {
    std::fs::create_dir_all(folder).expect("a folder");
    let text = serde_json::json!(PLAN);
    let mut lines = format!(
        "{{\"line\":\"head\",\"format\":\"tombolo-bench-results-1\",\"plan\":\"gate\",\"fingerprint\":\"0\",\"text\":{text},\"environment\":{{}}}}\n"
    );
    for launch in 0..8 {
        for (arm, us) in [("tcp", 50), ("tcp (again)", 50), ("unix", unix_us)] {
            let ns = us * 1_000 + launch * 30;
            let _infallible = writeln!(
                lines,
                "{{\"line\":\"measured\",\"launch\":{launch},\"cell\":{{\"deployment\":\"bare\",\"payload_bytes\":64,\"work_ns\":0,\"loop\":\"closed\"}},\
                 \"arm\":\"{arm}\",\"state\":\"near\",\"operations\":100,\"unanswered\":0,\"warm_up\":0,\"is_unsettled\":false,\"window_ns\":1000000,\
                 \"client_processor_ns\":null,\"server_processor_ns\":null,\"switches\":null,\"latencies\":[[{ns},100]],\"uncorrected\":[[{ns},100]]}}"
            );
        }
    }
    lines += "{\"line\":\"end\",\"complete\":true,\"left\":0}\n";
    std::fs::write(folder.join("results.jsonl"), lines).expect("written");
}

#[test]
fn a_regression_has_an_exit_code_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    for (name, us) in [("before", 40), ("same", 40), ("slower", 60)] {
        results(Path::new(&place(name)), us);
    }
    let code = |arguments: &[&str]| bench(arguments).status.code();
    assert_eq!(code(&["compare", &place("before"), &place("same")]), Some(0));
    let slower = bench(&["compare", &place("before"), &place("slower")]);
    assert_eq!(slower.status.code(), Some(1));
    assert!(
        said(&slower).contains("| unix | bare, 64B, work 0ns, closed |")
            && said(&slower).contains("**SLOWER**")
    );
    assert_eq!(code(&["compare", &place("before"), &place("slower"), "--threshold", "60"]), Some(0));
    assert_eq!(code(&["compare", &place("slower"), &place("before")]), Some(0));
    assert_eq!(code(&["compare", &place("before"), &place("nowhere")]), Some(2));
    let json = bench(&["compare", &place("before"), &place("slower"), "--json"]);
    assert!(said(&json).lines().any(|line| line.contains("\"verdict\":\"SLOWER\"")), "{}", said(&json));
    let report = bench(&["report", &place("slower")]);
    assert!(
        report.status.success() && said(&report).contains("unix is slower than tcp: 1.2"),
        "{}",
        said(&report)
    );
    assert!(Path::new(&place("slower")).join("report.html").exists());
}

/// A run of a foreign program that takes some seconds, in a folder of its own, once a tenth of it
/// is done.
fn under_way(folder: &Path) -> (Child, BufReader<std::process::ChildStderr>) {
    let kit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/kit/python/echo_tcp.py");
    let plan = folder.join("plan.toml");
    let text = format!(
        "name = \"ended\"\nsubjects = [\"exec:echo\"]\nwindow = \"20ms\"\nlaunches = 500\nadapter.echo = [\"python3\", {kit:?}]\n"
    );
    std::fs::write(&plan, text).expect("written");
    std::fs::create_dir(folder.join("temporary")).expect("a folder");
    let mut run = Command::new(env!("CARGO_BIN_EXE_tombolo-bench"))
        .args(["bench", "run"])
        .arg(&plan)
        .arg("--out")
        .arg(folder.join("out"))
        .env("TMPDIR", folder.join("temporary"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut says = BufReader::new(run.stderr.take().expect("a pipe"));
    let mut line = String::new();
    // What it takes, then that something was measured.
    says.read_line(&mut line).expect("a line");
    assert!(line.starts_with("ended: some "), "{line}");
    let results = folder.join("out/results.jsonl");
    let measured =
        || std::fs::read_to_string(&results).is_ok_and(|text| text.contains("\"line\":\"measured\""));
    while !measured() {
        assert!(run.try_wait().expect("its state").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    (run, says)
}

fn signal(run: &Child, signal: Signal) {
    let process = Pid::from_raw(run.id().cast_signed()).expect("a process");
    kill_process(process, signal).expect("it is there");
}

/// Everything that runs for the bench has its complaints' end; when all are closed, all have ended.
fn left(folder: &Path, mut says: BufReader<std::process::ChildStderr>) -> (String, Vec<std::path::PathBuf>) {
    let mut rest = String::new();
    says.read_to_string(&mut rest).expect("text");
    let entries = std::fs::read_dir(folder.join("temporary")).expect("a folder");
    (rest, entries.map(|entry| entry.expect("an entry").path()).collect())
}

#[test]
fn a_run_that_is_interrupted_keeps_what_it_has_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut run, says) = under_way(folder.path());
    signal(&run, Signal::INT);
    let status = run.wait().expect("it ends");
    let (said, left) = left(folder.path(), says);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted with") && said.contains("the same command goes on"), "{said}");
    assert!(left.is_empty(), "{left:?}");
    let results = std::fs::read_to_string(folder.path().join("out/results.jsonl")).expect("results");
    assert!(results.lines().last().is_some_and(|line| line.contains("\"complete\":false")));
    let report = std::fs::read_to_string(folder.path().join("out/report.html")).expect("a report");
    assert!(report.contains("interrupted: "));
}

#[test]
fn a_run_that_is_killed_keeps_what_it_has_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut run, says) = under_way(folder.path());
    signal(&run, Signal::KILL);
    run.wait().expect("it ends");
    let (said, left) = left(folder.path(), says);
    assert!(left.is_empty(), "{left:?}: {said}");
    let report = bench(&["report", &folder.path().join("out").to_string_lossy()]);
    assert!(self::said(&report).contains("interrupted: the run was killed"), "{}", self::said(&report));
}
