//! The rules of socket services: where a server listens, where programs connect, and that no
//! connection goes in circles.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::Context;
use super::mount::RESERVED;
use crate::bounds::{
    CONNECTIONS_DEFAULT, CONNECTIONS_PER_DOMAIN_DEFAULT, SEARCH_BYTES_MAX, UNIX_PATH_BYTES_MAX,
};
use crate::diagnostic::Code;
use crate::file::{DomainForm, ServiceAtForm, ServiceForm, SocketForm};
use crate::model::{
    Domain, DomainKind, Network, Service, ServiceKind, Settings, SocketMount, SocketPlace, SocketSettings,
};
use crate::name::Name;
use crate::order;
use crate::read::{At, Field, Span};
use crate::scalar::{Filled, inside, is_label};
use crate::suggest::quoted;

/// Examples of a socket's place.
const PLACES: &str = "\"tcp:6379\", \"tcp:127.0.0.1:6379\" or \"unix:/run/server.sock\"";

/// The settings of a socket service.
pub(super) fn settings(
    name: &At<Name>,
    form: &ServiceForm,
    settings: &SocketForm,
    cx: &mut Context<'_, '_>,
) -> SocketSettings {
    let max_connections = settings.max_connections.value().map_or(CONNECTIONS_DEFAULT, |count| count.0);
    let usual = CONNECTIONS_PER_DOMAIN_DEFAULT.min(max_connections);
    let connections_per_domain = settings.connections_per_domain.value().map_or(usual, |count| count.0);
    if let Field::Given(at) = &settings.connections_per_domain
        && connections_per_domain > max_connections
        && !settings.max_connections.is_broken()
    {
        let message =
            format!("one domain can't have {connections_per_domain} of {max_connections} connections");
        cx.out.error(Code::Conflict, &at.span, message).help("take fewer, or a larger `max_connections`");
    }
    SocketSettings {
        to: to(name, form, cx),
        proxy: settings.proxy.value().copied().unwrap_or(false),
        max_connections,
        connections_per_domain,
        connections_per_second: settings.connections_per_second.value().map(|count| count.0),
    }
}

/// Where the server listens.
fn to(name: &At<Name>, form: &ServiceForm, cx: &mut Context<'_, '_>) -> SocketPlace {
    let nowhere = SocketPlace::Tcp((Ipv4Addr::LOCALHOST, 1).into());
    match &form.to {
        Field::Given(at) => place(at, cx).unwrap_or(nowhere),
        Field::Broken => nowhere,
        Field::Absent => {
            cx.out
                .error(
                    Code::MissingKey,
                    &name.span,
                    format!("`to` is missing: where does the server of `{}` listen?", name.value),
                )
                .help(format!("to = {PLACES}, as it is in the server's domain"));
            nowhere
        }
    }
}

/// Refuses `to` where the kind has no place.
pub(super) fn refuse_to(kind: ServiceKind, form: &ServiceForm, cx: &mut Context<'_, '_>) {
    let Field::Given(to) = &form.to else { return };
    let message = format!("a {} listens nowhere: `to` is of a socket", kind.as_str());
    cx.out.error(Code::WrongKind, &to.span, message).help("leave it out, or take kind = \"socket\"");
}

/// The server of a coordination is given a descriptor of the node's.
pub(super) fn refuse_guest(host: &Name, form: &ServiceForm, cx: &mut Context<'_, '_>) {
    let Field::Given(domain) = &form.domain else { return };
    if cx.domain_form(host).is_some_and(is_guest) {
        let message = format!("`{host}` is a virtual machine, in which no coordination can be served");
        cx.out.error(Code::WrongKind, &domain.span, message).help(
            "its server is given a descriptor, which reaches processes and containers: take kind = \"container\" \
             for that domain",
        );
    }
}

fn is_guest(form: &DomainForm) -> bool {
    form.kind.value() == Some(&DomainKind::Vm)
}

/// One socket service that a domain mounts.
pub(super) fn mounted(
    service: Name,
    key: &At<String>,
    form: &ServiceAtForm,
    domain: &DomainForm,
    cx: &mut Context<'_, '_>,
) -> Option<(SocketMount, Span)> {
    let entrances = [("stub", &form.stub), ("resolve", &form.resolve), ("preload", &form.preload)];
    for (word, entrance) in entrances {
        if let Field::Given(at) = entrance {
            let message =
                format!("`{}` is a socket: it resolves no names, so `{word}` says nothing", key.value);
            cx.out.error(Code::WrongKind, &at.span, message).help("leave it out");
        }
    }
    if let Field::Given(at) = &form.targets {
        let message =
            format!("`{}` is a socket: it has no files of which anything could be asked", key.value);
        cx.out.error(Code::WrongKind, &at.span, message).help("leave it out");
    }
    let at = match &form.at {
        Field::Given(at) => at,
        Field::Broken => return None,
        Field::Absent => {
            let message = format!("where do programs connect to `{}`?", key.value);
            cx.out
                .error(Code::MissingKey, &key.span, message)
                .help(format!("{} = {{ at = PLACE }}, with {PLACES}", key.value));
            return None;
        }
    };
    let (place, name) = match named(&at.value.0) {
        Some((name, port)) => {
            let address = SocketMount::address_of(&name);
            (SocketPlace::Tcp((address, port).into()), Some(name))
        }
        None => (place(at, cx)?, None),
    };
    refuse_taken(&place, at, domain, cx);
    Some((SocketMount { service, at: place, name }, at.span.clone()))
}

/// A name and a port, such as `tcp:cache.internal:6379`. A text that might be an address is no
/// name.
fn named(text: &str) -> Option<(String, u16)> {
    let (name, port) = text.strip_prefix("tcp:")?.rsplit_once(':')?;
    let name = name.strip_suffix('.').unwrap_or(name);
    let last = name.rsplit('.').next()?;
    let good = name.len() <= SEARCH_BYTES_MAX
        && name.split('.').all(is_label)
        && last.bytes().any(|byte| byte.is_ascii_alphabetic());
    let port = port.parse().ok().filter(|port| *port != 0)?;
    good.then(|| (name.to_ascii_lowercase(), port))
}

/// Tells the directories of each domain the names of its sockets; whoever has a name and no
/// directory that could answer is refused.
pub(super) fn tell_names(domains: &[Domain], services: &mut [Service], cx: &mut Context<'_, '_>) {
    for domain in domains {
        for mount in &domain.sockets {
            let (Some(name), SocketPlace::Tcp(at)) = (&mount.name, &mount.at) else { continue };
            let IpAddr::V4(address) = at.ip() else { continue };
            let mut told = false;
            for service in services.iter_mut() {
                let mounts = domain.services.iter().any(|mounted| mounted.service == service.name);
                if let (true, Settings::Directory(settings)) = (mounts, &mut service.settings) {
                    settings.names.entry(domain.name.clone()).or_default().insert(name.clone(), address);
                    told = true;
                }
            }
            if !told {
                refuse_unanswered(domain, mount, name, cx);
            }
        }
    }
}

fn refuse_unanswered(domain: &Domain, mount: &SocketMount, name: &str, cx: &mut Context<'_, '_>) {
    let Some(form) = cx.domain_form(&domain.name) else { return };
    let entries = form.services.value().map_or(&[][..], |named| named.0.as_slice());
    let entry = entries.iter().find(|entry| entry.key.value == mount.service.as_str());
    let Some(span) = entry.map(|entry| entry.key.span.clone()) else { return };
    let message = format!("`{}` mounts no directory that could answer for {}", domain.name, quoted(name));
    let help = format!("mount one, or take a place without a name: {PLACES}");
    cx.out.error(Code::BadAddress, &span, message).help(help);
}

/// Refuses places that are not this domain's to give.
fn refuse_taken(place: &SocketPlace, at: &At<Filled>, domain: &DomainForm, cx: &mut Context<'_, '_>) {
    match place {
        SocketPlace::Tcp(address) => {
            let known = !domain.network.is_broken() && !domain.kind.is_broken();
            // The `lo` of a guest is its own, whatever cards it has.
            if known && !is_guest(domain) && super::domain::network(domain) == Network::Host {
                let message = format!("{address} would be on the node: this domain has the node's network");
                cx.out.error(Code::Conflict, &at.span, message).help(
                    "take network = \"none\", in a container, or a place such as \"unix:/run/server.sock\"",
                );
            }
        }
        SocketPlace::Unix(path) => {
            if let Some((reserved, why)) = RESERVED.iter().find(|(reserved, _)| path.starts_with(reserved)) {
                let message = format!("no socket can be below `{reserved}`: {why}");
                cx.out
                    .error(Code::ReservedPath, &at.span, message)
                    .help("choose another place, such as below /run");
            }
        }
    }
}

/// Where a socket is.
fn place(at: &At<Filled>, cx: &mut Context<'_, '_>) -> Option<SocketPlace> {
    let text = at.value.0.as_str();
    if let Some(path) = text.strip_prefix("unix:") {
        return unix(path, &at.span, cx);
    }
    let Some(address) = text.strip_prefix("tcp:").and_then(tcp) else {
        let message = format!("{} is no place of a socket", quoted(text));
        cx.out.error(Code::BadAddress, &at.span, message).help(PLACES);
        return None;
    };
    if address.ip().is_loopback() && address.port() != 0 {
        return Some(SocketPlace::Tcp(address));
    }
    let (message, help) = if address.port() == 0 {
        (format!("{} has no port", quoted(text)), PLACES.to_owned())
    } else {
        let help = format!("\"tcp:{}\"; nothing else of any network is needed", address.port());
        (format!("{} is no address of `lo`", quoted(&address.ip().to_string())), help)
    };
    cx.out.error(Code::BadAddress, &at.span, message).help(help);
    None
}

/// A port of 127.0.0.1, or an address with a port.
fn tcp(text: &str) -> Option<SocketAddr> {
    if text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(|c| c.is_ascii_digit()) {
        return text.parse().ok().map(|port: u16| (Ipv4Addr::LOCALHOST, port).into());
    }
    text.parse().ok()
}

fn unix(path: &str, span: &Span, cx: &mut Context<'_, '_>) -> Option<SocketPlace> {
    let found = inside(path, span, &mut cx.out)?;
    if found.as_os_str().len() > UNIX_PATH_BYTES_MAX {
        let message = format!("the path of a socket has at most {UNIX_PATH_BYTES_MAX} bytes");
        cx.out.error(Code::BadPath, span, message).help("choose a shorter one");
        return None;
    }
    Some(SocketPlace::Unix(found))
}

/// Refuses two services at one place.
pub(super) fn refuse_rivals(mounts: &[(SocketMount, Span)], cx: &mut Context<'_, '_>) {
    for (index, (mount, span)) in mounts.iter().enumerate() {
        if let Some((first, at)) = mounts.iter().take(index).find(|(first, _)| first.at == mount.at) {
            let message = format!("`{}` is at {} already", first.service, mount.at);
            let help = format!("see {}; give each its own place", cx.out.line_of(at));
            cx.out.error(Code::Duplicate, span, message).help(help);
        }
    }
}

/// Refuses services that lead to each other: a connection would go in circles until every limit is
/// reached.
pub(super) fn refuse_loops(domains: &[Domain], services: &[Service], cx: &mut Context<'_, '_>) {
    let mut edges: Vec<(&str, &str)> = Vec::new();
    for service in services {
        let Settings::Socket(settings) = &service.settings else { continue };
        let host = domains.iter().find(|domain| domain.name == service.domain);
        let mounts = host.map_or(&[][..], |host| host.sockets.as_slice());
        edges.extend(
            mounts
                .iter()
                .filter(|mount| mount.at == settings.to)
                .map(|mount| (service.name.as_str(), mount.service.as_str())),
        );
    }
    for cycle in order::cycles(&edges) {
        let Some(first) = cycle.first() else { continue };
        let Some(Field::Given(to)) = cx.service_form(first).map(|form| &form.to) else { continue };
        let message = if cycle.len() == 2 {
            format!("`{first}` leads to itself: its own domain mounts it where its server should be")
        } else {
            format!("these services lead to each other: {}", cycle.join(" to "))
        };
        cx.out
            .error(Code::Cycle, &to.span, message)
            .help("say where the server listens, or mount it elsewhere");
    }
}
