//! The orderings of a copy and of a revoke (`docs/spec/grants.md`), model-checked: every
//! interleaving and every legal reordering.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p ipc --release --test grants_model`. What copies
//! is `io/endpoint`, by `memcpy`; here a word stands for the bytes, written and read without any
//! ordering, as those are.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use wire::grants::{STATE_LIVE, STATE_REVOKED};

/// A buffer that is granted, and what it moves to.
struct Shared {
    state: AtomicU64,
    data: AtomicU64,
    fresh: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let [state, data, fresh] = [STATE_LIVE, 0, 0].map(AtomicU64::new);
        Arc::new(Shared { state, data, fresh })
    }

    /// As `Endpoint::revoke` does it.
    fn revoke(&self, fenced: bool) {
        self.state.store(STATE_REVOKED, Release);
        if fenced {
            fence(SeqCst);
        }
        self.fresh.store(self.data.load(Relaxed), Relaxed);
    }

    fn is_live(&self) -> bool {
        self.state.load(Acquire) == STATE_LIVE
    }
}

/// REVOKE: what a copy has written that ended well is in what the owner has moved to.
fn writes_that_ended_well_are_kept(owner_fences: bool, copier_fences: bool) {
    loom::model(move || {
        let shared = Shared::new();
        let copier = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                if !shared.is_live() {
                    return false;
                }
                shared.data.store(7, Relaxed);
                if copier_fences {
                    fence(SeqCst);
                }
                shared.is_live()
            })
        };
        shared.revoke(owner_fences);
        let ended_well = copier.join().unwrap();
        assert!(!ended_well || shared.fresh.load(Relaxed) == 7, "a copy that ended well is lost");
    });
}

#[test]
fn a_write_that_ended_well_is_in_the_buffer() {
    writes_that_ended_well_are_kept(true, true);
}

#[test]
#[should_panic(expected = "a copy that ended well is lost")]
fn not_without_the_owners_fence() {
    writes_that_ended_well_are_kept(false, true);
}

#[test]
#[should_panic(expected = "a copy that ended well is lost")]
fn not_without_the_copiers_fence() {
    writes_that_ended_well_are_kept(true, false);
}

/// OVER: a read that ended well has seen nothing of what was written after the grant was over. The
/// owner writes to other memory then; that a reader could come by it through the old memory would
/// take the owner to write there, which it does not.
#[test]
fn a_read_that_ended_well_is_of_the_time_before() {
    loom::model(|| {
        let shared = Shared::new();
        let reader = {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || {
                if !shared.is_live() {
                    return None;
                }
                let read = shared.data.load(Relaxed);
                fence(SeqCst);
                shared.is_live().then_some(read)
            })
        };
        shared.data.store(1, Relaxed);
        shared.revoke(true);
        shared.fresh.store(2, Relaxed);
        assert!(matches!(reader.join().unwrap(), None | Some(0 | 1)));
        assert_eq!(shared.data.load(Relaxed), 1);
    });
}

/// GRANT: who was told of the data sees them.
#[test]
fn who_was_told_sees_the_data() {
    loom::model(|| {
        let shared = Shared::new();
        let message = Arc::new(AtomicU64::new(0));
        let reader = {
            let (shared, message) = (Arc::clone(&shared), Arc::clone(&message));
            loom::thread::spawn(move || {
                let told = message.load(Acquire) == 1;
                (told, shared.data.load(Relaxed))
            })
        };
        shared.data.store(9, Relaxed);
        message.store(1, Release);
        let (told, read) = reader.join().unwrap();
        assert!(!told || read == 9);
    });
}
