//! The guest's messages, and the answers to them.

use super::{Machine, PORT_READ_BYTES};
use crate::guest::{BrokenRule, Said};
use crate::relay::{Kind, Relay, is_the_machines, refused};
use rustix::io::Errno;
use rustix::net::SendFlags;
use wire::control::GuestState;
use wire::guest::{Event, Hello, output};

/// Most programs of a guest that are connected to its control socket at a time. The daemon has a
/// bound of its own; this one is for the memory of this process, a window for each.
const MAX_MEMBERS: usize = 128;

impl Machine<'_> {
    pub(super) fn read_port(&mut self) -> Result<(), BrokenRule> {
        let Some(port) = &self.port else { return Ok(()) };
        let mut bytes = [0; PORT_READ_BYTES];
        match rustix::io::retry_on_intr(|| rustix::io::read(port, &mut bytes[..])) {
            Ok(read) if read > 0 => {
                let said = self.guest.hear(bytes.get(..read).unwrap_or_default())?;
                said.into_iter().try_for_each(|said| self.hear(said))
            }
            Err(Errno::AGAIN) => Ok(()),
            // QEMU has closed it: it has ended, or is about to.
            _ => {
                self.port = None;
                Ok(())
            }
        }
    }

    /// Writes what the port takes.
    pub(super) fn write_port(&mut self) {
        while let (Some(port), false) = (&self.port, self.guest.waiting().is_empty()) {
            let waiting = self.guest.waiting();
            match rustix::io::retry_on_intr(|| rustix::net::send(port, waiting, SendFlags::NOSIGNAL)) {
                Ok(written) => self.guest.wrote(written),
                Err(Errno::AGAIN) => return,
                // What it has said is still read.
                Err(_) => return self.guest.wrote(usize::MAX),
            }
        }
    }

    fn hear(&mut self, said: Said) -> Result<(), BrokenRule> {
        match said {
            Said::Hello(hello) => self.hear_hello(&hello),
            Said::Event(event) => {
                self.hear_event(event);
                Ok(())
            }
            Said::Member { stream } => self.hear_member(stream),
            Said::Data { stream, bytes } => self.hear_data(stream, bytes),
            Said::Output { stream, bytes } => {
                let is_error = bytes.first() == Some(&output::STDERR);
                let writer = if is_error { &mut self.errors } else { &mut self.output };
                writer.pass_on(stream, bytes);
                Ok(())
            }
            Said::Closed { stream } => self.hear_close(stream),
            Said::Release { channel } => match self.release(channel)? {
                true => Ok(()),
                false => Err(BrokenRule::Channel { channel }),
            },
            Said::Pong => {
                self.timers.pinged = None;
                self.timers.ponged = self.clock.now_ms();
                Ok(())
            }
        }
    }

    fn hear_hello(&mut self, hello: &Hello) -> Result<(), BrokenRule> {
        self.hello_interrupts = Some(hello.interrupts);
        self.timers.ponged = self.clock.now_ms();
        self.guest.boot(self.order.boot.clone())?;
        self.start_frontend()
    }

    fn hear_event(&mut self, event: Event) {
        match event {
            Event::Started {} => self.link.tell(GuestState::Started, ""),
            Event::Exited(exited) => {
                if self.facts.exited.is_none() {
                    self.facts.exited = Some((exited, self.facts.asked));
                }
                self.goes_off();
            }
            Event::Failed { message } => {
                if self.facts.failed.is_none() {
                    self.facts.failed = Some(message);
                }
                self.goes_off();
            }
            Event::Frontend { up: true, .. } => self.link.tell(GuestState::FrontendUp, ""),
            Event::Frontend { up: false, message } => {
                let why = qmp::clean(message.as_deref().unwrap_or_default(), 300);
                self.link.tell(GuestState::FrontendDown, &why);
            }
        }
    }

    fn goes_off(&mut self) {
        if self.timers.exited.is_none() {
            self.timers.exited = Some(self.clock.now_ms());
        }
    }

    /// A program of the guest wants to speak with the daemon. Where there is none, it waits for the
    /// next one here, and does not ask again and again.
    fn hear_member(&mut self, stream: u32) -> Result<(), BrokenRule> {
        let members = self.relays.values().filter(|relay| relay.kind == Kind::Member).count();
        if members >= MAX_MEMBERS {
            let text = "too many programs of this virtual machine are connected to the control socket";
            return self.guest.close(stream, Errno::MFILE.raw_os_error(), text);
        }
        self.relays.insert(stream, Relay::awaiting(Kind::Member));
        self.look_for_daemon();
        Ok(())
    }

    fn hear_data(&mut self, stream: u32, bytes: Vec<u8>) -> Result<(), BrokenRule> {
        let Some(relay) = self.relays.get_mut(&stream) else {
            // Its socket has ended and the stream is being closed.
            return self.guest.passed_on(stream, bytes.len());
        };
        if let Some(id) = (relay.kind == Kind::Member).then(|| is_the_machines(&bytes)).flatten() {
            self.guest.passed_on(stream, bytes.len())?;
            let told = refused(id, Errno::PERM, "only the machine process of a domain says this");
            self.guest.send(stream, told, None)?;
            return Ok(());
        }
        relay.give(bytes);
        self.flush(stream)
    }

    fn hear_close(&mut self, stream: u32) -> Result<(), BrokenRule> {
        match self.relays.get_mut(&stream) {
            Some(relay) => {
                relay.close();
                self.flush(stream)
            }
            None => self.guest.close(stream, 0, ""),
        }
    }

    pub(super) fn read_console(&mut self) {
        let lines = self.console.read(self.clock.now_ms());
        lines.iter().for_each(|line| self.errors.line(&format!("console: {line}")));
    }

    /// Writes our output, and lets the guest write more of its own.
    pub(super) fn write_out(&mut self) -> Result<(), BrokenRule> {
        let through = [self.output.write(), self.errors.write()];
        through.into_iter().flatten().try_for_each(|(stream, bytes)| self.guest.passed_on(stream, bytes))
    }
}
