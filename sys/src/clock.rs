//! Time that never jumps.

/// Nanoseconds of `CLOCK_MONOTONIC`: the same clock in every process and container of a node.
#[must_use]
pub fn clock_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock starts at boot and is never negative.
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Nanoseconds of processor time that the calling thread has had.
#[must_use]
pub fn thread_ns() -> u64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    used.tv_sec.unsigned_abs() * 1_000_000_000 + used.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_goes_on() {
        let first = super::clock_ns();
        while super::clock_ns() == first {}
        assert!(super::clock_ns() > first);
    }
}
