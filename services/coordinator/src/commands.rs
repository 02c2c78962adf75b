//! `ctl`: a line asks, text answers. And what is open, by its number.

use crate::coordinator::{Coordinator, Outcome, errno_of, holder};
use crate::sessions::{Session, What};
use coordination::{Expect, HolderId, Kind, Node, Refusal, Root, State, check_path, root_of};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use session::ReplyTo;
use std::fmt::Write;
use wire::coordination::file;
use wire::service::{MAX_ANSWER_BYTES, OpenInfo};

/// A line of `ctl`, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command<'l> {
    Get { path: &'l str },
    Put { path: &'l str, value: &'l str, expect: Expect, leased: bool },
    Remove { path: &'l str, expect: Expect },
    List { prefix: &'l str },
    Who { path: &'l str },
    Count { path: &'l str, count: u32 },
    Parties { path: &'l str, parties: u32 },
    Queue { path: &'l str, items: u32, durable: bool },
}

/// Reads a line.
pub(crate) fn command(line: &str) -> Option<Command<'_>> {
    let line = line.strip_suffix('\n').unwrap_or(line);
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let path_and_value = || rest.split_once(' ').unwrap_or((rest, ""));
    let belief = |text: &str| match text.parse().ok()? {
        0 => Some(Expect::Absent),
        revision => Some(Expect::Revision(revision)),
    };
    Some(match word {
        "get" => Command::Get { path: rest },
        "put" => {
            let (path, value) = path_and_value();
            Command::Put { path, value, expect: Expect::Anything, leased: false }
        }
        "lease" => {
            let (path, value) = path_and_value();
            Command::Put { path, value, expect: Expect::Absent, leased: true }
        }
        "cas" => {
            let (path, rest) = rest.split_once(' ')?;
            let (revision, value) = rest.split_once(' ').unwrap_or((rest, ""));
            Command::Put { path, value, expect: belief(revision)?, leased: false }
        }
        "rm" => match rest.split_once(' ') {
            Some((path, revision)) => {
                Command::Remove { path, expect: Expect::Revision(revision.parse().ok()?) }
            }
            None => Command::Remove { path: rest, expect: Expect::Anything },
        },
        "ls" => Command::List { prefix: rest },
        "who" => Command::Who { path: rest },
        "count" => {
            let (path, count) = rest.split_once(' ')?;
            Command::Count { path, count: count.parse().ok()? }
        }
        "parties" => {
            let (path, parties) = rest.split_once(' ')?;
            Command::Parties { path, parties: parties.parse().ok()? }
        }
        "queue" => {
            let (path, rest) = rest.split_once(' ')?;
            let (items, durable) = match rest.split_once(' ') {
                Some((items, "durable")) => (items, true),
                Some(_) => return None,
                None => (rest, false),
            };
            Command::Queue { path, items: items.parse().ok()?, durable }
        }
        _ => return None,
    })
}

/// The capsule by which the next server recognizes a holder of keys.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capsule {
    holder: HolderId,
}

impl Coordinator {
    /// Opens whatever has this number.
    pub(crate) fn open_file(&mut self, to: ReplyTo, info: &OpenInfo) {
        match to.file {
            file::CTL => return self.open_commands(to, &info.capsule),
            file::WATCH => return self.open_watch(to, &info.capsule),
            _ => {}
        }
        let path = match self.path_of(to.file) {
            Ok(path) => path,
            Err(errno) => return self.answer(to, Err(errno)),
        };
        match self.state().and_then(|state| state.node(&path)).map(|node| node.kind) {
            Some(Kind::Key) => self.open_key(to, info.flags),
            Some(Kind::Lock) => self.open_lock(to, path, info),
            Some(Kind::Barrier) => self.open_barrier(to, path, info),
            Some(Kind::Queue) => self.open_queue(to, path, info),
            Some(Kind::Folder) | None => self.answer(to, Err(Errno::ISDIR)),
        }
    }

    fn open_commands(&mut self, to: ReplyTo, capsule: &[u8]) {
        let known: Option<Capsule> = serde_json::from_slice(capsule).ok();
        // Where its keys are gone, it is a session without keys, and a line that needs them will
        // say so.
        let known = known.filter(|known| self.decide(|state| state.resume_keys(known.holder)).is_ok());
        let (id, sealed) = match known {
            Some(known) => (Ok(known.holder), true),
            None => (holder(), false),
        };
        match id {
            Ok(id) => {
                self.insert(to, id, What::Commands { sealed });
                self.answer(to, Ok(Vec::new()));
            }
            Err(errno) => self.answer(to, Err(errno)),
        }
    }

    /// A request in an open file, or for a text.
    pub(crate) fn ask_file(&mut self, to: ReplyTo, payload: &[u8]) {
        match to.file {
            file::WATCH => self.set_prefix(to, payload),
            file::STATUS => {
                let answer = self.status();
                self.answer(to, Ok(answer));
            }
            file::CTL => {
                let answer = match std::str::from_utf8(payload).ok().and_then(command) {
                    Some(command) => self.obey(to, &command),
                    None => Err(Errno::INVAL),
                };
                self.answer(to, answer);
            }
            _ => self.write_file(to, payload),
        }
    }

    /// A line that is written to a file below a folder. A lock takes no words.
    fn write_file(&mut self, to: ReplyTo, payload: &[u8]) {
        let answer = match self.sessions.get(&(to.link, to.session)).map(|session| &session.what) {
            Some(What::Producer { .. }) => return self.push(to, payload),
            Some(What::Consumer(_)) => self.done(to, payload),
            Some(What::Idle) => match self.path_of(to.file) {
                Ok(path) if root_of(&path) == Some(Root::Barriers) => self.set_parties(&path, payload),
                Ok(_) => Err(Errno::INVAL),
                Err(errno) => Err(errno),
            },
            _ => Err(Errno::INVAL),
        };
        self.answer(to, answer);
    }

    /// Changes what a semaphore, barrier or queue is like, which is made where there is none.
    fn shape(
        &mut self,
        path: &str,
        shape: impl FnOnce(&mut State) -> Result<u64, Refusal>,
    ) -> Result<Vec<u8>, Errno> {
        let root = check_path(path).map_err(errno_of)?;
        let revision = self.decide(|state| {
            if state.node(path).is_some() {
                return shape(state);
            }
            state.make(path, root.kind())?;
            // What can't be as it is said is not there afterwards.
            shape(state).or_else(|refusal| state.remove(path, Expect::Anything).and(Err(refusal)))
        })?;
        Ok(format!("{revision}\n").into_bytes())
    }

    fn obey(&mut self, to: ReplyTo, command: &Command<'_>) -> Result<Vec<u8>, Errno> {
        let line = |revision: u64| format!("{revision}\n").into_bytes();
        match *command {
            Command::Get { path } => {
                let node = self.state().and_then(|state| state.node(path)).ok_or(Errno::NOENT)?;
                match node.kind {
                    Kind::Key => {
                        let mut answer = format!("{} ", node.revision).into_bytes();
                        answer.extend_from_slice(&node.value);
                        answer.push(b'\n');
                        Ok(answer)
                    }
                    Kind::Folder => Err(Errno::ISDIR),
                    Kind::Lock | Kind::Barrier | Kind::Queue => Err(Errno::INVAL),
                }
            }
            Command::Put { path, value, expect, leased } => {
                let owner = if leased { Some(self.seal(to)?) } else { None };
                self.decide(|state| state.put(path, value.as_bytes(), expect, owner)).map(line)
            }
            Command::Remove { path, expect } => self.decide(|state| state.remove(path, expect)).map(line),
            Command::List { prefix } => self.listing(prefix),
            Command::Who { path } => self.who(path),
            Command::Count { path, count } => self.shape(path, |state| state.set_count(path, count)),
            Command::Parties { path, parties } => self.shape(path, |state| state.set_parties(path, parties)),
            Command::Queue { path, items, durable } => {
                self.shape(path, |state| state.set_queue(path, items, durable))
            }
        }
    }

    /// Has the consumer keep what makes this session the same at the next server; its holder.
    fn seal(&mut self, to: ReplyTo) -> Result<HolderId, Errno> {
        let Some(Session { holder, what: What::Commands { sealed }, .. }) =
            self.sessions.get_mut(&(to.link, to.session))
        else {
            // The domain's own session never ends, so nothing lives as long as it.
            return Err(Errno::BADF);
        };
        let holder = *holder;
        if !std::mem::replace(sealed, true) {
            let capsule = serde_json::to_vec(&Capsule { holder }).unwrap_or_default();
            self.then(Outcome::Seal(to.link, to.session, capsule));
        }
        Ok(holder)
    }

    /// Revision, bytes and path of each, after the count of changes so far.
    fn listing(&self, prefix: &str) -> Result<Vec<u8>, Errno> {
        let state = self.state().ok_or(Errno::AGAIN)?;
        let mut text = format!("{} now\n", state.revision());
        for (path, node) in state.below(prefix) {
            let kind = if node.kind == Kind::Folder { "/" } else { "" };
            let _always = writeln!(text, "{} {} {path}{kind}", node.revision, node.value.len());
            if text.len() > MAX_ANSWER_BYTES {
                return Err(Errno::MSGSIZE);
            }
        }
        Ok(text.into_bytes())
    }

    fn who(&self, path: &str) -> Result<Vec<u8>, Errno> {
        let state = self.state().ok_or(Errno::AGAIN)?;
        let node = state.node(path).ok_or(Errno::NOENT)?;
        let mut text = String::new();
        match node.kind {
            Kind::Lock => {}
            Kind::Barrier => {
                for domain in node.awaited_in() {
                    let _always = writeln!(text, "waits {domain}");
                }
                let _always = writeln!(text, "generation {} parties {}", node.generation, node.count);
                return Ok(text.into_bytes());
            }
            Kind::Queue => {
                for (number, domain) in state.given(path) {
                    let _always = writeln!(text, "given {number} {domain}");
                }
                let _always = writeln!(text, "waiting {}", state.waiting_for(path));
                return Ok(text.into_bytes());
            }
            Kind::Key | Kind::Folder => return Err(Errno::INVAL),
        }
        for (token, domain) in node.held_by() {
            let _always = writeln!(text, "held {token} {domain}");
        }
        let _always = writeln!(text, "waiting {}", state.waiting_for(path));
        Ok(text.into_bytes())
    }

    fn status(&self) -> Vec<u8> {
        let Some(state) = self.state() else { return b"loading\n".to_vec() };
        let (names, bytes) = state.size();
        let mut text = format!(
            "epoch {}\nrevision {}\nnames {names} of {}\nbytes {bytes} of {}\nwaiting {} of {}\n",
            state.epoch(),
            state.revision(),
            coordination::MAX_NODES,
            coordination::MAX_BYTES,
            state.waiting(),
            coordination::MAX_WAITERS,
        );
        for root in [Root::Locks, Root::Semaphores, Root::Barriers, Root::Queues] {
            for (name, node) in state.children(root.as_str()) {
                let path = format!("{}/{name}", root.as_str());
                let _always = writeln!(text, "{path} {}", in_short(state, &path, node));
                if text.len() > MAX_ANSWER_BYTES / 2 {
                    text.push_str("...\n");
                    return text.into_bytes();
                }
            }
        }
        text.into_bytes()
    }
}

/// A line of `status` about a lock, semaphore, barrier or queue, without its path.
fn in_short(state: &State, path: &str, node: &Node) -> String {
    match node.kind {
        Kind::Barrier => {
            let waiting = node.awaited_in().count();
            format!("generation {} waiting {waiting} of {}", node.generation, node.count)
        }
        Kind::Queue => {
            let ((items, given, pushes), waiting) = (state.queue_of(path), state.waiting_for(path));
            let kept = if node.durable { "durable" } else { "volatile" };
            format!("items {items} of {} given {given} waiting {waiting} pushing {pushes} {kept}", node.count)
        }
        Kind::Lock | Kind::Key | Kind::Folder => {
            let held: Vec<String> =
                node.held_by().map(|(token, domain)| format!("{domain}:{token}")).collect();
            format!("held {} waiting {}", held.join(","), state.waiting_for(path))
        }
    }
}
