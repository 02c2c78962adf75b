//! The records of volumes, and the places of their files.

use super::VOLUMES;
use crate::base::RegistryDebug;
use admin::place::Place;
use admin::{Code, Problem};
use registry::{Expected, RegistryError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use topology::{DiskFormat, VolumeStore};

/// Prefix of the registry's keys for volumes.
const PREFIX: &str = "volume/";
/// The kind of file system that is in memory (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The first user that an engine may become, and how many there are: below those of frontends, and
/// like them nobody's.
const FIRST_USER: u32 = 0x6000_0000;
/// See [`FIRST_USER`].
const USERS: u32 = 0x0fff_0000;

/// A volume's distributed container, and its name.
pub(super) type Id = (String, String);

/// The registry's record of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// How its bytes lie in its file.
    pub format: DiskFormat,
    /// Where its file is.
    pub store: VolumeStore,
    /// Bytes that its domain sees.
    pub bytes: u64,
    /// Whether its file is made; where it is not, somebody died while it was made or removed.
    pub made: bool,
    /// Its snapshots, oldest first, as its engine said last.
    #[serde(default)]
    pub snapshots: Vec<String>,
    /// Of which replicated volume of the cluster it is a replica; none: it is one by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<String>,
    /// The user of its engine; none: the volume is of an earlier version, and its name says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<u32>,
}

impl Record {
    /// A volume that is to be made, by itself.
    pub fn new(format: DiskFormat, store: VolumeStore, bytes: u64) -> Self {
        Self { format, store, bytes, made: false, snapshots: Vec::new(), replica: None, user: None }
    }

    /// Returns the user of the engine: it owns nothing but this volume, and nothing else runs as
    /// this user.
    pub fn engine_user(&self, id: &Id) -> u32 {
        self.user.unwrap_or_else(|| FIRST_USER + hash(id) % USERS)
    }
}

/// FNV-1a of a volume's name. An author of topologies could choose a name with the hash of
/// another's, so it names nobody any more, but the users of volumes that there were before.
fn hash(id: &Id) -> u32 {
    let bytes = id.0.bytes().chain([b'/']).chain(id.1.bytes());
    bytes.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The records and files of volumes.
#[derive(Debug)]
pub(super) struct Book {
    place: Place,
    registry: Arc<dyn RegistryDebug>,
    /// Held while a user is chosen and written down.
    choosing: Mutex<()>,
}

pub(super) fn engine_format(format: DiskFormat) -> storage::Format {
    match format {
        DiskFormat::Raw => storage::Format::Raw,
        DiskFormat::Qcow2 => storage::Format::Qcow2,
    }
}

fn failed(error: RegistryError) -> Problem {
    Problem::new(Code::Failed, format!("what is known of volumes can't be read or written: {error}"))
}

impl Book {
    pub fn new(place: Place, registry: Arc<dyn RegistryDebug>) -> Self {
        Self { place, registry, choosing: Mutex::default() }
    }

    /// Returns the records of all volumes. One that can't be read is an error of its own: nothing
    /// is made in its place.
    pub fn all(&self) -> Result<Vec<(Id, Record)>, Problem> {
        let entries = self.registry.list(PREFIX).map_err(failed)?;
        let mut all = Vec::new();
        for (key, entry) in entries {
            let id = key.strip_prefix(PREFIX).and_then(|name| name.split_once('/'));
            let Some((dc, name)) = id else { continue };
            all.push(((dc.to_owned(), name.to_owned()), parsed(&key, &entry.value)?));
        }
        Ok(all)
    }

    /// Returns the record of one volume.
    pub fn get(&self, id: &Id) -> Result<Option<Record>, Problem> {
        let key = key(id);
        let entry = self.registry.get(&key).map_err(failed)?;
        entry.map(|entry| parsed(&key, &entry.value)).transpose()
    }

    /// Writes it down, durably.
    pub fn put(&self, id: &Id, record: &Record) -> Result<(), Problem> {
        let value = serde_json::to_vec(record).map_err(|e| Problem::new(Code::Failed, e.to_string()))?;
        self.registry.put(&key(id), &value, Expected::Anything).map(drop).map_err(failed)
    }

    /// The file with its bytes.
    pub fn image(&self, id: &Id, store: VolumeStore) -> PathBuf {
        let folder = match store {
            VolumeStore::File => self.place.state_dir.join(VOLUMES).join(&id.0).join(&id.1),
            VolumeStore::Memory => self.run_folder(id),
        };
        folder.join("image")
    }

    /// The node's run directory.
    pub fn run_dir(&self) -> &std::path::Path {
        &self.place.run_dir
    }

    /// The folder of its sockets.
    pub fn run_folder(&self, id: &Id) -> PathBuf {
        super::run_folder(&self.place.run_dir, &id.0, &id.1)
    }

    /// Makes an empty volume: first the record says that it is being made, then there is a file,
    /// then the record says so.
    pub fn make(&self, id: &Id, record: &Record) -> Result<Record, Problem> {
        let image = self.image(id, record.store);
        let begun = Record { made: false, ..record.clone() };
        match self.get(id)? {
            Some(known) if known.made => {
                return Err(Problem::new(
                    Code::Taken,
                    format!("there is a volume {}/{} already", id.0, id.1),
                ));
            }
            // What somebody left who died: nobody has ever had it, or it was removed.
            Some(known) => remove_file(&self.image(id, known.store))?,
            None if image.exists() => {
                let message = format!("{} is there, and no volume that this node knows", image.display());
                return Err(Problem::new(Code::Failed, message).help("move it away; it is not overwritten"));
            }
            None => {}
        }
        let folder = image.parent().unwrap_or(&self.place.state_dir);
        fs::create_dir_all(folder)
            .map_err(|e| Problem::new(Code::Failed, format!("can't make {}: {e}", folder.display())))?;
        let possible = if record.store == VolumeStore::Memory { self.must_be_in_memory() } else { Ok(()) };
        let has_room = || storage::check_size(folder, record.bytes);
        possible
            .and_then(|()| has_room().map_err(|e| Problem::new(Code::Failed, e.to_string())))
            .inspect_err(|_| remove_folders(&image))?;
        let begun = self.begin(id, begun)?;
        let made = storage::create(&image, engine_format(record.format), record.bytes);
        if let Err(error) = made {
            self.forget(id, record.store)?;
            return Err(Problem::new(Code::Failed, error.to_string()));
        }
        let made = Record { made: true, ..begun };
        self.put(id, &made)?;
        Ok(made)
    }

    /// Writes down that it is being made, and for whom: of the users that no volume has, the one
    /// with the smallest number.
    fn begin(&self, id: &Id, record: Record) -> Result<Record, Problem> {
        let _alone = self.choosing.lock().unwrap_or_else(PoisonError::into_inner);
        let others = self.all()?.into_iter().filter(|(other, _)| other != id);
        let taken: BTreeSet<u32> = others.map(|(other, record)| record.engine_user(&other)).collect();
        let user = (FIRST_USER..FIRST_USER + USERS).find(|user| !taken.contains(user));
        let begun = Record { user, ..record };
        self.put(id, &begun)?;
        Ok(begun)
    }

    /// A volume of memory that no longer has its file was lost with the last boot; one of a file is
    /// in trouble.
    pub fn check_there(&self, id: &Id, record: &Record) -> Result<(), Problem> {
        let image = self.image(id, record.store);
        if image.exists() {
            return Ok(());
        }
        if record.store == VolumeStore::Memory {
            self.put(id, &Record { made: false, snapshots: Vec::new(), ..record.clone() })?;
            return self.make(id, record).map(drop);
        }
        Err(Problem::new(
            Code::Failed,
            format!("the volume {}/{} has lost its file {}", id.0, id.1, image.display()),
        )
        .help("bring the file back; or give the volume up: `tombolo volume rm`"))
    }

    fn must_be_in_memory(&self) -> Result<(), Problem> {
        let run = &self.place.run_dir;
        let found = rustix::fs::statfs(run)
            .map_err(|e| Problem::new(Code::Failed, format!("can't look at {}: {e}", run.display())))?;
        if u64::try_from(found.f_type) == Ok(TMPFS_MAGIC) {
            return Ok(());
        }
        let message = format!("the run directory {} is not in memory", run.display());
        Err(Problem::new(Code::Failed, message).help("take store = \"file\", or a run directory on a tmpfs"))
    }

    /// Removes a volume and all that it holds. The record goes last: whoever dies meanwhile has a
    /// successor that knows.
    pub fn remove(&self, id: &Id, record: &Record) -> Result<(), Problem> {
        self.put(id, &Record { made: false, ..record.clone() })?;
        self.forget(id, record.store)
    }

    fn forget(&self, id: &Id, store: VolumeStore) -> Result<(), Problem> {
        let image = self.image(id, store);
        remove_file(&image)?;
        remove_folders(&image);
        self.registry.delete(&key(id), Expected::Anything).map(drop).map_err(failed)
    }
}

/// Removes the folders of a file that is not there: its own, and that of its distributed container.
fn remove_folders(image: &std::path::Path) {
    for folder in image.ancestors().skip(1).take(2) {
        // Not empty: others are in there.
        let _kept = fs::remove_dir(folder);
    }
}

fn key(id: &Id) -> String {
    format!("{PREFIX}{}/{}", id.0, id.1)
}

fn parsed(key: &str, value: &[u8]) -> Result<Record, Problem> {
    serde_json::from_slice(value).map_err(|why| {
        Problem::new(Code::Failed, format!("the registry's {key} is not understood: {why}"))
            .help("a later version may have written it; it is left alone")
    })
}

fn remove_file(path: &std::path::Path) -> Result<(), Problem> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Problem::new(Code::Failed, format!("can't remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> (Book, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { run_dir: folder.path().join("run"), state_dir: folder.path().join("state") };
        fs::create_dir_all(&place.run_dir).unwrap();
        let registry = registry::Embedded::open(&folder.path().join("registry")).unwrap();
        (Book::new(place, Arc::new(registry)), folder)
    }

    fn record() -> Record {
        Record::new(DiskFormat::Raw, VolumeStore::File, 1 << 20)
    }

    fn id() -> Id {
        ("shop".to_owned(), "data".to_owned())
    }

    #[test]
    fn a_volume_is_made_once_kept_and_removed() {
        let (book, _folder) = book();
        let made = book.make(&id(), &record()).unwrap();
        assert!(made.made);
        let image = book.image(&id(), VolumeStore::File);
        assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20);
        assert_eq!(book.make(&id(), &record()).unwrap_err().code, Code::Taken);
        assert_eq!(book.all().unwrap(), [(id(), made.clone())]);
        book.remove(&id(), &made).unwrap();
        assert_eq!((book.get(&id()).unwrap(), image.exists()), (None, false));
    }

    #[test]
    fn what_a_death_left_half_made_or_half_removed_is_made_anew_and_a_strangers_file_is_not_touched() {
        let (book, _folder) = book();
        let image = book.image(&id(), VolumeStore::File);
        fs::create_dir_all(image.parent().unwrap()).unwrap();
        fs::write(&image, "somebody's").unwrap();
        assert!(book.make(&id(), &record()).unwrap_err().message.contains("no volume that this node knows"));
        assert_eq!(fs::read(&image).unwrap(), b"somebody's");
        book.put(&id(), &record()).unwrap();
        assert!(book.make(&id(), &record()).unwrap().made);
        assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_volume_that_lost_its_file_is_told_of_and_not_made_again() {
        let (book, _folder) = book();
        let made = book.make(&id(), &record()).unwrap();
        book.check_there(&id(), &made).unwrap();
        fs::remove_file(book.image(&id(), VolumeStore::File)).unwrap();
        assert!(book.check_there(&id(), &made).unwrap_err().message.contains("has lost its file"));
        assert!(!book.image(&id(), VolumeStore::File).exists());
    }

    /// The user was a hash of the name once, and these two have one hash.
    #[test]
    fn engines_of_two_volumes_are_two_users_whatever_their_names() {
        let (book, _folder) = book();
        let of_before = Record { made: true, user: None, ..record() };
        book.put(&id(), &of_before).unwrap();
        let ids = ["v48872", "v586020"].map(|name| ("shop".to_owned(), name.to_owned()));
        assert_eq!(hash(&ids[0]), hash(&ids[1]));
        let users = ids.each_ref().map(|id| book.make(id, &record()).unwrap().engine_user(id));
        let all = BTreeSet::from([users[0], users[1], of_before.engine_user(&id())]);
        assert_eq!(all.len(), 3, "{users:x?}");
        // What is known of one says the same to the next daemon, and one that is gone leaves its
        // number to others.
        let (_, first) = book.all().unwrap().into_iter().find(|(id, _)| *id == ids[0]).unwrap();
        assert_eq!(first.engine_user(&ids[0]), users[0]);
        book.remove(&ids[0], &first).unwrap();
        let next = ("shop".to_owned(), "next".to_owned());
        assert_eq!(book.make(&next, &record()).unwrap().engine_user(&next), users[0]);
    }

    #[test]
    fn a_failure_leaves_no_volume() {
        let (book, _folder) = book();
        let huge = Record { bytes: storage::MAX_BYTES, ..record() };
        assert!(book.make(&id(), &huge).is_err());
        assert_eq!(book.get(&id()).unwrap(), None);
        assert!(!book.place.state_dir.join(VOLUMES).join("shop").exists());
    }
}
