//! The bed of tests of endpoints: a distributed container, and programs in it.

use e2e::{Node, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// The program of the tests, on this machine.
pub const PEER: &str = env!("CARGO_BIN_EXE_endpoint_peer");
/// Where domains see it.
pub const INSIDE: &str = "/endpoint-peer";
/// The command of a domain that only waits for `exec`.
pub const SLEEP: &str = "[\"sleep\", \"infinity\"]";

/// A domain in the words of the file.
pub fn domain(name: &str, kind: &str, command: &str) -> String {
    // A process sees the node's own files.
    let more = match kind {
        "container" => {
            format!("root = \"host\"\nmounts = [{{ source = \"{PEER}\", target = \"{INSIDE}\" }}]\n")
        }
        _ => String::new(),
    };
    format!(
        "\n[domain.{name}]\nkind = \"{kind}\"\ncommand = {command}\n\
         restart = {{ policy = \"always\", backoff = \"20ms\", max_backoff = \"50ms\" }}\n{more}"
    )
}

/// A distributed container in which `brain` has the endpoint `planner`, to which `camera` of `eye`
/// may send, and which the programs of `desk` may ask. `brain` runs `command`; `limits` are the
/// table `ipc` of the file.
pub fn shop(dc: &str, command: &str, limits: &str) -> String {
    let domains: String =
        ["eye", "desk", "arm"].iter().map(|name| domain(name, "container", SLEEP)).collect();
    format!(
        "name = \"{dc}\"\n{}{domains}\n\
         [endpoint.planner]\ndomain = \"brain\"\n\
         allow = [{{ endpoints = [\"camera\"], verbs = [\"send\", \"notify\"] }}, {{ domains = [\"desk\"], verbs = [\"request\"] }}]\n\n\
         [endpoint.camera]\ndomain = \"eye\"\ncalls = [\"planner\"]\n\n\
         [endpoint.journal]\ndomain = \"arm\"\nallow = [{{ endpoints = [\"camera\"], verbs = [\"send\"] }}]\n\n\
         [endpoint.motor]\ndomain = \"arm\"\nallow = [{{ domains = [\"desk\", \"brain\"], verbs = [\"request\"] }}]\n\n{limits}",
        domain("brain", "container", command)
    )
}

/// A node with that, where `brain` serves.
pub fn start(limits: &str) -> Option<(Node, String)> {
    let node = Node::start()?;
    let text = shop("shop", &format!("[\"{INSIDE}\", \"serve\", \"planner\"]"), limits);
    node.up_ok(&text);
    wait::until("the planner is bound", || row(&node, "shop", "planner")["bound"] == true);
    Some((node, text))
}

/// Runs the program in a domain: its exit code and what it says.
pub fn peer(node: &Node, domain: &str, words: &str) -> (i32, String) {
    let run = node.shell(domain, &format!("exec {INSIDE} {words}"));
    (run.code, run.out + &run.err)
}

/// The program has failed as it should, with these words among its own.
pub fn assert_failed((code, said): (i32, String), words: &str) {
    assert!(
        code == 3 && said.contains("failed: ") && said.contains(words),
        "{words:?} expected: {code} {said}"
    );
}

/// The output of `endpoint ls --json` for a distributed container.
pub fn endpoints(node: &Node, dc: &str) -> Vec<Value> {
    let rows = node.json(&["endpoint", "ls"]);
    rows.as_array().expect("a list").iter().filter(|row| row["dc"] == dc).cloned().collect()
}

/// Its row of an endpoint.
pub fn row(node: &Node, dc: &str, name: &str) -> Value {
    let rows = endpoints(node, dc);
    rows.iter().find(|row| row["endpoint"] == name).expect("it is listed").clone()
}

/// A program in a domain, while it runs, and what it has said so far.
pub struct Program {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Program {
    /// Starts it, and waits for its first line.
    pub fn start(node: &Node, domain: &str, words: &[&str]) -> Self {
        let program = Self::spawn(node, domain, words);
        program.wait_for("");
        program
    }

    /// Starts it.
    pub fn spawn(node: &Node, domain: &str, words: &[&str]) -> Self {
        Self::run(node.command(&[&["exec", "-i", domain, "--", INSIDE], words].concat()))
    }

    /// Starts what such a command runs.
    pub fn run(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(line.trim_end().to_owned());
            }
        });
        Self { child, lines }
    }

    /// Writes a line to its input.
    pub fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("its input is open");
        writeln!(input, "{line}").expect("it reads");
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its first line.
    pub fn said(&self) -> String {
        self.lines().first().cloned().unwrap_or_default()
    }

    /// The first line that has these words in it.
    pub fn wait_for(&self, words: &str) -> String {
        let mut found = None;
        wait::until(&format!("the program says {words:?}"), || {
            found = self.lines().into_iter().find(|line| line.contains(words));
            found.is_some()
        });
        found.unwrap_or_default()
    }

    /// Lets go of its input, and waits for its end.
    pub fn end(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().expect("it ends");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("a program has said: {:#?}", self.lines());
        }
        // Where the test has failed it runs still; elsewhere it has ended, and there is nothing to
        // kill.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}
