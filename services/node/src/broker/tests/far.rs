//! Two brokers, each the daemon of a node, and what their proxies would carry between them.

mod endpoints;

use super::*;
use crate::broker::far::MAX_CHANNELS_PER_NODE;
use std::os::fd::AsRawFd;
use wire::proxy::{News, Open, Order, Report};

/// `web` on node a, `resolver` on node b; and a channel that `other`, on node b, offers.
fn placed(_: &str, domain: &str) -> Option<String> {
    match domain {
        "web" => Some("a".into()),
        "resolver" | "other" => Some("b".into()),
        _ => None,
    }
}

const CHANNEL: &str = r#"
[service.frames]
kind = "channel"
domain = "other"
allow = [{ domains = ["web"], verbs = ["open"] }]
"#;

struct Node {
    broker: Broker,
    orders: mpsc::Receiver<ToProxy>,
    peer: &'static str,
}

impl Node {
    fn new(name: &'static str, peer: &'static str) -> Self {
        let broker = Broker::new(crate::broker::make_channel);
        broker.set_topology("shop", Some(topology(&format!("{FILE}{CHANNEL}"))));
        broker.place(name, Arc::new(placed));
        let (outbox, orders) = orders();
        broker.proxy_came(peer, 1, outbox, false).unwrap();
        Self { broker, orders, peer }
    }

    fn orders(&mut self) -> Vec<ToProxy> {
        let all = std::iter::from_fn(|| self.orders.try_recv().ok());
        // To whom a pair belongs is looked at by itself.
        all.filter(|(order, _)| !matches!(order, Order::Belongs { .. })).collect()
    }

    fn hears(&self, report: Report) {
        self.broker.proxy_says(self.peer, report);
    }

    fn up(&self, resumed: bool) {
        self.hears(Report::Up { resumed, transport: "tcp".into() });
    }
}

/// Carries news both ways until there are none, and gives back the rest.
fn carry(a: &mut Node, b: &mut Node) -> [Vec<ToProxy>; 2] {
    let mut rest = [Vec::new(), Vec::new()];
    loop {
        let mut quiet = true;
        let said = [(0, a.orders()), (1, b.orders())];
        for (side, orders) in said {
            let to = if side == 0 { &*b } else { &*a };
            for (order, descriptors) in orders {
                quiet = false;
                match order {
                    Order::News { news } => to.hears(Report::News { news }),
                    order => rest[side].push((order, descriptors)),
                }
            }
        }
        if quiet {
            return rest;
        }
    }
}

fn pair() -> (Node, Node) {
    (Node::new("a", "b"), Node::new("b", "a"))
}

fn joined() -> (Node, Node) {
    let (mut a, mut b) = pair();
    a.up(false);
    b.up(false);
    carry(&mut a, &mut b);
    (a, b)
}

fn serve(b: &Node) -> (MemberId, Mail) {
    let mut server = join(&b.broker, "resolver", Role::Program, true);
    assert!(matches!(ask(&b.broker, &mut server, Request::Serve { id: 1 }), Reply::Serving { .. }));
    server
}

fn is_up(node: &Node, frontend: &mut (MemberId, Mail)) -> (bool, u64) {
    let Reply::Services { services, .. } = ask(&node.broker, frontend, Request::Services { id: 1 }) else {
        panic!("no services")
    };
    (services[0].up, services[0].generation)
}

/// Begins a channel on node a, and gives back what its proxy is ordered.
async fn open(
    a: &mut Node,
    id: MemberId,
    service: &str,
    entrance: &str,
) -> (tokio::task::JoinHandle<()>, u64, Open, Vec<OwnedFd>) {
    let open = a.broker.open_far(id, (7, service, entrance, 0), &mut None).expect("it is far");
    let broker = a.broker.clone();
    let finished = tokio::spawn(async move { broker.finish_far(id, open).await });
    let (Order::Open { id, open }, descriptors) = a.orders.recv().await.unwrap() else { panic!("no open") };
    (finished, id, open, descriptors)
}

#[tokio::test]
async fn a_service_of_another_node_is_mounted_opened_and_lost_like_one_of_this_node() {
    let (mut a, mut b) = joined();
    let mut frontend = join(&a.broker, "web", Role::Frontend, false);
    assert_eq!(is_up(&a, &mut frontend), (false, 0));
    let (_server, mut mail) = serve(&b);
    carry(&mut a, &mut b);
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: true, .. })));
    assert!(is_up(&a, &mut frontend).0);

    let (finished, id, open, descriptors) = open(&mut a, frontend.0, "dns", "device").await;
    assert_eq!(descriptors.len(), 5);
    b.hears(Report::Asked { pair: 9, open });
    let answer = b.orders();
    assert!(matches!(&answer[..], [(Order::Accept { pair: 9 }, end)] if end.len() == 5), "{answer:?}");
    let Reply::Event(Event::Attach { consumer, service, .. }) = next(&mut mail) else {
        panic!("no consumer")
    };
    assert_eq!(
        (consumer.domain.as_str(), consumer.entrance.as_str(), service.as_str()),
        ("web", "device", "dns")
    );
    assert_eq!(consumer.verbs, ["resolve"]);
    a.hears(Report::Opened { id });
    finished.await.unwrap();
    let connected = frontend.1.try_recv().unwrap();
    assert!(matches!(connected.reply, Reply::Connected { id: 7, .. }) && connected.descriptors.len() == 5);
    assert_eq!((a.broker.channels().len(), b.broker.channels().len()), (1, 1));

    // Another server: those who were connected to the one before connect again.
    b.broker.leave(_server);
    let (_again, _mail) = serve(&b);
    carry(&mut a, &mut b);
    let events: Vec<_> = std::iter::from_fn(|| frontend.1.try_recv().ok()).map(|o| o.reply).collect();
    assert!(
        matches!(
            &events[..],
            [Reply::Event(Event::Service { up: false, .. }), Reply::Event(Event::Service { up: true, .. })]
        ),
        "{events:?}"
    );
    // And the end of the proxy is the end of what is behind it.
    a.broker.proxy_left("b");
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: false, .. })));
    let Reply::Refused { errno, .. } = ask(&a.broker, &mut frontend, connect("dns", "device")) else {
        panic!("connected")
    };
    assert_eq!(errno, Errno::AGAIN.raw_os_error());
}

#[tokio::test]
async fn a_channel_is_offered_on_one_node_and_opened_on_another() {
    let (mut a, mut b) = joined();
    let mut offerer = join(&b.broker, "other", Role::Program, false);
    let program = join(&a.broker, "web", Role::Program, false);
    assert!(a.broker.open_far(program.0, (7, "frames", "api", 0), &mut None).is_none(), "nobody offers it");
    let offer = Request::Offer { id: 1, service: "frames".into(), stand_by: false, serving: false };
    assert!(matches!(ask(&b.broker, &mut offerer, offer), Reply::Serving { .. }));
    carry(&mut a, &mut b);
    let (finished, id, open, ours) = open(&mut a, program.0, "frames", "api").await;
    b.hears(Report::Asked { pair: 4, open });
    let (order, theirs) = b.orders().remove(0);
    assert_eq!(order, Order::Accept { pair: 4 });
    assert!(matches!(next(&mut offerer.1), Reply::Event(Event::Attach { .. })));
    a.hears(Report::Opened { id });
    finished.await.unwrap();
    // The channels end with the ends that the proxies have.
    drop((ours, theirs));
    let gone = async {
        while !a.broker.channels().is_empty() || !b.broker.channels().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), gone).await.expect("the channels end");
}

#[tokio::test]
async fn what_the_other_node_refuses_is_said_with_its_reason_and_what_it_does_not_answer_is_withdrawn() {
    let (mut a, mut b) = joined();
    let mut frontend = join(&a.broker, "web", Role::Frontend, false);
    let (_server, _mail) = serve(&b);
    carry(&mut a, &mut b);
    let _up = next(&mut frontend.1);
    let (finished, id, ..) = open(&mut a, frontend.0, "dns", "device").await;
    a.hears(Report::Refused { id, errno: Errno::USERS.raw_os_error(), message: "full".into() });
    finished.await.unwrap();
    refused(&next(&mut frontend.1), Errno::USERS);
    // A member that hangs up does not wait, and nobody waits for it.
    let (finished, id, ..) = open(&mut a, frontend.0, "dns", "device").await;
    finished.abort();
    assert!(finished.await.is_err());
    assert!(matches!(a.orders.recv().await, Some((Order::Cancel { id: cancelled }, _)) if cancelled == id));
    // The death of the proxy is an answer.
    let (finished, ..) = open(&mut a, frontend.0, "dns", "device").await;
    a.broker.proxy_left("b");
    finished.await.unwrap();
    let _down = next(&mut frontend.1);
    refused(&next(&mut frontend.1), Errno::AGAIN);
    assert_eq!(a.broker.channels().len(), 0);
}

#[tokio::test]
async fn what_another_node_alleges_is_held_against_the_topology_and_the_placement() {
    let (a, mut b) = joined();
    let (server, mut mail) = serve(&b);
    let asks = |domain: &str, service: &str, entrance: &str, dc: &str| Open::Channel {
        dc: dc.into(),
        service: service.into(),
        domain: domain.into(),
        entrance: entrance.into(),
        ring_bytes: 0,
    };
    let cases = [
        // Not placed there, not placed at all, not in the file; what it may not; what is not there.
        (asks("resolver", "dns", "device", "shop"), Errno::PERM),
        (asks("other", "dns", "device", "shop"), Errno::PERM),
        (asks("nobody", "dns", "device", "shop"), Errno::PERM),
        (asks("web", "dns", "device", "bank"), Errno::PERM),
        (asks("web", "vault", "device", "shop"), Errno::NOENT),
        (asks("web", "frames", "device", "shop"), Errno::INVAL),
        (asks("web", "frames", "api", "shop"), Errno::AGAIN),
        (asks("web", "dns", "backdoor", "shop"), Errno::INVAL),
    ];
    for (pair, (open, expected)) in cases.into_iter().enumerate() {
        b.orders();
        b.hears(Report::Asked { pair: pair as u64, open: open.clone() });
        let answer = b.orders();
        assert!(
            matches!(&answer[..], [(Order::Refuse { errno, .. }, _)] if *errno == expected.raw_os_error()),
            "{open:?}: {answer:?}"
        );
    }
    assert!(mail.try_recv().is_err(), "the server heard of one");
    // A node says that it serves what is placed elsewhere, or what nobody knows: it is not
    // believed.
    for (dc, service) in [("shop", "dns"), ("shop", "vault"), ("bank", "dns")] {
        let news = News::Served { dc: dc.into(), service: service.into(), generation: 1 };
        b.hears(Report::News { news });
    }
    assert_eq!(b.broker.lock().server_of("shop", "dns"), Some(server));
    b.broker.leave(server);
    assert_eq!(b.broker.lock().server_of("shop", "dns"), None);
    drop(a);
}

#[tokio::test]
async fn a_node_has_a_bounded_number_of_channels_here() {
    let (_a, mut b) = joined();
    let (_server, mut mail) = serve(&b);
    let open = Open::Channel {
        dc: "shop".into(),
        service: "dns".into(),
        domain: "web".into(),
        entrance: "api".into(),
        ring_bytes: 4096,
    };
    b.orders();
    let mut ends = Vec::new();
    let mut refusals = 0;
    for pair in 0..MAX_CHANNELS_PER_DOMAIN as u64 + 3 {
        b.hears(Report::Asked { pair, open: open.clone() });
        match b.orders().remove(0) {
            (Order::Accept { .. }, end) => ends.push(end),
            (Order::Refuse { errno, .. }, _) => {
                assert_eq!(errno, Errno::MFILE.raw_os_error());
                refusals += 1;
            }
            (other, _) => panic!("{other:?}"),
        }
        // The server reads.
        while mail.try_recv().is_ok() {}
    }
    assert_eq!((ends.len(), refusals), (MAX_CHANNELS_PER_DOMAIN, 3));
    assert!(
        ends.iter().flatten().all(|end| end.as_raw_fd() > 0)
            && MAX_CHANNELS_PER_DOMAIN < MAX_CHANNELS_PER_NODE
    );
}

#[tokio::test]
async fn the_next_daemon_of_either_node_hears_everything_again() {
    let (mut a, mut b) = joined();
    let (_server, _mail) = serve(&b);
    carry(&mut a, &mut b);
    // Node a has another daemon; its proxy lives, and so do the proxies' pairs.
    let mut next_a = Node::new("a", "b");
    let (outbox, orders) = orders();
    next_a.broker.proxy_came("b", 1, outbox, true).unwrap();
    next_a.orders = orders;
    let mut frontend = join(&next_a.broker, "web", Role::Frontend, false);
    carry(&mut next_a, &mut b);
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: true, .. })));
    // And node b, where nobody serves yet.
    let mut next_b = Node::new("b", "a");
    let (outbox, orders) = super::orders();
    next_b.broker.proxy_came("a", 1, outbox, true).unwrap();
    next_b.orders = orders;
    carry(&mut next_a, &mut next_b);
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: false, .. })));
    let (_server, _mail) = serve(&next_b);
    carry(&mut next_a, &mut next_b);
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: true, .. })));
}

/// A service of a program on node b, mounted on node a.
const PROGRAM: &str = r#"
[service.thermometer]
kind = "program"
domain = "other"
allow = [{ domains = ["web"], verbs = ["read"] }]
"#;

#[tokio::test]
async fn a_programs_service_is_mounted_and_lost_on_another_node_and_no_change_of_the_file_disturbs_it() {
    let text = FILE.replace("services = { dns", "services = { thermometer = \"/srv/t\", dns") + PROGRAM;
    let (mut a, mut b) = pair();
    for node in [&a, &b] {
        node.broker.set_topology("shop", Some(topology(&text)));
    }
    a.up(false);
    b.up(false);
    carry(&mut a, &mut b);
    let mut frontend = join(&a.broker, "web", Role::Frontend, false);
    let mut gauge = join(&b.broker, "other", Role::Program, false);
    let offer = super::programs::offer();
    assert!(matches!(ask(&b.broker, &mut gauge, offer.clone()), Reply::Serving { .. }));
    carry(&mut a, &mut b);
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: true, .. })));
    let (finished, id, open, ours) = open(&mut a, frontend.0, "thermometer", "device").await;
    b.hears(Report::Asked { pair: 4, open });
    let (order, theirs) = b.orders().remove(0);
    assert_eq!(order, Order::Accept { pair: 4 });
    let Reply::Event(Event::Attach { consumer, .. }) = next(&mut gauge.1) else { panic!("no consumer") };
    assert_eq!((consumer.domain.as_str(), consumer.entrance.as_str()), ("web", "device"));
    assert_eq!(consumer.verbs, ["read"]);
    a.hears(Report::Opened { id });
    finished.await.unwrap();
    assert!(matches!(next(&mut frontend.1), Reply::Connected { id: 7, .. }));
    // Another file, in which this service is the same: its frontends have nothing to do.
    let more = text.replace(
        "[domain.other]",
        "[domain.more]\nkind = \"container\"\ncommand = [\"true\"]\n[domain.other]",
    );
    for node in [&a, &b] {
        node.broker.set_topology("shop", Some(topology(&more)));
    }
    carry(&mut a, &mut b);
    assert!(frontend.1.try_recv().is_err(), "the frontend was told of a change that there is not");
    // The program dies; the next one is found like the first.
    b.broker.leave(gauge.0);
    carry(&mut a, &mut b);
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: false, .. })));
    let mut second = join(&b.broker, "other", Role::Program, false);
    assert!(matches!(ask(&b.broker, &mut second, offer), Reply::Serving { .. }));
    carry(&mut a, &mut b);
    assert!(matches!(next(&mut frontend.1), Reply::Event(Event::Service { up: true, .. })));
    drop((ours, theirs));
}
