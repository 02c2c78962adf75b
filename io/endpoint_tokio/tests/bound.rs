//! Endpoints that a stand-in for the daemon has bound: finding, waiting for names, grants, and
//! futures of these that are dropped.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod stage;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use endpoint::{Access, BindError, Content, CopyError, Failed, FindError, From, GrantId, Options};
use endpoint_tokio::Endpoint;
use stage::{Drop, asked, or_drop, run, soon};
use tempfile::TempDir;
use testing::FakeDaemon;

struct Bed {
    daemon: FakeDaemon,
    folder: TempDir,
}

impl Bed {
    fn new() -> Bed {
        let folder = tempfile::tempdir().unwrap();
        Bed { daemon: FakeDaemon::start(folder.path(), &["a"], Vec::new()), folder }
    }

    fn options(&self) -> Options {
        Options { control: Some(self.socket()), ..Options::default() }
    }

    fn socket(&self) -> PathBuf {
        self.daemon.socket("a")
    }

    async fn bind(&self, name: &str) -> Endpoint {
        Endpoint::bind(Some(name), &self.options()).await.unwrap()
    }
}

fn shortly() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(30))
}

#[test]
fn names_are_bound_found_and_waited_for() {
    let bed = Bed::new();
    run(async {
        let mut planner = bed.bind("planner").await;
        let late = planner.wait_for_bind("motor", shortly()).await;
        assert!(matches!(late, Err(Failed::Call(FindError::TimedOut { .. }))), "{late:?}");
        let unbound = planner.find("motor", soon()).await;
        assert!(matches!(unbound, Err(Failed::Call(FindError::NotBound { .. }))), "{unbound:?}");
        let binding = async {
            // tidy(sleep): the other one waits by then, most likely; it works all the same if it
            // does not.
            tokio::time::sleep(Duration::from_millis(20)).await;
            bed.bind("motor").await
        };
        let (found, mut motor) = tokio::join!(planner.wait_for_bind("motor", soon()), binding);
        assert_eq!(found.unwrap(), motor.get_ref().address());
        // The other one did not ask, and knows all the same.
        let there = motor.find("planner", soon()).await.unwrap();
        let mut payload = Vec::new();
        let serving = async {
            let received = planner.receive(&From::Any, &mut payload, soon()).await.unwrap();
            planner.reply(&asked(&received), 0, b"yes").unwrap();
        };
        let mut answer = Vec::new();
        let (replied, ()) = tokio::join!(motor.send_receive(there, 0, b"?", &mut answer, 8, soon()), serving);
        assert_eq!((replied.unwrap().source, &answer[..]), (there, &b"yes"[..]));
    });
}

#[test]
fn a_name_that_is_taken_and_a_daemon_that_is_away_are_waited_for() {
    let bed = Bed::new();
    run(async {
        let first = bed.bind("planner").await;
        let taken = Endpoint::bind(Some("planner"), &bed.options()).await;
        assert!(matches!(taken, Err(Failed::Call(BindError::Busy { .. }))), "{taken:?}");
        let late = Endpoint::bind_by(Some("planner"), &bed.options(), shortly()).await;
        assert!(matches!(late, Err(Failed::Call(BindError::TimedOut { .. }))), "{late:?}");
        let ending = async {
            // tidy(sleep): whoever wants the name waits by then, most likely.
            tokio::time::sleep(Duration::from_millis(20)).await;
            first.unbind().await.unwrap();
        };
        let options = bed.options();
        let (second, ()) = tokio::join!(Endpoint::bind_by(Some("planner"), &options, soon()), ending);
        assert_eq!(second.unwrap().get_ref().name(), Some("planner"));
    });
    let nowhere = Options { control: Some(bed.folder.path().join("nowhere.sock")), ..Options::default() };
    run(async {
        let away = Endpoint::bind(None, &nowhere).await;
        assert!(matches!(away, Err(Failed::Call(BindError::NoDaemon(_)))), "{away:?}");
        // Given up in the midst: nothing keeps the runtime from ending.
        let given_up =
            tokio::time::timeout(Duration::from_millis(20), Endpoint::bind_by(None, &nowhere, None)).await;
        assert!(given_up.is_err());
    });
}

#[test]
fn a_search_that_is_dropped_leaves_the_next_one_its_own_answer() {
    let bed = Bed::new();
    run(async {
        let mut planner = bed.bind("planner").await;
        for turn in 0..40 {
            let names = [format!("one{turn}"), format!("other{turn}")];
            let (one, other) = (bed.bind(&names[0]).await, bed.bind(&names[1]).await);
            let _found_or_not = or_drop(Drop::number(turn), planner.find(names[0].as_str(), soon())).await;
            let pause = Duration::from_millis(u64::from(turn % 4));
            let never = tokio::time::timeout(pause, planner.wait_for_bind("nobody-yet", soon())).await;
            assert!(never.is_err(), "{never:?}");
            let found = planner.find(names[1].as_str(), soon()).await.unwrap();
            assert_eq!(found, other.get_ref().address());
            let found = planner.find(names[0].as_str(), soon()).await.unwrap();
            assert_eq!(found, one.get_ref().address());
        }
    });
}

#[test]
fn granted_buffers_are_copied_from_and_to() {
    let bed = Bed::new();
    run(async {
        let (mut owner, mut user) = (bed.bind("planner").await, bed.bind("motor").await);
        let there = owner.find("motor", soon()).await.unwrap();
        let mut frame = owner.get_mut().buffer(1 << 20, Access::Read).unwrap();
        let mut answer = owner.get_mut().buffer(4096, Access::Write).unwrap();
        let grant = owner.get_mut().grant(&mut frame, there).unwrap();
        let back = owner.get_mut().grant(&mut answer, there).unwrap();
        frame.write(1000, b"golden").unwrap();
        let mut bytes = [0; 6];
        user.copy_in(grant, 1000, &mut bytes, soon()).await.unwrap();
        assert_eq!(&bytes, b"golden");
        user.copy_out(b"copied", back, 7, soon()).await.unwrap();
        answer.read(7, &mut bytes).unwrap();
        assert_eq!(&bytes, b"copied");
        user.copy((grant, 1000), (back, 0), 6, soon()).await.unwrap();
        answer.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"golden");
        let mut own = user.get_mut().buffer(100, Access::Read).unwrap();
        user.copy_to_own((grant, 1000), (&mut own, 50), 6, soon()).await.unwrap();
        user.copy_from_own((&own, 50), (back, 30), 6, soon()).await.unwrap();
        answer.read(30, &mut bytes).unwrap();
        assert_eq!(&bytes, b"golden");
        let outside = user.copy_to_own((grant, 0), (&mut own, 95), 6, soon()).await;
        assert!(matches!(outside, Err(Failed::Call(CopyError::OutOfRange(_)))), "{outside:?}");
        let borrowed = user.borrow(grant, soon()).await.unwrap();
        assert_eq!((borrowed.bytes, borrowed.access), (1 << 20, Access::Read));
        owner.get_mut().revoke(&mut answer, back).unwrap();
        let late = user.copy_out(b"late", back, 0, soon()).await;
        assert!(matches!(late, Err(Failed::Call(CopyError::Revoked(_)))), "{late:?}");
        let unknown = user.copy_in(GrantId::new(1 << 40), 0, &mut bytes, soon()).await;
        assert!(matches!(unknown, Err(Failed::Call(CopyError::Unknown { .. }))), "{unknown:?}");
    });
}

/// A grant is got hold of by a copy that is dropped at each of its awaits; the next one copies.
#[test]
fn a_copy_that_is_dropped_has_copied_nothing() {
    let bed = Bed::new();
    run(async {
        let (mut owner, mut user) = (bed.bind("planner").await, bed.bind("motor").await);
        let there = owner.find("motor", soon()).await.unwrap();
        for turn in 0..12 {
            let mut frame = owner.get_mut().buffer(4096, Access::Read).unwrap();
            frame.write(0, b"golden").unwrap();
            let grant = owner.get_mut().grant(&mut frame, there).unwrap();
            let mut bytes = [0; 6];
            if or_drop(Drop::number(turn), user.copy_in(grant, 0, &mut bytes, soon())).await.is_none() {
                assert_eq!(bytes, [0; 6]);
                user.copy_in(grant, 0, &mut bytes, soon()).await.unwrap();
            }
            assert_eq!(&bytes, b"golden");
        }
    });
}

#[test]
fn a_daemon_that_dies_is_not_noticed_by_those_who_speak() {
    let bed = Bed::new();
    run(async {
        let (mut one, mut other) = (bed.bind("planner").await, bed.bind("motor").await);
        let there = one.find("motor", soon()).await.unwrap();
        let Bed { daemon, folder } = bed;
        daemon.kill();
        let mut payload = Vec::new();
        for number in 0..100 {
            one.send_buffered(there, number, b"x", soon()).await.unwrap();
            let received = other.receive(&From::Any, &mut payload, soon()).await.unwrap();
            assert_eq!(received.content, Content::Message { tag: number });
        }
        let waiting = one.wait_for_bind("camera", soon());
        let starting = async {
            // tidy(sleep): the search is under way by then, most likely.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let daemon = FakeDaemon::start(folder.path(), &["a"], Vec::new());
            let options = Options { control: Some(daemon.socket("a")), ..Options::default() };
            let camera = Endpoint::bind_by(Some("camera"), &options, soon()).await.unwrap();
            (daemon, camera)
        };
        let (found, (_daemon, camera)) = tokio::join!(waiting, starting);
        assert_eq!(found.unwrap(), camera.get_ref().address());
    });
}
