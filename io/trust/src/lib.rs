//! The identities of a cluster's nodes.
//!
//! A cluster has an [`Authority`] (a CA of its own, known to nobody else) that issues a certificate
//! to each node. A node's [`Identity`] is that certificate with its key, the authorities that it
//! believes, and the serials that were revoked; it makes the TLS 1.3 configurations for everything
//! that nodes say to each other. Both ends show who they are, always; the one exception is a
//! machine that joins, which has no certificate yet ([`Identity::server_for_joiners`], [`joiner`]).
//!
//! The certificates' form and the rules are in `docs/spec/joining.md`.

mod authority;
mod error;
mod files;
mod fingerprint;
mod hearing;
mod identity;
mod member;
mod revoked;
mod said;
mod serial;
mod shown;
mod statement;
mod strangers;
mod time;
mod verify;

pub use authority::{Authority, NODE_DAYS, Request, authority_until_unix_s, has_authority};
pub use error::TrustError;
pub use fingerprint::Fingerprint;
pub use hearing::Heard;
pub use identity::{Identity, Peer, first_of_pem, peer, peer_of_pem};
pub use member::{MEMBER_NAME, Member, member_of_pem, revocation_list, union_of_pem};
pub use revoked::{MAX_REVOKED, Revoked};
pub use said::{explain, explain_to_joiner};
pub use serial::Serial;
pub use shown::Shown;
pub use statement::{About, has_said, one_has_said};
pub use strangers::{Place, SentAway, Strangers};
pub use verify::joiner;

use rustls::pki_types::ServerName;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The suffix behind a node's name in its certificate.
pub const NAME_SUFFIX: &str = ".node.tombolo";
/// Longest name of a node: a label of a DNS name (RFC 1035).
pub const MAX_NODE_NAME_BYTES: usize = 63;

/// The name by which a node is asked for in TLS, and which must stand in its certificate:
/// `NODE.node.tombolo`.
///
/// # Errors
/// [`TrustError::Name`]: no name of a node.
pub fn server_name(node: &str) -> Result<ServerName<'static>, TrustError> {
    check_name(node)?;
    ServerName::try_from(format!("{node}{NAME_SUFFIX}"))
        .map_err(|_| TrustError::Name { name: node.to_owned() })
}

/// Opens the files of a node's folder, for a process of the node that may not read them itself:
/// what [`Identity::reload_from`] takes.
///
/// # Errors
/// [`TrustError::File`].
pub fn open_folder(folder: &Path) -> Result<Vec<OwnedFd>, TrustError> {
    files::open(folder)
}

/// Refuses what can't be the name of a node or of a cluster.
///
/// # Errors
/// [`TrustError::Name`].
pub fn check_name(name: &str) -> Result<(), TrustError> {
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let good = (1..=MAX_NODE_NAME_BYTES).contains(&name.len())
        && name.chars().all(|c| letter(c) || c == '-')
        && name.starts_with(letter)
        && name.ends_with(letter);
    if good {
        Ok(())
    } else {
        Err(TrustError::Name { name: name.chars().take(MAX_NODE_NAME_BYTES).collect() })
    }
}

#[cfg(test)]
mod tests;
