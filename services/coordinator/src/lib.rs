//! The server of a coordination service: keys, locks, semaphores, barriers and queues as files. See
//! `docs/coordination.md` for users and `docs/spec/coordination.md` for the rules and the bytes.
//!
//! Inside, from the pure to what waits: `coordination` (a crate of its own) decides; `commands`
//! reads what is written to `ctl`; `tree`, `keys`, `locks`, `barriers`, `queues` and `watchers`
//! take what comes for their files; `coordinator` has nobody answered before what was decided is
//! committed; `sessions` and `history` are what is remembered meanwhile; `store` speaks to the
//! daemon, in a thread.

mod barriers;
mod commands;
mod coordinator;
mod export;
mod history;
mod keys;
mod locks;
mod queues;
mod sessions;
mod store;
mod tree;
mod watchers;

use std::path::Path;
use wire::control::ServedService;

/// The service, as `session::Make` wants it, with its state behind the control socket at `control`.
///
/// # Errors
/// The fault in settings that the topology should not have admitted; no thread, no randomness.
pub fn service(served: &ServedService, control: &Path) -> Result<Box<dyn session::Service>, String> {
    let grace_ms = grace_ms(&served.settings)?;
    let store =
        store::Daemon::start(control, &served.name).map_err(|e| format!("no way to its state: {e}"))?;
    Ok(Box::new(coordinator::Coordinator::new(&served.name, grace_ms, Box::new(store))))
}

/// The only setting.
pub(crate) fn grace_ms(settings: &serde_json::Value) -> Result<u64, String> {
    settings
        .get("grace_ms")
        .and_then(serde_json::Value::as_u64)
        .ok_or_else(|| "it has no grace_ms".to_owned())
}

#[cfg(test)]
mod tests;
