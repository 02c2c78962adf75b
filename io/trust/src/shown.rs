//! The certificates that were shown on connections that live long: a handshake looks at them once,
//! and what is believed changes.

use crate::error::TrustError;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, Peer, roots_of};
use crate::verify::{Checker, signed};
use rustls::pki_types::{CertificateDer, UnixTime};

/// The certificates that the other end of a connection has shown, and that were believed.
#[derive(Debug, Clone)]
pub struct Shown {
    chain: Vec<CertificateDer<'static>>,
    at: UnixTime,
    peer: Peer,
}

impl Shown {
    /// The party that showed it.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// When it was shown does not matter.
impl PartialEq for Shown {
    fn eq(&self, other: &Self) -> bool {
        self.chain == other.chain
    }
}

impl Eq for Shown {}

impl Identity {
    /// Checks a chain as a handshake does, and keeps it.
    ///
    /// # Errors
    /// As for [`Identity::check`].
    pub fn shown(&self, chain: &[CertificateDer<'_>]) -> Result<Shown, TrustError> {
        let at = self.now();
        let peer = Checker(self.clone()).check(chain, at)?;
        Ok(Shown { chain: chain.iter().map(|one| one.clone().into_owned()).collect(), at, peer })
    }

    /// Whether it would be believed today as it was then: not what was revoked, nor what an
    /// authority issued that was replaced. A certificate that has ended meanwhile was good when it
    /// was shown.
    ///
    /// # Errors
    /// [`TrustError::OtherCluster`], [`TrustError::Revoked`].
    pub fn still(&self, shown: &Shown) -> Result<(), TrustError> {
        Checker(self.clone()).check(&shown.chain, shown.at).map(drop)
    }

    /// Whether it was issued by this authority, of those that this node believes.
    #[must_use]
    pub fn is_by(&self, shown: &Shown, authority: Fingerprint) -> bool {
        self.is_chain_by(&shown.chain, authority, shown.at)
    }

    pub(crate) fn is_chain_by(
        &self,
        chain: &[CertificateDer<'_>],
        authority: Fingerprint,
        at: UnixTime,
    ) -> bool {
        let mut authorities = self.current().authorities.clone();
        authorities.retain(|one| Fingerprint::of(one) == authority);
        roots_of(&authorities).is_ok_and(|roots| signed(chain, &roots, at).is_ok())
    }
}
