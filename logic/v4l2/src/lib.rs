//! A V4L2 streaming device: the state of one open file ([`Session`]), the places of buffers in a
//! memory that several of them share ([`Areas`]), and the test patterns ([`pattern`]).
//!
//! Nothing here waits, has a clock, or touches the memory: times come in as arguments, in ns of one
//! monotonic clock, and who calls copies frames where it is told. The device is described in
//! `docs/spec/camera.md`.

mod areas;
mod capsule;
mod device;
mod format;
mod ioctl;
pub mod pattern;
mod refusal;
mod session;

pub use areas::Areas;
pub use device::Device;
pub use format::{Interval, Picture};
pub use ioctl::{Answer, Call};
pub use refusal::Refusal;
pub use session::{Due, Session};
