//! The suite of links, over every transport.
#![allow(clippy::unwrap_used, reason = "a test may")]

use conformance::links::{SCENARIOS, stage::CABLES};
use sys::namespace::{UnshareFlags, unshare};
use transport::Kind;

fn conforms(kind: Kind) {
    let mut failed = Vec::new();
    for scenario in SCENARIOS {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begun = std::time::Instant::now();
        let done = runtime.block_on(scenario.run(kind));
        println!("{:>6} ms  {}", begun.elapsed().as_millis(), scenario.name);
        if let Err(failure) = done {
            println!("           {failure}");
            failed.push(scenario.name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn tcp() {
    conforms(Kind::Tcp);
}

#[test]
fn quic() {
    conforms(Kind::Quic);
}

/// Within this node. Between nodes: `e2e/tests/all/tipc.rs`.
#[test]
fn tipc() {
    if let Err(error) = sys::tipc::socket() {
        println!("skipped: this kernel has no TIPC (modprobe tipc): {error}");
        return;
    }
    conforms(Kind::Tipc);
}

/// In a network of this thread alone, whose cables take frames as long as this.
fn ethernet(mtu: &str) {
    if let Err(error) = unshare(UnshareFlags::NEWNET) {
        println!("skipped: no network namespace: {error}");
        return;
    }
    let laid = std::process::Command::new("sh").args(["-c", CABLES]).env("MTU", mtu).status();
    if !laid.is_ok_and(|status| status.success()) {
        println!("skipped: no cables can be laid (ip link add ... type veth)");
        return;
    }
    conforms(Kind::Ethernet);
}

#[test]
fn ethernet_with_the_frames_of_any_switch() {
    ethernet("1500");
}

#[test]
fn ethernet_with_long_frames() {
    ethernet("9000");
}
