//! The book of what this node has promised, and who keeps it.
//!
//! Everything goes through one [`Model`]: files, changes of files, adaptations, and processes that
//! are no domains. An admitted change is told to the kernel (shrinking before growing, and taken
//! back as a whole where a part fails) and only then entered. A promise that was adapted away from
//! its file's is kept in the registry, so that the next daemon goes on from it; the kernel goes on
//! by itself meanwhile.

mod actuator;
mod adapt;
mod choice;
mod dispatchers;
mod face;
mod held;
mod history;
mod link;
mod network;
mod offer;
mod run;
mod settings;
mod sleeps;
mod tables;
mod tell;
mod watch;
mod weights;
mod written;

use crate::base::RegistryDebug;
use actuator::{Actuator, Caveats};
use adapt::Adaptations;
use admin::reserve::NodeSettings;
use admin::{Code, Problem};
use dispatchers::Dispatchers;
use enforce::{Kind, Vtm};
use history::History;
use network::Links;
use registry::{Expected, RegistryError};
use reserve::Heuristic;
use reserve::model::{Manager, Model, ModelError, Team, Wish};
use reserve::node::Promise;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use topology::{Reserve, Topology};
use weights::Share;
use written::Unwritten;

pub(crate) use face::{Offers, Promises};
pub(crate) use held::Held;
pub(crate) use link::Shares;
pub(crate) use offer::{Ground, Offer, Refused};
pub(crate) use run::{take_over, watch};
pub use settings::ranges;
pub(crate) use watch::look_after;

/// Where the registry keeps what was said about the node.
const SETTINGS: &str = "reserve/node";
/// Where it keeps promises that differ from a file, or have none: `reserve/vtm/NAME`.
const VTMS: &str = "reserve/vtm/";
/// The folder in the run directory in which dispatchers keep their ledgers and sockets.
const DISPATCHERS: &str = "enforce";
/// Between two looks at whether a new quota is in force: a fraction of the shortest period. The
/// kernel has no event for it.
const EFFECT_PAUSE: Duration = Duration::from_micros(200);
/// How long such a look goes on at most: some of the longest periods that the kernel keeps.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The prefix of names of processes that are no domains.
pub(crate) const RUN: &str = "run/";

/// The promise to one domain, and its cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    /// The reservation of the file; `None`: there is no file.
    pub(crate) file: Option<Reserve>,
    /// The reservation now.
    pub(crate) now: Reserve,
    /// Its cgroup.
    pub(crate) cgroup: String,
    /// Whether it is held for the time being.
    #[serde(default)]
    pub(crate) suspended: bool,
    /// Whether its cgroup is there and told.
    #[serde(skip)]
    pub(crate) in_force: bool,
    /// The parts that are not guaranteed.
    #[serde(skip)]
    pub(crate) caveats: Caveats,
    /// Why nothing of it is promised, where that is so.
    #[serde(skip)]
    pub(crate) without: Option<String>,
    /// The enforcement of its processor time now, and the reason for that one.
    #[serde(skip)]
    pub(crate) kept_by: Option<Kind>,
    #[serde(skip)]
    pub(crate) because: String,
    /// How often and how long the machine slept while it was promised this, and this daemon was
    /// there.
    #[serde(skip)]
    slept: sleeps::Slept,
}

impl Entry {
    fn new(file: Option<Reserve>, now: Reserve, cgroup: String) -> Self {
        Self {
            file,
            now,
            cgroup,
            suspended: false,
            in_force: false,
            caveats: Vec::new(),
            without: None,
            kept_by: None,
            because: String::new(),
            slept: sleeps::Slept::default(),
        }
    }

    fn is_by_quota(&self) -> bool {
        self.kept_by.is_none_or(|kind| kind == Kind::Bandwidth)
    }
}

/// Why the book can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum BookError {
    /// The registry can't be read.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Nothing can be promised with what the node is said to have.
    #[error("can't tell what this node has for reservations: {0}")]
    Settings(String),
}

/// The book of one node.
#[derive(Debug)]
pub(crate) struct Book {
    actuator: Actuator,
    /// The recent samples and changes.
    history: History,
    registry: Arc<dyn RegistryDebug>,
    run_top: String,
    state: Mutex<State>,
    /// Held by the thread that writes to the registry; taken before `state`, never after it.
    writing: Mutex<()>,
    /// For proxies.
    shares: tokio::sync::watch::Sender<link::Shares>,
    /// For the cluster: ticks when anything is promised, or no longer.
    changes: tokio::sync::watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    settings: NodeSettings,
    model: Model,
    entries: BTreeMap<String, Entry>,
    links: Links,
    dispatchers: Dispatchers,
    adaptations: Adaptations,
    unwritten: Unwritten,
    /// The domains whose strict reservation could not be kept, and why, until somebody asks.
    refused: BTreeMap<String, String>,
    /// Counts processes that came without a name.
    runs: u64,
}

/// Looks at the files of this node, and at what it has promised to others than one distributed
/// container.
#[derive(Debug, Default)]
pub struct Looking {
    model: Option<Model>,
    tables: Option<topology::Tables>,
    /// Where images are, and whether they may be unpacked; `None`: it is not known on which node
    /// domains will be.
    trees: Option<(domain::Layout, domain::Unpack)>,
    /// The images of this node; `None`: nobody looks.
    store: Option<image_store::Store>,
}

impl topology::Look for Looking {
    fn look(&self, path: &Path) -> topology::Found {
        crate::base::look(path)
    }

    fn text(&self, path: &Path) -> Option<Result<String, String>> {
        Some(crate::base::text(path))
    }

    fn module(&self, path: &Path) -> Option<Result<(), String>> {
        Some(crate::base::module_bytes(path).map(drop))
    }

    fn promised(&self) -> Option<&Model> {
        self.model.as_ref()
    }

    fn tables(&self) -> Option<&topology::Tables> {
        self.tables.as_ref()
    }

    fn image(&self, reference: &str) -> Result<Option<String>, topology::Lack> {
        self.store.as_ref().map_or(Ok(None), |store| crate::base::image(store, reference))
    }

    fn lacks(&self, domain: &topology::Domain) -> Vec<topology::Lack> {
        let lacks =
            |(layout, unpack): &(domain::Layout, domain::Unpack)| crate::base::lacks(layout, domain, *unpack);
        self.trees.as_ref().map_or_else(Vec::new, lacks)
    }
}

impl Looking {
    /// Looks into the file trees of domains, too, as this node would make them.
    #[must_use]
    pub(crate) fn into_trees(self, layout: domain::Layout, unpack: domain::Unpack) -> Self {
        Self { trees: Some((layout, unpack)), ..self }
    }

    /// Looks for images in the store of the node, too: what a name means is said where a file is
    /// admitted, in a cluster as well.
    #[must_use]
    pub(crate) fn with_images(self, layout: &domain::Layout) -> Self {
        Self { store: Some(image_store::Store::new(&layout.state_dir)), ..self }
    }

    /// Looks at files alone: what is promised is another's to say.
    pub(crate) fn nowhere() -> Self {
        Self::default()
    }
}

/// Returns the ground on which a file of `dc` is checked: a daemon's promises to others, or a node
/// that has promised nothing; and the files that domains would see, as far as they are there. In a
/// cluster, the node that promises it and has the files is known when it is brought up.
#[must_use]
pub fn looking(book: Option<&admin::reserve::Book>, dc: &str, layout: domain::Layout) -> Looking {
    if book.is_some_and(|book| book.in_cluster) {
        return Looking::nowhere().with_images(&layout);
    }
    let found = settings::found();
    let settings = book.map_or(&found, |book| &book.node);
    let mut model = empty_model(settings).ok();
    let prefix = format!("{dc}/");
    let link_bits = settings.link.as_ref().map_or(0, |link| link.rate_bits);
    for row in book.map_or(&[][..], |book| book.vtms.as_slice()) {
        if let (Some(model), Ok(wish)) = (&mut model, row.reserve.wish(link_bits))
            && !row.name.starts_with(&prefix)
            && let Err(error) = promise(model, &row.name, wish, row.reserve.team().unwrap_or_default())
        {
            tracing::debug!(name = row.name, %error, "the daemon says that it has promised this");
        }
    }
    let tables = Some(tables::for_a_file(book, |name| name.starts_with(&prefix)));
    let looking = Looking { model, tables, ..Looking::nowhere() };
    looking.with_images(&layout).into_trees(layout, domain::Unpack::No)
}

impl Book {
    /// The book as the registry has it, but for what files say.
    ///
    /// # Errors
    /// Where the registry can't be read.
    pub(crate) fn open(
        cgroups: domain::Cgroups,
        layout: &domain::Layout,
        registry: Arc<dyn RegistryDebug>,
    ) -> Result<Self, BookError> {
        let said = registry.get(SETTINGS)?;
        let said = said.and_then(|entry| serde_json::from_slice::<NodeSettings>(&entry.value).ok());
        // What was possible may be so no longer: fewer processors, less memory.
        let said = said.filter(|settings| settings::capacity(settings).is_ok());
        let settings = said.unwrap_or_else(settings::found);
        let model = empty_model(&settings).map_err(BookError::Settings)?;
        let top = &layout.cgroup_name;
        let folder = layout.run_dir.join(DISPATCHERS);
        let dispatchers = Dispatchers::new(layout.program.clone(), folder, top.clone());
        let (entries, links) = (BTreeMap::new(), Links::default());
        let state = State {
            settings,
            model,
            entries,
            links,
            dispatchers,
            adaptations: Adaptations::default(),
            unwritten: Unwritten::default(),
            refused: BTreeMap::new(),
            runs: 0,
        };
        Ok(Self {
            actuator: Actuator::new(cgroups, top, &layout.state_dir),
            history: History::default(),
            registry,
            run_top: format!("{top}+run"),
            state: Mutex::new(state),
            writing: Mutex::default(),
            shares: tokio::sync::watch::Sender::default(),
            changes: tokio::sync::watch::Sender::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes away what an earlier daemon left on the link and nobody needs now.
    pub(crate) fn clear_link(&self) {
        let state = self.lock();
        let wanted = state.model.node().promises().filter(|(_, promise)| promise.network.is_some());
        let names = wanted.map(|(name, _)| name.to_owned()).collect();
        state.links.clear_left(&state.settings, &names);
    }

    /// Returns the promises beside which a file of `dc` is admitted.
    pub(crate) fn beside(&self, dc: &str) -> Looking {
        let state = self.lock();
        let mut model = state.model.clone();
        let own = own(&state.entries, dc);
        for name in &own {
            // Giving back is always possible.
            let _ = model.expel(name);
        }
        let tables = tables::beside(&state, |name| own.iter().any(|own| own == name));
        Looking { model: Some(model), tables: Some(tables), ..Looking::nowhere() }
    }

    /// Enters what a distributed container is promised from now on, in place of all that it was:
    /// nothing where it goes. A promise that was adapted and is as its file was stays so. The
    /// registry's records of it wait for [`Book::settle`], so that a daemon that dies before the
    /// file is written down leaves the file before with what was adapted of it.
    ///
    /// # Errors
    /// Where the node can't keep it; the book is as before.
    pub(crate) fn begin(&self, dc: &str, topology: Option<&Topology>, cgroup: &str) -> Result<(), Problem> {
        let mut state = self.lock();
        let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
        for domain in topology.map_or(&[][..], |topology| topology.domains.as_slice()) {
            let Some(reserve) = domain.reserve.clone() else { continue };
            let name = format!("{dc}/{}", domain.name);
            let entry = self.entry_of(&state, &name, reserve, cgroup);
            entries.insert(name, entry);
        }
        let gone: Vec<String> =
            own(&state.entries, dc).into_iter().filter(|name| !entries.contains_key(name)).collect();
        let mut changes: Vec<(String, Wish)> =
            gone.iter().map(|name| (name.clone(), Wish::default())).collect();
        let mut teams = BTreeMap::new();
        for (name, entry) in &entries {
            let (wish, team) = state.asked(&entry.now)?;
            changes.push((name.clone(), wish));
            teams.insert(name.clone(), team);
        }
        let changes: Vec<(&str, Wish)> = changes.iter().map(|(name, wish)| (name.as_str(), *wish)).collect();
        let adaptation = state.model.admit_teams(&changes, teams).map_err(|error| refused(&error))?;
        let coming = entries.iter().map(|(name, entry)| (name.as_str(), &entry.now)).collect();
        state.admit_tables(adaptation.transaction().after(), &coming)?;
        state.model.commit(adaptation).map_err(|error| refused(&error))?;
        for name in gone {
            state.unwritten.wait(&name);
            self.let_go_of(&mut state, &name);
        }
        for (name, entry) in entries {
            let entry = Entry { without: None, ..entry };
            let known = state.entries.get(&name);
            let is_new = known.is_none_or(|known| known.file != entry.file);
            let changed = is_new || known.is_none_or(|known| known.now != entry.now);
            state.entries.insert(name.clone(), entry);
            if is_new {
                state.unwritten.wait(&name);
            }
            if changed {
                state.unwritten.mark(&name);
            }
        }
        state.refused.retain(|name, _| name.split_once('/').is_none_or(|(of, _)| of != dc));
        if state.entries.is_empty() {
            self.actuator.stand_down();
        }
        self.publish(&state);
        Ok(())
    }

    /// The entry that a domain is to have whose file says this: what was adapted and is as its file
    /// was stays so.
    fn entry_of(&self, state: &State, name: &str, reserve: Reserve, cgroup: &str) -> Entry {
        let is_of_it = |known: &Entry| known.file.as_ref() == Some(&reserve);
        let known = state.entries.get(name);
        if let Some(known) = known.filter(|known| is_of_it(known)) {
            return known.clone();
        }
        let entry = self.remembered(state, name).filter(is_of_it).unwrap_or_else(|| {
            Entry::new(Some(reserve.clone()), reserve.clone(), format!("{cgroup}/{name}"))
        });
        // It is told what is new of it when its turn comes.
        match known.cloned() {
            Some(Entry { in_force, kept_by, because, .. }) => Entry { in_force, kept_by, because, ..entry },
            None => entry,
        }
    }

    /// Strikes one out, and has nobody keep it any more; the registry is told by whoever asks.
    fn let_go_of(&self, state: &mut State, name: &str) {
        if let Some(entry) = state.entries.remove(name) {
            state.links.drop_class(name);
            state.dispatchers.drop_vtm(name, &self.there());
            if let Err(error) = self.actuator.release(&entry.cgroup) {
                tracing::warn!(name, error, "a promise that is over can't be taken from its cgroup");
            }
        }
        state.unwritten.mark(name);
    }

    /// Returns a test whether a cgroup is there.
    fn there(&self) -> impl Fn(&str) -> bool {
        |cgroup| self.actuator.cgroups().exists(cgroup)
    }

    /// Tells the kernel what a domain is promised whose cgroup has just been made, or looked at
    /// again.
    ///
    /// # Errors
    /// Where it can't be kept and is `strict`, or the kernel refuses.
    pub(crate) fn keep(&self, name: &str) -> Result<(), String> {
        let mut state = self.lock();
        let Some(entry) = state.entries.get(name).cloned() else {
            // One that is strict and was not even entered.
            return state.refused.get(name).map_or(Ok(()), |why| Err(why.clone()));
        };
        state.refused.remove(name);
        let kept = self.keep_as(&mut state, name, &entry);
        if let Err(why) = &kept
            && entry.now.strict
        {
            state.links.drop_class(name);
            if let Some(entry) = state.entries.get_mut(name) {
                entry.in_force = false;
            }
            self.refuse(&mut state, name, why);
        }
        kept
    }

    fn keep_as(&self, state: &mut State, name: &str, entry: &Entry) -> Result<(), String> {
        let promise = state.model.node().promise(name).copied().unwrap_or_default();
        let mut caveats: Caveats = entry.caveat().into_iter().collect();
        if entry.without.is_some() && entry.now.cpu.is_some() {
            // It may have had a promise that it has no longer.
            self.actuator.lift(&entry.cgroup)?;
            self.actuator.prefer(&entry.cgroup, None)?;
        }
        let (kept_by, because) = self.keep_processor(state, name, entry, &promise, &mut caveats)?;
        let by_quota = kept_by.is_none_or(|kind| kind == Kind::Bandwidth);
        let of_quota = if by_quota { promise } else { Promise { processor: None, ..promise } };
        let share = promise.processor.as_ref().map(Share::of);
        let told = self.actuator.keep(&entry.cgroup, &of_quota, share);
        let told =
            told.and_then(
                |more| if by_quota { Ok(more) } else { self.actuator.lift(&entry.cgroup).map(|()| more) },
            );
        caveats.extend(told.inspect_err(|_| state.dispatchers.drop_vtm(name, &self.there()))?);
        caveats.extend(self.actuator.pin(&entry.cgroup, state.processor_of(kept_by, &promise)));
        if by_quota && kept_by.is_some() {
            caveats.extend(choice::outside_of_a_quota(&entry.now));
        } else if kept_by == Some(Kind::Deadline) {
            caveats.extend(choice::outside_of_deadlines(&entry.now));
        }
        let settings = state.settings.clone();
        caveats.extend(state.links.keep(name, &entry.cgroup, &promise, &settings, self.actuator.cgroups()));
        if entry.now.strict && !caveats.is_empty() {
            let problem =
                format!("its reservation is strict, and can't be kept whole: {}", caveats.join("; "));
            state.dispatchers.drop_vtm(name, &self.there());
            if let Err(error) = self.actuator.release(&entry.cgroup) {
                tracing::warn!(name, error, "what was begun of a promise can't be taken back");
            }
            return Err(problem);
        }
        for caveat in &caveats {
            tracing::warn!(name, "not guaranteed: {caveat}");
        }
        if entry.suspended && kept_by != Some(Kind::Table) {
            self.actuator.cgroups().hold(&entry.cgroup, true).map_err(actuator::said)?;
        }
        if let Some(entry) = state.entries.get_mut(name) {
            (entry.in_force, entry.caveats) = (true, caveats);
            (entry.kept_by, entry.because) = (kept_by, because);
        }
        state.dispatchers.changed().notify_one();
        Ok(())
    }

    /// Has a dispatcher keep the processor time of one, where that is to be; what keeps it, and
    /// why.
    fn keep_processor(
        &self,
        state: &mut State,
        name: &str,
        entry: &Entry,
        promise: &Promise,
        caveats: &mut Caveats,
    ) -> Result<(Option<Kind>, String), String> {
        let there = self.there();
        let Some(vtm) = state.vtm(name, entry, promise) else {
            state.dispatchers.drop_vtm(name, &there);
            return Ok((None, String::new()));
        };
        let (wanted, because) = choice::of(&entry.now);
        if entry.kept_by.is_some_and(|now| now != wanted) {
            state.dispatchers.drop_vtm(name, &there);
        }
        if wanted == Kind::Bandwidth {
            return Ok((Some(wanted), because));
        }
        if wanted == Kind::Deadline {
            // The kernel takes nobody into that class who is bound to a processor, as whoever was
            // kept by something else is. Where this fails, so does what follows.
            for why in self.actuator.pin(&entry.cgroup, None) {
                tracing::warn!(name, why, "who is to have deadlines can't be let go from its processor");
            }
        }
        let order = reserve::Policy::from(state.settings.policy).into();
        let full = state.why_not(name, entry);
        let put = match full {
            Some(why) => Err(why),
            None => {
                let put = state.dispatchers.put(wanted, vtm, order, entry.now.strict, &there);
                put.map_err(|error| error.to_string())
            }
        };
        match put {
            Ok(more) => {
                caveats.extend(more);
                Ok((Some(wanted), because))
            }
            Err(error) if entry.now.strict => {
                Err(format!("its reservation is strict, and the {wanted} can't keep it: {error}"))
            }
            Err(error) => {
                state.dispatchers.drop_vtm(name, &there);
                caveats.push(format!("the processor time is kept by bandwidth and not by {wanted}: {error}"));
                if !entry.now.jobs.is_empty() {
                    let words = "a quota does not order the jobs inside: none of their deadlines is kept";
                    caveats.push(words.to_owned());
                }
                Ok((
                    Some(Kind::Bandwidth),
                    format!("the {wanted} that was asked for can't keep it here: {error}"),
                ))
            }
        }
    }

    /// A domain's cgroup is gone, or about to go: its promise stays, and nobody has to keep it now.
    pub(crate) fn ended(&self, name: &str) {
        let mut state = self.lock();
        if !state.entries.contains_key(name) {
            return;
        }
        state.links.drop_class(name);
        state.dispatchers.drop_vtm(name, &self.there());
        if let Some(entry) = state.entries.get_mut(name) {
            entry.in_force = false;
            // Its table may be in force for as long as its longest period, and would hold it till
            // then.
            if entry.kept_by == Some(Kind::Table)
                && self.actuator.cgroups().exists(&entry.cgroup)
                && let Err(error) = self.actuator.cgroups().hold(&entry.cgroup, false)
            {
                tracing::warn!(name, %error, "who is to end is held until its table has ended");
            }
        }
    }

    /// Nobody watches over the quota of a domain until it is told anew: its limits are about to be
    /// set.
    pub(crate) fn leave_quota(&self, cgroup: &str) {
        self.actuator.leave(cgroup);
    }

    /// Finds the dispatchers of an earlier daemon.
    pub(crate) fn adopt_dispatchers(&self) {
        self.lock().dispatchers.adopt();
    }

    /// All that runs has been taken over: dispatchers keep nobody else.
    pub(crate) fn settle_dispatchers(&self) {
        let mut state = self.lock();
        let wanted = state.entries.iter().filter(|(_, entry)| entry.in_force).map(|(name, _)| name.clone());
        let wanted = wanted.collect();
        state.dispatchers.settle(&wanted, &self.there());
    }

    /// Holds all processes of one, or lets them go on; the promise stays.
    ///
    /// # Errors
    /// Where there is none, or the kernel has no freezer.
    pub(crate) fn suspend(&self, name: &str, suspended: bool) -> Result<(), Problem> {
        let mut state = self.lock();
        let name = state.find(name)?;
        let entry = state.entries.get(&name).cloned().ok_or_else(|| unknown(&name))?;
        let failed = |why: String| Problem::new(Code::Failed, why);
        if entry.in_force && entry.kept_by == Some(Kind::Table) {
            // The table's own thread would let it go on with its next slot.
            let promise = state.model.node().promise(&name).copied().unwrap_or_default();
            let held = Entry { suspended, ..entry };
            let (kept_by, _) =
                self.keep_processor(&mut state, &name, &held, &promise, &mut Vec::new()).map_err(failed)?;
            if kept_by != Some(Kind::Table) {
                return Err(failed(format!("{name} is not kept by a table any more; try again")));
            }
        } else if entry.in_force {
            let held = self.actuator.cgroups().hold(&entry.cgroup, suspended);
            held.map_err(|error| failed(actuator::said(error)))?;
        }
        state.mark_suspended(&name, suspended);
        state.unwritten.mark(&name);
        drop(state);
        self.write_down();
        Ok(())
    }

    /// Whether all processes of one are held.
    pub(crate) fn is_suspended(&self, name: &str) -> bool {
        self.lock().entries.get(name).is_some_and(|entry| entry.suspended)
    }

    /// Other settings for the node, where all that is promised can be kept with them.
    ///
    /// # Errors
    /// A setting that is impossible, or the domain that would miss its deadline.
    pub(crate) fn set_node(&self, settings: NodeSettings) -> Result<(), Problem> {
        let mut state = self.lock();
        let mut model = empty_model(&settings).map_err(|why| Problem::new(Code::NotAdmitted, why))?;
        if settings.link != state.settings.link {
            settings::usable(&settings).map_err(|why| Problem::new(Code::NotAdmitted, why))?;
        }
        let old = std::mem::replace(&mut state.settings, settings.clone());
        let entries = state.entries.clone();
        let mut again = || -> Result<(), Problem> {
            let link_bits = settings.link.as_ref().map_or(0, |link| link.rate_bits);
            let wishes: Vec<(&str, Wish)> = entries
                .iter()
                .filter(|(_, entry)| entry.without.is_none())
                .filter_map(|(name, entry)| Some((name.as_str(), entry.now.wish(link_bits).ok()?)))
                .collect();
            let teams =
                entries.iter().filter_map(|(name, entry)| Some((name.clone(), entry.now.team().ok()?)));
            let admitted = model.admit_teams(&wishes, teams.collect()).map_err(|error| refused(&error))?;
            state.admit_tables(admitted.transaction().after(), &BTreeMap::new())?;
            model.commit(admitted).map_err(|error| refused(&error))?;
            let text =
                serde_json::to_vec(&settings).map_err(|e| Problem::new(Code::Failed, e.to_string()))?;
            let put = self.registry.put(SETTINGS, &text, Expected::Anything);
            put.map(drop).map_err(|error| Problem::new(Code::Failed, error.to_string()))
        };
        if let Err(problem) = again() {
            state.settings = old;
            return Err(problem);
        }
        state.model = model;
        self.publish(&state);
        state.links.forget();
        let names: Vec<String> =
            state.entries.iter().filter(|(_, entry)| entry.in_force).map(|(name, _)| name.clone()).collect();
        drop(state);
        for name in names {
            self.keep(&name).map_err(|why| Problem::new(Code::Failed, format!("{name}: {why}")))?;
        }
        Ok(())
    }
}

impl State {
    /// Returns a domain as a dispatcher is told of it; `None` where no processor time is promised
    /// to it.
    fn vtm(&self, name: &str, entry: &Entry, promise: &Promise) -> Option<Vtm> {
        let (number, task) = promise.processor?;
        let is_domain = entry.file.is_some();
        choice::vtm(name, entry, is_domain, self.settings.processors.get(number).copied(), &task)
    }

    /// The processor, as the kernel numbers it, that one is to be bound to. The kernel takes nobody
    /// with a deadline who is bound to one.
    fn processor_of(&self, kept_by: Option<Kind>, promise: &Promise) -> Option<usize> {
        let (number, _) = promise.processor.filter(|_| kept_by != Some(Kind::Deadline))?;
        self.settings.processors.get(number).copied()
    }

    fn wish(&self, reserve: &Reserve) -> Result<Wish, Problem> {
        let link_bits = self.model.node().capacity().link.rate_bits;
        reserve.wish(link_bits).map_err(|error| Problem::new(Code::BadRequest, error.to_string()))
    }

    /// Returns a reservation as a wish: a file has been checked, a request has not.
    fn asked(&self, reserve: &Reserve) -> Result<(Wish, Team), Problem> {
        let wish = self.wish(reserve)?;
        reserve.check().map_err(|(why, help)| Problem::new(Code::BadRequest, why).help(help))?;
        for (name, job) in &reserve.jobs {
            let wrong = |why: String| Problem::new(Code::BadRequest, format!("job {name}: {why}"));
            topology::Name::parse(name).map_err(|error| wrong(error.to_string()))?;
            job.who.check().map_err(wrong)?;
        }
        let team = reserve.team().map_err(|error| Problem::new(Code::BadRequest, error.to_string()))?;
        Ok((wish, team))
    }

    /// Promises one something, with the jobs inside it, in place of what it was promised.
    ///
    /// # Errors
    /// Where it can't be kept.
    fn promise_one(&mut self, name: &str, reserve: &Reserve, wish: Wish, team: Team) -> Result<(), Problem> {
        let teams = BTreeMap::from([(name.to_owned(), team)]);
        let admitted = self.model.admit_teams(&[(name, wish)], teams).map_err(|error| refused(&error))?;
        self.admit_tables(admitted.transaction().after(), &BTreeMap::from([(name, reserve)]))?;
        self.model.commit(admitted).map_err(|error| refused(&error))
    }

    /// The whole name of whom a name means.
    fn find(&self, which: &str) -> Result<String, Problem> {
        if self.entries.contains_key(which) {
            return Ok(which.to_owned());
        }
        let fits = |name: &&String| name.rsplit_once('/').is_some_and(|(_, last)| last == which);
        let found: Vec<&String> = self.entries.keys().filter(fits).collect();
        match found.as_slice() {
            [one] => Ok((*one).clone()),
            [] => {
                let names: Vec<String> = self.entries.keys().cloned().collect();
                let problem =
                    Problem::new(Code::UnknownReservation, format!("nothing is promised to {which:?}"));
                Err(problem.help(crate::base::meant(which, &names, "reservations")))
            }
            several => {
                let names: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
                let problem =
                    Problem::new(Code::Ambiguous, format!("several reservations are called {which:?}"));
                Err(problem.help(format!("say which: {}", names.join(", "))))
            }
        }
    }

    fn mark_suspended(&mut self, name: &str, suspended: bool) {
        use reserve::model::Scheduler;
        if let Some(id) = self.model.machine(name) {
            let marked = if suspended { self.model.suspend(id) } else { self.model.resume(id) };
            if let Err(error) = marked {
                tracing::error!(name, %error, "the model does not know that it is suspended");
            }
        }
        if let Some(entry) = self.entries.get_mut(name) {
            entry.suspended = suspended;
        }
    }
}

/// Promises one something, with the jobs inside it.
fn promise(model: &mut Model, name: &str, wish: Wish, team: Team) -> Result<(), ModelError> {
    let teams = BTreeMap::from([(name.to_owned(), team)]);
    let adaptation = model.admit_teams(&[(name, wish)], teams)?;
    model.commit(adaptation)
}

fn own(entries: &BTreeMap<String, Entry>, dc: &str) -> Vec<String> {
    let prefix = format!("{dc}/");
    entries
        .iter()
        .filter(|(name, entry)| name.starts_with(&prefix) && entry.file.is_some())
        .map(|(name, _)| name.clone())
        .collect()
}

fn unknown(name: &str) -> Problem {
    Problem::new(Code::UnknownReservation, format!("nothing is promised to {name:?}"))
}

fn refused(error: &ModelError) -> Problem {
    Problem::new(Code::NotAdmitted, format!("the node can't keep this: {error}"))
        .help("`tombolo reserve ls` shows what is promised, and `tombolo reserve explain` how that adds up")
}

fn empty_model(settings: &NodeSettings) -> Result<Model, String> {
    Model::new(settings::capacity(settings)?, Heuristic::WorstFit).map_err(|error| error.to_string())
}

#[cfg(test)]
pub(crate) mod tests;
