//! Those who are told of changes.

use crate::coordinator::{Coordinator, holder};
use crate::sessions::{OpenWatch, Session, What};
use coordination::MAX_PATH_BYTES;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use session::{Context, LinkId, ReplyTo};

/// The capsule by which the next server resumes a watch.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capsule {
    after: u64,
    prefix: String,
}

impl Coordinator {
    pub(crate) fn open_watch(&mut self, to: ReplyTo, capsule: &[u8]) {
        let open = if capsule.is_empty() {
            OpenWatch { after: self.history.revision(), begun: false, prefix: String::new() }
        } else {
            match serde_json::from_slice(capsule) {
                Ok(Capsule { after, prefix }) if prefix.len() <= MAX_PATH_BYTES => {
                    OpenWatch { after, begun: true, prefix }
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
        self.tell_generation(ctx, link, number);
        self.tell_item(ctx, link, number);
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
