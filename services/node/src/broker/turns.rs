//! Turns to have channels on their way to servers: so that no domain fills a server's outbox, and
//! nobody waits for a program that does not read but those who want something of it.

use crate::broker::MAX_ATTACHES_PER_DOMAIN;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// The turns of one domain, or of one member at a private socket: some for all servers, which are
/// ours and read what they are told, and some for each service that a program offers, which may do
/// as it likes.
#[derive(Debug)]
pub(crate) struct Turns {
    servers: Arc<Semaphore>,
    /// Of services of programs where somebody has or awaits a turn.
    offered: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

impl Turns {
    pub(crate) fn new() -> Self {
        Self { servers: Arc::new(Semaphore::new(MAX_ATTACHES_PER_DOMAIN)), offered: Mutex::default() }
    }

    /// The turns at a service of a program that there is, or (`None`) at servers.
    pub(crate) fn at(&self, service: Option<&str>) -> Arc<Semaphore> {
        let Some(service) = service else { return Arc::clone(&self.servers) };
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        // A turn that is taken or awaited holds a reference of its own.
        offered.retain(|name, turns| name == service || Arc::strong_count(turns) > 1);
        let turns = offered.entry(service.to_owned());
        Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(MAX_ATTACHES_PER_DOMAIN))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_at_one_service_are_none_at_another_and_names_are_forgotten() {
        let turns = Turns::new();
        let all = u32::try_from(MAX_ATTACHES_PER_DOMAIN).unwrap();
        let taken = turns.at(Some("frames")).acquire_many_owned(all).await.unwrap();
        assert_eq!(turns.at(Some("frames")).available_permits(), 0);
        assert_eq!(turns.at(Some("sound")).available_permits(), MAX_ATTACHES_PER_DOMAIN);
        assert_eq!(turns.at(None).available_permits(), MAX_ATTACHES_PER_DOMAIN);
        assert_eq!(turns.offered.lock().unwrap().len(), 2);
        drop(taken);
        assert_eq!(turns.at(Some("light")).available_permits(), MAX_ATTACHES_PER_DOMAIN);
        assert_eq!(turns.offered.lock().unwrap().len(), 1);
    }
}
