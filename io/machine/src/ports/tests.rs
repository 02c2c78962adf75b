//! The life of a channel's device, with the answers of a QEMU that is not there.

use super::*;
use channel::{Config, End as ChannelEnd, pair};
use std::cell::RefCell;
use std::os::fd::AsFd;
use std::rc::Rc;
use wire::guest::Message;

/// A QEMU that takes whatever it is given, as the real one does: descriptors, made blocking.
struct Qemu {
    conversation: Option<OwnedFd>,
    taken: Vec<OwnedFd>,
}

impl Qemu {
    fn take_all(&mut self) {
        let Some(conversation) = &self.conversation else { return };
        while rustix::io::ioctl_fionread(conversation).unwrap() > 0 {
            let (_, descriptors) =
                sys::descriptors::receive_with_descriptors(conversation, &mut [0; 8], 1).unwrap();
            for descriptor in &descriptors {
                rustix::io::ioctl_fionbio(descriptor, false).unwrap();
            }
            self.taken.extend(descriptors);
        }
    }
}

fn held() -> Held {
    Held { stream: 2, packet: b"{}".to_vec() }
}

fn ends() -> (EndParts, ChannelEnd) {
    let (ours, peer) = pair(&Config { apart: true, ..Config::default() }).unwrap();
    let sight = peer.sight().unwrap();
    (EndParts::of(ours.into_descriptors().into_iter().chain([sight]).collect()).unwrap(), peer)
}

/// A stand-in for QEMU: how many sockets it has been given, and whether it still has a map.
#[derive(Debug, Clone, Default)]
struct FakeTable(Rc<RefCell<(u32, usize)>>);

/// The first of the two numbers under which this QEMU listens for a device. The one below is free
/// when the device is gone.
const NUMBER: u32 = 40;

impl Table for FakeTable {
    fn listeners(&self, _half: &OwnedFd) -> std::io::Result<Vec<u32>> {
        Ok(vec![NUMBER, NUMBER + 1])
    }

    fn has_at(&self, number: u32, _file: &OwnedFd) -> bool {
        // The lowest free number comes first.
        number < NUMBER - 1 + self.0.borrow().0
    }

    fn maps(&self, _inode: u64) -> usize {
        self.0.borrow().1
    }
}

fn ports() -> Ports {
    without_watches(FakeTable::default())
}

/// Ports of which each passes rings on by itself.
fn without_watches(table: FakeTable) -> Ports {
    Ports { most_watches: 0, ..Ports::new(table) }
}

fn steps(acts: &[Act]) -> Vec<Step> {
    acts.iter()
        .filter_map(|act| match act {
            Act::Ask(_, step, _) => Some(*step),
            Act::Done(_) => None,
        })
        .collect()
}

/// Lets QEMU answer one step well; what it is asked then.
fn well(ports: &mut Ports, port: usize, step: Step) -> Vec<Step> {
    steps(&ports.answered(port, step, Ok(()), 0))
}

/// Begins to plug an end in.
fn begin(ports: &mut Ports, hearing: Hearing) -> (usize, ChannelEnd, Qemu) {
    let (parts, peer) = ends();
    let mut acts = ports.plug(held(), parts, hearing, 0);
    let Some(Act::Ask(port, Step::Give, mut give)) = acts.pop() else { panic!("{acts:?}") };
    assert!(acts.is_empty());
    (port, peer, Qemu { conversation: give.take_descriptor(), taken: Vec::new() })
}

/// Plugs an end in, up to the message to the guest.
fn plugged(ports: &mut Ports, hearing: Hearing) -> (usize, End, ChannelEnd, Qemu) {
    let (port, peer, mut qemu) = begin(ports, hearing);
    assert_eq!(well(ports, port, Step::Give), [Step::Backend]);
    assert_eq!(well(ports, port, Step::Backend), [Step::Plug]);
    assert_eq!(well(ports, port, Step::Plug), [Step::Taken]);
    assert_eq!(well(ports, port, Step::Taken), [Step::Taken], "not taken yet");
    qemu.take_all();
    assert_eq!(well(ports, port, Step::Taken), [Step::Settled]);
    let mut acts = ports.answered(port, Step::Settled, Ok(()), 0);
    let Some(Act::Done(Done::Plugged(held, end))) = acts.pop() else { panic!("{acts:?}") };
    assert_eq!(held.packet, b"{}");
    (port, end, peer, qemu)
}

/// A QEMU whose answers came quickly, and whose loop turned slowly, was given up after a hundred of
/// them, within milliseconds.
#[test]
fn qemu_has_its_time_for_taking_descriptors_however_quickly_it_answers() {
    let (mut ports, plenty) = (ports(), 10_000);
    let (port, _peer, mut qemu) = begin(&mut ports, Hearing::Doorbells);
    for step in [Step::Give, Step::Backend, Step::Plug] {
        well(&mut ports, port, step);
    }
    let mut look = |now_ms| steps(&ports.answered(port, Step::Taken, Ok(()), now_ms));
    for _ in 0..plenty {
        assert_eq!(look(1_000), [Step::Taken]);
    }
    assert_eq!(look(2_999), [Step::Taken]);
    qemu.take_all();
    assert_eq!(look(3_001), [Step::Settled], "it has taken them");
    // Another one does not.
    let mut ports = self::ports();
    let (port, _peer, _qemu) = begin(&mut ports, Hearing::Doorbells);
    for step in [Step::Give, Step::Backend, Step::Plug] {
        well(&mut ports, port, step);
    }
    let mut look = |now_ms| steps(&ports.answered(port, Step::Taken, Ok(()), now_ms));
    for _ in 0..plenty {
        assert_eq!(look(5_000), [Step::Taken]);
    }
    assert_ne!(look(7_000), [Step::Taken], "it is given up");
}

fn polled(ports: &Ports) -> usize {
    ports.bells(true).count()
}

#[test]
fn a_device_comes_and_goes_and_its_port_is_free_again() {
    for hearing in [Hearing::Frames, Hearing::Eventfds] {
        let mut ports = ports();
        let (port, end, _peer, qemu) = plugged(&mut ports, hearing);
        assert_eq!((end.channel, end.device.as_str(), end.side), (1, "10.0/00.0", 0));
        assert_eq!(end.bytes.count_ones(), 1);
        assert_eq!(qemu.taken.len(), if hearing == Hearing::Frames { 3 } else { 5 });
        assert!(ports.released(7, 0).is_err(), "not its own");
        assert_eq!(steps(&ports.released(1, 0).unwrap()), [Step::Quiet]);
        assert!(ports.released(1, 0).is_err(), "once is enough");
        assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Quiet]);
        assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Unplug]);
        assert_eq!(well(&mut ports, port, Step::Unplug), []);
        assert_eq!(ports.in_use(), 1);
        assert_eq!(steps(&ports.deleted("channel1", 0)), [Step::Remove]);
        assert!(ports.deleted("channel1", 0).is_empty());
        assert_eq!(well(&mut ports, port, Step::Remove), []);
        assert_eq!(ports.in_use(), 0);
    }
}

// QEMU (7.2) under emulation does not take its handlers away with a device: they stay with the
// numbers of its descriptors, and it died of the next descriptor that got such a number. And it
// closes the region's descriptor a second time, when its map goes.
#[test]
fn what_qemu_keeps_of_a_device_is_seen_to_before_anything_else_comes() {
    let table = FakeTable::default();
    let mut ports = without_watches(table.clone());
    let (port, _, _peer, _) = plugged(&mut ports, Hearing::Doorbells);
    let (second, _, _second_peer, _) = plugged(&mut ports, Hearing::Frames);
    table.0.borrow_mut().1 = 2;
    assert_eq!(steps(&ports.released(1, 0).unwrap()), [Step::Quiet]);
    while well(&mut ports, port, Step::Quiet) == [Step::Quiet] {}
    let (parts, _third_peer) = ends();
    assert!(ports.plug(held(), parts, Hearing::Doorbells, 0).is_empty(), "it waits");
    assert!(ports.released(2, 0).unwrap().is_empty(), "and so does this");
    well(&mut ports, port, Step::Unplug);
    assert!(ports.deleted("channel1", 100).is_empty(), "its map is still there");
    let look = ports.overdue_at().unwrap();
    assert!(ports.overdue(look).is_empty());
    table.0.borrow_mut().1 = 1;
    let look = ports.overdue_at().unwrap();
    assert_eq!(steps(&ports.overdue(look)), [Step::Cover]);
    for _ in 0..2 {
        table.0.borrow_mut().0 += 1;
        assert_eq!(well(&mut ports, port, Step::Cover), [Step::Cover], "the first fills the gap below");
    }
    table.0.borrow_mut().0 += 1;
    assert_eq!(well(&mut ports, port, Step::Cover), [Step::Chore]);
    while well(&mut ports, port, Step::Chore) == [Step::Chore] {}
    assert_eq!(well(&mut ports, port, Step::Remove), [Step::Quiet], "the second goes");
    while well(&mut ports, second, Step::Quiet) == [Step::Quiet] {}
    table.0.borrow_mut().1 = 0;
    assert_eq!(steps(&ports.deleted("channel2", 200)), [Step::Remove], "nobody listened for it");
    assert_eq!(well(&mut ports, second, Step::Remove), [Step::Give], "the third comes");
}

#[test]
fn a_map_that_does_not_go_is_not_waited_for_without_end() {
    let table = FakeTable::default();
    let mut ports = without_watches(table.clone());
    let (port, _, _peer, _) = plugged(&mut ports, Hearing::Frames);
    table.0.borrow_mut().1 = 1;
    ports.released(1, 0).unwrap();
    well(&mut ports, port, Step::Unplug);
    assert!(ports.deleted("channel1", 100).is_empty());
    let given_up = (0..10_000).find_map(|_| {
        let at = ports.overdue_at().unwrap();
        (steps(&ports.overdue(at)) == [Step::Remove]).then_some(at)
    });
    assert_eq!(given_up, Some(2_100));
}

#[test]
fn a_guest_that_holds_everybody_up_is_not_waited_for_without_end() {
    let mut ports = ports();
    let (_, _, _peer, _) = plugged(&mut ports, Hearing::Doorbells);
    ports.released(1, 0).unwrap();
    let (parts, _second_peer) = ends();
    assert!(ports.plug(held(), parts, Hearing::Doorbells, 0).is_empty());
    let begun = (0..5).find_map(|_| {
        let at = ports.overdue_at().unwrap();
        steps(&ports.overdue(at)).contains(&Step::Give).then_some(at)
    });
    assert_eq!(begun, Some(30_000));
}

// QEMU makes blocking what it is passed, in the open file that all copies share. A peer that fills
// a doorbell would then stop the guest's processors, and one that writes 512 bytes (what QEMU reads
// at a time) its main loop.
#[test]
fn no_half_that_qemu_has_can_block_it() {
    let mut ports = ports();
    let (_, _, _peer, qemu) = plugged(&mut ports, Hearing::Doorbells);
    for half in &qemu.taken[1..] {
        assert!(rustix::fs::fcntl_getfl(half).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }
}

// QEMU polls the doorbells and does not expect that they hang up: it turned in circles, a processor
// for each dead peer.
#[test]
fn the_peers_death_is_told_once_and_leaves_nothing_to_poll() {
    let mut ports = ports();
    let (port, _, peer, qemu) = plugged(&mut ports, Hearing::Doorbells);
    assert_eq!(polled(&ports), 2);
    assert_eq!(ports.heard(Bell { port, which: 0 }, 0), []);
    drop(peer);
    assert_eq!(ports.heard(Bell { port, which: 0 }, 0), [Message::Hangup { channel: 1 }]);
    assert_eq!(ports.heard(Bell { port, which: 1 }, 0), []);
    assert_eq!(polled(&ports), 0);
    for heard in &qemu.taken[3..] {
        assert!(!sys::doorbell::is_dead(heard).unwrap(), "QEMU sees no hang-up any more");
    }
}

#[test]
fn a_peer_that_dies_while_its_channel_is_plugged_is_told_of_behind_the_end() {
    let mut ports = ports();
    let (port, peer, mut qemu) = begin(&mut ports, Hearing::Doorbells);
    qemu.take_all();
    drop(peer);
    assert_eq!(ports.heard(Bell { port, which: 1 }, 0), []);
    for step in [Step::Give, Step::Backend, Step::Plug, Step::Taken, Step::Settled] {
        well(&mut ports, port, step);
    }
    assert_eq!(ports.told(1), Some(Message::Hangup { channel: 1 }));
    assert_eq!(ports.told(1), None);
}

#[test]
fn rings_are_passed_on_where_qemu_does_not_listen() {
    let mut ports = ports();
    let (port, _, peer, qemu) = plugged(&mut ports, Hearing::Eventfds);
    let (frames, end, frames_peer, _) = plugged(&mut ports, Hearing::Frames);
    let ring_data = |peer: ChannelEnd| {
        let descriptors = peer.into_descriptors();
        sys::doorbell::ring(&descriptors[1]).unwrap();
        descriptors
    };
    let kept = (ring_data(peer), ring_data(frames_peer));
    assert_eq!(polled(&ports), 4);
    let ports_of = |ports: &Ports| ports.bells(false).map(|(bell, ..)| bell.port).collect::<Vec<_>>();
    assert_eq!(ports_of(&ports), [port; 2], "a guest that does not read its port gets no more by it");
    assert_eq!(ports.heard(Bell { port, which: 0 }, 0), []);
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&qemu.taken[3], &mut count).unwrap(), 8, "the eventfd of *data*");
    let ring = Message::Ring { channel: end.channel, vector: VECTOR_OF_DATA };
    assert_eq!(ports.heard(Bell { port: frames, which: 0 }, 0), [ring]);
    drop(kept);
    assert_eq!(ports.heard(Bell { port, which: 1 }, 0), [Message::Hangup { channel: 1 }]);
}

const VECTOR_OF_DATA: u8 = wire::guest::VECTOR_DATA;

// A ring that QEMU has seen and not heard when the device goes is heard by a handler of a device
// that is no more.
#[test]
fn a_device_does_not_go_before_qemu_has_heard_all_rings() {
    let mut ports = ports();
    let (port, _, peer, qemu) = plugged(&mut ports, Hearing::Doorbells);
    let descriptors = peer.into_descriptors();
    for _ in 0..2 {
        sys::doorbell::ring(&descriptors[1]).unwrap();
        assert_eq!(ports.heard(Bell { port, which: 0 }, 0), []);
    }
    assert_eq!(steps(&ports.released(1, 0).unwrap()), [Step::Quiet]);
    assert_eq!(ports.bells(true).count(), 0, "nothing more is passed on");
    for _ in 0..3 {
        assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Quiet]);
    }
    assert_eq!(sys::doorbell::listen(&qemu.taken[3]).unwrap(), sys::doorbell::Heard::Ring, "QEMU hears it");
    assert_eq!(
        sys::doorbell::listen(&qemu.taken[3]).unwrap(),
        sys::doorbell::Heard::Silence,
        "and once is enough"
    );
    assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Quiet]);
    assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Unplug]);
}

// The same where the kernel passes the rings on: from the guest's word on it does not any more, and
// the unplugging waits for the last one.
#[test]
fn what_the_kernel_passes_on_ends_before_the_device_goes() {
    let mut ports = Ports::new(FakeTable::default());
    let (port, _, peer, qemu) = plugged(&mut ports, Hearing::Doorbells);
    if !ports.devices().any(|(_, device)| device.has_watch()) {
        println!("skipped: no watch for a doorbell here");
        return;
    }
    let descriptors = peer.into_descriptors();
    let hears = || rustix::io::read(&qemu.taken[3], &mut [0; 512]).is_ok();
    for _ in 0..50 {
        sys::doorbell::ring(&descriptors[1]).unwrap();
        assert!(hears() && !hears(), "with nobody's help");
    }
    (0..10_000).for_each(|_| sys::doorbell::ring(&descriptors[1]).unwrap());
    assert!(hears() && !hears());
    sys::doorbell::ring(&descriptors[1]).unwrap();
    assert!(!hears(), "it is full");
    assert_eq!(ports.heard(Bell { port, which: 0 }, 50), []);
    assert!(hears(), "that some may have been lost is known");
    let wanted = |ports: &Ports| ports.bells(true).map(|(_, _, events)| events).collect::<Vec<_>>();
    assert_eq!(wanted(&ports), [PollFlags::empty(), PollFlags::IN], "it rests, but for its hang-up");
    let rested = ports.overdue_at().unwrap();
    assert!(ports.overdue(rested).is_empty());
    assert_eq!((wanted(&ports), ports.overdue_at()), (vec![PollFlags::IN; 2], None));
    sys::doorbell::ring(&descriptors[3]).unwrap();
    assert_eq!(ports.heard(Bell { port, which: 1 }, 50), []);
    assert_eq!(sys::doorbell::listen(&qemu.taken[4]).unwrap(), sys::doorbell::Heard::Ring, "by our hand");
    let mut asked = steps(&ports.released(1, 60).unwrap());
    sys::doorbell::ring(&descriptors[1]).unwrap();
    assert_eq!(ports.bells(true).count(), 0, "nobody listens");
    // At its times, however long the kernel takes.
    while asked.is_empty() {
        let at = ports.overdue_at().unwrap();
        asked = steps(&ports.overdue(at));
        std::thread::yield_now();
    }
    assert_eq!(asked, [Step::Quiet]);
    assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Quiet], "its end is an event as well");
    assert!(hears() && !hears());
    assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Quiet]);
    assert_eq!(well(&mut ports, port, Step::Quiet), [Step::Unplug]);
    sys::doorbell::ring(&descriptors[1]).unwrap();
    assert!(!hears(), "the device may be gone");
    drop(descriptors);
}

#[test]
fn not_every_channel_has_a_watch() {
    let mut ports = Ports::new(FakeTable::default());
    let peers: Vec<_> = (0..MAX_WATCHES + 2).map(|_| plugged(&mut ports, Hearing::Doorbells).2).collect();
    let watches = |ports: &Ports| ports.devices().filter(|(_, device)| device.has_watch()).count();
    if watches(&ports) == 0 {
        println!("skipped: no watch for a doorbell here");
        return;
    }
    // Other tests take some of the instances that there are.
    assert!(watches(&ports) <= MAX_WATCHES);
    let descriptors = peers.into_iter().map(ChannelEnd::into_descriptors).collect::<Vec<_>>();
    drop(descriptors);
}

#[test]
fn what_goes_wrong_gives_the_packet_back_and_frees_the_port() {
    for (good, bad, undo) in [
        (&[][..], Step::Give, None),
        (&[Step::Give], Step::Backend, None),
        (&[Step::Give, Step::Backend], Step::Plug, Some(Step::Remove)),
    ] {
        let mut ports = ports();
        let (port, peer, give) = begin(&mut ports, Hearing::Doorbells);
        drop(give);
        good.iter().for_each(|step| drop(well(&mut ports, port, *step)));
        let mut acts = ports.answered(port, bad, Err("no".to_owned()), 0);
        assert_eq!(steps(&acts), undo.as_slice());
        let Some(Act::Done(Done::NotPlugged(held, Errno::IO, why))) = acts.pop() else { panic!("{bad:?}") };
        assert_eq!((held.stream, why.as_str()), (2, "no"));
        undo.iter().for_each(|undo| drop(well(&mut ports, port, *undo)));
        assert_eq!(ports.in_use(), 0, "{bad:?}");
        let hangs_up = peer.into_descriptors();
        assert!(sys::doorbell::is_dead(hangs_up[0].as_fd()).unwrap(), "the peer sees that nobody came");
    }
}

#[test]
fn a_guest_that_keeps_its_devices_runs_out_of_ports_and_is_asked_again() {
    let mut ports = ports();
    let mut peers = Vec::new();
    for channel in 1..=u32::try_from(MAX_CHANNELS).unwrap() {
        let (_, end, peer, _) = plugged(&mut ports, Hearing::Frames);
        assert_eq!(end.channel, channel);
        peers.push(peer);
    }
    let (parts, _peer) = ends();
    let acts = ports.plug(held(), parts, Hearing::Doorbells, 0);
    let [Act::Done(Done::NotPlugged(held, Errno::MFILE, why))] = acts.as_slice() else { panic!("{acts:?}") };
    assert_eq!(held.stream, 2);
    assert!(why.contains("close some"), "{why}");
    assert_eq!(ports.overdue_at(), None);
    ports.released(5, 100).unwrap();
    let again = ports.overdue_at().unwrap();
    assert!(ports.overdue(again - 1).is_empty());
    let acts = ports.overdue(again);
    assert!(matches!(acts.as_slice(), [Act::Ask(4, Step::Unplug, _)]), "{acts:?}");
    assert!(ports.overdue(again).is_empty(), "not in a hurry");
}

#[test]
fn a_device_that_the_guest_throws_out_is_still_its_channel() {
    let mut ports = ports();
    let (port, end, _peer, _) = plugged(&mut ports, Hearing::Frames);
    assert_eq!(steps(&ports.deleted("channel1", 0)), [Step::Remove]);
    well(&mut ports, port, Step::Remove);
    assert_eq!(ports.in_use(), 1);
    assert!(ports.released(end.channel, 0).unwrap().is_empty(), "nothing to unplug");
    assert_eq!(ports.in_use(), 0);
    assert!(ports.deleted("something else", 0).is_empty());
}
