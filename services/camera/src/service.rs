//! The service: who has what open, whose frame is due, and what is answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use serde_json::{Value, json};
use session::{Consumer, Context, LinkId, Readiness, ReplyTo, Service};
use v4l2::{Device, Picture, Refusal, Session};
use wire::camera::{self, KIND, LIST, STATE, Settings, WATCH};
use wire::service::{Behaviour, Export, FileExport, Kind, MAX_ANSWER_BYTES, OpenInfo, Range, VERSION};
use wire::v4l2::ioctl;

use crate::memory::Memories;
use crate::open::{Open, Waiting};
use crate::source::{self, Source};

/// Bytes of frames in a second that one domain may have of all cameras of the service: a film of
/// 1920x1080 with 60 frames a second, or sixteen of 640x480 with 25. What is beyond would be made
/// at the cost of the others.
const BYTES_PER_SECOND_MAX: u64 = 256 << 20;
/// The file that lists the cameras: behind the last of them.
const LIST_FILE: u32 = 64;
/// The file that says what a domain has lost.
const STATE_FILE: u32 = 65;
/// `O_NONBLOCK`.
const NONBLOCK: u32 = 0o4000;
/// The entrance of files.
const DEVICE: &str = "device";

/// Makes the service from its admitted settings.
///
/// # Errors
/// The fault in the settings, or in a file of frames.
pub fn service(settings: &Value) -> Result<Box<dyn Service>, String> {
    let settings: Settings = serde_json::from_value(settings.clone())
        .map_err(|e| format!("the settings are not understood: {e}"))?;
    let cameras = settings.cameras.iter().map(source::make).collect::<Result<Vec<_>, _>>()?;
    Ok(Box::new(Cameras {
        settings,
        cameras,
        links: BTreeMap::new(),
        memories: Memories::default(),
        open: BTreeMap::new(),
        lost: BTreeMap::new(),
        began: (Instant::now(), sys::clock::clock_ns()),
        drawn: None,
        frame: Vec::new(),
    }))
}

/// A channel.
#[derive(Debug)]
struct Link {
    domain: String,
    is_frontend: bool,
    memory: Option<u64>,
}

/// The identity of a drawn frame: the camera, what it looks like, its number, its brightness.
type Drawn = (usize, Picture, u64, u8);

struct Cameras {
    settings: Settings,
    cameras: Vec<(Device, Source)>,
    links: BTreeMap<LinkId, Link>,
    memories: Memories,
    open: BTreeMap<(LinkId, u64), Open>,
    /// Frames that files which are closed have lost, by domain.
    lost: BTreeMap<String, u64>,
    /// One moment on both clocks.
    began: (Instant, u64),
    /// The identity of the frame in `frame`: several open files may show the same.
    drawn: Option<Drawn>,
    frame: Vec<u8>,
}

impl Cameras {
    fn ns(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.began.0).as_nanos();
        self.began.1.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn of_domain<'a>(&'a self, domain: &'a str) -> impl Iterator<Item = &'a Open> {
        let of = move |link: &LinkId| self.links.get(link).is_some_and(|link| link.domain == domain);
        self.open.iter().filter(move |((link, _), _)| of(link)).map(|(_, open)| open)
    }

    /// Draws a frame, unless it is drawn already.
    fn draw(&mut self, wanted: Drawn) -> bool {
        if self.drawn == Some(wanted) {
            return true;
        }
        let (camera, picture, number, brightness) = wanted;
        let Some((device, source)) = self.cameras.get(camera) else { return false };
        self.drawn = None;
        match source.draw(picture, number, brightness, &mut self.frame) {
            Ok(()) => {
                self.drawn = Some(wanted);
                true
            }
            Err(error) => {
                tracing::error!(camera = device.name, number, %error, "a frame can't be read from its file");
                false
            }
        }
    }

    /// Makes all frames of an open file that are due, and gives them to those who wait.
    fn make_due(&mut self, ctx: &mut dyn Context, key: (LinkId, u64), now_ns: u64) {
        loop {
            let Some(open) = self.open.get_mut(&key) else { return };
            let Some(due) = open.session.take_due(now_ns) else { break };
            let Some(offset) = due.offset else { break };
            let wanted = (open.camera, open.session.picture(), due.number, open.session.brightness());
            if !self.draw(wanted) {
                self.give_up(ctx, key, Errno::IO);
                return;
            }
            let memory = self.links.get(&key.0).and_then(|link| link.memory);
            if let Some(memory) = self.memories.get(memory) {
                memory.put(offset, &self.frame);
            }
        }
        self.serve_waiting(ctx, key, now_ns);
    }

    /// Nothing more comes of an open file.
    fn give_up(&mut self, ctx: &mut dyn Context, key: (LinkId, u64), errno: Errno) {
        if let Some(mut open) = self.close_file(key) {
            open.fail_waiting(ctx, errno);
        }
    }

    /// Answers those who wait, as far as there are frames.
    fn serve_waiting(&mut self, ctx: &mut dyn Context, key: (LinkId, u64), now_ns: u64) {
        while let Some(open) = self.open.get_mut(&key)
            && open.session.flows()
            && open.session.is_readable()
            && let Some(call) = open.waiting.pop_front()
        {
            match call {
                Waiting::Dequeue(to, data) => self.do_ioctl(ctx, to, (ioctl::DQBUF, &data), now_ns),
                Waiting::Read(to, bytes) => self.do_read(ctx, to, bytes, now_ns),
            }
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.tell(ctx, key.0, key.1);
        }
    }

    fn do_ioctl(&mut self, ctx: &mut dyn Context, to: ReplyTo, (number, data): (u32, &[u8]), now_ns: u64) {
        let key = (to.link, to.session);
        let memory = self.links.get(&to.link).and_then(|link| link.memory);
        let Some(open) = self.open.get_mut(&key) else { return ctx.answer(to, Err(Errno::NODEV), &[]) };
        let Some((device, _)) = self.cameras.get(open.camera) else {
            return ctx.answer(to, Err(Errno::NODEV), &[]);
        };
        let areas = self.memories.get(memory).map(|memory| &mut memory.areas);
        match open.ioctl((number, data), device, areas, now_ns) {
            None => open.wait(ctx, Waiting::Dequeue(to, data.to_vec())),
            Some(answer) => {
                if answer.is_ok() && Session::changes(number) {
                    open.seal(ctx, to);
                }
                ctx.answer(to, answer.as_deref().map_err(|errno| *errno), &[]);
            }
        }
        if let Some(open) = self.open.get_mut(&key) {
            if number == ioctl::STREAMOFF && !open.session.flows() {
                // Whoever waits in another thread waits in vain.
                open.fail_waiting(ctx, Errno::INVAL);
            }
            open.tell(ctx, key.0, key.1);
        }
    }

    fn do_read(&mut self, ctx: &mut dyn Context, to: ReplyTo, bytes: u32, now_ns: u64) {
        let key = (to.link, to.session);
        let Some(open) = self.open.get_mut(&key) else { return ctx.answer(to, Err(Errno::NODEV), &[]) };
        match open.session.read(bytes, now_ns) {
            Err(Refusal::NotYet) => open.wait(ctx, Waiting::Read(to, bytes)),
            Err(refusal) => ctx.answer(to, Err(Errno::from_raw_os_error(refusal.errno())), &[]),
            Ok((number, part)) => {
                let wanted = (open.camera, open.session.picture(), number, open.session.brightness());
                open.seal(ctx, to);
                if self.draw(wanted) {
                    let part = self.frame.get(part.start as usize..part.end as usize).unwrap_or_default();
                    ctx.answer(to, Ok(part), &[]);
                } else {
                    ctx.answer(to, Err(Errno::IO), &[]);
                }
            }
        }
        if let Some(open) = self.open.get_mut(&key) {
            open.tell(ctx, key.0, key.1);
        }
    }

    /// Whether frames of this file may begin to flow, beside the others of its domain.
    fn has_bandwidth(&self, key: (LinkId, u64)) -> bool {
        let (Some(link), Some(open)) = (self.links.get(&key.0), self.open.get(&key)) else { return false };
        let flowing = self.of_domain(&link.domain).filter(|open| open.session.flows());
        let taken: u64 = flowing.map(Open::bytes_per_second).fold(0, u64::saturating_add);
        open.session.flows() || taken.saturating_add(open.bytes_per_second()) <= BYTES_PER_SECOND_MAX
    }

    /// Ends an open file.
    fn close_file(&mut self, key: (LinkId, u64)) -> Option<Open> {
        let mut open = self.open.remove(&key)?;
        let memory = self.links.get(&key.0).and_then(|link| link.memory);
        if let Some(memory) = self.memories.get(memory) {
            open.session.end(&mut memory.areas);
        }
        Some(open)
    }

    /// A frontend that is replaced by its successor has its files open until its end is noticed:
    /// the successor's take their places.
    fn replace(&mut self, ctx: &mut dyn Context, to: ReplyTo) {
        let Some(new) = self.links.get(&to.link).filter(|link| link.is_frontend) else { return };
        let same = |link: &Link| link.is_frontend && link.domain == new.domain;
        let old = self.open.keys().find(|(link, session)| {
            *session == to.session && *link != to.link && self.links.get(link).is_some_and(same)
        });
        if let Some(old) = old.copied() {
            self.give_up(ctx, old, Errno::NODEV);
        }
    }

    fn text(&self, link: LinkId, file: u32) -> Option<Vec<u8>> {
        match file {
            LIST_FILE => {
                let names = self.settings.cameras.iter().map(|camera| format!("{}\n", camera.name));
                Some(names.collect::<String>().into_bytes())
            }
            STATE_FILE => serde_json::to_vec(&self.state_for(link)).ok(),
            _ => None,
        }
    }

    fn state_of(&self, domain: &str) -> Value {
        let open: Vec<Value> = self.of_domain(domain).map(|open| self.describe(open)).collect();
        let closed = self.lost.get(domain).copied().unwrap_or(0);
        let lost = self.of_domain(domain).map(|open| open.session.lost()).fold(closed, u64::saturating_add);
        json!({ "open": open, "frames_lost": lost })
    }

    fn describe(&self, open: &Open) -> Value {
        let (picture, interval) = (open.session.picture(), open.session.interval());
        let name = self.cameras.get(open.camera).map_or("", |(device, _)| device.name.as_str());
        json!({
            "camera": name,
            "format": picture.format,
            "width": picture.width,
            "height": picture.height,
            "interval": format!("{}/{}", interval.numerator, interval.denominator),
            "flows": open.session.flows(),
            "frames_lost": open.session.lost(),
        })
    }
}

/// A file of the export.
fn file(id: u32, name: &str, mode: u32, behaviour: Behaviour) -> FileExport {
    FileExport {
        id,
        name: Some(name.to_owned()),
        mode,
        behaviour,
        idempotent: true,
        verb: WATCH.into(),
        change: None,
    }
}

impl Service for Cameras {
    fn export(&self) -> Export {
        let device = |(id, camera): (usize, &camera::Camera)| {
            // V4L2 maps buffers of a file that is open for writing.
            file(u32::try_from(id).unwrap_or(u32::MAX), &camera.name, 0o666, Behaviour::Device)
        };
        let mut files: Vec<FileExport> = self.settings.cameras.iter().enumerate().map(device).collect();
        files.push(file(LIST_FILE, LIST, 0o444, Behaviour::Text));
        files.push(file(STATE_FILE, STATE, 0o444, Behaviour::Text));
        Export { version: VERSION, kind: KIND.into(), files }
    }

    fn attach(&mut self, ctx: &mut dyn Context, link: LinkId, consumer: &Consumer) {
        let memory = ctx.memory(link).and_then(|memory| match self.memories.attach(memory) {
            Ok(number) => Some(number),
            Err(error) => {
                tracing::error!(domain = consumer.domain, %error, "a domain's memory can't be mapped");
                None
            }
        });
        let is_frontend = consumer.entrance == DEVICE;
        self.links.insert(link, Link { domain: consumer.domain.clone(), is_frontend, memory });
    }

    fn detach(&mut self, _ctx: &mut dyn Context, link: LinkId) {
        let keys: Vec<_> = self.open.keys().filter(|(of, _)| *of == link).copied().collect();
        for key in keys {
            self.close_file(key);
        }
        if let Some(Link { memory: Some(number), .. }) = self.links.remove(&link) {
            self.memories.detach(number);
        }
    }

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        let Some((device, _)) = self.cameras.get(to.file as usize) else {
            return ctx.answer(to, Err(Errno::NXIO), &[]);
        };
        let device = device.clone();
        let now_ns = self.ns(ctx.now());
        if !info.capsule.is_empty() {
            self.replace(ctx, to);
        }
        let Some(link) = self.links.get(&to.link) else { return ctx.answer(to, Err(Errno::NODEV), &[]) };
        let most = self.settings.sessions_per_domain as usize;
        if self.of_domain(&link.domain).count() >= most {
            return ctx.answer(to, Err(Errno::BUSY), &[]);
        }
        let areas = self.memories.get(link.memory).map(|memory| &mut memory.areas);
        let session = if info.capsule.is_empty() {
            Some(Session::new(&device))
        } else {
            Session::restored(&info.capsule, &device, areas, now_ns)
        };
        let Some(session) = session else { return ctx.answer(to, Err(Errno::NODEV), &[]) };
        let key = (to.link, to.session);
        self.open.insert(key, Open::new(to.file as usize, session, info.flags & NONBLOCK != 0));
        if !info.capsule.is_empty() && self.open.get(&key).is_some_and(|open| open.session.flows()) {
            // It counts among those that flow already; what is too much ends here.
            let domain = self.links.get(&to.link).map(|link| link.domain.clone()).unwrap_or_default();
            let flowing = self.of_domain(&domain).filter(|open| open.session.flows());
            if flowing.map(Open::bytes_per_second).fold(0, u64::saturating_add) > BYTES_PER_SECOND_MAX {
                self.close_file(key);
                return ctx.answer(to, Err(Errno::NOSPC), &[]);
            }
        }
        ctx.answer(to, Ok(&[]), &[]);
        if let Some(open) = self.open.get_mut(&key) {
            open.tell(ctx, key.0, key.1);
        }
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, _payload: &[u8]) {
        match self.text(to.link, to.file) {
            Some(text) => ctx.answer(to, Ok(&text), &[]),
            None => ctx.answer(to, Err(Errno::OPNOTSUPP), &[]),
        }
    }

    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        let now_ns = self.ns(ctx.now());
        let begins = to.file == ioctl::STREAMON && self.open.contains_key(&(to.link, to.session));
        if begins && !self.has_bandwidth((to.link, to.session)) {
            let errno = Errno::from_raw_os_error(Refusal::Bandwidth.errno());
            return ctx.answer(to, Err(errno), &[]);
        }
        self.do_ioctl(ctx, to, (to.file, payload), now_ns);
        // The first frame is due when the stream begins.
        if begins {
            self.make_due(ctx, (to.link, to.session), now_ns);
        }
    }

    fn tree(&mut self, ctx: &mut dyn Context, to: ReplyTo, kind: Kind, payload: &[u8]) {
        if kind != Kind::ReadAt {
            return ctx.answer(to, Err(Errno::INVAL), &[]);
        }
        let Ok(range) = Range::decode(payload) else { return ctx.answer(to, Err(Errno::INVAL), &[]) };
        let key = (to.link, to.session);
        if self.open.contains_key(&key) && !self.has_bandwidth(key) {
            let errno = Errno::from_raw_os_error(Refusal::Bandwidth.errno());
            return ctx.answer(to, Err(errno), &[]);
        }
        // Where in the file it would be says nothing: each byte of a frame comes once.
        let bytes = range.bytes.min(MAX_ANSWER_BYTES as u32);
        let now_ns = self.ns(ctx.now());
        self.do_read(ctx, to, bytes, now_ns);
    }

    fn cancel(&mut self, _ctx: &mut dyn Context, link: LinkId, tag: u64) {
        for (_, open) in self.open.range_mut((link, 0)..=(link, u64::MAX)) {
            open.waiting.retain(|call| call.to().tag != tag);
        }
    }

    fn close(&mut self, _ctx: &mut dyn Context, link: LinkId, session: u64) {
        // Of a file whose frontend has died, the count comes back with the successor's capsule.
        if let Some(open) = self.close_file((link, session))
            && let Some(link) = self.links.get(&link)
        {
            *self.lost.entry(link.domain.clone()).or_default() += open.session.lost();
        }
    }

    fn settings(&mut self, _ctx: &mut dyn Context, settings: &Value) -> Result<(), String> {
        let new: Settings = serde_json::from_value(settings.clone()).map_err(|e| e.to_string())?;
        if new.cameras != self.settings.cameras {
            return Err("cameras are those of the server's start: restart its domain to change them".into());
        }
        self.settings = new;
        Ok(())
    }

    fn verbs(&mut self, ctx: &mut dyn Context, link: LinkId, verbs: &[String]) {
        if verbs.iter().any(|verb| verb == WATCH) {
            return;
        }
        let keys: Vec<_> = self.open.keys().filter(|(of, _)| *of == link).copied().collect();
        for key in keys {
            self.give_up(ctx, key, Errno::ACCESS);
        }
    }

    fn ready(&mut self, _ctx: &mut dyn Context, _token: u32, _readiness: Readiness) {}

    fn deadline(&self) -> Option<Instant> {
        let due = self.open.values().filter_map(|open| open.session.due_ns()).min()?;
        Some(self.began.0 + Duration::from_nanos(due.saturating_sub(self.began.1)))
    }

    fn expired(&mut self, ctx: &mut dyn Context) {
        let now_ns = self.ns(ctx.now());
        let due = |open: &Open| open.session.due_ns().is_some_and(|due| due <= now_ns);
        let keys: Vec<_> = self.open.iter().filter(|(_, open)| due(open)).map(|(key, _)| *key).collect();
        for key in keys {
            self.make_due(ctx, key, now_ns);
        }
    }

    fn state(&self) -> Value {
        let mut domains: Vec<&str> = self.links.values().map(|link| link.domain.as_str()).collect();
        domains.extend(self.lost.keys().map(String::as_str));
        domains.sort_unstable();
        domains.dedup();
        let of: serde_json::Map<String, Value> =
            domains.into_iter().map(|domain| (domain.to_owned(), self.state_of(domain))).collect();
        json!({ "domains": of })
    }

    fn state_for(&self, link: LinkId) -> Value {
        self.links.get(&link).map_or(Value::Null, |link| self.state_of(&link.domain))
    }
}
