//! The age of a process.

use std::fs;
use std::time::Duration;

/// Clock ticks in a second, as the kernel tells them to programs: the same on all architectures
/// that we know.
const TICKS_PER_SECOND: f64 = 100.0;

/// How long ago a process started, from field 22 of its `/proc/PID/stat`.
pub(crate) fn process_age(start_ticks: u64) -> Duration {
    let uptime = fs::read_to_string("/proc/uptime").ok();
    let uptime: Option<f64> = uptime.and_then(|text| text.split(' ').next()?.parse().ok());
    let age = uptime.map_or(0.0, |uptime| uptime - start_ticks as f64 / TICKS_PER_SECOND);
    Duration::try_from_secs_f64(age.max(0.0)).unwrap_or_default()
}
