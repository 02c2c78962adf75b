//! Grants between two nodes: what copies do on one node they do over two proxies, or say that
//! nobody knows.

use super::*;
use endpoint::{Access, Address, Buffer, CopyError, Endpoint, Failed, GrantId, Handed, Options, Unasked};
use wire::control::{EndpointAddress, GrantAccess, GrantedBuffer};
use wire::loan::{HEADER_BYTES, Record};

const OWNER: Address = Address { slot: 1 << 20 | 1, generation: 5 };
const GRANTEE: Address = Address { slot: 1, generation: 3 };

fn on_wire(Address { slot, generation }: Address) -> EndpointAddress {
    EndpointAddress { slot, generation }
}

fn call_error<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, Failed<E>>) -> E {
    match result {
        Err(Failed::Call(error)) => error,
        other => panic!("no error of the call: {other:?}"),
    }
}

fn in_ms(ms: u64) -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(ms))
}

/// Begins a loan of a grant of node b on node a: what is asked there, and the end that a program
/// has here.
async fn begun(a: &mut Node, b: &mut Node, grant: u64) -> (u64, End) {
    let (near, to_a) =
        channel_pair(&Config { ring_bytes: wire::loan::RING_BYTES, ..Config::default() }).expect("a channel");
    a.id += 1;
    let (dc, from) = ("shop".to_owned(), on_wire(GRANTEE));
    let open = Open::Grant { dc, grant, from, name: "camera".into(), domain: "eye".into() };
    a.say(&Order::Open { id: a.id, open: open.clone() }, Some(to_a));
    let Report::Asked { pair, open: asked } = b.hear().await else { panic!("nothing is asked") };
    assert_eq!(asked, open);
    (pair, near)
}

/// Has a program of node a what the owner has granted on node b.
async fn lent(a: &mut Node, b: &mut Node, handed: Handed) -> End {
    let (pair, near) = begun(a, b, handed.grant.number()).await;
    let access = if handed.access == Access::Read { GrantAccess::Read } else { GrantAccess::Write };
    let buffer = GrantedBuffer {
        grant: handed.grant.number(),
        buffer: handed.buffer,
        place: handed.place,
        owner: on_wire(handed.owner),
        to: on_wire(GRANTEE),
        access,
        bytes: handed.bytes,
    };
    b.pass(&Order::Lend { pair, buffer }, vec![handed.data, handed.states]);
    assert_eq!(a.hear().await, Report::Opened { id: a.id });
    near
}

fn recall(b: &Node, grant: GrantId) {
    let (dc, endpoint) = ("shop".into(), on_wire(GRANTEE));
    b.say(&Order::Recall { dc, grant: grant.number(), endpoint }, None);
}

fn endpoint_at(address: Address) -> Endpoint {
    Endpoint::alone(address, &Options::default()).expect("an endpoint")
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

/// Both nodes, an owner with a buffer, and a grantee that has it.
struct Bed {
    a: Node,
    b: Node,
    owner: Endpoint,
    buffer: Buffer,
    grantee: Endpoint,
    grant: GrantId,
}

async fn bed(bytes: usize, access: Access) -> Bed {
    let (mut a, mut b) = joined().await;
    let (mut owner, mut grantee) = (endpoint_at(OWNER), endpoint_at(GRANTEE));
    let mut buffer = owner.buffer_alone(bytes, access).expect("a buffer");
    buffer.write(0, &pattern(bytes)).expect("written");
    let handed = owner.grant_alone(&mut buffer, GRANTEE, 7).expect("granted");
    let grant = handed.grant;
    let end = lent(&mut a, &mut b, handed).await;
    grantee.take_loan_alone(grant, end).expect("an end");
    Bed { a, b, owner, buffer, grantee, grant }
}

fn bytes_of(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len()];
    buffer.read(0, &mut bytes).expect("read");
    bytes
}

#[tokio::test]
async fn bytes_go_from_a_buffer_of_another_node_and_to_one() {
    const BYTES: usize = 300_000;
    let Bed { a: _a, b: _b, mut owner, mut buffer, mut grantee, grant } = bed(BYTES, Access::Write).await;
    aside(move || {
        for (offset, length) in [(0, BYTES), (1, 1), (BYTES - 10, 10), (5, 0), (BYTES, 0), (7, 100_000)] {
            let mut bytes = vec![0; length];
            grantee.copy_in(grant, offset as u64, &mut bytes, soon()).expect("copied");
            assert!(bytes == bytes_of(&buffer)[offset..][..length], "{length} at {offset}");
        }
        let known: Vec<_> = grantee.granted().collect();
        assert_eq!((known[0].owner, known[0].bytes, known[0].access), (OWNER, BYTES as u64, Access::Write));
        for (offset, length) in [(0, 1), (BYTES - 1, 1), (100, 200_000), (3, 0), (0, BYTES)] {
            let new: Vec<u8> = (0..length).map(|at| (at * 7 + offset) as u8).collect();
            grantee.copy_out(&new, grant, offset as u64, soon()).expect("copied");
            assert!(bytes_of(&buffer)[offset..][..length] == new, "{length} at {offset}");
        }
        for (offset, length) in [(0, BYTES + 1), (BYTES, 1), (BYTES + 1, 0)] {
            let mut bytes = vec![0; length];
            let (offset, outside) = (offset as u64, |e| matches!(e, CopyError::OutOfRange(_)));
            assert!(outside(call_error(grantee.copy_in(grant, offset, &mut bytes, soon()))));
            assert!(outside(call_error(grantee.copy_out(&bytes, grant, offset, soon()))));
            assert!(outside(call_error(grantee.copy((grant, offset), (grant, 0), length, soon()))));
            assert!(outside(call_error(grantee.copy((grant, 0), (grant, offset), length, soon()))));
        }
        let mut own = grantee.buffer_alone(BYTES, Access::Read).expect("a buffer");
        own.write(0, &[7; BYTES]).expect("written");
        grantee.copy_from_own((&own, 1), (grant, 0), BYTES - 1, soon()).expect("copied");
        assert!(bytes_of(&buffer)[..BYTES - 1] == bytes_of(&own)[1..]);
        buffer.write(0, b"0123456789").expect("written");
        grantee.copy((grant, 0), (grant, 2), 8, soon()).expect("copied");
        assert_eq!(bytes_of(&buffer)[..10], *b"0101234567");
        grantee.copy((grant, 2), (grant, 0), 8, soon()).expect("copied");
        assert_eq!(bytes_of(&buffer)[..10], *b"0123456767");
        drop(owner.revoke(&mut buffer, grant));
    })
    .await;
}

#[tokio::test]
async fn what_was_granted_to_be_read_is_not_written_and_crosses_to_a_buffer_of_this_node() {
    let Bed { a: _a, b: _b, owner, buffer, mut grantee, grant } = bed(3 << 20, Access::Read).await;
    aside(move || {
        assert!(matches!(call_error(grantee.copy_out(b"x", grant, 0, soon())), CopyError::NotWritable(_)));
        let mut near = endpoint_at(Address { slot: 2, generation: 1 });
        let mut target = near.buffer_alone(3 << 20, Access::Write).expect("a buffer");
        let handed = near.grant_alone(&mut target, GRANTEE, 8).expect("granted");
        let to = grantee.take_grant_alone(handed).expect("mapped");
        assert!(matches!(
            call_error(grantee.copy((to, 0), (grant, 0), 1, soon())),
            CopyError::NotWritable(_)
        ));
        grantee.copy((grant, 5), (to, 0), (3 << 20) - 5, soon()).expect("copied");
        assert!(bytes_of(&target)[..(3 << 20) - 5] == bytes_of(&buffer)[5..]);
        let mut own = grantee.buffer_alone(3 << 20, Access::Read).expect("a buffer");
        let refused = grantee.copy_from_own((&own, 0), (grant, 0), 1, soon());
        assert!(matches!(call_error(refused), CopyError::NotWritable(_)));
        grantee.copy_to_own((grant, 5), (&mut own, 0), (3 << 20) - 5, soon()).expect("copied");
        assert!(bytes_of(&own)[..(3 << 20) - 5] == bytes_of(&buffer)[5..]);
        let outside = grantee.copy_to_own((grant, 6), (&mut own, 0), (3 << 20) - 5, soon());
        assert!(matches!(call_error(outside), CopyError::OutOfRange(_)));
        drop(owner);
    })
    .await;
}

#[tokio::test]
async fn a_grant_that_is_over_says_so_and_what_was_lent_is_let_go() {
    let Bed { a: _a, b, mut owner, mut buffer, mut grantee, grant } = bed(100, Access::Write).await;
    let mut grantee = aside(move || {
        grantee.copy_out(b"before", grant, 0, soon()).expect("copied");
        owner.revoke(&mut buffer, grant).expect("revoked");
        let over = call_error(grantee.copy_out(b"after!", grant, 0, soon()));
        assert!(matches!(over, CopyError::Revoked(_)), "{over}");
        assert_eq!(bytes_of(&buffer)[..6], *b"before");
        grantee
    })
    .await;
    // A daemon would be asked now.
    let unasked = aside(move || call_error(grantee.copy_in(grant, 0, &mut [0], soon()))).await;
    assert!(matches!(unasked, CopyError::Unasked(Unasked::NoDaemon)), "{unasked}");
    drop(b);
}

#[tokio::test]
async fn a_recall_ends_a_loan_that_nobody_uses_and_a_copy_that_goes_on() {
    let Bed { a: _a, b, mut owner, mut buffer, mut grantee, grant } = bed(100, Access::Write).await;
    aside(move || {
        grantee.copy_out(b"before", grant, 0, soon()).expect("copied");
        owner.revoke(&mut buffer, grant).expect("revoked");
        recall(&b, grant);
        // It is over, or the channel is closed already: then the daemon is asked, and there is
        // none.
        let over = call_error(grantee.copy_in(grant, 0, &mut [0], soon()));
        assert!(matches!(over, CopyError::Revoked(_) | CopyError::Unasked(_)), "{over}");
    })
    .await;
}

#[tokio::test]
async fn a_link_that_is_cut_holds_copies_up_until_their_time_is_over_and_of_a_write_nobody_knows() {
    let Bed { mut a, mut b, mut owner, mut buffer, mut grantee, grant } = bed(1 << 20, Access::Write).await;
    a.carrier.net().cut();
    let mut grantee = aside(move || {
        let late = call_error(grantee.copy_in(grant, 0, &mut vec![0; 1 << 20], in_ms(50)));
        assert!(matches!(late, CopyError::TimedOut(..)), "{late}");
        grantee
    })
    .await;
    // The loan went with the copy that nobody answered.
    a.carrier.net().connect();
    for node in [&mut a, &mut b] {
        while !matches!(node.hear().await, Report::Up { .. }) {}
    }
    let again = owner.grant_alone(&mut buffer, GRANTEE, 8).expect("granted");
    let grant = again.grant;
    grantee.take_loan_alone(grant, lent(&mut a, &mut b, again).await).expect("an end");
    let mut grantee = aside(move || {
        grantee.copy_in(grant, 0, &mut [0; 10], soon()).expect("copied");
        grantee
    })
    .await;
    a.carrier.net().cut();
    aside(move || {
        let late = call_error(grantee.copy_out(&vec![1; 1 << 20], grant, 0, in_ms(50)));
        assert!(matches!(late, CopyError::NotKnown(_)), "{late}");
        drop((owner, buffer));
    })
    .await;
}

#[tokio::test]
async fn the_end_of_the_link_is_that_of_its_loans() {
    let Bed { a, b: _b, owner, buffer, mut grantee, grant } = bed(100, Access::Write).await;
    let mut grantee = aside(move || {
        grantee.copy_out(b"before", grant, 0, soon()).expect("copied");
        grantee
    })
    .await;
    a.say(&Order::End { why: "enough".into(), unless_used: false }, None);
    // The proxy hears of it while copies go on.
    let over = aside(move || {
        let patience = soon();
        loop {
            let copied = grantee.copy_out(b"after!", grant, 0, patience);
            if copied.is_err() {
                return call_error(copied);
            }
        }
    })
    .await;
    assert!(matches!(over, CopyError::NotKnown(_) | CopyError::Unasked(_)), "{over}");
    drop((owner, buffer));
}

#[tokio::test]
async fn who_asks_for_much_and_takes_nothing_stops_nobody_and_holds_little() {
    const BYTES: usize = 64 << 20;
    let (mut a, mut b) = joined().await;
    let mut owner = endpoint_at(OWNER);
    let mut buffer = owner.buffer_alone(BYTES, Access::Write).expect("a buffer");
    let stuck = owner.grant_alone(&mut buffer, GRANTEE, 7).expect("granted");
    let (mut stuck, _reads_nothing) = lent(&mut a, &mut b, stuck).await.open().expect("opened");
    let wants = Record::Read { copy: 1, offset: 0, length: BYTES as u64 };
    stuck.send(&wants.to_bytes(), soon()).expect("said");
    let other = owner.grant_alone(&mut buffer, GRANTEE, 8).expect("granted");
    let grant = other.grant;
    let mut grantee = endpoint_at(GRANTEE);
    grantee.take_loan_alone(grant, lent(&mut a, &mut b, other).await).expect("an end");
    let (near, far) = channel(&mut a, &mut b, &Config::default()).await;
    aside(move || {
        for round in 0..20_u8 {
            grantee.copy_out(&[round; 1000], grant, 0, soon()).expect("copied");
            let mut bytes = [0; 1000];
            grantee.copy_in(grant, 0, &mut bytes, soon()).expect("copied");
            assert_eq!(bytes, [round; 1000]);
        }
        let (mut sender, _receiver) = near.open().expect("opened");
        let (_sender, mut receiver) = far.open().expect("opened");
        sender.send(b"through", soon()).expect("sent");
        assert_eq!(receive(&mut receiver).expect("received"), b"through");
    })
    .await;
    let held = [&a, &b].map(|node| node.carrier.net().links[node.carrier.side].held());
    let most = 4 * WINDOW_BYTES as usize;
    assert!(held.iter().all(|held| held.outward <= most && held.inward <= most), "{held:?}");
    drop((owner, buffer));
}

#[tokio::test]
async fn what_is_no_copy_ends_its_loan_and_no_other() {
    let long = [&[word::WHOLE][..], &[0; HEADER_BYTES + 1]].concat();
    let record = |record: Record| [&[word::WHOLE][..], &record.to_bytes()].concat();
    let garbage: Vec<Vec<u8>> = vec![
        vec![],
        vec![word::WHOLE],
        vec![word::FIRST, 1, 2, 3],
        vec![word::TAKEN, 0, 0, 0, 0, 0, 0, 0, 0],
        long,
        record(Record::Cancel { copy: 1 }),
        record(Record::Read { copy: 1, offset: 0, length: 101 }),
        record(Record::Read { copy: 1, offset: u64::MAX, length: 2 }),
        record(Record::Write { copy: 1, offset: 0, length: 1 }),
    ];
    let Bed { mut a, mut b, mut owner, mut buffer, mut grantee, grant } = bed(100, Access::Read).await;
    for (number, message) in (100..).zip(garbage) {
        let handed = owner.grant_alone(&mut buffer, GRANTEE, number).expect("granted");
        let (pair, near) = begun(&mut a, &mut b, number).await;
        let buffer = GrantedBuffer {
            grant: number,
            buffer: handed.buffer,
            place: handed.place,
            owner: on_wire(OWNER),
            to: on_wire(GRANTEE),
            access: GrantAccess::Read,
            bytes: 100,
        };
        b.pass(&Order::Lend { pair, buffer }, vec![handed.data, handed.states]);
        assert!(matches!(a.hear().await, Report::Opened { .. }));
        // This test is the grantee's proxy from here on.
        let pair = Pair { slot: pair as u32, generation: (pair >> 32) as u32 };
        a.carrier.send(pair, &message).expect("sent");
        aside(move || {
            let (_sender, mut receiver) = near.open().expect("opened");
            while receive(&mut receiver).is_ok() {}
        })
        .await;
    }
    aside(move || {
        grantee.copy_in(grant, 0, &mut [0; 100], soon()).expect("copied");
        drop((owner, buffer));
    })
    .await;
}

#[tokio::test]
async fn memories_that_can_not_be_used_are_not_lent() {
    let (mut a, mut b) = joined().await;
    let mut owner = endpoint_at(OWNER);
    let mut buffer = owner.buffer_alone(100, Access::Read).expect("a buffer");
    let handed = owner.grant_alone(&mut buffer, GRANTEE, 9).expect("granted");
    let (pair, near) = begun(&mut a, &mut b, 9).await;
    let (owner_at, to) = (on_wire(OWNER), on_wire(GRANTEE));
    let lied = GrantedBuffer {
        grant: 9,
        buffer: 1,
        place: handed.place,
        owner: owner_at,
        to,
        access: GrantAccess::Read,
        bytes: 1 << 20,
    };
    b.pass(&Order::Lend { pair, buffer: lied }, vec![handed.data, handed.states]);
    // It was accepted, and is over.
    let _opened_or_not = a.hear().await;
    aside(move || {
        let (_sender, mut receiver) = near.open().expect("opened");
        assert!(receive(&mut receiver).is_err());
    })
    .await;
}

/// A write to a page that nobody has touched is charged to the proxy, for as long as the owner
/// keeps it: an owner that gave its buffer's memory back, and a friend on another node, took
/// everybody's.
#[tokio::test]
async fn memory_that_its_owner_has_not_taken_is_not_written_by_the_proxy() {
    const BYTES: usize = 1 << 20;
    let (mut a, mut b) = joined().await;
    let mut owner = endpoint_at(OWNER);
    let mut buffer = owner.buffer_alone(BYTES, Access::Write).expect("a buffer");
    let handed = owner.grant_alone(&mut buffer, GRANTEE, 7).expect("granted");
    let (grant, memory) = (handed.grant, handed.data.try_clone().expect("a descriptor"));
    let mut grantee = endpoint_at(GRANTEE);
    grantee.take_loan_alone(grant, lent(&mut a, &mut b, handed).await).expect("an end");
    aside(move || {
        grantee.copy_out(&[7; 1000], grant, 0, soon()).expect("copied");
        sys::memfd::free(&memory).expect("given back");
        assert!(grantee.copy_out(&[7; BYTES], grant, 0, soon()).is_err());
        assert_eq!(sys::memfd::taken_bytes(&memory).expect("looked at"), 0);
    })
    .await;
    // It is not lent again before it is taken.
    let again = owner.grant_alone(&mut buffer, GRANTEE, 8).expect("granted");
    let near = lent(&mut a, &mut b, again).await;
    aside(move || assert!(receive(&mut near.open().expect("opened").1).is_err())).await;
}
