//! Machines: what the machine process of a domain of kind `vm` says of its guest, and what it is
//! told.

use super::services::{Wish, replaces};
use super::{Broker, Identity, Inner, MemberId, Outgoing, Refusal, Role, refuse};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Instant;
use topology::DomainKind;
use wire::control::{Event, GuestState, Reply};
use wire::guest::MAX_CHANNELS;

/// Longest word about itself that a machine may say, in characters: what is longer is cut.
const MAX_WORD_CHARS: usize = 64;
/// Longest message about its guest, in characters: it stands in listings.
const MAX_MESSAGE_CHARS: usize = 512;

/// A machine and its guest, as the machine process says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Its connection; `None` while it has none.
    pub(crate) member: Option<MemberId>,
    /// The accelerator that runs the guest's instructions.
    pub(crate) accel: String,
    /// Version of QEMU.
    pub(crate) qemu: String,
    /// Since when the guest's command runs, as far as this daemon knows; `None` while it does not.
    pub(crate) started: Option<Instant>,
    /// The state that the machine process reported last.
    pub(crate) state: GuestState,
    /// Why.
    pub(crate) message: String,
    /// How often the guest's frontend was said to have ended.
    pub(crate) frontend_ends: u64,
}

impl Broker {
    /// Returns the broker's record of a domain's machine.
    pub(crate) fn machine(&self, dc: &str, domain: &str) -> Option<Machine> {
        self.lock().machines.get(&(dc.to_owned(), domain.to_owned())).cloned()
    }

    /// Forgets what the machine of an earlier incarnation said.
    pub(crate) fn forget_machine(&self, dc: &str, domain: &str) {
        self.lock().machines.remove(&(dc.to_owned(), domain.to_owned()));
        self.announce();
    }

    /// Tells a machine to have its guest run a frontend. Whether there was a machine to tell.
    pub(crate) fn order_frontend(
        &self,
        dc: &str,
        domain: &str,
        order: serde_json::Value,
        sockets: Vec<OwnedFd>,
    ) -> bool {
        let mut inner = self.lock();
        let machine = inner.machines.get(&(dc.to_owned(), domain.to_owned()));
        let Some(member) = machine.and_then(|machine| machine.member) else { return false };
        let reply = Reply::Event(Event::Frontend { order });
        inner.send(member, Outgoing { reply, descriptors: sockets, _room: None })
    }

    /// Comes back when `found` says so of a domain's machine.
    pub(crate) async fn machine_where(
        &self,
        dc: &str,
        domain: &str,
        found: impl Fn(Option<&Machine>) -> bool,
    ) {
        let key = (dc.to_owned(), domain.to_owned());
        let mut changes = self.changes();
        while !found(self.lock().machines.get(&key)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Machine {
    /// The guest's state as listings show it.
    pub(crate) fn guest(&self) -> &'static str {
        if self.started.is_some() { "running" } else { "booting" }
    }
}

impl Inner {
    /// A member says that it is the machine of its domain.
    pub(super) fn machine(
        &mut self,
        id: MemberId,
        who: &Identity,
        number: u64,
        accel: &str,
        qemu: &str,
    ) -> Result<Outgoing, Refusal> {
        self.is_machine(who)?;
        let key = (who.dc.clone(), who.domain.clone());
        let before = self.machines.get(&key);
        if before.and_then(|machine| machine.member).is_some_and(|other| other != id) {
            return refuse(Errno::BUSY, format!("domain {} has its machine already", who.domain));
        }
        // One that comes back has a guest that runs on.
        let (started, state, frontend_ends) = before.map_or((None, GuestState::Booting, 0), |machine| {
            (machine.started, machine.state, machine.frontend_ends)
        });
        let machine = Machine {
            member: Some(id),
            accel: cut(accel, MAX_WORD_CHARS),
            qemu: cut(qemu, MAX_WORD_CHARS),
            started,
            state,
            message: String::new(),
            frontend_ends,
        };
        self.machines.insert(key, machine);
        Ok(Reply::Machine { id: number }.into())
    }

    /// A machine says how far its guest is.
    pub(super) fn guest(
        &mut self,
        id: MemberId,
        who: &Identity,
        state: GuestState,
        message: &str,
    ) -> Result<(), Refusal> {
        self.is_machine(who)?;
        let machine = self.machines.get_mut(&(who.dc.clone(), who.domain.clone()));
        let Some(machine) = machine.filter(|machine| machine.member == Some(id)) else {
            return refuse(Errno::PERM, "who has not said that it is the machine has no guest");
        };
        machine.started = match state {
            GuestState::Booting => None,
            GuestState::Started => machine.started.or_else(|| Some(Instant::now())),
            GuestState::FrontendUp | GuestState::FrontendDown => machine.started,
        };
        machine.frontend_ends += u64::from(state == GuestState::FrontendDown);
        machine.state = state;
        machine.message = cut(message, MAX_MESSAGE_CHARS);
        Ok(())
    }

    /// Refuses whoever is not the first process of a domain of kind `vm`.
    fn is_machine(&self, who: &Identity) -> Result<(), Refusal> {
        if self.is_guest(&who.dc, &who.domain) && who.role == Role::Program && who.main {
            return Ok(());
        }
        refuse(
            Errno::PERM,
            format!("only the first process of a domain of kind vm is a machine; pid {} is none", who.pid),
        )
    }

    /// Whether a domain is a machine, whose ends of channels are devices of a guest.
    pub(super) fn is_guest(&self, dc: &str, domain: &str) -> bool {
        let topology = self.topologies.get(dc);
        let domain = topology.and_then(|topology| topology.domain(domain));
        domain.is_some_and(|domain| domain.kind == DomainKind::Vm)
    }

    /// Whether the consumer's end, and the server's, would be in a guest.
    pub(super) fn guests(&self, who: &Identity, server: MemberId) -> [bool; 2] {
        let host = self.members.get(&server).map(|member| member.identity.domain.as_str());
        [Some(who.domain.as_str()), host]
            .map(|domain| domain.is_some_and(|name| self.is_guest(&who.dc, name)))
    }

    /// Whether the guests in which the two ends would be have room for them. Their machines would
    /// refuse as well, but then the other end has been made already, and is told that it is alone.
    pub(super) fn room_in_guests(
        &self,
        consumer: MemberId,
        who: &Identity,
        wish: &Wish,
        server: MemberId,
    ) -> Result<(), Refusal> {
        let host = self.members.get(&server).map_or("", |member| member.identity.domain.as_str());
        let ends = |domain: &str| {
            let kept = self.channels.values().filter(|c| c.dc == who.dc && !replaces(consumer, who, wish, c));
            kept.map(|c| usize::from(c.domain == domain) + usize::from(c.host == domain)).sum::<usize>()
        };
        let itself = usize::from(who.domain == host);
        for (domain, errno) in [(who.domain.as_str(), Errno::MFILE), (host, Errno::USERS)] {
            let taken = ends(domain) + self.ends_of_pairs(&who.dc, domain);
            if self.is_guest(&who.dc, domain) && taken + 1 + itself > MAX_CHANNELS {
                return refuse(errno, full(domain));
            }
        }
        Ok(())
    }

    /// Ends of channels that a domain has.
    pub(super) fn ends_in(&self, dc: &str, domain: &str) -> usize {
        let of_dc = self.channels.values().filter(|channel| channel.dc == dc);
        let ends =
            of_dc.map(|c| usize::from(c.domain == domain) + usize::from(c.host == domain)).sum::<usize>();
        ends + self.ends_of_pairs(dc, domain)
    }

    /// A connection has ended, perhaps a machine's. Its guest runs on.
    pub(super) fn machine_left(&mut self, id: MemberId) {
        for machine in self.machines.values_mut().filter(|machine| machine.member == Some(id)) {
            machine.member = None;
        }
    }
}

/// The message about a guest that can have no more.
pub(super) fn full(domain: &str) -> String {
    format!(
        "the virtual machine {domain} has {MAX_CHANNELS} ends of channels, which are the most that one can have; close some"
    )
}

/// Cuts text of a stranger: short and in one line.
fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
