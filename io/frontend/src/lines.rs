//! Bytes written by programs, as lines: what `write` takes at once and what it refuses.

use rustix::io::Errno;
use wire::service::MAX_REQUEST_BYTES;

/// The lines that a write would add to a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Whole lines, without their newlines; empty ones are left out.
    pub(crate) lines: Vec<Vec<u8>>,
    /// The bytes after the last newline; the beginning of the next line.
    pub(crate) partial: Vec<u8>,
    /// Bytes of the write that were used.
    pub(crate) used: usize,
}

/// Continues `partial` with `data`. Takes `most` lines, and then only what belongs to them.
///
/// # Errors
/// `EMSGSIZE` for a line longer than [`MAX_REQUEST_BYTES`], `EINVAL` for a NUL. Nothing of the
/// write is taken then.
pub(crate) fn split(partial: &[u8], data: &[u8], most: usize) -> Result<Split, Errno> {
    check(partial.len(), data)?;
    let mut split = Split { lines: Vec::new(), partial: partial.to_vec(), used: 0 };
    let mut rest = data;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let (line, after) = (rest.get(..end).unwrap_or_default(), rest.get(end + 1..).unwrap_or_default());
        if !(split.partial.is_empty() && line.is_empty()) {
            if split.lines.len() == most {
                return Ok(split);
            }
            let mut whole = std::mem::take(&mut split.partial);
            whole.extend_from_slice(line);
            split.lines.push(whole);
        }
        split.used += end + 1;
        rest = after;
    }
    split.partial.extend_from_slice(rest);
    split.used = data.len();
    Ok(split)
}

fn check(partial: usize, data: &[u8]) -> Result<(), Errno> {
    if data.contains(&0) {
        return Err(Errno::INVAL);
    }
    let mut before = partial;
    for line in data.split(|&byte| byte == b'\n') {
        if before + line.len() > MAX_REQUEST_BYTES {
            return Err(Errno::MSGSIZE);
        }
        before = 0;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(split: &Split) -> Vec<&str> {
        split.lines.iter().map(|line| std::str::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn a_line_ends_at_its_newline_and_not_before() {
        let first = split(b"", b"one\ntwo\n\nth", 9).unwrap();
        assert_eq!(
            (lines(&first), first.partial.as_slice(), first.used),
            (vec!["one", "two"], &b"th"[..], 11)
        );
        let second = split(&first.partial, b"ree\n", 9).unwrap();
        assert_eq!((lines(&second), second.partial.as_slice()), (vec!["three"], &b""[..]));
    }

    #[test]
    fn no_more_lines_are_taken_than_there_is_room_for() {
        let some = split(b"a", b"b\nc\nd\n", 2).unwrap();
        assert_eq!((lines(&some), some.used), (vec!["ab", "c"], 4));
        let none = split(b"a", b"b\n", 0).unwrap();
        assert_eq!((none.lines.len(), none.used, none.partial.as_slice()), (0, 0, &b"a"[..]));
        let partial = split(b"a", b"b", 0).unwrap();
        assert_eq!((partial.used, partial.partial.as_slice()), (1, &b"ab"[..]));
    }

    #[test]
    fn the_longest_line_fits_and_one_more_byte_does_not() {
        let mut line = vec![b'x'; MAX_REQUEST_BYTES];
        line.push(b'\n');
        assert_eq!(split(b"", &line, 1).unwrap().lines.len(), 1);
        assert_eq!(split(b"x", &line, 1), Err(Errno::MSGSIZE));
        assert_eq!(split(b"", &vec![b'x'; MAX_REQUEST_BYTES + 1], 1), Err(Errno::MSGSIZE));
    }

    #[test]
    fn a_nul_spoils_the_whole_write() {
        assert_eq!(split(b"", b"good\nb\0d\n", 9), Err(Errno::INVAL));
    }
}
