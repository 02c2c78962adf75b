//! Strangers at the peer API of a node, by real connections.

use super::super::config::Config;
use super::*;
use axum::body::Bytes;
use axum::routing::post;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use rustls::pki_types::ServerName;
use std::io::ErrorKind;
use std::time::{Instant, SystemTime};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as ClientStream;
use trust::{Authority, Identity};

/// Longer than everything that has a deadline.
const LONG: Duration = Duration::from_secs(60);

struct Bed {
    _folder: TempDir,
    authority: Authority,
    at: SocketAddr,
}

/// A node of the authority's cluster.
fn cluster_in(folder: &TempDir, authority: &Authority) -> Cluster {
    let trust_folder = super::super::trust_folder(folder.path());
    std::fs::create_dir_all(&trust_folder).unwrap();
    authority.identity("a", SystemTime::now()).unwrap().store(&trust_folder).unwrap();
    let etcd = serde_json::json!({ "endpoints": ["http://127.0.0.1:9"], "prefix": "/t/" });
    let config = Config::new("127.0.0.1:0".parse().unwrap(), serde_json::from_value(etcd).unwrap(), Some(0));
    config.store(folder.path()).unwrap();
    Cluster::open(folder.path()).unwrap().unwrap()
}

/// A node whose peer API says who asks. Its registry can't be reached, and is not asked.
async fn bed() -> Bed {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("lab", SystemTime::now()).unwrap();
    let cluster = cluster_in(&folder, &authority);
    let who = |caller: Option<Extension<Caller>>, _body: Bytes| {
        std::future::ready(caller.map_or_else(|| "nobody".to_owned(), |Extension(caller)| caller.node))
    };
    let at = serve(&cluster, Router::new().route("/who", post(who))).await.unwrap();
    Bed { _folder: folder, authority, at }
}

impl Bed {
    async fn stranger(&self) -> std::io::Result<ClientStream<TcpStream>> {
        let config = trust::joiner(self.authority.fingerprint(), PROTOCOLS).unwrap();
        let name = ServerName::IpAddress(self.at.ip().into());
        TlsConnector::from(config).connect(name, TcpStream::connect(self.at).await?).await
    }

    /// Returns the answer to a node.
    async fn asked_by(&self, identity: &Identity) -> String {
        let config = identity.client(PROTOCOLS).unwrap();
        let stream = TcpStream::connect(self.at).await.unwrap();
        let stream =
            TlsConnector::from(config).connect(trust::server_name("a").unwrap(), stream).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post("/who").header("host", "a").body(Full::new(Bytes::new())).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }
}

/// A request whose body does not end.
const ENDLESS: &[u8] = b"POST /who HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nx";

/// 256 such connections had every place for as long as they liked: no node was answered, and no
/// machine could join.
#[tokio::test]
async fn strangers_that_hold_connections_keep_no_node_and_no_machine_out() {
    let bed = bed().await;
    let identity = bed.authority.identity("b", SystemTime::now()).unwrap();
    let mut held = Vec::new();
    for n in 0..300 {
        // Some say nothing at all, some do not end what they say.
        if n % 3 == 0 {
            held.push((None, Some(TcpStream::connect(bed.at).await.unwrap())));
        } else if let Ok(mut stream) = bed.stranger().await {
            // It may have had to go for another.
            let _gone = stream.write_all(ENDLESS).await;
            held.push((Some(stream), None));
        }
    }
    assert!(held.len() > 200, "{}", held.len());
    for _ in 0..20 {
        assert_eq!(tokio::time::timeout(LONG, bed.asked_by(&identity)).await.unwrap(), "b");
    }
    let mut stream = tokio::time::timeout(LONG, bed.stranger()).await.unwrap().unwrap();
    stream.write_all(b"POST /who HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    tokio::time::timeout(LONG, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
}

#[tokio::test]
async fn a_stranger_whose_request_does_not_end_is_cut_off_in_time() {
    let bed = bed().await;
    let began = Instant::now();
    let mut stream = bed.stranger().await.unwrap();
    stream.write_all(ENDLESS).await.unwrap();
    let mut silent = TcpStream::connect(bed.at).await.unwrap();
    let mut rest = Vec::new();
    match tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await.unwrap() {
        Ok(_) => assert_eq!(rest, b""),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{error}")
        }
    }
    assert!(began.elapsed() >= STRANGER_TIMEOUT);
    assert_eq!(tokio::time::timeout(LONG, silent.read_to_end(&mut rest)).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn one_node_has_its_number_of_connections_and_others_have_theirs() {
    let bed = bed().await;
    let [b, c] = ["b", "c"].map(|node| bed.authority.identity(node, SystemTime::now()).unwrap());
    let visitors = Visitors::new();
    let of_b: Vec<_> = std::iter::from_fn(|| visitors.is_node("b")).take(10_000).collect();
    assert!(of_b.len() < 10_000 && visitors.is_node("c").is_some());
    drop(of_b);
    assert!(visitors.is_node("b").is_some());
    assert_eq!((bed.asked_by(&b).await.as_str(), bed.asked_by(&c).await.as_str()), ("b", "c"));
}

/// Any node of the cluster that answered at the address had the token, also one that may not let
/// others join.
#[tokio::test]
async fn a_machine_tells_its_token_to_nobody_who_has_not_the_authority() {
    use super::super::call::ask_as_joiner;
    use crate::admin::Problem;
    use std::sync::atomic::{AtomicBool, Ordering};
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("lab", SystemTime::now()).unwrap();
    let told = Arc::new(AtomicBool::new(false));
    let heard = Arc::clone(&told);
    let join = move |_body: Bytes| {
        heard.store(true, Ordering::Relaxed);
        std::future::ready("{}")
    };
    let signer = Arc::new(std::sync::Mutex::new(None::<Authority>));
    let signs = Arc::clone(&signer);
    let prove = move |Extension(OfConnection(words)): Extension<OfConnection>| {
        let signs = signs.lock().unwrap();
        let signature =
            signs.as_ref().map_or_else(String::new, |by| by.say(trust::About::Connection, &words).unwrap());
        std::future::ready(axum::Json(super::super::join::Proof { signature }))
    };
    let router = Router::new().route(JOIN_PATH, post(join)).route(PROOF_PATH, post(prove));
    let at = serve(&cluster_in(&folder, &authority), router).await.unwrap();
    let ask = async || ask_as_joiner(at, authority.fingerprint(), JOIN_PATH, &()).await;
    for by in [None, Some(Authority::new("lab", SystemTime::now()).unwrap())] {
        *signer.lock().unwrap() = by;
        let refusal: Problem = ask().await.unwrap_err();
        assert!(refusal.message.contains("has not shown that it has the authority's key"), "{refusal}");
        assert!(!told.load(Ordering::Relaxed));
    }
    *signer.lock().unwrap() = Some(Authority::from_pem(&authority.to_pem()).unwrap());
    assert_eq!(&ask().await.unwrap()[..], b"{}");
    assert!(told.load(Ordering::Relaxed));
}

#[tokio::test]
async fn what_is_wrong_is_said_as_long_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster_in(&folder, &Authority::new("lab", SystemTime::now()).unwrap());
    assert_eq!(cluster.view().troubles, [] as [&str; 0]);
    cluster.say_trouble(super::super::Trouble::Clock, Some("it is late".into()));
    assert_eq!(cluster.view().troubles, ["it is late"]);
    cluster.say_trouble(super::super::Trouble::Clock, None);
    assert_eq!(cluster.view().troubles, [] as [&str; 0]);
}

#[tokio::test]
async fn what_is_no_request_for_a_certificate_is_refused_while_etcd_is_away() {
    use super::super::{own_etcd, rotate};
    let folder = tempfile::tempdir().unwrap();
    let cluster = cluster_in(&folder, &Authority::new("lab", SystemTime::now()).unwrap());
    let issue = async |pem: &str| {
        let ask = serde_json::json!({ "request_pem": pem });
        let node = rotate::issue(&cluster, "b", serde_json::from_value(ask.clone()).unwrap()).await;
        let member = own_etcd::issue(&cluster, "b", serde_json::from_value(ask).unwrap()).await;
        [node.map(drop), member.map(drop)].map(|issued| issued.expect_err("there is no etcd").code)
    };
    let empty = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n";
    for garbage in ["", "garbage", empty] {
        assert_eq!(issue(garbage).await, [Code::BadRequest; 2], "{garbage}");
    }
    // What has the form gets as far as etcd.
    let good = trust::Request::new("b").unwrap().pem().unwrap();
    assert!(issue(&good).await.iter().all(|code| *code != Code::BadRequest));
}
