//! After a daemon's start: take over what runs, clear away what nobody wants.

use super::Domains;
use super::incarnation;
use super::supervisor::{First, supervise};
use crate::base::{REMOVALS, blocking, said};
use domain::{Adopted, DomainId};
use std::sync::Arc;
use topology::Domain;

/// Enters what was promised before this daemon came to the domains of all files, of what is `ours`
/// to go on with.
pub(crate) async fn promises(node: &Arc<Domains>, ours: impl Fn(&str, &Domain) -> bool) {
    for dc in node.dcs() {
        let Some(topology) = node.topology(&dc) else { continue };
        let mut topology = topology.as_ref().clone();
        // What another node has, that one has promised.
        topology.domains.retain(|domain| ours(&dc, domain));
        if let Err(problem) = node.book.enter(&dc, Some(&topology), &node.layout.cgroup_name) {
            // Such as on a node that has lost a processor: as many as it can keep; of the others
            // the strict ones end.
            tracing::error!(dc, %problem, "what its file says can no longer be promised as a whole");
            for domain in topology.start_order() {
                if let Err(why) = node.book.enter_one(&dc, domain, &node.layout.cgroup_name) {
                    tracing::error!(dc, domain = domain.name.as_str(), why, "it is strict, and ends");
                }
            }
        }
    }
}

/// Takes over every desired domain that runs and is `ours` to go on with, and sweeps whatever else
/// is there.
pub(crate) async fn adopt(node: &Arc<Domains>, ours: impl Fn(&str, &Domain) -> bool) {
    let mut keep = Vec::new();
    for dc in node.dcs() {
        let Some(topology) = node.topology(&dc) else { continue };
        // What another node has, or may have by now, is not taken over here: it is swept with the
        // rest.
        for domain in topology.domains.iter().filter(|domain| ours(&dc, domain)) {
            if let Some(id) = adopt_domain(node, &dc, domain).await {
                keep.push(id);
            }
        }
    }
    let swept = {
        let node = Arc::clone(node);
        let sweep = move || {
            // Before they are killed: who is frozen does not die.
            node.book.settle_dispatchers();
            domain::sweep(&node.layout, &keep)
        };
        REMOVALS.run(sweep).await
    };
    match swept.and_then(|report| report.map_err(said)) {
        Ok(report) if report.is_empty() => {}
        Ok(report) => tracing::info!(?report, "cleared away what an earlier daemon left"),
        Err(error) => tracing::error!(error, "what an earlier daemon left can't be cleared away"),
    }
}

async fn adopt_domain(node: &Arc<Domains>, dc: &str, domain: &Domain) -> Option<DomainId> {
    let name = domain.name.as_str();
    // The earlier daemon died before it had ended what somebody stopped.
    if node.actual(dc, name).is_some_and(|actual| actual.stopped) {
        return None;
    }
    let found = {
        let (node, dc, name) = (Arc::clone(node), dc.to_owned(), name.to_owned());
        blocking(move || domain::adopt(&node.layout, &dc, &name)).await
    };
    let first = match found.and_then(|found| found.map_err(said)) {
        Ok(Adopted::Nothing) => return None,
        Ok(Adopted::Ended(exit)) => First::Ended(exit),
        Ok(Adopted::Running(running)) => match incarnation::adopt(node, dc, domain, *running).await {
            Ok(incarnation) => {
                tracing::info!(dc, domain = name, "taken over from an earlier daemon");
                First::Adopt(Box::new(incarnation))
            }
            Err(error) => {
                tracing::error!(dc, domain = name, error, "it runs but can't be taken over: started anew");
                return None;
            }
        },
        Err(error) => {
            tracing::error!(dc, domain = name, error, "it can't be looked at: started anew");
            return None;
        }
    };
    supervise(node, dc, domain, first);
    DomainId::new(dc, name).ok()
}
