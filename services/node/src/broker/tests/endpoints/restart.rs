//! Daemons that follow each other.

use super::*;

fn token_of(broker: &Broker, member: &mut (MemberId, Mail), name: &str) -> (EndpointAddress, String) {
    match ask(broker, member, bind_request(name, "")) {
        Reply::Bound { address, token, .. } => (address, token),
        other => panic!("{other:?}"),
    }
}

fn again(name: &str, token: &str, peers: &[EndpointAddress]) -> Request {
    Request::Bind { id: 1, name: name.into(), token: token.into(), peers: peers.to_vec() }
}

fn same(reply: Reply, expected: EndpointAddress) {
    let Reply::Bound { address, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(address, expected);
}

#[test]
fn an_endpoint_is_the_same_again_at_the_next_daemon_and_its_successor_is_another() {
    let kept = Kept::default();
    let first = shop_with(FILE, no_channel, kept.clone());
    let (named, token) = token_of(&first, &mut program(&first, "planner"), "planner");
    let (unnamed, other) = token_of(&first, &mut program(&first, "desk"), "");
    drop(first);
    let second = shop_with(FILE, no_channel, kept.clone());
    let mut planner = program(&second, "planner");
    same(ask(&second, &mut planner, again("planner", &token, &[])), named);
    let mut desk = program(&second, "desk");
    same(ask(&second, &mut desk, again("", &other, &[])), unnamed);
    // The same token twice, and one whose endpoint has ended here.
    refused(&ask(&second, &mut program(&second, "planner"), again("planner", &token, &[])), Errno::BUSY);
    second.leave(planner.0);
    refused(&ask(&second, &mut program(&second, "planner"), again("planner", &token, &[])), Errno::STALE);
    let (_again, after) = bound(&second, "planner", "planner");
    assert!(after.slot == named.slot && after.generation > named.generation);
    second.leave(desk.0);
    refused(&ask(&second, &mut program(&second, "desk"), again("", &other, &[])), Errno::STALE);
    // The third daemon believes neither the first one's tokens nor gives its numbers.
    drop(second);
    let third = shop_with(FILE, no_channel, kept);
    let (_last, last) = bound(&third, "planner", "planner");
    assert!(last.slot == named.slot && last.generation > after.generation);
    refused(&ask(&third, &mut program(&third, "planner"), again("planner", &token, &[])), Errno::BUSY);
}

#[test]
fn whoever_was_faster_has_the_name() {
    let kept = Kept::default();
    let first = shop_with(FILE, no_channel, kept.clone());
    let (_, token) = token_of(&first, &mut program(&first, "planner"), "planner");
    let second = shop_with(FILE, no_channel, kept);
    let (new, _) = bound(&second, "planner", "planner");
    refused(&ask(&second, &mut program(&second, "planner"), again("planner", &token, &[])), Errno::BUSY);
    second.leave(new.0);
    refused(&ask(&second, &mut program(&second, "planner"), again("planner", &token, &[])), Errno::STALE);
}

#[test]
fn a_token_is_of_no_use_to_others() {
    let kept = Kept::default();
    let first = shop_with(FILE, no_channel, kept.clone());
    let (_, token) = token_of(&first, &mut program(&first, "planner"), "planner");
    let (_, unnamed) = token_of(&first, &mut program(&first, "desk"), "");
    let second = shop_with(FILE, no_channel, kept);
    let mut camera = program(&second, "camera");
    refused(&ask(&second, &mut camera, again("camera", &token, &[])), Errno::ACCESS);
    refused(&ask(&second, &mut camera, again("", &unnamed, &[])), Errno::ACCESS);
    refused(&ask(&second, &mut camera, again("planner", &token, &[])), Errno::PERM);
    let mut planner = program(&second, "planner");
    refused(&ask(&second, &mut planner, again("planner", "1.1.1.00", &[])), Errno::ACCESS);
    refused(&ask(&second, &mut planner, again("", &token, &[])), Errno::ACCESS);
}

#[test]
fn pairs_of_an_earlier_daemon_are_known_again_when_both_say_so() {
    let kept = Kept::default();
    let first = shop_with(FILE, no_channel, kept.clone());
    let (camera_at, camera_token) = token_of(&first, &mut program(&first, "camera"), "camera");
    let (planner_at, planner_token) = token_of(&first, &mut program(&first, "planner"), "planner");
    let second = shop_with(FILE, no_channel, kept);
    let (mut camera, mut planner) = (program(&second, "camera"), program(&second, "planner"));
    let stranger = EndpointAddress { slot: 99, generation: 9 };
    same(ask(&second, &mut camera, again("camera", &camera_token, &[stranger, planner_at])), camera_at);
    // The other has not come back, and the channel with it lives: it is what the file says.
    let Reply::Event(Event::Rights { peer, .. }) = next(&mut camera.1) else { panic!() };
    assert_eq!(peer, planner_at);
    assert!(camera.1.try_recv().is_err());
    let reply =
        second_bind(&second, &mut planner, again("planner", &planner_token, &[camera_at]), planner_at);
    assert_eq!(reply.0, camera_at);
    assert!(reply.1.hears && reply.1.heeds);
    let Reply::Event(Event::Rights { peer, rights, .. }) = next(&mut camera.1) else { panic!() };
    assert!(peer == planner_at && rights.send && rights.notify);
    // A file that changes is told to them.
    let none = FILE.replace(r#"{ endpoints = ["camera"], verbs = ["send", "notify"] }, "#, "");
    second.set_topology("shop", Some(topology(&none)));
    assert!(
        matches!(next(&mut camera.1), Reply::Event(Event::Rights { rights, .. }) if rights == EndpointRights::default())
    );
    // One that has lost it after all asks again.
    second.set_topology("shop", Some(topology(FILE)));
    while camera.1.try_recv().is_ok() {}
    assert_eq!(introduced(ask(&second, &mut camera, to_name(camera_at, "planner"))).address, planner_at);
    refused(&ask(&second, &mut camera, to_name(camera_at, "planner")), Errno::ALREADY);
}

#[test]
fn whoever_has_not_come_back_is_told_of_when_the_file_takes_rights_away() {
    let kept = Kept::default();
    let first = shop_with(FILE, no_channel, kept.clone());
    let (camera_at, _) = token_of(&first, &mut program(&first, "camera"), "camera");
    let (unnamed_at, _) = token_of(&first, &mut program(&first, "desk"), "");
    let (planner_at, token) = token_of(&first, &mut program(&first, "planner"), "planner");
    let none = FILE.replace(r#"{ endpoints = ["camera"], verbs = ["send", "notify"] }, "#, "");
    let gone = none.replace("[endpoint.camera]\ndomain = \"camera\"\n", "");
    let mut reply = None;
    for after in [&none, &gone] {
        let second = shop_with(FILE, no_channel, kept.clone());
        let mut planner = program(&second, "planner");
        let request = again("planner", &token, &[camera_at, unnamed_at]);
        let told = second_bind(&second, &mut planner, request, planner_at);
        assert!(
            told.0 == camera_at && told.1.hears && told.1.heeds,
            "its channel lives: it is what the file says"
        );
        assert!(planner.1.try_recv().is_err());
        second.set_topology("shop", Some(topology(after)));
        assert_eq!(
            next(&mut planner.1),
            Reply::Event(Event::Rights {
                endpoint: planner_at.slot,
                peer: camera_at,
                rights: EndpointRights::default()
            })
        );
        assert!(planner.1.try_recv().is_err(), "it is told once, and nothing of whom nobody knows");
        reply = Some(second);
    }
    // And whoever comes back after the file has changed.
    let last = reply.unwrap();
    let mut planner = program(&last, "planner");
    refused(&ask(&last, &mut planner, again("planner", &token, &[camera_at])), Errno::BUSY);
}

/// The reply to a bind, which comes before or after what else is told.
fn second_bind(
    broker: &Broker,
    member: &mut (MemberId, Mail),
    request: Request,
    expected: EndpointAddress,
) -> (EndpointAddress, EndpointRights) {
    broker.request(member.0, request, None, |_| Value::Null);
    same(next(&mut member.1), expected);
    let Reply::Event(Event::Rights { peer, rights, .. }) = next(&mut member.1) else { panic!("no rights") };
    (peer, rights)
}
