//! The rules of a service.

use std::collections::{BTreeMap, BTreeSet};

use super::Context;
use crate::bounds::*;
use crate::diagnostic::Code;
use crate::file::{
    AllowForm, CacheForm, CacheModeWord, ChannelForm, CoordinationForm, DirectoryForm, DomainsForm,
    EventsForm, FilesForm, ServiceForm, SettingsForm, SocketForm,
};
use crate::model::{
    Cache, CacheMode, ChannelMode, ChannelSettings, CoordinationSettings, DirectorySettings, FilesSettings,
    Network, ProgramSettings, Service, ServiceKind, Settings, Verb,
};
use crate::name::Name;
use crate::read::{At, Field, Items};
use crate::scalar::{Suffix, size_text};
use crate::suggest::{self, quoted};

/// Admits one service.
pub(super) fn admit(name: At<Name>, form: &At<ServiceForm>, cx: &mut Context<'_, '_>) -> Service {
    let host = form.value.domain.given().and_then(|domain| cx.domain_called(domain));
    let kind = form.value.kind.value().copied();
    let allow = allow(&name, &form.value, kind, cx);
    let settings = match (kind, form.value.settings.value()) {
        (_, Some(SettingsForm::Channel(settings))) => Settings::Channel(channel(settings, cx)),
        (Some(ServiceKind::Channel), None) => Settings::Channel(channel(&ChannelForm::default(), cx)),
        (_, Some(SettingsForm::Socket(settings))) => {
            Settings::Socket(super::socket::settings(&name, &form.value, settings, cx))
        }
        (Some(ServiceKind::Socket), None) => {
            Settings::Socket(super::socket::settings(&name, &form.value, &SocketForm::default(), cx))
        }
        (_, Some(SettingsForm::Coordination(settings))) => Settings::Coordination(coordination(settings)),
        (Some(ServiceKind::Coordination), None) => {
            Settings::Coordination(coordination(&CoordinationForm::default()))
        }
        (_, Some(SettingsForm::Events(settings))) => {
            let of = super::events::Of { host: host.as_ref(), allow: &allow };
            Settings::Events(super::events::settings(settings, &of, cx))
        }
        (Some(ServiceKind::Events), None) => {
            let of = super::events::Of { host: host.as_ref(), allow: &allow };
            Settings::Events(super::events::settings(&EventsForm::default(), &of, cx))
        }
        (_, Some(SettingsForm::Program(table))) => {
            Settings::Program(ProgramSettings { table: table.0.clone() })
        }
        (_, Some(SettingsForm::Camera(settings))) => Settings::Camera(super::camera::settings(settings, cx)),
        (_, Some(SettingsForm::Location(settings))) => {
            Settings::Location(super::location::settings(settings, cx))
        }
        (_, Some(SettingsForm::Files(settings))) => Settings::Files(files(settings)),
        (Some(ServiceKind::Files), None) => Settings::Files(files(&FilesForm::default())),
        (Some(ServiceKind::Program), None) => Settings::Program(ProgramSettings::default()),
        (_, Some(SettingsForm::Directory(settings))) => {
            Settings::Directory(directory(settings, host.as_ref(), &allow, cx))
        }
        // What is missing has been reported.
        (_, None) => Settings::Directory(directory(&DirectoryForm::default(), None, &allow, cx)),
    };
    match kind {
        Some(ServiceKind::Socket) | None => {}
        Some(kind @ ServiceKind::Coordination) => {
            if let Some(host) = &host {
                super::socket::refuse_guest(host, &form.value, cx);
            }
            super::socket::refuse_to(kind, &form.value, cx);
        }
        Some(other) => super::socket::refuse_to(other, &form.value, cx),
    }
    if let (Some(kind), Some(host)) = (kind.filter(|kind| !kind.has_server()), &host) {
        refuse_server(&name, (host, kind), &form.value, cx);
    }
    let backups = backups(&name, form, kind, cx);
    let memory_bytes = super::camera::memory(&name, &form.value, kind, cx);
    // The name of the service stands in for a host that has been reported.
    let domain = host.unwrap_or_else(|| name.value.clone());
    Service { name: name.value, domain, backups, allow, memory_bytes, settings }
}

/// Returns the domains whose programs stand by.
fn backups(
    name: &At<Name>,
    form: &At<ServiceForm>,
    kind: Option<ServiceKind>,
    cx: &mut Context<'_, '_>,
) -> BTreeSet<Name> {
    let Field::Given(at) = &form.value.backups else { return BTreeSet::new() };
    if let Some(kind) = kind.filter(|&kind| kind != ServiceKind::Program) {
        let message = format!("`{}` is a {}: no program stands by for its server", name.value, kind.as_str());
        cx.out.error(Code::WrongKind, &at.span, message).help("leave `backups` out");
    }
    let backups: BTreeSet<Name> = cx.domains_called(&form.value.backups).into_iter().collect();
    for host in &backups {
        if let Some(server_of) = cx.served_by(host).first().copied() {
            let message = format!(
                "`{host}` runs the server of `{server_of}`: it has no program of its own that could offer `{}`",
                name.value
            );
            cx.out.error(Code::Conflict, &at.span, message).help("name domains whose programs can offer it");
        }
    }
    backups
}

/// Returns the permissions. A service that nobody may use is a mistake.
fn allow(
    name: &At<Name>,
    form: &ServiceForm,
    kind: Option<ServiceKind>,
    cx: &mut Context<'_, '_>,
) -> BTreeMap<Name, BTreeSet<Verb>> {
    let mut allowed: BTreeMap<Name, BTreeSet<Verb>> = BTreeMap::new();
    let Field::Given(list) = &form.allow else { return allowed };
    for permission in &list.value.0 {
        let verbs = verbs(&permission.value, name, kind, cx);
        let verbs = implied(verbs, kind);
        for domain in domains(&permission.value, cx) {
            allowed.entry(domain).or_default().extend(verbs.iter().cloned());
        }
    }
    if list.value.0.is_empty() {
        let help = format!(
            "name who may: allow = [{{ domains = [\"web\"], verbs = [\"{}\"] }}], or leave the service out",
            first_verb(kind)
        );
        cx.out.error(Code::UnusedService, &list.span, format!("nobody may use `{}`", name.value)).help(help);
    }
    allowed
}

/// A verb for examples: the one that everybody needs who uses a service of this kind.
pub(super) fn first_verb(kind: Option<ServiceKind>) -> &'static str {
    match kind {
        Some(ServiceKind::Directory) | None => "resolve",
        Some(ServiceKind::Channel) => "open",
        Some(ServiceKind::Socket) => "connect",
        Some(ServiceKind::Coordination) => "coordinate",
        Some(ServiceKind::Camera) => "watch",
        Some(ServiceKind::Location) => "locate",
        // The service names its verbs itself; many have one for this.
        Some(ServiceKind::Program | ServiceKind::Files) => "read",
        Some(ServiceKind::Events) => "subscribe",
    }
}

/// With what goes along: whoever may do anything with events may look at their channels, and
/// whoever may write files may read them.
fn implied(mut verbs: BTreeSet<Verb>, kind: Option<ServiceKind>) -> BTreeSet<Verb> {
    if kind == Some(ServiceKind::Events) && !verbs.is_empty() {
        verbs.insert(Verb::Use);
    }
    if kind == Some(ServiceKind::Files) && verbs.contains(&Verb::Write) {
        verbs.insert(Verb::Read);
    }
    verbs
}

fn verbs(
    form: &AllowForm,
    name: &At<Name>,
    kind: Option<ServiceKind>,
    cx: &mut Context<'_, '_>,
) -> BTreeSet<Verb> {
    let mut verbs = BTreeSet::new();
    let Field::Given(list) = &form.verbs else { return verbs };
    for verb in &list.value.0 {
        if !verbs.insert(verb.value.clone()) {
            cx.out.error(Code::Duplicate, &verb.span, format!("`{}` is said twice", verb.value.as_str()));
        }
        if let Some(kind) = kind
            && let Some(known) = kind.verbs()
            && !known.contains(&verb.value)
        {
            let known: Vec<&str> = known.iter().map(Verb::as_str).collect();
            let message =
                format!("`{}` is a {}: it has no verb `{}`", name.value, kind.as_str(), verb.value.as_str());
            cx.out
                .error(Code::UnknownWord, &verb.span, message)
                .help(suggest::word(verb.value.as_str(), &known));
        }
    }
    if list.value.0.is_empty() {
        cx.out
            .error(Code::TooFew, &list.span, "a permission without a verb permits nothing")
            .help(format!("verbs = [\"{}\"], or leave the permission out", first_verb(kind)));
    }
    verbs
}

fn domains(form: &AllowForm, cx: &mut Context<'_, '_>) -> Vec<Name> {
    match &form.domains {
        Field::Given(At { value: DomainsForm::All, .. }) => {
            super::keys(&cx.form.domain).into_iter().filter_map(|name| Name::parse(name).ok()).collect()
        }
        Field::Given(At { value: DomainsForm::Listed(list), span }) => {
            if list.is_empty() {
                cx.out.error(Code::TooFew, span, "a permission without a domain permits nothing").help(
                    "domains = [\"web\"], domains = \"*\" for every domain, or leave the permission out",
                );
            }
            let list = At { value: Items::<_, DOMAINS_MAX>(list.clone()), span: span.clone() };
            cx.domains_called(&Field::Given(list))
        }
        Field::Absent | Field::Broken => Vec::new(),
    }
}

/// A domain that runs a server of ours has no program of its own that could offer anything.
fn refuse_server(
    name: &At<Name>,
    (host, kind): (&Name, ServiceKind),
    form: &ServiceForm,
    cx: &mut Context<'_, '_>,
) {
    let (could, help) = match kind {
        ServiceKind::Socket => ("listen for", "name the domain whose program listens"),
        _ => ("offer", "name the domain whose program offers it"),
    };
    let Some(server_of) = cx.served_by(host).first().copied() else { return };
    // The server of positions listens itself, for clients of gpsd.
    let is_location = |service: &&str| {
        cx.service_form(service).is_some_and(|form| form.kind.value() == Some(&ServiceKind::Location))
    };
    if kind == ServiceKind::Socket && cx.served_by(host).iter().any(is_location) {
        return;
    }
    let Field::Given(domain) = &form.domain else { return };
    let message = format!(
        "`{host}` runs the server of `{server_of}`: it has no program of its own that could {could} `{}`",
        name.value
    );
    cx.out.error(Code::Conflict, &domain.span, message).help(help);
}

fn channel(form: &ChannelForm, cx: &mut Context<'_, '_>) -> ChannelSettings {
    let max_channels = form.max_channels.value().map_or(CHANNELS_DEFAULT, |count| count.0);
    let usual = CHANNELS_PER_DOMAIN_DEFAULT.min(max_channels);
    let channels_per_domain = form.channels_per_domain.value().map_or(usual, |count| count.0);
    if let Field::Given(at) = &form.channels_per_domain
        && channels_per_domain > max_channels
        && !form.max_channels.is_broken()
    {
        let message = format!("one domain can't have {channels_per_domain} of {max_channels} channels");
        cx.out.error(Code::Conflict, &at.span, message).help("take fewer, or a larger `max_channels`");
    }
    ChannelSettings {
        ring_bytes: ring_bytes(form, cx),
        mode: form.mode.value().copied().unwrap_or(ChannelMode::Messages),
        max_channels,
        channels_per_domain,
    }
}

/// Places in a ring are found by masking, so its size is a power of two.
fn ring_bytes(form: &ChannelForm, cx: &mut Context<'_, '_>) -> u32 {
    let Field::Given(at) = &form.ring_bytes else { return RING_BYTES_DEFAULT };
    let bytes = at.value.0;
    if !bytes.is_power_of_two() {
        let message = format!("a ring has a power of two of bytes; {bytes} is none");
        let help = format!("did you mean \"{}\"?", size_text(bytes.next_power_of_two()));
        cx.out.error(Code::BadSize, &at.span, message).help(help);
    }
    u32::try_from(bytes).unwrap_or(RING_BYTES_DEFAULT)
}

fn files(form: &FilesForm) -> FilesSettings {
    FilesSettings {
        store: form.store.value().map(|path| path.0.clone()),
        bytes: form.bytes.value().map_or(FILES_BYTES_DEFAULT, |size| size.0),
        inodes: form.inodes.value().map_or(FILES_INODES_DEFAULT, |count| count.0),
    }
}

fn coordination(form: &CoordinationForm) -> CoordinationSettings {
    CoordinationSettings { grace_ms: form.grace.value().map_or(GRACE_MS_DEFAULT, |millis| millis.0) }
}

fn directory(
    form: &DirectoryForm,
    host: Option<&Name>,
    allow: &BTreeMap<Name, BTreeSet<Verb>>,
    cx: &mut Context<'_, '_>,
) -> DirectorySettings {
    if let Some(host) = host {
        refuse_unreachable(form, host, cx);
    }
    DirectorySettings {
        upstream: upstream(form, cx),
        timeout_ms: form.timeout.value().map_or(ATTEMPT_MS_DEFAULT, |millis| millis.0),
        retries: form.retries.value().map_or(ATTEMPTS_DEFAULT, |count| count.0),
        search: suffixes(&form.search, cx),
        outstanding_per_domain: form
            .outstanding_per_domain
            .value()
            .map_or(OUTSTANDING_PER_DOMAIN_DEFAULT, |count| count.0),
        sessions_per_domain: form.sessions_per_domain.value().map_or(SESSIONS_DEFAULT, |count| count.0),
        cache: cache(form.cache.value().unwrap_or(&CacheForm::default()), allow, cx),
        // Told when all domains are known.
        names: BTreeMap::new(),
    }
}

fn upstream(form: &DirectoryForm, cx: &mut Context<'_, '_>) -> Vec<std::net::SocketAddr> {
    let mut addresses = Vec::new();
    let Field::Given(list) = &form.upstream else { return addresses };
    for item in &list.value.0 {
        if addresses.contains(&item.value.0) {
            cx.out.error(Code::Duplicate, &item.span, format!("{} is said twice", item.value.0));
        }
        addresses.push(item.value.0);
    }
    if addresses.is_empty() {
        cx.out
            .error(Code::TooFew, &list.span, "a directory asks at least one name server")
            .help("upstream = [\"192.0.2.53\"]");
    }
    addresses
}

/// A search list, each suffix said once.
pub(super) fn suffixes<const MAX: usize>(
    field: &Field<Items<Suffix, MAX>>,
    cx: &mut Context<'_, '_>,
) -> Vec<String> {
    let mut suffixes: Vec<String> = Vec::new();
    for item in field.value().map_or(&[][..], |items| items.0.as_slice()) {
        if suffixes.contains(&item.value.0) {
            cx.out.error(Code::Duplicate, &item.span, format!("{} is said twice", quoted(&item.value.0)));
        }
        suffixes.push(item.value.0.clone());
    }
    suffixes
}

/// A backend that has only `lo` reaches no name server.
fn refuse_unreachable(form: &DirectoryForm, host: &Name, cx: &mut Context<'_, '_>) {
    let Some(domain) = cx.domain_form(host) else { return };
    if domain.network.is_broken()
        || domain.kind.is_broken()
        || super::domain::network(domain) == Network::Host
    {
        return;
    }
    let Field::Given(list) = &form.upstream else { return };
    let Some(first) = list.value.0.first() else { return };
    let address = first.value.0;
    let message = format!("{address} can't be reached: the backend's domain `{host}` has only `lo`");
    let whose = if address.ip().is_loopback() {
        " The loopback address would be that of the domain itself."
    } else {
        ""
    };
    cx.out
        .error(Code::NoNetwork, &first.span, message)
        .help(format!("give that domain the node's network: network = \"host\" in [domain.{host}].{whose}"));
}

fn cache(form: &CacheForm, allow: &BTreeMap<Name, BTreeSet<Verb>>, cx: &mut Context<'_, '_>) -> Cache {
    let word = form.mode.value().copied().unwrap_or(CacheModeWord::Private);
    let share = cx.domains_called(&form.share);
    if let Field::Given(at) = &form.share
        && !form.mode.is_broken()
    {
        if word != CacheModeWord::Shared {
            cx.out
                .error(Code::Conflict, &at.span, "only a cache with mode = \"shared\" is shared")
                .help("add mode = \"shared\", or leave `share` out");
        } else if at.value.0.len() < 2 {
            cx.out
                .error(Code::TooFew, &at.span, "a shared cache is shared by at least two domains")
                .help("name the others, or take mode = \"private\"");
        }
        refuse_strangers(&at.value, allow, cx);
    }
    if let (CacheModeWord::Shared, Field::Given(mode), true) = (word, &form.mode, form.share.is_absent()) {
        cx.out
            .error(Code::MissingKey, &mode.span, "a shared cache names the domains that share it")
            .help("add share = [\"web\", \"robot\"]: who shares can tell what the others have asked for");
    }
    refuse_silent_cache(form, word, cx);
    let mode = match word {
        CacheModeWord::None => CacheMode::None,
        CacheModeWord::Private => CacheMode::Private,
        CacheModeWord::Shared => CacheMode::Shared(share),
    };
    Cache {
        mode,
        entries: form.entries.value().map_or(CACHE_ENTRIES_DEFAULT, |count| count.0),
        negative_ttl_ms: form.negative_ttl.value().map_or(NEGATIVE_TTL_MS_DEFAULT, |millis| millis.0),
        max_ttl_ms: form.max_ttl.value().map_or(MAX_TTL_MS_DEFAULT, |millis| millis.0),
    }
}

/// Refuses shared answers for domains that may not ask.
fn refuse_strangers<const MAX: usize, const MIN: usize>(
    share: &Items<crate::scalar::Filled, MAX, MIN>,
    allow: &BTreeMap<Name, BTreeSet<Verb>>,
    cx: &mut Context<'_, '_>,
) {
    for item in &share.0 {
        let known = super::keys(&cx.form.domain).contains(&item.value.0.as_str());
        let may = allow.get(item.value.0.as_str()).is_some_and(|verbs| verbs.contains(&Verb::Resolve));
        if known && !may && !allow.is_empty() {
            let message = format!("{} shares the cache, but may not resolve", quoted(&item.value.0));
            cx.out
                .error(Code::NotAllowed, &item.span, message)
                .help("add it to `allow` with the verb \"resolve\"");
        }
    }
}

/// Bounds of a cache that there is none of say that something else was meant.
fn refuse_silent_cache(form: &CacheForm, word: CacheModeWord, cx: &mut Context<'_, '_>) {
    if word != CacheModeWord::None {
        return;
    }
    let spans = [
        form.entries.given().map(|at| &at.span),
        form.negative_ttl.given().map(|at| &at.span),
        form.max_ttl.given().map(|at| &at.span),
    ];
    if let Some(span) = spans.into_iter().flatten().next() {
        cx.out
            .error(Code::Conflict, span, "with mode = \"none\" nothing is remembered, so this says nothing")
            .help("leave it out, or take mode = \"private\"");
    }
}
