//! Sockets at their edges: places that are taken, servers that never accept, a server that is told
//! who its clients are.

use crate::sockets::{Client, container, python, sockets, topology, unpacked};
use e2e::{Node, wait};

/// Listens, and never accepts.
const DEAF: &str = "import socket, sys, time\ns = socket.create_server((\"127.0.0.1\", int(sys.argv[1])), backlog=1)\n\
                    while True: time.sleep(3600)\n";

#[test]
fn a_place_that_is_taken_is_refused_with_what_to_do() {
    let Some(node) = Node::start() else { return };
    // A file of the root, which nobody may replace.
    let refused = node.up(&topology("tcp:7000", "unix:/etc/passwd", ""));
    assert!(
        refused.code == 1
            && refused.err.contains("the socket service echo can't be at unix:/etc/passwd in domain client")
            && refused.err.contains("choose another `at`"),
        "{refused:?}"
    );
    assert_eq!(node.json(&["ps"]), serde_json::json!([]), "something is left of what was refused");
    // Programs of the domain find a place of ours taken, as by any other program.
    node.up_ok(&topology("tcp:7000", "tcp:7001", ""));
    let taken = "import socket\nsocket.create_server((\"127.0.0.1\", 7001))\n";
    let taken = node.run(&["exec", "client", "--", "/usr/bin/python3", "-c", taken]);
    assert!(taken.err.contains("Address already in use"), "{taken:?}");
}

#[test]
fn clients_of_a_server_that_never_accepts_wait_and_are_told_when_it_dies() {
    let Some(node) = Node::start() else { return };
    let text = topology("tcp:7000", "tcp:7001", "");
    let deaf = container("server", &python(DEAF, "7000"), "");
    let (begin, end) =
        (text.find("\n[domain.server]").expect("it"), text.find("\n[domain.client]").expect("it"));
    node.up_ok(&[&text[..begin], &deaf, &text[end..]].concat());
    wait::until("there is a channel", || sockets(&node, "client")["relay"]["mounts"]["echo"]["up"] == true);
    // More than the server's backlog has room for.
    let mut clients: Vec<Client> = (0..8).map(|_| Client::start(&node, "7001")).collect();
    for client in &mut clients {
        assert_eq!(client.does("connect"), "ok");
    }
    let tree = node.json(&["inspect", "dc/shop/domains/server"]);
    let pid = tree["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it runs");
    e2e::node::kill(pid);
    for client in &mut clients {
        assert_eq!(client.does("wait"), "ConnectionResetError");
    }
    wait::until("nothing is open", || sockets(&node, "client")["relay"]["mounts"]["echo"]["open"] == 0);
}

#[test]
fn nginx_is_told_which_domain_has_connected() {
    let Some(nginx) = unpacked("nginx") else { return };
    let Some(node) = Node::start() else { return };
    let config = node.folder().join("nginx.conf");
    let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let places = places.map(|name| format!("{name}_temp_path /tmp/{name};")).concat();
    let text = format!(
        "daemon off; master_process off; user root root; pid /tmp/nginx.pid; error_log stderr; events {{}}\n\
         http {{ access_log off; {places} server {{ listen 127.0.0.1:8080 proxy_protocol;\n\
         location / {{ return 200 \"$proxy_protocol_addr $proxy_protocol_port\\n\"; }} }} }}\n"
    );
    std::fs::write(&config, text).expect("written");
    let config = config.display();
    let client =
        |name: &str| container(name, "[\"sleep\", \"infinity\"]", "services = { web = { at = \"tcp:80\" } }");
    let command = format!("[\"/opt/nginx/usr/sbin/nginx\", \"-e\", \"stderr\", \"-c\", \"{config}\"]");
    let nginx = nginx
        .replace("mounts = [", &format!("mounts = [{{ source = \"{config}\", target = \"{config}\" }}, "));
    let text = "name = \"shop\"\n".to_owned()
        + &container("web", &command, &nginx)
        + &client("one")
        + &client("two")
        + "\n[service.web]\nkind = \"socket\"\ndomain = \"web\"\nto = \"tcp:8080\"\n\
           allow = [{ domains = [\"one\", \"two\"], verbs = [\"connect\"] }]\nsettings = { proxy = true }\n";
    node.up_ok(&text);
    let says = |domain: &str| node.shell(domain, "curl -sS -m 20 http://127.0.0.1/").out;
    let mut addresses = Vec::new();
    for domain in ["one", "two"] {
        wait::until("nginx answers", || says(domain).starts_with("127."));
        let [first, second] = [says(domain), says(domain)].map(|said| {
            let (address, port) = said.trim().split_once(' ').expect("address and port");
            assert!(port.parse::<u16>().is_ok_and(|port| port != 0), "{said}");
            address.parse::<std::net::Ipv4Addr>().expect("an address")
        });
        assert!(first == second && first.octets()[1] >= 128, "{first} {second}");
        addresses.push(first);
    }
    assert_ne!(addresses[0], addresses[1], "two domains look alike");
}
