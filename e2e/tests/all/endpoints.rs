//! Endpoints of programs in isolated domains: who reaches whom, and who does not.

use crate::endpoint_bed::{INSIDE, Program, assert_failed, domain, endpoints, peer, row, shop, start};
use e2e::{Node, node, wait};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

/// Asks as often, so that rings go round.
const ASKED: &str = "400";

fn assert_asked(node: &Node, domain: &str) {
    let (code, said) = peer(node, domain, &format!("ask planner {ASKED}"));
    assert!(
        code == 0 && said.starts_with(&format!("answered {ASKED} by ")),
        "{code} {said}{}",
        node.daemon_log()
    );
}

#[test]
fn programs_of_domains_without_a_network_speak_as_far_as_the_file_lets_them() {
    let Some((node, _)) = start("") else { return };
    assert_asked(&node, "desk");
    assert_eq!(node.shell_ok("desk", "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").trim(), "lo");
    for verb in ["send", "notify"] {
        let (code, said) = peer(&node, "eye", &format!("once planner {verb} camera"));
        assert!(code == 0 && said.starts_with("done "), "{verb}: {code} {said}");
    }
    wait::until("what was sent has arrived", || {
        let log = node.ok(&["logs", "brain"]);
        log.contains("message 1 of 5 bytes from camera in eye")
            && log.contains("notices 0x5 from camera in eye")
    });
    // Who may call at all is introduced; which calls it may make is looked at again at each.
    assert_failed(peer(&node, "eye", "once planner request camera"), "may not be asked");
    assert_failed(peer(&node, "desk", "once planner send"), "may not be sent to");
    assert_failed(peer(&node, "desk", "once planner notify"), "may not be notified");
    // A program that believes itself more than the daemon is refused by the other side; notices
    // have no answer, and are not heeded.
    assert_failed(peer(&node, "eye", "lie planner request camera"), "may not be asked");
    assert_failed(peer(&node, "desk", "lie planner send"), "may not be sent to");
    let (code, said) = peer(&node, "desk", "lie planner notify");
    assert!(code == 0, "{said}");
    assert_asked(&node, "desk");
    assert!(!node.ok(&["logs", "brain"]).contains("in desk"), "{}", node.ok(&["logs", "brain"]));
    // The name counts, and not only the domain; and a domain counts for all that its programs are
    // bound to.
    for (domain, words) in [
        ("eye", "once planner send"),
        ("arm", "once planner request"),
        ("brain", "once camera send"),
        // The file lets `camera` call the journal, but `calls` of `camera` leaves it out.
        ("eye", "once journal send camera"),
    ] {
        assert_failed(peer(&node, domain, words), "nothing, and may ask nothing of it");
    }
}

#[test]
fn what_can_not_be_called_says_why() {
    let Some((node, _)) = start("") else { return };
    assert_asked(&node, "desk");
    assert_failed(peer(&node, "desk", "once planer request"), "planner");
    assert_failed(peer(&node, "eye", "once camera send camera"), "itself");
    // The journal is allowed by nobody but `camera`, so others are not even told whether it is
    // there.
    assert_failed(peer(&node, "arm", "once journal send"), "nothing, and may ask nothing of it");
    assert_failed(peer(&node, "desk", "once motor request"), "not bound");
    assert_failed(peer(&node, "desk", "once 77.1 request"), "77");
    let planner = row(&node, "shop", "planner");
    assert_eq!((&planner["bound"], &planner["domain"]), (&json!(true), &json!("brain")), "{planner}");
    // One program at a time, and of that domain alone.
    assert_failed(peer(&node, "brain", "once motor request planner"), "one at a time");
    assert_failed(
        peer(&node, "desk", "once motor request planner"),
        "does not place endpoint planner in domain desk",
    );
    assert_failed(peer(&node, "desk", "once motor request nobody"), "nobody");
    // A payload that fits no pair.
    let run = node.shell("desk", "head -c 100000 /dev/zero | /run/tombolo/tombolo endpoint call planner");
    assert!(run.code == 1 && run.err.contains("too long"), "{run:?}");
}

#[test]
fn the_listing_says_who_is_where() {
    let Some((node, _)) = start("") else { return };
    let talking = Program::start(&node, "desk", &["talk", "planner", "/tmp/stop"]);
    let rows = endpoints(&node, "shop");
    let names: Vec<&Value> = rows.iter().map(|row| &row["endpoint"]).collect();
    assert_eq!(
        names,
        [&json!("camera"), &json!("journal"), &json!("motor"), &json!("planner"), &Value::Null]
    );
    let anonymous = rows.last().expect("the one that talks");
    assert_eq!((&anonymous["domain"], &anonymous["peers"]), (&json!("desk"), &json!(1)), "{anonymous}");
    let address = anonymous["address"].as_str().expect("an address");
    assert!(talking.said().contains(address), "{} but {address}", talking.said());
    let planner = node.json(&["endpoint", "show", "planner"]);
    assert_eq!(planner["peers"][0]["address"], json!(address), "{planner}");
    assert_eq!(
        (&planner["peers"][0]["may"], &planner["peers"][0]["lets"]),
        (&json!(["send", "request", "notify"]), &json!(["request"]))
    );
    assert!(planner["limits"]["endpoints"]["used"] == 2 && planner["bytes"].as_u64() > Some(0), "{planner}");
    assert_eq!(node.json(&["inspect", "dc/shop/endpoints/planner"])["address"], planner["address"]);
    let page = node.ok(&["endpoint", "show", "shop/planner"]);
    for line in [
        "called by  camera: send, notify; programs of desk: request",
        &format!("  {address} in desk: may send, request, notify; lets request"),
    ] {
        assert!(page.contains(line), "{page}");
    }
    let table = node.ok(&["endpoint", "ls"]);
    assert!(table.lines().any(|line| line.contains("motor") && line.contains("free")), "{table}");
    let unknown = node.run(&["endpoint", "show", "planer"]);
    assert!(unknown.code == 1 && unknown.err.contains("planner"), "{unknown:?}");
    node.shell_ok("desk", "touch /tmp/stop");
    talking.wait_for("stopped as ");
    wait::until("it is gone from the listing", || endpoints(&node, "shop").len() == 4);
}

#[test]
fn another_distributed_container_is_out_of_reach_whatever_it_sends() {
    let Some((node, _)) = start("") else { return };
    node.up_ok(&shop("mall", "[\"sleep\", \"infinity\"]", ""));
    // The same name next door: it is not seen.
    assert_failed(peer(&node, "mall/desk", "once planner request"), "not bound");
    // A real token, a real address and a real grant of the one...
    let bound: Value = said(&node, "shop/desk", "{\"op\":\"bind\",\"id\":1}");
    let slot = bound["address"]["slot"].clone();
    let mut owner = Program::start(&node, "shop/desk", &["own", "planner", "4096"]);
    assert!(owner.said().starts_with("made "), "{}", owner.said());
    let grants = node.json(&["endpoint", "ls"]);
    let owned = grants.as_array().into_iter().flatten().find(|row| row["grants"].as_u64() > Some(0));
    let owned = owned.expect("it granted something")["address"].as_str().expect("bound").to_owned();
    let grant = node.json(&["endpoint", "show", &format!("shop/{owned}")])["grants"][0]["grant"].clone();
    // ...are worth nothing in the other.
    let mut lines = format!("{}\n", json!({"op": "bind", "id": 1, "token": bound["token"]}));
    lines += "{\"op\":\"bind\",\"id\":2}\n";
    let mine = said(&node, "mall/desk", "{\"op\":\"bind\",\"id\":2}")["address"]["slot"].clone();
    lines += &format!("{}\n", json!({"op": "borrow", "id": 3, "endpoint": mine, "grant": grant}));
    lines += &format!("{}\n", json!({"op": "borrow", "id": 4, "endpoint": slot, "grant": grant}));
    let first = lines.lines().count();
    for to in 0..40 {
        for generation in [1, 2, 3, u32::MAX] {
            let whom = json!({"address": {"slot": to, "generation": generation}});
            lines += &format!("{}\n", json!({"op": "introduce", "id": 5, "endpoint": mine, "to": whom}));
        }
    }
    let answers = raw(&node, "mall/desk", &lines);
    assert_eq!(answers.len(), lines.lines().count(), "{answers:?}");
    let refused = answers.iter().filter(|answer| answer["reply"] == "refused").count();
    assert_eq!(refused, answers.len() - 1, "one bind and nothing else was done: {answers:?}");
    assert_eq!(answers[1]["reply"], "bound");
    // Nothing in the words of a refusal is of the neighbour.
    let text = format!("{:?}", &answers[first..]);
    assert!(!text.contains("brain") && !text.contains("planner"), "{text}");
    owner.end();
    assert_asked(&node, "shop/desk");
}

/// The packets that a program by hand gets for its lines.
fn raw(node: &Node, domain: &str, lines: &str) -> Vec<Value> {
    let file = format!("/tmp/lines-{}", std::process::id());
    node.shell_ok(domain, &format!("cat > {file} <<'END'\n{lines}END"));
    let run = node.shell(domain, &format!("{INSIDE} raw < {file}"));
    assert_eq!(run.code, 0, "{run:?}");
    run.out.lines().map(|line| serde_json::from_str(line).expect("a packet")).collect()
}

fn said(node: &Node, domain: &str, line: &str) -> Value {
    raw(node, domain, &format!("{line}\n")).remove(0)
}

#[test]
fn a_forged_word_at_the_control_socket_is_refused() {
    let Some((node, _)) = start("") else { return };
    let lines = [
        // A token that nobody gave; what is another member's.
        json!({"op": "bind", "id": 1, "token": "0".repeat(64)}),
        json!({"op": "bind", "id": 2, "name": "planner", "token": "x"}),
        json!({"op": "introduce", "id": 3, "endpoint": 0, "to": {"name": "camera"}}),
        json!({"op": "introduce", "id": 4, "endpoint": u32::MAX, "to": {"name": "planner"}}),
        json!({"op": "unbind", "id": 5, "endpoint": 0}),
        json!({"op": "buffer", "id": 6, "endpoint": 0, "bytes": u64::MAX}),
        json!({"op": "free", "id": 7, "endpoint": 0, "buffer": 1}),
        json!({"op": "revoke", "id": 8, "endpoint": 0, "grant": u64::MAX}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    for answer in raw(&node, "arm", &text) {
        assert_eq!(answer["reply"], "refused", "{answer}");
        assert!(
            answer["errno"].as_i64() > Some(0)
                && answer["message"].as_str().is_some_and(|text| text.len() > 10)
        );
    }
    assert_asked(&node, "desk");
}

#[test]
fn a_successor_has_another_generation_and_the_old_address_is_refused() {
    let Some((node, _)) = start("") else { return };
    assert_asked(&node, "desk");
    let old = row(&node, "shop", "planner");
    node::kill(old["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("its program"));
    wait::until("the name is bound again", || {
        let new = row(&node, "shop", "planner");
        new["bound"] == true && new["address"] != old["address"]
    });
    let new = row(&node, "shop", "planner");
    let part = |row: &Value, at: usize| -> u32 {
        let text = row["address"].as_str().expect("bound").split('.').nth(at).expect("two parts");
        text.parse().expect("a number")
    };
    assert_eq!(part(&new, 0), part(&old, 0), "{old} {new}");
    assert!(part(&new, 1) > part(&old, 1), "{old} {new}");
    let old = old["address"].as_str().expect("bound");
    assert_failed(peer(&node, "desk", &format!("once {old} request")), "has ended");
    assert_asked(&node, "desk");
}

#[test]
fn rights_change_while_all_runs() {
    let Some((node, text)) = start("") else { return };
    let talking = Program::start(&node, "desk", &["talk", "planner", "/tmp/stop"]);
    talking.wait_for("talking as ");
    // Given to one more, and taken from the one who talks.
    let said = node.up_ok(&text.replace(
        "domains = [\"desk\"], verbs = [\"request\"]",
        "domains = [\"arm\"], verbs = [\"request\"]",
    ));
    assert!(!said.contains("restart") && !said.contains("stop "), "{said}");
    talking.wait_for("may not be asked");
    assert_failed(peer(&node, "desk", "once planner request"), "nothing, and may ask nothing of it");
    assert_asked(&node, "arm");
    drop(talking);
    // An endpoint that is named no more is none: its program is told, and the name is unknown.
    let at = text.find("[endpoint.planner]").expect("the endpoint");
    let end = text[at..].find("\n\n").map_or(text.len(), |length| at + length);
    let without = format!("{}{}", &text[..at], &text[end..]).replace("calls = [\"planner\"]", "calls = []");
    node.up_ok(&without);
    assert_failed(peer(&node, "arm", "once planner request"), "planner");
    wait::until("its program is told", || node.ok(&["logs", "brain"]).contains("failed: "));
    node.up_ok(&text);
    assert_asked(&node, "desk");
}

#[test]
fn limits_refuse_with_the_key_of_the_file() {
    let limits = "[ipc]\nendpoints = 12\npairs = 5\nbytes = \"8MiB\"\nbuffers = 20\ngrants = 3\nanonymous_per_domain = 6\n";
    let Some((node, text)) = start(limits) else { return };
    let mut many = Program::start(&node, "desk", &["many", "2", "20"]);
    assert!(
        many.said().starts_with("bound 6 ") && many.said().contains("ipc.anonymous_per_domain"),
        "{}",
        many.said()
    );
    let mut more = Program::start(&node, "arm", &["many", "2", "20"]);
    assert!(more.said().starts_with("bound 5 ") && more.said().contains("ipc.endpoints"), "{}", more.said());
    many.end();
    more.end();
    wait::until("they are free again", || endpoints(&node, "shop").len() == 4);
    for (bytes, key, domain) in [("4096", "ipc.grants", "desk"), ("3000000", "ipc.bytes", "desk")] {
        let mut owner = Program::start(&node, domain, &["own", "planner", bytes]);
        assert!(owner.said().contains(key), "{key}: {}", owner.said());
        owner.end();
    }
    // The planner still lives, and keeps nothing of those who have gone.
    wait::until("nothing is counted any more", || {
        ["pairs", "bytes", "buffers", "grants"].iter().all(|key| used(&node, key) == 0)
    });
    // `up` with a greater one helps.
    node.up_ok(&text.replace("grants = 3", "grants = 100"));
    let mut owner = Program::start(&node, "desk", &["own", "planner", "4096"]);
    assert!(owner.said().contains("ipc.buffers"), "{}", owner.said());
    owner.end();
    assert_asked(&node, "desk");
}

/// How much of a limit is used.
fn used(node: &Node, key: &str) -> u64 {
    node.json(&["endpoint", "show", "shop/planner"])["limits"][key]["used"].as_u64().expect("a number")
}

#[test]
fn ten_thousand_endpoints_are_bound_listed_and_gone() {
    let limits = "[ipc]\nendpoints = 12000\nanonymous_per_domain = 12000\n";
    let Some((node, _)) = start(limits) else { return };
    // Others are served while they come, while they are there, and while they go.
    let ask_until = |done: &AtomicBool| {
        let mut asked = 0;
        while !done.load(Ordering::Acquire) {
            assert_asked(&node, "desk");
            asked += 1;
        }
        asked
    };
    let meanwhile = |work: &mut (dyn FnMut() + Send)| {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| ask_until(&done));
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            done.store(true, Ordering::Release);
            assert!(asks.join().expect("all were answered") > 0, "nobody was served meanwhile");
            worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    };
    let mut many = None;
    meanwhile(&mut || {
        let program = Program::start(&node, "desk", &["many", "20", "500"]);
        assert_eq!(program.said(), "bound 10000", "{}", node.daemon_log());
        many = Some(program);
    });
    assert_eq!(endpoints(&node, "shop").len(), 10_004);
    assert_asked(&node, "desk");
    meanwhile(&mut || {
        many.take().expect("it was started").end();
        wait::until("they are gone", || endpoints(&node, "shop").len() == 4);
    });
}

#[test]
fn processes_and_containers_speak_and_a_process_may_be_an_endpoint() {
    let Some(node) = Node::start() else { return };
    let text = shop("shop", "[\"sleep\", \"infinity\"]", "").replace(
        &domain("brain", "container", "[\"sleep\", \"infinity\"]"),
        &domain("brain", "process", &format!("[\"{}\", \"serve\", \"planner\"]", crate::endpoint_bed::PEER)),
    );
    assert!(text.contains("process"));
    node.up_ok(&text);
    assert_asked(&node, "desk");
}
