//! A real Prometheus reads a node's metrics, knows each query of the dashboard, and takes the
//! alerts.

use e2e::{Node, free_port, node, wait};
use serde_json::Value;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _collected = self.0.wait();
    }
}

fn free_address() -> String {
    format!("127.0.0.1:{}", free_port())
}

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(file)
}

/// The program of Prometheus that `make deps` unpacked.
fn unpacked(name: &str) -> PathBuf {
    node::target().join("debian/prometheus/usr/bin").join(name)
}

/// The answer of Prometheus' API at `path`, which is JSON also where it is a refusal.
fn ask(at: &str, path: &str, query: Option<&str>) -> Value {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-m", "20", "-G"]).arg(format!("http://{at}/api/v1/{path}"));
    if let Some(query) = query {
        curl.arg("--data-urlencode").arg(format!("query={query}"));
    }
    let got = curl.output().expect("curl runs");
    serde_json::from_slice(&got.stdout).unwrap_or(Value::Null)
}

/// The value of the only series that a query has.
fn value(at: &str, query: &str) -> Option<String> {
    let answer = ask(at, "query", Some(query));
    Some(answer.pointer("/data/result/0/value/1")?.as_str()?.to_owned())
}

/// Every query of the dashboard, as Grafana would ask it.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(packaging("grafana/tombolo.json")).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let asked = targets.filter_map(|target| target["expr"].as_str());
    asked.map(|query| query.replace("$__rate_interval", "1m").replace("$node", ".*")).collect()
}

#[test]
fn prometheus_reads_the_metrics_and_takes_the_dashboard_and_the_alerts() {
    let Some(node) = Node::start() else { return };
    let lacking = ["prometheus", "promtool"].into_iter().find(|name| !unpacked(name).exists());
    if let Some(name) = lacking {
        println!("skipped: needs {name}; run `make deps`");
        return;
    }
    let (metrics, at) = (free_address(), free_address());
    let mut daemon = node.command(&["daemon", "--metrics", &metrics]);
    let _daemon = Ends(daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("a daemon"));
    wait::until("the daemon serves its metrics", || TcpStream::connect(&metrics).is_ok());
    node.up_ok("name = \"shop\"\n[domain.web]\nkind = \"process\"\ncommand = [\"sleep\", \"600\"]\n");

    let rules = packaging("prometheus/tombolo.rules.yml");
    let checked = Command::new(unpacked("promtool")).args(["check", "rules"]).arg(&rules).output();
    let checked = checked.expect("promtool runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));

    let settings = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{}]\n\
         scrape_configs:\n- job_name: tombolo\n  static_configs: [{{ targets: [\"{metrics}\"] }}]\n",
        rules.display()
    );
    let file = node.folder().join("prometheus.yml");
    std::fs::write(&file, settings).expect("settings");
    let mut prometheus = Command::new(unpacked("prometheus"));
    prometheus
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", node.folder().join("prometheus").display()))
        .arg(format!("--web.listen-address={at}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _prometheus = Ends(prometheus.spawn().expect("prometheus runs"));

    let running = "tombolo_domain_running{job=\"tombolo\",dc=\"shop\",domain=\"web\"}";
    wait::until("Prometheus has read them", || value(&at, running).as_deref() == Some("1"));
    assert_eq!(value(&at, "up{job=\"tombolo\"}").as_deref(), Some("1"));
    let queries = queries();
    assert!(queries.len() > 20, "{queries:?}");
    for query in queries {
        let answer = ask(&at, "query", Some(&query));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
    }
    // A domain that was stopped is on its way to an alert.
    node.ok(&["stop", "web"]);
    let state = |alert: &str| -> Option<String> {
        let answer = ask(&at, "rules", None);
        let rules = answer.pointer("/data/groups/0/rules")?.as_array()?.clone();
        assert!(rules.iter().all(|rule| rule["health"] != "err"), "{answer}");
        let rule = rules.iter().find(|rule| rule["name"] == alert)?;
        Some(rule["state"].as_str()?.to_owned())
    };
    wait::until("the alert waits for its time", || state("TomboloDomainDown").as_deref() == Some("pending"));
    assert_eq!(state("TomboloNodeGone").as_deref(), Some("inactive"));
}

/// Makes an authority `NAME-ca.pem`, and of it a certificate and a key for 127.0.0.1.
fn certify(folder: &Path, name: &str) {
    let line = format!(
        "cd '{}' && new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2' && \
         openssl req -x509 $new -subj /CN={name}-ca -keyout {name}-ca.key -out {name}-ca.pem && \
         openssl req -x509 $new -subj /CN={name} -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
         -CA {name}-ca.pem -CAkey {name}-ca.key -keyout {name}.key -out {name}.pem",
        folder.display()
    );
    let made = Command::new("sh").args(["-c", &line]).output().expect("openssl runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn metrics_go_over_the_network_by_https_alone_and_to_whom_the_authorities_know() {
    let Some(node) = Node::start() else { return };
    let file = |name: &str| node.folder().join(name).display().to_string();
    certify(node.folder(), "node");
    certify(node.folder(), "reader");
    let refused = node.run(&["daemon", "--metrics", "0.0.0.0:9464"]);
    assert!(refused.code == 1 && refused.err.contains("--metrics-certificate FILE"), "{}", refused.err);
    assert_eq!(node.run(&["daemon", "--metrics", "0.0.0.0:9464", "--metrics-key", "k"]).code, 2);
    let (certificate, key, clients) = (file("node.pem"), file("node.key"), file("reader-ca.pem"));
    let daemon = |at: &str, certificate: &str| {
        let files =
            ["--metrics-certificate", certificate, "--metrics-key", &key, "--metrics-clients", &clients];
        node.command(&[&["daemon", "--metrics", at][..], &files[..]].concat())
    };
    let refused = daemon("127.0.0.1:0", &clients).output().expect("tombolo starts");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("can't be served by HTTPS"), "{refused:?}");
    let port = free_port();
    let mut daemon = daemon(&format!("127.0.0.1:{port}"), &certificate);
    let _daemon = Ends(daemon.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("a daemon"));
    wait::until("the daemon serves its metrics", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let get = |scheme: &str, arguments: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "-m", "20"]).args(arguments).arg(format!("{scheme}://127.0.0.1:{port}/metrics"));
        let got = curl.output().expect("curl runs");
        got.status.success().then(|| String::from_utf8_lossy(&got.stdout).into_owned())
    };
    let (authority, stranger) = (file("node-ca.pem"), file("reader-ca.pem"));
    let (own, own_key) = (file("reader.pem"), file("reader.key"));
    let known = ["--cacert", &authority, "--cert", &own, "--key", &own_key];
    let metrics = || get("https", &known).is_some_and(|page| page.contains("tombolo_node_info"));
    assert!(metrics());
    assert_eq!(get("https", &["--cacert", &authority]), None, "a reader without a certificate");
    let node_pair = ["--cacert", &authority, "--cert", &certificate, "--key", &key];
    assert_eq!(get("https", &node_pair), None, "a certificate of another authority");
    assert_eq!(
        get("https", &["--cacert", &stranger, "--cert", &own, "--key", &own_key]),
        None,
        "another node"
    );
    assert_eq!(get("http", &[]), None, "in clear");
    // Another certificate counts from the next reader on.
    certify(node.folder(), "node");
    wait::until("the new certificate is shown", metrics);
    node.kill_daemon();
}
