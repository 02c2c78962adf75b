//! A backend that does what its requests say, or what no backend should.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::tree::{self, Tree};
use channel::{Closer, End, Receiver, Sender};
use wire::service::{
    Behaviour, Export, FileExport, Header, Kind, MAX_RESPONSE_BYTES, OpenInfo, Phase, SESSION_NONE, VERSION,
    flags,
};

/// Numbers of the files.
pub const QUERY: u32 = 0;
pub const CTL: u32 = 1;
pub const STATUS: u32 = 2;
pub const ONCE: u32 = 3;

/// `_IOR('T', 7, __u64)`: how often this session's value was added to.
pub const GET: u32 = 0x8008_5407;
/// `_IOW('T', 2, __u64)`: adds to the session's value.
pub const ADD: u32 = 0x4008_5402;
/// `_IO('T', 9)`: is not answered before it is released.
pub const HOLD: u32 = 0x5409;

/// The replies to a request, byte by byte.
pub type Raw = fn(&Header) -> Vec<Vec<u8>>;

/// How a backend behaves beyond the usual.
#[derive(Clone, Default)]
pub struct Script {
    /// The export instead of the usual one.
    pub export: Option<Export>,
    /// Raw messages instead of the first answer to a line.
    pub instead: Option<Raw>,
    /// Sessions beyond this many are refused with `EMFILE`.
    pub sessions_max: Option<usize>,
    /// Defaults that are handed over are refused with `EACCES`.
    pub refuses_defaults: bool,
    /// The state of each session is said anew without end, as fast as the ring takes it.
    pub floods: bool,
    /// The node that every look-up in the tree finds.
    pub lies: Option<wire::service::Node>,
}

/// The state of a backend.
#[derive(Default)]
pub struct State {
    /// The opener of each session.
    pub sessions: HashMap<u64, OpenInfo>,
    pub values: HashMap<u64, u64>,
    /// Lines of `ctl`; the last is the domain's defaults.
    pub settings: Vec<String>,
    /// Defaults that were handed over, each with the sessions that were open before.
    pub restored: Vec<(String, usize)>,
    pub cancelled: Vec<u64>,
    pub asked: Vec<String>,
    pub held: Vec<(Header, Vec<u8>)>,
    pub statuses: usize,
    /// How many states a flood has said.
    pub flooded: u64,
    pub deaf: bool,
    pub tree: Tree,
    /// The files on which the sessions are opened.
    pub files: HashMap<u64, u32>,
}

/// A backend's thread; ends when it is dropped.
pub struct Backend {
    pub state: Arc<Mutex<State>>,
    sender: Arc<Mutex<Sender>>,
    closer: Closer,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

pub fn file(
    id: u32,
    name: &str,
    mode: u32,
    behaviour: Behaviour,
    idempotent: bool,
    verb: &str,
) -> FileExport {
    FileExport { id, name: Some(name.into()), mode, behaviour, idempotent, verb: verb.into(), change: None }
}

pub fn export() -> Export {
    let files = vec![
        file(QUERY, "query", 0o666, Behaviour::Session, true, "resolve"),
        file(CTL, "ctl", 0o644, Behaviour::Control, true, "control"),
        file(STATUS, "status", 0o444, Behaviour::Text, true, "resolve"),
        file(ONCE, "once", 0o666, Behaviour::Session, false, "resolve"),
        file(4, "secret", 0o666, Behaviour::Session, true, "secret"),
        FileExport { name: None, ..file(16, "", 0, Behaviour::Session, true, "resolve") },
    ];
    Export { version: VERSION, kind: "directory".into(), files }
}

/// The usual files, a tree and streams.
pub fn with_tree() -> Export {
    let mut export = export();
    export.files.extend(tree::exports());
    export
}

impl Backend {
    pub fn start(end: End, script: Script) -> Self {
        let (mut sender, receiver) = end.open().expect("an end");
        let hello = serde_json::to_vec(script.export.as_ref().unwrap_or(&export())).unwrap();
        sender.send(&message(Header::new(Kind::Hello), &hello), None).expect("said hello");
        let closer = sender.closer();
        let sender = Arc::new(Mutex::new(sender));
        let state = Arc::new(Mutex::new(State::default()));
        let (own, to) = (Arc::clone(&state), Arc::clone(&sender));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        if script.floods {
            let (to, own, stopped) = (Arc::clone(&sender), Arc::clone(&state), Arc::clone(&stop));
            std::thread::spawn(move || flood(&to, &own, &stopped));
        }
        let thread = std::thread::spawn(move || run(receiver, &to, &own, &script, &stopped));
        Self { state, sender, closer, stop, thread: Some(thread) }
    }

    /// Lets the streams say so many more numbers.
    pub fn count(&self, more: u64) {
        let mut state = self.state.lock().unwrap();
        state.tree.numbers += more;
        state.tree.push(&mut self.sender.lock().unwrap());
    }

    /// Ends the streams.
    pub fn end_streams(&self, errno: u32) {
        self.state.lock().unwrap().tree.end(&mut self.sender.lock().unwrap(), errno);
    }

    /// Answers what is held.
    pub fn release(&self) {
        let held = std::mem::take(&mut self.state.lock().unwrap().held);
        let mut sender = self.sender.lock().unwrap();
        for (header, payload) in held {
            answer(&mut sender, &header, 0, &payload);
        }
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.closer.close();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a backend does not panic");
        }
    }
}

pub fn message(header: Header, payload: &[u8]) -> Vec<u8> {
    let header = Header { length: payload.len() as u32, ..header };
    [&header.encode()[..], payload].concat()
}

pub fn answer(sender: &mut Sender, to: &Header, status: u32, payload: &[u8]) {
    let head = |more: bool| Header {
        flags: if more { flags::MORE } else { 0 },
        status,
        session: to.session,
        tag: to.tag,
        ..Header::new(Kind::Response)
    };
    let mut pieces = payload.chunks(MAX_RESPONSE_BYTES).peekable();
    if pieces.peek().is_none() {
        let _ = sender.send(&message(head(false), &[]), None);
    }
    while let Some(piece) = pieces.next() {
        // An error is the frontend's or the test's end; the thread hears of it when it receives.
        let _ = sender.send(&message(head(pieces.peek().is_some()), piece), None);
    }
}

/// Says the state of every session anew, another one each time, until nobody takes it any more.
fn flood(sender: &Mutex<Sender>, state: &Mutex<State>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let sessions: Vec<u64> = state.lock().unwrap().sessions.keys().copied().collect();
        if sessions.is_empty() {
            std::thread::yield_now();
        }
        for session in sessions {
            let mut state = state.lock().unwrap();
            state.flooded += 1;
            let capsule = Header { session, ..Header::new(Kind::Capsule) };
            let said = [state.flooded as u8; 1000];
            drop(state);
            let soon = Some(std::time::Instant::now() + super::TIMEOUT);
            if sender.lock().unwrap().send(&message(capsule, &said), soon).is_err() {
                return;
            }
        }
    }
}

fn run(
    mut receiver: Receiver,
    sender: &Mutex<Sender>,
    state: &Mutex<State>,
    script: &Script,
    stop: &AtomicBool,
) {
    let mut buffer = Vec::new();
    while receiver.receive(&mut buffer, None).is_ok() {
        let (header, payload) = Header::decode(&buffer).expect("the frontend sends messages");
        // A backend that does not listen any more, until it is ended.
        while payload == b"deaf" && header.kind == Kind::Request && !stop.load(Ordering::Relaxed) {
            state.lock().unwrap().deaf = true;
            // tidy(sleep): a backend that does nothing, for as long as nobody ends it
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let mut state = state.lock().unwrap();
        let mut sender = sender.lock().unwrap();
        match header.kind {
            Kind::Open => open(&mut sender, &mut state, &header, payload, script),
            Kind::Request if header.file == tree::SINK => {
                state.tree.take(&mut sender, &header, payload);
            }
            Kind::Lookup if script.lies.is_some() => {
                let node = script.lies.map(|node| node.encode()).unwrap_or([0; 48]);
                answer(&mut sender, &header, 0, &node);
            }
            Kind::Credit => state.tree.credited(&mut sender, &header),
            Kind::Lookup
            | Kind::List
            | Kind::Stat
            | Kind::Change
            | Kind::Set
            | Kind::ReadAt
            | Kind::WriteAt
            | Kind::Sync => {
                let file = state.files.get(&header.session).copied();
                state.tree.asked(&mut sender, &header, payload, file);
            }
            Kind::Request if header.file == CTL => control(&mut sender, &mut state, &header, payload),
            Kind::Request if header.file == STATUS => {
                state.statuses += 1;
                let text = format!("status {}\n{}", state.statuses, "line\n".repeat(2000));
                answer(&mut sender, &header, 0, text.as_bytes());
            }
            Kind::Request => {
                if let Some(instead) = script.instead {
                    for raw in instead(&header) {
                        let _ = sender.send(&raw, None);
                    }
                } else {
                    line(&mut sender, &mut state, &header, payload);
                }
            }
            Kind::Cancel => {
                state.cancelled.push(header.tag);
                state.held.retain(|(held, _)| held.tag != header.tag);
            }
            Kind::Close => {
                assert!(state.sessions.remove(&header.session).is_some(), "an unknown session is closed");
                state.held.retain(|(held, _)| held.session != header.session);
                state.tree.closed(header.session);
            }
            Kind::Control => ioctl(&mut sender, &mut state, &header, payload),
            other => panic!("a frontend does not send {other:?}"),
        }
    }
}

fn open(sender: &mut Sender, state: &mut State, header: &Header, payload: &[u8], script: &Script) {
    let info: OpenInfo = serde_json::from_slice(payload).expect("who opens");
    if header.session == SESSION_NONE {
        let defaults = String::from_utf8(info.capsule).expect("what was given out");
        state.restored.push((defaults.clone(), state.sessions.len()));
        if !script.refuses_defaults {
            state.settings = vec![defaults];
        }
        return answer(sender, header, if script.refuses_defaults { 13 } else { 0 }, &[]);
    }
    if script.sessions_max.is_some_and(|most| state.sessions.len() >= most) {
        return answer(sender, header, 24, &[]);
    }
    if let Ok(capsule) = <[u8; 8]>::try_from(&info.capsule[..]) {
        state.values.insert(header.session, u64::from_le_bytes(capsule));
    }
    state.files.insert(header.session, header.file);
    state.tree.opened(header, &info);
    assert!(state.sessions.insert(header.session, info).is_none(), "a session is opened twice");
    answer(sender, header, 0, &[]);
}

fn control(sender: &mut Sender, state: &mut State, header: &Header, payload: &[u8]) {
    match std::str::from_utf8(payload).expect("text") {
        "" => answer(sender, header, 0, (state.settings.join("\n") + "\n").as_bytes()),
        "bad" => answer(sender, header, 22, &[]),
        "hold" => state.held.push((*header, Vec::new())),
        good => {
            state.settings.push(good.to_owned());
            let capsule = Header { session: SESSION_NONE, ..Header::new(Kind::Capsule) };
            let _ = sender.send(&message(capsule, good.as_bytes()), None);
            answer(sender, header, 0, &[]);
        }
    }
}

fn line(sender: &mut Sender, state: &mut State, header: &Header, payload: &[u8]) {
    assert!(state.sessions.contains_key(&header.session), "a request in a session that is not open");
    let text = String::from_utf8_lossy(payload).into_owned();
    state.asked.push(text.clone());
    let number = |text: &str| text.parse::<u32>().expect("a number");
    match text.split_once(' ').unwrap_or((&text, "")) {
        ("hold", rest) => state.held.push((*header, format!("{rest}\n").into_bytes())),
        ("fail", errno) => answer(sender, header, number(errno), &[]),
        ("big", bytes) => answer(sender, header, 0, &vec![b'x'; number(bytes) as usize]),
        ("empty", _) => answer(sender, header, 0, &[]),
        ("who", _) => {
            let info = &state.sessions[&header.session];
            let text = format!("{} {} {} {}\n", info.uid, info.gid, info.pid, info.entrance);
            answer(sender, header, 0, text.as_bytes());
        }
        _ if header.flags & flags::TRACE != 0 => {
            let mut payload = format!("{text}\n").into_bytes();
            let phases = [Phase { phase: 2, nanoseconds: 300 }, Phase { phase: 8, nanoseconds: 40 }];
            let trailer = Phase::append(&phases, &mut payload);
            let head = Header {
                flags: flags::TRACE,
                session: header.session,
                tag: header.tag,
                file: trailer,
                ..Header::new(Kind::Response)
            };
            let _ = sender.send(&message(head, &payload), None);
        }
        _ => answer(sender, header, 0, format!("{text}\n").as_bytes()),
    }
}

fn ioctl(sender: &mut Sender, state: &mut State, header: &Header, payload: &[u8]) {
    assert!(state.sessions.contains_key(&header.session), "an ioctl in a session that is not open");
    match header.file {
        GET => {
            let value = state.values.get(&header.session).copied().unwrap_or(0);
            answer(sender, header, 0, &value.to_le_bytes());
        }
        ADD => {
            let more = u64::from_le_bytes(payload.try_into().expect("eight bytes"));
            let value = state.values.entry(header.session).or_default();
            *value += more;
            let capsule = Header { session: header.session, ..Header::new(Kind::Capsule) };
            let _ = sender.send(&message(capsule, &value.to_le_bytes()), None);
            answer(sender, header, 0, &[]);
        }
        HOLD => state.held.push((*header, Vec::new())),
        _ => answer(sender, header, 25, &[]),
    }
}
