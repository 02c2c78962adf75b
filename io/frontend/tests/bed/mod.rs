//! A frontend process with a real mount, in a mount namespace of the test's own; a fake daemon and
//! a fake backend in threads, on real channels.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod backend;
pub mod ninep;
pub mod tree;

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backend::{Backend, Script};
use rustix::fs::MemfdFlags;
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use serde_json::{Value, json};
use session::packet::{self, Packet, PacketError};
use sys::namespace::UnshareFlags;
use wire::control::{Event, MountedService, Reply, Request};

/// Longest time that anything here may take.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Set in the frontend's process.
const ROLE: &str = "TOMBOLO_TEST_FRONTEND";
/// The unprivileged user that the frontend becomes.
const NOBODY: u32 = 65534;

/// Why tests with a real mount can't run here, if they can't.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root to mount".into());
    }
    if let Err(error) = frontend::open_device() {
        return Some(format!("needs /dev/fuse: {error} (modprobe fuse)"));
    }
    None
}

/// Skips a test, saying why.
#[macro_export]
macro_rules! needs_fuse {
    () => {
        if let Some(reason) = bed::missing() {
            println!("skipped: {reason}");
            return;
        }
    };
}

/// The body of the test that is really the frontend's process.
pub fn be_the_frontend() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let role: Value = serde_json::from_str(&role).expect("a role");
    let mut hello = [0; 16];
    let (_, mut descriptors) =
        sys::descriptors::receive_with_descriptors(std::io::stdin(), &mut hello, 4).expect("descriptors");
    let ninep = descriptors.pop();
    let (ledger, control, fuse) = (descriptors.pop(), descriptors.pop(), descriptors.pop());
    let config = frontend::Config {
        fuse: fuse.expect("the device"),
        control: control.expect("the control socket"),
        ledger: ledger.expect("the ledger"),
        successor: role["successor"] == true,
        identity: Some(frontend::Identity { uid: NOBODY, gid: NOBODY }),
        owner: (0, 0),
        ninep,
        handover: handover(),
        resend: role["resend"] == true,
    };
    frontend::run(config).expect("the frontend serves until the mount is gone");
    std::process::exit(0);
}

/// A file for the next life: it is a life's own here.
fn handover() -> Option<OwnedFd> {
    Some(rustix::fs::memfd_create("handover", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"))
}

/// The options of a bed.
#[derive(Clone, Copy)]
pub struct Wishes {
    pub resend: bool,
    /// Whether the backend is there from the beginning.
    pub up: bool,
}

impl Default for Wishes {
    fn default() -> Self {
        Self { resend: true, up: true }
    }
}

/// Everything that a test needs.
pub struct Bed {
    folder: tempfile::TempDir,
    fuse: OwnedFd,
    ledger: OwnedFd,
    ninep: OwnedFd,
    frontend: Option<Child>,
    wishes: Wishes,
    pub daemon: FakeDaemon,
}

impl Bed {
    pub fn new() -> Self {
        Self::with(Wishes::default())
    }

    /// A bed whose backends have a tree and streams, too.
    pub fn with_tree() -> Self {
        let bed = Self::with(Wishes { up: false, ..Wishes::default() });
        bed.daemon.script(|script| script.export = Some(backend::with_tree()));
        bed.daemon.say_up();
        bed
    }

    pub fn with(wishes: Wishes) -> Self {
        sys::namespace::unshare(UnshareFlags::NEWNS | UnshareFlags::FS).expect("a mount namespace");
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).expect("private mounts");
        let folder = tempfile::tempdir().expect("a folder");
        let srv = folder.path().join("srv");
        std::fs::create_dir(&srv).expect("a mount point");
        // Tests also look from other users' sides.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), all).expect("an open folder");
        let fuse = frontend::open_device().expect("/dev/fuse");
        let mount = frontend::mount_detached(&fuse, &frontend::MountOptions::default()).expect("a mount");
        sys::mount::attach(&mount, &srv).expect("attached");
        let ledger = rustix::fs::memfd_create("ledger", MemfdFlags::CLOEXEC).expect("a memfd");
        let ninep = std::os::unix::net::UnixListener::bind(folder.path().join("9p.sock")).expect("a socket");
        let ninep = ninep.into();
        let daemon = FakeDaemon::new(wishes.up);
        let mut bed = Self { folder, fuse, ledger, ninep, frontend: None, wishes, daemon };
        bed.start(false);
        bed
    }

    /// Starts a frontend's process.
    pub fn start(&mut self, successor: bool) {
        let (theirs, ours) = sys::descriptors::socket_pair().expect("sockets");
        let control = self.daemon.attach();
        let role = json!({ "successor": successor, "resend": self.wishes.resend }).to_string();
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "the_frontend_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("a frontend");
        let descriptors = [self.fuse.as_fd(), control.as_fd(), self.ledger.as_fd(), self.ninep.as_fd()];
        sys::descriptors::send_with_descriptors(&ours, b"go", &descriptors).expect("sent");
        self.frontend = Some(child);
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.frontend.take() {
            child.kill().expect("killed");
            child.wait().expect("reaped");
        }
    }

    pub fn frontend_pid(&self) -> u32 {
        self.frontend.as_ref().map_or(0, Child::id)
    }

    pub fn srv(&self) -> PathBuf {
        self.folder.path().join("srv")
    }

    /// Where the same tree is shown by 9P.
    pub fn ninep(&self) -> PathBuf {
        self.folder.path().join("9p.sock")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.srv().join(name)
    }

    /// Runs a shell script at `/srv`.
    pub fn sh(&self, script: &str) -> Output {
        self.command(script).output().expect("bash")
    }

    pub fn command(&self, script: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "30", "bash", "-c", script]).current_dir(self.srv());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a shell script, which has to succeed, and returns what it says.
    pub fn ok(&self, script: &str) -> String {
        let output = self.sh(script);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{script}\n{}: {said}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        said
    }

    /// Runs a Python program at `/srv`; an assertion that fails in it fails the test.
    pub fn python(&self, program: &str) -> String {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "40", "python3", "-c", program]).current_dir(self.srv());
        let output = command.stdin(Stdio::null()).output().expect("python3");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        said
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        // The mount goes first, so that a frontend ends by itself, as after `tombolo down`.
        let _ = rustix::mount::unmount(self.srv(), UnmountFlags::DETACH);
        if let Some(mut child) = self.frontend.take() {
            let end = Instant::now() + Duration::from_secs(5);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                // tidy(sleep): a child's end can't be awaited with a deadline by std
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until `is` holds.
pub fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        // tidy(sleep): what is awaited happens in another process, which tells nobody
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The fake daemon's record of a service.
struct Service {
    mounted: MountedService,
    script: Script,
    backends: Vec<Backend>,
}

#[derive(Default)]
struct World {
    services: Vec<Service>,
    members: Vec<OwnedFd>,
    states: HashMap<u64, Value>,
    connects: usize,
    refuse: bool,
}

/// Stands in for the daemon.
pub struct FakeDaemon {
    world: Arc<Mutex<World>>,
    stop: Sender<()>,
}

pub fn mounted(name: &str, up: bool) -> MountedService {
    MountedService {
        name: name.into(),
        kind: "directory".into(),
        at: name.into(),
        verbs: vec!["resolve".into(), "control".into()],
        up,
        generation: 1,
        targets: Vec::new(),
    }
}

impl FakeDaemon {
    fn new(up: bool) -> Self {
        let world = Arc::new(Mutex::new(World::default()));
        world.lock().unwrap().services.push(Service {
            mounted: mounted("dns", up),
            script: Script::default(),
            backends: Vec::new(),
        });
        let (stop, stopped) = channel();
        let own = Arc::clone(&world);
        std::thread::spawn(move || serve(&own, &stopped));
        Self { world, stop }
    }

    /// A new control socket: the frontend's end.
    fn attach(&self) -> OwnedFd {
        let (ours, theirs) = sys::descriptors::socket_pair().unwrap();
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        self.world.lock().unwrap().members.push(ours);
        theirs
    }

    /// Tells the frontend something.
    pub fn tell(&self, event: &Event) {
        let world = self.world.lock().unwrap();
        let member = world.members.last().unwrap();
        match packet::send(member, &Reply::Event(event.clone()), &[]) {
            Ok(()) | Err(PacketError::Gone) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends the daemon's side of the control socket, as its death would.
    pub fn die(&self) {
        self.world.lock().unwrap().members.clear();
    }

    /// How the backends that start from now on behave.
    pub fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.world.lock().unwrap().services[0].script);
    }

    /// Ends the backend without a word; its channel ends too.
    pub fn kill_backend(&self) {
        let gone = std::mem::take(&mut self.world.lock().unwrap().services[0].backends);
        drop(gone);
    }

    /// Says that the backend is gone.
    pub fn say_down(&self) {
        let generation = {
            let mut world = self.world.lock().unwrap();
            world.services[0].mounted.up = false;
            world.services[0].mounted.generation
        };
        self.tell(&Event::Service { service: "dns".into(), up: false, generation });
    }

    /// Says that there is another backend.
    pub fn say_up(&self) {
        let generation = {
            let mut world = self.world.lock().unwrap();
            let mounted = &mut world.services[0].mounted;
            mounted.up = true;
            mounted.generation += 1;
            mounted.generation
        };
        self.tell(&Event::Service { service: "dns".into(), up: true, generation });
    }

    /// Looks at the requests that the last backend was sent and has not answered.
    pub fn backend<T>(&self, look: impl FnOnce(&backend::State) -> T) -> Option<T> {
        let world = self.world.lock().unwrap();
        world.services[0].backends.last().map(|backend| look(&backend.state.lock().unwrap()))
    }

    /// Lets the last backend's streams say more, or end.
    pub fn with_backend(&self, act: impl FnOnce(&Backend)) {
        let world = self.world.lock().unwrap();
        act(world.services[0].backends.last().expect("a backend"));
    }

    /// Lets the backend answer all that it holds.
    pub fn release(&self) {
        let world = self.world.lock().unwrap();
        world.services[0].backends.iter().for_each(Backend::release);
    }

    pub fn connects(&self) -> usize {
        self.world.lock().unwrap().connects
    }

    /// Asks the frontend for its state.
    pub fn inspect(&self) -> Value {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.tell(&Event::Inspect { id });
        let mut found = None;
        until("the frontend's state", || {
            found = self.world.lock().unwrap().states.remove(&id);
            found.is_some()
        });
        found.unwrap()
    }

    /// Changes what the domain mounts.
    pub fn mounts(&self, change: impl FnOnce(&mut MountedService)) {
        let services: Vec<MountedService> = {
            let mut world = self.world.lock().unwrap();
            change(&mut world.services[0].mounted);
            world.services.iter().map(|service| service.mounted.clone()).collect()
        };
        self.tell(&Event::Services { services });
    }

    /// A further service that is up.
    pub fn add_up(&self, name: &str) {
        self.add(name);
        let services = {
            let mut world = self.world.lock().unwrap();
            let added = world.services.last_mut().expect("it was added");
            added.mounted = mounted(name, true);
            world.services.iter().map(|service| service.mounted.clone()).collect()
        };
        self.tell(&Event::Services { services });
    }

    /// A further service that is down.
    pub fn add(&self, name: &str) {
        let mut world = self.world.lock().unwrap();
        world.services.push(Service {
            mounted: mounted(name, false),
            script: Script::default(),
            backends: Vec::new(),
        });
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        let _ = self.stop.send(());
    }
}

fn serve(world: &Mutex<World>, stopped: &Receiver<()>) {
    while matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
        let mut world = world.lock().unwrap();
        let World { services, members, states, connects, refuse } = &mut *world;
        let mut idle = true;
        members.retain(|member| {
            loop {
                match packet::receive::<Request>(member) {
                    Ok(Packet { message, .. }) => {
                        idle = false;
                        *connects += usize::from(matches!(message, Request::Connect { .. }));
                        answer(services, states, *refuse, member, message);
                    }
                    Err(PacketError::NotReady) => return true,
                    Err(_) => return false,
                }
            }
        });
        drop(world);
        if idle {
            // tidy(sleep): one thread looks after sockets that come and go under a lock
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn answer(
    services: &mut [Service],
    states: &mut HashMap<u64, Value>,
    refuse: bool,
    member: &OwnedFd,
    request: Request,
) {
    // A frontend that was killed meanwhile hears nothing.
    let send = |reply: &Reply, descriptors: &[_]| match packet::send(member, reply, descriptors) {
        Ok(()) | Err(PacketError::Gone) => {}
        Err(error) => panic!("{error}"),
    };
    let say = |reply: &Reply| send(reply, &[]);
    match request {
        Request::Services { id } => {
            let services = services.iter().map(|service| service.mounted.clone()).collect();
            say(&Reply::Services { id, services });
        }
        Request::About { id } => say(&Reply::About { id, about: json!({ "domain": "web", "dc": "test" }) }),
        Request::Machine { .. } | Request::Guest { .. } => panic!("a frontend is no machine"),
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
        | Request::Borrow { .. } => panic!("a frontend has no endpoints"),
        Request::State { id, state } => {
            states.insert(id, state);
        }
        Request::Connect { id, service, entrance, .. } => {
            assert_eq!(entrance, "device");
            let found = services.iter_mut().find(|s| s.mounted.name == service && s.mounted.up);
            let Some(found) = found.filter(|_| !refuse) else {
                let message = "no server".to_owned();
                return say(&Reply::Refused { id, errno: 112, message });
            };
            let (theirs, ours) = ::channel::pair(&::channel::Config::default()).unwrap();
            found.backends.push(Backend::start(ours, found.script.clone()));
            let descriptors = theirs.into_descriptors();
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            send(&Reply::Connected { id, channel: 1, memory: false }, &descriptors);
        }
        Request::MapMemory { .. }
        | Request::KeepState { .. }
        | Request::Serve { .. }
        | Request::Offer { .. }
        | Request::StepBack { .. } => {
            panic!("a frontend does not serve")
        }
    }
}

/// The end of a process's output, for messages.
pub fn read_all(mut from: impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).expect("text");
    text
}

/// Private memory of a process, in KiB, from `/proc/PID/smaps_rollup`.
pub fn private_kib(pid: u32) -> u64 {
    let rollup =
        std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("smaps_rollup")).unwrap();
    let lines = rollup.lines().filter(|line| line.starts_with("Private_"));
    lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
