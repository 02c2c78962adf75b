//! Endpoints: who may bind them, who may call them, and how much a distributed container may have
//! of what they need.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::bounds::*;
use crate::model::Topology;
use crate::name::Name;

/// One endpoint with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Unique in its distributed container.
    pub name: Name,
    /// The domain whose programs may bind it.
    pub domain: Name,
    /// The verbs that endpoints may use on it. Every set has at least one verb.
    pub allow_endpoints: BTreeMap<Name, BTreeSet<EndpointVerb>>,
    /// The verbs that every endpoint of these domains may use on it, with or without a name. Every
    /// set has at least one verb.
    pub allow_domains: BTreeMap<Name, BTreeSet<EndpointVerb>>,
    /// The endpoints that it may call at the most; `None`: all that allow it.
    pub calls: Option<BTreeSet<Name>>,
    /// Whether it may copy between buffers that were granted to others.
    pub copies: bool,
    /// The domains whose programs may be its backups, and take over from the one that has bound it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub backups: BTreeSet<Name>,
}

impl Endpoint {
    /// Whether it may be in this domain: its own, or one of its backups.
    #[must_use]
    pub fn may_be_in(&self, domain: &str) -> bool {
        self.domain == *domain || self.may_be_backed_by(domain)
    }

    /// Whether programs of this domain may be its backups.
    #[must_use]
    pub fn may_be_backed_by(&self, domain: &str) -> bool {
        self.backups.contains(domain)
    }
}

/// Something that one endpoint can be allowed to do with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EndpointVerb {
    /// Send messages to it.
    Send,
    /// Send requests to it, which it answers.
    Request,
    /// Notify it.
    Notify,
    /// Pass requests of others on to it.
    Relay,
}

impl EndpointVerb {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Send, Self::Request, Self::Notify, Self::Relay];
    /// The verbs on an endpoint without a name, for those that it may call.
    const BACK: [Self; 3] = [Self::Send, Self::Request, Self::Notify];

    /// The word in the file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Request => "request",
            Self::Notify => "notify",
            Self::Relay => "relay",
        }
    }
}

/// How much a distributed container may have of what endpoints need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IpcLimits {
    /// Endpoints that are bound at a time.
    pub endpoints: u32,
    /// Those of them without a name, of one domain.
    pub anonymous_per_domain: u32,
    /// Pairs of endpoints that were introduced to each other.
    pub pairs: u32,
    /// Bytes of each of the two rings of a pair: a power of two.
    pub ring_bytes: u32,
    /// Bytes of shared memory: regions of pairs, and buffers.
    pub bytes: u64,
    /// Buffers that can be granted.
    pub buffers: u32,
    /// Grants.
    pub grants: u32,
}

impl Default for IpcLimits {
    fn default() -> Self {
        Self {
            endpoints: ENDPOINTS_DEFAULT,
            anonymous_per_domain: ANONYMOUS_PER_DOMAIN_DEFAULT,
            pairs: PAIRS_DEFAULT,
            ring_bytes: RING_BYTES_DEFAULT,
            bytes: IPC_BYTES_DEFAULT,
            buffers: BUFFERS_DEFAULT,
            grants: GRANTS_DEFAULT,
        }
    }
}

impl IpcLimits {
    /// Whether these are what holds where the file says nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// An endpoint's identity, as far as permissions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller<'a> {
    /// Its name; `None` where it has none.
    pub name: Option<&'a str>,
    /// The domain of its program.
    pub domain: &'a str,
}

impl Topology {
    /// The endpoint with this name.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Option<&Endpoint> {
        let at = self.endpoints.binary_search_by(|endpoint| endpoint.name.as_str().cmp(name)).ok()?;
        self.endpoints.get(at)
    }

    /// The verbs that `from` may use on `to`. An endpoint without a name is called only by those
    /// whom it may call itself, and nothing is passed on to it.
    #[must_use]
    pub fn may_call(&self, from: Caller<'_>, to: Caller<'_>) -> BTreeSet<EndpointVerb> {
        match (from.name, to.name) {
            (_, Some(name)) => self.may_call_named(from, name),
            (Some(name), None) if !self.may_call_named(to, name).is_empty() => EndpointVerb::BACK.into(),
            _ => BTreeSet::new(),
        }
    }

    fn may_call_named(&self, from: Caller<'_>, to: &str) -> BTreeSet<EndpointVerb> {
        let Some(endpoint) = self.endpoint(to) else { return BTreeSet::new() };
        // A name that the file does not have (any more) has no rights as a name, and none as one of
        // its domain.
        let caller = match from.name.map(|name| self.endpoint(name)) {
            Some(None) => return BTreeSet::new(),
            Some(Some(caller)) => Some(caller),
            None => None,
        };
        let calls = caller.and_then(|caller| caller.calls.as_ref());
        if calls.is_some_and(|calls| !calls.contains(to)) || caller.is_some_and(|caller| caller.name == *to) {
            return BTreeSet::new();
        }
        let by_name = caller.and_then(|caller| endpoint.allow_endpoints.get(&caller.name));
        let by_domain = endpoint.allow_domains.get(from.domain);
        by_name.into_iter().chain(by_domain).flatten().copied().collect()
    }
}
