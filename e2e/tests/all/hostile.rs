//! Domains that misbehave, and their neighbours, who must not notice.

use e2e::{NameServer, Node, topology};

fn start(clients: &[&str], settings: &str) -> Option<(Node, NameServer)> {
    let node = Node::start()?;
    let server = NameServer::start(node.folder());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
    let client = format!("mounts = [{{ source = \"{folder}\", target = \"/programs\", read_only = true }}]");
    node.up_ok(&topology(server.port, clients, settings, &client));
    Some((node, server))
}

fn assert_neighbour_is_well(node: &Node) {
    assert!(node.shell_ok("robot", "getent ahostsv4 host3.tombolo.example").contains("192.0.2.3"));
    let out = node.shell_ok("robot", "exec 3<>/srv/dns/query; echo A host3.tombolo.example >&3; cat <&3");
    assert!(out.contains("192.0.2.3"), "{out}");
}

#[test]
fn ten_thousand_sessions_of_one_domain_hurt_only_itself() {
    let Some((node, _server)) = start(&["web", "robot"], "sessions_per_domain = 64") else { return };
    let out = node.shell_ok("web", "python3 /programs/many_sessions.py 10000");
    assert!(out.contains("opened 64 "), "{out}");
    assert!(out.contains("EMFILE"), "{out}");
    assert_neighbour_is_well(&node);
    node.shell_ok("web", "exec 3<>/srv/dns/query; echo A host3.tombolo.example >&3; cat <&3");
}

#[test]
fn a_process_that_scribbles_over_its_channel_hurts_only_itself() {
    let Some((node, _server)) = start(&["web", "robot"], "") else { return };
    let servers = node.pids("server");
    for seed in 0..6 {
        let run = node.shell("web", &format!("python3 /programs/scribble.py {seed}"));
        assert_eq!(run.code, 0, "{run:?}");
        assert_neighbour_is_well(&node);
    }
    assert_eq!(node.pids("server"), servers, "the backend did not survive a hostile channel");
    node.shell_ok("web", "getent hosts host0.tombolo.example");
}

#[test]
fn wrong_uses_of_the_files_have_their_errnos() {
    let Some((node, _server)) = start(&["web", "robot"], "") else { return };
    let out = node.shell_ok("web", "python3 /programs/wrong_uses.py");
    assert!(out.trim_end().ends_with("all as documented"), "{out}");
    assert_neighbour_is_well(&node);
}

#[test]
fn garbage_on_the_control_socket_hurts_nobody() {
    let Some((node, _server)) = start(&["web", "robot"], "") else { return };
    let daemon = node.pids("daemon");
    let out = node.shell_ok("web", "python3 /programs/control_garbage.py");
    assert!(out.contains("still answering"), "{out}");
    assert_eq!(node.pids("daemon"), daemon, "the daemon did not survive garbage");
    assert_neighbour_is_well(&node);
}

// A container without any privilege once held up the daemon for as long as it liked: it sent, with
// a harmless request, the last descriptor of a TCP connection that lingers when it is closed.
#[test]
fn descriptors_that_take_long_to_close_do_not_hold_up_the_daemon() {
    let Some((node, _server)) = start(&["web", "robot"], "") else { return };
    let out = node.shell_ok("web", "python3 /programs/lingering_gift.py 60");
    assert!(out.contains("given") || out.contains("not taken"), "{out}");
    let begun = std::time::Instant::now();
    node.ok(&["ps"]);
    assert_neighbour_is_well(&node);
    assert!(begun.elapsed().as_secs() < 30, "the daemon waited for a stranger's file");
}

#[test]
fn a_domain_may_only_do_what_the_file_allows() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    let text = topology(server.port, &["web", "robot"], "", "")
        .replace(
            "domains = \"*\", verbs = [\"resolve\", \"control\"]",
            "domains = [\"web\"], verbs = [\"resolve\"]",
        )
        .replace("[domain.robot]", "[domain.robot]\nhostname = \"robot\"");
    // `robot` mounts what nobody allows it: that is refused before anything starts.
    let run = node.up(&text);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains("robot") && run.err.contains("allow"), "{}", run.err);
    let allowed = text.replace("domains = [\"web\"]", "domains = [\"web\", \"robot\"]");
    node.up_ok(&allowed);
    let run = node.shell("web", "echo timeout 100ms > /srv/dns/ctl");
    assert!(run.code != 0 && run.err.contains("ermission denied"), "{run:?}");
    node.shell_ok("web", "getent hosts host0.tombolo.example");
}
