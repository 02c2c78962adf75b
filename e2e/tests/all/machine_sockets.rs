//! Sockets of guests: a client in a machine reaches a server in a container, and a client in a
//! container a server in a machine.

use crate::sockets::{container, sockets};
use e2e::machines::{self, shell_ok};
use e2e::{Node, node, wait};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long an emulated machine may take to end and to be started again, beside much else.
const RESTART: Duration = Duration::from_secs(120);
/// The relay of a guest, and not whoever speaks with it: this line has the words of both.
const RELAY: &str = "for p in /proc/[0-9]*; do if grep -q relay $p/cmdline && ! grep -q of-guest $p/cmdline; \
                     then echo ${p#/proc/}; fi; done 2>/dev/null";

/// `edge` is a machine with a web server, and its programs see that of `pages`, a container, whose
/// programs see that of `edge`.
fn topology() -> String {
    let image = machines::booting(machines::image(env!("CARGO_BIN_EXE_channel_peer")));
    let mounts = |service: &str, at: &str| format!("services = {{ {service} = {{ at = \"{at}\" }} }}");
    let again = "restart = { policy = \"always\", backoff = \"50ms\" }";
    let service = |name: &str, host: &str, port: u16, whom: &str| {
        format!(
            "\n[service.{name}]\nkind = \"socket\"\ndomain = \"{host}\"\nto = \"tcp:{port}\"\n\
             allow = [{{ domains = [\"{whom}\"], verbs = [\"connect\"] }}]\n"
        )
    };
    let web = "[\"python3\", \"-m\", \"http.server\", \"8080\", \"--bind\", \"127.0.0.1\", \"--directory\", \"/usr\"]";
    let httpd = ["httpd", "-f", "-p", "127.0.0.1:8000", "-h", "/"];
    "name = \"shop\"\n".to_owned()
        + &machines::domain("edge", &httpd, &image, &format!("{again}\n{}", mounts("pages", "tcp:80")))
        + &container("pages", web, &mounts("guest", "tcp:81"))
        + &service("pages", "pages", 8080, "edge")
        + &service("guest", "edge", 8000, "pages")
}

/// A client in the guest that has connected, and says nothing yet.
struct Client(Child);

impl Client {
    fn connected(node: &Node) -> Self {
        let open = || sockets(node, "pages")["relay"]["serves"]["pages"]["open"].as_u64();
        let before = open().unwrap_or(0);
        let mut command = node.command(&["exec", "-i", "edge", "--", "nc", "127.0.0.1", "80"]);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("exec starts");
        let client = Self(child);
        wait::until("it has connected", || open().is_some_and(|open| open > before));
        client
    }

    /// The first line of the server's answer to a request.
    fn asks(&mut self) -> String {
        let mut input = self.0.stdin.take().expect("its input");
        input.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("it listens");
        let mut line = String::new();
        let output = self.0.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("it answers");
        line.trim().to_owned()
    }

    /// Waits until the connection is over.
    fn ends(&mut self) {
        let mut rest = Vec::new();
        self.0.stdout.take().expect("its output").read_to_end(&mut rest).expect("it ends");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Asks in the oldest way, whose answer has nothing but the page: the `wget` of a busybox that is
/// linked statically can't look up even an address.
fn fetch(page: &str) -> String {
    format!("printf 'GET {page}\\r\\n\\r\\n' | nc 127.0.0.1 80")
}

/// The guest's client is answered by the container's server.
fn asks_from_the_guest(node: &Node) -> bool {
    machines::shell(node, "edge", &fetch("/share/common-licenses/")).out.contains("GPL-3")
}

/// The container's client is answered by the guest's server.
fn asks_the_guest(node: &Node) -> bool {
    node.shell("pages", "curl -fsS -m 20 http://127.0.0.1:81/etc/hostname").out.trim() == "edge"
}

#[test]
fn sockets_lead_into_machines_and_out_of_them() {
    let Some(node) = machines::start() else { return };
    node.up_ok(&topology());
    let told = || machines::logs(&node, "edge") + &node.daemon_log();
    wait::until_within("the guest reaches the container", RESTART, || asks_from_the_guest(&node));
    wait::until("the container reaches the guest", || asks_the_guest(&node));
    // Whole, both ways.
    let sum = node.shell_ok("pages", "sha256sum < /usr/bin/curl");
    let got = shell_ok(&node, "edge", &format!("{} | sha256sum", fetch("/bin/curl")));
    assert_eq!(got, sum, "{}", told());
    let made = "dd if=/dev/urandom of=/tmp/much bs=64k count=64 2>/dev/null; sha256sum < /tmp/much";
    let sum = shell_ok(&node, "edge", made);
    let got = node.shell_ok("pages", "curl -fsS -m 60 http://127.0.0.1:81/tmp/much | sha256sum");
    assert_eq!(got, sum, "{}", told());
    let seen = sockets(&node, "edge");
    assert!(seen["relay"]["mounts"]["pages"]["opened"].as_u64().is_some_and(|opened| opened >= 2), "{seen}");
    assert!(seen["relay"]["serves"]["guest"]["domains"]["pages"]["opened"].is_u64(), "{seen}");
    // The daemon dies: what is open goes on, and the next one finds the relay of the guest.
    let relay = shell_ok(&node, "edge", RELAY);
    let mut client = Client::connected(&node);
    node.kill_daemon();
    node.up_ok(&topology());
    assert_eq!(client.asks(), "HTTP/1.0 200 OK", "{}", told());
    wait::until("the next daemon knows the relay", || sockets(&node, "edge")["relay"].is_object());
    assert_eq!(shell_ok(&node, "edge", RELAY), relay);
    // The relay dies: what is open ends, and its successor serves.
    let mut client = Client::connected(&node);
    shell_ok(&node, "edge", &format!("kill -9 {}", relay.trim()));
    client.ends();
    wait::until("the guest reaches the container again", || asks_from_the_guest(&node));
    wait::until("the container reaches the guest again", || asks_the_guest(&node));
    // The machine dies.
    for qemu in machines::qemus(&node, "edge") {
        node::kill(qemu);
    }
    wait::until_within("the next guest serves", RESTART, || asks_the_guest(&node));
    wait::until("and reaches the container", || asks_from_the_guest(&node));
}
