//! Reading a blob: bounded by the size that its descriptor says, and compared with its digest at
//! the end.

use super::{ImageError, MAX_DOCUMENT_BYTES, Result, While};
use flate2::read::MultiGzDecoder;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use zstd::stream::read::Decoder;

/// Largest window of a compressed layer, as a power of two: what `zstd` itself allows by default
/// (128 MiB).
const ZSTD_WINDOW_LOG: u32 = 27;

/// A blob being read.
pub(super) struct Blob {
    name: String,
    hex: String,
    size: u64,
    reader: io::Take<File>,
    hasher: Sha256,
    read: u64,
}

impl Blob {
    pub fn new(hex: String, size: u64, reader: io::Take<File>) -> Self {
        Self { name: format!("blob sha256:{hex}"), hex, size, reader, hasher: Sha256::new(), read: 0 }
    }

    /// Reads the rest and compares.
    pub fn verify(mut self) -> Result<()> {
        io::copy(&mut self, &mut io::sink()).doing(|| format!("read {}", self.name))?;
        if self.read != self.size {
            let message = format!("it has {} bytes, and its descriptor says {}", self.read, self.size);
            return Err(ImageError::Malformed { what: self.name, message });
        }
        let found: String = self.hasher.finalize().iter().map(|b| format!("{b:02x}")).collect();
        if found == self.hex { Ok(()) } else { Err(ImageError::Digest { blob: self.name, found }) }
    }

    /// All of a small one, verified.
    pub fn document(mut self) -> Result<Vec<u8>> {
        if self.size > MAX_DOCUMENT_BYTES {
            return Err(ImageError::TooBig { limit: MAX_DOCUMENT_BYTES, of: "bytes in a document" });
        }
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).doing(|| format!("read {}", self.name))?;
        self.verify().map(|()| bytes)
    }
}

impl Read for Blob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.hasher.update(buffer.get(..read).unwrap_or_default());
        self.read += read as u64;
        Ok(read)
    }
}

/// The tar inside a layer: what it is compressed by is seen in its first bytes, whatever its media
/// type says.
pub(super) fn decompressed(blob: &mut Blob) -> Result<Box<dyn Read + '_>> {
    let name = blob.name.clone();
    let mut reader = BufReader::with_capacity(64 * 1024, blob);
    let first = reader.fill_buf().doing(|| format!("read {name}"))?;
    if first.starts_with(&[0x1f, 0x8b]) {
        return Ok(Box::new(MultiGzDecoder::new(reader)));
    }
    if first.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let mut decoder = Decoder::with_buffer(reader).doing(|| format!("decompress {name}"))?;
        decoder.window_log_max(ZSTD_WINDOW_LOG).doing(|| format!("decompress {name}"))?;
        return Ok(Box::new(decoder));
    }
    Ok(Box::new(reader))
}
