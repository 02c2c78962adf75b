//! The domain's defaults at each service, the state of session 0: kept for the next backend as a
//! session's capsule is.

use rustix::io::Errno;
use wire::service::{OpenInfo, SESSION_NONE};

use super::{Core, DEFAULTS_FIRST, ENTRANCE, Pending, Purpose};
use crate::host::{Host, Outgoing};

impl<H: Host> Core<H> {
    /// The backend says what the defaults are now; nothing: forget them. They count at once: a line
    /// that set them and has to be repeated sets them to the same.
    pub(super) fn keep_defaults(&mut self, service: usize, capsule: &[u8]) {
        if service >= self.tree.services.len() {
            return;
        }
        if self.defaults.len() <= service {
            self.defaults.resize(service + 1, Vec::new());
        }
        let Some(kept) = self.defaults.get_mut(service).filter(|kept| kept.as_slice() != capsule) else {
            return;
        };
        *kept = capsule.to_vec();
        if capsule.is_empty() {
            self.host.clear(DEFAULTS_FIRST + service);
        } else {
            self.host.save(DEFAULTS_FIRST + service, capsule);
        }
    }

    /// Takes a record that the predecessor has left.
    pub(super) fn take_defaults(&mut self, service: usize, record: Vec<u8>) {
        if self.defaults.len() <= service {
            self.defaults.resize(service + 1, Vec::new());
        }
        if let Some(kept) = self.defaults.get_mut(service) {
            *kept = record;
        }
    }

    /// Hands the defaults to a backend that has just greeted: the first that it hears, so that each
    /// session that is opened after has them.
    pub(super) fn hand_over_defaults(&mut self, service: usize) {
        let Some(capsule) = self.defaults.get(service).filter(|kept| !kept.is_empty()).cloned() else {
            return;
        };
        self.last_tag += 1;
        let (session, tag) = (SESSION_NONE, self.last_tag);
        let asked = self.host.now();
        self.pending.insert(tag, Pending { service, fh: session, purpose: Purpose::Defaults, asked });
        let info = OpenInfo { entrance: ENTRANCE.into(), capsule, ..OpenInfo::default() };
        self.host.send(service, Outgoing::Open { session, tag, file: 0, info });
    }

    /// Handles the backend's answer to the defaults. What it refuses (another version's, or the
    /// domain may not set any more what is in it) would be refused again.
    pub(super) fn defaults_taken(&mut self, service: usize, result: Result<(), Errno>) {
        if let Err(errno) = result {
            let name = self.tree.services.get(service).map(|s| s.mounted.name.as_str()).unwrap_or_default();
            tracing::warn!(service = name, %errno, "the domain's defaults are refused by the next server, and lost");
            self.keep_defaults(service, &[]);
        }
    }
}
