//! Bodies made smaller, and whole again.

use link::{Thrift, Way};
use std::str::FromStr;
use std::time::Instant;
use wire::link::{PACKET_BODY_BYTES_MAX, PACKET_HEADER_BYTES, Packet, compression, packet};

/// The compressions that a hello names: all that there are.
pub const COMPRESSIONS: u8 = 1 << compression::LZ4 | 1 << compression::ZSTD;
/// Shorter bodies are not worth the try.
const COMPRESS_BYTES_MIN: usize = 512;
/// The least saving that compression has to bring, as a part of the body: a body that gets less
/// smaller goes out as it is, since to unpack it costs, too.
const WORTH_PARTS: usize = 16;
/// The quickest that has entropy coding; more costs several times as much for some per cent.
const ZSTD_LEVEL: i32 = 1;
/// So much of a body is compressed only to see what would come of it.
const SAMPLE_BYTES: usize = 16 << 10;

/// The compression of bodies that go out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Nothing: who sees lengths on the wire learns nothing of what one packet has beside his own
    /// bytes.
    #[default]
    None,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
    /// The method that brings them over soonest, measured as it goes.
    Auto,
}

impl Compression {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Lz4, Self::Zstd, Self::Auto];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Auto => "auto",
        }
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|compression| compression.name() == text);
        found.ok_or_else(|| format!("`{text}` is no compression: there are none, lz4, zstd and auto"))
    }
}

/// Makes bodies smaller, and whole again.
pub(crate) struct Packer {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    thrift: Thrift,
    scratch: Vec<u8>,
}

fn number(way: Way) -> u8 {
    match way {
        Way::None => compression::NONE,
        Way::Lz4 => compression::LZ4,
        Way::Zstd => compression::ZSTD,
    }
}

impl Packer {
    pub fn new() -> Self {
        Self { zstd: None, unzstd: None, thrift: Thrift::default(), scratch: Vec::new() }
    }

    /// The way that is taken now.
    pub fn way(&self, wanted: Compression, takes: u8) -> Way {
        let way = match wanted {
            Compression::None => Way::None,
            Compression::Lz4 => Way::Lz4,
            Compression::Zstd => Way::Zstd,
            Compression::Auto => self.thrift.way(),
        };
        if way == Way::None || takes >> number(way) & 1 == 1 { way } else { Way::None }
    }

    /// So many bytes were carried in so many ns.
    pub fn carried(&mut self, bytes: usize, ns: u64) {
        self.thrift.carried(bytes as u64, ns);
    }

    /// Makes the body of the packet that begins at `start` of `bytes` and is their last smaller, if
    /// that is worth it. `takes`: what the other side unpacks.
    pub fn pack(&mut self, bytes: &mut Vec<u8>, start: usize, wanted: Compression, takes: u8) {
        let Some((header, body)) = bytes.get(start..).and_then(|packet| packet.split_first_chunk()) else {
            return;
        };
        let Ok(mut header) = Packet::read(*header) else { return };
        if header.kind != packet::FRAMES || body.len() < COMPRESS_BYTES_MIN {
            return;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        if wanted == Compression::Auto
            && let Some(way) = self.thrift.sample(body.len()).filter(|way| takes >> number(*way) & 1 == 1)
        {
            let sample = body.get(..SAMPLE_BYTES).unwrap_or(body);
            self.squeeze(way, sample, &mut scratch);
        }
        let way = self.way(wanted, takes);
        let length = if way == Way::None { None } else { self.squeeze(way, body, &mut scratch) };
        let worth = |length: &usize| *length < body.len() - body.len() / WORTH_PARTS;
        if let Some(length) = length.filter(worth) {
            header.compression = number(way);
            header.carried = u32::try_from(length).unwrap_or(u32::MAX);
            bytes.truncate(start);
            bytes.extend_from_slice(&header.to_bytes());
            bytes.extend_from_slice(scratch.get(..length).unwrap_or_default());
        }
        self.scratch = scratch;
    }

    /// How long `body` is when it is packed into `to`; `None` where it gets longer than it is.
    fn squeeze(&mut self, way: Way, body: &[u8], to: &mut Vec<u8>) -> Option<usize> {
        let begun = Instant::now();
        to.resize(PACKET_BODY_BYTES_MAX + PACKET_HEADER_BYTES, 0);
        let length = match way {
            Way::None => None,
            Way::Lz4 => {
                let room = lz4_flex::block::get_maximum_output_size(body.len());
                if to.len() < room {
                    to.resize(room, 0);
                }
                lz4_flex::block::compress_into(body, to).ok()
            }
            Way::Zstd => {
                if self.zstd.is_none() {
                    self.zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).ok();
                }
                self.zstd.as_mut().and_then(|zstd| zstd.compress_to_buffer(body, to.as_mut_slice()).ok())
            }
        };
        let ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let carried = length.unwrap_or(body.len()).min(body.len());
        self.thrift.squeezed(way, body.len() as u64, carried as u64, ns);
        length.filter(|length| *length <= PACKET_BODY_BYTES_MAX)
    }

    /// The body of a packet as it was: `None` where it does not unpack into just what its header
    /// says. Never more than that is held.
    pub fn unpack<'a>(&mut self, header: &Packet, body: &[u8], to: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let plain = usize::try_from(header.plain).ok().filter(|plain| *plain <= PACKET_BODY_BYTES_MAX)?;
        if to.len() < plain {
            to.resize(plain, 0);
        }
        let room = to.get_mut(..plain)?;
        let length = match header.compression {
            compression::LZ4 => lz4_flex::block::decompress_into(body, room).ok()?,
            compression::ZSTD => {
                if self.unzstd.is_none() {
                    self.unzstd = zstd::bulk::Decompressor::new().ok();
                }
                self.unzstd.as_mut()?.decompress_to_buffer(body, room).ok()?
            }
            _ => return None,
        };
        if length == plain { to.get(..plain) } else { None }
    }
}

#[cfg(test)]
mod tests;
