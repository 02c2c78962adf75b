//! Two workers exchange messages by gRPC and by zenoh.

use bench::channel::task::{Means as Chosen, Role, Tale, Task, Work};
use bench::ipc::means::{Means, Tuning, Way};
use bench::ipc::stage::SWEEP;
use bench::worker::Worker;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const ROUND_TRIPS: Work = Work::RoundTrips { at_once: 1, gap_ns: 0, warm_up_ns: 0, window_ns: 20_000_000 };
const STREAM: Work = Work::Stream { warm_up_ns: 0, window_ns: 5_000_000 };
const COPIES: Work = Work::Copies { warm_up_ns: 0, window_ns: 5_000_000 };

fn worker(role: Role, folder: &Path) -> Worker {
    let command = Command::new(env!("CARGO_BIN_EXE_ipc-peer"));
    let mut worker = Worker::start(format!("{role:?}"), command, folder).expect("it starts");
    worker.expect("ready").expect("it is ready");
    worker
}

/// The leader's account.
fn tale([lead, follow]: &mut [Worker; 2], task: &Task) -> Tale {
    let of = |role| Task { role, ..task.clone() };
    follow.give(&of(Role::Follow)).expect("it listens");
    follow.expect("waiting").expect("it waits");
    lead.give(&of(Role::Lead)).expect("it listens");
    lead.expect("primed").expect("it is primed");
    follow.expect("primed").expect("it is primed");
    follow.say("go").expect("it listens");
    lead.say("go").expect("it listens");
    let told = lead.tale(Duration::from_secs(30)).expect("it tells");
    follow.tale::<Tale>(Duration::from_secs(30)).expect("it tells");
    told
}

#[test]
fn messages_arrive_and_bulk_arrives_as_it_was_sent() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut workers = [Role::Lead, Role::Follow].map(|role| worker(role, folder.path()));
    let mut number = 0;
    for way in [Way::Grpc, Way::Zenoh] {
        for (work, bytes) in [(ROUND_TRIPS, 64), (STREAM, 64), (STREAM, 4 << 10), (COPIES, 1 << 20)] {
            number += 1;
            let tuning = Tuning { piece_bytes: bytes.min(256 << 10), ..Tuning::plain(bytes) };
            let means = Chosen::Ipc(Means { way, tuning });
            let meeting = folder.path().join(format!("m{number}"));
            let task = Task { role: Role::Lead, means, work, bytes, meeting, processor: None };
            let told = tale(&mut workers, &task);
            assert!(told.operations > 0 && told.window_ns > 0, "{way:?} {work:?}: {told:?}");
        }
    }
    drop(workers);
    let swept = Command::new(env!("CARGO_BIN_EXE_ipc-peer")).arg(SWEEP).status().expect("it starts");
    assert!(swept.success());
}
