//! The operations of etcd that `lease::Suspicions` needs: renewals that count only while no
//! suspicion stands, suspicions bound to the lease of whom they are about, and taking over from one
//! that left a suspicion stand.

use super::calls::{Answered, Patience};
use super::{Etcd, EtcdError, Lease, MAX_ANSWER_BYTES, Trouble, compare, entry, found_in, kv, positive};
use crate::{Entry, Expected, RegistryError, check_key, check_value};
use etcd_client::{GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};
use std::time::Duration;

/// How long one attempt at [`Etcd::suspect`] may take: what a leader that died was sent is lost,
/// and the next one gets it only when it is sent again.
const ATTEMPT: Duration = Duration::from_millis(150);

/// A value, and which lease it is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// The entry found.
    pub entry: Entry,
    /// 0: none.
    lease: i64,
}

/// Two keys, and which revision one of them must have.
#[derive(Debug, Clone, Copy)]
pub struct Watched<'k> {
    /// The key of who lives.
    pub alive: &'k str,
    /// Its revision, in the life that is meant.
    pub life: u64,
    /// The key of suspicions of it.
    pub suspicion: &'k str,
}

/// The result of a renewal that is to count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    /// The lease was kept alive; after that was sent, its holder's key was there and no suspicion.
    Lasts,
    /// The lease is gone, or the key is not that of this life.
    Gone,
    /// It was kept alive, but a suspicion stands.
    Suspected(Entry),
}

/// The state found after the attempt to write a suspicion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suspected {
    /// It stands, with this revision.
    Stands(u64),
    /// Another one stood already.
    Before(Entry),
    /// That life is over.
    Over,
}

impl Etcd {
    /// All keys that begin with `prefix`, with their leases.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`].
    pub fn list_bound(&self, prefix: &str) -> Result<Vec<(String, Bound)>, RegistryError> {
        let full = self.full(prefix);
        let cut = self.shared.prefix.len();
        self.call(false, |client| {
            let full = full.clone();
            async move {
                let answer = kv(&client).get(full, Some(GetOptions::new().with_prefix())).await?;
                let bound = answer.kvs().iter().map(|found| {
                    let key =
                        String::from_utf8_lossy(found.key().get(cut..).unwrap_or_default()).into_owned();
                    (key, Bound { entry: entry(found), lease: found.lease() })
                });
                Ok(Answered { header: answer.header().map(Into::into), value: bound.collect() })
            }
        })
    }

    /// Keeps a lease alive, and asks in the same moment or later, as a majority knows it, whether
    /// its holder is in the life that it believes in, and not suspected. As [`Etcd::renew`]
    /// otherwise.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: whether it was kept alive is not known.
    pub fn renew_unsuspected(
        &self,
        lease: &Lease,
        watched: Watched<'_>,
        within: Duration,
    ) -> Result<Counted, RegistryError> {
        let id = lease.id();
        let (alive, suspicion) = (self.full(watched.alive), self.full(watched.suspicion));
        let patience = Patience { all: within, one: within / 3 };
        self.call_within(patience, |mut client| {
            // Only reads: etcd takes them as of one moment, lets in who may not write, and writes
            // nothing down.
            let look = Txn::new().when(compare(&alive, Expected::Revision(watched.life)));
            let look = look.and_then([TxnOp::get(suspicion.as_str(), None)]);
            async move {
                let mut asked = client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES);
                let (kept, looked) = tokio::join!(client.lease_keep_alive(id), asked.txn(look));
                let there = match kept {
                    Ok((_keeper, _stream)) => true,
                    Err(etcd_client::Error::LeaseKeepAliveError(_)) => false,
                    Err(error) => return Err(error),
                };
                let looked = looked?;
                let value = match found_in(&looked.op_responses()) {
                    _ if !there || !looked.succeeded() => Counted::Gone,
                    Some(suspicion) => Counted::Suspected(suspicion),
                    None => Counted::Lasts,
                };
                Ok(Answered { header: looked.header().map(Into::into), value })
            }
        })
    }

    /// Takes away a suspicion of one's own life, which goes on. Whether both were there.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: whether it was taken away is not known.
    pub fn answer(
        &self,
        watched: Watched<'_>,
        revision: u64,
        within: Duration,
    ) -> Result<bool, RegistryError> {
        let (alive, suspicion) = (self.full(watched.alive), self.full(watched.suspicion));
        let patience = Patience { all: within, one: within / 3 };
        self.call_within(patience, |client| {
            let mut when = compare(&alive, Expected::Revision(watched.life));
            when.extend(compare(&suspicion, Expected::Revision(revision)));
            let txn = Txn::new().when(when).and_then([TxnOp::delete(suspicion.as_str(), None)]);
            async move {
                let answer = kv(&client).txn(txn).await?;
                Ok(Answered { header: answer.header().map(Into::into), value: answer.succeeded() })
            }
        })
    }

    /// Writes a suspicion of a life, bound to the lease that its key is bound to, if there is none.
    /// What does not come through is sent again soon, to the same endpoint.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: whether it was written is not known.
    pub fn suspect(
        &self,
        watched: Watched<'_>,
        of: &Bound,
        value: &[u8],
        within: Duration,
    ) -> Result<Suspected, RegistryError> {
        check_key(watched.suspicion)?;
        check_value(watched.suspicion, value)?;
        let (alive, suspicion, lease) = (self.full(watched.alive), self.full(watched.suspicion), of.lease);
        let said = self.call_here(ATTEMPT, within, |client| {
            let mut when = compare(&alive, Expected::Revision(watched.life));
            when.extend(compare(&suspicion, Expected::Absent));
            let put = TxnOp::put(suspicion.as_str(), value, Some(PutOptions::new().with_lease(lease)));
            let look = [TxnOp::get(alive.as_str(), None), TxnOp::get(suspicion.as_str(), None)];
            let txn = Txn::new().when(when).and_then([put]).or_else(look);
            async move {
                let answer = kv(&client).txn(txn).await?;
                let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
                let value = if answer.succeeded() {
                    Suspected::Stands(positive(revision))
                } else {
                    before(&answer.op_responses(), watched.life)
                };
                Ok(Answered { header: answer.header().map(Into::into), value })
            }
        });
        match said {
            // Our own, of an attempt whose answer was lost.
            Ok(Suspected::Before(there)) if there.value == value => Ok(Suspected::Stands(there.revision)),
            Err(RegistryError::Etcd(EtcdError { trouble: Trouble::Lease, .. })) => Ok(Suspected::Over),
            said => said,
        }
    }

    /// Replaces a suspicion that stands by the word that the life is over. Whether both were there
    /// as they should be: from then on its holder counts no renewal any more.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`]: whether it was replaced is not known.
    pub fn end_suspected(
        &self,
        watched: Watched<'_>,
        of: &Bound,
        revision: u64,
        value: &[u8],
    ) -> Result<bool, RegistryError> {
        check_value(watched.suspicion, value)?;
        let (alive, suspicion, lease) = (self.full(watched.alive), self.full(watched.suspicion), of.lease);
        self.call(true, |client| {
            let mut when = compare(&alive, Expected::Revision(watched.life));
            when.extend(compare(&suspicion, Expected::Revision(revision)));
            let put = TxnOp::put(suspicion.as_str(), value, Some(PutOptions::new().with_lease(lease)));
            let txn = Txn::new().when(when).and_then([put]).or_else([TxnOp::get(suspicion.as_str(), None)]);
            async move {
                let answer = kv(&client).txn(txn).await?;
                Ok(Answered { header: answer.header().map(Into::into), value: answer.succeeded() })
            }
        })
    }

    /// Ends the lease that something is bound to, and so all that is. One that is gone already is
    /// as good.
    ///
    /// # Errors
    /// [`RegistryError::Etcd`].
    pub fn revoke_bound(&self, of: &Bound) -> Result<(), RegistryError> {
        if of.lease == 0 { Ok(()) } else { self.revoke(&Lease::known(of.lease)) }
    }
}

/// Returns the state found where a suspicion could not be written.
fn before(found: &[TxnOpResponse], life: u64) -> Suspected {
    let mut found = found.iter().map(|response| match response {
        TxnOpResponse::Get(got) => got.kvs().first().map(entry),
        _ => None,
    });
    let (alive, suspicion) = (found.next().flatten(), found.next().flatten());
    match suspicion {
        Some(suspicion) if alive.is_some_and(|alive| alive.revision == life) => Suspected::Before(suspicion),
        _ => Suspected::Over,
    }
}
