//! The programs in the domains of the machine: the controller in dom0, an agent in each guest, and
//! the jobs that they start.

mod agent;
mod checks;
mod controller;
mod jobs;
mod link;
mod measures;
mod place;

use std::process::ExitCode;

/// The failure, for a person.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["controller", "test"] => controller::run(checks::all),
        ["controller", "bench"] => controller::run(measures::all),
        ["agent"] => agent::run(),
        ["job", name, arguments @ ..] => jobs::run(name, arguments),
        _ => Err(format!("no such role: {words:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("failed: {}", chain(&*failure));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
