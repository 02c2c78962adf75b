//! The default system-call filter of a container. `docs/adr/0003-what-a-container-is-made-of.md`
//! says what is left out and why.

use crate::error::Result;
use crate::privilege::capability_name;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::OnceLock;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    #[serde(rename = "about")]
    _about: String,
    /// Calls that are always let through.
    allow: Vec<String>,
    /// Rules as the OCI runtime takes them, about arguments.
    conditional: Vec<Value>,
    /// Calls that make no sense without a capability, and are let through with it.
    with_capability: BTreeMap<String, Vec<String>>,
}

fn profile() -> &'static Profile {
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    PROFILE.get_or_init(|| {
        // The text is part of this crate, and a test reads it.
        serde_json::from_str(include_str!("seccomp.json")).expect("the profile in this crate is well-formed")
    })
}

/// The filter for a container that keeps `capabilities`, as the OCI runtime specification's
/// `linux.seccomp`.
pub(crate) fn filter(capabilities: &[String]) -> Result<Value> {
    let profile = profile();
    let mut names: Vec<&str> = profile.allow.iter().map(String::as_str).collect();
    for name in capabilities {
        let more = profile.with_capability.get(&capability_name(name)?);
        names.extend(more.into_iter().flatten().map(String::as_str));
    }
    let mut rules = vec![json!({ "names": names, "action": "SCMP_ACT_ALLOW" })];
    rules.extend(profile.conditional.iter().cloned());
    Ok(json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": rustix::io::Errno::PERM.raw_os_error(),
        "architectures": [architecture()],
        "syscalls": rules,
    }))
}

/// Only the machine's own: the calls of others (such as 32-bit ones) are where old holes are.
const fn architecture() -> &'static str {
    if cfg!(target_arch = "x86_64") {
        "SCMP_ARCH_X86_64"
    } else if cfg!(target_arch = "aarch64") {
        "SCMP_ARCH_AARCH64"
    } else if cfg!(target_arch = "riscv64") {
        "SCMP_ARCH_RISCV64"
    } else {
        "SCMP_ARCH_NATIVE"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_calls_need_a_capability() {
        let plain = filter(&[]).expect("filter").to_string();
        for call in
            ["mount", "unshare", "setns", "bpf", "keyctl", "userfaultfd", "perf_event_open", "kexec_load"]
        {
            assert!(!plain.contains(&format!("\"{call}\"")), "{call}");
        }
        let with = filter(&["sys_admin".to_owned()]).expect("filter").to_string();
        assert!(with.contains("\"mount\"") && !with.contains("\"kexec_load\""));
    }
}
