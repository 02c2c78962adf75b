//! Where the arms of one launch are: a tmpfs with what is read and written, a node whose containers
//! serve it and use it, and the servers of others, each with a copy on the same tmpfs.

use super::arms::{Arm, FILE_BYTES, LISTED};
use super::server::{NAME, VERB};
use super::work::{Names, Place};
use crate::machine::{check_files, check_programs, check_root, finish};
use crate::node::Node;
use crate::scenario::BenchError;
use crate::undo::Undo;
use crate::worker::Worker;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it serves.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The folder of the bench's programs, as containers see it.
const PROGRAMS: &str = "/programs";
/// The folder of what is served, as the server's container sees it.
const STORE: &str = "/store";
/// Takes a mount away, where it is one.
const UNMOUNT: &str = "umount -l \"$1\" 2>/dev/null; true";
/// The server of 9P, as it is installed or as `make deps` unpacked it.
const DIOD: [&str; 2] = ["/usr/sbin/diod", "debian/diod/usr/sbin/diod"];
/// The server of a file system by libfuse.
const LIBFUSE: [&str; 1] = ["/usr/bin/qemu-storage-daemon"];
/// Where unpacked packages have their libraries.
const LIBRARIES: &str = "debian/diod/usr/lib/x86_64-linux-gnu";

/// Everything of one launch. What was started ends when this is dropped, and what undoes the rest
/// runs last.
#[derive(Debug)]
pub struct Stage {
    /// The client in the container, and that of the others.
    workers: [Option<Worker>; 2],
    others: Vec<Child>,
    node: Option<Node>,
    folder: PathBuf,
    /// Arms that this machine can't have, and why.
    lacks: Vec<(Arm, String)>,
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
        check_programs(&["mount", "umount", "setpriv", "runc"])?;
        check_files(binary, &["service-worker"])?;
        let (undo, folder) = Undo::with_folder()?;
        let (workers, others, lacks) = ([None, None], Vec::new(), Vec::new());
        let mut stage = Self { workers, others, node: None, folder, lacks, undo: Some(undo) };
        stage.make_files()?;
        let target = binary.ancestors().nth(2).unwrap_or(Path::new("/")).to_path_buf();
        stage.start_diod(&target)?;
        stage.start_libfuse(&target)?;
        let mut command = Command::new(binary.with_file_name("service-worker"));
        command.arg("ask");
        let other = Worker::start("client/others".into(), command, &stage.folder)?;
        stage.start_node(binary)?;
        let ours = stage.client_of_node()?;
        stage.workers = [Some(ours), Some(other)];
        for worker in stage.workers.iter_mut().flatten() {
            worker.expect("ready")?;
        }
        Ok(stage)
    }

    /// Returns the arms that were left out, with the reasons.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.lacks.iter().map(|(arm, why)| format!("`{}` was left out: {why}", arm.name())).collect()
    }

    fn later(&mut self, words: &[&OsStr]) -> Result<(), BenchError> {
        match &mut self.undo {
            Some(undo) => undo.add(words).map_err(BenchError::io("noting what to clean up")),
            None => Ok(()),
        }
    }

    fn unmount_later(&mut self, place: &Path) -> Result<(), BenchError> {
        let script = ["sh", "-c", UNMOUNT, "sh"].map(OsStr::new);
        self.later(&[&script[..], &[place.as_os_str()]].concat())
    }

    fn store(&self) -> PathBuf {
        self.folder.join("tmpfs/store")
    }

    fn peer(&self) -> PathBuf {
        self.folder.join("tmpfs/peer")
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("diod.sock")
    }

    fn libfuse(&self) -> PathBuf {
        self.folder.join("libfuse")
    }

    /// The tmpfs, with the same files for ours and for others.
    fn make_files(&mut self) -> Result<(), BenchError> {
        let tmpfs = self.folder.join("tmpfs");
        self.unmount_later(&tmpfs)?;
        make_folder(&tmpfs)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64m,mode=0755", "tombolo-bench"]).arg(&tmpfs);
        finish(mount)?;
        for place in [self.store(), self.peer()] {
            make_folder(&place.join("many"))?;
            write(&place.join("data"), &vec![1; FILE_BYTES])?;
            (0..LISTED).try_for_each(|number| write(&place.join(format!("many/file-{number}")), b""))?;
        }
        write(&self.peer().join("image"), &vec![1; FILE_BYTES])?;
        make_folder(&self.libfuse())?;
        write(&self.libfuse().join("data"), b"")
    }

    fn start_diod(&mut self, target: &Path) -> Result<(), BenchError> {
        let Some(diod) = self.found(Arm::Diod, &DIOD, target) else { return Ok(()) };
        let socket = self.socket();
        let mut command = other(&diod);
        command.args(["-f", "-n", "-N", "-S", "-U", "root", "-L", "stderr", "-l"]).arg(&socket);
        command.arg("-e").arg(self.peer()).env("LD_LIBRARY_PATH", target.join(LIBRARIES));
        self.start(Arm::Diod, command, || UnixStream::connect(&socket).is_ok())
    }

    fn start_libfuse(&mut self, target: &Path) -> Result<(), BenchError> {
        let Some(daemon) = self.found(Arm::Libfuse, &LIBFUSE, target) else { return Ok(()) };
        let (image, at) = (self.peer().join("image"), self.libfuse().join("data"));
        self.unmount_later(&at)?;
        let mut command = other(&daemon);
        let node = format!("driver=file,filename={},node-name=data", image.display());
        let export = format!("type=fuse,id=data,node-name=data,writable=on,mountpoint={}", at.display());
        command.args(["--blockdev", &node, "--export", &export]);
        let served = || fs::metadata(&at).is_ok_and(|found| found.size() == FILE_BYTES as u64);
        self.start(Arm::Libfuse, command, served)
    }

    /// A program of others, as an absolute path or below the folder of what was built; noted where
    /// there is none.
    fn found(&mut self, arm: Arm, places: &[&str], target: &Path) -> Option<PathBuf> {
        let found = places.iter().map(|place| target.join(place)).find(|file| file.exists());
        if found.is_none() {
            let name = places.first().map_or("its program", |place| place);
            self.lacks.push((arm, format!("{name} is not there (`make deps`)")));
        }
        found
    }

    /// Starts a server of others and waits until it serves; one that does not is left out, and
    /// noted.
    fn start(&mut self, arm: Arm, mut command: Command, serves: impl Fn() -> bool) -> Result<(), BenchError> {
        let log = self.folder.join(format!("{}.err", arm.name()));
        let errors = fs::File::create(&log).map_err(BenchError::io("noting what others complain"))?;
        let doing = format!("starting {command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let mut child = command.spawn().map_err(BenchError::io(doing))?;
        let begun = Instant::now();
        let mut ended = None;
        while ended.is_none() && !serves() && begun.elapsed() < TIMEOUT {
            // tidy(sleep): a program of somebody else's says nothing when it serves.
            std::thread::sleep(Duration::from_millis(10));
            ended = child.try_wait().map_err(BenchError::io("waiting for a server"))?;
        }
        self.others.push(child);
        if !serves() {
            let said = fs::read_to_string(&log).unwrap_or_default();
            self.lacks.push((arm, format!("its server did not come up: {}", said.trim())));
        }
        Ok(())
    }

    fn start_node(&mut self, binary: &Path) -> Result<(), BenchError> {
        let programs = binary.parent().unwrap_or(Path::new("/")).display().to_string();
        let topology = topology(&programs, &self.store().display().to_string());
        let Some(undo) = &mut self.undo else { return Ok(()) };
        let node = Node::start(binary, &self.folder, undo, &topology)?;
        let there = format!("cat /srv/{NAME}/ctl && ls /srv/tree/many/file-0");
        let begun = Instant::now();
        loop {
            match finish(node.tombolo(&["exec", "client", "--", "sh", "-c", &there])) {
                Err(error) if begun.elapsed() > TIMEOUT => return Err(error),
                // tidy(sleep): nothing tells when a service of a domain's program is there.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
                Ok(()) => break,
            }
        }
        self.node = Some(node);
        Ok(())
    }

    fn client_of_node(&self) -> Result<Worker, BenchError> {
        let program = format!("{PROGRAMS}/service-worker");
        let words = ["exec", "-i", "client", "--", &program, "ask"];
        let command = self.node.as_ref().map(|node| node.tombolo(&words));
        let command = command.ok_or_else(|| BenchError::Missing {
            what: "a node".into(),
            how: "this is a bug; please report it",
        })?;
        Worker::start("client/ours".into(), command, &self.folder)
    }

    /// The client of an arm.
    pub fn client(&mut self, arm: Arm) -> Option<&mut Worker> {
        let [ours, other] = &mut self.workers;
        if arm.is_ours() { ours.as_mut() } else { other.as_mut() }
    }

    /// Where an arm's client finds what it works with, and its names there. `None`: not on this
    /// machine.
    #[must_use]
    pub fn place(&self, arm: Arm) -> Option<(Place, Names)> {
        if self.lacks.iter().any(|(lacking, _)| *lacking == arm) {
            return None;
        }
        let mount = |folder: PathBuf, is_uncached| Place::Mount { folder, is_uncached };
        let place = match arm {
            Arm::Fuse => mount("/srv".into(), false),
            Arm::Ninep => Place::Ninep { socket: "/run/tombolo/9p.sock".into(), tree: "/srv".into() },
            Arm::Direct => Place::Direct,
            // A tree's files are not kept in the page cache: what others write has to be seen.
            Arm::Libfuse => mount(self.libfuse(), true),
            Arm::Diod => Place::Ninep { socket: self.socket(), tree: self.peer().display().to_string() },
            Arm::Plain => mount(self.peer(), false),
            Arm::Pipe => Place::Pipe,
            Arm::Memory => Place::Memory,
        };
        let below = if arm.is_ours() { "tree/" } else { "" };
        let (file, folder) = (format!("{below}data"), format!("{below}many"));
        Some((place, Names { file, folder, service: NAME.into() }))
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
        self.workers = [None, None];
        for child in &mut self.others {
            // It may have ended before.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// A program of others, which ends with the bench, however that ends.
fn other(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

fn make_folder(folder: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(folder).map_err(BenchError::io(format!("making {}", folder.display())))
}

fn write(file: &Path, bytes: &[u8]) -> Result<(), BenchError> {
    fs::write(file, bytes).map_err(BenchError::io(format!("writing {}", file.display())))
}

fn topology(programs: &str, store: &str) -> String {
    let programs = format!("{{ source = \"{programs}\", target = \"{PROGRAMS}\" }}");
    let allow = |verb: &str| format!("allow = [{{ domains = [\"client\"], verbs = [\"{verb}\"] }}]");
    format!(
        "name = \"bench\"\n\
         [domain.disk]\nkind = \"container\"\n\
         mounts = [{{ source = \"{store}\", target = \"{STORE}\", read_only = false }}]\n\
         [domain.server]\nkind = \"container\"\nroot = \"host\"\nmounts = [{programs}]\n\
         command = [\"{PROGRAMS}/service-worker\", \"serve\"]\n\
         [domain.client]\nkind = \"container\"\nroot = \"host\"\nmounts = [{programs}]\n\
         command = [\"sleep\", \"infinity\"]\nstop = {{ signal = \"KILL\" }}\nnine_p = true\n\
         services = {{ {NAME} = \"/srv/{NAME}\", tree = \"/srv/tree\" }}\n\
         [service.{NAME}]\nkind = \"program\"\ndomain = \"server\"\n{}\n\
         [service.tree]\nkind = \"files\"\ndomain = \"disk\"\n{}\nsettings = {{ store = \"{STORE}\" }}\n",
        allow(VERB),
        allow("write"),
    )
}
