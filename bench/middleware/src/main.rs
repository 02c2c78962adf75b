//! One end of what `tombolo bench ipc` and `tombolo bench link` measure, with gRPC or zenoh.

mod grpc;
mod pieces;
mod zenoh;

use bench::channel::meeting::Meeting;
use bench::channel::task::{Means as Chosen, Tale, Task};
use bench::channel::work::Messages;
use bench::ipc::means::Way;
use bench::ipc::stage::SWEEP;
use bench::ipc::transport;
use bench::links;
use std::io;

fn with(task: &Task, meeting: &mut Meeting, job: Messages<'_, '_>) -> io::Result<Tale> {
    match &task.means {
        Chosen::Ipc(means) if means.way == Way::Grpc => grpc::with(task, &means.tuning, meeting, job),
        Chosen::Ipc(means) if means.way == Way::Zenoh => zenoh::with(task, meeting, job),
        Chosen::Link(means) => match means.way {
            links::means::Way::Grpc { tls } => grpc::between(task, means, tls, meeting, job),
            links::means::Way::Zenoh => zenoh::between(task, means, meeting, job),
            _ => links::transport::with(task, meeting, job),
        },
        _ => transport::with(task, meeting, job),
    }
}

fn main() -> std::process::ExitCode {
    if std::env::args().nth(1).is_some_and(|word| word == SWEEP) {
        // zenoh leaves names of shared memory behind when a program ends, and takes them away
        // itself when another asks it to.
        ::zenoh::shm::cleanup_orphaned_shm_segments();
        return std::process::ExitCode::SUCCESS;
    }
    bench::channel::work::main(with)
}

/// An error of other people's as one of the bench.
fn other(who: &'static str) -> impl Fn(Box<dyn std::error::Error + Send + Sync>) -> io::Error {
    move |error| io::Error::other(format!("{who}: {error}"))
}
