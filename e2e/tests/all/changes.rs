//! Several who change what runs at the same time: nobody waits for a file that is none of his, who
//! waits is told for whom, and what is on its way can be cancelled, removed, and cut short by the
//! daemon's death.

use e2e::{Node, node, wait};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};

/// A process that is ready when `flag` is there, and runs on.
fn domain(name: &str, flag: &str) -> String {
    format!(
        "[domain.{name}]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ timeout = \"0ms\" }}\n\
         ready = {{ command = [\"test\", \"-e\", \"{flag}\"], timeout = \"10m\" }}\n"
    )
}

/// Writes a file of the node's own, and says where it is.
fn file(node: &Node, name: &str, text: &str) -> PathBuf {
    let path = node.folder().join(format!("{name}.toml"));
    std::fs::write(&path, text).expect("the topology is written");
    path
}

/// `tombolo up FILE`, in the background.
fn up(node: &Node, path: &Path) -> Child {
    let mut command = node.command(&["up", &path.to_string_lossy()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tombolo starts")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The number of the first process of a domain that runs.
fn pid(node: &Node, domain: &str) -> Option<u64> {
    let rows = node.json(&["ps"]);
    let row = rows.as_array()?.iter().find(|row| row["domain"] == domain)?;
    row["pid"].as_u64()
}

fn runs(node: &Node, domain: &str) {
    wait::until("the domain runs", || {
        // Before there is a daemon nobody answers.
        let run = node.run(&["ps", "--json"]);
        let rows: Value = serde_json::from_str(&run.out).unwrap_or_default();
        rows.as_array().is_some_and(|rows| rows.iter().any(|r| r["domain"] == domain && r["pid"].is_u64()))
    });
}

#[test]
fn a_file_does_not_wait_for_another_that_is_slow_and_who_waits_is_told_for_whom() {
    let Some(node) = Node::start() else { return };
    let flag = node.folder().join("flag");
    let slow = file(&node, "slow", &format!("name = \"slow\"\n{}", domain("late", &flag.to_string_lossy())));
    let quick = file(&node, "quick", &format!("name = \"quick\"\n{}", domain("web", "/")));
    let mut first = up(&node, &slow);
    runs(&node, "late");
    // Both ends of another file's life, while that one waits.
    node.ok(&["up", &quick.to_string_lossy()]);
    node.ok(&["down", "quick"]);
    assert!(first.try_wait().expect("it can be looked at").is_none(), "it was not slow");
    let second = up(&node, &slow);
    let waits = || {
        let state = node.run(&["inspect", "node/changes", "--json"]);
        let changes: Value = serde_json::from_str(&state.out).unwrap_or_default();
        changes.as_array().is_some_and(|changes| changes.len() == 2)
    };
    wait::until("the second waits for the first", waits);
    std::fs::write(&flag, "").expect("the flag");
    let first = first.wait_with_output().expect("it ends");
    assert!(first.status.success(), "{}", text(&first));
    let second = second.wait_with_output().expect("it ends");
    assert!(second.status.success(), "{}", text(&second));
    let said = text(&second);
    assert!(said.contains("waiting for `up` of ") && said.contains("slow.toml, under way for "), "{said}");
}

#[test]
fn domains_start_together_after_those_that_they_name_and_one_that_fails_undoes_all() {
    let Some(node) = Node::start() else { return };
    let folder = node.folder().to_string_lossy().into_owned();
    // Each leaves a mark, and is ready when the other one's is there.
    let one = |name: &str, other: &str, more: &str| {
        format!(
            "[domain.{name}]\nkind = \"process\"\nstop = {{ timeout = \"0ms\" }}\n{more}\
             command = [\"sh\", \"-c\", \"{}touch {folder}/{name}; sleep infinity\"]\n\
             ready = {{ command = [\"test\", \"-e\", \"{folder}/{other}\"], timeout = \"3m\" }}\n",
            if more.is_empty() { String::new() } else { format!("test -e {folder}/a -a -e {folder}/b && ") }
        )
    };
    let two = one("a", "b", "") + &one("b", "a", "") + &one("late", "late", "after = [\"a\", \"b\"]\n");
    let done = node.ok(&["up", &file(&node, "marks", &format!("name = \"marks\"\n{two}")).to_string_lossy()]);
    assert!(done.contains("start late"), "{done}");
    // Of those that start, and of those that wait, nothing is left by one that does not.
    let ends = "[domain.ends]\nkind = \"process\"\ncommand = [\"false\"]\n\
                restart = { policy = \"never\" }\nready = { command = [\"false\"], timeout = \"3m\" }\n";
    let waits =
        domain("waits", "/nowhere") + &domain("then", "/").replace("kind", "after = [\"waits\"]\nkind");
    let broken = file(&node, "broken", &format!("name = \"broken\"\n{waits}{ends}"));
    let run = node.run(&["up", &broken.to_string_lossy()]);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains("could not start ends") && run.err.contains("restored"), "{}", run.err);
    let rows = node.json(&["ps"]);
    let mut left: Vec<&str> =
        rows.as_array().into_iter().flatten().filter_map(|row| row["domain"].as_str()).collect();
    left.sort_unstable();
    assert_eq!(left, ["a", "b", "late"]);
    node.ok(&["down", "--all"]);
    node.finish();
}

#[test]
fn an_interrupt_cancels_what_is_on_its_way_and_restores_what_was() {
    let Some(node) = Node::start() else { return };
    let web = domain("web", "/");
    let path = file(&node, "shop", &format!("name = \"shop\"\n{web}"));
    node.ok(&["up", &path.to_string_lossy()]);
    let before = pid(&node, "web").expect("it runs");
    file(&node, "shop", &format!("name = \"shop\"\n{web}{}", domain("late", "/never")));
    let child = up(&node, &path);
    runs(&node, "late");
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("was cancelled; what was before is restored"), "{said}");
    assert_eq!((pid(&node, "web"), pid(&node, "late")), (Some(before), None));
    file(&node, "shop", &format!("name = \"shop\"\n{web}"));
    assert!(node.ok(&["up", &path.to_string_lossy()]).contains("nothing to do"));
    // One that never was up leaves nothing.
    let lab = file(&node, "lab", &format!("name = \"lab\"\n{}", domain("first", "/never")));
    let child = up(&node, &lab);
    runs(&node, "first");
    interrupt(&child);
    assert_eq!(child.wait_with_output().expect("it ends").status.code(), Some(130));
    assert!(node.run(&["inspect", "dc/lab"]).code != 0, "something is left of it");
}

fn interrupt(child: &Child) {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw).expect("its number");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
}

#[test]
fn down_ends_an_up_that_is_on_its_way() {
    let Some(node) = Node::start() else { return };
    let path = file(&node, "shop", &format!("name = \"shop\"\n{}", domain("late", "/never")));
    let child = up(&node, &path);
    runs(&node, "late");
    let said = node.ok(&["down", &path.to_string_lossy()]);
    assert!(said.contains("ending `up` of ") && said.contains("shop is down"), "{said}");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(text(&output).contains("a `down` of shop ended this change of it"), "{}", text(&output));
    assert_eq!(node.json(&["ps"]), serde_json::json!([]));
}

#[test]
fn a_daemon_that_is_killed_during_several_changes_leaves_each_as_it_was() {
    let Some(node) = Node::start() else { return };
    let web = domain("web", "/");
    let shop = file(&node, "shop", &format!("name = \"shop\"\n{web}"));
    node.ok(&["up", &shop.to_string_lossy()]);
    let before = pid(&node, "web").expect("it runs");
    file(&node, "shop", &format!("name = \"shop\"\n{web}{}", domain("late", "/never")));
    let lab = file(&node, "lab", &format!("name = \"lab\"\n{}", domain("first", "/never")));
    let children = [up(&node, &shop), up(&node, &lab)];
    runs(&node, "late");
    runs(&node, "first");
    node.kill_daemon();
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    }
    file(&node, "shop", &format!("name = \"shop\"\n{web}"));
    assert!(node.ok(&["up", &shop.to_string_lossy()]).contains("nothing to do"));
    assert_eq!((pid(&node, "web"), pid(&node, "late"), pid(&node, "first")), (Some(before), None, None));
    assert_eq!(node::pids_of(&node.run_dir(), "monitor").len(), 1, "monitors of what was begun are left");
}
