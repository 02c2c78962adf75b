//! The folder of a node's etcd member: `STATE/etcd/`.
//!
//! The folder is root's. The member's user may read the files that it needs there, and writes below
//! `data` alone: what root writes goes nowhere where that user could have put a link.

use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown, fchown, lchown};
use std::path::{Path, PathBuf};

/// The user and group of members: a number that no system hands out to anybody, behind those of
/// proxies.
pub(crate) const USER: u32 = 0x7fff_fffe;
/// Format of the record.
const FORMAT: u32 = 1;
/// How far below a node's own port its member's are: for clients, and for other members.
const CLIENT_BELOW: u16 = 2;
/// See [`CLIENT_BELOW`].
const PEER_BELOW: u16 = 1;
/// Longest log of a member; then it begins anew.
const MAX_LOG_BYTES: u64 = 8 << 20;
/// How much of the log a person is shown who asks why a member does not run.
const SHOWN_LOG_BYTES: usize = 600;

/// Key and chain of the member's certificate.
const CERTIFICATE: &str = "member.pem";
/// The authorities that it believes.
const TRUSTED: &str = "trusted.pem";
/// The certificates that it refuses.
const REVOKED: &str = "revoked.crl";
/// The folder of its data.
const DATA: &str = "data";
const RECORD: &str = "member.json";
const LOG: &str = "etcd.log";

/// The parameters with which a member was begun; `STATE/etcd/member.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    format: u32,
    /// The node's name.
    pub(crate) name: String,
    /// Where the node answers others; its member's ports are below.
    pub(crate) address: SocketAddr,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// The members that there were when it came, itself among them, as `NAME=URL`.
    pub(crate) members: Vec<String>,
    /// Whether it came to others.
    pub(crate) joins: bool,
}

impl Record {
    /// The first member of a new etcd.
    pub(crate) fn first(name: &str, cluster: &str, address: SocketAddr) -> Self {
        let members = vec![format!("{name}={}", peer_url(address))];
        let (name, cluster) = (name.to_owned(), cluster.to_owned());
        Self { format: FORMAT, name, address, cluster, members, joins: false }
    }

    /// Returns the settings of a member that joins others; `members`: all of them, itself among
    /// them, as `NAME=URL`.
    pub(crate) fn joining(name: &str, cluster: &str, address: SocketAddr, members: Vec<String>) -> Self {
        Self { members, joins: true, ..Self::first(name, cluster, address) }
    }

    /// Returns the arguments of etcd, which is started in its folder.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let (client, peer) = (client_url(self.address), peer_url(self.address));
        let state = if self.joins { "existing" } else { "new" };
        let pairs: [(&str, &str); 24] = [
            ("--name", &self.name),
            ("--data-dir", DATA),
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
            ("--initial-cluster", &self.members.join(",")),
            ("--initial-cluster-state", state),
            ("--initial-cluster-token", &self.cluster),
            ("--cert-file", CERTIFICATE),
            ("--key-file", CERTIFICATE),
            ("--trusted-ca-file", TRUSTED),
            ("--client-crl-file", REVOKED),
            ("--peer-cert-file", CERTIFICATE),
            ("--peer-key-file", CERTIFICATE),
            ("--peer-trusted-ca-file", TRUSTED),
            ("--peer-crl-file", REVOKED),
            // Nodes have certificates of the same authority, and are no members.
            ("--peer-cert-allowed-cn", trust::MEMBER_NAME),
            // Six beats that are lost have another leader elected, before nodes are fenced; a disk
            // that is late for one write does not.
            ("--heartbeat-interval", "100"),
            ("--election-timeout", "600"),
            // Every topology fits in one request.
            ("--max-request-bytes", "8388608"),
            ("--quota-backend-bytes", QUOTA),
            ("--auto-compaction-retention", "1h"),
            ("--log-level", "warn"),
        ];
        // The address from which a member connects may be another one of its machine.
        let alone = [
            "--client-cert-auth",
            "--peer-client-cert-auth",
            "--experimental-peer-skip-client-san-verification",
            "--pre-vote",
            "--logger=zap",
            "--log-outputs=stderr",
        ];
        let pairs = pairs.iter().flat_map(|(flag, value)| [(*flag).to_owned(), (*value).to_owned()]);
        pairs.chain(alone.map(str::to_owned)).collect()
    }
}

/// Most bytes that a member's database takes: a hundred times what a large cluster writes; it must
/// fit into the memory that a member may have.
const QUOTA: &str = "536870912";

/// Where clients reach the member of the node at this address.
pub(crate) fn client_url(node: SocketAddr) -> String {
    url(node, CLIENT_BELOW)
}

/// Where other members do.
pub(crate) fn peer_url(node: SocketAddr) -> String {
    url(node, PEER_BELOW)
}

fn url(node: SocketAddr, below: u16) -> String {
    format!("https://{}", SocketAddr::new(node.ip(), node.port().saturating_sub(below)))
}

/// Whether there is room for a member's ports below a node's.
pub(crate) fn has_ports(node: SocketAddr) -> bool {
    node.port() > CLIENT_BELOW
}

/// `STATE/etcd/`.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    folder: PathBuf,
}

impl Room {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self { folder: state_dir.join("etcd") }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the parameters with which the member was begun; `None`: there is none on this node.
    ///
    /// # Errors
    /// The record can't be read, or is not understood.
    pub(crate) fn record(&self) -> io::Result<Option<Record>> {
        let text = match fs::read(self.folder.join(RECORD)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let path = self.folder.join(RECORD);
        let strange = |why: String| io::Error::other(format!("{} is not understood: {why}", path.display()));
        let record: Record = serde_json::from_slice(&text).map_err(|error| strange(error.to_string()))?;
        if record.format == FORMAT {
            return Ok(Some(record));
        }
        Err(strange(format!("its format is {}, and this version reads {FORMAT}", record.format)))
    }

    /// Makes the folder with nothing in it; what was there is put aside, as `STATE/etcd.before`,
    /// where it takes the place of what was there.
    ///
    /// # Errors
    /// As for mkdir(2), chown(2), rename(2).
    pub(crate) fn make(&self) -> io::Result<()> {
        self.put_aside()?;
        DirBuilder::new().mode(0o750).create(&self.folder)?;
        fs::set_permissions(&self.folder, Permissions::from_mode(0o750))?;
        chown(&self.folder, None, Some(USER))?;
        let data = self.folder.join(DATA);
        DirBuilder::new().mode(0o700).create(&data)?;
        chown(&data, Some(USER), Some(USER))
    }

    /// Puts what is there aside; nothing there is as good.
    ///
    /// # Errors
    /// As for rename(2).
    pub(crate) fn put_aside(&self) -> io::Result<()> {
        let before = self.folder.with_extension("before");
        if !self.folder.exists() {
            return Ok(());
        }
        if before.exists() {
            sys::tree::remove(&before)?;
        }
        fs::rename(&self.folder, before)
    }

    /// Where data is made that takes the place of what the member holds: nobody but root gets
    /// there.
    pub(crate) fn restored(&self) -> PathBuf {
        self.folder.with_extension("restored")
    }

    /// Has the member hold what was made in [`Room::restored`].
    ///
    /// # Errors
    /// As for chown(2), rename(2).
    pub(crate) fn take_restored(&self) -> io::Result<()> {
        let (restored, data) = (self.restored(), self.folder.join(DATA));
        // Made by root a moment ago, a folder in a folder: no links.
        let mut folders = vec![restored.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    folders.push(entry.path());
                } else {
                    lchown(entry.path(), Some(USER), Some(USER))?;
                    File::open(entry.path())?.sync_all()?;
                }
            }
            lchown(&folder, Some(USER), Some(USER))?;
            File::open(&folder)?.sync_all()?;
        }
        fs::rename(&restored, &data)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Writes down what the member is begun with; from then on there is one.
    ///
    /// # Errors
    /// As for write(2).
    pub(crate) fn begin(&self, record: &Record) -> io::Result<()> {
        self.write(RECORD, &serde_json::to_vec_pretty(record).map_err(io::Error::other)?, 0o600)
    }

    /// The member's certificate, with its chain and key.
    ///
    /// # Errors
    /// The certificate can't be read.
    pub(crate) fn certificate(&self) -> io::Result<String> {
        fs::read_to_string(self.folder.join(CERTIFICATE))
    }

    /// The authorities that the member believes.
    ///
    /// # Errors
    /// The file of authorities can't be read.
    pub(crate) fn trusted(&self) -> io::Result<String> {
        fs::read_to_string(self.folder.join(TRUSTED))
    }

    /// The certificates that the member refuses; `None`: there is no list.
    ///
    /// # Errors
    /// The list can't be read.
    pub(crate) fn revoked(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.folder.join(REVOKED)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Gives the member another certificate: etcd takes it up with the next connection.
    ///
    /// # Errors
    /// As for write(2).
    pub(crate) fn set_certificate(&self, pem: &str) -> io::Result<()> {
        self.write(CERTIFICATE, pem.as_bytes(), 0o640)
    }

    /// Has it believe these: etcd takes them up when it is started anew.
    ///
    /// # Errors
    /// As for write(2).
    pub(crate) fn set_trusted(&self, pem: &str) -> io::Result<()> {
        self.write(TRUSTED, pem.as_bytes(), 0o640)
    }

    /// Has it refuse these: etcd reads them at each new connection.
    ///
    /// # Errors
    /// As for write(2).
    pub(crate) fn set_revoked(&self, list: &[u8]) -> io::Result<()> {
        self.write(REVOKED, list, 0o640)
    }

    /// Replaces a file, whole or not at all.
    fn write(&self, name: &str, bytes: &[u8], mode: u32) -> io::Result<()> {
        let (path, new) = (self.folder.join(name), self.folder.join(format!("{name}.new")));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&new)?;
        if mode & 0o040 != 0 {
            fchown(&file, None, Some(USER))?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Where the member says what it has to say; it begins anew where it is too long.
    ///
    /// # Errors
    /// As for open(2).
    pub(crate) fn log(&self) -> io::Result<File> {
        let log = File::options().create(true).append(true).mode(0o600).open(self.folder.join(LOG))?;
        if log.metadata()?.len() > MAX_LOG_BYTES {
            log.set_len(0)?;
        }
        Ok(log)
    }

    /// Returns the last lines of the member's log.
    pub(crate) fn last_words(&self) -> String {
        let text = fs::read(self.folder.join(LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN_LOG_BYTES)..]).into_owned();
        text.lines().last().unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_ports_are_below_its_nodes() {
        let node = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(client_url(node("10.0.0.1:7420")), "https://10.0.0.1:7418");
        assert_eq!(peer_url(node("[fd00::1]:7420")), "https://[fd00::1]:7419");
        assert!(has_ports(node("10.0.0.1:3")) && !has_ports(node("10.0.0.1:2")));
    }

    #[test]
    fn what_is_begun_is_there_again_and_what_was_there_is_put_aside() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let state = tempfile::tempdir().unwrap();
        let room = Room::new(state.path());
        assert!(room.record().unwrap().is_none());
        room.make().unwrap();
        let record = Record::first("a", "lab", "10.0.0.1:7420".parse().unwrap());
        room.begin(&record).unwrap();
        room.set_certificate("secret").unwrap();
        assert_eq!(room.record().unwrap().unwrap(), record);
        let mode = |name: &str| fs::metadata(room.folder().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(CERTIFICATE), mode(DATA), mode(RECORD)), (0o640, 0o700, 0o600));
        room.make().unwrap();
        assert!(room.record().unwrap().is_none());
        assert!(state.path().join("etcd.before").join(RECORD).exists());
        room.make().unwrap();
        fs::write(room.folder().join(RECORD), "{}").unwrap();
        assert!(room.record().unwrap_err().to_string().contains("member.json"));
    }
}
