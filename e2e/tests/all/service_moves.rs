//! A service is moved from one program to another while its files are open, and goes on with a
//! backup when its program dies.

use e2e::{Node, node, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

/// How often it is moved; odd, so that it is not where it began.
const MOVES: usize = 11;

/// A service that two programs can serve, and a domain that uses it.
fn topology(folder: &Path) -> String {
    let mounts = format!(
        "environment = {{ PYTHONPATH = \"/run/tombolo/python\" }}\nmounts = [{{ source = \"{0}/programs\", target = \"/programs\" }}, {{ source = \
         \"{1}\", target = \"/shared\", read_only = false }}]",
        env!("CARGO_MANIFEST_DIR"),
        folder.display()
    );
    let domain = |name: &str, command: &str, rest: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = {command}\n{mounts}\n{rest}\n"
        )
    };
    let serves = |name: &str| {
        let command =
            format!("[\"python3\", \"/programs/moving_counter.py\", \"/shared/{name}.log\", \"{name}\"]");
        domain(name, &command, "restart = { policy = \"always\", backoff = \"50ms\" }")
    };
    format!(
        "name = \"lab\"\n{}{}{}[service.counter]\nkind = \"program\"\ndomain = \"one\"\nbackups = [\"one\", \"two\"]\n\
         allow = [{{ domains = [\"hall\"], verbs = [\"count\", \"log\"] }}]\n",
        serves("one"),
        serves("two"),
        domain("hall", "[\"sleep\", \"infinity\"]", "services = { counter = \"/srv/counter\" }"),
    )
}

/// The domain of the program that serves, as a user of the service sees it.
fn server(node: &Node) -> String {
    node.shell("hall", "cat /srv/counter/log").out.trim().to_owned()
}

fn start(folder: &Path) -> Option<Node> {
    let node = Node::start()?;
    node.up_ok(&topology(folder));
    wait::until("the program of the service's own domain serves", || server(&node) == "one");
    Some(node)
}

/// A user of the service that has begun.
fn user(node: &Node) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = node
        .command(&["exec", "hall", "--", "python3", "/programs/moving_user.py", "/shared/stop"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("tombolo starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    assert_eq!(line, "begun\n");
    (child, lines)
}

/// Has the user end, and returns its report.
fn end(folder: &Path, (mut child, mut lines): (Child, BufReader<std::process::ChildStdout>)) -> Value {
    std::fs::write(folder.join("stop"), "").expect("a file");
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    assert!(child.wait().expect("it ends").success(), "{line}");
    let report: Value = serde_json::from_str(&line).expect("a report");
    assert!(report["wrong"].is_null(), "{report}");
    report
}

/// The lines that both programs have logged.
fn logged(folder: &Path) -> Vec<u64> {
    let read = |name| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let both = format!("{}{}", read("one.log"), read("two.log"));
    let mut lines: Vec<u64> = both.lines().map(|line| line.parse().expect("a number")).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn a_service_moves_there_and_back_under_load_and_no_call_fails_or_is_done_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(node) = start(folder.path()) else { return };
    let user = user(&node);
    for to in ["two", "one"].into_iter().cycle().take(MOVES) {
        let moved = node.json(&["service", "move", "counter", "--to", to]);
        assert_eq!(moved["to"], to, "{moved}");
        assert_eq!(server(&node), to);
    }
    let report = end(folder.path(), user);
    let calls = report["calls"].as_u64().expect("a number");
    assert!(calls > 10, "{report}");
    assert_eq!(logged(folder.path()), (1..=calls).collect::<Vec<_>>(), "{report}");
    println!("{MOVES} moves: {report}");
    for (arguments, said) in [
        (["service", "move", "counter", "--to", "two"], "already"),
        (["service", "move", "counter", "--to", "hall"], "may not offer counter"),
        (["service", "move", "nosuch", "--to", "two"], "no service"),
    ] {
        let refused = node.run(&arguments);
        assert!(refused.code != 0 && refused.err.contains(said), "{refused:?}");
    }
}

#[test]
fn a_program_that_is_killed_is_followed_by_its_backup_and_each_daemon_leaves_the_service_where_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(node) = start(folder.path()) else { return };
    let pid = |domain: &str| {
        let tree = node.json(&["inspect", &format!("dc/lab/domains/{domain}")]);
        tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs")
    };
    let asked = "exec 3<>/srv/counter/count; echo a >&3; read a <&3; echo $a; read stop </shared/go; echo b >&3; read b <&3; echo $b";
    assert!(
        std::process::Command::new("mkfifo")
            .arg(folder.path().join("go"))
            .status()
            .expect("mkfifo")
            .success()
    );
    let mut child = node
        .command(&["exec", "hall", "--", "sh", "-c", asked])
        .stdout(Stdio::piped())
        .spawn()
        .expect("tombolo starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "1");
    node::kill(pid("one"));
    wait::until("the backup serves", || server(&node) == "two");
    std::fs::write(folder.path().join("go"), "\n").expect("a word");
    assert_eq!(lines.next().expect("a line").expect("read"), "2", "the open file is not as it was");
    assert!(child.wait().expect("it ends").success());
    // The next daemon hears of both programs, in whatever order, and knows which one serves.
    node.kill_daemon();
    node.up_ok(&topology(folder.path()));
    assert_eq!(server(&node), "two");
    wait::until("the program that came back stands by", || {
        node.json(&["service", "show", "counter"])["standing_by"] == serde_json::json!(["one"])
    });
    node.ok(&["service", "move", "counter", "--to", "one"]);
    assert_eq!(server(&node), "one");
}
