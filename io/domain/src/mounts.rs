//! Reading `/proc/PID/mountinfo` (`proc(5)`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of it, as far as we care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountLine {
    pub point: PathBuf,
    pub fs_type: String,
    pub super_options: String,
}

/// The mounts, in order; lines that make no sense are left out.
pub(crate) fn parse(text: &str) -> Vec<MountLine> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<MountLine> {
    let (before, after) = line.split_once(" - ")?;
    let point = unescape(before.split(' ').nth(4)?);
    let mut fields = after.split(' ');
    let fs_type = fields.next()?.to_owned();
    let super_options = fields.nth(1).unwrap_or_default().to_owned();
    Some(MountLine { point, fs_type, super_options })
}

/// Undoes `\040` for a space, `\011`, `\012` and `\134`.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .and_then(|d| std::str::from_utf8(d).ok())
            .and_then(|d| u8::from_str_radix(d, 8).ok());
        match octal {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// The mount points at and below `dir`, the last mounted first, so that each can be unmounted in
/// turn.
pub(crate) fn below(text: &str, dir: &Path) -> Vec<PathBuf> {
    let mut points: Vec<PathBuf> =
        parse(text).into_iter().map(|m| m.point).filter(|p| p.starts_with(dir)).collect();
    points.reverse();
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_optional_fields_and_order() {
        let text = "36 35 98:0 /mnt1 /run/a\\040b rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n\
                    37 36 0:9 / /run/a\\040b/c rw - tmpfs tmpfs rw\nnonsense\n38 1 0:1 / /running rw - tmpfs t rw\n";
        assert_eq!(below(text, Path::new("/run")), [Path::new("/run/a b/c"), Path::new("/run/a b")]);
        assert_eq!(parse(text)[0].super_options, "rw,errors=continue");
    }
}
