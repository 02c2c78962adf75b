//! Ends in event loops: the descriptors that they watch tell of messages, of room and of the end.

use std::os::fd::OwnedFd;
use std::time::Duration;

use channel::{Descriptors, ReceiveError, SendError, SpinPolicy};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

use crate::messages::{check, message};
use crate::{Doing as _, Done, Failure, Party, TIMEOUT, ensure, open, receive, send};

/// Questions, one at a time and in bursts.
const ROUNDS: u64 = 60;
const BURST: u64 = 30;
/// How long a wait of the loop is; nothing needs so much.
const WAIT: Timespec = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
/// A pause in which the other end falls asleep.
const PAUSE: Duration = Duration::from_millis(2);

/// The questions: bursts, and pauses between them.
fn bursts() -> impl Iterator<Item = std::ops::Range<u64>> {
    (0..ROUNDS).map(|round| {
        let first = round * BURST;
        first..first + if round % 2 == 0 { 1 } else { BURST }
    })
}

pub(crate) fn asks(us: Box<dyn Party>) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    receiver.set_spin_policy(SpinPolicy::Never);
    let longest = sender.max_message();
    for burst in bursts() {
        // Two threads: a burst that is longer than both rings would wait for itself.
        let (sender, receiver) = (&mut sender, &mut receiver);
        std::thread::scope(|scope| {
            let sent = burst.clone();
            let asks = scope.spawn(move || {
                sent.map(|number| message(number, longest)).try_for_each(|message| send(sender, &message))
            });
            let checked = burst.clone().try_for_each(|number| check(&receive(receiver)?, number, longest));
            asks.join().unwrap_or_else(|_| Err(Failure::wrong("a thread panicked"))).and(checked)
        })?;
        std::thread::park_timeout(PAUSE);
    }
    Ok(())
}

/// Echoes as an event loop does, sleeping by `wait` only, until the other end closes.
fn echo(us: Box<dyn Party>, mut wait: impl FnMut(&Descriptors<'_>) -> Done) -> Done {
    let (mut sender, mut receiver) = open(us)?;
    let mut got = Vec::new();
    loop {
        match receiver.try_receive(&mut got) {
            Ok(Some(_)) => loop {
                match sender.try_send(&got) {
                    Ok(()) => break,
                    Err(SendError::Full) => {
                        if sender.prepare_wait(got.len()).doing("prepare to wait for room")? {
                            wait(&sender.descriptors())?;
                            sender.cancel_wait();
                            sender.drain_doorbell().doing("drain")?;
                        }
                    }
                    Err(other) => return Err(Failure::Wrong(format!("send: {other}"))),
                }
            },
            Ok(None) => {
                if receiver.prepare_wait() {
                    wait(&receiver.descriptors())?;
                    receiver.cancel_wait();
                    receiver.drain_doorbell().doing("drain")?;
                }
            }
            Err(ReceiveError::Closed) => return Ok(()),
            Err(other) => return Err(Failure::Wrong(format!("receive: {other}"))),
        }
    }
}

pub(crate) fn answers_by_poll(us: Box<dyn Party>) -> Done {
    echo(us, |descriptors| {
        let mut polled = [descriptors.doorbell, descriptors.lifeline]
            .map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN));
        let ready = rustix::event::poll(&mut polled, Some(&WAIT)).doing("poll")?;
        ensure(ready > 0, || "the descriptors said nothing".into())
    })
}

/// Watches both halves for good, and is told of edges only: what an event loop like tokio's does.
pub(crate) fn answers_by_edges(us: Box<dyn Party>) -> Done {
    let epoll: OwnedFd = epoll::create(epoll::CreateFlags::CLOEXEC).doing("make an epoll")?;
    let mut watched = Vec::new();
    echo(us, move |descriptors| {
        use std::os::fd::AsRawFd as _;
        for one in [descriptors.doorbell, descriptors.lifeline] {
            if !watched.contains(&one.as_raw_fd()) {
                watched.push(one.as_raw_fd());
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&epoll, one, epoll::EventData::new_u64(0), flags).doing("watch")?;
            }
        }
        let mut events = Vec::with_capacity(4);
        let ready = epoll::wait(&epoll, spare_capacity(&mut events), Some(&WAIT)).doing("wait for edges")?;
        ensure(ready > 0, || "the descriptors had no edge".into())
    })
}

fn with_tokio(done: impl Future<Output = Done>) -> Done {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let timed = async {
        match tokio::time::timeout(TIMEOUT, done).await {
            Ok(done) => done,
            Err(_) => Err(Failure::wrong("the runtime heard nothing")),
        }
    };
    runtime.doing("make a runtime")?.block_on(timed)
}

pub(crate) fn asks_with_tokio(us: Box<dyn Party>) -> Done {
    let (sender, receiver) = open(us)?;
    with_tokio(async {
        let mut sender = channel_tokio::AsyncSender::new(sender).doing("watch the sender")?;
        let mut receiver = channel_tokio::AsyncReceiver::new(receiver).doing("watch the receiver")?;
        let longest = sender.get_mut().max_message();
        for burst in bursts() {
            let asks = async {
                for number in burst.clone() {
                    sender.send(&message(number, longest)).await.doing("send")?;
                }
                Ok(())
            };
            let checks = async {
                let mut got = Vec::new();
                for number in burst.clone() {
                    receiver.receive(&mut got).await.doing("receive")?;
                    check(&got, number, longest)?;
                }
                Ok(())
            };
            let ((), ()) = tokio::try_join!(asks, checks)?;
            // tidy(sleep): the pause is what is tested: the other end falls asleep in it, or does
            // not, and is woken either way.
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    })
}

pub(crate) fn answers_with_tokio(us: Box<dyn Party>) -> Done {
    let (sender, receiver) = open(us)?;
    with_tokio(async {
        let mut sender = channel_tokio::AsyncSender::new(sender).doing("watch the sender")?;
        let mut receiver = channel_tokio::AsyncReceiver::new(receiver).doing("watch the receiver")?;
        let mut got = Vec::new();
        loop {
            match receiver.receive(&mut got).await {
                Ok(_) => sender.send(&got).await.doing("send")?,
                Err(ReceiveError::Closed) => return Ok(()),
                Err(other) => return Err(Failure::Wrong(format!("receive: {other}"))),
            }
        }
    })
}
