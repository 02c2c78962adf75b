//! Records out of bytes that come in pieces: what is whole is taken from where it is, and what
//! comes in pieces is put together in its place.

use crate::broken::Broken;
use crate::messages::Spare;
use wire::link::{RECORD_HEADER_BYTES, read_record_header};

/// The room that is set aside for a record at once; the memory of a longer one grows as it comes,
/// whatever its header says.
const ROOM_BYTES: usize = RECORD_HEADER_BYTES + (256 << 10);

/// A record of which the header has come.
#[derive(Debug)]
struct Begun {
    kind: u32,
    /// Its bytes when it is whole, header included.
    length: usize,
    bytes: Vec<u8>,
}

/// Whole records of one kind, one behind the other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub kind: u32,
    pub count: usize,
    /// With their headers.
    pub bytes: Vec<u8>,
}

/// The part of a record that has come while it is not whole.
#[derive(Debug, Default)]
pub(crate) struct Records {
    header: [u8; RECORD_HEADER_BYTES],
    /// So many bytes of it have come.
    header_bytes: usize,
    begun: Option<Begun>,
    /// Where memory is had.
    pub spare: Spare,
}

impl Records {
    pub fn new(spare: Spare) -> Self {
        Self { spare, ..Self::default() }
    }

    /// Bytes that are kept.
    pub fn kept(&self) -> usize {
        self.header_bytes + self.begun.as_ref().map_or(0, |begun| begun.bytes.len())
    }

    /// Takes records off the front: one that was begun before, or all that are whole and of one
    /// kind, as many as `most`. `None`: all bytes are taken. `check` looks at kind and length of
    /// each before anything of it is kept.
    pub fn next(
        &mut self,
        bytes: &mut &[u8],
        most: usize,
        mut check: impl FnMut(u32, usize) -> Result<(), Broken>,
    ) -> Result<Option<Run>, Broken> {
        let mut begun = match self.begun.take() {
            Some(begun) => begun,
            None => {
                if self.header_bytes == 0
                    && let Some(run) = whole(bytes, most, &mut check, &self.spare)?
                {
                    return Ok(Some(run));
                }
                let Some(header) = self.header(bytes) else { return Ok(None) };
                let (kind, length) = read_record_header(header)?;
                check(kind, length)?;
                let length = RECORD_HEADER_BYTES + length;
                let mut bytes = self.spare.take(length.min(ROOM_BYTES));
                bytes.extend_from_slice(&header);
                Begun { kind, length, bytes }
            }
        };
        let missing = begun.length - begun.bytes.len();
        let (now, rest) = bytes.split_at(missing.min(bytes.len()));
        begun.bytes.extend_from_slice(now);
        *bytes = rest;
        if now.len() == missing {
            return Ok(Some(Run { kind: begun.kind, count: 1, bytes: begun.bytes }));
        }
        self.begun = Some(begun);
        Ok(None)
    }

    /// Takes the header off the front, if it is whole.
    fn header(&mut self, bytes: &mut &[u8]) -> Option<[u8; RECORD_HEADER_BYTES]> {
        if self.header_bytes == 0
            && let Some((header, rest)) = bytes.split_first_chunk()
        {
            *bytes = rest;
            return Some(*header);
        }
        let room = self.header.get_mut(self.header_bytes..)?;
        let (now, rest) = bytes.split_at(room.len().min(bytes.len()));
        room.get_mut(..now.len())?.copy_from_slice(now);
        self.header_bytes += now.len();
        *bytes = rest;
        if self.header_bytes < RECORD_HEADER_BYTES {
            return None;
        }
        self.header_bytes = 0;
        Some(self.header)
    }
}

/// Takes whole records of one kind off the front.
fn whole(
    bytes: &mut &[u8],
    most: usize,
    check: &mut impl FnMut(u32, usize) -> Result<(), Broken>,
    spare: &Spare,
) -> Result<Option<Run>, Broken> {
    let all = *bytes;
    let (mut rest, mut kind, mut count) = (all, None, 0);
    while count < most
        && let Some((header, behind)) = rest.split_first_chunk()
    {
        let (found, length) = read_record_header(*header)?;
        if *kind.get_or_insert(found) != found {
            break;
        }
        check(found, length)?;
        let Some(behind) = behind.get(length..) else { break };
        rest = behind;
        count += 1;
    }
    let Some(kind) = kind.filter(|_| count > 0) else { return Ok(None) };
    let (run, _) = all.split_at(all.len() - rest.len());
    *bytes = rest;
    let mut memory = spare.take(run.len());
    memory.extend_from_slice(run);
    Ok(Some(Run { kind, count, bytes: memory }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::Messages;
    use wire::link::{record, record_header};

    #[test]
    fn records_come_out_whole_however_their_bytes_come_and_however_many_at_once() {
        let lengths = [0, 1, 7, 8, 9, 0, 100, 3 * ROOM_BYTES, 0, 64];
        let contents: Vec<Vec<u8>> =
            lengths.iter().zip(1..).map(|(length, number)| vec![number; *length]).collect();
        let mut bytes = Vec::new();
        for content in &contents {
            bytes.extend(record_header(record::MESSAGE, content.len()));
            bytes.extend(content);
        }
        for (piece, most) in [
            (1, 1),
            (3, 9),
            (8, 2),
            (9, usize::MAX),
            (64 << 10, 3),
            (usize::MAX, 1),
            (usize::MAX, usize::MAX),
        ] {
            let (mut records, mut found, mut given, mut taken) = (Records::default(), Vec::new(), 0, 0);
            for mut piece in bytes.chunks(piece.min(bytes.len())) {
                given += piece.len();
                while let Some(run) = records.next(&mut piece, most, |_, _| Ok(())).unwrap() {
                    assert!(run.kind == record::MESSAGE && (1..=most).contains(&run.count));
                    taken += run.bytes.len();
                    let messages = Messages::new(run.bytes, run.count, &records.spare);
                    assert_eq!(messages.iter().count(), run.count);
                    found.extend(messages.iter().map(<[u8]>::to_vec));
                }
                assert!(piece.is_empty());
                assert_eq!(records.kept(), given - taken);
            }
            assert!(found == contents, "in pieces of {piece}");
        }
    }

    #[test]
    fn a_run_ends_where_another_kind_begins() {
        let bytes = [record_header(record::OPEN, 0), record_header(record::MESSAGE, 0)].concat();
        let (mut records, mut rest) = (Records::default(), bytes.as_slice());
        for kind in [record::OPEN, record::MESSAGE] {
            let run = records.next(&mut rest, usize::MAX, |_, _| Ok(())).unwrap().unwrap();
            assert_eq!((run.kind, run.count), (kind, 1));
        }
        assert_eq!(records.next(&mut rest, usize::MAX, |_, _| Ok(())), Ok(None));
    }

    #[test]
    fn nothing_is_kept_of_a_record_that_is_refused() {
        let mut records = Records::default();
        let bytes = record_header(record::MESSAGE, 1 << 20);
        let refuse = |kind, _| Err(wire::link::BadPacket::Kind { what: "a record", found: kind }.into());
        assert!(records.next(&mut &bytes[..], usize::MAX, refuse).is_err());
        assert_eq!(records.kept(), 0);
    }
}
