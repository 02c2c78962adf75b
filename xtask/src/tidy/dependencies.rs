//! The one direction of dependency: `bin → services → io → logic → wire`, and `sys` below `io` and
//! `logic/ring`.

use super::tree::Tree;
use super::{TidyError, Violation};
use std::path::{Path, PathBuf};

/// The line that makes a package obey the lints of the workspace.
const INHERITED_LINTS: &str = "[lints]\nworkspace = true";

/// A package of ours: what the rule needs to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its name, which is also that of its folder.
    pub name: String,
    /// Its folder, relative to the root: `io/channel`.
    pub folder: PathBuf,
    /// The folders of the packages of ours that it needs, tests' needs included.
    pub needs: Vec<PathBuf>,
}

/// Asks cargo for the packages of the workspace at `root`.
///
/// # Errors
/// Where cargo can't tell.
pub fn packages(root: &Path) -> Result<Vec<Package>, TidyError> {
    let mut command = cargo_metadata::MetadataCommand::new();
    let metadata = command.manifest_path(root.join("Cargo.toml")).no_deps().exec()?;
    let relative = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
    let package = |found: &cargo_metadata::Package| Package {
        name: found.name.to_string(),
        folder: relative(found.manifest_path.parent().map_or(root, |folder| folder.as_std_path())),
        needs: found
            .dependencies
            .iter()
            .filter_map(|need| need.path.as_ref())
            .map(|path| relative(path.as_std_path()))
            .collect(),
    };
    Ok(metadata.packages.iter().map(package).collect())
}

/// Checks names and arrows.
pub fn check(packages: &[Package]) -> Vec<Violation> {
    packages.iter().flat_map(|package| check_name(package).into_iter().chain(check_arrows(package))).collect()
}

fn check_name(package: &Package) -> Option<Violation> {
    let folder = package.folder.file_name()?.to_string_lossy().into_owned();
    (folder != package.name).then(|| Violation {
        file: package.folder.join("Cargo.toml"),
        line: 0,
        what: format!("the package in folder `{folder}` is called `{}`", package.name),
        why: "folder, package and import name are one word, so that a path tells where to look",
        mend: "rename the one or the other".into(),
    })
}

fn check_arrows(package: &Package) -> impl Iterator<Item = Violation> + '_ {
    package.needs.iter().filter(|need| !allowed(&package.folder, need)).map(|need| Violation {
        file: package.folder.join("Cargo.toml"),
        line: 0,
        what: format!("`{}` depends on `{}`", package.folder.display(), need.display()),
        why: "bin → services → io → logic → wire, sys below io and logic/ring; services speak wire with each other",
        mend: "move the code that is needed to the lower room, or pass it in as an argument or a trait".into(),
    })
}

/// Whether a package in folder `from` may depend on one in folder `to`.
fn allowed(from: &Path, to: &Path) -> bool {
    match (room(from), room(to)) {
        // Its test beds share what they are made of.
        ("e2e", "e2e") => true,
        ("wire" | "sys", _) | (_, "bin" | "xtask" | "e2e") => false,
        ("xtask", _) => false,
        ("logic", "sys") => from == Path::new("logic/ring"),
        ("logic", to) => matches!(to, "wire" | "logic"),
        ("io", to) => matches!(to, "wire" | "sys" | "logic" | "io"),
        ("services", to) => matches!(to, "wire" | "sys" | "logic" | "io"),
        // Its clients of services are those of the suite of views.
        ("bench", to) => matches!(to, "wire" | "sys" | "logic" | "io" | "bench" | "conformance"),
        ("conformance", to) => matches!(to, "wire" | "sys" | "logic" | "io"),
        // What waits has a clock and a network of its own there.
        ("sim", to) => matches!(to, "wire" | "logic" | "sim"),
        ("fuzz", to) => matches!(to, "wire" | "sys" | "logic" | "io" | "services"),
        ("bin" | "e2e", _) => true,
        _ => false,
    }
}

fn room(folder: &Path) -> &str {
    folder.iter().next().and_then(|first| first.to_str()).unwrap_or_default()
}

/// Every package but `sys` inherits the lints, among them the one that denies `unsafe`.
pub fn check_lints(tree: &Tree) -> Vec<Violation> {
    tree.with_extension("toml")
        .filter(|(file, text)| {
            file.ends_with("Cargo.toml") && text.contains("[package]") && room(file) != "sys"
        })
        .filter(|(_, text)| !text.contains(INHERITED_LINTS))
        .map(|(file, _)| Violation {
            file: file.to_path_buf(),
            line: 0,
            what: "the package does not inherit the lints of the workspace".into(),
            why: "they deny `unsafe` outside sys and ask for docs on public items",
            mend: "add `[lints]` with `workspace = true`".into(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrow(from: &str, to: &str) -> Vec<Violation> {
        let name = Path::new(from).file_name().expect("a folder").to_string_lossy().into_owned();
        check(&[Package { name, folder: from.into(), needs: vec![to.into()] }])
    }

    #[test]
    fn arrows_that_point_down_are_fine() {
        for (from, to) in [
            ("bin/tombolo", "services/directory"),
            ("bin/tombolo", "bench"),
            ("services/directory", "io/session"),
            ("io/channel", "logic/ring"),
            ("io/session", "io/channel"),
            ("io/domain", "sys"),
            ("logic/ring", "sys"),
            ("logic/topology", "wire"),
            ("bench", "io/session"),
            ("bench", "conformance"),
            ("bench/peers", "bench"),
            ("e2e", "wire"),
            ("e2e", "conformance"),
            ("e2e/xen_bed", "e2e"),
            ("conformance", "io/channel"),
            ("sim", "logic/lease"),
        ] {
            assert_eq!(arrow(from, to), [], "{from} → {to}");
        }
    }

    #[test]
    fn every_arrow_that_points_up_or_sideways_is_named() {
        for (from, to) in [
            ("wire", "sys"),
            ("sys", "wire"),
            ("logic/topology", "sys"),
            ("logic/ring", "io/channel"),
            ("io/frontend", "services/directory"),
            ("services/directory", "services/events"),
            ("services/directory", "bin/tombolo"),
            ("e2e", "bin/tombolo"),
            ("bench", "services/directory"),
            ("conformance", "services/node"),
            ("io/channel", "conformance"),
            ("xtask", "wire"),
            ("sim", "io/registry"),
            ("sim", "services/node"),
        ] {
            let found = arrow(from, to);
            assert_eq!(found.len(), 1, "{from} → {to}");
            assert!(found[0].what.contains(to), "{}", found[0]);
        }
    }

    #[test]
    fn a_package_that_is_not_named_like_its_folder_is_found() {
        let package = Package { name: "tombolo-ring".into(), folder: "logic/ring".into(), needs: vec![] };
        assert!(check(&[package])[0].what.contains("tombolo-ring"));
    }

    #[test]
    fn a_package_without_the_lints_is_found_and_sys_has_its_own() {
        let tree = Tree::made_up(&[
            ("io/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            ("io/b/Cargo.toml", "[package]\nname = \"b\"\n\n[lints]\nworkspace = true\n"),
            ("sys/Cargo.toml", "[package]\nname = \"sys\"\n"),
            ("Cargo.toml", "[workspace]\n"),
        ]);
        let found = check_lints(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].file, Path::new("io/a/Cargo.toml"));
    }

    #[test]
    fn the_real_packages_are_listed_with_their_folders() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace");
        let packages = packages(root).expect("cargo metadata works");
        let ring = packages.iter().find(|package| package.name == "ring").expect("ring is a package");
        assert_eq!(ring.folder, Path::new("logic/ring"));
        assert!(ring.needs.iter().all(|need| need.is_relative()));
    }
}
