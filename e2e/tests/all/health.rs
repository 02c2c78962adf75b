//! Domains that run and are no longer well: they are asked by a command of their own, and
//! restarted. And what files of variables say.

use e2e::{Node, machines, wait};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

/// A guest is emulated, and boots twice.
const GUEST_TIMEOUT: Duration = Duration::from_secs(180);

/// A start has 10 s before failures count.
const TIMEOUT: Duration = Duration::from_secs(60);

fn row(node: &Node, domain: &str) -> Value {
    machines::row(node, domain)
}

fn health(node: &Node, domain: &str) -> String {
    row(node, domain)["health"]["state"].as_str().unwrap_or_default().to_owned()
}

/// The events of a domain, with the reasons.
fn events(node: &Node, domain: &str) -> Vec<(String, String)> {
    let told = node.ok(&["events", "--json"]);
    let told = told.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    told.filter(|event| event["domain"] == domain)
        .map(|event| {
            let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
            (text("what"), text("why"))
        })
        .collect()
}

/// Another daemon in the place of one that was killed.
fn next_daemon(node: &Node) -> Child {
    let mut daemon = node.command(&["daemon", "--detached"]);
    let mut daemon = daemon.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("a daemon starts");
    let mut ready = String::new();
    let said = daemon.stdout.take().expect("its output");
    BufReader::new(said).read_line(&mut ready).expect("it says that it is ready");
    daemon
}

#[test]
fn a_process_and_a_container_that_are_no_longer_well_are_restarted() {
    let Some(node) = Node::start() else { return };
    let ill = node.folder().join("ill").display().to_string();
    let check = |line: &str| {
        format!(
            "health = {{ command = [\"sh\", \"-c\", \"{line}\"], every = \"100ms\", timeout = \"20s\", fails = 2 }}\n\
             restart = {{ policy = \"on-failure\", backoff = \"10ms\" }}\nstop = {{ timeout = \"0ms\" }}\n"
        )
    };
    node.up_ok(&format!(
        "name = \"shop\"\n[domain.web]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n{}\
         [domain.robot]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\n{}",
        check("echo out of memory; test ! -e /tmp/ill"),
        check(&format!("test ! -e {ill}")),
    ));
    let pid = |domain: &str| row(&node, domain)["pid"].as_u64();
    let before = [pid("web"), pid("robot")];
    for domain in ["web", "robot"] {
        wait::until(&format!("{domain} is found healthy"), || health(&node, domain) == "healthy");
    }
    assert!(node.ok(&["ps"]).contains("running (healthy)"));
    node.shell_ok("web", "touch /tmp/ill");
    wait::until("the container is restarted", || row(&node, "web")["restarts"] == 1);
    wait::until("it runs again", || health(&node, "web") == "healthy");
    assert_ne!(pid("web"), before[0]);
    let told = events(&node, "web");
    let words: Vec<&str> = told.iter().map(|(what, _)| what.as_str()).collect();
    let wanted = [
        "starting",
        "running",
        "healthy",
        "unhealthy",
        "stopping",
        "waiting",
        "starting",
        "running",
        "healthy",
    ];
    assert_eq!(words, wanted, "{told:?}");
    let why = &told[5].1;
    assert!(why.contains("failed 2 times in a row: exit 1: out of memory"), "{why}");
    std::fs::write(&ill, "").expect("a file");
    wait::until_within("the process is restarted more than once", TIMEOUT, || {
        row(&node, "robot")["restarts"].as_u64() >= Some(2)
    });
    std::fs::remove_file(&ill).expect("it was there");
    wait::until("the process is well again", || health(&node, "robot") == "healthy");
    assert_eq!(row(&node, "web")["restarts"], 1, "the other domain was left alone");
}

#[test]
fn checks_that_hang_are_ended_and_go_on_under_the_next_daemon() {
    let Some(node) = Node::start() else { return };
    let file = |timeout: &str| {
        format!(
            "name = \"shop\"\n[domain.web]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n\
             stop = {{ timeout = \"0ms\" }}\n\
             health = {{ command = [\"sh\", \"-c\", \"trap '' TERM; yes | head -c 1000000 >&2; sleep 4711 & wait\"], \
             every = \"100ms\", timeout = \"{timeout}\", fails = 1000 }}\n"
        )
    };
    let hanging = || node.shell_ok("web", "pgrep -c -f '^sleep 4711' || true").trim().to_owned();
    // Longer than the daemon lives that asks.
    node.up_ok(&file("1h"));
    wait::until("a check hangs", || hanging() == "1");
    let pid = row(&node, "web")["pid"].clone();
    node.kill_daemon();
    let mut daemon = next_daemon(&node);
    // Live: the domain goes on, and there is one check at a time.
    node.up_ok(&file("300ms"));
    wait::until_within("checks fail by their time", TIMEOUT, || {
        row(&node, "web")["health"]["failures"].as_u64() >= Some(2)
    });
    let row_now = row(&node, "web");
    assert_eq!(row_now["pid"], pid, "{row_now}");
    let why = row_now["health"]["last_failure"].as_str().unwrap_or_default().to_owned();
    assert!(why.starts_with("no answer within 300ms"), "{why}");
    assert!(["0", "1"].contains(&hanging().as_str()), "checks pile up: {}", hanging());
    assert!(node.ok(&["ps"]).contains("running (failing"));
    // Without checks nothing of them is left.
    let plain = file("1s").lines().filter(|line| !line.starts_with("health")).collect::<Vec<_>>().join("\n");
    node.up_ok(&plain);
    wait::until("the last check is gone", || hanging() == "0");
    assert_eq!(row(&node, "web")["health"], Value::Null);
    node.kill_daemon();
    daemon.wait().expect("it is reaped");
}

#[test]
fn a_machine_that_is_no_longer_well_is_restarted() {
    let Some(node) = machines::start() else { return };
    let more = "health = { command = [\"sh\", \"-c\", \"if test -e /tmp/ill; then sleep 4711; fi\"], every = \"500ms\", \
                timeout = \"20s\", fails = 1 }\nrestart = { policy = \"on-failure\", backoff = \"10ms\" }\n\
                stop = { timeout = \"2s\" }";
    let domain = machines::domain("edge", &["sleep", "1000000"], "", more);
    node.up_ok(&format!("name = \"shop\"\n{domain}"));
    wait::until_within("the guest is found healthy", GUEST_TIMEOUT, || health(&node, "edge") == "healthy");
    machines::shell_ok(&node, "edge", "touch /tmp/ill");
    wait::until_within("the machine is restarted", GUEST_TIMEOUT, || row(&node, "edge")["restarts"] == 1);
    let told = events(&node, "edge");
    let why = told.iter().find(|(what, _)| what == "unhealthy").map(|(_, why)| why.clone());
    assert!(why.as_ref().is_some_and(|why| why.contains("no answer within 20s")), "{told:?}");
    wait::until_within("it is well again", GUEST_TIMEOUT, || health(&node, "edge") == "healthy");
}

#[test]
fn what_there_is_is_shown_on_one_page_and_as_it_changes() {
    let Some(node) = Node::start() else { return };
    node.up_ok(
        "name = \"shop\"\n[domain.web]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n\
         stop = { timeout = \"0ms\" }\nreserve = { memory = \"16MiB\" }\n\
         [domain.viewer]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\nstop = { timeout = \"0ms\" }\n\
         [service.frames]\nkind = \"channel\"\ndomain = \"web\"\nallow = [{ domains = [\"viewer\"], verbs = [\"open\"] }]\n",
    );
    let page = node.ok(&["top"]);
    for says in ["CPU", "CHANNELS", "frames", "AT WORST", "16.0 MiB"] {
        assert!(page.contains(says), "{says}: {page}");
    }
    let json = node.json(&["top"]);
    assert_eq!(
        (&json["domains"][1]["domain"], &json["services"][0]["service"]),
        (&"web".into(), &"frames".into())
    );
    assert_eq!(json["promises"]["vtms"][0]["name"], "shop/web");
    assert_eq!(node.run(&["ps", "other"]).code, 1);
    let mut watch = node.command(&["ps", "shop", "-w"]).stdout(Stdio::piped()).spawn().expect("ps runs");
    let mut lines =
        BufReader::new(watch.stdout.take().expect("its output")).lines().map(|line| line.expect("text"));
    assert!(lines.any(|line| line.contains("running")));
    node.ok(&["stop", "web"]);
    assert!(lines.any(|line| line.contains("stopped")));
    watch.kill().expect("it ran");
    watch.wait().expect("it is reaped");
}

#[test]
fn variables_of_files_reach_the_program() {
    let Some(node) = Node::start() else { return };
    let write = |name: &str, text: &str| std::fs::write(node.folder().join(name), text).expect("written");
    write("all.env", "# for all\nCOLOUR=blue\nSIZE='10 $HOME'\n");
    write("here.env", "COLOUR=\"green\\n\"\nLAST=1\n");
    let file = "name = \"shop\"\n[domain.web]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n\
                stop = { timeout = \"0ms\" }\nenv_file = [\"all.env\", \"here.env\"]\nenvironment = { LAST = \"2\" }\n";
    node.up_ok(file);
    assert_eq!(node.shell_ok("web", "echo \"$COLOUR|$SIZE|$LAST\""), "green\n|10 $HOME|2\n");
    let before = row(&node, "web")["pid"].clone();
    assert!(node.up_ok(file).contains("nothing to do"));
    write("all.env", "SIZE=11\n");
    assert!(node.up_ok(file).contains("restart web: `environment` changed"));
    assert_ne!(row(&node, "web")["pid"], before);
    write("here.env", "A=1\nthis is nothing\n");
    let refused = node.up(file);
    assert!(refused.code == 1 && refused.err.contains("here.env, line 2: there is no `=`"), "{refused:?}");
    assert_eq!(node.shell_ok("web", "echo $SIZE"), "11\n");
    let checked = node.run(&["check", &node.folder().join("topology.toml").display().to_string()]);
    assert_eq!(checked.code, 1, "{checked:?}");
}
