//! The grants of buffers between the endpoints of one distributed container: the table of the
//! process that hands the memories out (`docs/spec/grants.md`).
//!
//! There is no memory here. The result of a call is returned: the number, whether the memories have
//! to be sealed now, and who has to be told.

use std::collections::{BTreeMap, BTreeSet};

use wire::grants::{BUFFER_BYTES_MAX, STATE_BYTES, offset_of};
use wire::ipc::Address;

/// Data are counted in whole pages of this size.
const PAGE_BYTES: u64 = 4096;
/// So many grants that are over are remembered, the newest, so that whoever comes late is told why.
/// Older ones are as if they had never been.
const ENDS_KEPT: usize = 1024;

/// The rights of a grantee on a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it.
    Read,
    /// Read and write it.
    Write,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Access::Read => "to be read",
            Access::Write => "to be written",
        })
    }
}

/// How much there may be. It comes with each call, because a topology changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that all buffers together may have, as [`Table::bytes`] counts them.
    pub bytes: u64,
    /// Buffers.
    pub buffers: usize,
    /// Grants.
    pub grants: usize,
}

/// A grant as it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The buffer's number.
    pub buffer: u64,
    /// To whom.
    pub to: Address,
    /// The rights that the grantee gets.
    pub access: Access,
    /// Its place in the buffer's states.
    pub place: u32,
}

/// A grant as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Its number.
    pub grant: u64,
    /// The buffer that it stands for now.
    pub buffer: u64,
    /// Its place in that one's states.
    pub place: u32,
    /// The buffer's owner.
    pub owner: Address,
    /// To whom it was granted.
    pub to: Address,
    /// The grantee's rights.
    pub access: Access,
    /// Bytes of the buffer.
    pub bytes: u64,
}

/// A buffer as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Its number.
    pub buffer: u64,
    /// The buffer's owner.
    pub owner: Address,
    /// Bytes of data.
    pub bytes: u64,
    /// The access that its grants allow; `None`: it was not granted to anybody yet.
    pub access: Option<Access>,
    /// The bytes counted for it, of [`cost_bytes`]: none while the buffer that it replaces is still
    /// there.
    pub counts: u64,
}

/// The result of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its number.
    pub grant: u64,
    /// The buffer was granted for the first time: its memories have to be sealed for this access
    /// before anybody is answered.
    pub seal: bool,
    /// The endpoints that have borrowed the grant's previous buffer.
    pub tell: Vec<Address>,
}

/// A grant that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// The grant that is over.
    pub granted: Granted,
    /// Its borrowers, without those that have ended.
    pub tell: Vec<Address>,
}

/// The buffers and grants that went with an endpoint that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Its buffers.
    pub buffers: Vec<u64>,
    /// Its grants, and those that were made to it.
    pub over: Vec<Over>,
}

/// Why there is no new buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// No bytes, or too many for any topology.
    #[error("a buffer of {0} bytes can't be made: it has 1 to {BUFFER_BYTES_MAX}")]
    Size(u64),
    /// It can't replace that one.
    #[error(
        "buffer {0} can't be replaced by this one: it is none of this endpoint's, has another size, or is being replaced already"
    )]
    Replaces(u64),
    /// Too many buffers.
    #[error(
        "there are {0} buffers already, as many as `ipc.buffers` allows: free some, or raise it in the topology file"
    )]
    Buffers(usize),
    /// Too many bytes.
    #[error(
        "a buffer that takes {wanted} bytes does not fit: {left} are left of what `ipc.bytes` allows; free some, or raise it in the topology file"
    )]
    Bytes {
        /// The bytes that the buffer would take.
        wanted: u64,
        /// The bytes that are left.
        left: u64,
    },
}

/// Why a buffer was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The owner has no such buffer.
    #[error("endpoint {0} has no buffer {1}")]
    NoBuffer(Address, u64),
    /// It is the owner itself.
    #[error("endpoint {0} can't be granted a buffer of its own")]
    Oneself(Address),
    /// Grants of one buffer all allow the same.
    #[error(
        "buffer {buffer} was granted {was}, and can't be granted {asked} as well: make another one for that"
    )]
    Access {
        /// The buffer's number.
        buffer: u64,
        /// The access that its grants allow.
        was: Access,
        /// The access that was asked for.
        asked: Access,
    },
    /// There is no such place.
    #[error("there is no place {0} in the states of a buffer")]
    Place(u32),
    /// Another grant of the buffer stands there.
    #[error("place {place} of buffer {buffer} is that of grant {grant}")]
    PlaceTaken {
        /// The buffer's number.
        buffer: u64,
        /// The place in its states.
        place: u32,
        /// The grant that has the place.
        grant: u64,
    },
    /// Too many grants.
    #[error(
        "there are {0} grants already, as many as `ipc.grants` allows: revoke some, or raise it in the topology file"
    )]
    Grants(usize),
    /// The owner has no such grant to move.
    #[error("endpoint {0} has no grant {1} that could move")]
    NoGrant(Address, u64),
    /// It was taken back.
    #[error("grant {0} is over, and can't move")]
    Over(u64),
    /// It was made to somebody else, or for something else.
    #[error("grant {0} was made to {1}, {2}, and stays so wherever it moves")]
    Other(u64, Address, Access),
    /// The buffer that it would stand for is too short.
    #[error("grant {grant} is of {least} bytes, and can't move to a buffer of {bytes}")]
    Shorter {
        /// The grant's number.
        grant: u64,
        /// The bytes that it had.
        least: u64,
        /// The bytes that it would have.
        bytes: u64,
    },
}

/// Why nothing was freed or revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevokeError {
    /// The owner has no such buffer.
    #[error("endpoint {0} has no buffer {1}")]
    NoBuffer(Address, u64),
    /// The owner has no such grant.
    #[error("endpoint {0} has no grant {1}: it was never made, or is over already")]
    NoGrant(Address, u64),
}

/// Why nothing is known of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BorrowError {
    /// There is none, or none that the asker may know of.
    #[error(
        "there is no grant {0} for this endpoint: look at the number, or give the endpoint `copies = true` in the topology file \
         to copy between buffers that were granted to others"
    )]
    Unknown(u64),
    /// It is the asker's own.
    #[error("grant {0} is one of this endpoint's own buffers: read and write that one itself")]
    Own(u64),
    /// Taken back, or its buffer was freed.
    #[error("grant {0} is over: its owner has revoked it, or freed the buffer")]
    Revoked(u64),
    /// Its owner has ended.
    #[error("grant {0} is over: its owner, endpoint {1}, has ended")]
    OwnerEnded(u64, Address),
}

/// A range that is not inside of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset} are not inside of a buffer of {bytes} bytes")]
pub struct OutOfRange {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// The buffer's length, in bytes.
    pub bytes: u64,
}

/// Whether `length` bytes at `offset` are inside of a buffer of `bytes`. None at its very end are.
///
/// # Errors
/// [`OutOfRange`], also where the sum has no number.
pub fn check_range(offset: u64, length: u64, bytes: u64) -> Result<(), OutOfRange> {
    match offset.checked_add(length) {
        Some(end) if end <= bytes => Ok(()),
        _ => Err(OutOfRange { offset, length, bytes }),
    }
}

/// Bytes that a buffer takes: data in whole pages, and states.
#[must_use]
pub fn cost_bytes(bytes: u64) -> u64 {
    bytes.saturating_add(PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES + STATE_BYTES as u64
}

#[derive(Debug)]
struct Entry {
    granted: Granted,
    /// The endpoints that have borrowed it since it stands for this buffer.
    borrowers: BTreeSet<Address>,
}

/// A grant that is over.
#[derive(Clone, Copy, Debug)]
struct End {
    owner: Address,
    to: Address,
    owner_ended: bool,
}

/// The buffers and grants of one distributed container.
#[derive(Debug)]
pub struct Table {
    next: u64,
    buffers: BTreeMap<u64, Buffer>,
    grants: BTreeMap<u64, Entry>,
    ends: BTreeMap<u64, End>,
    /// Buffers that will be freed soon, and which ones take over what they count for; and the other
    /// way round.
    replacements: BTreeMap<u64, u64>,
    replaced: BTreeMap<u64, u64>,
    bytes: u64,
    /// The same once more, by what it is asked for, so that no call walks over what others have.
    owned: BTreeSet<(Address, u64)>,
    /// Grants, by buffer and place.
    places: BTreeMap<(u64, u32), u64>,
    /// Grants, by those whom they are of, or to, or who have borrowed them.
    of_endpoint: BTreeSet<(Address, u64)>,
}

impl Table {
    /// An empty one. Numbers of buffers and grants begin at `first` or 1, whichever is greater;
    /// give a later table of the same container a number that no earlier one can have come to.
    #[must_use]
    pub fn new(first: u64) -> Table {
        Table {
            next: first.max(1),
            buffers: BTreeMap::new(),
            grants: BTreeMap::new(),
            ends: BTreeMap::new(),
            replacements: BTreeMap::new(),
            replaced: BTreeMap::new(),
            bytes: 0,
            owned: BTreeSet::new(),
            places: BTreeMap::new(),
            of_endpoint: BTreeSet::new(),
        }
    }

    /// Bytes that its buffers take ([`cost_bytes`]).
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All buffers, by number.
    pub fn buffers(&self) -> impl ExactSizeIterator<Item = Buffer> {
        self.buffers.values().copied()
    }

    /// All grants, by number.
    pub fn grants(&self) -> impl ExactSizeIterator<Item = Granted> {
        self.grants.values().map(|entry| entry.granted)
    }

    /// A grant of this number.
    #[must_use]
    pub fn find(&self, grant: u64) -> Option<Granted> {
        self.grants.get(&grant).map(|entry| entry.granted)
    }

    fn number(&mut self) -> u64 {
        let number = self.next;
        // 2^64 numbers at one a nanosecond last for centuries.
        self.next = self.next.saturating_add(1);
        number
    }

    /// A new buffer, which nobody was granted yet. `replaces`: 0, or one of the same owner and size
    /// that will be freed soon; this one does not count before, so that a buffer can be moved where
    /// no room is left.
    ///
    /// # Errors
    /// See [`BufferError`].
    pub fn buffer(
        &mut self,
        owner: Address,
        bytes: u64,
        replaces: u64,
        limits: &Limits,
    ) -> Result<u64, BufferError> {
        if bytes == 0 || bytes > BUFFER_BYTES_MAX {
            return Err(BufferError::Size(bytes));
        }
        if replaces != 0 {
            return self.replacement(owner, bytes, replaces);
        }
        let buffers = self.buffers.len() - self.replacements.len();
        if buffers >= limits.buffers {
            return Err(BufferError::Buffers(buffers));
        }
        let (wanted, left) = (cost_bytes(bytes), limits.bytes.saturating_sub(self.bytes));
        if wanted > left {
            return Err(BufferError::Bytes { wanted, left });
        }
        self.bytes += wanted;
        Ok(self.insert(owner, bytes, wanted))
    }

    fn insert(&mut self, owner: Address, bytes: u64, counts: u64) -> u64 {
        let buffer = self.number();
        self.buffers.insert(buffer, Buffer { buffer, owner, bytes, access: None, counts });
        self.owned.insert((owner, buffer));
        buffer
    }

    fn replacement(&mut self, owner: Address, bytes: u64, replaces: u64) -> Result<u64, BufferError> {
        let old = self.owned(owner, replaces).filter(|old| old.bytes == bytes && old.counts != 0);
        if old.is_none() || self.replacements.contains_key(&replaces) {
            return Err(BufferError::Replaces(replaces));
        }
        let buffer = self.insert(owner, bytes, 0);
        self.replacements.insert(replaces, buffer);
        self.replaced.insert(buffer, replaces);
        Ok(buffer)
    }

    fn owned(&self, owner: Address, buffer: u64) -> Option<Buffer> {
        self.buffers.get(&buffer).copied().filter(|found| found.owner == owner)
    }

    /// Checks the conditions common to both kinds of grants. Returns the buffer.
    fn check(&self, owner: Address, wish: &Wish) -> Result<Buffer, GrantError> {
        let buffer = self.owned(owner, wish.buffer).ok_or(GrantError::NoBuffer(owner, wish.buffer))?;
        if wish.to == owner {
            return Err(GrantError::Oneself(owner));
        }
        if let Some(was) = buffer.access.filter(|was| *was != wish.access) {
            return Err(GrantError::Access { buffer: wish.buffer, was, asked: wish.access });
        }
        if offset_of(wish.place).is_none() {
            return Err(GrantError::Place(wish.place));
        }
        match self.places.get(&(wish.buffer, wish.place)) {
            Some(grant) => {
                let (buffer, place, grant) = (wish.buffer, wish.place, *grant);
                Err(GrantError::PlaceTaken { buffer, place, grant })
            }
            None => Ok(buffer),
        }
    }

    fn seal(&mut self, wish: &Wish) -> bool {
        self.buffers.get_mut(&wish.buffer).is_some_and(|buffer| buffer.access.replace(wish.access).is_none())
    }

    /// A new grant. That the two may call each other is for the caller to check.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn grant(&mut self, owner: Address, wish: &Wish, limits: &Limits) -> Result<Done, GrantError> {
        let buffer = self.check(owner, wish)?;
        if self.grants.len() >= limits.grants {
            return Err(GrantError::Grants(self.grants.len()));
        }
        let seal = self.seal(wish);
        let grant = self.number();
        let Wish { buffer: number, to, access, place } = *wish;
        let granted = Granted { grant, buffer: number, place, owner, to, access, bytes: buffer.bytes };
        self.grants.insert(grant, Entry { granted, borrowers: BTreeSet::new() });
        self.places.insert((number, place), grant);
        self.of_endpoint.extend([(owner, grant), (to, grant)]);
        Ok(Done { grant, seal, tell: Vec::new() })
    }

    /// Has a grant stand for another buffer.
    ///
    /// # Errors
    /// See [`GrantError`].
    pub fn move_grant(&mut self, owner: Address, grant: u64, wish: &Wish) -> Result<Done, GrantError> {
        let granted = match self.find(grant).filter(|found| found.owner == owner) {
            Some(granted) => granted,
            None if self.ends.get(&grant).is_some_and(|end| end.owner == owner) => {
                return Err(GrantError::Over(grant));
            }
            None => return Err(GrantError::NoGrant(owner, grant)),
        };
        let buffer = self.check(owner, wish)?;
        if (granted.to, granted.access) != (wish.to, wish.access) {
            return Err(GrantError::Other(grant, granted.to, granted.access));
        }
        if buffer.bytes < granted.bytes {
            return Err(GrantError::Shorter { grant, least: granted.bytes, bytes: buffer.bytes });
        }
        let seal = self.seal(wish);
        let moved = Granted { buffer: wish.buffer, place: wish.place, bytes: buffer.bytes, ..granted };
        let entry = Entry { granted: moved, borrowers: BTreeSet::new() };
        self.places.remove(&(granted.buffer, granted.place));
        self.places.insert((wish.buffer, wish.place), grant);
        let before = self.grants.insert(grant, entry);
        let tell: Vec<Address> = before.map_or_else(Vec::new, |entry| entry.borrowers.into_iter().collect());
        for borrower in tell.iter().filter(|borrower| **borrower != granted.to) {
            self.of_endpoint.remove(&(*borrower, grant));
        }
        Ok(Done { grant, seal, tell })
    }

    /// Takes a grant back.
    ///
    /// # Errors
    /// See [`RevokeError`].
    pub fn revoke(&mut self, owner: Address, grant: u64) -> Result<Over, RevokeError> {
        let refused = RevokeError::NoGrant(owner, grant);
        self.find(grant).filter(|found| found.owner == owner).ok_or(refused)?;
        self.end(grant, None).ok_or(refused)
    }

    /// Removes a buffer, and ends each grant that stands for it.
    ///
    /// # Errors
    /// See [`RevokeError`].
    pub fn free(&mut self, owner: Address, buffer: u64) -> Result<Vec<Over>, RevokeError> {
        self.owned(owner, buffer).ok_or(RevokeError::NoBuffer(owner, buffer))?;
        self.drop_buffer(buffer);
        let of_it = self.places.range((buffer, 0)..=(buffer, u32::MAX));
        let mut of_it: Vec<u64> = of_it.map(|(_, grant)| *grant).collect();
        of_it.sort_unstable();
        Ok(of_it.into_iter().filter_map(|grant| self.end(grant, None)).collect())
    }

    fn drop_buffer(&mut self, buffer: u64) {
        let Some(found) = self.buffers.remove(&buffer) else { return };
        self.owned.remove(&(found.owner, buffer));
        let heir = self.replacements.remove(&buffer);
        if let Some(heir) = heir {
            self.replaced.remove(&heir);
        }
        if let Some(replaced) = self.replaced.remove(&buffer) {
            self.replacements.remove(&replaced);
        }
        match heir.and_then(|heir| self.buffers.get_mut(&heir)) {
            Some(heir) => heir.counts = found.counts,
            None => self.bytes -= found.counts,
        }
    }

    /// Numbers that a set has of one endpoint.
    fn of(set: &BTreeSet<(Address, u64)>, endpoint: Address) -> Vec<u64> {
        set.range((endpoint, 0)..=(endpoint, u64::MAX)).map(|(_, number)| *number).collect()
    }

    /// Ends a grant, perhaps because an endpoint has ended.
    fn end(&mut self, grant: u64, ended: Option<Address>) -> Option<Over> {
        let Entry { granted, mut borrowers } = self.grants.remove(&grant)?;
        self.places.remove(&(granted.buffer, granted.place));
        for known in borrowers.iter().chain([&granted.owner, &granted.to]) {
            self.of_endpoint.remove(&(*known, grant));
        }
        if let Some(ended) = ended {
            borrowers.remove(&ended);
        }
        let Granted { owner, to, .. } = granted;
        self.ends.insert(grant, End { owner, to, owner_ended: ended == Some(owner) });
        if self.ends.len() > ENDS_KEPT {
            self.ends.pop_first();
        }
        Some(Over { granted, tell: borrowers.into_iter().collect() })
    }

    /// Returns the buffer that a grant stands for, for somebody who will copy. `copies`: it may for
    /// grants that were made to others.
    ///
    /// # Errors
    /// See [`BorrowError`].
    pub fn borrow(&mut self, who: Address, copies: bool, grant: u64) -> Result<Granted, BorrowError> {
        let Some(entry) = self.grants.get_mut(&grant) else {
            return Err(self.why_over(who, copies, grant));
        };
        if entry.granted.owner == who {
            return Err(BorrowError::Own(grant));
        }
        if entry.granted.to != who && !copies {
            return Err(BorrowError::Unknown(grant));
        }
        entry.borrowers.insert(who);
        self.of_endpoint.insert((who, grant));
        Ok(entry.granted)
    }

    /// Whether there is such a grant, or was of late.
    #[must_use]
    pub fn knows(&self, grant: u64) -> bool {
        self.grants.contains_key(&grant) || self.ends.contains_key(&grant)
    }

    fn why_over(&self, who: Address, copies: bool, grant: u64) -> BorrowError {
        match self.ends.get(&grant).filter(|end| copies || end.owner == who || end.to == who) {
            Some(end) if end.owner_ended => BorrowError::OwnerEnded(grant, end.owner),
            Some(_) => BorrowError::Revoked(grant),
            None => BorrowError::Unknown(grant),
        }
    }

    /// An endpoint has ended: its buffers go, and all grants that it has made or was made.
    pub fn ended(&mut self, endpoint: Address) -> Gone {
        let buffers = Self::of(&self.owned, endpoint);
        for buffer in &buffers {
            self.drop_buffer(*buffer);
        }
        let mut over = Vec::new();
        for grant in Self::of(&self.of_endpoint, endpoint) {
            let Some(entry) = self.grants.get_mut(&grant) else { continue };
            if entry.granted.owner == endpoint || entry.granted.to == endpoint {
                over.extend(self.end(grant, Some(endpoint)));
            } else {
                // It had only borrowed it.
                entry.borrowers.remove(&endpoint);
                self.of_endpoint.remove(&(endpoint, grant));
            }
        }
        Gone { buffers, over }
    }
}

#[cfg(test)]
mod tests;
