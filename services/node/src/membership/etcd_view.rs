//! The view of the cluster's etcd for a person, and copies of it.

use super::growth::{CANNOT, member_of};
use super::{Cluster, blocking, failed};
use crate::etcd::Seen;
use admin::{Code, EtcdMemberRow, EtcdView, Problem, Said};
use registry::{EtcdMember, Registry};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes at the end of a copy: the SHA-256 of what is before.
const DIGEST_BYTES: u64 = 32;

/// Returns the view of `node etcd`. `seen`: this node's member, where it may have one.
pub(crate) async fn view(cluster: &Cluster, seen: Seen) -> Result<EtcdView, Problem> {
    let cluster = cluster.clone();
    blocking(move || {
        let etcd = cluster.etcd();
        let (members, leader) = (etcd.members().map_err(failed)?, etcd.leader().map_err(failed)?);
        let nodes = cluster.nodes();
        let row = |member: &EtcdMember| EtcdMemberRow {
            id: format!("{:x}", member.id),
            node: nodes
                .iter()
                .find(|node| member_of(&members, node).is_some_and(|of| of.id == member.id))
                .map(|node| node.name.clone()),
            name: member.name.clone(),
            votes: member.votes(),
            leads: member.id == leader,
            at: member.client_urls.clone(),
        };
        let cannot = etcd.list(CANNOT).map_err(failed)?;
        let reason = |(key, entry): &(String, registry::Entry)| {
            let why = serde_json::from_slice::<String>(&entry.value).ok()?;
            Some((key.strip_prefix(CANNOT)?.to_owned(), why))
        };
        Ok(EtcdView {
            own: cluster.config().etcd.own,
            endpoints: etcd.settings().endpoints,
            members: members.iter().map(row).collect(),
            cannot: cannot.iter().filter_map(reason).collect::<BTreeMap<_, _>>(),
            pid: seen.pid,
            restarts: seen.restarts,
            why: seen.why,
        })
    })
    .await
}

/// Writes a copy of all that etcd holds into a file that is not there, and reads it again.
pub(crate) async fn backup(cluster: &Cluster, file: PathBuf) -> Result<Said, Problem> {
    if !file.is_absolute() {
        return Err(Problem::new(Code::BadRequest, format!("{} is no absolute path", file.display())));
    }
    let cluster = cluster.clone();
    blocking(move || {
        let at = |error: io::Error| failed(format!("can't write {}: {error}", file.display()));
        let mut out = File::options().create_new(true).write(true).mode(0o600).open(&file).map_err(at)?;
        let written = cluster.etcd().snapshot(&mut out).map_err(failed);
        let whole = written.and_then(|_| out.sync_all().map_err(at)).and_then(|()| check(&file).map_err(at));
        let (bytes, digest) = whole.inspect_err(|_| {
            // Half a copy is none.
            let _gone_already = std::fs::remove_file(&file);
        })?;
        Ok(Said {
            said: format!("{} has all that etcd holds: {bytes} bytes, SHA-256 {digest}", file.display()),
        })
    })
    .await
}

/// Whether a copy is whole: by the SHA-256 that etcd has written behind it. Returns how long it is,
/// and that.
pub(super) fn check(file: &Path) -> io::Result<(u64, String)> {
    let mut copy = File::open(file)?;
    let length = copy.metadata()?.len();
    let before = length.checked_sub(DIGEST_BYTES).ok_or_else(|| io::Error::other("the copy is too short"))?;
    let mut hash = Sha256::new();
    let mut piece = vec![0; 64 << 10];
    let mut rest = before;
    while rest > 0 {
        let most = piece.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        copy.read_exact(&mut piece[..most])?;
        hash.update(&piece[..most]);
        rest -= most as u64;
    }
    let mut said = Vec::new();
    copy.read_to_end(&mut said)?;
    let digest = hash.finalize();
    if digest[..] != said[..] {
        return Err(io::Error::other("the copy is not what etcd sent: its SHA-256 is another"));
    }
    Ok((length, digest.iter().map(|byte| format!("{byte:02x}")).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_was_cut_or_changed_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("copy");
        let mut bytes = vec![7; 100_000];
        bytes.extend(Sha256::digest(&bytes));
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(check(&file).unwrap().0, 100_032);
        std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        assert!(check(&file).unwrap_err().to_string().contains("SHA-256"));
        bytes[5] = 8;
        std::fs::write(&file, &bytes).unwrap();
        assert!(check(&file).is_err());
        std::fs::write(&file, "short").unwrap();
        assert!(check(&file).is_err());
    }
}
