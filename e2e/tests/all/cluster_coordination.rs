//! Keys and locks of a distributed container over three nodes, on etcd: its server, who holds a
//! lock and who waits are on three of them.

use e2e::cluster::{Bed, Host};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Takes the lock, says the token, and keeps it until its input ends.
const HOLD: &str = "exec 9<>/srv/sync/locks/printer; read token <&9; echo $token; read forever";

fn topology() -> String {
    let shell = |name: &str, node: &str| {
        format!(
            "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnode = \"{node}\"\ncommand = [\"sleep\", \"infinity\"]\n\
             services = {{ sync = \"/srv/sync\" }}\n"
        )
    };
    format!(
        "name = \"test\"\n\n[domain.keeper]\nkind = \"container\"\nroot = \"host\"\nnode = \"alpha\"\n\
         restart = {{ policy = \"always\", backoff = \"50ms\" }}\n{}{}\n\
         [service.sync]\nkind = \"coordination\"\ndomain = \"keeper\"\nsettings = {{ grace = \"3s\" }}\n\
         allow = [{{ domains = [\"a\", \"b\"], verbs = [\"observe\", \"coordinate\"] }}]\n",
        shell("a", "beta"),
        shell("b", "gamma"),
    )
}

/// The answer of `ctl` to a line in a domain; `None`: it is refused.
fn ask(host: &Host, domain: &str, line: &str) -> Option<String> {
    let script = format!("exec 3<>/srv/sync/ctl; echo '{line}' >&3; read answer <&3 && echo $answer");
    let run = host.run(&["exec", domain, "--", "bash", "-c", &script]);
    (run.code == 0).then(|| run.out.trim().to_owned())
}

fn number(text: Option<String>) -> u64 {
    let text = text.expect("an answer");
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// A shell of a container that holds the lock, or waits for it.
struct Holder {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn start(host: &Host, domain: &str) -> Holder {
        Self::running(host, domain, HOLD)
    }

    /// A shell that says a number.
    fn running(host: &Host, domain: &str, line: &str) -> Holder {
        let mut command = host.command(&["exec", "-i", domain, "--", "bash", "-c", line]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("tombolo starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        Holder { child, lines }
    }

    /// Waits until it has the lock.
    fn token(&mut self) -> u64 {
        number(self.lines.next().map(|line| line.expect("text")))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _waited = self.child.wait();
    }
}

#[test]
fn keys_and_locks_are_one_on_three_nodes_and_a_dead_nodes_lock_goes_on_with_a_greater_token() {
    let Some(bed) = Bed::with_etcd(3, 3) else { return };
    bed.join_all(3, &[]);
    let [alpha, beta, gamma] = [bed.host(0), bed.host(1), bed.host(2)];
    alpha.up_ok(&topology());
    for (host, domain) in [(beta, "a"), (gamma, "b")] {
        bed.until("the service is served", TIMEOUT, || ask(host, domain, "put kv/warm up").is_some());
    }
    // Of two on two nodes who believe the same revision, one is right.
    let first = number(ask(beta, "a", "put kv/n 1"));
    assert_eq!(ask(gamma, "b", "get kv/n"), Some(format!("{first} 1")));
    let second = number(ask(gamma, "b", &format!("cas kv/n {first} 2")));
    assert!(second > first);
    assert_eq!(ask(beta, "a", &format!("cas kv/n {first} 3")), None, "it is another one by now");
    assert_eq!(ask(beta, "a", "get kv/n"), Some(format!("{second} 2")));
    // By hand, from a node that has neither of the two.
    alpha.ok(&["kv", "set", "by/hand", "hello", "--domain", "a"]);
    assert_eq!(alpha.ok(&["kv", "get", "by/hand", "--domain", "b"]), "hello\n");
    let refused = alpha.run(&["kv", "cas", "n", &first.to_string(), "3", "--domain", "b"]);
    assert!(refused.code == 1 && refused.err.contains("somebody was faster"), "{refused:?}");
    // A lock has one holder, wherever that is.
    let mut holder = Holder::start(beta, "a");
    let one = holder.token();
    let mut next = Holder::start(gamma, "b");
    bed.until("the other one waits", TIMEOUT, || {
        gamma.run(&["exec", "b", "--", "cat", "/srv/sync/status"]).out.contains("waiting 1")
    });
    // A barrier is passed on two nodes together, and an item is somebody's on the node that is
    // killed.
    number(ask(beta, "a", "parties barriers/phase 2"));
    let mut party = Holder::running(gamma, "b", "cat /srv/sync/barriers/phase");
    assert_eq!(beta.run(&["exec", "a", "--", "cat", "/srv/sync/barriers/phase"]).out, "1\n");
    assert_eq!(party.token(), 1);
    number(ask(beta, "a", "queue queues/jobs 10 durable"));
    gamma.ok(&["exec", "b", "--", "sh", "-c", "echo 7 > /srv/sync/queues/jobs"]);
    let work = "exec 9<>/srv/sync/queues/jobs; read item <&9; echo $item; read forever";
    let mut worker = Holder::running(beta, "a", work);
    assert_eq!(worker.token(), 7);
    // The node of the holder is killed, with all that runs on it and its member of etcd.
    beta.kill();
    let two = next.token();
    assert!(two > one, "{two} after {one}");
    assert_eq!(Holder::running(gamma, "b", work).token(), 7, "the item came back");
    // What was answered before is there, and what the lock protects refuses the dead holder's
    // token.
    assert_eq!(ask(gamma, "b", "get kv/n"), Some(format!("{second} 2")));
    let third = number(ask(gamma, "b", &format!("cas kv/n {second} {two}")));
    assert_eq!(ask(gamma, "b", &format!("cas kv/n {second} {one}")), None);
    assert_eq!(ask(gamma, "b", "get kv/n"), Some(format!("{third} {two}")));
    drop((holder, next, party, worker));
    bed.until("all is down", TIMEOUT, || alpha.run(&["down", "--all"]).code == 0);
    bed.finish();
}
