//! The broker's rows of endpoints, for the state tree and for listings.

use super::{Awaited, Bound, Inner, Slot, Table};
use crate::broker::state::unix_seconds;
use crate::broker::{Broker, MemberId};
use admin::EndpointRow;
use ipc::grants::{Access, cost_bytes};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use topology::{Caller, EndpointVerb, Topology};
use wire::control::EndpointRights;
use wire::ipc::Address;

/// Endpoints of one distributed container that the state tree lists, those with names first: a tree
/// is for looking at. Listings of endpoints have all.
const MAX_IN_TREE: usize = 1024;
/// Entries of one list of an endpoint: peers, grants, or those whom it may call. A list that is
/// longer says so by its number.
const MAX_LISTED: usize = 256;

/// The key of an endpoint: its name, or its address.
enum Key<'a> {
    Name(&'a str),
    Slot(u32),
}

/// The buffers that an endpoint has.
#[derive(Clone, Copy, Default)]
struct Held {
    buffers: usize,
    grants: usize,
    bytes: u64,
}

impl Broker {
    /// All endpoints of a distributed container: those with names, bound or not, and then the
    /// others.
    pub(crate) fn endpoint_rows(&self, dc: &str) -> Vec<EndpointRow> {
        let inner = self.lock();
        let held = inner.held(dc);
        inner.keys(dc).iter().filter_map(|key| inner.row(dc, key, &held)).collect()
    }

    /// Names and addresses by which endpoints can be asked for.
    pub(crate) fn endpoint_keys(&self, dc: &str) -> Vec<String> {
        let inner = self.lock();
        let Some(table) = inner.endpoints.tables.get(dc) else { return Vec::new() };
        let names = inner.topologies.get(dc).into_iter().flat_map(|topology| &topology.endpoints);
        let addresses = table.slots.keys().filter_map(|slot| table.address(*slot));
        names
            .map(|endpoint| endpoint.name.as_str().to_owned())
            .chain(addresses.map(|address| format!("{}.{}", address.slot, address.generation)))
            .collect()
    }

    /// Everything about one, by its name or its address.
    pub(crate) fn endpoint(&self, dc: &str, which: &str) -> Option<Value> {
        let inner = self.lock();
        let topology = inner.topologies.get(dc)?;
        let table = inner.endpoints.tables.get(dc)?;
        let key = match which.parse::<Address>() {
            Ok(Address { slot, generation }) => {
                let (bound, entry) = table.bound(slot).filter(|(bound, _)| bound.generation == generation)?;
                debug_assert_eq!(bound.generation, generation);
                entry.name.as_deref().map_or(Key::Slot(slot), Key::Name)
            }
            Err(_) => Key::Name(which),
        };
        let mut tree = inner.tree(dc, &key, &inner.held(dc))?;
        let named = match key {
            Key::Name(name) => topology.endpoint(name),
            Key::Slot(_) => None,
        };
        let me = match (named, key) {
            (Some(endpoint), _) => {
                Some(Caller { name: Some(endpoint.name.as_str()), domain: endpoint.domain.as_str() })
            }
            (None, Key::Slot(slot)) => table.caller(slot),
            (None, Key::Name(_)) => None,
        };
        tree.insert("may_call".into(), may_call(topology, me?));
        tree.insert("called_by".into(), called_by(topology, named));
        tree.insert("limits".into(), inner.limits_of(dc));
        Some(Value::Object(tree))
    }

    /// Endpoints of a distributed container, for the state tree.
    pub(crate) fn endpoint_trees(&self, dc: &str) -> Map<String, Value> {
        let inner = self.lock();
        let held = inner.held(dc);
        let keys = inner.keys(dc);
        let listed = keys.iter().take(MAX_IN_TREE);
        listed
            .filter_map(|key| {
                let tree = inner.tree(dc, key, &held)?;
                let name = match key {
                    Key::Name(name) => (*name).to_owned(),
                    Key::Slot(_) => tree.get("address")?.as_str()?.to_owned(),
                };
                Some((name, Value::Object(tree)))
            })
            .collect()
    }

    /// The use that a distributed container has made of its limits, and its counters.
    pub(crate) fn ipc_tree(&self, dc: &str) -> Value {
        let inner = self.lock();
        let mut tree = inner.limits_of(dc);
        let table = inner.endpoints.tables.get(dc);
        let (binds, introductions) = table.map_or((0, 0), |table| (table.binds, table.introductions));
        let unnamed: usize = table.map_or(0, |table| table.anonymous.values().sum());
        if let Some(tree) = tree.as_object_mut() {
            tree.insert("unnamed".into(), json!(unnamed));
            tree.insert("binds_total".into(), json!(binds));
            tree.insert("introductions_total".into(), json!(introductions));
        }
        tree
    }
}

impl Inner {
    fn keys(&self, dc: &str) -> Vec<Key<'_>> {
        let (Some(topology), Some(table)) = (self.topologies.get(dc), self.endpoints.tables.get(dc)) else {
            return Vec::new();
        };
        let names = topology.endpoints.iter().map(|endpoint| Key::Name(endpoint.name.as_str()));
        let unnamed = table.slots.iter().filter(|(_, slot)| slot.name.is_none() && slot.bound.is_some());
        let mut unnamed: Vec<u32> = unnamed.map(|(number, _)| *number).collect();
        unnamed.sort_unstable();
        names.chain(unnamed.into_iter().map(Key::Slot)).collect()
    }

    /// The buffers of each endpoint: looked for once, for all.
    fn held(&self, dc: &str) -> HashMap<Address, Held> {
        let mut held: HashMap<Address, Held> = HashMap::new();
        let Some(table) = self.endpoints.tables.get(dc) else { return held };
        for buffer in table.buffers.table.buffers() {
            let held = held.entry(buffer.owner).or_default();
            held.buffers += 1;
            held.bytes += cost_bytes(buffer.bytes);
        }
        for grant in table.buffers.table.grants() {
            held.entry(grant.owner).or_default().grants += 1;
        }
        held
    }

    /// The slot that is meant, and who is there.
    fn found<'a>(table: &'a Table, key: &Key<'_>) -> Option<(u32, &'a Slot, Option<&'a Bound>)> {
        let number = match key {
            Key::Name(name) => *table.names.get(*name)?,
            Key::Slot(slot) => *slot,
        };
        table.slots.get(&number).map(|slot| (number, slot, slot.bound.as_ref()))
    }

    fn row(&self, dc: &str, key: &Key<'_>, held: &HashMap<Address, Held>) -> Option<EndpointRow> {
        let (topology, table) = (self.topologies.get(dc)?, self.endpoints.tables.get(dc)?);
        let found = Self::found(table, key);
        let bound = found.and_then(|(_, _, bound)| bound);
        let domain = match (key, bound) {
            (Key::Name(name), _) => topology.endpoint(name)?.domain.as_str(),
            (Key::Slot(_), Some(bound)) => bound.domain.as_str(),
            (Key::Slot(_), None) => return None,
        };
        let address =
            bound.zip(found).map(|(bound, (slot, ..))| Address { slot, generation: bound.generation });
        let elsewhere = match key {
            Key::Name(name) if bound.is_none() => self.bound_on(dc, name),
            _ => None,
        };
        let has = address.and_then(|address| held.get(&address)).copied().unwrap_or_default();
        let pairs = found.zip(bound).map_or(0, |((slot, ..), bound)| self.bytes_of_pairs(table, slot, bound));
        Some(EndpointRow {
            dc: dc.to_owned(),
            endpoint: match key {
                Key::Name(name) => Some((*name).to_owned()),
                Key::Slot(_) => None,
            },
            address: address
                .or_else(|| {
                    elsewhere.as_ref().map(|(_, at)| Address { slot: at.slot, generation: at.generation })
                })
                .map(|address| address.to_string()),
            domain: domain.to_owned(),
            bound: bound.is_some() || elsewhere.is_some(),
            node: elsewhere.map(|(node, _)| node),
            pid: bound.map(|bound| bound.pid),
            peers: bound.map_or(0, |bound| bound.peers.len()),
            waiting: self.waiting(table, key, address).count(),
            buffers: has.buffers,
            grants: has.grants,
            bytes: pairs + has.bytes,
        })
    }

    fn bytes_of_pairs(&self, table: &Table, slot: u32, bound: &Bound) -> u64 {
        let channels =
            bound.peers.iter().filter_map(|peer| table.pairs.get(&super::pair_of(slot, *peer))?.channel);
        channels.map(|channel| self.endpoints.regions.bytes_of(channel)).sum()
    }

    /// The members that wait for an endpoint.
    fn waiting<'a>(
        &self,
        table: &'a Table,
        key: &'a Key<'_>,
        address: Option<Address>,
    ) -> impl Iterator<Item = &'a MemberId> {
        let waits = move |awaited: &Awaited| match (awaited, key) {
            (Awaited::Name(awaited), Key::Name(name)) => awaited == name,
            (Awaited::Address(awaited), _) => {
                address == Some(Address { slot: awaited.slot, generation: awaited.generation })
            }
            _ => false,
        };
        table.waiting.iter().filter(move |(_, awaited)| waits(awaited)).map(|(member, _)| member)
    }

    /// The row of one, with its peers and its grants.
    fn tree(&self, dc: &str, key: &Key<'_>, held: &HashMap<Address, Held>) -> Option<Map<String, Value>> {
        let row = self.row(dc, key, held)?;
        let (topology, table) = (self.topologies.get(dc)?, self.endpoints.tables.get(dc)?);
        let found = Self::found(table, key);
        let bound = found.and_then(|(_, _, bound)| bound);
        let named = row.endpoint.as_deref().and_then(|name| topology.endpoint(name));
        let address =
            bound.zip(found).map(|(bound, (slot, ..))| Address { slot, generation: bound.generation });
        let waiting: Vec<Value> = self
            .waiting(table, key, address)
            .take(MAX_LISTED)
            .filter_map(|member| self.members.get(member))
            .map(|member| json!({ "domain": member.identity.domain, "pid": member.identity.pid }))
            .collect();
        let mut tree = match serde_json::to_value(&row) {
            Ok(Value::Object(tree)) => tree,
            _ => return None,
        };
        let rest = json!({
            "slot": found.map(|(slot, ..)| slot),
            "generation": bound.map(|bound| bound.generation),
            "since_unix_s": bound.map(|bound| unix_seconds(bound.since)),
            "binds": found.map_or(0, |(_, slot, _)| slot.binds),
            "copies": named.is_some_and(|endpoint| endpoint.copies),
            "waiting": waiting,
            "migration": bound.and_then(|bound| bound.order.as_ref()),
            "peer_count": row.peers,
            "peers": found.zip(bound).map(|((slot, ..), bound)| self.peers(table, slot, bound)),
            "buffer_count": row.buffers,
            "buffers": address.map(|address| buffers(table, address)),
            "grant_count": row.grants,
            "grants": address.map(|address| grants(table, |grant| grant.owner == address)),
            "granted": address.map(|address| grants(table, |grant| grant.to == address)),
            "introduced": bound.map_or(0, |bound| bound.counters.introduced),
            "refused": bound.map_or(0, |bound| bound.counters.refused),
            "borrowed": bound.map_or(0, |bound| bound.counters.borrowed),
        });
        if let Value::Object(rest) = rest {
            tree.extend(rest);
        }
        Some(tree)
    }

    fn peers(&self, table: &Table, slot: u32, bound: &Bound) -> Vec<Value> {
        let listed = bound.peers.iter().take(MAX_LISTED);
        let mut rows: Vec<(Option<String>, Value)> = listed
            .filter_map(|peer| {
                let key = super::pair_of(slot, *peer);
                let pair = table.pairs.get(&key)?;
                let far = table.far.get(peer);
                let (address, other) = (table.address(*peer)?, table.caller(*peer)?);
                let [first, second] = pair.rights;
                let rights = if key.0 == slot { first } else { second };
                let row = json!({
                    "address": Address { slot: *peer, generation: address.generation }.to_string(),
                    "endpoint": other.name,
                    "domain": other.domain,
                    "node": far.map(|far| far.node.as_str()),
                    "channel": pair.channel,
                    "bytes": pair.channel.map(|channel| self.endpoints.regions.bytes_of(channel)),
                    "since_unix_s": unix_seconds(pair.since),
                    "may": words(rights.send, rights.request, rights.notify, rights.relay),
                    "lets": lets(rights),
                });
                Some((other.name.map(str::to_owned), row))
            })
            .collect();
        // By name, and those without one behind; slots go by who came first.
        rows.sort_by(|(one, _), (other, _)| (one.is_none(), one).cmp(&(other.is_none(), other)));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn limits_of(&self, dc: &str) -> Value {
        let Some(topology) = self.topologies.get(dc) else { return Value::Null };
        let table = self.endpoints.tables.get(dc);
        let regions = &self.endpoints.regions;
        let (limits, buffers) = (&topology.ipc, table.map(|table| &table.buffers.table));
        let pairs = regions.count(dc).max(table.map_or(0, |table| table.pairs.len()));
        json!({
            "endpoints": { "used": table.map_or(0, |table| table.bound), "limit": limits.endpoints },
            "pairs": { "used": pairs, "limit": limits.pairs },
            "bytes": { "used": self.ipc_bytes(dc), "limit": limits.bytes },
            "buffers": { "used": buffers.map_or(0, |table| table.buffers().len()), "limit": limits.buffers },
            "grants": { "used": buffers.map_or(0, |table| table.grants().len()), "limit": limits.grants },
        })
    }
}

fn buffers(table: &Table, owner: Address) -> Vec<Value> {
    let own = table.buffers.table.buffers().filter(|buffer| buffer.owner == owner).take(MAX_LISTED);
    own.map(|buffer| {
        json!({ "buffer": buffer.buffer, "bytes": buffer.bytes, "access": buffer.access.map(access) })
    })
    .collect()
}

fn grants(table: &Table, which: impl Fn(&ipc::grants::Granted) -> bool) -> Vec<Value> {
    let found = table.buffers.table.grants().filter(which).take(MAX_LISTED);
    found
        .map(|grant| {
            json!({
                "grant": grant.grant,
                "buffer": grant.buffer,
                "owner": grant.owner.to_string(),
                "to": grant.to.to_string(),
                "access": access(grant.access),
                "bytes": grant.bytes,
            })
        })
        .collect()
}

fn access(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
    }
}

fn words(send: bool, request: bool, notify: bool, relay: bool) -> Vec<&'static str> {
    let each = [send, request, notify, relay].into_iter().zip(EndpointVerb::ALL);
    each.filter_map(|(may, verb)| may.then_some(verb.as_str())).collect()
}

/// The words for the rights of the other of a pair.
fn lets(rights: EndpointRights) -> Vec<&'static str> {
    words(rights.hears, rights.answers, rights.heeds, rights.answers_relayed)
}

/// The endpoints that one may call, by the file.
fn may_call(topology: &Topology, me: Caller<'_>) -> Value {
    let others = topology.endpoints.iter().filter_map(|other| {
        let name = other.name.as_str();
        let verbs = topology.may_call(me, Caller { name: Some(name), domain: other.domain.as_str() });
        let verbs: Vec<&str> = verbs.into_iter().map(EndpointVerb::as_str).collect();
        (!verbs.is_empty()).then(|| json!({ "endpoint": name, "verbs": verbs }))
    });
    others.take(MAX_LISTED).collect()
}

/// The callers that one admits by its `allow`, less those whose own `calls` leave it out.
fn called_by(topology: &Topology, endpoint: Option<&topology::Endpoint>) -> Value {
    let Some(endpoint) = endpoint else { return json!([]) };
    let verbs = |verbs: &std::collections::BTreeSet<EndpointVerb>| -> Vec<&str> {
        verbs.iter().map(|verb| verb.as_str()).collect()
    };
    let calls = |name: &topology::Name| {
        let calls = topology.endpoint(name).and_then(|caller| caller.calls.as_ref());
        calls.is_none_or(|calls| calls.contains(&endpoint.name))
    };
    let endpoints = endpoint.allow_endpoints.iter().filter(|(name, _)| calls(name));
    let endpoints = endpoints.map(|(name, may)| json!({ "endpoint": name.as_str(), "verbs": verbs(may) }));
    let domains = endpoint.allow_domains.iter();
    let domains = domains.map(|(name, may)| json!({ "domain": name.as_str(), "verbs": verbs(may) }));
    endpoints.chain(domains).take(MAX_LISTED).collect()
}
