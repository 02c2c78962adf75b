//! The single values of a file: texts, numbers, durations, sizes, addresses, paths, words.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use toml::de::DeValue;

use crate::bounds::{HOSTNAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::diagnostic::{Code, Report};
use crate::read::{Form, Span, wrong_type};
use crate::suggest::{self, quoted};

/// The port of a name server that is given without one (RFC 1035).
const DNS_PORT: u16 = 53;

/// Gives a form an inline schema.
macro_rules! inline_schema {
    ($name:ty $(where [$($generic:tt)+])?, |$generator:ident| $schema:expr) => {
        impl $(<$($generic)+>)? JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}
pub(crate) use inline_schema;

/// A string as it stands, bounded, without NUL.
pub(crate) fn text<'v>(
    value: &'v DeValue<'_>,
    expected: &str,
    span: &Span,
    out: &mut Report<'_>,
) -> Option<&'v str> {
    let DeValue::String(text) = value else { return wrong_type(expected, value, span, out) };
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("this text has {} bytes; at most {TEXT_BYTES_MAX} can be here", text.len());
        out.error(Code::BadText, span, message);
        return None;
    }
    if text.contains('\0') {
        out.error(Code::BadText, span, "a text can't hold a NUL: it could not be passed to a program");
        return None;
    }
    Some(text)
}

/// Any text; may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

impl Form for Text {
    const KEYS: &str = "^[A-Za-z_][A-Za-z0-9_]*$";
    const WORDS: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        text(value, "a string", span, out).map(|text| Self(text.to_owned()))
    }
}

inline_schema!(Text, |_generator| json_schema!({ "type": "string", "maxLength": TEXT_BYTES_MAX }));

/// A text that says something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filled(pub(crate) String);

impl Form for Filled {
    const ONCE: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "a string", span, out)?;
        if read.is_empty() {
            out.error(Code::BadText, span, "an empty text says nothing here");
            return None;
        }
        Some(Self(read.to_owned()))
    }
}

inline_schema!(
    Filled,
    |_generator| json_schema!({ "type": "string", "minLength": 1, "maxLength": TEXT_BYTES_MAX })
);

impl Form for bool {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        match value {
            DeValue::Boolean(read) => Some(*read),
            other => wrong_type("true or false", other, span, out),
        }
    }
}

/// A whole number within bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count<const MIN: u64, const MAX: u64>(pub(crate) u32);

impl<const MIN: u64, const MAX: u64> Form for Count<MIN, MAX> {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let DeValue::Integer(integer) = value else { return wrong_type("an integer", value, span, out) };
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i128::MAX);
        let inside = number >= i128::from(MIN) && number <= i128::from(MAX);
        match u32::try_from(number) {
            Ok(number) if inside => Some(Self(number)),
            _ => {
                let message = format!("{} is out of range: {MIN} to {MAX} can be here", integer.as_str());
                out.error(Code::OutOfRange, span, message);
                None
            }
        }
    }
}

inline_schema!(Count<MIN, MAX> where [const MIN: u64, const MAX: u64],
    |_generator| json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX }));

/// A duration within bounds, in ms.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Millis<const MIN: u64, const MAX: u64>(pub(crate) u64);

/// Units of a duration, in ms, longest first.
const DURATIONS: &[(&str, u64)] =
    &[("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of a size, in bytes.
const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl<const MIN: u64, const MAX: u64> Form for Millis<MIN, MAX> {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = united(value, "a duration such as \"200ms\" or \"5s\"", |_| "s", span, out)?;
        let Some(millis) = quantity(read, DURATIONS) else {
            out.error(Code::BadDuration, span, format!("{} is no duration", quoted(read)))
                .help("a whole number and its unit: \"200ms\", \"5s\", \"2m\", \"1h\", \"7d\"; no fraction, no space");
            return None;
        };
        if millis < MIN || millis > MAX {
            let message = format!(
                "{read} is out of range: {} to {} can be here",
                duration_text(MIN),
                duration_text(MAX)
            );
            out.error(Code::OutOfRange, span, message);
            return None;
        }
        Some(Self(millis))
    }
}

inline_schema!(Millis<MIN, MAX> where [const MIN: u64, const MAX: u64], |_generator| json_schema!({
    "type": "string", "pattern": "^[0-9]{1,15}(ms|s|m|h|d)$",
    "$comment": format!("{} to {}", duration_text(MIN), duration_text(MAX)),
}));

/// Units of a short duration, in ns, longest first.
const SPANS: &[(&str, u64)] = &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

/// Units of a rate, in bits per second, greatest first.
const RATES: &[(&str, u64)] = &[("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];

/// A short duration within bounds, in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nanos<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> Form for Nanos<MIN, MAX> {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = united(value, "a duration such as \"16ms\" or \"5680us\"", |_| "ms", span, out)?;
        let Some(nanos) = quantity(read, SPANS) else {
            out.error(Code::BadDuration, span, format!("{} is no duration", quoted(read)))
                .help("a whole number and its unit: \"40ms\", \"5680us\", \"250000ns\", \"1s\"; no fraction, no space");
            return None;
        };
        if nanos < MIN || nanos > MAX {
            let message =
                format!("{read} is out of range: {} to {} can be here", nanos_text(MIN), nanos_text(MAX));
            out.error(Code::OutOfRange, span, message);
            return None;
        }
        Some(Self(nanos))
    }
}

inline_schema!(Nanos<MIN, MAX> where [const MIN: u64, const MAX: u64], |_generator| json_schema!({
    "type": "string", "pattern": "^[0-9]{1,15}(ns|us|ms|s)$",
    "$comment": format!("{} to {}", nanos_text(MIN), nanos_text(MAX)),
}));

/// A rate within bounds, in bits per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> Form for Rate<MIN, MAX> {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = united(value, "a rate such as \"5mbit\"", |_| "bit", span, out)?;
        let Some(bits) = quantity(read, RATES) else {
            out.error(Code::BadSize, span, format!("{} is no rate", quoted(read)))
                .help("a whole number of bits per second and its unit: \"800kbit\", \"5mbit\", \"1gbit\"");
            return None;
        };
        if bits < MIN || bits > MAX {
            let message =
                format!("{read} is out of range: {} to {} can be here", rate_text(MIN), rate_text(MAX));
            out.error(Code::OutOfRange, span, message);
            return None;
        }
        Some(Self(bits))
    }
}

inline_schema!(Rate<MIN, MAX> where [const MIN: u64, const MAX: u64], |_generator| json_schema!({
    "type": "string", "pattern": "^[0-9]{1,15}(bit|kbit|mbit|gbit)$",
    "$comment": format!("{} to {}", rate_text(MIN), rate_text(MAX)),
}));

/// A short duration such as `16ms`, in ns, as the file has it.
#[must_use]
pub fn parse_nanos(text: &str) -> Option<u64> {
    quantity(text, SPANS)
}

/// A rate such as `5mbit`, in bits per second, as the file has it.
#[must_use]
pub fn parse_rate(text: &str) -> Option<u64> {
    quantity(text, RATES)
}

/// A size such as `64MiB`, in bytes, as the file has it.
#[must_use]
pub fn parse_size(text: &str) -> Option<u64> {
    quantity(text, SIZES)
}

/// A short duration as the file writes it, in the longest unit that leaves a whole number.
#[must_use]
pub fn nanos_text(nanos: u64) -> String {
    unit_text(nanos, SPANS.iter().copied(), "ns")
}

/// A rate as the file writes it, in the greatest unit that leaves a whole number.
#[must_use]
pub fn rate_text(bits: u64) -> String {
    unit_text(bits, RATES.iter().copied(), "bit")
}

/// Digits of a bare number that may have been meant in MiB.
const MIB_DIGITS_MAX: usize = 6;

/// A size within bounds, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<const MIN: u64, const MAX: u64> Form for Bytes<MIN, MAX> {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        // A number that would be too much in MiB was meant in bytes.
        let too_much = |number: &str| number.parse::<u64>().is_ok_and(|number| number > MAX >> 20);
        let unit = |number: &str| {
            if number.len() > MIB_DIGITS_MAX || too_much(number) { "B" } else { "MiB" }
        };
        let read = united(value, "a size such as \"64MiB\"", unit, span, out)?;
        let Some(bytes) = quantity(read, SIZES) else {
            out.error(Code::BadSize, span, format!("{} is no size", quoted(read))).help(size_help(read));
            return None;
        };
        if bytes < MIN || bytes > MAX {
            let message =
                format!("{read} is out of range: {} to {} can be here", size_text(MIN), size_text(MAX));
            out.error(Code::OutOfRange, span, message);
            return None;
        }
        Some(Self(bytes))
    }
}

inline_schema!(Bytes<MIN, MAX> where [const MIN: u64, const MAX: u64], |_generator| json_schema!({
    "type": "string", "pattern": "^[0-9]{1,15}(B|[KMGT]iB|[kMGT]B)$",
    "$comment": format!("{} to {}", size_text(MIN), size_text(MAX)),
}));

/// The text of a quantity; a bare number gets a help of its own.
fn united<'v>(
    value: &'v DeValue<'_>,
    expected: &str,
    unit: impl Fn(&str) -> &'static str,
    span: &Span,
    out: &mut Report<'_>,
) -> Option<&'v str> {
    if let DeValue::Integer(number) = value {
        out.error(Code::WrongType, span, format!("expected {expected}, found a number without a unit"))
            .help(format!("did you mean \"{}{}\"?", number.as_str(), unit(number.as_str())));
        return None;
    }
    text(value, expected, span, out)
}

/// A whole number and one of `units`, multiplied.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

fn size_help(text: &str) -> String {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit()).trim();
    let first = unit.chars().next().map(|c| c.to_ascii_uppercase());
    match first {
        Some(c @ ('K' | 'M' | 'G' | 'T')) if !digits.is_empty() => format!("did you mean \"{digits}{c}iB\"?"),
        Some('B') if !digits.is_empty() => format!("did you mean \"{digits}B\"?"),
        _ => "a whole number and its unit: \"512B\", \"64KiB\", \"64MiB\", \"2GiB\"".to_owned(),
    }
}

/// A duration as the file writes it, in the longest unit that leaves a whole number.
#[must_use]
pub fn duration_text(millis: u64) -> String {
    unit_text(millis, DURATIONS.iter().copied(), "ms")
}

/// A size as the file writes it, in the largest binary unit that leaves a whole number.
#[must_use]
pub fn size_text(bytes: u64) -> String {
    let binary = [("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    unit_text(bytes, binary.into_iter(), "B")
}

fn unit_text(number: u64, mut units: impl Iterator<Item = (&'static str, u64)>, smallest: &str) -> String {
    let unit = units.find(|(_, factor)| number >= *factor && number.is_multiple_of(*factor));
    unit.map_or_else(|| format!("{number}{smallest}"), |(name, factor)| format!("{}{name}", number / factor))
}

/// An IP address with or without a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upstream(pub(crate) SocketAddr);

impl Form for Upstream {
    const ONCE: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "an address such as \"192.0.2.53\" or \"127.0.0.1:5353\"", span, out)?;
        let parsed =
            read.parse::<SocketAddr>().or_else(|_| read.parse::<IpAddr>().map(|ip| (ip, DNS_PORT).into()));
        match parsed {
            Ok(address) => asked(address, span, out).map(Self),
            Err(_) => {
                bad_address(read, "\"192.0.2.53\", \"127.0.0.1:5353\" or \"[2001:db8::53]:53\"", span, out)
            }
        }
    }
}

inline_schema!(Upstream, |_generator| json_schema!({
    "type": "string", "maxLength": 80,
    "pattern": "^(([0-9.]+|\\[[0-9a-fA-F:.]+\\])(:[0-9]{1,5})?|[0-9a-fA-F:.]+)$"
}));

/// An IP address with a port.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) SocketAddr);

impl Form for Address {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "an address such as \"127.0.0.1:8080\"", span, out)?;
        match read.parse::<SocketAddr>() {
            Ok(address) => asked(address, span, out).map(Self),
            Err(_) => {
                bad_address(read, "an IP address and a port: \"127.0.0.1:8080\" or \"[::1]:8080\"", span, out)
            }
        }
    }
}

inline_schema!(Address, |_generator| json_schema!({
    "type": "string", "maxLength": 80, "pattern": "^([0-9.]+|\\[[0-9a-fA-F:.%a-z]+\\]):[0-9]{1,5}$"
}));

fn bad_address<T>(text: &str, expected: &str, span: &Span, out: &mut Report<'_>) -> Option<T> {
    out.error(Code::BadAddress, span, format!("{} is no address", quoted(text)))
        .help(format!("{expected}; names can't be here, for who would resolve them?"));
    None
}

/// Refuses an address that nobody can answer at.
fn asked(address: SocketAddr, span: &Span, out: &mut Report<'_>) -> Option<SocketAddr> {
    let ip = address.ip();
    let reason = if ip.is_unspecified() {
        "it is the address of nobody"
    } else if ip.is_multicast() {
        "it is a multicast address"
    } else if matches!(ip, IpAddr::V4(ip) if ip.is_broadcast()) {
        "it is the broadcast address"
    } else if address.port() == 0 {
        "port 0 is the port of nobody"
    } else {
        return Some(address);
    };
    out.error(Code::BadAddress, span, format!("{address} can't be asked: {reason}"));
    None
}

/// Processor time in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Processors(pub(crate) u32);

impl Form for Processors {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let text = match value {
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            other => return wrong_type("a number of processors such as 0.5 or 2", other, span, out),
        };
        let number: f64 = text.parse().unwrap_or(f64::NAN);
        let milli = (number * 1000.0).round();
        let (min, max) = (f64::from(crate::bounds::CPU_MILLI_MIN), f64::from(crate::bounds::CPU_MILLI_MAX));
        if !(min..=max).contains(&milli) {
            let message =
                format!("{text} is out of range: {} to {} processors can be here", min / 1e3, max / 1e3);
            out.error(Code::OutOfRange, span, message);
            return None;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // within the bounds above
        Some(Self(milli as u32))
    }
}

inline_schema!(Processors, |_generator| json_schema!({
    "type": "number",
    "minimum": f64::from(crate::bounds::CPU_MILLI_MIN) / 1e3,
    "maximum": f64::from(crate::bounds::CPU_MILLI_MAX) / 1e3,
}));

/// A figure of a monitor, in thousandths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FigureText(pub(crate) adaptation::Figure);

impl Form for FigureText {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let text = match value {
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            other => return wrong_type("a figure such as 0.5 or 20", other, span, out),
        };
        match adaptation::Figure::parse(text.as_bytes()) {
            Ok(figure) => Some(Self(figure)),
            Err(error) => {
                out.error(Code::OutOfRange, span, error.to_string());
                None
            }
        }
    }
}

inline_schema!(FigureText, |_generator| json_schema!({
    "type": "number", "minimum": 0, "maximum": adaptation::FIGURE_MAX,
}));

/// A suffix of a search list.
#[derive(Clone, Debug)]
pub(crate) struct Suffix(pub(crate) String);

impl Form for Suffix {
    const ONCE: bool = true;

    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "a domain name", span, out)?;
        let name = read.strip_suffix('.').unwrap_or(read);
        if name.len() > crate::bounds::SEARCH_BYTES_MAX || !name.split('.').all(is_label) {
            out.error(Code::BadText, span, format!("{} is no domain name", quoted(read)))
                .help("labels of 1 to 63 letters, digits, hyphens or underscores, with dots between: \"example.org\"");
            return None;
        }
        Some(Self(name.to_ascii_lowercase()))
    }
}

inline_schema!(Suffix, |_generator| json_schema!({
    "type": "string", "maxLength": crate::bounds::SEARCH_BYTES_MAX + 1,
    "pattern": "^[A-Za-z0-9_-]{1,63}(\\.[A-Za-z0-9_-]{1,63})*\\.?$",
}));

/// Whether `text` is a label of a domain name.
pub(crate) fn is_label(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-' || c == b'_')
}

/// A host name.
#[derive(Clone, Debug)]
pub(crate) struct Hostname(pub(crate) String);

impl Form for Hostname {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        let read = text(value, "a host name", span, out)?;
        let good = |part: &str| {
            is_label(part) && !part.contains('_') && !part.starts_with('-') && !part.ends_with('-')
        };
        if read.len() <= HOSTNAME_BYTES_MAX && read.split('.').all(good) {
            return Some(Self(read.to_owned()));
        }
        out.error(Code::BadText, span, format!("{} is no host name", quoted(read))).help(format!(
            "letters, digits and hyphens, with dots between, at most {HOSTNAME_BYTES_MAX} characters"
        ));
        None
    }
}

inline_schema!(Hostname, |_generator| json_schema!({
    "type": "string", "maxLength": HOSTNAME_BYTES_MAX,
    "pattern": "^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$",
}));

/// A path inside a domain.
#[derive(Clone, Debug)]
pub(crate) struct Inside(pub(crate) PathBuf);

impl Form for Inside {
    fn read(value: &DeValue<'_>, span: &Span, out: &mut Report<'_>) -> Option<Self> {
        inside(&Filled::read(value, span, out)?.0, span, out).map(Self)
    }
}

inline_schema!(Inside, |_generator| json_schema!({
    "type": "string", "maxLength": TEXT_BYTES_MAX, "pattern": "^(/(?!\\.\\.(/|$))[^/]*)+$"
}));

/// A path in a domain: absolute, without `..`, with `.` and doubled slashes taken out.
pub(crate) fn inside(text: &str, span: &Span, out: &mut Report<'_>) -> Option<PathBuf> {
    if !text.starts_with('/') {
        out.error(
            Code::BadPath,
            span,
            format!("{} is relative: a path in a domain starts at its root", quoted(text)),
        )
        .help(format!("did you mean \"/{}\"?", text.trim_start_matches("./")));
        return None;
    }
    if text.split('/').any(|part| part == "..") {
        out.error(Code::BadPath, span, format!("{} goes up with `..`", quoted(text)))
            .help("write where it leads");
        return None;
    }
    // Collecting the components drops `.` and doubled slashes.
    Some(std::path::Path::new(text).components().collect())
}

/// Makes an enum of words a form: each word with what it means.
macro_rules! words {
    ($name:ty, $what:literal { $( $word:literal => $value:expr, $doc:literal; )+ }) => {
        impl $crate::read::Form for $name {
            const ONCE: bool = true;

            fn read(
                value: &toml::de::DeValue<'_>,
                span: &$crate::read::Span,
                out: &mut $crate::diagnostic::Report<'_>,
            ) -> Option<Self> {
                let words = &[$( $word ),+];
                let text = $crate::scalar::word(value, $what, words, span, out)?;
                [$( ($word, $value) ),+].into_iter().find(|(word, _)| *word == text).map(|(_, value)| value)
            }
        }
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "oneOf": [$( { "const": $word, "description": $doc } ),+]
                })
            }
        }
    };
}
pub(crate) use words;

/// Reads one of `words`, or reports what was probably meant.
pub(crate) fn word<'v>(
    value: &'v DeValue<'_>,
    what: &str,
    words: &[&str],
    span: &Span,
    out: &mut Report<'_>,
) -> Option<&'v str> {
    let read = text(value, &format!("{what}, a string"), span, out)?;
    if words.contains(&read) {
        return Some(read);
    }
    out.error(Code::UnknownWord, span, format!("{} is no {what}", quoted(read)))
        .help(suggest::word(read, words));
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_exactly_one_unit() {
        assert_eq!(quantity("200ms", DURATIONS), Some(200));
        assert_eq!(quantity("2m", DURATIONS), Some(120_000));
        assert_eq!(quantity("64MiB", SIZES), Some(64 << 20));
        for bad in
            ["", "s", "1", "-1s", "1.5s", "1 s", "1s2", "99999999999999999999s", "18446744073709551615h"]
        {
            assert_eq!(quantity(bad, DURATIONS), None, "{bad}");
        }
    }

    #[test]
    fn quantities_are_written_as_a_person_would() {
        assert_eq!(duration_text(200), "200ms");
        assert_eq!(duration_text(10_000), "10s");
        assert_eq!(duration_text(90_000), "90s");
        assert_eq!(duration_text(604_800_000), "7d");
        assert_eq!(duration_text(0), "0ms");
        assert_eq!(size_text(64 << 20), "64MiB");
        assert_eq!(size_text(1000), "1000B");
    }
}
