//! `tombolo service new`: a folder with a service that runs.

use crate::cli::{Language, NewServiceArgs};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use terminal::{Failure, MISUSE, print};

/// Where the crate for services is in the sources of Tombolo.
const CRATE: &str = "io/service";
/// Longest name of a service in a topology file.
const MAX_NAME_BYTES: usize = 63;

const TOPOLOGY: &str = include_str!("../skeletons/topology.toml.in");
const README: &str = include_str!("../skeletons/README.md.in");
const PYTHON: &str = include_str!("../skeletons/service.py.in");
const C: &str = include_str!("../skeletons/service.c.in");
const MAKEFILE: &str = include_str!("../skeletons/Makefile.in");
const RUST: &str = include_str!("../skeletons/main.rs.in");
const CARGO: &str = include_str!("../skeletons/Cargo.toml.in");

/// Writes the folder, which must be new or empty.
pub fn new(arguments: &NewServiceArgs) -> Result<(), Failure> {
    let folder = std::path::absolute(&arguments.folder)?;
    let name = name_of(arguments, &folder)?;
    let files = match arguments.language {
        Language::Python => python(&name),
        Language::C => c(&name),
        Language::Rust => rust(&name, arguments.sources.as_deref())?,
    };
    make(&folder)?;
    for (path, text) in &files {
        let path = folder.join(path);
        if let Some(above) = path.parent() {
            DirBuilder::new().recursive(true).create(above)?;
        }
        let written = OpenOptions::new().write(true).create_new(true).open(&path);
        written
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::new(format!("can't write {}: {error}", path.display())))?;
    }
    let shown = folder.display();
    let names: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
    let names = names.join(", ");
    print(&format!("{shown}: {names}\nREADME.md says how to start it; then edit it: docs/services.md\n"))
}

/// The word that the topology file calls the service by.
fn name_of(arguments: &NewServiceArgs, folder: &Path) -> Result<String, Failure> {
    let of_folder = || folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = arguments.name.clone().or_else(of_folder).unwrap_or_default();
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let starts = name.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
    if starts && !name.ends_with('-') && name.len() <= MAX_NAME_BYTES && name.bytes().all(inner) {
        return Ok(name);
    }
    let words = "small letters, digits and hyphens, at most 63, a letter first";
    let failure = Failure::new(format!("{name:?} can't be the name of a service: {words}"));
    Err(Failure { code: MISUSE, ..failure.help("say another one by --name NAME") })
}

/// Makes the folder, or finds it empty.
fn make(folder: &Path) -> Result<(), Failure> {
    let shown = folder.display();
    let refused = |why: &str| {
        let failure = Failure::new(format!("{shown} {why}; nothing was written"));
        Err(Failure { code: MISUSE, ..failure.help("name a folder that is new or empty") })
    };
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_some()) {
        Ok(true) => refused("is not empty"),
        Ok(false) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => refused("is no folder"),
        Err(error) if error.kind() == ErrorKind::NotFound => DirBuilder::new()
            .recursive(true)
            .create(folder)
            .map_err(|error| Failure::new(format!("can't make {shown}: {error}"))),
        Err(error) => Err(Failure::new(format!("can't look into {shown}: {error}"))),
    }
}

type Files = Vec<(&'static str, String)>;

fn filled(text: &str, name: &str, more: &[(&str, &str)]) -> String {
    more.iter().fold(text.replace("@NAME@", name), |text, (word, value)| text.replace(word, value))
}

fn topology(name: &str, command: &str, environment: &str, mount: &str) -> String {
    filled(TOPOLOGY, name, &[("@COMMAND@", command), ("@ENVIRONMENT@", environment), ("@MOUNT@", mount)])
}

fn python(name: &str) -> Files {
    let environment = "environment = { PYTHONPATH = \"/run/tombolo/python\" }\n";
    vec![
        ("service.py", filled(PYTHON, name, &[])),
        ("topology.toml", topology(name, "\"python3\", \"/app/service.py\"", environment, ".")),
        ("README.md", filled(README, name, &[("@BUILD@", "")])),
    ]
}

fn c(name: &str) -> Files {
    vec![
        ("service.c", filled(C, name, &[])),
        ("Makefile", MAKEFILE.to_owned()),
        ("topology.toml", topology(name, "\"/app/service\"", "", ".")),
        ("README.md", filled(README, name, &[("@BUILD@", "make\n")])),
        (".gitignore", "/service\n".to_owned()),
    ]
}

fn rust(name: &str, sources: Option<&Path>) -> Result<Files, Failure> {
    let found = sources.map(|sources| sources.join(CRATE)).filter(|at| at.join("Cargo.toml").is_file());
    let Some(place) = found.map(|place| place.canonicalize()).transpose()? else {
        let failure = match sources {
            Some(sources) => Failure::new(format!("{} has no {CRATE}/Cargo.toml", sources.display())),
            None => Failure::new("a service in Rust uses the crate `service` by its path"),
        };
        return Err(Failure {
            code: MISUSE,
            ..failure.help("say where Tombolo's sources are by --sources FOLDER")
        });
    };
    let command = format!("\"/app/{name}\"");
    Ok(vec![
        ("Cargo.toml", filled(CARGO, name, &[("@SOURCES@", &quoted(place)?)])),
        ("src/main.rs", filled(RUST, name, &[])),
        ("topology.toml", topology(name, &command, "", "target/debug")),
        ("README.md", filled(README, name, &[("@BUILD@", "cargo build\n")])),
        (".gitignore", "/target\n".to_owned()),
    ])
}

/// A path as a text of TOML.
fn quoted(path: PathBuf) -> Result<String, Failure> {
    let text = path.into_os_string().into_string();
    let text = text
        .map_err(|path| Failure::new(format!("Cargo.toml can't name the path {path:?}: it is no UTF-8")))?;
    // A text of JSON is one of TOML.
    Ok(serde_json::Value::from(text).to_string())
}
