//! Why an agent ends that was not told to.

use std::io;
use streams::{Broken, Overflow};
use thiserror::Error;
use wire::guest::{BadFrame, PORT_NAME};

/// The guest can't go on: its node is lost, or it never was one.
#[derive(Debug, Error)]
pub enum AgentError {
    /// There is no port: this is no guest of a node.
    #[error(
        "this machine has no port named {PORT_NAME}: the agent runs in a virtual machine that a node started, and nowhere else"
    )]
    NoPort,
    /// The port can't be used.
    #[error("the port to the node failed: cannot {what}")]
    Port {
        /// The verb.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The node has closed the port.
    #[error("the node has closed its side of the port")]
    Gone,
    /// The node sent something that is no frame.
    #[error("the node broke a rule: {0}")]
    Frame(#[from] BadFrame),
    /// The node broke a rule of streams.
    #[error("the node broke a rule: {0}")]
    Stream(#[from] Broken),
    /// The node does not read.
    #[error("the node broke a rule: {0}")]
    Overflow(#[from] Overflow),
    /// The node sent what only an agent sends, or what it had said already.
    #[error("the node broke a rule: it sent {0}")]
    Unexpected(&'static str),
    /// The node speaks another version.
    #[error(
        "the node speaks version {found} of the port's protocol, and this agent {}",
        wire::guest::VERSION
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// A part of the agent's own that can't be made or waited for.
    #[error("cannot {what}")]
    Own {
        /// The verb.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// The kernel's answer to a step of the agent's own.
pub(crate) fn own<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> AgentError {
    move |source| AgentError::Own { what, source: source.into() }
}
