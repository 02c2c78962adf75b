//! Buffers by hand, between endpoints that have no daemon: for tests and benches. Whoever hands a
//! grant over does what the daemon would.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use ipc::grants::Access;
use session::Memories;
use sys::memfd::{Reach, seal_for};
use wire::grants::State;
use wire::ipc::Address;

use crate::buffer::{Buffer, Given, Store};
use crate::copy::CopyError;
use crate::granting::{BufferError, GrantError, Unasked, full, no_memory};
use crate::grants::{GrantId, Granted};
use crate::loans::Loan;
use crate::{Endpoint, Failed};

/// A grant on its way, by hand: everything may be sent to another process.
#[derive(Debug)]
pub struct Handed {
    /// Its number.
    pub grant: GrantId,
    /// A number for its buffer, the same for all grants of one.
    pub buffer: u64,
    /// The owner of the buffer.
    pub owner: Address,
    /// The permitted access.
    pub access: Access,
    /// Bytes of the buffer.
    pub bytes: u64,
    /// Its place in the states.
    pub place: u32,
    /// The memory of the data.
    pub data: OwnedFd,
    /// The memory of the states.
    pub states: OwnedFd,
}

impl Endpoint {
    /// A buffer without a daemon, which knows nothing of it and does not count it.
    ///
    /// # Errors
    /// [`Failed::System`].
    pub fn buffer_alone(&mut self, bytes: usize, access: Access) -> Result<Buffer, Failed<BufferError>> {
        self.check_here()?;
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.buffers_alone += 1;
        let store = Store::make(bytes, (self.buffers_alone, 0)).map_err(no_memory)?;
        Ok(self.buffer_over(store, bytes, access, None))
    }

    /// Grants such a buffer, under a number that no other grant of the taker has. Nothing is told
    /// to anybody: hand over what is returned.
    ///
    /// # Errors
    /// See [`GrantError`]; [`GrantError::Unasked`] where the buffer is the daemon's.
    pub fn grant_alone(
        &mut self,
        buffer: &mut Buffer,
        to: Address,
        number: u64,
    ) -> Result<Handed, Failed<GrantError>> {
        self.check_here()?;
        let memory = |source: io::Error| Failed::Call(GrantError::NoMemory(source));
        let first = buffer.given.is_empty() && !buffer.sealed;
        let Some(memories) = &buffer.store.memories else {
            return Err(Failed::Call(GrantError::Unasked(Unasked::NoDaemon)));
        };
        if first {
            let reach = if buffer.access == Access::Read { Reach::Read } else { Reach::Write };
            seal_for(&memories.data, reach)
                .and_then(|()| seal_for(&memories.states, Reach::Read))
                .map_err(memory)?;
        }
        let duplicate = |memory: &OwnedFd| memory.as_fd().try_clone_to_owned();
        let (data, states) = duplicate(&memories.data)
            .and_then(|data| Ok((data, duplicate(&memories.states)?)))
            .map_err(memory)?;
        buffer.sealed = true;
        let (place, offset) = buffer.store.next_place().ok_or_else(full).map_err(Failed::Call)?;
        buffer.store.set(offset, State::Live);
        let grant = GrantId::new(number);
        buffer.given.push(Given { grant, to, place: offset });
        let (owner, access, bytes) = (buffer.owner, buffer.access, buffer.bytes);
        Ok(Handed { grant, buffer: buffer.store.number, owner, access, bytes, place, data, states })
    }

    /// Takes a grant that was handed over.
    ///
    /// # Errors
    /// [`CopyError::Unusable`].
    pub fn take_grant_alone(&mut self, handed: Handed) -> Result<GrantId, Failed<CopyError>> {
        self.check_here()?;
        let Handed { grant, buffer, owner, access, bytes, place, data, states } = handed;
        let granted = Granted { grant, owner, access, bytes };
        // Owners count for themselves, so the same number may be that of another's buffer.
        let buffer = buffer | u64::from(owner.slot) << 32;
        let entry = self.mapped(granted, (buffer, place), &Memories { data, states }, 0)?;
        self.borrowings.insert(entry);
        Ok(grant)
    }

    /// Takes the end of a channel at whose other end is what a grant of another node stands for.
    ///
    /// # Errors
    /// [`CopyError::Unusable`].
    pub fn take_loan_alone(&mut self, grant: GrantId, end: channel::End) -> Result<(), Failed<CopyError>> {
        self.check_here()?;
        let unusable = |why: channel::OpenError| CopyError::Unusable { grant, why: why.to_string() };
        let loan = Loan::open(grant, end).map_err(unusable).map_err(Failed::Call)?;
        self.loans.insert(loan, &self.pairs);
        Ok(())
    }
}
