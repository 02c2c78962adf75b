//! The root ports of a guest: into each a channel's device can be plugged, or a network card.
//!
//! Each step is a command to QEMU whose answer brings the next one. A port is free again when the
//! guest has given the channel up, QEMU has let go of the device, and the conversation about it has
//! ended: a guest that does its part of none of that runs out of ports of its own, and of nothing
//! else.

mod card;
mod device;
mod ear;
mod end;
mod ivshmem;
mod table;
mod watch;

use card::Card;
pub(crate) use card::CardOrder;
use device::Device;
pub(crate) use device::{Bell, Hearing, Held};
pub(crate) use end::EndParts;
pub(crate) use table::ProcessTable;
use table::Table;

use qmp::Command;
use rustix::event::PollFlags;
use rustix::io::Errno;
use serde_json::json;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use wire::guest::{End, MAX_CHANNELS, Message};

/// Most descriptors that are given to QEMU until they have taken two certain numbers: as many as
/// are free below those.
const MAX_COVERS: usize = 64;

/// Most channels of a guest whose rings the kernel passes on. Each takes two of the 128 instances
/// of inotify that the kernel gives all programs of a user together.
const MAX_WATCHES: usize = 8;

/// The step within a port that an answer of QEMU's belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// QEMU was given the socket of the conversation, or the card's tap.
    Give,
    /// It was told to use that.
    Backend,
    /// The device was plugged.
    Plug,
    /// It was asked anything, to see whether it has taken all descriptors.
    Taken,
    /// It was asked anything once more: what it does with them has been done by then.
    Settled,
    /// It was asked anything, to see whether it has heard all rings.
    Quiet,
    /// It was asked to unplug the device.
    Unplug,
    /// A socket may have taken the number of a descriptor of a device that is gone.
    Cover,
    /// Such sockets are used, so that the handlers of before are taken away, and closed.
    Chore,
    /// The back end of the device was taken away.
    Remove,
}

/// The next question to QEMU, if any, and the result so far, if any.
#[derive(Debug, Default)]
pub(crate) struct Next {
    pub ask: Option<(Step, Command)>,
    pub done: Option<Done>,
}

impl Next {
    fn ask(step: Step, command: Command) -> Self {
        Self { ask: Some((step, command)), done: None }
    }

    fn done(done: Done) -> Self {
        Self { ask: None, done: Some(done) }
    }
}

/// The outcome of plugging something.
#[derive(Debug)]
pub(crate) enum Done {
    /// The device is there: this goes to the guest.
    Plugged(Held, End),
    /// It could not be made, and why.
    NotPlugged(Held, Errno, String),
    /// The network card is there, or why not: for who asked at this socket.
    Card(OwnedFd, Result<(), String>),
}

/// An action that is to be done.
#[derive(Debug)]
pub(crate) enum Act {
    /// Ask QEMU this, for that port.
    Ask(usize, Step, Command),
    /// Something has come of what was wished.
    Done(Done),
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Free,
    Channel(Box<Device>),
    Card(Box<Card>),
}

/// A device that is to be plugged when it is its turn.
#[derive(Debug)]
enum Wish {
    Channel(Held, Box<EndParts>, Hearing),
    Card(OwnedFd, CardOrder, OwnedFd),
}

/// The actions after which QEMU forgets the handlers of a device that is gone.
#[derive(Debug, Default)]
struct CleanUp {
    /// Sockets that QEMU was given, by name, to take the numbers.
    covers: Vec<(String, OwnedFd)>,
    /// The other ends of those, so that they do not hang up.
    peers: Vec<OwnedFd>,
    /// The commands that are still to be sent.
    chores: VecDeque<Command>,
}

/// All root ports, by number.
#[derive(Debug)]
pub(crate) struct Ports {
    slots: Vec<Slot>,
    last_channel: u32,
    waiting: VecDeque<Wish>,
    table: Box<dyn Table>,
    clean_up: CleanUp,
    most_watches: usize,
}

impl Ports {
    /// The ports of the QEMU with this table of descriptors.
    pub fn new(table: impl Table + 'static) -> Self {
        Self {
            slots: (0..MAX_CHANNELS).map(|_| Slot::Free).collect(),
            last_channel: 0,
            waiting: VecDeque::new(),
            table: Box::new(table),
            clean_up: CleanUp::default(),
            most_watches: MAX_WATCHES,
        }
    }

    /// An end is to be plugged in.
    pub fn plug(&mut self, held: Held, parts: EndParts, hearing: Hearing, now_ms: u64) -> Vec<Act> {
        self.waiting.push_back(Wish::Channel(held, Box::new(parts), hearing));
        self.advance(now_ms)
    }

    /// A network card is to be plugged in.
    pub fn plug_card(&mut self, asker: OwnedFd, order: CardOrder, tap: OwnedFd, now_ms: u64) -> Vec<Act> {
        self.waiting.push_back(Wish::Card(asker, order, tap));
        self.advance(now_ms)
    }

    /// QEMU has answered.
    pub fn answered(&mut self, port: usize, step: Step, answer: Result<(), String>, now_ms: u64) -> Vec<Act> {
        match step {
            Step::Cover => return self.cover(port),
            Step::Chore => return self.chore(port),
            _ => {}
        }
        let (next, is_free) = match self.slots.get_mut(port) {
            Some(Slot::Channel(device)) => {
                let next = device.answered(step, answer, &*self.table, now_ms);
                (next, device.is_over())
            }
            Some(Slot::Card(card)) => card.answered(step, answer),
            Some(Slot::Free) | None => return Vec::new(),
        };
        if is_free {
            self.clear(port);
        }
        let mut acts = Vec::new();
        acts.extend(next.ask.map(|(step, command)| Act::Ask(port, step, command)));
        acts.extend(next.done.map(Act::Done));
        acts.extend(self.advance(now_ms));
        acts
    }

    /// QEMU says that a device is gone.
    pub fn deleted(&mut self, id: &str, now_ms: u64) -> Vec<Act> {
        let found = self.devices_mut().find(|(_, device)| device.id() == id);
        let Some((port, true)) = found.map(|(port, device)| (port, device.deleted(now_ms))) else {
            return Vec::new();
        };
        self.see_to(port, now_ms)
    }

    /// Waits until nothing of a device that is gone is mapped any more, and then has its handlers
    /// forgotten.
    fn see_to(&mut self, port: usize, now_ms: u64) -> Vec<Act> {
        let Some(Slot::Channel(device)) = self.slots.get_mut(port) else { return Vec::new() };
        if !device.is_unmapped(&*self.table, now_ms) {
            return Vec::new();
        }
        self.clean_up = CleanUp::default();
        self.cover(port)
    }

    /// Gives QEMU sockets until they have the numbers under which it listened for a device that is
    /// gone. A network of QEMU's over such a socket sets a handler for its number, in the place of
    /// the forgotten one, and takes it away when it is deleted.
    fn cover(&mut self, port: usize) -> Vec<Act> {
        let Some(Slot::Channel(device)) = self.slots.get(port) else { return Vec::new() };
        let covers = &self.clean_up.covers;
        let has = |number: u32, socket: &OwnedFd| self.table.has_at(number, socket);
        let covered = |number: &u32| covers.iter().any(|(_, socket)| has(*number, socket));
        if !device.numbers().iter().all(covered) && covers.len() < MAX_COVERS {
            // Where there is no socket, the numbers stay as they are: the next device is likely to
            // take them.
            if let Ok((socket, given)) = sys::descriptors::stream_pair() {
                let name = format!("cover{}", covers.len());
                // The same open file that QEMU gets, to know it by.
                if let Ok(known) = given.try_clone() {
                    self.clean_up.peers.push(socket);
                    self.clean_up.covers.push((name.clone(), known));
                    return vec![Act::Ask(port, Step::Cover, Command::give(&name, given))];
                }
            }
        }
        let mut chores = VecDeque::new();
        for (name, socket) in covers {
            if device.numbers().iter().any(|number| has(*number, socket)) {
                let arguments = json!({ "type": "socket", "id": name, "fd": name });
                chores.push_back(Command::with("netdev_add", arguments));
                chores.push_back(Command::with("netdev_del", json!({ "id": name })));
            } else {
                chores.push_back(Command::with("closefd", json!({ "fdname": name })));
            }
        }
        self.clean_up.chores = chores;
        self.chore(port)
    }

    /// The next of the chores; behind the last, what stood behind the device goes.
    fn chore(&mut self, port: usize) -> Vec<Act> {
        let Some(Slot::Channel(device)) = self.slots.get(port) else { return Vec::new() };
        let remove = device.remove();
        let next = self.clean_up.chores.pop_front().map(|command| (Step::Chore, command));
        let (step, command) = next.unwrap_or(remove);
        vec![Act::Ask(port, step, command)]
    }

    /// The guest has given a channel up. `Err`: it does not have that one.
    pub fn released(&mut self, number: u32, now_ms: u64) -> Result<Vec<Act>, ()> {
        let (port, device) = self.devices_mut().find(|(_, device)| device.is_with_guest(number)).ok_or(())?;
        device.released();
        if device.is_over() {
            self.clear(port);
        }
        Ok(self.advance(now_ms))
    }

    /// Begins what can begin. One device comes or goes at a time, and nothing is given to QEMU
    /// before all that it keeps of one that is gone has been seen to.
    fn advance(&mut self, now_ms: u64) -> Vec<Act> {
        let mut acts = Vec::new();
        while !self.is_busy() {
            let given_up = self.devices().find(|(_, device)| device.is_given_up()).map(|(port, _)| port);
            if let Some(port) = given_up {
                acts.extend(self.go(port, now_ms));
            } else if let Some(wish) = self.waiting.pop_front() {
                acts.push(self.begin(wish));
            } else {
                break;
            }
        }
        acts
    }

    fn go(&mut self, port: usize, now_ms: u64) -> Option<Act> {
        let Some(Slot::Channel(device)) = self.slots.get_mut(port) else { return None };
        device.go(&*self.table, now_ms).map(|(step, command)| Act::Ask(port, step, command))
    }

    fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| match slot {
            Slot::Channel(device) => device.is_coming() || device.is_going() || device.is_followed_up(),
            Slot::Card(card) => card.is_coming(),
            Slot::Free => false,
        })
    }

    fn begin(&mut self, wish: Wish) -> Act {
        let port = self.slots.iter().position(|slot| matches!(slot, Slot::Free));
        match (wish, port) {
            (Wish::Channel(held, parts, hearing), Some(port)) => {
                self.begin_channel(port, held, *parts, hearing)
            }
            (Wish::Card(asker, order, tap), Some(port)) => {
                let (card, command) = Card::new(port, asker, order, tap);
                self.put(port, Slot::Card(Box::new(card)));
                Act::Ask(port, Step::Give, command)
            }
            (Wish::Channel(held, ..), None) => {
                let why = format!(
                    "all {MAX_CHANNELS} channels that a virtual machine can have are in use: close some"
                );
                Act::Done(Done::NotPlugged(held, Errno::MFILE, why))
            }
            (Wish::Card(asker, ..), None) => Act::Done(Done::Card(asker, Err("no port is free".to_owned()))),
        }
    }

    fn begin_channel(&mut self, port: usize, held: Held, parts: EndParts, hearing: Hearing) -> Act {
        let number = self.last_channel.checked_add(1).unwrap_or(1);
        let by_watch = self.devices().filter(|(_, device)| device.has_watch()).count() < self.most_watches;
        match Device::new(port, number, held, parts, hearing, by_watch) {
            Ok((device, command)) => {
                self.put(port, Slot::Channel(Box::new(device)));
                self.last_channel = number;
                Act::Ask(port, Step::Give, command)
            }
            Err((held, why)) => Act::Done(Done::NotPlugged(held, Errno::IO, why)),
        }
    }

    fn put(&mut self, port: usize, new: Slot) {
        if let Some(slot) = self.slots.get_mut(port) {
            *slot = new;
        }
    }

    fn clear(&mut self, port: usize) {
        let Some(slot) = self.slots.get_mut(port) else { return };
        match std::mem::take(slot) {
            Slot::Channel(device) if device.has_watch() => drop(watch::close_aside(device)),
            Slot::Channel(_) | Slot::Card(_) | Slot::Free => {}
        }
    }

    /// It is time to look at devices whose guest does not let go of them, or QEMU, or whose
    /// doorbells have rested.
    pub fn overdue(&mut self, now_ms: u64) -> Vec<Act> {
        let mut acts: Vec<Act> = self
            .devices_mut()
            .filter_map(|(port, device)| {
                let (step, command) = device.ask_again(now_ms)?;
                Some(Act::Ask(port, step, command))
            })
            .collect();
        for (port, device) in self.devices_mut() {
            device.rested(now_ms);
            acts.extend(device.hushed(now_ms).map(|(step, command)| Act::Ask(port, step, command)));
        }
        let looks =
            |(port, device): (usize, &Device)| device.look_at().filter(|at| *at <= now_ms).map(|_| port);
        let looked_for: Vec<usize> = self.devices().filter_map(looks).collect();
        for port in looked_for {
            acts.extend(self.see_to(port, now_ms));
        }
        acts.extend(self.advance(now_ms));
        acts
    }

    /// When to do that next.
    pub fn overdue_at(&self) -> Option<u64> {
        let times = |device: &Device| [device.ask_again_at(), device.look_at(), device.wakes_at()];
        self.devices().flat_map(|(_, device)| times(device)).flatten().min()
    }

    /// The doorbells to poll, and for what. `guest_reads`: whether frames can be passed on.
    pub fn bells(&self, guest_reads: bool) -> impl Iterator<Item = (Bell, BorrowedFd<'_>, PollFlags)> {
        self.devices().flat_map(move |(port, device)| device.bells(port, guest_reads))
    }

    /// A doorbell is ready: what to say to the guest.
    pub fn heard(&mut self, bell: Bell, now_ms: u64) -> Vec<Message> {
        match self.slots.get_mut(bell.port) {
            Some(Slot::Channel(device)) => device.heard(bell.which, now_ms),
            _ => Vec::new(),
        }
    }

    /// The channel's packet has gone to the guest: what to say behind it.
    pub fn told(&mut self, number: u32) -> Option<Message> {
        self.devices_mut().find(|(_, device)| device.is_with_guest(number))?.1.hangup()
    }

    /// Ports in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.slots.iter().filter(|slot| !matches!(slot, Slot::Free)).count()
    }

    fn devices(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.slots.iter().enumerate().filter_map(|(port, slot)| match slot {
            Slot::Channel(device) => Some((port, &**device)),
            _ => None,
        })
    }

    fn devices_mut(&mut self) -> impl Iterator<Item = (usize, &mut Device)> {
        self.slots.iter_mut().enumerate().filter_map(|(port, slot)| match slot {
            Slot::Channel(device) => Some((port, &mut **device)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
