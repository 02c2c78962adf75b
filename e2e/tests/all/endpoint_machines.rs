//! Endpoints of a virtual machine, a container and a process: each of them calls and is called, and
//! nobody is told what the other is.

use crate::endpoint_bed::{INSIDE, PEER, SLEEP, assert_failed, peer, row};
use e2e::machines::{self, ENDPOINT_PEER, booting, logs};
use e2e::{Node, node, wait};
use std::time::Duration;

/// How long a machine may take to be up again: it takes 3 s, on a busy machine more.
const AGAIN: Duration = Duration::from_secs(90);

/// Each of three domains has an endpoint that every other one may ask.
fn file() -> String {
    let always = "restart = { policy = \"always\", backoff = \"50ms\" }";
    let serving =
        |program: &str, name: &str| format!("command = [\"{program}\", \"serve\", \"{name}\"]\n{always}\n");
    let image = machines::image(env!("CARGO_BIN_EXE_channel_peer"));
    let guest = machines::domain("guest", &[ENDPOINT_PEER, "serve", "far"], &booting(image), always);
    let endpoints: String = [("far", "guest"), ("near", "box"), ("own", "host")]
        .map(|(name, domain)| {
            format!("\n[endpoint.{name}]\ndomain = \"{domain}\"\nallow = [{{ domains = \"*\", verbs = [\"request\", \"send\"] }}]\n")
        })
        .concat();
    format!(
        "name = \"mixed\"\n{guest}\n\
         [domain.box]\nkind = \"container\"\nroot = \"host\"\n{}mounts = [{{ source = \"{PEER}\", target = \"{INSIDE}\" }}]\n\n\
         [domain.host]\nkind = \"process\"\n{}\n\
         [domain.desk]\nkind = \"container\"\nroot = \"host\"\ncommand = {SLEEP}\nmounts = [{{ source = \"{PEER}\", target = \"{INSIDE}\" }}]\n{endpoints}",
        serving(INSIDE, "near"),
        serving(PEER, "own"),
    )
}

/// Asks from a domain, by the program that is there.
fn assert_asked(node: &Node, domain: &str, name: &str) {
    let (code, said) = match domain {
        "guest" => {
            let run = machines::shell(node, "guest", &format!("{ENDPOINT_PEER} ask {name} 40"));
            (run.code, run.out + &run.err)
        }
        _ => peer(node, domain, &format!("ask {name} 100")),
    };
    assert!(
        code == 0 && said.contains("answered "),
        "{domain} asks {name}: {code} {said}{}{}",
        logs(node, "guest"),
        node.daemon_log()
    );
}

#[test]
fn a_machine_a_container_and_a_process_speak_with_each_other() {
    let Some(node) = machines::start() else { return };
    let text = file();
    node.up_ok(&text);
    for (domain, name) in [
        ("desk", "far"),
        ("desk", "near"),
        ("desk", "own"),
        ("guest", "near"),
        ("guest", "own"),
        ("guest", "far"),
    ] {
        assert_asked(&node, domain, name);
    }
    // The command line is in the guest, too.
    let called =
        machines::shell_ok(&node, "guest", "/run/tombolo/tombolo endpoint call near 'who is there?'");
    assert_eq!(called.trim(), "who is there?");
    let called = node.ok(&["endpoint", "call", "near", "who is there?", "--domain", "guest"]);
    assert_eq!(called.trim(), "who is there?");
    // A guest's memory is its own: buffers are not for it, in either direction, and it is told so.
    let owned = machines::shell(&node, "guest", &format!("{ENDPOINT_PEER} own near 4096 < /dev/null"));
    assert!(owned.out.contains("made 0: ") && owned.out.contains("virtual machine"), "{owned:?}");
    let granted = node.shell("desk", &format!("{INSIDE} own far 4096 < /dev/null"));
    assert!(granted.out.contains("made 0: ") && granted.out.contains("virtual machine"), "{granted:?}");
    assert_failed(peer(&node, "desk", "once far notify"), "may not be notified");
    // The daemon dies: the endpoint in the guest is the same for the next one.
    let before = row(&node, "mixed", "far");
    node.kill_daemon();
    node.up_ok(&text);
    wait::until("the guest's endpoint is known again", || {
        row(&node, "mixed", "far")["address"] == before["address"]
    });
    assert_asked(&node, "desk", "far");
    // The machine dies: its endpoint ends, and its successor's has another generation.
    machines::qemus(&node, "guest").into_iter().for_each(node::kill);
    wait::until_within("the endpoint of its successor is bound", AGAIN, || {
        let now = row(&node, "mixed", "far");
        now["bound"] == true && now["address"] != before["address"]
    });
    let old = before["address"].as_str().expect("it was bound");
    assert_failed(peer(&node, "desk", &format!("once {old} request")), "has ended");
    assert_asked(&node, "desk", "far");
}
