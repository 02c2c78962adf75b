//! The root ports of a guest: into each a channel's device can be plugged, or a network card.
//!
//! Each step is a command to QEMU whose answer brings the next one. A port is free again when the guest has given the channel up,
//! QEMU has let go of the device, and the conversation about it has ended: a guest that does its part of none of that runs out of ports
//! of its own, and of nothing else.

mod card;
mod device;
mod end;
mod ivshmem;
mod table;

use card::Card;
pub(crate) use card::CardOrder;
use device::Device;
pub(crate) use device::{Bell, Hearing, Held};
pub(crate) use end::EndParts;
pub(crate) use table::ProcessTable;
use table::Table;

use crate::qemu::qmp::Command;
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use wire::guest::{End, MAX_CHANNELS, Message};

/// Most stand-ins of a machine, two for each channel to whose pipes QEMU listened: as many descriptors more that it polls. Beyond
/// that this process listens.
const MOST_STAND_INS: u32 = 256;
/// Most of them for one device: its two numbers, and those below them that happened to be free.
const MOST_TRIES: u32 = 32;

/// What an answer of QEMU's is about, within a port.
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
    /// It was asked to unplug the device.
    Unplug,
    /// A stand-in took the place of a descriptor of a device that is gone.
    StandIn,
    /// What stood behind the device was taken away.
    Remove,
}

/// What to ask QEMU next, if anything, and what has come of it, if anything.
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

/// What has become of something that was to be plugged.
#[derive(Debug)]
pub(crate) enum Done {
    /// The device is there: this goes to the guest.
    Plugged(Held, End),
    /// It could not be made, and why.
    NotPlugged(Held, Errno, String),
    /// The network card is there, or why not: for who asked at this socket.
    Card(OwnedFd, Result<(), String>),
}

/// What is to be done.
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

/// What is to be plugged when it is its turn.
#[derive(Debug)]
enum Wish {
    Channel(Held, Box<EndParts>, Hearing),
    Card(OwnedFd, CardOrder, OwnedFd),
}

/// A doorbell that never rings, and how often QEMU has been given it.
#[derive(Debug)]
struct StandIn {
    listener: OwnedFd,
    _ringer: OwnedFd,
    given: u32,
}

/// All root ports, by number.
#[derive(Debug)]
pub(crate) struct Ports {
    slots: Vec<Slot>,
    last_channel: u32,
    waiting: VecDeque<Wish>,
    table: Box<dyn Table>,
    stand_in: Option<StandIn>,
    /// Tries for the device that is being followed by stand-ins.
    tries: u32,
}

impl Ports {
    /// The ports of the QEMU with this table of descriptors.
    pub fn new(table: impl Table + 'static) -> Self {
        Self {
            slots: (0..MAX_CHANNELS).map(|_| Slot::Free).collect(),
            last_channel: 0,
            waiting: VecDeque::new(),
            table: Box::new(table),
            stand_in: None,
            tries: 0,
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
        if step == Step::StandIn {
            let mut acts = self.follow(port);
            acts.extend(self.advance(now_ms));
            return acts;
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
    pub fn deleted(&mut self, id: &str) -> Vec<Act> {
        let found = self.devices_mut().find(|(_, device)| device.id() == id);
        let Some((port, true)) = found.map(|(port, device)| (port, device.deleted())) else {
            return Vec::new();
        };
        self.tries = 0;
        self.follow(port)
    }

    /// Gives QEMU stand-ins until each number under which it listened for a device that is gone has one; then what stood behind the
    /// device can go as well.
    fn follow(&mut self, port: usize) -> Vec<Act> {
        let Some(Slot::Channel(device)) = self.slots.get(port) else { return Vec::new() };
        let listener = self.stand_in.as_ref().map(|stand_in| &stand_in.listener);
        let has = |number| listener.is_some_and(|listener| self.table.has_at(number, listener));
        let complete = device.numbers().iter().all(|number| has(*number));
        let (step, remove) = device.remove();
        if complete || self.tries >= MOST_TRIES {
            return vec![Act::Ask(port, step, remove)];
        }
        self.tries += 1;
        match self.next_stand_in() {
            Some(command) => vec![Act::Ask(port, Step::StandIn, command)],
            None => vec![Act::Ask(port, step, remove)],
        }
    }

    fn next_stand_in(&mut self) -> Option<Command> {
        if self.stand_in.is_none() {
            let (listener, ringer) = sys::doorbell::pair().ok()?;
            self.stand_in = Some(StandIn { listener, _ringer: ringer, given: 0 });
        }
        let stand_in = self.stand_in.as_mut()?;
        let copy = stand_in.listener.try_clone().ok()?;
        stand_in.given += 1;
        Some(Command::give(&format!("stand-in{}", stand_in.given), copy))
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

    /// Begins what can begin. What QEMU listens to for a device under emulation it does not forget, so such a device comes and goes
    /// alone: no descriptor that QEMU gets meanwhile can take a number that is not followed by a stand-in yet.
    fn advance(&mut self, now_ms: u64) -> Vec<Act> {
        let mut acts = Vec::new();
        for (port, device) in
            self.devices_mut().filter(|(_, device)| device.is_given_up() && !device.is_delicate())
        {
            acts.extend(device.go(now_ms).map(|(step, command)| Act::Ask(port, step, command)));
        }
        while !self.is_busy() {
            if let Some((port, device)) = self.devices_mut().find(|(_, device)| device.is_given_up()) {
                acts.extend(device.go(now_ms).map(|(step, command)| Act::Ask(port, step, command)));
            } else if let Some(wish) = self.waiting.pop_front() {
                acts.push(self.begin(wish));
            } else {
                break;
            }
        }
        acts
    }

    /// Whether something comes, or something delicate goes or has not been followed yet.
    fn is_busy(&self) -> bool {
        self.slots.iter().any(|slot| match slot {
            Slot::Channel(device) => {
                device.is_coming() || (device.is_delicate() && (device.is_going() || device.is_followed()))
            }
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
        let given = self.stand_in.as_ref().map_or(0, |stand_in| stand_in.given);
        let hearing =
            if given >= MOST_STAND_INS && hearing == Hearing::Direct { Hearing::Frames } else { hearing };
        match Device::new(port, number, held, parts, hearing) {
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
        self.put(port, Slot::Free);
    }

    /// Devices whose guest has not let go of them for long: to be asked again.
    pub fn overdue(&mut self, now_ms: u64) -> Vec<Act> {
        let mut acts: Vec<Act> = self
            .devices_mut()
            .filter_map(|(port, device)| {
                let (step, command) = device.ask_again(now_ms)?;
                Some(Act::Ask(port, step, command))
            })
            .collect();
        acts.extend(self.advance(now_ms));
        acts
    }

    /// When to look for overdue ones next.
    pub fn overdue_at(&self) -> Option<u64> {
        self.devices().filter_map(|(_, device)| device.ask_again_at()).min()
    }

    /// The doorbells to poll, and for what. `guest_reads`: whether rings can be passed on.
    pub fn bells(&self, guest_reads: bool) -> impl Iterator<Item = (Bell, BorrowedFd<'_>, PollFlags)> {
        self.devices().flat_map(move |(port, device)| device.bells(port, guest_reads))
    }

    /// A doorbell is ready: what to say to the guest.
    pub fn heard(&mut self, bell: Bell) -> Vec<Message> {
        match self.slots.get_mut(bell.port) {
            Some(Slot::Channel(device)) => device.heard(bell.which),
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
