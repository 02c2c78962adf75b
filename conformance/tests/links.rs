//! The suite of links, over every transport. More of raw Ethernet is in `long.rs`.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod cables;

use cables::{conforms, ethernet};
use transport::Kind;

#[test]
fn tcp() {
    conforms(Kind::Tcp);
}

#[test]
fn quic() {
    conforms(Kind::Quic);
}

/// Within this node. Between nodes: `e2e/tests/long/tipc.rs`.
#[test]
fn tipc() {
    if let Err(error) = sys::tipc::socket() {
        println!("skipped: this kernel has no TIPC (modprobe tipc): {error}");
        return;
    }
    conforms(Kind::Tipc);
}

#[test]
fn ethernet_with_the_frames_of_any_switch() {
    ethernet("1500", "true");
}
