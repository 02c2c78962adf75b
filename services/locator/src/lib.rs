//! The service of locations: one receiver that has several sources, of which the one that serves
//! best counts (`docs/spec/location.md`).
//!
//! Each source has a thread that reads it. Whatever they tell goes into one [`Desk`](desk::Desk),
//! which chooses, and hands the positions of the source that counts on: to the files of the
//! service, and to clients of gpsd's protocol.

mod desk;
mod hub;
mod outputs;
mod service;
mod source;

pub use service::service;
