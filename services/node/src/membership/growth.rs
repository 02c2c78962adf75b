//! How many members the cluster's own etcd has, and on which nodes: one with one or two nodes,
//! three from three on, five from five on.
//!
//! Every node decides alike from what etcd holds, and one at a time changes something: whoever has
//! put `etcd/change`, which ends with its lease. A member comes as a learner, and has a vote when
//! it holds what the others hold; one that does not come so far is taken away again. Members of
//! nodes that were removed are taken away, and the next node that has none comes in their place.

use super::own_etcd::{end, furnish, own_certificate};
use super::{Cluster, Member, NODES, NodeRecord, blocking, failed, to_json};
use crate::admin::Problem;
use crate::etcd::{self, Keeper, Record};
use registry::{EtcdMember, Expected, Registry, RegistryError};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The key of the node that changes something now.
const CHANGE: &str = "etcd/change";
/// Keys of nodes that can't have a member for now, and why.
pub(super) const CANNOT: &str = "etcd/cannot/";
/// How long a new member may take to learn what the others hold: 512 MiB over a slow network.
const LEARN_TIMEOUT: Duration = Duration::from_secs(120);
/// How long etcd may refuse to take a learner: it wants to have seen all members for 5 s.
const ADD_TIMEOUT: Duration = Duration::from_secs(30);
/// How often it is seen whether it has.
const LOOK_AT_LEARNER: Duration = Duration::from_millis(500);
/// When a node that could not have a member tries again.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// Looks at which the members are said to be without this node's, until that is believed: who is
/// asked may be behind.
const LOOKS_UNTIL_BELIEVED: u32 = 5;

/// The state from look to look.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// How often this node's member was none of the members, one look after the other.
    missing: u32,
    /// Since when this node can't have one.
    cannot: Option<Instant>,
    /// Since when this node's member learns, under this daemon.
    learns: Option<Instant>,
}

/// A node, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Standing {
    name: String,
    alive: bool,
    has_member: bool,
    can: bool,
}

/// How many members a cluster of so many nodes has: a majority of three or five goes on without one
/// or two of them; two are worse than one.
const fn wanted(nodes: usize) -> usize {
    match nodes {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

/// Returns the node that is to have a member next: the first that lives and can. `None`: there are
/// enough, or no such node.
fn next(nodes: &[Standing]) -> Option<&str> {
    let members = nodes.iter().filter(|node| node.has_member).count();
    if members >= wanted(nodes.len()) {
        return None;
    }
    nodes.iter().find(|node| node.alive && node.can && !node.has_member).map(|node| node.name.as_str())
}

fn is_of(member: &EtcdMember, address: SocketAddr) -> bool {
    member.peer_urls.iter().any(|url| *url == etcd::peer_url(address))
}

/// Returns the member of a node.
pub(super) fn member_of<'m>(members: &'m [EtcdMember], node: &Member) -> Option<&'m EtcdMember> {
    members.iter().find(|member| is_of(member, node.address))
}

/// Refuses to remove the node that has etcd's only member: with it all is gone that the cluster
/// knows.
pub(crate) async fn may_leave(cluster: &Cluster, name: &str) -> Result<(), Problem> {
    if !cluster.config().etcd.own {
        return Ok(());
    }
    let Some(node) = cluster.member(name) else { return Ok(()) };
    let here = cluster.clone();
    let members = blocking(move || here.etcd().members().map_err(failed)).await?;
    let mut voters = members.iter().filter(|member| member.votes());
    match (voters.next(), voters.next()) {
        (Some(only), None) if is_of(only, node.address) => Err(Problem::new(
            crate::admin::Code::Taken,
            format!("node {name} has the only member of the cluster's etcd: without it nobody knows what the cluster is"),
        )
        .help("join a third node first: then etcd has three members, and any of them may go")),
        _ => Ok(()),
    }
}

/// Does what there is to do for this node, if anything.
pub(super) async fn step(
    cluster: &Cluster,
    keeper: &Arc<Keeper>,
    believed: &str,
    members: &[EtcdMember],
    growing: &mut Growing,
) -> Result<(), Problem> {
    let own_address = cluster.config().address;
    let mine = members.iter().find(|member| is_of(member, own_address));
    let has_member = keeper.ground().room().record().map_err(failed)?.is_some();
    growing.missing = if has_member && mine.is_none() { growing.missing + 1 } else { 0 };
    match mine {
        Some(mine) if has_member && mine.is_learner => learn(cluster, keeper, mine.id, growing).await,
        // What is left of one that did not come so far, or whose disk is gone.
        Some(mine) if !has_member => alone(cluster, take_away(cluster, mine.id)).await,
        Some(_) => {
            growing.learns = None;
            clean(cluster, members).await
        }
        None if growing.missing >= LOOKS_UNTIL_BELIEVED => {
            tracing::warn!("etcd knows the member of this node no more, and it ends");
            end(keeper).await;
            Ok(())
        }
        None if has_member => Ok(()),
        // Etcd takes no other member while it waits for one that is gone for good.
        None if stray(cluster, members).is_some() => clean(cluster, members).await,
        None => grow(cluster, keeper, believed, members, growing).await,
    }
}

/// A member of a node that is none any more.
fn stray<'m>(cluster: &Cluster, members: &'m [EtcdMember]) -> Option<&'m EtcdMember> {
    let nodes = cluster.nodes();
    // A node that has just joined is known before it has a member; an empty list says that nothing
    // is known yet.
    let is_stray = |member: &&EtcdMember| !nodes.iter().any(|node| is_of(member, node.address));
    members.iter().find(is_stray).filter(|_| !nodes.is_empty())
}

/// Takes away members of nodes that are none any more.
async fn clean(cluster: &Cluster, members: &[EtcdMember]) -> Result<(), Problem> {
    let Some(stray) = stray(cluster, members).cloned() else { return Ok(()) };
    alone(cluster, async move {
        if belongs_to_a_node(cluster, stray.clone()).await? {
            return Ok(());
        }
        take_away(cluster, stray.id).await?;
        tracing::info!(member = stray.name, "the etcd member of a node that was removed is taken away");
        Ok(())
    })
    .await
}

/// As etcd says now: this node may not have heard of a node yet that has come, and a node is
/// written down before its member comes.
async fn belongs_to_a_node(cluster: &Cluster, member: EtcdMember) -> Result<bool, Problem> {
    let here = cluster.clone();
    blocking(move || {
        let nodes = here.etcd().list(NODES).map_err(failed)?;
        let records = nodes.iter().map(|(_, entry)| serde_json::from_slice::<NodeRecord>(&entry.value));
        // Of what is not understood nothing is taken away.
        Ok(records.into_iter().any(|record| record.map_or(true, |record| is_of(&member, record.address))))
    })
    .await
}

async fn take_away(cluster: &Cluster, id: u64) -> Result<(), Problem> {
    let here = cluster.clone();
    blocking(move || here.etcd().remove_member(id).map_err(failed)).await
}

/// Has this node come to etcd as a member, if it is its turn.
async fn grow(
    cluster: &Cluster,
    keeper: &Arc<Keeper>,
    believed: &str,
    members: &[EtcdMember],
    growing: &mut Growing,
) -> Result<(), Problem> {
    let here = cluster.clone();
    let cannot = blocking(move || here.etcd().list(CANNOT).map_err(failed)).await?;
    let cannot: BTreeSet<&str> = cannot.iter().filter_map(|(key, _)| key.strip_prefix(CANNOT)).collect();
    let mut nodes = cluster.nodes();
    nodes.sort_by_key(|node| node.joined_unix_s);
    let standing: Vec<Standing> = nodes
        .iter()
        .map(|node| Standing {
            name: node.name.clone(),
            alive: node.alive,
            has_member: member_of(members, node).is_some(),
            can: !cannot.contains(node.name.as_str()),
        })
        .collect();
    if growing.cannot.is_some_and(|since| since.elapsed() > TRY_AGAIN) {
        growing.cannot = None;
        let (here, key) = (cluster.clone(), format!("{CANNOT}{}", cluster.me()));
        blocking(move || here.etcd().delete(&key, Expected::Anything).map(drop).map_err(failed)).await?;
    }
    if growing.cannot.is_some() || next(&standing) != Some(cluster.me()) || cluster.is_fenced() {
        return Ok(());
    }
    let came = alone(cluster, come(cluster, keeper, believed)).await;
    if let Err(problem) = &came {
        growing.cannot = Some(Instant::now());
        let (here, key) = (cluster.clone(), format!("{CANNOT}{}", cluster.me()));
        let why = to_json(&problem.message)?;
        blocking(move || here.put_leased(&key, &why, Expected::Anything).map(drop).map_err(failed)).await?;
    }
    came
}

/// Does something while nobody else changes the members; nothing where somebody does.
async fn alone(cluster: &Cluster, work: impl Future<Output = Result<(), Problem>>) -> Result<(), Problem> {
    let (here, me) = (cluster.clone(), to_json(&cluster.me())?);
    let taken = blocking(move || match here.put_leased(CHANGE, &me, Expected::Absent) {
        Ok(revision) => Ok(Some(revision)),
        Err(RegistryError::Conflict { .. } | RegistryError::Fenced) => Ok(None),
        Err(error) => Err(failed(error)),
    });
    let Some(revision) = taken.await? else { return Ok(()) };
    let done = work.await;
    let here = cluster.clone();
    let given_back = blocking(move || match here.etcd().delete(CHANGE, Expected::Revision(revision)) {
        Ok(_) | Err(RegistryError::Conflict { .. }) => Ok(()),
        Err(error) => Err(failed(error)),
    });
    done.and(given_back.await)
}

/// Comes as a learner, learns, and is given a vote; or is taken away again.
async fn come(cluster: &Cluster, keeper: &Arc<Keeper>, believed: &str) -> Result<(), Problem> {
    if etcd::program().is_none() {
        return Err(Problem::new(crate::admin::Code::Failed, "there is no etcd on this machine")
            .help(etcd::PROGRAM_ADVICE));
    }
    let own = cluster.config().address;
    if !etcd::has_ports(own) {
        return Err(failed(format!("{own} leaves no ports below it for a member of etcd")));
    }
    let certificate = own_certificate(cluster).await?;
    tracing::info!("this node comes to the cluster's etcd as a member");
    let (here, of, believed) = (cluster.clone(), Arc::clone(keeper.ground()), believed.to_owned());
    let made = blocking(move || {
        etcd::sweep(&of).map_err(failed)?;
        let room = of.room();
        let made =
            room.make().and_then(|()| furnish(&room, &certificate, &believed, &here.identity().revoked()));
        made.map_err(failed)?;
        Ok(room)
    });
    let room = made.await?;
    let id = until_added(cluster).await?;
    let here = cluster.clone();
    let begun = blocking(move || begin(&here, &room)).await;
    let came = match begun {
        Ok(()) => {
            keeper.run();
            until_promoted(cluster, keeper, id).await
        }
        Err(problem) => Err(problem),
    };
    let Err(problem) = came else {
        tracing::info!("this node is a member of the cluster's etcd, with a vote");
        return Ok(());
    };
    end(keeper).await;
    match take_away(cluster, id).await {
        Ok(()) => Err(problem),
        Err(left) => Err(problem.help(format!("and it is left among the members of etcd: {left}"))),
    }
}

/// Writes down with which others the member on this node begins.
fn begin(cluster: &Cluster, room: &etcd::Room) -> Result<(), Problem> {
    let own = etcd::peer_url(cluster.config().address);
    let members = cluster.etcd().members().map_err(failed)?;
    let members = members.iter().flat_map(|member| {
        let is_own = member.peer_urls.contains(&own);
        let name = if is_own { cluster.me().to_owned() } else { member.name.clone() };
        member.peer_urls.iter().map(move |url| format!("{name}={url}")).collect::<Vec<_>>()
    });
    let record = Record::joining(
        cluster.me(),
        cluster.identity().cluster(),
        cluster.config().address,
        members.collect(),
    );
    room.begin(&record).map_err(failed)
}

/// Has etcd take this node's member as a learner. A member that came a moment ago keeps it from
/// that for some seconds.
async fn until_added(cluster: &Cluster) -> Result<u64, Problem> {
    let begun = Instant::now();
    loop {
        let (here, url) = (cluster.clone(), etcd::peer_url(cluster.config().address));
        let added = blocking(move || here.etcd().add_learner(&url).map_err(failed)).await;
        if added.is_ok() || begun.elapsed() > ADD_TIMEOUT {
            return added;
        }
        // tidy(sleep): etcd tells nobody when its members may be changed.
        tokio::time::sleep(LOOK_AT_LEARNER).await;
    }
}

async fn until_promoted(cluster: &Cluster, keeper: &Keeper, id: u64) -> Result<(), Problem> {
    let begun = Instant::now();
    loop {
        let here = cluster.clone();
        let promoted = blocking(move || here.etcd().promote(id).map_err(failed)).await;
        let Err(problem) = promoted else { return Ok(()) };
        if begun.elapsed() > LEARN_TIMEOUT {
            let why = keeper.seen().why.unwrap_or(problem.message);
            return Err(failed(format!(
                "the member of this node does not come so far that it can have a vote: {why}"
            )));
        }
        // tidy(sleep): etcd tells nobody when a learner has learned enough.
        tokio::time::sleep(LOOK_AT_LEARNER).await;
    }
}

/// Goes on with what an earlier daemon began.
async fn learn(
    cluster: &Cluster,
    keeper: &Arc<Keeper>,
    id: u64,
    growing: &mut Growing,
) -> Result<(), Problem> {
    let since = *growing.learns.get_or_insert_with(Instant::now);
    let here = cluster.clone();
    let promoted = blocking(move || here.etcd().promote(id).map_err(failed)).await;
    match promoted {
        Err(problem) if since.elapsed() > LEARN_TIMEOUT => {
            growing.learns = None;
            end(keeper).await;
            take_away(cluster, id).await?;
            Err(problem)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes as `a` (lives, has a member), `b` (lives, has none), `c` (is dead, has one), `d` (is
    /// dead, has none), `e` (lives and can have none).
    fn nodes(text: &str) -> Vec<Standing> {
        let one = |(index, kind): (usize, char)| Standing {
            name: index.to_string(),
            alive: !"cd".contains(kind),
            has_member: "ac".contains(kind),
            can: kind != 'e',
        };
        text.chars().enumerate().map(one).collect()
    }

    #[test]
    fn members_grow_with_the_nodes_one_at_a_time_and_never_to_two_of_two() {
        let turns = [
            ("a", None),
            ("ab", None),
            ("abb", Some("1")),
            ("aab", Some("2")),
            ("aaa", None),
            ("aaab", None),
            ("aaabb", Some("3")),
            ("aaaab", Some("4")),
            ("aaaaab", None),
            // One that is dead comes back with what it holds; who is removed is no node.
            ("acab", None),
            ("aab", Some("2")),
            ("aadb", Some("3")),
            ("aaeb", Some("3")),
            ("aae", None),
        ];
        for (text, turn) in turns {
            assert_eq!(next(&nodes(text)), turn, "{text}");
        }
    }
}
