//! The rules of event services.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Context;
use crate::bounds::*;
use crate::diagnostic::Code;
use crate::file::{self, EventChannelForm, EventSubscriberForm, EventsForm};
use crate::model::{EventChannel, EventFilter, EventsSettings, Verb};
use crate::name::Name;
use crate::read::{At, Field};
use crate::scalar::{Filled, size_text};
use crate::suggest::quoted;
use publication::{Filter, Format};

/// The bytes that an event takes in the buffer beside its own, rounded up; two of the longest have
/// to fit.
const OVERHEAD_BYTES: u64 = 64;

/// The service whose settings are admitted: where its server runs, and who may what.
pub(super) struct Of<'a> {
    pub(super) host: Option<&'a Name>,
    pub(super) allow: &'a BTreeMap<Name, BTreeSet<Verb>>,
}

/// The settings of an event service.
pub(super) fn settings(form: &EventsForm, of: &Of<'_>, cx: &mut Context<'_, '_>) -> EventsSettings {
    let usual = EventChannel {
        buffer_bytes: EVENT_BUFFER_BYTES_DEFAULT,
        event_bytes: EVENT_BYTES_DEFAULT,
        history: EVENT_HISTORY_DEFAULT,
        wait_ms: 0,
        format: None,
        subscribers: BTreeMap::new(),
    };
    let made = form.made.value().map_or_else(|| usual.clone(), |made| channel(made, &usual, cx));
    if let Some(at) = form.made.value().and_then(|made| made.subscribers.given()) {
        cx.out
            .error(Code::Conflict, &at.span, "channels that domains make have no filters of the file")
            .help("name the channel below `channels`, and its subscribers there");
    }
    let memory_bytes = form.memory.value().map_or(EVENT_MEMORY_BYTES_DEFAULT, |bytes| bytes.0);
    let mut channels = BTreeMap::new();
    let (mut taken, mut filter_bytes) = (0, 0);
    for entry in form.channels.value().map_or(&[][..], |named| named.0.as_slice()) {
        let Some(name) = file::check_name(&entry.key.value, &entry.key.span, &mut cx.out) else { continue };
        let Some(at) = &entry.value else { continue };
        let mut admitted = channel(&at.value, &made, cx);
        // One that is none has been reported.
        let format = admitted.format.as_deref().and_then(|text| Format::parse(text).ok()).unwrap_or_default();
        admitted.subscribers = subscribers(&at.value, (of, &format), &mut filter_bytes, cx);
        filter_bytes += admitted.format.as_ref().map_or(0, String::len);
        taken += admitted.buffer_bytes;
        if taken > memory_bytes {
            let message = format!(
                "with this channel, the buffers of the file's channels take {}; all of them together have {}",
                size_text(taken),
                size_text(memory_bytes)
            );
            cx.out
                .error(Code::OutOfRange, &entry.key.span, message)
                .help("take a larger `memory`, or smaller buffers");
            taken = 0;
        }
        channels.insert(name, admitted);
    }
    EventsSettings {
        memory_bytes,
        memory_per_domain: form
            .memory_per_domain
            .value()
            .map_or(EVENT_MEMORY_PER_DOMAIN_DEFAULT.min(memory_bytes), |bytes| bytes.0),
        channels_per_domain: form
            .channels_per_domain
            .value()
            .map_or(EVENT_CHANNELS_PER_DOMAIN_DEFAULT, |count| count.0),
        sessions_per_domain: form
            .sessions_per_domain
            .value()
            .map_or(EVENT_SESSIONS_PER_DOMAIN_DEFAULT, |count| count.0),
        made,
        channels,
    }
}

fn channel(form: &EventChannelForm, usual: &EventChannel, cx: &mut Context<'_, '_>) -> EventChannel {
    let buffer_bytes = form.buffer.value().map_or(usual.buffer_bytes, |bytes| bytes.0).next_multiple_of(4096);
    let most = (buffer_bytes / 2 - OVERHEAD_BYTES).min(EVENT_BYTES_MAX);
    let event_bytes = form.event.value().map_or(u64::from(usual.event_bytes).min(most), |bytes| bytes.0);
    if let Some(at) = form.event.given().filter(|at| at.value.0 > most) {
        let message = format!(
            "a buffer of {} has two of the longest events: {most}B each at the most",
            size_text(buffer_bytes)
        );
        cx.out.error(Code::Conflict, &at.span, message).help("take a larger `buffer`, or shorter events");
    }
    EventChannel {
        buffer_bytes,
        event_bytes: u32::try_from(event_bytes).unwrap_or(u32::MAX),
        history: form.history.value().map_or(usual.history, |count| count.0),
        wait_ms: form.wait.value().map_or(usual.wait_ms, |millis| millis.0),
        format: form.format.given().map_or_else(|| usual.format.clone(), |at| Some(format(at, cx))),
        subscribers: BTreeMap::new(),
    }
}

/// The format of a channel's events, in its plain form.
fn format(at: &At<Filled>, cx: &mut Context<'_, '_>) -> String {
    match Format::parse(&at.value.0) {
        Ok(format) => format.to_string(),
        Err(error) => {
            cx.out
                .error(Code::BadText, &at.span, error.to_string())
                .help("as in: format = \"layout temperature:f32@0 zone:text[8]@4\"");
            Format::Json.to_string()
        }
    }
}

/// The filters that the file gives to subscriptions of one channel. `bytes` are those of all that
/// the service has so far.
fn subscribers(
    form: &EventChannelForm,
    (of, format): (&Of<'_>, &Format),
    bytes: &mut usize,
    cx: &mut Context<'_, '_>,
) -> BTreeMap<Name, EventFilter> {
    let mut admitted = BTreeMap::new();
    for entry in form.subscribers.value().map_or(&[][..], |named| named.0.as_slice()) {
        let key = At { value: Filled(entry.key.value.clone()), span: entry.key.span.clone() };
        let Some(domain) = cx.domain_called(&key) else { continue };
        if !of.allow.get(&domain).is_some_and(|verbs| verbs.contains(&Verb::Subscribe)) {
            cx.out
                .error(Code::Conflict, &key.span, format!("`{domain}` may not subscribe"))
                .help("give it the verb \"subscribe\" in `allow`, or leave it out here");
        }
        let Some(at) = &entry.value else { continue };
        let Some(filter) = subscriber(at, (of, format), cx) else { continue };
        *bytes += domain.as_str().len()
            + match &filter {
                EventFilter::Filter(text) => text.len(),
                EventFilter::Module(path) => path.as_os_str().len(),
            };
        if *bytes > EVENT_FILTERS_BYTES_MAX {
            let message = format!(
                "with this one, the filters of the service have more than {}",
                size_text(EVENT_FILTERS_BYTES_MAX as u64)
            );
            cx.out
                .error(Code::TooMany, &key.span, message)
                .help("write shorter ones, or let programs install theirs");
            *bytes = 0;
        }
        admitted.insert(domain, filter);
    }
    admitted
}

fn subscriber(
    at: &At<EventSubscriberForm>,
    (of, format): (&Of<'_>, &Format),
    cx: &mut Context<'_, '_>,
) -> Option<EventFilter> {
    match (&at.value.filter, &at.value.module) {
        (Field::Given(filter), Field::Absent) => {
            let text = &filter.value.0;
            let fault = match Filter::parse(text) {
                Ok(filter) => format.check(&filter).err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(fault) = fault {
                let message = format!("{} is no filter here: {fault}", quoted(text));
                cx.out
                    .error(Code::BadText, &filter.span, message)
                    .help("as in: filter = 'temperature > 30 && zone == \"b\"'");
            }
            Some(EventFilter::Filter(text.trim().to_owned()))
        }
        (Field::Absent, Field::Given(module)) => {
            let path = &module.value.0;
            if let Some(source) = of.host.and_then(|host| source_of(path, host, cx))
                && let Some(Err(why)) = cx.node.module(&source)
            {
                let message = format!("{} is no module for events: {why}", source.display());
                cx.out
                    .error(Code::NotFound, &module.span, message)
                    .help("docs/spec/event-modules.md says what a module is");
            }
            Some(EventFilter::Module(path.clone()))
        }
        (Field::Broken, _) | (_, Field::Broken) => None,
        (Field::Given(_), Field::Given(_)) | (Field::Absent, Field::Absent) => {
            cx.out
                .error(Code::Conflict, &at.span, "a subscriber has either a `filter` or a `module`")
                .help("name one of them");
            None
        }
    }
}

/// The path on the node that a path of a domain stands for, where one of the domain's mounts has
/// it.
fn source_of(path: &Path, domain: &Name, cx: &Context<'_, '_>) -> Option<std::path::PathBuf> {
    let mounts = cx.domain_form(domain.as_str())?.mounts.value()?;
    let below = |at: &At<file::MountForm>| {
        let (target, source) = (&at.value.target.value()?.0, &at.value.source.value()?.0);
        let rest = path.strip_prefix(target).ok()?;
        Some((target.components().count(), file::on_node(cx.base, source).join(rest)))
    };
    mounts.0.iter().filter_map(below).max_by_key(|(depth, _)| *depth).map(|(_, source)| source)
}
