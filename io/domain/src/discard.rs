//! Removing what domains leave without keeping anybody waiting.
//!
//! A few entries are removed at once. A tree that has more is moved to `RUN/discarded` first, and a
//! thread of its own removes it there: whoever ends, starts or sweeps a domain has a bounded number
//! of threads for all domains, and one of a million files must not take one.

use crate::error::{Context, Result};
use crate::layout::Layout;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Entries that are removed while the caller waits: some milliseconds, and ten times what a domain
/// has whose layer is in memory.
const AT_ONCE: u64 = 4096;
/// How many names are tried for what is moved: each is taken only if an earlier daemon left
/// something of that name.
const MAX_NAMES: u32 = 10_000;

/// Run directories for which a thread removes.
static REMOVING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static NUMBER: AtomicU64 = AtomicU64::new(0);

fn folder(layout: &Layout) -> PathBuf {
    layout.run_dir.join("discarded")
}

/// Removes what is at `path`, which is below the run directory; it is gone from there when this
/// returns.
pub(crate) fn discard(layout: &Layout, path: &Path) -> Result<()> {
    if sys::tree::remove_some(path, AT_ONCE).at("remove", path)? {
        return Ok(());
    }
    let folder = folder(layout);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).at("create", &folder)?;
    move_to(&folder, path).at("set aside", path)?;
    finish(layout);
    Ok(())
}

fn move_to(folder: &Path, path: &Path) -> io::Result<()> {
    for _ in 0..MAX_NAMES {
        let to = folder.join(NUMBER.fetch_add(1, Ordering::Relaxed).to_string());
        // A rename replaces an empty directory, of which nothing is to be kept, and fails for any
        // other.
        match fs::rename(path, to) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Has a thread remove whatever was set aside, by an earlier daemon too, unless one does already.
pub(crate) fn finish(layout: &Layout) {
    let folder = folder(layout);
    if !folder.exists() || !removing().insert(folder.clone()) {
        return;
    }
    let of = folder.clone();
    let started = std::thread::Builder::new().name("discard".into()).spawn(move || remove_all(&of));
    if let Err(error) = started {
        removing().remove(&folder);
        tracing::warn!(%error, "no thread to remove what domains left; it is tried again with the next one");
    }
}

fn removing() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    REMOVING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove_all(folder: &Path) {
    // What can't be removed is tried once by each thread, and said.
    let mut failed = BTreeSet::new();
    loop {
        let found = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let next = found.filter(|path| !failed.contains(path)).min();
        // Looked at once more under the lock: who sets something aside now either finds us here, or
        // starts another one.
        let Some(next) = next else {
            let mut removing = removing();
            let left = fs::read_dir(folder).into_iter().flatten().flatten();
            if left.map(|entry| entry.path()).all(|path| failed.contains(&path)) {
                removing.remove(folder);
                return;
            }
            continue;
        };
        if let Err(error) = sys::tree::remove(&next) {
            tracing::warn!(path = %next.display(), %error, "what a domain left can't be removed");
            failed.insert(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_big_tree_is_out_of_the_way_at_once_and_gone_later() {
        let dir = tempfile::tempdir().expect("dir");
        let layout = Layout {
            run_dir: dir.path().to_owned(),
            state_dir: dir.path().to_owned(),
            cgroup_name: "t".into(),
            program: "/bin/true".into(),
        };
        let (small, big) = (dir.path().join("small"), dir.path().join("big"));
        for (at, files) in [(&small, 10), (&big, AT_ONCE + 100)] {
            fs::create_dir(at).expect("a tree");
            (0..files).for_each(|file| fs::write(at.join(file.to_string()), "").expect("a file"));
        }
        discard(&layout, &small).expect("discard");
        assert!(!small.exists() && !folder(&layout).exists(), "a small one is removed where it is");
        // Left by an earlier daemon, under the name that comes next.
        let next = NUMBER.load(Ordering::Relaxed).to_string();
        fs::create_dir_all(folder(&layout).join(next).join("left")).expect("left");
        discard(&layout, &big).expect("discard");
        assert!(!big.exists());
        discard(&layout, &big).expect("nothing is no error");
        let deadline = Instant::now() + Duration::from_secs(30);
        while fs::read_dir(folder(&layout)).expect("list").next().is_some() {
            assert!(Instant::now() < deadline, "it is not removed");
            std::thread::yield_now();
        }
    }
}
