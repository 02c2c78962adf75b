//! Connections to other nodes that end when what was shown on them is believed no more: a handshake
//! looks at it once, and some connections live long.

use super::Cluster;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use trust::{Shown, TrustError};

type Ends = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Cluster {
    /// Comes back when what was shown is believed no more, as soon as this node has heard of it.
    pub(super) async fn until_disbelieved(self, shown: Arc<Shown>) {
        // What changes after this is heard, perhaps twice.
        let mut changes = self.trust_changes();
        while self.identity().still(&shown).is_ok() {
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Why that is, for a person.
    pub(super) fn why_disbelieved(&self, shown: &Shown) -> String {
        let node = &shown.peer().node;
        match self.identity().still(shown) {
            Err(TrustError::OtherCluster { .. }) => {
                format!("the authority of the certificate of node {node} was replaced")
            }
            Err(error @ TrustError::TooManyRevoked { .. }) => error.to_string(),
            _ => format!("the certificate of node {node} was revoked"),
        }
    }
}

/// A connection whose other end has shown a certificate.
pub(super) struct Trusted<S> {
    stream: S,
    /// By whom something was shown.
    shown: Option<(Cluster, Arc<Shown>)>,
    /// For whoever reads, and for whoever writes: they may be two.
    ends: Option<[Ends; 2]>,
}

impl<S> Trusted<S> {
    /// `shown`: what was; `None`: nobody has shown anything.
    pub(super) fn new(stream: S, cluster: &Cluster, shown: Option<Arc<Shown>>) -> Self {
        let ends = shown.as_ref().map(|shown| {
            [(); 2].map(|()| Box::pin(cluster.clone().until_disbelieved(Arc::clone(shown))) as Ends)
        });
        Self { stream, shown: shown.map(|shown| (cluster.clone(), shown)), ends }
    }

    fn check(&mut self, side: usize, cx: &mut Context<'_>) -> io::Result<()> {
        let end = self.ends.as_mut().and_then(|ends| ends.get_mut(side));
        match end.map(|end| end.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => {
                // What has come back is not asked again.
                self.ends = Some([(); 2].map(|()| Box::pin(std::future::ready(())) as Ends));
                let why = self.shown.as_ref().map(|(cluster, shown)| cluster.why_disbelieved(shown));
                let why = why.unwrap_or_default();
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
