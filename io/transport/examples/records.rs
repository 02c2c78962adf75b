//! A link over TCP with TLS whose records are sealed by us, and by rustls' unbuffered interface with buffers as large as ours; and one without TLS, which says how much all of that is.
//! Each in turn, several times in one run, two nodes on two threads of this machine: `cargo run --release -p transport --example records`.
//!
//! ADR 0119 has what came of it.

use link::{Config, Event, Sent, Timing};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring, version::TLS13};
use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use transport::{Carry, Compression, Connection, Events, Handle, Kind, Listener, Locator, Settings, Tls};
use wire::link::{Hello, Pair, VERSION, VERSION_OLDEST};

/// As our own has them: what is asked of the socket at once, and what is sealed for one system call.
const INCOMING_BYTES: usize = 256 << 10;
const OUTGOING_BYTES: usize = 64 << 10;
/// The bytes that one record carries, and those that it takes beside them at most.
const CARRIED_BYTES: usize = 1 << 14;
const EXTRA_BYTES: usize = 64;

/// How often each is measured, and how long each time.
const ROUNDS: usize = 7;
const SPAN: Duration = Duration::from_millis(700);
const BULK_BYTES: usize = 256 << 10;
const SMALL_BYTES: usize = 64;
/// Small messages that are handed over at once, as a proxy does.
const BATCH: usize = 64;
/// The first byte of a message that is sent back.
const ECHO: u8 = 1;

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Ours,
    Rustls,
    Plain,
}

/// One side of a session of rustls'.
enum Session {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The outcome of looking at what came.
enum Step {
    Again,
    Read,
    Ended,
}

/// Takes one step of a session: `$hear` has what came, `$seal` is sealed behind `$outgoing` where that can be.
macro_rules! step {
    ($session:expr, $incoming:expr, $outgoing:expr, $seal:expr, $hear:expr) => {{
        let UnbufferedStatus { mut discard, state } = $session.process_tls_records($incoming);
        let step = match state.map_err(io::Error::other)? {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record.map_err(io::Error::other)?;
                    discard += record.discard;
                    $hear(record.payload);
                }
                Step::Again
            }
            ConnectionState::EncodeTlsData(mut data) => {
                let start = $outgoing.len();
                let needs = match data.encode(&mut []) {
                    Ok(written) => written,
                    Err(EncodeError::InsufficientSize(size)) => size.required_size,
                    Err(other) => return Err(io::Error::other(other.to_string())),
                };
                $outgoing.resize(start + needs, 0);
                data.encode($outgoing.get_mut(start..).unwrap_or_default())
                    .map_err(|e| io::Error::other(e.to_string()))?;
                Step::Again
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Step::Again
            }
            ConnectionState::WriteTraffic(mut traffic) => {
                if !$seal.is_empty() {
                    let start = $outgoing.len();
                    $outgoing.resize(start + $seal.len() + EXTRA_BYTES, 0);
                    let room = $outgoing.get_mut(start..).unwrap_or_default();
                    let written =
                        traffic.encrypt($seal, room).map_err(|e| io::Error::other(e.to_string()))?;
                    $outgoing.truncate(start + written);
                }
                Step::Read
            }
            ConnectionState::BlockedHandshake => Step::Read,
            _ => Step::Ended,
        };
        (step, discard)
    }};
}

/// A carrier whose records rustls seals and opens; without a session it seals nothing.
struct Unbuffered {
    socket: TcpStream,
    session: Option<Session>,
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    outgoing: Vec<u8>,
    drained: usize,
    packet: Vec<u8>,
    kept: Vec<u8>,
}

impl Unbuffered {
    fn new(socket: TcpStream, session: Option<Session>) -> Self {
        Self {
            socket,
            session,
            incoming: vec![0; INCOMING_BYTES],
            start: 0,
            end: 0,
            outgoing: Vec::with_capacity(2 * OUTGOING_BYTES),
            drained: 0,
            packet: Vec::with_capacity(CARRIED_BYTES),
            kept: Vec::new(),
        }
    }

    fn step(&mut self, seal: &[u8], hear: &mut dyn FnMut(&[u8])) -> io::Result<Step> {
        let incoming = self.incoming.get_mut(self.start..self.end).unwrap_or_default();
        let outgoing = &mut self.outgoing;
        let (step, discard) = match &mut self.session {
            Some(Session::Client(session)) => step!(session, incoming, outgoing, seal, hear),
            Some(Session::Server(session)) => step!(session, incoming, outgoing, seal, hear),
            None => {
                outgoing.extend_from_slice(seal);
                let came = incoming.len();
                if came > 0 {
                    hear(incoming);
                }
                (if came > 0 { Step::Again } else { Step::Read }, came)
            }
        };
        self.start = (self.start + discard).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        Ok(step)
    }

    fn seal(&mut self, packet: &[u8]) -> io::Result<()> {
        // What came is heard later: it is not looked at here.
        let (start, end) = (std::mem::take(&mut self.start), std::mem::take(&mut self.end));
        self.step(packet, &mut |_| ())?;
        (self.start, self.end) = (start, end);
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.outgoing.len() - self.drained
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.outgoing.get(self.drained..).filter(|rest| !rest.is_empty()) {
            self.drained += ready!(Pin::new(&mut self.socket).poll_write(cx, rest))?;
        }
        self.outgoing.clear();
        self.drained = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.incoming.len() - self.end < INCOMING_BYTES / 2 {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let mut buffer = ReadBuf::new(self.incoming.get_mut(self.end..).unwrap_or_default());
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        let read = buffer.filled().len();
        self.end += read;
        Poll::Ready(Ok(read))
    }

    async fn shake(&mut self) -> io::Result<()> {
        while self.session.as_ref().is_some_and(|session| match session {
            Session::Client(session) => session.is_handshaking(),
            Session::Server(session) => session.is_handshaking(),
        }) {
            match self.step(&[], &mut |_| ())? {
                Step::Again => {}
                Step::Ended => return Err(io::ErrorKind::UnexpectedEof.into()),
                Step::Read => {
                    poll_fn(|cx| self.poll_drain(cx)).await?;
                    if poll_fn(|cx| self.poll_fill(cx)).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
        poll_fn(|cx| self.poll_drain(cx)).await
    }
}

impl Carry for Unbuffered {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        let bytes = bytes.get(..OUTGOING_BYTES).unwrap_or(bytes);
        for packet in bytes.chunks(CARRIED_BYTES) {
            self.seal(packet)?;
        }
        match self.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(bytes.len())),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_drain(cx)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        while self.kept.is_empty() {
            let mut kept = std::mem::take(&mut self.kept);
            let heard = self.poll_hear(cx, &mut [], &mut |bytes| kept.extend_from_slice(bytes));
            self.kept = kept;
            if ready!(heard)? == 0 {
                return Poll::Ready(Ok(0));
            }
        }
        let count = into.len().min(self.kept.len());
        for (to, from) in into.iter_mut().zip(self.kept.drain(..count)) {
            *to = from;
        }
        Poll::Ready(Ok(count))
    }

    fn poll_hear(
        &mut self,
        cx: &mut Context<'_>,
        _scratch: &mut [u8],
        hear: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let mut heard = self.kept.len();
        if heard > 0 {
            hear(&std::mem::take(&mut self.kept));
        }
        loop {
            let mut more = 0;
            let step = self.step(&[], &mut |bytes| {
                more += bytes.len();
                hear(bytes);
            })?;
            heard += more;
            match step {
                Step::Again => {}
                Step::Ended => return Poll::Ready(Ok(heard)),
                Step::Read if heard > 0 => return Poll::Ready(Ok(heard)),
                Step::Read => {
                    if ready!(self.poll_fill(cx))? == 0 {
                        return Poll::Ready(Ok(0));
                    }
                }
            }
        }
    }

    fn packet_bytes(&self) -> usize {
        CARRIED_BYTES
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<&mut Vec<u8>>>> {
        if self.drained > 0 || self.waiting() >= OUTGOING_BYTES {
            ready!(self.poll_drain(cx))?;
        }
        self.packet.clear();
        Poll::Ready(Ok(Some(&mut self.packet)))
    }

    fn placed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let packet = std::mem::take(&mut self.packet);
        if !packet.is_empty() {
            self.seal(&packet)?;
        }
        self.packet = packet;
        match self.poll_drain_if_much(cx) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Unbuffered {
    fn poll_drain_if_much(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting() >= OUTGOING_BYTES { self.poll_drain(cx) } else { Poll::Ready(Ok(())) }
    }
}

/// Configurations of two nodes that believe each other.
struct Trust {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Trust {
    fn new() -> Fallible<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let root = params.self_signed(&key)?.der().clone();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate()?;
        let names = ["near", "far"].map(|node| format!("{node}.node.tombolo"));
        let certificate = CertificateParams::new(names)?.signed_by(&key, &issuer)?.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(root)?;
        let provider = Arc::new(ring::default_provider());
        let private = || PrivateKeyDer::try_from(key.serialize_der()).map_err(io::Error::other);
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], private()?)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }

    fn tls(&self, peer: &'static str) -> Tls {
        Tls::new(&self.server, &self.client, move |_: &[CertificateDer<'_>]| Ok(peer.to_owned()))
    }
}

fn settings(side: u8) -> Settings {
    let hello = Hello {
        oldest: VERSION_OLDEST,
        newest: VERSION,
        side,
        compressions: transport::COMPRESSIONS,
        pairs: 1,
        window_bytes: 640 << 10,
        message_bytes: 256 << 10,
        silence_ms: 10_000,
    };
    Settings {
        peer: if side == 0 { "far".to_owned() } else { "near".to_owned() },
        link: Config { epoch: 1, hello, queue_bytes: 640 << 10, timing: Timing::default() },
        compression: Compression::None,
        dial: None,
        spin: Duration::from_micros(50),
    }
}

/// The far side: takes what comes, and sends back what is to be.
async fn follow(handle: &Handle, events: &mut Events) -> Fallible<()> {
    while let Some(event) = events.next().await {
        match event {
            Event::Messages { pair, messages } => {
                let echoes: Vec<Vec<u8>> = messages
                    .iter()
                    .filter(|message| message.first() == Some(&ECHO))
                    .map(<[u8]>::to_vec)
                    .collect();
                handle.consumed_all(pair, messages.count(), messages.bytes());
                for echo in echoes {
                    handle.send(pair, &echo)?;
                }
            }
            Event::Over(_) => return Ok(()),
            _ => {}
        }
    }
    Ok(())
}

struct Near {
    handle: Handle,
    events: Events,
    pair: Pair,
}

impl Near {
    async fn room(&mut self) -> Fallible<()> {
        loop {
            match self.events.next().await {
                Some(Event::Room(_)) => return Ok(()),
                Some(_) => {}
                None => return Err("the link is over".into()),
            }
        }
    }

    async fn echo(&mut self, bytes: usize) -> Fallible<()> {
        let mut message = vec![0; bytes];
        message.fill(ECHO);
        while self.handle.send(self.pair, &message)? == Sent::Full {
            self.room().await?;
        }
        loop {
            match self.events.next().await {
                Some(Event::Messages { pair, messages }) => {
                    self.handle.consumed_all(pair, messages.count(), messages.bytes());
                    return Ok(());
                }
                Some(_) => {}
                None => return Err("the link is over".into()),
            }
        }
    }

    /// GiB/s of long messages, millions of short ones each second, and the round trip of one in us.
    async fn measure(&mut self) -> Fallible<[f64; 3]> {
        self.echo(SMALL_BYTES).await?;
        let (long, begun) = (vec![0; BULK_BYTES], Instant::now());
        let mut count = 0_u32;
        while begun.elapsed() < SPAN {
            while self.handle.send(self.pair, &long)? == Sent::Full {
                self.room().await?;
            }
            count += 1;
        }
        self.echo(SMALL_BYTES).await?;
        let bulk = f64::from(count) * BULK_BYTES as f64 / f64::from(1 << 30) / begun.elapsed().as_secs_f64();
        let (short, begun) = ([0; SMALL_BYTES], Instant::now());
        let batch = [&short[..]; BATCH];
        let mut count = 0_u32;
        while begun.elapsed() < SPAN {
            let mut rest = &batch[..];
            while !rest.is_empty() {
                let queued = self.handle.send_all(self.pair, rest.iter().copied())?;
                rest = rest.get(queued..).unwrap_or_default();
                if queued == 0 {
                    self.room().await?;
                }
            }
            count += 1;
        }
        self.echo(SMALL_BYTES).await?;
        let small = f64::from(count) * BATCH as f64 / 1e6 / begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        let mut count = 0_u32;
        while begun.elapsed() < SPAN {
            self.echo(SMALL_BYTES).await?;
            count += 1;
        }
        Ok([bulk, small, begun.elapsed().as_secs_f64() * 1e6 / f64::from(count)])
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

async fn accept(way: Way, trust: &Trust, tell: std::sync::mpsc::Sender<SocketAddr>) -> Fallible<Connection> {
    let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    if way == Way::Ours {
        let locator = Locator { kind: Kind::Tcp, address: here.into() };
        let mut listener = Listener::bind(locator, trust.tls("near")).await?;
        tell.send(listener.locator().address.ip()?)?;
        return Ok(listener.accept().await?);
    }
    let listener = TcpListener::bind(here).await?;
    tell.send(listener.local_addr()?)?;
    let (socket, remote) = listener.accept().await?;
    socket.set_nodelay(true)?;
    let session = UnbufferedServerConnection::new(trust.server.clone())?;
    let mut carrier = Unbuffered::new(socket, (way == Way::Rustls).then_some(Session::Server(session)));
    carrier.shake().await?;
    Ok(Connection::new(Box::new(carrier), "near".to_owned(), Kind::Tcp, remote.into()))
}

async fn connect(way: Way, trust: &Trust, at: SocketAddr) -> Fallible<Connection> {
    if way == Way::Ours {
        let locator = Locator { kind: Kind::Tcp, address: at.into() };
        return Ok(transport::connect(locator, &trust.tls("far"), "far").await?);
    }
    let socket = TcpStream::connect(at).await?;
    socket.set_nodelay(true)?;
    let session =
        UnbufferedClientConnection::new(trust.client.clone(), ServerName::try_from("far.node.tombolo")?)?;
    let mut carrier = Unbuffered::new(socket, (way == Way::Rustls).then_some(Session::Client(session)));
    carrier.shake().await?;
    Ok(Connection::new(Box::new(carrier), "far".to_owned(), Kind::Tcp, at.into()))
}

fn one(way: Way, trust: &Arc<Trust>) -> Fallible<[f64; 3]> {
    let (tell, told) = std::sync::mpsc::channel();
    let theirs = Arc::clone(trust);
    let far = std::thread::spawn(move || -> Fallible<()> {
        runtime()?.block_on(async {
            let connection = accept(way, &theirs, tell).await?;
            let (handle, mut events, driver) = transport::start(settings(1))?;
            handle.adopt(connection)?;
            tokio::spawn(driver.run());
            follow(&handle, &mut events).await
        })
    });
    let at = told.recv()?;
    let figures = runtime()?.block_on(async {
        let connection = connect(way, trust, at).await?;
        let (handle, mut events, driver) = transport::start(settings(0))?;
        handle.adopt(connection)?;
        let driver = tokio::spawn(driver.run());
        while !matches!(events.next().await, Some(Event::Up { .. })) {}
        let pair = handle.open(b"bench")?;
        let mut near = Near { handle, events, pair };
        let figures = near.measure().await?;
        near.handle.goodbye(0);
        // It ends when the other side has heard of it.
        let _ended = tokio::time::timeout(Duration::from_secs(2), driver).await;
        Fallible::Ok(figures)
    })?;
    far.join().map_err(|_| "the far side panicked")??;
    Ok(figures)
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Fallible<()> {
    let trust = Arc::new(Trust::new()?);
    let ways = [Way::Ours, Way::Rustls, Way::Plain];
    let mut all: [[Vec<f64>; 3]; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (way, kept) in ways.into_iter().zip(&mut all) {
            let figures = one(way, &trust)?;
            kept.iter_mut().zip(figures).for_each(|(kept, figure)| kept.push(figure));
        }
    }
    let words = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    println!(
        "kernel {}; its protocols over TCP: {}",
        std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim(),
        words.trim()
    );
    println!("medians of {ROUNDS} times {SPAN:?}, in turn; two threads of this machine, over its loopback");
    let ours: Vec<f64> = all[0].iter_mut().map(|figures| median(figures)).collect();
    for (way, figures) in ways.into_iter().zip(&mut all) {
        let each: Vec<f64> = figures.iter_mut().map(|figures| median(figures)).collect();
        println!(
            "{way:?}: {BULK_BYTES} B {:.2} GiB/s ({:.2} x), {SMALL_BYTES} B {:.2} million/s ({:.2} x), round trip {:.1} us ({:.2} x)",
            each[0],
            each[0] / ours[0],
            each[1],
            each[1] / ours[1],
            each[2],
            each[2] / ours[2]
        );
    }
    Ok(())
}
