//! The machine's loop: one thread that waits for QEMU, the guest, the daemon and who asks, and for
//! nothing longer than it may.

mod ending;
mod guest;
mod node;
mod qemu;

pub use ending::Patience;

use crate::asks::Asks;
use crate::clock::Clock;
use crate::console::Console;
use crate::guest::{BrokenRule, Guest};
use crate::kvm::probe_kvm;
use crate::link::{self, Link};
use crate::order::{Accel, MachineOrder};
use crate::outcome::{CODE_OF_MACHINE, Outcome, Word};
use crate::ports::{Bell, Hearing, Ports, ProcessTable, Step};
use crate::qemu::kvm::try_kvm;
use crate::qemu::process::{Qemu, Sockets};
use crate::relay::Relay;
use crate::verdict::{Facts, judge};
use crate::writer::Writer;
use qmp::{Command, Qmp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::FolderWatch;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use sys::signals::SignalDescriptor;
use wire::guest::MAX_PAYLOAD_BYTES;

/// Bytes taken off the guest's port at a time.
const PORT_READ_BYTES: usize = 64 * 1024;
/// How long to trust that the folder of the control socket tells of a daemon that comes, in ms.
const LOOK_AGAIN_MS: u64 = 1000;

/// This very program, whatever its place is called in here.
const OURSELVES: &str = "/proc/self/exe";

/// The request that an answer of QEMU's belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    /// A question that has no consequence: the answer shows that QEMU is alive.
    Alive,
    /// A step at a root port.
    Port(usize, Step),
}

/// The descriptor that became ready.
#[derive(Debug, Clone, Copy)]
enum Token {
    Signals,
    Ended,
    Words,
    Qmp,
    Port,
    Console,
    Output,
    Errors,
    Bell(Bell),
    Relay(u32),
    Link,
    Folder,
    Asks,
}

/// A machine that runs.
struct Machine<'a> {
    order: &'a MachineOrder,
    control: &'a Path,
    accel: Accel,
    clock: Clock,
    signals: &'a SignalDescriptor,
    qemu: Qemu,
    qmp: Qmp<Tag>,
    /// None when QEMU has closed it.
    port: Option<OwnedFd>,
    console: Console,
    guest: Guest,
    hello_interrupts: Option<bool>,
    ports: Ports,
    relays: BTreeMap<u32, Relay>,
    link: Link,
    folder: Option<FolderWatch>,
    looked_ms: u64,
    /// A frontend that the guest is to run as soon as it speaks.
    frontend: Option<(serde_json::Value, [OwnedFd; 2])>,
    refusal_shown: bool,
    asks: Asks,
    output: Writer,
    errors: Writer,
    timers: ending::Timers,
    patience: Patience,
    facts: Facts,
    ended: bool,
    /// Holds the longest packet.
    space: Vec<u8>,
}

/// How a machine has ended, and what its process is to exit with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// For `ps`.
    pub outcome: Outcome,
    /// For everybody.
    pub code: u8,
}

/// Runs the machine whose order is in `directory`, for the daemon whose control socket is at
/// `control`, until it has ended. `signals` are those that ask it to. The outcome is written into
/// `directory`.
pub fn run(directory: &Path, control: &Path, signals: &SignalDescriptor) -> Ended {
    run_with(directory, control, signals, Patience::default())
}

/// The same, with more or less patience.
pub fn run_with(directory: &Path, control: &Path, signals: &SignalDescriptor, patience: Patience) -> Ended {
    let ended = try_run(directory, control, signals, patience)
        .unwrap_or_else(|outcome| Ended { outcome, code: CODE_OF_MACHINE });
    let Outcome { outcome, message, .. } = &ended.outcome;
    let mut errors = Writer::error();
    let gap = if message.is_empty() { "" } else { ": " };
    errors.line(&format!("machine: {outcome}{gap}{message}"));
    if let Err(error) = ended.outcome.write(directory) {
        errors.line(&format!("machine: can't write how it ended: {error}"));
    }
    drop(errors.write());
    ended
}

fn try_run(
    directory: &Path,
    control: &Path,
    signals: &SignalDescriptor,
    patience: Patience,
) -> Result<Ended, Outcome> {
    let order = MachineOrder::read(directory)
        .map_err(|error| Outcome::new(Word::LostDaemonFiles, error.to_string()))?;
    let asks = Asks::listen(directory).map_err(|error| {
        Outcome::new(Word::LostDaemonFiles, format!("can't listen in {}: {error}", directory.display()))
    })?;
    let accel = choose(&order)?;
    let (qemu, sockets) = Qemu::start(&order, accel).map_err(|error| {
        Outcome::new(Word::NoQemu, format!("can't start {}: {error}", order.qemu.display()))
    })?;
    let mut machine = Machine::new(&order, control, accel, signals, (qemu, sockets), asks);
    machine.patience = patience;
    machine.go()
}

/// Chooses the executor of the guest's instructions: never `auto`. Where a daemon wrote `kvm`, it
/// has seen a guest run; what is left to be seen is that QEMU can use it here, in the container.
fn choose(order: &MachineOrder) -> Result<Accel, Outcome> {
    match order.accel {
        Accel::Tcg => Ok(Accel::Tcg),
        Accel::Auto => {
            let works = probe_kvm(Path::new(OURSELVES), &order.qemu).is_ok();
            Ok(if works { Accel::Kvm } else { Accel::Tcg })
        }
        Accel::Kvm => match try_kvm(&order.qemu) {
            Ok(()) => Ok(Accel::Kvm),
            Err(why) => Err(Outcome::new(Word::NoKvm, format!("{why}; take `accel = \"auto\"` or \"tcg\""))),
        },
    }
}

impl<'a> Machine<'a> {
    fn new(
        order: &'a MachineOrder,
        control: &'a Path,
        accel: Accel,
        signals: &'a SignalDescriptor,
        (qemu, sockets): (Qemu, Sockets),
        asks: Asks,
    ) -> Self {
        let Sockets { qmp, port, console } = sockets;
        let ports = Ports::new(ProcessTable::of(qemu.pid()));
        let mut qmp = Qmp::new(qmp);
        qmp.ask(Tag::Alive, Command::plain("qmp_capabilities"));
        Self {
            order,
            control,
            accel,
            clock: Clock::start(),
            signals,
            qemu,
            qmp,
            port: Some(port),
            console: Console::new(console),
            guest: Guest::default(),
            hello_interrupts: None,
            ports,
            relays: BTreeMap::new(),
            link: Link::new(control, accel.word(), String::new()),
            folder: None,
            looked_ms: 0,
            frontend: None,
            refusal_shown: false,
            asks,
            output: Writer::output(),
            errors: Writer::error(),
            timers: ending::Timers::default(),
            patience: Patience::default(),
            facts: Facts::default(),
            ended: false,
            space: vec![0; MAX_PAYLOAD_BYTES],
        }
    }

    /// Turns until QEMU has ended and all that it left behind is passed on.
    fn go(&mut self) -> Result<Ended, Outcome> {
        while !self.is_over() {
            let wait_ms = self.next_deadline().saturating_sub(self.clock.now_ms());
            let ready = self
                .wait(wait_ms)
                .map_err(|error| Outcome::new(Word::QemuDied, format!("can't wait for anything: {error}")))?;
            self.clock.woke(wait_ms);
            for (token, events) in ready {
                if let Err(broken) = self.turn(token, events) {
                    self.broke(&broken);
                }
            }
            if let Err(broken) = self.pass_time() {
                self.broke(&broken);
            }
            self.write_port();
        }
        self.facts.panic_line = self.console.panic().map(str::to_owned);
        self.facts.last_line = self.console.last().map(str::to_owned);
        self.facts.words = self.qemu.last_words();
        self.look_at_version();
        let (outcome, code) = judge(&self.facts);
        Ok(Ended { outcome, code })
    }

    fn broke(&mut self, rule: &BrokenRule) {
        self.end(Word::BrokeProtocol, format!("the guest broke a rule of its port: {rule}"));
    }

    /// Waits `wait_ms` at the most for descriptors that are ready.
    fn wait(&self, wait_ms: u64) -> rustix::io::Result<Vec<(Token, PollFlags)>> {
        let interests = self.interests();
        let mut polled: Vec<PollFd<'_>> = interests
            .iter()
            .map(|(_, descriptor, events)| PollFd::from_borrowed_fd(*descriptor, *events))
            .collect();
        let timeout = Timespec {
            tv_sec: i64::try_from(wait_ms / 1000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(wait_ms % 1000 * 1_000_000).unwrap_or(0),
        };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let tokens = interests.iter().map(|(token, ..)| *token);
        let ready = tokens.zip(polled.iter().map(PollFd::revents));
        Ok(ready.filter(|(_, events)| !events.is_empty()).collect())
    }

    fn interests(&self) -> Vec<(Token, BorrowedFd<'_>, PollFlags)> {
        let (read, write) = (PollFlags::IN, PollFlags::OUT);
        let mut all = vec![(Token::Signals, self.signals.as_fd(), read)];
        if !self.ended {
            all.push((Token::Ended, self.qemu.ended(), read));
        }
        if !self.ended && !self.timers.monitor_gone {
            all.push((Token::Qmp, self.qmp.as_fd(), read));
        }
        all.extend(self.qemu.words().map(|words| (Token::Words, words, read)));
        if let Some(port) = &self.port {
            let mut wanted = read;
            wanted.set(write, !self.guest.waiting().is_empty());
            all.push((Token::Port, port.as_fd(), wanted));
        }
        all.extend(self.console.descriptor().map(|console| (Token::Console, console, read)));
        all.extend(self.output.descriptor().map(|output| (Token::Output, output, write)));
        all.extend(self.errors.descriptor().map(|errors| (Token::Errors, errors, write)));
        let bells = self.ports.bells(self.guest.wants_more());
        all.extend(bells.map(|(bell, descriptor, events)| (Token::Bell(bell), descriptor, events)));
        for (stream, relay) in &self.relays {
            let interest = relay.interest(self.guest.has_room(*stream));
            all.extend(interest.map(|(socket, events)| (Token::Relay(*stream), socket, events)));
        }
        all.extend(self.link.interest().map(|(socket, events)| (Token::Link, socket, events)));
        all.extend(self.folder.as_ref().map(|folder| (Token::Folder, folder.as_fd(), read)));
        all.extend(self.asks.interest().map(|socket| (Token::Asks, socket, read)));
        all
    }

    fn turn(&mut self, token: Token, events: PollFlags) -> Result<(), BrokenRule> {
        match token {
            Token::Signals => self.hear_signals(),
            Token::Ended => self.hear_end(),
            Token::Words => self.qemu.read_words(),
            Token::Qmp => return self.hear_qmp(),
            Token::Port if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) => {
                return self.read_port();
            }
            // There is room: each turn of the loop writes.
            Token::Port => {}
            Token::Console => self.read_console(),
            Token::Output | Token::Errors => return self.write_out(),
            Token::Bell(bell) => {
                let said = self.ports.heard(bell, self.clock.now_ms());
                return said.iter().try_for_each(|message| self.guest.say(message));
            }
            Token::Relay(stream) => return self.relay(stream, events),
            Token::Link => self.hear_link()?,
            Token::Folder => self.look_for_daemon(),
            Token::Asks => return self.hear_asks(),
        }
        Ok(())
    }

    /// How rings reach this guest.
    fn hearing(&self) -> Hearing {
        match (self.hello_interrupts, self.accel) {
            (Some(true), Accel::Kvm) => Hearing::Eventfds,
            (Some(true), Accel::Tcg | Accel::Auto) => Hearing::Doorbells,
            (Some(false) | None, ..) => Hearing::Frames,
        }
    }

    /// A line of our own, for the log.
    fn note(&mut self, line: &str) {
        self.errors.line(line);
    }

    /// Connects what waits for the daemon, if it is there; if not, its folder is watched from now
    /// on.
    fn look_for_daemon(&mut self) {
        self.looked_ms = self.clock.now_ms();
        if let Some(folder) = &self.folder {
            folder.drain();
        }
        self.try_daemon();
        if self.wants_daemon() && self.folder.is_none() {
            self.folder = FolderWatch::new(self.control);
            // It may have come in between.
            self.try_daemon();
        }
        if !self.wants_daemon() {
            self.folder = None;
        }
    }

    fn try_daemon(&mut self) {
        if !self.link.is_there() && self.facts.greeted {
            self.link.try_connect();
        }
        for relay in self.relays.values_mut().filter(|relay| relay.is_awaiting()) {
            match link::connect(self.control) {
                Ok(socket) => relay.connected(socket),
                Err(_) => break,
            }
        }
    }

    /// The daemon has gone, or does not want us. Not asked again at once: one that closes each
    /// connection would be asked without end.
    fn lost_daemon(&mut self) {
        if self.clock.now_ms() >= self.looked_ms + LOOK_AGAIN_MS {
            self.look_for_daemon();
        } else if self.folder.is_none() {
            self.folder = FolderWatch::new(self.control);
        }
    }

    fn wants_daemon(&self) -> bool {
        (!self.link.is_there() && self.facts.greeted) || self.relays.values().any(Relay::is_awaiting)
    }
}
