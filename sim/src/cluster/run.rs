//! One world from its seed: begin, misfortune, peace, and what has to be so in the end.

use crate::cluster::machine::power_on;
use crate::cluster::trouble::{FATE, trouble};
use crate::cluster::world::{Came, Config, Planted, World};
use crate::cluster::{coordination, links};
use placement::Wish;
use std::rc::Rc;

/// The outcome of a seed.
#[derive(Debug)]
pub struct Ended {
    /// The events that were seen.
    pub came: Came,
    /// Why it failed.
    pub failure: Option<String>,
    /// A line for everything of note, where that was asked for.
    pub story: Vec<String>,
}

/// Runs the world of a seed.
#[must_use]
pub fn run(seed: u64, planted: Option<Planted>, keep_story: bool) -> Ended {
    let world = World::new(Config::of(seed, planted));
    if keep_story {
        world.keep_story();
        world.tell(|| format!("{:?}", world.config));
        for wanted in &world.wanted {
            world.tell(|| {
                format!("{}: {:?}, elsewhere: {}", wanted.path, wanted.want.wish, wanted.want.elsewhere)
            });
        }
    }
    world.time.spawn(FATE, Rc::clone(&world).keep_leases());
    for machine in 0..world.machines.len() {
        power_on(&world, machine);
    }
    coordination::begin(&world);
    world.time.spawn(FATE, trouble(Rc::clone(&world)));
    world.run(world.config.trouble_ns + world.config.quiet_ns);
    if world.failure().is_none() {
        check_peace(&world);
        coordination::check(&world);
        links::check(&world);
        world.tell(|| format!("the registry holds:\n{}", world.etcd.borrow().describe()));
        for machine in &world.machines {
            let daemon = machine.daemon.borrow();
            world.tell(|| daemon.as_ref().map_or_else(|| "no daemon".into(), |daemon| daemon.describe()));
        }
    }
    let mut came = *world.came.borrow();
    came.steps = world.time.steps();
    (came.received, came.replies) = (world.talk.borrow().received, world.talk.borrow().replies);
    (came.answers, came.grants) = (world.history.borrow().answers, world.history.borrow().grants);
    let ended = Ended { came, failure: world.failure(), story: world.take_story() };
    // Tasks and machines hold the world, and it holds them.
    world.time.finish();
    for machine in &world.machines {
        machine.daemon.take();
    }
    world.servers.take();
    world.proxies.take();
    ended
}

/// Nothing bad happens any more: every domain runs, where it may.
fn check_peace(world: &World) {
    for (domain, wanted) in world.wanted.iter().enumerate() {
        match (world.runs_on(domain), &wanted.want.wish) {
            (None, _) if world.broken.borrow().contains(&domain) => {}
            (Some(_), Wish::Any | Wish::Spread) => {}
            (Some(machine), Wish::Named(name)) if crate::cluster::world::name_of(machine) == *name => {}
            (runs_on, wish) => world.fail(format!(
                "after {} s of peace {} runs on {runs_on:?}, and its file says {wish:?}",
                world.config.quiet_ns / 1_000_000_000,
                wanted.path
            )),
        }
    }
}
