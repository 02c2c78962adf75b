//! Connecting.

use crate::connection::{Connection, HANDSHAKE_LIMIT, hear_ready};
use crate::locator::{Kind, Locator};
use crate::tls::Tls;
use crate::{ethernet, quic, tcp, tipc};
use std::io;
use thiserror::Error;

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The network or the other machine said no.
    #[error("{locator} can't be reached: {source}")]
    Unreachable {
        /// Where.
        locator: Locator,
        /// Why.
        source: io::Error,
    },
    /// Nobody answered in time.
    #[error("{locator} did not answer within {} s", HANDSHAKE_LIMIT.as_secs())]
    Late {
        /// Where.
        locator: Locator,
    },
    /// TLS or QUIC failed: a certificate of either side was refused.
    #[error("{locator} and this node don't accept each other: {why}")]
    Handshake {
        /// Where.
        locator: Locator,
        /// Why.
        why: String,
    },
    /// Another node is there.
    #[error("at {locator} is not {expected}: {why}")]
    WrongPeer {
        /// Where.
        locator: Locator,
        /// The node that should be there.
        expected: String,
        /// The reason why the node that is there is not believed.
        why: String,
    },
    /// The other side took the connection and ended it: it does not want this node, or is ending.
    #[error(
        "{locator} ended the connection before it was ready: {source}; that node may refuse this one's certificate"
    )]
    NotReady {
        /// Where.
        locator: Locator,
        /// How it ended.
        source: io::Error,
    },
    /// No certificate can bear it.
    #[error("`{0}` can't be the name of a node")]
    Name(String),
}

/// Connects to `peer` at `locator`. Dropped before it is ready, it leaves nothing.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(locator: Locator, tls: &Tls, peer: &str) -> Result<Connection, ConnectError> {
    let made = tokio::time::timeout(HANDSHAKE_LIMIT, greet(locator, tls, peer)).await;
    made.unwrap_or(Err(ConnectError::Late { locator }))
}

async fn greet(locator: Locator, tls: &Tls, peer: &str) -> Result<Connection, ConnectError> {
    let material = tls.material();
    let (mut carrier, found) = match locator.kind {
        Kind::Tcp => tcp::connect(locator, &material, peer).await?,
        Kind::Quic => quic::connect(locator, &material, peer).await?,
        Kind::Ethernet => ethernet::connect(locator, &material, peer).await?,
        Kind::Tipc => tipc::connect(locator, &material, peer).await?,
    };
    let wrong = |why| ConnectError::WrongPeer { locator, expected: peer.to_owned(), why };
    let found = found.map_err(wrong)?;
    if found != peer {
        return Err(wrong(format!("it is {found}")));
    }
    hear_ready(carrier.as_mut()).await.map_err(|source| ConnectError::NotReady { locator, source })?;
    Ok(Connection::new(carrier, found, locator.kind, locator.address))
}
