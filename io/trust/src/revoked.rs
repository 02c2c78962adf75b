//! The certificates that are believed no more.
//!
//! A serial counts for certain where the certificate of that number is beside it: the authority
//! issued it, and so nobody can fill the set with invented ones. What counts for certain stays
//! until the certificate has ended by itself, whatever the registry says later. Where more count
//! than are kept, nobody can say any more who is revoked and who is not: then no certificate of
//! that authority is believed.

use crate::error::TrustError;
use crate::fingerprint::Fingerprint;
use crate::serial::Serial;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Most serials of one authority that are revoked at a time, and most of those that nobody has
/// shown to be issued: more than a cluster of a hundred nodes removes in 90 days, and what a
/// handshake looks through in no time.
pub const MAX_REVOKED: usize = 4096;

/// Certificates that are believed no more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked {
    /// Those that were certainly issued, by authority, with their ends in seconds of Unix time. One
    /// more than [`MAX_REVOKED`] stands for any number.
    proven: BTreeMap<Fingerprint, BTreeMap<Serial, u64>>,
    /// Numbers without a certificate: a release wrote them that wrote none, or somebody invented
    /// them.
    alleged: BTreeSet<Serial>,
}

impl Revoked {
    /// Whether the certificate of that number is revoked.
    #[must_use]
    pub fn contains(&self, serial: &Serial) -> bool {
        self.alleged.contains(serial) || self.proven.values().any(|of_one| of_one.contains_key(serial))
    }

    /// All numbers: of one authority at most one more than [`MAX_REVOKED`].
    pub fn serials(&self) -> impl Iterator<Item = &Serial> {
        self.alleged.iter().chain(self.proven.values().flat_map(BTreeMap::keys))
    }

    /// Those of an authority that were certainly issued, with their ends.
    pub(crate) fn proven(&self, authority: Fingerprint) -> impl Iterator<Item = (&Serial, u64)> {
        self.proven.get(&authority).into_iter().flatten().map(|(serial, until)| (serial, *until))
    }

    /// Adds a number of which nobody has shown that it was issued, if there is room.
    pub(crate) fn allege(&mut self, serial: Serial) -> bool {
        self.alleged.len() < MAX_REVOKED && self.alleged.insert(serial)
    }

    /// Authorities of which more certificates are revoked than are kept: no certificate of theirs
    /// is believed.
    pub fn closed(&self) -> impl Iterator<Item = Fingerprint> + '_ {
        self.proven.iter().filter(|(_, of_one)| of_one.len() > MAX_REVOKED).map(|(authority, _)| *authority)
    }

    pub(crate) fn add(&mut self, authority: Fingerprint, serial: Serial, until: u64) {
        let of_one = self.proven.entry(authority).or_default();
        if of_one.len() <= MAX_REVOKED {
            of_one.insert(serial, until);
        }
    }

    /// As it is kept in a file: numbers that nobody has shown to be issued, and then for each
    /// authority its fingerprint and those of its certificates.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        for serial in &self.alleged {
            let _written = writeln!(text, "{serial}");
        }
        for (authority, of_one) in &self.proven {
            let _written = writeln!(text, "authority {authority}");
            for (serial, until) in of_one {
                let _written = writeln!(text, "{serial} {until}");
            }
        }
        text
    }

    pub(crate) fn parse(text: &str) -> Result<Self, TrustError> {
        let mut read = Self::default();
        let mut authority = None;
        for line in text.lines() {
            match line.split_once(' ') {
                None => {
                    read.alleged.insert(Serial::parse(line)?);
                }
                Some(("authority", of)) => authority = Some(of.parse()?),
                Some((serial, until)) => {
                    let until = until.parse().map_err(|_| garbage("a time in it is no number"))?;
                    let authority = authority.ok_or_else(|| garbage("it does not say of which authority"))?;
                    read.add(authority, Serial::parse(serial)?, until);
                }
            }
        }
        Ok(read)
    }
}

fn garbage(why: &str) -> TrustError {
    TrustError::Garbage { what: "the list of revoked certificates".into(), why: why.to_owned() }
}
