//! The machine process as a process: with a QEMU that is a fake where no real one could be brought to do it, and with the real one.

mod fake;
mod fakes;
mod harness;
