//! The protocol between a proxy and its node's daemon, and between the proxies of two nodes on the
//! pairs of their link. Described in `docs/spec/proxy.md`; the link itself in `docs/spec/link.md`.

use crate::control::{EndpointAddress, GrantedBuffer};
use serde::{Deserialize, Serialize};

/// Version of this page: 4 has loans.
pub const VERSION: u32 = 4;
/// Memory of a proxy, with all that it touches first of what others share with it: the limit of its
/// cgroup. A proxy counts what each pair can make it hold, and refuses pairs that would not fit.
pub const MEMORY_BYTES: u64 = 536_870_912;
/// Most pairs that the other node may have open over a link: a fourth of what one server takes in
/// sessions.
pub const MAX_PAIRS: u32 = 4096;
/// Window of a pair, in bytes: at a round trip of 1 ms it lets half a GiB a second through.
pub const WINDOW_BYTES: u32 = 512 * 1024;
/// Longest message on a pair, in bytes, its word included. Longer records go in fragments, so that
/// pairs take turns.
pub const MAX_MESSAGE_BYTES: u32 = 32 * 1024 + 1;
/// Longest name in news, in bytes: no distributed container, service or endpoint has a longer one.
pub const MAX_NAME_BYTES: usize = 63;
/// Longest news, in bytes.
pub const MAX_NEWS_BYTES: usize = 16 * 1024;
/// Longest message of a refusal, in bytes; what is longer is cut.
pub const MAX_REFUSAL_BYTES: usize = 1024;
/// Opens that may wait for the daemon's answer at a time, in each direction.
pub const MAX_WAITING_OPENS: usize = 256;
/// After so many ms without a connection a proxy that has pairs ends, and with it they.
pub const TIMEOUT_MS: u64 = 30_000;
/// After so many ms in which nothing was heard a connection is taken for cut.
pub const SILENCE_MS: u32 = 3_000;

/// The first byte of a message on a pair: what it is.
pub mod word {
    /// A record of the channel that is a whole message.
    pub const WHOLE: u8 = 0;
    /// One that begins a message.
    pub const FIRST: u8 = 1;
    /// One that goes on with it.
    pub const NEXT: u8 = 2;
    /// One that ends it.
    pub const LAST: u8 = 3;
    /// The pair was accepted: records may follow.
    pub const ACCEPTED: u8 = 16;
    /// It was not: 4 bytes errno, and why, as text. The pair is closed then.
    pub const REFUSED: u8 = 17;
    /// 8 bytes: so long messages in pieces the receiver at this side puts together.
    pub const LIMIT: u8 = 18;
    /// News for the daemon, as JSON.
    pub const NEWS: u8 = 19;
    /// On a pair of endpoints: a record as it stands in the ring, its header and its payload.
    pub const RECORD: u8 = 32;
    /// 8 bytes: the call of this number was received.
    pub const TAKEN: u8 = 33;
    /// 8 bytes: the call of this number was refused, or withdrawn before it was received.
    pub const OVER: u8 = 34;
    /// 8 bytes: the caller does not want the call of this number any more.
    pub const WITHDRAW: u8 = 35;
    /// 8 bytes: so many bytes of records were handed out or dropped, in all.
    pub const RECEIVED: u8 = 36;
    /// 8 bytes: bits of notices were set.
    pub const NOTICES: u8 = 37;
    /// 8 bytes: what is published for the search for deadlocks.
    pub const PATH: u8 = 38;
    /// With one of the first four, or with [`RECORD`]: the record goes on in the next message.
    pub const MORE: u8 = 0x80;
}

/// Why a pair is closed.
pub mod reason {
    /// Its channel is closed, or whoever had the other end is dead.
    pub const ENDED: u32 = 0;
    /// The node does not want it.
    pub const REFUSED: u32 = 1;
    /// A rule of `docs/spec/proxy.md` was broken.
    pub const BROKEN: u32 = 2;
    /// The asker does not wait any more.
    pub const CANCELLED: u32 = 3;
}

/// For whom a pair is: the content of the record that opens it, as JSON of at most
/// [`crate::link::OPEN_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "open", rename_all = "snake_case", deny_unknown_fields)]
pub enum Open {
    /// Of the daemon at this side for the other one. Each side opens one.
    News {},
    /// A channel of a program, or of a frontend, to a service on the other node.
    Channel {
        /// The distributed container.
        dc: String,
        /// The service.
        service: String,
        /// The domain of whoever asks.
        domain: String,
        /// By which entrance it asks.
        entrance: String,
        /// Bytes of each ring.
        ring_bytes: u32,
    },
    /// A pair of endpoints.
    Endpoints {
        /// The distributed container.
        dc: String,
        /// The endpoint that asks.
        from: EndpointAddress,
        /// Its name; empty: it has none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// The domain of whoever asks.
        domain: String,
        /// The endpoint that is asked for.
        to: EndpointAddress,
        /// Bytes of each ring, on both nodes.
        ring_bytes: u32,
    },
    /// A channel of an endpoint to what a grant stands for.
    Grant {
        /// The distributed container.
        dc: String,
        /// The grant.
        grant: u64,
        /// The endpoint that asks.
        from: EndpointAddress,
        /// Its name; empty: it has none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// The domain of whoever asks.
        domain: String,
    },
}

/// A pair of a link, as JSON has it: its generation in the upper half, its slot in the lower.
#[must_use]
pub const fn pair_number(slot: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | slot as u64
}

/// From the daemon to its proxy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// The configuration of the link. The first one starts it; a later one changes what can be
    /// changed while it lives: `peer_at`, `transport`, `compression`.
    Configure(Configure),
    /// Open a pair for the end that comes along. Answered by [`Report::Opened`] or
    /// [`Report::Refused`].
    Open {
        /// Comes back in the answer.
        id: u64,
        /// For whom.
        open: Open,
    },
    /// Nobody waits for this answer any more.
    Cancel {
        /// Of the open.
        id: u64,
    },
    /// The answer to [`Report::Asked`]: accepted, with an end.
    Accept {
        /// The pair.
        pair: u64,
    },
    /// The answer to [`Report::Asked`]: refused.
    Refuse {
        /// The pair.
        pair: u64,
        /// Of Linux.
        errno: i32,
        /// Why, for a person.
        message: String,
    },
    /// The answer to [`Report::Asked`] for a grant: accepted. The memories of the buffer come
    /// along, its data and its states.
    Lend {
        /// The pair.
        pair: u64,
        /// The buffer that it stands for.
        buffer: GrantedBuffer,
    },
    /// A grant is over, or stands for another buffer now: what was lent of it to this endpoint is
    /// so no more.
    Recall {
        /// The distributed container.
        dc: String,
        /// The grant.
        grant: u64,
        /// The endpoint that has borrowed it.
        endpoint: EndpointAddress,
    },
    /// The pair of these two endpoints is over, whichever of them is here.
    Part {
        /// The distributed container.
        dc: String,
        /// The two.
        endpoints: [EndpointAddress; 2],
    },
    /// News for the other node's daemon.
    News {
        /// See [`News`].
        news: News,
    },
    /// Begins classes for all that is sent over the link, with so many bits per second together at
    /// most; former classes are gone. 0: there are no classes, and all pairs take turns.
    Whole {
        /// Of the node's link.
        rate_bits: u64,
    },
    /// A domain of this node is promised this of the link from now on.
    Share {
        /// `DC/DOMAIN`.
        name: String,
        /// The rate that it may always send, in bits per second; 0: nothing is promised to it any
        /// more.
        rate_bits: u64,
        /// The rate that it may send while others don't, in bits per second.
        ceiling_bits: u64,
        /// How much may come at once, in bytes.
        burst_bytes: u64,
        /// The order in which classes get what is left: 0 is the first.
        precedence: u8,
    },
    /// A pair for which the other node asks is to be of this domain of this node. Goes before
    /// [`Order::Accept`].
    Belongs {
        /// The pair.
        pair: u64,
        /// `DC/DOMAIN`.
        name: String,
    },
    /// Say your state. Answered by [`Report::State`].
    Inspect {
        /// Comes back in the answer.
        id: u64,
    },
    /// Three files come along, opened: the node's certificate and key, the authorities that it
    /// believes, what is revoked. They hold from the next connection on.
    Trust {},
    /// End, and all pairs with you.
    End {
        /// Why, for the log.
        why: String,
        /// Only if nobody has a pair, nor waits for one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unless_used: bool,
    },
}

/// See [`Order::Configure`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    /// This node's name.
    pub node: String,
    /// The other's.
    pub peer: String,
    /// Greater than that of every earlier proxy of this pair of nodes at this side.
    pub epoch: u64,
    /// The folder with this node's certificate and key.
    pub identity: String,
    /// Addresses to listen at, as locators; none: this side connects. At one of TIPC it listens
    /// when that is wanted.
    pub listen: Vec<String>,
    /// Where the other proxy listens; none where this side listens, or where it is not known yet.
    pub peer_at: Vec<String>,
    /// `tcp`, `quic`, `ethernet` or `tipc`; the first of `listen` or `peer_at` that is of it is
    /// taken.
    pub transport: String,
    /// `none`, `lz4`, `zstd`, `auto`.
    pub compression: String,
    /// Where frames of Ethernet go out and come in, whose socket comes along; none: it has no such
    /// transport, or goes on with the one that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub station: Option<Station>,
}

/// The address of a socket for frames of Ethernet: see `docs/spec/lane.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Station {
    /// The interface.
    pub interface: String,
    /// Its number.
    pub index: u32,
    /// Its address.
    pub mac: [u8; 6],
    /// Longest payload of a frame.
    pub mtu: u32,
    /// The number that frames for this socket begin with, as 16 hexadecimal digits.
    pub number: String,
}

/// From a proxy to its daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case", deny_unknown_fields)]
pub enum Report {
    /// The first thing that a daemon hears.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Its process.
        pid: u32,
        /// The configuration that it was given, if any: a daemon that finds it goes on from there.
        configured: Option<Configure>,
        /// Where it listens.
        listens: Vec<String>,
        /// Whether the other node's proxy is known: its news of before are said again.
        up: bool,
    },
    /// It listens.
    Listening {
        /// Where.
        at: Vec<String>,
    },
    /// The proxies speak.
    Up {
        /// They did before, and pairs have gone on; otherwise the other proxy is another one than
        /// before, if there was one, and what there was is over.
        resumed: bool,
        /// By which transport.
        transport: String,
    },
    /// There is no connection now. Pairs wait.
    Down {
        /// Why, for a person.
        why: String,
    },
    /// The pair is open.
    Opened {
        /// Of the order.
        id: u64,
    },
    /// It is not.
    Refused {
        /// Of the order.
        id: u64,
        /// Of Linux.
        errno: i32,
        /// Why, for a person.
        message: String,
    },
    /// The other node asks for a pair: an allegation of that node's. Answered by [`Order::Accept`]
    /// or [`Order::Refuse`].
    Asked {
        /// The pair.
        pair: u64,
        /// For whom.
        open: Open,
    },
    /// A pair of endpoints is open: said of each to a daemon that has just come, before anything
    /// else but [`Report::Hello`].
    Carries {
        /// The distributed container.
        dc: String,
        /// The one on this node.
        near: EndpointAddress,
        /// The other.
        far: EndpointAddress,
        /// The name of the other, where that one has asked for the pair; empty: it has none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        name: String,
        /// Its domain; empty where this node has asked, and so knows.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        domain: String,
    },
    /// A pair of endpoints is over.
    Parted {
        /// The distributed container.
        dc: String,
        /// The one on this node.
        near: EndpointAddress,
        /// The other.
        far: EndpointAddress,
    },
    /// The other node does not ask any more.
    Withdrawn {
        /// The pair.
        pair: u64,
    },
    /// News of the other node's daemon: an allegation.
    News {
        /// See [`News`].
        news: News,
    },
    /// The answer to [`Order::Inspect`].
    State {
        /// Of the order.
        id: u64,
        /// Counters, as they stand in the state tree.
        state: serde_json::Value,
    },
    /// The last one: it ends.
    Over {
        /// Why.
        why: String,
    },
}

/// The news that daemons tell each other through their proxies. A new association begins with
/// everything that is so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case", deny_unknown_fields)]
pub enum News {
    /// Forget what I said: all of it follows.
    Anew {},
    /// Say all of it anew: I have just come.
    Again {},
    /// A service has a server here, or a program offers it.
    Served {
        /// The distributed container.
        dc: String,
        /// The service.
        service: String,
        /// Counts servers at that node.
        generation: u64,
    },
    /// It has none any more.
    Unserved {
        /// The distributed container.
        dc: String,
        /// The service.
        service: String,
    },
    /// An endpoint with a name is bound here.
    Bound {
        /// The distributed container.
        dc: String,
        /// Its name.
        name: String,
        /// Its address.
        address: EndpointAddress,
    },
    /// It is not any more.
    Unbound {
        /// The distributed container.
        dc: String,
        /// Its name.
        name: String,
        /// Its address.
        address: EndpointAddress,
    },
}

impl News {
    /// Whether all names in it are as long as names can be: daemons keep them by the thousand.
    #[must_use]
    pub fn has_names(&self) -> bool {
        let is_name = |text: &String| (1..=MAX_NAME_BYTES).contains(&text.len());
        match self {
            Self::Anew {} | Self::Again {} => true,
            Self::Served { dc, service, .. } | Self::Unserved { dc, service } => {
                is_name(dc) && is_name(service)
            }
            Self::Bound { dc, name, .. } | Self::Unbound { dc, name, .. } => is_name(dc) && is_name(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::OPEN_BYTES_MAX;

    #[test]
    fn news_with_names_that_nobody_can_have_are_told_apart() {
        let (long, short) = ("n".repeat(MAX_NAME_BYTES + 1), "n".repeat(MAX_NAME_BYTES));
        let address = EndpointAddress { slot: 1, generation: 1 };
        let of = |dc: &str, name: &str| {
            let (dc, name) = (dc.to_owned(), name.to_owned());
            [
                News::Served { dc: dc.clone(), service: name.clone(), generation: 1 },
                News::Unserved { dc: dc.clone(), service: name.clone() },
                News::Bound { dc: dc.clone(), name: name.clone(), address },
                News::Unbound { dc, name, address },
            ]
        };
        assert!(of(&short, &short).iter().chain(&[News::Anew {}, News::Again {}]).all(News::has_names));
        for (dc, name) in [(&long, &short), (&short, &long), (&short, &String::new())] {
            assert!(!of(dc, name).iter().any(News::has_names));
        }
    }

    #[test]
    fn the_longest_names_fit_into_what_opens_a_pair() {
        let long = || "n".repeat(63);
        let address = EndpointAddress { slot: u32::MAX, generation: u32::MAX };
        let channel = Open::Channel {
            dc: long(),
            service: long(),
            domain: long(),
            entrance: "resolve".into(),
            ring_bytes: u32::MAX,
        };
        let endpoints = Open::Endpoints {
            dc: long(),
            from: address,
            name: long(),
            domain: long(),
            to: address,
            ring_bytes: u32::MAX,
        };
        let (grant, name, domain) = (u64::MAX, long(), long());
        let grant = Open::Grant { dc: long(), grant, from: address, name, domain };
        for open in [channel, endpoints, grant, Open::News {}] {
            let bytes = serde_json::to_vec(&open).expect("it can be written");
            assert!(bytes.len() <= OPEN_BYTES_MAX, "{} bytes", bytes.len());
            assert_eq!(serde_json::from_slice::<Open>(&bytes).expect("it can be read"), open);
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for text in [
            r#"{"open":"fly"}"#,
            r#"{"open":"news","more":1}"#,
            r#"{"open":"channel","dc":"a"}"#,
            "[]",
            r#"{"open":"channel","dc":"a","service":"b","domain":"c","entrance":"api","ring_bytes":-1}"#,
        ] {
            assert!(serde_json::from_str::<Open>(text).is_err(), "{text}");
        }
    }
}
