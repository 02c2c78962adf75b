//! A service that echoes, served over real channels, introduced by a stand-in for the daemon.

use rustix::io::Errno;
use serde_json::{Value, json};
use session::{
    Answers, Blocking, CallError, Caller, Context, Control, Incoming, LinkId, Readiness, ReplyTo, Server,
    Service,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use sys::eventfd::Eventfd;
use testing::FakeDaemon;
use wire::control::{Consumer, Event, ServedService};
use wire::service::{Behaviour, Export, FileExport, Header, Kind, OpenInfo, Phase, SESSION_NONE, VERSION};

/// Echoes at once.
const ECHO: u32 = 0;
/// Never answers.
const HOLD: u32 = 1;
/// Answers as many bytes as the request says.
const BIG: u32 = 2;
/// Answers when its timer says so.
const LATER: u32 = 3;
/// Needs a verb of its own.
const SECRET: u32 = 4;
/// Sessions that one domain may have open.
const SESSIONS: usize = 3;

#[derive(Default)]
struct Echo {
    sessions: HashMap<(LinkId, u64), Vec<u8>>,
    later: Option<(ReplyTo, Instant)>,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Echo {
    fn note(&self, text: impl Into<String>) {
        self.heard.lock().expect("unpoisoned").push(text.into());
    }
}

impl Service for Echo {
    fn export(&self) -> Export {
        let file = |id, verb: &str| FileExport {
            id,
            name: None,
            mode: 0o666,
            behaviour: Behaviour::Session,
            idempotent: true,
            verb: verb.into(),
            change: None,
        };
        let mut files: Vec<_> = [ECHO, HOLD, BIG, LATER].map(|id| file(id, "use")).into();
        files.push(file(SECRET, "secret"));
        Export { version: VERSION, kind: "echo".into(), files }
    }

    fn attach(&mut self, _: &mut dyn Context, _: LinkId, consumer: &Consumer) {
        self.note(format!("attach {} {}", consumer.domain, consumer.entrance));
    }

    fn detach(&mut self, _: &mut dyn Context, link: LinkId) {
        self.sessions.retain(|(of, _), _| *of != link);
        self.note("detach");
    }

    fn open(&mut self, ctx: &mut dyn Context, to: ReplyTo, info: &OpenInfo) {
        if self.sessions.keys().filter(|(link, _)| *link == to.link).count() >= SESSIONS {
            return ctx.answer(to, Err(Errno::MFILE), &[]);
        }
        self.sessions.insert((to.link, to.session), info.capsule.clone());
        ctx.answer(to, Ok(&[]), &[]);
    }

    fn request(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        match to.file {
            HOLD => self.note("held"),
            BIG => {
                let bytes = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
                ctx.answer(to, bytes.map(|bytes| vec![b'x'; bytes]).as_deref().ok_or(Errno::INVAL), &[]);
            }
            LATER => self.later = Some((to, ctx.now() + Duration::from_millis(20))),
            _ => {
                let state = self.sessions.get(&(to.link, to.session)).cloned().unwrap_or_default();
                let phases = [Phase { phase: 0, nanoseconds: 5 }];
                ctx.answer(to, Ok(&[&state, payload].concat()), &phases);
            }
        }
    }

    /// Sets the session's state, which stands before each echo.
    fn control(&mut self, ctx: &mut dyn Context, to: ReplyTo, payload: &[u8]) {
        self.sessions.insert((to.link, to.session), payload.to_vec());
        ctx.capsule(to.link, to.session, payload);
        ctx.answer(to, Ok(&[]), &[]);
    }

    fn cancel(&mut self, _: &mut dyn Context, _: LinkId, tag: u64) {
        self.note(format!("cancel {tag}"));
    }

    fn close(&mut self, _: &mut dyn Context, link: LinkId, session: u64) {
        self.sessions.remove(&(link, session));
        self.note(format!("close {session}"));
    }

    fn settings(&mut self, _: &mut dyn Context, settings: &Value) -> Result<(), String> {
        self.note(format!("settings {settings}"));
        Ok(())
    }

    fn ready(&mut self, _: &mut dyn Context, _: u32, _: Readiness) {}

    fn deadline(&self) -> Option<Instant> {
        self.later.map(|(_, when)| when)
    }

    fn expired(&mut self, ctx: &mut dyn Context) {
        if let Some((to, _)) = self.later.take() {
            ctx.answer(to, Ok(b"later"), &[]);
        }
    }

    fn state(&self) -> Value {
        json!({ "sessions": self.sessions.len() })
    }

    fn state_for(&self, link: LinkId) -> Value {
        json!({ "mine": self.sessions.keys().filter(|(of, _)| *of == link).count() })
    }
}

/// A daemon, a server thread with an [`Echo`], and what the service heard.
struct Stage {
    folder: tempfile::TempDir,
    daemon: Option<FakeDaemon>,
    stop: Arc<Eventfd>,
    server: Option<std::thread::JoinHandle<()>>,
    heard: Arc<Mutex<Vec<String>>>,
}

const DOMAINS: [&str; 3] = ["server", "a", "b"];

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn services(settings: Value) -> Vec<ServedService> {
    vec![ServedService { name: "echo".into(), kind: "echo".into(), settings }]
}

impl Stage {
    fn set(stall_limit: Duration) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let daemon = FakeDaemon::start(folder.path(), &DOMAINS, services(json!({})));
        let mut stage = Self {
            folder,
            daemon: Some(daemon),
            stop: Arc::new(Eventfd::new().expect("an event")),
            server: None,
            heard: Arc::default(),
        };
        stage.start_server(stall_limit);
        stage
    }

    fn start_server(&mut self, stall_limit: Duration) {
        let control = Control::connect(&self.daemon().socket("server")).expect("connected");
        let (heard, stop) = (Arc::clone(&self.heard), Arc::clone(&self.stop));
        self.server = Some(std::thread::spawn(move || {
            let make = move |_: &ServedService| -> Result<Box<dyn Service>, String> {
                Ok(Box::new(Echo { heard: Arc::clone(&heard), ..Echo::default() }))
            };
            let mut server = Server::new(control, Box::new(make)).expect("a server");
            server.set_stall_limit(stall_limit);
            use std::os::fd::AsFd;
            server.run(Some(stop.as_fd())).expect("served");
        }));
        // The daemon's answer to a question that goes by the server's loop: it has announced
        // itself.
        while self.services_up() == Some(false) {
            std::thread::yield_now();
        }
    }

    fn services_up(&self) -> Option<bool> {
        let mut control = Control::connect(&self.daemon().socket("a")).expect("connected");
        control.services(soon()).expect("services").first().map(|service| service.up)
    }

    fn stop_server(&mut self) {
        self.stop.signal();
        if let Some(server) = self.server.take() {
            server.join().expect("the server does not panic");
        }
        self.stop.drain();
    }

    fn daemon(&self) -> &FakeDaemon {
        self.daemon.as_ref().expect("a daemon")
    }

    fn end_of(&self, domain: &str) -> channel::End {
        let mut control = Control::connect(&self.daemon().socket(domain)).expect("connected");
        control.connect_service("echo", "api", 0, soon()).expect("a channel").1
    }

    fn blocking(&self, domain: &str) -> Blocking {
        Blocking::open(self.end_of(domain), Some(soon())).expect("a link")
    }

    fn link(&self, domain: &str) -> (Caller, Answers) {
        let (caller, mut answers) = session::open(self.end_of(domain)).expect("a link");
        assert!(matches!(answers.next(Some(soon())), Ok(Incoming::Hello(_))));
        (caller, answers)
    }

    /// Waits until the service has heard something.
    fn hears(&self, what: &str) {
        let deadline = soon();
        while !self.heard.lock().expect("unpoisoned").iter().any(|heard| heard.contains(what)) {
            assert!(Instant::now() < deadline, "the service never heard {what:?}: {:?}", self.heard);
            std::thread::yield_now();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop_server();
        }
    }
}

fn answer(incoming: Result<Incoming<'_>, CallError>) -> (u64, Result<Vec<u8>, Errno>) {
    match incoming {
        Ok(Incoming::Answer(answer)) => (answer.tag, answer.result.map(<[u8]>::to_vec)),
        other => panic!("no answer: {other:?}"),
    }
}

#[test]
fn a_question_is_answered_whole_and_traced() {
    let stage = Stage::set(session::STALL_LIMIT);
    let mut link = stage.blocking("a");
    assert_eq!(link.export().kind, "echo");
    assert_eq!(link.call(ECHO, b"hi", Some(soon())).expect("called").result, Ok(&b"hi"[..]));
    let traced = link.call_traced(ECHO, b"hi", Some(soon())).expect("called");
    assert_eq!((traced.result, traced.phases.len()), (Ok(&b"hi"[..]), 1));
    for bytes in [0, 1, 96 << 10, 97 << 10, 1 << 20] {
        let big = link.call(BIG, bytes.to_string().as_bytes(), Some(soon())).expect("called");
        assert_eq!(big.result.expect("an answer").len(), bytes);
    }
    let too_big = link.call(BIG, b"1048577", Some(soon())).expect("called");
    assert_eq!(too_big.result, Err(Errno::MSGSIZE));
    assert_eq!(link.call(LATER, b"", Some(soon())).expect("called").result, Ok(&b"later"[..]));
    assert_eq!(link.state(Some(soon())).expect("called").result, Ok(&b"{\"mine\":0}"[..]));
    let longest = vec![b'y'; wire::service::MAX_REQUEST_BYTES];
    assert_eq!(link.call(ECHO, &longest, Some(soon())).expect("called").result, Ok(&longest[..]));
    let too_long = vec![b'y'; wire::service::MAX_REQUEST_BYTES + 1];
    assert!(matches!(link.call(ECHO, &too_long, Some(soon())), Err(CallError::TooLong(_))));
}

#[test]
fn refusals_have_an_errno_and_leave_the_link_alone() {
    let stage = Stage::set(session::STALL_LIMIT);
    let mut link = stage.blocking("a");
    let info = OpenInfo::default();
    for session in 1..=SESSIONS as u64 {
        assert!(link.open_session(session, ECHO, &info, Some(soon())).expect("called").result.is_ok());
    }
    let quota = link.open_session(9, ECHO, &info, Some(soon())).expect("called").result;
    assert_eq!(quota, Err(Errno::MFILE));
    assert_eq!(link.call_in(9, ECHO, b"", Some(soon())).expect("called").result, Err(Errno::BADF));
    assert_eq!(link.call(SECRET, b"", Some(soon())).expect("called").result, Err(Errno::ACCESS));
    assert_eq!(link.call(77, b"", Some(soon())).expect("called").result, Err(Errno::NOENT));
    let late = link.call(HOLD, b"", Some(Instant::now() + Duration::from_millis(20)));
    assert!(matches!(late, Err(CallError::TimedOut)));
    stage.hears("cancel");
    link.close_session(1, Some(soon())).expect("closed");
    stage.hears("close 1");
    assert!(link.open_session(1, ECHO, &info, Some(soon())).expect("called").result.is_ok());
    assert_eq!(link.call_in(1, ECHO, b"x", Some(soon())).expect("called").result, Ok(&b"x"[..]));
}

#[test]
fn verbs_change_under_an_open_link() {
    let stage = Stage::set(session::STALL_LIMIT);
    let mut link = stage.blocking("a");
    let verbs = |verbs: &[&str]| Event::Verbs {
        service: "echo".into(),
        domain: "a".into(),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
    };
    stage.daemon().tell_server(verbs(&["secret"]));
    // The state goes the same way as the event, so the event has been heard when it is there.
    let _state = stage.daemon().state();
    assert_eq!(link.call(SECRET, b"x", Some(soon())).expect("called").result, Ok(&b"x"[..]));
    assert_eq!(link.call(ECHO, b"x", Some(soon())).expect("called").result, Err(Errno::ACCESS));
    stage.daemon().tell_server(Event::Settings { service: "echo".into(), settings: json!({ "new": 1 }) });
    stage.hears("settings {\"new\":1}");
}

#[test]
fn a_dead_server_ends_the_link_and_sessions_go_on_from_their_capsules_with_the_next() {
    let mut stage = Stage::set(session::STALL_LIMIT);
    let (caller, mut answers) = stage.link("a");
    caller.open((5, 1), ECHO, &OpenInfo::default(), None).expect("sent");
    caller.control((5, 2), 0, b"state:", None).expect("sent");
    assert_eq!(answer(answers.next(Some(soon()))), (1, Ok(vec![])));
    let capsule = match answers.next(Some(soon())) {
        Ok(Incoming::Capsule { session: 5, capsule }) => capsule.to_vec(),
        other => panic!("no capsule: {other:?}"),
    };
    assert_eq!(answer(answers.next(Some(soon()))), (2, Ok(vec![])));
    caller.request((SESSION_NONE, 3), HOLD, b"never answered", false, None).expect("sent");
    stage.stop_server();
    assert!(matches!(answers.next(Some(soon())), Err(CallError::Closed)));
    assert!(matches!(caller.request((5, 4), ECHO, b"", false, None), Err(CallError::Closed)));

    stage.start_server(session::STALL_LIMIT);
    let (caller, mut answers) = stage.link("a");
    let info = OpenInfo { capsule, ..OpenInfo::default() };
    caller.open((5, 1), ECHO, &info, None).expect("sent");
    caller.request((5, 3), ECHO, b"again", false, None).expect("sent");
    assert_eq!(answer(answers.next(Some(soon()))), (1, Ok(vec![])));
    assert_eq!(answer(answers.next(Some(soon()))), (3, Ok(b"state:again".to_vec())));
}

#[test]
fn the_daemons_death_is_survived_by_the_links_and_the_next_daemon_introduces_more() {
    let mut stage = Stage::set(session::STALL_LIMIT);
    let mut link = stage.blocking("a");
    let mut waiting = Control::connect(&stage.daemon().socket("b")).expect("connected");
    stage.daemon.take().expect("a daemon").kill();
    assert_eq!(link.call(ECHO, b"alone", Some(soon())).expect("called").result, Ok(&b"alone"[..]));
    assert!(waiting.services(soon()).expect_err("no daemon").is_gone());
    let waiter = std::thread::spawn(move || {
        waiting.reconnect(Some(soon())).expect("the next daemon");
        waiting
    });
    stage.daemon =
        Some(FakeDaemon::start(stage.folder.path(), &DOMAINS, services(json!({ "changed": true }))));
    let mut waited = waiter.join().expect("no panic");
    assert_eq!(waited.about(soon()).expect("about"), json!({ "domain": "b" }));
    stage.hears("settings {\"changed\":true}");
    assert_eq!(link.call(ECHO, b"still", Some(soon())).expect("called").result, Ok(&b"still"[..]));
    let mut second = stage.blocking("b");
    assert_eq!(second.call(ECHO, b"new", Some(soon())).expect("called").result, Ok(&b"new"[..]));
    let state = stage.daemon().state();
    assert_eq!(state["services"]["echo"]["links"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_flood_does_not_starve_a_neighbour() {
    let stage = Stage::set(session::STALL_LIMIT);
    let flood_end = stage.end_of("a");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let flood = std::thread::spawn(move || {
        let (caller, mut answers) = session::open(flood_end).expect("a link");
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            match caller.request((SESSION_NONE, caller.tag()), ECHO, &[b'f'; 1000], false, None) {
                Ok(()) => {
                    counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
                Err(CallError::Full) => {}
                Err(error) => panic!("the flood was cut off: {error}"),
            }
            while answers.try_next().expect("a link").is_some() {}
        }
    });
    let mut link = stage.blocking("b");
    let mut number = 0_u32;
    // Until the flood was one: its thread may begin late.
    while number < 200 || sent.load(std::sync::atomic::Ordering::Relaxed) <= 200 {
        let payload = number.to_le_bytes();
        assert_eq!(link.call(ECHO, &payload, Some(soon())).expect("called").result, Ok(&payload[..]));
        number += 1;
        assert!(!flood.is_finished(), "the flood has ended");
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    flood.join().expect("no panic");
}

#[test]
fn a_consumer_that_does_not_read_is_thrown_out_and_blocks_nobody() {
    let stage = Stage::set(Duration::from_millis(50));
    let (lazy, mut unread) = stage.link("a");
    for _ in 0..8 {
        lazy.request((SESSION_NONE, lazy.tag()), BIG, b"200000", false, None).expect("sent");
    }
    let mut link = stage.blocking("b");
    let state = loop {
        assert_eq!(link.call(ECHO, b"x", Some(soon())).expect("called").result, Ok(&b"x"[..]));
        let state = stage.daemon().state();
        if state["services"]["echo"]["links"].as_array().map(Vec::len) == Some(1) {
            break state;
        }
    };
    assert_eq!(state["services"]["echo"]["links"][0]["domain"], "b");
    // What had got through is still there, then the end.
    let end = loop {
        match unread.next(Some(soon())) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(end, CallError::Closed), "{end}");
}

#[test]
fn a_slow_reader_gets_everything_in_order() {
    let stage = Stage::set(session::STALL_LIMIT);
    let (caller, mut answers) = stage.link("a");
    const COUNT: u64 = 64;
    let asker = std::thread::spawn(move || {
        for tag in 1..=COUNT {
            caller.request((SESSION_NONE, tag), BIG, b"60000", false, Some(soon())).expect("sent");
        }
        caller
    });
    for tag in 1..=COUNT {
        let (answered, result) = answer(answers.next(Some(soon())));
        assert_eq!((answered, result.expect("an answer").len()), (tag, 60_000));
    }
    drop(asker.join().expect("no panic"));
}

#[test]
fn a_consumer_that_goes_is_forgotten() {
    let stage = Stage::set(session::STALL_LIMIT);
    let (caller, answers) = stage.link("a");
    caller.request((SESSION_NONE, 1), HOLD, b"", false, None).expect("sent");
    stage.hears("held");
    drop((caller, answers));
    stage.hears("detach");
}

/// Sends raw bytes as messages; the link is closed, the neighbour is served on.
fn throws_out(message: &[u8]) {
    let stage = Stage::set(session::STALL_LIMIT);
    let (mut sender, mut receiver) = stage.end_of("a").open().expect("opened");
    let mut buffer = Vec::new();
    receiver.receive(&mut buffer, Some(soon())).expect("a greeting");
    sender.send(message, Some(soon())).expect("sent");
    let end = loop {
        match receiver.receive(&mut buffer, Some(soon())) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(end, channel::ReceiveError::Closed), "{end}");
    stage.hears("detach");
    let mut link = stage.blocking("b");
    assert_eq!(link.call(ECHO, b"x", Some(soon())).expect("called").result, Ok(&b"x"[..]));
}

#[test]
fn nonsense_costs_the_link() {
    throws_out(b"nonsense");
    throws_out(&Header::new(Kind::Capsule).encode());
    throws_out(&Header { session: 1, ..Header::new(Kind::Open) }.encode());
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    /// Messages that look right at first sight, and others.
    fn messages() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let plausible = (0_u16..12, 0_u64..4, 0_u64..8, 0_u32..6, prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(kind, session, tag, file, payload)| {
                let kind = Kind::try_from(kind).unwrap_or(Kind::Request);
                let length = payload.len() as u32;
                let payload = if kind == Kind::Open {
                    serde_json::to_vec(&OpenInfo::default()).expect("json")
                } else {
                    payload
                };
                let length = if kind == Kind::Open { payload.len() as u32 } else { length };
                let header = Header { session, tag, file, length, ..Header::new(kind) };
                [&header.encode()[..], &payload].concat()
            });
        let wild = prop::collection::vec(any::<u8>(), 0..100);
        prop::collection::vec(prop_oneof![4 => plausible, 1 => wild], 1..30)
    }

    /// The region of a channel, written to behind the rings' back.
    struct Scribbler(std::fs::File);

    impl Scribbler {
        fn of(end: channel::End) -> (Self, channel::End) {
            let descriptors = end.into_descriptors();
            // The region is the first descriptor of one end, and the last of the other; the daemon
            // gives us the first.
            let region = descriptors[0].try_clone().expect("a duplicate");
            (Self(region.into()), channel::End::from_descriptors(descriptors.into()).expect("an end"))
        }

        fn scribble(&self, offset: u64, bytes: &[u8]) {
            use std::os::unix::fs::FileExt;
            let length = self.0.metadata().expect("a size").len();
            self.0.write_at(bytes, offset.min(length - bytes.len() as u64)).expect("written");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

        /// Whatever one consumer sends, the server lives, and serves the others.
        #[test]
        fn no_messages_harm_the_server(batches in prop::collection::vec(messages(), 1..4)) {
            let stage = Stage::set(session::STALL_LIMIT);
            let mut link = stage.blocking("b");
            for batch in batches {
                let (mut sender, _receiver) = stage.end_of("a").open().expect("opened");
                for message in batch {
                    // Thrown out half-way is as it should be.
                    if sender.send(&message, Some(soon())).is_err() {
                        break;
                    }
                }
                let answer = link.call(ECHO, b"x", Some(soon())).expect("called").result.map(<[u8]>::to_vec);
                prop_assert_eq!(answer, Ok(b"x".to_vec()));
            }
        }

        /// Whatever one consumer writes over the memory it shares with the server, the server
        /// lives, and serves the others.
        #[test]
        fn no_scribbling_harms_the_server(
            scribbles in prop::collection::vec(
                (prop_oneof![0_u64..8192, any::<u64>()], prop::collection::vec(any::<u8>(), 1..64)), 1..40)
        ) {
            let stage = Stage::set(session::STALL_LIMIT);
            let mut link = stage.blocking("b");
            let (scribbler, end) = Scribbler::of(stage.end_of("a"));
            let (caller, mut answers) = session::open(end).expect("a link");
            for (number, (offset, bytes)) in scribbles.iter().enumerate() {
                scribbler.scribble(*offset, bytes);
                // Both may fail now, and must not do more than that.
                let _sent = caller.request((SESSION_NONE, number as u64), ECHO, bytes, false, None);
                let _received = answers.try_next();
                let answer = link.call(ECHO, b"x", Some(soon())).expect("called").result.map(<[u8]>::to_vec);
                prop_assert_eq!(answer, Ok(b"x".to_vec()));
            }
        }
    }
}
