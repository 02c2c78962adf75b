//! The cluster's authority: who may call itself a node of it.

use crate::error::TrustError;
use crate::files::{self, AUTHORITY_FILE, NEXT_AUTHORITY_FILE};
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, Peer};
use crate::serial::Serial;
use crate::{NAME_SUFFIX, check_name};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SerialNumber, SigningKey,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);
/// How long before it is made a certificate is valid from: clocks of nodes may be hours apart.
const EARLIER: Duration = DAY;
/// For how many days a node's certificate is valid: long enough that a cluster left alone over a
/// holiday goes on, short enough that a stolen one ends by itself. It is renewed when a third of
/// that is left.
pub const NODE_DAYS: u32 = 90;
/// For how many days the authority is: ten years, since everybody must be told of its successor.
const AUTHORITY_DAYS: u32 = 3_653;
/// Bytes of a certificate's number, the first bit of which is 0 (RFC 5280 allows 20).
const SERIAL_BYTES: usize = 16;

impl Fingerprint {
    /// Of each certificate in a PEM.
    ///
    /// # Errors
    /// [`TrustError::Garbage`]: there is none, or there are more than a node believes.
    pub fn all_of_pem(pem: &str) -> Result<Vec<Self>, TrustError> {
        Ok(crate::identity::authorities(pem)?.iter().map(Self::of).collect())
    }
}

/// A cluster's authority with its key. Who has it can make nodes.
pub struct Authority {
    cluster: String,
    key: KeyPair,
    certificate: CertificateDer<'static>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes the authority of a new cluster.
    ///
    /// # Errors
    /// [`TrustError::Name`], [`TrustError::Crypto`].
    pub fn new(cluster: &str, now: SystemTime) -> Result<Self, TrustError> {
        check_name(cluster)?;
        let key = KeyPair::generate().map_err(crypto("make a key"))?;
        let mut params = named(cluster, "authority", now, AUTHORITY_DAYS)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(crypto("make the authority"))?;
        Ok(Self { cluster: cluster.to_owned(), key, certificate: certificate.der().clone() })
    }

    /// Key and certificate, as [`Authority::to_pem`] wrote them.
    ///
    /// # Errors
    /// [`TrustError::Garbage`].
    pub fn from_pem(pem: &str) -> Result<Self, TrustError> {
        let garbage = |why: String| TrustError::Garbage { what: "the cluster's authority".into(), why };
        let key = KeyPair::from_pem(pem).map_err(|error| garbage(error.to_string()))?;
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| garbage(error.to_string()))?;
        let cluster = crate::identity::allegation(&certificate)?.cluster;
        if !crate::identity::has_key(&certificate, &key)? {
            return Err(garbage("its key is not that of its certificate".into()));
        }
        Ok(Self { cluster, key, certificate })
    }

    /// Key and certificate: a secret.
    #[must_use]
    pub fn to_pem(&self) -> String {
        format!("{}{}", self.key.serialize_pem(), files::pem_of(&self.certificate))
    }

    /// Reads it from a node's folder; `None` where this node has it not.
    ///
    /// # Errors
    /// [`TrustError::File`], [`TrustError::Exposed`], [`TrustError::Garbage`].
    pub fn load(folder: &Path) -> Result<Option<Self>, TrustError> {
        Self::load_from(&folder.join(AUTHORITY_FILE))
    }

    fn load_from(path: &Path) -> Result<Option<Self>, TrustError> {
        let text = files::read_secret(path)?;
        text.map(|text| Self::from_pem(&text)).transpose()
    }

    /// Reads the one that is to take its place; `None` where this node has none such.
    ///
    /// # Errors
    /// As for [`Authority::load`].
    pub fn load_next(folder: &Path) -> Result<Option<Self>, TrustError> {
        Self::load_from(&folder.join(NEXT_AUTHORITY_FILE))
    }

    /// Writes it into a node's folder as the one that is to take the place of the one there.
    ///
    /// # Errors
    /// [`TrustError::File`].
    pub fn store_next(&self, folder: &Path) -> Result<(), TrustError> {
        files::write_secret(&folder.join(NEXT_AUTHORITY_FILE), &self.to_pem())
    }

    /// The next one takes the place of the one before it, whose key is gone with that; or, not
    /// taken, is dropped.
    ///
    /// # Errors
    /// [`TrustError::File`].
    pub fn settle_next(folder: &Path, taken: bool) -> Result<(), TrustError> {
        let (next, path) = (folder.join(NEXT_AUTHORITY_FILE), folder.join(AUTHORITY_FILE));
        let settled = if taken { std::fs::rename(&next, path) } else { std::fs::remove_file(&next) };
        let synced = settled.and_then(|()| std::fs::File::open(folder)?.sync_all());
        synced.map_err(|cause| TrustError::File { what: "settle", path: next, cause })
    }

    /// Writes it into a node's folder, for root alone.
    ///
    /// # Errors
    /// [`TrustError::File`].
    pub fn store(&self, folder: &Path) -> Result<(), TrustError> {
        files::write_secret(&folder.join(AUTHORITY_FILE), &self.to_pem())
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Its certificate, which every node has.
    #[must_use]
    pub fn certificate_pem(&self) -> String {
        files::pem_of(&self.certificate)
    }

    /// The fingerprint that it is known by.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// Issues a certificate for `node` to whoever made the request; nothing of the request counts
    /// but its key. Returns the chain, as PEM: the node's certificate, and the authority's.
    ///
    /// # Errors
    /// [`TrustError::Name`], [`TrustError::Garbage`] (no request, or one whose key did not sign
    /// it), [`TrustError::Crypto`].
    pub fn sign(&self, request_pem: &str, node: &str, now: SystemTime) -> Result<String, TrustError> {
        self.sign_for(request_pem, node, now, NODE_DAYS)
    }

    pub(crate) fn sign_for(
        &self,
        request_pem: &str,
        node: &str,
        now: SystemTime,
        days: u32,
    ) -> Result<String, TrustError> {
        check_name(node)?;
        let mut params = named(&self.cluster, node, now, days)?;
        params.subject_alt_names =
            CertificateParams::new(vec![format!("{node}{NAME_SUFFIX}")]).map_err(garbage)?.subject_alt_names;
        self.issue(request_pem, params)
    }

    /// Whether this is a request for a certificate that its maker has signed: nothing is asked of
    /// anybody for one that is not.
    ///
    /// # Errors
    /// [`TrustError::Garbage`].
    pub fn check_request(request_pem: &str) -> Result<(), TrustError> {
        CertificateSigningRequestParams::from_pem(request_pem).map(drop).map_err(garbage)
    }

    /// Issues a certificate that says this to whoever made the request.
    pub(crate) fn issue(
        &self,
        request_pem: &str,
        mut params: CertificateParams,
    ) -> Result<String, TrustError> {
        let mut request = CertificateSigningRequestParams::from_pem(request_pem).map_err(garbage)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        request.params = params;
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &self.key)
            .map_err(crypto("use the authority's certificate"))?;
        let certificate = request.signed_by(&issuer).map_err(crypto("issue a certificate"))?;
        Ok(files::pem_of(certificate.der()) + &self.certificate_pem())
    }

    /// Says that a node has this authority's key, to who has its certificate ([`has_authority`]),
    /// on a connection on which it shows the certificate with that number.
    ///
    /// # Errors
    /// [`TrustError::Name`], [`TrustError::Crypto`].
    pub fn proof(&self, node: &str, serial: &Serial) -> Result<String, TrustError> {
        request(&self.key, &proven(node, serial)?)
    }

    pub(crate) fn sign_bytes(&self, message: &[u8]) -> Result<Vec<u8>, TrustError> {
        SigningKey::sign(&self.key, message).map_err(crypto("sign"))
    }

    /// A node's identity, made here and kept in memory: for the node that has the authority, and
    /// for tests.
    ///
    /// # Errors
    /// As for [`Authority::sign`].
    pub fn identity(&self, node: &str, now: SystemTime) -> Result<Identity, TrustError> {
        let request = Request::new(node)?;
        let chain = self.sign(&request.pem()?, node, now)?;
        Identity::from_pem(&(request.key_pem() + &chain), &self.certificate_pem())
    }
}

/// A node's request to the authority. Its key never leaves the node.
pub struct Request {
    key: KeyPair,
    node: String,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Request {
    /// A new key.
    ///
    /// # Errors
    /// [`TrustError::Name`], [`TrustError::Crypto`].
    pub fn new(node: &str) -> Result<Self, TrustError> {
        check_name(node)?;
        let key = KeyPair::generate().map_err(crypto("make a key"))?;
        Ok(Self { key, node: node.to_owned() })
    }

    /// The request that the authority signs (PKCS #10, PEM).
    ///
    /// # Errors
    /// [`TrustError::Crypto`].
    pub fn pem(&self) -> Result<String, TrustError> {
        request(&self.key, &format!("{}{NAME_SUFFIX}", self.node))
    }

    /// The key: a secret of this node's.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.key.serialize_pem()
    }
}

/// Until when an authority is valid, in seconds of Unix time, from its certificate as PEM.
///
/// # Errors
/// [`TrustError::Garbage`].
pub fn authority_until_unix_s(certificate_pem: &str) -> Result<u64, TrustError> {
    let certificates = crate::identity::authorities(certificate_pem)?;
    let until = certificates.first().map(|first| crate::identity::allegation(first).map(|said| said.until));
    until.unwrap_or(Err(TrustError::Nobody))
}

/// PKCS #10, signed with the key that it is for.
fn request(key: &KeyPair, name: &str) -> Result<String, TrustError> {
    let what = crypto("ask for a certificate");
    let params = CertificateParams::new(vec![name.to_owned()]).map_err(&what)?;
    params.serialize_request(key).and_then(|request| request.pem()).map_err(&what)
}

/// The name that a proof is for. No certificate has such a name.
fn proven(node: &str, serial: &Serial) -> Result<String, TrustError> {
    check_name(node)?;
    Ok(format!("{serial}.authority.{node}{NAME_SUFFIX}"))
}

/// Whether `proof` is [`Authority::proof`] of who has shown this, by the authority whose
/// certificate that is.
///
/// # Errors
/// [`TrustError::Garbage`]: it is no proof of anything.
pub fn has_authority(proof: &str, shown: &Peer, authority_pem: &str) -> Result<bool, TrustError> {
    let garbage = |what: &str, why: String| TrustError::Garbage { what: what.into(), why };
    let said = "the proof that a node has the authority";
    // This checks the signature.
    let request =
        CertificateSigningRequestParams::from_pem(proof).map_err(|error| garbage(said, error.to_string()))?;
    let certificate = CertificateDer::from_pem_slice(authority_pem.as_bytes())
        .map_err(|error| garbage("the cluster's authority", error.to_string()))?;
    let wanted = CertificateParams::new(vec![proven(&shown.node, &shown.serial)?])
        .map_err(|error| garbage(said, error.to_string()))?;
    Ok(request.params.subject_alt_names == wanted.subject_alt_names
        && crate::identity::has_key(&certificate, &request.public_key)?)
}

fn garbage(error: rcgen::Error) -> TrustError {
    TrustError::Garbage { what: "the request for a certificate".into(), why: error.to_string() }
}

pub(crate) fn named(
    cluster: &str,
    name: &str,
    now: SystemTime,
    days: u32,
) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, cluster);
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from_slice(&random_serial()?));
    let outside = || TrustError::Crypto {
        what: "issue a certificate",
        why: "this node's clock is outside of what a certificate can say; set it".into(),
    };
    params.not_before = now.checked_sub(EARLIER).ok_or_else(outside)?.into();
    params.not_after = now.checked_add(DAY * days).ok_or_else(outside)?.into();
    Ok(params)
}

fn random_serial() -> Result<[u8; SERIAL_BYTES], TrustError> {
    let mut bytes = [0; SERIAL_BYTES];
    crate::identity::provider().secure_random.fill(&mut bytes).map_err(|_| TrustError::Crypto {
        what: "make a number for a certificate",
        why: "there is no randomness".into(),
    })?;
    // Positive, and always of the same length.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(bytes)
}

pub(crate) fn crypto(what: &'static str) -> impl Fn(rcgen::Error) -> TrustError {
    move |error| TrustError::Crypto { what, why: error.to_string() }
}
