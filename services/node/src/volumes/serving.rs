//! The engine of one volume while somebody has it: found or started, watched, started again when it
//! has died.

use super::VOLUMES;
use super::book::{Book, Id, Record, engine_format};
use crate::base::{DISKS, watched};
use admin::{Code, Problem};
use domain::Limits;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use storage::{Engine, Recipe};
use tokio::io::Interest;
use tokio::task::JoinHandle;

/// Memory of an engine, the pages of its file included: its caches of metadata have 32 MiB at most,
/// and it needs some 30 MiB.
const MEMORY_BYTES: u64 = 256 << 20;
/// Threads of an engine: QEMU's pool has 64 at most.
const TASKS: u64 = 128;
/// Pause after an engine has died; it doubles up to [`PAUSE_MAX`] while they die soon. A machine's
/// disk waits meanwhile.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// An engine that has lived so long has not died soon.
const LIVED: Duration = Duration::from_secs(30);

/// The ground on which engines are started.
#[derive(Debug)]
pub(super) struct Ground {
    pub book: Book,
    /// The binary with the role.
    pub program: PathBuf,
    pub cgroups: domain::Cgroups,
    pub cgroup_name: String,
}

impl Ground {
    /// The cgroup of all engines.
    pub fn cgroup_of_all(&self) -> String {
        format!("{}/+{VOLUMES}", self.cgroup_name)
    }

    fn cgroup(&self, id: &Id) -> String {
        format!("{}/{}/{}", self.cgroup_of_all(), id.0, id.1)
    }

    fn recipe(&self, id: &Id, record: &Record) -> Recipe {
        Recipe {
            program: self.program.clone(),
            image: self.book.image(id, record.store),
            format: engine_format(record.format),
            limits: storage::Limits::default(),
            folder: self.book.run_folder(id),
            user: record.engine_user(id),
            is_shared: record.replica.is_none(),
        }
    }

    /// The engine that an earlier daemon started for this volume, if it is what it should be; else
    /// a new one. Takes its time.
    pub fn find_or_start(&self, id: &Id, record: &Record) -> Result<Engine, Problem> {
        let (cgroup, recipe) = (self.cgroup(id), self.recipe(id, record));
        if let [pid] = self.cgroups.processes(&cgroup).as_slice() {
            match Engine::adopt(&recipe, *pid) {
                Ok(engine) => {
                    tracing::info!(dc = id.0, volume = id.1, pid, "its engine is taken over");
                    return Ok(engine);
                }
                Err(error) => tracing::warn!(dc = id.0, volume = id.1, %error, "its engine is replaced"),
            }
        }
        self.cgroups.kill(&cgroup).map_err(|e| Problem::new(Code::Failed, e.to_string()))?;
        let limits = Limits { cpu: None, memory_bytes: Some(MEMORY_BYTES), pids: Some(TASKS) };
        let place = |pid| {
            self.cgroups.create(&cgroup).map_err(io::Error::other)?;
            self.cgroups.limit(&cgroup, &limits).map_err(io::Error::other)?;
            self.cgroups.join(&cgroup, pid).map_err(io::Error::other)
        };
        Engine::start(&recipe, place).map_err(|error| {
            Problem::new(Code::Failed, format!("the volume {}/{} can't be served: {error}", id.0, id.1))
        })
    }

    /// Has a volume without an engine be what it was.
    pub fn restore(&self, id: &Id, record: &Record, snapshot: &str) -> Result<(), Problem> {
        self.clear(id);
        let image = self.book.image(id, record.store);
        storage::restore(&self.program, &image, record.engine_user(id), snapshot)
            .map_err(|error| Problem::new(Code::Failed, error.to_string()))
    }

    /// Ends whatever still runs in the cgroup of an engine, and removes its sockets. The folders
    /// stay: domains see them.
    pub fn end(&self, id: &Id) {
        let cgroup = self.cgroup(id);
        let folder = self.book.run_folder(id);
        let cleared =
            self.cgroups.kill(&cgroup).and_then(|_| self.cgroups.remove(&cgroup)).map_err(|e| e.to_string());
        let cleared = cleared.and_then(|_| storage::sweep(&folder).map_err(|e| e.to_string()));
        if let Err(error) = cleared {
            tracing::warn!(dc = id.0, volume = id.1, error, "what its engine left can't be removed");
        }
    }

    /// As [`Ground::end`], with the folders. The volume's data stay.
    pub fn clear(&self, id: &Id) {
        self.end(id);
        let folder = self.book.run_folder(id);
        for folder in [folder.join(storage::SHARE), folder.clone()]
            .iter()
            .chain(folder.parent().map(PathBuf::from).as_ref())
        {
            // Not empty, such as with a volume in memory: it stays.
            let _kept = std::fs::remove_dir(folder);
        }
        self.cgroups.remove_if_empty(&format!("{}/{}", self.cgroup_of_all(), id.0));
        self.cgroups.remove_if_empty(&self.cgroup_of_all());
    }
}

/// An engine, or the room for the next one.
#[derive(Debug, Default)]
struct Room {
    engine: Option<Engine>,
    /// Nobody starts another one.
    over: bool,
}

/// A volume that somebody has.
#[derive(Debug)]
pub(super) struct Serving {
    pub domain: String,
    room: Arc<Mutex<Room>>,
    restarts: Arc<AtomicU64>,
    watch: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn lock(room: &Mutex<Room>) -> MutexGuard<'_, Room> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Serving {
    /// Has an engine watched for a domain.
    pub fn begin(ground: &Arc<Ground>, id: &Id, record: &Record, domain: &str, engine: Engine) -> Self {
        let room = Arc::new(Mutex::new(Room { engine: Some(engine), over: false }));
        let restarts = Arc::new(AtomicU64::new(0));
        let task = Watch {
            ground: Arc::clone(ground),
            id: id.clone(),
            record: record.clone(),
            room: Arc::clone(&room),
            restarts: Arc::clone(&restarts),
        };
        Self { domain: domain.to_owned(), room, restarts, watch: tokio::spawn(task.run()) }
    }

    /// Works with the engine, away from the loop. `None`: there is none now; the next one is being
    /// started.
    pub async fn with_engine<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> T + Send + 'static,
    ) -> Result<Option<T>, String> {
        let room = Arc::clone(&self.room);
        DISKS.run(move || lock(&room).engine.as_mut().map(work)).await
    }

    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Ends the engine, as it should be or by force, and waits until it is gone.
    pub async fn end(self) {
        let room = Arc::clone(&self.room);
        drop(self);
        let end = move || {
            // Whoever starts one at this moment has the lock.
            let mut room = lock(&room);
            room.over = true;
            if let Some(engine) = room.engine.take() {
                engine.stop();
            }
        };
        if let Err(error) = DISKS.run(end).await {
            tracing::error!(error, "an engine can't be ended");
        }
    }
}

/// The task that starts engines again.
struct Watch {
    ground: Arc<Ground>,
    id: Id,
    record: Record,
    room: Arc<Mutex<Room>>,
    restarts: Arc<AtomicU64>,
}

impl Watch {
    async fn run(self) {
        let mut pause = PAUSE_MIN;
        loop {
            let begun = Instant::now();
            self.died().await;
            pause = if begun.elapsed() > LIVED { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
            tracing::warn!(
                dc = self.id.0,
                volume = self.id.1,
                ?pause,
                "its engine has ended; the next one is started"
            );
            // tidy(sleep): a pause is what is wanted here: an engine that dies at once must not be
            // started in a loop.
            tokio::time::sleep(pause).await;
            self.restarts.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = self.start().await {
                tracing::error!(dc = self.id.0, volume = self.id.1, error, "it has no engine; trying again");
            }
        }
    }

    /// Comes back when there is no engine, or it has ended.
    async fn died(&self) {
        let ended: Option<OwnedFd> = {
            let room = Arc::clone(&self.room);
            let ended = move || {
                lock(&room).engine.as_ref().and_then(|engine| engine.ended().try_clone_to_owned().ok())
            };
            DISKS.run(ended).await.ok().flatten()
        };
        let Some(ended) = ended else { return };
        match watched(ended, Interest::READABLE) {
            Ok(ended) => drop(ended.readable().await),
            Err(error) => tracing::error!(%error, "the end of an engine can't be awaited"),
        }
    }

    async fn start(&self) -> Result<(), String> {
        let (ground, id, record, room) =
            (Arc::clone(&self.ground), self.id.clone(), self.record.clone(), Arc::clone(&self.room));
        let start = move || {
            let mut room = lock(&room);
            // The old one is reaped before its successor is looked for.
            room.engine = None;
            if !room.over {
                room.engine = Some(ground.find_or_start(&id, &record)?);
            }
            Ok::<(), Problem>(())
        };
        DISKS.run(start).await?.map_err(|problem| problem.to_string())
    }
}
