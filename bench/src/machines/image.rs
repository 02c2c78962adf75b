//! A guest's image with the programs of a bench in it, made by `tombolo image build`.

use crate::machine::check_files;
use crate::scenario::BenchError;
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the guest has the programs of the bench.
pub const PROGRAMS: &str = "/opt/bench";
/// Where `make deps` has unpacked a kernel for guests, from the folder of the build; and where a
/// node has one.
const KERNELS: [&str; 2] = ["../debian/kernel", "/var/lib/tombolo/kernel"];

/// The image of a guest.
#[derive(Debug, Clone, Deserialize)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial file system, its only one.
    pub initramfs: PathBuf,
}

impl Image {
    /// Builds one with these programs, which lie beside `binary`, and what they need; it is kept in
    /// `folder`.
    ///
    /// # Errors
    /// Where there is no kernel, a program is missing, or the builder fails.
    pub fn build(binary: &Path, programs: &[&str], folder: &Path) -> Result<Self, BenchError> {
        check_files(binary, programs)?;
        let tombolo = binary.with_file_name("tombolo");
        let mut command = Command::new(&tombolo);
        command.arg("--state-dir").arg(folder).args(["image", "build", "--json", "--kernel"]);
        command.arg(kernel(binary));
        for name in programs {
            let place = format!("{}:{PROGRAMS}/{name}", binary.with_file_name(name).display());
            command.args(["--program", &place]);
        }
        let output =
            command.stdin(Stdio::null()).output().map_err(BenchError::io("starting tombolo image build"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            let command = "tombolo image build".into();
            return Err(BenchError::Command { command, status: output.status.to_string(), said });
        }
        serde_json::from_slice(&output.stdout)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            .map_err(BenchError::io("reading what tombolo image build says"))
    }
}

/// The folder of an unpacked kernel, or the word for the machine's own.
fn kernel(binary: &Path) -> PathBuf {
    let folder = binary.parent().unwrap_or(Path::new("."));
    let folders = KERNELS.iter().map(|kernel| folder.join(kernel));
    folders.into_iter().find(|kernel| kernel.join("boot").is_dir()).unwrap_or_else(|| "auto".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_builds_own_kernel_comes_first() {
        let target = tempfile::tempdir().expect("a folder");
        let binary = target.path().join("release/tombolo");
        std::fs::create_dir_all(target.path().join("release")).expect("made");
        assert!(!kernel(&binary).starts_with(target.path()));
        std::fs::create_dir_all(target.path().join("debian/kernel/boot")).expect("made");
        assert!(kernel(&binary).starts_with(target.path()));
    }

    #[test]
    fn what_the_builder_lacks_is_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let binary = folder.path().join("tombolo");
        let error = Image::build(&binary, &["no-such-program"], folder.path()).expect_err("it is not there");
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }
}
