//! `tombolo import`: a topology file of a Compose file.

use super::place;
use crate::cli::{ImportArgs, PlaceArgs};
use compose::{Converted, Finding, Weight};
use image_store::Store;
use serde_json::{Value, json};
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use terminal::{Failure, MISUSE, Paint, harmless, print, print_json};

/// Says of each key what becomes of it, and writes the topology file.
pub fn run(place_arguments: &PlaceArgs, arguments: &ImportArgs) -> Result<(), Failure> {
    let shown = arguments.file.display();
    let text = std::fs::read_to_string(&arguments.file).map_err(|error| {
        let failure = Failure::new(format!("can't read {shown}: {error}"));
        if error.kind() == ErrorKind::NotFound { Failure { code: MISUSE, ..failure } } else { failure }
    })?;
    let folder = folder_of(&arguments.file)?;
    let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let converted = compose::convert(&text, &name)
        .map_err(|finding| Failure::new(format!("{shown}:{}: {}", finding.line, finding.message)))?;
    let refused = converted.findings.iter().filter(|finding| finding.weight == Weight::Refused).count();
    let missing = missing(&Store::new(&place(place_arguments)?.state_dir), &converted);
    let written = refused == 0 || arguments.partial;
    if arguments.json {
        print_json(&json!({
            "findings": converted.findings.iter().map(as_json).collect::<Vec<_>>(),
            "missing_images": missing,
            "topology": written.then_some(&converted.text),
        }))?;
    } else {
        tell(&arguments.file, &converted, &missing);
    }
    if !written {
        let failure = Failure::new(format!("{refused} of {shown} can't be mapped; nothing was written"));
        return Err(failure.help("change that, or leave it out by --partial"));
    }
    if let Err(diagnostics) = topology::parse(&converted.text, "the topology file", &folder) {
        // It is written all the same: that is where it is mended.
        eprint!("{}", diagnostics.render(std::io::stderr().is_terminal()));
    }
    match &arguments.output {
        Some(output) => write(output, &folder, &converted),
        None if arguments.json => Ok(()),
        None => print(&converted.text),
    }
}

fn folder_of(file: &Path) -> Result<PathBuf, Failure> {
    Ok(std::path::absolute(file)?.parent().unwrap_or(Path::new("/")).to_owned())
}

fn as_json(finding: &Finding) -> Value {
    json!({
        "line": finding.line,
        "key": finding.key,
        "refused": finding.weight == Weight::Refused,
        "message": finding.message,
    })
}

/// The images that the node does not have. Who may not look there is told nothing.
fn missing(store: &Store, converted: &Converted) -> Vec<String> {
    let is_missing = |image: &&String| {
        image_store::reference(image).is_ok_and(|reference| matches!(store.find(&reference), Ok(None)))
    };
    converted.images.iter().filter(is_missing).cloned().collect()
}

fn tell(file: &Path, converted: &Converted, missing: &[String]) {
    let paint = Paint::of(&std::io::stderr());
    for Finding { line, key, weight, message } in &converted.findings {
        let (colour, word) = match weight {
            Weight::Refused => (paint.red, "refused"),
            Weight::Note => (paint.dim, "note"),
        };
        let text = harmless(&format!("{}: {message}", if key.is_empty() { "the file" } else { key }));
        eprintln!("{}:{line}: {colour}{word}{} {text}", file.display(), paint.end);
    }
    for image in missing {
        eprintln!("this node has no image {0}: tombolo image pull {0}", harmless(image));
    }
}

fn write(output: &Path, folder: &Path, converted: &Converted) -> Result<(), Failure> {
    if converted.relative && folder_of(output)? != folder {
        let failure = Failure::new("the file mounts by paths that start from the folder of the Compose file");
        return Err(failure.help(format!("write it there: -o {}", folder.join("topology.toml").display())));
    }
    let file = std::fs::File::options().write(true).create_new(true).open(output);
    let written = file.and_then(|mut file| file.write_all(converted.text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::new(format!("{} is there already", output.display()))
            .help("remove it, or take another name"),
        _ => Failure::new(format!("can't write {}: {error}", output.display())),
    })
}
