//! How the bytes of a channel's events are read: as JSON, as CBOR, or by a declared layout.
//!
//! ```text
//! format = "json" / "cbor" / "layout" 1*( field )
//! field  = path ":" type "@" offset
//! type   = ( "u8" / "i8" / "u16" / ... / "f64" ) [ "be" ] / "bool" / "text[" bytes "]"
//! ```

use super::Filter;
use super::scan::Value;
use std::fmt;
use thiserror::Error;
use wire::events::{EVENT_BYTES_MAX, FORMAT_BYTES_MAX, LAYOUT_FIELDS_MAX};

/// Why a text is no format, or a filter does not fit one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FormatError {
    /// None of the three.
    #[error("a format is `json`, `cbor`, or `layout` and its fields")]
    Unknown,
    /// Longer than [`FORMAT_BYTES_MAX`].
    #[error("a format has {FORMAT_BYTES_MAX} bytes at the most; this one has {0}")]
    Long(usize),
    /// None, or more than [`LAYOUT_FIELDS_MAX`].
    #[error("a layout has 1 to {LAYOUT_FIELDS_MAX} fields")]
    Fields,
    /// A field is not of the form that it has to be.
    #[error("`{0}` is no field: one is NAME:TYPE@OFFSET, as in temperature:f32@0")]
    Field(String),
    /// A type that there isn't.
    #[error(
        "`{0}` is no type: there are u8, i8, u16, i16, u32, i32, u64, i64, f32, f64 (and u16be, ..., f64be), bool and text[BYTES]"
    )]
    Type(String),
    /// Beyond the longest event.
    #[error("`{0}` ends behind the longest event, which has {EVENT_BYTES_MAX} bytes")]
    Beyond(String),
    /// Two of one name.
    #[error("there are two fields `{0}`")]
    Twice(String),
    /// A filter looks at a field that the layout does not have.
    #[error("the layout of this channel has no field `{0}`: it has {1}")]
    Missing(String, String),
}

/// How a value lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    Bool,
    Text(usize),
}

/// A field of a layout.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    path: Vec<String>,
    kind: Kind,
    big_endian: bool,
    at: usize,
}

/// The format of a channel's events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Format {
    /// A JSON object.
    #[default]
    Json,
    /// A map of CBOR, whose keys are text.
    Cbor,
    /// Fields at fixed places.
    Layout(Layout),
}

/// Fields at fixed places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    text: String,
    fields: Vec<Field>,
}

impl Format {
    /// Reads the text of a format.
    ///
    /// # Errors
    /// [`FormatError`], in words.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        if text.len() > FORMAT_BYTES_MAX {
            return Err(FormatError::Long(text.len()));
        }
        let mut words = text.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("json"), None) => Ok(Self::Json),
            (Some("cbor"), None) => Ok(Self::Cbor),
            (Some("layout"), first) => Layout::parse(first.into_iter().chain(words)).map(Self::Layout),
            _ => Err(FormatError::Unknown),
        }
    }

    /// Whether a filter can be evaluated: whether a layout has the fields that it looks at.
    ///
    /// # Errors
    /// [`FormatError::Missing`].
    pub fn check(&self, filter: &Filter) -> Result<(), FormatError> {
        let Self::Layout(layout) = self else { return Ok(()) };
        let has = |path: &&Vec<String>| layout.fields.iter().any(|field| field.path == **path);
        match filter.fields().iter().find(|path| !has(path)) {
            None => Ok(()),
            Some(missing) => {
                let known: Vec<String> = layout.fields.iter().map(|field| field.path.join(".")).collect();
                Err(FormatError::Missing(missing.join("."), known.join(", ")))
            }
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json => to.write_str("json"),
            Self::Cbor => to.write_str("cbor"),
            Self::Layout(layout) => to.write_str(&layout.text),
        }
    }
}

impl Layout {
    fn parse<'t>(words: impl Iterator<Item = &'t str>) -> Result<Self, FormatError> {
        let (mut fields, mut text): (Vec<Field>, String) = (Vec::new(), "layout".to_owned());
        for word in words {
            let field = Field::parse(word)?;
            if fields.iter().any(|other| other.path == field.path) {
                return Err(FormatError::Twice(field.path.join(".")));
            }
            fields.push(field);
            text.push(' ');
            text.push_str(word);
        }
        if fields.is_empty() || fields.len() > LAYOUT_FIELDS_MAX {
            return Err(FormatError::Fields);
        }
        Ok(Self { text, fields })
    }

    /// The value of a field, if the event is long enough.
    pub(super) fn value<'e>(&self, path: &[String], event: &'e [u8]) -> Option<Value<'e>> {
        let field = self.fields.iter().find(|field| field.path == path)?;
        field.value(event.get(field.at..field.at + field.kind.bytes())?)
    }

    /// Whether an event has all of its fields.
    pub(super) fn fits(&self, event: &[u8]) -> bool {
        self.fields.iter().all(|field| field.at + field.kind.bytes() <= event.len())
    }
}

impl Kind {
    fn parse(text: &str) -> Option<Self> {
        let bytes = |bits: &str| match bits {
            "8" => Some(1),
            "16" => Some(2),
            "32" => Some(4),
            "64" => Some(8),
            _ => None,
        };
        if text == "bool" {
            return Some(Self::Bool);
        }
        if let Some(length) = text.strip_prefix("text[") {
            let length = length.strip_suffix(']')?.parse().ok()?;
            return (1..=EVENT_BYTES_MAX).contains(&length).then_some(Self::Text(length));
        }
        let (kind, bits) = text.split_at_checked(1)?;
        match kind {
            "u" => bytes(bits).map(Self::Unsigned),
            "i" => bytes(bits).map(Self::Signed),
            "f" => bytes(bits).filter(|bytes| *bytes >= 4).map(Self::Float),
            _ => None,
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Unsigned(bytes) | Self::Signed(bytes) | Self::Float(bytes) | Self::Text(bytes) => bytes,
            Self::Bool => 1,
        }
    }
}

impl Field {
    fn parse(word: &str) -> Result<Self, FormatError> {
        let wrong = || FormatError::Field(word.to_owned());
        let (name, rest) = word.split_once(':').ok_or_else(wrong)?;
        let (kind, at) = rest.split_once('@').ok_or_else(wrong)?;
        let is_name = |name: &str| {
            let begins = name.starts_with(|c: char| c.is_alphabetic() || c == '_');
            begins && name.chars().all(|c| c.is_alphanumeric() || c == '_')
        };
        let path: Vec<String> = name.split('.').map(str::to_owned).collect();
        if !path.iter().all(|name| is_name(name)) || !at.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let at: usize = at.parse().map_err(|_| wrong())?;
        let (plain, big_endian) = kind.strip_suffix("be").map_or((kind, false), |plain| (plain, true));
        let kind = Kind::parse(plain)
            .filter(|it| !big_endian || !matches!(it, Kind::Bool | Kind::Text(_)))
            .ok_or_else(|| FormatError::Type(kind.to_owned()))?;
        if at.checked_add(kind.bytes()).is_none_or(|end| end > EVENT_BYTES_MAX) {
            return Err(FormatError::Beyond(word.to_owned()));
        }
        Ok(Self { path, kind, big_endian, at })
    }

    /// The value of these bytes, which are as many as the kind has.
    #[expect(clippy::cast_precision_loss, reason = "numbers are compared as those of JSON: as f64")]
    fn value<'e>(&self, bytes: &'e [u8]) -> Option<Value<'e>> {
        let word = || {
            let fold = |all: u64, byte: &u8| all << 8 | u64::from(*byte);
            if self.big_endian { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) }
        };
        Some(match self.kind {
            Kind::Unsigned(_) => Value::Number(word() as f64),
            Kind::Signed(length) => {
                let unused = 64 - 8 * length;
                Value::Number((word() << unused).cast_signed() as f64 / (1_u64 << unused) as f64)
            }
            Kind::Float(4) => Value::Number(f64::from(f32::from_bits(u32::try_from(word()).ok()?))),
            Kind::Float(_) => Value::Number(f64::from_bits(word())),
            Kind::Bool => Value::Bool(bytes != [0]),
            Kind::Text(_) => {
                let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                std::str::from_utf8(text).map_or(Value::Other, |text| Value::Text(text.into()))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_where_the_layout_says() {
        let text =
            "layout n:u16@0 m:u16be@2 t:f32@4 d:f64be@8 low:i8@16 far.x:i64@17 on:bool@25 zone:text[4]@26";
        let format = Format::parse(text).unwrap();
        assert_eq!(format.to_string(), text);
        let mut event = Vec::new();
        event.extend_from_slice(&[0x02, 0x01, 0x01, 0x02]);
        event.extend_from_slice(&31.5_f32.to_le_bytes());
        event.extend_from_slice(&(-0.25_f64).to_be_bytes());
        event.extend_from_slice(&(-3_i8).to_le_bytes());
        event.extend_from_slice(&(-5_000_000_000_i64).to_le_bytes());
        event.extend_from_slice(b"\x01b\0xx");
        let passes = |text: &str, event: &[u8]| {
            let filter = Filter::parse(text).unwrap();
            format.check(&filter).unwrap();
            filter.passes_event(&format, event)
        };
        for text in [
            "n == 258 && m == 258",
            "t > 31 && t == 31.5 && d == -0.25",
            "low == -3 && far.x == -5000000000",
            "on && zone == \"b\"",
        ] {
            assert!(passes(text, &event), "{text}");
        }
        assert!(passes("on && !has(zone)", &event[..28]), "what is cut off is not there");
        assert!(passes("!has(n)", b""));
        event[26] = 0xff;
        assert!(passes("has(zone) && zone != \"b\"", &event), "text that is none is equal to none");
        let missing = format.check(&Filter::parse("temperature > 3").unwrap()).unwrap_err().to_string();
        assert!(missing.contains("no field `temperature`: it has n, m, t"), "{missing}");
    }

    #[test]
    fn what_is_no_format_is_refused_with_the_reason() {
        let refused = |text: &str| Format::parse(text).unwrap_err().to_string();
        assert!(refused("").contains("a format is"));
        assert!(refused("json cbor").contains("a format is"));
        assert!(refused("layout").contains("1 to 64 fields"));
        assert!(refused("layout a").contains("`a` is no field"));
        assert!(refused("layout a:u8@").contains("is no field"));
        assert!(refused("layout a:u8@-1").contains("is no field"));
        assert!(refused("layout a:u8@99999999999999999999").contains("is no field"));
        assert!(refused("layout 3a:u8@0").contains("is no field"));
        assert!(refused("layout a:u9@0").contains("`u9` is no type"));
        assert!(refused("layout a:f16@0").contains("is no type"));
        assert!(refused("layout a:boolbe@0").contains("is no type"));
        assert!(refused("layout a:text[0]@0").contains("is no type"));
        assert!(refused("layout a:text[9]be@0").contains("is no type"));
        assert!(refused("layout a:u8@64512").contains("behind the longest event"));
        assert!(refused("layout a:u8@0 a:u8@1").contains("two fields `a`"));
        assert!(refused(&"x".repeat(2000)).contains("this one has 2000"));
        let many = (0..65).map(|n| format!(" f{n}:u8@{n}")).collect::<String>();
        assert!(refused(&format!("layout{many}")).contains("1 to 64 fields"));
    }

    proptest! {
        #[test]
        fn no_text_and_no_event_break_it(text in "layout ([ab.]{1,3}:(u8|i16be|f32|f64|text\\[[0-9]{1,3}\\]|bool)@[0-9]{1,6} ?){0,4}", event in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(format) = Format::parse(&text) {
                let again = Format::parse(&format.to_string());
                prop_assert_eq!(again.as_ref(), Ok(&format));
                let _passes = Filter::parse("a > 1 || has(b.a) || ab == \"x\"").unwrap().passes_event(&format, &event);
            }
        }

        #[test]
        fn whole_numbers_are_what_they_are(n in any::<i32>(), m in any::<u16>()) {
            let format = Format::parse("layout n:i32be@0 m:u16@4").unwrap();
            let event = [&n.to_be_bytes()[..], &m.to_le_bytes()].concat();
            let text = format!("n == {n} && m == {m}");
            prop_assert!(Filter::parse(&text).unwrap().passes_event(&format, &event));
        }
    }
}
