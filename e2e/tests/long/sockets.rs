//! Very many connections through a socket service.

use e2e::{Node, wait};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

/// Connections that are open at a time, and those that come and go.
const OPEN: u64 = 10_000;
const CONNECTS: u64 = 100_000;
/// The most memory for an idle connection, in bytes: four sockets of the kernel's, two relays and
/// two programs included.
const IDLE_BYTES: u64 = 64 * 1024;
/// The most memory that a relay may keep of connections that are gone, in bytes.
const KEPT_BYTES: u64 = 32 << 20;

/// Echoes a byte at a time, to as many as come.
const SERVER: &str = r#"
import resource, select, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
server = socket.create_server(("127.0.0.1", 7000), backlog=4096)
server.setblocking(False)
poll, clients = select.epoll(), {}
poll.register(server, select.EPOLLIN)
while True:
    for number, _ in poll.poll():
        if number == server.fileno():
            try:
                client = server.accept()[0]
            except BlockingIOError:
                continue
            clients[client.fileno()] = client
            poll.register(client, select.EPOLLIN)
            continue
        client = clients[number]
        try:
            said = client.recv(64)
            if said:
                client.send(said)
                continue
        except OSError:
            pass
        poll.unregister(client)
        del clients[number]
        client.close()
"#;
/// `open N`: opens so many and is answered on each; `echo`: is answered on each again; `close`;
/// `churn N`: as many one after the other in each of 4 threads.
const CLIENT: &str = r#"
import resource, socket, sys, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
def connect():
    s = socket.create_connection(("127.0.0.1", 7001), timeout=60)
    echo(s)
    return s
def echo(s):
    s.sendall(b"x")
    assert s.recv(1) == b"x"
def churn(count, wrong):
    try:
        for _ in range(count):
            connect().close()
    except Exception as e:
        wrong.append(repr(e))
print("ready", flush=True)
for line in sys.stdin:
    word, *more = line.split()
    if word == "open":
        held = [connect() for _ in range(int(more[0]))]
    elif word == "echo":
        for s in held: echo(s)
    elif word == "close":
        for s in held: s.close()
        held = []
    elif word == "churn":
        wrong = []
        threads = [threading.Thread(target=churn, args=(int(more[0]) // 4, wrong)) for _ in range(4)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not wrong, wrong
    print("done", flush=True)
"#;

struct Clients {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Clients {
    fn start(node: &Node) -> Self {
        let mut command = node.command(&["exec", "-i", "client", "--", "/usr/bin/python3", "-c", CLIENT]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("exec starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut clients = Self { child, output };
        assert_eq!(clients.line(), "ready");
        clients
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    fn does(&mut self, word: &str) {
        writeln!(self.child.stdin.as_ref().expect("its input"), "{word}").expect("it listens");
        assert_eq!(self.line(), "done", "{word}");
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // It ends with its input; killed, it ends for sure.
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn sockets(node: &Node, domain: &str) -> Value {
    node.json(&["inspect", &format!("dc/shop/domains/{domain}/sockets")])
}

/// Resident memory and descriptors of both relays.
fn relays(node: &Node) -> (u64, usize) {
    let relays = node.pids("relay");
    assert_eq!(relays.len(), 2);
    let resident = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
    };
    let descriptors = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
    (relays.iter().map(resident).sum(), relays.iter().map(descriptors).sum())
}

/// The memory that both domains are charged for, in bytes.
fn charged(node: &Node) -> u64 {
    let rows = node.json(&["ps"]);
    let rows = rows.as_array().expect("a list").iter();
    rows.filter_map(|row| row["memory_bytes"].as_u64()).sum()
}

#[test]
fn ten_thousand_stay_open_and_a_hundred_thousand_come_and_go() {
    let Some(node) = Node::start() else { return };
    let container = |name: &str, command: &str, more: &str| {
        format!("\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = {command}\n{more}\n")
    };
    let text = format!(
        "name = \"shop\"\n{}{}\n[service.echo]\nkind = \"socket\"\ndomain = \"server\"\nto = \"tcp:7000\"\n\
         allow = [{{ domains = [\"client\"], verbs = [\"connect\"] }}]\n\
         settings = {{ max_connections = 20000, connections_per_domain = 20000 }}\n",
        container("server", &format!("[\"/usr/bin/python3\", \"-c\", '''{SERVER}''']"), ""),
        container("client", "[\"sleep\", \"infinity\"]", "services = { echo = { at = \"tcp:7001\" } }"),
    );
    node.up_ok(&text);
    let mounted = |node: &Node| sockets(node, "client")["relay"]["mounts"]["echo"].clone();
    wait::until("there is a channel", || mounted(&node)["up"] == true);
    let mut clients = Clients::start(&node);
    clients.does("open 10");
    clients.does("close");
    wait::until("nothing is open", || mounted(&node)["open"] == 0);
    let ((before, descriptors), charged_before) = (relays(&node), charged(&node));
    clients.does(&format!("open {OPEN}"));
    assert_eq!(mounted(&node)["open"], OPEN);
    let ((resident, _), charged_now) = (relays(&node), charged(&node));
    let of_relays = resident.saturating_sub(before) / OPEN;
    let of_all = charged_now.saturating_sub(charged_before) / OPEN;
    println!("an idle connection: {of_relays} bytes in two relays, {of_all} bytes charged to both domains");
    assert!(of_relays.max(of_all) <= IDLE_BYTES, "{of_relays} {of_all}");
    clients.does("echo");
    clients.does("close");
    wait::until("nothing is open", || mounted(&node)["open"] == 0);
    let opened = mounted(&node)["opened"].as_u64().expect("a number");
    let begun = std::time::Instant::now();
    clients.does(&format!("churn {CONNECTS}"));
    println!("{:.0} connections a second", CONNECTS as f64 / begun.elapsed().as_secs_f64());
    wait::until("nothing is open", || mounted(&node)["open"] == 0);
    let state = mounted(&node);
    assert_eq!((&state["opened"], &state["refused"]), (&(opened + CONNECTS).into(), &0.into()), "{state}");
    wait::until("no descriptor is left", || relays(&node).1 <= descriptors);
    let (resident, _) = relays(&node);
    assert!(resident <= before + KEPT_BYTES, "{resident} bytes, and {before} before");
}
