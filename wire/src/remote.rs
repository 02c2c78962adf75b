//! A command that is said on one node and runs in a domain of another: what the two say to each
//! other about its standard streams, signals, terminal and end. Described in `docs/spec/remote.md`.

use thiserror::Error;

/// The protocol that both sides change to, as HTTP/1.1 says it (`Upgrade`): its name and version.
pub const PROTOCOL: &str = "tombolo-exec/1";
/// The same for the files of a domain by 9P2000.L, whose bytes follow as they are.
pub const NINEP_PROTOCOL: &str = "tombolo-9p/1";
/// Bytes of what stands before each frame: its kind, and 4 bytes of how long it is, little-endian.
pub const HEADER_BYTES: usize = 5;
/// Longest content of a frame, in bytes.
pub const MAX_FRAME_BYTES: usize = 32 * 1024;
/// Bytes of standard input that may be under way and not taken: so much the far side keeps, so that
/// a signal is never behind input that nobody takes.
pub const INPUT_WINDOW_BYTES: usize = 256 * 1024;

/// The kinds of frames: as of the `exec` stream of a guest ([`crate::guest::exec`]), and one more.
pub mod frame {
    /// From the caller: standard input; nothing: its end.
    pub const STDIN: u8 = 0;
    /// To the caller: standard output, or what the terminal shows.
    pub const STDOUT: u8 = 1;
    /// To the caller: standard error.
    pub const STDERR: u8 = 2;
    /// From the caller: 1 byte, the number of a signal.
    pub const SIGNAL: u8 = 3;
    /// From the caller: the size of its terminal, 2 bytes columns and 2 bytes rows, little-endian.
    pub const SIZE: u8 = 4;
    /// To the caller, the last one: 4 bytes, the exit code, little-endian.
    pub const ENDED: u8 = 5;
    /// To the caller: 4 bytes, so much of the input was taken since the last such frame,
    /// little-endian.
    pub const TAKEN: u8 = 6;
}

/// A break of the protocol: the bytes are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Broken {
    /// Its length.
    #[error("a frame of {0} bytes: {MAX_FRAME_BYTES} are the most")]
    TooLong(usize),
    /// Its kind, in this direction.
    #[error("a frame of kind {0}, which means nothing here")]
    Kind(u8),
    /// Its content.
    #[error("a frame of kind {kind} with {bytes} bytes")]
    Content {
        /// Its kind.
        kind: u8,
        /// How long it is.
        bytes: usize,
    },
    /// More input than there is room for.
    #[error("more than {INPUT_WINDOW_BYTES} bytes of input that were not taken")]
    Window,
}

/// Appends a frame. Content that is longer than one may be becomes several.
pub fn put(kind: u8, content: &[u8], out: &mut Vec<u8>) {
    let mut rest = content;
    loop {
        let (now, later) = rest.split_at(rest.len().min(MAX_FRAME_BYTES));
        out.push(kind);
        // At most `MAX_FRAME_BYTES`.
        out.extend_from_slice(&(now.len() as u32).to_le_bytes());
        out.extend_from_slice(now);
        rest = later;
        if rest.is_empty() {
            return;
        }
    }
}

/// Frames out of what comes, in whatever pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Takes bytes that have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame: its kind and its content.
    ///
    /// # Errors
    /// [`Broken::TooLong`]; nothing that follows means anything.
    pub fn next_frame(&mut self) -> Result<Option<(u8, &[u8])>, Broken> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((&[kind, a, b, c, d], after)) = rest.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(Broken::TooLong(length));
        }
        let Some(content) = after.get(..length) else { return Ok(None) };
        self.taken += HEADER_BYTES + length;
        Ok(Some((kind, content)))
    }
}

/// A caller's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromCaller<'b> {
    /// Standard input; nothing: its end.
    Input(&'b [u8]),
    /// A signal.
    Signal(u8),
    /// The size of its terminal.
    Size {
        /// Columns.
        columns: u16,
        /// Rows.
        rows: u16,
    },
}

impl<'b> FromCaller<'b> {
    /// Reads a frame of a caller.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(kind: u8, content: &'b [u8]) -> Result<Self, Broken> {
        match (kind, content) {
            (frame::STDIN, input) => Ok(Self::Input(input)),
            (frame::SIGNAL, &[number]) => Ok(Self::Signal(number)),
            (frame::SIZE, &[c0, c1, r0, r1]) => {
                Ok(Self::Size { columns: u16::from_le_bytes([c0, c1]), rows: u16::from_le_bytes([r0, r1]) })
            }
            (frame::SIGNAL | frame::SIZE, _) => Err(Broken::Content { kind, bytes: content.len() }),
            _ => Err(Broken::Kind(kind)),
        }
    }
}

/// A message to a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToCaller<'b> {
    /// Standard output, or what the terminal shows.
    Output(&'b [u8]),
    /// Standard error.
    Errors(&'b [u8]),
    /// So much more of its input was taken.
    Taken(u32),
    /// The command has ended, with this exit code.
    Ended(i32),
}

impl<'b> ToCaller<'b> {
    /// Reads a frame for a caller.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn read(kind: u8, content: &'b [u8]) -> Result<Self, Broken> {
        match (kind, content) {
            (frame::STDOUT, output) => Ok(Self::Output(output)),
            (frame::STDERR, errors) => Ok(Self::Errors(errors)),
            (frame::TAKEN, &[a, b, c, d]) => Ok(Self::Taken(u32::from_le_bytes([a, b, c, d]))),
            (frame::ENDED, &[a, b, c, d]) => Ok(Self::Ended(i32::from_le_bytes([a, b, c, d]))),
            (frame::TAKEN | frame::ENDED, _) => Err(Broken::Content { kind, bytes: content.len() }),
            _ => Err(Broken::Kind(kind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_whatever_the_pieces() {
        let long = vec![7; MAX_FRAME_BYTES + 3];
        let mut bytes = Vec::new();
        put(frame::STDIN, b"hello", &mut bytes);
        put(frame::STDIN, b"", &mut bytes);
        put(frame::STDOUT, &long, &mut bytes);
        put(frame::SIGNAL, &[15], &mut bytes);
        for piece in [1, 3, 4_096, bytes.len()] {
            let (mut decoder, mut found) = (Decoder::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                decoder.push(piece);
                while let Some((kind, content)) = decoder.next_frame().unwrap() {
                    found.push((kind, content.to_vec()));
                }
            }
            let (first, second) = long.split_at(MAX_FRAME_BYTES);
            let expected: [(u8, &[u8]); 5] = [
                (frame::STDIN, b"hello"),
                (frame::STDIN, b""),
                (frame::STDOUT, first),
                (frame::STDOUT, second),
                (frame::SIGNAL, &[15]),
            ];
            assert!(found.iter().map(|(kind, content)| (*kind, content.as_slice())).eq(expected), "{piece}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&[0, 1, 128, 0, 0]);
        assert_eq!(decoder.next_frame(), Err(Broken::TooLong(MAX_FRAME_BYTES + 1)));
        assert_eq!(FromCaller::read(frame::STDOUT, b""), Err(Broken::Kind(frame::STDOUT)));
        assert_eq!(
            FromCaller::read(frame::SIZE, b"abc"),
            Err(Broken::Content { kind: frame::SIZE, bytes: 3 })
        );
        assert_eq!(
            FromCaller::read(frame::SIZE, &[80, 0, 1, 1]),
            Ok(FromCaller::Size { columns: 80, rows: 257 })
        );
        assert_eq!(ToCaller::read(frame::STDIN, b""), Err(Broken::Kind(frame::STDIN)));
        assert_eq!(ToCaller::read(frame::ENDED, &[]), Err(Broken::Content { kind: frame::ENDED, bytes: 0 }));
        assert_eq!(ToCaller::read(frame::ENDED, &(-3_i32).to_le_bytes()), Ok(ToCaller::Ended(-3)));
        assert_eq!(ToCaller::read(200, b""), Err(Broken::Kind(200)));
    }
}
