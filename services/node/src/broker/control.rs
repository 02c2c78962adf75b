//! The control sockets: one for each domain, and a private one for each frontend. Bytes in, bytes
//! out; what is asked is decided by the [`Broker`].

use crate::base::Guarded;
use crate::broker::turns::Turns;
use crate::broker::{Broker, Identity, MAX_MEMBERS_PER_DOMAIN, MemberId, Outgoing, Role, Rooms};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use session::packet::{self, PacketError};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::io::Interest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use wire::control::{MAX_WAIT_MS, Reply, Request, Whom};

/// Connections that may wait to be accepted: a burst of programs that all start at once.
const BACKLOG: i32 = 1024;
/// How long a connection that is one too many waits for another one's hang-up to be noticed, in
/// all.
const ROOM_TIMEOUT: Duration = Duration::from_millis(5);
/// Connections of one domain that are open or being closed: as many as may be members, and again as
/// many that were.
const MAX_CONNECTIONS: usize = 2 * MAX_MEMBERS_PER_DOMAIN;
/// How long a connection that asks for a channel waits for its domain's turn at the server, before
/// it is refused.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(2);
/// The name under which answers with the broker's own descriptors take their turn: no service and
/// no endpoint is called so.
const OWN_DESCRIPTORS: &str = "own descriptors";
/// Packets that are no requests, after which a connection is closed: an honest member sends none.
const MAX_GARBAGE: u32 = 64;
/// Generations of parents that are looked at to find out whether a process descends from the
/// domain's first one.
const MAX_ANCESTORS: usize = 32;

/// Says what a domain may know of itself.
pub(crate) type About = Arc<dyn Fn(&Identity) -> serde_json::Value + Send + Sync>;

/// Where a listener's domain is, and what is known of it at the moment of a connection.
pub(crate) struct Door {
    pub(crate) dc: String,
    pub(crate) domain: String,
    /// Whether the topology places services in the domain, so that its first process may serve.
    pub(crate) hosts: bool,
    /// The first process of the domain, as this node counts; 0 while there is none.
    pub(crate) init: Arc<AtomicU32>,
    pub(crate) broker: Broker,
    pub(crate) about: About,
}

/// Makes the listening socket `name` in `folder`, with these permissions. It appears there when it
/// listens already, so whoever waits for it can connect at once; an old one is replaced. It takes
/// no descriptors, where the kernel can see to that.
///
/// # Errors
/// The kernel's error.
pub(crate) fn listen(folder: &Path, name: &str, kind: SocketType, mode: u32) -> io::Result<OwnedFd> {
    // Through a descriptor of the folder, so that a long path does not meet the 108 bytes of a
    // socket's address.
    let at = rustix::fs::open(folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let new = format!(".{name}.new");
    match rustix::fs::unlinkat(&at, &new, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/{new}", at.as_raw_fd()))?;
    rustix::net::bind(&socket, &address)?;
    rustix::fs::chmodat(&at, &new, Mode::from_raw_mode(mode), AtFlags::empty())?;
    sys::descriptors::refuse_descriptors(&socket)?;
    rustix::net::listen(&socket, BACKLOG)?;
    rustix::fs::renameat(&at, &new, &at, name)?;
    Ok(socket)
}

/// Accepts the connections of one domain until it is dropped.
pub(crate) async fn accept_all(door: Arc<Door>, listener: OwnedFd) -> io::Result<()> {
    let listener = Guarded::new(listener, Interest::READABLE, None)?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let turns = Arc::new(Turns::new());
    loop {
        let permit = Arc::clone(&room).acquire_owned().await.map_err(io::Error::other)?;
        let mut ready = listener.readable().await?;
        let accepted = ready.try_io(|listener| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::accept_with(listener.get_ref(), flags).map_err(io::Error::from)
        });
        match accepted {
            Err(_would_block) => {}
            Ok(Ok(socket)) => {
                let interest = Interest::READABLE | Interest::WRITABLE;
                admit(&door, Guarded::new(socket, interest, Some(permit))?, &turns).await;
            }
            Ok(Err(error)) => {
                tracing::warn!(dc = door.dc, domain = door.domain, %error, "can't accept a connection");
                // tidy(sleep): out of descriptors or memory, others must go first; nothing tells
                // when one has gone.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn admit(door: &Arc<Door>, socket: Guarded, turns: &Arc<Turns>) {
    let pid = peer_pid(socket.get_ref());
    let init = door.init.load(Ordering::Acquire);
    let identity = Identity {
        dc: door.dc.clone(),
        domain: door.domain.clone(),
        role: Role::Program,
        pid,
        main: door.hosts && descends(pid, init),
    };
    let mut joined = door.broker.join(identity.clone());
    if joined.is_none() {
        // tidy(sleep): others may have hung up a moment ago; this lets the loop hear of it, in
        // bounded time.
        tokio::time::sleep(ROOM_TIMEOUT).await;
        joined = door.broker.join(identity);
    }
    match joined {
        Some((id, mail)) => {
            let talk = Talk {
                broker: door.broker.clone(),
                about: Arc::clone(&door.about),
                turns: Arc::clone(turns),
                id,
            };
            tokio::spawn(talk.run(mail, socket));
        }
        None => turn_away(door, pid, socket.get_ref()),
    }
}

fn turn_away(door: &Door, pid: u32, socket: &OwnedFd) {
    tracing::debug!(dc = door.dc, domain = door.domain, pid, "too many connections: refused");
    let message = format!(
        "domain {} has {MAX_MEMBERS_PER_DOMAIN} connections to its control socket, which are the most; close some",
        door.domain
    );
    let errno = rustix::io::Errno::MFILE.raw_os_error();
    // A new connection has room for one packet; whoever does not read it sees the end all the same.
    let _unheard = packet::send(socket, &Reply::Refused { id: 0, errno, message }, &[]);
}

/// Takes in whoever is at the other end of a private socket.
pub(crate) fn admit_private(
    broker: &Broker,
    about: &About,
    identity: Identity,
    socket: OwnedFd,
) -> io::Result<Option<MemberId>> {
    rustix::io::ioctl_fionbio(&socket, true)?;
    sys::descriptors::refuse_descriptors(&socket)?;
    let socket = Guarded::new(socket, Interest::READABLE | Interest::WRITABLE, None)?;
    let Some((id, mail)) = broker.join(identity) else { return Ok(None) };
    let talk = Talk { broker: broker.clone(), about: Arc::clone(about), turns: Arc::new(Turns::new()), id };
    tokio::spawn(talk.run(mail, socket));
    Ok(Some(id))
}

/// The conversation with one member.
struct Talk {
    broker: Broker,
    about: About,
    /// Those of its domain.
    turns: Arc<Turns>,
    id: MemberId,
}

impl Talk {
    async fn run(self, mail: mpsc::Receiver<Outgoing>, socket: Guarded) {
        let id = self.id;
        if let Err(error) = self.converse(mail, socket).await {
            tracing::debug!(?id, %error, "a control connection ended");
        }
        self.broker.leave(id);
    }

    /// Reads requests and writes what is in the outbox, until either side ends.
    async fn converse(&self, mut mail: mpsc::Receiver<Outgoing>, socket: Guarded) -> io::Result<()> {
        let write = async {
            while let Some(outgoing) = mail.recv().await {
                write_packet(&socket, &outgoing).await?;
                drop(outgoing);
                self.broker.has_read(self.id);
            }
            Err(io::Error::other("it did not read what it was told"))
        };
        tokio::select! {
            // What it was told goes out before more is heard.
            biased;
            ended = write => ended,
            ended = self.read(&socket) => ended,
        }
    }

    async fn read(&self, socket: &Guarded) -> io::Result<()> {
        let mut garbage = 0;
        loop {
            let mut ready = socket.readable().await?;
            if socket.brings_descriptors().unwrap_or(false) {
                return Err(io::Error::other("it sent descriptors, which no request has"));
            }
            match packet::receive::<Request>(socket.get_ref()) {
                Ok(packet) => self.answer(packet.message, socket).await?,
                Err(PacketError::NotReady) => ready.clear_ready(),
                Err(PacketError::Gone) => return Ok(()),
                Err(PacketError::Socket(error)) => return Err(error),
                Err(error) => {
                    garbage += 1;
                    if garbage > MAX_GARBAGE {
                        return Err(io::Error::other("it sent too much that is no request"));
                    }
                    self.broker.refuse_garbage(self.id, describe(&error));
                }
            }
            // One member must not keep the others waiting, however fast it asks.
            tokio::task::yield_now().await;
        }
    }

    /// Answers one request. A request that waits is given up when the member hangs up.
    async fn answer(&self, request: Request, socket: &Guarded) -> io::Result<()> {
        let mut room = None;
        let taken = match &request {
            Request::Offer { service, .. } => self.broker.is_offered_by_another(self.id, service),
            Request::Bind { name, .. } => self.broker.is_bound_by_another(self.id, name),
            _ => false,
        };
        if taken {
            // tidy(sleep): the program before may have ended a moment ago; this lets the loop hear
            // of it, in bounded time.
            tokio::time::sleep(ROOM_TIMEOUT).await;
        }
        if let Request::Connect { service, entrance, wait_ms, .. } = &request
            && *wait_ms != 0
        {
            let wait = Duration::from_millis(u64::from((*wait_ms).min(MAX_WAIT_MS)));
            let served = tokio::time::timeout(wait, self.broker.served(self.id, service, entrance));
            tokio::select! {
                // Whether it is served, or was waited for in vain, is for the broker to say.
                _ = served => {}
                // Of a socket that is open, this says that its other side is closed: as of a pipe
                // in `Broker::watch`.
                gone = socket.ready(Interest::PRIORITY) => return gone.map(drop),
            }
        }
        if let Request::Connect { id: number, service, .. } = &request {
            let offered = self.broker.is_a_programs(self.id, service).then_some(service.as_str());
            // Nobody is refused because others of its domain ask at the same time; it waits for its
            // turn.
            let turn = self.turns.at(offered).acquire_owned();
            match tokio::time::timeout(ATTACH_TIMEOUT, turn).await {
                Ok(Ok(permit)) => room = Some(permit),
                _ => {
                    self.broker.refuse_turn(self.id, *number);
                    return Ok(());
                }
            }
        }
        if let Request::Connect { id: number, service, entrance, ring_bytes, .. } = &request {
            let wish = (*number, service.as_str(), entrance.as_str(), *ring_bytes);
            if let Some(open) = self.broker.open_far(self.id, wish, &mut room) {
                tokio::select! {
                    () = self.broker.finish_far(self.id, open) => return Ok(()),
                    gone = socket.ready(Interest::PRIORITY) => return gone.map(drop),
                }
            }
        }
        let mut rooms = Rooms { others: room, own: None };
        if let Request::Introduce { id: number, endpoint, to, wait_ms } = &request {
            if *wait_ms != 0 && !self.wait_for_endpoint(*number, *endpoint, to, *wait_ms, socket).await? {
                return Ok(());
            }
            if let Some(meeting) = self.broker.meet_far(self.id, (*number, *endpoint, to)) {
                let Some(turn) = self.turn(*number, OWN_DESCRIPTORS).await else { return Ok(()) };
                tokio::select! {
                    () = self.broker.finish_meeting(self.id, meeting, turn) => return Ok(()),
                    gone = socket.ready(Interest::PRIORITY) => return gone.map(drop),
                }
            }
            if let Some(whose) = self.broker.endpoint_turn(self.id, *endpoint, to) {
                let Some(turn) = self.turn(*number, &whose).await else { return Ok(()) };
                rooms.others = Some(turn);
            }
        }
        if let Request::Borrow { id: number, endpoint, grant } = &request
            && let Some(loan) = self.broker.borrow_far(self.id, (*number, *endpoint, *grant))
        {
            let Some(turn) = self.turn(*number, OWN_DESCRIPTORS).await else { return Ok(()) };
            tokio::select! {
                () = self.broker.finish_loan(self.id, loan, turn) => return Ok(()),
                gone = socket.ready(Interest::PRIORITY) => return gone.map(drop),
            }
        }
        if let Request::Introduce { id: number, .. }
        | Request::Buffer { id: number, .. }
        | Request::KeepState { id: number, .. }
        | Request::Borrow { id: number, .. } = &request
        {
            let Some(turn) = self.turn(*number, OWN_DESCRIPTORS).await else { return Ok(()) };
            rooms.own = Some(turn);
        }
        self.broker.request_in(self.id, request, rooms, |identity| (self.about)(identity));
        Ok(())
    }

    /// The domain's turn to have descriptors on their way to somebody; `None`: it waited in vain,
    /// and has been told.
    async fn turn(&self, number: u64, whose: &str) -> Option<OwnedSemaphorePermit> {
        let turn = self.turns.at(Some(whose)).acquire_owned();
        match tokio::time::timeout(ATTACH_TIMEOUT, turn).await {
            Ok(Ok(permit)) => Some(permit),
            _ => {
                self.broker.refuse_introduction(self.id, number);
                None
            }
        }
    }

    /// Waits until an endpoint is bound, as long as was asked for. Whether the request is to be
    /// answered now: a member that asks for something else meanwhile has changed its mind, and has
    /// its answer here.
    async fn wait_for_endpoint(
        &self,
        number: u64,
        endpoint: u32,
        to: &Whom,
        wait_ms: u32,
        socket: &Guarded,
    ) -> io::Result<bool> {
        let wait = Duration::from_millis(u64::from(wait_ms.min(MAX_WAIT_MS)));
        let bound = tokio::time::timeout(wait, self.broker.endpoint_bound(self.id, endpoint, to));
        tokio::select! {
            // What is there already is not waited for.
            biased;
            // Whether it is bound, or was waited for in vain, is for the broker to say.
            _ = bound => Ok(true),
            more = says_more(socket) => {
                more?;
                self.broker.refuse_interrupted(self.id, number);
                Ok(false)
            }
        }
    }
}

/// Comes back when another packet is there, or the other side has hung up.
async fn says_more(socket: &Guarded) -> io::Result<()> {
    loop {
        let mut ready = socket.readable().await?;
        let mut first = [0; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::io::retry_on_intr(|| rustix::net::recv(socket.get_ref(), &mut first[..], flags)) {
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            _ => return Ok(()),
        }
    }
}

fn describe(error: &PacketError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

async fn write_packet(socket: &Guarded, outgoing: &Outgoing) -> io::Result<()> {
    let descriptors: Vec<_> = outgoing.descriptors.iter().map(AsFd::as_fd).collect();
    loop {
        let mut ready = socket.writable().await?;
        match packet::send(socket.get_ref(), &outgoing.reply, &descriptors) {
            Ok(()) => return Ok(()),
            Err(PacketError::NotReady) => ready.clear_ready(),
            Err(PacketError::Socket(error)) => return Err(error),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

fn peer_pid(socket: &OwnedFd) -> u32 {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.ok().and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok()).unwrap_or(0)
}

/// Whether `pid` is `ancestor` or descends from it.
fn descends(pid: u32, ancestor: u32) -> bool {
    let mut pid = pid;
    for _ in 0..MAX_ANCESTORS {
        if pid == 0 || ancestor == 0 {
            return false;
        }
        if pid == ancestor {
            return true;
        }
        pid = parent(pid).unwrap_or(0);
    }
    false
}

/// The parent of a process, from `/proc/PID/stat` (proc_pid_stat(5)): the second field after the
/// name in parentheses.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests;
