//! Opening a channel that a program of another domain offers.

use super::client::{Control, ControlError};
use crate::wait::pause_until;
use channel::End;
use rustix::io::Errno;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::control::MAX_WAIT_MS;

/// The entrance that a program states when it opens channels: no entrance of ours, but the program
/// itself.
const ENTRANCE: &str = "api";
/// How long the daemon may take for its answer, beside the wait that was asked for.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an answer that came at once, and may be another one soon: the offering program does
/// not read, or the daemon ends.
const RETRY: Duration = Duration::from_millis(20);

/// Opens a channel of the service `name`, and waits up to `timeout` until a program offers it. No
/// time: it is offered now, or the answer is [`ControlError::Refused`] with `EAGAIN`.
///
/// # Errors
/// [`ControlError`]; its text says what to do.
pub fn open_channel(name: &str, timeout: Duration) -> Result<End, ControlError> {
    let now = Instant::now();
    open_channel_at(&Control::path(), name, now.checked_add(timeout))
}

/// The same over the control socket at `path`. Without a deadline it waits as long as it takes.
///
/// # Errors
/// [`ControlError`].
pub fn open_channel_at(path: &Path, name: &str, deadline: Option<Instant>) -> Result<End, ControlError> {
    loop {
        let mut control = connect(path, deadline)?;
        match try_open(&mut control, name, deadline) {
            Err(error) if error.is_gone() && !is_over(deadline) => pause(deadline),
            opened => return opened,
        }
    }
}

/// Where there is no time to wait, there is none to wait for the daemon either.
fn connect(path: &Path, deadline: Option<Instant>) -> Result<Control, ControlError> {
    if is_over(deadline) { Control::connect(path) } else { Control::connect_when_there(path, deadline) }
}

fn try_open(control: &mut Control, name: &str, deadline: Option<Instant>) -> Result<End, ControlError> {
    loop {
        let wait = left(deadline).min(Duration::from_millis(u64::from(MAX_WAIT_MS)));
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(MAX_WAIT_MS);
        let answer_by = Instant::now() + wait + ANSWER_TIMEOUT;
        match control.connect_waiting(name, ENTRANCE, (0, wait_ms), answer_by) {
            Ok((_, end)) => return Ok(end),
            Err(ControlError::Refused { errno, .. })
                if errno == Errno::AGAIN.raw_os_error() && !is_over(deadline) =>
            {
                pause(deadline);
            }
            Err(error) => return Err(error),
        }
    }
}

fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()))
}

fn is_over(deadline: Option<Instant>) -> bool {
    left(deadline).is_zero()
}

fn pause(deadline: Option<Instant>) {
    pause_until(Instant::now() + RETRY.min(left(deadline)));
}
