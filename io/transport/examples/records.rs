//! A link over TCP with TLS, and one without, which says how much TLS is of it. Each in turn,
//! several times in one run, two nodes on two threads of this machine: `cargo run --release -p
//! transport --example records`.
//!
//! ADR 0119 has what came of it.

use link::{Config, Event, Sent, Timing};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring, version::TLS13};
use std::error::Error;
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

/// As with TLS: what is asked of the socket at once, what goes out by one system call, and what one
/// packet has.
const INCOMING_BYTES: usize = 256 << 10;
const OUTGOING_BYTES: usize = 64 << 10;
const PACKET_BYTES: usize = 1 << 14;

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
    Tls,
    Plain,
}

/// A carrier that seals nothing.
struct Plain {
    socket: TcpStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    drained: usize,
}

impl Plain {
    fn new(socket: TcpStream) -> Self {
        let (incoming, outgoing) = (vec![0; INCOMING_BYTES], Vec::with_capacity(2 * OUTGOING_BYTES));
        Self { socket, incoming, outgoing, drained: 0 }
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.outgoing.get(self.drained..).filter(|rest| !rest.is_empty()) {
            self.drained += ready!(Pin::new(&mut self.socket).poll_write(cx, rest))?;
        }
        self.outgoing.clear();
        self.drained = 0;
        Poll::Ready(Ok(()))
    }
}

impl Carry for Plain {
    fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_drain(cx)
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn poll_hear(
        &mut self,
        cx: &mut Context<'_>,
        _scratch: &mut [u8],
        hear: &mut dyn FnMut(&[u8]),
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(&mut self.incoming);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer))?;
        hear(buffer.filled());
        Poll::Ready(Ok(buffer.filled().len()))
    }

    fn packet_bytes(&self) -> usize {
        PACKET_BYTES
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<&mut Vec<u8>>>> {
        if self.drained > 0 || self.outgoing.len() >= OUTGOING_BYTES {
            ready!(self.poll_drain(cx))?;
        }
        Poll::Ready(Ok(Some(&mut self.outgoing)))
    }

    fn placed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.outgoing.len() >= OUTGOING_BYTES
            && let Poll::Ready(Err(error)) = self.poll_drain(cx)
        {
            return Err(error);
        }
        Ok(())
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
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
    if way == Way::Tls {
        let locator = Locator { kind: Kind::Tcp, address: here.into() };
        let mut listener = Listener::bind(locator, trust.tls("near")).await?;
        tell.send(listener.locator().address.ip()?)?;
        return Ok(listener.accept().await?);
    }
    let listener = TcpListener::bind(here).await?;
    tell.send(listener.local_addr()?)?;
    let (socket, remote) = listener.accept().await?;
    socket.set_nodelay(true)?;
    Ok(Connection::new(Box::new(Plain::new(socket)), "near".to_owned(), Kind::Tcp, remote.into()))
}

async fn connect(way: Way, trust: &Trust, at: SocketAddr) -> Fallible<Connection> {
    if way == Way::Tls {
        let locator = Locator { kind: Kind::Tcp, address: at.into() };
        return Ok(transport::connect(locator, &trust.tls("far"), "far").await?);
    }
    let socket = TcpStream::connect(at).await?;
    socket.set_nodelay(true)?;
    Ok(Connection::new(Box::new(Plain::new(socket)), "far".to_owned(), Kind::Tcp, at.into()))
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
    let ways = [Way::Tls, Way::Plain];
    let mut all: [[Vec<f64>; 3]; 2] = Default::default();
    for _ in 0..ROUNDS {
        for (way, kept) in ways.into_iter().zip(&mut all) {
            let figures = one(way, &trust)?;
            kept.iter_mut().zip(figures).for_each(|(kept, figure)| kept.push(figure));
        }
    }
    println!("kernel {}", std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim());
    println!("medians of {ROUNDS} times {SPAN:?}, in turn; two threads of this machine, over its loopback");
    let tls: Vec<f64> = all[0].iter_mut().map(|figures| median(figures)).collect();
    for (way, figures) in ways.into_iter().zip(&mut all) {
        let each: Vec<f64> = figures.iter_mut().map(|figures| median(figures)).collect();
        println!(
            "{way:?}: {BULK_BYTES} B {:.2} GiB/s ({:.2} x), {SMALL_BYTES} B {:.2} million/s ({:.2} x), round trip {:.1} us ({:.2} x)",
            each[0],
            each[0] / tls[0],
            each[1],
            each[1] / tls[1],
            each[2],
            each[2] / tls[2]
        );
    }
    Ok(())
}
