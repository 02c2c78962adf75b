//! Memory that a domain has with services: made at the domain's start, sealed, passed to servers,
//! and registered with the kernel as what files of the domain's mount are mapped to. Its frontend
//! never has it, and neither has any program of the domain but by mapping.

use super::{Broker, Identity, Inner, MemberId, Refusal, Role, refuse};
use crate::broker::Outgoing;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use wire::control::Reply;

/// The memories that one incarnation of a domain has with services.
#[derive(Debug)]
pub(crate) struct Memories {
    /// The domain's FUSE session.
    fuse: OwnedFd,
    /// By the name of the service.
    of: BTreeMap<String, OwnedFd>,
    /// The kernel's numbers of those that were registered. The kernel keeps each registration as
    /// long as the mount lives, so a frontend that asks again is given the same number.
    pub(super) registered: BTreeMap<String, u32>,
}

impl Memories {
    /// The memories by the names of their services, and the domain's FUSE session.
    pub(crate) fn new(fuse: OwnedFd, of: BTreeMap<String, OwnedFd>) -> Self {
        Self { fuse, of, registered: BTreeMap::new() }
    }

    fn register(&mut self, service: &str) -> Option<io::Result<u32>> {
        let memory = self.of.get(service)?;
        if let Some(number) = self.registered.get(service) {
            return Some(Ok(*number));
        }
        let number = sys::fuse_backing::open(&self.fuse, memory);
        if let Ok(number) = number {
            self.registered.insert(service.to_owned(), number);
        }
        Some(number)
    }
}

impl Broker {
    /// A domain has started, or was adopted, with these memories.
    pub(crate) fn has_memories(&self, dc: &str, domain: &str, memories: Memories) {
        self.lock().memories.insert((dc.to_owned(), domain.to_owned()), memories);
    }

    /// A domain is over.
    pub(crate) fn forget_memories(&self, dc: &str, domain: &str) {
        self.lock().memories.remove(&(dc.to_owned(), domain.to_owned()));
    }
}

impl Inner {
    fn memory_of(&self, who: &Identity, service: &str) -> Option<&OwnedFd> {
        self.memories.get(&(who.dc.clone(), who.domain.clone()))?.of.get(service)
    }

    /// The memory that comes with a channel: with those of frontends, where both ends share this
    /// node's kernel.
    pub(super) fn memory_for(
        &self,
        who: &Identity,
        server: MemberId,
        service: &str,
    ) -> Result<Option<OwnedFd>, Refusal> {
        let apart = self.guests(who, server).contains(&true);
        let found = self.memory_of(who, service).filter(|_| who.role == Role::Frontend && !apart);
        let copy = found.map(OwnedFd::try_clone).transpose();
        copy.map_err(|e| Refusal {
            errno: Errno::MFILE,
            message: format!("no descriptor for the memory of service {service}: {e}"),
        })
    }

    /// A frontend wants the files of a service to have their memory behind them.
    pub(super) fn map_memory(
        &mut self,
        who: &Identity,
        number: u64,
        service: &str,
    ) -> Result<Outgoing, Refusal> {
        if who.role != Role::Frontend {
            return refuse(Errno::PERM, "only a frontend has files that memory could be behind");
        }
        let memories = self.memories.get_mut(&(who.dc.clone(), who.domain.clone()));
        let Some(registered) = memories.and_then(|memories| memories.register(service)) else {
            return refuse(
                Errno::NXIO,
                format!(
                    "domain {} has no memory with {service:?}; the topology file says which have",
                    who.domain
                ),
            );
        };
        match registered {
            Ok(backing) => Ok(Reply::Backed { id: number, backing }.into()),
            Err(error) => refuse(errno_of(&error), unbacked(who, service, &error)),
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn unbacked(who: &Identity, service: &str, error: &io::Error) -> String {
    let hint = if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) {
        "; it takes Linux 6.9, built with FUSE_PASSTHROUGH. Its files can be read meanwhile"
    } else {
        ""
    };
    format!("files of {service} can't be mapped in domain {}: {error}{hint}", who.domain)
}
