//! Files beside the control socket of a domain for its programs: the preload library, and channels
//! and endpoints for C and Python.
//!
//! There is one copy of each file in the run directory, and a link to it for each domain. A copy
//! that is no longer what the node has is replaced, never written to: programs that have the old
//! one keep it whole.

use super::Domains;
use super::spec;
use crate::broker::control;
use domain::Layout;
use rustix::net::SocketType;
use std::fs::{self, DirBuilder, File, FileTimes, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use topology::{Domain, DomainKind, ServiceKind, Step, Topology};

/// The C library, beside the binary on the node.
const LIBRARY: &str = "libtombolo.so";
/// The same by the name that programs ask the loader for: in the run directory, and in the domain.
const LIBRARY_FOR_THE_LOADER: &str = "libtombolo.so.0";
/// The folder that goes into `PYTHONPATH` in a domain; the same name in the run directory has the
/// copies.
const PYTHON: &str = "python";
/// The package in there.
const PACKAGE: &str = "tombolo";

/// The socket of the domain's clients of 9P, where its file asks for one; one of an earlier
/// incarnation goes.
pub(crate) fn ninep_socket(inside: &Path, wanted: bool) -> io::Result<Option<OwnedFd>> {
    if wanted {
        return control::listen(inside, spec::NINEP_SOCKET, SocketType::STREAM, 0o666).map(Some);
    }
    match fs::remove_file(inside.join(spec::NINEP_SOCKET)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(None),
    }
}

/// Domains come up at the same time, and all want the same copies.
static COPYING: Mutex<()> = Mutex::new(());

/// The libraries that a domain is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    preload: bool,
    library: bool,
}

impl Wanted {
    /// Selects a domain's libraries by its topology: the preload library if it asks for it; the
    /// library of channels and endpoints, with the Python package, if it takes part in a channel,
    /// its program serves files, or it mounts keys and locks, or if there are endpoints, since any
    /// program may bind one.
    pub(crate) fn by(topology: &Topology, domain: &Domain) -> Self {
        let name = domain.name.as_str();
        let has_channel = topology.services.iter().any(|service| {
            let offers = !service.kind().has_server() && service.is_offered_in(domain.name.as_str());
            // Programs that listen at a socket, or connect to one, need nothing of ours.
            service.kind() != ServiceKind::Socket && (offers || service.opens(name))
        });
        let coordinates = domain.services.iter().any(|mount| {
            let service = topology.service(mount.service.as_str());
            service.is_some_and(|service| service.kind() == ServiceKind::Coordination)
        });
        Self {
            preload: domain.services.iter().any(|mount| mount.preload),
            library: has_channel || coordinates || !topology.endpoints.is_empty(),
        }
    }
}

/// Puts the files into the folder that the domain sees as `/run/tombolo`. The folder must be there.
pub(crate) fn place(layout: &Layout, inside: &Path, wanted: Wanted) -> Result<(), String> {
    let _one_at_a_time = COPYING.lock().unwrap_or_else(PoisonError::into_inner);
    if wanted.preload {
        place_preload(layout, inside)?;
    }
    if wanted.library {
        place_library(layout, inside)?;
    }
    Ok(())
}

/// Gives a domain, whose command waits, its secrets.
pub(super) fn attach_secrets(
    layout: &Layout,
    (dc, domain): (&str, &Domain),
    created: &domain::Created,
    secrets: &[(String, Vec<u8>)],
) -> Result<(), String> {
    if secrets.is_empty() {
        return Ok(());
    }
    if domain.kind == DomainKind::Process {
        let folder = spec::secrets_folder(layout, dc, domain.name.as_str());
        domain::make_folder(&folder, 0o755).map_err(crate::base::said)?;
    }
    let at = spec::secrets_at(layout, dc, domain);
    domain::attach_secrets(created.init_descriptor(), &at, secrets).map_err(crate::base::said)
}

/// After a step that changes who takes part in a channel or serves files, or the endpoints: gives
/// the files to those that run already.
pub(crate) async fn follow(node: &Domains, dc: &str, step: &Step) -> Result<(), String> {
    let service = match step {
        Step::AddService { service } | Step::UpdateService { after: service, .. } => Some(&service.name),
        Step::Grant { service, .. } => Some(service),
        Step::UpdateEndpoints { .. } => None,
        _ => return Ok(()),
    };
    let Some(topology) = node.topology(dc) else { return Ok(()) };
    let concerns =
        service.is_none_or(|name| topology.service(name).is_some_and(|it| !it.kind().has_server()));
    if !concerns {
        return Ok(());
    }
    let layout = node.layout.clone();
    let mut folders = Vec::new();
    for domain in &topology.domains {
        let wanted = Wanted { preload: false, ..Wanted::by(&topology, domain) };
        folders.push((layout.domain(dc, domain.name.as_str()).map_err(crate::base::said)?, wanted));
    }
    crate::base::blocking(move || {
        // Those that have no folder yet get theirs when they start.
        let there = folders.iter().filter(|(paths, _)| paths.inside().is_dir());
        there.into_iter().try_for_each(|(paths, wanted)| place(&layout, &paths.inside(), *wanted))
    })
    .await?
}

fn place_preload(layout: &Layout, inside: &Path) -> Result<(), String> {
    let source = layout.program.with_file_name(spec::PRELOAD_LIBRARY);
    let there = fs::metadata(&source).map_err(|error| {
        format!(
            "the entrance `preload` needs {}: {error}; build it (`make build`) or leave out `preload`",
            source.display()
        )
    })?;
    let copy = layout.run_dir.join(spec::PRELOAD_LIBRARY);
    copy_anew(&source, &there, &copy)?;
    link(&copy, &inside.join(spec::PRELOAD_LIBRARY))
}

/// Nothing where the node has no such library: it is for those who want it, and a domain may have
/// one of its own.
fn place_library(layout: &Layout, inside: &Path) -> Result<(), String> {
    let source = layout.program.with_file_name(LIBRARY);
    let there = match fs::metadata(&source) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|e| at("look at", &source, &e))?,
    };
    let library = layout.run_dir.join(LIBRARY_FOR_THE_LOADER);
    copy_anew(&source, &there, &library)?;
    link(&library, &inside.join(LIBRARY_FOR_THE_LOADER))?;
    let copies = layout.run_dir.join(PYTHON);
    folder(&copies)?;
    let package = inside.join(PYTHON).join(PACKAGE);
    folder(&inside.join(PYTHON))?;
    folder(&package)?;
    for (name, text) in image::PYTHON {
        let copy = copies.join(name);
        write_anew(text, &copy)?;
        link(&copy, &package.join(name))?;
    }
    // The package looks beside itself first.
    link(&library, &package.join(LIBRARY_FOR_THE_LOADER))
}

/// A folder that every user of the domain may look into, whatever our umask.
fn folder(path: &Path) -> Result<(), String> {
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)))
        .map_err(|e| at("make", path, &e))
}

/// Copies a library, unless the copy is the one of this file: a copy has the time of what it was
/// copied from, so that an older file that takes the place of a newer one is seen, too.
fn copy_anew(source: &Path, there: &Metadata, copy: &Path) -> Result<(), String> {
    let same = |old: Metadata| {
        old.len() == there.len() && (old.mtime(), old.mtime_nsec()) == (there.mtime(), there.mtime_nsec())
    };
    if fs::metadata(copy).is_ok_and(same) {
        return Ok(());
    }
    replace(copy, |new| {
        fs::copy(source, new)?;
        let times = FileTimes::new().set_modified(there.modified()?);
        File::options().write(true).open(new)?.set_times(times)
    })
    .map_err(|e| at(&format!("copy {} to", source.display()), copy, &e))
}

/// Writes a file, unless it says that already.
fn write_anew(text: &str, copy: &Path) -> Result<(), String> {
    let same = fs::metadata(copy).is_ok_and(|old| old.len() == text.len() as u64)
        && fs::read(copy).is_ok_and(|old| old == text.as_bytes());
    if same {
        return Ok(());
    }
    replace(copy, |new| fs::write(new, text)).map_err(|e| at("write", copy, &e))
}

/// Makes a file beside and renames it, readable for all.
fn replace(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let new = path.with_extension("new");
    remove(&new)?;
    make(&new)?;
    // Where the run directory is on a disk, a copy is told from a torn one by its length and time
    // alone.
    File::open(&new)?.sync_all()?;
    fs::set_permissions(&new, Permissions::from_mode(0o644))?;
    fs::rename(&new, path)
}

/// Makes `target` a link to the copy; at no moment is there nothing.
fn link(copy: &Path, target: &Path) -> Result<(), String> {
    let linked = || -> io::Result<()> {
        let found = fs::metadata(copy)?;
        // A rename between two links to the same file does nothing, and leaves both.
        if fs::symlink_metadata(target).is_ok_and(|old| (old.dev(), old.ino()) == (found.dev(), found.ino()))
        {
            return Ok(());
        }
        let new = target.with_extension("new");
        remove(&new)?;
        fs::hard_link(copy, &new)?;
        fs::rename(&new, target)
    };
    linked().map_err(|e| at(&format!("link {} to", copy.display()), target, &e))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn at(what: &str, path: &Path, error: &io::Error) -> String {
    format!("can't {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A node's folders, and the `inside` of one domain.
    fn ground() -> (tempfile::TempDir, Layout, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let layout = Layout {
            run_dir: path("run"),
            state_dir: path("state"),
            program: path("bin/tombolo"),
            cgroup_name: "t".into(),
        };
        let inside = path("run/dc/shop/viewer/inside");
        for folder in [&inside, &path("bin")] {
            fs::create_dir_all(folder).expect("made");
        }
        (folder, layout, inside)
    }

    const LIBRARIES: Wanted = Wanted { preload: false, library: true };

    fn read(path: impl AsRef<Path>) -> String {
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
    }

    #[test]
    fn without_the_library_nothing_is_placed_and_nothing_fails() {
        let (_folder, layout, inside) = ground();
        place(&layout, &inside, LIBRARIES).expect("no error");
        assert_eq!(fs::read_dir(&inside).expect("it is there").count(), 0);
        let wanted = Wanted { preload: true, library: false };
        let error = place(&layout, &inside, wanted).expect_err("who asks for preload needs it");
        assert!(error.contains("leave out `preload`"), "{error}");
    }

    #[test]
    fn a_domain_has_links_to_one_copy_and_a_new_build_replaces_it() {
        let (_folder, layout, inside) = ground();
        let source = layout.program.with_file_name(LIBRARY);
        fs::write(&source, "one").expect("written");
        place(&layout, &inside, LIBRARIES).expect("placed");
        let (library, init) = (inside.join("libtombolo.so.0"), inside.join("python/tombolo/__init__.py"));
        let beside = inside.join("python/tombolo/libtombolo.so.0");
        assert_eq!((read(&library), read(&beside)), ("one".into(), "one".into()));
        assert!(read(&init).contains("import"));
        let inode = |path: &Path| fs::metadata(path).expect("it is there").ino();
        let first = inode(&library);
        assert_eq!((first, first), (inode(&beside), inode(&layout.run_dir.join("libtombolo.so.0"))));
        // Nothing has changed: nothing is made anew.
        place(&layout, &inside, LIBRARIES).expect("placed");
        assert_eq!(inode(&library), first);
        // As long, and older: as a package that is put in the place of a newer build.
        fs::write(&source, "two").expect("written");
        let past = fs::metadata(&source).expect("there").modified().expect("a time")
            - std::time::Duration::from_secs(1000);
        let times = FileTimes::new().set_modified(past);
        File::options().write(true).open(&source).expect("opened").set_times(times).expect("set");
        fs::write(layout.run_dir.join("python/__init__.py"), "of another version").expect("written");
        let kept = File::open(&library).expect("a program that has the old one");
        place(&layout, &inside, LIBRARIES).expect("placed");
        assert_eq!((read(&library), read(&beside)), ("two".into(), "two".into()));
        assert!(read(&init).contains("import"));
        assert_eq!(io::read_to_string(kept).expect("read"), "one");
        let left: Vec<_> = [&inside, &inside.join("python/tombolo"), &layout.run_dir]
            .into_iter()
            .flat_map(|folder| fs::read_dir(folder).expect("there").map(|entry| entry.expect("one").path()))
            .filter(|path| path.extension().is_some_and(|end| end == "new"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn where_there_are_endpoints_every_domain_is_given_the_library() {
        let domain = |name| format!("[domain.{name}]\nkind = \"container\"\ncommand = [\"true\"]\n");
        let domains = format!("name = \"shop\"\n{}{}", domain("a"), domain("b"));
        let given = |more: &str| {
            let text = format!("{domains}{more}");
            let topology = topology::parse(&text, "shop.toml", Path::new("/")).expect("a topology");
            topology.domains.iter().map(|domain| Wanted::by(&topology, domain)).collect::<Vec<_>>()
        };
        assert_eq!(given("[endpoint.planner]\ndomain = \"a\"\n"), [LIBRARIES, LIBRARIES]);
        let nothing = Wanted { preload: false, library: false };
        assert_eq!(given(""), [nothing, nothing]);
    }

    #[test]
    fn all_users_of_a_domain_may_read_it() {
        let (_folder, layout, inside) = ground();
        let source = layout.program.with_file_name(LIBRARY);
        fs::write(&source, "one").expect("written");
        fs::set_permissions(&source, Permissions::from_mode(0o600)).expect("set");
        place(&layout, &inside, LIBRARIES).expect("placed");
        let mode = |name: &str| fs::metadata(inside.join(name)).expect("there").mode() & 0o777;
        assert_eq!((mode("libtombolo.so.0"), mode("python/tombolo/_end.py")), (0o644, 0o644));
        assert_eq!((mode("python"), mode("python/tombolo")), (0o755, 0o755));
    }
}
