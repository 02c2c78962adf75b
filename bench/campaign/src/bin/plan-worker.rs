//! One end of what a plan measures, with what is ours and the kernel's: a process of its own, told
//! what to do on the standard input.

fn main() -> std::process::ExitCode {
    bench::channel::work::main(bench::ipc::transport::with)
}
