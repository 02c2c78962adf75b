//! The published JSON schema is the one that the types make, admits what the reader admits, and
//! refuses what a schema can refuse.
//!
//! After a change of the file's form, `TOPOLOGY_REGENERATE=1 cargo test -p topology` writes it
//! anew.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Broken files that a schema can't tell from good ones: it knows no other key's value, no node,
/// and no arithmetic.
const BEYOND_A_SCHEMA: &[&str] = &[
    "adaptation-activator-of-nobody",
    "adaptation-contradiction",
    "adaptation-domain-unknown",
    "adaptation-feedback-and-rules",
    "adaptation-feedback-of-rate",
    "adaptation-feedback-without-cpu",
    "adaptation-gives-nothing",
    "adaptation-gives-to-itself",
    "adaptation-gives-what-it-lacks",
    "adaptation-moves-nothing",
    "adaptation-no-gap",
    "adaptation-no-rate",
    "adaptation-no-rules",
    "adaptation-no-service",
    "adaptation-no-step",
    "adaptation-no-targets",
    "adaptation-one-side",
    "adaptation-outside",
    "adaptation-over-period",
    "adaptation-reversed",
    "adaptation-rule-both",
    "adaptation-selector-and-feedback",
    "adaptation-selector-and-rules",
    "adaptation-selector-module",
    "adaptation-selector-of-nobody",
    "adaptation-selector-one-word",
    "adaptation-service-not-mounted",
    "adaptation-service-of-quality",
    "adaptation-takes-back",
    "adaptation-twice",
    "after-cycle",
    "after-itself",
    "after-unknown",
    "allow-domain-unknown",
    "cache-none-bounds",
    "cache-share-missing",
    "cache-share-private",
    "cache-share-stranger",
    "cache-ttl-range",
    "camera-name-taken",
    "camera-name-twice",
    "camera-size-odd",
    "capability-twice",
    "capability-undoing",
    "channel-domain-unknown",
    "channel-in-server",
    "channel-mounted",
    "channel-nothing-to-run",
    "channel-per-domain",
    "channel-ring-power",
    "channel-ring-range",
    "command-and-service",
    "command-nul",
    "command-one-word",
    "command-program-empty",
    "domain-nothing-to-run",
    "endpoint-calls-unknown",
    "endpoint-domain-unknown",
    "endpoint-in-server",
    "endpoint-itself",
    "endpoint-unknown",
    "entrance-resolv-no-stub",
    "entrance-rivals",
    "entrance-stub-host",
    "entrance-stub-process",
    "env-file-missing",
    "env-file-wrong-line",
    "environment-own",
    "environment-preload",
    "events-filter-field",
    "events-format",
    "events-made-subscribers",
    "events-subscriber-both",
    "events-subscriber-filter",
    "events-subscriber-may-not",
    "events-subscriber-module",
    "ipc-anonymous",
    "ipc-ring-power",
    "lacks",
    "layer-read-only",
    "limits-memory-range",
    "location-name-auto",
    "location-name-twice",
    "location-ports-alike",
    "location-range-error-of-signals",
    "location-survey-missing",
    "location-survey-of-satellites",
    "log-size-range",
    "machine-append-disk",
    "machine-append-line",
    "machine-append-long",
    "machine-disk-missing",
    "machine-disk-shared",
    "machine-initramfs-alone",
    "machine-kernel-file",
    "machine-kernel-missing",
    "machine-limit",
    "machine-memory-range",
    "machine-memory-step",
    "machine-of-container",
    "machine-pids",
    "memory-kind",
    "memory-range",
    "memory-too-many",
    "mount-hides-control",
    "mount-missing",
    "mount-over-control",
    "mount-over-proc",
    "mount-over-resolv",
    "mount-over-root",
    "mount-over-srv",
    "mount-service-none",
    "mount-service-not-allowed",
    "mount-service-same-place",
    "mount-service-self",
    "mount-service-unknown",
    "mount-twice",
    "node-elsewhere",
    "process-hostname",
    "process-layer",
    "process-mounts",
    "process-network",
    "process-root",
    "process-userns",
    "process-writable",
    "program-domain-unknown",
    "program-in-server",
    "program-mount-forbidden",
    "program-nothing-to-run",
    "program-settings-deep",
    "program-settings-number",
    "program-stub",
    "publish-guest",
    "publish-multicast",
    "publish-node-network",
    "publish-port-zero",
    "publish-too-many",
    "publish-twice",
    "publish-unknown-domain",
    "ready-both",
    "ready-nothing",
    "ready-server",
    "ready-tcp-none",
    "reserve-cpu-and-limit",
    "reserve-cpu-deadline-short",
    "reserve-cpu-over-period",
    "reserve-cpu-period-long",
    "reserve-cpu-zero",
    "reserve-io-nothing",
    "reserve-job-both",
    "reserve-job-deadline",
    "reserve-job-neither",
    "reserve-job-thread-long",
    "reserve-jobs-enforce",
    "reserve-jobs-in-turn",
    "reserve-jobs-none",
    "reserve-jobs-vm",
    "reserve-jobs-without-cpu",
    "reserve-memory-over-limit",
    "reserve-network-ceiling",
    "reserve-network-lo",
    "reserve-network-range",
    "reserve-not-kept-cpu",
    "reserve-not-kept-io",
    "reserve-not-kept-job",
    "reserve-not-kept-memory",
    "reserve-not-kept-network",
    "reserve-not-kept-processor",
    "reserve-nothing",
    "reserve-outside-deadline",
    "restart-backoff-range",
    "restart-never-elsewhere",
    "restart-order",
    "restart-silent",
    "root-image-missing",
    "root-image-unpulled",
    "root-is-file",
    "root-is-node",
    "root-missing",
    "service-backups-kind",
    "service-backups-server",
    "service-domain-unknown",
    "settings-search-twice",
    "socket-at-elsewhere",
    "socket-at-entrance",
    "socket-at-host",
    "socket-at-missing",
    "socket-at-reserved",
    "socket-at-srv",
    "socket-at-twice",
    "socket-domain-unknown",
    "socket-in-server",
    "socket-loop",
    "socket-loop-of-two",
    "socket-name-unanswered",
    "socket-not-allowed",
    "socket-nothing-to-run",
    "socket-per-domain",
    "socket-to-elsewhere",
    "socket-to-long",
    "socket-to-of-channel",
    "socket-to-place",
    "socket-to-port",
    "socket-to-relative",
    "stop-timeout",
    "top-domain-empty",
    "upstream-no-network",
    "upstream-nobody",
    "upstream-twice",
    "userns-network",
    "vm-capabilities",
    "vm-mounts",
    "vm-ready-tcp",
    "vm-root",
    "vm-secrets",
    "vm-userns",
    "volume-at-in-vm",
    "volume-elsewhere",
    "volume-long-in-vm",
    "volume-of-process",
    "volume-over-srv",
    "volume-replicas-memory",
    "volume-same-place",
    "volume-shared",
    "volume-size-range",
    "volume-size-step",
    "volume-unknown",
    "volume-unused",
    "workdir-missing",
    "workdir-relative",
    "writable-host",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn json(toml: &str) -> Value {
    toml::from_str(toml).unwrap()
}

#[test]
fn the_published_schema_is_that_of_the_types() {
    let path = root().join("docs/topology.schema.json");
    let text = format!("{}\n", serde_json::to_string_pretty(&topology::schema()).unwrap());
    if std::env::var_os("TOPOLOGY_REGENERATE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "regenerate docs/topology.schema.json");
}

#[test]
fn the_example_is_valid() {
    let validator = jsonschema::validator_for(&topology::schema()).unwrap();
    let example = fs::read_to_string(root().join("examples/quickstart/topology.toml")).unwrap();
    let errors: Vec<String> = validator.iter_errors(&json(&example)).map(|error| error.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
}

#[test]
fn a_schema_refuses_what_a_schema_can() {
    let validator = jsonschema::validator_for(&topology::schema()).unwrap();
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/broken");
    let mut admitted = Vec::new();
    for entry in fs::read_dir(broken).unwrap() {
        let path = entry.unwrap().path();
        // What is no TOML at all never reaches a schema.
        let Ok(value) = toml::from_str::<Value>(&fs::read_to_string(&path).unwrap()) else { continue };
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_some_and(|e| e == "toml") && validator.is_valid(&value) {
            admitted.push(name);
        }
    }
    admitted.sort();
    assert_eq!(admitted, BEYOND_A_SCHEMA);
}
