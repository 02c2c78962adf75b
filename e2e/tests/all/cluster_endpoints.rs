//! Endpoints on several nodes: nothing that runs in a domain can tell where its peers are.

use crate::endpoint_bed::{INSIDE, Program, SLEEP, assert_failed, domain};
use e2e::Run;
use e2e::cluster::{Bed, Host};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(25);

/// `brain` on beta is the planner; all that call it are on alpha, but for one neighbour.
fn shop() -> String {
    let on = |name: &str, node: &str, command: &str| {
        domain(name, "container", command).replace("kind =", &format!("node = \"{node}\"\nkind ="))
    };
    let serve = format!("[\"{INSIDE}\", \"serve\", \"planner\"]");
    format!(
        "name = \"shop\"\n{}{}{}{}{}\n\
         [endpoint.planner]\ndomain = \"brain\"\n\
         allow = [{{ endpoints = [\"camera\"], verbs = [\"send\", \"notify\"] }}, {{ domains = [\"desk\", \"arm\"], verbs = [\"request\"] }}]\n\n\
         [endpoint.camera]\ndomain = \"eye\"\n\n\
         [endpoint.motor]\ndomain = \"arm\"\nallow = [{{ domains = [\"desk\"], verbs = [\"request\"] }}, {{ endpoints = [\"switch\"], verbs = [\"relay\"] }}]\n\n\
         [endpoint.lamp]\ndomain = \"eye\"\nallow = [{{ domains = [\"desk\"], verbs = [\"request\"] }}, {{ endpoints = [\"switch\"], verbs = [\"relay\"] }}]\n\n\
         [endpoint.switch]\ndomain = \"arm\"\nallow = [{{ domains = [\"desk\"], verbs = [\"request\"] }}]\n\n\
         [endpoint.left]\ndomain = \"eye\"\nallow = [{{ endpoints = [\"right\"], verbs = [\"send\"] }}]\n\n\
         [endpoint.right]\ndomain = \"arm\"\nallow = [{{ endpoints = [\"left\"], verbs = [\"send\"] }}]\n",
        on("brain", "beta", &serve),
        on("arm", "beta", SLEEP),
        on("eye", "alpha", SLEEP),
        on("desk", "alpha", SLEEP),
        on("lab", "alpha", SLEEP),
    )
}

/// Two nodes that are a cluster, and the shop.
fn start() -> Option<Bed> {
    let bed = Bed::with_etcd(2, 1)?;
    bed.join_all(1, &[]);
    bed.host(0).up_ok(&shop());
    bed.until("the planner on beta is known on alpha", TIMEOUT, || {
        row(bed.host(0), "planner")["node"] == json!("beta")
    });
    Some(bed)
}

fn row(host: &Host, name: &str) -> Value {
    let run = host.run(&["endpoint", "ls", "--json"]);
    let rows: Value = serde_json::from_str(&run.out).unwrap_or_default();
    let rows = rows.as_array().cloned().unwrap_or_default();
    rows.into_iter().find(|row| row["endpoint"] == name).unwrap_or_default()
}

fn words<'a>(domain: &'a str, words: &'a str) -> Vec<&'a str> {
    ["exec", "-i", domain, "--", INSIDE].into_iter().chain(words.split(' ')).collect()
}

/// Runs the program in a domain of a node.
fn peer(host: &Host, domain: &str, said: &str) -> (i32, String) {
    let Run { code, out, err } = host.run(&words(domain, said));
    (code, out + &err)
}

fn program(host: &Host, domain: &str, said: &str) -> Program {
    Program::run(host.command(&words(domain, said)))
}

#[test]
fn every_call_reaches_an_endpoint_of_another_node_as_far_as_the_file_lets_it() {
    let Some(bed) = start() else { return };
    let (alpha, beta) = (bed.host(0), bed.host(1));
    let (code, said) = peer(alpha, "desk", "ask planner 200");
    assert!(code == 0 && said.starts_with("answered 200 by "), "{code} {said}{}", bed.logs());
    for verb in ["send", "notify"] {
        let (code, said) = peer(alpha, "eye", &format!("once planner {verb} camera"));
        assert!(code == 0 && said.starts_with("done "), "{verb}: {code} {said}");
    }
    bed.until("what was sent has arrived", TIMEOUT, || {
        let log = beta.run(&["logs", "brain"]).out;
        log.contains("message 1 of 5 bytes from camera in eye")
            && log.contains("notices 0x5 from camera in eye")
    });
    // Each node's daemon and each side's library hold everybody to the file.
    assert_failed(peer(alpha, "eye", "once planner request camera"), "may not be asked");
    assert_failed(peer(alpha, "eye", "lie planner request camera"), "may not be asked");
    assert_failed(peer(alpha, "lab", "once planner request"), "nothing, and may ask nothing of it");
    assert_failed(peer(alpha, "desk", "once planer request"), "planner");
    // Who is not there yet is waited for.
    let asks = program(alpha, "desk", "ask motor 20");
    let _motor = program(beta, "arm", "serve motor");
    asks.wait_for("answered 20 by ");
    // Two that send to each other over the link: one is told of the deadlock, and receives the
    // other one's message.
    let one = program(alpha, "eye", "cycle left right");
    let other = program(beta, "arm", "cycle right left");
    one.wait_for("received");
    other.wait_for("received");
    let told = [one.lines(), other.lines()].concat();
    assert_eq!(told.iter().filter(|line| line.contains("a deadlock")).count(), 1, "{told:?}");
    one.wait_for("has ");
    other.wait_for("has ");
    let page = alpha.ok(&["endpoint", "show", "planner"]);
    assert!(page.contains("bound on node beta"), "{page}");
    alpha.ok(&["down", "shop"]);
    bed.finish();
}

#[test]
fn calls_between_nodes_outlive_a_cut_and_a_daemon_and_notice_the_death_of_a_proxy_and_a_node() {
    let Some(bed) = start() else { return };
    let (alpha, beta) = (bed.host(0), bed.host(1));
    let talks = program(alpha, "desk", "talk planner /tmp/stop");
    let first = talks.wait_for("talking as ");
    let mut late = program(alpha, "desk", "late motor 300");
    let _motor = program(beta, "arm", "hold motor");
    late.wait_for("knows ");
    // A daemon that dies on either side is not noticed.
    beta.kill_role("daemon");
    bed.start_daemon(beta);
    bed.until("the next daemon of beta knows its endpoints, and whom they speak with", TIMEOUT, || {
        row(beta, "planner")["bound"] == json!(true)
            && row(alpha, "planner")["node"] == json!("beta")
            && row(beta, "planner")["peers"] == json!(1)
    });
    // A link that is cut holds everybody up; who has no more time hears that nobody knows.
    bed.switch().cut(beta.port());
    late.end();
    let said = late.wait_for("received: ");
    assert!(
        said == "received: nobody knows; in time: true" || said == "received: no; in time: true",
        "{said}"
    );
    bed.switch().heal(beta.port());
    let (code, said) = peer(alpha, "desk", "ask planner 5");
    assert!(code == 0, "{said}{}", bed.logs());
    assert_eq!(talks.lines(), [first.as_str()], "nobody has lost anybody");
    // The death of a proxy is the death of those that it stood in for.
    beta.kill_role("proxy");
    talks.wait_for("lost ");
    let (code, said) = peer(alpha, "desk", "ask planner 5");
    assert!(code == 0, "{said}{}", bed.logs());
    // A node that dies, and comes back.
    let lost = || talks.lines().iter().filter(|line| line.starts_with("lost ")).count();
    let before = lost();
    beta.kill();
    beta.boot();
    bed.start_daemon(beta);
    bed.until("the death of the node is noticed", TIMEOUT, || lost() > before);
    bed.until("the planner is bound there again", TIMEOUT, || {
        row(alpha, "planner")["node"] == json!("beta") && peer(alpha, "desk", "ask planner 5").0 == 0
    });
    alpha.ok(&["exec", "desk", "--", "touch", "/tmp/stop"]);
    talks.wait_for("stopped as ");
    alpha.ok(&["down", "shop"]);
    bed.finish();
}

#[test]
fn a_request_is_passed_on_over_the_link_to_either_node_and_answered_from_there() {
    let Some(bed) = start() else { return };
    let (alpha, beta) = (bed.host(0), bed.host(1));
    let answers = [program(alpha, "eye", "serve lamp"), program(beta, "arm", "serve motor")];
    answers.iter().for_each(|program| drop(program.wait_for("bound ")));
    // It is asked on alpha, passed on by beta, and answered on alpha, or on beta.
    let switch = program(beta, "arm", "relay switch lamp motor");
    switch.wait_for("bound ");
    for (to, tag) in [("lamp", 2), ("motor", 3), ("lamp", 4)] {
        let (code, said) = peer(alpha, "desk", &format!("via switch {to} {tag} 50"));
        assert!(code == 0 && said.starts_with("answered 50 by "), "{to}: {code} {said}{}", bed.logs());
    }
    alpha.ok(&["down", "shop"]);
    bed.finish();
}

#[test]
fn buffers_are_granted_copied_and_taken_back_between_two_nodes() {
    let Some(bed) = start() else { return };
    let (alpha, beta) = (bed.host(0), bed.host(1));
    let lends = program(beta, "arm", "lend motor 1000000");
    lends.wait_for("bound ");
    let copies = program(alpha, "desk", "copy motor 1000000");
    copies.wait_for("copied 1000000 each way");
    let over = copies.wait_for("over: ");
    assert!(over.contains("has revoked it"), "{over}");
    copies.wait_for("moved");
    // A link that is cut delays a copy; a daemon that dies is not noticed.
    bed.switch().cut(beta.port());
    bed.switch().heal(beta.port());
    alpha.kill_role("daemon");
    bed.start_daemon(alpha);
    assert!(!copies.lines().iter().any(|line| line.starts_with("ended: ")), "{:?}", copies.lines());
    // The owner ends: so does what it has granted.
    beta.ok(&["exec", "arm", "--", "sh", "-c", "kill -9 $(pidof endpoint-peer)"]);
    let ended = copies.wait_for("ended: ");
    assert!(ended.contains("its owner has ended"), "{ended}{}", bed.logs());
    alpha.ok(&["down", "shop"]);
    bed.finish();
}

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[test]
fn the_pipeline_works_unchanged_on_three_nodes() {
    for program in ["cc", "python3"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!("skipped: needs {program}; run `make deps`");
            return;
        }
    }
    let Some(bed) = Bed::with_etcd(3, 1) else { return };
    let example = bed.folder().join("pipeline");
    fs::create_dir_all(example.join("build")).expect("a folder");
    let from = Path::new(REPOSITORY).join("examples/pipeline");
    for file in ["filter.c", "sensor.py", "store.py"] {
        fs::copy(from.join(file), example.join(file)).expect("copied");
    }
    // Only where it runs is added. What one copies of the other's memory is on one node.
    let mut text = fs::read_to_string(from.join("topology.toml")).expect("the example");
    for (name, node) in
        [("sensor", "alpha"), ("filter", "alpha"), ("store", "beta"), ("alarm", "gamma"), ("desk", "gamma")]
    {
        let head = format!("[domain.{name}]\n");
        assert!(text.contains(&head), "no {head}");
        text = text.replace(&head, &format!("{head}node = \"{node}\"\n"));
    }
    fs::write(example.join("topology.toml"), text).expect("written");
    let library = e2e::node::binary();
    let built = Command::new("cc")
        .args(["-O2", "-I"])
        .arg(Path::new(REPOSITORY).join("include"))
        .arg(example.join("filter.c"))
        .arg("-o")
        .arg(example.join("build/filter"))
        .arg("-L")
        .arg(library.parent().expect("a folder"))
        .args(["-ltombolo", "-Wl,-rpath,/run/tombolo"])
        .output()
        .expect("cc starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    bed.join_all(1, &[]);
    let (alpha, gamma) = (bed.host(0), bed.host(2));
    alpha.ok(&["up", &example.join("topology.toml").to_string_lossy()]);
    let ask = |to: &str, text: &str| {
        gamma.run(&["endpoint", "call", to, text, "--wait", "10s", "--domain", "desk"])
    };
    bed.until("the store on beta tells gamma of a frame of alpha", TIMEOUT, || {
        ask("store", "next").out.contains("\"frame\"")
    });
    assert!(ask("filter", "threshold 0.2").out.contains("0.2"), "{}", bed.logs());
    bed.until("the alarm on gamma is told by the filter on alpha", TIMEOUT, || {
        gamma.run(&["logs", "alarm"]).out.contains("message from filter")
    });
    alpha.ok(&["down", "pipeline"]);
    bed.finish();
}
