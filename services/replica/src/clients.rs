//! Clients of the volume: an NBD server at a Unix socket, while this node is the primary.

use crate::input::{Input, Outgoing, Replier, Wish};
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use volume::MAX_WAITING;
use wire::nbd::{self, Request, answer, command, error, export, option};

/// Clients at a time, as an engine has them.
const MAX_CLIENTS: usize = 16;
/// Data of requests that are under way, in KiB: two of the longest requests.
const ROOM_KIB: usize = 64 << 10;
/// How long a client may take to say which export it wants.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a client could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// The export's name.
const EXPORT: &[u8] = b"volume";
/// Options of one client at most.
const MAX_OPTIONS: usize = 32;

/// The state that all clients share.
#[derive(Debug)]
pub(crate) struct Shared {
    bytes: u64,
    extent_bytes: u64,
    inputs: UnboundedSender<Input>,
    /// The view that serves; 0: none does.
    serving: watch::Receiver<u64>,
    places: Arc<Semaphore>,
    room: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

impl Shared {
    pub fn new(
        bytes: u64,
        extent_bytes: u64,
        inputs: UnboundedSender<Input>,
        serving: watch::Receiver<u64>,
    ) -> Self {
        let semaphore = |most| Arc::new(Semaphore::new(most));
        let (places, room, writes) = (semaphore(MAX_CLIENTS), semaphore(ROOM_KIB), semaphore(MAX_WAITING));
        Self { bytes, extent_bytes, inputs, serving, places, room, writes }
    }
}

/// Accepts clients for ever.
pub(crate) async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    loop {
        let Ok(place) = Arc::clone(&shared.places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    if let Err(error) = of_view(stream, &shared).await {
                        tracing::debug!(%error, "a client's connection has ended");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a client can't be accepted");
                // tidy(sleep): out of descriptors; nothing tells when there is one again.
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves a client until the view ends, or it does.
async fn of_view(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let mut serving = shared.serving.clone();
    let view = *serving.wait_for(|view| *view != 0).await.map_err(io::Error::other)?;
    let _counted = Counted::new(&shared.inputs);
    tokio::select! {
        served = serve(stream, shared, view) => served,
        over = serving.wait_for(|now| *now != view) => over.map(drop).map_err(io::Error::other),
    }
}

/// A client that is counted.
struct Counted(UnboundedSender<Input>);

impl Counted {
    fn new(inputs: &UnboundedSender<Input>) -> Self {
        let _over = inputs.send(Input::Clients(1));
        Self(inputs.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _over = self.0.send(Input::Clients(-1));
    }
}

async fn serve(mut stream: UnixStream, shared: &Shared, view: u64) -> io::Result<()> {
    let begun = tokio::time::timeout(TIMEOUT, negotiate(&mut stream, shared.bytes)).await;
    if !begun.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
        return Ok(());
    }
    let (mut reader, mut writer) = stream.into_split();
    let (out, mut replies): (_, UnboundedReceiver<Outgoing>) = unbounded_channel();
    let write = async {
        while let Some(Outgoing { reply, data, .. }) = replies.recv().await {
            writer.write_all(&reply.bytes()).await?;
            writer.write_all(&data).await?;
        }
        Ok(())
    };
    let read = async {
        while let Some(request) = next(&mut reader).await? {
            take(request, &mut reader, shared, view, &out).await?;
        }
        Ok(())
    };
    tokio::select! { ended = read => ended, ended = write => ended }
}

/// The next request; `None`: the client is done.
async fn next(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Request>> {
    let mut head = [0; nbd::REQUEST_BYTES];
    match reader.read_exact(&mut head).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    };
    let request = Request::parse(&head).map_err(io::Error::other)?;
    Ok(Some(request).filter(|request| request.command != command::DISCONNECT))
}

async fn take(
    request: Request,
    reader: &mut (impl AsyncRead + Unpin),
    shared: &Shared,
    view: u64,
    out: &UnboundedSender<Outgoing>,
) -> io::Result<()> {
    let Request { cookie, offset, length, .. } = request;
    if length > nbd::MAX_REQUEST_BYTES {
        return Err(io::Error::other("a request is longer than any may be"));
    }
    let permit = |of: &Arc<Semaphore>, count: u32| Arc::clone(of).acquire_many_owned(count);
    let room = permit(&shared.room, length / 1024 + 1).await.map_err(io::Error::other)?;
    let mut replier = Replier { out: out.clone(), cookie, permits: vec![room] };
    let fits = request.end_within(shared.bytes).is_some();
    let wish = match request.command {
        command::WRITE => {
            let mut data = BytesMut::zeroed(length as usize);
            reader.read_exact(&mut data).await?;
            if !fits || request.flags & !nbd::FUA != 0 {
                replier.done(Err(if fits { error::INVALID } else { error::NO_SPACE }));
                return Ok(());
            }
            let pieces = u64::from(length) / shared.extent_bytes + 2;
            let pieces = u32::try_from(pieces).map_err(io::Error::other)?;
            replier.permits.push(permit(&shared.writes, pieces).await.map_err(io::Error::other)?);
            Wish::Write { offset, data: data.freeze() }
        }
        command::READ if fits => Wish::Read { offset, length },
        // What was acknowledged is on stable storage, everywhere.
        command::FLUSH => {
            replier.done(Ok(Bytes::new()));
            return Ok(());
        }
        _ => {
            replier.done(Err(error::INVALID));
            return Ok(());
        }
    };
    if length == 0 {
        replier.done(Ok(Bytes::new()));
        return Ok(());
    }
    shared.inputs.send(Input::Client { view, wish, replier }).map_err(io::Error::other)
}

/// Comes to terms with a client; `false`: it wants nothing more.
async fn negotiate(stream: &mut UnixStream, bytes: u64) -> io::Result<bool> {
    let mut hello = BytesMut::new();
    hello.extend_from_slice(&nbd::SERVER_MAGIC.to_be_bytes());
    hello.extend_from_slice(&nbd::OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&(nbd::FIXED_NEWSTYLE | nbd::NO_ZEROES).to_be_bytes());
    stream.write_all(&hello).await?;
    let flags = stream.read_u32().await?;
    let no_zeroes = flags & u32::from(nbd::NO_ZEROES) != 0;
    for _ in 0..MAX_OPTIONS {
        if stream.read_u64().await? != nbd::OPTION_MAGIC {
            return Err(io::Error::other("a client speaks no NBD"));
        }
        let (kind, length) = (stream.read_u32().await?, stream.read_u32().await?);
        if length > nbd::MAX_OPTION_BYTES {
            return Err(io::Error::other("an option is too long"));
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data).await?;
        match kind {
            option::EXPORT_NAME if is_export(&data) => {
                let mut facts = BytesMut::from(&facts(bytes)[2..]);
                facts.resize(facts.len() + if no_zeroes { 0 } else { 124 }, 0);
                stream.write_all(&facts).await?;
                return Ok(true);
            }
            option::EXPORT_NAME => return Ok(false),
            option::ABORT => {
                say(stream, kind, answer::ACK, &[]).await?;
                return Ok(false);
            }
            option::LIST if data.is_empty() => {
                let mut name = BytesMut::new();
                name.extend_from_slice(&u32::try_from(EXPORT.len()).unwrap_or_default().to_be_bytes());
                name.extend_from_slice(EXPORT);
                say(stream, kind, answer::SERVER, &name).await?;
                say(stream, kind, answer::ACK, &[]).await?;
            }
            option::GO | option::INFO => match wanted(&data) {
                None => say(stream, kind, answer::INVALID, &[]).await?,
                Some(name) if !is_export(name) => say(stream, kind, answer::UNKNOWN, &[]).await?,
                Some(_) => {
                    say(stream, kind, answer::INFO, &facts(bytes)).await?;
                    say(stream, kind, answer::INFO, &sizes()).await?;
                    say(stream, kind, answer::ACK, &[]).await?;
                    if kind == option::GO {
                        return Ok(true);
                    }
                }
            },
            _ => say(stream, kind, answer::UNSUPPORTED, &[]).await?,
        }
    }
    Err(io::Error::other("a client has too many options"))
}

fn is_export(name: &[u8]) -> bool {
    name.is_empty() || name == EXPORT
}

/// The export that an option asks about.
fn wanted(data: &[u8]) -> Option<&[u8]> {
    let (length, rest) = data.split_first_chunk::<4>()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}

fn facts(bytes: u64) -> [u8; 12] {
    let flags = export::HAS_FLAGS | export::SEND_FLUSH | export::SEND_FUA | export::CAN_MULTI_CONN;
    let mut facts = [0; 12];
    facts[..2].copy_from_slice(&nbd::INFO_EXPORT.to_be_bytes());
    facts[2..10].copy_from_slice(&bytes.to_be_bytes());
    facts[10..].copy_from_slice(&flags.to_be_bytes());
    facts
}

/// Sizes of requests: any sector, best in pages.
fn sizes() -> [u8; 14] {
    let mut sizes = [0; 14];
    sizes[..2].copy_from_slice(&nbd::INFO_BLOCK_SIZE.to_be_bytes());
    sizes[2..6].copy_from_slice(&1_u32.to_be_bytes());
    sizes[6..10].copy_from_slice(&4096_u32.to_be_bytes());
    sizes[10..].copy_from_slice(&nbd::MAX_REQUEST_BYTES.to_be_bytes());
    sizes
}

async fn say(stream: &mut UnixStream, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut said = BytesMut::new();
    said.extend_from_slice(&nbd::OPTION_REPLY_MAGIC.to_be_bytes());
    said.extend_from_slice(&option.to_be_bytes());
    said.extend_from_slice(&kind.to_be_bytes());
    said.extend_from_slice(&u32::try_from(data.len()).map_err(io::Error::other)?.to_be_bytes());
    said.extend_from_slice(data);
    stream.write_all(&said).await
}
