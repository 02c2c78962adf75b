//! The content of an image, place by place, with the digest of each content: the spec, resolved.

use crate::elf;
use crate::error::{At as _, ImageError};
use crate::modules::Modules;
use crate::spec::{Compression, Entry, Spec};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

/// The list of modules in the guest, in the order in which they have to be loaded.
pub(crate) const MODULE_LIST: &str = "/etc/tombolo/modules";
/// Longest place, in bytes: the kernel's `PATH_MAX`.
const MAX_PLACE_BYTES: usize = 4096;
/// Entries that an image may have: a hundred times what a guest of ours has.
const MAX_ENTRIES: usize = 100_000;
/// Contents of an image, in bytes: more than a guest's memory would hold twice.
const MAX_CONTENT_BYTES: u64 = 2 << 30;
/// Directories that Debian keeps below `/usr`.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// Bytes that are read at once.
const BLOCK_BYTES: usize = 128 << 10;

/// SHA-256 of a content.
pub(crate) type Digest = [u8; 32];

/// Where a content comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
    /// A program without what no loader reads.
    Program {
        from: PathBuf,
        loaded: elf::Loaded,
    },
}

impl Source {
    /// The file that it comes from.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(from) | Self::Program { from, .. } => Some(from),
            Self::Bytes(_) => None,
        }
    }

    /// The content, from its begin.
    pub fn open(&self) -> Result<Box<dyn Read + '_>, ImageError> {
        match self {
            Self::Bytes(bytes) => Ok(Box::new(bytes.as_slice())),
            Self::File(from) => Ok(Box::new(open_file(from)?)),
            Self::Program { from, loaded } => {
                let mut file = open_file(from)?;
                let begin = elf::HEADER_BYTES as u64;
                file.seek(SeekFrom::Start(begin)).at("read", from)?;
                let rest = file.take(loaded.length.saturating_sub(begin));
                Ok(Box::new(loaded.header.as_slice().chain(rest)))
            }
        }
    }
}

/// The node at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    Directory { mode: u32 },
    File { source: Source, mode: u32, length: u64, digest: Digest },
    Link { target: String },
    Device { mode: u32, number: (u32, u32) },
}

/// An image, resolved.
#[derive(Debug)]
pub(crate) struct Plan {
    /// By place, without the slash in front: directories come before what is in them.
    pub nodes: BTreeMap<String, Node>,
    pub kernel_image: PathBuf,
    pub kernel_version: String,
    pub kernel_digest: Digest,
    pub compression: Compression,
    /// All contents together.
    pub bytes: u64,
    /// Optional modules that the kernel has not.
    pub missing_modules: Vec<String>,
}

impl Plan {
    /// Resolves a spec: every library and module is found, every input read once.
    pub fn of(spec: &Spec) -> Result<Self, ImageError> {
        let (_, kernel_digest) = digest(&Source::File(spec.kernel.image.clone()))?;
        let mut plan = Self {
            nodes: BTreeMap::new(),
            kernel_image: spec.kernel.image.clone(),
            kernel_version: spec.kernel.version.clone(),
            kernel_digest,
            compression: spec.compression,
            bytes: 0,
            missing_modules: Vec::new(),
        };
        plan.add_modules(spec)?;
        for entry in &spec.entries {
            plan.add(entry, &spec.library_paths)?;
        }
        match plan.nodes.get("init") {
            Some(Node::File { .. } | Node::Link { .. }) => Ok(plan),
            _ => Err(ImageError::NoInit),
        }
    }

    /// One line for each thing that makes this image what it is.
    pub fn manifest(&self) -> String {
        let mut text = format!(
            "kernel {} {}\ncompression {}\n",
            self.kernel_version,
            hexadecimal(&self.kernel_digest),
            self.compression.name()
        );
        for (place, node) in &self.nodes {
            let place = format!("{:?}", format!("/{place}"));
            let _infallible = match node {
                Node::Directory { mode } => writeln!(text, "directory {mode:04o} {place}"),
                Node::File { mode, digest, .. } => {
                    writeln!(text, "file {mode:04o} {place} {}", hexadecimal(digest))
                }
                Node::Link { target } => writeln!(text, "link {place} {target:?}"),
                Node::Device { mode, number } => {
                    writeln!(text, "device {mode:04o} {place} {}:{}", number.0, number.1)
                }
            };
        }
        text
    }

    fn add_modules(&mut self, spec: &Spec) -> Result<(), ImageError> {
        let (files, missing) = Modules::of(&spec.kernel)?.in_order(&spec.modules, &spec.optional_modules)?;
        self.missing_modules = missing;
        let mut list = String::new();
        for file in files {
            let inside = file.strip_prefix(&spec.kernel.modules).unwrap_or(&file);
            let to = Path::new("/usr/lib/modules").join(&spec.kernel.version).join(inside);
            list += &format!("{}\n", to.display());
            self.add_file(&file, &to, 0o644)?;
        }
        self.add_bytes(list.into_bytes(), Path::new(MODULE_LIST), 0o644)
    }

    fn add(&mut self, entry: &Entry, library_paths: &[PathBuf]) -> Result<(), ImageError> {
        match entry {
            Entry::Directory { to, mode } => self.put(to, Node::Directory { mode: *mode }),
            Entry::File { from, to, mode } => self.add_file(from, to, *mode),
            Entry::Bytes { content, to, mode } => self.add_bytes(content.clone(), to, *mode),
            Entry::Link { to, target } => {
                let target = target.to_str().filter(|target| !target.is_empty());
                let bad = || ImageError::BadPlace { path: to.clone() };
                self.put(to, Node::Link { target: target.ok_or_else(bad)?.to_owned() })
            }
            Entry::Device { to, mode, number } => self.put(to, Node::Device { mode: *mode, number: *number }),
            Entry::Program { from, to } => self.add_program(from, to, library_paths),
        }
    }

    fn add_file(&mut self, from: &Path, to: &Path, mode: u32) -> Result<(), ImageError> {
        self.add_content(Source::File(from.to_path_buf()), to, mode)
    }

    fn add_bytes(&mut self, content: Vec<u8>, to: &Path, mode: u32) -> Result<(), ImageError> {
        self.add_content(Source::Bytes(content), to, mode)
    }

    fn add_content(&mut self, source: Source, to: &Path, mode: u32) -> Result<(), ImageError> {
        let (length, digest) = digest(&source)?;
        self.put(to, Node::File { source, mode, length, digest })
    }

    fn add_loaded(&mut self, from: &Path, to: &Path, needs: &elf::Needs) -> Result<(), ImageError> {
        let from = from.to_path_buf();
        let source = match needs.loaded.clone() {
            Some(loaded) => Source::Program { from, loaded },
            None => Source::File(from),
        };
        self.add_content(source, to, 0o755)
    }

    /// A program, its loader, and the libraries that it and they need, wherever each was found.
    /// A library from a directory that only the builder knows goes where the guest's loader
    /// looks.
    fn add_program(&mut self, from: &Path, to: &Path, library_paths: &[PathBuf]) -> Result<(), ImageError> {
        let mut open = VecDeque::from([(from.to_path_buf(), to.to_path_buf())]);
        let mut seen = BTreeSet::new();
        while let Some((path, to)) = open.pop_front() {
            let needs = elf::needs(&path)?;
            self.add_loaded(&path, &to, &needs)?;
            if let Some(loader) = &needs.interpreter {
                self.add_file(loader, loader, 0o755)?;
            }
            for library in &needs.libraries {
                // A loader is a library to the C library, and at its own place already.
                if library.starts_with("ld-linux") || !seen.insert(library.clone()) {
                    continue;
                }
                open.push_back(find_library(library, &path, &needs, library_paths)?);
            }
        }
        Ok(())
    }

    fn put(&mut self, to: &Path, node: Node) -> Result<(), ImageError> {
        let place = place(to)?;
        for (end, _) in place.match_indices('/') {
            let above = place.get(..end).unwrap_or_default();
            match self.nodes.get(above) {
                Some(Node::Directory { .. }) => {}
                None => {
                    self.nodes.insert(above.to_owned(), Node::Directory { mode: 0o755 });
                }
                Some(_) => return Err(ImageError::Conflict { place: format!("/{above}") }),
            }
        }
        let length = if let Node::File { length, .. } = &node { *length } else { 0 };
        match self.nodes.get(&place) {
            Some(there) if same(there, &node) => return Ok(()),
            // A directory that was made for what is in it gets the mode that is asked for.
            Some(Node::Directory { .. }) if matches!(node, Node::Directory { .. }) => {}
            Some(_) => return Err(ImageError::Conflict { place: format!("/{place}") }),
            None => self.bytes += length,
        }
        self.nodes.insert(place, node);
        self.check_size()
    }

    fn check_size(&self) -> Result<(), ImageError> {
        let too_big =
            |found: String, most: String| Err(ImageError::TooBig { what: "the image".into(), found, most });
        if self.nodes.len() > MAX_ENTRIES {
            return too_big(format!("{} entries", self.nodes.len()), format!("{MAX_ENTRIES} entries"));
        }
        if self.bytes > MAX_CONTENT_BYTES {
            return too_big(format!("{} bytes", self.bytes), format!("{MAX_CONTENT_BYTES} bytes"));
        }
        Ok(())
    }
}

/// Whether two files have the same content, wherever it comes from.
fn same(a: &Node, b: &Node) -> bool {
    match (a, b) {
        (Node::File { mode: m, digest: d, .. }, Node::File { mode, digest, .. }) => m == mode && d == digest,
        _ => a == b,
    }
}

/// A place in the archive: no slash in front, `/bin` and its like below `/usr`.
fn place(path: &Path) -> Result<String, ImageError> {
    let bad = || ImageError::BadPlace { path: path.to_path_buf() };
    let mut parts = Vec::new();
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) {
        return Err(bad());
    }
    for component in components {
        match component {
            Component::Normal(name) => {
                parts.push(name.to_str().filter(|n| !n.contains('\0')).ok_or_else(bad)?)
            }
            _ => return Err(bad()),
        }
    }
    // The link itself (`/bin`) is a place of its own.
    if parts.len() > 1 && parts.first().is_some_and(|first| MERGED.contains(first)) {
        parts.insert(0, "usr");
    }
    let place = parts.join("/");
    if place.is_empty() || place.len() >= MAX_PLACE_BYTES { Err(bad()) } else { Ok(place) }
}

/// Where a library is, and where it goes.
fn find_library(
    library: &str,
    by: &Path,
    needs: &elf::Needs,
    extra: &[PathBuf],
) -> Result<(PathBuf, PathBuf), ImageError> {
    let standard = standard_directories(needs.triplet);
    let fallback = standard.first().cloned().unwrap_or_else(|| PathBuf::from("/usr/lib"));
    let places = needs.paths.iter().chain(&standard).map(|directory| (directory, directory));
    let places: Vec<_> = extra.iter().map(|directory| (directory, &fallback)).chain(places).collect();
    let found = places.iter().find(|(directory, _)| directory.join(library).is_file());
    found.map(|(directory, to)| (directory.join(library), to.join(library))).ok_or_else(|| {
        ImageError::NoLibrary {
            library: library.to_owned(),
            by: by.to_path_buf(),
            searched: places.iter().map(|(directory, _)| (*directory).clone()).collect(),
        }
    })
}

/// Where the loader looks when nothing else is said.
fn standard_directories(triplet: Option<&str>) -> Vec<PathBuf> {
    let multiarch = triplet.iter().map(|triplet| format!("/usr/lib/{triplet}"));
    let plain = ["/usr/lib64", "/usr/lib"].map(str::to_owned);
    multiarch.chain(plain).map(PathBuf::from).collect()
}

/// Opens a regular file: nothing else has a content that stays.
fn open_file(path: &Path) -> Result<File, ImageError> {
    let file = File::open(path).at("read", path)?;
    if !file.metadata().at("read", path)?.is_file() {
        let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file");
        return Err(ImageError::at("read", path, error));
    }
    Ok(file)
}

/// Length and digest of a content.
fn digest(source: &Source) -> Result<(u64, Digest), ImageError> {
    let path = source.path().unwrap_or(Path::new(""));
    let mut content = source.open()?;
    let mut hash = Sha256::new();
    let mut block = vec![0; BLOCK_BYTES];
    let mut length = 0;
    loop {
        let count = content.read(&mut block).at("read", path)?;
        if count == 0 {
            return Ok((length, hash.finalize().into()));
        }
        length += count as u64;
        if length > MAX_CONTENT_BYTES {
            return Err(ImageError::TooBig {
                what: path.display().to_string(),
                found: format!("more than {MAX_CONTENT_BYTES} bytes"),
                most: format!("{MAX_CONTENT_BYTES} bytes"),
            });
        }
        hash.update(block.get(..count).unwrap_or_default());
    }
}

/// Bytes as people write digests.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
