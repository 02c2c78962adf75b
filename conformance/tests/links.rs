//! The suite of links, over every transport.
#![allow(clippy::unwrap_used, reason = "a test may")]

use conformance::links::stage::{BARE, CABLES};
use conformance::links::talk::{Plan, both};
use conformance::links::weather::{IP_ALONE, NO_IP};
use conformance::links::{Bed, Done, SCENARIOS, ensure};
use sys::namespace::{UnshareFlags, unshare};
use transport::{Compression, Kind};

fn conforms(kind: Kind) {
    conforms_but(kind, "");
}

/// But for one scenario.
fn conforms_but(kind: Kind, without: &str) {
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

/// In a network of this thread alone, whose cables take frames as long as this; `more` is done to it.
fn ethernet(mtu: &str, more: &str) {
    if has_cables(mtu, more) {
        conforms(Kind::Ethernet);
    }
}

fn has_cables(mtu: &str, more: &str) -> bool {
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

#[test]
fn ethernet_with_the_frames_of_any_switch() {
    ethernet("1500", "true");
}

#[test]
fn ethernet_with_long_frames() {
    ethernet("9000", "true");
}

/// A card that cuts nothing: the kernel cuts packets before it, and frames come one by one.
#[test]
fn ethernet_where_packets_are_cut_on_their_way() {
    ethernet(
        "1500",
        "for name in near far near-way far-way; do ip link set $name gso_max_size 2000 || exit; done",
    );
}

#[test]
fn ethernet_where_one_node_s_kernel_knows_nothing_of_covers() {
    ethernet("1500", &format!("ip link add {BARE} type veth peer name {BARE}-way"));
}

/// Frames that go alone go outside the cover, until the first is lost there.
#[test]
fn ethernet_where_what_is_in_between_takes_ip_alone() {
    ethernet("1500", &format!("ip link add {IP_ALONE} type veth peer name {IP_ALONE}-way"));
}

/// Bulk, and the middle of it has a way that cuts.
const BULK: Plan = Plan { pairs: 2, messages: 40, lengths: &[100_000, 9, 300_000], text: false };

/// A device in between begins to cut: the link goes on with shorter frames, and nothing is lost or
/// comes twice.
#[test]
fn ethernet_where_what_is_in_between_begins_to_cut() {
    if !has_cables("1500", "true") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let done: Done<()> = runtime.block_on(async {
        let Bed { near, far, weather, .. } = &mut Bed::make(Kind::Ethernet, Compression::None).await?;
        let weather = &weather[&Kind::Ethernet];
        let cuts = async {
            weather.after(1_000_000).await?;
            let cut = "for name in near-way far-way; do ip link set $name gso_max_size 2000 || exit; done";
            let is_done = std::process::Command::new("sh").args(["-c", cut]).status();
            ensure(is_done.is_ok_and(|status| status.success()), || "it does not cut".into())?;
            std::future::pending().await
        };
        both((near, far), BULK, cuts).await?;
        let status = near.handle.status();
        println!("{status:?}");
        ensure(status.traffic.connections > 1, || format!("no connection was given up: {status:?}"))
    });
    done.unwrap();
}

/// A device in between drops the encapsulation: after a moment frames go without.
#[test]
fn ethernet_where_what_is_in_between_takes_no_ip() {
    // The first connection takes a second more: the load would be over before anything is exchanged.
    if has_cables("1500", &format!("ip link add {NO_IP} type veth peer name {NO_IP}-way")) {
        conforms_but(Kind::Ethernet, "transports are exchanged under load");
    }
}
