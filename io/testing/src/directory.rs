//! A directory service with a few fixed names.

use rustix::io::Errno;
use serde_json::{Value, json};
use session::{Context, LinkId, Readiness, ReplyTo, Service};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;
use wire::control::Consumer;
use wire::directory::{AddressQuery, Addresses, KIND, Names, file, verb};
use wire::service::{Behaviour, Export, FileExport, OpenInfo, VERSION};

/// Names: `host.example` (both families; `alias.example` leads to it), `v4.example`, `v6.example`,
/// `many.example` (40 addresses), `empty.example` (none), `failing.example` (the upstream fails),
/// `silent.example` (never answered until the server ends). Every other name does not exist.
/// 192.0.2.1 and 2001:db8::1 are `host.example`.
#[derive(Debug, Default)]
pub struct FakeDirectory {
    mute: bool,
    asked: u64,
}

impl FakeDirectory {
    /// One that never answers anything.
    pub fn mute() -> Self {
        Self { mute: true, ..Self::default() }
    }

    /// The service as the daemon tells of it.
    pub fn told() -> wire::control::ServedService {
        wire::control::ServedService { name: "dns".into(), kind: KIND.into(), settings: json!({}) }
    }

    fn addresses(name: &str) -> Result<Addresses, Errno> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let v4 = |last| IpAddr::from(Ipv4Addr::new(192, 0, 2, last));
        let v6 = |last| IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last));
        let addresses = match name.as_str() {
            "host.example" | "alias.example" => vec![v4(1), v6(1)],
            "v4.example" => vec![v4(4)],
            "v6.example" => vec![v6(6)],
            "many.example" => (1..=40).map(v4).collect(),
            "empty.example" => Vec::new(),
            "failing.example" => return Err(Errno::REMOTEIO),
            _ => return Err(Errno::NOENT),
        };
        let canonical = if name == "alias.example" { "host.example".into() } else { name };
        Ok(Addresses { canonical, ttl_s: 60, addresses })
    }

    fn look_up(query: &[u8]) -> Result<Vec<u8>, Errno> {
        let query = AddressQuery::decode(query).map_err(|_| Errno::INVAL)?;
        let mut found = Self::addresses(query.name)?;
        found.addresses.retain(|address| if address.is_ipv4() { query.v4 } else { query.v6 });
        if found.addresses.is_empty() {
            return Err(Errno::NODATA);
        }
        let mut payload = Vec::new();
        found.encode(&mut payload);
        Ok(payload)
    }

    fn names(address: &[u8]) -> Result<Vec<u8>, Errno> {
        let host = [&[192, 0, 2, 1][..], &Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets()];
        if !host.contains(&address) {
            return Err(Errno::NOENT);
        }
        let mut payload = Vec::new();
        Names(vec!["host.example".into()]).encode(&mut payload);
        Ok(payload)
    }

    /// A DNS message for a DNS message.
    fn message(query: &[u8]) -> Result<Vec<u8>, Errno> {
        let (name, end) = question(query).ok_or(Errno::INVAL)?;
        let of_type = query.get(end - 4..end - 2).ok_or(Errno::INVAL)?;
        let (code, mut addresses) = match Self::addresses(&name) {
            Ok(found) => (0, found.addresses),
            Err(Errno::NOENT) => (3, Vec::new()),
            Err(_) => (2, Vec::new()),
        };
        addresses.retain(|address| of_type == if address.is_ipv4() { [0, 1] } else { [0, 28] });
        let mut answer = query.get(..2).unwrap_or_default().to_vec();
        answer.extend_from_slice(&[0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0]);
        answer.extend_from_slice(&query[12..end]);
        for address in addresses {
            answer.extend_from_slice(&[
                0xc0,
                12,
                0,
                if address.is_ipv4() { 1 } else { 28 },
                0,
                1,
                0,
                0,
                0,
                60,
                0,
            ]);
            match address {
                IpAddr::V4(address) => {
                    answer.push(4);
                    answer.extend_from_slice(&address.octets());
                }
                IpAddr::V6(address) => {
                    answer.push(16);
                    answer.extend_from_slice(&address.octets());
                }
            }
        }
        Ok(answer)
    }
}

/// The name that is asked for, and where the question ends.
fn question(query: &[u8]) -> Option<(String, usize)> {
    let (mut name, mut at) = (String::new(), 12);
    loop {
        let length = usize::from(*query.get(at)?);
        if length == 0 {
            return Some((name, at + 5));
        }
        name.push_str(std::str::from_utf8(query.get(at + 1..at + 1 + length)?).ok()?);
        name.push('.');
        at += 1 + length;
    }
}

impl Service for FakeDirectory {
    fn export(&self) -> Export {
        let file = |id| FileExport {
            id,
            name: None,
            mode: 0o666,
            behaviour: Behaviour::Session,
            idempotent: true,
            verb: verb::RESOLVE.into(),
            change: None,
        };
        let files = [file::MESSAGE, file::ADDRESSES, file::NAMES].map(file).into();
        Export { version: VERSION, kind: KIND.into(), files }
    }

    fn attach(&mut self, _: &mut dyn Context, _: LinkId, _: &Consumer) {}

    fn detach(&mut self, _: &mut dyn Context, _: LinkId) {}

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, _: &OpenInfo) {
        ctx.answer(to, Ok(&[]), &[]);
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.asked += 1;
        let silent = b"silent";
        let about_silence = payload.windows(silent.len()).any(|part| part.eq_ignore_ascii_case(silent));
        if self.mute || about_silence {
            return;
        }
        let answer = match to.file {
            file::MESSAGE => Self::message(payload),
            file::ADDRESSES => Self::look_up(payload),
            _ => Self::names(payload),
        };
        ctx.answer(to, answer.as_deref().map_err(|errno| *errno), &[]);
    }

    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, _: &[u8]) {
        ctx.answer(to, Err(Errno::NOTTY), &[]);
    }

    fn cancel(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}

    fn close(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}

    fn settings(&mut self, _: &mut dyn Context, _: &Value) -> Result<(), String> {
        Ok(())
    }

    fn ready(&mut self, _: &mut dyn Context, _: u32, _: Readiness) {}

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn expired(&mut self, _: &mut dyn Context) {}

    fn state(&self) -> Value {
        json!({ "asked": self.asked })
    }

    fn state_for(&self, _: LinkId) -> Value {
        self.state()
    }
}
