//! A peer that keeps to no rule: it scribbles over the words of its pair, over the rings, and sends
//! records of any sort, at any time. Whoever calls it keeps its deadlines and never panics, and no
//! other pair notices.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod pairs;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use channel::{Config, Duplex, OpenOptions, pair};
use endpoint::{Address, Broken, Content, Endpoint, Failed, From, NoPeer, Options, Rights};
use pairs::{address, alone, join, soon};
use sys::region::Region;
use wire::ipc as layout;
use wire::ring;

const RING_BYTES: u32 = 4096;
/// Lives of hostile peers; each ends when it is cut off, or after so many calls.
const LIVES: u32 = 120;
const CALLS: u32 = 60;
/// Each call's time. It may be late by as much as a busy machine is, and no more.
const CALL: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_secs(20);

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number that may mean something.
    fn word(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => self.below(8),
            2 => layout::call_word(self.below(40), self.below(4)),
            3 => self.below(1 << 13) & !7,
            4 => layout::path_word(self.next() >> 8, self.below(256)),
            _ => self.next(),
        }
    }
}

/// The faults that the hostile peer may commit: the more there are, the sooner it is cut off.
#[derive(Clone, Copy, Debug)]
struct Mischief {
    /// One in so many deeds touches the rings' own words and bytes; 0: none.
    rings: u64,
    /// Likewise, the words of the pair.
    words: u64,
    /// Likewise, of records: one whose header is wrong.
    headers: u64,
}

/// The other side of a pair, played by somebody who keeps to no rule.
fn lie(mut end: Duplex, me: Address, other: Address, mischief: Mischief, seed: u64, stop: &AtomicBool) {
    let mut random = Random(seed | 1);
    let side = end.side();
    let words_of = |way: u64| layout::OFFSET_WORDS + way as usize * layout::WORDS_STRIDE;
    let offsets = [
        layout::WORD_CALL,
        layout::WORD_RECEIVED,
        layout::WORD_NOTICES,
        layout::WORD_WAITS,
        layout::WORD_PATH,
    ];
    while !stop.load(Ordering::Relaxed) {
        let one_in = |random: &mut Random, so_many| so_many != 0 && random.below(so_many) == 0;
        if one_in(&mut random, mischief.rings) {
            let at = match random.below(3) {
                0 => ring::OFFSET_CONTROLS + 8 * random.below(128) as usize,
                1 => ring::HEADER_BYTES + 8 * random.below(u64::from(RING_BYTES) / 4) as usize,
                _ => 8 * random.below(64) as usize,
            };
            let word = random.word();
            end.region().store_u64(at, word, Ordering::Relaxed);
        } else if one_in(&mut random, mischief.words) {
            let at = words_of(random.below(2)) + offsets[random.below(5) as usize];
            let word = random.word();
            end.region().store_u64(at, word, Ordering::Relaxed);
        } else {
            let wrong = one_in(&mut random, mischief.headers);
            deed(
                &mut end,
                &mut random,
                [me, other],
                [side, 1 - side].map(|side| words_of(side as u64)),
                wrong,
            );
        }
    }
}

/// Something that an endpoint might do, at the wrong time.
fn deed(
    end: &mut Duplex,
    random: &mut Random,
    [me, other]: [Address; 2],
    [out, inward]: [usize; 2],
    wrong: bool,
) {
    match random.below(8) {
        0..3 => {
            let what = if wrong { random.below(5) } else { 9 };
            let source = if what == 0 { other } else { me };
            let kind = if what == 1 { 7 } else { 1 + random.below(6) as u32 };
            let payload = match kind {
                layout::KIND_REFER => address(random.below(5) as u32).to_bytes().to_vec(),
                _ if what == 4 => vec![7; 300],
                _ => vec![7; random.below(200) as usize],
            };
            let length = payload.len() as u64 + u64::from(what == 2);
            let id = if (kind == layout::KIND_MESSAGE) == (what != 3) { 0 } else { 1 + random.below(30) };
            let takes = if kind == layout::KIND_REQUEST { random.below(100) } else { 0 };
            let words = [
                u64::from(source.generation) << 32 | u64::from(source.slot),
                length << 32 | random.below(100),
                takes << 32 | u64::from(kind),
                id,
            ];
            let waits = layout::call_word(id, layout::CALL_WAITING);
            end.region().store_u64(out + layout::WORD_CALL, waits, Ordering::Release);
            let _sent = end.send(words, &payload);
        }
        3 => {
            // Receives, whatever it is, and says so.
            let mut into = Vec::new();
            if let Ok(Some(_)) = end.look::<32>() {
                end.take(32, &mut into);
                let at = inward + layout::WORD_RECEIVED;
                let before = end.region().load_u64(at, Ordering::Relaxed);
                let bytes = layout::record_bytes(into.len()) as u64;
                end.region().store_u64(at, before.wrapping_add(bytes), Ordering::Release);
            }
        }
        4 => {
            let at = inward + layout::WORD_CALL;
            let (id, _) = layout::call_of(end.region().load_u64(at, Ordering::Acquire));
            let word = layout::call_word(id, random.below(4));
            end.region().store_u64(at, word, Ordering::Release);
        }
        5 => {
            end.region().or_u64(out + layout::WORD_NOTICES, random.next(), Ordering::AcqRel);
        }
        6 => {
            let _nobody = end.take_sleeper();
            let _rung = end.wake(channel::Wake::Doorbell);
        }
        _ => thread::yield_now(),
    }
}

struct HostilePeer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    _region: Region,
}

fn hire(me: &mut Endpoint, hostile: Address, mischief: Mischief, seed: u64) -> HostilePeer {
    let (here, there) = pair(&Config { ring_bytes: RING_BYTES, ..Config::default() }).unwrap();
    // Kept mapped, so that the memory outlives whoever closes first.
    let descriptors = there.into_descriptors();
    let region = Region::map(descriptors[4].as_fd(), 4096).unwrap();
    let there = channel::End::from_descriptors(Vec::from(descriptors)).unwrap();
    me.introduce(hostile, Rights::ALL, here).unwrap();
    let end = there.open_duplex(&OpenOptions::default()).unwrap();
    let (stop, whom) = (Arc::new(AtomicBool::new(false)), me.address());
    let stopped = Arc::clone(&stop);
    let thread = thread::spawn(move || lie(end, hostile, whom, mischief, seed, &stopped));
    HostilePeer { stop, thread, _region: region }
}

/// Makes a call of some sort; says why the peer is gone, if it is.
fn call(me: &mut Endpoint, hostile: Address, random: &mut Random) -> Option<NoPeer> {
    let mut into = Vec::new();
    let deadline = Some(Instant::now() + CALL);
    let began = Instant::now();
    let failed: Option<Box<dyn std::any::Any>> = match random.below(7) {
        0 => me.send(hostile, 1, b"payload", deadline).err().map(|why| Box::new(why) as _),
        1 => me.send_buffered(hostile, 1, &[1; 90], deadline).err().map(|why| Box::new(why) as _),
        2 => {
            me.send_receive(hostile, 1, b"what", &mut into, 50, deadline).err().map(|why| Box::new(why) as _)
        }
        3 => me.notify(hostile, 3).err().map(|why| Box::new(why) as _),
        other => {
            let from = if other == 4 { From::One(hostile) } else { From::Any };
            match me.receive(&from, &mut into, deadline) {
                Ok(received) => {
                    if let Content::Request { asked, .. } = received.content {
                        let _whatever = match random.below(3) {
                            0 => me.relay(&asked, address(3), 1, b"").is_ok(),
                            _ => me.reply(&asked, 1, b"answer").is_ok(),
                        };
                    }
                    None
                }
                Err(why) => Some(Box::new(why)),
            }
        }
    };
    assert!(began.elapsed() < CALL + LATE, "a hostile peer kept a call for {:?}", began.elapsed());
    let failed = failed?;
    gone(&*failed)
}

/// Why the peer is gone, of an error of any call.
fn gone(failed: &dyn std::any::Any) -> Option<NoPeer> {
    use endpoint::{NotifyError, ReceiveError, RequestError, SendError};
    if let Some(Failed::Call(SendError::NoPeer(why))) = failed.downcast_ref() {
        return Some(*why);
    }
    if let Some(Failed::Call(RequestError::NoPeer(why))) = failed.downcast_ref() {
        return Some(*why);
    }
    if let Some(Failed::Call(ReceiveError::NoPeer(why))) = failed.downcast_ref() {
        return Some(*why);
    }
    if let Some(Failed::Call(NotifyError::NoPeer(why))) = failed.downcast_ref() {
        return Some(*why);
    }
    None
}

/// A peer that does anything, and a bystander that notices nothing of it.
#[test]
fn whoever_keeps_to_no_rule_is_cut_off_and_harms_nobody_else() {
    let mut me = alone(1, &Options::default());
    let mut bystander = alone(3, &Options::default());
    join(&mut me, &mut bystander);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut rules: BTreeMap<String, u32> = BTreeMap::new();
    for life in 0..LIVES {
        let hostile = Address { slot: 2, generation: life + 1 };
        let mischief = match life % 4 {
            0 => Mischief { rings: 0, words: 0, headers: 0 },
            1 => Mischief { rings: 0, words: 50, headers: 0 },
            2 => Mischief { rings: 0, words: 0, headers: 40 },
            _ => Mischief { rings: 200, words: 100, headers: 100 },
        };
        let hired = hire(&mut me, hostile, mischief, random.next());
        for made in 0..CALLS {
            if let Some(why) = call(&mut me, hostile, &mut random) {
                let rule = match why {
                    NoPeer::Broken(_, Broken::Header(_)) => "header".to_owned(),
                    NoPeer::Broken(_, rule) => {
                        format!("{rule:?}").split([' ', '{', '(']).next().unwrap_or_default().to_owned()
                    }
                    _ => "closed".to_owned(),
                };
                *rules.entry(rule).or_default() += 1;
                break;
            }
            if made % 8 == 0 {
                ask_bystander(&mut me, &mut bystander);
            }
        }
        hired.stop.store(true, Ordering::Relaxed);
        hired.thread.join().unwrap();
        ask_bystander(&mut me, &mut bystander);
    }
    println!("cut off: {rules:?}");
    // Which ones, chance decides; that each has its name, the tests of `logic/ipc` show.
    assert!(rules.len() >= 3, "{rules:?}");
}

/// Checks that messages from and to the bystander arrive.
fn ask_bystander(me: &mut Endpoint, bystander: &mut Endpoint) {
    bystander.send_buffered(address(1), 77, b"all is well", soon()).unwrap();
    let mut into = Vec::new();
    let received = me.receive(&From::One(address(3)), &mut into, soon()).unwrap();
    assert_eq!((received.content, into.as_slice()), (Content::Message { tag: 77 }, &b"all is well"[..]));
    me.notify(address(3), 1).unwrap();
    loop {
        // Requests that were passed on to it for the hostile peer may be in front, and are nothing
        // to it.
        match bystander.receive(&From::Any, &mut into, soon()).unwrap().content {
            Content::Notices(_) => return,
            other => assert!(matches!(other, Content::Request { .. }), "{other:?}"),
        }
    }
}
