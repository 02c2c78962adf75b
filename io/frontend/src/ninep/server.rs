//! The thread that serves: sockets, messages whole or in pieces, and futures that go on.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use wire::ninep::{self, HEAD_BYTES, NO_TAG, NinepError, Reply, Request, VERSION};

use super::connection::Connection;
use super::permission::Peer;
use super::questions::{Job, Questions};
use super::{
    CONNECTIONS_MAX, HELD_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN, REQUESTS_MAX, UNREAD_BYTES_MAX,
    calls,
};
use crate::answers::Answers;
use crate::shared::{OrAbort, Shared};

/// Stack of the thread, in bytes: a chain of [`super::DEPTH_MAX`] places is dropped one inside the
/// other.
const STACK_BYTES: usize = 512 * 1024;
/// The most bytes read from a socket at once.
const PIECE_BYTES: usize = 64 * 1024;

type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Why a client is served no more.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("it has gone")]
    Gone,
    #[error("its socket fails: {0}")]
    Socket(Errno),
    #[error("it said what is no 9P2000.L: {0}")]
    Message(#[from] NinepError),
    #[error("it used tag {0} for two requests at a time")]
    Tag(u16),
    #[error("it asked for something before Tversion was answered")]
    Early,
}

struct Client {
    socket: OwnedFd,
    input: Vec<u8>,
    shared: Rc<Connection>,
}

struct Server {
    answers: Arc<Answers>,
    questions: Rc<Questions>,
    listener: OwnedFd,
    clients: BTreeMap<u64, Client>,
    last_client: u64,
    work: HashMap<u64, Work>,
    last_job: u64,
}

/// Starts the thread. `listener` is bound and listening.
pub(crate) fn spawn(shared: Arc<Shared>, answers: Arc<Answers>, listener: OwnedFd) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&listener, true)?;
    let builder = std::thread::Builder::new().name("9p".into()).stack_size(STACK_BYTES);
    let run = move || {
        let _guard = OrAbort;
        let questions = Rc::new(Questions::new(shared));
        let (clients, work) = (BTreeMap::new(), HashMap::new());
        let mut server = Server { answers, questions, listener, clients, last_client: 0, work, last_job: 0 };
        if let Err(error) = server.run() {
            tracing::error!(%error, "clients of 9P are served no more");
        }
    };
    builder.spawn(run).map(drop)
}

impl Server {
    fn run(&mut self) -> Result<(), Errno> {
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let (listening, ready) = self.wait()?;
            self.answers.alarm.drain();
            self.go_on();
            if listening {
                self.accept();
            }
            for (number, flags) in ready {
                let reads = flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
                let ended = if reads { self.hear(number, &mut piece).err() } else { None };
                self.go_on();
                if let Some(end) = ended {
                    self.end(number, &end);
                }
            }
            self.write_all();
        }
    }

    /// Waits until there is something to do: whether somebody connects, and which clients can be
    /// served.
    fn wait(&self) -> Result<(bool, Vec<(u64, PollFlags)>), Errno> {
        let mut set =
            vec![PollFd::new(&self.answers.alarm, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        for client in self.clients.values() {
            let unread = client.shared.output.borrow().len();
            let mut interest = PollFlags::empty();
            let heard = unread < UNREAD_BYTES_MAX && client.shared.held.get() < HELD_BYTES_MAX;
            interest.set(PollFlags::IN, heard);
            interest.set(PollFlags::OUT, unread > 0);
            set.push(PollFd::new(&client.socket, interest));
        }
        rustix::io::retry_on_intr(|| poll(&mut set, None))?;
        let found: Vec<PollFlags> = set.iter().map(PollFd::revents).collect();
        let listening = found.get(1).is_some_and(|flags| !flags.is_empty());
        let ready = self.clients.keys().copied().zip(found.into_iter().skip(2));
        Ok((listening, ready.filter(|(_, flags)| !flags.is_empty()).collect()))
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = accept_with(&self.listener, flags) {
            if self.clients.len() >= CONNECTIONS_MAX {
                tracing::debug!("a client of 9P is sent away: {CONNECTIONS_MAX} are there");
                continue;
            }
            let Ok(who) = sockopt::socket_peercred(socket.as_fd()) else { continue };
            let pid = who.pid.as_raw_nonzero().get().unsigned_abs();
            let peer = Peer { uid: who.uid.as_raw(), gid: who.gid.as_raw(), pid };
            self.last_client += 1;
            let shared = Rc::new(Connection::new(Rc::clone(&self.questions), peer));
            self.clients.insert(self.last_client, Client { socket, input: Vec::new(), shared });
        }
    }

    /// Reads what a client has said, once, and takes up all whole messages.
    fn hear(&mut self, number: u64, piece: &mut [u8]) -> Result<(), End> {
        let Some(client) = self.clients.get_mut(&number) else { return Ok(()) };
        match rustix::io::read(&client.socket, &mut *piece) {
            Ok(0) => return Err(End::Gone),
            Ok(bytes) => client.input.extend_from_slice(piece.get(..bytes).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(Errno::CONNRESET) => return Err(End::Gone),
            Err(errno) => return Err(End::Socket(errno)),
        }
        let (shared, mut input) = (Rc::clone(&client.shared), std::mem::take(&mut client.input));
        let mut taken = 0;
        while let Some(rest) = input.get(taken..)
            && let Some(&first) = rest.first_chunk::<4>()
            && let size = ninep::size(first, shared.message_bytes())?
            && let Some(message) = rest.get(..size)
        {
            taken += size;
            self.take_up(&shared, message.to_vec())?;
        }
        input.drain(..taken);
        if let Some(client) = self.clients.get_mut(&number) {
            client.input = input;
        }
        Ok(())
    }

    /// Takes up one message.
    fn take_up(&mut self, connection: &Rc<Connection>, message: Vec<u8>) -> Result<(), End> {
        let (tag, request) = Request::decode(&message)?;
        if let Request::Version { msize, version } = request {
            connection.reset();
            connection.reply(tag, &agree(connection, msize, version));
            return Ok(());
        }
        if connection.agreed.get() == 0 {
            return Err(End::Early);
        }
        if tag == NO_TAG || !connection.take_tag(tag) {
            return Err(End::Tag(tag));
        }
        if let Request::Flush { old } = request {
            connection.flush(tag, old);
            return Ok(());
        }
        if connection.jobs.borrow().len() >= REQUESTS_MAX {
            connection.reply(tag, &Reply::Error(Errno::AGAIN.raw_os_error().unsigned_abs()));
            return Ok(());
        }
        let promised = match request {
            Request::Read { count, .. } | Request::Readdir { count, .. } => {
                // The data and its length are a part of the message.
                let room = connection.agreed.get().saturating_sub(HEAD_BYTES as u32 + 4);
                connection.allowed(count.min(room) as usize)
            }
            _ => 0,
        };
        self.last_job += 1;
        let job = Rc::new(Job::new(self.last_job, tag, promised, message.len()));
        connection.begin(&job);
        let (number, connection) = (job.number, Rc::clone(connection));
        let work = async move {
            let result = match Request::decode(&message) {
                Ok((_, request)) => calls::serve(&connection, &job, request).await,
                Err(_) => Err(Errno::INVAL),
            };
            connection.end(&job, result);
        };
        self.work.insert(number, Box::pin(work));
        self.step(number);
        Ok(())
    }

    /// Lets a job go on until it waits again.
    fn step(&mut self, job: u64) {
        let Some(mut work) = self.work.remove(&job) else { return };
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.work.insert(job, work);
        }
    }

    /// Lets all go on whose answers are there.
    fn go_on(&mut self) {
        loop {
            let answered = self.answers.take();
            if answered.is_empty() {
                return;
            }
            for answer in answered {
                if let Some(job) = self.questions.answered(answer) {
                    self.step(job);
                }
            }
        }
    }

    fn write_all(&mut self) {
        let mut ended = Vec::new();
        for (&number, client) in &self.clients {
            let mut output = client.shared.output.borrow_mut();
            if output.is_empty() {
                continue;
            }
            match rustix::net::send(&client.socket, &output, rustix::net::SendFlags::NOSIGNAL) {
                Ok(bytes) => drop(output.drain(..bytes)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => ended.push((number, End::Gone)),
                Err(errno) => ended.push((number, End::Socket(errno))),
            }
        }
        for (number, end) in ended {
            self.end(number, &end);
        }
    }

    fn end(&mut self, number: u64, end: &End) {
        let Some(client) = self.clients.remove(&number) else { return };
        match end {
            End::Gone => tracing::debug!("a client of 9P has gone"),
            _ => tracing::info!(why = %end, uid = client.shared.peer.uid, "a client of 9P is served no more"),
        }
        client.shared.reset();
        self.go_on();
    }
}

/// `Tversion`: what both can.
fn agree(connection: &Connection, msize: u32, version: &[u8]) -> Reply {
    if msize < MESSAGE_BYTES_MIN {
        connection.agreed.set(0);
        return Reply::Error(Errno::MSGSIZE.raw_os_error().unsigned_abs());
    }
    let msize = msize.min(MESSAGE_BYTES_MAX);
    if version != VERSION {
        connection.agreed.set(0);
        return Reply::Version { msize, version: b"unknown".to_vec() };
    }
    connection.agreed.set(msize);
    Reply::Version { msize, version: VERSION.to_vec() }
}
