//! TLS 1.3 between nodes: what is checked in a handshake, and the configurations.
//!
//! Nothing is resumed: a resumed session would not look at the certificate again, and so outlive
//! its revocation.

use crate::error::TrustError;
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, Peer, allegation, peer, provider};
use crate::revoked::MAX_REVOKED;
use crate::server_name;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// Checks the other end for a node, and shows the node's certificate to it: always by what is
/// current.
#[derive(Debug, Clone)]
pub(crate) struct Checker(pub(crate) Identity);

/// [`Checker`] as a server has it.
#[derive(Debug)]
struct OfClients {
    checker: Checker,
    mandatory: bool,
}

impl Checker {
    /// Everything but the node's name.
    pub(crate) fn check(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<Peer, TrustError> {
        let who = peer(chain)?;
        let alleged = allegation(&chain[0])?;
        let name = format!("node {} of cluster {}", who.node, who.cluster);
        signed(chain, &self.0.current().roots, now).map_err(|error| match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                TrustError::Expired { who: name.clone(), until: alleged.until, now: now.as_secs() }
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TrustError::NotYet { who: name.clone(), from: alleged.from, now: now.as_secs() }
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TrustError::OtherCluster { who: name.clone() }
            }
            other => {
                TrustError::Garbage { what: format!("the certificate of {name}"), why: format!("{other:?}") }
            }
        })?;
        if who.cluster != self.0.cluster() {
            return Err(TrustError::OtherCluster { who: name });
        }
        let revoked = self.0.revoked();
        if revoked.contains(&who.serial) {
            return Err(TrustError::Revoked { who: name });
        }
        if revoked.closed().any(|authority| self.0.is_chain_by(chain, authority, now)) {
            return Err(TrustError::TooManyRevoked { who: name, most: MAX_REVOKED });
        }
        Ok(who)
    }

    pub(crate) fn server(
        &self,
        protocols: &[&[u8]],
        mandatory: bool,
    ) -> Result<Arc<ServerConfig>, TrustError> {
        let verifier = OfClients { checker: self.clone(), mandatory };
        let mut config = ServerConfig::builder_with_details(provider(), self.0.clock())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    pub(crate) fn client(&self, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, TrustError> {
        let mut config = ClientConfig::builder_with_details(provider(), self.0.clock())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.clone()))
            .with_client_cert_resolver(Arc::new(self.clone()));
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The configuration of a machine that joins: it has no certificate, and knows nothing of the
/// cluster but the token's word of its authority. Any certificate of that authority is believed to
/// be a node's.
///
/// # Errors
/// [`TrustError::Crypto`].
pub fn joiner(authority: Fingerprint, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, TrustError> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(authority)))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn refused(error: Error) -> TrustError {
    TrustError::Crypto { what: "set up TLS", why: error.to_string() }
}

/// Whether the first of a chain is signed by one of the roots, and valid now. As for a server:
/// certificates of nodes are for both.
pub(crate) fn signed(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: UnixTime,
) -> Result<(), CertificateError> {
    let (first, others) = chain.split_first().ok_or(CertificateError::BadEncoding)?;
    let parsed = ParsedCertificate::try_from(first).map_err(|_| CertificateError::BadEncoding)?;
    let algorithms = provider().signature_verification_algorithms;
    verify_server_cert_signed_by_trust_anchor(&parsed, roots, others, now, algorithms.all).map_err(|error| {
        match error {
            Error::InvalidCertificate(error) => error,
            _ => CertificateError::BadEncoding,
        }
    })
}

/// As TLS says it, so that the other end hears which of them it is.
fn as_tls(error: TrustError) -> Error {
    let at = |seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    Error::InvalidCertificate(match error {
        TrustError::Expired { until, now, .. } => {
            CertificateError::ExpiredContext { time: at(now), not_after: at(until) }
        }
        TrustError::NotYet { from, now, .. } => {
            CertificateError::NotValidYetContext { time: at(now), not_before: at(from) }
        }
        TrustError::Revoked { .. } => CertificateError::Revoked,
        TrustError::TooManyRevoked { .. } => CertificateError::ApplicationVerificationFailure,
        TrustError::OtherCluster { .. } | TrustError::WrongAuthority => CertificateError::UnknownIssuer,
        TrustError::WrongNode { expected, found } => match server_name(&expected) {
            Ok(expected) => CertificateError::NotValidForNameContext { expected, presented: vec![found] },
            Err(_) => CertificateError::NotValidForName,
        },
        _ => CertificateError::BadEncoding,
    })
}

fn chain_of<'c>(first: &CertificateDer<'c>, others: &[CertificateDer<'c>]) -> Vec<CertificateDer<'c>> {
    std::iter::once(first.clone()).chain(others.iter().cloned()).collect()
}

/// The demand of TLS on every verifier: whether the other end has the key.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = provider().signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signature, &algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = provider().signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, &algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            provider_schemes(&provider())
        }
    };
}

fn provider_schemes(provider: &CryptoProvider) -> Vec<SignatureScheme> {
    provider.signature_verification_algorithms.supported_schemes()
}

impl ServerCertVerifier for Checker {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let who = self.check(&chain_of(certificate, others), now).map_err(as_tls)?;
        let asked = match name {
            ServerName::DnsName(name) => name.as_ref().strip_suffix(crate::NAME_SUFFIX),
            _ => None,
        };
        if asked != Some(who.node.as_str()) {
            let expected = name.to_owned();
            let presented = vec![who.node];
            return Err(Error::InvalidCertificate(CertificateError::NotValidForNameContext {
                expected,
                presented,
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for OfClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.checker.check(&chain_of(certificate, others), now).map_err(as_tls)?;
        Ok(ClientCertVerified::assertion())
    }

    signatures!();
}

impl ResolvesServerCert for Checker {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current().certified))
    }
}

impl ResolvesClientCert for Checker {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.current().certified))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Believes who has a certificate of one authority.
#[derive(Debug)]
struct Pinned(Fingerprint);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = others.iter().find(|other| Fingerprint::of(other) == self.0);
        let authority = authority.ok_or_else(|| as_tls(TrustError::WrongAuthority))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        signed(&chain_of(certificate, others), &roots, now).map_err(Error::InvalidCertificate)?;
        peer(std::slice::from_ref(certificate)).map_err(as_tls)?;
        Ok(ServerCertVerified::assertion())
    }

    signatures!();
}
