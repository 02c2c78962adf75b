//! Names: a path where there is a '/' in it, else a channel service of the domain.

use crate::failure::failure;
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use sys::channel_abi::Outcome;

/// Longest name of a service, in bytes: those of the topology file are shorter, so a longer one is
/// a mistake.
const SERVICE_BYTES_MAX: usize = 255;

/// Where two programs meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name<'a> {
    /// At a Unix socket.
    Path(&'a Path),
    /// By way of the domain's control socket.
    Service(&'a str),
}

impl<'a> Name<'a> {
    pub fn of(name: &'a CStr) -> Outcome<Self> {
        let bytes = name.to_bytes();
        if bytes.contains(&b'/') {
            return Ok(Self::Path(Path::new(OsStr::from_bytes(bytes))));
        }
        if bytes.is_empty() {
            return Err(failure(Errno::INVAL, "an empty name names no channel"));
        }
        if bytes.len() > SERVICE_BYTES_MAX {
            let text = format!(
                "a service's name has {SERVICE_BYTES_MAX} bytes at most, and this one {}",
                bytes.len()
            );
            return Err(failure(Errno::NAMETOOLONG, text));
        }
        let service = str::from_utf8(bytes);
        service
            .map(Self::Service)
            .map_err(|_| failure(Errno::INVAL, "a service's name is UTF-8, and this one is not"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_makes_a_path() {
        assert_eq!(Name::of(c"./x"), Ok(Name::Path(Path::new("./x"))));
        assert_eq!(Name::of(c"/a/b"), Ok(Name::Path(Path::new("/a/b"))));
        assert_eq!(Name::of(c"frames"), Ok(Name::Service("frames")));
    }

    #[test]
    fn names_that_can_be_nothing_are_refused() {
        let errno = |name: &CStr| Name::of(name).err().map(|failure| failure.errno);
        assert_eq!(errno(c""), Some(Errno::INVAL.raw_os_error()));
        assert_eq!(errno(c"\xff"), Some(Errno::INVAL.raw_os_error()));
        let long = std::ffi::CString::new("x".repeat(256)).expect("no NUL");
        assert_eq!(errno(&long), Some(Errno::NAMETOOLONG.raw_os_error()));
    }
}
