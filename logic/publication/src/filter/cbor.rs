//! The fields of an event in CBOR (RFC 8949), read for filters. Only what is wanted is kept; the
//! rest is passed by, in time that goes with the event's bytes.

use super::scan::Value;
use std::borrow::Cow;

/// Items within each other: what people write has five. Each is a call here.
const NESTING_MAX: usize = 64;

mod major {
    pub const UNSIGNED: u8 = 0;
    pub const NEGATIVE: u8 = 1;
    pub const BYTES: u8 = 2;
    pub const TEXT: u8 = 3;
    pub const ARRAY: u8 = 4;
    pub const MAP: u8 = 5;
    pub const TAG: u8 = 6;
}

/// The byte that ends an item whose length was not said.
const BREAK: u8 = 0xff;

/// The first bytes of an item. `argument` is `None` where the length is not said.
#[derive(Clone, Copy)]
struct Head {
    major: u8,
    info: u8,
    argument: Option<u64>,
}

/// Fields that were found, by their paths.
pub(super) type Found<'e> = Vec<(&'e [String], Value<'e>)>;

/// Reads those fields of a map that these paths name; `None`, if the event is no map, or is not
/// well-formed, or goes on behind it.
pub(super) fn read<'e>(event: &'e [u8], wanted: &[&'e [String]]) -> Option<Found<'e>> {
    let mut reader = Reader { event, at: 0 };
    let mut found = Vec::new();
    let (head, nesting) = reader.untagged(0)?;
    if head.major != major::MAP {
        return None;
    }
    reader.map(head, wanted, (0, nesting), &mut found)?;
    (reader.at == event.len()).then_some(found)
}

struct Reader<'e> {
    event: &'e [u8],
    at: usize,
}

impl<'e> Reader<'e> {
    fn take(&mut self, length: u64) -> Option<&'e [u8]> {
        let end = self.at.checked_add(usize::try_from(length).ok()?)?;
        let taken = self.event.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn head(&mut self) -> Option<Head> {
        let first = *self.take(1)?.first()?;
        let (major, info) = (first >> 5, first & 31);
        let length = match info {
            0..=23 => return Some(Head { major, info, argument: Some(u64::from(info)) }),
            24..=27 => 1_u64 << (info - 24),
            31 => return Some(Head { major, info, argument: None }),
            _ => return None,
        };
        let argument = self.take(length)?.iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
        Some(Head { major, info, argument: Some(argument) })
    }

    /// The head of the next item behind its tags, and how deep it is.
    fn untagged(&mut self, mut nesting: usize) -> Option<(Head, usize)> {
        loop {
            let head = self.head()?;
            if head.major != major::TAG {
                return Some((head, nesting));
            }
            head.argument?;
            nesting += 1;
            if nesting > NESTING_MAX {
                return None;
            }
        }
    }

    /// Whether a list or a map is over of which `done` items were read.
    fn is_over(&mut self, of: Option<u64>, done: u64) -> Option<bool> {
        match of {
            Some(count) => Some(done >= count),
            None if *self.event.get(self.at)? == BREAK => {
                self.at += 1;
                Some(true)
            }
            None => Some(false),
        }
    }

    fn skip(&mut self, nesting: usize) -> Option<()> {
        let (head, nesting) = self.untagged(nesting)?;
        self.value(head, nesting).map(drop)
    }

    /// The value behind a head that is no tag's. Lists and maps are passed by.
    fn value(&mut self, head: Head, nesting: usize) -> Option<Value<'e>> {
        if nesting > NESTING_MAX {
            return None;
        }
        match head.major {
            major::UNSIGNED => Some(Value::Number(number(head.argument?))),
            major::NEGATIVE => Some(Value::Number(-1.0 - number(head.argument?))),
            major::BYTES => {
                self.string(head)?;
                Some(Value::Other)
            }
            major::TEXT => self.text(head).map(Value::Text),
            major::ARRAY | major::MAP => {
                let each = u64::from(head.major - major::ARRAY) + 1;
                let mut done = 0;
                while !self.is_over(head.argument, done)? {
                    for _ in 0..each {
                        self.skip(nesting + 1)?;
                    }
                    done += 1;
                }
                Some(Value::Other)
            }
            _ => simple(head),
        }
    }

    fn text(&mut self, head: Head) -> Option<Cow<'e, str>> {
        match self.string(head)? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
        }
    }

    /// The bytes of a string: in one piece, or in pieces of the same kind.
    fn string(&mut self, head: Head) -> Option<Cow<'e, [u8]>> {
        if let Some(length) = head.argument {
            return self.take(length).map(Cow::Borrowed);
        }
        let mut whole = Vec::new();
        while !self.is_over(None, 0)? {
            let piece = self.head().filter(|piece| piece.major == head.major)?;
            whole.extend_from_slice(self.take(piece.argument?)?);
        }
        Some(Cow::Owned(whole))
    }

    /// The map behind its head, to which so many steps of these paths have led.
    fn map(
        &mut self,
        head: Head,
        wanted: &[&'e [String]],
        (steps, nesting): (usize, usize),
        found: &mut Found<'e>,
    ) -> Option<()> {
        if nesting > NESTING_MAX {
            return None;
        }
        let (mut below, mut done) = (Vec::new(), 0);
        while !self.is_over(head.argument, done)? {
            done += 1;
            let (key, deep) = self.untagged(nesting + 1)?;
            below.clear();
            if key.major == major::TEXT {
                let name = self.text(key)?;
                below.extend(wanted.iter().filter(|path| path.get(steps).is_some_and(|it| *it == name)));
            } else {
                self.value(key, deep)?;
            }
            let (item, deep) = self.untagged(nesting + 1)?;
            let here = below.iter().copied().find(|path: &&[String]| path.len() == steps + 1);
            let value = if item.major == major::MAP && !below.is_empty() {
                self.map(item, &below, (steps + 1, deep), found)?;
                Value::Other
            } else {
                self.value(item, deep)?
            };
            found.extend(here.map(|path| (path, value)));
        }
        Some(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers are compared as those of JSON: as f64")]
fn number(argument: u64) -> f64 {
    argument as f64
}

/// A value of major type 7. What has no meaning is a value that is equal to none.
fn simple(head: Head) -> Option<Value<'static>> {
    let bits = head.argument?;
    Some(match head.info {
        20 => Value::Bool(false),
        21 => Value::Bool(true),
        22 | 23 => Value::Null,
        // Two bytes for what one has room for are not well-formed.
        24 if bits < 32 => return None,
        25 => Value::Number(half(u16::try_from(bits).ok()?)),
        26 => Value::Number(f64::from(f32::from_bits(u32::try_from(bits).ok()?))),
        27 => Value::Number(f64::from_bits(bits)),
        _ => Value::Other,
    })
}

/// A number of 16 bits, as in appendix D of the RFC.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 0 { size } else { -size }
}

#[cfg(test)]
mod tests {
    use super::super::{Filter, Format};
    use proptest::prelude::*;

    fn passes(text: &str, event: &[u8]) -> bool {
        Filter::parse(text).unwrap().passes_event(&Format::Cbor, event)
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// Values of appendix A of RFC 8949, each as the field `a`.
    #[test]
    fn values_of_the_rfc_are_what_it_says() {
        for (hex, text) in [
            ("00", "a == 0"),
            ("1818", "a == 24"),
            ("1903e8", "a == 1000"),
            ("1b000000e8d4a51000", "a == 1000000000000"),
            ("20", "a == -1"),
            ("3903e7", "a == -1000"),
            ("f90000", "a == 0"),
            ("f93c00", "a == 1"),
            ("f93e00", "a == 1.5"),
            ("f97bff", "a == 65504"),
            ("f90001", "a > 5.9e-8 && a < 6e-8"),
            ("f9c400", "a == -4"),
            ("fa47c35000", "a == 100000"),
            ("fb3ff199999999999a", "a == 1.1"),
            ("f97e00", "has(a) && !(a == a)"),
            ("f97c00", "a > 1e300"),
            ("f4", "has(a) && !a && a == false"),
            ("f5", "a"),
            ("f6", "a == null"),
            ("f7", "a == null"),
            ("60", "a == \"\""),
            ("6449455446", "a == \"IETF\""),
            ("62c3bc", "a == \"\u{fc}\""),
            ("7f657374726561646d696e67ff", "a == \"streaming\""),
            ("c074323031332d30332d32315432303a30343a30305a", "a == \"2013-03-21T20:04:00Z\""),
            ("c11a514b67b0", "a == 1363896240"),
            ("4401020304", "has(a) && a != 1"),
            ("5f42010243030405ff", "has(a)"),
            ("83010203", "has(a) && a != 1"),
            ("9f018202039f0405ffff", "has(a)"),
            ("a161620a", "a.b == 10 && has(a)"),
            ("bf61620aff", "a.b == 10"),
            ("f0", "has(a) && a != 16"),
            ("f8ff", "has(a)"),
        ] {
            let event = [bytes("a16161"), bytes(hex)].concat();
            assert!(passes(text, &event), "{hex}: {text}");
            assert!(passes(text, &[bytes("bf6161"), bytes(hex), bytes("ff")].concat()), "{hex}: {text}");
        }
        // {"b": [1, {"a": 2}], 7: 1, "a": {"c": 1, "b": 3}, "a": {"b": 4}}
        let event = bytes("a461628201a1616102");
        assert!(passes("!has(b)", &event), "it ends too early");
        let event = bytes("a461628201a161610207016161a26163016162036161a1616204");
        assert!(passes("a.b == 4 && a.c == 1 && has(b)", &event), "the last of two of one name counts");
    }

    #[test]
    fn what_is_not_well_formed_has_no_fields() {
        for hex in [
            "",
            "a1",
            "a16161",
            "a1616118",
            "a1616100ff",
            "a16161ff",
            "bf6161ff",
            "bf616100",
            "a1616162",
            "a16161621f",
            "a161616280ff",
            "a161611c",
            "a161613f",
            "a16161df00",
            "a16161f800",
            "a161615f6100ff",
            "a161617f6001ff",
            "00",
            "8100",
            "6161",
            "a17f6161",
            "a161611fff",
            "a16161bbffffffffffffffff",
            "a161619bffffffffffffffff00",
            "a161617bffffffffffffffff",
        ] {
            assert!(passes("!has(a)", &bytes(hex)), "{hex}");
        }
    }

    #[test]
    fn bombs_are_read_within_bounds() {
        for byte in [0x81_u8, 0xa1, 0x9f, 0xbf, 0xc1, 0xd8, 0xff, 0x7f] {
            let event = [bytes("a26161016162"), vec![byte; 60_000]].concat();
            assert!(passes("!has(a)", &event), "{byte:x}");
        }
        let deep = [b"\xa1\x61a".repeat(20_000), b"\x01".to_vec()].concat();
        assert!(passes("!has(a) && !has(a.a)", &deep));
        let tags = |count: usize| [bytes("a16161"), vec![0xc1; count], vec![1]].concat();
        assert!(passes("a == 1", &tags(60)) && passes("!has(a)", &tags(100)));
    }

    proptest! {
        #[test]
        fn no_event_breaks_it(event in prop::collection::vec(any::<u8>(), 0..120)) {
            let _passes = passes("a.b > 1 || has(c) && !d", &event);
        }

        #[test]
        fn it_agrees_with_json(a in any::<i32>(), b in "[a-c]{0,3}", c in any::<bool>()) {
            let mut event = vec![0xa3, 0x61, b'a', if a < 0 { 0x3a } else { 0x1a }];
            let size = if a < 0 { -1 - i64::from(a) } else { i64::from(a) };
            event.extend_from_slice(&u32::try_from(size).unwrap().to_be_bytes());
            event.extend_from_slice(&[0x61, b'b', 0x60 + u8::try_from(b.len()).unwrap()]);
            event.extend_from_slice(b.as_bytes());
            event.extend_from_slice(&[0x61, b'c', 0xf4 + u8::from(c)]);
            let json = serde_json::json!({ "a": a, "b": b, "c": c }).to_string();
            for text in ["a > 0", "b == \"ab\" || c", "a < -5 && b != \"\"", "b in [\"a\", \"b\"]"] {
                let filter = Filter::parse(text).unwrap();
                prop_assert_eq!(filter.passes_event(&Format::Cbor, &event), filter.passes_bytes(json.as_bytes()));
            }
        }
    }
}
