//! Domains' desired topologies, those in effect, and a handle of each.

use super::supervisor::Supervised;
use super::{Changes, Events, Levels};
use crate::base::{KEPT, RegistryDebug, meant};
use crate::broker::{Broker, Kept, Numbers};
use crate::reservations::Promises;
use crate::secrets::Secrets;
use crate::volumes::Volumes;
use admin::place::Place;
use admin::{Code, Problem};
use registry::{Expected, RegistryError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use topology::{Name, Step, Topology};

/// Format of [`Desired`] in the registry.
const DESIRED_FORMAT: u32 = 1;
/// Prefix of the registry's keys for desired topologies.
const DESIRED: &str = "desired/";
/// Prefix of the registry's keys for what became of domains.
const ACTUAL: &str = "actual/";

/// Why the domains of a node can't be known.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The registry holds a topology that this version can't read. Its domains are left alone.
    #[error(
        "the registry {} holds {key}, which this version can't read ({why}); start the version that wrote it, or move the \
         registry away to begin with an empty one: what it says is up is ended then", path.display()
    )]
    Desired {
        /// The registry's path.
        path: PathBuf,
        /// The key.
        key: String,
        /// Why not.
        why: String,
    },
    /// The registry can't be read.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Endpoints would get numbers that others have.
    #[error("can't keep the numbers of endpoints in the registry: {0}")]
    Numbers(std::io::Error),
}

/// The foundations of domains: handed in as the node is put together.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) place: Place,
    pub(crate) layout: domain::Layout,
    pub(crate) cgroups: domain::Cgroups,
    pub(crate) registry: Arc<dyn RegistryDebug>,
    pub(crate) broker: Broker,
    /// The book of promises.
    pub(crate) book: Arc<dyn Promises>,
    /// Virtual disks that outlive domains.
    pub(crate) volumes: Arc<dyn Volumes>,
    /// Values that domains are given at their start beside it.
    pub(crate) secrets: Arc<Secrets>,
    /// The capabilities of this machine.
    pub(crate) host: serde_json::Value,
}

/// All domains of this node.
#[derive(Debug)]
pub(crate) struct Domains {
    pub(super) place: Place,
    pub(super) layout: domain::Layout,
    pub(super) cgroups: domain::Cgroups,
    pub(super) broker: Broker,
    /// The book of promises.
    pub(super) book: Arc<dyn Promises>,
    /// Virtual disks that outlive domains.
    pub(super) volumes: Arc<dyn Volumes>,
    pub(super) secrets: Arc<Secrets>,
    pub(super) host: serde_json::Value,
    /// Whether KVM works, and why not; found out when the first machine wants to know.
    pub(super) kvm: OnceLock<Result<(), String>>,
    /// The changes under way: `up` and `down` have their turn.
    pub(crate) changes: Arc<Changes>,
    /// The events so far.
    pub(crate) events: Arc<Events>,
    /// To which level of quality each domain is to keep.
    pub(crate) levels: Levels,
    /// The targets of services' files, as frontends found them.
    pub(crate) targets: super::targets::Board,
    /// Whether the desired state is a cluster's.
    in_cluster: AtomicBool,
    registry: Arc<dyn RegistryDebug>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The desired topologies, as the registry holds them.
    desired: BTreeMap<String, Known>,
    /// The topologies in effect: step by step, a change leads from one desired topology to the
    /// next.
    current: BTreeMap<String, Arc<Topology>>,
    domains: BTreeMap<(String, String), Arc<Supervised>>,
}

/// A topology as it was admitted, as the registry keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Desired {
    format: u32,
    /// The text of the file.
    pub(crate) text: String,
    /// Its name.
    pub(crate) file: PathBuf,
    /// The folder from which its relative paths start.
    pub(crate) base: PathBuf,
    /// The topology as it was admitted.
    pub(crate) topology: Topology,
}

impl Desired {
    pub(crate) fn new(text: String, file: PathBuf, base: PathBuf, topology: Topology) -> Self {
        Self { format: DESIRED_FORMAT, text, file, base, topology }
    }
}

/// The state of a domain so far: its next supervisor goes on from it after a daemon's death.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Actual {
    /// How often its restart policy started it again.
    pub(crate) restarts: u64,
    /// How often its frontend was replaced.
    pub(crate) frontend_restarts: u64,
    /// How it ended last.
    pub(crate) last_exit: Option<domain::Exit>,
    /// The backoff, which decides about its next restart.
    pub(crate) backoff: topology::Backoff,
    /// Somebody stopped it, and nobody has started it since.
    #[serde(default)]
    pub(crate) stopped: bool,
}

/// A desired topology and its revision in the registry.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) desired: Arc<Desired>,
    pub(crate) revision: u64,
}

impl Domains {
    pub(crate) fn new(ground: Ground) -> Self {
        let Ground { place, layout, cgroups, registry, broker, book, volumes, secrets, host } = ground;
        Self {
            place,
            layout,
            cgroups,
            broker,
            book,
            volumes,
            secrets,
            host,
            kvm: OnceLock::new(),
            changes: Arc::default(),
            events: Arc::default(),
            levels: Levels::default(),
            targets: super::targets::Board::default(),
            in_cluster: AtomicBool::new(false),
            registry,
            inner: Mutex::default(),
        }
    }

    /// From now on what is desired is a cluster's. Before anything is adopted.
    pub(crate) fn join_cluster(&self) {
        self.in_cluster.store(true, Ordering::Relaxed);
    }

    /// Keeps all changes waiting: for what they are decided by.
    pub(crate) async fn changing(&self) -> tokio::sync::OwnedRwLockWriteGuard<()> {
        self.changes.alone().await
    }

    /// The cgroup of all domains of this node.
    pub(crate) fn cgroup(&self) -> &str {
        &self.layout.cgroup_name
    }

    /// Where monitors look for what they are told.
    pub(crate) fn run_dir(&self) -> &std::path::Path {
        &self.place.run_dir
    }

    /// Whether KVM works here, and why not, as far as somebody has wanted to know.
    pub(crate) fn kvm(&self) -> Option<&Result<(), String>> {
        self.kvm.get()
    }

    /// Whether there is a domain of this name, `DC/DOMAIN`, on whichever node it is.
    pub(crate) fn is_in_a_file(&self, name: &str) -> bool {
        let Some((dc, domain)) = name.split_once('/') else { return false };
        let of_it =
            |topology: Arc<Topology>| topology.domains.iter().any(|other| other.name.as_str() == domain);
        self.topology(dc).is_some_and(of_it)
    }

    /// Whether what is desired is a cluster's.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.in_cluster.load(Ordering::Relaxed)
    }

    /// Whether a domain ends by itself when this node is cut off.
    pub(crate) fn is_held(&self, domain: &topology::Domain) -> bool {
        domain.restart.elsewhere && self.is_in_cluster()
    }

    /// Keeps a copy of what a cluster desires where a daemon finds it that can't reach the cluster.
    /// Takes as long as a disk does.
    pub(crate) fn mirror_desired(&self, dc: &str, desired: Option<&Desired>) {
        let key = format!("{DESIRED}{dc}");
        let done = match desired.map(serde_json::to_vec) {
            None => self.registry.delete(&key, Expected::Anything).map(drop).map_err(|e| e.to_string()),
            Some(Ok(value)) => {
                self.registry.put(&key, &value, Expected::Anything).map(drop).map_err(|e| e.to_string())
            }
            Some(Err(error)) => Err(error.to_string()),
        };
        if let Err(error) = done {
            tracing::error!(dc, error, "no copy of what the cluster desires can be kept on this node");
        }
    }

    /// Remembers what a cluster desires of a distributed container, without putting it into effect.
    pub(crate) fn follow_desired(&self, dc: &str, known: Option<Known>) {
        let mut inner = self.lock();
        match known {
            Some(known) => inner.desired.insert(dc.to_owned(), known),
            None => inner.desired.remove(dc),
        };
    }

    /// Every domain that has a supervisor.
    pub(crate) fn all_supervised(&self) -> Vec<Arc<Supervised>> {
        self.lock().domains.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the desired topologies from the registry. `number`: this node's number in its cluster,
    /// 0 outside of one.
    ///
    /// # Errors
    /// Also where one can't be read: to go on without it would be to end its domains.
    pub(crate) fn load(&self, number: u32) -> Result<(), LoadError> {
        // Before there is a topology that has endpoints.
        let kept = Kept(Arc::clone(&self.registry));
        self.broker.keep_numbers(Numbers::open(Box::new(kept), number).map_err(LoadError::Numbers)?);
        for (key, entry) in self.registry.list(DESIRED)? {
            let desired = match serde_json::from_slice::<Desired>(&entry.value) {
                Ok(desired) if desired.format == DESIRED_FORMAT => Ok(desired),
                Ok(desired) => Err(format!("its format is {}, not {DESIRED_FORMAT}", desired.format)),
                Err(error) => Err(error.to_string()),
            };
            let path = self.place.registry();
            let desired = desired.map_err(|why| LoadError::Desired { path, key, why })?;
            let dc = desired.topology.name.as_str().to_owned();
            self.remember(&dc, Some((Arc::new(desired), entry.revision)));
        }
        Ok(())
    }

    /// Returns the registry of this node. Its calls wait for the disk.
    pub(crate) fn registry(&self) -> Arc<dyn RegistryDebug> {
        Arc::clone(&self.registry)
    }

    /// Sets, or with `None` forgets, what is desired of a distributed container, durably.
    pub(crate) async fn set_desired(&self, dc: &str, desired: Option<Arc<Desired>>) -> Result<(), Problem> {
        let expected = self.known(dc).map_or(Expected::Absent, |known| Expected::Revision(known.revision));
        let (registry, key, of) = (Arc::clone(&self.registry), format!("{DESIRED}{dc}"), desired.clone());
        let write = move || match of {
            None => registry.delete(&key, expected).map(|_| 0).map_err(|error| error.to_string()),
            Some(desired) => {
                let value = serde_json::to_vec(&*desired).map_err(|error| error.to_string())?;
                registry.put(&key, &value, expected).map_err(|error| error.to_string())
            }
        };
        let written = KEPT.run(write).await.and_then(|written| written);
        let revision = written.map_err(|why| {
            Problem::new(Code::Failed, why).help(format!(
                "the registry is {}; is there room on its disk?",
                self.place.registry().display()
            ))
        })?;
        self.remember(dc, desired.map(|desired| (desired, revision)));
        Ok(())
    }

    /// Returns the written state of a domain, if there is any. A state that can't be read is worth
    /// a line, and no more.
    pub(crate) fn actual(&self, dc: &str, domain: &str) -> Option<Actual> {
        let entry = match self.registry.get(&format!("{ACTUAL}{dc}/{domain}")) {
            Ok(entry) => entry?,
            Err(error) => {
                tracing::error!(dc, domain, %error, "what became of it can't be read");
                return None;
            }
        };
        serde_json::from_slice(&entry.value)
            .inspect_err(|error| tracing::warn!(dc, domain, %error, "what became of it is not understood"))
            .ok()
    }

    /// Writes down what became of a domain, or with `None` forgets it. Takes as long as a disk
    /// does.
    pub(crate) fn set_actual(&self, dc: &str, domain: &str, actual: Option<&Actual>) {
        let key = format!("{ACTUAL}{dc}/{domain}");
        let done = match actual.map(serde_json::to_vec) {
            None => self.registry.delete(&key, Expected::Anything).map(drop),
            Some(Ok(value)) => self.registry.put(&key, &value, Expected::Anything).map(drop),
            Some(Err(error)) => {
                tracing::error!(dc, domain, %error, "what became of it can't be written down");
                return;
            }
        };
        if let Err(error) = done {
            // Only counters are lost, and only if the daemon dies, too.
            tracing::error!(dc, domain, %error, "what became of it can't be written down");
        }
    }

    fn remember(&self, dc: &str, desired: Option<(Arc<Desired>, u64)>) {
        let Some((desired, revision)) = desired else {
            self.lock().desired.remove(dc);
            return;
        };
        let topology = Arc::new(desired.topology.clone());
        self.set_current(dc, Some(topology));
        self.lock().desired.insert(dc.to_owned(), Known { desired, revision });
    }

    pub(crate) fn set_current(&self, dc: &str, topology: Option<Arc<Topology>>) {
        self.broker.set_topology(dc, topology.clone());
        let mut inner = self.lock();
        match topology {
            Some(topology) => inner.current.insert(dc.to_owned(), topology),
            None => inner.current.remove(dc),
        };
        drop(inner);
        // Where its domains are is asked of this node, which knows it only now.
        self.broker.placement_changed();
    }

    /// Puts one step of a change into effect, as far as it is a matter of books.
    pub(crate) fn apply(&self, dc: &str, step: &Step) {
        let Ok(name) = Name::parse(dc) else { return };
        let mut topology =
            self.topology(dc).map_or_else(|| Topology::empty(name), |topology| (*topology).clone());
        step.apply(&mut topology);
        self.set_current(dc, Some(Arc::new(topology)));
    }

    /// Forgets a distributed container of which nothing is left and nothing is desired.
    pub(crate) fn forget_current_if_unwanted(&self, dc: &str) {
        let empty = self.topology(dc).is_none_or(|t| t.domains.is_empty() && t.services.is_empty());
        if empty && self.known(dc).is_none() {
            self.set_current(dc, None);
        }
    }

    /// Returns the topology of a distributed container that is in effect.
    pub(crate) fn topology(&self, dc: &str) -> Option<Arc<Topology>> {
        self.lock().current.get(dc).cloned()
    }

    /// All distributed containers and what is in effect of them.
    pub(crate) fn topologies(&self) -> Vec<(String, Arc<Topology>)> {
        self.lock().current.iter().map(|(dc, topology)| (dc.clone(), Arc::clone(topology))).collect()
    }

    /// The names of all distributed containers.
    pub(crate) fn dcs(&self) -> Vec<String> {
        self.lock().current.keys().cloned().collect()
    }

    /// Removes what a distributed container leaves when all its domains are gone: empty folders,
    /// its logs.
    pub(crate) fn remove_traces(&self, dc: &str) {
        let logs = self.place.state_dir.join("logs").join(dc);
        let folder = self.layout.domains().join(dc);
        let handover = super::handover::folder(&self.layout, dc);
        for (path, removed) in [
            (&logs, std::fs::remove_dir_all(&logs)),
            (&handover, std::fs::remove_dir_all(&handover)),
            (&folder, std::fs::remove_dir(&folder)),
        ] {
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "can't remove what is left");
                }
                _ => {}
            }
        }
        self.cgroups.remove_if_empty(&format!("{}/{dc}", self.layout.cgroup_name));
        self.cgroups.remove_if_empty(&self.layout.cgroup_name);
    }

    pub(crate) fn known(&self, dc: &str) -> Option<Known> {
        self.lock().desired.get(dc).cloned()
    }

    pub(crate) fn supervised(&self, dc: &str, domain: &str) -> Option<Arc<Supervised>> {
        self.lock().domains.get(&(dc.to_owned(), domain.to_owned())).cloned()
    }

    pub(crate) fn add_supervised(&self, supervised: Arc<Supervised>) {
        let key = (supervised.dc.clone(), supervised.name.clone());
        self.lock().domains.insert(key, supervised);
    }

    pub(crate) fn remove_supervised(&self, dc: &str, domain: &str) {
        self.lock().domains.remove(&(dc.to_owned(), domain.to_owned()));
    }

    /// The one distributed container that `which` means: its name, or the only one.
    pub(crate) fn find_dc(&self, which: Option<&str>) -> Result<String, Problem> {
        let names = self.dcs();
        match (which, names.as_slice()) {
            (Some(name), names) if names.iter().any(|known| known == name) => Ok(name.to_owned()),
            (Some(name), names) => {
                Err(Problem::new(Code::UnknownDc, format!("there is no distributed container {name:?}"))
                    .help(meant(name, names, "distributed containers")))
            }
            (None, [only]) => Ok(only.clone()),
            (None, []) => {
                Err(Problem::new(Code::UnknownDc, "there is no distributed container on this node")
                    .help("`tombolo up FILE` makes one"))
            }
            (None, names) => Err(Problem::new(Code::Ambiguous, "there are several distributed containers")
                .help(format!("name one of: {}", names.join(", ")))),
        }
    }

    /// The domain that `NAME` or `DC/NAME` means.
    pub(crate) fn find_domain(&self, which: &str) -> Result<(String, String), Problem> {
        let all =
            self.names(|topology| topology.domains.iter().map(|d| d.name.as_str().to_owned()).collect());
        find(which, &all, "domain", Code::UnknownDomain)
    }

    /// The service that `NAME` or `DC/NAME` means.
    pub(crate) fn find_service(&self, which: &str) -> Result<(String, String), Problem> {
        let all =
            self.names(|topology| topology.services.iter().map(|s| s.name.as_str().to_owned()).collect());
        find(which, &all, "service", Code::UnknownService)
    }

    /// The endpoint that `NAME`, `SLOT.GENERATION` or either with `DC/` before it means.
    pub(crate) fn find_endpoint(&self, which: &str) -> Result<(String, String), Problem> {
        let keys = self.dcs().into_iter().flat_map(|dc| {
            let keys = self.broker.endpoint_keys(&dc);
            keys.into_iter().map(move |key| (dc.clone(), key))
        });
        find(which, &keys.collect::<Vec<_>>(), "endpoint", Code::UnknownEndpoint)
    }

    fn names(&self, of: impl Fn(&Topology) -> Vec<String>) -> Vec<(String, String)> {
        let known = self.topologies().into_iter();
        known
            .flat_map(|(dc, topology)| of(&topology).into_iter().map(move |name| (dc.clone(), name)))
            .collect()
    }

    /// Refuses a domain that does not run now.
    pub(crate) fn must_run(&self, dc: &str, domain: &str) -> Result<(), Problem> {
        let view = self.supervised(dc, domain).map(|supervised| supervised.view());
        if view.as_ref().is_some_and(|view| view.state.runs()) {
            return Ok(());
        }
        let state = view.map_or("not started", |view| view.state.as_str());
        Err(Problem::new(
            Code::NotRunning,
            format!("domain {dc}/{domain} does not run now (its state: {state})"),
        )
        .help(format!("see `tombolo ps` and `tombolo logs {domain}`")))
    }
}

fn find(
    which: &str,
    all: &[(String, String)],
    what: &str,
    unknown: Code,
) -> Result<(String, String), Problem> {
    let wanted = which.split_once('/');
    let fits = |(dc, name): &&(String, String)| match wanted {
        Some((wanted_dc, wanted_name)) => dc == wanted_dc && name == wanted_name,
        None => name == which,
    };
    let found: Vec<_> = all.iter().filter(fits).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let names: Vec<String> = match wanted {
                Some(_) => all.iter().map(|(dc, name)| format!("{dc}/{name}")).collect(),
                None => all.iter().map(|(_, name)| name.clone()).collect(),
            };
            Err(Problem::new(unknown, format!("there is no {what} {which:?}")).help(meant(
                which,
                &names,
                &format!("{what}s"),
            )))
        }
        several => {
            let names: Vec<_> = several.iter().map(|(dc, name)| format!("{dc}/{name}")).collect();
            Err(Problem::new(
                Code::Ambiguous,
                format!("several distributed containers have a {what} {which:?}"),
            )
            .help(format!("say which: {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<(String, String)> {
        [("shop", "web"), ("shop", "robot"), ("lab", "web")].map(|(dc, d)| (dc.into(), d.into())).into()
    }

    #[test]
    fn a_name_finds_its_domain_or_says_what_was_meant() {
        let find = |which| find(which, &all(), "domain", Code::UnknownDomain);
        assert_eq!(find("robot").unwrap(), ("shop".into(), "robot".into()));
        assert_eq!(find("lab/web").unwrap(), ("lab".into(), "web".into()));
        assert_eq!(find("web").unwrap_err().help.unwrap(), "say which: shop/web, lab/web");
        assert_eq!(find("robto").unwrap_err().help.unwrap(), "did you mean \"robot\"?");
        assert_eq!(find("lab/robot").unwrap_err().code, Code::UnknownDomain);
        assert!(find("x/y/z").unwrap_err().help.unwrap().contains("shop/web"));
    }
}
