//! Socket services: what is admitted, explained and planned of them.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use topology::{ServiceKind, SocketPlace, SocketSettings, Step, Topology, plan};

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
