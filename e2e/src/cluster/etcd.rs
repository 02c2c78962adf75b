//! Members of an etcd on the nodes of a bed: real ones, which die with their node.

use super::{Bed, Host, wait};
use crate::node;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Where clients reach a member.
const CLIENT_PORT: u16 = 2379;
/// Where members reach each other.
const PEER_PORT: u16 = 2380;
/// How often a leader shows itself, and how long it may be silent before another is elected. Short,
/// so that a lease may be, too: etcd grants none under one and a half elections. They are those of
/// `docs/clusters.md`.
const BEAT_MS: &str = "50";
const ELECTION_MS: &str = "300";
/// How long members may take until they answer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// Where an etcd is: as `make deps` unpacked it, or installed. `None`: nowhere.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let unpacked = node::target().join("debian/etcd/usr/bin/etcd");
    let installed = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&installed).map(|folder| folder.join("etcd")).collect::<Vec<_>>();
    std::iter::once(unpacked).chain(installed).find(|path| path.is_file())
}

impl Bed {
    /// As [`Bed::start`], with a member of one etcd on each of the first `members` nodes.
    ///
    /// # Panics
    /// Where members do not come to answer.
    #[must_use]
    pub fn with_etcd(count: usize, members: usize) -> Option<Self> {
        Self::with_etcd_at_times(&vec![Duration::ZERO; count], members)
    }

    /// As [`Bed::with_etcd`], of nodes as for [`Bed::start_at_times`].
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn with_etcd_at_times(uptimes: &[Duration], members: usize) -> Option<Self> {
        if program().is_none() {
            println!("skipped: needs etcd; run `make deps`");
            return None;
        }
        let bed = Self::start_at_times(uptimes)?;
        for host in bed.hosts.iter().take(members) {
            bed.start_etcd(host, members);
        }
        bed.until("etcd answers", TIMEOUT, || answers(bed.host(0)));
        Some(bed)
    }

    /// The endpoints of the first `members` nodes' members, as `tombolo node init` wants them.
    #[must_use]
    pub fn etcd_endpoints(&self, members: usize) -> Vec<String> {
        self.hosts.iter().take(members).map(|host| url(host, CLIENT_PORT)).collect()
    }

    /// Starts a node's member, anew where it ran before.
    ///
    /// # Panics
    /// Where it can't be run.
    pub fn start_etcd(&self, host: &Host, members: usize) {
        let all = self.hosts.iter().take(members);
        let all: Vec<String> = all.map(|host| format!("{}={}", host.name(), url(host, PEER_PORT))).collect();
        let folder = host.folder().join("etcd");
        let log = std::fs::File::options().create(true).append(true).open(host.folder().join("etcd.log"));
        let log = log.expect("the log of etcd");
        let mut etcd = host.inside(&program().expect("an etcd"));
        // What the kernel has outlives a process that is killed, and disks of busy machines take
        // longer than a lease.
        etcd.args(["--name", host.name(), "--unsafe-no-fsync", "--data-dir"]).arg(folder);
        for (word, port) in [("client", CLIENT_PORT), ("peer", PEER_PORT)] {
            etcd.args([format!("--listen-{word}-urls"), url(host, port)]);
        }
        etcd.args(["--advertise-client-urls", &url(host, CLIENT_PORT)]);
        etcd.args(["--initial-advertise-peer-urls", &url(host, PEER_PORT)]);
        etcd.args(["--initial-cluster", &all.join(",")]);
        etcd.args(["--heartbeat-interval", BEAT_MS, "--election-timeout", ELECTION_MS]);
        let errors = log.try_clone().expect("a descriptor");
        host.keep(etcd.stdin(Stdio::null()).stdout(log).stderr(errors).spawn().expect("etcd starts"));
    }
}

fn url(host: &Host, port: u16) -> String {
    format!("http://{}:{port}", host.port().address)
}

/// Whether the members have a leader, by what one of them says.
fn answers(host: &Host) -> bool {
    let address = format!("{}/health", url(host, CLIENT_PORT));
    let mut curl: Command = host.inside(std::path::Path::new("curl"));
    let output = curl.args(["--silent", "--max-time", "1", &address]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("\"true\""))
}

/// Waits until the members that are left have a leader.
///
/// # Panics
/// Where they do not come to have one.
pub fn await_leader(host: &Host) {
    wait::until("etcd has a leader", || answers(host));
}

impl Bed {
    /// The node among the first `members` that has etcd's leader.
    ///
    /// # Panics
    /// Where none comes to be.
    #[must_use]
    pub fn etcd_leader(&self, members: usize) -> usize {
        let mut leader = None;
        self.until("etcd says who leads", TIMEOUT, || {
            leader = self.hosts.iter().take(members).position(|host| host.is_up() && leads(host));
            leader.is_some()
        });
        leader.unwrap_or_default()
    }
}

/// Whether a node's member is the leader, by what it says of itself.
fn leads(host: &Host) -> bool {
    let address = format!("{}/v3/maintenance/status", url(host, CLIENT_PORT));
    let mut curl: Command = host.inside(std::path::Path::new("curl"));
    let output = curl.args(["--silent", "--max-time", "1", "--data", "{}", &address]).output();
    let Ok(output) = output else { return false };
    let Ok(said) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else { return false };
    let (me, leader) = (&said["header"]["member_id"], &said["leader"]);
    me.is_string() && me == leader
}
