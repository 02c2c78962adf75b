//! Two proxies as processes, over TCP with TLS and over QUIC, with certificates of a cluster; the
//! test is both daemons, and what is between them.
#![allow(clippy::unwrap_used, reason = "a test may")]

use channel::{Config, End, ReceiveError, Receiver, pair};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use session::packet::{self, PacketError};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use wire::proxy::{Configure, News, Open, Order, Report};

/// Nothing here takes longer, on the slowest machine.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Makes this program a proxy.
const ROLE: &str = "TOMBOLO_TEST_PROXY";

/// The role of a child of this test.
#[test]
fn role() {
    if std::env::var_os(ROLE).is_some() {
        let listener = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        println!("{:?}", proxy::run(listener));
    }
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn seqpacket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// A proxy process, and this test in the place of its daemon.
struct Proxy {
    child: Child,
    daemon: OwnedFd,
    socket: PathBuf,
    listens: Vec<String>,
    pid: u32,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Proxy {
    fn start(folder: &Path, configure: Configure) -> Self {
        let socket = folder.join(format!("{}-{}.sock", configure.node, configure.epoch));
        let listener = seqpacket();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["role", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(Stdio::from(listener))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = dial(&socket);
        packet::send(&daemon, &Order::Configure(configure), &[]).unwrap();
        let mut proxy = Self { child, daemon, socket, listens: Vec::new(), pid: 0 };
        match proxy.hear() {
            Report::Hello { listens, pid, .. } => (proxy.listens, proxy.pid) = (listens, pid),
            other => panic!("{other:?}"),
        }
        proxy
    }

    fn say(&self, order: &Order, end: Option<End>) {
        let descriptors: Vec<OwnedFd> = end.map(|end| end.into_descriptors().into()).unwrap_or_default();
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        packet::send(&self.daemon, order, &borrowed).unwrap();
    }

    fn hear(&self) -> Report {
        self.try_hear(TIMEOUT).unwrap().expect("the proxy says something")
    }

    /// `None`: it has ended.
    fn try_hear(&self, within: Duration) -> Option<Option<Report>> {
        let until = Instant::now() + within;
        rustix::io::ioctl_fionbio(&self.daemon, true).unwrap();
        loop {
            match packet::receive::<Report>(&self.daemon) {
                Ok(packet) => return Some(Some(packet.message)),
                Err(PacketError::NotReady) if Instant::now() > until => return Some(None),
                Err(PacketError::NotReady) => {
                    let mut readable =
                        [rustix::event::PollFd::new(&self.daemon, rustix::event::PollFlags::IN)];
                    let most = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                    rustix::event::poll(&mut readable, Some(&most)).unwrap();
                }
                Err(PacketError::Gone) => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Waits for a report of this kind; what comes before is of no interest.
    fn until<T>(&self, mut found: impl FnMut(Report) -> Option<T>) -> T {
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            if let Some(found) = found(self.hear()) {
                return found;
            }
        }
        panic!("it is never said");
    }

    fn up(&self) -> bool {
        self.until(|report| match report {
            Report::Up { resumed, .. } => Some(resumed),
            _ => None,
        })
    }

    fn asked(&self) -> u64 {
        self.until(|report| match report {
            Report::Asked { pair, .. } => Some(pair),
            _ => None,
        })
    }

    fn state(&self) -> serde_json::Value {
        self.say(&Order::Inspect { id: 5 }, None);
        self.until(|report| match report {
            Report::State { id: 5, state } => Some(state),
            _ => None,
        })
    }
}

fn dial(at: &Path) -> OwnedFd {
    let socket = seqpacket();
    rustix::net::connect(&socket, &SocketAddrUnix::new(at).unwrap()).unwrap();
    socket
}

/// The relay between two nodes: it passes on what comes, as long as it is let.
struct Between {
    at: String,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    holds: Arc<Mutex<bool>>,
}

impl Between {
    fn new(to: &str) -> Self {
        let to: String = to.strip_prefix("tcp:").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = format!("tcp:{}", listener.local_addr().unwrap());
        let (streams, holds) = (Arc::<Mutex<Vec<TcpStream>>>::default(), Arc::<Mutex<bool>>::default());
        let (all, hold) = (Arc::clone(&streams), Arc::clone(&holds));
        // Ends with the process: it accepts as long as the test runs.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(&to) else { continue };
                // Before anything passes: who sees the link up can cut it.
                all.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    let hold = Arc::clone(&hold);
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16_384];
                        while let Ok(length @ 1..) = from.read(&mut bytes) {
                            // A black hole takes everything and says nothing.
                            if !*hold.lock().unwrap() && to.write_all(&bytes[..length]).is_err() {
                                break;
                            }
                        }
                        let _gone = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { at, streams, holds }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            let _gone_already = stream.shutdown(Shutdown::Both);
        }
    }

    fn swallow(&self, swallows: bool) {
        *self.holds.lock().unwrap() = swallows;
    }
}

struct Bed {
    authority: trust::Authority,
    folder: tempfile::TempDir,
    a: Proxy,
    b: Proxy,
    between: Between,
}

fn configure(folder: &Path, node: &str, peer: &str, epoch: u64) -> Configure {
    Configure {
        node: node.into(),
        peer: peer.into(),
        epoch,
        identity: folder.join(node).display().to_string(),
        listen: Vec::new(),
        peer_at: Vec::new(),
        transport: "tcp".into(),
        compression: "auto".into(),
        station: None,
    }
}

fn listening(folder: &Path, epoch: u64) -> Configure {
    let mut configure = configure(folder, "b", "a", epoch);
    configure.listen = vec!["tcp:127.0.0.1:0".into(), "quic:127.0.0.1:0".into()];
    configure
}

fn bed() -> Bed {
    let folder = tempfile::tempdir().unwrap();
    let authority = trust::Authority::new("lab", SystemTime::now()).unwrap();
    for node in ["a", "b"] {
        std::fs::create_dir(folder.path().join(node)).unwrap();
        authority.identity(node, SystemTime::now()).unwrap().store(&folder.path().join(node)).unwrap();
    }
    let b = Proxy::start(folder.path(), listening(folder.path(), 1));
    let between = Between::new(&b.listens[0]);
    let mut dials = configure(folder.path(), "a", "b", 1);
    // QUIC is not known yet: it would be tried as well, and is not cut.
    dials.peer_at = vec![between.at.clone()];
    let a = Proxy::start(folder.path(), dials);
    assert!(!a.up() && !b.up());
    Bed { authority, folder, a, b, between }
}

impl Bed {
    fn channel(&self, id: u64) -> (End, End) {
        let (near, to_a) = pair(&Config::default()).unwrap();
        let (far, to_b) = pair(&Config::default()).unwrap();
        self.a.say(&Order::Open { id, open: open() }, Some(to_a));
        let number = self.b.asked();
        self.b.say(&Order::Accept { pair: number }, Some(to_b));
        self.a.until(|report| (report == Report::Opened { id }).then_some(()));
        (near, far)
    }
}

fn open() -> Open {
    Open::Channel {
        dc: "shop".into(),
        service: "dns".into(),
        domain: "web".into(),
        entrance: "api".into(),
        ring_bytes: 0,
    }
}

fn receive(receiver: &mut Receiver) -> Result<Vec<u8>, ReceiveError> {
    let mut message = Vec::new();
    receiver.receive(&mut message, soon()).map(|_| message)
}

/// Numbers both ways while `act` does something to the link: none is lost, doubled or overtaken.
fn under_load(bed: &Bed, act: impl FnOnce(&Bed)) {
    let (near, far) = bed.channel(1);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let echo = std::thread::spawn(move || {
        let (mut sender, mut receiver) = far.open().unwrap();
        while let Ok(message) = receive(&mut receiver) {
            sender.send(&message, soon()).unwrap();
        }
    });
    let load = std::thread::spawn(move || {
        let (mut sender, mut receiver) = near.open().unwrap();
        let mut turn = 0_u64;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            for number in 0..8 {
                sender.send(&(turn * 8 + number).to_le_bytes(), soon()).unwrap();
            }
            for number in 0..8 {
                assert_eq!(receive(&mut receiver).unwrap(), (turn * 8 + number).to_le_bytes());
            }
            turn += 1;
        }
        turn
    });
    act(bed);
    stop.send(()).unwrap();
    assert!(load.join().unwrap() > 0);
    echo.join().unwrap();
}

#[test]
fn a_link_that_is_cut_or_swallows_everything_or_changes_its_transport_loses_nothing() {
    let bed = bed();
    under_load(&bed, |bed| {
        for _ in 0..3 {
            bed.between.cut();
            assert!(bed.a.up() && bed.b.up(), "it resumes");
        }
        bed.between.swallow(true);
        bed.a.until(|report| matches!(report, Report::Down { .. }).then_some(()));
        bed.between.swallow(false);
        bed.between.cut();
        assert!(bed.a.up());
        let mut wanted = configure(bed.folder.path(), "a", "b", 1);
        wanted.peer_at = vec![bed.between.at.clone(), bed.b.listens[1].clone()];
        for transport in ["quic", "tcp", "quic"] {
            wanted.transport = transport.into();
            bed.a.say(&Order::Configure(wanted.clone()), None);
            let until = Instant::now() + TIMEOUT;
            while bed.a.state()["transport"] != transport {
                assert!(Instant::now() < until, "the link stays on its transport");
                std::thread::yield_now();
            }
        }
    });
    let state = bed.a.state();
    assert_eq!((state["opened"].as_u64(), state["broken"].as_u64()), (Some(1), Some(0)), "{state}");
}

#[test]
fn a_proxy_that_is_killed_takes_its_channels_along_and_its_successor_goes_on() {
    let mut bed = bed();
    let (near, far) = bed.channel(1);
    let (mut sender, mut receiver) = near.open().unwrap();
    let (_far_sender, mut far_receiver) = far.open().unwrap();
    sender.send(b"before", soon()).unwrap();
    assert_eq!(receive(&mut far_receiver).unwrap(), b"before");
    // One that nobody has answered.
    let (_waits, to_a) = pair(&Config::default()).unwrap();
    bed.a.say(&Order::Open { id: 2, open: open() }, Some(to_a));
    let _unanswered = bed.b.asked();
    // kill -9
    bed.b.child.kill().unwrap();
    bed.b.child.wait().unwrap();
    // At once on its own node; on the other when its successor is there.
    assert!(matches!(receive(&mut far_receiver), Err(ReceiveError::Closed)));
    let successor = Proxy::start(bed.folder.path(), listening(bed.folder.path(), 2));
    let mut dials = configure(bed.folder.path(), "a", "b", 1);
    dials.peer_at = successor.listens.clone();
    bed.a.say(&Order::Configure(dials), None);
    assert!(matches!(receive(&mut receiver), Err(ReceiveError::Closed)));
    let mut refused = false;
    bed.a.until(|report| {
        refused |= matches!(report, Report::Refused { id: 2, .. });
        matches!(report, Report::Up { resumed: false, .. }).then_some(())
    });
    if !refused {
        bed.a.until(|report| matches!(report, Report::Refused { id: 2, .. }).then_some(()));
    }
    bed.b = successor;
    let (near, far) = bed.channel(3);
    near.open().unwrap().0.send(b"after", soon()).unwrap();
    assert_eq!(receive(&mut far.open().unwrap().1).unwrap(), b"after");
}

#[test]
fn the_next_daemon_connects_to_the_proxy_that_it_finds() {
    let mut bed = bed();
    let (near, far) = bed.channel(1);
    let before = bed.a.pid;
    bed.a.daemon = dial(&bed.a.socket);
    let Report::Hello { pid, up, configured, .. } = bed.a.hear() else { panic!("no hello") };
    assert!(pid == before && up && configured.unwrap().peer == "b");
    bed.a.say(&Order::News { news: News::Again {} }, None);
    bed.b.until(|report| (report == Report::News { news: News::Again {} }).then_some(()));
    let (mut sender, _receiver) = near.open().unwrap();
    let (_sender, mut receiver) = far.open().unwrap();
    sender.send(b"still here", soon()).unwrap();
    assert_eq!(receive(&mut receiver).unwrap(), b"still here");
    // The thread that is the proxy has no privilege left. (In the program it is the only one; here
    // a test runs it.)
    let is_bare = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap();
        let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let nobody = !rustix::process::geteuid().is_root() || !line("Uid:").contains("\t0");
        line("CapEff").ends_with("0000000000000000") && line("NoNewPrivs").ends_with('1') && nobody
    };
    let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    assert!(tasks.any(|task| is_bare(task.unwrap())));
    bed.a.say(&Order::End { why: "done".into(), unless_used: false }, None);
    assert!(matches!(receive(&mut receiver), Err(ReceiveError::Closed)), "its pairs end with it");
    assert!(bed.a.child.wait().unwrap().success());
}

impl Bed {
    /// Does as a node's daemon does when its certificate was renewed, or another revoked.
    fn trust(&self, node: &str, proxy: &Proxy, change: impl FnOnce(&trust::Identity)) {
        let folder = self.folder.path().join(node);
        let identity = trust::Identity::load(&folder).unwrap();
        change(&identity);
        identity.store(&folder).unwrap();
        let files = trust::open_folder(&folder).unwrap();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        packet::send(&proxy.daemon, &Order::Trust {}, &files).unwrap();
    }

    fn serial(&self, node: &str) -> trust::Serial {
        trust::Identity::load(&self.folder.path().join(node)).unwrap().serial()
    }
}

/// A certificate is replaced, and the one before it revoked, while it is in use.
#[test]
fn a_proxy_that_runs_shows_its_nodes_next_certificate_and_believes_no_revoked_one() {
    let bed = bed();
    let before = bed.serial("a");
    let revoke = |serial: &trust::Serial| {
        let serial = serial.clone();
        move |identity: &trust::Identity| assert!(identity.hear_revoked([(serial, None)]).changed)
    };
    under_load(&bed, |bed| {
        bed.trust("a", &bed.a, |identity| {
            let request = trust::Request::new("a").unwrap();
            let chain = bed.authority.sign(&request.pem().unwrap(), "a", SystemTime::now()).unwrap();
            identity.renew(&request, &chain).unwrap();
        });
        assert_ne!(bed.serial("a"), before);
        assert_eq!(bed.a.state()["link"]["certificate"], bed.serial("a").to_string());
        bed.trust("b", &bed.b, revoke(&before));
        bed.between.cut();
        assert!(bed.a.up() && bed.b.up(), "the next one is shown");
    });
    bed.trust("b", &bed.b, revoke(&bed.serial("a")));
    // Answered after it was taken up.
    bed.b.state();
    bed.between.cut();
    let until = Instant::now() + TIMEOUT;
    while !bed.a.state()["link"]["last_loss"].as_str().is_some_and(|why| why.contains("Revoked")) {
        assert!(Instant::now() < until, "{}", bed.a.state());
        std::thread::yield_now();
    }
    assert_ne!(bed.a.state()["link"]["standing"], "up");
    // What is no folder of a node's changes nothing.
    packet::send(&bed.a.daemon, &Order::Trust {}, &[]).unwrap();
    assert_eq!(bed.a.state()["link"]["certificate"], bed.serial("a").to_string());
}

#[test]
fn a_proxy_that_is_told_to_end_unless_it_is_used_goes_on_as_long_as_it_is() {
    let mut bed = bed();
    let (near, far) = bed.channel(1);
    let end = Order::End { why: "its daemon ends".into(), unless_used: true };
    for proxy in [&bed.a, &bed.b] {
        proxy.say(&end, None);
        assert_eq!(proxy.state()["pairs_open"], 1);
    }
    near.open().unwrap().0.send(b"still here", soon()).unwrap();
    assert_eq!(receive(&mut far.open().unwrap().1).unwrap(), b"still here");
    let until = Instant::now() + TIMEOUT;
    while bed.a.state()["pairs_open"] != 0 {
        assert!(Instant::now() < until, "its channel stays open");
        std::thread::yield_now();
    }
    bed.a.say(&end, None);
    assert!(bed.a.child.wait().unwrap().success());
}

#[test]
fn a_node_with_a_certificate_of_another_cluster_gets_no_link() {
    let folder = tempfile::tempdir().unwrap();
    for (node, cluster) in [("a", "lab"), ("b", "elsewhere")] {
        let authority = trust::Authority::new(cluster, SystemTime::now()).unwrap();
        std::fs::create_dir(folder.path().join(node)).unwrap();
        authority.identity(node, SystemTime::now()).unwrap().store(&folder.path().join(node)).unwrap();
    }
    let b = Proxy::start(folder.path(), listening(folder.path(), 1));
    let mut dials = configure(folder.path(), "a", "b", 1);
    dials.peer_at = b.listens.clone();
    let a = Proxy::start(folder.path(), dials);
    let until = Instant::now() + TIMEOUT;
    while a.state()["link"]["last_loss"].is_null() {
        assert!(Instant::now() < until, "nothing is said of it");
        std::thread::yield_now();
    }
    assert_eq!(a.state()["link"]["connections"], 0);
    let (_end, to_a) = pair(&Config::default()).unwrap();
    a.say(&Order::Open { id: 1, open: open() }, Some(to_a));
    a.until(|report| matches!(report, Report::Refused { id: 1, .. }).then_some(()));
    // One without a certificate does not start, and says why.
    let mut child = Command::new(std::env::current_exe().unwrap());
    let socket = folder.path().join("none.sock");
    let listener = seqpacket();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let child = child
        .args(["role", "--exact", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::from(listener))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let daemon = dial(&socket);
    packet::send(&daemon, &Order::Configure(configure(folder.path(), "nobody", "b", 1)), &[]).unwrap();
    let said = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("Identity"), "{said:?}");
}

/// Bytes of memory that a proxy has, and would be charged for in its cgroup: its own, and pages
/// that it shares with others and has touched.
fn held_bytes(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.pid)).unwrap();
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (kib("RssAnon:") + kib("RssShmem:")) * 1024
}

fn open_of(dc: &str) -> Open {
    let (service, domain, entrance) = ("dns".into(), "web".into(), "api".into());
    Open::Channel { dc: dc.into(), service, domain, entrance, ring_bytes: 0 }
}

impl Bed {
    /// A channel for a distributed container; what speaks against it.
    fn channel_for(&self, dc: &str, id: u64, ring_bytes: u32) -> Result<(End, End), (i32, String)> {
        let config = Config { ring_bytes, ..Config::default() };
        let (near, to_a) = pair(&config).unwrap();
        let (far, to_b) = pair(&config).unwrap();
        self.a.say(&Order::Open { id, open: open_of(dc) }, Some(to_a));
        let mut refused = None;
        // It may be refused before the other node hears of it.
        let asked = loop {
            match self.b.try_hear(Duration::from_millis(20)) {
                Some(Some(Report::Asked { pair, .. })) => break Some(pair),
                _ => refused = refused.or_else(|| self.refused(id, Duration::from_millis(20))),
            }
            if refused.is_some() {
                break None;
            }
        };
        if let Some(pair) = asked {
            self.b.say(&Order::Belongs { pair, name: format!("{dc}/dns") }, None);
            self.b.say(&Order::Accept { pair }, Some(to_b));
        }
        refused = refused.or_else(|| self.refused(id, TIMEOUT));
        refused.map_or(Ok((near, far)), Err)
    }

    /// `None`: it is opened, or nothing is said.
    fn refused(&self, id: u64, within: Duration) -> Option<(i32, String)> {
        loop {
            match self.a.try_hear(within)? {
                Some(Report::Refused { id: of, errno, message }) if of == id => {
                    return Some((errno, message));
                }
                Some(Report::Opened { id: of }) if of == id => return None,
                None => return None,
                Some(_) => {}
            }
        }
    }
}

/// Many channels with large rings that nobody reads: the other node's proxy took all the memory
/// that its cgroup lets it have, was killed, and everybody's channels with it.
#[test]
fn a_container_with_many_large_rings_takes_its_share_of_a_proxy_s_memory_and_no_more() {
    const RING_BYTES: u32 = 4 << 20;
    let bed = bed();
    let mut channels = Vec::new();
    let mut last = None;
    for id in 1..=200 {
        match bed.channel_for("flood", id, RING_BYTES) {
            Ok(ends) => channels.push(ends),
            Err(refused) => last = last.or(Some(refused)),
        }
        if last.is_some() {
            break;
        }
    }
    assert!(channels.len() >= 8, "{} channels: {last:?}", channels.len());
    // All that goes into them.
    let mut filled: Vec<_> = channels.into_iter().map(|(near, far)| (near.open().unwrap(), far)).collect();
    let message = vec![7; 1 << 20];
    let mut goes = true;
    while goes {
        goes = false;
        for ((sender, _), _) in &mut filled {
            goes |= sender.send(&message, Some(Instant::now() + Duration::from_millis(30))).is_ok();
        }
    }
    for proxy in [&bed.a, &bed.b] {
        let held = held_bytes(proxy);
        println!("{} channels: {} MiB", filled.len(), held >> 20);
        assert!(held < wire::proxy::MEMORY_BYTES * 3 / 4, "{} MiB", held >> 20);
    }
    let (errno, message) = last.expect("there is a bound");
    assert_eq!(errno, rustix::io::Errno::NOSPC.raw_os_error());
    assert!(message.contains("flood/web") && message.contains("KiB"), "{message}");
    // Another container has its channels.
    let (near, far) = bed.channel_for("shop", 1000, 256 << 10).expect("there is room for others");
    let (mut sender, _receiver) = near.open().unwrap();
    let (_sender, mut receiver) = far.open().unwrap();
    sender.send(b"still here", soon()).unwrap();
    assert_eq!(receive(&mut receiver).unwrap(), b"still here");

    drop(filled);
    bed.wait_for(&bed.a, |state| state["memory"]["domains"]["flood/web"].is_null());
    bed.wait_for(&bed.b, |state| state["memory"]["domains"]["flood/dns"].is_null());
    bed.channel_for("flood", 2000, RING_BYTES).expect("there is room again");
}

impl Bed {
    fn wait_for(&self, proxy: &Proxy, is_so: impl Fn(&serde_json::Value) -> bool) {
        let until = Instant::now() + TIMEOUT;
        loop {
            let state = proxy.state();
            if is_so(&state) {
                return;
            }
            assert!(Instant::now() < until, "{state}");
            std::thread::yield_now();
        }
    }
}

/// A pair that was over was forgotten, and the pages of its rings stayed charged to the proxy for
/// as long as somebody had them.
#[test]
fn rings_count_until_their_other_end_is_left_and_are_freed_whoever_keeps_them() {
    const CHANNELS: u64 = 3;
    const BYTES: usize = 1 << 20;
    let bed = bed();
    let left: Vec<End> = (1..=CHANNELS)
        .map(|id| {
            let (near, far) = bed.channel_for("shop", id, 4 << 20).unwrap();
            near.open().unwrap().0.send(&vec![7; BYTES], soon()).unwrap();
            far
        })
        .collect();
    bed.wait_for(&bed.b, |state| state["pairs_open"] == 0);
    let state = bed.b.state();
    let used = state["memory"]["domains"]["shop/dns"].as_u64().unwrap();
    assert!(used > CHANNELS * (4 << 20), "{state}");
    let region = |end: &[OwnedFd; End::DESCRIPTORS]| {
        let [first, .., last] = end;
        let region = if sys::memfd::is_file(first).unwrap() { first } else { last };
        region.try_clone().unwrap()
    };
    let left: Vec<_> = left.into_iter().map(End::into_descriptors).collect();
    let regions: Vec<OwnedFd> = left.iter().map(region).collect();
    // A pair that is over is delivered to its end all the same.
    let until = Instant::now() + TIMEOUT;
    while regions.iter().any(|region| sys::memfd::taken_bytes(region).unwrap() < BYTES as u64) {
        assert!(Instant::now() < until, "what was sent does not come");
        std::thread::yield_now();
    }
    drop(left);
    bed.wait_for(&bed.b, |state| state["memory"]["used_bytes"] == 0);
    assert!(regions.iter().all(|region| sys::memfd::taken_bytes(region).unwrap() == 0));
}
