//! `tombolo events`: what happened on the node, and event channels.

mod channels;
mod gateway;
mod inside;

pub use channels::ChannelCommand;

use super::{client, wait};
use crate::cli::{EventsArgs, PlaceArgs};
use admin::Event;
use std::time::{Duration, UNIX_EPOCH};
use terminal::{Failure, Paint, harmless, print};

/// Prints what happened, and goes on where that is wanted; or does something about a channel.
pub fn run(place: &PlaceArgs, arguments: &EventsArgs) -> Result<(), Failure> {
    if let Some(command) = &arguments.command {
        return channels::run(place, command);
    }
    let client = client(place)?;
    let paint = Paint::of(&std::io::stdout());
    let path = format!("events?follow={}", arguments.follow);
    wait(client.lines(&path, |event: Event| {
        if arguments.json {
            let line = serde_json::to_string(&event).map_err(|error| Failure::new(error.to_string()))?;
            return print(&(line + "\n"));
        }
        print(&line(&event, paint))
    }))?
}

/// `2026-03-01T12:00:00.123Z shop/web ended: exit 3`.
fn line(event: &Event, paint: Paint) -> String {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(event.at_ms)).unwrap_or(UNIX_EPOCH);
    let at = humantime::format_rfc3339_millis(at);
    let of =
        event.domain.as_ref().map_or_else(|| event.dc.clone(), |domain| format!("{}/{domain}", event.dc));
    let why = event.why.as_ref().map_or_else(String::new, |why| format!(": {}", harmless(why)));
    format!("{at} {of} {}{why}\n", paint.state(&event.what))
}
