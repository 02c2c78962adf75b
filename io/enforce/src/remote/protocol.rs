//! The protocol between a client and the dispatcher's process: a length of four bytes, little end
//! first, and JSON. Both are of one user of one node.

use std::io::{Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::enforcer::{Ability, Committed, Effect, Kind, Prepared, Report};
use crate::error::{EnforceError, Result};
use crate::plan::Plan;

/// Version of what is said. Another one is refused, and its dispatcher replaced.
pub const VERSION: u32 = 2;
/// Longest message: a plan of [`crate::MAX_VTMS`] machines that name [`crate::MAX_PIDS`]
/// processes each is well below.
pub const MAX_BYTES: u32 = 64 << 20;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// First: are we of one kind?
    Hello {
        /// [`VERSION`] of the client.
        version: u32,
    },
    /// See [`crate::Enforcer::prepare`].
    Prepare(Plan),
    /// See [`crate::Enforcer::commit`].
    Commit(Prepared),
    /// See [`crate::Enforcer::roll_back`].
    RollBack,
    /// See [`crate::Enforcer::effect`].
    Effect {
        /// How long to wait, in ms.
        at_most_ms: u64,
    },
    /// See [`crate::Enforcer::report`].
    Report,
    /// See [`crate::Enforcer::scan`].
    Scan,
    /// See [`crate::Enforcer::release`].
    Release,
    /// The plan that is in force.
    InForce,
    /// Release, and end.
    Stop,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// To `Hello`.
    Hello {
        /// [`VERSION`] of the dispatcher.
        version: u32,
        /// The kind of enforcement that it does.
        kind: Kind,
        /// And how well.
        ability: Ability,
        /// Its process.
        pid: u32,
        /// The process that looks after it.
        guardian: u32,
    },
    /// To `Prepare`.
    Prepared(Prepared),
    /// To `Commit` and `RollBack`.
    Committed(Committed),
    /// To `Effect`.
    Effect(Effect),
    /// To `Report`.
    Report(Report),
    /// To `InForce`.
    Plan(Plan),
    /// Done.
    Done,
    /// Not done.
    Refused {
        /// Why.
        why: String,
        /// Whether it was for being prepared before something else.
        stale: bool,
        /// Whether it was for there being nothing to take back.
        nothing: bool,
    },
}

impl Response {
    /// The answer that tells a failure.
    #[must_use]
    pub fn refused(error: &EnforceError) -> Self {
        let stale = matches!(error, EnforceError::Stale);
        let nothing = matches!(error, EnforceError::NothingToUndo);
        Self::Refused { why: error.to_string(), stale, nothing }
    }
}

/// Sends one message.
///
/// # Errors
/// The socket's.
pub fn send(mut to: impl Write, message: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(message).map_err(|error| broken(&error))?;
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= MAX_BYTES);
    let length = length.ok_or_else(|| broken(&format!("a message of {} bytes is too long", text.len())))?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend(text);
    to.write_all(&bytes).map_err(|error| broken(&error))
}

/// Receives one message.
///
/// # Errors
/// The socket's, and for what is none.
pub fn receive<T: DeserializeOwned>(mut from: impl Read) -> Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(|error| broken(&error))?;
    let length = u32::from_le_bytes(length);
    if length > MAX_BYTES {
        return Err(broken(&format!("a message of {length} bytes is too long")));
    }
    // Room is made for what comes, not for what was announced.
    let mut text = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut text).map_err(|error| broken(&error))?;
    serde_json::from_slice(&text).map_err(|error| broken(&error))
}

fn broken(error: &dyn std::fmt::Display) -> EnforceError {
    EnforceError::Lost(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_were_sent_and_nonsense_is_refused() {
        let mut bytes = Vec::new();
        send(&mut bytes, &Request::Effect { at_most_ms: 7 }).unwrap();
        assert!(matches!(receive::<Request>(bytes.as_slice()).unwrap(), Request::Effect { at_most_ms: 7 }));
        assert!(receive::<Request>(&bytes[..6]).is_err());
        assert!(receive::<Request>([255_u8; 64].as_slice()).unwrap_err().to_string().contains("too long"));
        assert!(receive::<Request>([2, 0, 0, 0, b'{', b'x'].as_slice()).is_err());
        assert!(receive::<Request>([].as_slice()).is_err());
    }
}
