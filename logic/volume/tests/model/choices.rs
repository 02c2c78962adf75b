//! Everything that may happen next.

use crate::world::{Body, Broken, Host, REGISTRY, Role, World};
use volume::{Backup, Event, Extent, Node};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    Write(Node, Extent),
    Deliver(usize),
    Drop(usize),
    Double(usize),
    DiskDone(Node, usize),
    DiskFails(Node, usize),
    /// Power is lost; of what was on its way to the disk, the writes of this mask arrived.
    PowerLost(Node, u32),
    PowerBack(Node),
    HoldEnds(Node),
    HoldAgain(Node),
    LeaseOver(Node),
    LeaseAgain(Node),
    Claim(Node),
    Release(Node),
    GiveUp(Node, Node),
    Connect(Node, Node),
    AskAgain(Node),
    /// The registry's news reach a node.
    Watch(Node),
}

/// Masks of writes that arrived before power was lost: none, the first, the second, all.
const MASKS: [u32; 4] = [0, 1, 2, u32::MAX];

impl World {
    pub fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for at in 0..self.net.len() {
            // Equal messages are one choice.
            if at > 0 && self.net[at] == self.net[at - 1] {
                continue;
            }
            choices.push(Choice::Deliver(at));
            if self.faults > 0 {
                choices.push(Choice::Drop(at));
            }
            if self.doubles > 0 {
                choices.push(Choice::Double(at));
            }
        }
        for (node, host) in &self.hosts {
            if host.up {
                self.of_host(*node, host, &mut choices);
            } else {
                choices.push(Choice::PowerBack(*node));
            }
            if host.lease && (!host.holds || (self.is_broken(Broken::LyingClock) && self.faults > 0)) {
                choices.push(Choice::LeaseOver(*node));
            }
        }
        choices
    }

    fn of_host(&self, node: Node, host: &Host, choices: &mut Vec<Choice>) {
        for at in 0..host.pending.len() {
            choices.push(Choice::DiskDone(node, at));
            if self.faults > 0 {
                choices.push(Choice::DiskFails(node, at));
            }
        }
        if self.faults > 0 {
            let masks = if host.pending.is_empty() { &MASKS[..1] } else { &MASKS[..] };
            choices.extend(masks.iter().map(|mask| Choice::PowerLost(node, *mask)));
            if host.holds {
                choices.push(Choice::HoldEnds(node));
            }
        }
        if host.lease && !host.holds {
            choices.push(Choice::HoldAgain(node));
        }
        if !host.lease {
            choices.push(Choice::LeaseAgain(node));
        }
        match &host.role {
            Role::Idle => {
                let quiet = host.pending.is_empty() || self.is_broken(Broken::ClaimsUnquiet);
                if quiet && host.holds && host.lease && self.attempts > 0 && self.claimed(node).is_some() {
                    choices.push(Choice::Claim(node));
                }
            }
            Role::Claiming(..) => {
                if self.attempts > 0 {
                    choices.push(Choice::AskAgain(node));
                }
            }
            Role::Primary(_) => self.of_primary(node, choices),
        }
        choices.push(Choice::Watch(node));
    }

    fn of_primary(&self, node: Node, choices: &mut Vec<Choice>) {
        if self.writes > 0 {
            let extents = self.acknowledged.len() as Extent;
            choices.extend((0..extents).map(|extent| Choice::Write(node, extent)));
        }
        for other in self.hosts.keys().filter(|other| **other != node) {
            if self.faults > 0 || !self.hosts[other].up {
                choices.push(Choice::GiveUp(node, *other));
            }
            if self.attempts > 0 {
                choices.push(Choice::Connect(node, *other));
            }
        }
        if self.attempts > 0 {
            choices.push(Choice::AskAgain(node));
            choices.push(Choice::Release(node));
        }
    }

    fn claimed(&self, node: Node) -> Option<volume::Record> {
        let is_over = self.record.primary.is_none_or(|primary| !self.hosts[&primary].lease);
        self.record.claim(node, is_over).ok()
    }

    pub fn apply(&mut self, choice: &Choice) -> Result<(), String> {
        match *choice {
            Choice::Write(node, extent) => {
                self.writes -= 1;
                self.client_writes(node, extent)?;
            }
            Choice::Deliver(at) => {
                let message = self.net.remove(at);
                self.deliver(message)?;
            }
            Choice::Drop(at) => {
                self.faults -= 1;
                self.net.remove(at);
            }
            Choice::Double(at) => {
                self.doubles -= 1;
                let message = self.net[at].clone();
                self.net.insert(at, message);
            }
            Choice::DiskDone(node, at) => self.disk(node, at, true)?,
            Choice::DiskFails(node, at) => {
                self.faults -= 1;
                self.disk(node, at, false)?;
            }
            Choice::PowerLost(node, mask) => self.lose_power(node, mask),
            Choice::PowerBack(node) => self.regain_power(node),
            Choice::HoldEnds(node) => {
                self.faults -= 1;
                self.host(node).holds = false;
            }
            Choice::HoldAgain(node) => self.host(node).holds = true,
            Choice::LeaseOver(node) => {
                self.faults = self.faults.saturating_sub(u32::from(self.host(node).holds));
                self.host(node).lease = false;
            }
            Choice::LeaseAgain(node) => {
                let lies = self.is_broken(Broken::LyingClock);
                let host = self.host(node);
                // What was claimed under another lease is over with it.
                if !lies {
                    host.role = Role::Idle;
                }
                (host.lease, host.holds) = (true, true);
            }
            Choice::Claim(node) => self.claim(node),
            Choice::Release(node) => {
                self.attempts -= 1;
                self.event(node, Event::Release)?;
            }
            Choice::GiveUp(node, other) => {
                self.faults = self.faults.saturating_sub(u32::from(self.hosts[&other].up));
                self.event(node, Event::Lost(other))?;
            }
            Choice::Connect(node, other) => {
                self.attempts -= 1;
                self.event(node, Event::Connect(other))?;
            }
            Choice::AskAgain(node) => {
                self.attempts -= 1;
                if let Role::Claiming(record, base) = self.host(node).role.clone() {
                    self.send(node, REGISTRY, Body::Change(record, base));
                }
                self.event(node, Event::Retry)?;
            }
            Choice::Watch(node) => self.news(node, self.record.clone(), self.revision)?,
        }
        self.check()
    }

    fn claim(&mut self, node: Node) {
        self.attempts -= 1;
        let Some(record) = self.claimed(node) else { return };
        let revision = self.revision;
        let host = self.host(node);
        host.backup.close();
        host.role = Role::Claiming(record.clone(), revision);
        self.send(node, REGISTRY, Body::Change(record, revision));
    }

    fn lose_power(&mut self, node: Node, mask: u32) {
        self.faults -= 1;
        let host = self.host(node);
        for (at, pending) in std::mem::take(&mut host.pending).into_iter().enumerate() {
            if mask >> at.min(31) & 1 == 1 {
                host.disk[pending.extent as usize] = pending.value;
            }
        }
        (host.up, host.holds, host.role) = (false, false, Role::Idle);
    }

    fn regain_power(&mut self, node: Node) {
        let view = if self.is_broken(Broken::ForgetsView) { 0 } else { self.record.view };
        let host = self.host(node);
        host.incarnation += 1;
        host.backup = Backup::new(host.incarnation, view);
        (host.up, host.holds, host.lease) = (true, true, true);
    }
}
