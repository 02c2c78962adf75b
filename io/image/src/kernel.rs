//! A kernel as a package has it.

use crate::error::{At as _, ImageError};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// A kernel with the directory of its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// Its version, such as `6.1.0-56-cloud-amd64`.
    pub version: String,
    /// The image that boots (`vmlinuz`).
    pub image: PathBuf,
    /// `lib/modules/VERSION`.
    pub modules: PathBuf,
}

/// Below the state directory: where a kernel for guests is looked for first.
const FOLDER: &str = "kernel";

impl Kernel {
    /// The kernel of guests that name none: that of `STATE/kernel`, where a package was unpacked;
    /// else the machine's own.
    ///
    /// # Errors
    /// [`ImageError::NoKernelOfOurs`] where there is neither; [`ImageError::File`] where a
    /// directory can't be read.
    pub fn auto(state_dir: &Path) -> Result<Self, ImageError> {
        let unpacked = state_dir.join(FOLDER);
        for directory in [unpacked.as_path(), Path::new("/")] {
            match Self::find(directory) {
                Err(ImageError::NoKernel { .. }) => {}
                other => return other,
            }
        }
        Err(ImageError::NoKernelOfOurs { unpacked })
    }

    /// The kernel in a directory that looks like `/`: an unpacked package, or the machine itself.
    /// Where there are several, the newest one whose modules are there.
    ///
    /// # Errors
    /// [`ImageError::NoKernel`] where there is none; [`ImageError::File`] where the directory can't
    /// be read.
    pub fn find(directory: &Path) -> Result<Self, ImageError> {
        let boot = directory.join("boot");
        let none = || ImageError::NoKernel { directory: directory.to_path_buf() };
        let entries = match std::fs::read_dir(&boot) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(none()),
            other => other.at("read", &boot)?,
        };
        let mut found: Vec<Self> = Vec::new();
        for entry in entries {
            let image = entry.at("read", &boot)?.path();
            let name = image.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(version) = name.strip_prefix("vmlinuz-").map(str::to_owned) else { continue };
            let trees = ["lib/modules", "usr/lib/modules"].map(|tree| directory.join(tree).join(&version));
            let modules = trees.into_iter().find(|tree| tree.join("kernel").is_dir());
            found.extend(modules.map(|modules| Self { version, image, modules }));
        }
        found.sort_by(|a, b| by_number(&a.version, &b.version));
        found.pop().ok_or_else(none)
    }
}

/// Compares versions as people do: runs of digits as numbers.
fn by_number(a: &str, b: &str) -> Ordering {
    parts(a).cmp(&parts(b))
}

/// `6.1.0-9` as `["", 6, ".", 1, ...]`: what is no number stands before the number that follows it.
fn parts(version: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = version;
    while !rest.is_empty() {
        let (word, after) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let (digits, after) =
            after.split_at(after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len()));
        parts.push((word.to_owned(), digits.parse().unwrap_or(0)));
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(folder: &Path, versions: &[&str]) {
        for version in versions {
            std::fs::create_dir_all(folder.join("boot")).expect("a folder");
            std::fs::write(folder.join(format!("boot/vmlinuz-{version}")), "k").expect("a file");
            std::fs::create_dir_all(folder.join(format!("lib/modules/{version}/kernel"))).expect("a folder");
        }
    }

    #[test]
    fn the_newest_kernel_with_modules_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        with(folder.path(), &["6.1.0-9-cloud-amd64", "6.1.0-10-cloud-amd64"]);
        std::fs::write(folder.path().join("boot/vmlinuz-7.0.0-1-amd64"), "no modules").expect("a file");
        let kernel = Kernel::find(folder.path()).expect("a kernel");
        assert_eq!(kernel.version, "6.1.0-10-cloud-amd64");
    }

    #[test]
    fn a_directory_without_one_is_told_how_to_get_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Kernel::find(folder.path()).expect_err("nothing there");
        assert!(matches!(error, ImageError::NoKernel { .. }), "{error}");
        assert!(error.help().expect("a help").contains("dpkg-deb -x"));
    }
}
