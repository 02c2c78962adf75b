//! A lane carries a stream of bytes each way over frames of Ethernet, which may be lost, doubled,
//! overtaken, spoiled, or be somebody else's (`docs/spec/lane.md`).
//!
//! A [`Lane`] is one side. Time comes in as µs that only grow; who sends frames hands them over as
//! [`Lane::prepare`] makes them ready; what comes goes to [`Lane::receive`]. It seals and opens
//! frames by whatever it is given ([`Seal`], [`Open`]), and believes nothing that can't be opened.

mod config;
mod congestion;
mod inward;
mod lane;
mod outward;
mod round_trip;

pub use config::{Broken, Config, Heard, Open, Seal, Stream, Take};
pub use lane::Lane;
