//! The file tree that a domain would have, looked at before the domain is made: whether its user is
//! known there, whether its programs are there, whether its mounts fit.
//!
//! Nothing is mounted or written. A path is followed name by name through the root and the mounts,
//! as the kernel will follow it in the domain, links included; links of a root lead nowhere outside
//! it. What only the made domain can show (`/proc`, `/dev`, `/srv`, the control socket, the
//! generated files of `/etc`) is [`Seen::Unknown`], and every rule about that holds.

use crate::bundle::{DEFAULT_PATH, INSIDE, environment};
use crate::error::{Error, Result};
use crate::hostroot;
use crate::image;
use crate::layout::Layout;
use crate::privilege::{Accounts, Identity};
use crate::root::{ImageRoot, open_directory};
use crate::spec::{DomainSpec, Kind, Root};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links that are followed on one path: what the kernel follows (`path_resolution(7)`).
const MAX_LINKS: usize = 40;
/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`).
const SCRIPT_LINE_BYTES: u64 = 256;
/// Anybody's permission to execute.
const EXECUTE_ANY: u32 = 0o111;
/// The owner's permission to execute.
const EXECUTE_OWNER: u32 = 0o100;
/// The capability with which any permission is one's own.
const OVERRIDE: &str = "DAC_OVERRIDE";
/// Where only the domain itself can show what is there.
const UNKNOWN: [&str; 5] = ["/proc", "/sys", "/dev", "/srv", INSIDE];
/// Where the root is its own file system, and empty, by [`crate::root::prepare`].
const EMPTY_IN_HOST: [&str; 4] = ["/tmp", "/run", "/home", "/var/tmp"];
const EMPTY_IN_READ_ONLY: [&str; 3] = ["/tmp", "/run", "/var/tmp"];
const EMPTY_IN_WRITABLE: [&str; 1] = ["/run"];

/// Whether images may be unpacked to look into them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unpack {
    /// They are, and are there for the start.
    Yes,
    /// One that is not unpacked yet is not looked into.
    No,
}

/// Why a command can't run in a domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// There is neither a command nor one of the image's.
    #[error("there is nothing to run: the image names no command")]
    Nothing,
    /// No file of that path.
    #[error("there is no {path:?} in the domain's file tree")]
    Missing {
        /// The path in the domain.
        path: PathBuf,
    },
    /// No file of that name in any of the directories.
    #[error("there is no program {name:?} in the domain's file tree: PATH is {path}")]
    NotInPath {
        /// The name.
        name: String,
        /// The directories, with colons.
        path: String,
    },
    /// Something that is no program.
    #[error("{path:?} is no file that can be executed: it is {what}")]
    NotExecutable {
        /// The path in the domain.
        path: PathBuf,
        /// The thing.
        what: String,
    },
    /// A script for a program that is not there.
    #[error("{path:?} is a script for {interpreter:?}, which is not in the domain's file tree")]
    NoInterpreter {
        /// The script.
        path: PathBuf,
        /// The interpreter that its first line names.
        interpreter: PathBuf,
    },
}

/// The object at a path of the domain.
#[derive(Debug)]
enum Seen {
    Nothing,
    /// Nobody can look there before the domain is made.
    Unknown,
    /// A directory that is made for the domain, and is empty.
    Empty,
    /// At this path of the node.
    There(PathBuf, Metadata),
}

/// Where the root comes from.
#[derive(Debug)]
enum Tree {
    /// A directory of the node.
    Directory(PathBuf),
    /// The machine's own programs ([`hostroot`]).
    Host,
    /// An image that is not unpacked.
    Unseen,
}

/// The file tree that a domain would have.
#[derive(Debug)]
pub struct Prospect {
    tree: Tree,
    image: ImageRoot,
    /// Directories that hide what the root has there.
    empty: &'static [&'static str],
    /// Where in the domain, and what of the node; the last one wins.
    mounts: Vec<(PathBuf, PathBuf)>,
    /// Mounts of a file on a directory or the other way round, by their number.
    unfit: Vec<usize>,
    process: bool,
    /// Whether its programs may execute what anybody may.
    overrides: bool,
}

impl Prospect {
    /// Looks at what a domain of this specification would see.
    ///
    /// # Errors
    /// [`Error::Image`] where the image is not there, is damaged, or can't be unpacked; a root that
    /// can't be opened.
    pub fn of(layout: &Layout, spec: &DomainSpec, unpack: Unpack) -> Result<Self> {
        let process = spec.kind == Kind::Process;
        let mut image = ImageRoot::default();
        let tree = match &spec.root {
            _ if process => Tree::Directory("/".into()),
            Root::Host => Tree::Host,
            Root::Directory(path) => Tree::Directory(path.clone()),
            Root::Image { path, tag } => {
                let images = layout.images();
                let found = match unpack {
                    Unpack::Yes => image::prepare(&images, path, tag.as_deref()),
                    Unpack::No => image::describe(&images, path, tag.as_deref()),
                };
                image = found.map_err(|source| Error::Image { path: path.clone(), source })?;
                // Who may not look there has not looked: only root may.
                if image.tree.is_dir() { Tree::Directory(image.tree.clone()) } else { Tree::Unseen }
            }
        };
        let empty: &[&str] = match (&tree, spec.writable) {
            _ if process => &[],
            (Tree::Host, _) => &EMPTY_IN_HOST,
            (_, false) => &EMPTY_IN_READ_ONLY,
            (_, true) => &EMPTY_IN_WRITABLE,
        };
        let overrides = spec.capabilities.iter().any(|name| name.to_ascii_uppercase().ends_with(OVERRIDE));
        let (mounts, unfit) = (Vec::new(), Vec::new());
        let mut prospect = Self { tree, image, empty, mounts, unfit, process, overrides };
        if !process {
            prospect.mount(spec);
        }
        Ok(prospect)
    }

    /// Enters the mounts one after the other, as they will be made.
    fn mount(&mut self, spec: &DomainSpec) {
        for (index, mount) in spec.mounts.iter().enumerate() {
            // A bind follows links of the node.
            let Ok(source) = fs::canonicalize(&mount.source) else { continue };
            let target = self.canonical(&mount.target);
            if let Seen::There(_, at) = self.find(&target)
                && at.is_dir() != source.is_dir()
            {
                self.unfit.push(index);
                continue;
            }
            self.mounts.push((target, source));
        }
    }

    /// The mounts that can't be made, by their number in the specification: a file on a directory,
    /// or a directory on a file.
    #[must_use]
    pub fn unfit_mounts(&self) -> &[usize] {
        &self.unfit
    }

    /// Whether the user is the image's own word.
    #[must_use]
    pub fn has_user(&self) -> bool {
        self.image.user.is_some()
    }

    /// The user of the command; absent: the image's user, or root. `None`: the accounts of its root
    /// can't be looked at.
    ///
    /// # Errors
    /// [`Error::Specification`] for a user or group that the root does not know.
    pub fn identity(&self, user: Option<&str>) -> Result<Option<Identity>> {
        let root = match &self.tree {
            Tree::Directory(path) => path.as_path(),
            Tree::Host => Path::new("/"),
            Tree::Unseen => return Ok(None),
        };
        let Ok(root) = open_directory(root) else { return Ok(None) };
        let user = user.or(self.image.user.as_deref());
        match Accounts::read(&root).map_err(Error::from).and_then(|accounts| Ok(accounts.resolve(user)?)) {
            Ok(identity) => Ok(Some(identity)),
            Err(error @ Error::Specification(_)) => Err(error),
            // Who may not read them does not know.
            Err(_) => Ok(None),
        }
    }

    /// Looks for the program of a command as the runtime will: in `PATH`, unless it has a slash.
    /// `identity` is whoever runs it, where that is known.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn program(
        &self,
        spec: &DomainSpec,
        command: &[String],
        identity: Option<&Identity>,
    ) -> std::result::Result<(), ProgramError> {
        let command = if command.is_empty() { &self.image.command } else { command };
        let Some(name) = command.first() else { return Err(ProgramError::Nothing) };
        let workdir = spec.workdir.as_deref().or(self.image.workdir.as_deref()).unwrap_or(Path::new("/"));
        if name.contains('/') {
            return self.executable(&workdir.join(name), identity).map(drop);
        }
        let home = identity.and_then(|identity| identity.home.as_deref());
        let variables = environment(&self.image.environment, &spec.environment, home);
        let path = variables.iter().find_map(|pair| pair.strip_prefix("PATH="));
        let path = path.unwrap_or(DEFAULT_PATH);
        let mut refused = None;
        for folder in path.split(':') {
            match self.executable(&workdir.join(folder).join(name), identity) {
                Ok(()) => return Ok(()),
                Err(ProgramError::Missing { .. }) => {}
                // A runtime goes on to the next directory, too.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or_else(|| ProgramError::NotInPath { name: name.clone(), path: path.to_owned() }))
    }

    /// Whether the file at a path can be executed, as far as that can be seen.
    fn executable(&self, path: &Path, identity: Option<&Identity>) -> std::result::Result<(), ProgramError> {
        let no = |what: String| Err(ProgramError::NotExecutable { path: path.to_owned(), what });
        let (at, metadata) = match self.find(path) {
            Seen::Unknown => return Ok(()),
            Seen::Nothing => return Err(ProgramError::Missing { path: path.to_owned() }),
            Seen::Empty => return no("a directory".into()),
            Seen::There(at, metadata) => (at, metadata),
        };
        if metadata.is_dir() {
            return no("a directory".into());
        }
        if !metadata.is_file() {
            return no("no regular file".into());
        }
        // An owner without the permission has it by no group and no list; for anybody else a list
        // may say so.
        let owner = identity.is_some_and(|identity| identity.uid == metadata.uid());
        let wanted = if owner && !self.overrides { EXECUTE_OWNER } else { EXECUTE_ANY };
        if metadata.mode() & wanted == 0 {
            return no(format!("of mode {:04o}", metadata.mode() & 0o7777));
        }
        match interpreter(&at) {
            Some(interpreter) if matches!(self.find(&interpreter), Seen::Nothing) => {
                Err(ProgramError::NoInterpreter { path: path.to_owned(), interpreter })
            }
            _ => Ok(()),
        }
    }

    /// The object at a path of the domain, links followed.
    fn find(&self, path: &Path) -> Seen {
        let mut at = PathBuf::from("/");
        let mut links = 0;
        let mut seen = Seen::Unknown;
        let mut left = names(path);
        while let Some(name) = left.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            if !self.process && UNKNOWN.iter().any(|place| next == Path::new(place)) {
                return Seen::Unknown;
            }
            seen = self.look(&next);
            match &seen {
                Seen::Nothing | Seen::Unknown => return seen,
                Seen::There(on_node, metadata) if metadata.is_symlink() => {
                    links += 1;
                    let Ok(target) = fs::read_link(on_node) else { return Seen::Unknown };
                    if links > MAX_LINKS {
                        return Seen::Nothing;
                    }
                    if target.is_absolute() {
                        at = "/".into();
                    }
                    left.extend(names(&target));
                }
                Seen::There(_, metadata) if !metadata.is_dir() && !left.is_empty() => return Seen::Nothing,
                Seen::Empty | Seen::There(..) => at = next,
            }
        }
        seen
    }

    /// A path with the links of what is there followed, as a runtime finds the place of a mount.
    fn canonical(&self, path: &Path) -> PathBuf {
        let mut at = PathBuf::from("/");
        let mut links = 0;
        let mut left = names(path);
        while let Some(name) = left.pop() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            match self.look(&next) {
                Seen::There(on_node, metadata) if metadata.is_symlink() && links < MAX_LINKS => {
                    links += 1;
                    let target = fs::read_link(on_node).unwrap_or_default();
                    if target.is_absolute() {
                        at = "/".into();
                    }
                    left.extend(names(&target));
                }
                _ => at = next,
            }
        }
        at
    }

    /// The object at a path whose parents are no links, itself not followed.
    fn look(&self, path: &Path) -> Seen {
        let mount = self.mounts.iter().rev().find(|(target, _)| path.starts_with(target));
        if let Some((target, source)) = mount {
            let rest = path.strip_prefix(target).unwrap_or(Path::new(""));
            return on_node(if rest.as_os_str().is_empty() { source.clone() } else { source.join(rest) });
        }
        // The place of a mount is made with what is above it.
        let leads_to_mount = self.mounts.iter().any(|(target, _)| target.starts_with(path));
        if self.empty.iter().any(|empty| path == Path::new(empty)) {
            return Seen::Empty;
        }
        let hidden = self.empty.iter().any(|empty| path.starts_with(empty));
        let found = match &self.tree {
            _ if hidden => Seen::Nothing,
            Tree::Directory(root) => on_node(root.join(path.strip_prefix("/").unwrap_or(path))),
            Tree::Host if hostroot::is_taken_over(path) => on_node(path.to_owned()),
            Tree::Host if path == Path::new("/etc") => Seen::Empty,
            Tree::Host if path.starts_with("/etc") => Seen::Unknown,
            Tree::Host if hostroot::is_made(path) => Seen::Empty,
            Tree::Host => Seen::Nothing,
            Tree::Unseen => Seen::Unknown,
        };
        if leads_to_mount && matches!(found, Seen::Nothing) { Seen::Empty } else { found }
    }
}

/// The object at a path of the node, not followed.
fn on_node(path: PathBuf) -> Seen {
    match fs::symlink_metadata(&path) {
        Ok(metadata) => Seen::There(path, metadata),
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            Seen::Nothing
        }
        // Who may not look there does not know.
        Err(_) => Seen::Unknown,
    }
}

/// The names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        })
        .collect();
    names.reverse();
    names
}

/// The program that a script's first line names (`execve(2)`).
fn interpreter(path: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    File::open(path).ok()?.take(SCRIPT_LINE_BYTES).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let name: Vec<u8> =
        line.iter().skip_while(|byte| is_blank(byte)).take_while(|byte| !is_blank(byte)).copied().collect();
    let name = PathBuf::from(OsString::from_vec(name));
    // A relative one starts from wherever the program is then.
    (name.is_absolute() && name.as_os_str().as_bytes().len() > 1).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Mount;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A root with a program, a script, a link, and things that are none.
    struct Bed {
        folder: tempfile::TempDir,
        spec: DomainSpec,
    }

    impl Bed {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let root = folder.path().join("root");
            for name in ["usr/bin", "etc", "opt/app", "tmp"] {
                fs::create_dir_all(root.join(name)).expect("a directory");
            }
            let file = |name: &str, text: &str, mode: u32| {
                let at = root.join(name);
                fs::write(&at, text).expect("a file");
                fs::set_permissions(&at, fs::Permissions::from_mode(mode)).expect("its mode");
            };
            file("usr/bin/tool", "\x7fELF", 0o755);
            file("usr/bin/data", "text", 0o644);
            file("usr/bin/script", "#!/bin/tool -x\n", 0o755);
            file("usr/bin/orphan", "#! /bin/perl\n", 0o755);
            file("tmp/hidden", "\x7fELF", 0o755);
            file("etc/passwd", "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/:/bin/sh\n", 0o644);
            symlink("/usr/bin", root.join("bin")).expect("a link");
            symlink("../../../../bin/tool", root.join("opt/app/up")).expect("a link");
            symlink("round", root.join("opt/round")).expect("a link");
            let mut spec = DomainSpec::new("dc", "d", Kind::Container, &["tool"]);
            spec.root = Root::Directory(root);
            Self { folder, spec }
        }

        fn prospect(&self) -> Prospect {
            let layout = Layout {
                run_dir: self.folder.path().join("run"),
                state_dir: self.folder.path().join("state"),
                cgroup_name: "t".into(),
                program: "/usr/bin/tombolo".into(),
            };
            Prospect::of(&layout, &self.spec, Unpack::Yes).expect("a prospect")
        }

        fn says(&self, word: &str) -> String {
            let said = self.prospect().program(&self.spec, &[word.to_owned()], None);
            said.map_or_else(|error| error.to_string(), |()| "found".into())
        }
    }

    #[test]
    fn programs_are_found_as_the_runtime_finds_them() {
        let mut bed = Bed::new();
        for word in ["tool", "/bin/tool", "usr/bin/tool", "script", "/opt/app/up", "/run/tombolo/tombolo"] {
            assert_eq!(bed.says(word), "found", "{word}");
        }
        for (word, why) in [
            ("nosuch", "there is no program \"nosuch\" in the domain's file tree: PATH is /usr/local/sbin"),
            ("/bin/nosuch", "there is no \"/bin/nosuch\""),
            ("data", "of mode 0644"),
            ("/usr", "it is a directory"),
            ("orphan", "is a script for \"/bin/perl\""),
            ("/tmp/hidden", "there is no \"/tmp/hidden\""),
            ("/opt/round", "there is no \"/opt/round\""),
            ("/usr/bin/tool/x", "there is no \"/usr/bin/tool/x\""),
        ] {
            let said = bed.says(word);
            assert!(said.contains(why), "{word}: {said}");
        }
        bed.spec.environment = vec![("PATH".into(), "/opt/app".into())];
        assert_eq!(bed.says("up"), "found");
        assert!(bed.says("tool").contains("PATH is /opt/app"));
        bed.spec.workdir = Some("/usr".into());
        assert_eq!(bed.says("bin/tool"), "found");
    }

    #[test]
    fn mounts_are_looked_through_and_refused_where_they_do_not_fit() {
        let mut bed = Bed::new();
        let tools = bed.folder.path().join("tools");
        fs::create_dir(&tools).expect("a directory");
        fs::copy("/bin/true", tools.join("mounted")).expect("a program");
        let mount = |target: &str| Mount { source: tools.clone(), target: target.into(), read_only: true };
        bed.spec.mounts = vec![mount("/far/away"), mount("/bin/more"), mount("/usr/bin/data")];
        assert_eq!(bed.says("/far/away/mounted"), "found");
        assert_eq!(bed.says("/usr/bin/more/mounted"), "found", "its place was a link");
        assert!(bed.says("/far/mounted").contains("there is no"));
        assert_eq!(bed.prospect().unfit_mounts(), [2]);
    }

    #[test]
    fn users_are_those_of_the_root() {
        let bed = Bed::new();
        let prospect = bed.prospect();
        let uid = |user| prospect.identity(user).map(|identity| identity.map(|identity| identity.uid));
        assert_eq!(uid(Some("ada")).ok(), Some(Some(1000)));
        assert_eq!(uid(Some("7")).ok(), Some(Some(7)));
        assert!(uid(Some("ghost")).unwrap_err().to_string().contains("\"ghost\" is not in"));
    }

    #[test]
    fn the_host_root_has_the_machines_programs_and_nothing_of_its_own() {
        let mut bed = Bed::new();
        bed.spec.root = Root::Host;
        assert_eq!(bed.says("sh"), "found");
        assert_eq!(bed.says("/bin/sh"), "found");
        assert!(bed.says("/root/x").contains("there is no"));
        assert!(bed.says("nosuch").contains("there is no program"));
    }
}
