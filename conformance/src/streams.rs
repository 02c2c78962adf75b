//! Bytes without seams.

use crate::messages::mix;
use crate::{Doing as _, Done, Party, deadline, ensure, open};

/// Bytes that go in one direction.
const BYTES: usize = 512 << 10;
/// Most bytes of one write or read.
const PORTION: usize = 100_000;

fn byte(at: usize) -> u8 {
    (mix(at as u64 / 8) >> (at % 8 * 8)) as u8
}

/// The sizes of writes and reads: anything, and at neither end the other's.
fn portions(salt: u64) -> impl Iterator<Item = usize> {
    (0..).map(move |turn: u64| 1 + (mix(turn ^ salt) as usize) % PORTION)
}

fn write_all(writer: &mut channel::StreamWriter, bytes: usize) -> Done {
    let mut at = 0;
    for portion in portions(1) {
        let now: Vec<u8> = (at..bytes.min(at + portion)).map(byte).collect();
        if now.is_empty() {
            break;
        }
        put(writer, &now)?;
        at += now.len();
    }
    writer.flush_with(deadline()).doing("flush a stream")
}

fn put(writer: &mut channel::StreamWriter, mut bytes: &[u8]) -> Done {
    while !bytes.is_empty() {
        let written = writer.write_with(bytes, deadline()).doing("write to a stream")?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

fn is_at_the_end(reader: &mut channel::StreamReader) -> Done {
    let end = reader.read_with(&mut [0], deadline()).doing("wait for the end of a stream")?;
    ensure(end == 0, || "a byte behind the end".into())
}

fn read_all(reader: &mut channel::StreamReader, bytes: usize) -> Done {
    let mut buffer = vec![0; PORTION];
    let mut at = 0;
    for portion in portions(2) {
        let into = buffer.get_mut(..portion.min(bytes - at)).unwrap_or_default();
        if into.is_empty() {
            break;
        }
        let got = reader.read_with(into, deadline()).doing("read from a stream")?;
        ensure(got > 0, || format!("the stream ends after {at} bytes"))?;
        let right = into.iter().take(got).enumerate().all(|(index, found)| *found == byte(at + index));
        ensure(right, || format!("of the {got} bytes from {at} on some are others"))?;
        at += got;
    }
    Ok(())
}

pub(crate) fn writes(us: Box<dyn Party>) -> Done {
    let (sender, receiver) = open(us)?;
    let (mut writer, mut reader) = (sender.into_stream(), receiver.into_stream());
    write_all(&mut writer, BYTES)?;
    let mut answer = [0];
    let got = reader.read_with(&mut answer, deadline()).doing("read the answer")?;
    ensure((got, answer) == (1, [7]), || format!("{answer:?} for an answer"))
}

pub(crate) fn reads(us: Box<dyn Party>) -> Done {
    let (sender, receiver) = open(us)?;
    let (mut writer, mut reader) = (sender.into_stream(), receiver.into_stream());
    read_all(&mut reader, BYTES)?;
    put(&mut writer, &[7])?;
    writer.flush_with(deadline()).doing("flush the answer")?;
    // Until the other end is done.
    is_at_the_end(&mut reader)
}

/// One direction ends, the other goes on.
pub(crate) fn ends(us: Box<dyn Party>) -> Done {
    let (sender, receiver) = open(us)?;
    let (mut writer, mut reader) = (sender.into_stream(), receiver.into_stream());
    write_all(&mut writer, PORTION)?;
    writer.finish(deadline()).doing("end a direction")?;
    read_all(&mut reader, PORTION)?;
    is_at_the_end(&mut reader)?;
    ensure(reader.is_finished(), || "no end of the other direction".into())
}

pub(crate) fn answers_the_end(us: Box<dyn Party>) -> Done {
    let (sender, receiver) = open(us)?;
    let (mut writer, mut reader) = (sender.into_stream(), receiver.into_stream());
    read_all(&mut reader, PORTION)?;
    is_at_the_end(&mut reader)?;
    ensure(reader.is_finished(), || "no end of the first direction".into())?;
    write_all(&mut writer, PORTION)?;
    writer.finish(deadline()).doing("end the other direction")?;
    // Held until the other end has read it all and closes; a close is an end, too.
    crate::closing::until_closed(|| writer.is_closed())
}
