//! The node's side of an agent under test.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use streams::{Heard, Side, Streams};
use wire::guest::{Boot, Decoder, ExecOptions, Message, Purpose, VERSION};

/// How long the agent may take for an answer. It takes some ms; this is for a machine that has much
/// else to do.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An agent, its guest, and the other side of its port.
pub struct Node {
    agent: Child,
    port: UnixStream,
    decoder: Decoder,
    streams: Streams,
    /// Messages that came and were not asked for yet.
    heard: VecDeque<Heard>,
    folder: tempfile::TempDir,
}

/// A guest that runs `command` at once.
pub fn boot(command: &[&str]) -> Boot {
    Boot {
        version: VERSION,
        dc: "shop".into(),
        domain: "edge".into(),
        hostname: "edge".into(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        environment: vec![("COLOUR".into(), "blue".into())],
        user: None,
        workdir: None,
        services: false,
        resolv_conf: None,
        stub: false,
        resolve: false,
        network: None,
        root: None,
    }
}

impl Node {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["srv", "pci/devices"] {
            std::fs::create_dir_all(folder.path().join(name)).expect("a folder");
        }
        let (port, theirs) = UnixStream::pair().expect("a socket pair");
        port.set_read_timeout(Some(TIMEOUT)).expect("a time-out");
        let agent = Command::new(env!("CARGO_BIN_EXE_agent-roles"))
            .arg("agent")
            .arg(folder.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("an agent");
        let (decoder, streams) = (Decoder::default(), Streams::new(Side::Node));
        Self { agent, port, decoder, streams, heard: VecDeque::new(), folder }
    }

    /// One that was told what to be.
    pub fn booted(boot: Boot) -> Self {
        let mut node = Self::start();
        assert!(matches!(node.next(), Message::Hello(_)));
        node.say(&Message::Boot(Box::new(boot)));
        node
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the members' socket appears.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("run/control.sock")
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.port.write_all(bytes).expect("the agent reads");
    }

    pub fn say(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.write(&bytes);
    }

    /// The next that comes, whatever it is.
    pub fn heard(&mut self) -> Heard {
        loop {
            if let Some(heard) = self.heard.pop_front() {
                return heard;
            }
            let mut bytes = [0; 4096];
            let length = self.port.read(&mut bytes).expect("the agent says something");
            assert!(length > 0, "the agent hung up");
            let mut rest = &bytes[..length];
            while let Some(frame) = self.decoder.next(&mut rest).expect("a frame") {
                let message = Message::read(frame).expect("a message");
                match self.streams.hear(message).expect("no broken rule") {
                    Heard::Nothing | Heard::Room { .. } | Heard::Late(_) => {}
                    heard => self.heard.push_back(heard),
                }
            }
        }
    }

    /// The next message of the link.
    pub fn next(&mut self) -> Message {
        match self.heard() {
            Heard::Other(message) => message,
            other => panic!("{other:?} is no message of the link"),
        }
    }

    /// The next that `wanted` takes; all else waits for its turn.
    pub fn find<T>(&mut self, mut wanted: impl FnMut(&Heard) -> Option<T>) -> T {
        let mut passed = VecDeque::new();
        loop {
            let heard = self.heard();
            if let Some(found) = wanted(&heard) {
                passed.append(&mut self.heard);
                self.heard = passed;
                return found;
            }
            passed.push_back(heard);
        }
    }

    /// The next message of a stream; what is given back of its window is given back.
    pub fn data(&mut self, stream: u32) -> Vec<u8> {
        let bytes = self.find(|heard| match heard {
            Heard::Data { stream: of, bytes, .. } if *of == stream => Some(bytes.clone()),
            Heard::Closed { stream: of, close } if *of == stream => panic!("closed: {close:?}"),
            _ => None,
        });
        if let Some(credit) = self.streams.consumed(stream, bytes.len()) {
            self.say(&credit);
        }
        bytes
    }

    /// The next stream that the agent opens for this.
    pub fn opened(&mut self, wanted: &Purpose) -> u32 {
        self.find(|heard| match heard {
            Heard::Opened { stream, purpose } if purpose == wanted => Some(*stream),
            _ => None,
        })
    }

    pub fn open(&mut self, purpose: Purpose) -> u32 {
        let (stream, open) = self.streams.open(purpose).expect("room for a stream");
        self.say(&open);
        stream
    }

    pub fn exec(&mut self, options: ExecOptions) -> u32 {
        self.open(Purpose::Exec { options })
    }

    /// Sends on a stream, as soon as there is room.
    pub fn send(&mut self, stream: u32, bytes: &[u8]) {
        let data = self.streams.send(stream, bytes.to_vec()).expect("room");
        self.say(&data);
    }

    pub fn room(&self, stream: u32) -> Option<usize> {
        self.streams.room(stream)
    }

    pub fn send_end(&mut self, stream: u32, end: wire::guest::End, bytes: &[u8]) {
        for message in self.streams.send_end(stream, end, bytes.to_vec()).expect("room") {
            self.say(&message);
        }
    }

    pub fn close(&mut self, stream: u32) {
        let close = self.streams.close(stream, wire::guest::Close::default()).expect("an open stream");
        self.say(&close);
    }

    /// Answers the end of a stream, if the agent is still there.
    pub fn answer_close(&mut self, stream: u32) {
        let close = self.streams.close(stream, wire::guest::Close::default()).expect("an open stream");
        let mut bytes = Vec::new();
        close.encode(&mut bytes);
        match self.port.write_all(&bytes) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => panic!("{error}"),
            _ => {}
        }
    }

    pub fn closed(&mut self, stream: u32) {
        self.find(|heard| matches!(heard, Heard::Closed { stream: of, .. } if *of == stream).then_some(()));
        if let Some(close) = self.streams.close(stream, wire::guest::Close::default()) {
            self.say(&close);
        }
    }

    /// Waits for the agent's end.
    pub fn ended(mut self) -> ExitStatus {
        self.agent.wait().expect("its end")
    }

    /// Waits for its end, and says what it said.
    pub fn last_words(&mut self) -> (ExitStatus, String) {
        let mut said = String::new();
        let errors = self.agent.stderr.as_mut().expect("a standard error");
        errors.read_to_string(&mut said).expect("text");
        (self.agent.wait().expect("its end"), said)
    }

    /// Closes the port, and waits for what comes of it.
    pub fn hung_up(mut self) -> (ExitStatus, String) {
        assert!(matches!(self.next(), Message::Hello(_)));
        self.port.shutdown(Shutdown::Both).expect("closed");
        self.last_words()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended.
        let _gone = self.agent.kill();
        let _reaped = self.agent.wait();
    }
}
