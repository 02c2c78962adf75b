//! An end whose peer speaks by the rules and scribbles between our calls. What must hold: no panic,
//! no violation without a lie, no write to what is not ours, calls that keep their deadlines; and
//! what was not scribbled over comes as it was sent.
#![cfg_attr(feature = "fuzzing", no_main)]

use std::collections::VecDeque;

use channel::{ReceiveError, Receiver, SendError, Sender, SpinPolicy};
use fuzz::script::Script;
use fuzz::stage::{self, Damage, Hand, in_time};
use fuzz::watch::Watch;

/// A script longer than this says nothing new.
const STEPS_MAX: usize = 300;

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let mut play = Play::new(usize::from(script.flag()));
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        if play.turn(step, &mut script).is_none() {
            break;
        }
    }
    play.end();
});

/// The data sent that have not come: the bytes, or their number where nobody wrote them.
type Underway = VecDeque<Result<Vec<u8>, usize>>;

/// Whether it came as it was sent.
fn is_next(underway: &mut Underway, got: &[u8]) -> bool {
    match underway.pop_front() {
        Some(Ok(sent)) => sent == got,
        Some(Err(length)) => length == got.len(),
        None => false,
    }
}

struct Play {
    ours: (Sender, Receiver),
    peer: (Sender, Receiver),
    hand: Hand,
    watch: Watch,
    damage: Damage,
    inward: Underway,
    outward: Underway,
    closed: bool,
    /// Whether our sender may hold messages back.
    batches: bool,
    fill: u8,
    got: Vec<u8>,
}

/// The way of receiving that only lends a pointer.
const LENT: usize = 2;

/// The channel is over.
type Over = Option<()>;

impl Play {
    fn new(side: usize) -> Play {
        let (ours, peer, hand) = stage::opened(side);
        let watch = Watch::new(&hand);
        let (inward, outward) = (Underway::new(), Underway::new());
        let damage = Damage::default();
        Play {
            ours,
            peer,
            hand,
            watch,
            damage,
            inward,
            outward,
            closed: false,
            batches: false,
            fill: 0,
            got: Vec::new(),
        }
    }

    fn turn(&mut self, step: u8, script: &mut Script<'_>) -> Over {
        match step % 16 {
            0..=7 => {
                self.watch.begin(&self.hand);
                let over = self.ours(step % 16, script);
                self.watch.end(&self.hand);
                over
            }
            8 | 9 => self.peer_sends(script),
            10 | 11 => self.peer_receives(),
            12..=14 => {
                self.damage.add(self.hand.scribble(script));
                Some(())
            }
            _ => {
                match script.byte() {
                    0 => self.peer.0.close(),
                    1 => self.ours.1.close(),
                    _ => return Some(()),
                }
                self.closed = true;
                Some(())
            }
        }
    }

    fn ours(&mut self, step: u8, script: &mut Script<'_>) -> Over {
        match step {
            0..=2 => self.send(script),
            3 => self.lend_or_batch(script),
            4 | 5 => self.receive(script),
            6 => self.wait(script),
            _ => {
                let _closed = (self.ours.0.is_closed(), self.ours.1.is_closed(), self.ours.1.is_peer_apart());
                let policy = if script.flag() { SpinPolicy::Adaptive } else { SpinPolicy::Never };
                self.ours.0.set_spin_policy(policy);
                self.ours.1.set_spin_policy(policy);
                Some(())
            }
        }
    }

    fn message(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        self.fill = self.fill.wrapping_add(1);
        let length = match script.byte() {
            long @ 250.. => usize::from(long - 250) + 2036,
            short @ 0..200 => usize::from(short),
            _ => script.below(2041),
        };
        vec![self.fill; length]
    }

    fn send(&mut self, script: &mut Script<'_>) -> Over {
        let message = self.message(script);
        let cut = script.below(message.len() + 1);
        let sender = &mut self.ours.0;
        let sent = match script.below(5) {
            0 => in_time(|deadline| sender.send(&message, deadline)),
            1 => sender.try_send_vectored(&[&message[..cut], &message[cut..]]),
            2 => sender.try_loan(message.len()).and_then(|mut loan| {
                // Beyond the end, which is refused, and then inside.
                assert_eq!(loan.write_at(cut, &message), cut == 0);
                assert!(loan.write_at(0, &message) && loan.len() == message.len());
                loan.commit()
            }),
            3 => {
                // A loan that comes to nothing.
                let loan = sender.try_loan(message.len());
                if let Ok(mut loan) = loan {
                    assert!(loan.write_at(0, &message));
                    return Some(());
                }
                loan.map(drop)
            }
            _ => sender.try_send(&message),
        };
        match sent {
            Ok(()) => self.outward.push_back(Ok(message)),
            Err(SendError::Full | SendError::TimedOut) => {}
            Err(SendError::TooLong { length, max }) => assert!(length == message.len() && length > max),
            Err(SendError::Closed) => return self.is_over(),
            Err(SendError::Corrupt(violation)) => {
                assert!(self.damage.any(), "no lie was told, and yet: {violation}");
                return self.was_refused();
            }
            Err(error) => panic!("{error}"),
        }
        Some(())
    }

    /// Begins a message and finishes it, in order or not. Nobody writes its bytes.
    fn lend(&mut self, script: &mut Script<'_>) -> Result<(), SendError> {
        let sender = &mut self.ours.0;
        let length = script.below(2100);
        match script.byte() % 8 {
            0 => in_time(|deadline| sender.begin(length, deadline)).map(drop)?,
            1 => {
                let unbegun = sender.finish(length);
                assert!(matches!(unbegun, Err(SendError::OutOfOrder(_))), "{unbegun:?}");
                return Ok(());
            }
            _ => sender.try_begin(length).map(drop)?,
        }
        let again = [sender.try_begin(1).map(drop), sender.try_send(b"between")];
        let refused = |result: &Result<(), SendError>| {
            matches!(result, Err(SendError::OutOfOrder(_) | SendError::Closed))
        };
        assert!(again.iter().all(refused), "{again:?}");
        if script.byte().is_multiple_of(8) {
            sender.cancel();
            return Ok(());
        }
        assert!(matches!(sender.finish(length + 1), Err(SendError::TooLong { .. })));
        let first = script.below(length + 1);
        sender.finish(first)?;
        self.outward.push_back(Err(first));
        Ok(())
    }

    fn lend_or_batch(&mut self, script: &mut Script<'_>) -> Over {
        let done = match script.below(4) {
            0 => {
                self.batches = true;
                self.ours.0.set_batch_bytes(script.below(1500));
                Ok(())
            }
            1 => self.ours.0.flush(),
            _ => self.lend(script),
        };
        match done {
            Ok(()) | Err(SendError::Full | SendError::TimedOut | SendError::TooLong { .. }) => Some(()),
            Err(SendError::Closed) => self.is_over(),
            Err(SendError::Corrupt(violation)) => {
                assert!(self.damage.any(), "no lie was told, and yet: {violation}");
                self.was_refused()
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn receive(&mut self, script: &mut Script<'_>) -> Over {
        let way = script.below(6);
        let (receiver, got) = (&mut self.ours.1, &mut self.got);
        let received = match way {
            0 => in_time(|deadline| receiver.receive(got, deadline)).map(Some),
            1 => {
                let (at, length) = (script.word() as usize, script.below(2100));
                receiver.try_read(|message| {
                    let mut part = vec![0; length];
                    let inside = at.checked_add(length).is_some_and(|end| end <= message.len());
                    assert_eq!(message.copy_to(at, &mut part), inside);
                    assert_eq!(
                        message.array::<4>(at).is_some(),
                        at.checked_add(4).is_some_and(|e| e <= message.len())
                    );
                    got.clear();
                    message.append_to(got);
                    message.len()
                })
            }
            LENT => receiver.try_begin().map(|begun| {
                let (_first, length) = begun?;
                assert!(matches!(receiver.try_receive(got), Err(ReceiveError::OutOfOrder(_))));
                receiver.finish().expect("it was begun");
                assert!(matches!(receiver.finish(), Err(ReceiveError::OutOfOrder(_))));
                got.resize(length, 0);
                Some(length)
            }),
            3 => match in_time(|deadline| receiver.wait(deadline)) {
                Ok(()) => receiver.try_receive(got),
                Err(error) => Err(error),
            },
            _ => receiver.try_receive(got),
        };
        match received {
            Ok(Some(length)) => {
                assert!(length == self.got.len() && length <= self.ours.1.max_message());
                if !self.damage.inward {
                    if way == LENT {
                        // Nobody has looked at the bytes.
                        let next = self.inward.pop_front().map(|sent| sent.map_or_else(|n| n, |b| b.len()));
                        self.inward.push_front(Err(next.unwrap_or(usize::MAX)));
                    }
                    let came = is_next(&mut self.inward, &self.got);
                    assert!(came, "it came otherwise than it was sent");
                }
            }
            Ok(None) | Err(ReceiveError::TimedOut) => {
                assert!(self.damage.inward || self.inward.is_empty(), "it does not come");
            }
            Err(ReceiveError::Closed) => return self.is_over(),
            Err(ReceiveError::Corrupt(violation)) => {
                assert!(self.damage.any(), "no lie was told, and yet: {violation}");
                return self.was_refused();
            }
            Err(error) => panic!("{error}"),
        }
        Some(())
    }

    fn wait(&mut self, script: &mut Script<'_>) -> Over {
        if script.flag() {
            if self.ours.1.prepare_wait() {
                self.hand.ring_doorbells();
                self.ours.1.cancel_wait();
            }
            self.ours.1.drain_doorbell().expect("our pipe is readable");
            return Some(());
        }
        let length = script.below(2100);
        match self.ours.0.prepare_wait(length) {
            Ok(true) => self.ours.0.cancel_wait(),
            Ok(false) => {}
            Err(SendError::TooLong { .. }) => assert!(length > self.ours.0.max_message()),
            Err(SendError::Corrupt(violation)) => {
                assert!(self.damage.any(), "no lie was told, and yet: {violation}");
                return self.was_refused();
            }
            Err(error) => panic!("{error}"),
        }
        self.ours.0.drain_doorbell().expect("our pipe is readable");
        Some(())
    }

    /// The peer's own code meets only what was not scribbled over.
    fn peer_sends(&mut self, script: &mut Script<'_>) -> Over {
        let message = self.message(script);
        if self.damage.inward || self.damage.states {
            return Some(());
        }
        match self.peer.0.try_send(&message) {
            Ok(()) => self.inward.push_back(Ok(message)),
            Err(SendError::Full) => {}
            Err(SendError::TooLong { .. }) => assert!(message.len() > self.peer.0.max_message()),
            Err(SendError::Closed) => assert!(self.closed, "nobody closed"),
            Err(error) => panic!("{error}"),
        }
        Some(())
    }

    fn peer_receives(&mut self) -> Over {
        if self.damage.outward || self.damage.states {
            return Some(());
        }
        match self.peer.1.try_receive(&mut self.got) {
            Ok(Some(_)) => {
                assert!(is_next(&mut self.outward, &self.got), "it went otherwise than it was sent");
            }
            Ok(None) => assert!(self.batches || self.outward.is_empty(), "it does not go"),
            Err(ReceiveError::Closed) => assert!(self.closed, "nobody closed"),
            Err(error) => panic!("{error}"),
        }
        Some(())
    }

    fn is_over(&self) -> Over {
        assert!(self.closed || self.damage.states, "nobody closed");
        None
    }

    /// A broken rule closes the channel and tells the peer, for good.
    fn was_refused(&mut self) -> Over {
        assert!(self.ours.0.is_closed() && self.ours.1.is_closed());
        assert!(matches!(self.ours.0.try_send(b""), Err(SendError::Closed)));
        assert!(matches!(self.ours.1.try_receive(&mut self.got), Err(ReceiveError::Closed)));
        None
    }

    /// Whatever has happened: what the peer's receiver finds in order, until it is over.
    fn end(mut self) {
        drop(self.ours);
        if self.damage.outward || self.damage.states {
            return;
        }
        loop {
            match self.peer.1.try_receive(&mut self.got) {
                Ok(Some(_)) => assert!(is_next(&mut self.outward, &self.got)),
                Ok(None) => panic!("the channel is closed, and does not say so"),
                Err(ReceiveError::Closed) => break,
                Err(error) => panic!("{error}"),
            }
        }
        // Whoever closed, or was closed by the peer itself, may have left it at that.
        // What was held back when a lie closed the channel was never committed.
        let held_back = self.batches && self.damage.any();
        assert!(self.closed || held_back || self.outward.is_empty(), "what was committed did not come");
    }
}
