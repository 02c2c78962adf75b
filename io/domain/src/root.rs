//! The root of a container, made ready inside the monitor's own mount namespace: the host never
//! sees these mounts, and they end with the monitor.

use crate::error::{Context, Error, Result};
use crate::hostroot;
use crate::layout::DomainPaths;
use crate::spec::{DomainSpec, Layer, Mount, Network, Root};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The tree of an image that was unpacked, and what the image says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ImageRoot {
    pub tree: PathBuf,
    pub environment: Vec<String>,
    pub command: Vec<String>,
    pub user: Option<String>,
    pub workdir: Option<PathBuf>,
}

/// A root that is ready to be used in a bundle.
#[derive(Debug)]
pub(crate) struct PreparedRoot {
    pub path: PathBuf,
    pub directory: OwnedFd,
    /// The other mounts that belong to it.
    pub mounts: Vec<Mount>,
    /// Directories that get a private, writable, bounded file system.
    pub private: Vec<&'static str>,
}

/// Makes the root of a container.
pub(crate) fn prepare(
    paths: &DomainPaths,
    spec: &DomainSpec,
    image: Option<&ImageRoot>,
) -> Result<PreparedRoot> {
    let path = paths.dir.join("root");
    fs::create_dir_all(&path).at("create", &path)?;
    let lower = match (&spec.root, image) {
        (Root::Host, _) => None,
        (Root::Directory(dir), _) => Some(dir),
        (Root::Image { .. }, Some(image)) => Some(&image.tree),
        (Root::Image { path, .. }, None) => {
            return Err(Error::Specification(format!("root: image {} was not unpacked", path.display())));
        }
    };
    let mounts = match lower {
        None if spec.writable => {
            overlay(paths, spec, &host_lower(paths)?, &path)?;
            hostroot::build(&path)?
        }
        None => hostroot::build(&path)?,
        Some(lower) => {
            overlay(paths, spec, lower, &path)?;
            Vec::new()
        }
    };
    let directory = open_directory(&path)?;
    write_names(&directory, spec)?;
    let mut private: Vec<&'static str> = match (lower.is_none(), spec.writable) {
        (true, _) => vec!["tmp", "run", "home", "var/tmp"],
        (false, false) => vec!["tmp", "run", "var/tmp"],
        (false, true) => vec!["run"],
    };
    private.retain(|name| mount_point(&directory, name).is_ok());
    ensure_directory(&directory, "srv").at("create the mount point /srv in", &path)?;
    Ok(PreparedRoot { path, directory, mounts, private })
}

/// A writable host root is an overlay over nothing, so that what it writes counts and ends like
/// that of the others.
fn host_lower(paths: &DomainPaths) -> Result<PathBuf> {
    let empty = paths.dir.join("empty");
    fs::create_dir_all(&empty).at("create", &empty)?;
    Ok(empty)
}

/// Where the layer is, in the domain's directory.
const LAYER: &str = "layer";
/// The type of a file system in memory, as `statfs(2)` says it.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// The layer of a root to which only we write: mount points, `/etc/hosts`.
const READ_ONLY_LAYER: Layer = Layer { bytes: 4 * 1024 * 1024, inodes: 4096 };

/// Makes the file system that holds the layer: one of its own, in memory and in the monitor's mount
/// namespace, so that what the domain writes has a bound, is charged to the domain, takes nothing
/// from the run directory, and ends with the mount.
fn layer(paths: &DomainPaths, spec: &DomainSpec) -> Result<PathBuf> {
    let at = paths.dir.join(LAYER);
    fs::create_dir_all(&at).at("create", &at)?;
    let Layer { bytes, inodes } =
        if spec.writable { spec.layer.unwrap_or_default() } else { READ_ONLY_LAYER };
    let options = std::ffi::CString::new(format!("mode=700,size={bytes},nr_inodes={inodes}"));
    let options = options.map_err(std::io::Error::from).at("mount a file system on", &at)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    mount("tmpfs", &at, "tmpfs", flags, options.as_c_str()).at("mount a file system on", &at)?;
    Ok(at)
}

/// How much of a layer is used. It is looked at where the monitor sees it, which the domain has no
/// influence on.
pub(crate) fn layer_usage(paths: &DomainPaths, monitor_pid: u32) -> Option<Layer> {
    let at = Path::new("/proc").join(monitor_pid.to_string()).join("root");
    let at = at.join(crate::layout::relative(&paths.dir)).join(LAYER);
    let there = rustix::fs::statfs(&at).ok().filter(|there| there.f_type == TMPFS_MAGIC)?;
    let block = u64::try_from(there.f_bsize).ok()?;
    Some(Layer {
        bytes: there.f_blocks.saturating_sub(there.f_bfree).saturating_mul(block),
        inodes: there.f_files.saturating_sub(there.f_ffree),
    })
}

/// An overlay even when read-only: mount points and `/etc/hosts` go to a layer of ours, never into
/// the directory that was given.
fn overlay(paths: &DomainPaths, spec: &DomainSpec, lower: &Path, target: &Path) -> Result<()> {
    if !lower.is_dir() {
        return Err(Error::Specification(format!("root: {} is not a directory", lower.display())));
    }
    let layer = layer(paths, spec)?;
    let (upper, work) = (layer.join("upper"), layer.join("work"));
    for dir in [&upper, &work] {
        fs::create_dir_all(dir).at("create", dir)?;
    }
    let options = format!("lowerdir={},upperdir={},workdir={}", escape(lower), escape(&upper), escape(&work));
    let options =
        std::ffi::CString::new(options).map_err(std::io::Error::from).at("mount an overlay on", target)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    match mount("overlay", target, "overlay", flags, options.as_c_str()) {
        Err(Errno::NODEV) => Err(Error::Specification(
            "root: this kernel has no overlay file system (CONFIG_OVERLAY_FS; try `modprobe overlay`), which roots of kind directory and image need".into(),
        )),
        Err(Errno::INVAL) => Err(Errno::INVAL).at(
            "lay an overlay (the kernel needs CONFIG_TMPFS_XATTR, and the root must be on a file system that can be a lower layer) on",
            target,
        ),
        other => other.at("lay an overlay on", target),
    }
}

/// Overlay options are separated by commas and lower directories by colons.
fn escape(path: &Path) -> String {
    let mut out = String::new();
    for c in path.to_string_lossy().chars() {
        if matches!(c, ',' | ':' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

pub(crate) fn open_directory(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).at("open", path)
}

/// Its name in the files that programs look into.
fn write_names(root: &OwnedFd, spec: &DomainSpec) -> Result<()> {
    ensure_directory(root, "etc").at("create in the root", "etc")?;
    let hostname = spec.hostname.as_deref().unwrap_or(&spec.name);
    let own = if spec.network == Network::None { format!("127.0.1.1 {hostname}\n") } else { String::new() };
    let hosts = format!("127.0.0.1 localhost\n{own}::1 localhost ip6-localhost ip6-loopback\n");
    replace_file(root, "hosts", &hosts)?;
    replace_file(root, "hostname", &format!("{hostname}\n"))?;
    if let Some(text) = resolv_conf(spec) {
        replace_file(root, "resolv.conf", &text)?;
    }
    Ok(())
}

fn resolv_conf(spec: &DomainSpec) -> Option<String> {
    let given = spec.resolv_conf.clone();
    given.or_else(|| match spec.network {
        Network::Host => fs::read_to_string("/etc/resolv.conf").ok(),
        Network::None => Some("# This domain has no name server: its network is none.\n".to_owned()),
    })
}

/// Makes `etc/NAME` a new file with this text. The root may be a stranger's: links on the way are
/// followed inside it only, and what is at the place itself is removed, not followed.
fn replace_file(root: &OwnedFd, name: &str, text: &str) -> Result<()> {
    let etc = open_inside(root, "etc").at("open the root's", "etc")?;
    match rustix::fs::unlinkat(&etc, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error).at("replace the root's /etc file", name),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&etc, name, flags, Mode::from_raw_mode(0o644))
        .at("create the root's /etc file", name)?;
    let mut file = File::from(file);
    file.write_all(text.as_bytes()).at("write the root's /etc file", name)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644)).at("open to readers the root's /etc file", name)
}

fn open_inside(root: &OwnedFd, path: &str) -> std::result::Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

/// Makes a directory below the root, its parents included, unless it is there.
fn ensure_directory(root: &OwnedFd, path: &str) -> std::result::Result<(), Errno> {
    let mut so_far = String::new();
    for component in path.split('/') {
        let parent = if so_far.is_empty() { ".".to_owned() } else { so_far.clone() };
        so_far = if so_far.is_empty() { component.to_owned() } else { format!("{so_far}/{component}") };
        match open_inside(root, &so_far) {
            Ok(_) => continue,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
        rustix::fs::mkdirat(open_inside(root, &parent)?, component, Mode::from_raw_mode(0o755))?;
    }
    Ok(())
}

/// The mode of a private directory of the root.
pub(crate) fn private_mode(name: &str) -> u32 {
    if matches!(name, "tmp" | "var/tmp") { 0o1777 } else { 0o755 }
}

/// Makes the place of a private file system. It has that file system's mode, which runc(8) takes
/// from its mount point.
fn mount_point(root: &OwnedFd, name: &str) -> std::result::Result<(), Errno> {
    ensure_directory(root, name)?;
    let mode = Mode::from_raw_mode(private_mode(name));
    rustix::fs::chmodat(open_inside(root, name)?, ".", mode, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_root_can_not_redirect_what_we_write() {
        let dir = tempfile::tempdir().expect("dir");
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        fs::create_dir_all(root.join("etc")).expect("etc");
        fs::write(&outside, "untouched").expect("outside");
        std::os::unix::fs::symlink("../../outside", root.join("etc/hosts")).expect("link");
        let handle = open_directory(&root).expect("open");
        replace_file(&handle, "hosts", "ours").expect("replace");
        assert_eq!(fs::read_to_string(&outside).expect("outside"), "untouched");
        assert_eq!(fs::read_to_string(root.join("etc/hosts")).expect("hosts"), "ours");
        std::os::unix::fs::symlink("/../../..", root.join("var")).expect("link");
        ensure_directory(&handle, "var/tmp").expect("var/tmp");
        assert!(root.join("tmp").is_dir(), "the link was followed inside the root");
    }

    #[test]
    fn overlay_options_are_escaped() {
        assert_eq!(escape(Path::new("/a,b:c\\d")), "/a\\,b\\:c\\\\d");
    }
}
