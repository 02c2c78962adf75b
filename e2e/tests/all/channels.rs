//! Channels between programs of isolated domains: two containers without any network, and one
//! program in each.

use e2e::{Node, node, wait};
use rustix::io::Errno;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

/// The program of the tests, on this machine.
const PEER: &str = env!("CARGO_BIN_EXE_channel_peer");
/// Where domains see it.
const INSIDE: &str = "/channel-peer";
/// How often a program is killed.
const KILLS: usize = 3;

/// A distributed container in which `camera` offers `frames` to `viewer`, and `other` has nothing
/// to do with it.
fn topology(dc: &str, camera: &str, settings: &str) -> String {
    let domain = |name: &str, command: &str| {
        format!(
            "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = {command}\n\
             restart = {{ policy = \"always\", backoff = \"50ms\" }}\n\
             mounts = [{{ source = \"{PEER}\", target = \"{INSIDE}\" }}]\n"
        )
    };
    let sleep = "[\"sleep\", \"infinity\"]";
    format!(
        "name = \"{dc}\"\n{}{}{}\n[service.frames]\nkind = \"channel\"\ndomain = \"camera\"\n\
         allow = [{{ domains = [\"viewer\"], verbs = [\"open\"] }}]\n{settings}\n",
        domain("camera", camera),
        domain("viewer", sleep),
        domain("other", sleep),
    )
}

fn offering() -> String {
    format!("[\"{INSIDE}\", \"offer\", \"frames\"]")
}

/// A node on which `camera` offers.
fn start(settings: &str) -> Option<(Node, String)> {
    let node = Node::start()?;
    let text = topology("shop", &offering(), settings);
    node.up_ok(&text);
    Some((node, text))
}

/// Runs the program in a domain: its exit code and what it says.
fn peer(node: &Node, domain: &str, words: &str) -> (i32, String) {
    let line = format!("exec {INSIDE} {words}");
    let run = node.shell(domain, &line);
    (run.code, run.out + &run.err)
}

/// Opens a channel, waits for it if need be, and asks: `who` is answered.
fn assert_answered(node: &Node, domain: &str, who: &str) {
    let (code, said) = peer(node, domain, "open frames 20000 200");
    assert_eq!((code, said.trim()), (0, format!("answered 200 as {who}").as_str()), "{}", node.daemon_log());
}

fn assert_refused((code, said): (i32, String), errno: Errno, words: &str) {
    let head = format!("refused {}:", errno.raw_os_error());
    assert!(code == 3 && said.starts_with(&head) && said.contains(words), "{errno} expected: {code} {said}");
}

fn frames(node: &Node) -> Value {
    let rows = node.json(&["service", "ls"]);
    let rows = rows.as_array().expect("a list");
    rows.iter()
        .find(|row| row["dc"] == "shop" && row["service"] == "frames")
        .expect("the channel is listed")
        .clone()
}

fn pid_of(node: &Node, domain: &str) -> u32 {
    let tree = node.json(&["inspect", &format!("dc/shop/domains/{domain}")]);
    tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs")
}

/// The program in a domain, while it runs.
struct Running(Child, BufReader<ChildStdout>);

impl Running {
    fn start(node: &Node, domain: &str, words: &[&str]) -> Self {
        let all = [&["exec", "-i", domain, "--", INSIDE], words].concat();
        let mut child =
            node.command(&all).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        Self(child, out)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("what it says");
        line.trim_end().to_owned()
    }

    /// Lets go of its input, and waits for its end.
    fn end(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Where the test has failed it runs still; elsewhere it has ended, and there is nothing to
        // kill.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn programs_of_two_domains_without_a_network_talk() {
    let Some((node, _)) = start("") else { return };
    assert_answered(&node, "viewer", "shop/viewer/api");
    let interfaces = node.shell_ok("viewer", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    assert_eq!(interfaces.trim(), "lo", "the domain has a network");
    // A channel has no files.
    let files = node.shell_ok("viewer", "ls /srv");
    assert!(!files.contains("frames"), "{files}");
    let row = frames(&node);
    assert_eq!((&row["kind"], &row["up"]), (&Value::from("channel"), &Value::from(true)), "{row}");
    assert_eq!((&row["domain"], &row["consumers"]), (&Value::from("camera"), &serde_json::json!(["viewer"])));
    assert!(row["server_pid"].is_u64(), "{row}");
    // It is counted as long as it lives.
    let mut kept = Running::start(&node, "viewer", &["keep", "frames", "2"]);
    assert_eq!(kept.line(), "kept 2");
    let tree = node.json(&["service", "show", "frames"]);
    let rows = tree["channels"].as_array().expect("the channels");
    assert!(rows.len() == 2 && rows.iter().all(|row| row["domain"] == "viewer"), "{tree}");
    assert_eq!(tree["channels_opened"], 3, "{tree}");
    let known = node.shell_ok("viewer", "cat /srv/self/about.json");
    assert!(
        known.contains("frames") && !known.contains("camera"),
        "a domain is told of another one: {known}"
    );
    let traced = node.run(&["trace", "frames"]);
    assert!(traced.code == 1 && traced.err.contains("frames is a channel"), "{traced:?}");
    kept.end();
    wait::until("its channels are over", || frames(&node)["channels"] == 0);
}

#[test]
fn only_whom_the_file_names_opens_and_only_the_host_offers() {
    let Some((node, text)) = start("settings = { max_channels = 4, channels_per_domain = 3 }") else {
        return;
    };
    assert_answered(&node, "viewer", "shop/viewer/api");
    assert_refused(peer(&node, "other", "open frames 0 1"), Errno::NOENT, "may open no channel of this name");
    assert_refused(
        peer(&node, "camera", "open frames 0 1"),
        Errno::NOENT,
        "may open no channel of this name",
    );
    assert_refused(peer(&node, "other", "offer frames"), Errno::NOENT, "no channel \"frames\"");
    assert_refused(peer(&node, "viewer", "offer frames"), Errno::PERM, "not offer it");
    assert_refused(peer(&node, "camera", "offer frames"), Errno::BUSY, "there is one at a time");
    let mut kept = Running::start(&node, "viewer", &["keep", "frames", "9"]);
    let line = kept.line();
    assert!(
        line.starts_with(&format!("kept 3 {}:", Errno::MFILE.raw_os_error()))
            && line.contains("`channels_per_domain`"),
        "{line}"
    );
    kept.end();
    // Permissions are given and taken while all runs.
    let both = text.replace("domains = [\"viewer\"]", "domains = [\"viewer\", \"other\"]");
    let said = node.up_ok(&both);
    assert!(said.contains("allow other to open frames") && !said.contains("restart"), "{said}");
    assert_answered(&node, "other", "shop/other/api");
    node.up_ok(&text);
    assert_refused(peer(&node, "other", "open frames 0 1"), Errno::NOENT, "may open no channel of this name");
}

// What it does not take it could otherwise take from others: its consumers wait for turns at all
// their services.
#[test]
fn a_program_that_never_accepts_is_let_down_alone() {
    let Some(node) = Node::start() else { return };
    let settings = "settings = { channels_per_domain = 256 }";
    node.up_ok(&topology("shop", &format!("[\"{INSIDE}\", \"sulk\", \"frames\"]"), settings));
    wait::until("the channel is offered", || frames(&node)["up"] == true);
    // What is refused at last is that the program does not read; nobody waits for ever, and the
    // daemon is well.
    let mut kept = Running::start(&node, "viewer", &["keep", "frames", "100"]);
    let line = kept.line();
    assert!(line.starts_with("kept "), "{line}");
    let second = Running::start(&node, "viewer", &["keep", "frames", "200"]).line();
    assert!(second.starts_with("kept "), "{second}");
    assert_eq!(frames(&node)["up"], true);
    kept.end();
    // Its successor starts with nothing.
    node::kill(pid_of(&node, "camera"));
    node.up_ok(&topology("shop", &offering(), settings));
    assert_answered(&node, "viewer", "shop/viewer/api");
}

#[test]
fn another_distributed_container_reaches_only_its_own() {
    let Some((node, _)) = start("") else { return };
    // The same names, and nobody who offers: that there is one next door is not seen.
    node.up_ok(&topology("mall", "[\"sleep\", \"infinity\"]", ""));
    assert_refused(
        peer(&node, "mall/viewer", "open frames 0 1"),
        Errno::AGAIN,
        "no program offers the channel frames now",
    );
    assert_answered(&node, "shop/viewer", "shop/viewer/api");
    // And where somebody does, each talks with its own.
    let mut offering = Running::start(&node, "mall/camera", &["offer", "frames"]);
    assert_eq!(offering.line(), "offering");
    assert_answered(&node, "mall/viewer", "mall/viewer/api");
    assert_eq!(offering.line(), "accepted mall/viewer/api");
    assert_answered(&node, "shop/viewer", "shop/viewer/api");
}

#[test]
fn the_program_that_offers_dies_and_its_successor_offers() {
    let Some((node, _)) = start("") else { return };
    for kill in 1..=KILLS {
        let mut talking = Running::start(&node, "viewer", &["talk", "frames", "/tmp/never"]);
        assert_eq!(talking.line(), "talking", "{}", node.daemon_log());
        node::kill(pid_of(&node, "camera"));
        // Its channels end with it, and nobody waits for the daemon to say so.
        let line = talking.line();
        assert!(line.starts_with("ended: "), "{line}");
        talking.end();
        // Who opens meanwhile waits for the next one.
        assert_answered(&node, "viewer", "shop/viewer/api");
        assert_eq!(frames(&node)["generation"], kill + 1);
    }
    // A program that opened dies like that, too: its channel is over, and the next one is answered.
    let mut kept = Running::start(&node, "viewer", &["keep", "frames", "1"]);
    assert_eq!(kept.line(), "kept 1");
    node.shell_ok("viewer", "kill -9 $(pidof channel-peer)");
    kept.end();
    wait::until("its channel is over", || frames(&node)["channels"] == 0);
    assert_answered(&node, "viewer", "shop/viewer/api");
}

#[test]
fn the_daemon_dies_and_channels_live_on() {
    let Some((node, text)) = start("") else { return };
    let mut talking = Running::start(&node, "viewer", &["talk", "frames", "/tmp/stop"]);
    assert_eq!(talking.line(), "talking", "{}", node.daemon_log());
    for _ in 0..KILLS {
        node.kill_daemon();
        let said = node.up_ok(&text);
        assert!(said.contains("nothing to do"), "the next daemon did not adopt what runs: {said}");
        // The program that offers has told the new daemon by itself.
        assert_answered(&node, "viewer", "shop/viewer/api");
        assert_eq!(frames(&node)["up"], true);
    }
    node.shell_ok("viewer", "touch /tmp/stop");
    assert_eq!(talking.line(), "stopped", "the channel did not live on");
    talking.end();
}

#[test]
fn a_channel_moves_to_another_domain_while_all_runs() {
    let Some((node, text)) = start("") else { return };
    let mut talking = Running::start(&node, "viewer", &["talk", "frames", "/tmp/stop"]);
    assert_eq!(talking.line(), "talking", "{}", node.daemon_log());
    let said = node.up_ok(&text.replace("domain = \"camera\"", "domain = \"other\""));
    assert!(said.contains("update service frames while it runs: `domain` changed"), "{said}");
    assert_refused(
        peer(&node, "viewer", "open frames 0 1"),
        Errno::AGAIN,
        "no program offers the channel frames now",
    );
    let mut offering = Running::start(&node, "other", &["offer", "frames"]);
    assert_eq!(offering.line(), "offering");
    assert_answered(&node, "viewer", "shop/viewer/api");
    // A program that may no longer offer is told; this one ends, and finds out that it may not.
    wait::until("the program that offered is told", || node.ok(&["logs", "camera"]).contains("no longer"));
    node.shell_ok("viewer", "touch /tmp/stop");
    let last = talking.line();
    assert!(last == "stopped" || last.starts_with("ended: "), "{last}");
}
