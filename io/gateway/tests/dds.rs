//! Programs in the place of `tombolo-dds` that talk nonsense, end, or are not there.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the message")]

use gateway::{Connection, Dds, Engine, EngineError, Subscription, Told};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

/// Connects to a shell script; subscribes to one topic after one that is published.
fn connect(script: &str) -> Result<Connection, EngineError> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let mut engine = Dds::new(program, 0, true, BTreeMap::new());
    engine.publishes("Alarms", true);
    engine.connect(&[Subscription { filter: "Orders".into(), reliable: true }])
}

/// The words after the program has joined.
fn then(said: &str) -> Result<Told, EngineError> {
    connect(&format!("printf '\\003\\000\\000\\000c\\000\\000{said}'; exec cat > /dev/null"))
        .unwrap()
        .receiver
        .next()
}

#[test]
fn a_program_that_ends_or_refuses_is_an_error_in_words() {
    for (script, why) in [
        ("exit 127", "libddsc0debian"),
        ("exit 3", "ended with 3"),
        ("kill -9 $$", "was killed"),
        ("printf '\\006\\000\\000\\000e\\000\\000why'", "why"),
        ("printf '\\003\\000\\000\\000t\\000\\000'", "not in the protocol"),
        ("echo HTTP/1.1 400 Bad Request", "not in the protocol"),
        ("printf '\\000\\000\\000\\000c\\000\\000'", "not in the protocol"),
        ("printf '\\377\\377\\377\\377c\\000\\000'; exec cat > /dev/null", "not in the protocol"),
    ] {
        let said = connect(script).err().unwrap().to_string();
        assert!(said.contains(why), "{script}: {said}");
    }
    let mut nobody = Dds::new("/nowhere/tombolo-dds".into(), 0, true, BTreeMap::new());
    assert!(nobody.connect(&[]).err().unwrap().to_string().contains("/nowhere/tombolo-dds"));
}

#[test]
fn frames_are_news_or_the_end_of_the_connection() {
    assert!(matches!(then("\\003\\000\\000\\000t\\000\\000"), Ok(Told::Taken)));
    assert!(matches!(then("\\003\\000\\000\\000g\\000\\000"), Ok(Told::Gone)));
    assert!(matches!(then("\\005\\000\\000\\000s\\000\\000ab"), Ok(Told::Noted(words)) if words == "ab"));
    match then("\\005\\000\\000\\000a\\001\\000ab") {
        Ok(Told::Came(arrival)) => {
            assert_eq!((arrival.subscription, arrival.bytes.as_slice()), (0, &b"ab"[..]));
            arrival.receipt.unwrap()();
        }
        other => panic!("{other:?}"),
    }
    // A sample of a topic that goes out, of one that is not there, and a frame that nobody knows.
    for frame in ["a\\000\\000", "a\\002\\000", "x\\000\\000"] {
        assert!(then(&format!("\\003\\000\\000\\000{frame}")).is_err(), "{frame}");
    }
}
