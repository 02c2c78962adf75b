//! From TOML to a plan: types, known keys, bounds, and what contradicts itself; each with its line,
//! its column, and what was probably meant. The reference of the file is `docs/bench.md`.

use crate::plan::{Deployment, Loop, Plan};
use crate::subject;
use bench::channel::numbered::HEADER_BYTES;
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use topology::{Code, Diagnostics, Report, nanos_text, parse_nanos, parse_size, size_text, suggestion};

/// Keys of a plan.
const KEYS: [&str; 13] = [
    "name",
    "seed",
    "launches",
    "window",
    "patience",
    "subjects",
    "ideal",
    "deployments",
    "payloads",
    "work",
    "loops",
    "deadlines",
    "adapter",
];
/// Launches: one measures something, and beyond a thousand nobody waits.
const LAUNCHES: RangeInclusive<i64> = 1..=1_000;
/// A window: long enough for one slow exchange, short enough that all samples can be kept in their
/// order.
const WINDOW_NS: RangeInclusive<u64> = 1_000_000..=60_000_000_000;
/// A peer's silence.
const TIMEOUT_NS: RangeInclusive<u64> = 100_000_000..=300_000_000_000;
/// Bytes of a message: number and checksum at least, and what every ring takes at most.
const PAYLOADS: RangeInclusive<u64> = HEADER_BYTES as u64..=1 << 20;
/// A server that computes for longer measures itself.
const WORK_NS: RangeInclusive<u64> = 0..=100_000_000;
/// Between two requests of an open loop.
const INTERVAL_NS: RangeInclusive<u64> = 1_000..=1_000_000_000;
/// Deadlines that a histogram can tell apart.
const DEADLINES_NS: RangeInclusive<u64> = 1_000..=60_000_000_000;
/// Entries of a list: more cells than a life has hours are a mistake.
const ENTRIES_MAX: usize = 64;
/// Longest name of a plan or adapter.
const NAME_BYTES_MAX: usize = 63;
/// Words of a command.
const WORDS_MAX: usize = 256;

/// The seed of a plan whose file says none.
const SEED: u64 = 1;
const LAUNCHES_DEFAULT: usize = 5;
const WINDOW_DEFAULT: Duration = Duration::from_millis(500);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
const DEADLINES_DEFAULT_NS: [u64; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// Reads and admits a plan; `file_name` is for messages.
///
/// # Errors
/// Everything that is wrong with it, as far as it can be said at once.
pub fn read(text: &str, file_name: &str) -> Result<Plan, Diagnostics> {
    let mut report = Report::new(text);
    let table = match DeTable::parse(text) {
        Ok(table) => table,
        Err(error) => {
            let span = error.span().unwrap_or(0..0);
            report.error(Code::Syntax, &span, error.message());
            return Err(report.finish(file_name));
        }
    };
    let plan = Reader { table: table.get_ref(), report: &mut report }.plan();
    match plan {
        Some(plan) if report.is_clean() => Ok(plan),
        _ => Err(report.finish(file_name)),
    }
}

type Value<'i> = Spanned<DeValue<'i>>;

struct Reader<'t, 'i, 'r, 's> {
    table: &'t DeTable<'i>,
    report: &'r mut Report<'s>,
}

impl<'t, 'i> Reader<'t, 'i, '_, '_> {
    fn plan(&mut self) -> Option<Plan> {
        for key in self.table.keys().filter(|key| !KEYS.contains(&key.get_ref().as_ref())) {
            let message = format!("`{}` is no key of a plan", key.get_ref());
            self.report.error(Code::UnknownKey, &key.span(), message).help(suggestion(key.get_ref(), &KEYS));
        }
        let adapters = self.adapters();
        let subjects = self.subjects(&adapters);
        let window = self.span_of_time("window", &WINDOW_NS);
        let loops = self.list("loops", Self::pace);
        let window = window.map_or(WINDOW_DEFAULT, Duration::from_nanos);
        self.is_due_within(window);
        let plan = Plan {
            name: self.name(),
            seed: self.number("seed", &(0..=i64::MAX)).map_or(SEED, i64::unsigned_abs),
            launches: self.number("launches", &LAUNCHES).map_or(LAUNCHES_DEFAULT, |count| count as usize),
            window,
            patience: self
                .span_of_time("patience", &TIMEOUT_NS)
                .map_or(TIMEOUT_DEFAULT, Duration::from_nanos),
            ideal: self.ideal(&subjects),
            subjects,
            deployments: self.list("deployments", Self::deployment).unwrap_or_else(|| vec![Deployment::Bare]),
            payloads: self.list("payloads", Self::payload).unwrap_or_else(|| vec![64]),
            work_ns: self.list("work", |this, value| this.time(value, &WORK_NS)).unwrap_or_else(|| vec![0]),
            loops: loops.unwrap_or_else(|| vec![Loop::Closed]),
            deadlines_ns: self
                .list("deadlines", |this, value| this.time(value, &DEADLINES_NS))
                .unwrap_or_else(|| DEADLINES_DEFAULT_NS.to_vec()),
            adapters,
        };
        self.report.is_clean().then_some(plan)
    }

    fn name(&mut self) -> String {
        let Some(value) = self.required("name", "name = \"nightly\"") else { return String::new() };
        let name = self.text(value).unwrap_or_default();
        let is_right = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if !is_right && matches!(value.get_ref(), DeValue::String(_)) {
            let message = format!("a name has 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`");
            self.report.error(Code::BadName, &value.span(), message);
        }
        name.to_owned()
    }

    fn subjects(&mut self, adapters: &BTreeMap<String, Vec<String>>) -> Vec<String> {
        if self.required("subjects", "subjects = [\"udp\", \"tombolo-channel\"]").is_none() {
            return Vec::new();
        }
        let found = self.list("subjects", |this, value| this.subject(value, adapters));
        let found = found.unwrap_or_default();
        let table = self.table.get("adapter").and_then(|value| value.get_ref().as_table());
        for (name, value) in table.into_iter().flatten() {
            let subject = format!("{}{}", subject::EXEC, name.get_ref());
            if !found.contains(&subject) {
                let message = format!("nothing uses the adapter `{}`", name.get_ref());
                let span = if name.span().is_empty() { value.span() } else { name.span() };
                self.report
                    .error(Code::Conflict, &span, message)
                    .help(format!("add `{subject}` to `subjects`"));
            }
        }
        found
    }

    fn subject(&mut self, value: &Value<'i>, adapters: &BTreeMap<String, Vec<String>>) -> Option<String> {
        let word = self.text(value)?;
        if let Some(name) = word.strip_prefix(subject::EXEC) {
            if !adapters.contains_key(name) {
                let names: Vec<&str> = adapters.keys().map(String::as_str).collect();
                let help = if names.is_empty() {
                    format!("give it a command: adapter.{name} = [\"python3\", \"adapter.py\"]")
                } else {
                    suggestion(name, &names)
                };
                self.report
                    .error(Code::UnknownWord, &value.span(), format!("there is no adapter `{name}`"))
                    .help(help);
                return None;
            }
            return Some(word.to_owned());
        }
        self.one_of(value, word, "subject", &subject::names()).map(ToOwned::to_owned)
    }

    fn ideal(&mut self, subjects: &[String]) -> Option<String> {
        let value = self.table.get("ideal")?;
        let word = self.text(value)?;
        let names: Vec<&str> = subjects.iter().map(String::as_str).collect();
        if names.is_empty() {
            return None;
        }
        if !names.contains(&word) {
            self.report
                .error(Code::Conflict, &value.span(), format!("the ideal `{word}` is none of the subjects"))
                .help(suggestion(word, &names));
            return None;
        }
        Some(word.to_owned())
    }

    fn adapter_table(&mut self) -> Option<&'t DeTable<'i>> {
        let value = self.table.get("adapter")?;
        match value.get_ref() {
            DeValue::Table(table) => Some(table),
            other => {
                let message = format!("expected a table, found {}", type_of(other));
                let help = "adapter.NAME = [\"python3\", \"adapter.py\"]";
                self.report.error(Code::WrongType, &value.span(), message).help(help);
                None
            }
        }
    }

    fn adapters(&mut self) -> BTreeMap<String, Vec<String>> {
        let mut adapters = BTreeMap::new();
        for (name, value) in self.adapter_table().into_iter().flatten() {
            let DeValue::Array(words) = value.get_ref() else {
                let message =
                    format!("expected a command, a list of words, found {}", type_of(value.get_ref()));
                self.report
                    .error(Code::WrongType, &value.span(), message)
                    .help("[\"python3\", \"adapter.py\"]");
                continue;
            };
            if words.is_empty() || words.len() > WORDS_MAX {
                let message = format!("a command has 1 to {WORDS_MAX} words");
                self.report.error(Code::TooFew, &value.span(), message);
                continue;
            }
            let words: Option<Vec<String>> =
                words.iter().map(|word| self.text(word).map(ToOwned::to_owned)).collect();
            adapters.extend(words.map(|words| (name.get_ref().to_string(), words)));
        }
        adapters
    }

    fn deployment(&mut self, value: &Value<'i>) -> Option<Deployment> {
        let word = self.text(value)?;
        let words = Deployment::ALL.map(Deployment::word);
        let word = self.one_of(value, word, "deployment", &words)?;
        Deployment::ALL.into_iter().find(|deployment| deployment.word() == word)
    }

    fn payload(&mut self, value: &Value<'i>) -> Option<usize> {
        let word = self.text(value)?;
        let Some(bytes) = parse_size(word) else {
            self.report
                .error(Code::BadSize, &value.span(), format!("`{word}` is no size"))
                .help("a number and its unit: \"64B\", \"4KiB\"");
            return None;
        };
        if !PAYLOADS.contains(&bytes) {
            let (least, most) = (size_text(*PAYLOADS.start()), size_text(*PAYLOADS.end()));
            let message = format!("a payload has {least} (its number and its checksum) to {most}");
            self.report.error(Code::OutOfRange, &value.span(), message);
            return None;
        }
        Some(bytes as usize)
    }

    /// `closed`, `periodic 1ms`, `poisson 1ms`.
    fn pace(&mut self, value: &Value<'i>) -> Option<Loop> {
        let text = self.text(value)?;
        let (word, interval) =
            text.split_once(' ').map_or((text, None), |(word, rest)| (word, Some(rest.trim())));
        let word = self.one_of(value, word, "loop", &["closed", "periodic", "poisson"])?;
        let open = match (word, interval) {
            ("closed", None) => return Some(Loop::Closed),
            ("closed", Some(_)) => {
                self.report
                    .error(
                        Code::Conflict,
                        &value.span(),
                        "a closed loop has no interval: each request follows an answer",
                    )
                    .help("\"closed\", or \"periodic 1ms\"");
                return None;
            }
            ("periodic", _) => Loop::Periodic,
            _ => Loop::Poisson,
        };
        let Some(interval) = interval.and_then(parse_nanos) else {
            self.report
                .error(
                    Code::BadDuration,
                    &value.span(),
                    format!("an open loop has an interval, and `{text}` has none"),
                )
                .help(format!("\"{word} 1ms\""));
            return None;
        };
        self.in_range(value, interval, &INTERVAL_NS).map(open)
    }

    /// An open loop with an interval beyond the window would ask once.
    fn is_due_within(&mut self, window: Duration) {
        let Some(DeValue::Array(values)) = self.table.get("loops").map(Spanned::get_ref) else { return };
        for value in values.iter() {
            let interval =
                value.get_ref().as_str().and_then(|text| parse_nanos(text.split_once(' ')?.1.trim()));
            if interval.is_some_and(|interval| u128::from(interval) * 10 > window.as_nanos()) {
                let message = format!(
                    "in a window of {} fewer than ten requests would be due",
                    nanos_text(window.as_nanos() as u64)
                );
                self.report
                    .error(Code::Conflict, &value.span(), message)
                    .help("a longer `window`, or a shorter interval");
            }
        }
    }

    fn required(&mut self, key: &str, example: &str) -> Option<&'t Value<'i>> {
        let value = self.table.get(key);
        if value.is_none() {
            self.report
                .error(Code::MissingKey, &(0..0), format!("a plan needs `{key}`"))
                .help(format!("add {example}"));
        }
        value
    }

    /// A list without repetitions; `None` where the file has none, or where it has been reported.
    fn list<T: PartialEq>(
        &mut self,
        key: &str,
        mut read: impl FnMut(&mut Self, &Value<'i>) -> Option<T>,
    ) -> Option<Vec<T>> {
        let value = self.table.get(key)?;
        let DeValue::Array(values) = value.get_ref() else {
            let message = format!("expected a list, found {}", type_of(value.get_ref()));
            self.report.error(Code::WrongType, &value.span(), message).help(format!("{key} = [..., ...]"));
            return None;
        };
        if values.is_empty() || values.len() > ENTRIES_MAX {
            let code = if values.is_empty() { Code::TooFew } else { Code::TooMany };
            self.report.error(code, &value.span(), format!("`{key}` has 1 to {ENTRIES_MAX} entries"));
            return None;
        }
        let mut found: Vec<T> = Vec::new();
        for value in values.iter() {
            match read(self, value) {
                Some(entry) if found.contains(&entry) => {
                    self.report.error(
                        Code::Duplicate,
                        &value.span(),
                        format!("`{key}` has this entry twice"),
                    );
                }
                entry => found.extend(entry),
            }
        }
        Some(found)
    }

    fn span_of_time(&mut self, key: &str, range: &RangeInclusive<u64>) -> Option<u64> {
        let value = self.table.get(key)?;
        self.time(value, range)
    }

    fn time(&mut self, value: &Value<'i>, range: &RangeInclusive<u64>) -> Option<u64> {
        let word = self.text(value)?;
        let Some(nanos) = parse_nanos(word) else {
            self.report
                .error(Code::BadDuration, &value.span(), format!("`{word}` is no duration"))
                .help("a whole number and its unit: \"500ms\", \"10us\"");
            return None;
        };
        self.in_range(value, nanos, range)
    }

    fn in_range(&mut self, value: &Value<'i>, nanos: u64, range: &RangeInclusive<u64>) -> Option<u64> {
        if range.contains(&nanos) {
            return Some(nanos);
        }
        let message = format!("{} to {} can be here", nanos_text(*range.start()), nanos_text(*range.end()));
        self.report.error(Code::OutOfRange, &value.span(), message);
        None
    }

    fn number(&mut self, key: &str, range: &RangeInclusive<i64>) -> Option<i64> {
        let value = self.table.get(key)?;
        let DeValue::Integer(integer) = value.get_ref() else {
            let message = format!("expected an integer, found {}", type_of(value.get_ref()));
            self.report.error(Code::WrongType, &value.span(), message);
            return None;
        };
        let number = i64::from_str_radix(integer.as_str(), integer.radix()).ok();
        if number.is_none_or(|number| !range.contains(&number)) {
            let message = format!("{} to {} can be here", range.start(), range.end());
            self.report.error(Code::OutOfRange, &value.span(), message);
            return None;
        }
        number
    }

    fn text<'v>(&mut self, value: &'v Value<'i>) -> Option<&'v str> {
        match value.get_ref() {
            DeValue::String(text) => Some(text),
            other => {
                let message = format!("expected a string, found {}", type_of(other));
                self.report.error(Code::WrongType, &value.span(), message).help("texts stand in quotes");
                None
            }
        }
    }

    fn one_of<'v>(
        &mut self,
        value: &Value<'i>,
        word: &'v str,
        what: &str,
        words: &[&str],
    ) -> Option<&'v str> {
        if words.contains(&word) {
            return Some(word);
        }
        let span: Range<usize> = value.span();
        self.report
            .error(Code::UnknownWord, &span, format!("there is no {what} `{word}`"))
            .help(suggestion(word, words));
        None
    }
}

fn type_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests;
