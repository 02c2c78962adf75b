//! Buffers and grants, with their memories.

use super::*;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use sys::memfd::{Reach, check_granted};
use sys::region::Region;
use sys::view::View;
use wire::control::GrantAccess;
use wire::grants::{PLACE_FIRST, STATE_BYTES, STATE_DEAD, STATE_LIVE, STATE_REVOKED, offset_of};

const PLACE: u32 = PLACE_FIRST + 3;

fn say(broker: &Broker, member: &mut (MemberId, Mail), request: Request) -> (Reply, Vec<OwnedFd>) {
    broker.request(member.0, request, None, |_| Value::Null);
    let Outgoing { reply, descriptors, .. } = member.1.try_recv().unwrap();
    (reply, descriptors)
}

fn buffer(endpoint: EndpointAddress, bytes: u64) -> Request {
    Request::Buffer { id: 4, endpoint: endpoint.slot, bytes, replaces: 0 }
}

fn grant(endpoint: EndpointAddress, buffer: u64, to: EndpointAddress, access: GrantAccess) -> Request {
    Request::Grant { id: 5, endpoint: endpoint.slot, buffer, to, access, place: PLACE, grant: 0 }
}

fn borrow(endpoint: EndpointAddress, grant: u64) -> Request {
    Request::Borrow { id: 6, endpoint: endpoint.slot, grant }
}

fn revoke(endpoint: EndpointAddress, grant: u64) -> Request {
    Request::Revoke { id: 7, endpoint: endpoint.slot, grant }
}

/// The owner's part of a new buffer.
struct Made {
    number: u64,
    data: Region,
    states: Region,
}

fn made(broker: &Broker, member: &mut (MemberId, Mail), endpoint: EndpointAddress, bytes: u64) -> Made {
    let (reply, descriptors) = say(broker, member, buffer(endpoint, bytes));
    let Reply::Buffer { id: 4, buffer } = reply else { panic!("{reply:?}") };
    let [data, states] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
    let data = Region::map(&data, usize::try_from(bytes).unwrap()).unwrap();
    let states = Region::map(&states, STATE_BYTES).unwrap();
    states.store_u64(offset_of(PLACE).unwrap(), STATE_LIVE, Ordering::Release);
    Made { number: buffer, data, states }
}

fn granted(reply: Reply) -> u64 {
    let Reply::Granted { id: 5, grant } = reply else { panic!("{reply:?}") };
    grant
}

#[test]
fn a_grantee_reads_what_the_owner_writes_and_can_write_nothing() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let owned = made(&broker, &mut camera, camera_at, 5000);
    owned.data.copy_in(4990, b"seen");
    let number =
        granted(ask(&broker, &mut camera, grant(camera_at, owned.number, planner_at, GrantAccess::Read)));
    assert!(planner.1.try_recv().is_err(), "nobody is told of what he has not asked for");
    let (reply, descriptors) = say(&broker, &mut planner, borrow(planner_at, number));
    let Reply::Borrowed { id: 6, buffer } = reply else { panic!("{reply:?}") };
    assert_eq!((buffer.grant, buffer.owner, buffer.to, buffer.bytes), (number, camera_at, planner_at, 5000));
    assert_eq!((buffer.access, buffer.place), (GrantAccess::Read, PLACE));
    let [data, states] = <[OwnedFd; 2]>::try_from(descriptors).unwrap();
    assert_eq!(check_granted(&data, Reach::Read).unwrap(), Some(8192));
    assert_eq!(check_granted(&states, Reach::Read).unwrap(), Some(STATE_BYTES as u64));
    assert!(Region::map(&data, 4096).is_err() && Region::map(&states, STATE_BYTES).is_err());
    let mut seen = [0; 4];
    rustix::io::pread(&data, &mut seen, 4990).unwrap();
    assert_eq!(&seen, b"seen");
    // It ends with its owner: in memory, and by word.
    let view = View::map(&states, STATE_BYTES).unwrap();
    broker.leave(camera.0);
    assert_eq!(view.load_u64(offset_of(PLACE).unwrap(), Ordering::Acquire), STATE_DEAD);
    let event = next(&mut planner.1);
    assert_eq!(event, Reply::Event(Event::Revoked { endpoint: planner_at.slot, grant: number }));
    refused(&ask(&broker, &mut planner, borrow(planner_at, number)), Errno::OWNERDEAD);
}

#[test]
fn what_is_taken_back_is_over_and_what_moves_is_asked_for_again() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (mut planner, planner_at) = bound(&broker, "planner", "planner");
    let (one, two) = (made(&broker, &mut camera, camera_at, 64), made(&broker, &mut camera, camera_at, 64));
    let number =
        granted(ask(&broker, &mut camera, grant(camera_at, one.number, planner_at, GrantAccess::Write)));
    assert!(matches!(ask(&broker, &mut planner, borrow(planner_at, number)), Reply::Borrowed { .. }));
    let moved = Request::Grant {
        id: 5,
        endpoint: camera_at.slot,
        buffer: two.number,
        to: planner_at,
        access: GrantAccess::Write,
        place: PLACE,
        grant: number,
    };
    assert_eq!(granted(ask(&broker, &mut camera, moved)), number);
    let event = next(&mut planner.1);
    assert_eq!(event, Reply::Event(Event::Moved { endpoint: planner_at.slot, grant: number }));
    let Reply::Borrowed { buffer, .. } = ask(&broker, &mut planner, borrow(planner_at, number)) else {
        panic!()
    };
    assert_eq!(buffer.buffer, two.number);
    let free = Request::Free { id: 8, endpoint: camera_at.slot, buffer: one.number };
    assert_eq!(ask(&broker, &mut camera, free.clone()), Reply::Done { id: 8 });
    refused(&ask(&broker, &mut camera, free), Errno::NOENT);
    assert_eq!(ask(&broker, &mut camera, revoke(camera_at, number)), Reply::Done { id: 7 });
    assert_eq!(two.states.load_u64(offset_of(PLACE).unwrap(), Ordering::Acquire), STATE_REVOKED);
    let event = next(&mut planner.1);
    assert_eq!(event, Reply::Event(Event::Revoked { endpoint: planner_at.slot, grant: number }));
    refused(&ask(&broker, &mut planner, borrow(planner_at, number)), Errno::KEYREVOKED);
    refused(&ask(&broker, &mut camera, revoke(camera_at, number)), Errno::NOENT);
}

#[test]
fn a_third_party_needs_the_privilege_and_strangers_hear_of_nothing() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (_planner, planner_at) = bound(&broker, "planner", "planner");
    let (mut copier, copier_at) = bound(&broker, "desk", "copier");
    let (mut other, other_at) = bound(&broker, "desk", "");
    let owned = made(&broker, &mut camera, camera_at, 64);
    let number =
        granted(ask(&broker, &mut camera, grant(camera_at, owned.number, planner_at, GrantAccess::Read)));
    assert!(matches!(ask(&broker, &mut copier, borrow(copier_at, number)), Reply::Borrowed { .. }));
    refused(&ask(&broker, &mut other, borrow(other_at, number)), Errno::NOENT);
    refused(&ask(&broker, &mut camera, borrow(camera_at, number)), Errno::INVAL);
    // The file takes the privilege away.
    broker.set_topology("shop", Some(topology(&FILE.replace("copies = true", ""))));
    refused(&ask(&broker, &mut copier, borrow(copier_at, number)), Errno::NOENT);
    for request in
        [revoke(other_at, number), Request::Free { id: 8, endpoint: other_at.slot, buffer: owned.number }]
    {
        refused(&ask(&broker, &mut other, request), Errno::NOENT);
    }
}

#[test]
fn who_may_not_call_is_granted_nothing_and_neither_is_who_is_not_there() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (planner, planner_at) = bound(&broker, "planner", "planner");
    let (_other, other_at) = bound(&broker, "desk", "");
    let owned = made(&broker, &mut camera, camera_at, 64);
    let mut granted_to =
        |to| ask(&broker, &mut camera, grant(camera_at, owned.number, to, GrantAccess::Read));
    refused(&granted_to(other_at), Errno::PERM);
    refused(&granted_to(camera_at), Errno::INVAL);
    refused(&granted_to(EndpointAddress { slot: 77, generation: 1 }), Errno::NOTCONN);
    broker.leave(planner.0);
    refused(&granted_to(planner_at), Errno::STALE);
}

#[test]
fn memory_counts_for_its_container_until_its_owner_is_gone() {
    let broker = shop_with(&format!("{FILE}{LIMITS}"), no_channel, Kept::default());
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let first = made(&broker, &mut camera, camera_at, 40_000);
    let full = ask(&broker, &mut camera, buffer(camera_at, 40_000));
    refused(&full, Errno::NOSPC);
    assert!(message(&full).contains("`ipc.bytes`"), "{full:?}");
    made(&broker, &mut camera, camera_at, 1);
    let full = ask(&broker, &mut camera, buffer(camera_at, 1));
    refused(&full, Errno::USERS);
    assert!(message(&full).contains("`ipc.buffers`"), "{full:?}");
    // One that takes the place of another counts only when that is freed.
    let instead = Request::Buffer { id: 4, endpoint: camera_at.slot, bytes: 40_000, replaces: first.number };
    assert!(matches!(ask(&broker, &mut camera, instead), Reply::Buffer { .. }));
    for bytes in [0, u64::MAX] {
        refused(&ask(&broker, &mut camera, buffer(camera_at, bytes)), Errno::INVAL);
    }
    broker.leave(camera.0);
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    made(&broker, &mut camera, camera_at, 40_000);
}

#[test]
fn an_owner_that_seals_by_itself_grants_nothing() {
    let broker = shop();
    let (mut camera, camera_at) = bound(&broker, "camera", "camera");
    let (_planner, planner_at) = bound(&broker, "planner", "planner");
    let (reply, descriptors) = say(&broker, &mut camera, buffer(camera_at, 64));
    let Reply::Buffer { buffer: number, .. } = reply else { panic!("{reply:?}") };
    rustix::fs::fcntl_add_seals(&descriptors[0], rustix::fs::SealFlags::SEAL).unwrap();
    refused(&ask(&broker, &mut camera, grant(camera_at, number, planner_at, GrantAccess::Read)), Errno::IO);
}
