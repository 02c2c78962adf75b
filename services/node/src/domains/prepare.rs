//! Prerequisites of a change, made or looked at before it stops anything: machines' kernels and images, ports.

use super::listener::{Holder, holder, in_the_way};
use super::{Domains, machines, spec};
use crate::admin::{Code, Problem};
use crate::base::blocking;
use std::collections::BTreeSet;
use std::sync::Arc;
use topology::{Domain, Network, Plan, Ready, Step};

/// Prepares all that the plan starts. The things made stay for the start, or for the next attempt.
///
/// # Errors
/// The obstacle that keeps a domain from being started; nothing was touched.
pub(super) async fn all(node: &Arc<Domains>, dc: &str, plan: &Plan) -> Result<(), Problem> {
    for domain in started(plan) {
        let lacking =
            |why| Problem::new(Code::Failed, format!("domain {} can't be started: {why}", domain.name));
        if let Some(machine) = &domain.machine {
            machines::find(node, domain, machine).await.map_err(lacking)?;
        }
    }
    let (node, dc, plan) = (Arc::clone(node), dc.to_owned(), plan.clone());
    blocking(move || ports(&node, &dc, &plan)).await.map_err(|why| Problem::new(Code::Failed, why))?
}

fn started(plan: &Plan) -> impl Iterator<Item = &Domain> {
    plan.steps.iter().filter_map(|step| match step {
        Step::Start { domain } | Step::Restart { after: domain, .. } => Some(&**domain),
        _ => None,
    })
}

/// The domains that are ended before what takes their place starts.
fn ended(plan: &Plan) -> BTreeSet<&str> {
    let ended = plan.steps.iter().filter_map(|step| match step {
        Step::Stop { domain } | Step::Restart { before: domain, .. } => Some(domain.name.as_str()),
        _ => None,
    });
    ended.collect()
}

/// Refuses ports of the node's network that the file names and somebody holds who does not end with this change.
fn ports(node: &Domains, dc: &str, plan: &Plan) -> Result<(), Problem> {
    let ended = ended(plan);
    let own = |name: &str| domain::pids_of(&node.layout, dc, name).unwrap_or_default();
    for domain in started(plan).filter(|domain| domain.network == Network::Host) {
        let mut ours = own(domain.name.as_str());
        ours.extend(ended.iter().flat_map(|name| own(name)));
        let mut named = Vec::new();
        if let Ready::Tcp(address) = &domain.ready {
            named.push((*address, "of its `ready`"));
        }
        if spec::has_stub(domain) {
            named.push(((spec::STUB_ADDRESS, spec::STUB_PORT).into(), "of its DNS stub"));
        }
        for (address, of) in named {
            if let Holder::Stranger(pid, program) = holder(address, &ours) {
                let why = format!(
                    "domain {} can't have the port {of}: {program} (pid {pid}), which is not of this domain, holds {address}",
                    domain.name
                );
                return Err(Problem::new(Code::Failed, why)
                    .help("end that process, or take another port; nothing was touched"));
            }
        }
    }
    let updated = plan.steps.iter().filter_map(|step| match step {
        Step::Update { after: domain, .. } => Some(&**domain),
        _ => None,
    });
    for domain in started(plan).chain(updated) {
        let mut ours = own(domain.name.as_str());
        ours.extend(ended.iter().flat_map(|name| own(name)));
        published(domain, &ours)?;
    }
    Ok(())
}

/// Refuses published addresses that somebody has who is none of `ours`.
fn published(domain: &Domain, ours: &[u32]) -> Result<(), Problem> {
    for published in &domain.published {
        if let Holder::Stranger(pid, program) = in_the_way(published.at, ours) {
            let why = format!(
                "domain {} can't be published at {}: {program} (pid {pid}) has it",
                domain.name, published.at
            );
            return Err(Problem::new(Code::Failed, why)
                .help("end that, or publish at another port; nothing was touched"));
        }
    }
    Ok(())
}

/// Refuses a file that publishes at an address of this node that somebody has who is not of its distributed container. For `check`, which
/// needs no daemon.
///
/// # Errors
/// The address that is taken, and its holder.
pub fn free_to_publish(topology: &topology::Topology, layout: &domain::Layout) -> Result<(), Problem> {
    let dc = topology.name.as_str();
    let of = |domain: &Domain| domain::pids_of(layout, dc, domain.name.as_str()).unwrap_or_default();
    let ours: Vec<u32> = topology.domains.iter().flat_map(of).collect();
    topology.domains.iter().try_for_each(|domain| published(domain, &ours))
}
