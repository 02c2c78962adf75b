//! From an answer to what the caller reads: lines of text, lines of JSON, addresses, names.

use crate::answer::Answer;
use crate::name;
use crate::settings::Format;
use hickory_proto::rr::{RData, Record, RecordType};
use std::io::Write as _;
use std::net::IpAddr;
use wire::directory::{Addresses, MAX_ADDRESSES, MAX_NAMES, Names};

/// Most bytes that one answer on `query` may have. A message of 64 KiB can unfold to more, by
/// compression.
pub const MAX_ANSWER_BYTES: usize = 512 * 1024;

/// An answer and how many seconds ago it was right from the upstream.
#[derive(Debug, Clone, Copy)]
pub struct Aged<'a> {
    /// The answer.
    pub answer: &'a Answer,
    /// Its age, in s: what its TTLs have lost.
    pub age_s: u32,
}

/// Whether `record` came with an answer rendered before: the chain to an address is the same for A
/// and AAAA.
fn repeated(record: &Record, before: &[Aged<'_>]) -> bool {
    record.record_type() == RecordType::CNAME
        && before.iter().any(|aged| aged.answer.selected().any(|other| other == record))
}

/// Appends the lines of all answers. Whether it fitted into [`MAX_ANSWER_BYTES`].
#[must_use]
pub fn lines(answers: &[Aged<'_>], format: Format, out: &mut Vec<u8>) -> bool {
    for (place, aged) in answers.iter().enumerate() {
        let before = answers.get(..place).unwrap_or_default();
        for record in aged.answer.selected().filter(|record| !repeated(record, before)) {
            let ttl_s = record.ttl.saturating_sub(aged.age_s);
            match format {
                Format::Text => text_line(record, ttl_s, out),
                Format::Json => json_line(record, ttl_s, out),
            }
            if out.len() > MAX_ANSWER_BYTES {
                return false;
            }
        }
    }
    true
}

/// Writing to a `Vec` can't fail.
fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

fn text_line(record: &Record, ttl_s: u32, out: &mut Vec<u8>) {
    name::write(&record.name, out);
    put(out, format_args!(" {ttl_s} "));
    record_type(record.record_type(), out);
    out.push(b' ');
    data(&record.data, out);
    out.push(b'\n');
}

fn json_line(record: &Record, ttl_s: u32, out: &mut Vec<u8>) {
    let mut text = Vec::with_capacity(64);
    out.extend_from_slice(b"{\"name\":\"");
    name::write(&record.name, &mut text);
    json_escaped(&text, out);
    out.extend_from_slice(b"\",\"type\":\"");
    record_type(record.record_type(), out);
    put(out, format_args!("\",\"ttl\":{ttl_s},\"data\":\""));
    text.clear();
    data(&record.data, &mut text);
    json_escaped(&text, out);
    out.extend_from_slice(b"\",\"rcode\":\"NOERROR\"}\n");
}

/// The text is printable ASCII, so that only two characters need a backslash.
fn json_escaped(text: &[u8], out: &mut Vec<u8>) {
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

fn record_type(record_type: RecordType, out: &mut Vec<u8>) {
    match record_type {
        RecordType::Unknown(code) => put(out, format_args!("TYPE{code}")),
        known => out.extend_from_slice(<&'static str>::from(known).as_bytes()),
    }
}

/// The data of a record as a zone file has it (RFC 1035 section 5.1), in one line of printable
/// ASCII.
fn data(data: &RData, out: &mut Vec<u8>) {
    match data {
        RData::A(a) => put(out, format_args!("{a}")),
        RData::AAAA(aaaa) => put(out, format_args!("{aaaa}")),
        RData::CNAME(target) => name::write(&target.0, out),
        RData::NS(target) => name::write(&target.0, out),
        RData::PTR(target) => name::write(&target.0, out),
        RData::MX(mx) => {
            put(out, format_args!("{} ", mx.preference));
            name::write(&mx.exchange, out);
        }
        RData::SRV(srv) => {
            put(out, format_args!("{} {} {} ", srv.priority, srv.weight, srv.port));
            name::write(&srv.target, out);
        }
        RData::SOA(soa) => {
            name::write(&soa.mname, out);
            out.push(b' ');
            name::write(&soa.rname, out);
            let numbers = (soa.serial, soa.refresh, soa.retry, soa.expire, soa.minimum);
            let (serial, refresh, retry, expire, minimum) = numbers;
            put(out, format_args!(" {serial} {refresh} {retry} {expire} {minimum}"));
        }
        RData::TXT(txt) => strings(txt.txt_data.iter().map(|s| &**s), out),
        RData::HINFO(hinfo) => strings([&*hinfo.cpu, &*hinfo.os], out),
        RData::CAA(caa) => {
            put(out, format_args!("{} ", caa.flags()));
            caa.tag.bytes().for_each(|byte| name::write_byte(byte, false, out));
            out.push(b' ');
            strings([&caa.value[..]], out);
        }
        RData::NAPTR(naptr) => {
            put(out, format_args!("{} {} ", naptr.order, naptr.preference));
            strings([&*naptr.flags, &*naptr.services, &*naptr.regexp], out);
            out.push(b' ');
            name::write(&naptr.replacement, out);
        }
        RData::NULL(null) => opaque(&null.anything, out),
        RData::Unknown { rdata, .. } => opaque(&rdata.anything, out),
        other => {
            for byte in other.to_string().bytes() {
                if byte == b' ' { out.push(byte) } else { name::write_byte(byte, false, out) }
            }
        }
    }
}

/// Character strings in quotes, a space between them.
fn strings<'a>(strings: impl IntoIterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    for (place, string) in strings.into_iter().enumerate() {
        if place > 0 {
            out.push(b' ');
        }
        out.push(b'"');
        for &byte in string {
            if byte == b' ' {
                out.push(byte)
            } else {
                name::write_byte(byte, matches!(byte, b'"' | b'\\'), out)
            }
        }
        out.push(b'"');
    }
}

/// Data of a type that nobody here knows (RFC 3597 section 5).
fn opaque(bytes: &[u8], out: &mut Vec<u8>) {
    put(out, format_args!("\\# {}", bytes.len()));
    if !bytes.is_empty() {
        out.push(b' ');
    }
    for byte in bytes {
        put(out, format_args!("{byte:02x}"));
    }
}

/// The addresses of all answers and the name at the end of the chain.
pub fn addresses(answers: &[Aged<'_>]) -> Addresses {
    let mut found = Addresses { ttl_s: u32::MAX, ..Addresses::default() };
    for aged in answers {
        for record in aged.answer.selected() {
            found.ttl_s = found.ttl_s.min(record.ttl.saturating_sub(aged.age_s));
            let address = match &record.data {
                RData::A(a) => IpAddr::V4(a.0),
                RData::AAAA(aaaa) => IpAddr::V6(aaaa.0),
                _ => continue,
            };
            if found.addresses.is_empty() {
                found.canonical = plain(&record.name);
            }
            if found.addresses.len() < MAX_ADDRESSES {
                found.addresses.push(address);
            }
        }
    }
    found
}

/// The names that the PTR records of all answers give.
pub fn names(answers: &[Aged<'_>]) -> Names {
    let found =
        answers.iter().flat_map(|aged| aged.answer.selected()).filter_map(|record| match &record.data {
            RData::PTR(target) => Some(plain(&target.0)),
            _ => None,
        });
    Names(found.take(MAX_NAMES).collect())
}

/// A name as `getaddrinfo` gives it: without the final dot.
fn plain(name: &hickory_proto::rr::Name) -> String {
    let mut text = name::text(name);
    if text.len() > 1 {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::{a, cname, question, response};
    use crate::answer::{Question, Reply, read};
    use hickory_proto::rr::rdata::{AAAA, CAA, MX, NAPTR, NULL, SRV, TXT};
    use std::net::Ipv6Addr;

    fn answer(question: &Question, records: Vec<Record>) -> Answer {
        let mut message = response(question, 1);
        message.add_answers(records);
        match read(&message.to_vec().unwrap(), 1, question, true) {
            Reply::Answer(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    fn one(record_type: RecordType, data: RData) -> String {
        let q = question("x.example", record_type);
        let answer = answer(&q, vec![Record::from_rdata(q.name.clone(), 300, data)]);
        let mut out = Vec::new();
        assert!(lines(&[Aged { answer: &answer, age_s: 10 }], Format::Text, &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_record_is_a_line() {
        let host = || question("Mail.example", RecordType::A).name;
        for (record_type, data, expected) in [
            (RecordType::AAAA, RData::AAAA(AAAA(Ipv6Addr::LOCALHOST)), "AAAA ::1"),
            (RecordType::MX, RData::MX(MX::new(10, host())), "MX 10 Mail.example."),
            (RecordType::SRV, RData::SRV(SRV::new(1, 2, 80, host())), "SRV 1 2 80 Mail.example."),
            (
                RecordType::TXT,
                RData::TXT(TXT::from_bytes(vec![b"v=1; \"x\\\"", b"\n\xff"])),
                r#"TXT "v=1; \"x\\\"" "\010\255""#,
            ),
            (
                RecordType::CAA,
                RData::CAA(CAA::new_issue(true, Some(name::parse("ca.example").unwrap()), vec![])),
                "CAA 128 issue \"ca.example\"",
            ),
            (
                RecordType::NAPTR,
                RData::NAPTR(NAPTR::new(1, 2, (*b"S").into(), (*b"SIP+D2U").into(), (*b"").into(), host())),
                r#"NAPTR 1 2 "S" "SIP+D2U" "" Mail.example."#,
            ),
            (
                RecordType::Unknown(1234),
                RData::Unknown { code: RecordType::Unknown(1234), rdata: NULL::with(vec![1, 0xab]) },
                r"TYPE1234 \# 2 01ab",
            ),
        ] {
            assert_eq!(one(record_type, data), format!("x.example. 290 {expected}\n"));
        }
    }

    #[test]
    fn the_chain_is_told_once_for_both_types() {
        let v4 = answer(
            &question("w.example", RecordType::A),
            vec![cname("w.example", 60, "h.example"), a("h.example", 30, 1)],
        );
        let v6 = answer(
            &question("w.example", RecordType::AAAA),
            vec![
                cname("w.example", 60, "h.example"),
                Record::from_rdata(
                    question("h.example", RecordType::A).name,
                    40,
                    RData::AAAA(AAAA(Ipv6Addr::LOCALHOST)),
                ),
            ],
        );
        let both = [Aged { answer: &v4, age_s: 0 }, Aged { answer: &v6, age_s: 0 }];
        let mut out = Vec::new();
        assert!(lines(&both, Format::Text, &mut out));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "w.example. 60 CNAME h.example.\nh.example. 30 A 192.0.2.1\nh.example. 40 AAAA ::1\n"
        );
        let found = addresses(&both);
        assert_eq!((found.canonical.as_str(), found.ttl_s, found.addresses.len()), ("h.example", 30, 2));
    }

    #[test]
    fn json_is_json_whatever_the_data() {
        let q = question(r"a\034b.example", RecordType::TXT);
        let data = RData::TXT(TXT::from_bytes(vec![b"\"\\\x01"]));
        let answer = answer(&q, vec![Record::from_rdata(q.name.clone(), 5, data)]);
        let mut out = Vec::new();
        assert!(lines(&[Aged { answer: &answer, age_s: 9 }], Format::Json, &mut out));
        let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(line["name"], r#"a\"b.example."#);
        assert_eq!(line["data"], r#""\"\\\001""#);
        assert_eq!(
            (&line["ttl"], &line["type"], &line["rcode"]),
            (&0.into(), &"TXT".into(), &"NOERROR".into())
        );
    }
}
