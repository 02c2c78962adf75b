//! What a cluster stands on: an etcd that knows its clients.

use crate::joining::{nodes, refused, token};
use e2e::cluster::{Bed, Host};

fn at(host: &Host) -> String {
    host.port().address.to_string()
}

#[test]
fn an_etcd_that_lets_everybody_in_is_refused_until_somebody_says_so() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    bed.start_daemon(a);
    bed.start_daemon(b);
    let etcd = bed.etcd_endpoints(1).join(",");
    let init = ["node", "init", "--name", a.name(), "--address", &at(a), "--etcd", &etcd];
    let open = a.run(&init);
    refused(&open, "is spoken to without TLS");
    assert!(
        open.err.contains(&etcd) && open.err.contains("root") && open.err.contains("--insecure-etcd"),
        "{open:?}"
    );
    assert_eq!(nodes(a), Vec::<String>::new(), "a cluster began");
    a.ok(&[&init[..], &["--insecure-etcd"]].concat());
    let token = token(a, &[]);
    let join = ["node", "join", &at(a), &token, "--name", b.name(), "--address", &at(b)];
    let open = b.run(&join);
    refused(&open, "is spoken to without TLS");
    assert!(open.err.contains("--insecure-etcd"), "{open:?}");
    assert_eq!(nodes(a), [a.name()], "somebody got in");
    // That has cost nothing: the token is good.
    b.ok(&[&join[..], &["--insecure-etcd"]].concat());
    assert_eq!(nodes(b), [a.name(), b.name()]);
    // A cluster of before, where nobody was asked: it goes on, and says what is open.
    let settings = a.state_dir().join("cluster.json");
    let text = std::fs::read_to_string(&settings).expect("the settings of a node");
    let mut said: serde_json::Value = serde_json::from_str(&text).expect("they are JSON");
    let etcd = said["etcd"].as_object_mut().expect("settings of etcd");
    assert_eq!(etcd.remove("insecure"), Some(true.into()), "{text}");
    std::fs::write(&settings, said.to_string()).expect("written");
    e2e::node::terminate_and_wait(&e2e::node::pids_of(&a.run_dir(), "daemon"));
    bed.start_daemon(a);
    assert_eq!(nodes(a), [a.name(), b.name()]);
    let listed = a.ok(&["node", "ls"]);
    assert!(listed.contains("is spoken to without TLS"), "{listed}");
    assert!(
        a.daemon_log().contains("\\\"insecure\\\": true") || a.daemon_log().contains("\"insecure\": true"),
        "{}",
        a.daemon_log()
    );
    bed.finish();
}
