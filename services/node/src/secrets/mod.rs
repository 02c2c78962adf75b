//! Secrets of distributed containers. The registry knows that there is one, and which value counts;
//! the values are files of nodes (`files`), which give them to each other over mutual TLS, and go
//! into memory of the domains that read them.

mod files;

use crate::base::{KEPT, Pool, REGISTRY, RegistryDebug, meant};
use crate::membership::Cluster;
use admin::secret::{SecretRow, SecretValue};
use admin::{Code, Problem};
use files::{Files, Id};
use hyper::Method;
use registry::{Expected, RegistryError};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use topology::bounds::SECRET_BYTES_MAX;
use topology::{Name, Topology, is_secret_name};

/// Where the registry has them: `secrets/DC/NAME`.
const KEYS: &str = "secrets/";
/// Where nodes ask each other for values: `PATH/DC/NAME/REVISION/ID`.
pub(crate) const PEER_PATH: &str = "/v1/here/secret";
/// Secrets of a node or a cluster.
const SECRETS_MAX: usize = 1024;
/// How often a secret is set anew that somebody else set at the same time.
const ATTEMPTS_MAX: usize = 8;

/// A secret, as the registry has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    revision: u64,
    /// Of the value that counts.
    id: Id,
    bytes: u64,
    at_ms: u64,
    /// The nodes that have it.
    #[serde(default)]
    nodes: Vec<String>,
}

/// A value on its way between two nodes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// The value itself.
    pub(crate) value: SecretValue,
}

/// One value of one secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    dc: String,
    secret: String,
    revision: u64,
    id: Id,
}

impl Place {
    /// The place that another node names.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn parse((dc, secret, revision, id): (&str, &str, u64, &str)) -> Result<Self, Problem> {
        checked(dc, secret)?;
        let id = Id::parse(id).ok_or_else(|| Problem::new(Code::BadRequest, "that is no id of a value"))?;
        Ok(Self { dc: dc.to_owned(), secret: secret.to_owned(), revision, id })
    }

    fn of(dc: &str, secret: &str, entry: &Entry) -> Self {
        let Entry { revision, id, .. } = entry;
        Self { dc: dc.to_owned(), secret: secret.to_owned(), revision: *revision, id: id.clone() }
    }

    fn path(&self) -> String {
        format!("{PEER_PATH}/{}/{}/{}/{}", self.dc, self.secret, self.revision, self.id)
    }
}

/// The secrets of a node, alone or in a cluster.
#[derive(Debug)]
pub(crate) struct Secrets {
    files: Arc<Files>,
    registry: Arc<dyn RegistryDebug>,
    cluster: Option<Cluster>,
}

impl Secrets {
    /// Those whose values lie below the state directory.
    pub(crate) fn new(state_dir: &Path, own: Arc<dyn RegistryDebug>, cluster: Option<Cluster>) -> Self {
        let registry = cluster.as_ref().map_or(own, Cluster::registry);
        Self { files: Arc::new(Files::new(state_dir.join("secrets"))), registry, cluster }
    }

    fn pool(&self) -> &'static Pool {
        if self.cluster.is_some() { &REGISTRY } else { &KEPT }
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn RegistryDebug) -> Result<T, RegistryError> + Send + 'static,
    ) -> Result<T, Problem> {
        let registry = Arc::clone(&self.registry);
        let read = self.pool().run(move || read(&*registry)).await.map_err(failed)?;
        read.map_err(|error| failed(format!("the registry: {error}")))
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let files = Arc::clone(&self.files);
        let done = KEPT.run(move || work(&files)).await.map_err(failed)?;
        done.map_err(|error| failed(format!("the files of secrets: {error}")))
    }

    /// All of them, without the domains that read them.
    ///
    /// # Errors
    /// The registry's.
    pub(crate) async fn rows(&self) -> Result<Vec<SecretRow>, Problem> {
        let row = |(dc, secret, entry): (String, String, Entry)| {
            let Entry { revision, bytes, at_ms, nodes, .. } = entry;
            SecretRow { dc, secret, revision, bytes, at_ms, nodes, domains: Vec::new() }
        };
        Ok(self.read(all).await?.into_iter().map(row).collect())
    }

    /// Says the value of a secret from now on. It is kept here and by all nodes that answer before
    /// it counts.
    ///
    /// # Errors
    /// The name or the value can't be a secret's; it can't be kept.
    pub(crate) async fn set(&self, dc: &str, secret: &str, value: SecretValue) -> Result<SecretRow, Problem> {
        checked(dc, secret)?;
        let bytes = value.0.len();
        if !(1..=SECRET_BYTES_MAX).contains(&bytes) {
            let message = format!("the value has {bytes} bytes, and a secret's has 1 to {SECRET_BYTES_MAX}");
            return Err(Problem::new(Code::BadRequest, message));
        }
        for _ in 0..ATTEMPTS_MAX {
            let Found { entry: before, expected, count } = self.read(found(dc, secret)).await?;
            if matches!(expected, Expected::Absent) && count >= SECRETS_MAX {
                return Err(failed(format!("there are {SECRETS_MAX} secrets already"))
                    .help("`tombolo secret ls` lists them, `tombolo secret rm DC/NAME` removes one"));
            }
            let revision = before.as_ref().map_or(0, |entry| entry.revision);
            let (of, to_keep) = ((dc.to_owned(), secret.to_owned()), value.clone());
            // Also above what a secret of this name had that was removed.
            let place = self.on_disk(move |files| files.add((&of.0, &of.1), revision, &to_keep.0)).await?;
            let nodes = self.hand_out(&place, &value).await;
            let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
            let entry = Entry {
                revision: place.revision,
                id: place.id,
                bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
                at_ms: u64::try_from(at_ms).unwrap_or(u64::MAX),
                nodes,
            };
            let (key, text) = (key(dc, secret), serde_json::to_vec(&entry).unwrap_or_default());
            let registry = Arc::clone(&self.registry);
            let put = move || registry.put(&key, &text, expected);
            match self.pool().run(put).await.map_err(failed)? {
                Err(RegistryError::Conflict { .. }) => continue,
                written => written.map_err(|error| failed(format!("the registry: {error}")))?,
            };
            if let Some(before) = before {
                self.drop_everywhere(Place::of(dc, secret, &before)).await;
            }
            self.sweep().await;
            let (dc, secret) = (dc.to_owned(), secret.to_owned());
            let Entry { revision, bytes, at_ms, nodes, .. } = entry;
            return Ok(SecretRow { dc, secret, revision, bytes, at_ms, nodes, domains: Vec::new() });
        }
        Err(Problem::new(
            Code::Taken,
            format!("{dc}/{secret} is set by others all the time; nothing was set"),
        ))
    }

    /// Gives a value to all other nodes that answer. Returns who has it, this one included.
    async fn hand_out(&self, place: &Place, value: &SecretValue) -> Vec<String> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let mut nodes = tell_all(cluster, Method::POST, place, &Carried { value: value.clone() }).await;
        nodes.push(cluster.me().to_owned());
        nodes.sort_unstable();
        nodes
    }

    /// Removes a value that counts no more, here and on all nodes that answer; the others do so
    /// when they sweep.
    async fn drop_everywhere(&self, place: Place) {
        if let Some(cluster) = &self.cluster {
            tell_all(cluster, Method::DELETE, &place, &()).await;
        }
        if let Err(problem) = self.forget(place).await {
            tracing::warn!(why = problem.message, "a value that counts no more stays for now");
        }
    }

    /// Another node says that a value counts no more.
    ///
    /// # Errors
    /// The registry still names it.
    pub(crate) async fn is_over(&self, place: Place) -> Result<(), Problem> {
        let named = self.read(found(&place.dc, &place.secret)).await?.entry;
        if named.is_some_and(|entry| entry.id == place.id) {
            return Err(Problem::new(Code::Refused, "that value counts"));
        }
        self.forget(place).await
    }

    /// Removes a value here.
    ///
    /// # Errors
    /// The disk's.
    async fn forget(&self, place: Place) -> Result<(), Problem> {
        self.on_disk(move |files| files.remove(&place)).await
    }

    /// Another node gives a value, which may count soon.
    ///
    /// # Errors
    /// It can't be kept.
    pub(crate) async fn take(&self, place: Place, value: SecretValue) -> Result<(), Problem> {
        if value.0.len() > SECRET_BYTES_MAX {
            return Err(Problem::new(Code::BadRequest, "that is too long for the value of a secret"));
        }
        self.on_disk(move |files| files.put(&place, &value.0)).await
    }

    /// Another node asks for a value.
    ///
    /// # Errors
    /// It is not here.
    pub(crate) async fn give(&self, place: Place) -> Result<Carried, Problem> {
        let value = self.on_disk(move |files| files.get(&place)).await?;
        let value = value.ok_or_else(|| Problem::new(Code::UnknownPath, "that value is not here"))?;
        Ok(Carried { value: SecretValue(value) })
    }

    /// Refuses a file that names a secret that nobody has set.
    ///
    /// # Errors
    /// The first one.
    pub(crate) async fn refuse_unset(&self, topology: &Topology) -> Result<(), Problem> {
        if topology.domains.iter().all(|domain| domain.secrets.is_empty()) {
            return Ok(());
        }
        let dc = topology.name.as_str();
        let entries = self.read(all).await?.into_iter();
        let set: Vec<String> = entries.filter(|(of, ..)| of == dc).map(|(_, secret, _)| secret).collect();
        let mut wanted =
            topology.domains.iter().flat_map(|domain| domain.secrets.iter().map(move |s| (domain, s)));
        match wanted.find(|(_, secret)| !set.contains(secret)) {
            None => Ok(()),
            Some((domain, secret)) => {
                let message = format!("domain {} reads the secret {secret:?}, which is not set", domain.name);
                let like = meant(secret, &set, &format!("secrets of {dc}"));
                Err(Problem::new(Code::NotAdmitted, message)
                    .help(format!("`tombolo secret set {dc}/{secret} < FILE` sets it; {like}")))
            }
        }
    }

    /// The values of secrets that a domain reads, which is about to start.
    ///
    /// # Errors
    /// One is not set, or no node that answers has its value.
    pub(crate) async fn values(
        &self,
        dc: &str,
        secrets: &[String],
    ) -> Result<Vec<(String, Vec<u8>)>, String> {
        let mut values = Vec::new();
        for secret in secrets {
            let value = self.value(dc, secret).await.map_err(|problem| {
                let help = problem.help.map_or_else(String::new, |help| format!(" ({help})"));
                format!("the secret {secret:?}: {}{help}", problem.message)
            })?;
            values.push((secret.clone(), value));
        }
        Ok(values)
    }

    /// The value that counts; where it was set anew meanwhile, the new one.
    async fn value(&self, dc: &str, secret: &str) -> Result<Vec<u8>, Problem> {
        match self.value_now(dc, secret).await {
            Ok(value) => Ok(value),
            Err(_) => self.value_now(dc, secret).await,
        }
    }

    async fn value_now(&self, dc: &str, secret: &str) -> Result<Vec<u8>, Problem> {
        let named = (dc.to_owned(), secret.to_owned());
        let entry = match self.read(found(dc, secret)).await {
            Ok(Found { entry: Some(entry), .. }) => entry,
            Ok(Found { entry: None, .. }) => {
                return Err(
                    failed("it is not set").help(format!("`tombolo secret set {dc}/{secret} < FILE`"))
                );
            }
            // A domain starts again while the cluster's registry is away: by what is known here.
            Err(problem) => {
                let newest = self.on_disk(move |files| files.newest((&named.0, &named.1))).await?;
                let Some(value) = newest else { return Err(problem) };
                tracing::warn!(dc, secret, why = problem.message, "the newest value here counts");
                return Ok(value);
            }
        };
        let place = Place::of(dc, secret, &entry);
        let sought = place.clone();
        if let Some(value) = self.on_disk(move |files| files.get(&sought)).await? {
            return Ok(value);
        }
        let value = self.fetched(&place, &entry.nodes).await?;
        let (kept, copy) = (place, value.clone());
        if let Err(problem) = self.on_disk(move |files| files.put(&kept, &copy)).await {
            tracing::warn!(why = problem.message, "the value of a secret can't be kept here");
        }
        Ok(value)
    }

    /// The value, from another node; those that had it first are asked first.
    async fn fetched(&self, place: &Place, had_it: &[String]) -> Result<Vec<u8>, Problem> {
        let Some(cluster) = &self.cluster else {
            return Err(failed("its value is not in the state directory any more")
                .help(format!("`tombolo secret set {}/{} < FILE` sets it again", place.dc, place.secret)));
        };
        let mut nodes: Vec<String> = cluster.nodes().into_iter().map(|node| node.name).collect();
        nodes.retain(|name| name != cluster.me());
        nodes.sort_by_key(|name| !had_it.contains(name));
        let mut why = Vec::new();
        for node in nodes {
            let said: Result<Carried, Problem> = cluster.call(&node, Method::GET, &place.path(), &()).await;
            match said {
                Ok(Carried { value }) if value.0.len() <= SECRET_BYTES_MAX => return Ok(value.0),
                Ok(_) => why.push(format!("{node}: it is too long")),
                Err(problem) => why.push(format!("{node}: {}", problem.message)),
            }
        }
        Err(failed(format!("no node that answers has its value; {}", why.join("; ")))
            .help(format!("have one of {} back, or set it again", had_it.join(", "))))
    }

    /// Removes a secret. Domains that run keep what they read.
    ///
    /// # Errors
    /// There is none of that name.
    pub(crate) async fn remove(&self, dc: &str, secret: &str) -> Result<(), Problem> {
        checked(dc, secret)?;
        let before = self.read(found(dc, secret)).await?.entry;
        let key = key(dc, secret);
        let registry = Arc::clone(&self.registry);
        let removed = self.pool().run(move || registry.delete(&key, Expected::Anything)).await;
        if removed.map_err(failed)?.map_err(|error| failed(format!("the registry: {error}")))? {
            if let Some(before) = before {
                self.drop_everywhere(Place::of(dc, secret, &before)).await;
            }
            self.sweep().await;
            return Ok(());
        }
        let known: Vec<String> =
            self.read(all).await?.into_iter().map(|(dc, secret, _)| format!("{dc}/{secret}")).collect();
        Err(Problem::new(Code::UnknownSecret, format!("there is no secret {dc}/{secret}")).help(meant(
            &format!("{dc}/{secret}"),
            &known,
            "secrets",
        )))
    }

    /// Removes the values here that count no more.
    pub(crate) async fn sweep(&self) {
        let swept = match self.read(all).await {
            Ok(entries) => self.on_disk(move |files| files.sweep(&entries)).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = swept {
            tracing::warn!(why = problem.message, "values of secrets that count no more stay for now");
        }
    }
}

/// Tells all other nodes about a value. Returns those that answered.
async fn tell_all(cluster: &Cluster, method: Method, place: &Place, body: &impl Serialize) -> Vec<String> {
    let body = serde_json::to_value(body).unwrap_or_default();
    let mut told = tokio::task::JoinSet::new();
    for node in cluster.nodes().into_iter().map(|node| node.name).filter(|name| name != cluster.me()) {
        let (cluster, method, path, body) = (cluster.clone(), method.clone(), place.path(), body.clone());
        told.spawn(async move {
            let said: Result<serde_json::Value, Problem> = cluster.call(&node, method, &path, &body).await;
            if let Err(problem) = &said {
                tracing::warn!(
                    node,
                    why = problem.message,
                    "a node was not told about the value of a secret"
                );
            }
            said.is_ok().then_some(node)
        });
    }
    told.join_all().await.into_iter().flatten().collect()
}

fn key(dc: &str, secret: &str) -> String {
    format!("{KEYS}{dc}/{secret}")
}

fn failed(why: impl Into<String>) -> Problem {
    Problem::new(Code::Failed, why)
}

fn checked(dc: &str, secret: &str) -> Result<(), Problem> {
    Name::parse(dc).map_err(|error| {
        Problem::new(Code::BadRequest, format!("{dc:?} is no distributed container: {error}"))
    })?;
    if is_secret_name(secret) {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("{secret:?} can't be the name of a secret"))
        .help("letters, digits, `-`, `_` and `.`, 63 at the most, with a letter or a digit at both ends"))
}

/// All secrets: distributed container, name and entry. One that can't be read is left out.
fn all(registry: &dyn RegistryDebug) -> Result<Vec<(String, String, Entry)>, RegistryError> {
    let mut found = Vec::new();
    for (key, entry) in registry.list(KEYS)? {
        let Some((dc, secret)) = key.strip_prefix(KEYS).and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        match serde_json::from_slice(&entry.value) {
            Ok(entry) if checked(dc, secret).is_ok() => found.push((dc.to_owned(), secret.to_owned(), entry)),
            Ok(_) => tracing::warn!(key, "that is no name of a secret"),
            Err(error) => tracing::warn!(key, %error, "a secret's entry is not understood"),
        }
    }
    Ok(found)
}

/// A secret's entry, if it is understood.
struct Found {
    entry: Option<Entry>,
    /// For whoever replaces it.
    expected: Expected,
    /// How many secrets there are.
    count: usize,
}

fn found(
    dc: &str,
    secret: &str,
) -> impl FnOnce(&dyn RegistryDebug) -> Result<Found, RegistryError> + Send + 'static {
    let key = key(dc, secret);
    move |registry| {
        let count = registry.list(KEYS)?.len();
        let Some(found) = registry.get(&key)? else {
            return Ok(Found { entry: None, expected: Expected::Absent, count });
        };
        let entry = serde_json::from_slice(&found.value);
        let entry =
            entry.inspect_err(|error| tracing::warn!(key, %error, "a secret's entry is not understood"));
        Ok(Found { entry: entry.ok(), expected: Expected::Revision(found.revision), count })
    }
}
