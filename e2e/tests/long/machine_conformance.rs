//! The suite that every kind of channel passes, over the real thing: one end in a guest and the
//! other on the host, and two guests.

use e2e::Node;
use e2e::machines::{self, PEER, logs};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Stdio};

/// The program of the tests, on this machine, and where the container has it.
const ON_THE_NODE: &str = env!("CARGO_BIN_EXE_channel_peer");
const ON_DESK: &str = "/channel-peer";

/// Two machines and a container, each of which offers a channel to the others.
fn topology() -> String {
    let image = machines::booting(machines::image(ON_THE_NODE));
    let desk = format!(
        "\n[domain.desk]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"/bin/sleep\", \"infinity\"]\n\
         mounts = [{{ source = \"{ON_THE_NODE}\", target = \"{ON_DESK}\" }}]\n"
    );
    let service = |host: &str| {
        let others = ["left", "right", "desk"].into_iter().filter(|other| *other != host);
        let others: Vec<String> = others.map(|other| format!("\"{other}\"")).collect();
        format!(
            "\n[service.of-{host}]\nkind = \"channel\"\ndomain = \"{host}\"\nsettings = {{ ring_bytes = \"64KiB\" }}\n\
             allow = [{{ domains = [{}], verbs = [\"open\"] }}]\n",
            others.join(", ")
        )
    };
    "name = \"suite\"\n".to_owned()
        + &machines::domain("left", &[], &image, "")
        + &machines::domain("right", &[], &image, "")
        + &desk
        + &["left", "right", "desk"].map(service).concat()
}

/// One half of the suite, in a domain.
struct Half {
    domain: &'static str,
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Half {
    fn start(node: &Node, domain: &'static str, half: &str, service: &str) -> Self {
        let program = if domain == "desk" { ON_DESK } else { PEER };
        let mut child = node
            .command(&["exec", domain, "--", program, half, service])
            .stdout(Stdio::piped())
            .spawn()
            .expect("exec starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { domain, child, output }
    }

    /// Its output, and whether all held.
    fn end(mut self) -> (String, bool) {
        let mut printed = format!("in {}:\n", self.domain);
        self.output.read_to_string(&mut printed).expect("text");
        (printed, self.child.wait().expect("it ends").success())
    }
}

fn assert_conform(node: &Node, near: &'static str, far: &'static str) {
    let service = format!("of-{far}");
    let mut offers = Half::start(node, far, "far", &service);
    let mut line = String::new();
    offers.output.read_line(&mut line).expect("it speaks");
    assert_eq!(line.trim(), "offering", "{far}{}", logs(node, far));
    let opens = Half::start(node, near, "near", &service);
    let (near, near_held) = opens.end();
    let (far, far_held) = offers.end();
    println!("{near}{far}");
    assert!(near_held && far_held, "{}{}{}", logs(node, "left"), logs(node, "right"), node.daemon_log());
}

#[test]
fn every_scenario_holds_between_machines_and_with_the_host() {
    let Some(node) = machines::start() else { return };
    node.up_ok(&topology());
    assert_conform(&node, "desk", "left");
    assert_conform(&node, "right", "desk");
    assert_conform(&node, "left", "right");
}
