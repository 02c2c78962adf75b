//! Recently committed events, for those who are told of changes.

use coordination::Event;
use std::collections::VecDeque;

/// Changes that are kept for watchers that are behind: some hundred KiB. One that is further behind
/// is told of a gap.
const HISTORY: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct History {
    events: VecDeque<Event>,
    /// The count of changes after the last one that is committed.
    revision: u64,
}

impl History {
    /// So many changes there were before this server.
    pub(crate) fn begin(&mut self, revision: u64) {
        self.revision = revision;
    }

    pub(crate) fn add(&mut self, events: Vec<Event>) {
        for event in events {
            self.revision = event.revision;
            if self.events.len() == HISTORY {
                self.events.pop_front();
            }
            self.events.push_back(event);
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The first change after `after`; `Err`: some are not known any more, and the next known is
    /// after this.
    pub(crate) fn next(&self, after: u64) -> Result<Option<&Event>, u64> {
        if after >= self.revision {
            return Ok(None);
        }
        let first = self.events.front().map_or(self.revision + 1, |event| event.revision);
        if after + 1 < first {
            return Err(first - 1);
        }
        let at = usize::try_from(after + 1 - first).unwrap_or(usize::MAX);
        Ok(self.events.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_old_is_said_to_be_a_gap_and_nothing_else_is_left_out() {
        let mut history = History::default();
        history.begin(10);
        assert_eq!(history.next(10), Ok(None));
        assert_eq!(history.next(7), Err(10), "an earlier server told of those");
        let event = |revision| Event { revision, line: String::new() };
        history.add((11..=10 + HISTORY as u64).map(event).collect());
        assert_eq!(history.next(10), Ok(Some(&event(11))));
        history.add(vec![event(11 + HISTORY as u64)]);
        assert_eq!(history.next(10), Err(11));
        assert_eq!(history.next(11), Ok(Some(&event(12))));
    }
}
