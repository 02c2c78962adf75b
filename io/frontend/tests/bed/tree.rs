//! The part of the backend that has a tree: folders and bytes in memory, and streams of numbered
//! records.

use std::collections::BTreeMap;

use super::backend::{answer, message};
use channel::Sender;
use wire::service::{
    Attributes, Behaviour, Change, Entry, FileExport, Header, Kind, List, Node, OWN_FOLDER, OWNER_NONE,
    OpenInfo, Operation, RECORD_OVERHEAD_BYTES, Range, below, flags, offset_of, root_of,
};

/// The exported folder, and streams: one that can be resumed, one that can't, and one that takes
/// records.
pub const TREE: u32 = 32;
pub const COUNT: u32 = 33;
pub const LOSSY: u32 = 34;
pub const SINK: u32 = 35;

const NOENT: u32 = 2;
const EXIST: u32 = 17;
const NOTDIR: u32 = 20;
const INVAL: u32 = 22;
const PERM: u32 = 1;
const NOTEMPTY: u32 = 39;
/// The error with which the sink refuses a record.
const DOM: u32 = 33;

/// Returns the exports beside the usual ones.
pub fn exports() -> Vec<FileExport> {
    let file = |id, name: &str, mode, behaviour, idempotent| FileExport {
        id,
        name: Some(name.into()),
        mode,
        behaviour,
        idempotent,
        verb: "resolve".into(),
        change: Some("control".into()),
    };
    vec![
        file(TREE, OWN_FOLDER, 0o777, Behaviour::Folder, true),
        file(COUNT, "count", 0o444, Behaviour::Stream, false),
        file(LOSSY, "lossy", 0o444, Behaviour::Stream, false),
        file(SINK, "sink", 0o666, Behaviour::Stream, true),
    ]
}

struct Item {
    parent: u32,
    name: Vec<u8>,
    /// None: a folder.
    bytes: Option<Vec<u8>>,
    mode: u16,
}

/// The tree, and what streams are to say.
#[derive(Default)]
pub struct Tree {
    items: BTreeMap<u32, Item>,
    last: u32,
    /// Readers of streams: what they still take, and the next number for each.
    readers: BTreeMap<u64, (u32, u64, u64)>,
    /// How many numbers there are.
    pub numbers: u64,
    /// The records written into the sink.
    pub sunk: Vec<String>,
}

impl Tree {
    fn child(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let mut items = self.items.iter();
        items.find(|(_, item)| item.parent == parent && item.name == name).map(|(&number, _)| number)
    }

    fn node(&self, number: u32) -> Option<Node> {
        let item = self.items.get(&number)?;
        let is_folder = item.bytes.is_none();
        Some(Node {
            number,
            behaviour: if is_folder { Behaviour::Folder } else { Behaviour::Random },
            idempotent: true,
            mode: item.mode,
            links: 1,
            size: item.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64),
            changed: (1, 0),
            owner: (OWNER_NONE, OWNER_NONE),
        })
    }

    fn is_folder(&self, number: u32) -> bool {
        root_of(number) == number || self.items.get(&number).is_some_and(|item| item.bytes.is_none())
    }

    fn make(&mut self, parent: u32, name: &[u8], bytes: Option<Vec<u8>>, mode: u32) -> Result<Vec<u8>, u32> {
        if self.child(parent, name).is_some() {
            return Err(EXIST);
        }
        self.last += 1;
        let number = below(TREE, self.last).expect("few nodes");
        self.items.insert(number, Item { parent, name: name.to_vec(), bytes, mode: mode as u16 });
        Ok(self.node(number).map(|node| node.encode().to_vec()).unwrap_or_default())
    }

    fn change(&mut self, folder: u32, payload: &[u8]) -> Result<Vec<u8>, u32> {
        let change = Change::decode(payload).map_err(|_| INVAL)?;
        match change.operation {
            Operation::Create => self.make(folder, change.name, Some(Vec::new()), change.mode),
            Operation::MakeFolder => self.make(folder, change.name, None, change.mode),
            Operation::Unlink | Operation::RemoveFolder => {
                let number = self.child(folder, change.name).ok_or(NOENT)?;
                if self.items.values().any(|item| item.parent == number) {
                    return Err(NOTEMPTY);
                }
                self.items.remove(&number);
                Ok(Vec::new())
            }
            Operation::Rename => {
                let number = self.child(folder, change.name).ok_or(NOENT)?;
                if let Some(before) = self.child(change.other, change.new_name) {
                    self.items.remove(&before);
                }
                let item = self.items.get_mut(&number).ok_or(NOENT)?;
                (item.parent, item.name) = (change.other, change.new_name.to_vec());
                Ok(Vec::new())
            }
            Operation::Link => Err(INVAL),
            Operation::Symlink => Err(PERM),
        }
    }

    fn list(&self, folder: u32, payload: &[u8]) -> Result<Vec<u8>, u32> {
        let part = List::decode(payload).map_err(|_| INVAL)?;
        let mut listing = Vec::new();
        let children = self.items.iter().filter(|(_, item)| item.parent == folder);
        for (&number, item) in children {
            let place = u64::from(number);
            let Some(node) = self.node(number).filter(|_| place > part.after) else { continue };
            let before = listing.len();
            Entry { node, place, name: &item.name }.append(&mut listing);
            if listing.len() > part.bytes as usize {
                listing.truncate(before);
                break;
            }
        }
        Ok(listing)
    }

    fn ask(&mut self, header: &Header, payload: &[u8], file: Option<u32>) -> Result<Vec<u8>, u32> {
        let number = header.file;
        match header.kind {
            Kind::Lookup if !self.is_folder(number) => Err(NOTDIR),
            Kind::Lookup => {
                let child = self.child(number, payload).ok_or(NOENT)?;
                Ok(self.node(child).ok_or(NOENT)?.encode().to_vec())
            }
            Kind::Stat => Ok(self.node(number).ok_or(NOENT)?.encode().to_vec()),
            Kind::List => self.list(number, payload),
            Kind::Change => self.change(number, payload),
            Kind::Set => {
                let set = Attributes::decode(payload).map_err(|_| INVAL)?;
                let item = self.items.get_mut(&number).ok_or(NOENT)?;
                item.mode = set.mode.map_or(item.mode, |mode| mode as u16);
                if let (Some(size), Some(bytes)) = (set.size, &mut item.bytes) {
                    bytes.resize(size as usize, 0);
                }
                Ok(self.node(number).ok_or(NOENT)?.encode().to_vec())
            }
            Kind::ReadAt => {
                let range = Range::decode(payload).map_err(|_| INVAL)?;
                let bytes = file.and_then(|file| self.items.get(&file)?.bytes.as_ref()).ok_or(NOENT)?;
                let rest = bytes.get(range.offset as usize..).unwrap_or_default();
                Ok(rest.get(..range.bytes as usize).unwrap_or(rest).to_vec())
            }
            Kind::WriteAt => {
                let (offset, data) = offset_of(payload).map_err(|_| INVAL)?;
                let item = file.and_then(|file| self.items.get_mut(&file)).ok_or(NOENT)?;
                let bytes = item.bytes.as_mut().ok_or(NOENT)?;
                let end = offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset as usize..end].copy_from_slice(data);
                Ok((data.len() as u32).to_le_bytes().to_vec())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// A question about the tree, or bytes; `file` is what the session is opened on.
    pub fn asked(&mut self, sender: &mut Sender, header: &Header, payload: &[u8], file: Option<u32>) {
        match self.ask(header, payload, file) {
            Ok(bytes) => answer(sender, header, 0, &bytes),
            Err(errno) => answer(sender, header, errno, &[]),
        }
    }

    /// A session is opened: on a node, with what an earlier backend left.
    pub fn opened(&mut self, header: &Header, info: &OpenInfo) {
        let number = header.file;
        if matches!(number, COUNT | LOSSY) {
            let next = <[u8; 8]>::try_from(&info.capsule[..]).map_or(0, u64::from_le_bytes);
            self.readers.insert(header.session, (number, 0, next));
        }
        const TRUNCATE: u32 = 0o1000;
        if let Some(bytes) = self.items.get_mut(&number).and_then(|item| item.bytes.as_mut())
            && info.flags & TRUNCATE != 0
        {
            bytes.clear();
        }
    }

    pub fn closed(&mut self, session: u64) {
        self.readers.remove(&session);
    }

    pub fn credited(&mut self, sender: &mut Sender, header: &Header) {
        if let Some((_, credit, _)) = self.readers.get_mut(&header.session) {
            *credit += u64::from(header.file);
        }
        self.push(sender);
    }

    /// Sends all numbers that the readers take.
    pub fn push(&mut self, sender: &mut Sender) {
        for (&session, (file, credit, next)) in &mut self.readers {
            while *next < self.numbers {
                let record = format!("number {next}\n").into_bytes();
                let cost = (record.len() + RECORD_OVERHEAD_BYTES) as u64;
                let Some(left) = credit.checked_sub(cost) else { break };
                (*credit, *next) = (left, *next + 1);
                let capsule = if *file == COUNT { next.to_le_bytes().to_vec() } else { Vec::new() };
                let header = Header { session, file: capsule.len() as u32, ..Header::new(Kind::Record) };
                let _ = sender.send(&message(header, &[record, capsule].concat()), None);
            }
        }
    }

    /// Ends all streams.
    pub fn end(&mut self, sender: &mut Sender, errno: u32) {
        for &session in self.readers.keys() {
            let header = Header { session, status: errno, flags: flags::END, ..Header::new(Kind::Record) };
            let _ = sender.send(&message(header, &[]), None);
        }
    }

    /// A record for the sink.
    pub fn take(&mut self, sender: &mut Sender, header: &Header, payload: &[u8]) {
        let text = String::from_utf8_lossy(payload).into_owned();
        let errno = if text == "bad" { DOM } else { 0 };
        if errno == 0 {
            self.sunk.push(text);
        }
        answer(sender, header, errno, &[]);
    }
}
