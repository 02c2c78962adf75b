//! Gateways of event channels: a real broker of MQTT and its own clients, whatever vanishes and
//! comes back.

use crate::events::{PUBLISHER, Program, await_subscribers, channel};
use e2e::{Node, node, wait};
use std::fs;

/// Publishes numbers until it is told to stop, some thousand in a second, and says how many they
/// are. Without readers it waits.
pub(crate) const ENDLESS: &str = r#"
import os, time
pub = os.open("/srv/events/alarms/pub", os.O_WRONLY)
n = 0
while not os.path.exists("/tmp/stop"):
    os.write(pub, b"%d" % n)
    n += 1
    if n % 8 == 0: time.sleep(0.001)
print(n)
"#;
/// Where the broker's domain sees its programs.
const MOSQUITTO: &str = "/opt/mosquitto/usr";
const CONFIG: &str = "listener 1883 127.0.0.1\nallow_anonymous true\nuser root\npersistence true\npersistence_location /broker/\n\
                      max_queued_messages 0\nlog_type none\n";

/// `sensor` publishes and `panel` subscribes; `gateway` has only `lo`, where it reaches the broker.
fn topology(node: &Node) -> Option<String> {
    let debian = node::target().join("debian/mosquitto");
    if !debian.join(".complete").exists() {
        println!("skipped: needs mosquitto; run `make deps`");
        return None;
    }
    let debian = fs::canonicalize(debian).expect("it is there");
    let state = node.folder().join("broker");
    fs::create_dir(&state).expect("a folder");
    fs::write(state.join("config"), CONFIG).expect("written");
    let container = |name: &str, command: &str, more: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\n{command}\n\
             restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n{more}\n"
        )
    };
    let sleeps = "command = [\"sleep\", \"infinity\"]";
    let events = "services = { events = \"/srv/events\" }";
    let broker = format!(
        "mounts = [{{ source = \"{}\", target = \"/opt/mosquitto\" }}, {{ source = \"{}\", target = \"/broker\", read_only = false }}]\n\
         environment = {{ LD_LIBRARY_PATH = \"{MOSQUITTO}/lib/x86_64-linux-gnu\" }}",
        debian.display(),
        state.display()
    );
    let gateway = "command = [\"/run/tombolo/tombolo\", \"events\", \"gateway\", \"--mqtt\", \"127.0.0.1:1883\", \
                   \"--out\", \"alarms=plant/alarms\", \"--out\", \"fast=plant/fast\", \
                   \"--out\", \"readings=plant/readings\", \"--filter\", \"readings=level > 3\", \"--in\", \"plant/+/orders=orders\"]";
    Some(format!(
        "name = \"lab\"\n{}{}{}{}{}\
         [service.events]\nkind = \"events\"\ndomain = \"bus\"\n\
         allow = [{{ domains = [\"sensor\"], verbs = [\"publish\"] }}, {{ domains = [\"panel\"], verbs = [\"subscribe\"] }}, \
         {{ domains = [\"gateway\"], verbs = [\"publish\", \"subscribe\"] }}]\n\
         settings = {{ channels = {{ alarms = {{ buffer = \"64KiB\", event = \"4KiB\", wait = \"60s\" }}, orders = {{ wait = \"10s\", event = \"4KiB\" }}, \
         fast = {{ buffer = \"8KiB\", event = \"256B\" }}, readings = {{ wait = \"10s\" }} }} }}\n\
         [service.mqtt]\nkind = \"socket\"\ndomain = \"broker\"\nto = \"tcp:1883\"\n\
         allow = [{{ domains = [\"gateway\"], verbs = [\"connect\"] }}]\n",
        container("bus", "", ""),
        container("sensor", sleeps, events),
        container("panel", sleeps, events),
        container(
            "broker",
            &format!("command = [\"{MOSQUITTO}/sbin/mosquitto\", \"-c\", \"/broker/config\"]"),
            &broker
        ),
        container(
            "gateway",
            gateway,
            "services = { events = \"/srv/events\", mqtt = { at = \"tcp:1883\" } }"
        ),
    ))
}

/// A client of the broker, in its domain.
fn client(name: &str, rest: &str) -> String {
    format!("{MOSQUITTO}/bin/mosquitto_{name} {rest}")
}

/// How often the gateway has connected.
fn connects(node: &Node) -> usize {
    node.run(&["logs", "gateway"]).out.matches("connected").count()
}

fn await_connect(node: &Node, before: usize) {
    wait::until("the gateway is connected", || connects(node) > before);
}

#[test]
fn events_go_to_an_mqtt_broker_and_come_from_it_whatever_vanishes() {
    let Some(node) = Node::start() else { return };
    let Some(topology) = topology(&node) else { return };
    node.up_ok(&topology);
    await_connect(&node, 0);
    await_subscribers(&node, "alarms", 1);
    // The broker keeps for this client what it does not read yet.
    node.shell_ok("broker", &client("sub", "-i tester -c -q 1 -t plant/alarms -E"));
    // The broker goes in the middle of many events, and comes back: each is there, in order.
    let publisher = Program::python(&node, "sensor", ENDLESS);
    let next = || channel(&node, "alarms")["next"].as_u64().unwrap_or(0);
    wait::until("events flow", || next() > 500);
    let before = connects(&node);
    node.ok(&["stop", "broker"]);
    let at_stop = next();
    // Whoever is not to be waited for loses events, and knows how many; its publisher does not
    // wait.
    let fast = PUBLISHER.replace("CHANNEL", "fast").replace("COUNT", "20000");
    assert_eq!(Program::python(&node, "sensor", &fast).end(), ["published"]);
    node.ok(&["start", "broker"]);
    await_connect(&node, before);
    wait::until("events flow again", || next() > at_stop + 2000);
    node.shell_ok("sensor", "touch /tmp/stop");
    let count: u32 = publisher.end().concat().parse().expect("a number");
    let mut reader = Program::shell(&node, "broker", &client("sub", "-i tester -c -q 1 -t plant/alarms"));
    let (mut wanted, mut again) = (0, 0);
    while wanted < count {
        let number: u32 = reader.line().parse().expect("a number");
        assert!(number <= wanted, "{wanted} is missing before {number}");
        again += u32::from(number < wanted);
        wanted = wanted.max(number + 1);
    }
    println!("of {count} events {again} came again");
    assert!(again <= 64, "more came again than were under way");
    let lost = channel(&node, "fast")["subscriptions"][0]["lost"].as_u64();
    assert!(lost > Some(0), "{lost:?}");
    reader.kill();

    // What does not pass the channel's filter stays here.
    let filtered = client("sub", "-i filtered -c -q 1 -t plant/readings");
    node.shell_ok("broker", &format!("{filtered} -E"));
    node.shell_ok(
        "sensor",
        "cd /srv/events/readings; echo '{\"level\": 1}' > pub; echo '{\"level\": 5}' > pub",
    );
    assert_eq!(node.shell_ok("broker", &format!("{filtered} -C 1")).trim(), "{\"level\": 5}");

    // The other way. What comes while the gateway is away is there when it is back.
    let reads = "import os\nsub = os.open('/srv/events/orders/sub', os.O_RDWR)\nos.write(sub, b'overflow wait 10000')\nprint('ready')\n\
                 while True: print(os.read(sub, 65536).decode())";
    let mut panel = Program::python(&node, "panel", reads);
    assert_eq!(panel.line(), "ready");
    let order =
        |rest: &str| node.shell_ok("broker", &client("pub", &format!("-t plant/a/orders -q 1 {rest}")));
    order("-m one");
    assert_eq!(panel.line(), "one");
    let before = connects(&node);
    node.ok(&["stop", "gateway"]);
    order("-m two");
    node.ok(&["start", "gateway"]);
    await_connect(&node, before);
    assert_eq!(panel.line(), "two");
    // What is longer than the channel's events, or than any event, keeps nothing else from coming.
    for bytes in [5000, 200_000] {
        node.shell_ok(
            "broker",
            &format!("head -c {bytes} /dev/zero | {}", client("pub", "-t plant/a/orders -q 1 -s")),
        );
    }
    order("-m three");
    assert_eq!(panel.line(), "three");
    panel.kill();

    let refused = |words: &str, why: &str| {
        let run = node.shell("gateway", &format!("/run/tombolo/tombolo events gateway {words}"));
        assert!(run.code == 2 && run.err.contains(why), "{run:?}");
    };
    refused("--mqtt 192.0.2.1:1883 --out alarms=a", "would not be encrypted");
    refused("--mqtt 127.0.0.1:1883 --out alarms=a --in b=alarms", "would go round for ever");
    refused("--mqtt 127.0.0.1:1883 --out alarms=a/#", "is no topic");
    refused("--mqtt 127.0.0.1:1883", "1 to 128");
    refused("--mqtt 127.0.0.1:1883 --out alarms=a --filter b=c", "no --out does");
    let words = "--mqtt 127.0.0.1:1883 --out readings=a --filter 'readings=level >'";
    let run = node.shell("gateway", &format!("/run/tombolo/tombolo events gateway {words}"));
    assert!(run.code == 1 && run.err.contains("at byte 7"), "{run:?}");
}
