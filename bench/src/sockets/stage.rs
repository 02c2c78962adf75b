//! Where the arms of one launch are: network namespaces on a bridge, forwarders between them, and a
//! node with containers that have only `lo`.

use super::arms::{Arm, SERVERS, Server};
use super::group::Group;
use crate::control_group;
use crate::machine::{check_files, check_root, finish, network_namespace};
use crate::node::Node;
use crate::scenario::BenchError;
use crate::undo::Undo;
use crate::usage;
use crate::worker::Worker;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The bridge between two namespaces: stays until its input ends.
const BRIDGE: &str = "set -e
ip link set lo up
ip link add hub type bridge
ip link set hub up
echo up
exec cat >/dev/null";
/// A namespace with `lo` alone.
const LONELY: &str = "set -e
ip link set lo up
echo up
exec cat >/dev/null";
/// Waits until pasta listens for each server, and becomes the client, whose path is the argument.
const IN_PASTA: &str = "ip link set lo up
until [ \"$(grep -cs ' 0A ' /proc/net/tcp)\" -ge 3 ]; do sleep 0.02; done
exec \"$0\" ask";
/// Addresses on the bridge, of the block for benchmarks (RFC 2544).
const SERVER: &str = "198.18.1.1";
const CLIENT: &str = "198.18.1.2";
/// The address that slirp4netns maps to the `lo` of the namespace in which it runs.
const SLIRP: &str = "10.0.2.2";
/// How long a forwarder or a server may take to listen.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The folder of the bench's programs, as containers see it.
const PROGRAMS: &str = "/programs";
/// nginx's configuration, as containers see it.
const CONFIGURATION: &str = "/nginx.conf";
/// The packages that `make deps` unpacked for this bench.
const PACKAGES: [&str; 3] = ["redis", "nginx", "wrk"];
/// Where unpacked packages have their libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Everything of one launch. What was started ends when this is dropped, and what undoes the rest
/// runs last.
#[derive(Debug)]
pub struct Stage {
    clients: Vec<(Arm, Worker)>,
    workers: Vec<Worker>,
    /// Forwarders and servers of others.
    others: Vec<Child>,
    spaces: Vec<Child>,
    group: Group,
    node: Option<Node>,
    folder: PathBuf,
    /// The folder of unpacked packages.
    debian: PathBuf,
    /// Arms and servers that this machine can't have, and why.
    lacks: Vec<(&'static str, String)>,
    undo: Option<Undo>,
}

impl Stage {
    /// Makes it all.
    ///
    /// # Errors
    /// Where something that can't be left out is missing or does not start; what had been made is
    /// undone.
    pub fn make(binary: &Path) -> Result<Self, BenchError> {
        check_root()?;
        check_files(binary, &["socket-worker"])?;
        let (mut undo, folder) = Undo::with_folder()?;
        let group = Group::make(&mut undo)?;
        let target = binary.ancestors().nth(2).unwrap_or(Path::new("/")).to_path_buf();
        let debian = target.join("debian");
        let mut stage = Self {
            clients: Vec::new(),
            workers: Vec::new(),
            others: Vec::new(),
            spaces: Vec::new(),
            group,
            node: None,
            folder,
            debian: std::fs::canonicalize(&debian).unwrap_or(debian),
            lacks: Vec::new(),
            undo: Some(undo),
        };
        stage.look_for_packages();
        stage.make_spaces()?;
        stage.make_servers(binary)?;
        stage.make_clients(&binary.with_file_name("socket-worker"))?;
        stage.make_node(binary)?;
        Ok(stage)
    }

    /// Returns the programs that were left out, with the reasons.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.lacks.iter().map(|(name, why)| format!("{name} was left out: {why}")).collect()
    }

    fn look_for_packages(&mut self) {
        for package in PACKAGES {
            if !self.debian.join(package).join(".complete").exists() {
                let what = if package == "wrk" { Server::Nginx.name() } else { package };
                self.lacks.push((what, format!("{package} is not there (`make deps`)")));
            }
        }
    }

    fn lacks(&self, name: &str) -> bool {
        self.lacks.iter().any(|(lacking, _)| *lacking == name)
    }

    fn make_spaces(&mut self) -> Result<(), BenchError> {
        for script in [BRIDGE, LONELY, LONELY, LONELY] {
            self.spaces.push(network_namespace(script)?);
        }
        let hub = self.space(Space::Hub);
        for (space, name, address) in [(Space::Server, "s", SERVER), (Space::Client, "c", CLIENT)] {
            let at = self.space(space).to_string();
            let far = ["type", "veth", "peer", "name", "eth0", "netns", &at];
            self.ip(hub, &[&["link", "add", name][..], &far].concat())?;
            self.ip(hub, &["link", "set", name, "master", "hub", "up"])?;
            self.ip(self.space(space), &["address", "add", &format!("{address}/24"), "dev", "eth0"])?;
            self.ip(self.space(space), &["link", "set", "eth0", "up"])?;
        }
        Ok(())
    }

    fn ip(&self, space: u32, words: &[&str]) -> Result<(), BenchError> {
        let mut command = self.group.inside(space, "ip");
        command.args(words);
        finish(command)
    }

    fn space(&self, space: Space) -> u32 {
        self.spaces.get(space as usize).map_or(0, Child::id)
    }

    /// A program of an unpacked package, in a namespace.
    fn unpacked(&self, space: Space, package: &str, program: &str) -> Command {
        let folder = self.debian.join(package);
        let mut command = self.group.inside(self.space(space), folder.join(program));
        command.env("LD_LIBRARY_PATH", folder.join(LIBRARIES));
        command
    }

    fn make_servers(&mut self, binary: &Path) -> Result<(), BenchError> {
        let worker = binary.with_file_name("socket-worker");
        let tcp = format!("tcp:0.0.0.0:{}", Server::Worker.port());
        for (name, place) in [("tcp", tcp), ("unix", self.unix(Server::Worker))] {
            let mut command = self.group.inside(self.space(Space::Server), &worker);
            command.args(["serve", &place]);
            let mut started = Worker::start(format!("server/{name}"), command, &self.folder)?;
            started.expect("ready")?;
            self.workers.push(started);
        }
        if !self.lacks(Server::Redis.name()) {
            let mut redis = self.unpacked(Space::Server, "redis", "usr/bin/redis-server");
            redis.args(["--save", "", "--bind", "0.0.0.0", "--protected-mode", "no"]);
            redis.args(["--unixsocket", self.unix(Server::Redis).trim_start_matches("unix:")]);
            self.start("redis", redis, Space::Server, &format!("127.0.0.1/{}", Server::Redis.port()))?;
        }
        if !self.lacks(Server::Nginx.name()) {
            let file = self.folder.join("nginx.conf");
            let text = configuration(&self.folder.display().to_string());
            std::fs::write(&file, text).map_err(BenchError::io("writing nginx's configuration"))?;
            let mut nginx = self.unpacked(Space::Server, "nginx", "usr/sbin/nginx");
            nginx.args(["-e", "stderr", "-c"]).arg(&file);
            self.start("nginx", nginx, Space::Server, &format!("127.0.0.1/{}", Server::Nginx.port()))?;
        }
        Ok(())
    }

    fn make_clients(&mut self, worker: &Path) -> Result<(), BenchError> {
        for (arm, space) in
            [(Arm::Loopback, Space::Server), (Arm::Unix, Space::Server), (Arm::Veth, Space::Client)]
        {
            self.add_worker(arm, space, worker)?;
        }
        if let Some(socat) = self.forwarder(Arm::Socat, "socat") {
            for server in SERVERS {
                self.forward_by_socat(&socat, server)?;
            }
            self.add_worker(Arm::Socat, Space::Client, worker)?;
        }
        if let Some(slirp) = self.forwarder(Arm::Slirp, "slirp4netns") {
            self.forward_by_slirp(&slirp)?;
            self.add_worker(Arm::Slirp, Space::Slirp, worker)?;
        }
        if let Some(pasta) = self.forwarder(Arm::Pasta, "pasta") {
            self.ask_through_pasta(&pasta, worker)?;
        }
        Ok(())
    }

    fn add_worker(&mut self, arm: Arm, space: Space, worker: &Path) -> Result<(), BenchError> {
        let mut command = self.group.inside(self.space(space), worker);
        command.arg("ask").env("LD_LIBRARY_PATH", libraries(&self.debian.display().to_string()));
        self.add_client(arm, command)
    }

    fn add_client(&mut self, arm: Arm, command: Command) -> Result<(), BenchError> {
        let mut client = Worker::start(format!("client/{}", arm.name()), command, &self.folder)?;
        client.expect("ready")?;
        self.clients.push((arm, client));
        Ok(())
    }

    /// A forwarder as it was unpacked, or as the machine has it; noted where it has none.
    fn forwarder(&mut self, arm: Arm, program: &str) -> Option<PathBuf> {
        let unpacked = self.debian.join("forwarders/usr/bin").join(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let installed = std::env::split_paths(&path).map(|folder| folder.join(program));
        let found = std::iter::once(unpacked).chain(installed).find(|file| file.exists());
        if found.is_none() {
            self.lacks.push((arm.name(), format!("{program} is not there (`make deps`)")));
        }
        found
    }

    fn forwarding(&self, space: Space, program: &Path) -> Command {
        let mut command = self.group.inside(self.space(space), program);
        command.env("LD_LIBRARY_PATH", self.debian.join("forwarders").join(LIBRARIES));
        command
    }

    fn forward_by_socat(&mut self, socat: &Path, server: Server) -> Result<(), BenchError> {
        let through = self.folder.join(format!("socat-{}.sock", server.name())).display().to_string();
        let (port, forwarded) = (server.port(), server.forwarded_port());
        let mut far = self.forwarding(Space::Server, socat);
        far.args([
            &format!("UNIX-LISTEN:{through},fork,backlog=1024"),
            &format!("TCP:127.0.0.1:{port},nodelay"),
        ]);
        let mut near = self.forwarding(Space::Client, socat);
        near.args([
            &format!("TCP-LISTEN:{forwarded},bind=127.0.0.1,fork,reuseaddr,nodelay,backlog=1024"),
            &format!("UNIX-CONNECT:{through}"),
        ]);
        self.spawn(far)?;
        self.start("socat", near, Space::Client, &format!("127.0.0.1/{forwarded}"))
    }

    /// slirp4netns has one end in a namespace with a TAP device, and the other in the one in which
    /// it runs.
    fn forward_by_slirp(&mut self, slirp: &Path) -> Result<(), BenchError> {
        let mut command = self.forwarding(Space::Server, slirp);
        command.args(["-c", "-m", "65520", &self.space(Space::Slirp).to_string(), "tap0"]);
        self.start("slirp4netns", command, Space::Slirp, &format!("{SLIRP}/{}", Server::Worker.port()))?;
        self.ip(self.space(Space::Slirp), &["route", "del", "default"])
    }

    /// pasta makes a namespace of its own, in whose `lo` it listens, and splices to the namespace
    /// in which it runs.
    fn ask_through_pasta(&mut self, pasta: &Path, worker: &Path) -> Result<(), BenchError> {
        let mut command = self.forwarding(Space::Server, pasta);
        command.args(["--quiet", "--runas", "0", "--no-map-gw", "-4", "-i", "eth0"]);
        // It wants to know of a network, which no arm uses.
        command.args(["-a", "198.18.1.9", "-n", "24", "-g", "198.18.1.8"]);
        command.args(["-t", "none", "-u", "none", "-U", "none"]);
        let ports = SERVERS.map(|server| format!("{}:{}", server.forwarded_port(), server.port())).join(",");
        command.args(["-T", &ports, "--", "sh", "-c", IN_PASTA]).arg(worker);
        command.env("LD_LIBRARY_PATH", libraries(&self.debian.display().to_string()));
        self.add_client(Arm::Pasta, command)
    }

    /// Starts somebody else's program, and waits until something listens at a place.
    fn start(
        &mut self,
        what: &'static str,
        command: Command,
        space: Space,
        place: &str,
    ) -> Result<(), BenchError> {
        self.spawn(command)?;
        let probe = || {
            let mut probe = self.group.inside(self.space(space), "bash");
            probe.args(["-c", &format!("exec 3<>/dev/tcp/{place}")]);
            finish(probe)
        };
        until(probe).map_err(|error| {
            let errors = std::fs::read_to_string(self.folder.join("others.err")).unwrap_or_default();
            let said = format!("{error}; {}", errors.trim());
            BenchError::Protocol { who: what.into(), said, expected: "a listener" }
        })
    }

    fn spawn(&mut self, mut command: Command) -> Result<(), BenchError> {
        let doing = format!("starting {command:?}");
        let errors = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("others.err"))
            .map_err(BenchError::io("noting what others complain"))?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors).spawn();
        self.others.push(child.map_err(BenchError::io(doing))?);
        Ok(())
    }

    fn make_node(&mut self, binary: &Path) -> Result<(), BenchError> {
        let programs = binary.parent().unwrap_or(Path::new("/")).display().to_string();
        let file = self.folder.join("nginx-inside.conf");
        std::fs::write(&file, configuration("/tmp")).map_err(BenchError::io("writing a configuration"))?;
        let servers: Vec<Server> = SERVERS.into_iter().filter(|server| !self.lacks(server.name())).collect();
        let there = |package: &&&str| self.debian.join(package).join(".complete").exists();
        let mut mounts =
            vec![(programs, PROGRAMS.to_owned()), (file.display().to_string(), CONFIGURATION.to_owned())];
        for package in PACKAGES.iter().filter(there) {
            mounts.push((self.debian.join(package).display().to_string(), format!("/{package}")));
        }
        let topology = topology(&mounts, &servers);
        let Some(undo) = &mut self.undo else { return Ok(()) };
        let node = Node::start(binary, &self.folder, undo, &topology)?;
        let program = format!("{PROGRAMS}/socket-worker");
        let asking = node.tombolo(&["exec", "-i", "client", "--", &program, "ask"]);
        for server in servers {
            let place = format!("exec 3<>/dev/tcp/127.0.0.1/{}", server.port());
            until(|| finish(node.tombolo(&["exec", "client", "--", "bash", "-c", &place])))?;
        }
        self.node = Some(node);
        self.add_client(Arm::Listener, asking)
    }

    /// Processor time of everything of this launch, in ns.
    #[must_use]
    pub fn processor_ns(&self) -> Option<u64> {
        let node = control_group::of_node(&self.node.as_ref()?.run_dir())?;
        Some(self.group.processor_ns()? + control_group::processor_ns(&node)?)
    }

    /// Memory of both programs and of all that is between them in the node's containers, the
    /// kernel's included.
    #[must_use]
    pub fn memory_of_containers(&self) -> Option<u64> {
        usage::charged_bytes(&self.node.as_ref()?.run_dir())
    }

    /// The client of an arm, if this machine can have it.
    pub fn client(&mut self, arm: Arm) -> Option<&mut Worker> {
        self.clients.iter_mut().find(|(of, _)| *of == arm).map(|(_, worker)| worker)
    }

    /// Where an arm's client finds a server: `tcp:ADDRESS:PORT` or `unix:PATH`. `None`: not in this
    /// arm.
    #[must_use]
    pub fn place(&self, arm: Arm, server: Server) -> Option<String> {
        if self.lacks(server.name()) || self.lacks(arm.name()) {
            return None;
        }
        let tcp = |address: &str, port: u16| Some(format!("tcp:{address}:{port}"));
        match arm {
            Arm::Loopback | Arm::Listener => tcp("127.0.0.1", server.port()),
            Arm::Veth => tcp(SERVER, server.port()),
            Arm::Slirp => tcp(SLIRP, server.port()),
            Arm::Socat | Arm::Pasta => tcp("127.0.0.1", server.forwarded_port()),
            Arm::Unix => (server != Server::Nginx).then(|| self.unix(server)),
        }
    }

    /// A program of an unpacked package, as the client of an arm finds it.
    #[must_use]
    pub fn program(&self, arm: Arm, package: &str, program: &str) -> String {
        match arm {
            Arm::Listener => format!("/{package}/{program}"),
            _ => self.debian.join(package).join(program).display().to_string(),
        }
    }

    fn unix(&self, server: Server) -> String {
        format!("unix:{}", self.folder.join(server.name()).with_extension("sock").display())
    }

    /// Ends everything.
    ///
    /// # Errors
    /// Where something could not be undone.
    pub fn end(mut self) -> Result<(), BenchError> {
        let undo = self.undo.take();
        drop(self);
        undo.map_or(Ok(()), Undo::finish).map_err(BenchError::io("clearing up"))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clients.clear();
        self.workers.clear();
        for child in self.others.iter_mut().chain(&mut self.spaces) {
            // It may have ended before.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// The namespaces, in the order in which they are made.
#[derive(Debug, Clone, Copy)]
enum Space {
    Hub,
    Server,
    Client,
    Slirp,
}

/// Tries until it succeeds, or the patience is over.
fn until(mut attempt: impl FnMut() -> Result<(), BenchError>) -> Result<(), BenchError> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if begun.elapsed() > TIMEOUT => return Err(error),
            // tidy(sleep): a program of somebody else's says nothing when it listens, and nothing
            // tells when relays have met.
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            Ok(()) => return Ok(()),
        }
    }
}

/// Where programs of unpacked packages find their libraries.
fn libraries(folder: &str) -> String {
    PACKAGES.map(|package| format!("{folder}/{package}/{LIBRARIES}")).join(":")
}

/// nginx as one process, which answers 64 bytes and keeps its files in `folder`.
fn configuration(folder: &str) -> String {
    let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let places = places.map(|name| format!("{name}_temp_path {folder}/{name};")).concat();
    let body = "7".repeat(64);
    format!(
        "daemon off; master_process off; user root root; pid {folder}/nginx.pid; error_log stderr;\n\
         events {{}}\nhttp {{ access_log off; keepalive_requests 1000000000; {places}\n\
         server {{ listen 0.0.0.0:{}; location / {{ return 200 \"{body}\"; }} }} }}\n",
        Server::Nginx.port()
    )
}

fn topology(mounts: &[(String, String)], servers: &[Server]) -> String {
    let mounts: Vec<String> = mounts
        .iter()
        .map(|(source, target)| format!("{{ source = \"{source}\", target = \"{target}\" }}"))
        .collect();
    let common = format!(
        "kind = \"container\"\nroot = \"host\"\nmounts = [{}]\nenvironment = {{ LD_LIBRARY_PATH = \"{}\" }}\n",
        mounts.join(", "),
        libraries("")
    );
    let mut text = "name = \"bench\"\n".to_owned();
    let mut mounted = Vec::new();
    for server in servers {
        let (name, port) = (server.name(), server.port());
        let command = match server {
            Server::Worker => format!("\"{PROGRAMS}/socket-worker\", \"serve\", \"tcp:127.0.0.1:{port}\""),
            Server::Redis => "\"/redis/usr/bin/redis-server\", \"--save\", \"\"".to_owned(),
            Server::Nginx => {
                format!("\"/nginx/usr/sbin/nginx\", \"-e\", \"stderr\", \"-c\", \"{CONFIGURATION}\"")
            }
        };
        text += &format!(
            "\n[domain.{name}]\n{common}command = [{command}]\n\
             [service.{name}]\nkind = \"socket\"\ndomain = \"{name}\"\nto = \"tcp:{port}\"\n\
             allow = [{{ domains = [\"client\"], verbs = [\"connect\"] }}]\n"
        );
        mounted.push(format!("{name} = {{ at = \"tcp:{port}\" }}"));
    }
    text + &format!(
        "\n[domain.client]\n{common}command = [\"sleep\", \"infinity\"]\nservices = {{ {} }}\n",
        mounted.join(", ")
    )
}
