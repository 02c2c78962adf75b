//! The life of a channel's device, with the answers of a QEMU that is not there.

use super::*;
use channel::{Config, End as ChannelEnd, pair};
use std::os::fd::AsFd;
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
    (EndParts::of(ours.into_descriptors().into()).unwrap(), peer)
}

fn names(next: &Next) -> Option<Step> {
    next.ask.as_ref().map(|(step, _)| *step)
}

/// Plugs an end in, up to the message to the guest.
fn plugged(ports: &mut Ports, hearing: Hearing) -> (usize, End, ChannelEnd, Qemu) {
    let (parts, peer) = ends();
    let (port, step, mut give) = ports.plug(held(), parts, hearing).unwrap();
    assert_eq!(step, Step::Give);
    let mut qemu = Qemu { conversation: give.take_descriptor(), taken: Vec::new() };
    assert_eq!(names(&ports.answered(port, Step::Give, Ok(()), 0)), Some(Step::Backend));
    assert_eq!(names(&ports.answered(port, Step::Backend, Ok(()), 0)), Some(Step::Plug));
    assert_eq!(names(&ports.answered(port, Step::Plug, Ok(()), 0)), Some(Step::Taken));
    assert_eq!(names(&ports.answered(port, Step::Taken, Ok(()), 0)), Some(Step::Taken), "not taken yet");
    qemu.take_all();
    assert_eq!(names(&ports.answered(port, Step::Taken, Ok(()), 0)), Some(Step::Settled));
    let next = ports.answered(port, Step::Settled, Ok(()), 0);
    let Some(Done::Plugged(held, end)) = next.done else { panic!("{next:?}") };
    assert_eq!(held.packet, b"{}");
    (port, end, peer, qemu)
}

fn polled(ports: &Ports) -> usize {
    ports.bells(true).count()
}

#[test]
fn a_device_comes_and_goes_and_its_port_is_free_again() {
    let mut ports = Ports::new();
    let (port, end, peer, qemu) = plugged(&mut ports, Hearing::Direct);
    assert_eq!((end.channel, end.device.as_str(), end.side), (1, "10.0/00.0", 0));
    assert_eq!(end.bytes.count_ones(), 1);
    assert_eq!(qemu.taken.len(), 5);
    assert!(ports.released(7, 0).is_err(), "not its own");
    let (_, step, _) = ports.released(1, 0).unwrap().unwrap();
    assert_eq!(step, Step::Unplug);
    assert!(ports.released(1, 0).is_err(), "once is enough");
    ports.answered(port, Step::Unplug, Ok(()), 0);
    assert_eq!(ports.in_use(), 1);
    let (_, step, _) = ports.deleted("channel1").unwrap();
    assert_eq!(step, Step::Remove);
    assert!(ports.deleted("channel1").is_none());
    ports.answered(port, Step::Remove, Ok(()), 0);
    assert_eq!(ports.in_use(), 0);
    drop(peer);
}

// QEMU makes blocking what it is passed, in the open file that all copies share. A peer that fills a doorbell would then stop the guest's
// processors, and one that writes 512 bytes (what QEMU reads at a time) its main loop.
#[test]
fn no_half_that_qemu_has_can_block_it() {
    let mut ports = Ports::new();
    let (_, _, _peer, qemu) = plugged(&mut ports, Hearing::Direct);
    for half in &qemu.taken[1..] {
        assert!(rustix::fs::fcntl_getfl(half).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }
}

// QEMU polls the doorbells and does not expect that they hang up: it turned in circles, a processor for each dead peer.
#[test]
fn the_peers_death_is_told_once_and_leaves_nothing_to_poll() {
    let mut ports = Ports::new();
    let (port, _, peer, qemu) = plugged(&mut ports, Hearing::Direct);
    assert_eq!(polled(&ports), 2);
    assert_eq!(ports.heard(Bell { port, which: 0 }), []);
    drop(peer);
    assert_eq!(ports.heard(Bell { port, which: 0 }), [Message::Hangup { channel: 1 }]);
    assert_eq!(ports.heard(Bell { port, which: 1 }), []);
    assert_eq!(polled(&ports), 0);
    for heard in &qemu.taken[3..] {
        assert!(!sys::doorbell::is_dead(heard).unwrap(), "QEMU sees no hang-up any more");
    }
}

#[test]
fn a_peer_that_dies_while_its_channel_is_plugged_is_told_of_behind_the_end() {
    let mut ports = Ports::new();
    let (parts, peer) = ends();
    let (port, _, mut give) = ports.plug(held(), parts, Hearing::Direct).unwrap();
    let mut qemu = Qemu { conversation: give.take_descriptor(), taken: Vec::new() };
    qemu.take_all();
    drop(peer);
    assert_eq!(ports.heard(Bell { port, which: 1 }), []);
    for step in [Step::Give, Step::Backend, Step::Plug, Step::Taken, Step::Settled] {
        ports.answered(port, step, Ok(()), 0);
    }
    assert_eq!(ports.told(1), Some(Message::Hangup { channel: 1 }));
    assert_eq!(ports.told(1), None);
}

#[test]
fn rings_are_passed_on_where_qemu_does_not_listen() {
    let mut ports = Ports::new();
    let (port, _, peer, qemu) = plugged(&mut ports, Hearing::Eventfds);
    let (frames, end, frames_peer, _) = plugged(&mut ports, Hearing::Frames);
    let ring_data = |peer: ChannelEnd| {
        let descriptors = peer.into_descriptors();
        sys::doorbell::ring(&descriptors[1]).unwrap();
        descriptors
    };
    let kept = (ring_data(peer), ring_data(frames_peer));
    assert_eq!(polled(&ports), 4);
    assert_eq!(ports.bells(false).count(), 0, "a guest that does not read gets no more");
    assert_eq!(ports.heard(Bell { port, which: 0 }), []);
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&qemu.taken[3], &mut count).unwrap(), 8, "the eventfd of *data*");
    let ring = Message::Ring { channel: end.channel, vector: VECTOR_OF_DATA };
    assert_eq!(ports.heard(Bell { port: frames, which: 0 }), [ring]);
    drop(kept);
    assert_eq!(ports.heard(Bell { port, which: 1 }), [Message::Hangup { channel: 1 }]);
}

const VECTOR_OF_DATA: u8 = wire::guest::VECTOR_DATA;

#[test]
fn what_goes_wrong_gives_the_packet_back_and_frees_the_port() {
    for (good, bad, undo) in [
        (&[][..], Step::Give, None),
        (&[Step::Give], Step::Backend, None),
        (&[Step::Give, Step::Backend], Step::Plug, Some(Step::Remove)),
    ] {
        let mut ports = Ports::new();
        let (parts, peer) = ends();
        let (port, _, give) = ports.plug(held(), parts, Hearing::Direct).unwrap();
        drop(give);
        good.iter().for_each(|step| drop(ports.answered(port, *step, Ok(()), 0)));
        let next = ports.answered(port, bad, Err("no".to_owned()), 0);
        assert_eq!(names(&next), undo);
        let Some(Done::NotPlugged(held, why)) = next.done else { panic!("{bad:?}") };
        assert_eq!((held.stream, why.as_str()), (2, "no"));
        if let Some(undo) = undo {
            ports.answered(port, undo, Ok(()), 0);
        }
        assert_eq!(ports.in_use(), 0, "{bad:?}");
        let hangs_up = peer.into_descriptors();
        assert!(sys::doorbell::is_dead(hangs_up[0].as_fd()).unwrap(), "the peer sees that nobody came");
    }
}

#[test]
fn a_guest_that_keeps_its_devices_runs_out_of_ports_and_is_asked_again() {
    let mut ports = Ports::new();
    let mut peers = Vec::new();
    for channel in 1..=u32::try_from(MAX_CHANNELS).unwrap() {
        let (_, end, peer, _) = plugged(&mut ports, Hearing::Frames);
        assert_eq!(end.channel, channel);
        peers.push(peer);
    }
    let (parts, _peer) = ends();
    let (held, why) = ports.plug(held(), parts, Hearing::Direct).unwrap_err();
    assert_eq!(held.stream, 2);
    assert!(why.contains("close some"), "{why}");
    assert_eq!(ports.overdue_at(), None);
    ports.released(5, 100).unwrap();
    let again = ports.overdue_at().unwrap();
    assert!(ports.overdue(again - 1).is_none());
    assert!(matches!(ports.overdue(again), Some((4, Step::Unplug, _))));
    assert!(ports.overdue(again).is_none(), "not in a hurry");
}

#[test]
fn a_device_that_the_guest_throws_out_is_still_its_channel() {
    let mut ports = Ports::new();
    let (port, end, _peer, _) = plugged(&mut ports, Hearing::Direct);
    let (_, step, _) = ports.deleted("channel1").unwrap();
    ports.answered(port, step, Ok(()), 0);
    assert_eq!(ports.in_use(), 1);
    assert!(ports.released(end.channel, 0).unwrap().is_none(), "nothing to unplug");
    assert_eq!(ports.in_use(), 0);
    assert!(ports.deleted("something else").is_none());
}
