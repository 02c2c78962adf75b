//! From an upstream's packet to an answer: whether it is for us, what it says, and how long that
//! holds.

use crate::failure::Failure;
use crate::name;
use hickory_proto::op::{Header, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use std::mem::size_of;
use std::time::Duration;
use wire::directory::CacheSettings;

/// Longest chain of CNAMEs that is followed; a longer one is a loop or a trap (BIND stops at 16 as
/// well).
const MAX_CHAIN: usize = 16;
/// Bytes that one record may take beside its struct, as an estimate for the cache's bound: names
/// and data longer than what the struct holds in place.
const RECORD_HEAP_BYTES: usize = 64;

/// The question to an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The name, fully qualified.
    pub name: Name,
    /// The type.
    pub record_type: RecordType,
    /// Bits of [`name::wish`].
    pub wishes: u8,
}

/// The verdict of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There are records.
    Found,
    /// The name exists, without a record of the type.
    NoData,
    /// The name does not exist.
    NoSuchName,
}

/// An upstream's answer, decoded and judged; shared between the cache and who waits for it.
#[derive(Debug)]
pub struct Answer {
    /// The verdict.
    pub verdict: Verdict,
    /// AD: the upstream found all of it authentic.
    pub authentic: bool,
    /// The sections.
    pub answers: Vec<Record>,
    /// Second section.
    pub authorities: Vec<Record>,
    /// Third section, without OPT.
    pub additionals: Vec<Record>,
    /// The records of `answers` that belong to the question, in the order of the chain.
    selection: Vec<u16>,
    /// How long it holds, in s; `None` for a negative answer without a SOA.
    ttl_s: Option<u32>,
    /// Bytes of memory that it takes, about.
    weight_bytes: usize,
}

/// The kind of a packet.
#[derive(Debug)]
pub enum Reply {
    /// Not the answer to this question: forged, late, or noise. Waiting goes on.
    NotOurs,
    /// The answer did not fit: ask again over TCP.
    Truncated,
    /// The upstream does not understand EDNS: ask again without it.
    NoEdns,
    /// The upstream answers that it has no answer, or what can't be understood.
    Failed(Failure),
    /// An answer.
    Answer(Answer),
}

impl Answer {
    /// An answer that needs no upstream: this record of the question's name, or that the name has
    /// none of the type.
    pub fn of_own(record: Option<Record>) -> Self {
        Self {
            verdict: if record.is_some() { Verdict::Found } else { Verdict::NoData },
            authentic: false,
            ttl_s: record.as_ref().map(|record| record.ttl),
            selection: record.iter().map(|_| 0).collect(),
            answers: record.into_iter().collect(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            weight_bytes: size_of::<Self>() + size_of::<Record>() + RECORD_HEAP_BYTES,
        }
    }

    /// The records that belong to the question: the chain of CNAMEs, then the records themselves.
    pub fn selected(&self) -> impl Iterator<Item = &Record> {
        self.selection.iter().filter_map(|&place| self.answers.get(usize::from(place)))
    }

    /// How long the answer may be remembered.
    pub fn lifetime(&self, settings: &CacheSettings) -> Duration {
        let longest = Duration::from_millis(settings.max_ttl_ms);
        let own = self.ttl_s.map(|s| Duration::from_secs(s.into()));
        match self.verdict {
            Verdict::Found => own.unwrap_or_default().min(longest),
            Verdict::NoData | Verdict::NoSuchName => {
                own.unwrap_or(Duration::MAX).min(Duration::from_millis(settings.negative_ttl_ms)).min(longest)
            }
        }
    }

    /// Bytes of memory that it takes, about.
    pub const fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }
}

/// Reads what came from the upstream in answer to `question` asked with `id`.
pub fn read(packet: &[u8], id: u16, question: &Question, over_tcp: bool) -> Reply {
    let mut decoder = BinDecoder::new(packet);
    let Ok(header) = Header::read(&mut decoder) else { return Reply::NotOurs };
    let metadata = header.metadata;
    if metadata.id != id
        || metadata.message_type != MessageType::Response
        || metadata.op_code != OpCode::Query
    {
        return Reply::NotOurs;
    }
    match header.counts.queries {
        1 if asks(&mut decoder, question) => {}
        // Some servers repeat no question when they refuse; that can only deny, not plant a record.
        0 if !matches!(metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain) => {}
        _ => return Reply::NotOurs,
    }
    match metadata.response_code {
        ResponseCode::NoError | ResponseCode::NXDomain if metadata.truncation => {
            if over_tcp {
                Reply::Failed(Failure::BadAnswer)
            } else {
                Reply::Truncated
            }
        }
        ResponseCode::NoError | ResponseCode::NXDomain => judge(packet, question),
        ResponseCode::FormErr | ResponseCode::NotImp => Reply::NoEdns,
        ResponseCode::Refused => Reply::Failed(Failure::Refused),
        _ => Reply::Failed(Failure::ServerFailure),
    }
}

fn asks(decoder: &mut BinDecoder<'_>, question: &Question) -> bool {
    Query::read(decoder).is_ok_and(|query| {
        name::same(query.name(), &question.name)
            && query.query_type() == question.record_type
            && query.query_class() == DNSClass::IN
    })
}

/// The packet carries our id and our question: from here on a fault is the upstream's.
fn judge(packet: &[u8], question: &Question) -> Reply {
    let Ok(message) = Message::from_vec(packet) else { return Reply::Failed(Failure::BadAnswer) };
    let code = message.metadata.response_code;
    if code != ResponseCode::NoError && code != ResponseCode::NXDomain {
        // The upper bits of the code came with EDNS (RFC 6891 section 6.1.3).
        return if code == ResponseCode::BADVERS {
            Reply::NoEdns
        } else {
            Reply::Failed(Failure::ServerFailure)
        };
    }
    let Ok(selection) = select(&message.answers, question) else { return Reply::Failed(Failure::BadAnswer) };
    let found = selection.last().and_then(|&place| message.answers.get(usize::from(place)));
    let verdict = match found {
        _ if code == ResponseCode::NXDomain => Verdict::NoSuchName,
        Some(last) if last.record_type() == question.record_type => Verdict::Found,
        _ => Verdict::NoData,
    };
    let records = message.answers.len() + message.authorities.len() + message.additionals.len();
    let mut answer = Answer {
        verdict,
        authentic: message.metadata.authentic_data,
        ttl_s: lifetime_s(verdict, &message),
        answers: message.answers,
        authorities: message.authorities,
        additionals: message.additionals,
        selection,
        weight_bytes: size_of::<Answer>()
            + packet.len()
            + records * (size_of::<Record>() + RECORD_HEAP_BYTES),
    };
    answer.answers.shrink_to_fit();
    answer.authorities.shrink_to_fit();
    answer.additionals.shrink_to_fit();
    Reply::Answer(answer)
}

/// Follows the chain of CNAMEs from the question; the records of the type at its end.
fn select(answers: &[Record], question: &Question) -> Result<Vec<u16>, Failure> {
    let mut selection = Vec::new();
    let mut current = &question.name;
    loop {
        let matching = answers.iter().enumerate().filter(|(_, record)| {
            record.dns_class == DNSClass::IN
                && record.record_type() == question.record_type
                && name::same(&record.name, current)
        });
        let before = selection.len();
        selection.extend(matching.filter_map(|(place, _)| u16::try_from(place).ok()));
        if selection.len() > before || question.record_type == RecordType::CNAME {
            return Ok(selection);
        }
        let alias = answers.iter().enumerate().find_map(|(place, record)| match &record.data {
            RData::CNAME(target) if name::same(&record.name, current) => Some((place, &target.0)),
            _ => None,
        });
        let Some((place, target)) = alias else { return Ok(selection) };
        if selection.len() >= MAX_CHAIN {
            return Err(Failure::BadAnswer);
        }
        selection.push(u16::try_from(place).map_err(|_| Failure::BadAnswer)?);
        current = target;
    }
}

/// RFC 2181 section 8: a TTL with the top bit set is zero.
const fn sane(ttl_s: u32) -> u32 {
    if ttl_s > i32::MAX as u32 { 0 } else { ttl_s }
}

/// The shortest TTL of what was answered; for negative answers the SOA's word (RFC 2308 section 5).
fn lifetime_s(verdict: Verdict, message: &Message) -> Option<u32> {
    let answered = message.answers.iter().map(|record| sane(record.ttl)).min();
    if verdict == Verdict::Found {
        return answered;
    }
    let soa = message.authorities.iter().find_map(|record| match &record.data {
        RData::SOA(soa) => Some(sane(soa.minimum).min(sane(record.ttl))),
        _ => None,
    });
    match (soa, answered) {
        (Some(soa), Some(chain)) => Some(soa.min(chain)),
        (soa, _) => soa,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hickory_proto::rr::rdata::{A, CNAME, SOA};

    /// A question for tests.
    pub(crate) fn question(text: &str, record_type: RecordType) -> Question {
        let mut name = name::parse(text).unwrap();
        name.set_fqdn(true);
        Question { name, record_type, wishes: 0 }
    }

    /// A response to `question` with nothing in it.
    pub(crate) fn response(question: &Question, id: u16) -> Message {
        let mut message = Message::response(id, OpCode::Query);
        message.add_query(Query::query(question.name.clone(), question.record_type));
        message
    }

    pub(crate) fn a(owner: &str, ttl: u32, last: u8) -> Record {
        Record::from_rdata(question(owner, RecordType::A).name, ttl, RData::A(A::new(192, 0, 2, last)))
    }

    pub(crate) fn cname(owner: &str, ttl: u32, target: &str) -> Record {
        let target = question(target, RecordType::A).name;
        Record::from_rdata(question(owner, RecordType::A).name, ttl, RData::CNAME(CNAME(target)))
    }

    pub(crate) fn soa(owner: &str, ttl: u32, minimum: u32) -> Record {
        let zone = question(owner, RecordType::SOA).name;
        let data = SOA::new(zone.clone(), zone.clone(), 1, 2, 3, 4, minimum);
        Record::from_rdata(zone, ttl, RData::SOA(data))
    }

    fn answer(message: &Message, question: &Question) -> Answer {
        match read(&message.to_vec().unwrap(), message.metadata.id, question, false) {
            Reply::Answer(answer) => answer,
            other => panic!("no answer: {other:?}"),
        }
    }

    fn settings() -> CacheSettings {
        CacheSettings {
            mode: wire::directory::CacheMode::Private,
            share: vec![],
            entries: 8,
            negative_ttl_ms: 30_000,
            max_ttl_ms: 1_000_000,
        }
    }

    #[test]
    fn a_chain_is_followed_in_any_order_and_strangers_are_left_out() {
        let q = question("www.example", RecordType::A);
        let mut message = response(&q, 7);
        message.add_answer(a("c.example", 50, 2));
        message.add_answer(a("evil.example", 5, 66));
        message.add_answer(cname("b.example", 60, "C.example"));
        message.add_answer(cname("WWW.example", 70, "b.example"));
        message.add_answer(a("c.example", 50, 3));
        let answer = answer(&message, &q);
        assert_eq!(answer.verdict, Verdict::Found);
        let names: Vec<_> = answer.selected().map(|record| name::text(&record.name)).collect();
        assert_eq!(names, ["WWW.example.", "b.example.", "c.example.", "c.example."]);
        assert_eq!(answer.lifetime(&settings()), Duration::from_secs(5), "the shortest of all that is kept");
    }

    #[test]
    fn a_chain_that_loops_is_a_bad_answer() {
        let q = question("a.example", RecordType::A);
        let mut message = response(&q, 7);
        message.add_answer(cname("a.example", 60, "b.example"));
        message.add_answer(cname("b.example", 60, "a.example"));
        let packet = message.to_vec().unwrap();
        assert!(matches!(read(&packet, 7, &q, false), Reply::Failed(Failure::BadAnswer)));
    }

    #[test]
    fn a_chain_without_an_end_has_no_data() {
        let q = question("a.example", RecordType::A);
        let mut message = response(&q, 7);
        message.add_answer(cname("a.example", 60, "b.example"));
        assert_eq!(answer(&message, &q).verdict, Verdict::NoData);
    }

    #[test]
    fn negative_answers_last_as_the_soa_says_within_the_bound() {
        let q = question("a.example", RecordType::A);
        let mut message = response(&q, 7);
        message.metadata.response_code = ResponseCode::NXDomain;
        assert_eq!(
            answer(&message, &q).lifetime(&settings()),
            Duration::from_secs(30),
            "no SOA: the bound itself"
        );
        for (ttl, minimum, expected) in [(20, 10, 10), (10, 20, 10), (100, 100, 30), (u32::MAX, 20, 0)] {
            message.authorities = vec![soa("example", ttl, minimum)];
            let answer = answer(&message, &q);
            assert_eq!(answer.verdict, Verdict::NoSuchName);
            assert_eq!(answer.lifetime(&settings()), Duration::from_secs(expected), "{ttl} {minimum}");
        }
    }

    #[test]
    fn what_is_not_for_us_is_ignored() {
        let q = question("a.example", RecordType::A);
        let mut message = response(&q, 7);
        message.add_answer(a("a.example", 60, 1));
        let packet = message.to_vec().unwrap();
        let ignored = |packet: &[u8], id, q: &Question| matches!(read(packet, id, q, false), Reply::NotOurs);
        assert!(!ignored(&packet, 7, &q));
        assert!(ignored(&packet, 8, &q), "another id");
        assert!(ignored(&packet, 7, &question("b.example", RecordType::A)), "another name");
        assert!(ignored(&packet, 7, &question("a.example", RecordType::AAAA)), "another type");
        assert!(ignored(&packet[..11], 7, &q), "shorter than a header");
        assert!(ignored(&[], 7, &q));
        let mut query = packet.clone();
        query[2] &= 0x7f;
        assert!(ignored(&query, 7, &q), "a query");
        let mut none = packet.clone();
        none[5] = 0;
        assert!(ignored(&none, 7, &q), "no question in a positive answer");
        let mut many = packet;
        many[4] = 0xff;
        assert!(ignored(&many, 7, &q), "65281 questions");
    }

    #[test]
    fn what_is_for_us_and_broken_is_a_bad_answer() {
        let q = question("a.example", RecordType::A);
        let mut message = response(&q, 7);
        message.add_answer(a("a.example", 60, 1));
        let packet = message.to_vec().unwrap();
        let question_end = 12 + 11 + 4;
        for cut in question_end..packet.len() {
            let reply = read(&packet[..cut], 7, &q, false);
            assert!(matches!(reply, Reply::Failed(Failure::BadAnswer)), "cut at {cut}: {reply:?}");
        }
        let mut looping = packet.clone();
        let at = question_end;
        looping[at..at + 2].copy_from_slice(&[0xc0, at as u8]);
        assert!(
            matches!(read(&looping, 7, &q, false), Reply::Failed(Failure::BadAnswer)),
            "a name that points at itself"
        );
    }

    #[test]
    fn codes_become_failures() {
        let q = question("a.example", RecordType::A);
        for (code, expected) in [
            (ResponseCode::ServFail, Failure::ServerFailure),
            (ResponseCode::Refused, Failure::Refused),
            (ResponseCode::YXDomain, Failure::ServerFailure),
        ] {
            let mut message = response(&q, 7);
            message.metadata.response_code = code;
            let packet = message.to_vec().unwrap();
            assert!(matches!(read(&packet, 7, &q, false), Reply::Failed(f) if f == expected), "{code}");
            message.queries.clear();
            let packet = message.to_vec().unwrap();
            assert!(matches!(read(&packet, 7, &q, false), Reply::Failed(f) if f == expected), "{code} bare");
        }
        let mut message = response(&q, 7);
        message.metadata.response_code = ResponseCode::FormErr;
        assert!(matches!(read(&message.to_vec().unwrap(), 7, &q, false), Reply::NoEdns));
        let mut message = response(&q, 7);
        message.metadata.truncation = true;
        assert!(matches!(read(&message.to_vec().unwrap(), 7, &q, false), Reply::Truncated));
        assert!(matches!(read(&message.to_vec().unwrap(), 7, &q, true), Reply::Failed(Failure::BadAnswer)));
    }
}
