//! Files as people write them: what becomes of each, and that what becomes of them is a topology
//! file.

use compose::{Converted, Weight, convert};
use std::path::Path;

/// Converts, and reads the outcome as a topology file; it must be one.
fn converted(text: &str) -> Converted {
    let converted = convert(text, "shop").unwrap_or_else(|finding| panic!("{finding:?}"));
    if let Err(diagnostics) = topology::parse(&converted.text, "made.toml", Path::new("/base")) {
        panic!("{}\n{}", converted.text, diagnostics.render(false));
    }
    converted
}

/// The refusals, each as `LINE KEY`.
fn refused(converted: &Converted) -> Vec<String> {
    let refused = converted.findings.iter().filter(|finding| finding.weight == Weight::Refused);
    refused.map(|finding| format!("{} {}", finding.line, finding.key)).collect()
}

#[test]
fn a_web_site_with_a_database() {
    let done = converted(
        r#"
name: Blog_Site
services:
  web:
    image: ghcr.io/example/blog:5
    command: ["serve", "--listen", "0.0.0.0:3000"]
    environment:
      - DATABASE_URL=postgres://blog:secret@db/blog
      - WORKERS=4
    volumes:
      - ./content:/content
      - ./site.conf:/etc/site.conf:ro
    depends_on: [db]
    restart: unless-stopped
    mem_limit: 512m
    ports:
      - "8080:3000"
  db:
    image: postgres:16-alpine
    environment:
      POSTGRES_USER: blog
      POSTGRES_PASSWORD: "secret"
    volumes:
      - pgdata:/var/lib/postgresql/data
    healthcheck:
      test: ["CMD-SHELL", "pg_isready -U blog"]
      interval: 5s
    stop_grace_period: 1m30s
volumes:
  pgdata:
"#,
    );
    assert_eq!(refused(&done), ["24 services.db.volumes", "29 volumes"]);
    assert_eq!(done.images, ["ghcr.io/example/blog:5", "postgres:16-alpine"]);
    for line in [
        "name = \"blog-site\"",
        "root = { image = \"postgres:16-alpine\" }",
        "command = [\"serve\", \"--listen\", \"0.0.0.0:3000\"]",
        "environment = { \"DATABASE_URL\" = \"postgres://blog:secret@db/blog\", \"WORKERS\" = \"4\" }",
        "{ source = \"./content\", target = \"/content\", read_only = false }",
        "{ source = \"./site.conf\", target = \"/etc/site.conf\", read_only = true }",
        "after = [\"db\"]",
        "restart = { policy = \"always\" }",
        "limits = { memory = \"512MiB\" }",
        "ready = { command = [\"/bin/sh\", \"-c\", \"pg_isready -U blog\"], timeout = \"15000ms\" }",
        "health = { command = [\"/bin/sh\", \"-c\", \"pg_isready -U blog\"], every = \"5000ms\", timeout = \"30000ms\", fails = 3 }",
        "[publish]\n\"0.0.0.0:8080\" = { domain = \"web\", port = 3000 }\n",
        "stop = { timeout = \"90000ms\" }",
        "writable = true",
    ] {
        assert!(done.text.contains(line), "{line}\n{}", done.text);
    }
}

#[test]
fn workers_that_share_what_they_have_by_anchors() {
    let done = converted(
        r#"
x-worker: &worker
  image: registry.example.org:5000/team/worker
  entrypoint: /usr/bin/worker --queue
  user: "1000:1000"
  working_dir: /srv-data
  read_only: true
  environment: &env
    LOG_LEVEL: ${LOG_LEVEL:-info}
    PRICE: "5$$"
services:
  mail_worker:
    <<: *worker
    command: mail "with space"
    environment:
      <<: *env
      EXTRA: 1
  bill_worker:
    <<: *worker
    deploy:
      resources:
        limits: { cpus: "0.5", memory: 256M, pids: 100 }
      replicas: 1
    cap_add: [NET_BIND_SERVICE]
    cap_drop: [ALL]
    restart: on-failure:3
    stop_signal: SIGINT
    tmpfs: /tmp
"#,
    );
    assert_eq!(refused(&done), [""; 0]);
    for line in [
        "[domain.mail-worker]",
        "root = { image = \"registry.example.org:5000/team/worker:latest\" }",
        "command = [\"/usr/bin/worker\", \"--queue\", \"mail\", \"with space\"]",
        "\"EXTRA\" = \"1\", \"LOG_LEVEL\" = \"info\", \"PRICE\" = \"5$\"",
        "command = [\"/usr/bin/worker\", \"--queue\"]\n",
        "limits = { cpu = 0.5, memory = \"256MiB\", pids = 100 }",
        "restart = { policy = \"on-failure\", max_retries = 3 }",
        "stop = { signal = \"INT\" }",
        "capabilities = [\"NET_BIND_SERVICE\"]",
        "user = \"1000:1000\"",
        "workdir = \"/srv-data\"",
    ] {
        assert!(done.text.contains(line), "{line}\n{}", done.text);
    }
    assert!(!done.text.contains("writable"), "both are read-only");
    assert_eq!(done.images.len(), 1);
    assert!(
        done.findings.iter().any(|finding| finding.message.contains("default of the variable LOG_LEVEL"))
    );
}

#[test]
fn a_home_server_on_the_network_of_its_machine() {
    let done = converted(
        "services:\n  hub:\n    container_name: hub\n    image: hub@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n    network_mode: host\n    privileged: false\n    volumes:\n      - type: bind\n        source: /opt/hub\n        target: /config\n        read_only: true\n",
    );
    assert_eq!(refused(&done), [""; 0]);
    assert!(
        done.text.contains("network = \"host\"") && done.text.contains("read_only = true }"),
        "{}",
        done.text
    );
}

#[test]
fn each_key_that_can_not_be_mapped_is_named_with_its_line_and_what_to_do() {
    let cases = [
        ("build: .", "tombolo image import"),
        ("env_file: [{ path: .env, required: false }]", "has to be there"),
        ("env_file: [{ path: .env, format: raw }]", "one format"),
        ("ports: [80]", "the node's port is not said"),
        ("ports: [\"53:53/udp\"]", "for TCP alone"),
        ("ports: [{ target: 80, published: 8080, colour: 1 }]", "no such key"),
        ("ports: 80:80", "a list"),
        ("networks: [back]", "`socket`"),
        ("links: [db]", "`socket`"),
        ("extra_hosts: [\"a:1.2.3.4\"]", "`socket`"),
        ("network_mode: bridge", "`socket`"),
        ("privileged: true", "capabilities"),
        ("tty: true", "tombolo exec -it"),
        ("configs: [key]", "mounts"),
        ("secrets: key", "a list"),
        ("secrets: [{ target: key }]", "`source`"),
        ("secrets: [{ source: key, target: /etc/key }]", "of its own name"),
        ("secrets: [{ source: key, mode: 0400 }]", "nobody else"),
        ("secrets: [{ source: key, colour: red }]", "no such key"),
        ("devices: [/dev/video0]", "process"),
        ("extends: { service: base }", "that service"),
        ("profiles: [debug]", "a file of its own"),
        ("volumes: [data:/data]", "./data:/data"),
        ("volumes: [/data]", "gone with the domain"),
        ("volumes: [~/data:/data]", "write the path"),
        ("volumes: [{ type: tmpfs, target: /x }]", "in memory"),
        ("tmpfs: [/cache]", "in memory"),
        ("environment: [TOKEN]", "write it"),
        ("environment: { TOKEN: }", "write it"),
        ("hostname: $HOST", "\"HOST\""),
        ("hostname: [a]", "a text"),
        ("command: sh -c 'open", "quotation"),
        ("restart: sometimes", "unless-stopped"),
        ("depends_on: [ghost]", "no service \"ghost\""),
        ("mem_limit: lots", "a size"),
        ("cpus: many", "a number"),
        ("stop_grace_period: soon", "a duration"),
        ("deploy: { replicas: 3 }", "as many domains"),
        ("deploy: { restart_policy: {} }", "`restart`"),
        ("deploy: { resources: { reservations: { cpus: '1' } } }", "`reserve`"),
        ("healthcheck: { test: [curl] }", "CMD"),
        ("healthcheck: { interval: 1s }", "no `test`"),
        ("healthcheck: { test: a, interval: soon }", "a duration"),
        ("healthcheck: { test: a, retries: few }", "a number"),
        ("healthcheck: { test: a, start_period: later }", "a duration"),
        ("healthcheck: { test: a, colour: red }", "no such key"),
        ("shm_size: 64m", "no such key"),
    ];
    for (key, said) in cases {
        let done = converted(&format!("services:\n  web:\n    image: app:1\n    {key}\n"));
        let refusals: Vec<_> = done.findings.iter().filter(|found| found.weight == Weight::Refused).collect();
        let [refusal] = refusals.as_slice() else { panic!("{key}: {:?}", done.findings) };
        let name = key.split(':').next().expect("a key");
        assert_eq!(refusal.line, 4, "{key}");
        assert!(refusal.key.starts_with(&format!("services.web.{name}")), "{key}: {refusal:?}");
        assert!(refusal.message.contains(said), "{key}: {refusal:?}");
    }
    let taken = "services:\n  a:\n    image: app:1\n    ports: [\"80:1\"]\n  b:\n    image: app:1\n    ports: [\"80:2\"]\n";
    assert_eq!(refused(&converted(taken)), ["7 services.b.ports"]);
    let done = converted(
        "services:\n  web:\n    image: app:1\nnetworks:\n  a:\nconfigs:\n  b:\ninclude: [x]\nother: 1\n",
    );
    assert_eq!(refused(&done), ["4 networks", "6 configs", "8 include", "9 other"]);
}

#[test]
fn secrets_are_read_by_their_names_and_set_by_hand() {
    let done = converted(
        "services:\n  web:\n    image: app:1\n    secrets: [db_password, { source: tls.key, target: /run/secrets/tls.key }]\n\
         secrets:\n  db_password: { file: ./pw }\n  tls.key: { external: true }\n",
    );
    assert_eq!(refused(&done), Vec::<String>::new());
    assert!(done.text.contains("secrets = [\"db_password\", \"tls.key\"]"), "{}", done.text);
    let notes: Vec<&str> = done.findings.iter().map(|found| found.key.as_str()).collect();
    assert_eq!(notes, ["secrets.db_password", "secrets.tls.key"]);
    assert!(done.findings.iter().all(|found| found.message.contains("tombolo secret set")));
}

#[test]
fn names_that_no_domain_can_have_are_refused_and_others_made_fit() {
    let done = convert("services:\n  a_b: { image: x:1 }\n  a.b: { image: x:1 }\n  9: { image: x:1 }\n  none:\n    user: x\n", "X y")
        .expect("a Compose file");
    assert_eq!(refused(&done), ["3 services.a.b", "4 services.9", "5 services.none"]);
    assert!(done.text.starts_with("name = \"compose\""), "{}", done.text);
}

#[test]
fn what_is_no_compose_file_says_so() {
    for (text, said) in [
        ("a: [", "no YAML"),
        ("- a", "no mapping"),
        ("a: 1", "no `services`"),
        ("services: 1", "no `services`"),
    ] {
        let finding = convert(text, "x").expect_err(text);
        assert!(finding.message.contains(said), "{text}: {finding:?}");
    }
}

#[test]
fn addresses_checks_and_files_of_variables_are_carried_over() {
    let done = converted(
        r#"
services:
  web:
    image: nginx:1.27
    env_file:
      - /etc/web.env
      - path: ./more.env
    ports:
      - "127.0.0.1:8080-8081:80-81"
      - target: 443
        published: "8443"
        host_ip: "::1"
        protocol: tcp
        mode: host
    healthcheck:
      test: curl -f http://localhost/
      interval: 1m30s
      timeout: 10s
      retries: 5
      start_period: 1m
  hub:
    image: hub:1
    ports: ["9000:9000"]
    network_mode: host
"#,
    );
    assert_eq!(refused(&done), [""; 0]);
    assert!(done.relative);
    for line in [
        "env_file = [\"/etc/web.env\", \"./more.env\"]",
        "curl -f http://localhost/\"], timeout = \"510000ms\" }",
        "every = \"90000ms\", timeout = \"10000ms\", fails = 5 }",
        "[publish]\n\"127.0.0.1:8080\" = { domain = \"web\", port = 80 }\n\
         \"127.0.0.1:8081\" = { domain = \"web\", port = 81 }\n\"[::1]:8443\" = { domain = \"web\", port = 443 }\n",
    ] {
        assert!(done.text.contains(line), "{line}\n{}", done.text);
    }
    assert!(!done.text.contains("9000:") && !done.text.contains(":9000"), "{}", done.text);
}
