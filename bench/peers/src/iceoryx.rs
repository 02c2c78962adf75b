//! iceoryx2: one service of slices of bytes for each direction, no overflow, the sender waiting for
//! room, so that nothing is lost. The receiver polls, or sleeps on a listener that the sender
//! notifies after each sample.

use bench::channel::meeting::Meeting;
use bench::channel::task::{Means, Role, Tale, Task};
use bench::channel::transport::{Job, Transport};
use iceoryx2::port::listener::Listener;
use iceoryx2::port::notifier::Notifier;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::port::update_connections::UpdateConnections;
use iceoryx2::prelude::*;
use std::io;

/// Fewest and most samples in flight. Above some hundreds nothing is won.
const SAMPLES: std::ops::RangeInclusive<usize> = 4..=512;

type Bytes = [u8];
type Service = ipc::Service;

/// One end.
struct Iceoryx {
    publisher: Publisher<Service, Bytes, ()>,
    subscriber: Subscriber<Service, Bytes, ()>,
    bell: Option<(Notifier<Service>, Listener<Service>)>,
    message: Vec<u8>,
    // Last: it outlives the ports.
    _node: Node<Service>,
}

/// Makes this end, and does the job with it.
pub fn with(task: &Task, meeting: &mut Meeting, job: impl Job) -> io::Result<Tale> {
    set_log_level(LogLevel::Error);
    let end = Iceoryx::open(task, meeting)?;
    job.run(end)
}

fn other(error: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("iceoryx2: {error:?}"))
}

impl Iceoryx {
    fn open(task: &Task, meeting: &mut Meeting) -> io::Result<Self> {
        let Means::Iceoryx { listener, root, prefix, ring_bytes } = &task.means else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut config = Config::default();
        let root = root.to_string_lossy();
        config.global.set_root_path(&Path::new(root.as_bytes()).map_err(other)?);
        config.global.prefix = FileName::new(prefix.as_bytes()).map_err(other)?;
        let node = NodeBuilder::new().config(&config).create::<Service>().map_err(other)?;
        // The path of the meeting is of this repetition alone.
        let name = task.meeting.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.ok_or(io::ErrorKind::InvalidInput)?;
        let (outward, inward) = match task.role {
            Role::Lead => ("there", "back"),
            Role::Follow => ("back", "there"),
        };
        let samples = (*ring_bytes as usize / task.bytes.max(1)).clamp(*SAMPLES.start(), *SAMPLES.end());
        let service = |way: &str| {
            let name = ServiceName::new(&format!("{name}/{way}")).map_err(other)?;
            node.service_builder(&name)
                .publish_subscribe::<Bytes>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(samples)
                .subscriber_max_borrowed_samples(1)
                .open_or_create()
                .map_err(other)
        };
        let publisher = service(outward)?
            .publisher_builder()
            .initial_max_slice_len(task.bytes)
            .max_loaned_samples(1)
            .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
            .create()
            .map_err(other)?;
        let subscriber = service(inward)?.subscriber_builder().create().map_err(other)?;
        let bell = if *listener { Some(bell(&node, &name, outward, inward)?) } else { None };
        // Both have their ports: then each may look for the other's.
        meeting.together(task.role)?;
        publisher.update_connections().map_err(other)?;
        meeting.together(task.role)?;
        Ok(Self { publisher, subscriber, bell, message: vec![0; task.bytes], _node: node })
    }
}

fn bell(
    node: &Node<Service>,
    name: &str,
    outward: &str,
    inward: &str,
) -> io::Result<(Notifier<Service>, Listener<Service>)> {
    let service = |way: &str| {
        let name = ServiceName::new(&format!("{name}/{way}/bell")).map_err(other)?;
        node.service_builder(&name).event().open_or_create().map_err(other)
    };
    let notifier = service(outward)?.notifier_builder().create().map_err(other)?;
    let listener = service(inward)?.listener_builder().create().map_err(other)?;
    Ok((notifier, listener))
}

impl Transport for Iceoryx {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let sample = self.publisher.loan_slice_uninit(message.len()).map_err(other)?;
        sample.write_from_slice(message).send().map_err(other)?;
        if let Some((notifier, _)) = &self.bell {
            notifier.notify().map_err(other)?;
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<&[u8]> {
        loop {
            if let Some(sample) = self.subscriber.receive().map_err(other)? {
                self.message.copy_from_slice(sample.payload());
                return Ok(&self.message);
            }
            match &self.bell {
                Some((_, listener)) => {
                    listener.blocking_wait(|_| {}).map_err(other)?;
                }
                None => std::hint::spin_loop(),
            }
        }
    }
}
