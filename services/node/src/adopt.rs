//! After a daemon's start: take over what runs, clear away what nobody wants.

use crate::incarnation::{self, blocking, said};
use crate::node::Node;
use crate::supervisor::{First, supervise};
use domain::{Adopted, DomainId};
use std::sync::Arc;
use topology::Domain;

/// Takes over every desired domain that runs, and sweeps whatever else is there.
pub(crate) async fn adopt(node: &Arc<Node>) {
    let mut keep = Vec::new();
    for dc in node.dcs() {
        let Some(topology) = node.topology(&dc) else { continue };
        for domain in &topology.domains {
            if let Some(id) = adopt_domain(node, &dc, domain).await {
                keep.push(id);
            }
        }
    }
    let swept = {
        let node = Arc::clone(node);
        blocking(move || domain::sweep(&node.layout, &keep)).await
    };
    match swept.and_then(|report| report.map_err(said)) {
        Ok(report) if report.is_empty() => {}
        Ok(report) => tracing::info!(?report, "cleared away what an earlier daemon left"),
        Err(error) => tracing::error!(error, "what an earlier daemon left can't be cleared away"),
    }
}

async fn adopt_domain(node: &Arc<Node>, dc: &str, domain: &Domain) -> Option<DomainId> {
    let name = domain.name.as_str();
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
