//! A domain's files by 9P from another node: over TLS, by who is a node of the cluster.

use crate::sockets::unpacked;
use e2e::cluster::{Bed, Host};
use e2e::{Run, node};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `hall` on beta uses a tree of beta; `attic` shows nothing by 9P.
const TOPOLOGY: &str = "name = \"house\"\n\
    [domain.disk]\nkind = \"container\"\nnode = \"beta\"\n\
    [domain.hall]\nkind = \"container\"\nroot = \"host\"\nnode = \"beta\"\n\
    command = [\"sleep\", \"infinity\"]\nservices = { tree = \"/srv/tree\" }\nnine_p = true\n\
    [domain.attic]\nkind = \"container\"\nroot = \"host\"\nnode = \"beta\"\ncommand = [\"sleep\", \"infinity\"]\n\
    [service.tree]\nkind = \"files\"\ndomain = \"disk\"\n\
    allow = [{ domains = [\"hall\"], verbs = [\"write\"] }]\n";

/// `tombolo 9p` on a host, which ends with it at the latest.
fn offer(host: &Host, domain: &str, at: &Path) -> Child {
    let mut command = host.command(&["9p", domain, "--listen", &at.display().to_string()]);
    command.stdout(Stdio::null()).spawn().expect("tombolo starts")
}

/// Ends who listens there, as Ctrl-C does, and returns the exit code.
fn end(mut offered: Child, at: &Path) -> Option<i32> {
    let stream = UnixStream::connect(at).expect("it listens");
    let pid = rustix::net::sockopt::socket_peercred(&stream).expect("its number").pid;
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is told");
    offered.wait().expect("it ends").code()
}

/// A client of diod's, at a socket.
fn stock(program: &str, at: &Path, path: &str) -> Run {
    let folder = node::target().join("debian/diod");
    let output = Command::new(folder.join("usr/sbin").join(program))
        .env("LD_LIBRARY_PATH", folder.join("usr/lib/x86_64-linux-gnu"))
        .arg("-s")
        .arg(at)
        .args(["-t", "20", "-a", "/srv", path])
        .output();
    output.expect("the client starts").into()
}

#[test]
fn a_stock_client_of_9p_reads_the_files_of_a_domain_of_another_node() {
    if unpacked("diod").is_none() {
        return;
    }
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let (alpha, beta) = (bed.host(0), bed.host(1));
    alpha.up_ok(TOPOLOGY);
    let write = "seq 100000 > /srv/tree/f && echo x > /srv/tree/g";
    bed.until("the tree is served", TIMEOUT, || {
        alpha.run(&["exec", "hall", "--", "sh", "-c", write]).code == 0
    });
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("hall.sock");
    let offered = offer(alpha, "hall", &at);
    bed.until("it listens", TIMEOUT, || at.exists());
    assert_eq!(stock("diodls", &at, "/").out, "self\ntree\n");
    let wanted = alpha.ok(&["exec", "hall", "--", "cat", "/srv/tree/f"]);
    assert!(stock("diodcat", &at, "tree/f").out == wanted, "another text");
    let run = stock("diodcat", &at, "tree/none");
    assert!(run.code != 0 && run.err.contains("No such file or directory"), "{run:?}");
    // The other node's daemon dies, and with it what it relayed; the next one relays again.
    beta.kill_role("daemon");
    bed.start_daemon(beta);
    bed.until("the next daemon relays", TIMEOUT, || stock("diodcat", &at, "tree/g").out == "x\n");
    assert_eq!(end(offered, &at), Some(0));
    assert!(!at.exists(), "its socket is removed");
    // What can't be is said, and nothing is left.
    let at = at.display().to_string();
    for (domain, why) in [("attic", "write `nine_p = true` into `[domain.attic]`"), ("halll", "hall")] {
        let run = alpha.run(&["9p", domain, "--listen", &at]);
        assert!(run.code == 1 && run.err.contains(why), "{domain}: {run:?}");
    }
    std::fs::write(&at, "precious").expect("written");
    let run = alpha.run(&["9p", "hall", "--listen", &at]);
    assert!(run.code == 1 && run.err.contains("can't listen at"), "{run:?}");
    assert_eq!(std::fs::read_to_string(&at).expect("it is there"), "precious");
    bed.finish();
}
