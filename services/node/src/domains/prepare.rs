//! Prerequisites of a change, made or looked at before it stops anything: machines' kernels and
//! images, ports.

use super::listener::{Holder, holder, in_the_way};
use super::{Domains, machines, spec};
use crate::base::{UNPACKING, blocking, lacks};
use admin::{Code, Problem};
use domain::Unpack;
use std::collections::BTreeSet;
use std::os::unix::fs::FileTypeExt;
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

/// Refuses ports of the node's network that the file names and somebody holds who does not end with
/// this change.
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

/// Returns the obstacles on this node to a domain that is to come from another one, reason by
/// reason; with `unpack`, its image is ready afterwards.
pub(crate) async fn obstacles(node: &Arc<Domains>, dc: &str, name: &str, unpack: bool) -> Vec<String> {
    let topology = node.topology(dc);
    let Some(domain) = topology.as_ref().and_then(|topology| topology.domain(name)).cloned() else {
        return vec![format!("its daemon knows of no {dc}/{name} yet")];
    };
    let (node, dc) = (Arc::clone(node), dc.to_owned());
    let looked = move || {
        let mut found: Vec<String> = domain.mounts.iter().filter_map(unfit).collect();
        let unpack = if unpack { Unpack::Yes } else { Unpack::No };
        found.extend(lacks(&node.layout, &domain, unpack).into_iter().map(|lack| lack.message));
        // What is in the way is never the domain's own: it runs elsewhere.
        found.extend(in_the_way_of(&node, &dc, &domain).err().map(|problem| problem.message));
        found
    };
    UNPACKING.run(looked).await.unwrap_or_else(|why| vec![why])
}

/// Why a mount can't be made here.
fn unfit(mount: &topology::Mount) -> Option<String> {
    let (source, target) = (mount.source.display(), mount.target.display());
    match std::fs::metadata(&mount.source) {
        Ok(found) if found.file_type().is_block_device() || found.file_type().is_char_device() => {
            Some(format!("{source}, which it has at {target}, is a device: devices do not move"))
        }
        Ok(_) => None,
        Err(error) => Some(format!("there is no {source}, which it has at {target} ({error})")),
    }
}

/// Refuses a domain whose ports somebody of this node has.
fn in_the_way_of(node: &Domains, dc: &str, domain: &Domain) -> Result<(), Problem> {
    let plan = Plan { steps: vec![Step::Start { domain: Box::new(domain.clone()) }] };
    ports(node, dc, &plan)
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

/// Refuses a file that publishes at an address of this node that somebody has who is not of its
/// distributed container. For `check`, which needs no daemon.
///
/// # Errors
/// The address that is taken, and its holder.
pub fn free_to_publish(topology: &topology::Topology, layout: &domain::Layout) -> Result<(), Problem> {
    let dc = topology.name.as_str();
    let of = |domain: &Domain| domain::pids_of(layout, dc, domain.name.as_str()).unwrap_or_default();
    let ours: Vec<u32> = topology.domains.iter().flat_map(of).collect();
    topology.domains.iter().try_for_each(|domain| published(domain, &ours))
}
