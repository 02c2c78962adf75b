//! Answering other nodes: HTTP/1.1 over mutual TLS. Whoever asks is known by its certificate before
//! anything is asked. `docs/spec/joining.md` describes it.

use super::Cluster;
use super::release::PROTOCOLS;
use super::trusted::Trusted;
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

/// Connections of other nodes, and of who pretends to be one, that are served at a time.
const MAX_CONNECTIONS: usize = 256;
/// How long a handshake, and the head of a request, may take.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Where a machine that has no certificate may knock.
pub(crate) const JOIN_PATH: &str = "/v1/join";

/// Who asks, as its certificate says.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) node: String,
    pub(super) shown: Arc<trust::Shown>,
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
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let cluster = cluster.clone();
    tokio::spawn(async move {
        loop {
            // The next one waits in the kernel until another is done.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "another node can't be accepted");
                    // tidy(sleep): out of descriptors; nothing tells when there is one again.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (acceptor, router, cluster) = (acceptor.clone(), router.clone(), cluster.clone());
            tokio::spawn(async move {
                if let Err(error) = serve_one(&cluster, acceptor, router, stream, from).await {
                    tracing::info!(%from, error, "who asked at the peer API was not served");
                }
                drop(place);
            });
        }
    });
    Ok(address)
}

async fn serve_one(
    cluster: &Cluster,
    acceptor: TlsAcceptor,
    router: Router,
    stream: TcpStream,
    from: SocketAddr,
) -> Result<(), String> {
    super::call::notice_its_end(&stream).map_err(|error| error.to_string())?;
    let stream = tokio::time::timeout(GREETING_PATIENCE, acceptor.accept(stream)).await;
    let stream = stream
        .map_err(|_| "its handshake takes too long".to_owned())?
        .map_err(|error| trust::explain(&error, &from.to_string()))?;
    let chain = stream.get_ref().1.peer_certificates();
    let shown = chain.map(|chain| cluster.identity().shown(chain).map(Arc::new)).transpose();
    let shown = shown.map_err(|error| error.to_string())?;
    let mut router = router.layer(Extension(Origin(from.ip())));
    if let Some(shown) = &shown {
        let (node, shown) = (shown.peer().node.clone(), Arc::clone(shown));
        router = router.layer(Extension(Caller { node, shown }));
    }
    let stream = Trusted::new(stream, cluster, shown.clone());
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(GREETING_PATIENCE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let Some(shown) = shown else { return served.await.map_err(|error| error.to_string()) };
    tokio::select! {
        served = served => served.map_err(|error| error.to_string()),
        // Also where nothing is read or written: who waits for an answer gets none.
        () = cluster.clone().until_disbelieved(Arc::clone(&shown)) => Err(cluster.why_disbelieved(&shown)),
    }
}
