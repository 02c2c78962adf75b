//! The frontend in the guest: its mount, its entrances, and who takes its place when it dies.

use crate::agent::Agent;
use crate::error::AgentError;
use crate::relay::Relay;
use crate::{Config, entrances, setup};
use frontend::{Entrances, Handed, LaunchOrder, MountOptions};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use wire::guest::{Boot, Close, Ending, Event, Message};

/// The descriptors that the agent holds so that a frontend can be replaced under open files.
#[derive(Debug)]
struct Held {
    fuse: OwnedFd,
    ledger: OwnedFd,
    entrances: Entrances,
}

/// The frontend that runs.
#[derive(Debug, Clone, Copy)]
struct Running {
    pid: Pid,
    stream: u32,
    entrances: u32,
}

/// Everything about the services of the guest.
#[derive(Debug, Default)]
pub(crate) struct Services {
    held: Option<Held>,
    running: Option<Running>,
    /// Whether there was one that showed something.
    up: bool,
    /// The frontend that the node was told of.
    told: Option<Pid>,
    /// Sides of private sockets of entrances whose frontend was not opened yet, by their streams;
    /// one at a time.
    unclaimed: BTreeMap<u32, OwnedFd>,
}

impl Agent {
    /// The private socket of the entrances of the frontend that comes next.
    pub fn open_entrances(&mut self, stream: u32) -> Result<(), AgentError> {
        if !self.services.unclaimed.is_empty() {
            return Err(AgentError::Unexpected("entrances twice, and no frontend"));
        }
        match pair() {
            Ok((ours, theirs)) => {
                self.relays.insert(stream, Relay::new(ours));
                self.services.unclaimed.insert(stream, theirs);
                Ok(())
            }
            Err(error) => self.refuse_stream(stream, &error),
        }
    }

    /// A frontend is to run, in the place of one that may be there.
    pub fn open_frontend(
        &mut self,
        stream: u32,
        order: serde_json::Value,
        entrances: u32,
    ) -> Result<(), AgentError> {
        let Some(theirs) = self.services.unclaimed.remove(&entrances) else {
            return Err(AgentError::Unexpected("a frontend without its entrances"));
        };
        self.end_frontend()?;
        if !self.make_mount()? {
            return Ok(());
        }
        match self.launch(stream, order, entrances, &theirs) {
            Ok(()) => Ok(()),
            Err(why) => {
                self.end_relay(entrances, closed(&why))?;
                self.refuse_stream(stream, &why)?;
                self.tell_frontend_gone(why)
            }
        }
    }

    fn refuse_stream(&mut self, stream: u32, why: &str) -> Result<(), AgentError> {
        match self.streams.close(stream, closed(why)) {
            Some(close) => self.say(&close),
            None => Ok(()),
        }
    }

    /// Sees to it that there is a mount to serve. If there can't be one, the guest can't be what it
    /// is to be.
    fn make_mount(&mut self) -> Result<bool, AgentError> {
        if self.services.held.is_some() {
            return Ok(true);
        }
        let Some(boot) = &self.boot else { return Ok(false) };
        match hold(&self.config, boot, self.root.as_deref()) {
            Ok(held) => {
                self.services.held = Some(held);
                Ok(true)
            }
            Err(why) => self.fail(why).map(|()| false),
        }
    }

    fn launch(
        &mut self,
        stream: u32,
        order: serde_json::Value,
        entrances: u32,
        entrance_control: &OwnedFd,
    ) -> Result<(), String> {
        let mut order: LaunchOrder = serde_json::from_value(order)
            .map_err(|error| format!("the frontend's order is not understood: {error}"))?;
        let Some(held) = &self.services.held else { return Err("there is no mount to serve".into()) };
        let (ours, theirs) = pair()?;
        order.successor = self.services.up;
        let program = &self.config.program;
        let child = Command::new(program)
            .args(["frontend", &format!("{}/{}", order.dc, order.domain)])
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .current_dir("/")
            .spawn()
            .map_err(|error| format!("can't start {} as a frontend: {error}", program.display()))?;
        let number = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = number.ok_or("the frontend has no number")?;
        self.services.running = Some(Running { pid, stream, entrances });
        forget_protection(pid);
        let handed = Handed {
            fuse: held.fuse.as_fd(),
            ledger: held.ledger.as_fd(),
            entrance_control: entrance_control.as_fd(),
            entrances: &held.entrances,
            // A guest does not move, and its node does not hear of its files.
            handover: None,
        };
        frontend::send_launch(&ours, order, handed)
            .map_err(|error| format!("the frontend did not take its order: {error}"))?;
        self.relays.insert(stream, Relay::new(ours));
        Ok(())
    }

    /// Ends the frontend that runs, because another one takes its place.
    fn end_frontend(&mut self) -> Result<(), AgentError> {
        let Some(running) = self.services.running.take() else { return Ok(()) };
        // It is reaped as one that nobody knows any more. It may be gone already.
        let _gone = rustix::process::kill_process(running.pid, Signal::KILL);
        self.end_relay(running.stream, Close::default())?;
        self.end_relay(running.entrances, Close::default())
    }

    /// A child has ended that is no command: the frontend, or an orphan that became ours.
    pub fn frontend_ended(&mut self, pid: Pid, ending: Ending) -> Result<(), AgentError> {
        let Some(running) = self.services.running.filter(|running| running.pid == pid) else { return Ok(()) };
        self.services.running = None;
        self.end_relay(running.stream, Close::default())?;
        self.end_relay(running.entrances, Close::default())?;
        self.tell_frontend_gone(match ending {
            Ending::Code(code) => format!("it exited with code {code}"),
            Ending::Signal(signal) => format!("signal {signal} ended it"),
        })
    }

    fn tell_frontend_gone(&mut self, why: String) -> Result<(), AgentError> {
        tracing::warn!(why, "the frontend is gone");
        self.say(&Message::Event(Event::Frontend { up: false, message: Some(why) }))
    }

    /// A packet of the node's reached somebody. The first that reaches a frontend tells it what to
    /// show.
    pub fn passed_on(&mut self, stream: u32) -> Result<(), AgentError> {
        let Some(running) = self.services.running.filter(|running| running.stream == stream) else {
            return Ok(());
        };
        if self.services.told == Some(running.pid) {
            return Ok(());
        }
        self.services.told = Some(running.pid);
        let first = !std::mem::replace(&mut self.services.up, true);
        self.say(&Message::Event(Event::Frontend { up: true, message: None }))?;
        let waits = self.boot.as_ref().is_some_and(|boot| boot.services);
        if first && waits { self.start_command() } else { Ok(()) }
    }
}

/// The agent is the last that the kernel kills for want of memory; a frontend can be replaced.
fn forget_protection(pid: Pid) {
    let place = format!("/proc/{}/oom_score_adj", pid.as_raw_nonzero());
    if let Err(error) = std::fs::write(place, "0") {
        tracing::debug!(%error, "the frontend keeps the agent's place among those that are killed for want of memory");
    }
}

fn closed(why: &str) -> Close {
    Close { errno: Errno::IO.raw_os_error(), message: why.to_owned() }
}

/// Our side of a private socket, non-blocking, and the frontend's.
fn pair() -> Result<(OwnedFd, OwnedFd), String> {
    let made = || {
        let (ours, theirs) = sys::descriptors::socket_pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((ours, theirs))
    };
    made().map_err(|error: std::io::Error| format!("no socket for the frontend: {error}"))
}

/// Makes the mount, the ledger and the entrances of the guest.
fn hold(config: &Config, boot: &Boot, root: Option<&Path>) -> Result<Held, String> {
    let fuse = frontend::open_device().map_err(|error| {
        format!(
            "can't open /dev/fuse in the guest, which /srv needs: {error}; its kernel needs the module `fuse`"
        )
    })?;
    let mount = frontend::mount_detached(&fuse, &MountOptions::default())
        .map_err(|error| format!("can't make the FUSE mount of the guest: {error}"))?;
    let place = &config.services;
    sys::mount::attach(&mount, place).map_err(|error| format!("can't mount {}: {error}", place.display()))?;
    if let Some(root) = root {
        let target = setup::inside(root, place);
        rustix::mount::mount_bind(place, &target)
            .map_err(|error| format!("can't bind on {}: {error}", target.display()))?;
    }
    let ledger = rustix::fs::memfd_create("tombolo-ledger", MemfdFlags::CLOEXEC)
        .map_err(|error| format!("no memory for the ledger of the frontend: {error}"))?;
    Ok(Held { fuse, ledger, entrances: entrances::make(config, boot)? })
}
