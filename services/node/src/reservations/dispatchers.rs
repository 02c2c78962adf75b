//! The dispatchers of this node: processes that keep promises by a table, or by the kernel's
//! deadlines. They outlive this daemon, and the next one finds them again.

use enforce::{
    Client, Committed, Effect, EnforceError, Enforcer, Kind, Launch, Order, Plan, Prepared, Vtm, VtmReport,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The enforcements that have a process of their own. A quota needs none: the kernel keeps it by
/// itself.
pub(crate) const WITH_PROCESS: [Kind; 2] = [Kind::Table, Kind::Deadline];

/// How old a report may be that is told: whoever looks at many asks of each.
const REPORT_AGE: Duration = Duration::from_millis(50);

/// A dispatcher, with the plan that it keeps.
#[derive(Debug)]
struct Line {
    client: Client,
    /// The plan in force.
    plan: Plan,
    /// The parts of it that are not guaranteed.
    caveats: Vec<String>,
    /// The charge of a switch in it, in ns.
    switch_ns: u64,
}

impl Line {
    fn take(&mut self, plan: Plan, prepared: &Prepared) {
        self.plan = plan;
        self.caveats.clone_from(&prepared.caveats);
        self.switch_ns = prepared.switch_ns;
    }
}

/// All dispatchers; those that nobody needs do not run.
#[derive(Debug)]
pub(crate) struct Dispatchers {
    program: PathBuf,
    folder: PathBuf,
    group: String,
    lines: BTreeMap<Kind, Line>,
    changed: Arc<Notify>,
    /// The last report, and its time.
    reported: Option<(Instant, BTreeMap<String, VtmReport>)>,
}

/// A change of one plan that is prepared, and can be committed and taken back.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) kind: Kind,
    plan: Plan,
    prepared: Prepared,
    before: Plan,
}

/// The state of one dispatcher.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) kind: Kind,
    pub(crate) pid: u32,
    pub(crate) guardian: u32,
    pub(crate) switch_ns: u64,
    pub(crate) most_ppm: u64,
}

impl Dispatchers {
    /// Returns the dispatchers whose ledgers are in `folder`, and whose cgroups begin with `group`.
    pub(crate) fn new(program: PathBuf, folder: PathBuf, group: String) -> Self {
        Self {
            program,
            folder,
            group,
            lines: BTreeMap::new(),
            changed: Arc::new(Notify::new()),
            reported: None,
        }
    }

    /// Tells when one was started or has ended in order.
    pub(crate) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    /// Finds what an earlier daemon has started. Where both it and its guardian are dead, another
    /// one gives back what they held.
    pub(crate) fn adopt(&mut self) {
        for kind in WITH_PROCESS {
            if !self.folder.join(kind.name()).is_dir() {
                continue;
            }
            if let Err(error) = self.line(kind) {
                tracing::error!(%kind, %error, "the dispatcher of an earlier daemon can't be had");
            }
        }
    }

    fn line(&mut self, kind: Kind) -> Result<&mut Line, EnforceError> {
        if !self.lines.contains_key(&kind) {
            let launch = Launch {
                program: self.program.clone(),
                folder: self.folder.join(kind.name()),
                group: format!("{}+{}", self.group, kind.name()),
                kind,
            };
            let mut client = Client::start(launch)?;
            let plan = client.in_force()?;
            tracing::info!(%kind, pid = client.pid(), kept = plan.vtms.len(), "a dispatcher keeps promises");
            let (caveats, switch_ns) = (client.ability().caveats.clone(), client.ability().switch_ns);
            self.lines.insert(kind, Line { client, plan, caveats, switch_ns });
            self.changed.notify_waiters();
            self.changed.notify_one();
        }
        self.lines.get_mut(&kind).ok_or_else(|| EnforceError::Lost("it is not there".to_owned()))
    }

    /// Keeps one from now on, beside all others; what is not guaranteed of it is told.
    ///
    /// # Errors
    /// Where it can't be kept; nothing has changed then. With `strict` also where it is not
    /// guaranteed.
    pub(crate) fn put(
        &mut self,
        kind: Kind,
        vtm: Vtm,
        order: Order,
        strict: bool,
        is_there: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<String>, EnforceError> {
        let id = vtm.id.clone();
        let done = self.try_put(kind, &vtm, order, strict, is_there);
        let done = match done {
            Err(EnforceError::Lost(_)) => {
                // Dead, and not yet seen to be: the next one gives back what it held, and goes on.
                self.revive(kind, is_there)?;
                self.try_put(kind, &vtm, order, strict, is_there)
            }
            other => other,
        };
        self.stop_if_idle(kind);
        done.map(|caveats| about(&id, &caveats))
    }

    fn try_put(
        &mut self,
        kind: Kind,
        vtm: &Vtm,
        order: Order,
        strict: bool,
        is_there: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<String>, EnforceError> {
        let line = self.line(kind)?;
        let mut plan = line.plan.clone();
        plan.policy = order;
        plan.vtms.retain(|other| other.id != vtm.id && there(other, is_there));
        plan.vtms.push(vtm.clone());
        plan.vtms.sort_by(|one, other| one.id.cmp(&other.id));
        let prepared = line.client.prepare(&plan)?;
        let missing = about(&vtm.id, &prepared.caveats);
        if strict && !missing.is_empty() {
            return Err(EnforceError::Strict(missing));
        }
        line.client.commit(&prepared)?;
        line.take(plan, &prepared);
        Ok(prepared.caveats)
    }

    /// Lets one go, wherever it was kept. A dispatcher that keeps nobody any more ends.
    pub(crate) fn drop_vtm(&mut self, id: &str, is_there: &dyn Fn(&str) -> bool) {
        self.keep_only(&|other| other != id, is_there);
    }

    /// Lets go whoever is not wanted.
    pub(crate) fn settle(&mut self, wanted: &BTreeSet<String>, is_there: &dyn Fn(&str) -> bool) {
        self.keep_only(&|id| wanted.contains(id), is_there);
    }

    fn keep_only(&mut self, wanted: &dyn Fn(&str) -> bool, is_there: &dyn Fn(&str) -> bool) {
        for kind in WITH_PROCESS {
            let Some(line) = self.lines.get_mut(&kind) else { continue };
            let mut plan = line.plan.clone();
            plan.vtms.retain(|vtm| wanted(&vtm.id) && there(vtm, is_there));
            if plan.vtms.len() < line.plan.vtms.len() && !plan.vtms.is_empty() {
                let done = line.client.prepare(&plan).and_then(|prepared| line.client.commit(&prepared));
                match done {
                    // One that is dead has let it go already.
                    Ok(_) | Err(EnforceError::Lost(_)) => line.plan = plan,
                    Err(error) => {
                        tracing::error!(%kind, %error, "who is promised nothing any more can't be let go")
                    }
                }
            } else {
                line.plan = plan;
            }
            self.stop_if_idle(kind);
        }
    }

    fn stop_if_idle(&mut self, kind: Kind) {
        let Some(line) = self.lines.remove(&kind) else { return };
        if !line.plan.vtms.is_empty() {
            self.lines.insert(kind, line);
            return;
        }
        if let Err(error) = line.client.stop() {
            tracing::warn!(%kind, %error, "a dispatcher that nobody needs does not end in order; its guardian gives back what it held");
        }
        // What is left of it is of no use to anybody.
        let _gone_already = std::fs::remove_dir_all(self.folder.join(kind.name()));
        let _other_is_there = std::fs::remove_dir(&self.folder);
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    /// The same where this process of it has died, and is not followed by another one yet.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn revive_after(
        &mut self,
        kind: Kind,
        dead: u32,
        is_there: &dyn Fn(&str) -> bool,
    ) -> Result<(), EnforceError> {
        let is_it = self.lines.get(&kind).is_some_and(|line| line.client.pid() == dead);
        if !is_it {
            // It was not needed any more, and has ended in order.
            return Ok(());
        }
        tracing::error!(%kind, pid = dead, "a dispatcher has died: its guardian gives back what it held, and another one goes on");
        self.revive(kind, is_there)
    }

    /// Another dispatcher in the place of one that died: first it gives back what that held, then
    /// what was in force is so again.
    ///
    /// # Errors
    /// Where none comes up, or what was in force can't be kept any more.
    pub(crate) fn revive(&mut self, kind: Kind, is_there: &dyn Fn(&str) -> bool) -> Result<(), EnforceError> {
        let Some(line) = self.lines.get_mut(&kind) else { return Ok(()) };
        line.client.restart()?;
        let mut plan = line.plan.clone();
        plan.vtms.retain(|vtm| there(vtm, is_there));
        let prepared = line.client.prepare(&plan)?;
        line.client.commit(&prepared)?;
        line.take(plan, &prepared);
        self.changed.notify_waiters();
        self.changed.notify_one();
        Ok(())
    }

    /// Works out a change of several at once, which changes nothing yet.
    ///
    /// # Errors
    /// Where it can't be kept.
    pub(crate) fn prepare(
        &mut self,
        kind: Kind,
        order: Order,
        vtms: Vec<Vtm>,
        is_there: &dyn Fn(&str) -> bool,
    ) -> Result<Turn, EnforceError> {
        let line = self.line(kind)?;
        let mut plan = line.plan.clone();
        plan.policy = order;
        plan.vtms.retain(|other| vtms.iter().all(|vtm| vtm.id != other.id) && there(other, is_there));
        plan.vtms.extend(vtms);
        plan.vtms.sort_by(|one, other| one.id.cmp(&other.id));
        let prepared = line.client.prepare(&plan)?;
        Ok(Turn { kind, plan, prepared, before: line.plan.clone() })
    }

    /// Puts it in force.
    ///
    /// # Errors
    /// Where that failed; all is as before.
    pub(crate) fn commit(&mut self, turn: &Turn) -> Result<Committed, EnforceError> {
        let line = self.line(turn.kind)?;
        let committed = line.client.commit(&turn.prepared)?;
        line.take(turn.plan.clone(), &turn.prepared);
        Ok(committed)
    }

    /// Goes back to what was before a commit.
    ///
    /// # Errors
    /// Where that failed.
    pub(crate) fn take_back(&mut self, turn: &Turn) -> Result<(), EnforceError> {
        let line = self.line(turn.kind)?;
        // One that died meanwhile is followed by one that keeps this.
        line.plan.clone_from(&turn.before);
        line.client.roll_back().map(drop)
    }

    /// Whether, and after how long, the last change has had effect, by the dispatcher's own events.
    pub(crate) fn effect(&mut self, kind: Kind) -> Option<Effect> {
        self.lines.get_mut(&kind)?.client.effect(Duration::ZERO).ok()
    }

    /// How each fares, by its name.
    pub(crate) fn reports(&mut self) -> BTreeMap<String, VtmReport> {
        if let Some((_, known)) = self.reported.as_ref().filter(|(at, _)| at.elapsed() < REPORT_AGE) {
            return known.clone();
        }
        let mut found = BTreeMap::new();
        for (kind, line) in &mut self.lines {
            match line.client.report() {
                Ok(report) => found.extend(report.vtms.into_iter().map(|vtm| (vtm.id.clone(), vtm))),
                Err(error) => tracing::warn!(%kind, %error, "a dispatcher does not say how all fare"),
            }
        }
        if !self.lines.is_empty() {
            self.reported = Some((Instant::now(), found.clone()));
        }
        found
    }

    /// Returns the state of each dispatcher.
    pub(crate) fn about(&self) -> Vec<About> {
        let about = |(kind, line): (&Kind, &Line)| About {
            kind: *kind,
            pid: line.client.pid(),
            guardian: line.client.guardian(),
            switch_ns: line.client.ability().switch_ns,
            most_ppm: line.client.ability().most_ppm,
        };
        self.lines.iter().map(about).collect()
    }

    /// Returns the charge of a switch of the table now, in ns, where there is one.
    pub(crate) fn table_switch_ns(&self) -> Option<u64> {
        self.lines.get(&Kind::Table).map(|line| line.switch_ns.max(line.client.ability().switch_ns))
    }

    /// Returns the virtual task machine of one domain, where a dispatcher keeps it.
    pub(crate) fn vtm(&self, kind: Kind, name: &str) -> Option<&Vtm> {
        self.lines.get(&kind)?.plan.vtm(name)
    }

    /// Returns all that are kept by this enforcement now.
    pub(crate) fn vtms(&self, kind: Kind) -> impl Iterator<Item = &Vtm> {
        self.lines.get(&kind).into_iter().flat_map(|line| &line.plan.vtms)
    }

    /// Whether one keeps somebody now.
    pub(crate) fn is_in_use(&self, kind: Kind) -> bool {
        self.lines.contains_key(&kind)
    }
}

fn there(vtm: &Vtm, is_there: &dyn Fn(&str) -> bool) -> bool {
    vtm.members.cgroup.as_deref().is_some_and(is_there)
}

/// Returns the caveats that are about everybody, or about this name: others begin with another's
/// name.
fn about(id: &str, caveats: &[String]) -> Vec<String> {
    let own = format!("`{id}`");
    caveats.iter().filter(|caveat| !caveat.starts_with('`') || caveat.starts_with(&own)).cloned().collect()
}
