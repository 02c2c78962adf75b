//! Ports of a service at addresses of the node.

use std::net::IpAddr;

/// The most ports that one entry may stand for: as many addresses as may lead to one domain.
const RANGE_MAX: usize = 16;

/// An address of the node, and the port of the domain that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) address: String,
    pub(crate) target: u16,
}

/// The ports of an entry in the short form, `[IP:][PORT[-PORT]:]PORT[-PORT][/PROTOCOL]`.
///
/// # Errors
/// The fault of the entry, and its remedy.
pub(crate) fn short(text: &str) -> Result<Vec<Port>, &'static str> {
    let (text, protocol) = text.split_once('/').map_or((text, None), |(text, it)| (text, Some(it)));
    let (outside, target) = text.rsplit_once(':').map_or((None, text), |(outside, it)| (Some(outside), it));
    let (host, published) = match outside {
        None => (None, None),
        // An address of version 6 is in brackets, and has colons itself.
        Some(outside) => match outside.rsplit_once(':') {
            Some((host, published)) => (Some(host), Some(published)),
            None => (None, Some(outside)),
        },
    };
    long(host, published, target, protocol)
}

/// The ports of an entry in the long form.
///
/// # Errors
/// As of [`short`].
pub(crate) fn long(
    host: Option<&str>,
    published: Option<&str>,
    target: &str,
    protocol: Option<&str>,
) -> Result<Vec<Port>, &'static str> {
    if protocol.is_some_and(|protocol| protocol != "tcp") {
        return Err("addresses are published for TCP alone: the network is had by network = \"host\"");
    }
    let Some(published) = published.filter(|published| !published.is_empty()) else {
        return Err("the node's port is not said, and none is chosen: write \"8080:80\"");
    };
    let host = match host.map(|host| host.trim_matches(['[', ']'])) {
        None | Some("") => IpAddr::from([0, 0, 0, 0]),
        Some(host) => host.parse().map_err(|_| "an IP address is expected before the ports")?,
    };
    let (published, targets) = (range(published)?, range(target)?);
    if published.len() != targets.len() {
        return Err("there are not as many ports of the node as of the container");
    }
    let pairs = published.into_iter().zip(targets);
    Ok(pairs
        .map(|(port, target)| Port { address: std::net::SocketAddr::new(host, port).to_string(), target })
        .collect())
}

fn range(text: &str) -> Result<Vec<u16>, &'static str> {
    let port = |text: &str| text.parse().ok().filter(|port: &u16| *port > 0);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (Some(first), Some(last)) = (port(first), port(last)) else {
        return Err("a port is a number from 1 to 65535");
    };
    let ports: Vec<u16> = (first..=last).take(RANGE_MAX + 1).collect();
    match ports.len() {
        0 => Err("the last port of a range is below its first"),
        1..=RANGE_MAX => Ok(ports),
        _ => Err("at most 16 addresses lead to one domain"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_addresses_and_ports() {
        let of = |text: &str| {
            let ports = short(text)?;
            Ok(ports.into_iter().map(|port| format!("{} {}", port.address, port.target)).collect::<Vec<_>>())
        };
        assert_eq!(of("8080:80"), Ok(vec!["0.0.0.0:8080 80".to_owned()]));
        assert_eq!(of("127.0.0.1:8080:80/tcp"), Ok(vec!["127.0.0.1:8080 80".to_owned()]));
        assert_eq!(of("[::1]:8080:80"), Ok(vec!["[::1]:8080 80".to_owned()]));
        assert_eq!(of("9000-9001:80-81"), Ok(vec!["0.0.0.0:9000 80".into(), "0.0.0.0:9001 81".into()]));
        for (text, why) in [
            ("80", "the node's port is not said"),
            ("53:53/udp", "for TCP alone"),
            ("0:80", "a number from 1"),
            ("70000:80", "a number from 1"),
            ("", "the node's port is not said"),
            ("a:b", "a number from 1"),
            ("9000-9002:80-81", "not as many"),
            ("9001-9000:80", "below its first"),
            ("1-65535:1-65535", "at most 16"),
            ("example.org:80:80", "an IP address"),
        ] {
            let refused: &str = of(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
