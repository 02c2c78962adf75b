//! Statements of an authority, or a node, about things that are no certificates. Whoever has its
//! certificate can check them, wherever the words were kept meanwhile.

use crate::authority::Authority;
use crate::error::TrustError;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, MAX_CHAIN, Peer, authorities, certificates, provider};
use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use std::fmt::Write;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Longest signature that is looked at, in bytes: one of ECDSA P-256 takes 72 at the most.
const MAX_SIGNATURE_BYTES: usize = 128;

/// The subject of a statement: one of one kind is none of another. The signed bytes begin with
/// these words, and so are never a certificate or a request for one (which begin with the byte
/// 0x30).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The permission of a token.
    Token,
    /// The authority that may take this one's place.
    Successor,
    /// The party at the other end of a connection.
    Connection,
    /// A node's request to the next authority.
    Renewal,
}

impl About {
    const fn words(self) -> &'static str {
        match self {
            Self::Token => "tombolo token 1\n",
            Self::Successor => "tombolo successor 1\n",
            Self::Connection => "tombolo connection 1\n",
            Self::Renewal => "tombolo renewal 1\n",
        }
    }

    fn message(self, text: &str) -> Vec<u8> {
        [self.words(), text].concat().into_bytes()
    }
}

impl Authority {
    /// Signs what it says. Returns the signature (ECDSA P-256 with SHA-256, DER) in lower-case
    /// hexadecimal digits.
    ///
    /// # Errors
    /// [`TrustError::Crypto`].
    pub fn say(&self, about: About, text: &str) -> Result<String, TrustError> {
        Ok(digits_of(&self.sign_bytes(&about.message(text))?))
    }
}

impl Identity {
    /// Signs what this node says, as [`Authority::say`] does.
    ///
    /// # Errors
    /// [`TrustError::Crypto`].
    pub fn say(&self, about: About, text: &str) -> Result<String, TrustError> {
        let failed = |why: String| TrustError::Crypto { what: "sign", why };
        let key = Arc::clone(&self.current().certified.key);
        let signer = key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]);
        let signer = signer.ok_or_else(|| failed("this node's key is of another kind".into()))?;
        signer
            .sign(&about.message(text))
            .map(|signature| digits_of(&signature))
            .map_err(|error| failed(error.to_string()))
    }

    /// The node that made the statement: the one whose certificate this is (the first of a PEM), if
    /// it is believed as in a handshake. `None`: that one has not.
    ///
    /// # Errors
    /// As for [`Identity::check`].
    pub fn who_said(
        &self,
        chain_pem: &str,
        about: About,
        text: &str,
        signature: &str,
    ) -> Result<Option<Peer>, TrustError> {
        let chain = certificates(chain_pem, MAX_CHAIN)
            .map_err(|why| TrustError::Garbage { what: "a chain of certificates".into(), why })?;
        let peer = self.check(&chain)?;
        let first = chain.first().ok_or(TrustError::Nobody)?;
        Ok(is_signed_by(first, about, text, signature)?.then_some(peer))
    }
}

fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut digits, byte| {
        // Writing to a string does not fail.
        let _written = write!(digits, "{byte:02x}");
        digits
    })
}

/// Whether the authority whose certificate this is (the first one of a PEM) has said so.
///
/// # Errors
/// [`TrustError::Garbage`]: the PEM is no certificate.
pub fn has_said(authority_pem: &str, about: About, text: &str, signature: &str) -> Result<bool, TrustError> {
    let certificates = authorities(authority_pem)?;
    let certificate = certificates.first().ok_or(TrustError::Nobody)?;
    is_signed_by(certificate, about, text, signature)
}

/// Whether the authority of that fingerprint has said so, whose certificate is one of these.
///
/// # Errors
/// [`TrustError::WrongAuthority`]: it is none of them; [`TrustError::Garbage`].
pub fn one_has_said(
    chain: &[CertificateDer<'_>],
    authority: Fingerprint,
    about: About,
    text: &str,
    signature: &str,
) -> Result<bool, TrustError> {
    let found = chain.iter().find(|certificate| Fingerprint::of(certificate) == authority);
    is_signed_by(found.ok_or(TrustError::WrongAuthority)?, about, text, signature)
}

fn is_signed_by(
    certificate: &CertificateDer<'_>,
    about: About,
    text: &str,
    signature: &str,
) -> Result<bool, TrustError> {
    let garbage = || TrustError::Garbage { what: "a certificate".into(), why: "it can't be read".into() };
    let (_, parsed) = X509Certificate::from_der(certificate.as_ref()).map_err(|_| garbage())?;
    let Some(signature) = bytes_of(signature) else { return Ok(false) };
    let key = &parsed.public_key().subject_public_key.data;
    let message = about.message(text);
    let known = provider().signature_verification_algorithms.mapping;
    let mut of_p256 = known.iter().filter(|(scheme, _)| *scheme == SignatureScheme::ECDSA_NISTP256_SHA256);
    Ok(of_p256.any(|(_, algorithms)| {
        algorithms.iter().any(|algorithm| algorithm.verify_signature(key, &message, &signature).is_ok())
    }))
}

/// The bytes of hexadecimal digits; `None`: they are none, or too many.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || digits.len() > 2 * MAX_SIGNATURE_BYTES || !digits.is_ascii() {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}
