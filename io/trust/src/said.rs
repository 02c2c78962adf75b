//! TLS errors in a person's words.

use crate::NAME_SUFFIX;
use crate::error::TrustError;
use crate::revoked::MAX_REVOKED;
use rustls::{AlertDescription, CertificateError, Error};

/// Why a connection to `node` (a name, or an address where the name is not known) failed: in the
/// words of [`TrustError`] where it is about who is who.
#[must_use]
pub fn explain(error: &std::io::Error, node: &str) -> String {
    let mut cause = error.get_ref().map(|error| error as &(dyn std::error::Error + 'static));
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<Error>() {
            return of_tls(tls, node);
        }
        cause = error.source();
    }
    error.to_string()
}

/// As [`explain`], to a machine that joins: it knows of the cluster what its token says, and no
/// more.
#[must_use]
pub fn explain_to_joiner(error: &std::io::Error, node: &str) -> String {
    let cause = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            TrustError::WrongAuthority.to_string()
        }
        _ => explain(error, node),
    }
}

fn of_tls(error: &Error, node: &str) -> String {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error, node).to_string(),
        Error::AlertReceived(alert) => of_alert(*alert, node),
        Error::NoCertificatesPresented => TrustError::Nobody.to_string(),
        Error::PeerIncompatible(_) | Error::InvalidMessage(_) => format!(
            "what is at {node} does not speak as a node does ({error}): is the address right, and the port that of a node?"
        ),
        other => other.to_string(),
    }
}

fn of_certificate(error: &CertificateError, node: &str) -> TrustError {
    let who = node.to_owned();
    match error {
        CertificateError::ExpiredContext { time, not_after } => {
            TrustError::Expired { who, until: not_after.as_secs(), now: time.as_secs() }
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            TrustError::NotYet { who, from: not_before.as_secs(), now: time.as_secs() }
        }
        CertificateError::Revoked => TrustError::Revoked { who },
        CertificateError::ApplicationVerificationFailure => {
            TrustError::TooManyRevoked { who, most: MAX_REVOKED }
        }
        CertificateError::UnknownIssuer => TrustError::OtherCluster { who },
        CertificateError::NotValidForNameContext { expected, presented } => TrustError::WrongNode {
            expected: expected.to_str().trim_end_matches(NAME_SUFFIX).to_owned(),
            found: presented.join(", "),
        },
        other => TrustError::Garbage { what: format!("the certificate of {who}"), why: format!("{other:?}") },
    }
}

fn of_alert(alert: AlertDescription, node: &str) -> String {
    match alert {
        AlertDescription::CertificateExpired => format!(
            "{node} refuses this node's certificate as expired or not valid yet by its clock: compare the clocks of both; if they are \
             right, `tombolo node rotate` here, or join again"
        ),
        AlertDescription::CertificateRevoked => format!(
            "{node} refuses this node's certificate as revoked: this node was removed from the cluster; `tombolo node join` again \
             with a new token"
        ),
        AlertDescription::UnknownCA => format!(
            "{node} does not know the authority of this node's certificate: it belongs to another cluster"
        ),
        AlertDescription::AccessDenied => format!(
            "{node} believes no certificate of this node's authority, because more of them are revoked than it keeps: `tombolo node authority replace` \
             at a node that has the authority"
        ),
        AlertDescription::CertificateRequired => format!("{node} wants a certificate, and this end has none"),
        AlertDescription::NoApplicationProtocol => format!(
            "{node} speaks no version of the protocol that this node speaks: their releases are too far apart; bring the older one up to date"
        ),
        other => format!("{node} ended the handshake: {other:?}"),
    }
}
