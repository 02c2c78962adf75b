//! The daemon is killed while it changes what runs, at whatever instruction it is at. The next `up`
//! must make it whole, and the next `down` must leave nothing. The story: a daemon died between two
//! steps of an edit, and its successor took over a domain that was neither what had been before nor
//! what was wanted.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Moments after the beginning of an `up` at which the daemon is killed, in ms: its whole length,
/// unevenly.
const MOMENTS_MS: [u64; 10] = [3, 11, 23, 41, 67, 90, 120, 170, 230, 310];

fn file(colour: &str) -> String {
    let domain = |name: &str, kind: &str| {
        format!(
            "[domain.{name}]\n{kind}\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ timeout = \"200ms\" }}\n\
             environment = {{ COLOUR = \"{colour}\" }}\n"
        )
    };
    format!(
        "name = \"torn\"\n{}{}{}",
        domain("one", "kind = \"container\"\nroot = \"host\""),
        domain("two", "kind = \"process\""),
        domain("three", "kind = \"container\"\nroot = \"host\"")
    )
}

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Option<Self> {
        let lacks = if !rustix::process::geteuid().is_root() {
            Some("root")
        } else if !Path::new("/dev/fuse").exists() {
            Some("/dev/fuse")
        } else if !Path::new("/usr/sbin/runc").exists() && !Path::new("/usr/bin/runc").exists() {
            Some("runc")
        } else {
            None
        };
        if let Some(lacks) = lacks {
            println!("skipped: needs {lacks}");
            return None;
        }
        Some(Self(tempfile::tempdir().unwrap()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command.arg("--run-dir").arg(self.path("run")).arg("--state-dir").arg(self.path("state"));
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn up(&self, colour: &str) -> Command {
        let topology = self.path(&format!("{colour}.toml"));
        std::fs::write(&topology, file(colour)).unwrap();
        self.command(&["up", "--replace", &topology.to_string_lossy()])
    }

    fn daemon(&self) -> Option<rustix::process::Pid> {
        let text = std::fs::read_to_string(self.path("run/lock")).ok()?;
        rustix::process::Pid::from_raw(text.trim().parse().ok()?)
    }

    fn kill_daemon(&self, signal: rustix::process::Signal) {
        if let Some(pid) = self.daemon() {
            // It may not have got so far, or have been killed before.
            let _gone = rustix::process::kill_process(pid, signal);
        }
    }

    fn colour_of(&self, domain: &str) -> String {
        said(&self.command(&["exec", domain, "--", "/bin/sh", "-c", "echo $COLOUR"]).output().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _cleaned_up_already = self.command(&["down", "--all"]).output();
        self.kill_daemon(rustix::process::Signal::TERM);
    }
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn cgroups(name: &str) -> Vec<PathBuf> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten();
    hierarchies.map(|hierarchy| hierarchy.path().join(name)).filter(|path| path.exists()).collect()
}

#[test]
fn a_daemon_that_dies_in_the_middle_of_a_change_leaves_something_to_go_on_from() {
    let Some(node) = Node::new() else { return };
    for (round, moment) in MOMENTS_MS.into_iter().enumerate() {
        let colour = if round % 2 == 0 { "red" } else { "blue" };
        let mut torn = node.up(colour).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The moment is what the test is about: it must not depend on anything that the daemon
        // says.
        std::thread::park_timeout(Duration::from_millis(moment));
        node.kill_daemon(rustix::process::Signal::KILL);
        torn.wait().unwrap();
        said(&node.up(colour).output().unwrap());
        for domain in ["one", "two", "three"] {
            assert_eq!(node.colour_of(domain), colour, "{domain} after a death at {moment} ms");
        }
        let rows: serde_json::Value =
            serde_json::from_slice(&node.command(&["ps", "--json"]).output().unwrap().stdout).unwrap();
        assert!(rows.as_array().unwrap().iter().all(|row| row["state"] == "running"), "{rows}");
        if round % 3 == 2 {
            said(&node.command(&["down"]).output().unwrap());
        }
    }
    said(&node.command(&["down", "--all"]).output().unwrap());
    let name = std::fs::read_to_string(node.path("run/cgroup")).unwrap();
    assert_eq!(cgroups(&name), Vec::<PathBuf>::new());
    assert_eq!(std::fs::read_dir(node.path("run/dc")).map_or(0, Iterator::count), 0);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&*node.path("run").to_string_lossy()), "{mounts}");
}

#[test]
fn mounts_are_served_while_there_is_no_daemon() {
    let Some(node) = Node::new() else { return };
    said(&node.up("red").output().unwrap());
    let rows: serde_json::Value =
        serde_json::from_slice(&node.command(&["ps", "--json"]).output().unwrap().stdout).unwrap();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let daemon = node.daemon().unwrap();
        let ended = rustix::process::pidfd_open(daemon, rustix::process::PidfdFlags::empty()).unwrap();
        node.kill_daemon(signal);
        rustix::event::poll(&mut [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)], None)
            .unwrap();
        for row in rows.as_array().unwrap() {
            let name = format!("/proc/{}/root/srv/self/name", row["pid"]);
            let read = Command::new("timeout").args(["20", "cat", &name]).output().unwrap();
            assert!(said(&read).contains(row["domain"].as_str().unwrap()), "after {signal:?}: {read:?}");
        }
        assert!(said(&node.up("red").output().unwrap()).contains("nothing to do"));
    }
}

/// Descriptors of the daemon that are none of the event loop's own.
fn descriptors_of(daemon: rustix::process::Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.as_raw_nonzero())).unwrap().count()
}

#[test]
fn a_daemon_holds_no_more_after_many_changes_than_after_one() {
    let Some(node) = Node::new() else { return };
    let change = || {
        said(&node.up("red").output().unwrap());
        for _ in 0..5 {
            assert_eq!(node.colour_of("one"), "red");
        }
        said(&node.command(&["down"]).output().unwrap());
    };
    change();
    let daemon = node.daemon().unwrap();
    let before = descriptors_of(daemon);
    (0..10).for_each(|_| change());
    assert_eq!(node.daemon().unwrap(), daemon, "it is another daemon");
    // A connection of the last command may still be on its way out.
    let patience = std::time::Instant::now() + Duration::from_secs(20);
    while descriptors_of(daemon) > before {
        assert!(std::time::Instant::now() < patience, "{before} before, now {}", descriptors_of(daemon));
        std::thread::yield_now();
    }
}

// Of four that started at once on a node without a daemon, three failed: their daemons were
// refused, and nobody looked whether one took requests by then.
#[test]
fn several_ups_at_once_share_the_one_daemon() {
    let Some(node) = Node::new() else { return };
    // Written once: they read it while others would write.
    let mut up = node.up("red");
    up.stdout(Stdio::piped()).stderr(Stdio::piped());
    for _ in 0..3 {
        let several: Vec<_> = (0..4).map(|_| up.spawn().unwrap()).collect();
        for one in several {
            said(&one.wait_with_output().unwrap());
        }
        node.kill_daemon(rustix::process::Signal::KILL);
    }
}

// A daemon with a mistyped --state-dir found nothing desired there, and ended every domain of the
// run directory.
#[test]
fn a_daemon_with_another_state_does_not_end_what_it_does_not_know() {
    let Some(node) = Node::new() else { return };
    said(&node.up("red").output().unwrap());
    let ended =
        rustix::process::pidfd_open(node.daemon().unwrap(), rustix::process::PidfdFlags::empty()).unwrap();
    node.kill_daemon(rustix::process::Signal::KILL);
    rustix::event::poll(&mut [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)], None)
        .unwrap();
    let mut mistyped = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    mistyped.arg("--run-dir").arg(node.path("run")).arg("--state-dir").arg(node.path("sate")).arg("daemon");
    let refused = mistyped.output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let why = text(&refused.stderr);
    assert!(why.contains("down --all") && why.contains(&*node.path("state").to_string_lossy()), "{why}");
    assert!(said(&node.up("red").output().unwrap()).contains("nothing to do"), "it did end them");
}

/// A file system of 2 MiB on a folder, gone with this.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _as_clean_as_can_be = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_refuses_a_change_by_name_and_loses_nothing() {
    if Node::new().is_none() {
        return;
    }
    let disk = tempfile::tempdir().unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", disk.path(), "tmpfs", flags, c"size=2m,mode=700").unwrap();
    // Dropped after the node, which needs its state to end what runs.
    let _small = Small(disk.path().to_owned());
    let node = Node::new().unwrap();
    let state = node.path("state");
    std::os::unix::fs::symlink(disk.path(), &state).unwrap();
    said(&node.up("red").output().unwrap());
    // As full as can be: what is written over needs no room.
    let filler = state.join("logs/filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write(&mut file, &[0; 4096]).is_ok_and(|written| written > 0) {}
    drop(file);
    let mut refused = None;
    for colour in ["blue", "red", "green", "red"] {
        let output = node.up(colour).output().unwrap();
        if !output.status.success() {
            refused = Some((colour, text(&output.stderr)));
            break;
        }
    }
    let (colour, why) = refused.expect("a full disk was noticed by nobody");
    assert!(why.contains("registry.redb") && why.contains("restored"), "{why}");
    assert_ne!(node.colour_of("one"), colour, "what was refused is there");
    std::fs::remove_file(filler).unwrap();
    said(&node.up(colour).output().unwrap());
    assert_eq!(node.colour_of("one"), colour);
}
