//! Promises of the network: kept beside a flood, for what is sent, what comes in and what domains
//! of a node say to each other; found by the next daemon, given back with the last domain, and
//! never at the expense of what somebody else has made of the link.

use e2e::cluster::{Bed, Host, address};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How long something may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(25);
/// Bytes after which it is looked who has sent how much: some thousand packets.
const ENOUGH: u64 = 2_000_000;

/// A domain that sends datagrams to a port of another node as fast as it can.
fn sender(name: &str, port: u16, rate: &str, class: &str) -> String {
    let program = format!(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nwhile True:\n  try:\n    s.sendto(bytes(1200), ('{}', {port}))\n  except OSError:\n    pass\n",
        address(1)
    );
    domain(name, &program, rate, class)
}

/// A domain to which they are sent.
fn receiver(name: &str, port: u16, rate: &str, class: &str) -> String {
    let program = format!(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind(('0.0.0.0', {port}))\nwhile True:\n  s.recv(2000)\n"
    );
    domain(name, &program, rate, class)
}

fn domain(name: &str, program: &str, rate: &str, class: &str) -> String {
    let command = serde_json::to_string(&["python3", "-c", program]).expect("it can be written");
    format!(
        "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\ncommand = {command}\nstop = {{ timeout = \"0ms\" }}\n\
         reserve = {{ network = {{ rate = \"{rate}\", class = \"{class}\" }} }}\n\n"
    )
}

fn show(host: &Host, name: &str) -> Value {
    host.json(&["reserve", "show", name])
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no {key}: {row}"))
}

/// The output of a program in the node's namespaces.
fn said(host: &Host, program: &str, arguments: &[&str]) -> String {
    let output = host.inside(Path::new(program)).args(arguments).output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

fn ip(host: &Host, arguments: &[&str]) {
    let output = host.inside(Path::new("ip")).args(arguments).output().expect("it starts");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The kernel's setting for a domain: a file of version 1 of cgroups, in one of these hierarchies,
/// or of version 2.
fn kept(host: &Host, name: &str, (hierarchies, one): (&[&str], &str), two: &str) -> String {
    let top = std::fs::read_to_string(host.run_dir().join("cgroup")).expect("the cgroup");
    let top = top.trim();
    let read = |path: String| std::fs::read_to_string(path).ok();
    let first =
        hierarchies.iter().find_map(|mount| read(format!("/sys/fs/cgroup/{mount}/{top}/{name}/{one}")));
    let text = first.or_else(|| read(format!("/sys/fs/cgroup/{top}/{name}/{two}")));
    text.expect("a file of the kernel").trim().to_owned()
}

/// The quota that the kernel keeps, in µs.
fn quota_us(host: &Host, name: &str) -> u64 {
    let text = kept(host, name, (&["cpu,cpuacct", "cpu"], "cpu.cfs_quota_us"), "cpu.max");
    text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

/// The objects of ours that are left on the node's interfaces.
fn left(host: &Host) -> String {
    let all = said(host, "tc", &["qdisc", "show"]) + &said(host, "ip", &["link", "show"]);
    let ours = |line: &&str| ["7462", "clsact", "ifb", "tombolo"].iter().any(|word| line.contains(word));
    all.lines().filter(ours).collect::<Vec<_>>().join("\n")
}

/// How much two have moved while the first moved enough.
fn meanwhile(bed: &Bed, host: &Host, names: [&str; 2], key: &str) -> [u64; 2] {
    let count = |name: &str| number(&show(host, name), key);
    bed.until("both move something", TIMEOUT, || names.iter().all(|name| count(name) > 10_000));
    let before = names.map(count);
    let mut now = before;
    bed.until("the first has moved enough", TIMEOUT, || {
        now = names.map(count);
        now[0] - before[0] > ENOUGH
    });
    [now[0] - before[0], now[1] - before[1]]
}

/// How often it is measured who gets how much, and how often the first has to get more than twice
/// what the other does: on a busy machine it may be without a processor at one time, and then asks
/// for nothing.
const SPANS: usize = 5;
/// See [`SPANS`].
const GOOD_SPANS: usize = 3;

/// Insists that the first gets more than twice what the other does in [`GOOD_SPANS`] of [`SPANS`]
/// spans.
fn gets_most(what: &str, mut measure: impl FnMut() -> [u64; 2]) {
    let moved: Vec<[u64; 2]> = (0..SPANS).map(|_| measure()).collect();
    let good = moved.iter().filter(|[first, other]| *first > 2 * other).count();
    assert!(good >= GOOD_SPANS, "{what}, in {SPANS} spans: {moved:?}");
}

#[test]
fn gold_keeps_its_rate_beside_a_flood_sent_and_received_whoever_dies() {
    let Some(bed) = Bed::start(2) else { return };
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    bed.start_daemon(alpha);
    bed.start_daemon(beta);
    // What comes to beta is three times what it takes, and most of it for whom it has promised
    // least.
    alpha.ok(&["reserve", "node", "--link", "eth0=40mbit"]);
    beta.ok(&["reserve", "node", "--link", "eth0=10mbit"]);
    beta.up_ok(&format!(
        "name = \"take\"\n\n{}{}",
        receiver("gold", 5001, "7mbit", "gold"),
        receiver("rest", 5002, "1mbit", "best-effort")
    ));
    alpha.up_ok(&format!(
        "name = \"give\"\n\n{}{}",
        sender("flood", 5001, "8mbit", "best-effort"),
        sender("gold", 5002, "30mbit", "gold")
    ));
    let none = Value::Array(Vec::new());
    for (host, name) in [(alpha, "gold"), (alpha, "flood"), (beta, "gold"), (beta, "rest")] {
        assert_eq!(show(host, name)["caveats"], none, "{}", show(host, name));
    }
    gets_most("bytes that gold and the flood sent", || {
        meanwhile(&bed, alpha, ["gold", "flood"], "network_sent_bytes")
    });
    gets_most("bytes that gold and the rest received", || {
        meanwhile(&bed, beta, ["gold", "rest"], "network_received_bytes")
    });

    // The kernel goes on by itself, and the next daemon goes on from there.
    let before = number(&show(alpha, "gold"), "network_sent_bytes");
    alpha.kill_role("daemon");
    let classes = || said(alpha, "tc", &["class", "show", "dev", "eth0"]);
    assert!(classes().contains("rate 30Mbit") && left(alpha).contains("tombolo"), "{}", classes());
    bed.start_daemon(alpha);
    bed.until("the next daemon knows them", TIMEOUT, || {
        let row = show(alpha, "gold");
        row["in_force"] == true && row["network_sent_bytes"].as_u64().is_some_and(|now| now > before)
    });
    assert_eq!(classes().lines().filter(|line| line.contains("parent 7462:1")).count(), 3, "{}", classes());
    let moved = alpha.json(&["adapt", "gold", "flood", "--network", "10mbit"]);
    assert_eq!(number(&moved, "shrinking"), 1, "{moved}");
    assert!(classes().contains("rate 20Mbit") && classes().contains("rate 18Mbit"), "{}", classes());
    let over = alpha.run(&["reserve", "set", "gold", "--network", "30mbit"]);
    assert!(over.code == 1 && over.err.contains("the node can't keep this"), "{}", over.err);

    for host in [alpha, beta] {
        host.ok(&["down"]);
        assert_eq!(left(host), "", "on {}", host.name());
    }
    bed.finish();
}

#[test]
fn a_link_that_goes_comes_back_or_is_somebody_elses_is_told_and_nothing_is_half_changed() {
    let Some(bed) = Bed::start(1) else { return };
    let host = bed.host(0);
    bed.start_daemon(host);
    let node = |link: &str| host.run(&["reserve", "node", "--link", link]);
    for (link, code, words) in [
        ("nothing0=1mbit", 1, "nothing0 can't be the link"),
        ("eth0=0mbit", 2, "error"),
        ("eth0=-1mbit", 2, "error"),
        ("eth0=5 furlongs", 2, "error"),
        ("eth0=999999999gbit", 1, "no link carries"),
        ("eth0", 2, "as eth0=100mbit"),
        ("../eth0=1mbit", 1, "is no name of an interface"),
    ] {
        let run = node(link);
        assert!(run.code == code && run.err.contains(words), "{link}: {} {}", run.code, run.err);
    }
    // Somebody else's stays.
    let tbf = ["root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "4kb", "latency", "1s"];
    said(host, "tc", &[&["qdisc", "add", "dev", "eth0"], &tbf[..]].concat());
    let run = node("eth0=10mbit");
    assert!(
        run.code == 1 && run.err.contains("somebody else has `tbf 1:` at the root of eth0"),
        "{}",
        run.err
    );
    assert!(said(host, "tc", &["qdisc", "show", "dev", "eth0"]).contains("tbf 1:"));

    let add = || {
        ip(host, &["link", "add", "tide0", "type", "veth", "peer", "name", "tide1"]);
        ip(host, &["link", "set", "tide0", "up"]);
    };
    add();
    assert_eq!(node("tide0=10mbit").code, 0);
    let less = host.run(&["reserve", "node", "--between", "1mbit"]);
    assert!(less.code == 1 && less.err.contains("less than"), "{}", less.err);
    host.ok(&["reserve", "node", "--between", "1gbit"]);
    let text = "name = \"shop\"\n\n[domain.web]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\ncommand = [\"sleep\", \"infinity\"]\nstop = { timeout = \"0ms\" }\n\
                reserve = { strict = true, cpu = { budget = \"4ms\", period = \"40ms\" }, network = { rate = \"5mbit\", class = \"gold\" }, memory = \"16MiB\" }\n";
    host.up_ok(text);
    let rate = || number(&show(host, "web")["reserve"]["network"], "rate_bits");
    let budget = || number(&show(host, "web")["reserve"]["cpu"], "budget_ns");
    let quota_us = || quota_us(host, "shop/web");
    assert_eq!(quota_us(), 4_000);
    let classes = |device: &str| said(host, "tc", &["class", "show", "dev", device]);
    assert!(classes("tide0").contains("rate 5Mbit") && classes("lo").contains("rate 5Mbit"));
    // Any process, and what it says to others of this node.
    let program = "import socket, sys\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nfor n in range(100): s.sendto(bytes(1200), ('127.0.0.1', 9))\nsys.stdin.read()\n";
    let mut run = host.command(&[
        "reserve",
        "run",
        "--name",
        "talk",
        "--network",
        "1mbit",
        "--",
        "python3",
        "-c",
        program,
    ]);
    let mut run = run
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    bed.until("what it says to others is counted", TIMEOUT, || {
        let row = host.run(&["reserve", "show", "talk", "--json"]);
        let row: Value = serde_json::from_str(&row.out).unwrap_or_default();
        row["network_between_bytes"].as_u64().is_some_and(|bytes| bytes >= 120_000)
    });
    drop(run.stdin.take());
    assert!(run.wait().expect("it ends").success());

    // A link with another name is the same link.
    ip(host, &["link", "set", "tide0", "down"]);
    ip(host, &["link", "set", "tide0", "name", "tide9"]);
    ip(host, &["link", "set", "tide9", "up"]);
    host.ok(&["reserve", "set", "web", "--network", "4mbit"]);
    assert!(classes("tide9").contains("rate 4Mbit"), "{}", classes("tide9"));
    ip(host, &["link", "set", "tide9", "name", "tide0"]);

    // One that is gone: told, and an adaptation that can't be done changes nothing of the
    // processor.
    ip(host, &["link", "del", "tide0"]);
    bed.until("it is told that the link is gone", TIMEOUT, || {
        show(host, "web")["caveats"].to_string().contains("the network is not kept now")
    });
    bed.until("nothing of it is left but at lo", TIMEOUT, || !left(host).contains("tombolo"));
    let refused = host.run(&["reserve", "set", "web", "--budget", "2ms", "--network", "3mbit"]);
    assert!(refused.code == 1 && refused.err.contains("all is as before"), "{}", refused.err);
    assert_eq!((budget(), rate(), quota_us()), (4_000_000, 4_000_000, 4_000));
    add();
    bed.until("classes are there again", TIMEOUT, || classes("tide0").contains("rate 4Mbit"));
    bed.until("nothing is missing", TIMEOUT, || show(host, "web")["caveats"] == Value::Array(Vec::new()));

    // Somebody takes the place of our classes: refused as a whole, and theirs stays.
    said(host, "tc", &[&["qdisc", "replace", "dev", "tide0"], &tbf[..]].concat());
    let refused = host.run(&["reserve", "set", "web", "--budget", "2ms", "--network", "3mbit"]);
    assert!(refused.code == 1 && refused.err.contains("somebody else has `tbf 1:`"), "{}", refused.err);
    assert_eq!((budget(), rate(), quota_us()), (4_000_000, 4_000_000, 4_000));
    assert!(said(host, "tc", &["qdisc", "show", "dev", "tide0"]).contains("tbf 1:"));
    said(host, "tc", &["qdisc", "del", "dev", "tide0", "root"]);
    host.ok(&["reserve", "set", "web", "--budget", "8ms", "--network", "3mbit"]);
    assert_eq!((budget(), rate()), (8_000_000, 3_000_000));
    assert!(classes("tide0").contains("rate 3Mbit"));

    host.ok(&["down"]);
    assert_eq!(left(host), "");
    bed.finish();
}

#[test]
fn one_adaptation_moves_the_processor_the_network_memory_and_the_disk_or_nothing() {
    let Some(bed) = Bed::start(1) else { return };
    let host = bed.host(0);
    bed.start_daemon(host);
    ip(host, &["link", "add", "tide0", "type", "veth", "peer", "name", "tide1"]);
    ip(host, &["link", "set", "tide0", "up"]);
    host.ok(&["reserve", "node", "--link", "tide0=10mbit"]);
    let domain = |name: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"host\"\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ timeout = \"0ms\" }}\n\
             reserve = {{ cpu = {{ budget = \"8ms\", period = \"40ms\" }}, network = {{ rate = \"4mbit\" }}, memory = \"16MiB\", io = {{ bytes = \"4MB\" }} }}\n\n"
        )
    };
    host.up_ok(&format!("name = \"film\"\n\n{}{}", domain("gold"), domain("rest")));
    // A state directory on no disk has none to throttle, which is told.
    let throttled = !show(host, "gold")["caveats"].to_string().contains("the disk is not kept");
    let of_kernel = |name: &str| {
        let file = |hierarchy: &str, one: &str, two: &str| {
            kept(host, &format!("film/{name}"), (&[hierarchy], one), two)
        };
        let disk = match throttled {
            true => file("blkio", "blkio.throttle.write_bps_device", "io.max"),
            false => String::new(),
        };
        (
            quota_us(host, &format!("film/{name}")),
            file("memory", "memory.soft_limit_in_bytes", "memory.low"),
            disk,
        )
    };
    let rate = |name: &str| number(&show(host, name)["reserve"]["network"], "rate_bits");
    let classes = || said(host, "tc", &["class", "show", "dev", "tide0"]);
    let all = ["--cpu", "2ms", "--network", "1mbit", "--memory", "4MiB", "--io-bytes", "1MB"];
    let moved = host.json(&[&["adapt", "rest", "gold"], &all[..]].concat());
    assert!(moved["commit_us"].as_u64().is_some_and(|us| us > 0), "{moved}");
    let steps = moved["steps"].to_string();
    assert!(steps.contains("disk 4000000B a second to 3000000B a second\""), "{steps}");
    let (gold, rest) = (of_kernel("gold"), of_kernel("rest"));
    assert_eq!((gold.0, rest.0), (10_000, 6_000));
    assert_eq!((rate("gold"), rate("rest")), (5_000_000, 3_000_000));
    assert!(classes().contains("rate 5Mbit") && classes().contains("rate 3Mbit"), "{}", classes());
    assert_eq!((gold.1.as_str(), rest.1.as_str()), ("20971520", "12582912"));
    assert!(!throttled || gold.2.contains("5000000") && rest.2.contains("3000000"), "{gold:?} {rest:?}");

    // Somebody else has the link, so its part can't be done: nothing moves.
    let tbf = ["root", "handle", "1:", "tbf", "rate", "1mbit", "burst", "4kb", "latency", "1s"];
    said(host, "tc", &[&["qdisc", "replace", "dev", "tide0"], &tbf[..]].concat());
    let refused = host.run(&[&["adapt", "rest", "gold"], &all[..]].concat());
    assert!(refused.code == 1 && refused.err.contains("somebody else has `tbf 1:`"), "{}", refused.err);
    assert_eq!((of_kernel("gold"), of_kernel("rest")), (gold, rest));
    assert_eq!((rate("gold"), rate("rest")), (5_000_000, 3_000_000));
    said(host, "tc", &["qdisc", "del", "dev", "tide0", "root"]);
    host.ok(&["down"]);
    assert_eq!(left(host), "");
    bed.finish();
}

#[test]
fn proxies_of_a_cluster_know_what_domains_are_promised_and_hear_of_adaptations() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let alpha = bed.host(0);
    for host in bed.hosts() {
        host.ok(&["reserve", "node", "--link", "eth0=50mbit"]);
    }
    // One of them has no network but the link.
    let domain = |name: &str, rate: &str, more: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnode = \"alpha\"\ncommand = [\"sleep\", \"infinity\"]\n\
             stop = {{ timeout = \"0ms\" }}\n{more}\nreserve = {{ network = {{ rate = \"{rate}\", class = \"gold\" }} }}\n\n"
        )
    };
    let text = format!(
        "name = \"test\"\n\n{}{}[service.frames]\nkind = \"channel\"\ndomain = \"camera\"\nallow = [{{ domains = [\"viewer\"], verbs = [\"open\"] }}]\n",
        domain("camera", "20mbit", ""),
        domain("viewer", "10mbit", "network = \"host\"")
    );
    alpha.up_ok(&text);
    let shown = || alpha.json(&["link", "show", "beta"])["state"]["shares"].clone();
    let rate = |name: &str| shown()["classes"][format!("test/{name}")]["rate_bits"].as_u64();
    bed.until("the proxy knows the classes", TIMEOUT, || {
        (rate("camera"), rate("viewer")) == (Some(20_000_000), Some(10_000_000))
    });
    // It has a class of the link of its own, before all who borrow: what nobody is promised.
    let classes = said(alpha, "tc", &["class", "show", "dev", "eth0"]);
    assert!(
        classes.lines().any(|line| line.contains("prio 0 rate 20Mbit ceil 50Mbit burst 64Kb")),
        "{classes}"
    );
    alpha.ok(&["adapt", "camera", "viewer", "--network", "5mbit"]);
    bed.until("the proxy hears of the adaptation", TIMEOUT, || {
        (rate("camera"), rate("viewer")) == (Some(15_000_000), Some(15_000_000))
    });
    // The next daemon finds the proxy, and tells it anew.
    alpha.kill_role("daemon");
    bed.start_daemon(alpha);
    bed.until("the proxy that was found knows the classes", TIMEOUT, || rate("camera") == Some(15_000_000));
    alpha.ok(&["down", "test"]);
    bed.until("there are no classes any more", TIMEOUT, || shown()["rate_bits"] == 0);
    assert_eq!(left(alpha), "");
    bed.finish();
}

/// Takes what two domains of the other node send, and says each time that another 64 KiB of one
/// have come.
const SINK: &str = "
import threading, tombolo
def take(name, channel):
  had = 0
  with channel:
    while True:
      message = channel.read()
      if message is None:
        return
      had += len(message)
      while had >= 65536:
        had -= 65536
        print('had', name, flush=True)
def offer(name):
  with tombolo.offer(name) as offered:
    for channel in offered:
      threading.Thread(target=take, args=(name, channel), daemon=True).start()
other = threading.Thread(target=offer, args=('of-gold',), daemon=True)
other.start()
offer('of-flood')
";

/// Sends to one of them as fast as it is taken.
const FLOOD: &str = "
import sys, tombolo
with tombolo.open(sys.argv[1], wait=100) as channel:
  while True:
    channel.write(bytes(8192))
";

/// How long the cluster has for what is judged: nothing but minutes without a processor takes as
/// long.
const LONG_TIMEOUT: Duration = Duration::from_secs(120);
/// How often 64 KiB of the first are waited for before it is looked what the other one has had:
/// about two megabytes.
const TURNS: usize = 32;

#[test]
fn a_gold_pair_keeps_its_rate_while_another_floods_through_the_same_proxies() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    alpha.ok(&["reserve", "node", "--link", "eth0=10mbit"]);
    let one = |name: &str, node: &str, command: &[&str], more: &str| {
        let command = serde_json::to_string(command).expect("it can be written");
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnode = \"{node}\"\ncommand = {command}\nstop = {{ timeout = \"0ms\" }}\n\
             environment = {{ PYTHONPATH = \"/run/tombolo/python\" }}\n{more}\n"
        )
    };
    let sends = |name: &str, rate: &str, class: &str| {
        let reserve = format!("reserve = {{ network = {{ rate = \"{rate}\", class = \"{class}\" }} }}\n");
        one(name, "alpha", &["python3", "-c", FLOOD, &format!("of-{name}")], &reserve)
    };
    let service = |name: &str| {
        format!(
            "[service.of-{name}]\nkind = \"channel\"\ndomain = \"sink\"\nallow = [{{ domains = [\"{name}\"], verbs = [\"open\"] }}]\n\n"
        )
    };
    let text = format!(
        "name = \"test\"\n\n{}{}{}{}{}",
        one("sink", "beta", &["python3", "-c", SINK], ""),
        sends("gold", "8mbit", "gold"),
        sends("flood", "1mbit", "best-effort"),
        service("gold"),
        service("flood")
    );
    // What alpha has is told to the cluster with its next sign of life, the link with it.
    bed.until("it comes up", LONG_TIMEOUT, || {
        let up = alpha.up(&text);
        println!("{}", up.err);
        up.code == 0
    });
    let had = || {
        let log = beta.run(&["logs", "sink"]).out;
        ["had of-gold", "had of-flood"].map(|said| log.lines().filter(|line| line.contains(said)).count())
    };
    // Both are on their way; what was sent before the classes were known does not count.
    bed.until("both have sent something", LONG_TIMEOUT, || had().iter().all(|count| *count >= 2));
    let shown = || alpha.json(&["link", "show", "beta"])["state"]["shares"]["classes"].clone();
    bed.until("the proxy knows the classes", LONG_TIMEOUT, || {
        ["test/gold", "test/flood"].iter().all(|name| shown()[name]["rate_bits"].is_u64())
    });
    // Eight of ten to one: more than twice as much is enough to tell.
    gets_most("64 KiB that gold and the flood have had", || {
        let before = had();
        let mut now = before;
        bed.until("gold goes on", LONG_TIMEOUT, || {
            now = had();
            now[0] >= before[0] + TURNS
        });
        [now[0] - before[0], now[1] - before[1]].map(|count| count as u64)
    });
    // What gold leaves is the other one's.
    let before = had();
    alpha.ok(&["reserve", "suspend", "gold"]);
    bed.until("the flood has what is left", LONG_TIMEOUT, || had()[1] >= before[1] + TURNS);
    alpha.ok(&["reserve", "resume", "gold"]);
    alpha.ok(&["down", "test"]);
    assert_eq!(left(alpha), "");
    bed.finish();
}

/// A domain that floods a port of another node by this many sockets; what adaptation it has.
fn flooding(name: &str, port: u16, sockets: usize, monitor: &str) -> String {
    let program = format!(
        "import socket\nall = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range({sockets})]\n\
         for s in all:\n  s.setblocking(False)\nwhile True:\n  for s in all:\n    try:\n      s.sendto(bytes(1200), ('{}', {port}))\n    except OSError:\n      pass\n",
        address(1)
    );
    domain(name, &program, "2mbit", "gold")
        + &format!(
            "[adaptation.{name}]\ndomain = \"{name}\"\nmonitor = \"{monitor}\"\npause = \"100ms\"\n\
             more = {{ above = 5 }}\nless = {{ below = 1, samples = 1000 }}\n\
             network = {{ least = \"2mbit\", most = \"6mbit\", step = \"2mbit\" }}\n\n"
        )
}

#[test]
fn a_class_whose_queue_fills_or_loses_packets_is_given_more() {
    let Some(bed) = Bed::start(2) else { return };
    let alpha = bed.host(0);
    bed.start_daemon(alpha);
    alpha.ok(&["reserve", "node", "--link", "eth0=40mbit"]);
    // One socket waits for its own packets; many together have more than the queue takes.
    alpha.up_ok(&format!(
        "name = \"give\"\n\n{}{}",
        flooding("patient", 5001, 1, "queue"),
        flooding("mob", 5002, 64, "loss")
    ));
    for name in ["patient", "mob"] {
        bed.until("it has all that its file allows", TIMEOUT, || {
            show(alpha, name)["reserve"]["network"]["rate_bits"] == 6_000_000
        });
        let row = alpha.json(&["adaptation", "show", name]);
        assert!(row["last_change"]["what"].as_str().is_some_and(|what| what.contains("above 5")), "{row}");
    }
    alpha.ok(&["down"]);
    assert_eq!(left(alpha), "");
    bed.finish();
}
