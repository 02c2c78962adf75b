//! The one state tree of the node, put together whenever somebody looks.

use crate::api::node::Node;
use crate::base::meant;
use crate::broker::{MemberRow, Role};
use crate::domains::supervisor::Supervised;
use crate::domains::{HealthView, exit_text, relays};
use admin::{Code, DomainRow, EndpointRow, HealthRow, LayerRow, MachineRow, Problem, ServiceRow};
use domain::Exit;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use topology::{Program, Topology};

/// How long frontends and servers have to say their state; who is slower is shown without it.
const INSPECT_DEADLINE: Duration = Duration::from_millis(500);
/// Longest state that one peer may put into the tree, in bytes of JSON: a packet of the control
/// socket holds no more.
const MAX_STATE_BYTES: usize = wire::control::MAX_PACKET_BYTES;

/// The peers' own reports, by distributed container, domain, and their role.
type Said = HashMap<(String, String, Role), Value>;

/// The whole tree.
pub(crate) async fn whole(node: &Arc<Node>) -> Value {
    let said = ask_all(node).await;
    let mut containers = Map::new();
    for (dc, topology) in node.domains.topologies() {
        let mut domains = Map::new();
        for domain in &topology.domains {
            let name = domain.name.as_str();
            domains.insert(name.to_owned(), domain_tree(node, &dc, domain, &said).await);
        }
        let services = service_trees(node, &dc, &topology, &said);
        let known = node.domains.known(&dc);
        let file = known.as_ref().map(|known| &known.desired.file);
        let revision = known.as_ref().map(|known| known.revision);
        let (endpoints, ipc) = (node.broker.endpoint_trees(&dc), node.broker.ipc_tree(&dc));
        let tree = json!({
            "file": file, "revision": revision, "domains": domains, "services": services, "endpoints": endpoints,
            "ipc": ipc,
        });
        containers.insert(dc, tree);
    }
    let mut links = Map::new();
    if let Some(proxies) = node.proxies.get() {
        for row in proxies.rows().await {
            links.insert(row.node.clone(), json!(row));
        }
    }
    let reserve = {
        let node = Arc::clone(node);
        // Dispatchers are asked.
        crate::base::LOOKS.run(move || node.book.tree()).await.unwrap_or_default()
    };
    json!({ "node": node_tree(node), "dc": containers, "links": links, "reserve": reserve, "targets": node.domains.targets.state() })
}

fn node_tree(node: &Node) -> Value {
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_s": node.started.elapsed().as_secs(),
        "run_dir": node.place.run_dir,
        "state_dir": node.place.state_dir,
        "cgroup": node.layout.cgroup_name,
        "host": node.host,
        "kvm": kvm(node),
        "changes": node.domains.changes.rows(),
    })
}

/// Whether KVM works here, as far as somebody has wanted to know.
fn kvm(node: &Node) -> Value {
    match node.domains.kvm() {
        None => json!({ "tried": false }),
        Some(Ok(())) => json!({ "tried": true, "works": true }),
        Some(Err(why)) => json!({ "tried": true, "works": false, "why": why }),
    }
}

async fn ask_all(node: &Node) -> Said {
    let deadline = tokio::time::Instant::now() + INSPECT_DEADLINE;
    let mut said = Said::new();
    for (id, answer) in node.broker.inspect() {
        let Ok(Ok(state)) = tokio::time::timeout_at(deadline, answer).await else { continue };
        let Some(MemberRow { dc, domain, role }) = node.broker.member(id) else { continue };
        if state.to_string().len() <= MAX_STATE_BYTES {
            said.insert((dc, domain, role), state);
        }
    }
    said
}

async fn domain_tree(node: &Arc<Node>, dc: &str, domain: &topology::Domain, said: &Said) -> Value {
    let name = domain.name.as_str();
    let view = node.domains.supervised(dc, name).map(|supervised| supervised.view());
    let usage = usage(node, dc, name).await;
    let says = |role| said.get(&(dc.to_owned(), name.to_owned(), role));
    let services: Map<String, Value> = domain
        .services
        .iter()
        .map(|mount| {
            let entrances: Vec<&str> =
                [("stub", mount.stub), ("resolve", mount.resolve), ("preload", mount.preload)]
                    .into_iter()
                    .filter_map(|(name, on)| on.then_some(name))
                    .collect();
            let at = format!("/srv/{}", mount.at.as_str());
            (mount.service.as_str().to_owned(), json!({ "at": at, "entrances": entrances }))
        })
        .collect();
    json!({
        "kind": domain.kind.as_str(),
        "state": view.as_ref().map_or("not started", |view| view.state.as_str()),
        "why": view.as_ref().and_then(|view| view.why.clone()).or_else(|| node.book.without(&format!("{dc}/{name}"))),
        "pid": view.as_ref().and_then(|view| view.init_pid),
        "monitor_pid": view.as_ref().and_then(|view| view.monitor_pid),
        "up_s": view.as_ref().and_then(|view| view.since).map(|since| since.elapsed().as_secs()),
        "restarts": view.as_ref().map_or(0, |view| view.restarts),
        "last_exit": view.as_ref().and_then(|view| view.last_exit.as_ref()),
        "health": health_row(domain, view.as_ref().and_then(|view| view.health.as_ref())),
        "network": domain.network.as_str(),
        "root": domain.root,
        "command": words(domain),
        "services": services,
        "sockets": sockets(node, dc, domain).await,
        "usage": usage,
        "layer": layer(node, dc, domain, view.as_ref().and_then(|view| view.monitor_pid)).await,
        "machine": machine_row(node, dc, domain, view.as_ref().and_then(|view| view.last_exit.as_ref())),
        "frontend": {
            "pid": view.as_ref().and_then(|view| view.frontend_pid),
            "restarts": view.as_ref().map_or(0, |view| view.frontend_restarts),
            "state": says(Role::Frontend),
            "entrances": says(Role::Entrances),
        },
    })
}

/// Returns the outcome of a domain's health checks.
fn health_row(domain: &topology::Domain, health: Option<&HealthView>) -> Option<HealthRow> {
    let (health, admitted) = (health?, domain.health.as_ref()?);
    Some(HealthRow {
        state: health.state.to_owned(),
        failures: health.failures,
        fails: admitted.fails,
        last_failure: health.last_failure.clone(),
    })
}

/// The sockets of other domains that a domain sees, and who is connected to its own; `null` where
/// it takes part in no socket service.
async fn sockets(node: &Node, dc: &str, domain: &topology::Domain) -> Value {
    let topology = node.domains.topology(dc);
    let wanted = topology.as_ref().and_then(|topology| relays::order(topology, domain));
    if wanted.is_none() {
        return Value::Null;
    }
    let at: Map<String, Value> = domain
        .sockets
        .iter()
        .map(|mount| (mount.service.as_str().to_owned(), mount.to_string().into()))
        .collect();
    json!({ "at": at, "relay": relays::state(&node.domains, dc, domain).await })
}

/// Returns the use that a domain's cgroup tells; its files are read away from the loop.
async fn usage(node: &Arc<Node>, dc: &str, name: &str) -> Option<domain::Usage> {
    let cgroup = node.layout.domain(dc, name).ok()?.cgroup;
    let (node, vtm) = (Arc::clone(node), format!("{dc}/{name}"));
    let look = move || {
        let usage = node.cgroups.usage(&cgroup);
        let elsewhere = node.book.used_elsewhere_ns(&vtm);
        let cpu_ns = elsewhere.map(|ns| usage.cpu_ns.unwrap_or(0).saturating_add(ns)).or(usage.cpu_ns);
        domain::Usage { cpu_ns, ..usage }
    };
    crate::base::LOOKS.run(look).await.ok()
}

/// The bounds of what a domain writes to its root, and how much of that there is.
async fn layer(
    node: &Arc<Node>,
    dc: &str,
    domain: &topology::Domain,
    monitor: Option<u32>,
) -> Option<LayerRow> {
    let bound = domain.layer()?;
    let (node, dc, name) = (Arc::clone(node), dc.to_owned(), domain.name.as_str().to_owned());
    let look = move || domain::layer_usage(&node.layout, &dc, &name, monitor?);
    let used = crate::base::LOOKS.run(look).await.ok().flatten();
    Some(LayerRow {
        size_bytes: bound.size_bytes,
        inodes: u64::from(bound.inodes),
        used_bytes: used.map(|used| used.bytes),
        used_inodes: used.map(|used| used.inodes),
    })
}

fn service_trees(node: &Node, dc: &str, topology: &Topology, said: &Said) -> Map<String, Value> {
    let channels = node.broker.channels();
    let mut services = Map::new();
    for service in &topology.services {
        let name = service.name.as_str();
        let row = node.broker.service(dc, name);
        let state = said.get(&(dc.to_owned(), service.domain.as_str().to_owned(), Role::Program));
        let open: Vec<_> = channels.iter().filter(|c| c.dc == dc && c.service == name).collect();
        let tree = json!({
            "kind": service.kind().as_str(),
            "domain": service.domain.as_str(),
            "up": row.up,
            "server_pid": row.server_pid,
            "server_domain": row.server_domain,
            "standing_by": row.standing_by,
            "generation": row.generation,
            "since_unix_s": row.since_unix_s,
            "settings": crate::broker::settings::of_service(service).ok(),
            "allow": service.allow,
            "consumers": consumers(topology, service),
            "channels": open,
            "channels_opened": row.opened,
            "state": state.map(|state| service_state(state, name)),
        });
        services.insert(name.to_owned(), tree);
    }
    services
}

/// Returns a server's report on one of its services, with the counters of each domain under the
/// domain's name.
fn service_state(said: &Value, name: &str) -> Value {
    let service = said.pointer(&format!("/services/{name}")).unwrap_or(&Value::Null);
    let Some(Value::Object(state)) = service.get("state") else { return service.clone() };
    let mut state = state.clone();
    if let Some(Value::Array(domains)) = state.get("domains") {
        let by_name = domains.iter().filter_map(|domain| {
            let mut domain = domain.as_object()?.clone();
            domain.remove("dc");
            let Some(Value::String(name)) = domain.remove("domain") else { return None };
            Some((name, Value::Object(domain)))
        });
        let by_name: Map<String, Value> = by_name.collect();
        state.insert("domains".into(), Value::Object(by_name));
    }
    if let Some(links) = service.get("links") {
        state.insert("links".into(), links.clone());
    }
    Value::Object(state)
}

/// The domains that mount a service, or may open it by its name.
fn consumers(topology: &Topology, service: &topology::Service) -> Vec<String> {
    let uses = |domain: &&topology::Domain| {
        let mounts = domain.services.iter().any(|mount| mount.service == service.name);
        mounts || service.opens(domain.name.as_str())
    };
    topology.domains.iter().filter(uses).map(|domain| domain.name.as_str().to_owned()).collect()
}

/// Returns the program of a domain, in words.
fn words(domain: &topology::Domain) -> Vec<String> {
    match &domain.program {
        Program::Command(words) => words.clone(),
        Program::Image => vec!["(the image's own)".into()],
        Program::Nothing => vec!["(none)".into()],
        Program::Server(services) => {
            let names: Vec<_> = services.iter().map(|name| name.as_str()).collect();
            vec![format!("(server of {})", names.join(", "))]
        }
    }
}

/// Returns the state of a domain's machine and of its guest.
fn machine_row(
    node: &Node,
    dc: &str,
    domain: &topology::Domain,
    last_exit: Option<&Exit>,
) -> Option<MachineRow> {
    let admitted = domain.machine.as_ref()?;
    let said = node.broker.machine(dc, domain.name.as_str());
    let emulated = said.as_ref().is_some_and(|machine| machine.accel == machine::Accel::Tcg.word());
    let why = crate::domains::machines::emulated_because(&node.domains, domain).filter(|_| emulated);
    Some(MachineRow {
        cpus: admitted.cpus,
        memory_bytes: admitted.memory_bytes,
        accel: said.as_ref().map(|machine| machine.accel.clone()),
        emulated_because: why,
        qemu: said.as_ref().map(|machine| machine.qemu.clone()),
        guest: said.as_ref().map(|machine| machine.guest().to_owned()),
        said: said.map(|machine| machine.message).filter(|message| !message.is_empty()),
        outcome: last_exit.and_then(|exit| exit.outcome.clone()),
    })
}

/// `ps`.
pub(crate) async fn domain_rows(node: &Arc<Node>) -> Vec<DomainRow> {
    let mut rows = Vec::new();
    for (dc, topology) in node.domains.topologies() {
        for domain in &topology.domains {
            let supervised = node.domains.supervised(&dc, domain.name.as_str());
            rows.push(domain_row(node, &dc, domain, supervised).await);
        }
    }
    rows
}

async fn domain_row(
    node: &Arc<Node>,
    dc: &str,
    domain: &topology::Domain,
    supervised: Option<Arc<Supervised>>,
) -> DomainRow {
    let name = domain.name.as_str();
    let view = supervised.map(|supervised| supervised.view());
    let state = view.as_ref().map_or("not started", |view| view.state.as_str());
    let view = view.unwrap_or_default();
    let usage = usage(node, dc, name).await.unwrap_or_default();
    DomainRow {
        dc: dc.to_owned(),
        domain: name.to_owned(),
        node: None,
        kind: domain.kind.as_str().into(),
        state: state.into(),
        pid: view.init_pid,
        monitor_pid: view.monitor_pid,
        frontend_pid: view.frontend_pid,
        up_s: view.since.map(|since| since.elapsed().as_secs()),
        restarts: view.restarts,
        frontend_restarts: view.frontend_restarts,
        last_exit: view.last_exit.as_ref().map(exit_text),
        why: view.why.or_else(|| node.book.without(&format!("{dc}/{name}"))),
        health: health_row(domain, view.health.as_ref()),
        cpu_us: usage.cpu_ns.map(|ns| ns / 1000),
        memory_bytes: usage.memory.used_bytes,
        layer: layer(node, dc, domain, view.monitor_pid).await,
        promised: node.book.short(&format!("{dc}/{name}")),
        processes: usage.pids,
        command: words(domain),
        machine: machine_row(node, dc, domain, view.last_exit.as_ref()),
        services: domain
            .services
            .iter()
            .map(|m| format!("{}:/srv/{}", m.service.as_str(), m.at.as_str()))
            .chain(domain.sockets.iter().map(|m| format!("{}:{m}", m.service.as_str())))
            .chain(domain.published.iter().map(|it| format!("{}->{}", it.at, it.port)))
            .collect(),
    }
}

/// The row of a domain that no node has.
pub(crate) fn row_of_none(dc: &str, domain: &topology::Domain, state: &str) -> DomainRow {
    DomainRow {
        dc: dc.to_owned(),
        domain: domain.name.as_str().to_owned(),
        node: None,
        kind: domain.kind.as_str().into(),
        state: state.to_owned(),
        pid: None,
        monitor_pid: None,
        frontend_pid: None,
        up_s: None,
        restarts: 0,
        frontend_restarts: 0,
        last_exit: None,
        why: None,
        health: None,
        cpu_us: None,
        memory_bytes: None,
        layer: None,
        promised: None,
        processes: None,
        command: words(domain),
        machine: None,
        services: Vec::new(),
    }
}

/// `service ls`.
pub(crate) fn service_rows(node: &Node) -> Vec<ServiceRow> {
    let channels = node.broker.channels();
    let mut rows = Vec::new();
    for (dc, topology) in node.domains.topologies() {
        for service in &topology.services {
            let name = service.name.as_str();
            let row = node.broker.service(&dc, name);
            rows.push(ServiceRow {
                dc: dc.clone(),
                service: name.to_owned(),
                kind: service.kind().as_str().into(),
                domain: service.domain.as_str().to_owned(),
                up: row.up,
                server_pid: row.server_pid,
                generation: row.generation,
                consumers: consumers(&topology, service),
                channels: channels.iter().filter(|c| c.dc == dc && c.service == name).count(),
            });
        }
    }
    rows
}

/// `endpoint ls`.
pub(crate) fn endpoint_rows(node: &Node) -> Vec<EndpointRow> {
    node.domains.topologies().iter().flat_map(|(dc, _)| node.broker.endpoint_rows(dc)).collect()
}

/// A part of the tree by its path: `dc/NAME/domains/NAME`, or a name that is clear by itself.
pub(crate) fn part(node: &Node, whole: &Value, path: &str) -> Result<Value, Problem> {
    let path = path.trim_matches('/');
    if path.is_empty() {
        return Ok(whole.clone());
    }
    match walk(whole, path) {
        Ok(found) => Ok(found.clone()),
        Err(problem) => by_name(node, whole, path).ok_or(problem),
    }
}

fn by_name(node: &Node, whole: &Value, name: &str) -> Option<Value> {
    let at =
        |(dc, name): (String, String), kind: &str| whole.pointer(&format!("/dc/{dc}/{kind}/{name}")).cloned();
    if let Ok(found) = node.domains.find_domain(name) {
        return at(found, "domains");
    }
    if let Ok(found) = node.domains.find_service(name) {
        return at(found, "services");
    }
    if let Ok(found) = node.domains.find_endpoint(name) {
        return at(found, "endpoints");
    }
    whole.pointer(&format!("/dc/{name}")).cloned()
}

fn walk<'t>(whole: &'t Value, path: &str) -> Result<&'t Value, Problem> {
    let mut at = whole;
    let mut walked = String::new();
    for part in path.split('/') {
        let next = match at {
            Value::Object(map) => map.get(part),
            Value::Array(list) => part.parse::<usize>().ok().and_then(|index| list.get(index)),
            _ => None,
        };
        let Some(next) = next else {
            let names: Vec<String> =
                at.as_object().map_or_else(Vec::new, |map| map.keys().cloned().collect());
            let place = if walked.is_empty() { "the state tree" } else { walked.as_str() };
            return Err(Problem::new(Code::UnknownPath, format!("there is no {part:?} in {place}"))
                .help(meant(part, &names, "names there")));
        };
        if !walked.is_empty() {
            walked.push('/');
        }
        walked += part;
        at = next;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_counts_stands_under_the_name_of_the_domain() {
        let said = json!({"services": {"dns": {"kind": "directory", "links": [1],
            "state": {"uptime": 3, "domains": [{"dc": "shop", "domain": "web", "hits": 2}, "nonsense"]}}}});
        let state = service_state(&said, "dns");
        assert_eq!(state, json!({"uptime": 3, "links": [1], "domains": {"web": {"hits": 2}}}));
        assert_eq!(service_state(&said, "other"), Value::Null);
    }

    #[test]
    fn a_path_walks_the_tree_or_says_where_it_ended() {
        let tree = json!({"dc": {"shop": {"domains": {"web": {"pid": 5}}, "list": [1, 2]}}});
        assert_eq!(walk(&tree, "dc/shop/domains/web/pid").unwrap(), &json!(5));
        assert_eq!(walk(&tree, "dc/shop/list/1").unwrap(), &json!(2));
        let problem = walk(&tree, "dc/shop/domains/wbe").unwrap_err();
        assert_eq!(problem.help.as_deref(), Some("did you mean \"web\"?"));
        assert!(problem.message.contains("dc/shop/domains"), "{problem}");
        assert!(walk(&tree, "dc/shop/list/9").is_err());
    }
}
