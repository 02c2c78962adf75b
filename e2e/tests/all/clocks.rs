//! Nodes whose clocks of the wall are hours and days apart.
//!
//! No namespace has a wall clock of its own. So what a node with another clock makes is made here
//! by that clock: certificates and tokens, the only things of which nodes compare times. That nodes
//! run since different times, which is what leases go by, shows in `cluster_promises`.

use e2e::cluster::{Bed, Host, etcd_program};
use e2e::{Run, node};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

const TIMEOUT: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

fn at(host: &Host) -> String {
    host.port().address.to_string()
}

fn trust_folder(host: &Host) -> PathBuf {
    host.state_dir().join("trust")
}

fn is_up(host: &Host, peer: &str) -> bool {
    let run = host.run(&["link", "show", peer, "--json"]);
    serde_json::from_str::<Value>(&run.out).is_ok_and(|link| link["up"] == true)
}

fn why_down(host: &Host, peer: &str) -> String {
    let link = host.json(&["link", "show", peer]);
    link["why"].as_str().filter(|_| link["up"] == false).unwrap_or_default().to_owned()
}

fn token(host: &Host) -> String {
    let made = host.json(&["node", "token", "--no-authority"]);
    made["token"].as_str().expect("a token").to_owned()
}

fn join(host: &Host, through: &Host, token: &str) -> Run {
    host.run(&[
        "node",
        "join",
        &at(through),
        token,
        "--name",
        host.name(),
        "--address",
        &at(host),
        "--insecure-etcd",
    ])
}

/// So many nodes whose daemons run; the first is a cluster on an etcd of its own, the others are
/// single nodes.
fn begun(count: usize) -> Option<Bed> {
    let bed = Bed::with_etcd(count, 1)?;
    for host in bed.hosts() {
        bed.start_daemon(host);
    }
    let (first, etcd) = (bed.host(0), bed.etcd_endpoints(1).join(","));
    first.ok(&[
        "node",
        "init",
        "--name",
        first.name(),
        "--address",
        &at(first),
        "--etcd",
        &etcd,
        "--insecure-etcd",
    ]);
    Some(bed)
}

/// Restarts a node as one whose certificate was issued by a node whose clock said `then`.
fn with_certificate_of(bed: &Bed, host: &Host, then: SystemTime) {
    let pem = std::fs::read_to_string(trust_folder(bed.host(0)).join("authority.pem")).expect("an authority");
    let authority = trust::Authority::from_pem(&pem).expect("an authority");
    let request = trust::Request::new(host.name()).expect("a request");
    let chain = authority.sign(&request.pem().expect("its text"), host.name(), then);
    let identity = request.key_pem() + &chain.expect("a certificate");
    host.kill_role("daemon");
    for proxy in node::pids_of(&host.run_dir(), "proxy") {
        node::kill_and_wait(&[proxy]);
    }
    std::fs::write(trust_folder(host).join("identity.pem"), identity).expect("written");
    bed.start_daemon(host);
}

/// A token, as the registry has it.
struct TokenInEtcd<'b> {
    bed: &'b Bed,
    key: String,
    value: Value,
}

impl<'b> TokenInEtcd<'b> {
    fn of(bed: &'b Bed, token: &str) -> Self {
        let key = format!("/tombolo/token/{}", token.split('.').nth(1).expect("an id"));
        let mut found = Self { bed, key, value: Value::Null };
        let kept = found.ctl(&["get", "--print-value-only", &found.key]);
        found.value = serde_json::from_str(&kept.out).expect("a token in the registry");
        found
    }

    fn ctl(&self, arguments: &[&str]) -> Run {
        let etcdctl = etcd_program().expect("an etcd").with_file_name("etcdctl");
        let mut command = self.bed.host(0).inside(&etcdctl);
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.bed.etcd_endpoints(1)[0]]).args(arguments);
        command.output().expect("etcdctl starts").into()
    }

    /// As a node whose clock is so late would have put it.
    fn put(&self, late: Duration) {
        let mut value = self.value.clone();
        for time in ["issued_unix_s", "expires_unix_s"] {
            value[time] = (value[time].as_u64().expect("a time") - late.as_secs()).into();
        }
        value["signature"] = self.signature(&value).into();
        self.put_value(&value);
    }

    fn put_value(&self, value: &Value) {
        let put = self.ctl(&["put", &self.key, &value.to_string()]);
        assert_eq!(put.code, 0, "{put:?}");
    }

    /// The authority's, of all that is said of the token (`docs/spec/joining.md`).
    fn signature(&self, value: &Value) -> String {
        let id = self.key.rsplit('/').next().expect("an id");
        let words = ["hash", "issued_unix_s", "expires_unix_s", "may_issue", "by", "number"].map(|field| {
            let said = &value[field];
            said.as_str().map_or_else(|| said.to_string(), str::to_owned)
        });
        let pem = std::fs::read_to_string(trust_folder(self.bed.host(0)).join("authority.pem"));
        let authority = trust::Authority::from_pem(&pem.expect("an authority")).expect("an authority");
        authority.say(trust::About::Token, &format!("{id}\n{}", words.join("\n"))).expect("a signature")
    }
}

#[test]
fn clocks_that_are_hours_apart_cost_nothing_and_days_are_said_on_both_nodes() {
    let Some(bed) = begun(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    // A token of a node whose clock is late is refused with the reason, and not used up.
    let token = token(a);
    let kept = TokenInEtcd::of(&bed, &token);
    kept.put(HOUR * 5);
    let refused = join(b, a, &token);
    let said = ["the token expired", "the clocks of the nodes differ"];
    assert!(refused.code == 1 && said.iter().all(|said| refused.err.contains(said)), "{refused:?}");
    // Nor is one let in that somebody wrote into etcd who has not the authority: it would be handed
    // that, and the former node that made it could come again.
    let mut forged = kept.value.clone();
    forged["may_issue"] = true.into();
    kept.put_value(&forged);
    let refused = join(b, a, &token);
    assert!(
        refused.code == 1 && refused.err.contains("not signed by the cluster's authority"),
        "{refused:?}"
    );
    kept.put(Duration::ZERO);
    let joined = join(b, a, &token);
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    let both_up = || is_up(a, "beta") && is_up(b, "alpha");
    bed.until("there is a link", TIMEOUT, both_up);
    let now = SystemTime::now;
    // Issued where it was hours later, or earlier, than here.
    for then in [now() + HOUR * 20, now() - HOUR * 20] {
        with_certificate_of(&bed, b, then);
        bed.until("the link is up", TIMEOUT, both_up);
        // Its peers answer it.
        b.ok(&["node", "rotate"]);
    }
    // Days are too much: both say so, and what to look at.
    with_certificate_of(&bed, b, now() + DAY * 4);
    bed.until("both say that it is the clocks", TIMEOUT, || {
        why_down(a, "beta").contains("clock") && why_down(b, "alpha").contains("clock")
    });
    let refused = b.run(&["node", "rotate"]);
    assert!(refused.code == 1 && refused.err.contains("compare the clocks"), "{refused:?}");
    // It is one of its cluster all the same: no clock of the wall is asked whether it lives.
    bed.until("it lives", TIMEOUT, || {
        let nodes = a.json(&["node", "ls"]);
        nodes["nodes"].as_array().is_some_and(|all| all.iter().all(|node| node["alive"] == true))
    });
    with_certificate_of(&bed, b, now());
    bed.until("the link is up", TIMEOUT, both_up);
    bed.finish();
}
