//! State connections: who serves a service of kind `coordination` gets one, to where the state of
//! that service is kept.

use super::{Broker, Identity, Inner, Outgoing, Refusal, Role, refuse};
use crate::coordination::StateKeeper;
use rustix::io::Errno;
use std::sync::Arc;
use topology::ServiceKind;
use wire::control::Reply;

impl Broker {
    /// Has the state of services kept there. Until then no server gets a connection.
    pub(crate) fn keep_state(&self, keeper: Arc<StateKeeper>) {
        self.lock().states = Some(keeper);
    }
}

impl Inner {
    pub(super) fn state_connection(
        &self,
        who: &Identity,
        number: u64,
        service: &str,
    ) -> Result<Outgoing, Refusal> {
        let topology = self.topologies.get(&who.dc);
        let served = topology
            .and_then(|topology| topology.service(service))
            .filter(|found| found.kind() == ServiceKind::Coordination && found.domain.as_str() == who.domain);
        if served.is_none() {
            return refuse(
                Errno::NOENT,
                format!("domain {} serves no service {service:?} of kind coordination", who.domain),
            );
        }
        if who.role != Role::Program || !who.main {
            let message = format!(
                "only the first process of domain {}, or a child of it, has the state of {service}; pid {} is neither",
                who.domain, who.pid
            );
            return refuse(Errno::PERM, message);
        }
        let Some(keeper) = &self.states else {
            return refuse(Errno::AGAIN, "the daemon is not ready to keep state; ask again");
        };
        let socket = keeper.connect(&who.dc, service).map_err(|error| Refusal {
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
            message: format!("no connection to the state of {service}: {error}"),
        })?;
        Ok(Outgoing { reply: Reply::State { id: number }, descriptors: vec![socket], _room: None })
    }
}
