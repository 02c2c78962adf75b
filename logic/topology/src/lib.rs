//! The topology file: parsing, validation, admission and the plan that follows from it.
//!
//! Nothing here waits or looks at the world: text, paths and times come in as arguments, and what
//! the node has is asked through [`Look`]. The reference of the file is `docs/topology.md`.
//!
//! ```
//! use std::path::Path;
//!
//! let file = r#"
//!     name = "hello"
//!     [domain.web]
//!     kind = "container"
//!     command = ["sleep", "infinity"]
//! "#;
//! let desired = topology::parse(file, "hello.toml", Path::new("/opt/hello"))?;
//! assert_eq!(topology::plan(None, &desired).to_string(), "start web\n");
//!
//! let refused = topology::parse("nmae = 1", "hello.toml", Path::new("/opt/hello")).unwrap_err();
//! assert!(refused.render(false).contains("did you mean `name`?"));
//! # Ok::<(), topology::Diagnostics>(())
//! ```

mod admit;
mod backoff;
pub mod bounds;
mod diagnostic;
mod explain;
mod file;
mod liveness;
mod look;
mod model;
mod name;
mod order;
mod plan;
mod read;
mod scalar;
mod schema;
mod suggest;
mod tables;

use std::path::Path;

pub use backoff::{Backoff, Decision, Exit, GiveUp, STABLE_MS};
pub use diagnostic::{Code, Diagnostic, Diagnostics, Report};
pub use explain::{Access, Called, EndpointAccess, Explanation, Permission, Start, explain};
pub use file::is_secret_name;
pub use liveness::{Liveness, Standing};
pub use look::{Blind, Found, Lack, Look, Part, Tables};
pub use model::{
    Accel, ActivatorProgram, Adaptation, Cache, CacheMode, Caller, Camera, CameraSettings, ChannelMode,
    ChannelSettings, CoordinationSettings, DirectorySettings, Disk, DiskFormat, DiskHolds, DiskShare, Domain,
    DomainKind, Endpoint, EndpointVerb, Enforce, EventChannel, EventFilter, EventsSettings, FilesSettings,
    FrameFormat, Giving, Health, IdOrName, IpcLimits, Job, JobPolicy, Layer, Limits, LocationKind,
    LocationSettings, LocationSource, LogLimits, Machine, MachineKernel, Monitor, Mount, Network,
    NetworkClass, NetworkShare, NodeChoice, Outside, Placement, Pressed, ProcessorShare, Program,
    ProgramSettings, Published, Ready, Reserve, Resolv, Restart, RestartPolicy, Root, SelectorProgram,
    Service, ServiceKind, ServiceMount, Settings, Signal, SocketMount, SocketPlace, SocketSettings, Stop,
    Target, Topology, User, Verb, VolumeMount, VolumeStore, Who,
};
pub use name::{NAME_BYTES_MAX, NAME_PATTERN, Name, NameError};
pub use plan::{Endpoints, Plan, Step, plan};
pub use scalar::{duration_text, nanos_text, parse_nanos, parse_rate, parse_size, rate_text, size_text};
pub use schema::schema;
pub use suggest::word as suggestion;
pub use tables::{Asking, unkept, without_room};

use file::TopologyForm;
use read::Form;

/// Reads and admits a topology by its words alone; see [`admit`] for the form that also looks at
/// the node.
///
/// `file_name` is for messages. `base` is the directory from which relative paths start; it should
/// be absolute.
///
/// # Errors
/// Everything that is wrong with the file, as far as it can be said at once.
pub fn parse(text: &str, file_name: &str, base: &Path) -> Result<Topology, Diagnostics> {
    admit(text, file_name, base, &Blind)
}

/// Reads and admits a topology, and refuses what names files of the node that are not there.
///
/// # Errors
/// Everything that is wrong with the file, as far as it can be said at once.
pub fn admit(text: &str, file_name: &str, base: &Path, node: &dyn Look) -> Result<Topology, Diagnostics> {
    let mut out = Report::new(text);
    let Some(form) = form(text, &mut out) else { return Err(out.finish(file_name)) };
    let mut cx = admit::Context { form: &form, base, node, out };
    match admit::topology(&mut cx) {
        Some(topology) if cx.out.is_clean() => Ok(topology),
        _ => Err(cx.out.finish(file_name)),
    }
}

/// The file's own form, or a report that it can't be read.
fn form(text: &str, out: &mut Report<'_>) -> Option<TopologyForm> {
    if text.len() > bounds::FILE_BYTES_MAX {
        let message =
            format!("the file has {} bytes; at most {} can be read", text.len(), bounds::FILE_BYTES_MAX);
        out.error(Code::TooMany, &(0..0), message);
        return None;
    }
    let (document, errors) = toml::de::DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mut key_end = 0;
        for error in errors {
            // The reader complains of each character of such a key, a person wants to hear of it
            // once.
            match strange_key(text, &error) {
                Some(key) if key.start < key_end => {}
                Some(key) => {
                    key_end = key.end;
                    let name = NameError::Character(
                        text[key.clone()].chars().find(|c| !c.is_ascii()).unwrap_or('?'),
                    );
                    out.error(Code::Syntax, &key, name.to_string());
                }
                None => syntax(text, &error, out),
            }
        }
        return None;
    }
    let span = document.span();
    let root = toml::de::DeValue::Table(document.into_inner());
    TopologyForm::read(&root, &(span.start..span.start), out)
}

/// The whole key without quotes, if the reader refuses it for a letter that is not of ASCII: names
/// have none, with or without quotes.
fn strange_key(text: &str, error: &toml::de::Error) -> Option<std::ops::Range<usize>> {
    let span = error.span().filter(|_| error.message().starts_with("invalid unquoted key"))?;
    let is_of_key = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let front = text.get(..span.start)?;
    let start =
        front.len() - front.chars().rev().take_while(|&c| is_of_key(c)).map(char::len_utf8).sum::<usize>();
    let length: usize = text.get(start..)?.chars().take_while(|&c| is_of_key(c)).map(char::len_utf8).sum();
    let key = start..start + length;
    text.get(key.clone()).filter(|word| !word.is_ascii()).map(|_| key)
}

/// Says in our words what the TOML reader says in its own.
fn syntax(text: &str, error: &toml::de::Error, out: &mut Report<'_>) {
    let span = error.span().unwrap_or(0..0);
    let rest = text.get(span.start..).unwrap_or("").trim_start_matches([' ', '\t']);
    let nothing = rest.is_empty() || rest.starts_with(['\n', '\r', '#']);
    let message = error.message();
    if message.starts_with("string values must be quoted") {
        if nothing {
            out.error(Code::Syntax, &span, "a value is missing here");
            return;
        }
        let word: String =
            rest.chars().take_while(|c| !c.is_whitespace() && !",]}#\"'".contains(*c)).collect();
        let end = span.start + word.len();
        out.error(Code::Syntax, &(span.start..end), "a text stands in quotes")
            .help(format!("did you mean \"{word}\"?"));
        return;
    }
    let message = match message {
        "duplicate key" => "this key is here a second time",
        other => other,
    };
    out.error(Code::Syntax, &span, message);
}
