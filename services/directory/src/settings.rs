//! The settings that a session or a domain has made, over what the topology admitted; as control
//! lines, as an `ioctl` struct, as a capsule.

use crate::failure::Failure;
use crate::name;
use hickory_proto::rr::Name;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use thiserror::Error;
use wire::directory::{FORMAT_JSON, FORMAT_TEXT, SEARCH_BYTES, SETTINGS_BYTES, Settings, UPSTREAM_BYTES};

/// Longest time-out of one attempt, in ms: nobody waits longer for a name.
pub const MAX_TIMEOUT_MS: u32 = 60_000;
/// Most repetitions after a time-out.
pub const MAX_RETRIES: u32 = 10;
/// Most upstreams of a session, a domain or a service: each costs a time-out when all are dead.
pub const MAX_UPSTREAMS: usize = 8;
/// Most domains of a search list, as in glibc: each costs a look-up.
pub const MAX_SEARCH: usize = 6;
/// `AF_INET`, `AF_INET6` in `struct tombolo_dns_upstream`.
const FAMILY_V4: u16 = 2;
const FAMILY_V6: u16 = 10;

/// How answers on `query` look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A record a line.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// The settings beside the topology; `None` everywhere in the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// How long one attempt may take, in ms.
    pub timeout_ms: Option<u32>,
    /// How often an upstream is asked again after a time-out.
    pub retries: Option<u32>,
    /// Upstreams of its own.
    pub upstreams: Option<Arc<[SocketAddr]>>,
    /// A search list of its own, fully qualified names.
    pub search: Option<Arc<[Name]>>,
    /// How answers look.
    pub format: Option<Format>,
    /// Whether the frontend shall ask for traces.
    pub trace: Option<bool>,
}

/// Why admitted settings can't be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// No JSON, or not of this shape.
    #[error("the settings of the directory service are not of the known shape: {0}")]
    Shape(#[from] serde_json::Error),
    /// A number out of its bounds.
    #[error("`{field}` is {value}, it must be {bounds}")]
    Bounds {
        /// The setting.
        field: &'static str,
        /// The value.
        value: u64,
        /// The bounds of the value.
        bounds: &'static str,
    },
    /// A search domain that is no name.
    #[error("`search` has {domain:?}, which is no name of letters, digits, `-`, `_` and dots: {cause}")]
    Search {
        /// The text.
        domain: String,
        /// The fault.
        cause: Failure,
    },
    /// A name of a socket that is no name.
    #[error("`names` has {name:?}, which is no name of letters, digits, `-`, `_` and dots: {cause}")]
    Name {
        /// The text.
        name: String,
        /// The fault.
        cause: Failure,
    },
}

/// The topology's settings, ready to use.
#[derive(Debug, Clone)]
pub struct Admitted {
    /// As they came.
    pub settings: Settings,
    /// The upstreams, shared with each look-up.
    pub upstreams: Arc<[SocketAddr]>,
    /// The search list as names.
    pub search: Arc<[Name]>,
    /// The names that need no upstream, by the domain that they are answered to.
    pub names: HashMap<String, Vec<(Name, Ipv4Addr)>>,
}

impl Admitted {
    /// Checks the bounds that a look-up relies on.
    ///
    /// # Errors
    /// [`SettingsError`] naming the setting.
    pub fn new(settings: Settings) -> Result<Self, SettingsError> {
        let bound = |field, value: u64, fits: bool, bounds| {
            if fits { Ok(()) } else { Err(SettingsError::Bounds { field, value, bounds }) }
        };
        let timeout = settings.timeout_ms;
        bound("timeout_ms", timeout.into(), (1..=MAX_TIMEOUT_MS).contains(&timeout), "1 to 60000")?;
        bound("retries", settings.retries.into(), settings.retries <= MAX_RETRIES, "at most 10")?;
        let upstreams = settings.upstream.len();
        bound("upstream", upstreams as u64, (1..=MAX_UPSTREAMS).contains(&upstreams), "1 to 8 addresses")?;
        let search = settings.search.len();
        bound("search", search as u64, search <= MAX_SEARCH, "at most 6 domains")?;
        let names = settings
            .search
            .iter()
            .map(|text| {
                search_domain(text).map_err(|cause| SettingsError::Search { domain: text.clone(), cause })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let own = settings.names.iter().map(|(domain, names)| Ok((domain.clone(), own_names(names)?)));
        let own = own.collect::<Result<_, SettingsError>>()?;
        Ok(Self { upstreams: settings.upstream.clone().into(), search: names.into(), names: own, settings })
    }
}

fn own_names(names: &BTreeMap<String, Ipv4Addr>) -> Result<Vec<(Name, Ipv4Addr)>, SettingsError> {
    let parse = |(text, address): (&String, &Ipv4Addr)| match search_domain(text) {
        Ok(name) => Ok((name, *address)),
        Err(cause) => Err(SettingsError::Name { name: text.clone(), cause }),
    };
    names.iter().map(parse).collect()
}

/// The settings of one request: the session's word before the domain's before the topology's.
#[derive(Debug, Clone, Copy)]
pub struct Effective<'a> {
    session: &'a Overrides,
    admitted: &'a Admitted,
}

impl<'a> Effective<'a> {
    /// `session` over `admitted`. (A domain's own defaults are copied into each new session.)
    pub const fn new(session: &'a Overrides, admitted: &'a Admitted) -> Self {
        Self { session, admitted }
    }

    /// Time-out of one attempt, in ms.
    pub fn timeout_ms(&self) -> u32 {
        self.session.timeout_ms.unwrap_or(self.admitted.settings.timeout_ms)
    }

    /// Repetitions after a time-out.
    pub fn retries(&self) -> u32 {
        self.session.retries.unwrap_or(self.admitted.settings.retries)
    }

    /// The upstreams in order.
    pub fn upstreams(&self) -> &'a Arc<[SocketAddr]> {
        self.session.upstreams.as_ref().unwrap_or(&self.admitted.upstreams)
    }

    /// Whether the upstreams are not the topology's: then nothing is remembered or shared.
    pub fn has_own_upstreams(&self) -> bool {
        self.session.upstreams.is_some()
    }

    /// The search list.
    pub fn search(&self) -> &'a Arc<[Name]> {
        self.session.search.as_ref().unwrap_or(&self.admitted.search)
    }

    /// How answers look.
    pub fn format(&self) -> Format {
        self.session.format.unwrap_or_default()
    }

    /// Whether the frontend shall ask for traces.
    pub fn trace(&self) -> bool {
        self.session.trace.unwrap_or_default()
    }

    /// The settings as the control lines that would set them.
    pub fn lines(&self, out: &mut String) {
        let _ = writeln!(out, "timeout {}ms\nretries {}", self.timeout_ms(), self.retries());
        out.push_str("upstream");
        match &self.session.upstreams {
            Some(own) => own.iter().for_each(|address| {
                let _ = write!(out, " {address}");
            }),
            None => out.push_str(" none"),
        }
        out.push_str("\nsearch");
        if self.search().is_empty() {
            out.push_str(" none");
        }
        for domain in self.search().iter() {
            let _ = write!(out, " {}", name::text(domain));
        }
        let format = if self.format() == Format::Json { "json" } else { "text" };
        let _ = writeln!(out, "\nformat {format}\ntrace {}", if self.trace() { "on" } else { "off" });
    }

    /// `struct tombolo_dns_settings`.
    pub fn to_struct(self) -> [u8; SETTINGS_BYTES as usize] {
        let format = if self.format() == Format::Json { FORMAT_JSON } else { FORMAT_TEXT };
        let flags = if self.trace() { wire::directory::FLAG_TRACE } else { 0 };
        let mut bytes = [0; SETTINGS_BYTES as usize];
        for (place, field) in
            bytes.chunks_exact_mut(4).zip([self.timeout_ms(), self.retries(), format, flags])
        {
            place.copy_from_slice(&field.to_ne_bytes());
        }
        bytes
    }
}

/// A domain of a search list: fully qualified, of host-name letters only, not the root.
///
/// # Errors
/// [`Failure::Malformed`], [`Failure::NameTooLong`].
pub fn search_domain(text: &str) -> Result<Name, Failure> {
    let mut domain = name::parse(text)?;
    if domain.is_root() || !name::is_plain(&domain) {
        return Err(Failure::Malformed);
    }
    domain.set_fqdn(true);
    Ok(domain)
}

impl Overrides {
    /// Takes `struct tombolo_dns_settings`.
    ///
    /// # Errors
    /// [`Failure::Malformed`] for a wrong size, values out of bounds, unknown flags, reserved words
    /// that are not zero.
    pub fn set_struct(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let bytes: &[u8; SETTINGS_BYTES as usize] = bytes.try_into().map_err(|_| Failure::Malformed)?;
        let mut words = [0u32; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        }
        let [timeout_ms, retries, format, flags, reserved @ ..] = words;
        if reserved != [0; 4] || flags & !wire::directory::FLAG_TRACE != 0 {
            return Err(Failure::Malformed);
        }
        let format = match format {
            FORMAT_TEXT => Format::Text,
            FORMAT_JSON => Format::Json,
            _ => return Err(Failure::Malformed),
        };
        let checked = Self {
            timeout_ms: Some(timeout_ms),
            retries: Some(retries),
            format: Some(format),
            trace: Some(flags != 0),
            ..self.clone()
        };
        checked.check()?;
        *self = checked;
        Ok(())
    }

    /// Takes `struct tombolo_dns_upstream` and appends it to the own upstreams.
    ///
    /// # Errors
    /// [`Failure::Malformed`] as above, and where [`MAX_UPSTREAMS`] are there already.
    pub fn add_upstream_struct(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let bytes: &[u8; UPSTREAM_BYTES as usize] = bytes.try_into().map_err(|_| Failure::Malformed)?;
        let [f0, f1, p0, p1, reserved @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *bytes;
        let address: [u8; 16] = std::array::from_fn(|i| bytes[8 + i]);
        let ip = match u16::from_ne_bytes([f0, f1]) {
            FAMILY_V4 => {
                let ([a, b, c, d], rest) = address.split_first_chunk::<4>().ok_or(Failure::Malformed)?;
                if rest.iter().any(|&byte| byte != 0) {
                    return Err(Failure::Malformed);
                }
                IpAddr::V4(Ipv4Addr::new(*a, *b, *c, *d))
            }
            FAMILY_V6 => IpAddr::V6(Ipv6Addr::from(address)),
            _ => return Err(Failure::Malformed),
        };
        if reserved != [0; 4] {
            return Err(Failure::Malformed);
        }
        let mut list = self.upstreams.as_deref().unwrap_or_default().to_vec();
        list.push(SocketAddr::new(ip, u16::from_ne_bytes([p0, p1])));
        let checked = Self { upstreams: Some(list.into()), ..self.clone() };
        checked.check()?;
        *self = checked;
        Ok(())
    }

    /// Takes `struct tombolo_dns_search` and appends it to `effective`, the list that held so far.
    ///
    /// # Errors
    /// [`Failure::Malformed`] for a wrong size, no NUL, bytes behind it that are not zero, no name,
    /// a full list.
    pub fn add_search_struct(&mut self, bytes: &[u8], effective: &[Name]) -> Result<(), Failure> {
        let bytes: &[u8; SEARCH_BYTES as usize] = bytes.try_into().map_err(|_| Failure::Malformed)?;
        let end = bytes.iter().position(|&byte| byte == 0).ok_or(Failure::Malformed)?;
        let (text, rest) = bytes.split_at(end);
        if rest.iter().any(|&byte| byte != 0) || effective.len() >= MAX_SEARCH {
            return Err(Failure::Malformed);
        }
        let domain = search_domain(std::str::from_utf8(text).map_err(|_| Failure::Malformed)?)?;
        self.search = Some(effective.iter().cloned().chain([domain]).collect());
        Ok(())
    }

    /// The bounds that everything that comes from outside must keep.
    ///
    /// # Errors
    /// [`Failure::Malformed`].
    pub fn check(&self) -> Result<(), Failure> {
        let fits = self.timeout_ms.is_none_or(|ms| (1..=MAX_TIMEOUT_MS).contains(&ms))
            && self.retries.is_none_or(|count| count <= MAX_RETRIES)
            && self.search.as_ref().is_none_or(|list| list.len() <= MAX_SEARCH)
            && self.upstreams.as_ref().is_none_or(|list| {
                (1..=MAX_UPSTREAMS).contains(&list.len())
                    && list
                        .iter()
                        .all(|a| a.port() != 0 && !a.ip().is_unspecified() && !a.ip().is_multicast())
            });
        if fits { Ok(()) } else { Err(Failure::Malformed) }
    }
}

/// Version of the capsule's shape.
const CAPSULE_VERSION: u32 = 1;

/// A session as its frontend keeps it: JSON, so that a person can read it in a dump. The longest
/// possible is 6 search domains of 254 bytes and 8 upstreams of 58: under 2.5 KiB.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Capsule {
    v: u32,
    session: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout_ms: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retries: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    upstream: Option<Vec<SocketAddr>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    search: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    format: Option<Format>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<bool>,
}

/// The capsule of session `number`.
pub fn seal(number: u64, overrides: &Overrides) -> Vec<u8> {
    let capsule = Capsule {
        v: CAPSULE_VERSION,
        session: number,
        timeout_ms: overrides.timeout_ms,
        retries: overrides.retries,
        upstream: overrides.upstreams.as_ref().map(|list| list.to_vec()),
        search: overrides.search.as_ref().map(|list| list.iter().map(name::text).collect()),
        format: overrides.format,
        trace: overrides.trace,
    };
    // Numbers, addresses and plain text: there is nothing that JSON could refuse.
    serde_json::to_vec(&capsule).unwrap_or_default()
}

/// Opens what [`seal`] made, or what somebody claims it made.
///
/// # Errors
/// [`Failure::Malformed`] for anything that this version would not have sealed.
pub fn unseal(capsule: &[u8]) -> Result<(u64, Overrides), Failure> {
    if capsule.len() > wire::service::MAX_CAPSULE_BYTES {
        return Err(Failure::Malformed);
    }
    let capsule: Capsule = serde_json::from_slice(capsule).map_err(|_| Failure::Malformed)?;
    if capsule.v != CAPSULE_VERSION {
        return Err(Failure::Malformed);
    }
    let search = match capsule.search {
        Some(list) if list.len() > MAX_SEARCH => return Err(Failure::Malformed),
        Some(list) => Some(list.iter().map(|text| search_domain(text)).collect::<Result<_, _>>()?),
        None => None,
    };
    let overrides = Overrides {
        timeout_ms: capsule.timeout_ms,
        retries: capsule.retries,
        upstreams: capsule.upstream.map(Into::into),
        search,
        format: capsule.format,
        trace: capsule.trace,
    };
    overrides.check()?;
    Ok((capsule.session, overrides))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::directory::{CacheMode, CacheSettings};

    fn admitted() -> Admitted {
        Admitted::new(plain_settings()).unwrap()
    }

    fn plain_settings() -> Settings {
        Settings {
            upstream: vec!["127.0.0.1:53".parse().unwrap()],
            timeout_ms: 2000,
            retries: 1,
            search: vec!["tombolo.example".into()],
            sessions_per_domain: 10,
            outstanding_per_domain: 10,
            cache: CacheSettings {
                mode: CacheMode::Private,
                share: vec![],
                entries: 10,
                negative_ttl_ms: 1000,
                max_ttl_ms: 1000,
            },
            names: BTreeMap::new(),
        }
    }

    #[test]
    fn the_session_speaks_before_the_topology() {
        let admitted = admitted();
        let own = Overrides { timeout_ms: Some(5), format: Some(Format::Json), ..Overrides::default() };
        let mut lines = String::new();
        Effective::new(&own, &admitted).lines(&mut lines);
        assert_eq!(
            lines,
            "timeout 5ms\nretries 1\nupstream none\nsearch tombolo.example.\nformat json\ntrace off\n"
        );
    }

    #[test]
    fn a_capsule_restores_what_it_was_made_of_and_fits() {
        let domain = format!("{}abc", format!("{}.", "a".repeat(49)).repeat(5));
        let full = Overrides {
            timeout_ms: Some(60_000),
            retries: Some(10),
            upstreams: Some(
                vec!["[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:65535".parse().unwrap(); MAX_UPSTREAMS]
                    .into(),
            ),
            search: Some(vec![search_domain(&domain).unwrap(); MAX_SEARCH].into()),
            format: Some(Format::Json),
            trace: Some(true),
        };
        // The all-ones prefix is multicast, which is refused; take the longest unicast text
        // instead.
        let unicast: SocketAddr = "[1111:1111:1111:1111:1111:1111:1111:1111]:65535".parse().unwrap();
        let full = Overrides { upstreams: Some(vec![unicast; MAX_UPSTREAMS].into()), ..full };
        let capsule = seal(u64::MAX, &full);
        assert!(capsule.len() <= wire::service::MAX_CAPSULE_BYTES, "{} bytes", capsule.len());
        assert_eq!(unseal(&capsule), Ok((u64::MAX, full)));
        assert_eq!(unseal(&seal(1, &Overrides::default())), Ok((1, Overrides::default())));
    }

    #[test]
    fn a_forged_capsule_is_refused() {
        for forged in [
            &b""[..],
            b"{}",
            br#"{"v":2,"session":1}"#,
            br#"{"v":1,"session":1,"timeout_ms":0}"#,
            br#"{"v":1,"session":1,"retries":11}"#,
            br#"{"v":1,"session":1,"upstream":[]}"#,
            br#"{"v":1,"session":1,"upstream":["127.0.0.1:0"]}"#,
            br#"{"v":1,"session":1,"search":["a..b"]}"#,
            br#"{"v":1,"session":1,"search":["a","a","a","a","a","a","a"]}"#,
            br#"{"v":1,"session":1,"more":1}"#,
            &[b' '; 4000],
        ] {
            assert_eq!(unseal(forged), Err(Failure::Malformed), "{}", String::from_utf8_lossy(forged));
        }
    }

    #[test]
    fn structs_go_in_and_come_out() {
        let admitted = admitted();
        let mut own = Overrides::default();
        let mut bytes = Effective::new(&own, &admitted).to_struct();
        bytes[8] = 1;
        own.set_struct(&bytes).unwrap();
        assert_eq!(own.format, Some(Format::Json));
        assert_eq!(Effective::new(&own, &admitted).to_struct(), bytes);
        for at in 16..32 {
            let mut wrong = bytes;
            wrong[at] = 1;
            assert_eq!(own.set_struct(&wrong), Err(Failure::Malformed), "reserved byte {at}");
        }
        assert_eq!(own.set_struct(&bytes[1..]), Err(Failure::Malformed));
    }

    #[test]
    fn upstream_structs_are_checked_byte_by_byte() {
        let mut v4 = [0u8; 24];
        v4[0..2].copy_from_slice(&2u16.to_ne_bytes());
        v4[2..4].copy_from_slice(&5353u16.to_ne_bytes());
        v4[8..12].copy_from_slice(&[127, 0, 0, 1]);
        let mut own = Overrides::default();
        own.add_upstream_struct(&v4).unwrap();
        assert_eq!(own.upstreams.as_deref(), Some(&["127.0.0.1:5353".parse().unwrap()][..]));
        for at in [0, 4, 7, 12, 23] {
            let mut wrong = v4;
            wrong[at] ^= 0x40;
            assert_eq!(own.add_upstream_struct(&wrong), Err(Failure::Malformed), "byte {at}");
        }
        for _ in 1..MAX_UPSTREAMS {
            own.add_upstream_struct(&v4).unwrap();
        }
        assert_eq!(own.add_upstream_struct(&v4), Err(Failure::Malformed), "one too many");
    }

    #[test]
    fn settings_out_of_bounds_are_named() {
        let broken = |change: fn(&mut Settings)| {
            let mut settings = plain_settings();
            change(&mut settings);
            Admitted::new(settings).unwrap_err().to_string()
        };
        assert!(broken(|s| s.timeout_ms = 0).contains("`timeout_ms` is 0, it must be 1 to 60000"));
        assert!(broken(|s| s.retries = 11).contains("`retries`"));
        assert!(broken(|s| s.upstream.clear()).contains("`upstream`"));
        assert!(broken(|s| s.search = vec!["a..b".into()]).contains("\"a..b\""));
        assert!(broken(|s| s.search = vec!["a".into(); 7]).contains("at most 6"));
    }
}
