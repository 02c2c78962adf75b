//! The errors of this crate.

use std::io;

use crate::store::StoreError;

/// Why a channel can't be offered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfferError {
    /// The name is none.
    #[error(
        "{name:?} is no name of a channel: 1 to {} letters, digits, `-` or `_`",
        wire::xen::NAME_BYTES_MAX
    )]
    Name {
        /// The name.
        name: String,
    },
    /// It is this one. A domain that has no page tables of its own (PVH, HVM) and maps its own
    /// grant loses the page it granted.
    #[error("domain {domain} is this one: two programs of one domain have ordinary channels")]
    SameDomain {
        /// The number.
        domain: u16,
    },
    /// The domain's number is none.
    #[error("{domain} is no number of a domain (0 to {})", wire::xen::DOMAIN_MAX)]
    Domain {
        /// The number.
        domain: u16,
    },
    /// The rings are too large or no power of two.
    #[error(
        "rings between domains have 4096 to {} bytes, a power of two, not {ring_bytes}",
        wire::xen::RING_BYTES_MAX
    )]
    RingBytes {
        /// The length that was asked for.
        ring_bytes: u32,
    },
    /// The other domain has its share of what this one may grant.
    #[error(
        "domain {domain} has {pages} pages of what this one may grant, and may have three quarters at most: close channels to it, end programs there that hold on to channels which are over, or raise the parameter `limit` of the module xen-gntalloc"
    )]
    Share {
        /// The other domain.
        domain: u16,
        /// How many pages of ours it has.
        pages: usize,
    },
    /// The kernel or the hypervisor refused.
    #[error("can't {action}")]
    System {
        /// The action that was tried.
        action: &'static str,
        /// Why it was refused.
        #[source]
        source: io::Error,
    },
    /// XenStore.
    #[error("can't announce the channel in XenStore")]
    Store(#[from] StoreError),
    /// The region's header.
    #[error("can't make the region's header")]
    Header(#[source] channel::CreateError),
}

/// Why a channel can't be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is none.
    #[error(
        "{name:?} is no name of a channel: 1 to {} letters, digits, `-` or `_`",
        wire::xen::NAME_BYTES_MAX
    )]
    Name {
        /// The name.
        name: String,
    },
    /// It is this one. A domain that has no page tables of its own (PVH, HVM) and maps its own
    /// grant loses the page it granted.
    #[error("domain {domain} is this one: two programs of one domain have ordinary channels")]
    SameDomain {
        /// The number.
        domain: u16,
    },
    /// The domain's number is none.
    #[error("{domain} is no number of a domain (0 to {})", wire::xen::DOMAIN_MAX)]
    Domain {
        /// The number.
        domain: u16,
    },
    /// Nobody has offered it in time.
    #[error(
        "domain {domain} does not offer a channel {name:?} to this one, or somebody here has opened it already"
    )]
    NotOffered {
        /// The domain.
        domain: u16,
        /// The name.
        name: String,
    },
    /// The entry in XenStore is no offer.
    #[error("what domain {domain} offers can't be read")]
    BadOffer {
        /// The domain.
        domain: u16,
        /// Why.
        #[source]
        source: wire::xen::BadOffer,
    },
    /// The directory page breaks a rule.
    #[error("domain {domain} offers a channel that is none: its directory's {field} is {found:#x}")]
    BadDirectory {
        /// The domain.
        domain: u16,
        /// The field.
        field: &'static str,
        /// The value in its place.
        found: u64,
    },
    /// The kernel or the hypervisor refused.
    #[error("can't {action}")]
    System {
        /// The action that was tried.
        action: &'static str,
        /// Why it was refused.
        #[source]
        source: io::Error,
    },
    /// XenStore.
    #[error("can't look for the channel in XenStore")]
    Store(#[from] StoreError),
}
