//! QEMU: how it is called, what it says.

pub(crate) mod command_line;
pub(crate) mod events;
pub(crate) mod kvm;
pub(crate) mod process;
