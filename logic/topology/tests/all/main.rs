//! The rules of topology files: what is admitted, what is refused and in which words, what a change
//! does.

mod broken;
mod channel;
mod coordination;
mod endpoint;
mod example;
mod hostile;
mod plan;
mod program;
mod reference;
mod schema;
mod socket;
mod vm;
