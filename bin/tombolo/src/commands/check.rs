//! `tombolo check`.

use super::up::{base_of, read};
use crate::cli::{CheckArgs, PlaceArgs};
use image::Kernel;
use std::io::IsTerminal;
use std::path::Path;
use terminal::{Failure, print, print_json};
use topology::{MachineKernel, Topology};

/// The emulator of machines.
const QEMU: &str = "qemu-system-x86_64";

/// Validates a file and says what it would start.
pub fn run(place: &PlaceArgs, arguments: &CheckArgs) -> Result<(), Failure> {
    let file = &arguments.file;
    let text = read(file)?;
    let known = topology::parse(&text, "", Path::new("/")).map(|topology| topology.name.as_str().to_owned());
    // Without a daemon, the file is held against a node that has promised nothing.
    let book = super::wait(super::client(place)?.get::<admin::reserve::Book>("reserve"))?.ok();
    let layout = super::place(place)?.layout(std::env::current_exe()?);
    let looking = node::looking(book.as_ref(), &known.unwrap_or_default(), layout.clone());
    let topology = admit_beside(&text, file, &base_of(file)?, arguments.json, &looking)?;
    for unkept in topology::unkept(&topology, &looking) {
        eprintln!("warning: {}: kept by bandwidth and not by {}: {unkept}", unkept.name, unkept.by());
    }
    for warning in missing_for_machines(&topology, &place.state_dir) {
        eprintln!("warning: {warning}");
    }
    // In a cluster, the node where a domain starts says so.
    if !book.is_some_and(|book| book.in_cluster) {
        node::free_to_publish(&topology, &layout).map_err(|problem| Failure::new(problem.to_string()))?;
    }
    let explanation = topology::explain(&topology);
    if arguments.json { print_json(&explanation) } else { print(&explanation.to_string()) }
}

/// Returns the parts that the file's machines need and this node lacks: it may be another node that
/// the file is for.
fn missing_for_machines(topology: &Topology, state_dir: &Path) -> Vec<String> {
    let machines: Vec<_> = topology.domains.iter().filter_map(|domain| domain.machine.as_ref()).collect();
    let mut missing = Vec::new();
    if machines.is_empty() {
        return missing;
    }
    if image::find_program(QEMU).is_err() {
        missing.push(format!(
            "this node has no {QEMU}, which a vm needs; on Debian: apt-get install --no-install-recommends qemu-system-x86"
        ));
    }
    if machines.iter().any(|machine| machine.kernel == MachineKernel::Built { directory: None })
        && let Err(error) = Kernel::auto(state_dir)
    {
        let help = error.help().map_or_else(String::new, |help| format!("; {help}"));
        missing.push(format!("{error}{help}"));
    }
    missing
}

/// Admits a file, or prints everything that is wrong with it.
pub fn admit(text: &str, file: &Path, base: &Path, json: bool) -> Result<Topology, Failure> {
    admit_beside(text, file, base, json, &node::look)
}

/// The same beside what the node has promised.
fn admit_beside(
    text: &str,
    file: &Path,
    base: &Path,
    json: bool,
    look: &dyn topology::Look,
) -> Result<Topology, Failure> {
    let look = &WithModules(look);
    topology::admit(text, &file.display().to_string(), base, look).map_err(|diagnostics| {
        if json {
            match print_json(&diagnostics.to_json()) {
                Ok(()) => {}
                Err(failure) => return failure,
            }
        } else {
            eprint!("{}", diagnostics.render(std::io::stderr().is_terminal()));
        }
        Failure::silent()
    })
}

/// Looks as another does, and checks modules to the end: here with the rights of whoever asks,
/// which in a daemon would be those of root.
struct WithModules<'l>(&'l dyn topology::Look);

impl topology::Look for WithModules<'_> {
    fn look(&self, path: &Path) -> topology::Found {
        self.0.look(path)
    }

    fn text(&self, path: &Path) -> Option<Result<String, String>> {
        self.0.text(path)
    }

    fn module(&self, path: &Path) -> Option<Result<(), String>> {
        let checked = node::module_bytes(path)
            .and_then(|bytes| modules::Module::install(&bytes).map(drop).map_err(|error| error.to_string()));
        Some(checked)
    }

    fn lacks(&self, domain: &topology::Domain) -> Vec<topology::Lack> {
        self.0.lacks(domain)
    }

    fn image(&self, reference: &str) -> Result<Option<String>, topology::Lack> {
        self.0.image(reference)
    }

    fn promised(&self) -> Option<&reserve::model::Model> {
        self.0.promised()
    }

    fn tables(&self) -> Option<&topology::Tables> {
        self.0.tables()
    }
}
