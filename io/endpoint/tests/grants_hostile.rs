//! Grants between endpoints of which one is hostile, or dies: it harms itself.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod members;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use endpoint::{Access, Buffer, CopyError, Endpoint, Failed, From, GrantId, Options};
use members::{Bed, shortly, soon};
use proptest::prelude::*;
use rustix::fs::{FallocateFlags, SealFlags};
use session::{Control, Grant, Memories};
use sys::region::Region;
use wire::control::{EndpointAddress, GrantAccess};
use wire::grants::{PLACE_FIRST, STATE_LIVE, STATE_MOVED, offset_of};

/// Says to the test `child` what it is to do; the folder of the daemon's socket stands beside it.
const ROLE: &str = "TOMBOLO_TEST_ROLE";
const CONTROL: &str = "TOMBOLO_CONTROL";
const BYTES: usize = 1 << 20;

fn answer_by() -> Instant {
    soon().unwrap()
}

/// A member that speaks with the daemon as it likes.
fn raw(bed: &Bed, name: &str) -> (Control, EndpointAddress) {
    let mut control = Control::connect(&bed.options().control.unwrap()).unwrap();
    let bound = control.bind(name, "", answer_by()).unwrap();
    (control, bound.address)
}

fn of(address: EndpointAddress) -> endpoint::Address {
    endpoint::Address { slot: address.slot, generation: address.generation }
}

fn on_wire(address: endpoint::Address) -> EndpointAddress {
    EndpointAddress { slot: address.slot, generation: address.generation }
}

/// A grant of a hostile owner: its states and data are the test's to write.
fn lied(
    bed: &Bed,
    owner: &str,
    to: endpoint::Address,
    access: GrantAccess,
) -> (Control, Memories, Region, Region, GrantId) {
    let (mut control, address) = raw(bed, owner);
    let (buffer, memories) = control.buffer(address.slot, 8192, answer_by()).unwrap();
    let (data, states) =
        (Region::map(&memories.data, 8192).unwrap(), Region::map(&memories.states, 4096).unwrap());
    let grant = Grant { buffer, to: on_wire(to), access, place: PLACE_FIRST, grant: 0 };
    let grant = control.grant(address.slot, grant, answer_by()).unwrap();
    (control, memories, data, states, GrantId::new(grant))
}

#[test]
fn a_grantee_can_write_no_state_and_change_no_size() {
    let bed = Bed::new();
    let mut owner = bed.bind("owner");
    let (mut control, address) = raw(&bed, "hostile");
    for access in [Access::Read, Access::Write] {
        let mut buffer = owner.buffer(8192, access).unwrap();
        buffer.write(0, &[7; 8192]).unwrap();
        let grant = owner.grant(&mut buffer, of(address)).unwrap();
        let (_, memories) = control.borrow_grant(address.slot, grant.number(), answer_by()).unwrap();
        assert!(Region::map(&memories.states, 4096).is_err());
        assert!(rustix::io::pwrite(&memories.states, &[0; 8], 16).is_err());
        for memory in [&memories.data, &memories.states] {
            for size in [0, 100, 1 << 20] {
                assert!(rustix::fs::ftruncate(memory, size).is_err());
            }
            for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
                assert!(rustix::fs::fcntl_add_seals(memory, seal).is_err());
            }
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&memories.states, hole, 0, 4096).is_err());
        let punched = rustix::fs::fallocate(&memories.data, hole, 0, 4096).is_ok();
        let written =
            Region::map(&memories.data, 8192).map(|region| region.copy_in(4096, &[9; 4096])).is_ok();
        assert_eq!((punched, written), (access == Access::Write, access == Access::Write));
        let mut bytes = [0; 8192];
        buffer.read(0, &mut bytes).unwrap();
        let expected = if access == Access::Write { ([0; 4096], [9; 4096]) } else { ([7; 4096], [7; 4096]) };
        assert_eq!((&bytes[..4096], &bytes[4096..]), (&expected.0[..], &expected.1[..]));
        // And what it still has mapped after the revoke changes nothing.
        let late = Region::map(&memories.data, 8192).ok();
        owner.revoke(&mut buffer, grant).unwrap();
        if let Some(late) = late {
            late.copy_in(0, &[1; 8192]);
        }
        let mut now = [0; 8192];
        buffer.read(0, &mut now).unwrap();
        assert_eq!(now, bytes);
    }
}

#[test]
fn an_owner_that_says_it_moves_and_does_not_costs_the_copy_its_time() {
    let bed = Bed::new();
    let mut other = bed.bind("other");
    let (_control, _memories, _data, states, grant) =
        lied(&bed, "hostile", other.address(), GrantAccess::Write);
    let place = offset_of(PLACE_FIRST).unwrap();
    for mapped in [false, true] {
        states.store_u64(place, STATE_MOVED, Ordering::SeqCst);
        let late = other.copy_out(b"x", grant, 0, shortly());
        assert!(matches!(late, Err(Failed::Call(CopyError::TimedOut(..)))), "{mapped}: {late:?}");
        states.store_u64(place, STATE_LIVE, Ordering::SeqCst);
        other.copy_out(b"x", grant, 0, soon()).unwrap();
    }
    for lie in [0, 5, u64::MAX] {
        states.store_u64(place, lie, Ordering::SeqCst);
        let over = other.copy_out(b"x", grant, 0, soon());
        assert!(matches!(over, Err(Failed::Call(CopyError::Revoked(_)))));
    }
}

#[test]
fn memory_that_an_owner_never_touched_is_not_taken_by_its_grantees() {
    let bed = Bed::new();
    let mut other = bed.bind("other");
    for (owner, access) in [("lazy", GrantAccess::Read), ("idle", GrantAccess::Write)] {
        let (_control, memories, _data, states, grant) = lied(&bed, owner, other.address(), access);
        states.store_u64(offset_of(PLACE_FIRST).unwrap(), STATE_LIVE, Ordering::SeqCst);
        let mut byte = [1];
        other.copy_in(grant, 8191, &mut byte, soon()).unwrap();
        assert_eq!((byte, sys::memfd::taken_bytes(&memories.data).unwrap()), ([0], 4096), "{owner}");
    }
}

#[test]
fn an_owner_that_scribbles_over_everything_deceives_its_grantees_and_no_more() {
    let bed = Bed::new();
    let mut other = bed.bind("other");
    let to = other.address();
    let (_one, _memories, data, states, grant) = lied(&bed, "hostile", to, GrantAccess::Write);
    let (_two, _others, honest_data, honest_states, honest) = lied(&bed, "honest", to, GrantAccess::Read);
    honest_states.store_u64(offset_of(PLACE_FIRST).unwrap(), STATE_LIVE, Ordering::SeqCst);
    honest_data.copy_in(0, &[5; 8192]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 1_u64;
            while !done.load(Ordering::Relaxed) {
                value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                for word in 0..512 {
                    states.store_u64(word * 8, value >> 40 & 7, Ordering::Relaxed);
                    data.store_u64(word * 16, value, Ordering::Relaxed);
                }
            }
        });
        let mut bytes = [0; 8192];
        for _ in 0..500 {
            match other.copy((grant, 0), (grant, 8), 4096, Some(Instant::now() + Duration::from_millis(1))) {
                Ok(())
                | Err(Failed::Call(CopyError::Revoked(_) | CopyError::Dead(_) | CopyError::TimedOut(..))) => {
                }
                Err(error) => panic!("{error}"),
            }
            other.copy_in(honest, 0, &mut bytes, soon()).unwrap();
            assert_eq!(bytes, [5; 8192]);
        }
        done.store(true, Ordering::Relaxed);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    /// Memories that are not what the daemon would send.
    #[test]
    fn memories_that_are_not_sealed_or_too_short_are_refused(bytes in 1..20_000_u64, granted in 1..20_000_u64, sealed: bool, write: bool) {
        use sys::memfd::{Reach, seal_for, to_grant};
        let mut other = Endpoint::alone(endpoint::Address { slot: 2, generation: 1 }, &Options::default()).unwrap();
        let (data, states) = (to_grant("test", bytes).unwrap(), to_grant("test", 4096).unwrap());
        let access = if write { Access::Write } else { Access::Read };
        if sealed {
            seal_for(&data, if write { Reach::Write } else { Reach::Read }).unwrap();
            seal_for(&states, Reach::Read).unwrap();
        }
        let owner = endpoint::Address { slot: 1, generation: 1 };
        let handed = endpoint::Handed { grant: GrantId::new(1), buffer: 1, owner, access, bytes: granted, place: PLACE_FIRST, data, states };
        let taken = other.take_grant_alone(handed);
        prop_assert_eq!(taken.is_ok(), sealed && bytes >= granted);
    }
}

fn child_of(bed: &Bed, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(CONTROL, bed.options().control.unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The child's work: it is killed at some moment.
#[test]
#[ignore = "the other process of the tests below, which start it"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut me = Endpoint::bind_by(Some("child"), &Options::default(), soon()).unwrap();
    let parent = me.wait_for_bind("parent", soon()).unwrap();
    let mut payload = Vec::new();
    match role.as_str() {
        "copies" => loop {
            me.send(parent, 1, b"ready", soon()).unwrap();
            me.receive(&From::Any, &mut payload, soon()).unwrap();
            let grant = GrantId::new(u64::from_le_bytes(payload.as_slice().try_into().unwrap()));
            let mut bytes = vec![0_u8; BYTES];
            for value in (1..=u8::MAX).cycle() {
                bytes.fill(value);
                match me.copy_out(&bytes, grant, 0, soon()) {
                    Ok(()) => {}
                    Err(Failed::Call(CopyError::Revoked(_))) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        },
        _ => {
            let mut buffer = me.buffer(BYTES, Access::Read).unwrap();
            for value in (1..=u8::MAX).cycle() {
                let grant = me.grant(&mut buffer, parent).unwrap();
                me.send(parent, 1, &grant.number().to_le_bytes(), soon()).unwrap();
                for _ in 0..3 {
                    buffer.write(0, &vec![value; BYTES]).unwrap();
                }
                me.revoke(&mut buffer, grant).unwrap();
            }
        }
    }
}

fn stands_still(buffer: &Buffer) {
    let (mut before, mut after) = (vec![0; buffer.len()], vec![0; buffer.len()]);
    buffer.read(0, &mut before).unwrap();
    for _ in 0..20 {
        buffer.read(0, &mut after).unwrap();
        assert!(before == after, "somebody still writes");
    }
}

#[test]
fn a_process_copies_while_another_revokes_and_is_killed_in_the_middle() {
    let bed = Bed::new();
    let mut parent = bed.bind("parent");
    let mut buffer = parent.buffer(BYTES, Access::Write).unwrap();
    for round in 0..8 {
        let mut child = child_of(&bed, "copies");
        let mut payload = Vec::new();
        let from = parent.wait_for_bind("child", soon()).unwrap();
        for _ in 0..50 {
            parent.receive(&From::One(from), &mut payload, soon()).unwrap();
            let grant = parent.grant(&mut buffer, from).unwrap();
            parent.send(from, 1, &grant.number().to_le_bytes(), soon()).unwrap();
            // Until it copies.
            let mut first = [0];
            while first == [0] {
                buffer.read(0, &mut first).unwrap();
            }
            parent.revoke(&mut buffer, grant).unwrap();
            stands_still(&buffer);
            buffer.write(0, &vec![0; BYTES]).unwrap();
        }
        parent.receive(&From::One(from), &mut payload, soon()).unwrap();
        let grant = parent.grant(&mut buffer, from).unwrap();
        parent.send(from, 1, &grant.number().to_le_bytes(), soon()).unwrap();
        let mut byte = [0];
        while byte == [0] {
            buffer.read(round * 1000, &mut byte).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        parent.revoke(&mut buffer, grant).unwrap();
        stands_still(&buffer);
        buffer.write(0, &vec![0; BYTES]).unwrap();
    }
}

#[test]
fn an_owner_is_killed_while_others_copy() {
    let bed = Bed::new();
    let mut parent = bed.bind("parent");
    for round in 0..8 {
        let mut child = child_of(&bed, "owns");
        let from = parent.wait_for_bind("child", soon()).unwrap();
        let (mut payload, mut bytes) = (Vec::new(), vec![0; BYTES]);
        let mut copies = 0;
        for kill_at in 0.. {
            if parent.receive(&From::One(from), &mut payload, soon()).is_err() {
                break;
            }
            let grant = GrantId::new(u64::from_le_bytes(payload.as_slice().try_into().unwrap()));
            if kill_at == 20 + round {
                child.kill().unwrap();
            }
            loop {
                match parent.copy_in(grant, 0, &mut bytes, soon()) {
                    Ok(()) => copies += 1,
                    Err(Failed::Call(CopyError::Revoked(_) | CopyError::Dead(_))) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        child.wait().unwrap();
        println!("{copies} copies ended well");
        assert_eq!(parent.granted().count(), 0);
    }
}
