//! Event channels between nodes: publishers and subscribers on either node of a channel's server,
//! whatever dies on the way.

use crate::events::Program;
use e2e::cluster::{Bed, Host};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `bus` on beta serves; on beta `sensor` publishes and `attic` subscribes, on alpha `mast`
/// publishes and `panel` subscribes.
fn topology() -> String {
    let client = |name: &str, node: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             node = \"{node}\"\nservices = {{ events = \"/srv/events\" }}\n"
        )
    };
    format!(
        "name = \"lab\"\n[domain.bus]\nkind = \"container\"\nroot = \"host\"\nnode = \"beta\"\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n{}{}{}{}\
         [service.events]\nkind = \"events\"\ndomain = \"bus\"\n\
         allow = [{{ domains = [\"sensor\", \"mast\"], verbs = [\"publish\"] }}, \
         {{ domains = [\"panel\", \"attic\"], verbs = [\"subscribe\"] }}]\n\
         settings = {{ channels = {{ control = {{ buffer = \"64KiB\", event = \"4KiB\", wait = \"60s\" }}, \
         fast = {{ buffer = \"8KiB\", event = \"256B\" }}, wide = {{}} }} }}\n",
        client("sensor", "beta"),
        client("attic", "beta"),
        client("mast", "alpha"),
        client("panel", "alpha"),
    )
}

fn python(host: &Host, domain: &str, program: &str) -> Program {
    let words = ["exec", domain, "--", "timeout", "--kill-after=5", "300", "python3", "-uc", program];
    Program::run(host.command(&words))
}

/// Writes numbers until it is told to stop, each when the one before is in the channel; says how
/// many it has written.
const PUBLISHER: &str = r#"
import os
pub = os.open("/srv/events/control/pub", os.O_WRONLY)
n = 0
while not os.path.exists("/tmp/stop"):
    n += 1
    os.write(pub, b"%d\n" % n)
os.write(pub, b"end\n")
print(n + 1)
"#;

/// Loses nothing, until two publishers have ended: each event of the channel and of each publisher
/// has the next number, and the publisher's own number in it. Says how many each has written.
const READER: &str = r#"
import os, struct
sub = os.open("/srv/events/control/sub", os.O_RDWR)
os.write(sub, b"framing binary\noverflow wait 60000")
print("ready")
numbers, ended, count = {}, 0, 0
while ended < 2:
    record = os.read(sub, 65536)
    sequence, publisher, number, published, lost, length = struct.unpack("<6Q", record[:48])
    count += 1
    assert (sequence, lost, length) == (count, 0, len(record) - 48), (sequence, lost, count)
    assert number == numbers.get(publisher, 0) + 1, (publisher, number, numbers)
    numbers[publisher] = number
    ended += record[48:] == b"end\n"
    assert record[48:] in (b"%d\n" % number, b"end\n"), record
print(sorted(numbers.values()))
"#;

/// Gets what passes a filter, and reads nothing before 10,000 events are published, of which every
/// other one passes: what it has got and what it has lost add up at each event.
const SLOW: &str = r#"
import os, re
sub = os.open("/srv/events/fast/sub", os.O_RDWR)
os.write(sub, b'framing text\nfilter zone == "b"')
os.mkfifo("/tmp/go")
print("ready")
os.read(os.open("/tmp/go", os.O_RDONLY), 9)
got, event = 0, b""
while b'"n": 9999' not in event:
    head, event = os.read(sub, 65536).split(b"\n", 1)
    number, lost = (int(re.search(rb"%s=(\d+)" % key, head)[1]) for key in (b"number", b"lost"))
    got += 1
    assert number % 2 == 0 and number // 2 == got + lost, (head, got)
assert got + lost == 5000 and lost > 0, (got, lost)
print("counted")
"#;

const ALTERNATING: &str = r#"
import os
pub = os.open("/srv/events/fast/pub", os.O_WRONLY)
for n in range(10000): os.write(pub, b'{"n": %d, "zone": "%s"}' % (n, b"ab"[n % 2:n % 2 + 1]))
print("published")
"#;

/// Looks at every frame of a node's card until its standard input ends: how many bytes, and whether
/// a word was in clear.
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

/// The events that a subscription has had, by its domain.
fn delivered(beta: &Host, domain: &str) -> u64 {
    let tree = beta.json(&["service", "show", "events"]);
    let channels = tree["state"]["channels"].as_array().cloned().unwrap_or_default();
    let subscriptions = channels.iter().filter_map(|row| row["subscriptions"].as_array()).flatten();
    let of_domain = |row: &&Value| row["domain"].as_str().is_some_and(|it| it.ends_with(domain));
    subscriptions.filter(of_domain).filter_map(|row| row["delivered"].as_u64()).max().unwrap_or(0)
}

fn kill_server(beta: &Host) {
    let pid = beta.json(&["inspect", "dc/lab/domains/bus"])["pid"].as_u64();
    e2e::node::kill(pid.and_then(|pid| u32::try_from(pid).ok()).expect("it runs"));
}

#[test]
fn events_cross_nodes_filtered_at_the_source_and_none_is_lost_whatever_dies() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    alpha.up_ok(&topology());
    bed.until("the service is up for all", TIMEOUT, || {
        [(alpha, "mast"), (alpha, "panel"), (beta, "sensor"), (beta, "attic")].iter().all(|(host, domain)| {
            host.run(&["exec", domain, "--", "cat", "/srv/events/wide/stats"]).code == 0
        })
    });

    // Of what is published on the server's node only what passes the filter goes over, and not in
    // clear.
    let hears = "import os\nsub = os.open('/srv/events/wide/sub', os.O_RDWR)\nos.write(sub, b'filter alarm')\n\
                 print('ready')\nprint(len(os.read(sub, 65536)))";
    let mut hears = python(alpha, "panel", hears);
    assert_eq!(hears.line(), "ready");
    let word = "nobody-else-may-read-this";
    let mut ear = beta.inside(Path::new("python3"));
    ear.args(["-c", LISTENER, word]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut ear = ear.spawn().expect("python3");
    let mut heard = BufReader::new(ear.stdout.take().expect("its output"));
    let mut line = String::new();
    heard.read_line(&mut line).expect("a word");
    assert_eq!(line, "listens\n");
    let says = format!(
        "import json, os\npub = os.open('/srv/events/wide/pub', os.O_WRONLY)\n\
         for n in range(1000): os.write(pub, json.dumps({{'alarm': n == 999, 'text': '{word}' * 200}}).encode())"
    );
    python(beta, "sensor", &says).end();
    let passed: usize = hears.end().concat().parse().expect("a number");
    assert!(passed > 200 * word.len());
    drop(ear.stdin.take());
    let mut line = String::new();
    heard.read_to_string(&mut line).expect("what it heard");
    ear.wait().expect("its end");
    let (bytes, clear) = line.trim().split_once(' ').expect("two words");
    let bytes: usize = bytes.parse().expect("a number");
    assert!(bytes > passed && bytes < 200 * passed, "{bytes} bytes went over for one event of {passed}");
    assert_eq!(clear, "False", "it went in clear");

    // Who is slow on the other node knows exactly what it lost, also behind its filter.
    let mut slow = python(alpha, "panel", SLOW);
    assert_eq!(slow.line(), "ready");
    assert_eq!(python(beta, "sensor", ALTERNATING).end(), ["published"]);
    alpha.ok(&["exec", "panel", "--", "sh", "-c", "printf go > /tmp/go"]);
    assert_eq!(slow.end(), ["counted"]);

    // Publishers and subscribers on both nodes: each gets each event, once and in order.
    let mut readers = [python(alpha, "panel", READER), python(beta, "attic", READER)];
    for reader in &mut readers {
        assert_eq!(reader.line(), "ready");
    }
    let writers = [python(alpha, "mast", PUBLISHER), python(beta, "sensor", PUBLISHER)];
    let flows = |when: &str| {
        let seen = ["panel", "attic"].map(|domain| delivered(beta, domain));
        bed.until(&format!("events flow {when}"), TIMEOUT, || {
            ["panel", "attic"].iter().zip(seen).all(|(domain, seen)| delivered(beta, domain) > seen + 50)
        });
    };
    flows("at first");
    let deaths: [(&str, &dyn Fn()); 6] = [
        ("after the cable was out", &|| {
            bed.switch().cut(beta.port());
            bed.switch().heal(beta.port());
        }),
        ("after alpha's proxy", &|| alpha.kill_role("proxy")),
        ("after beta's proxy", &|| beta.kill_role("proxy")),
        ("after the server", &|| kill_server(beta)),
        ("after alpha's daemon", &|| {
            alpha.kill_role("daemon");
            bed.start_daemon(alpha);
        }),
        ("after beta's daemon", &|| {
            beta.kill_role("daemon");
            bed.start_daemon(beta);
        }),
    ];
    for (when, dies) in deaths {
        dies();
        flows(when);
    }
    for (host, domain) in [(alpha, "mast"), (beta, "sensor")] {
        host.ok(&["exec", domain, "--", "touch", "/tmp/stop"]);
    }
    let mut written: Vec<u64> = writers.map(|it| it.end().concat().parse().expect("a number")).to_vec();
    written.sort_unstable();
    for reader in readers {
        assert_eq!(reader.end(), [format!("{written:?}")]);
    }
    alpha.ok(&["down", "lab"]);
    bed.finish();
}
