//! A book for tests.

use super::*;
use topology::ProcessorShare;

/// A book of a node that has promised nothing, over that registry; and the folder of its files.
pub(crate) fn book(registry: Arc<dyn RegistryDebug>) -> (Book, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let layout = domain::Layout {
        run_dir: folder.path().join("run"),
        state_dir: folder.path().join("state"),
        cgroup_name: "tombolo-of-nobody".to_owned(),
        program: "/nowhere/tombolo".into(),
    };
    let cgroups = domain::Cgroups::discover().expect("cgroups");
    (Book::open(cgroups, &layout, registry).expect("a book"), folder)
}

/// So much in each 40 ms.
pub(super) fn reserve(budget_ms: u64) -> Reserve {
    let (budget_ns, period_ns) = (budget_ms * 1_000_000, 40_000_000);
    let cpu = ProcessorShare { budget_ns, period_ns, deadline_ns: period_ns, processor: None };
    Reserve { cpu: Some(cpu), ..Reserve::default() }
}
