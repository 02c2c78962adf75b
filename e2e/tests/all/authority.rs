//! The cluster's authority is replaced under use, over deaths, and against who has stolen the one
//! before.

use super::cluster_services::LOOKUPS;
use super::joining::{
    TIMEOUT, ask, begun, join_as, links_up, nodes, refused, release, resolves, resolving, token, trust,
};
use e2e::cluster::{Bed, Host};
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

fn authority(host: &Host) -> Value {
    host.json(&["node", "authority"])
}

fn waits_for(host: &Host) -> Vec<String> {
    let view = authority(host);
    let waits = view["replacement"]["waits_for"].as_array().cloned().unwrap_or_default();
    waits.iter().filter_map(|one| Some(one["node"].as_str()?.to_owned())).collect()
}

/// Waits until all these nodes have the same authority, and not this one; returns which.
fn replaced(bed: &Bed, hosts: &[&Host], before: &Value) -> Value {
    bed.until("the authority is another everywhere", TIMEOUT, || {
        hosts.iter().all(|host| {
            let view = authority(host);
            view["replacement"].is_null() && view["fingerprint"] != *before
        })
    });
    let now = authority(hosts[0])["fingerprint"].clone();
    for host in hosts {
        bed.until("it believes that one alone", TIMEOUT, || {
            let trusted = std::fs::read_to_string(trust(host).join("trusted.pem")).expect("what it believes");
            trusted.matches("BEGIN").count() == 1 && !trust(host).join("authority.next.pem").exists()
        });
        assert_eq!(authority(host)["fingerprint"], now);
    }
    now
}

/// A certificate of a node, by whoever has the key of the authority that a node had.
fn forged(bed: &Bed, stolen: &trust::Authority, node: &str) -> PathBuf {
    let request = trust::Request::new(node).expect("a request");
    let chain = stolen.sign(&request.pem().expect("its text"), node, SystemTime::now());
    let file = bed.folder().join("forged.pem");
    std::fs::write(&file, request.key_pem() + &chain.expect("a certificate")).expect("written");
    file
}

#[test]
fn the_authority_is_replaced_under_use_and_who_has_stolen_the_former_is_shut_out() {
    let Some(bed) = begun(4) else { return };
    let [a, b, c, d] = [bed.host(0), bed.host(1), bed.host(2), bed.host(3)];
    for (host, more) in [(b, &[][..]), (c, &["--no-authority"])] {
        let joined = join_as(host, a, &token(a, more));
        assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    }
    a.up_ok(&resolving());
    bed.until("the name is resolved over the link", TIMEOUT, || resolves(a));
    let stolen = std::fs::read_to_string(trust(a).join("authority.pem")).expect("an authority");
    let stolen = trust::Authority::from_pem(&stolen).expect("an authority");
    let forged = forged(&bed, &stolen, "gamma");
    let header = release(a);
    let hello = |certificate: &Path| ask(a, b, Some(certificate), "/v1/hello", &["--header", &header]);
    assert!(hello(&forged).contains("\"caller\":\"gamma\""), "{}", hello(&forged));
    let unused = token(a, &[]);
    let before = authority(a)["fingerprint"].clone();
    assert_eq!((authority(a)["here"].clone(), authority(c)["here"].clone()), (json!(true), json!(false)));
    refused(&c.run(&["node", "authority", "replace"]), "node gamma has not the cluster's authority");
    let mut asking = a
        .command(&["exec", "web", "--", "sh", "-c", LOOKUPS])
        .stdout(Stdio::piped())
        .spawn()
        .expect("look names up");
    let connections =
        || a.json(&["link", "show", "beta"])["state"]["link"]["connections"].as_u64().unwrap_or(0);
    let made = connections();

    // A node is down: it is waited for, and everything else goes on.
    c.kill_role("daemon");
    let said = b.ok(&["node", "authority", "replace", "--no-wait"]);
    assert!(said.contains("is to take the place of"), "{said}");
    bed.until("only the node that is down is missed", TIMEOUT, || waits_for(a) == ["gamma"]);
    let shown = a.ok(&["node", "authority"]);
    assert!(shown.contains("begun at beta") && shown.contains("does not believe the next"), "{shown}");
    refused(&a.run(&["node", "authority", "replace"]), "node beta began to replace the authority");
    refused(&a.run(&["node", "token"]), "the cluster's authority is being replaced");
    refused(&a.run(&["node", "rotate"]), "the cluster's authority is being replaced");
    refused(&join_as(d, a, &unused), "the cluster's authority is being replaced");
    // The thief is believed still, and gets nothing of the next one.
    let text = std::fs::read_to_string(&forged).expect("a certificate");
    let chain = text.get(text.find("-----BEGIN CERTIFICATE").expect("one")..).expect("a boundary");
    let serial = trust::peer_of_pem(chain).expect("who it says it is").serial;
    let proof = json!({ "proof_pem": stolen.proof("gamma", &serial).expect("a proof") }).to_string();
    let more = ["--header", &header, "--data", &proof];
    let answer = ask(a, b, Some(&forged), "/v1/authority", &more);
    assert!(answer.contains("certificate is not of the next authority"), "{answer}");
    // Who began dies, and goes on where it was.
    b.kill_role("daemon");
    bed.start_daemon(b);
    bed.start_daemon(c);
    let next = replaced(&bed, &[a, b, c], &before);
    assert!(hello(&forged).contains("unknown ca"), "{}", hello(&forged));
    assert!(hello(&trust(a).join("identity.pem")).contains("\"caller\":\"alpha\""));
    let has = |host: &Host| authority(host)["here"] == true;
    assert_eq!([a, b, c].map(has), [true, true, false], "who had the one before has it");
    bed.until("every link is up", TIMEOUT, || [a, b, c].iter().all(|host| links_up(host) == 2));
    bed.until("what was shown before is believed no more", TIMEOUT, || connections() > made);
    bed.until("the name is resolved", TIMEOUT, || resolves(a));
    refused(&join_as(d, b, &unused), "has not the authority that the token names");
    let joined = join_as(d, b, &token(b, &[]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());

    // Once more, to its end, and one node is gone for good.
    c.kill_role("daemon");
    let said = d.ok(&["node", "authority", "replace", "--no-wait"]);
    assert!(said.contains("is to take the place of"), "{said}");
    bed.until("the node that is down is missed", TIMEOUT, || waits_for(a) == ["gamma"]);
    bed.until("it is removed", TIMEOUT, || a.run(&["node", "remove", "gamma"]).code == 0);
    let last = replaced(&bed, &[a, b, d], &next);
    bed.start_daemon(c);
    bed.until("it is told", TIMEOUT, || c.json(&["node", "ls"])["removed"] == true);
    let joined = join_as(c, a, &token(a, &[]));
    assert_eq!(joined.code, 0, "{joined:?}{}", bed.logs());
    bed.until("all are there", TIMEOUT, || nodes(c).len() == 4 && links_up(c) == 3);
    // As a person does who waits.
    let said = c.ok(&["node", "authority", "replace"]);
    assert!(said.contains("every node shows a certificate of authority"), "{said}");
    replaced(&bed, &[a, b, c, d], &last);
    a.ok(&["exec", "web", "--", "touch", "/tmp/enough"]);
    let mut said = String::new();
    asking.stdout.take().expect("its output").read_to_string(&mut said).expect("what was lost");
    assert!(asking.wait().expect("its end").success());
    assert!(said.starts_with("asked "), "{said}");
    a.ok(&["down", "--all"]);
    bed.finish();
}
