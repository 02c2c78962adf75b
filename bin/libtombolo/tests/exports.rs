//! The library's names, and the header that declares them.

mod stage;

use stage::{library, root, text};
use std::collections::BTreeSet;
use std::process::Command;

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = std::fs::read_to_string(root().join("include/tombolo/channel.h")).expect("the header");
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
fn what_is_exported_is_what_the_header_declares() {
    let declared = declared();
    assert!(declared.len() > 20, "{declared:?}");
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
fn the_header_is_good_c_and_good_cpp() {
    let folder = tempfile::tempdir().expect("a folder");
    for (compiler, standard, name) in [("cc", "-std=c99", "header.c"), ("c++", "-std=c++11", "header.cc")] {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("skipped: no {compiler} on this machine (apt-get install gcc g++)");
            continue;
        }
        let source = folder.path().join(name);
        // Alone, and twice: it needs nothing in front of it, and bears being included again.
        let text_of = "#include <tombolo/channel.h>\n#include <tombolo/channel.h>\nint main(void) { return sizeof(struct tombolo_options) != 64; }\n";
        std::fs::write(&source, text_of).expect("written");
        let program = folder.path().join(format!("{name}.out"));
        let output = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
            .arg(root().join("include"))
            .arg("-o")
            .args([&program, &source])
            .output()
            .expect("the compiler runs");
        assert!(output.status.success(), "{compiler}: {}", text(&output.stderr));
        assert!(
            Command::new(program).status().expect("it runs").success(),
            "struct tombolo_options has another size"
        );
    }
}
