//! `tombolo bench run|report|compare|preset`: what is refused, what is printed, and with which code it ends. Measuring for real has
//! tests of its own in `bench/campaign`.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tombolo")).arg("bench").args(arguments).output().expect("it starts")
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
