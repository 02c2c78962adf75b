//! The Python package: `python/tests`, on the library that was built with this test.

mod stage;

use stage::{Stage, assert_went_well, daemon, root, text};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

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

/// Takes its endpoint away from a program that waits: it is told, whatever it waits in.
#[test]
fn a_program_whose_endpoint_ends_is_told() {
    let stage = Stage::set();
    let daemon = daemon(&stage);
    for wait in ["me.receive()", "me.wait_readable() and me.receive(timeout=0)", "me.wait('motor')"] {
        let program = format!(
            "import tombolo\nwith tombolo.Endpoint('camera', wait=10) as me:\n    print('bound', flush=True)\n    \
             try:\n        {wait}\n    except tombolo.Ended as error:\n        print(error.errno, error.strerror)\n"
        );
        let started = stage
            .command("python3")
            .args(["-W", "error", "-c", &program])
            .env("TOMBOLO_CONTROL", daemon.socket("a"))
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut running) = started else {
            println!("skipped: python3 is not installed (apt-get install python3)");
            return;
        };
        let mut said = BufReader::new(running.stdout.take().expect("its output")).lines();
        assert_eq!(said.next().expect("a line").expect("text"), "bound");
        daemon.unbind("camera");
        let told = said.next().expect("it is told").expect("text");
        assert!(told.starts_with("108 this endpoint has ended"), "{wait}: {told}");
        assert!(running.wait().expect("it ends").success());
    }
}
