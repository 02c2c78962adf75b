//! A node's identity, and what it makes of the other end's.

use crate::authority::Request;
use crate::error::TrustError;
use crate::files::{self, IDENTITY_FILE, REVOKED_FILE, TRUSTED_FILE};
use crate::fingerprint::Fingerprint;
use crate::revoked::Revoked;
use crate::serial::Serial;
use crate::time::unix_s;
use crate::verify::{Checker, signed};
use crate::{NAME_SUFFIX, check_name};
use rcgen::PublicKeyData;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Most authorities that a node believes: the one, and its successor while it is replaced.
const MAX_AUTHORITIES: usize = 4;
/// Most certificates that somebody may show: its own, and the authorities'.
pub(crate) const MAX_CHAIN: usize = 8;

/// The party that a certificate names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// The node's name.
    pub node: String,
    /// Its cluster's name.
    pub cluster: String,
    /// The certificate's number.
    pub serial: Serial,
}

/// The party at the other end of a connection whose handshake was made with an [`Identity`]'s
/// configuration (which checked it).
///
/// # Errors
/// [`TrustError::Nobody`], [`TrustError::Garbage`].
pub fn peer(chain: &[CertificateDer<'_>]) -> Result<Peer, TrustError> {
    let certificate = chain.first().ok_or(TrustError::Nobody)?;
    let alleged = allegation(certificate)?;
    let node = alleged.node.ok_or_else(|| TrustError::Garbage {
        what: "the other end's certificate".into(),
        why: format!("it names no node (NAME{NAME_SUFFIX})"),
    })?;
    Ok(Peer { node, cluster: alleged.cluster, serial: alleged.serial })
}

/// The party that the first certificate of a chain names, from PEM.
///
/// # Errors
/// [`TrustError::Nobody`], [`TrustError::Garbage`].
pub fn peer_of_pem(chain_pem: &str) -> Result<Peer, TrustError> {
    let chain = certificates(chain_pem, MAX_CHAIN)
        .map_err(|why| TrustError::Garbage { what: "a chain of certificates".into(), why })?;
    peer(&chain)
}

/// The number of the first certificate of a chain, and that certificate alone, from PEM.
///
/// # Errors
/// [`TrustError::Nobody`], [`TrustError::Garbage`].
pub fn first_of_pem(chain_pem: &str) -> Result<(Serial, String), TrustError> {
    let chain = certificates(chain_pem, MAX_CHAIN)
        .map_err(|why| TrustError::Garbage { what: "a chain of certificates".into(), why })?;
    let first = chain.first().ok_or(TrustError::Nobody)?;
    Ok((allegation(first)?.serial, files::pem_of(first)))
}

/// The content of a certificate, believed or not.
#[derive(Debug)]
pub(crate) struct Allegation {
    pub(crate) node: Option<String>,
    pub(crate) cluster: String,
    pub(crate) serial: Serial,
    pub(crate) until: u64,
    pub(crate) from: u64,
}

pub(crate) fn allegation(certificate: &CertificateDer<'_>) -> Result<Allegation, TrustError> {
    let garbage = |why: &str| TrustError::Garbage { what: "a certificate".into(), why: why.to_owned() };
    let (rest, parsed) =
        X509Certificate::from_der(certificate.as_ref()).map_err(|_| garbage("it can't be read"))?;
    if !rest.is_empty() {
        return Err(garbage("something follows it"));
    }
    let organization = parsed.subject().iter_organization().next();
    let cluster = organization.and_then(|o| o.as_str().ok()).ok_or_else(|| garbage("it names no cluster"))?;
    check_name(cluster)?;
    let names = parsed.subject_alternative_name().map_err(|_| garbage("its names can't be read"))?;
    let mut nodes =
        names.iter().flat_map(|names| names.value.general_names.iter()).filter_map(|name| match name {
            GeneralName::DNSName(name) => name.strip_suffix(NAME_SUFFIX),
            _ => None,
        });
    let node = nodes.next().map(str::to_owned);
    if nodes.next().is_some() {
        return Err(garbage("it names more than one node"));
    }
    node.as_deref().map(check_name).transpose()?;
    let serial = parsed.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let validity = parsed.validity();
    let seconds = |at: i64| u64::try_from(at).unwrap_or(0);
    Ok(Allegation {
        node,
        cluster: cluster.to_owned(),
        serial: Serial::parse(&serial)?,
        until: seconds(validity.not_after.timestamp()),
        from: seconds(validity.not_before.timestamp()),
    })
}

/// Whether a certificate is for that key.
pub(crate) fn has_key(
    certificate: &CertificateDer<'_>,
    key: &impl PublicKeyData,
) -> Result<bool, TrustError> {
    let (_, parsed) = X509Certificate::from_der(certificate.as_ref())
        .map_err(|_| TrustError::Garbage { what: "a certificate".into(), why: "it can't be read".into() })?;
    Ok(parsed.public_key().raw == key.subject_public_key_info())
}

/// The cryptography: ring's.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A node's identity. Clones are the same identity: what is renewed or revoked through one holds
/// for the configurations that another made, from the next handshake on.
#[derive(Debug, Clone)]
pub struct Identity {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: String,
    cluster: String,
    current: RwLock<Arc<Current>>,
    revoked: RwLock<Arc<Revoked>>,
    clock: Arc<dyn TimeProvider>,
    /// Held by who writes the files.
    storing: Mutex<()>,
}

/// The state that is replaced as a whole when the certificate is renewed.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) certified: Arc<CertifiedKey>,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) authorities: Vec<CertificateDer<'static>>,
    /// The authority that issued the certificate.
    issuer: Option<Fingerprint>,
    serial: Serial,
    from: u64,
    until: u64,
    /// As in the files.
    own_pem: String,
    trusted_pem: String,
}

impl Current {
    fn new(own_pem: &str, trusted_pem: &str) -> Result<(Self, Peer), TrustError> {
        let garbage = |what: &str, why: String| TrustError::Garbage { what: what.to_owned(), why };
        let own = "this node's certificate";
        let key =
            PrivateKeyDer::from_pem_slice(own_pem.as_bytes()).map_err(|e| garbage(own, e.to_string()))?;
        let chain = certificates(own_pem, MAX_CHAIN).map_err(|why| garbage(own, why))?;
        let authorities = authorities(trusted_pem)?;
        let roots = roots_of(&authorities)?;
        let who = peer(&chain)?;
        let alleged = allegation(&chain[0])?;
        let key = provider().key_provider.load_private_key(key).map_err(|e| garbage(own, e.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        certified.keys_match().map_err(|_| garbage(own, "its key is another's".into()))?;
        let begun = UnixTime::since_unix_epoch(Duration::from_secs(alleged.from));
        let is_by = |one: &&CertificateDer<'static>| {
            let alone = roots_of(std::slice::from_ref(*one));
            alone.is_ok_and(|alone| signed(&certified.cert, &alone, begun).is_ok())
        };
        let issuer = authorities.iter().find(is_by).map(Fingerprint::of);
        let current = Self {
            issuer,
            certified: Arc::new(certified),
            roots: Arc::new(roots),
            authorities,
            serial: alleged.serial,
            from: alleged.from,
            until: alleged.until,
            own_pem: own_pem.to_owned(),
            trusted_pem: trusted_pem.to_owned(),
        };
        Ok((current, who))
    }
}

/// The authorities in a PEM, as many as a node believes at the most.
pub(crate) fn authorities(trusted_pem: &str) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    certificates(trusted_pem, MAX_AUTHORITIES)
        .map_err(|why| TrustError::Garbage { what: "the cluster's authorities".into(), why })
}

/// These and no others, for checking.
pub(crate) fn roots_of(authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| TrustError::Garbage {
            what: "the cluster's authorities".into(),
            why: error.to_string(),
        })?;
    }
    Ok(roots)
}

pub(crate) fn certificates(pem: &str, most: usize) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).take(most + 1).collect();
    match found {
        Err(error) => Err(error.to_string()),
        Ok(found) if found.is_empty() => Err("there is no certificate in it".into()),
        Ok(found) if found.len() > most => Err(format!("it holds more than {most} certificates")),
        Ok(found) => Ok(found),
    }
}

impl Identity {
    /// A node's key and chain, and the authorities that it believes, as PEM.
    ///
    /// # Errors
    /// [`TrustError::Garbage`].
    pub fn from_pem(own_pem: &str, trusted_pem: &str) -> Result<Self, TrustError> {
        Self::with_clock(own_pem, trusted_pem, Arc::new(DefaultTimeProvider))
    }

    /// As [`Identity::from_pem`], with a clock of the caller's: for tests of what clocks do.
    ///
    /// # Errors
    /// As there.
    pub fn with_clock(
        own_pem: &str,
        trusted_pem: &str,
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, TrustError> {
        let (current, who) = Current::new(own_pem, trusted_pem)?;
        let inner = Inner {
            node: who.node,
            cluster: who.cluster,
            current: RwLock::new(Arc::new(current)),
            revoked: RwLock::default(),
            clock,
            storing: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Reads a node's folder; `None` where the node belongs to no cluster.
    ///
    /// # Errors
    /// [`TrustError::File`], [`TrustError::Exposed`], [`TrustError::Garbage`].
    pub fn find(folder: &Path) -> Result<Option<Self>, TrustError> {
        let Some(own) = files::read_secret(&folder.join(IDENTITY_FILE))? else { return Ok(None) };
        let trusted = files::read(&folder.join(TRUSTED_FILE))?.unwrap_or_default();
        let identity = Self::from_pem(&own, &trusted)?;
        identity.set_revoked(revoked_in(folder)?);
        Ok(Some(identity))
    }

    /// As [`Identity::find`], for who needs one.
    ///
    /// # Errors
    /// As there; [`TrustError::File`] where there is none.
    pub fn load(folder: &Path) -> Result<Self, TrustError> {
        Self::find(folder)?.ok_or_else(|| TrustError::File {
            what: "read",
            path: folder.join(IDENTITY_FILE),
            cause: std::io::ErrorKind::NotFound.into(),
        })
    }

    /// Reads the folder again: what another process of this node has renewed, or heard to be
    /// revoked.
    ///
    /// # Errors
    /// As for [`Identity::load`]; what is in use stays.
    pub fn reload(&self, folder: &Path) -> Result<(), TrustError> {
        self.take_up(&Self::load(folder)?)
    }

    /// As [`Identity::reload`], out of what [`crate::open_folder`] opened.
    ///
    /// # Errors
    /// As there; [`TrustError::Garbage`]: these are not the files.
    pub fn reload_from(&self, files: Vec<OwnedFd>) -> Result<(), TrustError> {
        let given = files.len();
        let files: [OwnedFd; 3] = files.try_into().map_err(|_| TrustError::Garbage {
            what: "a node's opened folder".into(),
            why: format!("it is {given} files"),
        })?;
        let names = [IDENTITY_FILE, TRUSTED_FILE, REVOKED_FILE].map(Path::new);
        let mut texts = files.into_iter().zip(names).map(|(file, name)| files::read_from(file.into(), name));
        let mut next = || texts.next().unwrap_or_else(|| Ok(String::new()));
        let read = Self::from_pem(&next()?, &next()?)?;
        read.set_revoked(Revoked::parse(&next()?)?);
        self.take_up(&read)
    }

    fn take_up(&self, read: &Self) -> Result<(), TrustError> {
        self.replace(&read.current())?;
        self.set_revoked(read.revoked().as_ref().clone());
        Ok(())
    }

    /// Writes it into a node's folder, for root alone.
    ///
    /// # Errors
    /// [`TrustError::File`].
    pub fn store(&self, folder: &Path) -> Result<(), TrustError> {
        let _storing = self.storing();
        let current = self.current();
        // What it believes first: a node with a certificate and no authority would believe nobody.
        files::write_secret(&folder.join(TRUSTED_FILE), &current.trusted_pem)?;
        self.write_revoked(folder)?;
        files::write_secret(&folder.join(IDENTITY_FILE), &current.own_pem)
    }

    /// Whether a node's folder has what is in use: not so where [`Identity::store`] failed.
    ///
    /// # Errors
    /// [`TrustError::File`], [`TrustError::Exposed`].
    pub fn is_stored(&self, folder: &Path) -> Result<bool, TrustError> {
        let _storing = self.storing();
        let current = self.current();
        let own = files::read_secret(&folder.join(IDENTITY_FILE))?;
        let trusted = files::read(&folder.join(TRUSTED_FILE))?;
        Ok(own.is_some_and(|own| own == current.own_pem)
            && trusted.is_some_and(|trusted| trusted == current.trusted_pem))
    }

    /// Two threads that wrote one file at a time would spoil it, and the older list might come
    /// last.
    fn storing(&self) -> MutexGuard<'_, ()> {
        self.inner.storing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes down what is revoked.
    ///
    /// # Errors
    /// [`TrustError::File`].
    pub fn store_revoked(&self, folder: &Path) -> Result<(), TrustError> {
        let _storing = self.storing();
        self.write_revoked(folder)
    }

    fn write_revoked(&self, folder: &Path) -> Result<(), TrustError> {
        files::write_secret(&folder.join(REVOKED_FILE), &self.revoked().text())
    }

    /// Removes what [`Identity::store`] wrote, and the authority: the node belongs to no cluster
    /// afterwards.
    ///
    /// # Errors
    /// [`TrustError::File`].
    pub fn forget(folder: &Path) -> Result<(), TrustError> {
        let authorities = [files::AUTHORITY_FILE, files::NEXT_AUTHORITY_FILE];
        for name in [IDENTITY_FILE, TRUSTED_FILE, REVOKED_FILE].into_iter().chain(authorities) {
            let path = folder.join(name);
            match std::fs::remove_file(&path) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(TrustError::File { what: "remove", path, cause });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes a renewed certificate into use.
    ///
    /// # Errors
    /// [`TrustError::Garbage`]; [`TrustError::WrongNode`]: it is somebody else's. What is in use
    /// stays.
    pub fn renew(&self, request: &Request, chain_pem: &str) -> Result<(), TrustError> {
        let trusted = self.current().trusted_pem.clone();
        let (current, _) = Current::new(&(request.key_pem() + chain_pem), &trusted)?;
        self.replace(&Arc::new(current))
    }

    /// As [`Identity::renew`], with a certificate that is good now and by this authority, of those
    /// that this node believes.
    ///
    /// # Errors
    /// As there; [`TrustError::Expired`], [`TrustError::NotYet`]; [`TrustError::OtherCluster`]: it
    /// is by another. What is in use stays.
    pub fn renew_by(
        &self,
        request: &Request,
        chain_pem: &str,
        authority: Fingerprint,
    ) -> Result<(), TrustError> {
        let chain = certificates(chain_pem, MAX_CHAIN)
            .map_err(|why| TrustError::Garbage { what: "the certificate that was issued".into(), why })?;
        let shown = self.shown(&chain)?;
        if !self.is_by(&shown, authority) {
            return Err(TrustError::OtherCluster { who: format!("node {}", shown.peer().node) });
        }
        self.renew(request, chain_pem)
    }

    /// Believes these authorities from now on.
    ///
    /// # Errors
    /// [`TrustError::Garbage`]; [`TrustError::Stranger`]: none of them issued this node's
    /// certificate, so nobody who believes them believes this node. What is in use stays.
    pub fn trust(&self, trusted_pem: &str) -> Result<(), TrustError> {
        let own = self.current().own_pem.clone();
        let (current, _) = Current::new(&own, trusted_pem)?;
        if current.issuer.is_none() {
            return Err(TrustError::Stranger);
        }
        self.replace(&Arc::new(current))
    }

    /// The authority among those it believes that issued its certificate.
    #[must_use]
    pub fn issuer(&self) -> Option<Fingerprint> {
        self.current().issuer
    }

    fn replace(&self, current: &Arc<Current>) -> Result<(), TrustError> {
        let who = peer(&current.certified.cert)?;
        if (who.node.as_str(), who.cluster.as_str()) != (self.node(), self.cluster()) {
            let expected = self.node().to_owned();
            return Err(TrustError::WrongNode { expected, found: who.node });
        }
        *self.inner.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(current);
        Ok(())
    }

    /// The node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.inner.node
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.inner.cluster
    }

    /// The certificate chain that it shows, as PEM: its certificate, and the authority's.
    #[must_use]
    pub fn chain_pem(&self) -> String {
        self.current().certified.cert.iter().map(files::pem_of).collect()
    }

    /// The number of its certificate.
    #[must_use]
    pub fn serial(&self) -> Serial {
        self.current().serial.clone()
    }

    /// Until when its certificate is valid, in seconds of Unix time.
    #[must_use]
    pub fn valid_until_unix_s(&self) -> u64 {
        self.current().until
    }

    /// Whether it is time for another certificate: a third of its time is left, or less.
    #[must_use]
    pub fn is_due(&self, now: SystemTime) -> bool {
        let current = self.current();
        current.until.saturating_sub(unix_s(now)) <= current.until.saturating_sub(current.from) / 3
    }

    /// The authorities that it believes, as PEM.
    #[must_use]
    pub fn trusted_pem(&self) -> String {
        self.current().trusted_pem.clone()
    }

    /// Its key, and the chain of its certificate, as PEM: a secret of this node's.
    #[must_use]
    pub fn own_pem(&self) -> String {
        self.current().own_pem.clone()
    }

    /// The fingerprints that they are known by.
    #[must_use]
    pub fn fingerprints(&self) -> Vec<Fingerprint> {
        self.current().authorities.iter().map(Fingerprint::of).collect()
    }

    pub(crate) fn set_revoked(&self, revoked: Revoked) {
        *self.inner.revoked.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(revoked);
    }

    /// The revocations.
    #[must_use]
    pub fn revoked(&self) -> Arc<Revoked> {
        Arc::clone(&self.inner.revoked.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn current(&self) -> Arc<Current> {
        Arc::clone(&self.inner.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn clock(&self) -> Arc<dyn TimeProvider> {
        Arc::clone(&self.inner.clock)
    }

    /// Checks a chain as a handshake does.
    ///
    /// # Errors
    /// [`TrustError::OtherCluster`], [`TrustError::Expired`], [`TrustError::NotYet`],
    /// [`TrustError::Revoked`], [`TrustError::Garbage`].
    pub fn check(&self, chain: &[CertificateDer<'_>]) -> Result<Peer, TrustError> {
        Checker(self.clone()).check(chain, self.now())
    }

    pub(crate) fn now(&self) -> UnixTime {
        self.inner.clock.current_time().unwrap_or_else(|| UnixTime::since_unix_epoch(Duration::ZERO))
    }

    /// The configuration of a server of the node's: the other end must be a node of the cluster.
    /// `protocols` as in ALPN.
    ///
    /// # Errors
    /// [`TrustError::Crypto`].
    pub fn server(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, TrustError> {
        Checker(self.clone()).server(protocols, true)
    }

    /// As [`Identity::server`], but lets in who shows no certificate, too: a machine that joins.
    /// Ask [`peer`] who it is.
    ///
    /// # Errors
    /// [`TrustError::Crypto`].
    pub fn server_for_joiners(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, TrustError> {
        Checker(self.clone()).server(protocols, false)
    }

    /// The configuration of a client of the node's; the node that it expects is the name that it
    /// gives to TLS ([`crate::server_name`]).
    ///
    /// # Errors
    /// [`TrustError::Crypto`].
    pub fn client(&self, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, TrustError> {
        Checker(self.clone()).client(protocols)
    }
}

fn revoked_in(folder: &Path) -> Result<Revoked, TrustError> {
    Revoked::parse(&files::read(&folder.join(REVOKED_FILE))?.unwrap_or_default())
}
