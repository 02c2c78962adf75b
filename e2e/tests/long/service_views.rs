//! As `all/service_views.rs`, with the services on another node of a cluster.

use e2e::cluster::Bed;
use std::time::Duration;

const CLIENT: &str = env!("CARGO_BIN_EXE_views_client");
const SERVER: &str = env!("CARGO_BIN_EXE_views_server");
/// Fewer operations mean that a group ended early.
const OPERATIONS_LEAST: usize = 300;
/// How long a thing of the cluster may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// `hall` on alpha uses what is served on beta.
fn topology() -> String {
    let container = |name: &str, node: &str, lines: &str| {
        format!("[domain.{name}]\nkind = \"container\"\nroot = \"host\"\nnode = \"{node}\"\n{lines}\n")
    };
    let hall = format!(
        "command = [\"sleep\", \"infinity\"]\nnine_p = true\n\
         services = {{ kit = \"/srv/kit\", tree = \"/srv/tree\", events = \"/srv/events\" }}\n\
         mounts = [{{ source = \"{CLIENT}\", target = \"/views\" }}]"
    );
    let kit =
        format!("command = [\"/server\"]\nmounts = [{{ source = \"{SERVER}\", target = \"/server\" }}]");
    let service = |name: &str, kind: &str, host: &str, verbs: &str| {
        format!(
            "[service.{name}]\nkind = \"{kind}\"\ndomain = \"{host}\"\n\
             allow = [{{ domains = [\"hall\"], verbs = [{verbs}] }}]\n"
        )
    };
    [
        "name = \"house\"\n".to_owned(),
        container("hall", "alpha", &hall),
        container("kit", "beta", &kit),
        container("bus", "beta", ""),
        "[domain.disk]\nkind = \"container\"\nnode = \"beta\"\n".to_owned(),
        service("kit", "program", "kit", "\"read\", \"change\""),
        service("tree", "files", "disk", "\"write\""),
        service("events", "events", "bus", "\"publish\", \"subscribe\", \"manage\""),
        "settings = { channels_per_domain = 8, channels = { alarms = { event = \"4KiB\" } } }\n".to_owned(),
    ]
    .concat()
}

#[test]
fn each_view_of_a_service_of_another_node_gives_the_same_answers() {
    let Some(bed) = Bed::with_etcd(2, 1) else { return };
    bed.join_all(1, &[]);
    let alpha = bed.host(0);
    alpha.up_ok(&topology());
    let served = "cat /srv/kit/reading /srv/events/alarms/stats && ls /srv/tree";
    bed.until("the services are up", PATIENCE, || {
        alpha.run(&["exec", "hall", "--", "sh", "-c", served]).code == 0
    });
    let run = alpha.run(&["exec", "hall", "--", "/views", "far"]);
    assert_eq!(run.code, 0, "{}\n{}", run.out, run.err);
    let count = run.out.split(' ').next().and_then(|count| count.parse::<usize>().ok());
    assert!(count >= Some(OPERATIONS_LEAST), "{}", run.out);
}
