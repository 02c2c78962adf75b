//! A machine with a Xen hypervisor, dom0 and two guests, under QEMU: made of Debian's packages by
//! our own builder (`image`), started from nothing, gone when it is dropped.
//!
//! dom0 runs `xen_peer controller`, which creates the guests, has them and itself try things, and
//! says what came out line by line on its second serial port. The guests run `xen_peer agent`.
//! Nothing in it is ours but that one program.

pub mod machine;

pub use e2e::report::Report;
pub use machine::{What, run};
