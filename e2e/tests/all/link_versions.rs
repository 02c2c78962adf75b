//! Nodes whose releases speak different versions of the protocol of links: what is said on both of
//! them, and that it costs nothing.

use e2e::cluster::{Bed, Host};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Attempts that are watched.
const ATTEMPTS: usize = 6;
/// The pauses between these double; the first is 50 ms, or 100.
const AT_LEAST_MS: u64 = 1400;

fn bed() -> Option<Bed> {
    let bed = Bed::with_etcd(2, 1)?;
    bed.join_all(1, &[]);
    bed.until("the link is up on both", TIMEOUT, || {
        [(0, "beta"), (1, "alpha")].iter().all(|(at, peer)| is_up(bed.host(*at), peer))
    });
    Some(bed)
}

fn is_up(host: &Host, peer: &str) -> bool {
    let run = host.run(&["link", "show", peer, "--json"]);
    serde_json::from_str::<serde_json::Value>(&run.out).is_ok_and(|link| link["up"] == true)
}

/// Why a node says that its link is not up.
fn why(host: &Host, peer: &str) -> String {
    host.json(&["link", "show", peer])["why"].as_str().unwrap_or_default().to_owned()
}

/// Ends a node's daemon and proxy, as `kill -9` does.
fn end(host: &Host) {
    host.kill_role("daemon");
    host.kill_role("proxy");
}

/// A program in a node's place, which ends when it is dropped: with its standard input.
struct Stranger {
    child: Child,
    lines: Receiver<String>,
}

impl Stranger {
    /// Speaks versions 40 and 41.
    fn start(host: &Host, peer: &str, way: &str, locator: &str) -> Self {
        let folder = host.state_dir().join("trust");
        let program = std::path::Path::new(env!("CARGO_BIN_EXE_other_version"));
        let mut command = host.inside(program);
        command.args([host.name(), peer]).arg(folder).args(["40", "41", way, locator]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let (tell, lines) = channel();
        let said = BufReader::new(child.stdout.take().expect("its output")).lines();
        std::thread::spawn(move || said.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child, lines }
    }

    /// When the next link was over, in ms, and why.
    fn next(&mut self) -> (u64, String) {
        let line = self.lines.recv_timeout(TIMEOUT).expect("it says something");
        let (ms, why) = line.split_once(' ').expect("a time and a reason");
        (ms.parse().expect("a time"), why.to_owned())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // What entered the node's namespaces for it waits for it.
        let _ended = self.child.wait();
    }
}

#[test]
fn a_node_that_speaks_no_common_version_of_links_is_told_on_both_and_asked_ever_less_often() {
    let Some(bed) = bed() else { return };
    let (alpha, beta) = (bed.host(0), bed.host(1));
    let at = beta.json(&["link", "show", "alpha"])["at"][0].as_str().expect("where it listens").to_owned();
    assert!(at.starts_with("tcp:"), "{at}");
    // Beta listens, and is of a release of tomorrow.
    end(beta);
    let mut stranger = Stranger::start(beta, "alpha", "listen", &at);
    let told: Vec<(u64, String)> = (0..ATTEMPTS).map(|_| stranger.next()).collect();
    let said = "versions 1 to 1 of the protocol of links";
    assert!(told.iter().all(|(_, why)| why.contains(said)), "{told:?}");
    assert!(told.last().is_some_and(|(ms, _)| *ms >= AT_LEAST_MS), "it is tried too often: {told:?}");
    bed.until("alpha says why", TIMEOUT, || {
        let why = why(alpha, "beta");
        why.contains("versions 40 to 41 of the protocol of links")
            && why.contains("releases that follow each other")
    });
    drop(stranger);
    bed.start_daemon(beta);
    bed.until("the link is up with the right release", TIMEOUT, || {
        is_up(alpha, "beta") && is_up(beta, "alpha")
    });
    // And the other way: alpha connects.
    end(alpha);
    let (_, told) = Stranger::start(alpha, "beta", "connect", &at).next();
    assert!(told.contains(said), "{told}");
    bed.until("beta says why", TIMEOUT, || {
        why(beta, "alpha").contains("versions 40 to 41 of the protocol of links")
    });
    bed.start_daemon(alpha);
    bed.until("the link is up again", TIMEOUT, || is_up(alpha, "beta") && is_up(beta, "alpha"));
    what_is_not_known_of_where_it_listens_is_left(&bed);
    bed.finish();
}

/// A later release listens by what this one does not know as well: that is left and said, and the
/// rest used.
fn what_is_not_known_of_where_it_listens_is_left(bed: &Bed) {
    let (alpha, beta) = (bed.host(0), bed.host(1));
    let at = beta.json(&["link", "show", "alpha"])["at"].clone();
    let mut at = at.as_array().into_iter().flatten().filter_map(|at| at.as_str());
    let tcp = at.find(|at| at.starts_with("tcp:")).expect("it listens by TCP");
    let strange = "warp:10.77.0.2:7421";
    let offer = serde_json::json!({ "listens": [strange, tcp] }).to_string();
    let own = beta.state_dir().join("trust/identity.pem");
    let release = crate::joining::release(alpha);
    let more = ["--header", &release, "--header", "content-type: application/json", "--data", &offer];
    let left = || alpha.json(&["link", "show", "beta"]).pointer("/state/link/left_addresses").cloned();
    bed.until("alpha says what it leaves", TIMEOUT, || {
        // Beta's own daemon may say anew where it listens, at any time.
        let said = crate::joining::ask(beta, alpha, Some(&own), "/v1/link", &more);
        assert!(said.contains("\"listens\""), "{said}");
        left() == Some(serde_json::json!([strange]))
    });
    assert!(alpha.ok(&["link", "show", "beta"]).contains(strange), "a person is told");
    bed.switch().cut(beta.port());
    bed.until("the link is down", TIMEOUT, || !is_up(alpha, "beta"));
    bed.switch().heal(beta.port());
    bed.until("the link is up by what it knows", TIMEOUT, || is_up(alpha, "beta") && is_up(beta, "alpha"));
}
