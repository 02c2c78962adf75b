//! Endpoints of two nodes: who is believed, who is introduced, and what ends a pair.

mod loans;

use super::*;
use crate::broker::testing::Kept;
use wire::control::{EndpointAddress, EndpointRights, Whom};

const ENDPOINTS: &str = r#"
name = "shop"
[domain.eye]
kind = "container"
root = "host"
command = ["true"]
[domain.brain]
kind = "container"
root = "host"
command = ["true"]
[endpoint.camera]
domain = "eye"
[endpoint.planner]
domain = "brain"
allow = [{ endpoints = ["camera"], verbs = ["send"] }, { domains = ["eye"], verbs = ["request"] }]
"#;

fn placed(_: &str, domain: &str) -> Option<String> {
    match domain {
        "eye" => Some("a".into()),
        "brain" => Some("b".into()),
        _ => None,
    }
}

fn number(node: &str) -> Option<u32> {
    match node {
        "a" => Some(1),
        "b" => Some(2),
        _ => None,
    }
}

fn node(name: &'static str, peer: &'static str, kept: Kept, up: bool) -> Node {
    let broker = Broker::new(crate::broker::make_channel);
    broker.keep_numbers(Numbers::open(Box::new(kept), number(name).unwrap()).unwrap());
    broker.set_topology("shop", Some(topology(ENDPOINTS)));
    broker.number_nodes(Arc::new(number));
    broker.place(name, Arc::new(placed));
    let (outbox, orders) = orders();
    broker.proxy_came(peer, 1, outbox, up).unwrap();
    Node { broker, orders, peer }
}

fn nodes() -> (Node, Node) {
    let (mut a, mut b) = (node("a", "b", Kept::default(), false), node("b", "a", Kept::default(), false));
    a.up(false);
    b.up(false);
    carry(&mut a, &mut b);
    (a, b)
}

fn bind(node: &Node, domain: &str, name: &str) -> ((MemberId, Mail), EndpointAddress, String) {
    let mut member = join(&node.broker, domain, Role::Program, false);
    let request = Request::Bind { id: 1, name: name.into(), token: String::new(), peers: Vec::new() };
    match ask(&node.broker, &mut member, request) {
        Reply::Bound { address, token, .. } => (member, address, token),
        other => panic!("{other:?}"),
    }
}

fn introduce(endpoint: EndpointAddress, to: &Whom) -> Request {
    Request::Introduce { id: 2, endpoint: endpoint.slot, to: to.clone(), wait_ms: 0 }
}

/// Begins an introduction on node a, and gives back what its proxy is ordered.
fn begin(
    node: &mut Node,
    id: MemberId,
    own: EndpointAddress,
    to: &Whom,
) -> (tokio::task::JoinHandle<()>, u64, Open) {
    let meeting = node.broker.meet_far(id, (2, own.slot, to)).expect("it is far");
    let broker = node.broker.clone();
    let room = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
    let finished = tokio::spawn(async move { broker.finish_meeting(id, meeting, room).await });
    let (Order::Open { id, open }, end) = node.orders.try_recv().unwrap() else { panic!("no open") };
    assert_eq!(end.len(), 5);
    (finished, id, open)
}

/// The answer of node b.
fn answer(b: &mut Node, open: Open) -> Result<usize, Errno> {
    b.hears(Report::Asked { pair: 9, open });
    match b.orders().remove(0) {
        (Order::Accept { pair: 9 }, end) => Ok(end.len()),
        (Order::Refuse { pair: 9, errno, .. }, _) => Err(Errno::from_raw_os_error(errno)),
        other => panic!("{other:?}"),
    }
}

/// The camera on node a and the planner on node b, who know each other.
async fn met() -> (Node, Node, [((MemberId, Mail), EndpointAddress, String); 2]) {
    let (mut a, mut b) = nodes();
    let mut camera = bind(&a, "eye", "camera");
    let mut planner = bind(&b, "brain", "planner");
    carry(&mut a, &mut b);
    let to = Whom::Name("planner".into());
    let (finished, id, open) = begin(&mut a, camera.0.0, camera.1, &to);
    assert_eq!(answer(&mut b, open), Ok(5));
    let Reply::Event(Event::Introduced { endpoint, peer, .. }) = next(&mut planner.0.1) else {
        panic!("no event")
    };
    assert_eq!((endpoint, peer.address, peer.name.as_str()), (planner.1.slot, camera.1, "camera"));
    assert_eq!(peer.rights, EndpointRights { hears: true, answers: true, ..EndpointRights::default() });
    a.hears(Report::Opened { id });
    finished.await.unwrap();
    let introduced = camera.0.1.try_recv().unwrap();
    let Reply::Introduced { id: 2, peer, .. } = introduced.reply else { panic!("{introduced:?}") };
    assert_eq!(introduced.descriptors.len(), 5);
    assert_eq!((peer.address, peer.domain.as_str()), (planner.1, "brain"));
    assert_eq!(peer.rights, EndpointRights { send: true, request: true, ..EndpointRights::default() });
    for node in [&a, &b] {
        node.broker.lock().endpoints.check();
    }
    (a, b, [camera, planner])
}

#[tokio::test]
async fn an_endpoint_of_another_node_is_found_by_its_name_and_introduced_by_both_daemons() {
    let (mut a, mut b, [mut camera, planner]) = met().await;
    assert_ne!(camera.1.slot, planner.1.slot, "no two nodes give one slot");
    // To be introduced again is to have lost nothing.
    refused(
        &ask(&a.broker, &mut camera.0, introduce(camera.1, &Whom::Name("planner".into()))),
        Errno::ALREADY,
    );
    refused(&ask(&a.broker, &mut camera.0, introduce(camera.1, &Whom::Address(planner.1))), Errno::ALREADY);
    let row =
        a.broker.endpoint_rows("shop").into_iter().find(|row| row.endpoint.as_deref() == Some("planner"));
    let row = row.unwrap();
    assert!(row.bound && row.node.as_deref() == Some("b"), "{row:?}");
    assert_eq!(row.address, Some(format!("{}.{}", planner.1.slot, planner.1.generation)));
    let shown = a.broker.endpoint("shop", "camera").unwrap();
    assert_eq!(
        (&shown["peers"][0]["endpoint"], &shown["peers"][0]["node"]),
        (&json!("planner"), &json!("b"))
    );
    // The endpoint ends: the other node's daemon is told, and not its own proxy, which may have to
    // read what it did before.
    b.broker.leave(planner.0.0);
    let [_, orders] = carry(&mut a, &mut b);
    assert!(orders.is_empty(), "{orders:?}");
    let gone = ask(&a.broker, &mut camera.0, introduce(camera.1, &Whom::Name("planner".into())));
    refused(&gone, Errno::NOTCONN);
    b.broker.lock().endpoints.check();
    // Nobody has the ends any more.
    while a.broker.lock().endpoints.table("shop").pair_count() > 0 {
        tokio::task::yield_now().await;
    }
    // Who asks by the name before it has heard of that asks again; who asks for that very one hears
    // that it has ended.
    for (whom, errno) in
        [(Whom::Name("planner".into()), Errno::AGAIN), (Whom::Address(planner.1), Errno::STALE)]
    {
        let news = News::Bound { dc: "shop".into(), name: "planner".into(), address: planner.1 };
        a.hears(Report::News { news });
        let (finished, id, open) = begin(&mut a, camera.0.0, camera.1, &whom);
        assert_eq!(answer(&mut b, open), Err(Errno::STALE));
        a.hears(Report::Refused { id, errno: Errno::STALE.raw_os_error(), message: "it has ended".into() });
        finished.await.unwrap();
        refused(&next(&mut camera.0.1), errno);
    }
    // A successor has another generation; who names the one before is told so.
    let successor = bind(&b, "brain", "planner");
    carry(&mut a, &mut b);
    assert!(successor.1.slot == planner.1.slot && successor.1.generation > planner.1.generation);
    refused(&ask(&a.broker, &mut camera.0, introduce(camera.1, &Whom::Address(planner.1))), Errno::STALE);
    let (finished, id, open) = begin(&mut a, camera.0.0, camera.1, &Whom::Name("planner".into()));
    assert_eq!(answer(&mut b, open), Ok(5));
    a.hears(Report::Opened { id });
    finished.await.unwrap();
    a.broker.lock().endpoints.check();
}

#[tokio::test]
async fn what_a_pair_that_another_node_asks_for_sends_belongs_to_the_domain_that_was_asked_for() {
    let (mut a, mut b) = nodes();
    let camera = bind(&a, "eye", "camera");
    let _planner = bind(&b, "brain", "planner");
    carry(&mut a, &mut b);
    let (_finished, _, open) = begin(&mut a, camera.0.0, camera.1, &Whom::Name("planner".into()));
    while b.orders.try_recv().is_ok() {}
    b.hears(Report::Asked { pair: 9, open });
    let belongs = b.orders.try_recv().unwrap().0;
    assert!(matches!(&belongs, Order::Belongs { pair: 9, name } if name == "shop/brain"), "{belongs:?}");
    assert!(matches!(b.orders.try_recv(), Ok((Order::Accept { pair: 9 }, _))));
}

#[tokio::test]
async fn a_name_is_waited_for_on_whatever_node_it_will_be_bound() {
    let (mut a, mut b) = nodes();
    let (camera, own, _) = bind(&a, "eye", "camera");
    let to = Whom::Name("planner".into());
    let (broker, waits) = (a.broker.clone(), to.clone());
    let waiting = tokio::spawn(async move { broker.endpoint_bound(camera.0, own.slot, &waits).await });
    tokio::task::yield_now().await;
    let (_planner, address, _) = bind(&b, "brain", "planner");
    assert!(!waiting.is_finished());
    carry(&mut a, &mut b);
    tokio::time::timeout(std::time::Duration::from_secs(20), waiting).await.unwrap().unwrap();
    let (_, _, open) = begin(&mut a, camera.0, own, &to);
    assert!(matches!(open, Open::Endpoints { to, .. } if to == address), "{open:?}");
}

#[tokio::test]
async fn what_another_node_says_of_endpoints_is_not_believed_by_itself() {
    let (a, mut b) = nodes();
    let (_camera, own, _) = bind(&a, "eye", "camera");
    let (mut planner, to, _) = bind(&b, "brain", "planner");
    let ring_bytes = topology(ENDPOINTS).ipc.ring_bytes;
    let good = |from: EndpointAddress, name: &str, domain: &str, to: EndpointAddress| Open::Endpoints {
        dc: "shop".into(),
        from,
        name: name.into(),
        domain: domain.into(),
        to,
        ring_bytes,
    };
    b.orders();
    let of_b = EndpointAddress { slot: to.slot + 1, ..to };
    let of_nobody = EndpointAddress { slot: 3 << 20 | 1, generation: 1 };
    let later = EndpointAddress { generation: to.generation + 1, ..to };
    let lies = [
        // An address of this node, of a third one, of nobody.
        (good(of_b, "camera", "eye", to), Errno::AGAIN),
        (good(of_nobody, "camera", "eye", to), Errno::AGAIN),
        (good(EndpointAddress { generation: 0, ..own }, "camera", "eye", to), Errno::AGAIN),
        // A domain that is not placed there, a name of another domain, or of none.
        (good(own, "", "brain", to), Errno::AGAIN),
        (good(own, "planner", "eye", to), Errno::AGAIN),
        (good(own, "nobody", "eye", to), Errno::AGAIN),
        // Somebody who is not here.
        (good(own, "camera", "eye", later), Errno::STALE),
        (good(own, "camera", "eye", of_b), Errno::STALE),
    ];
    for (open, errno) in lies {
        assert_eq!(answer(&mut b, open.clone()), Err(errno), "{open:?}");
    }
    let mut other = good(own, "camera", "eye", to);
    if let Open::Endpoints { ring_bytes, .. } = &mut other {
        *ring_bytes *= 2;
    }
    assert_eq!(answer(&mut b, other), Err(Errno::AGAIN));
    assert!(planner.1.try_recv().is_err(), "nobody was introduced");
    assert_eq!(answer(&mut b, good(own, "camera", "eye", to)), Ok(5));
    // What is said to be bound is not found where its domain is not placed, nor under an address of
    // another node.
    let (mut a, mut b) = nodes();
    let (mut camera, own, _) = bind(&a, "eye", "camera");
    let ask_for = |a: &Node, camera: &mut (MemberId, Mail)| {
        ask(&a.broker, camera, introduce(own, &Whom::Name("planner".into())))
    };
    for address in [own, of_nobody, EndpointAddress { slot: 2 << 20 | 1, generation: 0 }] {
        a.hears(Report::News { news: News::Bound { dc: "shop".into(), name: "planner".into(), address } });
        refused(&ask_for(&a, &mut camera), Errno::NOTCONN);
    }
    a.orders();
    b.orders();
}

#[tokio::test]
async fn two_that_ask_for_each_other_at_one_time_are_introduced_once() {
    let (mut a, mut b) = nodes();
    let camera = bind(&a, "eye", "camera");
    let mut planner = bind(&b, "brain", "planner");
    carry(&mut a, &mut b);
    let (first, id, open) = begin(&mut a, camera.0.0, camera.1, &Whom::Name("planner".into()));
    let (second, others_id, others) = begin(&mut b, planner.0.0, planner.1, &Whom::Name("camera".into()));
    assert_eq!(answer(&mut a, others), Err(Errno::ALREADY), "the first of both nodes has its way");
    assert_eq!(answer(&mut b, open), Ok(5));
    a.hears(Report::Opened { id });
    let errno = Errno::ALREADY.raw_os_error();
    b.hears(Report::Refused { id: others_id, errno, message: "later".into() });
    first.await.unwrap();
    second.await.unwrap();
    assert!(matches!(next(&mut planner.0.1), Reply::Event(Event::Introduced { .. })));
    refused(&next(&mut planner.0.1), Errno::ALREADY);
    for node in [&a, &b] {
        let inner = node.broker.lock();
        inner.endpoints.check();
        assert_eq!(inner.endpoints.table("shop").pair_count(), 1);
    }
}

#[tokio::test]
async fn both_hear_of_other_rights_and_of_the_end_of_the_file() {
    let (a, mut b, [mut camera, mut planner]) = met().await;
    let less = ENDPOINTS.replace("verbs = [\"send\"]", "verbs = [\"notify\"]");
    for node in [&a, &b] {
        node.broker.set_topology("shop", Some(topology(&less)));
    }
    let Reply::Event(Event::Rights { peer, rights, .. }) = next(&mut camera.0.1) else { panic!("no rights") };
    assert!(peer == planner.1 && rights.notify && !rights.send, "{rights:?}");
    let Reply::Event(Event::Rights { peer, rights, .. }) = next(&mut planner.0.1) else {
        panic!("no rights")
    };
    assert!(peer == camera.1 && rights.heeds && !rights.hears, "{rights:?}");
    b.broker.set_topology("shop", None);
    assert!(matches!(next(&mut planner.0.1), Reply::Event(Event::Unbound { .. })));
    // Its program may keep the channel.
    let parted = b.orders().into_iter().find(|(order, _)| matches!(order, Order::Part { .. }));
    assert!(
        matches!(&parted, Some((Order::Part { endpoints, .. }, _)) if *endpoints == [planner.1, camera.1]),
        "{parted:?}"
    );
    drop(a);
}

#[tokio::test]
async fn the_next_daemon_knows_where_names_are_and_tells_rights_of_pairs_that_live() {
    let (_a, mut b, [camera, planner]) = met().await;
    let kept = Kept::default();
    // The first daemon of node a has had this store, as far as tokens go: another one with the same
    // key is not to be had here, so the endpoint binds anew and only the names are looked at.
    let mut next_a = node("a", "b", kept, true);
    carry(&mut next_a, &mut b);
    let row = next_a
        .broker
        .endpoint_rows("shop")
        .into_iter()
        .find(|row| row.endpoint.as_deref() == Some("planner"));
    assert_eq!(row.unwrap().node.as_deref(), Some("b"));
    // The link is gone, and with it what was known.
    next_a.broker.proxy_left("b");
    let row = next_a
        .broker
        .endpoint_rows("shop")
        .into_iter()
        .find(|row| row.endpoint.as_deref() == Some("planner"));
    assert!(!row.unwrap().bound);
    drop((camera, planner));
}

#[tokio::test]
async fn who_is_on_another_node_now_is_parted_from() {
    let (mut a, _b, [camera, planner]) = met().await;
    a.orders();
    let moved = |_: &str, domain: &str| match domain {
        "eye" => Some("a".to_owned()),
        _ => Some("c".to_owned()),
    };
    a.broker.place("a", Arc::new(moved));
    let orders = a.orders();
    assert!(
        matches!(&orders[..], [(Order::Part { endpoints, .. }, _)] if *endpoints == [camera.1, planner.1]),
        "{orders:?}"
    );
    a.broker.lock().endpoints.check();
}
