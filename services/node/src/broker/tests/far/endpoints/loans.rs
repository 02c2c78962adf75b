//! Grants between nodes: who is granted, who is lent to, and who hears of the end.

use super::*;
use wire::control::GrantAccess;
use wire::grants::{PLACE_FIRST, node_of_grant};

/// A buffer of the planner, on node b, that is granted to the camera, on node a.
fn granted(b: &Node, planner: &mut ((MemberId, Mail), EndpointAddress, String), to: EndpointAddress) -> u64 {
    let endpoint = planner.1.slot;
    let make = Request::Buffer { id: 4, endpoint, bytes: 4096, replaces: 0 };
    let Reply::Buffer { buffer, .. } = ask(&b.broker, &mut planner.0, make) else { panic!("no buffer") };
    let grant = Request::Grant {
        id: 5,
        endpoint,
        buffer,
        to,
        access: GrantAccess::Read,
        place: PLACE_FIRST,
        grant: 0,
    };
    match ask(&b.broker, &mut planner.0, grant) {
        Reply::Granted { grant, .. } => grant,
        other => panic!("{other:?}"),
    }
}

/// Begins to borrow on node a, and gives back what its proxy is ordered.
fn borrow(
    a: &mut Node,
    id: MemberId,
    own: EndpointAddress,
    grant: u64,
) -> (tokio::task::JoinHandle<()>, u64, Open) {
    let loan = a.broker.borrow_far(id, (6, own.slot, grant)).expect("it is far");
    let broker = a.broker.clone();
    let room = Arc::new(tokio::sync::Semaphore::new(1)).try_acquire_owned().unwrap();
    let finished = tokio::spawn(async move { broker.finish_loan(id, loan, room).await });
    let (Order::Open { id, open }, end) = a.orders.try_recv().unwrap() else { panic!("no open") };
    assert_eq!(end.len(), 5);
    (finished, id, open)
}

/// The answer of node b: memories that it lends.
fn lends(b: &mut Node, open: Open) -> Result<usize, Errno> {
    b.hears(Report::Asked { pair: 9, open });
    match b.orders().remove(0) {
        (Order::Lend { pair: 9, .. }, memories) => Ok(memories.len()),
        (Order::Refuse { pair: 9, errno, .. }, _) => Err(Errno::from_raw_os_error(errno)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_granted_to_an_endpoint_of_another_node_is_lent_to_it_until_it_is_taken_back() {
    let (mut a, mut b, [mut camera, mut planner]) = met().await;
    let grant = granted(&b, &mut planner, camera.1);
    assert_eq!(node_of_grant(grant), 2);
    let (finished, id, open) = borrow(&mut a, camera.0.0, camera.1, grant);
    assert!(
        matches!(&open, Open::Grant { grant: asked, from, name, .. } if *asked == grant && *from == camera.1 && name == "camera")
    );
    assert_eq!(lends(&mut b, open), Ok(2));
    a.hears(Report::Opened { id });
    finished.await.unwrap();
    let lent = camera.0.1.try_recv().unwrap();
    assert!(matches!(lent.reply, Reply::Lent { id: 6, grant: of, .. } if of == grant), "{:?}", lent.reply);
    assert_eq!(lent.descriptors.len(), 5);
    for node in [&a, &b] {
        node.broker.lock().endpoints.check();
    }
    // The owner takes it back: the proxy of the node that has borrowed it is told.
    let revoke = Request::Revoke { id: 7, endpoint: planner.1.slot, grant };
    assert!(matches!(ask(&b.broker, &mut planner.0, revoke), Reply::Done { .. }));
    let (dc, endpoint) = ("shop".to_owned(), camera.1);
    assert_eq!(b.orders().remove(0).0, Order::Recall { dc, grant, endpoint });
    let (finished, id, open) = borrow(&mut a, camera.0.0, camera.1, grant);
    assert_eq!(lends(&mut b, open), Err(Errno::KEYREVOKED));
    let errno = Errno::KEYREVOKED.raw_os_error();
    a.hears(Report::Refused { id, errno, message: "it is over".into() });
    finished.await.unwrap();
    refused(&next(&mut camera.0.1), Errno::KEYREVOKED);
    // The owner ends.
    let second = granted(&b, &mut planner, camera.1);
    b.broker.leave(planner.0.0);
    b.orders();
    let (_, _, open) = borrow(&mut a, camera.0.0, camera.1, second);
    assert_eq!(lends(&mut b, open), Err(Errno::OWNERDEAD));
}

#[tokio::test]
async fn nobody_else_is_lent_what_was_granted_and_nobody_is_granted_who_is_not_there() {
    let (a, mut b, [camera, mut planner]) = met().await;
    let grant = granted(&b, &mut planner, camera.1);
    let asks = |from: EndpointAddress, name: &str, domain: &str, grant| Open::Grant {
        dc: "shop".into(),
        grant,
        from,
        name: name.into(),
        domain: domain.into(),
    };
    let other = |slot, generation| EndpointAddress { slot, generation };
    for (open, errno) in [
        (asks(other(camera.1.slot, camera.1.generation + 1), "camera", "eye", grant), Errno::NOENT),
        (asks(other(camera.1.slot + 1, 1), "", "eye", grant), Errno::NOENT),
        (asks(camera.1, "camera", "eye", grant + 1), Errno::NOENT),
        // What is not of that node, or not placed there.
        (asks(other(3 << 20 | 1, 1), "camera", "eye", grant), Errno::AGAIN),
        (asks(planner.1, "planner", "brain", grant), Errno::AGAIN),
        (asks(camera.1, "camera", "brain", grant), Errno::AGAIN),
    ] {
        let text = format!("{open:?}");
        assert_eq!(lends(&mut b, open), Err(errno), "{text}");
    }
    assert_eq!(lends(&mut b, asks(camera.1, "camera", "eye", grant)), Ok(2));
    // The grantee ends, and its grants with it; its address is granted nothing any more.
    let news = News::Unbound { dc: "shop".into(), name: "camera".into(), address: camera.1 };
    b.hears(Report::News { news });
    assert_eq!(lends(&mut b, asks(camera.1, "camera", "eye", grant)), Err(Errno::KEYREVOKED));
    let nobody = other(1 << 20 | 77, 1);
    let make = Request::Buffer { id: 4, endpoint: planner.1.slot, bytes: 1, replaces: 0 };
    let Reply::Buffer { buffer, .. } = ask(&b.broker, &mut planner.0, make) else { panic!("no buffer") };
    let grant = Request::Grant {
        id: 5,
        endpoint: planner.1.slot,
        buffer,
        to: nobody,
        access: GrantAccess::Read,
        place: PLACE_FIRST,
        grant: 0,
    };
    refused(&ask(&b.broker, &mut planner.0, grant), Errno::NOTCONN);
    drop(a);
}

#[tokio::test]
async fn a_grant_of_a_node_that_there_is_no_link_to_is_asked_for_again() {
    let (a, _b, [mut camera, _planner]) = met().await;
    let of = |node: u64| node << wire::grants::GRANT_BITS | 1;
    let borrow = |grant| Request::Borrow { id: 6, endpoint: camera.1.slot, grant };
    assert!(a.broker.borrow_far(camera.0.0, (6, camera.1.slot, of(3))).is_none());
    let (there_is_none, far) = (borrow(of(1)), borrow(of(3)));
    refused(&ask(&a.broker, &mut camera.0, far), Errno::AGAIN);
    refused(&ask(&a.broker, &mut camera.0, there_is_none), Errno::NOENT);
}

#[tokio::test]
async fn pairs_with_other_nodes_are_known_again_to_the_next_daemon_where_the_proxy_has_them() {
    let kept = Kept::default();
    let (mut a, mut b) = (node("a", "b", Kept::default(), false), node("b", "a", kept.clone(), false));
    a.up(false);
    b.up(false);
    carry(&mut a, &mut b);
    let camera = bind(&a, "eye", "camera");
    let planner = bind(&b, "brain", "planner");
    carry(&mut a, &mut b);
    let (_, _, open) = begin(&mut a, camera.0.0, camera.1, &Whom::Name("planner".into()));
    assert_eq!(answer(&mut b, open), Ok(5));
    // The daemon of node b dies; its proxy, the pair and both programs live.
    drop(b);
    let mut next_b = node("b", "a", kept, true);
    carry(&mut a, &mut next_b);
    let mut again = join(&next_b.broker, "brain", Role::Program, false);
    let (name, token) = ("planner".to_owned(), planner.2.clone());
    let request = Request::Bind { id: 1, name, token, peers: vec![camera.1] };
    assert!(
        matches!(ask(&next_b.broker, &mut again, request), Reply::Bound { address, .. } if address == planner.1)
    );
    let pairs = |node: &Node| node.broker.lock().endpoints.table("shop").pair_count();
    assert_eq!(pairs(&next_b), 0);
    let carries = Report::Carries {
        dc: "shop".into(),
        near: planner.1,
        far: camera.1,
        name: "camera".into(),
        domain: "eye".into(),
    };
    next_b.hears(carries);
    assert_eq!(pairs(&next_b), 1);
    next_b.broker.lock().endpoints.check();
    let shown = next_b.broker.endpoint("shop", "planner").unwrap();
    assert_eq!(
        (&shown["peers"][0]["endpoint"], &shown["peers"][0]["node"], &shown["peer_count"]),
        (&json!("camera"), &json!("a"), &json!(1))
    );
    next_b.hears(Report::Parted { dc: "shop".into(), near: planner.1, far: camera.1 });
    assert_eq!(pairs(&next_b), 0);
    next_b.broker.lock().endpoints.check();
}
