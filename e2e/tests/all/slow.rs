//! A slow thing holds up only itself: domains that do not end, a disk that does not answer, one
//! that takes no writes.

use e2e::{Node, wait};
use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// As many domains as once kept every thread of the daemon busy, and some.
const STUBBORN: usize = 20;

/// A process that does not end when it is asked to, and has the longest time that a file can give.
fn stubborn(number: usize) -> String {
    format!(
        "[domain.d{number}]\nkind = \"process\"\ncommand = [\"bash\", \"-c\", \"trap '' TERM; while :; do sleep 1 & wait; done\"]\n\
         stop = {{ timeout = \"10m\" }}\n"
    )
}

/// An ordinary process.
fn quick(name: &str) -> String {
    format!(
        "name = \"{name}\"\n[domain.{name}-web]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ timeout = \"0ms\" }}\n"
    )
}

fn file(node: &Node, name: &str, text: &str) -> PathBuf {
    let path = node.folder().join(format!("{name}.toml"));
    std::fs::write(&path, text).expect("the topology is written");
    path
}

/// A command of the node's, in the background.
fn begin(node: &Node, arguments: &[&str]) -> Child {
    node.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("tombolo starts")
}

/// An `up` that the daemon is asked for directly: the command would look at the disk itself, and
/// wait for it before it asks.
fn ask_for_up(node: &Node, name: &str, text: &str) -> Child {
    let body = json!({ "text": text, "file": format!("{name}.toml"), "base": node.folder() });
    let mut command = Command::new("curl");
    command.args(["-s", "--unix-socket"]).arg(node.run_dir().join("daemon.sock"));
    command.args(["-H", "content-type: application/json", "-d", &body.to_string(), "http://node/v1/up"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("curl(1) is installed")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn is_under_way(child: &mut Child) -> bool {
    child.try_wait().expect("it can be looked at").is_none()
}

/// A whole life of another distributed container, and what is done with one that runs.
fn others_go_on(node: &Node) {
    let path = file(node, "other", &quick("other"));
    node.ok(&["up", &path.to_string_lossy()]);
    node.ok(&["exec", "other-web", "--", "true"]);
    node.ok(&["restart", "other-web"]);
    node.ok(&["down", "other"]);
    those_that_run_are_served(node);
}

fn those_that_run_are_served(node: &Node) {
    node.ok(&["exec", "runs-web", "--", "true"]);
    node.ok(&["kill", "runs-web", "--signal", "CONT"]);
    node.ok(&["inspect", "dc/runs"]);
    assert!(node.ok(&["ps"]).contains("runs-web"));
}

fn rows(node: &Node) -> Vec<Value> {
    node.json(&["ps"]).as_array().cloned().unwrap_or_default()
}

#[test]
fn domains_that_do_not_end_are_asked_together_and_hold_up_nobody_else() {
    let Some(node) = Node::start() else { return };
    node.ok(&["up", &file(&node, "runs", &quick("runs")).to_string_lossy()]);
    let all: String = (0..STUBBORN).map(stubborn).collect();
    node.ok(&["up", &file(&node, "stubborn", &format!("name = \"stubborn\"\n{all}")).to_string_lossy()]);
    let mut down = begin(&node, &["down", "stubborn"]);
    wait::until("all of them are asked to end", || {
        rows(&node).iter().filter(|row| row["state"] == "stopping").count() == STUBBORN
    });
    others_go_on(&node);
    assert!(is_under_way(&mut down), "they ended");
    let stopping = rows(&node);
    let pids = stopping.iter().filter(|row| row["state"] == "stopping").filter_map(|row| row["pid"].as_i64());
    let pids: Vec<i64> = pids.collect();
    assert_eq!(pids.len(), STUBBORN);
    for pid in pids {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("its number");
        kill_process(pid, Signal::KILL).expect("it is there");
    }
    let output = down.wait_with_output().expect("it ends");
    assert!(output.status.success() && text(&output).contains("stubborn is down"), "{}", text(&output));
}

/// Domains that stand on others end before them, whatever else ends at the same time.
#[test]
fn domains_end_before_those_on_which_they_stand() {
    let Some(node) = Node::start() else { return };
    let note = node.folder().join("ended");
    let domain = |name: &str, after: &str| {
        format!(
            "[domain.{name}]\nkind = \"process\"\nafter = [{after}]\n\
             command = [\"bash\", \"-c\", \"trap 'sleep 0.2; echo {name} >> {}; exit 0' TERM; while :; do sleep 1 & wait; done\"]\n",
            note.display()
        )
    };
    let all = [
        domain("base", ""),
        domain("one", "\"base\""),
        domain("other", "\"base\""),
        domain("top", "\"one\", \"other\""),
    ];
    node.up_ok(&format!("name = \"tower\"\n{}", all.concat()));
    node.ok(&["down", "tower"]);
    let ended = std::fs::read_to_string(&note).expect("they said so");
    let mut ended: Vec<&str> = ended.lines().collect();
    assert_eq!(ended.len(), 4, "{ended:?}");
    ended[1..3].sort_unstable();
    assert_eq!(ended, ["top", "one", "other", "base"]);
}

/// A file system whose server never answers: as a network's that is cut off, or a disk that is
/// dying.
struct Hung {
    at: PathBuf,
    device: Option<OwnedFd>,
}

impl Hung {
    fn mount(at: PathBuf) -> Self {
        let device = frontend::open_device().expect("/dev/fuse");
        let mount = frontend::mount_detached(&device, &frontend::MountOptions::default()).expect("a mount");
        std::fs::create_dir(&at).expect("made");
        move_mount(&mount, "", CWD, &at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).expect("attached");
        Self { at, device: Some(device) }
    }

    /// Whoever waits for it gets an error.
    fn give_up(&mut self) {
        self.device = None;
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.give_up();
        // A second panic would hide the first one.
        let _gone_already = unmount(&self.at, UnmountFlags::DETACH);
    }
}

#[test]
fn a_disk_that_never_answers_holds_up_the_files_that_name_it_and_nobody_else() {
    let Some(node) = Node::start() else { return };
    node.ok(&["up", &file(&node, "runs", &quick("runs")).to_string_lossy()]);
    let mut hung = Hung::mount(node.folder().join("hung"));
    let mut begun = ["first", "second", "third"].map(|name| {
        let root = hung.at.join("root");
        let text = format!(
            "name = \"{name}\"\n[domain.{name}]\nkind = \"container\"\nroot = {{ directory = \"{}\" }}\ncommand = [\"/bin/true\"]\n",
            root.display()
        );
        ask_for_up(&node, name, &text)
    });
    wait::until("all of them are looked at", || {
        for child in &mut begun {
            if !is_under_way(child) {
                let mut said = String::new();
                child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
                panic!("it has ended: {said}");
            }
        }
        let changes = node.json(&["inspect", "node/changes"]);
        changes.as_array().is_some_and(|changes| changes.len() == 3)
    });
    others_go_on(&node);
    hung.give_up();
    for child in begun {
        let output = child.wait_with_output().expect("it ends");
        assert!(text(&output).contains("\"not-admitted\""), "{}", text(&output));
    }
    assert!(rows(&node).iter().all(|row| row["dc"] == "runs"));
}

/// A disk of its own for the state directory, which takes no writes while it is frozen.
struct Frozen {
    at: PathBuf,
    frozen: bool,
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{program} {arguments:?}: {}", text(&output));
}

impl Frozen {
    fn mount(image: &Path, at: PathBuf) -> Self {
        std::fs::create_dir_all(&at).expect("made");
        let file = std::fs::File::create(image).expect("made");
        file.set_len(64 << 20).expect("so long");
        run("mkfs.ext4", &["-q", "-F", &image.to_string_lossy()]);
        run("mount", &["-o", "loop", &image.to_string_lossy(), &at.to_string_lossy()]);
        let this = Self { at, frozen: false };
        // A node takes no directory in which something is that it does not know.
        std::fs::remove_dir(this.at.join("lost+found")).expect("mkfs has made it");
        this
    }

    fn freeze(&mut self) {
        run("fsfreeze", &["--freeze", &self.at.to_string_lossy()]);
        self.frozen = true;
    }

    fn thaw(&mut self) {
        run("fsfreeze", &["--unfreeze", &self.at.to_string_lossy()]);
        self.frozen = false;
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.frozen {
            self.thaw();
        }
        run("umount", &["--lazy", &self.at.to_string_lossy()]);
    }
}

#[test]
fn a_disk_that_takes_no_writes_holds_up_changes_and_nobody_who_runs() {
    let Some(node) = Node::start() else { return };
    let mut disk = Frozen::mount(&node.folder().join("disk"), node.state_dir());
    node.ok(&["up", &file(&node, "runs", &quick("runs")).to_string_lossy()]);
    disk.freeze();
    let path = file(&node, "other", &quick("other"));
    let mut up = begin(&node, &["up", &path.to_string_lossy()]);
    wait::until("it is begun", || {
        node.json(&["inspect", "node/changes"]).as_array().is_some_and(|changes| changes.len() == 1)
    });
    for _ in 0..10 {
        those_that_run_are_served(&node);
    }
    assert!(is_under_way(&mut up), "it is up without being written down");
    disk.thaw();
    let output = up.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(rows(&node).len(), 2);
    node.finish();
    drop(disk);
}
