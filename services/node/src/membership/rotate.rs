//! Another certificate, before the one that is in use ends, or when somebody asks.

use super::issued::Purpose;
use super::{
    Cluster, NODES, NodeRecord, authority, blocking, clock, failed, get_json, issued, to_json, unix_s,
};
use admin::{Code, Problem};
use hyper::Method;
use registry::{Expected, Registry};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};
use trust::{Authority, Identity, Request};

/// How often it is seen whether another certificate is due: often enough that many attempts fit
/// into the last third of its time.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// How many looks are a day.
const LOOKS_A_DAY: u64 = 86_400 / LOOK_EVERY.as_secs();

/// The request of a node that may not issue certificates itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ask {
    request_pem: String,
    /// The earlier ones are to be revoked then.
    #[serde(default)]
    revoke: bool,
}

/// The answer to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Issued {
    chain_pem: String,
}

/// Refuses what is no request for a certificate, before anything is asked of the registry.
pub(super) fn check_request(request_pem: &str) -> Result<(), Problem> {
    Authority::check_request(request_pem).map_err(|error| Problem::new(Code::BadRequest, error.to_string()))
}

/// Issues a certificate to a node that has one, for its own name and no other.
pub(crate) async fn issue(cluster: &Cluster, caller: &str, ask: Ask) -> Result<Issued, Problem> {
    check_request(&ask.request_pem)?;
    let (cluster, caller) = (cluster.clone(), caller.to_owned());
    blocking(move || {
        let authority = authority::own(cluster.etcd(), cluster.trust_folder())?.ok_or_else(|| {
            Problem::new(Code::Refused, format!("node {} may not issue certificates", cluster.me()))
        })?;
        clock::check(&cluster)?;
        let chain_pem = authority
            .sign(&ask.request_pem, &caller, SystemTime::now())
            .map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
        note(cluster.etcd(), &caller, &chain_pem, purpose(ask.revoke))?;
        Ok(Issued { chain_pem })
    })
    .await
}

/// Writes down what is about to be handed out, unless the node was removed.
pub(super) fn note(
    registry: &dyn Registry,
    node: &str,
    chain_pem: &str,
    purpose: Purpose,
) -> Result<(), Problem> {
    issued::note(registry, node, chain_pem, purpose)?;
    // After that, so that who removes the node sees one or the other.
    if registry.get(&format!("{NODES}{node}")).map_err(failed)?.is_some() {
        return Ok(());
    }
    issued::revoke_all(registry, node, None)?;
    Err(Problem::new(Code::Refused, format!("node {node} was removed from the cluster")))
}

/// Gets another certificate and takes it into use. Returns until when it is valid. `revoke`: nobody
/// believes the earlier ones any more.
pub(crate) async fn rotate(cluster: &Cluster, revoke: bool) -> Result<u64, Problem> {
    let _changing = cluster.inner.certificate.lock().await;
    if cluster.is_over() {
        return Err(failed("this machine joins the cluster anew"));
    }
    let request = Request::new(cluster.me()).map_err(failed)?;
    let (here, request_pem) = (cluster.clone(), request.pem().map_err(failed)?);
    let sign = move || {
        let me = here.me();
        let Some(authority) = authority::own(here.etcd(), here.trust_folder())? else { return Ok(None) };
        clock::check(&here)?;
        let chain_pem = authority.sign(&request_pem, me, SystemTime::now()).map_err(failed)?;
        note(here.etcd(), me, &chain_pem, purpose(revoke))?;
        Ok(Some(chain_pem))
    };
    let chain_pem = match blocking(sign).await? {
        Some(chain_pem) => chain_pem,
        None => ask_others(cluster, &request, revoke).await?,
    };
    let here = cluster.clone();
    let settled = blocking(move || authority::settled(here.etcd())).await?;
    cluster.identity().renew_by(&request, &chain_pem, settled).map_err(failed)?;
    let cluster = cluster.clone();
    blocking(move || {
        cluster.identity().store(cluster.trust_folder()).map_err(failed)?;
        cluster.trust_changed();
        let before = enter_serial(cluster.etcd(), cluster.identity())?;
        let serial = cluster.identity().serial().to_string();
        if revoke {
            if let Some(before) = before {
                issued::revoke(cluster.etcd(), cluster.me(), &before)?;
            }
            issued::revoke_all(cluster.etcd(), cluster.me(), Some(&serial))?;
        }
        Ok(cluster.identity().valid_until_unix_s())
    })
    .await
}

/// Writes down which certificate a node shows; returns which it was before.
pub(super) fn enter_serial(registry: &dyn Registry, identity: &Identity) -> Result<Option<String>, Problem> {
    let key = format!("{NODES}{}", identity.node());
    let Some((record, revision)) = get_json::<NodeRecord>(registry, &key)? else { return Ok(None) };
    let before = record.serial.clone();
    let record = NodeRecord { serial: identity.serial().to_string(), ..record };
    registry.put(&key, &to_json(&record)?, Expected::Revision(revision)).map_err(failed)?;
    Ok(Some(before))
}

const fn purpose(revoke: bool) -> Purpose {
    if revoke { Purpose::Revocation } else { Purpose::Renewal }
}

async fn ask_others(cluster: &Cluster, request: &Request, revoke: bool) -> Result<String, Problem> {
    let ask = Ask { request_pem: request.pem().map_err(failed)?, revoke };
    let mut why = Vec::new();
    for member in cluster.nodes().into_iter().filter(|member| member.alive && member.name != cluster.me()) {
        match cluster.call::<Issued>(&member.name, Method::POST, "/v1/certificate", &ask).await {
            Ok(issued) => return Ok(issued.chain_pem),
            Err(problem) => why.push(format!("{}: {}", member.name, problem.message)),
        }
    }
    if why.is_empty() {
        why.push("none that lives is known".into());
    }
    Err(failed(format!("no node issues a certificate ({})", why.join("; ")))
        .help("start a node that has the authority: `tombolo node show` says so of each"))
}

/// How long before the authority ends its nodes begin to say so.
const AUTHORITY_WARNING_S: u64 = 365 * 86_400;

/// The authority that counts is the first of those that are believed.
fn warn_of_the_authoritys_end(cluster: &Cluster) {
    match trust::authority_until_unix_s(&cluster.identity().trusted_pem()) {
        Ok(until) if until.saturating_sub(unix_s()) < AUTHORITY_WARNING_S => tracing::warn!(
            until_unix_s = until,
            "the cluster's authority ends within a year: `tombolo node authority replace` at a node that has it"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "it is not known when the cluster's authority ends"),
    }
}

/// Writes what could not be written before, as a disk was full.
async fn write_down(cluster: &Cluster) -> Result<(), Problem> {
    let _changing = cluster.inner.certificate.lock().await;
    if cluster.is_over() {
        return Ok(());
    }
    let cluster = cluster.clone();
    blocking(move || {
        if !cluster.identity().is_stored(cluster.trust_folder()).map_err(failed)? {
            cluster.identity().store(cluster.trust_folder()).map_err(failed)?;
            cluster.trust_changed();
        }
        Ok(())
    })
    .await
}

/// Renews the certificate whenever it is time, as long as the daemon lives.
pub(crate) async fn rotate_when_due(cluster: Cluster) {
    let mut looks = 0_u64;
    loop {
        if cluster.identity().is_due(SystemTime::now()) {
            match rotate(&cluster, false).await {
                Ok(until) => tracing::info!(until_unix_s = until, "this node has another certificate"),
                Err(problem) => {
                    tracing::warn!(error = problem.message, "this node needs another certificate")
                }
            }
        }
        if let Err(problem) = write_down(&cluster).await {
            tracing::warn!(error = problem.message, "what this node shows can't be written down");
        }
        if looks.is_multiple_of(LOOKS_A_DAY) {
            warn_of_the_authoritys_end(&cluster);
        }
        looks = looks.wrapping_add(1);
        // tidy(sleep): time itself is what is awaited.
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
