//! Virtual machines as domains of a node under test: what they need of this machine, the guest that
//! they boot, their part of the file.
//!
//! Emulation everywhere: a KVM that is there and then hangs, as nested ones do, would cost the
//! tests their meaning.

use crate::node::{Node, Run, binary, target};
use image::{GuestPrograms, Image, Kernel, Spec};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where guests of the tests have the program of the channels' tests.
pub const PEER: &str = "/usr/bin/channel-peer";
/// Where they have the program of the endpoints' tests.
pub const ENDPOINT_PEER: &str = "/usr/bin/endpoint-peer";
/// Where they have the program that writes whatever it likes into devices.
pub const SCRIBBLE: &str = "/usr/bin/scribble-devices";
/// How long a machine may take to be up: it takes 3 s, and a test machine has more to do.
const READY: &str = "120s";

/// A node that can run machines; `None`, and a printed reason, where this machine can't.
pub fn start() -> Option<Node> {
    if let Err(reason) = kernel() {
        println!("skipped: {reason}");
        return None;
    }
    let node = Node::start()?;
    // Every node of the tests finds the kernel where a user would have put it, and the images that
    // others have built.
    std::fs::create_dir_all(node.state_dir()).expect("a state directory");
    let images = target().join("guests-of-nodes");
    std::fs::create_dir_all(&images).expect("a directory for images");
    let images = std::path::absolute(images).expect("its path");
    let kernel = std::path::absolute(unpacked()).expect("its path");
    for (to, at) in [(images, "guests"), (kernel, "kernel")] {
        std::os::unix::fs::symlink(to, node.state_dir().join(at)).expect("a link");
    }
    Some(node)
}

fn unpacked() -> PathBuf {
    target().join("debian/kernel")
}

/// The kernel of guests, or what is missing for it.
fn kernel() -> Result<Kernel, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest's kernel and QEMU are those of x86-64".into());
    }
    for name in ["qemu-system-x86_64", "busybox"] {
        image::find_program(name).map_err(|_| format!("needs {name}; run `make deps`"))?;
    }
    Kernel::find(&unpacked()).map_err(|error| format!("{error}; run `make deps`"))
}

/// The guest of the tests: what every guest has, and their programs. `peer` is `channel_peer` as it
/// was built, with `endpoint_peer` beside it.
pub fn image(peer: &str) -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let programs = GuestPrograms::find(binary()).expect("busybox");
        let mut spec = image::guest(kernel().expect("a kernel"), &programs);
        spec.program(peer, PEER);
        spec.program(Path::new(peer).with_file_name("endpoint_peer"), ENDPOINT_PEER);
        // A dynamic program, which asks for names by the C library.
        spec.program(image::find_program("getent").expect("getent, of the C library"), "/usr/bin/getent");
        let folder = tempfile::tempdir().expect("a folder");
        if let Some(scribble) = compile(folder.path(), "scribble_devices.c") {
            spec.program(scribble, SCRIBBLE);
        }
        build(&spec)
    })
}

/// A guest whose kernel runs guests of its own: on an emulated processor, which can be asked to do
/// that as AMD's are.
pub fn image_with_kvm() -> Image {
    let programs = GuestPrograms::find(binary()).expect("busybox");
    let mut spec = image::guest(kernel().expect("a kernel"), &programs);
    spec.modules.push("kvm-amd".to_owned());
    build(&spec)
}

/// A guest that has busybox, the modules of our guests, and `init` as its first program.
pub fn bare_image(init: &str) -> Image {
    let mut spec = Spec::new(kernel().expect("a kernel"));
    spec.modules = image::GUEST_MODULES.map(str::to_owned).to_vec();
    spec.program(image::find_program("busybox").expect("busybox"), "/bin/busybox");
    spec.link("/bin", "usr/bin");
    for directory in ["/dev", "/proc", "/sys"] {
        spec.directory(directory, 0o755);
    }
    spec.entries.push(image::Entry::Device { to: "/dev/console".into(), mode: 0o600, number: (5, 1) });
    spec.bytes(init, "/init", 0o755);
    build(&spec)
}

fn build(spec: &Spec) -> Image {
    image::build(spec, &target().join("guests"), &mut |_| {}).unwrap_or_else(|error| {
        panic!("the guest can't be built: {error}\n{}", error.help().unwrap_or_default())
    })
}

/// Compiles a program of the tests, statically; `None`, said, where there is no compiler.
pub fn compile(folder: &Path, source: &str) -> Option<PathBuf> {
    let program = folder.join("program");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(source);
    let compiled = std::process::Command::new("cc")
        .args(["-std=gnu99", "-static", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(from)
        .output();
    match compiled {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(program)
        }
        Err(_) => {
            println!(
                "skipped: there is no C compiler (apt-get install gcc libc6-dev), so no guest writes into devices"
            );
            None
        }
    }
}

/// A domain of kind `vm` in the words of the file. `machine` are further entries of its table
/// `machine`, `more` further lines.
pub fn domain(name: &str, command: &[&str], machine: &str, more: &str) -> String {
    let command = if command.is_empty() { String::new() } else { format!("command = {command:?}\n") };
    format!(
        "\n[domain.{name}]\nkind = \"vm\"\nmachine = {{ memory = \"384MiB\", accel = \"tcg\"{machine} }}\n{command}\
         ready = {{ timeout = \"{READY}\" }}\n{more}\n"
    )
}

/// The entries of `machine` that boot this image.
pub fn booting(image: &Image) -> String {
    format!(
        ", kernel = {:?}, initramfs = {:?}",
        image.kernel.display().to_string(),
        image.initramfs.display().to_string()
    )
}

/// Runs a shell line in a guest, which has busybox's.
pub fn shell(node: &Node, domain: &str, line: &str) -> Run {
    node.run(&["exec", domain, "--", "/bin/sh", "-c", line])
}

/// As [`shell`], insisting on exit code 0.
pub fn shell_ok(node: &Node, domain: &str, line: &str) -> String {
    let run = shell(node, domain, line);
    assert_eq!(
        run.code,
        0,
        "in {domain}: {line}\n--- out\n{}\n--- err\n{}{}{}",
        run.out,
        run.err,
        logs(node, domain),
        node.daemon_log()
    );
    run.out
}

/// The shell line that prints the process id of a role of ours in a guest. It does not find itself,
/// which has a bracket in the word.
pub fn pid_of(role: &str) -> String {
    let (first, rest) = role.split_at(1);
    format!(
        "for p in $(pidof tombolo); do grep -qs '[{first}]{rest}' /proc/$p/cmdline && echo $p; done; true"
    )
}

/// The output of a domain, its guest's console included, to explain a failure.
pub fn logs(node: &Node, domain: &str) -> String {
    format!("\n--- logs of {domain}\n{}", node.run(&["logs", "-n", "60", domain]).out)
}

/// The line of `ps --json` about a domain.
pub fn row(node: &Node, domain: &str) -> Value {
    let rows = node.json(&["ps"]);
    let found = rows.as_array().expect("a list").iter().find(|row| row["domain"] == domain);
    found.unwrap_or_else(|| panic!("ps does not list {domain}: {rows}")).clone()
}

/// Process ids of the QEMUs of a domain: those in its control group.
pub fn qemus(node: &Node, domain: &str) -> Vec<u32> {
    let pid = row(node, domain)["pid"].as_u64().expect("its first process");
    let groups = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = groups(&pid.to_string());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(pid) = name.parse::<u32>() else { continue };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let program = command.split(|&byte| byte == 0).next().unwrap_or_default();
        if String::from_utf8_lossy(program).contains("qemu-system") && groups(&name) == group {
            found.push(pid);
        }
    }
    found
}
