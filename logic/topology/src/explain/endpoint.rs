//! The permissions of calls between endpoints, in words.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{Endpoint, EndpointVerb, IpcLimits, Topology};
use crate::name::Name;
use crate::scalar::size_text;

/// One endpoint and who may call it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointAccess {
    /// The endpoint.
    pub endpoint: Name,
    /// The domain whose programs may bind it.
    pub domain: Name,
    /// Whether it may copy between buffers that were granted to others.
    pub copies: bool,
    /// Domains whose programs may be its backups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backups: Vec<Name>,
    /// The endpoints that may use it, and their verbs: those alone whose own `calls` has it, where
    /// they have one.
    pub called_by: Vec<Called>,
}

/// The permissions of one endpoint, or of every one of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Called {
    /// An endpoint; `None`: all endpoints of `domain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Name>,
    /// A domain, where no endpoint is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<Name>,
    /// The verbs.
    pub verbs: Vec<String>,
}

/// Says who may call an endpoint.
pub(super) fn access(topology: &Topology, endpoint: &Endpoint) -> EndpointAccess {
    let calls = |name: &Name| {
        let calls = topology.endpoint(name).and_then(|caller| caller.calls.as_ref());
        calls.is_none_or(|calls| calls.contains(&endpoint.name))
    };
    let by_name = endpoint.allow_endpoints.iter().filter(|(name, _)| calls(name));
    let by_name = by_name.map(|(name, verbs)| Called {
        endpoint: Some(name.clone()),
        domain: None,
        verbs: words(verbs),
    });
    let by_domain = endpoint.allow_domains.iter();
    let by_domain = by_domain.map(|(name, verbs)| Called {
        endpoint: None,
        domain: Some(name.clone()),
        verbs: words(verbs),
    });
    EndpointAccess {
        endpoint: endpoint.name.clone(),
        domain: endpoint.domain.clone(),
        copies: endpoint.copies,
        backups: endpoint.backups.iter().cloned().collect(),
        called_by: by_name.chain(by_domain).collect(),
    }
}

fn words(verbs: &BTreeSet<EndpointVerb>) -> Vec<String> {
    verbs.iter().map(|verb| verb.as_str().to_owned()).collect()
}

/// Writes one endpoint and who may call it.
pub(super) fn write(access: &EndpointAccess, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let EndpointAccess { endpoint, domain, copies, backups, called_by } = access;
    let only = if called_by.is_empty() { ": it only calls" } else { "" };
    let copies = if *copies { "; it may copy between buffers of others" } else { "" };
    let backups: Vec<&str> = backups.iter().map(Name::as_str).collect();
    let backups = match backups.as_slice() {
        [] => String::new(),
        domains => format!("; programs of {} may be its backups", domains.join(", ")),
    };
    writeln!(f, "\nendpoint {endpoint} in {domain}{only}{copies}{backups}")?;
    for Called { endpoint, domain, verbs } in called_by {
        let who = match (endpoint, domain) {
            (Some(endpoint), _) => endpoint.to_string(),
            (None, Some(domain)) => format!("programs of {domain}"),
            (None, None) => "nobody".to_owned(),
        };
        writeln!(f, "     {who:16} may {}", verbs.join(", "))?;
    }
    Ok(())
}

/// Writes how much there may be.
pub(super) fn write_limits(limits: &IpcLimits, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "\nendpoints may be {} at a time ({} of a domain without a name), in {} pairs of {} each way, with {} of memory, {} buffers and \
         {} grants",
        limits.endpoints,
        limits.anonymous_per_domain,
        limits.pairs,
        size_text(u64::from(limits.ring_bytes)),
        size_text(limits.bytes),
        limits.buffers,
        limits.grants
    )
}
