//! The cluster's own etcd: begun with the cluster, and its member on this node kept as membership
//! wants it: certificates, who is believed, who is not any more, where it is.

use super::config::Config;
use super::growth::{self, Growing};
use super::{
    Cluster, NODES, NodeRecord, authority, blocking, clock, failed, get_json, issued, rotate, unix_s,
};
use crate::admin::{Code, Problem};
use crate::etcd::{self, Ground, Keeper, Record, Room};
use hyper::Method;
use registry::{Etcd, EtcdMember, EtcdSettings, EtcdTls};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use trust::{Authority, Identity, Request, Revoked, Serial};

/// Where a node asks for the certificate of its member that has not the authority.
pub(crate) const CERTIFICATE_PATH: &str = "/v1/etcd/certificate";
/// How long the first member may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the members are looked at, by each node: one small request to one member.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// For how long members and nodes believe a former authority in etcd's certificates: each member
/// gets another one as soon as the next authority is in force.
const FORMER: Duration = Duration::from_secs(120);
/// Members that start anew on every node do so one after the other, so far apart.
const ONE_BY_ONE: Duration = Duration::from_secs(3);

/// The request of a node whose member needs a certificate.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ask {
    request_pem: String,
}

/// The answer to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Issued {
    chain_pem: String,
}

/// How a node reaches the cluster's own etcd: by who it is.
pub(super) fn settings(
    endpoints: &[String],
    prefix: &str,
    identity: &Identity,
    believed_pem: &str,
) -> EtcdSettings {
    let own_pem = identity.own_pem();
    let tls = EtcdTls { authority_pem: believed_pem.to_owned(), own_pem: Some((own_pem.clone(), own_pem)) };
    EtcdSettings { endpoints: endpoints.to_vec(), prefix: prefix.to_owned(), tls: Some(tls) }
}

/// Begins an etcd of one member on this node, and waits until it answers. The member's certificate
/// is to be written down as soon as there is a cluster to remove the node from.
pub(super) async fn begin(
    ground: &Arc<Ground>,
    authority: &Authority,
    identity: &Identity,
    address: SocketAddr,
    prefix: &str,
) -> Result<(Arc<Keeper>, Etcd, String), Problem> {
    if etcd::program().is_none() {
        return Err(Problem::new(Code::Failed, "there is no etcd on this machine").help(etcd::PROGRAM_ADVICE));
    }
    if !etcd::has_ports(address) {
        return Err(Problem::new(
            Code::BadRequest,
            format!("{address} leaves no ports below it for the cluster's etcd"),
        )
        .help("say a port from 3 on: --address ADDRESS:PORT"));
    }
    let record = Record::first(identity.node(), identity.cluster(), address);
    let member_pem = authority.member(address.ip(), SystemTime::now()).map_err(failed)?;
    let (_, certificate_pem) = trust::first_of_pem(&member_pem).map_err(failed)?;
    let (trusted, of) = (identity.trusted_pem(), Arc::clone(ground));
    blocking(move || {
        // What an attempt left that did not come to its end.
        etcd::sweep(&of).map_err(failed)?;
        let room = of.room();
        let made = room.make().and_then(|()| furnish(&room, &member_pem, &trusted, &Revoked::default()));
        made.and_then(|()| room.begin(&record)).map_err(|error| {
            failed(format!("can't make the folder of an etcd member {}: {error}", room.folder().display()))
        })
    })
    .await?;
    let keeper = Keeper::new(Arc::clone(ground), true);
    tokio::spawn(Arc::clone(&keeper).keep());
    let reach = settings(&[etcd::client_url(address)], prefix, identity, &identity.trusted_pem());
    let client = Etcd::new(reach).map_err(failed)?;
    match answers(&keeper, &client).await {
        Ok(()) => Ok((keeper, client, certificate_pem)),
        Err(problem) => {
            end(&keeper).await;
            Err(problem)
        }
    }
}

async fn answers(keeper: &Keeper, client: &Etcd) -> Result<(), Problem> {
    let begun = Instant::now();
    loop {
        let asked = client.clone();
        let Err(problem) = blocking(move || asked.check().map_err(failed)).await else { return Ok(()) };
        if begun.elapsed() > START_TIMEOUT {
            let why = keeper.seen().why.unwrap_or(problem.message);
            // It is put aside with the rest.
            let log = keeper.ground().room().folder().with_extension("before").join("etcd.log");
            return Err(failed(format!("the cluster's own etcd does not come to answer: {why}"))
                .help(format!("see {}", log.display())));
        }
    }
}

/// Ends the member of this node, and puts what it held aside.
pub(crate) async fn end(keeper: &Keeper) {
    keeper.stop().await;
    let ground = Arc::clone(keeper.ground());
    let ended = blocking(move || {
        etcd::sweep(&ground).map_err(failed)?;
        ground.room().put_aside().map_err(failed)
    });
    if let Err(problem) = ended.await {
        tracing::warn!(error = problem.message, "what is left of the etcd member of this node stays");
    }
}

/// Writes all files that a member reads.
pub(super) fn furnish(
    room: &Room,
    member_pem: &str,
    believed_pem: &str,
    revoked: &Revoked,
) -> std::io::Result<()> {
    room.set_certificate(member_pem)?;
    room.set_trusted(believed_pem)?;
    room.set_revoked(
        &trust::revocation_list(revoked.serials(), SystemTime::now()).map_err(std::io::Error::other)?,
    )
}

/// Issues a certificate for the member of a node, for the address by which it is known.
pub(crate) async fn issue(cluster: &Cluster, caller: &str, ask: Ask) -> Result<Issued, Problem> {
    rotate::check_request(&ask.request_pem)?;
    let (cluster, caller) = (cluster.clone(), caller.to_owned());
    blocking(move || {
        let authority = authority::own(cluster.etcd(), cluster.trust_folder())?.ok_or_else(|| {
            Problem::new(Code::Refused, format!("node {} may not issue certificates", cluster.me()))
        })?;
        let chain_pem = sign(&cluster, &authority, &caller, &ask.request_pem)?;
        Ok(Issued { chain_pem })
    })
    .await
}

/// Signs, and writes down what is about to be handed out: who removes the node revokes it.
fn sign(cluster: &Cluster, authority: &Authority, node: &str, request_pem: &str) -> Result<String, Problem> {
    let (record, _) = get_json::<NodeRecord>(cluster.etcd(), &format!("{NODES}{node}"))?
        .ok_or_else(|| Problem::new(Code::Refused, format!("node {node} was removed from the cluster")))?;
    clock::check(cluster)?;
    let chain = authority
        .sign_member(request_pem, record.address.ip(), SystemTime::now())
        .map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
    rotate::note(cluster.etcd(), node, &chain, issued::Purpose::Renewal)?;
    Ok(chain)
}

/// A certificate for the member of this node, with its key.
pub(super) async fn own_certificate(cluster: &Cluster) -> Result<String, Problem> {
    let request = Request::new(cluster.me()).map_err(failed)?;
    let request_pem = request.pem().map_err(failed)?;
    let (here, pem) = (cluster.clone(), request_pem.clone());
    let signed = blocking(move || match authority::own(here.etcd(), here.trust_folder())? {
        Some(authority) => sign(&here, &authority, here.me(), &pem).map(Some),
        None => Ok(None),
    });
    if let Some(chain) = signed.await? {
        return Ok(request.key_pem() + &chain);
    }
    let (ask, mut why) = (Ask { request_pem }, Vec::new());
    for member in cluster.nodes().into_iter().filter(|member| member.alive && member.name != cluster.me()) {
        match cluster.call::<Issued>(&member.name, Method::POST, CERTIFICATE_PATH, &ask).await {
            Ok(issued) => return Ok(request.key_pem() + &issued.chain_pem),
            Err(problem) => why.push(format!("{}: {}", member.name, problem.message)),
        }
    }
    Err(failed(format!("no node issues a certificate for the etcd member ({})", why.join("; ")))
        .help("start a node that has the authority: `tombolo node show` says so of each"))
}

/// The state from look to look.
#[derive(Debug, Default)]
struct Before {
    /// The authorities that this node believed at the last look.
    trusted: String,
    /// The authorities that it believed earlier, and until when.
    former: Vec<(String, Instant)>,
    /// The serials that the member was told to refuse.
    revoked: Option<BTreeSet<Serial>>,
    growing: Growing,
}

impl Before {
    /// Returns the authorities that etcd's certificates may be of, as PEM.
    fn believed(&mut self, trusted: &str, issuer: Option<&str>) -> Result<String, Problem> {
        if self.trusted != trusted {
            let earlier = std::mem::replace(&mut self.trusted, trusted.to_owned());
            if !earlier.is_empty() {
                self.former.push((earlier, Instant::now()));
            }
        }
        self.former.retain(|(_, until)| until.elapsed() < FORMER);
        let former = self.former.iter().map(|(pem, _)| pem.as_str());
        let all: Vec<&str> = std::iter::once(trusted).chain(issuer).chain(former).collect();
        trust::union_of_pem(&all).map_err(failed)
    }
}

/// Keeps this node's way to etcd, and its member of it, as long as the daemon lives.
pub(crate) async fn look_after(cluster: Cluster, keeper: Arc<Keeper>) {
    let (mut before, mut trust, mut said) = (Before::default(), cluster.trust_changes(), String::new());
    loop {
        match look(&cluster, &keeper, &mut before).await {
            Ok(()) => said.clear(),
            Err(problem) if problem.message != said => {
                tracing::warn!(
                    error = problem.message,
                    "the cluster's own etcd can't be looked after for now"
                );
                said = problem.message;
            }
            Err(_) => {}
        }
        tokio::select! {
            Ok(()) = trust.changed() => {}
            // tidy(sleep): etcd tells nobody when its members change.
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

async fn look(cluster: &Cluster, keeper: &Arc<Keeper>, before: &mut Before) -> Result<(), Problem> {
    let room = keeper.ground().room();
    let has_member = room.record().map_err(failed)?.is_some();
    if cluster.is_removed() || cluster.is_over() {
        if has_member && cluster.is_removed() {
            tracing::info!("this node is none of the cluster any more, and its etcd member ends");
            end(keeper).await;
        }
        return Ok(());
    }
    let certificate = if has_member { Some(room.certificate().map_err(failed)?) } else { None };
    let member = certificate.as_deref().map(trust::member_of_pem).transpose().map_err(failed)?;
    let trusted = cluster.identity().trusted_pem();
    let believed = before.believed(&trusted, member.as_ref().map(|member| member.issuer_pem.as_str()))?;
    reach(cluster, &cluster.etcd().settings().endpoints, &believed)?;
    if let Some(member) = &member {
        let revoked = cluster.identity().revoked();
        let believes_former = !before.former.is_empty() || Some(member.issuer) != cluster.identity().issuer();
        let refused = refused(&revoked, before.revoked.as_ref().filter(|_| believes_former));
        let anew = refresh(&room, &believed, refused, &mut before.revoked).map_err(failed)?;
        if anew {
            restart_in_turn(cluster, keeper).await;
        }
        let is_stale = member.is_due(unix_s())
            || Some(member.issuer) != cluster.identity().issuer()
            || revoked.contains(&member.serial);
        if is_stale {
            room.set_certificate(&own_certificate(cluster).await?).map_err(failed)?;
            tracing::info!("the etcd member of this node has another certificate");
        }
    }
    let here = cluster.clone();
    let members = blocking(move || here.etcd().members().map_err(failed)).await?;
    let (here, listed, of) = (cluster.clone(), members.clone(), believed.clone());
    blocking(move || follow_members(&here, &listed, &of)).await?;
    growth::step(cluster, keeper, &believed, &members, &mut before.growing).await
}

/// Returns the serials that the member is to refuse: all that are revoked, and, while it believes
/// an authority that this node believes no more, all that it was told before.
fn refused(revoked: &Revoked, told: Option<&BTreeSet<Serial>>) -> BTreeSet<Serial> {
    revoked.serials().chain(told.into_iter().flatten()).cloned().collect()
}

/// Writes down for the member who is believed, and who is not any more. Returns whether it has to
/// start anew for that: etcd reads authorities once, and ends no connection of who was revoked.
fn refresh(
    room: &Room,
    believed: &str,
    refused: BTreeSet<Serial>,
    told: &mut Option<BTreeSet<Serial>>,
) -> std::io::Result<bool> {
    let mut anew = false;
    if room.trusted()? != believed {
        room.set_trusted(believed)?;
        anew = true;
    }
    if told.as_ref() != Some(&refused) {
        let list = trust::revocation_list(&refused, SystemTime::now()).map_err(std::io::Error::other)?;
        room.set_revoked(&list)?;
        anew |= told.as_ref().is_some_and(|told| !refused.is_subset(told));
        *told = Some(refused);
    }
    Ok(anew)
}

/// Starts the member anew, after those of nodes whose names come before. Not at once: a node that
/// was removed, and lives, is to hear of it on the connection that it has.
async fn restart_in_turn(cluster: &Cluster, keeper: &Keeper) {
    let names = cluster.names().unwrap_or_default();
    let before = names.iter().filter(|name| name.as_str() < cluster.me()).count();
    // tidy(sleep): time for each of the others, so that a majority of members always runs.
    tokio::time::sleep(ONE_BY_ONE * u32::try_from(before + 1).unwrap_or(1)).await;
    keeper.start_anew();
}

fn reach(cluster: &Cluster, endpoints: &[String], believed: &str) -> Result<(), Problem> {
    let now = cluster.etcd().settings();
    let next = settings(endpoints, &now.prefix, cluster.identity(), believed);
    cluster.etcd().reach_by(super::nearest_first(next, cluster.config().address.ip())).map_err(failed)
}

/// Asks where the members are from now on, and writes it down for the next daemon.
fn follow_members(cluster: &Cluster, members: &[EtcdMember], believed: &str) -> Result<(), Problem> {
    let mut endpoints: Vec<String> = members
        .iter()
        .filter(|member| member.votes())
        .flat_map(|member| member.client_urls.clone())
        .collect();
    endpoints.sort_unstable();
    if endpoints.is_empty() {
        return Ok(());
    }
    let mut known = cluster.etcd().settings().endpoints;
    known.sort_unstable();
    if known == endpoints {
        return Ok(());
    }
    tracing::info!(endpoints = endpoints.join(", "), "etcd has other members");
    reach(cluster, &endpoints, believed)?;
    let mut config = cluster.config().clone();
    config.etcd.endpoints = endpoints;
    if cluster.is_over() {
        return Ok(());
    }
    Ok(Config::store(&config, &cluster.inner.state_dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// etcd believes a former authority for a while. A node that believes it no more does not keep
    /// for certain which of its certificates were revoked.
    #[test]
    fn what_is_revoked_of_a_former_authority_stays_refused_while_etcd_believes_it() {
        let now = SystemTime::now();
        let (former, next) = (Authority::new("lab", now).unwrap(), Authority::new("lab", now).unwrap());
        let (gone, gone_pem) = trust::first_of_pem(&former.identity("b", now).unwrap().chain_pem()).unwrap();
        let node = former.identity("a", now).unwrap();
        node.hear_revoked([(gone.clone(), Some(gone_pem.clone()))]);
        let told = refused(&node.revoked(), None);
        assert_eq!(told, BTreeSet::from([gone.clone()]));
        // As when so many are invented that a number without proof finds no room.
        let node = next.identity("a", now).unwrap();
        let invented = (0..trust::MAX_REVOKED).map(|n| (Serial::parse(&format!("{n:08x}")).unwrap(), None));
        node.hear_revoked(invented.chain([(gone.clone(), Some(gone_pem))]));
        assert!(!refused(&node.revoked(), None).contains(&gone));
        assert!(refused(&node.revoked(), Some(&told)).contains(&gone));
    }
}
