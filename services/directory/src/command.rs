//! The control language: what may be written to `ctl`, or behind the word `ctl` to `query`.

use crate::failure::Failure;
use crate::settings::{Format, MAX_SEARCH, MAX_UPSTREAMS, Overrides, search_domain};
use hickory_proto::rr::Name;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Port of the DNS, taken where an upstream is given without one.
const DNS_PORT: u16 = 53;

/// One control line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Changes a setting of the session, or on `ctl` of the domain.
    Set(Change),
    /// On `ctl` only: changes a setting of one open session.
    Session(u64, Change),
    /// On `ctl` only: forgets what the domain's cache holds.
    Flush,
}

/// A change of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// `timeout 500ms`, `timeout 2s`.
    Timeout(u32),
    /// `retries 2`.
    Retries(u32),
    /// `upstream ADDRESS[:PORT] ...`, `upstream none`.
    Upstreams(Option<Arc<[SocketAddr]>>),
    /// `search DOMAIN ...`, `search none` (an empty list), `search default` (the topology's).
    Search(Option<Arc<[Name]>>),
    /// `format text`, `format json`.
    Format(Format),
    /// `trace on`, `trace off`.
    Trace(bool),
}

impl Change {
    /// Whether it needs the verb `control` even in one's own session: it makes the server send
    /// packets to an address of the caller's choice.
    pub const fn needs_control(&self) -> bool {
        matches!(self, Self::Upstreams(Some(_)))
    }

    /// Makes the change.
    ///
    /// # Errors
    /// [`Failure::Malformed`] where a bound is exceeded; nothing is changed then.
    pub fn apply(self, overrides: &mut Overrides) -> Result<(), Failure> {
        let mut changed = overrides.clone();
        match self {
            Self::Timeout(ms) => changed.timeout_ms = Some(ms),
            Self::Retries(count) => changed.retries = Some(count),
            Self::Upstreams(list) => changed.upstreams = list,
            Self::Search(list) => changed.search = list,
            Self::Format(format) => changed.format = Some(format),
            Self::Trace(on) => changed.trace = Some(on),
        }
        changed.check()?;
        *overrides = changed;
        Ok(())
    }
}

/// Reads one control line.
///
/// # Errors
/// [`Failure::Malformed`], and [`Failure::NameTooLong`] for a search domain.
pub fn parse(line: &str) -> Result<Command, Failure> {
    let mut words = line.split_ascii_whitespace();
    let command = match words.next() {
        Some("flush") => Command::Flush,
        Some("session") => {
            let number = one(&mut words)?.parse().map_err(|_| Failure::Malformed)?;
            let word = words.next().ok_or(Failure::Malformed)?;
            return Ok(Command::Session(number, change(word, words)?));
        }
        Some(word) => return Ok(Command::Set(change(word, words)?)),
        None => return Err(Failure::Malformed),
    };
    if words.next().is_some() { Err(Failure::Malformed) } else { Ok(command) }
}

fn one<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<&'a str, Failure> {
    words.next().ok_or(Failure::Malformed)
}

fn change<'a>(word: &str, mut words: impl Iterator<Item = &'a str>) -> Result<Change, Failure> {
    let words = &mut words;
    let change = match word {
        "upstream" => return upstreams(words).map(Change::Upstreams),
        "search" => return search(words).map(Change::Search),
        "timeout" => Change::Timeout(milliseconds(one(words)?)?),
        "retries" => Change::Retries(one(words)?.parse().map_err(|_| Failure::Malformed)?),
        "format" => Change::Format(match one(words)? {
            "text" => Format::Text,
            "json" => Format::Json,
            _ => return Err(Failure::Malformed),
        }),
        "trace" => Change::Trace(match one(words)? {
            "on" => true,
            "off" => false,
            _ => return Err(Failure::Malformed),
        }),
        _ => return Err(Failure::Malformed),
    };
    if words.next().is_some() { Err(Failure::Malformed) } else { Ok(change) }
}

/// `500ms` or `2s`; a bare number would leave the unit to a guess.
fn milliseconds(text: &str) -> Result<u32, Failure> {
    let (digits, factor) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => (digits, 1),
        (None, Some(digits)) => (digits, 1000),
        (None, None) => return Err(Failure::Malformed),
    };
    let number: u32 = digits.parse().map_err(|_| Failure::Malformed)?;
    number.checked_mul(factor).ok_or(Failure::Malformed)
}

fn upstreams<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Option<Arc<[SocketAddr]>>, Failure> {
    let words: Vec<&str> = words.take(MAX_UPSTREAMS + 1).collect();
    match words.as_slice() {
        [] => Err(Failure::Malformed),
        ["none"] => Ok(None),
        list if list.len() > MAX_UPSTREAMS => Err(Failure::Malformed),
        list => list.iter().map(|word| upstream(word)).collect::<Result<_, _>>().map(Some),
    }
}

fn upstream(word: &str) -> Result<SocketAddr, Failure> {
    if let Ok(ip) = word.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, DNS_PORT));
    }
    word.parse().map_err(|_| Failure::Malformed)
}

fn search<'a>(words: &mut impl Iterator<Item = &'a str>) -> Result<Option<Arc<[Name]>>, Failure> {
    let words: Vec<&str> = words.take(MAX_SEARCH + 1).collect();
    match words.as_slice() {
        [] => Err(Failure::Malformed),
        ["none"] => Ok(Some(Arc::from([]))),
        ["default"] => Ok(None),
        list if list.len() > MAX_SEARCH => Err(Failure::Malformed),
        list => list.iter().map(|word| search_domain(word)).collect::<Result<_, _>>().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(line: &str) -> Overrides {
        let mut overrides = Overrides::default();
        match parse(line) {
            Ok(Command::Set(change)) => change.apply(&mut overrides).unwrap(),
            other => panic!("{line}: {other:?}"),
        }
        overrides
    }

    #[test]
    fn each_setting_has_its_line() {
        assert_eq!(set("timeout 500ms").timeout_ms, Some(500));
        assert_eq!(set(" timeout  2s ").timeout_ms, Some(2000));
        assert_eq!(set("retries 0").retries, Some(0));
        let list = set("upstream 127.0.0.1:5355 ::1 [::1]:54").upstreams.unwrap();
        assert_eq!(format!("{list:?}"), "[127.0.0.1:5355, [::1]:53, [::1]:54]");
        assert_eq!(set("upstream none").upstreams, None);
        assert_eq!(set("search a.example b.example").search.unwrap().len(), 2);
        assert_eq!(set("search none").search.as_deref(), Some(&[][..]));
        assert_eq!(set("search default").search, None);
        assert_eq!(set("format json").format, Some(Format::Json));
        assert_eq!(set("trace on").trace, Some(true));
        assert_eq!(parse("flush"), Ok(Command::Flush));
        assert_eq!(parse("session 7 retries 1"), Ok(Command::Session(7, Change::Retries(1))));
    }

    #[test]
    fn everything_else_is_refused_and_changes_nothing() {
        for line in [
            "",
            "bogus",
            "timeout",
            "timeout 5",
            "timeout 5m",
            "timeout -5ms",
            "timeout 1ms 2ms",
            "timeout 99999999s",
            "retries two",
            "retries",
            "upstream",
            "upstream host.example",
            "upstream 127.0.0.1:99999",
            "search",
            "search a..b",
            r"search a\032b",
            "format xml",
            "format",
            "trace maybe",
            "flush now",
            "session",
            "session x retries 1",
            "session 7",
            "session 7 flush",
            "session 7 session 7 retries 1",
            "upstream 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1 1.1.1.1",
            "search a b c d e f g",
        ] {
            assert_eq!(parse(line), Err(Failure::Malformed), "{line:?}");
        }
        for line in ["timeout 0ms", "timeout 61s", "retries 11", "upstream 0.0.0.0", "upstream 127.0.0.1:0"] {
            let mut overrides = Overrides::default();
            let Ok(Command::Set(change)) = parse(line) else { panic!("{line}") };
            assert_eq!(change.apply(&mut overrides), Err(Failure::Malformed), "{line:?}");
            assert_eq!(overrides, Overrides::default());
        }
    }
}
