//! A file tree between nodes: a domain of another node reads and writes it as one of the tree's own
//! node does.

use crate::file_locks::LOCKER;
use crate::file_trees::{LOOK, Program};
use e2e::cluster::{Bed, Host};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `disk` on beta serves a tree; `attic` beside it and `hall` on alpha write, `cellar` on alpha
/// reads.
fn topology() -> String {
    let client = |name: &str, node: &str| {
        format!(
            "[domain.{name}]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n\
             node = \"{node}\"\nservices = {{ tree = \"/srv/tree\" }}\n"
        )
    };
    format!(
        "name = \"house\"\n[domain.disk]\nkind = \"container\"\nnode = \"beta\"\n\
         restart = {{ policy = \"always\", backoff = \"50ms\", max_backoff = \"500ms\" }}\n{}{}{}\
         [service.tree]\nkind = \"files\"\ndomain = \"disk\"\n\
         allow = [{{ domains = [\"hall\", \"attic\"], verbs = [\"write\"] }}, {{ domains = [\"cellar\"], verbs = [\"read\"] }}]\n",
        client("hall", "alpha"),
        client("attic", "beta"),
        client("cellar", "alpha"),
    )
}

fn shell(host: &Host, domain: &str, line: &str) -> String {
    host.ok(&["exec", domain, "--", "bash", "-c", line])
}

fn program(host: &Host, domain: &str, open: &str, answer: &str) -> Program {
    let code = Program::code(open, answer);
    Program::run(host.command(&["exec", "-i", domain, "--", "/usr/bin/python3", "-c", &code]))
}

#[test]
fn a_tree_of_another_node_is_the_same_tree_whatever_dies_on_the_way() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    alpha.up_ok(&topology());
    let served = |domain: &str| {
        bed.until("the tree is served", TIMEOUT, || {
            alpha.run(&["exec", domain, "--", "ls", "/srv/tree"]).code == 0
        });
    };
    served("hall");
    served("cellar");
    // Each write is seen at once on the other node, also in files that are open.
    shell(alpha, "hall", "mkdir -p /srv/tree/a && echo one > /srv/tree/a/f");
    assert_eq!(shell(beta, "attic", "cat /srv/tree/a/f"), "one\n");
    let mut reader = program(alpha, "cellar", "os.open('/srv/tree/a/f',os.O_RDONLY)", LOOK);
    assert_eq!(reader.ask("?"), "b'one\\n' 4");
    shell(beta, "attic", "echo two >> /srv/tree/a/f");
    assert_eq!(reader.ask("?"), "b'one\\ntwo\\n' 8");
    // Both nodes append, and nothing is lost.
    let append = |host: &Host, name: &str| {
        let line = format!("for i in $(seq 200); do echo {name} >> /srv/tree/log; done");
        host.command(&["exec", name, "--", "bash", "-c", &line]).spawn().expect("tombolo starts")
    };
    for mut child in [append(alpha, "hall"), append(beta, "attic")] {
        assert!(child.wait().expect("it ends").success());
    }
    assert_eq!(shell(beta, "attic", "sort /srv/tree/log | uniq -c | tr -s ' '"), " 200 attic\n 200 hall\n");
    // A large file comes and goes whole.
    let sum = shell(alpha, "hall", "head -c 4M /dev/urandom | tee /srv/tree/big | sha256sum");
    assert_eq!(shell(beta, "attic", "sha256sum < /srv/tree/big"), sum);
    assert_eq!(shell(alpha, "cellar", "sha256sum < /srv/tree/big"), sum);
    // Who may only read does so from afar as well.
    let run = alpha.run(&["exec", "cellar", "--", "rm", "-f", "/srv/tree/big"]);
    assert!(run.code != 0 && run.err.contains("ermission denied"), "{run:?}");
    // A file that is open goes on after the cable, the proxies and the server were gone.
    let answer = "os.write(f,line.encode()),os.fsync(f)";
    let mut writer = program(alpha, "hall", "os.open('/srv/tree/w',os.O_RDWR|os.O_CREAT)", answer);
    assert_eq!(writer.ask("first"), "6 None");
    bed.switch().cut(beta.port());
    bed.switch().heal(beta.port());
    assert_eq!(writer.ask("cable"), "6 None");
    let server = || {
        let pid = beta.json(&["inspect", "dc/house/domains/disk"])["pid"].as_u64();
        e2e::node::kill(pid.and_then(|pid| u32::try_from(pid).ok()).expect("it runs"));
    };
    let deaths: [(&str, &dyn Fn()); 3] =
        [("alpha", &|| alpha.kill_role("proxy")), ("beta", &|| beta.kill_role("proxy")), ("server", &server)];
    for (name, dies) in deaths {
        dies();
        assert_eq!(writer.ask(name), format!("{} None", name.len() + 1));
        assert_eq!(reader.ask("?"), "b'one\\ntwo\\n' 8", "{name}");
    }
    assert_eq!(shell(beta, "attic", "cat /srv/tree/w"), "first\ncable\nalpha\nbeta\nserver\n");
    writer.end();
    reader.end();
    alpha.ok(&["down", "house"]);
    bed.finish();
}

#[test]
fn locks_hold_between_nodes() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let [alpha, beta] = [bed.host(0), bed.host(1)];
    alpha.up_ok(&topology());
    bed.until("the tree is served", TIMEOUT, || {
        ["hall", "attic"].iter().all(|domain| alpha.run(&["exec", domain, "--", "ls", "/srv/tree"]).code == 0)
    });
    let locker = |host: &Host, domain: &str| {
        Program::run(host.command(&["exec", "-i", domain, "--", "/usr/bin/python3", "-c", LOCKER]))
    };
    let (mut hall, mut attic) = (locker(alpha, "hall"), locker(beta, "attic"));
    assert_eq!(hall.ask("lk(EX,0,10)"), "done");
    assert_eq!(hall.ask("fl(SH)"), "done");
    assert_eq!(attic.ask("lk(SH|NB,9,1)"), "EAGAIN");
    assert_eq!(attic.ask("get(fcntl.F_RDLCK,0,0)"), "(1, 0, 10, 0)");
    assert_eq!(attic.ask("fl(EX|NB)"), "EAGAIN");
    attic.say("lk(EX)");
    let pid = hall.ask("os.getpid()");
    alpha.ok(&["exec", "hall", "--", "kill", "-9", &pid]);
    assert_eq!(attic.hear(), "done");
    hall.gone();
    let mut hall = locker(alpha, "hall");
    assert_eq!(hall.ask("lk(SH|NB)"), "EAGAIN");
    hall.end();
    attic.end();
}
