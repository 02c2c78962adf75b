//! The stand-in for an endpoint of another node, over the end of a channel to one on this node.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use channel::{End, OpenError, OpenOptions};
use ipc::{Broken, Said, Turn};
use wire::ipc::Address;

use crate::link::{Common, Pair};

/// See [`ipc::StandIn`]. It waits for nothing: whoever has it listens to its doorbell.
#[derive(Debug)]
pub struct StandIn {
    logic: ipc::StandIn<Pair>,
    common: Arc<Common>,
}

impl StandIn {
    /// Takes the place of `remote` at the end of a channel that was made for it and `local` alone.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(end: End, local: Address, remote: Address) -> Result<StandIn, OpenError> {
        let end = end.open_duplex(&OpenOptions::default())?;
        let common = Arc::new(Common::default());
        let logic = ipc::StandIn::new(Pair::new(end, 0, Arc::clone(&common)), local, remote);
        Ok(StandIn { logic, common })
    }

    /// Looks what the endpoint has done.
    ///
    /// # Errors
    /// A rule that the endpoint has broken.
    pub fn turn(&mut self, say: &mut VecDeque<Said>) -> Result<Turn, Broken> {
        self.logic.turn(say)
    }

    /// Does what the other node says of the peer.
    ///
    /// # Errors
    /// A rule that the other one has broken.
    pub fn hear(&mut self, said: Said, say: &mut VecDeque<Said>) -> Result<(), Broken> {
        self.logic.hear(said, say)
    }

    /// Says that nobody looks until the doorbell rings; then make a turn. True: it may fail to
    /// ring, so look again before long.
    pub fn listen(&mut self) -> bool {
        self.common.set_nap(false);
        self.logic.listen();
        self.common.is_blind()
    }

    /// Takes that back.
    pub fn stop_listening(&mut self) {
        self.logic.stop_listening();
    }

    /// Readable when the endpoint has rung, hung up when it is gone.
    #[must_use]
    pub fn doorbell(&self) -> BorrowedFd<'_> {
        self.logic.link().end().doorbell()
    }

    /// Takes off what rang, and notices the death of the endpoint's program. What the kernel has
    /// refused comes back here.
    ///
    /// # Errors
    /// The text of what the kernel says.
    pub fn drain(&mut self) -> Result<(), String> {
        self.logic.link_mut().end_mut().drain_doorbell().map_err(|e| e.to_string())?;
        match self.common.take_trouble() {
            Some(trouble) => Err(trouble.to_string()),
            None => Ok(()),
        }
    }

    /// Bytes of one ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.logic.link().end().ring_bytes()
    }
}
