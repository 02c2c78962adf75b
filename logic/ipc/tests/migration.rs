//! Every order in which an endpoint that moves, the program at its new place, the daemon and two
//! senders can take their steps, with a death of either program, a roll-back or a take-over at any
//! of them: each message is received once and in order, and nobody else's place is taken. A step is
//! what happens to one of them at one time. Rules that are left out on purpose are found.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::collections::HashSet;

use wire::ipc::Address;
use wire::movement::Record;

/// Messages of each sender.
const MESSAGES: u32 = 2;
const SENDERS: usize = 2;

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Drained messages are handed over before the ring says that they were consumed.
    HandsBeforeItSays,
    /// It is sealed before the ring says how much it has received.
    SealsBeforeItSays,
    /// Senders take back also what an endpoint that was not sealed has not consumed.
    TakesBackUnsealed,
    /// It receives while it is sealed.
    ReceivesSealed,
    /// The new place receives from its senders before it has received what was queued.
    RingsFirst,
    /// Messages that were taken back are sent after later ones.
    SendsAgainLate,
    /// The old place goes on without asking the daemon.
    GoesOnUnasked,
}

#[derive(Clone, Debug, Default)]
struct Sender {
    /// The number of its next message.
    next: u32,
    /// The ring to the old place: what was committed, and how many of these the old place says to
    /// have consumed, and has.
    old: Vec<u32>,
    said: usize,
    consumed: usize,
    /// It has parted from the old place; what it took back then.
    parted: bool,
    taken_back: Vec<u32>,
    /// The ring to the new place, once both know each other.
    new: Option<Vec<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    Receives,
    Sealed,
    /// It hands over, and has handed over so many.
    Hands(usize),
    /// It has handed over all, and waits.
    Waits,
    Ended,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum New {
    StandsBy,
    /// It was told to take the place.
    Told,
    /// It has asked for the place, and takes nothing more.
    Asks,
    HasPlace,
    /// It was released.
    Released,
    Dead,
}

#[derive(Clone, Debug)]
struct World {
    fault: Fault,
    senders: [Sender; SENDERS],
    old: Old,
    new: New,
    sealed: bool,
    /// The messages that the old place has consumed and not received, as records.
    inbox: Vec<Vec<u8>>,
    /// The same, where the new place has it.
    queued: Vec<Vec<u8>>,
    /// The daemon has written down that the old place goes on alone.
    released: bool,
    /// The daemon has given the place to the new one.
    given: bool,
    /// The messages that the programs of the endpoint have received: sender and number.
    received: Vec<(usize, u32)>,
    deaths: u32,
    /// How often it may start to move.
    starts: u32,
    /// The new place may take over without having been told to.
    seizures: u32,
    lost_by_death: bool,
}

fn address(sender: usize) -> Address {
    Address { slot: sender as u32 + 10, generation: 1 }
}

fn message(bytes: &[u8]) -> (usize, u32) {
    let Ok(Record::Queued { source, tag, .. }) = Record::read(bytes) else { panic!("a message") };
    (source.slot as usize - 10, tag)
}

impl World {
    fn new(fault: Fault) -> World {
        World {
            fault,
            senders: Default::default(),
            old: Old::Receives,
            new: New::StandsBy,
            sealed: false,
            inbox: Vec::new(),
            queued: Vec::new(),
            released: false,
            given: false,
            received: Vec::new(),
            deaths: 1,
            starts: 2,
            seizures: 1,
            lost_by_death: false,
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
        for sender in 0..SENDERS {
            can(&|world| world.send(sender));
            can(&|world| world.part(sender));
            can(&|world| world.introduce(sender));
            can(&|world| world.receive(sender));
            can(&|world| world.receive_new(sender));
            can(&|world| world.say(sender));
        }
        for step in [
            World::receive_inbox,
            World::start,
            World::drain,
            World::roll_back,
            World::hand,
            World::give_up,
            World::ask,
            World::give_place,
            World::seize,
            World::hear_end,
            World::die_old,
            World::die_new,
        ] {
            can(&step);
        }
        next
    }

    fn send(&mut self, sender: usize) -> bool {
        let me = &mut self.senders[sender];
        if me.next >= MESSAGES {
            return false;
        }
        let number = me.next;
        match &mut me.new {
            Some(ring) => ring.push(number),
            // An end that has hung up takes nothing: the sender looks for the new place then.
            None if !me.parted && !matches!(self.old, Old::Ended | Old::Dead) => me.old.push(number),
            None => return false,
        }
        me.next += 1;
        true
    }

    /// The sender hears that another one has the place, or that the channel has hung up.
    fn part(&mut self, sender: usize) -> bool {
        let over = self.given || matches!(self.old, Old::Ended | Old::Dead);
        let takes_back = self.sealed || self.fault == Fault::TakesBackUnsealed;
        let me = &mut self.senders[sender];
        if me.parted || !over {
            return false;
        }
        me.parted = true;
        let left = me.old.split_off(me.said);
        match takes_back {
            true => me.taken_back = left,
            false => self.lost_by_death |= !left.is_empty(),
        }
        true
    }

    fn introduce(&mut self, sender: usize) -> bool {
        let late = self.fault == Fault::SendsAgainLate;
        let me = &mut self.senders[sender];
        if !me.parted || self.new != New::HasPlace {
            return false;
        }
        match &mut me.new {
            None => me.new = Some(if late { Vec::new() } else { std::mem::take(&mut me.taken_back) }),
            Some(ring) if !me.taken_back.is_empty() => ring.append(&mut me.taken_back),
            Some(_) => return false,
        }
        true
    }

    fn receive(&mut self, sender: usize) -> bool {
        let receives = self.old == Old::Receives && self.inbox.is_empty()
            || self.fault == Fault::ReceivesSealed && self.old == Old::Waits;
        let me = &mut self.senders[sender];
        if !receives || me.parted || me.consumed >= me.old.len() {
            return false;
        }
        self.received.push((sender, me.old[me.consumed]));
        me.consumed += 1;
        true
    }

    fn receive_inbox(&mut self) -> bool {
        if self.old != Old::Receives || self.inbox.is_empty() {
            return false;
        }
        self.received.push(message(&self.inbox.remove(0)));
        true
    }

    fn start(&mut self) -> bool {
        if self.old != Old::Receives || self.starts == 0 || self.new != New::StandsBy {
            return false;
        }
        self.starts -= 1;
        if self.fault != Fault::SealsBeforeItSays {
            self.senders.iter_mut().for_each(|sender| sender.said = sender.consumed);
        }
        (self.old, self.sealed) = (Old::Sealed, true);
        true
    }

    fn roll_back(&mut self) -> bool {
        if self.old != Old::Sealed {
            return false;
        }
        (self.old, self.sealed) = (Old::Receives, false);
        true
    }

    /// All that senders have committed is consumed.
    fn drain(&mut self) -> bool {
        if self.old != Old::Sealed {
            return false;
        }
        for (sender, me) in self.senders.iter_mut().enumerate().filter(|(_, me)| !me.parted) {
            for number in me.old.iter().skip(me.consumed) {
                let record = Record::Queued { source: address(sender), tag: *number, payload: Vec::new() };
                self.inbox.push(record.to_bytes());
            }
            me.consumed = me.old.len();
            if self.fault != Fault::HandsBeforeItSays {
                me.said = me.consumed;
            }
        }
        self.old = Old::Hands(0);
        true
    }

    fn say(&mut self, sender: usize) -> bool {
        let me = &mut self.senders[sender];
        if me.said == me.consumed || matches!(self.old, Old::Ended | Old::Dead) || me.parted {
            return false;
        }
        me.said = me.consumed;
        true
    }

    fn hand(&mut self) -> bool {
        let Old::Hands(at) = self.old else { return false };
        if self.new != New::StandsBy {
            return false;
        }
        match self.inbox.get(at) {
            Some(record) => {
                self.queued.push(record.clone());
                self.old = Old::Hands(at + 1);
            }
            None => (self.old, self.new) = (Old::Waits, New::Told),
        }
        true
    }

    /// The new place is dead, or takes too long: the daemon is asked, and it goes on here unless
    /// the other one has the place.
    fn give_up(&mut self) -> bool {
        if !matches!(self.old, Old::Hands(_) | Old::Waits) {
            return false;
        }
        if self.given && self.fault != Fault::GoesOnUnasked {
            self.old = Old::Ended;
            return true;
        }
        let asks_late = self.fault == Fault::GoesOnUnasked && self.given;
        self.released = self.fault != Fault::GoesOnUnasked || asks_late;
        (self.old, self.sealed) = (Old::Receives, false);
        self.queued.clear();
        if !matches!(self.new, New::Dead | New::Asks | New::HasPlace) {
            self.new = New::Released;
        }
        true
    }

    fn ask(&mut self) -> bool {
        let told = self.new == New::Told || self.new == New::StandsBy && self.old == Old::Dead;
        if told {
            self.new = New::Asks;
        }
        told
    }

    /// A backup that takes over by order of its own, from an endpoint that does not move.
    fn seize(&mut self) -> bool {
        if self.new != New::StandsBy || self.seizures == 0 || self.old != Old::Receives {
            return false;
        }
        self.seizures -= 1;
        self.new = New::Asks;
        true
    }

    fn give_place(&mut self) -> bool {
        if self.new != New::Asks {
            return false;
        }
        if self.released {
            self.new = New::Released;
            return true;
        }
        (self.new, self.given) = (New::HasPlace, true);
        if self.fault != Fault::RingsFirst {
            self.receive_queued();
        }
        true
    }

    /// Receives the queued messages first.
    fn receive_queued(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        self.received.extend(queued.iter().map(|record| message(record)));
    }

    fn receive_new(&mut self, sender: usize) -> bool {
        if self.new != New::HasPlace {
            return false;
        }
        let Some(ring) = self.senders[sender].new.as_mut().filter(|ring| !ring.is_empty()) else {
            return false;
        };
        let number = ring.remove(0);
        self.received.push((sender, number));
        self.receive_queued();
        true
    }

    /// The old place hears that it was superseded.
    fn hear_end(&mut self) -> bool {
        let lives = !matches!(self.old, Old::Ended | Old::Dead);
        if !self.given || !lives {
            return false;
        }
        // What it had not received it can't any more, if it was not moving.
        self.lost_by_death |= self.old == Old::Receives && !self.inbox.is_empty();
        self.old = Old::Ended;
        true
    }

    fn die_old(&mut self) -> bool {
        if self.deaths == 0 || matches!(self.old, Old::Ended | Old::Dead) {
            return false;
        }
        self.deaths -= 1;
        // What it had consumed and nobody else has, ends with it.
        let is_handed = self.queued.len() == self.inbox.len();
        self.lost_by_death |= !is_handed || !self.sealed;
        self.old = Old::Dead;
        true
    }

    fn die_new(&mut self) -> bool {
        if self.deaths == 0 || self.new == New::Dead {
            return false;
        }
        self.deaths -= 1;
        self.lost_by_death |= self.new == New::HasPlace;
        self.new = New::Dead;
        true
    }

    /// Whether something was received twice, or after what was sent later.
    fn is_wrong(&self) -> bool {
        (0..SENDERS).any(|sender| {
            let numbers: Vec<u32> =
                self.received.iter().filter(|(from, _)| *from == sender).map(|(_, number)| *number).collect();
            numbers.windows(2).any(|two| two[0] >= two[1])
        })
    }

    /// Whether nothing more happens, somebody has the place, and something was not received
    /// although nobody died with it.
    fn is_lost(&self) -> bool {
        let somebody = self.new == New::HasPlace || self.old == Old::Receives;
        let all = self.received.len() == SENDERS * MESSAGES as usize;
        somebody && !all && !self.lost_by_death
    }

    /// Whether two have the place.
    fn is_split(&self) -> bool {
        self.given && self.released
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
        if world.is_wrong() || world.is_split() || next.is_empty() && world.is_lost() {
            return (Some(world), seen.len());
        }
        to_do.extend(next);
    }
    (None, seen.len())
}

#[test]
fn each_message_is_received_once_and_in_order_whoever_moves_or_dies_when() {
    let (wrong, states) = explore(Fault::None);
    println!("{states} states");
    assert!(wrong.is_none(), "{wrong:#?}");
    assert!(states > 10_000, "only {states} states: something can't happen any more");
}

#[test]
fn each_rule_that_is_left_out_is_found() {
    let faults = [
        Fault::HandsBeforeItSays,
        Fault::SealsBeforeItSays,
        Fault::TakesBackUnsealed,
        Fault::ReceivesSealed,
        Fault::RingsFirst,
        Fault::SendsAgainLate,
        Fault::GoesOnUnasked,
    ];
    for fault in faults {
        assert!(explore(fault).0.is_some(), "{fault:?} goes unnoticed");
    }
}
