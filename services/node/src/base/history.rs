//! The files that were up: the last ones of each distributed container, by their numbers.

use super::RegistryDebug;
use admin::history::Revision;
use registry::{Expected, RegistryError};
use std::collections::BTreeMap;

/// Where the registry keeps them: `history/DC/NUMBER`.
const HISTORY: &str = "history/";
/// Revisions of one distributed container.
const REVISIONS_MAX: usize = 20;
/// Bytes of their texts.
const BYTES_MAX: usize = 256 << 10;
/// The same for all together, whether they are up or not.
const ALL_BYTES_MAX: usize = 2 << 20;
/// Distributed containers that are remembered.
const CONTAINERS_MAX: usize = 64;
/// How often a number is sought anew that somebody else took at the same time.
const ATTEMPTS_MAX: usize = 8;

fn key(dc: &str, number: u64) -> String {
    // In the order of their numbers.
    format!("{HISTORY}{dc}/{number:010}")
}

/// The revisions by distributed container, the oldest first. One that can't be read is left out.
///
/// # Errors
/// The registry's.
pub(crate) fn all(registry: &dyn RegistryDebug) -> Result<BTreeMap<String, Vec<Revision>>, RegistryError> {
    let mut found: BTreeMap<String, Vec<Revision>> = BTreeMap::new();
    for (key, entry) in registry.list(HISTORY)? {
        let Some((dc, _)) = key.strip_prefix(HISTORY).and_then(|rest| rest.split_once('/')) else { continue };
        match serde_json::from_slice(&entry.value) {
            Ok(revision) => found.entry(dc.to_owned()).or_default().push(revision),
            Err(error) => tracing::warn!(key, %error, "a revision is not understood"),
        }
    }
    Ok(found)
}

/// Notes a file that is up from now on, if it is another one than before; its number is the next.
///
/// # Errors
/// The registry's.
pub(crate) fn note(
    registry: &dyn RegistryDebug,
    dc: &str,
    mut revision: Revision,
) -> Result<(), RegistryError> {
    for _ in 0..ATTEMPTS_MAX {
        let mut all = all(registry)?;
        let last = all.get(dc).and_then(|own| own.last());
        let place = (&revision.text, &revision.file, &revision.base);
        if last.is_some_and(|last| (&last.text, &last.file, &last.base) == place) {
            return Ok(());
        }
        revision.number = last.map_or(1, |last| last.number.saturating_add(1));
        let value = serde_json::to_vec(&revision).unwrap_or_default();
        match registry.put(&key(dc, revision.number), &value, Expected::Absent) {
            Err(RegistryError::Conflict { .. }) => continue,
            written => drop(written?),
        }
        all.entry(dc.to_owned()).or_default().push(revision);
        for (dc, number) in too_many(all, dc) {
            registry.delete(&key(&dc, number), Expected::Anything)?;
        }
        return Ok(());
    }
    tracing::warn!(dc, "the file is not noted among those that were up: its number is taken each time");
    Ok(())
}

/// The revisions for which there is no room: the oldest of each, and all of those that were changed
/// longest ago. The last one of `kept` stays.
fn too_many(all: BTreeMap<String, Vec<Revision>>, kept: &str) -> Vec<(String, u64)> {
    let mut over = Vec::new();
    let mut left: Vec<(u64, String, Vec<u64>, usize)> = Vec::new();
    for (dc, revisions) in all {
        let (mut numbers, mut bytes) = (Vec::new(), 0);
        let at_ms = revisions.last().map_or(0, |last| last.at_ms);
        for revision in revisions.iter().rev() {
            bytes += revision.text.len();
            if numbers.is_empty() || numbers.len() < REVISIONS_MAX && bytes <= BYTES_MAX {
                numbers.push(revision.number);
            } else {
                bytes -= revision.text.len();
                over.push((dc.clone(), revision.number));
            }
        }
        left.push((if dc == kept { u64::MAX } else { at_ms }, dc, numbers, bytes));
    }
    left.sort_unstable_by(|one, other| other.cmp(one));
    let mut sum = 0;
    for (place, (_, dc, numbers, bytes)) in left.into_iter().enumerate() {
        sum += bytes;
        if place > 0 && (place >= CONTAINERS_MAX || sum > ALL_BYTES_MAX) {
            sum -= bytes;
            over.extend(numbers.into_iter().map(|number| (dc.clone(), number)));
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::Memory;

    fn revision(text: &str, at_ms: u64) -> Revision {
        let (file, base) = ("shop.toml".into(), "/files".into());
        Revision { number: 0, at_ms, file, base, changes: vec!["start web".into()], text: text.into() }
    }

    fn numbers(registry: &Memory, dc: &str) -> Vec<u64> {
        let all = all(registry).unwrap();
        all.get(dc).into_iter().flatten().map(|revision| revision.number).collect()
    }

    #[test]
    fn the_last_files_are_kept_by_their_numbers() {
        let registry = Memory::default();
        for turn in 0..25 {
            note(&registry, "shop", revision(&format!("name = {turn}"), turn)).unwrap();
            // The same once more is the same revision.
            note(&registry, "shop", revision(&format!("name = {turn}"), turn)).unwrap();
        }
        assert_eq!(numbers(&registry, "shop"), (6..=25).collect::<Vec<u64>>());
        note(&registry, "shop", revision(&"x".repeat(BYTES_MAX + 1), 30)).unwrap();
        assert_eq!(numbers(&registry, "shop"), [26], "one is kept, however long");
        note(&registry, "shop2", revision("a", 31)).unwrap();
        assert_eq!((numbers(&registry, "shop"), numbers(&registry, "shop2")), (vec![26], vec![1]));
    }

    #[test]
    fn those_that_were_changed_longest_ago_give_way() {
        let registry = Memory::default();
        for turn in 0..CONTAINERS_MAX as u64 + 3 {
            note(&registry, &format!("dc{turn}"), revision("a", turn)).unwrap();
        }
        assert_eq!(all(&registry).unwrap().len(), CONTAINERS_MAX);
        assert!(numbers(&registry, "dc2").is_empty() && !numbers(&registry, "dc3").is_empty());
        for turn in 0..10 {
            note(&registry, &format!("big{turn}"), revision(&"x".repeat(BYTES_MAX), 100 + turn)).unwrap();
        }
        let bytes: usize =
            all(&registry).unwrap().values().flatten().map(|revision| revision.text.len()).sum();
        assert!(bytes <= ALL_BYTES_MAX && !numbers(&registry, "big9").is_empty());
    }
}
