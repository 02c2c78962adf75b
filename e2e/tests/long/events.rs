//! Event channels between nodes whose link is out for longer than it waits.

use e2e::cluster::{Bed, Host};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine. A link gives up after 30 s, and what
/// was not read is kept for 10 s after that.
const TIMEOUT: Duration = Duration::from_secs(120);

/// `bus` and `sensor` on beta, which serves and publishes; on alpha `mast` publishes and `panel`
/// subscribes.
fn topology() -> String {
    let client = |name: &str, node: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             node = \"{node}\"\nservices = {{ events = \"/srv/events\" }}\n"
        )
    };
    format!(
        "name = \"lab\"\n[domain.bus]\nkind = \"container\"\nroot = \"host\"\nnode = \"beta\"\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n{}{}{}\
         [service.events]\nkind = \"events\"\ndomain = \"bus\"\n\
         allow = [{{ domains = [\"sensor\", \"mast\"], verbs = [\"publish\"] }}, {{ domains = [\"panel\"], verbs = [\"subscribe\"] }}]\n\
         settings = {{ channels = {{ control = {{ buffer = \"64KiB\", event = \"4KiB\", wait = \"60s\" }} }} }}\n",
        client("sensor", "beta"),
        client("mast", "alpha"),
        client("panel", "alpha"),
    )
}

/// A program of a domain, and its lines.
struct Program(Child, Lines<BufReader<ChildStdout>>);

impl Program {
    fn start(host: &Host, domain: &str, program: &str) -> Self {
        let words = ["exec", domain, "--", "timeout", "--kill-after=5", "300", "python3", "-uc", program];
        let mut child = host.command(&words).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self(child, lines)
    }

    fn line(&mut self) -> String {
        self.1.next().expect("a line").expect("read")
    }

    fn end(mut self) -> Vec<String> {
        let rest = self.1.map(|line| line.expect("read")).collect();
        assert!(self.0.wait().expect("it ends").success(), "{rest:?}");
        rest
    }
}

/// Is to lose nothing. At each event what it has got and what it has lost is as many as were
/// published.
const READER: &str = r#"
import os, struct
sub = os.open("/srv/events/control/sub", os.O_RDWR)
os.write(sub, b"framing binary\noverflow wait 60000")
print("ready")
got, event, of_mast = 0, b"", []
while event != b"end":
    record = os.read(sub, 65536)
    sequence, publisher, number, published, lost, length = struct.unpack("<6Q", record[:48])
    got, event = got + 1, record[48:]
    assert sequence == got + lost, (sequence, got, lost)
    if event.startswith(b"mast"):
        of_mast.append(int(event[4:]))
        if len(of_mast) == 1: print("flows")
assert of_mast == sorted(set(of_mast)), "an event came twice"
print(lost > 0, of_mast[-1])
"#;

/// Publishes until it is told to stop, once more after a write that has waited in vain; says its
/// last number.
const MAST: &str = r#"
import errno, os
pub = os.open("/srv/events/control/pub", os.O_WRONLY)
n = 0
while not os.path.exists("/tmp/stop"):
    try:
        os.write(pub, b"mast%d" % n)
    except OSError as error:
        assert error.errno == errno.EHOSTDOWN, error
    n += 1
os.write(pub, b"mast%d" % n)
print(n)
"#;

const FLOOD: &str = r#"
import os
pub = os.open("/srv/events/control/pub", os.O_WRONLY)
for n in range(20000): os.write(pub, b"sensor%d" % n)
print("published")
"#;

#[test]
fn a_link_that_is_out_for_long_holds_up_its_own_and_gaps_are_counted() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    alpha.up_ok(&topology());
    bed.until("the service is up for all", TIMEOUT, || {
        [(alpha, "mast"), (alpha, "panel"), (beta, "sensor")].iter().all(|(host, domain)| {
            host.run(&["exec", domain, "--", "cat", "/srv/events/control/stats"]).code == 0
        })
    });
    let mut reader = Program::start(alpha, "panel", READER);
    assert_eq!(reader.line(), "ready");
    let mast = Program::start(alpha, "mast", MAST);
    assert_eq!(reader.line(), "flows");
    // On the node of the service publishers wait for the subscriber until the link is given up, and
    // go on then.
    let sensor = Program::start(beta, "sensor", FLOOD);
    bed.switch().cut(beta.port());
    assert_eq!(sensor.end(), ["published"]);
    bed.switch().heal(beta.port());
    bed.until("the service is there again on alpha", TIMEOUT, || {
        alpha.run(&["exec", "panel", "--", "cat", "/srv/events/control/last"]).code == 0
    });
    alpha.ok(&["exec", "mast", "--", "touch", "/tmp/stop"]);
    let last = mast.end().concat();
    alpha.ok(&["exec", "mast", "--", "sh", "-c", "printf end > /srv/events/control/pub"]);
    assert_eq!(reader.end(), [format!("True {last}")]);
    alpha.ok(&["down", "lab"]);
    bed.finish();
}
