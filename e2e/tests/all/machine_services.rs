//! A machine that serves: the directory's backend runs in a guest, its clients are a container and
//! another guest, which takes no interrupts. And everything dies at once.

use e2e::machines::{self, logs, shell_ok};
use e2e::{NameServer, Node, node, wait};
use std::time::Duration;

/// How the guest reaches the node's loopback: QEMU's user-mode network has the node at this
/// address.
const THE_NODE: &str = "10.0.2.2";
/// How long everything may take to be up again: a machine takes 3 s, on a busy machine more.
const AGAIN: Duration = Duration::from_secs(90);

/// Keeps a guest from taking interrupts in user space: its agent is told of rings by the port.
const DEAF: &str = ", append = \"intel_iommu=off\"";

/// The service's backend in a machine that reaches out through the node, and two clients that have
/// no network.
fn file(port: u16) -> String {
    let always = "network = \"host\"\nrestart = { policy = \"always\", backoff = \"50ms\" }";
    "name = \"test\"\n".to_owned()
        + &machines::domain("resolver", &[], "", always)
        + &machines::domain("edge", &["sleep", "1000000"], DEAF, "services = { dns = \"/srv/dns\" }")
        + &format!(
            "\n[domain.web]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ dns = \"/srv/dns\" }}\n\
             \n[service.dns]\nkind = \"directory\"\ndomain = \"resolver\"\n\
             allow = [{{ domains = \"*\", verbs = [\"resolve\", \"control\"] }}]\n\
             settings = {{ upstream = [\"{THE_NODE}:{port}\"] }}\n"
        )
}

fn assert_resolved(node: &Node) {
    let line = "exec 3<>/srv/dns/query; echo host3.tombolo.example >&3; cat <&3";
    let found = [node.shell_ok("web", line), shell_ok(node, "edge", line)];
    for text in found {
        assert!(
            text.contains("192.0.2.3") && text.contains("2001:db8::3"),
            "{text}{}",
            logs(node, "resolver")
        );
    }
}

#[test]
fn the_backend_runs_in_a_machine_and_everything_dies_at_once() {
    let Some(node) = machines::start() else { return };
    let server = NameServer::start(node.folder());
    let text = file(server.port);
    node.up_ok(&text);
    assert_resolved(&node);
    let groups = ["resolver", "edge"].map(|guest| shell_ok(&node, guest, "ls /sys/kernel/iommu_groups"));
    assert!(!groups[0].is_empty() && groups[1].is_empty(), "one of two guests has interrupts: {groups:?}");
    the_backends_machine_dies(&node);
    // Everything at once: no orderly end for anybody.
    let qemus = ["resolver", "edge"].map(|domain| machines::qemus(&node, domain)).concat();
    assert_eq!(qemus.len(), 2);
    let roles = ["monitor", "daemon", "frontend", "machine"].map(|role| node.pids(role)).concat();
    // What is dying when the next daemon looks would be adopted.
    node::kill_all_at_once(&[roles, qemus].concat());
    node.up_ok(&text);
    assert_resolved(&node);
    // When this ends, nothing of it is left: `Node` proves it.
}

/// Under the open descriptors of its clients: they get their answers from its successor.
fn the_backends_machine_dies(node: &Node) {
    let before = machines::row(node, "resolver")["restarts"].clone();
    machines::qemus(node, "resolver").into_iter().for_each(node::kill);
    wait::until_within("the machine is started again", AGAIN, || {
        machines::row(node, "resolver")["restarts"] != before
    });
    wait::until_within("names are resolved again", AGAIN, || {
        let run = node.shell("web", "exec 3<>/srv/dns/query; echo host5.tombolo.example >&3; cat <&3");
        run.out.contains("192.0.2.5")
    });
    assert_resolved(node);
}
