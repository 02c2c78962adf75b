//! The example that everybody starts with is admitted, and says what its comments say.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::path::Path;

use topology::{DomainKind, Network, Program, Ready, RestartPolicy, Verb};

const TEXT: &str = include_str!("../../../../examples/quickstart/topology.toml");

#[test]
fn the_quickstart_is_admitted() {
    let topology = topology::parse(TEXT, "topology.toml", Path::new("/opt/quickstart"))
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(topology.name, "quickstart");

    let nameserver = topology.domain("nameserver").unwrap();
    assert_eq!(nameserver.kind, DomainKind::Process);
    assert_eq!(nameserver.network, Network::Host);
    assert_eq!(nameserver.workdir.as_deref(), Some(Path::new("/opt/quickstart")));
    assert_eq!(nameserver.ready, Ready::Tcp("127.0.0.1:5354".parse().unwrap()));

    let resolver = topology.domain("resolver").unwrap();
    assert_eq!(resolver.program, Program::Server(vec!["dns".parse().unwrap()]));
    assert_eq!(resolver.restart.policy, RestartPolicy::Always);
    assert_eq!(resolver.ready, Ready::Registered);

    let web = topology.domain("web").unwrap();
    assert_eq!((web.network, web.hostname.as_deref()), (Network::None, Some("web")));
    assert_eq!(web.limits.cpu_milli, Some(500));
    assert!(web.services[0].stub && web.services[0].resolve && !web.services[0].preload);
    assert!(topology.domain("robot").unwrap().services[0].preload);

    assert!(topology.allows("web", "dns", &Verb::Control));
    assert!(topology.allows("robot", "dns", &Verb::Resolve));
    assert!(!topology.allows("robot", "dns", &Verb::Control));
    assert!(!topology.allows("nameserver", "dns", &Verb::Resolve));
    assert!(!topology.allows("nobody", "nothing", &Verb::Resolve));

    let order: Vec<&str> = topology.start_order().iter().map(|domain| domain.name.as_str()).collect();
    assert_eq!(order, ["nameserver", "resolver", "camera", "robot", "web"]);
}

#[test]
fn an_admitted_topology_survives_the_registry() {
    let topology = topology::parse(TEXT, "topology.toml", Path::new("/opt/quickstart")).unwrap();
    let json = serde_json::to_string(&topology).unwrap();
    assert_eq!(serde_json::from_str::<topology::Topology>(&json).unwrap(), topology);
}

/// After a change of words, `TOPOLOGY_REGENERATE=1 cargo test -p topology` writes the explanation
/// anew.
#[test]
fn the_quickstart_is_explained() {
    let topology = topology::parse(TEXT, "topology.toml", Path::new("/opt/quickstart")).unwrap();
    let explanation = topology::explain(&topology);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quickstart.txt");
    if std::env::var_os("TOPOLOGY_REGENERATE").is_some() {
        std::fs::write(&path, explanation.to_string()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), explanation.to_string());
    let json = serde_json::to_string(&explanation).unwrap();
    assert_eq!(serde_json::from_str::<topology::Explanation>(&json).unwrap(), explanation);
}
