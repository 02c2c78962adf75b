//! The little that the stub has to know of a DNS message (RFC 1035 section 4.1, RFC 6891 section
//! 6.1): its header, where its question ends, and how long an answer may be. What it means is the
//! service's business.

/// Bytes of the header.
const HEADER_BYTES: usize = 12;
/// Longest answer over UDP to a client that says nothing of EDNS (RFC 1035 section 2.3.4).
const PLAIN_UDP_BYTES: usize = 512;
/// Longest answer over UDP to anybody: fits the loopback device many times over, and keeps a
/// datagram short.
const MAX_UDP_BYTES: usize = 4096;
/// Bytes of an OPT record without options: name, type, class, ttl, length.
const OPT_BYTES: usize = 11;
/// Type of the OPT record.
const TYPE_OPT: u16 = 41;

/// The bits of the second header word.
mod bits {
    pub const RESPONSE: u8 = 0x80;
    pub const OPCODE: u8 = 0x78;
    pub const TRUNCATED: u8 = 0x02;
    pub const RECURSION_DESIRED: u8 = 0x01;
    /// In the following byte.
    pub const RECURSION_AVAILABLE: u8 = 0x80;
}

/// Response codes that the stub gives itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    /// The query is no query.
    FormErr = 1,
    /// The service could not say.
    ServFail = 2,
    /// Something else than a query was asked for.
    NotImp = 4,
    /// The domain may not ask.
    Refused = 5,
}

/// A query that may be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Longest answer that the client takes over UDP, in bytes.
    pub udp_bytes: usize,
    /// Where the question ends.
    question_end: usize,
    /// Whether the client speaks EDNS.
    edns: bool,
}

/// The reaction to bytes that are no query to be passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// Nothing: it is an answer, or too short to be answered. Answering could go round for ever.
    Ignore,
    /// Say so.
    Answer(Code),
}

/// Looks at a query.
///
/// # Errors
/// [`Bad`].
pub fn check(query: &[u8]) -> Result<Query, Bad> {
    let Some(header) = query.first_chunk::<HEADER_BYTES>() else { return Err(Bad::Ignore) };
    if header[2] & bits::RESPONSE != 0 {
        return Err(Bad::Ignore);
    }
    if header[2] & bits::OPCODE != 0 {
        return Err(Bad::Answer(Code::NotImp));
    }
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if (count(4), count(6), count(8)) != (1, 0, 0) {
        return Err(Bad::Answer(Code::FormErr));
    }
    let question_end = question_end(query).ok_or(Bad::Answer(Code::FormErr))?;
    let edns = edns_bytes(query, question_end, count(10));
    let udp_bytes = edns.unwrap_or(0).clamp(PLAIN_UDP_BYTES, MAX_UDP_BYTES);
    Ok(Query { udp_bytes, question_end, edns: edns.is_some() })
}

/// Where the one question ends: behind labels up to the root, a type and a class. No pointers:
/// there is nothing before the question that one could point to.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut at = HEADER_BYTES;
    loop {
        match *message.get(at)? {
            0 => break,
            length @ 1..=63 => at += 1 + usize::from(length),
            _ => return None,
        }
    }
    let end = at + 1 + 4;
    (end <= message.len() && at - HEADER_BYTES < 255).then_some(end)
}

/// The payload size of the OPT record, where the client has put it: first of the additional
/// records. Whoever puts it elsewhere gets answers that fit everybody.
fn edns_bytes(query: &[u8], question_end: usize, additional: u16) -> Option<usize> {
    let record = query.get(question_end..question_end + OPT_BYTES).filter(|_| additional > 0)?;
    let is_opt = record[0] == 0 && u16::from_be_bytes([record[1], record[2]]) == TYPE_OPT;
    is_opt.then(|| usize::from(u16::from_be_bytes([record[3], record[4]])))
}

/// An answer that says only `code`.
pub fn failure(query: &[u8], code: Code) -> Vec<u8> {
    let checked = check(query).ok();
    let mut answer = head(query, checked.as_ref());
    if let Some(flags) = answer.get_mut(3) {
        *flags |= code as u8;
    }
    answer
}

/// The service's answer as the client may have it: under the client's number, and cut to `most`
/// bytes with the truncation bit set, where it is longer. `None`: it is no answer.
pub fn fit(query: &[u8], checked: &Query, answer: &[u8], most: usize) -> Option<Vec<u8>> {
    let flags = answer.get(2).filter(|_| answer.len() >= HEADER_BYTES)?;
    if flags & bits::RESPONSE == 0 {
        return None;
    }
    if answer.len() > most {
        let mut cut = head(query, Some(checked));
        cut[2] |= bits::TRUNCATED;
        cut[3] |= answer[3] & 0x0f;
        return Some(cut);
    }
    let mut answer = answer.to_vec();
    answer[..2].copy_from_slice(&query[..2]);
    Some(answer)
}

/// Header, question and, for who speaks it, EDNS: an answer without records.
fn head(query: &[u8], checked: Option<&Query>) -> Vec<u8> {
    let question =
        checked.and_then(|checked| query.get(HEADER_BYTES..checked.question_end)).unwrap_or_default();
    let edns = checked.is_some_and(|checked| checked.edns);
    let mut answer = Vec::with_capacity(HEADER_BYTES + question.len() + OPT_BYTES);
    answer.extend_from_slice(query.get(..2).unwrap_or(&[0; 2]));
    let asked = query.get(2).copied().unwrap_or_default();
    answer.push(bits::RESPONSE | asked & (bits::OPCODE | bits::RECURSION_DESIRED));
    answer.push(bits::RECURSION_AVAILABLE);
    answer.extend_from_slice(&[0, u8::from(!question.is_empty()), 0, 0, 0, 0, 0, u8::from(edns)]);
    answer.extend_from_slice(question);
    if edns {
        let [high, low] = (MAX_UDP_BYTES as u16).to_be_bytes();
        answer.extend_from_slice(&[0, 0, TYPE_OPT as u8, high, low, 0, 0, 0, 0, 0, 0]);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn query(edns: Option<u16>) -> Vec<u8> {
        let mut bytes = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(edns.is_some())];
        bytes.extend_from_slice(b"\x04host\x07example\0\0\x01\0\x01");
        if let Some(size) = edns {
            bytes.extend_from_slice(&[0, 0, 41]);
            bytes.extend_from_slice(&size.to_be_bytes());
            bytes.extend_from_slice(&[0; 6]);
        }
        bytes
    }

    #[test]
    fn the_clients_size_is_found() {
        for (edns, bytes) in [(None, 512), (Some(100), 512), (Some(1232), 1232), (Some(65535), 4096)] {
            assert_eq!(check(&query(edns)).expect("a query").udp_bytes, bytes);
        }
    }

    #[test]
    fn what_is_no_query_is_refused_or_ignored() {
        assert_eq!(check(b""), Err(Bad::Ignore));
        assert_eq!(check(&query(None)[..11]), Err(Bad::Ignore));
        let with = |at: usize, byte: u8| {
            let mut bytes = query(None);
            bytes[at] = byte;
            check(&bytes)
        };
        assert_eq!(with(2, 0x81), Err(Bad::Ignore), "an answer");
        assert_eq!(with(2, 0x29), Err(Bad::Answer(Code::NotImp)), "an update");
        assert_eq!(with(5, 2), Err(Bad::Answer(Code::FormErr)), "two questions");
        assert_eq!(with(7, 1), Err(Bad::Answer(Code::FormErr)), "answers in a query");
        assert_eq!(with(12, 0xc0), Err(Bad::Answer(Code::FormErr)), "a pointer");
        assert_eq!(with(12, 60), Err(Bad::Answer(Code::FormErr)), "a label beyond the end");
    }

    #[test]
    fn failures_carry_number_question_and_edns_back() {
        let asked = query(Some(1232));
        let answer = failure(&asked, Code::ServFail);
        assert_eq!(&answer[..4], &[0xab, 0xcd, 0x81, 0x82]);
        assert_eq!(answer[12..29], asked[12..29]);
        assert_eq!((answer[5], answer[11], answer.len()), (1, 1, asked.len()));
        assert_eq!(failure(&[1, 2, 0x28, 0, 0, 9, 0, 0, 0, 0, 0, 0], Code::NotImp).len(), 12);
    }

    #[test]
    fn long_answers_are_cut_and_say_so() {
        let asked = query(None);
        let checked = check(&asked).expect("a query");
        let mut answer = failure(&asked, Code::ServFail);
        answer[0] = 0;
        let fitted = fit(&asked, &checked, &answer, 512).expect("an answer");
        assert_eq!(&fitted[..2], &asked[..2], "the client's number");
        answer.resize(600, 0);
        let cut = fit(&asked, &checked, &answer, 512).expect("an answer");
        assert_eq!((cut.len(), cut[2] & 2, cut[3] & 15), (asked.len(), 2, 2));
        assert_eq!(fit(&asked, &checked, &asked, 512), None, "a query is no answer");
        assert_eq!(fit(&asked, &checked, b"", 512), None);
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..100), answer in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(checked) = check(&bytes) {
                let _fitted = fit(&bytes, &checked, &answer, 50);
            }
            prop_assert!(failure(&bytes, Code::FormErr).len() >= 12);
        }
    }
}
