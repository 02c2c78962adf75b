//! The file that one incarnation of a domain leaves for the next one: `/srv/self/handover`.
//!
//! The bytes are in a file that the daemon keeps, so that they outlive the frontend, the domain and
//! the daemon.

use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

/// Most bytes that it may have: enough to say where one was, and little for whoever carries it to
/// another node.
pub const HANDOVER_BYTES_MAX: usize = 64 * 1024;

/// The file that the daemon handed over, where there is one.
#[derive(Debug, Default)]
pub(crate) struct Handover(Option<File>);

impl Handover {
    pub(crate) fn new(file: Option<OwnedFd>) -> Self {
        Self(file.map(File::from))
    }

    /// All of it; nothing where there is no file.
    pub(crate) fn read(&self) -> Result<Vec<u8>, Errno> {
        let Some(file) = &self.0 else { return Ok(Vec::new()) };
        let mut bytes = vec![0; HANDOVER_BYTES_MAX];
        let mut length = 0;
        while let Some(rest) = bytes.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(errno(&error)),
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Empties it: whoever opens it for writing says all of it anew.
    pub(crate) fn begin(&self) -> Result<(), Errno> {
        self.file()?.set_len(0).map_err(|error| errno(&error))
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(data.len()));
        if end.is_none_or(|end| end > HANDOVER_BYTES_MAX) {
            return Err(Errno::FBIG);
        }
        self.file()?.write_all_at(data, offset).map_err(|error| errno(&error))
    }

    fn file(&self) -> Result<&File, Errno> {
        self.0.as_ref().ok_or(Errno::OPNOTSUPP)
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
