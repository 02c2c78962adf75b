//! Why somebody is not believed.

use crate::time::utc;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why a certificate, a key or a peer is refused: what it is, and what to do.
#[derive(Debug, Error)]
pub enum TrustError {
    /// No name of a node.
    #[error(
        "{name:?} can't be the name of a node: take 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends"
    )]
    Name {
        /// The name that was given.
        name: String,
    },
    /// A file can't be read or written.
    #[error("can't {what} {}: {cause}", path.display())]
    File {
        /// `read` or `write`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// A file with a key can be read by others.
    #[error("{} holds a key and may be read by others (mode {mode:o}): `chmod 600` it, and consider the key known", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A certificate, a key or a request that is none.
    #[error(
        "{what} is not what it should be: {why}; `tombolo node join` with a new token makes this node's files anew"
    )]
    Garbage {
        /// The kind of thing that it should be, and where it is from.
        what: String,
        /// The fault.
        why: String,
    },
    /// The other end belongs to another cluster.
    #[error(
        "the certificate of {who} was not issued by this cluster's authority: it belongs to another cluster, or its cluster was \
         made anew; `tombolo node join` it with a token of this one"
    )]
    OtherCluster {
        /// As far as it says.
        who: String,
    },
    /// This node's certificate is of an authority that the cluster believes no more.
    #[error(
        "no authority that the cluster's registry names issued this node's certificate: it was away while the authority was replaced \
         (`tombolo node remove` it at another node, and `tombolo node join` it with a new token), or etcd was restored from a backup of before \
         (`tombolo node authority replace --restored` at a node that has the authority's key)"
    )]
    Stranger,
    /// The certificate is over.
    #[error(
        "the certificate of {who} was valid until {}, and this node's clock says {}: set the clock if it is wrong, else \
         `tombolo node rotate` there, or join it again", utc(*until), utc(*now)
    )]
    Expired {
        /// As far as it says.
        who: String,
        /// Seconds of Unix time.
        until: u64,
        /// Seconds of Unix time.
        now: u64,
    },
    /// The certificate is not valid yet.
    #[error(
        "the certificate of {who} is valid from {} on, and this node's clock says {}: one of the two clocks is wrong; set it",
        utc(*from), utc(*now)
    )]
    NotYet {
        /// As far as it says.
        who: String,
        /// Seconds of Unix time.
        from: u64,
        /// Seconds of Unix time.
        now: u64,
    },
    /// The node was removed from the cluster, or its certificate replaced for cause.
    #[error(
        "the certificate of {who} is revoked: the node was removed from the cluster; `tombolo node join` it again with a new token"
    )]
    Revoked {
        /// As far as it says.
        who: String,
    },
    /// So many certificates are revoked that this one can't be told from them.
    #[error(
        "the certificate of {who} is not believed, as none of its authority is: more than {most} of them are revoked, which are more than a node \
         keeps; `tombolo node authority replace` at a node that has the authority"
    )]
    TooManyRevoked {
        /// As far as it says.
        who: String,
        /// So many are kept.
        most: usize,
    },
    /// Somebody else answers there.
    #[error(
        "node {found} answers where node {expected} should be: two nodes have one address, or an address moved; see `tombolo node ls`"
    )]
    WrongNode {
        /// The node that was asked for.
        expected: String,
        /// The node that answered.
        found: String,
    },
    /// The cluster's authority is not the one that the token names.
    #[error(
        "the node at that address has not the authority that the token names: the address is wrong, the token is of another \
         cluster or older than this one's authority, or somebody stands in between; nothing was told to it"
    )]
    WrongAuthority,
    /// The other end showed no certificate.
    #[error("the other end shows no certificate")]
    Nobody,
    /// The cryptography refuses.
    #[error("can't {what}: {why}")]
    Crypto {
        /// The action that was tried.
        what: &'static str,
        /// Why not.
        why: String,
    },
}
