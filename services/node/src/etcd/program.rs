//! Where this machine has an etcd.

use std::path::{Path, PathBuf};

/// Names the program, where it is none of the usual places.
pub(crate) const VARIABLE: &str = "TOMBOLO_ETCD";
/// Where programs are that no path of a daemon may name.
const USUAL: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/usr/sbin"];
/// See [`find_restorer`].
const RESTORERS: [&str; 2] = ["etcdutl", "etcdctl"];
/// The advice to a person where there is no restorer.
pub(crate) const RESTORER_ADVICE: &str = "`apt-get install etcd-client`, of the version of etcd: etcdctl (or etcdutl) has to be beside the program etcd";
/// The advice to a person where there is no etcd program.
pub(crate) const ADVICE: &str = "`apt-get install etcd-server` (the service that Debian starts with it is not used: `systemctl disable --now etcd`), or name the program by \
                                 TOMBOLO_ETCD in the daemon's environment, or give an etcd that you look after yourself (--etcd)";

/// The program; `None`: there is none.
pub(crate) fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(PathBuf::from(named)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(USUAL.map(PathBuf::from));
    folders
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join("etcd"))
        .find(|path| is_program(path))
}

/// The program that makes a member's data of a copy: etcd's own, of its version, beside it.
pub(crate) fn find_restorer() -> Option<PathBuf> {
    let folder = find()?.parent()?.to_owned();
    // From 3.6 on it is a program of its own.
    RESTORERS.iter().map(|name| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
