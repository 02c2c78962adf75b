//! The product that tests start has all packages with the features that they have in the test
//! programs: cargo builds a package once more for each set of features, and whatever depends on it,
//! which would be the whole product.

use super::{SHARED, TOMBOLO, excluded};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The sets of features of each package, as cargo resolves them for these arguments.
fn features(arguments: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--target", "x86_64-unknown-linux-gnu", "--prefix", "none"])
        .args(["--format", "{p}|{f}"])
        .args(arguments)
        .current_dir(root)
        .output()
        .expect("cargo starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim_end_matches(" (*)");
        if let Some((package, features)) = line.split_once('|') {
            found.entry(package.to_owned()).or_default().insert(features.to_owned());
        }
    }
    found
}

#[test]
fn the_product_that_tests_start_is_built_of_what_the_tests_are_built_of() {
    let product = features(&["--package", TOMBOLO, "--features", SHARED, "--edges", "normal"]);
    let excluded = excluded();
    let tests = features(&[&["--workspace", "--edges", "all"], excluded.as_slice()].concat());
    let tombolo = |package: &&String| package.starts_with(TOMBOLO);
    let apart: Vec<String> = product
        .iter()
        .filter(|(package, _)| !tombolo(package))
        .filter_map(|(package, sets)| {
            let ours = tests.get(package).cloned().unwrap_or_default();
            let missing: Vec<&String> = sets.difference(&ours).collect();
            (!missing.is_empty())
                .then(|| format!("{package}: the product has {missing:?}, the tests {ours:?}"))
        })
        .collect();
    assert!(
        apart.is_empty(),
        "add what is missing to the feature `{SHARED}` of bin/tombolo/Cargo.toml:\n{}",
        apart.join("\n")
    );
}
