//! Secrets: values that are files in memory of the containers which read them, and nowhere else but
//! in a folder of root's.

use e2e::cluster::Bed;
use e2e::node::{Node, Run};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const VALUE: &str = "correct-horse-battery-staple";

const FILE: &str = r#"
name = "shop"

[domain.db]
kind = "container"
command = ["sleep", "infinity"]
secrets = ["db_password", "tls.key"]
user = "nobody"
restart = { policy = "always", backoff = "50ms", max_backoff = "500ms" }

[domain.web]
kind = "container"
command = ["sleep", "infinity"]
"#;

fn set(mut command: Command, value: &[u8]) -> Run {
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("tombolo starts");
    // One that refuses the name does not read the value.
    let _unread = child.stdin.take().expect("its input").write_all(value);
    child.wait_with_output().expect("it ends").into()
}

/// The files below a folder in which the value stands.
fn found(folder: &Path) -> Vec<String> {
    let output = Command::new("grep").args(["-rlaF", VALUE]).arg(folder).output().expect("grep");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn secrets_are_files_in_memory_of_whom_they_are_for_and_stand_nowhere_else() {
    let Some(node) = Node::start() else { return };
    let set = |name: &str, value: &[u8]| set(node.command(&["secret", "set", name]), value);
    // Whatever is not set is told before anything is touched.
    node.up_ok("name = \"other\"\n[domain.a]\nkind = \"container\"\ncommand = [\"sleep\", \"infinity\"]\n");
    let run = node.up(FILE);
    assert!(
        run.code != 0 && run.err.contains("db_password") && run.err.contains("secret set shop/db_password"),
        "{run:?}"
    );
    let run = set("shop/db_password", VALUE.as_bytes());
    assert!(run.code == 0 && run.out.contains("revision 1"), "{run:?}");
    assert_eq!(set("shop/tls.key", b"two\nlines\n\0").code, 0);
    node.up_ok(FILE);
    // Its own user reads it as it was set, nobody else does, and nobody writes it.
    assert_eq!(node.shell_ok("db", "cat /run/secrets/db_password"), VALUE);
    assert_eq!(node.shell_ok("db", "od -An -c /run/secrets/tls.key | tr -d ' \n'"), "two\\nlines\\n\\0");
    assert_eq!(
        node.shell_ok("db", "stat -f -c %T /run/secrets; ls /run/secrets"),
        "tmpfs\ndb_password\ntls.key\n"
    );
    let as_root =
        node.run(&["exec", "--user", "0", "db", "--", "bash", "-c", "echo x > /run/secrets/db_password"]);
    assert!(as_root.code != 0 && as_root.err.contains("Read-only"), "{as_root:?}");
    assert_ne!(node.shell("db", "rm -f /run/secrets/db_password").code, 0);
    assert_ne!(node.shell("web", "ls /run/secrets").code, 0);
    // It stands in no registry, log, status or file of the machine but in one, which is root's.
    let files = found(node.folder());
    let ours = node.state_dir().join("secrets/shop/db_password");
    assert!(matches!(files.as_slice(), [one] if one.starts_with(&*ours.to_string_lossy())), "{files:?}");
    for told in [
        node.ok(&["inspect", "db", "--json"]),
        node.ok(&["secret", "ls", "--json"]),
        node.ok(&["history", "shop", "--show", "1"]),
        node.ok(&["events"]),
        node.ok(&["exec", "db", "--", "env"]),
        node.ok(&["exec", "db", "--", "cat", "/proc/self/mountinfo"]),
    ] {
        assert!(!told.contains(VALUE), "{told}");
    }
    let rows = node.json(&["secret", "ls"]);
    assert_eq!(
        (&rows[0]["secret"], &rows[0]["domains"][0], &rows[0]["bytes"]),
        (&"db_password".into(), &"db".into(), &28.into())
    );
    // The former value goes, and what runs goes on with it until it starts again.
    let run = set("shop/db_password", b"new");
    assert!(run.code == 0 && run.out.contains("tombolo restart shop/db"), "{run:?}");
    assert_eq!(found(node.folder()), Vec::<String>::new());
    assert_eq!(node.shell_ok("db", "cat /run/secrets/db_password"), VALUE);
    node.kill_daemon();
    node.ok(&["up", &node.folder().join("topology.toml").to_string_lossy()]);
    assert_eq!(node.shell_ok("db", "cat /run/secrets/db_password"), VALUE);
    node.ok(&["restart", "shop/db"]);
    assert_eq!(node.shell_ok("db", "cat /run/secrets/db_password"), "new");
    // A file that reads one more restarts its container.
    assert_eq!(set("shop/more", b"more").code, 0);
    node.up_ok(&FILE.replace("\"tls.key\"]", "\"tls.key\", \"more\"]"));
    assert_eq!(node.shell_ok("db", "cat /run/secrets/more"), "more");
    // Nonsense is refused, and loses nothing.
    for (name, value) in [
        ("shop", &b"x"[..]),
        ("shop/", b"x"),
        ("/x", b"x"),
        ("shop/../x", b"x"),
        ("shop/.hidden", b"x"),
        ("SHOP/x", b"x"),
        ("shop/empty", b""),
        ("shop/long", &vec![b'x'; (64 << 10) + 1]),
    ] {
        let run = set(name, value);
        assert!(run.code != 0 && run.err.starts_with("error: "), "{name}: {run:?}");
    }
    let run = node.run(&["secret", "rm", "shop/more"]);
    assert!(run.code != 0 && run.err.contains("is read by db"), "{run:?}");
    let run = node.run(&["secret", "rm", "shop/mor"]);
    assert!(run.code != 0 && run.err.contains("did you mean \"shop/more\"?"), "{run:?}");
    node.ok(&["down", "--all"]);
    for name in ["shop/more", "shop/tls.key", "shop/db_password"] {
        node.ok(&["secret", "rm", name]);
    }
    assert!(node.ok(&["secret", "ls"]).contains("no secrets"));
    let left = std::fs::read_dir(node.state_dir().join("secrets")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "values of secrets that were removed");
}

#[test]
fn a_process_reads_its_secrets_where_nobody_else_of_the_machine_sees_them() {
    let Some(node) = Node::start() else { return };
    assert_eq!(set(node.command(&["secret", "set", "shop/pin"]), VALUE.as_bytes()).code, 0);
    let file = "name = \"shop\"\n[domain.p]\nkind = \"process\"\ncommand = [\"sleep\", \"infinity\"]\nsecrets = [\"pin\"]\n";
    node.up_ok(file);
    assert_eq!(node.shell_ok("p", "cat $TOMBOLO_SECRETS/pin"), VALUE);
    let run = node.shell("p", "echo x > $TOMBOLO_SECRETS/pin");
    assert!(run.code != 0 && run.err.contains("Read-only"), "{run:?}");
    let folder = node.run_dir().join("dc/shop/p/inside/secrets");
    assert_eq!(std::fs::read_dir(&folder).expect("the place of the mount").count(), 0);
    node.ok(&["down", "--all"]);
    assert!(!folder.exists());
    node.ok(&["secret", "rm", "shop/pin"]);
}

/// `safe` is on beta, and moves to whichever other node lives.
const MOVING: &str = r#"
name = "shop"

[domain.safe]
kind = "container"
command = ["sleep", "infinity"]
secrets = ["pin"]
labels = { role = "server" }
restart = { policy = "always", elsewhere = true }
"#;

#[test]
fn nodes_give_secrets_to_each_other_and_etcd_never_has_one() {
    let Some(bed) = Bed::with_etcd(3, 1) else { return };
    bed.join_all(1, &["role=none", "role=server", "role=server"]);
    let [alpha, beta, gamma] = [bed.host(0), bed.host(1), bed.host(2)];
    // Gamma is away while the secret is set.
    gamma.kill_role("daemon");
    let run = set(alpha.command(&["secret", "set", "shop/pin"]), VALUE.as_bytes());
    assert!(run.code == 0 && run.out.contains("alpha, beta"), "{run:?}");
    alpha.up_ok(MOVING);
    let reads = |host: &e2e::cluster::Host| host.run(&["exec", "safe", "--", "cat", "/run/secrets/pin"]);
    bed.until("it reads the secret", TIMEOUT, || reads(alpha).out == VALUE);
    // Gamma comes back and has to take over, and gets it from a node that has it.
    bed.start_daemon(gamma);
    bed.until("gamma is back", TIMEOUT, || {
        alpha.json(&["node", "ls"])["nodes"]
            .as_array()
            .is_some_and(|nodes| nodes.iter().all(|node| node["alive"] == true))
    });
    beta.kill();
    bed.until("it runs on gamma", TIMEOUT, || {
        let rows = alpha.json(&["ps"]);
        rows[0]["node"] == "gamma" && rows[0]["state"] == "running"
    });
    assert_eq!(reads(alpha).out, VALUE);
    assert_eq!(reads(gamma).out, VALUE);
    // No file of any node has it but in the folders of root's: not etcd's data, no log.
    for host in bed.hosts() {
        let of_root = host.state_dir().join("secrets/shop/pin");
        for file in found(host.folder()) {
            assert!(file.starts_with(&*of_root.to_string_lossy()), "{file}");
        }
    }
    alpha.ok(&["down", "--all"]);
    alpha.ok(&["secret", "rm", "shop/pin"]);
    assert_eq!(found(&alpha.state_dir()), Vec::<String>::new());
    bed.finish();
}
