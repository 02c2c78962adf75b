//! The directory service as its consumers meet it: over real channels, with upstreams of every
//! temper.

mod answers;
mod clock;
mod header;
mod hostile;
mod name_server;
mod own_names;
mod privacy;
mod robust;
mod sessions;
mod stage;
mod upstream;
