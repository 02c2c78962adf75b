//! Socket services: what is admitted, explained and planned of them.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use topology::{ServiceKind, SocketMount, SocketPlace, SocketSettings, Step, Topology, plan};

const FILE: &str = r#"
name = "shop"

[domain.redis]
kind = "container"
command = ["redis-server"]

[domain.web]
kind = "container"
command = ["web"]
services = { cache = { at = "tcp:127.0.0.1:6379" } }

[domain.admin]
kind = "process"
command = ["admin"]
services = { cache = "unix:/run/admin/./cache.sock" }

[service.cache]
kind = "socket"
domain = "redis"
to = "tcp:6379"
allow = [{ domains = "*", verbs = ["connect"] }]
"#;

fn admitted(text: &str) -> Topology {
    topology::parse(text, "socket.toml", Path::new("/base")).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_guest_serves_and_mounts_sockets_in_its_own_lo() {
    let guests = FILE.replace("kind = \"container\"", "kind = \"vm\"\nnetwork = \"host\"");
    let shop = admitted(&guests);
    assert_eq!(shop.domain("web").unwrap().sockets.len(), 1);
    assert_eq!(shop.service("cache").unwrap().domain.as_str(), "redis");
}

#[test]
fn a_socket_needs_no_settings_and_is_no_file() {
    let shop = admitted(FILE);
    let cache = shop.service("cache").unwrap();
    assert_eq!((cache.kind(), cache.opens("web")), (ServiceKind::Socket, true));
    let usual = SocketSettings {
        to: SocketPlace::Tcp(([127, 0, 0, 1], 6379).into()),
        proxy: false,
        max_connections: 4096,
        connections_per_domain: 1024,
        connections_per_second: None,
    };
    assert_eq!(cache.socket(), Some(&usual));
    let at = |domain: &str| {
        let domain = shop.domain(domain).unwrap();
        assert!(domain.services.is_empty(), "a socket is not below /srv");
        domain.sockets.iter().map(|mount| mount.at.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(at("web"), ["tcp:127.0.0.1:6379"]);
    assert_eq!(at("admin"), ["unix:/run/admin/cache.sock"]);
    let json = serde_json::to_string(&shop).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), shop);
}

#[test]
fn fewer_connections_in_all_are_fewer_for_one_domain() {
    let shop = admitted(&format!(
        "{FILE}settings = {{ max_connections = 10, connections_per_second = 5, proxy = true }}"
    ));
    let settings = shop.service("cache").unwrap().socket().unwrap();
    assert_eq!((settings.max_connections, settings.connections_per_domain), (10, 10));
    assert_eq!((settings.connections_per_second, settings.proxy), (Some(5), true));
}

#[test]
fn who_mounts_a_socket_starts_after_the_server() {
    let shop = admitted(FILE);
    let order: Vec<_> = shop.start_order().iter().map(|domain| domain.name.to_string()).collect();
    assert_eq!(order, ["redis", "admin", "web"]);
}

#[test]
fn another_place_restarts_who_mounts_it_and_another_server_nobody() {
    let steps = |text: &str| plan(Some(&admitted(FILE)), &admitted(text)).steps;
    let moved = steps(&FILE.replace("tcp:127.0.0.1:6379", "tcp:127.0.0.1:6380"));
    assert!(matches!(&moved[..], [Step::Restart { after, .. }] if after.name == *"web"), "{moved:?}");
    let served = steps(&FILE.replace("to = \"tcp:6379\"", "to = \"unix:/run/redis.sock\""));
    let [Step::UpdateService { changed, .. }] = &served[..] else { panic!("{served:?}") };
    assert_eq!(changed, &["to"]);
}

#[test]
fn a_socket_is_explained() {
    let text = topology::explain(&admitted(FILE)).to_string();
    let expected = "service cache (socket) in redis: its program listens at tcp:127.0.0.1:6379; 4096 connections at a time, \
                    1024 for one domain\n     admin            may connect            unix:/run/admin/cache.sock\n     \
                    redis            may connect            not mounted\n     web              may connect            \
                    tcp:127.0.0.1:6379\n";
    assert!(text.ends_with(expected), "{text}");
    assert!(text.contains("service  cache at tcp:127.0.0.1:6379\n"), "{text}");
}

#[test]
fn a_name_is_an_address_of_lo_that_the_domains_directories_answer() {
    let named = FILE.replace(
        "services = { cache = { at = \"tcp:127.0.0.1:6379\" } }",
        "services = { dns = \"/srv/dns\", cache = { at = \"tcp:Cache.internal.:6379\" } }",
    ) + "[domain.resolver]\nkind = \"container\"\nnetwork = \"host\"\n[service.dns]\nkind = \"directory\"\ndomain = \"resolver\"\n\
         allow = [{ domains = \"*\", verbs = [\"resolve\"] }]\nsettings = { upstream = [\"192.0.2.53\"] }\n";
    let shop = admitted(&named);
    let mount = shop.domain("web").unwrap().sockets[0].clone();
    assert_eq!(mount.to_string(), "tcp:cache.internal:6379");
    let SocketPlace::Tcp(at) = mount.at else { panic!("{mount}") };
    assert_eq!((at.ip(), at.port()), (SocketMount::address_of("cache.internal").into(), 6379));
    assert!(at.ip().is_loopback());
    let topology::Settings::Directory(settings) = &shop.service("dns").unwrap().settings else { panic!() };
    let told: Vec<_> =
        settings.names.iter().map(|(domain, names)| (domain.as_str(), names.clone())).collect();
    let address = SocketMount::address_of("cache.internal");
    assert_eq!(told, [("web", [("cache.internal".to_owned(), address)].into())]);
    // Another name restarts whoever mounts it, and its directory is told while it runs.
    let renamed = admitted(&named.replace("Cache.internal.", "store.internal"));
    let steps = plan(Some(&shop), &renamed).steps;
    let told =
        |step: &Step| matches!(step, Step::UpdateService { changed, .. } if changed == &["names of sockets"]);
    let restarted = |step: &Step| matches!(step, Step::Restart { after, .. } if after.name == *"web");
    assert!(steps.len() == 2 && steps.iter().any(told) && steps.iter().any(restarted), "{steps:?}");
    let json = serde_json::to_string(&shop).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), shop);
    // What might be an address is none.
    for at in ["tcp:127.0.0.300:1", "tcp:1.2:1", "tcp:cache.internal:0", "tcp:cache.internal", "tcp:a..b:1"] {
        let wrong = FILE.replace("tcp:127.0.0.1:6379", at);
        let refused = topology::parse(&wrong, "socket.toml", Path::new("/base")).unwrap_err().to_string();
        assert!(
            refused.contains("is no place of a socket") || refused.contains("has no port"),
            "{at}: {refused}"
        );
    }
}
