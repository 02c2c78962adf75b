//! An etcd to test with: Debian's, at an address of the loopback that is this process's alone, in a
//! folder that goes with it.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// How long members may take until they answer.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long between two looks whether they do.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The loopback's addresses that are given to processes by their ids: 127.64.0.0/10, and ids have
/// 22 bits.
const OWN: u32 = 0x7f40_0000;
/// The first port of an own address that is tried.
const FIRST_PORT: u16 = 20_000;

/// One or more members of an etcd. Killed, with all that they keep, when it is dropped.
#[derive(Debug)]
pub struct EtcdServers {
    members: Vec<Member>,
    program: PathBuf,
    extra: Vec<String>,
    folder: tempfile::TempDir,
}

#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    child: Option<Child>,
}

/// Where an etcd is: as `make deps` unpacked it, or installed. `None`: nowhere.
#[must_use]
pub fn etcd_program() -> Option<PathBuf> {
    let unpacked = |target: PathBuf| target.join("debian/etcd/usr/bin/etcd");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.ancestors().nth(3)?.to_owned()));
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let places = [target, beside, Some(ours)].into_iter().flatten().map(unpacked);
    let installed = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&installed).map(|folder| folder.join("etcd")).collect::<Vec<_>>();
    places.chain(installed).find(|path| path.is_file())
}

/// Where the members are that this process starts.
#[must_use]
pub fn own_address() -> Ipv4Addr {
    Ipv4Addr::from(OWN | (std::process::id() & 0x3f_ffff))
}

/// A port that nobody takes before a member does, nor while it is killed: a connection within the
/// loopback leaves from 127.0.0.1, and from ports of that address.
fn own_port() -> io::Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(FIRST_PORT);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        match TcpListener::bind((own_address(), port)) {
            // Somebody listens at this port of every address.
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && port >= FIRST_PORT => {}
            tried => return tried?.local_addr(),
        }
    }
}

impl EtcdServers {
    /// Starts so many members, each at ports of its own. `extra`: more arguments of each.
    ///
    /// # Errors
    /// There is no etcd, or it does not start.
    pub fn start(count: usize, extra: &[&str]) -> io::Result<Self> {
        let program = etcd_program().ok_or_else(|| io::Error::other("there is no etcd: run `make deps`"))?;
        let member = |_| Ok(Member { client: own_port()?, peer: own_port()?, child: None });
        let mut servers = Self {
            members: (0..count).map(member).collect::<io::Result<_>>()?,
            program,
            extra: extra.iter().map(|word| (*word).to_owned()).collect(),
            folder: tempfile::tempdir()?,
        };
        for index in 0..count {
            servers.spawn(index)?;
        }
        servers.wait()?;
        Ok(servers)
    }

    /// Where clients reach them, one URL each.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("{}://{}", self.scheme(), member.client)).collect()
    }

    fn scheme(&self) -> &'static str {
        if self.extra.iter().any(|word| word.starts_with("--cert-file")) { "https" } else { "http" }
    }

    fn name(index: usize) -> String {
        format!("m{index}")
    }

    fn spawn(&mut self, index: usize) -> io::Result<()> {
        let all = self.members.iter().enumerate();
        let all: Vec<_> =
            all.map(|(n, member)| format!("{}=http://{}", Self::name(n), member.peer)).collect();
        let scheme = self.scheme();
        let member = &self.members[index];
        let (client, peer) = (format!("{scheme}://{}", member.client), format!("http://{}", member.peer));
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join(format!("{index}.log")))?;
        let child = Command::new(&self.program)
            .args(["--name", &Self::name(index)])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("data-{index}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(","), "--unsafe-no-fsync"])
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(&self.extra)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        self.members[index].child = Some(child);
        Ok(())
    }

    /// Waits until each member that runs takes connections.
    fn wait(&self) -> io::Result<()> {
        let begun = Instant::now();
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| member.child.is_some()) {
            while let Err(error) = TcpStream::connect(member.client) {
                if begun.elapsed() > START_TIMEOUT {
                    let log = std::fs::read_to_string(self.folder.path().join(format!("{index}.log")));
                    return Err(io::Error::other(format!(
                        "etcd does not start: {error}\n{}",
                        log.unwrap_or_default()
                    )));
                }
                // tidy(sleep): etcd tells nobody when it listens.
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Ok(())
    }

    /// Kills a member (`SIGKILL`); what it keeps stays.
    ///
    /// # Errors
    /// It can't be.
    pub fn kill(&mut self, index: usize) -> io::Result<()> {
        if let Some(mut child) = self.members[index].child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Starts a member again that was killed.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart(&mut self, index: usize) -> io::Result<()> {
        self.kill(index)?;
        self.spawn(index)?;
        self.wait()
    }

    /// Starts a lone member again as one that knows nothing: as an etcd that was put back to before
    /// it was used.
    ///
    /// # Errors
    /// It does not start.
    pub fn restart_empty(&mut self, index: usize) -> io::Result<()> {
        self.kill(index)?;
        std::fs::remove_dir_all(self.folder.path().join(format!("data-{index}")))?;
        self.restart(index)
    }

    /// The process of a member that runs: for who stops and continues it.
    #[must_use]
    pub fn pid(&self, index: usize) -> Option<u32> {
        self.members[index].child.as_ref().map(Child::id)
    }

    /// Stops a member (`SIGSTOP`): from when this returns it keeps its connections and says
    /// nothing.
    ///
    /// # Errors
    /// It does not run.
    pub fn stop(&self, index: usize) -> io::Result<()> {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        self.signal(index, "STOP")?;
        let pid = self.pid(index).and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("this member does not run"))?;
        // The last of its threads has stopped then.
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT)?;
        Ok(())
    }

    /// Lets a stopped member go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn go_on(&self, index: usize) -> io::Result<()> {
        self.signal(index, "CONT")
    }

    fn signal(&self, index: usize, signal: &str) -> io::Result<()> {
        let pid = self.pid(index).ok_or_else(|| io::Error::other("this member does not run"))?;
        let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status()?;
        if sent.success() { Ok(()) } else { Err(io::Error::other(format!("kill: {sent}"))) }
    }
}

impl Drop for EtcdServers {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            // A stopped one dies as well; what can't be killed has ended.
            let _ended = self.kill(index);
        }
    }
}
