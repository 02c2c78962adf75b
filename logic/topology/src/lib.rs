//! The topology file: parsing, validation, admission and the plan that follows from it.
//!
//! Nothing here waits or looks at the world: text, paths and times come in as arguments, and what the node has is asked
//! through [`Look`]. The reference of the file is `docs/topology.md`.
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
pub use diagnostic::{Code, Diagnostic, Diagnostics};
pub use explain::{Access, Called, EndpointAccess, Explanation, Permission, Start, explain};
pub use look::{Blind, Found, Look, Tables};
pub use model::{
    Accel, Cache, CacheMode, Caller, ChannelMode, ChannelSettings, DirectorySettings, Disk, DiskFormat,
    DiskHolds, DiskShare, Domain, DomainKind, Endpoint, EndpointVerb, Enforce, IdOrName, IpcLimits, Job,
    JobPolicy, Layer, Limits, LogLimits, Machine, MachineKernel, Mount, Network, NetworkClass, NetworkShare,
    NodeChoice, Outside, Placement, ProcessorShare, Program, Ready, Reserve, Resolv, Restart, RestartPolicy,
    Root, Service, ServiceKind, ServiceMount, Settings, Signal, Stop, Topology, User, Verb, Who,
};
pub use name::{NAME_BYTES_MAX, NAME_PATTERN, Name, NameError};
pub use plan::{Endpoints, Plan, Step, plan};
pub use scalar::{duration_text, nanos_text, parse_nanos, parse_rate, parse_size, rate_text, size_text};
pub use schema::schema;
pub use tables::{Asking, unkept, without_room};

use diagnostic::Report;
use file::TopologyForm;
use read::Form;

/// Reads and admits a topology by its words alone; see [`admit`] for the form that also looks at the node.
///
/// `file_name` is for messages. `base` is the directory from which relative paths start; it should be absolute.
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
        for error in errors {
            syntax(text, &error, out);
        }
        return None;
    }
    let span = document.span();
    let root = toml::de::DeValue::Table(document.into_inner());
    TopologyForm::read(&root, &(span.start..span.start), out)
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
