//! The configuration of a node in its cluster, beside its identity: where etcd is, and where it
//! listens.

use super::ClusterError;
use admin::{Code, Problem};
use registry::{EtcdSettings, EtcdTls};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use trust::Identity;

/// Format of the file.
const FORMAT: u32 = 1;

/// `STATE/cluster.json`: with it a node belongs to a cluster. It holds a key where etcd wants a
/// certificate, so only root reads it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    format: u32,
    /// Where this node listens for others.
    pub(crate) address: SocketAddr,
    pub(crate) etcd: Etcd,
    /// This node's number, which is above the slots of its endpoints. None: a release joined that
    /// knew of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<u32>,
}

/// Where etcd is, as it is kept and as a joiner is told.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Etcd {
    pub(crate) endpoints: Vec<String>,
    pub(crate) prefix: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) authority_pem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate_pem: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_pem: Option<String>,
    /// It is the cluster's own: nodes show it who they are, and it is of the cluster's authority.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) own: bool,
    /// Somebody said that it is meant to let everybody in who reaches it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) insecure: bool,
}

/// Releases of before know nothing of it, and are told nothing.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config").field("address", &self.address).field("etcd", &self.etcd).finish()
    }
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

impl Etcd {
    /// Why strangers may write into it; `None`: they can't.
    pub(crate) fn unprotected(&self) -> Option<String> {
        if self.own {
            None
        } else {
            crate::etcd::unprotected(&self.endpoints, self.certificate_pem.is_some())
        }
    }

    /// As [`Etcd::unprotected`], where nobody said that it is meant.
    pub(crate) fn unsaid(&self) -> Option<String> {
        self.unprotected().filter(|_| !self.insecure)
    }

    /// Refuses what strangers may write into, unless it is meant.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        match self.unsaid() {
            None => Ok(()),
            Some(why) => Err(Problem::new(Code::Refused, why).help(crate::etcd::ADVICE)),
        }
    }

    /// How the node that has this identity reaches it.
    pub(crate) fn settings(&self, identity: &Identity) -> EtcdSettings {
        if self.own {
            return super::own_etcd::settings(
                &self.endpoints,
                &self.prefix,
                identity,
                &identity.trusted_pem(),
            );
        }
        let tls = self.authority_pem.clone().map(|authority_pem| EtcdTls {
            authority_pem,
            own_pem: self.certificate_pem.clone().zip(self.key_pem.clone()),
        });
        EtcdSettings { endpoints: self.endpoints.clone(), prefix: self.prefix.clone(), tls }
    }
}

impl Config {
    pub(crate) fn new(address: SocketAddr, etcd: Etcd, number: Option<u32>) -> Self {
        Self { format: FORMAT, address, etcd, number }
    }

    pub(crate) fn path(state_dir: &Path) -> PathBuf {
        state_dir.join("cluster.json")
    }

    pub(crate) fn load(state_dir: &Path) -> Result<Option<Self>, ClusterError> {
        let path = Self::path(state_dir);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|cause| ClusterError::File { what: "read", path: path.clone(), cause })?,
        };
        let config: Result<Self, _> = serde_json::from_slice(&text);
        match config {
            Ok(config) if config.format == FORMAT => Ok(Some(config)),
            Ok(config) => {
                let why = format!("its format is {}, and this version reads {FORMAT}", config.format);
                Err(ClusterError::Config { path, why })
            }
            Err(error) => Err(ClusterError::Config { path, why: error.to_string() }),
        }
    }

    /// Writes it whole or not at all.
    pub(crate) fn store(&self, state_dir: &Path) -> Result<(), ClusterError> {
        let path = Self::path(state_dir);
        let new = path.with_extension("new");
        let written = (|| {
            match fs::remove_file(&new) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = File::options().create_new(true).write(true).mode(0o600).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self).map_err(io::Error::other)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(state_dir)?.sync_all()
        })();
        written.map_err(|cause| ClusterError::File { what: "write", path, cause })
    }
}
