//! Records with nodes by their names, as the registry holds them, and with numbers, as the rules
//! count them.

use crate::record::{Node, Record};
use std::collections::BTreeSet;
use wire::replica::VolumeRecord;

/// The number of a node with a replica: its place among their names, from 1. `None`: it has none.
#[must_use]
pub fn number(replicas: &[String], name: &str) -> Option<Node> {
    let at = replicas.iter().position(|replica| replica == name)?;
    u16::try_from(at + 1).ok().map(Node)
}

/// The name of the node of this number.
#[must_use]
pub fn name(replicas: &[String], node: Node) -> Option<&str> {
    replicas.get(usize::from(node.0).checked_sub(1)?).map(String::as_str)
}

/// The record in numbers. `None`: it names nodes without a replica, or no current one.
#[must_use]
pub fn numbered(record: &VolumeRecord) -> Option<Record> {
    let of = |name: &String| number(&record.replicas, name);
    let current: BTreeSet<Node> = record.current.iter().map(of).collect::<Option<_>>()?;
    let primary = match &record.primary {
        Some(name) => Some(of(name)?),
        None => None,
    };
    let replicas = record.replicas.iter().map(of).collect::<Option<_>>()?;
    let (view, settled) = (record.view, record.settled);
    (!current.is_empty()).then_some(Record { view, primary, current, replicas, settled })
}

/// The record with names; `like` has what the rules do not know.
#[must_use]
pub fn named(record: &Record, like: &VolumeRecord) -> VolumeRecord {
    let of = |node: &Node| name(&like.replicas, *node).map(str::to_owned);
    VolumeRecord {
        view: record.view,
        primary: record.primary.as_ref().and_then(of),
        current: record.current.iter().filter_map(of).collect(),
        settled: record.settled,
        ..like.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> VolumeRecord {
        let nodes = ["a".to_owned(), "b".to_owned()].to_vec();
        VolumeRecord {
            id: "7".into(),
            bytes: 1 << 20,
            view: 3,
            primary: Some("b".into()),
            current: nodes.clone(),
            replicas: nodes,
            settled: false,
        }
    }

    #[test]
    fn a_record_in_numbers_is_the_same() {
        let numbers = numbered(&record()).unwrap();
        assert_eq!((numbers.primary, numbers.current.len()), (Some(Node(2)), 2));
        assert_eq!(named(&numbers, &record()), record());
        let alone = numbers.strike(Node(2), 3, Node(1)).unwrap();
        assert_eq!(named(&alone, &record()).current, ["b"]);
    }

    #[test]
    fn a_record_that_names_strangers_or_has_no_current_replica_is_none() {
        assert_eq!(numbered(&VolumeRecord { primary: Some("c".into()), ..record() }), None);
        assert_eq!(numbered(&VolumeRecord { current: vec!["c".into()], ..record() }), None);
        assert_eq!(numbered(&VolumeRecord { current: vec![], ..record() }), None);
    }
}
