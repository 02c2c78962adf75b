//! Real services, used from a container through `/srv`, by 9P and over channels: the answers are
//! the same, but for what `conformance::views::MEANT` lists.

use e2e::{NameServer, Node, wait};
use serde_json::Value;

const CLIENT: &str = env!("CARGO_BIN_EXE_views_client");
const SERVER: &str = env!("CARGO_BIN_EXE_views_server");
/// Fewer operations mean that a group ended early.
const OPERATIONS_LEAST: usize = 400;

/// Services of each kind; `hall` may do everything, and `attic` only look.
fn topology(port: u16) -> String {
    let thermometer = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/thermometer");
    let domain = |name: &str, lines: &str| {
        format!("[domain.{name}]\nkind = \"container\"\nroot = \"host\"\n{lines}\n")
    };
    let client = |services: &str| {
        format!(
            "command = [\"sleep\", \"infinity\"]\nservices = {{ {services} }}\nnine_p = true\n\
             mounts = [{{ source = \"{CLIENT}\", target = \"/views\" }}]"
        )
    };
    let few = "kit = \"/srv/kit\", tree = \"/srv/tree\"";
    let all =
        format!("{few}, dns = \"/srv/dns\", events = \"/srv/events\", thermometer = \"/srv/thermometer\"");
    let domains = [
        domain(
            "kit",
            &format!("command = [\"/server\"]\nmounts = [{{ source = \"{SERVER}\", target = \"/server\" }}]"),
        ),
        domain(
            "python",
            &format!(
                "command = [\"/usr/bin/python3\", \"/app/thermometer.py\"]\nenvironment = {{ PYTHONPATH = \"/run/tombolo/python\" }}\n\
                 mounts = [{{ source = \"{thermometer}\", target = \"/app\" }}]"
            ),
        ),
        domain("resolver", "network = \"host\""),
        domain("bus", ""),
        domain("hall", &client(&all)),
        domain("attic", &client(few)),
    ];
    let service = |name: &str, kind: &str, host: &str, hall: &str, attic: &str| {
        let attic = if attic.is_empty() {
            String::new()
        } else {
            format!(", {{ domains = [\"attic\"], verbs = [{attic}] }}")
        };
        format!(
            "[service.{name}]\nkind = \"{kind}\"\ndomain = \"{host}\"\n\
             allow = [{{ domains = [\"hall\"], verbs = [{hall}] }}{attic}]\n"
        )
    };
    let services = [
        service("kit", "program", "kit", "\"read\", \"change\"", "\"read\""),
        service("thermometer", "program", "python", "\"read\", \"calibrate\"", ""),
        service("tree", "files", "disk", "\"write\"", "\"read\""),
        service("dns", "directory", "resolver", "\"resolve\", \"control\"", ""),
        format!("settings = {{ upstream = [\"127.0.0.1:{port}\"] }}\n"),
        service("events", "events", "bus", "\"publish\", \"subscribe\", \"manage\"", ""),
        "settings = { channels_per_domain = 8, channels = { alarms = { event = \"4KiB\" } } }\n".into(),
    ];
    format!(
        "name = \"house\"\n{}[domain.disk]\nkind = \"container\"\n{}",
        domains.concat(),
        services.concat()
    )
}

#[test]
fn each_view_of_a_service_gives_the_same_answers() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    node.up_ok(&topology(server.port));
    let served = "cat /srv/kit/reading /srv/thermometer/reading /srv/dns/status /srv/events/alarms/stats && ls /srv/tree";
    wait::until("the services are up", || node.shell("hall", served).code == 0);
    node.shell_ok("hall", "echo 0123456789 > /srv/tree/shown");
    let run = node.shell("hall", "/views");
    assert_eq!(run.code, 0, "{}\n{}", run.out, run.err);
    let count = run.out.split(' ').next().and_then(|count| count.parse::<usize>().ok());
    assert!(count >= Some(OPERATIONS_LEAST), "{}", run.out);
    let run = node.shell("attic", "/views denied");
    assert_eq!(run.code, 0, "{}\n{}", run.out, run.err);
}

/// `hall` asks `hall` of the file `ask`, and `attic` asks `attic`; `hall` makes do with less while
/// it misses something.
fn with_targets(hall: &str, attic: &str) -> String {
    let client = |name: &str, targets: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ kit = {{ targets = {{ {targets} }} }} }}\n\
             reserve = {{ cpu = {{ budget = \"4ms\", period = \"40ms\" }} }}\n"
        )
    };
    format!(
        "name = \"house\"\n[domain.kit]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"/server\"]\n\
         mounts = [{{ source = \"{SERVER}\", target = \"/server\" }}]\n{}{}\
         [service.kit]\nkind = \"program\"\ndomain = \"kit\"\n\
         allow = [{{ domains = [\"hall\", \"attic\"], verbs = [\"read\", \"change\"] }}]\n\
         [adaptation.hall]\ndomain = \"hall\"\nmonitor = \"targets\"\nservice = \"kit\"\nlevels = 2\n\
         more = {{ above = 100 }}\nless = {{ below = 50, samples = 1000 }}\n",
        client("hall", hall),
        client("attic", attic),
    )
}

#[test]
fn a_target_that_is_missed_is_told_and_one_that_cant_be_kept_is_refused() {
    let Some(node) = Node::start() else { return };
    let hall = "ask = { deadline = \"2s\", p99 = \"60s\" }, samples = { age = \"60s\" }";
    node.up_ok(&with_targets(hall, ""));
    wait::until("the service is up", || node.shell("hall", "cat /srv/kit/reading").code == 0);
    let targets = || node.shell_ok("hall", "cat /srv/self/targets");
    let nobody = "kit ask p99 60000000us - unknown\nkit ask deadline 2000000us - unknown\n\
                  kit samples age 60000000us - unknown\n";
    assert_eq!(targets(), nobody);
    // A call that is not answered misses its deadline while it waits.
    let asks = "exec 3<>/srv/kit/ask; seq 30 | sed 's/^/double /' >&3; echo wait >&3; cat <&3 > /dev/null";
    let mut asking = node.command(&["exec", "hall", "--", "sh", "-c", asks]).spawn().expect("tombolo starts");
    let told = |what: &str| {
        let events = node.ok(&["events"]);
        events.lines().any(|line| line.contains(what) && line.contains("kit/ask: deadline 2s was asked"))
    };
    wait::until("the miss is told", || told("target-missed"));
    assert!(targets().lines().any(|line| line.starts_with("kit ask deadline") && line.ends_with("missed")));
    let makes_do = || node.shell_ok("hall", "cat /srv/self/level").trim() == "1";
    wait::until("who misses a target makes do with less", makes_do);
    node.shell_ok("hall", "echo release > /srv/kit/ctl");
    assert!(asking.wait().expect("it ends").success());
    let found = |what: &str| {
        let rows = node.json(&["inspect", "targets"]);
        let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["what"] == what).cloned());
        row.unwrap_or(Value::Null)
    };
    wait::until("the tree has what was measured", || found("p99")["answers"].as_u64() >= Some(20));
    assert!(found("deadline")["misses"].as_u64() >= Some(1));
    // What was admitted stays, and what can't be kept is refused before anything is touched.
    assert!(node.up_ok(&with_targets(hall, "")).contains("nothing to do"));
    let refused = node.up(&with_targets(hall, "ask = { p99 = \"10us\" }"));
    let words =
        "domain attic can't have its target of kit/ask: p99 10us is asked, and hall measured a p99 of ";
    assert!(refused.code != 0 && refused.err.contains(words), "{refused:?}");
    assert!(node.up_ok(&with_targets(hall, "")).contains("nothing to do"));
}
