//! A lease: what is bound to it goes when its holder no longer says that it lives.

use super::calls::{Answered, Patience};
use super::{Etcd, EtcdError, Trouble};
use crate::RegistryError;
use std::time::Duration;

/// A lease that etcd granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    id: i64,
    ttl: Duration,
}

impl Lease {
    /// One that somebody else was granted, to be ended.
    pub(crate) fn known(id: i64) -> Self {
        Self { id, ttl: Duration::ZERO }
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// How long it lasts after each renewal: etcd may have made it longer than was asked.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// It lasts so long again, from when it was asked.
    Lasts(Duration),
    /// It is gone, with everything that was bound to it.
    Gone,
}

impl Etcd {
    /// A new lease. Etcd counts in seconds.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`].
    pub fn grant(&self, ttl: Duration) -> Result<Lease, RegistryError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let (id, ttl) = self.call(true, |mut client| async move {
            let granted = client.lease_grant(seconds, None).await?;
            Ok(Answered { header: None, value: (granted.id(), granted.ttl()) })
        })?;
        Ok(Lease { id, ttl: Duration::from_secs(super::positive(ttl)) })
    }

    /// Keeps a lease alive, within so long: each endpoint has a third of it.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: whether it was kept alive is not known.
    pub fn renew(&self, lease: &Lease, within: Duration) -> Result<Renewal, RegistryError> {
        let id = lease.id;
        let patience = Patience { all: within, one: within / 3 };
        let alive = self.call_within(patience, |mut client| async move {
            // The client takes the stream's first answer itself, and reports a lease that is gone
            // as an error.
            match client.lease_keep_alive(id).await {
                Ok((_keeper, _stream)) => Ok(Answered { header: None, value: true }),
                Err(etcd_client::Error::LeaseKeepAliveError(_)) => {
                    Ok(Answered { header: None, value: false })
                }
                Err(error) => Err(error),
            }
        })?;
        Ok(if alive { Renewal::Lasts(lease.ttl) } else { Renewal::Gone })
    }

    /// Ends a lease: everything bound to it is gone at once. One that is gone already is as good.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`].
    pub fn revoke(&self, lease: &Lease) -> Result<(), RegistryError> {
        let id = lease.id;
        let done = self.call(true, |mut client| async move {
            client.lease_revoke(id).await?;
            Ok(Answered { header: None, value: () })
        });
        match done {
            Err(RegistryError::Etcd(EtcdError { trouble: Trouble::Lease, .. })) => Ok(()),
            other => other,
        }
    }
}
