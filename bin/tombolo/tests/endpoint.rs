//! `tombolo endpoint send|call|receive` in a domain: what is printed where, and how it ends. The
//! daemon is a stand-in; the real one, and containers, are the end-to-end tests'.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use testing::FakeDaemon;

/// A control socket, as a domain has one.
struct Domain {
    folder: tempfile::TempDir,
    daemon: FakeDaemon,
}

impl Domain {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let daemon = FakeDaemon::start(folder.path(), &["desk"], Vec::new());
        daemon.names(&["planner", "camera", "motor"]);
        Self { folder, daemon }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command
            .env("TOMBOLO_CONTROL", self.daemon.socket("desk"))
            .env("TOMBOLO_RUN_DIR", self.folder.path())
            .arg("endpoint")
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs it with this on its standard input.
    fn run_with(&self, words: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(words).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    /// A receiver that goes on in the background.
    fn receive(&self, words: &[&str]) -> Child {
        self.command(&[&["receive"], words].concat()).spawn().unwrap()
    }
}

/// Its output once it has ended by itself.
fn ended(mut child: Child) -> (String, String) {
    assert!(child.wait().unwrap().success());
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (out, err)
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_request_is_answered_and_both_sides_see_it() {
    let domain = Domain::new();
    let planner = domain.receive(&["planner", "--reply", "turn left"]);
    let called = domain.run(&["call", "planner", "where to?", "--wait", "30s", "--as", "camera"]);
    assert_eq!(out(&called), "turn left\n");
    assert!(called.stderr.is_empty());
    let (out, err) = ended(planner);
    assert!(out.starts_with("request from camera (") && out.ends_with("): where to?\n"), "{out}");
    assert_eq!(err, "");
}

#[test]
fn what_is_no_text_goes_through_untouched() {
    let domain = Domain::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(3000).collect();
    let planner = domain.receive(&["planner", "--echo", "--json", "-n", "2"]);
    let called = domain.run_with(&["call", "planner", "--wait", "30s"], &bytes);
    assert!(called.status.success() && called.stdout == bytes);
    // Text gets its line end, unless it is wished raw.
    let raw = domain.run(&["call", "planner", "hello", "--raw"]);
    assert_eq!(out(&raw), "hello");
    let (out, _) = ended(planner);
    let objects: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&objects[0]["kind"], &objects[0]["bytes"]), (&json!("request"), &json!(3000)));
    assert!(objects[0]["hex"].as_str().unwrap().starts_with("000102"));
    assert_eq!((&objects[1]["text"], &objects[1]["answered"]), (&json!("hello"), &json!(true)));
}

#[test]
fn messages_come_one_after_the_other_with_who_sent_them() {
    let domain = Domain::new();
    let planner = domain.receive(&["planner", "-n", "4", "--json"]);
    let sent = domain.run_with(
        &["send", "planner", "--lines", "--tag", "7", "--wait", "30s", "--as", "camera"],
        b"one\ntwo\n",
    );
    out(&sent);
    out(&domain.run(&["send", "planner", "--buffered", "three"]));
    out(&domain.run(&["send", "planner", "--notify", "0x11", "--as", "motor"]));
    let (out, _) = ended(planner);
    let objects: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |at: usize, key: &str| objects[at][key].clone();
    assert_eq!((of(0, "text"), of(0, "tag"), of(0, "name")), (json!("one"), json!(7), json!("camera")));
    assert_eq!((of(1, "text"), of(2, "text"), of(2, "name")), (json!("two"), json!("three"), Value::Null));
    assert_eq!((of(3, "kind"), of(3, "bits"), of(3, "name")), (json!("notices"), json!(17), json!("motor")));
}

#[test]
fn who_is_followed_is_printed_as_it_comes() {
    let domain = Domain::new();
    let mut planner = domain.receive(&["planner", "--follow"]);
    let mut lines = BufReader::new(planner.stdout.take().unwrap()).lines();
    for text in ["first", "second"] {
        out(&domain.run(&["send", "planner", text, "--wait", "30s"]));
        assert!(lines.next().unwrap().unwrap().ends_with(&format!(" in desk: {text}")));
    }
    planner.kill().unwrap();
    planner.wait().unwrap();
}

#[test]
fn each_failure_says_what_and_ends_with_1() {
    let domain = Domain::new();
    let not_bound = domain.run(&["call", "planner", "hello"]);
    assert!(err(&not_bound).contains("not bound"), "{not_bound:?}");
    let late = domain.run(&["send", "planner", "hello", "--wait", "50ms"]);
    assert!(err(&late).contains("error:"), "{late:?}");
    let nothing = domain.run(&["receive", "planner", "--timeout", "50ms"]);
    assert!(err(&nothing).contains("nothing was received in time"), "{nothing:?}");
    let unknown = domain.run(&["call", "nobody", "hello"]);
    assert!(err(&unknown).contains("nobody"), "{unknown:?}");
    let oneself = domain.run(&["send", "camera", "hello", "--as", "camera"]);
    assert!(err(&oneself).contains("error:"), "{oneself:?}");
    // Somebody who does not receive.
    let mut stuck = domain.receive(&["motor", "--from", "planner"]);
    let late = domain.run(&["call", "motor", "hello", "--wait", "30s", "--timeout", "100ms"]);
    assert!(err(&late).contains("did not reply in time"), "{late:?}");
    stuck.kill().unwrap();
    stuck.wait().unwrap();
}

#[test]
fn in_a_domain_there_is_nothing_to_list() {
    let domain = Domain::new();
    for words in [&["ls"][..], &["show", "planner"]] {
        assert!(err(&domain.run(words)).contains("inside a domain"), "{words:?}");
    }
}

#[test]
fn outside_of_a_domain_it_asks_the_daemon() {
    let domain = Domain::new();
    for words in [&["call", "planner", "hello"][..], &["receive", "planner"], &["ls"], &["show", "planner"]] {
        let output = domain.command(words).env("TOMBOLO_CONTROL", "/nowhere/control.sock").output().unwrap();
        assert!(err(&output).contains("no daemon runs"), "{words:?}: {output:?}");
    }
}
