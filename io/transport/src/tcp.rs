//! TCP, with TLS 1.3 over it.

use crate::connect::ConnectError;
use crate::encrypted::Socket;
use crate::locator::Locator;
use crate::shake::{Known, accept_over, connect_over};
use crate::tls::Material;
use std::io;
use std::os::fd::AsFd;
use tokio::net::TcpStream;

/// The unsent bytes that the socket holds, where it is to hold little: enough that it never waits
/// for us.
const UNSENT_BYTES: u32 = 32 << 10;

impl Socket for TcpStream {
    const HALF_CLOSES: bool = true;

    fn hold_little(&self, little: bool) {
        if let Err(error) = sys::unsent::limit(self.as_fd(), little.then_some(UNSENT_BYTES)) {
            tracing::debug!(%error, "the socket holds what it likes");
        }
    }
}

pub(crate) async fn connect(
    locator: Locator,
    material: &Material,
    peer: &str,
) -> Result<Known, ConnectError> {
    let socket = async {
        let socket = TcpStream::connect(locator.address.ip()?).await?;
        socket.set_nodelay(true)?;
        Ok(socket)
    };
    connect_over(socket, locator, material, peer).await
}

pub(crate) async fn accept(socket: TcpStream, material: &Material) -> io::Result<Known> {
    socket.set_nodelay(true)?;
    accept_over(socket, material).await
}
