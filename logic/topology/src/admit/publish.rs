//! The rules of published addresses: where the node listens for a server of a domain that has only
//! `lo`.

use std::net::{IpAddr, SocketAddr};

use super::Context;
use super::domain::network;
use crate::bounds::{CONNECTIONS_PER_DOMAIN_DEFAULT, PUBLISHED_PER_DOMAIN_MAX};
use crate::diagnostic::Code;
use crate::file::{PublishForm, TopologyForm};
use crate::model::{Domain, DomainKind, Network, Published};
use crate::read::{At, Span};
use crate::suggest::quoted;

/// Gives each domain the addresses at which it is published.
pub(super) fn admit(domains: &mut [Domain], cx: &mut Context<'_, '_>) {
    let form: &TopologyForm = cx.form;
    let mut taken: Vec<(SocketAddr, Span)> = Vec::new();
    for entry in form.publish.value().map_or(&[][..], |named| named.0.as_slice()) {
        let Some(at) = address(&entry.key, cx) else { continue };
        if let Some((other, first)) = taken.iter().find(|(other, _)| Published::overlap(at, *other)) {
            let message = format!("{at} is taken by {other}");
            let help = format!("that is on {}; choose another port", cx.out.line_of(first));
            cx.out.error(Code::Duplicate, &entry.key.span, message).help(help);
            continue;
        }
        taken.push((at, entry.key.span.clone()));
        if let Some(value) = &entry.value {
            one(at, &entry.key.span, &value.value.0, domains, cx);
        }
    }
    for domain in domains {
        domain.published.sort_by_key(|published| published.at);
    }
}

/// The address that a key is.
fn address(key: &At<String>, cx: &mut Context<'_, '_>) -> Option<SocketAddr> {
    let text = key.value.as_str();
    let Ok(address) = text.parse::<SocketAddr>() else {
        let help = match text.parse::<u16>() {
            Ok(port) => {
                format!("did you mean \"0.0.0.0:{port}\", or \"127.0.0.1:{port}\" for this node alone?")
            }
            Err(_) => {
                "an IP address and a port: \"0.0.0.0:8080\", \"127.0.0.1:8080\" or \"[::]:8080\"".to_owned()
            }
        };
        cx.out.error(Code::BadAddress, &key.span, format!("{} is no address", quoted(text))).help(help);
        return None;
    };
    let reason = match address.ip() {
        ip if ip.is_multicast() => "it is a multicast address",
        IpAddr::V4(ip) if ip.is_broadcast() => "it is the broadcast address",
        _ if address.port() == 0 => "port 0 is the port of nobody",
        _ => return Some(address),
    };
    cx.out.error(Code::BadAddress, &key.span, format!("nobody can listen at {address}: {reason}"));
    None
}

fn one(at: SocketAddr, span: &Span, form: &PublishForm, domains: &mut [Domain], cx: &mut Context<'_, '_>) {
    let Some(named) = form.domain.given() else { return };
    let Some(name) = cx.domain_called(named) else { return };
    if let Some(domain) = cx.domain_form(&name) {
        let guest = domain.kind.value() == Some(&DomainKind::Vm);
        if guest
            || (network(domain) == Network::Host && !domain.network.is_broken() && !domain.kind.is_broken())
        {
            let message = if guest {
                format!("`{name}` is a virtual machine, in which no socket can be reached")
            } else {
                format!("`{name}` has the node's network: its program listens there itself")
            };
            cx.out
                .error(Code::WrongKind, &named.span, message)
                .help("what is published is a container with network = \"none\"");
            return;
        }
    }
    let Some(domain) = domains.iter_mut().find(|domain| domain.name == name) else { return };
    if domain.published.len() >= PUBLISHED_PER_DOMAIN_MAX {
        let message = format!("at most {PUBLISHED_PER_DOMAIN_MAX} addresses can lead to one domain");
        cx.out.error(Code::TooMany, span, message);
        return;
    }
    domain.published.push(Published {
        at,
        port: form.port.value().map_or(0, |port| u16::try_from(port.0).unwrap_or(0)),
        max_connections: form.max_connections.value().map_or(CONNECTIONS_PER_DOMAIN_DEFAULT, |count| count.0),
        connections_per_second: form.connections_per_second.value().map(|count| count.0),
    });
}
