//! Sockets without a network: unmodified programs of containers that have only `lo` connect to each
//! other.

use e2e::{Node, node, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Where domains see the redis that `make deps` unpacked.
pub(crate) const REDIS: &str = "/opt/redis";
/// Echoes what it reads until its clients have finished, and then says how much that was.
pub(crate) const SERVER: &str = r#"
import socket, socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        count = 0
        while piece := self.request.recv(65536):
            count += len(piece)
            self.request.sendall(piece)
        self.request.sendall(b"|%d" % count)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024
class Local(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 1024
at = sys.argv[1]
server = Local(at, Echo) if at.startswith("/") else Server(("127.0.0.1", int(at)), Echo)
if at.startswith("/"):
    import os
    os.chmod(at, 0o666)
server.serve_forever()
"#;
/// Connects, and does what its standard input says, a word at a time.
pub(crate) const CLIENT: &str = r#"
import socket, sys
at = sys.argv[1]
s = socket.socket(socket.AF_UNIX if at.startswith("/") else socket.AF_INET)
s.settimeout(30)
def connect():
    s.connect(at if at.startswith("/") else ("127.0.0.1", int(at)))
def echo():
    s.sendall(b"hello")
    got = b""
    while len(got) < 5:
        piece = s.recv(5 - len(got))
        if not piece: raise EOFError("the stream ended")
        got += piece
    assert got == b"hello", got
def wait():
    if s.recv(1) == b"": raise EOFError("the stream ended")
for line in sys.stdin:
    try:
        {"connect": connect, "echo": echo, "wait": wait}[line.strip()]()
        print("ok", flush=True)
    except Exception as e:
        print(type(e).__name__, flush=True)
"#;

pub(crate) fn container(name: &str, command: &str, more: &str) -> String {
    format!(
        "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = {command}\n\
         restart = {{ policy = \"always\", backoff = \"50ms\" }}\n{more}\n"
    )
}

pub(crate) fn python(text: &str, argument: &str) -> String {
    format!("[\"/usr/bin/python3\", \"-c\", '''{text}''', \"{argument}\"]")
}

/// Lines of a domain that sees in `/opt` what `make deps` unpacked, not installed; `None`, said,
/// where that is missing.
pub(crate) fn unpacked(name: &str) -> Option<String> {
    let folder: PathBuf = node::target().join("debian").join(name);
    if !folder.join(".complete").exists() {
        println!("skipped: needs {name}; run `make deps`");
        return None;
    }
    let source = std::fs::canonicalize(&folder).expect("it is there");
    Some(format!(
        "mounts = [{{ source = \"{}\", target = \"/opt/{name}\" }}]\n\
         environment = {{ LD_LIBRARY_PATH = \"/opt/{name}/usr/lib/x86_64-linux-gnu\" }}",
        source.display()
    ))
}

/// `server` echoes at `to`, `client` sees it at `at`.
pub(crate) fn topology(to: &str, at: &str, settings: &str) -> String {
    let listens = to.trim_start_matches("tcp:").trim_start_matches("unix:");
    format!(
        "name = \"shop\"\n{}{}{}\n[service.echo]\nkind = \"socket\"\ndomain = \"server\"\nto = \"{to}\"\n\
         allow = [{{ domains = [\"client\"], verbs = [\"connect\"] }}]\n{settings}\n",
        container("server", &python(SERVER, listens), ""),
        container(
            "client",
            "[\"sleep\", \"infinity\"]",
            &format!("services = {{ echo = {{ at = \"{at}\" }} }}")
        ),
        container("stranger", "[\"sleep\", \"infinity\"]", ""),
    )
}

/// A client program in the domain `client`.
pub(crate) struct Client {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn start(node: &Node, at: &str) -> Self {
        Self::run(node.command(&["exec", "-i", "client", "--", "/usr/bin/python3", "-c", CLIENT, at]))
    }

    /// As the domain `client` of another bed has it.
    pub(crate) fn run(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the client starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, input, output }
    }

    pub(crate) fn does(&mut self, word: &str) -> String {
        writeln!(self.input, "{word}").expect("it listens");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    /// One that has connected.
    fn connected(node: &Node, at: &str) -> Self {
        wait::until("the server answers", || {
            let mut client = Self::start(node, at);
            client.does("connect") == "ok" && client.does("echo") == "ok"
        });
        let mut client = Self::start(node, at);
        assert_eq!(client.does("connect"), "ok");
        assert_eq!(client.does("echo"), "ok");
        client
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It ends with its input; killed, it ends for sure.
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub(crate) fn sockets(node: &Node, domain: &str) -> Value {
    node.json(&["inspect", &format!("dc/shop/domains/{domain}/sockets")])
}

fn relay_of(node: &Node, domain: &str) -> u32 {
    let name = format!("shop/{domain}");
    let is_its = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').any(|word| word == name)
    };
    node.pids("relay").into_iter().find(is_its).unwrap_or_else(|| panic!("{domain} has no relay"))
}

#[test]
fn redis_and_its_client_in_containers_without_a_network() {
    let Some(redis) = unpacked("redis") else { return };
    let Some(node) = Node::start() else { return };
    let text = format!(
        "name = \"shop\"\n{}{}\n[service.cache]\nkind = \"socket\"\ndomain = \"redis\"\nto = \"tcp:6379\"\n\
         allow = [{{ domains = [\"web\"], verbs = [\"connect\"] }}]\n",
        container("redis", &format!("[\"{REDIS}/usr/bin/redis-server\", \"--save\", \"\"]"), &redis),
        container(
            "web",
            "[\"sleep\", \"infinity\"]",
            &format!("{redis}\nservices = {{ cache = {{ at = \"tcp:127.0.0.1:6379\" }} }}")
        ),
    );
    node.up_ok(&text);
    let cli = |words: &str| node.shell("web", &format!("{REDIS}/usr/bin/redis-cli {words}"));
    wait::until("redis answers", || cli("ping").out.trim() == "PONG");
    assert_eq!(cli("set colour blue").out.trim(), "OK");
    assert_eq!(cli("get colour").out.trim(), "blue");
    let bench = node
        .shell_ok("web", &format!("{REDIS}/usr/bin/redis-benchmark -q -t set,get -n 2000 -c 50 -d 10000"));
    assert!(bench.contains("SET: ") && bench.contains("GET: "), "{bench}");
    let state = sockets(&node, "redis");
    let web = &state["relay"]["serves"]["cache"]["domains"]["web"];
    assert!(web["opened"].as_u64().is_some_and(|opened| opened >= 53), "{state}");
    assert!(web["sent_bytes"].as_u64().is_some_and(|bytes| bytes >= 20_000_000), "{state}");
    assert!(node.ok(&["ps"]).contains("cache:tcp:127.0.0.1:6379"), "{}", node.ok(&["ps"]));
}

#[test]
fn bytes_are_those_of_a_stream_and_nobody_else_can_connect() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&topology("tcp:7000", "tcp:127.0.0.1:7001", ""));
    drop(Client::connected(&node, "7001"));
    // 20 MB each way, then the end of one direction, then what is said behind it.
    let line = "import hashlib, os, socket, threading\n\
                data = os.urandom(20_000_000)\n\
                s = socket.create_connection((\"127.0.0.1\", 7001))\n\
                def send():\n    s.sendall(data)\n    s.shutdown(socket.SHUT_WR)\n\
                threading.Thread(target=send).start()\n\
                got = b\"\".join(iter(lambda: s.recv(1 << 16), b\"\"))\n\
                assert got == data + b\"|20000000\", len(got)\nprint(\"whole\")\n";
    let whole = node.run(&["exec", "client", "--", "/usr/bin/python3", "-c", line]);
    assert_eq!(whole.out.trim(), "whole", "{}{}", whole.err, node.daemon_log());
    // Whoever the file does not name has nothing at that place, and no channel either.
    let stranger = node.shell("stranger", "exec 3<>/dev/tcp/127.0.0.1/7001");
    assert!(stranger.err.contains("Connection refused"), "{stranger:?}");
    let host = std::net::TcpStream::connect(("127.0.0.1", 7001));
    assert!(host.is_err(), "a port of the node leads into a domain");
}

#[test]
fn unix_sockets_lead_to_unix_sockets() {
    let Some(node) = Node::start() else { return };
    node.up_ok(&topology("unix:/run/echo.sock", "unix:/run/there.sock", ""));
    let mut client = Client::connected(&node, "/run/there.sock");
    assert_eq!(client.does("echo"), "ok");
}

#[test]
fn whatever_dies_resets_what_went_through_it_and_new_connections_go_on() {
    let Some(node) = Node::start() else { return };
    let text = topology("tcp:7000", "tcp:7001", "");
    node.up_ok(&text);
    // The server.
    let mut client = Client::connected(&node, "7001");
    kill_main(&node, "server");
    // The kernel ends a dead program's connections in order, as over TCP, unless its relay dies
    // first.
    let heard = client.does("wait");
    assert!(["EOFError", "ConnectionResetError"].contains(&heard.as_str()), "{heard}");
    // Either relay.
    for domain in ["client", "server"] {
        let mut client = Client::connected(&node, "7001");
        node::kill(relay_of(&node, domain));
        assert_eq!(client.does("wait"), "ConnectionResetError", "the relay of {domain} died");
    }
    // The daemon: nothing happens to what is open, and new connections come.
    let mut client = Client::connected(&node, "7001");
    let relay = relay_of(&node, "client");
    node.kill_daemon();
    assert_eq!(client.does("echo"), "ok");
    node.up_ok(&text);
    assert_eq!(client.does("echo"), "ok");
    drop(Client::connected(&node, "7001"));
    assert_eq!(relay_of(&node, "client"), relay, "the next daemon goes on with the relay that it finds");
    // The client: the server's side has nothing left of it.
    drop((client, Client::connected(&node, "7001")));
    wait::until("its connections are gone", || {
        sockets(&node, "server")["relay"]["serves"]["echo"]["open"] == 0
    });
}

#[test]
fn a_server_that_is_away_refuses_and_limits_hold() {
    let Some(node) = Node::start() else { return };
    let text = topology(
        "tcp:7000",
        "tcp:7001",
        "settings = { connections_per_domain = 3, connections_per_second = 100 }",
    );
    // Nobody listens at the place that the file names.
    node.up_ok(&text.replace("to = \"tcp:7000\"", "to = \"tcp:7999\""));
    let mut client = Client::start(&node, "7001");
    if client.does("connect") == "ok" {
        assert_eq!(client.does("wait"), "ConnectionResetError");
    }
    // The file says otherwise: nobody is restarted, and connections reach the server.
    node.up_ok(&text);
    let mut open: Vec<Client> = (0..3).map(|_| Client::connected(&node, "7001")).collect();
    // One too many is let in by the kernel, and heard when another one has gone.
    let mut fourth = Client::start(&node, "7001");
    assert_eq!(fourth.does("connect"), "ok");
    assert!(sockets(&node, "client")["relay"]["mounts"]["echo"]["open"] == 3);
    open.clear();
    assert_eq!(fourth.does("echo"), "ok");
    drop(fourth);
    // Without the server's domain nobody listens in the client's.
    let once = "restart = { policy = \"never\" }";
    node.up_ok(&text.replacen("restart = { policy = \"always\", backoff = \"50ms\" }", once, 1));
    drop(Client::connected(&node, "7001"));
    kill_main(&node, "server");
    wait::until("clients are refused", || {
        Client::start(&node, "7001").does("connect") == "ConnectionRefusedError"
    });
}

/// Kills the first process of a domain.
fn kill_main(node: &Node, domain: &str) {
    let tree = node.json(&["inspect", &format!("dc/shop/domains/{domain}")]);
    let pid = tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs");
    node::kill(pid);
}

#[test]
fn a_name_leads_to_a_socket_in_the_domain_that_has_it_and_in_no_other() {
    let Some(node) = Node::start() else { return };
    let mounts = "services = { dns = \"/srv/dns\", one = { at = \"tcp:one.shop.internal:80\" }, two = { at = \"tcp:two.shop.internal:80\" } }";
    let service = |name: &str| {
        format!(
            "\n[service.{name}]\nkind = \"socket\"\ndomain = \"{name}\"\nto = \"tcp:7000\"\n\
             allow = [{{ domains = [\"client\"], verbs = [\"connect\"] }}]\n"
        )
    };
    let text = "name = \"shop\"\n".to_owned()
        + &["one", "two"].map(|name| container(name, &python(SERVER, "7000"), "") + &service(name)).concat()
        + &container("client", "[\"sleep\", \"infinity\"]", mounts)
        + &container("stranger", "[\"sleep\", \"infinity\"]", "services = { dns = \"/srv/dns\" }")
        + "\n[domain.resolver]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\n\
           [service.dns]\nkind = \"directory\"\ndomain = \"resolver\"\nallow = [{ domains = \"*\", verbs = [\"resolve\"] }]\n\
           settings = { upstream = [\"127.0.0.1:1\"], timeout = \"200ms\", retries = 0 }\n";
    node.up_ok(&text);
    // Both listen at one port, and each name leads to its own.
    let says = "import socket, sys\ns = socket.create_connection((sys.argv[1], 80), timeout=20)\n\
                at = s.getpeername()[0]\ns.sendall(b\"hello\")\ns.shutdown(socket.SHUT_WR)\n\
                print(b\"\".join(iter(lambda: s.recv(64), b\"\")).decode(), at)\n";
    let ask = |domain: &str, name: &str| {
        node.run(&["exec", domain, "--", "/usr/bin/python3", "-c", says, &format!("{name}.shop.internal")])
    };
    let mut places = Vec::new();
    for name in ["one", "two", "ONE"] {
        wait::until("the server answers by its name", || ask("client", name).out.starts_with("hello|5 127."));
        places.push(ask("client", name).out);
    }
    assert!(places[0] == places[2] && places[0] != places[1], "{places:?}");
    let address = places[0].trim().rsplit(' ').next().expect("an address").to_owned();
    assert_eq!(
        node.shell_ok("client", &format!("getent hosts {address}")).split_whitespace().collect::<Vec<_>>(),
        [address.as_str(), "one.shop.internal"]
    );
    assert!(node.ok(&["ps"]).contains("one:tcp:one.shop.internal:80"), "{}", node.ok(&["ps"]));
    let opened = sockets(&node, "two")["relay"]["serves"]["two"]["domains"]["client"]["opened"].clone();
    assert!(opened.as_u64().is_some_and(|opened| opened >= 2), "{opened}");
    // Whom the file does not give the name to does not hear of it.
    let stranger = ask("stranger", "one");
    assert!(stranger.code != 0 && stranger.err.contains("gaierror"), "{stranger:?}");
}

#[test]
fn a_service_that_leads_to_itself_by_a_link_resets_and_holds_nothing() {
    let Some(node) = Node::start() else { return };
    // `/var/run` is a link to `/run`: admission can't see it.
    let mounts = "services = { round = { at = \"unix:/run/round.sock\" } }";
    let text = "name = \"shop\"\n".to_owned()
        + &container("client", "[\"sleep\", \"infinity\"]", mounts)
        + "\n[service.round]\nkind = \"socket\"\ndomain = \"client\"\nto = \"unix:/var/run/round.sock\"\n\
           allow = [{ domains = [\"client\"], verbs = [\"connect\"] }]\n";
    node.up_ok(&text);
    wait::until("there is a channel", || sockets(&node, "client")["relay"]["mounts"]["round"]["up"] == true);
    let mut client = Client::start(&node, "/run/round.sock");
    assert_eq!(client.does("connect"), "ok");
    assert!(["EOFError", "ConnectionResetError"].contains(&client.does("wait").as_str()));
    wait::until("nothing is open", || sockets(&node, "client")["relay"]["mounts"]["round"]["open"] == 0);
    let round = sockets(&node, "client")["relay"]["serves"]["round"]["domains"]["client"]["refused"].clone();
    assert_eq!(round, 1, "it went round more than once");
}

#[test]
fn a_service_may_lead_to_another() {
    let Some(node) = Node::start() else { return };
    let service = |name: &str, host: &str, to: &str, whom: &str| {
        format!(
            "\n[service.{name}]\nkind = \"socket\"\ndomain = \"{host}\"\nto = \"{to}\"\n\
             allow = [{{ domains = [\"{whom}\"], verbs = [\"connect\"] }}]\n"
        )
    };
    let mounts = |service: &str, at: &str| format!("services = {{ {service} = {{ at = \"{at}\" }} }}");
    let idle = "[\"sleep\", \"infinity\"]";
    let text = "name = \"shop\"\n".to_owned()
        + &container("server", &python(SERVER, "7000"), "")
        + &container("between", idle, &mounts("echo", "unix:/run/echo.sock"))
        + &container("client", idle, &mounts("again", "unix:/run/again.sock"))
        + &service("echo", "server", "tcp:7000", "between")
        + &service("again", "between", "unix:/run/echo.sock", "client");
    node.up_ok(&text);
    let mut client = Client::connected(&node, "/run/again.sock");
    assert_eq!(client.does("echo"), "ok");
}
