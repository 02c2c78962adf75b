//! A buffer of an endpoint behind a handle.

use crate::refusals;
use endpoint::Buffer;
use sys::channel_abi::{Outcome, Patience};

/// A buffer of this program's.
#[derive(Debug)]
pub struct Owned(pub Buffer);

impl Owned {
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Outcome<()> {
        self.0.read(offset, into).map_err(|error| refusals::of(&error, Patience::Never))
    }

    pub fn write(&mut self, offset: u64, from: &[u8]) -> Outcome<()> {
        self.0.write(offset, from).map_err(|error| refusals::of(&error, Patience::Never))
    }
}
