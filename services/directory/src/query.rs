//! The question of a line written to `query`.

use crate::failure::Failure;
use crate::name;
use hickory_proto::rr::{Name, RecordType};
use std::net::IpAddr;
use std::str::FromStr;

/// Longest line that is looked at, in bytes: the longest text of a name, its type, and room for a
/// search list in a control line.
pub const MAX_LINE_BYTES: usize = 4096;
/// The word that makes a line on `query` a control line.
const CONTROL_WORD: &str = "ctl";

/// A line on `query`.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A question.
    Ask(Ask),
    /// A control line, without its first word.
    Control(&'a str),
}

/// A question in the words of the caller: the search list is still to be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The name.
    pub name: Name,
    /// The types, asked at the same time.
    pub types: Types,
}

/// One or two types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    first: RecordType,
    second: Option<RecordType>,
}

impl Types {
    /// A and AAAA: what a program that wants to reach a host asks for.
    pub const ADDRESSES: Self = Self { first: RecordType::A, second: Some(RecordType::AAAA) };

    /// One type.
    pub const fn one(record_type: RecordType) -> Self {
        Self { first: record_type, second: None }
    }

    /// Each of them, in the order of the answer.
    pub fn iter(self) -> impl Iterator<Item = RecordType> {
        std::iter::once(self.first).chain(self.second)
    }
}

/// Reads a line: `NAME`, `TYPE NAME`, `ADDRESS`, `PTR ADDRESS`, `ctl ...`. White space around it
/// does not count.
///
/// # Errors
/// [`Failure::Malformed`] for anything else, [`Failure::Unsupported`] for types that are never
/// asked, [`Failure::NameTooLong`].
pub fn parse(payload: &[u8]) -> Result<Line<'_>, Failure> {
    if payload.len() > MAX_LINE_BYTES {
        return Err(Failure::NameTooLong);
    }
    let line = std::str::from_utf8(payload).map_err(|_| Failure::Malformed)?.trim_ascii();
    let Some((first, rest)) = line.split_once(|c: char| c.is_ascii_whitespace()) else {
        return bare(line).map(Line::Ask);
    };
    let rest = rest.trim_ascii();
    if first == CONTROL_WORD {
        return Ok(Line::Control(rest));
    }
    let record_type = record_type(first)?;
    let name = match IpAddr::from_str(rest) {
        Ok(address) if record_type == RecordType::PTR => reverse(address),
        _ => name::parse(rest)?,
    };
    Ok(Line::Ask(Ask { name, types: Types::one(record_type) }))
}

/// One word: a name wants its addresses, an address its names.
fn bare(word: &str) -> Result<Ask, Failure> {
    match IpAddr::from_str(word) {
        Ok(address) => Ok(Ask { name: reverse(address), types: Types::one(RecordType::PTR) }),
        Err(_) => Ok(Ask { name: name::parse(word)?, types: Types::ADDRESSES }),
    }
}

/// The name below `in-addr.arpa` or `ip6.arpa` that stands for an address.
pub fn reverse(address: IpAddr) -> Name {
    let mut name = Name::from(address);
    name.set_fqdn(true);
    name
}

/// The type that a word names, in any case: a mnemonic or `TYPE` and a number (RFC 3597).
///
/// # Errors
/// [`Failure::Malformed`] for a word that names none, [`Failure::Unsupported`] for types that are
/// never asked.
pub fn record_type(word: &str) -> Result<RecordType, Failure> {
    let upper = word.to_ascii_uppercase();
    let found = match (upper.as_str(), upper.strip_prefix("TYPE")) {
        ("IXFR", _) => RecordType::IXFR,
        ("OPT", _) => RecordType::OPT,
        (_, Some(number)) => RecordType::from(number.parse::<u16>().map_err(|_| Failure::Malformed)?),
        (mnemonic, None) => RecordType::from_str(mnemonic).map_err(|_| Failure::Malformed)?,
    };
    if is_asked(found) { Ok(found) } else { Err(Failure::Unsupported) }
}

/// Whether a type is ever asked upstream: not ANY (RFC 8482), transfers, or what exists only inside
/// messages (the meta and query types 128 to 255 of RFC 6895, and OPT).
pub fn is_asked(record_type: RecordType) -> bool {
    let code = u16::from(record_type);
    code != 0 && code != 41 && !(128..=255).contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &str) -> (String, Vec<RecordType>) {
        match parse(line.as_bytes()).unwrap() {
            Line::Ask(ask) => (name::text(&ask.name), ask.types.iter().collect()),
            Line::Control(words) => panic!("{line} is a control line: {words}"),
        }
    }

    #[test]
    fn a_name_wants_its_addresses() {
        let both = vec![RecordType::A, RecordType::AAAA];
        assert_eq!(ask("example.org\n"), ("example.org.".into(), both.clone()));
        assert_eq!(ask("  a \r\n"), ("a.".into(), both));
    }

    #[test]
    fn a_type_comes_first_in_any_case() {
        assert_eq!(ask("aaaa example.org"), ("example.org.".into(), vec![RecordType::AAAA]));
        assert_eq!(ask("SRV  _x._tcp.example"), ("_x._tcp.example.".into(), vec![RecordType::SRV]));
        assert_eq!(ask("type65 a.example"), ("a.example.".into(), vec![RecordType::HTTPS]));
        assert_eq!(ask("TYPE1234 a.example"), ("a.example.".into(), vec![RecordType::Unknown(1234)]));
    }

    #[test]
    fn an_address_wants_its_names() {
        let expected = ("1.2.0.192.in-addr.arpa.".to_string(), vec![RecordType::PTR]);
        assert_eq!(ask("PTR 192.0.2.1"), expected);
        assert_eq!(ask("192.0.2.1"), expected);
        assert_eq!(ask("ptr 1.2.0.192.in-addr.arpa"), expected);
        assert!(ask("::1").0.ends_with("0.0.0.0.ip6.arpa."));
    }

    #[test]
    fn control_lines_are_told_from_names() {
        assert_eq!(parse(b"ctl  timeout 5ms \n"), Ok(Line::Control("timeout 5ms")));
        assert_eq!(ask("ctl").0, "ctl.");
        assert_eq!(ask("A ctl").0, "ctl.");
    }

    #[test]
    fn the_rest_is_refused_by_kind() {
        for (line, failure) in [
            (&b""[..], Failure::Malformed),
            (b"\n", Failure::Malformed),
            (b"BOGUS a.example", Failure::Malformed),
            (b"A a.example b.example", Failure::Malformed),
            (b"\xff\xfe", Failure::Malformed),
            (b"a\0b", Failure::Malformed),
            (b"TYPE99999 a.example", Failure::Malformed),
            (b"ANY a.example", Failure::Unsupported),
            (b"* a.example", Failure::Unsupported),
            (b"AXFR a.example", Failure::Unsupported),
            (b"IXFR a.example", Failure::Unsupported),
            (b"opt a.example", Failure::Unsupported),
            (b"TYPE0 a.example", Failure::Unsupported),
            (&[b'a'; 5000], Failure::NameTooLong),
        ] {
            assert_eq!(parse(line), Err(failure), "{:?}", String::from_utf8_lossy(line));
        }
    }
}
