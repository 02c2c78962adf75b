//! The state tree's numbers as Prometheus text (exposition format 0.0.4): the same numbers, under
//! names and labels.

use super::help;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Deepest nesting of what frontends and servers say of themselves; deeper numbers are left out.
const MAX_DEPTH: usize = 6;
/// Most series of one family: a peer that invents names can't make the text grow without end.
const MAX_SERIES: usize = 4096;

/// Objects whose keys are names of something, and the label for it.
const NAMES: [(&str, &str); 3] = [("domains", "consumer"), ("services", "service"), ("failures", "errno")];

/// All metrics of a state tree.
pub(crate) fn text(tree: &Value) -> String {
    let mut page = Page::default();
    page.gauge("tombolo_node_info", &[("version", text_of(tree, "/node/version"))], Some(1.0));
    page.gauge("tombolo_node_uptime_seconds", &[], tree.pointer("/node/uptime_s").and_then(Value::as_f64));
    for (dc, container) in entries(tree.get("dc")) {
        for (name, domain) in entries(container.get("domains")) {
            page.domain(dc, name, domain);
        }
        for (name, service) in entries(container.get("services")) {
            page.service(dc, name, service);
        }
        page.ipc(dc, container.get("ipc").unwrap_or(&Value::Null));
        for (name, endpoint) in
            entries(container.get("endpoints")).filter(|(_, of)| of["endpoint"].is_string())
        {
            page.endpoint(dc, name, endpoint);
        }
    }
    for (name, vtm) in entries(tree.pointer("/reserve/vtms")) {
        page.reservation(name, vtm);
    }
    page.adaptations(tree.pointer("/reserve/adaptations").unwrap_or(&Value::Null));
    for target in tree.get("targets").and_then(Value::as_array).into_iter().flatten() {
        page.target(target);
    }
    for (node, link) in entries(tree.get("links")) {
        page.link(node, link);
    }
    page.finish()
}

fn entries(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flatten()
}

fn text_of(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_owned()
}

/// Families in order of their names, each with its series.
#[derive(Default)]
struct Page(BTreeMap<String, (&'static str, Vec<String>)>);

impl Page {
    fn gauge(&mut self, name: &str, labels: &[(&str, String)], value: Option<f64>) {
        self.add(name, "gauge", labels, value);
    }

    fn counter(&mut self, name: &str, labels: &[(&str, String)], value: Option<f64>) {
        self.add(name, "counter", labels, value);
    }

    fn add(&mut self, name: &str, kind: &'static str, labels: &[(&str, String)], value: Option<f64>) {
        let Some(value) = value else { return };
        let (_, series) = self.0.entry(name.to_owned()).or_insert_with(|| (kind, Vec::new()));
        if series.len() < MAX_SERIES {
            series.push(format!("{name}{} {value}", labelled(labels)));
        }
    }

    fn link(&mut self, node: &str, link: &Value) {
        let labels = [("node", node.to_owned())];
        let number = |name: &str| link.get(name).and_then(Value::as_f64);
        let up = link.get("up").and_then(Value::as_bool).unwrap_or(false);
        self.gauge("tombolo_link_up", &labels, Some(f64::from(u8::from(up))));
        self.gauge("tombolo_link_pairs", &labels, number("pairs"));
        self.gauge("tombolo_link_round_trip_seconds", &labels, number("round_trip_ms").map(|ms| ms / 1e3));
        self.counter("tombolo_link_messages_out_total", &labels, number("messages_out"));
        self.counter("tombolo_link_messages_in_total", &labels, number("messages_in"));
        self.counter("tombolo_link_bytes_out_total", &labels, number("bytes_out"));
        self.counter("tombolo_link_bytes_in_total", &labels, number("bytes_in"));
        self.counter("tombolo_proxy_restarts_total", &labels, number("restarts"));
    }

    fn reservation(&mut self, name: &str, vtm: &Value) {
        let labels = [("vtm", name.to_owned())];
        let number = |at: &str| vtm.pointer(at).and_then(Value::as_f64);
        let of = |at: &str| f64::from(u8::from(vtm.pointer(at).and_then(Value::as_bool).unwrap_or(false)));
        self.gauge("tombolo_reservation_in_force", &labels, Some(of("/in_force")));
        self.gauge("tombolo_reservation_suspended", &labels, Some(of("/suspended")));
        let kept_by = text_of(vtm, "/kept_by");
        if !kept_by.is_empty() {
            let info = [labels[0].clone(), ("kept_by", kept_by)];
            self.gauge("tombolo_reservation_info", &info, Some(1.0));
        }
        let caveats = vtm.get("caveats").and_then(Value::as_array).map(|all| all.len() as f64);
        self.gauge("tombolo_reservation_caveats", &labels, caveats);
        for (name, at) in [
            ("cpu_budget_seconds", "/reserve/cpu/budget_ns"),
            ("cpu_period_seconds", "/reserve/cpu/period_ns"),
            ("response_seconds", "/response_ns"),
        ] {
            self.gauge(&format!("tombolo_reservation_{name}"), &labels, number(at).map(|ns| ns / 1e9));
        }
        for (name, at, scale) in [
            ("cpu_seconds_total", "/cpu_us", 1e6),
            ("throttled_periods_total", "/throttled_periods", 1.0),
            ("memory_pressure_seconds_total", "/memory_pressure_us", 1e6),
            ("network_sent_bytes_total", "/network_sent_bytes", 1.0),
            ("network_received_bytes_total", "/network_received_bytes", 1.0),
            ("network_between_bytes_total", "/network_between_bytes", 1.0),
            ("offered_seconds_total", "/dispatched/offered_us", 1e6),
            ("slots_total", "/dispatched/slots", 1.0),
            ("late_slots_total", "/dispatched/late_slots", 1.0),
        ] {
            let value = number(at).map(|value| value / scale);
            self.counter(&format!("tombolo_reservation_{name}"), &labels, value);
        }
        self.gauge("tombolo_reservation_memory_bytes", &labels, number("/memory_bytes"));
        let worst = number("/dispatched/worst_late_us").map(|us| us / 1e6);
        self.gauge("tombolo_reservation_worst_late_seconds", &labels, worst);
    }

    fn adaptations(&mut self, counted: &Value) {
        let number = |at: &str| counted.get(at).and_then(Value::as_f64);
        self.counter("tombolo_adaptations_total", &[], number("made"));
        self.counter("tombolo_adaptations_refused_total", &[], number("refused"));
        for (name, at) in [("decide", "decide_us"), ("commit", "commit_us"), ("effect", "effect_us")] {
            let seconds = number(at).map(|us| us / 1e6);
            self.gauge(&format!("tombolo_adaptation_last_{name}_seconds"), &[], seconds);
        }
    }

    /// A target of a file of a service: times in seconds, a rate in a second.
    fn target(&mut self, target: &Value) {
        let keys = ["dc", "domain", "service", "file", "what"];
        let labels = keys.map(|key| (key, text_of(target, &format!("/{key}"))));
        let is_rate = text_of(target, "/what") == "rate";
        let number = |key: &str| {
            let value = target.get(key).and_then(Value::as_f64)?;
            Some(if is_rate { value } else { value / 1e9 })
        };
        self.gauge("tombolo_target_asked", &labels, number("asked"));
        self.gauge("tombolo_target_found", &labels, number("found"));
        let kept = target.get("kept").and_then(Value::as_bool).map(|kept| f64::from(u8::from(kept)));
        self.gauge("tombolo_target_kept", &labels, kept);
        let misses = target.get("misses").and_then(Value::as_f64);
        self.counter("tombolo_target_misses_total", &labels, misses);
    }

    fn domain(&mut self, dc: &str, name: &str, domain: &Value) {
        let labels = [("dc", dc.to_owned()), ("domain", name.to_owned())];
        let number = |at: &str| domain.pointer(at).and_then(Value::as_f64);
        let state = text_of(domain, "/state");
        self.gauge("tombolo_domain_running", &labels, Some(f64::from(u8::from(state == "running"))));
        self.counter("tombolo_domain_restarts_total", &labels, number("/restarts"));
        self.counter("tombolo_frontend_restarts_total", &labels, number("/frontend/restarts"));
        self.counter("tombolo_domain_cpu_seconds_total", &labels, number("/usage/cpu_ns").map(|ns| ns / 1e9));
        self.gauge("tombolo_domain_memory_bytes", &labels, number("/usage/memory/used_bytes"));
        self.gauge("tombolo_domain_processes", &labels, number("/usage/pids"));
        if domain.pointer("/machine/cpus").is_some() {
            let guest = text_of(domain, "/machine/guest");
            self.gauge("tombolo_guest_running", &labels, Some(f64::from(u8::from(guest == "running"))));
            self.gauge("tombolo_guest_memory_bytes", &labels, number("/machine/memory_bytes"));
        }
        for (service, counts) in entries(domain.pointer("/sockets/relay/serves")) {
            for (consumer, counts) in entries(counts.get("domains")) {
                let mut labels = vec![("dc", dc.to_owned()), ("service", service.clone())];
                labels.push(("consumer", consumer.clone()));
                let number = |name: &str| counts.get(name).and_then(Value::as_f64);
                self.gauge("tombolo_socket_connections", &labels, number("open"));
                self.counter("tombolo_socket_connections_opened_total", &labels, number("opened"));
                self.counter("tombolo_socket_connections_refused_total", &labels, number("refused"));
                self.counter("tombolo_socket_connections_reset_total", &labels, number("reset"));
                self.counter("tombolo_socket_sent_bytes_total", &labels, number("sent_bytes"));
                self.counter("tombolo_socket_received_bytes_total", &labels, number("received_bytes"));
            }
        }
        if let Some(counters) = domain.pointer("/frontend/state") {
            self.numbers("tombolo_frontend", &labels, counters, 0);
        }
    }

    fn service(&mut self, dc: &str, name: &str, service: &Value) {
        let labels = [("dc", dc.to_owned()), ("service", name.to_owned())];
        let up = service.get("up").and_then(Value::as_bool).unwrap_or(false);
        self.gauge("tombolo_service_up", &labels, Some(f64::from(u8::from(up))));
        self.counter(
            "tombolo_service_generation",
            &labels,
            service.get("generation").and_then(Value::as_f64),
        );
        self.gauge(
            "tombolo_service_channels",
            &labels,
            service.get("channels").and_then(Value::as_array).map(|channels| channels.len() as f64),
        );
        let mut info = labels.to_vec();
        info.extend([("kind", text_of(service, "/kind")), ("domain", text_of(service, "/domain"))]);
        self.gauge("tombolo_service_info", &info, Some(1.0));
        self.counter(
            "tombolo_service_channels_opened_total",
            &labels,
            service.get("channels_opened").and_then(Value::as_f64),
        );
        self.consumers(&labels, service);
        if let Some(counters) = service.get("state") {
            self.numbers("tombolo_service", &labels, counters, 0);
        }
    }

    /// Writes the use of a distributed container's limits by its endpoints.
    fn ipc(&mut self, dc: &str, ipc: &Value) {
        let labels = [("dc", dc.to_owned())];
        for of in ["endpoints", "pairs", "bytes", "buffers", "grants"] {
            let number = |which: &str| ipc.get(of)?.get(which)?.as_f64();
            self.gauge(&format!("tombolo_ipc_{of}"), &labels, number("used"));
            self.gauge(&format!("tombolo_ipc_{of}_limit"), &labels, number("limit"));
        }
        for of in ["binds_total", "introductions_total"] {
            self.counter(&format!("tombolo_ipc_{of}"), &labels, ipc.get(of).and_then(Value::as_f64));
        }
    }

    /// An endpoint with a name. Those without one come and go, and would be a family without end.
    fn endpoint(&mut self, dc: &str, name: &str, endpoint: &Value) {
        let labels = [("dc", dc.to_owned()), ("endpoint", name.to_owned())];
        let bound = endpoint["bound"].as_bool().unwrap_or(false);
        self.gauge("tombolo_endpoint_bound", &labels, Some(f64::from(u8::from(bound))));
        for (name, key) in [
            ("peers", "peer_count"),
            ("buffers", "buffer_count"),
            ("grants", "grant_count"),
            ("bytes", "bytes"),
        ] {
            self.gauge(&format!("tombolo_endpoint_{name}"), &labels, endpoint[key].as_f64());
        }
        self.counter("tombolo_endpoint_binds_total", &labels, endpoint["binds"].as_f64());
    }

    /// How many channels each domain has to a service.
    fn consumers(&mut self, labels: &[(&str, String)], service: &Value) {
        let channels = service.get("channels").and_then(Value::as_array).into_iter().flatten();
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for domain in channels.filter_map(|channel| channel.get("domain")?.as_str()) {
            *counts.entry(domain).or_default() += 1;
        }
        for (domain, count) in counts {
            let mut labels = labels.to_vec();
            labels.push(("consumer", domain.to_owned()));
            self.gauge("tombolo_service_consumer_channels", &labels, Some(f64::from(count)));
        }
    }

    /// Every number below `value`, under a name made of its path. Where the keys of an object are
    /// names of something, they become a label.
    fn numbers(&mut self, prefix: &str, labels: &[(&str, String)], value: &Value, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        for (key, value) in entries(Some(value)) {
            let name = format!("{prefix}_{}", metric_name(key));
            let by_name = NAMES.iter().find(|(of, _)| of == key).map(|(_, label)| *label);
            match (value, by_name) {
                (Value::Object(_), _) if key == "counters" => self.numbers(prefix, labels, value, depth + 1),
                (Value::Object(_), Some(label)) => self.named(&name, prefix, labels, value, (label, depth)),
                (Value::Object(_), None) if key == "latency" => self.latency(&name, labels, value, depth),
                (Value::Object(_), None) => self.numbers(&name, labels, value, depth + 1),
                (Value::Number(number), _) => self.gauge(&name, labels, number.as_f64()),
                (Value::Bool(truth), _) => self.gauge(&name, labels, Some(f64::from(u8::from(*truth)))),
                _ => {}
            }
        }
    }

    /// An object whose keys are names: plain numbers go under the object's own name, deeper ones
    /// under the one around it.
    fn named(
        &mut self,
        name: &str,
        prefix: &str,
        labels: &[(&str, String)],
        value: &Value,
        (label, depth): (&str, usize),
    ) {
        for (key, value) in entries(Some(value)) {
            let mut labels = labels.to_vec();
            labels.push((label, key.clone()));
            match value {
                Value::Number(number) => self.gauge(name, &labels, number.as_f64()),
                _ => self.numbers(prefix, &labels, value, depth + 1),
            }
        }
    }

    /// Latencies: numbers, or numbers by service and entrance.
    fn latency(&mut self, name: &str, labels: &[(&str, String)], value: &Value, depth: usize) {
        if entries(Some(value)).any(|(_, value)| value.is_number()) {
            return self.numbers(name, labels, value, depth + 1);
        }
        for (service, entrances) in entries(Some(value)) {
            for (entrance, numbers) in entries(Some(entrances)) {
                let mut labels = labels.to_vec();
                labels.extend([("service", service.clone()), ("entrance", entrance.clone())]);
                self.numbers(name, &labels, numbers, depth + 1);
            }
        }
    }

    fn finish(self) -> String {
        let mut text = String::new();
        for (name, (kind, series)) in self.0 {
            if let Some(help) = help::of(&name) {
                let _infallible = writeln!(text, "# HELP {name} {help}");
            }
            let _infallible = writeln!(text, "# TYPE {name} {kind}");
            for line in series {
                let _infallible = writeln!(text, "{line}");
            }
        }
        text
    }
}

/// `{name="value",...}`, escaped as the format wants it.
fn labelled(labels: &[(&str, String)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels: Vec<_> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", labels.join(","))
}

/// A part of a metric's name: letters, digits, underscores.
fn metric_name(key: &str) -> String {
    const MAX_BYTES: usize = 64;
    let kept = key.chars().take(MAX_BYTES);
    kept.map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_have_names_labels_are_escaped_and_families_stand_together() {
        let tree = json!({
            "node": {"version": "1 \"quoted\" \\ \n", "uptime_s": 5},
            "dc": {"shop": {
                "domains": {"web": {"state": "running", "restarts": 2, "usage": {"cpu_ns": 1_500_000_000_u64},
                    "frontend": {"state": {"counters": {"opens": 3}, "odd name\n": {"deep": 1},
                        "latency": {"dns": {"device": {"p50_ns": 9}}}}}}},
                "services": {"dns": {"up": true, "generation": 4, "channels": [{"domain": "web"}, {"domain": "web"}],
                    "kind": "channel", "domain": "camera", "channels_opened": 7,
                    "state": {"domains": {"we\"b": {"hits": 7, "failures": {"ENOENT": 2}}}}}}
            }}
        });
        let text = text(&tree);
        for line in [
            "tombolo_node_info{version=\"1 \\\"quoted\\\" \\\\ \\n\"} 1",
            "tombolo_domain_running{dc=\"shop\",domain=\"web\"} 1",
            "tombolo_domain_cpu_seconds_total{dc=\"shop\",domain=\"web\"} 1.5",
            "tombolo_frontend_odd_name__deep{dc=\"shop\",domain=\"web\"} 1",
            "tombolo_frontend_opens{dc=\"shop\",domain=\"web\"} 3",
            "tombolo_frontend_latency_p50_ns{dc=\"shop\",domain=\"web\",service=\"dns\",entrance=\"device\"} 9",
            "tombolo_service_failures{dc=\"shop\",service=\"dns\",consumer=\"we\\\"b\",errno=\"ENOENT\"} 2",
            "tombolo_service_channels{dc=\"shop\",service=\"dns\"} 2",
            "tombolo_service_info{dc=\"shop\",service=\"dns\",kind=\"channel\",domain=\"camera\"} 1",
            "tombolo_service_channels_opened_total{dc=\"shop\",service=\"dns\"} 7",
            "tombolo_service_consumer_channels{dc=\"shop\",service=\"dns\",consumer=\"web\"} 2",
            "tombolo_service_hits{dc=\"shop\",service=\"dns\",consumer=\"we\\\"b\"} 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        let families: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let helps = text.lines().filter(|line| line.starts_with("# HELP")).count();
        assert_eq!(helps, families.len(), "a family without a word on it");
        let mut unique = families.clone();
        unique.dedup();
        assert_eq!(families, unique);
    }

    #[test]
    fn endpoints_have_numbers_and_those_without_a_name_none_of_their_own() {
        let tree = json!({"dc": {"shop": {
            "ipc": {"pairs": {"used": 3, "limit": 1024}, "bytes": {"used": 4096, "limit": 65536}, "binds_total": 9},
            "endpoints": {
                "planner": {"endpoint": "planner", "bound": true, "peer_count": 3, "peers": [], "bytes": 4096, "binds": 2},
                "7.1": {"endpoint": null, "bound": true, "peer_count": 1}
            }
        }}});
        let text = text(&tree);
        for line in [
            "tombolo_ipc_pairs{dc=\"shop\"} 3",
            "tombolo_ipc_bytes_limit{dc=\"shop\"} 65536",
            "tombolo_ipc_binds_total{dc=\"shop\"} 9",
            "tombolo_endpoint_bound{dc=\"shop\",endpoint=\"planner\"} 1",
            "tombolo_endpoint_peers{dc=\"shop\",endpoint=\"planner\"} 3",
            "tombolo_endpoint_binds_total{dc=\"shop\",endpoint=\"planner\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
        }
        assert!(!text.contains("7.1"), "{text}");
    }

    #[test]
    fn an_empty_node_has_metrics_too() {
        assert!(text(&json!({})).contains("tombolo_node_info"));
    }
}
