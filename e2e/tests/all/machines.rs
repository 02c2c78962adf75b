//! A virtual machine is a domain like any other: names, files, `exec`, logs, limits, faults. One
//! boot, many looks.

use e2e::machines::{self, logs, row, shell, shell_ok};
use e2e::{NameServer, Node, topology, wait};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

/// Says that it runs, and says good-bye when it is asked to end.
const POLITE: &str =
    "trap 'echo good-bye; exit 0' TERM; echo a guest speaks; while :; do sleep 1000 & wait $!; done";
/// The bytes that go through `exec` in one piece: more than a stream's window, so that somebody has
/// to wait for somebody.
const MUCH: usize = 700_000;

/// A name server, its service in a container, one client in a container and one in a machine.
fn file(port: u16) -> String {
    topology(port, &["web"], "", "")
        + &machines::domain(
            "edge",
            &["sh", "-c", POLITE],
            &machines::booting(machines::image(env!("CARGO_BIN_EXE_channel_peer"))),
            "services = { dns = { at = \"/srv/dns\", preload = true } }",
        )
}

#[test]
fn a_machine_is_a_domain_like_any_other() {
    let Some(node) = machines::start() else { return };
    let server = NameServer::start(node.folder());
    node.up_ok(&file(server.port));
    it_is_listed(&node);
    it_is_isolated(&node);
    names_are_resolved(&node);
    dynamic_programs_resolve_names(&node);
    exec_has_the_codes_that_one_knows(&node);
    exec_carries_much_both_ways(&node);
    exec_has_a_terminal(&node);
    what_it_says_is_logged(&node);
    up_again_changes_nothing(&node, server.port);
    a_frontend_dies(&node);
    the_daemon_dies(&node);
    it_ends_as_it_is_asked_to(&node);
}

fn it_is_listed(node: &Node) {
    let row = row(node, "edge");
    assert_eq!((&row["kind"], &row["state"]), (&Value::from("vm"), &Value::from("running")), "{row}");
    let text = row.to_string();
    assert!(text.contains("tcg"), "nothing says how the machine is run: {row}");
    assert!(row["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 64 << 20), "{row}");
    assert_eq!(machines::qemus(node, "edge").len(), 1);
}

fn it_is_isolated(node: &Node) {
    let interfaces = shell_ok(node, "edge", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    assert_eq!(interfaces, "lo\n", "the guest has a network card that nobody asked for");
    assert_eq!(shell_ok(node, "edge", "hostname"), "edge\n");
    let about = shell_ok(node, "edge", "cat /srv/self/about.json");
    assert!(about.contains("edge") && !about.contains("web"), "{about}");
    // QEMU itself has no capability, no network and nothing to gain.
    let [qemu] = machines::qemus(node, "edge")[..] else { panic!("one QEMU") };
    let status = std::fs::read_to_string(format!("/proc/{qemu}/status")).expect("its status");
    for wanted in ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
    {
        assert!(status.contains(wanted), "no {wanted:?} in\n{status}");
    }
    let devices = std::fs::read_to_string(format!("/proc/{qemu}/net/dev")).expect("its network");
    assert_eq!(devices.lines().count(), 3, "QEMU has a network:\n{devices}");
}

/// The same answers as a container gets, in every way that a guest has.
fn names_are_resolved(node: &Node) {
    let stub = shell_ok(node, "edge", "nslookup host3.tombolo.example");
    assert!(stub.contains("192.0.2.3") && stub.contains("127.0.0.53"), "{stub}");
    let line = "exec 3<>/srv/dns/query; echo host3.tombolo.example >&3; cat <&3";
    let found = shell_ok(node, "edge", line);
    assert!(found.contains("192.0.2.3") && found.contains("2001:db8::3"), "{found}");
    // Each has a cache of its own, and so another time that an answer may still be kept.
    let told = |text: &str| -> Vec<String> {
        text.lines()
            .map(|line| line.split(' ').filter(|word| word.parse::<u32>().is_err()).collect())
            .collect()
    };
    assert_eq!(told(&found), told(&node.shell_ok("web", line)), "a container is told something else");
    // busybox's cat does not tell why a read fails.
    let run = shell(
        node,
        "edge",
        "exec 3<>/srv/dns/query; echo nobody.tombolo.example >&3; dd bs=65536 count=1 <&3",
    );
    assert!(run.code != 0 && run.err.contains("No such file or directory"), "{run:?}");
}

/// By the C library, which asks the stub; and over a channel of the program's own, where there is
/// no stub to ask.
fn dynamic_programs_resolve_names(node: &Node) {
    let ask = "getent hosts host3.tombolo.example";
    let by_stub = shell_ok(node, "edge", &format!("unset LD_PRELOAD; {ask}"));
    assert!(by_stub.contains("2001:db8::3"), "{by_stub}");
    let line = format!(
        "cp /etc/resolv.conf /tmp; echo nameserver 127.0.0.1 >/etc/resolv.conf; {ask}; code=$?; \
                        cat /tmp/resolv.conf >/etc/resolv.conf; exit $code"
    );
    let by_channel = shell_ok(node, "edge", &line);
    assert!(by_channel.contains("2001:db8::3"), "{by_channel}");
}

fn exec_has_the_codes_that_one_knows(node: &Node) {
    let code = |words: &[&str]| {
        let run = node.run(&[&["exec"], words].concat());
        (run.code, run.out, run.err)
    };
    assert_eq!(
        code(&["edge", "--", "sh", "-c", "echo out; echo err >&2; exit 42"]),
        (42, "out\n".into(), "err\n".into())
    );
    assert_eq!(code(&["edge", "--", "sh", "-c", "kill -9 $$"]).0, 137);
    let absent = code(&["edge", "--", "/no/such/program"]);
    assert!(absent.0 == 127 && absent.2.contains("/no/such/program"), "{absent:?}");
    assert_eq!(code(&["edge", "--", "/etc/passwd"]).0, 126);
    assert_eq!(code(&["--user", "nobody", "edge", "--", "id", "-u"]), (0, "65534\n".into(), String::new()));
    let nobody = code(&["--user", "no-such-user", "edge", "--", "true"]);
    assert!(nobody.0 != 0 && nobody.2.contains("no-such-user"), "{nobody:?}");
    assert_eq!(code(&["--env", "COLOUR=red", "edge", "--", "sh", "-c", "echo $COLOUR"]).1, "red\n");
}

/// More than any buffer in between holds, of all bytes that there are.
fn exec_carries_much_both_ways(node: &Node) {
    let sent: Vec<u8> = (0..MUCH).map(|i| (i % 251) as u8).collect();
    let mut child = node
        .command(&["exec", "-i", "edge", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("exec starts");
    let mut input = child.stdin.take().expect("its input");
    let copy = sent.clone();
    let writer = std::thread::spawn(move || input.write_all(&copy));
    let mut got = Vec::new();
    child.stdout.take().expect("its output").read_to_end(&mut got).expect("its output");
    writer.join().expect("no panic").expect("it takes all");
    assert!(child.wait().expect("it ends").success());
    assert!(got == sent, "{} bytes of {} came back, or not the same", got.len(), sent.len());
}

fn exec_has_a_terminal(node: &Node) {
    let exec = node.command(&["exec", "-it", "edge", "--", "sh", "-c", "tty; stty size"]);
    let words: Vec<String> = std::iter::once(exec.get_program())
        .chain(exec.get_args())
        .map(|word| format!("'{}'", word.display()))
        .collect();
    // script(1) gives it a terminal, whose size it is told.
    let line = format!("stty cols 91 rows 33; exec {}", words.join(" "));
    let output = Command::new("script").args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        println!("skipped: needs script (bsdutils), so no terminal was tried");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("/dev/pts/") && said.contains("33 91"), "{said}");
}

fn what_it_says_is_logged(node: &Node) {
    wait::until("the guest's words are in its log", || node.ok(&["logs", "edge"]).contains("a guest speaks"));
}

fn up_again_changes_nothing(node: &Node, port: u16) {
    let boot = boot_id(node);
    let said = node.up_ok(&file(port));
    assert!(said.contains("nothing to do"), "{said}");
    assert_eq!(boot_id(node), boot);
}

fn boot_id(node: &Node) -> String {
    shell_ok(node, "edge", "cat /proc/sys/kernel/random/boot_id")
}

/// In the guest. Its kernel sends nothing again, but the mount and what is opened afterwards go on.
fn a_frontend_dies(node: &Node) {
    let pid = &machines::pid_of("frontend");
    let before = shell_ok(node, "edge", pid);
    shell_ok(node, "edge", &format!("kill -9 {}", before.trim()));
    wait::until("another frontend serves the guest", || {
        let now = shell(node, "edge", pid).out;
        !now.trim().is_empty() && now != before && shell(node, "edge", "cat /srv/self/about.json").code == 0
    });
    names_are_resolved(node);
}

fn the_daemon_dies(node: &Node) {
    let (boot, qemus) = (boot_id(node), machines::qemus(node, "edge"));
    node.kill_daemon();
    // Any command that changes something starts the next one.
    let said = node.run(&["up", &node.folder().join("topology.toml").to_string_lossy()]);
    assert!(said.code == 0 && said.out.contains("nothing to do"), "{said:?}{}", node.daemon_log());
    assert_eq!(machines::qemus(node, "edge"), qemus);
    assert_eq!(boot_id(node), boot, "the guest was started again{}", logs(node, "edge"));
    names_are_resolved(node);
}

/// The command is told, and what it says then is still logged.
fn it_ends_as_it_is_asked_to(node: &Node) {
    let path = node.folder().join("followed");
    let file = std::fs::File::create(&path).expect("a file");
    let mut follow = node.command(&["logs", "-f", "edge"]).stdout(file).spawn().expect("logs starts");
    let said = || std::fs::read_to_string(&path).expect("the file");
    wait::until("the log is followed", || said().contains("a guest speaks"));
    node.ok(&["down", "test"]);
    wait::until("the command was asked to end, and says so", || said().contains("good-bye"));
    // It may have ended with its domain.
    let _ended = follow.kill();
    follow.wait().expect("it ends");
}
