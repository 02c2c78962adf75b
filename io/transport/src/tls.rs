//! The identity of this side and of those who may be at the other end, for all transports, and what
//! they need beside.

use crate::ethernet::Station;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig};
use std::sync::{Arc, PoisonError, RwLock};
use trust::{Identity, TrustError};

/// The protocol that both sides name (RFC 7301).
pub const ALPN: &[u8] = b"tombolo-link/1";

/// Says which node a chain of certificates is of, or why it is none's. TLS has verified the chain
/// already.
pub type Who = dyn Fn(&[CertificateDer<'_>]) -> Result<String, String> + Send + Sync;

/// Certificates and keys for links. Clones are the same: what one replaces, all have; connections
/// that stand go on with what they had.
#[derive(Clone)]
pub struct Tls(Arc<RwLock<Material>>);

#[derive(Clone)]
pub(crate) struct Material {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
    pub who: Arc<Who>,
    /// Where this node sends frames of its own, if it does.
    pub station: Option<Station>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Material {
    /// Every connection is a whole handshake: one that is resumed does not look at certificates
    /// again, which may be revoked by now.
    fn new(server: &ServerConfig, client: &ClientConfig, who: Arc<Who>) -> Self {
        let (mut server, mut client) = (server.clone(), client.clone());
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_early_data = false;
        Self { server: Arc::new(server), client: Arc::new(client), who, station: None }
    }
}

impl Tls {
    /// Both configurations authenticate both sides, and speak TLS 1.3; `who` says which node it is.
    pub fn new(
        server: &ServerConfig,
        client: &ClientConfig,
        who: impl Fn(&[CertificateDer<'_>]) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(RwLock::new(Material::new(server, client, Arc::new(who)))))
    }

    /// The credentials of a node of a cluster. They follow renewals and revocations by themselves.
    ///
    /// # Errors
    /// See [`TrustError`].
    pub fn of(identity: &Identity) -> Result<Self, TrustError> {
        let (server, client) = (identity.server(&[ALPN])?, identity.client(&[ALPN])?);
        let checker = identity.clone();
        let who = move |chain: &[CertificateDer<'_>]| {
            checker.check(chain).map(|peer| peer.node).map_err(|error| error.to_string())
        };
        Ok(Self::new(&server, &client, who))
    }

    /// Replaces all of it: a certificate was renewed, or another revoked.
    pub fn replace(
        &self,
        server: &ServerConfig,
        client: &ClientConfig,
        who: impl Fn(&[CertificateDer<'_>]) -> Result<String, String> + Send + Sync + 'static,
    ) {
        let mut material = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *material =
            Material { station: material.station.take(), ..Material::new(server, client, Arc::new(who)) };
    }

    /// Where frames of Ethernet go out and come in from now on; without one that transport can't be
    /// had.
    pub fn set_station(&self, station: Option<Station>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).station = station;
    }

    pub(crate) fn material(&self) -> Material {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The name by which a node is verified: its certificate bears it.
pub(crate) fn server_name(node: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    ServerName::try_from(format!("{node}.node.tombolo"))
}
