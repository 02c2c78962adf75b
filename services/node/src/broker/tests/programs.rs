//! Services of kind `program`: a program offers, frontends and programs of the domains that mount it connect.

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
    Request::Offer { id: 3, service: "thermometer".into() }
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
    // It is not asked for its state: a program may know nothing of that, and whoever inspects would wait.
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

// A program is no part of ours, and may come and go as fast as it likes: that must cut off nobody's frontend.
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
