//! The etcd of a cluster: one that knows its clients, and its own where none is given.

use crate::joining::{TIMEOUT, nodes, refused, token, trust};
use e2e::cluster::{Bed, Host, etcd_program};
use e2e::node::{kill_and_wait, pids_of, terminate_and_wait};
use std::path::Path;

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
    terminate_and_wait(&pids_of(&a.run_dir(), "daemon"));
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

/// The etcd processes of a node: by where they are, for they run relative to it.
fn members(host: &Host) -> Vec<u32> {
    let folder = host.state_dir().join("etcd");
    let is_member = |pid: &u32| {
        let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).unwrap_or_default();
        link("exe").file_name().is_some_and(|name| name == "etcd") && link("cwd") == folder
    };
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).filter(is_member).collect()
}

fn member(bed: &Bed, host: &Host) -> u32 {
    let mut found = Vec::new();
    bed.until("one etcd member runs", TIMEOUT, || {
        found = members(host);
        found.len() == 1
    });
    found[0]
}

/// Whether etcd on a node answers somebody on another who shows it the certificate in this file, or
/// none.
fn lets_in(from: &Host, of: &Host, certificate: Option<&Path>) -> bool {
    let mut curl = from.inside(Path::new("curl"));
    curl.args(["--silent", "--insecure", "--max-time", "5", "--data", "{}"]);
    if let Some(file) = certificate {
        curl.arg("--cert").arg(file);
    }
    let asked = curl.arg(format!("https://{}:7418/v3/cluster/member/list", at(of))).output();
    String::from_utf8_lossy(&asked.expect("curl(1) runs").stdout).contains("members")
}

/// A bed whose nodes can have an etcd of the cluster's own.
fn bed(count: usize) -> Option<Bed> {
    if etcd_program().is_none() {
        println!("skipped: needs etcd; run `make deps`");
        return None;
    }
    let bed = Bed::start(count)?;
    for host in bed.hosts() {
        bed.start_daemon(host);
    }
    Some(bed)
}

/// Plainly, as the first line of the documentation says.
fn init(host: &Host) {
    host.ok(&["node", "init", "--name", host.name(), "--address", &at(host)]);
}

fn status(pid: u32, what: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(what)).unwrap_or_default();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_cluster_brings_its_own_etcd_which_lets_nodes_in_alone_and_outlives_its_daemon() {
    let Some(bed) = bed(2) else { return };
    let [a, b] = [bed.host(0), bed.host(1)];
    let nowhere =
        a.command(&["node", "init", "--name", "alpha", "--address", &at(a), "--etcd-ca", "ca.pem"]).output();
    assert_eq!(nowhere.expect("tombolo starts").status.code(), Some(2), "an authority without an etcd");
    init(a);
    let etcd = member(&bed, a);
    let nobody = "2147483646 2147483646 2147483646 2147483646";
    assert_eq!((status(etcd, "Uid:"), status(etcd, "Gid:")), (nobody.to_owned(), nobody.to_owned()));
    assert_eq!(
        (status(etcd, "CapEff:"), status(etcd, "NoNewPrivs:")),
        ("0000000000000000".into(), "1".into())
    );
    let groups = std::fs::read_to_string(format!("/proc/{etcd}/cgroup")).expect("its cgroups");
    assert!(groups.contains("/+etcd"), "{groups}");
    // Who joins says nothing of etcd.
    let joined = join_plainly(b, a);
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    bed.until("both live", TIMEOUT, || crate::cluster_etcd::alive(b) == 2);
    let identity = trust(b).join("identity.pem");
    assert!(!lets_in(b, a, None), "somebody without a certificate was let in");
    assert!(lets_in(b, a, Some(&identity)), "a node was not let in");
    // The member's certificate is no node's.
    let member_pem = a.state_dir().join("etcd/member.pem");
    let asked = crate::joining::ask(a, a, Some(&member_pem), "/v1/hello", &[]);
    assert!(!asked.contains("\"node\""), "{asked}");
    // The daemon dies: its member runs on, and the next one finds it.
    kill_and_wait(&pids_of(&a.run_dir(), "daemon"));
    assert_eq!(members(a), [etcd], "the member died with its daemon");
    b.up_ok("name = \"test\"\n[domain.web]\nkind = \"process\"\nnode = \"beta\"\ncommand = [\"sleep\", \"infinity\"]\n");
    bed.start_daemon(a);
    bed.until("both live", TIMEOUT, || crate::cluster_etcd::alive(a) == 2);
    assert_eq!(members(a), [etcd], "the member was replaced");
    // The member dies: the daemon starts another one, which holds what it held.
    kill_and_wait(&[etcd]);
    let next = member(&bed, a);
    assert_ne!(next, etcd);
    bed.until("both live", TIMEOUT, || {
        crate::cluster_etcd::alive(a) == 2 && crate::cluster_etcd::alive(b) == 2
    });
    // Both die.
    kill_and_wait(&[pids_of(&a.run_dir(), "daemon"), members(a)].concat());
    bed.start_daemon(a);
    member(&bed, a);
    bed.until("both live", TIMEOUT, || {
        crate::cluster_etcd::alive(a) == 2 && crate::cluster_etcd::alive(b) == 2
    });
    b.ok(&["down", "test"]);
    // A node that is removed does not get in any more.
    a.ok(&["node", "remove", "beta", "--force"]);
    bed.until("the removed node is let in no more", TIMEOUT, || !lets_in(b, a, Some(&identity)));
    // Nobody else needs it: it ends with its daemon.
    b.kill();
    bed.until("the member is back", TIMEOUT, || members(a).len() == 1 && crate::cluster_etcd::alive(a) == 1);
    terminate_and_wait(&pids_of(&a.run_dir(), "daemon"));
    assert_eq!(members(a), Vec::<u32>::new(), "a member without a daemon");
    bed.finish();
}

/// Joins without a word of etcd.
fn join_plainly(host: &Host, through: &Host) -> e2e::Run {
    let token = token(through, &[]);
    host.run(&["node", "join", &at(through), &token, "--name", host.name(), "--address", &at(host)])
}

#[test]
fn where_no_etcd_can_be_had_it_is_said_and_nothing_is_begun() {
    let Some(bed) = Bed::start(1) else { return };
    let a = bed.host(0);
    let init = ["node", "init", "--name", a.name(), "--address", &at(a)];
    // `init` starts the daemon, which looks for etcd.
    let run: e2e::Run =
        a.command(&init).env("TOMBOLO_ETCD", "/nowhere/etcd").output().expect("tombolo starts").into();
    refused(&run, "there is no etcd on this machine");
    assert!(run.err.contains("apt-get install etcd-server") && run.err.contains("--etcd"), "{run:?}");
    assert_eq!(nodes(a), Vec::<String>::new());
    assert!(!a.state_dir().join("etcd").exists());
    bed.finish();
}

/// The nodes whose members of etcd have a vote, as one node says; none where it can't say so.
fn voters(host: &Host) -> Vec<String> {
    let run = host.run(&["node", "etcd", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&run.out).unwrap_or_default();
    let members = said["members"].as_array().cloned().unwrap_or_default();
    let votes = members.iter().filter(|member| member["votes"] == true);
    let mut nodes: Vec<String> =
        votes.map(|member| member["node"].as_str().unwrap_or("-").to_owned()).collect();
    nodes.sort_unstable();
    nodes
}

fn until_voters(bed: &Bed, host: &Host, names: &[&str]) {
    bed.until(&format!("{names:?} have the members of etcd"), TIMEOUT, || voters(host) == names);
}

#[test]
fn three_nodes_have_three_members_lose_the_first_and_have_three_again() {
    let Some(bed) = bed(4) else { return };
    let [a, b, c, d] = [bed.host(0), bed.host(1), bed.host(2), bed.host(3)];
    init(a);
    let joined = join_plainly(b, a);
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    bed.until("both live", TIMEOUT, || crate::cluster_etcd::alive(b) == 2);
    assert_eq!(voters(b), [a.name()], "two members are worse than one");
    refused(&b.run(&["node", "remove", a.name(), "--force"]), "has the only member of the cluster's etcd");
    let joined = join_plainly(c, a);
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    until_voters(&bed, a, &["alpha", "beta", "gamma"]);
    // A copy, of all that etcd holds, for root alone.
    let copy = bed.folder().join("copy");
    let said = c.ok(&["node", "etcd", "backup", &copy.to_string_lossy()]);
    assert!(said.contains("SHA-256"), "{said}");
    refused(&c.run(&["node", "etcd", "backup", &copy.to_string_lossy()]), "can't write");
    // The power of the node fails that began it all.
    bed.until("all live", TIMEOUT, || [a, b, c].iter().all(|host| crate::cluster_etcd::alive(host) == 3));
    a.kill();
    bed.until("the others notice", TIMEOUT, || {
        crate::cluster_etcd::alive(b) == 2 && crate::cluster_etcd::alive(c) == 2
    });
    b.up_ok("name = \"test\"\n[domain.web]\nkind = \"process\"\nnode = \"gamma\"\ncommand = [\"sleep\", \"infinity\"]\n");
    b.ok(&["node", "remove", a.name()]);
    until_voters(&bed, b, &["beta", "gamma"]);
    // Another node comes in its place.
    let joined = join_plainly(d, b);
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    until_voters(&bed, d, &["beta", "delta", "gamma"]);
    for host in [b, c, d] {
        member(&bed, host);
    }
    assert!(d.ok(&["ps"]).contains("running"), "what ran is lost");
    bed.finish();
}

/// Five nodes, five members: any two may be lost, and when a node goes for good, the next one has
/// its member.
#[test]
fn five_nodes_have_five_members_and_the_next_node_takes_the_place_of_one_that_went() {
    let Some(bed) = bed(6) else { return };
    let hosts: Vec<&Host> = bed.hosts().iter().collect();
    init(hosts[0]);
    for &host in &hosts[1..5] {
        let joined = join_plainly(host, hosts[0]);
        assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    }
    let five: Vec<&str> = hosts[..5].iter().map(|host| host.name()).collect();
    let mut sorted = five.clone();
    sorted.sort_unstable();
    until_voters(&bed, hosts[0], &sorted);
    // Two of the five, the one that began it all among them.
    hosts[0].kill();
    hosts[1].kill();
    bed.until("the others notice", TIMEOUT, || crate::cluster_etcd::alive(hosts[2]) == 3);
    hosts[2]
        .up_ok("name = \"test\"\n[domain.web]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\n");
    bed.until("it runs", TIMEOUT, || hosts[2].ok(&["ps"]).contains("running"));
    hosts[2].ok(&["node", "remove", hosts[0].name()]);
    until_voters(&bed, hosts[2], &["beta", "delta", "epsilon", "gamma"]);
    // Etcd takes no member while one of those that it counts on is away.
    hosts[1].boot();
    bed.start_daemon(hosts[1]);
    bed.until("the other one is back", TIMEOUT, || crate::cluster_etcd::alive(hosts[2]) == 4);
    let joined = join_plainly(hosts[5], hosts[2]);
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    until_voters(&bed, hosts[5], &["beta", "delta", "epsilon", "gamma", "zeta"]);
    assert!(hosts[5].ok(&["ps"]).contains("running"), "what ran is lost");
    bed.finish();
}

/// All is lost but a copy: it is begun again on one node, and the others follow.
#[test]
fn an_etcd_that_is_lost_is_begun_again_from_a_copy_and_grows_to_three() {
    let Some(bed) = bed(3) else { return };
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    init(a);
    for host in [b, c] {
        let joined = join_plainly(host, a);
        assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    }
    until_voters(&bed, a, &["alpha", "beta", "gamma"]);
    let file = |name: &str| {
        format!(
            "name = \"{name}\"\n[domain.web]\nkind = \"process\"\nnode = \"gamma\"\ncommand = [\"sleep\", \"infinity\"]\n"
        )
    };
    a.up_ok(&file("kept"));
    let copy = bed.folder().join("copy");
    a.ok(&["node", "etcd", "backup", &copy.to_string_lossy()]);
    a.up_ok(&file("lost"));
    let restore = ["node", "etcd", "restore", &copy.to_string_lossy()];
    refused(&a.run(&restore), "another daemon");
    // The disks of two members are gone: nobody has a majority any more.
    for host in [a, b, c] {
        kill_and_wait(&[pids_of(&host.run_dir(), "daemon"), members(host)].concat());
    }
    for host in [a, b] {
        std::fs::remove_dir_all(host.state_dir().join("etcd")).expect("it was there");
    }
    let half = bed.folder().join("half");
    std::fs::write(&half, &std::fs::read(&copy).expect("the copy")[..10_000]).expect("written");
    refused(&a.run(&["node", "etcd", "restore", &half.to_string_lossy()]), "SHA-256");
    a.ok(&restore);
    for host in [b, c] {
        host.ok(&["node", "etcd", "restore", "--at", &at(a)]);
    }
    for host in [a, b, c] {
        bed.start_daemon(host);
    }
    bed.until("all live", TIMEOUT, || [a, b, c].iter().all(|host| crate::cluster_etcd::alive(host) == 3));
    until_voters(&bed, a, &["alpha", "beta", "gamma"]);
    bed.until("what the copy holds runs, and nothing else", TIMEOUT, || {
        let said = a.ok(&["ps"]);
        said.contains("kept") && said.contains("running") && !said.contains("lost")
    });
    a.ok(&["down", "kept"]);
    bed.finish();
}
