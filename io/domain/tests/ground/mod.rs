//! The ground of each test: a node of its own (run and state directories, cgroup name) that leaves
//! nothing behind, which it proves.
#![allow(dead_code, reason = "each test binary uses what it needs")]

use domain::{DomainSpec, Exit, Kind, Layout, LogQuery, Record, Stream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A node that is cleared away, and shown to be, when the test is over.
pub struct Ground {
    pub layout: Layout,
    pub dir: tempfile::TempDir,
}

/// `None`, with the reason on the standard output, where this machine lacks what domains need.
pub fn ground() -> Option<Ground> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let layout = Layout {
        run_dir: dir.path().join("run"),
        state_dir: dir.path().join("state"),
        cgroup_name: format!("tombolo-test-{}-{number}", std::process::id()),
        program: PathBuf::from(env!("CARGO_BIN_EXE_domain-roles")),
    };
    let missing = domain::check_host(&layout);
    if let Some(missing) = missing.iter().find(|m| m.what != "/dev/fuse") {
        println!("skipped: {} is missing ({}); {}", missing.what, missing.why, missing.how_to_get);
        return None;
    }
    Some(Ground { layout, dir })
}

impl Ground {
    pub fn shell(&self, name: &str, script: &str) -> DomainSpec {
        DomainSpec::new("dc", name, Kind::Container, &["/bin/sh", "-c", script])
    }

    /// Runs it to its end.
    pub fn run(&self, spec: &DomainSpec) -> Exit {
        let created = domain::create(&self.layout, spec, &[]).expect("create");
        created.start().expect("start").wait().expect("wait")
    }

    pub fn records(&self, name: &str) -> Vec<Record> {
        let mut reader = domain::logs(&self.layout, "dc", name, &LogQuery::default()).expect("logs");
        std::iter::from_fn(|| reader.next_record().expect("read")).collect()
    }

    /// Returns the domain's output, without the monitor's remarks.
    pub fn output(&self, name: &str) -> String {
        let records = self.records(name).into_iter();
        records.filter(|r| r.stream != Stream::Monitor).map(|r| r.line + "\n").collect()
    }

    /// Follows the log until a line says so.
    pub fn wait_for_line(&self, name: &str, wanted: &str) {
        let query = LogQuery { follow: true, ..LogQuery::default() };
        let mut reader = domain::logs(&self.layout, "dc", name, &query).expect("logs");
        loop {
            while let Some(record) = reader.next_record().expect("read") {
                if record.line.contains(wanted) {
                    return;
                }
            }
            let more = reader.wait(std::time::Duration::from_secs(20)).expect("wait");
            assert!(more, "{name} never said {wanted:?}; it said {:?}", self.output(name));
        }
    }

    /// Checks that no process, mount, cgroup, container or file of a domain is left.
    pub fn assert_clean(&self) {
        let cgroups = domain::Cgroups::discover().expect("cgroups");
        assert_eq!(cgroups.processes(&self.layout.cgroup_name), [0; 0], "processes are left");
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten() {
            let ours = hierarchy.path().join(&self.layout.cgroup_name);
            assert!(!ours.exists(), "{} is left", ours.display());
        }
        let ours = Path::new("/sys/fs/cgroup").join(&self.layout.cgroup_name);
        assert!(!ours.exists(), "{} is left", ours.display());
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let run_dir = self.layout.run_dir.to_str().expect("text");
        assert!(!mounts.contains(run_dir), "a mount is left:\n{mounts}");
        for dir in [self.layout.runtime_root(), self.layout.domains()] {
            let left: Vec<_> =
                std::fs::read_dir(&dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
            assert!(left.is_empty(), "{left:?} is left");
        }
    }

    /// Sweeps, shows that it swept everything and that sweeping again finds nothing.
    pub fn sweep_and_assert_clean(&self) -> domain::Report {
        let report = domain::sweep(&self.layout, &[]).expect("sweep");
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        self.assert_clean();
        assert!(domain::sweep(&self.layout, &[]).expect("sweep again").is_empty());
        report
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // Also after a failed assertion nothing of ours may stay on the machine.
        let swept = domain::sweep(&self.layout, &[]);
        if !std::thread::panicking() {
            assert!(swept.expect("sweep").failures.is_empty());
            self.assert_clean();
        }
    }
}
