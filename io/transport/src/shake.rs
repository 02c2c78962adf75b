//! The handshake of TLS 1.3 over a stream of the kernel's.

use crate::connect::ConnectError;
use crate::connection::Carry;
use crate::encrypted::{Encrypted, Session, Socket, invalid};
use crate::locator::Locator;
use crate::tls::{Material, server_name};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use std::future::poll_fn;
use std::io;

/// A carrier, and who its other end is.
pub(crate) type Known = (Box<dyn Carry>, Result<String, String>);

/// The whole handshake.
async fn shaken<T: Socket, S: Session>(socket: T, session: S) -> io::Result<Encrypted<T, S>> {
    let mut encrypted = Encrypted::new(socket, session);
    poll_fn(|cx| encrypted.poll_shake(cx)).await?;
    Ok(encrypted)
}

/// Both sides show who they are.
async fn shake<T: Socket, S: Session>(socket: T, session: S, material: &Material) -> io::Result<Known> {
    let encrypted = shaken(socket, session).await?;
    let who = (material.who)(encrypted.session().common().peer_certificates().unwrap_or_default());
    Ok((Box::new(encrypted), who))
}

/// The connecting side's part, over whatever `socket` comes to.
pub(crate) async fn connect_over<T: Socket>(
    socket: impl Future<Output = io::Result<T>>,
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let name = server_name(peer).map_err(|_| ConnectError::Name(peer.to_owned()))?;
    let handshake = |why: String| ConnectError::Handshake { locator, why };
    let session = UnbufferedClientConnection::new(material.client.clone(), name)
        .map_err(|error| handshake(error.to_string()))?;
    let socket = socket.await.map_err(|source| ConnectError::Unreachable { locator, source })?;
    shake(socket, session, material).await.map_err(|error| handshake(error.to_string()))
}

/// The accepting side's part.
pub(crate) async fn accept_over<T: Socket>(socket: T, material: &Material) -> io::Result<Known> {
    let session = UnbufferedServerConnection::new(material.server.clone()).map_err(invalid)?;
    shake(socket, session, material).await
}

/// The connecting side alone, for tests of what follows.
#[cfg(test)]
pub(crate) async fn client<T: Socket>(
    socket: T,
    config: std::sync::Arc<rustls::ClientConfig>,
    peer: &str,
) -> io::Result<Encrypted<T, UnbufferedClientConnection>> {
    let name = server_name(peer).map_err(io::Error::other)?;
    let session = UnbufferedClientConnection::new(config, name).map_err(invalid)?;
    shaken(socket, session).await
}
