//! The broker, with members that are only mailboxes.

mod endpoints;
mod far;
mod machines;
mod memories;
mod offers;
mod programs;

use super::*;
use rustix::io::Errno;
use serde_json::json;

const FILE: &str = r#"
name = "shop"
[domain.resolver]
kind = "container"
root = "host"
network = "host"
[service.dns]
kind = "directory"
domain = "resolver"
allow = [{ domains = ["web"], verbs = ["resolve"] }]
[service.dns.settings]
upstream = ["127.0.0.1:5353"]
[domain.web]
kind = "container"
root = "host"
command = ["true"]
services = { dns = "/srv/dns" }
[domain.other]
kind = "container"
root = "host"
command = ["true"]
"#;

fn topology(text: &str) -> Arc<Topology> {
    Arc::new(topology::parse(text, "test.toml", std::path::Path::new("/")).unwrap_or_else(|e| panic!("{e}")))
}

fn no_channel(_: Shape) -> io::Result<Ends> {
    Ok(Ends { consumer: Vec::new(), server: Vec::new(), consumer_gone: None, server_gone: None })
}

fn broker() -> Broker {
    let broker = Broker::new(no_channel);
    broker.set_topology("shop", Some(topology(FILE)));
    broker
}

fn who(domain: &str, role: Role, main: bool) -> Identity {
    Identity { dc: "shop".into(), domain: domain.into(), role, pid: 1, main }
}

type Mail = mpsc::Receiver<Outgoing>;

fn join(broker: &Broker, domain: &str, role: Role, main: bool) -> (MemberId, Mail) {
    broker.join(who(domain, role, main)).unwrap()
}

fn next(mail: &mut Mail) -> Reply {
    mail.try_recv().map(|outgoing| outgoing.reply).unwrap_or_else(|e| panic!("no mail: {e}"))
}

fn ask(broker: &Broker, (id, mail): &mut (MemberId, Mail), request: Request) -> Reply {
    broker.request(*id, request, None, |identity| json!({ "domain": identity.domain }));
    next(mail)
}

fn connect(service: &str, entrance: &str) -> Request {
    Request::Connect { id: 7, service: service.into(), entrance: entrance.into(), ring_bytes: 0, wait_ms: 0 }
}

fn errno(reply: &Reply) -> Option<i32> {
    if let Reply::Refused { errno, .. } = reply { Some(*errno) } else { None }
}

fn refused(reply: &Reply, expected: Errno) {
    assert_eq!(errno(reply), Some(expected.raw_os_error()), "{reply:?}");
}

#[test]
fn a_server_is_introduced_to_its_consumers() {
    let broker = broker();
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    refused(&ask(&broker, &mut frontend, connect("dns", "device")), Errno::AGAIN);
    let mut server = join(&broker, "resolver", Role::Program, true);
    let reply = ask(&broker, &mut server, Request::Serve { id: 1 });
    assert!(matches!(reply, Reply::Serving { ref services, .. } if services[0].name == "dns"), "{reply:?}");
    let event = next(&mut frontend.1);
    assert_eq!(event, Reply::Event(Event::Service { service: "dns".into(), up: true, generation: 1 }));
    let reply = ask(&broker, &mut frontend, connect("dns", "device"));
    let Reply::Connected { id: 7, channel, .. } = reply else { panic!("{reply:?}") };
    let Reply::Event(Event::Attach { service, channel: same, consumer, .. }) = next(&mut server.1) else {
        panic!()
    };
    assert_eq!((service.as_str(), same, consumer.domain.as_str()), ("dns", channel, "web"));
    assert_eq!(consumer.verbs, ["resolve"]);
    assert_eq!(broker.channels().len(), 1);
    broker.leave(server.0);
    let event = next(&mut frontend.1);
    assert_eq!(event, Reply::Event(Event::Service { service: "dns".into(), up: false, generation: 1 }));
    assert!(broker.channels().is_empty() && !broker.all_served("shop", "resolver"));
}

#[test]
fn only_the_hosts_first_process_serves_and_only_once() {
    let broker = broker();
    let serve = Request::Serve { id: 1 };
    refused(&ask(&broker, &mut join(&broker, "web", Role::Program, true), serve.clone()), Errno::PERM);
    refused(&ask(&broker, &mut join(&broker, "resolver", Role::Program, false), serve.clone()), Errno::PERM);
    refused(&ask(&broker, &mut join(&broker, "resolver", Role::Frontend, true), serve.clone()), Errno::PERM);
    let mut server = join(&broker, "resolver", Role::Program, true);
    assert!(matches!(ask(&broker, &mut server, serve.clone()), Reply::Serving { .. }));
    refused(&ask(&broker, &mut join(&broker, "resolver", Role::Program, true), serve), Errno::BUSY);
}

#[test]
fn a_connect_is_held_against_the_topology() {
    let broker = broker();
    let mut server = join(&broker, "resolver", Role::Program, true);
    ask(&broker, &mut server, Request::Serve { id: 1 });
    let mut web = join(&broker, "web", Role::Program, false);
    for entrance in ["device", "stub", "resolve"] {
        refused(&ask(&broker, &mut web, connect("dns", entrance)), Errno::PERM);
    }
    refused(&ask(&broker, &mut web, connect("dns", "window")), Errno::INVAL);
    refused(&ask(&broker, &mut web, connect("mail", "api")), Errno::NOENT);
    // Exists, is not mounted: spoken of as if it did not exist.
    let mut other = join(&broker, "other", Role::Program, false);
    refused(&ask(&broker, &mut other, connect("dns", "api")), Errno::NOENT);
    assert!(matches!(ask(&broker, &mut web, connect("dns", "preload")), Reply::Connected { .. }));
}

#[test]
fn connections_and_channels_are_bounded_for_each_domain() {
    let broker = broker();
    let mut server = join(&broker, "resolver", Role::Program, true);
    ask(&broker, &mut server, Request::Serve { id: 1 });
    let mut members: Vec<_> =
        (0..MAX_MEMBERS_PER_DOMAIN).map(|_| join(&broker, "web", Role::Program, false)).collect();
    assert!(broker.join(who("web", Role::Program, false)).is_none());
    assert!(broker.join(who("other", Role::Program, false)).is_some(), "another domain has its own bound");
    let mut given = 0;
    'all: for member in &mut members {
        for _ in 0..MAX_CHANNELS_PER_MEMBER {
            if errno(&ask(&broker, member, connect("dns", "api"))) == Some(Errno::MFILE.raw_os_error()) {
                break 'all;
            }
            given += 1;
            assert!(matches!(next(&mut server.1), Reply::Event(Event::Attach { .. })));
        }
    }
    assert_eq!(given, MAX_CHANNELS_PER_DOMAIN);
    // Hanging up does not help: the channels live on in whoever took them.
    for member in &members {
        broker.leave(member.0);
    }
    let mut again = join(&broker, "web", Role::Program, false);
    refused(&ask(&broker, &mut again, connect("dns", "api")), Errno::MFILE);
}

// A domain that asked for channels and let go of them, as fast as it could, once filled the outbox
// of a server that was not fast enough: the server was cut off, and its service went down for
// everybody, five times in eight seconds.
#[test]
fn a_server_is_not_cut_off_because_of_what_others_ask() {
    let broker = broker();
    let mut server = join(&broker, "resolver", Role::Program, true);
    ask(&broker, &mut server, Request::Serve { id: 1 });
    let mut members: Vec<_> = (0..4).map(|_| join(&broker, "web", Role::Program, false)).collect();
    for member in &mut members {
        for _ in 0..MAX_CHANNELS_PER_MEMBER {
            let reply = ask(&broker, member, connect("dns", "api"));
            if errno(&reply).is_some() {
                refused(&reply, Errno::AGAIN);
                break;
            }
        }
    }
    assert_eq!(server.1.len(), MAX_WAITING_PACKETS - KEPT_PACKETS);
    assert!(broker.all_served("shop", "resolver"), "it was cut off");
    // What is not a new channel still finds room.
    broker.set_topology("shop", Some(topology(&FILE.replace(":5353", ":5354"))));
    let mut last = None;
    while let Ok(packet) = server.1.try_recv() {
        last = Some(packet.reply);
    }
    assert!(matches!(last, Some(Reply::Event(Event::Settings { .. }))), "{last:?}");
}

// Programs that joined, asked and did not read once wrote 170 KB a second into the daemon's log.
#[test]
fn a_domain_that_is_cut_off_again_and_again_is_not_worth_a_line_each_time() {
    let broker = broker();
    let mut inner = broker.lock();
    assert!(inner.is_worth_a_remark("shop", "web"));
    assert!(!inner.is_worth_a_remark("shop", "web"));
    assert!(inner.is_worth_a_remark("shop", "other"));
    let long_ago = Instant::now().checked_sub(CUT_OFF_REMARK).expect("the machine runs for a minute");
    inner.remarked.insert(("shop".into(), "web".into()), long_ago);
    assert!(inner.is_worth_a_remark("shop", "web"));
    drop(inner);
    broker.set_topology("shop", None);
    assert!(broker.lock().remarked.is_empty());
}

#[test]
fn a_changed_file_is_told_to_whom_it_concerns() {
    let broker = broker();
    let mut server = join(&broker, "resolver", Role::Program, true);
    ask(&broker, &mut server, Request::Serve { id: 1 });
    let mut frontend = join(&broker, "web", Role::Frontend, false);
    let text =
        FILE.replace("verbs = [\"resolve\"]", "verbs = [\"resolve\", \"control\"]").replace(":5353", ":5354");
    broker.set_topology("shop", Some(topology(&text)));
    let Reply::Event(Event::Settings { settings, .. }) = next(&mut server.1) else { panic!("no settings") };
    assert_eq!(settings["upstream"][0], "127.0.0.1:5354");
    let Reply::Event(Event::Verbs { domain, verbs, .. }) = next(&mut server.1) else { panic!("no verbs") };
    assert_eq!((domain.as_str(), verbs.len()), ("web", 2));
    let Reply::Event(Event::Services { services }) = next(&mut frontend.1) else { panic!("no services") };
    assert_eq!(services[0].verbs.len(), 2);
    assert!(frontend.1.try_recv().is_err() && server.1.try_recv().is_err());
}

#[test]
fn state_is_asked_of_frontends_and_servers_and_answers_find_who_asked() {
    let broker = broker();
    let mut server = join(&broker, "resolver", Role::Program, true);
    ask(&broker, &mut server, Request::Serve { id: 1 });
    let _bystander = join(&broker, "web", Role::Program, false);
    let asked = broker.inspect();
    assert_eq!(asked.len(), 1);
    let Reply::Event(Event::Inspect { id }) = next(&mut server.1) else { panic!() };
    broker.request(server.0, Request::State { id: id + 1, state: json!("nobody asked") }, None, |_| {
        Value::Null
    });
    broker.request(server.0, Request::State { id, state: json!(5) }, None, |_| Value::Null);
    let (_, mut answer) = asked.into_iter().next().unwrap();
    assert_eq!(answer.try_recv().unwrap(), json!(5));
}

#[tokio::test]
async fn a_channel_is_forgotten_when_its_consumer_is_gone() {
    let broker = Broker::new(crate::broker::make_channel);
    broker.set_topology("shop", Some(topology(FILE)));
    let mut server = join(&broker, "resolver", Role::Program, true);
    ask(&broker, &mut server, Request::Serve { id: 1 });
    let (id, mut mail) = join(&broker, "web", Role::Program, false);
    broker.request(id, connect("dns", "api"), None, |_| Value::Null);
    let end = mail.try_recv().unwrap().descriptors;
    let _servers_end = server.1.try_recv().unwrap().descriptors;
    broker.leave(id);
    tokio::task::yield_now().await;
    assert_eq!(broker.channels().len(), 1, "it was forgotten while somebody has it");
    drop(end);
    let patience = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while !broker.channels().is_empty() {
        assert!(tokio::time::Instant::now() < patience, "it is never forgotten");
        tokio::task::yield_now().await;
    }
}
