//! The room as others meet it: over other nodes and a link that are made up, through [`Nodes`] and
//! [`Shared`]. No proxy is started.

use super::*;
use crate::broker::make_channel;

/// Node `b` of a cluster with `a` and `c`; what it asks `a` is written down, and `c` can't be
/// asked.
#[derive(Debug, Default)]
struct Three {
    changes: watch::Sender<u64>,
    asked: Mutex<Vec<Offer>>,
}

impl Nodes for Three {
    fn me(&self) -> String {
        "b".into()
    }

    fn address(&self) -> IpAddr {
        IpAddr::from([127, 0, 0, 1])
    }

    fn others(&self) -> Option<Vec<String>> {
        Some(vec!["a".into(), "c".into()])
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn identity(&self) -> PathBuf {
        "/nowhere/trust".into()
    }

    fn trust_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn call<'a>(&'a self, node: &'a str, offer: Offer) -> Answer<'a> {
        Box::pin(async move {
            if node == "c" {
                return Err("no route".into());
            }
            self.asked.lock().expect("nobody panicked").push(offer);
            Ok(Offer::default())
        })
    }
}

/// A link that nobody shares.
#[derive(Debug)]
struct Unshared;

impl Shared for Unshared {
    fn came(&self, _node: &str, _cgroup: &str) {}

    fn left(&self, _node: &str) {}

    fn shares(&self) -> watch::Receiver<Shares> {
        watch::channel(Shares::default()).1
    }
}

/// The links of node `b`, as they are before a proxy has said a word; the nodes; and the folder of
/// its files.
fn links() -> (Arc<Proxies>, Arc<Three>, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let ground = Ground {
        run_dir: folder.path().join("run"),
        state_dir: folder.path().join("state"),
        program: "/nowhere/tombolo".into(),
        cgroups: domain::Cgroups::discover().expect("cgroups"),
        cgroup_name: "tombolo-of-nobody".into(),
    };
    let nodes = Arc::new(Three::default());
    let broker = Broker::new(make_channel);
    let links =
        Proxies::new(Arc::new(ground), broker, Arc::clone(&nodes) as Arc<dyn Nodes>, Arc::new(Unshared));
    for name in nodes.others().into_iter().flatten() {
        let peer = Peer {
            name: name.clone(),
            at: watch::Sender::default(),
            wanted: watch::Sender::default(),
            interface: watch::Sender::default(),
            over: watch::Sender::default(),
            done: watch::Sender::default(),
            seen: Mutex::default(),
        };
        links.peers().insert(name, Arc::new(peer));
    }
    (links, nodes, folder)
}

fn offer(at: &str) -> Offer {
    Offer { listens: vec![at.into()], wanted: None }
}

#[tokio::test]
async fn only_the_node_that_listens_says_where_and_a_stranger_says_nothing() {
    let (links, _nodes, _folder) = links();
    let why = links.offered("nobody", offer("tcp:10.0.0.9:7421")).await.expect_err("there is no such node");
    assert!(why.contains("nobody"), "{why}");
    for name in ["a", "c"] {
        links.offered(name, offer("tcp:10.0.0.9:7421")).await.expect("a node may say so");
    }
    // Of two nodes the one with the smaller name connects: this one listens for `a`.
    let at = |name: &str| links.peer(name).expect("it is kept").at.borrow().clone();
    assert_eq!((at("a"), at("c")), (Vec::new(), vec!["tcp:10.0.0.9:7421".to_owned()]));
}

#[tokio::test]
async fn a_link_is_changed_on_both_nodes_or_on_none_and_stays_changed() {
    let (links, nodes, _folder) = links();
    let change = |transport: &str| LinkChange { transport: Some(transport.into()), ..LinkChange::default() };
    let wanted = |name: &str| links.peer(name).expect("it is kept").wanted.borrow().transport.clone();
    let why = links.set("c", &change("quic")).await.expect_err("the other node can't be asked");
    assert!(why.contains("no route") && wanted("c") == "tcp", "{why}");
    let why = links.set("a", &change("pigeon")).await.expect_err("there is no such transport");
    assert!(why.contains("pigeon") && nodes.asked.lock().expect("nobody panicked").is_empty(), "{why}");
    links.set("a", &change("quic")).await.expect("the other node agrees");
    assert_eq!((wanted("a").as_str(), wanted("c").as_str()), ("quic", "tcp"));
    assert_eq!(keep::load(&links.ground, "a").wanted.transport, "quic", "the next daemon knows it, too");
    let asked = nodes.asked.lock().expect("nobody panicked").clone();
    assert!(matches!(asked.as_slice(), [Offer { wanted: Some(to), .. }] if to.transport == "quic"));
}

#[test]
fn what_the_proxy_knows_is_not_hidden_by_a_daemon_that_cannot_be_asked() {
    let why = |why: &str, now: Option<&str>, unasked: Option<&str>| {
        Seen { why: why.into(), unasked: unasked.map(Into::into), ..Seen::default() }.why_down(now)
    };
    assert_eq!(why("", None, None), "");
    assert_eq!(why("cut", None, None), "cut");
    assert_eq!(why("cut", Some("it speaks versions 40 to 41"), None), "it speaks versions 40 to 41");
    assert_eq!(why("", None, Some("no route")), "its daemon can't be asked: no route");
    let both = why("cut", Some("it speaks versions 40 to 41"), Some("no route"));
    assert_eq!(both, "it speaks versions 40 to 41; and its daemon can't be asked: no route");
}
