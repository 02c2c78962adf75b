//! Two programs meet at a path: what works, who is kept out, and what a path may have on it.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use channel::meeting::{Absent, Admission, MeetError, Offer, OfferError, open};
use channel::{Config, End, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use wire::meeting::{BadGreeting, Greeting};

/// Longer than anything here takes on a busy machine, and short enough to fail in.
const TIMEOUT: Duration = Duration::from_secs(20);

fn soon() -> Option<Instant> {
    Some(Instant::now() + TIMEOUT)
}

fn offer(path: &Path) -> Offer {
    Offer::new(path, Config::default(), Admission::SameUser).unwrap()
}

fn open_now(path: &Path) -> Result<End, MeetError> {
    open(path, Admission::SameUser, Absent::Fail, soon()).map(|(end, _)| end)
}

/// A socket as a hostile or clumsy offerer may have it.
fn listener(path: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 4).unwrap();
    socket
}

struct Stage(tempfile::TempDir);

impl Stage {
    fn set() -> (Self, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        (Self(folder), path)
    }

    fn is_empty(&self) -> bool {
        std::fs::read_dir(self.0.path()).unwrap().next().is_none()
    }
}

#[test]
fn each_opener_gets_a_channel_of_its_own() {
    let (stage, path) = Stage::set();
    let config = Config { mode: Mode::Stream, ..Config::default() };
    let offer = Offer::new(&path, config, Admission::SameUser).unwrap();
    assert_eq!(offer.path(), path);
    assert!(offer.try_accept().unwrap().is_none());
    let openers: Vec<_> = (0..3)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || open(&path, Admission::SameUser, Absent::Fail, soon()).unwrap())
        })
        .collect();
    let accepted: Vec<_> = openers.iter().map(|_| offer.accept(soon()).unwrap()).collect();
    let mut greeted: Vec<u8> = Vec::new();
    for (number, (end, who)) in (0..).zip(accepted) {
        assert_eq!((who.pid, who.uid), (std::process::id(), rustix::process::geteuid().as_raw()));
        assert_eq!(end.mode().unwrap(), Mode::Stream);
        let (mut writer, _reader) = end.open_stream().unwrap();
        writer.write_with(&[number], soon()).unwrap();
    }
    for opener in openers {
        let (end, who) = opener.join().unwrap();
        assert_eq!(who.pid, std::process::id());
        let (_writer, mut reader) = end.open_stream().unwrap();
        let mut byte = [0];
        assert_eq!(reader.read_with(&mut byte, soon()).unwrap(), 1);
        greeted.extend(byte);
    }
    greeted.sort_unstable();
    assert_eq!(greeted, [0, 1, 2]);
    drop(offer);
    assert!(stage.is_empty(), "the path was left behind");
}

#[test]
fn the_path_is_for_its_owner_unless_all_are_meant() {
    let (_stage, path) = Stage::set();
    let permissions = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    let ours = offer(&path);
    assert_eq!(permissions(), 0o600);
    drop(ours);
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    let everybodys = Offer::new(&path, Config::default(), Admission::AnyUser).unwrap();
    rustix::process::umask(umask);
    assert_eq!(permissions(), 0o666);
    drop(everybodys);
}

#[test]
fn nobody_there_is_an_error_that_names_the_path() {
    let (_stage, path) = Stage::set();
    let error = open_now(&path).unwrap_err();
    assert!(matches!(&error, MeetError::Connect { source, .. } if source.kind() == io::ErrorKind::NotFound));
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    let short = Instant::now() + Duration::from_millis(30);
    let error = open(&path, Admission::SameUser, Absent::Wait, Some(short)).unwrap_err();
    assert!(matches!(error, MeetError::TimedOut { .. }), "{error:?}");
}

#[test]
fn an_opener_may_come_first() {
    let (_stage, path) = Stage::set();
    let opener = std::thread::spawn({
        let path = path.clone();
        move || open(&path, Admission::SameUser, Absent::Wait, soon()).unwrap()
    });
    let offer = offer(&path);
    let (_end, _who) = offer.accept(soon()).unwrap();
    opener.join().unwrap();
}

#[test]
fn a_dead_offerers_socket_is_replaced_and_a_living_ones_is_not() {
    let (_stage, path) = Stage::set();
    drop(listener(&path));
    assert!(std::fs::metadata(&path).unwrap().file_type().is_socket(), "a dead socket stays");
    let living = offer(&path);
    let refused = Offer::new(&path, Config::default(), Admission::SameUser).unwrap_err();
    assert!(matches!(refused, OfferError::InUse { .. }), "{refused:?}");
    // It was asked whether it lives, and goes on as if nothing had been.
    assert!(living.try_accept().unwrap().is_none());
    let opener = std::thread::spawn({
        let path = path.clone();
        move || open_now(&path).unwrap()
    });
    living.accept(soon()).unwrap();
    opener.join().unwrap();
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let (_stage, path) = Stage::set();
    std::fs::write(&path, b"precious").unwrap();
    let refused = Offer::new(&path, Config::default(), Admission::SameUser).unwrap_err();
    assert!(matches!(refused, OfferError::NotASocket { .. }), "{refused:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("elsewhere", &path).unwrap();
    let refused = Offer::new(&path, Config::default(), Admission::SameUser).unwrap_err();
    assert!(matches!(refused, OfferError::NotASocket { .. }), "{refused:?}");
}

#[test]
fn an_offer_removes_only_its_own_socket() {
    let (_stage, path) = Stage::set();
    let first = offer(&path);
    std::fs::remove_file(&path).unwrap();
    let second = offer(&path);
    drop(first);
    assert!(path.exists(), "the second one's socket is gone");
    drop(second);
    assert!(!path.exists());
}

#[test]
fn many_offerers_at_once_are_one() {
    let (_stage, path) = Stage::set();
    for _ in 0..20 {
        drop(listener(&path));
        let offers: Vec<_> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| Offer::new(&path, Config::default(), Admission::SameUser)))
                .collect();
            tries.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert_eq!(offers.iter().filter(|offer| offer.is_ok()).count(), 1, "{offers:?}");
        assert!(
            offers
                .iter()
                .flat_map(|offer| offer.as_ref().err())
                .all(|e| matches!(e, OfferError::InUse { .. }))
        );
    }
}

#[test]
fn paths_that_do_not_fit_are_refused_by_name() {
    let path = PathBuf::from(format!("/{}", "x".repeat(107)));
    let refused = Offer::new(&path, Config::default(), Admission::SameUser).unwrap_err();
    assert!(matches!(refused, OfferError::PathTooLong { bytes: 108, .. }), "{refused:?}");
    assert!(matches!(open_now(&path).unwrap_err(), MeetError::PathTooLong { bytes: 108, .. }));
    let nowhere = Path::new("/nowhere/at/all");
    let refused = Offer::new(nowhere, Config::default(), Admission::SameUser).unwrap_err();
    assert!(
        matches!(refused, OfferError::System { .. }) && refused.to_string().contains("/nowhere/at"),
        "{refused}"
    );
}

/// The messages of a clumsy or hostile listener, and the opener's reactions.
#[test]
fn nonsense_from_a_listener_is_refused() {
    let (_stage, path) = Stage::set();
    let socket = listener(&path);
    let said = |packet: &[u8], descriptors: usize| {
        let opener = std::thread::spawn({
            let path = path.clone();
            move || open_now(&path)
        });
        let connection = rustix::net::accept(&socket).unwrap();
        if !packet.is_empty() {
            let many = vec![connection.as_fd(); descriptors];
            sys::descriptors::send_with_descriptors(&connection, packet, &many).unwrap();
        }
        drop(connection);
        opener.join().unwrap().unwrap_err()
    };
    let channel = Greeting::Channel.encode();
    assert!(matches!(said(b"", 0), MeetError::HungUp { .. }));
    let error = said(b"HTTP/1.1 400 Bad Request\r\n\r\n", 0);
    assert!(matches!(error, MeetError::Greeting { source: BadGreeting::Magic { .. }, .. }), "{error:?}");
    let error = said(&[7; 4000], 0);
    assert!(matches!(error, MeetError::Greeting { source: BadGreeting::Length { .. }, .. }), "{error:?}");
    for descriptors in [0, 1, End::DESCRIPTORS] {
        assert!(matches!(said(&channel, descriptors), MeetError::End { .. }), "{descriptors}");
    }
    assert!(matches!(said(&channel, 20), MeetError::Greeting { .. }));
    let refusal = Greeting::Refused { errno: 13, text: "go away".into() }.encode();
    let error = said(&refusal, 0);
    assert!(matches!(&error, MeetError::Refused { errno: 13, text, .. } if text == "go away"), "{error:?}");
}

#[test]
fn a_listener_that_says_nothing_costs_no_more_than_the_deadline() {
    let (_stage, path) = Stage::set();
    let socket = listener(&path);
    let deadline = Instant::now() + Duration::from_millis(30);
    let error = open(&path, Admission::SameUser, Absent::Fail, Some(deadline)).unwrap_err();
    assert!(matches!(error, MeetError::TimedOut { .. }), "{error:?}");
    assert!(Instant::now() >= deadline);
    drop(socket);
}

#[test]
fn openers_that_give_up_are_skipped() {
    let (_stage, path) = Stage::set();
    let offer = offer(&path);
    for _ in 0..10 {
        let error = open(&path, Admission::SameUser, Absent::Fail, Some(Instant::now())).unwrap_err();
        assert!(matches!(error, MeetError::TimedOut { .. }), "{error:?}");
    }
    assert!(offer.try_accept().unwrap().is_none());
}

/// Another user's program, in a process that gives its own user up.
#[test]
fn another_user_is_told_that_the_channel_is_not_for_it() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: to be another user needs root");
        return;
    }
    let (stage, path) = Stage::set();
    std::fs::set_permissions(stage.0.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let offer = offer(&path);
    // Somebody loosened the permissions; the look at the user still holds.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let child = std::process::Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "as_another_user", "--ignored", "--nocapture"])
        .env("MEETING_PATH", &path)
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: can't run setpriv (Debian's util-linux): {error}");
            return;
        }
    };
    let met = offer.accept(Some(Instant::now() + Duration::from_secs(1)));
    let _gone = child.kill();
    let said = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(met.is_err(), "a stranger got a channel");
    if said.contains("Permission denied (os error 13) running") {
        println!("skipped: this test's program can't be run by another user");
        return;
    }
    assert!(said.contains("told: the offerer at"), "{said}");
}

#[test]
#[ignore = "the other process of another_user_is_told_that_the_channel_is_not_for_it"]
fn as_another_user() {
    let path = PathBuf::from(std::env::var_os("MEETING_PATH").unwrap());
    // The offerer is root, whom everybody meets.
    println!("told: {}", open_now(&path).unwrap_err());
}
