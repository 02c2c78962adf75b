//! The root ports of a guest: into each a channel's device can be plugged, or a network card.
//!
//! Each step is a command to QEMU whose answer brings the next one. A port is free again when the guest has given the channel up,
//! QEMU has let go of the device, and the conversation about it has ended: a guest that does its part of none of that runs out of ports
//! of its own, and of nothing else.

mod card;
mod device;
mod end;
mod ivshmem;

use card::Card;
pub(crate) use card::CardOrder;
use device::Device;
pub(crate) use device::{Bell, Hearing, Held};
pub(crate) use end::EndParts;

use crate::qemu::qmp::Command;
use rustix::event::PollFlags;
use std::os::fd::{BorrowedFd, OwnedFd};
use wire::guest::{End, MAX_CHANNELS};

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
    NotPlugged(Held, String),
    /// The network card is there, or why not: for who asked at this socket.
    Card(OwnedFd, Result<(), String>),
}

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Free,
    Channel(Box<Device>),
    Card(Box<Card>),
}

/// All root ports, by number.
#[derive(Debug)]
pub(crate) struct Ports {
    slots: Vec<Slot>,
    last_channel: u32,
}

impl Ports {
    pub fn new() -> Self {
        Self { slots: (0..MAX_CHANNELS).map(|_| Slot::Free).collect(), last_channel: 0 }
    }

    fn free(&mut self) -> Option<(usize, &mut Slot)> {
        self.slots.iter_mut().enumerate().find(|(_, slot)| matches!(slot, Slot::Free))
    }

    /// Begins to plug an end in: at which port, and what to ask.
    ///
    /// # Errors
    /// Why not, with the packet.
    pub fn plug(
        &mut self,
        held: Held,
        parts: EndParts,
        hearing: Hearing,
    ) -> Result<(usize, Step, Command), (Held, String)> {
        let number = self.last_channel.checked_add(1).unwrap_or(1);
        let Some((port, slot)) = self.free() else {
            let why =
                format!("all {MAX_CHANNELS} channels that a virtual machine can have are in use: close some");
            return Err((held, why));
        };
        let (device, command) = Device::new(port, number, held, parts, hearing)?;
        *slot = Slot::Channel(Box::new(device));
        self.last_channel = number;
        Ok((port, Step::Give, command))
    }

    /// Begins to plug a network card in.
    ///
    /// # Errors
    /// Why not, with the asker's socket.
    pub fn plug_card(
        &mut self,
        asker: OwnedFd,
        order: CardOrder,
        tap: OwnedFd,
    ) -> Result<(usize, Step, Command), (OwnedFd, String)> {
        let Some((port, slot)) = self.free() else { return Err((asker, "no port is free".to_owned())) };
        let (card, command) = Card::new(port, asker, order, tap);
        *slot = Slot::Card(Box::new(card));
        Ok((port, Step::Give, command))
    }

    /// QEMU has answered.
    pub fn answered(&mut self, port: usize, step: Step, answer: Result<(), String>, now_ms: u64) -> Next {
        let Some(slot) = self.slots.get_mut(port) else { return Next::default() };
        let (next, is_free) = match slot {
            Slot::Free => return Next::default(),
            Slot::Channel(device) => {
                let next = device.answered(step, answer, now_ms);
                (next, device.is_over())
            }
            Slot::Card(card) => card.answered(step, answer),
        };
        if is_free {
            *slot = Slot::Free;
        }
        next
    }

    /// QEMU says that a device is gone: the port, and what to ask.
    pub fn deleted(&mut self, id: &str) -> Option<(usize, Step, Command)> {
        let (port, device) = self.devices_mut().find(|(_, device)| device.id() == id)?;
        let (step, command) = device.deleted()?;
        Some((port, step, command))
    }

    /// The guest has given a channel up. `Err`: it does not have that one. Otherwise what to ask, if anything.
    pub fn released(&mut self, number: u32, now_ms: u64) -> Result<Option<(usize, Step, Command)>, ()> {
        let (port, device) = self.devices_mut().find(|(_, device)| device.is_with_guest(number)).ok_or(())?;
        let next = device.released(now_ms);
        if device.is_over() {
            self.clear(port);
        }
        Ok(next.map(|(step, command)| (port, step, command)))
    }

    fn clear(&mut self, port: usize) {
        if let Some(slot) = self.slots.get_mut(port) {
            *slot = Slot::Free;
        }
    }

    /// A device whose guest has not let go of it for long: to be asked again.
    pub fn overdue(&mut self, now_ms: u64) -> Option<(usize, Step, Command)> {
        self.devices_mut().find_map(|(port, device)| {
            let (step, command) = device.ask_again(now_ms)?;
            Some((port, step, command))
        })
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
    pub fn heard(&mut self, bell: Bell) -> Vec<wire::guest::Message> {
        match self.slots.get_mut(bell.port) {
            Some(Slot::Channel(device)) => device.heard(bell.which),
            _ => Vec::new(),
        }
    }

    /// The channel's packet has gone to the guest: what to say behind it.
    pub fn told(&mut self, number: u32) -> Option<wire::guest::Message> {
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
