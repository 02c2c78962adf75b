//! The loop: one thread that waits for everything at once.

use crate::ends::Ends;
use crate::entrances;
use crate::error::{AgentError, own};
use crate::process::{Input, Process};
use crate::relay::Relay;
use crate::services::Services;
use crate::{Config, setup};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Signal, WaitOptions};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use streams::{Heard, Outbox, Side, Streams};
use sys::signals::SignalDescriptor;
use wire::guest::{Boot, Decoder, Ending, Event, Exited, Hello, Message, Purpose, Shutdown, VERSION};

/// Most that is read from the port at once, in bytes.
const READ_BYTES: usize = 64 * 1024;
/// How often is looked for a device that was announced, beside at each word of the kernel's that
/// devices have changed.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How long the node may take for the last words of a command, and of the agent.
pub(crate) const LAST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait at least for what is overdue and can't be passed on yet.
const MIN_TIMEOUT: Duration = Duration::from_millis(100);
/// Name of the control socket in the folder of ours.
const CONTROL_SOCKET: &str = "control.sock";
/// The multicast group of the kernel's own words on devices.
const KERNEL_GROUP: u32 = 1;

/// Everything that the agent of a guest has.
pub(crate) struct Agent {
    pub config: Config,
    port: Port,
    pub streams: Streams,
    pub relays: BTreeMap<u32, Relay>,
    pub ends: Ends,
    pub processes: BTreeMap<u32, Process>,
    pub services: Services,
    pub boot: Option<Boot>,
    /// The root that commands see as `/`, if not the agent's.
    pub root: Option<PathBuf>,
    /// The stream of the domain's command, once that was started.
    pub command: Option<u32>,
    /// The node was told that the guest has started.
    pub started: bool,
    pub listener: Option<OwnedFd>,
    signals: SignalDescriptor,
    /// The kernel says here that devices have changed.
    devices: OwnedFd,
    /// How often the kernel has killed for want of memory before the command.
    out_of_memory: u64,
    /// There were no descriptors or no memory for a member: until then nobody is taken.
    pub accept_again: Option<Instant>,
    /// The command's signal has been sent: nothing is started any more.
    pub stopping: bool,
    /// How long the node may take for the command's last words.
    pub last_words: Option<Instant>,
    /// All is said; how long to wait until the node has it.
    leaving: Option<Instant>,
}

struct Port {
    descriptor: OwnedFd,
    decoder: Decoder,
    outbox: Outbox,
    /// The last that was written may not have been taken by the hypervisor: it would be lost when
    /// the guest is switched off.
    unconfirmed: bool,
}

/// The descriptor that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Port,
    Signals,
    Devices,
    Released,
    Listener,
    Relay(u32),
    Word(u32),
    Input(u32),
    Output(u32, usize),
}

/// Serves the node at the port until the guest is to be switched off.
///
/// # Errors
/// [`AgentError`]: the node is lost or broke a rule, and nobody is left who could say what the guest is to be.
pub fn run(config: Config, port: OwnedFd) -> Result<(), AgentError> {
    let mut agent = Agent::new(config, port)?;
    agent.hello()?;
    loop {
        agent.advance()?;
        if agent.has_left() {
            return Ok(());
        }
        agent.wait()?;
    }
}

impl Agent {
    fn new(config: Config, port: OwnedFd) -> Result<Self, AgentError> {
        let signals =
            SignalDescriptor::block(&[Signal::CHILD.as_raw()]).map_err(own("hear of its children"))?;
        let ends = Ends::new(&config.bus, config.interrupts).map_err(own("make an eventfd"))?;
        Ok(Self {
            port: Port {
                descriptor: port,
                decoder: Decoder::default(),
                outbox: Outbox::default(),
                unconfirmed: false,
            },
            streams: Streams::new(Side::Agent),
            relays: BTreeMap::new(),
            ends,
            processes: BTreeMap::new(),
            services: Services::default(),
            boot: None,
            root: None,
            command: None,
            started: false,
            listener: None,
            signals,
            devices: hear_of_devices().map_err(own("hear of devices"))?,
            out_of_memory: killed_for_memory(),
            accept_again: None,
            stopping: false,
            last_words: None,
            leaving: None,
            config,
        })
    }

    fn hello(&mut self) -> Result<(), AgentError> {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let program = env!("CARGO_PKG_VERSION").to_owned();
        let interrupts = self.config.interrupts;
        self.say(&Message::Hello(Hello { version: VERSION, program, kernel, interrupts }))
    }

    /// Puts a message on its way to the node.
    pub fn say(&mut self, message: &Message) -> Result<(), AgentError> {
        Ok(self.port.outbox.push(message)?)
    }

    /// Whether more data should be taken from those who want to send.
    pub fn port_wants_more(&self) -> bool {
        self.port.outbox.wants_more()
    }

    /// Gives back what a message of a stream took of its window.
    pub fn consumed(&mut self, stream: u32, length: usize) -> Result<(), AgentError> {
        match self.streams.consumed(stream, length) {
            Some(credit) => self.say(&credit),
            None => Ok(()),
        }
    }

    /// It could not be what the node said. Then it switches off.
    pub fn fail(&mut self, message: String) -> Result<(), AgentError> {
        tracing::error!(message, "the guest can't be what its node says");
        self.say(&Message::Event(Event::Failed { message }))?;
        self.leave();
        Ok(())
    }

    /// The command has ended, and all that it wrote is on its way.
    pub fn finish(&mut self, ending: Ending) -> Result<(), AgentError> {
        let out_of_memory = killed_for_memory() > self.out_of_memory;
        self.say(&Message::Event(Event::Exited(Exited { ending, out_of_memory })))?;
        self.leave();
        Ok(())
    }

    pub fn leave(&mut self) {
        self.last_words = None;
        self.leaving.get_or_insert(Instant::now() + LAST_TIMEOUT);
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    fn has_left(&self) -> bool {
        let done = self.port.outbox.is_empty() && !self.port.unconfirmed;
        self.leaving.is_some_and(|deadline| done || Instant::now() >= deadline)
    }

    /// Does what can be done without waiting.
    fn advance(&mut self) -> Result<(), AgentError> {
        self.look_for_devices()?;
        self.settle_processes()?;
        self.write_port()
    }

    fn write_port(&mut self) -> Result<(), AgentError> {
        while !self.port.outbox.is_empty() {
            let written = rustix::io::retry_on_intr(|| {
                rustix::io::write(&self.port.descriptor, self.port.outbox.waiting())
            });
            match written {
                Ok(bytes) => {
                    self.port.outbox.wrote(bytes);
                    self.port.unconfirmed = true;
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::PIPE | Errno::NODEV | Errno::CONNRESET) => return Err(AgentError::Gone),
                Err(errno) => return Err(AgentError::Port { what: "write", source: errno.into() }),
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), AgentError> {
        let timeout = self.patience().map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let ready = {
            let sources = self.sources();
            let mut set: Vec<PollFd<'_>> = sources
                .iter()
                .map(|(_, descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags))
                .collect();
            match poll(&mut set, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(own("wait")(errno)),
            }
            let found = sources.iter().zip(&set).filter(|(_, polled)| !polled.revents().is_empty());
            found.map(|((token, ..), polled)| (*token, polled.revents())).collect::<Vec<_>>()
        };
        ready.into_iter().try_for_each(|(token, flags)| self.handle(token, flags))
    }

    /// How long to wait at most.
    fn patience(&self) -> Option<Duration> {
        let look = self.ends.awaits().then_some(LOOK_AGAIN);
        let last = self.leaving.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let words = self.last_words.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        let accept = self.accept_again.filter(|at| *at > now).map(|at| at.duration_since(now));
        let left = self.processes.values().filter_map(|process| process.left_until());
        let left = left.min().map(|until| until.saturating_duration_since(now).max(MIN_TIMEOUT));
        look.into_iter().chain(last).chain(words).chain(accept).chain(left).min()
    }

    fn sources(&self) -> Vec<(Token, BorrowedFd<'_>, PollFlags)> {
        let mut port = PollFlags::IN;
        port.set(
            PollFlags::OUT,
            !self.port.outbox.is_empty() || (self.is_leaving() && self.port.unconfirmed),
        );
        let mut sources = vec![
            (Token::Port, self.port.descriptor.as_fd(), port),
            (Token::Signals, self.signals.as_fd(), PollFlags::IN),
            (Token::Devices, self.devices.as_fd(), PollFlags::IN),
            (Token::Released, self.ends.rung.as_fd(), PollFlags::IN),
        ];
        if let Some(listener) = &self.listener
            && self.may_accept()
        {
            sources.push((Token::Listener, listener.as_fd(), PollFlags::IN));
        }
        for (stream, relay) in &self.relays {
            if let Some(flags) = self.relay_interest(*stream, relay) {
                sources.push((Token::Relay(*stream), relay.socket.as_fd(), flags));
            }
        }
        for (stream, process) in &self.processes {
            if let Some(word) = &process.word {
                sources.push((Token::Word(*stream), word.as_fd(), PollFlags::IN));
            }
            if let (Some(input), true) = (&process.input, process.has_input()) {
                sources.push((Token::Input(*stream), input.as_fd(), PollFlags::OUT));
            }
            if self.may_read(*stream) {
                let open = process.outputs.iter().enumerate();
                let open = open.filter_map(|(which, output)| Some((which, output.as_ref()?)));
                sources.extend(
                    open.map(|(which, output)| {
                        (Token::Output(*stream, which), output.as_fd(), PollFlags::IN)
                    }),
                );
            }
        }
        sources
    }

    /// Something is ready. What it belonged to may be gone by the time that its turn comes.
    fn handle(&mut self, token: Token, flags: PollFlags) -> Result<(), AgentError> {
        match token {
            Token::Port => self.port_ready(flags),
            Token::Signals => self.reap(),
            Token::Devices => self.devices_changed(),
            Token::Released => self.tell_released(),
            Token::Listener => self.accept(),
            Token::Relay(stream) => self.relay_ready(stream, flags),
            Token::Word(stream) => self.word_ready(stream),
            Token::Input(stream) => self.write_input(stream),
            Token::Output(stream, which) => self.read_output(stream, which).map(drop),
        }
    }

    /// Only that something has changed matters, and what was lost matters as much.
    fn devices_changed(&mut self) -> Result<(), AgentError> {
        loop {
            match rustix::net::recv(&self.devices, &mut [0_u8; 64], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(own("hear of devices")(errno)),
            }
        }
    }

    fn port_ready(&mut self, flags: PollFlags) -> Result<(), AgentError> {
        if flags.contains(PollFlags::OUT) && self.port.outbox.is_empty() {
            self.port.unconfirmed = false;
        }
        if !flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(());
        }
        let mut bytes = vec![0; READ_BYTES];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.port.descriptor, &mut *bytes));
        let length = match read {
            Ok(0) | Err(Errno::NODEV | Errno::CONNRESET) => return Err(AgentError::Gone),
            Ok(length) => length,
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(AgentError::Port { what: "read", source: errno.into() }),
        };
        let mut rest = bytes.get(..length).unwrap_or_default();
        while let Some(frame) = self.port.decoder.next(&mut rest)? {
            let heard = self.streams.hear(Message::read(frame)?)?;
            self.hear(heard)?;
        }
        Ok(())
    }

    fn hear(&mut self, heard: Heard) -> Result<(), AgentError> {
        match heard {
            Heard::Opened { stream, purpose } => self.opened(stream, purpose),
            Heard::Data { stream, bytes, end } => self.data(stream, bytes, end),
            Heard::Closed { stream, .. } => self.closed(stream),
            Heard::Late(Some(end)) => self.say(&Message::Release { channel: end.channel }),
            Heard::Other(message) => self.hear_link(message),
            Heard::Room { .. } | Heard::Late(None) | Heard::Nothing => Ok(()),
        }
    }

    fn hear_link(&mut self, message: Message) -> Result<(), AgentError> {
        match message {
            Message::Boot(boot) => self.be(*boot),
            Message::Ping(bytes) => self.say(&Message::Pong(bytes)),
            Message::Hangup { channel } => {
                self.ends.hang_up(channel);
                Ok(())
            }
            Message::Ring { channel, vector } => {
                self.ends.ring(channel, vector);
                Ok(())
            }
            Message::Shutdown(Shutdown { signal }) => self.shut_down(signal),
            // None was sent that it would answer.
            Message::Pong(_) => Err(AgentError::Unexpected("the answer to a question that was not asked")),
            Message::Hello(_) | Message::Event(_) | Message::Release { .. } => {
                Err(AgentError::Unexpected("what an agent says"))
            }
            Message::Open { .. }
            | Message::Data { .. }
            | Message::Credit { .. }
            | Message::Close { .. }
            | Message::End { .. } => Err(AgentError::Unexpected("a message of a stream to nobody")),
        }
    }

    /// Becomes what the node says.
    fn be(&mut self, boot: Boot) -> Result<(), AgentError> {
        if self.boot.is_some() {
            return Err(AgentError::Unexpected("what the guest is to be, for a second time"));
        }
        if boot.version != VERSION {
            return Err(AgentError::Version { found: boot.version });
        }
        let listen = |folder: &std::path::Path| {
            entrances::listen(folder, CONTROL_SOCKET, SocketType::SEQPACKET)
                .map_err(|error| format!("can't make the control socket in {}: {error}", folder.display()))
        };
        let made = setup::apply(&self.config, &boot).and_then(|root| Ok((root, listen(&self.config.run)?)));
        match made {
            Ok((root, listener)) => (self.root, self.listener) = (root, Some(listener)),
            Err(why) => {
                self.boot = Some(boot);
                return self.fail(why);
            }
        }
        let at_once = !boot.services;
        self.boot = Some(boot);
        if at_once { self.start_command() } else { Ok(()) }
    }

    fn opened(&mut self, stream: u32, purpose: Purpose) -> Result<(), AgentError> {
        if self.boot.is_none() {
            return Err(AgentError::Unexpected("a stream before what the guest is to be"));
        }
        match purpose {
            Purpose::Entrances {} => self.open_entrances(stream),
            Purpose::Frontend { order, entrances } => self.open_frontend(stream, order, entrances),
            Purpose::Exec { options } => self.start_exec(stream, options),
            Purpose::Control {} | Purpose::Output {} => {
                Err(AgentError::Unexpected("a stream that an agent opens"))
            }
        }
    }

    fn data(&mut self, stream: u32, bytes: Vec<u8>, end: Option<wire::guest::End>) -> Result<(), AgentError> {
        if self.relays.contains_key(&stream) {
            return self.relay_data(stream, bytes, end);
        }
        if end.is_some() {
            return Err(AgentError::Unexpected("an end of a channel to a process"));
        }
        self.process_data(stream, bytes)
    }

    fn closed(&mut self, stream: u32) -> Result<(), AgentError> {
        if self.relays.contains_key(&stream) {
            return self.relay_closed(stream);
        }
        self.process_closed(stream)
    }

    /// Waits for all children that have ended: ours, and orphans that became ours.
    fn reap(&mut self) -> Result<(), AgentError> {
        while self.signals.take().map_err(own("hear of its children"))?.is_some() {}
        loop {
            let (pid, status) = match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(ended)) => ended,
                Ok(None) | Err(Errno::CHILD) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(own("wait for its children")(errno)),
            };
            let ending = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ending::Code(code),
                (None, Some(signal)) => Ending::Signal(signal),
                // It was stopped, or goes on.
                (None, None) => continue,
            };
            if let Some(process) = self.processes.values_mut().find(|process| process.pid() == pid) {
                process.reaped(ending);
            } else {
                self.frontend_ended(pid, ending)?;
            }
        }
    }

    /// A process of the guest, as a member of the domain or for the node.
    pub fn spawn(
        &mut self,
        stream: u32,
        request: &crate::enter::Request,
        input: Input,
    ) -> Result<(), std::io::Error> {
        let process = Process::spawn(&self.config.program, request, input)?;
        self.processes.insert(stream, process);
        Ok(())
    }
}

fn hear_of_devices() -> std::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(KOBJECT_UEVENT);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    Ok(socket)
}

/// How often the kernel has killed for want of memory; 0 where it does not count.
fn killed_for_memory() -> u64 {
    let counters = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = counters.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
