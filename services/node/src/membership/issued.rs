//! Which certificates a node was issued and may still show: all of them are revoked when it is removed, whatever it says of itself.

use super::{REVOKED, failed, to_json, unix_s};
use crate::admin::Problem;
use registry::{Expected, Registry};
use serde::{Deserialize, Serialize};

/// Keys of what was issued: `issued/NODE/SERIAL`.
const ISSUED: &str = "issued/";
/// When a certificate has certainly ended, by any clock that nodes may have: its time, and a day before and behind.
const OVER_S: u64 = (trust::NODE_DAYS as u64 + 2) * 86_400;
/// What another certificate is for: by that, how many a node may have at a time. One asks for another every two months, or when a person says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It is renewed.
    Renewal,
    /// The earlier ones are to be revoked as soon as it is in use.
    Revocation,
    /// The authority is replaced: what is there now ends with it.
    Succession,
}

impl Purpose {
    /// How many there may be.
    const fn most(self) -> usize {
        match self {
            Self::Renewal => 32,
            Self::Revocation => 192,
            Self::Succession => 128,
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    issued_unix_s: u64,
}

/// Writes down that a certificate is about to be handed out. Not before that may it be.
pub(super) fn note(
    registry: &dyn Registry,
    node: &str,
    serial: &str,
    purpose: Purpose,
) -> Result<(), Problem> {
    let mut kept = 0;
    for (key, entry) in registry.list(&format!("{ISSUED}{node}/")).map_err(failed)? {
        if is_over(&entry.value) {
            registry.delete(&key, Expected::Anything).map_err(failed)?;
        } else {
            kept += 1;
        }
    }
    if kept >= purpose.most() {
        return Err(failed(format!("node {node} has {kept} certificates already, which are the most")).help(
            "`tombolo node rotate --revoke` there ends the earlier ones; or remove it, and join it again",
        ));
    }
    let record = to_json(&Record { issued_unix_s: unix_s() })?;
    registry.put(&format!("{ISSUED}{node}/{serial}"), &record, Expected::Anything).map(drop).map_err(failed)
}

fn is_over(value: &[u8]) -> bool {
    serde_json::from_slice::<Record>(value)
        .is_ok_and(|record| record.issued_unix_s.saturating_add(OVER_S) < unix_s())
}

/// Nobody believes this certificate any more.
pub(super) fn revoke(registry: &dyn Registry, node: &str, serial: &str) -> Result<(), Problem> {
    let revoked = to_json(&serde_json::json!({ "node": node, "since_unix_s": unix_s() }))?;
    registry.put(&format!("{REVOKED}{serial}"), &revoked, Expected::Anything).map(drop).map_err(failed)
}

/// Nobody believes any certificate of a node any more, but `one`.
pub(super) fn revoke_all(registry: &dyn Registry, node: &str, but: Option<&str>) -> Result<(), Problem> {
    forget_old(registry)?;
    let prefix = format!("{ISSUED}{node}/");
    for (key, entry) in registry.list(&prefix).map_err(failed)? {
        let serial = key.strip_prefix(&prefix).unwrap_or_default();
        if Some(serial) == but {
            continue;
        }
        // One that has ended by itself needs no place among the revoked.
        if !is_over(&entry.value) {
            revoke(registry, node, serial)?;
        }
        registry.delete(&key, Expected::Anything).map_err(failed)?;
    }
    Ok(())
}

/// Drops revocations of certificates that have ended by themselves since.
fn forget_old(registry: &dyn Registry) -> Result<(), Problem> {
    for (key, entry) in registry.list(REVOKED).map_err(failed)? {
        let since = serde_json::from_slice::<serde_json::Value>(&entry.value)
            .ok()
            .and_then(|value| value.get("since_unix_s")?.as_u64());
        if since.is_some_and(|since| since.saturating_add(OVER_S) < unix_s()) {
            registry.delete(&key, Expected::Anything).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::Memory;

    fn keys(registry: &Memory) -> Vec<String> {
        registry.list("").unwrap().into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn every_certificate_that_a_node_was_given_is_revoked_with_it_and_none_of_another() {
        let registry = Memory::default();
        for (node, serial) in [("b", "41"), ("b", "42"), ("bb", "43")] {
            note(&registry, node, serial, Purpose::Renewal).unwrap();
        }
        revoke_all(&registry, "b", Some("42")).unwrap();
        assert_eq!(keys(&registry), ["issued/b/42", "issued/bb/43", "revoked/41"]);
        revoke_all(&registry, "b", None).unwrap();
        assert_eq!(keys(&registry), ["issued/bb/43", "revoked/41", "revoked/42"]);
    }

    #[test]
    fn a_node_that_asks_again_and_again_is_stopped_and_what_has_ended_makes_room() {
        let registry = Memory::default();
        let old = to_json(&Record { issued_unix_s: unix_s() - OVER_S - 1 }).unwrap();
        registry.put("issued/b/40", &old, Expected::Absent).unwrap();
        for n in 0..Purpose::Renewal.most() {
            note(&registry, "b", &format!("{n:04x}"), Purpose::Renewal).unwrap();
        }
        assert!(!keys(&registry).contains(&"issued/b/40".to_owned()));
        let refusal = note(&registry, "b", "ffff", Purpose::Renewal).unwrap_err();
        assert!(refusal.message.contains("the most") && refusal.help.is_some(), "{refusal}");
        note(&registry, "b", "fffe", Purpose::Revocation).unwrap();
        let since = to_json(&serde_json::json!({ "node": "x", "since_unix_s": 1 })).unwrap();
        registry.put("revoked/50", &since, Expected::Absent).unwrap();
        revoke_all(&registry, "x", None).unwrap();
        assert!(!keys(&registry).contains(&"revoked/50".to_owned()), "it ended by itself long ago");
    }
}
