//! Where the state of services of kind `coordination` is kept: in the registry, below
//! `coordination/DC/SERVICE/`.
//!
//! A server has no access to the registry. It has a state connection (`docs/spec/coordination.md`),
//! made for one service of one distributed container, over which it reads its records and commits
//! changes of them; the prefix is put before each key here. A commit names the revision of the head
//! that its server knows, so that of two servers one is superseded, whatever the network does. Each
//! service has one commit under way at a time, so many bytes, and so many bytes in a second; no
//! more than [`CALLS_AT_ONCE`] calls of all services occupy the threads that block.

mod budget;
mod quota;

use crate::base::{Guarded, RegistryDebug, TENANTS};
use budget::Budget;
use quota::Quota;
use registry::{Expected, RegistryError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use wire::coordination::{Ask, MAX_STATE_PACKET_BYTES, Tell};

/// Calls of the registry for all services that may be under way at a time: a quarter of the threads
/// that block, so that domains are started meanwhile.
const CALLS_AT_ONCE: usize = 4;
/// Most services whose state is kept at a time: what they may hold together is a quarter of etcd's
/// usual 2 GiB.
const MAX_SERVICES: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct StateKeeper {
    registry: Arc<dyn RegistryDebug>,
    calls: Semaphore,
    /// The connection of each service: a new one ends the one before.
    open: Mutex<HashMap<(String, String), AbortHandle>>,
}

/// The key of the head, and what stands before the keys of records.
fn prefix(dc: &str, service: &str) -> String {
    format!("coordination/{dc}/{service}/")
}

/// Name of the head below the prefix: no record is called so, because a record's key begins with a
/// word and a slash.
const HEAD: &str = "head";

impl StateKeeper {
    pub(crate) fn new(registry: Arc<dyn RegistryDebug>) -> Arc<Self> {
        Arc::new(Self { registry, calls: Semaphore::new(CALLS_AT_ONCE), open: Mutex::default() })
    }

    /// Makes the state connection of a service, and ends the one that there was; the server's end.
    ///
    /// # Errors
    /// `EUSERS`: there are [`MAX_SERVICES`]; what the kernel says.
    pub(crate) fn connect(self: &Arc<Self>, dc: &str, service: &str) -> io::Result<OwnedFd> {
        let key = (dc.to_owned(), service.to_owned());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, task| !task.is_finished());
        if let Some(before) = open.remove(&key) {
            before.abort();
        }
        if open.len() >= MAX_SERVICES {
            return Err(Errno::USERS.into());
        }
        let (theirs, ours) = sys::descriptors::socket_pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        sys::descriptors::refuse_descriptors(&ours)?;
        let socket = Guarded::new(ours, Interest::READABLE | Interest::WRITABLE, None)?;
        let kept = Kept {
            keeper: Arc::clone(self),
            prefix: prefix(dc, service),
            quota: None,
            budget: Budget::new(Instant::now()),
        };
        open.insert(key, tokio::spawn(kept.serve(socket)).abort_handle());
        Ok(theirs)
    }
}

/// The state of one service, for one connection of its server.
struct Kept {
    keeper: Arc<StateKeeper>,
    prefix: String,
    /// The bytes of its records in the registry; `None`: it has to be asked.
    quota: Option<Quota>,
    budget: Budget,
}

impl Kept {
    async fn serve(mut self, socket: Guarded) {
        if let Err(error) = self.converse(&socket).await {
            tracing::debug!(prefix = self.prefix, %error, "a state connection ended");
        }
    }

    /// Answers one request after the other, until the server hangs up or says what no server says.
    async fn converse(&mut self, socket: &Guarded) -> io::Result<()> {
        loop {
            let Some(packet) = receive(socket).await? else { return Ok(()) };
            let ask = Ask::decode(&packet).map_err(io::Error::other)?;
            match ask {
                Ask::Load => self.load(socket).await?,
                Ask::Commit { expected, head, changes } => {
                    let told = self.commit(expected, head, changes).await;
                    send(socket, &told.encode()).await?;
                }
            }
        }
    }

    /// Calls the registry when it is this service's turn.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn RegistryDebug) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, Tell> {
        let failed = |message: String| Tell::Failed { again: true, message };
        let _turn = self.keeper.calls.acquire().await.map_err(|error| failed(error.to_string()))?;
        let registry = Arc::clone(&self.keeper.registry);
        match TENANTS.run(move || call(&*registry)).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(told(&error)),
            Err(error) => Err(failed(error)),
        }
    }

    async fn list(&self) -> Result<Vec<(String, registry::Entry)>, Tell> {
        let prefix = self.prefix.clone();
        self.call(move |registry| registry.list(&prefix)).await
    }

    async fn load(&mut self, socket: &Guarded) -> io::Result<()> {
        let records = match self.list().await {
            Ok(records) => records,
            Err(failed) => return send(socket, &failed.encode()).await,
        };
        self.quota = Some(Quota::of(&self.prefix, &records));
        for (key, entry) in records {
            let key = key.strip_prefix(&self.prefix).unwrap_or_default();
            let key = if key == HEAD { String::new() } else { key.to_owned() };
            let record = Tell::Record { key, revision: entry.revision, value: entry.value };
            send(socket, &record.encode()).await?;
        }
        send(socket, &Tell::Loaded.encode()).await
    }

    async fn commit(
        &mut self,
        expected: u64,
        head: Vec<u8>,
        changes: Vec<(String, Option<Vec<u8>>)>,
    ) -> Tell {
        let key = format!("{}{HEAD}", self.prefix);
        if head.is_empty() {
            return match self.call(move |registry| registry.get(&key)).await {
                Ok(found) if found.as_ref().map_or(0, |entry| entry.revision) == expected => {
                    Tell::Committed(expected)
                }
                Ok(_) => Tell::Superseded,
                Err(failed) => failed,
            };
        }
        if self.quota.is_none() {
            match self.list().await {
                Ok(records) => self.quota = Some(Quota::of(&self.prefix, &records)),
                Err(failed) => return failed,
            }
        }
        let Some(quota) = &mut self.quota else { return Tell::Superseded };
        if let Err(message) = quota.check(&changes) {
            return Tell::Failed { again: false, message };
        }
        let bytes: usize =
            changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len)).sum();
        let pause = self.budget.pause(bytes + head.len(), Instant::now());
        if pause > Duration::ZERO {
            // tidy(sleep): time itself is what is waited for, and no other service waits with this
            // one.
            tokio::time::sleep(pause).await;
        }
        let mut all = vec![(key.clone(), Some(head.clone()))];
        all.extend(changes.iter().map(|(name, value)| (format!("{}{name}", self.prefix), value.clone())));
        let belief = if expected == 0 { Expected::Absent } else { Expected::Revision(expected) };
        let done = self.call(move |registry| match registry.write_if(&[(&key, belief)], &all) {
            // It may be that this commit was made already, and only its answer was lost: the head
            // names its writer.
            Err(RegistryError::Conflict { .. }) => {
                let found = registry.get(&key)?;
                Ok(found.filter(|entry| entry.value == head).map(|entry| entry.revision))
            }
            other => other.map(Some),
        });
        match done.await {
            Ok(Some(revision)) => {
                if let Some(quota) = &mut self.quota {
                    quota.take(changes);
                }
                Tell::Committed(revision)
            }
            Ok(None) => Tell::Superseded,
            Err(failed) => {
                // Whether it was done is not known.
                self.quota = None;
                failed
            }
        }
    }
}

/// Returns the message to a server about a registry that did not do it.
fn told(error: &RegistryError) -> Tell {
    let again = match error {
        RegistryError::Etcd(_) | RegistryError::Fenced | RegistryError::Storage(_) => true,
        RegistryError::Open { .. }
        | RegistryError::Damaged { .. }
        | RegistryError::Format { .. }
        | RegistryError::Conflict { .. }
        | RegistryError::Key(_)
        | RegistryError::TooMany(_)
        | RegistryError::Unguarded(_)
        | RegistryError::TooLarge { .. } => false,
    };
    Tell::Failed { again, message: error.to_string() }
}

async fn receive(socket: &Guarded) -> io::Result<Option<Vec<u8>>> {
    // One byte more than the longest: what is longer is seen to be.
    let mut packet = vec![0; MAX_STATE_PACKET_BYTES + 1];
    loop {
        let mut ready = socket.readable().await?;
        if socket.brings_descriptors().unwrap_or(false) {
            return Err(io::Error::other("it sent descriptors, which no request has"));
        }
        let received = ready
            .try_io(|socket| Ok(rustix::net::recv(socket.get_ref(), &mut packet[..], RecvFlags::empty())?.1));
        match received {
            Err(_would_block) => {}
            Ok(Ok(0)) => return Ok(None),
            Ok(Ok(length)) => {
                packet.truncate(length.min(MAX_STATE_PACKET_BYTES + 1));
                return Ok(Some(packet));
            }
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::CONNRESET.raw_os_error()) => {
                return Ok(None);
            }
            Ok(Err(error)) => return Err(error),
        }
    }
}

async fn send(socket: &Guarded, packet: &[u8]) -> io::Result<()> {
    loop {
        let mut ready = socket.writable().await?;
        let sent =
            ready.try_io(|socket| Ok(rustix::net::send(socket.get_ref(), packet, SendFlags::NOSIGNAL)?));
        if let Ok(sent) = sent {
            return sent.map(drop);
        }
    }
}

#[cfg(test)]
mod tests;
