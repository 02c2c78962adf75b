//! The way of an event: from a publisher's write into the channel, and from there to each
//! subscriber.

use crate::capsule::{Framing, PublisherCapsule, SubscriberCapsule};
use crate::service::{Events, Open, WAITING_BYTES_MAX, Waiting, wall_ns};
use crate::session_table::{Session, SessionKey};
use publication::{Delivery, Overflow, Published, Publisher, Replacement};
use rustix::io::Errno;
use session::{Context, ReplyTo};
use std::io::Write;
use wire::events::EventHeader;
use wire::service::RECORD_OVERHEAD_BYTES;

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

impl Events {
    /// Takes what a publisher has written.
    pub(crate) fn publish(
        &mut self,
        ctx: &mut dyn Context,
        to: ReplyTo,
        (serial, publisher, nonblock): (u32, Publisher, bool),
        payload: &[u8],
    ) {
        if !self.links.get(&to.link).is_some_and(|link| link.publishes) {
            return ctx.answer(to, Err(Errno::ACCESS), &[]);
        }
        let now_ns = self.now_ns(ctx);
        let Some(open) = self.channels.get_mut(&serial) else {
            return ctx.answer(to, Err(Errno::STALE), &[]);
        };
        if payload.len() > open.channel.shape().event_bytes {
            return ctx.answer(to, Err(Errno::MSGSIZE), &[]);
        }
        if open.channel.is_double(publisher) {
            return self.published(ctx, to, serial, publisher);
        }
        if open.waiting.is_empty()
            && let Published::At(at) = open.channel.publish(publisher, wall_ns(), payload)
        {
            self.event.clear();
            self.event.extend_from_slice(payload);
            self.event_at = Some((serial, at.offset));
            self.deliver(ctx, serial);
            return self.published(ctx, to, serial, publisher);
        }
        if nonblock {
            return ctx.answer(to, Err(Errno::AGAIN), &[]);
        }
        let until_ns = now_ns.saturating_add(open.channel.patience_ms().saturating_mul(MS));
        open.channel.note_waiting();
        self.keep_waiting(ctx, serial, Waiting { to, publisher, bytes: payload.to_vec(), until_ns });
    }

    fn keep_waiting(&mut self, ctx: &mut dyn Context, serial: u32, waiting: Waiting) {
        let bytes = waiting.bytes.len();
        let Some(tenant) = self.tenant(waiting.to.link) else { return };
        if tenant.waiting_bytes + bytes > WAITING_BYTES_MAX {
            tenant.refused += 1;
            return ctx.answer(waiting.to, Err(Errno::AGAIN), &[]);
        }
        tenant.waiting_bytes += bytes;
        if let Some(open) = self.channels.get_mut(&serial) {
            open.waiting.push_back(waiting);
            self.timed.insert(serial);
        }
    }

    /// A record is in the channel: its publisher is told, and what the next backend has to know of
    /// it.
    fn published(&mut self, ctx: &mut dyn Context, to: ReplyTo, serial: u32, publisher: Publisher) {
        if let Some(tenant) = self.tenant(to.link) {
            tenant.published += 1;
        }
        self.keep_publisher(ctx, (to.link, to.session), serial, publisher);
        ctx.answer(to, Ok(b""), &[]);
    }

    pub(crate) fn keep_publisher(
        &mut self,
        ctx: &mut dyn Context,
        key: SessionKey,
        serial: u32,
        publisher: Publisher,
    ) {
        let Some(open) = self.channels.get(&serial) else { return };
        let (number, _) = open.channel.publisher(publisher);
        let answered = open.channel.answered(publisher);
        self.capsule.clear();
        PublisherCapsule { channel: open.identity, number, answered }.write(&mut self.capsule);
        ctx.capsule(key.0, key.1, &self.capsule);
    }

    /// Brings what is new in a channel to all who can take it.
    pub(crate) fn deliver(&mut self, ctx: &mut dyn Context, serial: u32) {
        let Some(mut open) = self.channels.remove(&serial) else { return };
        open.channel.begin_round();
        for place in 0..open.subscribers.len() {
            // Those with old events left have their own turns, and hold up no publication.
            if self.later.is_empty() || !self.later.contains(&(serial, place)) {
                self.pump(ctx, serial, &mut open, place);
            }
        }
        self.channels.insert(serial, open);
        self.end_failed(ctx, serial);
    }

    /// The same for one subscriber.
    pub(crate) fn deliver_to(&mut self, ctx: &mut dyn Context, serial: u32, place: usize) {
        let Some(mut open) = self.channels.remove(&serial) else { return };
        open.channel.begin_round();
        self.pump(ctx, serial, &mut open, place);
        self.channels.insert(serial, open);
        self.end_failed(ctx, serial);
    }

    fn pump(&mut self, ctx: &mut dyn Context, serial: u32, open: &mut Open, place: usize) {
        let Some(Some(state)) = open.subscribers.get(place).copied() else { return };
        let Some((id, key)) = open.channel.subscription_at(place) else { return };
        let latest = open.channel.terms(id).0 == Overflow::Latest;
        if state.held || state.blocked || latest && !state.wanted {
            return;
        }
        let mut state = state;
        let (replaces, mut later) = (open.channel.replaces(id), false);
        while let Some(delivery) = open.channel.next(id) {
            self.look_at(serial, open, &delivery);
            if replaces {
                self.replaced.clone_from(&self.event);
                match open.channel.replace(id, &delivery, &mut self.replaced) {
                    Replacement::There => {}
                    Replacement::Dropped => {
                        open.channel.pass_by(id, &delivery);
                        continue;
                    }
                    Replacement::Later => {
                        later = true;
                        break;
                    }
                }
            }
            self.write_capsule(open, place, &delivery);
            let event = if replaces { &self.replaced } else { &self.event };
            let framed = state.framing != Framing::Raw;
            if framed {
                frame(&mut self.record, state.framing, &delivery, event);
            }
            let record = if framed { &self.record } else { event };
            let cost = (record.len() + RECORD_OVERHEAD_BYTES) as u64;
            if !ctx.record(key.0, key.1, record, &self.capsule) {
                state.blocked = true;
                break;
            }
            open.channel.sent(id, &delivery, cost);
            if latest {
                state.wanted = false;
                break;
            }
        }
        later |= !state.blocked && (!latest || state.wanted) && open.channel.has_unjudged(id);
        if later && !self.later.contains(&(serial, place)) {
            self.later.push_back((serial, place));
        }
        if let Some(kept) = open.subscribers.get_mut(place) {
            *kept = Some(state);
        }
    }

    /// Has the bytes of an event at hand: read once, whoever it is for.
    fn look_at(&mut self, serial: u32, open: &Open, delivery: &Delivery) {
        let at = Some((serial, delivery.at.offset));
        if self.event_at != at {
            self.event.clear();
            open.channel.bytes(delivery.at, &mut self.event);
            self.event_at = at;
        }
    }

    fn write_capsule(&mut self, open: &Open, place: usize, delivery: &Delivery) {
        self.capsule.clear();
        if let Some(capsule) = capsule_of(open, place) {
            SubscriberCapsule { position: delivery.after, ..capsule }.write(&mut self.capsule);
        }
    }

    /// Tells the consumer how a subscription stands, between records.
    pub(crate) fn keep_subscriber(&mut self, ctx: &mut dyn Context, key: SessionKey) {
        let Some(Session::Subscriber { serial, id }) = self.sessions.get(&key) else { return };
        let Some(open) = self.channels.get(serial) else { return };
        self.capsule.clear();
        if let Some(capsule) = capsule_of(open, id.place()) {
            capsule.write(&mut self.capsule);
            ctx.capsule(key.0, key.1, &self.capsule);
        }
    }

    /// The reader of a subscription takes more.
    pub(crate) fn take_credit(&mut self, ctx: &mut dyn Context, key: SessionKey) {
        let Some(&Session::Subscriber { serial, id }) = self.sessions.get(&key) else { return };
        let Some(open) = self.channels.get_mut(&serial) else { return };
        let Some(Some(state)) = open.subscribers.get_mut(id.place()) else { return };
        (state.blocked, state.wanted) = (false, true);
        let unread = u64::from(state.window).saturating_sub(ctx.credit_left(key.0, key.1));
        let goes_on = open.channel.read_up_to(id, unread) && !open.waiting.is_empty();
        if goes_on {
            self.go_on(ctx, serial);
        }
        self.deliver_to(ctx, serial, id.place());
    }

    /// The consumer's channel has room again.
    pub(crate) fn unblock(&mut self, ctx: &mut dyn Context, key: SessionKey) {
        let Some(&Session::Subscriber { serial, id }) = self.sessions.get(&key) else { return };
        let state =
            self.channels.get_mut(&serial).and_then(|open| open.subscribers.get_mut(id.place())?.as_mut());
        if let Some(state) = state {
            state.blocked = false;
            self.deliver_to(ctx, serial, id.place());
        }
    }

    /// Publishes what waited, as far as there is room now.
    pub(crate) fn go_on(&mut self, ctx: &mut dyn Context, serial: u32) {
        loop {
            let Some(open) = self.channels.get_mut(&serial) else { return };
            let Some(first) = open.waiting.front() else { break };
            let Published::At(_) = open.channel.publish(first.publisher, wall_ns(), &first.bytes) else {
                return;
            };
            let Some(done) = open.waiting.pop_front() else { return };
            self.free_waiting(done.to.link, done.bytes.len());
            self.deliver(ctx, serial);
            self.published(ctx, done.to, serial, done.publisher);
        }
        self.forget_time(serial);
    }

    fn forget_time(&mut self, serial: u32) {
        let idle = |open: &Open| open.waiting.is_empty() && open.channel.next_hold_ns().is_none();
        if self.channels.get(&serial).is_none_or(idle) {
            self.timed.remove(&serial);
        }
    }

    /// Lets go of publications that nobody waits for any more.
    pub(crate) fn drop_waiting(&mut self, ctx: &mut dyn Context, gone: impl Fn(&Waiting) -> bool) {
        for serial in self.timed.clone() {
            let Some(open) = self.channels.get_mut(&serial) else { continue };
            let (dropped, kept) = std::mem::take(&mut open.waiting).into_iter().partition::<Vec<_>, _>(&gone);
            open.waiting = kept.into();
            let any = !dropped.is_empty();
            for waiting in dropped {
                self.free_waiting(waiting.to.link, waiting.bytes.len());
            }
            if any {
                self.go_on(ctx, serial);
            }
        }
    }

    /// Publications that have waited long enough go on, and what was kept for who is gone is let go
    /// of.
    pub(crate) fn time_is_over(&mut self, ctx: &mut dyn Context) {
        let now_ns = self.now_ns(ctx);
        for serial in self.timed.clone() {
            let Some(open) = self.channels.get_mut(&serial) else { continue };
            open.channel.expire_holds(now_ns);
            let late = open.waiting.iter().take_while(|waiting| waiting.until_ns <= now_ns);
            let longest = late.map(|waiting| waiting.bytes.len()).max();
            if let Some(longest) = longest {
                open.channel.overrun(longest);
            }
            self.go_on(ctx, serial);
            self.forget_time(serial);
        }
    }
}

/// How a subscription is, for its capsule.
fn capsule_of(open: &Open, place: usize) -> Option<SubscriberCapsule<'_>> {
    let state = open.subscribers.get(place)?.as_ref()?;
    let (id, _) = open.channel.subscription_at(place)?;
    let (overflow, filter) = open.channel.terms(id);
    Some(SubscriberCapsule {
        channel: open.identity,
        position: open.channel.position(id),
        overflow,
        framing: state.framing,
        held: state.held,
        filter: filter.map(|(text, ..)| text),
    })
}

/// Puts a header before an event.
fn frame(record: &mut Vec<u8>, framing: Framing, delivery: &Delivery, event: &[u8]) {
    record.clear();
    let (head, lost) = (&delivery.head, delivery.after.lost);
    match framing {
        Framing::Raw => {}
        Framing::Binary => {
            let header = EventHeader {
                sequence: head.sequence,
                publisher: head.publisher,
                publisher_sequence: head.publisher_sequence,
                published_ns: head.published_ns,
                lost,
                length: u32::try_from(event.len()).unwrap_or(u32::MAX),
            };
            record.extend_from_slice(&header.encode());
        }
        Framing::Text => {
            let written = writeln!(
                record,
                "event={} publisher={} number={} published={} delivered={} lost={lost} bytes={}",
                head.sequence,
                head.publisher,
                head.publisher_sequence,
                head.published_ns,
                wall_ns(),
                event.len()
            );
            debug_assert!(written.is_ok(), "a vector takes everything");
        }
    }
    record.extend_from_slice(event);
}
