//! Pulling from a registry (OCI distribution specification 1.1). Nothing that it answers is
//! believed: bodies have bounds, content is verified, and addresses to which it sends us on are
//! held to the same rules as its own.

use crate::challenge::Challenge;
use crate::copy::{Progress, Source, copy};
use crate::credentials::{Credentials, Known};
use crate::document::{self, MAX_DOCUMENT_BYTES, malformed, too_big};
use crate::error::{Error, Result, said};
use crate::store::{Image, Store};
use oci_spec::distribution::Reference;
use oci_spec::image::Descriptor;
use serde::Deserialize;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{HeaderMap, Response, Uri, header};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a registry may take to begin its answer: some build an index for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the next bytes of a body may take.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long any body may take, besides what its length takes at [`SLOWEST_BYTES_PER_SECOND`].
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Slower than any link that one pulls images over: who sends less only holds us up.
const SLOWEST_BYTES_PER_SECOND: u64 = 8 * 1024;
/// Most redirections of one request: registry, storage, and one more.
const MAX_REDIRECTIONS: usize = 5;
/// Largest answer of a server of tokens, and largest text of an error that is looked at, in bytes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;
/// How often a layer is asked for whose transfer breaks off.
const ATTEMPTS: usize = 3;
/// Bytes of a body that are read at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Where Docker's own registry is.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// The media types of manifests.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// How registries are spoken to.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The user's credentials at registries.
    pub credentials: Credentials,
    /// Without TLS, also where the registry is not on this machine.
    pub insecure: bool,
}

/// Takes an image from its registry into the store. Blobs that are there already are not fetched
/// again.
///
/// # Errors
/// A registry that can't be reached, refuses, or is not believed; a store that can't be written.
pub fn pull(
    store: &Store,
    reference: &Reference,
    access: &Access,
    progress: &mut dyn FnMut(Progress),
) -> Result<Image> {
    let mut registry = Registry::of(reference, access)?;
    let top = registry.manifest(reference)?;
    let adding = store.adding()?;
    let taken = copy(&adding, &mut registry, top, progress)?;
    adding.name(&taken, std::slice::from_ref(reference))
}

/// One repository of a registry.
struct Registry {
    agent: Agent,
    /// As it is named, and as errors name it.
    host: String,
    /// Scheme and authority.
    base: String,
    repository: String,
    known: Known,
    insecure: bool,
    /// The header `Authorization` of requests, once the registry has asked for it.
    authorization: Option<String>,
}

impl Registry {
    fn of(reference: &Reference, access: &Access) -> Result<Self> {
        let host = reference.registry();
        let at = if host == DOCKER.0 { DOCKER.1 } else { host };
        let scheme = if access.insecure || is_loopback(at) { "http" } else { "https" };
        Ok(Self {
            agent: agent(),
            host: host.to_owned(),
            base: format!("{scheme}://{at}"),
            repository: reference.repository().to_owned(),
            known: access.credentials.of(host)?,
            insecure: access.insecure,
            authorization: None,
        })
    }

    /// The document that a reference names, which has the digest that it names, too.
    fn manifest(&mut self, reference: &Reference) -> Result<Vec<u8>> {
        let which = reference.digest().or(reference.tag()).unwrap_or("latest");
        let url = format!("{}/v2/{}/manifests/{which}", self.base, self.repository);
        let response = self.get(&url, MANIFESTS)?;
        let promised =
            header_of(response.headers(), "docker-content-digest").filter(|d| document::hex_of(d).is_ok());
        let wanted = reference.digest().map(str::to_owned).or(promised);
        let bytes = self.bounded(response, "the manifest", MAX_DOCUMENT_BYTES)?;
        let found = document::digest_of(&bytes);
        match wanted {
            Some(wanted) if wanted != found => {
                Err(Error::Digest { what: "the manifest".into(), wanted, found })
            }
            _ => Ok(bytes),
        }
    }

    /// Asks, and shows who one is where the registry wants to know it.
    fn get(&mut self, url: &str, accept: &str) -> Result<Response<Body>> {
        let response = self.follow(url, accept)?;
        if response.status() != 401 {
            return self.judged(response);
        }
        let asked: Vec<_> = response.headers().get_all(header::WWW_AUTHENTICATE).iter().collect();
        let asked = asked.into_iter().filter_map(|value| value.to_str().ok());
        // A token can say less than a password, so it is preferred.
        let mut challenges: Vec<Challenge> = asked.filter_map(Challenge::parse).collect();
        challenges.sort_by_key(|challenge| *challenge == Challenge::Basic);
        let Some(challenge) = challenges.into_iter().next() else {
            return Err(self.denied("it wants to know who asks, in a way that is not known here"));
        };
        self.authorization = Some(self.authorize(challenge)?);
        let response = self.follow(url, accept)?;
        self.judged(response)
    }

    fn authorize(&self, challenge: Challenge) -> Result<String> {
        let basic = match &self.known {
            Known::Basic(header) => Some(header.clone()),
            Known::Nothing => None,
            Known::Unusable(why) => return Err(self.denied(why)),
        };
        let (realm, service, scope) = match challenge {
            Challenge::Basic => return basic.ok_or_else(|| self.denied("no credentials are known for it")),
            Challenge::Bearer { realm, service, scope } => (realm, service, scope),
        };
        self.check_address(&realm)?;
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let mut request = self.agent.get(&realm).query("scope", scope);
        if let Some(service) = service {
            request = request.query("service", service);
        }
        if let Some(basic) = basic {
            request = request.header(header::AUTHORIZATION, basic);
        }
        let response = request.call().map_err(|error| self.broken(&error))?;
        if response.status() == 401 || response.status() == 403 {
            return Err(self.denied("the server of its tokens refuses"));
        }
        let bytes = self.bounded(self.judged(response)?, "a token", MAX_ANSWER_BYTES)?;
        let token: Token = serde_json::from_slice(&bytes)
            // What is not understood may be a secret all the same.
            .map_err(|_| malformed("the answer of the server of tokens", "there is no token in it".into()))?;
        let token = token.token.or(token.access_token).filter(|token| !token.is_empty());
        let token = token.filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
        let token = token.ok_or_else(|| {
            malformed("the answer of the server of tokens", "there is no token in it".into())
        })?;
        Ok(format!("Bearer {token}"))
    }

    /// Goes where the registry says that it is. The credentials are sent to the registry alone.
    fn follow(&self, url: &str, accept: &str) -> Result<Response<Body>> {
        let own = authority(url);
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTIONS {
            self.check_address(&url)?;
            let mut request = self.agent.get(&url).header(header::ACCEPT, accept);
            if let Some(authorization) = &self.authorization
                && authority(&url) == own
            {
                request = request.header(header::AUTHORIZATION, authorization);
            }
            let response = request.call().map_err(|error| self.broken(&error))?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let to = header_of(response.headers(), "location").unwrap_or_default();
            url = joined(&url, &to).ok_or_else(|| self.failed("it sends us on to no address".into()))?;
        }
        Err(self.failed(format!("it sends us on more than {MAX_REDIRECTIONS} times")))
    }

    /// Refuses what would go over a network in clear, and what is no address.
    fn check_address(&self, url: &str) -> Result<()> {
        let uri: Option<Uri> = url.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        match uri.as_ref().and_then(Uri::scheme_str) {
            Some("https") => Ok(()),
            Some("http") if self.insecure || is_loopback(host) => Ok(()),
            Some("http") => Err(Error::Plain { url: said(url) }),
            _ => Err(self.failed(format!("it names the address {:?}", said(url)))),
        }
    }

    /// An answer that is one; of the others, what is in them.
    fn judged(&self, response: Response<Body>) -> Result<Response<Body>> {
        let status = response.status();
        match status.as_u16() {
            200 => Ok(response),
            404 => Err(Error::NotThere { host: self.host.clone(), image: self.repository.clone() }),
            401 | 403 => {
                let why = match &self.known {
                    Known::Basic(_) => "it does not take the credentials that are known for it",
                    _ => "no credentials are known for it, or there is no such image",
                };
                Err(self.denied(why))
            }
            429 => Err(self.failed("it has had too many requests from here; wait, or log in".into())),
            _ => {
                let text = self.bounded(response, "an error", MAX_ANSWER_BYTES).unwrap_or_default();
                let text = said(&String::from_utf8_lossy(&text));
                Err(self.failed(format!("it answers {status} {text}").trim_end().to_owned()))
            }
        }
    }

    /// All of a small body.
    fn bounded(&self, response: Response<Body>, what: &str, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = response.into_body().into_with_config().limit(limit + 1).reader().read_to_end(&mut bytes);
        match read {
            Ok(_) if bytes.len() as u64 > limit => Err(too_big(what, limit, "bytes")),
            Ok(_) => Ok(bytes),
            Err(_) if bytes.len() as u64 > limit => Err(too_big(what, limit, "bytes")),
            Err(error) => Err(self.failed(format!("{what} broke off: {error}"))),
        }
    }

    fn broken(&self, error: &ureq::Error) -> Error {
        self.failed(error.to_string())
    }

    fn failed(&self, what: String) -> Error {
        Error::Registry { host: self.host.clone(), what }
    }

    fn denied(&self, why: &str) -> Error {
        Error::Denied { host: self.host.clone(), image: self.repository.clone(), why: why.to_owned() }
    }
}

impl Source for Registry {
    fn document(&mut self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        // Configurations are blobs; manifests that an index names are asked for as such.
        let kind = descriptor.media_type().to_string();
        let of =
            if kind.contains("manifest") || kind.contains("image.index") { "manifests" } else { "blobs" };
        let url = format!("{}/v2/{}/{of}/{}", self.base, self.repository, descriptor.digest());
        let accept = if of == "manifests" { MANIFESTS } else { "*/*" };
        let response = self.get(&url, accept)?;
        self.bounded(response, "a document", descriptor.size().min(MAX_DOCUMENT_BYTES))
    }

    fn layer(&mut self, descriptor: &Descriptor, sink: &mut dyn Write) -> Result<()> {
        let (digest, size) = (descriptor.digest().to_string(), descriptor.size());
        let url = format!("{}/v2/{}/blobs/{digest}", self.base, self.repository);
        let response = self.get(&url, "*/*")?;
        let patience = BODY_TIMEOUT + Duration::from_secs(size / SLOWEST_BYTES_PER_SECOND);
        let until = std::time::Instant::now() + patience;
        // One byte more than there should be is enough to know it.
        let mut body = response.into_body().into_with_config().limit(size.saturating_add(1)).reader();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = match body.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.failed(format!("{digest} broke off: {error}"))),
            };
            let piece = piece.get(..read).unwrap_or_default();
            sink.write_all(piece).map_err(|source| Error::Io { what: format!("keep {digest}"), source })?;
            if std::time::Instant::now() > until {
                return Err(
                    self.failed(format!("{digest} comes too slowly: not in {} s", patience.as_secs()))
                );
            }
        }
    }

    fn attempts(&self) -> usize {
        ATTEMPTS
    }
}

/// The answer of a server of tokens.
#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// A client without a memory: no cookies, no redirections of its own, certificates as this machine
/// trusts them.
fn agent() -> Agent {
    let tls = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("tombolo/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(ANSWER_TIMEOUT))
        .timeout_per_read(Some(STALL_TIMEOUT))
        .build();
    config.new_agent()
}

fn header_of(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// Whether a host, with or without a port, is this machine.
fn is_loopback(host: &str) -> bool {
    let bare = host.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    let bare = bare.unwrap_or_else(|| host.to_owned());
    let bare = bare.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Scheme, host and port.
fn authority(url: &str) -> Option<(String, String)> {
    let uri: Uri = url.parse().ok()?;
    Some((uri.scheme_str()?.to_owned(), uri.authority()?.as_str().to_ascii_lowercase()))
}

/// Where a redirection leads: to an address, or to another path of the same host.
fn joined(from: &str, to: &str) -> Option<String> {
    if to.starts_with('/') && !to.starts_with("//") {
        let (scheme, authority) = authority(from)?;
        return Some(format!("{scheme}://{authority}{to}"));
    }
    to.parse::<Uri>().ok()?.scheme()?;
    Some(to.to_owned())
}
