//! A stand-in for the node's daemon.
//!
//! It has a control socket for each domain, introduces consumers to the server as the real one
//! does, and can be killed and started again on the same sockets.

use super::endpoints::{ALL_RIGHTS, Endpoints, Order};
use super::outbox::{Member, Outbox};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use session::packet::{self, Packet, PacketError};
use session::timespec;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use sys::eventfd::Eventfd;
use wire::control::{Consumer, EndpointRights, Event, MountedService, Reply, Request, ServedService};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Bytes of a ring where the consumer has no wish.
const RING_BYTES: u32 = 256 << 10;

/// A stand-in for the daemon.
#[derive(Debug)]
pub struct FakeDaemon {
    folder: PathBuf,
    stop: Arc<Eventfd>,
    thread: Option<JoinHandle<()>>,
    orders: Sender<Told>,
    states: Receiver<Value>,
    verbs: Arc<Mutex<HashMap<String, Vec<String>>>>,
}

/// A test's order to the stand-in.
enum Told {
    Server(Event),
    /// The thread at the other end of the channel hears when it is done.
    Endpoints(Order, Sender<()>),
}

struct Node {
    services: Vec<ServedService>,
    verbs: Arc<Mutex<HashMap<String, Vec<String>>>>,
    members: Vec<Member>,
    endpoints: Endpoints,
    accepted: u64,
    /// Place of the server among the members.
    server: Option<usize>,
    states: Sender<Value>,
    channels: u64,
}

impl FakeDaemon {
    /// Starts one with a control socket `folder/DOMAIN/control.sock` for each domain. All domains
    /// mount all services and hold every verb that [`FakeDaemon::allow`] does not take away.
    ///
    /// # Panics
    /// Where the sockets can't be made.
    pub fn start(folder: &Path, domains: &[&str], services: Vec<ServedService>) -> Self {
        let listeners: Vec<(String, OwnedFd)> =
            domains.iter().map(|domain| ((*domain).to_owned(), listen(&folder.join(domain)))).collect();
        let stop = Arc::new(Eventfd::new().expect("an event"));
        let (orders, to_do) = channel();
        let (state, states) = channel();
        let verbs = Arc::new(Mutex::new(HashMap::new()));
        let node = Node {
            services,
            verbs: Arc::clone(&verbs),
            members: Vec::new(),
            endpoints: Endpoints::new(folder),
            accepted: 0,
            server: None,
            states: state,
            channels: 0,
        };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || node.run(&listeners, &stopped, &to_do));
        Self { folder: folder.to_owned(), stop, thread: Some(thread), orders, states, verbs }
    }

    /// Where a domain's control socket is.
    pub fn socket(&self, domain: &str) -> PathBuf {
        self.folder.join(domain).join("control.sock")
    }

    /// Says what a domain may do, from the next connection on.
    pub fn allow(&self, domain: &str, verbs: &[&str]) {
        let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        self.verbs.lock().unwrap_or_else(PoisonError::into_inner).insert(domain.to_owned(), verbs);
    }

    /// Sends an event to the server.
    ///
    /// # Panics
    /// After [`FakeDaemon::kill`].
    pub fn tell_server(&self, event: Event) {
        self.tell(Told::Server(event));
    }

    fn tell(&self, told: Told) {
        self.orders.send(told).expect("the daemon runs");
        self.stop.signal();
    }

    /// Comes back when it is done: what is asked of the daemon afterwards is answered by that.
    fn order(&self, order: Order) {
        let (done, over) = channel();
        self.tell(Told::Endpoints(order, done));
        over.recv().expect("the daemon runs");
    }

    /// Says what the endpoint `of` may do with the endpoint `with`, from now on. Before that, each
    /// may do everything. Names that begin with `copier` have the privilege to copy for others.
    ///
    /// # Panics
    /// After [`FakeDaemon::kill`].
    pub fn rights(&self, of: &str, with: &str, rights: EndpointRights) {
        self.order(Order::Rights { of: of.to_owned(), with: with.to_owned(), rights });
    }

    /// Returns the rights that every endpoint has at first: all.
    pub fn all_rights() -> EndpointRights {
        ALL_RIGHTS
    }

    /// The endpoints that there are, from now on. Before that, there is every name.
    ///
    /// # Panics
    /// After [`FakeDaemon::kill`].
    pub fn names(&self, names: &[&str]) {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.order(Order::Names(names));
    }

    /// Takes an endpoint away from the program that has bound it.
    ///
    /// # Panics
    /// After [`FakeDaemon::kill`].
    pub fn unbind(&self, name: &str) {
        self.order(Order::Unbind(name.to_owned()));
    }

    /// The server's state, as it reports it.
    ///
    /// # Panics
    /// If it never does.
    pub fn state(&self) -> Value {
        self.tell_server(Event::Inspect { id: 1 });
        self.states.recv().expect("the server reports")
    }

    /// Ends it as a `kill -9` would: all its connections end, the sockets' files stay.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // A sender that is gone tells the thread to end.
        let (nobody, _) = channel();
        self.orders = nobody;
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the fake daemon does not panic");
        }
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// Listens under another name first, so that whoever sees the file can connect.
fn listen(folder: &Path) -> OwnedFd {
    std::fs::create_dir_all(folder).expect("a folder");
    let (early, path) = (folder.join("control.sock.new"), folder.join("control.sock"));
    let _not_there = std::fs::remove_file(&early);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(&early).expect("a short path")).expect("bound");
    rustix::net::listen(&socket, BACKLOG).expect("listening");
    std::fs::rename(early, path).expect("renamed");
    socket
}

impl Node {
    fn run(mut self, listeners: &[(String, OwnedFd)], stop: &Eventfd, orders: &Receiver<Told>) {
        loop {
            let sockets = self.members.iter().map(|member| member.socket.as_fd());
            let descriptors = listeners.iter().map(|(_, socket)| socket.as_fd()).chain(sockets);
            let mut polled: Vec<PollFd<'_>> = std::iter::once(stop.as_fd())
                .chain(descriptors)
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
                .collect();
            let left =
                self.endpoints.due().map(|due| timespec(due.saturating_duration_since(Instant::now())));
            rustix::io::retry_on_intr(|| poll(&mut polled, left.as_ref())).expect("polled");
            let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
            drop(polled);
            stop.drain();
            self.endpoints.give_up(&Outbox(&self.members));
            loop {
                match orders.try_recv() {
                    Ok(Told::Server(event)) => self.tell_server(event, &[]),
                    Ok(Told::Endpoints(order, done)) => {
                        self.endpoints.order(order, &Outbox(&self.members));
                        let _nobody_waits = done.send(());
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                }
            }
            let (of_listeners, of_members) = ready[1..].split_at(listeners.len());
            let mut gone = Vec::new();
            for (at, _) in of_members.iter().enumerate().filter(|(_, ready)| **ready) {
                if !self.hear(at) {
                    gone.push(at);
                }
            }
            for at in gone.into_iter().rev() {
                let member = self.members.remove(at);
                self.endpoints.gone(member.number, &Outbox(&self.members));
                self.server = self
                    .server
                    .filter(|server| *server != at)
                    .map(|server| server - usize::from(server > at));
            }
            for (at, _) in of_listeners.iter().enumerate().filter(|(_, ready)| **ready) {
                let (domain, listener) = &listeners[at];
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                if let Ok(socket) = rustix::net::accept_with(listener, flags) {
                    self.accepted += 1;
                    self.members.push(Member { number: self.accepted, domain: domain.clone(), socket });
                }
            }
        }
    }

    /// Takes what one member says; false: it is gone.
    fn hear(&mut self, at: usize) -> bool {
        loop {
            match packet::receive::<Request>(&self.members[at].socket) {
                Ok(Packet { message, .. }) => self.answer(at, message),
                Err(PacketError::NotReady) => return true,
                Err(_) => return false,
            }
        }
    }

    fn answer(&mut self, at: usize, request: Request) {
        match request {
            Request::MapMemory { id, .. } => {
                let message = "the domain has no memory with it".to_owned();
                self.reply(at, &Reply::Refused { id, errno: 6, message });
            }
            Request::Serve { id } => {
                self.server = Some(at);
                self.reply(at, &Reply::Serving { id, services: self.services.clone() });
            }
            Request::Offer { id, service, .. } => {
                let services: Vec<_> =
                    self.services.iter().filter(|served| served.name == service).cloned().collect();
                if services.is_empty() || self.server.is_some_and(|server| server != at) {
                    let (errno, message) = (16, format!("{service} is offered already, or not known"));
                    self.reply(at, &Reply::Refused { id, errno, message });
                    return;
                }
                self.server = Some(at);
                self.reply(at, &Reply::Serving { id, services });
            }
            // It stands by, and nobody else is there who would have it.
            Request::StepBack { .. } => self.server = None,
            Request::Services { id } => {
                let services = self.services.iter().map(|service| self.mounted(at, service)).collect();
                self.reply(at, &Reply::Services { id, services });
            }
            Request::About { id } => {
                let about = serde_json::json!({ "domain": self.members[at].domain });
                self.reply(at, &Reply::About { id, about });
            }
            Request::KeepState { id, .. } => {
                let message = "this daemon keeps no state".to_owned();
                self.reply(at, &Reply::Refused { id, errno: 11, message });
            }
            // This one has no domain that is a machine.
            Request::Machine { .. } | Request::Guest { .. } => {}
            Request::Bind { .. }
            | Request::Back { .. }
            | Request::Promote { .. }
            | Request::Release { .. }
            | Request::Stay { .. }
            | Request::Continues { .. }
            | Request::Unbind { .. }
            | Request::Introduce { .. }
            | Request::Buffer { .. }
            | Request::Free { .. }
            | Request::Grant { .. }
            | Request::Revoke { .. }
            | Request::Borrow { .. } => {
                let (out, member) = (Outbox(&self.members), &self.members[at]);
                self.endpoints.answer((member.number, &member.domain), &request, &out);
            }
            Request::State { state, .. } => {
                let _nobody_asked = self.states.send(state);
            }
            Request::Connect { id, service, entrance, ring_bytes, .. } => {
                let known = self.services.iter().any(|served| served.name == service);
                if !known || self.server.is_none() {
                    let (errno, message) = (2, format!("there is no server for {service}"));
                    self.reply(at, &Reply::Refused { id, errno, message });
                    return;
                }
                self.introduce(at, id, service, entrance, ring_bytes);
            }
        }
    }

    fn introduce(&mut self, at: usize, id: u64, service: String, entrance: String, ring_bytes: u32) {
        self.channels += 1;
        let config = channel::Config {
            ring_bytes: if ring_bytes == 0 { RING_BYTES } else { ring_bytes },
            ..channel::Config::default()
        };
        let (theirs, servers) = channel::pair(&config).expect("a channel");
        let consumer = Consumer {
            dc: "dc".into(),
            domain: self.members[at].domain.clone(),
            entrance,
            verbs: self.verbs_of(at),
        };
        let attach = Event::Attach { service, channel: self.channels, consumer, memory: false };
        self.tell_server(attach, &servers.into_descriptors());
        let descriptors = theirs.into_descriptors();
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        let reply = Reply::Connected { id, channel: self.channels, memory: false };
        let _gone = packet::send(&self.members[at].socket, &reply, &descriptors);
    }

    fn tell_server(&mut self, event: Event, descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if let Some(server) = self.server {
            let _gone = packet::send(&self.members[server].socket, &Reply::Event(event), &descriptors);
        }
    }

    fn reply(&self, at: usize, reply: &Reply) {
        let _gone = packet::send(&self.members[at].socket, reply, &[]);
    }

    fn verbs_of(&self, at: usize) -> Vec<String> {
        let verbs = self.verbs.lock().unwrap_or_else(PoisonError::into_inner);
        let all = || ["resolve", "control", "use"].map(str::to_owned).to_vec();
        verbs.get(&self.members[at].domain).cloned().unwrap_or_else(all)
    }

    fn mounted(&self, at: usize, service: &ServedService) -> MountedService {
        MountedService {
            name: service.name.clone(),
            kind: service.kind.clone(),
            at: service.name.clone(),
            verbs: self.verbs_of(at),
            up: self.server.is_some(),
            generation: 1,
            targets: Vec::new(),
        }
    }
}
