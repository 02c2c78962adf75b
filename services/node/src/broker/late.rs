//! Events that find no room in a member's outbox and must not be lost: they wait here, the newest
//! of each kind in the place of the one before. So nobody is cut off because of what others do, and
//! what waits is bounded by what the member's endpoints have, and by the services that its domain
//! mounts.

use super::{Inner, KEPT_PACKETS, MemberId, Outgoing};
use std::collections::BTreeMap;
use wire::control::{EndpointAddress, Event};

/// The subject of an event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum About {
    /// An endpoint, by its slot.
    Endpoint(u32),
    /// Where an endpoint is to move.
    Migration(u32),
    /// A peer of it.
    Peer(u32, EndpointAddress),
    /// A grant that it has borrowed.
    Grant(u32, u64),
    /// A service that a frontend shows.
    Service(String),
}

/// Those of one member, by what they are about.
pub(super) type Late = BTreeMap<About, Event>;

/// Returns the subject of an event that may wait; `None`: the event may not.
fn about(event: &Event) -> Option<About> {
    Some(match event {
        Event::Unbound { endpoint, .. } => About::Endpoint(*endpoint),
        Event::Migrate { endpoint, .. } => About::Migration(*endpoint),
        Event::Rights { endpoint, peer, .. } | Event::Superseded { endpoint, peer, .. } => {
            About::Peer(*endpoint, *peer)
        }
        Event::Moved { endpoint, grant } | Event::Revoked { endpoint, grant } => {
            About::Grant(*endpoint, *grant)
        }
        Event::Service { service, .. } => About::Service(service.clone()),
        _ => return None,
    })
}

impl Inner {
    /// Tells a member something, at once or as soon as it has read what it was told before. Some
    /// room is left for answers: whoever has not looked for a while may ask before it reads.
    pub(super) fn tell(&mut self, id: MemberId, event: Event) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let Some(about) = about(&event) else {
            self.send(id, event.into());
            return;
        };
        if member.late.is_empty() && member.outbox.capacity() > KEPT_PACKETS {
            self.send(id, event.into());
        } else {
            member.late.insert(about, event);
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
