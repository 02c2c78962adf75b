//! The names and addresses that are left to the C library: those of `/etc/hosts` (files come
//! first), and texts that are no name of the DNS.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};
use wire::directory::MAX_NAME_BYTES;

/// Longest hosts file that is kept in memory; with a longer one, everything is the C library's
/// business.
const MAX_HOSTS_BYTES: u64 = 64 * 1024;
/// How long a look at the file holds: who asks thousands of names a second need not look thousands
/// of times.
const LOOK_HOLDS: Duration = Duration::from_millis(10);
/// Longest label of a name (RFC 1035 section 2.3.4).
const MAX_LABEL_BYTES: usize = 63;

/// Whether a name is one that the directory service may be asked for.
pub fn is_dns_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_label = |label: &str| {
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let last = name.rsplit('.').next().unwrap_or(name);
    // inet_aton(3) reads 1, 127.1 and 0x7f.0.0.1 as addresses.
    let is_number =
        last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X");
    name.len() <= MAX_NAME_BYTES
        && name.split('.').all(is_label)
        && !is_number
        && !last.eq_ignore_ascii_case("localhost")
}

/// Whether an address is one that the directory service may be asked for.
pub fn is_dns_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_unspecified(),
        IpAddr::V6(address) => {
            let is_special =
                address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local();
            !is_special && address.to_ipv4_mapped().is_none()
        }
    }
}

/// The identity of a version of the file.
type Version = (u64, i64, i64, u64);

/// The hosts file, read again when it has changed.
#[derive(Debug)]
pub struct Hosts {
    path: &'static str,
    seen: Mutex<Option<Seen>>,
}

/// The file, when we last looked.
#[derive(Debug)]
struct Seen {
    looked: Instant,
    version: Version,
    known: Known,
}

#[derive(Debug, Default)]
struct Known {
    names: HashSet<String>,
    addresses: HashSet<IpAddr>,
    /// It is too long to be kept.
    all: bool,
}

impl Hosts {
    /// The file at `path`.
    pub const fn new(path: &'static str) -> Self {
        Self { path, seen: Mutex::new(None) }
    }

    /// Whether the file speaks of a name.
    pub fn has_name(&self, name: &str) -> bool {
        self.has_name_at(name, Instant::now())
    }

    fn has_name_at(&self, name: &str, now: Instant) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        self.ask(now, |known| known.all || known.names.contains(&name))
    }

    /// Whether the file speaks of an address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.ask(Instant::now(), |known| known.all || known.addresses.contains(&address))
    }

    fn ask(&self, now: Instant, question: impl FnOnce(&Known) -> bool) -> bool {
        let mut seen = match self.seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread reads it, or did when this process was forked off.
            Err(TryLockError::WouldBlock) => return question(&Known::read(Path::new(self.path))),
        };
        if let Some(seen) = &*seen
            && now.saturating_duration_since(seen.looked) < LOOK_HOLDS
        {
            return question(&seen.known);
        }
        let Ok(metadata) = std::fs::metadata(self.path) else { return false };
        let version = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size());
        match &mut *seen {
            Some(seen) if seen.version == version => {
                seen.looked = now;
                question(&seen.known)
            }
            _ => {
                let known = Known::read(Path::new(self.path));
                question(&seen.insert(Seen { looked: now, version, known }).known)
            }
        }
    }
}

impl Known {
    /// A file that can't be read speaks of nothing, as for the C library.
    fn read(path: &Path) -> Self {
        let mut text = Vec::new();
        let read = File::open(path).and_then(|file| file.take(MAX_HOSTS_BYTES + 1).read_to_end(&mut text));
        match read {
            Ok(bytes) if bytes as u64 > MAX_HOSTS_BYTES => Self { all: true, ..Self::default() },
            Ok(_) => Self::parse(&String::from_utf8_lossy(&text)),
            Err(_) => Self::default(),
        }
    }

    fn parse(text: &str) -> Self {
        let mut known = Self::default();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse) else { continue };
            known.addresses.insert(address);
            known.names.extend(words.map(str::to_ascii_lowercase));
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_dns_are_told_from_everything_else() {
        for name in
            ["a", "host.example", "host.example.", "_srv._tcp.example", "1.example", "xn--bcher-kva.example"]
        {
            assert!(is_dns_name(name), "{name}");
        }
        assert!(is_dns_name(&"a.".repeat(127)), "253 bytes and the final dot");
        let long = format!("{}.example", "a".repeat(64));
        for name in [
            "",
            ".",
            "1",
            "127.1",
            "192.0.2.1",
            "0x7f000001",
            "a.0X7F",
            "::1",
            "fe80::1%lo",
            "a..b",
            "a b",
            "b\u{fc}cher",
            "localhost",
            "a.LocalHost",
            "a.localhost.",
            &long,
        ] {
            assert!(!is_dns_name(name), "{name}");
        }
        assert!(!is_dns_name(&"abc.".repeat(64)), "254 bytes");
    }

    #[test]
    fn the_hosts_file_is_read_as_the_c_library_does_and_again_when_it_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hosts").to_str().expect("text").to_owned().leak();
        let hosts = Hosts::new(path);
        assert!(!hosts.has_name("one"));
        std::fs::write(&*path, "192.0.2.1 one One.Example # two\n# 192.0.2.3 three\nnonsense four\n")
            .expect("written");
        for (name, there) in
            [("ONE.example.", true), ("one", true), ("two", false), ("three", false), ("four", false)]
        {
            assert_eq!(hosts.has_name(name), there, "{name}");
        }
        assert!(hosts.has_address([192, 0, 2, 1].into()) && !hosts.has_address([192, 0, 2, 3].into()));
        let now = Instant::now() + LOOK_HOLDS;
        std::fs::write(&*path, "192.0.2.3 three and more\n").expect("written");
        assert!(hosts.has_name_at("three", now) && !hosts.has_name_at("one", now));
        std::fs::write(&*path, "#".repeat(65 * 1024)).expect("written");
        assert!(!hosts.has_name_at("anything", now), "a look holds for a while");
        assert!(hosts.has_name_at("anything", now + LOOK_HOLDS), "too long to know");
    }
}
