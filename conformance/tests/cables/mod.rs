//! The suite over a transport, and networks of a test's own.
#![allow(dead_code, reason = "each test program uses its part")]

use conformance::links::SCENARIOS;
use conformance::links::stage::CABLES;
use sys::namespace::{UnshareFlags, unshare};
use transport::Kind;

pub fn conforms(kind: Kind) {
    conforms_but(kind, "");
}

/// But for one scenario.
pub fn conforms_but(kind: Kind, without: &str) {
    let mut failed = Vec::new();
    for scenario in SCENARIOS.iter().filter(|scenario| scenario.name != without) {
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

/// In a network of this thread alone, whose cables take frames as long as this; `more` is done to
/// it.
pub fn ethernet(mtu: &str, more: &str) {
    if has_cables(mtu, more) {
        conforms(Kind::Ethernet);
    }
}

pub fn has_cables(mtu: &str, more: &str) -> bool {
    if let Err(error) = unshare(UnshareFlags::NEWNET) {
        println!("skipped: no network namespace: {error}");
        return false;
    }
    let script = format!("{CABLES} && {more}");
    let laid = std::process::Command::new("sh").args(["-c", &script]).env("MTU", mtu).status();
    let is_laid = laid.is_ok_and(|status| status.success());
    if !is_laid {
        println!("skipped: no cables can be laid (ip link add ... type veth)");
    }
    is_laid
}
