//! `tombolo image pull|import|ls|inspect|rm|gc`: the images of containers that the node keeps.

use super::super::{client, place, up, wait};
use crate::cli::PlaceArgs;
use admin::client::ClientError;
use admin::place::Place;
use clap::Args;
use image_store::{Access, Collected, Credentials, Error, Image, Progress, Store, familiar};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use terminal::{Failure, bytes, harmless, print, print_json, print_table, seconds};

/// Digits of a digest that are shown in a table.
const SHOWN_DIGITS: usize = 12;

#[derive(Debug, Args)]
pub struct PullArgs {
    /// The image: [REGISTRY/]NAME[:TAG][@DIGEST]
    #[arg(value_name = "REFERENCE")]
    pub reference: String,
    /// Speak to the registry without TLS, although it is not on this machine
    #[arg(long)]
    pub insecure: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// An OCI image layout, as a directory or a tar; or a tar of `docker save`
    #[arg(value_name = "ARCHIVE|DIR")]
    pub path: PathBuf,
    /// The name of the image (default: the one in the archive)
    #[arg(long, value_name = "NAME:TAG")]
    pub name: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GcArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct MeantArgs {
    /// The image: a reference, a digest, or the beginning of one
    #[arg(value_name = "IMAGE")]
    pub image: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn failure(error: Error) -> Failure {
    let help = error.help();
    Failure { help, ..Failure::new(error.to_string()) }
}

/// `tombolo image pull`.
pub fn pull(place_arguments: &PlaceArgs, arguments: &PullArgs) -> Result<(), Failure> {
    let store = store(place_arguments)?;
    let reference = image_store::reference(&arguments.reference).map_err(failure)?;
    let access =
        Access { credentials: Credentials::of_user().map_err(failure)?, insecure: arguments.insecure };
    let bar = bar(arguments.json);
    let pulled = image_store::pull(&store, &reference, &access, &mut |progress| show(&bar, progress));
    bar.finish_and_clear();
    let image = pulled.map_err(failure)?;
    if arguments.json { print_json(&image) } else { print(&had(&image)) }
}

/// `tombolo image import`.
pub fn import(place_arguments: &PlaceArgs, arguments: &ImportArgs) -> Result<(), Failure> {
    let store = store(place_arguments)?;
    let name = arguments.name.as_deref().map(image_store::reference).transpose().map_err(failure)?;
    let bar = bar(arguments.json);
    let mut progress = |progress| show(&bar, progress);
    let imported = image_store::import(&store, &arguments.path, name.as_ref(), &mut progress);
    bar.finish_and_clear();
    let images = imported.map_err(failure)?;
    if arguments.json { print_json(&images) } else { print(&images.iter().map(had).collect::<String>()) }
}

/// `tombolo image ls`.
pub fn ls(place_arguments: &PlaceArgs, arguments: &LsArgs) -> Result<(), Failure> {
    let images = store(place_arguments)?.list().map_err(failure)?;
    if arguments.json {
        return print_json(&images);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut rows = Vec::new();
    for image in &images {
        let names = image.names.iter().map(|name| harmless(familiar(name)));
        let names: Vec<String> = if image.names.is_empty() { vec!["-".to_owned()] } else { names.collect() };
        for name in names {
            let added = format!("{} ago", seconds(now.saturating_sub(image.added_unix_s)));
            rows.push(vec![name, digits(&image.digest).to_owned(), bytes(image.bytes), added]);
        }
    }
    print_table(&["IMAGE", "DIGEST", "SIZE", "ADDED"], &rows)
}

/// `tombolo image inspect`.
pub fn inspect(place_arguments: &PlaceArgs, arguments: &MeantArgs) -> Result<(), Failure> {
    let store = store(place_arguments)?;
    let image = store.meant(&arguments.image).map_err(failure)?;
    let (manifest, configuration) = store.documents(&image).map_err(failure)?;
    if arguments.json {
        return print_json(&json!({ "image": image, "manifest": manifest, "configuration": configuration }));
    }
    let config = &configuration["config"];
    let words = |key: &str| {
        let list = config[key].as_array().into_iter().flatten().filter_map(Value::as_str);
        harmless(&list.collect::<Vec<_>>().join(" "))
    };
    let text = |value: &Value| harmless(value.as_str().unwrap_or("-"));
    let mut out = format!("digest       {}\n", image.digest);
    if let Some(source) = image.source_digest.filter(|source| *source != image.digest) {
        out += &format!("from         {source} (an index; the image is its choice for this machine)\n");
    }
    for name in &image.names {
        out += &format!("name         {}\n", harmless(familiar(name)));
    }
    out += &format!("platform     {}/{}\n", text(&configuration["os"]), text(&configuration["architecture"]));
    out += &format!("entrypoint   {}\ncommand      {}\n", words("Entrypoint"), words("Cmd"));
    out += &format!("user         {}\nworkdir      {}\n", text(&config["User"]), text(&config["WorkingDir"]));
    out += &format!("environment  {}\n", words("Env"));
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let size = bytes(layer["size"].as_u64().unwrap_or_default());
        out += &format!("layer        {} {size}\n", text(&layer["digest"]));
    }
    print(&out)
}

/// `tombolo image rm`.
pub fn rm(place_arguments: &PlaceArgs, arguments: &MeantArgs) -> Result<(), Failure> {
    let store = store(place_arguments)?;
    let image = store.meant(&arguments.image).map_err(failure)?;
    let used = used(place_arguments)?;
    let whole = image_store::reference(&arguments.image).map(|reference| reference.whole()).ok();
    let is_last = image.names.len() <= 1 || !image.names.iter().any(|name| Some(name) == whole.as_ref());
    if is_last && let Some(domains) = used.get(&image.digest) {
        let message = format!("image {} is in use by {}", arguments.image, domains.join(", "));
        return Err(Failure::new(message).help("`tombolo down` those first, or give them another image"));
    }
    let names = store.forget(&image, &arguments.image).map_err(failure)?;
    // Whoever pulls at this moment may need the content; `gc` removes it then.
    let collected = match collect(&store, &used) {
        Err(Error::Busy) => Collected::default(),
        other => other.map_err(failure)?,
    };
    if arguments.json {
        return print_json(&json!({ "digest": image.digest, "names": names, "removed": collected }));
    }
    let names: Vec<String> = names.iter().map(|name| harmless(familiar(name))).collect();
    let named = if names.is_empty() { digits(&image.digest).to_owned() } else { names.join(", ") };
    print(&format!("removed {named}; {} freed\n", bytes(collected.bytes)))
}

/// `tombolo image gc`.
pub fn gc(place_arguments: &PlaceArgs, arguments: &GcArgs) -> Result<(), Failure> {
    let store = store(place_arguments)?;
    let used = used(place_arguments)?;
    let collected = collect(&store, &used).map_err(failure)?;
    let layout = place(place_arguments)?.layout(super::daemon::program()?);
    let kept: BTreeSet<String> =
        store.list().map_err(failure)?.into_iter().map(|image| image.digest).collect();
    let trees = domain::remove_unused_images(&layout, &kept)
        .map_err(|error| Failure::new(terminal::with_causes(&error)))?;
    if arguments.json {
        return print_json(&json!({ "removed": collected, "unpacked": trees }));
    }
    let Collected { images, files, bytes: freed } = collected;
    print(&format!(
        "removed {images} images without a name, {files} files ({}) and {trees} unpacked trees\n",
        bytes(freed)
    ))
}

fn collect(store: &Store, used: &BTreeMap<String, Vec<String>>) -> Result<Collected, Error> {
    store.collect(&used.keys().cloned().collect())
}

fn store(arguments: &PlaceArgs) -> Result<Store, Failure> {
    Ok(Store::new(&place(arguments)?.state_dir))
}

/// Returns the domains that have each image, by digest: the daemon knows it, also of those that do
/// not run. One is started where none runs, if there ever was one.
fn used(arguments: &PlaceArgs) -> Result<BTreeMap<String, Vec<String>>, Failure> {
    let (node, client): (Place, _) = (place(arguments)?, client(arguments)?);
    let tree: Value = match wait(client.get("state"))? {
        Err(ClientError::NotRunning { .. }) if !node.registry().exists() => Value::Null,
        Err(ClientError::NotRunning { .. }) => {
            up::start_daemon(&client, &node)?;
            wait(client.get("state"))??
        }
        other => other?,
    };
    let mut used: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (dc, container) in tree["dc"].as_object().into_iter().flatten() {
        for (name, domain) in container["domains"].as_object().into_iter().flatten() {
            if let Some(digest) = domain["root"]["digest"].as_str() {
                used.entry(digest.to_owned()).or_default().push(format!("{dc}/{name}"));
            }
        }
    }
    Ok(used)
}

fn had(image: &Image) -> String {
    let names: Vec<String> = image.names.iter().map(|name| harmless(familiar(name))).collect();
    format!("{} {} {}\n", names.join(", "), image.digest, bytes(image.bytes))
}

fn digits(digest: &str) -> &str {
    let hex = digest.strip_prefix("sha256:").unwrap_or(digest);
    hex.get(..SHOWN_DIGITS).unwrap_or(hex)
}

/// Progress is for people at a terminal.
fn bar(json: bool) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bytes}/{total_bytes} {wide_bar} {bytes_per_sec}") {
        bar.set_style(style);
    }
    bar
}

fn show(bar: &ProgressBar, progress: Progress) {
    bar.set_length(progress.of);
    bar.set_position(progress.done);
}
