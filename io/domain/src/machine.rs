//! The files that the machine process of a domain of kind `vm` finds and leaves:
//! `docs/spec/machine.md`.
//!
//! Its directory is the only one of a domain that the domain's own processes can write to: what is
//! in it may be the work of a guest that broke out of QEMU. Nothing in it is followed, waited for
//! or believed at length.

use crate::error::{Context, Error, Result};
use crate::layout::DomainPaths;
use crate::spec::Machine;
use crate::status::write_json;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, openat, statat};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;

/// Where the machine process sees its directory.
pub(crate) const DIRECTORY: &str = "/run/machine";
/// The order.
const ORDER: &str = "order.json";
/// How it ended.
const OUTCOME: &str = "outcome.json";
/// Where it listens for `exec`.
const SOCKET: &str = "machine.sock";
/// The outcome of a machine whose QEMU ended by itself, or was killed.
pub(crate) const QEMU_DIED: &str = "qemu-died";
/// Longest outcome that is read, in bytes.
const MAX_OUTCOME_BYTES: u64 = 4096;
/// Longest word of an outcome, in characters.
const MAX_WORD_CHARS: usize = 32;
/// Longest message of an outcome, in characters: it stands in listings.
const MAX_MESSAGE_CHARS: usize = 600;
/// The character device of KVM (`Documentation/admin-guide/devices.txt`: misc, 232).
pub(crate) const KVM: (&str, u32, u32) = ("/dev/kvm", 10, 232);

/// How a machine ended, as its machine process said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// In a word: `exited`, `panicked`, `qemu-died`.
    pub outcome: String,
    /// A sentence beside it, in one line; may be empty.
    #[serde(default)]
    pub message: String,
    /// Whether the guest's kernel killed for want of memory.
    #[serde(default)]
    pub out_of_memory: bool,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.outcome)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

/// Makes the directory, with the order in it.
pub(crate) fn prepare(paths: &DomainPaths, machine: &Machine) -> Result<()> {
    let directory = paths.machine();
    DirBuilder::new().mode(0o700).create(&directory).at("create", &directory)?;
    write_json(&directory.join(ORDER), &machine.order)
}

/// How the machine ended; `None` where it did not say, or not in a way that can be read.
pub(crate) fn outcome(paths: &DomainPaths) -> Option<Outcome> {
    let directory = open_directory(paths).ok()?;
    // Without waiting: a pipe in the place of the file would keep us.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&directory, OUTCOME, flags, Mode::empty()).ok()?;
    let is_file =
        fstat(&file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    let mut text = Vec::new();
    File::from(is_file.then_some(file)?).take(MAX_OUTCOME_BYTES + 1).read_to_end(&mut text).ok()?;
    let outcome: Outcome =
        (text.len() as u64 <= MAX_OUTCOME_BYTES).then(|| serde_json::from_slice(&text).ok())??;
    Some(Outcome {
        outcome: harmless(&outcome.outcome, MAX_WORD_CHARS),
        message: harmless(&outcome.message, MAX_MESSAGE_CHARS),
        ..outcome
    })
}

fn open_directory(paths: &DomainPaths) -> std::result::Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(paths.machine(), flags, Mode::empty())
}

/// The socket at which the machine process listens, as a descriptor that can be connected to by its
/// name in `/proc`.
pub(crate) fn socket(paths: &DomainPaths) -> Result<OwnedFd> {
    let at = paths.machine().join(SOCKET);
    let directory = open_directory(paths).at("open", paths.machine())?;
    let socket = openat(&directory, SOCKET, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
        .at("open (is the machine still starting?)", &at)?;
    let stat = statat(&socket, "", AtFlags::EMPTY_PATH).at("look at", &at)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(Error::Damaged { path: at, message: "it is no socket".into() });
    }
    Ok(socket)
}

/// A stranger's words, short and in one line.
fn harmless(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn paths(dir: &Path) -> DomainPaths {
        let layout = Layout {
            run_dir: dir.to_owned(),
            state_dir: dir.to_owned(),
            cgroup_name: "t".into(),
            program: "/bin/true".into(),
        };
        let paths = layout.domain("dc", "d").expect("paths");
        std::fs::create_dir_all(&paths.dir).expect("directory");
        paths
    }

    #[test]
    fn an_outcome_is_read_and_cleaned() {
        let dir = tempfile::tempdir().expect("dir");
        let paths = paths(dir.path());
        prepare(&paths, &Machine { order: serde_json::json!({ "cpus": 1 }), kvm: false }).expect("prepare");
        assert!(std::fs::read_to_string(paths.machine().join(ORDER)).expect("order").contains("cpus"));
        assert_eq!(outcome(&paths), None, "it has not ended");
        std::fs::write(
            paths.machine().join(OUTCOME),
            r#"{"outcome":"panicked","message":"Kernel panic\u001b[2J - no init","out_of_memory":true}"#,
        )
        .expect("write");
        let read = outcome(&paths).expect("outcome");
        assert_eq!((read.outcome.as_str(), read.out_of_memory), ("panicked", true));
        assert_eq!(read.message, "Kernel panic [2J - no init");
    }

    #[test]
    fn what_a_broken_out_guest_leaves_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().expect("dir");
        let paths = paths(dir.path());
        std::fs::create_dir_all(paths.machine()).expect("directory");
        let at = paths.machine().join(OUTCOME);
        let secret = dir.path().join("secret");
        std::fs::write(&secret, r#"{"outcome":"secret"}"#).expect("write");
        symlink(&secret, &at).expect("link");
        assert_eq!(outcome(&paths), None, "a link is not followed");
        std::fs::remove_file(&at).expect("remove");
        let fifo = rustix::fs::CWD;
        rustix::fs::mknodat(fifo, &at, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("fifo");
        assert_eq!(outcome(&paths), None, "a pipe is not waited for");
        std::fs::remove_file(&at).expect("remove");
        std::fs::write(&at, format!("{{\"outcome\":\"{}\"}}", "x".repeat(5000))).expect("write");
        assert_eq!(outcome(&paths), None, "a long one is not read");
        std::fs::write(paths.machine().join(SOCKET), "").expect("write");
        assert!(matches!(socket(&paths), Err(Error::Damaged { .. })), "a file is no socket");
    }
}
