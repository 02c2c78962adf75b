//! The resources that control groups of a node use, as the kernel counts them.

use std::fs;
use std::path::Path;

/// Where the control groups are.
pub const ROOT: &str = "/sys/fs/cgroup";

/// The directory of a node in every hierarchy, as its daemon wrote it down.
#[must_use]
pub fn of_node(run_dir: &Path) -> Option<String> {
    let text = fs::read_to_string(run_dir.join("cgroup")).ok()?;
    Some(text.trim().to_owned())
}

/// Processor time of a group and of all below it, in ns; `None` where the kernel does not count.
#[must_use]
pub fn processor_ns(group: &str) -> Option<u64> {
    let version_1 = ["cpuacct", "cpu,cpuacct"]
        .iter()
        .find_map(|controller| number(&Path::new(ROOT).join(controller).join(group).join("cpuacct.usage")));
    let version_2 = || {
        let text = fs::read_to_string(Path::new(ROOT).join(group).join("cpu.stat")).ok()?;
        Some(keyed(&text, "usage_usec")? * 1_000)
    };
    version_1.or_else(version_2)
}

/// The only number of a file.
#[must_use]
pub fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number behind a key at the beginning of a line.
#[must_use]
pub fn keyed(text: &str, key: &str) -> Option<u64> {
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
    fn a_group_that_is_not_there_has_used_nothing() {
        assert_eq!(processor_ns("no-such-group-here"), None);
    }
}
