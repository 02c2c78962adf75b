//! The room as others meet it: over a cluster and domains that are made up, through [`Peers`].

use super::books::{Moving, bytes, claim_key, desired_key, drain_key};
use super::peers::Later;
use super::*;
use crate::base::RegistryDebug;
use crate::domains::Desired;
use crate::domains::testing::{MadeUp, file, room, topology};
use crate::membership::Stream;
use crate::reservations::tests::book;
use admin::{Code, Problem};
use hyper::body::Incoming;
use registry::{Memory, Registry, RegistryError};
use serde_json::Value;

/// The cluster as node `a` sees it, with a node `b` that never answers.
#[derive(Debug)]
struct Two {
    registry: Arc<Memory>,
    changes: watch::Sender<u64>,
    hold: watch::Sender<u64>,
}

impl Peers for Two {
    fn me(&self) -> String {
        "a".into()
    }

    fn incarnation(&self) -> u64 {
        7
    }

    fn nodes(&self) -> Vec<placement::Node> {
        let node = |name: &str| placement::Node {
            name: name.into(),
            labels: BTreeMap::new(),
            cpu_milli: 2000,
            memory_bytes: 1 << 30,
            standing: Standing::Ready,
            promises: Arc::default(),
        };
        vec![node("a"), node("b")]
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn hold_until(&self) -> watch::Receiver<u64> {
        self.hold.subscribe()
    }

    fn why_cut_off(&self) -> Option<String> {
        None
    }

    fn registry(&self) -> Arc<dyn RegistryDebug> {
        Arc::clone(&self.registry) as Arc<dyn RegistryDebug>
    }

    fn put_leased(&self, key: &str, value: &[u8], expected: Expected) -> Result<u64, RegistryError> {
        self.registry.put(key, value, expected)
    }

    fn open<'a>(
        &'a self,
        node: &'a str,
        _: String,
        _: &'static str,
        _: Value,
    ) -> Later<'a, Result<Box<dyn Stream>, Problem>> {
        Box::pin(async move { Err(Problem::new(Code::Failed, format!("{node} does not answer"))) })
    }

    fn read<'a>(&'a self, node: &'a str, _: String) -> Later<'a, Result<Incoming, Problem>> {
        Box::pin(async move { Err(Problem::new(Code::Failed, format!("{node} does not answer"))) })
    }

    fn call<'a>(&'a self, node: &'a str, _: String, _: Option<Value>) -> Later<'a, Result<Value, String>> {
        Box::pin(async move { Err(format!("{node} does not answer")) })
    }
}

/// The parts of node `a`.
struct Bed {
    cluster: Arc<Memory>,
    own: Arc<Memory>,
    domains: Arc<Domains>,
    following: Arc<Following>,
    hold: watch::Sender<u64>,
    _folders: [tempfile::TempDir; 2],
}

fn bed() -> Bed {
    let (cluster, own) = (Arc::new(Memory::default()), Arc::new(Memory::default()));
    let hold = watch::Sender::new(u64::MAX);
    let two = Two { registry: Arc::clone(&cluster), changes: watch::Sender::default(), hold: hold.clone() };
    let (book, book_folder) = book(Arc::clone(&own) as Arc<dyn RegistryDebug>);
    let (domains, folder) = room(Arc::clone(&own) as Arc<dyn RegistryDebug>, Arc::new(MadeUp::default()));
    domains.join_cluster();
    let following = Following::new(Arc::new(two), Arc::new(book));
    Bed { cluster, own, domains, following, hold, _folders: [book_folder, folder] }
}

impl Bed {
    /// The cluster wants these domains, each on the node that is named.
    fn want(&self, names: &[(&str, &str)]) {
        let mut wanted = topology(&names.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        for (domain, (_, node)) in wanted.domains.iter_mut().zip(names) {
            domain.placement.node = topology::NodeChoice::Named(topology::Name::parse(node).expect("a name"));
        }
        let text = file(&names.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        let desired = Desired::new(text, "shop.toml".into(), "/".into(), wanted);
        self.cluster.put(&desired_key("shop"), &bytes(&desired), Expected::Anything).expect("written");
    }
}

#[tokio::test]
async fn what_the_cluster_wants_is_known_here_and_kept_for_when_it_can_not_be_asked() {
    let bed = bed();
    bed.want(&[("robot", "b")]);
    begin(&bed.domains, &bed.following).await;
    assert!(bed.domains.is_in_a_file("shop/robot"));
    assert!(bed.own.get("desired/shop").expect("readable").is_some());
    bed.cluster.delete(&desired_key("shop"), Expected::Anything).expect("gone");
    begin(&bed.domains, &bed.following).await;
    assert!(bed.domains.dcs().is_empty());
    assert!(bed.own.get("desired/shop").expect("readable").is_none());
}

#[tokio::test]
async fn a_pass_tells_what_this_node_can_promise_and_leaves_alone_what_is_to_run_elsewhere() {
    let bed = bed();
    bed.want(&[("robot", "b")]);
    begin(&bed.domains, &bed.following).await;
    pass(&bed.domains, &bed.following).await.expect("the books can be read");
    let keys: Vec<String> = bed.cluster.list("").expect("a list").into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["desired/shop", "promises/a"]);
    assert!(bed.domains.all_supervised().is_empty());
}

#[tokio::test]
async fn a_node_that_does_not_hold_its_claims_decides_nothing() {
    let bed = bed();
    bed.want(&[("robot", "a")]);
    begin(&bed.domains, &bed.following).await;
    bed.hold.send_replace(0);
    pass(&bed.domains, &bed.following).await.expect("the books can be read");
    assert_eq!(bed.cluster.list("").expect("a list").len(), 1, "nothing was written");
}

#[test]
fn a_change_of_the_books_wakes_a_pass_and_one_of_a_service_does_not() {
    let key = ("shop".to_owned(), "robot".to_owned());
    for key in [desired_key("shop"), claim_key(&key), drain_key("b"), "replicas/shop/data".into()] {
        assert!(books::is_read(&key), "{key}");
    }
    for key in ["coordination/shop/locks/a", "clock/b", "alive/b", "primary/shop/data", "desire", ""] {
        assert!(!books::is_read(key), "{key}");
    }
}

#[tokio::test]
async fn what_another_node_has_is_not_taken_over() {
    let bed = bed();
    bed.want(&[("robot", "a"), ("web", "b")]);
    let key = |name: &str| ("shop".to_owned(), name.to_owned());
    for (name, node) in [("robot", "a"), ("web", "b")] {
        let claim = Claim { node: node.into(), incarnation: 1 };
        bed.cluster.put(&claim_key(&key(name)), &bytes(&claim), Expected::Absent).expect("written");
    }
    let wanted = topology(&["robot", "web"]);
    let may = |name: &str| {
        let domain = wanted.domains.iter().find(|domain| domain.name.as_str() == name).expect("it is there");
        bed.following.may_adopt("shop", domain)
    };
    // Before the books were read, what may not run elsewhere goes on.
    assert!(may("robot") && may("web"));
    begin(&bed.domains, &bed.following).await;
    assert!(may("robot") && !may("web"));
    assert_eq!(bed.following.placed("shop", "web").as_deref(), Some("b"));
    assert_eq!(bed.following.whereabouts(&key("web")), (Some("b".to_owned()), None));
}

#[tokio::test]
async fn a_node_is_drained_by_its_name_and_a_stranger_is_not() {
    let bed = bed();
    let problem = drain(&bed.following, "nobody").await.expect_err("there is none");
    assert_eq!(problem.help.as_deref(), Some("the nodes are: a, b"));
    drain(&bed.following, "b").await.expect("written");
    assert!(bed.cluster.get(&drain_key("b")).expect("readable").is_some());
    undrain(&bed.following, "b").await.expect("written");
    assert!(bed.cluster.list("").expect("a list").is_empty());
}

#[tokio::test]
async fn what_can_not_move_is_refused_with_each_reason_and_nothing_is_written() {
    let bed = bed();
    bed.want(&[("robot", "a")]);
    let key = ("shop".to_owned(), "robot".to_owned());
    let asked = |to: &str| {
        let request = admin::DomainMoveRequest { to: to.into(), dry_run: false };
        relocate(Arc::clone(&bed.domains), Arc::clone(&bed.following), key.clone(), request)
    };
    let problem = asked("b").await.expect_err("it runs nowhere");
    assert_eq!(problem.code, Code::NotRunning);
    let claim = Claim { node: "a".into(), incarnation: 7 };
    bed.cluster.put(&claim_key(&key), &bytes(&claim), Expected::Absent).expect("written");
    let before = bed.cluster.list("").expect("a list").len();
    assert_eq!(asked("nobody").await.expect_err("no such node").code, Code::UnknownNode);
    assert_eq!(asked("a").await.expect("a report").outcome, admin::MoveOutcome::There);
    let report = asked("b").await.expect("a report");
    assert_eq!(report.refused, ["its file names the node a"]);
    assert_eq!(report.outcome, admin::MoveOutcome::Refused);
    bed.cluster.put(&drain_key("b"), b"{}", Expected::Absent).expect("written");
    assert_eq!(asked("b").await.expect("a report").refused, ["its file names the node a", "b is drained"]);
    assert_eq!(bed.cluster.list("").expect("a list").len(), before + 1, "only the drain was written");
    // A node that is cut off decides nothing.
    bed.hold.send_replace(0);
    assert_eq!(asked("b").await.expect_err("cut off").code, Code::Failed);
}

#[tokio::test]
async fn a_domain_that_is_being_moved_is_not_moved_by_somebody_else() {
    let bed = bed();
    bed.want(&[("robot", "a")]);
    let key = ("shop".to_owned(), "robot".to_owned());
    let claim = Claim { node: "a".into(), incarnation: 7 };
    bed.cluster.put(&claim_key(&key), &bytes(&claim), Expected::Absent).expect("written");
    let moving = Moving { step: "taken".into(), ..Moving::asked("b", "a") };
    bed.cluster.put(&books::move_key(&key), &bytes(&moving), Expected::Absent).expect("written");
    let request = admin::DomainMoveRequest { to: "b".into(), dry_run: false };
    let problem = relocate(Arc::clone(&bed.domains), Arc::clone(&bed.following), key, request)
        .await
        .expect_err("it is under way");
    assert_eq!(problem.code, Code::Taken);
    assert!(problem.message.contains("from b to a"), "{problem}");
}

#[tokio::test]
async fn a_node_that_still_unpacks_says_so_and_the_same_question_gets_the_answer_later() {
    let bed = bed();
    let key = ("shop".to_owned(), "robot".to_owned());
    let (found, receiver) = watch::channel(None);
    bed.following.lock().preparing.insert(key.clone(), receiver);
    let asked = || may_come(&bed.domains, &bed.following, key.clone(), MayCome { prepare: true });
    let answer = asked().await;
    assert!(answer.pending && answer.refused.is_empty(), "{answer:?}");
    found.send_replace(Some(relocate::Looked::now(vec!["there is no /app".to_owned()])));
    let answer = asked().await;
    assert_eq!((answer.pending, answer.refused.as_slice()), (false, &["there is no /app".to_owned()][..]));
    // Then it is asked anew: this node has no such domain.
    drop(found);
    let answer = asked().await;
    assert_eq!(answer.refused, ["its daemon knows of no shop/robot yet"]);
}
