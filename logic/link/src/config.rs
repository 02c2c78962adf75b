//! The configuration of a link, before it begins.

use crate::broken::BadConfig;
use wire::link::{DATAGRAM_BYTES_MIN, Hello, RECORD_HEADER_BYTES};

/// How what is sent gets to the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In order and whole, until it is cut: TCP, QUIC.
    Stream,
    /// Datagrams of at most so many bytes, some of which are lost, doubled or overtaken: raw
    /// Ethernet.
    Datagrams {
        /// At least [`DATAGRAM_BYTES_MIN`].
        bytes: usize,
    },
}

impl Transport {
    /// Whether something may be lost on the way without the connection being cut.
    #[must_use]
    pub const fn is_lossy(self) -> bool {
        matches!(self, Self::Datagrams { .. })
    }

    pub(crate) fn check(self) -> Result<Self, BadConfig> {
        match self {
            Self::Datagrams { bytes } if bytes < DATAGRAM_BYTES_MIN => {
                Err(BadConfig::Datagram { bytes, least: DATAGRAM_BYTES_MIN })
            }
            other => Ok(other),
        }
    }
}

/// Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The peer is told of what came after so long at the latest: long enough that most of it goes
    /// along with something else.
    pub state_after_ms: u64,
    /// The time after which a frame that was not acknowledged is sent again, over a transport that
    /// loses; it doubles while nothing comes.
    pub resend_after_ms: u64,
}

impl Default for Timing {
    /// 20 ms and 100 ms: a state is always in time for what waits for it.
    fn default() -> Self {
        Self { state_after_ms: 20, resend_after_ms: 100 }
    }
}

/// One incarnation of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Greater than that of every earlier incarnation of this side of this link; not 0.
    pub epoch: u64,
    /// The hello to the peer: versions, side, and what it may send.
    pub hello: Hello,
    /// Bytes that are held for each pair until the peer has them, headers of records included.
    pub queue_bytes: usize,
    /// See [`Timing`].
    pub timing: Timing,
}

impl Config {
    pub(crate) fn check(self) -> Result<Self, BadConfig> {
        if self.epoch == 0 {
            return Err(BadConfig::Epoch);
        }
        Hello::read(&self.hello.to_bytes())?;
        let least = RECORD_HEADER_BYTES + wire::link::OPEN_BYTES_MAX;
        if self.queue_bytes < least {
            return Err(BadConfig::Queue { bytes: self.queue_bytes, least });
        }
        Ok(self)
    }
}
