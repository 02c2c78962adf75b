//! The members that are connected to the stand-in, and what is sent to them.

use session::packet::{self, Packet};
use std::os::fd::{AsFd, OwnedFd};
use wire::control::Reply;

/// A packet for a member.
pub(super) type Answer = Packet<Reply>;

/// A connection.
pub(super) struct Member {
    pub(super) number: u64,
    pub(super) domain: String,
    pub(super) socket: OwnedFd,
}

/// Where answers go.
pub(super) struct Outbox<'a>(pub(super) &'a [Member]);

impl Outbox<'_> {
    pub(super) fn reply(&self, member: u64, reply: &Reply) {
        self.send(member, reply, &[]);
    }

    pub(super) fn send(&self, member: u64, reply: &Reply, descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Some(member) = self.0.iter().find(|one| one.number == member) {
            let _gone = packet::send(&member.socket, reply, &descriptors);
        }
    }
}
