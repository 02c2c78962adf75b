//! The ledger: what a successor needs, in a memfd that outlives this process. `docs/spec/ledger.md`
//! has the bytes.
//!
//! A slot has two halves that are written in turn, each with a sequence number and a checksum, so
//! that a process which is killed while it writes leaves the older half whole.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use rustix::fs::FallocateFlags;

/// First word of a half: "TLGR".
const MAGIC: u32 = u32::from_le_bytes(*b"TLGR");
/// Version of the slots and of the records in them.
pub(crate) const VERSION: u32 = 1;
/// Bytes from one half to the next; a memfd is sparse, so only what is written takes memory.
pub(crate) const HALF_BYTES: u64 = 512 * 1024;
/// Bytes of the head of a half: magic, version, sequence, length, reserved, checksum.
pub(crate) const HEAD_BYTES: usize = 32;
/// Longest record, in bytes.
pub(crate) const RECORD_BYTES_MAX: usize = HALF_BYTES as usize - HEAD_BYTES;
/// Most slots that a ledger is read to: beyond, the file is not ours.
pub(crate) const SLOTS_MAX: usize = 4130;
/// A cleared slot gives its memory back from here on; the first page of each half is kept for the
/// next record.
const KEPT_BYTES: u64 = 4096;

/// This process's record of one slot.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    sequence: u64,
    /// The longest record since the slot was last cleared.
    longest: usize,
}

/// Whole records, by slot.
pub(crate) type Records = Vec<(usize, Vec<u8>)>;

/// The slots.
pub(crate) struct Ledger {
    memory: OwnedFd,
    slots: Vec<Slot>,
}

impl Ledger {
    /// A ledger for a new mount: whatever the memory holds is forgotten.
    pub(crate) fn create(memory: OwnedFd) -> io::Result<Self> {
        rustix::fs::ftruncate(&memory, 0)?;
        Ok(Self { memory, slots: Vec::new() })
    }

    /// The ledger of a predecessor and the whole records in it, by slot.
    pub(crate) fn adopt(memory: OwnedFd) -> io::Result<(Self, Records)> {
        let bytes = u64::try_from(rustix::fs::fstat(&memory)?.st_size).unwrap_or(0);
        let count = usize::try_from(bytes.div_ceil(2 * HALF_BYTES)).unwrap_or(SLOTS_MAX).min(SLOTS_MAX);
        let mut ledger = Self { memory, slots: vec![Slot::default(); count] };
        let mut records = Vec::new();
        for at in 0..count {
            let newest =
                [0, 1].into_iter().filter_map(|half| ledger.read(at, half)).max_by_key(|(seq, _)| *seq);
            let Some((sequence, record)) = newest else { continue };
            if let Some(slot) = ledger.slots.get_mut(at) {
                *slot = Slot { sequence, longest: RECORD_BYTES_MAX };
            }
            if !record.is_empty() {
                records.push((at, record));
            }
        }
        Ok((ledger, records))
    }

    /// The record in one half, if it is whole. A half that can't be read is not whole.
    fn read(&self, at: usize, half: u64) -> Option<(u64, Vec<u8>)> {
        let offset = at as u64 * 2 * HALF_BYTES + half * HALF_BYTES;
        let mut head = [0; HEAD_BYTES];
        read_full(&self.memory, &mut head, offset)?;
        let (sequence, length, checksum) = decode_head(&head)?;
        let mut record = vec![0; length];
        read_full(&self.memory, &mut record, offset + HEAD_BYTES as u64)?;
        (check(sequence, &record) == checksum).then_some((sequence, record))
    }

    /// Replaces the record of slot `at`.
    pub(crate) fn save(&mut self, at: usize, record: &[u8]) -> io::Result<()> {
        if record.len() > RECORD_BYTES_MAX || at >= SLOTS_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot::default());
        }
        let Some(slot) = self.slots.get_mut(at) else { return Ok(()) };
        slot.sequence += 1;
        slot.longest = slot.longest.max(record.len());
        let head = encode_head(slot.sequence, record);
        let offset = at as u64 * 2 * HALF_BYTES + slot.sequence % 2 * HALF_BYTES;
        write_full(&self.memory, &head, record, offset)
    }

    /// Empties slot `at` and gives back what it held beyond a page.
    pub(crate) fn clear(&mut self, at: usize) -> io::Result<()> {
        self.save(at, &[])?;
        let Some(slot) = self.slots.get_mut(at) else { return Ok(()) };
        if slot.longest as u64 + HEAD_BYTES as u64 > KEPT_BYTES {
            slot.longest = 0;
            for half in [0, 1] {
                let offset = at as u64 * 2 * HALF_BYTES + half * HALF_BYTES + KEPT_BYTES;
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&self.memory, flags, offset, HALF_BYTES - KEPT_BYTES)?;
            }
        }
        Ok(())
    }
}

fn encode_head(sequence: u64, record: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    head[4..8].copy_from_slice(&VERSION.to_le_bytes());
    head[8..16].copy_from_slice(&sequence.to_le_bytes());
    head[16..20].copy_from_slice(&(record.len() as u32).to_le_bytes());
    head[24..32].copy_from_slice(&check(sequence, record).to_le_bytes());
    head
}

/// Sequence, length and checksum of a head that can be ours.
fn decode_head(head: &[u8; HEAD_BYTES]) -> Option<(u64, usize, u64)> {
    let word = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let long = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let length = word(16)? as usize;
    let ours = word(0)? == MAGIC && word(4)? == VERSION && word(20)? == 0 && length <= RECORD_BYTES_MAX;
    if ours { Some((long(8)?, length, long(24)?)) } else { None }
}

/// FNV-1a over words, then over the bytes that are left: it has to find torn writes, not forgeries.
fn check(sequence: u64, record: &[u8]) -> u64 {
    const PRIME: u64 = 0x0100_0000_01b3;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut mix = |word: u64| {
        hash = (hash ^ word).wrapping_mul(PRIME);
        hash ^= hash >> 32;
    };
    mix(sequence);
    mix(record.len() as u64);
    let (words, rest) = record.as_chunks::<8>();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    rest.iter().for_each(|&byte| mix(u64::from(byte)));
    hash
}

fn read_full(memory: &OwnedFd, mut buffer: &mut [u8], mut offset: u64) -> Option<()> {
    while !buffer.is_empty() {
        match rustix::io::retry_on_intr(|| rustix::io::pread(memory, &mut *buffer, offset)) {
            Ok(0) | Err(_) => return None,
            Ok(bytes) => {
                buffer = buffer.get_mut(bytes..)?;
                offset += bytes as u64;
            }
        }
    }
    Some(())
}

fn write_full(memory: &OwnedFd, head: &[u8], record: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < head.len() + record.len() {
        let head = head.get(done..).unwrap_or_default();
        let record = record.get(done.saturating_sub(HEAD_BYTES)..).unwrap_or_default();
        let parts = [IoSlice::new(head), IoSlice::new(record)];
        let at = offset + done as u64;
        match rustix::io::retry_on_intr(|| rustix::io::pwritev(memory, &parts, at))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            bytes => done += bytes,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    fn memory() -> OwnedFd {
        rustix::fs::memfd_create("ledger", MemfdFlags::CLOEXEC).unwrap()
    }

    fn again(memory: &OwnedFd) -> Records {
        Ledger::adopt(memory.try_clone().unwrap()).unwrap().1
    }

    #[test]
    fn a_successor_reads_the_last_records() {
        let memory = memory();
        let mut ledger = Ledger::create(memory.try_clone().unwrap()).unwrap();
        for round in 0..5_u8 {
            ledger.save(0, &[round; 3]).unwrap();
            ledger.save(9, &vec![round; 70_000]).unwrap();
            ledger.save(4, b"gone").unwrap();
        }
        ledger.clear(4).unwrap();
        assert_eq!(again(&memory), vec![(0, vec![4; 3]), (9, vec![4; 70_000])]);
    }

    #[test]
    fn every_torn_write_leaves_the_record_before_it() {
        let memory = memory();
        let mut ledger = Ledger::create(memory.try_clone().unwrap()).unwrap();
        ledger.save(0, b"first").unwrap();
        ledger.save(0, b"second").unwrap();
        // The third record would go where the first is; write each prefix of it there.
        let mut whole = encode_head(3, b"third!").to_vec();
        whole.extend_from_slice(b"third!");
        for cut in 0..whole.len() {
            rustix::io::pwrite(&memory, &whole[..cut], HALF_BYTES).unwrap();
            assert_eq!(again(&memory), vec![(0, b"second".to_vec())], "cut at {cut}");
        }
        rustix::io::pwrite(&memory, &whole, HALF_BYTES).unwrap();
        assert_eq!(again(&memory), vec![(0, b"third!".to_vec())]);
    }

    #[test]
    fn a_cleared_slot_gives_its_memory_back() {
        let memory = memory();
        let mut ledger = Ledger::create(memory.try_clone().unwrap()).unwrap();
        let long = vec![7; 300_000];
        ledger.save(1, &long).unwrap();
        ledger.save(1, &long).unwrap();
        let blocks = || rustix::fs::fstat(&memory).unwrap().st_blocks;
        assert!(blocks() * 512 > 600_000);
        ledger.clear(1).unwrap();
        assert!(blocks() * 512 <= 8 * 4096, "{} blocks stay", blocks());
        assert!(again(&memory).is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut ledger = Ledger::create(memory()).unwrap();
        assert!(ledger.save(0, &vec![0; RECORD_BYTES_MAX]).is_ok());
        assert!(ledger.save(0, &vec![0; RECORD_BYTES_MAX + 1]).is_err());
        assert!(ledger.save(SLOTS_MAX, b"x").is_err());
    }

    #[test]
    fn garbage_is_no_record() {
        let memory = memory();
        rustix::io::pwrite(&memory, &[0xa5; 5000], 0).unwrap();
        assert!(again(&memory).is_empty());
    }
}
