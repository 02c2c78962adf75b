//! The domain's command, and further processes.

use crate::agent::{Agent, LAST_TIMEOUT};
use crate::enter::Request;
use crate::error::AgentError;
use crate::process::Input;
use std::time::Instant;
use wire::guest::{Close, Ending, Event, ExecEnd, ExecOptions, Message, Purpose, exec};

/// Room that a message needs for its tag and something behind it.
const LEAST_BYTES: usize = 2;

impl Agent {
    /// Starts the domain's command, now that everything is there that it waits for.
    pub fn start_command(&mut self) -> Result<(), AgentError> {
        if self.stopping || self.is_leaving() || self.command.is_some() {
            return Ok(());
        }
        let Some(boot) = &self.boot else { return Ok(()) };
        if boot.command.is_empty() {
            return self.tell_started();
        }
        let request = Request {
            root: self.root.clone(),
            user: boot.user.clone(),
            workdir: boot.workdir.clone(),
            environment: boot.environment.clone(),
            command: boot.command.clone(),
            tty: false,
        };
        let (stream, open) = match self.streams.open(Purpose::Output {}) {
            Ok(opened) => opened,
            Err(full) => return self.fail(format!("the command has no way for its output: {full}")),
        };
        self.say(&open)?;
        match self.spawn(stream, &request, Input::None) {
            Ok(()) => {
                self.command = Some(stream);
                Ok(())
            }
            Err(error) => self.fail(format!("the command can't be started: {error}")),
        }
    }

    fn tell_started(&mut self) -> Result<(), AgentError> {
        if std::mem::replace(&mut self.started, true) {
            return Ok(());
        }
        self.say(&Message::Event(Event::Started {}))
    }

    /// Starts a further process.
    pub fn start_exec(&mut self, stream: u32, options: ExecOptions) -> Result<(), AgentError> {
        let Some(boot) = &self.boot else { return Ok(()) };
        let mut environment = boot.environment.clone();
        environment.extend(options.environment);
        let request = Request {
            root: self.root.clone(),
            user: options.user.or_else(|| boot.user.clone()),
            workdir: options.workdir.or_else(|| boot.workdir.clone()),
            environment,
            command: options.command,
            tty: options.tty,
        };
        let input = match (options.tty, options.interactive) {
            (true, _) => Input::Terminal,
            (false, true) => Input::Stream,
            (false, false) => Input::None,
        };
        if self.stopping || self.is_leaving() {
            let error = "the guest is being switched off".to_owned();
            return self.end_exec(stream, ExecEnd::Failed { error, code: 125 });
        }
        match self.spawn(stream, &request, input) {
            Ok(()) => Ok(()),
            Err(error) => {
                let error = format!("no process can be started in the guest: {error}");
                self.end_exec(stream, ExecEnd::Failed { error, code: 125 })
            }
        }
    }

    fn end_exec(&mut self, stream: u32, end: ExecEnd) -> Result<(), AgentError> {
        let mut message = vec![exec::ENDED];
        message.extend(serde_json::to_vec(&end).unwrap_or_default());
        self.send(stream, message)?;
        self.close_stream(stream)
    }

    fn close_stream(&mut self, stream: u32) -> Result<(), AgentError> {
        match self.streams.close(stream, Close::default()) {
            Some(close) => self.say(&close),
            None => Ok(()),
        }
    }

    /// Whether something may be taken of a process's output.
    pub fn may_read(&self, stream: u32) -> bool {
        self.port_wants_more() && self.streams.room(stream).is_some_and(|room| room >= LEAST_BYTES)
    }

    /// It is known whether a process runs.
    pub fn word_ready(&mut self, stream: u32) -> Result<(), AgentError> {
        let runs = self.processes.get_mut(&stream).is_some_and(|process| process.hear_word());
        if runs && self.command == Some(stream) { self.tell_started() } else { Ok(()) }
    }

    /// Passes on a piece of an output, if there is one and it is taken: whether there was.
    pub fn read_output(&mut self, stream: u32, which: usize) -> Result<bool, AgentError> {
        let room = self.streams.room(stream).unwrap_or(0);
        if !self.may_read(stream) {
            return Ok(false);
        }
        let message = self.processes.get_mut(&stream).and_then(|process| process.read(which, room));
        message.map_or(Ok(false), |message| self.send(stream, message).map(|()| true))
    }

    pub fn write_input(&mut self, stream: u32) -> Result<(), AgentError> {
        let consumed = self.processes.get_mut(&stream).map(|process| process.write()).unwrap_or_default();
        consumed.into_iter().try_for_each(|length| self.consumed(stream, length))
    }

    /// The node says something to a process.
    pub fn process_data(&mut self, stream: u32, message: Vec<u8>) -> Result<(), AgentError> {
        let length = message.len();
        let is_command = self.command == Some(stream);
        let Some(process) = self.processes.get_mut(&stream).filter(|_| !is_command) else {
            return Err(AgentError::Unexpected("data to the output of the command, or to nobody"));
        };
        if message.first() == Some(&exec::STDIN) {
            process.put(message);
            return self.write_input(stream);
        }
        if !process.control(&message) {
            return Err(AgentError::Unexpected("a message to a process that means nothing"));
        }
        self.consumed(stream, length)
    }

    /// The node has closed the stream of a process: of a further one, nobody waits for it any more.
    /// That of a command which has ended was closed from here before.
    pub fn process_closed(&mut self, stream: u32) -> Result<(), AgentError> {
        if self.command == Some(stream) && self.processes.contains_key(&stream) {
            return Err(AgentError::Unexpected("the end of the command's output"));
        }
        if let Some(process) = self.processes.get_mut(&stream) {
            process.kill();
            process.outputs = [None, None];
        }
        self.close_stream(stream)
    }

    /// Sees to processes that have ended: takes what is left of their output, as far as there is
    /// room, and tells.
    pub fn settle_processes(&mut self) -> Result<(), AgentError> {
        let ended: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, process)| process.has_ended())
            .map(|(stream, _)| *stream)
            .collect();
        ended.into_iter().try_for_each(|stream| self.settle(stream))
    }

    fn settle(&mut self, stream: u32) -> Result<(), AgentError> {
        for which in 0..2 {
            while self.read_output(stream, which)? {}
        }
        let waits = self.may_read(stream);
        if let Some(process) = self.processes.get_mut(&stream)
            && waits
            && process.left_until().is_some_and(|until| until <= Instant::now())
        {
            process.outputs = [None, None];
        }
        let Some(end) = self.processes.get(&stream).and_then(|process| process.outcome()) else {
            return self.lose_patience(stream);
        };
        if self.command == Some(stream) {
            self.processes.remove(&stream);
            self.close_stream(stream)?;
            return match end {
                ExecEnd::Ended(ending) => self.finish(ending),
                ExecEnd::Failed { error, .. } => self.fail(format!("the command: {error}")),
            };
        }
        let length = serde_json::to_vec(&end).unwrap_or_default().len() + 1;
        match self.streams.room(stream) {
            Some(room) if room < length => return Ok(()),
            _ => {}
        }
        self.processes.remove(&stream);
        self.end_exec(stream, end)
    }

    /// The last words of the command that the node does not take are lost in the end.
    fn lose_patience(&mut self, stream: u32) -> Result<(), AgentError> {
        if self.command != Some(stream) {
            return Ok(());
        }
        let deadline = *self.last_words.get_or_insert(Instant::now() + LAST_TIMEOUT);
        if Instant::now() >= deadline
            && let Some(process) = self.processes.get_mut(&stream)
        {
            process.outputs = [None, None];
            return self.settle(stream);
        }
        Ok(())
    }

    /// Ends the command; then the guest is switched off.
    pub fn shut_down(&mut self, signal: i32) -> Result<(), AgentError> {
        self.stopping = true;
        match self.command.and_then(|stream| self.processes.get(&stream)) {
            Some(command) => {
                command.signal(signal);
                Ok(())
            }
            // There is none, or it has not begun: nothing to wait for.
            None if self.is_leaving() => Ok(()),
            None => self.finish(Ending::Code(0)),
        }
    }
}
