//! Records of nodes in a registry in memory.

use super::join::{enter, leave};
use super::*;
use registry::Memory;

pub(super) fn record(name: &str, address: &str) -> NodeRecord {
    NodeRecord {
        name: name.into(),
        address: address.parse().unwrap(),
        locators: Vec::new(),
        labels: BTreeMap::new(),
        cpus: 2,
        memory_bytes: 1 << 30,
        joined_unix_s: 1,
        serial: format!("40{name}"),
        version: "0.1.0".into(),
        number: Some(1),
    }
}

#[test]
fn of_two_nodes_with_one_name_or_one_address_the_second_is_refused_and_leaves_nothing() {
    let registry = Memory::default();
    enter(&registry, &record("a", "10.0.0.1:7420")).unwrap();
    let name = enter(&registry, &record("a", "10.0.0.2:7420")).unwrap_err();
    assert_eq!(name.code, Code::Taken);
    assert!(name.message.contains("the name a"), "{name}");
    let address = enter(&registry, &record("b", "10.0.0.1:7420")).unwrap_err();
    assert!(address.code == Code::Taken && address.message.contains("10.0.0.1:7420"), "{address}");
    assert_eq!(registry.list("").unwrap().len(), 2, "a node, and its address");
    enter(&registry, &record("b", "10.0.0.1:7421")).unwrap();
}

/// A node died between two steps of letting another in, and the address was taken for good: no
/// command freed it.
#[test]
fn an_address_that_was_taken_for_a_node_that_was_never_written_down_is_free() {
    let registry = Memory::default();
    registry.put("address/10.0.0.2:7420", b"\"b\"", Expected::Absent).unwrap();
    let free = |name: &str| super::join::check_free(&registry, name, "10.0.0.2:7420".parse().unwrap());
    free("b").unwrap();
    free("c").unwrap();
    enter(&registry, &record("c", "10.0.0.2:7420")).unwrap();
    assert!(free("d").unwrap_err().message.contains("node c's"));
    assert_eq!(enter(&registry, &record("b", "10.0.0.2:7420")).unwrap_err().code, Code::Taken);
    // One that has another address by now has not this one.
    registry.put("address/10.0.0.3:7420", b"\"c\"", Expected::Absent).unwrap();
    enter(&registry, &record("b", "10.0.0.3:7420")).unwrap();
    assert_eq!(registry.list("").unwrap().len(), 4, "two nodes, and their addresses");
}

#[test]
fn of_many_who_take_an_address_that_nobody_uses_one_has_it() {
    for round in 0..200_u8 {
        let registry = Memory::default();
        registry.put("address/10.0.0.2:7420", b"\"gone\"", Expected::Absent).unwrap();
        let names: Vec<String> = (0..4).map(|n| format!("n{n}-{round}")).collect();
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| enter(&registry, &record(name, "10.0.0.2:7420")).ok());
            }
        });
        let nodes = registry.list(NODES).unwrap();
        let has = get_json::<String>(&registry, "address/10.0.0.2:7420").unwrap().unwrap().0;
        let names: Vec<String> = nodes.into_iter().map(|(key, _)| key).collect();
        assert_eq!(names, [format!("{NODES}{has}")]);
    }
}

#[test]
fn who_is_removed_is_revoked_and_makes_room() {
    let registry = Memory::default();
    enter(&registry, &record("a", "10.0.0.1:7420")).unwrap();
    registry.put("alive/a", b"{}", Expected::Absent).unwrap();
    leave(&registry, "a").unwrap();
    let left: Vec<_> = registry.list("").unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, ["revoked/40a"]);
    assert_eq!(leave(&registry, "a").unwrap_err().code, Code::UnknownNode);
    enter(&registry, &record("a", "10.0.0.1:7420")).unwrap();
}

#[test]
fn a_node_keeps_its_settings_whole_for_root_alone_and_refuses_what_they_are_not() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    assert!(Config::load(folder.path()).unwrap().is_none());
    let etcd = serde_json::json!({ "endpoints": ["http://127.0.0.1:2379"], "prefix": "/t/" });
    let config =
        Config::new("10.0.0.1:7420".parse().unwrap(), serde_json::from_value(etcd).unwrap(), Some(7));
    config.store(folder.path()).unwrap();
    assert_eq!(Config::load(folder.path()).unwrap().unwrap(), config);
    let path = folder.path().join("cluster.json");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for bad in [
        "",
        "{}",
        "hello",
        "{\"format\":2,\"address\":\"10.0.0.1:1\",\"etcd\":{\"endpoints\":[],\"prefix\":\"\"}}",
    ] {
        std::fs::write(&path, bad).unwrap();
        let refusal = Config::load(folder.path()).unwrap_err().to_string();
        assert!(refusal.contains("cluster.json"), "{refusal}");
    }
}

#[test]
fn who_was_in_the_cluster_is_remembered_until_this_machine_is_in_another() {
    let folder = tempfile::tempdir().unwrap();
    assert!(remembered::load(folder.path()).is_empty());
    let members: BTreeMap<String, NodeRecord> = [("a", "10.0.0.1:7420"), ("b", "10.0.0.2:7420")]
        .map(|(name, address)| (name.to_owned(), record(name, address)))
        .into();
    remembered::store(folder.path(), &members).unwrap();
    assert_eq!(remembered::load(folder.path()), members);
    for bad in ["", "{\"a\":", "[]"] {
        std::fs::write(folder.path().join("members.json"), bad).unwrap();
        assert!(remembered::load(folder.path()).is_empty(), "{bad}");
    }
    remembered::store(folder.path(), &members).unwrap();
    for _ in 0..2 {
        remembered::forget(folder.path()).unwrap();
        assert!(remembered::load(folder.path()).is_empty());
    }
}

#[test]
fn the_member_of_etcd_on_this_machine_is_asked_first_and_the_others_in_their_order() {
    let own: IpAddr = "10.0.0.2".parse().unwrap();
    let ordered = |endpoints: &[&str], own: IpAddr| {
        let endpoints: Vec<String> = endpoints.iter().map(|url| (*url).to_owned()).collect();
        nearest_first(EtcdSettings::new(&endpoints), own).endpoints
    };
    assert_eq!(
        ordered(&["http://10.0.0.1:2379", "http://10.0.0.3:2379", "http://10.0.0.2:2379"], own),
        ["http://10.0.0.2:2379", "http://10.0.0.1:2379", "http://10.0.0.3:2379"]
    );
    let six: IpAddr = "fd00::2".parse().unwrap();
    assert_eq!(
        ordered(&["https://etcd.example.org/", "https://[fd00::1]:2379", "https://[fd00::2]:2379"], six),
        ["https://[fd00::2]:2379", "https://etcd.example.org/", "https://[fd00::1]:2379"]
    );
    for near in ["http://localhost:2379", "http://127.0.0.1", "https://[::1]:2379", "https://[fd00::2]"] {
        assert!(is_of(near, six), "{near}");
    }
    for far in ["http://10.0.0.1:2379", "https://[fd00::3]:2", "etcd", "", "http://"] {
        assert!(!is_of(far, six), "{far}");
    }
}
