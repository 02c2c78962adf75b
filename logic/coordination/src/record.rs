//! The records that are written down: one for each node, and the head.

use crate::holders::{Holder, HolderId};
use crate::node::{Kind, Node};
use serde::{Deserialize, Serialize};

/// The head, which every commit replaces: its writer, and how far that counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// The format of head and records.
    pub format: u32,
    /// A number that the server chose when it started, so that no other commit is like one of its.
    pub writer: HolderId,
    /// How many servers there were.
    pub epoch: u64,
    /// How many changes there were: revisions and tokens.
    pub revision: u64,
    /// The last number of a node that was given.
    pub serial: u32,
    /// How many commits this server made.
    pub commits: u64,
}

/// The format that this version writes, and the only one it reads.
pub const FORMAT: u32 = 1;

impl Head {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_else(|_| unreachable!("numbers and a word are JSON"))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let head: Self =
            serde_json::from_slice(bytes).map_err(|e| format!("the head is not understood: {e}"))?;
        if head.format != FORMAT {
            return Err(format!("the state has format {}; this version reads format {FORMAT}", head.format));
        }
        Ok(head)
    }
}

/// A batch of changes to be written, all or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The new head.
    pub head: Vec<u8>,
    /// Records by their keys; `None`: to be removed.
    pub changes: Vec<(String, Option<Vec<u8>>)>,
    /// Whether it is everything that is to be written now.
    pub whole: bool,
}

/// The line of JSON before the value.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    kind: Kind,
    serial: u32,
    revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<HolderId>,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    count: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holders: Vec<Holder>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Keys of records begin with it.
pub(crate) const KEY_PREFIX: &str = "n/";

pub(crate) fn encode(node: &Node) -> Vec<u8> {
    let line = Line {
        kind: node.kind,
        serial: node.serial,
        revision: node.revision,
        owner: node.owner,
        count: node.count,
        holders: node.holders.clone(),
    };
    let mut bytes = serde_json::to_vec(&line).unwrap_or_else(|_| unreachable!("numbers and words are JSON"));
    bytes.push(b'\n');
    bytes.extend_from_slice(&node.value);
    bytes
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Node, String> {
    let end = bytes.iter().position(|&byte| byte == b'\n').ok_or("a record has no first line")?;
    let (line, value) = bytes.split_at(end);
    let line: Line = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let value = value.get(1..).unwrap_or_default().to_vec();
    let Line { kind, serial, revision, owner, count, holders } = line;
    Ok(Node { kind, serial, revision, value, owner, count, holders })
}
