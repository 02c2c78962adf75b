//! Connections to other nodes that end when the certificate is revoked that was shown on them: a handshake looks at it once, and some connections live long.

use super::Cluster;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use trust::Serial;

type Ends = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Cluster {
    /// Comes back when a certificate is revoked, as soon as this node has heard of it.
    pub(super) async fn until_revoked(self, serial: Serial) {
        // What changes after this is heard, perhaps twice.
        let mut changes = self.trust_changes();
        while !self.identity().revoked().contains(&serial) {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// A connection whose other end has shown a certificate.
pub(super) struct Trusted<S> {
    stream: S,
    node: String,
    /// For whoever reads, and for whoever writes: they may be two.
    ends: Option<[Ends; 2]>,
}

impl<S> Trusted<S> {
    /// `shown`: by whom, and its number; `None`: nobody has shown one.
    pub(super) fn new(stream: S, cluster: &Cluster, shown: Option<(&str, &Serial)>) -> Self {
        let ends = shown.map(|(_, serial)| {
            [(); 2].map(|()| Box::pin(cluster.clone().until_revoked(serial.clone())) as Ends)
        });
        Self { stream, node: shown.map_or_else(String::new, |(node, _)| node.to_owned()), ends }
    }

    fn check(&mut self, side: usize, cx: &mut Context<'_>) -> io::Result<()> {
        let end = self.ends.as_mut().and_then(|ends| ends.get_mut(side));
        match end.map(|end| end.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => {
                // What has come back is not asked again.
                self.ends = Some([(); 2].map(|()| Box::pin(std::future::ready(())) as Ends));
                let why = format!("the certificate of node {} was revoked", self.node);
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, why))
            }
            _ => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Trusted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(0, cx)?;
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Trusted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(1, cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(1, cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
