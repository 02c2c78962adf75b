//! Volumes with replicas on several nodes: one survives the loss of a node, and no acknowledged
//! write is lost.

use e2e::cluster::{Bed, Host, now_ns};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs");

fn cluster() -> Option<Bed> {
    if !Path::new("/usr/bin/qemu-storage-daemon").exists() {
        println!("skipped: needs qemu-storage-daemon (qemu-system-common); run `make deps`");
        return None;
    }
    let bed = Bed::with_etcd(3, 3)?;
    bed.join_all(3, &[]);
    Some(bed)
}

/// A domain whose program writes to a volume with two replicas, and notes in the bed's folder what
/// was acknowledged.
fn file(bed: &Bed) -> String {
    let folder = bed.folder().display();
    format!(
        "name = \"test\"\n[volume.data]\nsize = \"16MiB\"\nreplicas = 2\n\
         [domain.db]\nkind = \"container\"\nroot = \"host\"\nvolumes = {{ data = {{}} }}\n\
         command = [\"python3\", \"/programs/ledger.py\", \"/run/volumes/data/nbd.sock\", \"/bed\", \"db\", \"0\"]\n\
         mounts = [{{ source = \"{PROGRAMS}\", target = \"/programs\" }}, {{ source = \"{folder}\", target = \"/bed\", read_only = false }}]\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", elsewhere = true }}\n"
    )
}

fn show(host: &Host) -> Value {
    let run = host.run(&["volume", "show", "test/data", "--json"]);
    serde_json::from_str(&run.out).unwrap_or_default()
}

fn lines(bed: &Bed, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(bed.folder().join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// When each write was acknowledged, in ns.
fn acknowledged(bed: &Bed, name: &str) -> Vec<u64> {
    let lines = lines(bed, &format!("{name}.acked"));
    lines.iter().filter_map(|line| line.split(' ').nth(2)?.parse().ok()).collect()
}

/// Waits until the writer has found after its start, for the `count`th time, that nothing is lost,
/// and writes.
fn verified(bed: &Bed, count: usize) {
    bed.until("the writer has looked at all that was acknowledged", TIMEOUT, || {
        let verdicts = lines(bed, "db.verdict");
        let lost: Vec<_> = verdicts.iter().filter(|line| line.starts_with("lost")).collect();
        assert!(lost.is_empty(), "acknowledged writes are lost: {lost:#?}{}", bed.logs());
        verdicts.len() >= count
    });
    let before = acknowledged(bed, "db").len();
    bed.until("writes are acknowledged", TIMEOUT, || acknowledged(bed, "db").len() > before + 100);
}

/// The node that serves the volume, by the word of the one that does.
fn primary<'b>(bed: &'b Bed, but: &[&str]) -> &'b Host {
    let mut found = None;
    bed.until("a node serves the volume", TIMEOUT, || {
        let hosts = bed.hosts().iter().filter(|host| host.is_up() && !but.contains(&host.name()));
        found = hosts.into_iter().find(|host| show(host)["state"] == "serving");
        found.is_some()
    });
    found.expect("a node")
}

fn replicas(host: &Host) -> Vec<(String, String)> {
    let row = show(host);
    let text = |replica: &Value, key: &str| replica[key].as_str().unwrap_or_default().to_owned();
    let replicas = row["replicas"].as_array().cloned().unwrap_or_default();
    replicas.iter().map(|replica| (text(replica, "node"), text(replica, "state"))).collect()
}

fn all_current(bed: &Bed, host: &Host) {
    bed.until("both replicas are current", TIMEOUT, || {
        let replicas = replicas(host);
        replicas.len() == 2 && replicas.iter().all(|(_, state)| state == "current")
    });
}

/// A writer beside the domain's, on a node, at the volume's socket there: nothing ends it when its
/// node is cut off.
fn rogue(bed: &Bed, host: &Host) -> Child {
    let socket: PathBuf = host.run_dir().join("volumes/test/data/share/nbd.sock");
    let mut writer = host.inside(Path::new("python3"));
    writer.args([&format!("{PROGRAMS}/ledger.py"), &socket.display().to_string()]);
    writer.args([&bed.folder().display().to_string(), "rogue", "128"]);
    writer.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a writer")
}

fn down(bed: Bed, host: usize) {
    bed.until("all is down", TIMEOUT, || bed.host(host).run(&["down", "--all"]).code == 0);
    bed.finish();
}

#[test]
fn a_volume_survives_the_loss_of_its_node_and_the_one_that_returns_is_resynced_and_takes_over() {
    let Some(bed) = cluster() else { return };
    bed.host(0).up_ok(&file(&bed));
    verified(&bed, 1);
    let first = primary(&bed, &[]);
    all_current(&bed, first);
    let view = show(first)["view"].as_u64().expect("a view");
    // The power fails: daemon, domain, engine, replica, all of it.
    first.kill();
    verified(&bed, 2);
    let second = primary(&bed, &[first.name()]);
    let row = show(second);
    assert!(row["view"].as_u64() > Some(view), "{row}");
    assert_eq!(row["primary"], second.name());
    let states = replicas(second);
    assert!(states.contains(&(first.name().to_owned(), "behind".to_owned())), "{states:?}");
    bed.come_back(first, 3);
    all_current(&bed, second);
    // What it has was written while it was away.
    second.kill();
    verified(&bed, 3);
    assert_eq!(primary(&bed, &[second.name()]).name(), first.name());
    bed.come_back(second, 3);
    all_current(&bed, first);
    down(bed, 0);
}

#[test]
fn a_primary_that_is_cut_off_gets_no_write_acknowledged_after_another_has_taken_over() {
    let Some(bed) = cluster() else { return };
    bed.host(0).up_ok(&file(&bed));
    verified(&bed, 1);
    let old = primary(&bed, &[]);
    all_current(&bed, old);
    let mut writer = rogue(&bed, old);
    bed.until("the other writer writes", TIMEOUT, || acknowledged(&bed, "rogue").len() > 100);
    bed.switch().black_hole(old.port());
    let new = primary(&bed, &[old.name()]);
    let taken_over = now_ns();
    verified(&bed, 2);
    assert!(writer.try_wait().expect("a process").is_none(), "the other writer has ended");
    let late: Vec<u64> = acknowledged(&bed, "rogue").into_iter().filter(|at| *at > taken_over).collect();
    assert_eq!(late, Vec::<u64>::new(), "the old primary acknowledged writes");
    let ended = writer.kill().and_then(|()| writer.wait());
    ended.expect("the other writer ends");
    bed.switch().heal(old.port());
    all_current(&bed, new);
    // It has all that was acknowledged meanwhile, and none of what was not.
    new.kill();
    verified(&bed, 3);
    bed.come_back(new, 3);
    down(bed, 0);
}

#[test]
fn a_replica_that_fails_is_struck_off_and_writers_go_on() {
    let Some(bed) = cluster() else { return };
    bed.host(0).up_ok(&file(&bed));
    verified(&bed, 1);
    let serving = primary(&bed, &[]);
    all_current(&bed, serving);
    let states = replicas(serving);
    let other = states.iter().map(|(node, _)| node.as_str()).find(|node| *node != serving.name());
    let other = bed.named(other.expect("another replica"));
    // Its process alone, then its engine too: the connection is cut, and comes back.
    other.kill_role("replica");
    verified(&bed, 1);
    all_current(&bed, serving);
    // The daemons and the processes of the replica that serves: the domain's connection is cut, and
    // the next view serves it.
    serving.kill_role("replica");
    verified(&bed, 1);
    all_current(&bed, serving);
    // Without a daemon writes go on only as long as the lease; the next daemon takes the processes
    // over.
    let view = show(serving)["view"].clone();
    serving.kill_role("daemon");
    bed.start_daemon(serving);
    verified(&bed, 1);
    bed.until("the next daemon knows the volume", TIMEOUT, || show(serving)["state"] == "serving");
    assert_eq!(show(serving)["view"], view, "the view goes on");
    let lost = other.name().to_owned();
    other.kill();
    verified(&bed, 1);
    bed.until("it is struck off", TIMEOUT, || {
        replicas(serving).contains(&(lost.clone(), "behind".to_owned()))
    });
    let refused = serving.run(&["volume", "rm", "test/data"]);
    assert!(refused.code != 0 && refused.err.contains("in use by the domain db"), "{refused:?}");
    bed.come_back(other, 3);
    all_current(&bed, serving);
    let serving = serving.name().to_owned();
    bed.until("all is down", TIMEOUT, || bed.host(0).run(&["down", "--all"]).code == 0);
    let serving = bed.named(&serving);
    bed.until("it is removed", TIMEOUT, || serving.run(&["volume", "rm", "test/data"]).code == 0);
    for host in bed.hosts() {
        assert!(!host.state_dir().join("volumes/test").exists(), "{} keeps its replica", host.name());
    }
    bed.finish();
}
