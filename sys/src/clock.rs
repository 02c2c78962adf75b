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

/// Whether a time service keeps the clock of the wall right, as the kernel knows it (adjtimex(2)).
#[must_use]
pub fn is_synchronized() -> bool {
    // SAFETY: all-zero bytes are a valid `timex`, whose `modes` of 0 changes nothing.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is writable and outlives the call.
    let clock = unsafe { libc::adjtimex(&raw mut state) };
    clock >= 0 && clock != libc::TIME_ERROR && state.status & libc::STA_UNSYNC == 0
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
