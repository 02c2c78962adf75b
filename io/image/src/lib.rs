//! Guest images: from a [`Spec`] (a kernel, its modules by name, programs with the libraries that
//! they need, files) to an [`Image`], which is a kernel and an initramfs that QEMU boots.
//!
//! [`build`] keeps images in a cache by the content of everything that goes into them: the same
//! inputs are the same image, and a changed input is another one. [`guest`] is the spec of a guest
//! of ours: busybox, our own binary, and an init that mounts what it needs and then runs the agent
//! where the machine has its port, else `/etc/tombolo/start`, or a shell where there is none.
//! [`default_guest`] is the image of a virtual machine that is a domain.
//!
//! Nothing is fetched here, and nothing is run: packages are read as they were unpacked.

mod build;
mod cpio;
mod elf;
mod error;
mod guest;
mod kernel;
mod lz4;
mod modules;
mod plan;
mod python;
mod spec;

pub use build::{Image, MAX_IMAGES, Progress, build, copy_to};
pub use error::ImageError;
pub use guest::{
    GUEST_MODULES, GuestPrograms, LIBRARIES, OPTIONAL_MODULES, START, cache, default_guest, find_program,
    guest,
};
pub use kernel::Kernel;
pub use python::PYTHON;
pub use spec::{Compression, Entry, Spec};
