//! Two workers exchange messages by iceoryx2, and leave nothing but the name that it always leaves.

use bench::channel::task::{Means, Role, Tale, Task, Work};
use bench::worker::Worker;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const ROUND_TRIPS: Work = Work::RoundTrips { at_once: 1, gap_ns: 0, warm_up_ns: 0, window_ns: 20_000_000 };
const TRANSFER: Work = Work::Transfer { messages: 5_000 };

fn worker(role: Role, folder: &Path) -> Worker {
    let command = Command::new(env!("CARGO_BIN_EXE_channel-peer"));
    let mut worker = Worker::start(format!("{role:?}"), command, folder).expect("it starts");
    worker.expect("ready").expect("it is ready");
    worker
}

/// The leader's account.
fn tale([lead, follow]: &mut [Worker; 2], task: &Task) -> Tale {
    let processors = sys::processor::allowed().expect("our processors");
    let of = |role, processor| Task { role, processor: Some(processor), ..task.clone() };
    follow.give(&of(Role::Follow, processors[processors.len() - 1])).expect("it listens");
    follow.expect("waiting").expect("it waits");
    lead.give(&of(Role::Lead, processors[0])).expect("it listens");
    lead.expect("primed").expect("it is primed");
    follow.expect("primed").expect("it is primed");
    follow.say("go").expect("it listens");
    lead.say("go").expect("it listens");
    follow.tale::<Tale>(Duration::from_secs(30)).expect("it tells");
    lead.tale(Duration::from_secs(30)).expect("it tells")
}

/// Names in `/dev/shm` that start with this, once they have been taken away.
fn swept(prefix: &str) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names.filter(|name| name.starts_with(prefix)).collect();
    for name in &left {
        std::fs::remove_file(Path::new("/dev/shm").join(name)).expect("it can be taken away");
    }
    left
}

#[test]
fn messages_arrive_by_polling_and_by_a_listener_and_one_name_is_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = format!("tombolo-peers-{}_", std::process::id());
    let mut workers = [Role::Lead, Role::Follow].map(|role| worker(role, folder.path()));
    let mut number = 0;
    for listener in [false, true] {
        for work in [ROUND_TRIPS, TRANSFER] {
            number += 1;
            let means = Means::Iceoryx {
                listener,
                root: folder.path().to_path_buf(),
                prefix: prefix.clone(),
                ring_bytes: 1 << 16,
            };
            let meeting = folder.path().join(format!("m{number}"));
            let task = Task { role: Role::Lead, means, work, bytes: 64, meeting, processor: Some(0) };
            let told = tale(&mut workers, &task);
            assert!(told.operations > 0 && told.window_ns > 0, "listener {listener}: {told:?}");
            if let Work::Transfer { messages } = work {
                assert_eq!(told.operations, messages);
            }
        }
    }
    drop(workers);
    // One name iceoryx2 keeps for all nodes of a prefix; the bench sweeps it away.
    let left = swept(&prefix);
    assert!(left.iter().all(|name| name.ends_with(".global_mgmt")), "{left:?}");
}
