//! Programs in C and Python use channels between isolated domains, with what they find in
//! `/run/tombolo`: nothing is installed.

use e2e::{Node, node};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Where domains see the programs.
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
/// The headers of the library.
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../include");
/// The path by which a domain finds the package.
const PYTHON_PATH: &str = "/run/tombolo/python";

/// A distributed container in which a Python program offers `frames` to `viewer`, where nobody is
/// root, and not to `other`.
fn topology(compiled: &Path) -> String {
    let domain = |name: &str, command: &str, more: &str| {
        format!(
            "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnetwork = \"none\"\ncommand = {command}\n\
             restart = {{ policy = \"always\", backoff = \"50ms\" }}\n\
             environment = {{ PYTHONPATH = \"{PYTHON_PATH}\" }}\n{more}\n\
             mounts = [{{ source = \"{PROGRAMS}\", target = \"/programs\" }}, \
             {{ source = \"{}\", target = \"/compiled\" }}]\n",
            compiled.display()
        )
    };
    let sleep = "[\"sleep\", \"infinity\"]";
    format!(
        "name = \"shop\"\n{}{}{}\n[service.frames]\nkind = \"channel\"\ndomain = \"camera\"\n\
         allow = [{{ domains = [\"viewer\"], verbs = [\"open\"] }}]\n",
        domain("camera", "[\"python3\", \"/programs/frames_offer.py\"]", ""),
        domain("viewer", sleep, "user = \"65534:65534\""),
        domain("other", sleep, ""),
    )
}

/// Compiles the C program as for a domain: the loader finds the library in `/run/tombolo`.
fn compile(node: &Node) -> Option<PathBuf> {
    let library = node::binary().with_file_name("libtombolo.so");
    assert!(library.exists(), "{} is missing: run `make build` first", library.display());
    let folder = node.folder().join("compiled");
    fs::create_dir(&folder).expect("a folder");
    let compiled = Command::new("cc")
        .args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-I", HEADERS, "-o"])
        .arg(folder.join("frames_open"))
        .arg(format!("{PROGRAMS}/frames_open.c"))
        .arg("-L")
        .arg(library.parent().expect("a folder"))
        .args(["-ltombolo", "-Wl,-rpath,/run/tombolo"])
        .output();
    match compiled {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(folder)
        }
        Err(_) => {
            println!("skipped: there is no C compiler (apt-get install gcc libc6-dev)");
            None
        }
    }
}

/// A node on which the Python program offers.
fn start() -> Option<(Node, String)> {
    let node = Node::start()?;
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python3 is not installed (apt-get install python3)");
        return None;
    }
    let text = topology(&compile(&node)?);
    node.up_ok(&text);
    Some((node, text))
}

const C: &[&str] = &["/compiled/frames_open"];
const PYTHON: &[&str] = &["python3", "/programs/frames_open.py"];

/// A program that opens, while it runs in its domain.
struct Opener(Child, BufReader<ChildStdout>);

impl Opener {
    fn start(node: &Node, domain: &str, words: &[&str]) -> Self {
        let all = [&["exec", domain, "--"], words].concat();
        let mut child = node.command(&all).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        Self(child, out)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("what it says");
        line.trim_end().to_owned()
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        // Where the test has failed it runs still; elsewhere it has ended, and there is nothing to
        // kill.
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn kill_offerer(node: &Node) {
    let tree = node.json(&["inspect", "dc/shop/domains/camera"]);
    node::kill(tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs"));
}

/// Both programs talk to the one that offers, in place, and see its death.
fn assert_both_talk_and_see_the_death(node: &Node, domain: &str) {
    let mut openers = [C, PYTHON].map(|words| (words, Opener::start(node, domain, words)));
    for (words, opener) in &mut openers {
        assert_eq!(
            opener.line(),
            "answered 300",
            "{words:?}\n{}\n{}",
            node.ok(&["logs", "camera"]),
            node.daemon_log()
        );
    }
    kill_offerer(node);
    for (words, opener) in &mut openers {
        assert_eq!(opener.line(), "over: end of file, EPIPE", "{words:?}");
        assert!(opener.0.wait().expect("it ends").success(), "{words:?}");
    }
}

#[test]
fn programs_in_c_and_python_talk_between_domains_where_nothing_is_installed() {
    let Some((node, _)) = start() else { return };
    let interfaces = node.shell_ok("viewer", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '");
    assert_eq!(interfaces.trim(), "lo", "the domain has a network");
    // Twice: the second time they meet the successor of the program that was killed.
    for _ in 0..2 {
        assert_both_talk_and_see_the_death(&node, "viewer");
    }
    let said = node.ok(&["logs", "camera"]);
    assert!(said.contains(&format!("offering with {PYTHON_PATH}/tombolo/__init__.py")), "{said}");
    let asked =
        "import tombolo, re; print(set(re.findall(r'/\\S*libtombolo\\S*', open('/proc/self/maps').read())))";
    let mapped = node.ok(&["exec", "viewer", "--", "python3", "-c", asked]);
    assert_eq!(mapped.trim(), "{'/run/tombolo/python/tombolo/libtombolo.so.0'}");
    let written = node.shell("viewer", "touch /run/tombolo/libtombolo.so.0 || exit 7");
    assert_eq!(written.code, 7, "a domain may change what others have, too: {written:?}");
}

#[test]
fn who_takes_part_has_the_files_also_when_that_changes_while_it_runs() {
    let Some((node, text)) = start() else { return };
    let listed = |domain: &str| node.shell_ok(domain, "ls /run/tombolo");
    assert!(listed("camera").contains("libtombolo.so.0"), "{}", listed("camera"));
    assert!(!listed("other").contains("libtombolo"), "{}", listed("other"));
    let said = node.up_ok(&text.replace("domains = [\"viewer\"]", "domains = [\"viewer\", \"other\"]"));
    assert!(said.contains("allow other to open frames") && !said.contains("restart"), "{said}");
    assert_both_talk_and_see_the_death(&node, "other");
    // The next daemon, which may be of another version, brings its own.
    let inside = node.run_dir().join("dc/shop/viewer/inside");
    fs::remove_dir_all(inside.join("python")).expect("removed");
    fs::remove_file(inside.join("libtombolo.so.0")).expect("removed");
    node.kill_daemon();
    let said = node.up_ok(&text);
    assert!(!said.contains("restart"), "the next daemon did not adopt what runs: {said}");
    assert_both_talk_and_see_the_death(&node, "viewer");
    node.ok(&["down", "shop"]);
    assert!(!node.run_dir().join("dc/shop").exists(), "the files outlive their domains");
}

/// The blocks of `docs/channels.md` that carry a name behind their language: both words, and the
/// text.
fn blocks() -> Vec<(String, String)> {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/channels.md")).expect("the page");
    let mut blocks = Vec::new();
    for (number, part) in page.split("\n```").enumerate() {
        // Every other part is between blocks.
        if let (1, Some((head, text))) = (number % 2, part.split_once('\n'))
            && head.contains(' ')
        {
            blocks.push((head.to_owned(), format!("{text}\n")));
        }
    }
    blocks
}

#[test]
fn the_page_on_channels_works_inside_of_domains_when_it_is_typed() {
    let Some(node) = Node::start() else { return };
    let Some(_) = compile(&node) else { return };
    let folder = node.folder().join("typed");
    fs::create_dir(&folder).expect("a folder");
    let (mut typed, mut shown) = (String::new(), String::new());
    for (head, text) in blocks() {
        match head.split_once(' ').expect("it has a name") {
            ("sh", "domain") => typed = text,
            ("text", "domain") => shown = text,
            (_, name) => fs::write(folder.join(name), text).expect("written"),
        }
    }
    // `tombolo` in a shell is the one of this node, and the compiler finds the library as after
    // `make install-library`.
    let tombolo = format!(
        "tombolo() {{ {} --run-dir {} --state-dir {} \"$@\"; }}\n",
        node::binary().display(),
        node.run_dir().display(),
        node.state_dir().display()
    );
    let output = Command::new("bash")
        .args(["-euc", &(tombolo + &typed)])
        .current_dir(&folder)
        .env("CPATH", HEADERS)
        .env("LIBRARY_PATH", node::binary().parent().expect("a folder"))
        .output()
        .expect("bash starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}\n{}", node.daemon_log());
    assert!(!shown.is_empty() && out.ends_with(&shown), "{out}\n{err}");
}
