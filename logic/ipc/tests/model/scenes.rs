//! Scenes of two endpoints: each is run as it ships, and some of them with one ordering weakened.

use ipc::{Content, From, NoPeer, Receive, ReceiveError, Received, Request, Send, SendError};
use loom::sync::Arc;
use loom::thread;

use super::world::{Actor, Patience, World, address, check};

/// Enough for every weakened ordering to be caught; one more takes minutes.
const PREEMPTIONS: usize = 2;

/// Two scripts, and what must come of them.
#[derive(Clone, Copy, Debug)]
pub enum Scene {
    /// A rendezvous, and who receives it.
    Rendezvous,
    /// A rendezvous that waits for no time at all, and one try to receive.
    Late,
    /// A request, and its reply.
    Request,
    /// A notice, and who waits for it.
    Notice,
    /// Two that send to each other, and receive when they were told that it is a deadlock.
    Deadlock,
    /// A message, and the end of who sent it.
    End,
}

fn send(actor: &mut Actor, patience: Patience, mut call: Send) -> Result<(), SendError> {
    actor.drive(patience, |endpoint, pulse| endpoint.poll_send(&mut call, b"", pulse))
}

fn rendezvous(actor: &mut Actor, patience: Patience) -> Result<(), SendError> {
    let call = Send::rendezvous(address(1 - actor.side), 7);
    send(actor, patience, call)
}

fn receive(actor: &mut Actor, patience: Patience) -> Result<Received, ReceiveError> {
    let mut call = Receive::new(From::One(address(1 - actor.side)));
    actor.drive(patience, |endpoint, pulse| endpoint.poll_receive(&mut call, &mut Vec::new(), pulse))
}

/// Runs `first` in the endpoint of side 0 and `second` in that of side 1; returns what came of
/// both.
fn run<T: std::marker::Send + 'static, U>(first: fn(&mut Actor) -> T, second: fn(&mut Actor) -> U) -> (T, U) {
    let world = World::new();
    let other = Arc::clone(&world);
    let thread = thread::spawn(move || {
        let mut actor = Actor::new(&other, 0);
        first(&mut actor)
    });
    let mut actor = Actor::new(&world, 1);
    let here = second(&mut actor);
    // Nobody has closed before: that would have woken whoever a lost ring has left asleep.
    (thread.join().unwrap(), here)
}

const MESSAGE: Content = Content::Message { tag: 7 };

impl Scene {
    /// Runs it in every way.
    pub fn check(self) {
        check(PREEMPTIONS, move || self.run());
    }

    fn run(self) {
        match self {
            Scene::Rendezvous => {
                let sends = |actor: &mut Actor| rendezvous(actor, Patience::Endless);
                let (sent, received) = run(sends, |actor| receive(actor, Patience::Endless));
                assert_eq!((sent, received.unwrap().content), (Ok(()), MESSAGE));
            }
            Scene::Late => {
                let sends = |actor: &mut Actor| rendezvous(actor, Patience::Late);
                let (sent, received) = run(sends, |actor| receive(actor, Patience::Late));
                // Who sends may end before the other looks, and the other way round.
                let was_received = received.is_ok();
                assert_eq!(sent.is_ok(), was_received, "{sent:?} {received:?}");
            }
            Scene::Request => {
                let asks = |actor: &mut Actor| {
                    let mut call = Request::new(address(1), 7, 0);
                    actor.drive(Patience::Endless, |endpoint, pulse| {
                        endpoint.poll_request(&mut call, b"", &mut Vec::new(), pulse)
                    })
                };
                let (replied, ()) = run(asks, |actor| {
                    let received = receive(actor, Patience::Endless).unwrap();
                    let Content::Request { asked, .. } = received.content else { panic!("{received:?}") };
                    actor.endpoint.reply(&asked, 8, b"").unwrap();
                });
                assert_eq!(replied.unwrap().tag, 8);
            }
            Scene::Notice => {
                let notifies = |actor: &mut Actor| actor.endpoint.notify(address(1), 5).unwrap();
                let ((), received) = run(notifies, |actor| receive(actor, Patience::Endless));
                assert_eq!(received.unwrap().content, Content::Notices(5));
            }
            Scene::Deadlock => {
                let waits = |actor: &mut Actor| {
                    let sent = rendezvous(actor, Patience::Searches(3 + actor.side as u64));
                    if sent.is_err() {
                        // Now the other one's is received, and it goes on.
                        assert_eq!(receive(actor, Patience::Endless).unwrap().content, MESSAGE);
                    }
                    sent
                };
                let (first, second) = run(waits, waits);
                let told =
                    [first, second].iter().filter(|sent| matches!(sent, Err(SendError::Deadlock(_)))).count();
                let sent = [first, second].iter().filter(|sent| sent.is_ok()).count();
                assert_eq!((told, sent), (1, 1), "{first:?} {second:?}");
            }
            Scene::End => {
                let sends = |actor: &mut Actor| {
                    let sent = send(actor, Patience::Endless, Send::buffered(address(1), 7));
                    actor.close();
                    sent
                };
                let (sent, received) = run(sends, |actor| {
                    [receive(actor, Patience::Endless), receive(actor, Patience::Endless)]
                });
                assert_eq!(sent, Ok(()));
                let [first, then] = received;
                assert_eq!(first.map(|received| received.content), Ok(MESSAGE));
                assert_eq!(then, Err(ReceiveError::NoPeer(NoPeer::Dead(address(0)))));
            }
        }
    }
}
