//! The control groups that hold processes still or limit them: where their hierarchies are mounted,
//! and which files do what in which version.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Context, EnforceError, Result};

/// Deepest nesting of cgroups that is descended into.
const MAX_DEPTH: usize = 16;
/// How often a cgroup is made anew whose parent was removed meanwhile: whoever ends a domain
/// removes parents that look empty.
const MAX_ATTEMPTS: u32 = 1000;
/// Most bytes of a cgroup's list of processes: some 500,000 numbers.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// The bytes of a process's number and the end of its line, at most.
const MAX_NUMBER: u64 = 11;
/// Cgroups that are looked into where not all processes are wanted.
const MAX_GROUPS: usize = 256;

/// The kernel's two interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// A hierarchy for each controller.
    One,
    /// One for all.
    Two,
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where.
    pub path: PathBuf,
    /// Of which kind.
    pub version: Version,
}

/// Those that we use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hierarchies {
    /// The hierarchy that has the controller `cpu`.
    pub cpu: Option<Mount>,
    /// The hierarchy that freezes.
    pub freezer: Option<Mount>,
}

impl Hierarchies {
    /// Finds them.
    ///
    /// # Errors
    /// When the list of mounts can't be read.
    pub fn discover() -> Result<Self> {
        let path = "/proc/thread-self/mountinfo";
        Ok(Self::from_mountinfo(&fs::read_to_string(path).at("read", path)?, Path::new("/")))
    }

    /// The same from a text, all below `prefix`.
    #[must_use]
    pub fn from_mountinfo(text: &str, prefix: &Path) -> Self {
        let mut found = Self::default();
        let mut unified = None;
        for line in text.lines() {
            let Some((before, after)) = line.split_once(" - ") else { continue };
            let (Some(point), mut after) = (before.split(' ').nth(4), after.split(' ')) else { continue };
            let (kind, options) = (after.next().unwrap_or_default(), after.nth(1).unwrap_or_default());
            let path = prefix.join(point.trim_start_matches('/'));
            match kind {
                "cgroup" => {
                    let mount = Mount { path, version: Version::One };
                    let has = |name: &str| options.split(',').any(|option| option == name);
                    if has("cpu") {
                        found.cpu = Some(mount.clone());
                    }
                    if has("freezer") {
                        found.freezer = Some(mount);
                    }
                }
                "cgroup2" => unified = Some(Mount { path, version: Version::Two }),
                _ => {}
            }
        }
        if let Some(mount) = unified {
            let offered = fs::read_to_string(mount.path.join("cgroup.controllers")).unwrap_or_default();
            if found.cpu.is_none() && offered.split_whitespace().any(|word| word == "cpu") {
                found.cpu = Some(mount.clone());
            }
            found.freezer.get_or_insert(mount);
        }
        found
    }

    /// Where the processes of a cgroup are looked for: where nobody moves them about.
    #[must_use]
    pub fn membership(&self) -> Option<&Mount> {
        self.freezer.as_ref().or(self.cpu.as_ref())
    }

    /// Those of which nothing can be written from where we are.
    pub fn read_only(&self) -> impl Iterator<Item = &Mount> {
        self.each().filter(|mount| mount.is_read_only())
    }

    /// Each hierarchy once.
    pub fn each(&self) -> impl Iterator<Item = &Mount> {
        let second = self.cpu.iter().filter(|cpu| Some(*cpu) != self.freezer.as_ref());
        self.freezer.iter().chain(second)
    }
}

impl Mount {
    /// Whether nothing of it can be written from where we are, whoever we are, as in many
    /// containers.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        rustix::fs::statvfs(&self.path)
            .is_ok_and(|of| of.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }

    /// Makes a cgroup with the controller `cpu` at work in it, where there is none.
    ///
    /// # Errors
    /// When a directory can't be made.
    pub fn create(&self, path: &str) -> Result<PathBuf> {
        for _ in 1..MAX_ATTEMPTS {
            match self.create_once(path) {
                Err(EnforceError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => return other,
            }
        }
        self.create_once(path)
    }

    fn create_once(&self, path: &str) -> Result<PathBuf> {
        let mut at = self.path.clone();
        for component in path.split('/') {
            if self.version == Version::Two {
                // Failing is no error here: whoever needs the controller's file misses it and says
                // so.
                let _ = write(&at.join("cgroup.subtree_control"), "+cpu");
            }
            at.push(component);
            match fs::create_dir(&at) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(error).at("create cgroup", &at);
                }
                _ => {}
            }
        }
        Ok(at)
    }

    /// In which of its cgroups a process is.
    #[must_use]
    pub fn of_process(&self, pid: u32) -> Option<PathBuf> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let own = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let name = |name: &str| controllers.split(',').any(|controller| controller == name);
            let ours = match self.version {
                Version::Two => controllers.is_empty(),
                // The mount's own name says which: they are mounted by the names of their
                // controllers.
                Version::One => {
                    let mounted = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    mounted.split(',').any(name)
                }
            };
            ours.then(|| path.to_owned())
        })?;
        Some(self.path.join(own.trim_start_matches('/')))
    }
}

/// Freezes or thaws.
#[derive(Debug)]
pub struct Freezer {
    file: fs::File,
    version: Version,
}

impl Freezer {
    /// Opens the freezer of a cgroup.
    ///
    /// # Errors
    /// Where it has none, or we may not.
    pub fn open(dir: &Path, version: Version) -> Result<Self> {
        let path = dir.join(Self::name(version));
        Ok(Self { file: fs::OpenOptions::new().write(true).open(&path).at("open", path)?, version })
    }

    /// The file's name.
    #[must_use]
    pub const fn name(version: Version) -> &'static str {
        match version {
            Version::One => "freezer.state",
            Version::Two => "cgroup.freeze",
        }
    }

    /// The word to write.
    #[must_use]
    pub const fn word(version: Version, frozen: bool) -> &'static str {
        match (version, frozen) {
            (Version::One, true) => "FROZEN",
            (Version::One, false) => "THAWED",
            (Version::Two, true) => "1",
            (Version::Two, false) => "0",
        }
    }

    /// Sets it. Processes freeze a moment later.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set(&self, frozen: bool) -> io::Result<()> {
        self.file.write_all_at(Self::word(self.version, frozen).as_bytes(), 0)
    }
}

/// The processes of a cgroup and of those below it.
#[must_use]
pub fn processes(dir: &Path) -> Vec<u32> {
    let mut all = Search { found: Vec::new(), most: usize::MAX, groups: usize::MAX };
    all.collect(dir, MAX_DEPTH);
    all.sorted()
}

/// So many of them at most: for whoever looks often, and has no time for as many as a tenant
/// starts.
#[must_use]
pub fn processes_up_to(dir: &Path, most: usize) -> Vec<u32> {
    let mut some = Search { found: Vec::new(), most, groups: MAX_GROUPS };
    some.collect(dir, MAX_DEPTH);
    some.sorted()
}

struct Search {
    found: Vec<u32>,
    most: usize,
    /// Cgroups that are still looked into.
    groups: usize,
}

impl Search {
    fn collect(&mut self, dir: &Path, depth: usize) {
        let left = self.most - self.found.len();
        if left == 0 || self.groups == 0 {
            return;
        }
        self.groups -= 1;
        let bytes = u64::try_from(left).unwrap_or(u64::MAX).saturating_mul(MAX_NUMBER).min(MAX_LIST_BYTES);
        let mut text = String::new();
        if let Ok(file) = fs::File::open(dir.join("cgroup.procs"))
            && file.take(bytes).read_to_string(&mut text).is_ok()
        {
            // What has no end of its line was cut, and half a number is another one.
            let lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
            let pids = lines.filter_map(|line| line.parse::<u32>().ok()).filter(|&pid| pid != 0);
            self.found.extend(pids.take(left));
        }
        if depth > 0 {
            for child in directories(dir) {
                self.collect(&child, depth - 1);
            }
        }
    }

    fn sorted(mut self) -> Vec<u32> {
        self.found.sort_unstable();
        self.found.dedup();
        self.found
    }
}

/// The cgroups directly below one.
#[must_use]
pub fn directories(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let kept = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    kept.map(|entry| entry.path()).collect()
}

/// Writes one value to one file, which is neither made nor cut off.
///
/// # Errors
/// The kernel's.
pub fn write(path: &Path, value: &str) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path).at("open", path)?;
    file.write_all_at(value.as_bytes(), 0).at("write to", path)
}

/// The value of a file, without the end of its line.
///
/// # Errors
/// The kernel's.
pub fn read(path: &Path) -> Result<String> {
    Ok(fs::read_to_string(path).at("read", path)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once every look at a domain read of all processes that its tenant had started, at a
    /// real-time priority.
    #[test]
    fn no_more_processes_are_looked_at_than_asked_for_and_no_number_is_half_of_one() {
        let top = tempfile::tempdir().expect("a folder");
        let list = |from: u32| (from..from + 20_000).map(|pid| format!("{pid}\n")).collect::<String>();
        fs::write(top.path().join("cgroup.procs"), list(100_000)).expect("written");
        for number in 0..600 {
            let below = top.path().join(number.to_string());
            fs::create_dir(&below).expect("made");
            fs::write(below.join("cgroup.procs"), "7").expect("written");
        }
        assert_eq!(processes_up_to(top.path(), 1_000), (100_000..101_000).collect::<Vec<u32>>());
        assert_eq!(processes(top.path()).len(), 20_000, "a line without an end is none");
        assert!(processes_up_to(&top.path().join("gone"), 1_000).is_empty());
    }
}
