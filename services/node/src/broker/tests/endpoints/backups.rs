//! Backups: who may be one, who gets the place, and what is kept for them.

use super::*;

/// The file of the other tests, in which programs of `camera` and `planner` may back `planner`.
fn file() -> String {
    FILE.replace("[endpoint.camera]", "backups = [\"camera\", \"planner\"]\n[endpoint.camera]")
}

fn shop() -> Broker {
    shop_with(&file(), no_channel, Kept::default())
}

fn back_request(token: &str, peers: &[EndpointAddress]) -> Request {
    Request::Back { id: 1, name: "planner".into(), token: token.into(), peers: peers.to_vec() }
}

/// A program that stands by, where, and its token.
fn backup(broker: &Broker, domain: &str) -> ((MemberId, Mail), EndpointAddress, String) {
    let mut member = program(broker, domain);
    match ask(broker, &mut member, back_request("", &[])) {
        Reply::Bound { id: 1, address, token, copies: false } => (member, address, token),
        other => panic!("{other:?}"),
    }
}

fn promote(at: EndpointAddress, over: EndpointAddress, supersede: bool) -> Request {
    Request::Promote { id: 4, endpoint: at.slot, over: Some(over), continues: over.generation, supersede }
}

fn promoted(reply: Reply) -> (EndpointAddress, String) {
    match reply {
        Reply::Promoted { id: 4, address, token, .. } => (address, token),
        other => panic!("{other:?}"),
    }
}

fn release(primary: EndpointAddress, backup: EndpointAddress) -> Request {
    Request::Release { id: 5, endpoint: primary.slot, backup }
}

#[test]
fn a_backup_hears_its_primary_and_takes_its_place_when_that_has_ended() {
    let broker = shop();
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let (mut spare, spare_at, _) = backup(&broker, "camera");
    let primary = introduced(ask(&broker, &mut spare, to_name(spare_at, "planner")));
    let hears = EndpointRights { hears: true, heeds: true, ..EndpointRights::default() };
    assert_eq!((primary.address, primary.rights, primary.backup), (planner_at, hears, false));
    let told = introduced(next(&mut planner.1));
    let sends = EndpointRights { send: true, notify: true, ..EndpointRights::default() };
    assert_eq!((told.address, told.rights, told.backup), (spare_at, sends, true));
    refused(&ask(&broker, &mut spare, promote(spare_at, planner_at, false)), Errno::BUSY);
    broker.leave(planner.0);
    let (now, _) = promoted(ask(&broker, &mut spare, promote(spare_at, planner_at, false)));
    assert!(now.slot == planner_at.slot && now.generation > planner_at.generation);
    refused(&ask(&broker, &mut spare, unbind(spare_at)), Errno::BADF);
    // Whoever finds it now hears how far back it remembers.
    let mut desk = program(&broker, "desk");
    let desk_at = bind(&broker, &mut desk, "");
    let found = introduced(ask(&broker, &mut desk, to_name(desk_at, "planner")));
    assert_eq!((found.address, found.continues), (now, planner_at.generation));
    assert_eq!(found.domain, "camera");
}

#[test]
fn the_first_backup_that_asks_has_the_place_and_the_other_one_is_told() {
    let broker = shop();
    let (planner, planner_at) = bound(&broker, "planner", "planner");
    let (mut one, one_at, _) = backup(&broker, "camera");
    let (mut other, other_at, _) = backup(&broker, "planner");
    broker.leave(planner.0);
    let (now, _) = promoted(ask(&broker, &mut other, promote(other_at, planner_at, false)));
    for supersede in [false, true] {
        let late = ask(&broker, &mut one, promote(one_at, planner_at, supersede));
        refused(&late, Errno::STALE);
        assert!(message(&late).contains(&format!("generation {}", now.generation)), "{late:?}");
    }
    // Also when that one has ended again.
    broker.leave(other.0);
    refused(&ask(&broker, &mut one, promote(one_at, planner_at, false)), Errno::STALE);
    promoted(ask(&broker, &mut one, promote(one_at, now, false)));
}

#[test]
fn a_primary_that_runs_is_superseded_and_its_peers_are_told() {
    let broker = shop();
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    ask(&broker, &mut camera, to_name(camera_at, "planner"));
    let (mut spare, spare_at, _) = backup(&broker, "planner");
    ask(&broker, &mut spare, to_name(spare_at, "planner"));
    while planner.1.try_recv().is_ok() {}
    let (now, _) = promoted(ask(&broker, &mut spare, promote(spare_at, planner_at, true)));
    assert!(matches!(
        next(&mut camera.1),
        Reply::Event(Event::Superseded { endpoint, peer, by })
            if (endpoint, peer, by) == (camera_at.slot, planner_at, now)
    ));
    let Reply::Event(Event::Unbound { endpoint, message }) = next(&mut planner.1) else { panic!() };
    assert!(endpoint == planner_at.slot && message.contains("superseded"), "{message}");
    // It can do nothing as that endpoint any more, also not go on without its backup.
    refused(&ask(&broker, &mut planner, release(planner_at, spare_at)), Errno::BADF);
    assert!(spare.1.try_recv().is_err(), "the one that takes over is told nothing of it");
}

#[test]
fn a_backup_that_was_released_does_not_take_the_place_until_it_is_introduced_again() {
    let broker = shop();
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let (mut spare, spare_at, _) = backup(&broker, "camera");
    ask(&broker, &mut spare, to_name(spare_at, "planner"));
    while planner.1.try_recv().is_ok() {}
    assert_eq!(ask(&broker, &mut planner, release(planner_at, spare_at)), Reply::Done { id: 5 });
    let refusal = ask(&broker, &mut spare, promote(spare_at, planner_at, true));
    refused(&refusal, Errno::STALE);
    assert!(message(&refusal).contains("goes on without this backup"), "{refusal:?}");
    broker.leave(planner.0);
    refused(&ask(&broker, &mut spare, promote(spare_at, planner_at, false)), Errno::STALE);
    // Nobody waits for such a one: the name is free.
    let (_planner, again_at) = bound(&broker, "planner", "planner");
    introduced(ask(&broker, &mut spare, to_name(spare_at, "planner")));
    refused(&ask(&broker, &mut spare, promote(spare_at, again_at, false)), Errno::BUSY);
}

#[test]
fn a_name_is_kept_for_its_backups_when_its_program_has_ended() {
    let kept = Kept::default();
    let broker = shop_with(&file(), no_channel, kept.clone());
    let (planner, planner_at) = bound(&broker, "planner", "planner");
    let (mut spare, spare_at, _) = backup(&broker, "camera");
    let (_other, other_at, token) = backup(&broker, "planner");
    broker.leave(planner.0);
    let early = ask(&broker, &mut program(&broker, "planner"), bind_request("planner", ""));
    refused(&early, Errno::AGAIN);
    assert!(message(&early).contains("kept for its backups"), "{early:?}");
    promoted(ask(&broker, &mut spare, promote(spare_at, planner_at, false)));
    drop(broker);
    // The next daemon does not know yet who comes back: nobody begins anew.
    let next = shop_with(&file(), no_channel, kept);
    refused(&ask(&next, &mut program(&next, "planner"), bind_request("planner", "")), Errno::AGAIN);
    // The other backup comes back by its token.
    let mut again = program(&next, "planner");
    let Reply::Bound { address, .. } = ask(&next, &mut again, back_request(&token, &[])) else { panic!() };
    assert_eq!(address, other_at);
}

#[test]
fn whoever_has_taken_over_has_the_place_again_at_the_next_daemon() {
    let kept = Kept::default();
    let first = shop_with(&file(), no_channel, kept.clone());
    let (planner, planner_at) = bound(&first, "planner", "planner");
    let (mut spare, spare_at, _) = backup(&first, "camera");
    first.leave(planner.0);
    let (now, token) = promoted(ask(&first, &mut spare, promote(spare_at, planner_at, false)));
    drop(first);
    let second = shop_with(&file(), no_channel, kept);
    let mut spare = program(&second, "camera");
    let Reply::Bound { address, .. } = ask(&second, &mut spare, bind_request("planner", &token)) else {
        panic!("its domain is not the one that the name is placed in, and is a backup's");
    };
    assert_eq!(address, now);
    let says = Request::Continues { id: 6, endpoint: now.slot, from: planner_at.generation };
    assert_eq!(ask(&second, &mut spare, says), Reply::Done { id: 6 });
    // The file takes the right away: the endpoint ends.
    second.set_topology("shop", Some(topology(FILE)));
    assert!(matches!(next(&mut spare.1), Reply::Event(Event::Unbound { .. })));
}

#[test]
fn who_may_not_be_a_backup_is_told_what_to_do() {
    let broker = shop();
    let denied = ask(&broker, &mut program(&broker, "desk"), back_request("", &[]));
    refused(&denied, Errno::PERM);
    assert!(message(&denied).contains("add it to the endpoint's `backups`"), "{denied:?}");
    let typo = Request::Back { id: 1, name: "planer".into(), token: String::new(), peers: Vec::new() };
    let typo = ask(&broker, &mut program(&broker, "camera"), typo);
    refused(&typo, Errno::NOENT);
    assert!(message(&typo).contains("did you mean \"planner\"?"), "{typo:?}");
    let mut many: Vec<_> = (0..4).map(|_| backup(&broker, "camera")).collect();
    refused(&ask(&broker, &mut program(&broker, "camera"), back_request("", &[])), Errno::USERS);
    let (mut member, at, _) = many.pop().unwrap();
    // Not before its file allows it, and not after.
    broker.set_topology("shop", Some(topology(FILE)));
    let Reply::Event(Event::Unbound { endpoint, message }) = next(&mut member.1) else { panic!() };
    assert!(endpoint == at.slot && message.contains("`backups`"), "{message}");
    // An endpoint that is none has no primary.
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    refused(&ask(&broker, &mut camera, promote(camera_at, camera_at, true)), Errno::INVAL);
}
