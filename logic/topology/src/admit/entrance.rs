//! The rules of the services that a domain mounts, and of their native entrances.

use std::collections::BTreeMap;

use super::Context;
use crate::bounds::{TARGET_PATH_BYTES_MAX, TARGETS_MAX};
use crate::diagnostic::Code;
use crate::file::{DomainForm, DomainsForm, ServiceAtForm, ServiceForm};
use crate::model::{DomainKind, Network, ServiceKind, ServiceMount, SocketMount, Target};
use crate::name::Name;
use crate::read::{At, Entry, Field, Span};
use crate::suggest::{self, quoted};

/// The tree of a domain about itself, below `/srv`; no service can have its place.
const SELF: &str = "self";

/// The services of one domain that it sees as files, and those that it sees as sockets, sorted by
/// name.
pub(super) fn services(
    domain: &At<Name>,
    form: &DomainForm,
    cx: &mut Context<'_, '_>,
) -> (Vec<ServiceMount>, Vec<SocketMount>) {
    let entries = form.services.value().map_or(&[][..], |named| named.0.as_slice());
    let mut places: BTreeMap<Name, Span> = BTreeMap::new();
    let (mut mounts, mut sockets) = (Vec::new(), Vec::new());
    let mut memories = 0;
    for entry in entries {
        let Some((service, at)) = known(entry, cx) else { continue };
        if refuse_channel(&entry.key, cx) {
            continue;
        }
        refuse_forbidden(domain, &entry.key, cx);
        if kind_of(&entry.key, cx) == Some(ServiceKind::Socket) {
            sockets.extend(super::socket::mounted(service, &entry.key, at, form, cx));
            continue;
        }
        let Some(place) = place(&service, &entry.key, at, cx) else { continue };
        if let Some(first) = places.insert(place.clone(), entry.key.span.clone()) {
            let help = format!("the first one is on {}; give each its own place", cx.out.line_of(&first));
            let message = format!("`/srv/{place}` has a service already");
            cx.out.error(Code::Duplicate, &entry.key.span, message).help(help);
        }
        if super::camera::has_memory(&entry.key.value, cx) {
            memories += 1;
            super::camera::refuse_too_many(&entry.key, memories, cx);
        }
        if let Some(
            ServiceKind::Program
            | ServiceKind::Coordination
            | ServiceKind::Events
            | ServiceKind::Camera
            | ServiceKind::Location
            | ServiceKind::Files,
        ) = kind_of(&entry.key, cx)
        {
            refuse_entrances(&service, at, cx);
            let targets = targets(at, cx);
            let (stub, resolve, preload) = (false, false, false);
            mounts.push(ServiceMount { service, at: place, stub, resolve, preload, targets });
            continue;
        }
        mounts.push(mount(service, place, form, at, cx));
    }
    let asked: usize = mounts.iter().map(|mount| mount.targets.len()).sum();
    if asked > TARGETS_MAX {
        let message = format!(
            "`{}` asks targets of {asked} files, and {TARGETS_MAX} are the most of a domain",
            domain.value
        );
        cx.out
            .error(Code::TooMany, &domain.span, message)
            .help("leave those out that are asked of fewest calls");
    }
    refuse_rivals(&mounts, entries, cx);
    super::socket::refuse_rivals(&sockets, cx);
    mounts.sort_by(|a, b| a.service.cmp(&b.service));
    let mut sockets: Vec<SocketMount> = sockets.into_iter().map(|(mount, _)| mount).collect();
    sockets.sort_by(|a, b| a.service.cmp(&b.service));
    (mounts, sockets)
}

fn kind_of(key: &At<String>, cx: &Context<'_, '_>) -> Option<ServiceKind> {
    cx.service_form(&key.value).and_then(|form| form.kind.value().copied())
}

/// The service that an entry means.
fn known<'a>(
    entry: &'a Entry<crate::file::ServiceAt>,
    cx: &mut Context<'_, '_>,
) -> Option<(Name, &'a ServiceAtForm)> {
    let names = super::keys(&cx.form.service);
    let text = entry.key.value.as_str();
    if !names.contains(&text) && !cx.form.service.is_broken() {
        let help = if names.is_empty() {
            format!("this file has no service; declare it: [service.{}]", text)
        } else {
            suggest::word(text, &names)
        };
        cx.out
            .error(Code::UnknownService, &entry.key.span, format!("no service is called {}", quoted(text)))
            .help(help);
        return None;
    }
    Some((Name::parse(text).ok()?, &entry.value.as_ref()?.value.0))
}

/// A channel has no files: it is opened by name, by whoever `allow` names.
fn refuse_channel(key: &At<String>, cx: &mut Context<'_, '_>) -> bool {
    if kind_of(key, cx) != Some(ServiceKind::Channel) {
        return false;
    }
    let message = format!("`{}` is a channel: it has no files that could be mounted", key.value);
    let help = format!("leave it out; whom `allow` of [service.{}] names can open it", key.value);
    cx.out.error(Code::WrongKind, &key.span, message).help(help);
    true
}

/// Refuses the entrances of a directory where the service is none: it answers no names.
fn refuse_entrances(service: &Name, form: &ServiceAtForm, cx: &mut Context<'_, '_>) {
    for (key, field) in [("stub", &form.stub), ("resolve", &form.resolve), ("preload", &form.preload)] {
        if let Field::Given(at) = field
            && at.value
        {
            let message = format!("`{service}` is no directory: it answers no names, so it has no `{key}`");
            cx.out
                .error(Code::WrongKind, &at.span, message)
                .help("leave it out; its files are below /srv, and programs connect to it by its name");
        }
    }
}

/// Where below `/srv`.
fn place(service: &Name, key: &At<String>, form: &ServiceAtForm, cx: &mut Context<'_, '_>) -> Option<Name> {
    let (text, span) = match &form.at {
        Field::Given(at) => (at.value.0.as_str(), &at.span),
        Field::Absent => (service.as_str(), &key.span),
        Field::Broken => return None,
    };
    let rest = text.strip_prefix("/srv/").unwrap_or(text);
    match Name::parse(rest) {
        Ok(name) if name == SELF => {
            cx.out
                .error(Code::ReservedPath, span, "`/srv/self` is what a domain reads about itself")
                .help("choose another name below /srv");
            None
        }
        Ok(name) => Some(name),
        Err(error) => {
            let message = format!("{} is no place for a service", quoted(text));
            let help = if text.starts_with("/srv/") || !text.contains('/') {
                format!("{error}: \"/srv/{service}\" would do")
            } else {
                format!("services are directly below /srv: \"/srv/{service}\"")
            };
            cx.out.error(Code::BadPath, span, message).help(help);
            None
        }
    }
}

fn mount(
    service: Name,
    at: Name,
    form: &DomainForm,
    entrances: &ServiceAtForm,
    cx: &mut Context<'_, '_>,
) -> ServiceMount {
    // A guest has a loopback interface of its own, whatever it sees of the network.
    let guest = form.kind.value() == Some(&DomainKind::Vm);
    let alone = guest || super::domain::network(form) == Network::None;
    if let Field::Given(stub) = &entrances.stub
        && stub.value
        && !alone
        && !form.network.is_broken()
        && !form.kind.is_broken()
    {
        let help = match form.kind.value() {
            Some(DomainKind::Process) => {
                "a process uses the node's resolv.conf; take preload = true, or the files below /srv"
            }
            _ => "leave it out, or take network = \"none\"",
        };
        cx.out
            .error(
                Code::Conflict,
                &stub.span,
                "a stub at 127.0.0.53 needs a network of the domain's own, this one has the node's",
            )
            .help(help);
    }
    let stub = entrances.stub.value().copied().unwrap_or(alone);
    let resolve = entrances.resolve.value().copied().unwrap_or(alone);
    let preload = entrances.preload.value().copied().unwrap_or(false);
    if preload {
        refuse_own_preload(form, cx);
    }
    let targets = targets(entrances, cx);
    ServiceMount { service, at, stub, resolve, preload, targets }
}

/// The targets of files, in the order of their names.
fn targets(form: &ServiceAtForm, cx: &mut Context<'_, '_>) -> Vec<Target> {
    let mut targets = Vec::new();
    for entry in form.targets.value().map_or(&[][..], |named| &named.0) {
        let file = entry.key.value.as_str();
        if !is_below(file) {
            let message = format!("{} is no file below the folder of a service", quoted(file));
            cx.out
                .error(Code::BadName, &entry.key.span, message)
                .help("it is called by its path there, of 128 bytes at most and without blanks: \"reading\", or \"alarms/sub\"");
            continue;
        }
        let Some(value) = &entry.value else { continue };
        let asked = &value.value.0;
        let target = Target {
            file: file.to_owned(),
            p99_ns: asked.p99.value().map(|time| time.0),
            deadline_ns: asked.deadline.value().map(|time| time.0),
            rate: asked.rate.value().map(|count| count.0),
            age_ns: asked.age.value().map(|time| time.0),
        };
        let broken = asked.p99.is_broken() || asked.deadline.is_broken();
        let none = target.p99_ns.or(target.deadline_ns).or(target.age_ns).is_none() && target.rate.is_none();
        if none && !broken && !asked.rate.is_broken() && !asked.age.is_broken() {
            cx.out
                .error(Code::MissingKey, &value.span, format!("nothing is asked of {}", quoted(file)))
                .help("give it one of p99 = \"5ms\", deadline = \"20ms\", rate = 100, age = \"1s\"");
            continue;
        }
        targets.push(target);
    }
    targets.sort_by(|a, b| a.file.cmp(&b.file));
    targets
}

/// Whether this is a path below a folder, and leads nowhere else.
fn is_below(path: &str) -> bool {
    // Lines of text tell of it.
    let is_plain = !path.contains(|letter: char| letter.is_control() || letter.is_whitespace());
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    is_plain && path.len() <= TARGET_PATH_BYTES_MAX && path.split('/').all(is_name)
}

/// `LD_PRELOAD` is one list: whoever sets it takes ours away.
fn refuse_own_preload(form: &DomainForm, cx: &mut Context<'_, '_>) {
    let variable = form.environment.value().and_then(|named| named.get("LD_PRELOAD"));
    if let Some(entry) = variable {
        cx.out
            .error(Code::Conflict, &entry.key.span, "`LD_PRELOAD` is set by preload = true of a service")
            .help("leave one of them out");
    }
}

/// A domain that mounts a service must be allowed something.
fn refuse_forbidden(domain: &At<Name>, key: &At<String>, cx: &mut Context<'_, '_>) {
    let Some(service) = cx.service_form(&key.value) else { return };
    let Some(allow) = service.allow.value() else { return };
    // An empty list has a message of its own.
    if allow.0.is_empty() || allowed(service, &domain.value) {
        return;
    }
    let message = format!("`{}` mounts `{}` but may use none of its verbs", domain.value, key.value);
    let verb = super::service::first_verb(service.kind.value().copied());
    let help = format!(
        "add it to allow of [service.{}]: {{ domains = [\"{}\"], verbs = [\"{verb}\"] }}",
        key.value, domain.value
    );
    cx.out.error(Code::NotAllowed, &key.span, message).help(help);
}

fn allowed(service: &ServiceForm, domain: &Name) -> bool {
    let names = |form: &Field<DomainsForm>| match form {
        Field::Given(At { value: DomainsForm::Listed(list), .. }) => {
            list.iter().any(|item| *domain == *item.value.0)
        }
        _ => true,
    };
    service.allow.value().is_none_or(|list| list.0.iter().any(|permission| names(&permission.value.domains)))
}

/// An entrance is one place: two services can't both answer there.
fn refuse_rivals(
    mounts: &[ServiceMount],
    entries: &[Entry<crate::file::ServiceAt>],
    cx: &mut Context<'_, '_>,
) {
    refuse_rival("stub", "the stub at 127.0.0.53", |mount| mount.stub, mounts, entries, cx);
    refuse_rival("resolve", "the socket for libnss-resolve", |mount| mount.resolve, mounts, entries, cx);
    refuse_rival("preload", "the preloaded library", |mount| mount.preload, mounts, entries, cx);
}

fn refuse_rival(
    key: &str,
    words: &str,
    open: fn(&ServiceMount) -> bool,
    mounts: &[ServiceMount],
    entries: &[Entry<crate::file::ServiceAt>],
    cx: &mut Context<'_, '_>,
) {
    let mut rivals = mounts.iter().filter(|mount| open(mount));
    let (Some(first), Some(second)) = (rivals.next(), rivals.next()) else { return };
    let Some(entry) = entries.iter().find(|entry| entry.key.value == *second.service) else { return };
    let message = format!("both `{}` and `{}` would answer at {words}", first.service, second.service);
    let help = format!("leave it to one of them: {} = {{ {key} = false }}", second.service);
    cx.out.error(Code::Conflict, &entry.key.span, message).help(help);
}
