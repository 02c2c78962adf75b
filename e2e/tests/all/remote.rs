//! Commands in domains of other nodes, and their logs: as if they were here.

use e2e::cluster::{Bed, Host};
use e2e::node::{kill, pids_of};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Two nodes; on the second a container and a process that do nothing, and one that says something
/// when it is let.
fn bed() -> Option<Bed> {
    let bed = Bed::with_etcd(2, 1)?;
    bed.join_all(1, &[]);
    let folder = bed.folder().display().to_string();
    let text = format!(
        "name = \"test\"\n\
         [domain.box]\nkind = \"container\"\nroot = \"host\"\nnode = \"beta\"\ncommand = [\"sleep\", \"infinity\"]\n\
         [domain.proc]\nkind = \"process\"\nnode = \"beta\"\ncommand = [\"sleep\", \"infinity\"]\n\
         [domain.says]\nkind = \"process\"\nnode = \"beta\"\n\
         command = [\"sh\", \"-c\", \"echo one; while [ ! -e {folder}/go ]; do sleep 0.05; done; echo two; sleep infinity\"]\n"
    );
    bed.host(0).up_ok(&text);
    Some(bed)
}

fn piped(host: &Host, arguments: &[&str]) -> Child {
    let mut command = host.command(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tombolo starts")
}

fn line(from: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    from.read_line(&mut line).expect("a line");
    line
}

/// The pid of the one `tombolo WORD ...` of a node.
fn pid(host: &Host, word: &str) -> u32 {
    let pids = pids_of(&host.run_dir(), word);
    assert_eq!(pids.len(), 1, "{word}: {pids:?}");
    pids[0]
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    kill_process(pid, signal).expect("the signal is sent");
}

/// The programs that run in a domain, by their command lines.
fn running(host: &Host, domain: &str) -> String {
    let all = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null; true";
    host.ok(&["exec", domain, "--", "sh", "-c", all])
}

#[test]
fn a_command_on_another_node_has_live_streams_its_exit_code_and_all_the_time_it_wants() {
    let Some(bed) = bed() else { return };
    // What is left when a command ends is more than a pipe holds, and arrives whole.
    let much = bed.host(0).ok(&["exec", "box", "--", "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x"]);
    assert_eq!(much.len(), 300_000);
    let a = bed.host(0);
    for domain in ["box", "proc"] {
        let run = a.run(&["exec", domain, "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (7, "out\n", "err\n"));
        assert_eq!(a.run(&["exec", domain, "--", "no-such-program"]).code, 127);
        assert_eq!(a.run(&["exec", domain, "--", "sh", "-c", "kill -9 $$"]).code, 137);
        // Without -i there is no input.
        assert_eq!(a.run(&["exec", domain, "--", "cat"]).out, "");
        // It answers while its input is open.
        let mut cat = piped(a, &["exec", "-i", domain, "--", "cat"]);
        let (mut stdin, mut stdout) =
            (cat.stdin.take().expect("stdin"), BufReader::new(cat.stdout.take().expect("stdout")));
        for word in ["one\n", "two\n"] {
            stdin.write_all(word.as_bytes()).expect("written");
            assert_eq!(line(&mut stdout), word);
        }
        drop(stdin);
        assert_eq!((line(&mut stdout).as_str(), cat.wait().expect("its end").code()), ("", Some(0)));
    }
    // Much, and nothing of it is lost: more than any window or pipe takes.
    let mut wc = piped(a, &["exec", "-i", "box", "--", "sha256sum"]);
    let mut stdin = wc.stdin.take().expect("stdin");
    let much: Vec<u8> = (0..5_000_000_u32).flat_map(u32::to_le_bytes).collect();
    stdin.write_all(&much).expect("written");
    drop(stdin);
    let said = wc.wait_with_output().expect("its end");
    let here = bed.folder().join("much");
    std::fs::write(&here, &much).expect("written");
    let sum = Command::new("sha256sum").arg(&here).output().expect("sha256sum(1)");
    let first =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).split(' ').next().unwrap_or_default().to_owned();
    assert_eq!(first(&said.stdout), first(&sum.stdout));
    let run = a.run(&["exec", "box", "--", "head", "-c", "20000000", "/dev/zero"]);
    assert_eq!((run.code, run.out.len()), (0, 20_000_000));
    // What it leaves behind with its pipes open is not waited for.
    let run = a.run(&["exec", "proc", "--", "sh", "-c", "sleep 30 & echo done"]);
    assert_eq!((run.code, run.out.as_str()), (0, "done\n"));
    a.ok(&["down", "--all"]);
    bed.finish();
}

#[test]
fn signals_get_through_and_a_command_whose_caller_is_gone_is_hung_up_on() {
    let Some(bed) = bed() else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    // Input that nobody takes is in no signal's way.
    let trap = "trap 'echo got; exit 3' TERM; echo ready; while :; do sleep 0.05; done";
    for domain in ["box", "proc"] {
        let mut command = a.command(&["exec", "-i", domain, "--", "sh", "-c", trap]);
        let zeros = std::fs::File::open("/dev/zero").expect("zeros");
        let mut child = command.stdin(zeros).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
        assert_eq!(line(&mut stdout), "ready\n");
        signal(pid(a, "exec"), Signal::TERM);
        assert_eq!(line(&mut stdout), "got\n");
        assert_eq!(child.wait().expect("its end").code(), Some(3));
    }
    // The caller dies.
    for domain in ["box", "proc"] {
        let mut child = piped(a, &["exec", "-i", domain, "--", "sh", "-c", "echo ready; exec sleep 98765"]);
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
        assert_eq!(line(&mut stdout), "ready\n");
        assert!(running(b, domain).contains("sleep 98765"));
        kill(pid(a, "exec"));
        child.wait().expect("its end");
        bed.until("the command has ended", TIMEOUT, || !running(b, domain).contains("sleep 98765"));
    }
    // The daemon there dies: whoever waits is told, with a code that no command has.
    let mut child = piped(a, &["exec", "box", "--", "sh", "-c", "echo ready; exec sleep 98765"]);
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
    assert_eq!(line(&mut stdout), "ready\n");
    b.kill_role("daemon");
    let mut said = String::new();
    child.stderr.take().expect("stderr").read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("its end").code(), Some(125));
    assert!(said.contains("the connection to the node that runs it broke"), "{said}");
    let run = a.run(&["exec", "box", "--", "true"]);
    assert!(run.code == 125 && run.err.contains("beta"), "{run:?}");
    bed.start_daemon(b);
    bed.until("it is well again", TIMEOUT, || a.run(&["exec", "box", "--", "true"]).code == 0);
    a.ok(&["down", "--all"]);
    bed.finish();
}

/// A terminal: the end of whoever types, and the other.
fn terminal() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).expect("a terminal");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal");
    let slave = ioctl_tiocgptpeer(&master, flags).expect("its other end");
    (master, slave)
}

fn resize(master: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).expect("a size");
}

/// The terminal of a person who types.
struct Screen {
    file: std::fs::File,
    shown: String,
}

impl Screen {
    /// Waits until it shows something; what came before that was seen.
    fn shows(&mut self, what: &str) {
        let mut piece = [0; 256];
        loop {
            if let Some(at) = self.shown.find(what) {
                self.shown.drain(..at + what.len());
                return;
            }
            let length =
                self.file.read(&mut piece).unwrap_or_else(|error| panic!("{error} after {:?}", self.shown));
            self.shown += &String::from_utf8_lossy(&piece[..length]);
        }
    }

    fn types(&mut self, text: &[u8]) {
        self.file.write_all(text).expect("typed");
    }
}

#[test]
fn a_terminal_reaches_to_another_node_with_its_size() {
    let Some(bed) = bed() else { return };
    let a = bed.host(0);
    for domain in ["box", "proc"] {
        let (master, slave) = terminal();
        resize(&master, 40, 100);
        // The runtime tells a container the size only when its command runs already.
        let script = "until [ \"$(stty size)\" = '40 100' ]; do sleep 0.05; done; stty size; read x; echo \"<$x>\"; while [ \"$(stty size)\" = '40 100' ]; do sleep 0.05; done; stty size; \
                      trap 'echo interrupted; exit 5' INT; echo waits; while :; do sleep 0.05; done";
        let mut command = a.command(&["exec", "-it", domain, "--", "sh", "-c", script]);
        let end = || Stdio::from(slave.try_clone().expect("a descriptor"));
        let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("tombolo starts");
        drop((command, slave));
        let file = std::fs::File::from(master.try_clone().expect("a descriptor"));
        let mut screen = Screen { file, shown: String::new() };
        screen.shows("40 100");
        screen.types(b"hello\r");
        screen.shows("<hello>");
        resize(&master, 50, 120);
        signal(pid(a, "exec"), Signal::WINCH);
        screen.shows("50 120");
        screen.shows("waits");
        // Ctrl-C.
        screen.types(b"\x03");
        screen.shows("interrupted");
        assert_eq!(child.wait().expect("its end").code(), Some(5));
    }
    let run = a.run(&["exec", "-it", "box", "--", "true"]);
    assert!(run.code == 125 && run.err.contains("not a terminal"), "{run:?}");
    a.ok(&["down", "--all"]);
    bed.finish();
}

#[test]
fn what_goes_on_with_a_node_ends_when_its_certificate_is_revoked() {
    let Some(bed) = bed() else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let link = || a.run(&["link", "show", "beta", "--json"]);
    let link = || serde_json::from_str::<serde_json::Value>(&link().out).unwrap_or_default();
    bed.until("there is a link", TIMEOUT, || link()["up"] == true);
    let connections = || link()["state"]["link"]["connections"].as_u64().unwrap_or(0);
    let before = connections();
    let mut cat = piped(a, &["exec", "-i", "box", "--", "cat"]);
    let (mut stdin, mut stdout) =
        (cat.stdin.take().expect("stdin"), BufReader::new(cat.stdout.take().expect("stdout")));
    stdin.write_all(b"one\n").expect("written");
    assert_eq!(line(&mut stdout), "one\n");
    let mut follower = piped(a, &["logs", "--follow", "says"]);
    let mut log = BufReader::new(follower.stdout.take().expect("stdout"));
    assert_eq!(line(&mut log), "one\n");
    b.ok(&["node", "rotate", "--revoke"]);
    for child in [&mut cat, &mut follower] {
        bed.until("what went on has ended", TIMEOUT, || {
            child.try_wait().expect("asked").is_some_and(|status| !status.success())
        });
    }
    // With the certificate that it has now everything goes on; the link was carried on by another
    // connection.
    assert_eq!(a.ok(&["exec", "box", "--", "echo", "again"]), "again\n");
    bed.until("another connection carries the link", TIMEOUT, || {
        link()["up"] == true && connections() > before
    });
    a.ok(&["down", "--all"]);
    bed.finish();
}

#[test]
fn the_log_of_another_node_is_followed() {
    let Some(bed) = bed() else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let mut follower = piped(a, &["logs", "--follow", "says"]);
    let mut stdout = BufReader::new(follower.stdout.take().expect("stdout"));
    assert_eq!(line(&mut stdout), "one\n");
    std::fs::write(bed.folder().join("go"), "").expect("a file");
    assert_eq!(line(&mut stdout), "two\n");
    assert_eq!(a.ok(&["logs", "says"]), "one\ntwo\n");
    assert_eq!(a.ok(&["logs", "--tail", "1", "says"]), "two\n");
    assert!(a.ok(&["logs", "says", "--json"]).lines().all(|line| line.contains("\"stream\":\"stdout\"")));
    // The daemon there ends: the follower does, too, and says so.
    b.kill_role("daemon");
    let mut said = String::new();
    follower.stderr.take().expect("stderr").read_to_string(&mut said).expect("text");
    assert_eq!(follower.wait().expect("its end").code(), Some(1));
    assert!(!said.is_empty());
    bed.start_daemon(b);
    a.ok(&["down", "--all"]);
    bed.finish();
}

/// Fills its output with more than is read at once, and then splices into it from where nothing
/// comes: whoever reads that pipe is held up in the kernel meanwhile. Where it was read too soon
/// for that, it is done again, until the file exists that is named.
const HOLDS_ITS_PIPE: &str = "import fcntl, os, socket, sys, threading, time
fcntl.fcntl(1, 1031, 1 << 20)
silent, tell = socket.socketpair()
def again():
    while True:
        time.sleep(1)
        if os.path.exists(sys.argv[1]):
            return
        tell.send(b'x')
threading.Thread(target=again, daemon=True).start()
while True:
    os.write(1, b'x' * (1 << 20))
    os.splice(silent.fileno(), 1, 1)";

/// Whether a thread of a process can't be reached by a signal.
fn is_held_up(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states = threads.map(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('D'))
    });
    states.any(|held_up| held_up)
}

/// Once a thread of the daemon itself read such a pipe: a daemon that was killed then kept its lock
/// until the command ended, and no other one could start.
#[test]
fn a_command_that_holds_its_pipe_does_not_keep_the_next_daemon_away() {
    let Some(bed) = bed() else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let enough = bed.folder().join("enough");
    let program = ["python3", "-c", HOLDS_ITS_PIPE, &enough.to_string_lossy()];
    let mut caller = piped(a, &[&["exec", "proc", "--"], &program[..]].concat());
    // Read, so that all the way to the pipe there is room.
    let mut out = caller.stdout.take().expect("its output");
    let reader = std::thread::spawn(move || out.read_to_end(&mut Vec::new()).is_ok());
    let held_up = || pids_of(&b.run_dir(), "internal-pipes").into_iter().any(is_held_up);
    bed.until("its pipe holds up who reads it", TIMEOUT, held_up);
    std::fs::write(&enough, "").expect("written");
    bed.until("it stays so", TIMEOUT, held_up);
    let daemon = pid(b, "daemon");
    assert!(!is_held_up(daemon));
    b.kill_role("daemon");
    bed.start_daemon(b);
    assert_ne!(pid(b, "daemon"), daemon);
    // It has no caller any more, and ends by being killed.
    assert!(!caller.wait().expect("its end").success());
    assert!(reader.join().expect("the reader"));
    a.ok(&["down", "--all"]);
    bed.finish();
}
