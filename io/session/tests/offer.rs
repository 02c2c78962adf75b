//! A program that offers a channel and programs that open it, introduced by a stand-in for the
//! daemon.

use channel::{End, Receiver, Sender};
use rustix::io::Errno;
use serde_json::json;
use session::{Control, ControlError, Offer, open_channel_at};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testing::FakeDaemon;
use wire::control::{Event, ServedService};

/// Far longer than anything takes; who waits in vain fails the test.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Stage {
    folder: tempfile::TempDir,
    daemon: Option<FakeDaemon>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = Some(start(folder.path()));
        Self { folder, daemon }
    }

    fn socket(&self, domain: &str) -> PathBuf {
        self.folder.path().join(domain).join("control.sock")
    }

    fn offer(&self) -> Result<Offer, ControlError> {
        Offer::at(&self.socket("camera"), "frames", soon())
    }

    fn open(&self) -> End {
        open_channel_at(&self.socket("viewer"), "frames", Some(soon())).expect("opened")
    }
}

fn start(folder: &std::path::Path) -> FakeDaemon {
    let settings =
        json!({ "ring_bytes": 4096, "mode": "messages", "max_channels": 8, "channels_per_domain": 8 });
    let frames = ServedService { name: "frames".into(), kind: "channel".into(), settings };
    FakeDaemon::start(folder, &["camera", "viewer"], vec![frames])
}

fn soon() -> Instant {
    Instant::now() + TIMEOUT
}

fn receive((_, receiver): &mut (Sender, Receiver)) -> Vec<u8> {
    let mut message = Vec::new();
    receiver.receive(&mut message, Some(soon())).expect("received");
    message
}

/// Each says something and hears the other.
fn assert_connected(one: End, other: End) -> ((Sender, Receiver), (Sender, Receiver)) {
    let (mut one, mut other) = (one.open().expect("an end"), other.open().expect("an end"));
    one.0.send(b"ping", Some(soon())).expect("sent");
    assert_eq!(receive(&mut other), b"ping");
    other.0.send(b"pong", Some(soon())).expect("sent");
    assert_eq!(receive(&mut one), b"pong");
    (one, other)
}

#[test]
fn who_offers_learns_who_opens_and_both_talk() {
    let stage = Stage::new();
    let mut offer = stage.offer().expect("offered");
    assert!(offer.try_accept().expect("nobody yet").is_none());
    let theirs = stage.open();
    let (ours, consumer) = offer.accept(Some(soon())).expect("accepted");
    assert_eq!((consumer.domain.as_str(), consumer.entrance.as_str()), ("viewer", "api"));
    let (mut kept, _theirs) = assert_connected(ours, theirs);
    // Whoever stops offering keeps what it has, and another one may offer.
    drop(offer);
    assert!(kept.0.send(b"still", Some(soon())).is_ok());
    stage.offer().expect("offered again");
}

#[test]
fn there_is_one_offer_at_a_time() {
    let stage = Stage::new();
    let _first = stage.offer().expect("offered");
    let busy = stage.offer().err();
    let busy_number = Errno::BUSY.raw_os_error();
    assert!(matches!(busy, Some(ControlError::Refused { errno, .. }) if errno == busy_number), "{busy:?}");
}

#[test]
fn an_accept_ends_at_its_deadline() {
    let stage = Stage::new();
    let mut offer = stage.offer().expect("offered");
    let error = offer.accept(Some(Instant::now())).err();
    assert!(matches!(error, Some(ControlError::Deadline)), "{error:?}");
}

#[test]
fn an_offer_and_its_channels_outlive_the_daemon() {
    let mut stage = Stage::new();
    let mut offer = stage.offer().expect("offered");
    let theirs = stage.open();
    let (ours, _) = offer.accept(Some(soon())).expect("accepted");
    let (mut ours, mut theirs) = assert_connected(ours, theirs);
    let pollable = offer.as_fd().as_raw_fd();
    for _ in 0..3 {
        stage.daemon.take().expect("it runs").kill();
        // That it is gone is no error, and nothing is busy with it.
        assert!(offer.try_accept().expect("no error").is_none());
        ours.0.send(b"without a daemon", Some(soon())).expect("sent");
        assert_eq!(receive(&mut theirs), b"without a daemon");
        stage.daemon = Some(start(stage.folder.path()));
        // Who opens now waits until the offer stands again, which it does by itself where somebody
        // accepts.
        let socket = stage.socket("viewer");
        let opener = std::thread::spawn(move || {
            loop {
                match open_channel_at(&socket, "frames", Some(soon())) {
                    Ok(end) => return end,
                    // The stand-in does not wait.
                    Err(ControlError::Refused { .. }) => std::thread::yield_now(),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        let (next, _) = offer.accept(Some(soon())).expect("accepted");
        assert_connected(next, opener.join().expect("opened"));
        assert_eq!(offer.as_fd().as_raw_fd(), pollable);
    }
}

#[test]
fn an_offer_that_is_taken_away_says_so_again_and_again() {
    let stage = Stage::new();
    let mut offer = stage.offer().expect("offered");
    let daemon = stage.daemon.as_ref().expect("it runs");
    daemon.tell_server(Event::Withdrawn { service: "sound".into(), message: "another one".into() });
    daemon.tell_server(Event::Withdrawn { service: "frames".into(), message: "moved".into() });
    for _ in 0..2 {
        let error = offer.accept(Some(soon())).err();
        assert!(matches!(&error, Some(ControlError::Withdrawn(why)) if why == "moved"), "{error:?}");
    }
}

#[test]
fn who_comes_second_after_the_daemons_death_is_told() {
    let mut stage = Stage::new();
    let mut offer = stage.offer().expect("offered");
    stage.daemon.take().expect("it runs").kill();
    stage.daemon = Some(start(stage.folder.path()));
    let _faster = stage.offer().expect("offered");
    for _ in 0..2 {
        let error = offer.accept(Some(soon())).err();
        assert!(matches!(error, Some(ControlError::Refused { .. })), "{error:?}");
    }
}

#[test]
fn where_there_is_no_daemon_and_no_time_to_wait_it_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("control.sock");
    let error = open_channel_at(&path, "frames", Some(Instant::now())).err();
    assert!(matches!(error, Some(ControlError::Connect { .. })), "{error:?}");
    let error = Offer::at(&path, "frames", Instant::now()).err();
    assert!(matches!(error, Some(ControlError::Deadline)), "{error:?}");
    let error = Control::connect(&path).err();
    assert!(matches!(error, Some(ControlError::Connect { .. })), "{error:?}");
}
