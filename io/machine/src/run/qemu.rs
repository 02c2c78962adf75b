//! QEMU's messages.

use super::ending::too_old;
use super::{Machine, Tag};
use crate::guest::BrokenRule;
use crate::link::Link;
use crate::outcome::Word;
use crate::ports::{Act, Done, Held};
use crate::qemu::events::{Event, OLDEST};
use crate::relay::refused_in_place_of;
use qmp::{QmpError, Said, Version};
use rustix::io::Errno;
use wire::guest::End;

impl Machine<'_> {
    pub(super) fn hear_qmp(&mut self) -> Result<(), BrokenRule> {
        match self.qmp.hear() {
            Ok(said) => said.into_iter().try_for_each(|said| self.hear_said(said)),
            // It ends, or has ended: that is what is waited for.
            Err(QmpError::Gone) => {
                self.timers.monitor_gone = true;
                Ok(())
            }
            Err(error) => {
                self.end(Word::QemuHung, error.to_string());
                Ok(())
            }
        }
    }

    fn hear_said(&mut self, said: Said<Tag>) -> Result<(), BrokenRule> {
        let now_ms = self.clock.now_ms();
        match said {
            Said::Hello(version) => self.greeted(version),
            Said::Done(tag, answer) => {
                self.timers.asked_qemu = None;
                self.timers.qemu_answered = now_ms;
                if let Tag::Port(port, step) = tag {
                    let acts = self.ports.answered(port, step, answer.map(drop), now_ms);
                    self.act(acts)?;
                }
            }
            Said::Event(told) => match Event::of(&told) {
                Some(Event::Deleted(id)) => {
                    let acts = self.ports.deleted(&id, now_ms);
                    self.act(acts)?;
                }
                Some(event) => self.happened(event),
                None => {}
            },
        }
        Ok(())
    }

    fn greeted(&mut self, version: Version) {
        self.facts.greeted = true;
        if version < OLDEST {
            self.end(Word::NoQemu, too_old(version));
            return;
        }
        self.link = Link::new(self.control, self.accel.word(), version.to_string());
        self.look_for_daemon();
    }

    /// Takes the last words of a QEMU that has ended.
    pub(super) fn take_last_words(&mut self, said: Vec<Said<Tag>>) {
        for said in said {
            match said {
                Said::Hello(_) => self.facts.greeted = true,
                Said::Event(told) => Event::of(&told).into_iter().for_each(|event| self.happened(event)),
                Said::Done(..) => {}
            }
        }
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Shutdown(reason) => self.facts.shutdown = Some(reason),
            Event::Panicked => self.facts.panicked = true,
            // The latter is asked again in a while.
            Event::Deleted(_) | Event::NotDeleted(_) => {}
            Event::Port(open) => {
                let spoke = self.guest.has_spoken();
                self.timers.port_closed = (!open && spoke).then(|| self.clock.now_ms());
            }
        }
    }

    /// Does what the ports want.
    pub(super) fn act(&mut self, acts: Vec<Act>) -> Result<(), BrokenRule> {
        for act in acts {
            match act {
                Act::Ask(port, step, command) => self.qmp.ask(Tag::Port(port, step), command),
                Act::Done(Done::Plugged(held, end)) => self.plugged(held, end)?,
                Act::Done(Done::NotPlugged(held, errno, why)) => {
                    self.not_plugged(held.stream, &held.packet, errno, &why)?;
                }
                Act::Done(Done::Card(asker, result)) => crate::asks::answer_card(&asker, result),
            }
        }
        Ok(())
    }

    fn plugged(&mut self, held: Held, end: End) -> Result<(), BrokenRule> {
        let channel = end.channel;
        let sent = self.guest.send(held.stream, held.packet, Some(end))?;
        self.hold(held.stream, false);
        if sent {
            return self.ports.told(channel).map_or(Ok(()), |message| self.guest.say(&message));
        }
        // The member has left meanwhile.
        self.release(channel).map(|_| ())
    }

    /// A packet whose channel can't be: the member is told so in its place, if it asked.
    pub(super) fn not_plugged(
        &mut self,
        stream: u32,
        packet: &[u8],
        errno: Errno,
        why: &str,
    ) -> Result<(), BrokenRule> {
        self.hold(stream, false);
        self.note(&format!("machine: a channel did not get into the guest: {why}"));
        if let Some(refused) = refused_in_place_of(packet, errno, why) {
            self.guest.send(stream, refused, None)?;
        }
        Ok(())
    }

    /// The guest has given a channel up; whether it had it.
    pub(super) fn release(&mut self, channel: u32) -> Result<bool, BrokenRule> {
        match self.ports.released(channel, self.clock.now_ms()) {
            Ok(acts) => self.act(acts).map(|()| true),
            Err(()) => Ok(false),
        }
    }

    fn hold(&mut self, stream: u32, hold: bool) {
        if let Some(relay) = self.relays.get_mut(&stream) {
            relay.hold(hold);
        }
    }
}
