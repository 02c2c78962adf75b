//! Raw DNS messages, for the stub: what a client's message asks, and the message that answers it.

use crate::answer::Verdict;
use crate::failure::Failure;
use crate::name::wish;
use crate::query::is_asked;
use crate::render::Aged;
use hickory_proto::op::{
    Edns, Header, Message, MessageType, Metadata, OpCode, Query, ResponseCode, emit_message_parts,
};
use hickory_proto::rr::{DNSClass, Record};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncoder};

/// Largest UDP answer that is asked for: fits an Ethernet frame, never fragments (DNS flag day
/// 2020).
pub const UDP_PAYLOAD_BYTES: u16 = 1232;
/// Version of EDNS that is spoken (RFC 6891).
const EDNS_VERSION: u8 = 0;

/// The part of a client's message that its answer has to repeat.
#[derive(Debug, Clone)]
pub struct Asked {
    metadata: Metadata,
    query: Option<Query>,
    /// DO of the client, if it speaks EDNS.
    edns: Option<bool>,
}

/// The kind of a client's message.
#[derive(Debug)]
pub enum Incoming {
    /// A question.
    Question(Asked, Query),
    /// To be answered at once with this code.
    Refuse(Asked, ResponseCode),
}

/// Reads a client's message.
///
/// # Errors
/// [`Failure::Malformed`] for what must not be answered: too short for a header, or itself an
/// answer.
pub fn read(packet: &[u8]) -> Result<Incoming, Failure> {
    let header = Header::read(&mut BinDecoder::new(packet)).map_err(|_| Failure::Malformed)?;
    let metadata = header.metadata;
    if metadata.message_type != MessageType::Query {
        return Err(Failure::Malformed);
    }
    let mut asked = Asked { metadata, query: None, edns: None };
    if metadata.op_code != OpCode::Query {
        return Ok(Incoming::Refuse(asked, ResponseCode::NotImp));
    }
    // Counted before decoding, because the decoder makes room for as many questions as the header
    // claims.
    if header.counts.queries != 1 {
        return Ok(Incoming::Refuse(asked, ResponseCode::FormErr));
    }
    let Ok(message) = Message::from_vec(packet) else {
        return Ok(Incoming::Refuse(asked, ResponseCode::FormErr));
    };
    let Some(query) = message.queries.into_iter().next() else {
        return Ok(Incoming::Refuse(asked, ResponseCode::FormErr));
    };
    asked.query = Some(query.clone());
    asked.edns = message.edns.as_ref().map(|edns| edns.flags().dnssec_ok);
    if message.edns.is_some_and(|edns| edns.version() != EDNS_VERSION) {
        return Ok(Incoming::Refuse(asked, ResponseCode::BADVERS));
    }
    if query.query_class() != DNSClass::IN || !is_asked(query.query_type()) {
        return Ok(Incoming::Refuse(asked, ResponseCode::NotImp));
    }
    Ok(Incoming::Question(asked, query))
}

impl Asked {
    /// Bits of [`wish`] that the client set.
    pub fn wishes(&self) -> u8 {
        let dnssec = if self.edns == Some(true) { wish::DNSSEC } else { 0 };
        let no_check = if self.metadata.checking_disabled { wish::NO_CHECK } else { 0 };
        dnssec | no_check
    }

    fn metadata(&self, code: ResponseCode, authentic: bool) -> Metadata {
        let mut metadata = Metadata::response_from_request(&self.metadata);
        metadata.recursion_available = true;
        metadata.response_code = code;
        // AD only for those who understand it (RFC 6840 section 5.7).
        metadata.authentic_data = authentic && (self.metadata.authentic_data || self.edns == Some(true));
        metadata
    }

    fn edns(&self) -> Option<Edns> {
        let dnssec = self.edns?;
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD_BYTES).set_version(EDNS_VERSION).set_dnssec_ok(dnssec);
        Some(edns)
    }

    /// Appends the message that carries `answer`.
    ///
    /// # Errors
    /// [`Failure::TooLarge`] where it does not fit a DNS message.
    pub fn answer(&self, aged: Aged<'_>, out: &mut Vec<u8>) -> Result<(), Failure> {
        let code = match aged.answer.verdict {
            Verdict::NoSuchName => ResponseCode::NXDomain,
            Verdict::Found | Verdict::NoData => ResponseCode::NoError,
        };
        let metadata = self.metadata(code, aged.answer.authentic);
        let older = |records: &[Record]| older(records, aged.age_s);
        let sections = (&aged.answer.answers, &aged.answer.authorities, &aged.answer.additionals);
        if aged.age_s == 0 {
            return self.emit(metadata, sections.0, sections.1, sections.2, out);
        }
        self.emit(metadata, &older(sections.0), &older(sections.1), &older(sections.2), out)
    }

    /// Appends a message that carries nothing but a code.
    ///
    /// # Errors
    /// [`Failure::TooLarge`] where the question does not fit, which can't be for one that was
    /// decoded.
    pub fn refuse(&self, code: ResponseCode, out: &mut Vec<u8>) -> Result<(), Failure> {
        self.emit(self.metadata(code, false), &[], &[], &[], out)
    }

    fn emit(
        &self,
        metadata: Metadata,
        answers: &[Record],
        authorities: &[Record],
        additionals: &[Record],
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let mut encoder = BinEncoder::new(out);
        emit_message_parts(
            &metadata,
            &mut self.query.iter(),
            &mut answers.iter(),
            &mut authorities.iter(),
            &mut additionals.iter(),
            self.edns().as_ref(),
            None,
            &mut encoder,
        )
        .map(drop)
        .map_err(|_| Failure::TooLarge)
    }
}

/// Copies of records whose TTLs have lost `age_s`.
fn older(records: &[Record], age_s: u32) -> Vec<Record> {
    records
        .iter()
        .cloned()
        .map(|mut record| {
            record.ttl = record.ttl.saturating_sub(age_s);
            record
        })
        .collect()
}

/// The code that tells a client of the DNS what a program reads as an errno.
pub const fn code(failure: Failure) -> ResponseCode {
    match failure {
        Failure::NoSuchName => ResponseCode::NXDomain,
        Failure::NoData => ResponseCode::NoError,
        Failure::Malformed | Failure::NameTooLong => ResponseCode::FormErr,
        Failure::Refused | Failure::NotAllowed => ResponseCode::Refused,
        Failure::Unsupported => ResponseCode::NotImp,
        _ => ResponseCode::ServFail,
    }
}

/// Appends the message that asks an upstream. One buffer is used again and again.
///
/// # Errors
/// [`Failure::Malformed`] where the encoder refuses the name, which can't be for one that was
/// parsed.
pub fn ask(
    question: &crate::answer::Question,
    id: u16,
    edns: bool,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let mut metadata = Metadata::new(id, MessageType::Query, OpCode::Query);
    metadata.recursion_desired = true;
    metadata.checking_disabled = question.wishes & wish::NO_CHECK != 0;
    let option = edns.then(|| {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_PAYLOAD_BYTES)
            .set_version(EDNS_VERSION)
            .set_dnssec_ok(question.wishes & wish::DNSSEC != 0);
        edns
    });
    let query = Query::query(question.name.clone(), question.record_type);
    let mut encoder = BinEncoder::new(out);
    let nothing = || std::iter::empty::<&Record>();
    emit_message_parts(
        &metadata,
        &mut std::iter::once(&query),
        &mut nothing(),
        &mut nothing(),
        &mut nothing(),
        option.as_ref(),
        None,
        &mut encoder,
    )
    .map(drop)
    .map_err(|_| Failure::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::{a, question as ask_for, response};
    use crate::answer::{self, Question, Reply};
    use hickory_proto::rr::RecordType;
    use proptest::prelude::*;

    fn client(text: &str, record_type: RecordType) -> Message {
        let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(ask_for(text, record_type).name, record_type));
        message
    }

    fn answered(client: &Message, age_s: u32) -> Message {
        let Ok(Incoming::Question(asked, query)) = read(&client.to_vec().unwrap()) else { panic!("refused") };
        let q =
            Question { name: query.name().clone(), record_type: query.query_type(), wishes: asked.wishes() };
        let mut upstream = response(&q, 9);
        upstream.add_answer(a("w.example", 60, 1));
        let Reply::Answer(answer) = answer::read(&upstream.to_vec().unwrap(), 9, &q, true) else {
            panic!("no")
        };
        let mut out = Vec::new();
        asked.answer(Aged { answer: &answer, age_s }, &mut out).unwrap();
        Message::from_vec(&out).unwrap()
    }

    #[test]
    fn an_answer_repeats_id_question_and_flags_and_ages() {
        let mut message = client("W.example", RecordType::A);
        message.metadata.checking_disabled = true;
        let answer = answered(&message, 20);
        assert_eq!(answer.metadata.id, 0x1234);
        assert!(answer.metadata.recursion_desired && answer.metadata.recursion_available);
        assert!(answer.metadata.checking_disabled);
        assert_eq!(crate::name::text(answer.queries[0].name()), "W.example.", "in the client's case");
        assert_eq!(answer.answers[0].ttl, 40);
        assert!(answer.edns.is_none(), "no EDNS for a client without");
    }

    #[test]
    fn edns_is_answered_with_edns() {
        let mut message = client("w.example", RecordType::A);
        let mut edns = Edns::new();
        edns.set_dnssec_ok(true);
        message.set_edns(edns.clone());
        let option = answered(&message, 0).edns.unwrap();
        assert!(option.flags().dnssec_ok);
        assert_eq!(option.max_payload(), UDP_PAYLOAD_BYTES);
        edns.set_version(1);
        message.set_edns(edns);
        let refused = read(&message.to_vec().unwrap());
        assert!(matches!(refused, Ok(Incoming::Refuse(_, ResponseCode::BADVERS))), "{refused:?}");
    }

    #[test]
    fn nonsense_is_refused_with_a_code_or_not_answered() {
        let good = client("w.example", RecordType::A).to_vec().unwrap();
        assert!(matches!(read(&good[..11]), Err(Failure::Malformed)));
        let mut answer = good.clone();
        answer[2] |= 0x80;
        assert!(matches!(read(&answer), Err(Failure::Malformed)), "never answer an answer");
        let refused = |packet: &[u8]| match read(packet) {
            Ok(Incoming::Refuse(asked, code)) => {
                let mut out = Vec::new();
                asked.refuse(code, &mut out).unwrap();
                let message = Message::from_vec(&out).unwrap();
                assert_eq!(message.metadata.id, 0x1234);
                message.metadata.response_code
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&good[..good.len() - 1]), ResponseCode::FormErr);
        let mut many = good.clone();
        many[4] = 0xff;
        assert_eq!(refused(&many), ResponseCode::FormErr);
        let mut update = good;
        update[2] |= 5 << 3;
        assert_eq!(refused(&update), ResponseCode::NotImp);
        assert_eq!(refused(&client("w.example", RecordType::ANY).to_vec().unwrap()), ResponseCode::NotImp);
    }

    #[test]
    fn the_upstream_is_asked_with_edns_and_the_clients_wishes() {
        let mut question = ask_for("w.example", RecordType::A);
        question.wishes = wish::DNSSEC | wish::NO_CHECK;
        let mut out = Vec::new();
        ask(&question, 77, true, &mut out).unwrap();
        let message = Message::from_vec(&out).unwrap();
        assert!(message.metadata.recursion_desired && message.metadata.checking_disabled);
        assert!(message.edns.unwrap().flags().dnssec_ok);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(packet in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Incoming::Refuse(asked, code)) = read(&packet) {
                let _ = asked.refuse(code, &mut Vec::new());
            }
        }

        #[test]
        fn no_flipped_bytes_panic(at in 0usize..80, byte: u8, cut in 0usize..80) {
            let mut message = client("www.tombolo.example", RecordType::A);
            message.set_edns(Edns::new());
            let mut packet = message.to_vec().unwrap();
            if let Some(place) = packet.get_mut(at) {
                *place = byte;
            }
            packet.truncate(packet.len() - cut.min(packet.len()));
            let _ = read(&packet);
        }
    }
}
