//! The port at which metrics are read: by HTTP on this machine, and by HTTPS from others.

use super::DaemonError;
use crate::api;
use crate::api::node::Node;
use crate::base::LOOKS;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// Connections to the port that are served at a time.
const MAX_READERS: usize = 16;
/// How long one such connection may last.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where metrics are served.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// The address.
    pub address: SocketAddr,
    /// By HTTPS, with these; a loopback address alone goes without.
    pub tls: Option<Tls>,
}

/// The files of HTTPS, in PEM.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The certificate, and those that vouch for it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of readers; `None`: anybody may read.
    pub clients: Option<PathBuf>,
}

impl Metrics {
    /// Whether they may be served so.
    ///
    /// # Errors
    /// [`DaemonError::MetricsAddress`].
    pub(super) fn check(&self) -> Result<(), DaemonError> {
        match self.tls {
            None if !self.address.ip().is_loopback() => Err(DaemonError::MetricsAddress(self.address)),
            _ => Ok(()),
        }
    }
}

/// The files as they were read last. They are read again when they have changed, so that a
/// certificate is renewed without a new daemon.
struct Acceptor {
    files: Tls,
    read: Mutex<(Vec<Option<Seen>>, TlsAcceptor)>,
}

/// A file, as far as it can be seen without reading it: inode, size, and when it was changed.
type Seen = (u64, u64, i64, i64);

impl Acceptor {
    fn new(files: Tls) -> Result<Self, DaemonError> {
        let read = (changed(&files), acceptor(&files).map_err(DaemonError::MetricsFiles)?);
        Ok(Self { files, read: Mutex::new(read) })
    }

    fn current(&self) -> TlsAcceptor {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let now = changed(&self.files);
        if now != read.0 {
            // Also where they can't be used: that is told once, and they are read again when they
            // are others. The key may be there a moment after the certificate.
            read.0 = now;
            match acceptor(&self.files) {
                Ok(acceptor) => read.1 = acceptor,
                Err(why) => tracing::warn!(why, "metrics go on with the certificate of before"),
            }
        }
        read.1.clone()
    }
}

fn changed(files: &Tls) -> Vec<Option<Seen>> {
    let all = [Some(&files.certificate), Some(&files.key), files.clients.as_ref()];
    let at = |path: &PathBuf| {
        let seen = std::fs::metadata(path).ok()?;
        Some((seen.ino(), seen.len(), seen.ctime(), seen.ctime_nsec()))
    };
    all.into_iter().flatten().map(at).collect()
}

fn acceptor(files: &Tls) -> Result<TlsAcceptor, String> {
    let of =
        |path: &Path, error: &dyn std::fmt::Display| format!("{} can't be used: {error}", path.display());
    let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>, String> {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let read = read.map_err(|error| of(path, &error))?;
        if read.is_empty() { Err(of(path, &"it has no certificate in PEM")) } else { Ok(read) }
    };
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| of(&files.key, &error))?;
    if std::fs::metadata(&files.key).is_ok_and(|seen| seen.mode() & 0o077 != 0) {
        tracing::warn!(key = %files.key.display(), "the private key can be read by others: chmod 600");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?;
    let config = match &files.clients {
        None => config.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| of(path, &error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            config.with_client_cert_verifier(verifier.map_err(|error| of(path, &error))?)
        }
    };
    let mut config = config
        .with_single_cert(chain, key)
        .map_err(|error| format!("{}: {error}", of(&files.certificate, &"with its key")))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves metrics: to a bounded number at a time, each for a bounded time. Where another one comes,
/// whoever waits longest goes.
///
/// # Errors
/// Nobody can listen there, or the files can't be used.
pub(super) async fn serve(node: &Arc<Node>, metrics: &Metrics) -> Result<(), DaemonError> {
    let at = |cause| DaemonError::Listen { at: metrics.address.to_string(), cause };
    let acceptor = metrics.tls.clone().map(Acceptor::new).transpose()?.map(Arc::new);
    let listener = tokio::net::TcpListener::bind(metrics.address).await.map_err(at)?;
    let router = api::metrics_router(Arc::clone(node));
    let readers = trust::Strangers::new(MAX_READERS, MAX_READERS);
    tokio::spawn(async move {
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a reader of metrics can't be accepted");
                    // tidy(sleep): out of descriptors; nothing tells when there is one again.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some((place, sent_away)) = readers.enter(from.ip()) else { continue };
            let service = TowerToHyperService::new(router.clone());
            let tls = acceptor.clone();
            tokio::spawn(async move {
                let read = tokio::select! {
                    read = tokio::time::timeout(READ_TIMEOUT, answer(stream, tls, service)) => {
                        matches!(read, Ok(true))
                    }
                    () = sent_away.told() => false,
                };
                if !read {
                    tracing::debug!("a reader of metrics was too slow, or spoke no HTTP");
                }
                drop(place);
            });
        }
    });
    Ok(())
}

/// Answers one reader; whether it was one.
async fn answer(
    stream: TcpStream,
    tls: Option<Arc<Acceptor>>,
    service: TowerToHyperService<axum::Router>,
) -> bool {
    let http = hyper::server::conn::http1::Builder::new();
    match tls {
        None => http.serve_connection(TokioIo::new(stream), service).await.is_ok(),
        Some(acceptor) => {
            // The files may be on a disk that is slow.
            let Ok(acceptor) = LOOKS.run(move || acceptor.current()).await else { return false };
            match acceptor.accept(stream).await {
                Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await.is_ok(),
                Err(_) => false,
            }
        }
    }
}
