//! The memory of a granted buffer, for one who copies from and to it on behalf of an endpoint of
//! another node.

use std::sync::atomic::{Ordering, fence};

use ipc::grants::Access;
use ipc::loan::{Broken, Lent, Terms};
use session::Memories;
use wire::control::{GrantAccess, GrantedBuffer};
use wire::grants::{State, offset_of};
use wire::loan::{HEADER_BYTES, Record};

use crate::grants::{Data, Memory};
use crate::member::of_wire;

/// See [`ipc::loan::Lender`].
#[derive(Debug)]
pub struct Lender {
    logic: ipc::loan::Lender<Mapped>,
}

/// A granted buffer that is mapped, and where the state of the grant stands.
#[derive(Debug)]
struct Mapped {
    memory: Memory,
    place: usize,
}

impl Lent for Mapped {
    fn state(&self) -> State {
        State::of(self.memory.states.load_u64(self.place, Ordering::Acquire))
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        match &self.memory.data {
            Data::Read(view) => view.copy_out(offset, into),
            Data::Write(region) => region.copy_out(offset, into),
        }
    }

    fn write(&self, offset: u64, from: &[u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        // Nothing is written to what was granted to be read: the logic has seen to it, and a view
        // can't be written.
        if let Data::Write(region) = &self.memory.data {
            region.copy_in(offset, from);
        }
    }
}

impl Lender {
    /// Maps what a grant stands for.
    ///
    /// # Errors
    /// Why the memories can't be used.
    pub fn open(memories: &Memories, buffer: &GrantedBuffer) -> Result<Lender, String> {
        let access = if buffer.access == GrantAccess::Read { Access::Read } else { Access::Write };
        let place = offset_of(buffer.place).ok_or_else(|| format!("there is no place {}", buffer.place))?;
        let memory = Memory::map(memories, access, buffer.bytes)?;
        let terms =
            Terms { owner: of_wire(buffer.owner), writable: access == Access::Write, bytes: buffer.bytes };
        Ok(Lender { logic: ipc::loan::Lender::new(Mapped { memory, place }, terms) })
    }

    /// Whether a further record may be heard.
    #[must_use]
    pub fn hears(&self) -> bool {
        self.logic.hears()
    }

    /// Does what the other node says.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn hear(&mut self, message: &[u8]) -> Result<(), Broken> {
        let (header, bytes) = message
            .split_first_chunk::<HEADER_BYTES>()
            .ok_or(wire::loan::Nonsense::Length { kind: 0, length: message.len() })?;
        self.logic.hear(Record::read(*header, bytes.len())?, bytes)
    }

    /// The grant is over, or stands for another buffer.
    pub fn recall(&mut self) {
        self.logic.recall();
    }

    /// The next thing to say, behind what is in `message`. False: there is none.
    pub fn say(&mut self, message: &mut Vec<u8>, bytes: &mut Vec<u8>) -> bool {
        let Some(record) = self.logic.say(bytes) else { return false };
        message.extend_from_slice(&record.to_bytes());
        message.extend_from_slice(bytes);
        true
    }
}
