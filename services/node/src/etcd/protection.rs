//! Whether etcd asks its clients for a certificate. Write access to it decides what every node
//! runs, as root; so an etcd that lets everybody in is used only where somebody said that this is
//! meant (`docs/adr/0074-an-etcd-that-knows-its-clients.md`).

use std::net::IpAddr;

/// The remedy for an etcd that is not protected.
pub(crate) const ADVICE: &str = "give etcd TLS and certificates of its clients (--etcd https://..., --etcd-ca, --etcd-cert, --etcd-key); or say --insecure-etcd \
                                 where nobody but the nodes reaches it";

/// The host of a URL: a name, or an address without brackets.
pub(crate) fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host = match authority.rsplit_once(':') {
        // The last group of an address of IPv6 is no port.
        Some((host, _)) if !host.contains(':') || host.ends_with(']') => host,
        _ => authority,
    };
    Some(host.trim_matches(['[', ']']))
}

fn is_loopback(url: &str) -> bool {
    host_of(url)
        .is_some_and(|host| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

/// Why strangers may write into an etcd at these endpoints; `None`: they can't.
/// `shows_certificate`: we show one there. (That etcd asks for it can't be seen from here: an etcd
/// that does not is refused by nothing but its owner.)
pub(crate) fn unprotected(endpoints: &[String], shows_certificate: bool) -> Option<String> {
    let is_safe =
        |endpoint: &str| is_loopback(endpoint) || endpoint.starts_with("https://") && shows_certificate;
    let endpoint = endpoints.iter().find(|endpoint| !is_safe(endpoint))?;
    let what = if endpoint.starts_with("https://") {
        "does not ask who we are: we have no certificate for it"
    } else {
        "is spoken to without TLS"
    };
    Some(format!("etcd at {endpoint} {what}; whoever reaches it can have every node run anything, as root"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(endpoints: &[&str], shows_certificate: bool) -> Option<String> {
        let endpoints: Vec<String> = endpoints.iter().map(|url| (*url).to_owned()).collect();
        unprotected(&endpoints, shows_certificate)
    }

    #[test]
    fn strangers_write_into_an_etcd_without_tls_or_without_certificates_of_its_clients() {
        for open in ["http://10.0.0.1:2379", "http://etcd.example.org", "http://[fd00::1]:2379"] {
            for shows in [false, true] {
                let why = refused(&[open], shows).unwrap();
                assert!(why.contains(open) && why.contains("without TLS") && why.contains("root"), "{why}");
            }
        }
        let why = refused(&["https://10.0.0.1:2379"], false).unwrap();
        assert!(why.contains("no certificate for it"), "{why}");
        assert_eq!(refused(&["https://10.0.0.1:2379", "https://etcd.example.org"], true), None);
        let one_of_them = refused(&["https://10.0.0.1:2379", "http://10.0.0.2:2379"], true).unwrap();
        assert!(one_of_them.contains("http://10.0.0.2:2379"), "{one_of_them}");
    }

    #[test]
    fn nobody_but_this_machine_reaches_the_loopback() {
        for near in
            ["http://127.0.0.1:2379", "http://localhost:2379", "http://[::1]:2379", "http://127.1.2.3"]
        {
            assert_eq!(refused(&[near], false), None, "{near}");
        }
        // A name that begins like one of the loopback is another machine's.
        for far in
            ["http://127.0.0.1.example.org:2379", "http://localhost.example.org:2379", "http://0.0.0.0:2379"]
        {
            assert!(refused(&[far], false).is_some(), "{far}");
        }
        assert!(refused(&["http://127.0.0.1:2379", "http://10.0.0.1:2379"], false).is_some());
        assert!(refused(&["http://user@127.0.0.1:1@10.0.0.1:2379"], false).is_some());
    }
}
