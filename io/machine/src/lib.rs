//! The machine process of a domain of kind `vm`: `docs/spec/machine.md` and `docs/spec/guest.md`
//! are what it does.

mod asks;
mod clock;
mod console;
pub mod guest;
mod kvm;
mod link;
mod order;
mod outcome;
mod ports;
mod qemu;
mod relay;
mod run;
#[cfg(test)]
mod testing;
mod verdict;
mod writer;

pub use kvm::{KVM_ROLE, NoKvm, Step, kvm_main, probe_kvm};
pub use order::{
    Accel, DIRECTORY, Disk, DiskFormat, MAX_CPUS, MAX_ORDER_BYTES, MIN_MEMORY_BYTES, MachineOrder,
    ORDER_FILE, OrderError, SOCKET_FILE, VolumeDisk,
};
pub use outcome::{
    CODE_OF_KILL, CODE_OF_MACHINE, MAX_MESSAGE_BYTES, MAX_OUTCOME_BYTES, OUTCOME_FILE, Outcome, Word,
};
pub use qmp::clean;
pub use run::{Ended, Patience, run, run_with};
