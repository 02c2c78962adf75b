//! Certificates of the members of a cluster's own etcd, and what etcd is told of those that are
//! revoked.
//!
//! A member's key is read by etcd, which runs as a user of its own. So its certificate is no
//! node's: it has no name of a node, and no peer API takes it for one. It is issued for an address,
//! by which etcd's members and their clients check each other, and all members have one common
//! name, by which they are told from nodes, whose certificates the same authority has issued.

use crate::authority::{Authority, crypto, named};
use crate::error::TrustError;
use crate::fingerprint::Fingerprint;
use crate::identity::{MAX_CHAIN, allegation, certificates};
use crate::serial::Serial;
use crate::{NODE_DAYS, Request, files};
use rcgen::{
    CertificateParams, CertificateRevocationListParams, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

/// The common name of each member's certificate: no node's name, because of the space.
pub const MEMBER_NAME: &str = "etcd member";
/// For how long a list of revoked certificates says that it is good; etcd does not look, and it is
/// written anew at each change.
const LIST_LASTS: Duration = Duration::from_secs(3_653 * 86_400);

/// The content of a member's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub serial: Serial,
    /// From when it is valid, in seconds of Unix time.
    pub from_unix_s: u64,
    /// Until when.
    pub until_unix_s: u64,
    /// The authority that issued it.
    pub issuer: Fingerprint,
    /// Its issuer's certificate, as PEM.
    pub issuer_pem: String,
}

impl Member {
    /// Whether it is time for another: a third of its time is left, or less.
    #[must_use]
    pub fn is_due(&self, now_unix_s: u64) -> bool {
        let whole = self.until_unix_s.saturating_sub(self.from_unix_s);
        self.until_unix_s.saturating_sub(now_unix_s) <= whole / 3
    }
}

impl Authority {
    /// Issues a certificate for the etcd member at `address` to whoever made the request; nothing
    /// of the request counts but its key. Returns the chain, as PEM.
    ///
    /// # Errors
    /// [`TrustError::Garbage`] (no request, or one whose key did not sign it),
    /// [`TrustError::Crypto`].
    pub fn sign_member(
        &self,
        request_pem: &str,
        address: IpAddr,
        now: SystemTime,
    ) -> Result<String, TrustError> {
        let mut params = named(self.cluster(), MEMBER_NAME, now, NODE_DAYS)?;
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        self.issue(request_pem, params)
    }

    /// Key and chain of the member on the node that has the authority, as PEM: a secret.
    ///
    /// # Errors
    /// [`TrustError::Crypto`].
    pub fn member(&self, address: IpAddr, now: SystemTime) -> Result<String, TrustError> {
        let request = Request::new("member")?;
        Ok(request.key_pem() + &self.sign_member(&request.pem()?, address, now)?)
    }
}

/// The content of a member's certificate, from its chain as PEM.
///
/// # Errors
/// [`TrustError::Garbage`].
pub fn member_of_pem(chain_pem: &str) -> Result<Member, TrustError> {
    let garbage = |why: String| TrustError::Garbage { what: "the certificate of an etcd member".into(), why };
    let chain = certificates(chain_pem, MAX_CHAIN).map_err(garbage)?;
    let [own, issuer] = &chain[..] else {
        return Err(garbage("it comes with its authority's, and nothing else".into()));
    };
    let said = allegation(own)?;
    let (issuer, issuer_pem) = (Fingerprint::of(issuer), files::pem_of(issuer));
    Ok(Member { serial: said.serial, from_unix_s: said.from, until_unix_s: said.until, issuer, issuer_pem })
}

/// The certificates of several PEMs, each of them once.
///
/// # Errors
/// [`TrustError::Garbage`].
pub fn union_of_pem(pems: &[&str]) -> Result<String, TrustError> {
    let mut seen = BTreeSet::new();
    let mut union = String::new();
    for pem in pems {
        for certificate in certificates(pem, MAX_CHAIN)
            .map_err(|why| TrustError::Garbage { what: "the authorities that etcd believes".into(), why })?
        {
            if seen.insert(certificate.as_ref().to_vec()) {
                union.push_str(&files::pem_of(&certificate));
            }
        }
    }
    Ok(union)
}

/// The revoked serials as etcd reads them (DER, RFC 5280). etcd asks for no signature, and not
/// every node has the authority: a key that nobody keeps signs it.
///
/// An authority of which more are revoked than are kept stays among those that etcd believes, since
/// it is replaced by way of etcd; of its certificates the list has those that are kept.
///
/// # Errors
/// [`TrustError::Crypto`].
pub fn revocation_list<'s>(
    revoked: impl IntoIterator<Item = &'s Serial>,
    now: SystemTime,
) -> Result<Vec<u8>, TrustError> {
    let what = "write the list of revoked certificates";
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::NoCa;
    params.key_usages = vec![KeyUsagePurpose::CrlSign];
    let issuer = Issuer::new(params, KeyPair::generate().map_err(crypto(what))?);
    let one = |serial: &Serial| RevokedCertParams {
        serial_number: SerialNumber::from_slice(&serial.bytes()),
        revocation_time: now.into(),
        reason_code: None,
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: now.into(),
        next_update: now.checked_add(LIST_LASTS).unwrap_or(now).into(),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: revoked.into_iter().map(one).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let signed = list.signed_by(&issuer).map_err(crypto(what))?;
    Ok(signed.der().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, Revoked, first_of_pem, peer_of_pem};
    use x509_parser::prelude::{CertificateRevocationList, FromDer};

    #[test]
    fn a_members_certificate_is_no_nodes_and_says_who_issued_it_and_until_when() {
        let now = SystemTime::now();
        let authority = Authority::new("lab", now).unwrap();
        let pem = authority.member("10.0.0.1".parse().unwrap(), now).unwrap();
        let member = member_of_pem(&pem).unwrap();
        assert_eq!(member.issuer, authority.fingerprint());
        assert!(member.until_unix_s > member.from_unix_s);
        assert!(!member.is_due(member.from_unix_s) && member.is_due(member.until_unix_s));
        assert!(peer_of_pem(&pem).is_err(), "a node");
        assert!(Identity::from_pem(&pem, &authority.certificate_pem()).is_err(), "an identity");
        for bad in ["", "hello", &authority.certificate_pem()] {
            assert!(member_of_pem(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_two_sets_of_authorities_each_is_there_once() {
        let now = SystemTime::now();
        let one = Authority::new("lab", now).unwrap().certificate_pem();
        let other = Authority::new("lab", now).unwrap().certificate_pem();
        let union = union_of_pem(&[&one, &(other.clone() + &one)]).unwrap();
        assert_eq!(union, one.clone() + &other);
        assert!(union_of_pem(&[&one, "hello"]).is_err());
    }

    #[test]
    fn a_list_of_revoked_certificates_is_made_of_none_and_of_many() {
        assert_eq!(Serial::parse("4a0").unwrap().bytes(), [0x04, 0xa0]);
        let now = SystemTime::now();
        assert!(listed(&Revoked::default(), now).is_empty());
        // Of those that were certainly issued, a member's among them, and of those that are only
        // said to be.
        let authority = Authority::new("lab", now).unwrap();
        let node = authority.identity("b", now).unwrap();
        let member = authority.member("10.0.0.1".parse().unwrap(), now).unwrap();
        let proven = [node.chain_pem(), member].map(|chain| first_of_pem(&chain).unwrap());
        let said = proven.clone().map(|(serial, pem)| (serial, Some(pem)));
        let alleged = Serial::parse("4a01").unwrap();
        let a = authority.identity("a", now).unwrap();
        let heard = a.hear_revoked(said.into_iter().chain([(alleged.clone(), None)]));
        assert!(heard.changed && heard.left_out == 0);
        assert!(
            proven
                .iter()
                .all(|(serial, _)| a.revoked().proven(authority.fingerprint()).any(|(one, _)| one == serial))
        );
        let expected: BTreeSet<Vec<u8>> =
            proven.iter().map(|(serial, _)| serial).chain([&alleged]).map(Serial::bytes).collect();
        assert_eq!(listed(&a.revoked(), now), expected);
    }

    fn listed(revoked: &Revoked, now: SystemTime) -> BTreeSet<Vec<u8>> {
        let list = revocation_list(revoked.serials(), now).unwrap();
        let (_, list) = CertificateRevocationList::from_der(&list).unwrap();
        list.iter_revoked_certificates().map(|one| one.raw_serial().to_vec()).collect()
    }
}
