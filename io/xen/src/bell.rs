//! An event channel as a doorbell of a channel's end.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use channel::Doorbell;
use sys::xen::event::Port;

use crate::life::Life;

/// Rings and hears by one event channel.
#[derive(Debug)]
pub struct Bell {
    port: Port,
    /// What watches the peer is wanted as long as one of the two doorbells is.
    _life: Arc<Life>,
}

impl Bell {
    pub(crate) fn new(port: Port, life: &Arc<Life>) -> Self {
        Self { port, _life: Arc::clone(life) }
    }
}

impl Doorbell for Bell {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }

    fn listen(&self) -> io::Result<bool> {
        self.port.listen()
    }

    fn ring(&self) -> io::Result<()> {
        self.port.ring()
    }
}
