//! On which node a domain may run, admitted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// On which node a domain may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// The node, or the rule that chooses it.
    #[serde(default)]
    pub node: NodeChoice,
    /// Labels that the node must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Placement {
    /// Whether any node will do.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The node, or the rule by which one is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeChoice {
    /// Whichever has most room.
    #[default]
    Any,
    /// Whichever has fewest domains of this distributed container that say the same.
    Spread,
    /// This one alone.
    Named(Name),
}

impl NodeChoice {
    /// The words that are no names of nodes.
    pub const WORDS: [&str; 2] = ["any", "spread"];

    /// As the file writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Any => "any",
            Self::Spread => "spread",
            Self::Named(name) => name.as_str(),
        }
    }
}
