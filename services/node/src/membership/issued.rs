//! The certificates that a node was issued and may still show: all of them are revoked when it is
//! removed, whatever the node says.
//!
//! The certificate itself is kept with its number: so a revocation shows that the authority issued
//! what it revokes.

use super::{REVOKED, failed, get_json, to_json, unix_s};
use admin::Problem;
use registry::{Expected, Registry};
use serde::{Deserialize, Serialize};

/// Keys of what was issued: `issued/NODE/SERIAL`.
const ISSUED: &str = "issued/";
/// When a certificate has certainly ended, by any clock that nodes may have: its time, and a day
/// before and behind.
const OVER_S: u64 = (trust::NODE_DAYS as u64 + 2) * 86_400;
/// The purpose of another certificate, on which depends how many a node may have at a time. One
/// asks for another every two months, or when a person says so.
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

/// The registry's record of a certificate, at `issued/NODE/SERIAL`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    issued_unix_s: u64,
    /// None: a release wrote it that kept none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate_pem: Option<String>,
}

/// The registry's record of a revoked certificate, at `revoked/SERIAL`.
#[derive(Debug, Serialize, Deserialize)]
struct Revocation {
    node: String,
    since_unix_s: u64,
    /// The certificate. None: only its number is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate_pem: Option<String>,
}

/// Writes down that a certificate, the first of this chain, is about to be handed out. Not before
/// that may it be. Returns its number.
pub(super) fn note(
    registry: &dyn Registry,
    node: &str,
    chain_pem: &str,
    purpose: Purpose,
) -> Result<String, Problem> {
    let (serial, certificate_pem) = trust::first_of_pem(chain_pem).map_err(failed)?;
    let serial = serial.to_string();
    let there = registry.list(&format!("{ISSUED}{node}/")).map_err(failed)?;
    // What has ended is cleared away where the clock is looked at first.
    let kept = there.iter().filter(|(_, entry)| !is_over(&entry.value)).count();
    if kept >= purpose.most() {
        return Err(failed(format!("node {node} has {kept} certificates already, which are the most")).help(
            "`tombolo node rotate --revoke` there ends the earlier ones; or remove it, and join it again",
        ));
    }
    let record = to_json(&Record { issued_unix_s: unix_s(), certificate_pem: Some(certificate_pem) })?;
    registry.put(&format!("{ISSUED}{node}/{serial}"), &record, Expected::Anything).map_err(failed)?;
    Ok(serial)
}

fn is_over(value: &[u8]) -> bool {
    serde_json::from_slice::<Record>(value)
        .is_ok_and(|record| record.issued_unix_s.saturating_add(OVER_S) < unix_s())
}

/// Nobody believes this certificate any more.
pub(super) fn revoke(registry: &dyn Registry, node: &str, serial: &str) -> Result<(), Problem> {
    let issued = registry.get(&format!("{ISSUED}{node}/{serial}")).map_err(failed)?;
    let issued = issued.and_then(|entry| serde_json::from_slice::<Record>(&entry.value).ok());
    let certificate_pem = issued.and_then(|record| record.certificate_pem);
    put_revoked(registry, node, serial, certificate_pem)
}

fn put_revoked(
    registry: &dyn Registry,
    node: &str,
    serial: &str,
    certificate_pem: Option<String>,
) -> Result<(), Problem> {
    let key = format!("{REVOKED}{serial}");
    if certificate_pem.is_none() {
        // What says more stays.
        let there = get_json::<Revocation>(registry, &key).ok().flatten();
        if there.is_some_and(|(there, _)| there.certificate_pem.is_some()) {
            return Ok(());
        }
    }
    let revoked = Revocation { node: node.to_owned(), since_unix_s: unix_s(), certificate_pem };
    registry.put(&key, &to_json(&revoked)?, Expected::Anything).map(drop).map_err(failed)
}

/// The certificate that a revocation is of, if it is there.
pub(super) fn revoked_certificate(value: &[u8]) -> Option<String> {
    serde_json::from_slice::<Revocation>(value).ok()?.certificate_pem
}

/// Nobody believes any certificate of a node any more, but `one`: whatever this node's clock says,
/// also those that have ended by it.
pub(super) fn revoke_all(registry: &dyn Registry, node: &str, but: Option<&str>) -> Result<(), Problem> {
    let prefix = format!("{ISSUED}{node}/");
    for (key, entry) in registry.list(&prefix).map_err(failed)? {
        let serial = key.strip_prefix(&prefix).unwrap_or_default();
        if Some(serial) == but {
            continue;
        }
        let record = serde_json::from_slice::<Record>(&entry.value).ok();
        put_revoked(registry, node, serial, record.and_then(|record| record.certificate_pem))?;
        registry.delete(&key, Expected::Anything).map_err(failed)?;
    }
    Ok(())
}

/// Drops what is known of certificates that have ended by themselves. Only for a node whose clock
/// others agree with ([`super::clock`]): to one that is months ahead every certificate has ended.
pub(super) fn forget_what_has_ended(registry: &dyn Registry) -> Result<(), Problem> {
    for (key, entry) in registry.list(ISSUED).map_err(failed)? {
        if is_over(&entry.value) {
            registry.delete(&key, Expected::Revision(entry.revision)).map_err(failed)?;
        }
    }
    for (key, entry) in registry.list(REVOKED).map_err(failed)? {
        let revoked = serde_json::from_slice::<Revocation>(&entry.value).ok();
        if revoked.is_some_and(|revoked| revoked.since_unix_s.saturating_add(OVER_S) < unix_s()) {
            registry.delete(&key, Expected::Revision(entry.revision)).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::Memory;
    use std::time::SystemTime;

    fn keys(registry: &Memory) -> Vec<String> {
        registry.list("").unwrap().into_iter().map(|(key, _)| key).collect()
    }

    fn chain(authority: &trust::Authority, node: &str) -> String {
        let request = trust::Request::new(node).unwrap().pem().unwrap();
        authority.sign(&request, node, SystemTime::now()).unwrap()
    }

    #[test]
    fn every_certificate_that_a_node_was_given_is_revoked_with_it_and_none_of_another() {
        let (registry, authority) =
            (Memory::default(), trust::Authority::new("lab", SystemTime::now()).unwrap());
        let noted = ["b", "b", "bb"]
            .map(|node| note(&registry, node, &chain(&authority, node), Purpose::Renewal).unwrap());
        let [one, two, three] = &noted;
        let has = |key: String| keys(&registry).contains(&key);
        revoke_all(&registry, "b", Some(two)).unwrap();
        assert!(
            has(format!("revoked/{one}")) && has(format!("issued/b/{two}")) && !has(format!("revoked/{two}"))
        );
        revoke(&registry, "b", two).unwrap();
        revoke_all(&registry, "b", None).unwrap();
        assert!(has(format!("issued/bb/{three}")) && keys(&registry).len() == 3, "{:?}", keys(&registry));
        // Each with what shows that it was issued, so that it counts with every node; and that
        // stays.
        let heard = |registry: &Memory| {
            let identity = authority.identity("a", SystemTime::now()).unwrap();
            let revoked = registry.list(REVOKED).unwrap();
            let invented =
                (0..trust::MAX_REVOKED).map(|n| (trust::Serial::parse(&format!("{n:08x}")).unwrap(), None));
            let said = revoked.iter().map(|(key, entry)| {
                (trust::Serial::parse(&key[REVOKED.len()..]).unwrap(), revoked_certificate(&entry.value))
            });
            identity.hear_revoked(invented.chain(said));
            [one, two].map(|serial| identity.revoked().contains(&trust::Serial::parse(serial).unwrap()))
        };
        assert_eq!(heard(&registry), [true, true]);
        revoke(&registry, "b", two).unwrap();
        assert_eq!(heard(&registry), [true, true]);
    }

    #[test]
    fn the_certificate_of_a_nodes_etcd_member_is_revoked_with_it() {
        let (registry, authority) =
            (Memory::default(), trust::Authority::new("lab", SystemTime::now()).unwrap());
        let member = authority.member("10.0.0.2".parse().unwrap(), SystemTime::now()).unwrap();
        let serial = note(&registry, "b", &member, Purpose::Renewal).unwrap();
        revoke_all(&registry, "b", None).unwrap();
        let entry = registry.get(&format!("{REVOKED}{serial}")).unwrap().unwrap();
        assert!(!String::from_utf8_lossy(&entry.value).contains("PRIVATE"));
        let (identity, serial) =
            (authority.identity("a", SystemTime::now()).unwrap(), trust::Serial::parse(&serial).unwrap());
        // It counts as one that was certainly issued: no invented ones take its room.
        let invented =
            (0..trust::MAX_REVOKED).map(|n| (trust::Serial::parse(&format!("{n:08x}")).unwrap(), None));
        let said = [(serial.clone(), revoked_certificate(&entry.value))];
        identity.hear_revoked(invented.chain(said));
        assert!(identity.revoked().serials().any(|one| *one == serial));
    }

    #[test]
    fn a_node_that_asks_again_and_again_is_stopped_and_what_has_ended_makes_room() {
        let (registry, authority) =
            (Memory::default(), trust::Authority::new("lab", SystemTime::now()).unwrap());
        let old = Record { issued_unix_s: unix_s() - OVER_S - 1, certificate_pem: None };
        registry.put("issued/b/40", &to_json(&old).unwrap(), Expected::Absent).unwrap();
        for _ in 0..Purpose::Renewal.most() {
            note(&registry, "b", &chain(&authority, "b"), Purpose::Renewal).unwrap();
        }
        let refusal = note(&registry, "b", &chain(&authority, "b"), Purpose::Renewal).unwrap_err();
        assert!(refusal.message.contains("the most") && refusal.help.is_some(), "{refusal}");
        note(&registry, "b", &chain(&authority, "b"), Purpose::Revocation).unwrap();
        let since = to_json(&serde_json::json!({ "node": "x", "since_unix_s": 1 })).unwrap();
        registry.put("revoked/50", &since, Expected::Absent).unwrap();
        forget_what_has_ended(&registry).unwrap();
        let left = keys(&registry);
        assert!(!left.contains(&"issued/b/40".to_owned()) && !left.contains(&"revoked/50".to_owned()));
        assert_eq!(left.len(), Purpose::Renewal.most() + 1);
    }

    /// A node whose clock was months ahead took every certificate for one that had ended, and a
    /// node that it removed went on with its own.
    #[test]
    fn what_has_ended_by_this_nodes_clock_is_revoked_all_the_same() {
        let registry = Memory::default();
        let old = Record { issued_unix_s: 1, certificate_pem: None };
        registry.put("issued/b/41", &to_json(&old).unwrap(), Expected::Absent).unwrap();
        registry.put("revoked/50", br#"{"node":"x","since_unix_s":1}"#, Expected::Absent).unwrap();
        revoke_all(&registry, "b", None).unwrap();
        assert_eq!(keys(&registry), ["revoked/41", "revoked/50"]);
    }
}
