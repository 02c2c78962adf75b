//! A machine that lacks something is told what, and how to get it.

use e2e::{Node, Run, node};
use std::process::{Command, Stdio};

const TOPOLOGY: &str = "name = \"test\"\n[domain.web]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n";

/// `up` in a mount namespace of its own, after `prepare` has taken something away there.
fn up_without(node: &Node, prepare: &str) -> Run {
    let file = node.folder().join("topology.toml");
    std::fs::write(&file, TOPOLOGY).expect("the topology is written");
    let line = format!(
        "set -e; {prepare}; exec {} --run-dir {} --state-dir {} up {}",
        node::binary().display(),
        node.run_dir().display(),
        node.state_dir().display(),
        file.display()
    );
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &line]).stdin(Stdio::null()).output();
    output.expect("unshare(1)").into()
}

#[test]
fn without_fuse_it_says_how_to_get_it() {
    let Some(node) = Node::start() else { return };
    let devices = node.folder().join("dev");
    std::fs::create_dir(&devices).expect("a folder");
    let devices = devices.display();
    let run = up_without(
        &node,
        &format!(
            "mount --bind /dev {devices}; mount -t tmpfs none /dev; \
             for i in null zero urandom random tty; do touch /dev/$i; mount --bind {devices}/$i /dev/$i; done"
        ),
    );
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains("/dev/fuse") && run.err.contains("modprobe fuse"), "{}", run.err);
}

#[test]
fn without_a_container_runtime_it_says_how_to_get_one() {
    let Some(node) = Node::start() else { return };
    let hide = "for f in /usr/bin/runc /usr/sbin/runc /usr/bin/crun; do test ! -e $f || mount --bind /dev/null $f; done";
    let run = up_without(&node, hide);
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.err.contains("runc") && run.err.contains("apt-get install runc"), "{}", run.err);
}

#[test]
fn without_root_it_says_so() {
    let Some(node) = Node::start() else { return };
    let run: Run = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(node::binary())
        .args(["--run-dir", "/tmp/tombolo-nobody/run", "--state-dir", "/tmp/tombolo-nobody/state", "daemon"])
        .output()
        .expect("setpriv(1)")
        .into();
    assert!(run.code == 1 && run.err.contains("root"), "{run:?}");
    drop(node);
}
