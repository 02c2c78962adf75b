//! The sockets for members of two groups of the machine: one may look, one may change. Each lies in
//! a folder that the kernel lets the group's members into, and nobody else but root.

use super::DaemonError;
use crate::api;
use crate::api::node::Node;
use crate::broker::control;
use accounts::Accounts;
use admin::place::{ADMIN_SOCKET, Access, Place};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::fs::{AtFlags, Gid, Mode, OFlags};
use rustix::net::SocketType;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

/// Connections of one group that are served at a time; more wait.
const MAX_CONNECTIONS: usize = 64;
/// How long a request may take to come.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The folder's mode: its group enters, and lists nothing but the socket.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o750);
const SOCKET_MODE: u32 = 0o660;

/// The groups whose members may speak to the daemon, by name or number; `None`: the usual name, if
/// the machine has such a group.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// May do everything, as root may.
    pub change: Option<String>,
    /// May look.
    pub look: Option<String>,
}

impl Groups {
    fn of(&self) -> [(Access, Option<&str>); 2] {
        [(Access::Change, self.change.as_deref()), (Access::Look, self.look.as_deref())]
    }
}

/// Listens for the groups that there are.
///
/// # Errors
/// A group was named that there is not, or its folder can't be used.
pub(super) fn serve(node: &Arc<Node>, place: &Place, groups: &Groups) -> Result<(), DaemonError> {
    close(place);
    for (access, named) in groups.of() {
        let Some(group) = group(access, named)? else { continue };
        let folder = place.socket_folder(access);
        let listener = match listen(&folder, group) {
            Ok(listener) => listener,
            // Whoever named no group gets along without.
            Err(error) if named.is_none() => {
                tracing::warn!(folder = %folder.display(), %error, "a group's members can't be let in");
                continue;
            }
            Err(cause) => return Err(DaemonError::Listen { at: folder.display().to_string(), cause }),
        };
        let router = match access {
            Access::Look => api::looking_router(Arc::clone(node)),
            Access::Root | Access::Change => api::router(Arc::clone(node)),
        };
        tracing::info!(folder = %folder.display(), group = group.as_raw(), "members of a group are let in");
        tokio::spawn(accept(listener, router));
    }
    Ok(())
}

/// Takes away the sockets; the daemon ends, or begins.
pub(super) fn close(place: &Place) {
    for access in [Access::Change, Access::Look] {
        let folder = place.socket_folder(access);
        if !is_ours(&folder) {
            continue;
        }
        let removed = match std::fs::remove_file(folder.join(ADMIN_SOCKET)) {
            Ok(()) => std::fs::remove_dir(&folder),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(folder = %folder.display(), %error, "a group's socket can't be removed");
            }
            _ => {}
        }
    }
}

/// Whether a folder is one that a daemon made: others may write beside the run directory, and have
/// put a link there.
fn is_ours(folder: &Path) -> bool {
    let us = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == us)
}

fn group(access: Access, named: Option<&str>) -> Result<Option<Gid>, DaemonError> {
    let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let accounts = root
        .map_err(|error| error.to_string())
        .and_then(|root| Accounts::read(root).map_err(|error| error.to_string()));
    let gid = accounts.map(|accounts| accounts.gid(named.unwrap_or(access.usual_group())));
    let number = named.and_then(|named| named.parse().ok());
    let gid = match (gid, named) {
        (Ok(gid), None) => gid,
        (Err(why), None) => {
            tracing::warn!(why, "the machine's groups can't be read");
            None
        }
        (Ok(gid), Some(name)) => Some(gid.or(number).ok_or_else(|| {
            DaemonError::Group(format!("there is no group {name:?} in /etc/group: addgroup --system {name}"))
        })?),
        (Err(why), Some(_)) => Some(number.ok_or(DaemonError::Group(why))?),
    };
    match gid {
        // To the kernel it means "leave it as it is".
        Some(u32::MAX) => Err(DaemonError::Group(format!("{} is no group's number", u32::MAX))),
        gid => Ok(gid.map(Gid::from_raw)),
    }
}

fn listen(folder: &Path, group: Gid) -> io::Result<UnixListener> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened: OwnedFd = rustix::fs::open(folder, flags, Mode::empty())?;
    let owner = rustix::fs::fstat(&opened)?.st_uid;
    if owner != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("it is there already, and belongs to user {owner}")));
    }
    let inside = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let socket = control::listen(Path::new(&inside), ADMIN_SOCKET, SocketType::STREAM, SOCKET_MODE)?;
    rustix::fs::chownat(&opened, ADMIN_SOCKET, None, Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    rustix::fs::fchown(&opened, None, Some(group))?;
    rustix::fs::fchmod(&opened, FOLDER_MODE)?;
    UnixListener::from_std(socket.into())
}

async fn accept(listener: UnixListener, router: axum::Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_TIMEOUT);
    // Nobody closes the semaphore.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a member of a group can't be accepted");
                // tidy(sleep): out of descriptors; nothing tells when there is one again.
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let serving = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a member of a group was too slow, or spoke no HTTP");
            }
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[tokio::test]
    async fn a_folder_of_a_groups_is_entered_by_its_members_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run.look");
        let own = rustix::process::getegid();
        let first = listen(&folder, own).unwrap();
        let seen = std::fs::metadata(&folder).unwrap();
        assert_eq!((seen.permissions().mode() & 0o7777, seen.gid()), (0o750, own.as_raw()));
        let seen = std::fs::metadata(folder.join(ADMIN_SOCKET)).unwrap();
        assert_eq!((seen.permissions().mode() & 0o7777, seen.gid()), (0o660, own.as_raw()));
        // What a killed daemon left is no obstacle.
        drop(first);
        listen(&folder, own).unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_somebody_prepared_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        let link = dir.path().join("run.look");
        std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
        listen(&link, rustix::process::getegid()).unwrap_err();
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        // Nor is it cleared.
        std::fs::write(elsewhere.join(ADMIN_SOCKET), "").unwrap();
        close(&Place::new(&dir.path().join("run"), dir.path()).unwrap());
        assert!(elsewhere.join(ADMIN_SOCKET).exists());
        if rustix::process::geteuid().is_root() {
            let theirs = dir.path().join("theirs");
            std::fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(1), None).unwrap();
            let refused = listen(&theirs, rustix::process::getegid()).unwrap_err();
            assert!(refused.to_string().contains("belongs to user 1"), "{refused}");
        }
    }

    #[test]
    fn groups_are_names_or_numbers_of_the_machines() {
        let of = |named| group(Access::Look, named).map(|gid| gid.map(Gid::as_raw));
        assert_eq!(of(Some("root")).unwrap(), Some(0));
        assert_eq!(of(Some("54321")).unwrap(), Some(54_321));
        for wrong in ["nosuch group", "4294967295", ""] {
            assert!(matches!(of(Some(wrong)), Err(DaemonError::Group(_))), "{wrong:?}");
        }
    }
}
