//! The names and numbers of `/srv`: which file is which, and what its attributes are.
//!
//! A node's number says what it is, so nothing has to be remembered per lookup, `forget` has
//! nothing to forget, and a successor computes the same numbers.

use polyfuse_kernel::fuse_attr;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use wire::control::MountedService;
use wire::service::{
    Behaviour, Export, FileExport, Node as Described, OWN_FOLDER, OWNER_NONE, SERIAL_BITS, VERSION,
    VERSION_MIN, VERSION_WITH_LINKS, VERSION_WITH_LOCKS, VERSION_WITH_XATTRS, root_of,
};

/// Most services that one domain shows, those of the past included.
pub(crate) const SERVICES_MAX: usize = 32;
/// Most files of one service; the directory has four with a name.
pub(crate) const FILES_MAX: usize = 32;
/// Longest name of a file or a folder, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;
/// The number of the root, fixed by the protocol.
pub(crate) const ROOT: u64 = 1;
/// The number of `/srv/self`.
const SELF: u64 = 2;
/// Numbers of the files in `/srv/self` begin here.
const OWN_FIRST: u64 = 16;
/// The bits of a number that hold the file of a service, one more than its id's to tell it from its
/// folder.
const FILE_BITS: u32 = 33;
/// In a number: this is a file of a service.
const FILE_MARK: u64 = 1 << 32;

/// A point in time as `stat` shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Moment {
    pub(crate) seconds: u64,
    pub(crate) nanoseconds: u32,
}

impl Moment {
    pub(crate) fn now() -> Self {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self { seconds: since.as_secs(), nanoseconds: since.subsec_nanos() }
    }
}

/// A file of `/srv/self`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    About,
    Name,
    Services,
    Counters,
    Latency,
    Trace,
    Quality,
    Level,
    Handover,
    Targets,
}

impl Own {
    pub(crate) const ALL: [Self; 10] = [
        Self::About,
        Self::Name,
        Self::Services,
        Self::Counters,
        Self::Latency,
        Self::Trace,
        Self::Quality,
        Self::Level,
        Self::Handover,
        Self::Targets,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::About => "about.json",
            Self::Name => "name",
            Self::Services => "services",
            Self::Counters => "counters",
            Self::Latency => "latency",
            Self::Trace => "trace",
            Self::Quality => "quality",
            Self::Level => "level",
            Self::Handover => "handover",
            Self::Targets => "targets",
        }
    }

    fn mode(self) -> u32 {
        match self {
            Self::Trace => 0o644,
            // Whoever of the domain's programs knows how it fares may say so.
            Self::Quality | Self::Handover => 0o666,
            _ => 0o444,
        }
    }

    /// Whether somebody may open it for writing.
    pub(crate) fn is_writable(self) -> bool {
        matches!(self, Self::Trace | Self::Quality | Self::Handover)
    }

    /// Whether the daemon is asked for what it says.
    pub(crate) fn is_of_daemon(self) -> bool {
        matches!(self, Self::About | Self::Level)
    }
}

/// The object that a node's number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    Root,
    SelfFolder,
    Own(Own),
    /// The folder of a service, by its place in the tree.
    Service(usize),
    /// A file or a folder of a service, by its id in the export, or by the number that its backend
    /// knows it by.
    File(usize, u32),
}

impl Node {
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Root => ROOT,
            Self::SelfFolder => SELF,
            Self::Own(own) => OWN_FIRST + own as u64,
            Self::Service(service) => (service as u64 + 1) << FILE_BITS,
            Self::File(service, id) => (service as u64 + 1) << FILE_BITS | FILE_MARK | u64::from(id),
        }
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        let service = usize::try_from(number >> FILE_BITS).ok()?.checked_sub(1);
        let id = u32::try_from(number & (FILE_MARK - 1)).ok()?;
        match (service, number & FILE_MARK != 0) {
            (Some(service), true) => Some(Self::File(service, id)),
            (Some(service), false) if id == 0 => Some(Self::Service(service)),
            (None, false) if number == ROOT => Some(Self::Root),
            (None, false) if number == SELF => Some(Self::SelfFolder),
            (None, false) => {
                Own::ALL.into_iter().find(|&own| Self::Own(own).number() == number).map(Self::Own)
            }
            _ => None,
        }
    }

    /// Whether only the backend knows what it is.
    pub(crate) fn is_of_backend(self) -> bool {
        matches!(self, Self::File(_, id) if root_of(id) != id)
    }
}

/// A service of this domain: mounted now, or known from before.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ServiceNode {
    pub(crate) mounted: MountedService,
    /// Whether it is in the domain's topology now.
    pub(crate) present: bool,
    /// The export of its last backend.
    pub(crate) export: Option<Export>,
    /// When that was.
    pub(crate) changed: Moment,
}

impl ServiceNode {
    pub(crate) fn file(&self, id: u32) -> Option<&FileExport> {
        self.export.as_ref()?.files.iter().find(|file| file.id == id && file.name.is_some())
    }

    fn named(&self) -> impl Iterator<Item = (&FileExport, &str)> {
        let files = self.export.iter().flat_map(|export| &export.files);
        let named = files.filter_map(|file| file.name.as_deref().map(|name| (file, name)));
        named.filter(|(_, name)| *name != OWN_FOLDER)
    }

    /// The exported folder that is the service's own.
    fn own_folder(&self) -> Option<&FileExport> {
        self.export.as_ref()?.files.iter().find(|file| file.name.as_deref() == Some(OWN_FOLDER))
    }

    /// Whether the domain has the verb that the file asks for.
    pub(crate) fn allows(&self, file: &FileExport) -> bool {
        self.mounted.verbs.contains(&file.verb)
    }
}

/// Why a service's export, or its place, is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TreeError {
    /// Another version of the protocol.
    #[error("version {0} of the service protocol is none of {VERSION_MIN} to {VERSION}")]
    Version(u32),
    /// More files than a folder shows.
    #[error("{0} files are more than {FILES_MAX}")]
    Files(usize),
    /// A name that is no plain file name.
    #[error("{0:?} is no name for a file")]
    Name(String),
    /// A number that the nodes of a backend have, or that a folder can't have.
    #[error("{0} is no number for this file")]
    Number(u32),
    /// A file whose bytes only the backend knows, outside of a folder.
    #[error("{0:?} has bytes at offsets, and so stands in a folder")]
    Place(String),
    /// Two files with one number.
    #[error("two files have the number {0}")]
    Id(u32),
    /// Two files with one name.
    #[error("two files are called {0:?}")]
    Twice(String),
    /// Permission bits beyond rwxrwxrwx.
    #[error("{name:?} has the impossible mode {mode:o}")]
    Mode {
        /// The file.
        name: String,
        /// The mode that was asked for.
        mode: u32,
    },
    /// More services than a domain shows.
    #[error("more than {SERVICES_MAX} services")]
    Services,
}

/// All of `/srv`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Tree {
    pub(crate) services: Vec<ServiceNode>,
    pub(crate) started: Moment,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Tree {
    pub(crate) fn new(uid: u32, gid: u32) -> Self {
        Self { services: Vec::new(), started: Moment::now(), uid, gid }
    }

    /// Takes what the domain mounts now. Returns the services that could not be shown, and why.
    pub(crate) fn update(&mut self, mounted: Vec<MountedService>) -> Vec<(String, TreeError)> {
        let mut refused = Vec::new();
        self.services.iter_mut().for_each(|service| service.present = false);
        for service in mounted {
            if let Err(error) = self.place(&service) {
                refused.push((service.name.clone(), error));
            }
        }
        refused
    }

    fn place(&mut self, mounted: &MountedService) -> Result<(), TreeError> {
        check_name(&mounted.at)?;
        if mounted.at == "self" || self.services.iter().any(|s| s.present && s.mounted.at == mounted.at) {
            return Err(TreeError::Twice(mounted.at.clone()));
        }
        if let Some(known) = self.services.iter_mut().find(|s| s.mounted.name == mounted.name) {
            known.mounted = mounted.clone();
            known.present = true;
            return Ok(());
        }
        if self.services.len() >= SERVICES_MAX {
            return Err(TreeError::Services);
        }
        let changed = Moment::now();
        self.services.push(ServiceNode { mounted: mounted.clone(), present: true, export: None, changed });
        Ok(())
    }

    /// The service of that name, if the domain mounts it.
    pub(crate) fn service_named(&self, name: &str) -> Option<usize> {
        self.services.iter().position(|service| service.present && service.mounted.name == name)
    }

    /// The node called `name` in `folder`.
    pub(crate) fn lookup(&self, folder: Node, name: &[u8]) -> Option<Node> {
        self.children(folder).into_iter().find(|(_, child)| child.as_bytes() == name).map(|(node, _)| node)
    }

    /// Whether something may be in it. Of what only a backend knows, it may.
    pub(crate) fn is_folder(&self, node: Node) -> bool {
        match node {
            Node::Root | Node::SelfFolder | Node::Service(_) => true,
            Node::Own(_) => false,
            Node::File(at, id) => {
                let file = self.services.get(at).and_then(|service| service.file(id));
                node.is_of_backend() || file.is_some_and(|file| file.behaviour == Behaviour::Folder)
            }
        }
    }

    /// Where a folder's contents are asked for: at which service, by which number. None: the
    /// frontend knows them.
    pub(crate) fn asked_at(&self, folder: Node) -> Option<(usize, u32)> {
        match folder {
            Node::Service(at) => Some((at, self.services.get(at)?.own_folder()?.id)),
            Node::File(at, id) if self.is_folder(folder) => Some((at, id)),
            _ => None,
        }
    }

    /// Whether a service's consumers know symbolic links, and may ask for its room.
    pub(crate) fn has_links(&self, at: usize) -> bool {
        let export = self.services.get(at).and_then(|service| service.export.as_ref());
        export.is_some_and(|export| export.version >= VERSION_WITH_LINKS)
    }

    /// Whether the nodes of a service may have extended attributes.
    pub(crate) fn has_xattrs(&self, at: usize) -> bool {
        let export = self.services.get(at).and_then(|service| service.export.as_ref());
        export.is_some_and(|export| export.version >= VERSION_WITH_XATTRS)
    }

    /// Whether a service grants locks on files in its folders.
    pub(crate) fn has_locks(&self, at: usize) -> bool {
        let export = self.services.get(at).and_then(|service| service.export.as_ref());
        export.is_some_and(|export| export.version >= VERSION_WITH_LOCKS)
    }

    /// The folder of the one service that can be asked for its room; none where there are several.
    pub(crate) fn only_with_room(&self) -> Option<(usize, u32)> {
        let services = self.services.iter().enumerate().filter(|(_, service)| service.present);
        let mut with_room = services.map(|(at, _)| at).filter(|&at| self.has_links(at));
        let at = with_room.next().filter(|_| with_room.next().is_none())?;
        self.asked_at(Node::Service(at))
    }

    /// Whether a domain may see what is in the exported folder of this number, and change it.
    pub(crate) fn rights(&self, (at, id): (usize, u32)) -> Option<(bool, Option<bool>)> {
        let service = self.services.get(at).filter(|service| service.present)?;
        let files = &service.export.as_ref()?.files;
        let folder = files.iter().find(|file| file.id == root_of(id))?;
        let verbs = &service.mounted.verbs;
        Some((service.allows(folder), folder.change.as_ref().map(|verb| verbs.contains(verb))))
    }

    /// Returns the children of `folder`, as far as the frontend knows, in a lasting order.
    pub(crate) fn children(&self, folder: Node) -> Vec<(Node, &str)> {
        match folder {
            Node::Root => {
                let services = self.services.iter().enumerate().filter(|(_, service)| service.present);
                let services = services.map(|(at, service)| (Node::Service(at), service.mounted.at.as_str()));
                std::iter::once((Node::SelfFolder, "self")).chain(services).collect()
            }
            Node::SelfFolder => Own::ALL.into_iter().map(|own| (Node::Own(own), own.name())).collect(),
            Node::Service(at) => {
                let files = self.services.get(at).into_iter().flat_map(ServiceNode::named);
                files.map(|(file, name)| (Node::File(at, file.id), name)).collect()
            }
            Node::Own(_) | Node::File(..) => Vec::new(),
        }
    }

    /// Returns the attributes of `node` for stat(2); `None` if there is no such node any more.
    pub(crate) fn attributes(&self, node: Node) -> Option<fuse_attr> {
        let (mode, links, changed) = match node {
            Node::Root => {
                let folders = 1 + self.services.iter().filter(|service| service.present).count();
                (libc_mode::FOLDER | 0o555, 2 + folders, self.started)
            }
            Node::SelfFolder => (libc_mode::FOLDER | 0o555, 2, self.started),
            Node::Own(own) => (libc_mode::FILE | own.mode(), 1, self.started),
            Node::Service(at) => {
                let service = self.services.get(at)?;
                let mode = service.own_folder().map_or(0o555, |folder| folder.mode);
                (libc_mode::FOLDER | mode, 2, service.changed)
            }
            Node::File(at, id) => {
                let service = self.services.get(at)?;
                let file = service.file(id)?;
                let mode = if service.allows(file) { file.mode } else { 0 };
                let folder = file.behaviour == Behaviour::Folder;
                let (kind, links) = if folder { (libc_mode::FOLDER, 2) } else { (libc_mode::FILE, 1) };
                (kind | mode, links, service.changed)
            }
        };
        let size = if mode & libc_mode::FILE != 0 { FILE_SIZE } else { 0 };
        Some(fuse_attr {
            ino: node.number(),
            size,
            // All of it is there: cp(1) copies what looks sparse only up to its size.
            blocks: size / 512,
            atime: changed.seconds,
            mtime: changed.seconds,
            ctime: changed.seconds,
            atimensec: changed.nanoseconds,
            mtimensec: changed.nanoseconds,
            ctimensec: changed.nanoseconds,
            mode,
            nlink: u32::try_from(links).unwrap_or(u32::MAX),
            uid: self.uid,
            gid: self.gid,
            blksize: 4096,
            ..fuse_attr::default()
        })
    }
}

impl Tree {
    /// Returns the attributes for stat(2) of a node that a backend has described.
    pub(crate) fn described(&self, service: usize, node: &Described) -> fuse_attr {
        let kind = match node.behaviour {
            Behaviour::Folder => libc_mode::FOLDER,
            Behaviour::Symlink => libc_mode::LINK,
            _ => libc_mode::FILE,
        };
        let size = match node.behaviour {
            Behaviour::Random | Behaviour::Symlink => node.size,
            Behaviour::Folder => 0,
            _ => FILE_SIZE,
        };
        let owner = |said: u32, ours: u32| if said == OWNER_NONE { ours } else { said };
        let (seconds, nanoseconds) = node.changed;
        fuse_attr {
            ino: Node::File(service, node.number).number(),
            size,
            blocks: size.div_ceil(512),
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanoseconds,
            mtimensec: nanoseconds,
            ctimensec: nanoseconds,
            mode: kind | u32::from(node.mode),
            nlink: node.links.max(1),
            uid: owner(node.owner.0, self.uid),
            gid: owner(node.owner.1, self.gid),
            blksize: 4096,
            ..fuse_attr::default()
        }
    }
}

/// The size that each file claims, as sysfs does: nobody can know how much there will be to read,
/// but with 0 the kernel takes sendfile(2) for done before it asks us, and takes writes that go
/// beyond the size one by one.
pub(crate) const FILE_SIZE: u64 = 4096;

/// The type bits of a mode, from inode(7).
mod libc_mode {
    pub(super) const FOLDER: u32 = 0o040_000;
    pub(super) const FILE: u32 = 0o100_000;
    pub(super) const LINK: u32 = 0o120_000;
}

/// Refuses an export that can't be shown as a folder.
pub(crate) fn check_export(export: &Export) -> Result<(), TreeError> {
    if !(VERSION_MIN..=VERSION).contains(&export.version) {
        return Err(TreeError::Version(export.version));
    }
    if export.files.len() > FILES_MAX {
        return Err(TreeError::Files(export.files.len()));
    }
    for (at, file) in export.files.iter().enumerate() {
        let others = &export.files[..at];
        if others.iter().any(|other| other.id == file.id) {
            return Err(TreeError::Id(file.id));
        }
        let is_folder = file.behaviour == Behaviour::Folder;
        let numbers = if is_folder { (1 << (32 - SERIAL_BITS)) - 1 } else { 1 << SERIAL_BITS };
        if file.id >= numbers {
            return Err(TreeError::Number(file.id));
        }
        check_name(&file.verb)?;
        file.change.as_deref().map_or(Ok(()), check_name)?;
        let Some(name) = &file.name else { continue };
        if matches!(file.behaviour, Behaviour::Random | Behaviour::Symlink) {
            return Err(TreeError::Place(name.clone()));
        }
        if !(is_folder && name == OWN_FOLDER) {
            check_name(name)?;
        }
        if others.iter().any(|other| other.name.as_ref() == Some(name)) {
            return Err(TreeError::Twice(name.clone()));
        }
        if file.mode & !0o777 != 0 {
            return Err(TreeError::Mode { name: name.clone(), mode: file.mode });
        }
    }
    Ok(())
}

/// A name that every shell and every listing can bear.
fn check_name(name: &str) -> Result<(), TreeError> {
    let plain = name.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
    if plain && !name.is_empty() && name.len() <= NAME_BYTES_MAX && name != "." && name != ".." {
        return Ok(());
    }
    Err(TreeError::Name(name.chars().take(NAME_BYTES_MAX).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::service::Behaviour;

    fn file(id: u32, name: &str) -> FileExport {
        FileExport {
            id,
            name: Some(name.into()),
            mode: 0o666,
            behaviour: Behaviour::Session,
            idempotent: true,
            verb: "resolve".into(),
            change: None,
        }
    }

    fn export(files: Vec<FileExport>) -> Export {
        Export { version: VERSION, kind: "directory".into(), files }
    }

    fn mounted(name: &str, at: &str) -> MountedService {
        MountedService {
            name: name.into(),
            kind: "directory".into(),
            at: at.into(),
            verbs: vec!["resolve".into()],
            up: true,
            generation: 1,
            targets: Vec::new(),
        }
    }

    #[test]
    fn a_number_says_what_it_stands_for() {
        let files = [0, 1, u32::MAX].map(|id| Node::File(3, id));
        let mut all = vec![Node::Root, Node::SelfFolder, Node::Service(0), Node::Service(SERVICES_MAX)];
        all.extend(files);
        all.extend(Own::ALL.map(Node::Own));
        for &node in &all {
            assert_eq!(Node::from_number(node.number()), Some(node));
        }
        let mut numbers: Vec<_> = all.iter().map(|node| node.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), all.len());
        for wrong in [0, 3, 15, 22, FILE_MARK, (1 << FILE_BITS) | 5, u64::MAX] {
            let node = Node::from_number(wrong);
            assert!(node.is_none_or(|node| node.number() == wrong), "{wrong} became {node:?}");
        }
    }

    #[test]
    fn exports_that_are_no_folder_are_refused_by_name() {
        assert_eq!(check_export(&export(vec![file(0, "query"), file(1, "ctl")])), Ok(()));
        for name in ["", ".", "..", "a/b", "a\nb", "a\0b", "é", &"x".repeat(65)] {
            let refused = check_export(&export(vec![file(0, name)]));
            assert!(matches!(refused, Err(TreeError::Name(_))), "{name:?}: {refused:?}");
        }
        assert_eq!(check_export(&export(vec![file(0, "a"), file(0, "b")])), Err(TreeError::Id(0)));
        assert_eq!(
            check_export(&export(vec![file(0, "a"), file(1, "a")])),
            Err(TreeError::Twice("a".into()))
        );
        let many = (0..=FILES_MAX as u32).map(|id| file(id, &format!("f{id}"))).collect();
        assert_eq!(check_export(&export(many)), Err(TreeError::Files(FILES_MAX + 1)));
        let setuid = FileExport { mode: 0o4755, ..file(0, "a") };
        assert!(matches!(check_export(&export(vec![setuid])), Err(TreeError::Mode { mode: 0o4755, .. })));
        let newer = Export { version: VERSION + 1, ..export(vec![]) };
        assert_eq!(check_export(&newer), Err(TreeError::Version(VERSION + 1)));
    }

    #[test]
    fn a_service_that_leaves_and_comes_back_keeps_its_numbers() {
        let mut tree = Tree::new(0, 0);
        assert!(tree.update(vec![mounted("dns", "dns"), mounted("other", "o")]).is_empty());
        let before = tree.lookup(Node::Root, b"o");
        assert!(tree.update(vec![mounted("dns", "dns")]).is_empty());
        assert_eq!(tree.lookup(Node::Root, b"o"), None);
        tree.update(vec![mounted("other", "o"), mounted("dns", "dns")]);
        assert_eq!(tree.lookup(Node::Root, b"o"), before);
        assert_eq!(tree.attributes(Node::Root).map(|a| a.nlink), Some(5));
    }

    #[test]
    fn a_folder_is_never_taken_twice() {
        let mut tree = Tree::new(0, 0);
        let refused = tree.update(vec![mounted("a", "dns"), mounted("b", "dns"), mounted("c", "self")]);
        assert_eq!(refused.len(), 2);
        assert_eq!(tree.children(Node::Root).len(), 2);
    }

    #[test]
    fn a_file_without_its_verb_has_no_permission_bits() {
        let mut tree = Tree::new(0, 0);
        tree.update(vec![mounted("dns", "dns")]);
        let ctl = FileExport { verb: "control".into(), ..file(1, "ctl") };
        tree.services[0].export = Some(export(vec![file(0, "query"), ctl]));
        let mode = |id| tree.attributes(Node::File(0, id)).map(|a| a.mode & 0o777);
        assert_eq!((mode(0), mode(1), mode(2)), (Some(0o666), Some(0), None));
    }
}
