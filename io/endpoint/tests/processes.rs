//! Endpoints in processes of their own: those that die by `kill -9` in the midst of any call, and
//! those that wait for each other in a circle.
#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "../../channel/tests/other_process/mod.rs"]
mod other_process;
mod pairs;

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use channel::{Config, End, SpinPolicy, pair};
use endpoint::{
    Content, Endpoint, Failed, From, NoPeer, Options, ReceiveError, ReplyError, RequestError, Rights,
    SendError,
};
use other_process::Other;
use pairs::{address, join, soon};

const CONFIG: Config = Config { ring_bytes: 16 << 10, ..config() };

const fn config() -> Config {
    Config {
        ring_bytes: 0,
        mode: channel::Mode::Messages,
        huge_pages: channel::HugePages::No,
        spin_ns: None,
        apart: false,
    }
}

/// How many processes die.
const DEATHS: u64 = 150;
/// The roles that the process may have until it is killed.
const ROLES: [&str; 9] =
    ["send", "buffered", "request", "receive", "receive-one", "serve", "relay", "notify", "deaf"];

/// Starts this program once more as the endpoint in slot 2, and joins it to `me`.
fn start(role: &str, me: &mut Endpoint) -> Other {
    let other = other_process::start(role);
    let (here, there) = pair(&CONFIG).unwrap();
    me.introduce(address(2), Rights::ALL, here).unwrap();
    pass(&other, Vec::from(there.into_descriptors()));
    other
}

fn pass(other: &Other, descriptors: Vec<OwnedFd>) {
    other.pass(&descriptors.iter().map(AsFd::as_fd).collect::<Vec<_>>());
}

fn part(me: &mut Endpoint, slot: u32) {
    me.part(address(slot), endpoint::Gone::Dead).unwrap();
}

#[test]
#[ignore = "the other process of the tests below, which start it"]
fn child() {
    let Some(role) = other_process::role() else { return };
    let Some(descriptors) = other_process::receive(2 * End::DESCRIPTORS) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words.as_slice() {
        ["cycle", me, from, to, after] => cycle(descriptors, [*me, *from, *to].map(number), number(after)),
        [role, spins] => live(descriptors, role, *spins == "spins"),
        other => panic!("no role {other:?}"),
    }
}

fn number(word: &str) -> u32 {
    word.parse().unwrap()
}

/// The life of the endpoint in slot 2, which ends by `kill -9`, or when slot 1 is gone.
fn live(descriptors: Vec<OwnedFd>, role: &str, spins: bool) {
    let spin = if spins { SpinPolicy::Adaptive } else { SpinPolicy::Never };
    let mut me = Endpoint::alone(address(2), &Options { spin, ..Options::default() }).unwrap();
    me.introduce(address(1), Rights::ALL, End::from_descriptors(descriptors).unwrap()).unwrap();
    let mut into = Vec::new();
    let parent = address(1);
    for number in 0_u32.. {
        let payload = number.to_le_bytes();
        let lives = match role {
            "send" => me.send(parent, number, &payload, None).is_ok(),
            "buffered" => me.send_buffered(parent, number, &payload, None).is_ok(),
            "request" => me.send_receive(parent, number, &payload, &mut into, 64, None).is_ok(),
            "receive" => me.receive(&From::Any, &mut into, None).is_ok(),
            "receive-one" => me.receive(&From::One(parent), &mut into, None).is_ok(),
            "serve" | "relay" => match me.receive(&From::One(parent), &mut into, None).map(|got| got.content)
            {
                Ok(Content::Request { asked, .. }) if role == "serve" => {
                    !matches!(me.reply(&asked, 0, &into), Err(Failed::Call(ReplyError::NoPeer(_))))
                }
                // To somebody whom nobody knows: refused, and asked again.
                Ok(Content::Request { asked, .. }) => me.relay(&asked, address(9), 0, &into).is_err(),
                other => other.is_ok(),
            },
            "notify" => me.notify(parent, u64::from(number) | 1).is_ok(),
            _ => other_process::receive(0).is_some(),
        };
        if !lives {
            return;
        }
    }
}

/// The calls of the survivor meanwhile, until its peer is dead: calls that suit the role, and each
/// must end.
fn survive(me: &mut Endpoint, role: &str) {
    let mut into = Vec::new();
    let (child, deadline) = (address(2), soon());
    let mut next = 0;
    loop {
        let dead = match role {
            "send" | "buffered" | "request" | "notify" => {
                match me.receive(&From::One(child), &mut into, deadline) {
                    Ok(received) => {
                        match received.content {
                            Content::Message { tag } => {
                                assert_eq!(
                                    (tag, into.as_slice()),
                                    (next, &tag.to_le_bytes()[..]),
                                    "in order, whole"
                                );
                                next += 1;
                            }
                            // Stale if it died meanwhile: then the next receive says so.
                            Content::Request { asked, tag } => {
                                assert_eq!(into, tag.to_le_bytes());
                                let _stale = me.reply(&asked, 1, &into);
                            }
                            Content::Notices(bits) => assert_ne!(bits, 0),
                        }
                        false
                    }
                    Err(Failed::Call(ReceiveError::NoPeer(NoPeer::Dead(_)))) => true,
                    Err(why) => panic!("{role}: {why}"),
                }
            }
            "receive" | "receive-one" => match me.send(child, next, b"", deadline) {
                Ok(()) => false,
                Err(Failed::Call(SendError::NoPeer(NoPeer::Dead(_)))) => true,
                Err(why) => panic!("{role}: {why}"),
            },
            "deaf" => match me.send_buffered(child, 1, &[0; 500], deadline) {
                Ok(()) => false,
                Err(Failed::Call(SendError::NoPeer(NoPeer::Dead(_)))) => true,
                Err(why) => panic!("{role}: {why}"),
            },
            _ => {
                // A relay that is refused leaves the request without an answer.
                let by =
                    if role == "relay" { Some(Instant::now() + Duration::from_millis(1)) } else { deadline };
                match me.send_receive(child, 1, b"question", &mut into, 64, by) {
                    Ok(_) => {
                        assert_eq!(into, b"question");
                        false
                    }
                    Err(Failed::Call(RequestError::TimedOut { .. })) if role == "relay" => false,
                    Err(Failed::Call(RequestError::NoPeer(NoPeer::Dead(_)))) => true,
                    Err(why) => panic!("{role}: {why}"),
                }
            }
        };
        if dead {
            return;
        }
    }
}

#[test]
fn whoever_dies_in_any_call_is_found_dead_and_nobody_else_is_harmed() {
    let mut me = pairs::alone(1, &Options::default());
    let mut bystander = pairs::alone(3, &Options::default());
    join(&mut me, &mut bystander);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for death in 0..DEATHS {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let role = ROLES[(death % ROLES.len() as u64) as usize];
        let spins = if random & 1 << 40 == 0 { "spins" } else { "sleeps" };
        let mut other = start(&format!("{role} {spins}"), &mut me);
        let delay = Duration::from_nanos(random >> 33 & 0x3f_ffff);
        let killing = std::thread::spawn(move || {
            // tidy(sleep): the moment of the death is what is random here.
            std::thread::sleep(delay);
            other.child.kill().unwrap();
            other.child.wait().unwrap();
        });
        survive(&mut me, role);
        killing.join().unwrap();
        part(&mut me, 2);
        bystander.send_buffered(address(1), 5, b"", soon()).unwrap();
        let got = me.receive(&From::Any, &mut Vec::new(), soon()).unwrap();
        assert_eq!((got.source, got.content), (address(3), Content::Message { tag: 5 }));
    }
}

/// One of a circle: each sends to the next, and then receives. It ends with 10 when its send was a
/// deadlock, with 11 when that was received.
fn cycle(descriptors: Vec<OwnedFd>, [slot, from, to]: [u32; 3], after_ms: u32) {
    let mut me = pairs::alone(slot, &Options::default());
    let mut ends = descriptors;
    let second = if ends.len() > End::DESCRIPTORS { ends.split_off(End::DESCRIPTORS) } else { Vec::new() };
    me.introduce(address(to), Rights::ALL, End::from_descriptors(ends).unwrap()).unwrap();
    if from != to {
        me.introduce(address(from), Rights::ALL, End::from_descriptors(second).unwrap()).unwrap();
    }
    // tidy(sleep): they begin at different times, so that each may be the one that is told.
    std::thread::sleep(Duration::from_millis(u64::from(after_ms)));
    let sent = match me.send_receive(address(to), 1, b"", &mut Vec::new(), 0, soon()) {
        Err(Failed::Call(RequestError::Deadlock { received: false, .. })) => false,
        Ok(_) => true,
        Err(why) => panic!("{slot}: {why}"),
    };
    if !sent {
        // It serves now, and so everybody else goes on, one after the other.
        let got = me.receive(&From::One(address(from)), &mut Vec::new(), soon()).unwrap();
        let Content::Request { asked, .. } = got.content else { panic!("{got:?}") };
        me.reply(&asked, 0, b"").unwrap();
        std::process::exit(DEADLOCK);
    }
    // Whoever asks us, waits for us and no more for others.
    match me.receive(&From::One(address(from)), &mut Vec::new(), soon()) {
        Ok(got) => {
            let Content::Request { asked, .. } = got.content else { panic!("{got:?}") };
            me.reply(&asked, 0, b"").unwrap();
        }
        // The one that was told of the deadlock withdrew its request to us, and is gone.
        Err(Failed::Call(ReceiveError::NoPeer(NoPeer::Dead(_)))) => {}
        Err(why) => panic!("{slot}: {why}"),
    }
    std::process::exit(ANSWERED);
}

const DEADLOCK: i32 = 10;
const ANSWERED: i32 = 11;

/// So many processes, each of which asks the next one, and the last the first.
fn circle(count: u32, after_ms: impl Fn(u32) -> u32) -> Vec<ExitStatus> {
    let mut ends: Vec<Vec<OwnedFd>> = (0..count).map(|_| Vec::new()).collect();
    let index = |slot: u32| (slot % count) as usize;
    if count == 2 {
        let (one, other) = pair(&CONFIG).unwrap();
        ends[0].extend(one.into_descriptors());
        ends[1].extend(other.into_descriptors());
    } else {
        let mut backward: Vec<Vec<OwnedFd>> = (0..count).map(|_| Vec::new()).collect();
        for slot in 0..count {
            let (to, from) = pair(&CONFIG).unwrap();
            ends[index(slot)].extend(to.into_descriptors());
            backward[index(slot + 1)].extend(from.into_descriptors());
        }
        for (end, back) in ends.iter_mut().zip(backward) {
            end.extend(back);
        }
    }
    let processes: Vec<Other> = (0..count)
        .map(|slot| {
            let (from, to) = ((slot + count - 1) % count + 1, (slot + 1) % count + 1);
            let other = other_process::start(&format!("cycle {} {from} {to} {}", slot + 1, after_ms(slot)));
            pass(&other, std::mem::take(&mut ends[slot as usize]));
            other
        })
        .collect();
    processes.into_iter().map(|mut other| other.child.wait().unwrap()).collect()
}

#[test]
fn a_circle_of_processes_is_reported_to_one_and_the_others_go_on() {
    for (count, after) in
        [(2, [0, 0, 0]), (2, [30, 0, 0]), (3, [0, 0, 0]), (3, [0, 30, 60]), (3, [60, 30, 0])]
    {
        let ended = circle(count, |slot| after[slot as usize]);
        let codes: Vec<_> = ended.iter().map(|status| status.code()).collect();
        let told = codes.iter().filter(|code| **code == Some(DEADLOCK)).count();
        let answered = codes.iter().filter(|code| **code == Some(ANSWERED)).count();
        assert_eq!((told, told + answered), (1, count as usize), "{count} processes ended with {codes:?}");
    }
}
