//! One node of a bed: its namespaces, and `tombolo` in them.

use super::Port;
use crate::{Run, node, wait};
use serde_json::Value;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The first process of a node: it takes in orphans, and ends by nothing but a kill.
const INIT: &str = "while :; do sleep 3600 & wait $!; done";

/// A node; its processes end when it is dropped.
pub struct Host {
    name: String,
    port: Port,
    folder: PathBuf,
    /// How long before this machine it says that it was started.
    uptime: Duration,
    init: RefCell<Option<Init>>,
    /// The processes that were started there and are waited for when they have ended.
    kept: RefCell<Vec<Child>>,
}

/// The first process of a node's pid namespace, and so the life of everything in it.
#[derive(Debug)]
pub struct Init {
    child: Child,
    /// As this machine counts.
    pub pid: u32,
    /// Whether it has a time namespace of its own.
    has_clocks: bool,
}

impl Init {
    /// Makes pid and mount namespaces in the network of `namespace`, and of time where clocks that
    /// nobody sets are to be `uptime` ahead.
    ///
    /// # Panics
    /// Where they can't be made.
    #[must_use]
    pub fn start(namespace: &str, uptime: Duration) -> Self {
        let ahead = uptime.as_secs().to_string();
        let clocks = ["--time", "--boottime", &ahead, "--monotonic", &ahead];
        let clocks = clocks.iter().take(if uptime.is_zero() { 0 } else { clocks.len() });
        // If the test is killed, the kernel kills what it started, and with it all of the node.
        // Not by `ip netns exec`, which hides the control groups behind a new /sys.
        let child = Command::new("nsenter")
            .args([&format!("--net=/run/netns/{namespace}"), "setpriv", "--pdeathsig", "KILL"])
            .arg("unshare")
            .args(clocks)
            .args(["--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", INIT])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nsenter(1) starts");
        // `nsenter`, `setpriv` and `unshare` become each other; the first process is the child of
        // the last.
        let mut pid = None;
        wait::until("a node's first process runs", || {
            pid = first_child(child.id()).filter(|pid| is_first(*pid));
            pid.is_some()
        });
        Self { child, pid: pid.unwrap_or_default(), has_clocks: !uptime.is_zero() }
    }

    /// A command that runs in the node's namespaces.
    #[must_use]
    pub fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.pid.to_string()])
            .args(self.has_clocks.then_some("--time"))
            .args(["--pid", "--mount", "--net", "--"])
            .stdin(Stdio::null());
        command
    }

    /// As when the power fails: everything in the namespace is killed, and gone when this returns.
    fn kill(mut self) {
        node::kill(self.pid);
        // Its parent ends when the namespace is empty.
        if let Err(error) = self.child.wait() {
            eprintln!("a node's first process can't be waited for: {error}");
        }
    }
}

fn first_child(pid: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether a process is the first one of a pid namespace, in a shell already.
fn is_first(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let mounted = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"sh\0");
    mounted && numbers.split_ascii_whitespace().last() == Some("1")
}

impl Host {
    pub(super) fn new(name: &str, port: Port, folder: &Path, uptime: Duration) -> Self {
        std::fs::create_dir_all(folder).expect("a node's folder");
        let init = Init::start(&port.namespace, uptime);
        Self {
            name: name.to_owned(),
            port,
            folder: folder.to_owned(),
            uptime,
            init: RefCell::new(Some(init)),
            kept: RefCell::default(),
        }
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its place in the network.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// For its files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The run directory.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// The state directory.
    #[must_use]
    pub fn state_dir(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Whether it is switched on.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.init.borrow().is_some()
    }

    /// A program in the node's namespaces, not yet run.
    ///
    /// # Panics
    /// On a node that is switched off.
    #[must_use]
    pub fn inside(&self, program: &Path) -> Command {
        let init = self.init.borrow();
        let mut command = init.as_ref().expect("the node is switched on").enter();
        command.arg(program);
        command
    }

    /// `tombolo ARGUMENTS` on this node, not yet run.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.inside(&node::binary());
        command.envs(super::etcd_program().map(|program| ("TOMBOLO_ETCD", program)));
        command.arg("--run-dir").arg(self.run_dir()).arg("--state-dir").arg(self.state_dir()).args(arguments);
        command
    }

    /// Runs `tombolo ARGUMENTS`.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Run {
        self.command(arguments).output().expect("tombolo starts").into()
    }

    /// Runs it and insists on exit code 0; returns what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let run = self.run(arguments);
        assert_eq!(
            run.code,
            0,
            "on {}: tombolo {arguments:?} failed\n--- out\n{}\n--- err\n{}{}",
            self.name,
            run.out,
            run.err,
            self.daemon_log()
        );
        run.out
    }

    /// Runs it with `--json` and parses what it printed.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let out = self.ok(&[arguments, &["--json"]].concat());
        serde_json::from_str(&out)
            .unwrap_or_else(|e| panic!("tombolo {arguments:?} --json printed no JSON ({e}):\n{out}"))
    }

    /// Writes `text` as a topology file and brings it up.
    #[must_use]
    pub fn up(&self, text: &str) -> Run {
        let file = self.folder.join("topology.toml");
        std::fs::write(&file, text).expect("the topology is written");
        self.run(&["up", &file.to_string_lossy()])
    }

    /// As [`Host::up`], insisting on success.
    pub fn up_ok(&self, text: &str) -> String {
        let run = self.up(text);
        assert_eq!(run.code, 0, "up failed\n--- out\n{}\n--- err\n{}{}", run.out, run.err, self.daemon_log());
        run.out
    }

    /// Keeps a process of this node, which ends with the node at the latest.
    pub fn keep(&self, child: Child) {
        self.kept.borrow_mut().push(child);
    }

    /// The daemon's log, to explain a failure.
    #[must_use]
    pub fn daemon_log(&self) -> String {
        let text = std::fs::read_to_string(self.state_dir().join("daemon.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("\n--- daemon.log, last lines\n{}", lines[lines.len().saturating_sub(40)..].join("\n"))
    }

    /// As when the power fails. What it was doing stays as it was: files, control groups without
    /// processes.
    pub fn kill(&self) {
        if let Some(init) = self.init.borrow_mut().take() {
            init.kill();
        }
        for mut child in self.kept.borrow_mut().drain(..) {
            // It was killed with the rest; what entered the namespace for it follows.
            let _gone_already = child.kill();
            let _reaped_already = child.wait();
        }
        // A machine that was switched off has none; here they are the bed's machine's.
        remove_cgroups(&self.run_dir());
    }

    /// Switches it on again, with its disk as it was; what a reboot clears is gone.
    ///
    /// # Panics
    /// On a node that is on.
    pub fn boot(&self) {
        assert!(!self.is_up(), "{} is switched on", self.name);
        match std::fs::remove_dir_all(self.run_dir()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                panic!("a run directory stays: {error}")
            }
            _ => {}
        }
        *self.init.borrow_mut() = Some(Init::start(&self.port.namespace, self.uptime));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Removes the empty control groups of a node that was killed.
fn remove_cgroups(run_dir: &Path) {
    let Ok(name) = std::fs::read_to_string(run_dir.join("cgroup")) else { return };
    let name = name.trim();
    if name.is_empty() || name.contains(['/', '.']) {
        return;
    }
    let root = Path::new("/sys/fs/cgroup");
    let mut hierarchies = vec![root.to_path_buf()];
    hierarchies.extend(std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path()));
    for hierarchy in hierarchies {
        remove_tree(&hierarchy.join(name));
    }
}

/// Removes a control group and those below it, deepest first. One that is busy for a moment is
/// tried again by whoever proves the machine clean.
fn remove_tree(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _not_there_or_busy = std::fs::remove_dir(group);
}
