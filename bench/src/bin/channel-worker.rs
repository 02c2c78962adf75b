//! One end of what `tombolo bench channel` measures: a process of its own, told what to do on the
//! standard input.

fn main() -> std::process::ExitCode {
    bench::channel::work::main(|task, meeting, job| bench::channel::transport::with(task, meeting, job))
}
