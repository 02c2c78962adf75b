//! Sessions: their settings by line and by `ioctl`, their capsules, their quotas.

use crate::robust::{FakeLoop, consumer, directory, mute, to};
use crate::stage::{Stage, settings, soon};
use crate::upstream::{Upstream, bytes, code, good};
use hickory_proto::op::ResponseCode;
use rustix::io::Errno;
use session::{LinkId, Service};
use std::time::Duration;
use wire::control::{Consumer, Event};
use wire::directory::{file, ioctl};
use wire::service::OpenInfo;

fn two() -> (Upstream, Upstream) {
    let first = Upstream::start(|query, _| vec![bytes(&good(query))]);
    let second = Upstream::start(|query, _| vec![bytes(&code(query, ResponseCode::Refused))]);
    (first, second)
}

#[test]
fn a_session_has_settings_of_its_own() {
    let (first, second) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut link = stage.link("a");
    link.open(1).expect("open");
    link.open(2).expect("open");
    for line in
        ["ctl format json", "ctl timeout 500ms", "ctl retries 0", "ctl search b.example", "ctl trace on"]
    {
        assert_eq!(link.query_in(1, line).as_deref(), Ok("ok\n"), "{line}");
    }
    let json = link.query_in(1, "A host.example").expect("an answer");
    let object: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&object["data"], &object["ttl"]), (&"192.0.2.1".into(), &300.into()));
    assert_eq!(link.query_in(2, "A host.example").as_deref(), Ok("host.example. 300 A 192.0.2.1\n"));
    assert!(link.query_in(1, "A short").expect("an answer").contains("short.b.example."));
    assert_eq!(link.query_in(1, &format!("ctl upstream {}", second.address)).as_deref(), Ok("ok\n"));
    assert_eq!(
        link.query_in(1, "A host.example"),
        Err(Errno::CONNREFUSED),
        "its own upstream, and not the cache"
    );
    assert_eq!(link.query_in(1, "ctl upstream none").as_deref(), Ok("ok\n"));
    assert!(link.query_in(1, "A host.example").is_ok());
    for bad in ["ctl", "ctl bogus", "ctl timeout 0ms", "ctl flush", "ctl session 1 retries 1", "ctl format"] {
        let expected = if bad == "ctl" { Ok(()) } else { Err(Errno::INVAL) };
        assert_eq!(link.query_in(2, bad).map(drop), expected, "{bad}");
    }
    assert_eq!(link.query("ctl format json"), Err(Errno::INVAL), "no session, nothing to set");
}

#[test]
fn ctl_sets_the_domains_defaults_and_other_sessions() {
    let (first, _) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut link = stage.link("a");
    link.open(10).expect("open");
    let before = "timeout 100ms\nretries 1\nupstream none\nsearch none\nformat text\ntrace off\n";
    assert_eq!(link.ctl("").as_deref(), Ok(before));
    assert_eq!(link.ctl("format json\n").as_deref(), Ok("ok\n"));
    assert_eq!(link.ctl("search a.example b.example").as_deref(), Ok("ok\n"));
    let after =
        "timeout 100ms\nretries 1\nupstream none\nsearch a.example. b.example.\nformat json\ntrace off\n";
    assert_eq!(link.ctl("").as_deref(), Ok(after));
    for line in after.lines() {
        assert_eq!(link.ctl(line).as_deref(), Ok("ok\n"), "what is read can be written: {line}");
    }
    assert!(link.query("A host.example").expect("an answer").starts_with('{'), "the domain's own requests");
    assert!(link.query_in(10, "A host.example").expect("an answer").starts_with("host"), "an older session");
    link.open(11).expect("open");
    assert!(link.query_in(11, "A host.example").expect("an answer").starts_with('{'), "a newer session");
    let number =
        u64::from_ne_bytes(link.ioctl(10, ioctl::GET_SESSION, &[]).expect("a number").try_into().expect("8"));
    assert_eq!(link.ctl(&format!("session {number} format json")).as_deref(), Ok("ok\n"));
    assert!(link.query_in(10, "A host.example").expect("an answer").starts_with('{'));
    assert_eq!(link.ctl("session 999 retries 1"), Err(Errno::SRCH));
    assert_eq!(link.ctl("nonsense"), Err(Errno::INVAL));
    let sessions = String::from_utf8(link.call(file::SESSIONS, b"").expect("a list")).expect("text");
    assert_eq!(sessions.lines().count(), 2);
    assert!(
        sessions.lines().any(|line| line.starts_with(&format!("{number} file=query uid=0 pid=7 "))),
        "{sessions}"
    );
    let others = stage.link("b").call(file::SESSIONS, b"").expect("a list");
    assert!(others.is_empty(), "a domain sees its own sessions");
    assert_eq!(stage.link("b").ctl("").as_deref(), Ok(before), "and has its own defaults");
}

#[test]
fn ioctls_do_what_lines_do() {
    let (first, second) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut link = stage.link("a");
    link.open(1).expect("open");
    let words = |bytes: &[u8]| -> Vec<u32> {
        bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("4"))).collect()
    };
    let present = link.ioctl(1, ioctl::GET_SETTINGS, &[]).expect("settings");
    assert_eq!(words(&present), [100, 1, 0, 0, 0, 0, 0, 0]);
    let wanted: Vec<u8> = [250u32, 3, 1, 1, 0, 0, 0, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
    assert_eq!(link.ioctl(1, ioctl::SET_SETTINGS, &wanted), Ok(vec![]));
    assert_eq!(link.ioctl(1, ioctl::GET_SETTINGS, &[]), Ok(wanted.clone()));
    assert!(link.query_in(1, "A host.example").expect("an answer").starts_with('{'));
    let mut address = [0u8; 24];
    address[0..2].copy_from_slice(&2u16.to_ne_bytes());
    address[2..4].copy_from_slice(&second.address.port().to_ne_bytes());
    address[8..12].copy_from_slice(&[127, 0, 0, 1]);
    assert_eq!(link.ioctl(1, ioctl::ADD_UPSTREAM, &address), Ok(vec![]));
    assert_eq!(link.query_in(1, "A host.example"), Err(Errno::CONNREFUSED));
    assert_eq!(link.ioctl(1, ioctl::CLEAR_UPSTREAMS, &[]), Ok(vec![]));
    assert!(link.query_in(1, "A host.example").is_ok());
    let mut domain = [0u8; 256];
    domain[..9].copy_from_slice(b"b.example");
    assert_eq!(link.ioctl(1, ioctl::ADD_SEARCH, &domain), Ok(vec![]));
    assert!(link.query_in(1, "A short").expect("an answer").contains("short.b.example."));
    assert_eq!(link.ioctl(1, ioctl::CLEAR_SEARCH, &[]), Ok(vec![]));
    assert!(link.query_in(1, "A short").expect("an answer").contains("\"short.\""));
}

#[test]
fn ioctls_of_a_wrong_number_size_or_value_change_nothing() {
    let (first, _) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut link = stage.link("a");
    link.open(1).expect("open");
    for (number, bytes) in [
        (ioctl::SET_SETTINGS, 31),
        (ioctl::SET_SETTINGS, 33),
        (ioctl::SET_SETTINGS, 0),
        (ioctl::SET_SETTINGS, 32),
        (ioctl::ADD_UPSTREAM, 23),
        (ioctl::ADD_UPSTREAM, 24),
        (ioctl::ADD_SEARCH, 255),
        (ioctl::ADD_SEARCH, 256),
        (ioctl::GET_SETTINGS, 32),
        (ioctl::GET_SESSION, 8),
        (ioctl::CLEAR_SEARCH, 1),
        (ioctl::CLEAR_UPSTREAMS, 1),
    ] {
        assert_eq!(link.ioctl(1, number, &vec![0xff; bytes]), Err(Errno::INVAL), "{number:#x} {bytes}");
    }
    for number in [0, 1, 0x5401, ioctl::GET_SESSION + 1, u32::MAX] {
        assert_eq!(link.ioctl(1, number, &[]), Err(Errno::NOTTY), "{number:#x}");
    }
    let present = link.ioctl(1, ioctl::GET_SETTINGS, &[]).expect("settings");
    assert_eq!(present[..4], 100u32.to_ne_bytes());
}

#[test]
fn own_upstreams_need_the_verb_and_are_lost_with_it() {
    let (first, second) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut trusted = stage.link("a");
    trusted.open(1).expect("open");
    trusted.query_in(1, &format!("ctl upstream {}", second.address)).expect("allowed");
    assert_eq!(trusted.query_in(1, "A host.example"), Err(Errno::CONNREFUSED));
    let verbs = Event::Verbs { service: "dns".into(), domain: "a".into(), verbs: vec!["resolve".into()] };
    stage.daemon.tell_server(verbs);
    // The state goes the same way as the event, so the event has been heard when it is there.
    let _state = stage.daemon.state();
    assert!(trusted.query_in(1, "A host.example").is_ok(), "back to the topology's upstream");
    stage.daemon.allow("b", &["resolve"]);
    let mut other = stage.link("b");
    other.open(1).expect("open");
    assert_eq!(other.query_in(1, "ctl upstream 127.0.0.1"), Err(Errno::ACCESS));
    assert_eq!(other.ioctl(1, ioctl::ADD_UPSTREAM, &[0; 24]), Err(Errno::ACCESS));
    assert_eq!(other.query_in(1, "ctl timeout 1s").as_deref(), Ok("ok\n"), "the rest is one's own affair");
    let capsule = br#"{"v":1,"session":1,"upstream":["127.0.0.1:1"]}"#;
    assert_eq!(other.open_with(2, capsule), Err(Errno::ACCESS), "a forged capsule gives no rights");
    assert_eq!(other.ctl("retries 1"), Err(Errno::ACCESS));
}

#[test]
fn a_session_goes_on_from_its_capsule_with_the_next_server() {
    let (first, _) = two();
    let mut stage = Stage::set(&settings(&[first.address]));
    let (caller, mut answers) = session::open(stage.end("a")).expect("a link");
    caller.open((9, 1), file::QUERY, &OpenInfo::default(), None).expect("sent");
    caller.request((9, 2), file::QUERY, b"ctl format json", false, None).expect("sent");
    let mut capsule = Vec::new();
    let mut answered = 0;
    while answered < 2 {
        match answers.next(soon()).expect("something") {
            session::Incoming::Capsule { session, capsule: sealed } => {
                assert_eq!(session, 9);
                capsule = sealed.to_vec();
            }
            session::Incoming::Answer(answer) => {
                assert!(answer.result.is_ok());
                answered += 1;
            }
            other => assert!(matches!(other, session::Incoming::Hello(_)), "{other:?}"),
        }
    }
    assert!(!capsule.is_empty() && capsule.len() <= wire::service::MAX_CAPSULE_BYTES);
    stage.restart_server();
    let mut link = stage.link("a");
    link.open_with(9, &capsule).expect("open again");
    assert!(link.query_in(9, "A host.example").expect("an answer").starts_with('{'));
    assert_eq!(link.open_with(10, b"{\"v\":1}"), Err(Errno::INVAL));
    assert_eq!(link.open_with(10, b"\xff\xff"), Err(Errno::INVAL));
}

/// Everything that came up to the answer of `tag`: its result, and the capsules of session 0.
fn answer_and_defaults(answers: &mut session::Answers, tag: u64) -> (Result<(), Errno>, Vec<Vec<u8>>) {
    let mut capsules = Vec::new();
    loop {
        match answers.next(soon()).expect("something") {
            session::Incoming::Capsule { session: 0, capsule } => capsules.push(capsule.to_vec()),
            session::Incoming::Answer(answer) if answer.tag == tag => {
                return (answer.result.map(drop), capsules);
            }
            _ => {}
        }
    }
}

#[test]
fn the_domains_defaults_go_on_from_their_capsule_with_the_next_server() {
    let (first, second) = two();
    let mut stage = Stage::set(&settings(&[first.address]));
    let (caller, mut answers) = session::open(stage.end("a")).expect("a link");
    let lines = ["format json", "search b.example", "timeout 250ms", "flush", "timeout 0ms"];
    let mut capsules = Vec::new();
    for (tag, line) in (1..).zip(lines) {
        caller.request((0, tag), file::CTL, line.as_bytes(), false, None).expect("sent");
        let (result, came) = answer_and_defaults(&mut answers, tag);
        assert_eq!(result.is_ok(), line != "timeout 0ms", "{line}");
        let changes = !matches!(line, "flush" | "timeout 0ms");
        assert_eq!(came.len(), usize::from(changes), "{line}: {came:?}");
        capsules.extend(came);
    }
    let capsule = capsules.pop().expect("a capsule");
    assert!(capsule.len() <= wire::service::MAX_CAPSULE_BYTES);
    let set = "timeout 250ms\nretries 1\nupstream none\nsearch b.example.\nformat json\ntrace off\n";
    assert_eq!(stage.link("a").ctl("").as_deref(), Ok(set));

    stage.restart_server();
    let mut link = stage.link("a");
    let plain = "timeout 100ms\nretries 1\nupstream none\nsearch none\nformat text\ntrace off\n";
    assert_eq!(link.ctl("").as_deref(), Ok(plain), "a server knows nothing of the one before");
    assert_eq!(link.restore(&capsule), Ok(()));
    assert_eq!(link.ctl("").as_deref(), Ok(set));
    link.open(1).expect("open");
    let answer = link.query_in(1, "A short").expect("an answer");
    assert!(answer.starts_with('{') && answer.contains("short.b.example."), "a new session: {answer}");
    let mut other = stage.link("a");
    assert!(other.query("A short").expect("an answer").contains("short.b.example."), "another entrance");
    assert_eq!(stage.link("b").ctl("").as_deref(), Ok(plain), "another domain");

    // What this server was told by a line is newer than what anybody kept.
    assert_eq!(link.ctl("retries 3").as_deref(), Ok("ok\n"));
    let (caller, mut answers) = session::open(stage.end("a")).expect("a link");
    let info = OpenInfo { capsule: capsule.clone(), ..OpenInfo::default() };
    caller.open((0, 1), 0, &info, None).expect("sent");
    let (result, told) = answer_and_defaults(&mut answers, 1);
    assert_eq!(result, Ok(()));
    assert_eq!(link.ctl("").as_deref(), Ok(set.replace("retries 1", "retries 3").as_str()));
    assert_eq!(told.len(), 1, "who kept the older defaults is told the present ones");
    assert!(told[0] != capsule);
    drop(second);
}

#[test]
fn a_new_server_lets_the_first_questions_wait_for_the_defaults() {
    let (_upstream, address) = mute();
    let mut own = settings(&[address]);
    own.search = vec!["topology.example".into()];
    let (mut service, mut ctx) = (directory(&own), FakeLoop::new());
    let consumer = |domain: &str, entrance: &str| Consumer { entrance: entrance.into(), ..consumer(domain) };
    let asked = |service: &dyn Service| service.state()["lookups"].as_u64();
    service.start(&mut ctx);
    service.attach(&mut ctx, LinkId(1), &consumer("a", "preload"));
    for tag in [1, 2] {
        let to = to(1, 0, tag, file::QUERY, ctx.now);
        service.request(&mut ctx, to, b"A short");
    }
    assert_eq!((asked(&*service), ctx.answers.len()), (Some(0), 0), "they wait");
    service.cancel(&mut ctx, LinkId(1), 2);
    service.attach(&mut ctx, LinkId(2), &consumer("a", "device"));
    let info = br#"{"v":1,"session":0,"upstream":["127.0.0.1:1"]}"#;
    let back = to(2, 0, 9, 0, ctx.now);
    service.restore(&mut ctx, back, info);
    assert_eq!(ctx.answers.pop().map(|(to, answer)| (to.tag, answer)), Some((9, Ok(vec![]))));
    assert_eq!(asked(&*service), Some(1), "the one that somebody still waits for is asked at once");
    assert_eq!(service.state()["upstreams"][0]["timeouts"], 0, "and not of the topology's upstream");
    service.detach(&mut ctx, LinkId(1));
    service.detach(&mut ctx, LinkId(2));
    assert_eq!(asked(&*service), Some(0));

    // A frontend that has nothing to hand back says nothing; and there may be none at all.
    for (frontend, waits_ms) in [(true, 50), (false, 250)] {
        service.attach(&mut ctx, LinkId(3), &consumer("b", "preload"));
        if frontend {
            service.attach(&mut ctx, LinkId(4), &consumer("b", "device"));
        }
        let to = to(3, 0, 1, file::ADDRESSES, ctx.now);
        service.request(&mut ctx, to, b"\x01host.example");
        assert_eq!(asked(&*service), Some(0));
        let until = ctx.now + Duration::from_millis(waits_ms);
        assert_eq!(service.deadline(), Some(until), "not longer, frontend: {frontend}");
        ctx.now = until;
        service.expired(&mut ctx);
        assert_eq!(asked(&*service), Some(1));
        service.detach(&mut ctx, LinkId(3));
        service.detach(&mut ctx, LinkId(4));
    }

    // Who may not set any has none; and a server that is no longer new waits for nobody.
    let bare = Consumer { verbs: vec!["resolve".into()], ..consumer("c", "preload") };
    service.attach(&mut ctx, LinkId(5), &bare);
    let question = to(5, 0, 1, file::QUERY, ctx.now);
    service.request(&mut ctx, question, b"A host.example");
    assert_eq!(asked(&*service), Some(1));
    service.detach(&mut ctx, LinkId(5));
    ctx.now += Duration::from_secs(1);
    service.attach(&mut ctx, LinkId(6), &consumer("a", "preload"));
    let question = to(6, 0, 1, file::QUERY, ctx.now);
    service.request(&mut ctx, question, b"A host.example");
    assert!(asked(&*service) >= Some(1) && ctx.answers.is_empty());
    service.detach(&mut ctx, LinkId(6));
}

#[test]
fn a_forged_capsule_of_the_defaults_changes_nothing() {
    let (first, _) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut link = stage.link("a");
    let before = link.ctl("").expect("settings");
    for forged in [
        &b"x"[..],
        b"{}",
        br#"{"v":1,"session":1,"retries":0}"#,
        br#"{"v":1,"session":0,"retries":11}"#,
        br#"{"v":1,"session":0,"timeout_ms":0}"#,
        br#"{"v":1,"session":0,"upstream":["224.0.0.1:53"]}"#,
        br#"{"v":1,"session":0,"search":["a..b"]}"#,
    ] {
        assert_eq!(link.restore(forged), Err(Errno::INVAL), "{}", String::from_utf8_lossy(forged));
        assert_eq!(link.ctl("").as_deref(), Ok(before.as_str()));
    }
    stage.daemon.allow("b", &["resolve"]);
    let mut other = stage.link("b");
    let harmless = br#"{"v":1,"session":0,"retries":0}"#;
    assert_eq!(
        other.restore(harmless),
        Err(Errno::ACCESS),
        "what needs a verb as a line needs it as a capsule"
    );
    assert_eq!(link.restore(harmless), Ok(()));
    assert!(link.ctl("").expect("settings").contains("retries 0\n"));
}

#[test]
fn defaults_are_lost_with_the_verb_that_set_them() {
    let (first, _) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut link = stage.link("a");
    link.ctl("format json").expect("set");
    let verbs = |verbs: &[&str]| {
        let verbs = verbs.iter().map(ToString::to_string).collect();
        stage.daemon.tell_server(Event::Verbs { service: "dns".into(), domain: "a".into(), verbs });
        let _heard = stage.daemon.state();
    };
    verbs(&["resolve"]);
    assert!(link.query("A host.example").expect("an answer").starts_with("host."));
    verbs(&["resolve", "control"]);
    assert!(link.ctl("").expect("settings").contains("format text\n"));
}

#[test]
fn ten_thousand_sessions_stop_at_the_quota_and_trouble_nobody_else() {
    let (first, _) = two();
    let mut plenty = settings(&[first.address]);
    plenty.sessions_per_domain = 1000;
    let stage = Stage::set(&plenty);
    let (mut greedy, mut modest) = (stage.link("a"), stage.link("b"));
    let results: Vec<_> = (1..=10_000).map(|session| greedy.open(session)).collect();
    assert!(results[..1000].iter().all(Result::is_ok));
    assert!(results[1000..].iter().all(|result| *result == Err(Errno::MFILE)));
    assert_eq!(stage.link("a").open(1), Err(Errno::MFILE), "another channel of the domain shares the quota");
    modest.open(1).expect("the other domain has its own");
    assert!(modest.query_in(1, "A host.example").is_ok());
    greedy.0.close_session(5, soon()).expect("closed");
    assert_eq!(greedy.open(20_000), Ok(()), "what is closed is free");
    assert_eq!(greedy.counter("sessions"), 1000);
}

#[test]
fn outstanding_requests_stop_at_the_quota_and_trouble_nobody_else() {
    let silent = Upstream::start(|_, _| vec![]);
    let mut few = settings(&[silent.address]);
    (few.outstanding_per_domain, few.timeout_ms, few.retries) = (4, 2000, 0);
    let stage = Stage::set(&few);
    let (caller, mut answers) = session::open(stage.end("a")).expect("a link");
    for tag in 1..=6u64 {
        let line = format!("A host{tag}.example");
        caller.request((0, tag), file::QUERY, line.as_bytes(), false, soon()).expect("sent");
    }
    let mut refused = Vec::new();
    while refused.len() < 2 {
        if let session::Incoming::Answer(answer) = answers.next(soon()).expect("an answer") {
            assert_eq!(answer.result, Err(Errno::DQUOT));
            refused.push(answer.tag);
        }
    }
    assert_eq!(refused, [5, 6]);
    let mut other = stage.link("b");
    assert_eq!(other.query("A host.example"), Err(Errno::TIMEDOUT), "another domain waits for itself");
    let mut ended = 0;
    while ended < 4 {
        if let session::Incoming::Answer(answer) = answers.next(soon()).expect("an answer") {
            assert_eq!(answer.result, Err(Errno::TIMEDOUT));
            ended += 1;
        }
    }
    assert_eq!(stage.link("a").counter("waiting"), 0);
    assert_eq!(stage.link("a").counter("EDQUOT"), 2);
}

#[test]
fn new_settings_hold_at_once_and_bad_ones_change_nothing() {
    let (first, second) = two();
    let stage = Stage::set(&settings(&[first.address]));
    let mut link = stage.link("a");
    assert!(link.query("A host.example").is_ok());
    let tell = |settings: serde_json::Value| {
        stage.daemon.tell_server(Event::Settings { service: "dns".into(), settings });
        let _heard = stage.daemon.state();
    };
    tell(serde_json::json!({ "upstream": [] }));
    assert!(link.query("A host.example").is_ok());
    tell(serde_json::to_value(settings(&[second.address])).expect("json"));
    assert_eq!(
        link.query("A host.example"),
        Err(Errno::CONNREFUSED),
        "what the old upstream said is forgotten"
    );
}
