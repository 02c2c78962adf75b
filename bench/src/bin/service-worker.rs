//! The server and the client of what `tombolo bench services` measures.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["serve"] => bench::services::server::serve().map_err(std::io::Error::other),
        ["ask"] => {
            bench::services::work::converse(&mut std::io::stdin().lock(), &mut std::io::stdout().lock())
        }
        _ => Err(std::io::Error::other("usage: service-worker serve | ask")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("service-worker: {error}");
            ExitCode::FAILURE
        }
    }
}
