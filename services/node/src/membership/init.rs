//! The first node of a cluster: its authority, and its registry moved into etcd, all of it or
//! nothing.

use super::authority::Record;
use super::config::{Config, Etcd as EtcdConfig};
use super::issued::Purpose;
use super::join::{enter, settle, with_port};
use super::release::RELEASE;
use super::{AUTHORITY, NodeRecord, blocking, failed, own_etcd, resources, to_json, unix_s};
use crate::base::RegistryDebug;
use crate::etcd::Ground;
use admin::{Code, InitRequest, Problem};
use registry::{DEFAULT_PREFIX, Etcd, Expected, Registry, RegistryError};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use trust::{Authority, Identity};

/// The keys of a single node's registry that are everybody's in a cluster; the rest is about this
/// machine, and stays.
const MOVED: [&str; 2] = [TOPOLOGIES, "secrets/"];
/// The ones that are counted for whoever asked.
const TOPOLOGIES: &str = "desired/";

/// Makes this machine the first node of a new cluster: on an etcd that is there, or on one of its
/// own, on this `ground`.
pub(crate) async fn init(
    state_dir: PathBuf,
    own: Arc<dyn RegistryDebug>,
    ground: Arc<Ground>,
    request: InitRequest,
) -> Result<String, Problem> {
    let address = with_port(&request.address)?;
    let mut etcd_config = EtcdConfig {
        own: request.etcd.is_empty(),
        endpoints: request.etcd,
        prefix: request.prefix.unwrap_or_else(|| DEFAULT_PREFIX.into()),
        authority_pem: request.etcd_authority_pem,
        certificate_pem: request.etcd_certificate_pem,
        key_pem: request.etcd_key_pem,
        insecure: false,
    };
    etcd_config.insecure = request.insecure_etcd && etcd_config.unprotected().is_some();
    if !etcd_config.prefix.ends_with('/') || etcd_config.prefix.len() > 128 {
        return Err(Problem::new(Code::BadRequest, "a prefix ends with / and has 128 bytes at the most"));
    }
    if etcd_config.own && etcd_config.authority_pem.is_some() {
        return Err(Problem::new(Code::BadRequest, "certificates of an etcd are given without the etcd")
            .help("say where it is (--etcd), or leave both away: the cluster brings up its own"));
    }
    super::name::check(&request.name)?;
    let bad = |error: trust::TrustError| Problem::new(Code::BadRequest, error.to_string());
    let now = SystemTime::now();
    let authority = Authority::new(&request.cluster, now).map_err(bad)?;
    let identity = authority.identity(&request.name, now).map_err(bad)?;
    let (mut keeper, mut member_pem) = (None, None);
    let etcd = if etcd_config.own {
        let (kept, etcd, certificate_pem) =
            own_etcd::begin(&ground, &authority, &identity, address, &etcd_config.prefix).await?;
        etcd_config.endpoints = etcd.settings().endpoints;
        (keeper, member_pem) = (Some(kept), Some(certificate_pem));
        etcd
    } else {
        let etcd = Etcd::new(etcd_config.settings(&identity)).map_err(failed)?;
        etcd_config.check()?;
        etcd
    };
    let begun = Begun { state_dir, authority, identity, member_pem, address, labels: request.labels };
    let done = blocking(move || begun.move_into(&etcd, own.as_ref(), etcd_config)).await;
    if let (Err(_), Some(keeper)) = (&done, &keeper) {
        own_etcd::end(keeper).await;
    }
    done
}

/// A cluster that begins.
struct Begun {
    state_dir: PathBuf,
    authority: Authority,
    identity: Identity,
    /// The certificate of the member of its own etcd, if it has one.
    member_pem: Option<String>,
    address: SocketAddr,
    labels: BTreeMap<String, String>,
}

impl Begun {
    /// Moves what is everybody's into etcd, and writes down that this machine is a node: all of it,
    /// or it is none.
    fn move_into(self, etcd: &Etcd, own: &dyn Registry, etcd_config: EtcdConfig) -> Result<String, Problem> {
        let Self { state_dir, authority, identity, member_pem, address, labels } = self;
        let cluster = identity.cluster().to_owned();
        etcd.check().map_err(failed)?;
        // What an attempt left that did not come to its end.
        etcd.clear_unless(AUTHORITY).map_err(|error| match error {
            RegistryError::Conflict { .. } => {
                Problem::new(Code::Taken, "a cluster stands on that etcd already, below that prefix")
                    .help("join it (`tombolo node join`), or begin another with --prefix")
            }
            error => failed(error),
        })?;
        let moved = copy(own, etcd)?;
        let (cpus, memory_bytes) = resources();
        enter(
            etcd,
            &NodeRecord {
                name: identity.node().to_owned(),
                address,
                locators: Vec::new(),
                labels,
                cpus,
                memory_bytes,
                joined_unix_s: unix_s(),
                serial: identity.serial().to_string(),
                version: RELEASE.into(),
                number: Some(0),
            },
        )?;
        for pem in std::iter::once(identity.chain_pem()).chain(member_pem) {
            super::issued::note(etcd, identity.node(), &pem, Purpose::Renewal)?;
        }
        // From here on there is a cluster.
        let certificate_pem = authority.certificate_pem();
        let record = Record { cluster: cluster.clone(), certificate_pem, successors: Vec::new() };
        etcd.put(AUTHORITY, &to_json(&record)?, Expected::Absent).map_err(failed)?;
        finish(&state_dir, etcd, &authority, &identity, &Config::new(address, etcd_config, Some(0)))?;
        let what = if moved == 1 { "topology" } else { "topologies" };
        Ok(format!(
            "this machine is node {} of the new cluster {cluster}; {moved} {what} moved into etcd",
            identity.node()
        ))
    }
}

/// Copies what becomes everybody's, and looks whether it has arrived. Returns how many topologies.
fn copy(own: &dyn Registry, etcd: &Etcd) -> Result<usize, Problem> {
    let mut copied = 0;
    for prefix in MOVED {
        let entries = own.list(prefix).map_err(failed)?;
        for (key, entry) in &entries {
            etcd.put(key, &entry.value, Expected::Absent).map_err(failed)?;
        }
        let there = etcd.list(prefix).map_err(failed)?;
        let same = there.len() == entries.len()
            && there.iter().zip(&entries).all(|((a, one), (b, other))| a == b && one.value == other.value);
        if !same {
            return Err(failed(format!(
                "what was copied below {prefix} is not what is there: somebody else writes into that etcd"
            )));
        }
        copied += if prefix == TOPOLOGIES { entries.len() } else { 0 };
    }
    Ok(copied)
}

/// Writes it down here; where that fails, there is no cluster after all.
fn finish(
    state_dir: &Path,
    etcd: &Etcd,
    authority: &Authority,
    identity: &Identity,
    config: &Config,
) -> Result<(), Problem> {
    let Err(problem) = settle(state_dir, identity, Some(authority), config) else { return Ok(()) };
    match etcd.delete(AUTHORITY, Expected::Anything) {
        Ok(_) => Err(problem),
        Err(error) => Err(problem.help(format!("and what was begun in etcd is left there: {error}"))),
    }
}
