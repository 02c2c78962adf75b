//! The machine process as a process: with a QEMU that is a fake where no real one could be brought
//! to do it, and with the real one.

#![allow(clippy::unwrap_used, reason = "a test that can not go on says where")]

mod fake;
mod fakes;
mod harness;
mod real;
mod relays;
