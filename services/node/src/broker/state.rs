//! The broker's rows in the state tree.

use super::{Broker, MemberId, Role};
use serde::Serialize;
use std::time::SystemTime;

/// One channel between a domain and a service.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ChannelRow {
    pub(crate) channel: u64,
    pub(crate) dc: String,
    pub(crate) service: String,
    pub(crate) domain: String,
    pub(crate) entrance: String,
    pub(crate) since_unix_s: u64,
}

/// A service and its server.
#[derive(Debug, Clone)]
pub(crate) struct ServiceRow {
    pub(crate) up: bool,
    pub(crate) generation: u64,
    pub(crate) since_unix_s: Option<u64>,
    pub(crate) server_pid: Option<u32>,
    /// The domain of the server, if it is on this node.
    pub(crate) server_domain: Option<String>,
    /// The domains of the programs that stand by, in their order.
    pub(crate) standing_by: Vec<String>,
    /// Channels that were ever made to it.
    pub(crate) opened: u64,
}

/// A connection to a control socket.
#[derive(Debug, Clone)]
pub(crate) struct MemberRow {
    pub(crate) dc: String,
    pub(crate) domain: String,
    pub(crate) role: Role,
}

impl Broker {
    pub(crate) fn channels(&self) -> Vec<ChannelRow> {
        let inner = self.lock();
        let channels = inner.channels.iter();
        channels
            .map(|(number, channel)| ChannelRow {
                channel: *number,
                dc: channel.dc.clone(),
                service: channel.service.clone(),
                domain: channel.domain.clone(),
                entrance: channel.entrance.clone(),
                since_unix_s: unix_seconds(channel.since),
            })
            .collect()
    }

    pub(crate) fn service(&self, dc: &str, service: &str) -> ServiceRow {
        let inner = self.lock();
        let state = inner.services.get(&(dc.to_owned(), service.to_owned()));
        let server = state.and_then(|state| state.server);
        let near = server.filter(|server| inner.node_of(*server).is_none());
        let near = near.and_then(|server| inner.members.get(&server));
        ServiceRow {
            up: server.is_some(),
            generation: state.map_or(0, |state| state.generation),
            since_unix_s: state.and_then(|state| state.since).map(unix_seconds),
            server_pid: server.and_then(|id| inner.members.get(&id)).map(|member| member.identity.pid),
            server_domain: near.map(|member| member.identity.domain.clone()),
            standing_by: state.map_or_else(Vec::new, |state| state.standing_by()),
            opened: state.map_or(0, |state| state.opened),
        }
    }

    /// Programs of a domain that are connected.
    #[cfg(test)]
    pub(crate) fn member_count(&self, dc: &str, domain: &str) -> usize {
        self.lock().programs.get(&(dc.to_owned(), domain.to_owned())).copied().unwrap_or(0)
    }

    pub(crate) fn member(&self, id: MemberId) -> Option<MemberRow> {
        let inner = self.lock();
        let member = inner.members.get(&id)?;
        let identity = &member.identity;
        Some(MemberRow { dc: identity.dc.clone(), domain: identity.domain.clone(), role: identity.role })
    }
}

pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
