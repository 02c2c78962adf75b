//! The agent of a guest, and what becomes its commands.

use super::{log, said};
use ::agent::{AgentError, Config, open_port, power_off, protect};

/// Serves the node until the guest is to be switched off, and does that.
pub fn run() -> Result<(), String> {
    log();
    let port = open_port().map_err(|error| said(&error))?;
    if let Err(error) = protect() {
        tracing::warn!(%error, "the agent has no protection from a guest that is short of memory");
    }
    match ::agent::run(Config::of_guest(), port) {
        // Its node is gone, and with it whoever could hear why; so the machine ends as it was asked
        // to.
        Ok(()) | Err(AgentError::Gone) => {
            power_off().map_err(|error| format!("the machine can't be switched off: {error}"))
        }
        Err(error) => Err(said(&error)),
    }
}
