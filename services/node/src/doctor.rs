//! A look at the machine, without a daemon: for each use of a node, whether this machine has all
//! that it takes, and how to get the rest.

use crate::{domains, etcd};
use admin::place::Place;
use domain::Layout;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::{fs, io, thread};
use sys::schedule::{Class, set_class};

/// Oldest kernel that passes mapped memory of a service through (`FUSE_PASSTHROUGH`).
const MAPPED_SINCE: (u32, u32) = (6, 9);
/// Oldest kernel that hands the requests of a dead frontend to the next one (`FUSE_NOTIFY_RESEND`).
const RESEND_SINCE: (u32, u32) = (6, 9);
/// A reservation of the deadline class that any machine has room for, tried for a moment: budget
/// and period.
const TRIED_NS: (u64, u64) = (100_000, 100_000_000);

/// How well something works here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It works.
    Works,
    /// It works with less than on other machines.
    Limited,
    /// It does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The use of a node that it belongs to: `containers`, `guests`, `volumes`, `reservations`,
    /// `clusters`.
    pub area: &'static str,
    /// Its name.
    pub name: &'static str,
    /// How well it works.
    pub state: State,
    /// The evidence: a path, a version, an error.
    pub found: String,
    /// The way to get it, or to do without.
    pub advice: Option<String>,
}

impl Finding {
    fn works(area: &'static str, name: &'static str, found: impl Into<String>) -> Self {
        Self { area, name, state: State::Works, found: found.into(), advice: None }
    }

    fn limited(area: &'static str, name: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { area, name, state: State::Limited, found: found.into(), advice: Some(advice.into()) }
    }

    fn missing(area: &'static str, name: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { area, name, state: State::Missing, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Looks at this machine. Nothing is changed; a guest that tries KVM and a thread that tries the
/// deadline class live for a moment. `program` is this very binary.
#[must_use]
pub fn examine(place: &Place, program: PathBuf) -> Vec<Finding> {
    let layout = place.layout(program);
    let mut findings = containers(&layout);
    findings.extend(guests(&layout));
    findings.extend(volumes());
    findings.extend(reservations());
    findings.extend(clusters());
    findings
}

/// Whether a node can run here at all: containers, which everything else stands on.
#[must_use]
pub fn can_run(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.area != CONTAINERS || finding.state != State::Missing)
}

const CONTAINERS: &str = "containers";
const GUESTS: &str = "guests";
const VOLUMES: &str = "volumes";
const RESERVATIONS: &str = "reservations";
const CLUSTERS: &str = "clusters";

fn containers(layout: &Layout) -> Vec<Finding> {
    let mut findings: Vec<Finding> = domain::check_host(layout)
        .into_iter()
        .map(|lack| {
            Finding::missing(
                CONTAINERS,
                "this machine lacks",
                format!("{} ({})", lack.what, lack.why),
                &lack.how_to_get,
            )
        })
        .collect();
    if findings.is_empty() {
        findings.push(Finding::works(
            CONTAINERS,
            "what every domain needs",
            "root, namespaces, /dev/fuse, control groups, overlay",
        ));
    }
    let runtimes = ["runc", "crun"].map(|name| (name, domain::find_program(name)));
    findings.extend(runtimes.into_iter().filter_map(|(name, path)| {
        path.map(|path| Finding::works(CONTAINERS, name, path.display().to_string()))
    }));
    findings.push(kernel());
    findings
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(str::parse);
    let version = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    };
    if version >= MAPPED_SINCE.max(RESEND_SINCE) {
        return Finding::works(CONTAINERS, "kernel", release);
    }
    Finding::limited(
        CONTAINERS,
        "kernel",
        release,
        "files of services can be mapped, and open files outlive a frontend that is killed, with Linux 6.9 or later",
    )
}

fn guests(layout: &Layout) -> Vec<Finding> {
    let mut findings = Vec::new();
    match domains::qemu() {
        None => findings.push(Finding::missing(
            GUESTS,
            "QEMU",
            "no qemu-system for this processor",
            "apt-get install qemu-system-x86",
        )),
        Some(qemu) => {
            findings.push(Finding::works(GUESTS, "QEMU", qemu.display().to_string()));
            findings.push(match machine::probe_kvm(&layout.program, &qemu) {
                Ok(()) => Finding::works(GUESTS, "KVM", "a guest ran under /dev/kvm"),
                Err(error) => Finding::limited(
                    GUESTS,
                    "KVM",
                    error.to_string(),
                    "guests are emulated, which is several times slower; a machine with virtualization, switched on in its firmware, has /dev/kvm",
                ),
            });
        }
    }
    findings.push(match image::Kernel::auto(&layout.state_dir) {
        Ok(kernel) => Finding::works(
            GUESTS,
            "kernel of guests",
            format!("{} ({})", kernel.version, kernel.image.display()),
        ),
        Err(error) => Finding::missing(
            GUESTS,
            "kernel of guests",
            error.to_string(),
            "`apt-get download` the newest linux-image-cloud-amd64 kernel and `dpkg -x` it into STATE/kernel (docs/virtual-machines.md), or name one in the file",
        ),
    });
    findings.push(program(
        GUESTS,
        "busybox",
        "the programs of a guest that has no disk",
        "apt-get install busybox-static",
    ));
    findings
}

fn volumes() -> Vec<Finding> {
    vec![
        program(VOLUMES, storage::ENGINE, "the engine of volumes", "apt-get install qemu-system-common"),
        program(VOLUMES, storage::IMAGES, "makes images of volumes", "apt-get install qemu-utils"),
    ]
}

fn program(area: &'static str, name: &'static str, why: &str, advice: &str) -> Finding {
    match image::find_program(name) {
        Ok(path) => Finding::works(area, name, path.display().to_string()),
        Err(_) => Finding::missing(area, name, format!("not found: {why}"), advice),
    }
}

fn reservations() -> Vec<Finding> {
    let quota = match domain::Cgroups::discover() {
        Ok(cgroups) if cgroups.offers("cpu") => {
            Finding::works(RESERVATIONS, "quotas of processor time", "the cgroup controller cpu")
        }
        Ok(_) => Finding::missing(
            RESERVATIONS,
            "quotas of processor time",
            "no hierarchy offers the controller cpu",
            "boot without cgroup_disable=cpu, and see that a parent cgroup passes it on",
        ),
        Err(error) => Finding::missing(
            RESERVATIONS,
            "quotas of processor time",
            error.to_string(),
            "mount -t proc proc /proc",
        ),
    };
    vec![quota, deadlines()]
}

/// Whether a thread may have a deadline. It is tried by a thread of its own, which ends with what
/// it got.
fn deadlines() -> Finding {
    const NAME: &str = "deadline class";
    let (runtime_ns, period_ns) = TRIED_NS;
    let class = Class::Deadline { runtime_ns, deadline_ns: period_ns, period_ns };
    let tried = thread::spawn(move || set_class(0, class)).join();
    match tried.unwrap_or_else(|_| Err(io::Error::other("the trial came to nothing"))) {
        Ok(()) => Finding::works(RESERVATIONS, NAME, "SCHED_DEADLINE was granted"),
        Err(error) => Finding::limited(
            RESERVATIONS,
            NAME,
            format!("SCHED_DEADLINE is refused: {error}"),
            "`enforce = \"deadline\"` does not work here; tables and quotas do. It takes root and sched_rt_runtime_us that is not used up",
        ),
    }
}

fn clusters() -> Vec<Finding> {
    let etcd = match etcd::program() {
        Some(path) => Finding::works(CLUSTERS, "etcd", path.display().to_string()),
        None => Finding::missing(CLUSTERS, "etcd", "no etcd on this machine", etcd::PROGRAM_ADVICE),
    };
    let tipc = if Path::new("/proc/sys/net/tipc").exists() {
        Finding::works(CLUSTERS, "TIPC", "loaded")
    } else {
        Finding::limited(
            CLUSTERS,
            "TIPC",
            "not loaded",
            "links go over TCP, QUIC or Ethernet; `modprobe tipc` for `transport = \"tipc\"`",
        )
    };
    vec![etcd, clock(), tipc]
}

/// Whether the clock is kept by somebody: certificates and revocations depend on it.
fn clock() -> Finding {
    const NAME: &str = "clock";
    const ADVICE: &str = "nodes whose clocks are hours apart are refused; run a time service, such as chrony or systemd-timesyncd";
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned());
    if sys::clock::is_synchronized() {
        Finding::works(CLUSTERS, NAME, format!("synchronized (source {source})"))
    } else {
        Finding::limited(CLUSTERS, NAME, format!("no time service has set it (source {source})"), ADVICE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_that_is_no_success_says_what_to_do() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::new(&folder.path().join("run"), &folder.path().join("state")).expect("a place");
        let findings = examine(&place, "/nowhere/tombolo".into());
        for finding in &findings {
            assert_eq!(finding.state == State::Works, finding.advice.is_none(), "{finding:?}");
            assert!(!finding.found.is_empty(), "{finding:?}");
        }
        for area in [CONTAINERS, GUESTS, VOLUMES, RESERVATIONS, CLUSTERS] {
            assert!(findings.iter().any(|finding| finding.area == area), "{area}");
        }
        assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 0, "looking leaves nothing");
    }

    #[test]
    fn a_node_can_run_without_guests_but_not_without_containers() {
        let lack = |area| Finding::missing(area, "x", "y", "z");
        assert!(can_run(&[lack(GUESTS), lack(CLUSTERS), Finding::works(CONTAINERS, "x", "y")]));
        assert!(!can_run(&[lack(CONTAINERS)]));
        assert!(can_run(&[Finding::limited(CONTAINERS, "kernel", "5.15", "upgrade")]));
    }
}
