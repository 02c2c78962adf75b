//! Sockets between domains of two nodes: the bytes of a TCP stream, encrypted, once and in order,
//! whatever dies on the way.

use crate::sockets::{CLIENT, Client, REDIS, SERVER, container, python, unpacked};
use e2e::Run;
use e2e::cluster::{Bed, Host};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Sends numbers and reads their echo until the other side ends, one way or another, or all have
/// come back: says when it flows, what it got (the first so many bytes of what it sent, or others),
/// and how it ended.
const FLOW: &str = r#"
import socket, struct, sys, threading
total = int(sys.argv[2])
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.settimeout(120)
sent = b"".join(struct.pack("<Q", n) for n in range(total // 8))
broke = []
def send():
    try:
        s.sendall(sent)
        s.shutdown(socket.SHUT_WR)
    except OSError as e:
        broke.append(type(e).__name__)
sender = threading.Thread(target=send, daemon=True)
sender.start()
got, said, how = bytearray(), False, "end"
try:
    while piece := s.recv(1 << 16):
        got += piece
        if not said and len(got) > total // 8:
            said = True
            print("flows", flush=True)
except Exception as e:
    how = type(e).__name__
# The kernel tells one of two threads of a reset, and the other one that the stream is over.
sender.join(60)
how = broke[0] if broke and how == "end" else how
tail = b"|%d" % total
if len(got) > len(sent):
    what = "all" if bytes(got) == sent + tail else "others"
else:
    what = "first" if sent.startswith(bytes(got)) else "others"
print(what, how, flush=True)
"#;
/// Looks at every frame of a node's card until its standard input ends: how many bytes, and whether
/// there was one in clear.
const LISTENER: &str = r#"
import select, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)
s.bind(("eth0", 0))
print("listens", flush=True)
count, clear = 0, False
while True:
    ready = select.select([s, sys.stdin], [], [])[0]
    if s in ready:
        frame = s.recv(1 << 17)
        count += len(frame)
        clear = clear or sys.argv[1].encode() in frame
    elif sys.stdin in ready:
        break
print(count, clear, flush=True)
"#;

/// A server on some other node, and a client on alpha that sees it at port 7001.
fn topology(server: &str) -> String {
    format!(
        "name = \"shop\"\n{}{}\n[service.echo]\nkind = \"socket\"\ndomain = \"server\"\nto = \"tcp:7000\"\n\
         allow = [{{ domains = [\"client\"], verbs = [\"connect\"] }}]\n",
        container("server", &python(SERVER, "7000"), server),
        container(
            "client",
            "[\"sleep\", \"infinity\"]",
            "node = \"alpha\"\nservices = { echo = { at = \"tcp:7001\" } }"
        ),
    )
}

fn bed(nodes: usize, labels: &[&str]) -> Option<Bed> {
    let bed = Bed::with_etcd(nodes, 1)?;
    bed.join_all(1, labels);
    Some(bed)
}

fn client(host: &Host) -> Client {
    Client::run(host.command(&["exec", "-i", "client", "--", "/usr/bin/python3", "-c", CLIENT, "7001"]))
}

/// A client that has connected, as soon as the server answers.
fn connected(bed: &Bed) -> Client {
    let host = bed.host(0);
    bed.until("the server answers", TIMEOUT, || {
        let mut probe = client(host);
        probe.does("connect") == "ok" && probe.does("echo") == "ok"
    });
    let mut client = client(host);
    assert_eq!((client.does("connect").as_str(), client.does("echo").as_str()), ("ok", "ok"));
    client
}

/// A client that sends `bytes` bytes and reads their echo, of which some have come.
struct Flow {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Flow {
    fn start(host: &Host, bytes: u32) -> Self {
        let arguments = ["exec", "client", "--", "/usr/bin/python3", "-c", FLOW, "7001", &bytes.to_string()];
        let mut command = host.command(&arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a client");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a word");
        assert_eq!(line, "flows\n", "the echo does not come");
        Self { child, output }
    }

    /// Waits for its end; returns its output, and how it ended.
    fn ends(mut self) -> String {
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("its last words");
        assert!(self.child.wait().expect("its end").success());
        said.trim().to_owned()
    }
}

fn exec(host: &Host, domain: &str, line: &str) -> Run {
    host.run(&["exec", domain, "--", "bash", "-c", line])
}

fn sockets(host: &Host, domain: &str) -> Value {
    host.json(&["inspect", &format!("dc/shop/domains/{domain}/sockets")])
}

#[test]
fn a_stream_to_another_node_is_encrypted_whole_and_stops_who_is_not_read() {
    let Some(bed) = bed(2, &[]) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    a.up_ok(&topology("node = \"beta\""));
    let mut client = connected(&bed);
    // Not a word of it on the wire.
    let word = "nobody-else-may-read-this";
    let mut ear = b.inside(Path::new("python3"));
    ear.args(["-c", LISTENER, word]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut ear = ear.spawn().expect("python3");
    let mut heard = BufReader::new(ear.stdout.take().expect("its output"));
    let mut line = String::new();
    heard.read_line(&mut line).expect("a word");
    assert_eq!(line, "listens\n");
    let says = format!(
        "import socket\ns = socket.create_connection((\"127.0.0.1\", 7001))\n\
         s.sendall(b\"{word}\" * 40_000)\ns.shutdown(socket.SHUT_WR)\n\
         print(len(b\"\".join(iter(lambda: s.recv(1 << 16), b\"\"))))\n"
    );
    let said = a.ok(&["exec", "client", "--", "/usr/bin/python3", "-c", &says]);
    assert_eq!(said, "1000008\n");
    drop(ear.stdin.take());
    let mut line = String::new();
    heard.read_to_string(&mut line).expect("what it heard");
    ear.wait().expect("its end");
    let (count, clear) = line.trim().split_once(' ').expect("two words");
    assert!(count.parse::<u64>().is_ok_and(|count| count > 2_000_000), "the stream went elsewhere: {line}");
    assert_eq!(clear, "False", "it went in clear");
    // A cable that is pulled in the middle is no end.
    let flow = Flow::start(a, 40_000_000);
    bed.switch().cut(b.port());
    bed.switch().heal(b.port());
    assert_eq!(flow.ends(), "all end");
    // Whoever reads nothing stops its own stream, and no other.
    let stuck = "import socket\ns = socket.create_connection((\"127.0.0.1\", 7001))\ns.settimeout(2)\nn = 0\n\
                 try:\n    while True: n += s.send(bytes(65536))\nexcept TimeoutError: print(n)\n";
    let sent = a.ok(&["exec", "client", "--", "/usr/bin/python3", "-c", stuck]);
    // The kernel's buffers at four sockets, two windows and the server's piece, and no more than
    // that.
    let sent: u64 = sent.trim().parse().expect("a number");
    assert!(sent < 64 << 20, "{sent} bytes were taken from a client that does not read");
    assert_eq!(client.does("echo"), "ok");
    let relay = sockets(a, "client");
    assert_eq!(relay["relay"]["mounts"]["echo"]["up"], true, "{relay}");
    a.ok(&["down", "--all"]);
    bed.finish();
}

#[test]
fn whatever_dies_between_two_nodes_a_client_is_told_and_new_connections_go_on() {
    let Some(bed) = bed(3, &["of=clients", "of=servers", "of=servers"]) else { return };
    let a = bed.host(0);
    a.up_ok(&topology("labels = { of = \"servers\" }").replacen(
        "backoff = \"50ms\"",
        "backoff = \"50ms\", elsewhere = true",
        1,
    ));
    drop(connected(&bed));
    let of = |host: &Host| {
        let rows = host.json(&["ps"]);
        let rows = rows.as_array().expect("a list").iter();
        let server = rows.filter(|row| row["domain"] == "server" && row["state"] == "running");
        server.filter_map(|row| row["node"].as_str()).map(str::to_owned).next()
    };
    let node = of(a).expect("it runs");
    let there = bed.named(&node);
    // A proxy of either node, and the server's relay: a reset, never a byte that was not sent,
    // never one twice.
    for (host, role) in [(a, "proxy"), (there, "proxy"), (there, "relay"), (a, "relay")] {
        let mut idle = connected(&bed);
        let flow = Flow::start(a, 80_000_000);
        host.kill_role(role);
        let said = flow.ends();
        assert_eq!(said, "first ConnectionResetError", "the {role} of {} died", host.name());
        assert_eq!(idle.does("wait"), "ConnectionResetError", "the {role} of {} died", host.name());
    }
    // The server: as with TCP, its kernel resets what it had not read.
    let mut idle = connected(&bed);
    let pid = there.json(&["inspect", "dc/shop/domains/server"])["pid"].to_string();
    let flow = Flow::start(a, 80_000_000);
    // The number is that of the node's own namespace.
    e2e::cluster::must("kill the server", there.inside(Path::new("kill")).args(["-9", &pid]));
    let said = flow.ends();
    assert!(["first ConnectionResetError", "first end"].contains(&said.as_str()), "{said}");
    let said = idle.does("wait");
    assert!(["EOFError", "ConnectionResetError"].contains(&said.as_str()), "{said}");
    // Its node: the same, and the server is reached where it was started anew.
    let mut idle = connected(&bed);
    let flow = Flow::start(a, 80_000_000);
    there.kill();
    assert_eq!(flow.ends(), "first ConnectionResetError");
    assert_eq!(idle.does("wait"), "ConnectionResetError");
    let mut client = connected(&bed);
    assert_ne!(of(a).expect("it runs"), node);
    assert_eq!(client.does("echo"), "ok");
    bed.until("all is down", TIMEOUT, || a.run(&["down", "--all"]).code == 0);
    bed.finish();
}

#[test]
fn redis_curl_and_iperf3_speak_to_another_node() {
    let Some(redis) = unpacked("redis") else { return };
    let Some(iperf) = unpacked("iperf3") else { return };
    let Some(bed) = bed(2, &[]) else { return };
    let a = bed.host(0);
    let service = |name: &str, port: u16| {
        format!(
            "\n[service.{name}]\nkind = \"socket\"\ndomain = \"{name}\"\nto = \"tcp:{port}\"\n\
             allow = [{{ domains = [\"{name}-client\"], verbs = [\"connect\"] }}]\n"
        )
    };
    let pair = |name: &str, command: &str, port: u16, more: &str| {
        let at = format!("{more}\nnode = \"alpha\"\nservices = {{ {name} = {{ at = \"tcp:{port}\" }} }}");
        container(name, command, &format!("{more}\nnode = \"beta\""))
            + &container(&format!("{name}-client"), "[\"sleep\", \"infinity\"]", &at)
            + &service(name, port)
    };
    let web = "[\"python3\", \"-m\", \"http.server\", \"8080\", \"--bind\", \"127.0.0.1\", \"--directory\", \"/usr\"]";
    let text = "name = \"shop\"\n".to_owned()
        + &pair("cache", &format!("[\"{REDIS}/usr/bin/redis-server\", \"--save\", \"\"]"), 6379, &redis)
        + &pair("web", web, 8080, "")
        + &pair("line", "[\"/opt/iperf3/usr/bin/iperf3\", \"-s\", \"-B\", \"127.0.0.1\"]", 5201, &iperf);
    a.up_ok(&text);
    let cli = |words: &str| exec(a, "cache-client", &format!("{REDIS}/usr/bin/redis-cli {words}"));
    bed.until("redis answers", TIMEOUT, || cli("ping").out.trim() == "PONG");
    assert_eq!(cli("set colour blue").out.trim(), "OK");
    assert_eq!(cli("get colour").out.trim(), "blue");
    let bench =
        exec(a, "cache-client", &format!("{REDIS}/usr/bin/redis-benchmark -q -t set,get -n 2000 -c 20"));
    assert!(bench.out.contains("SET: ") && bench.out.contains("GET: "), "{bench:?}");
    let page = |url: &str| exec(a, "web-client", &format!("curl -fsS -m 20 http://127.0.0.1:8080{url}"));
    bed.until("the web server answers", TIMEOUT, || page("/").out.contains("share/"));
    let same = "curl -fsS http://127.0.0.1:8080/bin/curl | cmp - /usr/bin/curl && echo same";
    let same = exec(a, "web-client", same);
    assert_eq!(same.out, "same\n", "{same:?}");
    let iperf3 = |words: &str| {
        let said = exec(a, "line-client", &format!("/opt/iperf3/usr/bin/iperf3 -c 127.0.0.1 -J {words}"));
        serde_json::from_str::<Value>(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"))
    };
    bed.until("iperf3 listens", TIMEOUT, || {
        exec(a, "line-client", "exec 3<>/dev/tcp/127.0.0.1/5201").code == 0
    });
    for words in ["-n 20M", "-n 20M -R", "-n 40M -P 4"] {
        let said = iperf3(words);
        let bytes = said["end"]["sum_received"]["bytes"].as_u64().expect("a number");
        assert!(bytes >= 4_000_000, "{words}: {said}");
    }
    a.ok(&["down", "--all"]);
    bed.finish();
}
