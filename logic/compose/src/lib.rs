//! Compose files, read and made topology files of.
//!
//! Each key is mapped, or noted (it means nothing here, or something a little different), or
//! refused: with its line, its name and what to do. Nothing is left out in silence. What a file
//! means here is said in `docs/images.md`.

mod names;
mod ports;
mod service;
mod text;
mod tree;

use names::Names;
use tree::{Entry, Node, Value};

/// How much one has to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It is taken care of, or has no meaning here.
    Note,
    /// It can't be mapped: somebody has to do something.
    Refused,
}

/// One thing that is to be said of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where, counted from 1.
    pub line: usize,
    /// The key, with those above it: `services.web.ports`.
    pub key: String,
    /// How much it matters.
    pub weight: Weight,
    /// The message.
    pub message: String,
}

/// The outcome of converting a Compose file.
#[derive(Clone, Debug)]
pub struct Converted {
    /// The topology file, of all that could be mapped.
    pub text: String,
    /// In the order of their lines.
    pub findings: Vec<Finding>,
    /// The images that it names.
    pub images: Vec<String>,
    /// Whether it names files by paths that start from the folder of the Compose file.
    pub relative: bool,
}

/// Makes a topology file of a Compose file. `name`: of the distributed container, where the file
/// says none.
///
/// # Errors
/// A file that is no YAML, or has no services.
pub fn convert(text: &str, name: &str) -> Result<Converted, Finding> {
    let broken = |(line, message)| Finding { line, key: String::new(), weight: Weight::Refused, message };
    let root = tree::read(text).map_err(broken)?;
    let Value::Map(entries) = root.value else {
        return Err(broken((root.line, "this is no Compose file: it is no mapping".into())));
    };
    let services = entries.iter().find(|entry| entry.key == "services");
    let Some(Entry { node: Node { value: Value::Map(services), .. }, .. }) = services else {
        return Err(broken((root.line, "this is no Compose file: it has no `services`".into())));
    };
    let mut report = Report::default();
    let mut own_name = None;
    for entry in &entries {
        match (entry.key.as_str(), &entry.node.value) {
            ("services", _) => {}
            ("name", Value::Text(text)) => own_name = Some(text.clone()),
            ("version", _) => report.note(entry.line, "version", "it means nothing any more"),
            (key, _) if key.starts_with("x-") => {}
            ("secrets", Value::Map(secrets)) => {
                let secrets = secrets.iter().map(|secret| (secret.line, format!("secrets.{}", secret.key)));
                secrets.for_each(|(line, key)| report.note(line, &key, VALUE));
            }
            (key, _) => report.refuse(entry.line, key, top_level(key)),
        }
    }
    let names = Names::of(services, &mut report);
    let dc = names::fitting(own_name.as_deref().unwrap_or(name)).unwrap_or_else(|| "compose".into());
    let mut out = format!("name = {}\n", service::quoted(&dc));
    for entry in services {
        let Some(name) = names.get(&entry.key) else { continue };
        out += &service::domain(name, entry, &names, &mut report);
    }
    if !report.published.is_empty() {
        out += "\n[publish]\n";
        out += &report.published.concat();
    }
    report.findings.sort_by_key(|finding| finding.line);
    Ok(Converted { text: out, findings: report.findings, images: report.images, relative: report.relative })
}

/// Where the value of a secret comes from.
const VALUE: &str = "its value is said once, before `tombolo up`: `tombolo secret set DC/NAME < FILE` (DC: the `name` of the file)";

/// Returns the remedy for a key of the whole file.
fn top_level(key: &str) -> &'static str {
    match key {
        "volumes" => {
            "named volumes are directories here: make them on the node and mount them by path; or virtual disks (docs/volumes.md)"
        }
        "networks" => {
            "domains have no networks among each other: they connect by services of kind `socket` (docs/sockets.md)"
        }
        "configs" => "mount its file: mounts = [{ source = \"FILE\", target = \"/run/NAME\" }]",
        "include" => "put the services of that file here",
        _ => "no such key is known",
    }
}

/// The findings on the way.
#[derive(Default)]
pub(crate) struct Report {
    findings: Vec<Finding>,
    images: Vec<String>,
    relative: bool,
    /// The lines of `[publish]`.
    published: Vec<String>,
}

impl Report {
    fn say(&mut self, weight: Weight, line: usize, key: &str, message: &str) {
        let (key, message) = (key.to_owned(), message.to_owned());
        self.findings.push(Finding { line, key, weight, message });
    }

    fn note(&mut self, line: usize, key: &str, message: &str) {
        self.say(Weight::Note, line, key, message);
    }

    fn refuse(&mut self, line: usize, key: &str, message: &str) {
        self.say(Weight::Refused, line, key, message);
    }
}
