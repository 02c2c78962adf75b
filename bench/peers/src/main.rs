//! One end of what `tombolo bench channel` measures, with iceoryx2: as `channel-worker`, and that
//! besides.

mod iceoryx;

use bench::channel::task::Means;
use bench::channel::transport;

fn main() -> std::process::ExitCode {
    bench::channel::work::main(|task, meeting, job| match &task.means {
        Means::Iceoryx { .. } => iceoryx::with(task, meeting, job),
        _ => transport::with(task, meeting, job),
    })
}
