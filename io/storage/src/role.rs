//! The role in which our binary gives up its privileges and becomes an engine.
//!
//! It gets its order and the descriptors over its standard input, so that no descriptor of a volume
//! is ever open to another child of the daemon's.

use rustix::io::FdFlags;
use rustix::thread::UnshareFlags;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// The first argument that asks for it.
pub const ROLE: &str = "internal-engine";
/// Longest order, in bytes: some twenty short arguments.
pub(crate) const MAX_ORDER_BYTES: usize = 16 * 1024;
/// Descriptors that come with an order at most: an image and two sockets.
pub(crate) const MAX_DESCRIPTORS: usize = 3;
/// Descriptors of an engine at most: its own dozen, and one for each client.
const OPEN_FILES: u64 = 256;
/// Exit code of a role that came to nothing.
const FAILED: u8 = 125;

/// The program that it becomes, and as whom.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    /// The program, an absolute path.
    pub program: PathBuf,
    /// Its arguments; `{N}` stands for the number of the Nth descriptor.
    pub arguments: Vec<String>,
    /// User and group.
    pub user: u32,
}

/// Becomes what the order at the standard input says. Returns only if it can't; the exit code.
#[must_use]
pub fn role_main() -> u8 {
    let error = match become_engine() {
        Ok(never) => match never {},
        Err(error) => error,
    };
    eprintln!("{error}");
    FAILED
}

fn become_engine() -> io::Result<std::convert::Infallible> {
    let mut bytes = vec![0; MAX_ORDER_BYTES];
    let (length, descriptors) =
        sys::descriptors::receive_with_descriptors(std::io::stdin(), &mut bytes, MAX_DESCRIPTORS)?;
    let order: Order = serde_json::from_slice(bytes.get(..length).unwrap_or_default())?;
    let arguments: Vec<String> = order.arguments.iter().map(|text| filled(text, &descriptors)).collect();
    // It needs no network: its sockets are handed to it, and were made outside.
    sys::namespace::unshare(UnshareFlags::NEWNET | UnshareFlags::NEWIPC)?;
    sys::privilege::drop_all(sys::privilege::Modest {
        identity: Some((order.user, order.user)),
        descriptors: OPEN_FILES,
        locked_bytes: None,
    })?;
    for descriptor in &descriptors {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    let mut command = Command::new(&order.program);
    command.args(arguments).env_clear().current_dir("/").stdin(std::process::Stdio::null());
    let error = command.exec();
    Err(io::Error::new(error.kind(), format!("can't run {}: {error}", order.program.display())))
}

fn filled(text: &str, descriptors: &[OwnedFd]) -> String {
    descriptors.iter().enumerate().fold(text.to_owned(), |text, (at, descriptor)| {
        text.replace(&format!("{{{at}}}"), &descriptor.as_raw_fd().to_string())
    })
}
