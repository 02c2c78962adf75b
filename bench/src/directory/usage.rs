//! The resources that the node of the bench uses: processor time and memory, as the kernel counts
//! them.

use super::place::Place;
use crate::control_group::{self, ROOT, keyed, number};
use std::fs;
use std::path::{Path, PathBuf};

/// Processor time, in ns, of all domains of the node (frontends, the backend and the workers in them included) and of the
/// name server; `None` where the kernel does not count.
#[must_use]
pub fn node_processor_ns(place: &Place) -> Option<u64> {
    let group = control_group::of_node(&place.run_dir())?;
    Some(control_group::processor_ns(&group)? + name_server_processor_ns(place)?)
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
    let name = control_group::of_node(&place.run_dir())?;
    let usage = [format!("memory/{name}/memory.usage_in_bytes"), format!("{name}/memory.current")];
    let charged = usage.iter().find_map(|path| number(&Path::new(ROOT).join(path)))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_no_daemon() {
        assert!(!is_daemon(Path::new("/proc/self")));
        assert_eq!(processes(Path::new("/nowhere/in/particular")).count(), 0);
    }
}
