//! One service: a domain of kind `container`.

use crate::names::Names;
use crate::ports::{self, Port};
use crate::text::{duration_ms, interpolated, size, words};
use crate::tree::{Entry, Node, Value};
use crate::{Report, Weight};
use std::fmt::Write as _;

/// The remedy for a network of a service.
const NETWORKS: &str = "a container has only `lo`: other domains reach it by a service of kind `socket` (docs/sockets.md), the network by network = \"host\"";

/// The longest time that a domain may take to be ready, in ms: 10 minutes.
const READY_MS_MAX: u64 = 600_000;

/// A domain that is being put together.
struct Service<'a> {
    key: String,
    names: &'a Names,
    report: &'a mut Report,
    lines: Vec<String>,
    entrypoint: Option<Vec<String>>,
    command: Option<Vec<String>>,
    limits: Vec<(&'static str, String)>,
    stop: Vec<(&'static str, String)>,
    mounts: Vec<String>,
    capabilities: Vec<String>,
    ports: Vec<(usize, Port)>,
    has_network: bool,
    read_only: bool,
    has_image: bool,
}

/// The domain of a service, as a part of a topology file.
pub(crate) fn domain(name: &str, entry: &Entry, names: &Names, report: &mut Report) -> String {
    let mut service = Service {
        key: format!("services.{}", entry.key),
        names,
        report,
        lines: Vec::new(),
        entrypoint: None,
        command: None,
        limits: Vec::new(),
        stop: Vec::new(),
        mounts: Vec::new(),
        capabilities: Vec::new(),
        ports: Vec::new(),
        has_network: false,
        read_only: false,
        has_image: false,
    };
    let Value::Map(entries) = &entry.node.value else {
        service.refuse(entry.line, "", "it is no mapping");
        return String::new();
    };
    for entry in entries {
        service.take(entry);
    }
    service.finish(name, entry.line)
}

/// A text of the topology file.
pub(crate) fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string().trim().to_owned()
}

fn list(texts: &[String]) -> String {
    format!("[{}]", texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(", "))
}

fn table(entries: &[(&str, String)]) -> String {
    format!(
        "{{ {} }}",
        entries.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
    )
}

impl Service<'_> {
    fn say(&mut self, weight: Weight, line: usize, key: &str, message: &str) {
        let key = if key.is_empty() { self.key.clone() } else { format!("{}.{key}", self.key) };
        self.report.say(weight, line, &key, message);
    }

    fn refuse(&mut self, line: usize, key: &str, message: &str) {
        self.say(Weight::Refused, line, key, message);
    }

    fn note(&mut self, line: usize, key: &str, message: &str) {
        self.say(Weight::Note, line, key, message);
    }

    /// A text with its variables replaced.
    fn text(&mut self, node: &Node, key: &str) -> Option<String> {
        let Value::Text(text) = &node.value else {
            self.refuse(node.line, key, "a text is expected here");
            return None;
        };
        match interpolated(text) {
            Ok((text, taken)) => {
                for name in taken {
                    self.note(node.line, key, &format!("the default of the variable {name} is taken"));
                }
                Some(text)
            }
            Err(name) => {
                self.refuse(
                    node.line,
                    key,
                    &format!(
                        "variables are not replaced here: write the value of {name:?} (a dollar sign is `$$`)"
                    ),
                );
                None
            }
        }
    }

    /// A list of texts, or one of them.
    fn texts(&mut self, node: &Node, key: &str) -> Vec<(usize, String)> {
        match &node.value {
            Value::List(items) => {
                items.iter().filter_map(|item| Some((item.line, self.text(item, key)?))).collect()
            }
            Value::Nothing => Vec::new(),
            _ => self.text(node, key).map(|text| (node.line, text)).into_iter().collect(),
        }
    }

    /// A program and its arguments: a list, or a line that is taken apart.
    fn words(&mut self, node: &Node, key: &str) -> Option<Vec<String>> {
        if matches!(node.value, Value::List(_)) {
            return Some(self.texts(node, key).into_iter().map(|(_, text)| text).collect());
        }
        let line = self.text(node, key)?;
        let words = words(&line);
        if words.is_none() {
            self.refuse(node.line, key, "a quotation does not end");
        }
        words
    }

    fn line(&mut self, key: &str, value: &str) {
        self.lines.push(format!("{key} = {value}"));
    }

    fn take(&mut self, entry: &Entry) {
        let (key, node, line) = (entry.key.as_str(), &entry.node, entry.line);
        match key {
            "image" => self.image(node, key),
            "build" => self.refuse(line, key, "images are not built here: build it elsewhere, `docker save NAME:TAG > FILE`, `tombolo image import FILE`, and write image: NAME:TAG"),
            "command" => self.command = self.words(node, key),
            "entrypoint" => self.entrypoint = self.words(node, key),
            "environment" => self.environment(node, key),
            "env_file" => self.env_file(node, key),
            "volumes" => self.volumes(node, key),
            "user" | "hostname" => {
                if let Some(text) = self.text(node, key) {
                    self.line(key, &quoted(&text));
                }
            }
            "working_dir" => {
                if let Some(text) = self.text(node, key) {
                    self.line("workdir", &quoted(&text));
                }
            }
            "read_only" => self.read_only = self.is_true(node, key),
            "restart" => self.restart(node, key),
            "depends_on" => self.depends_on(node, key),
            "network_mode" => self.network(node, key),
            "cap_add" => {
                let names = self.texts(node, key);
                self.capabilities.extend(names.into_iter().map(|(_, name)| name));
            }
            "cap_drop" => self.note(line, key, "a domain keeps no capabilities but those of `cap_add`"),
            "mem_limit" | "cpus" | "pids_limit" | "deploy" | "stop_grace_period" | "stop_signal" => self.bound(node, key, line),
            "healthcheck" => self.health(node, key),
            "tmpfs" => self.tmpfs(node, key),
            "expose" => self.note(line, key, "no port is open to others; services of kind `socket` connect domains (docs/sockets.md)"),
            "ports" => self.ports(node, key),
            "networks" | "links" | "extra_hosts" | "dns" => {
                self.refuse(line, key, "domains have no networks among each other: they connect by services of kind `socket` (docs/sockets.md)");
            }
            "container_name" | "labels" | "logging" | "init" | "pull_policy" | "annotations" => {
                self.note(line, key, "it means nothing here");
            }
            "privileged" => {
                if self.is_true(node, key) {
                    self.refuse(line, key, "a container can't be that: name what it needs in capabilities, or take kind = \"process\"");
                }
            }
            "tty" | "stdin_open" => {
                if self.is_true(node, key) {
                    self.refuse(line, key, "a domain's program has no terminal: `tombolo exec -it` starts one that has");
                }
            }
            "secrets" => self.secrets(node, key),
            "configs" => self.refuse(line, key, "mount its file: mounts = [{ source = \"FILE\", target = \"/run/NAME\" }]"),
            "devices" => self.refuse(line, key, "a container has no devices of the node: what needs them is a process (kind = \"process\")"),
            "extends" => self.refuse(line, key, "put what that service has here"),
            "profiles" => self.refuse(line, key, "all domains of a file are up: put it into a file of its own"),
            "platform" => self.note(line, key, "images are those of the node's processor"),
            key if key.starts_with("x-") => {}
            key => self.refuse(line, key, "no such key is known"),
        }
    }

    fn is_true(&mut self, node: &Node, key: &str) -> bool {
        self.text(node, key).is_some_and(|text| matches!(text.as_str(), "true" | "yes" | "on"))
    }

    fn image(&mut self, node: &Node, key: &str) {
        let Some(mut image) = self.text(node, key) else { return };
        self.has_image = true;
        if !image.rsplit('/').next().unwrap_or_default().contains([':', '@']) {
            image += ":latest";
        }
        self.line("root", &format!("{{ image = {} }}", quoted(&image)));
        if !self.report.images.contains(&image) {
            self.report.images.push(image);
        }
    }

    fn environment(&mut self, node: &Node, key: &str) {
        let mut variables = Vec::new();
        if let Value::Map(entries) = &node.value {
            for entry in entries {
                let key = format!("{key}.{}", entry.key);
                match &entry.node.value {
                    Value::Nothing => {
                        self.refuse(entry.line, &key, "its value is whoever's who runs Compose: write it")
                    }
                    _ => variables.extend(self.text(&entry.node, &key).map(|text| (entry.key.clone(), text))),
                }
            }
        } else {
            for (line, text) in self.texts(node, key) {
                match text.split_once('=') {
                    Some((name, value)) => variables.push((name.to_owned(), value.to_owned())),
                    None => self.refuse(
                        line,
                        &format!("{key}.{text}"),
                        "its value is whoever's who runs Compose: write it",
                    ),
                }
            }
        }
        let mut entries = Vec::new();
        for (name, value) in &variables {
            entries.push(format!("{} = {}", quoted(name), quoted(value)));
        }
        if !entries.is_empty() {
            self.line("environment", &format!("{{ {} }}", entries.join(", ")));
        }
    }

    /// Files of variables: paths, or mappings with a `path`.
    fn env_file(&mut self, node: &Node, key: &str) {
        let one = [node];
        let items: Vec<&Node> = match &node.value {
            Value::List(items) => items.iter().collect(),
            _ => one.to_vec(),
        };
        let mut paths = Vec::new();
        for item in items {
            let Value::Map(entries) = &item.value else {
                paths.extend(self.text(item, key));
                continue;
            };
            for entry in entries {
                let at = format!("{key}.{}", entry.key);
                match entry.key.as_str() {
                    "path" => paths.extend(self.text(&entry.node, &at)),
                    "required" if self.is_true(&entry.node, &at) => {}
                    "required" => self.refuse(entry.line, &at, "a file that is named has to be there"),
                    _ => {
                        self.refuse(entry.line, &at, "files of variables have one format (docs/topology.md)")
                    }
                }
            }
        }
        if paths.is_empty() {
            return;
        }
        if paths.iter().any(|path| !path.starts_with('/')) {
            self.report.relative = true;
        }
        self.note(node.line, key, "nothing is put in the place of `$NAME` in such a file");
        self.line("env_file", &list(&paths));
    }

    /// Secrets by their names; a file of another name or owner there is not.
    fn secrets(&mut self, node: &Node, key: &str) {
        let Value::List(items) = &node.value else {
            return self.refuse(node.line, key, "a list is expected here");
        };
        let mut names = Vec::new();
        for item in items {
            let Value::Map(entries) = &item.value else {
                names.extend(self.text(item, key));
                continue;
            };
            let source = entries.iter().find(|entry| entry.key == "source");
            let Some(source) = source.and_then(|entry| self.text(&entry.node, &format!("{key}.source")))
            else {
                self.refuse(item.line, key, "`source` names the secret");
                continue;
            };
            for entry in entries.iter().filter(|entry| entry.key != "source") {
                let at = format!("{key}.{}", entry.key);
                match entry.key.as_str() {
                    "target" => {
                        let target = self.text(&entry.node, &at).unwrap_or_default();
                        if target.strip_prefix("/run/secrets/").unwrap_or(&target) != source {
                            self.refuse(
                                entry.line,
                                &at,
                                "a secret is a file of its own name in /run/secrets",
                            );
                        }
                    }
                    "uid" | "gid" | "mode" => {
                        self.refuse(
                            entry.line,
                            &at,
                            "all programs of the container read its secrets, and nobody else",
                        );
                    }
                    _ => self.refuse(entry.line, &at, "no such key is known"),
                }
            }
            names.push(source);
        }
        if !names.is_empty() {
            self.line("secrets", &list(&names));
        }
    }

    /// Ports at addresses of the node, in the short form or the long one.
    fn ports(&mut self, node: &Node, key: &str) {
        let Value::List(items) = &node.value else {
            return self.refuse(node.line, key, "a list is expected here");
        };
        for item in items {
            let found = if let Value::Map(entries) = &item.value {
                let known = ["target", "published", "host_ip", "protocol", "mode", "name", "app_protocol"];
                for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
                    self.refuse(entry.line, &format!("{key}.{}", entry.key), "no such key is known");
                }
                let mut of = |name: &str| {
                    let entry = entries.iter().find(|entry| entry.key == name)?;
                    self.text(&entry.node, key)
                };
                let (host, published, target) = (of("host_ip"), of("published"), of("target"));
                let (target, protocol) = (target.unwrap_or_default(), of("protocol"));
                ports::long(host.as_deref(), published.as_deref(), &target, protocol.as_deref())
            } else {
                let Some(text) = self.text(item, key) else { continue };
                ports::short(&text)
            };
            match found {
                Ok(ports) => self.ports.extend(ports.into_iter().map(|port| (item.line, port))),
                Err(why) => self.refuse(item.line, key, why),
            }
        }
    }

    /// The lines of `[publish]`, once it is known what network the domain has.
    fn publish(&mut self, name: &str) {
        for (line, Port { address, target }) in std::mem::take(&mut self.ports) {
            if self.has_network {
                self.note(line, "ports", "it has the node's network, and listens there itself");
            } else {
                let entry =
                    format!("{} = {{ domain = {}, port = {target} }}\n", quoted(&address), quoted(name));
                if self
                    .report
                    .published
                    .iter()
                    .any(|known| known.starts_with(&format!("{} ", quoted(&address))))
                {
                    self.refuse(line, "ports", &format!("{address} is published already"));
                } else {
                    self.report.published.push(entry);
                }
            }
        }
    }

    fn volumes(&mut self, node: &Node, key: &str) {
        let Value::List(items) = &node.value else {
            self.refuse(node.line, key, "a list is expected here");
            return;
        };
        for item in items {
            let (source, target, read_only) = match &item.value {
                Value::Map(entries) => {
                    let mut of = |name: &str| {
                        let entry = entries.iter().find(|entry| entry.key == name)?;
                        self.text(&entry.node, key)
                    };
                    if of("type").is_some_and(|kind| kind != "bind" && kind != "volume") {
                        self.refuse(
                            item.line,
                            key,
                            "/tmp and /run of a container are in memory anyway; nothing else is",
                        );
                        continue;
                    }
                    let read_only = of("read_only").is_some_and(|text| text == "true");
                    (of("source"), of("target"), read_only)
                }
                _ => {
                    let Some(text) = self.text(item, key) else { continue };
                    let mut parts = text.split(':').map(str::to_owned);
                    let (first, second, flags) =
                        (parts.next(), parts.next(), parts.next().unwrap_or_default());
                    let read_only = flags.split(',').any(|flag| flag == "ro");
                    if second.is_none() { (None, first, read_only) } else { (first, second, read_only) }
                }
            };
            self.volume(item.line, key, source, target, read_only);
        }
    }

    fn volume(
        &mut self,
        line: usize,
        key: &str,
        source: Option<String>,
        target: Option<String>,
        read_only: bool,
    ) {
        let Some(target) = target else {
            self.refuse(line, key, "it does not say where in the container");
            return;
        };
        match source {
            Some(source) if source.starts_with(['/', '.']) => {
                self.report.relative |= source.starts_with('.');
                let (source, target) = (quoted(&source), quoted(&target));
                self.mounts.push(format!("{{ source = {source}, target = {target}, read_only = {read_only} }}"));
            }
            Some(source) if source.starts_with('~') => {
                self.refuse(line, key, "`~` is whoever's who runs Compose: write the path");
            }
            Some(source) => self.refuse(
                line,
                key,
                &format!("the named volume {source:?}: make a directory for it and write its path, such as ./{source}:{target}; or take a virtual disk (docs/volumes.md)"),
            ),
            None => self.refuse(line, key, &format!("a volume without a name: what is written to {target} is gone with the domain; make a directory for it, or leave it out")),
        }
    }

    fn restart(&mut self, node: &Node, key: &str) {
        let Some(text) = self.text(node, key) else { return };
        let (policy, retries) = text.split_once(':').unwrap_or((&text, ""));
        let policy = match policy {
            "no" | "false" => "never",
            "always" | "unless-stopped" => "always",
            "on-failure" => "on-failure",
            _ => return self.refuse(node.line, key, "no, always, on-failure[:N] or unless-stopped"),
        };
        let mut entries = vec![("policy", quoted(policy))];
        if retries.parse::<u32>().is_ok() {
            entries.push(("max_retries", retries.to_owned()));
        }
        self.line("restart", &table(&entries));
    }

    fn depends_on(&mut self, node: &Node, key: &str) {
        let wanted: Vec<(usize, String)> = match &node.value {
            Value::Map(entries) => entries.iter().map(|entry| (entry.line, entry.key.clone())).collect(),
            _ => self.texts(node, key),
        };
        let mut after = Vec::new();
        for (line, service) in wanted {
            match self.names.get(&service) {
                Some(name) => after.push(name.to_owned()),
                None => self.refuse(line, key, &format!("there is no service {service:?}")),
            }
        }
        self.line("after", &list(&after));
    }

    fn network(&mut self, node: &Node, key: &str) {
        match self.text(node, key).as_deref() {
            Some("host") => {
                self.has_network = true;
                self.line("network", "\"host\"");
            }
            Some("none") | None => {}
            Some(_) => self.refuse(node.line, key, NETWORKS),
        }
    }

    fn bound(&mut self, node: &Node, key: &str, line: usize) {
        if key == "deploy" {
            return self.deploy(node, key);
        }
        let Some(text) = self.text(node, key) else { return };
        match key {
            "mem_limit" => self.memory(line, key, &text),
            "cpus" => self.limit(line, key, "cpu", &text),
            "pids_limit" => self.limit(line, key, "pids", &text),
            "stop_signal" => {
                let name = text.strip_prefix("SIG").unwrap_or(&text);
                self.stop.push(("signal", quoted(name)));
            }
            _ => match duration_ms(&text) {
                Some(ms) => self.stop.push(("timeout", quoted(&format!("{ms}ms")))),
                None => self.refuse(line, key, "a duration such as 10s or 1m30s"),
            },
        }
    }

    fn memory(&mut self, line: usize, key: &str, text: &str) {
        match size(text) {
            Some(size) => self.limits.push(("memory", quoted(&size))),
            None => self.refuse(line, key, "a size such as 512m or 2g"),
        }
    }

    fn limit(&mut self, line: usize, key: &str, name: &'static str, text: &str) {
        if text.parse::<f64>().is_ok_and(|number| number.is_finite() && number > 0.0) {
            self.limits.push((name, text.to_owned()));
        } else {
            self.refuse(line, key, "a number is expected here");
        }
    }

    fn deploy(&mut self, node: &Node, key: &str) {
        let Value::Map(entries) = &node.value else { return self.refuse(node.line, key, "it is no mapping") };
        for entry in entries {
            let at = format!("{key}.{}", entry.key);
            match (entry.key.as_str(), &entry.node.value) {
                ("resources", Value::Map(parts)) => parts.iter().for_each(|part| self.resources(part, &at)),
                ("replicas", Value::Text(number)) if number == "1" => {}
                ("replicas", _) => self.refuse(entry.line, &at, "a domain is one: write as many domains"),
                ("restart_policy", _) => self.refuse(entry.line, &at, "write it as `restart`"),
                _ => self.note(entry.line, &at, "it means nothing here"),
            }
        }
    }

    fn resources(&mut self, part: &Entry, above: &str) {
        let at = format!("{above}.{}", part.key);
        let (true, Value::Map(limits)) = (part.key == "limits", &part.node.value) else {
            return self.refuse(part.line, &at, "promises are made by `reserve` (docs/reservations.md)");
        };
        for limit in limits {
            let at = format!("{at}.{}", limit.key);
            let Some(text) = self.text(&limit.node, &at) else { continue };
            match limit.key.as_str() {
                "cpus" => self.limit(limit.line, &at, "cpu", &text),
                "memory" => self.memory(limit.line, &at, &text),
                "pids" => self.limit(limit.line, &at, "pids", &text),
                _ => self.refuse(limit.line, &at, "no such limit is known"),
            }
        }
    }

    /// The command of a check becomes how `up` knows that the domain is up, and how it is known
    /// later that it still is.
    fn health(&mut self, node: &Node, key: &str) {
        let Value::Map(entries) = &node.value else { return self.refuse(node.line, key, "it is no mapping") };
        let of = |name: &str| entries.iter().find(|entry| entry.key == name);
        if of("disable").is_some_and(|entry| matches!(&entry.node.value, Value::Text(text) if text == "true"))
        {
            return;
        }
        let Some(test) = of("test") else { return self.refuse(node.line, key, "it has no `test`") };
        let is_line = matches!(test.node.value, Value::Text(_));
        let texts: Vec<String> = self.texts(&test.node, key).into_iter().map(|(_, text)| text).collect();
        let command = match (texts.split_first(), is_line) {
            (Some((line, _)), true) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()],
            (Some((first, rest)), false) if first == "CMD-SHELL" => {
                vec!["/bin/sh".to_owned(), "-c".to_owned(), rest.join(" ")]
            }
            (Some((first, rest)), false) if first == "CMD" => rest.to_vec(),
            (Some((first, _)), false) if first == "NONE" => return,
            _ => return self.refuse(test.line, key, "a line, or a list that begins with CMD or CMD-SHELL"),
        };
        let known = ["test", "interval", "timeout", "retries", "start_period", "start_interval", "disable"];
        for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            self.refuse(entry.line, &format!("{key}.{}", entry.key), "no such key is known");
        }
        let mut times_ms = [("interval", 30_000), ("timeout", 30_000), ("start_period", 0)];
        for (name, ms) in &mut times_ms {
            let at = format!("{key}.{name}");
            let said = of(name).and_then(|entry| Some((entry.line, self.text(&entry.node, &at)?)));
            match said.map(|(line, text)| (line, duration_ms(&text))) {
                None => {}
                Some((_, Some(said_ms))) => *ms = said_ms,
                Some((line, None)) => self.refuse(line, &at, "a duration such as 10s or 1m30s"),
            }
        }
        let [(_, every_ms), (_, timeout_ms), (_, start_ms)] = times_ms;
        let mut fails = 3;
        if let Some(entry) = of("retries") {
            let at = format!("{key}.retries");
            match self.text(&entry.node, &at).map(|text| text.parse::<u32>()) {
                Some(Ok(said)) => fails = said,
                Some(Err(_)) => self.refuse(entry.line, &at, "a number is expected here"),
                None => {}
            }
        }
        // As long as it takes Compose to call it unhealthy.
        let ready_ms = start_ms.saturating_add(every_ms.saturating_mul(fails.into())).min(READY_MS_MAX);
        let ms = |ms: u64| quoted(&format!("{ms}ms"));
        let health = [
            ("command", list(&command)),
            ("every", ms(every_ms)),
            ("timeout", ms(timeout_ms)),
            ("fails", fails.to_string()),
        ];
        self.note(node.line, key, "`up` waits until its test passes; a domain that fails it later, `retries` times in a row, is restarted by its policy");
        self.line("ready", &table(&[("command", list(&command)), ("timeout", ms(ready_ms))]));
        self.line("health", &table(&health));
    }

    fn tmpfs(&mut self, node: &Node, key: &str) {
        for (line, text) in self.texts(node, key) {
            let target = text.split(':').next().unwrap_or_default().trim_end_matches('/').to_owned();
            if !matches!(target.as_str(), "/tmp" | "/run" | "/var/tmp") {
                self.refuse(line, key, &format!("only /tmp, /run and /var/tmp are in memory, not {target}: leave it out, or mount a directory"));
            }
        }
    }

    fn finish(mut self, name: &str, line: usize) -> String {
        self.publish(name);
        if !self.has_image {
            self.refuse(line, "", "it names no image");
        }
        let command = match (self.entrypoint.take(), self.command.take()) {
            (Some(entrypoint), command) => {
                Some(entrypoint.into_iter().chain(command.into_iter().flatten()).collect::<Vec<_>>())
            }
            (None, Some(command)) => {
                self.note(line, "command", "it takes the place of the image's entrypoint, too: where there is one (`tombolo image inspect IMAGE`), put that in front");
                Some(command)
            }
            (None, None) => None,
        };
        let mut out = format!("\n[domain.{name}]\nkind = \"container\"\n");
        for line in &self.lines {
            // Writing to a text can't fail.
            let _ = writeln!(out, "{line}");
        }
        if self.has_image && !self.read_only {
            out += "writable = true\n";
        }
        if let Some(command) = command.filter(|command| !command.is_empty()) {
            let _ = writeln!(out, "command = {}", list(&command));
        }
        if !self.mounts.is_empty() {
            let _ = writeln!(out, "mounts = [{}]", self.mounts.join(", "));
        }
        if !self.capabilities.is_empty() {
            let _ = writeln!(out, "capabilities = {}", list(&self.capabilities));
        }
        for (key, entries) in [("limits", &self.limits), ("stop", &self.stop)] {
            if !entries.is_empty() {
                let _ = writeln!(out, "{key} = {}", table(entries));
            }
        }
        out
    }
}
