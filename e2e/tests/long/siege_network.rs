//! A cluster of which one node was removed: it and a stranger besiege the ports of the others from
//! the network, while a tenant on one of them fills all rings that it can have to the other.

use e2e::cluster::{Bed, Host, address};
use e2e::node::pids_of;
use e2e::siege::{Times, assert_said, attacker, begun, compared, end, length, siege};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

const CHANNEL_PEER: &str = env!("CARGO_BIN_EXE_channel_peer");
const ENDPOINT_PEER: &str = env!("CARGO_BIN_EXE_endpoint_peer");
/// How long the siege lasts, where nobody says.
const SIEGE: Duration = Duration::from_secs(60);
/// How long the same is done in quiet before.
const QUIET: Duration = Duration::from_secs(10);
/// How long a thing of the cluster may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often an endpoint on the other node is asked in one go.
const CALLS: usize = 50;

fn domain(name: &str, node: &str, command: &str) -> String {
    format!(
        "\n[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnode = \"{node}\"\ncommand = {command}\n\
         restart = {{ policy = \"always\", backoff = \"50ms\" }}\n\
         mounts = [{{ source = \"{CHANNEL_PEER}\", target = \"/channel-peer\" }}, {{ source = \"{ENDPOINT_PEER}\", target = \"/endpoint-peer\" }}]\n"
    )
}

/// Whoever asks is on alpha, and whoever answers on beta.
fn honest_file() -> String {
    "name = \"test\"\n".to_owned()
        + &domain("web", "alpha", "[\"sleep\", \"infinity\"]")
        + &domain("keeper", "beta", "[\"/endpoint-peer\", \"serve\", \"planner\"]")
        + "\n[endpoint.planner]\ndomain = \"keeper\"\nallow = [{ domains = [\"web\"], verbs = [\"request\"] }]\n"
}

/// A tenant that has channels to the other node, whose other ends are never looked at.
fn hostile_file(score: &Path) -> String {
    "name = \"hostile\"\n".to_owned()
        + &attacker("mob", "rings", score, CHANNEL_PEER, "node = \"alpha\"")
        + &domain("sink", "beta", "[\"/channel-peer\", \"sulk\", \"spam\"]")
        + "\n[service.spam]\nkind = \"channel\"\ndomain = \"sink\"\nallow = [{ domains = [\"mob\"], verbs = [\"open\"] }]\n\
           settings = { ring_bytes = \"4MiB\", max_channels = 200 }\n"
}

#[derive(Default)]
struct Done {
    calls: Times,
    views: Times,
}

fn honest([a, b]: [&Host; 2], how_long: Duration) -> Done {
    let begin = Instant::now();
    let mut done = Done::default();
    let calls = CALLS.to_string();
    while begin.elapsed() < how_long {
        let ask = ["exec", "test/web", "--", "/endpoint-peer", "ask", "planner", &calls];
        let run = done.calls.of(|| a.run(&ask));
        assert_said(&run, &["answered"]);
        for host in [a, b] {
            let nodes = done.views.of(|| host.json(&["node", "ls"]));
            let alive = nodes["nodes"].as_array().into_iter().flatten();
            let alive = alive.filter(|node| node["alive"] == true).count();
            assert_eq!(alive, 2, "{nodes}");
        }
    }
    done
}

#[test]
fn a_former_node_and_strangers_make_nothing_fail_between_nodes() {
    let Some(bed) = Bed::with_etcd(3, 1) else { return };
    bed.join_all(1, &[]);
    let [a, b, c] = [bed.host(0), bed.host(1), bed.host(2)];
    let stolen = c.folder().join("stolen.pem");
    std::fs::copy(c.state_dir().join("trust/identity.pem"), &stolen).expect("its certificate");
    a.ok(&["node", "remove", c.name(), "--force"]);
    bed.until("it is told", TIMEOUT, || c.json(&["node", "ls"])["removed"] == true);
    a.up_ok(&honest_file());
    let once = ["exec", "test/web", "--", "/endpoint-peer", "ask", "planner", "1"];
    bed.until("there is a link", TIMEOUT, || a.run(&once).code == 0);
    let quiet = honest([a, b], QUIET);
    let daemons = [a, b].map(|host| pids_of(&host.run_dir(), "daemon"));
    let score = c.folder().join("score");
    std::fs::create_dir_all(&score).expect("a folder");
    let (mut sieges, mut scores) = (Vec::new(), vec![score.join("rings")]);
    let stolen = stolen.display().to_string();
    for index in [0, 1] {
        let at = address(index).to_string();
        for (list, words) in [("stranger", vec![at.as_str()]), ("former", vec![at.as_str(), stolen.as_str()])]
        {
            let to = score.join(format!("{list}-{index}"));
            let mut command = siege(c.inside(Path::new("python3")), list, &to, &words);
            sieges.push(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a siege"));
            scores.push(to);
        }
    }
    a.up_ok(&hostile_file(&score));
    bed.until("every attack has begun", TIMEOUT, || scores.iter().all(|score| begun(score).1));
    let besieged = honest([a, b], length(SIEGE).0);
    println!("{}", compared("calls to the other node", &quiet.calls, &besieged.calls));
    println!("{}", compared("a view of the cluster", &quiet.views, &besieged.views));
    scores.iter().for_each(|score| println!("begun: {}", begun(score).0));
    for mut siege in sieges {
        end(&mut siege);
        let said = siege.wait_with_output().expect("its end").stdout;
        assert!(said.is_empty(), "a former node: {}", String::from_utf8_lossy(&said));
    }
    assert_eq!([a, b].map(|host| pids_of(&host.run_dir(), "daemon")), daemons, "a daemon did not survive");
    a.ok(&["down", "hostile"]);
    a.ok(&["down", "test"]);
    bed.finish();
}
