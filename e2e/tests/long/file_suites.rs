//! Suites of others that exercise file systems, on a tree of files in two containers.

use e2e::{Node, wait};
use std::path::{Path, PathBuf};
use std::process::Command;

const TOPOLOGY: &str = r#"
name = "house"
[domain.disk]
kind = "container"
[domain.hall]
kind = "container"
root = "host"
command = ["sleep", "infinity"]
services = { tree = "/srv/tree" }
[domain.attic]
kind = "container"
root = "host"
command = ["sleep", "infinity"]
services = { tree = "/srv/tree" }
[service.tree]
kind = "files"
domain = "disk"
allow = [{ domains = ["hall", "attic"], verbs = ["write"] }]
settings = { bytes = "1GiB", inodes = 10000 }
"#;

/// Jobs of fio that write with checksums and read everything back. Nothing is left out of what fio
/// checks; what a tree does not have is not asked for: `mmap` of a shared mapping, `libaio` with
/// `direct`, whose calls a tree answers one by one all the same, and `fallocate` (each is in the
/// table of `docs/file-trees.md`). Sizes are so many whole blocks: fio would lay out anew what is
/// shorter than it says.
const JOBS: [(&str, &str); 5] = [
    ("sequential", "--size=15360k --rw=write --bs=60k --fsync=64"),
    ("random", "--size=16m --rw=randwrite --bs=4k --fdatasync=256"),
    ("odd", "--size=6295552 --rw=randwrite --bs=1537"),
    ("mixed", "--size=16m --rw=randrw --bs=16k --verify_backlog=64"),
    ("vectors", "--size=16m --rw=randwrite --bs=32k --ioengine=pvsync --overwrite=1"),
];

fn fio(node: &Node, domain: &str, of: &str, (name, job): (&str, &str), more: &str) {
    let line = format!(
        "fio --thread --name={name} --filename=/srv/tree/{of}-{name} --ioengine=psync --fallocate=none \
         --verify=crc32c --verify_fatal=1 --verify_state_save=0 {job} {more} 2>&1"
    );
    let run = node.shell(domain, &line);
    assert!(run.code == 0 && !run.out.contains("verify failed"), "{domain}: {line}: {run:?}");
}

/// Two domains write at once, each its own files, and verify them; then each verifies what the
/// other one wrote.
#[test]
fn fio_reads_back_what_it_wrote_in_its_own_domain_and_in_another() {
    let Some(node) = Node::start() else { return };
    node.up_ok(TOPOLOGY);
    wait::until("the tree is served", || node.shell("attic", "ls /srv/tree").code == 0);
    let both = |act: &(dyn Fn(&str, &str) + Sync)| {
        std::thread::scope(|scope| {
            scope.spawn(|| act("hall", "attic"));
            scope.spawn(|| act("attic", "hall"));
        });
    };
    both(&|domain, _| JOBS.into_iter().for_each(|job| fio(&node, domain, domain, job, "")));
    both(&|domain, other| {
        // What is only verified has to be written in one go.
        let whole = JOBS.into_iter().filter(|(name, _)| *name != "mixed");
        whole.for_each(|job| fio(&node, domain, other, job, "--verify_only=1"));
    });
    // A byte that is not what was written is found: the check checks.
    node.shell_ok("hall", "printf x | dd of=/srv/tree/hall-random bs=1 seek=70000 conv=notrunc status=none");
    let wrong = node.shell(
        "attic",
        "fio --thread --name=random --filename=/srv/tree/hall-random --size=16m --ioengine=psync --rw=randwrite --bs=4k \
         --verify=crc32c --verify_fatal=1 --verify_state_save=0 --verify_only=1 2>&1",
    );
    assert!(wrong.code != 0 && wrong.out.contains("verify failed"), "{wrong:?}");
}

/// The version of the file system exerciser, which is on crates.io alone.
const FSX: &str = "0.3.2";
/// Operations of each run, and the seeds.
const OPERATIONS: &str = "20000";
const SEEDS: [u32; 2] = [1, 20_261];
/// All operations that a tree has. Left out, with the errno that a program gets: `mapread` and
/// `mapwrite` map a file shared (`ENODEV`), `posix_fallocate`, `punch_hole` and `copy_file_range`
/// (`EOPNOTSUPP`; `docs/file-trees.md`).
const CONFIGURATION: &str = "flen = 300000\n[opsize]\nmax = 70000\n[weights]\nclose_open = 2\ninvalidate = 0\nmapread = 0\nmapwrite = 0\n\
    read = 10\nwrite = 10\ntruncate = 5\nfsync = 1\nfdatasync = 1\nsendfile = 3\nposix_fadvise = 1\n";

/// Installs the exerciser, where it is not yet.
fn fsx() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools");
    let program = tools.join("bin/fsx");
    let made = Command::new("cargo")
        .args(["install", "--quiet", "--locked", "--version", FSX, "fsx", "--root"])
        .arg(&tools)
        .env_remove("CARGO_TARGET_DIR")
        .status();
    if made.is_ok_and(|status| status.success()) && program.exists() {
        return Some(program);
    }
    println!("skipped: fsx {FSX} can't be installed by cargo");
    None
}

/// Random reads, writes, cuts and openings of one file by fsx, which knows what has to come of
/// each; in two domains at once, each with a file of its own.
#[test]
fn fsx_finds_each_byte_where_it_has_to_be() {
    let Some(node) = Node::start() else { return };
    let Some(program) = fsx() else { return };
    let program = program.display();
    let mounts = format!("mounts = [{{ source = \"{program}\", target = \"/fsx\" }}]\nservices = {{ tree");
    node.up_ok(&TOPOLOGY.replace("services = { tree", &mounts));
    wait::until("the tree is served", || node.shell("attic", "ls /srv/tree").code == 0);
    node.shell_ok("hall", &format!("cat > /srv/tree/fsx.toml << 'END'\n{CONFIGURATION}END"));
    let run = |domain: &str, seed: u32| {
        let line = format!(
            "/fsx -N {OPERATIONS} -S {seed} -f /srv/tree/fsx.toml -P /srv/tree /srv/tree/{domain}-{seed} 2>&1"
        );
        let run = node.shell(domain, &line);
        assert!(run.code == 0, "{domain}: {line}: {run:?}");
    };
    std::thread::scope(|scope| {
        for domain in ["hall", "attic"] {
            scope.spawn(move || SEEDS.into_iter().for_each(|seed| run(domain, seed)));
        }
    });
    // One that is left out is found, unless it was a read: the check checks.
    let line = "for n in $(seq 100 119); do /fsx -N 500 -S 1 --inject $n -f /srv/tree/fsx.toml -P /srv/tree /srv/tree/wrong || exit 3; done 2>&1";
    assert_eq!(node.shell("hall", line).code, 3);
}
