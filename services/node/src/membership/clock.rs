//! Whether this node's clock of the wall is what the other nodes' clocks are, give or take some
//! hours. What depends on it (who is let in and for how long, and which revocations have served
//! their time) is not done where it is not; and a node whose clock is off does not begin to live.
//!
//! Each node that lives says its time now and then, at `clock/NODE`, bound to its lease.
//! `docs/adr/0073-revocation-fails-closed.md` says why.

use super::{Cluster, NODES, blocking, failed, issued, to_json, unix_s};
use admin::{Code, Problem};
use registry::{Expected, Registry};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Keys of what nodes say that the time is.
pub(super) const CLOCKS: &str = "clock/";
/// How far clocks may be apart: half of the day before its making from which a certificate is
/// valid.
pub(super) const APART_S: u64 = 12 * 3_600;
/// How often a node says its time: so rarely that the registry's history does not grow by it.
const SAY_EVERY_S: u64 = 3_600;
/// How often it is seen whether it is time for that, or the clock was set.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// By how much a clock is set before it is said anew at once: more than a clock is slewed in an
/// hour.
const SET_BY_S: u64 = 60;

/// The registry's record at `clock/NODE`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    unix_s: u64,
}

/// The verdict of the other nodes' clocks on this node's.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Others live, and it is what most of them have.
    Agreed,
    /// Nobody else says a time.
    Alone,
    /// It is off: what most of the others have is what this one has.
    Off { node: String, theirs_unix_s: u64 },
}

/// Of the times that nodes said, each up to twice [`SAY_EVERY_S`] ago.
fn verdict(me: &str, now: u64, said: &[(String, u64)]) -> Verdict {
    let agrees = |said: u64| {
        now.saturating_add(APART_S) >= said
            && now <= said.saturating_add(APART_S).saturating_add(2 * SAY_EVERY_S)
    };
    let (same, other): (Vec<_>, Vec<_>) =
        said.iter().filter(|(node, _)| node != me).partition(|(_, said)| agrees(*said));
    match other.first() {
        Some((node, theirs)) if other.len() > same.len() => {
            Verdict::Off { node: node.clone(), theirs_unix_s: *theirs }
        }
        _ if same.is_empty() && other.is_empty() => Verdict::Alone,
        _ => Verdict::Agreed,
    }
}

fn said(registry: &dyn Registry) -> Result<Vec<(String, u64)>, Problem> {
    let listed = registry.list(CLOCKS).map_err(failed)?;
    // What is not understood says no time.
    let read = listed.into_iter().filter_map(|(key, entry)| {
        let record = serde_json::from_slice::<Record>(&entry.value).ok()?;
        Some((key.strip_prefix(CLOCKS)?.to_owned(), record.unix_s))
    });
    Ok(read.collect())
}

fn off(now: u64, node: &str, theirs: u64) -> Problem {
    let (by, where_to) = if now > theirs { (now - theirs, "ahead of") } else { (theirs - now, "behind") };
    Problem::new(
        Code::Refused,
        format!(
            "this node's clock is {} h {where_to} that of node {node}, and most nodes agree with that one; {} h are the most",
            by / 3_600,
            APART_S / 3_600
        ),
    )
    .help("set the clock of whichever is wrong, and see that something keeps it so")
}

fn check_at(registry: &dyn Registry, me: &str, now: u64) -> Result<Verdict, Problem> {
    match verdict(me, now, &said(registry)?) {
        Verdict::Off { node, theirs_unix_s } => Err(off(now, &node, theirs_unix_s)),
        verdict => Ok(verdict),
    }
}

/// Refuses what depends on the time where this node's clock is off. It asks the registry: not for
/// the event loop.
pub(super) fn check(cluster: &Cluster) -> Result<(), Problem> {
    check_at(cluster.etcd(), cluster.me(), unix_s()).map(drop)
}

/// Clears away what has ended by the clock: only where another node agrees with it, or there is
/// none.
fn clear_away(registry: &dyn Registry, me: &str, now: u64) -> Result<(), Problem> {
    let agreed = check_at(registry, me, now)? == Verdict::Agreed;
    let others = registry.list(NODES).map_err(failed)?.iter().any(|(key, _)| *key != format!("{NODES}{me}"));
    if agreed || !others {
        issued::forget_what_has_ended(registry)?;
    }
    Ok(())
}

/// The last message: its incarnation, its time by a clock that nobody sets (ns), and the time that
/// it told.
#[derive(Debug, Clone, Copy)]
struct Last {
    incarnation: u64,
    at_ns: u64,
    unix_s: u64,
}

impl Last {
    /// Whether it has to be said again.
    fn is_over(&self, incarnation: u64, boottime_ns: u64, unix_s: u64) -> bool {
        let since_s = boottime_ns.saturating_sub(self.at_ns) / 1_000_000_000;
        let expected = self.unix_s.saturating_add(since_s);
        incarnation != self.incarnation || since_s >= SAY_EVERY_S || expected.abs_diff(unix_s) > SET_BY_S
    }
}

/// Says this node's time as long as it lives, and clears away what has ended by it.
pub(crate) async fn keep(cluster: Cluster) {
    let mut changes = cluster.changes();
    let mut last: Option<Last> = None;
    loop {
        let now = Last { incarnation: cluster.incarnation(), at_ns: super::boottime_ns(), unix_s: unix_s() };
        let due = last.is_none_or(|last| last.is_over(now.incarnation, now.at_ns, now.unix_s));
        if due && !cluster.is_fenced() {
            let here = cluster.clone();
            match blocking(move || say(&here, now.unix_s)).await {
                Ok(()) => last = Some(now),
                Err(problem) => tracing::warn!(
                    error = problem.message,
                    "this node does not say its time, and clears nothing away that has ended by it"
                ),
            }
        }
        // Another life begins with a change; a clock that is set tells nobody.
        let _time_is_over = tokio::time::timeout(LOOK_EVERY, changes.changed()).await;
    }
}

fn say(cluster: &Cluster, now: u64) -> Result<(), Problem> {
    let result = check(cluster);
    cluster.say_trouble(super::Trouble::Clock, result.as_ref().err().map(|problem| problem.message.clone()));
    result?;
    let record = to_json(&Record { unix_s: now })?;
    cluster.put_leased(&format!("{CLOCKS}{}", cluster.me()), &record, Expected::Anything).map_err(failed)?;
    clear_away(cluster.etcd(), cluster.me(), now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::Memory;

    const NOW: u64 = 1_800_000_000;
    const DAY: u64 = 86_400;

    fn of(said: &[(&str, u64)]) -> Vec<(String, u64)> {
        said.iter().map(|(node, said)| ((*node).to_owned(), *said)).collect()
    }

    #[test]
    fn a_clock_is_off_that_differs_from_most_by_more_than_hours() {
        let verdict = |said: &[(&str, u64)]| verdict("me", NOW, &of(said));
        assert_eq!(verdict(&[]), Verdict::Alone);
        assert_eq!(verdict(&[("me", NOW - 90 * DAY)]), Verdict::Alone, "its own is no other");
        for near in [NOW, NOW - APART_S - SAY_EVERY_S, NOW + APART_S] {
            assert_eq!(verdict(&[("a", near)]), Verdict::Agreed);
        }
        for far in [NOW - APART_S - 3 * SAY_EVERY_S, NOW + APART_S + 1, NOW - 90 * DAY, 0, u64::MAX] {
            assert_eq!(verdict(&[("a", far)]), Verdict::Off { node: "a".into(), theirs_unix_s: far });
            // One node with another clock does not stop the others.
            assert_eq!(verdict(&[("a", far), ("b", NOW)]), Verdict::Agreed);
            assert_eq!(
                verdict(&[("a", far), ("b", NOW), ("c", far)]),
                Verdict::Off { node: "a".into(), theirs_unix_s: far }
            );
        }
    }

    /// A daemon whose clock was months ahead deleted every revocation, and who had been removed was
    /// believed again.
    #[test]
    fn a_node_with_another_clock_deletes_no_revocation_and_is_told_both_times() {
        let registry = Memory::default();
        let now = unix_s();
        let put = |key: &str, value: serde_json::Value| {
            registry.put(key, &to_json(&value).unwrap(), Expected::Anything).unwrap();
        };
        let revoked = || registry.get("revoked/41").unwrap().is_some();
        // What has ended by a clock that is right enough.
        put("revoked/41", serde_json::json!({ "node": "x", "since_unix_s": now - 100 * DAY }));
        put("node/me", serde_json::json!({}));
        put("node/a", serde_json::json!({}));
        put("clock/a", serde_json::json!({ "unix_s": now - 100 * DAY }));
        let refusal = clear_away(&registry, "me", now).unwrap_err();
        assert!(revoked() && refusal.message.contains("2400 h ahead of that of node a"), "{refusal}");
        put("clock/a", serde_json::json!({ "unix_s": now + 5 * DAY }));
        assert!(clear_away(&registry, "me", now).unwrap_err().message.contains("120 h behind"));
        // Nobody says that it is wrong, but nobody agrees either.
        registry.delete("clock/a", Expected::Anything).unwrap();
        clear_away(&registry, "me", now).unwrap();
        assert!(revoked());
        put("clock/a", serde_json::json!({ "unix_s": now - DAY / 24 }));
        clear_away(&registry, "me", now).unwrap();
        assert!(!revoked());
        // A node alone goes by its own.
        put("revoked/41", serde_json::json!({ "node": "x", "since_unix_s": now - 100 * DAY }));
        for key in ["clock/a", "node/a"] {
            registry.delete(key, Expected::Anything).unwrap();
        }
        clear_away(&registry, "me", now).unwrap();
        assert!(!revoked());
    }

    #[test]
    fn the_time_is_said_hourly_in_each_life_and_when_the_clock_was_set() {
        let last = Last { incarnation: 7, at_ns: 5_000_000_000, unix_s: 1_000 };
        let over = |incarnation, after_s: u64, unix_s| {
            last.is_over(incarnation, last.at_ns + after_s * 1_000_000_000, unix_s)
        };
        assert!(!over(7, 0, 1_000) && !over(7, 3_599, 4_599) && !over(7, 100, 1_160));
        assert!(over(8, 0, 1_000) && over(7, 3_600, 4_600) && over(7, 100, 1_161) && over(7, 100, 1_039));
    }
}
