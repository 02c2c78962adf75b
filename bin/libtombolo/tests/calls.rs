//! Every call of the headers, from C programs: `calls.c` of channels, `endpoints.c` of endpoints.

mod stage;

use stage::{Stage, root, text};

/// Runs all tests of a C program, each in a process of its own.
fn run_all(program: &str, at_least: usize) {
    let stage = Stage::set();
    let source = root().join("bin/libtombolo/tests").join(program);
    let Some(program) = stage.compile(&source) else { return };
    let listed = stage.command(&program).output().expect("it runs");
    let listed = text(&listed.stdout);
    let names: Vec<&str> = listed.lines().collect();
    assert!(names.len() >= at_least, "{names:?}");
    let failed: Vec<String> = names
        .iter()
        .filter_map(|name| {
            let output = stage.command(&program).arg(name).output().expect("it runs");
            (!output.status.success()).then(|| {
                format!("{name}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
            })
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn c_programs_find_every_call_as_the_header_says() {
    run_all("calls.c", 18);
}

#[test]
fn c_programs_find_every_call_of_an_endpoint_as_its_header_says() {
    run_all("endpoints.c", 14);
}
