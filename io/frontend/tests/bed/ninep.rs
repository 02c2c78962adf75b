//! A client of 9P2000.L that says what it is told to, right or wrong.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::TIMEOUT;

pub const ROOT_FID: u32 = 0;
const NO_FID: u32 = u32::MAX;

pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_le_bytes(), bytes].concat()
}

pub fn message(number: u8, tag: u16, fields: &[&[u8]]) -> Vec<u8> {
    let body = fields.concat();
    let size = (7 + body.len()) as u32;
    [&size.to_le_bytes()[..], &[number], &tag.to_le_bytes(), &body].concat()
}

/// An answer, or the errno of one.
pub type Answer = Result<Vec<u8>, i32>;

pub struct Client {
    pub stream: UnixStream,
    last_fid: u32,
}

impl Client {
    /// A connection about which nothing is agreed.
    pub fn raw(at: &Path) -> Self {
        let stream = UnixStream::connect(at).expect("connected");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        Self { stream, last_fid: 100 }
    }

    pub fn new(at: &Path) -> Self {
        let mut client = Self::raw(at);
        client.version(0x2_0018);
        let nobody = NO_FID.to_le_bytes();
        let root = ROOT_FID.to_le_bytes();
        client.ask(104, &[&root, &nobody, &string(b"u"), &string(b""), &nobody]).expect("attached");
        client
    }

    pub fn version(&mut self, msize: u32) -> u32 {
        self.send(&message(100, u16::MAX, &[&msize.to_le_bytes(), &string(b"9P2000.L")]));
        let (number, _, body) = self.receive().expect("an answer");
        assert_eq!((number, &body[4..]), (101, &b"\x08\09P2000.L"[..]));
        u32::from_le_bytes(body[..4].try_into().expect("four"))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// The next answer: number, tag, body. None: the connection has ended.
    pub fn receive(&mut self) -> Option<(u8, u16, Vec<u8>)> {
        let mut head = [0; 7];
        match self.stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
            Err(_) => return None,
        }
        let size = u32::from_le_bytes(head[..4].try_into().expect("four")) as usize;
        let mut body = vec![0; size - 7];
        self.stream.read_exact(&mut body).expect("a whole answer");
        Some((head[4], u16::from_le_bytes([head[5], head[6]]), body))
    }

    pub fn ask(&mut self, number: u8, fields: &[&[u8]]) -> Answer {
        self.send(&message(number, 1, fields));
        let (answer, tag, body) = self.receive().expect("an answer");
        assert_eq!(tag, 1);
        if answer == 7 {
            return Err(i32::from_le_bytes(body[..4].try_into().expect("four")));
        }
        assert_eq!(answer, number + 1);
        Ok(body)
    }

    /// A new fid of what a path leads to.
    pub fn walk(&mut self, path: &str) -> Result<u32, i32> {
        self.last_fid += 1;
        let new = self.last_fid;
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        let mut fields = vec![ROOT_FID.to_le_bytes().to_vec(), new.to_le_bytes().to_vec()];
        fields.push((names.len() as u16).to_le_bytes().to_vec());
        fields.extend(names.iter().map(|name| string(name.as_bytes())));
        let fields: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
        let body = self.ask(110, &fields)?;
        let found = usize::from(u16::from_le_bytes([body[0], body[1]]));
        // What stopped it is not said; here it is always a name that is not there.
        if found == names.len() { Ok(new) } else { Err(2) }
    }

    pub fn clunk(&mut self, fid: u32) {
        self.ask(120, &[&fid.to_le_bytes()]).expect("clunked");
    }

    /// Does something with a fid of a path, and gives the fid up.
    pub fn with<T>(
        &mut self,
        path: &str,
        act: impl FnOnce(&mut Self, u32) -> Result<T, i32>,
    ) -> Result<T, i32> {
        let fid = self.walk(path)?;
        let result = act(self, fid);
        self.clunk(fid);
        result
    }

    pub fn open(&mut self, fid: u32, flags: u32) -> Answer {
        self.ask(12, &[&fid.to_le_bytes(), &flags.to_le_bytes()])
    }

    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Answer {
        let body = self.ask(116, &[&fid.to_le_bytes(), &offset.to_le_bytes(), &count.to_le_bytes()])?;
        Ok(body[4..].to_vec())
    }

    pub fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> Answer {
        let length = (data.len() as u32).to_le_bytes();
        self.ask(118, &[&fid.to_le_bytes(), &offset.to_le_bytes(), &length, data])
    }

    pub fn read_all(&mut self, fid: u32) -> Answer {
        let mut all = Vec::new();
        loop {
            let piece = self.read(fid, all.len() as u64, 4096)?;
            if piece.is_empty() {
                return Ok(all);
            }
            all.extend(piece);
        }
    }

    pub fn list(&mut self, fid: u32) -> Result<BTreeSet<Vec<u8>>, i32> {
        let (mut names, mut offset) = (BTreeSet::new(), 0_u64);
        loop {
            let body = self.ask(40, &[&fid.to_le_bytes(), &offset.to_le_bytes(), &200_u32.to_le_bytes()])?;
            let mut rest = &body[4..];
            if rest.is_empty() {
                return Ok(names);
            }
            while !rest.is_empty() {
                offset = u64::from_le_bytes(rest[13..21].try_into().expect("eight"));
                let length = usize::from(u16::from_le_bytes([rest[22], rest[23]]));
                names.insert(rest[24..24 + length].to_vec());
                rest = &rest[24 + length..];
            }
        }
    }
}
