//! The frame around each call: nothing unwinds into C, no thread is cancelled inside, and a failure
//! is `errno` and a sentence.

use super::{Direction, Failure, Outcome, Patience, text};
use crate::name_abi::{Uncancelled, set_errno};
use libc::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Runs a call; what failed gives `failed`.
pub(crate) fn call<T>(failed: T, work: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = {
        // A cancelled thread would unwind through locks that are held.
        let _uncancelled = Uncancelled::new();
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(defect()))
    };
    outcome.unwrap_or_else(|failure| {
        text::keep(&failure.text);
        set_errno(failure.errno);
        failed
    })
}

fn defect() -> Failure {
    let text = "a defect of libtombolo ended this call; close the handle, and report what was said on standard error";
    Failure { errno: libc::ENOTRECOVERABLE, text: text.to_owned() }
}

pub(crate) fn direction(number: c_int) -> Outcome<Direction> {
    match number {
        1 => Ok(Direction::Reading),
        2 => Ok(Direction::Writing),
        other => {
            let text = format!("{other} is no direction: take TOMBOLO_READING or TOMBOLO_WRITING");
            Err(Failure { errno: libc::EINVAL, text })
        }
    }
}

pub(crate) fn patience(timeout_ns: i64) -> Outcome<Patience> {
    match u64::try_from(timeout_ns) {
        Ok(0) => Ok(Patience::Never),
        Ok(ns) => Ok(Patience::For(Duration::from_nanos(ns))),
        Err(_) if timeout_ns == -1 => Ok(Patience::Forever),
        Err(_) => {
            let text = format!("{timeout_ns} is no time-out: take ns, 0 not to wait, or TOMBOLO_FOREVER");
            Err(Failure { errno: libc::EINVAL, text })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_failure_like_any_other() {
        let failed = call(-1, || panic!("this message belongs to a test"));
        assert_eq!(failed, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOTRECOVERABLE));
    }

    #[test]
    fn times_and_directions_out_of_bounds_are_refused() {
        assert_eq!(patience(0), Ok(Patience::Never));
        assert_eq!(patience(-1), Ok(Patience::Forever));
        assert_eq!(patience(7), Ok(Patience::For(Duration::from_nanos(7))));
        assert_eq!(patience(-2).unwrap_err().errno, libc::EINVAL);
        assert_eq!(direction(1), Ok(Direction::Reading));
        assert_eq!(direction(3).unwrap_err().errno, libc::EINVAL);
    }
}
