//! A plan does what it says: nothing where nothing changed, the whole way otherwise, and back
//! again.

#![allow(clippy::unwrap_used)] // in a test, a panic is a message

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use proptest::prelude::*;
use topology::{Plan, Step, Topology, plan};

const NAMES: [&str; 4] = ["alpha", "beta", "gamma", "delta"];
const HOSTS: [&str; 2] = ["server-a", "server-b"];
const SERVICES: [&str; 2] = ["dns", "names"];

/// A generated domain: small, so that two of them often share a key.
#[derive(Clone, Debug)]
struct DomainSpec {
    command: u8,
    pids: u32,
    log_files: u8,
    /// The domains before it in [`NAMES`] that it waits for, as bits.
    after: u8,
    /// The services that it mounts, as bits.
    mounts: u8,
}

#[derive(Clone, Debug)]
struct ServiceSpec {
    host: usize,
    upstream: u8,
    timeout: u32,
    /// The domains that may control it, as bits; all may resolve.
    control: u8,
}

#[derive(Clone, Debug)]
struct Spec {
    domains: Vec<Option<DomainSpec>>,
    services: Vec<Option<ServiceSpec>>,
}

fn spec() -> impl Strategy<Value = Spec> {
    let domain = (0..3_u8, 16..18_u32, 1..3_u8, any::<u8>(), 0..4_u8).prop_map(
        |(command, pids, log_files, after, mounts)| DomainSpec { command, pids, log_files, after, mounts },
    );
    let service = (0..2_usize, 1..3_u8, 1..3_u32, any::<u8>())
        .prop_map(|(host, upstream, timeout, control)| ServiceSpec { host, upstream, timeout, control });
    let domains = prop::collection::vec(prop::option::of(domain), NAMES.len());
    let services = prop::collection::vec(prop::option::of(service), SERVICES.len());
    (domains, services).prop_map(|(domains, services)| Spec { domains, services })
}

impl Spec {
    fn names(&self) -> Vec<&'static str> {
        NAMES
            .into_iter()
            .zip(&self.domains)
            .filter(|(_, spec)| spec.is_some())
            .map(|(name, _)| name)
            .collect()
    }

    fn text(&self) -> String {
        let mut text =
            "name = \"generated\"\n[domain.always]\nkind = \"process\"\ncommand = [\"true\"]\n".to_owned();
        for (index, spec) in self.domains.iter().enumerate() {
            if let Some(spec) = spec {
                self.write_domain(index, spec, &mut text);
            }
        }
        for host in (0..HOSTS.len()).filter(|host| self.services.iter().flatten().any(|s| s.host == *host)) {
            writeln!(text, "[domain.{}]\nkind = \"container\"\nnetwork = \"host\"", HOSTS[host]).unwrap();
        }
        for (name, spec) in SERVICES.into_iter().zip(&self.services) {
            if let Some(spec) = spec {
                self.write_service(name, spec, &mut text);
            }
        }
        text
    }

    fn write_domain(&self, index: usize, spec: &DomainSpec, text: &mut String) {
        let DomainSpec { command, pids, log_files, .. } = spec;
        let present = |other: &usize| self.domains[*other].is_some() && spec.after & (1 << other) != 0;
        let after: Vec<&str> = (0..index).filter(present).map(|other| NAMES[other]).collect();
        let mounted =
            |service: &usize| self.services[*service].is_some() && spec.mounts & (1 << service) != 0;
        let mounts: Vec<String> = (0..SERVICES.len())
            .filter(mounted)
            .map(|service| format!("{} = {{ stub = false, resolve = false }}", SERVICES[service]))
            .collect();
        writeln!(
            text,
            "[domain.{}]\nkind = \"container\"\ncommand = [\"run\", \"{command}\"]\nafter = {after:?}\n\
             limits = {{ pids = {pids} }}\nlog = {{ files = {log_files} }}\nservices = {{ {} }}",
            NAMES[index],
            mounts.join(", ")
        )
        .unwrap();
    }

    fn write_service(&self, name: &str, spec: &ServiceSpec, text: &mut String) {
        let ServiceSpec { host, upstream, timeout, control } = spec;
        let may = |index: &usize| control & (1 << index) != 0;
        let names = self.names();
        let controllers: Vec<&str> = (0..names.len()).filter(may).map(|index| names[index]).collect();
        let control = if controllers.is_empty() {
            String::new()
        } else {
            format!(", {{ domains = {controllers:?}, verbs = [\"control\"] }}")
        };
        writeln!(
            text,
            "[service.{name}]\nkind = \"directory\"\ndomain = \"{}\"\n\
             allow = [{{ domains = \"*\", verbs = [\"resolve\"] }}{control}]\n\
             settings = {{ upstream = [\"192.0.2.{upstream}\"], timeout = \"{timeout}s\" }}",
            HOSTS[*host]
        )
        .unwrap();
    }

    fn topology(&self) -> Topology {
        admit(&self.text())
    }
}

fn admit(text: &str) -> Topology {
    topology::parse(text, "generated.toml", Path::new("/base"))
        .unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn applied(plan: &Plan, to: &Topology) -> Topology {
    let mut topology = to.clone();
    plan.apply(&mut topology);
    topology
}

/// Each domain is started once, after those that it waits for, and only a domain that runs is
/// stopped.
fn check_order(current: &Topology, desired: &Topology, plan: &Plan) {
    let mut running: BTreeSet<String> =
        current.domains.iter().map(|domain| domain.name.to_string()).collect();
    for step in &plan.steps {
        match step {
            Step::Start { domain } => {
                for before in &domain.after {
                    assert!(running.contains(before.as_str()), "{} starts before {before}", domain.name);
                }
                assert!(running.insert(domain.name.to_string()), "{} runs already", domain.name);
            }
            Step::Stop { domain } => {
                assert!(running.remove(domain.name.as_str()), "{} doesn't run", domain.name)
            }
            Step::Restart { after, .. } | Step::Update { after, .. } => {
                assert!(running.contains(after.name.as_str()), "{} doesn't run", after.name);
            }
            _ => {}
        }
    }
    assert_eq!(running, desired.domains.iter().map(|domain| domain.name.to_string()).collect());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_changes_nothing(spec in spec()) {
        let topology = spec.topology();
        prop_assert!(plan(Some(&topology), &topology).is_empty());
    }

    #[test]
    fn a_plan_leads_there_and_back(a in spec(), b in spec()) {
        let (a, b) = (a.topology(), b.topology());
        let way = plan(Some(&a), &b);
        prop_assert_eq!(&applied(&way, &a), &b);
        prop_assert_eq!(way.is_empty(), a == b);
        for done in 0..=way.steps.len() {
            let part = Plan { steps: way.steps[..done].to_vec() };
            prop_assert_eq!(&applied(&way.undo(done), &applied(&part, &a)), &a);
        }
        check_order(&a, &b, &way);
    }

    #[test]
    fn the_first_and_the_last_plan_are_plans(spec in spec()) {
        let topology = spec.topology();
        let nothing = Topology::empty(topology.name.clone());
        let up = plan(None, &topology);
        prop_assert_eq!(&applied(&up, &nothing), &topology);
        check_order(&nothing, &topology, &up);
        let down = plan(Some(&topology), &nothing);
        prop_assert_eq!(&applied(&down, &topology), &nothing);
    }

    #[test]
    fn a_plan_can_be_stored(a in spec(), b in spec()) {
        let way = plan(Some(&a.topology()), &b.topology());
        let json = serde_json::to_string(&way).unwrap();
        prop_assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), way);
    }

    #[test]
    fn starts_follow_after(spec in spec()) {
        let topology = spec.topology();
        let order: Vec<_> = topology.start_order().iter().map(|domain| domain.name.clone()).collect();
        prop_assert_eq!(order.len(), topology.domains.len());
        for domain in &topology.domains {
            let place = |name: &str| order.iter().position(|other| *other == *name).unwrap();
            for before in &domain.after {
                prop_assert!(place(before) < place(&domain.name));
            }
        }
    }
}

const EXAMPLE: &str = include_str!("../../../../examples/quickstart/topology.toml");

/// Returns the output of `up` after these words of the example have become those.
fn says(edits: &[(&str, &str)]) -> String {
    let mut text = EXAMPLE.to_owned();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    plan(Some(&admit(EXAMPLE)), &admit(&text)).to_string()
}

#[test]
fn a_change_is_said_in_a_line() {
    assert_eq!(says(&[]), "nothing to do\n");
    assert_eq!(
        says(&[("memory = \"128MiB\"", "memory = \"256MiB\"")]),
        "update resolver while it runs: `limits` changed\n"
    );
    assert_eq!(
        says(&[("timeout = \"1s\"", "timeout = \"3s\""), ("retries = 2", "retries = 1")]),
        "update service dns while it runs: `settings.timeout`, `settings.retries` changed\n"
    );
    assert_eq!(
        says(&[(
            "{ domains = [\"web\"], verbs = [\"control\"] }",
            "{ domains = [\"robot\"], verbs = [\"control\"] }"
        )]),
        "no longer allow web to control dns\nallow robot to control dns\n"
    );
    assert_eq!(
        says(&[(
            "network = \"host\"",
            "network = \"host\"\nenvironment = { A = \"1\" }\nstop = { timeout = \"1s\" }"
        )]),
        "restart resolver: `environment`, `stop` changed\n"
    );
}

#[test]
fn the_first_plan_follows_the_start_order() {
    let text = plan(None, &admit(EXAMPLE)).to_string();
    let expected = "add service dns in resolver\nstart nameserver\nstart resolver\nstart camera\nstart robot\nstart web\n";
    assert_eq!(text, expected);
}

#[test]
fn a_service_that_moves_restarts_both_hosts() {
    let moved = EXAMPLE
        .replace("[domain.web]", "[domain.second]\nkind = \"container\"\nnetwork = \"host\"\n\n[domain.web]")
        .replace("domain = \"resolver\"", "domain = \"second\"")
        .replace("network = \"host\"\n# It starts", "network = \"host\"\ncommand = [\"true\"]\n# It starts");
    let text = plan(Some(&admit(EXAMPLE)), &admit(&moved)).to_string();
    let expected = "update service dns while it runs: `domain` changed\nrestart resolver: `command`, `ready` changed\nstart second\n";
    assert_eq!(text, expected);
}
