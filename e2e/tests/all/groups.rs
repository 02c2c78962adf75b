//! The groups of a machine whose members may look, and change, without being root.

use e2e::node::{Node, Run, binary};
use e2e::wait;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Numbers of groups that nobody has.
const CHANGE: &str = "54321";
const LOOK: &str = "54322";
const USER: &str = "54320";

const FILE: &str = r#"
name = "shop"

[domain.web]
kind = "container"
command = ["bash", "-c", "echo served; sleep infinity"]
environment = { PIN = "4711" }
"#;

/// A node whose folder others may go through, and a program that they may read.
struct Shared {
    node: Node,
    program: PathBuf,
}

impl Shared {
    fn start() -> Option<Self> {
        let node = Node::start()?;
        std::fs::set_permissions(node.folder(), std::fs::Permissions::from_mode(0o711)).expect("a mode");
        let program = node.folder().join("tombolo");
        std::fs::copy(binary(), &program).expect("the program is copied");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        Some(Self { node, program })
    }

    /// `tombolo ARGUMENTS` of a user who is nobody but a member of a group.
    fn of(&self, group: Option<&str>, arguments: &[&str]) -> Run {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER]);
        match group {
            Some(group) => command.args(["--groups", group]),
            None => command.arg("--clear-groups"),
        };
        command.arg("--").arg(&self.program);
        command.arg("--run-dir").arg(self.node.run_dir()).arg("--state-dir").arg(self.node.state_dir());
        command.args(arguments).stdin(Stdio::null()).output().expect("setpriv").into()
    }
}

#[test]
fn members_of_groups_look_and_change_and_nobody_else_does() {
    let Some(shared) = Shared::start() else { return };
    let node = &shared.node;
    let groups = ["daemon", "--change-group", CHANGE, "--look-group", LOOK];
    let mut daemon = node.command(&groups).stderr(Stdio::null()).spawn().expect("the daemon");
    wait::until("the daemon takes requests", || node.run(&["ps"]).code == 0);

    // Whoever may change needs no more than that.
    let file = node.folder().join("shop.toml");
    std::fs::write(&file, FILE).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    let file = file.to_string_lossy().into_owned();
    let change = |arguments: &[&str]| {
        let run = shared.of(Some(CHANGE), arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {}{}", run.out, run.err);
        run.out
    };
    change(&["up", &file]);
    assert_eq!(change(&["exec", "web", "--", "cat", "/proc/sys/kernel/ostype"]).trim(), "Linux");
    let copied = node.folder().join("shop.toml");
    change(&["cp", &copied.to_string_lossy(), "web:/tmp/shop.toml"]);
    assert!(change(&["exec", "web", "--", "cat", "/tmp/shop.toml"]).contains("name = \"shop\""));
    assert!(change(&["history", "shop", "--show", "1"]).contains("4711"));

    // Whoever may look sees what there is.
    let look = |arguments: &[&str]| shared.of(Some(LOOK), arguments);
    let sees = |arguments: &[&str], what: &str| {
        let run = look(arguments);
        assert_eq!(run.code, 0, "{arguments:?}: {}{}", run.out, run.err);
        assert!(run.out.contains(what), "{arguments:?}: {}", run.out);
        assert!(!run.out.contains("4711"), "{arguments:?} tells what the program was given: {}", run.out);
    };
    wait::until("it has served", || look(&["logs", "web"]).out.contains("served"));
    sees(&["ps"], "running");
    sees(&["inspect", "web", "--json"], "running");
    sees(&["logs", "web", "--json"], "served");
    sees(&["events"], "running");
    sees(&["reserve", "ls"], "");
    sees(&["stats", "--json"], "web");
    // And nothing more.
    let refused: [&[&str]; 8] = [
        &["up", &file],
        &["down", "shop"],
        &["exec", "web", "--", "true"],
        &["restart", "web"],
        &["history", "shop"],
        &["volume", "create", "shop/disk", "--size", "1MiB"],
        &["node", "token"],
        &["cp", "web:/etc/hostname", "/tmp"],
    ];
    for arguments in refused {
        let run = look(arguments);
        assert_ne!(run.code, 0, "{arguments:?} was done: {}", run.out);
        assert!(run.err.contains("may look"), "{arguments:?}: {}", run.err);
    }

    // A stranger is told how it would go.
    let run = shared.of(None, &["ps"]);
    assert_ne!(run.code, 0);
    assert!(run.err.contains("only root may") && run.err.contains("tombolo-admin"), "{}", run.err);
    let run = shared.of(None, &["exec", "web", "--", "true"]);
    assert_eq!(run.code, 125, "{}", run.err);

    // A member who connects and says nothing keeps nobody out for longer than a request may take.
    let socket = format!("{}.look/daemon.sock", node.run_dir().display());
    let held: Vec<UnixStream> =
        (0..64).map(|_| UnixStream::connect(&socket).expect("a connection")).collect();
    sees(&["ps"], "running");
    node.ok(&["ps"]);
    drop(held);

    // What a killed daemon left is told apart from one that lets nobody in, and is cleared away.
    node.kill_daemon();
    daemon.wait().expect("it has ended");
    assert!(look(&["ps"]).err.contains("no daemon runs"));
    let mut daemon = node.command(&["daemon"]).stderr(Stdio::null()).spawn().expect("the daemon");
    wait::until("the next one takes requests", || node.run(&["ps"]).code == 0);
    assert!(!std::path::Path::new(&socket).exists(), "the next daemon lets in whom it was not told to");
    let wrong = node.run(&["daemon", "--look-group", "no such group"]);
    assert!(wrong.code != 0, "{}", wrong.out);
    node.ok(&["down", "--all"]);
    e2e::node::terminate(daemon.id());
    daemon.wait().expect("it ends");
}
