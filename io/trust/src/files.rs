//! The files of a node's folder. Each is written whole or not at all.

use crate::error::TrustError;
use pem::{EncodeConfig, LineEnding, Pem};
use rustls::pki_types::CertificateDer;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The authority's key and certificate, on nodes that may issue certificates.
pub(crate) const AUTHORITY_FILE: &str = "authority.pem";
/// The same of its successor, while it is replaced.
pub(crate) const NEXT_AUTHORITY_FILE: &str = "authority.next.pem";
/// This node's key and chain, in one file: they change together.
pub(crate) const IDENTITY_FILE: &str = "identity.pem";
/// The authorities that this node believes.
pub(crate) const TRUSTED_FILE: &str = "trusted.pem";
/// Certificates that were revoked, one a line.
pub(crate) const REVOKED_FILE: &str = "revoked";
/// Longest file that is read: a chain takes two KiB.
const MAX_FILE_BYTES: u64 = 256 << 10;
/// Longest list of revoked certificates that is read: five times [`crate::MAX_REVOKED`] lines of
/// some 50 bytes are 1 MiB.
const MAX_REVOKED_BYTES: u64 = 2 << 20;

/// A file's text; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>, TrustError> {
    let at = |cause| TrustError::File { what: "read", path: path.to_owned(), cause };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(at)?,
    };
    read_from(file, path).map(Some)
}

/// The text of a file that is open.
pub(crate) fn read_from(file: File, path: &Path) -> Result<String, TrustError> {
    let at = |cause| TrustError::File { what: "read", path: path.to_owned(), cause };
    let mut bytes = Vec::new();
    let most = if path.ends_with(REVOKED_FILE) { MAX_REVOKED_BYTES } else { MAX_FILE_BYTES };
    file.take(most + 1).read_to_end(&mut bytes).map_err(at)?;
    let garbage = |why: &str| TrustError::Garbage { what: path.display().to_string(), why: why.to_owned() };
    if bytes.len() as u64 > most {
        return Err(garbage("it is far too long"));
    }
    String::from_utf8(bytes).map_err(|_| garbage("it is no text"))
}

/// Opens what an identity is made of.
pub(crate) fn open(folder: &Path) -> Result<Vec<OwnedFd>, TrustError> {
    let open = |name: &str| {
        let path = folder.join(name);
        let file = File::open(&path).map_err(|cause| TrustError::File { what: "read", path, cause })?;
        Ok(file.into())
    };
    [IDENTITY_FILE, TRUSTED_FILE, REVOKED_FILE].into_iter().map(open).collect()
}

/// As [`read`], but refuses a file that others may read.
pub(crate) fn read_secret(path: &Path) -> Result<Option<String>, TrustError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => {
            Err(TrustError::Exposed { path: path.to_owned(), mode: metadata.permissions().mode() & 0o777 })
        }
        _ => read(path),
    }
}

/// Replaces a file by one that only its owner may read.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<(), TrustError> {
    let new = path.with_extension("new");
    let written = (|| {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    })();
    written.map_err(|cause| {
        // Half a file helps nobody, and where the disk is full it is in the way.
        let _gone_already = fs::remove_file(&new);
        TrustError::File { what: "write", path: path.to_owned(), cause }
    })
}

/// A certificate as PEM.
pub(crate) fn pem_of(certificate: &CertificateDer<'_>) -> String {
    let pem = Pem::new("CERTIFICATE", certificate.as_ref());
    pem::encode_config(&pem, EncodeConfig::new().set_line_ending(LineEnding::LF))
}
