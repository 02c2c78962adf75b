//! The capabilities of this machine, for the state tree and for messages.

use super::machines;
use domain::Layout;
use serde_json::{Value, json};
use std::path::Path;

/// The programs that containers need one of.
const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// The machine, as far as it decides what a node can do. `wake_ns`: what a wake-up across
/// processors costs.
pub(crate) fn report(layout: &Layout, wake_ns: Option<u32>) -> Value {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    json!({
        "kernel": text(uname.release()),
        "machine": text(uname.machine()),
        "name": text(uname.nodename()),
        "processors": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "wake_ns": wake_ns,
        "fuse": Path::new("/dev/fuse").exists(),
        "cgroup_v2": Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        "runtimes": RUNTIMES.iter().filter(|name| domain::find_program(name).is_some()).collect::<Vec<_>>(),
        "qemu": machines::qemu(),
        "kvm_device": Path::new("/dev/kvm").exists(),
        "program": layout.program,
        "missing": domain::check_host(layout),
    })
}

/// Returns advice on the things that this machine lacks, for a domain that could not be started.
pub(crate) fn advice(host: &Value) -> Option<String> {
    let missing = host.get("missing").and_then(Value::as_array)?;
    let text = |item: &Value, key: &str| item.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let lines: Vec<String> = missing
        .iter()
        .map(|item| {
            format!(
                "this machine lacks {} ({}): {}",
                text(item, "what"),
                text(item, "why"),
                text(item, "how_to_get")
            )
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n  "))
}
