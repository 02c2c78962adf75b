//! Volumes: disks that outlive their domain, their engine and the daemon, and not `volume rm`.

use e2e::machines::{self, shell_ok};
use e2e::{Node, node, wait};
use serde_json::Value;

/// A client of NBD that the host's programs have.
const CLIENT: &str = "/usr/bin/qemu-io";
/// The volume as a container finds it.
const URL: &str = "nbd+unix:///volume?socket=/run/volumes/data/nbd.sock";

fn file(size: &str) -> String {
    format!(
        "name = \"disks\"\n[volume.data]\nsize = \"{size}\"\nformat = \"qcow2\"\n\
         [domain.db]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\nvolumes = {{ data = {{}} }}\n"
    )
}

fn start() -> Option<Node> {
    if !std::path::Path::new(CLIENT).exists() {
        println!("skipped: needs qemu-io (qemu-utils); run `make deps`");
        return None;
    }
    Node::start()
}

fn volume(node: &Node) -> Value {
    node.json(&["volume", "show", "disks/data"])
}

fn io(node: &Node, commands: &[&str]) {
    let commands: Vec<String> = commands.iter().map(|command| format!("-c '{command}'")).collect();
    let out = node.shell_ok("db", &format!("{CLIENT} -f raw {} '{URL}'", commands.join(" ")));
    assert!(!out.contains("failed"), "{out}");
}

fn engine(node: &Node) -> u32 {
    let mut pid = None;
    wait::until("the volume has an engine", || {
        let row = volume(node);
        pid = row["pid"].as_u64().filter(|_| row["state"] == "serving");
        pid.is_some()
    });
    pid.and_then(|pid| u32::try_from(pid).ok()).expect("a process")
}

#[track_caller]
fn refused(node: &Node, arguments: &[&str], why: &str) {
    let run = node.run(arguments);
    assert!([1, 2].contains(&run.code) && run.err.contains(why), "{arguments:?}: {run:?}");
}

#[test]
fn a_volume_outlives_its_engine_the_daemon_and_its_domain() {
    let Some(node) = start() else { return };
    node.up_ok(&file("16MiB"));
    io(&node, &["write -P 7 1M 1M", "flush"]);
    let first = engine(&node);
    node::kill(first);
    wait::until("there is another engine", || volume(&node)["restarts"] == 1);
    let second = engine(&node);
    assert_ne!(first, second);
    io(&node, &["read -P 7 1M 1M", "write -P 8 2M 1M", "flush"]);
    node.kill_daemon();
    assert!(std::path::Path::new(&format!("/proc/{second}")).exists(), "it goes on without a daemon");
    node.up_ok(&file("16MiB"));
    assert_eq!(engine(&node), second, "the next daemon takes it over");
    io(&node, &["read -P 7 1M 1M", "read -P 8 2M 1M"]);
    node.ok(&["down"]);
    let idle = volume(&node);
    assert_eq!((&idle["state"], &idle["domain"]), (&Value::from("idle"), &Value::Null));
    wait::until("nobody needs an engine, so there is none", || {
        !std::path::Path::new(&format!("/proc/{second}")).exists()
    });
    node.up_ok(&file("16MiB"));
    io(&node, &["read -P 7 1M 1M", "read -P 8 2M 1M"]);
}

#[test]
fn an_engine_whose_domain_is_gone_is_ended_by_the_next_daemon() {
    let Some(node) = start() else { return };
    node.up_ok(&file("16MiB"));
    io(&node, &["write -P 7 1M 1M", "flush"]);
    let lost = engine(&node);
    // All at once, but for the engine.
    let mut all = node.pids("daemon");
    all.extend(node.pids("monitor"));
    node::kill_all_at_once(&all);
    node.up_ok(&file("16MiB"));
    io(&node, &["read -P 7 1M 1M"]);
    let serving = engine(&node);
    wait::until("there is one engine", || {
        serving == lost || !std::path::Path::new(&format!("/proc/{lost}")).exists()
    });
}

#[test]
fn a_volume_grows_has_snapshots_and_is_removed_only_when_nobody_has_it() {
    let Some(node) = start() else { return };
    node.up_ok(&file("16MiB"));
    io(&node, &["write -P 1 1M 1M", "flush"]);
    node.ok(&["volume", "snapshot", "data", "before"]);
    io(&node, &["write -P 2 1M 1M", "flush"]);
    refused(&node, &["volume", "snapshot", "data", "before"], "refuses a snapshot");
    for verb in [
        &["volume", "rm", "data"][..],
        &["volume", "resize", "data", "--size", "32MiB"],
        &["volume", "restore", "data", "before"],
    ] {
        refused(&node, verb, "is in use by the domain db");
    }
    io(&node, &["read -P 2 1M 1M"]);
    node.ok(&["down"]);
    node.ok(&["volume", "restore", "data", "before"]);
    let larger = node.json(&["volume", "resize", "data", "--size", "24MiB"]);
    assert_eq!((&larger["bytes"], &larger["snapshots"][0]), (&Value::from(24 << 20), &Value::from("before")));
    refused(&node, &["volume", "resize", "data", "--size", "16MiB"], "never shrinks");
    let shrunk = node.up(&file("16MiB"));
    assert!(shrunk.code == 1 && shrunk.err.contains("a volume never shrinks"), "{shrunk:?}");
    node.up_ok(&file("32MiB"));
    assert_eq!(volume(&node)["bytes"], 32 << 20);
    io(&node, &["read -P 1 1M 1M", "write -P 3 30M 1M"]);
    node.ok(&["down"]);
    node.ok(&["volume", "rm", "data"]);
    assert_eq!(node.json(&["volume", "ls"]), serde_json::json!([]));
    assert!(!node.state_dir().join("volumes/disks").exists(), "its file is gone");
    refused(&node, &["volume", "show", "data"], "there is no volume");
}

#[test]
fn a_volume_is_made_by_hand_and_what_is_impossible_is_refused() {
    let Some(node) = start() else { return };
    node.up_ok("name = \"other\"\n[domain.a]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n");
    let made = node.json(&["volume", "create", "disks/data", "--size", "8MiB", "--format", "qcow2"]);
    assert_eq!((&made["state"], &made["bytes"]), (&Value::from("idle"), &Value::from(8 << 20)));
    refused(&node, &["volume", "create", "disks/data", "--size", "8MiB"], "already");
    refused(&node, &["volume", "create", "data", "--size", "8MiB"], "is no name of a volume");
    refused(
        &node,
        &["volume", "create", "disks/huge", "--size", "15TiB"],
        "larger than the whole file system",
    );
    refused(&node, &["volume", "create", "disks/../up", "--size", "8MiB"], "is no name of a volume");
    refused(&node, &["volume", "show", "dta"], "the volumes are: disks/data");
    node.ok(&["down"]);
    node.up_ok(&file("8MiB"));
    io(&node, &["write -P 1 0 1M"]);
    node.ok(&["down"]);
    node.ok(&["volume", "rm", "disks/data"]);
}

#[test]
fn a_machine_has_a_volume_for_a_disk_and_goes_on_when_the_engine_is_killed() {
    if start().is_none() {
        return;
    }
    let Some(node) = machines::start() else { return };
    let domain = machines::domain("db", &[], "", "volumes = { data = {} }");
    let file = format!("name = \"disks\"\n[volume.data]\nsize = \"16MiB\"\n{domain}");
    node.up_ok(&file);
    let disk = shell_ok(&node, "db", "grep -l data /sys/block/*/serial");
    let name = disk.trim().split('/').nth(3).expect("a disk of this serial number").to_owned();
    assert_eq!(shell_ok(&node, "db", &format!("cat /sys/block/{name}/size")).trim(), "32768");
    let write = |word: &str, at: u32| {
        shell_ok(
            &node,
            "db",
            &format!("echo {word} | dd of=/dev/{name} bs=512 seek={at} conv=fsync 2>/dev/null"),
        )
    };
    let read = |at: u32| {
        shell_ok(&node, "db", &format!("dd if=/dev/{name} bs=512 skip={at} count=1 2>/dev/null | head -n 1"))
    };
    write("kept", 8);
    node::kill(engine(&node));
    write("after", 16);
    assert_eq!((read(8).trim(), read(16).trim()), ("kept", "after"));
    node.ok(&["down"]);
    node.up_ok(&file);
    assert_eq!((read(8).trim(), read(16).trim()), ("kept", "after"));
    node.ok(&["down"]);
    node.ok(&["volume", "rm", "data"]);
}
