//! The end-to-end tests: real containers, a real name server, the release binary.

mod faults;
mod hostile;
mod quickstart;
mod views;
