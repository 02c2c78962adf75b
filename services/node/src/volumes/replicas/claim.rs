//! The registry's records of volumes with several replicas, and this node's changes of them. Every
//! call waits for the network.

use crate::membership::Cluster;
use crate::volumes::book::Id;
use registry::{Expected, RegistryError};
use serde::{Deserialize, Serialize};
use volume::named;
use wire::replica::{CLAIMS, RECORDS, VolumeRecord};

/// The claim of the node that may be the primary of a volume; bound to that node's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    node: String,
}

/// A claim that holds: the record since, its revision, and which life of this node's lease it is
/// bound to.
#[derive(Debug)]
pub(super) struct Claimed {
    pub record: VolumeRecord,
    pub revision: u64,
    pub incarnation: u64,
}

fn said(error: RegistryError) -> String {
    format!("the registry of the cluster: {error}")
}

fn record_key(id: &Id) -> String {
    format!("{RECORDS}{}/{}", id.0, id.1)
}

fn claim_key(id: &Id) -> String {
    format!("{CLAIMS}{}/{}", id.0, id.1)
}

fn bytes(value: &impl Serialize) -> Vec<u8> {
    // Texts, numbers and truth values: JSON can say that.
    serde_json::to_vec(value).unwrap_or_default()
}

/// The record of a volume, with its revision.
pub(super) fn read(cluster: &Cluster, id: &Id) -> Result<Option<(VolumeRecord, u64)>, String> {
    let key = record_key(id);
    let Some(entry) = cluster.registry().get(&key).map_err(said)? else { return Ok(None) };
    let record: VolumeRecord = serde_json::from_slice(&entry.value)
        .map_err(|why| format!("the registry's {key} is not understood: {why}"))?;
    named::numbered(&record).ok_or_else(|| format!("the registry's {key} names nodes without a replica"))?;
    Ok(Some((record, entry.revision)))
}

/// Writes the record of a new volume; `false`: somebody else was first.
pub(super) fn create(cluster: &Cluster, id: &Id, record: &VolumeRecord) -> Result<bool, String> {
    match cluster.registry().put(&record_key(id), &bytes(record), Expected::Absent) {
        Ok(_) => Ok(true),
        Err(RegistryError::Conflict { .. }) => Ok(false),
        Err(error) => Err(said(error)),
    }
}

/// Replaces the record if it has this revision; what there is afterwards, whoever wrote it. `None`:
/// there is none any more.
pub(super) fn change(
    cluster: &Cluster,
    id: &Id,
    record: VolumeRecord,
    revision: u64,
) -> Result<Option<(VolumeRecord, u64)>, String> {
    match cluster.registry().put(&record_key(id), &bytes(&record), Expected::Revision(revision)) {
        Ok(revision) => Ok(Some((record, revision))),
        Err(RegistryError::Conflict { .. }) => read(cluster, id),
        Err(error) => Err(said(error)),
    }
}

/// Removes the record, if nobody is the primary.
pub(super) fn remove(cluster: &Cluster, id: &Id, revision: u64) -> Result<(), String> {
    if let Some(node) = holder(cluster, id)? {
        return Err(format!("node {node} has it"));
    }
    cluster.registry().delete(&record_key(id), Expected::Revision(revision)).map(drop).map_err(said)
}

/// Returns the node that holds the claim.
pub(super) fn holder(cluster: &Cluster, id: &Id) -> Result<Option<String>, String> {
    let entry = cluster.registry().get(&claim_key(id)).map_err(said)?;
    Ok(entry.and_then(|entry| serde_json::from_slice::<Claim>(&entry.value).ok()).map(|claim| claim.node))
}

/// Binds the claim to this node's lease, where nobody else's is bound to it; the life of that
/// lease.
fn bind(cluster: &Cluster, id: &Id) -> Result<u64, String> {
    let incarnation = cluster.incarnation();
    let key = claim_key(id);
    let expected = match cluster.registry().get(&key).map_err(said)? {
        None => Expected::Absent,
        Some(entry) => {
            let claim: Claim = serde_json::from_slice(&entry.value)
                .map_err(|why| format!("the registry's {key} is not understood: {why}"))?;
            if claim.node != cluster.me() {
                return Err(format!("node {} is the primary, and its lease is not over", claim.node));
            }
            Expected::Revision(entry.revision)
        }
    };
    let claim = Claim { node: cluster.me().to_owned() };
    cluster.put_leased(&key, &bytes(&claim), expected).map_err(said)?;
    // One that was taken meanwhile may be another one than that to which the claim is bound.
    if cluster.incarnation() == incarnation {
        Ok(incarnation)
    } else {
        Err("this node got another lease meanwhile".to_owned())
    }
}

/// Makes this node the primary of the next view. Its replica is quiet, and nobody may write there.
pub(super) fn claim(cluster: &Cluster, id: &Id) -> Result<Claimed, String> {
    let incarnation = bind(cluster, id)?;
    let claimed = claim_record(cluster, id, incarnation);
    if claimed.is_err() {
        let_go(cluster, id);
    }
    claimed
}

fn claim_record(cluster: &Cluster, id: &Id, incarnation: u64) -> Result<Claimed, String> {
    let (record, revision) = read(cluster, id)?.ok_or("the registry has no such volume any more")?;
    let own = named::number(&record.replicas, cluster.me());
    let (Some(own), Some(rules)) = (own, named::numbered(&record)) else {
        return Err("this node has no replica of it".to_owned());
    };
    // The claim is bound to this node's lease: whoever had it before has none any more.
    let next = rules.claim(own, true).map_err(|_| {
        let current = record.current.join(", ");
        format!("this node's replica may lack acknowledged writes; those of {current} do not")
    })?;
    let next = named::named(&next, &record);
    match change(cluster, id, next.clone(), revision)? {
        Some((there, revision)) if there == next => Ok(Claimed { record: there, revision, incarnation }),
        _ => Err("somebody else has just changed its record".to_owned()),
    }
}

/// Binds the claim of a view to the lease that this node has now, if the view is still this node's;
/// `None`: it is not.
///
/// Where the claim was gone for a moment, and nobody has claimed since, the view goes on: nothing
/// was acknowledged meanwhile, and from here on nobody else can claim.
pub(super) fn rebind(cluster: &Cluster, id: &Id, view: u64) -> Result<Option<Claimed>, String> {
    let is_mine =
        |record: &VolumeRecord| record.view == view && record.primary.as_deref() == Some(cluster.me());
    let mine = read(cluster, id)?.filter(|(record, _)| is_mine(record));
    if mine.is_none() {
        return Ok(None);
    }
    let incarnation = bind(cluster, id)?;
    let Some((record, revision)) = read(cluster, id)?.filter(|(record, _)| is_mine(record)) else {
        let_go(cluster, id);
        return Ok(None);
    };
    Ok(Some(Claimed { record, revision, incarnation }))
}

/// Lets go of the claim. Where that fails it ends with the lease.
pub(super) fn let_go(cluster: &Cluster, id: &Id) {
    let registry = cluster.registry();
    let key = claim_key(id);
    let gone = match registry.get(&key) {
        Ok(Some(entry)) => {
            let is_mine =
                serde_json::from_slice::<Claim>(&entry.value).is_ok_and(|claim| claim.node == cluster.me());
            if is_mine { registry.delete(&key, Expected::Revision(entry.revision)).map(drop) } else { Ok(()) }
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = gone {
        tracing::warn!(dc = id.0, volume = id.1, %error, "the claim of a volume ends with this node's lease only");
    }
}
