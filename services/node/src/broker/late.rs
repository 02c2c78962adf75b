//! Events that find no room in a member's outbox and must not be lost: they wait here, the newest of each kind in the place of the one
//! before. So nobody is cut off because of what others do, and what waits is bounded by what the member's endpoints have.

use super::{Inner, KEPT_PACKETS, MemberId, Outgoing};
use std::collections::BTreeMap;
use wire::control::{EndpointAddress, Event};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum About {
    /// The endpoint itself.
    Endpoint,
    /// A peer of it.
    Peer(EndpointAddress),
    /// A grant that it has borrowed.
    Grant(u64),
}

/// Those of one member, by the endpoint and what they are about.
pub(super) type Late = BTreeMap<(u32, AboutKey), Event>;

/// Keeps [`About`] to this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AboutKey(About);

/// Where an event waits; `None`: it is none that may wait.
fn key(event: &Event) -> Option<(u32, AboutKey)> {
    let (endpoint, about) = match event {
        Event::Unbound { endpoint, .. } => (*endpoint, About::Endpoint),
        Event::Rights { endpoint, peer, .. } => (*endpoint, About::Peer(*peer)),
        Event::Moved { endpoint, grant } | Event::Revoked { endpoint, grant } => {
            (*endpoint, About::Grant(*grant))
        }
        _ => return None,
    };
    Some((endpoint, AboutKey(about)))
}

impl Inner {
    /// Tells a member something, at once or as soon as it has read what it was told before. Some room is left for answers: whoever has not
    /// looked for a while may ask before it reads.
    pub(super) fn tell(&mut self, id: MemberId, event: Event) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(key) = key(&event) else {
            self.send(id, event.into());
            return;
        };
        if member.late.is_empty() && member.outbox.capacity() > KEPT_PACKETS {
            self.send(id, event.into());
        } else {
            member.late.insert(key, event);
        }
    }

    /// A member has read something: there is room for what waits.
    pub(super) fn tell_late(&mut self, id: MemberId) {
        while let Some(member) = self.members.get_mut(&id)
            && member.outbox.capacity() > KEPT_PACKETS
            && let Some((_, event)) = member.late.pop_first()
        {
            self.send(id, Outgoing::from(event));
        }
    }

    /// Whether everything that a member was to be told is on its way.
    pub(super) fn is_told(&self, id: MemberId) -> bool {
        self.members.get(&id).is_some_and(|member| member.late.is_empty())
    }
}
