//! Programs that nobody has changed, in containers that have only `lo`: their own benchmarks count
//! what came wrong.

use crate::sockets::{container, unpacked};
use e2e::{Node, wait};
use std::path::Path;

const PGBIN: &str = "/opt/postgresql/usr/lib/postgresql/15/bin";

/// The user `nobody` of Debian.
const NOBODY: u32 = 65_534;

fn service(name: &str, host: &str, to: &str) -> String {
    format!(
        "\n[service.{name}]\nkind = \"socket\"\ndomain = \"{host}\"\nto = \"{to}\"\n\
         allow = [{{ domains = [\"client\"], verbs = [\"connect\"] }}]\n"
    )
}

/// The money of a bank is the same in all of its tables, if each transaction was done once and
/// whole.
const BALANCES: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history) AND \
                        (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers), \
                        (SELECT count(*) FROM pgbench_history)";

#[test]
fn pgbench_keeps_a_bank_in_postgresql() {
    let Some(postgresql) = unpacked("postgresql") else { return };
    let Some(node) = Node::start() else { return };
    // Postgres does not run as root, and wants a folder that is its own.
    let data = node.folder().join("data");
    std::fs::create_dir(&data).expect("a folder");
    std::os::unix::fs::chown(&data, Some(NOBODY), None).expect("we are root");
    let mount =
        format!("mounts = [{{ source = \"{}\", target = \"/data\", read_only = false }}, ", data.display());
    let start = format!(
        "[ -e /data/bank/PG_VERSION ] || {PGBIN}/initdb -D /data/bank -A trust -U shop --no-sync >/dev/null && exec {PGBIN}/postgres -D /data/bank -k /data \
         -c listen_addresses=127.0.0.1 -c dynamic_shared_memory_type=mmap -c fsync=off"
    );
    let text = "name = \"shop\"\n".to_owned()
        + &container(
            "bank",
            &format!("[\"bash\", \"-c\", \"{start}\"]"),
            &format!("user = \"nobody\"\n{}", postgresql.replace("mounts = [", &mount)),
        )
        + &container(
            "client",
            "[\"sleep\", \"infinity\"]",
            &format!(
                "{postgresql}\nservices = {{ local = {{ at = \"unix:/run/.s.PGSQL.5432\" }}, tcp = {{ at = \"tcp:5432\" }} }}"
            ),
        )
        + &service("local", "bank", "unix:/data/.s.PGSQL.5432")
        + &service("tcp", "bank", "tcp:5432");
    node.up_ok(&text);
    let psql = |host: &str, sql: &str| {
        node.shell("client", &format!("{PGBIN}/psql -h {host} -U shop -d postgres -XAtc '{sql}'"))
    };
    for host in ["/run", "127.0.0.1"] {
        wait::until("the bank is open", || psql(host, "SELECT 1").out.trim() == "1");
    }
    node.shell_ok("client", &format!("{PGBIN}/pgbench -h /run -U shop -i -q postgres"));
    // A connection for each transaction on the one way, few for many of them on the other.
    for (host, more) in [("/run", "-c 4 -t 50"), ("127.0.0.1", "-c 4 -t 25 -C")] {
        let said = node.shell_ok("client", &format!("{PGBIN}/pgbench -h {host} -U shop -n {more} postgres"));
        assert!(said.contains("number of failed transactions: 0"), "{said}");
    }
    assert_eq!(psql("127.0.0.1", BALANCES).out.trim(), "t|300");
}

#[test]
fn wrk_and_clients_of_both_versions_of_http_are_served_by_nginx() {
    let (Some(nginx), Some(wrk)) = (unpacked("nginx"), unpacked("wrk")) else { return };
    let Some(node) = Node::start() else { return };
    let config = node.folder().join("nginx.conf");
    write_configuration(&config);
    let config = config.display();
    let nginx = nginx
        .replace("mounts = [", &format!("mounts = [{{ source = \"{config}\", target = \"{config}\" }}, "));
    let command = format!("[\"/opt/nginx/usr/sbin/nginx\", \"-e\", \"stderr\", \"-c\", \"{config}\"]");
    let text = "name = \"shop\"\n".to_owned()
        + &container("web", &command, &nginx)
        + &container(
            "client",
            "[\"sleep\", \"infinity\"]",
            &format!("{wrk}\nservices = {{ one = {{ at = \"tcp:80\" }}, two = {{ at = \"tcp:82\" }} }}"),
        )
        + &service("one", "web", "tcp:8080")
        + &service("two", "web", "tcp:8082");
    node.up_ok(&text);
    let curl = |words: &str| node.shell("client", &format!("curl -fsS -m 30 {words}"));
    for port in [80, 82] {
        let words = format!("--http2-prior-knowledge http://127.0.0.1:{port}/hostname");
        let words = if port == 80 { words.replace("--http2-prior-knowledge ", "") } else { words };
        wait::until("nginx answers", || !curl(&words).out.is_empty());
    }
    let sum = node.shell_ok("web", "sha256sum < /usr/bin/curl");
    // Each version once is enough: what is asked for is longer than a window.
    assert_eq!(curl("--http2-prior-knowledge http://127.0.0.1:82/curl | sha256sum").out, sum);
    assert_eq!(curl("http://127.0.0.1/curl | sha256sum").out, sum);
    let run = "/opt/wrk/usr/bin/wrk -t1 -c50 -d2s http://127.0.0.1/hostname";
    let said = node.shell_ok("client", run);
    assert!(said.contains("Requests/sec:"), "{said}");
    assert!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
}

fn write_configuration(file: &Path) {
    let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let places = places.map(|name| format!("{name}_temp_path /tmp/{name};")).concat();
    let text = format!(
        "daemon off; master_process off; user root root; pid /tmp/nginx.pid; error_log stderr; events {{}}\n\
         http {{ access_log off; keepalive_requests 1000000; {places}\n\
         server {{ listen 127.0.0.1:8080; listen 127.0.0.1:8082 http2;\n\
         location / {{ return 200 \"here\\n\"; }} location /curl {{ alias /usr/bin/curl; }} }} }}\n"
    );
    std::fs::write(file, text).expect("written");
}
