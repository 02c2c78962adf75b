//! An etcd whose members change, and a copy of it.

#![allow(clippy::unwrap_used)]

use registry::{Change, Etcd, EtcdSettings, Expected, Registry, RegistryError, Trouble};
use std::time::{Duration, Instant};
use testing::etcd::{EtcdServers, etcd_program};

/// How long members, or a watch that moves to another one, may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

fn until<T>(what: &str, mut attempt: impl FnMut() -> Result<T, RegistryError>) -> T {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(begun.elapsed() < TIMEOUT, "{what}: {error}"),
        }
    }
}

#[test]
fn who_asks_goes_on_at_other_members_and_takes_a_learner_in_and_out() {
    if etcd_program().is_none() {
        println!("skipped: there is no etcd; run `make deps`");
        return;
    }
    let mut servers = EtcdServers::start(3, &[]).unwrap();
    let endpoints = servers.endpoints();
    let at = |index: usize| EtcdSettings::new(&endpoints[index..=index]);
    let etcd = Etcd::new(at(0)).unwrap();
    until("it takes a value", || etcd.put("a", b"1", Expected::Anything));
    let watch = etcd.watch("a").unwrap();
    etcd.reach_by(at(1)).unwrap();
    servers.kill(0).unwrap();
    // Calls and watches go on there.
    assert_eq!(until("the others answer", || etcd.get("a")).unwrap().value, b"1");
    until("the others take a value", || etcd.put("a", b"2", Expected::Anything));
    let heard: Option<Change> = watch.next(TIMEOUT).unwrap();
    assert_eq!(heard.unwrap().value.as_deref(), Some(&b"2"[..]));
    assert_eq!(etcd.settings().endpoints, endpoints[1..=1]);
    assert!(etcd.reach_by(EtcdSettings::new(&[])).is_err());
    assert_eq!(etcd.settings().endpoints, endpoints[1..=1], "what can't be changed nothing");

    let members = etcd.members().unwrap();
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    assert!(names.len() == 3 && members.iter().all(registry::EtcdMember::votes), "{names:?}");
    assert!(members.iter().any(|member| member.id == etcd.leader().unwrap()));
    servers.restart(0).unwrap();
    let nobody = "http://127.0.0.1:9";
    let id = until("a learner is taken", || etcd.add_learner(nobody));
    assert_eq!(etcd.add_learner(nobody).unwrap(), id, "an answer that was lost");
    assert!(etcd.members().unwrap().iter().any(|member| member.id == id && !member.votes()));
    // It never came, so it has learned nothing.
    match etcd.promote(id) {
        Err(RegistryError::Etcd(error)) => {
            assert_eq!(error.trouble, Trouble::Members, "{error}");
            assert!(error.to_string().contains("tombolo node etcd"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    until("it is taken away", || etcd.remove_member(id));
    etcd.remove_member(id).unwrap();
    assert_eq!(etcd.members().unwrap().len(), 3);

    let mut copy = Vec::new();
    let length = etcd.snapshot(&mut copy).unwrap();
    assert_eq!(length, copy.len() as u64);
    // A database of whole pages, and the SHA-256 behind it.
    assert_eq!(copy.len() % 512, 32, "{length}");
}
