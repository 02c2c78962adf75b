//! Names: from text to labels, from labels to text, and the key under which an answer is
//! remembered.

use crate::failure::Failure;
use hickory_proto::rr::domain::Label;
use hickory_proto::rr::{Name, RecordType};
use wire::directory::MAX_NAME_BYTES;

/// Longest label, in bytes (RFC 1035 section 2.3.4).
const MAX_LABEL_BYTES: usize = 63;
/// Longest text of a name that is looked at: each byte may be written as `\DDD`, each letter may be
/// a U-label's of four bytes.
pub const MAX_NAME_TEXT_BYTES: usize = 4 * (MAX_NAME_BYTES + 1);

/// Reads a name as a person writes it: labels between dots; `\.` and `\DDD` (decimal) as in RFC
/// 1035 section 5.1; a label with letters beyond ASCII becomes its A-label (UTS 46). A final dot
/// makes it fully qualified.
///
/// # Errors
/// [`Failure::NameTooLong`], and [`Failure::Malformed`] for empty labels, control characters, white
/// space, broken escapes and labels that IDNA refuses.
pub fn parse(text: &str) -> Result<Name, Failure> {
    if text.len() > MAX_NAME_TEXT_BYTES {
        return Err(Failure::NameTooLong);
    }
    if text == "." {
        return Ok(Name::root());
    }
    let mut name = Name::new();
    let mut label = Vec::with_capacity(text.len().min(MAX_LABEL_BYTES));
    let mut international = false;
    let mut closed = false;
    let mut rest = text.chars();
    while let Some(letter) = rest.next() {
        closed = false;
        match letter {
            // The dots that IDNA takes for a full stop (UTS 46 section 2.3).
            '.' | '\u{3002}' | '\u{ff0e}' | '\u{ff61}' => {
                name = append(name, &label, international)?;
                label.clear();
                international = false;
                closed = true;
            }
            '\\' => label.push(escaped(&mut rest)?),
            '!'..='~' => label.push(letter as u8),
            _ if letter.is_ascii() || letter.is_control() || letter.is_whitespace() => {
                return Err(Failure::Malformed);
            }
            _ => {
                international = true;
                label.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
    if !closed {
        name = append(name, &label, international)?;
    }
    name.set_fqdn(closed);
    Ok(name)
}

/// Appends one label; `international` says that it holds letters beyond ASCII.
fn append(name: Name, label: &[u8], international: bool) -> Result<Name, Failure> {
    if label.is_empty() {
        return Err(Failure::Malformed);
    }
    if !international {
        return name.append_label(label).map_err(|_| Failure::NameTooLong);
    }
    let text = std::str::from_utf8(label).map_err(|_| Failure::Malformed)?;
    let ascii = Label::from_utf8(text).map_err(|_| Failure::Malformed)?;
    if ascii.as_bytes().contains(&b'.') {
        return Err(Failure::Malformed);
    }
    name.append_label(ascii).map_err(|_| Failure::NameTooLong)
}

/// The character that a backslash stands before: three decimal digits, or any other printable
/// character of ASCII.
fn escaped(rest: &mut std::str::Chars<'_>) -> Result<u8, Failure> {
    let first = rest.next().ok_or(Failure::Malformed)?;
    let Some(hundreds) = first.to_digit(10) else {
        return if first.is_ascii_graphic() || first == ' ' {
            Ok(first as u8)
        } else {
            Err(Failure::Malformed)
        };
    };
    let mut digit = || rest.next().and_then(|c| c.to_digit(10)).ok_or(Failure::Malformed);
    u8::try_from(hundreds * 100 + digit()? * 10 + digit()?).map_err(|_| Failure::Malformed)
}

/// Whether a name is made of what host names are made of (letters, digits, `-`, `_`): then its text
/// needs no escapes.
pub fn is_plain(name: &Name) -> bool {
    name.iter().all(|label| label.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')))
}

/// Appends the text of a name: A-labels, a final dot, `\` before a character with a meaning in zone
/// files, `\DDD` for what does not print. Neither white space nor a control character ever comes
/// out.
pub fn write(name: &Name, out: &mut Vec<u8>) {
    if name.iter().len() == 0 {
        out.push(b'.');
        return;
    }
    for label in name {
        for &byte in label {
            write_byte(byte, matches!(byte, b'.' | b'\\' | b'"' | b';' | b'(' | b')' | b'@' | b'$'), out);
        }
        out.push(b'.');
    }
}

/// Appends one byte: as it is, behind a backslash, or as `\DDD`.
pub fn write_byte(byte: u8, escape: bool, out: &mut Vec<u8>) {
    match byte {
        b'!'..=b'~' => {
            if escape {
                out.push(b'\\');
            }
            out.push(byte);
        }
        _ => {
            let digits = [b'0' + byte / 100, b'0' + byte / 10 % 10, b'0' + byte % 10];
            out.push(b'\\');
            out.extend_from_slice(&digits);
        }
    }
}

/// Text of a name, as [`write`] makes it.
pub fn text(name: &Name) -> String {
    let mut out = Vec::with_capacity(64);
    write(name, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// Whether two names are the same to the DNS: case does not count, nor whether the final dot was
/// written.
pub fn same(a: &Name, b: &Name) -> bool {
    a.eq_ignore_root(b)
}

/// Bits of a question's key beside name and type: what changes the upstream's answer.
pub mod wish {
    /// DO: signatures are wanted (RFC 3225).
    pub const DNSSEC: u8 = 1;
    /// CD: the upstream shall not check signatures (RFC 4035 section 3.2.2).
    pub const NO_CHECK: u8 = 2;
}

/// Longest key: the longest name on the wire, type, wishes.
const MAX_KEY_BYTES: usize = 255 + 3;

/// The question as bytes to look up by: the labels in lower case, the type, the wishes. On the
/// stack, because each request needs one.
#[derive(Debug, Clone)]
pub struct Key {
    bytes: [u8; MAX_KEY_BYTES],
    length: usize,
}

impl Key {
    /// The key of a question.
    pub fn new(name: &Name, record_type: RecordType, wishes: u8) -> Self {
        let mut key = Self { bytes: [0; MAX_KEY_BYTES], length: 0 };
        for label in name {
            key.push(label.len() as u8);
            for byte in label {
                key.push(byte.to_ascii_lowercase());
            }
        }
        let [high, low] = u16::from(record_type).to_be_bytes();
        key.push(high);
        key.push(low);
        key.push(wishes);
        key
    }

    /// Names are at most 254 bytes here, so the bound is never met; if it were, keys would not grow
    /// past it.
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &str) -> Result<String, Failure> {
        parse(input).map(|name| text(&name))
    }

    #[test]
    fn names_are_read_as_people_write_them() {
        assert_eq!(read("Host.Example").as_deref(), Ok("Host.Example."));
        assert_eq!(read("_x._tcp.example.").as_deref(), Ok("_x._tcp.example."));
        assert_eq!(read(".").as_deref(), Ok("."));
        assert_eq!(read(r"My\032Printer._ipp.local").as_deref(), Ok(r"My\032Printer._ipp.local."));
        assert_eq!(read(r"a\.b.example").as_deref(), Ok(r"a\.b.example."));
        assert!(!parse("a.example").unwrap().is_fqdn());
        assert!(parse("a.example.").unwrap().is_fqdn());
    }

    #[test]
    fn letters_beyond_ascii_become_a_labels() {
        assert_eq!(read("bücher.example").as_deref(), Ok("xn--bcher-kva.example."));
        assert_eq!(read("BÜCHER。example").as_deref(), Ok("xn--bcher-kva.example."));
        assert_eq!(read("\u{ad}.example"), Err(Failure::Malformed), "nothing is left of a soft hyphen");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in ["", "a..b", ".a", "a b", "a\tb", "a\0b", r"a\", r"a\25", r"a\999", r"a\1x1", "a\u{2028}b"]
        {
            assert_eq!(read(bad), Err(Failure::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn lengths_are_bounded_at_the_byte() {
        assert!(read(&"a".repeat(63)).is_ok());
        assert_eq!(read(&"a".repeat(64)), Err(Failure::NameTooLong));
        let label = format!("{}.", "a".repeat(49));
        let longest = format!("{}abc", label.repeat(5));
        assert_eq!(longest.len(), MAX_NAME_BYTES);
        assert!(read(&longest).is_ok());
        assert_eq!(read(&format!("{longest}d")), Err(Failure::NameTooLong));
        assert_eq!(read(&"a.".repeat(100_000)), Err(Failure::NameTooLong));
    }

    #[test]
    fn keys_ignore_case_and_tell_types_and_wishes_apart() {
        let key = |n: &str, t, w| Key::new(&parse(n).unwrap(), t, w).bytes().to_vec();
        assert_eq!(key("A.example", RecordType::A, 0), key("a.EXAMPLE.", RecordType::A, 0));
        assert_ne!(key("a.example", RecordType::A, 0), key("a.example", RecordType::AAAA, 0));
        assert_ne!(key("a.example", RecordType::A, 0), key("a.example", RecordType::A, wish::DNSSEC));
        assert_ne!(key("ab.c", RecordType::A, 0), key("a.bc", RecordType::A, 0));
    }
}
