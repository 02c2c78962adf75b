//! From the file's own form to the admitted topology: what the values mean together.
//!
//! Rules report and go on, so that a person sees everything at once. What a rule returns after it
//! has reported is a placeholder: nothing of it is used, because a report with one entry admits
//! nothing.

mod adaptation;
mod camera;
mod domain;
mod endpoint;
mod entrance;
mod environment;
mod events;
mod lack;
mod location;
mod machine;
mod mount;
mod publish;
mod reserve;
mod service;
mod socket;
mod volume;

use std::collections::BTreeSet;
use std::path::Path;

use crate::diagnostic::{Code, Report};
use crate::file::{self, DomainForm, ServiceForm, TopologyForm, VolumeForm};
use crate::look::{Found, Look};
use crate::model::{Program, ServiceKind, Topology};
use crate::name::Name;
use crate::order;
use crate::read::{At, Entry, Field, Items, Named, Span};
use crate::scalar::Filled;
use crate::suggest::{self, quoted};

/// The context of every rule: the whole file, the node, and the report.
pub(crate) struct Context<'a, 's> {
    pub(crate) form: &'a TopologyForm,
    pub(crate) base: &'a Path,
    pub(crate) node: &'a dyn Look,
    pub(crate) out: Report<'s>,
}

/// Admits a form; the result counts only where the report is clean.
pub(crate) fn topology(cx: &mut Context<'_, '_>) -> Option<Topology> {
    // Where the name has been reported, the rules go on without it.
    let name = cx.form.name.value().cloned();
    let domains = named(&cx.form.domain, cx);
    if let Field::Given(at) = &cx.form.domain
        && at.value.0.is_empty()
    {
        cx.out
            .error(Code::TooFew, &at.span, "a topology has at least one domain")
            .help(suggest::example("a topology", "domain"));
    }
    let services = named(&cx.form.service, cx);
    let mut domains: Vec<_> = domains.into_iter().map(|(name, form)| domain::admit(name, form, cx)).collect();
    let mut services: Vec<_> =
        services.into_iter().map(|(name, form)| service::admit(name, form, cx)).collect();
    publish::admit(&mut domains, cx);
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    services.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(name) = &name {
        reserve::keep(name, &domains, cx);
    }
    let endpoints = named(&cx.form.endpoint, cx);
    let mut endpoints: Vec<_> =
        endpoints.into_iter().map(|(name, form)| endpoint::admit(name, form, cx)).collect();
    endpoints.sort_by(|a, b| a.name.cmp(&b.name));
    let ipc = endpoint::limits(cx);
    let adaptations = adaptation::all(&domains, cx);
    machine::refuse_shared_disks(&domains, cx);
    volume::refuse_unused(cx);
    socket::refuse_loops(&domains, &services, cx);
    socket::tell_names(&domains, &mut services, cx);
    refuse_cycles(cx);
    lack::refuse(&domains, cx);
    Some(Topology { name: name?, domains, services, endpoints, ipc, adaptations })
}

/// The entries whose names and values are good; the names that are not are reported.
fn named<'a, T, const MAX: usize>(
    field: &'a Field<Named<T, MAX>>,
    cx: &mut Context<'_, '_>,
) -> Vec<(At<Name>, &'a At<T>)> {
    let entries = field.value().map_or(&[][..], |named| named.0.as_slice());
    let check = |entry: &'a Entry<T>| {
        let span = entry.key.span.clone();
        let name = file::check_name(&entry.key.value, &span, &mut cx.out)?;
        Some((At { value: name, span }, entry.value.as_ref()?))
    };
    entries.iter().filter_map(check).collect()
}

impl<'a> Context<'a, '_> {
    /// The name of the domain that somebody refers to, or a report that there is none.
    pub(crate) fn domain_called(&mut self, name: &At<Filled>) -> Option<Name> {
        let text = name.value.0.as_str();
        let known = keys(&self.form.domain);
        if self.form.domain.is_broken() {
            return None;
        }
        if known.contains(&text) {
            return Name::parse(text).ok();
        }
        self.out
            .error(Code::UnknownDomain, &name.span, format!("no domain is called {}", quoted(text)))
            .help(suggest::word(text, &known));
        None
    }

    /// The name of the endpoint that somebody refers to, or a report that there is none.
    pub(crate) fn endpoint_called(&mut self, name: &At<Filled>) -> Option<Name> {
        let text = name.value.0.as_str();
        let known = keys(&self.form.endpoint);
        if self.form.endpoint.is_broken() {
            return None;
        }
        if known.contains(&text) {
            return Name::parse(text).ok();
        }
        self.out
            .error(Code::UnknownEndpoint, &name.span, format!("no endpoint is called {}", quoted(text)))
            .help(suggest::word(text, &known));
        None
    }

    /// The form of the volume that somebody refers to, or a report that there is none.
    pub(crate) fn volume_called(&mut self, name: &str, span: &Span) -> Option<&'a VolumeForm> {
        let form: &'a TopologyForm = self.form;
        if form.volume.is_broken() {
            return None;
        }
        if let Some(entry) = form.volume.value().and_then(|volumes| volumes.get(name)) {
            return entry.value.as_ref().map(|at| &at.value);
        }
        self.out
            .error(Code::UnknownVolume, span, format!("no volume is called {}", quoted(name)))
            .help(suggest::word(name, &keys(&form.volume)));
        None
    }

    /// The form of a domain, where it could be read.
    pub(crate) fn domain_form(&self, name: &str) -> Option<&'a DomainForm> {
        let form: &'a TopologyForm = self.form;
        form.domain.value()?.get(name)?.value.as_ref().map(|at| &at.value)
    }

    /// The form of a service, where it could be read.
    pub(crate) fn service_form(&self, name: &str) -> Option<&'a ServiceForm> {
        let form: &'a TopologyForm = self.form;
        form.service.value()?.get(name)?.value.as_ref().map(|at| &at.value)
    }

    /// The services whose server `domain` runs, by the file.
    pub(crate) fn served_by(&self, domain: &str) -> Vec<&'a str> {
        self.hosted_by(domain, |kind| kind.is_none_or(ServiceKind::has_server))
    }

    /// The channels and services that programs of `domain` offer, and the sockets at which they
    /// listen, by the file.
    pub(crate) fn offered_by(&self, domain: &str) -> Vec<(ServiceKind, &'a str)> {
        let names = self.hosted_by(domain, |kind| kind.is_some_and(|kind| !kind.has_server()));
        let kind = |name: &str| self.service_form(name).and_then(|form| form.kind.value().copied());
        names.into_iter().filter_map(|name| Some((kind(name)?, name))).collect()
    }

    fn hosted_by(&self, domain: &str, wanted: fn(Option<ServiceKind>) -> bool) -> Vec<&'a str> {
        let form: &'a TopologyForm = self.form;
        let hosts = |form: &ServiceForm| {
            form.domain.value().is_some_and(|name| name.0 == domain) && wanted(form.kind.value().copied())
        };
        let Some(services) = form.service.value() else { return Vec::new() };
        let hosted = |entry: &&Entry<ServiceForm>| entry.value.as_ref().is_some_and(|at| hosts(&at.value));
        services.0.iter().filter(hosted).map(|entry| entry.key.value.as_str()).collect()
    }

    /// A reference to a list of domains, each one known and said once.
    pub(crate) fn domains_called<const MAX: usize, const MIN: usize>(
        &mut self,
        list: &Field<Items<Filled, MAX, MIN>>,
    ) -> Vec<Name> {
        let mut names = BTreeSet::new();
        for item in list.value().map_or(&[][..], |items| items.0.as_slice()) {
            if let Some(name) = self.domain_called(item)
                && !names.insert(name)
            {
                self.out
                    .error(Code::Duplicate, &item.span, format!("{} is said twice", quoted(&item.value.0)))
                    .help("once is enough");
            }
        }
        names.into_iter().collect()
    }

    /// Refuses what is not on the node.
    pub(crate) fn must_be_there(&mut self, path: &Path, span: &Span, wanted: &[Found], words: &str) {
        let found = self.node.look(path);
        if found == Found::Unknown || wanted.contains(&found) {
            return;
        }
        let message = match found {
            Found::Nothing => format!("there is no {}", quoted(&path.to_string_lossy())),
            _ => format!("{} is no {words}", quoted(&path.to_string_lossy())),
        };
        let help =
            format!("relative paths start at the file's directory, {}", quoted(&self.base.to_string_lossy()));
        self.out.error(Code::NotFound, span, message).help(help);
    }
}

/// The keys of a table that the file names, also those whose values can't be read.
fn keys<T, const MAX: usize>(field: &Field<Named<T, MAX>>) -> Vec<&str> {
    field
        .value()
        .map_or_else(Vec::new, |named| named.0.iter().map(|entry| entry.key.value.as_str()).collect())
}

/// Refuses domains that wait for each other; a cycle is reported once, at one of its `after`s.
fn refuse_cycles(cx: &mut Context<'_, '_>) {
    let Some(domains) = cx.form.domain.value() else { return };
    let mut edges: Vec<(&str, &At<Filled>)> = Vec::new();
    for entry in &domains.0 {
        let after = entry.value.as_ref().and_then(|at| at.value.after.value());
        let items = after.map_or(&[][..], |items| items.0.as_slice());
        edges.extend(items.iter().map(|item| (entry.key.value.as_str(), item)));
    }
    let graph: Vec<(&str, &str)> = edges.iter().map(|(from, to)| (*from, to.value.0.as_str())).collect();
    for cycle in order::cycles(&graph) {
        let (Some(first), Some(second)) = (cycle.first(), cycle.get(1)) else { continue };
        let Some((_, place)) = edges.iter().find(|(from, to)| from == first && to.value.0 == *second) else {
            continue;
        };
        let message = if cycle.len() == 2 {
            format!("`{first}` would start after itself")
        } else {
            format!("these domains wait for each other: {}", cycle.join(" after "))
        };
        cx.out.error(Code::Cycle, &place.span, message).help("leave one `after` out");
    }
}

/// Whether a domain runs the server of a service.
pub(crate) fn runs_server(program: &Program) -> bool {
    matches!(program, Program::Server(_))
}
