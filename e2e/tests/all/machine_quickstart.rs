//! The quickstart with one more domain, a virtual machine: the very files that users start with.

use e2e::machines::{self, row, shell_ok};
use e2e::{Node, free_port};
use std::path::Path;

const QUICKSTART: &str = include_str!("../../../examples/quickstart/topology.toml");
const WITH_MACHINE: &str = include_str!("../../../examples/quickstart/with-machine.toml");
const ZONE: &str = include_str!("../../../examples/quickstart/zone.conf");
/// Where the quickstart's name server listens. Here it has another port, for there may be a
/// quickstart on this machine.
const PORT: &str = "5354";
/// The first line behind what a file says of itself.
const BEGIN: &str = "# One file is one distributed container.";

/// A file without the comment at its head.
fn body(text: &str) -> &str {
    text.find(BEGIN).and_then(|at| text.get(at..)).expect("the first line behind the head")
}

/// A file without the domain `edge`, and without its name in what the service allows.
fn without_the_machine(text: &str) -> String {
    let from = text.find("# A tenant with a kernel of its own.").expect("the machine's domain");
    let rest = text.get(from..).expect("a boundary");
    let length = rest.find("# -----").expect("what comes behind it");
    let (before, after) = (text.get(..from).expect("a boundary"), rest.get(length..).expect("a boundary"));
    format!("{before}{after}").replace(", \"edge\"]", "]")
}

#[test]
fn it_is_the_quickstart_and_one_domain_more() {
    assert_eq!(without_the_machine(body(WITH_MACHINE)), body(QUICKSTART));
    assert!(!without_the_machine(body(WITH_MACHINE)).contains("edge"));
}

/// Writes the example's files, for another port, and with a machine that is emulated whatever there
/// is.
fn write(folder: &Path, port: u16) -> [String; 2] {
    let port = port.to_string();
    std::fs::write(folder.join("zone.conf"), ZONE.replace(PORT, &port)).expect("the zone");
    [("quickstart.toml", QUICKSTART), ("with-machine.toml", WITH_MACHINE)].map(|(name, text)| {
        let machine = "machine = { cpus = 1,";
        assert_eq!(text.contains(machine), name == "with-machine.toml");
        let text = text.replace(PORT, &port).replace(machine, &format!("{machine} accel = \"tcg\","));
        let path = folder.join(name);
        std::fs::write(&path, text).expect("the topology");
        path.to_string_lossy().into_owned()
    })
}

/// The lines of an answer, each without the time that it may still be kept: that differs, for each
/// domain has a cache of its own.
fn answers(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| line.split(' ').filter(|word| word.parse::<u32>().is_err()).collect::<Vec<_>>().join(" "))
        .collect();
    lines.sort();
    lines
}

#[test]
fn a_machine_beside_the_quickstarts_containers_has_the_same_names() {
    let Some(node) = machines::start() else { return };
    let [quickstart, with_machine] = write(node.folder(), free_port());
    node.ok(&["up", &quickstart]);
    let pids = |node: &Node| {
        ["nameserver", "resolver", "web", "robot", "camera"].map(|name| row(node, name)["pid"].clone())
    };
    let before = pids(&node);
    let said = node.ok(&["up", "--replace", &with_machine]);
    assert!(said.contains("start edge") && !said.contains("start web"), "{said}");
    assert_eq!(pids(&node), before, "what was up is as it was");
    assert!(row(&node, "edge").to_string().contains("tcg"));
    let stub = shell_ok(&node, "edge", "nslookup www.quickstart.test");
    assert!(
        stub.contains("127.0.0.53") && stub.contains("192.0.2.10") && stub.contains("2001:db8::10"),
        "{stub}"
    );
    let questions = [
        "www.quickstart.test",
        "fleet.quickstart.test",
        "shop.quickstart.test",
        "MX quickstart.test",
        "PTR 192.0.2.30",
    ];
    for question in questions {
        let line = format!("exec 3<>/srv/dns/query; echo {question} >&3; cat <&3");
        let of_guest = shell_ok(&node, "edge", &line);
        assert!(!of_guest.is_empty());
        assert_eq!(answers(&of_guest), answers(&node.shell_ok("web", &line)), "{question}");
    }
    assert!(node.ok(&["logs", "edge"]).contains("this is Linux"));
    let said = node.ok(&["up", "--replace", &quickstart]);
    assert!(said.contains("stop edge"), "{said}");
    assert_eq!(pids(&node), before);
}
