//! The service of cameras: each is a file that behaves as a streaming device of V4L2, for
//! unmodified programs (`docs/spec/camera.md`).
//!
//! One thread serves all open files of all domains. Which ioctl does what is decided by `v4l2`;
//! here frames are made when they are due, and copied to where the programs of a domain have mapped
//! them: into the memory that the domain has with the service, which no other domain sees.

mod memory;
mod open;
mod service;
mod source;

pub use service::service;
