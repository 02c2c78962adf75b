//! Every order in which a primary, its backup, the daemon and two callers can take their steps,
//! with a death or a takeover at any of them: each request is counted once. The memory of replies
//! and the hand-over are the code that ships; a step is what happens to one of them at one time.
//! Rules that are left out on purpose are found.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::collections::HashSet;

use ipc::{Remembered, Replies};
use wire::ipc::Address;
use wire::movement::Record;

/// Requests of each caller.
const REQUESTS: u64 = 2;
const CALLERS: usize = 2;
const PRIMARY: usize = 0;
const BACKUP: usize = 1;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// A reply is released, and then handed over.
    ReleasesFirst,
    /// A backup that has asked for the place still takes records.
    TakesAfterAsking,
    /// A primary goes on alone without asking the daemon.
    LeavesWithoutAsking,
    /// A successor does not look at what is remembered.
    Forgets,
}

#[derive(Clone, Debug, Default)]
struct Server {
    runs: bool,
    mail: Vec<(usize, u64)>,
    count: u64,
    log: Replies,
    /// The request that it has executed: the requester, its number, and the reply; whether the
    /// backup has it.
    serving: Option<(usize, u64, u64, bool)>,
}

#[derive(Clone, Debug, Default)]
struct Caller {
    number: u64,
    asks: Option<usize>,
    inbox: Vec<(usize, u64, u64)>,
    counted: Vec<u64>,
}

#[derive(Clone, Debug)]
struct World {
    fault: Fault,
    servers: [Server; 2],
    callers: [Caller; CALLERS],
    /// The endpoint that has the name, as the daemon knows it.
    has_name: Option<usize>,
    /// The primary relies on the backup.
    relies: bool,
    released: bool,
    asked: bool,
    refused: bool,
    /// Deaths, and takeovers from a primary that runs, that may still happen.
    deaths: u32,
    seizures: u32,
}

fn address(caller: usize) -> Address {
    Address { slot: caller as u32 + 10, generation: 1 }
}

impl World {
    fn new(fault: Fault) -> World {
        let mut servers: [Server; 2] = Default::default();
        servers.iter_mut().for_each(|server| server.runs = true);
        let mut callers: [Caller; CALLERS] = Default::default();
        callers.iter_mut().for_each(|caller| caller.number = 1);
        World {
            fault,
            servers,
            callers,
            has_name: Some(PRIMARY),
            relies: true,
            released: false,
            asked: false,
            refused: false,
            deaths: 1,
            seizures: 1,
        }
    }

    /// All that can happen next.
    fn next(&self) -> Vec<World> {
        let mut next = Vec::new();
        let mut can = |step: &dyn Fn(&mut World) -> bool| {
            let mut world = self.clone();
            if step(&mut world) {
                next.push(world);
            }
        };
        for caller in 0..CALLERS {
            can(&|world| world.ask(caller));
            can(&|world| world.hear(caller));
            can(&|world| world.look_again(caller));
        }
        for server in [PRIMARY, BACKUP] {
            can(&|world| world.execute(server));
            can(&|world| world.release_reply(server));
            can(&|world| world.die(server));
        }
        can(&World::hand_over);
        can(&World::leave_backup);
        can(&World::want_place);
        can(&World::give_place);
        next
    }

    fn ask(&mut self, caller: usize) -> bool {
        let (Some(server), None) = (self.has_name, self.callers[caller].asks) else { return false };
        let number = self.callers[caller].number;
        if number > REQUESTS || !self.servers[server].runs {
            return false;
        }
        self.callers[caller].asks = Some(server);
        self.servers[server].mail.push((caller, number));
        true
    }

    fn hear(&mut self, caller: usize) -> bool {
        let me = &mut self.callers[caller];
        let (Some(server), number) = (me.asks, me.number) else { return false };
        let Some(at) = me.inbox.iter().position(|(from, id, _)| (*from, *id) == (server, number)) else {
            return false;
        };
        let (_, _, count) = me.inbox.remove(at);
        me.counted.push(count);
        (me.asks, me.number) = (None, number + 1);
        true
    }

    /// The one that was asked has died and left no reply, or was superseded.
    fn look_again(&mut self, caller: usize) -> bool {
        let me = &mut self.callers[caller];
        let Some(server) = me.asks else { return false };
        let left_a_reply = me.inbox.iter().any(|(from, id, _)| (*from, *id) == (server, me.number));
        let superseded = self.has_name == Some(BACKUP) && server == PRIMARY;
        if !superseded && (self.servers[server].runs || left_a_reply) {
            return false;
        }
        me.inbox.retain(|(from, ..)| *from != server);
        me.asks = None;
        true
    }

    fn execute(&mut self, server: usize) -> bool {
        let me = &mut self.servers[server];
        if !me.runs || me.serving.is_some() || me.mail.is_empty() {
            return false;
        }
        let (caller, id) = me.mail.remove(0);
        match me.log.find(address(caller), id) {
            Remembered::Answered { reply, .. } if self.fault != Fault::Forgets => {
                let count = u64::from_le_bytes(reply.try_into().unwrap());
                self.callers[caller].inbox.push((server, id, count));
            }
            _ => {
                me.count += 1;
                let alone = server == BACKUP || !self.relies;
                me.serving = Some((caller, id, me.count, alone));
            }
        }
        true
    }

    fn record(&self, server: usize) -> Option<Record> {
        let (caller, id, count, _) = self.servers[server].serving?;
        let (reply, state) = (count.to_le_bytes().to_vec(), Some(count.to_le_bytes().to_vec()));
        Some(Record::Reply { requester: address(caller), id, tag: 0, reply, state })
    }

    fn hand_over(&mut self) -> bool {
        let takes = !self.asked || self.fault == Fault::TakesAfterAsking;
        let can = self.servers[PRIMARY].runs && self.relies && self.servers[BACKUP].runs && takes;
        let Some(record) = self.record(PRIMARY).filter(|_| can) else { return false };
        let Some((.., handed)) = &mut self.servers[PRIMARY].serving else { return false };
        if std::mem::replace(handed, true) {
            return false;
        }
        // Whoever has the place by now has a state of its own, to which a record of before comes
        // too late.
        self.servers[BACKUP].log.take(record);
        true
    }

    /// The backup is dead, or does not take a record in time: the primary asks whether it may go on
    /// alone.
    fn leave_backup(&mut self) -> bool {
        let waits = self.servers[PRIMARY].serving.is_some_and(|(.., handed)| !handed);
        if !self.servers[PRIMARY].runs || !self.relies || !waits {
            return false;
        }
        if self.has_name == Some(PRIMARY) || self.fault == Fault::LeavesWithoutAsking {
            self.released = self.fault != Fault::LeavesWithoutAsking;
            self.relies = false;
            if let Some((.., handed)) = &mut self.servers[PRIMARY].serving {
                *handed = true;
            }
        } else {
            self.servers[PRIMARY].runs = false;
        }
        true
    }

    fn release_reply(&mut self, server: usize) -> bool {
        let Some(record) = self.record(server) else { return false };
        let me = &mut self.servers[server];
        let Some((caller, id, count, handed)) = me.serving else { return false };
        if !me.runs || !handed && self.fault != Fault::ReleasesFirst {
            return false;
        }
        me.log.take(record);
        me.serving = None;
        self.callers[caller].inbox.push((server, id, count));
        true
    }

    fn die(&mut self, server: usize) -> bool {
        if self.deaths == 0 || !self.servers[server].runs {
            return false;
        }
        self.deaths -= 1;
        self.servers[server].runs = false;
        if self.has_name == Some(server) {
            self.has_name = None;
        }
        true
    }

    fn want_place(&mut self) -> bool {
        let primary_runs = self.servers[PRIMARY].runs;
        let has_place = self.has_name == Some(BACKUP);
        if !self.servers[BACKUP].runs || self.asked || has_place || self.refused || self.released {
            return false;
        }
        if primary_runs {
            let Some(left) = self.seizures.checked_sub(1) else { return false };
            self.seizures = left;
        }
        self.asked = true;
        true
    }

    fn give_place(&mut self) -> bool {
        if !self.asked || !self.servers[BACKUP].runs || self.has_name == Some(BACKUP) {
            return false;
        }
        if self.released {
            (self.asked, self.refused) = (false, true);
            return true;
        }
        self.has_name = Some(BACKUP);
        let state =
            self.servers[BACKUP].log.state().map_or(0, |state| u64::from_le_bytes(state.try_into().unwrap()));
        self.servers[BACKUP].count = state;
        true
    }

    /// Whether a request was counted twice, or not at all.
    fn is_wrong(&self) -> bool {
        let mut counted: Vec<u64> =
            self.callers.iter().flat_map(|caller| caller.counted.iter().copied()).collect();
        let answers = counted.len();
        counted.sort_unstable();
        counted.dedup();
        let twice = counted.len() != answers;
        let done = self.callers.iter().all(|caller| caller.number > REQUESTS);
        let total = CALLERS as u64 * REQUESTS;
        let lost = self.has_name.is_some_and(|server| self.servers[server].count != total);
        twice || done && lost
    }

    /// Whether callers wait although somebody is there whom they could ask.
    fn is_stuck(&self) -> bool {
        let waits = self.callers.iter().any(|caller| caller.number <= REQUESTS);
        waits && self.has_name.is_some_and(|server| self.servers[server].runs)
    }
}

/// Whether any order of steps goes wrong; and how many states there are.
fn explore(fault: Fault) -> (Option<World>, usize) {
    let mut seen = HashSet::new();
    let mut to_do = vec![World::new(fault)];
    while let Some(world) = to_do.pop() {
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        let next = world.next();
        if world.is_wrong() || next.is_empty() && world.is_stuck() {
            return (Some(world), seen.len());
        }
        to_do.extend(next);
    }
    (None, seen.len())
}

#[test]
fn each_request_is_counted_once_whoever_dies_or_takes_over_when() {
    let (wrong, states) = explore(Fault::None);
    println!("{states} states");
    assert!(wrong.is_none(), "{wrong:#?}");
    assert!(states > 10_000, "only {states} states: something can't happen any more");
}

#[test]
fn each_rule_that_is_left_out_is_found() {
    let faults = [Fault::ReleasesFirst, Fault::TakesAfterAsking, Fault::LeavesWithoutAsking, Fault::Forgets];
    for fault in faults {
        assert!(explore(fault).0.is_some(), "{fault:?} goes unnoticed");
    }
}
