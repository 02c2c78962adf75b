//! The first steps of a newcomer: up, look, ask, edit, up again, down.

use e2e::{NameServer, Node, topology};

fn start(clients: &[&str], client: &str) -> Option<(Node, NameServer, String)> {
    let node = Node::start()?;
    let server = NameServer::start(node.folder());
    let text = topology(server.port, clients, "", client);
    node.up_ok(&text);
    Some((node, server, text))
}

#[test]
fn unmodified_programs_without_a_network_resolve_names() {
    let Some((node, _server, _)) = start(&["web"], "") else { return };
    let interfaces = node.shell_ok("web", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    assert_eq!(interfaces, "lo\n", "the domain has more than lo");
    assert!(node.shell_ok("web", "getent ahostsv4 host0.tombolo.example").contains("192.0.2.0"));
    let python = "import socket; print(socket.getaddrinfo('host1.tombolo.example', 80)[0][4][0])";
    assert_eq!(node.shell_ok("web", &format!("python3 -c \"{python}\"")), "2001:db8::1\n");
    assert!(node.shell_ok("web", "busybox nslookup host3.tombolo.example").contains("192.0.2.3"));
    let files = node.shell_ok("web", "exec 3<>/srv/dns/query; echo host3.tombolo.example >&3; cat <&3");
    assert!(files.contains("192.0.2.3") && files.contains("2001:db8::3"), "{files}");
}

#[test]
fn a_missing_name_is_an_errno() {
    let Some((node, _server, _)) = start(&["web"], "") else { return };
    let run = node.shell("web", "exec 3<>/srv/dns/query; echo nobody.tombolo.example >&3; cat <&3");
    assert!(run.code != 0 && run.err.contains("No such file or directory"), "{run:?}");
    assert_eq!(node.shell("web", "getent hosts nobody.tombolo.example").code, 2);
}

#[test]
fn up_twice_changes_nothing_and_an_edit_changes_only_itself() {
    let Some((node, _server, text)) = start(&["web", "robot"], "") else { return };
    let pids = |node: &Node| node.shell_ok("web", "cut -d' ' -f22 /proc/1/stat");
    let web = pids(&node);
    assert!(node.up_ok(&text).contains("nothing to do"));
    let edited = text.replace("[domain.robot]", "[domain.robot]\nenvironment = { COLOUR = \"red\" }");
    let said = node.up_ok(&edited);
    assert!(said.contains("robot") && !said.contains("web"), "{said}");
    assert_eq!(node.shell_ok("robot", "echo $COLOUR"), "red\n");
    assert_eq!(pids(&node), web, "web was restarted though nothing of it changed");
    let without = topology(1, &["web"], "", "");
    let port = text.split("127.0.0.1:").nth(1).and_then(|t| t.split('"').next()).expect("the port");
    let said = node.up_ok(&without.replace("127.0.0.1:1\"", &format!("127.0.0.1:{port}\"")));
    assert!(said.contains("robot"), "{said}");
    assert_eq!(node.run(&["exec", "robot", "--", "true"]).code, 125);
}

#[test]
fn a_failure_half_way_rolls_back() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    let text = topology(server.port, &["web"], "", "")
        + "\n[domain.zebra]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\nafter = [\"web\"]\n\
           ready = { command = [\"false\"], timeout = \"300ms\" }\n";
    let run = node.up(&text);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains("not ready within") && run.err.contains("zebra"), "{}", run.err);
    assert_eq!(node.run(&["exec", "web", "--", "true"]).code, 125, "web is still up after the roll-back");
}

/// A demo once went on with the name server of another one, which held the port, while its own
/// failed again and again.
#[test]
fn a_port_that_a_stranger_holds_makes_nobody_ready() {
    let Some(node) = Node::start() else { return };
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = stranger.local_addr().expect("its address");
    let run = node.up(&format!(
        "name = \"test\"\n[domain.late]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\n\
         ready = {{ tcp = \"{address}\", timeout = \"500ms\" }}\n"
    ));
    assert_eq!(run.code, 1, "{run:?}");
    let pid = format!("pid {}", std::process::id());
    assert!(run.err.contains(&pid) && run.err.contains(&address.to_string()), "{}", run.err);
}

#[test]
fn a_broken_file_starts_nothing() {
    let Some(node) = Node::start() else { return };
    let run = node.up("name = \"test\"\n[domain.web]\nkind = \"contaner\"\n");
    assert_eq!(run.code, 1, "{run:?}");
    assert!(
        run.err.contains("container") && run.err.contains(":3:"),
        "no line, or no suggestion:\n{}",
        run.err
    );
    assert!(node.pids("monitor").is_empty());
}

#[test]
fn exec_behaves_as_one_knows_it() {
    let Some((node, _server, _)) = start(&["web"], "") else { return };
    assert_eq!(node.shell("web", "exit 42").code, 42);
    assert_eq!(node.run(&["exec", "web", "--", "/no/such/program"]).code, 127);
    assert_eq!(node.run(&["exec", "web", "--", "/etc/passwd"]).code, 126);
    let mut child = node
        .command(&["exec", "-i", "web", "--", "wc", "-c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("exec starts");
    use std::io::Write as _;
    child.stdin.take().expect("stdin").write_all(&[b'x'; 100_000]).expect("stdin is read");
    let output = child.wait_with_output().expect("exec ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "100000");
    let line = format!(
        "{} --run-dir {} --state-dir {} exec -it web -- sh -c 'test -t 0 && test -t 1 && echo a-terminal'",
        e2e::node::binary().display(),
        node.run_dir().display(),
        node.state_dir().display()
    );
    let typed =
        std::process::Command::new("script").args(["-qec", &line, "/dev/null"]).output().expect("script(1)");
    assert!(String::from_utf8_lossy(&typed.stdout).contains("a-terminal"), "{typed:?}");
    let misuse = node.run(&["exec", "wob", "--", "true"]);
    assert!(misuse.code == 125 && misuse.err.contains("web"), "no suggestion: {misuse:?}");
}

#[test]
fn the_isolation_is_what_the_guarantees_say() {
    let Some((node, _server, _)) = start(&["web"], "") else { return };
    let status = node.shell_ok("web", "cat /proc/self/status");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    assert_ne!(node.shell("web", "touch /usr/x").code, 0);
    assert_ne!(node.shell("web", "cat /etc/shadow").code, 0);
    assert_eq!(node.shell_ok("web", "touch /tmp/x && ls /tmp"), "x\n");
    let processes = node.shell_ok("web", "ls /proc | grep -c '^[0-9]'");
    assert!(processes.trim().parse::<u32>().is_ok_and(|n| n < 10), "sees {processes} processes");
}

#[test]
fn everything_can_be_seen() {
    let Some((node, _server, _)) = start(&["web"], "") else { return };
    node.shell_ok("web", "getent hosts host0.tombolo.example");
    assert!(node.json(&["ps"]).to_string().contains("\"web\""));
    assert!(node.json(&["service", "ls"]).to_string().contains("\"dns\""));
    assert!(node.json(&["inspect"]).to_string().contains("resolver"));
    let own = node.shell_ok("web", "ls /srv/self && cat /srv/self/about.json");
    assert!(own.contains("\"web\""), "{own}");
    let latency = node.shell_ok("web", "cat /srv/self/latency");
    assert!(latency.contains("\"stub\""), "the stub's answers are not among the latencies: {latency}");
    let table = node.ok(&["trace", "dns", "host0.tombolo.example", "--domain", "web"]);
    for phase in ["open", "write", "send", "receive", "read", "close"] {
        assert!(table.contains(phase), "no {phase} in the trace:\n{table}");
    }
    let metrics = std::process::Command::new("curl")
        .args(["-s", "--unix-socket"])
        .arg(node.run_dir().join("daemon.sock"))
        .arg("http://node/metrics")
        .output()
        .expect("curl(1), which `make deps` installs");
    let text = String::from_utf8_lossy(&metrics.stdout).into_owned();
    assert!(text.contains("tombolo_"), "no metrics: {text}");
    assert!(node.ok(&["logs", "web"]).is_empty());
}

#[test]
fn logs_carry_what_a_domain_printed() {
    let Some(node) = Node::start() else { return };
    let text = "name = \"test\"\n[domain.talker]\nkind = \"container\"\nroot = \"host\"\n\
                command = [\"sh\", \"-c\", \"echo to-out; echo to-err >&2; sleep infinity\"]\n";
    node.up_ok(text);
    e2e::wait::until("both lines are in the log", || {
        let logs = node.ok(&["logs", "talker"]);
        logs.contains("to-out") && logs.contains("to-err")
    });
}

#[test]
fn a_second_daemon_on_the_same_state_is_refused() {
    let Some((node, _server, _)) = start(&["web"], "") else { return };
    let run = node.run(&["daemon"]);
    assert_eq!(run.code, 1, "{run:?}");
    let pid = node.pids("daemon")[0].to_string();
    assert!(run.err.contains(&pid), "the message does not name the other daemon: {}", run.err);
}
