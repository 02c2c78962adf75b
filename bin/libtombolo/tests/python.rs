//! The Python package: `python/tests`, on the library that was built with this test.

mod stage;

use stage::{Stage, assert_went_well, daemon, root, text};

#[test]
fn python_programs_find_channels_and_endpoints_as_the_package_says() {
    let stage = Stage::set();
    let daemon = daemon(&stage);
    let run = stage
        .command("python3")
        .args(["-W", "error", "-m", "unittest", "discover", "-s"])
        .arg(root().join("python/tests"))
        .env("TOMBOLO_TEST_DAEMON", daemon.socket("a"))
        .output();
    let Ok(output) = run else {
        println!("skipped: python3 is not installed (apt-get install python3)");
        return;
    };
    assert_went_well("python/tests", &output);
    let said = text(&output.stderr);
    assert!(!said.contains("Ran 0 tests") && !said.contains("skipped"), "{said}");
}

#[test]
fn a_library_that_is_not_there_is_an_error_that_says_what_to_do() {
    let stage = Stage::set();
    let run = stage
        .command("python3")
        .env("TOMBOLO_LIBRARY", "/nowhere/libtombolo.so.0")
        .args(["-c", "import tombolo"])
        .output();
    let Ok(output) = run else {
        println!("skipped: python3 is not installed (apt-get install python3)");
        return;
    };
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("ImportError") && said.contains("TOMBOLO_LIBRARY"), "{said}");
}
