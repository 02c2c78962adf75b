//! The contract of `Registry`, held against every implementation.

#![allow(clippy::unwrap_used)]

use registry::{Change, Embedded, Etcd, EtcdSettings, Expected, Memory, Registry, RegistryError};
use std::time::Duration;
use testing::etcd::{EtcdServers, etcd_program};

const TIMEOUT: Duration = Duration::from_secs(10);

fn check_all<R: Registry>(make: impl Fn() -> R) {
    what_was_put_is_got(&make());
    a_list_has_exactly_its_prefix_in_order(&make());
    a_wrong_belief_changes_nothing(&make());
    several_keys_are_written_at_once_or_none(&make());
    a_guarded_write_is_made_under_its_guard_alone(&make());
    revisions_grow_and_never_come_back(&make());
    impossible_keys_and_values_are_refused(&make());
    watchers_hear_their_changes_in_order(&make());
    a_slow_watcher_is_cut_off_and_holds_up_nobody(&make());
    of_many_claims_one_wins(&make());
}

fn what_was_put_is_got(registry: &impl Registry) {
    assert_eq!(registry.get("a").unwrap(), None);
    let revision = registry.put("a", b"1", Expected::Absent).unwrap();
    let entry = registry.get("a").unwrap().unwrap();
    assert_eq!((entry.value.as_slice(), entry.revision), (&b"1"[..], revision));
    assert!(registry.delete("a", Expected::Revision(revision)).unwrap());
    assert!(!registry.delete("a", Expected::Anything).unwrap());
    assert_eq!(registry.get("a").unwrap(), None);
}

fn a_list_has_exactly_its_prefix_in_order(registry: &impl Registry) {
    for key in ["b/2", "a/9", "b/10", "b", "c/1", "b/1"] {
        registry.put(key, key.as_bytes(), Expected::Absent).unwrap();
    }
    let listed = registry.list("b/").unwrap();
    let keys: Vec<_> = listed.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["b/1", "b/10", "b/2"]);
    assert!(listed.iter().all(|(key, entry)| key.as_bytes() == entry.value));
    assert_eq!(registry.list("").unwrap().len(), 6);
    assert!(registry.list("zzz").unwrap().is_empty());
}

fn a_wrong_belief_changes_nothing(registry: &impl Registry) {
    let first = registry.put("a", b"1", Expected::Absent).unwrap();
    let second = registry.put("a", b"2", Expected::Revision(first)).unwrap();
    for wrong in [Expected::Absent, Expected::Revision(first), Expected::Revision(second + 1)] {
        assert!(matches!(
            registry.put("a", b"3", wrong),
            Err(RegistryError::Conflict { found: Some(found), .. }) if found == second
        ));
        assert!(matches!(registry.delete("a", wrong), Err(RegistryError::Conflict { .. })));
    }
    assert_eq!(registry.get("a").unwrap().unwrap().value, b"2");
    assert!(matches!(
        registry.put("new", b"", Expected::Revision(second)),
        Err(RegistryError::Conflict { found: None, .. })
    ));
}

fn several_keys_are_written_at_once_or_none(registry: &impl Registry) {
    let key = |name: &str| format!("several/{name}");
    registry.put(&key("gone"), b"x", Expected::Anything).unwrap();
    let watch = registry.watch("several/").unwrap();
    let value = |text: &str| Some(text.as_bytes().to_vec());
    let changes = [(key("a"), value("1")), (key("gone"), None), (key("never"), None), (key("z"), value("2"))];
    registry.write(&changes).unwrap();
    let there: Vec<(String, Vec<u8>)> =
        registry.list("several/").unwrap().into_iter().map(|(key, entry)| (key, entry.value)).collect();
    assert_eq!(there, [(key("a"), b"1".to_vec()), (key("z"), b"2".to_vec())]);
    let mut heard: Vec<_> = (0..3).map(|_| watch.next(TIMEOUT).unwrap().unwrap().key).collect();
    heard.sort();
    assert_eq!(heard, [key("a"), key("gone"), key("z")]);
    // What one of them may not be, none is.
    let long = "k".repeat(registry::MAX_KEY_BYTES + 1);
    assert!(registry.write(&[(key("b"), value("3")), (long, value("4"))]).is_err());
    assert!(matches!(
        registry.write(&[(key("b"), value("3")), (key("b"), None)]),
        Err(RegistryError::TooMany(2))
    ));
    let many: Vec<_> = (0..=registry::MAX_WRITTEN).map(|n| (key(&format!("n{n}")), value("5"))).collect();
    assert!(registry.write(&many).is_err());
    assert_eq!(registry.list("several/").unwrap().len(), 2);
    registry.write(&many[1..]).unwrap();
    registry.write(&[]).unwrap();
    assert_eq!(registry.list("several/n").unwrap().len(), registry::MAX_WRITTEN);
}

fn a_guarded_write_is_made_under_its_guard_alone(registry: &impl Registry) {
    let key = |name: &str| format!("guarded/{name}");
    let value = |text: &str| Some(text.as_bytes().to_vec());
    let (head, write) = (key("head"), |text: &str| [(key("head"), value(text)), (key("a"), value(text))]);
    let first = registry.write_if(&head, Expected::Absent, &write("1")).unwrap();
    let second = registry.write_if(&head, Expected::Revision(first), &write("2")).unwrap();
    assert!(second > first);
    assert_eq!(registry.get(&head).unwrap().unwrap().revision, second);
    for stale in [Expected::Absent, Expected::Revision(first)] {
        let refused = registry.write_if(&head, stale, &write("stale"));
        assert!(
            matches!(refused, Err(RegistryError::Conflict { found: Some(found), .. }) if found == second)
        );
    }
    assert_eq!(registry.get(&key("a")).unwrap().unwrap().value, b"2");
    // A guard that the write does not set would stay as it was, and the next writer would not
    // notice.
    for unguarded in [vec![(key("a"), value("3"))], vec![(head.clone(), None)]] {
        let refused = registry.write_if(&head, Expected::Anything, &unguarded);
        assert!(matches!(refused, Err(RegistryError::Unguarded(_))), "{refused:?}");
    }
}

fn revisions_grow_and_never_come_back(registry: &impl Registry) {
    let mut last = 0;
    for round in 0..20 {
        let revision = registry.put("a", &[round], Expected::Anything).unwrap();
        assert!(revision > last);
        last = revision;
        registry.delete("a", Expected::Revision(revision)).unwrap();
    }
}

fn impossible_keys_and_values_are_refused(registry: &impl Registry) {
    let long = "k".repeat(registry::MAX_KEY_BYTES + 1);
    for key in ["", long.as_str()] {
        assert!(matches!(registry.put(key, b"", Expected::Anything), Err(RegistryError::Key(_))));
        assert!(matches!(registry.get(key), Err(RegistryError::Key(_))));
        assert!(matches!(registry.delete(key, Expected::Anything), Err(RegistryError::Key(_))));
    }
    let big = vec![0; registry::MAX_VALUE_BYTES + 1];
    assert!(matches!(registry.put("a", &big, Expected::Anything), Err(RegistryError::TooLarge { .. })));
    registry.put("a", &big[1..], Expected::Anything).unwrap();
    assert_eq!(registry.get("a").unwrap().unwrap().value.len(), registry::MAX_VALUE_BYTES);
}

fn watchers_hear_their_changes_in_order(registry: &impl Registry) {
    let watch = registry.watch("a/").unwrap();
    registry.put("b/1", b"not mine", Expected::Anything).unwrap();
    let first = registry.put("a/1", b"x", Expected::Anything).unwrap();
    registry.put("a/1", b"refused", Expected::Absent).unwrap_err();
    registry.delete("a/1", Expected::Anything).unwrap();
    let change = watch.next(TIMEOUT).unwrap().unwrap();
    assert_eq!(change, Change { key: "a/1".into(), revision: first, value: Some(b"x".to_vec()) });
    let change = watch.next(TIMEOUT).unwrap().unwrap();
    assert!(change.value.is_none() && change.revision > first);
    assert_eq!(watch.next(Duration::ZERO), Ok(None));
}

fn a_slow_watcher_is_cut_off_and_holds_up_nobody(registry: &impl Registry) {
    let watch = registry.watch("").unwrap();
    for round in 0..1100_u32 {
        registry.put("a", &round.to_le_bytes(), Expected::Anything).unwrap();
    }
    let mut heard = 0_u32;
    // Where the changes come over a network, those that are on their way find room again while this
    // one reads.
    while heard < 1100
        && let Ok(change) = watch.next(TIMEOUT)
    {
        let value = change.expect("a cut-off watcher must be told so").value.unwrap();
        assert_eq!(value, heard.to_le_bytes(), "none may be missing in between");
        heard += 1;
    }
    assert!((1024..=1100).contains(&heard), "{heard}");
}

fn of_many_claims_one_wins(registry: &impl Registry) {
    let won = std::thread::scope(|scope| {
        let claims: Vec<_> = (0..8_u8)
            .map(|n| scope.spawn(move || registry.put("claim", &[n], Expected::Absent).is_ok()))
            .collect();
        claims.into_iter().map(|claim| claim.join().unwrap()).filter(|won| *won).count()
    });
    assert_eq!(won, 1);
}

#[test]
fn memory_keeps_the_contract() {
    check_all(Memory::default);
}

#[test]
fn embedded_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    check_all(|| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Embedded::open(&folder.path().join(format!("{number}.redb"))).unwrap()
    });
}

#[test]
fn etcd_keeps_the_contract() {
    if etcd_program().is_none() {
        println!("skipped: there is no etcd; run `make deps`");
        return;
    }
    // Its usual 1.5 MiB are too few for a topology of the greatest size.
    let servers = EtcdServers::start(1, &["--max-request-bytes", "8388608"]).unwrap();
    let number = std::sync::atomic::AtomicUsize::new(0);
    check_all(|| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let settings =
            EtcdSettings { prefix: format!("/{number}/"), ..EtcdSettings::new(&servers.endpoints()) };
        Etcd::new(settings).unwrap()
    });
}

#[test]
fn embedded_keeps_its_values_and_revisions_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.redb");
    let revision = Embedded::open(&path).unwrap().put("a", b"1", Expected::Absent).unwrap();
    let registry = Embedded::open(&path).unwrap();
    assert_eq!(registry.get("a").unwrap().unwrap().revision, revision);
    assert!(registry.put("b", b"2", Expected::Absent).unwrap() > revision);
}

#[test]
fn a_file_that_is_no_registry_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.redb");
    std::fs::write(&path, vec![b'x'; 8192]).unwrap();
    let refusal = Embedded::open(&path).unwrap_err();
    assert!(refusal.to_string().contains("registry.redb"), "{refusal}");
    assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; 8192], "a refused file stays as it was");
}

// An empty file was once taken for a new registry, and one with scribbled pages ended the daemon
// with a backtrace: everything that was up was ended without a word of why.
#[test]
fn a_damaged_file_is_refused_by_name_with_what_to_do_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.redb");
    let registry = Embedded::open(&path).unwrap();
    for number in 0..200 {
        registry.put(&format!("desired/{number}"), &[b'v'; 500], Expected::Absent).unwrap();
    }
    drop(registry);
    let good = std::fs::read(&path).unwrap();
    let scribbled = |seed: usize| {
        let mut bytes = good.clone();
        let length = bytes.len();
        (0..2000).for_each(|n| bytes[(seed * 7919 + n * 4099) % length] ^= 0x5a);
        bytes
    };
    let mut cases =
        vec![Vec::new(), b"hello".to_vec(), good[..4096].to_vec(), good[..good.len() / 2].to_vec()];
    cases.extend((0..16).map(scribbled));
    for (number, bytes) in cases.iter().enumerate() {
        std::fs::write(&path, bytes).unwrap();
        let refusal = match Embedded::open(&path) {
            Err(refusal) => refusal.to_string(),
            // Scribbles may have hit unused pages only: then all of it must be there.
            Ok(registry) => {
                assert!(number >= 4, "case {number} was opened");
                assert_eq!(registry.list("desired/").unwrap().len(), 200, "case {number}");
                continue;
            }
        };
        assert!(
            refusal.contains("registry.redb") && refusal.contains("move it away"),
            "case {number}: {refusal}"
        );
        assert_eq!(&std::fs::read(&path).unwrap(), bytes, "case {number} was changed");
    }
    std::fs::write(&path, &good).unwrap();
    assert_eq!(Embedded::open(&path).unwrap().list("desired/").unwrap().len(), 200);
}

#[test]
fn half_a_file_of_an_earlier_attempt_is_not_in_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.redb");
    std::fs::write(path.with_extension("new"), "half").unwrap();
    Embedded::open(&path).unwrap().put("a", b"1", Expected::Absent).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_second_opener_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("registry.redb");
    let _first = Embedded::open(&path).unwrap();
    assert!(matches!(Embedded::open(&path), Err(RegistryError::Open { .. })));
}
