//! A domain's `/srv` by 9P2000.L, to clients that know nothing of us.

use crate::sockets::unpacked;
use e2e::{Node, Run, node, wait};
use std::process::Command;

const SOCKET: &str = "/run/tombolo/9p.sock";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// `disk` serves a tree; `hall` writes to it and `cellar` reads it, both by 9P as well.
fn topology(diod: &str) -> String {
    let client = |name: &str, more: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ tree = \"/srv/tree\" }}\nnine_p = true\n{more}\n"
        )
    };
    format!(
        "name = \"house\"\n[domain.disk]\nkind = \"container\"\n{}{}\
         [service.tree]\nkind = \"files\"\ndomain = \"disk\"\n\
         allow = [{{ domains = [\"hall\"], verbs = [\"write\"] }}, {{ domains = [\"cellar\"], verbs = [\"read\"] }}]\n",
        client("hall", diod),
        client("cellar", ""),
    )
}

/// A client of diod's on the node, which looks into a domain.
fn stock(node: &Node, program: &str, domain: &str, path: &str) -> Run {
    let folder = node::target().join("debian/diod");
    let socket = node.run_dir().join(format!("dc/house/{domain}/inside/9p.sock"));
    let output = Command::new(folder.join("usr/sbin").join(program))
        .env("LD_LIBRARY_PATH", folder.join(LIBRARIES))
        .arg("-s")
        .arg(socket)
        .args(["-t", "20", "-a", "/srv", path])
        .output();
    output.expect("the client starts").into()
}

#[test]
fn stock_clients_of_9p_see_what_programs_of_the_domain_see() {
    let Some(diod) = unpacked("diod") else { return };
    let Some(node) = Node::start() else { return };
    node.up_ok(&topology(&diod));
    wait::until("the tree is served", || node.shell("hall", "ls /srv/tree").code == 0);
    node.shell_ok("hall", "mkdir /srv/tree/a && seq 100000 > /srv/tree/a/f && echo x > /srv/tree/a/g");
    // From the node, as a program of each domain; and within.
    assert_eq!(stock(&node, "diodls", "hall", "/").out, "self\ntree\n");
    assert_eq!(stock(&node, "diodls", "cellar", "tree/a").out, "f\ng\n");
    let wanted = node.shell_ok("cellar", "cat /srv/tree/a/f");
    assert!(stock(&node, "diodcat", "cellar", "tree/a/f").out == wanted, "another text");
    let within = format!("/opt/diod/usr/sbin/diodcat -s {SOCKET} -a /srv tree/a/g");
    assert_eq!(node.shell_ok("hall", &within), "x\n");
    assert_eq!(stock(&node, "diodcat", "hall", "self").code, 1, "a folder");
    let run = stock(&node, "diodcat", "hall", "tree/a/none");
    assert!(run.code != 0 && run.err.contains("No such file or directory"), "{run:?}");
    // A daemon and a frontend that die are followed by others, at the same socket.
    node.kill_daemon();
    node.up_ok(&topology(&diod));
    assert_eq!(stock(&node, "diodcat", "hall", "tree/a/g").out, "x\n");
    node::kill_and_wait(&node.pids("frontend"));
    wait::until("the next frontend answers", || stock(&node, "diodcat", "hall", "tree/a/g").out == "x\n");
    // Without the key there is no socket.
    node.up_ok(&topology(&diod).replacen("nine_p = true\n", "", 1));
    let socket = node.run_dir().join("dc/house/hall/inside/9p.sock");
    wait::until("the socket is gone", || !socket.exists());
}
