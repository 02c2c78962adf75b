//! The messages that the link brought for a pair and nobody has taken yet. The pair's window bounds
//! their bytes; the number of other things that are kept is bounded here.

use link::Messages;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A message that the link brought for a pair.
#[derive(Debug)]
pub(crate) enum Inbound {
    Messages(Messages),
    /// Of a loan: the daemon takes it back.
    Recall,
    /// Nothing more comes, and everything before has.
    Closed,
}

#[derive(Debug, Default)]
struct Waiting {
    all: VecDeque<Inbound>,
    /// Nobody puts anything in any more, or nobody takes anything out.
    over: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    came: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where it is put in.
#[derive(Debug)]
pub(crate) struct Inbox(Arc<Shared>);

/// Where it is taken out, by one task.
#[derive(Debug)]
pub(crate) struct Mail(Arc<Shared>);

/// Both ends.
pub(crate) fn mail() -> (Inbox, Mail) {
    let shared = Arc::<Shared>::default();
    (Inbox(Arc::clone(&shared)), Mail(shared))
}

impl Inbox {
    /// Puts it behind what waits; where nobody takes it any more, it is dropped.
    pub(crate) fn put(&self, inbound: Inbound) {
        let mut waiting = self.0.lock();
        if waiting.over {
            return;
        }
        // Each empty message that waited by itself would take twenty times what it counts for in
        // the window.
        let rest = match (waiting.all.back_mut(), inbound) {
            (Some(Inbound::Messages(last)), Inbound::Messages(more)) => {
                last.join(more).err().map(Inbound::Messages)
            }
            (_, other) => Some(other),
        };
        waiting.all.extend(rest);
        drop(waiting);
        self.0.came.notify_one();
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.came.notify_one();
    }
}

impl Mail {
    /// The first thing that waits, if there is one.
    pub(crate) fn try_take(&mut self) -> Option<Inbound> {
        self.0.lock().all.pop_front()
    }

    /// Waits for the next; `None`: nothing comes any more. Dropped before it is ready, it has taken
    /// nothing.
    pub(crate) async fn take(&mut self) -> Option<Inbound> {
        // Others have their turn, however much waits.
        tokio::task::consume_budget().await;
        loop {
            {
                let mut waiting = self.0.lock();
                if let Some(first) = waiting.all.pop_front() {
                    return Some(first);
                }
                if waiting.over {
                    return None;
                }
            }
            self.0.came.notified().await;
        }
    }
}

impl Drop for Mail {
    fn drop(&mut self) {
        let mut waiting = self.0.lock();
        waiting.over = true;
        waiting.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::{Config, Event, Link, Timing, Transport};
    use wire::link::{Hello, Packet};
    use wire::proxy::{MAX_MESSAGE_BYTES, MAX_PAIRS, SILENCE_MS, WINDOW_BYTES};

    fn links() -> [Link; 2] {
        [0, 1].map(|side| {
            let hello = Hello {
                oldest: 1,
                newest: 1,
                side,
                compressions: 1,
                pairs: MAX_PAIRS,
                window_bytes: WINDOW_BYTES,
                message_bytes: MAX_MESSAGE_BYTES,
                silence_ms: SILENCE_MS,
            };
            let queue_bytes = WINDOW_BYTES as usize;
            let config = Config { epoch: 1, hello, queue_bytes, timing: Timing::default() };
            let mut link = Link::new(config).unwrap();
            link.connected(0, Transport::Stream).unwrap();
            link
        })
    }

    /// The events that the second of the two hears.
    fn carry(links: &mut [Link; 2]) -> Vec<Event> {
        let (mut heard, mut bytes, mut quiet) = (Vec::new(), Vec::new(), 0);
        while quiet < 2 {
            for side in [0, 1] {
                bytes.clear();
                quiet += 1;
                if links[side].poll_transmit(0, 100_000, &mut bytes) {
                    quiet = 0;
                    let (header, body) = Packet::split(&bytes).unwrap();
                    let events = links[1 - side].receive(0, &header, body);
                    heard.extend(events.into_iter().filter(|_| side == 0));
                }
            }
        }
        heard
    }

    /// A domain that sent the shortest messages one by one to a receiver that took none had each of
    /// them kept by itself: twenty times its window.
    #[test]
    fn the_shortest_messages_wait_together() {
        let (mut links, (inbox, mut mail)) = (links(), mail());
        carry(&mut links);
        let pair = links[0].open(b"x").unwrap();
        let (mut put, mut waited) = (0, 0);
        while links[0].send(pair, &[7]).is_ok_and(|sent| sent == link::Sent::Queued) {
            for event in carry(&mut links) {
                if let Event::Messages { messages, .. } = event {
                    put += messages.count();
                    inbox.put(Inbound::Messages(messages));
                }
            }
        }
        assert!(put > 50_000, "{put} messages");
        let mut came = 0;
        while let Some(Inbound::Messages(messages)) = mail.try_take() {
            came += messages.iter().filter(|message| *message == [7]).count();
            waited += 1;
        }
        assert_eq!(came, put);
        assert!(waited < 60, "{waited} pieces of memory");
    }

    #[tokio::test]
    async fn who_waits_hears_of_what_comes_and_of_the_end() {
        let (inbox, mut mail) = mail();
        let taken = tokio::spawn(async move {
            let mut count = 0;
            while let Some(inbound) = mail.take().await {
                assert!(matches!(inbound, Inbound::Recall | Inbound::Closed));
                count += 1;
            }
            count
        });
        for _ in 0..500 {
            inbox.put(Inbound::Recall);
            tokio::task::yield_now().await;
        }
        inbox.put(Inbound::Closed);
        drop(inbox);
        assert_eq!(taken.await.unwrap(), 501);
    }
}
