//! Helpers of the programs that tests run in domains: they say line by line how far they are.

use std::error::Error;
use std::io::Write;

/// Prints a line at once: whoever reads waits for it.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody listens any more: then nobody misses it.
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// An error with its causes, as one sentence.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
