//! Keys as files with bytes: a write at the beginning is the whole value.

use crate::coordinator::Coordinator;
use crate::sessions::{OpenKey, Session, What};
use coordination::{Expect, HolderId, Kind, MAX_VALUE_BYTES};
use rustix::io::Errno;
use session::ReplyTo;
use wire::coordination::ioctl;
use wire::service::{Range, offset_of};

/// `O_APPEND`.
const APPEND: u32 = 0o2000;

impl Coordinator {
    /// Opens a key.
    pub(crate) fn open_key(&mut self, to: ReplyTo, flags: u32) {
        self.insert(
            to,
            HolderId([0; 16]),
            What::Key(OpenKey { appends: flags & APPEND != 0, ..OpenKey::default() }),
        );
        self.answer(to, Ok(Vec::new()));
    }

    fn open_key_of(&mut self, to: ReplyTo) -> Result<&mut OpenKey, Errno> {
        match self.sessions.get_mut(&(to.link, to.session)) {
            Some(Session { what: What::Key(open), .. }) => Ok(open),
            _ => Err(Errno::BADF),
        }
    }

    pub(crate) fn read_key(&mut self, to: ReplyTo, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let Range { offset, bytes } = Range::decode(payload).map_err(|_| Errno::INVAL)?;
        let node = self.path_of(to.file).ok().and_then(|path| self.state()?.node(&path));
        let there =
            node.filter(|node| node.kind == Kind::Key).map(|node| (node.value.clone(), node.revision));
        let open = self.open_key_of(to)?;
        if offset == 0 || open.read.is_none() {
            let (value, revision) = there.ok_or(Errno::STALE)?;
            open.read = Some(value);
            open.revision = revision;
        }
        let value = open.read.as_deref().unwrap_or_default();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(value.len());
        let rest = value.get(from..).unwrap_or_default();
        Ok(rest.get(..bytes as usize).unwrap_or(rest).to_vec())
    }

    pub(crate) fn write_key(&mut self, to: ReplyTo, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let (offset, data) = offset_of(payload).map_err(|_| Errno::INVAL)?;
        let path = self.path_of(to.file)?;
        let now = self.state().and_then(|state| state.node(&path)).map(|node| node.value.clone());
        let now = now.ok_or(Errno::STALE)?;
        let open = self.open_key_of(to)?;
        let before: &[u8] = if open.appends {
            &now
        } else if offset == 0 {
            &[]
        } else if offset == open.written.len() as u64 {
            &open.written
        } else {
            return Err(Errno::INVAL);
        };
        if before.len() + data.len() > MAX_VALUE_BYTES {
            return Err(Errno::FBIG);
        }
        let value = [before, data].concat();
        let expect = open.expected.map_or(Expect::Anything, Expect::Revision);
        let revision = self.decide(|state| state.put(&path, &value, expect, None))?;
        let open = self.open_key_of(to)?;
        open.written = value;
        open.revision = revision;
        // What goes on with a value that was compared replaces that value, and no other.
        open.expected = open.expected.map(|_| revision);
        open.read = None;
        Ok(u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec())
    }

    /// An ioctl on a key or a lock; `to.file` is its number.
    pub(crate) fn ioctl(&mut self, to: ReplyTo, payload: &[u8]) -> Result<Vec<u8>, Errno> {
        let session = self.sessions.get_mut(&(to.link, to.session)).ok_or(Errno::BADF)?;
        match (to.file, &mut session.what) {
            (ioctl::GET_REVISION, What::Key(open)) => Ok(open.revision.to_le_bytes().to_vec()),
            (ioctl::EXPECT, What::Key(open)) => {
                let revision = payload.try_into().map_err(|_| Errno::INVAL)?;
                open.expected = Some(u64::from_le_bytes(revision));
                Ok(Vec::new())
            }
            (ioctl::GET_TOKEN, What::Lock(open)) => {
                open.token.map(|token| token.to_le_bytes().to_vec()).ok_or(Errno::AGAIN)
            }
            _ => Err(Errno::NOTTY),
        }
    }
}
