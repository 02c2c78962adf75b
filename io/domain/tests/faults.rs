//! Deaths at any moment: of the daemon, of the monitor, of everything; and what is there
//! afterwards.

mod ground;

use domain::{Adopted, DomainSpec, Ending, Kind, Layout};
use ground::{Ground, ground};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const KINDS: [Kind; 2] = [Kind::Container, Kind::Process];
/// Set in a copy of this test program that plays the daemon: the layout and the specification.
const DAEMON: &str = "TOMBOLO_TEST_DAEMON";

/// Runs as a daemon until it is killed.
#[test]
#[ignore = "the other process of the tests below"]
fn daemon() {
    let text = std::env::var(DAEMON).expect("what to do");
    let (layout, spec, until): (Layout, DomainSpec, String) =
        serde_json::from_str(&text).expect("what to do");
    let created = domain::create(&layout, &spec, &[]).expect("create");
    if until == "started" {
        let running = created.start().expect("start");
        println!("reached {}", running.init_pid());
        std::thread::park();
    } else {
        println!("reached {}", created.init_pid());
        std::thread::park();
    }
}

/// Runs a daemon to some point and kills it there.
fn daemon_killed_when(ground: &Ground, spec: &DomainSpec, until: &str) {
    let what = serde_json::to_string(&(&ground.layout, spec, until)).expect("encode");
    let mut daemon = Command::new(std::env::current_exe().expect("exe"))
        .args(["--exact", "daemon", "--nocapture", "--ignored"])
        .env(DAEMON, what)
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawn");
    let lines = BufReader::new(daemon.stdout.take().expect("stdout")).lines();
    let reached = lines.map_while(Result::ok).any(|l| l.contains("reached "));
    assert!(reached, "the daemon failed");
    daemon.kill().expect("kill");
    daemon.wait().expect("wait");
}

fn shell(ground: &Ground, kind: Kind, script: &str) -> DomainSpec {
    domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
    DomainSpec { kind, ..ground.shell("d", script) }
}

#[test]
fn a_domain_outlives_its_daemon_and_the_next_adopts_it() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let script = "trap 'exit 6' TERM; echo up; while :; do sleep 1000 & wait; done";
        daemon_killed_when(&ground, &shell(&ground, kind, script), "started");
        ground.wait_for_line("d", "up");
        let Adopted::Running(running) = domain::adopt(&ground.layout, "dc", "d").expect("adopt") else {
            panic!("{kind:?}: it does not run");
        };
        assert_eq!(running.exit().expect("exit"), None);
        assert_eq!(running.spec().kind, kind);
        // A sweep that is told to keep it does.
        let kept = domain::sweep(&ground.layout, &[running.id().clone()]).expect("sweep");
        assert!(kept.is_empty(), "{kept:?}");
        let exit = running.stop(Some(Duration::from_secs(20))).expect("stop");
        assert_eq!(exit.ending, Ending::Code(6), "{kind:?}");
    }
}

#[test]
fn what_ended_while_nobody_looked_is_told() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let gate = ground.dir.path().join(format!("gate-{kind:?}"));
        std::fs::create_dir(&gate).expect("create");
        let mut spec = shell(
            &ground,
            kind,
            &format!("echo up; while ! [ -e {0}/go ]; do sleep 0.05; done; exit 8", gate.display()),
        );
        spec.mounts = vec![domain::Mount { source: gate.clone(), target: gate.clone(), read_only: true }];
        daemon_killed_when(&ground, &spec, "started");
        ground.wait_for_line("d", "up");
        let Adopted::Running(running) = domain::adopt(&ground.layout, "dc", "d").expect("adopt") else {
            panic!("{kind:?}: it does not run");
        };
        std::fs::write(gate.join("go"), "").expect("go");
        assert_eq!(running.wait().expect("wait").ending, Ending::Code(8));
        let Adopted::Ended(exit) = domain::adopt(&ground.layout, "dc", "d").expect("adopt") else {
            panic!("{kind:?}: it is not known to have ended");
        };
        assert_eq!(exit.ending, Ending::Code(8));
    }
}

#[test]
fn a_daemon_that_dies_before_the_go_leaves_nothing() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        daemon_killed_when(&ground, &shell(&ground, kind, "echo ran"), "created");
        assert!(
            matches!(domain::adopt(&ground.layout, "dc", "d").expect("adopt"), Adopted::Nothing),
            "{kind:?}"
        );
        assert!(domain::pids_of(&ground.layout, "dc", "d").expect("pids").is_empty());
        assert!(!ground.output("d").contains("ran"));
        ground.sweep_and_assert_clean();
    }
}

#[test]
fn without_its_monitor_a_domain_is_ended() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let running =
            domain::create(&ground.layout, &shell(&ground, kind, "sleep 1000 & echo up; sleep 1000"), &[]);
        let running = running.expect("create").start().expect("start");
        ground.wait_for_line("d", "up");
        rustix::process::pidfd_send_signal(running.monitor_descriptor(), Signal::KILL).expect("kill");
        assert_eq!(running.wait().expect("wait").ending, Ending::Lost, "{kind:?}");
        assert!(domain::pids_of(&ground.layout, "dc", "d").expect("pids").is_empty());
        let Adopted::Ended(exit) = domain::adopt(&ground.layout, "dc", "d").expect("adopt") else {
            panic!("{kind:?}: it is not known to have ended");
        };
        assert_eq!(exit.ending, Ending::Lost);
        // And its name is free again.
        assert_eq!(ground.run(&shell(&ground, kind, "exit 2")).ending, Ending::Code(2));
    }
}

#[test]
fn a_stranger_with_a_reused_number_is_neither_adopted_nor_killed() {
    let Some(ground) = ground() else { return };
    let running = domain::create(&ground.layout, &ground.shell("d", "sleep 1000"), &[]).expect("create");
    let running = running.start().expect("start");
    rustix::process::pidfd_send_signal(running.monitor_descriptor(), Signal::KILL).expect("kill");
    let mut stranger = Command::new("sleep").arg("1000").spawn().expect("spawn");
    let path = ground.layout.domains().join("dc/d/status.json");
    let mut status: domain::Status =
        serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("status");
    (status.monitor.pid, status.init.pid) = (stranger.id(), stranger.id());
    std::fs::write(&path, serde_json::to_vec(&status).expect("encode")).expect("write");
    let adopted = domain::adopt(&ground.layout, "dc", "d").expect("adopt");
    assert!(matches!(&adopted, Adopted::Ended(exit) if exit.ending == Ending::Lost), "{adopted:?}");
    ground.sweep_and_assert_clean();
    assert!(stranger.try_wait().expect("try_wait").is_none(), "the stranger was killed");
    stranger.kill().expect("kill");
    stranger.wait().expect("wait");
}

/// Numbers from a seed, so that a failure can be repeated (xorshift64).
struct Seed(u64);

impl Seed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn killed_at_random_moments_everything_is_swept() {
    let Some(ground) = ground() else { return };
    let seed = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x746f_6d62_6f6c_6f21);
    println!("SEED={seed}");
    let mut seed = Seed(seed);
    for round in 0..24 {
        let kind = KINDS[(round % 2) as usize];
        let spec = shell(&ground, kind, "sleep 1000 & while :; do echo x; done");
        let what = serde_json::to_string(&(&ground.layout, &spec, "started")).expect("encode");
        let mut daemon = Command::new(std::env::current_exe().expect("exe"))
            .args(["--exact", "daemon", "--nocapture", "--ignored"])
            .env(DAEMON, what)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("spawn");
        // tidy(sleep): a random moment is what this test is about: anywhere from before the monitor
        // exists to after the start.
        std::thread::sleep(Duration::from_micros(seed.below(250_000)));
        let monitors = domain::Cgroups::discover().expect("cgroups");
        let monitor = monitors.processes(&format!("{}/dc/d+monitor", ground.layout.cgroup_name));
        let monitor_first = seed.below(2) == 0;
        if !monitor_first {
            daemon.kill().expect("kill");
        }
        for pid in monitor {
            let pid = Pid::from_raw(i32::try_from(pid).expect("pid")).expect("pid");
            // Some of them have ended by themselves meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
        if monitor_first {
            daemon.kill().expect("kill");
        }
        daemon.wait().expect("wait");
        let begin = Instant::now();
        let report = ground.sweep_and_assert_clean();
        println!("round {round} {kind:?}: swept in {:?}: {report:?}", begin.elapsed());
    }
}

#[test]
fn sweeping_leaves_other_nodes_alone() {
    let (Some(one), Some(other)) = (ground(), ground()) else { return };
    let start = |g: &Ground| {
        domain::create(&g.layout, &g.shell("d", "sleep 1000"), &[]).expect("create").start().expect("start")
    };
    let (mine, theirs) = (start(&one), start(&other));
    let report = one.sweep_and_assert_clean();
    assert!(report.processes >= 2, "{report:?}");
    assert_eq!(mine.wait().expect("wait").ending, Ending::Lost);
    assert_eq!(theirs.exit().expect("exit"), None);
    theirs.stop(Some(Duration::ZERO)).expect("stop");
}

/// A fresh machine's run once stopped here: who is killed between making the folder of a
/// distributed container and that of its first domain leaves an empty folder, which belongs to no
/// domain that could be cleared.
#[test]
fn an_empty_folder_of_a_distributed_container_is_swept() {
    let Some(ground) = ground() else { return };
    std::fs::create_dir_all(ground.layout.domains().join("dc")).expect("a folder");
    ground.sweep_and_assert_clean();
}
