//! The process in the path: it passes on what it gets, and misbehaves as it is told.

use super::{Done, Failure, within};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use sys::ethernet::bundles::{self, Bundle, Hears};
use sys::ethernet::{FRAMES_MAX, Interface, Room, interface};
use sys::tipc;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use transport::{Address, TipcListener, TipcStream};
use wire::cover::{self, BUNDLE_BYTES_MAX};
use wire::lane::{ETHER_TYPE, first_frame};
use wire::link::TIPC_SERVICE;

/// Bytes that are passed on at once.
const PIECE_BYTES: usize = 64 << 10;
/// A datagram, at most.
const DATAGRAM_BYTES: usize = 65_536;

/// The effects on what passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Nothing passes; who sends does not learn it.
    pub black_hole: bool,
    /// Bytes pass on in such pieces.
    pub piece_bytes: usize,
    /// So late.
    pub delay: Duration,
    /// Of so many datagrams one is lost, one comes twice, and one is overtaken; 0: none.
    pub rough: u32,
    /// Of so many pieces or datagrams one has a bit that is wrong; 0: none.
    pub corrupt: u32,
    /// The stream is cut when so many bytes have passed.
    pub cut_at: Option<u64>,
    /// Flows of before this pass nothing any more; of streams, both ends learn it.
    pub cuts: u64,
    /// The same, and only the near end learns it.
    pub halves: u64,
}

/// Fair.
pub const NO_FAULTS: Plan = Plan {
    black_hole: false,
    piece_bytes: PIECE_BYTES,
    delay: Duration::ZERO,
    rough: 0,
    corrupt: 0,
    cut_at: None,
    cuts: 0,
    halves: 0,
};

struct Path {
    plan: watch::Sender<Plan>,
    /// Bytes that have passed, both ways.
    passed: watch::Sender<u64>,
    counter: Mutex<u32>,
}

impl Path {
    /// Whether it is this one's turn, of so many.
    fn strikes(&self, of: u32, turn: u32) -> bool {
        let mut counter = self.counter.lock().unwrap_or_else(PoisonError::into_inner);
        *counter = counter.wrapping_add(1);
        of > 0 && *counter % of == turn % of
    }

    fn spoil(&self, plan: &Plan, bytes: &mut [u8]) {
        let middle = bytes.len() / 2;
        if self.strikes(plan.corrupt, 3)
            && let Some(byte) = bytes.get_mut(middle)
        {
            *byte ^= 0x10;
        }
    }

    fn passes(&self, bytes: usize) {
        self.passed.send_modify(|passed| *passed += bytes as u64);
    }
}

/// The faults between two places.
pub struct Faults {
    /// Where who wants to go through it connects.
    pub address: Address,
    path: Arc<Path>,
    task: JoinHandle<()>,
}

impl Drop for Faults {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn here() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

impl Faults {
    fn path() -> Arc<Path> {
        let (plan, passed) = (watch::Sender::new(NO_FAULTS), watch::Sender::new(0));
        Arc::new(Path { plan, passed, counter: Mutex::new(0) })
    }

    /// Between whoever connects and a TCP address.
    ///
    /// # Errors
    /// Where there is no socket.
    pub async fn tcp(to: SocketAddr) -> Done<Self> {
        let listener = TcpListener::bind(here()).await.map_err(Failure::during("listen in the path"))?;
        let address = listener.local_addr().map_err(Failure::during("listen in the path"))?;
        let path = Self::path();
        let task = tokio::spawn(streams(listener, to, path.clone()));
        Ok(Self { address: address.into(), path, task })
    }

    /// Between whoever connects and an address of TIPC, by way of the relay where there is one.
    ///
    /// # Errors
    /// Where there is no socket.
    pub fn tipc(to: tipc::Address) -> Done<Self> {
        let any = tipc::Address::Service { service: TIPC_SERVICE, instance: 0 };
        let listener = TipcListener::bind(any).map_err(Failure::during("listen in the path"))?;
        let (address, path) = (Address::Tipc(listener.address()), Self::path());
        let passes = path.clone();
        let task = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(enter(near, connect_by_relay(to), passes.clone()));
            }
        });
        Ok(Self { address, path, task })
    }

    /// Between whoever sends and a UDP address.
    ///
    /// # Errors
    /// Where there is no socket.
    pub async fn udp(to: SocketAddr) -> Done<Self> {
        let socket = UdpSocket::bind(here()).await.map_err(Failure::during("listen in the path"))?;
        let address = socket.local_addr().map_err(Failure::during("listen in the path"))?;
        let path = Self::path();
        let task = tokio::spawn(datagrams(Arc::new(socket), to, path.clone()));
        Ok(Self { address: address.into(), path, task })
    }

    /// Between whoever connects and an address where lanes are introduced, and on the road that
    /// their frames take.
    ///
    /// # Errors
    /// Where there is no road, or no socket.
    pub async fn frames(to: SocketAddr, road: Option<&Road>) -> Done<Self> {
        let path = road.ok_or_else(|| Failure("there is no road for frames".into()))?.path.clone();
        let listener = TcpListener::bind(here()).await.map_err(Failure::during("listen in the path"))?;
        let address = listener.local_addr().map_err(Failure::during("listen in the path"))?;
        let task = tokio::spawn(streams(listener, to, path.clone()));
        Ok(Self { address: address.into(), path, task })
    }

    /// Changes it.
    pub fn set(&self, change: impl FnOnce(&mut Plan)) {
        self.path.plan.send_modify(change);
    }

    /// Cuts all that flows now.
    pub fn cut(&self) {
        self.set(|plan| plan.cuts += 1);
    }

    /// Bytes that have passed.
    #[must_use]
    pub fn passed(&self) -> u64 {
        *self.path.passed.borrow()
    }

    /// Waits until so many more bytes have passed.
    ///
    /// # Errors
    /// Where they don't.
    pub async fn after(&self, bytes: u64) -> Done {
        let mut passed = self.path.passed.subscribe();
        let goal = *passed.borrow() + bytes;
        let passed = within("bytes on the path", passed.wait_for(|passed| *passed >= goal)).await?;
        passed.map(drop).map_err(Failure::during("watch the path"))
    }
}

/// A cable of this name says that nothing of IP passes between the others.
pub const NO_IP: &str = "no-ip";

/// A cable of this name says that nothing but IP passes between the others.
pub const IP_ALONE: &str = "ip-alone";

/// The road of frames of Ethernet from one cable to the other.
pub struct Road {
    path: Arc<Path>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Road {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Road {
    /// Between the two cables of the calling thread's network, if it has them.
    ///
    /// # Errors
    /// Where there is no socket.
    pub fn open() -> Done<Option<Self>> {
        let [Ok(near), Ok(near_way), Ok(far_way), Ok(far)] =
            ["near", "near-way", "far-way", "far"].map(interface)
        else {
            return Ok(None);
        };
        let path = Faults::path();
        let mut tasks = Vec::new();
        for (from, by, to) in [(&near_way, &far_way, &far), (&far_way, &near_way, &near)] {
            let (mac, passes) = (to.mac, path.clone());
            if interface(IP_ALONE).is_err() {
                let bare = [bare(from)?, bare(by)?];
                tasks.push(tokio::spawn(frames(bare, Way::Bare(by.index, mac), passes.clone())));
            }
            if bundles::is_known() && interface(NO_IP).is_err() {
                let covered = [covered(from)?, covered(by)?];
                tasks.push(tokio::spawn(frames(covered, Way::Covered([by.mac, mac], by.mtu), passes)));
            }
        }
        Ok(Some(Self { path, tasks }))
    }
}

fn watched(socket: io::Result<OwnedFd>) -> Done<AsyncFd<OwnedFd>> {
    // Deprecated for types whose descriptor can change or close while it is watched. An `OwnedFd`
    // can do neither.
    #[allow(
        deprecated,
        reason = "an `OwnedFd` keeps what the unsafe constructor asks for, and `unsafe` lives in `sys`"
    )]
    let socket = socket.and_then(AsyncFd::new);
    socket.map_err(Failure::during("be on a cable"))
}

fn bare(interface: &Interface) -> Done<AsyncFd<OwnedFd>> {
    watched(sys::ethernet::open_to_all(interface, ETHER_TYPE))
}

fn covered(interface: &Interface) -> Done<AsyncFd<OwnedFd>> {
    let hears = Hears { ether_type: cover::ETHER_TYPE, words: cover::words(0), byte: cover::BYTE };
    watched(bundles::open_to_all(interface, &hears))
}

/// How frames go on.
enum Way {
    /// By this interface, to this address.
    Bare(u32, [u8; 6]),
    /// From one address to another, over an interface that takes payloads of so many bytes.
    Covered([[u8; 6]; 2], u32),
}

impl Way {
    /// The frames of what came, each as it is for its station.
    fn frames<'a>(&self, place: &'a mut [u8]) -> Vec<&'a [u8]> {
        if matches!(self, Self::Bare(..)) {
            return vec![place];
        }
        let Some((packet, length)) = bundles::packet(place) else { return Vec::new() };
        let packet = &*packet;
        let found = station(packet.get(46..).unwrap_or_default());
        let Some(frames) = found.and_then(|station| packet.get(cover::frames(packet, station)?)) else {
            return Vec::new();
        };
        let mut rest = frames;
        std::iter::from_fn(|| {
            let frame;
            (frame, rest) = rest.split_at(first_frame(rest, length.unwrap_or(rest.len())));
            (!frame.is_empty()).then_some(frame)
        })
        .collect()
    }

    /// Has frames of one length go on. What does not fit any more is lost.
    fn pass_on(&self, socket: &AsyncFd<OwnedFd>, frames: &[&[u8]]) {
        let lost = match self {
            Self::Bare(index, to) => sys::ethernet::send(socket, (*index, ETHER_TYPE, *to), frames).is_err(),
            Self::Covered([from, to], mtu) => {
                let bytes = frames.iter().map(|frame| frame.len()).sum();
                let head = frames.first().and_then(|frame| station(frame));
                let head = head.map(|station| cover::head(*from, *to, station, bytes));
                head.is_none_or(|head| {
                    let whole = usize::try_from(*mtu).unwrap_or(usize::MAX) - cover::COVER_BYTES;
                    let length = frames.first().map_or(0, |frame| frame.len());
                    let cut = (frames.len() > 1 || length > whole).then_some(length.min(whole));
                    let bundle = Bundle { head: &head, frames, cut, in_one_piece: 0 };
                    bundles::send(socket, &[bundle], (cover::UDP_AT, cover::CHECKSUM_AT)).is_err()
                })
            }
        };
        let _lost = lost;
    }
}

/// The station that stands in front.
fn station(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|number| u64::from_be_bytes(*number))
}

async fn frames([from, by]: [AsyncFd<OwnedFd>; 2], way: Way, path: Arc<Path>) {
    // A flow is what is for one lane; it began when its first frame came.
    let mut flows: HashMap<Vec<u8>, u64> = HashMap::new();
    let mut held = None;
    let mut room = Room::new(FRAMES_MAX, bundles::place_bytes(DATAGRAM_BYTES));
    loop {
        let Ok(mut ready) = from.readable().await else { return };
        match room.receive(ready.get_inner()) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready.clear_ready();
                continue;
            }
            Err(_) => return,
        }
        for place in room.frames() {
            let mut passing = Vec::new();
            for frame in way.frames(place) {
                let cuts = path.plan.borrow().cuts;
                let flow = frame.get(..12).unwrap_or_default().to_vec();
                if *flows.entry(flow).or_insert(cuts) == cuts {
                    passing.extend(with_faults(&path, frame, &mut held));
                }
            }
            for alike in passing.chunk_by(|one, other| one.len() == other.len()) {
                let alike: Vec<&[u8]> = alike.iter().map(Vec::as_slice).collect();
                let together = BUNDLE_BYTES_MAX / alike.first().map_or(1, |frame| frame.len().max(1));
                for packet in alike.chunks(together.max(1)) {
                    way.pass_on(&by, packet);
                }
            }
        }
    }
}

/// Another machine, by which streams of TIPC go that pass the faults.
static RELAY: OnceLock<tipc::Address> = OnceLock::new();

/// From now on streams of TIPC go by way of this relay, see [`relay`]. Said once.
pub fn go_by_relay(at: tipc::Address) {
    RELAY.get_or_init(|| at);
}

/// Whether there is one.
pub(super) fn goes_by_relay() -> bool {
    RELAY.get().is_some()
}

/// Passes streams on to the instances of [`TIPC_SERVICE`] that their first 4 bytes name.
pub async fn relay(listener: TipcListener) {
    while let Ok((mut near, _)) = listener.accept().await {
        let path = Faults::path();
        tokio::spawn(async move {
            let instance = near.read_u32().await?;
            let far = TipcStream::connect(tipc::Address::Service { service: TIPC_SERVICE, instance });
            enter(near, far, path).await
        });
    }
}

async fn connect_by_relay(to: tipc::Address) -> io::Result<TipcStream> {
    let (Some(relay), tipc::Address::Service { instance, .. }) = (RELAY.get(), to) else {
        return TipcStream::connect(to).await;
    };
    let mut far = TipcStream::connect(*relay).await?;
    far.write_u32(instance).await?;
    Ok(far)
}

/// A stream whose directions can be held apart; who drops what goes out ends it.
trait Line: Send + 'static {
    type Reads: AsyncRead + Send + Unpin + 'static;
    type Writes: AsyncWrite + Send + Unpin + 'static;
    fn split(self) -> io::Result<(Self::Reads, Self::Writes)>;
}

impl Line for TcpStream {
    type Reads = OwnedReadHalf;
    type Writes = OwnedWriteHalf;

    fn split(self) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
        self.set_nodelay(true)?;
        Ok(self.into_split())
    }
}

impl Line for TipcStream {
    type Reads = ReadHalf<Self>;
    type Writes = TipcWrites;

    fn split(self) -> io::Result<(ReadHalf<Self>, TipcWrites)> {
        let (reads, writes) = tokio::io::split(self);
        Ok((reads, TipcWrites(writes)))
    }
}

struct TipcWrites(WriteHalf<TipcStream>);

impl Drop for TipcWrites {
    fn drop(&mut self) {
        // It is ready at once; one that has ended is as good.
        let _ended = Pin::new(&mut self.0).poll_shutdown(&mut Context::from_waker(Waker::noop())).is_ready();
    }
}

impl AsyncWrite for TipcWrites {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn streams(listener: TcpListener, to: SocketAddr, path: Arc<Path>) {
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(enter(near, TcpStream::connect(to), path.clone()));
    }
}

async fn enter<L: Line>(
    near: L,
    far: impl Future<Output = io::Result<L>>,
    path: Arc<Path>,
) -> io::Result<()> {
    let mut plan = path.plan.subscribe();
    let is_hole = plan.borrow().black_hole;
    if is_hole {
        // A connection that nobody will ever answer.
        let over = plan.wait_for(|plan| !plan.black_hole).await.is_ok();
        drop((near, over));
        return Ok(());
    }
    stream(near, far.await?, path).await
}

async fn stream<L: Line>(near: L, far: L, path: Arc<Path>) -> io::Result<()> {
    let (near_reads, near_writes) = near.split()?;
    let (far_reads, far_writes) = far.split()?;
    let born = *path.plan.borrow();
    let mut plan = path.plan.subscribe();
    let there = tokio::spawn(pass(near_reads, far_writes, path.clone()));
    let back = tokio::spawn(pass(far_reads, near_writes, path));
    let (stop_there, stop_back) = (there.abort_handle(), back.abort_handle());
    let ended = tokio::select! {
        ended = async { tokio::join!(there, back) } => Some(ended),
        _ = plan.wait_for(|plan| plan.cuts != born.cuts || plan.halves != born.halves) => None,
    };
    if ended.is_none() && plan.borrow().halves != born.halves {
        // The near end learns it; the far one is held open, silent, for as long as the path is
        // there.
        stop_back.abort();
        return std::future::pending().await;
    }
    stop_there.abort();
    stop_back.abort();
    Ok(())
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    path: Arc<Path>,
) -> io::Result<()> {
    let mut plan = path.plan.subscribe();
    let mut bytes = vec![0; PIECE_BYTES];
    loop {
        let now = *plan.borrow();
        let room = bytes.len().min(now.piece_bytes);
        let read = from.read(&mut bytes[..room]).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        if plan.wait_for(|plan| !plan.black_hole).await.is_err() {
            return Ok(());
        }
        let now = *plan.borrow();
        if !now.delay.is_zero() {
            // tidy(sleep): to be late is what is asked for.
            tokio::time::sleep(now.delay).await;
        }
        path.spoil(&now, &mut bytes[..read]);
        let before = *path.passed.borrow();
        let most = now.cut_at.map_or(u64::MAX, |at| at.saturating_sub(before));
        let passes = read.min(usize::try_from(most).unwrap_or(usize::MAX));
        to.write_all(&bytes[..passes]).await?;
        path.passes(passes);
        if passes < read {
            path.plan.send_modify(|plan| (plan.cut_at, plan.cuts) = (None, plan.cuts + 1));
            return Ok(());
        }
    }
}

/// A flow of datagrams: the socket by which they go on, and when it began.
type Flow = (Arc<UdpSocket>, u64);

async fn datagrams(socket: Arc<UdpSocket>, to: SocketAddr, path: Arc<Path>) {
    let mut flows: HashMap<SocketAddr, Flow> = HashMap::new();
    let mut held: Option<Vec<u8>> = None;
    let mut bytes = vec![0; DATAGRAM_BYTES];
    while let Ok((read, from)) = socket.recv_from(&mut bytes).await {
        let cuts = path.plan.borrow().cuts;
        let (out, born) = match flows.get(&from) {
            Some(flow) => flow.clone(),
            None => {
                let Ok(out) = UdpSocket::bind(here()).await else { return };
                if out.connect(to).await.is_err() {
                    return;
                }
                let out = Arc::new(out);
                tokio::spawn(back(out.clone(), socket.clone(), from, path.clone(), cuts));
                flows.insert(from, (out.clone(), cuts));
                (out, cuts)
            }
        };
        if born != cuts {
            continue;
        }
        for datagram in with_faults(&path, &bytes[..read], &mut held) {
            // Who is not there any more takes nothing.
            let _gone = out.send(&datagram).await.is_err();
        }
    }
}

async fn back(from: Arc<UdpSocket>, socket: Arc<UdpSocket>, to: SocketAddr, path: Arc<Path>, born: u64) {
    let mut held = None;
    let mut bytes = vec![0; DATAGRAM_BYTES];
    while let Ok(read) = from.recv(&mut bytes).await {
        if path.plan.borrow().cuts != born {
            return;
        }
        for datagram in with_faults(&path, &bytes[..read], &mut held) {
            let _gone = socket.send_to(&datagram, to).await.is_err();
        }
    }
}

/// The fate of a datagram: nothing, one, several. Delay is not for datagrams.
fn with_faults(path: &Path, datagram: &[u8], held: &mut Option<Vec<u8>>) -> Vec<Vec<u8>> {
    let plan = *path.plan.borrow();
    if plan.black_hole || path.strikes(plan.rough, 0) {
        return Vec::new();
    }
    let mut datagram = datagram.to_vec();
    path.passes(datagram.len());
    path.spoil(&plan, &mut datagram);
    if path.strikes(plan.rough, 1) {
        return vec![datagram.clone(), datagram];
    }
    match held.take() {
        // This one is overtaken by the next.
        None if path.strikes(plan.rough, 2) => {
            *held = Some(datagram);
            Vec::new()
        }
        Some(late) => vec![datagram, late],
        None => vec![datagram],
    }
}
