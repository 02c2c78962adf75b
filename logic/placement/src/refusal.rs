//! Why a domain fits nowhere, in words that say what would help.

use crate::{Want, Wish};
use std::fmt;
use topology::size_text;

/// Nodes that a refusal tells one by one: a cluster may have hundreds.
const NODES_TOLD_MAX: usize = 8;

/// A need that a node does not fulfil.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// It is another than the one that is wanted.
    Name {
        /// The node that is wanted.
        wanted: String,
    },
    /// It is drained.
    Drained,
    /// It is lost.
    Lost,
    /// A label, or its value.
    Label {
        /// The label.
        label: String,
        /// The value that it should have.
        wanted: String,
        /// The value that it has.
        has: Option<String>,
    },
    /// Memory that is not promised yet.
    Memory {
        /// Bytes that are missing.
        missing: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Processor time that is not promised yet.
    Cpu {
        /// Thousandths of a processor that are missing.
        missing_milli: u64,
        /// Thousandths that are free.
        free_milli: u64,
    },
    /// It can't promise what is to be promised, beside what it has promised already.
    Promise {
        /// Why not, as admission says it.
        why: String,
    },
    /// It was tried, and can't keep the promise, which is strict.
    Refused {
        /// Why not.
        why: String,
    },
    /// It has no current replica of a volume of the domain.
    Volumes,
    /// Nobody knows what it can promise.
    Silent,
}

impl Lack {
    /// How far it is from fitting: what a person can't change counts most.
    fn weight(&self) -> u32 {
        match self {
            Self::Name { .. } => 1000,
            Self::Lost => 100,
            Self::Label { .. } => 10,
            Self::Volumes => 50,
            Self::Silent => 4,
            Self::Refused { .. } => 3,
            Self::Drained => 2,
            Self::Promise { .. } | Self::Memory { .. } | Self::Cpu { .. } => 1,
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name { wanted } => write!(f, "is not {wanted}"),
            Self::Drained => f.write_str("is drained"),
            Self::Lost => f.write_str("is lost"),
            Self::Label { label, wanted, has: Some(has) } => {
                write!(f, "has the label {label} = {has:?}, not {wanted:?}")
            }
            Self::Label { label, wanted, has: None } => write!(f, "lacks the label {label} = {wanted:?}"),
            Self::Memory { missing, free } => {
                write!(f, "lacks {} of memory ({} are free)", size_text(*missing), size_text(*free))
            }
            Self::Cpu { missing_milli, free_milli } => {
                let processors = |milli: &u64| format!("{}.{:03}", milli / 1000, milli % 1000);
                write!(
                    f,
                    "lacks {} processors ({} are free)",
                    processors(missing_milli),
                    processors(free_milli)
                )
            }
            Self::Promise { why } => write!(f, "can't promise it what it is to be promised ({why})"),
            Self::Refused { why } => write!(f, "has refused it ({why})"),
            Self::Volumes => f.write_str("has no current replica of its volumes"),
            Self::Silent => f.write_str(
                "does not say what it can promise (its daemon has just begun, or is of an older release)",
            ),
        }
    }
}

/// No node fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its distributed container.
    pub dc: String,
    /// The domain.
    pub domain: String,
    /// The needs that each node does not fulfil, the nearest miss first.
    pub lacks: Vec<(String, Vec<Lack>)>,
    wanted: Option<String>,
}

impl Refusal {
    pub(crate) fn new(want: &Want, mut lacks: Vec<(String, Vec<Lack>)>) -> Self {
        let far = |lacks: &[Lack]| lacks.iter().map(Lack::weight).sum::<u32>();
        lacks.sort_by(|a, b| far(&a.1).cmp(&far(&b.1)).then_with(|| a.0.cmp(&b.0)));
        let wanted = match &want.wish {
            Wish::Named(name) => Some(name.clone()),
            Wish::Any | Wish::Spread => None,
        };
        Self { dc: want.dc.clone(), domain: want.domain.clone(), lacks, wanted }
    }

    /// The node that lacks least; of a domain that wants one node, that one, if there is such a
    /// node.
    #[must_use]
    pub fn nearest(&self) -> Option<&str> {
        self.lacks.first().map(|(name, _)| name.as_str())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |lacks: &[Lack]| lacks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
        if let Some(wanted) = &self.wanted {
            return match self.lacks.iter().find(|(name, _)| name == wanted) {
                Some((name, lacks)) => {
                    write!(
                        f,
                        "domain {} can't run on the node that it names: {name} {}",
                        self.domain,
                        words(lacks)
                    )
                }
                None => {
                    let names: Vec<&str> = self.lacks.iter().map(|(name, _)| name.as_str()).collect();
                    write!(
                        f,
                        "domain {} wants the node {wanted}, and there is none; the nodes are: {}",
                        self.domain,
                        names.join(", ")
                    )
                }
            };
        }
        write!(f, "no node fits domain {}", self.domain)?;
        for (index, (name, lacks)) in self.lacks.iter().take(NODES_TOLD_MAX).enumerate() {
            let nearest = if index == 0 && self.lacks.len() > 1 { " (the nearest miss)" } else { "" };
            write!(f, "{} {name} {}{nearest}", if index == 0 { ":" } else { ";" }, words(lacks))?;
        }
        match self.lacks.len().saturating_sub(NODES_TOLD_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl std::error::Error for Refusal {}
