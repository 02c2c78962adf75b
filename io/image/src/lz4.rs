//! LZ4 as the kernel unpacks an initramfs: the *legacy frame* (`lib/decompress_unlz4.c` of Linux):
//! a magic number, then blocks, each with its packed length before it.

use std::io::{self, Write};

/// The first bytes of a legacy frame.
const MAGIC: u32 = 0x184C_2102;
/// Each block but the last unpacks to so many bytes; the kernel takes no larger ones.
const BLOCK_BYTES: usize = 8 << 20;

/// Packs what is written to it.
pub struct Writer<W: Write> {
    out: W,
    block: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// One that writes the packed bytes to `out`.
    pub fn new(mut out: W) -> io::Result<Self> {
        out.write_all(&MAGIC.to_le_bytes())?;
        Ok(Self { out, block: Vec::with_capacity(BLOCK_BYTES) })
    }

    /// Packs what is left, and gives back where it went.
    pub fn finish(mut self) -> io::Result<W> {
        self.write_block()?;
        Ok(self.out)
    }

    fn write_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let packed = lz4_flex::block::compress(&self.block);
        let length = u32::try_from(packed.len()).map_err(io::Error::other)?;
        self.out.write_all(&length.to_le_bytes())?;
        self.out.write_all(&packed)?;
        self.block.clear();
        Ok(())
    }
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = BLOCK_BYTES - self.block.len();
        let taken = bytes.get(..room.min(bytes.len())).unwrap_or(bytes);
        self.block.extend_from_slice(taken);
        if self.block.len() == BLOCK_BYTES {
            self.write_block()?;
        }
        Ok(taken.len())
    }

    /// Blocks are written when they are full: to write shorter ones would pack worse.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_full_but_for_the_last_and_have_their_length_before_them() {
        let bytes: Vec<u8> =
            (0..BLOCK_BYTES + 1000).map(|at| u8::try_from(at / 7 % 251).unwrap_or(0)).collect();
        let mut writer = Writer::new(Vec::new()).expect("memory");
        writer.write_all(&bytes).expect("memory");
        let packed = writer.finish().expect("memory");
        let (magic, mut rest) = packed.split_first_chunk().expect("a magic number");
        assert_eq!(*magic, MAGIC.to_le_bytes());
        let mut lengths = Vec::new();
        let mut all = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk() {
            let (block, next) = after.split_at(u32::from_le_bytes(*length) as usize);
            let unpacked = lz4_flex::block::decompress(block, BLOCK_BYTES).expect("a block");
            lengths.push(unpacked.len());
            all.extend(unpacked);
            rest = next;
        }
        assert_eq!(lengths, [BLOCK_BYTES, 1000]);
        assert!(all == bytes);
    }

    #[test]
    fn nothing_is_no_block() {
        let packed = Writer::new(Vec::new()).and_then(Writer::finish).expect("memory");
        assert_eq!(packed, MAGIC.to_le_bytes());
    }
}
