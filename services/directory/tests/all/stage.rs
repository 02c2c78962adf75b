//! A stand-in for the daemon, a server thread with the directory service, and links of its domains.

use rustix::io::Errno;
use session::{Blocking, Control, Server};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::eventfd::Eventfd;
use testing::FakeDaemon;
use wire::control::ServedService;
use wire::directory::{CacheMode, CacheSettings, Settings, file};
use wire::service::OpenInfo;

/// Where the server runs, and three tenants.
const DOMAINS: [&str; 4] = ["server", "a", "b", "c"];

/// Far enough for the slowest machine; a test that meets it fails.
pub fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(30))
}

/// Settings for tests: short time-outs, a private cache.
pub fn settings(upstream: &[SocketAddr]) -> Settings {
    Settings {
        upstream: upstream.to_vec(),
        timeout_ms: 100,
        retries: 1,
        search: vec![],
        sessions_per_domain: 64,
        outstanding_per_domain: 16,
        cache: CacheSettings {
            mode: CacheMode::Private,
            share: vec![],
            entries: 128,
            negative_ttl_ms: 30_000,
            max_ttl_ms: 86_400_000,
        },
        names: Default::default(),
    }
}

pub struct Stage {
    // Dropped after the server has ended.
    pub daemon: FakeDaemon,
    _folder: tempfile::TempDir,
    stop: Arc<Eventfd>,
    server: Option<std::thread::JoinHandle<()>>,
}

impl Stage {
    pub fn set(settings: &Settings) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let served = ServedService {
            name: "dns".into(),
            kind: "directory".into(),
            settings: serde_json::to_value(settings).expect("json"),
        };
        let daemon = FakeDaemon::start(folder.path(), &DOMAINS, vec![served]);
        let mut stage =
            Self { daemon, _folder: folder, stop: Arc::new(Eventfd::new().expect("an event")), server: None };
        stage.start_server();
        stage
    }

    fn start_server(&mut self) {
        let control = Control::connect(&self.daemon.socket("server")).expect("connected");
        let stop = Arc::clone(&self.stop);
        self.server = Some(std::thread::spawn(move || {
            let make = |served: &ServedService| directory::service(&served.settings);
            Server::new(control, Box::new(make)).expect("a server").run(Some(stop.as_fd())).expect("served");
        }));
        let mut asker = Control::connect(&self.daemon.socket("a")).expect("connected");
        let wait = soon().expect("a time");
        while !asker.services(wait).expect("services").first().is_some_and(|service| service.up) {
            std::thread::yield_now();
        }
    }

    fn stop_server(&mut self) {
        self.stop.signal();
        if let Some(server) = self.server.take() {
            server.join().expect("the server does not panic");
        }
        self.stop.drain();
    }

    /// The server dies and another takes its place, as far as the links can tell.
    pub fn restart_server(&mut self) {
        self.stop_server();
        self.start_server();
    }

    pub fn end(&self, domain: &str) -> channel::End {
        let mut control = Control::connect(&self.daemon.socket(domain)).expect("connected");
        control.connect_service("dns", "api", 0, soon().expect("a time")).expect("a channel").1
    }

    pub fn link(&self, domain: &str) -> Link {
        Link(Blocking::open(self.end(domain), soon()).expect("a link"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop_server();
        }
    }
}

/// One consumer, one question at a time.
pub struct Link(pub Blocking);

impl Link {
    /// Asks a file of the domain's defaults.
    pub fn call(&mut self, file: u32, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        self.0.call(file, payload, soon()).expect("called").result.map(<[u8]>::to_vec)
    }

    fn text(answer: Result<Vec<u8>, Errno>) -> Result<String, Errno> {
        answer.map(|bytes| String::from_utf8(bytes).expect("text"))
    }

    /// A line on `query`.
    pub fn query(&mut self, line: &str) -> Result<String, Errno> {
        Self::text(self.call(file::QUERY, line.as_bytes()))
    }

    /// A line on `query` in a session.
    pub fn query_in(&mut self, session: u64, line: &str) -> Result<String, Errno> {
        let answer = self.0.call_in(session, file::QUERY, line.as_bytes(), soon()).expect("called");
        Self::text(answer.result.map(<[u8]>::to_vec))
    }

    /// A line on `ctl`; an empty one reads it.
    pub fn ctl(&mut self, line: &str) -> Result<String, Errno> {
        Self::text(self.call(file::CTL, line.as_bytes()))
    }

    pub fn open(&mut self, session: u64) -> Result<(), Errno> {
        self.open_with(session, &[])
    }

    pub fn open_with(&mut self, session: u64, capsule: &[u8]) -> Result<(), Errno> {
        let info = OpenInfo { pid: 7, capsule: capsule.to_vec(), ..OpenInfo::default() };
        self.0.open_session(session, file::QUERY, &info, soon()).expect("called").result.map(drop)
    }

    /// Hands back the domain's defaults.
    pub fn restore(&mut self, capsule: &[u8]) -> Result<(), Errno> {
        let info = OpenInfo { capsule: capsule.to_vec(), ..OpenInfo::default() };
        self.0.open_session(0, 0, &info, soon()).expect("called").result.map(drop)
    }

    pub fn ioctl(&mut self, session: u64, number: u32, data: &[u8]) -> Result<Vec<u8>, Errno> {
        self.0.control(session, number, data, soon()).expect("called").result.map(<[u8]>::to_vec)
    }

    /// One of the domain's counters.
    pub fn counter(&mut self, name: &str) -> u64 {
        let status = Self::text(self.call(file::STATUS, b"")).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse().expect("a number"))
    }
}
