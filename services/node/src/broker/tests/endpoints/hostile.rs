//! Members that say what they should not.

use super::*;

#[test]
fn another_container_has_other_names_addresses_and_numbers() {
    let broker = shop();
    broker.set_topology(
        "lab",
        Some(topology(&FILE.replace("\"shop\"", "\"lab\"").replace("[endpoint.motor]", "[endpoint.engine]"))),
    );
    let (_planner, planner_at) = bound(&broker, "planner", "planner");
    let of_lab =
        Identity { dc: "lab".into(), domain: "camera".into(), role: Role::Program, pid: 9, main: false };
    let mut spy = broker.join(of_lab).unwrap();
    let spy_at = bind(&broker, &mut spy, "camera");
    assert_ne!(spy_at.slot, planner_at.slot);
    for request in [to_name(spy_at, "planner"), to_address(spy_at, planner_at)] {
        refused(&ask(&broker, &mut spy, request), Errno::NOTCONN);
    }
    let other = ask(&broker, &mut spy, to_name(spy_at, "motor"));
    refused(&other, Errno::NOENT);
    assert!(!message(&other).contains("engine"), "{other:?}");
    refused(&ask(&broker, &mut spy, unbind(planner_at)), Errno::BADF);
}

#[test]
fn one_that_does_not_read_is_introduced_to_no_more_and_stays() {
    let many = "[ipc]\nendpoints = 2000\nanonymous_per_domain = 1000\n";
    let broker = shop_with(&format!("{FILE}{many}"), no_channel, Kept::default());
    let (planner, planner_at) = bound(&broker, "planner", "planner");
    let mut desk = program(&broker, "desk");
    let mut reached = 0;
    for _ in 0..400 {
        let at = bind(&broker, &mut desk, "");
        match ask(&broker, &mut desk, to_name(at, "planner")) {
            Reply::Introduced { .. } => reached += 1,
            other => {
                refused(&other, Errno::AGAIN);
                break;
            }
        }
    }
    assert_eq!(reached, MAX_WAITING_PACKETS - KEPT_PACKETS);
    // All of them end: it is told of nothing that it could not hold, and it is there still.
    broker.leave(desk.0);
    assert_eq!(planner.1.len(), reached);
    let inner = broker.lock();
    assert!(inner.endpoints.table("shop").is_bound(planner_at));
}

#[test]
fn a_slot_whose_generations_are_used_up_is_given_up() {
    let broker = shop();
    let (planner, before) = bound(&broker, "planner", "planner");
    broker.leave(planner.0);
    broker.lock().endpoints.exhaust("shop", before.slot);
    let (_planner, after) = bound(&broker, "planner", "planner");
    assert_ne!(after.slot, before.slot);
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    refused(&ask(&broker, &mut camera, to_address(camera_at, before)), Errno::NOTCONN);
    assert_eq!(introduced(ask(&broker, &mut camera, to_name(camera_at, "planner"))).address, after);
}

const MANY: &str = "[ipc]\nendpoints = 10000\nanonymous_per_domain = 10000\npairs = 10000\nring_bytes = \"4KiB\"\nbytes = \"1GiB\"\nbuffers = 16\ngrants = 65536\n";

#[test]
fn ten_thousand_endpoints_work_and_the_next_one_is_refused() {
    let broker = shop_with(&format!("{FILE}{MANY}"), no_channel, Kept::default());
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let mut desks: Vec<_> = (0..4).map(|_| program(&broker, "desk")).collect();
    let mut all = Vec::new();
    for number in 0..9_999 {
        all.push((number % 4, bind(&broker, &mut desks[number % 4], "")));
    }
    refused(&ask(&broker, &mut desks[0], bind_request("", "")), Errno::USERS);
    for (whose, at) in &all {
        introduced(ask(&broker, &mut desks[*whose], to_name(*at, "planner")));
        assert_eq!(introduced(next(&mut planner.1)).address, *at);
    }
    let rows = broker.endpoint_rows("shop");
    // Three names that nobody has bound are listed, too.
    assert_eq!(rows.len(), 10_003);
    assert!(rows.iter().any(|row| row.peers == 9_999));
    assert!(broker.endpoint_trees("shop").len() <= 1024);
    let shown = broker.endpoint("shop", "planner").unwrap();
    assert_eq!((shown["peer_count"].as_u64(), shown["peers"].as_array().unwrap().len()), (Some(9_999), 256));
    // A file that changes what all of them may is followed, and so is the end of all.
    let other = format!("{FILE}{MANY}").replace(r#"verbs = ["request"]"#, r#"verbs = ["send"]"#);
    broker.set_topology("shop", Some(topology(&other)));
    desks.iter().for_each(|desk| broker.leave(desk.0));
    let inner = broker.lock();
    let table = inner.endpoints.table("shop");
    assert!(table.is_bound(planner_at) && table.bound_count() == 1 && table.pair_count() == 0);
}

#[test]
fn who_binds_and_lets_go_without_end_leaves_nothing_behind() {
    let broker = shop();
    let mut desk = program(&broker, "desk");
    let mut last = None;
    for _ in 0..20_000 {
        let at = bind(&broker, &mut desk, "");
        assert!(
            last.is_none_or(|last: EndpointAddress| at.slot == last.slot && at.generation > last.generation)
        );
        ask(&broker, &mut desk, unbind(at));
        last = Some(at);
    }
    assert_eq!(broker.lock().endpoints.table("shop").slot_count(), 1);
}

#[test]
fn names_of_any_length_and_kind_are_refused_shortly() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let long = "x".repeat(60_000);
    let odd = ["\u{202e}\u{1b}[2J".to_owned(), long, "planner\0".into(), " planner".into(), "PLANNER".into()];
    for name in odd {
        for request in [bind_request(&name, ""), to_name(camera_at, &name), bind_request("", &name)] {
            let answer = ask(&broker, &mut camera, request);
            assert!(message(&answer).len() < 400 && !message(&answer).contains('\u{1b}'), "{answer:?}");
        }
    }
}

#[test]
fn a_hostile_list_of_peers_is_cut_and_tells_nobody() {
    let kept = Kept::default();
    let first = shop_with(FILE, no_channel, kept.clone());
    let Reply::Bound { token, .. } = ask(&first, &mut program(&first, "desk"), bind_request("", "")) else {
        panic!()
    };
    let second = shop_with(FILE, no_channel, kept);
    let (mut planner, planner_at) = bound(&second, "planner", "planner");
    let mut peers: Vec<_> = (0..5_000).map(|slot| EndpointAddress { slot, generation: 1 }).collect();
    peers.insert(0, planner_at);
    let mut desk = program(&second, "desk");
    let again = Request::Bind { id: 1, name: String::new(), token, peers };
    assert!(matches!(ask(&second, &mut desk, again), Reply::Bound { .. }));
    // It hears what its own file says of names; those whom it names hear nothing.
    while let Ok(packet) = desk.1.try_recv() {
        let Reply::Event(Event::Rights { peer, .. }) = packet.reply else { panic!("{packet:?}") };
        assert_eq!(peer.slot, planner_at.slot);
    }
    assert!(planner.1.try_recv().is_err());
    let inner = second.lock();
    let table = inner.endpoints.table("shop");
    assert!(table.pair_count() == 0 && table.missed_count() <= 1024);
}

#[test]
fn grants_without_end_are_bounded_and_end_with_their_owner() {
    let broker = shop_with(&format!("{FILE}{MANY}"), no_channel, Kept::default());
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let grant = |buffer, place| Request::Grant {
        id: 5,
        endpoint: camera_at.slot,
        buffer,
        to: planner_at,
        access: wire::control::GrantAccess::Read,
        place,
        grant: 0,
    };
    let mut made = 0;
    for _ in 0..4 {
        let request = Request::Buffer { id: 4, endpoint: camera_at.slot, bytes: 1, replaces: 0 };
        let Reply::Buffer { buffer, .. } = ask(&broker, &mut camera, request) else { panic!() };
        for place in 0..600 {
            if let Reply::Granted { grant, .. } = ask(&broker, &mut camera, grant(buffer, place)) {
                made += 1;
                let borrow = Request::Borrow { id: 6, endpoint: planner_at.slot, grant };
                assert!(matches!(ask(&broker, &mut planner, borrow), Reply::Borrowed { .. }));
            }
        }
    }
    // One at a place, and none at places that there are not.
    assert_eq!(made, 4 * 510);
    // More are over at once than an outbox holds: each is told, when there is room.
    broker.leave(camera.0);
    let mut over = 0;
    while let Ok(packet) = planner.1.try_recv() {
        assert!(matches!(packet.reply, Reply::Event(Event::Revoked { .. })), "{packet:?}");
        over += 1;
        broker.has_read(planner.0);
    }
    assert_eq!(over, made);
}

#[tokio::test]
async fn memory_of_pairs_that_are_over_counts_for_whoever_keeps_it() {
    let broker = shop_with(
        &format!("{FILE}{MANY}").replace("pairs = 10000", "pairs = 400"),
        crate_channel,
        Kept::default(),
    );
    let (mut planner, _planner_at) = bound(&broker, "planner", "planner");
    let mut kept = Vec::new();
    let mut desk = program(&broker, "desk");
    let refusal = loop {
        let at = bind(&broker, &mut desk, "");
        broker.request(desk.0, to_name(at, "planner"), None, |_| Value::Null);
        let Outgoing { reply, descriptors, .. } = desk.1.try_recv().unwrap();
        if errno(&reply).is_some() {
            break reply;
        }
        kept.push(descriptors);
        // The other one is honest, and lets go.
        drop(planner.1.try_recv().unwrap());
        broker.leave(desk.0);
        desk = program(&broker, "desk");
        tokio::task::yield_now().await;
    };
    refused(&refusal, Errno::MFILE);
    assert!(
        message(&refusal).contains("programs of domain desk hold the memory of 256 pairs"),
        "{refusal:?}"
    );
    // Others of the container go on.
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    introduced(ask(&broker, &mut camera, to_name(camera_at, "planner")));
    drop(planner.1.try_recv().unwrap());
    kept.clear();
    let patience = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let at = bind(&broker, &mut desk, "");
        let reply = ask(&broker, &mut desk, to_name(at, "planner"));
        if errno(&reply).is_none() {
            break;
        }
        assert!(tokio::time::Instant::now() < patience, "it is charged for ever: {reply:?}");
        ask(&broker, &mut desk, unbind(at));
        tokio::task::yield_now().await;
    }
}
