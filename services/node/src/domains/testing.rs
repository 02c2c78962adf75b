//! The room over a registry in memory, and a book that is made up. Nothing of it starts anything.

use super::{Domains, Ground};
use crate::base::RegistryDebug;
use crate::broker::{Broker, make_channel};
use crate::reservations::{Looking, Promises};
use crate::secrets::Secrets;
use crate::volumes::Keeper;
use admin::place::Place;
use admin::{Code, Problem};
use std::sync::{Arc, Mutex, PoisonError};
use topology::{Domain, Topology};

/// A book that writes down what it is asked, and promises nothing to whom it is told to refuse.
#[derive(Debug, Default)]
pub(crate) struct MadeUp {
    refuses: Option<&'static str>,
    asked: Mutex<Vec<String>>,
}

impl MadeUp {
    /// One that has no room for domains of this name.
    pub(crate) fn without_room_for(name: &'static str) -> Self {
        Self { refuses: Some(name), asked: Mutex::default() }
    }

    fn note(&self, what: String) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Returns the requests since the last call of this.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Promises for MadeUp {
    fn beside(&self, _dc: &str) -> Looking {
        Looking::nowhere()
    }

    fn begin(&self, dc: &str, topology: Option<&Topology>, _cgroup: &str) -> Result<(), Problem> {
        let names: Vec<&str> = topology
            .map_or(&[][..], |topology| topology.domains.as_slice())
            .iter()
            .map(|domain| domain.name.as_str())
            .collect();
        self.note(format!("begin {dc}: {}", names.join(" ")));
        match self.refuses {
            Some(name) if names.contains(&name) => Err(Problem::new(Code::NotAdmitted, "there is no room")),
            _ => Ok(()),
        }
    }

    fn settle(&self, dc: &str) {
        self.note(format!("settle {dc}"));
    }

    fn enter_one(&self, dc: &str, domain: &Domain, _cgroup: &str) -> Result<(), String> {
        self.note(format!("enter {dc}/{}", domain.name));
        if self.refuses == Some(domain.name.as_str()) { Err("there is no room".into()) } else { Ok(()) }
    }

    fn keep(&self, name: &str) -> Result<(), String> {
        self.note(format!("keep {name}"));
        Ok(())
    }

    fn is_suspended(&self, _name: &str) -> bool {
        false
    }

    fn leave_quota(&self, cgroup: &str) {
        self.note(format!("leave the quota of {cgroup}"));
    }

    fn ended(&self, name: &str) {
        self.note(format!("ended {name}"));
    }

    fn settle_dispatchers(&self) {
        self.note("settle dispatchers".into());
    }
}

/// The domains of a node without any, over that registry and that book; and the folder of its
/// files.
pub(crate) fn room(
    registry: Arc<dyn RegistryDebug>,
    book: Arc<dyn Promises>,
) -> (Arc<Domains>, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let place = Place { run_dir: folder.path().join("run"), state_dir: folder.path().join("state") };
    let program = std::path::PathBuf::from("/nowhere/tombolo");
    let cgroups = domain::Cgroups::discover().expect("cgroups");
    let volumes = Keeper::new(&place, program.clone(), cgroups.clone(), Arc::clone(&registry), None);
    let secrets = Arc::new(Secrets::new(&place.state_dir, Arc::clone(&registry), None));
    let ground = Ground {
        layout: place.layout(program),
        place,
        cgroups,
        registry,
        volumes: Arc::new(volumes),
        secrets,
        broker: Broker::new(make_channel),
        book,
        host: serde_json::Value::Null,
    };
    (Arc::new(Domains::new(ground)), folder)
}

/// The text of a file with these processes.
pub(crate) fn file(names: &[&str]) -> String {
    let domain = |name: &&str| format!("[domain.{name}]\nkind = \"process\"\ncommand = [\"/bin/true\"]\n");
    format!("name = \"shop\"\n{}", names.iter().map(domain).collect::<String>())
}

/// Returns the topology of such a file.
pub(crate) fn topology(names: &[&str]) -> Topology {
    topology::parse(&file(names), "shop.toml", std::path::Path::new("/")).expect("a topology")
}
