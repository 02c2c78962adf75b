//! Every call of the header, from a C program: `calls.c`.

mod stage;

use stage::{Stage, root, text};

/// Runs all tests of the C program, each in a process of its own.
#[test]
fn c_programs_find_every_call_as_the_header_says() {
    let stage = Stage::set();
    let Some(program) = stage.compile(&root().join("bin/libtombolo/tests/calls.c")) else { return };
    let listed = stage.command(&program).output().expect("it runs");
    let listed = text(&listed.stdout);
    let names: Vec<&str> = listed.lines().collect();
    assert!(names.len() >= 18, "{names:?}");
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
