//! Positions: what a receiver says ([`Receiver`]), where signal strengths were measured
//! ([`Survey`]), which of several sources counts ([`Choice`]), and what clients are told in the
//! words of NMEA 0183 ([`sentences`]) and of gpsd ([`gpsd`]).
//!
//! Nothing here reads a clock, a file or a socket; each time comes with the call.

mod choice;
mod fix;
pub mod gpsd;
mod nmea;
mod receiver;
pub mod sentences;
mod survey;

pub use choice::{Candidate, Choice};
pub use fix::{Absurd, Fix};
pub use nmea::LineError;
pub use receiver::Receiver;
pub use survey::{Survey, SurveyError, Tracker};
