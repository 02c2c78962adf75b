//! Nodes of a bed that are one cluster: by the commands that a person says.

use super::{Bed, Host};
use std::process::Stdio;

impl Bed {
    /// Makes the first node a cluster on the etcd of the first `members` nodes, and joins all
    /// others; `labels` are `NAME=VALUE` of each node in turn.
    ///
    /// # Panics
    /// With what was said, where that fails.
    pub fn join_all(&self, members: usize, labels: &[&str]) {
        for host in self.hosts() {
            self.start_daemon(host);
        }
        let etcd = self.etcd_endpoints(members).join(",");
        let label = |index: usize| labels.get(index).map_or_else(Vec::new, |label| vec!["--label", *label]);
        let first = self.host(0);
        let address = first.port().address.to_string();
        let init = [
            "node",
            "init",
            "--name",
            first.name(),
            "--address",
            &address,
            "--etcd",
            &etcd,
            "--insecure-etcd",
        ];
        first.ok(&[&init[..], &label(0)].concat());
        for (index, host) in self.hosts().iter().enumerate().skip(1) {
            let token = first.ok(&["node", "token"]);
            let token = token.lines().map(str::trim).find(|line| is_token(line)).expect("a token");
            let own = host.port().address.to_string();
            let join = [
                "node",
                "join",
                &address,
                token,
                "--name",
                host.name(),
                "--address",
                &own,
                "--insecure-etcd",
            ];
            host.ok(&[&join[..], &label(index)].concat());
        }
        let all = self.hosts().len();
        self.until("every node sees every node", super::etcd::TIMEOUT, || {
            self.hosts().iter().all(|host| alive(host) == all)
        });
    }

    /// Starts a node's daemon as a service manager would, and waits until it takes requests.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn start_daemon(&self, host: &Host) {
        std::fs::create_dir_all(host.state_dir()).expect("the state directory");
        let log =
            std::fs::File::options().create(true).append(true).open(host.state_dir().join("daemon.log"));
        let log = log.expect("the daemon's log");
        let mut daemon = host.command(&["daemon"]);
        host.keep(daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("a daemon"));
        self.until("the daemon takes requests", super::etcd::TIMEOUT, || host.run(&["ps"]).code == 0);
    }

    /// Switches a node on that was killed, with its etcd member and its daemon.
    ///
    /// # Panics
    /// Where one of them does not start.
    pub fn come_back(&self, host: &Host, members: usize) {
        host.boot();
        self.start_etcd(host, members);
        self.start_daemon(host);
    }
}

impl Host {
    /// Kills the node's processes of a role (`daemon`, `monitor`), and waits until they are gone.
    pub fn kill_role(&self, role: &str) {
        let pids = crate::node::pids_of(&self.run_dir(), role);
        assert!(!pids.is_empty(), "no {role} runs on {}", self.name());
        // Not by what /proc says: of a process whose first thread has ended the others may still
        // hold its locks.
        crate::node::kill_and_wait(&pids);
    }
}

/// How many nodes one says are alive.
fn alive(host: &Host) -> usize {
    let run = host.run(&["node", "ls", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_default();
    let nodes = said["nodes"].as_array().cloned().unwrap_or_default();
    nodes.iter().filter(|node| node["alive"] == true).count()
}

/// A token stands alone in its line, and is long.
fn is_token(line: &str) -> bool {
    line.len() > 40 && !line.contains(' ')
}
