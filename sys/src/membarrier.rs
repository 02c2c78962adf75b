//! membarrier(2), global and expedited: one thread orders the memory of all threads of all
//! registered processes, so that these need no fence of their own.
//!
//! Registering costs a process with several threads some ten milliseconds, once (the kernel waits
//! until every processor has heard of it), so it is done where nobody waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

/// Stack of the thread that registers: it makes one system call.
const STACK_BYTES: usize = 64 << 10;
/// Links of a directory without subdirectories.
const OWN_LINKS: u64 = 2;

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Whether this process may call [`barrier`]: the kernel knows it and nobody has forbidden it.
#[must_use]
pub fn is_supported() -> bool {
    static SUPPORTED: OnceLock<bool> = OnceLock::new();
    *SUPPORTED.get_or_init(|| {
        let known = membarrier_query();
        known.contains_command(MembarrierCommand::GlobalExpedited)
            && known.contains_command(MembarrierCommand::RegisterGlobalExpedited)
    })
}

/// A full barrier in every running thread of every registered process, and here. False: the kernel
/// has refused.
#[must_use]
pub fn barrier() -> bool {
    membarrier(MembarrierCommand::GlobalExpedited).is_ok()
}

/// Whether this process is registered: barriers of others reach all its threads.
#[inline]
#[must_use]
pub fn is_registered() -> bool {
    REGISTERED.load(Ordering::Acquire)
}

/// Sees to it that this process is registered soon, if that can be: at once if it has one thread,
/// otherwise through a thread that ends with it. Costs nothing when called again.
pub fn register_soon() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        if !is_supported() {
            return;
        }
        if has_one_thread() {
            register();
            return;
        }
        // Without memory for a thread the process goes on with its fences.
        let _thread = crate::signals::without_signals(|| {
            std::thread::Builder::new()
                .name("tombolo-barrier".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(register)
        });
    });
}

fn register() {
    if membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok() {
        REGISTERED.store(true, Ordering::Release);
    }
}

/// Each thread is a directory in `/proc/self/task`.
fn has_one_thread() -> bool {
    rustix::fs::stat("/proc/self/task").is_ok_and(|tasks| tasks.st_nlink == OWN_LINKS + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_registered_soon_and_barriers_work() {
        if !is_supported() {
            println!("skipped: this kernel does not know membarrier(2), or forbids it");
            return;
        }
        register_soon();
        let start = crate::clock::clock_ns();
        while !is_registered() {
            assert!(crate::clock::clock_ns() - start < 20_000_000_000, "not registered after 20 s");
            std::thread::yield_now();
        }
        assert!(barrier());
    }
}
