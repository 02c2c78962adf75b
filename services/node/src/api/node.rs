//! One node: its rooms, put together.

use super::remote::{Commands, Readers, Trees};
use crate::adaptations::Adaptations;
use crate::base::RegistryDebug;
use crate::broker::{Broker, make_channel};
use crate::coordination::StateKeeper;
use crate::domains::{Domains, Ground};
use crate::etcd;
use crate::links::Proxies;
use crate::membership::Cluster;
use crate::placement::Following;
use crate::reservations::{Book, BookError, Promises};
use crate::secrets::Secrets;
use crate::volumes::{self, Volumes};
use admin::place::Place;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) layout: domain::Layout,
    pub(crate) cgroups: domain::Cgroups,
    pub(crate) registry: Arc<dyn RegistryDebug>,
    /// The abilities of this machine.
    pub(crate) host: serde_json::Value,
    pub(crate) domains: Arc<Domains>,
    pub(crate) broker: Broker,
    /// The reservation table.
    pub(crate) book: Arc<Book>,
    /// The adaptations, which move promises while domains run.
    pub(crate) adaptations: Arc<Adaptations>,
    /// Virtual disks that outlive domains.
    pub(crate) volumes: Arc<volumes::Keeper>,
    /// Secrets of distributed containers.
    pub(crate) secrets: Arc<Secrets>,
    pub(crate) started: Instant,
    /// Commands of callers on other nodes, readers of logs there, and clients of 9P.
    pub(crate) remote: (Commands, Readers, Trees),
    /// Links to other nodes, where there are any.
    pub(crate) proxies: OnceLock<Arc<Proxies>>,
    /// Its member of the cluster's own etcd, kept where the cluster has one.
    pub(crate) etcd: OnceLock<Arc<etcd::Keeper>>,
    /// The cluster that this node belongs to, if it does.
    pub(crate) cluster: Option<Cluster>,
    /// The daemon is to start anew: it has become part of a cluster.
    pub(crate) again: tokio::sync::Notify,
    /// Its part in a cluster, where it is in one.
    following: OnceLock<Arc<Following>>,
}

impl Node {
    /// Puts a node together over what it stands on. Nothing is read or begun yet.
    ///
    /// # Errors
    /// Where the earlier promises can't be read.
    pub(crate) fn new(
        place: Place,
        layout: domain::Layout,
        cgroups: domain::Cgroups,
        registry: Arc<dyn RegistryDebug>,
        host: serde_json::Value,
        cluster: Option<Cluster>,
    ) -> Result<Self, BookError> {
        let book = Arc::new(Book::open(cgroups.clone(), &layout, Arc::clone(&registry))?);
        let broker = Broker::new(make_channel);
        let shared = cluster.as_ref().map_or_else(|| Arc::clone(&registry), Cluster::registry);
        broker.keep_state(StateKeeper::new(shared));
        let program = layout.program.clone();
        let volumes =
            volumes::Keeper::new(&place, program, cgroups.clone(), Arc::clone(&registry), cluster.clone());
        let volumes = Arc::new(volumes);
        let secrets = Arc::new(Secrets::new(&place.state_dir, Arc::clone(&registry), cluster.clone()));
        let domains = Domains::new(Ground {
            place: place.clone(),
            layout: layout.clone(),
            cgroups: cgroups.clone(),
            registry: Arc::clone(&registry),
            broker: broker.clone(),
            book: Arc::clone(&book) as Arc<dyn Promises>,
            volumes: Arc::clone(&volumes) as Arc<dyn Volumes>,
            secrets: Arc::clone(&secrets),
            host: host.clone(),
        });
        let domains = Arc::new(domains);
        let adaptations = Adaptations::new(Arc::clone(&book), Arc::clone(&domains), Arc::clone(&registry));
        Ok(Self {
            place,
            layout,
            cgroups,
            registry,
            host,
            domains,
            adaptations: Arc::new(adaptations),
            broker,
            book,
            volumes,
            secrets,
            started: Instant::now(),
            remote: Default::default(),
            proxies: OnceLock::new(),
            etcd: OnceLock::new(),
            cluster,
            again: tokio::sync::Notify::new(),
            following: OnceLock::new(),
        })
    }

    /// Returns the ground on which a member of an etcd is started.
    pub(crate) fn etcd_ground(&self) -> Arc<etcd::Ground> {
        Arc::new(etcd::Ground {
            state_dir: self.layout.state_dir.clone(),
            program: self.layout.program.clone(),
            cgroups: self.cgroups.clone(),
            cgroup_name: self.layout.cgroup_name.clone(),
        })
    }

    /// Its part in a cluster; `None`: it stands alone.
    pub(crate) fn following(&self) -> Option<&Arc<Following>> {
        self.following.get()
    }

    /// From now on this node follows what a cluster wants. Once, before anything is adopted.
    pub(crate) fn join(&self, following: Arc<Following>) {
        self.domains.join_cluster();
        if self.following.set(following).is_err() {
            tracing::error!("a node follows one cluster");
        }
    }
}
