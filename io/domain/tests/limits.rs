//! Tests that limits hold, and that use is reported.

mod ground;

use domain::{Ending, Kind, Part};
use ground::ground;
use std::process::{Command, Stdio};
use std::time::Duration;

const KINDS: [Kind; 2] = [Kind::Container, Kind::Process];

#[test]
fn more_memory_than_allowed_is_told_as_the_reason() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let eat =
            "exec /usr/bin/python3 -c 'b = bytearray(256 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1'";
        let mut spec = ground.shell("d", eat);
        spec.kind = kind;
        spec.limits.memory_bytes = Some(48 << 20);
        let exit = ground.run(&spec);
        assert_eq!(
            (exit.ending, exit.out_of_memory),
            (Ending::Signal(9), true),
            "{kind:?}: {}",
            ground.output("d")
        );
    }
}

#[test]
fn more_processes_than_allowed_are_refused() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
        let script = "i=0; while [ $i -lt 60 ]; do sleep 100 & i=$((i+1)); done; echo all";
        let mut spec = ground.shell("d", script);
        spec.kind = kind;
        spec.limits.pids = Some(24);
        ground.run(&spec);
        let output = ground.output("d");
        assert!(output.to_lowercase().contains("fork") && !output.contains("all\n"), "{kind:?}: {output}");
    }
}

#[test]
fn processor_time_is_held_back_and_usage_is_told() {
    let Some(ground) = ground() else { return };
    let mut spec = ground.shell("d", "echo up; while :; do :; done");
    spec.limits = domain::Limits { cpu: Some(0.1), memory_bytes: Some(64 << 20), pids: Some(32) };
    let running = domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start");
    ground.wait_for_line("d", "up");
    let usage = || domain::usage(&ground.layout, "dc", "d").expect("usage");
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    while usage().throttled_periods.unwrap_or(0) < 5 {
        assert!(std::time::Instant::now() < deadline, "{:?}", usage());
        // tidy(sleep): the kernel has no event for a throttled period; bounded by the deadline
        std::thread::sleep(Duration::from_millis(50));
    }
    let usage = usage();
    assert!(usage.cpu_ns.expect("cpu") > 0 && usage.throttled_ns.expect("throttled") > 0, "{usage:?}");
    assert!(usage.memory.used_bytes.expect("memory") > 0 && usage.pids.expect("pids") >= 1, "{usage:?}");
    assert_eq!((usage.memory.limit_bytes, usage.memory.oom_kills), (Some(64 << 20), Some(0)));
    running.stop(Some(Duration::ZERO)).expect("stop");
}

#[test]
fn a_frontend_shares_the_limits_and_dies_with_the_sweep() {
    let Some(ground) = ground() else { return };
    let running = domain::create(&ground.layout, &ground.shell("d", "sleep 1000"), &[]).expect("create");
    let running = running.start().expect("start");
    let mut frontend = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("spawn");
    domain::join_cgroup(&ground.layout, "dc", "d", Part::Frontend, frontend.id()).expect("join");
    assert!(domain::pids_of(&ground.layout, "dc", "d").expect("pids").contains(&frontend.id()));
    // The end of the domain's own processes is not the frontend's, which may have to say something
    // yet.
    running.stop(Some(Duration::ZERO)).expect("stop");
    assert!(frontend.try_wait().expect("try_wait").is_none());
    let report = domain::remove(&ground.layout, "dc", "d").expect("remove");
    assert_eq!(report.processes, 1);
    assert!(!frontend.wait().expect("wait").success());
    ground.sweep_and_assert_clean();
}

/// Takes as many inotify instances as there are for it, and says how many.
const WATCH: &str = "exec /usr/bin/python3 -c 'import ctypes, time\nlibc = ctypes.CDLL(None)\nn = 0\nwhile libc.inotify_init() >= 0: n += 1\n\
                     print(\"instances\", n, flush=True)\ntime.sleep(1000)'";

// Root in a container once used all of them up, and the machine's root had none.
#[test]
fn in_a_user_namespace_root_has_a_part_of_what_is_counted_by_user() {
    let Some(ground) = ground() else { return };
    let all = std::fs::read_to_string("/proc/sys/user/max_inotify_instances").expect("the kernel says so");
    let all: u64 = all.trim().parse().expect("a number");
    let mut running = Vec::new();
    for name in ["one", "two"] {
        let mut spec = ground.shell(name, WATCH);
        spec.userns = true;
        running.push(domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start"));
        ground.wait_for_line(name, &format!("instances {}", all / 8));
    }
    rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC)
        .expect("there are some left for others");
    for one in running {
        one.stop(Some(Duration::ZERO)).expect("stop");
    }
}

#[test]
fn a_user_namespace_has_the_machines_numbers_and_is_left_by_nobody() {
    let Some(ground) = ground() else { return };
    let mut spec = ground.shell(
        "d",
        "id -u; cat /proc/self/uid_map; cat /proc/sys/user/max_user_namespaces; unshare -U true 2>/dev/null; echo $?",
    );
    (spec.userns, spec.kind) = (true, Kind::Container);
    ground.run(&spec);
    let output = ground.output("d");
    let words: Vec<&str> = output.split_whitespace().collect();
    assert!(words.starts_with(&["0", "0", "0", "4294967295", "0"]) && words.last() == Some(&"1"), "{output}");
    spec.kind = Kind::Process;
    assert!(spec.check().expect_err("it is one of the machine's users").to_string().contains("userns"));
}
