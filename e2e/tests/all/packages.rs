//! The Debian packages, in a root that has never seen them: installed, used, upgraded under a
//! domain that runs, and purged without a trace.

use e2e::{Node, Run, node};
use std::path::Path;
use std::process::{Command, Stdio};

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// Installs, uses and purges, in a mount namespace of its own.
const IN_A_CLEAN_ROOT: &str = include_str!("packages/clean_root.sh");

#[test]
fn packages_are_installed_used_upgraded_and_purged_without_a_trace() {
    let Some(node) = Node::start() else { return };
    if !Path::new("/usr/bin/dpkg-deb").exists() {
        println!("skipped: this is no Debian (there is no dpkg-deb)");
        return;
    }
    let (packages, base) = (node.folder().join("packages"), node.folder().join("base"));
    std::fs::create_dir(&base).expect("a folder");
    let made: Run = Command::new(format!("{ROOT}/scripts/make-packages"))
        .arg(&packages)
        .env("BINARIES", node::binary().parent().expect("a folder"))
        .env("COMPRESSION", "none")
        .stdin(Stdio::null())
        .output()
        .expect("the script starts")
        .into();
    assert_eq!((made.code, made.out.lines().count()), (0, 5), "{made:?}");
    let ran: Run = Command::new("unshare")
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            IN_A_CLEAN_ROOT,
            "sh",
        ])
        .args([&packages, &base])
        .stdin(Stdio::null())
        .output()
        .expect("unshare(1)")
        .into();
    let (out, err) = (&ran.out, &ran.err);
    assert_eq!(ran.code, 0, "{out}\n{err}");
    for words in
        ["/usr/lib/python3/dist-packages/tombolo/__init__.py", "the domain runs on", "the domain is back"]
    {
        assert!(out.contains(words), "{words} is not in\n{out}\n{err}");
    }
    let (_, traces) = out.split_once("== traces\n").expect("it came to its end");
    assert_eq!(traces, "", "files that a purge leaves");
}
