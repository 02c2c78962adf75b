//! zenoh: two peers without a router and without scouting, joined by a Unix socket. Each publishes
//! what the other subscribes to. Messages that are long enough are written into shared memory;
//! nothing is dropped.

use bench::channel::meeting::Meeting;
use bench::channel::task::{Role, Tale, Task, Work};
use bench::channel::transport::{Job as _, Transport};
use bench::channel::work::Messages;
use bench::ipc::copies::{Bulk, PLACES, words_at};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zenoh::bytes::ZBytes;
use zenoh::handlers::{FifoChannel, FifoChannelHandler};
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::shm::{BlockOn, GarbageCollect, PosixShmProviderBackend, ShmProvider, ShmProviderBuilder};
use zenoh::{Config, Session, Wait};

/// Where the follower listens, in a network namespace of its own: as zenoh does by default.
const PORT: u16 = 7447;
/// From so many bytes on shared memory pays (its documentation says 3072).
const SHARED_BYTES: usize = 3072;
/// Shared memory for messages on their way, in bytes: several of the longest.
const POOL_BYTES: usize = 64 << 20;
/// Messages that wait for the worker, at most.
const QUEUE_MESSAGES: usize = 1024;
/// How long the two may take to find each other.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long one hello is waited for before the next is sent.
const HELLO_INTERVAL: Duration = Duration::from_millis(5);
/// The message that says that everything was taken.
const TAKEN: [u8; 1] = [1];

/// Makes this end, and does the job with it.
///
/// # Errors
/// Those of zenoh, and of the job.
pub fn with(task: &Task, meeting: &mut Meeting, job: Messages<'_, '_>) -> io::Result<Tale> {
    let place = task.meeting.with_extension("zenoh");
    let mut end = Zenoh::open(task, meeting, &format!("unixsock-stream/{}", place.display()), true)?;
    let tale = match task.work {
        Work::Copies { .. } => job.copy(&mut end),
        _ => job.run(&mut end),
    };
    // The other one may still want what is on its way.
    meeting.together(task.role)?;
    end.session.close().wait().map_err(other)?;
    tale
}

/// The same from node to node, over TCP, without shared memory.
///
/// # Errors
/// Those of zenoh, and of the job.
pub fn between(
    task: &Task,
    means: &bench::links::means::Means,
    meeting: &mut Meeting,
    job: Messages<'_, '_>,
) -> io::Result<Tale> {
    let place = SocketAddr::new(means.address, PORT);
    let mut end = Zenoh::open(task, meeting, &format!("tcp/{place}"), false)?;
    let tale = job.run(&mut end);
    // The other one may still want what is on its way.
    meeting.together(task.role)?;
    end.session.close().wait().map_err(other)?;
    tale
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    crate::other("zenoh")(error.into())
}

type Pool = ShmProvider<PosixShmProviderBackend>;

/// One end.
struct Zenoh {
    publisher: Publisher<'static>,
    subscriber: Subscriber<FifoChannelHandler<Sample>>,
    pool: Option<Pool>,
    message: Vec<u8>,
    // Last: it outlives the others.
    session: Session,
}

impl Zenoh {
    fn open(task: &Task, meeting: &mut Meeting, place: &str, shares: bool) -> io::Result<Self> {
        // The follower listens before the leader connects.
        let session = match task.role {
            Role::Lead => {
                meeting.together(task.role)?;
                zenoh::open(config(task, place, shares)?).wait().map_err(other)?
            }
            Role::Follow => {
                let session = zenoh::open(config(task, place, shares)?).wait().map_err(other)?;
                meeting.together(task.role)?;
                session
            }
        };
        let (outward, inward) = match task.role {
            Role::Lead => ("there", "back"),
            Role::Follow => ("back", "there"),
        };
        let subscriber = session
            .declare_subscriber(inward)
            .with(FifoChannel::new(QUEUE_MESSAGES))
            .wait()
            .map_err(other)?;
        let publisher = session
            .declare_publisher(outward)
            .congestion_control(CongestionControl::Block)
            .express(matches!(task.work, Work::RoundTrips { .. } | Work::Exchange(_)))
            .wait()
            .map_err(other)?;
        let pool = if shares && task.bytes >= SHARED_BYTES {
            Some(ShmProviderBuilder::default_backend(POOL_BYTES).wait().map_err(other)?)
        } else {
            None
        };
        let mut end = Self { publisher, subscriber, pool, message: vec![1; task.bytes], session };
        end.greet()?;
        // Both have heard the other: from here on nothing is lost.
        meeting.together(task.role)?;
        Ok(end)
    }

    /// Says hello, an empty message, until the other's has come: only then both know what the other
    /// subscribes to. Some more may come later.
    fn greet(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            self.publisher.put(ZBytes::default()).wait().map_err(other)?;
            if self.subscriber.recv_timeout(HELLO_INTERVAL).map_err(other)?.is_some() {
                return self.publisher.put(ZBytes::default()).wait().map_err(other);
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "the two peers of zenoh did not find each other"))
    }

    fn publish(&self, message: &[u8]) -> io::Result<()> {
        let payload = match &self.pool {
            Some(pool) if message.len() >= SHARED_BYTES => {
                let room = pool.alloc(message.len()).with_policy::<BlockOn<GarbageCollect>>();
                let mut room = room.wait().map_err(other)?;
                room.copy_from_slice(message);
                room.into()
            }
            _ => ZBytes::from(message),
        };
        self.publisher.put(payload).wait().map_err(other)
    }

    /// The next one that is no hello.
    fn next(&self) -> io::Result<Sample> {
        loop {
            let sample = self.subscriber.recv().map_err(other)?;
            if !sample.payload().is_empty() {
                return Ok(sample);
            }
        }
    }
}

fn config(task: &Task, place: &str, shares: bool) -> io::Result<Config> {
    let mut config = Config::default();
    let place = format!("[\"{place}\"]");
    let shares = if shares { "true" } else { "false" };
    let end = if task.role == Role::Lead { "connect/endpoints" } else { "listen/endpoints" };
    let settings = [
        ("mode", "\"peer\""),
        ("scouting/multicast/enabled", "false"),
        ("scouting/gossip/enabled", "false"),
        ("listen/endpoints", "[]"),
        (end, &place),
        ("transport/shared_memory/enabled", shares),
        ("transport/shared_memory/mode", "\"init\""),
        // Messages are put into shared memory by hand, from a pool that is large enough.
        ("transport/shared_memory/transport_optimization/enabled", "false"),
    ];
    for (name, value) in settings {
        config.insert_json5(name, value).map_err(other)?;
    }
    Ok(config)
}

impl Transport for &mut Zenoh {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.publish(message)
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        let sample = self.next()?;
        let found = sample.payload().to_bytes();
        self.message.clear();
        self.message.extend_from_slice(&found);
        Ok(&self.message)
    }
}

impl Bulk for &mut Zenoh {
    fn give(&mut self, message: &[u8]) -> io::Result<()> {
        self.publish(message)
    }

    fn take(&mut self, places: &[usize; PLACES]) -> io::Result<[u64; PLACES]> {
        // It is in shared memory, which nobody else changes: that counts as arrived.
        words_at(&self.next()?.payload().to_bytes(), places)
    }

    fn acknowledge(&mut self) -> io::Result<()> {
        self.publish(&TAKEN)
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        if *self.next()?.payload().to_bytes() == TAKEN {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}
