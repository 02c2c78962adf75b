//! A container makes a million files in its writable layer and goes: nobody beside it waits for
//! that.

use e2e::{NameServer, Node, oci, topology};
use std::time::{Duration, Instant};

const FILES: usize = 1_000_000;
/// Restarts of the other container that are timed before, while and after the files are there.
const ROUNDS: usize = 5;

fn hoard(tree: &std::path::Path) -> String {
    format!(
        "name = \"hoard\"\n[domain.hoard]\nkind = \"container\"\nroot = {{ directory = \"{}\" }}\nwritable = true\n\
         layer = {{ size = \"2GiB\", inodes = {} }}\n\
         command = [\"/bin/sh\", \"-c\", \"mkdir /f && cd /f && seq {FILES} | xargs -n 2000 touch && touch /all; sleep 1000000\"]\n\
         ready = {{ command = [\"/bin/sh\", \"-c\", \"[ -e /all ]\"], timeout = \"300s\" }}\n",
        tree.display(),
        FILES + 1_000
    )
}

/// Restarts a container of somebody else's and looks a name up in it.
fn round(node: &Node) -> Duration {
    let begun = Instant::now();
    node.ok(&["restart", "client1"]);
    node.shell_ok("client1", "getent ahostsv4 host3.tombolo.example");
    begun.elapsed()
}

#[test]
fn whoever_is_beside_a_million_files_that_are_removed_goes_on() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    node.up_ok(&topology(server.port, &["client1"], "", ""));
    let line = "mkdir -p tree/bin tree/etc; cp $(command -v busybox) tree/bin/busybox; \
                for i in sh sleep seq xargs touch mkdir [ ls; do ln -sf busybox tree/bin/$i; done; \
                echo root:x:0:0::/:/bin/sh > tree/etc/passwd";
    oci::script(node.folder(), line);
    let quiet: Vec<Duration> = (0..ROUNDS).map(|_| round(&node)).collect();
    node.up_ok(&hoard(&node.folder().join("tree")));
    let there: Vec<Duration> = (0..ROUNDS).map(|_| round(&node)).collect();
    let (removed, meanwhile) = std::thread::scope(|scope| {
        let down = scope.spawn(|| {
            let begun = Instant::now();
            node.ok(&["down", "hoard"]);
            begun.elapsed()
        });
        let meanwhile: Vec<Duration> = (0..ROUNDS).map(|_| round(&node)).collect();
        (down.join().expect("it goes down"), meanwhile)
    });
    println!(
        "quiet {quiet:?}; beside {FILES} files {there:?}; removed in {removed:?}, and meanwhile {meanwhile:?}"
    );
    node.up_ok(&hoard(&node.folder().join("tree")).replace(&FILES.to_string(), "10"));
    node.ok(&["down", "hoard"]);
}
