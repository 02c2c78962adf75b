//! The suite of links over raw Ethernet, through all that may be between two nodes: it is frozen
//! ([ADR 0128](../../docs/adr/0128-raw-ethernet-is-frozen.md)), so these tests are for the long
//! run.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod cables;

use cables::{conforms_but, ethernet, has_cables};
use conformance::links::faults::{IP_ALONE, NO_IP};
use conformance::links::stage::BARE;
use conformance::links::talk::{Plan, both};
use conformance::links::{Bed, Done, ensure};
use transport::{Compression, Kind};

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
        let Bed { near, far, faults, .. } = &mut Bed::make(Kind::Ethernet, Compression::None).await?;
        let faults = &faults[&Kind::Ethernet];
        let cuts = async {
            faults.after(1_000_000).await?;
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
    // The first connection takes a second more: the load would be over before anything is
    // exchanged.
    if has_cables("1500", &format!("ip link add {NO_IP} type veth peer name {NO_IP}-way")) {
        conforms_but(Kind::Ethernet, "transports are exchanged under load");
    }
}
