//! The transports of links from node to node (`docs/spec/link.md`): TCP with TLS 1.3, QUIC, raw
//! Ethernet, and TIPC with TLS 1.3. All are mutually authenticated and encrypted.
//!
//! A [`Listener`] yields a [`Connection`] for each peer that proved who it is, [`connect`] makes
//! one to a [`Locator`]. A [`Driver`] owns a [`link::Link`] and carries it over such connections:
//! it connects again when one is lost, exchanges one for another while messages flow, gathers what
//! goes out, compresses it, and hands events out. Its user has a [`Handle`], whose calls never
//! wait, and [`Events`].

mod buffer;
mod compress;
mod connect;
mod connection;
mod driver;
mod encrypted;
mod ethernet;
mod listener;
mod locator;
mod quic;
mod shake;
mod tcp;
mod tipc;
mod tls;

pub use compress::{COMPRESSIONS, Compression};
pub use connect::{ConnectError, connect};
pub use connection::{Carry, Connection, HANDSHAKE_LIMIT};
pub use driver::{Dial, Driver, Events, Handle, Settings, Status, SwitchError, Traffic, WrongPeer, start};
pub use ethernet::Station;
pub use listener::{HANDSHAKES_MAX, HANDSHAKES_OF_ONE_MAX, Listener, Refused, RefusedWhy};
pub use locator::{Address, BadLocator, Kind, Locator};
pub use tipc::{TipcListener, TipcStream, check_tipc};
pub use tls::{ALPN, Tls, Who};
