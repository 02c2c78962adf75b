//! The ingredients of an image.

use crate::kernel::Kernel;
use std::path::PathBuf;

/// How the initramfs is packed. A guest holds the packed and the unpacked one at the same time
/// while it starts: `Zstd` wants the least memory, `Lz4` half as much again; where the processor is
/// emulated, a guest unpacks `Lz4` in a third of the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As it is.
    None,
    /// gzip, which every kernel unpacks.
    Gzip,
    /// LZ4: Linux 3.11 and later.
    #[default]
    Lz4,
    /// Zstandard: Linux 5.9 and later.
    Zstd,
}

impl Compression {
    /// Its name in the manifest.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// One thing of the image. Places are absolute paths in the guest; `/bin`, `/sbin`, `/lib` and
/// `/lib64` mean those below `/usr`, as on Debian. Directories above a place are made. The same
/// thing twice at one place is one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// An empty directory.
    Directory {
        /// Where.
        to: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// A file of the machine.
    File {
        /// The file.
        from: PathBuf,
        /// Where.
        to: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// A file with this content.
    Bytes {
        /// The content.
        content: Vec<u8>,
        /// Where.
        to: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// Where.
        to: PathBuf,
        /// The target of the link.
        target: PathBuf,
    },
    /// A character device.
    Device {
        /// Where.
        to: PathBuf,
        /// Permission bits.
        mode: u32,
        /// The device's number.
        number: (u32, u32),
    },
    /// A program or a library of the machine (mode 0755) with its loader and every shared library
    /// that it needs. Those with more than 1 MiB of symbols and debugging information are in the
    /// image without them.
    Program {
        /// The program.
        from: PathBuf,
        /// Where.
        to: PathBuf,
    },
}

/// An image, as it is asked for.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The kernel.
    pub kernel: Kernel,
    /// Modules by name. Those that they need come along; what the kernel has built in is as good.
    /// They are listed, in the order in which they have to be loaded, in the guest's
    /// `/etc/tombolo/modules`.
    pub modules: Vec<String>,
    /// More of them, which are left out where the kernel has none;
    /// [`Image::missing_modules`](crate::Image) names those.
    pub optional_modules: Vec<String>,
    /// The other entries in it.
    pub entries: Vec<Entry>,
    /// Directories with libraries that are looked at before the machine's own.
    pub library_paths: Vec<PathBuf>,
    /// How it is packed.
    pub compression: Compression,
}

impl Spec {
    /// An empty one. It needs at least an `/init`.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            modules: Vec::new(),
            optional_modules: Vec::new(),
            entries: Vec::new(),
            library_paths: Vec::new(),
            compression: Compression::default(),
        }
    }

    /// Adds an empty directory.
    pub fn directory(&mut self, to: impl Into<PathBuf>, mode: u32) -> &mut Self {
        self.entries.push(Entry::Directory { to: to.into(), mode });
        self
    }

    /// Adds a file of the machine.
    pub fn file(&mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>, mode: u32) -> &mut Self {
        self.entries.push(Entry::File { from: from.into(), to: to.into(), mode });
        self
    }

    /// Adds a file with this content.
    pub fn bytes(&mut self, content: impl Into<Vec<u8>>, to: impl Into<PathBuf>, mode: u32) -> &mut Self {
        self.entries.push(Entry::Bytes { content: content.into(), to: to.into(), mode });
        self
    }

    /// Adds a symbolic link at `to` that says `target`.
    pub fn link(&mut self, to: impl Into<PathBuf>, target: impl Into<PathBuf>) -> &mut Self {
        self.entries.push(Entry::Link { to: to.into(), target: target.into() });
        self
    }

    /// Adds a program with what it needs.
    pub fn program(&mut self, from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> &mut Self {
        self.entries.push(Entry::Program { from: from.into(), to: to.into() });
        self
    }
}
