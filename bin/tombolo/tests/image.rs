//! `tombolo image build`: what it prints, what it refuses, and that the second time it is known.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn build(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tombolo"))
        .arg("--state-dir")
        .arg(folder.join("state"))
        .args(["image", "build"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The files of a kernel's package whose modules are all built in.
fn unpack_a_kernel(into: &Path) {
    let tree = into.join("lib/modules/6.1.0-1");
    std::fs::create_dir_all(tree.join("kernel")).unwrap();
    std::fs::create_dir_all(into.join("boot")).unwrap();
    std::fs::write(into.join("boot/vmlinuz-6.1.0-1"), "a kernel").unwrap();
    let builtin = image::GUEST_MODULES.map(|name| format!("kernel/{name}.ko\n")).concat();
    std::fs::write(tree.join("modules.builtin"), builtin).unwrap();
}

/// Whether this machine has what every guest is made of; says so where it has not.
fn has_busybox() -> bool {
    let found = image::find_program("busybox");
    if found.is_err() {
        println!("skipped: needs busybox; run `make deps`");
    }
    found.is_ok()
}

#[test]
fn an_image_is_built_once_and_known_afterwards() {
    if !has_busybox() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    unpack_a_kernel(&folder.path().join("state/kernel"));
    std::fs::write(folder.path().join("note"), "hello").unwrap();
    let arguments = ["--file", "note:/root/note", "--compression", "none", "-o", "out", "--json"];
    let mut images = Vec::new();
    for cached in [false, true] {
        let output = build(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        let image: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(image["cached"], cached);
        assert_eq!(image["kernel_version"], "6.1.0-1");
        assert_eq!(image["initramfs"], folder.path().join("out/initramfs").to_str().unwrap());
        images.push(image);
    }
    assert_eq!(images[0]["key"], images[1]["key"]);
    let manifest = std::fs::read_to_string(folder.path().join("out/manifest")).unwrap();
    for place in
        ["\"/init\"", "\"/usr/bin/busybox\"", "\"/usr/bin/tombolo\"", "\"/root/note\"", "\"/dev/console\""]
    {
        assert!(manifest.contains(place), "no {place} in the manifest:\n{manifest}");
    }
    let text = build(folder.path(), &["--file", "note:/root/note", "--compression", "none"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.starts_with("known image ") && text.contains("qemu-system-x86_64"), "{text}");
}

#[test]
fn what_is_missing_is_said_with_what_to_do() {
    if !has_busybox() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = build(folder.path(), &["--kernel", "nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("no kernel in nowhere") && err(&output).contains("dpkg-deb -x"),
        "{}",
        err(&output)
    );
    unpack_a_kernel(&folder.path().join("kernel"));
    for (arguments, code, says) in [
        (&["--module", "no_such"][..], 1, "kernel 6.1.0-1 has no module `no_such`"),
        (&["--program", "/no/such/dnsmasq"], 1, "apt-get install --no-install-recommends dnsmasq-base"),
        (&["--file", "note"], 2, "FILE:PLACE"),
        (&["--file", "note:/root/note"], 2, "note"),
        (&["--start", "nothing"], 1, "nothing"),
        (&["--compression", "lzma"], 2, "zstd"),
    ] {
        let mut all = vec!["--kernel", "kernel"];
        all.extend(arguments);
        let output = build(folder.path(), &all);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", err(&output));
        assert!(err(&output).contains(says), "{arguments:?} does not say {says:?}: {}", err(&output));
        assert!(output.stdout.is_empty(), "{arguments:?} prints to the standard output");
    }
}

#[test]
fn help_teaches_by_examples() {
    let folder = tempfile::tempdir().unwrap();
    let help = build(folder.path(), &["--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("Examples:") && help.contains("apt-get download"), "{help}");
}
