//! The bed of several nodes does what it says: faults of the network, and the death of a node, hit
//! what they name and nothing else.

use e2e::cluster::{Bed, Host};
use std::path::Path;
use std::time::Duration;

/// How long a packet may take between two nodes that reach each other, in whole seconds as ping(8)
/// wants it.
const REACH_S: &str = "1";

fn reaches(from: &Host, to: &Host) -> bool {
    // A connection that is refused came through: nobody listens there.
    let line = format!("timeout {REACH_S} bash -c 'exec 3<>/dev/tcp/{}/9' 2>&1", to.port().address);
    let output = from.inside(Path::new("sh")).args(["-c", &line]).output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.contains("refused") || output.status.success()
}

#[test]
fn faults_of_the_network_hit_whom_they_name_and_heal() {
    let Some(bed) = Bed::start(3) else { return };
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    assert!(reaches(a, b) && reaches(b, c), "the nodes do not reach each other");
    bed.switch().cut(a.port());
    assert!(!reaches(a, b) && reaches(b, c));
    bed.switch().heal(a.port());
    bed.until("a cable that is put back works", Duration::from_secs(5), || reaches(a, b));
    bed.switch().black_hole(b.port());
    assert!(!reaches(a, b) && !reaches(b, c) && reaches(a, c));
    bed.switch().heal(b.port());
    bed.switch().split(&[&[a.port()], &[b.port(), c.port()]]);
    assert!(!reaches(a, b) && !reaches(a, c) && reaches(b, c));
    bed.switch().heal(b.port());
    bed.switch().heal(c.port());
    assert!(reaches(a, b) && reaches(a, c));
    bed.switch().slow(a.port(), 64);
    assert!(reaches(a, b), "a slow node is reached");
    bed.finish();
}

#[test]
fn a_node_that_is_killed_takes_everything_of_its_own_with_it_and_nothing_else() {
    let Some(bed) = Bed::start(2) else { return };
    let topology = "name = \"test\"\n[domain.web]\nkind = \"container\"\nroot = \"host\"\ncommand = [\"sleep\", \"infinity\"]\n";
    for host in bed.hosts() {
        host.up_ok(topology);
    }
    let [a, b] = [bed.host(0), bed.host(1)];
    a.kill();
    assert!(!a.is_up());
    assert_eq!(e2e::clean::leftovers(&a.run_dir()), Vec::<String>::new(), "of the dead node");
    assert!(b.ok(&["ps"]).contains("running"), "the other node is not well");
    assert_eq!(b.run(&["exec", "web", "--", "true"]).code, 0);
    // Switched on again, it brings up what it was told to: its state is as it was.
    a.boot();
    assert!(a.up_ok(topology).contains("nothing to do"), "the state is lost");
    assert_eq!(a.run(&["exec", "web", "--", "true"]).code, 0);
    bed.finish();
}
