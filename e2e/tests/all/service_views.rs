//! Real services, used from a container through `/srv`, by 9P and over channels: the answers are
//! the same, but for what `conformance::views::MEANT` lists.

use e2e::{NameServer, Node, wait};

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
