//! The holders of locks and items, and those that wait for them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A session, as whoever runs the state numbers it; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// A number that nobody guesses, by which a session is the same after its server or its channel was
/// replaced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HolderId(pub [u8; 16]);

impl From<HolderId> for String {
    fn from(id: HolderId) -> Self {
        id.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for HolderId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        const WRONG: &str = "a holder is 32 digits of base 16";
        if text.len() != 32 || !text.is_ascii() {
            return Err(WRONG);
        }
        let mut id = [0; 16];
        for (at, byte) in id.iter_mut().enumerate() {
            let digits = text.get(2 * at..2 * at + 2).ok_or(WRONG)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| WRONG)?;
        }
        Ok(Self(id))
    }
}

impl fmt::Debug for HolderId {
    /// Anybody who knows it can pass for the holder: two bytes are enough to tell one from another.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HolderId({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

/// Somebody who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) id: HolderId,
    pub(crate) token: u64,
    pub(crate) domain: String,
}

/// An item of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) value: Vec<u8>,
    /// Whoever has it and is not done with it.
    pub(crate) holder: Option<Holder>,
}

/// Somebody who waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) session: SessionId,
    pub(crate) id: HolderId,
    pub(crate) domain: String,
}

/// The outcome of asking for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// It is held, with this token.
    Granted(u64),
    /// It will be a [`Grant`].
    Waits,
}

/// Somebody who waited has it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The session that waited.
    pub session: SessionId,
    /// The path of the lock.
    pub path: String,
    /// Greater than every token before.
    pub token: u64,
}
