//! Virtual machines as the benches use them: domains like any other, whose image has the bench's
//! programs in it, and which are given a network card while they run, for the sake of what we are
//! compared with.

pub mod card;
pub mod image;

pub use card::{Card, Network};
pub use image::{Image, PROGRAMS};

use crate::machine::check_programs;
use crate::scenario::BenchError;

/// Memory of a guest: enough for either program and its libraries, beside the kernel.
const MEMORY: &str = "256MiB";

/// Whether this machine can have guests at all.
///
/// # Errors
/// [`BenchError::Missing`] with what it lacks.
pub fn check() -> Result<(), BenchError> {
    check_programs(&["qemu-system-x86_64", "ip", "nsenter", "unshare"])
}

/// The lines that make a domain of a topology file a virtual machine. Always by emulation: the
/// goals speak of that, and so a run means the same wherever it is made.
#[must_use]
pub fn topology(image: &Image) -> String {
    format!(
        "kind = \"vm\"\nmachine = {{ accel = \"tcg\", memory = \"{MEMORY}\", kernel = \"{}\", initramfs = \"{}\" }}\n",
        image.kernel.display(),
        image.initramfs.display()
    )
}
