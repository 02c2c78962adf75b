//! The state connection over a registry in memory.

use super::*;
use registry::{Memory, Registry};
use rustix::net::{recv, send};

/// A server's end, which waits for its answers.
struct Server(OwnedFd);

impl Server {
    fn connect(keeper: &Arc<StateKeeper>, service: &str) -> Self {
        Self(keeper.connect("dc", service).unwrap())
    }

    /// Sends bytes, and waits for one packet; `None`: the daemon hung up.
    async fn raw(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let sent = send(&self.0, bytes, SendFlags::NOSIGNAL);
        if sent.is_err() {
            return None;
        }
        self.next().await
    }

    async fn next(&self) -> Option<Vec<u8>> {
        let socket = self.0.try_clone().unwrap();
        let received = crate::base::blocking(move || {
            let mut packet = vec![0; MAX_STATE_PACKET_BYTES + 1];
            let (_, length) = recv(&socket, &mut packet[..], RecvFlags::empty()).unwrap_or((0, 0));
            packet.truncate(length);
            packet
        });
        Some(received.await.unwrap()).filter(|packet| !packet.is_empty())
    }

    async fn ask(&self, ask: Ask) -> Tell {
        Tell::decode(&self.raw(&ask.encode()).await.expect("the daemon answers")).unwrap()
    }

    async fn commit(&self, expected: u64, head: &str, changes: &[(&str, Option<&str>)]) -> Tell {
        let own = |(key, value): &(&str, Option<&str>)| {
            ((*key).to_owned(), value.map(|value| value.as_bytes().to_vec()))
        };
        let changes = changes.iter().map(own).collect();
        self.ask(Ask::Commit { expected, head: head.as_bytes().to_vec(), changes }).await
    }
}

fn keeper() -> (Arc<StateKeeper>, Arc<Memory>) {
    let registry = Arc::new(Memory::default());
    (StateKeeper::new(Arc::clone(&registry) as _), registry)
}

fn committed(tell: Tell) -> u64 {
    match tell {
        Tell::Committed(revision) => revision,
        other => panic!("not committed: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_is_loaded_by_the_next_server_and_the_last_one_is_superseded() {
    let (keeper, _registry) = keeper();
    let first = Server::connect(&keeper, "sync");
    assert_eq!(first.ask(Ask::Load).await, Tell::Loaded);
    let one = committed(first.commit(0, "one", &[("n/kv/a", Some("1")), ("n/kv/b", Some("2"))]).await);
    let two = committed(first.commit(one, "two", &[("n/kv/a", None)]).await);
    assert_eq!(committed(first.commit(two, "", &[]).await), two, "it is still the one");
    // Another node's server has its own connection to the same registry.
    let other = StateKeeper::new(Arc::clone(&keeper.registry));
    let second = Server::connect(&other, "sync");
    let record =
        |key: &str, revision, value: &[u8]| Tell::Record { key: key.into(), revision, value: value.into() };
    assert_eq!(second.ask(Ask::Load).await, record("", two, b"two"));
    let next = Tell::decode(&second.next().await.unwrap()).unwrap();
    assert_eq!(next, record("n/kv/b", one, b"2"));
    assert_eq!(Tell::decode(&second.next().await.unwrap()).unwrap(), Tell::Loaded);
    committed(second.commit(two, "second", &[]).await);
    assert_eq!(first.commit(two, "three", &[("n/kv/a", Some("stale"))]).await, Tell::Superseded);
    assert_eq!(first.commit(two, "", &[]).await, Tell::Superseded);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_is_asked_again_is_made_once() {
    let (keeper, registry) = keeper();
    let server = Server::connect(&keeper, "sync");
    let one = committed(server.commit(0, "one", &[("n/kv/a", Some("1"))]).await);
    assert_eq!(committed(server.commit(0, "one", &[("n/kv/a", Some("1"))]).await), one);
    assert_eq!(registry.get("coordination/dc/sync/head").unwrap().unwrap().revision, one);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_reaches_its_own_keys_alone_and_a_new_connection_ends_the_one_before() {
    let (keeper, registry) = keeper();
    registry.put("desired/dc", b"secret", Expected::Anything).unwrap();
    registry.put("coordination/dc/synchronous/n/kv/a", b"secret", Expected::Anything).unwrap();
    let server = Server::connect(&keeper, "sync");
    assert_eq!(server.ask(Ask::Load).await, Tell::Loaded);
    committed(server.commit(0, "one", &[("../../desired/dc", Some("mine"))]).await);
    assert_eq!(registry.get("desired/dc").unwrap().unwrap().value, b"secret");
    let next = Server::connect(&keeper, "sync");
    assert_eq!(server.next().await, None, "the earlier connection has ended");
    assert!(matches!(next.ask(Ask::Load).await, Tell::Record { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_quota_is_refused_with_what_to_do_and_nonsense_ends_the_connection() {
    let (keeper, _registry) = keeper();
    let server = Server::connect(&keeper, "sync");
    let mut revision = 0;
    let value = "x".repeat(32 * 1024);
    let mut refused = None;
    // The pauses of the budget are virtual here: whatever it takes, the quota comes first.
    for number in 0..wire::coordination::MAX_STATE_RECORDS {
        let (a, b) = (format!("n/kv/{number}a"), format!("n/kv/{number}b"));
        match server.commit(revision, &format!("h{number}"), &[(&a, Some(&value)), (&b, Some(&value))]).await
        {
            Tell::Committed(at) => revision = at,
            other => {
                refused = Some(other);
                break;
            }
        }
    }
    let Some(Tell::Failed { again: false, message }) = refused else { panic!("{refused:?}") };
    assert!(message.contains("remove keys"), "{message}");
    committed(server.commit(revision, "less", &[("n/kv/0a", None)]).await);
    assert_eq!(server.raw(&[99, 1, 2]).await, None, "nonsense");
    let other = Server::connect(&keeper, "sync");
    assert_eq!(other.raw(&vec![2; MAX_STATE_PACKET_BYTES + 1]).await, None, "too long");
}
