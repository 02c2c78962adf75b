//! This node's capacity for reservations: as it was set, and as it is found where it was not.

use crate::admin::reserve::NodeSettings;
use reserve::network::Link;
use reserve::node::{Capacity, Disk};
use reserve::{Costs, Rule};
use std::path::Path;

/// The charge of a switch where nobody says otherwise, in ns: nothing. The kernel's own switches
/// are counted as the time of whoever is switched to.
const SWITCH_NS: u64 = 0;
/// Share of the memory that can be promised where nobody says otherwise: the rest is the kernel's
/// and everybody else's.
const MEMORY_SHARE: u64 = 2;
/// The rate of a disk where nobody says otherwise, in bytes per second: that of a spinning one.
const DISK_BYTES: u64 = 100_000_000;
/// The default rate of a disk, in operations per second.
const DISK_OPERATIONS: u64 = 10_000;
/// How long all bursts of a link may keep it busy, in ms: as long as anybody may have to wait.
const QUEUE_MS: u64 = 250;
/// Least that a link's queues hold, in bytes: some bursts, on a slow link as well.
const QUEUE_BYTES_MIN: u64 = 1 << 20;
/// Least that a link carries, in bits per second.
const LINK_BITS_MIN: u64 = 1_000;
/// Longest packet, in bytes with the header of Ethernet.
const PACKET_BYTES: u64 = 1_514;

/// The settings of a node about which nothing was said.
pub(crate) fn found() -> NodeSettings {
    NodeSettings {
        processors: online(),
        policy: crate::admin::reserve::PolicyWord::default(),
        switch_ns: SWITCH_NS,
        link: None,
        between_bits: None,
        memory_bytes: memory() / MEMORY_SHARE,
        disk_bytes: DISK_BYTES,
        disk_operations: DISK_OPERATIONS,
    }
}

/// The processors that the kernel lets this process use.
fn online() -> Vec<usize> {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let numbers = list.map_or_else(Vec::new, |list| ranges(list.trim()).unwrap_or_default());
    if numbers.is_empty() { vec![0] } else { numbers }
}

/// Numbers as the kernel lists them: `0-3,8`.
#[must_use]
pub fn ranges(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if to < from || to >= reserve::MAX_PROCESSORS {
            return None;
        }
        numbers.extend(from..=to);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// Returns the settings for the arithmetic, where this node has these processors.
///
/// # Errors
/// The impossible setting, in words.
pub(crate) fn capacity(settings: &NodeSettings) -> Result<Capacity, String> {
    let known = online();
    let strange = settings.processors.iter().find(|number| {
        !known.contains(number) && !Path::new(&format!("/sys/devices/system/cpu/cpu{number}")).exists()
    });
    if let Some(number) = strange {
        return Err(format!("this node has no processor {number}; it has {}", list(&known)));
    }
    arithmetic(settings)
}

/// As [`capacity`], for any node.
///
/// # Errors
/// As [`capacity`].
pub(crate) fn arithmetic(settings: &NodeSettings) -> Result<Capacity, String> {
    if settings.processors.is_empty() {
        return Err("a node has at least one processor for reservations".into());
    }
    let costs = Costs::new(settings.switch_ns).map_err(|error| error.to_string())?;
    let rate_bits = settings.link.as_ref().map_or(0, |link| link.rate_bits);
    if rate_bits > reserve::network::FASTEST_BITS {
        return Err(format!("no link carries {rate_bits} bit/s"));
    }
    if let Some(between) = settings.between_bits {
        if settings.link.is_none() {
            return Err(
                "what domains say to each other is kept beside a link: say one, too (--link DEVICE=RATE)"
                    .into(),
            );
        }
        if between < rate_bits || between > reserve::network::FASTEST_BITS {
            return Err(format!(
                "what domains say to each other takes at least what the link carries, and {between} bit/s are {} than {rate_bits}",
                if between < rate_bits { "less" } else { "more than any has, and more" }
            ));
        }
    }
    Ok(Capacity {
        processors: settings.processors.len(),
        rule: Rule { policy: settings.policy.into(), costs },
        link: Link {
            rate_bits,
            queue_bytes: (rate_bits / 8 / 1_000 * QUEUE_MS).max(QUEUE_BYTES_MIN),
            packet_bytes: PACKET_BYTES,
        },
        memory_bytes: settings.memory_bytes,
        disk: Disk { bytes: settings.disk_bytes, operations: settings.disk_operations },
    })
}

/// Whether classes can be made on the link.
///
/// # Errors
/// Why not: there is no such interface, or somebody else keeps its packets.
pub(crate) fn usable(settings: &NodeSettings) -> Result<(), String> {
    let Some(link) = &settings.link else { return Ok(()) };
    if link.rate_bits < LINK_BITS_MIN {
        return Err(format!(
            "a link that carries {} bit/s carries nothing: say 1kbit at least",
            link.rate_bits
        ));
    }
    interface::traffic::usable(&link.device)
        .map_err(|error| format!("{} can't be the link: {error}", link.device))
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_as_the_kernel_writes_them() {
        assert_eq!(ranges("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(ranges("1,0,1"), Some(vec![0, 1]));
        for bad in ["", "x", "3-1", "0-99999999999", "-1", "128"] {
            assert_eq!(ranges(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_node_without_processors_or_with_strange_ones_is_refused() {
        let good = found();
        assert!(capacity(&good).is_ok());
        assert!(capacity(&NodeSettings { processors: vec![], ..good.clone() }).is_err());
        let error = capacity(&NodeSettings { processors: vec![127], ..good.clone() });
        assert!(error.is_err_and(|error| error.contains("no processor 127")));
        assert!(capacity(&NodeSettings { switch_ns: u64::MAX, ..good }).is_err());
    }
}
