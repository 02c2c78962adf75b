//! The debts to processes that the dispatcher may stop.

use super::Table;
use crate::enforcer::Enforcer;
use crate::error::Result;
use crate::ledger::{Debt, Ledger};
use crate::members::{self, Census};

/// Writes down that those who came may be stopped. Who has ended since is owed nothing, so who
/// starts processes without end makes no ledger without end.
pub(super) fn owe_stops(ledger: &mut Ledger, census: &Census) -> Result<()> {
    ledger
        .strike(|debt| matches!(debt, Debt::Process { pid, start, .. } if !members::is_it(*pid, *start)))?;
    ledger.owe(stopped(census))
}

/// The debts to processes that may be stopped.
pub(super) fn stopped(census: &Census) -> Vec<Debt> {
    let debt = |pid: u32| {
        let start = census.start(pid)?;
        let affinity = sys::schedule::affinity(pid).unwrap_or_default();
        Some(Debt::Process { pid, start, nice: 0, affinity, homes: Vec::new(), stopped: true })
    };
    census.jobs.keys().copied().filter_map(debt).collect()
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            tracing::warn!(%error, "not all could be given back");
        }
        if let Err(error) = self.ledger.pay() {
            tracing::warn!(%error, "not all could be given back");
        }
    }
}
