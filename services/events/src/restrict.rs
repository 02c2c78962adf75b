//! Holds subscriptions to the filters that the topology file gives to their domain.

use crate::given::{Given, given_of};
use crate::service::Events;
use crate::session_table::{Session, SessionKey};
use publication::Filter;
use rustix::io::Errno;
use session::{Context, LinkId};

/// The reason in words, for a domain that wants another filter.
const FIXED: &str = "the topology file gives this domain's subscriptions their filter";

impl Events {
    /// The filter that subscriptions of the domain behind a link have by the file.
    pub(crate) fn given(&self, serial: u32, link: LinkId) -> Option<&Given> {
        let open = self.channels.get(&serial)?;
        let owner = self.links.get(&link)?.owner;
        self.given.get(&(open.channel.name().to_vec(), owner))
    }

    /// Whether subscriptions of this domain may have another filter.
    pub(crate) fn may_filter(&self, serial: u32, link: LinkId) -> Result<(), (Errno, String)> {
        match self.given(serial, link) {
            None => Ok(()),
            Some(_) => Err((Errno::PERM, FIXED.to_owned())),
        }
    }

    /// The newest event, for a domain that may subscribe: nothing, if its filter does not let it
    /// through. A module sees each event once, and is not asked for this.
    pub(crate) fn newest(&mut self, serial: u32, link: LinkId) -> Result<Vec<u8>, Errno> {
        let filter = match self.given(serial, link) {
            None => None,
            Some(Given::Filter(filter)) => Some(filter.clone()),
            Some(Given::Module { .. } | Given::Broken(_)) => return Err(Errno::ACCESS),
        };
        let open = self.channels.get_mut(&serial).ok_or(Errno::STALE)?;
        let mut text = Vec::new();
        open.channel.newest(&mut text);
        Ok(if filter.is_none_or(|it| open.channel.lets_through(&it, &text)) { text } else { Vec::new() })
    }

    /// Takes the filters of new settings: open subscriptions have them from the next event on.
    /// Those that are given another module end, and have it when they are opened again.
    pub(crate) fn follow_given(&mut self, ctx: &mut dyn Context) {
        let before = std::mem::replace(&mut self.given, given_of(&self.settings));
        let subscribed = self.sessions.iter().filter_map(|(key, session)| match session {
            Session::Subscriber { serial, id } => Some((*key, *serial, *id)),
            Session::Publisher { .. } => None,
        });
        for (key, serial, id) in subscribed.collect::<Vec<_>>() {
            let Some(open) = self.channels.get(&serial) else { continue };
            let Some(owner) = self.links.get(&key.0).map(|link| link.owner) else { continue };
            let of = (open.channel.name().to_vec(), owner);
            let now = self.given.get(&of).cloned();
            if now.as_ref() == before.get(&of) {
                continue;
            }
            let Some(open) = self.channels.get_mut(&serial) else { continue };
            let set = match now {
                None => open.channel.set_filter(id, None::<Filter>).is_ok(),
                Some(Given::Filter(filter)) => open.channel.set_filter(id, Some(filter)).is_ok(),
                Some(Given::Module { .. } | Given::Broken(_)) => false,
            };
            if set {
                self.keep_subscriber(ctx, key);
                self.deliver_to(ctx, serial, id.place());
            } else {
                self.end_given(ctx, key);
            }
        }
    }

    fn end_given(&mut self, ctx: &mut dyn Context, key: SessionKey) {
        self.note_refusal(key.0, "the topology file gives this subscription another filter: open it again");
        ctx.end(key.0, key.1, Some(Errno::CANCELED));
        self.end_session(ctx, key, true);
    }
}
