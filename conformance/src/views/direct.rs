//! The service protocol over channels of one's own, as a program writes it that needs no files.
//!
//! Beyond what a server says, this view has one thing of its own: that a session is asked line by
//! line. Nothing here checks flags or modes, so what a server lets through shows.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::time::Instant;

use rustix::io::Errno;
use session::{Answers, CallError, Caller, Control, ControlError, Incoming};
use wire::service::{
    Attributes, Behaviour, Change, Entry, Export, Kind, List, MAX_RECORD_BYTES, MAX_TRANSFER_BYTES, Node,
    OWN_FOLDER, OpenInfo, Operation, RECORD_OVERHEAD_BYTES, Range, SESSION_NONE, Terms, VERSION_WITH_XATTRS,
    XattrChange, XattrOperation, ready,
};

use super::{Done, NOT_SUPPORTED, Opened, Stat, View};
use crate::TIMEOUT;

/// Credit of a stream whose server leaves it to the reader: a few of the longest records.
const WINDOW_BYTES: u32 = 256 * 1024;
/// The credit that one record of any length takes.
const ONE_RECORD: u32 = (MAX_RECORD_BYTES + RECORD_OVERHEAD_BYTES) as u32;
/// Bytes of a listing that are asked for at once: room for few entries, so that it goes on often.
const LIST_BYTES: u32 = 700;
const FOLDER_TYPE: u32 = 0o040_000;
const FILE_TYPE: u32 = 0o100_000;
/// The size of what is made when it is opened, as the files' pages say.
const TEXT_SIZE: u64 = 4096;

/// The channel to one service, and what came over it.
struct Link {
    caller: Caller,
    answers: Answers,
    export: Export,
    /// Answers that nobody has awaited yet.
    answered: HashMap<u64, Done<Vec<u8>>>,
    records: HashMap<u64, VecDeque<Vec<u8>>>,
    ended: HashMap<u64, Option<i32>>,
    ready: HashMap<u64, u32>,
}

/// The state of one open file.
struct File {
    service: String,
    node: u32,
    behaviour: Behaviour,
    text: Vec<u8>,
    /// Requests of a session, oldest first, and what is left of the answer that is being read.
    asked: VecDeque<u64>,
    rest: Vec<u8>,
    end_due: bool,
    window: u32,
    writes_wait: bool,
    credited: bool,
    pending: Option<u64>,
}

/// The services of a domain, over channels.
pub struct Direct {
    control: Control,
    links: HashMap<String, Link>,
    files: HashMap<Opened, File>,
    last: usize,
    list_bytes: u32,
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Direct").field("last", &self.last).finish_non_exhaustive()
    }
}

fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

fn soon() -> Option<Instant> {
    Some(deadline())
}

/// The link failed: no errno of a call.
fn broken(_: CallError) -> i32 {
    -1
}

fn raw(errno: Errno) -> i32 {
    errno.raw_os_error()
}

impl Link {
    fn connect(control: &mut Control, service: &str) -> Done<Self> {
        let (_, end) =
            control.connect_service(service, "api", 0, deadline()).map_err(|error| match error {
                ControlError::Refused { errno, .. } => errno,
                _ => -1,
            })?;
        let (caller, mut answers) = session::open(end).map_err(|_| -1)?;
        let export = match answers.next(soon()).map_err(broken)? {
            Incoming::Hello(export) => export,
            _ => return Err(-1),
        };
        Ok(Self {
            caller,
            answers,
            export,
            answered: HashMap::new(),
            records: HashMap::new(),
            ended: HashMap::new(),
            ready: HashMap::new(),
        })
    }

    /// Takes one message.
    fn take(&mut self) -> Done<()> {
        match self.answers.next(soon()).map_err(broken)? {
            Incoming::Answer(answer) => {
                self.answered.insert(answer.tag, answer.result.map(<[u8]>::to_vec).map_err(raw));
            }
            Incoming::Record { session, record, .. } => {
                self.records.entry(session).or_default().push_back(record.to_vec());
            }
            Incoming::End { session, errno } => {
                self.ended.insert(session, errno.map(raw));
            }
            Incoming::Ready { session, ready } => {
                self.ready.insert(session, ready);
            }
            Incoming::Capsule { .. } => {}
            Incoming::Hello(_) | Incoming::Leave { .. } => return Err(-1),
        }
        Ok(())
    }

    fn answer(&mut self, tag: u64) -> Done<Vec<u8>> {
        loop {
            if let Some(answer) = self.answered.remove(&tag) {
                return answer;
            }
            self.take()?;
        }
    }

    fn request(&mut self, session: u64, file: u32, payload: &[u8]) -> Done<u64> {
        let tag = self.caller.tag();
        self.caller.request((session, tag), file, payload, false, soon()).map_err(|error| match error {
            CallError::TooLong(_) => raw(Errno::MSGSIZE),
            other => broken(other),
        })?;
        Ok(tag)
    }

    fn ask(&mut self, kind: Kind, session: u64, file: u32, payload: &[u8]) -> Done<Vec<u8>> {
        let tag = self.caller.tag();
        self.caller.ask(kind, (session, tag), file, payload, soon()).map_err(broken)?;
        self.answer(tag)
    }

    /// Takes all that the server had sent when it was asked.
    fn catch_up(&mut self) -> Done<()> {
        let tag = self.caller.tag();
        self.caller.state(tag, soon()).map_err(broken)?;
        self.answer(tag).map(drop)
    }

    fn credit(&mut self, session: u64, bytes: u32) -> Done<()> {
        self.caller.credit(session, bytes, soon()).map_err(broken)
    }

    fn node(&mut self, kind: Kind, file: u32, payload: &[u8]) -> Done<Node> {
        Node::decode(&self.ask(kind, SESSION_NONE, file, payload)?).map_err(|_| -1)
    }
}

/// A node that a path leads to.
#[derive(Clone, Copy)]
enum Found {
    /// The service's folder, which has no folder of the server's behind it.
    Service,
    /// A file of the export.
    Export(u32),
    /// A node that the server told of.
    Below(Node),
}

impl Direct {
    /// Takes the connection to the daemon at this control socket of a domain.
    ///
    /// # Errors
    /// As [`Control::connect_when_there`].
    pub fn connect(at: &Path) -> Result<Self, ControlError> {
        let control = Control::connect_when_there(at, Some(deadline()))?;
        Ok(Self { control, links: HashMap::new(), files: HashMap::new(), last: 0, list_bytes: LIST_BYTES })
    }

    /// The same view, which takes so many bytes of a listing at once.
    #[must_use]
    pub fn with_listings_of(self, list_bytes: u32) -> Self {
        Self { list_bytes, ..self }
    }

    fn link_to(&mut self, service: &str) -> Done<&mut Link> {
        if !self.links.contains_key(service) {
            let link = Link::connect(&mut self.control, service)?;
            self.links.insert(service.to_owned(), link);
        }
        self.links.get_mut(service).ok_or(-1)
    }

    fn walk<'p>(&mut self, path: &'p str) -> Done<(&'p str, Found)> {
        let (service, rest) = path.split_once('/').unwrap_or((path, ""));
        let link = self.link_to(service)?;
        let own = link.export.files.iter().find(|file| file.name.as_deref() == Some(OWN_FOLDER));
        let own = own.map(|file| file.id);
        let mut at = own.map_or(Found::Service, Found::Export);
        for (depth, name) in rest.split('/').filter(|name| !name.is_empty()).enumerate() {
            let exported = link.export.files.iter().find(|file| file.name.as_deref() == Some(name));
            at = match (depth, exported, at) {
                (0, Some(file), _) => Found::Export(file.id),
                (_, _, Found::Service) => return Err(raw(Errno::NOENT)),
                (_, _, Found::Export(id)) => Found::Below(link.node(Kind::Lookup, id, name.as_bytes())?),
                (_, _, Found::Below(node)) => {
                    Found::Below(link.node(Kind::Lookup, node.number, name.as_bytes())?)
                }
            };
        }
        Ok((service, at))
    }

    /// The number by which the server knows it.
    fn number(&mut self, path: &str) -> Done<u32> {
        match self.walk(path)?.1 {
            Found::Service => Err(raw(Errno::ACCESS)),
            Found::Export(id) => Ok(id),
            Found::Below(node) => Ok(node.number),
        }
    }

    fn change(&mut self, operation: Operation, path: &str, mode: u32, to: Option<&str>) -> Done<()> {
        let (folder, name) = path.rsplit_once('/').ok_or(raw(Errno::INVAL))?;
        let at = self.number(folder)?;
        let (other, new_name) = match to {
            Some(to) => {
                let (folder, name) = to.rsplit_once('/').ok_or(raw(Errno::INVAL))?;
                (self.number(folder)?, name)
            }
            None => (0, ""),
        };
        self.send_change(path, at, operation, (mode, other), (name, new_name)).map(drop)
    }

    fn send_change(
        &mut self,
        path: &str,
        folder: u32,
        operation: Operation,
        (mode, other): (u32, u32),
        (name, new_name): (&str, &str),
    ) -> Done<Vec<u8>> {
        let caller = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let (name, new_name) = (name.as_bytes(), new_name.as_bytes());
        let change = Change { operation, mode, other, caller, name, new_name };
        let service = path.split('/').next().unwrap_or_default();
        self.link_to(service)?.ask(Kind::Change, SESSION_NONE, folder, &change.encode())
    }

    /// Asks about extended attributes, if the server knows of any.
    fn ask_xattrs(&mut self, path: &str, kind: Kind, payload: &[u8]) -> Done<Vec<u8>> {
        let number = self.number(path)?;
        let link = self.link_to(path.split('/').next().unwrap_or_default())?;
        if link.export.version < VERSION_WITH_XATTRS {
            return Err(NOT_SUPPORTED);
        }
        link.ask(kind, SESSION_NONE, number, payload)
    }

    fn open_found(&mut self, service: &str, found: Found, flags: u32) -> Done<Opened> {
        self.last += 1;
        let opened = Opened(self.last);
        let session = self.last as u64;
        let link = self.link_to(service)?;
        let (node, behaviour) = match found {
            Found::Service => return Err(raw(Errno::ISDIR)),
            Found::Below(node) => (node.number, node.behaviour),
            Found::Export(id) => {
                let file = link.export.files.iter().find(|file| file.id == id).ok_or(-1)?;
                (id, file.behaviour)
            }
        };
        let mut file = File {
            service: service.to_owned(),
            node,
            behaviour,
            text: Vec::new(),
            asked: VecDeque::new(),
            rest: Vec::new(),
            end_due: false,
            window: 0,
            writes_wait: false,
            credited: false,
            pending: None,
        };
        match behaviour {
            // What is only written is not asked for its text.
            Behaviour::Text | Behaviour::Control => {
                if flags & 3 != 1 {
                    let tag = link.request(SESSION_NONE, node, b"")?;
                    file.text = link.answer(tag)?;
                }
            }
            _ => {
                let tag = link.caller.tag();
                let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
                let info = OpenInfo { uid, gid, pid: 0, entrance: "api".into(), flags, capsule: Vec::new() };
                link.caller.open((session, tag), node, &info, soon()).map_err(broken)?;
                let answer = link.answer(tag)?;
                if behaviour == Behaviour::Stream {
                    let terms = Terms::decode(&answer).map_err(|_| -1)?;
                    file.window = terms.map_or(WINDOW_BYTES, |terms| terms.window);
                    file.writes_wait = terms.is_some_and(|terms| terms.writes_wait);
                    if file.window > 0 && flags & 3 != 1 {
                        link.credit(session, file.window)?;
                    }
                }
            }
        }
        self.files.insert(opened, file);
        Ok(opened)
    }

    /// The open file with its link.
    fn both(&mut self, file: Opened) -> Done<(&mut File, &mut Link)> {
        let file = self.files.get_mut(&file).ok_or(raw(Errno::BADF))?;
        let link = self.links.get_mut(&file.service).ok_or(-1)?;
        Ok((file, link))
    }
}

/// Gives credit for a record, where the server wants it when somebody reads.
fn want(link: &mut Link, file: &mut File, session: u64) -> Done<()> {
    if file.behaviour == Behaviour::Stream && file.window == 0 && !file.credited {
        file.credited = true;
        link.credit(session, ONE_RECORD)?;
    }
    Ok(())
}

/// The rest of a record or of an answer, as much as is wanted.
fn cut(rest: &mut Vec<u8>, most: usize) -> Vec<u8> {
    let left = rest.split_off(most.min(rest.len()));
    std::mem::replace(rest, left)
}

fn read_stream(link: &mut Link, file: &mut File, session: u64, most: usize) -> Done<Vec<u8>> {
    if !file.rest.is_empty() {
        return Ok(cut(&mut file.rest, most));
    }
    want(link, file, session)?;
    loop {
        if let Some(record) = link.records.get_mut(&session).and_then(VecDeque::pop_front) {
            file.credited = false;
            if file.window > 0 {
                link.credit(session, (record.len() + RECORD_OVERHEAD_BYTES) as u32)?;
            }
            file.rest = record;
            return Ok(cut(&mut file.rest, most));
        }
        match link.ended.get(&session) {
            Some(Some(errno)) => return Err(*errno),
            Some(None) => return Ok(Vec::new()),
            None => link.take()?,
        }
    }
}

fn read_session(link: &mut Link, file: &mut File, most: usize) -> Done<Vec<u8>> {
    while file.rest.is_empty() {
        let Some(tag) = file.asked.pop_front() else {
            file.end_due = false;
            return Ok(Vec::new());
        };
        file.end_due = true;
        file.rest = link.answer(tag)?;
    }
    Ok(cut(&mut file.rest, most))
}

fn write_at(link: &mut Link, session: u64, offset: u64, data: &[u8]) -> Done<usize> {
    let mut done = 0;
    for piece in data.chunks(MAX_TRANSFER_BYTES) {
        let payload = [&(offset + done as u64).to_le_bytes(), piece].concat();
        let answer = link.ask(Kind::WriteAt, session, 0, &payload)?;
        let count = <[u8; 4]>::try_from(&answer[..]).map_or(Err(-1), |four| Ok(u32::from_le_bytes(four)))?;
        done += count as usize;
        if (count as usize) < piece.len() {
            break;
        }
    }
    Ok(done)
}

fn read_at(link: &mut Link, session: u64, offset: u64, most: usize) -> Done<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < most {
        let bytes = (most - all.len()).min(MAX_TRANSFER_BYTES) as u32;
        let range = Range { offset: offset + all.len() as u64, bytes };
        let piece = link.ask(Kind::ReadAt, session, 0, &range.encode())?;
        let is_end = piece.len() < bytes as usize;
        all.extend(piece);
        if is_end {
            break;
        }
    }
    Ok(all)
}

fn events(link: &Link, file: &File, session: u64) -> HashSet<&'static str> {
    let has_record = link.records.get(&session).is_some_and(|records| !records.is_empty());
    let has_answer = match file.asked.front() {
        Some(tag) => link.answered.contains_key(tag),
        None => file.end_due,
    };
    let bits = link.ready.get(&session).copied().unwrap_or(0);
    let device = |bit: u32| file.behaviour == Behaviour::Device && bits & bit != 0;
    let is_device = file.behaviour == Behaviour::Device;
    let has_bytes = matches!(file.behaviour, Behaviour::Random | Behaviour::Text | Behaviour::Control)
        || !file.rest.is_empty();
    let all = [
        ("in", device(ready::READ) || has_record || has_answer || has_bytes),
        ("out", device(ready::WRITE) || !is_device),
        ("pri", device(ready::PRIORITY)),
        ("err", device(ready::ERROR)),
    ];
    all.into_iter().filter_map(|(word, holds)| holds.then_some(word)).collect()
}

impl View for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn stat(&mut self, path: &str) -> Done<Stat> {
        let (service, found) = self.walk(path)?;
        let link = self.link_to(service)?;
        let node = match found {
            Found::Below(node) => link.node(Kind::Stat, node.number, b"")?,
            Found::Export(id) => {
                let file = link.export.files.iter().find(|file| file.id == id).ok_or(-1)?;
                let (is_folder, mode) = (file.behaviour == Behaviour::Folder, file.mode);
                let (bits, links) = if is_folder { (FOLDER_TYPE, 2) } else { (FILE_TYPE, 1) };
                let size = if is_folder { 0 } else { TEXT_SIZE };
                return Ok(Stat { mode: bits | mode, links, size });
            }
            Found::Service => return Ok(Stat { mode: FOLDER_TYPE | 0o555, links: 2, size: 0 }),
        };
        let is_folder = node.behaviour == Behaviour::Folder;
        let bits = if is_folder { FOLDER_TYPE } else { FILE_TYPE };
        // Of what is made when it is opened, nothing follows from the size.
        let has_size = is_folder || node.behaviour == Behaviour::Random;
        let size = if has_size { node.size } else { TEXT_SIZE };
        Ok(Stat { mode: bits | u32::from(node.mode), links: node.links.into(), size })
    }

    fn list(&mut self, path: &str) -> Done<Vec<Vec<u8>>> {
        let list_bytes = self.list_bytes;
        let (service, found) = self.walk(path)?;
        let link = self.link_to(service)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        if path == service {
            let exported = link.export.files.iter().filter_map(|file| file.name.as_deref());
            names.extend(exported.filter(|name| *name != OWN_FOLDER).map(|name| name.as_bytes().to_vec()));
        }
        let number = match found {
            Found::Service => return Ok(names),
            Found::Export(id) => id,
            Found::Below(node) => node.number,
        };
        let mut after = 0;
        loop {
            let wanted = List { after, bytes: list_bytes }.encode();
            let part = link.ask(Kind::List, SESSION_NONE, number, &wanted)?;
            if part.is_empty() {
                return Ok(names);
            }
            let mut rest = &part[..];
            while let Some(entry) = Entry::take(&mut rest).map_err(|_| -1)? {
                after = entry.place;
                names.push(entry.name.to_vec());
            }
        }
    }

    fn open(&mut self, path: &str, flags: u32) -> Done<Opened> {
        let (service, found) = self.walk(path)?;
        self.open_found(service, found, flags)
    }

    fn create(&mut self, path: &str, flags: u32, mode: u32) -> Done<Opened> {
        let (folder, name) = path.rsplit_once('/').ok_or(raw(Errno::INVAL))?;
        let at = self.number(folder)?;
        let made = self.send_change(path, at, Operation::Create, (mode, 0), (name, ""))?;
        let node = Node::decode(&made).map_err(|_| -1)?;
        let service = path.split('/').next().unwrap_or_default();
        self.open_found(service, Found::Below(node), flags)
    }

    fn read(&mut self, opened: Opened, offset: u64, most: usize) -> Done<Vec<u8>> {
        let session = opened.0 as u64;
        let (file, link) = self.both(opened)?;
        match file.behaviour {
            Behaviour::Stream => read_stream(link, file, session, most),
            Behaviour::Session => read_session(link, file, most),
            Behaviour::Text | Behaviour::Control => {
                let at = usize::try_from(offset).unwrap_or(usize::MAX);
                let rest = file.text.get(at..).unwrap_or_default();
                Ok(rest.get(..most).unwrap_or(rest).to_vec())
            }
            Behaviour::Device => {
                let range = Range { offset: 0, bytes: most.min(MAX_TRANSFER_BYTES) as u32 };
                link.ask(Kind::ReadAt, session, 0, &range.encode())
            }
            Behaviour::Random | Behaviour::Folder => read_at(link, session, offset, most),
            Behaviour::Symlink => Err(raw(Errno::LOOP)),
        }
    }

    fn begin_read(&mut self, opened: Opened, most: usize) -> Done<()> {
        let session = opened.0 as u64;
        let (file, link) = self.both(opened)?;
        want(link, file, session)?;
        if file.behaviour == Behaviour::Device {
            let range = Range { offset: 0, bytes: most.min(MAX_TRANSFER_BYTES) as u32 };
            let tag = link.caller.tag();
            link.caller.ask(Kind::ReadAt, (session, tag), 0, &range.encode(), soon()).map_err(broken)?;
            file.pending = Some(tag);
        }
        file.text = vec![0; most];
        Ok(())
    }

    fn end_read(&mut self, opened: Opened) -> Done<Vec<u8>> {
        let (file, link) = self.both(opened)?;
        let most = file.text.len();
        match file.pending.take() {
            Some(tag) => link.answer(tag),
            None => self.read(opened, 0, most),
        }
    }

    fn write(&mut self, opened: Opened, offset: u64, data: &[u8]) -> Done<usize> {
        let session = opened.0 as u64;
        let (file, link) = self.both(opened)?;
        let lines = data.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        match file.behaviour {
            Behaviour::Session => {
                for line in lines {
                    file.asked.push_back(link.request(session, file.node, line)?);
                }
                Ok(data.len())
            }
            Behaviour::Control | Behaviour::Text => {
                for line in lines {
                    let tag = link.request(SESSION_NONE, file.node, line)?;
                    link.answer(tag)?;
                }
                Ok(data.len())
            }
            Behaviour::Stream => {
                let tag = link.request(session, file.node, data)?;
                if file.writes_wait {
                    link.answer(tag)?;
                }
                Ok(data.len())
            }
            Behaviour::Device | Behaviour::Random | Behaviour::Folder => {
                write_at(link, session, offset, data)
            }
            Behaviour::Symlink => Err(raw(Errno::LOOP)),
        }
    }

    fn sync(&mut self, opened: Opened) -> Done<()> {
        let session = opened.0 as u64;
        let (_, link) = self.both(opened)?;
        link.ask(Kind::Sync, session, 0, b"").map(drop)
    }

    fn ready(&mut self, opened: Opened, wanted: &[&str]) -> Done<Vec<&'static str>> {
        let session = opened.0 as u64;
        let (file, link) = self.both(opened)?;
        want(link, file, session)?;
        link.catch_up()?;
        loop {
            let found = events(link, file, session);
            if wanted.is_empty() || wanted.iter().any(|word| found.contains(word)) {
                let words = ["in", "out", "pri", "err"];
                return Ok(words.into_iter().filter(|word| found.contains(word)).collect());
            }
            link.take()?;
        }
    }

    fn close(&mut self, opened: Opened) {
        if let Ok((file, link)) = self.both(opened)
            && !matches!(file.behaviour, Behaviour::Text | Behaviour::Control)
        {
            let _gone_either_way = link.caller.close(opened.0 as u64, soon());
        }
        self.files.remove(&opened);
    }

    fn make_folder(&mut self, path: &str) -> Done<()> {
        self.change(Operation::MakeFolder, path, 0o755, None)
    }

    fn unlink(&mut self, path: &str) -> Done<()> {
        self.change(Operation::Unlink, path, 0, None)
    }

    fn remove_folder(&mut self, path: &str) -> Done<()> {
        self.change(Operation::RemoveFolder, path, 0, None)
    }

    fn rename(&mut self, path: &str, to: &str) -> Done<()> {
        self.change(Operation::Rename, path, 0, Some(to))
    }

    fn link(&mut self, path: &str, to: &str) -> Done<()> {
        let (folder, name) = to.rsplit_once('/').ok_or(raw(Errno::INVAL))?;
        let (node, at) = (self.number(path)?, self.number(folder)?);
        self.send_change(path, at, Operation::Link, (0, node), (name, "")).map(drop)
    }

    fn set(&mut self, path: &str, size: Option<u64>, mode: Option<u32>) -> Done<()> {
        let number = self.number(path)?;
        let service = path.split('/').next().unwrap_or_default();
        let payload = Attributes { size, mode, changed: None }.encode();
        self.link_to(service)?.ask(Kind::Set, SESSION_NONE, number, &payload).map(drop)
    }

    fn xattr(&mut self, path: &str, name: &str) -> Done<Vec<u8>> {
        self.ask_xattrs(path, Kind::GetXattr, name.as_bytes())
    }

    fn xattrs(&mut self, path: &str) -> Done<Vec<u8>> {
        self.ask_xattrs(path, Kind::ListXattrs, b"")
    }

    fn set_xattr(&mut self, path: &str, name: &str, value: Option<&[u8]>, flags: u32) -> Done<()> {
        let operation = match (value, flags) {
            (None, _) => XattrOperation::Remove,
            (_, 0) => XattrOperation::Set,
            (_, 1) => XattrOperation::Create,
            _ => XattrOperation::Replace,
        };
        let change = XattrChange { operation, name: name.as_bytes(), value: value.unwrap_or_default() };
        self.ask_xattrs(path, Kind::SetXattr, &change.encode()).map(drop)
    }
}
