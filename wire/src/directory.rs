//! The directory service: its files, the payloads of its requests and answers, its settings, its
//! `ioctl`s. Described in `docs/spec/directory.md`. Payloads ride on the service protocol
//! ([`crate::service`]).

use crate::service::DecodeError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Kind of this service in a topology file and in an export.
pub const KIND: &str = "directory";

/// Files of the export, by number ([`crate::service::FileExport::id`]).
pub mod file {
    /// `query`: a line asks (`example.org`, `AAAA example.org`, `PTR 192.0.2.1`), text or JSON
    /// answers.
    pub const QUERY: u32 = 0;
    /// `ctl`: the same settings as by `ioctl`, one a line; read: what is set.
    pub const CTL: u32 = 1;
    /// `status`: counters of this domain, as text.
    pub const STATUS: u32 = 2;
    /// `sessions`: the open sessions of this domain and their settings, one a line.
    pub const SESSIONS: u32 = 3;
    /// Not shown: a DNS message in, a DNS message out (for the stub).
    pub const MESSAGE: u32 = 16;
    /// Not shown: an [`super::AddressQuery`] in, an [`super::Addresses`] out (for `getaddrinfo`).
    pub const ADDRESSES: u32 = 17;
    /// Not shown: 4 or 16 address bytes in, a list of names out (for `getnameinfo`), see
    /// [`super::Names`].
    pub const NAMES: u32 = 18;
}

/// The verbs of a directory service.
pub mod verb {
    /// Ask for names.
    pub const RESOLVE: &str = "resolve";
    /// Change settings.
    pub const CONTROL: &str = "control";
}

/// Names of the phases that a traced response reports, by [`crate::service::Phase::phase`].
pub const PHASES: [&str; 12] = [
    "queue", "parse", "cache", "socket", "connect", "send", "receive", "close", "decode", "answer", "retry",
    "delay",
];

/// Longest name, in bytes of text without the final dot (RFC 1035 section 2.3.4).
pub const MAX_NAME_BYTES: usize = 253;
/// Most addresses in one [`Addresses`] answer.
pub const MAX_ADDRESSES: usize = 64;
/// Most names in one [`Names`] answer.
pub const MAX_NAMES: usize = 16;

/// `ioctl`s of `/srv/*/query`, type `TYPE`; the same numbers stand in `include/tombolo/dns.h`.
pub mod ioctl {
    /// Type byte of all of them: one that the kernel's list of numbers leaves free (a terminal's is
    /// `T`).
    pub const TYPE: u32 = 0xD7;
    const fn number(direction: u32, nr: u32, bytes: u32) -> u32 {
        direction << 30 | bytes << 16 | TYPE << 8 | nr
    }
    const READ: u32 = 2;
    const WRITE: u32 = 1;
    /// `_IOR(0xD7, 1, struct tombolo_dns_settings)`: reads the session's settings.
    pub const GET_SETTINGS: u32 = number(READ, 1, super::SETTINGS_BYTES);
    /// `_IOW(0xD7, 2, struct tombolo_dns_settings)`: sets them.
    pub const SET_SETTINGS: u32 = number(WRITE, 2, super::SETTINGS_BYTES);
    /// `_IO(0xD7, 3)`: forgets the session's upstreams; the domain's are used again.
    pub const CLEAR_UPSTREAMS: u32 = number(0, 3, 0);
    /// `_IOW(0xD7, 4, struct tombolo_dns_upstream)`: adds an upstream to the session.
    pub const ADD_UPSTREAM: u32 = number(WRITE, 4, super::UPSTREAM_BYTES);
    /// `_IO(0xD7, 5)`: forgets the session's search list.
    pub const CLEAR_SEARCH: u32 = number(0, 5, 0);
    /// `_IOW(0xD7, 6, struct tombolo_dns_search)`: appends a domain to the search list.
    pub const ADD_SEARCH: u32 = number(WRITE, 6, super::SEARCH_BYTES);
    /// `_IOR(0xD7, 7, __u64)`: the number of this session, as `sessions` lists it and `ctl` takes
    /// it.
    pub const GET_SESSION: u32 = number(READ, 7, 8);
}

/// Bytes of `struct tombolo_dns_settings`: timeout_ms, retries, format, flags, reserved[4], each a
/// `__u32`.
pub const SETTINGS_BYTES: u32 = 32;
/// Bytes of `struct tombolo_dns_upstream`: family, port (`__u16`, host order), reserved (`__u32`),
/// address[16].
pub const UPSTREAM_BYTES: u32 = 24;
/// Bytes of `struct tombolo_dns_search`: a NUL-terminated name.
pub const SEARCH_BYTES: u32 = 256;

/// `format` in `struct tombolo_dns_settings`: lines of text.
pub const FORMAT_TEXT: u32 = 0;
/// `format`: one JSON object a line.
pub const FORMAT_JSON: u32 = 1;
/// `flags` bit: the frontend asks for traces and keeps them for `/srv/self/trace`.
pub const FLAG_TRACE: u32 = 1;

/// The admitted settings of a directory service, from the topology file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name servers, asked in order.
    pub upstream: Vec<SocketAddr>,
    /// How long one upstream may take, in ms.
    pub timeout_ms: u32,
    /// How often an upstream is asked again after a time-out.
    pub retries: u32,
    /// Domains that are tried behind a name without a dot.
    #[serde(default)]
    pub search: Vec<String>,
    /// Sessions that one domain may have open.
    pub sessions_per_domain: u32,
    /// Requests that one domain may have outstanding.
    pub outstanding_per_domain: u32,
    /// The settings of the cache.
    pub cache: CacheSettings,
    /// Names that are answered without an upstream, and their addresses: of the sockets that a
    /// domain mounts, for that domain alone. By domain, then by name, in lower case and without a
    /// final dot.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, BTreeMap<String, Ipv4Addr>>,
}

/// The cache of a directory service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheSettings {
    /// The domains that have it.
    pub mode: CacheMode,
    /// With `shared`: the domains that share it; every other domain has a private one.
    #[serde(default)]
    pub share: Vec<String>,
    /// Most answers that one cache keeps.
    pub entries: u32,
    /// Longest time that a negative answer is kept, in ms.
    pub negative_ttl_ms: u64,
    /// Longest time that any answer is kept, in ms.
    pub max_ttl_ms: u64,
}

/// The domains that have a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheMode {
    /// Each domain has its own (the default): nobody learns what another asked.
    Private,
    /// Nothing is remembered.
    None,
    /// The listed domains share one, with delayed hits.
    Shared,
}

/// The payload of a request on [`file::ADDRESSES`]: byte 0 the families, then the name as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressQuery<'a> {
    /// Whether A records are wanted.
    pub v4: bool,
    /// Whether AAAA records are wanted.
    pub v6: bool,
    /// The name; a final dot means: no search list.
    pub name: &'a str,
}

impl<'a> AddressQuery<'a> {
    /// Appends the bytes to `payload`.
    pub fn encode(&self, payload: &mut Vec<u8>) {
        payload.push(u8::from(self.v4) | u8::from(self.v6) << 1);
        payload.extend_from_slice(self.name.as_bytes());
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`DecodeError::Payload`] naming the field.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let (&families, name) = payload.split_first().ok_or(DecodeError::Payload("family"))?;
        if families == 0 || families > 3 {
            return Err(DecodeError::Payload("family"));
        }
        let name = std::str::from_utf8(name).map_err(|_| DecodeError::Payload("name"))?;
        Ok(Self { v4: families & 1 != 0, v6: families & 2 != 0, name })
    }
}

/// The answer on [`file::ADDRESSES`]: count (u16), bytes of the canonical name (u16), ttl in s
/// (u32), the canonical name, then for each address the family (4 or 6) and 4 or 16 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// The name at the end of the CNAME chain.
    pub canonical: String,
    /// How long the answer stays true, in s.
    pub ttl_s: u32,
    /// The addresses, in the upstream's order, A before AAAA.
    pub addresses: Vec<IpAddr>,
}

impl Addresses {
    /// The canonical name in the spelling of who asked for `name`, as answers of the DNS have it:
    /// where no chain led elsewhere, it begins with the name that was asked for (the search list
    /// may have completed it). `None`: a chain did.
    #[must_use]
    pub fn as_asked(&self, name: &str) -> Option<String> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let (start, rest) = self.canonical.split_at_checked(name.len())?;
        let is_start = start.eq_ignore_ascii_case(name) && (rest.is_empty() || rest.starts_with('.'));
        is_start.then(|| format!("{name}{rest}"))
    }

    /// Appends the bytes to `payload`; addresses beyond [`MAX_ADDRESSES`] are left out.
    pub fn encode(&self, payload: &mut Vec<u8>) {
        let count = self.addresses.len().min(MAX_ADDRESSES);
        payload.extend_from_slice(&(count as u16).to_le_bytes());
        payload.extend_from_slice(&(self.canonical.len() as u16).to_le_bytes());
        payload.extend_from_slice(&self.ttl_s.to_le_bytes());
        payload.extend_from_slice(self.canonical.as_bytes());
        for address in self.addresses.iter().take(count) {
            match address {
                IpAddr::V4(a) => {
                    payload.push(4);
                    payload.extend_from_slice(&a.octets());
                }
                IpAddr::V6(a) => {
                    payload.push(6);
                    payload.extend_from_slice(&a.octets());
                }
            }
        }
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`DecodeError::Payload`] naming the field.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(payload);
        let count = reader.u16("count")? as usize;
        let canonical = reader.u16("canonical")? as usize;
        let ttl_s = reader.u32("ttl")?;
        if count > MAX_ADDRESSES || canonical > MAX_NAME_BYTES + 1 {
            return Err(DecodeError::Payload("count"));
        }
        let canonical = reader.text(canonical, "canonical")?;
        let addresses = (0..count).map(|_| reader.address()).collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Self { canonical, ttl_s, addresses })
    }
}

/// The answer on [`file::NAMES`]: count (u16), then for each its length (u16) and its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names(pub Vec<String>);

impl Names {
    /// Appends the bytes to `payload`; names beyond [`MAX_NAMES`] are left out.
    pub fn encode(&self, payload: &mut Vec<u8>) {
        let count = self.0.len().min(MAX_NAMES);
        payload.extend_from_slice(&(count as u16).to_le_bytes());
        for name in self.0.iter().take(count) {
            payload.extend_from_slice(&(name.len() as u16).to_le_bytes());
            payload.extend_from_slice(name.as_bytes());
        }
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`DecodeError::Payload`] naming the field.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader(payload);
        let count = reader.u16("count")? as usize;
        if count > MAX_NAMES {
            return Err(DecodeError::Payload("count"));
        }
        let mut names = Vec::with_capacity(count);
        for _ in 0..count {
            let bytes = reader.u16("length")? as usize;
            names.push(reader.text(bytes, "name")?);
        }
        reader.end()?;
        Ok(Self(names))
    }
}

/// Takes fields from the front of alleged bytes.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Payload(what))?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.take(what).map(u16::from_le_bytes)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.take(what).map(u32::from_le_bytes)
    }

    fn text(&mut self, bytes: usize, what: &'static str) -> Result<String, DecodeError> {
        let (head, rest) = self.0.split_at_checked(bytes).ok_or(DecodeError::Payload(what))?;
        self.0 = rest;
        String::from_utf8(head.to_vec()).map_err(|_| DecodeError::Payload(what))
    }

    fn address(&mut self) -> Result<IpAddr, DecodeError> {
        match self.take::<1>("family")? {
            [4] => Ok(IpAddr::V4(Ipv4Addr::from(self.take::<4>("address")?))),
            [6] => Ok(IpAddr::V6(Ipv6Addr::from(self.take::<16>("address")?))),
            _ => Err(DecodeError::Payload("family")),
        }
    }

    fn end(&self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::Payload("length")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_wire() {
        let addresses = Addresses {
            canonical: "host.example".into(),
            ttl_s: 60,
            addresses: vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
        };
        let mut bytes = Vec::new();
        addresses.encode(&mut bytes);
        assert_eq!(Addresses::decode(&bytes), Ok(addresses));
        for cut in 0..bytes.len() {
            assert!(Addresses::decode(&bytes[..cut]).is_err(), "cut at {cut} was taken");
        }
        bytes.push(0);
        assert_eq!(Addresses::decode(&bytes), Err(DecodeError::Payload("length")));
    }

    #[test]
    fn a_name_keeps_the_spelling_of_who_asked_unless_a_chain_led_elsewhere() {
        let found = Addresses { canonical: "host.example".into(), ..Addresses::default() };
        assert_eq!(found.as_asked("HOST.example.").as_deref(), Some("HOST.example"));
        assert_eq!(found.as_asked("Host").as_deref(), Some("Host.example"));
        for other in ["www.example", "hos", "host.example.org", "b\u{fc}"] {
            assert_eq!(found.as_asked(other), None, "{other}");
        }
    }

    #[test]
    fn names_and_queries_survive_the_wire() {
        let names = Names(vec!["a.example".into(), "b.example".into()]);
        let mut bytes = Vec::new();
        names.encode(&mut bytes);
        assert_eq!(Names::decode(&bytes), Ok(names));
        let query = AddressQuery { v4: true, v6: false, name: "a.example" };
        let mut bytes = Vec::new();
        query.encode(&mut bytes);
        assert_eq!(AddressQuery::decode(&bytes), Ok(query));
        assert!(AddressQuery::decode(b"\x04a").is_err());
        assert!(AddressQuery::decode(b"\x01\xff").is_err());
    }

    #[test]
    fn ioctl_numbers_are_what_the_header_file_computes() {
        // _IOR(0xD7, 7, __u64) as <linux/ioctl.h> makes it on this architecture.
        assert_eq!(ioctl::GET_SESSION, 0x8008_D707);
        assert_eq!(ioctl::SET_SETTINGS, 0x4020_D702);
    }
}
