//! The event service: channels that domains publish to and subscribe to, as files. `docs/events.md`
//! is for users, `docs/spec/events.md` has the bytes. What it decides without waiting is in
//! `publication`.
//!
//! Inside: `region` keeps the memory of channels, `capsule` reads what sessions leave to a
//! successor, `tree` shows channels as folders, `sessions` opens their files and takes what is said
//! to them, `deliver` takes an event from its publisher to its subscribers, `installs` has modules
//! checked by the thread of `installer`, `library` keeps them, `given` has the filters of the
//! topology file and `restrict` holds subscriptions to them, `text` is for people, and `service`
//! has it all and is called by the loop.

mod capsule;
mod deliver;
mod given;
mod installer;
mod installs;
mod library;
mod names;
mod region;
mod restrict;
mod service;
mod session_table;
mod sessions;
mod text;
mod tree;

pub use service::Events;

use std::path::PathBuf;

/// The service, as `session::Make` wants it: from the admitted settings, and the folder in which
/// channels outlive this process, if there is one.
///
/// # Errors
/// The text of what is wrong with the settings, which the topology should not have admitted, or
/// with the folder.
pub fn service(
    settings: &serde_json::Value,
    kept: Option<PathBuf>,
) -> Result<Box<dyn session::Service>, String> {
    let settings =
        serde_json::from_value(settings.clone()).map_err(|error| format!("its settings: {error}"))?;
    let place = kept.as_ref().map_or_else(String::new, |folder| format!(" in {}", folder.display()));
    let library_folder = kept.clone();
    let memories =
        region::Memories::new(kept).map_err(|error| format!("can't keep channels{place}: {error}"))?;
    let library = library::Library::new(library_folder)
        .map_err(|error| format!("can't take up modules{place}: {error}"))?;
    let events = service::Events::new(settings, memories, library)
        .map_err(|error| format!("can't take up channels{place}: {error}"))?;
    Ok(Box::new(events))
}
