//! Grants between nodes. The memory stays on the node of its owner, whose proxy copies from and to
//! it; the grantee has a channel that leads there. Who may borrow is decided on the owner's node,
//! as it is for those who are there.

use super::far::FarPeer;
use super::regions::Region;
use super::{Inner, Own, buffers};
use crate::broker::far::{FAR_TIMEOUT, Refused};
use crate::broker::{Broker, Ends, MemberId, Outgoing, Refusal, Shape, refuse};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use topology::ChannelMode;
use wire::control::{EndpointAddress, GrantedBuffer, Reply};
use wire::grants::node_of_grant;
use wire::loan::RING_BYTES;
use wire::proxy::{Open, Order};
use wire::ring::region_bytes;

/// A grant that the node of its owner was asked for. Dropped, it is no more.
pub(crate) struct FarLoan {
    broker: Broker,
    node: String,
    id: u64,
    answer: oneshot::Receiver<Result<(), Refused>>,
    number: u64,
    own: Own,
    domain: String,
    grant: u64,
    bytes: u64,
    end: Vec<OwnedFd>,
    notices: [Option<OwnedFd>; 2],
    answered: bool,
}

impl Drop for FarLoan {
    fn drop(&mut self) {
        if !self.answered {
            self.broker.cancel_far(&self.node, self.id);
        }
    }
}

impl Broker {
    /// Begins what a `borrow` asks for, where its owner is on another node. `None`: it is for this
    /// node to answer.
    pub(crate) fn borrow_far(
        &self,
        id: MemberId,
        (number, endpoint, grant): (u64, u32, u64),
    ) -> Option<FarLoan> {
        let mut inner = self.lock();
        let who = inner.members.get(&id)?.identity.clone();
        let own = inner.own(id, &who, endpoint).ok()?;
        let node = inner.node_of_far_grant(&own, grant)?;
        // What speaks against it on this node is said where it is looked at again.
        let bytes = inner.may_borrow_far(&own, &who.domain).ok()?;
        let shape = Shape { ring_bytes: RING_BYTES, mode: ChannelMode::Messages, guests: [false; 2] };
        let Ends { consumer, server, consumer_gone, server_gone } = (self.make)(shape).ok()?;
        let me = inner.endpoints.tables.get(&own.dc)?.caller(own.slot)?;
        let open = Open::Grant {
            dc: own.dc.clone(),
            grant,
            from: own.address,
            name: me.name.unwrap_or_default().to_owned(),
            domain: who.domain.clone(),
        };
        let (open_id, answer) = inner.open_at(&node, open, server)?;
        drop(inner);
        Some(FarLoan {
            broker: self.clone(),
            node,
            id: open_id,
            answer,
            number,
            own,
            domain: who.domain,
            grant,
            bytes,
            end: consumer,
            notices: [consumer_gone, server_gone],
            answered: false,
        })
    }

    /// Waits for the other node, and answers the member. `room` is for the end that it gets.
    pub(crate) async fn finish_loan(&self, id: MemberId, mut loan: FarLoan, room: OwnedSemaphorePermit) {
        let answer = tokio::time::timeout(FAR_TIMEOUT, &mut loan.answer).await;
        // Who has answered needs no word that nobody waits.
        loan.answered = answer.is_ok();
        let done = Refused::of(answer, &loan.node);
        let mut inner = self.lock();
        inner.count(&loan.own.dc, loan.own.slot, |counters| match &done {
            Ok(()) => counters.borrowed += 1,
            Err(_) => counters.refused += 1,
        });
        let number = loan.number;
        match done {
            Ok(()) => {
                let channel = inner.next_number();
                let notices = std::mem::take(&mut loan.notices);
                inner.know_loan(
                    channel,
                    &loan,
                    [0, 1].map(|side: usize| notices.get(side).is_some_and(Option::is_some)),
                );
                self.watch_ends(&mut inner, channel, notices);
                let descriptors = std::mem::take(&mut loan.end);
                let reply = Reply::Lent { id: number, grant: loan.grant, channel };
                inner.send(id, Outgoing { reply, descriptors, _room: Some(room) });
            }
            Err(refused) => {
                let Refusal { errno, message } = refused.again(false);
                inner.send(id, Reply::Refused { id: number, errno: errno.raw_os_error(), message }.into());
            }
        }
        drop(inner);
    }
}

impl Inner {
    /// The other node that has made a grant, if there is a proxy for it.
    fn node_of_far_grant(&self, own: &Own, grant: u64) -> Option<String> {
        if !self.far.is_clustered()
            || self.endpoints.numbers.as_ref().is_none_or(|numbers| numbers.is_own_grant(grant))
        {
            return None;
        }
        // What this node has granted before it was part of its cluster has no number of another
        // one's yet.
        let here = self.endpoints.tables.get(&own.dc).is_some_and(|table| table.buffers.knows(grant));
        if here { None } else { self.node_with_number(node_of_grant(grant)) }
    }

    /// Whether an endpoint here may borrow from another node now: bytes of the channel.
    fn may_borrow_far(&self, own: &Own, domain: &str) -> Result<u64, Refusal> {
        self.refuse_guest(&own.dc, domain)?;
        if self.endpoints.numbers.as_ref().is_none_or(|numbers| !numbers.is_own(own.slot)) {
            return refuse(
                Errno::OPNOTSUPP,
                "this endpoint was bound before its node was part of its cluster, and is known here alone: bind it anew",
            );
        }
        let bytes = region_bytes(RING_BYTES);
        self.room_for_pair(own, &[domain.to_owned(), domain.to_owned()], bytes)?;
        Ok(bytes)
    }

    /// Why a grant of another node is not borrowed; `None`: it is none.
    pub(super) fn why_no_loan(&self, own: &Own, domain: &str, grant: u64) -> Option<Refusal> {
        let far = self.far.is_clustered()
            && self.endpoints.numbers.as_ref().is_some_and(|numbers| !numbers.is_own_grant(grant))
            && self.endpoints.tables.get(&own.dc).is_none_or(|table| !table.buffers.knows(grant));
        if !far {
            return None;
        }
        if let Err(refusal) = self.may_borrow_far(own, domain) {
            return Some(refusal);
        }
        let message = match self.node_of_far_grant(own, grant) {
            Some(node) => format!("no memory for a channel to node {node}; try again later"),
            None => format!(
                "grant {grant} is of a node that this one has no link to now (`tombolo node ls`, `tombolo link ls`); try again later"
            ),
        };
        Some(Refusal { errno: Errno::AGAIN, message })
    }

    /// The channel of a loan counts as that of a pair.
    fn know_loan(&mut self, channel: u64, loan: &FarLoan, held: [bool; 2]) {
        let region = Region {
            dc: loan.own.dc.clone(),
            slots: [loan.own.slot; 2],
            domains: [loan.domain.clone(), loan.domain.clone()],
            bytes: loan.bytes,
            held,
            over: false,
            watches: Vec::new(),
        };
        self.endpoints.regions.add(channel, region);
    }

    /// Another node asks for what a grant stands for, for an endpoint there: what it is, and its
    /// memories.
    pub(in crate::broker) fn lend(
        &mut self,
        node: &str,
        open: &Open,
    ) -> Result<(GrantedBuffer, Vec<OwnedFd>), Refusal> {
        let Open::Grant { dc, grant, from, name, domain } = open else {
            return refuse(Errno::OPNOTSUPP, "that is no grant");
        };
        let (name, domain) = (name.clone(), domain.clone());
        let peer = FarPeer { node: node.to_owned(), address: *from, name, domain, pairs: 0 };
        self.believe(dc, &peer)?;
        let copies = self.topologies.get(dc).and_then(|topology| topology.endpoint(&peer.name));
        let copies = copies.is_some_and(|endpoint| endpoint.copies);
        let Some(table) = self.endpoints.tables.get_mut(dc) else {
            return refuse(Errno::NOENT, format!("there is no grant {grant} here"));
        };
        table.buffers.lend(*from, copies, *grant)
    }

    /// The domain to whose owner a grant belongs, as reservations call it.
    pub(in crate::broker) fn domain_of_grant(&self, dc: &str, grant: u64) -> Option<String> {
        let table = self.endpoints.tables.get(dc)?;
        let (owner, _) = table.at(table.buffers.owner_of(grant)?)?;
        Some(format!("{dc}/{}", owner.domain))
    }

    /// Tells the node of an endpoint that what it has borrowed of a grant is over, or stands
    /// elsewhere now.
    pub(super) fn recall(&mut self, dc: &str, grant: u64, endpoint: EndpointAddress) {
        let number = wire::ipc::node_of_slot(endpoint.slot);
        let Some(node) = self.node_with_number(u64::from(number)) else { return };
        self.order(&node, Order::Recall { dc: dc.to_owned(), grant, endpoint }, Vec::new());
    }

    /// An endpoint with a name has ended on another node: what was granted to it goes.
    pub(in crate::broker) fn far_endpoint_ended(&mut self, node: &str, dc: &str, address: EndpointAddress) {
        if self.number_of(node) == Some(wire::ipc::node_of_slot(address.slot))
            && self.is_far_endpoint(address)
        {
            self.buffers_gone(dc, address);
        }
    }

    /// Whether a buffer may be granted to an endpoint of another node.
    pub(super) fn may_grant_far(&self, own: &Own, to: EndpointAddress) -> Result<(), Refusal> {
        let EndpointAddress { slot, generation } = to;
        if self.endpoints.numbers.as_ref().is_none_or(|numbers| !numbers.is_own(own.slot)) {
            return refuse(
                Errno::OPNOTSUPP,
                "this endpoint was bound before its node was part of its cluster, and is known here alone: bind it anew",
            );
        }
        let Some(table) = self.endpoints.tables.get(&own.dc) else {
            return refuse(Errno::BADF, "it has ended");
        };
        // Without a name it is known here by its pairs alone.
        let known = self.far_in_slot(&own.dc, slot).or_else(|| table.far.get(&slot).cloned());
        let (Some(me), Some(peer)) = (table.caller(own.slot), known) else {
            return refuse(
                Errno::NOTCONN,
                format!("no endpoint with the address {slot}.{generation} is bound now"),
            );
        };
        if Self::rights_of(&own.topology, me, peer.caller()).is_none() {
            return refuse(Errno::PERM, buffers::neither(to));
        }
        match peer.address.generation {
            found if found == generation => self.refuse_guest(&own.dc, &peer.domain),
            found if found < generation => refuse(
                Errno::NOTCONN,
                format!("no endpoint with the address {slot}.{generation} is bound now"),
            ),
            _ => refuse(
                Errno::STALE,
                format!("endpoint {slot}.{generation} has ended: nothing can be granted to it"),
            ),
        }
    }
}
