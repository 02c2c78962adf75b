//! An end of a channel as a device of the guest, from the packet that brings it to the port's being
//! free again.

use super::ear::{Ear, Voice};
use super::end::{EndParts, unblock};
use super::ivshmem::Server;
use super::table::Table;
use super::watch::Hush;
use super::{Done, Next, Step};
use crate::qemu::command_line::{device_place, port_name};
use qmp::Command;
use rustix::event::PollFlags;
use rustix::io::Errno;
use serde_json::json;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::doorbell::Heard;
use wire::guest::{End, Message, VECTOR_DATA, VECTOR_ROOM};

/// How long a guest may take to let go of a device before it is asked again, in ms: sooner QEMU
/// refuses.
const ASK_AGAIN_MS: u64 = 10_000;
/// How often QEMU is asked whether it has taken all descriptors, or heard all rings. It takes one
/// in each turn of its loop, of eight, and answers once in a turn or two.
const MAX_LOOKS: u32 = 100;
/// How long it has at least for taking them, in ms: where its answers come from another of its
/// threads, a hundred of them say nothing of its loop's turns.
const TAKE_MS: u64 = 2_000;
/// How often a guest is asked once more before others no longer wait for it.
const MAX_TIMEOUT: u32 = 2;
/// How often to look whether QEMU has let go of a region, in ms; it takes some 50.
const LOOK_MS: u64 = 5;
/// After which time that is not looked for any more, in ms.
const MAP_MS: u64 = 2_000;
/// The vectors of an end's two doorbells.
const VECTORS: [u8; 2] = [VECTOR_DATA, VECTOR_ROOM];

/// How the rings of the other end reach the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// The kernel passes on what this process lets it, or this process listens and rings doorbells
    /// of its own. It stops before the device goes: a ring in the moment in which the guest lets it
    /// go would have QEMU call a handler of a device that is no more.
    Doorbells,
    /// This process listens, and writes eventfds, as KVM wants them.
    Eventfds,
    /// This process listens, and says so to the agent.
    Frames,
}

/// A packet for a member, on hold until the channel that it carries is a device.
#[derive(Debug)]
pub(crate) struct Held {
    /// The member's stream.
    pub stream: u32,
    /// The packet.
    pub packet: Vec<u8>,
}

/// One doorbell of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bell {
    /// The port of the device.
    pub port: usize,
    /// *data* or *room*.
    pub which: usize,
}

#[derive(Debug)]
enum Stage {
    Plugging(Held),
    /// It is the guest's.
    There,
    /// The guest has given it up.
    GivenUp,
    /// It is being unplugged; asked at this time.
    Leaving(u64),
}

/// The resources that are only needed until QEMU has everything.
#[derive(Debug)]
struct Handover {
    /// A copy of QEMU's half of the conversation, in which nothing is left when it has taken all.
    qemus: OwnedFd,
    /// Copies of all halves that QEMU gets.
    halves: Vec<OwnedFd>,
    looks: u32,
    /// When it was first looked whether it has.
    since_ms: Option<u64>,
}

/// An end of a channel as a device.
#[derive(Debug)]
pub(crate) struct Device {
    port: usize,
    number: u32,
    side: u8,
    bytes: u64,
    stage: Stage,
    hearing: Hearing,
    ears: [Ear; 2],
    /// Open as long as the device lives.
    _server: Server,
    handover: Option<Handover>,
    /// Whether the guest was told that the peer is gone.
    hangup_told: bool,
    plugged: bool,
    deleted: bool,
    removed: bool,
    released: bool,
    /// The numbers under which QEMU listens for it, which it does not forget.
    numbers: Vec<u32>,
    /// How often the guest was asked once more to let go of it.
    asked: u32,
    /// The region's memfd, and how many maps of it QEMU had before the device was to go.
    inode: u64,
    maps: usize,
    /// How often QEMU was asked whether it has heard everything, and how often in a row it had.
    looks: u32,
    quiet: u32,
    /// The listeners of the kernel that have to end before the device goes, and when to look
    /// whether they have.
    hushes: Vec<Hush>,
    hush_ms: Option<u64>,
    /// When the device went, and when to look whether its map has gone as well.
    gone_ms: u64,
    look_ms: Option<u64>,
}

impl Device {
    pub fn new(
        port: usize,
        number: u32,
        held: Held,
        parts: EndParts,
        hearing: Hearing,
        by_watch: bool,
    ) -> Result<(Self, Command), (Held, String)> {
        let made = Self::prepare(parts, hearing, by_watch);
        match made {
            Ok((ears, server, handover, give, (side, bytes, inode))) => {
                let device = Self {
                    port,
                    number,
                    side,
                    bytes,
                    stage: Stage::Plugging(held),
                    hearing,
                    ears,
                    _server: server,
                    handover: Some(handover),
                    hangup_told: false,
                    plugged: false,
                    deleted: false,
                    removed: false,
                    released: false,
                    numbers: Vec::new(),
                    asked: 0,
                    inode,
                    maps: 0,
                    looks: 0,
                    quiet: 0,
                    hushes: Vec::new(),
                    hush_ms: None,
                    gone_ms: 0,
                    look_ms: None,
                };
                let command = Command::give(&device.socket_name(), give);
                Ok((device, command))
            }
            Err(error) => Err((held, format!("can't introduce a channel to QEMU: {error}"))),
        }
    }

    #[allow(clippy::type_complexity, reason = "the pieces of one device, for the function above alone")]
    fn prepare(
        parts: EndParts,
        hearing: Hearing,
        by_watch: bool,
    ) -> io::Result<([Ear; 2], Server, Handover, OwnedFd, (u8, u64, u64))> {
        let EndParts { side, region, bytes, hears: [data, room], rings: [ring_data, ring_room], sight } =
            parts;
        // Who waits for room has filled the ring: for that one there is time.
        let ears = [Ear::new(data, hearing, sight.filter(|_| by_watch))?, Ear::new(room, hearing, None)?];
        let heard =
            ears[0].voice.as_ref().zip(ears[1].voice.as_ref()).map(|(a, b)| [a.heard_at(), b.heard_at()]);
        let rings = [ring_data.as_fd(), ring_room.as_fd()];
        let (server, give) = Server::introduce(region.as_fd(), rings, heard)?;
        let mut halves = Vec::new();
        for half in rings.into_iter().chain(heard.into_iter().flatten()) {
            halves.push(half.try_clone_to_owned()?);
        }
        let handover = Handover { qemus: give.try_clone()?, halves, looks: 0, since_ms: None };
        let inode = rustix::fs::fstat(&region)?.st_ino;
        Ok((ears, server, handover, give, (side, bytes, inode)))
    }

    /// Name of the device, as QMP knows it.
    pub fn id(&self) -> String {
        format!("channel{}", self.number)
    }

    fn socket_name(&self) -> String {
        format!("socket{}", self.number)
    }

    fn backend_name(&self) -> String {
        format!("server{}", self.number)
    }

    /// Whether the guest has the channel of this number here.
    pub fn is_with_guest(&self, number: u32) -> bool {
        self.number == number && !self.released && !matches!(self.stage, Stage::Plugging(_))
    }

    /// Whether nothing is left of it.
    pub fn is_over(&self) -> bool {
        self.released && self.removed && (self.deleted || !self.plugged)
    }

    /// The numbers under which QEMU listened for it.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// Whether it is not with the guest yet.
    pub fn is_coming(&self) -> bool {
        matches!(self.stage, Stage::Plugging(_))
    }

    /// Whether it is gone, and what QEMU has kept of it has not been seen to yet.
    pub fn is_followed_up(&self) -> bool {
        self.deleted && !self.removed
    }

    /// Whether it is to be unplugged, and nobody has asked for that.
    pub fn is_given_up(&self) -> bool {
        matches!(self.stage, Stage::GivenUp)
    }

    /// Whether it is being unplugged, by a guest that does its part in time.
    pub fn is_going(&self) -> bool {
        self.plugged && !self.deleted && self.asked <= MAX_TIMEOUT && matches!(self.stage, Stage::Leaving(_))
    }

    pub fn answered(
        &mut self,
        step: Step,
        answer: Result<(), String>,
        table: &dyn Table,
        now_ms: u64,
    ) -> Next {
        match (step, answer) {
            (Step::Give, Ok(())) => Next::ask(Step::Backend, self.backend()),
            (Step::Backend, Ok(())) => Next::ask(Step::Plug, self.device()),
            (Step::Plug, Ok(())) => {
                self.plugged = true;
                Next::ask(Step::Taken, Command::plain("query-status"))
            }
            (Step::Taken, Ok(())) => self.look(now_ms),
            (Step::Settled, Ok(())) => self.settled(table, now_ms),
            (Step::Give | Step::Backend, Err(why)) => {
                self.removed = true;
                self.give_up(why, now_ms)
            }
            (Step::Plug | Step::Taken | Step::Settled, Err(why)) => self.give_up(why, now_ms),
            // That it is being unplugged already, for one: the event decides.
            (Step::Quiet, _) => self.hush(),
            (Step::Unplug | Step::Cover | Step::Chore, _) => Next::default(),
            (Step::Remove, _) => {
                self.removed = true;
                Next::default()
            }
        }
    }

    fn backend(&self) -> Command {
        let address = json!({ "type": "fd", "data": { "str": self.socket_name() } });
        let backend = json!({ "type": "socket", "data": { "addr": address, "server": false } });
        Command::with("chardev-add", json!({ "id": self.backend_name(), "backend": backend }))
    }

    fn device(&self) -> Command {
        let arguments = json!({
            "driver": "ivshmem-doorbell", "id": self.id(), "bus": port_name(self.port), "chardev": self.backend_name(),
            "vectors": VECTORS.len(), "ioeventfd": false,
        });
        Command::with("device_add", arguments)
    }

    fn unplug(&self) -> (Step, Command) {
        (Step::Unplug, Command::with("device_del", json!({ "id": self.id() })))
    }

    pub fn remove(&self) -> (Step, Command) {
        (Step::Remove, Command::with("chardev-remove", json!({ "id": self.backend_name() })))
    }

    /// Looks whether QEMU has taken all descriptors. As long as it has not, it is asked again: it
    /// takes some between two answers.
    fn look(&mut self, now_ms: u64) -> Next {
        let again = Command::plain("query-status");
        let Some(handover) = &mut self.handover else { return Next::default() };
        handover.looks = handover.looks.saturating_add(1);
        let since_ms = *handover.since_ms.get_or_insert(now_ms);
        let may_look = handover.looks < MAX_LOOKS || now_ms < since_ms.saturating_add(TAKE_MS);
        match rustix::io::ioctl_fionread(&handover.qemus) {
            Ok(0) => Next::ask(Step::Settled, again),
            Ok(_) if may_look => Next::ask(Step::Taken, again),
            Ok(_) => self.give_up("QEMU does not take its descriptors".to_owned(), now_ms),
            Err(errno) => {
                self.give_up(format!("can't see whether QEMU takes its descriptors: {errno}"), now_ms)
            }
        }
    }

    fn settled(&mut self, table: &dyn Table, now_ms: u64) -> Next {
        let Some(handover) = self.handover.take() else { return Next::default() };
        for ear in &self.ears {
            let Some(heard) = ear.handled() else { continue };
            match table.listeners(heard) {
                Ok(numbers) => self.numbers.extend(numbers),
                Err(error) => return self.give_up(format!("can't see QEMU's descriptors: {error}"), now_ms),
            }
        }
        if let Err(error) = unblock(&handover.halves) {
            return self.give_up(format!("can't keep a channel from blocking QEMU: {error}"), now_ms);
        }
        self.ears.iter_mut().for_each(Ear::open);
        match std::mem::replace(&mut self.stage, Stage::There) {
            Stage::Plugging(held) => {
                let end = End {
                    channel: self.number,
                    device: device_place(self.port),
                    side: self.side,
                    bytes: self.bytes,
                };
                Next::done(Done::Plugged(held, end))
            }
            other => {
                self.stage = other;
                Next::default()
            }
        }
    }

    /// Undoes what was begun.
    fn give_up(&mut self, why: String, now_ms: u64) -> Next {
        self.released = true;
        self.handover = None;
        let ask = match (self.plugged, self.removed) {
            (true, _) if !self.deleted => Some(self.unplug()),
            (_, false) => Some(self.remove()),
            _ => None,
        };
        let done = match std::mem::replace(&mut self.stage, Stage::Leaving(now_ms)) {
            Stage::Plugging(held) => Some(Done::NotPlugged(held, Errno::IO, why)),
            _ => None,
        };
        Next { ask, done }
    }

    /// The guest has given it up. From now on nothing is passed on.
    pub fn released(&mut self) {
        self.released = true;
        self.stage = Stage::GivenUp;
        self.silence();
    }

    fn silence(&mut self) {
        self.hushes.extend(self.ears.iter_mut().filter_map(Ear::close));
    }

    /// Whether the kernel passes its rings on.
    pub fn has_watch(&self) -> bool {
        self.ears.iter().any(|ear| matches!(ear.voice, Some(Voice::Watch(_))))
    }

    /// Begins to unplug what was given up: what to ask, if anything.
    pub fn go(&mut self, table: &dyn Table, now_ms: u64) -> Option<(Step, Command)> {
        self.maps = table.maps(self.inode);
        self.stage = Stage::Leaving(now_ms);
        self.looks = 0;
        self.hush_ms = Some(now_ms);
        self.hushed(now_ms)
    }

    /// Hears first what was passed on. But before, all that the kernel was about to pass on has to
    /// be there: if it is not, this is to be asked again soon.
    pub fn hushed(&mut self, now_ms: u64) -> Option<(Step, Command)> {
        self.hush_ms.filter(|at| *at <= now_ms)?;
        if self.hushes.iter().all(Hush::is_over) {
            self.hush_ms = None;
            return (!self.deleted).then(|| (Step::Quiet, Command::plain("query-status")));
        }
        self.hush_ms = Some(now_ms + LOOK_MS);
        None
    }

    /// Asks QEMU something until it has heard all that was passed on, and once more: its loop has
    /// turned by then, and calls no handler of a device that is about to go.
    fn hush(&mut self) -> Next {
        self.looks += 1;
        let quiet = self.ears.iter().all(|ear| ear.voice.as_ref().is_none_or(Voice::is_quiet));
        self.quiet = if quiet { self.quiet + 1 } else { 0 };
        if self.quiet > 1 || self.looks >= MAX_LOOKS {
            let (step, command) = self.unplug();
            return Next::ask(step, command);
        }
        Next::ask(Step::Quiet, Command::plain("query-status"))
    }

    /// The device is gone; also where the guest threw it out by itself. Whether that is news.
    pub fn deleted(&mut self, now_ms: u64) -> bool {
        self.gone_ms = now_ms;
        self.silence();
        !std::mem::replace(&mut self.deleted, true)
    }

    /// The device is gone: whether its map is, too, and with it QEMU's second close of the region.
    /// If not, to be asked again soon.
    pub fn is_unmapped(&mut self, table: &dyn Table, now_ms: u64) -> bool {
        let now = table.maps(self.inode);
        let gone = now == 0 || now < self.maps || now_ms >= self.gone_ms + MAP_MS;
        self.look_ms = (!gone).then_some(now_ms + LOOK_MS);
        gone
    }

    /// When to look for its map.
    pub fn look_at(&self) -> Option<u64> {
        self.look_ms
    }

    /// When something else of it is to be looked at: whether its last ring has ended, or whether
    /// there are rings.
    pub fn wakes_at(&self) -> Option<u64> {
        self.ears.iter().map(|ear| ear.rests_ms).chain([self.hush_ms]).flatten().min()
    }

    /// Doorbells that have rested are looked at again.
    pub fn rested(&mut self, now_ms: u64) {
        for ear in &mut self.ears {
            ear.rests_ms = ear.rests_ms.filter(|until| *until > now_ms);
        }
    }

    /// When a guest that does not let go is asked again.
    pub fn ask_again_at(&self) -> Option<u64> {
        match self.stage {
            // Not before it was asked: as long as something may still be passed on, the device
            // stays.
            Stage::Leaving(asked_ms) if self.plugged && !self.deleted && self.hush_ms.is_none() => {
                Some(asked_ms + ASK_AGAIN_MS)
            }
            _ => None,
        }
    }

    pub fn ask_again(&mut self, now_ms: u64) -> Option<(Step, Command)> {
        if self.ask_again_at()? > now_ms {
            return None;
        }
        self.stage = Stage::Leaving(now_ms);
        self.asked += 1;
        Some(self.unplug())
    }

    /// The doorbells to poll.
    pub fn bells(
        &self,
        port: usize,
        guest_reads: bool,
    ) -> impl Iterator<Item = (Bell, BorrowedFd<'_>, PollFlags)> {
        // Only frames go through the port; and of a hang-up it is told once.
        let relays = matches!(self.stage, Stage::There) && (guest_reads || self.hearing != Hearing::Frames);
        self.ears.iter().enumerate().filter_map(move |(which, ear)| {
            // Of one that rests the hang-up is heard all the same.
            let events = if ear.rests_ms.is_some() { PollFlags::empty() } else { PollFlags::IN };
            (relays && !ear.hung_up).then(|| (Bell { port, which }, ear.listener.as_fd(), events))
        })
    }

    /// A doorbell is ready: what to say to the guest.
    pub fn heard(&mut self, which: usize, now_ms: u64) -> Vec<Message> {
        let channel = self.number;
        let (Some(ear), Some(&vector)) = (self.ears.get_mut(which), VECTORS.get(which)) else {
            return Vec::new();
        };
        let mut said = Vec::new();
        match sys::doorbell::listen(&ear.listener).unwrap_or(Heard::Death) {
            Heard::Silence => {}
            Heard::Ring if ear.pass_on(now_ms) => {}
            Heard::Ring => said.push(Message::Ring { channel, vector }),
            Heard::Death => {
                ear.hung_up = true;
                said.extend(self.hangup());
            }
        }
        said
    }

    /// Returns the message that the peer is gone, if it is, and the guest has the channel and does
    /// not know.
    pub fn hangup(&mut self) -> Option<Message> {
        let gone = self.ears.iter().any(|ear| ear.hung_up);
        let tell = gone && !self.hangup_told && matches!(self.stage, Stage::There);
        self.hangup_told |= tell;
        tell.then_some(Message::Hangup { channel: self.number })
    }
}
