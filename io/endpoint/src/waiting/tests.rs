//! The steps before a sleep.

use std::thread;

use ipc::{Content, From, Rights};

use super::*;
use crate::Options;

/// Far more than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn address(slot: u32) -> Address {
    Address { slot, generation: 1 }
}

fn ways(endpoint: &Endpoint, peer: Address) -> u64 {
    endpoint.pairs.logic.link(peer).map_or(0, |pair| pair.spin.ways())
}

/// Calls between two that run on these processors: how often each of the two that never spin has
/// given way.
fn ways_between(here: u32, there: u32) -> [u64; 2] {
    let options = Options { spin: SpinPolicy::Never, ..Options::default() };
    let [mut one, mut other] = [1, 2].map(|slot| Endpoint::alone(address(slot), &options).unwrap());
    let (near, far) = channel::pair(&channel::Config::default()).unwrap();
    one.introduce(address(2), Rights::ALL, near).unwrap();
    other.introduce(address(1), Rights::ALL, far).unwrap();
    thread::scope(|scope| {
        let answers = scope.spawn(move || {
            sys::processor::pin(&[there]).unwrap();
            let mut into = Vec::new();
            loop {
                let received = other.receive(&From::One(address(1)), &mut into, soon()).unwrap();
                let Content::Request { asked, .. } = received.content else {
                    return ways(&other, address(1));
                };
                other.reply(&asked, 0, &into).unwrap();
            }
        });
        sys::processor::pin(&[here]).unwrap();
        let mut into = Vec::new();
        for _ in 0..500 {
            one.send_receive(address(2), 0, b"again", &mut into, 16, soon()).unwrap();
            assert_eq!(into, b"again");
        }
        one.send(address(2), 0, b"", soon()).unwrap();
        [ways(&one, address(2)), answers.join().unwrap()]
    })
}

/// Where both share a processor, a peer can answer only when the one that asks is off it. One that
/// never spins went to sleep for that, with a timer, and to be waked; it gives way first.
#[test]
fn who_never_spins_gives_way_to_a_peer_on_its_processor() {
    let here = sys::processor::allowed().unwrap()[0];
    let ways = ways_between(here, here);
    assert!(ways.iter().all(|ways| *ways > 0), "{ways:?}");
}

#[test]
fn who_never_spins_sleeps_at_once_for_a_peer_on_another_processor() {
    let [here, .., there] = sys::processor::allowed().unwrap()[..] else {
        println!("skipped: this program may use one processor only");
        return;
    };
    assert_eq!(ways_between(here, there), [0, 0]);
}
