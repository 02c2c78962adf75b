//! The state that a session leaves to the next backend. It has been in the consumer's hands, so it
//! is read as a request is.

use publication::{Overflow, Position};
use wire::events::FILTER_BYTES_MAX;

/// How events are framed for a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// The bytes that were published.
    #[default]
    Raw,
    /// [`wire::events::EventHeader`] before them.
    Binary,
    /// A line of text before them.
    Text,
}

/// First byte of each capsule: its version, and whose it is.
const PUBLISHER: u8 = 0x11;
const SUBSCRIBER: u8 = 0x12;

/// A publisher: which one, and how many of its records were answered. 25 bytes: kind 0, channel 1,
/// number 9, answered 17.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublisherCapsule {
    pub channel: u64,
    pub number: u64,
    pub answered: u64,
}

/// A subscriber. 44 bytes and its filter: kind 0, overflow 1, framing 2, held 3, channel 4, next
/// 12, delivered 20, lost 28, wait 36 (ms).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriberCapsule<'f> {
    pub channel: u64,
    pub position: Position,
    pub overflow: Overflow,
    pub framing: Framing,
    /// It has been opened for writing, too, and has not said anything yet.
    pub held: bool,
    pub filter: Option<&'f str>,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

impl PublisherCapsule {
    pub fn write(self, into: &mut Vec<u8>) {
        into.push(PUBLISHER);
        for word in [self.channel, self.number, self.answered] {
            into.extend_from_slice(&word.to_le_bytes());
        }
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let whole = bytes.len() == 25 && bytes.first() == Some(&PUBLISHER);
        let word = |at| u64_at(bytes, at);
        whole.then_some(Self { channel: word(1)?, number: word(9)?, answered: word(17)? })
    }
}

impl<'f> SubscriberCapsule<'f> {
    pub fn write(&self, into: &mut Vec<u8>) {
        let (overflow, wait) = match self.overflow {
            Overflow::DropOldest => (0, 0),
            Overflow::Latest => (1, 0),
            Overflow::Wait(ms) => (2, ms),
        };
        let framing = match self.framing {
            Framing::Raw => 0,
            Framing::Binary => 1,
            Framing::Text => 2,
        };
        into.extend_from_slice(&[SUBSCRIBER, overflow, framing, u8::from(self.held)]);
        let Position { next, delivered, lost } = self.position;
        for word in [self.channel, next, delivered, lost, wait] {
            into.extend_from_slice(&word.to_le_bytes());
        }
        into.extend_from_slice(self.filter.unwrap_or_default().as_bytes());
    }

    pub fn read(bytes: &'f [u8]) -> Option<Self> {
        let (&[SUBSCRIBER, overflow, framing, held], _) = bytes.split_first_chunk()? else { return None };
        let word = |at| u64_at(bytes, at);
        let filter = std::str::from_utf8(bytes.get(44..)?).ok()?;
        if filter.len() > FILTER_BYTES_MAX || held > 1 {
            return None;
        }
        Some(Self {
            channel: word(4)?,
            position: Position { next: word(12)?, delivered: word(20)?, lost: word(28)? },
            overflow: match overflow {
                0 => Overflow::DropOldest,
                1 => Overflow::Latest,
                2 => Overflow::Wait(word(36)?),
                _ => return None,
            },
            framing: match framing {
                0 => Framing::Raw,
                1 => Framing::Binary,
                2 => Framing::Text,
                _ => return None,
            },
            held: held == 1,
            filter: Some(filter).filter(|filter| !filter.is_empty()),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]
mod tests {
    use super::*;

    #[test]
    fn capsules_come_back_as_they_went_and_nonsense_is_none() {
        let publisher = PublisherCapsule { channel: 1, number: 2, answered: 3 };
        let mut bytes = Vec::new();
        publisher.write(&mut bytes);
        assert_eq!(PublisherCapsule::read(&bytes), Some(publisher));
        assert_eq!(PublisherCapsule::read(&bytes[1..]), None);
        let subscriber = SubscriberCapsule {
            channel: 9,
            position: Position { next: 4, delivered: 2, lost: 1 },
            overflow: Overflow::Wait(250),
            framing: Framing::Text,
            held: true,
            filter: Some("a > 3"),
        };
        bytes.clear();
        subscriber.write(&mut bytes);
        assert_eq!(SubscriberCapsule::read(&bytes), Some(subscriber));
        for length in 0..44 {
            assert_eq!(SubscriberCapsule::read(&bytes[..length]), None);
        }
        bytes[1] = 9;
        assert_eq!(SubscriberCapsule::read(&bytes), None);
        assert_eq!(PublisherCapsule::read(&bytes), None);
    }
}
