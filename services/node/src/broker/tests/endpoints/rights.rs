//! The effect of a changed file on endpoints that are there.

use super::*;

fn rights(mail: &mut Mail) -> (EndpointAddress, EndpointRights) {
    match next(mail) {
        Reply::Event(Event::Rights { peer, rights, .. }) => (peer, rights),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pairs_are_told_what_they_may_from_now_on() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    introduced(ask(&broker, &mut camera, to_name(camera_at, "planner")));
    next(&mut planner.1);
    broker.set_topology(
        "shop",
        Some(topology(&FILE.replace(r#"verbs = ["send", "notify"]"#, r#"verbs = ["send"]"#))),
    );
    let send = EndpointRights { send: true, ..EndpointRights::default() };
    assert_eq!(rights(&mut camera.1), (planner_at, send));
    let hears = EndpointRights { hears: true, ..EndpointRights::default() };
    assert_eq!(rights(&mut planner.1), (camera_at, hears));
    // Nothing of it differs: nobody is told.
    broker.set_topology(
        "shop",
        Some(topology(&FILE.replace(r#"verbs = ["send", "notify"]"#, r#"verbs = ["send"]"#))),
    );
    let none = FILE.replace(r#"{ endpoints = ["camera"], verbs = ["send", "notify"] }, "#, "");
    broker.set_topology("shop", Some(topology(&none)));
    assert_eq!(rights(&mut camera.1), (planner_at, EndpointRights::default()));
    assert_eq!(rights(&mut planner.1), (camera_at, EndpointRights::default()));
    assert!(camera.1.try_recv().is_err() && planner.1.try_recv().is_err());
    refused(&ask(&broker, &mut camera, to_name(camera_at, "planner")), Errno::PERM);
}

#[test]
fn a_name_that_is_gone_or_has_moved_is_unbound_and_its_peers_hear_of_it() {
    let gone = FILE
        .replace("[endpoint.camera]\ndomain = \"camera\"\n", "")
        .replace(r#"{ endpoints = ["camera"], verbs = ["send", "notify"] }, "#, "");
    let moved =
        FILE.replace("[endpoint.camera]\ndomain = \"camera\"", "[endpoint.camera]\ndomain = \"desk\"");
    for after in [gone, moved] {
        let broker = shop();
        let (mut camera, camera_at) = bound(&broker, "camera", "camera");
        let (mut planner, _) = bound(&broker, "planner", "planner");
        introduced(ask(&broker, &mut camera, to_name(camera_at, "planner")));
        next(&mut planner.1);
        broker.set_topology("shop", Some(topology(&after)));
        assert_eq!(rights(&mut planner.1), (camera_at, EndpointRights::default()));
        let Reply::Event(Event::Unbound { endpoint, message }) = next(&mut camera.1) else { panic!() };
        assert!(
            endpoint == camera_at.slot && message.contains("no longer places endpoint camera"),
            "{message}"
        );
        refused(&ask(&broker, &mut camera, unbind(camera_at)), Errno::BADF);
        assert!(camera.1.try_recv().is_err() && planner.1.try_recv().is_err());
    }
}

#[test]
fn a_container_that_is_down_has_no_endpoints_and_its_next_life_has_other_addresses() {
    let broker = shop();
    let (mut camera, before) = bound(&broker, "camera", "camera");
    broker.set_topology("shop", None);
    assert!(matches!(next(&mut camera.1), Reply::Event(Event::Unbound { .. })));
    refused(&ask(&broker, &mut camera, bind_request("camera", "")), Errno::NOENT);
    broker.set_topology("shop", Some(topology(FILE)));
    assert_ne!(bind(&broker, &mut camera, "camera"), before);
}

// A file that changes the rights of many pairs once told more than an outbox holds, and an honest
// program was cut off.
#[test]
fn a_program_that_is_busy_misses_nothing_and_is_not_cut_off() {
    let many = "[ipc]\nendpoints = 2000\nanonymous_per_domain = 1000\n";
    let broker = shop_with(&format!("{FILE}{many}"), no_channel, Kept::default());
    let (mut planner, _) = bound(&broker, "planner", "planner");
    let mut desk = program(&broker, "desk");
    for _ in 0..1000 {
        let at = bind(&broker, &mut desk, "");
        introduced(ask(&broker, &mut desk, to_name(at, "planner")));
        next(&mut planner.1);
    }
    let other = format!("{FILE}{many}")
        .replace(r#"domains = ["desk"], verbs = ["request"]"#, r#"domains = ["desk"], verbs = ["send"]"#);
    broker.set_topology("shop", Some(topology(&other)));
    broker.set_topology("shop", Some(topology(&format!("{FILE}{many}"))));
    broker.set_topology("shop", Some(topology(&other)));
    // It may ask before it reads: there is room for the answer.
    broker.request(planner.0, Request::Services { id: 77 }, None, |_| Value::Null);
    let mut answered = false;
    let mut told = BTreeMap::new();
    while let Ok(packet) = planner.1.try_recv() {
        match packet.reply {
            Reply::Event(Event::Rights { peer, rights, .. }) => drop(told.insert(peer, rights)),
            Reply::Services { id: 77, .. } => answered = true,
            other => panic!("{other:?}"),
        }
        broker.has_read(planner.0);
    }
    assert!(answered, "it was cut off");
    assert_eq!(told.len(), 1000);
    assert!(told.values().all(|rights| rights.hears && !rights.answers), "the newest word is the last");
}
