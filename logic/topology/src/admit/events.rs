//! The rules of event services.

use std::collections::BTreeMap;

use super::Context;
use crate::bounds::*;
use crate::diagnostic::Code;
use crate::file::{self, EventChannelForm, EventsForm};
use crate::model::{EventChannel, EventsSettings};
use crate::scalar::size_text;

/// The bytes that an event takes in the buffer beside its own, rounded up; two of the longest have
/// to fit.
const OVERHEAD_BYTES: u64 = 64;

/// The settings of an event service.
pub(super) fn settings(form: &EventsForm, cx: &mut Context<'_, '_>) -> EventsSettings {
    let usual = EventChannel {
        buffer_bytes: EVENT_BUFFER_BYTES_DEFAULT,
        event_bytes: EVENT_BYTES_DEFAULT,
        history: EVENT_HISTORY_DEFAULT,
        wait_ms: 0,
    };
    let made = form.made.value().map_or(usual, |made| channel(made, usual, cx));
    let memory_bytes = form.memory.value().map_or(EVENT_MEMORY_BYTES_DEFAULT, |bytes| bytes.0);
    let mut channels = BTreeMap::new();
    let mut taken = 0;
    for entry in form.channels.value().map_or(&[][..], |named| named.0.as_slice()) {
        let Some(name) = file::check_name(&entry.key.value, &entry.key.span, &mut cx.out) else { continue };
        let Some(at) = &entry.value else { continue };
        let admitted = channel(&at.value, made, cx);
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

fn channel(form: &EventChannelForm, usual: EventChannel, cx: &mut Context<'_, '_>) -> EventChannel {
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
    }
}
