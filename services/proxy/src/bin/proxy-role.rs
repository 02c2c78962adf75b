//! The role `proxy` alone, for tests of whoever keeps proxies: what `tombolo proxy` is.

use std::os::fd::AsFd;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = std::io::stdin().as_fd().try_clone_to_owned()?;
    println!("{}", proxy::run(listener)?);
    Ok(())
}
