//! The role `replica` alone, for tests: what `tombolo replica` is.

use std::os::fd::AsFd;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    Ok(replica::run(listener)?)
}
