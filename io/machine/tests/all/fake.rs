//! A QEMU that is none: it says what its part of a play says, at its monitor and at the guest's
//! port.

use rustix::io::Errno;
use std::io::Write;
use std::os::fd::OwnedFd;
use streams::{Heard, Side, Streams};
use wire::guest::{Decoder, Ending, Event, Exited, Hello, Message, Purpose, exec, output};

/// As QEMU greets.
fn greeting(major: u32) -> String {
    format!(
        "{{\"QMP\": {{\"version\": {{\"qemu\": {{\"micro\": 0, \"minor\": 2, \"major\": {major}}}}}, \"capabilities\": []}}}}\n"
    )
}

const DONE: &str = "{\"return\": {}}\n";

/// The descriptor that the command line names behind `before`.
fn inherited(line: &str, before: &str) -> OwnedFd {
    let behind = line.split_once(before).unwrap().1;
    let number: String = behind.chars().take_while(char::is_ascii_digit).collect();
    let own = sys::process::pidfd_open(std::process::id()).unwrap();
    sys::process::pidfd_getfd(own, number.parse().unwrap()).unwrap()
}

fn say(to: &OwnedFd, text: &str) {
    rustix::io::write(to, text.as_bytes()).unwrap();
}

/// Waits for the end of whoever started us: the machine kills us.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::park();
    }
}

/// Answers whatever is asked, and takes every descriptor as QEMU does.
fn answer_all(monitor: &OwnedFd, mut event: impl FnMut(&str) -> Option<&'static str>) {
    let mut bytes = [0; 8192];
    loop {
        let Ok((length, descriptors)) = sys::descriptors::receive_with_descriptors(monitor, &mut bytes, 1)
        else {
            return;
        };
        if length == 0 {
            return;
        }
        let asked = String::from_utf8_lossy(&bytes[..length]).into_owned();
        for conversation in descriptors {
            std::thread::spawn(move || take_all(&conversation));
        }
        say(monitor, DONE);
        if let Some(event) = event(&asked) {
            say(monitor, event);
        }
    }
}

fn take_all(conversation: &OwnedFd) {
    let mut kept = Vec::new();
    while let Ok((8, descriptors)) = sys::descriptors::receive_with_descriptors(conversation, &mut [0; 8], 1)
    {
        kept.extend(descriptors);
    }
}

/// The agent of a guest that is not there.
struct Agent {
    port: OwnedFd,
    decoder: Decoder,
    streams: Streams,
    unread: Vec<u8>,
}

impl Agent {
    fn new(line: &str) -> Self {
        let port = inherited(line, "socket,id=agent,fd=");
        Self { port, decoder: Decoder::default(), streams: Streams::new(Side::Agent), unread: Vec::new() }
    }

    fn say(&self, message: &Message) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(&self.port, rest) {
                Ok(written) => rest = &rest[written..],
                // The machine has ended.
                Err(Errno::PIPE | Errno::CONNRESET) => return,
                Err(errno) => panic!("{errno}"),
            }
        }
    }

    fn hello(&self, interrupts: bool) {
        let (program, kernel) = ("0.1.0".to_owned(), "6.1".to_owned());
        self.say(&Message::Hello(Hello { version: wire::guest::VERSION, program, kernel, interrupts }));
    }

    /// The next message; none: the machine has ended.
    fn next(&mut self) -> Option<Heard> {
        loop {
            let mut unread = self.unread.as_slice();
            let frame = self.decoder.next(&mut unread).unwrap();
            self.unread = unread.to_vec();
            if let Some(frame) = frame {
                let message = Message::read(frame).unwrap();
                if let Message::Ping(bytes) = message {
                    self.say(&Message::Pong(bytes));
                    continue;
                }
                return Some(self.streams.hear(message).unwrap());
            }
            let mut bytes = [0; 65536];
            match rustix::io::read(&self.port, &mut bytes[..]) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.unread = bytes[..read].to_vec(),
            }
        }
    }

    fn until(&mut self, what: impl Fn(&Message) -> bool) -> Message {
        loop {
            match self.next() {
                Some(Heard::Other(message)) if what(&message) => return message,
                Some(_) => {}
                None => wait_for_the_end(),
            }
        }
    }

    fn open(&mut self, purpose: Purpose) -> u32 {
        let (stream, message) = self.streams.open(purpose).unwrap();
        self.say(&message);
        stream
    }

    fn send(&mut self, stream: u32, bytes: &[u8]) {
        let message = self.streams.send(stream, bytes.to_vec()).unwrap();
        self.say(&message);
    }

    fn exited(&self, ending: Ending, out_of_memory: bool) {
        self.say(&Message::Event(Event::Exited(Exited { ending, out_of_memory })));
    }
}

fn off(monitor: &OwnedFd, reason: &str) -> ! {
    say(
        monitor,
        &format!("{{\"event\": \"SHUTDOWN\", \"data\": {{\"guest\": true, \"reason\": \"{reason}\"}}}}\n"),
    );
    std::process::exit(0);
}

#[test]
#[ignore = "the other process of these tests, as QEMU"]
fn qemu() {
    let (part, line) = (std::env::var("FAKE_PART").unwrap(), std::env::var("FAKE_LINE").unwrap());
    let monitor = inherited(&line, "socket,id=qmp,fd=");
    match part.as_str() {
        "mute" => wait_for_the_end(),
        "old" => say(&monitor, &greeting(5)),
        "nonsense" => say(&monitor, "what?\n"),
        "silent-monitor" => say(&monitor, &greeting(7)),
        "dies" => {
            say(&monitor, &greeting(7));
            std::io::stderr().write_all(b"something is terribly wrong\n").unwrap();
            std::process::exit(7);
        }
        "killed" => {
            say(&monitor, &greeting(7));
            sys::process::kill(std::process::id(), rustix::process::Signal::KILL).unwrap();
        }
        "closes-its-monitor" => {
            say(&monitor, &greeting(7));
            rustix::net::shutdown(&monitor, rustix::net::Shutdown::Both).unwrap();
        }
        _ => {
            say(&monitor, &greeting(7));
            let copy = monitor.try_clone().unwrap();
            std::thread::spawn(move || {
                answer_all(&copy, |asked| {
                    let id =
                        asked.split("\"id\":\"channel").nth(1).filter(|_| asked.contains("device_del"))?;
                    assert!(id.starts_with('1'), "{asked}");
                    Some("{\"event\": \"DEVICE_DELETED\", \"data\": {\"device\": \"channel1\"}}\n")
                });
            });
            guest(&part, &line, &monitor);
        }
    }
    wait_for_the_end();
}

fn guest(part: &str, line: &str, monitor: &OwnedFd) {
    let mut agent = Agent::new(line);
    match part {
        "says-nothing" => wait_for_the_end(),
        "babbles" => {
            rustix::io::write(&agent.port, &[0xff; 40]).unwrap();
            wait_for_the_end();
        }
        "resets" => {
            let console = inherited(line, "socket,id=console,fd=");
            say(&console, "[ 1.0] one\r\n[ 1.1] the last line\r\n");
            off(monitor, "guest-reset");
        }
        "panics" => {
            let console = inherited(line, "socket,id=console,fd=");
            say(&console, "[ 1.0] Kernel panic - not syncing: Attempted to kill init!\n[ 1.1] CPU: 0\n");
            say(monitor, "{\"event\": \"GUEST_PANICKED\", \"data\": {\"action\": \"pause\"}}\n");
            off(monitor, "guest-panic");
        }
        _ => {}
    }
    agent.hello(part != "rings-by-frames");
    agent.until(|message| matches!(message, Message::Boot(boot) if boot.domain == "edge"));
    match part {
        "stops-answering" => wait_for_the_end(),
        "closes-its-port" => {
            say(monitor, "{\"event\": \"VSERPORT_CHANGE\", \"data\": {\"open\": false, \"id\": \"port\"}}\n");
            wait_for_the_end();
        }
        "releases-what-it-has-not" => agent.say(&Message::Release { channel: 5 }),
        "fails" => {
            agent.say(&Message::Event(Event::Failed { message: "there is no user \u{1b}[31mnobody".into() }));
            off(monitor, "guest-shutdown");
        }
        "exits" => {
            let stream = agent.open(Purpose::Output {});
            agent.say(&Message::Event(Event::Started {}));
            agent.send(stream, &[&[output::STDOUT], &b"to the output\n"[..]].concat());
            agent.send(stream, &[&[output::STDERR], &b"to the errors\n"[..]].concat());
            agent.exited(Ending::Code(3), false);
            off(monitor, "guest-shutdown");
        }
        "is-out-of-memory" => {
            agent.exited(Ending::Signal(9), true);
            off(monitor, "guest-shutdown");
        }
        "does-not-switch-off" => agent.exited(Ending::Code(4), false),
        "stops" => {
            note();
            agent.until(|message| matches!(message, Message::Shutdown(said) if said.signal == 15));
            agent.exited(Ending::Signal(15), false);
            off(monitor, "guest-shutdown");
        }
        "does-not-stop" => note(),
        _ => be_a_guest(&mut agent, monitor),
    }
    wait_for_the_end();
}

/// Lets the test know that the guest has come this far.
fn note() {
    std::fs::write(std::env::var("FAKE_NOTES").unwrap(), "").unwrap();
}

/// A guest with one program that is connected to its control socket, and connects again when that
/// closes. It notes what it hears in its output, gives up channels whose peer is gone, and answers
/// what is executed.
fn be_a_guest(agent: &mut Agent, monitor: &OwnedFd) {
    let output = agent.open(Purpose::Output {});
    agent.say(&Message::Event(Event::Started {}));
    let mut member = agent.open(Purpose::Control {});
    let about = br#"{"op":"about","id":1}"#;
    agent.send(member, about);
    agent.send(member, br#"{"op":"machine","id":2,"accel":"kvm","qemu":"9"}"#);
    while let Some(heard) = agent.next() {
        let line = match heard {
            Heard::Opened { stream, purpose: Purpose::Exec { options } } => {
                execute(agent, stream, &options.command, monitor);
                format!("executed {:?}", options.command)
            }
            Heard::Opened { purpose: Purpose::Entrances {}, .. } => "entrances".to_owned(),
            Heard::Opened { stream, purpose: Purpose::Frontend { order, entrances } } => {
                agent.say(&Message::Event(Event::Frontend { up: true, message: None }));
                agent.send(stream, b"{\"op\":\"services\",\"id\":7}");
                format!("frontend {order} {}", entrances < stream)
            }
            Heard::Opened { purpose, .. } => panic!("{purpose:?}"),
            Heard::Data { stream, bytes, end } => {
                let message = agent.streams.consumed(stream, bytes.len());
                message.iter().for_each(|message| agent.say(message));
                if stream == member {
                    agent.send(member, br#"{"op":"state","id":0,"state":null}"#);
                }
                let end = end
                    .map(|end| format!(" with channel {} at {} side {}", end.channel, end.device, end.side));
                format!("data {}{}", String::from_utf8_lossy(&bytes), end.unwrap_or_default())
            }
            Heard::Closed { stream, .. } => {
                let message = agent.streams.close(stream, wire::guest::Close::default());
                message.iter().for_each(|message| agent.say(message));
                if stream != member {
                    continue;
                }
                member = agent.open(Purpose::Control {});
                agent.send(member, about);
                "the control socket was closed".to_owned()
            }
            Heard::Other(Message::Hangup { channel }) => {
                agent.say(&Message::Release { channel });
                format!("hangup {channel}")
            }
            Heard::Other(other) => format!("{other:?}"),
            Heard::Room { .. } | Heard::Late(_) | Heard::Nothing => continue,
        };
        let text = [&[output::STDOUT], line.as_bytes(), b"\n"].concat();
        agent.send(output, &text);
    }
}

fn execute(agent: &mut Agent, stream: u32, command: &[String], monitor: &OwnedFd) {
    if command == ["poweroff"] {
        agent.exited(Ending::Code(0), false);
        off(monitor, "guest-shutdown");
    }
    agent.send(stream, &[&[exec::STDOUT], command.join(" ").as_bytes()].concat());
    agent.send(stream, &[&[exec::ENDED], &b"{\"code\":5}"[..]].concat());
    let message = agent.streams.close(stream, wire::guest::Close::default());
    message.iter().for_each(|message| agent.say(message));
}
