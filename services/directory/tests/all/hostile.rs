//! Upstreams that are silent, slow, wrong, garbled, or dead.

use crate::stage::{Stage, settings};
use crate::upstream::{Upstream, a, asked_name, bytes, cname, code, framed, good, name, reply, txt};
use hickory_proto::op::{Message, Query, ResponseCode};
use rustix::io::Errno;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The answer for `A host.example` with one upstream of this behaviour, and how often it was asked.
fn ask(
    behaviour: impl Fn(&Message, bool) -> Vec<Vec<u8>> + Send + Sync + 'static,
) -> (Result<String, Errno>, usize) {
    let upstream = Upstream::start(behaviour);
    let stage = Stage::set(&settings(&[upstream.address]));
    let answer = stage.link("a").query("A host.example");
    (answer, upstream.asked())
}

const FOUND: &str = "host.example. 300 A 192.0.2.1\n";

fn found() -> Result<String, Errno> {
    Ok(FOUND.into())
}

#[test]
fn silence_is_a_time_out_after_all_repetitions() {
    let start = Instant::now();
    assert_eq!(ask(|_, _| vec![]), (Err(Errno::TIMEDOUT), 2));
    assert!(start.elapsed() >= Duration::from_millis(200), "two attempts of 100 ms");
}

#[test]
fn noise_before_the_answer_is_ignored() {
    let (answer, asked) = ask(|query, _| {
        let right = good(query);
        let mut wrong_id = right.clone();
        wrong_id.metadata.id ^= 1;
        let mut wrong_name = right.clone();
        wrong_name.queries[0].set_name(name("evil.example."));
        let mut none = right.clone();
        none.queries.clear();
        let mut query_back = right.clone();
        query_back.metadata.message_type = hickory_proto::op::MessageType::Query;
        let noise = [wrong_id, wrong_name, none, query_back].map(|message| bytes(&message));
        let mut packets = vec![vec![], vec![0], b"garbage that is no DNS message at all".to_vec()];
        packets.extend(noise);
        packets.push(bytes(&right));
        packets
    });
    assert_eq!((answer, asked), (found(), 1));
}

#[test]
fn a_flood_of_guesses_costs_the_port_and_not_the_answer() {
    let first = std::sync::atomic::AtomicBool::new(true);
    let (answer, asked) = ask(move |query, _| {
        if !first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return vec![bytes(&good(query))];
        }
        let guesses = (1..200u16).map(|n| {
            let mut guess = good(query);
            guess.metadata.id = guess.metadata.id.wrapping_add(n);
            bytes(&guess)
        });
        // Had the port not been given up, the answer behind the guesses would have been taken.
        guesses.chain([bytes(&good(query))]).collect()
    });
    assert_eq!((answer, asked), (found(), 2));
}

#[test]
fn an_answer_that_breaks_off_or_loops_is_a_bad_message() {
    let cut = ask(|query, _| {
        let mut packet = bytes(&good(query));
        packet.truncate(packet.len() - 3);
        vec![packet]
    });
    assert_eq!(cut, (Err(Errno::BADMSG), 1));
    let looping = ask(|query, _| {
        let mut packet = bytes(&good(query));
        let owner = 12 + "host.example".len() + 2 + 4;
        packet[owner..owner + 2].copy_from_slice(&[0xc0, owner as u8]);
        vec![packet]
    });
    assert_eq!(looping, (Err(Errno::BADMSG), 1));
    let aliases = ask(|query, _| {
        let mut message = reply(query);
        message.add_answer(cname(asked_name(query), "b.example."));
        message.add_answer(cname(name("b.example."), "host.example."));
        vec![bytes(&message)]
    });
    assert_eq!(aliases, (Err(Errno::BADMSG), 1));
}

#[test]
fn codes_have_an_errno() {
    for (rcode, errno) in [
        (ResponseCode::ServFail, Errno::REMOTEIO),
        (ResponseCode::Refused, Errno::CONNREFUSED),
        (ResponseCode::NXDomain, Errno::NOENT),
        (ResponseCode::NoError, Errno::NODATA),
        (ResponseCode::YXRRSet, Errno::REMOTEIO),
    ] {
        let (answer, asked) = ask(move |query, _| vec![bytes(&code(query, rcode))]);
        assert_eq!((answer, asked), (Err(errno), 1), "{rcode}");
    }
}

#[test]
fn an_upstream_without_edns_is_asked_without() {
    let (answer, asked) = ask(|query, _| match query.edns {
        Some(_) => vec![bytes(&code(query, ResponseCode::FormErr))],
        None => vec![bytes(&good(query))],
    });
    assert_eq!((answer, asked), (found(), 2));
    assert_eq!(ask(|query, _| vec![bytes(&code(query, ResponseCode::FormErr))]).0, Err(Errno::REMOTEIO));
}

fn truncated(query: &Message) -> Vec<Vec<u8>> {
    let mut message = reply(query);
    message.metadata.truncation = true;
    vec![bytes(&message)]
}

#[test]
fn what_does_not_fit_comes_over_tcp() {
    let (answer, asked) = ask(|query, tcp| if tcp { vec![framed(&good(query))] } else { truncated(query) });
    assert_eq!((answer, asked), (found(), 2));
    let drop_by_drop = ask(|query, tcp| match tcp {
        true => framed(&good(query)).into_iter().map(|byte| vec![byte]).collect(),
        false => truncated(query),
    });
    assert_eq!(drop_by_drop.0, found());
}

#[test]
fn a_stream_that_hangs_breaks_off_or_babbles_ends_with_an_errno() {
    let hangs = ask(|query, tcp| if tcp { vec![] } else { truncated(query) });
    assert_eq!(hangs.0, Err(Errno::TIMEDOUT));
    let breaks_off = ask(|query, tcp| match tcp {
        true => vec![framed(&good(query))[..20].to_vec()],
        false => truncated(query),
    });
    assert_eq!(breaks_off.0, Err(Errno::BADMSG));
    let babbles =
        ask(
            |query, tcp| {
                if tcp { vec![vec![0, 12, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]] } else { truncated(query) }
            },
        );
    assert_eq!(babbles.0, Err(Errno::BADMSG));
    let truncated_again = ask(|query, tcp| {
        let mut message = reply(query);
        message.metadata.truncation = true;
        if tcp { vec![framed(&message)] } else { truncated(query) }
    });
    assert_eq!(truncated_again.0, Err(Errno::BADMSG));
}

#[test]
fn a_huge_answer_is_given_whole_or_refused_by_size() {
    let upstream = Upstream::start(|query, tcp| {
        if !tcp {
            return truncated(query);
        }
        let owner = asked_name(query);
        let mut message = reply(query);
        if query.queries[0].query_type() == hickory_proto::rr::RecordType::A {
            message.add_answers((0..2000u16).map(|n| a(owner.clone(), 300, n as u8)));
        } else {
            // Each byte needs four in text: 60 KiB become over 200.
            message.add_answers((0..220).map(|_| txt(owner.clone(), &[0xff; 255])));
        }
        vec![framed(&message)]
    });
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    assert_eq!(link.query("A host.example").expect("an answer").lines().count(), 2000);
    assert!(link.query("TXT host.example").expect("an answer").len() > 220 * 4 * 255);
}

#[test]
fn a_name_unfolded_by_compression_is_refused_by_size() {
    // 2,900 records of 16 bytes that point at one long name: over 700 KiB of text in 46 KiB of
    // message.
    const RECORD: [u8; 16] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
    const RECORDS: u16 = 2900;
    let upstream = Upstream::start(|query, tcp| {
        if !tcp {
            return truncated(query);
        }
        let mut packet = bytes(&reply(query));
        packet[6..8].copy_from_slice(&RECORDS.to_be_bytes());
        packet.extend((0..RECORDS).flat_map(|_| RECORD));
        let length = u16::try_from(packet.len()).expect("fits");
        vec![[&length.to_be_bytes()[..], &packet].concat()]
    });
    let stage = Stage::set(&settings(&[upstream.address]));
    let long = format!("A {}.example", vec!["x".repeat(60); 4].join("."));
    assert_eq!(stage.link("a").query(&long), Err(Errno::MSGSIZE));
}

#[test]
fn the_next_upstream_is_asked_where_the_first_fails() {
    for behaviour in [ResponseCode::ServFail, ResponseCode::Refused] {
        let bad = Upstream::start(move |query, _| vec![bytes(&code(query, behaviour))]);
        let right = Upstream::start(|query, _| vec![bytes(&good(query))]);
        let stage = Stage::set(&settings(&[bad.address, right.address]));
        assert_eq!(stage.link("a").query("A host.example"), found());
        assert_eq!((bad.asked(), right.asked()), (1, 1));
    }
}

#[test]
fn a_silent_upstream_is_passed_over_and_asked_last_after_a_while() {
    let silent = Upstream::start(|_, _| vec![]);
    let right = Upstream::start(|query, _| vec![bytes(&good(query))]);
    let mut short = settings(&[silent.address, right.address]);
    short.timeout_ms = 30;
    let stage = Stage::set(&short);
    let mut link = stage.link("a");
    for n in 0..6 {
        let line = format!("host{n}.example. 300 A 192.0.2.1\n");
        assert_eq!(link.query(&format!("A host{n}.example")), Ok(line));
    }
    assert_eq!((silent.asked(), right.asked()), (3, 6), "after three time-outs it is asked last");
    let state = stage.daemon.state();
    let text = state.to_string();
    assert!(text.contains("\"down\":true"), "{text}");
}

/// One domain asked three times for names that the first name server never answers, and for 30 s
/// the names of every domain went to the second: where the first is the house's own and the second
/// a public one, the house's names went out.
#[test]
fn names_that_one_domain_gets_no_answer_for_change_nothing_for_another() {
    let internal = Upstream::start(|query, _| {
        let name = query.queries[0].name().to_ascii().to_lowercase();
        if name.starts_with("silent") { vec![] } else { vec![bytes(&good(query))] }
    });
    let public = Upstream::start(|query, _| vec![bytes(&good(query))]);
    let mut short = settings(&[internal.address, public.address]);
    short.timeout_ms = 100;
    let stage = Stage::set(&short);
    let (mut one, mut other) = (stage.link("a"), stage.link("b"));
    for n in 0..4 {
        one.query(&format!("A silent{n}.example")).expect("an answer of the second");
    }
    assert_eq!(internal.asked(), 3, "and then it is asked last by who had no answer");
    let before = public.asked();
    for n in 0..3 {
        other.query(&format!("A host{n}.example")).expect("an answer");
    }
    assert_eq!((internal.asked(), public.asked()), (6, before));
}

/// A guesser who had found port and id out had an answer taken; now the case of each letter has to
/// be guessed as well.
#[test]
fn an_answer_that_does_not_repeat_the_spelling_of_the_query_is_asked_for_over_a_stream() {
    let forger = Upstream::start(|query, over_stream| {
        if over_stream {
            return vec![framed(&good(query))];
        }
        let mut forged = query.clone();
        let lower = Query::query(asked_name(query).to_lowercase(), query.queries[0].query_type());
        forged.queries = vec![lower];
        let mut forged = reply(&forged);
        forged.add_answer(a(asked_name(query), 300, 66));
        vec![bytes(&forged)]
    });
    let stage = Stage::set(&settings(&[forger.address]));
    let answer = stage.link("a").query("A The-Name.is.asked.for.as.it.IS.example");
    assert_eq!(answer.as_deref(), Ok("The-Name.is.asked.for.as.it.IS.example. 300 A 192.0.2.1\n"));
    assert_eq!(forger.asked(), 2, "by a datagram and over a stream");

    let honest = Upstream::start(|query, _| vec![bytes(&good(query))]);
    let stage = Stage::set(&settings(&[honest.address]));
    let mut link = stage.link("a");
    for n in 0..8 {
        let name = format!("n{n}.names.of.many.letters.example");
        assert_eq!(link.query(&format!("A {name}")), Ok(format!("{name}. 300 A 192.0.2.1\n")));
    }
    let spelled: HashSet<String> = honest
        .queries
        .lock()
        .expect("unpoisoned")
        .iter()
        .map(|query| {
            let name = query.queries[0].name().to_ascii();
            name.split_once('.').map_or(String::new(), |(_, rest)| rest.to_owned())
        })
        .collect();
    assert!(spelled.len() > 1, "{spelled:?}");
    assert_eq!(honest.asked(), 8, "one datagram each");
}

#[test]
fn nobody_listening_is_a_refusal_at_once() {
    // A port that nobody gets who names none.
    let nobody = SocketAddr::from(([127, 0, 80, 1], 1));
    let mut slow = settings(&[nobody]);
    slow.timeout_ms = 20_000;
    let stage = Stage::set(&slow);
    let start = Instant::now();
    assert_eq!(stage.link("a").query("A host.example"), Err(Errno::CONNREFUSED));
    assert!(start.elapsed() < Duration::from_secs(10), "the ICMP error is heard, not waited out");
}

#[test]
fn no_way_to_the_upstream_is_said_so() {
    // An address of a class that is never routed.
    let stage = Stage::set(&settings(&["255.255.255.255:53".parse().expect("an address")]));
    assert_eq!(stage.link("a").query("A host.example"), Err(Errno::HOSTUNREACH));
}

/// The longest that one source port is used, in queries (`MAX_USES` in `upstream/socket.rs`).
const PORT_USES: usize = 128;

#[test]
fn ports_are_random_change_in_time_and_ids_differ() {
    let upstream = Upstream::start(|query, _| vec![bytes(&good(query))]);
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    for n in 0..4 * PORT_USES {
        link.query(&format!("A host{n}.example")).expect("an answer");
    }
    let ports = upstream.ports.lock().expect("unpoisoned").clone();
    let mut uses = std::collections::HashMap::new();
    ports.iter().for_each(|port| *uses.entry(*port).or_insert(0) += 1);
    assert!(uses.len() >= 4, "{} queries from {} ports", ports.len(), uses.len());
    assert!(uses.values().all(|&count| count <= PORT_USES), "{uses:?}");
    let ids: std::collections::HashSet<_> =
        upstream.queries.lock().expect("unpoisoned").iter().map(|query| query.metadata.id).collect();
    assert!(ids.len() >= 4 * PORT_USES - 32, "{} ids in {} queries", ids.len(), ports.len());
}

#[test]
fn the_two_questions_of_a_request_leave_from_one_port_with_ids_of_their_own() {
    let upstream = Upstream::start(|query, _| vec![bytes(&good(query))]);
    let stage = Stage::set(&settings(&[upstream.address]));
    let mut link = stage.link("a");
    for n in 0..8 {
        link.query(&format!("host{n}.example")).expect("an answer");
    }
    let ports = upstream.ports.lock().expect("unpoisoned").clone();
    let queries = upstream.queries.lock().expect("unpoisoned").clone();
    assert_eq!((ports.len(), queries.len()), (16, 16));
    for (ports, queries) in ports.chunks(2).zip(queries.chunks(2)) {
        assert_eq!(ports[0], ports[1]);
        assert_ne!(queries[0].metadata.id, queries[1].metadata.id);
        assert_ne!(queries[0].queries[0].query_type(), queries[1].queries[0].query_type());
    }
}

/// A name server that takes its questions by twos and answers both with what `answers` makes of
/// them.
fn by_twos(answers: impl Fn(&Message, &Message) -> Vec<Vec<u8>> + Send + Sync + 'static) -> Upstream {
    let first = std::sync::Mutex::new(None);
    Upstream::start(move |query, _| {
        let mut first = first.lock().expect("unpoisoned");
        match first.take() {
            Some(one) => answers(&one, query),
            None => {
                *first = Some(query.clone());
                vec![]
            }
        }
    })
}

#[test]
fn each_of_two_answers_finds_its_question_whatever_their_order() {
    let upstream = by_twos(|one, two| {
        let (mut four, mut six) = (good(one), reply(two));
        // What is right in all but the id of the other question is the answer to neither.
        let mut crossed = four.clone();
        crossed.metadata.id = two.metadata.id;
        six.add_answer(hickory_proto::rr::Record::from_rdata(
            asked_name(two),
            300,
            hickory_proto::rr::RData::AAAA("2001:db8::1".parse().expect("an address")),
        ));
        four.metadata.authoritative = true;
        vec![bytes(&crossed), bytes(&six), bytes(&four)]
    });
    let stage = Stage::set(&settings(&[upstream.address]));
    let both = stage.link("a").query("host.example");
    assert_eq!(both.as_deref(), Ok("host.example. 300 A 192.0.2.1\nhost.example. 300 AAAA 2001:db8::1\n"));
    assert_eq!(upstream.asked(), 2, "asked once each");
    assert!(stage.daemon.state().to_string().contains("\"strays\":1"), "{}", stage.daemon.state());
}

#[test]
fn one_of_two_may_fail_or_be_lost_and_the_other_is_given() {
    // One is refused: the other's answer is enough.
    let refused = by_twos(|one, two| vec![bytes(&code(two, ResponseCode::Refused)), bytes(&good(one))]);
    let stage = Stage::set(&settings(&[refused.address]));
    assert!(stage.link("a").query("host.example").is_ok());
    // The first is lost, again and again: the other's answer is there when the time is over.
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let lost = Upstream::start(move |query, _| {
        let wanted = query.queries[0].query_type() == hickory_proto::rr::RecordType::AAAA;
        asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if wanted { vec![bytes(&good(query))] } else { vec![] }
    });
    let stage = Stage::set(&settings(&[lost.address]));
    assert_eq!(stage.link("a").query("A host.example"), Err(Errno::TIMEDOUT));
    let start = Instant::now();
    stage
        .link("a")
        .query("host.example")
        .expect_err("its A record is not there, and nobody knows whether it exists");
    assert!(start.elapsed() >= Duration::from_millis(200), "two attempts of 100 ms");
    // Guesses at the port of both cost both their port, and neither its answer.
    let first = std::sync::atomic::AtomicUsize::new(0);
    let guessed = Upstream::start(move |query, _| {
        let guess = |n: u16| {
            let mut guess = good(query);
            guess.metadata.id = guess.metadata.id.wrapping_add(n * 97);
            bytes(&guess)
        };
        let attack = first.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2;
        if attack { (1..120).map(guess).collect() } else { vec![bytes(&good(query))] }
    });
    let stage = Stage::set(&settings(&[guessed.address]));
    assert!(stage.link("a").query("host.example").is_ok());
    let ports: std::collections::HashSet<_> =
        guessed.ports.lock().expect("unpoisoned").iter().copied().collect();
    assert!(ports.len() >= 2, "new ports after the guesses: {ports:?}");
}
