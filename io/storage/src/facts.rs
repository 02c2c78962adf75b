//! The facts of an engine's volume, checked.

use crate::{EXPORT, Format, StorageError};
use serde_json::Value;

/// Snapshots of a volume at most: each takes some hundred bytes of an answer that is bounded.
pub const MAX_SNAPSHOTS: usize = 64;

/// The node of the image's bytes, of their limit, and of the volume.
pub(crate) const FILE: &str = "file";
/// See [`FILE`].
pub(crate) const LIMITED: &str = "limited";
/// See [`FILE`].
pub(crate) const VOLUME: &str = "volume";

/// The facts of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Bytes that its clients see.
    pub bytes: u64,
    /// Bytes that it takes on the disk.
    pub allocated: u64,
    /// Names of its snapshots, oldest first.
    pub snapshots: Vec<String>,
}

/// Reads the answer to `query-named-block-nodes`.
pub(crate) fn of_nodes(answer: &Value, format: Format) -> Result<Facts, StorageError> {
    let not_this = |why: &str| StorageError::NotThis(why.to_owned());
    let nodes = answer.as_array().ok_or_else(|| not_this("it lists no nodes"))?;
    let named =
        |name: &str| nodes.iter().find(|node| node.get("node-name").and_then(Value::as_str) == Some(name));
    if nodes.len() != 3 || named(FILE).is_none() || named(LIMITED).is_none() {
        return Err(not_this("it has other nodes than the volume's"));
    }
    let volume = named(VOLUME).ok_or_else(|| not_this("it has no volume"))?;
    if volume.get("drv").and_then(Value::as_str) != Some(format.word()) {
        return Err(not_this("the volume has another format"));
    }
    let image = volume.get("image").ok_or_else(|| not_this("the volume has no image"))?;
    let number = |key: &str| image.get(key).and_then(Value::as_u64);
    let bytes = number("virtual-size").ok_or_else(|| not_this("the volume has no size"))?;
    let snapshots = image.get("snapshots").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let names = snapshots.iter().filter_map(|snapshot| snapshot.get("name").and_then(Value::as_str));
    let snapshots = names.take(MAX_SNAPSHOTS).map(|name| qmp::clean(name, MAX_NAME_BYTES)).collect();
    Ok(Facts { bytes, allocated: number("actual-size").unwrap_or(0), snapshots })
}

/// Longest name of a snapshot that is shown, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// Whether an answer to `query-block-exports` is the volume's one export and no other.
pub(crate) fn is_exported(answer: &Value) -> bool {
    let Some([export]) = answer.as_array().map(Vec::as_slice) else { return false };
    let text = |key: &str| export.get(key).and_then(Value::as_str);
    let ends = export.get("shutting-down").and_then(Value::as_bool);
    text("id") == Some(EXPORT)
        && text("type") == Some("nbd")
        && text("node-name") == Some(VOLUME)
        && ends == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nodes() -> Value {
        json!([
            {"node-name": "volume", "drv": "qcow2", "image": {"virtual-size": 1 << 20, "actual-size": 4096,
             "snapshots": [{"name": "first"}, {"name": "bad\u{7}one"}, {"id": 3}]}},
            {"node-name": "limited", "drv": "throttle"},
            {"node-name": "file", "drv": "file"},
        ])
    }

    #[test]
    fn the_facts_are_read_and_names_are_clean() {
        let facts = of_nodes(&nodes(), Format::Qcow2).unwrap();
        assert_eq!((facts.bytes, facts.allocated), (1 << 20, 4096));
        assert_eq!(facts.snapshots, ["first", "bad one"]);
    }

    #[test]
    fn an_engine_that_is_something_else_is_refused() {
        assert!(of_nodes(&nodes(), Format::Raw).is_err(), "another format");
        let without = |name: &str| {
            let kept = nodes()
                .as_array()
                .unwrap()
                .iter()
                .filter(|node| node["node-name"] != name)
                .cloned()
                .collect();
            Value::Array(kept)
        };
        let mut more = nodes();
        more.as_array_mut().unwrap().push(json!({"node-name": "spy"}));
        let mut sizeless = nodes();
        sizeless[0]["image"]["virtual-size"] = json!(-1);
        for answer in
            [without("volume"), without("file"), without("limited"), more, sizeless, json!({}), json!(null)]
        {
            assert!(of_nodes(&answer, Format::Qcow2).is_err(), "{answer}");
        }
    }

    #[test]
    fn an_export_is_the_one_of_the_volume() {
        let export = |node: &str, ends: bool| json!({"id": EXPORT, "type": "nbd", "node-name": node, "shutting-down": ends});
        assert!(is_exported(&json!([export("volume", false)])));
        let two = json!([export("volume", false), export("volume", false)]);
        for answer in
            [json!([export("file", false)]), json!([export("volume", true)]), two, json!([]), json!(7)]
        {
            assert!(!is_exported(&answer), "{answer}");
        }
    }
}
