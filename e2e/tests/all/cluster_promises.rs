//! Promises in a cluster: what is strict runs where they are kept or nowhere, and everybody says
//! why.

use e2e::cluster::{Bed, Host, Witness, has_clocks};
use serde_json::Value;
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(25);

/// Three nodes with one member of etcd, so that two of them may be lost; they have little, more and
/// most memory to promise, and one processor each.
fn cluster() -> Option<Bed> {
    of(Bed::with_etcd(3, 1)?)
}

fn of(bed: Bed) -> Option<Bed> {
    bed.join_all(1, &[]);
    for (host, memory) in bed.hosts().iter().zip(["64MiB", "128MiB", "256MiB"]) {
        host.ok(&["reserve", "node", "--processors", "0", "--memory", memory]);
    }
    Some(bed)
}

/// A domain that writes into the bed's folder that it lives, with a promise.
fn domain(bed: &Bed, name: &str, reserve: &str, more: &str) -> String {
    let programs = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");
    let folder = bed.folder().display();
    format!(
        "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"python3\", \"/programs/witness.py\", \"/bed/{name}.lives\"]\n\
         mounts = [{{ source = \"{programs}\", target = \"/programs\" }}, {{ source = \"{folder}\", target = \"/bed\", read_only = false }}]\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", elsewhere = true }}\nreserve = {{ {reserve} }}\n{more}\n"
    )
}

fn film(domains: &[String]) -> String {
    format!("name = \"film\"\n{}", domains.concat())
}

fn row(host: &Host, domain: &str) -> Value {
    let rows = host.json(&["ps"]);
    let found = rows.as_array().expect("a list").iter().find(|row| row["domain"] == domain).cloned();
    found.unwrap_or_default()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_default()
}

fn runs_on(host: &Host, domain: &str, node: &str) -> bool {
    let row = row(host, domain);
    (text(&row, "state"), text(&row, "node")) == ("running", node)
}

/// The node's words on a promise of its own.
fn shown(host: &Host, name: &str) -> Value {
    serde_json::from_str(&host.run(&["reserve", "show", name, "--json"]).out).unwrap_or_default()
}

#[test]
fn a_strict_domain_runs_where_its_promise_is_kept_and_waits_where_none_can() {
    let Some(bed) = cluster() else { return };
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    let both = film(&[
        domain(
            &bed,
            "gold",
            "strict = true, cpu = { budget = \"10ms\", period = \"40ms\" }, memory = \"100MiB\"",
            "",
        ),
        domain(&bed, "plain", "memory = \"110MiB\"", "node = \"beta\"").replace(", elsewhere = true", ""),
    ]);
    // Before anything is started: which node can't, and why not.
    let large = film(&[domain(&bed, "huge", "memory = \"300MiB\"", "")]);
    let refused = a.up(&large);
    assert_eq!(refused.code, 1, "{refused:?}");
    for said in ["alpha can't promise it", "beta can't promise it", "gamma can't promise it", "of 256 MiB"] {
        assert!(refused.err.contains(said), "{said:?} is not in {}", refused.err);
    }
    assert_eq!(a.json(&["ps"]), Value::Array(Vec::new()));

    // It lands where there is room, whoever was asked; a file is not held against the node where it
    // is said.
    a.up_ok(&both);
    assert!(runs_on(a, "gold", "gamma") && runs_on(a, "plain", "beta"), "{}", a.json(&["ps"]));
    assert_eq!(shown(c, "gold")["in_force"], true);
    assert!(
        a.json(&["reserve", "ls"])["vtms"].as_array().is_some_and(Vec::is_empty),
        "alpha promises nothing"
    );
    // Every node says what each has left.
    let free = |host: &Host, name: &str| {
        let row = host.json(&["node", "show", name]);
        (
            row["free"]["processors_ppm"][0].as_u64(),
            row["free"]["memory_bytes"].as_u64().map(|bytes| bytes >> 20),
        )
    };
    for host in [a, c] {
        bed.until("gamma has 156 MiB left, and three quarters of its processor", TIMEOUT, || {
            free(host, "gamma") == (Some(750_000), Some(156))
        });
        assert_eq!(
            (free(host, "alpha"), free(host, "beta")),
            ((Some(1_000_000), Some(64)), (Some(1_000_000), Some(18)))
        );
    }
    let listed = a.ok(&["node", "ls"]);
    assert!(listed.contains("FREE TO PROMISE") && listed.contains("0.75 of"), "{listed}");
    // What a process took that is no domain counts as well.
    let full = a.up(&film(&[domain(&bed, "late", "memory = \"160MiB\"", "")]).replace("film", "other"));
    assert!(full.code == 1 && full.err.contains("gamma can't promise it"), "{}", full.err);

    // Drained: beta has 18 MiB left, alpha 64: it stays, and says why.
    a.ok(&["node", "drain", "gamma"]);
    bed.until("it says why it stays", TIMEOUT, || {
        text(&row(a, "gold"), "why").contains("beta can't promise it")
    });
    assert!(runs_on(a, "gold", "gamma"), "{}", row(a, "gold"));
    a.ok(&["node", "undrain", "gamma"]);

    // Its node is lost, and nobody has room: it runs nowhere.
    c.kill();
    bed.until("it is nowhere, and all nodes say why", TIMEOUT, || {
        [a, b].iter().all(|host| {
            let row = row(host, "gold");
            let why = text(&row, "why").to_owned();
            text(&row, "state") == "lost"
                && ["alpha can't promise it", "beta can't promise it", "gamma is lost"]
                    .iter()
                    .all(|said| why.contains(said))
        })
    });
    // There is room again: it goes there.
    a.ok(&["reserve", "node", "--memory", "256MiB"]);
    bed.until("it runs where there is room", TIMEOUT, || runs_on(b, "gold", "alpha"));
    assert_eq!(shown(a, "gold")["in_force"], true);
    Witness::new(bed.folder(), "gold.lives").assert_never_two();
    bed.until("all is down", TIMEOUT, || a.run(&["down", "--all"]).code == 0);
    bed.finish();
}

#[test]
fn what_is_not_strict_runs_without_its_promise_says_so_and_gets_it_when_there_is_room() {
    // The nodes' clocks that nobody sets, by which leases go, are days apart: no node compares them
    // with another's.
    let days = if has_clocks() { [400, 0, 3] } else { [0; 3] };
    let uptimes = days.map(|days| Duration::from_secs(days * 86_400));
    let Some(bed) = Bed::with_etcd_at_times(&uptimes, 1).and_then(of) else { return };
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    let loose = "cpu = { budget = \"30ms\", period = \"40ms\" }, memory = \"150MiB\"";
    a.up_ok(&film(&[domain(&bed, "loose", loose, "")]));
    assert!(runs_on(a, "loose", "gamma"), "{}", a.json(&["ps"]));
    c.kill();
    bed.until("it runs without its promise, and says so", TIMEOUT, || {
        [a, b].iter().all(|host| {
            let row = row(host, "loose");
            text(&row, "state") == "running" && text(&row, "why").contains("it runs without its promise")
        })
    });
    let at = bed.named(text(&row(a, "loose"), "node"));
    let without = shown(at, "loose");
    assert_eq!(without["in_force"], false, "{without}");
    assert!(without["caveats"].to_string().contains("it runs without its promise"), "{without}");
    let lives = Witness::new(bed.folder(), "loose.lives").lives().len();
    at.ok(&["reserve", "node", "--memory", "256MiB"]);
    bed.until("it has its promise", TIMEOUT, || shown(at, "loose")["in_force"] == true);
    assert!(shown(at, "loose")["caveats"].as_array().is_some_and(Vec::is_empty), "{}", shown(at, "loose"));
    bed.until("nobody says otherwise", TIMEOUT, || row(b, "loose")["why"].is_null());
    assert_eq!(Witness::new(bed.folder(), "loose.lives").lives().len(), lives, "it ran on");
    bed.until("all is down", TIMEOUT, || a.run(&["down", "--all"]).code == 0);
    bed.finish();
}

#[test]
fn a_node_that_finds_out_that_it_cannot_keep_a_strict_promise_hands_it_on_and_at_last_all_are_told() {
    let Some(bed) = cluster() else { return };
    let a = bed.host(0);
    // No kernel keeps this by a quota, which only shows when it is tried.
    let odd = "strict = true, outside = \"idle\", cpu = { budget = \"10ms\", period = \"40ms\" }";
    let refused = a.up(&film(&[domain(&bed, "gold", odd, "")]));
    assert_eq!(refused.code, 1, "{refused:?}");
    for name in ["alpha", "beta", "gamma"] {
        assert!(refused.err.contains(&format!("{name} has refused it")), "{name}: {}", refused.err);
    }
    assert!(refused.err.contains("a quota holds whoever has used its budget up"), "{}", refused.err);
    assert_eq!(Witness::new(bed.folder(), "gold.lives").lives().len(), 0, "it ran nowhere");
    assert_eq!(a.json(&["ps"]), Value::Array(Vec::new()));
    // With another file nothing of that is held against it.
    a.up_ok(&film(&[domain(&bed, "gold", &odd.replace("idle", "held"), "")]));
    // A change that only another node can keep moves it there.
    let first = text(&row(a, "gold"), "node").to_owned();
    assert_eq!(shown(bed.named(&first), "gold")["in_force"], true);
    let more = odd.replace("idle", "held").replace("strict = true", "strict = true, memory = \"200MiB\"");
    a.up_ok(&film(&[domain(&bed, "gold", &more, "")]));
    bed.until("it runs where there is so much", TIMEOUT, || runs_on(a, "gold", "gamma"));
    bed.until("its promise is kept there", TIMEOUT, || shown(bed.host(2), "gold")["in_force"] == true);
    bed.until("all is down", TIMEOUT, || a.run(&["down", "--all"]).code == 0);
    bed.finish();
}
