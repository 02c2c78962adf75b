//! Services of kind `program`: a program offers, frontends and programs of the domains that mount
//! it connect.

use super::*;
use wire::control::{MountedService, ServedService};

pub(super) const FILE: &str = r#"
name = "shop"
[domain.gauge]
kind = "container"
root = "host"
command = ["true"]
[domain.web]
kind = "container"
root = "host"
command = ["true"]
services = { thermometer = "/srv/t" }
[domain.other]
kind = "container"
root = "host"
command = ["true"]
[service.thermometer]
kind = "program"
domain = "gauge"
allow = [{ domains = ["web"], verbs = ["read", "calibrate"] }]
settings = { unit = "celsius", probes = [4, 17] }
"#;

fn lab_with(make: MakeChannel) -> Broker {
    let broker = Broker::new(make);
    broker.set_topology("shop", Some(topology(FILE)));
    broker
}

fn lab() -> Broker {
    lab_with(no_channel)
}

pub(super) fn offer() -> Request {
    Request::Offer { id: 3, service: "thermometer".into(), stand_by: false, serving: false }
}

fn program(broker: &Broker, domain: &str) -> (MemberId, Mail) {
    join(broker, domain, Role::Program, false)
}

fn offered(broker: &Broker) -> (MemberId, Mail) {
    let mut gauge = program(broker, "gauge");
    let reply = ask(broker, &mut gauge, offer());
    assert!(matches!(reply, Reply::Serving { id: 3, .. }), "{reply:?}");
    gauge
}

fn up(generation: u64, up: bool) -> Reply {
    Reply::Event(Event::Service { service: "thermometer".into(), up, generation })
}

fn mounted(broker: &Broker, frontend: &mut (MemberId, Mail)) -> MountedService {
    let reply = ask(broker, frontend, Request::Services { id: 1 });
    let Reply::Services { mut services, .. } = reply else { panic!("{reply:?}") };
    services.remove(0)
}

#[test]
fn a_program_offers_files_and_hears_of_every_consumer_with_its_verbs() {
    let broker = lab();
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    let early = ask(&broker, &mut frontend, connect("thermometer", "device"));
    refused(&early, Errno::AGAIN);
    let mut gauge = program(&broker, "gauge");
    let reply = ask(&broker, &mut gauge, offer());
    let Reply::Serving { services, .. } = reply else { panic!("{reply:?}") };
    let settings = json!({ "unit": "celsius", "probes": [4, 17] });
    assert_eq!(services, [ServedService { name: "thermometer".into(), kind: "program".into(), settings }]);
    assert_eq!(next(&mut frontend.1), up(1, true));
    let MountedService { kind, at, verbs, up: is_up, .. } = mounted(&broker, &mut frontend);
    assert_eq!((kind.as_str(), at.as_str(), is_up), ("program", "t", true));
    assert_eq!(verbs, ["calibrate", "read"]);
    let mut web = program(&broker, "web");
    for (member, entrance) in [(&mut frontend, "device"), (&mut web, "api")] {
        let reply = ask(&broker, member, connect("thermometer", entrance));
        assert!(matches!(reply, Reply::Connected { .. }), "{reply:?}");
        let Reply::Event(Event::Attach { service, consumer, .. }) = next(&mut gauge.1) else { panic!() };
        assert_eq!((service.as_str(), consumer.domain.as_str()), ("thermometer", "web"));
        assert_eq!((consumer.dc.as_str(), consumer.entrance.as_str()), ("shop", entrance));
        assert_eq!(consumer.verbs, ["calibrate", "read"]);
    }
    let row = broker.service("shop", "thermometer");
    assert!(row.up && row.opened == 2 && row.server_pid == Some(1), "{row:?}");
    // It is not asked for its state: a program may know nothing of that, and whoever inspects would
    // wait.
    assert!(broker.inspect().iter().all(|(id, _)| *id != gauge.0));
}

#[test]
fn programs_come_and_go_and_frontends_hear_of_each() {
    let broker = lab();
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    for generation in 1..=3 {
        let gauge = offered(&broker);
        assert_eq!(next(&mut frontend.1), up(generation, true));
        refused(&ask(&broker, &mut program(&broker, "gauge"), offer()), Errno::BUSY);
        broker.leave(gauge.0);
        assert_eq!(next(&mut frontend.1), up(generation, false));
    }
    refused(&ask(&broker, &mut frontend, connect("thermometer", "device")), Errno::AGAIN);
}

// A program is no part of ours, and may come and go as fast as it likes: that must cut off nobody's
// frontend.
#[test]
fn a_program_that_comes_and_goes_quickly_cuts_off_no_frontend() {
    let broker = lab();
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    for _ in 0..2 * MAX_WAITING_PACKETS {
        broker.leave(offered(&broker).0);
    }
    let _last = offered(&broker);
    // What does not fit waits, the newest in the place of the one before.
    let mut heard = Vec::new();
    while let Ok(Outgoing { reply, .. }) = frontend.1.try_recv() {
        heard.push(reply);
        broker.has_read(frontend.0);
    }
    assert!(heard.len() <= MAX_WAITING_PACKETS, "{}", heard.len());
    assert_eq!(heard.last(), Some(&up(2 * MAX_WAITING_PACKETS as u64 + 1, true)));
    let reply = ask(&broker, &mut frontend, connect("thermometer", "device"));
    assert!(matches!(reply, Reply::Connected { .. }), "{reply:?}");
}

#[test]
fn only_programs_of_the_host_offer_and_only_those_who_mount_connect() {
    let broker = lab();
    refused(&ask(&broker, &mut program(&broker, "web"), offer()), Errno::PERM);
    refused(&ask(&broker, &mut program(&broker, "other"), offer()), Errno::NOENT);
    refused(&ask(&broker, &mut join(&broker, "gauge", Role::Frontend, false), offer()), Errno::PERM);
    refused(
        &ask(&broker, &mut join(&broker, "gauge", Role::Program, true), Request::Serve { id: 1 }),
        Errno::PERM,
    );
    let mut gauge = offered(&broker);
    refused(&ask(&broker, &mut program(&broker, "other"), connect("thermometer", "api")), Errno::NOENT);
    refused(&ask(&broker, &mut gauge, connect("thermometer", "api")), Errno::NOENT);
    refused(&ask(&broker, &mut program(&broker, "web"), connect("thermometer", "device")), Errno::PERM);
    assert!(broker.is_a_programs(program(&broker, "web").0, "thermometer"));
    assert!(!broker.is_a_programs(program(&broker, "other").0, "thermometer"));
}

#[test]
fn a_program_hears_of_settings_and_verbs_and_of_its_end() {
    let broker = lab();
    let mut gauge = offered(&broker);
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    broker.set_topology("shop", Some(topology(&FILE.replace("celsius", "kelvin"))));
    let Reply::Event(Event::Settings { service, settings }) = next(&mut gauge.1) else { panic!() };
    assert_eq!((service.as_str(), &settings["unit"]), ("thermometer", &json!("kelvin")));
    let fewer = FILE.replace("celsius", "kelvin").replace(", \"calibrate\"", "");
    broker.set_topology("shop", Some(topology(&fewer)));
    let Reply::Event(Event::Verbs { domain, verbs, .. }) = next(&mut gauge.1) else { panic!() };
    assert_eq!((domain.as_str(), verbs), ("web", vec!["read".to_owned()]));
    let Reply::Event(Event::Services { services }) = next(&mut frontend.1) else { panic!() };
    assert_eq!(services[0].verbs, ["read"]);
    // The same file again is nothing to hear of.
    broker.set_topology("shop", Some(topology(&fewer)));
    assert!(gauge.1.try_recv().is_err() && frontend.1.try_recv().is_err());
    broker.set_topology("shop", Some(topology(&fewer.replace("domain = \"gauge\"", "domain = \"other\""))));
    let Reply::Event(Event::Withdrawn { service, message }) = next(&mut gauge.1) else { panic!() };
    assert!(service == "thermometer" && message.contains("the service thermometer"), "{message}");
    assert_eq!(next(&mut frontend.1), up(1, false));
    refused(&ask(&broker, &mut gauge, offer()), Errno::NOENT);
}

#[test]
fn a_program_that_does_not_read_is_let_down_alone() {
    let broker = lab();
    let _deaf = offered(&broker);
    let connect = || ask(&broker, &mut program(&broker, "web"), connect("thermometer", "api"));
    let replies: Vec<Reply> = (0..MAX_WAITING_PACKETS).map(|_| connect()).collect();
    let connected = replies.iter().filter(|reply| matches!(reply, Reply::Connected { .. })).count();
    assert_eq!(connected, MAX_WAITING_PACKETS - KEPT_PACKETS);
    refused(replies.last().unwrap(), Errno::AGAIN);
    // It is not cut off for it, and what else it is to hear has room.
    assert!(broker.service("shop", "thermometer").up);
}

#[tokio::test]
async fn channels_live_until_either_end_is_gone_and_not_with_the_offer() {
    let broker = lab_with(crate::broker::make_channel);
    let (gauge, mut mail) = offered(&broker);
    let (web, mut webs) = program(&broker, "web");
    broker.request(web, connect("thermometer", "api"), None, |_| Value::Null);
    let consumer = webs.try_recv().unwrap().descriptors;
    let server = mail.try_recv().unwrap().descriptors;
    broker.leave(gauge);
    tokio::task::yield_now().await;
    assert_eq!(broker.channels().len(), 1, "the program has it still");
    drop(server);
    let over = async {
        while !broker.channels().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), over).await.expect("the channel is over");
    drop(consumer);
}

/// A program that may stand by, or has served before.
fn in_turn(stand_by: bool, serving: bool) -> Request {
    Request::Offer { id: 3, service: "thermometer".into(), stand_by, serving }
}

#[tokio::test]
async fn a_service_moves_to_whoever_stands_by_and_what_is_wrong_is_refused_in_words() {
    let broker = Broker::new(no_channel);
    let file = FILE.replace("domain = \"gauge\"", "domain = \"gauge\"\nbackups = [\"gauge\", \"other\"]");
    broker.set_topology("shop", Some(topology(&file)));
    let mut first = program(&broker, "gauge");
    let reply = ask(&broker, &mut first, in_turn(true, true));
    assert!(matches!(reply, Reply::Serving { id: 3, .. }), "{reply:?}");
    let mut second = program(&broker, "other");
    broker.request(second.0, in_turn(true, false), None, |_| Value::Null);
    assert!(second.1.try_recv().is_err(), "it is not its turn");
    // Whoever does not want to wait, may not offer at all, or leaves what it does not have.
    refused(&ask(&broker, &mut program(&broker, "other"), in_turn(false, false)), Errno::BUSY);
    refused(&ask(&broker, &mut program(&broker, "web"), in_turn(true, false)), Errno::PERM);
    let step_back = |id| Request::StepBack { id, service: "thermometer".into() };
    refused(&ask(&broker, &mut program(&broker, "other"), step_back(4)), Errno::PERM);
    for (to, said) in [("web", "may not offer"), ("gauge", "already"), ("nowhere", "may not offer")] {
        let why = broker.move_service("shop", "thermometer", to).await.expect_err("it does not move");
        assert!(why.contains(said), "{why}");
    }
    let mover = broker.clone();
    let moving = tokio::spawn(async move { mover.move_service("shop", "thermometer", "other").await });
    let told = first.1.recv().await.expect("an order").reply;
    assert_eq!(told, Reply::Event(Event::Leave { service: "thermometer".into() }));
    broker.request(first.0, step_back(9), None, |_| Value::Null);
    assert!(matches!(next(&mut second.1), Reply::Serving { id: 3, .. }));
    assert_eq!(moving.await.expect("it ends").expect("it moves").from, "gauge");
    // The one before stands by, and has the service when the other dies.
    broker.leave(second.0);
    assert!(matches!(next(&mut first.1), Reply::Serving { id: 9, .. }));
    // Nobody else is there to step back for: it goes on.
    broker.request(first.0, step_back(10), None, |_| Value::Null);
    assert!(matches!(next(&mut first.1), Reply::Serving { id: 10, .. }));
}

#[test]
fn a_backup_waits_for_a_program_of_the_services_own_domain_at_first() {
    let file = FILE.replace("domain = \"gauge\"", "domain = \"gauge\"\nbackups = [\"other\"]");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    let broker = Broker::new(no_channel);
    broker.set_topology("shop", Some(topology(&file)));
    let mut backup = program(&broker, "other");
    broker.request(backup.0, in_turn(true, false), None, |_| Value::Null);
    assert!(backup.1.try_recv().is_err(), "the program of the service's own domain may be on its way");
    let mut own = program(&broker, "gauge");
    assert!(matches!(ask(&broker, &mut own, in_turn(true, true)), Reply::Serving { .. }));
}
