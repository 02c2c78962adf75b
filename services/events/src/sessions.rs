//! Opening a channel's files, and what is said to an open subscription.

use crate::capsule::{Framing, PublisherCapsule, SubscriberCapsule};
use crate::given::Given;
use crate::service::{Events, Open, ROOT, wall_ns};
use crate::session_table::{Session, SessionKey, SubscriberState};
use publication::{Filter, NamedModule, Overflow, Replay, SubscriptionId};
use rustix::io::Errno;
use session::{Context, LinkId, ReplyTo};
use wire::events::module::{MAGIC, NAME_PREFIX};
use wire::events::{Standing, file, ioctl};
use wire::service::{
    MAX_RECORD_BYTES, OpenInfo, RECORD_OVERHEAD_BYTES, SERIAL_BITS, SESSION_NONE, Terms, below, root_of,
};

/// The most bytes that a reader takes ahead: as much as a frontend holds of one stream.
const WINDOW_BYTES: u32 = 256 * 1024;
/// The cost of the longest record, in bytes.
const MAX_BYTES: u32 = (MAX_RECORD_BYTES + RECORD_OVERHEAD_BYTES) as u32;
/// The access mode in the flags of open(2), and its values.
const ACCESS: u32 = 3;
const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;
/// `O_NONBLOCK`.
const NONBLOCK: u32 = 0o4000;
/// Characters of the last refusal that are kept for people.
const REFUSAL_CHARS: usize = 200;
/// In the settings of an `ioctl`: the place is left as it is.
const LEAVE: u64 = u64::MAX;

/// The channel that a node is of, and which of its files it is.
pub(crate) fn node_of(number: u32) -> Option<(u32, u32)> {
    if root_of(number) != ROOT || number == ROOT {
        return None;
    }
    let serial = number & ((1 << SERIAL_BITS) - 1);
    Some((serial >> file::BITS, serial & ((1 << file::BITS) - 1)))
}

/// The number of a file of a channel.
pub(crate) fn number_of_node(serial: u32, which: u32) -> u32 {
    below(ROOT, serial << file::BITS | which).unwrap_or(ROOT)
}

impl Events {
    /// Opens a session on a node.
    pub(crate) fn open_session(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        info: &OpenInfo,
    ) -> Result<Terms, Errno> {
        let (serial, which) = node_of(to.file).ok_or(Errno::NOENT)?;
        let link = *self.links.get(&to.link).ok_or(Errno::ACCESS)?;
        let most = self.settings.sessions_per_domain;
        let tenant = self.tenant(to.link).ok_or(Errno::ACCESS)?;
        if tenant.sessions >= most {
            tenant.refused += 1;
            return Err(Errno::MFILE);
        }
        let key = (to.link, to.session);
        let (session, terms) = match which {
            file::PUB if link.publishes => self.open_publisher(key, (serial, link.owner), info)?,
            file::SUB if link.subscribes => self.open_subscriber(ctx, key, serial, info)?,
            file::PUB | file::SUB => return Err(Errno::ACCESS),
            // Texts are asked for without a session, and so are the lines of `ctl`.
            _ => return Err(Errno::INVAL),
        };
        self.sessions.insert(key, session);
        if let Some(tenant) = self.tenant(to.link) {
            tenant.sessions += 1;
        }
        Ok(terms)
    }

    /// Opens a session, and answers.
    pub(crate) fn open_now(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        match self.open_session(ctx, to, info) {
            Ok(terms) => {
                ctx.answer(to, Ok(&terms.encode()), &[]);
                self.opened(ctx, (to.link, to.session));
            }
            Err(errno) => ctx.answer(to, Err(errno), &[]),
        }
    }

    /// Whether a subscription that is opened again is answered later: when its module is there.
    pub(crate) fn awaits_module(&mut self, to: ReplyTo, info: &OpenInfo) -> bool {
        let Some((serial, file::SUB)) = node_of(to.file) else { return false };
        if !self.links.get(&to.link).is_some_and(|link| link.subscribes) {
            return false;
        }
        match self.given(serial, to.link).cloned() {
            Some(Given::Module { name, bytes }) => self.opens_later(to, serial, info, &name, Some(bytes)),
            Some(_) => false,
            None => {
                let name = SubscriberCapsule::read(&info.capsule).and_then(|it| it.filter);
                let name = name.filter(|text| text.starts_with(NAME_PREFIX));
                name.is_some_and(|name| self.opens_later(to, serial, info, name, None))
            }
        }
    }

    /// The session is open: tells its consumer how it stands, and brings what there is.
    pub(crate) fn opened(&mut self, ctx: &mut dyn Context, key: SessionKey) {
        match self.sessions.get(&key) {
            Some(&Session::Publisher { serial, publisher, .. }) => {
                self.keep_publisher(ctx, key, serial, publisher)
            }
            Some(&Session::Subscriber { serial, id }) => {
                self.keep_subscriber(ctx, key);
                // It may be the one that publishers wait for.
                self.go_on(ctx, serial);
                self.deliver_to(ctx, serial, id.place());
            }
            None => {}
        }
    }

    fn open_publisher(
        &mut self,
        key: SessionKey,
        (serial, owner): (u32, u64),
        info: &OpenInfo,
    ) -> Result<(Session, Terms), Errno> {
        let number = wall_ns().max(self.last_publisher + 1);
        let open = self.channels.get_mut(&serial).ok_or(Errno::STALE)?;
        let before = match PublisherCapsule::read(&info.capsule) {
            Some(before) if before.channel != open.identity => return Err(Errno::STALE),
            before => before.map(|before| (before.number, before.answered)),
        };
        let publisher = open.channel.join(key, owner, before, number).map_err(|_| Errno::USERS)?;
        self.last_publisher = number;
        let nonblock = info.flags & NONBLOCK != 0;
        Ok((Session::Publisher { serial, publisher, nonblock }, Terms { window: 0, writes_wait: true }))
    }

    fn open_subscriber(
        &mut self,
        ctx: &dyn Context,
        key: SessionKey,
        serial: u32,
        info: &OpenInfo,
    ) -> Result<(Session, Terms), Errno> {
        if info.flags & ACCESS == WRITE_ONLY {
            return Err(Errno::INVAL);
        }
        let speaks = info.flags & ACCESS != READ_ONLY;
        let now_ns = self.now_ns(ctx);
        let given = match self.given(serial, key.0).cloned() {
            None => None,
            Some(Given::Filter(filter)) => Some(filter.text().to_owned()),
            Some(Given::Module { name, .. }) => Some(name),
            Some(Given::Broken(why)) => {
                self.note_refusal(key.0, &why);
                return Err(Errno::INVAL);
            }
        };
        let open = self.channels.get_mut(&serial).ok_or(Errno::STALE)?;
        let before = SubscriberCapsule::read(&info.capsule);
        if before.as_ref().is_some_and(|before| before.channel != open.identity) {
            return Err(Errno::STALE);
        }
        let replay = before.as_ref().map_or(Replay::Newest(0), |before| Replay::After(before.position));
        let id = open.channel.subscribe(key, replay).map_err(|_| Errno::USERS)?;
        let (held, framing) = before.as_ref().map_or((speaks, Framing::Raw), |it| (it.held, it.framing));
        let arrived = self.arrived.take();
        let filter = given.as_deref().or_else(|| before.as_ref().and_then(|before| before.filter));
        if filter.is_some_and(|text| !set_filter_again(open, id, text, arrived)) {
            open.channel.unsubscribe(id, true, now_ns);
            return Err(Errno::USERS);
        }
        if let Some(before) = &before {
            // What the channel does not allow any more is not had any more: the oldest are lost
            // then.
            match open.channel.set_overflow(id, before.overflow) {
                Ok(()) if matches!(before.overflow, Overflow::Wait(_)) => {
                    open.channel.returned(before.position)
                }
                Ok(()) => {}
                Err(error) => tracing::info!(%error, "a subscription goes on with what its channel allows"),
            }
        }
        let terms = terms_of(open.channel.terms(id).0, held, open.channel.buffer().0);
        let state = SubscriberState {
            key,
            framing,
            held,
            blocked: false,
            wanted: false,
            window: window_of(terms),
            speaks,
        };
        let place = id.place();
        if open.subscribers.len() <= place {
            open.subscribers.resize(place + 1, None);
        }
        if let Some(kept) = open.subscribers.get_mut(place) {
            *kept = Some(state);
        }
        Ok((Session::Subscriber { serial, id }, terms))
    }

    /// A session is over: for good, or because its consumer is gone and may come back.
    pub(crate) fn end_session(&mut self, ctx: &mut dyn Context, key: SessionKey, for_good: bool) {
        let Some(session) = self.sessions.remove(&key) else { return };
        let now_ns = self.now_ns(ctx);
        if let Some(tenant) = self.tenant(key.0) {
            tenant.sessions = tenant.sessions.saturating_sub(1);
        }
        let (Session::Publisher { serial, .. } | Session::Subscriber { serial, .. }) = session;
        let Some(open) = self.channels.get_mut(&serial) else { return };
        match session {
            Session::Publisher { publisher, .. } => open.channel.part(publisher, for_good, now_ns),
            Session::Subscriber { id, .. } => {
                open.channel.unsubscribe(id, for_good, now_ns);
                if let Some(state) = open.subscribers.get_mut(id.place()) {
                    *state = None;
                }
                if open.channel.next_hold_ns().is_some() {
                    self.timed.insert(serial);
                }
                self.go_on(ctx, serial);
            }
        }
    }

    /// The domain of a link may not subscribe any more.
    pub(crate) fn end_subscriptions(&mut self, ctx: &mut dyn Context, link: LinkId) {
        let of_link = self.sessions.iter().filter(|(key, _)| key.0 == link);
        let subscriptions = of_link.filter(|(_, session)| matches!(session, Session::Subscriber { .. }));
        let keys: Vec<SessionKey> = subscriptions.map(|(key, _)| *key).collect();
        for key in keys {
            ctx.end(key.0, key.1, Some(Errno::ACCESS));
            self.end_session(ctx, key, true);
        }
    }

    /// A request: an event, a line, or a text.
    pub(crate) fn take_request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        if to.session == SESSION_NONE {
            let answer = self.take_text_request(to, payload);
            return ctx.answer(to, answer.as_deref().map_err(|errno| *errno), &[]);
        }
        match self.sessions.get(&(to.link, to.session)).copied() {
            Some(Session::Publisher { serial, publisher, nonblock }) => {
                self.publish(ctx, to, (serial, publisher, nonblock), payload);
            }
            Some(Session::Subscriber { serial, id }) => {
                let (lines, module) = split_module(payload);
                let answer = self.take_lines(to.link, (serial, id), lines);
                match module {
                    Some(bytes) if answer.is_ok() => self.take_module(ctx, to, (serial, id), bytes),
                    _ => self.spoken(ctx, to, (serial, id), answer),
                }
            }
            None => ctx.answer(to, Err(Errno::BADF), &[]),
        }
    }

    /// Something was said to a subscription: it begins, if it had not.
    pub(crate) fn spoken(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        (serial, id): (u32, SubscriptionId),
        answer: Result<(), (Errno, String)>,
    ) {
        if let Err((errno, reason)) = answer {
            self.note_refusal(to.link, &reason);
            return ctx.answer(to, Err(errno), &[]);
        }
        let Some(terms) = self.begin((serial, id), true) else {
            return ctx.answer(to, Err(Errno::STALE), &[]);
        };
        self.keep_subscriber(ctx, (to.link, to.session));
        ctx.answer(to, Ok(&terms.encode()), &[]);
        // Publishers may wait for one less now.
        self.go_on(ctx, serial);
        self.deliver_to(ctx, serial, id.place());
    }

    /// `told`: the reader is told its terms, which an answer to an `ioctl` can't.
    fn begin(&mut self, (serial, id): (u32, SubscriptionId), told: bool) -> Option<Terms> {
        let open = self.channels.get_mut(&serial)?;
        let terms = terms_of(open.channel.terms(id).0, false, open.channel.buffer().0);
        let state = open.subscribers.get_mut(id.place())?.as_mut()?;
        if state.held && told {
            state.window = window_of(terms);
        }
        state.held = false;
        Some(terms)
    }

    pub(crate) fn note_refusal(&mut self, link: LinkId, reason: &str) {
        if let Some(tenant) = self.tenant(link) {
            tenant.refused += 1;
            tenant.refusal = reason.chars().take(REFUSAL_CHARS).collect();
        }
    }

    /// Lines that were written to an open subscription, in order, up to the first that is refused.
    fn take_lines(
        &mut self,
        link: LinkId,
        (serial, id): (u32, SubscriptionId),
        payload: &[u8],
    ) -> Result<(), (Errno, String)> {
        let text = std::str::from_utf8(payload).map_err(|_| refused("this is no text"))?;
        let may_filter = self.may_filter(serial, link);
        let open =
            self.channels.get_mut(&serial).ok_or_else(|| (Errno::STALE, "the channel is gone".to_owned()))?;
        let speaks = open.subscribers.get(id.place()).is_some_and(|state| state.is_some_and(|it| it.speaks));
        if !speaks {
            return Err((Errno::BADF, "the file is not open for writing".to_owned()));
        }
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let rest = rest.trim();
            match word {
                "start" if rest.is_empty() => {}
                "filter" => {
                    may_filter.clone()?;
                    set_filter(open, id, rest)?;
                }
                "overflow" => {
                    let overflow = overflow_of(rest).ok_or_else(|| {
                        refused("an overflow is `drop`, `latest`, or `wait` and a number of ms")
                    })?;
                    set_overflow(open, id, overflow)?;
                }
                "replay" => {
                    let count = if rest == "all" { Some(u64::MAX) } else { rest.parse().ok() };
                    open.channel
                        .rewind(id, count.ok_or_else(|| refused("`replay` takes a number, or `all`"))?);
                }
                "framing" => {
                    let framing = match rest {
                        "raw" => Framing::Raw,
                        "text" => Framing::Text,
                        "binary" => Framing::Binary,
                        _ => return Err(refused("a framing is `raw`, `text` or `binary`")),
                    };
                    set_framing(open, id, framing);
                }
                _ => {
                    return Err(refused(
                        "a line is `start`, `filter`, `module`, `overflow`, `replay` or `framing`",
                    ));
                }
            }
        }
        Ok(())
    }

    /// An `ioctl` on an open subscription.
    pub(crate) fn take_ioctl(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let key = (to.link, to.session);
        let Some(&Session::Subscriber { serial, id }) = self.sessions.get(&key) else {
            return Err(Errno::NOTTY);
        };
        let may_filter = self.may_filter(serial, to.link);
        let open = self.channels.get_mut(&serial).ok_or(Errno::STALE)?;
        let said = match to.file {
            ioctl::STANDING => {
                let position = open.channel.position(id);
                let filter = open.channel.terms(id).1;
                let standing = Standing {
                    delivered: position.delivered,
                    lost: position.lost,
                    next: position.next,
                    channel_next: open.channel.sequences().1,
                    filter_cost: filter.map_or(0, |(_, cost, _)| cost as u64),
                    filter_since: filter.map_or(0, |(.., since)| since),
                };
                return Ok(standing.encode().to_vec());
            }
            ioctl::SETTINGS => {
                let bytes: &[u8; 16] = payload.try_into().map_err(|_| Errno::INVAL)?;
                settings_by_number(open, id, bytes)
            }
            ioctl::FILTER => {
                let text = payload.split(|&byte| byte == 0).next().unwrap_or_default();
                let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
                may_filter.and_then(|()| set_filter(open, id, text))
            }
            _ => return Err(Errno::NOTTY),
        };
        if let Err((errno, reason)) = said {
            self.note_refusal(to.link, &reason);
            return Err(errno);
        }
        // An answer to an `ioctl` has no terms: a file that takes nothing ahead goes on so.
        self.begin((serial, id), false);
        self.keep_subscriber(ctx, key);
        self.go_on(ctx, serial);
        self.deliver_to(ctx, serial, id.place());
        Ok(Vec::new())
    }
}

fn refused(why: &str) -> (Errno, String) {
    (Errno::INVAL, why.to_owned())
}

/// The lines of a write, and the module behind them: what begins as one, or what follows the line
/// `module`.
fn split_module(payload: &[u8]) -> (&[u8], Option<&[u8]>) {
    if payload.starts_with(&MAGIC) {
        return (b"", Some(payload));
    }
    let mut begin = 0;
    while let Some(length) = payload.iter().skip(begin).position(|&byte| byte == b'\n') {
        let (lines, rest) = payload.split_at(begin);
        let (line, module) = rest.split_at(length + 1);
        if line.trim_ascii() == b"module" {
            return (lines, Some(module));
        }
        begin += length + 1;
    }
    (payload, None)
}

/// Gives a subscription that is opened again the filter that it had, or the module of that name.
fn set_filter_again(open: &mut Open, id: SubscriptionId, text: &str, arrived: Option<NamedModule>) -> bool {
    if text.starts_with(NAME_PREFIX) {
        return match arrived {
            Some(module) => open.channel.set_filter(id, Some(module)).is_ok(),
            None => open.channel.share_filter(id, text),
        };
    }
    Filter::parse(text).is_ok_and(|filter| open.channel.set_filter(id, Some(filter)).is_ok())
}

fn set_filter(open: &mut Open, id: SubscriptionId, text: &str) -> Result<(), (Errno, String)> {
    let filter =
        if text.is_empty() { None } else { Some(Filter::parse(text).map_err(|e| refused(&e.to_string()))?) };
    if let Some(filter) = &filter {
        open.channel.format().check(filter).map_err(|error| refused(&error.to_string()))?;
    }
    open.channel.set_filter(id, filter).map_err(|error| (Errno::USERS, error.to_string()))
}

fn set_overflow(open: &mut Open, id: SubscriptionId, overflow: Overflow) -> Result<(), (Errno, String)> {
    let state = open.subscribers.get(id.place()).copied().flatten();
    if matches!(overflow, Overflow::Wait(_)) && state.is_none_or(|state| !state.held) {
        // What a reader took ahead before is not known to be read.
        return Err((
            Errno::BUSY,
            "`wait` is said before a subscription begins: with its first write".to_owned(),
        ));
    }
    open.channel.set_overflow(id, overflow).map_err(|error| (Errno::PERM, error.to_string()))
}

fn set_framing(open: &mut Open, id: SubscriptionId, framing: Framing) {
    if let Some(Some(state)) = open.subscribers.get_mut(id.place()) {
        state.framing = framing;
    }
}

/// `struct` of 16 bytes: overflow 0 (0 drop, 1 latest, 2 wait), framing 1 (0 raw, 1 binary, 2
/// text), reserved 2, wait in ms 4 (4), events to begin with 8 (8; all bits set: the place is
/// left).
fn settings_by_number(open: &mut Open, id: SubscriptionId, bytes: &[u8; 16]) -> Result<(), (Errno, String)> {
    let [overflow, framing, 0, 0, a, b, c, d, replay @ ..] = *bytes else {
        return Err(refused("reserved bytes are 0"));
    };
    let speaks = open.subscribers.get(id.place()).is_some_and(|state| state.is_some_and(|it| it.speaks));
    let wait = u64::from(u32::from_le_bytes([a, b, c, d]));
    let overflow = match overflow {
        0 => Overflow::DropOldest,
        1 if speaks => Overflow::Latest,
        1 => return Err(refused("`latest` takes a file that is open for reading and writing")),
        2 => Overflow::Wait(wait),
        _ => return Err(refused("an overflow is 0, 1 or 2")),
    };
    let framing = match framing {
        0 => Framing::Raw,
        1 => Framing::Binary,
        2 => Framing::Text,
        _ => return Err(refused("a framing is 0, 1 or 2")),
    };
    set_overflow(open, id, overflow)?;
    set_framing(open, id, framing);
    let replay = u64::from_le_bytes(replay);
    if replay != LEAVE {
        open.channel.rewind(id, replay);
    }
    Ok(())
}

fn overflow_of(text: &str) -> Option<Overflow> {
    match text {
        "drop" => Some(Overflow::DropOldest),
        "latest" => Some(Overflow::Latest),
        _ => {
            let ms = text.strip_prefix("wait")?.trim();
            ms.strip_suffix("ms").unwrap_or(ms).trim().parse().ok().map(Overflow::Wait)
        }
    }
}

/// The terms for a reader. One that gets only the newest event takes nothing ahead, and neither
/// does one that has not begun. One that is to lose nothing takes ahead a part of the buffer: its
/// progress is known when it takes more, and publishers wait for that.
fn terms_of(overflow: Overflow, held: bool, buffer: u64) -> Terms {
    let window = match overflow {
        _ if held => 0,
        Overflow::Latest => 0,
        Overflow::DropOldest => WINDOW_BYTES,
        Overflow::Wait(_) => {
            let part = u32::try_from(buffer / 4).unwrap_or(u32::MAX);
            part.clamp(MAX_BYTES, WINDOW_BYTES)
        }
    };
    Terms { window, writes_wait: true }
}

/// The most bytes that a reader with these terms holds: one record, where they come on demand.
fn window_of(terms: Terms) -> u32 {
    terms.window.max(MAX_BYTES)
}
