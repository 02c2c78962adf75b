//! Buffers that are granted, copied from and to, and taken back, between endpoints that a daemon
//! has bound.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod members;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use endpoint::{
    Access, Address, Buffer, BufferError, Content, CopyError, Endpoint, Failed, From, GrantError, GrantId,
    Options, Unasked,
};
use members::{Bed, soon};
use proptest::prelude::*;
use wire::control::EndpointRights;

fn call_error<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, Failed<E>>) -> E {
    match result {
        Err(Failed::Call(error)) => error,
        other => panic!("no error of the call: {other:?}"),
    }
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).unwrap();
    bytes
}

fn copied(
    endpoint: &mut Endpoint,
    grant: GrantId,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, Failed<CopyError>> {
    let mut bytes = vec![0; length];
    endpoint.copy_in(grant, offset, &mut bytes, soon()).map(|()| bytes)
}

#[test]
fn bytes_go_from_a_buffer_and_to_one() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut given = one.buffer(10_000, Access::Read).unwrap();
    given.write(9_990, b"at the end").unwrap();
    let grant = one.grant(&mut given, other.address()).unwrap();
    assert_eq!(given.grants().collect::<Vec<_>>(), [(grant, other.address())]);
    // Its number travels in a message.
    one.send_buffered(other.address(), 3, &grant.number().to_le_bytes(), soon()).unwrap();
    let mut payload = Vec::new();
    let received = other.receive(&From::Any, &mut payload, soon()).unwrap();
    assert_eq!(received.content, Content::Message { tag: 3 });
    let told = GrantId::new(u64::from_le_bytes(payload.try_into().unwrap()));
    assert_eq!(copied(&mut other, told, 9_990, 10).unwrap(), b"at the end");
    given.write(0, b"later").unwrap();
    assert_eq!(copied(&mut other, told, 0, 5).unwrap(), b"later");
    let known: Vec<_> = other.granted().collect();
    assert_eq!((known[0].grant, known[0].owner, known[0].bytes), (grant, one.address(), 10_000));
    assert!(matches!(call_error(other.copy_out(b"x", told, 0, soon())), CopyError::NotWritable(_)));

    let mut taken = one.buffer(5, Access::Write).unwrap();
    let grant = one.grant(&mut taken, other.address()).unwrap();
    other.copy_out(b"ello", grant, 1, soon()).unwrap();
    taken.write(0, b"h").unwrap();
    assert_eq!(bytes_of(&taken), b"hello");
    assert_eq!(copied(&mut other, grant, 0, 5).unwrap(), b"hello");
    one.free(taken).unwrap();
    assert!(matches!(call_error(copied(&mut other, grant, 0, 5)), CopyError::Revoked(_)));
    assert!(matches!(call_error(copied(&mut other, grant, 0, 0)), CopyError::Revoked(_)));
}

#[test]
fn each_end_makes_a_half_of_a_transfer_between_their_buffers() {
    const BYTES: usize = 1 << 20;
    let half = BYTES as u64 / 2;
    let bed = Bed::new();
    let (mut giver, mut taker) = bed.two(["left", "right"]);
    let mut source = giver.buffer(BYTES, Access::Read).unwrap();
    let mut target = taker.buffer(BYTES, Access::Write).unwrap();
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    source.write(0, &bytes).unwrap();
    let to_read = giver.grant(&mut source, taker.address()).unwrap();
    let to_write = taker.grant(&mut target, giver.address()).unwrap();
    giver.copy_from_own((&source, 0), (to_write, 0), BYTES / 2, soon()).unwrap();
    taker.copy_to_own((to_read, half), (&mut target, half), BYTES / 2, soon()).unwrap();
    assert!(bytes_of(&target) == bytes);
    // What may be read only is not written, and what is over is over.
    let refused = taker.copy_from_own((&target, 0), (to_read, 0), 1, soon());
    assert!(matches!(call_error(refused), CopyError::NotWritable(_)));
    giver.revoke(&mut source, to_read).unwrap();
    let over = taker.copy_to_own((to_read, 0), (&mut target, 0), 1, soon());
    assert!(matches!(call_error(over), CopyError::Revoked(_)));
    assert!(bytes_of(&target) == bytes);
}

#[test]
fn ranges_that_are_not_inside_are_refused_wherever_they_are_named() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut buffer = one.buffer(100, Access::Write).unwrap();
    let grant = one.grant(&mut buffer, other.address()).unwrap();
    for (offset, length) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX, 0), (1, 4096), (4000, 1)]
    {
        let mut bytes = vec![0; length];
        assert!(matches!(
            call_error(other.copy_in(grant, offset, &mut bytes, soon())),
            CopyError::OutOfRange(_)
        ));
        assert!(matches!(
            call_error(other.copy_out(&bytes, grant, offset, soon())),
            CopyError::OutOfRange(_)
        ));
        assert!(matches!(
            call_error(other.copy((grant, offset), (grant, 0), length, soon())),
            CopyError::OutOfRange(_)
        ));
        assert!(matches!(
            call_error(other.copy((grant, 0), (grant, offset), length, soon())),
            CopyError::OutOfRange(_)
        ));
        let mut own = other.buffer(100, Access::Read).unwrap();
        for [at, own_at] in [[offset, 0], [0, offset]] {
            let to = other.copy_to_own((grant, at), (&mut own, own_at), length, soon());
            assert!(matches!(call_error(to), CopyError::OutOfRange(_)));
            let from = other.copy_from_own((&own, own_at), (grant, at), length, soon());
            assert!(matches!(call_error(from), CopyError::OutOfRange(_)));
        }
        let refused = call_error(buffer.read(offset, &mut bytes));
        assert_eq!((refused.offset, refused.bytes), (offset, 100));
        call_error(buffer.write(offset, &bytes));
    }
    other.copy_in(grant, 100, &mut [], soon()).unwrap();
    other.copy_out(&[], grant, 0, soon()).unwrap();
    other.copy((grant, 0), (grant, 100), 0, soon()).unwrap();
    let length = usize::try_from(wire::grants::BUFFER_BYTES_MAX).unwrap() + 1;
    assert!(matches!(call_error(one.buffer(0, Access::Read)), BufferError::Size { .. }));
    assert!(matches!(call_error(one.buffer(length, Access::Read)), BufferError::Size { .. }));
    assert!(matches!(call_error(one.buffer(length - 1, Access::Read)), BufferError::Limit { .. }));
}

#[test]
fn who_may_be_granted_a_buffer_is_checked() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut buffer = one.buffer(100, Access::Read).unwrap();
    let own = one.address();
    assert!(matches!(call_error(one.grant(&mut buffer, own)), GrantError::NotTo { .. }));
    let nobody = Address { slot: 900_000, generation: 1 };
    assert!(matches!(call_error(one.grant(&mut buffer, nobody)), GrantError::NotBound { .. }));
    let later = Address { generation: other.address().generation + 1, ..other.address() };
    assert!(matches!(call_error(one.grant(&mut buffer, later)), GrantError::WrongGeneration { .. }));
    assert!(matches!(call_error(other.grant(&mut buffer, own)), GrantError::NotOurs(_)));
    let stranger = bed.bind("stranger");
    let none = EndpointRights::default();
    bed.daemon().rights("left", "stranger", none);
    bed.daemon().rights("stranger", "left", none);
    assert!(matches!(call_error(one.grant(&mut buffer, stranger.address())), GrantError::NotAllowed { .. }));
    assert!(matches!(call_error(one.revoke(&mut buffer, GrantId::new(5))), GrantError::NoGrant(_)));
    assert_eq!(buffer.grants().count(), 0);

    let mut alone = Endpoint::alone(Address { slot: 1, generation: 1 }, &Options::default()).unwrap();
    let unasked = call_error(alone.buffer(1, Access::Read));
    assert!(matches!(unasked, BufferError::Unasked(Unasked::NoDaemon)));
}

#[test]
fn a_third_party_copies_with_the_privilege_alone() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let (mut copier, mut stranger) = (bed.bind("copier"), bed.bind("stranger"));
    assert_eq!((copier.copies(), stranger.copies()), (true, false));
    let mut source = one.buffer(100, Access::Read).unwrap();
    source.write(10, b"from one to the other").unwrap();
    let mut target = other.buffer(100, Access::Write).unwrap();
    let from = one.grant(&mut source, other.address()).unwrap();
    let to = other.grant(&mut target, one.address()).unwrap();
    copier.copy((from, 10), (to, 50), 21, soon()).unwrap();
    assert_eq!(&bytes_of(&target)[50..71], b"from one to the other");
    assert!(matches!(call_error(copied(&mut stranger, from, 0, 1)), CopyError::Unknown { .. }));
    assert!(matches!(call_error(stranger.copy((from, 0), (to, 0), 1, soon())), CopyError::Unknown { .. }));
    assert!(matches!(call_error(copied(&mut copier, GrantId::new(77), 0, 1)), CopyError::Unknown { .. }));
    assert!(matches!(call_error(copied(&mut one, from, 0, 1)), CopyError::Own { .. }));
    assert!(matches!(call_error(copier.copy((to, 0), (from, 0), 1, soon())), CopyError::NotWritable(_)));
    // The borrower is told of the end as the grantee is.
    one.revoke(&mut source, from).unwrap();
    assert!(matches!(call_error(copier.copy((from, 0), (to, 0), 1, soon())), CopyError::Revoked(_)));
    drop(other);
    let end = loop {
        match copied(&mut copier, to, 0, 1) {
            Ok(_) => std::thread::yield_now(),
            Err(Failed::Call(end)) => break end,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(matches!(end, CopyError::Dead(_) | CopyError::Revoked(_)), "{end}");
}

#[test]
fn ranges_of_one_buffer_may_overlap() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut copier = bed.bind("copier");
    let mut buffer = one.buffer(10, Access::Write).unwrap();
    buffer.write(0, b"0123456789").unwrap();
    let grant = one.grant(&mut buffer, other.address()).unwrap();
    let second = one.grant(&mut buffer, copier.address()).unwrap();
    other.copy((grant, 0), (grant, 2), 8, soon()).unwrap();
    assert_eq!(bytes_of(&buffer), b"0101234567");
    // By two grants of the same buffer, too.
    copier.copy((grant, 2), (second, 0), 8, soon()).unwrap();
    assert_eq!(bytes_of(&buffer), b"0123456767");
    other.copy((grant, 0), (grant, 5), 5, soon()).unwrap();
    assert_eq!(bytes_of(&buffer), b"0123401234");
}

#[test]
fn what_was_revoked_shows_nothing_any_more_and_the_others_go_on() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut third = bed.bind("third");
    for access in [Access::Read, Access::Write] {
        let mut buffer = one.buffer(8, access).unwrap();
        buffer.write(0, b"before..").unwrap();
        let kept = one.grant(&mut buffer, third.address()).unwrap();
        let over = one.grant(&mut buffer, other.address()).unwrap();
        assert_eq!(copied(&mut other, over, 0, 8).unwrap(), b"before..");
        assert_eq!(copied(&mut third, kept, 0, 8).unwrap(), b"before..");
        for round in 0..5 {
            let again = one.grant(&mut buffer, other.address()).unwrap();
            copied(&mut other, again, 0, 8).unwrap();
            one.revoke(&mut buffer, again).unwrap();
            assert!(matches!(call_error(one.revoke(&mut buffer, again)), GrantError::NoGrant(_)));
            assert!(matches!(call_error(copied(&mut other, again, 0, 8)), CopyError::Revoked(_)));
            buffer.write(0, format!("round {round}.").as_bytes()).unwrap();
            assert_eq!(copied(&mut third, kept, 0, 8).unwrap(), format!("round {round}.").as_bytes());
            assert_eq!(copied(&mut other, over, 0, 7).unwrap(), format!("round {round}").as_bytes());
            if access == Access::Write {
                third.copy_out(b"R", kept, 0, soon()).unwrap();
                assert_eq!(bytes_of(&buffer), format!("Round {round}.").as_bytes());
            }
        }
        one.revoke(&mut buffer, over).unwrap();
        assert_eq!(buffer.grants().collect::<Vec<_>>(), [(kept, third.address())]);
        drop(buffer);
        assert!(matches!(call_error(copied(&mut third, kept, 0, 8)), CopyError::Revoked(_)));
    }
}

#[test]
fn a_buffer_has_so_many_grants_at_a_time_and_any_number_one_after_the_other() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut buffer = one.buffer(1, Access::Write).unwrap();
    let nobody = Address { slot: 900_000, generation: 1 };
    let most = (wire::grants::PLACES - wire::grants::PLACE_FIRST) as usize;
    // What was refused has cost a place each.
    for _ in 0..most + 10 {
        assert!(matches!(call_error(one.grant(&mut buffer, nobody)), GrantError::NotBound { .. }));
    }
    let mut grants: Vec<GrantId> =
        (0..most).map(|_| one.grant(&mut buffer, other.address()).unwrap()).collect();
    assert!(matches!(call_error(one.grant(&mut buffer, other.address())), GrantError::Limit { .. }));
    other.copy_out(b"x", grants[0], 0, soon()).unwrap();
    one.revoke(&mut buffer, grants.remove(7)).unwrap();
    grants.push(one.grant(&mut buffer, other.address()).unwrap());
    // More than are kept mapped.
    for grant in &grants {
        assert_eq!(copied(&mut other, *grant, 0, 1).unwrap(), b"x");
    }
    assert!(other.granted().count() < most);
    other.copy_out(b"y", grants[0], 0, soon()).unwrap();
    assert_eq!(bytes_of(&buffer), b"y");
}

#[test]
fn grants_are_handed_over_by_hand_where_there_is_no_daemon() {
    let at = |slot| Address { slot, generation: 1 };
    let mut one = Endpoint::alone(at(1), &Options::default()).unwrap();
    let mut other = Endpoint::alone(at(2), &Options::default()).unwrap();
    let mut buffer = one.buffer_alone(5000, Access::Write).unwrap();
    let handed = one.grant_alone(&mut buffer, other.address(), 9).unwrap();
    let second = one.grant_alone(&mut buffer, other.address(), 10).unwrap();
    let grant = other.take_grant_alone(handed).unwrap();
    assert_eq!(grant, GrantId::new(9));
    other.copy_out(b"by hand", grant, 4990, None).unwrap();
    assert_eq!(&bytes_of(&buffer)[4990..4997], b"by hand");
    let second = other.take_grant_alone(second).unwrap();
    other.copy((grant, 4990), (second, 0), 7, None).unwrap();
    assert_eq!(&bytes_of(&buffer)[..7], b"by hand");
    assert!(matches!(call_error(one.grant(&mut buffer, at(2))), GrantError::Unasked(Unasked::NoDaemon)));
    // There is nobody to move the other one.
    one.revoke(&mut buffer, grant).unwrap();
    assert!(matches!(call_error(other.copy_out(b"x", grant, 0, None)), CopyError::Revoked(_)));
    assert!(matches!(call_error(other.copy_out(b"x", second, 0, None)), CopyError::Revoked(_)));
    assert_eq!(&bytes_of(&buffer)[..7], b"by hand");
    let again = one.grant_alone(&mut buffer, other.address(), 11).unwrap();
    let again = other.take_grant_alone(again).unwrap();
    assert_eq!(copied(&mut other, again, 0, 7).unwrap(), b"by hand");
    assert!(matches!(
        call_error(other.copy_in(GrantId::new(12), 0, &mut [0], soon())),
        CopyError::Unasked(Unasked::NoDaemon)
    ));
}

#[test]
fn grants_outlive_the_daemon_and_can_still_be_taken_back() {
    let mut bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut buffer = one.buffer(100, Access::Write).unwrap();
    let grant = one.grant(&mut buffer, other.address()).unwrap();
    other.copy_out(b"mapped", grant, 0, soon()).unwrap();
    bed.kill();
    other.copy_out(b"still", grant, 0, soon()).unwrap();
    assert_eq!(&bytes_of(&buffer)[..6], b"stilld");
    let mut taken_back = one.buffer_alone(1, Access::Read).unwrap();
    assert!(matches!(call_error(one.revoke(&mut taken_back, grant)), GrantError::NoGrant(_)));
    bed.start();
    // Both are known to the next daemon when a new buffer can be granted.
    let mut second = one.buffer(10, Access::Read).unwrap();
    let address = other.address();
    let later = loop {
        match one.grant(&mut second, address) {
            Ok(grant) => break grant,
            // The other one has not come back yet: it does when it looks.
            Err(Failed::Call(GrantError::NotBound { .. })) => drop(other.find("left", soon())),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(copied(&mut other, later, 0, 10).unwrap(), [0; 10]);
    assert_eq!(copied(&mut other, grant, 0, 5).unwrap(), b"still");
    assert!(matches!(call_error(one.grant(&mut buffer, address)), GrantError::EarlierDaemon));
    one.revoke(&mut buffer, grant).unwrap();
    assert!(matches!(call_error(copied(&mut other, grant, 0, 5)), CopyError::Revoked(_)));
    assert_eq!(&bytes_of(&buffer)[..5], b"still");
    let again = one.grant(&mut buffer, address).unwrap();
    assert_eq!(copied(&mut other, again, 0, 5).unwrap(), b"still");
    // Without any daemon, a revoke still keeps its word.
    bed.kill();
    one.revoke(&mut buffer, again).unwrap();
    assert!(matches!(call_error(other.copy_out(b"x", again, 0, soon())), CopyError::Revoked(_)));
    assert_eq!(&bytes_of(&buffer)[..5], b"still");
}

#[test]
fn a_copy_that_is_revoked_in_the_middle_ended_well_or_was_revoked() {
    const ROUNDS: usize = 2000;
    const BYTES: usize = 256 << 10;
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let (number, acknowledged) = (AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    let address = other.address();
    let (mut good, mut ended) = (0_u64, 0_u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = one.buffer(BYTES, Access::Write).unwrap();
            for round in 0..ROUNDS {
                let grant = one.grant(&mut buffer, address).unwrap();
                number.store(grant.number(), Ordering::Release);
                // Some copies are under way now, or not.
                for _ in 0..round % 40 * 200 {
                    std::hint::spin_loop();
                }
                let before = acknowledged.load(Ordering::Acquire);
                one.revoke(&mut buffer, grant).unwrap();
                let kept = bytes_of(&buffer);
                // What was said to have been copied before the revoke is there.
                let stands = u64::from_le_bytes(kept[BYTES - 8..].try_into().unwrap());
                assert!(stands >= before, "{stands} where {before} had ended well");
                assert_eq!(bytes_of(&buffer), kept, "written after the revoke");
            }
            done.store(true, Ordering::Release);
        });
        let mut bytes = vec![0; BYTES];
        let mut value = 0_u64;
        while !done.load(Ordering::Acquire) {
            let grant = GrantId::new(number.load(Ordering::Acquire));
            if grant.number() == 0 {
                continue;
            }
            value += 1;
            bytes[BYTES - 8..].copy_from_slice(&value.to_le_bytes());
            match other.copy_out(&bytes, grant, 0, soon()) {
                Ok(()) => {
                    good += 1;
                    acknowledged.store(value, Ordering::Release);
                }
                Err(Failed::Call(CopyError::Revoked(_))) => ended += 1,
                Err(error) => panic!("{error}"),
            }
        }
    });
    println!("{good} copies ended well, {ended} were revoked");
    assert!(good > 0 && ended > 0);
}

#[test]
fn readers_see_whole_values_of_the_time_before_the_revoke() {
    const ROUNDS: u8 = 250;
    const BYTES: usize = 64 << 10;
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let mut third = bed.bind("third");
    let (number, phase) = (AtomicU64::new(0), AtomicU64::new(0));
    let (address, kept_address) = (other.address(), third.address());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = one.buffer(BYTES, Access::Read).unwrap();
            let kept = one.grant(&mut buffer, kept_address).unwrap();
            for round in 1..=ROUNDS {
                let grant = one.grant(&mut buffer, address).unwrap();
                number.store(grant.number(), Ordering::Release);
                buffer.write(0, &vec![round; BYTES]).unwrap();
                one.revoke(&mut buffer, grant).unwrap();
                // The one who had it must not see this.
                buffer.write(0, &vec![0xff; BYTES]).unwrap();
                // And the one who has it still must.
                let mut bytes = vec![0; BYTES];
                third.copy_in(kept, 0, &mut bytes, soon()).unwrap();
                assert_eq!(bytes, vec![0xff; BYTES]);
                buffer.write(0, &vec![0; BYTES]).unwrap();
            }
            phase.store(1, Ordering::Release);
        });
        let mut bytes = vec![0; BYTES];
        while phase.load(Ordering::Acquire) == 0 {
            let grant = GrantId::new(number.load(Ordering::Acquire));
            if grant.number() == 0 {
                continue;
            }
            match other.copy_in(grant, 0, &mut bytes, soon()) {
                Ok(()) => {
                    assert!(!bytes.contains(&0xff), "read what was written after the revoke")
                }
                Err(Failed::Call(CopyError::Revoked(_))) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
}

/// Says that its thread has ended, also if that failed.
struct Tells<'a>(&'a AtomicBool);

impl Drop for Tells<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_daemon_that_dies_while_buffers_move_costs_grants_and_no_bytes() {
    const BYTES: usize = 16 << 10;
    let mut bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let (address, number, copies) = (other.address(), AtomicU64::new(0), AtomicU64::new(0));
    let (done, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let _told = Tells(&ended);
            let mut buffer = one.buffer(BYTES, Access::Read).unwrap();
            buffer.write(0, &[7; BYTES]).unwrap();
            let mut moves = 0;
            while !done.load(Ordering::Acquire) || moves == 0 || copies.load(Ordering::Acquire) == 0 {
                let grants = [one.grant(&mut buffer, address), one.grant(&mut buffer, address)];
                let mut given = Vec::new();
                for grant in grants {
                    match grant {
                        Ok(grant) => given.push(grant),
                        // It comes back to the daemon when it looks.
                        Err(Failed::Call(GrantError::NotBound { .. } | GrantError::EarlierDaemon)) => {}
                        Err(Failed::Call(GrantError::Refused { errno, .. })) => {
                            assert_eq!(errno, rustix::io::Errno::AGAIN.raw_os_error());
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                number.store(given.first().map_or(0, |grant| grant.number()), Ordering::Release);
                // The last one goes while the others follow, and then these.
                while let Some(grant) = given.pop() {
                    match one.revoke(&mut buffer, grant) {
                        Ok(()) => moves += 1,
                        // It could not follow the one before.
                        Err(Failed::Call(GrantError::NoGrant(_))) => {}
                        Err(error) => panic!("{error}"),
                    }
                    assert_eq!(bytes_of(&buffer), [7; BYTES]);
                }
                assert_eq!(buffer.grants().count(), 0);
            }
            moves
        });
        let copier = scope.spawn(|| {
            let mut bytes = [0; BYTES];
            while !ended.load(Ordering::Acquire) {
                let grant = GrantId::new(number.load(Ordering::Acquire));
                match other.copy_in(grant, 0, &mut bytes, soon()) {
                    Ok(()) => {
                        copies.fetch_add(1, Ordering::AcqRel);
                        assert_eq!(bytes, [7; BYTES]);
                    }
                    Err(Failed::Call(CopyError::Revoked(_) | CopyError::Unknown { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        for _ in 0..20 {
            bed.kill();
            bed.start();
            let before = number.load(Ordering::Acquire);
            let late = Instant::now() + std::time::Duration::from_secs(60);
            while number.load(Ordering::Acquire) == before
                && !ended.load(Ordering::Acquire)
                && Instant::now() < late
            {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
        println!("{} moves, {} copies", owner.join().unwrap(), copies.load(Ordering::Acquire));
        copier.join().unwrap();
    });
}

#[test]
fn a_buffer_that_is_freed_in_use_ends_the_copies_and_harms_nobody() {
    let bed = Bed::new();
    let (mut one, mut other) = bed.two(["left", "right"]);
    let (address, number, done) = (other.address(), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..300 {
                let mut buffer = one.buffer(64 << 10, Access::Write).unwrap();
                number.store(one.grant(&mut buffer, address).unwrap().number(), Ordering::Release);
                match round % 2 {
                    0 => one.free(buffer).unwrap(),
                    _ => drop(buffer),
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let grant = GrantId::new(number.load(Ordering::Acquire));
            match other.copy_out(&[1; 64 << 10], grant, 0, soon()) {
                Ok(()) | Err(Failed::Call(CopyError::Revoked(_) | CopyError::Unknown { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    // All of them were freed: there is room for the largest that fits.
    drop(one.buffer(250 << 20, Access::Read).unwrap());
}

#[test]
fn a_forks_child_harms_nothing_of_its_parents() {
    let bed = Bed::new();
    let (one, mut other) = bed.two(["left", "right"]);
    let mut one = one;
    let mut buffer = one.buffer(100, Access::Write).unwrap();
    let grant = one.grant(&mut buffer, other.address()).unwrap();
    other.copy_out(b"before", grant, 0, soon()).unwrap();
    let mut things = Some((one, buffer));
    let refused = sys::fork::in_child(|| {
        let Some((mut one, mut buffer)) = things.take() else { return false };
        let forked = matches!(buffer.read(0, &mut [0]), Err(Failed::Forked))
            && matches!(buffer.write(0, &[1]), Err(Failed::Forked))
            && matches!(one.revoke(&mut buffer, grant), Err(Failed::Forked))
            && matches!(one.buffer(1, Access::Read), Err(Failed::Forked))
            && matches!(one.find("right", soon()), Err(Failed::Forked))
            && matches!(one.copy_in(grant, 0, &mut [0], soon()), Err(Failed::Forked));
        drop((one, buffer));
        forked
    });
    assert!(refused.unwrap());
    let (mut one, mut buffer) = things.unwrap();
    other.copy_out(b"after!", grant, 0, soon()).unwrap();
    assert_eq!(&bytes_of(&buffer)[..6], b"after!");
    // The daemon was told of nothing.
    let address = other.address();
    let again = one.grant(&mut buffer, address).unwrap();
    assert_eq!(copied(&mut other, again, 0, 6).unwrap(), b"after!");
    one.revoke(&mut buffer, grant).unwrap();
}

#[test]
fn another_thread_ends_what_waits_for_the_daemon() {
    let mut bed = Bed::new();
    let mut one = bed.bind("left");
    let interrupter = one.interrupter().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| one.wait_for_bind("nobody", None));
        interrupter.interrupt();
        assert!(matches!(waits.join().unwrap(), Err(Failed::Interrupted)));
    });
    let mut two = bed.bind("right");
    let interrupter = two.interrupter().unwrap();
    bed.kill();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| two.buffer(10, Access::Read));
        interrupter.interrupt();
        assert!(matches!(waits.join().unwrap(), Err(Failed::Interrupted)));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn copies_do_what_slices_do(ops in prop::collection::vec((0..5_u8, 0..70_u64, 0..70_u64, 0..70_usize), 1..60)) {
        const BYTES: usize = 64;
        let bed = Bed::new();
        let (mut one, mut other) = bed.two(["left", "right"]);
        let mut buffer = one.buffer(BYTES, Access::Write).unwrap();
        let grant = one.grant(&mut buffer, other.address()).unwrap();
        let mut own = other.buffer(BYTES, Access::Read).unwrap();
        let (mut model, mut of_own) = (vec![0_u8; BYTES], vec![0_u8; BYTES]);
        for (step, (op, from, to, length)) in ops.into_iter().enumerate() {
            let range = |offset: u64| usize::try_from(offset).ok().map(|at| at..at + length).filter(|range| range.end <= BYTES);
            match op {
                0 => {
                    let bytes = vec![step as u8; length];
                    let done = other.copy_out(&bytes, grant, to, soon()).is_ok();
                    prop_assert_eq!(done, range(to).is_some());
                    if let Some(range) = range(to) { model[range].copy_from_slice(&bytes); }
                }
                1 => {
                    let copied = copied(&mut other, grant, from, length).ok();
                    prop_assert_eq!(copied, range(from).map(|range| model[range].to_vec()));
                }
                2 => {
                    let done = other.copy((grant, from), (grant, to), length, soon()).is_ok();
                    let both = range(from).zip(range(to));
                    prop_assert_eq!(done, both.is_some());
                    if let Some((from, to)) = both { model.copy_within(from, to.start); }
                }
                3 => {
                    let done = other.copy_to_own((grant, from), (&mut own, to), length, soon()).is_ok();
                    let both = range(from).zip(range(to));
                    prop_assert_eq!(done, both.is_some());
                    if let Some((from, to)) = both { of_own[to].copy_from_slice(&model[from]); }
                }
                _ => {
                    let done = other.copy_from_own((&own, from), (grant, to), length, soon()).is_ok();
                    let both = range(from).zip(range(to));
                    prop_assert_eq!(done, both.is_some());
                    if let Some((from, to)) = both { model[to].copy_from_slice(&of_own[from]); }
                }
            }
            prop_assert_eq!(&bytes_of(&buffer), &model);
            prop_assert_eq!(&bytes_of(&own), &of_own);
        }
    }
}
