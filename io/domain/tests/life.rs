//! A domain's life: it starts, prints, ends, and is told of. Containers and processes alike.

mod ground;

use domain::{Adopted, DomainSpec, Ending, Error, Kind, Stream};
use ground::{Ground, ground};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const KINDS: [Kind; 2] = [Kind::Container, Kind::Process];

fn shell(ground: &Ground, kind: Kind, script: &str) -> DomainSpec {
    domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
    DomainSpec { kind, ..ground.shell("d", script) }
}

#[test]
fn exit_codes_and_output_of_both_streams() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let spec = shell(&ground, kind, "echo out; echo err >&2; printf unfinished; exit 7");
        let exit = ground.run(&spec);
        assert_eq!((exit.ending, exit.out_of_memory), (Ending::Code(7), false), "{kind:?}");
        let mut seen: Vec<(Stream, String)> =
            ground.records("d").into_iter().map(|r| (r.stream, r.line)).collect();
        seen.sort_by_key(|(s, _)| *s != Stream::Stdout);
        let wanted = [(Stream::Stdout, "out"), (Stream::Stdout, "unfinished"), (Stream::Stderr, "err")];
        assert_eq!(seen, wanted.map(|(s, l)| (s, l.to_owned())), "{kind:?}");
    }
    ground.sweep_and_assert_clean();
}

#[test]
fn death_by_a_signal_is_told_as_such() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        // Process 1 of a pid namespace is deaf to its own signals, so the shell kills itself from
        // outside, as it were.
        let running = domain::create(&ground.layout, &shell(&ground, kind, "echo up; sleep 1000"), &[]);
        let running = running.expect("create").start().expect("start");
        ground.wait_for_line("d", "up");
        let init = running.init_descriptor().expect("init");
        rustix::process::pidfd_send_signal(init, rustix::process::Signal::KILL).expect("kill");
        let exit = running.wait().expect("wait");
        assert_eq!((exit.ending, exit.shell_code()), (Ending::Signal(9), 137), "{kind:?}");
    }
}

#[test]
fn stop_asks_first_and_kills_everything_in_the_end() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let polite = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 1000 & wait; done";
        let running = domain::create(&ground.layout, &shell(&ground, kind, polite), &[]);
        let running = running.expect("create").start().expect("start");
        ground.wait_for_line("d", "up");
        let exit = running.stop(Some(Duration::from_secs(20))).expect("stop");
        assert_eq!(exit.ending, Ending::Code(3), "{kind:?}");
        assert!(ground.output("d").contains("bye"));

        let deaf = "trap '' TERM; sh -c 'trap \"\" TERM; sleep 1000' & echo up; wait; wait; sleep 1000";
        let running = domain::create(&ground.layout, &shell(&ground, kind, deaf), &[]);
        let running = running.expect("create").start().expect("start");
        ground.wait_for_line("d", "up");
        let exit = running.stop(Some(Duration::from_millis(100))).expect("stop");
        assert_eq!(exit.ending, Ending::Signal(9), "{kind:?}");
        assert!(domain::pids_of(&ground.layout, "dc", "d").expect("pids").is_empty());
    }
}

/// Such a program was once killed after some milliseconds, whatever `stop.timeout` said.
#[test]
fn a_program_that_ignores_the_signal_has_its_time() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let spec = shell(&ground, kind, "trap '' TERM; echo up; sleep 1; exit 5");
        let running = domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start");
        ground.wait_for_line("d", "up");
        let exit = running.stop(Some(Duration::from_secs(20))).expect("stop");
        assert_eq!(exit.ending, Ending::Code(5), "{kind:?}");
    }
}

#[test]
fn nobody_waits_for_who_can_not_hear() {
    let Some(ground) = ground() else { return };
    let spec = shell(&ground, Kind::Container, "echo up; while :; do sleep 1000; done");
    let running = domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start");
    ground.wait_for_line("d", "up");
    let begin = Instant::now();
    let grace = Duration::from_secs(60);
    assert_eq!(running.stop(Some(grace)).expect("stop").ending, Ending::Signal(9));
    assert!(begin.elapsed() < grace / 2, "{:?}", begin.elapsed());
}

#[test]
fn nothing_runs_before_the_go_and_abort_leaves_nothing() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let created = domain::create(&ground.layout, &shell(&ground, kind, "echo ran"), &[]).expect("create");
        assert!(created.init_pid() > 1);
        assert!(!domain::pids_of(&ground.layout, "dc", "d").expect("pids").is_empty());
        created.abort().expect("abort");
        assert_eq!(ground.output("d"), "", "{kind:?}");
        assert!(matches!(domain::adopt(&ground.layout, "dc", "d"), Ok(Adopted::Nothing)));
        // Only the directory with what the daemon put inside is left.
        let left: Vec<_> =
            std::fs::read_dir(ground.layout.domains().join("dc/d")).expect("list").flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[test]
fn what_can_not_be_started_says_why_and_leaves_nothing() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let mut spec = shell(&ground, kind, "");
        spec.command = vec!["/no/such/program".into()];
        let result = domain::create(&ground.layout, &spec, &[]).and_then(domain::Created::start);
        let message = result.expect_err("started").to_string();
        assert!(
            message.contains("/no/such/program") && message.to_lowercase().contains("no such file"),
            "{message}"
        );
        let mut spec = shell(&ground, kind, "true");
        spec.user = Some("nobody-of-that-name".into());
        let message = domain::create(&ground.layout, &spec, &[]).expect_err("created").to_string();
        assert!(message.contains("nobody-of-that-name"), "{message}");
        ground.sweep_and_assert_clean();
    }
}

#[test]
fn a_name_runs_once() {
    let Some(ground) = ground() else { return };
    let running = domain::create(&ground.layout, &ground.shell("d", "sleep 1000"), &[]).expect("create");
    let running = running.start().expect("start");
    let again = domain::create(&ground.layout, &ground.shell("d", "true"), &[]);
    assert!(matches!(again, Err(Error::AlreadyRuns(_))), "{again:?}");
    assert_eq!(running.exit().expect("exit"), None);
    running.stop(Some(Duration::ZERO)).expect("stop");
    // And again, over what the first left.
    assert_eq!(ground.run(&ground.shell("d", "exit 4")).ending, Ending::Code(4));
}

#[test]
fn kept_descriptors_can_be_fetched_by_anybody_who_may() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let keep: Vec<std::fs::File> = (0..20)
            .map(|i| {
                let mut file = tempfile::tempfile().expect("file");
                write!(file, "kept {i}").expect("write");
                file
            })
            .collect();
        let keep: Vec<std::os::fd::OwnedFd> = keep.into_iter().map(Into::into).collect();
        let (first, later) = keep.split_at(19);
        let created = domain::create(&ground.layout, &shell(&ground, kind, "echo up; sleep 1000"), first)
            .expect("create");
        created.keep(later).expect("keep");
        let running = created.start().expect("start");
        drop(keep);
        for i in [0, 18, 19] {
            let mut file = std::fs::File::from(running.kept(i).expect("fetch"));
            let mut text = String::new();
            file.rewind().expect("rewind");
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, format!("kept {i}"));
        }
        assert!(running.kept(20).is_err());
        // None of them leaked into the domain.
        ground.wait_for_line("d", "up");
        let open = std::fs::read_dir(format!("/proc/{}/fd", running.init_pid())).expect("fds").count();
        assert!(open <= 6, "{open} descriptors in the domain");
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

#[test]
fn the_end_is_an_event() {
    let Some(ground) = ground() else { return };
    let running = domain::create(&ground.layout, &ground.shell("d", "read never < /dev/zero; exit 5"), &[]);
    let running = running.expect("create").start().expect("start");
    assert!(running.wait_descriptor().as_raw_fd() >= 0);
    assert_eq!(running.exit().expect("exit"), None);
    let init = running.init_descriptor().expect("init");
    rustix::process::pidfd_send_signal(init, rustix::process::Signal::KILL).expect("kill");
    let descriptor = running.wait_descriptor();
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(descriptor, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1));
    assert!(running.exit().expect("exit").is_some());
}

#[test]
fn the_monitor_is_small() {
    let Some(ground) = ground() else { return };
    let running =
        domain::create(&ground.layout, &ground.shell("d", "echo up; sleep 1000"), &[]).expect("create");
    let running = running.start().expect("start");
    ground.wait_for_line("d", "up");
    let status = domain::status(&ground.layout, "dc", "d").expect("status").expect("a status");
    let rollup =
        std::fs::read_to_string(format!("/proc/{}/smaps_rollup", status.monitor.pid)).expect("smaps");
    // Not "Private": pages of a binary that was just built are dirty in the page cache, and no cost
    // of the monitor's.
    let own =
        rollup.lines().find_map(|l| l.strip_prefix("Anonymous:")).and_then(|l| l.trim().strip_suffix(" kB"));
    let own: u64 = own.and_then(|n| n.parse().ok()).expect("a number");
    println!("the monitor has {own} KiB of its own");
    assert!(own < 1024, "{rollup}");
    running.stop(Some(Duration::ZERO)).expect("stop");
}

#[test]
fn a_flood_of_output_is_kept_within_bounds() {
    let Some(ground) = ground() else { return };
    let mut spec = ground
        .shell("d", "i=0; while [ $i -lt 20000 ]; do echo line $i of many more to come; i=$((i+1)); done");
    spec.log = domain::LogLimits { max_bytes: 64 * 1024, files: 2 };
    let begin = Instant::now();
    assert_eq!(ground.run(&spec).ending, Ending::Code(0));
    println!("20000 lines took {:?}", begin.elapsed());
    let logs = ground.layout.state_dir.join("logs/dc");
    let bytes: u64 =
        std::fs::read_dir(logs).expect("logs").flatten().map(|e| e.metadata().expect("size").len()).sum();
    assert!(bytes <= 128 * 1024, "{bytes}");
    assert_eq!(
        ground.records("d").last().map(|r| r.line.clone()).as_deref(),
        Some("line 19999 of many more to come")
    );
}

/// How long a node holds its claims in this test: far longer than a busy machine keeps a thread
/// from running.
const HOLD: std::time::Duration = std::time::Duration::from_secs(3);

// A daemon that was killed can't end anything; its domains that start elsewhere meanwhile must have
// ended all the same.
#[test]
fn a_held_domain_goes_on_as_long_as_the_hold_is_renewed_and_ends_with_it() {
    let Some(ground) = ground() else { return };
    let run_dir = ground.layout.run_dir.clone();
    std::fs::create_dir_all(&run_dir).expect("the run directory");
    let renew = move || {
        let until = domain::hold::now_ns() + u64::try_from(HOLD.as_nanos()).expect("some seconds");
        domain::hold::write(&run_dir, until).expect("renew");
        until
    };
    renew();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let renewer = std::thread::spawn({
        let stop = std::sync::Arc::clone(&stop);
        move || loop {
            let until = renew();
            if stop.load(std::sync::atomic::Ordering::Acquire) {
                return until;
            }
            std::thread::park_timeout(HOLD / 30);
        }
    });
    let running = KINDS.map(|kind| {
        let name = format!("{kind:?}").to_lowercase();
        let spec = DomainSpec { kind, held: true, ..ground.shell(&name, "echo up; exec sleep 1000") };
        domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start")
    });
    // Past what the first of them was told at its start.
    let begun = std::time::Instant::now();
    while begun.elapsed() < HOLD + HOLD / 3 {
        std::thread::park_timeout(HOLD / 10);
    }
    for running in &running {
        assert_eq!(running.exit().expect("look"), None, "it ended although the hold was renewed");
    }
    stop.store(true, std::sync::atomic::Ordering::Release);
    let until = renewer.join().expect("the renewer");
    for running in &running {
        assert_eq!(running.wait().expect("wait").ending, Ending::Signal(9), "{}", running.id());
        assert!(domain::hold::now_ns() >= until, "it ended while the hold lasted");
        let said = ground.records(&running.id().name);
        assert!(said.iter().any(|record| record.line.contains("cut off")), "{said:?}");
    }
}
