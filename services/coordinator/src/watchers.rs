//! Those who are told of changes.

use crate::coordinator::{Coordinator, Session, What, holder};
use coordination::{Event, MAX_PATH_BYTES};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use session::{Context, LinkId, ReplyTo};
use std::collections::VecDeque;

/// Changes that are kept for watchers that are behind: some hundred KiB. One that is further behind is told of a gap.
const HISTORY: usize = 4096;

/// What was committed lately.
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

    /// The first change after `after`; `Err`: some are not known any more, and the next known is after this.
    fn next(&self, after: u64) -> Result<Option<&Event>, u64> {
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

/// `watch`, open.
#[derive(Debug)]
pub(crate) struct Open {
    after: u64,
    /// Whether the reader knows from where on it is told.
    begun: bool,
    /// Only of what begins so.
    prefix: String,
}

/// What a watcher shows to the next server.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capsule {
    after: u64,
    prefix: String,
}

impl Coordinator {
    pub(crate) fn open_watch(&mut self, to: ReplyTo, capsule: &[u8]) {
        let open = if capsule.is_empty() {
            Open { after: self.history.revision(), begun: false, prefix: String::new() }
        } else {
            match serde_json::from_slice(capsule) {
                Ok(Capsule { after, prefix }) if prefix.len() <= MAX_PATH_BYTES => {
                    Open { after, begun: true, prefix }
                }
                _ => return self.answer(to, Err(Errno::INVAL)),
            }
        };
        match holder() {
            Ok(holder) => {
                self.insert(to, holder, What::Watch(open));
                self.answer(to, Ok(Vec::new()));
            }
            Err(errno) => self.answer(to, Err(errno)),
        }
    }

    /// A watcher says what it wants to be told of.
    pub(crate) fn set_prefix(&mut self, to: ReplyTo, payload: &[u8]) {
        let prefix = std::str::from_utf8(payload).map(str::trim_end).ok();
        let prefix = prefix.filter(|prefix| prefix.len() <= MAX_PATH_BYTES).map(str::to_owned);
        let answer = match (self.sessions.get_mut(&(to.link, to.session)), prefix) {
            (Some(Session { what: What::Watch(open), .. }), Some(prefix)) => {
                open.prefix = prefix;
                Ok(Vec::new())
            }
            (_, None) => Err(Errno::INVAL),
            _ => Err(Errno::BADF),
        };
        self.answer(to, answer);
    }

    /// Tells all watchers what is new.
    pub(crate) fn feed_watchers(&mut self, ctx: &mut dyn Context) {
        let watches = self.sessions.iter().filter(|(_, session)| matches!(session.what, What::Watch(_)));
        for (link, number) in watches.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.send_to(ctx, link, number);
        }
    }

    /// Sends the reader of a stream what there is, as far as its credit goes.
    pub(crate) fn send_to(&mut self, ctx: &mut dyn Context, link: LinkId, number: u64) {
        self.tell_token(ctx, link, number);
        let Some(Session { what: What::Watch(open), .. }) = self.sessions.get_mut(&(link, number)) else {
            return;
        };
        loop {
            let (line, after) = if open.begun {
                match self.history.next(open.after) {
                    Ok(None) => return,
                    Ok(Some(event)) => {
                        let path = event.line.rsplit(' ').next().unwrap_or_default();
                        if !path.starts_with(&open.prefix) {
                            open.after = event.revision;
                            continue;
                        }
                        (format!("{} {}\n", event.revision, event.line), event.revision)
                    }
                    Err(after) => (format!("{after} gap\n"), after),
                }
            } else {
                let now = self.history.revision().max(open.after);
                (format!("{now} now\n"), now)
            };
            let capsule = Capsule { after, prefix: open.prefix.clone() };
            let capsule = serde_json::to_vec(&capsule).unwrap_or_default();
            if !ctx.record(link, number, line.as_bytes(), &capsule) {
                return;
            }
            (open.after, open.begun) = (after, true);
        }
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
