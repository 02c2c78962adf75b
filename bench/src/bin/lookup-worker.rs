//! Looks names up inside a domain, as told on the standard input. A program of its own, and a
//! dynamic one, because it has to take the ways that programs take: the C library, and what
//! `LD_PRELOAD` makes of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    match bench::directory::work::converse(&mut std::io::stdin().lock(), &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lookup-worker: {error}");
            ExitCode::FAILURE
        }
    }
}
