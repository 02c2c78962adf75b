//! Joining: the machine that wants in, and the node that lets it.

use super::authority::{self, RENEWALS};
use super::config::{Config, Etcd as EtcdConfig};
use super::number;
use super::release::{self, RELEASE};
use super::serve::{JOIN_PATH, OfConnection};
use super::token::{self, Token};
use super::{
    ADDRESSES, ALIVE, Cluster, NODES, NodeRecord, PEER_PORT, blocking, call, failed, for_strangers, get_json,
    issued, resources, to_json, trust_folder, unix_s,
};
use admin::{Code, JoinRequest, Problem};
use registry::{Etcd, Expected, Registry, RegistryError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::SystemTime;
use trust::{About, Authority, Identity, Request};

/// Labels that a node may have.
const MAX_LABELS: usize = 64;
/// Longest name or value of one.
const MAX_LABEL_BYTES: usize = 128;

/// The remedy for a person whose machine is to join a cluster on an etcd that lets everybody in.
const INSECURE_HELP: &str = "where nobody but the nodes reaches it: `tombolo node join ... --insecure-etcd`; else give etcd TLS and certificates of its clients first";

/// The request of a machine that wants to join.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Knock {
    id: String,
    secret: String,
    name: String,
    /// Where it will listen; without one, where it asks from, at the usual port.
    address: Option<SocketAddr>,
    request_pem: String,
    release: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    cpus: u32,
    memory_bytes: u64,
    /// It was told there that etcd may let everybody in. Releases of before did not ask.
    #[serde(default)]
    insecure_etcd: Option<bool>,
}

/// The answer to a machine that joins.
#[derive(Serialize, Deserialize)]
pub(crate) struct Welcome {
    chain_pem: String,
    trusted_pem: String,
    /// The authority with its key, where the token allows it.
    authority_pem: Option<String>,
    etcd: EtcdConfig,
    address: SocketAddr,
    /// None: that node's release knows of no numbers.
    #[serde(default)]
    number: Option<u32>,
}

/// The proof to a machine that wants to join that the node has the authority's key.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Proof {
    /// The authority's, of what this connection is known by to both ends: nobody in between can
    /// pass it on.
    pub(super) signature: String,
}

/// Shows it, on this connection. Nobody is asked for it.
pub(crate) async fn prove(cluster: &Cluster, words: OfConnection) -> Result<Proof, Problem> {
    let cluster = cluster.clone();
    for_strangers(move || {
        let authority = Authority::load(cluster.trust_folder()).map_err(failed)?;
        let authority = authority.ok_or_else(|| may_not(cluster.me()))?;
        Ok(Proof { signature: authority.say(About::Connection, &words.0).map_err(failed)? })
    })
    .await
}

fn may_not(me: &str) -> Problem {
    Problem::new(Code::Refused, format!("node {me} may not let others join"))
        .help("ask a node that has the authority: `tombolo node show` says so of each")
}

/// Lets a machine in that has a token.
pub(crate) async fn admit(cluster: &Cluster, knock: Knock, from: IpAddr) -> Result<Welcome, Problem> {
    let who = format!("the machine at {from}");
    release::check(&knock.release, &who)?;
    super::name::check(&knock.name)?;
    check_labels(&knock.labels)?;
    let address = knock.address.unwrap_or(SocketAddr::new(from, PEER_PORT));
    check_address(address)?;
    token::check_form(&knock.id, &knock.secret)?;
    super::rotate::check_request(&knock.request_pem)?;
    // Before anything is written: it would not take these settings.
    if knock.insecure_etcd == Some(false)
        && let Some(why) = cluster.config().etcd.unprotected()
    {
        return Err(Problem::new(Code::Refused, why).help(INSECURE_HELP));
    }
    let cluster = cluster.clone();
    for_strangers(move || {
        let etcd = cluster.etcd();
        let authority = authority::own(etcd, cluster.trust_folder())?.ok_or_else(|| may_not(cluster.me()))?;
        super::clock::check(&cluster)?;
        let (accepted, revision) = token::look(etcd, &authority, (&knock.id, &knock.secret), unix_s())?;
        check_free(etcd, &knock.name, address)?;
        // Before anything is written: a request that can't be signed uses no token up.
        let chain_pem = authority
            .sign(&knock.request_pem, &knock.name, SystemTime::now())
            .map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
        let serial = serial_of(&chain_pem)?;
        token::consume(etcd, &knock.id, revision)?;
        let record = NodeRecord {
            name: knock.name.clone(),
            address,
            locators: Vec::new(),
            labels: knock.labels,
            cpus: knock.cpus,
            memory_bytes: knock.memory_bytes,
            joined_unix_s: unix_s(),
            serial,
            version: knock.release,
            number: Some(number::take(etcd, &knock.name)?),
        };
        enter(etcd, &record)?;
        // After that, so that who replaces the authority sees the node, or this sees that it is
        // replaced.
        let booked = begin_books(etcd, &record, &chain_pem).and_then(|()| authority::settled(etcd));
        let booked = booked.map(|settled| settled == authority.fingerprint());
        let booked = booked.and_then(|same| if same { Ok(()) } else { Err(replaced()) });
        if let Err(problem) = booked {
            return Err(match leave(etcd, &record.name) {
                Ok(()) => problem,
                Err(left) => problem.help(format!("the node is left in the registry: {left}")),
            });
        }
        tracing::info!(node = knock.name, %address, "a node has joined");
        Ok(Welcome {
            chain_pem,
            trusted_pem: cluster.identity().trusted_pem(),
            authority_pem: accepted.may_issue.then(|| authority.to_pem()),
            // Whether it is meant is said at each machine; releases of before know no such word.
            etcd: EtcdConfig {
                insecure: false,
                endpoints: etcd.settings().endpoints,
                ..cluster.config().etcd.clone()
            },
            address,
            number: record.number,
        })
    })
    .await
}

fn replaced() -> Problem {
    Problem::new(Code::Taken, "the cluster's authority was replaced just now")
        .help("join with a new token: `tombolo node token`")
}

/// Revokes the certificates of an earlier node of that name, and begins the books of this one.
fn begin_books(registry: &dyn Registry, record: &NodeRecord, chain_pem: &str) -> Result<(), Problem> {
    issued::revoke_all(registry, &record.name, Some(&record.serial))?;
    issued::note(registry, &record.name, chain_pem, issued::Purpose::Renewal).map(drop)
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Problem> {
    let good = |text: &str| text.len() <= MAX_LABEL_BYTES && !text.chars().any(char::is_control);
    if labels.len() <= MAX_LABELS
        && labels.iter().all(|(name, value)| !name.is_empty() && good(name) && good(value))
    {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadRequest,
        format!(
            "a node has {MAX_LABELS} labels of {MAX_LABEL_BYTES} bytes at the most, without control characters"
        ),
    ))
}

fn check_address(address: SocketAddr) -> Result<(), Problem> {
    if address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast() {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("other nodes can't reach {address}"))
        .help("say at which address they do: --address ADDRESS:PORT"))
}

fn taken(what: &str, by: &str) -> Problem {
    Problem::new(Code::Taken, format!("{what} is node {by}'s already"))
        .help("take another, or `tombolo node remove` the node that is gone")
}

pub(super) fn check_free(registry: &dyn Registry, name: &str, address: SocketAddr) -> Result<(), Problem> {
    if registry.get(&format!("{NODES}{name}")).map_err(failed)?.is_some() {
        return Err(taken(&format!("the name {name}"), name));
    }
    let Some((by, _)) = get_json::<String>(registry, &format!("{ADDRESSES}{address}"))? else {
        return Ok(());
    };
    if has_address(registry, &by, address)? {
        return Err(taken(&format!("the address {address}"), &by));
    }
    Ok(())
}

/// Whether a node has that address. One that took it and was never written down has not: whoever
/// let it in died in between.
fn has_address(registry: &dyn Registry, node: &str, address: SocketAddr) -> Result<bool, Problem> {
    let record = get_json::<NodeRecord>(registry, &format!("{NODES}{node}"))?;
    Ok(record.is_some_and(|(record, _)| record.address == address))
}

/// Writes a node and its address down, both or neither: of several with one name or one address,
/// one is. An address that was taken for a node that was never written down is free.
pub(super) fn enter(registry: &dyn Registry, record: &NodeRecord) -> Result<(), Problem> {
    let (node, address) = (format!("{NODES}{}", record.name), format!("{ADDRESSES}{}", record.address));
    let refused = |by: &str| taken(&format!("the address {}", record.address), by);
    let expected = match get_json::<String>(registry, &address)? {
        None => Expected::Absent,
        Some((by, _)) if has_address(registry, &by, record.address)? => return Err(refused(&by)),
        Some((_, revision)) => Expected::Revision(revision),
    };
    let guards = [(address.as_str(), expected), (node.as_str(), Expected::Absent)];
    let changes = [(address.clone(), Some(to_json(&record.name)?)), (node.clone(), Some(to_json(record)?))];
    match registry.write_if(&guards, &changes) {
        Ok(_) => Ok(()),
        Err(RegistryError::Conflict { key, .. }) if key == node => {
            Err(taken(&format!("the name {}", record.name), &record.name))
        }
        Err(RegistryError::Conflict { .. }) => Err(refused("another")),
        Err(error) => Err(failed(error)),
    }
}

/// Takes a node out: its certificate is believed no more, its name and address are free.
pub(crate) fn leave(registry: &dyn Registry, name: &str) -> Result<(), Problem> {
    let Some((record, revision)) = get_json::<NodeRecord>(registry, &format!("{NODES}{name}"))? else {
        return Err(Problem::new(Code::UnknownNode, format!("there is no node {name:?} in the cluster"))
            .help("`tombolo node ls` lists them"));
    };
    // First of all nobody believes it any more.
    issued::revoke(registry, name, &record.serial)?;
    issued::revoke_all(registry, name, None)?;
    token::end_those_of(registry, name)?;
    registry.delete(&format!("{ALIVE}{name}"), Expected::Anything).map_err(failed)?;
    registry.delete(&format!("{RENEWALS}{name}"), Expected::Anything).map_err(failed)?;
    registry.delete(&format!("{ADDRESSES}{}", record.address), Expected::Anything).map_err(failed)?;
    registry.delete(&format!("{NODES}{name}"), Expected::Revision(revision)).map_err(failed)?;
    // What was issued meanwhile: who issues looks for the node's record after it has written it
    // down.
    issued::revoke_all(registry, name, None)
}

pub(super) fn serial_of(chain_pem: &str) -> Result<String, Problem> {
    trust::peer_of_pem(chain_pem).map(|peer| peer.serial.to_string()).map_err(failed)
}

/// Makes this machine a node of the cluster that the token is of.
pub(crate) async fn join(state_dir: PathBuf, request: JoinRequest) -> Result<String, Problem> {
    let token = Token::parse(&request.token)?;
    let at: SocketAddr = with_port(&request.at)?;
    let address = request.address.as_deref().map(with_port).transpose()?;
    super::name::check(&request.name)?;
    let own =
        Request::new(&request.name).map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
    let (cpus, memory_bytes) = resources();
    let knock = Knock {
        id: token.id,
        secret: token.secret,
        name: request.name.clone(),
        address,
        request_pem: own.pem().map_err(failed)?,
        release: RELEASE.into(),
        labels: request.labels,
        cpus,
        memory_bytes,
        insecure_etcd: Some(request.insecure_etcd),
    };
    let answer = call::ask_as_joiner(at, token.authority, JOIN_PATH, &knock).await?;
    let welcome: Welcome = serde_json::from_slice(&answer)
        .map_err(|error| failed(format!("the node at {at} answers what is not understood: {error}")))?;
    blocking(move || {
        let identity = Identity::from_pem(&(own.key_pem() + &welcome.chain_pem), &welcome.trusted_pem)
            .map_err(failed)?;
        // A node of an earlier release does not look before it lets anybody in.
        if let Some(why) = welcome.etcd.unprotected().filter(|_| !request.insecure_etcd) {
            return Err(Problem::new(
                Code::Refused,
                format!("this machine is known to the cluster now, but {why}"),
            )
            .help(format!("`tombolo node remove {}` at another node; {INSECURE_HELP}", request.name)));
        }
        let settings = EtcdConfig { insecure: welcome.etcd.unprotected().is_some(), ..welcome.etcd };
        let etcd = Etcd::new(settings.settings(&identity)).map_err(failed)?;
        etcd.check().map_err(|error| {
            failed(format!("this machine is known to the cluster now, but can't reach its registry: {error}"))
                .help(format!(
                    "make that possible, `tombolo node remove {}` at another node, and join again",
                    request.name
                ))
        })?;
        let authority =
            welcome.authority_pem.as_deref().map(Authority::from_pem).transpose().map_err(failed)?;
        settle(
            &state_dir,
            &identity,
            authority.as_ref(),
            &Config::new(welcome.address, settings, welcome.number),
        )?;
        Ok(format!("this machine is node {} of cluster {}", identity.node(), identity.cluster()))
    })
    .await
}

/// Writes down that this machine is a node; the last file makes it one.
pub(super) fn settle(
    state_dir: &std::path::Path,
    identity: &Identity,
    authority: Option<&Authority>,
    config: &Config,
) -> Result<(), Problem> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = trust_folder(state_dir);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| failed(format!("can't make {}: {error}", folder.display())))?;
    // What an earlier membership left.
    Identity::forget(&folder).map_err(failed)?;
    super::remembered::forget(state_dir).map_err(failed)?;
    if let Some(authority) = authority {
        authority.store(&folder).map_err(failed)?;
    }
    identity.store(&folder).map_err(failed)?;
    Ok(config.store(state_dir)?)
}

/// An address, with the usual port where none is said.
pub(super) fn with_port(text: &str) -> Result<SocketAddr, Problem> {
    let bare = text.trim_matches(['[', ']']).parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PEER_PORT));
    text.parse().or(bare).map_err(|_| {
        Problem::new(Code::BadRequest, format!("{text:?} is no address as 10.0.0.1 or 10.0.0.1:{PEER_PORT}"))
    })
}
