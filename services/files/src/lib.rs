//! The service of file trees: a directory that several domains share, each with the verbs that its
//! file gives it (`docs/file-trees.md`).
//!
//! The [`Store`] is the only one to write to the directory. It opens nothing but plain files and
//! directories, one name at a time, so that whatever tenants make leads nowhere else;
//! [`tree::Tree`] is what consumers see of it.

mod descriptors;
mod kind;
mod links;
mod names;
mod numbers;
mod room;
mod scan;
mod store;
mod tree;
mod xattrs;

pub use kind::Kind;
pub use room::Limits;
pub use store::{OpenError, Store, Told};

use serde_json::Value;
use service::Service;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tree::Tree;
use wire::files::{KIND, READ, STORE_VARIABLE, Settings, WRITE};

/// How often unlinked files are looked for that nobody came back to.
const SWEEP: Duration = Duration::from_secs(5);
/// For so long after the start only those get locks who had them at the server before: frontends
/// are told of a new server, and open their files again, within some tenths of a second.
const GRACE: Duration = Duration::from_secs(3);

/// Makes the service from its admitted settings. `folder` has the trees whose file names no store.
///
/// # Errors
/// The fault in the settings or the directory.
pub fn service(
    name: &str,
    settings: &Value,
    folder: Option<&Path>,
) -> Result<Box<dyn session::Service>, String> {
    let said = |error: service::Error| error.to_string();
    let settings = parsed(settings)?;
    let place = place(name, &settings, folder)?;
    let store = Store::open(&place, limits(&settings)).map_err(|error| error.to_string())?;
    let grace = if store.is_new() { Duration::ZERO } else { GRACE };
    let store = Rc::new(RefCell::new(store));
    let mut files = Service::new(name, Rc::clone(&store)).map_err(said)?;
    files
        .folder(wire::service::OWN_FOLDER, READ, Some(WRITE), Tree::new(store)?)
        .with_xattrs()
        .with_locks(grace);
    files.every(SWEEP, |store| store.borrow_mut().sweep(Instant::now()));
    let before = settings;
    files.on_settings(move |store, value| {
        let new = parsed(value)?;
        if new.store != before.store {
            return Err("the store is that of the server's start: restart its domain to change it".into());
        }
        store.borrow_mut().limit(limits(&new));
        Ok(())
    });
    files.backend().map_err(said)
}

fn parsed(settings: &Value) -> Result<Settings, String> {
    serde_json::from_value(settings.clone())
        .map_err(|error| format!("the settings of a service of kind {KIND} are not understood: {error}"))
}

fn limits(settings: &Settings) -> Limits {
    Limits { bytes: settings.bytes, inodes: u64::from(settings.inodes) }
}

/// Where the tree is: what the file says, or a directory of the node that is made for it.
fn place(name: &str, settings: &Settings, folder: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(store) = &settings.store {
        return Ok(store.into());
    }
    let folder = folder.ok_or_else(|| {
        format!(
            "no store is named, and {STORE_VARIABLE} names no folder for one: add `store` to the settings"
        )
    })?;
    let place = folder.join(name);
    std::fs::create_dir_all(&place).map_err(|error| format!("can't make {}: {error}", place.display()))?;
    Ok(place)
}
