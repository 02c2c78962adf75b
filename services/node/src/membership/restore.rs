//! The cluster's own etcd, begun again from a copy: on one node with the copy, on the others with
//! where that is. No daemon runs meanwhile.

use super::config::Config;
use super::{failed, trust_folder};
use crate::etcd::{self, Ground, Record, Room};
use admin::{Code, Problem};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;
use trust::{Authority, Identity, Revoked};

/// Begins the cluster's own etcd on this node, with what a copy holds and no other member. Returns
/// where it will be.
///
/// # Errors
/// This node is of no such cluster; the copy is none; there is no program that restores. Everything
/// is as it was then.
pub(crate) fn from_copy(ground: &Ground, copy: &Path) -> Result<String, Problem> {
    let (config, identity) = standing(&ground.state_dir)?;
    super::etcd_view::check(copy).map_err(|error| {
        Problem::new(Code::BadRequest, format!("{} can't be restored: {error}", copy.display()))
    })?;
    let restorer = etcd::restorer().ok_or_else(|| {
        failed("there is no etcdctl beside this machine's etcd").help(etcd::RESTORER_ADVICE)
    })?;
    let (room, record) = (ground.room(), Record::first(identity.node(), identity.cluster(), config.address));
    let kept = Kept::of(&room, &identity, &ground.state_dir, config.address)?;
    clear(&room.restored())?;
    etcd::sweep(ground).map_err(failed)?;
    let made = make(&restorer, copy, &room, &record).and_then(|()| {
        put(&room, &kept, &record)
            .map_err(|error| failed(format!("can't write {}: {error}", room.folder().display())))
    });
    if let Err(problem) = made {
        clear(&room.restored())?;
        return Err(problem);
    }
    let at = etcd::client_url(config.address);
    look_at(config, &ground.state_dir, &at)?;
    Ok(at)
}

/// Has this node look for the cluster's own etcd at the node at `at`, where it was begun again. A
/// member that this node has is put aside.
///
/// # Errors
/// This node is of no such cluster, or is that node.
pub(crate) fn elsewhere(ground: &Ground, at: SocketAddr) -> Result<String, Problem> {
    let (config, _) = standing(&ground.state_dir)?;
    if config.address == at {
        return Err(Problem::new(Code::BadRequest, format!("{at} is this node itself"))
            .help("say the address of the node where the copy was restored"));
    }
    etcd::sweep(ground).map_err(failed)?;
    ground.room().put_aside().map_err(failed)?;
    let at = etcd::client_url(at);
    look_at(config, &ground.state_dir, &at)?;
    Ok(at)
}

/// The part of this node in a cluster that has an etcd of its own.
fn standing(state_dir: &Path) -> Result<(Config, Identity), Problem> {
    let config = Config::load(state_dir)?
        .ok_or_else(|| Problem::new(Code::NotRunning, "this machine is no node of a cluster"))?;
    if !config.etcd.own {
        return Err(Problem::new(
            Code::Refused,
            "the cluster stands on an etcd that you look after yourself",
        )
        .help("restore it as etcd's manual says, then restart the daemon on each node"));
    }
    Ok((config, Identity::load(&trust_folder(state_dir)).map_err(failed)?))
}

fn look_at(config: Config, state_dir: &Path, at: &str) -> Result<(), Problem> {
    let mut config = config;
    config.etcd.endpoints = vec![at.to_owned()];
    Ok(config.store(state_dir)?)
}

/// The files of a member that are no data.
struct Kept {
    certificate_pem: String,
    trusted_pem: String,
    revoked: Vec<u8>,
}

impl Kept {
    /// Reads the files that are there; where this node has had no member, they are made anew.
    fn of(room: &Room, identity: &Identity, state_dir: &Path, address: SocketAddr) -> Result<Self, Problem> {
        let certificate_pem = match room.certificate() {
            Ok(pem) => pem,
            Err(_) => {
                let authority = Authority::load(&trust_folder(state_dir)).map_err(failed)?.ok_or_else(|| {
                    Problem::new(Code::Refused, "this node has no member of etcd, and may not make one a certificate")
                        .help("restore at a node that has a member, or the authority: `tombolo node show` said so of each")
                })?;
                authority.member(address.ip(), SystemTime::now()).map_err(failed)?
            }
        };
        let nothing =
            || trust::revocation_list(Revoked::default().serials(), SystemTime::now()).map_err(failed);
        let revoked = room.revoked().map_err(failed)?.map_or_else(nothing, Ok)?;
        Ok(Self { certificate_pem, trusted_pem: identity.trusted_pem(), revoked })
    }
}

/// Makes a member's data of a copy, aside.
fn make(restorer: &Path, copy: &Path, room: &Room, record: &Record) -> Result<(), Problem> {
    let [member] = record.members.as_slice() else { return Err(failed("a first member is alone")) };
    let (_, peer) = member.split_once('=').unwrap_or_default();
    let made = Command::new(restorer)
        .args(["snapshot", "restore"])
        .arg(copy)
        .args(["--name", &record.name, "--initial-cluster", member, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster-token", &record.cluster])
        .arg("--data-dir")
        .arg(room.restored())
        .env_clear()
        .env("ETCDCTL_API", "3")
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("can't run {}: {error}", restorer.display())))?;
    if made.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    let last = said.lines().last().unwrap_or_default();
    Err(failed(format!("{} can't restore the copy: {last}", restorer.display())))
}

fn put(room: &Room, kept: &Kept, record: &Record) -> std::io::Result<()> {
    room.make()?;
    room.set_certificate(&kept.certificate_pem)?;
    room.set_trusted(&kept.trusted_pem)?;
    room.set_revoked(&kept.revoked)?;
    room.take_restored()?;
    room.begin(record)
}

fn clear(folder: &Path) -> Result<(), Problem> {
    if folder.exists() {
        sys::tree::remove(folder).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_copy_or_no_node_of_such_a_cluster_changes_nothing() {
        let Ok(cgroups) = domain::Cgroups::discover() else {
            println!("skipped: this machine has no cgroups");
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let state_dir = folder.path().to_owned();
        let ground =
            Ground { state_dir, program: "/bin/true".into(), cgroups, cgroup_name: "tombolo-none".into() };
        let refused = from_copy(&ground, &folder.path().join("copy")).unwrap_err();
        assert!(refused.message.contains("no node of a cluster"), "{refused}");
        let at = "10.0.0.1:7420".parse().unwrap();
        assert!(elsewhere(&ground, at).unwrap_err().message.contains("no node of a cluster"));
        let authority = Authority::new("lab", SystemTime::now()).unwrap();
        let identity = authority.identity("a", SystemTime::now()).unwrap();
        std::fs::create_dir_all(trust_folder(folder.path())).unwrap();
        identity.store(&trust_folder(folder.path())).unwrap();
        let etcd = super::super::config::Etcd {
            endpoints: vec!["https://10.0.0.1:7418".into()],
            prefix: "/tombolo/".into(),
            authority_pem: None,
            certificate_pem: None,
            key_pem: None,
            own: false,
            insecure: false,
        };
        Config::new(at, etcd.clone(), None).store(folder.path()).unwrap();
        let refused = from_copy(&ground, &folder.path().join("copy")).unwrap_err();
        assert!(refused.message.contains("look after yourself"), "{refused}");
        Config::new(at, super::super::config::Etcd { own: true, ..etcd }, None).store(folder.path()).unwrap();
        std::fs::write(folder.path().join("copy"), vec![7; 1000]).unwrap();
        let refused = from_copy(&ground, &folder.path().join("copy")).unwrap_err();
        assert!(refused.message.contains("SHA-256"), "{refused}");
        assert!(elsewhere(&ground, at).unwrap_err().message.contains("this node itself"));
        assert!(!ground.room().folder().exists());
    }
}
