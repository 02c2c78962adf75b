//! Another command in a running domain behaves as with `docker exec`.

mod ground;

use domain::{DomainSpec, ExecOptions, Kind, Limits, Network, Running};
use ground::{Ground, ground};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use std::io::{Read, Write};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

const KINDS: [Kind; 2] = [Kind::Container, Kind::Process];

fn up(ground: &Ground, kind: Kind) -> Running {
    domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
    let mut spec = DomainSpec { kind, ..ground.shell("d", "echo up; sleep 1000") };
    spec.environment = vec![("INHERITED".into(), "yes".into())];
    spec.capabilities = vec!["CAP_CHOWN".into()];
    let running = domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start");
    ground.wait_for_line("d", "up");
    running
}

fn options(command: &[&str]) -> ExecOptions {
    ExecOptions { command: command.iter().map(|&w| w.to_owned()).collect(), ..ExecOptions::default() }
}

fn exec(ground: &Ground, options: &ExecOptions) -> Output {
    domain::exec_command(&ground.layout, "dc", "d", options).expect("exec").output().expect("run")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn exit_codes_pass_through() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let running = up(&ground, kind);
        let code = |command: &[&str]| {
            let output = exec(&ground, &options(command));
            (output.status.code(), text(&output.stderr))
        };
        for wanted in [0, 1, 42, 125, 126, 127, 137, 255] {
            let (got, stderr) = code(&["sh", "-c", &format!("exit {wanted}")]);
            assert_eq!(got, Some(wanted), "{kind:?}: {stderr}");
        }
        let (got, stderr) = code(&["no-such-program"]);
        assert!(got == Some(127) && stderr.contains("no-such-program"), "{kind:?}: {got:?} {stderr}");
        let (got, stderr) = code(&["/etc/passwd"]);
        assert!(
            got == Some(126) && stderr.to_lowercase().contains("permission denied"),
            "{kind:?}: {got:?} {stderr}"
        );
        assert_eq!(code(&["sh", "-c", "kill -KILL $$"]).0, Some(137), "{kind:?}");
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

#[test]
fn it_is_inside_with_the_domains_rights_and_settings() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let running = up(&ground, kind);
        let mut options = options(&[
            "sh",
            "-c",
            "id -u; pwd; echo $INHERITED $EXTRA; readlink /proc/self/ns/mnt; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; cat /proc/self/cgroup",
        ]);
        options.environment = vec![("EXTRA".into(), "more".into())];
        options.workdir = Some("/tmp".into());
        let output = text(&exec(&ground, &options).stdout);
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines[..3], ["0", "/tmp", "yes more"], "{kind:?}");
        let theirs = std::fs::read_link(format!("/proc/{}/ns/mnt", running.init_pid())).expect("ns");
        assert_eq!(lines[3], theirs.to_str().expect("text"));
        assert!(
            output.contains("CapEff:\t0000000000000001") && output.contains("NoNewPrivs:\t1"),
            "{kind:?}: {output}"
        );
        if kind == Kind::Container {
            assert!(output.contains("Seccomp:\t2"), "{output}");
        } else {
            assert!(output.contains("/dc/d/payload"), "{output}");
        }
        options.user = Some("nobody".into());
        let output = text(&exec(&ground, &options).stdout);
        assert!(output.starts_with("65534\n"), "{kind:?}: {output}");
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

/// With the host's network a command ran in the network namespace of whoever called it: traffic
/// went out by another network than the domain's.
#[test]
fn a_command_has_the_network_of_its_domain_wherever_it_is_called_from() {
    let Some(ground) = ground() else { return };
    for (kind, network) in
        [(Kind::Container, Network::Host), (Kind::Container, Network::None), (Kind::Process, Network::Host)]
    {
        let spec = DomainSpec { kind, network, ..ground.shell("d", "echo up; sleep 1000") };
        domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
        let running = domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start");
        ground.wait_for_line("d", "up");
        let asked = options(&["readlink", "/proc/self/ns/net"]);
        let command = domain::exec_command(&ground.layout, "dc", "d", &asked).expect("exec");
        let mut elsewhere = std::process::Command::new("unshare");
        elsewhere.arg("--net").arg(command.get_program()).args(command.get_args());
        let output = elsewhere.output().expect("unshare(1) runs");
        let theirs = std::fs::read_link(format!("/proc/{}/ns/net", running.init_pid())).expect("ns");
        assert_eq!(text(&output.stdout).trim(), theirs.to_str().expect("text"), "{kind:?}: {output:?}");
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

#[test]
fn standard_input_only_when_asked_for() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let running = up(&ground, kind);
        let mut options = options(&["cat"]);
        assert_eq!(exec(&ground, &options).stdout, b"", "{kind:?}");
        options.interactive = true;
        let mut command = domain::exec_command(&ground.layout, "dc", "d", &options).expect("exec");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("spawn");
        let mut input = child.stdin.take().expect("stdin");
        let text = "a line\n".repeat(50_000);
        std::thread::scope(|scope| {
            scope.spawn(move || input.write_all(text.as_bytes()).expect("write"));
            let mut output = Vec::new();
            child.stdout.take().expect("stdout").read_to_end(&mut output).expect("read");
            assert_eq!(output.len(), 350_000, "{kind:?}");
        });
        assert!(child.wait().expect("wait").success());
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

#[test]
fn a_terminal_of_its_own() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let running = up(&ground, kind);
        let mut options = options(&[
            "sh",
            "-c",
            // The runtime gives the size after the start, with a signal; it must have come before
            // the line is read.
            "tty; until stty size | grep '33 77'; do sleep 0.02; done; read line; echo \"got $line\"; exit 9",
        ]);
        (options.tty, options.interactive) = (true, true);
        let refused = exec_without_terminal(&ground, &options);
        assert!(refused.contains("not a terminal"), "{refused}");

        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("openpt");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("unlock");
        let size = rustix::termios::Winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&master, size).expect("size");
        let slave =
            ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
                .expect("slave");
        let before = rustix::termios::tcgetattr(&slave).expect("settings");
        let mut command = domain::exec_command(&ground.layout, "dc", "d", &options).expect("exec");
        command.stdin(slave.try_clone().expect("dup")).stdout(slave.try_clone().expect("dup"));
        let mut child = command.stderr(slave.try_clone().expect("dup")).spawn().expect("spawn");
        drop(command);
        let mut master = std::fs::File::from(master);
        let mut seen = String::new();
        read_until(&mut master, &mut seen, "33 77");
        assert!(seen.contains("/dev/pts/"), "{kind:?}: {seen:?}");
        master.write_all(b"hello\r").expect("write");
        read_until(&mut master, &mut seen, "got hello");
        assert_eq!(child.wait().expect("wait").code(), Some(9), "{kind:?}: {seen:?}");
        let after = rustix::termios::tcgetattr(&slave).expect("settings");
        assert_eq!(before.local_modes, after.local_modes, "the caller's terminal was left raw");
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

fn exec_without_terminal(ground: &Ground, options: &ExecOptions) -> String {
    let mut command = domain::exec_command(&ground.layout, "dc", "d", options).expect("exec");
    let output = command.stdin(Stdio::null()).output().expect("run");
    assert_eq!(output.status.code(), Some(125));
    text(&output.stderr)
}

fn read_until(master: &mut std::fs::File, seen: &mut String, wanted: &str) {
    let mut buffer = [0; 1024];
    while !seen.contains(wanted) {
        let mut fds = [rustix::event::PollFd::new(&*master, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&timeout)), Ok(1), "never saw {wanted:?} in {seen:?}");
        let read = master.read(&mut buffer).expect("read");
        seen.push_str(&text(&buffer[..read]));
    }
}

#[test]
fn signals_reach_the_command() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        let running = up(&ground, kind);
        let options =
            options(&["sh", "-c", "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.1; done"]);
        let mut command = domain::exec_command(&ground.layout, "dc", "d", &options).expect("exec");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("spawn");
        let mut output = child.stdout.take().expect("stdout");
        let mut first = [0; 6];
        output.read_exact(&mut first).expect("read");
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).expect("pid")).expect("pid");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("kill");
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("read");
        assert_eq!((rest.as_str(), child.wait().expect("wait").code()), ("asked\n", Some(5)), "{kind:?}");
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

/// Uses up what the domain may have of memory and processes, and begins anew whenever the kernel
/// takes some of it back.
const FILL: &str = "
import os, signal
print('up', flush=True)
while True:
    try:
        if os.fork() == 0:
            # Not the domain's first process is to be ended for it.
            open('/proc/self/oom_score_adj', 'w').write('1000')
            held = []
            while True:
                held.append(bytearray(os.urandom(1 << 16)))
    except OSError:
        pass
";

// A command in such a domain once stood still for ever, and after its caller's end the runtime did.
#[test]
fn in_a_domain_without_room_a_command_ends_by_itself_and_leaves_nothing() {
    let Some(ground) = ground() else { return };
    for kind in KINDS {
        domain::remove_logs(&ground.layout, "dc", "d").expect("remove logs");
        let mut spec = DomainSpec::new("dc", "d", kind, &["python3", "-c", FILL]);
        spec.limits = Limits { memory_bytes: Some(64 << 20), pids: Some(50), cpu: Some(0.5) };
        let running = domain::create(&ground.layout, &spec, &[]).expect("create").start().expect("start");
        ground.wait_for_line("d", "up");
        let limit = Duration::from_secs(1);
        let mut refused = 0;
        for _ in 0..10 {
            let begun = Instant::now();
            let output = exec(&ground, &ExecOptions { limit: Some(limit), ..options(&["/bin/true"]) });
            let took = begun.elapsed();
            let (code, stderr) = (output.status.code(), text(&output.stderr));
            assert!(took < Duration::from_secs(15), "held up for {took:?}: {code:?} {stderr}");
            if stderr.contains("leaves no room for another process (memory ") {
                assert_eq!(code, Some(125), "{stderr}");
                refused += 1;
            }
        }
        println!("{kind:?}: {refused} of 10 commands found no room");
        assert_eq!(left(&ground), [""; 0], "of the runtime, or of our own helper, is left");
        running.stop(Some(Duration::ZERO)).expect("stop");
    }
}

/// The command lines of the runtime, and of helpers that enter domains, that are there.
fn left(ground: &Ground) -> Vec<String> {
    let (runtime, run_dir) = (ground.layout.runtime_root(), ground.layout.run_dir.clone());
    let lines = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| text(&line).replace('\0', " "));
    let of_runtime = |line: &str| line.contains("runc") && line.contains(&*runtime.to_string_lossy());
    let of_helper =
        |line: &str| line.contains("internal-enter") && line.contains(&*run_dir.to_string_lossy());
    lines.filter(|line| of_runtime(line) || of_helper(line)).collect()
}

#[test]
fn nothing_to_be_in() {
    let Some(ground) = ground() else { return };
    let none = domain::exec_command(&ground.layout, "dc", "d", &options(&["true"]));
    assert!(matches!(none, Err(domain::Error::NotRunning(_))));
    let running = up(&ground, Kind::Container);
    running.stop(Some(Duration::ZERO)).expect("stop");
    let ended = domain::exec_command(&ground.layout, "dc", "d", &options(&["true"]));
    assert!(matches!(ended, Err(domain::Error::NotRunning(_))));
}
