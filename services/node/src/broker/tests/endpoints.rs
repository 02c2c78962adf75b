//! Endpoints: names, addresses, introductions, and what ends them.

mod backups;
mod buffers;
mod hostile;
mod random;
mod restart;
mod rights;

use super::*;
use crate::broker::testing::Kept;
use wire::control::{EndpointAddress, EndpointPeer, EndpointRights, Whom};

const FILE: &str = r#"
name = "shop"
[domain.planner]
kind = "container"
root = "host"
command = ["true"]
[domain.camera]
kind = "container"
root = "host"
command = ["true"]
[domain.desk]
kind = "container"
root = "host"
command = ["true"]
[endpoint.planner]
domain = "planner"
allow = [{ endpoints = ["camera"], verbs = ["send", "notify"] }, { domains = ["desk"], verbs = ["request"] }]
[endpoint.camera]
domain = "camera"
[endpoint.motor]
domain = "camera"
allow = [{ endpoints = ["planner"], verbs = ["request", "relay"] }]
[endpoint.copier]
domain = "desk"
copies = true
"#;

const LIMITS: &str = "[ipc]\nendpoints = 4\nanonymous_per_domain = 2\npairs = 2\nring_bytes = \"4KiB\"\nbytes = \"64KiB\"\nbuffers = 2\ngrants = 2\n";

fn shop() -> Broker {
    shop_with(FILE, no_channel, Kept::default())
}

fn shop_with(file: &str, make: MakeChannel, kept: Kept) -> Broker {
    let broker = Broker::new(make);
    broker.keep_numbers(Numbers::open(Box::new(kept), 0).unwrap());
    broker.set_topology("shop", Some(topology(file)));
    broker
}

fn program(broker: &Broker, domain: &str) -> (MemberId, Mail) {
    join(broker, domain, Role::Program, false)
}

fn bind_request(name: &str, token: &str) -> Request {
    Request::Bind { id: 1, name: name.into(), token: token.into(), peers: Vec::new() }
}

fn bind(broker: &Broker, member: &mut (MemberId, Mail), name: &str) -> EndpointAddress {
    match ask(broker, member, bind_request(name, "")) {
        Reply::Bound { id: 1, address, .. } => address,
        other => panic!("{other:?}"),
    }
}

fn introduce(endpoint: EndpointAddress, to: Whom) -> Request {
    Request::Introduce { id: 2, endpoint: endpoint.slot, to, wait_ms: 0 }
}

fn to_name(endpoint: EndpointAddress, name: &str) -> Request {
    introduce(endpoint, Whom::Name(name.into()))
}

fn to_address(endpoint: EndpointAddress, to: EndpointAddress) -> Request {
    introduce(endpoint, Whom::Address(to))
}

fn unbind(endpoint: EndpointAddress) -> Request {
    Request::Unbind { id: 3, endpoint: endpoint.slot }
}

fn introduced(reply: Reply) -> EndpointPeer {
    match reply {
        Reply::Introduced { id: 2, peer, .. } => peer,
        Reply::Event(Event::Introduced { peer, .. }) => peer,
        other => panic!("{other:?}"),
    }
}

fn message(reply: &Reply) -> &str {
    if let Reply::Refused { message, .. } = reply { message } else { panic!("{reply:?}") }
}

/// A program and its endpoint of that name.
fn bound(broker: &Broker, domain: &str, name: &str) -> ((MemberId, Mail), EndpointAddress) {
    let mut member = program(broker, domain);
    let address = bind(broker, &mut member, name);
    (member, address)
}

#[test]
fn a_name_is_bound_by_a_program_of_its_domain_one_at_a_time() {
    let broker = shop();
    let (mut first, one) = bound(&broker, "planner", "planner");
    let mut second = program(&broker, "planner");
    let busy = ask(&broker, &mut second, bind_request("planner", ""));
    refused(&busy, Errno::BUSY);
    assert!(message(&busy).contains("one at a time"), "{busy:?}");
    refused(&ask(&broker, &mut program(&broker, "desk"), bind_request("planner", "")), Errno::PERM);
    let typo = ask(&broker, &mut second, bind_request("planer", ""));
    refused(&typo, Errno::NOENT);
    assert!(message(&typo).contains("did you mean \"planner\"?"), "{typo:?}");
    assert_eq!(ask(&broker, &mut first, unbind(one)), Reply::Done { id: 3 });
    refused(&ask(&broker, &mut first, unbind(one)), Errno::BADF);
    let two = bind(&broker, &mut second, "planner");
    assert!(two.slot == one.slot && two.generation > one.generation, "{one:?} {two:?}");
    // The end of the connection is the end of the endpoint.
    broker.leave(second.0);
    let three = bind(&broker, &mut first, "planner");
    assert!(three.slot == one.slot && three.generation > two.generation);
}

#[test]
fn an_endpoint_may_have_no_name_and_its_slot_is_used_again() {
    let broker = shop();
    let mut desk = program(&broker, "desk");
    let one = bind(&broker, &mut desk, "");
    let two = bind(&broker, &mut desk, "");
    assert_ne!(one.slot, two.slot);
    ask(&broker, &mut desk, unbind(one));
    let three = bind(&broker, &mut desk, "");
    assert!(three.slot == one.slot && three.generation > one.generation);
    refused(
        &ask(&broker, &mut join(&broker, "desk", Role::Frontend, false), bind_request("", "")),
        Errno::PERM,
    );
}

#[test]
fn both_of_a_pair_hear_of_each_other_and_what_they_may() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let early = ask(&broker, &mut camera, to_name(camera_at, "planner"));
    refused(&early, Errno::NOTCONN);
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let peer = introduced(ask(&broker, &mut camera, to_name(camera_at, "planner")));
    let rights = EndpointRights { send: true, notify: true, ..EndpointRights::default() };
    let expected = EndpointPeer {
        address: planner_at,
        name: "planner".into(),
        domain: "planner".into(),
        rights,
        continues: 0,
        backup: false,
    };
    assert_eq!(peer, expected);
    let Reply::Event(Event::Introduced { endpoint, peer, .. }) = next(&mut planner.1) else { panic!() };
    let rights = EndpointRights { hears: true, heeds: true, ..EndpointRights::default() };
    assert_eq!(endpoint, planner_at.slot);
    assert_eq!(
        peer,
        EndpointPeer {
            address: camera_at,
            name: "camera".into(),
            domain: "camera".into(),
            rights,
            continues: 0,
            backup: false
        }
    );
    // Either may ask, and there is one pair.
    refused(&ask(&broker, &mut camera, to_address(camera_at, planner_at)), Errno::ALREADY);
    refused(&ask(&broker, &mut planner, to_name(planner_at, "camera")), Errno::ALREADY);
    assert!(planner.1.try_recv().is_err());
}

#[test]
fn one_without_a_name_makes_itself_known_and_is_called_by_those_it_may_call() {
    let broker = shop();
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let (mut desk, desk_at) = bound(&broker, "desk", "");
    let shy = ask(&broker, &mut planner, to_address(planner_at, desk_at));
    refused(&shy, Errno::PERM);
    assert!(message(&shy).contains("has no name"), "{shy:?}");
    let rights = introduced(ask(&broker, &mut desk, to_name(desk_at, "planner"))).rights;
    let expected = EndpointRights {
        request: true,
        hears: true,
        answers: true,
        heeds: true,
        ..EndpointRights::default()
    };
    assert_eq!(rights, expected);
    let peer = introduced(next(&mut planner.1));
    let expected = EndpointRights {
        send: true,
        request: true,
        notify: true,
        answers: true,
        ..EndpointRights::default()
    };
    assert_eq!((peer.name.as_str(), peer.rights), ("", expected));
    // Nobody without a name is introduced to another one.
    let (mut other, other_at) = bound(&broker, "desk", "");
    refused(&ask(&broker, &mut other, to_address(other_at, desk_at)), Errno::PERM);
}

#[test]
fn who_is_not_there_not_allowed_not_known_or_oneself_is_refused_by_name() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (_planner, planner_at) = bound(&broker, "planner", "planner");
    let (_motor, motor_at) = bound(&broker, "camera", "motor");
    let mut try_ = |request| ask(&broker, &mut camera, request);
    let unknown = try_(to_name(camera_at, "plannr"));
    refused(&unknown, Errno::NOENT);
    assert!(message(&unknown).contains("did you mean \"planner\"?"), "{unknown:?}");
    let stranger = try_(to_name(camera_at, "nobody-at-all"));
    // It hears of those alone that it may know.
    assert!(!message(&stranger).contains("motor") && !message(&stranger).contains("copier"), "{stranger:?}");
    refused(&try_(to_name(camera_at, "camera")), Errno::INVAL);
    refused(&try_(to_address(camera_at, camera_at)), Errno::INVAL);
    let forbidden = try_(to_name(camera_at, "motor"));
    refused(&forbidden, Errno::PERM);
    assert!(message(&forbidden).contains("allows endpoint camera nothing"), "{forbidden:?}");
    refused(&try_(to_address(camera_at, motor_at)), Errno::PERM);
    let nobody = EndpointAddress { slot: 4000, generation: 1 };
    refused(&try_(to_address(camera_at, nobody)), Errno::NOTCONN);
    let not_mine =
        Request::Introduce { id: 2, endpoint: planner_at.slot, to: Whom::Name("motor".into()), wait_ms: 0 };
    refused(&try_(not_mine), Errno::BADF);
}

#[test]
fn an_earlier_generation_is_told_from_the_one_that_is_there() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (planner, before) = bound(&broker, "planner", "planner");
    broker.leave(planner.0);
    let gone = ask(&broker, &mut camera, to_address(camera_at, before));
    refused(&gone, Errno::STALE);
    let (_again, after) = bound(&broker, "planner", "planner");
    let stale = ask(&broker, &mut camera, to_address(camera_at, before));
    refused(&stale, Errno::STALE);
    let there = format!("planner ({}.{}) is bound now", after.slot, after.generation);
    assert!(message(&stale).contains(&there) && message(&stale).contains("has ended"), "{stale:?}");
    // Nobody says of one that is still to come that it has ended.
    let to_come = EndpointAddress { generation: after.generation + 1, ..after };
    let early = ask(&broker, &mut camera, to_address(camera_at, to_come));
    refused(&early, Errno::STALE);
    assert!(message(&early).contains(&there) && !message(&early).contains("has ended"), "{early:?}");
    let peer = introduced(ask(&broker, &mut camera, to_address(camera_at, after)));
    assert_eq!(peer.address, after);
}

#[test]
fn a_pair_ends_with_either_endpoint_and_there_may_be_another_one() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    for _ in 0..3 {
        let (planner, _) = bound(&broker, "planner", "planner");
        introduced(ask(&broker, &mut camera, to_name(camera_at, "planner")));
        broker.leave(planner.0);
    }
    let inner = broker.lock();
    let table = inner.endpoints.table("shop");
    assert_eq!((table.pair_count(), table.bound_count()), (0, 1));
}

#[test]
fn limits_refuse_and_name_the_key() {
    let broker = shop_with(&format!("{FILE}{LIMITS}"), crate_channel, Kept::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _context = runtime.enter();
    let mut desk = program(&broker, "desk");
    let (one, two) = (bind(&broker, &mut desk, ""), bind(&broker, &mut desk, ""));
    let full = ask(&broker, &mut desk, bind_request("", ""));
    refused(&full, Errno::MFILE);
    assert!(
        message(&full).contains("2 endpoints without a name")
            && message(&full).contains("`ipc.anonymous_per_domain`")
    );
    let (_planner, _) = bound(&broker, "planner", "planner");
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let full = ask(&broker, &mut camera, bind_request("motor", ""));
    refused(&full, Errno::USERS);
    assert!(message(&full).contains("4 endpoints are bound") && message(&full).contains("`ipc.endpoints`"));
    introduced(ask(&broker, &mut desk, to_name(one, "planner")));
    introduced(ask(&broker, &mut desk, to_name(two, "planner")));
    let full = ask(&broker, &mut camera, to_name(camera_at, "planner"));
    refused(&full, Errno::USERS);
    assert!(message(&full).contains("`ipc.pairs`"), "{full:?}");
    let larger = LIMITS.replace("pairs = 2", "pairs = 8").replace("\"4KiB\"", "\"32KiB\"");
    broker.set_topology("shop", Some(topology(&format!("{FILE}{larger}"))));
    let full = ask(&broker, &mut camera, to_name(camera_at, "planner"));
    refused(&full, Errno::NOSPC);
    assert!(
        message(&full).contains("a pair takes 69632 bytes") && message(&full).contains("`ipc.bytes`"),
        "{full:?}"
    );
}

fn crate_channel(shape: Shape) -> io::Result<Ends> {
    crate::broker::make_channel(shape)
}
