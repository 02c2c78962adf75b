//! Connections between replicas of two nodes: TCP with TLS by the cluster's certificates, a
//! greeting each way, and then requests of NBD.

use crate::input::{Caller, Input, Write};
use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use trust::{Identity, Place, SentAway, Shown, Strangers};
use wire::nbd::{self, Reply, Request, command};
use wire::replica::{Greeted, Greeting, MAX_GREETING_BYTES, PROTOCOL};

/// How long a connection may take until its greeting is answered: the other daemon asks the
/// registry meanwhile.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller may take to show its certificate and to greet.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(3);
/// Callers at a time that have shown who they are: each other node has one, and one that comes
/// again.
const MAX_CALLERS: usize = 8;
/// Callers at a time that have not: where one more comes, the one that has waited longest gives
/// way.
const MAX_STRANGERS: usize = 32;
/// Of these from one address.
const MAX_STRANGERS_OF_ONE: usize = 8;
/// Data of writes that are taken and not answered, in KiB: of one replica of this node.
const ROOM_KIB: usize = 64 << 10;
/// Pause after a caller could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// The state that all connections share.
#[derive(Debug, Clone)]
pub(crate) struct Ground {
    pub identity: Identity,
    pub inputs: UnboundedSender<Input>,
    /// Ticks when this node believes something else.
    pub trust: watch::Receiver<u64>,
    pub bytes: u64,
}

/// A write to another node's replica.
#[derive(Debug)]
pub(crate) struct Sent {
    pub sequence: u64,
    pub offset: u64,
    pub data: Bytes,
}

/// Has a connection to another node's replica, in the order of its number; says when it stands,
/// what is answered, and when it is over.
pub(crate) async fn call(
    ground: Ground,
    node: String,
    at: SocketAddr,
    connection: u64,
    greeting: Greeting,
    sent: UnboundedReceiver<Sent>,
) {
    let why = match tokio::time::timeout(TIMEOUT, greet(&ground, &node, at, &greeting)).await {
        Ok(Ok((stream, shown))) => {
            let _over = ground.inputs.send(Input::PeerUp { node: node.clone(), connection });
            let served = serve_called(stream, &ground, &node, connection, sent);
            tokio::select! {
                served = served => served.map_or_else(|error| error.to_string(), |()| "it has hung up".to_owned()),
                () = disbelieved(&ground, &shown) => "its certificate is believed no more".to_owned(),
            }
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it does not answer within {} s", TIMEOUT.as_secs()),
    };
    let _over = ground.inputs.send(Input::PeerGone { node, connection, why });
}

async fn greet(
    ground: &Ground,
    node: &str,
    at: SocketAddr,
    greeting: &Greeting,
) -> io::Result<(tokio_rustls::client::TlsStream<TcpStream>, Shown)> {
    let config = ground.identity.client(&[PROTOCOL]).map_err(io::Error::other)?;
    let name = trust::server_name(node).map_err(io::Error::other)?;
    let stream = TcpStream::connect(at).await?;
    stream.set_nodelay(true)?;
    let mut stream = TlsConnector::from(config)
        .connect(name, stream)
        .await
        .map_err(|error| io::Error::other(trust::explain(&error, node)))?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let shown = ground.identity.shown(chain).map_err(io::Error::other)?;
    say(&mut stream, greeting).await?;
    let answer: Greeted = hear(&mut stream).await?;
    match answer.refused {
        None => Ok((stream, shown)),
        Some(why) => Err(io::Error::other(format!("it refuses: {why}"))),
    }
}

async fn disbelieved(ground: &Ground, shown: &Shown) {
    let mut trust = ground.trust.clone();
    while ground.identity.still(shown).is_ok() {
        if trust.changed().await.is_err() {
            return;
        }
    }
}

async fn serve_called<S: AsyncRead + AsyncWrite>(
    stream: S,
    ground: &Ground,
    node: &str,
    connection: u64,
    mut sent: UnboundedReceiver<Sent>,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        while let Some(Sent { sequence, offset, data }) = sent.recv().await {
            let length = u32::try_from(data.len()).map_err(io::Error::other)?;
            let request =
                Request { flags: nbd::FUA, command: command::WRITE, cookie: sequence, offset, length };
            writer.write_all(&request.bytes()).await?;
            writer.write_all(&data).await?;
            writer.flush().await?;
        }
        Ok(())
    };
    let read = async {
        loop {
            let mut head = [0; nbd::REPLY_BYTES];
            reader.read_exact(&mut head).await?;
            let Reply { error, cookie } = Reply::parse(&head).map_err(io::Error::other)?;
            let stored = Input::PeerStored { node: node.to_owned(), connection, sequence: cookie, error };
            ground.inputs.send(stored).map_err(io::Error::other)?;
        }
    };
    tokio::select! { ended = write => ended, ended = read => ended }
}

/// The limits that the callers of a replica share.
#[derive(Debug, Clone)]
struct Callers {
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

/// Accepts other nodes' replicas for ever.
pub(crate) async fn accept(listener: TcpListener, ground: Ground) {
    let strangers = Strangers::new(MAX_STRANGERS, MAX_STRANGERS_OF_ONE);
    let (places, room) = (Arc::new(Semaphore::new(MAX_CALLERS)), Arc::new(Semaphore::new(ROOM_KIB)));
    let callers = Callers { places, room };
    let mut connection = 0;
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                // No stranger is kept here, so there is one that can give way.
                let Some(stranger) = strangers.enter(from.ip()) else { continue };
                connection += 1;
                let (ground, callers) = (ground.clone(), callers.clone());
                tokio::spawn(async move {
                    if let Err(error) = take(stream, stranger, &ground, connection, callers).await {
                        tracing::debug!(%from, %error, "a caller's connection has ended");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a caller can't be accepted");
                // tidy(sleep): out of descriptors; nothing tells when there is one again.
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn late<E>(_: E) -> io::Error {
    io::ErrorKind::TimedOut.into()
}

async fn take(
    stream: TcpStream,
    (stranger, sent_away): (Place, SentAway),
    ground: &Ground,
    connection: u64,
    callers: Callers,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let config = ground.identity.server(&[PROTOCOL]).map_err(io::Error::other)?;
    let begun = async {
        let mut stream = TlsAcceptor::from(config).accept(stream).await?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let shown = ground.identity.shown(chain).map_err(io::Error::other)?;
        let greeting: Greeting = hear(&mut stream).await?;
        Ok::<_, io::Error>((stream, shown, greeting))
    };
    let (stream, shown, greeting) = tokio::select! {
        begun = tokio::time::timeout(STRANGER_TIMEOUT, begun) => begun.map_err(late)??,
        () = sent_away.told() => return Err(io::Error::other("it was given up for another")),
    };
    drop(stranger);
    let place = tokio::time::timeout(TIMEOUT, callers.places.acquire_owned()).await.map_err(late)?;
    let _place = place.map_err(io::Error::other)?;
    let (replies, outgoing) = unbounded_channel();
    let (answer, answered) = oneshot::channel();
    let caller = Caller { connection, node: shown.peer().node.clone(), greeting, replies, answer };
    ground.inputs.send(Input::Caller(caller)).map_err(io::Error::other)?;
    let served = tokio::select! {
        served = serve_answered(stream, ground, connection, callers.room, answered, outgoing) => served,
        () = disbelieved(ground, &shown) => Ok(()),
    };
    let _over = ground.inputs.send(Input::CallerGone { connection });
    served
}

/// Tells a caller whether it may write, and serves it if so.
async fn serve_answered<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    ground: &Ground,
    connection: u64,
    room: Arc<Semaphore>,
    answered: oneshot::Receiver<Greeted>,
    outgoing: UnboundedReceiver<Reply>,
) -> io::Result<()> {
    let gone = Greeted { refused: Some("another one came".into()) };
    let answered = tokio::time::timeout(TIMEOUT, answered).await.map_err(late)?.unwrap_or(gone);
    say(&mut stream, &answered).await?;
    match answered.refused {
        None => serve_caller(stream, ground, connection, room, outgoing).await,
        Some(_) => Ok(()),
    }
}

async fn serve_caller<S: AsyncRead + AsyncWrite>(
    stream: S,
    ground: &Ground,
    connection: u64,
    room: Arc<Semaphore>,
    mut replies: UnboundedReceiver<Reply>,
) -> io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let write = async {
        // Ends with the session.
        while let Some(reply) = replies.recv().await {
            writer.write_all(&reply.bytes()).await?;
            writer.flush().await?;
        }
        Ok(())
    };
    let read = async {
        loop {
            let mut head = [0; nbd::REQUEST_BYTES];
            reader.read_exact(&mut head).await?;
            let request = Request::parse(&head).map_err(io::Error::other)?;
            let Request { command, cookie, offset, length, .. } = request;
            let fits = length <= nbd::MAX_REQUEST_BYTES && request.end_within(ground.bytes).is_some();
            if command != command::WRITE || !fits {
                return Err(io::Error::other("a request that no primary sends"));
            }
            let room = Arc::clone(&room).acquire_many_owned(length / 1024 + 1).await;
            let room = room.map_err(io::Error::other)?;
            let mut data = BytesMut::zeroed(length as usize);
            reader.read_exact(&mut data).await?;
            let write = Write { connection, sequence: cookie, offset, data: data.freeze(), _room: room };
            ground.inputs.send(Input::CallerWrites(write)).map_err(io::Error::other)?;
        }
    };
    tokio::select! { ended = write => ended, ended = read => ended }
}

async fn say(stream: &mut (impl AsyncWrite + Unpin), message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    stream.flush().await
}

async fn hear<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let mut line = Vec::new();
    while line.len() < MAX_GREETING_BYTES {
        match stream.read_u8().await? {
            b'\n' => return Ok(serde_json::from_slice(&line)?),
            byte => line.push(byte),
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the greeting is too long"))
}
