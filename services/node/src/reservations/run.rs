//! Reservations of processes that are no domains: a cgroup for each, as long as a process is in it.

use super::{Book, Entry, RUN, State, VTMS, actuator, promise};
use crate::base::{BOOK, watched};
use admin::reserve::{Ran, RunRequest};
use admin::{Code, Problem};
use reserve::model::Manager;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use topology::Name;

/// Between two looks at a process that has ended and is still listed.
const LINGER: Duration = Duration::from_millis(20);

impl Book {
    /// Promises something to a process and all that it will start.
    ///
    /// # Errors
    /// Where it can't be kept, there is no such process, or the name is taken; nothing is left
    /// then.
    pub(crate) fn run(&self, request: &RunRequest) -> Result<Ran, Problem> {
        let mut state = self.lock();
        let name = run_name(&mut state, request.name.as_deref())?;
        if request.pid <= 1 || !std::path::Path::new(&format!("/proc/{}", request.pid)).exists() {
            return Err(Problem::new(
                Code::BadRequest,
                format!("there is no process {} (any more)", request.pid),
            ));
        }
        let (wish, team) = state.asked(&request.reserve)?;
        if let Some(place) = self.actuator.cgroups().read_only() {
            return unpromised(name, place, request.reserve.strict);
        }
        let cgroup = format!("{}/{}", self.run_top, name.trim_start_matches(RUN));
        state.promise_one(&name, &request.reserve, wish, team)?;
        let entry = Entry::new(None, request.reserve.clone(), cgroup.clone());
        state.entries.insert(name.clone(), entry);
        state.unwritten.mark(&name);
        self.publish(&state);
        drop(state);
        self.write_down();
        let begun = self.actuator.cgroups().create(&cgroup).map_err(actuator::said);
        let begun = begun.and_then(|()| self.keep(&name));
        let begun =
            begun.and_then(|()| self.actuator.cgroups().join(&cgroup, request.pid).map_err(actuator::said));
        if let Err(why) = begun {
            self.end_run(&name);
            return Err(Problem::new(Code::Failed, format!("{name} can't be reserved for: {why}")));
        }
        let caveats = self.lock().entries.get(&name).map(|entry| entry.caveats.clone());
        Ok(Ran { name, caveats: caveats.unwrap_or_default() })
    }

    /// Takes back what was promised to one that has ended, with its cgroup.
    pub(crate) fn end_run(&self, name: &str) {
        let mut state = self.lock();
        let Some(entry) = state.entries.remove(name) else { return };
        if let Err(error) = state.model.expel(name) {
            tracing::error!(name, %error, "what was promised to it can't be taken back");
        }
        state.links.drop_class(name);
        state.dispatchers.drop_vtm(name, &self.there());
        self.publish(&state);
        state.unwritten.mark(name);
        let cgroups = self.actuator.cgroups();
        if let Err(error) = self.actuator.release(&entry.cgroup) {
            tracing::warn!(name, error, "its cgroup can't be set free");
        }
        if cgroups.processes(&entry.cgroup).is_empty()
            && let Err(error) = cgroups.remove(&entry.cgroup)
        {
            tracing::warn!(name, %error, "its cgroup can't be removed");
        }
        cgroups.remove_if_empty(&self.run_top);
        drop(state);
        self.write_down();
    }

    /// Enters those that an earlier daemon knew and that are still there; their names. The others
    /// are struck out.
    pub(crate) fn adopt_runs(&self) -> Vec<String> {
        let Ok(known) = self.registry.list(&format!("{VTMS}{RUN}")) else { return Vec::new() };
        let mut adopted = Vec::new();
        for (key, entry) in known {
            let name = key.trim_start_matches(VTMS).to_owned();
            let Ok(entry) = serde_json::from_slice::<Entry>(&entry.value) else {
                self.lock().unwritten.mark(&name);
                self.write_down();
                continue;
            };
            let lives = !self.actuator.cgroups().processes(&entry.cgroup).is_empty();
            let mut state = self.lock();
            let asked = state.asked(&entry.now);
            state.entries.insert(name.clone(), entry);
            let entered =
                asked.is_ok_and(|(wish, team)| promise(&mut state.model, &name, wish, team).is_ok());
            self.publish(&state);
            drop(state);
            if lives && entered && self.keep(&name).is_ok() {
                adopted.push(name);
            } else {
                self.end_run(&name);
            }
        }
        adopted
    }

    fn cgroup_of(&self, name: &str) -> Option<String> {
        self.lock().entries.get(name).map(|entry| entry.cgroup.clone())
    }
}

/// It runs, and nothing is promised to it, for there is nowhere to keep it; what is strict does
/// not.
fn unpromised(name: String, place: &Path, strict: bool) -> Result<Ran, Problem> {
    let why = format!(
        "nothing is promised to it: {} is read-only, and what keeps promises is written there",
        place.display()
    );
    if strict {
        let problem = Problem::new(Code::NotAdmitted, format!("this is strict, and {why}"));
        return Err(problem.help("mount the control groups writable, or run it without --strict"));
    }
    Ok(Ran { name, caveats: vec![why] })
}

fn run_name(state: &mut State, wanted: Option<&str>) -> Result<String, Problem> {
    let name = match wanted {
        Some(word) => match Name::parse(word) {
            Ok(name) => format!("{RUN}{name}"),
            Err(error) => {
                return Err(Problem::new(Code::BadRequest, format!("{word:?} is no name: {error}")));
            }
        },
        None => loop {
            state.runs += 1;
            let name = format!("{RUN}r{}", state.runs);
            if !state.entries.contains_key(&name) {
                break name;
            }
        },
    };
    if state.entries.contains_key(&name) {
        let problem = Problem::new(Code::BadRequest, format!("there is a reservation {name} already"));
        return Err(problem.help("give another --name, or none"));
    }
    Ok(name)
}

/// Goes on from what an earlier daemon left: what it promised to domains that are in no file is
/// forgotten, its dispatchers and the processes that are no domains are taken over, and what it
/// left on the link is cleared. After all files are entered.
pub(crate) async fn take_over(book: &Arc<Book>, is_in_a_file: impl Fn(&str) -> bool + Send + 'static) {
    let adopted = {
        let book = Arc::clone(book);
        let adopted = move || {
            book.forget_all_but(is_in_a_file);
            book.adopt_dispatchers();
            let adopted = book.adopt_runs();
            book.clear_link();
            adopted
        };
        BOOK.run(adopted).await.unwrap_or_default()
    };
    tokio::spawn(super::link::follow(Arc::clone(book)));
    for name in adopted {
        tokio::spawn(watch(Arc::clone(book), name));
    }
}

/// Waits until no process is left of one, and takes its promise back.
pub(crate) async fn watch(book: Arc<Book>, name: String) {
    while let Some(cgroup) = book.cgroup_of(&name) {
        let Some(pid) = book.actuator.cgroups().processes(&cgroup).first().copied() else { break };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let opened = raw.map(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK));
        // One that is gone meanwhile is looked for no more.
        let Some(Ok(descriptor)) = opened else {
            // tidy(sleep): it ended between two looks.
            tokio::time::sleep(LINGER).await;
            continue;
        };
        match watched(descriptor, Interest::READABLE) {
            Ok(descriptor) => {
                if let Err(error) = descriptor.readable().await {
                    tracing::error!(name, %error, "the end of its processes can't be awaited");
                    return;
                }
            }
            Err(error) => {
                tracing::error!(name, %error, "the end of its processes can't be awaited");
                return;
            }
        }
        if book.actuator.cgroups().processes(&cgroup).first() == Some(&pid) {
            // tidy(sleep): it has ended, and is in its cgroup until its parent has looked; nothing
            // tells when.
            tokio::time::sleep(LINGER).await;
        }
    }
    book.end_run(&name);
}
