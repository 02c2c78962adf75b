//! Disks that are full: because of a domain, which hurts only itself, or because of somebody else.

use e2e::{NameServer, Node, node, topology, wait};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

/// The file system of the run directory in these tests: small, so that filling it takes no time.
const SMALL: &std::ffi::CStr = c"size=64m,nr_inodes=20000,mode=700";

/// A node whose run directory is a small file system.
struct Small {
    node: Node,
    run_dir: PathBuf,
}

impl Small {
    fn new() -> Option<Self> {
        let node = Node::start()?;
        let run_dir = node.run_dir();
        fs::create_dir(&run_dir).expect("the run directory");
        mount("tmpfs", &run_dir, "tmpfs", MountFlags::empty(), SMALL).expect("a small file system");
        Some(Self { node, run_dir })
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // The node proves afterwards that nothing of it is left, and this mount is ours.
        self.node.run(&["down", "--all"]);
        node::terminate_and_wait(&self.node.pids("daemon"));
        unmount(&self.run_dir, UnmountFlags::DETACH).expect("the small file system goes");
    }
}

fn resolves(node: &Node) -> bool {
    node.shell("web", "getent ahostsv4 host3.tombolo.example").out.contains("192.0.2.3")
}

/// Kills the server of the directory, and waits until another one answers.
fn server_dies_and_comes_back(node: &Node, when: &str) {
    let before = node.pids("server");
    before.iter().for_each(|pid| node::kill(*pid));
    wait::until(&format!("another server runs {when}{}", node.daemon_log()), || {
        let now = node.pids("server");
        !now.is_empty() && now.iter().all(|pid| !before.contains(pid))
    });
    wait::until(&format!("names are resolved {when}"), || resolves(node));
}

fn domain_row(node: &Node, name: &str) -> serde_json::Value {
    let rows = node.json(&["ps"]);
    let row = rows.as_array().expect("rows").iter().find(|row| row["domain"] == name);
    row.unwrap_or_else(|| panic!("no {name} in {rows}")).clone()
}

// What a container wrote to its root lay in the run directory, which all share: nobody could be
// started, or started again, after that.
#[test]
fn a_domain_that_fills_its_layer_hurts_only_itself() {
    let Some(small) = Small::new() else { return };
    let node = &small.node;
    let server = NameServer::start(node.folder());
    let tree = crate::roots::tree(node.folder());
    let hog = format!(
        "\n[domain.hog]\nroot = {{ directory = \"{}\" }}\nkind = \"container\"\nwritable = true\n\
         layer = {{ size = \"96MiB\", inodes = 30000 }}\ncommand = [\"/bin/sleep\", \"1000000\"]\n",
        tree.display()
    );
    let text = topology(server.port, &["web"], "", "") + &hog;
    node.up_ok(&text);
    let row = domain_row(node, "hog");
    assert_eq!((&row["layer"]["size_bytes"], &row["layer"]["inodes"]), (&(96 << 20).into(), &30_000.into()));
    assert!(domain_row(node, "web")["layer"].is_null());
    // More files than the run directory could have, and more bytes.
    let fill =
        "i=0; while true > /f$i; do i=$((i+1)); done; /bin/busybox rm /f0; cat /dev/zero > /f0; echo $i";
    let run = node.run(&["exec", "hog", "--", "/bin/sh", "-c", fill]);
    assert_eq!(run.err.matches("No space left").count(), 2, "{run:?}");
    let files: u64 = run.out.trim().parse().expect("how many files");
    assert!((29_000..30_000).contains(&files), "{files}");
    let row = domain_row(node, "hog");
    assert_eq!(row["layer"]["used_bytes"], 96 << 20, "{row}");
    let table = node.ok(&["ps"]);
    assert!(table.contains("LAYER") && table.contains("/30000"), "{table}");
    server_dies_and_comes_back(node, "while a layer is full");
    let other =
        "name = \"other\"\n[domain.robot]\nkind = \"container\"\ncommand = [\"sleep\", \"1000000\"]\n";
    node.up_ok(other);
    // Its next incarnation has an empty one.
    node.up_ok(&text.replace("1000000", "1000001"));
    assert_eq!(node.run(&["exec", "hog", "--", "/bin/ls", "/big"]).code, 1);
}

// A server that died while the run directory was full could not be started again ("cannot write
// .../bundle/config.new: No space left on device"), and `up` said all the same that all was as the
// file says.
#[test]
fn a_full_run_directory_keeps_nobody_from_coming_back() {
    let Some(small) = Small::new() else { return };
    let node = &small.node;
    let server = NameServer::start(node.folder());
    let text = topology(server.port, &["web"], "", "");
    node.up_ok(&text);
    let filler = small.run_dir.join("filler");
    fs::create_dir(&filler).expect("a folder");
    let fill = || {
        let mut big = File::options().append(true).create(true).open(filler.join("big")).expect("a file");
        while big.write_all(&[0; 4096]).is_ok() {}
        let first = fs::read_dir(&filler).expect("list").count();
        let files = (first..).take_while(|file| File::create(filler.join(file.to_string())).is_ok()).count();
        println!("{files} more files");
    };
    fill();
    for when in ["on a full disk", "on a disk that is still full"] {
        server_dies_and_comes_back(node, when);
        assert!(node.up_ok(&text).contains("nothing to do"));
        fill();
    }
    let log = node.daemon_log();
    assert!(log.contains("this disk is full") && log.contains("make room on this disk"), "{log}");
    // Beyond what is kept a start fails, which is said and tried again; with room it is over.
    let mut waits = 0;
    for _ in 0..8 {
        node.pids("server").into_iter().for_each(node::kill);
        fill();
        wait::until("it waits or runs", || {
            ["waiting", "running"]
                .contains(&domain_row(node, "resolver")["state"].as_str().unwrap_or_default())
        });
        waits += u32::from(domain_row(node, "resolver")["state"] == "waiting");
    }
    println!("seen waiting {waits} times");
    fs::remove_dir_all(&filler).expect("room");
    wait::until("names are resolved when there is room", || resolves(node));
    node.up_ok(&text);
}
