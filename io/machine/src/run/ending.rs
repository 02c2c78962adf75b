//! When a machine ends: what is waited for, for how long, and what ends it.

use super::{LOOK_AGAIN_MS, Machine, Tag};
use crate::guest::BrokenRule;
use crate::outcome::Word;
use crate::qemu::events::OLDEST;
use crate::qemu::kvm::version_of;
use crate::relay::Kind;
use qmp::{Command, clean};
use std::time::Duration;
use wire::guest::{Message, Shutdown};

/// How often a guest that says nothing is asked whether it is there.
const PING_EVERY_MS: u64 = 10_000;
/// How long a guest may take for its next word once QEMU has said that it has closed its port.
const CLOSED_PORT_MS: u64 = 10_000;
/// How often QEMU is asked whether it is there, if nothing else is asked.
const ALIVE_EVERY_MS: u64 = 5_000;
/// How long what QEMU left behind may take to be passed on, to who reads our output.
const DRAIN_MS: u64 = 5_000;
/// Longest sleep: nothing is that far off.
const IDLE_MS: u64 = 3_600_000;

/// How long others may take for what they have to do, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// The guest's agent, for the answer to a ping.
    pub pong_ms: u64,
    /// How often it is pinged.
    pub ping_every_ms: u64,
    /// QEMU, for any answer.
    pub qemu_ms: u64,
    /// The guest, to switch off when its command has ended.
    pub off_ms: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { pong_ms: 30_000, ping_every_ms: PING_EVERY_MS, qemu_ms: 20_000, off_ms: 10_000 }
    }
}

/// When what happened. All in ms of the machine's clock.
#[derive(Debug, Default)]
pub(super) struct Timers {
    /// When the guest was asked whether it is there, and has not answered.
    pub pinged: Option<u64>,
    /// When it answered last.
    pub ponged: u64,
    /// When its port was closed.
    pub port_closed: Option<u64>,
    /// When QEMU was asked what it owes the answer to.
    pub asked_qemu: Option<u64>,
    /// Whether its monitor is gone: then it ends, and may take as long for that as for an answer.
    pub monitor_gone: bool,
    /// When QEMU answered last.
    pub qemu_answered: u64,
    /// When the machine was asked to end.
    pub asked: Option<u64>,
    /// When the guest said that its command has ended.
    pub exited: Option<u64>,
    /// When QEMU ended.
    pub ended: Option<u64>,
}

impl Machine<'_> {
    /// Ends the machine, for this reason, if there is no earlier one.
    pub(super) fn end(&mut self, word: Word, message: String) {
        if !self.ended && self.facts.verdict.is_none() {
            self.facts.verdict = Some((word, message));
        }
        self.qemu.kill();
    }

    /// Whether QEMU has ended and what it left behind is passed on.
    pub(super) fn is_over(&self) -> bool {
        let Some(ended_ms) = self.timers.ended else { return false };
        let drained = self.port.is_none()
            && self.console.descriptor().is_none()
            && self.output.descriptor().is_none()
            && self.errors.descriptor().is_none()
            && self.relays.values().all(|relay| relay.kind != Kind::Exec || !relay.has_waiting());
        drained || self.clock.now_ms() >= ended_ms + DRAIN_MS
    }

    pub(super) fn hear_end(&mut self) {
        let status = match self.qemu.try_wait() {
            Ok(None) => return,
            Ok(Some(status)) => status.to_string(),
            Err(error) => format!("how it ended is unknown: {error}"),
        };
        self.ended = true;
        self.timers.ended = Some(self.clock.now_ms());
        self.facts.status = status;
        // What it said last may still be in its monitor's socket.
        while let Ok(said) = self.qmp.hear()
            && !said.is_empty()
        {
            self.take_last_words(said);
        }
    }

    pub(super) fn hear_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.take() {
            if self.timers.asked.is_some() {
                self.end(Word::Killed, "it was asked to end a second time".to_owned());
                continue;
            }
            self.timers.asked = Some(self.clock.now_ms());
            self.facts.asked = true;
            self.ask_to_end(signal);
        }
    }

    fn ask_to_end(&mut self, signal: i32) {
        if self.guest.has_spoken() {
            if let Err(broken) = self.guest.say(&Message::Shutdown(Shutdown { signal })) {
                self.broke(&broken);
            }
        } else if self.order.kernel.is_some() {
            // Nothing of anybody's has begun in it.
            self.end(Word::Stopped, "it had not booted yet".to_owned());
        } else {
            self.qmp.ask(Tag::Alive, Command::plain("system_powerdown"));
        }
    }

    /// The deadlines that there are, and what to say of each.
    fn deadlines(&self) -> impl Iterator<Item = (u64, Deadline)> {
        let (timers, patience) = (&self.timers, &self.patience);
        let hello = (!self.guest.has_spoken()).then_some((self.order.boot_ms, Deadline::Hello));
        let ping = (self.guest.has_spoken() && timers.pinged.is_none())
            .then_some((timers.ponged + patience.ping_every_ms, Deadline::Ping));
        // A guest that goes off answers no more, and has other bounds.
        let stays = timers.asked.is_none() && timers.exited.is_none();
        let pong = timers.pinged.filter(|_| stays).map(|since| (since + patience.pong_ms, Deadline::Pong));
        let closed =
            timers.port_closed.filter(|_| stays).map(|since| (since + CLOSED_PORT_MS, Deadline::Pong));
        let alive =
            timers.asked_qemu.is_none().then_some((timers.qemu_answered + ALIVE_EVERY_MS, Deadline::Alive));
        let qemu = timers.asked_qemu.map(|since| (since + patience.qemu_ms, Deadline::Qemu));
        let stop = timers.asked.map(|since| (since.saturating_add(self.order.shutdown_ms), Deadline::Stop));
        let off = timers.exited.map(|since| (since + patience.off_ms, Deadline::Off));
        let unplug = self.ports.overdue_at().map(|at| (at, Deadline::Unplug));
        let daemon = self.wants_daemon().then_some((self.looked_ms + LOOK_AGAIN_MS, Deadline::Daemon));
        let asks = self.asks.deadline().map(|at| (at, Deadline::Asks));
        let all = [hello, ping, pong, closed, alive, qemu, stop, off, unplug, daemon, asks];
        let runs = !self.ended && self.facts.verdict.is_none();
        all.into_iter().flatten().filter(move |_| runs)
    }

    pub(super) fn next_deadline(&self) -> u64 {
        let drain = self.timers.ended.map(|since| since + DRAIN_MS);
        let idle = self.clock.now_ms() + IDLE_MS;
        self.deadlines().map(|(at, _)| at).chain(drain).min().unwrap_or(idle)
    }

    /// Does what it is time for.
    pub(super) fn pass_time(&mut self) -> Result<(), BrokenRule> {
        let now_ms = self.clock.now_ms();
        let owed = self.qmp.is_owed() || self.timers.monitor_gone;
        self.timers.asked_qemu = owed.then(|| self.timers.asked_qemu.unwrap_or(now_ms));
        let due: Vec<Deadline> =
            self.deadlines().filter(|(at, _)| *at <= now_ms).map(|(_, deadline)| deadline).collect();
        due.into_iter().try_for_each(|deadline| self.is_due(deadline, now_ms))
    }

    fn is_due(&mut self, deadline: Deadline, now_ms: u64) -> Result<(), BrokenRule> {
        match deadline {
            Deadline::Hello => {
                let last = self.console.last().unwrap_or("nothing");
                let text = format!(
                    "its agent did not speak within {:?} (`boot_timeout`); its console says last: {last}",
                    Duration::from_millis(self.order.boot_ms)
                );
                self.end(Word::Silent, text);
            }
            Deadline::Ping => {
                self.timers.pinged = Some(now_ms);
                self.guest.say(&Message::Ping(now_ms.to_le_bytes()))?;
            }
            Deadline::Pong => self.end(Word::Hung, "its agent answers no more".to_owned()),
            Deadline::Alive => self.qmp.ask(Tag::Alive, Command::plain("query-status")),
            Deadline::Qemu => self
                .end(Word::QemuHung, format!("QEMU did not answer for {} s", self.patience.qemu_ms / 1000)),
            Deadline::Stop if self.facts.exited.is_some() => self.qemu.kill(),
            Deadline::Stop => self.end(Word::Killed, "it did not end in time".to_owned()),
            Deadline::Off => self.qemu.kill(),
            Deadline::Unplug => {
                let acts = self.ports.overdue(now_ms);
                self.act(acts)?;
            }
            Deadline::Daemon => self.look_for_daemon(),
            Deadline::Asks => self.hear_asks()?,
        }
        Ok(())
    }

    /// A QEMU that ended before it spoke may be too old for its options: then that is what is
    /// wrong.
    pub(super) fn look_at_version(&mut self) {
        if self.facts.greeted || self.facts.verdict.is_some() {
            return;
        }
        if let Some(found) = version_of(&self.order.qemu).filter(|found| *found < OLDEST) {
            self.facts.verdict = Some((Word::NoQemu, too_old(found)));
        }
    }
}

/// The fault of a QEMU of this version.
pub(super) fn too_old(found: qmp::Version) -> String {
    clean(&format!("QEMU {found} is too old: {}.{} or later is needed", OLDEST.major, OLDEST.minor), 200)
}

/// Something that may not take longer.
#[derive(Debug, Clone, Copy)]
enum Deadline {
    Hello,
    Ping,
    Pong,
    Alive,
    Qemu,
    Stop,
    Off,
    Unplug,
    Daemon,
    Asks,
}
