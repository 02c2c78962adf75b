//! A program that serves a service of kind `program`: by the loop of a server, and by itself over
//! an offer. Introduced by a stand-in for the daemon.

use rustix::io::Errno;
use serde_json::{Value, json};
use session::{
    Blocking, CallError, Context, Control, ControlError, Incoming, LinkId, Offer, OfferEvent, Readiness,
    ReplyTo, ServeError, Server, Service,
};
use std::path::Path;
use std::time::{Duration, Instant};
use testing::FakeDaemon;
use wire::control::{Consumer, Event, ServedService};
use wire::service::{Behaviour, Export, FileExport, OpenInfo, SESSION_NONE, VERSION};

/// Far longer than anything takes; who waits in vain fails the test.
const TIMEOUT: Duration = Duration::from_secs(30);
const UNIT: u32 = 1;

fn soon() -> Instant {
    Instant::now() + TIMEOUT
}

/// Says in which unit it measures. It refuses a unit that is empty.
#[derive(Default)]
struct Gauge {
    unit: String,
}

impl Service for Gauge {
    fn export(&self) -> Export {
        let file = FileExport {
            id: UNIT,
            // Files may depend on the settings.
            name: Some(self.unit.clone()),
            mode: 0o444,
            behaviour: Behaviour::Text,
            idempotent: true,
            verb: "use".into(),
            change: None,
        };
        Export { version: VERSION, kind: "gauge".into(), files: vec![file] }
    }
    fn attach(&mut self, _: &mut dyn Context, _: LinkId, _: &Consumer) {}
    fn detach(&mut self, _: &mut dyn Context, _: LinkId) {}
    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, _: &OpenInfo) {
        ctx.answer(to, Ok(&[]), &[]);
    }
    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, _: &[u8]) {
        ctx.answer(to, Ok(self.unit.as_bytes()), &[]);
    }
    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, _: &[u8]) {
        ctx.answer(to, Err(Errno::NOTTY), &[]);
    }
    fn cancel(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}
    fn close(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}
    fn settings(&mut self, _: &mut dyn Context, settings: &Value) -> Result<(), String> {
        let unit = settings["unit"].as_str().filter(|unit| !unit.is_empty()).ok_or("no `unit`")?;
        self.unit = unit.to_owned();
        Ok(())
    }
    fn ready(&mut self, _: &mut dyn Context, _: u32, _: Readiness) {}
    fn deadline(&self) -> Option<Instant> {
        None
    }
    fn expired(&mut self, _: &mut dyn Context) {}
    fn state(&self) -> Value {
        json!({ "unit": self.unit })
    }
    fn state_for(&self, _: LinkId) -> Value {
        self.state()
    }
}

fn start(folder: &Path, kind: &str, settings: Value) -> FakeDaemon {
    let service = ServedService { name: "thermometer".into(), kind: kind.into(), settings };
    FakeDaemon::start(folder, &["gauge", "hall"], vec![service])
}

fn serve(daemon: &FakeDaemon) -> std::thread::JoinHandle<Result<(), ServeError>> {
    let control = Control::connect(&daemon.socket("gauge")).expect("connected");
    std::thread::spawn(move || Server::offering(control, "thermometer", Box::<Gauge>::default())?.run(None))
}

/// Connects as soon as somebody serves.
fn link(daemon: &FakeDaemon) -> Blocking {
    let mut control = Control::connect(&daemon.socket("hall")).expect("connected");
    let deadline = soon();
    loop {
        match control.connect_service("thermometer", "api", 0, soon()) {
            Ok((_, end)) => return Blocking::open(end, Some(soon())).expect("a link"),
            Err(ControlError::Refused { .. }) if Instant::now() < deadline => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn unit(link: &mut Blocking) -> Result<String, Errno> {
    let answer = link.call(UNIT, b"", Some(soon())).expect("called").result;
    answer.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

#[test]
fn the_loop_of_a_server_runs_over_an_offer() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = start(folder.path(), "program", json!({ "unit": "celsius" }));
    let server = serve(&daemon);
    let mut first = link(&daemon);
    // It has been told its settings before anybody came.
    assert_eq!(first.export().files[0].name.as_deref(), Some("celsius"));
    assert_eq!(unit(&mut first), Ok("celsius".to_owned()));
    let verbs =
        |verbs: Vec<String>| Event::Verbs { service: "thermometer".into(), domain: "hall".into(), verbs };
    daemon.tell_server(verbs(Vec::new()));
    // The state goes the same way as the event, so the event has been heard when it is there.
    let _state = daemon.state();
    assert_eq!(unit(&mut first), Err(Errno::ACCESS));
    daemon.tell_server(verbs(vec!["use".into()]));
    let settings =
        |unit: &str| Event::Settings { service: "thermometer".into(), settings: json!({ "unit": unit }) };
    daemon.tell_server(settings("kelvin"));
    // What it can't use it does not take.
    daemon.tell_server(settings(""));
    assert_eq!(daemon.state()["services"]["thermometer"]["state"]["unit"], "kelvin");
    assert_eq!(unit(&mut first), Ok("kelvin".to_owned()));
    // The next daemon is told of the offer, and brings its settings.
    daemon.kill();
    let daemon = start(folder.path(), "program", json!({ "unit": "rankine" }));
    assert_eq!(unit(&mut link(&daemon)), Ok("rankine".to_owned()));
    assert_eq!(unit(&mut first), Ok("rankine".to_owned()));
    let message = "it is placed elsewhere".to_owned();
    daemon.tell_server(Event::Withdrawn { service: "thermometer".into(), message });
    let ended = server.join().expect("no panic");
    assert!(matches!(ended, Err(ServeError::Control(ControlError::Withdrawn(_)))), "{ended:?}");
}

#[test]
fn what_a_program_cant_serve_it_says() {
    for (kind, settings, words) in [
        ("channel", json!({ "unit": "celsius" }), "only a service of kind \"program\""),
        ("program", json!({}), "its settings can't be used: no `unit`"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = start(folder.path(), kind, settings);
        let ended = serve(&daemon).join().expect("no panic").expect_err("not served").to_string();
        assert!(ended.contains(words), "{ended}");
    }
}

#[test]
fn an_offer_tells_of_consumers_settings_and_verbs() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = start(folder.path(), "program", json!({ "unit": "celsius" }));
    let mut offer = Offer::at(&daemon.socket("gauge"), "thermometer", soon()).expect("offered");
    assert_eq!(
        (offer.service().kind.as_str(), &offer.service().settings["unit"]),
        ("program", &json!("celsius"))
    );
    assert!(offer.try_event().expect("nothing yet").is_none());
    daemon.tell_server(Event::Settings {
        service: "thermometer".into(),
        settings: json!({ "unit": "kelvin" }),
    });
    daemon.tell_server(Event::Verbs {
        service: "thermometer".into(),
        domain: "hall".into(),
        verbs: vec!["use".into()],
    });
    let mut consumer = Control::connect(&daemon.socket("hall")).expect("connected");
    let (number, _end) = consumer.connect_service("thermometer", "api", 0, soon()).expect("a channel");
    let settings = offer.next_event(Some(soon())).expect("told");
    assert!(
        matches!(settings, OfferEvent::Settings(ref settings) if settings["unit"] == "kelvin"),
        "{settings:?}"
    );
    assert_eq!(offer.service().settings["unit"], "kelvin");
    let verbs = offer.next_event(Some(soon())).expect("told");
    assert!(matches!(verbs, OfferEvent::Verbs { ref domain, .. } if domain == "hall"), "{verbs:?}");
    let consumer = offer.next_event(Some(soon())).expect("told");
    assert!(matches!(consumer, OfferEvent::Consumer { channel, .. } if channel == number), "{consumer:?}");
    // The next daemon's settings are told where they are others.
    daemon.kill();
    let _daemon = start(folder.path(), "program", json!({ "unit": "rankine" }));
    let settings = offer.next_event(Some(soon())).expect("told");
    assert!(
        matches!(settings, OfferEvent::Settings(ref settings) if settings["unit"] == "rankine"),
        "{settings:?}"
    );
}

/// As [`Gauge`], but for a question that it never answers.
#[derive(Default)]
struct Slow(Gauge);

impl Service for Slow {
    fn export(&self) -> Export {
        self.0.export()
    }
    fn attach(&mut self, _: &mut dyn Context, _: LinkId, _: &Consumer) {}
    fn detach(&mut self, _: &mut dyn Context, _: LinkId) {}
    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        self.0.open(ctx, to, info);
    }
    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        if payload != b"hold" {
            self.0.request(ctx, to, payload);
        }
    }
    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.0.control(ctx, to, payload);
    }
    fn cancel(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}
    fn close(&mut self, _: &mut dyn Context, _: LinkId, _: u64) {}
    fn settings(&mut self, ctx: &mut dyn Context, settings: &Value) -> Result<(), String> {
        self.0.settings(ctx, settings)
    }
    fn ready(&mut self, _: &mut dyn Context, _: u32, _: Readiness) {}
    fn deadline(&self) -> Option<Instant> {
        None
    }
    fn expired(&mut self, _: &mut dyn Context) {}
    fn state(&self) -> Value {
        self.0.state()
    }
    fn state_for(&self, link: LinkId) -> Value {
        self.0.state_for(link)
    }
}

#[test]
fn a_server_that_leaves_names_what_it_has_taken_and_takes_nothing_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let daemon = start(folder.path(), "program", json!({ "unit": "celsius" }));
    let control = Control::connect(&daemon.socket("gauge")).expect("connected");
    let _server = std::thread::spawn(move || {
        Server::offering(control, "thermometer", Box::<Slow>::default())?.run(None)
    });
    let mut control = Control::connect(&daemon.socket("hall")).expect("connected");
    let end = loop {
        match control.connect_service("thermometer", "api", 0, soon()) {
            Ok((_, end)) => break end,
            Err(ControlError::Refused { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let (caller, mut answers) = session::open(end).expect("a link");
    assert!(matches!(answers.next(Some(soon())), Ok(Incoming::Hello(_))));
    let ask = |tag, payload: &[u8]| {
        caller.request((SESSION_NONE, tag), UNIT, payload, false, Some(soon())).expect("sent");
    };
    ask(1, b"hold");
    ask(2, b"");
    assert!(matches!(answers.next(Some(soon())), Ok(Incoming::Answer(answer)) if answer.tag == 2));
    daemon.tell_server(Event::Leave { service: "thermometer".into() });
    // The state goes the same way as the event, so the event has been heard when it is there.
    let _state = daemon.state();
    ask(3, b"");
    match answers.next(Some(soon())) {
        Ok(Incoming::Leave { taken }) => assert_eq!(session::tags(taken).collect::<Vec<_>>(), [1]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(answers.next(Some(soon())), Err(CallError::Closed)));
}
