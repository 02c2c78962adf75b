//! The `about` of a domain.

use super::Domains;
use serde_json::{Map, Value, json};
use topology::{ServiceKind, Topology};

/// The domain's description for the domain itself: no path of the node, no process number, no other
/// domain.
pub(crate) fn about(node: &Domains, dc: &str, domain: &str) -> Value {
    let topology = node.topology(dc);
    let found = topology.as_ref().and_then(|topology| topology.domain(domain));
    let view = node.supervised(dc, domain).map(|supervised| supervised.view());
    json!({
        "dc": dc,
        "domain": domain,
        "kind": found.map(|domain| domain.kind.as_str()),
        "network": found.map(|domain| domain.network.as_str()),
        "limits": found.map(|domain| domain.limits),
        "restarts": view.map_or(0, |view| view.restarts),
        "services": found.map(|domain| &domain.services),
        "sockets": found.map(|domain| &domain.sockets),
        "channels": topology.as_ref().map(|topology| channels_about(node, dc, domain, topology)),
        "endpoints": topology.as_ref().map(|topology| endpoints_about(domain, topology)),
        "adaptation": { "level": node.levels.of(dc, domain) },
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// The channels that a domain may open, and the channels and services that its programs may offer,
/// by name: nothing of who else may.
fn channels_about(node: &Domains, dc: &str, domain: &str, topology: &Topology) -> Map<String, Value> {
    let channels = topology.services.iter().filter(|service| service.kind() != ServiceKind::Socket);
    channels
        .filter_map(|service| {
            let (opens, offers) = (service.opens(domain), service.is_offered_in(domain));
            let name = service.name.as_str();
            let up = || node.broker.service(dc, name).up;
            (opens || offers)
                .then(|| (name.to_owned(), json!({ "open": opens, "offer": offers, "up": up() })))
        })
        .collect()
}

/// The endpoints that a domain's programs may bind, by name.
fn endpoints_about(domain: &str, topology: &Topology) -> Vec<String> {
    let own = topology.endpoints.iter().filter(|endpoint| endpoint.domain == *domain);
    own.map(|endpoint| endpoint.name.as_str().to_owned()).collect()
}
