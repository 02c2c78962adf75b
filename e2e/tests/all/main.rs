//! The end-to-end tests: real containers, a real name server, the release binary.

mod channels;
mod faults;
mod guest;
mod hostile;
mod languages;
mod missing;
mod quickstart;
mod roots;
mod views;
