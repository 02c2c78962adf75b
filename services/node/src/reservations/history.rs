//! The recent promises, use, misses and changes with their reasons: always kept, in memory, with a
//! bound.

use super::Book;
use admin::reserve::{Mark, Note, Trace};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Marks that are kept: half an hour of ten that are looked at each second, in some megabytes.
const MARKS_MAX: usize = 16_384;
/// Changes that are kept.
const NOTES_MAX: usize = 1_024;
/// Longest words of a change that are kept, in characters.
const WORDS_CHARS: usize = 512;

/// The last marks and changes.
#[derive(Debug, Default)]
pub(super) struct History {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    marks: VecDeque<Mark>,
    notes: VecDeque<Note>,
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, mark: Mark) {
        let mut inner = self.lock();
        inner.marks.push_back(mark);
        if inner.marks.len() > MARKS_MAX {
            inner.marks.pop_front();
        }
    }

    /// Something was changed now.
    pub(super) fn note(&self, what: &str) {
        let mut inner = self.lock();
        let what = what.chars().take(WORDS_CHARS).collect();
        inner.notes.push_back(Note { at_ms: unix_ms(), what });
        if inner.notes.len() > NOTES_MAX {
            inner.notes.pop_front();
        }
    }
}

impl Book {
    /// Looks at all whose promises are kept now.
    pub(crate) fn mark_all(&self) {
        let names: Vec<String> = {
            let state = self.lock();
            state.entries.iter().filter(|(_, entry)| entry.in_force).map(|(name, _)| name.clone()).collect()
        };
        names.iter().for_each(|name| self.mark(name));
    }

    /// Looks at one.
    pub(crate) fn mark(&self, name: &str) {
        let counted = self.counted(name);
        let state = self.lock();
        let Some(entry) = state.entries.get(name).filter(|entry| entry.in_force) else { return };
        let Some(cpu) = entry.now.cpu else { return };
        let number = state.model.node().promise(name).and_then(|promise| promise.processor);
        let processor = number.and_then(|(number, _)| state.settings.processors.get(number).copied());
        let mark = Mark {
            at_ms: unix_ms(),
            name: name.to_owned(),
            processor,
            budget_ns: cpu.budget_ns,
            period_ns: cpu.period_ns,
            cpu_ns: counted.cpu_ns,
            missed: counted.missed.map(|(missed, _)| missed),
            periods: counted.missed.map(|(_, periods)| periods),
        };
        drop(state);
        self.history.mark(mark);
    }

    /// Returns the recent samples and changes.
    pub(crate) fn trace(&self) -> Trace {
        let inner = self.history.lock();
        Trace {
            now_ms: unix_ms(),
            marks: inner.marks.iter().cloned().collect(),
            notes: inner.notes.iter().cloned().collect(),
        }
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_it_is_kept_and_no_more() {
        let history = History::default();
        for at_ms in 0..MARKS_MAX as u64 + 2 {
            history.mark(Mark { at_ms, ..Mark::default() });
        }
        for _ in 0..NOTES_MAX + 2 {
            history.note(&"x".repeat(2 * WORDS_CHARS));
        }
        let inner = history.lock();
        assert_eq!((inner.marks.len(), inner.marks[0].at_ms), (MARKS_MAX, 2));
        assert!(
            inner.notes.len() == NOTES_MAX && inner.notes.iter().all(|note| note.what.len() == WORDS_CHARS)
        );
    }
}
