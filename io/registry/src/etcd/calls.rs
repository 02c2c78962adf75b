//! One call of etcd: a deadline, one endpoint after the other, and whether what answers is what
//! answered before.

use super::said::{EtcdError, Trouble};
use super::{DEADLINE, ENDPOINT_TIMEOUT, Etcd, Shared, probe};
use crate::RegistryError;
use etcd_client::{Client, ResponseHeader};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::Duration;
use tokio::time::Instant;

/// Pause before the endpoints are asked once more, if all failed at once.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// The same where one endpoint is asked again and again.
const HERE_PAUSE: Duration = Duration::from_millis(50);

/// How long a call may take, and how long one endpoint of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) all: Duration,
    pub(crate) one: Duration,
}

const USUAL: Patience = Patience { all: DEADLINE, one: ENDPOINT_TIMEOUT };

/// An answer, and what it says of the etcd that it is from.
pub(crate) struct Answered<T> {
    pub(crate) header: Option<Header>,
    pub(crate) value: T,
}

/// Of which etcd an answer is, and of which moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    cluster_id: u64,
    revision: i64,
}

impl From<&ResponseHeader> for Header {
    fn from(header: &ResponseHeader) -> Self {
        Self { cluster_id: header.cluster_id(), revision: header.revision() }
    }
}

impl Etcd {
    /// Calls something that may be called twice.
    pub(crate) fn call<T, F, W>(&self, write: bool, work: F) -> Result<T, RegistryError>
    where
        F: FnMut(Client) -> W,
        W: Future<Output = Result<Answered<T>, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        let mut lost = false;
        self.try_all(USUAL, write, &mut lost, work)
    }

    /// As [`Etcd::call`], with less time.
    pub(crate) fn call_within<T, F, W>(&self, patience: Patience, work: F) -> Result<T, RegistryError>
    where
        F: FnMut(Client) -> W,
        W: Future<Output = Result<Answered<T>, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        self.try_all(patience, true, &mut false, work)
    }

    /// Calls something that changes something; `lost` says afterwards whether an earlier attempt
    /// may have done it already.
    pub(crate) fn retry<T, F, W>(&self, lost: &mut bool, work: F) -> Result<T, RegistryError>
    where
        F: FnMut(Client) -> W,
        W: Future<Output = Result<Answered<T>, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        self.try_all(USUAL, true, lost, work)
    }

    /// Calls something that may be called twice, `one` at a time, at the endpoint that others use:
    /// they are not moved to another by one that is short of time.
    pub(crate) fn call_here<T, F, W>(
        &self,
        one: Duration,
        all: Duration,
        mut work: F,
    ) -> Result<T, RegistryError>
    where
        F: FnMut(Client) -> W,
        W: Future<Output = Result<Answered<T>, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        self.refuse_if_back()?;
        let until = Instant::now() + all;
        loop {
            let limit = until.min(Instant::now() + one);
            match self.try_one(self.shared.current(), limit, &mut work) {
                Ok(value) => return Ok(value),
                Err(error) if error.trouble.is_of_endpoint() && limit + HERE_PAUSE < until => {}
                Err(error) => return Err(error.into()),
            }
            // tidy(sleep): nobody tells when a leader is there.
            std::thread::sleep(HERE_PAUSE);
        }
    }

    /// Not every answer says where etcd is: a lease may be in the backup, too, and would be
    /// renewed.
    fn refuse_if_back(&self) -> Result<(), RegistryError> {
        let Some(what) = self.shared.went_back.get() else { return Ok(()) };
        let reach = self.shared.reach();
        Err(EtcdError::new(Trouble::WentBack, &reach.settings.endpoints, what.clone()).into())
    }

    fn try_all<T, F, W>(
        &self,
        patience: Patience,
        write: bool,
        lost: &mut bool,
        mut work: F,
    ) -> Result<T, RegistryError>
    where
        F: FnMut(Client) -> W,
        W: Future<Output = Result<Answered<T>, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        self.refuse_if_back()?;
        let until = Instant::now() + patience.all;
        let mut probed = false;
        loop {
            let mut worst: Option<EtcdError> = None;
            for _ in 0..self.shared.reach().clients.len() {
                let index = self.shared.current();
                match self.try_one(index, until.min(Instant::now() + patience.one), &mut work) {
                    Ok(value) => return Ok(value),
                    Err(error) if error.trouble.is_of_endpoint() && Instant::now() < until => {
                        *lost |= write && error.trouble.may_have_done_it();
                        self.shared.leave(index);
                        worst = Some(EtcdError::worse(worst, error));
                    }
                    Err(error) => {
                        // The client says what its own library says; asked by hand, it can be said
                        // what helps.
                        let by_hand = error.trouble == Trouble::Tls && patience.all >= DEADLINE;
                        let told = if by_hand { self.refused_by_tls() } else { None };
                        return Err(told.unwrap_or_else(|| EtcdError::worse(worst, error)).into());
                    }
                }
            }
            let last = worst.unwrap_or_else(|| EtcdError::new(Trouble::Gone, &[], String::new()));
            // A renewal has no time for that.
            if patience.all >= DEADLINE
                && !std::mem::replace(&mut probed, true)
                && let Some(refused) = self.refused_by_tls()
            {
                return Err(refused.into());
            }
            if Instant::now() + ROUND_PAUSE >= until {
                return Err(last.into());
            }
            // tidy(sleep): nobody tells when an endpoint is back.
            std::thread::sleep(ROUND_PAUSE);
        }
    }

    /// Returns the TLS error, if every endpoint failed with one.
    fn refused_by_tls(&self) -> Option<EtcdError> {
        let reach = self.shared.reach();
        let settings = &reach.settings;
        let tls = settings.tls.as_ref()?;
        let mut refused = None;
        for endpoint in &settings.endpoints {
            let (endpoint, tls) = (endpoint.clone(), tls.clone());
            // It has a deadline of its own.
            let why = self.wait(Instant::now() + DEADLINE, {
                let endpoint = endpoint.clone();
                async move { probe::why(&endpoint, &tls).await }
            })??;
            refused = Some(EtcdError::worse(refused, EtcdError::new(Trouble::Tls, &[endpoint], why)));
        }
        refused
    }

    fn try_one<T, F, W>(&self, index: usize, limit: Instant, work: &mut F) -> Result<T, EtcdError>
    where
        F: FnMut(Client) -> W,
        W: Future<Output = Result<Answered<T>, etcd_client::Error>> + Send + 'static,
        T: Send + 'static,
    {
        let reach = self.shared.reach();
        let endpoint = reach.settings.endpoints.get(index..=index).unwrap_or_default();
        let slow = || EtcdError::new(Trouble::Slow, endpoint, String::new());
        let floor = self.shared.highest.load(Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let client = self
            .wait(limit, async move { shared.client(index).await })
            .ok_or_else(slow)?
            .map_err(|error| EtcdError::of(endpoint, &error))?;
        let answered = self
            .wait(limit, work(client))
            .ok_or_else(slow)?
            .map_err(|error| EtcdError::of(endpoint, &error))?;
        if let Some(header) = answered.header {
            self.shared
                .know(header, floor)
                .map_err(|what| EtcdError::new(Trouble::WentBack, endpoint, what))?;
        }
        Ok(answered.value)
    }

    /// Waits for what our own thread does, until a moment; then it is given up.
    fn wait<T: Send + 'static>(
        &self,
        until: Instant,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = sync_channel(1);
        let runtime = self.shared.runtime.as_ref()?;
        runtime.spawn(async move {
            if let Ok(done) = tokio::time::timeout_at(until, work).await {
                // Who called may have given up.
                let _gone = sender.send(done);
            }
        });
        // Ends when the work does: its sender goes with it.
        receiver.recv().ok()
    }
}

impl Shared {
    /// Remembers what an answer says of etcd. `floor`: the greatest revision that was known when it
    /// was asked. An answer of an earlier moment is from an etcd that was put back.
    fn know(&self, header: Header, floor: i64) -> Result<(), String> {
        let known = self.compare(header, floor);
        match (self.went_back.get(), known) {
            // Once is enough: what it went back behind is passed again when others have written
            // long enough.
            (Some(what), _) => Err(what.clone()),
            (None, Err(what)) => Err(self.went_back.get_or_init(|| what).clone()),
            (None, Ok(())) => Ok(()),
        }
    }

    fn compare(&self, header: Header, floor: i64) -> Result<(), String> {
        let before =
            self.cluster_id.compare_exchange(0, header.cluster_id, Ordering::Relaxed, Ordering::Relaxed);
        if let Err(known) = before
            && known != header.cluster_id
        {
            return Err(format!("it was etcd cluster {known:x} and is {:x} now", header.cluster_id));
        }
        if header.revision < floor {
            return Err(format!("it was at revision {floor} and is at {} now", header.revision));
        }
        self.highest.fetch_max(header.revision, Ordering::Relaxed);
        Ok(())
    }
}
