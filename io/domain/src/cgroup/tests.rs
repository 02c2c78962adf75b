//! Both versions' paths and files, on directories that only look like cgroups.

use super::*;

const V1: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
const V2: &str = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

fn fake(mountinfo: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroups) {
    let dir = tempfile::tempdir().expect("temporary directory");
    for (file, text) in files {
        let at = dir.path().join("sys/fs/cgroup").join(file);
        fs::create_dir_all(at.parent().expect("parent")).expect("create");
        fs::write(at, text).expect("write");
    }
    let cgroups = Cgroups::from_mountinfo(mountinfo, dir.path());
    (dir, cgroups)
}

fn text(dir: &tempfile::TempDir, file: &str) -> String {
    fs::read_to_string(dir.path().join("sys/fs/cgroup").join(file)).expect(file)
}

const LIMITS: Limits = Limits { cpu: Some(0.25), memory_bytes: Some(64 << 20), pids: Some(32) };

#[test]
fn version_1_spreads_over_the_hierarchies() {
    let (dir, cgroups) = fake(
        V1,
        &[
            ("unified/cgroup.controllers", "hugetlb\n"),
            ("unified/t/d/cgroup.procs", ""),
            ("cpu,cpuacct/t/d/cpu.cfs_period_us", ""),
            ("cpu,cpuacct/t/d/cpu.cfs_quota_us", ""),
            ("cpu,cpuacct/t/d/cgroup.procs", ""),
            ("memory/t/d/memory.limit_in_bytes", ""),
            ("memory/t/d/memory.memsw.limit_in_bytes", ""),
            ("memory/t/d/cgroup.procs", ""),
            ("pids/t/d/pids.max", ""),
            ("pids/t/d/cgroup.procs", ""),
            ("systemd/cgroup.procs", ""),
        ],
    );
    assert!(cgroups.is_mixed(), "version 2 has hugetlb");
    cgroups.create("t/d").expect("create");
    cgroups.limit("t/d", &LIMITS).expect("limit");
    cgroups.join("t/d", 42).expect("join");
    assert_eq!(text(&dir, "cpu,cpuacct/t/d/cpu.cfs_quota_us"), "25000");
    assert_eq!(text(&dir, "memory/t/d/memory.limit_in_bytes"), "67108864");
    assert_eq!(text(&dir, "memory/t/d/memory.memsw.limit_in_bytes"), "67108864");
    assert_eq!(text(&dir, "pids/t/d/pids.max"), "32");
    for hierarchy in ["cpu,cpuacct", "memory", "pids", "unified"] {
        assert_eq!(text(&dir, &format!("{hierarchy}/t/d/cgroup.procs")), "42", "{hierarchy}");
    }
    assert!(!dir.path().join("sys/fs/cgroup/systemd/t").exists(), "systemd's own hierarchy is left alone");
    assert_eq!(cgroups.processes("t/d"), [42]);
    assert_eq!(cgroups.children("t"), ["d"]);
}

#[test]
fn version_2_has_one_tree_and_delegates_its_controllers() {
    let all = "cpuset cpu io memory pids\n";
    assert!(!Cgroups::from_mountinfo(V2, Path::new("/no/such")).is_mixed());
    let (dir, cgroups) = fake(
        V2,
        &[
            ("cgroup.controllers", all),
            ("cgroup.subtree_control", ""),
            ("t/cgroup.controllers", all),
            ("t/cgroup.subtree_control", ""),
            ("t/d/cpu.max", ""),
            ("t/d/memory.max", ""),
            ("t/d/memory.swap.max", ""),
            ("t/d/pids.max", ""),
            ("t/d/cgroup.procs", ""),
        ],
    );
    cgroups.create("t/d").expect("create");
    cgroups.limit("t/d", &LIMITS).expect("limit");
    assert!(text(&dir, "t/cgroup.subtree_control").starts_with('+'));
    assert_eq!(text(&dir, "t/d/cpu.max"), "25000 100000");
    assert_eq!(text(&dir, "t/d/memory.max"), "67108864");
    assert_eq!(text(&dir, "t/d/memory.swap.max"), "0");
    cgroups.limit("t/d", &Limits { memory_bytes: None, ..LIMITS }).expect("lift");
    assert!(text(&dir, "t/d/memory.max").starts_with("max"));
}

/// The story of it: nothing was written to take a binding back, so the kernel was told nothing, and
/// who went over to deadlines was refused them.
#[test]
fn version_2_is_told_that_nobody_is_bound_any_more() {
    let all = "cpuset cpu\n";
    let (dir, cgroups) =
        fake(V2, &[("cgroup.controllers", all), ("cgroup.subtree_control", ""), ("t/cpuset.cpus", "")]);
    cgroups.pin("t", Some(&[1])).expect("bound");
    assert_eq!(cgroups.pinned("t").as_deref(), Some("1"));
    cgroups.pin("t", None).expect("free");
    assert_eq!(cgroups.pinned("t"), None, "{:?}", text(&dir, "t/cpuset.cpus"));
}

#[test]
fn a_limit_without_its_controller_is_an_error_that_names_it() {
    let (_dir, cgroups) = fake(V2, &[("cgroup.controllers", "cpu\n"), ("t/cpu.max", "")]);
    let error = cgroups.limit("t", &LIMITS).expect_err("no memory controller");
    assert!(error.to_string().contains("`memory`"), "{error}");
    cgroups.limit("t", &Limits { memory_bytes: None, pids: None, ..LIMITS }).expect("cpu alone is fine");
}

#[test]
fn usage_of_both_versions() {
    let (_one, cgroups) = fake(
        V1,
        &[
            ("cpu,cpuacct/t/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 77\n"),
            ("cpu,cpuacct/t/cpuacct.usage", "123456\n"),
            ("memory/t/memory.usage_in_bytes", "4096\n"),
            ("memory/t/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/t/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            ("memory/t/payload/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("pids/t/pids.current", "5\n"),
        ],
    );
    let usage = cgroups.usage("t");
    assert_eq!(
        (usage.cpu_ns, usage.throttled_periods, usage.throttled_ns),
        (Some(123_456), Some(3), Some(77))
    );
    assert_eq!((usage.memory.used_bytes, usage.memory.limit_bytes), (Some(4096), None));
    assert_eq!((usage.memory.oom_kills, usage.pids), (Some(3), Some(5)));

    let (_two, cgroups) = fake(
        V2,
        &[
            ("cgroup.controllers", "cpu memory pids\n"),
            ("t/cpu.stat", "usage_usec 12\nnr_throttled 3\nthrottled_usec 7\n"),
            ("t/memory.current", "4096\n"),
            ("t/memory.max", "8192\n"),
            ("t/memory.events", "oom 1\noom_kill 1\n"),
        ],
    );
    let usage = cgroups.usage("t");
    assert_eq!((usage.cpu_ns, usage.throttled_ns, usage.pids), (Some(12_000), Some(7_000), None));
    assert_eq!((usage.memory.limit_bytes, usage.memory.oom_kills), (Some(8192), Some(1)));
    assert_eq!(cgroups.usage("absent"), Usage::default());
}
