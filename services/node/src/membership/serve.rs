//! Answering other nodes: HTTP/1.1 over mutual TLS. The caller is known by its certificate before
//! anything is asked. `docs/spec/joining.md` describes it.

use super::Cluster;
use super::release::PROTOCOLS;
use super::trusted::Trusted;
use super::visitors::{STRANGER_TIMEOUT, Stranger, Visitors};
use crate::admin::{Code, Problem};
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use trust::SentAway;

/// How long the head of a node's request may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Where a machine that has no certificate may knock.
pub(crate) const JOIN_PATH: &str = "/v1/join";
/// Where it is shown first that the node has the authority's key.
pub(crate) const PROOF_PATH: &str = "/v1/join/proof";
/// By which a connection is known to both of its ends and to nobody in between (RFC 8446, 7.5; RFC
/// 5705).
const CONNECTION_LABEL: &[u8] = b"EXPORTER-tombolo-join";

/// The caller, as its certificate says.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) node: String,
    pub(super) shown: Arc<trust::Shown>,
}

/// A connection on which no certificate was shown, as it is known to both ends.
#[derive(Debug, Clone)]
pub(crate) struct OfConnection(pub(super) String);

/// Returns the words that a connection is known by. `export` is TLS's.
pub(super) fn of_connection(
    export: impl FnOnce([u8; 32], &[u8]) -> Result<[u8; 32], rustls::Error>,
) -> Result<String, rustls::Error> {
    let known_by = export([0; 32], CONNECTION_LABEL)?;
    Ok(known_by.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// From where somebody asks who has no certificate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin(pub(crate) IpAddr);

/// Serves other nodes at an address of this machine.
///
/// # Errors
/// The address can't be listened at.
pub(crate) async fn serve(cluster: &Cluster, router: Router) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(cluster.config().address).await?;
    let address = listener.local_addr()?;
    let acceptor =
        TlsAcceptor::from(cluster.identity().server_for_joiners(PROTOCOLS).map_err(std::io::Error::other)?);
    let (visitors, cluster) = (Visitors::new(), cluster.clone());
    tokio::spawn(async move {
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "another node can't be accepted");
                    // tidy(sleep): out of descriptors; nothing tells when there is one again.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some((stranger, sent_away)) = visitors.enter(&cluster, from.ip()) else {
                tracing::info!(%from, "who asked at the peer API was not served: too many join at this moment");
                continue;
            };
            let host = Host {
                cluster: cluster.clone(),
                acceptor: acceptor.clone(),
                router: router.clone(),
                visitors: visitors.clone(),
            };
            tokio::spawn(async move {
                if let Err(error) = host.serve(stream, from, stranger, sent_away).await {
                    tracing::info!(%from, error, "who asked at the peer API was not served");
                }
            });
        }
    });
    Ok(address)
}

/// The parts that a connection is served with.
struct Host {
    cluster: Cluster,
    acceptor: TlsAcceptor,
    router: Router,
    visitors: Visitors,
}

impl Host {
    async fn serve(
        self,
        stream: TcpStream,
        from: SocketAddr,
        stranger: Stranger,
        sent_away: SentAway,
    ) -> Result<(), String> {
        let mut sent_away = pin!(sent_away.told());
        let others = || "others wait for its place".to_owned();
        let greeted = tokio::select! {
            greeted = self.greet(stream, from) => greeted?,
            () = &mut sent_away => return Err(others()),
        };
        let (stream, shown) = greeted;
        let router = self.router.clone().layer(Extension(Origin(from.ip())));
        let Some(shown) = shown.map(Arc::new) else {
            let (_, tls) = stream.get_ref();
            let words = of_connection(|into, label| tls.export_keying_material(into, label, None));
            let words = OfConnection(words.map_err(|error| error.to_string())?);
            let router = router.layer(Extension(stranger.clone())).layer(Extension(words));
            let stream = Trusted::new(stream, &self.cluster, None);
            return tokio::select! {
                served = briefly(stream, router) => served,
                () = stranger.has_had_its_time() => Err("its request takes too long".into()),
                () = &mut sent_away => Err(others()),
            };
        };
        let node = shown.peer().node.clone();
        let Some(_place) = self.visitors.is_node(&node) else {
            let refusal = Problem::new(
                Code::Failed,
                format!("node {node} has too many connections here, or all nodes together"),
            );
            let router = Router::new().fallback(move || std::future::ready(refusal.clone()));
            return tokio::time::timeout(STRANGER_TIMEOUT, briefly(stream, router))
                .await
                .unwrap_or_else(|_| Err("its request takes too long".into()));
        };
        // Strangers do not crowd it out from here on.
        drop(stranger);
        let router = router.layer(Extension(Caller { node, shown: Arc::clone(&shown) }));
        let stream = Trusted::new(stream, &self.cluster, Some(Arc::clone(&shown)));
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
            .with_upgrades();
        tokio::select! {
            served = served => served.map_err(|error| error.to_string()),
            // Also where nothing is read or written: who waits for an answer gets none.
            () = self.cluster.clone().until_disbelieved(Arc::clone(&shown)) => Err(self.cluster.why_disbelieved(&shown)),
        }
    }

    /// Hears who it is, if it says so.
    async fn greet(
        &self,
        stream: TcpStream,
        from: SocketAddr,
    ) -> Result<(TlsStream<TcpStream>, Option<trust::Shown>), String> {
        super::call::notice_its_end(&stream).map_err(|error| error.to_string())?;
        let stream = tokio::time::timeout(STRANGER_TIMEOUT, self.acceptor.accept(stream)).await;
        let stream = stream
            .map_err(|_| "its handshake takes too long".to_owned())?
            .map_err(|error| trust::explain(&error, &from.to_string()))?;
        let chain = stream.get_ref().1.peer_certificates();
        let shown = chain.map(|chain| self.cluster.identity().shown(chain)).transpose();
        Ok((stream, shown.map_err(|error| error.to_string())?))
    }
}

/// Answers who has a short time.
async fn briefly<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    router: Router,
) -> Result<(), String> {
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(STRANGER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    served.await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
