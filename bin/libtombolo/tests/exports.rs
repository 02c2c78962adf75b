//! The library's names, and the headers that declare them.

mod stage;

use stage::{library, root, text};
use std::collections::BTreeSet;
use std::process::Command;

const HEADERS: [&str; 3] = ["channel.h", "endpoint.h", "service.h"];

/// The functions that a header declares.
fn declared_by(header: &str) -> BTreeSet<String> {
    let header = std::fs::read_to_string(root().join("include/tombolo").join(header)).expect("the header");
    let mut names = BTreeSet::new();
    let mut in_comment = false;
    for line in header.lines() {
        let starts = line.trim_start().starts_with("/*");
        let is_comment = in_comment || starts;
        in_comment = (in_comment || line.contains("/*")) && !line.contains("*/");
        if is_comment || line.starts_with([' ', '\t', '#']) {
            continue;
        }
        if let Some(at) = line.find("tombolo_").filter(|_| line.contains('(')) {
            let before = line.find('(').expect("looked for");
            let name = line[..before].rsplit([' ', '*']).next().unwrap_or_default();
            assert!(name.starts_with("tombolo_"), "{line}: {at}");
            names.insert(name.to_owned());
        }
    }
    names
}

#[test]
fn what_is_exported_is_what_the_headers_declare() {
    let declared: BTreeSet<String> = HEADERS
        .iter()
        .flat_map(|header| {
            let declared = declared_by(header);
            assert!(declared.len() > 10, "{header}: {declared:?}");
            declared
        })
        .collect();
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output() else {
        println!("skipped: there is no nm on this machine (apt-get install binutils)");
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
    let exported: BTreeSet<String> =
        text(&output.stdout).lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect();
    assert_eq!(exported, declared);
}

#[test]
fn programs_ask_for_the_library_by_its_version() {
    let Ok(output) = Command::new("readelf").arg("-d").arg(library()).output() else {
        println!("skipped: there is no readelf on this machine (apt-get install binutils)");
        return;
    };
    assert!(text(&output.stdout).contains("[libtombolo.so.0]"), "{}", text(&output.stdout));
}

#[test]
fn the_headers_are_good_c_and_good_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = [
        ("channel.h", "sizeof(struct tombolo_options) != 64"),
        ("service.h", "sizeof(struct tombolo_call) != 80 || sizeof(struct tombolo_stream_options) != 56"),
        (
            "endpoint.h",
            "sizeof(struct tombolo_message) != 64 || sizeof(struct tombolo_peer) != 176 || sizeof(struct tombolo_grant) != 64",
        ),
    ];
    for (compiler, standard, extension) in [("cc", "-std=c99", "c"), ("c++", "-std=c++11", "cc")] {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("skipped: no {compiler} on this machine (apt-get install gcc g++)");
            continue;
        }
        for (header, wrong) in sizes {
            let source = folder.path().join(format!("{header}.{extension}"));
            // Alone, and twice: it needs nothing in front of it, and bears being included again.
            let include = format!("#include <tombolo/{header}>\n");
            let text_of = format!("{include}{include}int main(void) {{ return {wrong}; }}\n");
            std::fs::write(&source, text_of).expect("written");
            let program = folder.path().join(format!("{header}.{extension}.out"));
            let output = Command::new(compiler)
                .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
                .arg(root().join("include"))
                .arg("-o")
                .args([&program, &source])
                .output()
                .expect("the compiler runs");
            assert!(output.status.success(), "{compiler}: {}", text(&output.stderr));
            let ran = Command::new(program).status().expect("it runs");
            assert!(ran.success(), "{header}: a structure has another size");
        }
    }
}
