//! The node's messages: those of the daemon, to the machine and to programs of the guest; and the
//! callers at the machine's socket.

use super::Machine;
use crate::asks::{Ask, answer_card, refuse_exec};
use crate::guest::BrokenRule;
use crate::link::Heard;
use crate::ports::{CardOrder, EndParts, Held};
use crate::relay::{Kind, Relay, Took};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use wire::guest::{ExecOptions, Purpose};

/// Most programs that are executed in a guest at a time.
const MAX_EXECS: usize = 64;

impl Machine<'_> {
    pub(super) fn relay(&mut self, stream: u32, events: PollFlags) -> Result<(), BrokenRule> {
        let Some(relay) = self.relays.get_mut(&stream) else { return Ok(()) };
        if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) && self.guest.has_room(stream) {
            match relay.take(&mut self.space) {
                Took::Packet(packet, descriptors) if descriptors.is_empty() => {
                    self.guest.send(stream, packet, None)?;
                }
                Took::Packet(packet, descriptors) => self.plug(stream, packet, descriptors)?,
                Took::Nothing => {}
                Took::Ended => {
                    self.relays.remove(&stream);
                    return self.guest.close(stream, 0, "");
                }
            }
        }
        self.flush(stream)
    }

    /// Gives a relay's socket what waits for it.
    pub(super) fn flush(&mut self, stream: u32) -> Result<(), BrokenRule> {
        let Some(relay) = self.relays.get_mut(&stream) else { return Ok(()) };
        let (through, over) = relay.flush();
        through.into_iter().try_for_each(|bytes| self.guest.passed_on(stream, bytes))?;
        if over {
            self.relays.remove(&stream);
            self.guest.close(stream, 0, "")?;
        }
        Ok(())
    }

    /// A packet with descriptors: an end of a channel, which becomes a device before the packet
    /// goes to the guest.
    fn plug(&mut self, stream: u32, packet: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<(), BrokenRule> {
        let parts = match EndParts::of(descriptors) {
            Ok(parts) => parts,
            Err(error) => {
                let why = crate::outcome::with_causes(&error);
                return self.not_plugged(stream, &packet, Errno::IO, &why);
            }
        };
        if let Some(relay) = self.relays.get_mut(&stream) {
            relay.hold(true);
        }
        let acts = self.ports.plug(Held { stream, packet }, parts, self.hearing(), self.clock.now_ms());
        self.act(acts)
    }

    pub(super) fn hear_link(&mut self) -> Result<(), BrokenRule> {
        match self.link.ready() {
            Some(Heard::Frontend(order, sockets)) => {
                self.frontend = Some((order, sockets));
                self.start_frontend()?;
            }
            Some(Heard::Refused(why)) if !std::mem::replace(&mut self.refusal_shown, true) => {
                self.note(&format!("machine: the daemon refuses this machine: {why}"));
            }
            Some(Heard::Refused(_)) | None => {}
        }
        if !self.link.is_there() {
            self.lost_daemon();
        }
        Ok(())
    }

    /// Has the guest run the frontend that the daemon wants, in the place of one that is there.
    pub(super) fn start_frontend(&mut self) -> Result<(), BrokenRule> {
        if !self.guest.has_spoken() {
            return Ok(());
        }
        let Some((order, [frontend, entrances])) = self.frontend.take() else { return Ok(()) };
        let earlier: Vec<u32> = self
            .relays
            .iter()
            .filter(|(_, relay)| relay.kind == Kind::Frontend)
            .map(|(stream, _)| *stream)
            .collect();
        for stream in earlier {
            self.relays.remove(&stream);
            self.guest.close(stream, 0, "")?;
        }
        let Some(of_entrances) = self.open(Purpose::Entrances {}, Kind::Frontend, entrances)? else {
            return Ok(());
        };
        self.open(Purpose::Frontend { order, entrances: of_entrances }, Kind::Frontend, frontend)?;
        Ok(())
    }

    fn open(&mut self, purpose: Purpose, kind: Kind, socket: OwnedFd) -> Result<Option<u32>, BrokenRule> {
        if let Err(errno) = rustix::io::ioctl_fionbio(&socket, true) {
            self.note(&format!("machine: a socket can't be used: {errno}"));
            return Ok(None);
        }
        let Some(stream) = self.guest.open(purpose)? else {
            self.note("machine: the guest has as many streams as it can have");
            return Ok(None);
        };
        self.relays.insert(stream, Relay::new(kind, socket));
        Ok(Some(stream))
    }

    pub(super) fn hear_asks(&mut self) -> Result<(), BrokenRule> {
        let asked = self.asks.ready(&mut self.space, self.clock.now_ms());
        for ask in asked {
            match ask {
                Ask::Exec(socket, options) => self.execute(socket, options)?,
                Ask::Card(socket, order, tap) => self.plug_card(socket, order, tap)?,
            }
        }
        Ok(())
    }

    fn execute(&mut self, socket: OwnedFd, options: ExecOptions) -> Result<(), BrokenRule> {
        let running = self.relays.values().filter(|relay| relay.kind == Kind::Exec).count();
        if !self.guest.has_spoken() {
            refuse_exec(&socket, "the guest has not booted yet");
        } else if running >= MAX_EXECS {
            refuse_exec(&socket, "as many programs as may be are executed in this guest already");
        } else {
            self.open(Purpose::Exec { options }, Kind::Exec, socket)?;
        }
        Ok(())
    }

    fn plug_card(&mut self, socket: OwnedFd, order: CardOrder, tap: OwnedFd) -> Result<(), BrokenRule> {
        if !self.guest.has_spoken() {
            answer_card(&socket, Err("the guest has not booted yet".to_owned()));
            return Ok(());
        }
        let acts = self.ports.plug_card(socket, order, tap, self.clock.now_ms());
        self.act(acts)
    }
}
