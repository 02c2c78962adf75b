//! Packets out of bytes that come in pieces: what is whole is heard where it lies, and only what is
//! not whole is kept.

use wire::link::{BadPacket, PACKET_HEADER_BYTES, Packet};

/// The part of a packet that has come while it is not whole.
#[derive(Default)]
pub(super) struct Inbox {
    part: Vec<u8>,
}

impl Inbox {
    /// Another connection: what came of the one before is of no use.
    pub fn clear(&mut self) {
        self.part.clear();
    }

    /// Hears the packets that end in `bytes`, which go on where those before ended: the header of
    /// each, and its body as it is carried.
    ///
    /// # Errors
    /// That of a header, or of `heard`. Nothing that comes then is to be heard.
    pub fn cut<E: From<BadPacket>>(
        &mut self,
        mut bytes: &[u8],
        mut heard: impl FnMut(&Packet, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            if self.part.is_empty() {
                let (header, length) = match bytes.first_chunk() {
                    Some(header) => Self::read(*header)?,
                    None => break,
                };
                let Some((packet, rest)) = bytes.split_at_checked(length) else { break };
                heard(&header, packet.get(PACKET_HEADER_BYTES..).unwrap_or_default())?;
                bytes = rest;
                continue;
            }
            let Some(header) = self.part.first_chunk() else {
                if !self.fill(&mut bytes, PACKET_HEADER_BYTES) {
                    return Ok(());
                }
                continue;
            };
            let (header, length) = Self::read(*header)?;
            if !self.fill(&mut bytes, length) {
                return Ok(());
            }
            heard(&header, self.part.get(PACKET_HEADER_BYTES..).unwrap_or_default())?;
            self.part.clear();
        }
        self.part.extend_from_slice(bytes);
        Ok(())
    }

    /// Keeps bytes that belong to a packet which does not end in them. False: some packet may.
    pub fn keep(&mut self, bytes: &[u8]) -> bool {
        let Some(Ok((_, length))) = self.part.first_chunk().map(|header| Self::read(*header)) else {
            return false;
        };
        let belongs = self.part.len() + bytes.len() < length;
        if belongs {
            self.part.extend_from_slice(bytes);
        }
        belongs
    }

    /// A header, and how long its packet is.
    fn read(header: [u8; PACKET_HEADER_BYTES]) -> Result<(Packet, usize), BadPacket> {
        let header = Packet::read(header)?;
        let carried = usize::try_from(header.carried).unwrap_or(usize::MAX);
        Ok((header, PACKET_HEADER_BYTES.saturating_add(carried)))
    }

    /// Keeps bytes of the front until so many are kept. False: they are too few.
    fn fill(&mut self, bytes: &mut &[u8], length: usize) -> bool {
        let missing = length.saturating_sub(self.part.len());
        let (now, rest) = bytes.split_at(missing.min(bytes.len()));
        self.part.extend_from_slice(now);
        *bytes = rest;
        now.len() == missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::link::{PACKET_BODY_BYTES_MAX, packet};

    /// Lets `bytes` come, `piece` at a time, and takes out what is whole.
    fn through(bytes: &[u8], piece: usize) -> Result<Vec<Vec<u8>>, BadPacket> {
        let (mut inbox, mut found) = (Inbox::default(), Vec::new());
        for piece in bytes.chunks(piece.min(bytes.len())) {
            if inbox.keep(piece) {
                continue;
            }
            inbox.cut(piece, |header, body| {
                assert_eq!(header.carried as usize, body.len());
                found.push(body.to_vec());
                Ok::<(), BadPacket>(())
            })?;
        }
        assert!(inbox.part.is_empty());
        Ok(found)
    }

    #[test]
    fn packets_come_out_whole_however_they_come() {
        let bodies: Vec<Vec<u8>> = [0, 1, 31, 70_000, PACKET_BODY_BYTES_MAX, 5, PACKET_BODY_BYTES_MAX, 3]
            .iter()
            .zip(1..)
            .map(|(bytes, number)| vec![number; *bytes])
            .collect();
        let mut bytes = Vec::new();
        for body in &bodies {
            bytes.extend_from_slice(&Packet::plain(packet::FRAMES, body.len(), 1, 2).to_bytes());
            bytes.extend_from_slice(body);
        }
        for piece in [1, 7, 32, 33, 1000, 65_537, usize::MAX] {
            assert_eq!(through(&bytes, piece).as_ref(), Ok(&bodies));
        }
    }

    #[test]
    fn a_header_that_is_none_is_refused() {
        let mut bytes = Packet::plain(packet::FRAMES, 10, 1, 2).to_bytes();
        bytes[4] = 9;
        assert!(through(&bytes, 5).is_err());
        let mut long = Packet::plain(packet::FRAMES, 10, 1, 2);
        (long.carried, long.plain) = (1 << 30, 1 << 30);
        assert!(through(&long.to_bytes(), 32).is_err());
    }
}
