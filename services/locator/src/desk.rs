//! All that the sources have told, and which of them counts.

use location::{Candidate, Choice, Fix, gpsd};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wire::location::Settings;

/// The reports of one source.
#[derive(Debug, Default)]
struct Told {
    name: String,
    power_mw: u32,
    last: Option<(Fix, Instant)>,
    fixes: u64,
    refused: u64,
    /// Why its last line was refused, or why it can't be read.
    trouble: Option<String>,
}

#[derive(Debug)]
struct Book {
    sources: Vec<Told>,
    choice: Choice,
    changes: u64,
}

/// The desk to which all sources report. Clones are the same desk.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    book: Arc<Mutex<Book>>,
    began: Instant,
    timeout: Duration,
}

/// A choice that can't be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoSuchChoice;

impl Desk {
    pub(crate) fn new(settings: &Settings) -> Self {
        let of = |source: &wire::location::Source| Told {
            name: source.name.clone(),
            power_mw: source.power_mw,
            ..Told::default()
        };
        let book = Book {
            sources: settings.sources.iter().map(of).collect(),
            choice: Choice::new(f64::from(settings.accuracy_m), settings.hold_ms),
            changes: 0,
        };
        let timeout = Duration::from_millis(settings.timeout_ms);
        Self { book: Arc::new(Mutex::new(book)), began: Instant::now(), timeout }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing in it is half done when a thread panics: each change is one assignment.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a position of a source. Gives the source's name if it counts, and the position is to
    /// be told.
    pub(crate) fn fix(&self, source: usize, fix: Fix) -> Option<String> {
        let mut book = self.book();
        let told = book.sources.get_mut(source)?;
        told.last = Some((fix, Instant::now()));
        told.fixes += 1;
        told.trouble = None;
        let counts = self.decide(&mut book) == Some(source);
        counts.then(|| book.sources.get(source).map(|told| told.name.clone()))?
    }

    /// A line of a source that counts for nothing.
    pub(crate) fn refuse(&self, source: usize, why: &str) {
        if let Some(told) = self.book().sources.get_mut(source) {
            told.refused += 1;
            told.trouble = Some(why.to_owned());
        }
    }

    /// Why a source can't be read at present.
    pub(crate) fn fail(&self, source: usize, why: &str) {
        if let Some(told) = self.book().sources.get_mut(source) {
            if told.trouble.as_deref() != Some(why) {
                tracing::warn!(source = told.name, why, "a source of positions can't be read");
            }
            told.trouble = Some(why.to_owned());
        }
    }

    fn decide(&self, book: &mut Book) -> Option<usize> {
        let now = Instant::now();
        let candidate = |told: &Told| Candidate {
            accuracy_m: told.recent(now, self.timeout).map(|fix| fix.accuracy_m),
            power_mw: told.power_mw,
        };
        let candidates: Vec<Candidate> = book.sources.iter().map(candidate).collect();
        let before = book.choice.current();
        let now_ms = u64::try_from(now.duration_since(self.began).as_millis()).unwrap_or(u64::MAX);
        let current = book.choice.decide(now_ms, &candidates);
        if current != before {
            book.changes += 1;
            let name =
                |index: Option<usize>| index.and_then(|index| book.sources.get(index)).map(|told| &told.name);
            tracing::info!(from = ?name(before), to = ?name(current), "another source of positions counts");
        }
        current
    }

    /// The last position, as JSON; `None` where no source has a recent one.
    pub(crate) fn position(&self) -> Option<Value> {
        let mut book = self.book();
        let current = self.decide(&mut book)?;
        let told = book.sources.get(current)?;
        let (fix, at) = told.last?;
        let mut value = object(&told.name, &fix);
        value["age_ms"] = milliseconds(at.elapsed());
        Some(value)
    }

    /// The source that counts and its last position, for clients of gpsd.
    pub(crate) fn known<T>(&self, tell: impl FnOnce(gpsd::Known<'_>) -> T) -> T {
        let mut book = self.book();
        let told = self.decide(&mut book).and_then(|index| book.sources.get(index));
        tell(gpsd::Known {
            source: told.map(|told| told.name.as_str()),
            fix: told.and_then(|told| told.last.as_ref()).map(|(fix, _)| fix),
        })
    }

    /// The state of each source, as JSON.
    pub(crate) fn state(&self) -> Value {
        let mut book = self.book();
        let current = self.decide(&mut book);
        let now = Instant::now();
        let reference = current.and_then(|index| book.sources.get(index)?.recent(now, self.timeout));
        let sources: Vec<Value> = book
            .sources
            .iter()
            .map(|told| {
                let recent = told.recent(now, self.timeout);
                json!({
                    "name": told.name,
                    "power_mw": told.power_mw,
                    "accuracy_m": recent.map(|fix| fix.accuracy_m),
                    "age_ms": told.last.map(|(_, at)| milliseconds(at.elapsed())),
                    "fixes": told.fixes,
                    "refused": told.refused,
                    "trouble": told.trouble,
                    // Both can't be true: a receiver is wrong, or a survey is of another floor.
                    "disagrees": recent.zip(reference).map(|(fix, reference)| !fix.agrees(&reference)),
                })
            })
            .collect();
        let name = |index: Option<usize>| {
            index.and_then(|index| book.sources.get(index)).map(|told| told.name.clone())
        };
        json!({
            "source": name(current),
            "chosen_by_hand": name(book.choice.forced()),
            "wanted_accuracy_m": book.choice.wanted_m(),
            "changes": book.changes,
            "sources": sources,
        })
    }

    /// Wants another accuracy, in m.
    pub(crate) fn want(&self, accuracy_m: f64) {
        self.book().choice.want(accuracy_m);
    }

    /// Takes a line of the control file: `accuracy METRES`, `source NAME`, `source auto`.
    pub(crate) fn choose(&self, line: &str) -> Result<(), NoSuchChoice> {
        let (word, value) = line.trim().split_once(' ').ok_or(NoSuchChoice)?;
        let (mut book, value) = (self.book(), value.trim());
        match word {
            "accuracy" => {
                let metres: f64 = value.parse().map_err(|_| NoSuchChoice)?;
                if !(0.01..=1e7).contains(&metres) {
                    return Err(NoSuchChoice);
                }
                book.choice.want(metres);
            }
            "source" if value == "auto" => book.choice.force(None),
            "source" => {
                let index = book.sources.iter().position(|told| told.name == value).ok_or(NoSuchChoice)?;
                book.choice.force(Some(index));
            }
            _ => return Err(NoSuchChoice),
        }
        self.decide(&mut book);
        Ok(())
    }
}

impl Told {
    fn recent(&self, now: Instant, timeout: Duration) -> Option<Fix> {
        let (fix, at) = self.last?;
        (now.saturating_duration_since(at) <= timeout).then_some(fix)
    }
}

/// A position as readers get it.
pub(crate) fn object(source: &str, fix: &Fix) -> Value {
    json!({
        "source": source,
        "time": fix.time(),
        "latitude": fix.latitude,
        "longitude": fix.longitude,
        "altitude_m": fix.altitude_m,
        "speed_mps": fix.speed_mps,
        "course_deg": fix.course_deg,
        "accuracy_m": fix.accuracy_m,
    })
}

fn milliseconds(time: Duration) -> Value {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
}
