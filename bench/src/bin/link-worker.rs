//! One end of what `tombolo bench link` measures: a process of its own, told what to do on the
//! standard input.

fn main() -> std::process::ExitCode {
    bench::channel::work::main(bench::links::transport::with)
}
