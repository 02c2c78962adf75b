//! Every view of the directory gives the same answers: files as text and as JSON, the stub,
//! `getaddrinfo` through the stub, through the preloaded library and through systemd's resolver
//! socket, and the name server itself.

use e2e::{NameServer, Node, name_server, node, topology};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How many questions are generated.
const QUESTIONS: u64 = 400;

/// Questions over all types, with names that exist, are aliases, are missing; the same ones each
/// time.
fn questions() -> String {
    let types = ["A", "AAAA", "A", "AAAA", "CNAME", "MX", "TXT", "SRV", "CAA"];
    let fixed = [
        "MX tombolo.example",
        "TXT note.tombolo.example",
        "SRV _chat._tcp.tombolo.example",
        "CAA tombolo.example",
    ];
    let mut text = fixed.join("\n") + "\n";
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..QUESTIONS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let number = state % name_server::HOSTS as u64;
        let kind = types[(state >> 20) as usize % types.len()];
        let stem = ["host", "host", "alias", "missing"][(state >> 30) as usize % 4];
        let _ = writeln!(text, "{kind} {stem}{number}.tombolo.example");
    }
    text
}

fn answers(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(" -> "))
        .map(|(question, answer)| (question.to_owned(), answer.to_owned()))
        .collect()
}

/// The part of an answer that `getaddrinfo` can tell: addresses or nothing.
fn addresses_only(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    all.iter()
        .filter(|(question, _)| question.starts_with("A ") || question.starts_with("AAAA "))
        .map(|(question, answer)| {
            let nothing = answer == "NXDOMAIN" || answer == "NODATA";
            (question.clone(), if nothing { "NONE".into() } else { answer.clone() })
        })
        .collect()
}

fn assert_same(what: &str, found: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) {
    let differing: Vec<String> = wanted
        .iter()
        .filter(|(question, answer)| found.get(*question) != Some(answer))
        .map(|(question, answer)| format!("{question}: {:?} instead of {answer:?}", found.get(question)))
        .collect();
    assert!(differing.is_empty(), "{what} differs in {} answers:\n{}", differing.len(), differing.join("\n"));
    assert_eq!(found.len(), wanted.len(), "{what} answered another number of questions");
}

#[test]
fn all_views_give_the_same_answers() {
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    std::fs::write(node.folder().join("questions"), questions()).expect("the questions");
    let mounts = format!(
        "mounts = [{{ source = \"{}\", target = \"/programs\", read_only = true }}, \
         {{ source = \"{}\", target = \"/questions\", read_only = true }}, \
         {{ source = \"{}\", target = \"/lib-under-test\", read_only = true }}]",
        concat!(env!("CARGO_MANIFEST_DIR"), "/programs"),
        node.folder().join("questions").display(),
        node::preload_library().parent().expect("the build folder").display(),
    );
    node.up_ok(&topology(server.port, &["web"], "", &mounts));
    let ask = |prefix: &str, view: &str| {
        answers(&node.shell_ok("web", &format!("{prefix} python3 /programs/ask_all.py {view} /questions")))
    };
    let device = ask("", "device");
    assert!(device.len() > 200, "hardly any questions: {}", device.len());
    assert!(device.values().any(|a| a == "NXDOMAIN") && device.values().any(|a| a == "NODATA"));
    assert_same("the name server itself", &direct(&node, server.port), &device);
    assert_same("JSON", &ask("", "json"), &device);
    assert_same("the stub, by dig", &ask("", "stub"), &device);
    let addresses = addresses_only(&device);
    assert_same("getaddrinfo through the stub", &ask("", "resolver"), &addresses);
    let preload = "LD_PRELOAD=/lib-under-test/libtombolo_preload.so";
    assert_same("the preloaded getaddrinfo", &ask(preload, "resolver"), &addresses);
}

/// The same questions to dnsmasq, from the host.
fn direct(node: &Node, port: u16) -> BTreeMap<String, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/ask_all.py");
    let wrapper = node.folder().join("bin");
    std::fs::create_dir_all(&wrapper).expect("a folder");
    let dig = wrapper.join("dig");
    std::fs::write(&dig, format!("#!/bin/sh\nexec /usr/bin/dig @127.0.0.1 -p {port} \"$@\"\n"))
        .expect("a wrapper");
    std::process::Command::new("chmod").arg("755").arg(&dig).status().expect("chmod");
    let path = format!("{}:{}", wrapper.display(), std::env::var("PATH").unwrap_or_default());
    let output = std::process::Command::new("python3")
        .args([script, "stub"])
        .arg(node.folder().join("questions"))
        .env("PATH", path)
        .output()
        .expect("python3 starts");
    answers(&String::from_utf8_lossy(&output.stdout))
}

#[test]
fn the_resolver_socket_serves_the_stock_module() {
    let module = node::binary().with_file_name("../debian/libnss-resolve/usr/lib/x86_64-linux-gnu");
    if !module.join("libnss_resolve.so.2").exists() {
        println!(
            "skipped: needs the unpacked package libnss-resolve in {}; run `make deps`",
            module.display()
        );
        return;
    }
    let Some(node) = Node::start() else { return };
    let server = NameServer::start(node.folder());
    let mounts =
        format!("mounts = [{{ source = \"{}\", target = \"/nss\", read_only = true }}]", module.display());
    node.up_ok(&topology(server.port, &["web"], "", &mounts));
    let ask =
        |name: &str| node.shell("web", &format!("LD_LIBRARY_PATH=/nss getent -s resolve ahosts {name}"));
    let both = ask("host3.tombolo.example");
    assert!(both.out.contains("192.0.2.3") && both.out.contains("2001:db8::3"), "{both:?}");
    assert!(ask("alias3.tombolo.example").out.contains("192.0.2.3"));
    assert_eq!(ask("missing.tombolo.example").code, 2);
}
