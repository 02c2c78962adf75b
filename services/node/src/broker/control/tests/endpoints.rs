//! Endpoints, asked for as any program may.

use super::*;
use crate::broker::Numbers;
use crate::broker::testing::Kept;
use wire::control::{EndpointAddress, Event, Whom};

const FILE: &str = "name = \"shop\"\n[domain.web]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"true\"]\n\
    [endpoint.planner]\ndomain = \"web\"\nallow = [{ domains = [\"web\"], verbs = [\"send\"] }]\n";

fn shop() -> (Broker, tempfile::TempDir, tokio::task::JoinHandle<io::Result<()>>) {
    let broker = Broker::new(crate::broker::make_channel);
    broker.keep_numbers(Numbers::open(Box::new(Kept::default()), 0).unwrap());
    let topology = topology::parse(FILE, "test.toml", Path::new("/")).unwrap_or_else(|e| panic!("{e}"));
    broker.set_topology("shop", Some(Arc::new(topology)));
    let (folder, accepting) = door_to(broker.clone());
    (broker, folder, accepting)
}

fn say(socket: &AsyncFd<OwnedFd>, request: &Request) {
    send(socket, &serde_json::to_vec(request).unwrap(), &[]);
}

async fn bind(socket: &AsyncFd<OwnedFd>, name: &str) -> EndpointAddress {
    say(socket, &Request::Bind { id: 1, name: name.into(), token: String::new(), peers: Vec::new() });
    match reply(socket).await {
        Some(Reply::Bound { id: 1, address, .. }) => address,
        other => panic!("{other:?}"),
    }
}

fn introduce(endpoint: EndpointAddress, wait_ms: u32) -> Request {
    Request::Introduce { id: 2, endpoint: endpoint.slot, to: Whom::Name("planner".into()), wait_ms }
}

async fn errno(socket: &AsyncFd<OwnedFd>) -> rustix::io::Errno {
    match reply(socket).await {
        Some(Reply::Refused { id: 2, errno, .. }) => rustix::io::Errno::from_raw_os_error(errno),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn who_looks_for_an_endpoint_waits_as_long_as_it_asked_to() {
    let (_broker, folder, accepting) = shop();
    let (early, planner) = (connect(folder.path()), connect(folder.path()));
    let at = bind(&early, "").await;
    say(&early, &introduce(at, 0));
    assert_eq!(errno(&early).await, rustix::io::Errno::NOTCONN);
    say(&early, &introduce(at, 20));
    assert_eq!(errno(&early).await, rustix::io::Errno::TIMEDOUT);
    say(&early, &introduce(at, u32::MAX));
    let planner_at = bind(&planner, "planner").await;
    let Some(Reply::Introduced { peer, .. }) = reply(&early).await else { panic!("not introduced") };
    assert_eq!(peer.address, planner_at);
    assert!(matches!(reply(&planner).await, Some(Reply::Event(Event::Introduced { .. }))));
    accepting.abort();
}

#[tokio::test]
async fn a_wait_ends_with_the_next_request_and_both_are_answered_in_their_order() {
    let (broker, folder, accepting) = shop();
    let early = connect(folder.path());
    let at = bind(&early, "").await;
    say(&early, &introduce(at, MAX_WAIT_MS));
    let waits = || broker.endpoint_rows("shop").iter().any(|row| row.waiting == 1);
    let patience = tokio::time::Instant::now() + Duration::from_secs(30);
    while !waits() {
        assert!(tokio::time::Instant::now() < patience, "nobody waits");
        tokio::task::yield_now().await;
    }
    say(&early, &Request::Services { id: 3 });
    assert_eq!(errno(&early).await, rustix::io::Errno::CANCELED);
    assert!(matches!(reply(&early).await, Some(Reply::Services { id: 3, .. })));
    assert!(!waits());
    accepting.abort();
}

#[tokio::test]
async fn a_name_is_free_for_the_next_program_right_after_the_one_before_has_ended() {
    let (_broker, folder, accepting) = shop();
    for _ in 0..50 {
        let (first, second) = (connect(folder.path()), connect(folder.path()));
        bind(&first, "planner").await;
        drop(first);
        bind(&second, "planner").await;
    }
    accepting.abort();
}

#[tokio::test]
async fn who_does_not_read_its_answers_is_given_no_more_descriptors_than_a_few() {
    let (broker, folder, accepting) = shop();
    let (greedy, other) = (connect(folder.path()), connect(folder.path()));
    let at = bind(&greedy, "planner").await;
    let before = descriptors();
    let buffer =
        serde_json::to_vec(&Request::Buffer { id: 2, endpoint: at.slot, bytes: 1, replaces: 0 }).unwrap();
    // The kernel holds some of what is not read; of the rest the daemon holds a few at a time.
    for _ in 0..100 {
        match sys::descriptors::send_with_descriptors(greedy.get_ref(), &buffer, &[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            sent => sent.unwrap(),
        }
        tokio::task::yield_now().await;
    }
    let other_at = bind(&other, "").await;
    say(&other, &introduce(other_at, 0));
    assert!(matches!(reply(&other).await, Some(Reply::Introduced { .. })));
    let made = broker.endpoint_rows("shop").iter().map(|row| row.buffers).sum::<usize>();
    assert!(descriptors() < before + 2 * made + 3 * MAX_ATTACHES_PER_DOMAIN + 20);
    accepting.abort();
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
