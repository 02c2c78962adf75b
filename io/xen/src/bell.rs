//! An event channel as a doorbell of a channel's end.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use channel::Doorbell;
use sys::xen::event::Port;

use crate::life::Life;

/// The state that both doorbells of an end have in common. The first field is dropped first: the
/// peer is told before it can find a port closed.
#[derive(Debug)]
struct Ends {
    _life: Life,
    data: Port,
    room: Port,
}

/// Rings and hears by one event channel.
#[derive(Debug)]
pub struct Bell {
    ends: Arc<Ends>,
    port: fn(&Ends) -> &Port,
}

/// An end's doorbells, *data* and *room*. What watches the peer lasts as long as one of them.
pub(crate) fn bells(life: Life, data: Port, room: Port) -> (Bell, Bell) {
    let ends = Arc::new(Ends { _life: life, data, room });
    let bell = |port| Bell { ends: Arc::clone(&ends), port };
    (bell(|ends| &ends.data), bell(|ends| &ends.room))
}

impl Bell {
    fn port(&self) -> &Port {
        (self.port)(&self.ends)
    }
}

impl Doorbell for Bell {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.port().as_fd()
    }

    fn listen(&self) -> io::Result<bool> {
        self.port().listen()
    }

    fn ring(&self) -> io::Result<()> {
        self.port().ring()
    }
}
