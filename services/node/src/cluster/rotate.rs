//! Another certificate, before the one that is in use ends, or when somebody asks.

use super::join::serial_of;
use super::{Cluster, NODES, NodeRecord, blocking, failed, get_json, issued, to_json};
use crate::admin::{Code, Problem};
use hyper::Method;
use registry::{Expected, Registry};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};
use trust::{Authority, Request};

/// How often it is seen whether another certificate is due: often enough that many attempts fit into the last third of its time.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// What a node asks that may not issue certificates itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ask {
    request_pem: String,
}

/// What it is given.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Issued {
    chain_pem: String,
}

/// Issues a certificate to a node that has one, for its own name and no other.
pub(super) async fn issue(cluster: &Cluster, caller: &str, ask: Ask) -> Result<Issued, Problem> {
    let authority = Authority::load(cluster.trust_folder()).map_err(failed)?;
    let authority = authority.ok_or_else(|| {
        Problem::new(Code::Refused, format!("node {} may not issue certificates", cluster.me()))
    })?;
    let (cluster, caller) = (cluster.clone(), caller.to_owned());
    blocking(move || {
        let chain_pem = authority
            .sign(&ask.request_pem, &caller, SystemTime::now())
            .map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
        note(cluster.etcd(), &caller, &serial_of(&chain_pem)?)?;
        Ok(Issued { chain_pem })
    })
    .await
}

/// Writes down what is about to be handed out, unless the node was removed.
fn note(registry: &dyn Registry, node: &str, serial: &str) -> Result<(), Problem> {
    issued::note(registry, node, serial)?;
    // After that, so that who removes the node sees one or the other.
    if registry.get(&format!("{NODES}{node}")).map_err(failed)?.is_some() {
        return Ok(());
    }
    issued::revoke_all(registry, node, None)?;
    Err(Problem::new(Code::Refused, format!("node {node} was removed from the cluster")))
}

/// Gets another certificate and takes it into use. Returns until when it is valid. `revoke`: nobody believes the earlier ones any more.
pub(super) async fn rotate(cluster: &Cluster, revoke: bool) -> Result<u64, Problem> {
    let request = Request::new(cluster.me()).map_err(failed)?;
    let own = Authority::load(cluster.trust_folder()).map_err(failed)?;
    let chain_pem = match own {
        Some(authority) => {
            let (cluster, request_pem) = (cluster.clone(), request.pem().map_err(failed)?);
            let sign = move || {
                let me = cluster.me();
                let chain_pem = authority.sign(&request_pem, me, SystemTime::now()).map_err(failed)?;
                note(cluster.etcd(), me, &serial_of(&chain_pem)?)?;
                Ok(chain_pem)
            };
            blocking(sign).await?
        }
        None => ask_others(cluster, &request).await?,
    };
    cluster.identity().renew(&request, &chain_pem).map_err(failed)?;
    let cluster = cluster.clone();
    blocking(move || {
        cluster.identity().store(cluster.trust_folder()).map_err(failed)?;
        cluster.trust_changed();
        let key = format!("{NODES}{}", cluster.me());
        let serial = cluster.identity().serial().to_string();
        if let Some((record, revision)) = get_json::<NodeRecord>(cluster.etcd(), &key)? {
            let before = record.serial.clone();
            let record = NodeRecord { serial: serial.clone(), ..record };
            cluster.etcd().put(&key, &to_json(&record)?, Expected::Revision(revision)).map_err(failed)?;
            if revoke {
                issued::revoke(cluster.etcd(), cluster.me(), &before)?;
            }
        }
        if revoke {
            issued::revoke_all(cluster.etcd(), cluster.me(), Some(&serial))?;
        }
        Ok(cluster.identity().valid_until_unix_s())
    })
    .await
}

async fn ask_others(cluster: &Cluster, request: &Request) -> Result<String, Problem> {
    let ask = Ask { request_pem: request.pem().map_err(failed)? };
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

/// Renews the certificate whenever it is time, as long as the daemon lives.
pub(crate) async fn rotate_when_due(cluster: Cluster) {
    loop {
        if cluster.identity().is_due(SystemTime::now()) {
            match rotate(&cluster, false).await {
                Ok(until) => tracing::info!(until_unix_s = until, "this node has another certificate"),
                Err(problem) => {
                    tracing::warn!(error = problem.message, "this node needs another certificate")
                }
            }
        }
        // tidy(sleep): time itself is what is awaited.
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
