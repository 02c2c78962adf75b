//! Keys, and leases of keys.

use super::{Sync, asked, named, number};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use wire::coordination::MAX_VALUE_BYTES;

/// The folder of keys.
const KEYS: &str = "kv";

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The bytes.
    pub value: Vec<u8>,
    /// Grows with each change of anything of the service; [`Sync::swap`] takes it.
    pub revision: u64,
}

/// A key of a listing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Its name, as [`Sync::get`] takes it.
    pub name: String,
    /// Its revision.
    pub revision: u64,
    /// Bytes of its value.
    pub bytes: u64,
}

impl Sync {
    /// The value of a key and its revision; `None`: there is none.
    ///
    /// # Errors
    /// The service's.
    pub fn get(&self, key: &str) -> io::Result<Option<Entry>> {
        let mut file = match File::open(self.path(&named(KEYS, key)?)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut value = vec![0; MAX_VALUE_BYTES];
        let length = file.read(&mut value)?;
        value.truncate(length);
        Ok(Some(Entry { value, revision: sys::key::revision(&file)? }))
    }

    /// Has a key this value, whatever it had. Folders above it are made. Returns the new revision.
    ///
    /// A new key is there at once with its value where that is text without line ends; else it is
    /// empty for a moment.
    ///
    /// # Errors
    /// The service's; `EFBIG`: it is longer than 32 KiB.
    pub fn put(&self, key: &str, value: &[u8]) -> io::Result<u64> {
        let path = self.for_value(key, value)?;
        self.make_folders(&path)?;
        match line(value) {
            Some(text) => number(&self.ask(format!("put {path} {text}").as_bytes())?),
            None => self.write(OpenOptions::new().read(true).write(true).create(true), &path, None, value),
        }
    }

    /// Has a key this value if it has that revision (0: if there is none). Returns the new one.
    ///
    /// # Errors
    /// `ESTALE`, or `EEXIST` for revision 0: somebody was faster. Else as [`Sync::put`].
    pub fn swap(&self, key: &str, revision: u64, value: &[u8]) -> io::Result<u64> {
        let path = self.for_value(key, value)?;
        if revision == 0 {
            self.make_folders(&path)?;
        }
        if let Some(text) = line(value) {
            return number(&self.ask(format!("cas {path} {revision} {text}").as_bytes())?);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(revision == 0);
        let expected = (revision != 0).then_some(revision);
        self.write(&options, &path, expected, value).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => rustix::io::Errno::STALE.into(),
            _ => error,
        })
    }

    /// Removes a key, if it has that revision (`ESTALE`). Returns whether there was one.
    ///
    /// # Errors
    /// The service's.
    pub fn remove(&self, key: &str, revision: Option<u64>) -> io::Result<bool> {
        let condition = revision.map_or_else(String::new, |revision| format!(" {revision}"));
        match self.ask(format!("rm {}{condition}", named(KEYS, key)?).as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// All keys that begin so, in the order of their names.
    ///
    /// # Errors
    /// The service's.
    pub fn keys(&self, prefix: &str) -> io::Result<Vec<Key>> {
        let below = if prefix.is_empty() { format!("{KEYS}/") } else { named(KEYS, prefix)? };
        let answer = self.ask(format!("ls {below}").as_bytes())?;
        let mut keys: Vec<Key> = String::from_utf8_lossy(&answer).lines().filter_map(listed).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// For keys that go when this does, or the process.
    ///
    /// # Errors
    /// The service's.
    pub fn lease(&self) -> io::Result<Lease<'_>> {
        let ctl = OpenOptions::new().read(true).write(true).open(self.path("ctl"))?;
        Ok(Lease { sync: self, ctl })
    }

    fn for_value(&self, key: &str, value: &[u8]) -> io::Result<String> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(rustix::io::Errno::FBIG.into());
        }
        named(KEYS, key)
    }

    fn make_folders(&self, path: &str) -> io::Result<()> {
        self.path(path).parent().map_or(Ok(()), fs::create_dir_all)
    }

    fn write(
        &self,
        options: &OpenOptions,
        path: &str,
        expected: Option<u64>,
        value: &[u8],
    ) -> io::Result<u64> {
        let file = options.open(self.path(path))?;
        if let Some(revision) = expected {
            sys::key::expect(&file, revision)?;
        }
        // One write is one value.
        let written = file.write_at(value, 0)?;
        if written < value.len() {
            return Err(rustix::io::Errno::FBIG.into());
        }
        sys::key::revision(&file)
    }
}

/// Keys that go with this: a holder that is not there any more has none.
#[derive(Debug)]
pub struct Lease<'s> {
    sync: &'s Sync,
    ctl: File,
}

impl Lease<'_> {
    /// Makes a key, which must not be there (`EEXIST`), with a text without line ends as its value.
    /// Returns its revision.
    ///
    /// # Errors
    /// The service's; [`io::ErrorKind::InvalidInput`]: that is no such text.
    pub fn put(&mut self, key: &str, value: &str) -> io::Result<u64> {
        let path = named(KEYS, key)?;
        if line(value.as_bytes()).is_none() {
            let why = "a value of a lease is text without line ends";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.sync.make_folders(&path)?;
        number(&asked(&mut self.ctl, format!("lease {path} {value}").as_bytes())?)
    }
}

/// The value as the end of a line to `ctl`, if it can be.
fn line(value: &[u8]) -> Option<&str> {
    str::from_utf8(value).ok().filter(|text| !text.contains(['\n', '\0']))
}

/// A line of a listing: revision, bytes, path.
fn listed(line: &str) -> Option<Key> {
    let (revision, rest) = line.split_once(' ')?;
    let (bytes, path) = rest.split_once(' ')?;
    let name = path.strip_prefix("kv/").filter(|name| !name.is_empty() && !name.ends_with('/'))?;
    Some(Key { name: name.to_owned(), revision: revision.parse().ok()?, bytes: bytes.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_listing_are_read_and_nonsense_is_not() {
        let key = Key { name: "config/colour".into(), revision: 7, bytes: 5 };
        assert_eq!(listed("7 5 kv/config/colour"), Some(key));
        for none in ["9 now", "7 5 kv/config/", "x 5 kv/a", "7 5 locks/a", "7 5 kv/", ""] {
            assert_eq!(listed(none), None, "{none}");
        }
        assert_eq!(line(b"text"), Some("text"));
        assert_eq!((line(b"two\nlines"), line(b"\xff"), line(b"\0")), (None, None, None));
    }
}
