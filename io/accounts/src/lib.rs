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

/// Users and groups that processes of ours become, and no program of a domain: as one of these it
/// could stop another tenant's files or links. (Engines of volumes from the first on, then
/// processes by their numbers, the cluster's etcd at last.) No system hands them out to anybody
/// (systemd's page "Users, Groups, UIDs and GIDs" calls them unused).
const OURS: std::ops::RangeInclusive<u32> = 0x6000_0000..=0x7fff_fffe;
/// The first of those that processes become by their numbers. Process ids of a kernel are 2^22 at
/// most.
const FIRST: u32 = 0x7000_0000;

/// The user, and the group, that a process of ours becomes that has to be safe from all others: the
/// number of the process, moved to where no user of the system is. No two processes that live have
/// one number, so nobody can choose a name by which his process becomes the user of another's.
#[must_use]
pub fn user_of_this_process() -> u32 {
    FIRST + std::process::id()
}

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
        if let Some(number) = [uid, gid].into_iter().find(|number| OURS.contains(number)) {
            return Err(AccountsError::Unknown(format!(
                "{number} is kept for programs of Tombolo itself, as all from {} to {} are; take another number",
                OURS.start(),
                OURS.end()
            )));
        }
        let groups = if group.is_some() { Vec::new() } else { self.memberships(line.as_ref()) };
        Ok(Identity { uid, gid, groups, home: line.map(|l| l.home) })
    }

    fn user(&self, wanted: &str) -> Option<Account> {
        let mut accounts = self.passwd.lines().filter_map(Account::parse);
        let number = wanted.parse::<u32>().ok();
        accounts.find(|a| a.name == wanted || Some(a.uid) == number)
    }

    /// The number of a group, by its name.
    #[must_use]
    pub fn gid(&self, wanted: &str) -> Option<u32> {
        self.groups().find(|(name, ..)| *name == wanted).map(|(_, gid, _)| gid)
    }

    fn group(&self, wanted: &str) -> Result<u32, AccountsError> {
        self.gid(wanted).or_else(|| wanted.parse().ok()).ok_or_else(|| {
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

    #[test]
    fn a_process_has_a_user_that_no_other_one_has_at_the_same_time() {
        let last = FIRST + (1 << 22);
        let mine = user_of_this_process();
        assert!((FIRST + 1..=last).contains(&mine) && last < *OURS.end(), "{mine:x}");
        assert_eq!(mine - FIRST, std::process::id());
    }

    // A process domain as the user of another tenant's frontend could stop it.
    #[test]
    fn nobody_becomes_a_user_of_ours() {
        for number in [*OURS.start(), 0x7000_0001, *OURS.end()] {
            let accounts = Accounts { passwd: format!("eve:x:{number}:1:Eve:/:/bin/sh\n"), ..accounts() };
            for user in [number.to_string(), format!("7:{number}"), "eve".to_owned()] {
                let refused = accounts.resolve(Some(&user)).expect_err("it is ours");
                assert!(refused.to_string().contains("kept for programs of Tombolo"), "{refused}");
            }
        }
        assert!(
            accounts().resolve(Some("1610612735")).is_ok() && accounts().resolve(Some("2147483647")).is_ok()
        );
    }
}
