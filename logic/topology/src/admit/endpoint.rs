//! The rules of an endpoint, and of the limits of all.

use std::collections::{BTreeMap, BTreeSet};

use super::Context;
use crate::diagnostic::Code;
use crate::file::{DomainsForm, EndpointAllowForm, EndpointForm, IpcForm};
use crate::model::{Endpoint, EndpointVerb, IpcLimits};
use crate::name::Name;
use crate::read::{At, Field, Items, Span};
use crate::scalar::{Filled, size_text};

/// The permissions, by name.
type Allowed = BTreeMap<Name, BTreeSet<EndpointVerb>>;

/// Admits one endpoint.
pub(super) fn admit(name: At<Name>, form: &At<EndpointForm>, cx: &mut Context<'_, '_>) -> Endpoint {
    let domain = form.value.domain.given().and_then(|domain| cx.domain_called(domain));
    if let (Some(host), Field::Given(at)) = (&domain, &form.value.domain) {
        must_have_programs(&name.value, host, &at.span, cx);
    }
    let backups: BTreeSet<Name> = cx.domains_called(&form.value.backups).into_iter().collect();
    if let Field::Given(at) = &form.value.backups {
        backups.iter().for_each(|host| must_have_programs(&name.value, host, &at.span, cx));
    }
    let (mut allow_endpoints, mut allow_domains) = (Allowed::new(), Allowed::new());
    for permission in form.value.allow.value().map_or(&[][..], |items| items.0.as_slice()) {
        let verbs = verbs(&permission.value, cx);
        for endpoint in called(&name.value, &permission.value.endpoints, "be called by", cx) {
            allow_endpoints.entry(endpoint).or_default().extend(&verbs);
        }
        for domain in domains(permission, cx) {
            allow_domains.entry(domain).or_default().extend(&verbs);
        }
    }
    let calls = match &form.value.calls {
        Field::Absent | Field::Broken => None,
        Field::Given(_) => Some(called(&name.value, &form.value.calls, "call", cx)),
    };
    let copies = form.value.copies.value().copied().unwrap_or(false);
    // The name of the endpoint stands in for a domain that has been reported.
    let domain = domain.unwrap_or_else(|| name.value.clone());
    Endpoint { name: name.value, domain, allow_endpoints, allow_domains, calls, copies, backups }
}

/// A domain that runs a server of ours has no program that binds an endpoint.
fn must_have_programs(endpoint: &Name, host: &Name, span: &Span, cx: &mut Context<'_, '_>) {
    if let Some(server_of) = cx.served_by(host).first().copied() {
        let message = format!(
            "`{host}` runs the server of `{server_of}`: it has no program of its own that could bind `{endpoint}`"
        );
        cx.out.error(Code::Conflict, span, message).help("name the domain whose program binds the endpoint");
    }
}

/// Endpoints that somebody refers to: known, each said once, and another than itself.
fn called<const MAX: usize>(
    itself: &Name,
    list: &Field<Items<Filled, MAX>>,
    verb: &str,
    cx: &mut Context<'_, '_>,
) -> BTreeSet<Name> {
    let mut names = BTreeSet::new();
    for item in list.value().map_or(&[][..], |items| items.0.as_slice()) {
        let Some(name) = cx.endpoint_called(item) else { continue };
        if name == *itself {
            let message = format!("`{name}` would {verb} itself");
            cx.out.error(Code::Conflict, &item.span, message).help("leave it out: an endpoint calls others");
        } else if !names.insert(name.clone()) {
            cx.out
                .error(Code::Duplicate, &item.span, format!("`{name}` is said twice"))
                .help("once is enough");
        }
    }
    names
}

fn verbs(form: &EndpointAllowForm, cx: &mut Context<'_, '_>) -> BTreeSet<EndpointVerb> {
    let mut verbs = BTreeSet::new();
    let Field::Given(list) = &form.verbs else { return verbs };
    for verb in &list.value.0 {
        if !verbs.insert(verb.value) {
            cx.out.error(Code::Duplicate, &verb.span, format!("`{}` is said twice", verb.value.as_str()));
        }
    }
    if list.value.0.is_empty() {
        cx.out
            .error(Code::TooFew, &list.span, "a permission without a verb permits nothing")
            .help("verbs = [\"send\"], or leave the permission out");
    }
    verbs
}

/// The domains of a permission. One that names neither an endpoint nor a domain permits nothing.
fn domains(permission: &At<EndpointAllowForm>, cx: &mut Context<'_, '_>) -> Vec<Name> {
    let form = &permission.value;
    let nobody = match (&form.endpoints, &form.domains) {
        (Field::Broken, _) | (_, Field::Broken) => false,
        (endpoints, Field::Given(At { value: DomainsForm::Listed(list), .. })) => {
            list.is_empty() && endpoints.value().is_none_or(|items| items.0.is_empty())
        }
        (_, Field::Given(_)) => false,
        (endpoints, Field::Absent) => endpoints.value().is_none_or(|items| items.0.is_empty()),
    };
    if nobody {
        cx.out
            .error(Code::TooFew, &permission.span, "a permission for nobody permits nothing")
            .help("endpoints = [\"camera\"], domains = [\"desk\"] for all endpoints of a domain, or leave the permission out");
    }
    match &form.domains {
        Field::Given(At { value: DomainsForm::All, .. }) => {
            super::keys(&cx.form.domain).into_iter().filter_map(|name| Name::parse(name).ok()).collect()
        }
        Field::Given(At { value: DomainsForm::Listed(list), span }) => {
            let list =
                At { value: Items::<_, { crate::bounds::DOMAINS_MAX }>(list.clone()), span: span.clone() };
            cx.domains_called(&Field::Given(list))
        }
        Field::Absent | Field::Broken => Vec::new(),
    }
}

/// Admits the limits of all endpoints.
pub(super) fn limits(cx: &mut Context<'_, '_>) -> IpcLimits {
    let usual = IpcLimits::default();
    let form: &IpcForm = match cx.form.ipc.value() {
        Some(form) => form,
        None => return usual,
    };
    let endpoints = form.endpoints.value().map_or(usual.endpoints, |count| count.0);
    let anonymous =
        form.anonymous_per_domain.value().map_or(usual.anonymous_per_domain.min(endpoints), |count| count.0);
    if let Field::Given(at) = &form.anonymous_per_domain
        && anonymous > endpoints
        && !form.endpoints.is_broken()
    {
        let message = format!("one domain can't have {anonymous} of {endpoints} endpoints");
        cx.out.error(Code::Conflict, &at.span, message).help("take fewer, or a larger `endpoints`");
    }
    if let Field::Given(at) = &form.ring_bytes
        && !at.value.0.is_power_of_two()
    {
        let bytes = at.value.0;
        let message = format!("a ring has a power of two of bytes; {bytes} is none");
        let help = format!("did you mean \"{}\"?", size_text(bytes.next_power_of_two()));
        cx.out.error(Code::BadSize, &at.span, message).help(help);
    }
    IpcLimits {
        endpoints,
        anonymous_per_domain: anonymous,
        pairs: form.pairs.value().map_or(usual.pairs, |count| count.0),
        ring_bytes: form
            .ring_bytes
            .value()
            .and_then(|at| u32::try_from(at.0).ok())
            .unwrap_or(usual.ring_bytes),
        bytes: form.bytes.value().map_or(usual.bytes, |bytes| bytes.0),
        buffers: form.buffers.value().map_or(usual.buffers, |count| count.0),
        grants: form.grants.value().map_or(usual.grants, |count| count.0),
    }
}
