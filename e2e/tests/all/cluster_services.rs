//! Services over links: who asks, who answers and whom that one asks are on three nodes.

use e2e::cluster::{Bed, Host, address};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(25);

/// The quickstart over three nodes: the name server on gamma, the backend on beta, and on alpha a
/// container that has no network.
fn quickstart() -> String {
    let server = address(2);
    format!(
        r#"
name = "test"

[domain.nameserver]
kind = "process"
node = "gamma"
command = [
    "/usr/sbin/dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--log-facility=-", "--user=nobody", "--group=nogroup",
    "--no-resolv", "--no-hosts", "--port=5354", "--host-record=www.quickstart.test,192.0.2.7",
]
capabilities = ["SETGID", "SETUID"]
ready = {{ tcp = "127.0.0.1:5354" }}
restart = {{ policy = "always", backoff = "50ms" }}

[domain.resolver]
kind = "container"
root = "host"
network = "host"
node = "beta"
after = ["nameserver"]
restart = {{ policy = "always", backoff = "50ms" }}

[domain.web]
kind = "container"
root = "host"
node = "alpha"
command = ["sleep", "infinity"]
services = {{ dns = "/srv/dns" }}

[service.dns]
kind = "directory"
domain = "resolver"
allow = [{{ domains = ["web"], verbs = ["resolve"] }}]

[service.dns.settings]
upstream = ["{server}:5354"]
timeout = "1s"
retries = 2
cache = {{ mode = "none" }}
"#
    )
}

/// Whether an unmodified program of the container on alpha gets an answer.
fn resolves(host: &Host) -> bool {
    host.run(&["exec", "web", "--", "getent", "ahostsv4", "www.quickstart.test"]).out.contains("192.0.2.7")
}

#[test]
fn a_container_resolves_through_a_backend_and_a_name_server_of_other_nodes() {
    let Some(bed) = Bed::with_etcd(3, 3) else { return };
    bed.join_all(3, &[]);
    let alpha = bed.host(0);
    alpha.up_ok(&quickstart());
    bed.until("the name is resolved over the link", TIMEOUT, || resolves(alpha));
    let interfaces =
        alpha.ok(&["exec", "web", "--", "sh", "-c", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"]);
    assert_eq!(interfaces, "lo\n", "the container has more than lo");
    let links = alpha.json(&["link", "ls"]);
    assert!(links.as_array().is_some_and(|links| links.len() == 2), "{links}");
    // While it is in use the link goes over to another transport.
    alpha.ok(&["link", "set", "beta", "--transport", "quic"]);
    bed.until("the name is resolved over the other transport", TIMEOUT, || resolves(alpha));
    // Whoever is cut off gets its answer when the link is healed.
    bed.switch().cut(bed.host(1).port());
    bed.switch().heal(bed.host(1).port());
    bed.until("the name is resolved after the cut", TIMEOUT, || resolves(alpha));
    // The proxies of the node with the backend die.
    bed.host(1).kill_role("proxy");
    bed.until("the name is resolved by the next proxies", TIMEOUT, || resolves(alpha));
    alpha.ok(&["down", "test"]);
    bed.finish();
}

/// Looks the name up again and again until it is told to end; prints what was lost, and at the end
/// how many there were.
pub(crate) const LOOKUPS: &str = "n=0; while [ ! -e /tmp/enough ]; do
    getent ahostsv4 www.quickstart.test | grep -q 192.0.2.7 || echo lost $n; n=$((n + 1)); done; echo asked $n";

#[test]
fn a_link_in_use_goes_over_to_raw_ethernet_and_back_without_losing_a_message() {
    let Some(bed) = Bed::with_etcd(3, 3) else { return };
    bed.join_all(3, &[]);
    let alpha = bed.host(0);
    alpha.up_ok(&quickstart());
    bed.until("the name is resolved over the link", TIMEOUT, || resolves(alpha));
    let mut asking = alpha
        .command(&["exec", "web", "--", "sh", "-c", LOOKUPS])
        .stdout(Stdio::piped())
        .spawn()
        .expect("look names up");
    let carried = |by: &str| {
        let links = alpha.json(&["link", "ls"]);
        let beta = links.as_array().into_iter().flatten().find(|link| link["node"] == "beta");
        beta.is_some_and(|beta| beta["up"] == true && beta["transport"] == by)
    };
    let messages = || alpha.json(&["link", "show", "beta"])["messages_in"].as_u64().unwrap_or(0);
    for transport in ["ethernet", "tcp", "ethernet"] {
        alpha.ok(&["link", "set", "beta", "--transport", transport]);
        bed.until("the link goes over the other transport", TIMEOUT, || carried(transport));
        let before = messages();
        bed.until("names are resolved over it", TIMEOUT, || messages() >= before + 4);
    }
    // What lacks for TIPC is said on both nodes, and the link stays on what it has.
    alpha.ok(&["link", "set", "beta", "--transport", "tipc"]);
    let why = |host: &Host, node: &str, words: [&str; 2]| {
        let link = host.json(&["link", "show", node]);
        words.iter().any(|words| link["why"].as_str().is_some_and(|why| why.contains(words)))
    };
    bed.until("beta says what TIPC takes, or listens", TIMEOUT, || {
        let listens = bed.host(1).json(&["link", "show", "alpha"])["at"].to_string().contains("tipc:");
        listens || why(bed.host(1), "alpha", ["modprobe tipc", "modprobe tipc"])
    });
    bed.until("alpha says why it is not there", TIMEOUT, || {
        why(alpha, "beta", ["does not listen by tipc", "tipc bearer"])
    });
    assert!(carried("ethernet"));
    alpha.ok(&["link", "set", "beta", "--transport", "ethernet"]);
    alpha.ok(&["exec", "web", "--", "touch", "/tmp/enough"]);
    let mut said = String::new();
    let mut out = asking.stdout.take().expect("its output");
    out.read_to_string(&mut said).expect("what was lost");
    assert!(asking.wait().expect("its end").success());
    assert!(said.starts_with("asked "), "{said}");
    bed.host(1).kill_role("proxy");
    bed.until("the next proxies speak over Ethernet as well", TIMEOUT, || carried("ethernet"));
    bed.until("the name is resolved by the next proxies", TIMEOUT, || resolves(alpha));
    frames_go_over_the_interface_that_is_chosen(&bed);
    alpha.ok(&["down", "test"]);
    bed.finish();
}

/// Of a link that goes over raw Ethernet by the first cards.
fn frames_go_over_the_interface_that_is_chosen(bed: &Bed) {
    let [a, b] = [bed.host(0), bed.host(1)];
    bed.switch().plug_second(a.port());
    bed.switch().plug_second(b.port());
    let over = |host: &Host, peer: &str, card: &str| {
        let link = host.json(&["link", "show", peer]);
        link["up"] == true && link["transport"] == "ethernet" && link["interface"] == card
    };
    let both_over = |card: &str| over(a, "beta", card) && over(b, "alpha", card);
    bed.until("both say which interface frames go over", TIMEOUT, || both_over("eth0"));
    for (wrong, why) in [("nope", "interface nope"), ("lo", "lo is no Ethernet"), ("", "interface")] {
        let refused = a.run(&["link", "set", "beta", "--interface", wrong]);
        assert!(refused.code == 2 && refused.err.contains(why), "{refused:?}");
    }
    a.ok(&["link", "set", "beta", "--interface", "eth1"]);
    b.ok(&["link", "set", "alpha", "--interface", "eth1"]);
    bed.until("the link goes over the others", TIMEOUT, || both_over("eth1"));
    // A daemon that comes later keeps to it.
    a.kill_role("daemon");
    bed.start_daemon(a);
    bed.until("the link goes over it still", TIMEOUT, || both_over("eth1"));
    let before = [a, b].map(|host| received(host, "eth1"));
    bed.until("names are resolved over it", TIMEOUT, || {
        let now = [a, b].map(|host| received(host, "eth1"));
        resolves(a) && now.iter().zip(before).all(|(now, before)| *now >= before + 10)
    });
}

/// How many packets a card of a node has received.
fn received(host: &Host, card: &str) -> u64 {
    let mut ip = Command::new("ip");
    let shown = ip.args(["-n", &host.port().namespace, "-s", "-j", "link", "show", "dev", card]).output();
    let shown: serde_json::Value =
        serde_json::from_slice(&shown.expect("ip(8)").stdout).expect("what ip(8) says of a card");
    shown.pointer("/0/stats64/rx/packets").and_then(serde_json::Value::as_u64).expect("a number")
}
