//! Guesses at the intention behind a faulty value.

use toml::de::DeValue;

/// Longest part of a foreign text that a message repeats.
const QUOTED_CHARS_MAX: usize = 60;

/// The text in back quotes, cut when it is long.
pub(crate) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    if cut.len() < text.len() { format!("`{cut}…`") } else { format!("`{cut}`") }
}

/// The candidate that `word` is a slip of, if there is one.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let allowed = (lower.chars().count() / 3).max(1);
    // Longer words than any key are no slips; the distance of two long texts also takes long to
    // find.
    if lower.chars().count() > QUOTED_CHARS_MAX {
        return None;
    }
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// "did you mean", or all that is possible.
#[must_use]
pub fn word(word: &str, candidates: &[&str]) -> String {
    match nearest(word, candidates.iter().copied()) {
        Some(candidate) => format!("did you mean `{candidate}`?"),
        None if candidates.is_empty() => "there is none".to_owned(),
        None => format!("possible here: {}", list(candidates)),
    }
}

/// Help for a key that `what` doesn't have, and the key that was meant, if that is clear.
pub(crate) fn key(what: &str, word: &str, known: &[&'static str]) -> (Option<&'static str>, String) {
    let foreign =
        FOREIGN.iter().find(|(place, key, _)| *place == what && *key == word).map(|(_, _, help)| *help);
    let near = nearest(word, known.iter().copied());
    match (foreign, near) {
        (Some(help), _) => {
            // Such a help begins with the key that was meant, if there is one.
            let quoted = help.strip_prefix("did you mean `").and_then(|rest| rest.split('`').next());
            (known.iter().find(|key| Some(**key) == quoted).copied(), help.to_owned())
        }
        (None, Some(candidate)) => (near, format!("did you mean `{candidate}`?")),
        (None, None) => (None, format!("the keys here are {}", list(known))),
    }
}

/// Returns the probable intention behind a value where a list belongs.
pub(crate) fn as_list(value: &DeValue<'_>, words: bool) -> String {
    let DeValue::String(text) = value else {
        return "a list stands in square brackets: [\"first\", \"second\"]".to_owned();
    };
    let cut: String = text.chars().take(QUOTED_CHARS_MAX).collect();
    let parts: Vec<&str> = if words { cut.split_whitespace().collect() } else { vec![&cut] };
    format!(
        "did you mean [{}]?",
        parts.iter().map(|part| format!("\"{part}\"")).collect::<Vec<_>>().join(", ")
    )
}

fn list(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// How a missing key is written.
pub(crate) fn example(what: &str, key: &str) -> String {
    let line = EXAMPLES.iter().find(|(place, name, _)| *place == what && *name == key);
    line.map_or_else(|| format!("add `{key} = ...`"), |(_, _, example)| format!("add {example}"))
}

/// How a table is written where something else stands.
pub(crate) fn as_table(what: &str) -> String {
    let line = TABLES.iter().find(|(place, _)| *place == what).map(|(_, example)| *example);
    line.unwrap_or("a table has keys: { key = value }").to_owned()
}

/// Tables that are written in one line, each with an example.
const TABLES: &[(&str, &str)] = &[
    ("a domain", "a domain has a header of its own: [domain.NAME], then its keys"),
    ("a service", "a service has a header of its own: [service.NAME], then its keys"),
    ("an endpoint", "an endpoint has a header of its own: [endpoint.NAME], then its keys"),
    ("a permission of an endpoint", "{ endpoints = [\"camera\"], verbs = [\"send\"] }"),
    ("limits of endpoints", "{ endpoints = 256, pairs = 1024 }"),
    ("a mount", "{ source = \"data\", target = \"/data\" }"),
    ("a machine", "{ cpus = 2, memory = \"512MiB\" }"),
    ("a disk", "{ path = \"disk.qcow2\", format = \"qcow2\" }"),
    ("a reservation", "{ cpu = { budget = \"16ms\", period = \"40ms\" } }"),
    ("a reservation of processor time", "{ budget = \"16ms\", period = \"40ms\" }"),
    ("a reservation of the network", "{ rate = \"5mbit\", class = \"gold\" }"),
    ("a reservation of the disk", "{ bytes = \"10MB\", operations = 500 }"),
    ("limits", "{ cpu = 0.5, memory = \"64MiB\", pids = 64 }"),
    ("a restart policy", "{ policy = \"on-failure\", backoff = \"200ms\" }"),
    ("log limits", "{ max_size = \"1MiB\", files = 3 }"),
    ("resolv", "{ search = [\"example\"] }"),
    ("stop", "{ signal = \"TERM\", timeout = \"5s\" }"),
    ("readiness", "{ tcp = \"127.0.0.1:8080\" } or { command = [\"program\"] }"),
    ("a permission", "{ domains = [\"web\"], verbs = [\"resolve\"] }"),
    ("a cache", "{ mode = \"private\" }"),
    ("settings of a socket", "{ max_connections = 1024, proxy = false }"),
    ("settings of a channel", "{ ring_bytes = \"256KiB\", mode = \"messages\" }"),
    ("settings of a program", "{ key = value }, with whatever keys the program knows"),
    (
        "names and what they stand for",
        "{ name = value }: services = { dns = \"/srv/dns\" }, environment = { KEY = \"value\" }",
    ),
];

/// Keys of other tools, and what they are called here.
const FOREIGN: &[(&str, &str, &str)] = &[
    ("a topology", "domains", "domains are written one by one: [domain.NAME]"),
    ("a topology", "services", "services are written one by one: [service.NAME]"),
    ("a topology", "container", "a container is a domain: [domain.NAME] with kind = \"container\""),
    ("a topology", "containers", "a container is a domain: [domain.NAME] with kind = \"container\""),
    ("a topology", "version", "the file needs no version"),
    ("a domain", "image", "did you mean `root`? root = { image = \"path of an OCI layout\" }"),
    ("a domain", "rootfs", "did you mean `root`? root = { directory = \"path\" }"),
    ("a domain", "env", "did you mean `environment`?"),
    ("a domain", "binds", "did you mean `mounts`? mounts = [{ source = \"data\", target = \"/data\" }]"),
    ("a domain", "cmd", "did you mean `command`?"),
    ("a domain", "args", "did you mean `command`? The program and its arguments are one list"),
    ("a domain", "entrypoint", "did you mean `command`? The program and its arguments are one list"),
    ("a domain", "exec", "did you mean `command`?"),
    ("a domain", "depends_on", "did you mean `after`?"),
    ("a domain", "requires", "did you mean `after`?"),
    ("a domain", "healthcheck", "did you mean `ready`?"),
    ("a domain", "network_mode", "did you mean `network`?"),
    ("a domain", "net", "did you mean `network`?"),
    ("a domain", "ports", "a domain has no ports of its own: it uses services, or network = \"host\""),
    ("a domain", "dns", "a directory service gives names: services = { NAME = \"/srv/NAME\" }"),
    ("a domain", "search", "did you mean `resolv`? resolv = { search = [\"example\"] }"),
    ("a domain", "cap_add", "did you mean `capabilities`?"),
    ("a domain", "cwd", "did you mean `workdir`?"),
    ("a domain", "working_dir", "did you mean `workdir`?"),
    ("a domain", "privileged", "there is no such switch; name what it needs: capabilities, mounts, network"),
    ("a domain", "read_only", "a root is read-only unless writable = true"),
    (
        "a domain",
        "vm",
        "did you mean `machine`? machine = { cpus = 2, memory = \"512MiB\" }, with kind = \"vm\"",
    ),
    ("a domain", "cpus", "did you mean `limits`? limits = { cpu = 0.5 }; of a vm: machine = { cpus = 2 }"),
    ("a domain", "vcpus", "did you mean `machine`? machine = { cpus = 2 }"),
    ("a domain", "kernel", "did you mean `machine`? machine = { kernel = \"path\", initramfs = \"path\" }"),
    ("a domain", "initrd", "did you mean `machine`? machine = { kernel = \"path\", initramfs = \"path\" }"),
    (
        "a domain",
        "disk",
        "did you mean `machine`? machine = { disk = { path = \"disk.qcow2\", format = \"qcow2\" } }",
    ),
    (
        "a domain",
        "disks",
        "did you mean `machine`? machine = { disk = { path = \"disk.qcow2\", format = \"qcow2\" } }",
    ),
    ("a machine", "cpu", "did you mean `cpus`?"),
    ("a machine", "vcpus", "did you mean `cpus`?"),
    ("a machine", "vcpu", "did you mean `cpus`?"),
    ("a machine", "smp", "did you mean `cpus`?"),
    ("a machine", "mem", "did you mean `memory`?"),
    ("a machine", "ram", "did you mean `memory`?"),
    ("a machine", "initrd", "did you mean `initramfs`?"),
    ("a machine", "cmdline", "did you mean `append`?"),
    ("a machine", "disks", "did you mean `disk`? A machine has one"),
    ("a machine", "image", "did you mean `disk`? disk = { path = \"disk.qcow2\", format = \"qcow2\" }"),
    ("a machine", "acceleration", "did you mean `accel`?"),
    ("a machine", "timeout", "did you mean `boot_timeout`?"),
    ("a machine", "hello_timeout", "did you mean `boot_timeout`?"),
    ("a disk", "file", "did you mean `path`?"),
    ("a disk", "source", "did you mean `path`?"),
    ("a disk", "type", "did you mean `format`?"),
    ("a disk", "driver", "did you mean `format`?"),
    ("a disk", "readonly", "did you mean `read_only`?"),
    ("a disk", "ro", "did you mean `read_only`?"),
    ("a disk", "boot", "did you mean `holds`? holds = \"system\" is a disk that boots by itself"),
    ("a disk", "root", "did you mean `holds`? holds = \"root\" is a file tree for the command"),
    ("a domain", "where", "did you mean `labels`? labels = { disk = \"ssd\" }"),
    ("a domain", "constraints", "did you mean `labels`? labels = { disk = \"ssd\" }"),
    ("a domain", "host", "did you mean `node`?"),
    ("a domain", "placement", "did you mean `node`? node = \"any\", \"spread\" or a node's name"),
    ("a domain", "cpu", "did you mean `limits`? limits = { cpu = 0.5 }"),
    ("a domain", "memory", "did you mean `limits`? limits = { memory = \"64MiB\" }"),
    ("a domain", "pids", "did you mean `limits`? limits = { pids = 64 }"),
    ("a domain", "type", "did you mean `kind`?"),
    ("a service", "type", "did you mean `kind`?"),
    ("a service", "upstream", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "cache", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "timeout", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "retries", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "ring_bytes", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "mode", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "max_channels", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "channels_per_domain", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "proxy", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "max_connections", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "connections_per_domain", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "connections_per_second", "that is a setting: write it below [service.NAME.settings]"),
    ("a service", "at", "did you mean `to`? `at` is where a domain that mounts it sees it"),
    ("a service", "port", "did you mean `to`, such as \"tcp:6379\"?"),
    ("settings of a socket", "connections", "did you mean `max_connections`?"),
    ("settings of a socket", "rate", "did you mean `connections_per_second`?"),
    ("a restart policy", "delay", "did you mean `backoff`?"),
    ("a restart policy", "attempts", "did you mean `max_retries`?"),
    ("limits", "cpus", "did you mean `cpu`?"),
    ("limits", "mem", "did you mean `memory`?"),
    ("a mount", "src", "did you mean `source`?"),
    ("a mount", "dst", "did you mean `target`?"),
    ("a mount", "destination", "did you mean `target`?"),
    ("a mount", "ro", "did you mean `read_only`? It is true where nothing is said"),
    ("a mount", "readonly", "did you mean `read_only`? It is true where nothing is said"),
    ("a mount", "type", "every mount is a bind of a file or directory of the node"),
    ("a cache", "ttl", "did you mean `max_ttl`?"),
    ("a cache", "size", "did you mean `entries`?"),
    ("a cache", "domains", "did you mean `share`?"),
    ("settings of a directory", "upstreams", "did you mean `upstream`?"),
    ("settings of a directory", "servers", "did you mean `upstream`?"),
    ("settings of a directory", "nameservers", "did you mean `upstream`?"),
    ("settings of a channel", "ring", "did you mean `ring_bytes`?"),
    ("settings of a channel", "size", "did you mean `ring_bytes`?"),
    ("settings of a channel", "channels", "did you mean `max_channels`?"),
    ("a topology", "endpoints", "endpoints are written one by one: [endpoint.NAME]"),
    ("an endpoint", "call", "did you mean `calls`?"),
    ("an endpoint", "copy", "did you mean `copies`?"),
    ("an endpoint", "backup", "did you mean `backups`?"),
    ("a service", "backup", "did you mean `backups`?"),
    ("a permission of an endpoint", "endpoint", "did you mean `endpoints`?"),
    ("a permission of an endpoint", "domain", "did you mean `domains`?"),
    ("a permission of an endpoint", "verb", "did you mean `verbs`?"),
    ("limits of endpoints", "memory", "did you mean `bytes`?"),
    ("a permission", "domain", "did you mean `domains`?"),
    ("a permission", "verb", "did you mean `verbs`?"),
];

/// How the keys are written that must be there.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("a topology", "name", "`name = \"quickstart\"` as the file's first line"),
    ("a topology", "domain", "a domain: `[domain.web]`, then its keys"),
    ("a domain", "kind", "`kind = \"container\"`, `kind = \"process\"` or `kind = \"vm\"`"),
    ("a disk", "path", "`path = \"disk.qcow2\"`, a file of the node"),
    ("a disk", "format", "`format = \"qcow2\"` or `format = \"raw\"`: what its bytes are is never guessed"),
    (
        "a service",
        "kind",
        "`kind = \"directory\"`, `kind = \"channel\"`, `kind = \"program\"` or `kind = \"socket\"`",
    ),
    ("a service", "domain", "the domain that runs its backend: `domain = \"resolver\"`"),
    (
        "a service",
        "allow",
        "who may use it: `allow = [{ domains = [\"web\"], verbs = [\"resolve\"] }]`; nobody may unless it is said",
    ),
    ("a service", "settings", "its settings: `[service.NAME.settings]`, then its keys"),
    ("settings of a directory", "upstream", "`upstream = [\"192.0.2.53\"]`, the name servers that it asks"),
    ("an endpoint", "domain", "the domain whose programs may bind it: `domain = \"planner\"`"),
    ("a permission of an endpoint", "verbs", "`verbs = [\"send\"]`"),
    ("a permission", "domains", "`domains = [\"web\"]`, or `domains = \"*\"` for every domain of the file"),
    ("a permission", "verbs", "`verbs = [\"resolve\"]`"),
    ("a mount", "source", "`source = \"data\"`, a file or directory of the node"),
    ("a mount", "target", "`target = \"/data\"`, where the domain sees it"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        assert_eq!(nearest("comand", ["command", "cpu"]), Some("command"));
        assert_eq!(nearest("Kind", ["kind"]), Some("kind"));
        assert_eq!(nearest("zzz", ["kind", "root"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), ["kind"]), None);
    }
}
