//! Messages that were sent and not taken over yet: of bounded size, and sent again in order over
//! the next connection.

use crate::engine::{EngineError, Message, Sender};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Reliable messages that are not taken over yet, and others that have not gone out, at the most:
/// as many as keep a connection busy, and as are lost or come twice when the gateway dies.
pub const WINDOW: usize = 64;

#[derive(Default)]
struct State {
    /// `None`: there is no connection.
    sender: Option<Box<dyn Sender>>,
    /// Reliable messages, the oldest first.
    untaken: VecDeque<Message>,
    /// Other messages that have not gone out.
    leaving: usize,
    /// The longest message that the other side takes.
    longest: usize,
}

fn length(message: &Message) -> usize {
    message.topic.len() + message.bytes.len()
}

/// The messages of all channels on their way out.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<State>,
    changed: Condvar,
}

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("untaken", &self.lock().untaken.len()).finish_non_exhaustive()
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, after it has waited for a connection and for room. So a channel's reader
    /// stops while nobody takes what it reads, and its subscription says what becomes of it.
    /// Answers whether the message was not too long for the other side: it is left out then.
    pub fn put(&self, message: Message) -> bool {
        let waits = |state: &mut State| {
            let under_way = if message.reliable { state.untaken.len() } else { state.leaving };
            state.sender.is_none() || under_way >= WINDOW
        };
        let waited = self.changed.wait_while(self.lock(), waits);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if length(&message) > state.longest {
            return false;
        }
        if message.reliable {
            state.untaken.push_back(message.clone());
        } else {
            state.leaving += 1;
        }
        if state.sender.as_ref().is_some_and(|sender| sender.send(&message).is_err()) {
            state.sender = None;
        }
        true
    }

    /// There is a connection: what the one before has not taken over goes first, in order. Returns
    /// how many messages were left out, because they are longer than this side takes.
    ///
    /// # Errors
    /// The connection is over.
    pub fn begin(&self, sender: Box<dyn Sender>, longest: usize) -> Result<usize, EngineError> {
        let mut state = self.lock();
        (state.leaving, state.longest) = (0, longest);
        let before = state.untaken.len();
        state.untaken.retain(|message| length(message) <= longest);
        let left_out = before - state.untaken.len();
        for message in &state.untaken {
            sender.send(message)?;
        }
        state.sender = Some(sender);
        drop(state);
        self.changed.notify_all();
        Ok(left_out)
    }

    /// The connection is over.
    pub fn end(&self) {
        self.lock().sender = None;
    }

    /// The oldest reliable message is taken over, or refused for good. Returns it, if there is one.
    pub fn taken(&self) -> Option<Message> {
        let taken = self.lock().untaken.pop_front();
        self.changed.notify_all();
        taken
    }

    /// A message that is not reliable has gone out.
    pub fn gone(&self) {
        let mut state = self.lock();
        state.leaving = state.leaving.saturating_sub(1);
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    struct Line(mpsc::Sender<Vec<u8>>);

    impl Sender for Line {
        fn send(&self, message: &Message) -> Result<(), EngineError> {
            self.0.send(message.bytes.to_vec()).map_err(|_| EngineError("cut".into()))
        }
    }

    fn message(number: u8, reliable: bool) -> Message {
        Message { topic: "t".into(), bytes: [number].into(), reliable }
    }

    fn connected(outbox: &Outbox) -> mpsc::Receiver<Vec<u8>> {
        let (line, end) = mpsc::channel();
        outbox.begin(Box::new(Line(line)), 64).unwrap();
        end
    }

    #[test]
    fn what_was_not_taken_goes_first_over_the_next_connection() {
        let outbox = Outbox::default();
        let first = connected(&outbox);
        assert!((0..5).all(|number| outbox.put(message(number, true))));
        assert!(outbox.put(message(9, false)));
        assert_eq!(first.try_iter().count(), 6);
        assert_eq!((outbox.taken(), outbox.taken()), (Some(message(0, true)), Some(message(1, true))));
        // It is cut, and the next message notices.
        drop(first);
        outbox.put(message(5, true));
        outbox.end();
        let second = connected(&outbox);
        outbox.put(message(6, true));
        assert_eq!(second.try_iter().collect::<Vec<_>>(), [[2], [3], [4], [5], [6]]);
        // A connection that is cut while they are sent again loses none of them.
        let (line, end) = mpsc::channel();
        drop(end);
        outbox.begin(Box::new(Line(line)), 64).unwrap_err();
        assert_eq!(connected(&outbox).try_iter().count(), 5);
    }

    #[test]
    fn what_the_other_side_never_takes_holds_up_nothing() {
        let outbox = Outbox::default();
        let first = connected(&outbox);
        let long = |bytes: usize| Message { topic: "t".into(), bytes: vec![7; bytes].into(), reliable: true };
        assert!(outbox.put(long(63)) && !outbox.put(long(64)), "with its topic it has 65 bytes");
        assert_eq!(first.try_iter().count(), 1);
        // The next connection takes less.
        let (line, second) = mpsc::channel();
        assert_eq!(outbox.begin(Box::new(Line(line)), 10).unwrap(), 1);
        assert!(outbox.put(message(1, true)));
        assert_eq!(second.try_iter().collect::<Vec<_>>(), [[1]]);
    }

    #[test]
    fn whoever_finds_no_room_waits_for_it() {
        let outbox = Arc::new(Outbox::default());
        let end = connected(&outbox);
        for reliable in [true, false] {
            assert!((0..WINDOW).all(|_| outbox.put(message(1, reliable))));
            let waits = Arc::clone(&outbox);
            let (said, done) = mpsc::channel();
            let waiter = std::thread::spawn(move || {
                waits.put(message(2, reliable));
                said.send(()).unwrap();
            });
            assert_eq!(end.iter().take(WINDOW).filter(|it| *it == [1]).count(), WINDOW);
            assert!(done.try_recv().is_err() && end.try_recv().is_err(), "there is no room");
            if reliable {
                outbox.taken();
            } else {
                outbox.gone();
            }
            assert_eq!(end.recv().unwrap(), [2]);
            waiter.join().unwrap();
        }
    }
}
