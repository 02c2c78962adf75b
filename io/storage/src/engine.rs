//! One engine: started, adopted, asked, ended.

use crate::conversation::{Conversation, TIMEOUT};
use crate::error::at;
use crate::facts::{self, FILE, Facts, LIMITED, MAX_SNAPSHOTS, VOLUME};
use crate::process::{self, Job};
use crate::{ENGINE, EXPORT, Format, Limits, StorageError};
use qmp::Command;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// The monitor's socket, in the volume's run folder.
const MONITOR: &str = "monitor.sock";
/// The export's socket where it is not for domains, in the volume's run folder.
const PRIVATE: &str = "engine.sock";
/// The folder in it that domains see.
pub const SHARE: &str = "share";
/// The export's socket, in that folder.
pub const SOCKET: &str = "nbd.sock";
/// Clients of a volume at a time: a machine has one, tools some.
const MAX_CLIENTS: u32 = 16;
/// Clients that wait to be accepted at most.
const BACKLOG: i32 = 16;
/// How long what touches the disk may take: a resize of qcow2, a snapshot, the last writes.
const DISK_TIMEOUT: Duration = Duration::from_secs(60);
/// The object that limits.
const LIMITS: &str = "limits";

/// The recipe of an engine's start.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Our own binary, which has the role.
    pub program: PathBuf,
    /// The file with the volume's bytes.
    pub image: PathBuf,
    /// How they lie in it.
    pub format: Format,
    /// The limits of its clients.
    pub limits: Limits,
    /// The volume's run folder; it is made if need be.
    pub folder: PathBuf,
    /// The user, and the group, that the engine becomes: nobody else's.
    pub user: u32,
    /// Whether domains see the export's socket; else it is `engine.sock` in the run folder, for the
    /// same user alone.
    pub is_shared: bool,
}

impl Recipe {
    /// The export's socket.
    fn socket(&self) -> PathBuf {
        if self.is_shared { self.folder.join(SHARE).join(SOCKET) } else { self.folder.join(PRIVATE) }
    }

    /// Removes what an earlier engine listened at.
    fn sweep(&self) -> Result<(), StorageError> {
        [self.folder.join(MONITOR), self.socket()].iter().try_for_each(|path| remove(path))
    }
}

/// An engine that runs. It goes on when this is dropped.
#[derive(Debug)]
pub struct Engine {
    pid: u32,
    ended: OwnedFd,
    /// There where it is ours to wait for.
    child: Option<Child>,
    conversation: Conversation,
    format: Format,
}

impl Engine {
    /// Starts one; `place` puts its process where it belongs before it does anything.
    ///
    /// # Errors
    /// [`StorageError`]; then there is no process, and no socket.
    pub fn start(recipe: &Recipe, place: impl FnOnce(u32) -> io::Result<()>) -> Result<Self, StorageError> {
        let started = Self::try_start(recipe, place);
        if started.is_err() {
            // The error that made us undo it is the one to tell.
            let _swept = recipe.sweep();
        }
        started
    }

    fn try_start(recipe: &Recipe, place: impl FnOnce(u32) -> io::Result<()>) -> Result<Self, StorageError> {
        let image = process::open_image(&recipe.image, recipe.user)?;
        let share = recipe.folder.join(SHARE);
        fs::create_dir_all(&share).map_err(at("make", &share))?;
        recipe.sweep()?;
        let monitor = recipe.folder.join(MONITOR);
        let (socket, mode) = (recipe.socket(), if recipe.is_shared { 0o666 } else { 0o600 });
        let descriptors = vec![image.into(), listen(&monitor, 0o600)?, listen(&socket, mode)?];
        if !recipe.is_shared {
            let user = Some(recipe.user);
            std::os::unix::fs::chown(&socket, user, user).map_err(at("give away", &socket))?;
        }
        let job = Job {
            tool: ENGINE,
            package: "qemu-system-common",
            arguments: arguments(recipe),
            user: recipe.user,
            descriptors,
        };
        let mut child = process::start(&recipe.program, job, place)?;
        let pid = child.id();
        let begun = sys::process::pidfd_open(pid)
            .map_err(at("watch", &recipe.folder))
            .and_then(|ended| Ok((ended, Conversation::begin(&monitor)?)));
        let (ended, conversation) = match begun {
            Ok(begun) => begun,
            Err(error) => return Err(not_up(child, error)),
        };
        let stderr = child.stderr.take();
        let mut engine = Self { pid, ended, child: Some(child), conversation, format: recipe.format };
        match engine.check() {
            Ok(()) => Ok(engine),
            Err(error) => {
                engine.kill();
                let words = process::last_words(stderr);
                Err(StorageError::Ended { program: ENGINE, words: format!("{error}; {words}") })
            }
        }
    }

    /// Takes over one that an earlier process of ours started for this volume, with this process
    /// number.
    ///
    /// # Errors
    /// [`StorageError`]: it is not what it should be, or says nothing. It is to be ended then.
    pub fn adopt(recipe: &Recipe, pid: u32) -> Result<Self, StorageError> {
        let ended = sys::process::pidfd_open(pid).map_err(at("watch the engine of", &recipe.folder))?;
        let conversation = Conversation::begin(&recipe.folder.join(MONITOR))?;
        let mut engine = Self { pid, ended, child: None, conversation, format: recipe.format };
        engine.check()?;
        Ok(engine)
    }

    /// Its process number, for people.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Readable when the process has ended.
    #[must_use]
    pub fn ended(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    /// Asks for the facts of its volume.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn facts(&mut self) -> Result<Facts, StorageError> {
        let nodes = self.ask("to say what it has", Command::plain("query-named-block-nodes"))?;
        facts::of_nodes(&nodes, self.format)
    }

    fn check(&mut self) -> Result<(), StorageError> {
        self.facts()?;
        if self.is_exported()? {
            return Ok(());
        }
        Err(StorageError::NotThis("it exports something else".to_owned()))
    }

    /// Gives the volume another size. Its clients are cut off: they connect again, and see the new
    /// size.
    ///
    /// # Errors
    /// [`StorageError`]. Where the export did not come back either, [`Engine::check`] of the next
    /// one who adopts it says so: end it then.
    pub fn resize(&mut self, bytes: u64) -> Result<(), StorageError> {
        let end = json!({ "id": EXPORT, "mode": "hard" });
        self.conversation.ask("to end its export", Command::with("block-export-del", end), DISK_TIMEOUT)?;
        let size = json!({ "node-name": VOLUME, "size": bytes });
        let resized =
            self.conversation.ask("the new size", Command::with("block_resize", size), DISK_TIMEOUT);
        self.ask("to export the volume again", Command::with("block-export-add", export()))?;
        resized.map(drop)
    }

    fn is_exported(&mut self) -> Result<bool, StorageError> {
        let exports = self.ask("to say what it exports", Command::plain("query-block-exports"))?;
        Ok(facts::is_exported(&exports))
    }

    /// Remembers what the volume is like now. Clients go on meanwhile; what they have not flushed
    /// may be missing.
    ///
    /// # Errors
    /// [`StorageError`]: among others, that the format has none, or that there is one of this name.
    pub fn snapshot(&mut self, name: &str) -> Result<(), StorageError> {
        let known = self.facts()?.snapshots;
        if known.len() >= MAX_SNAPSHOTS {
            return Err(StorageError::TooManySnapshots(MAX_SNAPSHOTS));
        }
        let arguments = json!({ "device": VOLUME, "name": name });
        let command = Command::with("blockdev-snapshot-internal-sync", arguments);
        self.conversation.ask("a snapshot", command, DISK_TIMEOUT).map(drop)
    }

    /// Forgets a snapshot.
    ///
    /// # Errors
    /// [`StorageError`]: among others, that there is none of this name.
    pub fn forget(&mut self, name: &str) -> Result<(), StorageError> {
        let arguments = json!({ "device": VOLUME, "name": name });
        let command = Command::with("blockdev-snapshot-delete-internal-sync", arguments);
        self.conversation.ask("to forget a snapshot", command, DISK_TIMEOUT).map(drop)
    }

    /// Changes what clients get at most.
    ///
    /// # Errors
    /// [`StorageError`].
    pub fn limit(&mut self, limits: Limits) -> Result<(), StorageError> {
        let path = format!("/objects/{LIMITS}");
        let arguments = json!({ "path": path, "property": "limits", "value": throttle(limits) });
        self.ask("other limits", Command::with("qom-set", arguments)).map(drop)
    }

    fn ask(&mut self, what: &'static str, command: Command) -> Result<Value, StorageError> {
        self.conversation.ask(what, command, TIMEOUT)
    }

    /// Asks it to write what it holds and to end; kills it if it does not.
    pub fn stop(mut self) {
        let asked = self.ask("to end", Command::plain("quit"));
        if asked.is_err() || !matches!(process::awaited(&self.ended, DISK_TIMEOUT), Ok(true)) {
            self.kill();
        } else {
            self.reap();
        }
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) {
        // One that hangs in its disk is left there: nothing that hangs holds the caller up.
        if matches!(process::kill(&self.ended), Ok(true)) {
            self.reap();
        }
    }

    fn reap(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It has ended, so this does not wait.
            drop(child.wait());
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if matches!(process::awaited(&self.ended, Duration::ZERO), Ok(true)) {
            self.reap();
        }
    }
}

/// An engine that did not come up: what it said is the reason, if it said anything.
fn not_up(mut child: Child, error: StorageError) -> StorageError {
    drop(child.kill());
    let status = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    let words = process::last_words(child.stderr.take());
    StorageError::Ended { program: ENGINE, words: format!("{words} ({status}; {error})") }
}

/// Removes the sockets in a volume's run folder: nobody answers there any more.
///
/// # Errors
/// [`StorageError::File`].
pub fn sweep(folder: &Path) -> Result<(), StorageError> {
    [folder.join(MONITOR), folder.join(PRIVATE), folder.join(SHARE).join(SOCKET)]
        .iter()
        .try_for_each(|path| remove(path))
}

fn remove(path: &Path) -> Result<(), StorageError> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(at("remove", path)(cause)),
        _ => Ok(()),
    }
}

/// A socket of a volume at which clients that domains see connect; an old one is replaced.
///
/// # Errors
/// [`StorageError::File`].
pub fn listen_for_domains(folder: &Path) -> Result<OwnedFd, StorageError> {
    let share = folder.join(SHARE);
    fs::create_dir_all(&share).map_err(at("make", &share))?;
    let socket = share.join(SOCKET);
    remove(&socket)?;
    listen(&socket, 0o666)
}

fn listen(path: &Path, mode: u32) -> Result<OwnedFd, StorageError> {
    let listen = || -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    listen().map_err(at("listen at", path))
}

fn throttle(limits: Limits) -> Value {
    json!({ "bps-total": limits.bytes.unwrap_or(0), "iops-total": limits.operations.unwrap_or(0) })
}

fn export() -> Value {
    json!({ "type": "nbd", "id": EXPORT, "node-name": VOLUME, "name": EXPORT, "writable": true })
}

/// All arguments: the descriptors are the image, the monitor's socket and the export's. Nothing is
/// opened by a name that an image says.
fn arguments(recipe: &Recipe) -> Vec<String> {
    let file = json!({
        "driver": "file", "node-name": FILE, "filename": "/proc/self/fd/{0}", "discard": "unmap", "locking": "on",
    });
    let limited =
        json!({ "driver": "throttle", "node-name": LIMITED, "throttle-group": LIMITS, "file": FILE });
    let mut volume =
        json!({ "driver": recipe.format.word(), "node-name": VOLUME, "file": LIMITED, "discard": "unmap" });
    if recipe.format == Format::Qcow2 {
        volume["backing"] = Value::Null;
    }
    let limits = json!({ "qom-type": "throttle-group", "id": LIMITS, "limits": throttle(recipe.limits) });
    let pairs = [
        ("--chardev", "socket,id=monitor,fd={1},server=on,wait=off".to_owned()),
        ("--monitor", "chardev=monitor".to_owned()),
        ("--object", limits.to_string()),
        ("--blockdev", file.to_string()),
        ("--blockdev", limited.to_string()),
        ("--blockdev", volume.to_string()),
        ("--nbd-server", format!("addr.type=fd,addr.str={{2}},max-connections={MAX_CLIENTS}")),
        ("--export", export().to_string()),
    ];
    pairs.into_iter().flat_map(|(option, value)| [option.to_owned(), value]).collect()
}
