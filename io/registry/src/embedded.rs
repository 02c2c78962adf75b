//! The registry of a single node: one redb file. Each put and delete is one durable transaction.

use crate::watch::Watchers;
use crate::{
    Change, Entry, Expected, Registry, RegistryError, Watch, check_all, check_guarded, check_key, check_value,
};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use std::fs::{self, File};
use std::io;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

/// Format of the file; raised when an older version could not read it.
const FORMAT: u64 = 1;
/// key → (revision, value).
const ENTRIES: TableDefinition<&str, (u64, &[u8])> = TableDefinition::new("entries");
/// `format` and `revision`.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

/// See the module.
#[derive(Debug)]
pub struct Embedded {
    path: PathBuf,
    /// `None` only after it could not be opened again.
    database: RwLock<Option<Database>>,
    watchers: Watchers,
    /// Held from before a change is made until it is told, so that watchers hear changes in their
    /// order.
    order: Mutex<()>,
}

impl Embedded {
    /// Opens the registry in the file `path`, or makes a new one. One process at a time can have it
    /// open.
    ///
    /// # Errors
    /// [`RegistryError::Open`]: no permission, no space, or open elsewhere; [`RegistryError::Damaged`]: not a registry (any more);
    /// [`RegistryError::Format`]: of a version that this one does not know.
    pub fn open(path: &Path) -> Result<Self, RegistryError> {
        let at = |cause: redb::Error| of_open(path, cause);
        let file = |cause: io::Error| at(redb::Error::Io(cause));
        let database = match fs::metadata(path) {
            // What we made is never empty: it is made under another name, and renamed when it is
            // whole.
            Ok(metadata) if metadata.is_file() && metadata.len() == 0 => {
                return Err(damaged(path, "it is empty".into()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_new(path)?;
                open_whole(path)?
            }
            Ok(_) => open_whole(path)?,
            Err(error) => return Err(file(error)),
        };
        let found = prepare(&database).map_err(at)?;
        if found != FORMAT {
            return Err(RegistryError::Format { path: path.to_owned(), found, known: FORMAT });
        }
        let database = RwLock::new(Some(database));
        Ok(Self { path: path.to_owned(), database, watchers: Watchers::default(), order: Mutex::default() })
    }

    fn database(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the file again if an earlier write failed (a full disk, say): redb does nothing more
    /// until then.
    fn heal(&self) -> Result<(), RegistryError> {
        if let Some(database) = &*self.database() {
            match database.begin_write().map_err(redb::Error::from) {
                Ok(transaction) => return Ok(transaction.abort().map_err(redb::Error::from)?),
                Err(redb::Error::PreviousIo) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut database = self.database.write().unwrap_or_else(PoisonError::into_inner);
        // The old one first: a file is open once.
        drop(database.take());
        *database = Some(open_whole(&self.path)?);
        Ok(())
    }

    fn change<T>(
        &self,
        key: &str,
        expected: Expected,
        apply: impl FnOnce(&WriteTransaction, u64) -> Result<(T, Option<Change>), redb::Error>,
    ) -> Result<T, RegistryError> {
        check_key(key)?;
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.heal()?;
        let database = self.database();
        let transaction = opened(&database)?.begin_write().map_err(redb::Error::from)?;
        let found = revision_of(&transaction, key)?;
        if !expected.meets(found) {
            return Err(RegistryError::Conflict { key: key.to_owned(), expected, found });
        }
        let revision = next_revision(&transaction)?;
        let (result, change) = apply(&transaction, revision)?;
        transaction.commit().map_err(redb::Error::from)?;
        if let Some(change) = change {
            self.watchers.tell(&change);
        }
        Ok(result)
    }
}

fn opened(database: &Option<Database>) -> Result<&Database, RegistryError> {
    database.as_ref().ok_or(RegistryError::Storage(redb::Error::PreviousIo))
}

/// Makes a registry that is there either whole or not at all, whatever happens meanwhile.
fn make_new(path: &Path) -> Result<(), RegistryError> {
    let at = |cause: redb::Error| RegistryError::Open { path: path.to_owned(), cause };
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(redb::Error::Io(error))),
        _ => {}
    }
    let made = Database::create(&new).map_err(redb::Error::from).and_then(|database| prepare(&database));
    let made = made.and_then(|_| Ok(fs::rename(&new, path)?)).and_then(|()| match path.parent() {
        // So that the name, too, survives a power cut.
        Some(folder) => Ok(File::open(folder)?.sync_all()?),
        None => Ok(()),
    });
    made.map_err(|cause| {
        // Half a file helps nobody, and where the disk is full it is in the way.
        let _gone_already = fs::remove_file(&new);
        at(cause)
    })
}

/// Opens a file that is there, and reads all of it once: damage is to be known before anything is
/// decided.
fn open_whole(path: &Path) -> Result<Database, RegistryError> {
    // redb panics at some kinds of damage. Nothing of what it was about is used afterwards.
    let opened = panic::catch_unwind(|| -> Result<Database, redb::Error> {
        let database = Database::open(path)?;
        read_all(&database)?;
        Ok(database)
    });
    match opened {
        Ok(opened) => opened.map_err(|cause| of_open(path, cause)),
        Err(_) => Err(damaged(path, "what it says of itself makes no sense".into())),
    }
}

fn read_all(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_read()?;
    let entries = match transaction.open_table(ENTRIES) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
        other => other?,
    };
    for item in entries.iter()? {
        let (key, value) = item?;
        // Text that is none panics here.
        let (_, _) = (key.value().len(), value.value().1.len());
    }
    for item in transaction.open_table(NUMBERS)?.iter()? {
        let (name, number) = item?;
        let (_, _) = (name.value().len(), number.value());
    }
    Ok(())
}

fn damaged(path: &Path, what: String) -> RegistryError {
    RegistryError::Damaged { path: path.to_owned(), what }
}

/// Damage, or something that has to do with the machine.
fn of_open(path: &Path, cause: redb::Error) -> RegistryError {
    match cause {
        redb::Error::Corrupted(what) => damaged(path, what),
        redb::Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            damaged(path, error.to_string())
        }
        cause => RegistryError::Open { path: path.to_owned(), cause },
    }
}

/// Makes the tables of a new file; returns the file's format.
fn prepare(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let format = {
        transaction.open_table(ENTRIES)?;
        let mut numbers = transaction.open_table(NUMBERS)?;
        let format = numbers.get("format")?.map(|guard| guard.value());
        match format {
            Some(format) => format,
            None => {
                numbers.insert("format", FORMAT)?;
                FORMAT
            }
        }
    };
    transaction.commit()?;
    Ok(format)
}

fn revision_of(transaction: &WriteTransaction, key: &str) -> Result<Option<u64>, redb::Error> {
    let entries = transaction.open_table(ENTRIES)?;
    let revision = entries.get(key)?.map(|guard| guard.value().0);
    Ok(revision)
}

fn next_revision(transaction: &WriteTransaction) -> Result<u64, redb::Error> {
    let mut numbers = transaction.open_table(NUMBERS)?;
    let revision = numbers.get("revision")?.map_or(0, |guard| guard.value()) + 1;
    numbers.insert("revision", revision)?;
    Ok(revision)
}

/// Writes all of these, at one revision; those that changed anything.
fn write_all(
    transaction: &WriteTransaction,
    changes: &[(String, Option<Vec<u8>>)],
) -> Result<(u64, Vec<Change>), redb::Error> {
    let revision = next_revision(transaction)?;
    let mut entries = transaction.open_table(ENTRIES)?;
    let mut made = Vec::new();
    for (key, value) in changes {
        let was = match value {
            Some(value) => {
                entries.insert(key.as_str(), (revision, value.as_slice()))?;
                true
            }
            None => entries.remove(key.as_str())?.is_some(),
        };
        if was {
            made.push(Change { key: key.clone(), revision, value: value.clone() });
        }
    }
    Ok((revision, made))
}

impl Registry for Embedded {
    fn get(&self, key: &str) -> Result<Option<Entry>, RegistryError> {
        check_key(key)?;
        let database = self.database();
        let transaction = opened(&database)?.begin_read().map_err(redb::Error::from)?;
        let entries = transaction.open_table(ENTRIES).map_err(redb::Error::from)?;
        let guard = entries.get(key).map_err(redb::Error::from)?;
        Ok(guard.map(|guard| entry(guard.value())))
    }

    fn list(&self, prefix: &str) -> Result<Vec<(String, Entry)>, RegistryError> {
        let database = self.database();
        let transaction = opened(&database)?.begin_read().map_err(redb::Error::from)?;
        let entries = transaction.open_table(ENTRIES).map_err(redb::Error::from)?;
        let mut found = Vec::new();
        for item in entries.range(prefix..).map_err(redb::Error::from)? {
            let (key, value) = item.map_err(redb::Error::from)?;
            if !key.value().starts_with(prefix) {
                break;
            }
            found.push((key.value().to_owned(), entry(value.value())));
        }
        Ok(found)
    }

    fn put(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError> {
        check_value(key, value)?;
        self.change(key, expected, |transaction, revision| {
            transaction.open_table(ENTRIES)?.insert(key, (revision, value))?;
            Ok((revision, Some(Change { key: key.to_owned(), revision, value: Some(value.to_vec()) })))
        })
    }

    fn delete(&self, key: &str, expected: Expected) -> Result<bool, RegistryError> {
        self.change(key, expected, |transaction, revision| {
            let was = transaction.open_table(ENTRIES)?.remove(key)?.is_some();
            Ok((was, was.then(|| Change { key: key.to_owned(), revision, value: None })))
        })
    }

    fn write(&self, changes: &[(String, Option<Vec<u8>>)]) -> Result<(), RegistryError> {
        check_all(changes)?;
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.heal()?;
        let database = self.database();
        let transaction = opened(&database)?.begin_write().map_err(redb::Error::from)?;
        let (_, made) = write_all(&transaction, changes)?;
        if made.is_empty() {
            // Nothing is to be synced for what is as it was.
            return Ok(transaction.abort().map_err(redb::Error::from)?);
        }
        transaction.commit().map_err(redb::Error::from)?;
        made.iter().for_each(|change| self.watchers.tell(change));
        Ok(())
    }

    fn write_if(
        &self,
        guards: &[(&str, Expected)],
        changes: &[(String, Option<Vec<u8>>)],
    ) -> Result<u64, RegistryError> {
        check_guarded(guards, changes)?;
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.heal()?;
        let database = self.database();
        let transaction = opened(&database)?.begin_write().map_err(redb::Error::from)?;
        for &(guard, expected) in guards {
            let found = revision_of(&transaction, guard)?;
            if !expected.meets(found) {
                return Err(RegistryError::Conflict { key: guard.to_owned(), expected, found });
            }
        }
        let (revision, made) = write_all(&transaction, changes)?;
        transaction.commit().map_err(redb::Error::from)?;
        made.iter().for_each(|change| self.watchers.tell(change));
        Ok(revision)
    }

    fn watch(&self, prefix: &str) -> Result<Watch, RegistryError> {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(self.watchers.add(prefix))
    }
}

fn entry((revision, value): (u64, &[u8])) -> Entry {
    Entry { value: value.to_vec(), revision }
}
