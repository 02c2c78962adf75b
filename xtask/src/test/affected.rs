//! The packages that a change can have touched: those with a changed file, and all that stand on
//! them.

use cargo_metadata::{Metadata, MetadataCommand};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Packages that run the product without a dependency that cargo knows of.
const RUN_THE_PRODUCT: [&str; 2] = ["bench", "e2e"];
/// The packages that the product is made of.
const PRODUCT: [&str; 3] = ["tombolo", "preload", "libtombolo"];
/// Files outside of packages, by how their paths begin, and the packages whose tests read them.
const READ_BY_TESTS: [(&str, &[&str]); 5] = [
    ("docs/", &["e2e", "libtombolo", "topology", "xtask"]),
    ("examples/", &["e2e", "topology"]),
    ("include/", &["libtombolo"]),
    ("python/", &["e2e", "libtombolo"]),
    ("README.md", &["e2e", "xtask"]),
];
/// Files that can change what every package is.
const CONCERN_ALL: [&str; 3] = ["Cargo.toml", "Cargo.lock", ".cargo/"];

/// Why it can't be said what is affected.
#[derive(Debug, thiserror::Error)]
pub enum AffectedError {
    /// Cargo does not know its own workspace.
    #[error("cargo metadata failed")]
    Metadata(#[from] cargo_metadata::Error),
    /// Git could not be started.
    #[error("git can't be started")]
    Start(#[from] std::io::Error),
    /// Git knows no such revision, or this is no checkout.
    #[error("git diff says: {0}")]
    Git(String),
}

/// The packages that a change can have touched.
#[derive(Debug, PartialEq, Eq)]
pub enum Affected {
    /// All of them.
    All,
    /// These.
    Some(BTreeSet<String>),
}

impl Affected {
    /// Whether the tests of `package` can have changed.
    pub fn is_affected(&self, package: &str) -> bool {
        match self {
            Self::All => true,
            Self::Some(packages) => packages.contains(package),
        }
    }

    /// For a person.
    pub fn describe(&self) -> String {
        match self {
            Self::All => "every package".into(),
            Self::Some(packages) if packages.is_empty() => "no package".into(),
            Self::Some(packages) => packages.iter().cloned().collect::<Vec<_>>().join(", "),
        }
    }
}

/// The packages that a change since `revision`, committed or not, can have touched.
pub fn packages(root: &Path, revision: &str) -> Result<Affected, AffectedError> {
    let metadata = MetadataCommand::new().no_deps().current_dir(root).exec()?;
    let mut files = git(root, &["diff", "--name-only", revision, "--"])?;
    files.extend(git(root, &["ls-files", "--others", "--exclude-standard"])?);
    Ok(of_files(&graph(&metadata, root), &files))
}

fn git(root: &Path, arguments: &[&str]) -> Result<Vec<String>, AffectedError> {
    let output = Command::new("git").args(arguments).current_dir(root).output()?;
    if !output.status.success() {
        return Err(AffectedError::Git(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// A package of the workspace.
struct Node {
    name: String,
    /// Its folder below the root, with a slash at the end.
    folder: String,
    stands_on: Vec<String>,
}

fn graph(metadata: &Metadata, root: &Path) -> Vec<Node> {
    let node = |package: &cargo_metadata::Package| {
        let folder = package.manifest_path.parent()?.as_std_path().strip_prefix(root).ok()?;
        let mut stands_on: Vec<String> =
            package.dependencies.iter().map(|dependency| dependency.name.clone()).collect();
        if RUN_THE_PRODUCT.contains(&package.name.as_str()) {
            stands_on.extend(PRODUCT.map(str::to_owned));
        }
        let folder = format!("{}/", folder.display());
        Some(Node { name: package.name.to_string(), folder, stands_on })
    };
    metadata.packages.iter().filter_map(node).collect()
}

fn of_files(graph: &[Node], files: &[String]) -> Affected {
    let mut affected = BTreeSet::new();
    for file in files {
        if CONCERN_ALL.iter().any(|all| file == all || (all.ends_with('/') && file.starts_with(all))) {
            return Affected::All;
        }
        let owners = graph.iter().filter(|node| file.starts_with(&node.folder));
        affected.extend(owners.max_by_key(|node| node.folder.len()).map(|node| node.name.clone()));
        let readers = READ_BY_TESTS.iter().filter(|(front, _)| file.starts_with(front));
        affected.extend(readers.flat_map(|(_, readers)| readers.iter().map(|&name| name.to_owned())));
    }
    loop {
        let further = graph
            .iter()
            .filter(|node| !affected.contains(&node.name))
            .filter(|node| node.stands_on.iter().any(|lower| affected.contains(lower)))
            .map(|node| node.name.clone())
            .collect::<Vec<_>>();
        if further.is_empty() {
            return Affected::Some(affected);
        }
        affected.extend(further);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Vec<Node> {
        let node = |name: &str, folder: &str, stands_on: &[&str]| Node {
            name: name.into(),
            folder: folder.into(),
            stands_on: stands_on.iter().map(|&name| name.to_owned()).collect(),
        };
        vec![
            node("wire", "wire/", &[]),
            node("channel", "io/channel/", &["wire"]),
            node("lease", "logic/lease/", &[]),
            node("bench", "bench/", &["channel"]),
            node("peers", "bench/peers/", &["bench"]),
        ]
    }

    fn affected(files: &[&str]) -> String {
        of_files(&graph(), &files.iter().map(|&file| file.to_owned()).collect::<Vec<_>>()).describe()
    }

    #[test]
    fn what_stands_on_a_changed_package_is_affected() {
        assert_eq!(affected(&["wire/src/lib.rs"]), "bench, channel, peers, wire");
        assert_eq!(affected(&["logic/lease/src/a.rs"]), "lease");
        assert_eq!(affected(&["bench/peers/src/a.rs"]), "peers");
    }

    #[test]
    fn what_tests_read_affects_them_and_a_manifest_affects_all() {
        assert_eq!(affected(&["docs/channels.md"]), "e2e, libtombolo, topology, xtask");
        assert_eq!(affected(&["CHANGELOG.md"]), "no package");
        assert_eq!(affected(&["Cargo.lock"]), "every package");
    }

    #[test]
    fn a_revision_that_is_none_is_told() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
        let error = packages(root, "no-such-revision").expect_err("refused");
        assert!(error.to_string().contains("no-such-revision"), "{error}");
    }
}
