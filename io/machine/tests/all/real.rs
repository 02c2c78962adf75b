//! The machine process with the real QEMU and the real agent: what only they can show.

use crate::harness::{DEADLINE, Place, boot, order, readable};
use crate::relays::{Daemon, execute, heard};
use channel::{Config, End};
use image::{Image, Kernel, default_guest};
use machine::{MachineOrder, Patience, Word};
use session::packet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;
use wire::control::{Event, MountedService, Reply, Request};

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// How often each of two channels is replaced by another. Left to itself QEMU died at the sixth
/// time at the latest.
const ROUNDS: u64 = 15;

/// A guest with our agent, of `TOMBOLO_BIN` or the release build; `None`, and a printed reason,
/// where this machine can't.
fn image(state: &Path) -> Option<Image> {
    // target/PROFILE/deps/all-HASH
    let tests = std::env::current_exe().unwrap();
    let target = tests.ancestors().nth(3).unwrap();
    let named = std::env::var_os("TOMBOLO_BIN").map(PathBuf::from);
    let program = named.unwrap_or_else(|| target.join("product/tombolo"));
    if !program.is_file() {
        println!("skipped: {} is not there; build it, or name one by TOMBOLO_BIN", program.display());
        return None;
    }
    testing::assert_fresh(&program);
    let unpacked = target.join("debian/kernel");
    if !Path::new(QEMU).is_file() || Kernel::find(&unpacked).is_err() {
        println!("skipped: needs {QEMU} and a kernel in {}; run `make deps`", unpacked.display());
        return None;
    }
    // What other tests have built will do.
    let images = target.join("guests-of-nodes");
    std::fs::create_dir_all(&images).unwrap();
    std::fs::create_dir_all(state).unwrap();
    std::os::unix::fs::symlink(images, state.join("guests")).unwrap();
    Some(default_guest(state, Some(&unpacked), &program, &mut |_| {}).unwrap())
}

fn of_image(image: &Image) -> MachineOrder {
    let mut order = order(Path::new(QEMU), &image.kernel);
    order.initramfs = Some(image.initramfs.clone());
    order.memory_bytes = 256 << 20;
    order.boot.command.clear();
    order.boot.stub = true;
    order.boot.resolve = true;
    order
}

/// A service as a frontend is told of it.
fn service(generation: u64) -> MountedService {
    MountedService {
        name: "dns".into(),
        kind: "directory".into(),
        at: "dns".into(),
        verbs: vec!["resolve".into()],
        up: true,
        generation,
        targets: Vec::new(),
    }
}

/// `end`: one for a guest, and the other.
fn send(socket: &OwnedFd, reply: &Reply, end: Option<(End, &End)>) {
    let descriptors: Vec<OwnedFd> = end.map_or(Vec::new(), |(end, other)| {
        end.into_descriptors().into_iter().chain([other.sight().unwrap()]).collect()
    });
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    packet::send(socket, reply, &borrowed).unwrap();
}

// The entrances of the frontend get a new channel for each server that the service has, and give
// the old one up: two channels come and two go each time, with rings under way.
#[test]
fn channels_come_and_go_and_qemu_lives() {
    let place = Place::new();
    let Some(image) = image(&place.path("state")) else { return };
    let listener = Daemon::listen(&place);
    let running = place.start(&of_image(&image), Patience::default());
    let machine = Daemon::machine(&listener);
    let (frontend, its_frontend) = sys::descriptors::socket_pair().unwrap();
    let (entrances, its_entrances) = sys::descriptors::socket_pair().unwrap();
    for socket in [&frontend, &entrances] {
        rustix::io::ioctl_fionbio(socket, true).unwrap();
    }
    let boot = boot();
    let order = serde_json::json!({
        "dc": boot.dc, "domain": boot.domain, "successor": false, "stub_service": "dns", "resolve_service": "dns",
        "search": [],
    });
    let event = Reply::Event(Event::Frontend { order });
    packet::send(&machine, &event, &[its_frontend.as_fd(), its_entrances.as_fd()]).unwrap();
    drop((its_frontend, its_entrances));
    let mut peers = Vec::new();
    let mut generation = 1;
    let mut connected = 0;
    while generation <= ROUNDS {
        if !readable(&entrances, Instant::now() + DEADLINE) {
            running.signal(rustix::process::Signal::TERM);
            panic!("round {generation}: nothing is asked: {:?}", running.wait());
        }
        match heard(&entrances) {
            Request::Services { id } => {
                let services = vec![service(generation)];
                send(&entrances, &Reply::Services { id, services }, None);
            }
            Request::Connect { id, .. } => {
                let (ours, peer) = channel::pair(&Config { apart: true, ..Config::default() }).unwrap();
                send(
                    &entrances,
                    &Reply::Connected { id, channel: connected, memory: false },
                    Some((ours, &peer)),
                );
                connected += 1;
                let peer = peer.into_descriptors();
                peers.push(peer);
                // Whichever of the five are ringers; also those whose other end is about to go.
                for descriptor in peers.iter().flatten() {
                    if sys::doorbell::is_half(descriptor, sys::doorbell::Half::Ringer).unwrap() {
                        sys::doorbell::ring(descriptor).unwrap();
                    }
                }
                if connected % 2 == 0 {
                    generation += 1;
                    let event = Event::Service { service: "dns".into(), up: true, generation };
                    send(&entrances, &Reply::Event(event), None);
                    // The peers of before go, most of them later than the guest's ends.
                    let gone = peers.len().saturating_sub(if generation % 3 == 0 { 2 } else { 6 });
                    drop(peers.drain(..gone));
                }
            }
            other => panic!("{other:?}"),
        }
    }
    let id = execute(place.directory.path(), "id");
    assert!(id.iter().any(|packet| packet.starts_with(b"\x01uid=0")), "{id:?}");
    running.signal(rustix::process::Signal::TERM);
    let ended = running.wait();
    assert_eq!((ended.word(), ended.code), (Word::Stopped, 0), "{ended:?}");
    assert!(connected >= 2 * ROUNDS);
}
