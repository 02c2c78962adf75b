//! Leaving a service to another program: what has been taken is answered, and each consumer is told
//! that nothing else has been.

use super::core::describe;
use super::run::{Role, ServeError, Server};
use super::service::LinkId;
use std::time::Duration;

/// For so long a server that leaves waits for its own answers. What takes longer ends as with its
/// death: it is asked of the next server where it may be done twice.
const ANSWERS_TIMEOUT: Duration = Duration::from_millis(500);

impl Server<'_> {
    /// Whether this has its service, and perhaps consumers.
    pub(super) fn serves(&self) -> bool {
        !self.services.is_empty() && !self.stands_by
    }

    /// The daemon wants another program to have the service.
    pub(super) fn leave(&mut self, service: &str) {
        if self.role == Role::Program(service.to_owned()) && self.core.leaving.is_none() {
            tracing::info!(service, consumers = self.core.links.len(), "leaving");
            self.core.leaving = Some(self.core.now + ANSWERS_TIMEOUT);
        }
    }

    /// While it leaves: says the last word to each consumer that has its answers, and steps back
    /// when all have been told.
    pub(super) fn part(&mut self) -> Result<(), ServeError> {
        let Some(deadline) = self.core.leaving else { return Ok(()) };
        let now = self.core.now;
        let is_late = deadline <= now;
        let mut told: Vec<LinkId> = Vec::new();
        for (id, link) in &mut self.core.links {
            if !link.left && (is_late || link.book.outstanding() == 0) {
                let taken: Vec<u64> = link.book.outstanding_tags().collect();
                if let Err(error) = link.leave(taken.into_iter(), now) {
                    tracing::debug!(
                        channel = link.channel,
                        error = describe(&error),
                        "a consumer is not told of the move"
                    );
                }
            }
            // Who does not read at all finds that the channel has ended.
            if link.left && (is_late || !link.is_stalled()) {
                told.push(*id);
            }
        }
        self.core.doomed.extend(told.into_iter().map(|id| (id, "its service is left".to_owned())));
        self.throw_out();
        if self.core.links.is_empty() && !self.stands_by {
            self.stands_by = true;
            if let Role::Program(name) = &self.role {
                // Without a daemon the offer is made anew to the next one, as one that stands by.
                if let Err(error) = self.control.step_back(name) {
                    tracing::debug!(error = describe(&error), "the daemon is not told");
                }
            }
        }
        Ok(())
    }
}
