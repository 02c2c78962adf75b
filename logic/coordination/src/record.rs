//! The records that are written: one for each node, and the head.

use crate::holders::{Holder, HolderId, Item};
use crate::node::{Kind, Node};
use serde::{Deserialize, Serialize};

/// The head, which every commit replaces: its writer, and the counters.
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

/// The changes of one transaction: all are written, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The new head.
    pub head: Vec<u8>,
    /// Records by their keys; `None`: to be removed.
    pub changes: Vec<(String, Option<Vec<u8>>)>,
    /// Whether it is everything that is to be written now.
    pub whole: bool,
}

/// The head before the value, as a line of JSON.
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
    #[serde(default, skip_serializing_if = "is_zero")]
    generation: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    durable: bool,
}

/// An item of a queue before its bytes, as a line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ItemLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder: Option<Holder>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Keys of the records of items begin with it.
const ITEM_PREFIX: &str = "q/";

/// The key of the record of an item.
pub(crate) fn item_key(path: &str, number: u64) -> String {
    format!("{ITEM_PREFIX}{path}/{number:016x}")
}

/// The queue and the number of the item whose record has this key.
pub(crate) fn item_of(key: &str) -> Option<(&str, u64)> {
    let (path, number) = key.strip_prefix(ITEM_PREFIX)?.rsplit_once('/')?;
    Some((path, u64::from_str_radix(number, 16).ok()?))
}

/// Keys of the records of nodes begin with it.
pub(crate) const KEY_PREFIX: &str = "n/";

pub(crate) fn encode(node: &Node) -> Vec<u8> {
    let line = Line {
        kind: node.kind,
        serial: node.serial,
        revision: node.revision,
        owner: node.owner,
        count: node.count,
        holders: node.holders.clone(),
        generation: node.generation,
        durable: node.durable,
    };
    with_line(&line, &node.value)
}

pub(crate) fn encode_item(item: &Item) -> Vec<u8> {
    with_line(&ItemLine { holder: item.holder.clone() }, &item.value)
}

pub(crate) fn decode_item(bytes: &[u8]) -> Result<Item, String> {
    let (line, value) = split(bytes)?;
    let ItemLine { holder } = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    Ok(Item { value, holder })
}

fn with_line(line: &impl Serialize, value: &[u8]) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(line).unwrap_or_else(|_| unreachable!("numbers and words are JSON"));
    bytes.push(b'\n');
    bytes.extend_from_slice(value);
    bytes
}

fn split(bytes: &[u8]) -> Result<(&[u8], Vec<u8>), String> {
    let end = bytes.iter().position(|&byte| byte == b'\n').ok_or("a record has no first line")?;
    let (line, value) = bytes.split_at(end);
    Ok((line, value.get(1..).unwrap_or_default().to_vec()))
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Node, String> {
    let (line, value) = split(bytes)?;
    let line: Line = serde_json::from_slice(line).map_err(|e| e.to_string())?;
    let Line { kind, serial, revision, owner, count, holders, generation, durable } = line;
    Ok(Node { kind, serial, revision, value, owner, count, generation, durable, holders })
}
