//! Two nodes with a replica each: real engines, the real process, and a daemon and a registry that
//! are the test's.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use session::packet::{self, Packet, PacketError};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use trust::{Authority, Identity};
use volume::named;
use wire::nbd::{self, Reply, Request, command};
use wire::replica::{Condition, Configure, Greeted, Greeting, Order, PROTOCOL, Report, VolumeRecord};

pub const BYTES: u64 = 4 << 20;
pub const EXTENT: u64 = 64 << 10;
const NODES: [&str; 2] = ["a", "b"];
const ID: &str = "00000000000000aa";
const USER: u32 = 0x7100_0002;
const TIMEOUT: Duration = Duration::from_secs(20);

/// Whether these bytes are in the file.
pub fn is_there(image: &Path, offset: u64, bytes: &[u8]) -> bool {
    let mut found = vec![0; bytes.len()];
    File::open(image).unwrap().read_exact_at(&mut found, offset).unwrap();
    found == bytes
}

type Registry = Arc<Mutex<(VolumeRecord, u64)>>;

#[derive(Default)]
struct Heard {
    condition: Condition,
    quiet: bool,
}

struct Node {
    folder: PathBuf,
    engine: Mutex<Option<Child>>,
    process: Child,
    daemon: Arc<OwnedFd>,
    heard: Arc<Mutex<Heard>>,
    /// The daemon reads nothing.
    deaf: Arc<AtomicBool>,
    at: SocketAddr,
}

pub struct Bed {
    nodes: Vec<Node>,
    registry: Registry,
    authority: Authority,
    over: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

fn spawn_engine(folder: &Path) -> Child {
    let socket = folder.join("engine.sock");
    let _gone = fs::remove_file(&socket);
    let file = format!("driver=file,node-name=volume,filename={}", folder.join("image").display());
    let server = format!("addr.type=unix,addr.path={}", socket.display());
    let export = "nbd,id=volume,node-name=volume,name=volume,writable=on";
    let child = Command::new("qemu-storage-daemon")
        .args(["--blockdev", &file, "--nbd-server", &server, "--export", export])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    await_that("an engine listens", || UnixStream::connect(&socket).is_ok());
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    child
}

fn await_that(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < until, "gave up waiting until {what}");
        // tidy(sleep): another process's state; nothing tells.
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn seqpacket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

impl Bed {
    /// `None`, and a printed reason, where this machine has no engine.
    pub fn start() -> Option<Self> {
        if !Path::new("/usr/bin/qemu-storage-daemon").exists() || !rustix::process::geteuid().is_root() {
            println!("skipped: needs qemu-storage-daemon (qemu-system-common), and root; run `make deps`");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new("test", SystemTime::now()).unwrap();
        let replicas: Vec<String> = NODES.iter().map(|name| (*name).to_owned()).collect();
        let record = VolumeRecord {
            id: ID.to_owned(),
            bytes: BYTES,
            view: 0,
            primary: None,
            current: replicas.clone(),
            replicas,
            settled: true,
        };
        let registry = Arc::new(Mutex::new((record, 1)));
        let over = Arc::new(AtomicBool::new(false));
        let mut nodes = Vec::new();
        let listeners: Vec<TcpListener> =
            NODES.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let places: Vec<SocketAddr> = listeners.iter().map(|socket| socket.local_addr().unwrap()).collect();
        for (name, listener) in NODES.iter().zip(listeners) {
            let home = folder.path().join(name);
            nodes.push(start_node(name, &home, listener, &authority, &registry, &places, &over));
        }
        Some(Self { nodes, registry, authority, over, _folder: folder })
    }

    pub fn image(&self, node: usize) -> PathBuf {
        self.nodes[node].folder.join("image")
    }

    pub fn at(&self, node: usize) -> SocketAddr {
        self.nodes[node].at
    }

    pub fn record(&self) -> VolumeRecord {
        self.registry.lock().unwrap().0.clone()
    }

    pub fn condition(&self, node: usize) -> Condition {
        self.nodes[node].heard.lock().unwrap().condition.clone()
    }

    pub fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        await_that(what, condition);
    }

    pub fn order(&self, node: usize, order: &Order) {
        packet::send(&*self.nodes[node].daemon, order, &[]).unwrap();
    }

    /// Makes a node the primary, as its daemon does; its lease has no end.
    pub fn claim(&self, node: usize) {
        self.nodes[node].heard.lock().unwrap().quiet = false;
        self.order(node, &Order::Prepare {});
        await_that("it is quiet", || self.nodes[node].heard.lock().unwrap().quiet);
        let serve = {
            let mut registry = self.registry.lock().unwrap();
            let own = named::number(&registry.0.replicas, NODES[node]).unwrap();
            let next = named::numbered(&registry.0).unwrap().claim(own, true).unwrap();
            registry.0 = named::named(&next, &registry.0);
            registry.1 += 1;
            Order::Serve { record: registry.0.clone(), revision: registry.1, until_ns: u64::MAX }
        };
        self.order(node, &serve);
    }

    pub fn deaf(&self, node: usize, deaf: bool) {
        self.nodes[node].deaf.store(deaf, Ordering::SeqCst);
    }

    /// Stops a node's engine, or lets it go on.
    pub fn hang(&self, node: usize, hangs: bool) {
        let engine = self.nodes[node].engine.lock().unwrap();
        let pid = rustix::process::Pid::from_child(engine.as_ref().unwrap());
        let signal = if hangs { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub fn kill_engine(&self, node: usize) {
        let mut engine = self.nodes[node].engine.lock().unwrap().take().unwrap();
        engine.kill().unwrap();
        engine.wait().unwrap();
    }

    pub fn start_engine(&self, node: usize) {
        let engine = spawn_engine(&self.nodes[node].folder);
        *self.nodes[node].engine.lock().unwrap() = Some(engine);
    }

    /// A connection to a node's replica from an address where no node is.
    pub fn stranger(&self, node: usize) -> io::Result<OwnedFd> {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 2], 0)))?;
        rustix::net::connect(&socket, &self.at(node))?;
        Ok(socket)
    }

    /// A connection at which nothing was said yet.
    pub fn raw(&self, node: usize) -> UnixStream {
        let stream = UnixStream::connect(self.nodes[node].folder.join("nbd.sock")).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    pub fn client(&self, node: usize) -> Client {
        Client::new(self.raw(node))
    }

    /// Greets a node as the primary of a view; returns the node's answer.
    pub fn greet_as(&self, name: &str, node: usize, view: u64) -> String {
        let identity = self.authority.identity(name, SystemTime::now()).unwrap();
        let greeting = Greeting { id: ID.to_owned(), view };
        greet(&identity, self.at(node), NODES[node], &greeting)
    }
}

/// Greets a node with its identity; why it refuses.
fn greet(identity: &Identity, at: SocketAddr, node: &str, greeting: &Greeting) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let connector = tokio_rustls::TlsConnector::from(identity.client(&[PROTOCOL]).unwrap());
        let stream = tokio::net::TcpStream::connect(at).await.unwrap();
        let mut stream = connector.connect(trust::server_name(node).unwrap(), stream).await.unwrap();
        let mut line = serde_json::to_vec(greeting).unwrap();
        line.push(b'\n');
        stream.write_all(&line).await.unwrap();
        let mut told = Vec::new();
        loop {
            match stream.read_u8().await.unwrap() {
                b'\n' => break,
                byte => told.push(byte),
            }
        }
        let greeted: Greeted = serde_json::from_slice(&told).unwrap();
        greeted.refused.expect("it must refuse")
    })
}

fn start_node(
    name: &str,
    folder: &Path,
    nodes: TcpListener,
    authority: &Authority,
    registry: &Registry,
    places: &[SocketAddr],
    over: &Arc<AtomicBool>,
) -> Node {
    fs::create_dir(folder).unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    File::create(folder.join("image")).unwrap().set_len(BYTES).unwrap();
    let trust = folder.join("trust");
    fs::create_dir(&trust).unwrap();
    authority.identity(name, SystemTime::now()).unwrap().store(&trust).unwrap();
    let engine = spawn_engine(folder);
    let listener = seqpacket();
    let control = SocketAddrUnix::new(folder.join("control.sock")).unwrap();
    rustix::net::bind(&listener, &control).unwrap();
    rustix::net::listen(&listener, 4).unwrap();
    let process =
        Command::new(env!("CARGO_BIN_EXE_replica-role")).stdin(Stdio::from(listener)).spawn().unwrap();
    let daemon = seqpacket();
    rustix::net::connect(&daemon, &control).unwrap();
    let clients: OwnedFd = UnixListener::bind(folder.join("nbd.sock")).unwrap().into();
    let at = nodes.local_addr().unwrap();
    let place: OwnedFd = File::open(folder).unwrap().into();
    let configure = Configure {
        name: "test/data".into(),
        id: ID.into(),
        node: name.into(),
        identity: trust.display().to_string(),
        bytes: BYTES,
        replicas: registry.lock().unwrap().0.replicas.clone(),
        resync_bytes: 16 << 20,
        user: USER,
        at,
    };
    let nodes: OwnedFd = nodes.into();
    packet::send(&daemon, &Order::Configure(configure), &[clients.as_fd(), nodes.as_fd(), place.as_fd()])
        .unwrap();
    let daemon = Arc::new(daemon);
    let heard = Arc::<Mutex<Heard>>::default();
    let deaf = Arc::<AtomicBool>::default();
    let keeper = Keeper {
        daemon: Arc::clone(&daemon),
        heard: Arc::clone(&heard),
        deaf: Arc::clone(&deaf),
        registry: Arc::clone(registry),
        places: places.to_vec(),
        over: Arc::clone(over),
    };
    std::thread::spawn(move || keeper.run());
    Node { folder: folder.to_owned(), engine: Mutex::new(Some(engine)), process, daemon, heard, deaf, at }
}

/// The stand-in for the daemon that a replica asks.
struct Keeper {
    daemon: Arc<OwnedFd>,
    heard: Arc<Mutex<Heard>>,
    deaf: Arc<AtomicBool>,
    registry: Registry,
    places: Vec<SocketAddr>,
    over: Arc<AtomicBool>,
}

impl Keeper {
    fn run(&self) {
        while !self.over.load(Ordering::SeqCst) {
            let report = match packet::receive::<Report>(&*self.daemon) {
                Ok(Packet { message, .. }) => message,
                Err(PacketError::Gone | PacketError::Socket(_)) => return,
                Err(error) => panic!("{error}"),
            };
            while self.deaf.load(Ordering::SeqCst) {
                // tidy(sleep): the test says when it hears again.
                std::thread::sleep(Duration::from_millis(10));
            }
            if let Some(answer) = self.hear(report) {
                let _over = packet::send(&*self.daemon, &answer, &[]);
            }
        }
    }

    fn hear(&self, report: Report) -> Option<Order> {
        match report {
            Report::Hello { condition, .. } | Report::Condition(condition) => {
                self.heard.lock().unwrap().condition = condition;
                None
            }
            Report::Quiet {} => {
                self.heard.lock().unwrap().quiet = true;
                None
            }
            Report::Change { record, revision } => {
                let mut registry = self.registry.lock().unwrap();
                if registry.1 == revision {
                    *registry = (record, revision + 1);
                }
                Some(Order::Registry { record: registry.0.clone(), revision: registry.1 })
            }
            Report::Ask { id } => {
                Some(Order::Answer { id, record: Some(self.registry.lock().unwrap().0.clone()) })
            }
            Report::Find { node, .. } => {
                let at = NODES.iter().position(|name| *name == node).map(|at| self.places[at]);
                Some(Order::Found { node, at, why: String::new() })
            }
            Report::Ended { .. } => None,
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        for node in &mut self.nodes {
            let mut all = [node.engine.lock().unwrap().take()];
            for child in all.iter_mut().flatten().chain([&mut node.process]) {
                let _gone = child.kill().and_then(|()| child.wait().map(drop));
            }
        }
    }
}

/// A client of NBD.
pub struct Client {
    stream: UnixStream,
    cookie: u64,
    /// Bytes of the read that is not answered.
    reads: usize,
}

impl Client {
    fn new(mut stream: UnixStream) -> Self {
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        let mut option = nbd::OPTION_MAGIC.to_be_bytes().to_vec();
        option.extend(1_u32.to_be_bytes());
        option.extend(6_u32.to_be_bytes());
        option.extend(b"volume");
        stream.write_all(&option).unwrap();
        let mut facts = [0; 10];
        stream.read_exact(&mut facts).unwrap();
        assert_eq!(facts[..8], BYTES.to_be_bytes());
        Self { stream, cookie: 0, reads: 0 }
    }

    pub fn send(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) {
        self.cookie += 1;
        let request = Request { flags: 0, command, cookie: self.cookie, offset, length };
        self.stream.write_all(&request.bytes()).unwrap();
        self.stream.write_all(data).unwrap();
        self.reads = if command == command::READ { length as usize } else { 0 };
    }

    pub fn send_write(&mut self, offset: u64, data: &[u8]) {
        self.send(command::WRITE, offset, u32::try_from(data.len()).unwrap(), data);
    }

    pub fn send_read(&mut self, offset: u64, length: u32) {
        self.send(command::READ, offset, length, &[]);
    }

    /// Whether an answer, or the end, comes within so long.
    pub fn is_answered(&mut self, patience: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let patience = Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap(),
            tv_nsec: patience.subsec_nanos().into(),
        };
        poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&patience)).unwrap() > 0
    }

    pub fn answer(&mut self) -> io::Result<Vec<u8>> {
        let mut head = [0; nbd::REPLY_BYTES];
        self.stream.read_exact(&mut head)?;
        let reply = Reply::parse(&head).unwrap();
        assert_eq!(reply.cookie, self.cookie);
        if reply.error != 0 {
            return Err(io::Error::other(format!("error {}", reply.error)));
        }
        let mut data = vec![0; self.reads];
        self.stream.read_exact(&mut data)?;
        Ok(data)
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.send_write(offset, data);
        self.answer().map(drop)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> io::Result<Vec<u8>> {
        self.send_read(offset, length);
        self.answer()
    }
}
