//! The volumes of this node, and the domains that have them.

use super::book::{Book, Id, Record};
use super::replicas::{About, Listens, Replicas};
use super::serving::{Ground, Serving};
use super::{Later, Volumes, share};
use crate::base::{DISKS, RegistryDebug, meant};
use crate::membership::Cluster;
use admin::place::Place;
use admin::volume::VolumeRow;
use admin::{Code, Problem};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use topology::{Domain, VolumeMount};

/// The state of one volume, of which one thing is done at a time.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub serving: Option<Serving>,
}

type Slots = BTreeMap<Id, Arc<tokio::sync::Mutex<Slot>>>;

/// All volumes of this node.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(super) ground: Arc<Ground>,
    run_dir: PathBuf,
    slots: Mutex<Slots>,
    /// The volumes with replicas on several nodes; none: this node belongs to no cluster.
    pub(super) replicas: Option<Arc<Replicas>>,
}

impl Keeper {
    pub(crate) fn new(
        place: &Place,
        program: PathBuf,
        cgroups: domain::Cgroups,
        registry: Arc<dyn RegistryDebug>,
        cluster: Option<Cluster>,
    ) -> Self {
        let book = Book::new(place.clone(), registry);
        let ground = Arc::new(Ground { book, program, cgroups, cgroup_name: place.cgroup_name() });
        let replicas = cluster.map(|cluster| Replicas::new(Arc::clone(&ground), cluster));
        Self { ground, run_dir: place.run_dir.clone(), slots: Mutex::default(), replicas }
    }

    /// Takes over what an earlier daemon left of volumes with several replicas, before any domain
    /// asks for them.
    pub(crate) async fn adopt(&self) {
        if let Some(replicas) = &self.replicas {
            replicas.adopt().await;
        }
    }

    /// Returns the replicas, for requests of other nodes.
    fn replicas(&self) -> Result<&Arc<Replicas>, Problem> {
        self.replicas.as_ref().ok_or_else(|| {
            Problem::new(Code::Failed, "this node belongs to no cluster, so it has no replicas")
        })
    }

    /// Another node makes a volume, with a replica here.
    pub(crate) async fn make_replica(&self, about: About) -> Result<(), Problem> {
        self.replicas()?.make(about).await
    }

    /// The primary of a volume asks where its replica here listens.
    pub(crate) async fn find_replica(&self, caller: &str, about: &About) -> Result<Listens, Problem> {
        self.replicas()?.find(caller, about).await
    }

    /// A volume was removed from the cluster.
    pub(crate) async fn drop_replica(&self, about: &About) -> Result<(), Problem> {
        self.replicas()?.forget(about).await
    }

    /// The one place where a volume is changed, made if it is wanted for the first time. Of a
    /// volume that is known, or about to be.
    pub(super) fn slot(&self, id: &Id) -> Arc<tokio::sync::Mutex<Slot>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(slots.entry(id.clone()).or_default())
    }

    fn all_slots(&self) -> Vec<(Id, Arc<tokio::sync::Mutex<Slot>>)> {
        let slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.iter().map(|(id, slot)| (id.clone(), Arc::clone(slot))).collect()
    }

    /// Works with what is written down, away from the loop.
    pub(super) async fn book<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Ground) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        let ground = Arc::clone(&self.ground);
        DISKS.run(move || work(&ground)).await.map_err(|why| Problem::new(Code::Failed, why))?
    }

    async fn attach_one(&self, dc: &str, domain: &str, volume: &VolumeMount) -> Result<(), Problem> {
        let id: Id = (dc.to_owned(), volume.name.as_str().to_owned());
        if volume.is_replicated() {
            return self.replicas()?.attach(&id, domain, volume).await;
        }
        let slot = self.slot(&id);
        let mut slot = slot.lock().await;
        match &slot.serving {
            Some(serving) if serving.domain != domain => return Err(in_use(&id, &serving.domain)),
            Some(_) => return Ok(()),
            None => {}
        }
        let (of, wanted) = (id.clone(), volume.clone());
        let begun = self.book(move |ground| {
            let record = as_wanted(&ground.book, &of, &wanted)?;
            let mut engine = ground.find_or_start(&of, &record)?;
            let record = grown(&ground.book, &of, record, wanted.bytes, &mut engine)
                .inspect_err(|_| ground.clear(&of))?;
            Ok((record, engine))
        });
        let (record, engine) = begun.await?;
        slot.serving = Some(Serving::begin(&self.ground, &id, &record, domain, engine));
        Ok(())
    }

    async fn detach_one(
        &self,
        id: &Id,
        slot: &tokio::sync::Mutex<Slot>,
        is_theirs: impl Fn(&Serving) -> bool,
    ) {
        let mut slot = slot.lock().await;
        if !slot.serving.as_ref().is_some_and(is_theirs) {
            return;
        }
        if let Some(serving) = slot.serving.take() {
            serving.end().await;
            let id = id.clone();
            let cleared = self.book(move |ground| {
                ground.clear(&id);
                Ok(())
            });
            if let Err(problem) = cleared.await {
                tracing::error!(%problem, "what an engine left can't be removed");
            }
        }
    }

    /// After a daemon's start, when what runs has been taken over: ends the engines of volumes that
    /// nobody has.
    pub(crate) async fn sweep(&self) {
        if let Some(replicas) = &self.replicas {
            replicas.sweep();
        }
        let found = self.book(|ground| {
            let all = ground.cgroup_of_all();
            let dcs = ground.cgroups.children(&all);
            let of = |dc: &String| {
                let names = ground.cgroups.children(&format!("{all}/{dc}"));
                names.into_iter().map(|name| (dc.clone(), name)).collect::<Vec<Id>>()
            };
            Ok(dcs.iter().flat_map(of).collect::<Vec<Id>>())
        });
        for id in found.await.unwrap_or_default() {
            // A domain that is being started meanwhile has the slot, or comes after this.
            let slot = self.slot(&id);
            let slot = slot.lock().await;
            if slot.serving.is_some() || self.replicas.as_ref().is_some_and(|replicas| replicas.has(&id)) {
                continue;
            }
            tracing::info!(dc = id.0, volume = id.1, "its engine is ended: nobody has it");
            let swept = self.book(move |ground| {
                ground.clear(&id);
                Ok(())
            });
            if let Err(problem) = swept.await {
                tracing::error!(%problem, "an engine that nobody needs can't be ended");
            }
        }
    }

    /// The volume that `NAME` or `DC/NAME` means.
    pub(super) async fn find(&self, which: &str) -> Result<(Id, Record), Problem> {
        let all = self.book(|ground| ground.book.all()).await?;
        let fits = |(dc, name): &Id| match which.split_once('/') {
            Some((wanted_dc, wanted)) => dc == wanted_dc && name == wanted,
            None => name == which,
        };
        let names: Vec<String> = all.iter().map(|((dc, name), _)| format!("{dc}/{name}")).collect();
        let mut found = all.into_iter().filter(|(id, _)| fits(id));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => {
                Err(Problem::new(Code::UnknownVolume, format!("there is no volume {which:?} on this node"))
                    .help(meant(which, &names, "volumes")))
            }
            (Some(_), Some(_)) => {
                Err(Problem::new(Code::Ambiguous, format!("there are several volumes {which:?}"))
                    .help(format!("name one with its distributed container: {}", names.join(", "))))
            }
        }
    }

    /// Returns the rows of `volume ls`.
    pub(crate) async fn rows(&self) -> Result<Vec<VolumeRow>, Problem> {
        let mut rows = Vec::new();
        for (id, record) in self.book(|ground| ground.book.all()).await? {
            rows.push(self.row(id, record).await?);
        }
        Ok(rows)
    }

    /// Returns the row of `volume show`.
    pub(crate) async fn show(&self, which: &str) -> Result<VolumeRow, Problem> {
        let (id, record) = self.find(which).await?;
        self.row(id, record).await
    }

    async fn row(&self, id: Id, record: Record) -> Result<VolumeRow, Problem> {
        let slot = self.slot(&id);
        let slot = slot.lock().await;
        let of = (id.clone(), record.store);
        let allocated = self.book(move |ground| {
            let found = std::fs::metadata(ground.book.image(&of.0, of.1));
            Ok(found.map_or(0, |metadata| metadata.blocks() * 512))
        });
        let allocated = allocated.await?;
        let mut row = VolumeRow {
            format: record.format.as_str().to_owned(),
            store: record.store.as_str().to_owned(),
            bytes: record.bytes,
            allocated,
            state: if record.made { "idle" } else { "unfinished" }.to_owned(),
            domain: None,
            pid: None,
            restarts: 0,
            snapshots: record.snapshots,
            socket: None,
            view: 0,
            primary: None,
            replicas: Vec::new(),
            why: None,
            dc: id.0.clone(),
            name: id.1.clone(),
        };
        if let (true, Some(replicas)) = (record.replica.is_some(), &self.replicas) {
            replicas.show(&id, &mut row).await;
            return Ok(row);
        }
        if let Some(serving) = &slot.serving {
            row.domain = Some(serving.domain.clone());
            row.restarts = serving.restarts();
            let asked = serving.with_engine(|engine| (engine.pid(), engine.facts())).await;
            let engine = asked.map_err(|why| Problem::new(Code::Failed, why))?;
            row.state = "waiting".to_owned();
            if let Some((pid, Ok(facts))) = engine {
                row.state = "serving".to_owned();
                (row.pid, row.bytes, row.snapshots) = (Some(pid), facts.bytes, facts.snapshots);
                row.socket = Some(share(&self.run_dir, &row.dc, &row.name).join(storage::SOCKET));
            }
        }
        Ok(row)
    }
}

pub(super) fn in_use(id: &Id, domain: &str) -> Problem {
    Problem::new(Code::Taken, format!("the volume {}/{} is in use by the domain {domain}", id.0, id.1))
        .help("`tombolo down`, or take the volume out of the file, and try again")
}

/// The volume's record, of a volume that is what the file wants but for its size; made where there
/// is none.
fn as_wanted(book: &Book, id: &Id, wanted: &VolumeMount) -> Result<Record, Problem> {
    let VolumeMount { format, store, bytes, .. } = *wanted;
    let new = Record::new(format, store, bytes);
    let Some(record) = book.get(id)?.filter(|record| record.made) else { return book.make(id, &new) };
    let name = format!("{}/{}", id.0, id.1);
    if record.replica.is_some() {
        let message =
            format!("the volume {name} has replicas on several nodes, and the file says that it has one");
        return Err(Problem::new(Code::Failed, message).help("say how many it has: `tombolo volume show`"));
    }
    if (record.format, record.store) != (format, store) {
        let is = format!("{} in {}", record.format.as_str(), record.store.as_str());
        let wants = format!("{} in {}", format.as_str(), store.as_str());
        let message = format!("the volume {name} is {is}, and the file says {wants}");
        return Err(Problem::new(Code::Failed, message)
            .help("say what it is; or give up what it holds: `tombolo volume rm`"));
    }
    if bytes < record.bytes {
        let message = format!("the volume {name} has {} bytes, and the file says {bytes}", record.bytes);
        return Err(
            Problem::new(Code::Failed, message).help("a volume never shrinks: say at least what it has")
        );
    }
    book.check_there(id, &record)?;
    Ok(record)
}

/// Lets a volume grow to its size in the file, before its domain sees it.
pub(super) fn grown(
    book: &Book,
    id: &Id,
    record: Record,
    bytes: u64,
    engine: &mut storage::Engine,
) -> Result<Record, Problem> {
    let failed = |e: storage::StorageError| Problem::new(Code::Failed, e.to_string());
    // A daemon that died between the two has let it grow already.
    let has = engine.facts().map_err(failed)?.bytes;
    if bytes > has {
        let image = book.image(id, record.store);
        storage::check_size(image.parent().unwrap_or(&image), bytes).map_err(failed)?;
        engine.resize(bytes).map_err(failed)?;
    }
    let grown = Record { bytes: has.max(bytes), ..record.clone() };
    if grown != record {
        book.put(id, &grown)?;
    }
    Ok(grown)
}

impl Volumes for Keeper {
    fn attach<'a>(&'a self, dc: &'a str, domain: &'a Domain) -> Later<'a, Result<(), String>> {
        Box::pin(async move {
            for volume in &domain.volumes {
                self.attach_one(dc, domain.name.as_str(), volume)
                    .await
                    .map_err(|problem| problem.to_string())?;
            }
            Ok(())
        })
    }

    fn detach<'a>(&'a self, dc: &'a str, domain: &'a str) -> Later<'a, ()> {
        Box::pin(async move {
            for (id, slot) in self.all_slots().into_iter().filter(|(id, _)| id.0 == dc) {
                self.detach_one(&id, &slot, |serving| serving.domain == domain).await;
            }
            let Some(replicas) = &self.replicas else { return };
            for id in replicas.of_dc(dc) {
                replicas.detach(&id, |theirs| theirs == domain).await;
            }
        })
    }
}
