//! What the node of the bench uses: processor time and memory, as the kernel counts them.

use super::place::Place;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Processor time, in ns, of all domains of the node (frontends, the backend and the workers in them included) and of the
/// name server; `None` where the kernel does not count.
#[must_use]
pub fn node_processor_ns(place: &Place) -> Option<u64> {
    let name = cgroup_name(place)?;
    let version_1 = ["cpuacct", "cpu,cpuacct"].iter().find_map(|controller| {
        number(&Path::new(CGROUPS).join(controller).join(&name).join("cpuacct.usage"))
    });
    let version_2 = || {
        let text = fs::read_to_string(Path::new(CGROUPS).join(&name).join("cpu.stat")).ok()?;
        Some(keyed(&text, "usage_usec")? * 1_000)
    };
    Some(version_1.or_else(version_2)? + name_server_processor_ns(place)?)
}

/// Processor time of the name server, in ns. It has one thread.
#[must_use]
pub fn name_server_processor_ns(place: &Place) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/schedstat", place.name_server())).ok()?;
    text.split(' ').next()?.parse().ok()
}

/// Memory of everything of the node, in bytes: what its control groups are charged (kernel memory included), and the
/// daemon's proportional share.
#[must_use]
pub fn node_memory_bytes(place: &Place) -> Option<u64> {
    let name = cgroup_name(place)?;
    let usage = [format!("memory/{name}/memory.usage_in_bytes"), format!("{name}/memory.current")];
    let charged = usage.iter().find_map(|path| number(&Path::new(CGROUPS).join(path)))?;
    Some(charged + daemon_bytes(place)?)
}

/// Proportional share of the memory of the daemon.
fn daemon_bytes(place: &Place) -> Option<u64> {
    let daemon = processes(&place.run_dir()).find(|process| is_daemon(process))?;
    let text = fs::read_to_string(daemon.join("smaps_rollup")).ok()?;
    Some(keyed(&text, "Pss:")? * 1024)
}

/// The folders under `/proc` of all processes of the node with this run directory: their command line or their environment
/// speaks of it.
fn processes(run_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(move |process| {
        ["cmdline", "environ"]
            .iter()
            .any(|file| speaks_of(&fs::read(process.join(file)).unwrap_or_default(), run_dir))
    })
}

fn speaks_of(text: &[u8], path: &Path) -> bool {
    let needle = path.as_os_str().as_encoded_bytes();
    text.windows(needle.len()).any(|found| found == needle)
}

fn is_daemon(process: &Path) -> bool {
    let line = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = line.split(|&byte| byte == 0);
    words.next().is_some_and(|program| program.ends_with(b"tombolo")) && words.any(|word| word == b"daemon")
}

/// The directory of the node in every hierarchy, as the daemon wrote it down.
fn cgroup_name(place: &Place) -> Option<String> {
    let text = fs::read_to_string(place.run_dir().join("cgroup")).ok()?;
    Some(text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number behind a key at the beginning of a line.
fn keyed(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_the_kernels_tables() {
        assert_eq!(keyed("usage_usec 12\nuser_usec 3\n", "usage_usec"), Some(12));
        assert_eq!(keyed("Rss:    4 kB\nPss:    3 kB\n", "Pss:"), Some(3));
        assert_eq!(keyed("x 1", "Pss:"), None);
    }

    #[test]
    fn we_are_no_daemon() {
        assert!(!is_daemon(Path::new("/proc/self")));
        assert_eq!(processes(Path::new("/nowhere/in/particular")).count(), 0);
    }
}
