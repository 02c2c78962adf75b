//! Events of domains and distributed containers, for those who look or listen: the last of them are
//! kept, in memory.

use admin::Event;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Events that are kept: some hours of a node on which little happens, and less memory than one
/// domain's log takes.
const KEPT: usize = 1024;
/// Longest reason that is kept of one, in characters.
const REASON_CHARS: usize = 512;

/// The last events of one daemon.
#[derive(Debug, Default)]
pub(crate) struct Events {
    kept: Mutex<VecDeque<Event>>,
    /// The number of the last one; numbers begin with 1.
    last: watch::Sender<u64>,
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something happened now.
    pub(crate) fn happened(&self, dc: &str, domain: Option<&str>, what: &str, why: Option<String>) {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let mut kept = self.lock();
        let number = *self.last.borrow() + 1;
        kept.push_back(Event {
            number,
            at_ms: u64::try_from(at_ms).unwrap_or(u64::MAX),
            dc: dc.to_owned(),
            domain: domain.map(str::to_owned),
            what: what.to_owned(),
            why: why.map(|why| why.chars().take(REASON_CHARS).collect()),
        });
        if kept.len() > KEPT {
            kept.pop_front();
        }
        drop(kept);
        self.last.send_replace(number);
    }

    /// Returns the events after that number, as far as they are kept.
    pub(crate) fn after(&self, number: u64) -> Vec<Event> {
        self.lock().iter().filter(|event| event.number > number).cloned().collect()
    }

    /// Ticks when there is more.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_in_order_and_each_has_a_number() {
        let events = Events::default();
        for round in 0..KEPT + 2 {
            events.happened("shop", Some("web"), "running", Some(format!("{round}").repeat(REASON_CHARS)));
        }
        let kept = events.after(0);
        assert_eq!((kept.len(), kept[0].number), (KEPT, 3));
        assert!(kept.windows(2).all(|two| two[0].number + 1 == two[1].number));
        assert!(kept.iter().all(|event| event.why.as_ref().is_some_and(|why| why.len() == REASON_CHARS)));
        assert_eq!(events.after(*events.changes().borrow()), []);
    }
}
