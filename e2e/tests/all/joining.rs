//! The rules of joining: tokens, names, addresses and certificates that are wrong, used or over;
//! what a node leaves, and what goes on while its certificate is replaced.

use e2e::clean::leftovers;
use e2e::cluster::{Bed, Host};
use e2e::node::pids_of;
use e2e::{Run, node};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a thing of the cluster may take on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// So many nodes whose daemons run; the first is a cluster on an etcd of its own, the others are
/// single nodes.
pub(crate) fn begun(count: usize) -> Option<Bed> {
    let bed = Bed::with_etcd(count, 1)?;
    for host in bed.hosts() {
        bed.start_daemon(host);
    }
    init(&bed, bed.host(0), &[]);
    Some(bed)
}

fn init(bed: &Bed, host: &Host, more: &[&str]) {
    let etcd = bed.etcd_endpoints(1).join(",");
    let init =
        ["node", "init", "--name", host.name(), "--address", &at(host), "--etcd", &etcd, "--insecure-etcd"];
    host.ok(&[&init[..], more].concat());
}

fn at(host: &Host) -> String {
    host.port().address.to_string()
}

pub(crate) fn token(host: &Host, more: &[&str]) -> String {
    let made = host.json(&[&["node", "token"], more].concat());
    made["token"].as_str().expect("a token").to_owned()
}

fn join(host: &Host, through: &Host, token: &str, more: &[&str]) -> Run {
    host.run(&[&["node", "join", &at(through), token, "--insecure-etcd"], more].concat())
}

pub(crate) fn join_as(host: &Host, through: &Host, token: &str) -> Run {
    join(host, through, token, &["--name", host.name(), "--address", &at(host)])
}

/// Insists that it was refused, for a reason and with advice.
pub(crate) fn refused(run: &Run, why: &str) {
    assert!((1..=2).contains(&run.code) && run.err.contains(why), "{why:?} is not why: {run:?}");
}

pub(crate) fn nodes(host: &Host) -> Vec<String> {
    let view = host.json(&["node", "ls"]);
    let rows = view["nodes"].as_array().cloned().unwrap_or_default();
    rows.iter().filter_map(|row| Some(row["name"].as_str()?.to_owned())).collect()
}

pub(crate) fn links_up(host: &Host) -> usize {
    let run = host.run(&["link", "ls", "--json"]);
    let links: Value = serde_json::from_str(&run.out).unwrap_or_default();
    links.as_array().map_or(0, |links| links.iter().filter(|link| link["up"] == true).count())
}

pub(crate) fn trust(host: &Host) -> PathBuf {
    host.state_dir().join("trust")
}

/// Asks a node's peer API as curl(1) does, with the certificate in a file, if any: what it answers
/// or complains.
pub(crate) fn ask(from: &Host, of: &Host, certificate: Option<&Path>, path: &str, more: &[&str]) -> String {
    let mut curl = from.inside(Path::new("curl"));
    curl.args(["--silent", "--show-error", "--insecure", "--max-time", "5"]).args(more);
    if !more.contains(&"--data") {
        curl.args(["--data", "{}"]);
    }
    if !more.contains(&OFFERS) {
        curl.arg("--no-alpn");
    }
    if let Some(file) = certificate {
        curl.arg("--cert").arg(file);
    }
    let run: Run = curl.arg(format!("https://{}:7420{path}", at(of))).output().expect("curl(1) runs").into();
    run.out + &run.err
}

/// Has curl(1) offer protocols of its own (ALPN): those of browsers.
const OFFERS: &str = "--alpn";

/// The header by which a node says its release.
pub(crate) fn release(of: &Host) -> String {
    format!("tombolo-release: {}", version(of))
}

fn version(of: &Host) -> String {
    let version = of.ok(&["--version"]);
    version.split_whitespace().last().unwrap_or_default().to_owned()
}

fn stop_daemon(host: &Host) {
    node::terminate_and_wait(&pids_of(&host.run_dir(), "daemon"));
}

#[test]
fn a_machine_without_the_right_token_name_and_address_is_told_why_and_costs_no_token() {
    let Some(bed) = begun(3) else { return };
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    let short = token(a, &["--ttl", "1s"]);
    let good = token(a, &[]);
    refused(&join_as(b, a, "hello"), "this is no token");
    refused(&join_as(b, a, &good[..good.len() - 1]), "a part of it was cut");
    // Somebody guesses the secret.
    let mut parts: Vec<&str> = good.split('.').collect();
    let zeros = "0".repeat(parts[2].len());
    parts[2] = &zeros;
    refused(&join_as(b, a, &parts.join(".")), "the token is not known here");
    // Somebody stands in between, or the token is another cluster's.
    let mut parts: Vec<&str> = good.split('.').collect();
    let zeros = "0".repeat(parts[3].len());
    parts[3] = &zeros;
    refused(&join_as(b, a, &parts.join(".")), "has not the authority that the token names");
    // Names and addresses.
    for (name, why) in [
        ("alpha", "the name alpha is node alpha's already"),
        ("any", "is a rule by which one is chosen"),
        ("spread", "is a rule by which one is chosen"),
        ("7of9", "starts with a lower-case letter"),
        ("a-name-that-no-topology-can-ever-write", "at most 32 characters"),
    ] {
        refused(&join(b, a, &good, &["--name", name, "--address", &at(b)]), why);
    }
    let taken = join(b, a, &good, &["--name", "beta", "--address", &at(a)]);
    refused(&taken, "7420 is node alpha's already");
    refused(&join(b, a, &good, &["--name", "beta", "--address", "0.0.0.0"]), "can't reach 0.0.0.0:7420");
    let etcd = bed.etcd_endpoints(1).join(",");
    let again =
        b.run(&["node", "init", "--name", "7of9", "--address", &at(b), "--etcd", &etcd, "--insecure-etcd"]);
    refused(&again, "starts with a lower-case letter");
    let again =
        b.run(&["node", "init", "--name", "beta", "--address", &at(b), "--etcd", &etcd, "--insecure-etcd"]);
    refused(&again, "a cluster stands on that etcd already");
    assert_eq!((nodes(a), nodes(b)), (vec!["alpha".to_owned()], vec![]), "somebody got in");
    // All that has cost nothing: the token is good, once.
    let joined = join_as(b, a, &good);
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    refused(&join_as(b, a, &good), "this machine is node beta of cluster tombolo already");
    refused(&join_as(c, a, &good), "it was used already");
    let begun = SystemTime::now();
    bed.until("a second is over, by a clock that counts whole ones", TIMEOUT, || {
        begun.elapsed().is_ok_and(|elapsed| elapsed > Duration::from_secs(2))
    });
    refused(&join_as(c, a, &short), "the token expired");
    // Who may not let others join says so, and to whom to turn.
    let joined = join_as(c, a, &token(a, &["--no-authority"]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    assert_eq!(a.json(&["node", "show", "alpha"])["authority"], true);
    assert_eq!(c.json(&["node", "show", "gamma"])["authority"], false);
    bed.finish();
}

#[test]
fn a_node_that_is_removed_is_believed_by_nobody_is_told_so_and_can_join_again() {
    let Some(bed) = begun(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let joined = join_as(b, a, &token(a, &["--no-authority"]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    bed.until("there is a link", TIMEOUT, || links_up(a) == 1 && links_up(b) == 1);
    // A certificate that it was given and keeps, beside the next.
    let kept = bed.folder().join("kept.pem");
    std::fs::copy(trust(b).join("identity.pem"), &kept).expect("a copy");
    b.ok(&["node", "rotate"]);
    let hello = |certificate: &Path| ask(b, a, Some(certificate), "/v1/hello", &["--header", &release(a)]);
    assert!(hello(&kept).contains("\"caller\":\"beta\""), "{}", hello(&kept));
    let now = bed.folder().join("now.pem");
    std::fs::copy(trust(b).join("identity.pem"), &now).expect("a copy");
    refused(&a.run(&["node", "remove", "beta"]), "node beta is alive");
    refused(&a.run(&["node", "remove", "zeta"]), "there is no node \"zeta\"");
    a.ok(&["node", "remove", "beta", "--force"]);
    bed.until("nobody believes it", TIMEOUT, || {
        [&kept, &now].into_iter().all(|file| hello(file).contains("revoked"))
    });
    let told = |host: &Host| {
        let said = host.json(&["node", "ls"]);
        said["removed"] == true && said["why"].as_str().is_some_and(|why| why.contains("was removed"))
    };
    bed.until("it is told", TIMEOUT, || told(b));
    assert!(b.ok(&["node", "ls"]).contains("was removed from cluster tombolo"));
    bed.until("the proxies have ended", TIMEOUT, || {
        [a, b].into_iter().all(|host| pids_of(&host.run_dir(), "proxy").is_empty())
    });
    refused(&b.run(&["node", "rotate"]), "revoked");
    // It is told after a restart, too, and to whoever asks it for something.
    stop_daemon(b);
    bed.start_daemon(b);
    bed.until("it is told again", TIMEOUT, || told(b));
    let refusal = b.up("name = \"x\"\n[domain.x]\nkind = \"process\"\ncommand = [\"true\"]\n");
    assert!(refusal.code == 1 && refusal.err.contains("removed"), "{refusal:?}");
    // Nothing keeps it from joining again, and what it was given before stays worthless.
    let joined = join_as(b, a, &token(a, &[]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    bed.until("there is a link again", TIMEOUT, || links_up(a) == 1 && links_up(b) == 1);
    for file in [&kept, &now] {
        assert!(hello(file).contains("revoked"), "{}", hello(file));
    }
    assert!(hello(&trust(b).join("identity.pem")).contains("\"caller\":\"beta\""));
    bed.finish();
}

/// A certificate for a node that ended yesterday, by the authority that another keeps.
fn expired(authority: &Host, node: &str) -> String {
    let pem = std::fs::read_to_string(trust(authority).join("authority.pem")).expect("an authority");
    let authority = trust::Authority::from_pem(&pem).expect("an authority");
    let request = trust::Request::new(node).expect("a request");
    let day = Duration::from_secs(86_400);
    let then = SystemTime::now() - day * (trust::NODE_DAYS + 1);
    let chain = authority.sign(&request.pem().expect("its text"), node, then).expect("a certificate");
    request.key_pem() + &chain
}

#[test]
fn certificates_of_another_cluster_and_those_that_are_over_are_refused_and_said() {
    let Some(bed) = begun(3) else { return };
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    init(&bed, b, &["--prefix", "/other/", "--cluster", "other"]);
    // A token of one cluster at a node of the other: nothing is told to it.
    refused(&join_as(c, b, &token(a, &[])), "has not the authority that the token names");
    let joined = join_as(c, a, &token(a, &["--no-authority"]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    let header = release(a);
    let hello = |certificate: Option<&Path>| ask(c, a, certificate, "/v1/hello", &["--header", &header]);
    assert!(hello(None).contains("only nodes of the cluster may ask"), "{}", hello(None));
    let foreign = trust(b).join("identity.pem");
    assert!(hello(Some(&foreign)).contains("unknown ca"), "{}", hello(Some(&foreign)));
    // One that lies about its cluster: the same names, by an authority of its own.
    let forged = bed.folder().join("forged.pem");
    let authority = trust::Authority::new("tombolo", SystemTime::now()).expect("an authority");
    let request = trust::Request::new("gamma").expect("a request");
    let chain = authority.sign(&request.pem().expect("its text"), "gamma", SystemTime::now());
    std::fs::write(&forged, request.key_pem() + &chain.expect("a certificate")).expect("written");
    assert!(hello(Some(&forged)).contains("unknown ca"), "{}", hello(Some(&forged)));
    // One that is over. Its node says so, and what helps.
    let over = expired(a, "gamma");
    let file = bed.folder().join("over.pem");
    std::fs::write(&file, &over).expect("written");
    assert!(hello(Some(&file)).contains("expired"), "{}", hello(Some(&file)));
    stop_daemon(c);
    std::fs::write(trust(c).join("identity.pem"), &over).expect("written");
    bed.start_daemon(c);
    bed.until("it knows of the others", TIMEOUT, || nodes(c).len() == 2);
    let refusal = c.run(&["node", "rotate"]);
    refused(&refusal, "refuses this node's certificate as expired");
    assert!(refusal.err.contains("join again"), "{refusal:?}");
    a.ok(&["node", "remove", "gamma", "--force"]);
    bed.until("it is told", TIMEOUT, || c.json(&["node", "ls"])["removed"] == true);
    let joined = join_as(c, a, &token(a, &[]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    bed.until("there is a link", TIMEOUT, || links_up(a) == 1 && links_up(c) == 1);
    // A node that has the authority mends its own.
    stop_daemon(a);
    std::fs::write(trust(a).join("identity.pem"), expired(a, "alpha")).expect("written");
    bed.start_daemon(a);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    bed.until("it has another certificate", TIMEOUT, || {
        let row = a.json(&["node", "show", "alpha"]);
        row["certificate_until_unix_s"].as_u64().is_some_and(|until| until > now)
    });
    bed.until("there is a link", TIMEOUT, || links_up(a) == 1 && links_up(c) == 1);
    bed.finish();
}

#[test]
fn releases_that_differ_by_one_understand_each_other_and_others_are_told_what_to_do() {
    let Some(bed) = begun(1) else { return };
    let a = bed.host(0);
    let own = trust(a).join("identity.pem");
    let parts: Vec<u64> = version(a).split('.').map(|part| part.parse().expect("a number")).collect();
    // Before 1.0 each minor version is a release, later each major one.
    let away = |by: u64| match parts[..] {
        [0, minor, _] => format!("0.{}.7", minor + by),
        [major, ..] => format!("{}.0.7", major + by),
        [] => unreachable!("a version has numbers"),
    };
    let hello = |release: &str| {
        ask(a, a, Some(&own), "/v1/hello", &["--header", &format!("tombolo-release: {release}")])
    };
    for known in [version(a), away(1)] {
        assert!(hello(&known).contains("\"caller\":\"alpha\""), "{known}: {}", hello(&known));
    }
    for strange in [away(2), "soon".to_owned(), String::new()] {
        let said = hello(&strange);
        let told = said.contains("they may differ by one release at the most")
            && said.contains("bring the older one up to date")
            && said.contains("node alpha has release");
        assert!(told, "{strange}: {said}");
    }
    // Who wants to join, and says so in the body.
    let knock = serde_json::json!({
        "id": "00", "secret": "00", "name": "beta", "address": null, "request_pem": "", "release": away(2), "cpus": 1, "memory_bytes": 1,
    });
    let said = ask(a, a, None, "/v1/join", &["--header", &release(a), "--data", &knock.to_string()]);
    assert!(said.contains("they may differ by one release"), "{said}");
    // Who speaks another protocol altogether is refused before it says anything.
    let said = ask(a, a, Some(&own), "/v1/hello", &[OFFERS]);
    assert!(said.contains("no application protocol"), "{said}");
    bed.finish();
}

/// A name server and a backend on beta, and on alpha a container that asks them.
pub(crate) fn resolving() -> String {
    let server = e2e::cluster::address(1);
    format!(
        r#"
name = "test"

[domain.nameserver]
kind = "process"
node = "beta"
command = [
    "/usr/sbin/dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--log-facility=-", "--user=nobody", "--group=nogroup",
    "--no-resolv", "--no-hosts", "--port=5354", "--host-record=www.quickstart.test,192.0.2.7",
]
capabilities = ["SETGID", "SETUID"]
ready = {{ tcp = "127.0.0.1:5354" }}

[domain.resolver]
kind = "container"
root = "host"
network = "host"
node = "beta"
after = ["nameserver"]

[domain.web]
kind = "container"
root = "host"
node = "alpha"
command = ["sleep", "infinity"]
services = {{ dns = "/srv/dns" }}

[service.dns]
kind = "directory"
domain = "resolver"
allow = [{{ domains = ["web"], verbs = ["resolve"] }}]

[service.dns.settings]
upstream = ["{server}:5354"]
timeout = "1s"
retries = 2
cache = {{ mode = "none" }}
"#
    )
}

pub(crate) fn resolves(host: &Host) -> bool {
    host.run(&["exec", "web", "--", "getent", "ahostsv4", "www.quickstart.test"]).out.contains("192.0.2.7")
}

fn proxies(bed: &Bed) -> Vec<Vec<u32>> {
    bed.hosts().iter().map(|host| pids_of(&host.run_dir(), "proxy")).collect()
}

#[test]
fn a_certificate_is_replaced_and_the_one_before_revoked_while_the_link_is_in_use() {
    let Some(bed) = begun(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let joined = join_as(b, a, &token(a, &["--no-authority"]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    a.up_ok(&resolving());
    bed.until("the name is resolved over the link", TIMEOUT, || resolves(a));
    let before = proxies(&bed);
    for (host, other) in [(b, "alpha"), (a, "beta")] {
        let earlier = host.json(&["node", "show"])["certificate"].clone();
        assert!(host.ok(&["node", "rotate", "--revoke"]).contains("earlier ones are believed no more"));
        let next = host.json(&["node", "show"])["certificate"].clone();
        assert_ne!(earlier, next);
        bed.until("its proxy shows the next one", TIMEOUT, || {
            host.json(&["link", "show", other])["state"]["link"]["certificate"] == next
        });
    }
    // Both would be refused now if they showed what they were started with.
    for _ in 0..2 {
        bed.switch().cut(b.port());
        bed.until("the link is down", TIMEOUT, || links_up(a) == 0 && links_up(b) == 0);
        bed.switch().heal(b.port());
        bed.until("the link is up", TIMEOUT, || links_up(a) == 1 && links_up(b) == 1);
    }
    assert!(resolves(a), "{}", bed.logs());
    assert_eq!(proxies(&bed), before, "a proxy was replaced");
    // A daemon that ends leaves what is in use; the next one finds it.
    stop_daemon(a);
    assert_eq!(proxies(&bed), before);
    bed.start_daemon(a);
    bed.until("the next daemon speaks with the proxy", TIMEOUT, || links_up(a) == 1);
    assert!(resolves(a) && proxies(&bed) == before, "{}", bed.logs());
    a.ok(&["down", "--all"]);
    bed.finish();
}

#[test]
fn a_daemon_that_ends_takes_along_the_links_that_nobody_uses() {
    let Some(bed) = begun(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let joined = join_as(b, a, &token(a, &[]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    bed.until("there is a link", TIMEOUT, || links_up(a) == 1 && links_up(b) == 1);
    a.up_ok("name = \"test\"\n[domain.x]\nkind = \"process\"\nnode = \"alpha\"\ncommand = [\"sleep\", \"infinity\"]\n");
    a.ok(&["down", "--all"]);
    for host in [a, b] {
        stop_daemon(host);
        bed.until("nothing of the node is left", TIMEOUT, || leftovers(&host.run_dir()).is_empty());
    }
    for host in [a, b] {
        bed.start_daemon(host);
    }
    bed.until("there is a link again", TIMEOUT, || links_up(a) == 1 && links_up(b) == 1);
    // A daemon that was killed took nothing along. If the node is in the cluster no more when the
    // next one comes, that one ends it.
    b.kill_role("daemon");
    assert_eq!(pids_of(&b.run_dir(), "proxy").len(), 1);
    bed.until("the others know", TIMEOUT, || a.run(&["node", "remove", "beta"]).code == 0);
    bed.start_daemon(b);
    bed.until("no proxy is left", TIMEOUT, || proxies(&bed).concat().is_empty());
    bed.finish();
}
