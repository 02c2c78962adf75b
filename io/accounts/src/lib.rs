//! Users and groups as a root's own `/etc/passwd` and `/etc/group` know them.

use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use thiserror::Error;

/// Longest `/etc/passwd` or `/etc/group` that is read, in bytes; the root may come from a stranger.
const MAX_ACCOUNTS_BYTES: u64 = 1024 * 1024;
/// Most supplementary groups, as in the kernel (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// Why a user is not known.
#[derive(Debug, Error)]
pub enum AccountsError {
    /// There is none of that name, or it is not allowed.
    #[error("user: {0}")]
    Unknown(String),
    /// A file of the root can't be read.
    #[error("cannot read the domain's {path}: {source}")]
    File {
        /// The file, below the root.
        path: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The user of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
    /// The home directory, where the root knows one.
    pub home: Option<String>,
}

/// The accounts of one root.
#[derive(Debug, Default)]
pub struct Accounts {
    passwd: String,
    group: String,
}

impl Accounts {
    /// Reads both files below `root`, never following a link out of it; absent ones are empty.
    ///
    /// # Errors
    /// [`AccountsError::File`].
    pub fn read(root: impl AsFd) -> Result<Self, AccountsError> {
        Ok(Self { passwd: read_inside(&root, "etc/passwd")?, group: read_inside(&root, "etc/group")? })
    }

    /// Resolves `NAME`, `UID`, `NAME:GROUP`, `UID:GID`; absent is root.
    ///
    /// # Errors
    /// [`AccountsError::Unknown`].
    pub fn resolve(&self, user: Option<&str>) -> Result<Identity, AccountsError> {
        let (user, group) = match user.unwrap_or("0").split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (user.unwrap_or("0"), None),
        };
        let line = self.user(user);
        let uid = line.as_ref().map(|l| l.uid).or_else(|| user.parse().ok());
        let uid = uid.ok_or_else(|| {
            AccountsError::Unknown(format!(
                "{user:?} is not in the domain's /etc/passwd; add it there or give a number"
            ))
        })?;
        let gid = match group {
            Some(group) => self.group(group)?,
            None => line.as_ref().map_or(0, |l| l.gid),
        };
        if uid == u32::MAX || gid == u32::MAX {
            // To the kernel it means "leave it as it is": the command would run as root.
            return Err(AccountsError::Unknown(format!("{} is nobody's number", u32::MAX)));
        }
        let groups = if group.is_some() { Vec::new() } else { self.memberships(line.as_ref()) };
        Ok(Identity { uid, gid, groups, home: line.map(|l| l.home) })
    }

    fn user(&self, wanted: &str) -> Option<Account> {
        let mut accounts = self.passwd.lines().filter_map(Account::parse);
        let number = wanted.parse::<u32>().ok();
        accounts.find(|a| a.name == wanted || Some(a.uid) == number)
    }

    fn group(&self, wanted: &str) -> Result<u32, AccountsError> {
        let named = self.groups().find(|(name, ..)| *name == wanted).map(|(_, gid, _)| gid);
        named.or_else(|| wanted.parse().ok()).ok_or_else(|| {
            AccountsError::Unknown(format!(
                "group {wanted:?} is not in the domain's /etc/group; add it there or give a number"
            ))
        })
    }

    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let (name, gid, members) = (fields.next()?, fields.nth(1)?, fields.next().unwrap_or_default());
            Some((name, gid.parse().ok()?, members))
        })
    }

    fn memberships(&self, account: Option<&Account>) -> Vec<u32> {
        let Some(account) = account else { return Vec::new() };
        let mine = self.groups().filter(|(.., members)| members.split(',').any(|m| m == account.name));
        mine.map(|(_, gid, _)| gid).filter(|&g| g != account.gid).take(MAX_GROUPS).collect()
    }
}

struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

impl Account {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).filter(|h| h.starts_with('/')).unwrap_or("/").to_owned();
        Some(Self { name, uid, gid, home })
    }
}

fn read_inside(root: impl AsFd, path: &'static str) -> Result<String, AccountsError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let failed = |source| AccountsError::File { path, source };
    match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
        Ok(fd) => {
            let mut bytes = Vec::new();
            File::from(fd).take(MAX_ACCOUNTS_BYTES).read_to_end(&mut bytes).map_err(failed)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(String::new()),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: "root:x:0:0:root:/root:/bin/sh\nbroken\nada:x:1000:1001:Ada:/home/ada:/bin/sh\n".into(),
            group: "root:x:0:\nvideo:x:44:ada,bob\nada:x:1001:ada\n".into(),
        }
    }

    #[test]
    fn users_by_name_and_number() {
        let resolve = |u| accounts().resolve(u).map(|i| (i.uid, i.gid, i.groups));
        assert_eq!(resolve(None).ok(), Some((0, 0, vec![])));
        assert_eq!(resolve(Some("ada")).ok(), Some((1000, 1001, vec![44])));
        assert_eq!(resolve(Some("1000")).ok(), Some((1000, 1001, vec![44])));
        assert_eq!(resolve(Some("ada:video")).ok(), Some((1000, 44, vec![])));
        assert_eq!(resolve(Some("7:8")).ok(), Some((7, 8, vec![])));
        assert!(resolve(Some("eve")).is_err());
        assert!(resolve(Some("ada:nobody")).is_err());
        assert!(resolve(Some("-1")).is_err());
        // As a process domain, this once ran as root: setresuid(2) takes it for "no change".
        assert!(resolve(Some("4294967295")).is_err() && resolve(Some("7:4294967295")).is_err());
    }
}
