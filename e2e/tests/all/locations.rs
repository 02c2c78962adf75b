//! Locations: one receiver with several sources, read as files, by stock clients of gpsd, and by
//! gpsd itself.

use crate::sockets::unpacked;
use e2e::{Node, node, wait};
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Stock programs that read positions, where the domain sees them.
const GPSPIPE: &str = "/opt/gpsd/usr/bin/gpspipe";
const GPSD: &str = "/opt/gpsd/usr/sbin/gpsd";
/// Where the receiver of satellites is, and the middle of the floor.
const PLACE: (f64, f64) = (48.1372, 11.5756);
/// How long a busy machine may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A receiver of satellites: it writes a position ten times a second into a named pipe, for as long
/// as it is on.
struct Satellites {
    on: Arc<AtomicBool>,
    writer: Option<std::thread::JoinHandle<()>>,
}

impl Satellites {
    fn start(pipe: PathBuf) -> Self {
        let on = Arc::new(AtomicBool::new(true));
        let is_on = Arc::clone(&on);
        let write = move || {
            // It waits for the server to open the other end.
            let mut pipe = File::options().write(true).open(pipe).expect("the pipe");
            while is_on.load(Ordering::Relaxed) {
                let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
                let fix = location::Fix {
                    time_ms: i64::try_from(time_ms).expect("before the sun dies"),
                    latitude: PLACE.0,
                    longitude: PLACE.1,
                    altitude_m: Some(519.0),
                    speed_mps: Some(0.0),
                    course_deg: None,
                    accuracy_m: 3.0,
                };
                let sentences = location::sentences::sentences(&fix);
                if pipe.write_all(sentences.as_bytes()).is_err() {
                    return;
                }
                // tidy(sleep): the pace of a receiver.
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        Self { on, writer: Some(std::thread::spawn(write)) }
    }

    fn stop(&mut self) {
        self.on.store(false, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            writer.join().expect("it ends");
        }
    }
}

/// A floor of 20 m by 20 m with a beacon in each corner, and a log of somebody who stands in its
/// middle.
fn radio(folder: &Path) {
    let corners = [("a", [0.0, 0.0]), ("b", [20.0, 0.0]), ("c", [0.0, 20.0]), ("d", [20.0, 20.0])];
    let heard = |at: [f64; 2]| -> Value {
        let strength =
            |corner: [f64; 2]| -45.0 - 24.0 * (at[0] - corner[0]).hypot(at[1] - corner[1]).max(1.0).log10();
        corners.iter().map(|&(name, corner)| (name.to_owned(), json!(strength(corner)))).collect()
    };
    let points: Vec<Value> = (0..36)
        .map(|number| [f64::from(number % 6) * 4.0, f64::from(number / 6) * 4.0])
        .map(|at| json!({ "east_m": at[0], "north_m": at[1], "dbm": heard(at) }))
        .collect();
    let origin = json!({ "latitude": PLACE.0, "longitude": PLACE.1 });
    std::fs::write(folder.join("floor.json"), json!({ "origin": origin, "points": points }).to_string())
        .expect("a survey");
    let log: String = (0..20)
        .map(|step| format!("{}\n", json!({ "ms": step * 250, "dbm": heard([10.0, 10.0]) })))
        .collect();
    std::fs::write(folder.join("log.jsonl"), log).expect("a log");
}

fn topology(folder: &Path, clients: &str) -> String {
    format!(
        r#"name = "boat"
[domain.receiver]
kind = "container"
mounts = [{{ source = "{folder}", target = "/media" }}]
restart = {{ policy = "always", backoff = "50ms", max_backoff = "500ms" }}
[domain.bridge]
kind = "container"
command = ["sleep", "infinity"]
{clients}
services = {{ location = "/srv/location", gpsd = {{ at = "tcp:127.0.0.1:2947" }}, nmea = {{ at = "tcp:127.0.0.1:10110" }} }}
[domain.cabin]
kind = "container"
command = ["sleep", "infinity"]
services = {{ location = "/srv/location" }}
[service.location]
kind = "location"
domain = "receiver"
allow = [{{ domains = ["bridge"], verbs = ["locate", "choose"] }}, {{ domains = ["cabin"], verbs = ["locate"] }}]
[service.location.settings]
accuracy = 50
hold = "1s"
timeout = "1s"
gpsd = 2947
nmea = 10110
sources = [
  {{ name = "gps", kind = "nmea", path = "/media/gps", power = 40 }},
  {{ name = "deck", kind = "signals", path = "/media/log.jsonl", survey = "/media/floor.json", power = 150 }},
]
[service.gpsd]
kind = "socket"
domain = "receiver"
to = "tcp:2947"
allow = [{{ domains = ["bridge"], verbs = ["connect"] }}]
[service.nmea]
kind = "socket"
domain = "receiver"
to = "tcp:10110"
allow = [{{ domains = ["bridge"], verbs = ["connect"] }}]
"#,
        folder = folder.display()
    )
}

/// A node with the service, whose receiver of satellites is on.
fn start() -> Option<(Node, Satellites)> {
    let clients = unpacked("gpsd")?;
    let node = Node::start()?;
    let folder = node.folder().join("media");
    std::fs::create_dir_all(&folder).expect("a folder");
    mkfifoat(CWD, folder.join("gps"), Mode::RUSR | Mode::WUSR).expect("a named pipe");
    radio(&folder);
    let satellites = Satellites::start(folder.join("gps"));
    node.up_ok(&topology(&folder, &clients));
    Some((node, satellites))
}

fn json_of(node: &Node, file: &str) -> Value {
    let run = node.shell("bridge", &format!("cat /srv/location/{file}"));
    serde_json::from_str(&run.out).unwrap_or_default()
}

fn source(node: &Node) -> String {
    json_of(node, "position")["source"].as_str().unwrap_or_default().to_owned()
}

fn until_source(node: &Node, name: &str) {
    wait::until_within(&format!("{name} counts: {}", json_of(node, "state")), TIMEOUT, || {
        source(node) == name
    });
}

#[test]
fn stock_clients_read_positions_and_the_source_changes_under_them() {
    let Some((node, mut satellites)) = start() else { return };
    until_source(&node, "gps");
    let position = json_of(&node, "position");
    assert_eq!(
        (position["latitude"].as_f64(), position["altitude_m"].as_f64()),
        (Some(PLACE.0), Some(519.0))
    );
    assert!(position["age_ms"].as_u64().is_some_and(|age| age < 1_000), "{position}");
    // A stock client of gpsd, in a domain that has only `lo`.
    let told = node.shell_ok("bridge", &format!("timeout 20 {GPSPIPE} -w -n 6"));
    let reports: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(reports[0]["class"], "VERSION", "{told}");
    let report = reports.iter().find(|report| report["class"] == "TPV").expect("a position");
    assert_eq!((report["device"].as_str(), report["mode"].as_u64()), (Some("gps"), Some(3)), "{report}");
    // A whole gpsd reads the sentences, and its own clients read gpsd.
    let line = format!(
        "{GPSD} -N -n -S 2950 tcp://127.0.0.1:10110 >/tmp/gpsd.log 2>&1 & \
         for try in $(seq 50); do timeout 20 {GPSPIPE} -w -n 20 localhost:2950 2>/dev/null | grep -m 1 '\"class\":\"TPV\".*\"lat\"' && break; sleep 0.2; done; \
         kill $!"
    );
    let told = node.shell_ok("bridge", &line);
    let report: Value = serde_json::from_str(told.lines().next().unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {told}{}", node.shell_ok("bridge", "cat /tmp/gpsd.log")));
    assert!(report["lat"].as_f64().is_some_and(|found| (found - PLACE.0).abs() < 1e-5), "{report}");

    // The receiver is switched off: the radio counts, and readers of the stream notice nothing but
    // its name and its accuracy.
    satellites.stop();
    until_source(&node, "deck");
    let fixes = node.shell_ok("cabin", "head -n 3 /srv/location/fixes 2>/dev/null");
    for line in fixes.lines() {
        let fix: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(fix["source"], "deck");
        assert!(fix["accuracy_m"].as_f64().is_some_and(|radius| (1.0..20.0).contains(&radius)), "{fix}");
    }
    // It is on again: it draws less, so it counts, once it has done so for a second.
    satellites = Satellites::start(node.folder().join("media/gps"));
    until_source(&node, "gps");
    // A person chooses, for all; who may only read may not.
    node.shell_ok("bridge", "echo source deck >/srv/location/ctl");
    until_source(&node, "deck");
    for (domain, line) in
        [("cabin", "source gps"), ("bridge", "source nobody"), ("bridge", "accuracy -1"), ("bridge", "words")]
    {
        let refused =
            node.run(&["exec", domain, "--", "sh", "-c", &format!("echo {line} >/srv/location/ctl")]);
        assert_ne!(refused.code, 0, "{domain}: {line}");
    }
    assert_eq!(source(&node), "deck");
    satellites.stop();
}

#[test]
fn a_server_that_dies_comes_back_and_nonsense_counts_for_nothing() {
    let Some((node, mut satellites)) = start() else { return };
    until_source(&node, "gps");
    let servers = node.pids("server");
    node::kill_and_wait(&servers);
    wait::until_within("another server has positions", TIMEOUT, || {
        node.pids("server").iter().any(|pid| !servers.contains(pid)) && !source(&node).is_empty()
    });
    satellites.stop();
    // A source that writes nonsense is told, and counts for nothing.
    let mut pipe = File::options().write(true).open(node.folder().join("media/gps")).expect("the pipe");
    pipe.write_all(b"$GNGGA,1,2*00\r\nwords\r\n\xff\xff\r\n").expect("written");
    wait::until_within("the lines are refused", TIMEOUT, || {
        json_of(&node, "state")["sources"][0]["refused"].as_u64().is_some_and(|refused| refused >= 3)
    });
    until_source(&node, "deck");
}
