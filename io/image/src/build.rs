//! From a plan to the files that QEMU boots, kept by content.

use crate::cpio::Archive;
use crate::error::{At as _, ImageError};
use crate::lz4;
use crate::plan::{Digest, Node, Plan, hexadecimal};
use crate::spec::{Compression, Spec};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Images that a cache keeps: those used last. A guest of ours has some 20 MiB.
pub const MAX_IMAGES: usize = 8;
/// The version of a key, beside the contents: changes with the form of what is written.
const FORM: &str = "tombolo image 1";
/// Hexadecimal digits of a key: 128 bits, so that two images never share one.
const KEY_DIGITS: usize = 32;
/// Zstandard's own default: a higher one takes longer to pack and no less to unpack.
const ZSTD_LEVEL: i32 = 3;
/// How unfinished images are called; under the lock, they are a dead builder's.
const UNFINISHED: &str = ".unfinished-";
const KERNEL: &str = "vmlinuz";
const INITRAMFS: &str = "initramfs";
const MANIFEST: &str = "manifest";

/// The files that QEMU boots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Image {
    /// Of everything that is in it.
    pub key: String,
    /// The kernel's version.
    pub kernel_version: String,
    /// The kernel (`-kernel`).
    pub kernel: PathBuf,
    /// The initramfs (`-initrd`).
    pub initramfs: PathBuf,
    /// The list of its content: one line for each place.
    pub manifest: PathBuf,
    /// Places in the initramfs.
    pub entries: usize,
    /// Contents of the initramfs, unpacked, in bytes.
    pub content_bytes: u64,
    /// The initramfs as it is stored, in bytes.
    pub initramfs_bytes: u64,
    /// Whether it was in the cache already.
    pub cached: bool,
    /// Modules that would be of use and that the kernel has not.
    pub missing_modules: Vec<String>,
}

/// How far a build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "progress", rename_all = "snake_case")]
pub enum Progress {
    /// Inputs are found and read.
    Reading,
    /// The initramfs is written.
    Writing {
        /// Places done.
        done: usize,
        /// Places in all.
        of: usize,
    },
}

/// Builds the image that `spec` asks for, or finds it in `cache` (a directory that is made where
/// there is none).
///
/// An image is there as a whole or not at all, and never changes. [`MAX_IMAGES`] are kept; those
/// that were used least recently go. Builders of one cache wait for each other.
///
/// # Errors
/// A missing part, by name; a file that can't be read or written; bounds.
pub fn build(spec: &Spec, cache: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Image, ImageError> {
    progress(Progress::Reading);
    let plan = Plan::of(spec)?;
    let manifest = plan.manifest();
    let key = key(&manifest);
    fs::create_dir_all(cache).at("create", cache)?;
    let _lock = lock(cache)?;
    let directory = cache.join(&key);
    let cached = directory.join(INITRAMFS).is_file();
    if cached {
        touch(&directory)?;
    } else {
        sweep(cache)?;
        write(&plan, &manifest, cache, &directory, progress)?;
        prune(cache)?;
    }
    describe(&plan, key, &directory, cached)
}

/// Puts the files of an image into a directory of the caller's, each as a whole.
///
/// # Errors
/// A file that can't be read or written.
pub fn copy_to(image: &Image, directory: &Path) -> Result<Image, ImageError> {
    fs::create_dir_all(directory).at("create", directory)?;
    let mut copy = image.clone();
    for (name, path) in
        [(KERNEL, &mut copy.kernel), (INITRAMFS, &mut copy.initramfs), (MANIFEST, &mut copy.manifest)]
    {
        let mut from = File::open(&*path).at("read", path)?;
        let to = directory.join(name);
        let mut out = tempfile::NamedTempFile::new_in(directory).at("create a file in", directory)?;
        io::copy(&mut from, &mut out).at("write", &to)?;
        out.as_file().sync_all().at("write", &to)?;
        out.persist(&to).map_err(|error| error.error).at("write", &to)?;
        *path = to;
    }
    Ok(copy)
}

fn key(manifest: &str) -> String {
    let digest = Sha256::new().chain_update(FORM).chain_update(manifest).finalize();
    hexadecimal(&digest).chars().take(KEY_DIGITS).collect()
}

/// Held as long as the descriptor: one builder at a time, and what it left unfinished is known to
/// be left.
fn lock(cache: &Path) -> Result<File, ImageError> {
    let path = cache.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).at("open", &path)?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.at("lock", &path).map(|()| file),
        }
    }
}

/// Removes what builders left that were killed.
fn sweep(cache: &Path) -> Result<(), ImageError> {
    for entry in fs::read_dir(cache).at("read", cache)? {
        let entry = entry.at("read", cache)?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_dir_all(entry.path()).at("remove", &entry.path())?;
        }
    }
    Ok(())
}

/// The time of a directory's last change tells when its image was last used.
fn touch(directory: &Path) -> Result<(), ImageError> {
    let file = File::open(directory).at("open", directory)?;
    file.set_modified(SystemTime::now()).at("touch", directory)
}

/// Removes the images that were used least recently. Called after one was added, which is the
/// newest.
fn prune(cache: &Path) -> Result<(), ImageError> {
    let mut images = Vec::new();
    for entry in fs::read_dir(cache).at("read", cache)? {
        let path = entry.at("read", cache)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.len() == KEY_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let used = fs::metadata(&path).and_then(|found| found.modified()).at("read", &path)?;
            images.push((used, path));
        }
    }
    images.sort();
    for (_, path) in images.iter().take(images.len().saturating_sub(MAX_IMAGES)) {
        fs::remove_dir_all(path).at("remove", path)?;
    }
    Ok(())
}

fn write(
    plan: &Plan,
    manifest: &str,
    cache: &Path,
    directory: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), ImageError> {
    let unfinished =
        tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(cache).at("create a directory in", cache)?;
    let at = unfinished.path();
    write_kernel(plan, &at.join(KERNEL))?;
    write_initramfs(plan, &at.join(INITRAMFS), progress)?;
    let path = at.join(MANIFEST);
    let mut file = File::create(&path).at("create", &path)?;
    file.write_all(manifest.as_bytes()).and_then(|()| file.sync_all()).at("write", &path)?;
    // Readable by QEMU under whatever user it runs; nothing in a guest's image is a secret.
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).at("open up", at)?;
    // What a lost image left (see `build`: it has no initramfs) makes room.
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).at("remove", directory),
        _ => {}
    }
    // Its name is what tells that it is whole: all of it is on the disk before.
    File::open(at).and_then(|directory| directory.sync_all()).at("write", at)?;
    fs::rename(at, directory).at("rename", at)?;
    // It has its name now: nothing is left to remove.
    let _renamed = unfinished.keep();
    File::open(cache).and_then(|cache| cache.sync_all()).at("write", cache)
}

fn write_kernel(plan: &Plan, to: &Path) -> Result<(), ImageError> {
    let from = &plan.kernel_image;
    let mut reader = Hashing::new(File::open(from).at("read", from)?);
    let mut out = File::create(to).at("create", to)?;
    io::copy(&mut reader, &mut out).at("write", to)?;
    out.sync_all().at("write", to)?;
    reader.unchanged(&plan.kernel_digest, from)
}

fn write_initramfs(plan: &Plan, to: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(), ImageError> {
    let file = BufWriter::new(File::create(to).at("create", to)?);
    let file = match plan.compression {
        Compression::None => write_archive(plan, file, to, progress)?,
        Compression::Gzip => {
            let packer = flate2::write::GzEncoder::new(file, flate2::Compression::default());
            write_archive(plan, packer, to, progress)?.finish().at("write", to)?
        }
        Compression::Lz4 => {
            let packer = lz4::Writer::new(file).at("write", to)?;
            write_archive(plan, packer, to, progress)?.finish().at("write", to)?
        }
        Compression::Zstd => {
            let packer = zstd::Encoder::new(file, ZSTD_LEVEL).at("write", to)?;
            write_archive(plan, packer, to, progress)?.finish().at("write", to)?
        }
    };
    let file = file.into_inner().map_err(|error| error.into_error()).at("write", to)?;
    file.sync_all().at("write", to)
}

fn write_archive<W: Write>(
    plan: &Plan,
    out: W,
    to: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<W, ImageError> {
    let mut archive = Archive::new(out);
    for (done, (place, node)) in plan.nodes.iter().enumerate() {
        progress(Progress::Writing { done, of: plan.nodes.len() });
        match node {
            Node::Directory { mode } => archive.directory(place, *mode).at("write", to)?,
            Node::Link { target } => archive.link(place, target).at("write", to)?,
            Node::Device { mode, number } => archive.device(place, *mode, *number).at("write", to)?,
            Node::File { source, mode, length, digest } => {
                let from = source.path().unwrap_or(to);
                let mut reader = Hashing::new(source.open()?);
                archive.file(place, *mode, *length, &mut reader).at("pack", from)?;
                reader.unchanged(digest, from)?;
            }
        }
    }
    archive.finish().at("write", to)
}

fn describe(plan: &Plan, key: String, directory: &Path, cached: bool) -> Result<Image, ImageError> {
    let initramfs = directory.join(INITRAMFS);
    let initramfs_bytes = fs::metadata(&initramfs).at("read", &initramfs)?.len();
    Ok(Image {
        key,
        kernel_version: plan.kernel_version.clone(),
        kernel: directory.join(KERNEL),
        manifest: directory.join(MANIFEST),
        initramfs,
        entries: plan.nodes.len(),
        content_bytes: plan.bytes,
        initramfs_bytes,
        cached,
        missing_modules: plan.missing_modules.clone(),
    })
}

/// Reads, and tells in the end whether it was what the plan had read.
struct Hashing<R> {
    content: R,
    hash: Sha256,
}

impl<R: Read> Hashing<R> {
    fn new(content: R) -> Self {
        Self { content, hash: Sha256::new() }
    }

    fn unchanged(self, expected: &Digest, path: &Path) -> Result<(), ImageError> {
        let found: Digest = self.hash.finalize().into();
        if found == *expected { Ok(()) } else { Err(ImageError::Changed { path: path.to_path_buf() }) }
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.content.read(buffer)?;
        self.hash.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}
