//! A client or a server of stream sockets that knows nothing of us: plain calls of the standard
//! library.

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["serve", place] => bench::sockets::work::serve(place),
        ["ask"] => {
            bench::sockets::work::converse(&mut std::io::stdin().lock(), &mut std::io::stdout().lock())
        }
        _ => Err(std::io::Error::other("usage: socket-worker serve PLACE | ask")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("socket-worker: {error}");
            ExitCode::FAILURE
        }
    }
}
