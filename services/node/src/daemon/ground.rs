//! The two directories that a node stands on: that they are its own, and belong together.
//!
//! Domains that are not desired are ended and cleared away below the run directory, and only the
//! state directory has the desired ones. So a directory of somebody else's must not be taken for
//! one of ours, nor the run directory of one node be paired with the state of another.

use admin::place::Place;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Files that only a directory which a daemon has used, or a copy of its state, has: one of them is
/// enough.
const OURS: [&str; 3] = ["lock", "registry.redb", "partner"];
/// The files that may be there before the first daemon came, or after everything else was removed:
/// put there by `up`, by monitors, by `image pull` and `import` (`store`), by `image build`
/// (`guests`), and by people (`kernel`).
const BEFORE: [&str; 7] = ["daemon.log", "daemon.log.1", "logs", "images", "store", "guests", "kernel"];
/// In each of the two directories: which one is the other.
const PARTNER: &str = "partner";
/// Longest path that is read from there, in bytes (`PATH_MAX`).
const MAX_PATH_BYTES: u64 = 4096;

/// Why a node can't stand on its directories.
#[derive(Debug, Error)]
pub enum GroundError {
    /// The directory can't be made or used.
    #[error("can't use the directory {}: {cause}", path.display())]
    Unusable {
        /// The path.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The directory is not ours.
    #[error(
        "{} is not a directory of Tombolo's: {why}; a node makes its directory private and clears away what it does not know \
         there, so give it one of its own with --run-dir or --state-dir", path.display()
    )]
    Strange {
        /// The path.
        path: PathBuf,
        /// The sign of it.
        why: String,
    },
    /// Domains run there that belong to another node.
    #[error(
        "in {} there are domains of the node that has the directories {} and {}; use these, or end the domains first: \
         tombolo --run-dir {} --state-dir {} down --all",
        run_dir.display(), run_dir.display(), state_dir.display(), run_dir.display(), state_dir.display()
    )]
    Foreign {
        /// Where the domains are.
        run_dir: PathBuf,
        /// The state directory of that node.
        state_dir: PathBuf,
    },
}

/// Makes a directory that only we may enter, or takes one that is ours already.
///
/// # Errors
/// [`GroundError::Unusable`]; [`GroundError::Strange`], before anything is touched.
pub(crate) fn own(path: &Path) -> Result<(), GroundError> {
    let at = |cause| GroundError::Unusable { path: path.to_owned(), cause };
    match fs::metadata(path) {
        Ok(metadata) => {
            let owner = metadata.uid();
            let strange = |why| GroundError::Strange { path: path.to_owned(), why };
            if owner != rustix::process::geteuid().as_raw() {
                return Err(strange(format!("it belongs to user {owner}")));
            }
            if let Some(name) = stranger_in(path).map_err(at)? {
                return Err(strange(format!("there is {name:?} in it")));
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at)?;
        }
        Err(error) => return Err(at(error)),
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(at)
}

/// Something that a directory which no daemon has used yet would not have.
fn stranger_in(path: &Path) -> io::Result<Option<String>> {
    let is_file = |name| fs::symlink_metadata(path.join(name)).is_ok_and(|found| found.is_file());
    if OURS.into_iter().any(is_file) {
        return Ok(None);
    }
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !BEFORE.contains(&name.as_str()) {
            // Another daemon may have made it its own meanwhile.
            return Ok((!OURS.into_iter().any(is_file)).then_some(name));
        }
    }
    Ok(None)
}

/// Pairs the two directories, which are both locked by now.
///
/// # Errors
/// [`GroundError::Foreign`] while domains run that another pair knows of;
/// [`GroundError::Unusable`].
pub(crate) fn pair(place: &Place) -> Result<(), GroundError> {
    let real = |path: &Path| {
        fs::canonicalize(path).map_err(|cause| GroundError::Unusable { path: path.to_owned(), cause })
    };
    let (run_dir, state_dir) = (real(&place.run_dir)?, real(&place.state_dir)?);
    if let Some(other) = partner(&run_dir)
        && other != state_dir
        && has_domains(&run_dir)
        && Place::new(&run_dir, &other).is_ok_and(|place| place.registry().exists())
    {
        return Err(GroundError::Foreign { run_dir, state_dir: other });
    }
    if let Some(other) = partner(&state_dir)
        && other != run_dir
        && has_domains(&other)
        && partner(&other).as_ref() == Some(&state_dir)
    {
        return Err(GroundError::Foreign { run_dir: other, state_dir });
    }
    for (one, other) in [(&run_dir, &state_dir), (&state_dir, &run_dir)] {
        if partner(one).as_ref() != Some(other) {
            note(one, other).map_err(|cause| GroundError::Unusable { path: one.join(PARTNER), cause })?;
        }
    }
    Ok(())
}

fn note(in_folder: &Path, other: &Path) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    let new = in_folder.join("partner.new");
    let mut file = fs::File::create(&new)?;
    // A note that is empty after a power cut would pair the directories with nothing.
    file.write_all(other.as_os_str().as_bytes())?;
    file.sync_all()?;
    fs::rename(new, in_folder.join(PARTNER))?;
    fs::File::open(in_folder)?.sync_all()
}

fn partner(of: &Path) -> Option<PathBuf> {
    use std::io::Read;
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    fs::File::open(of.join(PARTNER)).ok()?.take(MAX_PATH_BYTES).read_to_end(&mut bytes).ok()?;
    Some(std::ffi::OsString::from_vec(bytes).into())
}

fn has_domains(run_dir: &Path) -> bool {
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    below(run_dir.join("dc")).any(|dc| below(dc.path()).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of several daemons that start at once, one has its lock there before the next has looked.
    #[test]
    fn a_directory_that_another_daemon_takes_at_this_moment_is_ours() {
        for _round in 0..300 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("state");
            own(&path).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| fs::write(path.join("lock"), "").unwrap());
                assert!(own(&path).is_ok());
            });
        }
    }

    // `--run-dir /run` once made /run private to root and unmounted what was mounted below it.
    #[test]
    fn a_directory_of_somebody_elses_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
        // As /run/lock is one: a directory, and no lock of ours.
        fs::create_dir(shared.join("lock")).unwrap();
        let refusal = own(&shared).unwrap_err();
        assert!(matches!(&refusal, GroundError::Strange { .. }), "{refusal}");
        assert_eq!(fs::metadata(&shared).unwrap().permissions().mode() & 0o777, 0o755);
        let theirs = folder.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(1), None).unwrap();
        assert!(matches!(own(&theirs), Err(GroundError::Strange { .. })));
    }

    #[test]
    fn a_new_an_empty_and_a_used_directory_become_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/run");
        for prepare in ["", "daemon.log", "logs", "guests", "kernel", "partner", "other"] {
            if !prepare.is_empty() {
                fs::write(path.join(prepare), "").unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            own(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700, "{prepare:?}");
        }
    }

    // A daemon with a mistyped --state-dir once found nothing desired there, and ended every domain
    // of the run directory.
    #[test]
    fn domains_of_another_pair_are_not_touched() {
        let folder = tempfile::tempdir().unwrap();
        let place = |run: &str, state: &str| {
            let place = Place { run_dir: folder.path().join(run), state_dir: folder.path().join(state) };
            own(&place.run_dir).unwrap();
            own(&place.state_dir).unwrap();
            fs::write(place.state_dir.join("lock"), "").unwrap();
            fs::write(place.run_dir.join("lock"), "").unwrap();
            place
        };
        let first = place("run", "state");
        pair(&first).unwrap();
        fs::write(first.registry(), "x").unwrap();
        // Nothing runs: the directories may be paired anew, and back.
        pair(&place("run", "other")).unwrap();
        pair(&first).unwrap();
        fs::create_dir_all(first.run_dir.join("dc/shop/web")).unwrap();
        pair(&first).unwrap();
        for (run, state) in [("run", "other"), ("elsewhere", "state")] {
            let refusal = pair(&place(run, state)).unwrap_err();
            assert!(matches!(&refusal, GroundError::Foreign { .. }), "{refusal}");
            assert!(refusal.to_string().contains("down --all"), "{refusal}");
        }
        pair(&first).unwrap();
    }
}
