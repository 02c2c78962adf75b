//! Planned moves: a domain goes to another node, goes back where it does not come up there, and
//! never lives twice.

use e2e::cluster::{Bed, Host, Witness, address};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(40);

fn bed() -> Option<Bed> {
    let bed = Bed::with_etcd(2, 1)?;
    bed.join_all(1, &[]);
    Some(bed)
}

/// A domain that writes into the bed's folder that it lives; `more` are further lines of it.
fn witness(bed: &Bed, name: &str, more: &str) -> String {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
    let folder = bed.folder().display();
    format!(
        "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nrestart = {{ policy = \"always\", backoff = \"50ms\" }}\n\
         mounts = [{{ source = \"{programs}\", target = \"/programs\" }}, {{ source = \"{folder}\", target = \"/bed\", read_only = false }}]\n{more}\n"
    )
}

fn command(name: &str) -> String {
    format!("command = [\"python3\", \"/programs/witness.py\", \"/bed/{name}.lives\"]\n")
}

fn lives(bed: &Bed, name: &str) -> Witness {
    Witness::new(bed.folder(), &format!("{name}.lives"))
}

fn row(host: &Host, domain: &str) -> (String, String) {
    let rows = host.json(&["ps"]);
    let row = rows
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["domain"] == domain).cloned())
        .unwrap_or_default();
    let text = |key: &str| row[key].as_str().unwrap_or("-").to_owned();
    (text("node"), text("state"))
}

fn runs_on(host: &Host, domain: &str, node: &str) -> bool {
    row(host, domain) == (node.to_owned(), "running".to_owned())
}

/// The report of a move, and its exit code.
fn moved(host: &Host, domain: &str, to: &str, more: &[&str]) -> (Value, i32) {
    let run = host.run(&[&["move", domain, "--to", to, "--json"], more].concat());
    let report = serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {run:?}"));
    (report, run.code)
}

/// A domain that counts its lives: it says at its end how many there were, and the next life hears
/// of it.
const COUNTING: &str = r#"command = ["sh", "-c", '''n=$(cat /srv/self/handover); echo "${n:-0}" >> /bed/one.heard; python3 /programs/witness.py /bed/one.lives &
trap "kill $!; echo $((n + 1)) > /srv/self/handover; exit 0" TERM; wait''']
"#;

/// A move that goes on while the test does something else.
fn begin_move(host: &Host, domain: &str, to: &str) -> Child {
    let mut command = host.command(&["move", domain, "--to", to]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
}

#[test]
fn a_domain_moves_as_asked_goes_back_where_it_does_not_come_up_and_says_why_it_can_not() {
    let Some(bed) = bed() else { return };
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    let (gone, only_alpha) = (bed.folder().join("gone"), address(0));
    std::fs::create_dir(&gone).expect("a folder");
    let text = "name = \"test\"\n".to_owned()
        + &witness(&bed, "one", COUNTING)
        + &witness(&bed, "pinned", &(command("pinned") + "node = \"alpha\"\n"))
        + &witness(&bed, "tied", &(command("tied") + "network = \"host\"\n")).replace(
            "restart =",
            &format!("ready = {{ command = [\"grep\", \"-q\", \"{only_alpha}\", \"/proc/net/fib_trie\"], timeout = \"2s\" }}\nrestart ="),
        )
        + &witness(&bed, "holder", &command("holder"))
            .replace("mounts = [", &format!("mounts = [{{ source = \"{}\", target = \"/gone\" }}, {{ source = \"/dev/zero\", target = \"/zero\" }}, ", gone.display()));
    // Whatever may choose is to begin on alpha.
    alpha.ok(&["node", "drain", "beta"]);
    alpha.up_ok(&text);
    alpha.ok(&["node", "undrain", "beta"]);
    std::fs::remove_dir(&gone).expect("removed");
    // It runs before its witness has said anything.
    bed.until("it lives", TIMEOUT, || lives(&bed, "one").lives().len() == 1);

    let (report, code) = moved(beta, "one", "beta", &["--dry-run"]);
    assert_eq!((report["outcome"].as_str(), code), (Some("possible"), 0), "{report}");
    let (report, code) = moved(beta, "one", "beta", &[]);
    assert_eq!(
        (report["outcome"].as_str(), report["how"].as_str(), code),
        (Some("moved"), Some("restart"), 0),
        "{report}"
    );
    println!("{report}");
    assert!(report["pause_ms"].as_u64() >= report["began_ms"].as_u64(), "{report}");
    bed.until("it runs on beta", TIMEOUT, || runs_on(alpha, "one", "beta"));
    bed.until("it lives again", TIMEOUT, || lives(&bed, "one").lives().len() == 2);
    let heard = std::fs::read_to_string(bed.folder().join("one.heard")).expect("readable");
    assert_eq!(heard, "0\n1\n", "what one life leaves, the next one finds");
    // As much as there may be, and no more.
    let too_much =
        alpha.run(&["exec", "one", "--", "sh", "-c", "head -c 70000 /dev/zero > /srv/self/handover"]);
    assert!(too_much.code != 0 && too_much.err.contains("File too large"), "{too_much:?}");
    alpha.ok(&["exec", "one", "--", "sh", "-c", "echo 7 > /srv/self/handover"]);
    assert_eq!(alpha.ok(&["exec", "one", "--", "cat", "/srv/self/handover"]), "7\n");
    let there = alpha.ok(&["move", "one", "--to", "beta"]);
    assert!(there.contains("is on beta already"), "{there}");

    // What names a node, and what is there alone, stays, and each reason is said.
    let (report, code) = moved(alpha, "pinned", "beta", &[]);
    assert_eq!((report["outcome"].as_str(), code), (Some("refused"), 1), "{report}");
    assert!(report["refused"].to_string().contains("its file names the node alpha"), "{report}");
    let said = alpha.run(&["move", "holder", "--to", "beta"]);
    let there_is_no = format!("beta: there is no {}", gone.display());
    assert!(said.code == 1 && said.err.contains(&there_is_no) && said.err.contains("/dev/zero"), "{said:?}");
    let nobody = alpha.run(&["move", "one", "--to", "gamma"]);
    assert!(nobody.code == 1 && nobody.err.contains("there is no node \"gamma\""), "{nobody:?}");

    // What somebody has stopped is not started by a move.
    alpha.ok(&["stop", "holder"]);
    bed.until("it is stopped", TIMEOUT, || row(beta, "holder").1 == "stopped");
    let stopped = || moved(beta, "holder", "beta", &["--dry-run"]).0["refused"].to_string();
    bed.until("it is said", TIMEOUT, || stopped().contains("somebody has stopped it"));
    std::fs::create_dir(&gone).expect("a folder");
    alpha.ok(&["start", "holder"]);
    std::fs::remove_dir(&gone).expect("removed");
    bed.until("it runs", TIMEOUT, || runs_on(beta, "holder", "alpha"));

    // It is ready nowhere but on alpha.
    let (report, code) = moved(alpha, "tied", "beta", &[]);
    assert_eq!((report["outcome"].as_str(), code), (Some("returned"), 1), "{report}");
    assert!(report["why"].as_str().is_some_and(|why| why.contains("not ready within 2.0 s")), "{report}");
    assert!(runs_on(beta, "tied", "alpha"), "{:?}", row(beta, "tied"));
    bed.until("it lived there, and lives again", TIMEOUT, || lives(&bed, "tied").lives().len() == 3);

    // A drain asks first, too: what can't go stays.
    alpha.ok(&["node", "drain", "alpha"]);
    bed.until("it is said why it stays", TIMEOUT, || alpha.run(&["ps"]).out.contains(&there_is_no));
    assert!(runs_on(beta, "holder", "alpha"));
    for name in ["one", "pinned", "tied", "holder"] {
        lives(&bed, name).assert_never_two();
    }
    assert_eq!(lives(&bed, "holder").lives().len(), 2, "it ended when it was stopped, and never else");
    alpha.ok(&["down", "test"]);
    bed.finish();
}

#[test]
fn a_daemon_that_is_killed_in_a_move_leaves_one_life_and_its_successor_goes_on() {
    let Some(bed) = bed() else { return };
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    // It takes its time to end, and to be ready.
    let slow = "stop = { timeout = \"1500ms\" }\nready = { command = [\"test\", \"-e\", \"/bed/ready\"] }\n\
                command = [\"sh\", \"-c\", \"trap '' TERM; python3 /programs/witness.py /bed/slow.lives\"]\n";
    std::fs::write(bed.folder().join("ready"), "").expect("written");
    alpha.ok(&["node", "drain", "beta"]);
    alpha.up_ok(&("name = \"test\"\n".to_owned() + &witness(&bed, "slow", slow)));
    alpha.ok(&["node", "undrain", "beta"]);

    // The daemon that ends it dies meanwhile.
    let asked = begin_move(beta, "slow", "beta");
    bed.until("it is ending", TIMEOUT, || row(alpha, "slow").1 == "stopping");
    alpha.kill_role("daemon");
    bed.start_daemon(alpha);
    let said = asked.wait_with_output().expect("the command ends");
    assert!(said.status.success(), "{said:?}");
    assert!(runs_on(beta, "slow", "beta"), "{:?}", row(beta, "slow"));

    // The daemon that starts it dies meanwhile.
    std::fs::remove_file(bed.folder().join("ready")).expect("removed");
    // It is ready by a file that is there, perhaps before it has said that it lives.
    bed.until("it lives on beta", TIMEOUT, || lives(&bed, "slow").lives().len() == 2);
    let before = lives(&bed, "slow").lives().len();
    let asked = begin_move(beta, "slow", "alpha");
    bed.until("it is starting", TIMEOUT, || lives(&bed, "slow").lives().len() > before);
    alpha.kill_role("daemon");
    std::fs::write(bed.folder().join("ready"), "").expect("written");
    bed.start_daemon(alpha);
    let said = asked.wait_with_output().expect("the command ends");
    assert!(said.status.success(), "{said:?}");
    bed.until("it runs on alpha", TIMEOUT, || runs_on(beta, "slow", "alpha"));
    lives(&bed, "slow").assert_never_two();
    beta.ok(&["down", "test"]);
    bed.finish();
}

/// A name server on beta, a directory that asks it and that may run anywhere, and on alpha a
/// container that looks names up.
fn directory() -> String {
    let upstream = address(1);
    format!(
        r#"
name = "test"

[domain.nameserver]
kind = "process"
node = "beta"
command = [
    "/usr/sbin/dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--log-facility=-", "--user=nobody", "--group=nogroup",
    "--no-resolv", "--no-hosts", "--port=5354", "--host-record=www.quickstart.test,192.0.2.7",
]
capabilities = ["SETGID", "SETUID"]
ready = {{ tcp = "127.0.0.1:5354" }}

[domain.resolver]
kind = "container"
root = "host"
network = "host"
after = ["nameserver"]
restart = {{ policy = "always", backoff = "50ms" }}

[domain.web]
kind = "container"
root = "host"
node = "alpha"
command = ["sleep", "infinity"]
services = {{ dns = "/srv/dns" }}

[service.dns]
kind = "directory"
domain = "resolver"
allow = [{{ domains = ["web"], verbs = ["resolve"] }}]

[service.dns.settings]
upstream = ["{upstream}:5354"]
timeout = "1s"
retries = 2
cache = {{ mode = "none" }}
"#
    )
}

#[test]
fn who_looks_names_up_waits_while_the_directory_moves_and_loses_nothing() {
    let Some(bed) = bed() else { return };
    let alpha = bed.host(0);
    alpha.up_ok(&directory());
    let resolves = || {
        alpha
            .run(&["exec", "web", "--", "getent", "ahostsv4", "www.quickstart.test"])
            .out
            .contains("192.0.2.7")
    };
    bed.until("the name is resolved", TIMEOUT, resolves);
    let mut asking = alpha.command(&["exec", "web", "--", "bash", "-c", TIMED_LOOKUPS]);
    let asking = asking.stdout(Stdio::piped()).spawn().expect("look names up");
    let (first, _) = row(alpha, "resolver");
    let second = if first == "alpha" { "beta" } else { "alpha" };
    for to in [second, first.as_str()] {
        let (report, code) = moved(alpha, "resolver", to, &[]);
        assert_eq!((report["outcome"].as_str(), code), (Some("moved"), 0), "{report}");
        bed.until("the name is resolved after the move", TIMEOUT, resolves);
        println!("{report}");
    }
    alpha.ok(&["exec", "web", "--", "touch", "/tmp/enough"]);
    let said = asking.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    println!("{said}");
    assert!(said.starts_with("asked "), "{said}");
    alpha.ok(&["down", "test"]);
    bed.finish();
}

/// Looks the name up again and again until it is told to end; prints what was lost, and at the end
/// how many there were and the longest, in ms.
const TIMED_LOOKUPS: &str = "n=0; most=0; while [ ! -e /tmp/enough ]; do since=$(date +%s%3N)
    getent ahostsv4 www.quickstart.test | grep -q 192.0.2.7 || echo lost $n; took=$(($(date +%s%3N) - since))
    [ $took -gt $most ] && most=$took; n=$((n + 1)); done; echo asked $n, the longest $most ms";
