//! Planned moves of domains, as the admin socket tells them.

use serde::{Deserialize, Serialize};

/// `POST /v1/domains/NAME/move`: has a domain of a cluster move to another node. Answered by
/// [`MoveReport`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainMoveRequest {
    /// The node.
    pub to: String,
    /// Only say whether it can.
    #[serde(default)]
    pub dry_run: bool,
}

/// The outcome of a planned move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveOutcome {
    /// It was there already.
    There,
    /// It can move; only that was asked.
    Possible,
    /// It can't move, and nothing was touched.
    Refused,
    /// It is ready there.
    Moved,
    /// It did not come up there, and is ready again where it was.
    Returned,
    /// It did not come up there, and could not go back.
    Failed,
}

/// A planned move: how it went, what it took, and why it was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReport {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub domain: String,
    /// The node that had it.
    pub from: String,
    /// The node to which it was to go.
    pub to: String,
    /// The outcome.
    pub outcome: MoveOutcome,
    /// How it moves: `restart`.
    pub how: String,
    /// Why it can't move, reason by reason.
    pub refused: Vec<String>,
    /// Notes for the person who moves it.
    pub notes: Vec<String>,
    /// From the order until it was ready again, as the daemon that was told saw it.
    pub pause_ms: Option<u64>,
    /// The time that its end took.
    pub ended_ms: Option<u64>,
    /// The time that its start took, until it was ready.
    pub began_ms: Option<u64>,
    /// Why it did not stay there.
    pub why: Option<String>,
}

impl MoveReport {
    /// Of a move that is none: nothing was asked yet.
    #[must_use]
    pub fn new(dc: &str, domain: &str, from: &str, to: &str) -> Self {
        Self {
            dc: dc.to_owned(),
            domain: domain.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            outcome: MoveOutcome::There,
            how: "restart".to_owned(),
            refused: Vec::new(),
            notes: Vec::new(),
            pause_ms: None,
            ended_ms: None,
            began_ms: None,
            why: None,
        }
    }
}

/// `POST /v1/services/NAME/move`: has the program that offers a service leave it to one of another
/// domain that stands by. Answered by [`ServiceMoved`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceMoveRequest {
    /// The domain.
    pub to: String,
}

/// A service that another program has now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServiceMoved {
    /// Its distributed container.
    pub dc: String,
    /// Its name.
    pub service: String,
    /// The domain of the program before.
    pub from: String,
    /// The domain of the program that has it.
    pub to: String,
    /// From the order until that program was told, in us. Who used the service meanwhile waited for
    /// no longer than that and its own connection anew.
    pub took_us: u64,
}
