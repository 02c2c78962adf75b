//! Troubles of the world: ways are cut, power fails, daemons die or stand still, the registry has
//! another leader; and what people order.

use crate::cluster::client::Client;
use crate::cluster::daemon::{Daemon, Moving, claim_key, drain_key, move_key, text};
use crate::cluster::links;
use crate::cluster::machine::{power_off, power_on};
use crate::cluster::world::{World, name_of};
use crate::etcd::{Expected, TTL_NS};
use crate::network::Place;
use crate::time::MS;
use placement::{Step, Wish};
use std::rc::Rc;

/// The owner of what happens to the world.
pub const FATE: u64 = 1;

/// How long a person waits for a planned move before it is taken back.
const MOVE_TIMEOUT_NS: u64 = 6_000 * MS;

/// One misfortune after the other, until the world is left in peace.
pub async fn trouble(world: Rc<World>) {
    let until = world.time.now() + world.config.trouble_ns;
    loop {
        let pause = world.time.between(1, 2 * world.config.trouble_every_ns);
        world.time.pause(pause).await;
        if world.time.now() >= until {
            break;
        }
        once(&world);
    }
    world.tell(|| "from now on nothing bad happens".to_owned());
    world.network.mend_all();
    for machine in 0..world.machines.len() {
        power_on(&world, machine);
        undrain(&world, machine);
    }
}

fn once(world: &Rc<World>) {
    let (time, machine) = (&world.time, world.time.index(world.machines.len()));
    match time.index(15) {
        0..=2 => cut(world, machine),
        3 | 4 => {
            world.came.borrow_mut().deaths += 1;
            power_off(world, machine);
            let (of, at) = (Rc::clone(world), time.now() + time.between(100, 8_000) * MS);
            time.at(at, move || power_on(&of, machine));
        }
        5 => kill_daemon(world, machine),
        6 => stall_daemon(world, machine),
        7 => elect(world),
        8 => {
            world.tell(|| format!("the watches of n{machine} break"));
            world.break_watches(machine);
        }
        9 | 10 => order_move(world, machine),
        11 => drain(world, machine),
        _ => trouble_link(world, machine),
    }
}

fn cut(world: &Rc<World>, machine: usize) {
    let time = &world.time;
    let (one, other) = (Place::Machine(machine), Place::Registry);
    let ways = [time.per_mille(800), time.per_mille(800)];
    let until = time.now() + time.between(100, 6_000) * MS;
    world.came.borrow_mut().cuts += 1;
    for (is_cut, from, to) in [(ways[0], one, other), (ways[1], other, one)] {
        if !is_cut {
            continue;
        }
        world.tell(|| format!("nothing gets from {from:?} to {to:?} until {} ms", until / MS));
        world.network.cut(from, to);
        let of = Rc::clone(world);
        time.at(until, move || of.network.mend(from, to));
    }
}

/// The way between two machines is cut, or a proxy dies.
fn trouble_link(world: &Rc<World>, machine: usize) {
    let time = &world.time;
    let other = (machine + 1 + time.index(world.machines.len() - 1)) % world.machines.len();
    if time.per_mille(250) {
        if world.proxies.borrow().contains_key(&(machine, other)) {
            world.tell(|| format!("the proxy of n{machine} to n{other} dies"));
            links::stop(world, machine, other);
            links::start(world, machine, other);
        }
        return;
    }
    let until = time.now() + time.between(50, 4_000) * MS;
    world.came.borrow_mut().cuts += 1;
    for (from, to) in [(machine, other), (other, machine)] {
        if time.per_mille(700) {
            let (from, to) = (Place::Machine(from), Place::Machine(to));
            world.network.cut(from, to);
            let of = Rc::clone(world);
            time.at(until, move || of.network.mend(from, to));
        }
    }
}

fn kill_daemon(world: &Rc<World>, machine: usize) {
    if !world.machines[machine].is_on.get() {
        return;
    }
    world.came.borrow_mut().deaths += 1;
    world.tell(|| format!("the daemon of n{machine} is killed"));
    Daemon::kill(world, machine);
    let boot = world.machines[machine].boot.get();
    let (of, at) = (Rc::clone(world), world.time.now() + world.time.between(50, 5_000) * MS);
    world.time.at(at, move || {
        let there = &of.machines[machine];
        if there.is_on.get() && there.boot.get() == boot && there.daemon.borrow().is_none() {
            Daemon::start(&of, machine);
        }
    });
}

/// Its threads stand still; monitors go on.
fn stall_daemon(world: &Rc<World>, machine: usize) {
    let Some(owner) = world.machines[machine].daemon.borrow().as_ref().map(|daemon| daemon.owner) else {
        return;
    };
    world.came.borrow_mut().deaths += 1;
    let until = world.time.now() + world.time.between(100, 6_000) * MS;
    world.tell(|| format!("the daemon of n{machine} stands still until {} ms", until / MS));
    world.time.stall(owner, until);
}

fn elect(world: &Rc<World>) {
    let until = world.time.now() + world.time.between(100, 2_500) * MS;
    world.tell(|| format!("the registry has no leader until {} ms", until / MS));
    world.election_until.set(until);
    let of = Rc::clone(world);
    world.time.at(until, move || of.etcd.borrow_mut().elected(of.time.now()));
}

/// A person orders a move at some node's daemon, which takes it back where it takes too long.
fn order_move(world: &Rc<World>, machine: usize) {
    if world.machines.len() < 2 {
        return;
    }
    let domain = world.time.index(world.wanted.len());
    // A daemon refuses to move one that names its node.
    if matches!(world.wanted[domain].want.wish, Wish::Named(_)) {
        return;
    }
    let (of, client) = (Rc::clone(world), Client::new(world, machine));
    world.time.spawn(FATE, async move {
        let ordered = move_once(&of, &client, domain).await;
        if ordered.is_none() {
            return;
        }
        of.time.pause(MOVE_TIMEOUT_NS).await;
        let key = move_key(&of, domain);
        let Ok(Some(there)) = client.get(&key).await else { return };
        let Some(moving) = Moving::parse(&there.value) else { return };
        let step = match moving.step {
            Step::Asked => Step::Failed,
            Step::Given | Step::Taken => Step::Back,
            _ => return,
        };
        let value = Moving { step, ..moving }.value();
        let _somebody_was_first = client.put(&key, &value, Expected::Revision(there.revision), 0).await;
    });
}

async fn move_once(world: &Rc<World>, client: &Client, domain: usize) -> Option<()> {
    let claim = client.get(&claim_key(world, domain)).await.ok()??;
    let from = text(&claim.value).split(' ').next()?.to_owned();
    let key = move_key(world, domain);
    let there = client.get(&key).await.ok()?;
    let under_way = there.as_ref().and_then(|there| Moving::parse(&there.value));
    if under_way.is_some_and(|moving| !moving.step.is_last()) {
        return None;
    }
    let others: Vec<String> = (0..world.machines.len()).map(name_of).filter(|name| *name != from).collect();
    let to = others.get(world.time.index(others.len()))?.clone();
    let expected = there.map_or(Expected::Absent, |there| Expected::Revision(there.revision));
    let value = Moving { from, to, step: Step::Asked }.value();
    world.tell(|| format!("a person orders: {key} {}", text(&value)));
    client.put(&key, &value, expected, 0).await.ok().map(drop)
}

fn drain(world: &Rc<World>, machine: usize) {
    let (of, client) = (Rc::clone(world), Client::new(world, machine));
    world.tell(|| format!("a person drains n{machine}"));
    world.time.spawn(FATE, async move {
        let empty = b"{}".as_slice().into();
        // A person whose order is not heard gives it again another day.
        let _heard = client.put(&drain_key(&name_of(machine)), &empty, Expected::Anything, 0).await;
        of.time.pause(of.time.between(2_000, 6_000) * MS).await;
        undrain(&of, machine);
    });
}

fn undrain(world: &Rc<World>, machine: usize) {
    let client = Client::new(world, machine);
    let time = world.time.clone();
    world.time.spawn(FATE, async move {
        // The last order of all is heard: people ask again.
        while client.delete(&drain_key(&name_of(machine)), Expected::Anything).await.is_err() {
            time.pause(TTL_NS).await;
        }
    });
}
