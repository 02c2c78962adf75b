//! The calls of libnss-resolve: varlink (one JSON object and a NUL per message) with the interface
//! `io.systemd.Resolve` (systemd's `nss-resolve.c` is its one client here). Decides without
//! waiting.

use rustix::io::Errno;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use wire::directory::{Addresses, MAX_NAME_BYTES, Names};

const RESOLVE_HOSTNAME: &str = "io.systemd.Resolve.ResolveHostname";
const RESOLVE_ADDRESS: &str = "io.systemd.Resolve.ResolveAddress";
/// Linux's address families.
const AF_UNSPEC: i64 = 0;
const AF_INET: i64 = 2;
const AF_INET6: i64 = 10;
/// `SD_RESOLVED_PROTOCOL` bit for DNS, in the `flags` of an answer.
const ANSWERED_BY_DNS: u64 = 1;
/// DNS response code of a name that does not exist.
const NXDOMAIN: u32 = 3;

/// A client's call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Addresses of a name.
    Hostname {
        /// The name.
        name: String,
        /// Whether IPv4 addresses are wanted.
        v4: bool,
        /// Whether IPv6 addresses are wanted.
        v6: bool,
    },
    /// Names of an address.
    Address(IpAddr),
}

/// A message as it came.
#[derive(Deserialize)]
struct Message {
    method: String,
    #[serde(default)]
    parameters: Map<String, Value>,
    #[serde(default)]
    oneway: bool,
}

/// Reads a message (without its NUL).
///
/// # Errors
/// The reply to send instead; `None`: none, and close the connection.
pub fn parse(message: &[u8]) -> Result<Call, Option<Vec<u8>>> {
    // A call without a reply asks for nothing that could be done here.
    let message: Message =
        serde_json::from_slice(message).ok().filter(|message: &Message| !message.oneway).ok_or(None)?;
    let result = match message.method.as_str() {
        RESOLVE_HOSTNAME => hostname(&message.parameters),
        RESOLVE_ADDRESS => address(&message.parameters),
        method => {
            let parameters = json!({ "method": method });
            return Err(Some(error("org.varlink.service.MethodNotFound", &parameters)));
        }
    };
    result.map_err(|parameter| {
        let parameters = json!({ "parameter": parameter });
        Some(error("org.varlink.service.InvalidParameter", &parameters))
    })
}

/// The parameter that is wrong.
type Wrong = &'static str;

fn hostname(parameters: &Map<String, Value>) -> Result<Call, Wrong> {
    let name = parameters.get("name").and_then(Value::as_str).ok_or("name")?;
    let text = name.strip_suffix('.').unwrap_or(name);
    if text.is_empty() || text.len() > MAX_NAME_BYTES || text.contains('\0') {
        return Err("name");
    }
    let family = parameters.get("family").map_or(Some(AF_UNSPEC), Value::as_i64);
    let (v4, v6) = match family {
        Some(AF_UNSPEC) => (true, true),
        Some(AF_INET) => (true, false),
        Some(AF_INET6) => (false, true),
        _ => return Err("family"),
    };
    Ok(Call::Hostname { name: name.to_owned(), v4, v6 })
}

fn address(parameters: &Map<String, Value>) -> Result<Call, Wrong> {
    let bytes = parameters.get("address").and_then(Value::as_array).ok_or("address")?;
    let bytes: Option<Vec<u8>> =
        bytes.iter().take(17).map(|byte| byte.as_u64().and_then(|byte| byte.try_into().ok())).collect();
    let bytes = bytes.ok_or("address")?;
    match parameters.get("family").and_then(Value::as_i64) {
        Some(AF_INET) => <[u8; 4]>::try_from(bytes).ok().map(|bytes| Ipv4Addr::from(bytes).into()),
        Some(AF_INET6) => <[u8; 16]>::try_from(bytes).ok().map(|bytes| Ipv6Addr::from(bytes).into()),
        _ => return Err("family"),
    }
    .map(Call::Address)
    .ok_or("address")
}

impl Call {
    /// The reply to what needs no service: an address instead of a name, and the names of this
    /// machine (RFC 6761 section 6.3).
    pub fn known(&self) -> Option<Vec<u8>> {
        let Self::Hostname { name, v4, v6 } = self else { return None };
        let text = name.strip_suffix('.').unwrap_or(name);
        let last = text.rsplit('.').next().unwrap_or(text);
        let addresses: Vec<IpAddr> = if let Ok(address) = text.parse() {
            vec![address]
        } else if last.eq_ignore_ascii_case("localhost") {
            vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
        } else {
            return None;
        };
        let wanted = addresses.into_iter().filter(|address| if address.is_ipv4() { *v4 } else { *v6 });
        Some(addresses_reply(wanted, text))
    }
}

/// The reply to a call, from the service's answer.
pub fn reply(call: &Call, answer: Result<&[u8], Errno>) -> Vec<u8> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(errno) => return failure(errno),
    };
    match call {
        Call::Hostname { name, .. } => match Addresses::decode(answer) {
            Ok(found) => {
                let canonical = found.as_asked(name).unwrap_or(found.canonical);
                addresses_reply(found.addresses.into_iter(), &canonical)
            }
            Err(_) => failure(Errno::BADMSG),
        },
        Call::Address(_) => match Names::decode(answer) {
            Ok(Names(names)) if !names.is_empty() => {
                let names: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
                message(&json!({ "parameters": { "names": names, "flags": ANSWERED_BY_DNS } }))
            }
            Ok(_) => failure(Errno::NODATA),
            Err(_) => failure(Errno::BADMSG),
        },
    }
}

fn addresses_reply(addresses: impl Iterator<Item = IpAddr>, name: &str) -> Vec<u8> {
    let addresses: Vec<Value> = addresses
        .map(|address| match address {
            IpAddr::V4(address) => json!({ "family": AF_INET, "address": address.octets() }),
            IpAddr::V6(address) => json!({ "family": AF_INET6, "address": address.octets() }),
        })
        .collect();
    if addresses.is_empty() {
        return failure(Errno::NODATA);
    }
    message(&json!({ "parameters": { "addresses": addresses, "name": name, "flags": ANSWERED_BY_DNS } }))
}

/// The reply to a call that the service could not answer. libnss-resolve takes some names of errors
/// to mean "try again later" and all others of this interface to mean "there is no such host".
pub fn failure(errno: Errno) -> Vec<u8> {
    match errno {
        Errno::NOENT => error("io.systemd.Resolve.DNSError", &json!({ "rcode": NXDOMAIN })),
        Errno::NODATA => error("io.systemd.Resolve.NoSuchResourceRecord", &json!({})),
        Errno::INVAL | Errno::NAMETOOLONG | Errno::ACCESS | Errno::OPNOTSUPP => {
            error("io.systemd.Resolve.QueryAborted", &json!({}))
        }
        Errno::TIMEDOUT => error("io.systemd.Resolve.QueryTimedOut", &json!({})),
        Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::CONNRESET => {
            error("io.systemd.Resolve.NoNameServers", &json!({}))
        }
        _ => error("io.systemd.Resolve.MaxAttemptsReached", &json!({})),
    }
}

fn error(name: &str, parameters: &Value) -> Vec<u8> {
    message(&json!({ "error": name, "parameters": parameters }))
}

fn message(value: &Value) -> Vec<u8> {
    let mut bytes = value.to_string().into_bytes();
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn call(text: &str) -> Result<Call, Option<String>> {
        parse(text.as_bytes()).map_err(|reply| reply.map(|reply| String::from_utf8(reply).expect("text")))
    }

    #[test]
    fn both_calls_are_understood() {
        let name = "host.example".to_owned();
        assert_eq!(
            call(
                r#"{"method":"io.systemd.Resolve.ResolveHostname","parameters":{"name":"host.example","flags":0}}"#
            ),
            Ok(Call::Hostname { name: name.clone(), v4: true, v6: true })
        );
        assert_eq!(
            call(
                r#"{"method":"io.systemd.Resolve.ResolveHostname","parameters":{"name":"host.example","family":10}}"#
            ),
            Ok(Call::Hostname { name, v4: false, v6: true })
        );
        assert_eq!(
            call(
                r#"{"method":"io.systemd.Resolve.ResolveAddress","parameters":{"family":2,"address":[192,0,2,1]}}"#
            ),
            Ok(Call::Address(IpAddr::from([192, 0, 2, 1])))
        );
    }

    #[test]
    fn wrong_calls_are_told_what_is_wrong() {
        let wrong = |text: &str| call(text).expect_err("wrong").unwrap_or_default();
        assert!(wrong(r#"{"method":"io.systemd.Resolve.ResolveRecord"}"#).contains("MethodNotFound"));
        let address =
            r#"{"method":"io.systemd.Resolve.ResolveAddress","parameters":{"family":2,"address":[1,2,3]}}"#;
        assert!(wrong(address).contains(r#""parameter":"address""#));
        let name =
            format!(r#"{{"method":"{RESOLVE_HOSTNAME}","parameters":{{"name":"{}"}}}}"#, "a".repeat(254));
        assert!(wrong(&name).contains(r#""parameter":"name""#));
        let family = format!(r#"{{"method":"{RESOLVE_HOSTNAME}","parameters":{{"name":"a","family":7}}}}"#);
        assert!(wrong(&family).contains(r#""parameter":"family""#));
        assert_eq!(call("{}"), Err(None));
        assert_eq!(call(r#"{"method":"x","oneway":true}"#), Err(None));
    }

    #[test]
    fn this_machine_needs_no_service() {
        let known = |name: &str, v4, v6| {
            let call = Call::Hostname { name: name.into(), v4, v6 };
            call.known().map(|reply| String::from_utf8(reply).expect("text"))
        };
        assert!(known("a.LOCALHOST.", true, false).is_some_and(|reply| reply.contains("[127,0,0,1]")));
        assert!(known("192.0.2.1", true, true).is_some_and(|reply| reply.contains("[192,0,2,1]")));
        assert!(known("::1", true, false).is_some_and(|reply| reply.contains("NoSuchResourceRecord")));
        assert_eq!(known("localhost.example", true, true), None);
    }

    #[test]
    fn errors_have_the_names_that_the_client_knows() {
        for (errno, name) in [
            (Errno::NOENT, "DNSError"),
            (Errno::NODATA, "NoSuchResourceRecord"),
            (Errno::TIMEDOUT, "QueryTimedOut"),
            (Errno::REMOTEIO, "MaxAttemptsReached"),
            (Errno::CONNREFUSED, "NoNameServers"),
        ] {
            let reply = String::from_utf8(failure(errno)).expect("text");
            assert!(
                reply.contains(&format!("io.systemd.Resolve.{name}")) && reply.ends_with('\0'),
                "{reply}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _parsed = parse(&bytes);
        }

        #[test]
        fn no_answer_breaks_it(answer in prop::collection::vec(any::<u8>(), 0..100)) {
            let names = reply(&Call::Address(Ipv4Addr::LOCALHOST.into()), Ok(&answer));
            prop_assert_eq!(names.last(), Some(&0));
        }
    }
}
