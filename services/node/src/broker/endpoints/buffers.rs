//! Buffers and grants.

use super::{EndpointAddress, Inner, Own};
use crate::broker::{Identity, Outgoing, Refusal, refuse};
use rustix::io::Errno;
use wire::control::GrantAccess;

/// Those of one distributed container.
#[derive(Debug)]
pub(super) struct Buffers {
    _first: u64,
}

/// What a `grant` asks for.
pub(super) struct Wish {
    pub(super) buffer: u64,
    pub(super) to: EndpointAddress,
    pub(super) access: GrantAccess,
    pub(super) place: u32,
    pub(super) grant: u64,
}

impl Buffers {
    pub(super) fn new(first: u64) -> Self {
        Self { _first: first }
    }

    pub(super) fn bytes(&self) -> u64 {
        0
    }
}

fn not_yet<T>() -> Result<T, Refusal> {
    refuse(Errno::OPNOTSUPP, "this node has no buffers yet")
}

impl Inner {
    pub(super) fn make_buffer(&mut self, _: &Own, _: &Identity, _: u64, _: u64) -> Result<Outgoing, Refusal> {
        not_yet()
    }

    pub(super) fn free_buffer(&mut self, _: &Own, _: u64, _: u64) -> Result<Outgoing, Refusal> {
        not_yet()
    }

    pub(super) fn grant(&mut self, _: &Own, _: u64, _: &Wish) -> Result<Outgoing, Refusal> {
        not_yet()
    }

    pub(super) fn revoke(&mut self, _: &Own, _: u64, _: u64) -> Result<Outgoing, Refusal> {
        not_yet()
    }

    pub(super) fn borrow(&mut self, _: &Own, _: &Identity, _: u64, _: u64) -> Result<Outgoing, Refusal> {
        not_yet()
    }

    pub(super) fn buffers_gone(&mut self, _: &str, _: EndpointAddress) {}
}
