//! The steps by which one admitted topology becomes another.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::model::{Adaptation, Domain, DomainKind, Endpoint, IpcLimits, Service, Settings, Topology, Verb};
use crate::name::Name;

/// Changes of endpoints that one line tells: a file may have thousands.
const CHANGES_TOLD_MAX: usize = 8;

/// One thing that a daemon does, with everything that it needs to do and to undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Step {
    /// Start a domain that doesn't run, and wait until it is ready.
    Start {
        /// The domain to start.
        domain: Box<Domain>,
    },
    /// End a domain.
    Stop {
        /// The domain that runs.
        domain: Box<Domain>,
    },
    /// End a domain and start it anew.
    Restart {
        /// The domain that runs.
        before: Box<Domain>,
        /// The domain that shall run; of the same name.
        after: Box<Domain>,
        /// The keys that differ.
        changed: Vec<String>,
    },
    /// Change a domain while it runs.
    Update {
        /// The domain that runs.
        before: Box<Domain>,
        /// The domain as it shall be; of the same name.
        after: Box<Domain>,
        /// The keys that differ.
        changed: Vec<String>,
    },
    /// Make a service known, with everything that is allowed about it.
    AddService {
        /// The service.
        service: Box<Service>,
    },
    /// Take a service away.
    RemoveService {
        /// The service.
        service: Box<Service>,
    },
    /// Change what a service does while it runs. Permissions are [`Step::Grant`]'s and
    /// [`Step::Revoke`]'s.
    UpdateService {
        /// The service as it is.
        before: Box<Service>,
        /// The service as it shall be; of the same name, with the permissions of `before`.
        after: Box<Service>,
        /// The keys that differ; those of the settings start with `settings.`.
        changed: Vec<String>,
    },
    /// Allow a domain verbs that it didn't have.
    Grant {
        /// Of this service.
        service: Name,
        /// To this domain.
        domain: Name,
        /// Never empty.
        verbs: BTreeSet<Verb>,
    },
    /// Take verbs from a domain that has them. Sessions that are open lose them, too.
    Revoke {
        /// Of this service.
        service: Name,
        /// From this domain.
        domain: Name,
        /// Never empty.
        verbs: BTreeSet<Verb>,
    },
    /// Change which endpoints there are, who may call them, and how much there may be of them: all
    /// at once, because what one may do with another is said at both, and a half of the change
    /// might permit what neither file does.
    UpdateEndpoints {
        /// The endpoints that there are.
        before: Box<Endpoints>,
        /// The endpoints that there shall be.
        after: Box<Endpoints>,
        /// The differences, in words.
        changed: Vec<String>,
    },
    /// Change what moves promises while domains run.
    UpdateAdaptations {
        /// The adaptations that there are.
        before: Vec<Adaptation>,
        /// The adaptations that there shall be.
        after: Vec<Adaptation>,
    },
}

/// All that a topology says of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoints {
    /// Those that have names, sorted by name.
    pub endpoints: Vec<Endpoint>,
    /// How much there may be of what they need.
    pub limits: IpcLimits,
}

/// Steps in the order in which they are done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The steps.
    pub steps: Vec<Step>,
}

/// Returns the steps by which `current` becomes `desired`; `None` is a node on which nothing of it
/// runs.
///
/// Domains and services that go are ended first, permissions are taken before any are given, and
/// those that are new or different start in the start order of `desired`. Both topologies are of
/// the same distributed container; see [`Topology::empty`] for `down`.
#[must_use]
pub fn plan(current: Option<&Topology>, desired: &Topology) -> Plan {
    let nothing = Topology::empty(desired.name.clone());
    let current = current.unwrap_or(&nothing);
    let mut steps = Vec::new();
    let gone = |domain: &&&Domain| desired.domain(&domain.name).is_none();
    steps.extend(current.start_order().iter().rev().filter(gone).map(|domain| stop(domain)));
    // A service of another kind is another service.
    let same = |service: &Service, other: &Topology| {
        other.service(&service.name).is_some_and(|other| other.kind() == service.kind())
    };
    let kept: Vec<(&Service, &Service)> = current
        .services
        .iter()
        .filter(|before| same(before, desired))
        .filter_map(|before| Some((before, desired.service(&before.name)?)))
        .collect();
    steps.extend(kept.iter().flat_map(|(before, after)| permissions(before, after, Step::revoke)));
    let removed = current.services.iter().filter(|service| !same(service, desired));
    steps.extend(removed.map(|service| Step::RemoveService { service: Box::new(service.clone()) }));
    let added = desired.services.iter().filter(|service| !same(service, current));
    steps.extend(added.map(|service| Step::AddService { service: Box::new(service.clone()) }));
    steps.extend(kept.iter().filter_map(|(before, after)| update_service(before, after)));
    steps.extend(kept.iter().flat_map(|(before, after)| permissions(after, before, Step::grant)));
    steps.extend(update_endpoints(Endpoints::of(current), Endpoints::of(desired)));
    let order = desired.start_order();
    let changes = || order.iter().filter_map(|after| change(current.domain(&after.name), after));
    steps.extend(changes().filter(|step| matches!(step, Step::Update { .. })));
    steps.extend(changes().filter(|step| !matches!(step, Step::Update { .. })));
    if current.adaptations != desired.adaptations {
        let (before, after) = (current.adaptations.clone(), desired.adaptations.clone());
        steps.push(Step::UpdateAdaptations { before, after });
    }
    Plan { steps }
}

fn stop(domain: &Domain) -> Step {
    Step::Stop { domain: Box::new(domain.clone()) }
}

/// The step that makes `after` of `before`, if there is anything to do.
fn change(before: Option<&Domain>, after: &Domain) -> Option<Step> {
    let Some(before) = before else { return Some(Step::Start { domain: Box::new(after.clone()) }) };
    let (live, cold) = changed_keys(before, after);
    let (before, after) = (Box::new(before.clone()), Box::new(after.clone()));
    let changed: Vec<String> = cold.iter().chain(&live).map(|key| (*key).to_owned()).collect();
    match (live.is_empty(), cold.is_empty()) {
        (true, true) => None,
        (false, true) => Some(Step::Update { before, after, changed }),
        (_, false) => Some(Step::Restart { before, after, changed }),
    }
}

/// The keys that differ: those that can change while the domain runs, and those that can't.
fn changed_keys(a: &Domain, b: &Domain) -> (Vec<&'static str>, Vec<&'static str>) {
    // A machine is told once how long its guest may take to end.
    let vm = b.kind == DomainKind::Vm;
    let live = [
        ("limits", a.limits != b.limits),
        ("reserve", a.reserve != b.reserve),
        ("restart", a.restart != b.restart && a.restart.elsewhere == b.restart.elsewhere),
        ("node", a.placement.node != b.placement.node),
        ("labels", a.placement.labels != b.placement.labels),
        ("stop", a.stop != b.stop && !vm),
        ("after", a.after != b.after),
        ("ready", (&a.ready, a.ready_timeout_ms) != (&b.ready, b.ready_timeout_ms)),
        ("health", a.health != b.health),
        ("publish", a.published != b.published),
    ];
    let cold = [
        ("kind", a.kind != b.kind),
        // Its monitor is told at the start whether it has to let go of it.
        ("restart", a.restart.elsewhere != b.restart.elsewhere),
        ("root", a.root != b.root),
        ("writable", a.writable != b.writable),
        ("layer", a.layer() != b.layer()),
        ("userns", a.userns != b.userns),
        ("command", a.program != b.program),
        ("environment", a.environment != b.environment),
        ("secrets", a.secrets != b.secrets),
        ("mounts", a.mounts != b.mounts),
        ("user", a.user != b.user),
        ("network", a.network != b.network),
        ("hostname", a.hostname != b.hostname),
        ("workdir", a.workdir != b.workdir),
        ("machine", a.machine != b.machine),
        ("stop", a.stop != b.stop && vm),
        ("capabilities", a.capabilities != b.capabilities),
        ("log", a.log != b.log),
        ("volumes", a.volumes != b.volumes),
        ("services", a.services != b.services || a.sockets != b.sockets),
        ("resolv", a.resolv != b.resolv),
        ("nine_p", a.nine_p != b.nine_p),
    ];
    (differing(&live), differing(&cold))
}

fn differing(keys: &[(&'static str, bool)]) -> Vec<&'static str> {
    keys.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect()
}

fn update_service(before: &Service, after: &Service) -> Option<Step> {
    let mut changed = differing(&[
        ("domain", before.domain != after.domain),
        ("backups", before.backups != after.backups),
        ("memory", before.memory_bytes != after.memory_bytes),
    ]);
    changed.extend(match (&before.settings, &after.settings) {
        (Settings::Directory(a), Settings::Directory(b)) => differing(&[
            ("settings.upstream", a.upstream != b.upstream),
            ("settings.timeout", a.timeout_ms != b.timeout_ms),
            ("settings.retries", a.retries != b.retries),
            ("settings.search", a.search != b.search),
            ("settings.outstanding_per_domain", a.outstanding_per_domain != b.outstanding_per_domain),
            ("settings.sessions_per_domain", a.sessions_per_domain != b.sessions_per_domain),
            ("settings.cache", a.cache != b.cache),
            ("names of sockets", a.names != b.names),
        ]),
        (Settings::Channel(a), Settings::Channel(b)) => differing(&[
            ("settings.ring_bytes", a.ring_bytes != b.ring_bytes),
            ("settings.mode", a.mode != b.mode),
            ("settings.max_channels", a.max_channels != b.max_channels),
            ("settings.channels_per_domain", a.channels_per_domain != b.channels_per_domain),
        ]),
        (Settings::Program(a), Settings::Program(b)) => differing(&[("settings", a.table != b.table)]),
        (Settings::Socket(a), Settings::Socket(b)) => differing(&[
            ("to", a.to != b.to),
            ("settings.max_connections", a.max_connections != b.max_connections),
            ("settings.connections_per_domain", a.connections_per_domain != b.connections_per_domain),
            ("settings.connections_per_second", a.connections_per_second != b.connections_per_second),
            ("settings.proxy", a.proxy != b.proxy),
        ]),
        (Settings::Coordination(a), Settings::Coordination(b)) => {
            differing(&[("settings.grace", a.grace_ms != b.grace_ms)])
        }
        (Settings::Events(a), Settings::Events(b)) => differing(&[
            ("settings.memory", a.memory_bytes != b.memory_bytes),
            ("settings.memory_per_domain", a.memory_per_domain != b.memory_per_domain),
            ("settings.channels_per_domain", a.channels_per_domain != b.channels_per_domain),
            ("settings.sessions_per_domain", a.sessions_per_domain != b.sessions_per_domain),
            ("settings.made", a.made != b.made),
            ("settings.channels", a.channels != b.channels),
        ]),
        (Settings::Camera(a), Settings::Camera(b)) => differing(&[
            ("settings.cameras", a.cameras != b.cameras),
            ("settings.sessions_per_domain", a.sessions_per_domain != b.sessions_per_domain),
        ]),
        (Settings::Location(a), Settings::Location(b)) => differing(&[
            ("settings.sources", a.sources != b.sources),
            ("settings.accuracy", a.accuracy_m != b.accuracy_m),
            ("settings.hold", a.hold_ms != b.hold_ms),
            ("settings.timeout", a.timeout_ms != b.timeout_ms),
            ("settings.gpsd", a.gpsd_port != b.gpsd_port),
            ("settings.nmea", a.nmea_port != b.nmea_port),
        ]),
        (Settings::Files(a), Settings::Files(b)) => differing(&[
            ("settings.store", a.store != b.store),
            ("settings.bytes", a.bytes != b.bytes),
            ("settings.inodes", a.inodes != b.inodes),
        ]),
        // Those of two kinds are two services, not one that changes.
        (
            Settings::Directory(_)
            | Settings::Channel(_)
            | Settings::Program(_)
            | Settings::Socket(_)
            | Settings::Coordination(_)
            | Settings::Events(_)
            | Settings::Camera(_)
            | Settings::Location(_)
            | Settings::Files(_),
            _,
        ) => Vec::new(),
    });
    if changed.is_empty() {
        return None;
    }
    let after = Service { allow: before.allow.clone(), ..after.clone() };
    let changed = changed.into_iter().map(str::to_owned).collect();
    Some(Step::UpdateService { before: Box::new(before.clone()), after: Box::new(after), changed })
}

/// The step that changes endpoints, if there is anything to change.
fn update_endpoints(before: Endpoints, after: Endpoints) -> Option<Step> {
    if before == after {
        return None;
    }
    let gone = before.endpoints.iter().filter(|endpoint| after.get(&endpoint.name).is_none());
    let gone = gone.map(|endpoint| format!("no more `{}`", endpoint.name));
    let come = after.endpoints.iter().filter_map(|after| match before.get(&after.name) {
        None => Some(format!("new `{}` in {}", after.name, after.domain)),
        Some(before) => {
            let keys = endpoint_keys(before, after);
            (!keys.is_empty()).then(|| format!("`{}` has another {}", after.name, keys.join(", ")))
        }
    });
    let limits =
        limit_keys(&before.limits, &after.limits).into_iter().map(|key| format!("another `ipc.{key}`"));
    let changed = gone.chain(come).chain(limits).collect();
    Some(Step::UpdateEndpoints { before: Box::new(before), after: Box::new(after), changed })
}

impl Endpoints {
    fn of(topology: &Topology) -> Self {
        Self { endpoints: topology.endpoints.clone(), limits: topology.ipc }
    }

    fn get(&self, name: &Name) -> Option<&Endpoint> {
        let at = self.endpoints.binary_search_by(|endpoint| endpoint.name.cmp(name)).ok()?;
        self.endpoints.get(at)
    }
}

/// The keys of an endpoint that differ.
fn endpoint_keys(a: &Endpoint, b: &Endpoint) -> Vec<&'static str> {
    let allow = (&a.allow_endpoints, &a.allow_domains) != (&b.allow_endpoints, &b.allow_domains);
    differing(&[
        ("`domain`", a.domain != b.domain),
        ("`allow`", allow),
        ("`calls`", a.calls != b.calls),
        ("`copies`", a.copies != b.copies),
        ("`backups`", a.backups != b.backups),
    ])
}

fn limit_keys(a: &IpcLimits, b: &IpcLimits) -> Vec<&'static str> {
    differing(&[
        ("endpoints", a.endpoints != b.endpoints),
        ("anonymous_per_domain", a.anonymous_per_domain != b.anonymous_per_domain),
        ("pairs", a.pairs != b.pairs),
        ("ring_bytes", a.ring_bytes != b.ring_bytes),
        ("bytes", a.bytes != b.bytes),
        ("buffers", a.buffers != b.buffers),
        ("grants", a.grants != b.grants),
    ])
}

/// A step for each domain that has more verbs in `more` than in `less`.
fn permissions(more: &Service, less: &Service, step: fn(Name, Name, BTreeSet<Verb>) -> Step) -> Vec<Step> {
    let excess = |(domain, verbs): (&Name, &BTreeSet<Verb>)| {
        let kept = less.allow.get(domain);
        let excess: BTreeSet<Verb> =
            verbs.iter().filter(|verb| !kept.is_some_and(|kept| kept.contains(verb))).cloned().collect();
        (!excess.is_empty()).then(|| step(more.name.clone(), domain.clone(), excess))
    };
    more.allow.iter().filter_map(excess).collect()
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The plan that undoes the first `done` steps of this one: each step reversed, last first.
    #[must_use]
    pub fn undo(&self, done: usize) -> Self {
        Self { steps: self.steps.iter().take(done).rev().map(Step::inverse).collect() }
    }

    /// Applies the plan to `topology`, for the registry's books; nothing is started.
    pub fn apply(&self, topology: &mut Topology) {
        for step in &self.steps {
            step.apply(topology);
        }
    }
}

impl Step {
    fn grant(service: Name, domain: Name, verbs: BTreeSet<Verb>) -> Self {
        Self::Grant { service, domain, verbs }
    }

    fn revoke(service: Name, domain: Name, verbs: BTreeSet<Verb>) -> Self {
        Self::Revoke { service, domain, verbs }
    }

    /// The step that undoes this one.
    #[must_use]
    pub fn inverse(&self) -> Self {
        match self.clone() {
            Self::Start { domain } => Self::Stop { domain },
            Self::Stop { domain } => Self::Start { domain },
            Self::Restart { before, after, changed } => {
                Self::Restart { before: after, after: before, changed }
            }
            Self::Update { before, after, changed } => Self::Update { before: after, after: before, changed },
            Self::AddService { service } => Self::RemoveService { service },
            Self::RemoveService { service } => Self::AddService { service },
            Self::UpdateService { before, after, changed } => {
                Self::UpdateService { before: after, after: before, changed }
            }
            Self::Grant { service, domain, verbs } => Self::Revoke { service, domain, verbs },
            Self::Revoke { service, domain, verbs } => Self::Grant { service, domain, verbs },
            Self::UpdateAdaptations { before, after } => {
                Self::UpdateAdaptations { before: after, after: before }
            }
            Self::UpdateEndpoints { before, after, changed } => {
                let undone = Self::UpdateEndpoints { before: after.clone(), after: before.clone(), changed };
                update_endpoints(*after, *before).unwrap_or(undone)
            }
        }
    }

    /// Applies the step to `topology`.
    pub fn apply(&self, topology: &mut Topology) {
        match self {
            Self::Start { domain: after } | Self::Restart { after, .. } | Self::Update { after, .. } => {
                topology.domains.retain(|domain| domain.name != after.name);
                topology.domains.push((**after).clone());
                topology.domains.sort_by(|a, b| a.name.cmp(&b.name));
            }
            Self::Stop { domain: gone } => topology.domains.retain(|domain| domain.name != gone.name),
            Self::AddService { service } => {
                topology.services.retain(|known| known.name != service.name);
                topology.services.push((**service).clone());
                topology.services.sort_by(|a, b| a.name.cmp(&b.name));
            }
            Self::RemoveService { service } => topology.services.retain(|known| known.name != service.name),
            Self::UpdateService { after, .. } => {
                let known = topology.services.iter_mut().find(|known| known.name == after.name);
                if let Some(service) = known {
                    service.domain = after.domain.clone();
                    service.backups = after.backups.clone();
                    service.memory_bytes = after.memory_bytes;
                    service.settings = after.settings.clone();
                }
            }
            Self::Grant { service, domain, verbs } => {
                permit(topology, service, domain, |had| had.extend(verbs.iter().cloned()))
            }
            Self::Revoke { service, domain, verbs } => {
                permit(topology, service, domain, |had| had.retain(|verb| !verbs.contains(verb)));
            }
            Self::UpdateAdaptations { after, .. } => topology.adaptations.clone_from(after),
            Self::UpdateEndpoints { after, .. } => {
                topology.endpoints = after.endpoints.clone();
                topology.ipc = after.limits;
            }
        }
    }
}

/// Returns the adaptations that come, go or differ, in words.
fn adaptation_changes(before: &[Adaptation], after: &[Adaptation]) -> Vec<String> {
    let find = |list: &[Adaptation], name: &Name| list.iter().find(|one| one.name == *name).cloned();
    let gone = before.iter().filter(|one| find(after, &one.name).is_none());
    let gone = gone.map(|one| format!("no longer `{}`", one.name));
    let come = after.iter().filter_map(|one| match find(before, &one.name) {
        None => Some(format!("`{}` of {}", one.name, one.domain)),
        Some(known) if known != *one => Some(format!("`{}` is another", one.name)),
        Some(_) => None,
    });
    gone.chain(come).collect()
}

/// Changes what a domain may; who may nothing is not listed.
fn permit(topology: &mut Topology, service: &Name, domain: &Name, change: impl FnOnce(&mut BTreeSet<Verb>)) {
    let Some(service) = topology.services.iter_mut().find(|known| known.name == *service) else { return };
    change(service.allow.entry(domain.clone()).or_default());
    service.allow.retain(|_, verbs| !verbs.is_empty());
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { domain } => write!(f, "start {}", domain.name),
            Self::Stop { domain } => write!(f, "stop {}", domain.name),
            Self::Restart { after, changed, .. } => write!(f, "restart {}: {}", after.name, differ(changed)),
            Self::Update { after, changed, .. } => {
                write!(f, "update {} while it runs: {}", after.name, differ(changed))
            }
            Self::AddService { service } => write!(f, "add service {} in {}", service.name, service.domain),
            Self::RemoveService { service } => write!(f, "remove service {}", service.name),
            Self::UpdateService { after, changed, .. } => {
                write!(f, "update service {} while it runs: {}", after.name, differ(changed))
            }
            Self::Grant { service, domain, verbs } => {
                write!(f, "allow {domain} to {} {service}", words(verbs))
            }
            Self::Revoke { service, domain, verbs } => {
                write!(f, "no longer allow {domain} to {} {service}", words(verbs))
            }
            Self::UpdateEndpoints { changed, .. } => write!(f, "endpoints: {}", some(changed)),
            Self::UpdateAdaptations { before, after } => {
                write!(f, "adaptations: {}", some(&adaptation_changes(before, after)))
            }
        }
    }
}

impl fmt::Display for Plan {
    /// One line per step; "nothing to do" where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "nothing to do");
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

/// The first of many things in words.
fn some(changed: &[String]) -> String {
    let told = changed.iter().take(CHANGES_TOLD_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    match changed.len().saturating_sub(CHANGES_TOLD_MAX) {
        0 => told,
        more => format!("{told} and {more} more"),
    }
}

fn differ(keys: &[String]) -> String {
    let keys: Vec<String> = keys.iter().map(|key| format!("`{key}`")).collect();
    format!("{} changed", keys.join(", "))
}

fn words(verbs: &BTreeSet<Verb>) -> String {
    verbs.iter().map(|verb| verb.as_str()).collect::<Vec<_>>().join(" and ")
}
