//! The errors of this crate, and their words.

use std::io;
use std::path::{Path, PathBuf};

/// An image that could not be built. The text says what and where, [`ImageError::help`] what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file or directory could not be used.
    #[error("can't {what} {}: {source}", path.display())]
    File {
        /// The verb, such as "read".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A directory has no kernel in it.
    #[error("there is no kernel in {}: no boot/vmlinuz-VERSION with lib/modules/VERSION beside it", directory.display())]
    NoKernel {
        /// Where it was looked for.
        directory: PathBuf,
    },
    /// There is no kernel for guests on this node.
    #[error("there is no kernel for guests, neither in {} nor in /boot", unpacked.display())]
    NoKernelOfOurs {
        /// Where one may be unpacked.
        unpacked: PathBuf,
    },
    /// The kernel has no such module, neither built in nor as a file.
    #[error("kernel {version} has no module `{name}`{}", needed_by(by))]
    NoModule {
        /// The module.
        name: String,
        /// The kernel's version.
        version: String,
        /// The module that needs it; `None` where the spec asks for it.
        by: Option<String>,
    },
    /// A module is compressed, which the guest's loader does not read.
    #[error("the module {} is compressed; only kernels with plain .ko files can be used (Debian 12 has them)", path.display())]
    CompressedModule {
        /// The file.
        path: PathBuf,
    },
    /// A program or a module is no ELF file, or a broken one.
    #[error("{} is no usable ELF file: {reason}", path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// A shared library that a program needs is nowhere.
    #[error("{} needs the library {library}, which is in none of {}", by.display(), listed(searched))]
    NoLibrary {
        /// Its name, as the program says it.
        library: String,
        /// The program that needs it.
        by: PathBuf,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// A place in the image that can't be one.
    #[error("{:?} is no place in an image: it has to be absolute, without `..`, and shorter than 4096 bytes", path.display())]
    BadPlace {
        /// The place.
        path: PathBuf,
    },
    /// Two different things have one place.
    #[error("two different things are to be at {place}")]
    Conflict {
        /// The place.
        place: String,
    },
    /// Nothing would run.
    #[error("the image has no /init, so its kernel would have nothing to run")]
    NoInit,
    /// More than an image may hold.
    #[error("{what} has {found}, and {most} is the most")]
    TooBig {
        /// The thing that is too big.
        what: String,
        /// How big it is, with its unit.
        found: String,
        /// The bound, with its unit.
        most: String,
    },
    /// An input was written to while it was read.
    #[error("{} changed while it was read", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

impl ImageError {
    /// The advice, where there is some.
    #[must_use]
    pub fn help(&self) -> Option<String> {
        match self {
            Self::NoKernel { .. } => Some(KERNEL_HELP.into()),
            Self::NoKernelOfOurs { unpacked } => {
                Some(KERNEL_HELP.replace("DIR", &unpacked.display().to_string()))
            }
            Self::File { path, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                let package = package_of(path)?;
                Some(format!("on Debian: apt-get install --no-install-recommends {package}"))
            }
            Self::NoLibrary { .. } => {
                Some("install the package that has it, or name the directory it was unpacked into (--library-path DIR)".into())
            }
            Self::Changed { .. } => Some("try again when nothing writes to it".into()),
            _ => None,
        }
    }

    pub(crate) fn at(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::File { what, path: path.to_path_buf(), source: source.into() }
    }
}

/// How to get a kernel without installing one.
const KERNEL_HELP: &str =
    "unpack Debian's kernel, without installing it, and name the directory (--kernel DIR):
  apt-get download $(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2 }')
  dpkg-deb -x linux-image-*.deb DIR";

/// Debian's package of a program that images are made of.
fn package_of(program: &Path) -> Option<&'static str> {
    match program.file_name()?.to_str()? {
        "busybox" => Some("busybox-static"),
        "runc" => Some("runc"),
        "crun" => Some("crun"),
        "dnsmasq" => Some("dnsmasq-base"),
        _ => None,
    }
}

fn needed_by(by: &Option<String>) -> String {
    by.as_ref().map_or_else(String::new, |by| format!(", which `{by}` needs"))
}

fn listed(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// The path and the verb of a failed call.
pub(crate) trait At<T> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, ImageError>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, what: &'static str, path: &Path) -> Result<T, ImageError> {
        self.map_err(|source| ImageError::at(what, path, source))
    }
}
