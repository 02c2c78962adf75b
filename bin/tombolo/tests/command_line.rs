//! Wrong input of people, and what scripts rely on: messages, exit codes, JSON.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `tombolo` in a node that nobody uses.
fn tombolo(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tombolo"))
        .arg("--run-dir")
        .arg(folder.join("run"))
        .arg("--state-dir")
        .arg(folder.join("state"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn misuse_is_2_and_says_what_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, says) in [
        (&["pss"][..], "ps"),
        (&["up"], "FILE"),
        (&["exec", "web"], "COMMAND"),
        (&["logs"], "DOMAIN"),
        (&["completions", "tcsh-ng"], "bash"),
        (&["trace", "dns", "--repeat", "0"], "1..=10000"),
        (&["down", "shop", "--all"], "--all"),
        (&["bench", "run", "quick"], "--out"),
        (&["daemon", "--metrics", "everywhere"], "metrics"),
    ] {
        let output = tombolo(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(says), "{arguments:?} does not say {says:?}: {}", err(&output));
        assert!(out(&output).is_empty(), "{arguments:?} prints to the standard output");
    }
}

#[test]
fn help_teaches_by_examples_and_is_no_misuse() {
    let folder = tempfile::tempdir().unwrap();
    let output = tombolo(folder.path(), &["--help"]);
    assert_eq!(output.status.code(), Some(0));
    for word in ["Examples:", "tombolo up", "Exit codes:", "--run-dir"] {
        assert!(out(&output).contains(word), "no {word} in the help");
    }
    assert!(!out(&output).contains("internal-"), "the help shows hidden roles");
    for command in
        ["up", "down", "ps", "exec", "logs", "inspect", "check", "trace", "bench", "daemon", "completions"]
    {
        let help = tombolo(folder.path(), &[command, "--help"]);
        assert!(out(&help).contains("Examples:"), "`{command} --help` has no examples");
    }
    assert!(out(&tombolo(folder.path(), &["--version"])).starts_with("tombolo "));
}

#[test]
fn without_a_daemon_looking_fails_with_advice_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["ps"][..],
        &["ps", "--json"],
        &["inspect"],
        &["service", "ls"],
        &["service", "show", "dns"],
        &["logs", "web"],
        &["exec", "web", "--", "true"],
        &["trace", "dns"],
    ] {
        let output = tombolo(folder.path(), arguments);
        // What `exec` ends with is its command's; that there was none has a code of its own.
        let code = if arguments[0] == "exec" { 125 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(
            err(&output).contains("no daemon runs") && err(&output).contains("tombolo up"),
            "{}",
            err(&output)
        );
    }
    let output = tombolo(folder.path(), &["down"]);
    assert_eq!((output.status.code(), out(&output).contains("nothing to do")), (Some(0), true));
    let json = tombolo(folder.path(), &["down", "--json"]);
    let done: serde_json::Value = serde_json::from_str(&out(&json)).unwrap();
    assert_eq!((&done["progress"], &done["changed"]), (&"done".into(), &false.into()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "looking made directories");
}

#[test]
fn the_log_of_a_domain_that_was_undone_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("state/logs/shop");
    std::fs::create_dir_all(&logs).unwrap();
    std::fs::write(logs.join("web.log"), "2026-11-20T07:55:33.527065632Z stderr F no such port\n").unwrap();
    for name in ["web", "shop/web"] {
        assert_eq!(out(&tombolo(folder.path(), &["logs", name])), "no such port\n");
    }
    for name in ["shop/../web", "other/web", "we"] {
        assert_eq!(tombolo(folder.path(), &["logs", name]).status.code(), Some(1), "{name}");
    }
}

#[test]
fn nothing_but_the_name_shows_the_help() {
    let folder = tempfile::tempdir().unwrap();
    let output = tombolo(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("Commands:") && err(&output).contains("Examples:"), "{}", err(&output));
}

#[test]
fn check_says_everything_that_is_wrong_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.toml");
    std::fs::write(
        &file,
        "name = \"shop\"\n[domain.web]\nkind = \"contaner\"\nroot = \"host\"\ncommand = [\"true\"]\n",
    )
    .unwrap();
    let path = file.to_string_lossy().into_owned();
    let output = tombolo(folder.path(), &["check", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("broken.toml:3:8") && err(&output).contains("container"),
        "{}",
        err(&output)
    );
    let output = tombolo(folder.path(), &["check", &path, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((output.status.code(), json["list"][0]["line"].as_u64()), (Some(1), Some(3)));
    // `up` refuses the same, before it starts a daemon.
    let output = tombolo(folder.path(), &["up", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("broken.toml:3:8"), "{}", err(&output));
    assert!(!folder.path().join("run").exists() && !folder.path().join("state").exists());
}

#[test]
fn check_explains_a_good_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("good.toml");
    std::fs::write(
        &file,
        "name = \"shop\"\n[domain.web]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"true\"]\n",
    )
    .unwrap();
    let path = file.to_string_lossy().into_owned();
    let output = tombolo(folder.path(), &["check", &path]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(out(&output).contains("shop would start 1 domain"), "{}", out(&output));
    let output = tombolo(folder.path(), &["check", &path, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(json["starts"][0]["domain"], "web");
}

#[test]
fn files_that_are_not_there_or_no_text_are_told_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let output = tombolo(folder.path(), &["up", "/no/such/file.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("/no/such/file.toml"), "{}", err(&output));
    let file = folder.path().join("noise.toml");
    std::fs::write(&file, [0xff, 0xfe, 0x00, 0x80]).unwrap();
    let output = tombolo(folder.path(), &["check", &file.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("UTF-8"), "{}", err(&output));
}

#[test]
fn completions_and_man_pages_come_out_of_the_definitions() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = tombolo(folder.path(), &["completions", shell]);
        assert!(output.status.success() && out(&output).contains("TOMBOLO_COMPLETE"), "{shell}");
    }
    // As the script of a shell asks.
    let asked = Command::new(env!("CARGO_BIN_EXE_tombolo"))
        .args(["--", "tombolo", "insp"])
        .env("TOMBOLO_COMPLETE", "fish")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(asked.status.success() && out(&asked).starts_with("inspect\t"), "{asked:?}");
    let pages = folder.path().join("man");
    assert!(tombolo(folder.path(), &["man", &pages.to_string_lossy()]).status.success());
    for page in ["tombolo.1", "tombolo-up.1", "tombolo-service-ls.1"] {
        assert!(pages.join(page).exists(), "no {page}");
    }
}

#[test]
fn hidden_roles_refuse_to_be_run_by_hand() {
    for role in ["frontend", "internal-probe"] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_tombolo")).arg(role).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{role}");
        assert!(err(&output).contains("by hand"), "{role}: {}", err(&output));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tombolo"))
        .args(["completions", "bash", "--run-dir"])
        .arg(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(err(&output).is_empty(), "{}", err(&output));
}

#[test]
fn benches_are_another_program_and_the_command_says_where_it_is_from() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("tombolo");
    std::fs::copy(env!("CARGO_BIN_EXE_tombolo"), &program).unwrap();
    let output = Command::new(&program).args(["bench", "channel"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("tombolo-bench") && err(&output).contains("make build-benches"));
    let help = Command::new(&program).args(["bench", "--help"]).output().unwrap();
    assert!(out(&help).contains("Examples:"));
    // With the program beside it: the same words, options of the node among them.
    let script = folder.path().join("tombolo-bench");
    std::fs::write(&script, "#!/bin/sh\necho \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output =
        Command::new(&program).args(["--run-dir", "bench", "bench", "ipc", "--quick"]).output().unwrap();
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("--run-dir bench bench ipc --quick\n", Some(7))
    );
}
