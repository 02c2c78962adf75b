//! Runs the files of a service in the loop of [`session::Server`].

use crate::call::{Call, Caller, Process, Reply};
use crate::file::File;
use crate::id::SessionId;
use crate::locks::{Asked, Locks};
use crate::tree::{self, Bytes};
use crate::wake::Wake;
use rustix::io::Errno;
use serde_json::{Value, json};
use session::{Context, Interest, LinkId, Readiness, ReplyTo};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wire::control::Consumer;
use wire::service::{Behaviour, Export, Kind, Lock, MAX_ANSWER_BYTES, OpenInfo, SESSION_NONE, root_of};

/// The loop's token of the bell of the service's other threads.
const BELL: u32 = 0;

/// Takes the settings, or says why it can't.
pub type SettingsFunction<S> = Box<dyn FnMut(&mut S, &Value) -> Result<(), String>>;

/// A function that is called again and again.
pub struct Timer<S> {
    pub period: Duration,
    pub next: Instant,
    pub function: Box<dyn FnMut(&mut S)>,
}

/// An open file.
struct Opened {
    file: u32,
    flags: u32,
    process: Process,
}

/// A service's functions, and what is open.
pub struct Engine<S> {
    name: String,
    state: S,
    files: Vec<File<S>>,
    timers: Vec<Timer<S>>,
    settings: Option<SettingsFunction<S>>,
    wake: Arc<Wake>,
    consumers: HashMap<LinkId, Consumer>,
    sessions: HashMap<SessionId, Opened>,
    /// Requests that are answered later.
    later: HashMap<(LinkId, u64), Arc<AtomicBool>>,
    locks: Locks,
    requests: u64,
    /// Why it can't go on.
    over: Option<String>,
}

impl<S> Engine<S> {
    pub fn new(
        name: &str,
        state: S,
        files: Vec<File<S>>,
        timers: Vec<Timer<S>>,
        settings: Option<SettingsFunction<S>>,
        wake: Arc<Wake>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            state,
            files,
            timers,
            settings,
            wake,
            consumers: HashMap::new(),
            sessions: HashMap::new(),
            later: HashMap::new(),
            locks: Locks::default(),
            requests: 0,
            over: None,
        }
    }

    /// Calls a function of a file for who asked, and says whether the answer comes later.
    fn call<T>(
        &mut self,
        ctx: &mut dyn Context,
        (id, file): (SessionId, u32),
        (asked, opening): (Option<(ReplyTo, usize)>, Option<&OpenInfo>),
        function: impl FnOnce(&mut File<S>, &mut S, &mut Call<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let consumer = self.consumers.get(&id.link).ok_or(Errno::IO)?;
        let file = self.files.get_mut(root_of(file) as usize).ok_or(Errno::NOENT)?;
        let opened = self.sessions.get(&id);
        let process = opening.map(process_of).or(opened.map(|opened| opened.process));
        let caller = Caller::of(consumer, process);
        let mut call = Call {
            ctx,
            wake: &self.wake,
            caller: &caller,
            id,
            flags: opening.map_or_else(|| opened.map_or(0, |opened| opened.flags), |info| info.flags),
            capsule: opening.map_or(&[], |info| &info.capsule),
            asked,
            over: None,
        };
        let result = function(file, &mut self.state, &mut call);
        if let (Some((to, _)), Some(over)) = (asked, call.over) {
            self.later.insert((to.link, to.tag), over);
        }
        result
    }

    /// Calls a function, and answers with what it says, unless that comes later.
    fn answer(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        (file, most_bytes): (u32, usize),
        function: impl FnOnce(&mut File<S>, &mut S, &mut Call<'_>) -> Result<Reply, Errno>,
    ) {
        self.requests += 1;
        let id = SessionId { link: to.link, session: to.session };
        let reply = self.call(ctx, (id, file), (Some((to, most_bytes)), None), function);
        let bytes = match reply {
            Ok(Reply(None)) if self.later.contains_key(&(to.link, to.tag)) => return,
            // The promise of another call: nobody would ever answer this one.
            Ok(Reply(None)) => Err(Errno::IO),
            Ok(Reply(Some(mut bytes))) => {
                if most_bytes < MAX_ANSWER_BYTES {
                    bytes.truncate(most_bytes);
                }
                if bytes.len() > MAX_ANSWER_BYTES { Err(Errno::MSGSIZE) } else { Ok(bytes) }
            }
            Err(errno) => Err(errno),
        };
        // It was to be answered later, and then was not.
        if let Some(over) = self.later.remove(&(to.link, to.tag)) {
            over.store(true, Ordering::Release);
        }
        ctx.answer(to, bytes.as_deref().map_err(|errno| *errno), &[]);
    }

    /// Sends the reader of a stream what it lacks.
    fn pump(&self, ctx: &mut dyn Context, id: SessionId) {
        let file = self.sessions.get(&id).and_then(|opened| self.files.get(opened.file as usize));
        if let Some(stream) = file.and_then(|file| file.stream.as_ref()) {
            stream.pump(id, |record, capsule| ctx.record(id.link, id.session, record, capsule));
        }
    }

    fn pump_all(&self, ctx: &mut dyn Context, which: impl Fn(SessionId) -> bool) {
        self.sessions.keys().copied().filter(|id| which(*id)).for_each(|id| self.pump(ctx, id));
    }

    /// Ends a session: its consumer has closed it, or has gone away with all its sessions.
    fn close_session(&mut self, ctx: &mut dyn Context, id: SessionId, has_left: bool) {
        let Some(opened) = self.sessions.get(&id) else { return };
        let number = opened.file;
        let closed = self.call(ctx, (id, number), (None, None), |file, state, call| {
            if let Some(stream) = &file.stream {
                stream.close(id);
            }
            if let Some(folder) = &mut file.folder {
                let node = tree::serial_of(number);
                if has_left { folder.leave(call, node) } else { folder.close(call, node) }
            }
            if let Some(closed) = &mut file.closed {
                closed(state, call);
            }
            Ok(())
        });
        if let Err(errno) = closed {
            tracing::debug!(service = self.name, %errno, "the end of a session was not told");
        }
        self.sessions.remove(&id);
    }
}

fn process_of(info: &OpenInfo) -> Process {
    Process { uid: info.uid, gid: info.gid, pid: info.pid }
}

impl<S> session::Service for Engine<S> {
    fn export(&self) -> Export {
        let has =
            |wanted: &[Behaviour]| self.files.iter().any(|file| wanted.contains(&file.export.behaviour));
        // The oldest version that has all it uses.
        let own = self.files.iter().map(|file| file.version).max().unwrap_or(1);
        let version = own.max(if has(&[Behaviour::Device]) {
            3
        } else if has(&[Behaviour::Stream, Behaviour::Folder]) {
            2
        } else {
            1
        });
        let files = self.files.iter().map(|file| file.export.clone()).collect();
        Export { version, kind: self.name.clone(), files }
    }

    fn start(&mut self, ctx: &mut dyn Context) {
        if let Err(error) = ctx.watch(self.wake.bell.as_fd(), BELL, Interest::Read) {
            self.over = Some(format!("its bell can't be watched: {error}"));
        }
        self.files.iter().filter_map(|file| file.stream.as_ref()).for_each(crate::Stream::serve);
        let grace = self.files.iter().filter_map(|file| file.locks).max().unwrap_or_default();
        self.locks.begin((!grace.is_zero()).then(|| ctx.now() + grace));
    }

    fn attach(&mut self, _: &mut dyn Context, link: LinkId, consumer: &Consumer) {
        self.consumers.insert(link, consumer.clone());
    }

    fn detach(&mut self, ctx: &mut dyn Context, link: LinkId) {
        let of_link: Vec<SessionId> = self.sessions.keys().copied().filter(|id| id.link == link).collect();
        of_link.into_iter().for_each(|id| self.close_session(ctx, id, true));
        self.later.retain(|(of, _), over| {
            let stays = *of != link;
            over.fetch_or(!stays, Ordering::AcqRel);
            stays
        });
        if let Some(consumer) = self.consumers.remove(&link) {
            self.locks.leave(link, &consumer, ctx.now());
        }
        self.answer_locks(ctx);
    }

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        let id = SessionId { link: to.link, session: to.session };
        let number = to.file;
        let result = self.call(ctx, (id, number), (None, Some(info)), |file, state, call| {
            if let Some(stream) = &file.stream
                && !tree::is_write_only(info.flags)
            {
                stream.open(id, &info.capsule)?;
            }
            if let Some(folder) = &mut file.folder {
                if root_of(number) == number {
                    return Err(Errno::ISDIR);
                }
                folder.open(call, tree::serial_of(number))?;
            } else if root_of(number) != number {
                return Err(Errno::NOENT);
            }
            file.opened.as_mut().map_or(Ok(()), |opened| opened(state, call))
        });
        if result.is_ok() {
            self.sessions.insert(id, Opened { file: number, flags: info.flags, process: process_of(info) });
        }
        ctx.answer(to, result.map(|()| &[][..]), &[]);
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.answer(ctx, to, (to.file, MAX_ANSWER_BYTES), |file, state, call| {
            if let Some(folder) = &mut file.folder {
                let node = tree::serial_of(to.file);
                if root_of(to.file) == to.file {
                    return Err(Errno::ISDIR);
                }
                return folder.ask(call, node, payload).map(Into::into);
            }
            if root_of(to.file) != to.file {
                return Err(Errno::NOENT);
            }
            match file.export.behaviour {
                Behaviour::Stream if to.session == SESSION_NONE => Err(Errno::BADF),
                Behaviour::Text if !payload.is_empty() => Err(Errno::INVAL),
                Behaviour::Text | Behaviour::Control if payload.is_empty() => match &mut file.read {
                    Some(read) => read(state, call, MAX_ANSWER_BYTES),
                    None => Ok(().into()),
                },
                _ => file.asked.as_mut().map_or(Err(Errno::BADF), |asked| asked(state, call, payload)),
            }
        });
    }

    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        let Some(file) =
            self.sessions.get(&SessionId { link: to.link, session: to.session }).map(|of| of.file)
        else {
            return ctx.answer(to, Err(Errno::BADF), &[]);
        };
        self.answer(ctx, to, (file, MAX_ANSWER_BYTES), |file, state, call| match &mut file.ioctl {
            Some(ioctl) => ioctl(state, call, to.file, payload),
            None => Err(Errno::NOTTY),
        });
    }

    fn tree(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        if matches!(kind, Kind::ReadAt | Kind::WriteAt | Kind::Sync) {
            return self.bytes_at(ctx, to, kind, payload);
        }
        if matches!(kind, Kind::Lock | Kind::TestLock) {
            return self.lock(ctx, to, kind, payload);
        }
        self.answer(ctx, to, (to.file, MAX_ANSWER_BYTES), |file, _, call| {
            // Such an answer is made of a node, which a function can't promise for later.
            call.asked = None;
            let root = root_of(to.file);
            match &mut file.folder {
                Some(folder) => {
                    tree::ask(&mut **folder, call, (root, tree::serial_of(to.file)), kind, payload)
                        .map(Into::into)
                }
                None => Err(Errno::NOTDIR),
            }
        });
    }

    fn credit(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        self.pump(ctx, SessionId { link, session });
    }

    fn room(&mut self, ctx: &mut dyn Context, link: LinkId) {
        self.pump_all(ctx, |id| id.link == link);
    }

    fn cancel(&mut self, _: &mut dyn Context, link: LinkId, tag: u64) {
        if let Some(over) = self.later.remove(&(link, tag)) {
            over.store(true, Ordering::Release);
        }
        self.locks.forget(link, tag);
    }

    fn interrupt(&mut self, ctx: &mut dyn Context, link: LinkId, tag: u64) {
        self.locks.interrupt(link, tag);
        self.answer_locks(ctx);
    }

    fn close(&mut self, ctx: &mut dyn Context, link: LinkId, session: u64) {
        self.close_session(ctx, SessionId { link, session }, false);
        self.locks.close(link, session);
        self.answer_locks(ctx);
    }

    fn settings(&mut self, _: &mut dyn Context, settings: &Value) -> Result<(), String> {
        self.settings.as_mut().map_or(Ok(()), |function| function(&mut self.state, settings))
    }

    fn verbs(&mut self, _: &mut dyn Context, link: LinkId, verbs: &[String]) {
        if let Some(consumer) = self.consumers.get_mut(&link) {
            consumer.verbs = verbs.to_vec();
        }
    }

    fn ready(&mut self, ctx: &mut dyn Context, _: u32, _: Readiness) {
        let inbox = self.wake.take();
        for answered in inbox.answers {
            let key = (answered.to.link, answered.to.tag);
            // A tag may have been used again since.
            if self.later.get(&key).is_some_and(|over| Arc::ptr_eq(over, &answered.over)) {
                self.later.remove(&key);
                ctx.answer(answered.to, answered.answer.as_deref().map_err(|errno| *errno), &[]);
            }
        }
        for (id, bits) in inbox.ready {
            if self.sessions.contains_key(&id) {
                ctx.ready(id.link, id.session, bits);
            }
        }
        if inbox.published {
            self.pump_all(ctx, |_| true);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.timers.iter().map(|timer| timer.next).chain(self.locks.deadline()).min()
    }

    fn expired(&mut self, ctx: &mut dyn Context) {
        let now = ctx.now();
        for timer in self.timers.iter_mut().filter(|timer| timer.next <= now) {
            timer.next = (timer.next + timer.period).max(now);
            (timer.function)(&mut self.state);
        }
        self.locks.expired(now);
        self.answer_locks(ctx);
    }

    fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    fn state(&self) -> Value {
        let streams = self
            .files
            .iter()
            .filter_map(|file| Some((file.export.name.clone()?, file.stream.as_ref()?.state())));
        let streams: serde_json::Map<String, Value> = streams.collect();
        let (locks, waiting) = self.locks.count();
        json!({
            "requests": self.requests, "sessions": self.sessions.len(), "later": self.later.len(),
            "locks": locks, "locks_waiting": waiting, "streams": streams,
        })
    }

    fn state_for(&self, link: LinkId) -> Value {
        let mine = self.sessions.iter().filter(|(id, _)| id.link == link);
        let mut dropped: HashMap<&str, u64> = HashMap::new();
        let mut sessions = 0;
        for (id, opened) in mine {
            sessions += 1;
            let file = self.files.get(opened.file as usize);
            if let Some((file, stream)) = file.and_then(|file| Some((file, file.stream.as_ref()?))) {
                *dropped.entry(file.export.name.as_deref().unwrap_or_default()).or_default() +=
                    stream.dropped_by(*id);
            }
        }
        json!({ "sessions": sessions, "dropped": dropped })
    }
}

impl<S> Engine<S> {
    /// A lock on a file that was opened.
    fn lock(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        self.requests += 1;
        let opened = self.sessions.get(&SessionId { link: to.link, session: to.session });
        let consumer = self.consumers.get(&to.link);
        let has_locks =
            |file: u32| self.files.get(root_of(file) as usize).is_some_and(|it| it.locks.is_some());
        let refused = match (opened, consumer, Lock::decode(payload)) {
            (Some(opened), _, _) if !has_locks(opened.file) => Errno::OPNOTSUPP,
            (Some(opened), Some(consumer), Ok(lock)) => {
                let (file, tests) = (opened.file, kind == Kind::TestLock);
                self.locks.ask(Asked { to, file, lock, tests }, consumer, opened.flags);
                return self.answer_locks(ctx);
            }
            (Some(_), _, _) => Errno::INVAL,
            (None, _, _) => Errno::BADF,
        };
        ctx.answer(to, Err(refused), &[]);
    }

    fn answer_locks(&mut self, ctx: &mut dyn Context) {
        for (to, answer) in self.locks.due() {
            ctx.answer(to, answer.as_deref().map_err(|errno| *errno), &[]);
        }
    }

    /// Bytes at an offset of a file that was opened, or of a device.
    fn bytes_at(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        let opened = self.sessions.get(&SessionId { link: to.link, session: to.session });
        let Some((number, flags)) = opened.map(|opened| (opened.file, opened.flags)) else {
            return ctx.answer(to, Err(Errno::BADF), &[]);
        };
        let bytes = match Bytes::decode(kind, flags, payload) {
            Ok(bytes) => bytes,
            Err(errno) => return ctx.answer(to, Err(errno), &[]),
        };
        let most_bytes = if let Bytes::Read { size, .. } = bytes { size } else { MAX_ANSWER_BYTES };
        self.answer(ctx, to, (number, most_bytes), |file, state, call| {
            if let Some(folder) = &mut file.folder {
                return bytes.ask(&mut **folder, call, tree::serial_of(number));
            }
            match bytes {
                Bytes::Read { size, .. } => {
                    file.read.as_mut().map_or(Err(Errno::BADF), |read| read(state, call, size))
                }
                Bytes::Write { data, .. } => {
                    call.asked = None;
                    let written =
                        file.written.as_mut().map_or(Err(Errno::BADF), |written| written(state, call, data));
                    written.map(|count| tree::written(count, data).into())
                }
                Bytes::Sync => Err(Errno::INVAL),
            }
        });
    }
}
