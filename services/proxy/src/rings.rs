//! The memory of a channel, as far as a proxy has to answer for it.
//!
//! Whoever touches a page of a channel's region first is charged for it, for as long as anybody has
//! the region: also after the proxy has left the channel. So what was counted for a pair is given
//! back when the program at the other end has left as well; then the proxy frees the pages, whoever
//! may keep the region mapped.

use crate::carrier::Carrier;
use crate::domains::{Domains, Lacks, Member, pair_bytes};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use wire::link::Pair;
use wire::ring::END_DESCRIPTORS;

/// How soon it is looked whether a link still holds something of a pair, and how seldom.
const LOOK_MIN: Duration = Duration::from_millis(10);
/// See [`LOOK_MIN`].
const LOOK_MAX: Duration = Duration::from_secs(1);

/// Why an end is not taken.
#[derive(Debug, Error)]
pub(crate) enum NoRings {
    /// The descriptors are no end's.
    #[error("{found} descriptors are no channel's end, which has {END_DESCRIPTORS}")]
    Count {
        /// How many there are.
        found: usize,
    },
    /// Something of the system failed.
    #[error("a channel's end can't be looked at: {0}")]
    System(#[from] io::Error),
    /// There is no memory for it.
    #[error(transparent)]
    Lacks(#[from] Lacks),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Rings {
    region: OwnedFd,
    /// Hangs up when the other end of the channel is gone; rings are its end's business.
    gone: OwnedFd,
    member: Member,
}

impl Rings {
    /// Of an end that is to be served for a domain of this node: the order of the descriptors is
    /// that of `docs/spec/ring.md`.
    ///
    /// # Errors
    /// [`NoRings`].
    pub(crate) fn take(descriptors: &[OwnedFd], domains: &Domains, name: &str) -> Result<Self, NoRings> {
        let [first, second, .., last] = descriptors else {
            return Err(NoRings::Count { found: descriptors.len() });
        };
        // The first end has its region first, the second has it last; the listening half of the
        // first doorbell comes next.
        let (region, gone) = if sys::memfd::is_file(first)? { (first, second) } else { (last, first) };
        let bytes =
            u64::try_from(rustix::fs::fstat(region).map_err(io::Error::from)?.st_size).unwrap_or(u64::MAX);
        let member = domains.take(name, pair_bytes(bytes))?;
        Ok(Self { region: region.try_clone()?, gone: gone.try_clone()?, member })
    }

    /// The member that it is counted for.
    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    /// The proxy has left the channel: waits until the other end has as well, frees the memory, and
    /// waits until the link holds nothing of the pair any more.
    pub(crate) async fn give_back(self, carrier: &dyn Carrier, pair: Pair) {
        let Self { region, gone, member } = self;
        if let Err(error) = hung_up(gone).await {
            tracing::error!(%error, "the end of a channel can't be awaited");
        }
        if let Err(error) = sys::memfd::free(&region) {
            tracing::warn!(%error, "the memory of a channel that is over can't be freed");
        }
        until_sent(carrier, pair).await;
        drop(member);
    }
}

/// Waits until the link holds nothing of a pair that is closed: what was queued before is sent all
/// the same, as far as the other node takes it.
pub(crate) async fn until_sent(carrier: &dyn Carrier, pair: Pair) {
    let mut pause = LOOK_MIN;
    while carrier.held_of(pair) > 0 {
        // tidy(sleep): a link tells nothing more of a pair that is closed.
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(LOOK_MAX);
    }
}

async fn hung_up(descriptor: OwnedFd) -> io::Result<()> {
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    let watched = AsyncFd::with_interest(descriptor, Interest::PRIORITY)?;
    watched.ready(Interest::PRIORITY).await.map(drop)
}
