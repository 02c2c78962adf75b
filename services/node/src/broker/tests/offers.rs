//! Channel services: programs that offer, and programs that open.

use super::*;
use topology::ChannelMode;
use wire::control::ServedService;

const FILE: &str = r#"
name = "shop"
[domain.camera]
kind = "container"
root = "host"
command = ["true"]
[domain.viewer]
kind = "container"
root = "host"
command = ["true"]
[domain.other]
kind = "container"
root = "host"
command = ["true"]
[service.frames]
kind = "channel"
domain = "camera"
allow = [{ domains = ["viewer"], verbs = ["open"] }]
settings = { ring_bytes = "64KiB", mode = "stream", max_channels = 3, channels_per_domain = 2 }
"#;

fn shop() -> Broker {
    shop_with(no_channel)
}

fn shop_with(make: MakeChannel) -> Broker {
    let broker = Broker::new(make);
    broker.set_topology("shop", Some(topology(FILE)));
    broker
}

fn offer(service: &str) -> Request {
    Request::Offer { id: 3, service: service.into(), stand_by: false, serving: false }
}

fn program(broker: &Broker, domain: &str) -> (MemberId, Mail) {
    join(broker, domain, Role::Program, false)
}

fn message(reply: &Reply) -> &str {
    if let Reply::Refused { message, .. } = reply { message } else { panic!("{reply:?}") }
}

/// A program of `camera` that offers.
fn offered(broker: &Broker) -> (MemberId, Mail) {
    let mut camera = program(broker, "camera");
    let reply = ask(broker, &mut camera, offer("frames"));
    assert!(matches!(reply, Reply::Serving { id: 3, .. }), "{reply:?}");
    camera
}

#[test]
fn any_program_of_the_hosting_domain_offers_and_hears_who_opens() {
    let broker = shop();
    let mut viewer = program(&broker, "viewer");
    let early = ask(&broker, &mut viewer, connect("frames", "api"));
    refused(&early, Errno::AGAIN);
    assert!(message(&early).contains("no program offers the channel frames now"), "{early:?}");
    let mut camera = program(&broker, "camera");
    let reply = ask(&broker, &mut camera, offer("frames"));
    let Reply::Serving { services, .. } = reply else { panic!("{reply:?}") };
    let settings =
        json!({ "ring_bytes": 65536, "mode": "stream", "max_channels": 3, "channels_per_domain": 2 });
    assert_eq!(services, [ServedService { name: "frames".into(), kind: "channel".into(), settings }]);
    let reply = ask(&broker, &mut viewer, connect("frames", "api"));
    let Reply::Connected { channel, .. } = reply else { panic!("{reply:?}") };
    let Reply::Event(Event::Attach { service, channel: same, consumer, .. }) = next(&mut camera.1) else {
        panic!("no attach")
    };
    assert_eq!((service.as_str(), same), ("frames", channel));
    assert_eq!((consumer.dc.as_str(), consumer.domain.as_str()), ("shop", "viewer"));
    assert_eq!((consumer.entrance.as_str(), consumer.verbs), ("api", vec!["open".to_owned()]));
    let row = broker.service("shop", "frames");
    assert!(row.up && row.generation == 1 && row.opened == 1, "{row:?}");
}

#[test]
fn there_is_one_that_offers_at_a_time_and_another_one_after_it() {
    let broker = shop();
    let mut first = offered(&broker);
    let mut second = program(&broker, "camera");
    let busy = ask(&broker, &mut second, offer("frames"));
    refused(&busy, Errno::BUSY);
    assert!(
        message(&busy).contains("another program of domain camera offers the channel frames"),
        "{busy:?}"
    );
    // To say it twice changes nothing.
    assert!(matches!(ask(&broker, &mut first, offer("frames")), Reply::Serving { .. }));
    assert_eq!(broker.service("shop", "frames").generation, 1);
    broker.leave(first.0);
    assert!(!broker.service("shop", "frames").up);
    assert!(matches!(ask(&broker, &mut second, offer("frames")), Reply::Serving { .. }));
    assert_eq!(broker.service("shop", "frames").generation, 2);
}

#[test]
fn only_the_hosting_domain_offers_and_strangers_hear_of_nothing() {
    let broker = shop();
    let refusal = |domain: &str, request: Request| ask(&broker, &mut program(&broker, domain), request);
    refused(&refusal("viewer", offer("frames")), Errno::PERM);
    refused(&refusal("other", offer("frames")), Errno::NOENT);
    refused(&refusal("camera", offer("sound")), Errno::NOENT);
    let _camera = offered(&broker);
    // Who may not open hears the same of a channel that there is as of one that there is not.
    let (there, not_there) =
        (refusal("other", connect("frames", "api")), refusal("other", connect("nothing", "api")));
    refused(&there, Errno::NOENT);
    assert_eq!(message(&there).replace("frames", "nothing"), message(&not_there));
    // The domain that offers opens only where the file says so.
    refused(&refusal("camera", connect("frames", "api")), Errno::NOENT);
    refused(&refusal("viewer", connect("frames", "preload")), Errno::INVAL);
    // A server's request is no offer.
    refused(
        &ask(&broker, &mut join(&broker, "camera", Role::Program, true), Request::Serve { id: 1 }),
        Errno::PERM,
    );
    // The same names in another distributed container are other things.
    let foreign = Identity { dc: "mall".into(), ..who("viewer", Role::Program, false) };
    let mut foreign = broker.join(foreign).unwrap();
    refused(&ask(&broker, &mut foreign, connect("frames", "api")), Errno::NOENT);
    refused(&ask(&broker, &mut foreign, offer("frames")), Errno::NOENT);
}

#[test]
fn what_has_a_server_is_not_offered_by_a_program() {
    let broker = broker();
    let mut member = join(&broker, "resolver", Role::Program, true);
    refused(&ask(&broker, &mut member, offer("dns")), Errno::INVAL);
    refused(&ask(&broker, &mut join(&broker, "web", Role::Frontend, false), offer("dns")), Errno::PERM);
}

#[test]
fn channels_are_counted_for_the_service_and_for_each_domain() {
    let broker = shop();
    let text = FILE.replace("domains = [\"viewer\"]", "domains = [\"viewer\", \"other\"]");
    broker.set_topology("shop", Some(topology(&text)));
    let mut camera = offered(&broker);
    let open = |domain: &str| ask(&broker, &mut program(&broker, domain), connect("frames", "api"));
    assert!(matches!(open("viewer"), Reply::Connected { .. }));
    assert!(matches!(open("viewer"), Reply::Connected { .. }));
    let full = open("viewer");
    refused(&full, Errno::MFILE);
    assert!(message(&full).contains("`channels_per_domain`"), "{full:?}");
    assert!(matches!(open("other"), Reply::Connected { .. }), "another domain has its own bound");
    let full = open("other");
    refused(&full, Errno::USERS);
    assert!(message(&full).contains("`max_channels`"), "{full:?}");
    // They are not over because the program no longer offers.
    while camera.1.try_recv().is_ok() {}
    broker.leave(camera.0);
    assert_eq!(broker.channels().len(), 3);
}

#[test]
fn a_channel_is_as_the_file_says_and_smaller_where_that_is_wished() {
    fn check(shape: Shape) -> io::Result<Ends> {
        assert_eq!(shape.mode, ChannelMode::Stream);
        Err(io::Error::other(format!("{} bytes", shape.ring_bytes)))
    }
    let broker = shop_with(check);
    let _camera = offered(&broker);
    for (wish, bytes) in [(0, 65536), (4096, 4096), (1 << 20, 65536)] {
        let request = Request::Connect {
            id: 7,
            service: "frames".into(),
            entrance: "api".into(),
            ring_bytes: wish,
            wait_ms: 0,
        };
        let reply = ask(&broker, &mut program(&broker, "viewer"), request);
        refused(&reply, Errno::NOMEM);
        assert!(message(&reply).contains(&format!(" {bytes} bytes")), "{reply:?}");
    }
}

#[test]
fn what_is_made_is_what_was_asked_for() {
    for (mode, made) in
        [(ChannelMode::Messages, channel::Mode::Messages), (ChannelMode::Stream, channel::Mode::Stream)]
    {
        let ends = crate::broker::make_channel(Shape { ring_bytes: 8192, mode, guests: [false; 2] }).unwrap();
        for end in [ends.consumer, ends.server] {
            let end = channel::End::from_descriptors(end).unwrap();
            assert_eq!(end.mode().unwrap(), made);
        }
    }
    use topology::bounds::{RING_BYTES_MAX, RING_BYTES_MIN};
    let (least, most) = (wire::ring::RING_BYTES_MIN, wire::ring::RING_BYTES_MAX);
    assert_eq!((RING_BYTES_MIN, RING_BYTES_MAX), (u64::from(least), u64::from(most)));
}

#[test]
fn a_program_whose_domain_may_no_longer_offer_is_told() {
    let moved = FILE.replace("domain = \"camera\"", "domain = \"other\"");
    let removed = FILE.split("[service").next().unwrap_or_default().to_owned();
    for after in [Some(topology(&moved)), Some(topology(&removed)), None] {
        let broker = shop();
        let mut camera = offered(&broker);
        broker.set_topology("shop", Some(topology(&FILE.replace("64KiB", "32KiB"))));
        assert!(matches!(next(&mut camera.1), Reply::Event(Event::Settings { .. })));
        broker.set_topology("shop", after.clone());
        let Reply::Event(Event::Withdrawn { service, message }) = next(&mut camera.1) else { panic!() };
        assert!(service == "frames" && message.contains("no longer"), "{message}");
        assert!(!broker.service("shop", "frames").up);
        let again = ask(&broker, &mut camera, offer("frames"));
        refused(&again, Errno::NOENT);
    }
}

#[test]
fn a_program_that_offers_is_not_asked_for_its_state() {
    let broker = shop();
    let _camera = offered(&broker);
    assert!(broker.inspect().is_empty(), "whoever inspects would wait for its answer");
}

#[tokio::test]
async fn a_channel_is_over_when_either_end_is() {
    for keep in ["consumer", "server", "none"] {
        let broker = shop_with(crate::broker::make_channel);
        let (camera, mut mail) = offered(&broker);
        let (viewer, mut viewers) = program(&broker, "viewer");
        broker.request(viewer, connect("frames", "api"), None, |_| Value::Null);
        let consumer = viewers.try_recv().unwrap().descriptors;
        let server = mail.try_recv().unwrap().descriptors;
        broker.leave(camera);
        broker.leave(viewer);
        tokio::task::yield_now().await;
        assert_eq!(broker.channels().len(), 1, "it was forgotten while both ends are there");
        if keep != "consumer" {
            drop(consumer);
        }
        if keep != "server" {
            drop(server);
        }
        let patience = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
        while !broker.channels().is_empty() {
            assert!(tokio::time::Instant::now() < patience, "it is never forgotten: {keep} is kept");
            tokio::task::yield_now().await;
        }
    }
}
