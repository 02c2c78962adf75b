//! The daemon's messages on a grant, in orders that a test from outside can't bring about.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use testing::FakeDaemon;

use super::*;
use crate::Options;

/// Far more than anything here takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A copy asks what its grant stands for while the owner is about to move the buffer. The daemon
/// names the buffer that is being left, and a moment later says that the grant has moved. Where
/// both were taken in at one look, the answer wiped the word out, and the copy waited for it
/// without end: it was stuck in three of thirty runs under load.
#[test]
fn word_of_a_move_that_comes_together_with_an_answer_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = FakeDaemon::start(folder.path(), &["a"], Vec::new());
    let options = Options { control: Some(daemon.socket("a")), ..Options::default() };
    let mut owner = Endpoint::bind(Some("owner"), &options).unwrap();
    let mut copier = Endpoint::bind(Some("copier"), &options).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    owner.find("copier", Some(deadline)).unwrap();
    let mut buffer = owner.buffer(4096, Access::Read).unwrap();
    buffer.write(0, &[7; 4096]).unwrap();
    let stays = owner.grant(&mut buffer, copier.address()).unwrap();
    let goes = owner.grant(&mut buffer, copier.address()).unwrap();
    let mut bytes = [0; 4096];
    copier.copy_in(stays, 0, &mut bytes, Some(deadline)).unwrap();

    // The owner begins to leave it, and has not told the daemon yet.
    let place = buffer.given.iter().find(|given| given.grant == stays).unwrap().place;
    buffer.store.set(place, State::Moved);
    let mut call = Borrow::new(stays);
    assert!(matches!(copier.step_borrow(&mut call, false), Ok(Step::Pending { .. })));
    // The answer is there, and not taken in; then comes the word.
    await_news(&copier);
    owner.revoke(&mut buffer, goes).unwrap();

    let granted = loop {
        let late = Instant::now() >= deadline;
        match copier.step_borrow(&mut call, late).unwrap() {
            Step::Ready(granted) => break granted,
            Step::Pending { again_at } => {
                copier.await_daemon(again_at.into_iter().chain([deadline]).min()).unwrap();
            }
        }
    };
    assert_eq!(granted.grant, stays);
    copier.copy_in(stays, 0, &mut bytes, Some(deadline)).unwrap();
    assert_eq!(bytes, [7; 4096]);
}

/// Waits until the daemon has said something that the endpoint has not looked at.
fn await_news(endpoint: &Endpoint) {
    let news = endpoint.member.as_ref().and_then(Member::descriptor).unwrap();
    let mut polled = [PollFd::from_borrowed_fd(news, PollFlags::IN)];
    let patience = session::timespec(TIMEOUT);
    rustix::io::retry_on_intr(|| poll(&mut polled, Some(&patience))).unwrap();
    assert!(!polled[0].revents().is_empty(), "the daemon has answered");
}
