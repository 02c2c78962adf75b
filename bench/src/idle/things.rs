//! The things that are measured, as topologies without and with some of them, and what each may
//! cost.

use crate::machines::{self, Image};
use crate::promise::{Promise, Relation};
use crate::scenario::BenchError;
use std::path::Path;

/// Name of the distributed container.
const DC: &str = "idle";
/// A program that does nothing, and ends at once when it is asked to.
const SLEEPER: &str = "command = [\"sleep\", \"infinity\"]\nstop = { signal = \"KILL\" }\n";
/// Files that one program holds open; a session takes 256 questions at a time, each of an open
/// file's.
const OPEN_FILES: usize = 100;

/// One kind of thing.
#[derive(Debug)]
pub struct Thing {
    /// The name in notes and progress.
    pub name: &'static str,
    /// How many of them the topology with them has.
    pub count: usize,
    /// Names and units of its figures: memory, descriptors, threads, wake-ups. The names are those
    /// of its promises.
    pub figures: [(&'static str, &'static str); 4],
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Process,
    Container,
    Machine,
    Service,
    File,
}

/// The figures and promises of a thing: its name in ids, the words for people, and how much it may
/// cost at most.
macro_rules! budgets {
    ($($thing:literal, $words:literal, $kib:literal, $descriptors:literal, $threads:literal, $wakes:literal;)*) => {
        /// The costs that each thing may have.
        pub const PROMISES: [Promise; 20] = [$(
            at_most(concat!("idle.", $thing, ".memory"), concat!($words, ": memory"), "KiB", $kib),
            at_most(concat!("idle.", $thing, ".descriptors"), concat!($words, ": open descriptors"), "", $descriptors),
            at_most(concat!("idle.", $thing, ".threads"), concat!($words, ": threads"), "", $threads),
            at_most(concat!("idle.", $thing, ".wakes"), concat!($words, ": wake-ups"), "/s", $wakes),
        )*];
    };
}

budgets! {
    "process", "a further idle domain of kind `process`, its program included", 1536.0, 48.0, 8.0, 0.1;
    "container", "a further idle domain of kind `container`, its program included", 1536.0, 48.0, 8.0, 0.1;
    "vm", "an idle domain of kind `vm` with 256 MiB under emulation", 327680.0, 128.0, 16.0, 200.0;
    "service", "a directory service mounted by a container", 512.0, 48.0, 4.0, 0.1;
    "file", "a file of that service, held open", 32.0, 2.0, 0.0, 0.1;
}

const fn at_most(id: &'static str, about: &'static str, unit: &'static str, goal: f64) -> Promise {
    Promise { id, about, unit, relation: Relation::AtMost, goal }
}

const fn figures(first: usize) -> [(&'static str, &'static str); 4] {
    [figure(first), figure(first + 1), figure(first + 2), figure(first + 3)]
}

const fn figure(place: usize) -> (&'static str, &'static str) {
    (PROMISES[place].id, PROMISES[place].unit)
}

/// All of them, in the order of the promises.
pub const THINGS: [Thing; 5] = [
    Thing { name: "a process", count: 20, figures: figures(0), kind: Kind::Process },
    Thing { name: "a container", count: 20, figures: figures(4), kind: Kind::Container },
    Thing { name: "a virtual machine", count: 1, figures: figures(8), kind: Kind::Machine },
    Thing { name: "a mounted service", count: 20, figures: figures(12), kind: Kind::Service },
    Thing { name: "an open file", count: OPEN_FILES, figures: figures(16), kind: Kind::File },
];

impl Thing {
    /// Whether this machine can have it.
    ///
    /// # Errors
    /// [`BenchError::Missing`] with what it lacks.
    pub fn check(&self) -> Result<(), BenchError> {
        match self.kind {
            Kind::Process => Ok(()),
            Kind::Machine => machines::check(),
            Kind::File => crate::machine::check_programs(&["runc", "bash"]),
            Kind::Container | Kind::Service => crate::machine::check_programs(&["runc"]),
        }
    }

    /// The lines of a topology that say the kind of its domains, once what they need is there.
    ///
    /// # Errors
    /// Where a guest's image can't be made.
    pub fn prepare(&self, binary: &Path, folder: &Path) -> Result<String, BenchError> {
        Ok(match self.kind {
            Kind::Process => "kind = \"process\"\n".to_owned(),
            Kind::Machine => machines::topology(&Image::build(binary, &[], folder)?),
            Kind::Container | Kind::Service | Kind::File => "kind = \"container\"\n".to_owned(),
        })
    }

    /// A topology with `count` of them, or with none.
    #[must_use]
    pub fn topology(&self, count: usize, kind: &str) -> String {
        let head = format!("name = \"{DC}\"\n\n[domain.first]\nkind = \"process\"\n{SLEEPER}");
        let domain = |name: &str, more: &str| format!("\n[domain.{name}]\n{kind}{more}");
        let numbered = |more: &str, count: usize| -> String {
            (0..count).map(|number| domain(&format!("d{number}"), more)).collect()
        };
        match self.kind {
            Kind::Process | Kind::Container => head + &numbered(SLEEPER, count),
            // The agent alone: its guest has no program.
            Kind::Machine => head + &numbered("", count),
            Kind::Service => {
                let mounted = format!("{SLEEPER}services = {{ dns = \"/srv/dns\" }}\n");
                // All domains are there in both; the last mounts it always, for a service that
                // nobody mounts may not be.
                let more = if count > 0 { mounted.as_str() } else { SLEEPER };
                head + &numbered(more, self.count) + &domain("last", &mounted) + &server(self.count)
            }
            Kind::File => head + &domain("last", &holding(count)) + &server(0),
        }
    }
}

/// A container's lines whose program holds so many files of the service open.
fn holding(files: usize) -> String {
    let script = format!(
        "for ((i = 0; i < {files}; i++)); do exec {{file}}<>/srv/dns/query; done; exec sleep infinity"
    );
    format!(
        "command = [\"bash\", \"-c\", \"{script}\"]\nstop = {{ signal = \"KILL\" }}\nservices = {{ dns = \"/srv/dns\" }}\n"
    )
}

/// The directory service, which the numbered domains and the last may use, and its domain.
fn server(numbered: usize) -> String {
    let domains: Vec<String> =
        (0..numbered).map(|number| format!("\"d{number}\"")).chain(["\"last\"".to_owned()]).collect();
    format!(
        "\n[domain.resolver]\nkind = \"container\"\nnetwork = \"host\"\n\n[service.dns]\nkind = \"directory\"\ndomain = \"resolver\"\n\
         allow = [{{ domains = [{}], verbs = [\"resolve\"] }}]\nsettings = {{ upstream = [\"192.0.2.53\"] }}\n",
        domains.join(", ")
    )
}
