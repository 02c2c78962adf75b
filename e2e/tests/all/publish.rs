//! Servers of containers that have only `lo`, reached at addresses of the node by real clients.

use e2e::{Node, machines, node, wait};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("its address").port()
}

fn file(publish: &str) -> String {
    format!(
        "name = \"shop\"\n[domain.web]\nkind = \"container\"\n\
         command = [\"python3\", \"-m\", \"http.server\", \"8080\", \"--bind\", \"127.0.0.1\", \"--directory\", \"/usr\"]\n\
         stop = {{ timeout = \"0ms\" }}\n\
         ready = {{ command = [\"curl\", \"-fsS\", \"-o\", \"/dev/null\", \"http://127.0.0.1:8080/\"], timeout = \"60s\" }}\n{publish}"
    )
}

fn published(at: &str) -> String {
    format!("[publish]\n\"{at}\" = {{ domain = \"web\", port = 8080 }}\n")
}

fn curl(url: &str) -> (i32, String) {
    let got = Command::new("curl").args(["-fsS", "-m", "20", url]).output().expect("curl runs");
    (got.status.code().unwrap_or(-1), String::from_utf8_lossy(&got.stdout).into_owned())
}

#[test]
fn a_web_server_in_a_container_without_a_network_is_reached_at_the_node() {
    let Some(node) = Node::start() else { return };
    let (port, other) = (free_port(), free_port());
    let url = format!("http://127.0.0.1:{port}/");
    node.up_ok(&file(&published(&format!("0.0.0.0:{port}"))));
    assert_eq!(node.shell_ok("web", "tail -n +3 /proc/net/dev | wc -l"), "1\n", "it has more than lo");
    let (code, page) = curl(&url);
    assert!(code == 0 && page.contains("share/"), "{code}: {page}");
    assert!(node.ok(&["ps"]).contains(&format!("0.0.0.0:{port}->8080")));
    let relay = node.json(&["inspect", "dc/shop/domains/web/sockets/relay"]);
    assert_eq!(relay["publishes"][&format!("0.0.0.0:{port}")]["opened"], 1, "{relay}");
    // The daemon's death is heard by nobody, the relay's by its connections alone.
    let mut open = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it connects");
    node.kill_daemon();
    open.write_all(b"GET /nothing HTTP/1.0\r\n\r\n").expect("it is sent");
    let mut answer = String::new();
    open.read_to_string(&mut answer).expect("it is answered");
    assert!(answer.contains("404"), "{answer}");
    // The next daemon has the domain's relay go on.
    node.up_ok(&file(&published(&format!("0.0.0.0:{port}"))));
    let before = machines::row(&node, "web")["pid"].clone();
    let relays = node.pids("relay");
    assert_eq!((relays.len(), curl(&url).0), (1, 0));
    node::kill_and_wait(&relays);
    wait::until("another relay serves the address", || curl(&url).0 == 0);
    // Live: another address, and the former one is free.
    let moved = node.up_ok(&file(&published(&format!("127.0.0.1:{other}"))));
    assert!(moved.contains("`publish` changed"), "{moved}");
    assert_eq!(
        (curl(&format!("http://127.0.0.1:{other}/")).0, machines::row(&node, "web")["pid"].clone()),
        (0, before)
    );
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("the former port is free");
    node.ok(&["restart", "web"]);
    assert_eq!(curl(&format!("http://127.0.0.1:{other}/")).0, 0);
    node.ok(&["down", "shop"]);
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, other)).expect("the port is free");
}

#[test]
fn an_address_that_is_taken_is_refused_with_who_has_it() {
    let Some(node) = Node::start() else { return };
    let taken = free_port();
    let mut stranger = Command::new("python3")
        .args(["-m", "http.server", &taken.to_string(), "--bind", "127.0.0.1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("python runs");
    wait::until("the stranger listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, taken)).is_ok());
    let text = file(&published(&format!("0.0.0.0:{taken}")));
    let refused = node.up(&text);
    let pid = format!("(pid {})", stranger.id());
    assert!(
        refused.code == 1 && refused.err.contains("python3") && refused.err.contains(&pid),
        "{refused:?}"
    );
    let path = node.folder().join("topology.toml").display().to_string();
    let checked = node.run(&["check", &path]);
    assert!(checked.code == 1 && checked.err.contains(&pid), "{checked:?}");
    assert_eq!(node.json(&["ps"]), serde_json::json!([]), "nothing was touched");
    stranger.kill().expect("it ran");
    stranger.wait().expect("it is reaped");
    node.up_ok(&text);
    node.ok(&["check", &path]);
    // Another distributed container is told which domain has it.
    let rival = text.replace("name = \"shop\"", "name = \"rival\"");
    let refused = node.up(&rival);
    assert!(refused.code == 1 && refused.err.contains("domain shop/web"), "{refused:?}");
}
