//! The registry's news of certificates that are believed no more.

use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, allegation, certificates, roots_of};
use crate::revoked::Revoked;
use crate::serial::Serial;
use crate::verify::signed;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::Duration;

/// How long after its end a certificate is kept among the revoked: as far apart as clocks of nodes
/// may be, and more.
const AFTER_S: u64 = 86_400;

/// The outcome of a revocation that somebody alleges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// Others are revoked now than before.
    pub changed: bool,
    /// So many numbers without a certificate found no room.
    pub left_out: usize,
}

impl Identity {
    /// Takes note of what the registry says is revoked: numbers, each with the certificate (PEM)
    /// where it is there. What was proven before stays until it has ended by itself; numbers
    /// without a certificate are those that are said now.
    pub fn hear_revoked(&self, said: impl IntoIterator<Item = (Serial, Option<String>)>) -> Heard {
        let before = self.revoked();
        let authorities = self.current().authorities.clone();
        let now = self.now().as_secs();
        let lasts = |until: u64| until.saturating_add(AFTER_S) >= now;
        let mut revoked = Revoked::default();
        for authority in authorities.iter().map(Fingerprint::of) {
            for (serial, until) in before.proven(authority).filter(|(_, until)| lasts(*until)) {
                revoked.add(authority, serial.clone(), until);
            }
        }
        let mut left_out = 0;
        for (serial, certificate_pem) in said {
            if revoked.contains(&serial) {
                continue;
            }
            match certificate_pem.and_then(|pem| issued(&pem, &serial, &authorities)) {
                Some((authority, until)) if lasts(until) => revoked.add(authority, serial, until),
                Some(_) => {}
                None => left_out += usize::from(!revoked.allege(serial)),
            }
        }
        let changed = *before != revoked;
        if changed {
            self.set_revoked(revoked);
        }
        Heard { changed, left_out }
    }
}

/// By which of these authorities the certificate of that number was issued, and until when it is
/// valid.
fn issued(pem: &str, serial: &Serial, authorities: &[CertificateDer<'static>]) -> Option<(Fingerprint, u64)> {
    let chain = certificates(pem, 1).ok()?;
    let alleged = allegation(chain.first()?).ok()?;
    if alleged.serial != *serial {
        return None;
    }
    let begun = UnixTime::since_unix_epoch(Duration::from_secs(alleged.from));
    let is_by = |one: &&CertificateDer<'static>| {
        roots_of(std::slice::from_ref(*one)).is_ok_and(|alone| signed(&chain, &alone, begun).is_ok())
    };
    authorities.iter().find(is_by).map(|one| (Fingerprint::of(one), alleged.until))
}
