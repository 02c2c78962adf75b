//! A test bed of several nodes on this one machine: each is a network namespace on a bridge, with
//! process and mount namespaces, a daemon, a run and a state directory of its own.
//!
//! Links are cut, black-holed, slowed and split by what the bridge does with a node's port. A node
//! is killed as a machine dies: its first process is killed, and the kernel kills whatever ran
//! there. What a bed makes carries its name, which has the number of this process in it; a bed that
//! is dropped, by a panic too, takes everything away, and the next one clears away what a killed
//! test left.

mod etcd;
mod host;
mod joined;
mod net;
mod witness;

pub use etcd::{await_leader, program as etcd_program};
pub use host::{Host, Init};
pub use net::{Port, Switch};
pub use witness::{Life, Witness, now_ns};

use crate::{Run, clean, node, wait};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Most nodes of a bed: more than any test needs, and addresses and names are enough for.
pub const MAX_NODES: usize = 9;
/// Names of the nodes, in their order.
pub const NAMES: [&str; MAX_NODES] =
    ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"];
/// Beds of this process so far.
static BEDS: AtomicU32 = AtomicU32::new(0);

/// Some nodes and the switch between them.
pub struct Bed {
    // Fields are dropped in this order: first what runs, then what it ran on, then its files.
    hosts: Vec<Host>,
    switch: Switch,
    folder: tempfile::TempDir,
}

impl Bed {
    /// `count` nodes that run nothing yet; `None`, and a printed reason, where this machine can't
    /// have them.
    ///
    /// # Panics
    /// Where a namespace can't be made although it should.
    #[must_use]
    pub fn start(count: usize) -> Option<Self> {
        Self::start_at_times(&vec![Duration::ZERO; count])
    }

    /// As [`Bed::start`], a node for each of these, which were started so long before this machine.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn start_at_times(uptimes: &[Duration]) -> Option<Self> {
        let count = uptimes.len();
        let clocks = uptimes.iter().any(|uptime| !uptime.is_zero());
        let no_clocks = (clocks && !has_clocks())
            .then(|| "this kernel has no time namespaces (CONFIG_TIME_NS)".to_owned());
        if let Some(reason) = missing().or(no_clocks) {
            println!("skipped: {reason}");
            return None;
        }
        assert!((1..=MAX_NODES).contains(&count), "a bed has 1 to {MAX_NODES} nodes");
        let folder = tempfile::Builder::new().prefix("tombolo-bed-").tempdir().expect("a temporary folder");
        let name = format!("tb{}-{}", std::process::id(), BEDS.fetch_add(1, Ordering::Relaxed));
        let mut switch = Switch::new(&name);
        let hosts = NAMES
            .iter()
            .zip(uptimes)
            .enumerate()
            .map(|(index, (name, uptime))| {
                let port = switch.plug(index, name);
                Host::new(name, port, &folder.path().join(name), *uptime)
            })
            .collect();
        Some(Self { hosts, switch, folder })
    }

    /// For files of the test; every node sees it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// All nodes.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The node of this number, from 0.
    ///
    /// # Panics
    /// Where there are not so many.
    #[must_use]
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// The node of this name.
    ///
    /// # Panics
    /// Where there is none.
    #[must_use]
    pub fn named(&self, name: &str) -> &Host {
        self.hosts.iter().find(|host| host.name() == name).expect("a node of this name")
    }

    /// The network.
    #[must_use]
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Ends everything and proves the machine clean.
    ///
    /// # Panics
    /// Where something is left.
    pub fn finish(self) {
        let runs: Vec<PathBuf> = self.hosts.iter().map(Host::run_dir).collect();
        wait::until("nothing of the bed's nodes is left", || {
            self.hosts.iter().for_each(Host::kill);
            let left: Vec<String> = runs.iter().flat_map(|run| clean::leftovers(run)).collect();
            if !left.is_empty() && std::env::var_os("TOMBOLO_E2E_VERBOSE").is_some() {
                eprintln!("{left:#?}");
            }
            left.is_empty()
        });
    }

    /// The last words of every daemon and what its threads do, to explain a failure.
    #[must_use]
    pub fn logs(&self) -> String {
        let of = |host: &Host| {
            let threads = crate::node::threads_of_daemon(&host.run_dir());
            format!("\n=== {}{}{threads}", host.name(), host.daemon_log())
        };
        self.hosts.iter().map(of).collect()
    }

    /// Looks at `condition` until it holds; a failure tells what every node said.
    ///
    /// # Panics
    /// Where it does not come to hold.
    pub fn until(&self, what: &str, patience: Duration, mut condition: impl FnMut() -> bool) -> Duration {
        let begun = std::time::Instant::now();
        loop {
            if condition() {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() < patience,
                "gave up after {patience:?} waiting until {what}{}",
                self.logs()
            );
            wait::pause(LOOK_EVERY);
        }
    }
}

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Whether nodes can have been started at different times here.
#[must_use]
pub fn has_clocks() -> bool {
    Path::new("/proc/self/ns/time").exists()
}

/// The things that this machine lacks for several nodes.
#[must_use]
pub fn missing() -> Option<String> {
    if let Some(reason) = node::missing() {
        return Some(reason);
    }
    for program in ["ip", "unshare", "nsenter", "setpriv"] {
        if !node::in_path(program) {
            return Some(format!("needs {program}(1); run `make deps`"));
        }
    }
    let probe = Command::new("unshare").args(["--net", "--pid", "--mount", "--fork", "true"]).output();
    match probe {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            Some(format!("can't make namespaces here: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
        Err(error) => Some(format!("can't run unshare(1): {error}")),
    }
}

/// The address of a node on the bed's network.
#[must_use]
pub fn address(index: usize) -> Ipv4Addr {
    // Only this bed's namespaces know it.
    Ipv4Addr::new(10, 77, 0, u8::try_from(index + 1).unwrap_or(u8::MAX))
}

/// Insists that a command did its work.
///
/// # Panics
/// With what it said, where it did not.
pub fn must(what: &str, command: &mut Command) -> String {
    let run: Run = command.output().unwrap_or_else(|e| panic!("can't {what}: {e}")).into();
    assert_eq!(run.code, 0, "can't {what}: {command:?}\n{}{}", run.out, run.err);
    run.out
}
