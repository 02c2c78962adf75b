//! Removing unpacked images that no domain has as its root.

use crate::error::{Context, Result};
use crate::image::UNFINISHED;
use crate::incarnation::Incarnation;
use crate::layout::Layout;
use rustix::fs::FlockOperation;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Keeps unpacked images from being removed, from before one is unpacked until the domain whose
/// root it is can be seen to have it.
pub(crate) fn hold(images: &Path) -> Result<File> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(images);
    made.at("create", images)?;
    let held = File::open(images).at("open", images)?;
    rustix::fs::flock(&held, FlockOperation::LockShared).at("lock", images)?;
    Ok(held)
}

/// Removes all unpacked images but those that a domain has as its root and those of the digests
/// `kept`. Whoever needs one again unpacks it again. Gives how many they were.
///
/// # Errors
/// A domain of which can't be said what its root is; a tree that can't be removed.
pub fn remove_unused_images(layout: &Layout, kept: &BTreeSet<String>) -> Result<u64> {
    let images = layout.images();
    if !images.is_dir() {
        return Ok(0);
    }
    let lock = File::open(&images).at("open", &images)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).at("lock", &images)?;
    let used = roots_in_use(layout)?;
    let mut unused = Vec::new();
    for entry in fs::read_dir(&images).at("list", &images)? {
        let path = entry.at("list", &images)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(hex) = name.strip_prefix("sha256-") else { continue };
        if used.contains(&path.join("tree")) || kept.contains(&format!("sha256:{hex}")) {
            continue;
        }
        // Under this name a daemon that starts removes it, if we do not come to it.
        let aside = images.join(format!("{UNFINISHED}unused-{hex}"));
        fs::rename(&path, &aside).at("rename", &path)?;
        unused.push(aside);
    }
    drop(lock);
    for path in &unused {
        sys::tree::remove(path).at("remove", path)?;
    }
    Ok(unused.len() as u64)
}

/// The trees of images that domains have as their roots, whether a daemon runs or not.
fn roots_in_use(layout: &Layout) -> Result<BTreeSet<PathBuf>> {
    let mut used = BTreeSet::new();
    for dc in folders(&layout.domains())? {
        for domain in folders(&layout.domains().join(&dc))? {
            match Incarnation::read(&layout.run_dir, &dc, &domain) {
                Ok((incarnation, _)) => used.extend(incarnation.image.map(|image| image.tree)),
                // It was not made, or is over.
                Err(crate::Error::NotRunning(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(used)
}

fn folders(at: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(at) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.at("list", at)?,
    };
    let folders = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(folders.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::ImageRoot;
    use crate::spec::{DomainSpec, Kind};

    #[test]
    fn what_a_domain_has_as_its_root_stays_and_so_does_what_is_kept() {
        let folder = tempfile::tempdir().expect("folder");
        let layout = Layout {
            run_dir: folder.path().join("run"),
            state_dir: folder.path().join("state"),
            cgroup_name: "tombolo-test".into(),
            program: "/bin/true".into(),
        };
        assert_eq!(remove_unused_images(&layout, &BTreeSet::new()).expect("nothing there"), 0);
        for name in ["sha256-used", "sha256-kept", "sha256-unused", ".unpacking-busy"] {
            fs::create_dir_all(layout.images().join(name).join("tree/deep")).expect("tree");
        }
        let spec = DomainSpec::new("shop", "web", Kind::Container, &[]);
        let image = ImageRoot { tree: layout.images().join("sha256-used/tree"), ..ImageRoot::default() };
        let paths = layout.domain("shop", "web").expect("paths");
        fs::create_dir_all(&paths.dir).expect("domain");
        fs::create_dir_all(layout.domains().join("shop/none")).expect("a domain that was not made");
        Incarnation { layout: layout.clone(), spec, image: Some(image) }.write(&paths).expect("write");
        let kept = BTreeSet::from(["sha256:kept".to_owned()]);
        assert_eq!(remove_unused_images(&layout, &kept).expect("remove"), 1);
        let mut left = folders(&layout.images()).expect("list");
        left.sort();
        assert_eq!(left, [".unpacking-busy", "sha256-kept", "sha256-used"]);
        fs::write(paths.spec(), "damaged").expect("damage");
        assert!(remove_unused_images(&layout, &kept).is_err(), "nobody knows what it has");
    }
}
