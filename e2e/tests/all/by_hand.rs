//! One domain by hand: `restart`, `stop`, `start`, `kill`, `cp`; what would be done; what happened;
//! what is used. And a file that happens to have the name of another one.

use e2e::{Node, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const FILE: &str = "name = \"shop\"\n[domain.web]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n\
                    stop = { timeout = \"0ms\" }\nrestart = { policy = \"on-failure\", backoff = \"10ms\" }\n";

fn row(node: &Node) -> Value {
    node.json(&["ps"])[0].clone()
}

fn pid(node: &Node) -> u64 {
    row(node)["pid"].as_u64().expect("it runs")
}

#[test]
fn a_domain_is_restarted_stopped_started_and_signalled_by_hand() {
    let Some(node) = Node::start() else { return };
    node.up_ok(FILE);
    let first = pid(&node);
    assert!(node.ok(&["restart", "web"]).contains("shop/web restarted"));
    let second = pid(&node);
    assert_ne!(second, first);
    assert!(node.ok(&["start", "web"]).contains("nothing to do"));
    node.ok(&["stop", "shop/web"]);
    assert_eq!((row(&node)["state"].clone(), row(&node)["pid"].clone()), ("stopped".into(), Value::Null));
    assert_eq!(node.run(&["exec", "web", "--", "true"]).code, 125);
    // It stays so when the daemon dies.
    node.kill_daemon();
    let mut daemon = node.command(&["daemon", "--detached"]);
    let mut daemon = daemon.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a daemon starts");
    let mut ready = String::new();
    let said = daemon.stdout.take().expect("its output");
    BufReader::new(said).read_line(&mut ready).expect("it says that it is ready");
    assert_eq!(row(&node)["state"], "stopped");
    node.ok(&["start", "web"]);
    let third = pid(&node);
    // A signal is answered by the restart policy.
    node.ok(&["kill", "web"]);
    wait::until("its policy started it again", || {
        row(&node)["pid"].as_u64().is_some_and(|pid| pid != third) && row(&node)["restarts"] == 1
    });
    node.ok(&["stop", "web"]);
    assert!(node.up_ok(FILE).contains("start web"), "`up` starts what was stopped");
    let misuse = node.run(&["kill", "-s", "TREM", "web"]);
    assert!(misuse.code == 2 && misuse.err.contains("TERM"), "{misuse:?}");
    node.kill_daemon();
    daemon.wait().expect("it is reaped");
}

#[test]
fn files_are_copied_into_a_domain_and_out_of_it() {
    let Some(node) = Node::start() else { return };
    node.up_ok(FILE);
    let here = |name: &str| node.folder().join(name).display().to_string();
    std::fs::create_dir(here("data")).expect("a directory");
    std::fs::write(here("data/text"), "hello\n").expect("a file");
    node.ok(&["cp", &here("data"), "web:/tmp"]);
    assert_eq!(node.shell_ok("web", "cat /tmp/data/text"), "hello\n");
    node.shell_ok("web", "echo changed > /tmp/data/text; ln -s /etc/shadow /tmp/data/link");
    node.ok(&["cp", "shop/web:/tmp/data", &here("back")]);
    assert_eq!(std::fs::read_to_string(here("back/text")).expect("it came"), "changed\n");
    assert!(std::fs::symlink_metadata(here("back/link")).expect("it came").is_symlink());
    let refused = node.run(&["cp", &here("data/text"), "web:/usr/text"]);
    assert!(refused.code == 1 && refused.err.contains("/usr"), "{refused:?}");
    let missing = node.run(&["cp", "web:/tmp/nothing", &here("nothing")]);
    assert!(missing.code == 1 && missing.err.contains("/tmp/nothing"), "{missing:?}");
    assert!(!node.folder().join("nothing").exists());
    assert_eq!(node.run(&["cp", "a", "b"]).code, 2);
}

#[test]
fn what_would_be_done_what_happened_and_what_is_used_can_be_seen() {
    let Some(node) = Node::start() else { return };
    let file = node.folder().join("topology.toml");
    std::fs::write(&file, FILE).expect("the topology is written");
    let path = file.display().to_string();
    assert!(node.ok(&["up", "--dry-run", &path]).contains("would start web"));
    assert!(node.pids("daemon").is_empty(), "a dry run started a daemon");
    node.up_ok(FILE);
    let before = pid(&node);
    std::fs::write(&file, format!("{FILE}environment = {{ COLOUR = \"red\" }}\n")).expect("it is written");
    let said = node.ok(&["up", "--dry-run", &path]);
    assert!(said.contains("would restart web") && said.contains("environment"), "{said}");
    assert_eq!(pid(&node), before);
    node.ok(&["restart", "web"]);
    let events = node.ok(&["events", "--json"]);
    let told: Vec<String> = events
        .lines()
        .map(|line| {
            let event: Value = serde_json::from_str(line).expect("JSON");
            format!("{} {}", event["domain"].as_str().unwrap_or("-"), event["what"].as_str().unwrap_or(""))
        })
        .collect();
    let wanted = ["web starting", "web running", "- up", "web stopping", "web starting", "web running"];
    assert_eq!(told, wanted, "{events}");
    let stats = node.json(&["stats"]);
    assert!(stats[0]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{stats}");
    assert!(stats[0]["cpu_percent"].is_number(), "{stats}");
}

#[test]
fn another_file_of_the_same_name_takes_no_place_unasked() {
    let Some(node) = Node::start() else { return };
    node.up_ok(FILE);
    let before = pid(&node);
    let other = node.folder().join("other.toml");
    std::fs::write(&other, FILE.replace("[domain.web]", "[domain.db]")).expect("it is written");
    let other = other.display().to_string();
    let refused = node.run(&["up", &other]);
    assert_eq!(refused.code, 1, "{refused:?}");
    for says in ["topology.toml", "other.toml", "stop web", "start db", "--replace"] {
        assert!(refused.err.contains(says), "it does not say {says}: {}", refused.err);
    }
    assert_eq!(pid(&node), before);
    node.ok(&["up", "--replace", &other]);
    assert_eq!(row(&node)["domain"], "db");
}

#[test]
fn a_shell_completes_the_names_of_what_is_there() {
    let Some(node) = Node::start() else { return };
    let domain = "kind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\nstop = { timeout = \"0ms\" }\n";
    let complete = |line: &str| {
        let script = "source <(tombolo completions bash)
            complete=$(complete -p tombolo)
            [[ $complete =~ -F\\ ([^ ]+) ]]
            COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=$1; COMP_POINT=${#1}; COMP_TYPE=9
            [[ $1 == *' ' ]] && { COMP_WORDS+=(''); COMP_CWORD=$((COMP_CWORD + 1)); }
            ${BASH_REMATCH[1]} tombolo \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
            printf '%s\\n' \"${COMPREPLY[@]}\"";
        let here = node.folder().join("bin");
        if !here.exists() {
            std::fs::create_dir(&here).expect("a folder");
            std::os::unix::fs::symlink(e2e::node::binary(), here.join("tombolo")).expect("a link");
        }
        let path = format!("{}:{}", here.display(), std::env::var("PATH").unwrap_or_default());
        let out = std::process::Command::new("bash")
            .args(["-c", script, "bash", line])
            .env("PATH", path)
            .env("TOMBOLO_RUN_DIR", node.run_dir())
            .env("TOMBOLO_STATE_DIR", node.state_dir())
            .output()
            .expect("bash");
        assert!(out.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        said.lines().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect::<Vec<_>>()
    };
    // Without a daemon there are no names, and none is started for them.
    assert_eq!(complete("tombolo restart we"), [""; 0]);
    assert_eq!(node.pids("daemon"), [0_u32; 0]);
    node.up_ok(&format!("name = \"shop\"\n[domain.web]\n{domain}[domain.db]\n{domain}"));
    node.up_ok(&format!("name = \"blog\"\n[domain.web]\n{domain}"));
    assert_eq!(complete("tombolo restart d"), ["db"]);
    assert_eq!(complete("tombolo logs shop/"), ["shop/db", "shop/web"]);
    assert_eq!(complete("tombolo exec blog/w"), ["blog/web"]);
    assert_eq!(complete("tombolo down bl"), ["blog"]);
    assert_eq!(complete("tombolo comp"), ["completions"]);
    let value = node.folder().join("value");
    std::fs::write(&value, "4711").expect("written");
    node.ok(&["secret", "set", "shop/pin", "--file", &value.to_string_lossy()]);
    assert_eq!(complete("tombolo secret rm s"), ["shop/pin"]);
    let elsewhere = format!("tombolo --run-dir={} down ", node.folder().display());
    assert_eq!(complete(&format!("{elsewhere}bl")), [""; 0]);
    node.ok(&["down", "--all"]);
    assert_eq!(complete("tombolo history bl"), ["blog"], "it was up");
    node.finish();
}

#[test]
fn a_file_that_was_up_can_be_seen_and_brought_up_again() {
    let Some(node) = Node::start() else { return };
    let file = |names: &[&str]| {
        let domain = |name: &&str| {
            format!(
                "[domain.{name}]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\nstop = {{ timeout = \"0ms\" }}\n"
            )
        };
        format!("name = \"shop\"\n{}", names.iter().map(domain).collect::<String>())
    };
    let running = || {
        let rows = node.json(&["ps"]);
        let names = rows.as_array().into_iter().flatten().filter_map(|row| row["domain"].as_str());
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names
    };
    assert_eq!(node.run(&["up", "--to", "1", "shop"]).code, 1, "no daemon runs");
    node.up_ok(&file(&["web"]));
    node.up_ok(&file(&["web"]));
    node.up_ok(&file(&["web", "db"]));
    // One that fails was never up.
    assert_ne!(
        node.up("name = \"shop\"\n[domain.web]\nkind = \"container\"\ncommand = [\"/no/such\"]\n").code,
        0
    );
    let numbers = || {
        let rows = node.json(&["history"]);
        let numbers = rows.as_array().into_iter().flatten().filter_map(|row| row["number"].as_u64());
        numbers.collect::<Vec<u64>>()
    };
    assert_eq!(numbers(), [1, 2]);
    let listed = node.ok(&["history", "shop"]);
    assert!(listed.contains("start db") && listed.contains("topology.toml"), "{listed}");
    assert_eq!(node.ok(&["history", "shop", "--show", "1"]), file(&["web"]));
    let diff = node.ok(&["history", "shop", "--diff", "1"]);
    assert!(diff.contains("--- shop 1\n+++ shop 2\n") && diff.contains("+[domain.db]"), "{diff}");
    // The next daemon knows them as well.
    node.kill_daemon();
    assert!(node.up_ok(&file(&["web", "db"])).contains("nothing to do"));
    assert!(node.ok(&["up", "--to", "1", "--dry-run"]).contains("stop db"));
    assert_eq!(running(), ["db", "web"]);
    node.ok(&["up", "--to", "1", "shop"]);
    assert_eq!((running(), numbers()), (vec!["web".to_owned()], vec![1, 2, 3]));
    let refused = node.run(&["up", "--to", "9", "shop"]);
    assert!(refused.code == 1 && refused.err.contains("there are 1, 2, 3"), "{}", refused.err);
    let refused = node.run(&["history", "shpo"]);
    assert!(refused.code == 1 && refused.err.contains("did you mean \"shop\"?"), "{}", refused.err);
    node.ok(&["down"]);
    node.ok(&["up", "--to", "2", "shop"]);
    assert_eq!(running(), ["db", "web"]);
    node.ok(&["down"]);
    node.finish();
}
