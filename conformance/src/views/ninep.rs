//! A client of 9P2000.L.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Done, NOT_SUPPORTED, Opened, Stat, View};
use crate::TIMEOUT;

const ROOT: u32 = 0;
const NOBODY: u32 = u32::MAX;
const MSIZE: u32 = 128 * 1024 + TRANSFER_HEAD_BYTES as u32;
/// The head of a message that carries a file's bytes.
const TRANSFER_HEAD_BYTES: usize = 24;
/// Bytes of a listing that are asked for at once: room for a few names, so that it goes on often.
const LIST_BYTES: u32 = 400;
const ERROR: u8 = 7;
const LINK: u8 = 70;
const MAKE_FOLDER: u8 = 72;
const RENAME: u8 = 74;
const UNLINK: u8 = 76;
const OPEN: u8 = 12;
const CREATE: u8 = 14;
const GET_ATTRIBUTES: u8 = 24;
const SET_ATTRIBUTES: u8 = 26;
const XATTR_WALK: u8 = 30;
const XATTR_CREATE: u8 = 32;
const READ_FOLDER: u8 = 40;
const SYNC: u8 = 50;
const VERSION: u8 = 100;
const ATTACH: u8 = 104;
const WALK: u8 = 110;
const READ: u8 = 116;
const WRITE: u8 = 118;
const CLUNK: u8 = 120;

/// A connection that has attached.
#[derive(Debug)]
pub struct Ninep {
    stream: UnixStream,
    last_fid: u32,
    last_tag: u16,
    /// Answers that came while another one was awaited.
    early: HashMap<u16, Done<Vec<u8>>>,
    reads: HashMap<Opened, u16>,
    list_bytes: u32,
    /// Bytes of one transfer, as was agreed.
    transfer_bytes: usize,
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

/// The folder of a path, and its last name.
fn split(path: &str) -> (&str, &[u8]) {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    (folder, name.as_bytes())
}

/// The connection failed: no errno of a call.
fn broken(_: io::Error) -> i32 {
    -1
}

impl Ninep {
    /// Connects to the socket of a domain, agrees on the version and attaches.
    ///
    /// # Errors
    /// The error of the connection.
    pub fn connect(at: &Path) -> io::Result<Self> {
        Self::attach(at, "/srv")
    }

    /// Connects to the socket of any server, agrees on the version and attaches this tree of its.
    ///
    /// # Errors
    /// The error of the connection.
    pub fn attach(at: &Path, tree: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(at)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (early, reads) = (HashMap::new(), HashMap::new());
        let mut client = Self {
            stream,
            last_fid: ROOT,
            last_tag: 0,
            early,
            reads,
            list_bytes: LIST_BYTES,
            transfer_bytes: 0,
        };
        let refused = |errno| io::Error::other(format!("9P is refused: {errno}"));
        let agreed = client.ask(VERSION, &[&MSIZE.to_le_bytes(), &string(b"9P2000.L")]).map_err(refused)?;
        client.transfer_bytes = (u32::from_le_bytes(number(&agreed, 0)).min(MSIZE) as usize)
            .checked_sub(TRANSFER_HEAD_BYTES)
            .ok_or_else(|| refused(NOT_SUPPORTED))?;
        let user = rustix::process::geteuid().as_raw().to_le_bytes();
        let (no_fid, tree) = (NOBODY.to_le_bytes(), string(tree.as_bytes()));
        let fields: [&[u8]; 5] = [&ROOT.to_le_bytes(), &no_fid, &string(b""), &tree, &user];
        client.ask(ATTACH, &fields).map_err(refused)?;
        Ok(client)
    }

    /// The same client, which takes so many bytes of a listing at once.
    #[must_use]
    pub fn with_listings_of(self, list_bytes: u32) -> Self {
        Self { list_bytes, ..self }
    }

    fn send(&mut self, kind: u8, fields: &[&[u8]]) -> Done<u16> {
        let body = fields.concat();
        self.last_tag = if kind == VERSION { u16::MAX } else { self.last_tag.wrapping_add(1) % 60_000 };
        let head = [&((7 + body.len()) as u32).to_le_bytes()[..], &[kind], &self.last_tag.to_le_bytes()];
        self.stream.write_all(&[head.concat(), body].concat()).map_err(broken)?;
        Ok(self.last_tag)
    }

    fn receive(&mut self, wanted: u16) -> Done<Vec<u8>> {
        loop {
            if let Some(answer) = self.early.remove(&wanted) {
                return answer;
            }
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).map_err(broken)?;
            let size = u32::from_le_bytes(number(&head, 0)) as usize;
            let mut body = vec![0; size.saturating_sub(7)];
            self.stream.read_exact(&mut body).map_err(broken)?;
            let refused = head[4] == ERROR;
            let answer = if refused { Err(i32::from_le_bytes(number(&body, 0))) } else { Ok(body) };
            self.early.insert(u16::from_le_bytes(number(&head, 5)), answer);
        }
    }

    fn ask(&mut self, kind: u8, fields: &[&[u8]]) -> Done<Vec<u8>> {
        let tag = self.send(kind, fields)?;
        self.receive(tag)
    }

    /// A new fid of what a path leads to. Walks name by name, so that each has its errno.
    fn walk(&mut self, path: &str) -> Done<u32> {
        self.last_fid += 1;
        let fid = self.last_fid;
        let (root, new) = (ROOT.to_le_bytes(), fid.to_le_bytes());
        self.ask(WALK, &[&root, &new, &[0, 0]])?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let step = self.ask(WALK, &[&new, &new, &[1, 0], &string(name.as_bytes())]);
            if let Err(errno) = step {
                self.clunk(fid);
                return Err(errno);
            }
        }
        Ok(fid)
    }

    fn clunk(&mut self, fid: u32) {
        let _gone_either_way = self.ask(CLUNK, &[&fid.to_le_bytes()]);
    }

    fn with<T>(&mut self, path: &str, act: impl FnOnce(&mut Self, u32) -> Done<T>) -> Done<T> {
        let fid = self.walk(path)?;
        let result = act(self, fid);
        self.clunk(fid);
        result
    }

    fn in_folder(&mut self, kind: u8, path: &str, more: &[u8]) -> Done<()> {
        let (folder, name) = split(path);
        self.with(folder, |client, fid| {
            client.ask(kind, &[&fid.to_le_bytes(), &string(name), more]).map(drop)
        })
    }
}

fn fid_of(file: Opened) -> [u8; 4] {
    (file.0 as u32).to_le_bytes()
}

fn range(file: Opened, offset: u64, most: usize) -> Vec<u8> {
    [&fid_of(file)[..], &offset.to_le_bytes(), &(most as u32).to_le_bytes()].concat()
}

impl View for Ninep {
    fn name(&self) -> &'static str {
        "9p"
    }

    fn stat(&mut self, path: &str) -> Done<Stat> {
        self.with(path, |client, fid| {
            let body = client.ask(GET_ATTRIBUTES, &[&fid.to_le_bytes(), &u64::MAX.to_le_bytes()])?;
            let mode = u32::from_le_bytes(number(&body, 21));
            let long = |at| u64::from_le_bytes(number(&body, at));
            Ok(Stat { mode, links: long(33), size: long(49) })
        })
    }

    fn list(&mut self, path: &str) -> Done<Vec<Vec<u8>>> {
        self.with(path, |client, fid| {
            let directory = 0o200_000_u32;
            client.ask(OPEN, &[&fid.to_le_bytes(), &directory.to_le_bytes()])?;
            let (mut names, mut offset) = (Vec::new(), 0_u64);
            loop {
                let part = [&fid.to_le_bytes()[..], &offset.to_le_bytes(), &client.list_bytes.to_le_bytes()];
                let body = client.ask(READ_FOLDER, &part)?;
                let mut rest = body.get(4..).unwrap_or_default();
                if rest.is_empty() {
                    return Ok(names);
                }
                while !rest.is_empty() {
                    offset = u64::from_le_bytes(number(rest, 13));
                    let end = 24 + usize::from(u16::from_le_bytes(number(rest, 22)));
                    let name = rest.get(24..end).ok_or(-1)?;
                    if name != b"." && name != b".." {
                        names.push(name.to_vec());
                    }
                    rest = rest.get(end..).unwrap_or_default();
                }
            }
        })
    }

    fn open(&mut self, path: &str, flags: u32) -> Done<Opened> {
        let fid = self.walk(path)?;
        match self.ask(OPEN, &[&fid.to_le_bytes(), &flags.to_le_bytes()]) {
            Ok(_) => Ok(Opened(fid as usize)),
            Err(errno) => {
                self.clunk(fid);
                Err(errno)
            }
        }
    }

    fn create(&mut self, path: &str, flags: u32, mode: u32) -> Done<Opened> {
        let (folder, name) = split(path);
        let fid = self.walk(folder)?;
        let words = [flags | 0o100, mode, NOBODY].map(u32::to_le_bytes).concat();
        match self.ask(CREATE, &[&fid.to_le_bytes(), &string(name), &words]) {
            Ok(_) => Ok(Opened(fid as usize)),
            Err(errno) => {
                self.clunk(fid);
                Err(errno)
            }
        }
    }

    fn read(&mut self, file: Opened, offset: u64, most: usize) -> Done<Vec<u8>> {
        let body = self.ask(READ, &[&range(file, offset, most.min(self.transfer_bytes))])?;
        Ok(body.get(4..).unwrap_or_default().to_vec())
    }

    fn begin_read(&mut self, file: Opened, most: usize) -> Done<()> {
        let tag = self.send(READ, &[&range(file, 0, most.min(self.transfer_bytes))])?;
        self.reads.insert(file, tag);
        Ok(())
    }

    fn end_read(&mut self, file: Opened) -> Done<Vec<u8>> {
        let tag = self.reads.remove(&file).ok_or(-1)?;
        Ok(self.receive(tag)?.get(4..).unwrap_or_default().to_vec())
    }

    fn write(&mut self, file: Opened, offset: u64, data: &[u8]) -> Done<usize> {
        // As the kernel's client: piece by piece, and what was taken counts.
        let mut done = 0;
        for piece in data.chunks(self.transfer_bytes.max(1)) {
            let at = offset + done as u64;
            let head = range(file, at, piece.len());
            match self.ask(WRITE, &[&head, piece]) {
                Ok(body) => {
                    let count = u32::from_le_bytes(number(&body, 0)) as usize;
                    done += count;
                    if count < piece.len() {
                        break;
                    }
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    fn sync(&mut self, file: Opened) -> Done<()> {
        self.ask(SYNC, &[&fid_of(file), &[0; 4]]).map(drop)
    }

    fn ready(&mut self, _: Opened, _: &[&str]) -> Done<Vec<&'static str>> {
        Err(NOT_SUPPORTED)
    }

    fn close(&mut self, file: Opened) {
        self.clunk(file.0 as u32);
    }

    fn make_folder(&mut self, path: &str) -> Done<()> {
        self.in_folder(MAKE_FOLDER, path, &[0o755, NOBODY].map(u32::to_le_bytes).concat())
    }

    fn unlink(&mut self, path: &str) -> Done<()> {
        self.in_folder(UNLINK, path, &[0; 4])
    }

    fn remove_folder(&mut self, path: &str) -> Done<()> {
        self.in_folder(UNLINK, path, &0x200_u32.to_le_bytes())
    }

    fn rename(&mut self, path: &str, to: &str) -> Done<()> {
        let ((from, name), (to, new_name)) = (split(path), split(to));
        self.with(from, |client, from| {
            client.with(to, |client, to| {
                let (from, to) = (from.to_le_bytes(), to.to_le_bytes());
                client.ask(RENAME, &[&from, &string(name), &to, &string(new_name)]).map(drop)
            })
        })
    }

    fn link(&mut self, path: &str, to: &str) -> Done<()> {
        let (folder, name) = split(to);
        self.with(path, |client, node| {
            client.with(folder, |client, folder| {
                client.ask(LINK, &[&folder.to_le_bytes(), &node.to_le_bytes(), &string(name)]).map(drop)
            })
        })
    }

    fn set(&mut self, path: &str, size: Option<u64>, mode: Option<u32>) -> Done<()> {
        self.with(path, |client, fid| {
            let valid = u32::from(mode.is_some()) | if size.is_some() { 8 } else { 0 };
            let words = [fid, valid, mode.unwrap_or(0), 0, 0].map(u32::to_le_bytes).concat();
            client.ask(SET_ATTRIBUTES, &[&words, &size.unwrap_or(0).to_le_bytes(), &[0; 32]]).map(drop)
        })
    }

    fn xattr(&mut self, path: &str, name: &str) -> Done<Vec<u8>> {
        self.with(path, |client, fid| {
            client.last_fid += 1;
            let new = client.last_fid;
            let fields = [&fid.to_le_bytes()[..], &new.to_le_bytes(), &string(name.as_bytes())];
            let size = u64::from_le_bytes(number(&client.ask(XATTR_WALK, &fields)?, 0));
            let read = client.read(Opened(new as usize), 0, size as usize);
            client.clunk(new);
            read
        })
    }

    fn xattrs(&mut self, path: &str) -> Done<Vec<u8>> {
        self.xattr(path, "")
    }

    fn set_xattr(&mut self, path: &str, name: &str, value: Option<&[u8]>, flags: u32) -> Done<()> {
        const REPLACE: u32 = 2;
        let fid = self.walk(path)?;
        // As the kernel's client: a removal is a replacement by nothing.
        let (value, flags) = value.map_or((&b""[..], REPLACE), |value| (value, flags));
        let (size, flags) = ((value.len() as u64).to_le_bytes(), flags.to_le_bytes());
        let fields = [&fid.to_le_bytes()[..], &string(name.as_bytes()), &size, &flags];
        let created = self.ask(XATTR_CREATE, &fields);
        let written = created.and_then(|_| match value {
            b"" => Ok(0),
            _ => self.write(Opened(fid as usize), 0, value),
        });
        let clunked = self.ask(CLUNK, &[&fid.to_le_bytes()]);
        written.and(clunked).map(drop)
    }
}
