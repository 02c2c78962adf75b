//! The answers of the views, the cache's contents, and how often each upstream is asked.

use crate::stage::{Stage, settings};
use crate::upstream::{Upstream, a, asked_name, bytes, cname, code, good, name, reply};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{AAAA, PTR, SOA};
use hickory_proto::rr::{RData, Record, RecordType};
use rustix::io::Errno;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::mpsc;
use wire::directory::{AddressQuery, Addresses, CacheMode, Names, file};

/// `host.*`: both families behind an alias; `v4.*`: one; reverse names: `host.example`; the rest:
/// nothing.
fn zone(query: &Message, _: bool) -> Vec<Vec<u8>> {
    let owner = asked_name(query);
    let mut message = reply(query);
    let first = owner.iter().next().map(<[u8]>::to_ascii_lowercase).unwrap_or_default();
    match (first.as_slice(), query.queries[0].query_type()) {
        (b"host", RecordType::A) => {
            message.add_answer(cname(owner, "real.example."));
            message.add_answer(a(name("real.example."), 30, 7));
        }
        (b"host", RecordType::AAAA) => {
            message.add_answer(cname(owner, "real.example."));
            let data = RData::AAAA(AAAA(Ipv6Addr::LOCALHOST));
            message.add_answer(Record::from_rdata(name("real.example."), 40, data));
        }
        (b"v4", RecordType::A) => {
            message.add_answer(a(owner, 30, 8));
        }
        (b"v4", _) => {}
        (_, RecordType::PTR) => {
            message.add_answer(Record::from_rdata(owner, 30, RData::PTR(PTR(name("host.example.")))));
        }
        _ => message.metadata.response_code = ResponseCode::NXDomain,
    }
    vec![bytes(&message)]
}

fn addresses(stage: &Stage, v4: bool, v6: bool, name: &str) -> Result<Addresses, Errno> {
    let mut payload = Vec::new();
    AddressQuery { v4, v6, name }.encode(&mut payload);
    let answer = stage.link("a").call(file::ADDRESSES, &payload)?;
    Ok(Addresses::decode(&answer).expect("addresses"))
}

#[test]
fn a_shell_gets_a_record_a_line() {
    let upstream = Upstream::start(zone);
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    let both =
        "host.example. 60 CNAME real.example.\nreal.example. 30 A 192.0.2.7\nreal.example. 40 AAAA ::1\n";
    assert_eq!(link.query("host.example\n").as_deref(), Ok(both));
    assert_eq!(link.query("v4.example").as_deref(), Ok("v4.example. 30 A 192.0.2.8\n"));
    assert_eq!(link.query("AAAA v4.example"), Err(Errno::NODATA));
    assert_eq!(link.query("nothing.example"), Err(Errno::NOENT));
    let pointer = link.query("PTR 192.0.2.1").expect("a name");
    assert_eq!(pointer, "1.2.0.192.in-addr.arpa. 30 PTR host.example.\n");
    assert_eq!(link.query("192.0.2.1"), Ok(pointer));
    assert_eq!(link.query("ANY host.example"), Err(Errno::OPNOTSUPP));
    assert_eq!(link.query("A a..b"), Err(Errno::INVAL));
    assert_eq!(link.query(&format!("A {}", "a".repeat(64))), Err(Errno::NAMETOOLONG));
}

#[test]
fn programs_get_addresses_and_names() {
    let upstream = Upstream::start(zone);
    let stage = Stage::set(&settings(&[upstream.address]));
    let found = addresses(&stage, true, true, "host.example").expect("addresses");
    assert_eq!((found.canonical.as_str(), found.ttl_s), ("real.example", 30));
    let (v4, v6) = (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)), IpAddr::V6(Ipv6Addr::LOCALHOST));
    assert_eq!(found.addresses, [v4, v6]);
    assert_eq!(addresses(&stage, false, true, "host.example").expect("addresses").addresses, [v6]);
    assert_eq!(addresses(&stage, false, true, "v4.example"), Err(Errno::NODATA));
    assert_eq!(addresses(&stage, true, true, "nothing.example"), Err(Errno::NOENT));
    assert_eq!(addresses(&stage, true, false, "192.0.2.9").expect("itself").canonical, "192.0.2.9");
    assert_eq!(addresses(&stage, false, true, "192.0.2.9"), Err(Errno::NODATA));
    let names = stage.link("a").call(file::NAMES, &[192, 0, 2, 1]).expect("names");
    assert_eq!(Names::decode(&names), Ok(Names(vec!["host.example".into()])));
    assert_eq!(stage.link("a").call(file::NAMES, &[1, 2, 3]), Err(Errno::INVAL));
    assert_eq!(stage.link("a").call(file::ADDRESSES, &[]), Err(Errno::INVAL));
}

#[test]
fn a_stub_gets_messages_with_its_own_id_and_flags() {
    let upstream = Upstream::start(zone);
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    let ask = |text: &str, record_type| {
        let mut message = Message::new(0xbeef, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name(text), record_type));
        message
    };
    let mut call = |message: &Message| {
        let answer = link.call(file::MESSAGE, &bytes(message)).expect("a message");
        Message::from_vec(&answer).expect("a message")
    };
    let mut question = ask("HOST.example.", RecordType::A);
    let mut edns = Edns::new();
    edns.set_dnssec_ok(true);
    question.set_edns(edns);
    question.metadata.checking_disabled = true;
    let answer = call(&question);
    assert_eq!((answer.metadata.id, answer.answers.len()), (0xbeef, 2));
    assert!(answer.metadata.checking_disabled && answer.metadata.recursion_available);
    assert!(answer.edns.expect("EDNS").flags().dnssec_ok);
    let upstreams_view = upstream.queries.lock().expect("unpoisoned")[0].clone();
    assert!(upstreams_view.metadata.checking_disabled, "CD goes upstream");
    assert!(
        upstreams_view.edns.is_some_and(|e| e.flags().dnssec_ok && e.max_payload() == 1232),
        "DO goes upstream"
    );
    assert_eq!(call(&ask("nothing.example.", RecordType::A)).metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(call(&ask("v4.example.", RecordType::AAAA)).metadata.response_code, ResponseCode::NoError);
    assert_eq!(call(&ask("v4.example.", RecordType::ANY)).metadata.response_code, ResponseCode::NotImp);
    assert_eq!(link.call(file::MESSAGE, b"short"), Err(Errno::INVAL));
}

#[test]
fn failures_are_codes_for_a_stub() {
    for (silent, expected) in [(true, ResponseCode::ServFail), (false, ResponseCode::Refused)] {
        let upstream = Upstream::start(move |query, _| match silent {
            true => vec![],
            false => vec![bytes(&code(query, ResponseCode::Refused))],
        });
        let stage = Stage::set(&settings(&[upstream.address]));
        let mut message = Message::new(3, MessageType::Query, OpCode::Query);
        message.add_query(Query::query(name("a.example."), RecordType::A));
        let answer = stage.link("a").call(file::MESSAGE, &bytes(&message)).expect("a message");
        assert_eq!(Message::from_vec(&answer).expect("a message").metadata.response_code, expected);
    }
}

#[test]
fn an_answer_is_remembered_by_its_domain_alone() {
    let upstream = Upstream::start(zone);
    let stage = Stage::set(&settings(&[upstream.address]));
    let (mut a, mut b) = (stage.link("a"), stage.link("b"));
    for _ in 0..3 {
        a.query("A host.example").expect("an answer");
    }
    assert_eq!(upstream.asked(), 1);
    assert_eq!((a.counter("queries"), a.counter("hits"), a.counter("misses")), (3, 2, 1));
    b.query("A HOST.example.").expect("an answer");
    assert_eq!(upstream.asked(), 2, "a private cache is nobody else's");
    assert_eq!(a.ctl("flush").as_deref(), Ok("ok\n"));
    a.query("A host.example").expect("an answer");
    b.query("A host.example").expect("an answer");
    assert_eq!(upstream.asked(), 3, "a flush is of the own cache");
}

#[test]
fn that_there_is_nothing_is_remembered_too() {
    let upstream = Upstream::start(|query, tcp| {
        if asked_name(query) == name("soa.example.") {
            let mut message = code(query, ResponseCode::NXDomain);
            let data = SOA::new(name("example."), name("example."), 1, 1, 1, 1, 0);
            message.add_authority(Record::from_rdata(name("example."), 60, RData::SOA(data)));
            return vec![bytes(&message)];
        }
        zone(query, tcp)
    });
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    for _ in 0..2 {
        assert_eq!(link.query("A nothing.example"), Err(Errno::NOENT));
        assert_eq!(link.query("MX v4.example"), Err(Errno::NODATA));
    }
    assert_eq!((upstream.asked(), link.counter("negative_hits")), (2, 2));
    for _ in 0..2 {
        assert_eq!(link.query("A soa.example"), Err(Errno::NOENT));
    }
    assert_eq!(upstream.asked(), 4, "the zone says that its noes are not to be remembered");
}

#[test]
fn without_a_cache_each_question_goes_up() {
    let upstream = Upstream::start(zone);
    let mut without = settings(&[upstream.address]);
    without.cache.mode = CacheMode::None;
    let stage = Stage::set(&without);
    let mut link = stage.link("a");
    for _ in 0..3 {
        link.query("A host.example").expect("an answer");
    }
    assert_eq!(upstream.asked(), 3);
}

#[test]
fn failures_are_not_remembered() {
    let upstream = Upstream::start(|query, _| vec![bytes(&code(query, ResponseCode::ServFail))]);
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    for _ in 0..2 {
        assert_eq!(link.query("A host.example"), Err(Errno::REMOTEIO));
    }
    assert_eq!(upstream.asked(), 2);
}

#[test]
fn a_short_name_is_searched_and_a_final_dot_ends_the_search() {
    let upstream = Upstream::start(|query, tcp| match asked_name(query) {
        known if known == name("host.b.example.") => zone(query, tcp),
        _ => vec![bytes(&code(query, ResponseCode::NXDomain))],
    });
    let mut searching = settings(&[upstream.address]);
    searching.search = vec!["a.example".into(), "b.example".into()];
    let stage = Stage::set(&searching);
    let mut link = stage.link("a");
    let found = link.query("A host").expect("an answer");
    assert!(found.starts_with("host.b.example. "), "{found}");
    let asked: Vec<_> = upstream.queries.lock().expect("unpoisoned").iter().map(asked_name).collect();
    assert_eq!(asked, [name("host.a.example."), name("host.b.example.")]);
    assert_eq!(link.query("A host."), Err(Errno::NOENT));
    assert_eq!(link.query("A host.c"), Err(Errno::NOENT), "a name with a dot is not searched");
    assert_eq!(addresses(&stage, true, false, "host").expect("addresses").canonical, "real.example");
}

/// Holds back all answers until told.
fn slow_upstream() -> (Upstream, mpsc::Sender<()>) {
    let (go, gate) = mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let upstream = Upstream::start(move |query, _| {
        let told = gate.lock().expect("unpoisoned").recv_timeout(std::time::Duration::from_secs(30));
        told.map(|()| vec![bytes(&good(query))]).unwrap_or_default()
    });
    (upstream, go)
}

#[test]
fn the_same_question_is_under_way_once_per_domain() {
    let (upstream, go) = slow_upstream();
    let mut patient = settings(&[upstream.address]);
    patient.timeout_ms = 30_000;
    let stage = Stage::set(&patient);
    let mut asking = Vec::new();
    for domain in ["a", "a", "a", "b"] {
        let mut link = stage.link(domain);
        asking.push(std::thread::spawn(move || link.query("A host.example").expect("an answer")));
    }
    // Three requests of one domain wait for one look-up, one of the other for its own.
    let waiting = |domain: &str| stage.link(domain).counter("waiting");
    while (waiting("a"), waiting("b")) != (3, 1) || upstream.asked() < 1 {
        std::thread::yield_now();
    }
    go.send(()).expect("the upstream listens");
    go.send(()).expect("the upstream listens");
    for thread in asking {
        assert_eq!(thread.join().expect("no panic"), "host.example. 300 A 192.0.2.1\n");
    }
    assert_eq!(upstream.asked(), 2);
}

#[test]
fn a_traced_question_says_where_its_time_went() {
    let upstream = Upstream::start(zone);
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    let answer = link.0.call_traced(file::QUERY, b"A host.example", crate::stage::soon()).expect("called");
    let named: Vec<_> =
        answer.phases.iter().map(|phase| wire::directory::PHASES[usize::from(phase.phase)]).collect();
    for phase in ["queue", "parse", "cache", "socket", "connect", "send", "receive", "decode", "answer"] {
        assert!(named.contains(&phase), "{phase} is missing in {named:?}");
    }
    assert!(answer.phases.iter().all(|phase| phase.nanoseconds < 30_000_000_000));
}
