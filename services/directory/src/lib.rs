//! The directory service: names in, answers out. See `docs/directory.md` for users and
//! `docs/spec/directory.md` for the bytes.
//!
//! Inside, from the pure to what waits: `name`, `query`, `command` and `settings` read what callers
//! write; `answer` judges what upstreams say; `render` and `message` write what callers read;
//! `cache` remembers; `upstream` talks to name servers; `lookups` joins and delays; `service` takes
//! each request through all of them.

mod answer;
mod cache;
mod command;
mod export;
mod failure;
mod lookups;
mod measure;
mod message;
mod name;
mod own_names;
mod query;
mod render;
mod service;
mod session_table;
mod settings;
mod settling;
mod task;
mod tenant;
mod upstream;

pub use failure::Failure;
pub use settings::SettingsError;

/// The service, as `session::Make` wants it: from the admitted settings, or the text that says what
/// is wrong with them ([`SettingsError`]).
///
/// # Errors
/// The text of a [`SettingsError`], for settings that the topology should not have admitted.
pub fn service(settings: &serde_json::Value) -> Result<Box<dyn session::Service>, String> {
    let settings = serde_json::from_value(settings.clone()).map_err(SettingsError::from);
    let directory = settings.and_then(service::Directory::new).map_err(|error| error.to_string())?;
    Ok(Box::new(directory))
}
