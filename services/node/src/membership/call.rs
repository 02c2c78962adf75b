//! Asking another node: HTTP over TLS, one request a connection, with a deadline.

use super::join::Proof;
use super::release::{PROTOCOLS, RELEASE, RELEASE_HEADER};
use super::serve::{self, PROOF_PATH};
use super::trusted::Trusted;
use super::{Cluster, Member, failed, to_json};
use admin::{Code, Problem};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use trust::About;

/// How long another node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// After so much silence a connection's other end is asked whether it is there, so often and so
/// many times; what was said and not heard waits no longer either.
const QUIET: Duration = Duration::from_secs(10);
/// See [`QUIET`].
const ASK_EVERY: Duration = Duration::from_secs(5);
/// See [`QUIET`].
const ASKS: u32 = 3;
/// See [`QUIET`].
const UNHEARD_MS: u32 = 25_000;
/// Longest answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Bytes in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Cluster {
    /// Asks another node something, and returns what it answers.
    ///
    /// # Errors
    /// The node is unknown, can't be reached, is somebody else, or refuses.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        node: &str,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Problem> {
        let asked = async {
            let answer = self.ask(node, request(method, path, body, None)?).await?;
            checked(answer, node).await
        };
        let answer = self.within(node, asked).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| failed(format!("node {node} answers what is not understood: {error}")))
    }

    /// Asks another node to change over to a protocol of bytes in both directions.
    ///
    /// # Errors
    /// As for [`Cluster::call`].
    pub(crate) async fn open_stream(
        &self,
        node: &str,
        path: &str,
        protocol: &str,
        body: &impl Serialize,
    ) -> Result<Box<dyn Stream>, Problem> {
        let asked = async {
            let answer = self.ask(node, request(Method::POST, path, body, Some(protocol))?).await?;
            if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                checked(answer, node).await?;
                return Err(failed(format!("node {node} does not change over to {protocol}")));
            }
            let upgraded = hyper::upgrade::on(answer).await;
            upgraded.map_err(|error| failed(format!("node {node} broke off: {}", said(&error))))
        };
        Ok(Box::new(TokioIo::new(self.within(node, asked).await?)))
    }

    /// Asks another node for something whose end is not waited for.
    ///
    /// # Errors
    /// As for [`Cluster::call`].
    pub(crate) async fn read_from(&self, node: &str, path: &str) -> Result<Incoming, Problem> {
        let asked = async {
            let answer = self.ask(node, request(Method::GET, path, &(), None)?).await?;
            if answer.status() == StatusCode::OK {
                return Ok(answer.into_body());
            }
            checked(answer, node).await?;
            Err(failed(format!("node {node} answers nothing")))
        };
        self.within(node, asked).await
    }

    async fn within<T>(
        &self,
        node: &str,
        asked: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        let address = self.known(node)?.address;
        tokio::time::timeout(TIMEOUT, asked).await.unwrap_or_else(|_| Err(silent(node, address)))
    }

    fn known(&self, node: &str) -> Result<Member, Problem> {
        self.member(node).ok_or_else(|| {
            Problem::new(Code::UnknownNode, format!("there is no node {node:?} in the cluster"))
                .help("`tombolo node ls` lists them")
        })
    }

    async fn ask(&self, node: &str, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Problem> {
        let address = self.known(node)?.address;
        let config = self.identity().client(PROTOCOLS).map_err(failed)?;
        let name = trust::server_name(node).map_err(failed)?;
        let stream = connect(&To { address, name, who: node, explain: trust::explain }, config).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let shown = self.identity().shown(chain).map_err(failed)?;
        let stream = Trusted::new(stream, self, Some(Arc::new(shown)));
        let answer = sender(stream, node).await?.send_request(request).await;
        answer.map_err(|error| broke_off(node, &error))
    }
}

/// Has the kernel see within half a minute that nobody is at the other end of a connection any
/// more, however little is said on it.
///
/// # Errors
/// The error of setsockopt(2).
pub(super) fn notice_its_end(stream: &TcpStream) -> std::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, QUIET)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASKS)?;
    sockopt::set_tcp_user_timeout(stream, UNHEARD_MS)?;
    Ok(())
}

fn request(
    method: Method,
    path: &str,
    body: &impl Serialize,
    protocol: Option<&str>,
) -> Result<Request<Full<Bytes>>, Problem> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "node")
        .header(header::CONTENT_TYPE, "application/json")
        .header(RELEASE_HEADER, RELEASE);
    if let Some(protocol) = protocol {
        request = request.header(header::CONNECTION, "upgrade").header(header::UPGRADE, protocol);
    }
    request.body(Full::new(Bytes::from(to_json(body)?))).map_err(failed)
}

fn silent(who: &str, address: SocketAddr) -> Problem {
    failed(format!("{who} at {address} does not answer within {} s", TIMEOUT.as_secs()))
        .help("is its daemon running, and the network between?")
}

/// As a machine that has no certificate yet, telling nothing to who has not shown on this
/// connection that it has the authority's key: a node that may not let others join, and stands in
/// between, would have the token otherwise.
pub(super) async fn ask_as_joiner(
    address: SocketAddr,
    authority: trust::Fingerprint,
    path: &str,
    body: &impl Serialize,
) -> Result<Bytes, Problem> {
    let config = trust::joiner(authority, PROTOCOLS).map_err(failed)?;
    let name = ServerName::IpAddress(address.ip().into());
    let who = format!("the node at {address}");
    let asked = async {
        let to = To { address, name, who: &who, explain: trust::explain_to_joiner };
        let stream = connect(&to, config).await?;
        let (_, tls) = stream.get_ref();
        let words = serve::of_connection(|into, label| tls.export_keying_material(into, label, None))
            .map_err(failed)?;
        let chain = tls.peer_certificates().unwrap_or_default().to_vec();
        let mut sender = sender(stream, &who).await?;
        let proof = post(&mut sender, &who, PROOF_PATH, &()).await?;
        let proof: Proof = serde_json::from_slice(&proof)
            .map_err(|error| failed(format!("{who} answers what is not understood: {error}")))?;
        if !trust::one_has_said(&chain, authority, About::Connection, &words, &proof.signature)
            .map_err(failed)?
        {
            return Err(Problem::new(
                Code::Refused,
                format!("{who} is a node of the cluster, and has not shown that it has the authority's key; nothing was told to it"),
            )
            .help("is that the node that the token is from? If so, somebody stands in between"));
        }
        post(&mut sender, &who, path, body).await
    };
    tokio::time::timeout(TIMEOUT * 2, asked).await.unwrap_or_else(|_| Err(silent("the node", address)))
}

async fn post(
    sender: &mut SendRequest<Full<Bytes>>,
    who: &str,
    path: &str,
    body: &impl Serialize,
) -> Result<Bytes, Problem> {
    sender.ready().await.map_err(|error| broke_off(who, &error))?;
    let answer = sender.send_request(request(Method::POST, path, body, None)?).await;
    checked(answer.map_err(|error| broke_off(who, &error))?, who).await
}

fn broke_off(who: &str, error: &hyper::Error) -> Problem {
    failed(format!("{who} broke off: {}", said(error)))
}

/// The node that is asked, and the explanation of TLS's errors with it.
struct To<'w> {
    address: SocketAddr,
    name: ServerName<'static>,
    who: &'w str,
    explain: fn(&std::io::Error, &str) -> String,
}

async fn connect(to: &To<'_>, config: Arc<rustls::ClientConfig>) -> Result<TlsStream<TcpStream>, Problem> {
    let To { address, name, who, explain } = to;
    let unreachable = |error: std::io::Error| {
        failed(format!("{who} can't be reached at {address}: {}", explain(&error, who)))
    };
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    notice_its_end(&stream).map_err(unreachable)?;
    TlsConnector::from(config).connect(name.clone(), stream).await.map_err(unreachable)
}

async fn sender<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    who: &str,
) -> Result<SendRequest<Full<Bytes>>, Problem> {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broke_off(who, &error))?;
    // Ends with the connection; what goes wrong there shows in the answer.
    tokio::spawn(async move { connection.with_upgrades().await.ok() });
    Ok(sender)
}

/// Returns hyper's error with TLS's below it: an alert comes after the handshake, for the client.
fn said(error: &hyper::Error) -> String {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            return trust::explain(error, "the other node");
        }
        cause = error.source();
    }
    error.to_string()
}

async fn checked(answer: Response<Incoming>, who: &str) -> Result<Bytes, Problem> {
    let status = answer.status();
    let limited = Limited::new(answer.into_body(), MAX_ANSWER_BYTES);
    let body =
        limited.collect().await.map_err(|error| failed(format!("{who} broke off: {error}")))?.to_bytes();
    if status == StatusCode::OK {
        return Ok(body);
    }
    Err(serde_json::from_slice(&body).unwrap_or_else(|_| failed(format!("{who} answered {status}"))))
}
