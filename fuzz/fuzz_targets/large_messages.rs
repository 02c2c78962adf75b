//! Messages longer than a record and than the ring, in pieces, in both directions, with a peer that
//! scribbles between our calls. What must hold: no panic, no violation without a lie, no more
//! memory than was allowed; a message comes whole and as it was sent, or not at all.
#![cfg_attr(feature = "fuzzing", no_main)]

use std::collections::VecDeque;

use channel::{ReceiveError, Receiver, SendError, Sender};
use fuzz::script::Script;
use fuzz::stage::{self, Damage, Hand, in_time};
use fuzz::watch::Watch;

/// A script longer than this says nothing new.
const STEPS_MAX: usize = 300;
/// Most bytes that either end puts together: several rings.
const LIMIT_MAX: usize = 20_000;
/// Looks for a message that has been sent. One look takes about a ring's bytes, or an abandoned
/// message.
const LOOKS_MAX: usize = 200;

fuzz::target!(|bytes: &[u8]| {
    let mut script = Script::new(bytes);
    let (ours, peer, hand) = stage::opened(usize::from(script.flag()));
    let watch = Watch::new(&hand);
    let sides = [ours, peer].map(|(sender, receiver)| Side {
        sender,
        receiver,
        partial: None,
        underway: VecDeque::new(),
        fill: 0,
    });
    let mut play = Play { sides, hand, watch, damage: Damage::default() };
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { break };
        if play.turn(step, &mut script).is_none() {
            break;
        }
    }
});

/// One end, and what it has sent that has not come.
struct Side {
    sender: Sender,
    receiver: Receiver,
    /// A message of which not all pieces are sent yet, and how far it is.
    partial: Option<(Vec<u8>, usize)>,
    underway: VecDeque<Vec<u8>>,
    fill: u8,
}

struct Play {
    /// Ours, and the peer's.
    sides: [Side; 2],
    hand: Hand,
    watch: Watch,
    damage: Damage,
}

/// Something that only a lie explains has happened, or the channel is over.
type Over = Option<()>;

impl Side {
    /// No two neighbouring bytes, and no two messages in a row, are alike.
    fn message(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let most = if script.flag() { 9000 } else { 300 };
        let length = script.below(most);
        self.fill = self.fill.wrapping_add(41);
        (0..length).map(|index| self.fill.wrapping_add((index % 251) as u8)).collect()
    }

    fn send(&mut self, script: &mut Script<'_>) -> Result<(), SendError> {
        let message = match (script.below(6), self.partial.take()) {
            // The one that was begun goes on.
            (0..=2, Some((message, sent))) => return self.go_on(message, sent),
            (3, _) => {
                let message = self.message(script);
                let cut = script.below(message.len() + 1);
                let parts = [&message[..cut], &message[cut..]];
                in_time(|deadline| self.sender.send_vectored(&parts, deadline))?;
                message
            }
            (4, _) => {
                let message = self.message(script);
                self.sender.try_send(&message)?;
                message
            }
            _ => {
                let message = self.message(script);
                return self.go_on(message, 0);
            }
        };
        self.underway.push_back(message);
        Ok(())
    }

    fn go_on(&mut self, message: Vec<u8>, mut sent: usize) -> Result<(), SendError> {
        match self.sender.try_send_from(&message, &mut sent) {
            Ok(()) => {
                assert_eq!(sent, message.len());
                self.underway.push_back(message);
                Ok(())
            }
            Err(error) => {
                assert!(sent < message.len() || message.is_empty(), "it is all sent, and yet: {error}");
                if matches!(error, SendError::Full) {
                    self.partial = Some((message, sent));
                }
                Err(error)
            }
        }
    }

    fn receive(&mut self, script: &mut Script<'_>, got: &mut Vec<u8>) -> Result<Option<usize>, ReceiveError> {
        let receiver = &mut self.receiver;
        match script.below(5) {
            0 => in_time(|deadline| receiver.receive(got, deadline)).map(Some),
            1 => receiver.try_read(|message| {
                got.clear();
                let mut last = [0];
                assert_eq!(message.copy_to(message.len().wrapping_sub(1), &mut last), message.len() > 0);
                assert!(!message.copy_to(message.len(), &mut last));
                message.append_to(got);
                message.len()
            }),
            2 => match receiver.try_next_length()? {
                None => Ok(None),
                Some(length) => {
                    let received = receiver.try_receive(got)?;
                    assert_eq!(received, Some(length), "it was announced otherwise");
                    Ok(received)
                }
            },
            _ => receiver.try_receive(got),
        }
    }
}

impl Play {
    fn turn(&mut self, step: u8, script: &mut Script<'_>) -> Over {
        let (ours, lied) = (step % 16 < 8, self.damage.any() || self.damage.states);
        match step % 16 {
            14 | 15 => {
                self.damage.add(self.hand.scribble(script));
                return Some(());
            }
            // The peer's own code meets only what was not scribbled over.
            8.. if lied => return Some(()),
            _ => {}
        }
        if ours {
            self.watch.begin(&self.hand);
        }
        let over = match step % 8 {
            0..=2 => self.send(usize::from(!ours), script),
            3..=5 => self.receive(usize::from(!ours), script),
            _ => {
                let side = &mut self.sides[usize::from(!ours)];
                side.receiver.set_message_limit(script.below(LIMIT_MAX));
                assert!(side.receiver.message_limit() <= LIMIT_MAX);
                Some(())
            }
        };
        if ours {
            self.watch.end(&self.hand);
        }
        over
    }

    fn send(&mut self, side: usize, script: &mut Script<'_>) -> Over {
        match self.sides[side].send(script) {
            Ok(()) | Err(SendError::Full | SendError::TimedOut | SendError::TooLong { .. }) => Some(()),
            Err(SendError::Closed) => {
                assert!(self.damage.states, "nobody closed");
                None
            }
            Err(SendError::Corrupt(violation)) => {
                assert!(self.damage.any(), "no lie was told, and yet: {violation}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn receive(&mut self, side: usize, script: &mut Script<'_>) -> Over {
        let (mut got, mut looks) = (Vec::new(), 0);
        let damaged = self.damage.any();
        loop {
            match self.sides[side].receive(script, &mut got) {
                Ok(Some(length)) => {
                    let limit = self.sides[side].receiver.message_limit();
                    assert!(length == got.len() && length <= limit, "{length} bytes, more than {limit}");
                    let sent = self.sides[1 - side].underway.pop_front();
                    assert!(damaged || sent.as_ref() == Some(&got), "it came otherwise than it was sent");
                    return Some(());
                }
                Ok(None) | Err(ReceiveError::TimedOut) => {}
                Err(ReceiveError::Closed) => {
                    assert!(self.damage.states, "nobody closed");
                    return None;
                }
                Err(ReceiveError::Corrupt(violation)) => {
                    assert!(damaged, "no lie was told, and yet: {violation}");
                    return None;
                }
                Err(error) => panic!("{error}"),
            }
            if damaged || self.sides[1 - side].underway.is_empty() {
                return Some(());
            }
            looks += 1;
            assert!(looks < LOOKS_MAX, "it does not come");
        }
    }
}
