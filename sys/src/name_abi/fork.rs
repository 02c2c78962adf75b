//! Noticing that this process is the child of a fork.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static REGISTERED: Once = Once::new();

/// Counts the forks between the process that first called this and the caller. A child sees another
/// number than its parent, so what the parent holds (locks, links) can be told from the child's
/// own.
pub fn fork_generation() -> u64 {
    REGISTERED.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which may be done in the child of a fork of
        // many threads; it stays mapped as long as this library, which is never unloaded. A refusal
        // (no memory) leaves forks unnoticed.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
