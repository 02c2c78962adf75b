//! The values of secrets in the state directory: `secrets/DC/NAME/REVISION-ID`, which only root
//! reads.

use super::{Entry, Place};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use topology::bounds::SECRET_BYTES_MAX;

/// A value that nobody names is about to be named; after this time it was given up.
const UNNAMED: Duration = Duration::from_secs(600);
/// Values of one secret here: the one that counts, and those that are about to.
const VALUES_MAX: usize = 8;
/// Secrets whose values are here, whoever gave them: those of the registry, and as many that were
/// removed or are about to be there.
const FOLDERS_MAX: usize = 2 * super::SECRETS_MAX;
/// A value that is being written. Such a file that is there before is a dead daemon's.
const NEW: &str = ".new";

/// The id of a value: 32 hexadecimal digits of chance. It tells nothing about the value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Id(String);

impl Id {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (text.len() == 32 && is_hex).then(|| Self(text.to_owned()))
    }

    fn new() -> io::Result<Self> {
        let mut bytes = [0; 16];
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        if filled < bytes.len() {
            return Err(io::Error::other("the kernel gave too little chance"));
        }
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Id {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("not 32 hexadecimal digits")
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

/// The folder of all values.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
}

impl Files {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn of(&self, dc: &str, secret: &str) -> PathBuf {
        self.folder.join(dc).join(secret)
    }

    /// Keeps a new value, above all of before.
    pub(super) fn add(&self, (dc, secret): (&str, &str), above: u64, value: &[u8]) -> io::Result<Place> {
        let here = listed(&self.of(dc, secret))?.last().map_or(0, |(revision, _)| *revision);
        let revision = above.max(here).saturating_add(1);
        let place = Place { dc: dc.to_owned(), secret: secret.to_owned(), revision, id: Id::new()? };
        self.put(&place, value)?;
        Ok(place)
    }

    /// Keeps a value, durably.
    pub(super) fn put(&self, place: &Place, value: &[u8]) -> io::Result<()> {
        let folder = self.of(&place.dc, &place.secret);
        if !folder.exists() && self.count()? >= FOLDERS_MAX {
            return Err(io::Error::other(format!("values of {FOLDERS_MAX} secrets are kept already")));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        if listed(&folder)?.len() >= VALUES_MAX {
            return Err(io::Error::other(format!("{VALUES_MAX} values of it wait to count already")));
        }
        let (path, new) = (folder.join(name(place)), folder.join(NEW));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(value)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        for folder in [&*folder, &self.folder.join(&place.dc), &self.folder] {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    /// How many secrets have values here.
    fn count(&self) -> io::Result<usize> {
        folders(&self.folder)?.iter().try_fold(0, |count, dc| Ok(count + folders(dc)?.len()))
    }

    /// The value, if it is here.
    pub(super) fn get(&self, place: &Place) -> io::Result<Option<Vec<u8>>> {
        read(&self.of(&place.dc, &place.secret).join(name(place)))
    }

    /// Removes a value; one that is not there is as good.
    pub(super) fn remove(&self, place: &Place) -> io::Result<()> {
        let folder = self.of(&place.dc, &place.secret);
        match fs::remove_file(folder.join(name(place))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Each stays that has something in it.
        let _full = fs::remove_dir(&folder).and_then(|()| fs::remove_dir(self.folder.join(&place.dc)));
        Ok(())
    }

    /// The value here of the greatest revision.
    pub(super) fn newest(&self, (dc, secret): (&str, &str)) -> io::Result<Option<Vec<u8>>> {
        let folder = self.of(dc, secret);
        match listed(&folder)?.pop() {
            Some((_, name)) => read(&folder.join(name)),
            None => Ok(None),
        }
    }

    /// Removes the values that no entry names, but for those that may be named soon.
    pub(super) fn sweep(&self, entries: &[(String, String, Entry)]) -> io::Result<()> {
        let named: BTreeSet<PathBuf> = entries
            .iter()
            .map(|(dc, secret, Entry { revision, id, .. })| {
                self.of(dc, secret).join(file_name(*revision, id))
            })
            .collect();
        for dc in folders(&self.folder)? {
            for secret in folders(&dc)? {
                // Values are written and swept by one thread.
                let _none = fs::remove_file(secret.join(NEW));
                let values = listed(&secret)?;
                let counts = values.iter().rposition(|(_, name)| named.contains(&secret.join(name)));
                for (at, (_, name)) in values.iter().enumerate() {
                    let path = secret.join(name);
                    // One below that which counts will not be named any more.
                    let is_over = counts.is_some_and(|counts| at < counts);
                    if !named.contains(&path) && (is_over || is_old(&path)) {
                        fs::remove_file(&path)?;
                    }
                }
                // Each stays that has something in it.
                let _full = fs::remove_dir(&secret);
            }
            let _full = fs::remove_dir(&dc);
        }
        Ok(())
    }
}

fn name(place: &Place) -> String {
    file_name(place.revision, &place.id)
}

fn file_name(revision: u64, id: &Id) -> String {
    // In the order of the revisions.
    format!("{revision:020}-{id}")
}

/// The values of a folder, by revision.
fn listed(folder: &Path) -> io::Result<Vec<(u64, String)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let parts = name.split_once('-').map(|(revision, id)| (revision.parse(), Id::parse(id)));
        if let Some((Ok(revision), Some(_))) = parts {
            found.push((revision, name));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn folders(of: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(of) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn is_old(path: &Path) -> bool {
    let written = fs::metadata(path).and_then(|found| found.modified());
    written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNNAMED))
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut value = Vec::new();
    let most = u64::try_from(SECRET_BYTES_MAX).unwrap_or(u64::MAX);
    file.take(most + 1).read_to_end(&mut value)?;
    if value.len() > SECRET_BYTES_MAX {
        return Err(io::Error::other(format!("{} is too long for a secret", path.display())));
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(place: &Place) -> (String, String, Entry) {
        let entry =
            Entry { revision: place.revision, id: place.id.clone(), bytes: 1, at_ms: 0, nodes: Vec::new() };
        (place.dc.clone(), place.secret.clone(), entry)
    }

    #[test]
    fn values_that_count_no_more_go_and_those_that_may_count_soon_stay() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().join("secrets"));
        let of = ("shop", "pw");
        let one = files.add(of, 0, b"one").unwrap();
        let two = files.add(of, 0, b"two").unwrap();
        let three = files.add(of, 7, b"three").unwrap();
        assert_eq!((one.revision, two.revision, three.revision), (1, 2, 8));
        files.sweep(&[entry(&two)]).unwrap();
        assert_eq!(files.get(&one).unwrap(), None);
        assert_eq!(files.get(&two).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(files.get(&three).unwrap().as_deref(), Some(&b"three"[..]));
        assert_eq!(files.newest(of).unwrap().as_deref(), Some(&b"three"[..]));
        // One that nobody named for so long was given up; with the last one the folders go.
        let path = files.of("shop", "pw");
        let long_ago = std::time::SystemTime::now() - 2 * UNNAMED;
        for name in fs::read_dir(&path).unwrap() {
            let file = File::options().write(true).open(name.unwrap().path()).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        files.sweep(&[entry(&two)]).unwrap();
        assert_eq!(files.newest(of).unwrap().as_deref(), Some(&b"two"[..]));
        fs::write(path.join(NEW), "half").unwrap();
        files.sweep(&[]).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("secrets")).unwrap().count(), 0);
    }

    #[test]
    fn values_are_roots_alone_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().join("secrets"));
        let place = files.add(("shop", "pw"), 0, &vec![7; SECRET_BYTES_MAX]).unwrap();
        let path = files.of("shop", "pw").join(name(&place));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(dir.path().join("secrets")).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(files.get(&place).unwrap().map(|value| value.len()), Some(SECRET_BYTES_MAX));
        fs::write(&path, vec![7; SECRET_BYTES_MAX + 1]).unwrap();
        files.get(&place).unwrap_err();
        for number in 1..VALUES_MAX {
            files.add(("shop", "pw"), 0, number.to_string().as_bytes()).unwrap();
        }
        assert!(files.add(("shop", "pw"), 0, b"one more").unwrap_err().to_string().contains("wait to count"));
    }

    #[test]
    fn ids_are_of_chance_and_nothing_else_is_one() {
        assert_ne!(Id::new().unwrap(), Id::new().unwrap());
        for wrong in
            ["", "../../../../etc/passwd", "ABCDEF0123456789ABCDEF0123456789", "é".repeat(16).as_str()]
        {
            assert_eq!(Id::parse(wrong), None, "{wrong}");
        }
    }
}
